-- The records of a step lie packed, kinds, times and payloads in one column; of the links in the chain all but the last
-- are cut to four bytes, which is enough to tell which record is not as it was written.
CREATE TABLE run_events_packed (
    place BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq BIGINT NOT NULL CHECK (seq > 0),
    records BIGINT NOT NULL CHECK (records > 0 AND records <= seq),
    epoch BIGINT NOT NULL,
    step_id TEXT NOT NULL,
    told BYTEA NOT NULL,
    links BYTEA NOT NULL CHECK (length(links) IN (4 * records + 28, 32 * records)),
    UNIQUE (run_key, seq),
    UNIQUE (run_key, step_id)
);
ALTER TABLE run_events_packed ALTER COLUMN told SET STORAGE EXTERNAL;
INSERT INTO run_events_packed (place, run_key, seq, records, epoch, step_id, told, links)
OVERRIDING SYSTEM VALUE
SELECT place, run_key, seq, records, epoch, step_id, convert_to('0' || heads || chr(10) || payloads, 'UTF8'), hashes
FROM run_events ORDER BY place;
SELECT setval(pg_get_serial_sequence('run_events_packed', 'place'), coalesce(max(place), 0) + 1, false)
FROM run_events_packed;
DROP TABLE run_events;
ALTER TABLE run_events_packed RENAME TO run_events;
CREATE TRIGGER run_events_stay_as_written BEFORE UPDATE ON run_events
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
FOR EACH ROW EXECUTE FUNCTION is_kept_up_to_an_anchor();
