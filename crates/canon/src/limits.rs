//! Which bounds are in force, and why are they what they are? This room's, and the table in which each declares its
//! own.
//!
//! Numbers where they are used were the alternative. A bound is written once instead, with the reason for its size,
//! and is listed by `cantrip limits`; so no number can be in force that a reader cannot find.

/// One bound, as `cantrip limits` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub name: &'static str,
    pub value: u64,
    pub unit: &'static str,
    /// Why it is there and what happens at it.
    pub doc: &'static str,
}

/// Declares a room's bounds: one constant each, and `ALL`, the table of them.
///
/// ```
/// cantrip_canon::limits! {
///     /// One more would not fit on the table.
///     PLATES_MAX: usize = 12, "plates";
/// }
/// assert_eq!(PLATES_MAX, 12);
/// assert_eq!(ALL[0].doc, "One more would not fit on the table.");
/// ```
#[macro_export]
macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $value:expr, $unit:literal;)+) => {
        $($(#[doc = $doc])+ pub const $name: $kind = $value;)+
        /// Every bound of this room, in the order of its source.
        pub const ALL: &[$crate::Limit] = &[$($crate::Limit {
            name: stringify!($name),
            value: $name as u64,
            unit: $unit,
            doc: ::core::concat!($($doc),+).trim_ascii(),
        }),+];
    };
}

limits! {
    /// Nesting of JSON that the strict reader follows; deeper text is refused with its path.
    JSON_DEPTH_MAX: usize = 128, "levels";
    /// The largest integer that every JSON reader keeps exact (2^53 - 1); larger ones travel as strings.
    JSON_INTEGER_MAX: u64 = (1 << 53) - 1, "";
    /// The most micro-units an amount of money may have, so that it is exact in every JSON reader.
    MONEY_MICROS_MAX: i64 = (1 << 53) - 1, "micros";
    /// Secret values of the process shorter than this are not searched for: they would damage ordinary words.
    SECRET_BYTES_MIN: usize = 8, "bytes";
    /// A string under the key `token` is a token from this length on, if it has no spaces.
    TOKEN_CHARS_MIN: usize = 16, "characters";
    /// A text that still changes after being redacted so many times was made to; it is replaced whole.
    REDACT_PASSES_MAX: usize = 8, "passes";
}
