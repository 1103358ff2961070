//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum size of a quoted text, in a fold, in a cast's summary or in the list of the gate `loom`.
    SAID_BYTES_MAX: usize = 240, "bytes";
    /// The maximum number of consecutive texts that were cut off at the token limit of an answer. The cast ends with
    /// the last one.
    CUT_TEXTS_MAX: u32 = 8, "texts";
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
    /// The maximum number of turns that the gate `loom` lists in one reply.
    OWN_TURNS_LISTED_MAX: usize = 100, "turns";
    /// The maximum size that is kept of each output of a verifier program.
    VERIFIER_OUTPUT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// The default timeout of a verifier program for one answer.
    VERIFIER_MS: u64 = 600_000, "ms";
    /// The minimum length of an answer: a cast whose limits leave less than this, and less than its call asks for, ends
    /// without another request.
    OUTPUT_TOKENS_MIN: u32 = 256, "tokens";
    /// The minimum size of an entity's records before a snapshot of its sandbox is considered. Less is quickly
    /// replayed.
    SNAPSHOT_RECORDS_BYTES_MIN: u64 = 8 << 10, "bytes";
    /// The upper bound of a message's tokens beyond its bytes, for the worst-case cost of a request.
    MESSAGE_TOKENS_BOUND: u64 = 16, "tokens";
    /// The time for which a reservation outlives the time limit of its cast, before recovery may settle it.
    HOLD_GRACE_SECONDS: u64 = 60, "s";
    /// The maximum number of attempts to settle the reservations of a run that is taken over, if other processes change
    /// them meanwhile.
    ESTATE_TRIES_MAX: usize = 8, "times";
    /// The time for which the terms of an authorization without limits are cached. A change of the terms reaches calls
    /// that cost nothing after this delay.
    POLICY_LOOK_MS: u64 = 250, "ms";
    /// The interval between two searches for reservations without a living owner, while casts run.
    SWEEP_MS: u64 = 30_000, "ms";
    /// The maximum number of intents that were cancelled before an answer and are repeated before the next intent: the
    /// newest ones.
    CANCELLED_INTENTS_MAX: usize = 16, "intents";
    /// The time after which a lease expires unless it is renewed.
    LEASE_MS: u64 = 30_000, "ms";
    /// The interval at which a process renews the lease of a run that it drives.
    HEARTBEAT_MS: u64 = 10_000, "ms";
    /// The time that a person has to decide about a call. After that the call is denied.
    APPROVAL_EXPIRES_SECONDS: u64 = 24 * 60 * 60, "s";
    /// The interval at which a process checks whether the cancellation of its run was requested.
    CANCEL_LOOK_MS: u64 = 1_000, "ms";
    /// The maximum number of children of one batch that run at the same time.
    BATCH_TOGETHER_MAX: usize = 8, "children";
    /// The maximum number of entities of one tree that run at the same time. An entity that waits for its children does
    /// not count.
    TREE_TOGETHER_MAX: usize = 64, "entities";
    /// The default maximum number of sandboxes that the idle entities of one runtime keep. A JavaScript sandbox takes
    /// about 280 KiB, so ten thousand idle entities fit in 2 GiB, most of it sandboxes.
    IDLE_SANDBOXES_MAX: usize = 4_096, "sandboxes";
    /// The maximum number of queued events of one watcher. Further events are dropped.
    WATCHED_EVENTS_MAX: usize = 65_536, "events";
    /// The maximum size of the messages, arguments or result of a call in a span, if content is recorded. The rest is
    /// cut.
    TOLD_CONTENT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// The maximum length of a name in a span or a log line. Names may come from a model.
    TOLD_NAME_CHARS_MAX: usize = 128, "characters";
}

const _: () =
    assert!(HEARTBEAT_MS * 2 < LEASE_MS && CANCEL_LOOK_MS <= HEARTBEAT_MS && BATCH_TOGETHER_MAX <= TREE_TOGETHER_MAX);
