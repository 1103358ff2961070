//! The bounds of this room: how large a contract may be, and what one rendering may take.

cantrip_canon::limits! {
    /// The id of a signature.
    SIGNATURE_ID_BYTES_MAX: usize = 255, "bytes";
    /// A signature's file.
    SIGNATURE_BYTES_MAX: usize = 1 << 20, "bytes";
    /// An artifact as canonical text.
    ARTIFACT_BYTES_MAX: usize = 256 << 10, "bytes";
    /// What does not fit that is told of one value; the rest is left out.
    VIOLATIONS_MAX: usize = 8, "violations";
    /// How much of a value that does not fit is shown.
    FOUND_CHARS_MAX: usize = 200, "characters";
    /// Repairs of an answer that does not fit.
    REPAIR_ATTEMPTS_MAX: u8 = 3, "attempts";
    /// Utterances of one `rlm_lite.v1`.
    ITERATIONS_MAX: u8 = 8, "utterances";
    /// Children of one `rlm_lite.v1`.
    SUB_CALLS_MAX: u8 = 8, "children";
    /// Steps of one rendering of a template; a template that needs more is refused.
    TEMPLATE_FUEL: u64 = 1_000_000, "steps";
    /// What one rendering of a template may write.
    RENDERED_BYTES_MAX: usize = 8 << 20, "bytes";
    /// Levels of a sample that is made from a schema to try a template.
    SAMPLE_DEPTH_MAX: usize = 16, "levels";
    /// A rollout seed or a canary key.
    ROLLOUT_TEXT_BYTES_MAX: usize = 1_024, "bytes";
    /// A report of an evaluation, as text.
    EVALUATION_BYTES_MAX: usize = 64 << 10, "bytes";
    /// What an evaluation is called.
    EVAL_ID_BYTES_MAX: usize = 128, "bytes";
    /// The best score; what two scores differ by is no more.
    SCORE_MICRO_MAX: u64 = 1_000_000, "millionths";
    /// Examples that must be scored before an artifact is promoted.
    PROMOTE_EXAMPLES_MIN: u64 = 30, "examples";
    /// How old an evaluation may be that promotes an artifact.
    PROMOTE_AGE_DAYS_MAX: u64 = 30, "days";
    /// How far an evaluation may be dated ahead: the clock of the machine that made it may be ahead of ours.
    PROMOTE_AHEAD_MINUTES_MAX: u64 = 5, "minutes";
    /// How much worse something may be that counts as not worse, in millionths of the score.
    PROMOTE_MARGIN_MICRO: u32 = 20_000, "millionths";
    /// What a call of a promoted artifact may cost, of a hundred of what one costs now.
    PROMOTE_COST_PERCENT_MAX: u64 = 125, "percent";
}
