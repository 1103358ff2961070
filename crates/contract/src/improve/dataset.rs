//! A dataset: an immutable set of examples with splits, named by its hash.
//!
//! A change makes another dataset. The hash covers the content and the split of every example, so that two people who
//! name the same hash evaluate on the same examples. Names and their versions are rows beside it.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use cantrip_canon::json::canonical;
use cantrip_canon::{Hash, bytes_hash};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use super::split::{PlacedKey, PlacementFault, SplitKey, UnplacedKey, check_given, near_form, near_hash, place};
use crate::limits::{DATASET_EXAMPLES_MAX, EXAMPLE_BYTES_MAX};
use crate::{
    DatasetCounts, Example, ExampleDraft, ExampleId, SkipReason, Split, SplitPolicy, SplitSeed, SplitShares, Subject,
};

/// The part of an example that the hash of its dataset covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetEntry {
    pub id: ExampleId,
    pub content_hash: Hash,
    pub split: Split,
}

/// The hash of a dataset with these entries, in any order.
pub fn dataset_hash(subject: &Subject, shares: SplitShares, seed: &SplitSeed, entries: &[DatasetEntry]) -> Hash {
    let mut sorted: Vec<&DatasetEntry> = entries.iter().collect();
    sorted.sort_by(|one, other| one.id.cmp(&other.id));
    let examples: Vec<Value> =
        sorted.into_iter().map(|entry| json!([entry.id, entry.content_hash, entry.split])).collect();
    hash(&json!({
        "v": 1,
        "kind": "dataset",
        "signature_id": subject,
        "split": shares,
        "split_seed": seed,
        "examples": examples,
    }))
}

/// A dataset. Its examples are sorted by id, and no id occurs twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    subject: Subject,
    shares: SplitShares,
    seed: SplitSeed,
    examples: Vec<Example>,
}

/// A dataset that was just built, and its counts. The counts have the reasons that building it found; a caller adds
/// those that it found before.
#[derive(Debug, Clone, PartialEq)]
pub struct BuiltDataset {
    pub dataset: Dataset,
    pub counts: DatasetCounts,
}

/// The reason why examples are not a dataset. A line is that of the source, if it has one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetFault {
    #[error("{0} examples, and a dataset has at most {DATASET_EXAMPLES_MAX}")]
    Many(usize),
    #[error("example {id} has {bytes} bytes, and an example has at most {EXAMPLE_BYTES_MAX}")]
    Large { id: ExampleId, bytes: usize, line: Option<u64> },
    #[error("two different examples have the id {id}")]
    SameId { id: ExampleId, line: Option<u64> },
    #[error("example {id} has no split, and --splits given was asked for")]
    NoSplit { id: ExampleId, line: Option<u64> },
    #[error("the input of example {id} also stands in another split, as example {other}")]
    TwoSplits { id: ExampleId, other: ExampleId, line: Option<u64> },
    #[error("the dataset has no example {0}")]
    Unknown(ExampleId),
}

impl DatasetFault {
    /// The line of the file that the fault is about.
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::Large { line, .. }
            | Self::SameId { line, .. }
            | Self::NoSplit { line, .. }
            | Self::TwoSplits { line, .. } => *line,
            Self::Many(_) | Self::Unknown(_) => None,
        }
    }
}

impl Dataset {
    /// Builds a dataset of exactly these examples. `earlier` are the examples of the versions before: what stands there
    /// keeps its split.
    pub fn build(
        subject: Subject,
        drafts: Vec<ExampleDraft>,
        policy: &SplitPolicy,
        earlier: &[PlacedKey],
    ) -> Result<BuiltDataset, DatasetFault> {
        let drafts: Vec<KeyedDraft> =
            drafts.into_iter().map(|draft| KeyedDraft::new(&subject, draft)).collect::<Result<_, _>>()?;
        let keys: Vec<UnplacedKey> = drafts.iter().map(KeyedDraft::unplaced_key).collect();
        check_given(earlier, &keys, policy).map_err(|fault| placement_fault(fault, &drafts))?;
        let (drafts, duplicates) = without_duplicates(drafts)?;
        if drafts.len() > DATASET_EXAMPLES_MAX {
            return Err(DatasetFault::Many(drafts.len()));
        }
        let keys: Vec<UnplacedKey> = drafts.iter().map(KeyedDraft::unplaced_key).collect();
        let splits = place(earlier, &keys, policy).map_err(|fault| placement_fault(fault, &drafts))?;
        let conflicts = splits.iter().filter(|split| split.is_none()).count() as u64;
        let placed = drafts.into_iter().zip(splits);
        let examples: Vec<Example> =
            placed.filter_map(|(keyed, split)| Some(keyed.draft.into_example(&subject, split?))).collect();
        let mut counts = DatasetCounts::of(&examples);
        counts.skip(SkipReason::Duplicate, duplicates);
        counts.skip(SkipReason::SplitConflict, conflicts);
        let dataset = Self { subject, shares: policy.shares, seed: policy.seed.clone(), examples };
        Ok(BuiltDataset { dataset, counts })
    }

