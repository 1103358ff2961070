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
    /// The maximum number of inputs, the longest ones, whose prompts are measured for the worst cost of a compile's trial.
    COMPILE_PLANNED_INPUTS_MAX: usize = 50, "inputs";
    /// The percentage of callers that a suggested canary gets.
    SUGGESTED_CANARY_PERCENT: u64 = 10, "percent";
    /// The minimum number of labelled test examples with which the flywheel compiles: fewer cannot support a promotion.
    FLYWHEEL_LABELLED_TEST_MIN: u64 = 30, "examples";
    /// The length to which the only expected output of a dataset is cut in a message.
    FLYWHEEL_LABEL_CHARS_SHOWN: usize = 80, "characters";
    /// The maximum number of places of an output schema that are searched for the one enum of a default metric.
    DEFAULT_METRIC_PLACES_MAX: usize = 1_000, "places";
    /// The maximum size of one case that a reflection sees, as canonical JSON. A longer one is cut.
    REFLECT_CASE_BYTES_MAX: usize = 8 << 10, "bytes";
    /// The maximum size of all cases that a reflection sees. Each is cut to its share.
    REFLECT_CASES_BYTES_MAX: usize = 32 << 10, "bytes";
    /// The maximum size of a schema that a reflection is shown. A longer one is left out.
    REFLECT_SCHEMA_BYTES_MAX: usize = 4 << 10, "bytes";
    /// The maximum size of the contract that a reflection is shown. A longer one is cut.
    REFLECT_CONTRACT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// The maximum number of times that a model is asked to reflect because the infrastructure failed. Then the job waits.
    REFLECT_TRIES_MAX: u64 = 3, "tries";
    /// The maximum number of turns of a trial, the last ones, that a reflection sees.
    REFLECT_EXCERPT_TURNS_MAX: usize = 8, "turns";
    /// The maximum number of calls of a canary and its primary that a live evaluation reads; the newest ones are read.
    LIVE_CALLS_MAX: usize = 50_000, "calls";
    /// The time by which the clocks of two servers may differ when the receipts since a canary was set are read.
    LIVE_CLOCK_SLACK_MS: u64 = 60_000, "ms";
    /// The number of labelled units of a canary at which its guard looks first. Each further look wants twice as many.
    GUARD_FIRST_UNITS: u64 = 50, "units";
    /// The minimum number of units of each side that a look of a guard compares.
    GUARD_UNITS_MIN: u64 = 30, "units";
    /// The default difference to the worse that a guard accepts, in millionths.
    GUARD_MARGIN_MICRO: u64 = 20_000, "millionths";
    /// The maximum difference that a guard can be told to accept, in millionths.
    GUARD_MARGIN_MICRO_MAX: u64 = 1_000_000, "millionths";
    /// The maximum number of times that a guard reads its row in one look, because other processes look at the same time.
    GUARD_TRIES_MAX: usize = 64, "times";
    /// The maximum number of recorded runs that one backtest casts anew.
    BACKTEST_RUNS_MAX: usize = 10_000, "runs";
    /// The maximum size of a value in the finding about a run: the arguments of a call, or an answer. A longer one is cut.
    BACKTEST_STEP_BYTES_MAX: usize = 2 << 10, "bytes";
    /// The maximum number of recorded calls that a judge compares with one call that was not recorded.
    BACKTEST_MATCHES_MAX: usize = 8, "calls";
    /// The maximum number of comparisons of calls by a judge in one run of a backtest. Further calls are denied.
    BACKTEST_JUDGEMENTS_MAX: u64 = 32, "comparisons";
    /// The score from which on a judge calls two calls the same, in millionths.
    BACKTEST_SAME_CALL_MICRO: u64 = 500_000, "millionths";
    /// The maximum size of the arguments of a call, for the worst-case cost of a judge that compares it.
    BACKTEST_CALL_BYTES_BOUND: usize = 16 << 10, "bytes";
    /// The maximum size of the runs that the reply of a backtest lists. The stored report has all of them.
    BACKTEST_TOLD_BYTES_MAX: usize = 256 << 10, "bytes";
}

// The bounds of searches are those of their own crate.
pub use cantrip_search::limits::{
    COMPILE_DEMOS_MAX, COMPILE_TEXT_BYTES_MAX, GEPA_CALLS, GEPA_MERGE_EXAMPLES, HINT_CHARS_MAX,
};
