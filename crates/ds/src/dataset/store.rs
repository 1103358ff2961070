//! The versions of datasets in a store.

use std::sync::Arc;

use cantrip::canon::{Clock, Hash, IdSource};
use cantrip::loom::{AnyLoom, ListPage, PageRequest};
use cantrip::reply::Refusal;
use cantrip_contract::{Dataset, DatasetName, Example, Split};
use serde_json::Value;

use super::ReadExamples;

/// A dataset as a caller named it: `tickets`, `tickets@3`, or a hash or the beginning of one.
#[derive(Debug, Clone)]
pub struct DatasetVersion {
    pub hash: Hash,
    /// The name and the version, unless it was named by its hash.
    pub named: Option<(DatasetName, u64)>,
}

/// A version to be added to a name.
#[derive(Debug)]
pub struct NewVersion {
    pub name: DatasetName,
    /// The examples to add to those of the newest version.
    pub examples: ReadExamples,
    /// The ids of examples that the new version lacks.
    pub without: Vec<String>,
    /// The way in which examples without a split get one.
    pub splits: cantrip_contract::SplitRule,
    /// The filter of the gathering, or the name of the file; stored with the dataset.
    pub filters: Value,
    pub allow_small: bool,
    pub note: Option<String>,
    pub by: String,
}

/// The result of adding a version.
#[derive(Debug, Clone)]
pub struct AddedVersion {
    pub name: DatasetName,
    pub version: u64,
    pub dataset: Arc<Dataset>,
    /// False if the newest version has this content already.
    pub new: bool,
}

/// The datasets of a store. Cheap to clone; all clones are the same.
#[derive(Clone)]
pub struct DatasetStore {
    loom: AnyLoom,
    clock: Arc<dyn Clock>,
    ids: Arc<IdSource>,
}

impl DatasetStore {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Finds the dataset that a text names.
    pub async fn resolve(&self, asked: &str) -> Result<DatasetVersion, Refusal> {
        todo!()
    }

    /// Loads a dataset with all its examples, and checks that they still have its hash.
    pub async fn load(&self, hash: Hash) -> Result<Dataset, Refusal> {
        todo!()
    }

    /// Loads a page of examples, in the order of their ids.
    pub async fn examples(
        &self,
        hash: Hash,
        split: Option<Split>,
        page: PageRequest,
    ) -> Result<ListPage<Example>, Refusal> {
        todo!()
    }

    /// Adds a version. The same content again adds none.
    pub async fn add(&self, new: NewVersion) -> Result<AddedVersion, Refusal> {
        todo!()
    }
}