    /// Builds the next version: the examples of this one but for `without`, and the added ones. An added example
    /// replaces the one with the same id. `former` are examples of the versions before this one: an example that was
    /// removed and is added again returns to its split.
    pub fn grow(
        &self,
        added: Vec<ExampleDraft>,
        without: &BTreeSet<ExampleId>,
        policy: &SplitPolicy,
        former: &[PlacedKey],
    ) -> Result<BuiltDataset, DatasetFault> {
        if let Some(unknown) = without.iter().find(|id| self.example(id).is_none()) {
            return Err(DatasetFault::Unknown(unknown.clone()));
        }
        let added: Vec<KeyedDraft> =
            added.into_iter().map(|draft| KeyedDraft::new(&self.subject, draft)).collect::<Result<_, _>>()?;
        let keys: Vec<UnplacedKey> = added.iter().map(KeyedDraft::unplaced_key).collect();
        // The later of two places of an input counts.
        let earlier: Vec<PlacedKey> = former.iter().cloned().chain(self.placed_keys()).collect();
        check_given(&earlier, &keys, policy).map_err(|fault| placement_fault(fault, &added))?;
        // One example of each id is chosen before it is compared with the former one: the same file again must choose
        // the same examples.
        let (added, mut duplicates) = without_duplicates(added)?;
        let (mut news, mut replaced) = (Vec::with_capacity(added.len()), BTreeSet::new());
        for KeyedDraft { id, draft, .. } in added {
            match self.example(&id).filter(|_| !without.contains(&id)) {
                Some(former) if former.content_hash() == draft.content_hash() => duplicates += 1,
                Some(_) => {
                    replaced.insert(id);
                    news.push(draft);
                }
                None => news.push(draft),
            }
        }
        let kept = self.examples.iter().filter(|kept| !without.contains(&kept.id) && !replaced.contains(&kept.id));
        let drafts: Vec<ExampleDraft> = kept.cloned().map(Example::into_draft).chain(news).collect();
        let mut built = Self::build(self.subject.clone(), drafts, policy, &earlier)?;
        built.counts.skip(SkipReason::Duplicate, duplicates);
        Ok(built)
    }

    /// A dataset from its stored rows. The caller compares its hash with the stored one.
    pub fn from_stored(
        subject: Subject,
        shares: SplitShares,
        seed: SplitSeed,
        mut examples: Vec<Example>,
    ) -> Result<Self, DatasetFault> {
        examples.sort_by(|one, other| one.id.cmp(&other.id));
        let twin = examples.windows(2).find(|pair| pair[0].id == pair[1].id);
        let fault = twin.map(|pair| DatasetFault::SameId { id: pair[1].id.clone(), line: pair[1].source.line });
        match fault {
            Some(fault) => Err(fault),
            None => Ok(Self { subject, shares, seed, examples }),
        }
    }

    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    pub fn shares(&self) -> SplitShares {
        self.shares
    }

    pub fn seed(&self) -> &SplitSeed {
        &self.seed
    }

    /// All examples, sorted by id.
    pub fn examples(&self) -> &[Example] {
        &self.examples
    }

    pub fn into_examples(self) -> Vec<Example> {
        self.examples
    }

    pub fn example(&self, id: &ExampleId) -> Option<&Example> {
        let place = self.examples.binary_search_by(|example| example.id.cmp(id)).ok()?;
        self.examples.get(place)
    }

    /// The examples of a split, sorted by id.
    pub fn split(&self, split: Split) -> impl Iterator<Item = &Example> {
        self.examples.iter().filter(move |example| example.split == split)
    }

    /// The parts of the examples that are hashed, sorted by id.
    pub fn entries(&self) -> Vec<DatasetEntry> {
        let entry = |example: &Example| DatasetEntry {
            id: example.id.clone(),
            content_hash: example.content_hash(),
            split: example.split,
        };
        self.examples.iter().map(entry).collect()
    }

    /// The properties of the examples that decide about the splits of the next version.
    pub fn placed_keys(&self) -> Vec<PlacedKey> {
        self.examples.iter().map(Example::placed_key).collect()
    }

