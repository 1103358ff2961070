//! The versions of datasets in a store.
//!
//! A dataset is immutable and named by its hash. A name has versions, each of which adds to the one before it; the
//! number of a version is decided in the step that writes it, so two processes that add at once get two versions.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;

use cantrip::canon::{Clock, Hash, IdSource};
use cantrip::loom::{
    AnyLoom, AppendOutcome, Conflict, Error, Improvements, Journal, ListPage, PageRequest, Step, StepId,
};
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::{
    BuiltDataset, ContractFault, ContractRow, Dataset, DatasetCounts, DatasetDraft, DatasetEntry, DatasetExampleRow,
    DatasetName, DatasetRef, DatasetRow, DatasetVersionRow, Example, ExampleId, ImproveFault, ImproveRow, PlacedKey,
    Split, SplitKey, SplitSeed, SplitShares, Subject,
};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::ReadExamples;
use super::gather::stored_value;
use super::version::{build, check_size, chunks, example_row, new_bodies};
use crate::limits::{DATASET_NOTE_BYTES_MAX, DATASET_PAGE, DATASET_STEP_BYTES_MAX, VERSION_TRIES_MAX};

/// A dataset that a caller named: `tickets`, `tickets@3`, or a hash or the beginning of one.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedDataset {
    pub row: DatasetRow,
    /// The version, unless the dataset was named by its hash.
    pub version: Option<DatasetVersionRow>,
}

impl NamedDataset {
    pub fn hash(&self) -> Hash {
        self.row.dataset_hash
    }

    /// Returns a short name for people: `tickets@3`, or the beginning of the hash.
    pub fn label(&self) -> String {
        match &self.version {
            Some(version) => format!("{}@{}", version.name, version.version),
            None => format!("sha256:{}", self.row.dataset_hash.hex(12)),
        }
    }
}

/// The way in which new examples get their splits. What is not given stays as the newest version has it.
#[derive(Debug, Clone, Default)]
pub struct SplitRequest {
    pub shares: Option<SplitShares>,
    pub seed: Option<SplitSeed>,
    /// True if every new example has a split of its own.
    pub given: bool,
}

/// A version to be added to a name.
#[derive(Debug)]
pub struct NewVersion {
    pub name: DatasetName,
    pub subject: Subject,
    /// The examples to add to those of the newest version.
    pub examples: ReadExamples,
    /// The examples that the new version lacks.
    pub without: Vec<ExampleId>,
    pub splits: SplitRequest,
    /// The filter of the gathering, or the name of the file. It is stored with the dataset.
    pub filters: Value,
    /// True to accept a holdout or test split of fewer than five examples.
    pub allow_small: bool,
    pub note: Option<String>,
    pub by: String,
}

/// The result of adding a version.
#[derive(Debug, Clone)]
pub struct AddedVersion {
    pub name: DatasetName,
    pub version: u64,
    pub hash: Hash,
    pub counts: DatasetCounts,
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

impl fmt::Debug for DatasetStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatasetStore").finish_non_exhaustive()
    }
}

fn refused(error: Error) -> Refusal {
    store_refusal(&error)
}

/// Returns the refusal for a dataset whose rows do not match its hash.
fn altered(hash: Hash, field: &str) -> Refusal {
    codes::record_altered("dataset", hash.to_string(), field).into()
}

fn unknown(asked: &str) -> Refusal {
    let hint = "cantrip dataset ls lists them; cantrip dataset add NAME FILE --signature SIG makes one";
    codes::contract_unknown("dataset", asked).data(json!({ "hint": hint })).into()
}

impl DatasetStore {
    pub fn new(loom: AnyLoom, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { loom, clock, ids }
    }

