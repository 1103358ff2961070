-- Money: who may spend what, what is held and was spent, and why. Amounts are micro-units of the authorization's
-- currency; names of authorizations, reservations and calls are texts, those of runs, approvals and decisions 16 bytes.

CREATE TABLE spend_authorizations (
    authorization_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    authorization_id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    run_id TEXT,
    thread_id TEXT,
    autopilot_id TEXT,
    currency TEXT NOT NULL,
    revision BIGINT NOT NULL CHECK (revision > 0),
    spent BIGINT NOT NULL CHECK (spent >= 0),
    reserved BIGINT NOT NULL CHECK (reserved >= 0),
    created_at BIGINT NOT NULL
);
CREATE INDEX spend_authorizations_of_owner ON spend_authorizations (owner, run_id, thread_id, autopilot_id);

CREATE TABLE spend_terms (
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    revision BIGINT NOT NULL CHECK (revision > 0),
    mode TEXT NOT NULL CHECK (
        mode IN ('deny', 'interactive', 'delegated_budget', 'delegated_budget_with_threshold', 'system')
    ),
    max_total BIGINT CHECK (max_total >= 0),
    max_per_call BIGINT CHECK (max_per_call >= 0),
    max_per_day BIGINT CHECK (max_per_day >= 0),
    threshold BIGINT CHECK (threshold >= 0),
    constraints TEXT NOT NULL,
    issued_at BIGINT NOT NULL,
    expires_at BIGINT,
    revoked_at BIGINT,
    terms TEXT NOT NULL,
    terms_hash BYTEA NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (authorization_id, revision),
    CHECK ((threshold IS NOT NULL) = (mode = 'delegated_budget_with_threshold')),
    CHECK (mode NOT IN ('delegated_budget', 'delegated_budget_with_threshold') OR max_total IS NOT NULL)
);

CREATE TABLE spend_days (
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    day TEXT NOT NULL,
    spent BIGINT NOT NULL CHECK (spent >= 0),
    reserved BIGINT NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (authorization_id, day)
);

CREATE TABLE spend_caps (
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    scope_id TEXT NOT NULL,
    parent_scope_id TEXT,
    cap BIGINT NOT NULL CHECK (cap >= 0),
    spent BIGINT NOT NULL CHECK (spent >= 0),
    reserved BIGINT NOT NULL CHECK (reserved >= 0),
    PRIMARY KEY (authorization_id, scope_id)
);

CREATE TABLE policy_decisions (
    decision_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decision_id BYTEA NOT NULL UNIQUE,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    call_id TEXT NOT NULL,
    phase TEXT NOT NULL,
    decision TEXT NOT NULL CHECK (decision IN ('allowed', 'denied', 'needs_approval')),
    reason_code TEXT NOT NULL,
    reason_codes_version TEXT NOT NULL,
    evaluation_hash BYTEA NOT NULL,
    input TEXT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX policy_decisions_of_run ON policy_decisions (run_id, decision_key);
CREATE INDEX policy_decisions_by_reason ON policy_decisions (reason_code, at);

CREATE TABLE spend_approvals (
    approval_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    approval_id BYTEA NOT NULL UNIQUE,
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    call_id TEXT,
    kind TEXT NOT NULL CHECK (kind IN ('spend', 'gate')),
    subject_hash BYTEA NOT NULL,
    currency TEXT NOT NULL,
    requested BIGINT NOT NULL CHECK (requested >= 0),
    granted BIGINT CHECK (granted >= 0),
    spent BIGINT NOT NULL CHECK (spent >= 0),
    reserved BIGINT NOT NULL CHECK (reserved >= 0),
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'refused', 'expired', 'cancelled')),
    requested_at BIGINT NOT NULL,
    requested_by TEXT NOT NULL,
    decided_at BIGINT,
    decided_by TEXT,
    expires_at BIGINT NOT NULL,
    reason TEXT,
    CHECK ((state = 'pending') = (decided_at IS NULL)),
    CHECK ((state = 'approved') = (granted IS NOT NULL))
);
CREATE INDEX spend_approvals_by_state ON spend_approvals (state, expires_at);
CREATE INDEX spend_approvals_of_run ON spend_approvals (run_id);

