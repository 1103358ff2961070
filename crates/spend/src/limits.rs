//! The bounds of this crate.

cantrip_canon::limits! {
    /// The maximum number of reserved attempts of one call. The next one is refused.
    ATTEMPTS_MAX: u32 = 32, "attempts";
    /// The maximum length of a call's key in a reservation. A turn's id, a colon and a number are well below it.
    CALL_KEY_BYTES_MAX: usize = 96, "bytes";
    /// The maximum length of the name of the owner of an authorization.
    OWNER_BYTES_MAX: usize = 128, "bytes";
    /// The maximum length of the id of the run, entity or agent that an authorization is limited to.
    SCOPE_ID_BYTES_MAX: usize = 256, "bytes";
    /// The maximum number of entries in one list of allowed or excluded purchases.
    CONSTRAINT_ENTRIES_MAX: usize = 256, "entries";
    /// The maximum length of one entry of such a list.
    CONSTRAINT_BYTES_MAX: usize = 256, "bytes";
    /// The maximum number of caps from an entity up to its root: more than the maximum depth of entities.
    CAPS_DEPTH_MAX: usize = 64, "caps";
    /// The maximum number of differences that one verification lists. The rest is counted.
    DIFFERENCES_MAX: usize = 100, "differences";
}
