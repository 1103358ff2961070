//! The bounds of this crate.

cantrip::canon::limits! {
    /// The default number of times that each trial of an evaluation is made.
    EVAL_EPOCHS_DEFAULT: u64 = 1, "epochs";
    /// The share of a side's trials that may have no score before an evaluation counts as incomplete.
    EVAL_UNSCORED_PERCENT_MAX: u64 = 5, "percent";
    /// The maximum size of a token of an output, for the worst-case cost of a judge that reads it.
    JUDGED_TOKEN_BYTES_BOUND: u64 = 8, "bytes";
    /// The maximum number of inputs, the longest ones, whose prompts are measured for the worst cost of a plan.
    PLANNED_INPUTS_MAX: usize = 500, "inputs";
    /// The number of result rows, receipts or reports of an evaluation that are read at once.
    EVAL_PAGE: usize = 500, "rows";
    /// The maximum number of times that a judge is asked one question because the infrastructure failed.
    JUDGE_TRIES_MAX: u64 = 3, "tries";
    /// The percentage of callers that a suggested canary gets.
    SUGGESTED_CANARY_PERCENT: u64 = 10, "percent";
}
