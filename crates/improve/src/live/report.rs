//! The comparison of both sides, from their calls alone.

use cantrip::canon::{AuditId, Currency, Timestamp};
use cantrip_contract::{CompiledId, LatencyPart, RolloutSide, SignatureId};
use cantrip_ds::stats::{Bounds, Resampled, Unit, mean};
use serde::Serialize;

use super::{LiveCall, LiveUnit, LiveWindow};
use crate::eval::percentiles;

/// The canary beside the primary. Scores and shares are millionths.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveReport {
    pub live_id: String,
    pub signature_id: SignatureId,
    /// The audit that set the canary.
    pub audit_id: AuditId,
    pub since: Timestamp,
    /// The percentage of callers that get the canary.
    pub percent: u8,
    /// The number of the look whose random numbers and bounds are used.
    pub k: u64,
    pub canary: LiveSide,
    pub primary: LiveSide,
    /// The score of the canary less that of the primary; none if a side has none.
    pub score: Option<LiveDelta>,
    /// The share of calls that failed, of the canary less that of the primary; none if a side has served nobody.
    pub failed: Option<LiveDelta>,
}

/// One side of a live evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveSide {
    pub compiled_id: CompiledId,
    pub calls: u64,
    pub units: u64,
    /// The units with a verdict, a reward or a failure.
    pub labelled: u64,
    /// The units with a verdict or a reward.
    pub scored: u64,
    pub score: Option<i64>,
    pub failed: Option<i64>,
    pub cost: LiveCost,
    pub latency_ms: Option<LatencyPart>,
}

/// The cost of a side's calls, in micro-units of the currency.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LiveCost {
    pub currency: Option<Currency>,
    pub total: u64,
    /// Rounded up.
    pub per_call: u64,
}

/// A difference of two means, with the bounds of its 95 % interval and of its look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LiveDelta {
    pub mean: i64,
    pub low: i64,
    pub high: i64,
    pub look_low: i64,
    pub look_high: i64,
}

/// Compares both sides with the random numbers and the bounds of look `k`. `calls` are those of the units.
pub fn live_report(window: &LiveWindow, k: u64, calls: &[LiveCall], units: &[LiveUnit]) -> LiveReport {
    let live_id = window.live_id(k);
    let failed = |side| of_side(units, side).map(LiveUnit::failed).collect::<Vec<Unit>>();
    let scored = |side| of_side(units, side).filter_map(LiveUnit::score).collect::<Vec<Unit>>();
    let side = |side, compiled_id: &CompiledId| live_side(compiled_id, side, calls, units);
    LiveReport {
        signature_id: window.signature_id.clone(),
        audit_id: window.audit_id,
        since: window.since,
        percent: window.percent,
        k,
        canary: side(RolloutSide::Canary, &window.canary),
        primary: side(RolloutSide::Primary, &window.primary),
        score: delta(&live_id, k, &scored(RolloutSide::Canary), &scored(RolloutSide::Primary)),
        failed: delta(&live_id, k, &failed(RolloutSide::Canary), &failed(RolloutSide::Primary)),
        live_id,
    }
}

fn of_side(units: &[LiveUnit], side: RolloutSide) -> impl Iterator<Item = &LiveUnit> {
    units.iter().filter(move |unit| unit.side == side)
}

fn delta(live_id: &str, k: u64, canary: &[Unit], primary: &[Unit]) -> Option<LiveDelta> {
    let resampled = Resampled::unpaired(live_id, canary, primary)?;
    let (Bounds { low, high }, look) = (resampled.interval(), resampled.look(k));
    Some(LiveDelta { mean: mean(canary)? - mean(primary)?, low, high, look_low: look.low, look_high: look.high })
}

fn live_side(compiled_id: &CompiledId, side: RolloutSide, calls: &[LiveCall], units: &[LiveUnit]) -> LiveSide {
    let made: Vec<&LiveCall> = calls.iter().filter(|call| call.side == side).collect();
    let all: Vec<Unit> = of_side(units, side).map(LiveUnit::failed).collect();
    let scored: Vec<Unit> = of_side(units, side).filter_map(LiveUnit::score).collect();
    let total: u64 = made.iter().map(|call| call.captured).fold(0, u64::saturating_add);
    LiveSide {
        compiled_id: compiled_id.clone(),
        calls: made.len() as u64,
        units: all.len() as u64,
        labelled: of_side(units, side).filter(|unit| unit.is_labelled()).count() as u64,
        scored: scored.len() as u64,
        score: mean(&scored),
        failed: mean(&all),
        cost: LiveCost {
            currency: made.iter().find_map(|call| call.currency),
            total,
            per_call: if made.is_empty() { 0 } else { total.div_ceil(made.len() as u64) },
        },
        latency_ms: percentiles(made.iter().map(|call| call.latency_ms).collect()),
    }
}
