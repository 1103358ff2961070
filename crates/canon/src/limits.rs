//! Which bounds apply, and why these values? This module has the bounds of this crate, and the macro with which every
//! crate declares its own.
//!
//! Numbers written where they are used were the alternative. Here a bound is written once, with the reason for its
//! size, and `cantrip limits` lists it. So no number can apply that a reader cannot find.

/// One bound, as `cantrip limits` prints it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub name: &'static str,
    pub value: u64,
    pub unit: &'static str,
    /// The reason for the bound, and what happens when it is reached.
    pub doc: &'static str,
}

/// Declares the bounds of a crate: one constant each, and `ALL`, the table of them.
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
        /// All bounds of this crate, in the order of the source.
        pub const ALL: &[$crate::Limit] = &[$($crate::Limit {
            name: stringify!($name),
            value: $name as u64,
            unit: $unit,
            doc: ::core::concat!($($doc),+).trim_ascii(),
        }),+];
    };
}

limits! {
    /// The maximum nesting depth of JSON that the strict reader accepts. Deeper text is refused with its path.
    JSON_DEPTH_MAX: usize = 128, "levels";
    /// The largest integer that every JSON reader keeps exact (2^53 - 1). Larger integers are sent as strings.
    JSON_INTEGER_MAX: u64 = (1 << 53) - 1, "";
    /// The maximum amount of money in micro-units, chosen so that every JSON reader keeps it exact.
    MONEY_MICROS_MAX: i64 = (1 << 53) - 1, "micros";
    /// The minimum length of a secret value of the process to be redacted. Shorter values would damage ordinary words.
    SECRET_BYTES_MIN: usize = 8, "bytes";
    /// The minimum length at which a string without spaces under the key `token` is redacted as a token.
    TOKEN_CHARS_MIN: usize = 16, "characters";
    /// The maximum number of redaction passes. A text that still changes after the last pass was crafted to do so and
    /// is replaced as a whole.
    REDACT_PASSES_MAX: usize = 8, "passes";
}
