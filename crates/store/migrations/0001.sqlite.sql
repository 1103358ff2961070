-- Names of things are their 16 bytes, hashes their 32; an integer key stands in for them where rows are many.

CREATE TABLE looms (
    loom_key INTEGER PRIMARY KEY,
    loom_id BLOB NOT NULL UNIQUE
);

CREATE TABLE runs (
    run_key INTEGER PRIMARY KEY,
    run_id BLOB NOT NULL UNIQUE,
    loom_key INTEGER NOT NULL REFERENCES looms ON DELETE RESTRICT,
    kind TEXT NOT NULL CHECK (kind IN ('cast', 'summon', 'predict', 'job')),
    owner TEXT NOT NULL,
    entity_id BLOB,
    root_run_id BLOB,
    phase TEXT NOT NULL CHECK (phase IN ('live', 'failed', 'terminated', 'truncated', 'unsuccessful')),
    parked INTEGER NOT NULL CHECK (parked IN (0, 1)),
    approvals TEXT,
    copied INTEGER NOT NULL CHECK (copied IN (0, 1)),
    epoch INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at INTEGER
);
-- An entity has one live run.
CREATE UNIQUE INDEX runs_of_entity ON runs (entity_id) WHERE phase = 'live' AND entity_id IS NOT NULL;
CREATE INDEX runs_by_phase ON runs (phase, run_key);

CREATE TABLE run_leases (
    run_key INTEGER PRIMARY KEY REFERENCES runs ON DELETE RESTRICT,
    owner TEXT,
    epoch INTEGER NOT NULL,
    expires_at INTEGER,
    CHECK ((owner IS NULL) = (expires_at IS NULL))
);

CREATE TABLE run_anchors (
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq INTEGER NOT NULL CHECK (seq > 0),
    event_hash BLOB NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (run_key, seq)
);

-- A row is a step: `seq` is that of its last record, `heads` has kind and time of each, `payloads` their texts, a line
-- each, `hashes` their links in the chain. Rows lie in the order of writing.
CREATE TABLE run_events (
    place INTEGER PRIMARY KEY,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    seq INTEGER NOT NULL CHECK (seq > 0),
    records INTEGER NOT NULL CHECK (records > 0 AND records <= seq),
    epoch INTEGER NOT NULL,
    step_id TEXT NOT NULL,
    heads TEXT NOT NULL,
    payloads TEXT NOT NULL,
    hashes BLOB NOT NULL CHECK (length(hashes) = 32 * records),
    UNIQUE (run_key, seq),
    UNIQUE (run_key, step_id)
);

CREATE TABLE bodies (
    body_key INTEGER PRIMARY KEY,
    body_hash BLOB NOT NULL UNIQUE,
    bytes BLOB NOT NULL
);

-- What follows is an index of the records: where each thing was said. `step_seq` is the row, `seq` the record.

CREATE TABLE roots (
    root_key INTEGER PRIMARY KEY,
    loom_key INTEGER NOT NULL REFERENCES looms ON DELETE RESTRICT,
    cantrip_id TEXT NOT NULL,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    UNIQUE (loom_key, cantrip_id)
);

CREATE TABLE entities (
    entity_key INTEGER PRIMARY KEY,
    entity_id BLOB NOT NULL UNIQUE,
    loom_key INTEGER NOT NULL REFERENCES looms ON DELETE RESTRICT,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('root', 'child', 'fork')),
    origin_id BLOB,
    at INTEGER NOT NULL
);
CREATE INDEX entities_of_loom ON entities (loom_key, entity_key);
CREATE INDEX entities_by_origin ON entities (origin_id) WHERE origin_id IS NOT NULL;

CREATE TABLE casts (
    cast_key INTEGER PRIMARY KEY,
    cast_id BLOB NOT NULL UNIQUE,
    entity_key INTEGER NOT NULL REFERENCES entities ON DELETE RESTRICT,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    end_step_seq INTEGER,
    end_seq INTEGER,
    given_up INTEGER NOT NULL DEFAULT 0 CHECK (given_up IN (0, 1))
);
CREATE INDEX casts_of_entity ON casts (entity_key, cast_key);
CREATE INDEX casts_under_way ON casts (run_key) WHERE end_seq IS NULL AND given_up = 0;

-- Closed turns. `holder_id`: of a continuation, the turn that has its utterance. `first`: 1 of its cast, 2 of its entity.
-- `places`: for each row that tells of it the row's `seq` and how far before it each of its records lies.
CREATE TABLE turns (
    turn_key INTEGER PRIMARY KEY,
    turn_id BLOB NOT NULL UNIQUE,
    loom_key INTEGER NOT NULL REFERENCES looms ON DELETE RESTRICT,
    entity_key INTEGER NOT NULL REFERENCES entities ON DELETE RESTRICT,
    cast_key INTEGER NOT NULL REFERENCES casts ON DELETE RESTRICT,
    sequence INTEGER NOT NULL,
    holder_id BLOB,
    first INTEGER NOT NULL,
    places TEXT NOT NULL,
    at INTEGER NOT NULL,
    UNIQUE (entity_key, sequence)
);
CREATE INDEX turns_of_loom ON turns (loom_key, turn_key);

CREATE TABLE folds (
    fold_key INTEGER PRIMARY KEY,
    fold_id BLOB NOT NULL UNIQUE,
    entity_key INTEGER NOT NULL REFERENCES entities ON DELETE RESTRICT,
    after_id BLOB NOT NULL REFERENCES turns (turn_id) ON DELETE RESTRICT,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq INTEGER NOT NULL,
    seq INTEGER NOT NULL
);
CREATE INDEX folds_of_entity ON folds (entity_key, fold_key);

CREATE TABLE rewards (
    reward_key INTEGER PRIMARY KEY,
    turn_id BLOB NOT NULL REFERENCES turns (turn_id) ON DELETE RESTRICT,
    run_key INTEGER NOT NULL REFERENCES runs ON DELETE RESTRICT,
    step_seq INTEGER NOT NULL,
    seq INTEGER NOT NULL
);
CREATE INDEX rewards_of_turn ON rewards (turn_id, reward_key);

CREATE TRIGGER run_events_stay_as_written BEFORE UPDATE ON run_events
BEGIN SELECT RAISE(ABORT, 'run_events are written once'); END;
CREATE TRIGGER run_events_are_kept BEFORE DELETE ON run_events
WHEN NOT EXISTS (
    SELECT 1 FROM run_anchors a JOIN runs r ON r.run_key = a.run_key
    WHERE a.run_key = OLD.run_key AND a.seq >= OLD.seq AND r.phase NOT IN ('live', 'failed')
)
BEGIN SELECT RAISE(ABORT, 'run_events are kept up to an anchor of a finished run'); END;
CREATE TRIGGER run_anchors_stay_as_written BEFORE UPDATE ON run_anchors
BEGIN SELECT RAISE(ABORT, 'run_anchors are written once'); END;
CREATE TRIGGER run_anchors_are_kept BEFORE DELETE ON run_anchors
BEGIN SELECT RAISE(ABORT, 'run_anchors are kept'); END;
CREATE TRIGGER bodies_stay_as_written BEFORE UPDATE ON bodies
BEGIN SELECT RAISE(ABORT, 'bodies are written once'); END;
CREATE TRIGGER bodies_are_kept BEFORE DELETE ON bodies
BEGIN SELECT RAISE(ABORT, 'bodies are kept'); END;
