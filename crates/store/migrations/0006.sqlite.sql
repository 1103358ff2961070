-- Improvement: the examples on which artifacts and spells are compared, how answers are scored, the jobs that do it and
-- what they found. Inputs, expected outputs and feedback are bodies under their hashes; subjects are the id of a
-- signature or spell: and a name.

CREATE TABLE ds_datasets (
    dataset_key INTEGER PRIMARY KEY,
    dataset_hash BLOB NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    split TEXT NOT NULL,
    split_seed TEXT NOT NULL,
    filters TEXT NOT NULL,
    counts TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL
);

CREATE TABLE ds_dataset_versions (
    version_key INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version > 0),
    dataset_hash BLOB NOT NULL REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    parent_hash BLOB REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    note TEXT,
    at INTEGER NOT NULL,
    by TEXT NOT NULL,
    UNIQUE (name, version)
);
CREATE INDEX ds_dataset_versions_of_dataset ON ds_dataset_versions (dataset_hash);

CREATE TABLE ds_dataset_examples (
    example_key INTEGER PRIMARY KEY,
    dataset_hash BLOB NOT NULL REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    example_id TEXT NOT NULL,
    split TEXT NOT NULL CHECK (split IN ('train', 'holdout', 'test')),
    input_hash BLOB NOT NULL,
    near_hash BLOB NOT NULL,
    expected_hash BLOB,
    content_hash BLOB NOT NULL,
    weight INTEGER NOT NULL CHECK (weight > 0),
    reward INTEGER,
    group_key TEXT,
    labels TEXT NOT NULL,
    source TEXT NOT NULL,
    UNIQUE (dataset_hash, example_id)
);
CREATE INDEX ds_dataset_examples_by_input ON ds_dataset_examples (input_hash);
CREATE INDEX ds_dataset_examples_in_order ON ds_dataset_examples (dataset_hash, example_key);
CREATE INDEX ds_dataset_examples_by_split ON ds_dataset_examples (dataset_hash, split, example_key);

CREATE TABLE ds_verdicts (
    verdict_key INTEGER PRIMARY KEY,
    verdict_id TEXT NOT NULL UNIQUE,
    receipt_id TEXT NOT NULL REFERENCES ds_receipts (receipt_id) ON DELETE RESTRICT,
    verdict TEXT NOT NULL CHECK (verdict IN ('good', 'bad')),
    expected_hash BLOB,
    labels TEXT NOT NULL,
    note TEXT,
    by TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX ds_verdicts_of_receipt ON ds_verdicts (receipt_id, at);

CREATE TABLE ds_metrics (
    metric_key INTEGER PRIMARY KEY,
    metric_hash BLOB NOT NULL UNIQUE,
    name TEXT,
    body TEXT NOT NULL,
    at INTEGER NOT NULL
);

CREATE TABLE ds_jobs (
    job_key INTEGER PRIMARY KEY,
    job_id BLOB NOT NULL UNIQUE,
    job_hash BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('eval', 'compile')),
    subject TEXT NOT NULL,
    dataset_hash BLOB NOT NULL REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    metric_hash BLOB NOT NULL REFERENCES ds_metrics (metric_hash) ON DELETE RESTRICT,
    split TEXT NOT NULL CHECK (split IN ('train', 'holdout', 'test')),
    run_id BLOB NOT NULL UNIQUE REFERENCES runs (run_id) ON DELETE RESTRICT,
    spec TEXT NOT NULL,
    optimiser TEXT,
    budget INTEGER CHECK (budget >= 0),
    currency TEXT,
    max_calls INTEGER CHECK (max_calls >= 0),
    status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'succeeded', 'incomplete', 'budget_exhausted', 'cancelled', 'failed')),
    metric_calls INTEGER NOT NULL CHECK (metric_calls >= 0),
    proposals INTEGER NOT NULL CHECK (proposals >= 0),
    error TEXT,
    created_at INTEGER NOT NULL,
    started_at INTEGER,
    finished_at INTEGER,
    CHECK ((budget IS NOT NULL) = (currency IS NOT NULL)),
    CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL))
);
CREATE INDEX ds_jobs_of_subject ON ds_jobs (subject, created_at);

