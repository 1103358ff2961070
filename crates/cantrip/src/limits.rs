//! The bounds of this room.

cantrip_canon::limits! {
    /// What a fold repeats of the last words it stands for.
    SAID_BYTES_MAX: usize = 240, "bytes";
}
