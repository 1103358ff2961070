-- The records of a step lie packed, kinds, times and payloads in one column; of the links in the chain all but the last
-- are cut to four bytes, which is enough to tell which record is not as it was written.
CREATE TABLE run_events_packed (
    place INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq INTEGER NOT NULL CHECK (seq > 0),
    records INTEGER NOT NULL CHECK (records > 0 AND records <= seq),
    epoch INTEGER NOT NULL,
    step_id TEXT NOT NULL,
    told BLOB NOT NULL,
    links BLOB NOT NULL CHECK (length(links) IN (4 * records + 28, 32 * records)),
    UNIQUE (run_key, seq),
    UNIQUE (run_key, step_id)
);
INSERT INTO run_events_packed
SELECT place, run_key, seq, records, epoch, step_id, CAST('0' || heads || char(10) || payloads AS BLOB), hashes
FROM run_events ORDER BY place;
DROP TABLE run_events;
ALTER TABLE run_events_packed RENAME TO run_events;
CREATE TRIGGER run_events_stay_as_written BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(ABORT, 'run_events are written once'); END;
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
WHEN NOT EXISTS (
    SELECT 1 FROM run_anchors a JOIN runs r ON r.run_key = a.run_key
    WHERE a.run_key = OLD.run_key AND a.seq >= OLD.seq AND r.phase NOT IN ('live', 'failed')
)
BEGIN SELECT RAISE(ABORT, 'run_events are kept up to an anchor of a finished run'); END;