    /// Finds the dataset that a text names.
    pub async fn resolve(&self, asked: &str) -> Result<NamedDataset, Refusal> {
        let named: DatasetRef = asked.parse().map_err(|_| unknown(asked))?;
        let version = match &named {
            DatasetRef::Newest(name) => self.newest(name).await?,
            DatasetRef::Version(name, number) => {
                self.loom.dataset_version(name.clone(), Some(*number)).await.map_err(refused)?
            }
            DatasetRef::HashPrefix(_) => None,
        };
        match (version, named.hash_digits()) {
            (Some(version), _) => {
                let row = self.loom.dataset(version.dataset_hash).await.map_err(refused)?;
                Ok(NamedDataset { row, version: Some(version) })
            }
            (None, Some(digits)) => Ok(NamedDataset { row: self.by_digits(asked, digits).await?, version: None }),
            (None, None) => Err(unknown(asked)),
        }
    }

    async fn by_digits(&self, asked: &str, digits: &str) -> Result<DatasetRow, Refusal> {
        let mut found = Vec::new();
        let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
        while let Some(page) = next {
            let listed = self.loom.datasets(page).await.map_err(refused)?;
            found.extend(listed.items.into_iter().filter(|row| row.dataset_hash.hex(64).starts_with(digits)));
            next = page.following(listed.next);
        }
        match (found.pop(), found.len()) {
            (Some(row), 0) => Ok(row),
            (None, _) => Err(unknown(asked)),
            (Some(_), others) => {
                let hint = "several datasets begin with this: give more digits";
                let data = json!({ "matches": others + 1, "hint": hint });
                Err(codes::contract_unknown("dataset", asked).data(data).into())
            }
        }
    }

    /// Returns the versions of a name, oldest first; empty if there is no such name.
    pub async fn versions(&self, name: &DatasetName) -> Result<Vec<DatasetVersionRow>, Refusal> {
        let mut versions = Vec::new();
        let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
        while let Some(page) = next {
            let listed = self.loom.dataset_versions(Some(name.clone()), page).await.map_err(refused)?;
            versions.extend(listed.items);
            next = page.following(listed.next);
        }
        Ok(versions)
    }

    /// Returns the newest version of a name.
    pub async fn newest(&self, name: &DatasetName) -> Result<Option<DatasetVersionRow>, Refusal> {
        self.loom.dataset_version(name.clone(), None).await.map_err(refused)
    }

    /// Loads a dataset with all its examples, and checks that they still have its hash.
    pub async fn load(&self, hash: Hash) -> Result<Dataset, Refusal> {
        let row = self.loom.dataset(hash).await.map_err(refused)?;
        let mut examples = Vec::new();
        let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
        while let Some(page) = next {
            let listed = self.examples(hash, None, page).await?;
            examples.extend(listed.items);
            next = page.following(listed.next);
        }
        let dataset = Dataset::from_stored(row.subject, row.split, row.split_seed, examples);
        let dataset = dataset.map_err(|_| altered(hash, "examples"))?;
        if dataset.hash() == hash { Ok(dataset) } else { Err(altered(hash, "examples")) }
    }

    /// Loads a page of examples, in the order of their ids.
    pub async fn examples(
        &self,
        hash: Hash,
        split: Option<Split>,
        page: PageRequest,
    ) -> Result<ListPage<Example>, Refusal> {
        let listed = self.loom.dataset_examples(hash, split, page).await.map_err(refused)?;
        // Each example is two bodies, which a store with several connections reads at the same time.
        let items = try_join_all(listed.items.into_iter().map(|row| self.example(row))).await?;
        Ok(ListPage { items, next: listed.next })
    }

    /// Returns the ids, hashes and splits of all examples, without reading their content.
    pub async fn entries(&self, hash: Hash) -> Result<Vec<DatasetEntry>, Refusal> {
        let mut entries = Vec::new();
        let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
        while let Some(page) = next {
            let listed = self.loom.dataset_examples(hash, None, page).await.map_err(refused)?;
            entries.extend(listed.items.into_iter().map(|row| DatasetEntry {
                id: row.example_id,
                content_hash: row.content_hash,
                split: row.split,
            }));
            next = page.following(listed.next);
        }
        Ok(entries)
    }

