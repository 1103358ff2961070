//! The bounds of this room.

use cantrip::canon;

canon::limits! {
    /// Entities that one service keeps at hand between two sends.
    SUMMONED_MAX: usize = 100_000, "entities";
    /// Runs without an owner that one process goes on with at once.
    PICKED_UP_TOGETHER_MAX: usize = 4, "runs";
    /// What a reward's note may have.
    NOTE_BYTES_MAX: usize = 4_096, "bytes";
}
