//! The bounds of this room.

cantrip_canon::limits! {
    /// Attempts of one call that may be reserved; the next one is refused.
    ATTEMPTS_MAX: u32 = 32, "attempts";
    /// The name of a call as a reservation keeps it; a turn's id, a colon and a number are well below it.
    CALL_KEY_BYTES_MAX: usize = 96, "bytes";
    /// The name of whoever an authorization belongs to.
    OWNER_BYTES_MAX: usize = 128, "bytes";
    /// The run, entity or agent that an authorization is for, as a text.
    SCOPE_ID_BYTES_MAX: usize = 256, "bytes";
    /// Entries of one list of what may be bought.
    CONSTRAINT_ENTRIES_MAX: usize = 256, "entries";
    /// One such entry.
    CONSTRAINT_BYTES_MAX: usize = 256, "bytes";
    /// Caps from an entity up to its root: as deep as entities may be, and some more.
    CAPS_DEPTH_MAX: usize = 64, "caps";
    /// Differences that one verification lists; it counts the rest.
    DIFFERENCES_MAX: usize = 100, "differences";
}
