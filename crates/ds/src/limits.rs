//! The bounds of this room.

cantrip::canon::limits! {
    /// Signatures of one catalog: its version is a hash over all of them, made anew for each predict.
    CATALOG_SIGNATURES_MAX: usize = 10_000, "signatures";
    /// The input of a predict, as canonical text.
    INPUT_BYTES_MAX: usize = 32 << 20, "bytes";
    /// An idempotency key.
    KEY_BYTES_MAX: usize = 256, "bytes";
    /// How long a predict may take unless someone says otherwise.
    PREDICT_SECONDS: u64 = 120, "s";
    /// A trace that stands in its row; a longer one goes into the folder, where there is one.
    TRACE_INLINE_BYTES_MAX: usize = 4_096, "bytes";
    /// How long a trace is kept.
    TRACE_RETAIN_DAYS: u64 = 30, "days";
    /// Traces that wait for their folder, or are past their time, and are looked after with a predict.
    TRACES_RETRIED_MAX: usize = 16, "traces";
    /// The least answer that policy is asked about before a predict opens.
    ANSWER_TOKENS_MIN: u64 = 256, "tokens";
    /// What a message of a prompt counts beyond its bytes, at most.
    MESSAGE_TOKENS_BOUND: u64 = 16, "tokens";
    /// What a program is shown of each variable before it looks itself.
    PREVIEW_CHARS: usize = 500, "characters";
    /// How often someone who waits for an approval looks whether there is one.
    APPROVAL_LOOK_MS: u64 = 200, "ms";
    /// Calls of the calling thread that a program is told of.
    HISTORY_CALLS_MAX: usize = 20, "calls";
    /// The same as canonical JSON.
    HISTORY_CHARS_MAX: usize = 3_500, "characters";
    /// Predicts of a batch that are under way at once, unless someone says otherwise.
    BATCH_TOGETHER: usize = 8, "predicts";
    /// Receipts that are verified at once.
    VERIFY_PAGE: usize = 200, "receipts";
    /// Findings that are told one by one; those beyond are counted.
    FINDINGS_MAX: usize = 1_000, "findings";
}
