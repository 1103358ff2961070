//! The bounds of this crate: the size of a contract, and the resources of one rendering.

cantrip_canon::limits! {
    /// The maximum length of the id of a signature.
    SIGNATURE_ID_BYTES_MAX: usize = 255, "bytes";
    /// The maximum size of a signature file.
    SIGNATURE_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum size of an artifact as canonical JSON.
    ARTIFACT_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The maximum number of schema violations that are listed for one value. The rest is left out.
    VIOLATIONS_MAX: usize = 8, "violations";
    /// The length of a value that is shown in a schema violation.
    FOUND_CHARS_MAX: usize = 200, "characters";
    /// The maximum number of repair attempts for an answer that does not match its schema.
    REPAIR_ATTEMPTS_MAX: u8 = 3, "attempts";
    /// The maximum number of utterances (model answers) of one `rlm_lite.v1`.
    ITERATIONS_MAX: u8 = 8, "utterances";
    /// The maximum number of children of one `rlm_lite.v1`.
    SUB_CALLS_MAX: u8 = 8, "children";
    /// The maximum number of steps to render a template. A template that needs more is refused.
    TEMPLATE_FUEL: u64 = 1_000_000, "steps";
    /// The maximum output of one rendering of a template.
    RENDERED_BYTES_MAX: usize = 8 << 20, "bytes";
    /// The maximum depth of a sample value that is generated from a schema to test a template.
    SAMPLE_DEPTH_MAX: usize = 16, "levels";
    /// The maximum length of a rollout seed or a canary key.
    ROLLOUT_TEXT_BYTES_MAX: usize = 1_024, "bytes";
    /// The maximum size of an evaluation report.
    EVALUATION_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum length of the id of an evaluation.
    EVAL_ID_BYTES_MAX: usize = 128, "bytes";
    /// The best possible score. Two scores cannot differ by more.
    SCORE_MICRO_MAX: u64 = 1_000_000, "millionths";
    /// The minimum number of scored examples before an artifact is promoted.
    PROMOTE_EXAMPLES_MIN: u64 = 30, "examples";
    /// The maximum age of an evaluation that promotes an artifact.
    PROMOTE_AGE_DAYS_MAX: u64 = 30, "days";
    /// The maximum time by which an evaluation may be dated in the future, because clocks of machines differ.
    PROMOTE_AHEAD_MINUTES_MAX: u64 = 5, "minutes";
    /// The non-inferiority margin in millionths of the score: worse by no more than this counts as not worse.
    PROMOTE_MARGIN_MICRO: u32 = 20_000, "millionths";
    /// The maximum cost of a call of a promoted artifact, as a percentage of the current cost.
    PROMOTE_COST_PERCENT_MAX: u64 = 125, "percent";
    /// The minimum number of human verdicts that a judge is compared with.
    JUDGE_VERDICTS_MIN: u64 = 30, "verdicts";
    /// The minimum of the lower bound of a judge's agreement with people, before it can promote an artifact.
    JUDGE_AGREEMENT_LOW_MICRO: u64 = 700_000, "millionths";
    /// The maximum number of examples of a dataset.
    DATASET_EXAMPLES_MAX: usize = 100_000, "examples";
    /// The maximum length of the name of a dataset.
    DATASET_NAME_BYTES_MAX: usize = 64, "bytes";
    /// The maximum size of an example: its input and its expected output as canonical JSON.
    EXAMPLE_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The maximum length of the id of an example.
    EXAMPLE_ID_BYTES_MAX: usize = 128, "bytes";
    /// The maximum length of the name of a group of examples.
    GROUP_BYTES_MAX: usize = 256, "bytes";
    /// The maximum number of labels of an example or a verdict.
    LABELS_MAX: usize = 16, "labels";
    /// The maximum length of a label.
    LABEL_BYTES_MAX: usize = 64, "bytes";
    /// The maximum weight of an example, in millionths.
    WEIGHT_MICRO_MAX: u64 = 1_000_000_000, "millionths";
    /// The maximum length of the seed of a split.
    SPLIT_SEED_BYTES_MAX: usize = 256, "bytes";
    /// The minimum number of examples of a holdout or test split. Fewer need `--allow-small`.
    SPLIT_EXAMPLES_MIN: u64 = 5, "examples";
    /// The maximum number of epochs of a job: how often each trial is repeated.
    EPOCHS_MAX: u64 = 20, "epochs";
    /// The maximum size of a metric as canonical JSON, with the contents of its files.
    METRIC_BYTES_MAX: usize = 256 << 10, "bytes";
    /// The maximum number of parts of one metric.
    METRIC_PARTS_MAX: usize = 16, "parts";
    /// The maximum depth of metrics inside each other.
    METRIC_DEPTH_MAX: usize = 4, "levels";
    /// The maximum size of a compiled pattern.
    METRIC_PATTERN_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The default timeout of a metric's command.
    METRIC_COMMAND_SECONDS: u64 = 10, "s";
    /// The maximum timeout of a metric's command.
    METRIC_COMMAND_SECONDS_MAX: u64 = 600, "s";
    /// The maximum length of the feedback about one output. The rest is cut.
    FEEDBACK_CHARS_MAX: usize = 2_000, "characters";
    /// The length of a value that is shown in feedback.
    FEEDBACK_VALUE_CHARS: usize = 200, "characters";
}
