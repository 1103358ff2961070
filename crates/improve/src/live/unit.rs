//! The independent parts of what was served.

use std::collections::BTreeMap;

use cantrip::canon::{RunId, Timestamp};
use cantrip_contract::RolloutSide;
use cantrip_ds::stats::{Unit, mean_of_epochs};

use super::LiveCall;

/// The best score, and the share of a unit whose calls all failed.
const ONE: i64 = 1_000_000;

/// The calls of one owner below one root run that one side has served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveUnit {
    pub side: RolloutSide,
    pub owner: String,
    pub root_run: RunId,
    /// The time at which the first of its calls ended.
    pub at: Timestamp,
    /// The share of its calls that failed, in millionths.
    pub failed_micro: i64,
    /// The mean of its verdicts and rewards, in millionths.
    pub score_micro: Option<i64>,
}

impl LiveUnit {
    /// Returns true if something is known about how well the unit was served: a verdict, a reward, or a failure, which
    /// is seen without anybody's word.
    pub fn is_labelled(&self) -> bool {
        self.score_micro.is_some() || self.failed_micro > 0
    }

    /// Returns the unit of the share that failed.
    pub(super) fn failed(&self) -> Unit {
        Unit { weight: 1, weighted: i128::from(self.failed_micro) }
    }

    /// Returns the unit of the score; none without one.
    pub(super) fn score(&self) -> Option<Unit> {
        self.score_micro.map(|score| Unit { weight: 1, weighted: i128::from(score) })
    }
}

/// Returns the units of these calls, ordered by side, owner and root run. The order of the calls does not matter.
pub fn live_units(calls: &[LiveCall]) -> Vec<LiveUnit> {
    let mut units: BTreeMap<(bool, &str, RunId), Vec<&LiveCall>> = BTreeMap::new();
    for call in calls {
        let is_canary = call.side == RolloutSide::Canary;
        units.entry((is_canary, call.owner.as_str(), call.root_run)).or_default().push(call);
    }
    units.into_values().filter_map(|calls| unit_of(&calls)).collect()
}

fn unit_of(calls: &[&LiveCall]) -> Option<LiveUnit> {
    let first = calls.first()?;
    let failed: Vec<i64> = calls.iter().map(|call| if call.has_failed { ONE } else { 0 }).collect();
    let scores: Vec<i64> = calls.iter().filter_map(|call| call.score_micro).collect();
    Some(LiveUnit {
        side: first.side,
        owner: first.owner.clone(),
        root_run: first.root_run,
        at: calls.iter().map(|call| call.completed_at).min()?,
        failed_micro: mean_of_epochs(&failed)?,
        score_micro: mean_of_epochs(&scores),
    })
}