    /// Returns the newest version of every name, ordered by name.
    pub async fn names(&self) -> Result<Vec<DatasetVersionRow>, Refusal> {
        let mut newest: BTreeMap<DatasetName, DatasetVersionRow> = BTreeMap::new();
        let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
        while let Some(page) = next {
            let listed = self.loom.dataset_versions(None, page).await.map_err(refused)?;
            for version in listed.items {
                match newest.get(&version.name) {
                    Some(known) if known.version > version.version => {}
                    Some(_) | None => {
                        newest.insert(version.name.clone(), version);
                    }
                }
            }
            next = page.following(listed.next);
        }
        Ok(newest.into_values().collect())
    }

    /// Returns the row of a dataset.
    pub async fn row(&self, hash: Hash) -> Result<DatasetRow, Refusal> {
        self.loom.dataset(hash).await.map_err(refused)
    }

    async fn example(&self, row: DatasetExampleRow) -> Result<Example, Refusal> {
        let id = row.example_id.to_string();
        let broken = |field: &str| Refusal::from(codes::record_altered("example", id.as_str(), field));
        let input = stored_value(&self.loom, row.input_hash).await?.ok_or_else(|| broken("input"))?;
        let expected = match row.expected_hash {
            Some(hash) => Some(stored_value(&self.loom, hash).await?.ok_or_else(|| broken("expected"))?),
            None => None,
        };
        let example = Example {
            id: row.example_id,
            input,
            expected,
            labels: row.labels,
            weight: row.weight,
            group: row.group_key,
            reward: row.reward_micro,
            split: row.split,
            source: row.source,
        };
        if example.content_hash() == row.content_hash { Ok(example) } else { Err(broken("content_hash")) }
    }

    /// Adds a version: the examples of the newest one, but for those that are left out, and the new ones. The same
    /// content again adds none.
    pub async fn add(&self, new: NewVersion) -> Result<AddedVersion, Refusal> {
        if let Some(note) = new.note.as_ref().filter(|note| note.len() > DATASET_NOTE_BYTES_MAX) {
            return Err(codes::limit("the note", note.len(), DATASET_NOTE_BYTES_MAX).into());
        }
        for _ in 0..VERSION_TRIES_MAX {
            if let Some(added) = self.try_add(&new).await? {
                return Ok(added);
            }
        }
        Err(codes::busy("dataset", new.name.as_str(), "other processes that add versions").into())
    }

    /// Adds a version, unless another process added one meanwhile.
    async fn try_add(&self, new: &NewVersion) -> Result<Option<AddedVersion>, Refusal> {
        let newest = self.newest(&new.name).await?;
        let parent = match &newest {
            Some(version) => Some(self.load(version.dataset_hash).await?),
            None => None,
        };
        let former = self.former_keys(&new.name, newest.as_ref()).await?;
        let BuiltDataset { dataset, mut counts } = build(new, parent.as_ref(), &former)?;
        for (reason, count) in &new.examples.skipped {
            counts.skip(*reason, *count);
        }
        counts.redacted += new.examples.redacted;
        let hash = dataset.hash();
        if let Some(version) = newest.as_ref().filter(|version| version.dataset_hash == hash) {
            let (name, version) = (new.name.clone(), version.version);
            return Ok(Some(AddedVersion { name, version, hash, counts, new: false }));
        }
        check_size(new, &counts)?;
        let number = newest.as_ref().map_or(1, |version| version.version + 1);
        let added = AddedVersion { name: new.name.clone(), version: number, hash, counts, new: true };
        let mut bodies = new_bodies(&dataset, parent.as_ref())?;
        let total: usize = bodies.iter().map(|body| body.bytes().len()).sum();
        if total > DATASET_STEP_BYTES_MAX {
            // Bodies that no row names are harmless, so those of a large dataset are written before it.
            for chunk in chunks(std::mem::take(&mut bodies)) {
                self.write(Step::outside_runs(self.step_id()).bodies(chunk)).await?;
            }
        }
        let now = self.clock.now().wall;
        let row = DatasetRow {
            dataset_hash: hash,
            subject: dataset.subject().clone(),
            split: dataset.shares(),
            split_seed: dataset.seed().clone(),
            filters: new.filters.clone(),
            counts: added.counts.clone(),
            created_at: now,
            created_by: new.by.clone(),
        };
        let examples = dataset.examples().iter().map(|example| example_row(hash, example)).collect();
        let version = DatasetVersionRow {
            name: new.name.clone(),
            version: number,
            dataset_hash: hash,
            parent_hash: newest.as_ref().map(|version| version.dataset_hash),
            note: new.note.clone(),
            at: now,
            by: new.by.clone(),
        };
        let step = Step::outside_runs(self.step_id())
            .contract(ContractRow::Improve(Box::new(ImproveRow::Dataset(Box::new(DatasetDraft { row, examples })))))
            .contract(ContractRow::Improve(Box::new(ImproveRow::DatasetVersion(Box::new(version)))))
            .bodies(bodies);
        if !self.write(step).await? {
            return Ok(None);
        }
        // Another process may have added the same content first.
        match self.newest(&new.name).await? {
            Some(version) if version.dataset_hash == hash => {
                Ok(Some(AddedVersion { version: version.version, ..added }))
            }
            Some(_) | None => Ok(Some(added)),
        }
    }

