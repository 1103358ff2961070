-- What lists of runs, parts of threads and drawings of looms read. All of it follows from the records.

ALTER TABLE roots ADD COLUMN crystal TEXT;

-- `parent_key` and `parent_sequence`: the entity and the sequence of the turn `origin_id`. `call_id` and `call_index`: of
-- a child, what spawned it. `environment`: of a fork.
ALTER TABLE entities ADD COLUMN cantrip_id TEXT;
ALTER TABLE entities ADD COLUMN parent_key BIGINT;
ALTER TABLE entities ADD COLUMN parent_sequence BIGINT;
ALTER TABLE entities ADD COLUMN call_id TEXT;
ALTER TABLE entities ADD COLUMN call_index BIGINT;
ALTER TABLE entities ADD COLUMN environment TEXT;
CREATE INDEX entities_of_run ON entities (run_key, entity_key);
CREATE INDEX entities_of_parent ON entities (parent_key, parent_sequence, origin) WHERE parent_key IS NOT NULL;

-- The beginning of the intent, also if an earlier cast recorded it, and how the cast ended.
ALTER TABLE casts ADD COLUMN intent TEXT;
ALTER TABLE casts ADD COLUMN outcome TEXT;
ALTER TABLE casts ADD COLUMN reason TEXT;

-- `worst`: the worst reply of the turn, from 0 for a success to 3. `cost_sum`: the known cost of all turns of its entity
-- up to this one, so the cost of a stretch is a difference of two rows.
ALTER TABLE turns ADD COLUMN worst BIGINT NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN cost_sum BIGINT NOT NULL DEFAULT 0;
ALTER TABLE turns ADD COLUMN currency TEXT;
CREATE INDEX turns_with_faults ON turns (entity_key, sequence, worst) WHERE worst > 0;

-- A row for each run that is not below another one, written when the row of the run is. `digest` is the fold of its
-- records up to `through`; the columns before it repeat what a list is narrowed by. `turns_before`: the sequence of its
-- entity when the run began.
CREATE TABLE run_summaries (
    run_key BIGINT PRIMARY KEY REFERENCES runs ON DELETE RESTRICT,
    created_at BIGINT NOT NULL,
    ended_at BIGINT,
    phase TEXT NOT NULL,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    loom_key BIGINT NOT NULL,
    spell TEXT,
    crystal TEXT,
    intent TEXT,
    answer TEXT,
    cost BIGINT,
    currency TEXT,
    turns_before BIGINT NOT NULL,
    through BIGINT NOT NULL,
    digest TEXT NOT NULL
);
CREATE INDEX run_summaries_by_time ON run_summaries (created_at, run_key);
CREATE INDEX run_summaries_by_phase ON run_summaries (phase, created_at, run_key);
CREATE INDEX run_summaries_by_owner ON run_summaries (owner, created_at, run_key);
CREATE INDEX run_summaries_by_spell ON run_summaries (spell, created_at, run_key) WHERE spell IS NOT NULL;
CREATE INDEX run_summaries_by_loom ON run_summaries (loom_key, created_at, run_key);
CREATE INDEX run_summaries_by_end ON run_summaries (ended_at, owner, phase, currency, cost) WHERE ended_at IS NOT NULL;

-- The gates that a run called, and the codes that it met.
CREATE TABLE run_marks (
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    kind TEXT NOT NULL CHECK (kind IN ('gate', 'code')),
    name TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (run_key, kind, name)
);
CREATE INDEX run_marks_by_name ON run_marks (kind, name, created_at, run_key);

-- Approvals of runs that are not over, which nobody has decided.
CREATE TABLE waiting_calls (
    waiting_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_key BIGINT NOT NULL REFERENCES runs ON DELETE RESTRICT,
    approval_id BYTEA NOT NULL,
    asked_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    UNIQUE (run_key, approval_id)
);
