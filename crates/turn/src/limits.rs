//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum size of a quoted text, in a fold, in a cast's summary or in the list of the gate `loom`.
    SAID_BYTES_MAX: usize = 240, "bytes";
    /// The maximum number of consecutive texts that were cut off at the token limit of an answer. The cast ends with
    /// the last one.
    CUT_TEXTS_MAX: u32 = 8, "texts";
    /// The number of times in a row that an entity may say the same text without a call. The cast ends with the last one,
    /// whether or not the ward `loop_detected` is declared; before it, the crystal is told what is missing.
    REPEATED_TEXTS_MAX: u64 = 3, "texts";
    /// The maximum size of an intent that a fold quotes.
    INTENT_QUOTED_BYTES_MAX: usize = 1_000, "bytes";
    /// The minimum of this size, for small windows.
    INTENT_QUOTED_BYTES_MIN: usize = 40, "bytes";
    /// All quoted intents of a fold together have at most as many bytes as the window has tokens, divided by this.
    INTENTS_QUOTED_SHARE_OF_WINDOW: usize = 4, "parts";
    /// The maximum number of intents that a fold quotes: the newest ones. The others are only counted.
    FOLD_INTENTS_MAX: usize = 20, "intents";
    /// The maximum size of the marker that names the turns of a fold, before their description.
    FOLD_MARK_BYTES_MAX: usize = 48, "bytes";
    /// The maximum size of the beginning of a shortened result that a fold quotes.
    RESULT_STARTS_BYTES_MAX: usize = 80, "bytes";
    /// The maximum number of groups that stay in the list with shortened results. Beyond that they are folded.
    SHRUNK_GROUPS_MAX: usize = 256, "groups";
    /// The maximum length of a summary that a crystal writes for a fold.
    SUMMARY_TOKENS_MAX: u32 = 2_000, "tokens";
    /// A summary is also limited to the crystal's window divided by this.
    SUMMARY_SHARE_OF_WINDOW: u64 = 8, "parts";
    /// The maximum number of bytes that are kept for each token of a summary. A longer summary is cut.
    SUMMARY_TOKEN_BYTES_MAX: usize = 6, "bytes";
    /// The number of tokens that a summariser with an unknown window reads at once.
    SUMMARY_READ_TOKENS: u64 = 24_000, "tokens";
    /// The minimum number of tokens that a summariser reads at once, for small windows.
    SUMMARY_READ_TOKENS_MIN: u64 = 500, "tokens";
    /// The part of a window that stays free for the fold itself, or a tenth of the window if that is more.
    FOLD_HEAD_ROOM_TOKENS: u64 = 2_500, "tokens";
    /// The minimum length of an answer: a cast whose limits leave less than this, and less than its call asks for, ends
    /// without another request.
    OUTPUT_TOKENS_MIN: u32 = 256, "tokens";
    /// The upper bound of a message's tokens beyond its bytes, for the worst-case cost of a request.
    MESSAGE_TOKENS_BOUND: u64 = 16, "tokens";
    /// The time for which a reservation outlives the time limit of its cast, before recovery may settle it.
    HOLD_GRACE_SECONDS: u64 = 60, "s";
    /// The maximum number of intents that were cancelled before an answer and are repeated before the next intent: the
    /// newest ones.
    CANCELLED_INTENTS_MAX: usize = 16, "intents";
    /// The time that a person has to decide about a call. After that the call is denied.
    APPROVAL_EXPIRES_SECONDS: u64 = 24 * 60 * 60, "s";
}