    /// Stores a dataset without a name, for a job that needs exactly these examples. The same content is stored once.
    pub async fn keep(&self, dataset: &Dataset, filters: Value, by: &str) -> Result<(), Refusal> {
        let hash = dataset.hash();
        match self.loom.dataset(hash).await {
            Ok(_) => return Ok(()),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(refused(error)),
        }
        // Bodies that no row names are harmless, so they are written before it.
        for chunk in chunks(new_bodies(dataset, None)?) {
            self.write(Step::outside_runs(self.step_id()).bodies(chunk)).await?;
        }
        let row = DatasetRow {
            dataset_hash: hash,
            subject: dataset.subject().clone(),
            split: dataset.shares(),
            split_seed: dataset.seed().clone(),
            filters,
            counts: DatasetCounts::of(dataset.examples()),
            created_at: self.clock.now().wall,
            created_by: by.to_owned(),
        };
        let examples = dataset.examples().iter().map(|example| example_row(hash, example)).collect();
        let draft = ImproveRow::Dataset(Box::new(DatasetDraft { row, examples }));
        let step = Step::outside_runs(self.step_id()).contract(ContractRow::Improve(Box::new(draft)));
        self.write(step).await.map(|_| ())
    }

    /// Returns the examples of the versions of a name before the newest one, each input of a group once: an example that
    /// was removed and is added again must return to its split.
    async fn former_keys(
        &self,
        name: &DatasetName,
        newest: Option<&DatasetVersionRow>,
    ) -> Result<Vec<PlacedKey>, Refusal> {
        let mut seen: HashSet<(Hash, Option<String>)> = HashSet::new();
        let mut keys = Vec::new();
        for version in self.versions(name).await? {
            if newest.is_none_or(|newest| version.version >= newest.version) {
                continue;
            }
            let mut next = Some(PageRequest { after: None, most: DATASET_PAGE });
            while let Some(page) = next {
                let listed = self.loom.dataset_examples(version.dataset_hash, None, page).await.map_err(refused)?;
                for row in listed.items {
                    if seen.insert((row.input_hash, row.group_key.clone())) {
                        let DatasetExampleRow { input_hash, near_hash, group_key: group, split, .. } = row;
                        keys.push(PlacedKey { key: SplitKey { input_hash, near_hash, group }, split });
                    }
                }
                next = page.following(listed.next);
            }
        }
        Ok(keys)
    }

    fn step_id(&self) -> StepId {
        let now = self.clock.now().wall;
        StepId::new(format!("dataset-{:032x}", self.ids.next_bits(now))).expect("a short name")
    }

    /// Writes a step. Returns false if another process added a version to the name first.
    async fn write(&self, step: Step) -> Result<bool, Refusal> {
        match self.loom.append(step).await.map_err(refused)? {
            AppendOutcome::Committed(_) => Ok(true),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => {
                let outrun = matches!(*fault, ContractFault::Improve(ImproveFault::Version { .. }));
                if outrun { Ok(false) } else { Err(fault.refusal()) }
            }
            // The step has no money, no lease and a unique id.
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }
}
