-- What a retention removed, one row for each run: who asked for it, by which policy, and where the chain goes on.
CREATE TABLE retention_removals (
    removal_key INTEGER PRIMARY KEY,
    retention_id BLOB NOT NULL,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq INTEGER NOT NULL CHECK (seq > 0),
    records INTEGER NOT NULL CHECK (records > 0),
    event_hash BLOB NOT NULL,
    policy TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL,
    UNIQUE (run_key, seq)
);
CREATE TRIGGER retention_removals_stay_as_written BEFORE UPDATE ON retention_removals
BEGIN SELECT RAISE(ABORT, 'retention_removals are written once'); END;
CREATE TRIGGER retention_removals_are_kept BEFORE DELETE ON retention_removals
BEGIN SELECT RAISE(ABORT, 'retention_removals are kept'); END;
-- No record is deleted without the row that says so.
DROP TRIGGER run_events_are_kept;
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
WHEN NOT EXISTS (
    SELECT 1 FROM run_anchors a JOIN runs r ON r.run_key = a.run_key
    JOIN retention_removals m ON m.run_key = a.run_key AND m.seq = a.seq
    WHERE a.run_key = OLD.run_key AND a.seq >= OLD.seq AND r.phase NOT IN ('live', 'failed')
)
BEGIN SELECT RAISE(ABORT, 'run_events are kept up to an anchor that a retention left in a finished run'); END;