    pub fn hash(&self) -> Hash {
        dataset_hash(&self.subject, self.shares, &self.seed, &self.entries())
    }
}

/// A draft with its id and the hashes by which it is compared with others.
struct KeyedDraft {
    id: ExampleId,
    key: SplitKey,
    expected_hash: Option<Hash>,
    draft: ExampleDraft,
}

impl KeyedDraft {
    fn new(subject: &Subject, mut draft: ExampleDraft) -> Result<Self, DatasetFault> {
        let id = draft.id(subject);
        let text = |value: &Value| canonical(value).expect("examples are read strictly");
        let input = text(&draft.input);
        let expected = draft.expected.as_ref().map(text);
        let bytes = input.len() + expected.as_ref().map_or(0, String::len);
        if bytes > EXAMPLE_BYTES_MAX {
            return Err(DatasetFault::Large { id, bytes, line: draft.source.line });
        }
        let key = SplitKey {
            input_hash: bytes_hash(input.as_bytes()),
            near_hash: near_hash(&near_form(&draft.input)),
            group: draft.group.clone(),
        };
        draft.id = Some(id.clone());
        Ok(Self { id, key, expected_hash: expected.map(|text| bytes_hash(text.as_bytes())), draft })
    }

    fn unplaced_key(&self) -> UnplacedKey {
        UnplacedKey { id: self.id.clone(), key: self.key.clone(), split: self.draft.split }
    }

    /// The hashes of input and expected output: examples that share both are duplicates.
    fn content(&self) -> (Hash, Option<Hash>) {
        (self.key.input_hash, self.expected_hash)
    }
}

/// Returns the drafts sorted by id, without those whose input and expected output occurred before, and the number of
/// these.
fn without_duplicates(drafts: Vec<KeyedDraft>) -> Result<(Vec<KeyedDraft>, u64), DatasetFault> {
    let total = drafts.len();
    // Of several drafts with the same id, the order of lines must not decide which one stays.
    let mut ranked: Vec<(Hash, KeyedDraft)> =
        drafts.into_iter().map(|keyed| (keyed.draft.content_hash(), keyed)).collect();
    ranked.sort_by(|(one, first), (other, second)| (&first.id, one).cmp(&(&second.id, other)));
    let mut seen = HashSet::new();
    let mut kept: Vec<KeyedDraft> = Vec::with_capacity(total);
    let mut last: Option<(ExampleId, (Hash, Option<Hash>))> = None;
    for (_, keyed) in ranked {
        let content = keyed.content();
        if let Some((id, former)) = &last
            && *id == keyed.id
            && *former != content
        {
            return Err(DatasetFault::SameId { id: keyed.id, line: keyed.draft.source.line });
        }
        last = Some((keyed.id.clone(), content));
        if seen.insert(content) {
            kept.push(keyed);
        }
    }
    let duplicates = (total - kept.len()) as u64;
    Ok((kept, duplicates))
}

/// Names the example and the line that a fault of the distribution is about.
fn placement_fault(fault: PlacementFault, drafts: &[KeyedDraft]) -> DatasetFault {
    let line = |place: usize| drafts.get(place).and_then(|keyed| keyed.draft.source.line);
    match fault {
        PlacementFault::NoSplit { place, id } => DatasetFault::NoSplit { id, line: line(place) },
        PlacementFault::TwoSplits { places: (_, place), ids: (other, id), .. } => {
            DatasetFault::TwoSplits { id, other, line: line(place) }
        }
    }
}

/// The difference between two datasets, by the ids of examples, each list sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetDiff {
    pub added: Vec<ExampleId>,
    pub removed: Vec<ExampleId>,
    /// Examples with another content or another split.
    pub changed: Vec<ExampleId>,
}

impl DatasetDiff {
    /// Compares the entries of two datasets, in any order.
    pub fn between(before: &[DatasetEntry], after: &[DatasetEntry]) -> Self {
        let parts = |entries: &[DatasetEntry]| -> BTreeMap<ExampleId, (Hash, Split)> {
            entries.iter().map(|entry| (entry.id.clone(), (entry.content_hash, entry.split))).collect()
        };
        let (before, after) = (parts(before), parts(after));
        let mut diff = Self::default();
        for (id, content) in &after {
            match before.get(id) {
                None => diff.added.push(id.clone()),
                Some(former) if former != content => diff.changed.push(id.clone()),
                Some(_) => {}
            }
        }
        diff.removed = before.into_keys().filter(|id| !after.contains_key(id)).collect();
        diff
    }
}
