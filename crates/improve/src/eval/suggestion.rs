//! The next step after an evaluation: to promote, to try on a part of the callers, or to keep what is served.

use cantrip::canon::Timestamp;
use cantrip_contract::{EvalReport, EvalStatus, EvalVerdict, Pointer, PromotionCriteria, StoredEvidence};
use serde::Serialize;

use crate::limits::SUGGESTED_CANARY_PERCENT;

/// The suggested next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SuggestedAction {
    Promote,
    Canary,
    Keep,
}

impl SuggestedAction {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Promote => "promote",
            Self::Canary => "canary",
            Self::Keep => "keep",
        }
    }
}

/// A suggestion with its reason, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    pub action: SuggestedAction,
    pub reason: String,
}

impl Suggestion {
    /// Returns the suggestion after an evaluation: to promote if the promote gate would pass, else a canary if the
    /// subject scored higher, else to keep what is served. `stored` is none for a spell, which no pointer serves.
    pub fn after(
        report: &EvalReport,
        stored: Option<&StoredEvidence>,
        pointer: Option<&Pointer>,
        now: Timestamp,
    ) -> Self {
        let keep = |reason: &str| Self { action: SuggestedAction::Keep, reason: reason.to_owned() };
        if report.status != EvalStatus::Succeeded {
            return keep("the evaluation did not succeed, so it speaks for nothing");
        }
        let Some(delta) = report.delta else {
            return keep("nothing was compared: name a baseline with --baseline");
        };
        let (Some(stored), Some(artifact)) = (stored, report.compiled_id.artifact()) else {
            let reason = match report.verdict {
                Some(EvalVerdict::Better) => "the spell is better; no pointer serves spells, so change its file",
                Some(EvalVerdict::Worse) => "the spell is worse",
                Some(EvalVerdict::Undecided) | None => "the difference is not statistically significant",
            };
            return keep(reason);
        };
        let Some(pointer) = pointer else {
            return keep("the signature has no pointer yet: cantrip pointer set makes one");
        };
        let unmet = PromotionCriteria::default().unmet_by_stored(&artifact, pointer, stored, false, now);
        if unmet.is_empty() {
            let reason = "it is better on the test split, and the promote gate would pass".to_owned();
            return Self { action: SuggestedAction::Promote, reason };
        }
        let said: Vec<String> = unmet.iter().map(ToString::to_string).collect();
        if delta.mean > 0 {
            let reason = format!(
                "it scored higher, but cannot be promoted: {}; try it on {SUGGESTED_CANARY_PERCENT} % of the callers",
                said.join("; ")
            );
            return Self { action: SuggestedAction::Canary, reason };
        }
        keep("it did not score higher than what is served")
    }
}
