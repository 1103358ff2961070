//! What a gate says about itself before it is called.

use std::time::Duration;

use cantrip_reply::limits::GATE_RESULT_BYTES_MAX;
use serde_json::Value;

use super::Settlement;
use crate::{Label, Labels};

/// What calling a gate does to the world, as far as a resume, a fork or a neighbour may rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purity {
    /// It may change something, and a second call changes it again.
    Effects,
    /// A second call with the same key changes nothing more: after a crash it is called again.
    Idempotent,
    /// It changes nothing: neighbours run at once.
    ReadOnly,
    /// Its answer follows from its arguments alone: calling it needs no record of its own before.
    Pure,
}

/// Everything that is known of a gate before it is called.
///
/// Each step of purity includes those before it: what is pure only reads, and what only reads may be called again.
#[derive(Debug, Clone, PartialEq)]
pub struct GateSpec {
    pub name: String,
    pub description: String,
    /// The JSON Schema of the arguments, an object whose properties stand in declared order.
    pub parameters: Value,
    pub labels: Labels,
    /// The table of a spell that says nothing about its labels, so that it counts as all three; none where somebody has
    /// said what it brings in.
    pub unlabelled_in: Option<String>,
    pub purity: Purity,
    /// The loom keeps its results; the context shows a placeholder.
    pub ephemeral: bool,
    /// Asking again for the same is its use, so it does not count as going round in circles.
    pub polling: bool,
    /// It ends by itself within moments, and what it did must be known: a stop lets it finish.
    pub brief: bool,
    /// It keeps something for its entity between calls that no record can restore.
    pub keeps_state: bool,
    /// It moves money, and its answers have to say so.
    pub settlement: Option<Settlement>,
    /// What its reply may have in bytes.
    pub result_bytes_max: usize,
    /// After which time it is ended.
    pub time_max: Option<Duration>,
}

impl GateSpec {
    /// A gate that promises nothing but its shape.
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

    /// After a crash a call without an answer is made again, with the same key.
    pub fn is_idempotent(&self) -> bool {
        self.purity >= Purity::Idempotent
    }

    /// Adjacent calls run at once.
    pub fn is_read_only(&self) -> bool {
        self.purity >= Purity::ReadOnly
    }

    /// Needs no record before it runs.
    pub fn is_pure(&self) -> bool {
        self.purity >= Purity::Pure
    }
}
