-- Names of things are their 16 bytes, hashes their 32; an integer key stands in for them where rows are many.

CREATE TABLE looms (
    loom_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    loom_id BYTEA NOT NULL UNIQUE
);

CREATE TABLE runs (
    run_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id BYTEA NOT NULL UNIQUE,
    loom_key BIGINT NOT NULL REFERENCES looms ON DELETE RESTRICT,
    kind TEXT NOT NULL CHECK (kind IN ('cast', 'summon', 'predict', 'job')),
    owner TEXT NOT NULL,
    entity_id BYTEA,
    root_run_id BYTEA,
    phase TEXT NOT NULL CHECK (phase IN ('live', 'failed', 'terminated', 'truncated', 'unsuccessful')),
    parked BIGINT NOT NULL CHECK (parked IN (0, 1)),
    approvals TEXT,
    copied BIGINT NOT NULL CHECK (copied IN (0, 1)),
    epoch BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    ended_at BIGINT
);
-- An entity has one live run.
CREATE UNIQUE INDEX runs_of_entity ON runs (entity_id) WHERE phase = 'live' AND entity_id IS NOT NULL;
CREATE INDEX runs_by_phase ON runs (phase, run_key);

CREATE TABLE run_leases (
    run_key BIGINT PRIMARY KEY REFERENCES runs ON DELETE RESTRICT,
    owner TEXT,
    epoch BIGINT NOT NULL,
    expires_at BIGINT,
    CHECK ((owner IS NULL) = (expires_at IS NULL))
);

CREATE TABLE run_anchors (
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq BIGINT NOT NULL CHECK (seq > 0),
    event_hash BYTEA NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (run_key, seq)
);

-- A row is a step: `seq` is that of its last record, `heads` has kind and time of each, `payloads` their texts, a line
-- each, `hashes` their links in the chain. Rows lie in the order of writing.
CREATE TABLE run_events (
    place BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq BIGINT NOT NULL CHECK (seq > 0),
    records BIGINT NOT NULL CHECK (records > 0 AND records <= seq),
    epoch BIGINT NOT NULL,
    step_id TEXT NOT NULL,
    heads TEXT NOT NULL,
    payloads TEXT NOT NULL,
    hashes BYTEA NOT NULL CHECK (length(hashes) = 32 * records),
    UNIQUE (run_key, seq),
    UNIQUE (run_key, step_id)
);

CREATE TABLE bodies (
    body_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    body_hash BYTEA NOT NULL UNIQUE,
    bytes BYTEA NOT NULL
);

-- What follows is an index of the records: where each thing was said. `step_seq` is the row, `seq` the record.

CREATE TABLE roots (
    root_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    loom_key BIGINT NOT NULL REFERENCES looms ON DELETE RESTRICT,
    cantrip_id TEXT NOT NULL,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    UNIQUE (loom_key, cantrip_id)
);

CREATE TABLE entities (
    entity_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entity_id BYTEA NOT NULL UNIQUE,
    loom_key BIGINT NOT NULL REFERENCES looms ON DELETE RESTRICT,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('root', 'child', 'fork')),
    origin_id BYTEA,
    at BIGINT NOT NULL
);
CREATE INDEX entities_of_loom ON entities (loom_key, entity_key);
CREATE INDEX entities_by_origin ON entities (origin_id) WHERE origin_id IS NOT NULL;

CREATE TABLE casts (
    cast_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cast_id BYTEA NOT NULL UNIQUE,
    entity_key BIGINT NOT NULL REFERENCES entities ON DELETE RESTRICT,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    end_step_seq BIGINT,
    end_seq BIGINT,
    given_up BIGINT NOT NULL DEFAULT 0 CHECK (given_up IN (0, 1))
);
CREATE INDEX casts_of_entity ON casts (entity_key, cast_key);
CREATE INDEX casts_under_way ON casts (run_key) WHERE end_seq IS NULL AND given_up = 0;

-- Closed turns. `holder_id`: of a continuation, the turn that has its utterance. `first`: 1 of its cast, 2 of its entity.
-- `places`: for each row that tells of it the row's `seq` and how far before it each of its records lies.
CREATE TABLE turns (
    turn_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    turn_id BYTEA NOT NULL UNIQUE,
    loom_key BIGINT NOT NULL REFERENCES looms ON DELETE RESTRICT,
    entity_key BIGINT NOT NULL REFERENCES entities ON DELETE RESTRICT,
    cast_key BIGINT NOT NULL REFERENCES casts ON DELETE RESTRICT,
    sequence BIGINT NOT NULL,
    holder_id BYTEA,
    first BIGINT NOT NULL,
    places TEXT NOT NULL,
    at BIGINT NOT NULL,
    UNIQUE (entity_key, sequence)
);
CREATE INDEX turns_of_loom ON turns (loom_key, turn_key);

CREATE TABLE folds (
    fold_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fold_id BYTEA NOT NULL UNIQUE,
    entity_key BIGINT NOT NULL REFERENCES entities ON DELETE RESTRICT,
    after_id BYTEA NOT NULL REFERENCES turns (turn_id) ON DELETE RESTRICT,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq BIGINT NOT NULL,
    seq BIGINT NOT NULL
);
CREATE INDEX folds_of_entity ON folds (entity_key, fold_key);

CREATE TABLE rewards (
    reward_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    turn_id BYTEA NOT NULL REFERENCES turns (turn_id) ON DELETE RESTRICT,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq BIGINT NOT NULL,
    seq BIGINT NOT NULL
);
CREATE INDEX rewards_of_turn ON rewards (turn_id, reward_key);

CREATE FUNCTION stays_as_written() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% are written once', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$;
CREATE FUNCTION is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% are kept', TG_TABLE_NAME USING ERRCODE = 'restrict_violation'; END $$;
CREATE TRIGGER run_events_stay_as_written BEFORE UPDATE ON run_events
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE FUNCTION is_kept_up_to_an_anchor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM run_anchors a JOIN runs r ON r.run_key = a.run_key
        WHERE a.run_key = OLD.run_key AND a.seq >= OLD.seq AND r.phase NOT IN ('live', 'failed')
    ) THEN
        RAISE EXCEPTION 'run_events are kept up to an anchor of a finished run' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
FOR EACH ROW EXECUTE FUNCTION is_kept_up_to_an_anchor();
CREATE TRIGGER run_anchors_stay_as_written BEFORE UPDATE ON run_anchors
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER run_anchors_are_kept BEFORE DELETE ON run_anchors
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER bodies_stay_as_written BEFORE UPDATE ON bodies
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER bodies_are_kept BEFORE DELETE ON bodies
FOR EACH ROW EXECUTE FUNCTION is_kept();
