//! Was the winner of a compile tried on callers, and what became of it?

use cantrip::canon::Timestamp;
use cantrip_contract::{CompiledId, Pointer, PointerAudit};
use serde::Serialize;

/// The use of a winner since its report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "standing", rename_all = "snake_case")]
pub enum WinnerStanding {
    /// No caller has got it since its report.
    Untried,
    /// Some callers get it now.
    Canary,
    /// All callers get it now.
    Live,
    /// Callers got it since its report, and get it no longer.
    Withdrawn {
        /// The person, program or guard that withdrew it.
        by: String,
        reason: Option<String>,
    },
}

fn serves(pointer: &Pointer, artifact: &CompiledId) -> bool {
    pointer.primary_artifact == *artifact || pointer.canary_artifact.as_ref() == Some(artifact)
}

/// Returns what became of a winner since its report. `audits` are those of its signature, oldest first.
pub fn winner_standing(
    winner: &CompiledId,
    pointer: Option<&Pointer>,
    audits: &[PointerAudit],
    since: Timestamp,
) -> WinnerStanding {
    if let Some(pointer) = pointer {
        if pointer.primary_artifact == *winner {
            return WinnerStanding::Live;
        }
        if pointer.canary_artifact.as_ref() == Some(winner) {
            return WinnerStanding::Canary;
        }
    }
    let is_withdrawal = |audit: &&PointerAudit| {
        let before = audit.before.as_ref().is_some_and(|before| serves(before, winner));
        before && !serves(&audit.after, winner)
    };
    let last = audits.iter().rev().filter(|audit| audit.at >= since).find(is_withdrawal);
    match last {
        Some(audit) => WinnerStanding::Withdrawn { by: audit.actor.clone(), reason: audit.reason.clone() },
        None => WinnerStanding::Untried,
    }
}
