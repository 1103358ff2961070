//! The bounds of this room.

cantrip_canon::limits! {
    /// What a fold repeats of the last words it stands for.
    SAID_BYTES_MAX: usize = 240, "bytes";
    /// What a fold repeats of an intent it stands for.
    INTENT_QUOTED_BYTES_MAX: usize = 1_000, "bytes";
    /// Intents that a fold repeats, the newest ones; of the rest it tells the number.
    FOLD_INTENTS_MAX: usize = 20, "intents";
    /// What is kept free in a window for the fold itself, unless a tenth of the window is more.
    FOLD_HEAD_ROOM_TOKENS: u64 = 2_500, "tokens";
}