CREATE TABLE ds_judge_checks (
    check_key INTEGER PRIMARY KEY,
    metric_hash BLOB NOT NULL REFERENCES ds_metrics (metric_hash) ON DELETE RESTRICT,
    dataset_hash BLOB NOT NULL REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    at INTEGER NOT NULL,
    n INTEGER NOT NULL CHECK (n >= 0),
    agree INTEGER NOT NULL CHECK (agree >= 0),
    low_micro INTEGER NOT NULL,
    kappa_micro INTEGER NOT NULL,
    job_id BLOB NOT NULL REFERENCES ds_jobs (job_id) ON DELETE RESTRICT,
    UNIQUE (metric_hash, dataset_hash, at)
);

CREATE TABLE ds_candidates (
    candidate_key INTEGER PRIMARY KEY,
    job_id BLOB NOT NULL REFERENCES ds_jobs (job_id) ON DELETE RESTRICT,
    candidate_id TEXT NOT NULL,
    compiled_id TEXT REFERENCES ds_artifacts (compiled_id) ON DELETE RESTRICT,
    variant TEXT,
    ordinal INTEGER NOT NULL CHECK (ordinal >= 0),
    parent_ids TEXT NOT NULL,
    op TEXT NOT NULL,
    component TEXT,
    accepted INTEGER NOT NULL CHECK (accepted IN (0, 1)),
    note TEXT,
    holdout_micro INTEGER,
    at INTEGER NOT NULL,
    UNIQUE (job_id, candidate_id)
);

CREATE TABLE ds_example_results (
    result_key INTEGER PRIMARY KEY,
    job_id BLOB NOT NULL REFERENCES ds_jobs (job_id) ON DELETE RESTRICT,
    candidate_id TEXT NOT NULL,
    example_id TEXT NOT NULL,
    epoch INTEGER NOT NULL CHECK (epoch > 0),
    split TEXT NOT NULL CHECK (split IN ('train', 'holdout', 'test')),
    score INTEGER CHECK (score BETWEEN 0 AND 1000000),
    unscored TEXT,
    own_failure INTEGER NOT NULL CHECK (own_failure IN (0, 1)),
    feedback_hash BLOB NOT NULL,
    receipt_id TEXT REFERENCES ds_receipts (receipt_id) ON DELETE RESTRICT,
    judge_receipts TEXT NOT NULL,
    try INTEGER NOT NULL CHECK (try > 0),
    at INTEGER NOT NULL,
    UNIQUE (job_id, candidate_id, example_id, epoch),
    CHECK ((score IS NULL) = (unscored IS NOT NULL))
);
CREATE INDEX ds_example_results_in_order ON ds_example_results (job_id, result_key);

CREATE TABLE ds_compile_reports (
    report_key INTEGER PRIMARY KEY,
    report_id TEXT NOT NULL,
    job_id BLOB NOT NULL REFERENCES ds_jobs (job_id) ON DELETE RESTRICT,
    attempt INTEGER NOT NULL CHECK (attempt > 0),
    job_hash BLOB NOT NULL,
    dataset_hash BLOB NOT NULL,
    metric_hash BLOB NOT NULL,
    subject TEXT NOT NULL,
    selected_id TEXT,
    compiler_version TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('succeeded', 'incomplete', 'budget_exhausted', 'cancelled', 'failed')),
    suggestion TEXT NOT NULL,
    report_hash BLOB NOT NULL UNIQUE,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (job_id, attempt)
);
CREATE INDEX ds_compile_reports_by_id ON ds_compile_reports (report_id, attempt);
CREATE INDEX ds_compile_reports_of_subject ON ds_compile_reports (subject, created_at);

