//! The bounds of this room.

use cantrip::canon;

canon::limits! {
    /// Entities that one service keeps at hand between two sends.
    SUMMONED_MAX: usize = 100_000, "entities";
    /// Runs without an owner that one process goes on with at once.
    PICKED_UP_TOGETHER_MAX: usize = 4, "runs";
    /// What a reward's note may have.
    NOTE_BYTES_MAX: usize = 4_096, "bytes";
    /// Why an authorization was given, changed or taken back, or what was found out about a call.
    REASON_BYTES_MAX: usize = 4_096, "bytes";
    /// Keys whose split is shown at once.
    PREVIEW_KEYS_MAX: usize = 5_000, "keys";
    /// Differences of files that one reply has room for; of further ones it has the sizes.
    DIFF_LISTED_BYTES_MAX: usize = 512 << 10, "bytes";
    /// A page of turns ends behind the one that takes it past this.
    TURNS_LISTED_BYTES: usize = 256 << 10, "bytes";
    /// Equal lines that a difference shows around those that differ.
    DIFF_AROUND_LINES: usize = 3, "lines";
    /// How long the shortest difference of one file is looked for; after that a longer one is given.
    DIFF_MS: u64 = 2_000, "ms";
}

const _: () = assert!(DIFF_LISTED_BYTES_MAX <= cantrip::reply::limits::REPLY_BYTES_MAX / 2);
