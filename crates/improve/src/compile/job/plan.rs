//! The plan of a compile, which its caller sees before the first call.

use std::collections::BTreeMap;

use cantrip::canon::Hash;
use cantrip_contract::{JobModels, SplitCounts};
use serde::Serialize;
use serde_json::Value;

use crate::eval::{RemovedGate, SpellTexts};
use cantrip_ds::job::CostPlan;

/// The plan of a compile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompilePlan {
    pub job_hash: Hash,
    /// The signature, or `spell:` and the name of a spell.
    pub of: String,
    /// The id of the candidate that the search starts from.
    pub base: String,
    /// `primary`, `canary` or `base`, if the candidate is that; the name of a spell.
    pub base_role: Option<String>,
    /// As in `tickets@3`, or the hash of a dataset without a name.
    pub dataset: String,
    pub counts: SplitCounts,
    /// The number of examples that were left out when the dataset was made, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// The number of inputs with two or more different expected outputs.
    pub contradictions: u64,
    /// The number of examples without an expected output.
    pub unlabelled: u64,
    /// As in `exact.v1 /label`.
    pub metric: String,
    pub metric_hash: Hash,
    pub optimiser: String,
    /// The options of the optimiser, with the defaults filled in.
    pub options: Value,
    /// The number of trials at worst, with the final test.
    pub trials: u64,
    /// The number of proposals at worst.
    pub proposals: u64,
    /// The number of judgements at most.
    pub judgements: u64,
    pub models: JobModels,
    pub cost: CostPlan,
    /// The number of the look that the final test will be.
    pub look: Option<u64>,
    /// The smallest difference that will probably show, in millionths.
    pub detectable: Option<u64>,
    /// The gates that the trials of a spell do not have.
    pub removed: Vec<RemovedGate>,
    /// The gates that the caller allows although they reach the outside.
    pub let_through: Vec<String>,
    /// The spells of the candidates, by the ids of their cantrips.
    pub spells: BTreeMap<String, String>,
    /// The texts of the spell, from which a reader follows the search after the file has changed; none for a signature.
    pub texts: Option<SpellTexts>,
    /// The schema of the spell's answer, if it has one.
    pub answer_schema: Option<Value>,
    /// Further remarks, each a sentence.
    pub notes: Vec<String>,
    pub seed: String,
    pub rerun: u64,
}