CREATE TABLE ds_eval_reports (
    eval_key INTEGER PRIMARY KEY,
    eval_id TEXT NOT NULL,
    job_id BLOB NOT NULL REFERENCES ds_jobs (job_id) ON DELETE RESTRICT,
    attempt INTEGER NOT NULL CHECK (attempt > 0),
    report_id TEXT NOT NULL,
    subject TEXT NOT NULL,
    candidate_id TEXT NOT NULL,
    baseline_id TEXT,
    dataset_hash BLOB NOT NULL,
    metric_hash BLOB NOT NULL,
    split TEXT NOT NULL CHECK (split IN ('train', 'holdout', 'test')),
    status TEXT NOT NULL CHECK (status IN ('succeeded', 'incomplete', 'budget_exhausted', 'cancelled', 'failed')),
    verdict TEXT CHECK (verdict IN ('better', 'worse', 'undecided')),
    n INTEGER NOT NULL CHECK (n >= 0),
    unscored INTEGER NOT NULL CHECK (unscored >= 0),
    score_micro INTEGER,
    ci_low_micro INTEGER,
    ci_high_micro INTEGER,
    delta_micro INTEGER,
    delta_low_micro INTEGER,
    delta_high_micro INTEGER,
    currency TEXT,
    cost INTEGER NOT NULL CHECK (cost >= 0),
    report_hash BLOB NOT NULL UNIQUE,
    body TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (eval_id, attempt)
);
CREATE INDEX ds_eval_reports_of_candidate ON ds_eval_reports (candidate_id, created_at);
CREATE INDEX ds_eval_reports_of_subject ON ds_eval_reports (subject, created_at);
CREATE INDEX ds_eval_reports_of_job ON ds_eval_reports (job_id);

-- An evaluation that was reported again, because its job went on, is the same look.
CREATE TABLE ds_looks (
    look_key INTEGER PRIMARY KEY,
    eval_id TEXT NOT NULL UNIQUE,
    report_hash BLOB NOT NULL UNIQUE REFERENCES ds_eval_reports (report_hash) ON DELETE RESTRICT,
    subject TEXT NOT NULL,
    dataset_hash BLOB NOT NULL REFERENCES ds_datasets (dataset_hash) ON DELETE RESTRICT,
    k INTEGER NOT NULL CHECK (k > 0),
    at INTEGER NOT NULL,
    UNIQUE (subject, dataset_hash, k)
);
CREATE INDEX ds_looks_of_subject ON ds_looks (subject, at);

CREATE TABLE ds_guards (
    signature_id TEXT NOT NULL PRIMARY KEY REFERENCES ds_signatures (signature_id) ON DELETE RESTRICT,
    action TEXT NOT NULL CHECK (action IN ('alert', 'clear')),
    margin_micro INTEGER NOT NULL CHECK (margin_micro >= 0),
    canary_audit BLOB REFERENCES ds_pointer_audits (audit_id) ON DELETE RESTRICT,
    looks INTEGER NOT NULL CHECK (looks >= 0),
    updated_at INTEGER NOT NULL,
    by TEXT NOT NULL
);

