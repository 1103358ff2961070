//! A dataset: an immutable set of examples with splits, named by its hash.
//!
//! A change makes another dataset. The hash covers the content and the split of every example, so that two people who
//! name the same hash evaluate on the same examples. Names and their versions are rows beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use cantrip_canon::Hash;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use super::split::{PlacedKey, PlacementFault, SplitKey, UnplacedKey, near_form, near_hash, place};
use crate::limits::{DATASET_EXAMPLES_MAX, DATASET_NAME_BYTES_MAX, EXAMPLE_BYTES_MAX};
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
    todo!()
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
    /// Builds a dataset of exactly these examples. `parent` is the version before: examples that stand there keep their
    /// splits.
    pub fn build(
        subject: Subject,
        drafts: Vec<ExampleDraft>,
        policy: &SplitPolicy,
        parent: Option<&Dataset>,
    ) -> Result<BuiltDataset, DatasetFault> {
        todo!()
    }

    /// Builds the next version: the examples of this one but for `without`, and the added ones. An added example
    /// replaces the one with the same id.
    pub fn grow(
        &self,
        added: Vec<ExampleDraft>,
        without: &BTreeSet<ExampleId>,
        policy: &SplitPolicy,
    ) -> Result<BuiltDataset, DatasetFault> {
        todo!()
    }

    /// A dataset from its stored rows. The caller compares its hash with the stored one.
    pub fn from_stored(
        subject: Subject,
        shares: SplitShares,
        seed: SplitSeed,
        mut examples: Vec<Example>,
    ) -> Result<Self, DatasetFault> {
        todo!()
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
        todo!()
    }

    pub fn hash(&self) -> Hash {
        dataset_hash(&self.subject, self.shares, &self.seed, &self.entries())
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

/// The name of a dataset: `[a-z0-9][a-z0-9_-]{0,63}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DatasetName(String);

/// The reason why a text does not name a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DatasetNameFault {
    #[error(
        "{0:?} is not the name of a dataset: a letter or digit, and then a-z, 0-9, _ and -, {DATASET_NAME_BYTES_MAX} \
         at most"
    )]
    Name(String),
    #[error("{0:?} is not a version of a dataset: a number from 1, as in tickets@3")]
    Version(String),
    #[error("{0:?} is not a prefix of a hash: sha256: and 4 to 64 digits of 0-9 and a-f")]
    Hash(String),
}

impl DatasetName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for DatasetName {
    type Err = DatasetNameFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let starts = text.bytes().next().is_some_and(plain);
        let fits = text.bytes().all(|byte| plain(byte) || byte == b'_' || byte == b'-');
        if starts && fits && text.len() <= DATASET_NAME_BYTES_MAX {
            Ok(Self(text.to_owned()))
        } else {
            Err(DatasetNameFault::Name(text.chars().take(80).collect()))
        }
    }
}

/// A dataset as a user names it: `NAME` is the newest version, `NAME@3` that version, `sha256:ef20` any dataset whose
/// hash begins so.
///
/// ```
/// # use cantrip_contract::DatasetRef;
/// assert!(matches!("tickets@3".parse(), Ok(DatasetRef::Version(_, 3))));
/// assert!(matches!("tickets".parse(), Ok(DatasetRef::Newest(_))));
/// assert!(matches!("sha256:ef20b8".parse(), Ok(DatasetRef::HashPrefix(_))));
/// assert!("tickets@03".parse::<DatasetRef>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DatasetRef {
    Newest(DatasetName),
    Version(DatasetName, u64),
    /// The digits of the hash, without `sha256:`.
    HashPrefix(String),
}

impl DatasetRef {
    /// The first digits of a hash that this may be: those after `sha256:`, or a name that consists of digits. A name that
    /// exists goes first.
    pub fn hash_digits(&self) -> Option<&str> {
        todo!()
    }
}

impl fmt::Display for DatasetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest(name) => name.fmt(f),
            Self::Version(name, version) => write!(f, "{name}@{version}"),
            Self::HashPrefix(digits) => write!(f, "sha256:{digits}"),
        }
    }
}

cantrip_canon::string_conversions!(DatasetName);
