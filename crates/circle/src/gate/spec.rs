//! The declaration of a gate, known before it is called.

use std::time::Duration;

use cantrip_reply::limits::GATE_RESULT_BYTES_MAX;
use serde_json::Value;

use super::Settlement;
use crate::{Label, Labels};

/// The effects of a call, as far as a resume, a fork or an adjacent call may rely on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purity {
    /// The gate may change something, and a second call changes it again.
    Effects,
    /// A second call with the same key changes nothing more: after a crash the call is repeated.
    Idempotent,
    /// The gate changes nothing: adjacent calls run in parallel.
    ReadOnly,
    /// The answer follows from the arguments alone: the call needs no record before it runs.
    Pure,
}

/// The declared properties of a gate.
///
/// Each level of purity includes the levels before it: a pure gate is read-only, and a read-only gate may be called
/// again.
#[derive(Debug, Clone, PartialEq)]
pub struct GateSpec {
    pub name: String,
    pub description: String,
    /// The JSON Schema of the arguments, an object whose properties are in declared order.
    pub parameters: Value,
    pub labels: Labels,
    /// The table of a spell that declares no labels for this gate, so that it counts as having all three. None if the
    /// labels were declared.
    pub unlabelled_in: Option<String>,
    pub purity: Purity,
    /// True if the context shows a placeholder instead of the results. The loom keeps the results.
    pub ephemeral: bool,
    /// True if the gate is meant for repeated equal calls, which then do not count as a loop.
    pub polling: bool,
    /// True if a call ends by itself within moments and its effects must be known: a stop lets the call finish.
    pub brief: bool,
    /// True if the gate keeps state for its entity between calls that no record can restore.
    pub keeps_state: bool,
    /// The settlement of a gate that moves money. Its answers must report the payment.
    pub settlement: Option<Settlement>,
    /// The maximum size of a reply in bytes.
    pub result_bytes_max: usize,
    /// The time after which a call is ended.
    pub time_max: Option<Duration>,
}

impl GateSpec {
    /// Makes a spec with no promises except the schema.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            labels: Labels::none(),
            unlabelled_in: None,
            purity: Purity::Effects,
            ephemeral: false,
            polling: false,
            brief: false,
            keeps_state: false,
            settlement: None,
            result_bytes_max: GATE_RESULT_BYTES_MAX,
            time_max: None,
        }
    }

    #[must_use]
    pub fn labels(mut self, labels: impl IntoIterator<Item = Label>) -> Self {
        self.labels = Labels::of(labels);
        self
    }

    #[must_use]
    pub fn purity(mut self, purity: Purity) -> Self {
        self.purity = purity;
        self
    }

    #[must_use]
    pub fn brief(mut self) -> Self {
        self.brief = true;
        self
    }

    #[must_use]
    pub fn keeping_state(mut self) -> Self {
        self.keeps_state = true;
        self
    }

    #[must_use]
    pub fn with_settlement(mut self, settlement: Settlement) -> Self {
        self.settlement = Some(settlement);
        self
    }

    #[must_use]
    pub fn result_bytes_max(mut self, bytes: usize) -> Self {
        self.result_bytes_max = bytes;
        self
    }

    #[must_use]
    pub fn time_max(mut self, limit: Duration) -> Self {
        self.time_max = Some(limit);
        self
    }

    /// Returns true if a call without an answer is repeated after a crash, with the same key.
    pub fn is_idempotent(&self) -> bool {
        self.purity >= Purity::Idempotent
    }

    /// Returns true if adjacent calls run in parallel.
    pub fn is_read_only(&self) -> bool {
        self.purity >= Purity::ReadOnly
    }

    /// Returns true if a call needs no record before it runs.
    pub fn is_pure(&self) -> bool {
        self.purity >= Purity::Pure
    }
}
