//! The named places of a candidate that a compile may change.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A slot. The order of the variants is the order in which a search goes through them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Slot {
    Instructions,
    /// The instructions of sub-calls, of `rlm_lite.v1` alone.
    SubInstructions,
    /// One line about each of some fields of the output.
    Hints,
    Demos,
    /// The sampling parameters.
    Decoding,
    /// The system prompt of a spell.
    Call,
    /// The description of a gate of a spell.
    Gate(String),
    /// The wards of a spell.
    Wards,
}

/// The values that a slot takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotKind {
    Text,
    /// A text whose lines name fields of the output.
    Hints,
    /// An ordered list of examples.
    Demos,
    /// One of a list.
    Choice,
}

/// A text that names no slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotFault(String);

impl fmt::Display for SlotFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is not a slot: instructions, sub_instructions, hints, demos or decoding of a signature; call, \
             gate:NAME or wards of a spell",
            self.0
        )
    }
}

impl std::error::Error for SlotFault {}

const GATE_PREFIX: &str = "gate:";

impl Slot {
    pub const fn kind(&self) -> SlotKind {
        match self {
            Self::Instructions | Self::SubInstructions | Self::Call | Self::Gate(_) => SlotKind::Text,
            Self::Hints => SlotKind::Hints,
            Self::Demos => SlotKind::Demos,
            Self::Decoding | Self::Wards => SlotKind::Choice,
        }
    }

    /// Returns true if a proposal can give the slot a new value: it is a text, or hints that are written as lines.
    pub const fn is_text(&self) -> bool {
        matches!(self.kind(), SlotKind::Text | SlotKind::Hints)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instructions => f.write_str("instructions"),
            Self::SubInstructions => f.write_str("sub_instructions"),
            Self::Hints => f.write_str("hints"),
            Self::Demos => f.write_str("demos"),
            Self::Decoding => f.write_str("decoding"),
            Self::Call => f.write_str("call"),
            Self::Gate(name) => write!(f, "{GATE_PREFIX}{name}"),
            Self::Wards => f.write_str("wards"),
        }
    }
}

impl FromStr for Slot {
    type Err = SlotFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = [
            Self::Instructions,
            Self::SubInstructions,
            Self::Hints,
            Self::Demos,
            Self::Decoding,
            Self::Call,
            Self::Wards,
        ];
        if let Some(slot) = known.into_iter().find(|slot| slot.to_string() == text) {
            return Ok(slot);
        }
        match text.strip_prefix(GATE_PREFIX) {
            Some(name) if !name.is_empty() => Ok(Self::Gate(name.to_owned())),
            Some(_) | None => Err(SlotFault(text.chars().take(80).collect())),
        }
    }
}

impl TryFrom<String> for Slot {
    type Error = SlotFault;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Slot> for String {
    fn from(slot: Slot) -> Self {
        slot.to_string()
    }
}
