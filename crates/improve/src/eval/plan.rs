//! The plan of an evaluation, which its caller sees before the first call.

use std::collections::BTreeMap;

use cantrip::canon::Hash;
use cantrip_contract::{EvalId, ModelsPart, Split, SplitCounts};
use serde::Serialize;

use super::spells::RemovedGate;
use cantrip_ds::job::CostPlan;

/// The plan of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalPlan {
    pub job_hash: Hash,
    pub eval_id: EvalId,
    /// The id of the candidate: an artifact, or the cantrip of a spell.
    pub subject: String,
    /// `primary`, `canary` or `base`, if the candidate is that; the name of a spell.
    pub subject_role: Option<String>,
    /// The signature, or `spell:` and the name of a spell.
    pub of: String,
    pub baseline: Option<String>,
    pub baseline_role: Option<String>,
    /// As in `tickets@3`, or the hash of a dataset without a name.
    pub dataset: String,
    pub counts: SplitCounts,
    pub split: Split,
    /// The number of examples of the split.
    pub examples: u64,
    /// The number of examples that were left out when the dataset was made, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// The number of inputs with two or more different expected outputs.
    pub contradictions: u64,
    /// The number of examples without an expected output.
    pub unlabelled: u64,
    /// As in `exact.v1 /label`.
    pub metric: String,
    pub metric_hash: Hash,
    pub models: ModelsPart,
    pub epochs: u64,
    /// The number of trials of both sides.
    pub trials: u64,
    /// The number of judgements at most.
    pub judgements: u64,
    pub cost: CostPlan,
    /// The number of the look; none on other splits than test, and without a baseline.
    pub look: Option<u64>,
    /// The smallest difference that will probably show, in millionths; none without a baseline.
    pub detectable: Option<u64>,
    /// The gates that the trials of a spell do not have.
    pub removed: Vec<RemovedGate>,
    /// The gates that the caller allows although they reach the outside.
    pub let_through: Vec<String>,
    /// The spells of the candidates, by their ids.
    pub spells: BTreeMap<String, String>,
    /// Further remarks, each a sentence.
    pub notes: Vec<String>,
    pub seed: String,
    pub rerun: u64,
}
