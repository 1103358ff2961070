//! What folded turns come to, so that whoever goes on from a fold need not read them.

use serde::{Deserialize, Serialize};

/// How often a gate was called, and how often in vain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateCallCount {
    pub gate: String,
    pub calls: u64,
    pub failed: u64,
}

impl GateCallCount {
    /// Adds up by gate, in the order in which gates were first called.
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

/// What a thread had come to when it was folded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FoldSum {
    /// The sequence of the last turn that no longer shows; none if all do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gone: Option<u64>,
    /// What the turns up to there did through gates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeds: Vec<GateCallCount>,
    /// The beginning of the last words they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Tokens that providers have counted so far, and what the same requests were estimated at.
    pub counted: f64,
    pub estimated: f64,
    /// The labels that the entity had touched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
}