CREATE TRIGGER ds_datasets_stay_as_written BEFORE UPDATE ON ds_datasets
BEGIN SELECT RAISE(ABORT, 'ds_datasets are written once'); END;
CREATE TRIGGER ds_datasets_are_kept BEFORE DELETE ON ds_datasets
BEGIN SELECT RAISE(ABORT, 'ds_datasets are kept'); END;
CREATE TRIGGER ds_dataset_versions_stay_as_written BEFORE UPDATE ON ds_dataset_versions
BEGIN SELECT RAISE(ABORT, 'ds_dataset_versions are written once'); END;
CREATE TRIGGER ds_dataset_versions_are_kept BEFORE DELETE ON ds_dataset_versions
BEGIN SELECT RAISE(ABORT, 'ds_dataset_versions are kept'); END;
CREATE TRIGGER ds_dataset_examples_stay_as_written BEFORE UPDATE ON ds_dataset_examples
BEGIN SELECT RAISE(ABORT, 'ds_dataset_examples are written once'); END;
CREATE TRIGGER ds_dataset_examples_are_kept BEFORE DELETE ON ds_dataset_examples
BEGIN SELECT RAISE(ABORT, 'ds_dataset_examples are kept'); END;
CREATE TRIGGER ds_verdicts_stay_as_written BEFORE UPDATE ON ds_verdicts
BEGIN SELECT RAISE(ABORT, 'ds_verdicts are written once'); END;
CREATE TRIGGER ds_verdicts_are_kept BEFORE DELETE ON ds_verdicts
BEGIN SELECT RAISE(ABORT, 'ds_verdicts are kept'); END;
CREATE TRIGGER ds_metrics_stay_as_written BEFORE UPDATE ON ds_metrics
BEGIN SELECT RAISE(ABORT, 'ds_metrics are written once'); END;
CREATE TRIGGER ds_metrics_are_kept BEFORE DELETE ON ds_metrics
BEGIN SELECT RAISE(ABORT, 'ds_metrics are kept'); END;
CREATE TRIGGER ds_judge_checks_stay_as_written BEFORE UPDATE ON ds_judge_checks
BEGIN SELECT RAISE(ABORT, 'ds_judge_checks are written once'); END;
CREATE TRIGGER ds_judge_checks_are_kept BEFORE DELETE ON ds_judge_checks
BEGIN SELECT RAISE(ABORT, 'ds_judge_checks are kept'); END;
CREATE TRIGGER ds_candidates_stay_as_written BEFORE UPDATE ON ds_candidates
BEGIN SELECT RAISE(ABORT, 'ds_candidates are written once'); END;
CREATE TRIGGER ds_candidates_are_kept BEFORE DELETE ON ds_candidates
BEGIN SELECT RAISE(ABORT, 'ds_candidates are kept'); END;
CREATE TRIGGER ds_example_results_stay_as_written BEFORE UPDATE ON ds_example_results
BEGIN SELECT RAISE(ABORT, 'ds_example_results are written once'); END;
CREATE TRIGGER ds_example_results_are_kept BEFORE DELETE ON ds_example_results
BEGIN SELECT RAISE(ABORT, 'ds_example_results are kept'); END;
CREATE TRIGGER ds_compile_reports_stay_as_written BEFORE UPDATE ON ds_compile_reports
BEGIN SELECT RAISE(ABORT, 'ds_compile_reports are written once'); END;
CREATE TRIGGER ds_compile_reports_are_kept BEFORE DELETE ON ds_compile_reports
BEGIN SELECT RAISE(ABORT, 'ds_compile_reports are kept'); END;
CREATE TRIGGER ds_eval_reports_stay_as_written BEFORE UPDATE ON ds_eval_reports
BEGIN SELECT RAISE(ABORT, 'ds_eval_reports are written once'); END;
CREATE TRIGGER ds_eval_reports_are_kept BEFORE DELETE ON ds_eval_reports
BEGIN SELECT RAISE(ABORT, 'ds_eval_reports are kept'); END;
CREATE TRIGGER ds_looks_stay_as_written BEFORE UPDATE ON ds_looks
BEGIN SELECT RAISE(ABORT, 'ds_looks are written once'); END;
CREATE TRIGGER ds_looks_are_kept BEFORE DELETE ON ds_looks
BEGIN SELECT RAISE(ABORT, 'ds_looks are kept'); END;
-- The bounds, the status and the counts of a job change; what it is does not.
CREATE TRIGGER ds_jobs_stay_as_written BEFORE UPDATE OF job_id, job_hash, kind, subject, dataset_hash, metric_hash, split, run_id, spec, optimiser, created_at ON ds_jobs
BEGIN SELECT RAISE(ABORT, 'ds_jobs are written once'); END;
CREATE TRIGGER ds_jobs_are_kept BEFORE DELETE ON ds_jobs
BEGIN SELECT RAISE(ABORT, 'ds_jobs are kept'); END;
CREATE TRIGGER ds_guards_are_kept BEFORE DELETE ON ds_guards
BEGIN SELECT RAISE(ABORT, 'ds_guards are kept'); END;
