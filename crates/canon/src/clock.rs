//! How does code learn the time? Time is a value that is passed in.
//!
//! Reading the machine's clock wherever a time is needed was the alternative; every rule about time would then be
//! tested by sleeping. One reading gives both kinds of time: a monotonic instant for timers and durations, and a wall
//! time for people and records. They are different types, so a deadline can never be computed from a wall clock that
//! someone sets back. The clock of the machine itself is not in this crate: only a surface may read it.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::civil::DateTime;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::from_str_visitor::FromStrVisitor;

/// A monotonic reading, measured from an origin that only its own clock knows.
///
/// ```
/// # use cantrip_canon::Instant;
/// # use std::time::Duration;
/// let start = Instant::default();
/// let deadline = start.after(Duration::from_secs(2));
/// assert_eq!(deadline.since(start), Duration::from_secs(2));
/// assert_eq!(start.since(deadline), Duration::ZERO);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(Duration);

impl Instant {
    /// The instant that is `since_origin` after the clock's origin.
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Returns the time from `earlier` to this instant; zero if this instant is not later.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the instant `by` later; the last instant if the sum overflows.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// A wall time in whole milliseconds, from 1970 to the end of the year 9999, UTC.
///
/// Formatted and parsed as RFC 3339 with exactly three fractional digits and `Z`.
///
/// ```
/// # use cantrip_canon::Timestamp;
/// let at: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
/// assert_eq!(at.unix_millis(), 1_771_466_400_000);
/// assert_eq!(at.to_string(), "2026-02-19T02:00:00.000Z");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// The reason why a value is not a [`Timestamp`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimestampFault {
    #[error("{0:?} is not of the form 2026-02-19T02:00:00.000Z")]
    Form(String),
    #[error("{0:?} names a day or time that does not exist")]
    Unreal(String),
    #[error("{0} ms is outside the years 1970 to 9999")]
    Range(i64),
}

const LAST_MILLIS: u64 = 253_402_300_799_999;

impl Timestamp {
    /// The start of 1970.
    pub const EPOCH: Self = Self(0);

    /// The time this many milliseconds after the start of 1970.
    pub fn from_unix_millis(millis: i64) -> Result<Self, TimestampFault> {
        match u64::try_from(millis) {
            Ok(after_epoch) if after_epoch <= LAST_MILLIS => Ok(Self(after_epoch)),
            Ok(_) | Err(_) => Err(TimestampFault::Range(millis)),
        }
    }

    /// The number of milliseconds since the start of 1970.
    pub const fn unix_millis(self) -> i64 {
        self.0 as i64
    }

    /// Returns the time `by` later, in whole milliseconds, and never beyond the last timestamp.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        let millis = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis).min(LAST_MILLIS))
    }

    /// The UTC day, `YYYY-MM-DD`.
    pub fn day(self) -> String {
        let mut text = self.to_string();
        text.truncate("YYYY-MM-DD".len());
        text
    }
}

/// A date without a zone: `jiff::Timestamp` ends a day before the year does, so that every zone can show it.
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

/// Every record and every event has a timestamp, so the text is formatted without a general calendar. A test compares
/// it with jiff's output.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, of_day) = (self.0 / DAY_MILLIS, self.0 % DAY_MILLIS);
        let (year, month, day) = civil(days);
        let (minutes, millis) = (of_day / 60_000, of_day % 60_000);
        let mut text = *b"0000-00-00T00:00:00.000Z";
        let parts = [
            (0..4, year),
            (5..7, month),
            (8..10, day),
            (11..13, minutes / 60),
            (14..16, minutes % 60),
            (17..19, millis / 1_000),
            (20..23, millis % 1_000),
        ];
        for (place, mut number) in parts {
            for digit in text[place].iter_mut().rev() {
                *digit = b'0' + (number % 10) as u8;
                number /= 10;
            }
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

const DAY_MILLIS: u64 = 24 * 60 * 60 * 1_000;
/// The days in 400 years, after which the calendar repeats.
const ERA_DAYS: u64 = 146_097;
/// The days from 1 March of the year 0 to the start of 1970.
const BEFORE_EPOCH: u64 = 719_468;

/// Returns year, month and day for a number of days after the start of 1970. Years are counted from 1 March, so that
/// the leap day is the last day of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let since = days + BEFORE_EPOCH;
    let (era, of_era) = (since / ERA_DAYS, since % ERA_DAYS);
    // Remove the leap days: one every 4 years, except every 100 years, but again every 400.
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // The months from March on repeat in groups of five with 31, 30, 31, 30 and 31 days: 153 days per group.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

impl FromStr for Timestamp {
    type Err = TimestampFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &[u8] = b"0000-00-00T00:00:00.000Z";
        let fits = text.len() == FORM.len()
            && text
                .bytes()
                .zip(FORM)
                .all(|(byte, form)| if *form == b'0' { byte.is_ascii_digit() } else { byte == *form });
        if !fits {
            return Err(TimestampFault::Form(text.chars().take(64).collect()));
        }
        let unreal = || TimestampFault::Unreal(text.to_owned());
        let at: DateTime = text.trim_end_matches('Z').parse().map_err(|_| unreal())?;
        let millis = i64::try_from(at.duration_since(EPOCH).as_millis()).map_err(|_| unreal())?;
        let time = Self::from_unix_millis(millis)?;
        // jiff parses the leap second :60 as :59. A time that does not format back to the same text is not a real time.
        if time.to_string() == text { Ok(time) } else { Err(unreal()) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromStrVisitor::new())
    }
}

/// One reading of a clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// For timers, deadlines and durations.
    pub monotonic: Instant,
    /// For people and records.
    pub wall: Timestamp,
}

/// The source of the time.
///
/// * `monotonic` never decreases between two readings of one clock, whichever threads took them.
/// * `wall` may jump in either direction; nothing may be ordered by it.
/// * A reading never blocks for long and never fails.
pub trait Clock: Send + Sync {
    fn now(&self) -> Now;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Now {
        (**self).now()
    }
}

/// A clock that moves only when a test moves it.
///
/// ```
/// # use cantrip_canon::{Clock, ManualClock, Timestamp};
/// # use std::time::Duration;
/// let clock = ManualClock::starting(Timestamp::EPOCH);
/// let before = clock.now();
/// clock.advance(Duration::from_millis(150));
/// assert_eq!(clock.now().monotonic.since(before.monotonic), Duration::from_millis(150));
/// assert_eq!(clock.now().wall.to_string(), "1970-01-01T00:00:00.150Z");
/// ```
#[derive(Debug)]
pub struct ManualClock {
    now: Mutex<Now>,
}

impl ManualClock {
    /// A clock that starts at `wall`.
    pub fn starting(wall: Timestamp) -> Self {
        Self { now: Mutex::new(Now { monotonic: Instant::default(), wall }) }
    }

    /// Advances both kinds of time.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.monotonic = now.monotonic.after(by);
        now.wall = now.wall.after(by);
    }

    /// Sets the wall time alone, as a person or a time server would.
    pub fn set_wall(&self, wall: Timestamp) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).wall = wall;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
