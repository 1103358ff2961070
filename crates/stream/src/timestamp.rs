//! The time of an event, exactly as its producer wrote it.
//!
//! The text is validated and then kept as it was written: a viewer that compares an upsert's `sourceTimestamp` with
//! the event it came from finds the same bytes, whether the producer writes milliseconds or nanoseconds. Parsing it
//! into a number would round or pad it. It has at most 30 bytes and is stored inside the value, so copying it needs no
//! allocation.

use std::fmt::{self, Write};
use std::str::FromStr;

use cantrip_canon::Timestamp;
use serde::{Serialize, Serializer};

const FORM: &[u8] = b"0000-00-00T00:00:00";
const BYTES_MAX: usize = FORM.len() + ".123456789Z".len();

/// A wall time in UTC: `YYYY-MM-DDTHH:MM:SS`, a fraction of 1 to 9 digits or none, `Z`.
///
/// ```
/// # use cantrip_stream::SourceTimestamp;
/// let at: SourceTimestamp = "2026-02-15T10:00:00.12Z".parse().unwrap();
/// assert_eq!(at.as_str(), "2026-02-15T10:00:00.12Z");
/// assert!("2026-02-30T10:00:00Z".parse::<SourceTimestamp>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceTimestamp {
    bytes: [u8; BYTES_MAX],
    len: u8,
}

/// The text is not a [`SourceTimestamp`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a real time of the form YYYY-MM-DDTHH:MM:SS[.fraction of 1 to 9 digits]Z")]
pub struct NotATimestamp;

impl SourceTimestamp {
    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).expect("only digits, `-`, `:`, `.`, `T` and `Z`")
    }
}

impl FromStr for SourceTimestamp {
    type Err = NotATimestamp;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let written = text.as_bytes();
        let (front, fraction) = written.split_at_checked(FORM.len()).ok_or(NotATimestamp)?;
        let fits = front.iter().zip(FORM).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            mark => byte == mark,
        });
        let digits = match fraction {
            [b'Z'] => &[][..],
            [b'.', digits @ .., b'Z'] if (1..=9).contains(&digits.len()) => digits,
            _ => return Err(NotATimestamp),
        };
        if !fits || !digits.iter().all(u8::is_ascii_digit) || !is_real(front) {
            return Err(NotATimestamp);
        }
        let mut bytes = [0; BYTES_MAX];
        bytes[..written.len()].copy_from_slice(written);
        Ok(Self { bytes, len: written.len() as u8 })
    }
}

/// Returns true if the date and time of day exist; `front` has the right form.
fn is_real(front: &[u8]) -> bool {
    let number = |from: usize, to: usize| front[from..to].iter().fold(0, |n, digit| n * 10 + u32::from(digit - b'0'));
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=days).contains(&day) && number(11, 13) < 24 && number(14, 16) < 60 && number(17, 19) < 60
}

impl From<Timestamp> for SourceTimestamp {
    fn from(at: Timestamp) -> Self {
        let mut filling = TimestampWriter(Self { bytes: [0; BYTES_MAX], len: 0 });
        write!(filling, "{at}").expect("a timestamp prints as a real time with three digits and Z");
        filling.0
    }
}

/// A timestamp that is being formatted.
struct TimestampWriter(SourceTimestamp);

impl fmt::Write for TimestampWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let SourceTimestamp { bytes, len } = &mut self.0;
        let from = usize::from(*len);
        bytes.get_mut(from..from + text.len()).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        *len += text.len() as u8;
        Ok(())
    }
}

impl fmt::Display for SourceTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SourceTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for SourceTimestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
