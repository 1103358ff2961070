//! Why can a cantrip not be built?

use std::fmt;

use cantrip_canon::Money;
use cantrip_circle::CircleFault;
use cantrip_reply::{Invalid, Refusal, ReplyDraft, codes};
use serde_json::json;

/// One fault of a cantrip. The order of the variants is the order in which faults are reported.
#[derive(Debug, Clone, PartialEq)]
pub enum CantripFault {
    NoCrystal,
    NoCircle,
    /// A fault of the circle, in the circle's own order.
    Circle(CircleFault),
    /// A crystal that writes programs, in a circle that runs none.
    NeedsCode {
        crystal: String,
    },
    /// A limit on money that cannot be enforced.
    Unpriced {
        crystal: String,
        limit: Money,
    },
    /// A fallback crystal that cannot replace the crystal: it has no tools, or writes programs.
    CannotStandIn {
        crystal: String,
    },
    /// A fold after fewer than two turns would have nothing to keep.
    FoldsTooSoon {
        turns: u64,
    },
    /// A share of the window that is not between 0 and 1.
    WindowShare(f64),
    /// A value without a JSON form, such as a temperature that is not a number.
    Unrecordable(String),
}

impl fmt::Display for CantripFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCrystal => f.write_str("cantrip requires a crystal"),
            Self::NoCircle => f.write_str("cantrip requires a circle"),
            Self::Circle(fault) => fault.fmt(f),
            Self::NeedsCode { crystal } => write!(f, "{crystal} says a program, and this circle runs none"),
            Self::Unpriced { crystal, limit } => {
                write!(f, "{crystal} has no price, so max_cost {limit} cannot be kept")
            }
            Self::CannotStandIn { crystal } => {
                write!(f, "{crystal} cannot stand in for the crystal: it is offered no tools, or says a program")
            }
            Self::FoldsTooSoon { turns } => write!(f, "folding after {turns} turns keeps nothing: at least 2"),
            Self::WindowShare(share) => write!(f, "window_share {share} is not between 0 and 1"),
            Self::Unrecordable(what) => write!(f, "the call cannot be recorded: {what}"),
        }
    }
}

/// All faults of a cantrip, in the order of reporting. Never empty.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", self.first())]
pub struct CantripFaults(Vec<CantripFault>);

impl CantripFaults {
    /// Returns the faults as one error. There must be at least one.
    pub fn new(faults: Vec<CantripFault>) -> Self {
        assert!(!faults.is_empty(), "a cantrip without faults is built");
        Self(faults)
    }

    pub fn first(&self) -> &CantripFault {
        &self.0[0]
    }

    pub fn all(&self) -> &[CantripFault] {
        &self.0
    }

    /// Returns the reply: the first fault in its message, all of them in its data.
    pub fn filled(&self) -> ReplyDraft<Invalid> {
        let all: Vec<String> = self.0.iter().map(CantripFault::to_string).collect();
        let first = self.first().to_string();
        let filled = if let CantripFault::NeedsCode { crystal } = self.first() {
            codes::config_invalid(crystal.as_str(), "medium", first)
        } else {
            codes::contract_invalid(first)
        };
        filled.data(json!({ "faults": all }))
    }
}

impl From<CantripFaults> for Refusal {
    fn from(faults: CantripFaults) -> Self {
        faults.filled().into()
    }
}
