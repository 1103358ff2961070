//! The bounds of this room.

cantrip_canon::limits! {
    /// Attempts of one call that may be reserved; the next one is refused.
    ATTEMPTS_MAX: u32 = 32, "attempts";
    /// The name of a call as a reservation keeps it; a turn's id, a colon and a number are well below it.
    CALL_KEY_BYTES_MAX: usize = 96, "bytes";
}
