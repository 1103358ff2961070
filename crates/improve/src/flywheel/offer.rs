//! The next step for a canary, as the guard's numbers and the stored evaluation say.
//!
//! An offer is a command that its user runs. Nothing is done here: promoting is always a command of its own.

use cantrip_contract::CompiledId;
use serde::Serialize;

use crate::eval::{SuggestedAction, Suggestion};

/// The result of the live comparison of a canary with the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanaryFinding {
    /// The guard has seen that the canary is worse, with the numbers in words.
    Worse(String),
    /// The guard has removed the canary because it is worse.
    Cleared(String),
    /// The guard has looked, and the canary is not worse.
    NotWorse(String),
    /// The canary has too few labelled units for the next look.
    TooFew { units: u64, wanted: u64 },
}

/// The offered step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OfferedAction {
    Promote,
    Wait,
    Clear,
}

/// An offer with its reason in words and its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    pub action: OfferedAction,
    pub reason: String,
    /// The command to run next. To wait needs none, so it is the one that labels more calls.
    pub command: String,
}

impl Offer {
    /// Returns the offer about a canary. `suggestion` is that of its newest evaluation beside the primary, if there is
    /// one; `signature` is the name under which commands find the signature.
    pub fn about(
        signature: &str,
        canary: &CompiledId,
        finding: &CanaryFinding,
        suggestion: Option<&Suggestion>,
    ) -> Self {
        let label = || format!("cantrip receipt verdict --next {signature}");
        match (finding, suggestion) {
            (CanaryFinding::Worse(said), _) => Self {
                action: OfferedAction::Clear,
                reason: format!("the canary is worse: {said}"),
                command: format!("cantrip pointer canary {signature} --off"),
            },
            (CanaryFinding::Cleared(said), _) => Self {
                action: OfferedAction::Clear,
                reason: format!("the guard has removed the canary: {said}"),
                command: format!("cantrip improve {signature}"),
            },
            (CanaryFinding::TooFew { units, wanted }, _) => Self {
                action: OfferedAction::Wait,
                reason: format!("the canary has {units} labelled calls, and the next look needs {wanted}"),
                command: label(),
            },
            (CanaryFinding::NotWorse(said), Some(Suggestion { action: SuggestedAction::Promote, .. })) => Self {
                action: OfferedAction::Promote,
                reason: format!("the canary is not worse: {said}; its evaluation passes the promote gate"),
                command: format!("cantrip pointer promote {signature} {canary}"),
            },
            (CanaryFinding::NotWorse(said), Some(Suggestion { reason, .. })) => Self {
                action: OfferedAction::Wait,
                reason: format!("the canary is not worse: {said}; but {reason}"),
                command: label(),
            },
            (CanaryFinding::NotWorse(said), None) => Self {
                action: OfferedAction::Wait,
                reason: format!("the canary is not worse: {said}; but no evaluation compares it with the primary"),
                command: format!("cantrip eval {canary} --dataset DATASET --metric METRIC"),
            },
        }
    }
}
