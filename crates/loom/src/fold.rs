//! The totals of folded turns. With them the turns before a fold need not be read.

use serde::{Deserialize, Serialize};

/// The number of calls of a gate, and the number of failed calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateCallCount {
    pub gate: String,
    pub calls: u64,
    pub failed: u64,
}

impl GateCallCount {
    /// Adds counts per gate, in the order in which the gates were first called.
    pub fn add_all(to: &mut Vec<Self>, more: &[Self]) {
        for deed in more {
            match to.iter_mut().find(|known| known.gate == deed.gate) {
                Some(known) => {
                    known.calls += deed.calls;
                    known.failed += deed.failed;
                }
                None => to.push(deed.clone()),
            }
        }
    }
}

/// The totals of a thread at the time of a fold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoldSum {
    /// The sequence of the last turn that is no longer shown; none if all are shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u64>,
    /// The gate calls of the turns up to that one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeds: Vec<GateCallCount>,
    /// The beginning of the last text in those turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// The tokens that providers have counted so far, and the estimate for the same requests.
    pub counted: f64,
    pub estimated: f64,
    /// The labels that the entity had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}
