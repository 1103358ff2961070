//! One look at a canary, as a function of its calls.

use std::collections::HashSet;

use cantrip::canon::{AuditId, RunId, Timestamp};
use cantrip_contract::{CompiledId, GuardAction, RolloutSide, SignatureId};
use cantrip_ds::stats::is_spent;
use serde::Serialize;

use crate::limits::{GUARD_FIRST_UNITS, GUARD_UNITS_MIN};
use crate::live::{LiveCall, LiveReport, LiveUnit, LiveWindow, live_report};

/// The number in which a canary is worse than its primary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Worse {
    Score,
    Failed,
}

/// One look at a canary.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuardLook {
    /// The comparison of the units that the look takes.
    pub report: LiveReport,
    /// None if the canary is not worse by more than the margin.
    pub worse: Option<Worse>,
    pub margin_micro: u64,
}

/// A canary that was found worse.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GuardEvent {
    /// The name of the event, [`GuardEvent::WORSE`].
    pub event: &'static str,
    pub signature_id: SignatureId,
    pub live_id: String,
    pub k: u64,
    pub canary: CompiledId,
    pub primary: CompiledId,
    pub worse: Worse,
    /// The numbers, in words.
    pub reason: String,
    pub action: GuardAction,
    /// The audit of the removal, if the guard removed the canary.
    pub audit_id: Option<AuditId>,
    pub at: Timestamp,
}

impl GuardEvent {
    /// The name of the event of a canary that is worse.
    pub const WORSE: &'static str = "guard.worse";
}

/// Returns the number of labelled units of the canary at which look `k` is made, counted from 1.
pub fn units_of_look(k: u64) -> u64 {
    let doublings = u32::try_from(k.saturating_sub(1)).unwrap_or(u32::MAX);
    GUARD_FIRST_UNITS.saturating_mul(2_u64.checked_pow(doublings).unwrap_or(u64::MAX))
}

/// Makes look `k`; none if the canary has too few labelled units for it, or if no look is left.
pub fn look_at_units(
    window: &LiveWindow,
    k: u64,
    calls: &[LiveCall],
    units: &[LiveUnit],
    margin_micro: u64,
) -> Option<GuardLook> {
    if k == 0 || is_spent(k) {
        return None;
    }
    let mut canary: Vec<&LiveUnit> = units.iter().filter(|unit| unit.side == RolloutSide::Canary).collect();
    canary.sort_by_key(|unit| place(unit));
    let wanted = usize::try_from(units_of_look(k)).ok()?;
    let last = canary.into_iter().filter(|unit| unit.is_labelled()).nth(wanted - 1)?;
    let end = place(last);
    let taken: Vec<LiveUnit> = units.iter().filter(|unit| place(unit) <= end).cloned().collect();
    let names: HashSet<(bool, &str, RunId)> =
        taken.iter().map(|unit| (unit.side == RolloutSide::Canary, unit.owner.as_str(), unit.root_run)).collect();
    let is_taken =
        |call: &&LiveCall| names.contains(&(call.side == RolloutSide::Canary, call.owner.as_str(), call.root_run));
    let calls: Vec<LiveCall> = calls.iter().filter(is_taken).cloned().collect();
    let report = live_report(window, k, &calls, &taken);
    let worse = worse(&report, margin_micro);
    Some(GuardLook { report, worse, margin_micro })
}

/// The place of a unit in time. Units of the same moment are ordered by name.
fn place(unit: &LiveUnit) -> (Timestamp, &str, RunId) {
    (unit.at, unit.owner.as_str(), unit.root_run)
}

fn worse(report: &LiveReport, margin_micro: u64) -> Option<Worse> {
    let margin = i64::try_from(margin_micro).unwrap_or(i64::MAX);
    let (canary, primary) = (&report.canary, &report.primary);
    // A handful of units leaves the bootstrap no doubt, and it should.
    let are_scored = canary.scored.min(primary.scored) >= GUARD_UNITS_MIN;
    let are_served = canary.units.min(primary.units) >= GUARD_UNITS_MIN;
    if are_scored && report.score.is_some_and(|delta| delta.look_high < -margin) {
        Some(Worse::Score)
    } else if are_served && report.failed.is_some_and(|delta| delta.look_low > margin) {
        Some(Worse::Failed)
    } else {
        None
    }
}

impl GuardLook {
    /// Returns the number of the look.
    pub fn k(&self) -> u64 {
        self.report.k
    }

    /// Returns the numbers of a canary that is worse, in words; none if it is not.
    pub fn reason(&self) -> Option<String> {
        let (canary, primary) = (&self.report.canary, &self.report.primary);
        let margin = i64::try_from(self.margin_micro).unwrap_or(i64::MAX);
        let (what, means, units, delta) = match self.worse? {
            Worse::Score => {
                ("score", (canary.score?, primary.score?), (canary.scored, primary.scored), self.report.score?)
            }
            Worse::Failed => {
                ("share failed", (canary.failed?, primary.failed?), (canary.units, primary.units), self.report.failed?)
            }
        };
        let sides =
            format!("{what} {} of {} units beside {} of {}", decimal(means.0), units.0, decimal(means.1), units.1);
        let bounds = format!("{} .. {}", decimal(delta.look_low), decimal(delta.look_high));
        let (k, live_id, mean, margin) = (self.k(), &self.report.live_id, decimal(delta.mean), decimal(margin));
        Some(format!("look {k} ({live_id}): {sides}, difference {mean}, bounds {bounds}, margin {margin}"))
    }

    /// Returns the event of a canary that is worse; none if it is not.
    pub(super) fn event(&self, action: GuardAction, audit_id: Option<AuditId>, at: Timestamp) -> Option<GuardEvent> {
        Some(GuardEvent {
            event: GuardEvent::WORSE,
            signature_id: self.report.signature_id.clone(),
            live_id: self.report.live_id.clone(),
            k: self.k(),
            canary: self.report.canary.compiled_id.clone(),
            primary: self.report.primary.compiled_id.clone(),
            worse: self.worse?,
            reason: self.reason()?,
            action,
            audit_id,
            at,
        })
    }
}

/// Returns millionths as a number with three decimals.
fn decimal(micro: i64) -> String {
    format!("{:.3}", micro as f64 / 1e6)
}
