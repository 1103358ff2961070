//! The plan of a backtest: shown before the first call, and kept by the first record of the job.

use std::collections::BTreeMap;

use cantrip::canon::Hash;
use serde::Serialize;

use super::gather::{RecordFilter, SkippedRun};
use super::request::{MissingCalls, SpellSource};
use cantrip_ds::job::CostPlan;

/// The plan of a backtest.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BacktestPlan {
    pub job_hash: Hash,
    pub spell: SpellSource,
    /// The id of the cantrip that is cast.
    pub candidate: String,
    /// The name of its crystal.
    pub crystal: String,
    pub records: RecordFilter,
    /// The number of runs that are cast anew.
    pub runs: u64,
    /// The number of them that were cast from the same cantrip. Their crystal is not asked, so they cost nothing.
    pub unchanged: u64,
    /// The number of runs that are left out, by reason.
    pub skipped: BTreeMap<SkippedRun, u64>,
    /// The metric in words, as in `exact.v1 /label`.
    pub metric: String,
    pub metric_hash: Hash,
    pub missing: MissingCalls,
    /// The model that judges.
    pub judge: Option<String>,
    pub cost: CostPlan,
    /// The smallest difference of scores that will probably show, in millionths.
    pub detectable: Option<u64>,
    pub rerun: u64,
    /// Remarks, each a sentence.
    pub notes: Vec<String>,
}
