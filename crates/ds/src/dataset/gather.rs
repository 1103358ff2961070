//! Examples out of what was recorded: receipts with their bodies and verdicts, or the casts of a spell.

use cantrip::canon::{Redactor, Timestamp};
use cantrip::loom::AnyLoom;
use cantrip::reply::Refusal;
use cantrip_contract::CompiledId;
use serde::Serialize;

use super::{ExampleSchemas, ReadExamples};

/// Selects receipts for a dataset. It is stored with the dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GatherFilter {
    /// Only receipts completed at or after this time.
    pub since: Option<Timestamp>,
    /// Only receipts completed before this time.
    pub until: Option<Timestamp>,
    pub artifact: Option<CompiledId>,
    pub owner: Option<String>,
    /// Only receipts whose latest reward is at least this, in millionths.
    pub min_reward: Option<i64>,
    /// Only receipts that give an expected output.
    pub only_labelled: bool,
    /// The maximum number of examples; the lowest split hashes are taken.
    pub max: Option<usize>,
}

/// Gathers the examples of a subject from the receipts of a store.
pub async fn gather_examples(
    loom: &AnyLoom,
    schemas: &ExampleSchemas,
    filter: &GatherFilter,
    split_seed: &str,
    redactor: Option<&Redactor>,
) -> Result<ReadExamples, Refusal> {
    todo!()
}
