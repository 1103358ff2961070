//! The bounds of spells.

cantrip_canon::limits! {
    /// The maximum number of TOML files in a spell's folder that are checked for being spells.
    SPELLS_BESIDE_MAX: usize = 256, "files";
    /// The minimum window that a spell may set for its crystal.
    WINDOW_TOKENS_MIN: u64 = 4_000, "tokens";
    /// The maximum of `bytes_per_token` in a spell.
    BYTES_PER_TOKEN_MAX: u32 = 16, "bytes";
    /// The maximum size of a spell, and of each file that it names.
    SPELL_BYTES_MAX: usize = 1 << 20, "bytes";
    /// The default maximum number of turns of a cast, if its spell sets no limit.
    SPELL_TURNS: u64 = 50, "turns";
    /// The maximum size of the files that a trial of a spell copies.
    TRIAL_FILES_BYTES_MAX: u64 = 64 << 20, "bytes";
}
