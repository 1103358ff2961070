//! What changed between two datasets?

use cantrip_contract::Dataset;
use serde::Serialize;

/// The ids of the examples that differ between two datasets, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DatasetDiff {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    /// The examples whose content or split differs.
    pub changed: Vec<String>,
}

impl DatasetDiff {
    pub fn between(before: &Dataset, after: &Dataset) -> Self {
        todo!()
    }
}
