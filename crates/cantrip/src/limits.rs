//! The bounds of this room.

cantrip_canon::limits! {
    /// Tables in the folder of a spell that are looked at, to find the other spells in it.
    SPELLS_BESIDE_MAX: usize = 256, "files";
    /// What a fold repeats of the last words it stands for.
    SAID_BYTES_MAX: usize = 240, "bytes";
    /// Texts in a row that were cut off at the limit of an answer's tokens; the cast ends with the last of them.
    CUT_TEXTS_MAX: u32 = 8, "texts";
    /// What a fold repeats of an intent it stands for.
    INTENT_QUOTED_BYTES_MAX: usize = 1_000, "bytes";
    /// What it repeats of one at least, however small the window is.
    INTENT_QUOTED_BYTES_MIN: usize = 40, "bytes";
    /// All that it repeats of intents has no more bytes than the window has tokens, divided by this.
    INTENTS_QUOTED_SHARE_OF_WINDOW: usize = 4, "parts";
    /// Intents that a fold repeats, the newest ones; of the rest it tells the number.
    FOLD_INTENTS_MAX: usize = 20, "intents";
    /// What names the turns of a fold, and stands before what it tells of them.
    FOLD_MARK_BYTES_MAX: usize = 48, "bytes";
    /// What a fold repeats of a result that it shortens.
    RESULT_STARTS_BYTES_MAX: usize = 80, "bytes";
    /// Groups whose results are shortened and that still show; from so many on they are folded out of the list.
    SHRUNK_GROUPS_MAX: usize = 256, "groups";
    /// What a crystal may write of a fold.
    SUMMARY_TOKENS_MAX: u32 = 2_000, "tokens";
    /// Of its window, one part in so many, if that is less.
    SUMMARY_SHARE_OF_WINDOW: u64 = 8, "parts";
    /// What is kept for each of those tokens, should it write more after all.
    SUMMARY_TOKEN_BYTES_MAX: usize = 6, "bytes";
    /// What it reads at once where nobody knows its window.
    SUMMARY_READ_TOKENS: u64 = 24_000, "tokens";
    /// What it reads at once at least, however small its window is.
    SUMMARY_READ_TOKENS_MIN: u64 = 500, "tokens";
    /// What is kept free in a window for the fold itself, unless a tenth of the window is more.
    FOLD_HEAD_ROOM_TOKENS: u64 = 2_500, "tokens";
    /// The window that a spell may give its crystal.
    WINDOW_TOKENS_MIN: u64 = 4_000, "tokens";
    /// Bytes of a token that a spell may estimate with.
    BYTES_PER_TOKEN_MAX: u32 = 16, "bytes";
    /// Text of a spell, and of each file it names.
    SPELL_BYTES_MAX: usize = 1 << 20, "bytes";
    /// Turns of a cast whose spell sets no limit.
    SPELL_TURNS: u64 = 50, "turns";
    /// Turns that the gate `loom` lists in one answer.
    OWN_TURNS_LISTED_MAX: usize = 100, "turns";
    /// What is kept of each output of a program that looks at answers.
    VERIFIER_OUTPUT_BYTES_MAX: usize = 16 << 10, "bytes";
    /// How long such a program may look at one answer unless told otherwise.
    VERIFIER_MS: u64 = 600_000, "ms";
    /// A cast whose limits leave less than this for an answer, and less than its call asks for, ends without asking.
    OUTPUT_TOKENS_MIN: u32 = 256, "tokens";
    /// Records of an entity before its sandbox is first looked at as a snapshot; less is quickly run again.
    SNAPSHOT_RECORDS_BYTES_MIN: u64 = 8 << 10, "bytes";
    /// What every message of a request may come to beyond its bytes, where the most that it can cost is reckoned.
    MESSAGE_TOKENS_BOUND: u64 = 16, "tokens";
    /// How long a hold of money outlives the time of its cast before recovery may look at it.
    HOLD_GRACE_SECONDS: u64 = 60, "s";
    /// How often what is left reserved is looked through by who takes a run over, if others mark some of it meanwhile.
    ESTATE_TRIES_MAX: usize = 8, "times";
    /// How long the terms of an authorization without limits are taken as they were: a change of them reaches calls that cost
    /// nothing this much later.
    POLICY_LOOK_MS: u64 = 250, "ms";
    /// How often holds without a living owner are looked for while something is cast.
    SWEEP_MS: u64 = 30_000, "ms";
    /// Intents that were cancelled before an answer and are told before the next one: the newest.
    CANCELLED_INTENTS_MAX: usize = 16, "intents";
    /// How long a lease lasts unless it is renewed.
    LEASE_MS: u64 = 30_000, "ms";
    /// How often a lease is renewed while its run is worked on.
    HEARTBEAT_MS: u64 = 10_000, "ms";
    /// How long a person has to decide about a call; then it is denied.
    APPROVAL_EXPIRES_SECONDS: u64 = 24 * 60 * 60, "s";
    /// How often who works on a run looks whether someone asked for its end.
    CANCEL_LOOK_MS: u64 = 1_000, "ms";
    /// Children of one batch that run at once.
    BATCH_TOGETHER_MAX: usize = 8, "children";
    /// Entities of one tree that run at once; one that waits for its children does not count.
    TREE_TOGETHER_MAX: usize = 64, "entities";
    /// Sandboxes that idle entities of one house keep, unless it is told otherwise. One in JavaScript takes some 280 KiB,
    /// so ten thousand idle entities fit in 2 GiB, most of it sandboxes.
    IDLE_SANDBOXES_MAX: usize = 4_096, "sandboxes";
    /// Events that may wait for one who watches; what comes while so many wait is dropped.
    WATCHED_EVENTS_MAX: usize = 65_536, "events";
    /// What a span tells of the messages, the arguments or the result of a call, where it is asked to; the rest is cut.
    TOLD_CONTENT_BYTES_MAX: usize = 64 << 10, "bytes";
    /// A name in a span or a line of the log: it may come from a model.
    TOLD_NAME_CHARS_MAX: usize = 128, "characters";
}

const _: () =
    assert!(HEARTBEAT_MS * 2 < LEASE_MS && CANCEL_LOOK_MS <= HEARTBEAT_MS && BATCH_TOGETHER_MAX <= TREE_TOGETHER_MAX);