CREATE TABLE spend_reservations (
    reservation_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id TEXT NOT NULL UNIQUE,
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    run_id BYTEA NOT NULL REFERENCES runs (run_id) ON DELETE RESTRICT,
    root_run_id BYTEA NOT NULL,
    call_id TEXT NOT NULL,
    attempt BIGINT NOT NULL CHECK (attempt > 0),
    scope_id TEXT NOT NULL,
    decision_id BYTEA NOT NULL REFERENCES policy_decisions (decision_id) ON DELETE RESTRICT,
    approval_id BYTEA REFERENCES spend_approvals (approval_id) ON DELETE RESTRICT,
    amount BIGINT NOT NULL CHECK (amount > 0),
    captured BIGINT CHECK (captured >= 0),
    overage BIGINT NOT NULL CHECK (overage >= 0),
    currency TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'reconcile_required', 'committed', 'released')),
    retry_class TEXT NOT NULL CHECK (retry_class IN ('safe_retry', 'dedupe_reconcile_required')),
    provider_idempotency_key TEXT NOT NULL UNIQUE,
    provider_correlation_id TEXT,
    lease_epoch BIGINT NOT NULL,
    day TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    failure_reason TEXT,
    estimated BIGINT NOT NULL CHECK (estimated IN (0, 1)),
    reserved_at BIGINT NOT NULL,
    marked_at BIGINT,
    settled_at BIGINT,
    reconciled_at BIGINT,
    reconciled_by TEXT,
    reconciled_reason TEXT,
    UNIQUE (authorization_id, run_id, call_id, attempt),
    CHECK ((state = 'committed') = (captured IS NOT NULL))
);
-- A call has one open hold, whoever pays.
CREATE UNIQUE INDEX spend_reservations_open ON spend_reservations (run_id, call_id) WHERE state = 'reserved';
CREATE INDEX spend_reservations_of_call ON spend_reservations (run_id, call_id);
CREATE INDEX spend_reservations_of_tree ON spend_reservations (root_run_id) WHERE state = 'reserved';
CREATE INDEX spend_reservations_of_authorization ON spend_reservations (authorization_id, state);
CREATE INDEX spend_reservations_by_state ON spend_reservations (state, expires_at);

CREATE TABLE spend_entries (
    entry_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id TEXT NOT NULL REFERENCES spend_reservations (reservation_id) ON DELETE RESTRICT,
    n BIGINT NOT NULL CHECK (n > 0),
    authorization_id TEXT NOT NULL REFERENCES spend_authorizations (authorization_id) ON DELETE RESTRICT,
    op TEXT NOT NULL,
    d_spent BIGINT NOT NULL,
    d_reserved BIGINT NOT NULL,
    state_after TEXT NOT NULL,
    actor TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    reason TEXT,
    at BIGINT NOT NULL,
    UNIQUE (reservation_id, n)
);
CREATE INDEX spend_entries_of_authorization ON spend_entries (authorization_id, at);

CREATE TRIGGER spend_terms_stay_as_written BEFORE UPDATE ON spend_terms
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER spend_terms_are_kept BEFORE DELETE ON spend_terms
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER policy_decisions_stay_as_written BEFORE UPDATE ON policy_decisions
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER policy_decisions_are_kept BEFORE DELETE ON policy_decisions
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER spend_entries_stay_as_written BEFORE UPDATE ON spend_entries
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER spend_entries_are_kept BEFORE DELETE ON spend_entries
FOR EACH ROW EXECUTE FUNCTION is_kept();
-- Whom an authorization is for, and its currency, stay for life: losing what a scope names never widens a grant.
CREATE TRIGGER spend_authorizations_stay_as_written BEFORE UPDATE OF authorization_id, owner, run_id, thread_id, autopilot_id, currency ON spend_authorizations
FOR EACH ROW EXECUTE FUNCTION stays_as_written();
CREATE TRIGGER spend_authorizations_are_kept BEFORE DELETE ON spend_authorizations
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER spend_days_are_kept BEFORE DELETE ON spend_days
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER spend_caps_are_kept BEFORE DELETE ON spend_caps
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER spend_approvals_are_kept BEFORE DELETE ON spend_approvals
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER spend_reservations_are_kept BEFORE DELETE ON spend_reservations
FOR EACH ROW EXECUTE FUNCTION is_kept();
CREATE TRIGGER runs_are_kept BEFORE DELETE ON runs
FOR EACH ROW EXECUTE FUNCTION is_kept();
