-- What a retention removed, one row for each run: who asked for it, by which policy, and where the chain goes on.
CREATE TABLE retention_removals (
    removal_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    retention_id BYTEA NOT NULL,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq BIGINT NOT NULL CHECK (seq > 0),
    records BIGINT NOT NULL CHECK (records > 0),
    event_hash BYTEA NOT NULL,
    policy TEXT NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    at BIGINT NOT NULL,
    UNIQUE (run_key, seq)
);
CREATE TRIGGER retention_removals_stay_as_written BEFORE UPDATE ON retention_removals
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER retention_removals_are_kept BEFORE DELETE ON retention_removals
FOR EACH ROW EXECUTE FUNCTION is_kept();
-- No record is deleted without the row that says so.
CREATE OR REPLACE FUNCTION is_kept_up_to_a_removal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM run_anchors a JOIN runs r ON r.run_key = a.run_key
        JOIN retention_removals m ON m.run_key = a.run_key AND m.seq = a.seq
        WHERE a.run_key = OLD.run_key AND a.seq >= OLD.seq AND r.phase NOT IN ('live', 'failed')
    ) THEN
        RAISE EXCEPTION 'run_events are kept up to an anchor that a retention left in a finished run'
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END $$;
DROP TRIGGER run_events_are_kept ON run_events;
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
FOR EACH ROW EXECUTE FUNCTION is_kept_up_to_a_removal();
