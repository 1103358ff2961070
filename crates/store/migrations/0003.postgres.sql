-- Contracts: what a model was asked to do, in which form, what came of it, and what is served. Texts that are hashed are
-- kept as they were hashed; names of signatures, artifacts, receipts, origins and traces are texts, those of runs,
-- predicts, entities and audits 16 bytes, hashes 32.

CREATE TABLE ds_signatures (
    signature_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    signature_id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL CHECK (version > 0),
    schema_hash BYTEA NOT NULL,
    prompt_hash BYTEA NOT NULL,
    program_hash BYTEA NOT NULL,
    payload_hash BYTEA NOT NULL,
    body TEXT NOT NULL,
    description TEXT NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('builtin', 'file', 'api')),
    created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    retired_at BIGINT,
    UNIQUE (namespace, name, version)
);

CREATE TABLE ds_artifacts (
    artifact_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    compiled_id TEXT NOT NULL UNIQUE,
    content_hash BYTEA NOT NULL UNIQUE,
    signature_id TEXT NOT NULL REFERENCES ds_signatures (signature_id) ON DELETE RESTRICT,
    strategy TEXT NOT NULL CHECK (strategy IN ('direct.v1', 'rlm_lite.v1')),
    schema_hash BYTEA NOT NULL,
    prompt_hash BYTEA NOT NULL,
    program_hash BYTEA NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX ds_artifacts_of_signature ON ds_artifacts (signature_id, created_at);

CREATE TABLE ds_artifact_origins (
    origin_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin_id TEXT NOT NULL UNIQUE,
    compiled_id TEXT NOT NULL REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    parent_compiled_id TEXT REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    kind TEXT NOT NULL CHECK (kind IN ('signature', 'job', 'import', 'manual')),
    job_id TEXT,
    report_id TEXT,
    actor TEXT NOT NULL,
    note TEXT,
    at BIGINT NOT NULL
);
CREATE INDEX ds_artifact_origins_of_artifact ON ds_artifact_origins (compiled_id);

CREATE TABLE ds_predicts (
    predict_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    predict_id BYTEA NOT NULL UNIQUE,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    owner TEXT NOT NULL,
    signature_id TEXT NOT NULL REFERENCES ds_signatures (signature_id) ON DELETE RESTRICT,
    compiled_id TEXT NOT NULL REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    status TEXT CHECK (status IN ('succeeded', 'denied', 'failed', 'cancelled')),
    params_hash BYTEA NOT NULL,
    output_hash BYTEA,
    request_hash BYTEA NOT NULL,
    idempotency_key TEXT,
    purpose TEXT NOT NULL CHECK (purpose IN ('serve', 'eval', 'compile')),
    thread_id BYTEA,
    lease_epoch BIGINT NOT NULL,
    opened_at BIGINT NOT NULL,
    closed_at BIGINT,
    CHECK ((state = 'closed') = (status IS NOT NULL)),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL))
);
CREATE UNIQUE INDEX ds_predicts_by_key ON ds_predicts (owner, signature_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX ds_predicts_of_signature ON ds_predicts (signature_id, opened_at);

CREATE TABLE ds_receipts (
    receipt_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt_id TEXT NOT NULL UNIQUE,
    receipt_hash BYTEA NOT NULL UNIQUE,
    receipt_kind TEXT NOT NULL CHECK (receipt_kind IN ('predict', 'cast')),
    predict_id BYTEA UNIQUE REFERENCES ds_predicts (predict_id) ON DELETE RESTRICT,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    seq BIGINT NOT NULL CHECK (seq > 0),
    prev_hash BYTEA,
    thread_id BYTEA,
    owner TEXT NOT NULL,
    signature_id TEXT,
    compiled_id TEXT,
    variant TEXT,
    status TEXT NOT NULL CHECK (status IN ('succeeded', 'denied', 'failed', 'cancelled')),
    decision TEXT,
    reason_code TEXT,
    currency TEXT,
    captured BIGINT NOT NULL CHECK (captured >= 0),
    latency_ms BIGINT NOT NULL CHECK (latency_ms >= 0),
    created_at BIGINT NOT NULL,
    body TEXT NOT NULL,
    signature TEXT,
    UNIQUE (run_id, seq),
    CHECK ((predict_id IS NOT NULL) = (receipt_kind = 'predict'))
);
CREATE INDEX ds_receipts_of_signature ON ds_receipts (signature_id, created_at);
CREATE INDEX ds_receipts_of_artifact ON ds_receipts (compiled_id, created_at);
CREATE INDEX ds_receipts_of_owner ON ds_receipts (owner, created_at);

CREATE TABLE ds_traces (
    trace_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    trace_ref TEXT NOT NULL UNIQUE,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    predict_id BYTEA NOT NULL REFERENCES ds_predicts (predict_id) ON DELETE RESTRICT,
    trace_hash BYTEA NOT NULL,
    storage TEXT NOT NULL CHECK (storage IN ('inline', 'external')),
    state TEXT NOT NULL CHECK (state IN ('inline', 'pending', 'stored', 'expired')),
    uri TEXT,
    bytes BIGINT NOT NULL CHECK (bytes >= 0),
    payload TEXT,
    created_at BIGINT NOT NULL,
    stored_at BIGINT,
    expires_at BIGINT,
    deleted_at BIGINT,
    deleted_by TEXT,
    CHECK ((state = 'expired') = (deleted_at IS NOT NULL))
);
CREATE INDEX ds_traces_by_state ON ds_traces (state, expires_at);

CREATE TABLE ds_pointer_audits (
    audit_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    audit_id BYTEA NOT NULL UNIQUE,
    signature_id TEXT NOT NULL REFERENCES ds_signatures (signature_id) ON DELETE RESTRICT,
    version_after BIGINT NOT NULL CHECK (version_after > 0),
    action TEXT NOT NULL CHECK (action IN ('set', 'canary', 'clear', 'promote', 'rollback')),
    actor TEXT NOT NULL,
    reason TEXT,
    metadata TEXT NOT NULL,
    before TEXT,
    after TEXT NOT NULL,
    parent_audit_id BYTEA REFERENCES ds_pointer_audits (audit_id) ON DELETE RESTRICT,
    target_audit_id BYTEA REFERENCES ds_pointer_audits (audit_id) ON DELETE RESTRICT,
    eval_id TEXT,
    forced BIGINT NOT NULL CHECK (forced IN (0, 1)),
    at BIGINT NOT NULL,
    UNIQUE (signature_id, version_after)
);
CREATE INDEX ds_pointer_audits_of_signature ON ds_pointer_audits (signature_id, at);

CREATE TABLE ds_artifact_pointers (
    signature_id TEXT NOT NULL PRIMARY KEY REFERENCES ds_signatures (signature_id) ON DELETE RESTRICT,
    primary_artifact TEXT NOT NULL REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    canary_artifact TEXT REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    canary_percent BIGINT NOT NULL CHECK (canary_percent BETWEEN 0 AND 100),
    rollout_seed TEXT NOT NULL,
    metadata TEXT NOT NULL,
    version BIGINT NOT NULL CHECK (version > 0),
    head_audit_id BYTEA REFERENCES ds_pointer_audits (audit_id) ON DELETE RESTRICT,
    updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL,
    CHECK (canary_percent = 0 OR canary_artifact IS NOT NULL)
);

CREATE TRIGGER ds_artifacts_stay_as_written BEFORE UPDATE ON ds_artifacts
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_artifacts_are_kept BEFORE DELETE ON ds_artifacts
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_artifact_origins_stay_as_written BEFORE UPDATE ON ds_artifact_origins
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_artifact_origins_are_kept BEFORE DELETE ON ds_artifact_origins
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_receipts_stay_as_written BEFORE UPDATE ON ds_receipts
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_receipts_are_kept BEFORE DELETE ON ds_receipts
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_pointer_audits_stay_as_written BEFORE UPDATE ON ds_pointer_audits
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_pointer_audits_are_kept BEFORE DELETE ON ds_pointer_audits
FOR EACH ROW EXECUTE FUNCTION is_kept();
-- What is published stays; only its description and whether it is listed may change.
CREATE TRIGGER ds_signatures_stay_as_written BEFORE UPDATE OF signature_id, namespace, name, version, schema_hash, prompt_hash, program_hash, payload_hash, body, origin, created_at, created_by ON ds_signatures
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_signatures_are_kept BEFORE DELETE ON ds_signatures
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_predicts_stay_as_written BEFORE UPDATE OF predict_id, run_id, owner, signature_id, compiled_id, params_hash, request_hash, idempotency_key, purpose, thread_id, opened_at ON ds_predicts
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_predicts_are_kept BEFORE DELETE ON ds_predicts
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_traces_stay_as_written BEFORE UPDATE OF trace_ref, run_id, predict_id, trace_hash, storage, uri, bytes, created_at ON ds_traces
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER ds_traces_are_kept BEFORE DELETE ON ds_traces
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER ds_artifact_pointers_are_kept BEFORE DELETE ON ds_artifact_pointers
FOR EACH ROW EXECUTE FUNCTION is_kept();
