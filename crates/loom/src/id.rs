//! The ids of this crate: positions in a journal, calls, cantrips, steps and the owners of leases.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::{EntityId, FoldId, Hash, Id, IdFault, Kind, TurnId, bytes_hash};
use cantrip_spend::CallKey;
use serde::{Deserialize, Serialize};

use crate::limits::NAME_BYTES_MAX;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u64);

        impl $name {
            pub const fn new(count: u64) -> Self {
                Self(count)
            }

            pub const fn get(self) -> u64 {
                self.0
            }

            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0.saturating_add(1))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

counters! {
    /// A position in the journal of a run: 1 is the first record, [`Seq::START`] the position before it.
    Seq;
    /// The number of owners that a run has had. A writer with an older epoch is no longer the owner and is fenced out.
    Epoch;
}

impl Seq {
    /// The position before the first record.
    pub const START: Self = Self(0);
}

impl Epoch {
    /// The epoch of records that were written without a lease.
    pub const NONE: Self = Self(0);
    /// The epoch of the first owner of a run.
    pub const FIRST: Self = Self(1);
}

/// The reason why a text is not a valid id of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    #[error("{0:?} is not the id of a call: a turn's or a fold's id, a colon and a number")]
    Call(String),
    #[error("{0:?} is not the id of a cantrip: can_ and 32 digits of 0-9 and a-f")]
    Cantrip(String),
    #[error("a {noun} has 1 to {NAME_BYTES_MAX} bytes without control characters, not {text:?}")]
    Text { noun: &'static str, text: String },
    #[error(transparent)]
    Id(#[from] IdFault),
}

/// The turn or the fold that a call belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caller {
    /// The turn that holds the utterance, also for calls that settle in its continuations.
    Turn(TurnId),
    /// A fold that is written by a crystal.
    Fold(FoldId),
}

/// The id of a call: `<turn id>:<n>` or `<fold id>:<n>`; 0 is the request to the crystal itself.
///
/// ```
/// # use cantrip_loom::CallId;
/// let call: CallId = "turn_06cyf9k2vtd3m8x1q7hbz4n5rw:2".parse().unwrap();
/// assert_eq!(call.number(), 2);
/// assert_eq!(call.to_string(), "turn_06cyf9k2vtd3m8x1q7hbz4n5rw:2");
/// assert!("turn_06cyf9k2vtd3m8x1q7hbz4n5rw:02".parse::<CallId>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CallId {
    caller: Caller,
    number: u32,
}

impl CallId {
    /// Returns the id of the request with which `turn` begins.
    pub const fn request(turn: TurnId) -> Self {
        Self { caller: Caller::Turn(turn), number: 0 }
    }

    /// Returns the id of call `number` (from 1) of the group whose utterance `turn` holds.
    pub const fn of_turn(turn: TurnId, number: u32) -> Self {
        Self { caller: Caller::Turn(turn), number }
    }

    /// Returns the id of request `number` of a summariser.
    pub const fn of_fold(fold: FoldId, number: u32) -> Self {
        Self { caller: Caller::Fold(fold), number }
    }

    pub const fn caller(&self) -> Caller {
        self.caller
    }

    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the id of the child that this call spawns at `index`. The time part is that of the call and the random
    /// bits are taken from a hash, so a resumed delegation gives its children the same ids and never spawns twice.
    pub fn child(&self, index: u32) -> EntityId {
        let made_at = match self.caller {
            Caller::Turn(turn) => turn.made_at(),
            Caller::Fold(fold) => fold.made_at(),
        };
        let hash =
            bytes_hash(format!("{{\"call_id\":\"{self}\",\"index\":{index},\"kind\":\"child\",\"v\":1}}").as_bytes());
        let mut chance = [0; 10];
        chance.copy_from_slice(&hash.as_bytes()[..10]);
        EntityId::from_parts(made_at, chance)
    }

    /// Returns the key under which reservations refer to this call.
    pub fn key(&self) -> CallKey {
        CallKey::new(self.to_string()).expect("an id, a colon and a number are short visible ASCII")
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.caller {
            Caller::Turn(turn) => write!(f, "{turn}:{}", self.number),
            Caller::Fold(fold) => write!(f, "{fold}:{}", self.number),
        }
    }
}

impl FromStr for CallId {
    type Err = NameFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = || NameFault::Call(text.chars().take(64).collect());
        let (caller, number) = text.split_once(':').ok_or_else(fault)?;
        let caller = match caller.split('_').next() {
            Some("fold") => Caller::Fold(caller.parse()?),
            Some(_) | None => Caller::Turn(caller.parse()?),
        };
        let parsed: u32 = number.parse().map_err(|_| fault())?;
        // A number has exactly one valid form: no sign, no leading zero.
        if parsed.to_string() == number { Ok(Self { caller, number: parsed }) } else { Err(fault()) }
    }
}

/// The id of a cantrip: `can_` and 32 digits from the hash of its root record, so equal cantrips have the same id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CantripId([u8; 16]);

impl CantripId {
    pub fn cut(hash: &Hash) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.as_bytes()[..16]);
        Self(bytes)
    }
}

impl fmt::Display for CantripId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("can_")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for CantripId {
    type Err = NameFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fault = || NameFault::Cantrip(text.chars().take(64).collect());
        let digits = text.strip_prefix("can_").ok_or_else(fault)?;
        if digits.len() != 32 || !digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            return Err(fault());
        }
        let value = u128::from_str_radix(digits, 16).map_err(|_| fault())?;
        Ok(Self(value.to_be_bytes()))
    }
}

cantrip_canon::string_conversions!(CallId, CantripId);
cantrip_canon::debug_as_text!(CallId, CantripId);

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident, $noun:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn new(text: impl Into<String>) -> Result<Self, NameFault> {
                let text = text.into();
                if (1..=NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control) {
                    Ok(Self(text))
                } else {
                    Err(NameFault::Text { noun: $noun, text: text.chars().take(64).collect() })
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameFault;
            fn try_from(text: String) -> Result<Self, Self::Error> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    )+};
}

names! {
    /// Identifies a step: the same id appended again returns the first outcome. Unique within its run.
    StepId, "step's id";
    /// A process that works on runs. Kept across turns; two processes never share one.
    WorkerId, "worker's id";
    /// A person, service or part of the system that did something: `local`, `user:42`, `verifier`.
    Actor, "actor's name";
}

/// Returns the first and the last id of kind `K` whose text after the underscore begins with `digits`; none if no id
/// can. Ids sort in the order of their texts, so a prefix is a range.
pub(crate) fn prefix_range<K: Kind>(digits: &str) -> Option<(Id<K>, Id<K>)> {
    if digits.len() > 26 {
        return None;
    }
    let padded = |with: &str| format!("{}_{digits}{}", K::PREFIX, with.repeat(26 - digits.len()));
    // The first of the 26 digits is at most 7: an empty prefix spans all ids.
    let last = if digits.is_empty() { format!("{}_7{}", K::PREFIX, "z".repeat(25)) } else { padded("z") };
    Some((padded("0").parse().ok()?, last.parse().ok()?))
}
