//! The bounds of this crate.

cantrip::canon::limits! {
    /// The maximum number of signatures in a catalog. Its version is a hash of all of them, computed for each predict.
    CATALOG_SIGNATURES_MAX: usize = 10_000, "signatures";
    /// The maximum size of a predict's input, as canonical JSON.
    INPUT_BYTES_MAX: usize = 32 << 20, "bytes";
    /// The maximum length of an idempotency key.
    KEY_BYTES_MAX: usize = 256, "bytes";
    /// The default timeout of a predict.
    PREDICT_SECONDS: u64 = 120, "s";
    /// The maximum size of a trace that is stored in its row. A longer one goes to the trace store, if there is one.
    TRACE_INLINE_BYTES_MAX: usize = 4_096, "bytes";
    /// The default time for which a trace is kept.
    TRACE_RETAIN_DAYS: u64 = 30, "days";
    /// The maximum number of traces that one predict uploads again or deletes because they have expired.
    TRACES_RETRIED_MAX: usize = 16, "traces";
    /// The length of the answer for which the policy is asked before a predict starts, unless its limit is lower.
    ANSWER_TOKENS_MIN: u64 = 256, "tokens";
    /// The upper bound of a message's tokens beyond its bytes, for the worst-case cost of a prompt.
    MESSAGE_TOKENS_BOUND: u64 = 16, "tokens";
    /// The length of the preview of each variable that a program is shown.
    PREVIEW_CHARS: usize = 500, "characters";
    /// The polling interval while a predict waits for an approval.
    APPROVAL_LOOK_MS: u64 = 200, "ms";
    /// The maximum number of the calling thread's calls that a program is shown.
    HISTORY_CALLS_MAX: usize = 20, "calls";
    /// The maximum total length of these calls, as canonical JSON.
    HISTORY_CHARS_MAX: usize = 3_500, "characters";
    /// The default number of predicts of a batch that run at the same time.
    BATCH_TOGETHER: usize = 8, "predicts";
    /// The number of receipts that are read at once for verification.
    VERIFY_PAGE: usize = 200, "receipts";
    /// The maximum number of findings that are listed one by one. Further findings are only counted.
    FINDINGS_MAX: usize = 1_000, "findings";
    /// The maximum size of a file of examples.
    DATASET_FILE_BYTES_MAX: usize = 512 << 20, "bytes";
    /// The maximum number of faults of a file of examples that are listed one by one. Further faults are only counted.
    EXAMPLE_FAULTS_MAX: usize = 100, "faults";
    /// The maximum number of references within a schema that are followed to find the type of a table's column.
    SCHEMA_REFERENCES_MAX: usize = 16, "references";
    /// The reward from which on an output counts as right, in millionths of the declared range, which is 0 to 1.
    LABEL_MIN_REWARD_MICRO: i64 = 800_000, "millionths";
    /// The number of receipts, of examples or of versions that are read at once.
    DATASET_PAGE: usize = 500, "rows";
    /// The maximum total size of the bodies that are written in one step of a large dataset.
    DATASET_STEP_BYTES_MAX: usize = 64 << 20, "bytes";
    /// The maximum number of times that a version is computed anew because another process added one meanwhile.
    VERSION_TRIES_MAX: usize = 16, "tries";
    /// The maximum size of a note: of a version of a dataset, or of a verdict.
    DATASET_NOTE_BYTES_MAX: usize = 4_096, "bytes";
    /// The number of resamples of a bootstrap, and of sign flips of a flip test.
    RESAMPLES: usize = 10_000, "resamples";
    /// The number of resamples that a 95 % interval leaves out on each side.
    RESAMPLE_TAIL: usize = 250, "resamples";
    /// The probability that equal artifacts are called better at any of all looks, one-sided.
    LEVEL_PPM: u64 = 50_000, "parts per million";
    /// The maximum number of looks at one test split. At the next one the flip test cannot reach its level.
    LOOKS_MAX: u64 = 20, "looks";
    /// The processor time of a metric's program for one output.
    METRIC_CPU_MS: u64 = 1_000, "ms";
    /// The memory of a metric's program.
    METRIC_MEMORY_BYTES: usize = 64 << 20, "bytes";
    /// The maximum output of a metric's program or command.
    METRIC_OUTPUT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The number of times that a metric's program is started if its sandbox is lost through no fault of its own.
    METRIC_SANDBOX_TRIES: u64 = 3, "times";
    /// The share of pairs that may change with the places of the two outputs before a judge counts as inconsistent.
    POSITION_FLIPS_PPM_MAX: u64 = 300_000, "parts per million";
    /// The default number of trials of a job that run at the same time.
    TRIALS_TOGETHER: usize = 8, "trials";
    /// The maximum number of trials of a job that run at the same time.
    TRIALS_TOGETHER_MAX: usize = 64, "trials";
    /// The number of tries of a trial that fails through no fault of its candidate.
    TRIAL_TRIES_MAX: u64 = 3, "tries";
    /// The maximum number of a try. Tries that were cancelled or refused with their job count here and not above.
    TRY_NUMBER_MAX: u64 = 1_000, "tries";
    /// The number of failures in a row, through no fault of a candidate, after which a job waits.
    FAILURES_IN_A_ROW_MAX: u64 = 5, "failures";
    /// The mean costs of a trial that must be left for each trial of an Ask, in quarters.
    ASK_COST_QUARTERS: u64 = 5, "quarters";
    /// The number of receipts that the likely cost of a trial is the mean of.
    LIKELY_RECEIPTS: usize = 100, "receipts";
    /// The number of pages of receipts that are searched for the likely cost of a trial.
    LIKELY_PAGES_MAX: usize = 5, "pages";
    /// The bound of the tokens of a prompt beside its texts: the gate, its wrapping and the words around a schema.
    PROMPT_FRAME_TOKENS: u64 = 2_048, "tokens";
    /// The bound of the tokens with which a repair asks again, beside the answer that it repairs.
    REPAIR_TOKENS_BOUND: u64 = 4_096, "tokens";
    /// The bound of the tokens of what a program of `rlm_lite.v1` shows its model at a time.
    PROGRAM_RESULT_TOKENS_BOUND: u64 = 65_536, "tokens";
    /// The bound of the prompt of a sub-call, where the window of its model is unknown or larger.
    SUB_CALL_TOKENS_BOUND: u64 = 131_072, "tokens";
    /// The interval at which the progress of a job is recorded.
    JOB_PROGRESS_MS: u64 = 10_000, "ms";
    /// The number of trials whose median time is the time of the trials that are left.
    TIMED_TRIALS: usize = 50, "trials";
    /// The number of trials before the time that is left is estimated.
    TIMED_TRIALS_MIN: usize = 10, "trials";
    /// The interval at which a job looks whether a trial that another process drives has ended.
    IN_FLIGHT_LOOK_MS: u64 = 200, "ms";
    /// The time without a new record after which a follower looks whether the process that drives the job is alive.
    JOIN_LOOK_MS: u64 = 2_000, "ms";
    /// The number of times that the report of a job is made again because another one was written first.
    CLOSE_TRIES_MAX: u64 = 16, "times";
    /// The maximum length of the feedback that is kept of a trial without a score.
    FAULT_CHARS_MAX: usize = 2_000, "characters";
    /// The maximum number of candidates whose rows are written in one step.
    DECIDED_TOGETHER_MAX: usize = 200, "candidates";
    /// The maximum number of trials of one job.
    JOB_TRIALS_MAX: u64 = 1_000_000, "trials";
}
