//! Unambiguous JSON: which texts may be hashed, and which bytes are hashed for them?
//!
//! A hash promises that two parties read the same value. So a text that two readers could interpret differently is
//! refused before it can be hashed: a duplicate key, a lone surrogate, an integer that a double cannot hold.
//! `serde_json` alone was the alternative. It keeps the last of two equal keys, writes NaN as `null` and leaves large
//! integers to the next reader, each time without an error. So the reader and the serializer are our own, and only the
//! type `Value` is from `serde_json`. The canonical bytes (RFC 8785) are written here too, and tests compare them with
//! `serde_json_canonicalizer`.
//!
//! Three laws hold for every value that [`read`], [`read_foreign`] or [`to_value`] returned:
//!
//! * [`canonical`] can write it.
//! * Reading the output of [`canonical`] returns the same value again.
//! * Two values are equal (`==`) if and only if their canonical texts are: `1`, `1.0` and `1e0` are one value.
//!
//! ```
//! use cantrip_canon::json;
//!
//! let value = json::read(r#"{"b": 1.0, "a": "\u00e9"}"#).unwrap();
//! assert_eq!(json::canonical(&value).unwrap(), r#"{"a":"é","b":1}"#);
//!
//! let fault = json::read(r#"{"user": {"id": 1, "id": 2}}"#).unwrap_err();
//! assert_eq!((fault.rule, fault.path.as_str()), (json::ReadRule::DuplicateKey, "/user/id"));
//! ```

mod canonical;
mod direct;
mod frame;
mod key;
mod read;
mod write;

use std::fmt;

use serde_json::Number;

pub use canonical::put_text;
pub use direct::{canonical_of, with_canonical};
pub use read::{Position, ReadFault, ReadRule, read, read_bytes, read_foreign};
pub use write::{WriteFault, WriteRule, canonical, to_value};

use crate::limits::JSON_INTEGER_MAX;

/// The reason why a double is not a valid number here.
enum NumberError {
    NotFinite,
    Inexact,
}

/// RFC 8785 writes whole numbers from this size on with an exponent.
const EXPONENT_FROM: f64 = 1e21;

/// The single representation of a double: a whole number within the exact range is an integer, so that equal numbers
/// are equal values however they were written.
///
/// Whole numbers between that range and `1e21` are refused, because RFC 8785 writes them as integer literals: `1e16`
/// would be stored as `10000000000000000`, which the reader must refuse.
fn number(double: f64) -> Result<Number, NumberError> {
    let whole = double.trunc() == double;
    if whole && double.abs() <= JSON_INTEGER_MAX as f64 {
        Ok(Number::from(double as i64))
    } else if whole && double.abs() < EXPONENT_FROM {
        Err(NumberError::Inexact)
    } else {
        Number::from_f64(double).ok_or(NumberError::NotFinite)
    }
}

/// Returns the integer if every JSON reader keeps it exact.
fn integer<I: TryInto<i64>>(integer: I) -> Option<i64> {
    integer.try_into().ok().filter(|value| value.unsigned_abs() <= JSON_INTEGER_MAX)
}

/// One segment of a JSON Pointer (RFC 6901), escaped and with its slash.
fn step(segment: &str) -> String {
    format!("/{}", segment.replace('~', "~0").replace('/', "~1"))
}

/// Prints the path of a fault, truncated so that a key of a megabyte cannot fill the log.
fn show_path(f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
    const SHOWN_CHARS_MAX: usize = 256;
    match path.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((cut, _)) => write!(f, "at {}...", &path[..cut]),
        None if path.is_empty() => f.write_str("at the top"),
        None => write!(f, "at {path}"),
    }
}
