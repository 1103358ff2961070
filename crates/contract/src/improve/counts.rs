//! How many examples were taken, and why were others left out?

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cantrip_canon::Hash;
use serde::{Deserialize, Serialize};

use crate::limits::SPLIT_EXAMPLES_MIN;
use crate::{Example, Split};

/// The reason why something did not become an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The input does not match the schema.
    InputSchema,
    /// The expected output does not match the schema.
    ExpectedSchema,
    /// An example with the same input and the same expected output was taken.
    Duplicate,
    /// Its group and its near form stand in different splits.
    SplitConflict,
    TooLarge,
    /// The receipt is of a call that was not allowed or did not succeed.
    Denied,
    /// The stored input or output is gone.
    NoBody,
    /// A filter of the export leaves it out.
    Filter,
}

impl SkipReason {
    pub const ALL: [Self; 8] = [
        Self::InputSchema,
        Self::ExpectedSchema,
        Self::Duplicate,
        Self::SplitConflict,
        Self::TooLarge,
        Self::Denied,
        Self::NoBody,
        Self::Filter,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InputSchema => "input_schema",
            Self::ExpectedSchema => "expected_schema",
            Self::Duplicate => "duplicate",
            Self::SplitConflict => "split_conflict",
            Self::TooLarge => "too_large",
            Self::Denied => "denied",
            Self::NoBody => "no_body",
            Self::Filter => "filter",
        }
    }
}

/// The numbers of examples per split.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitCounts {
    pub train: u64,
    pub holdout: u64,
    pub test: u64,
}

impl SplitCounts {
    pub const fn of(&self, split: Split) -> u64 {
        match split {
            Split::Train => self.train,
            Split::Holdout => self.holdout,
            Split::Test => self.test,
        }
    }

    fn add(&mut self, split: Split) {
        match split {
            Split::Train => self.train += 1,
            Split::Holdout => self.holdout += 1,
            Split::Test => self.test += 1,
        }
    }
}

/// The counts of a dataset, which its row and every plan show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetCounts {
    /// The number of examples.
    pub taken: u64,
    pub splits: SplitCounts,
    /// The number of examples per label.
    pub labels: BTreeMap<String, u64>,
    /// The number of examples without an expected output.
    pub unlabelled: u64,
    /// The number of inputs with two or more different expected outputs.
    pub contradiction: u64,
    /// The number of values that were replaced by `--redact`.
    pub redacted: u64,
    pub skipped: BTreeMap<SkipReason, u64>,
}

impl DatasetCounts {
    /// The counts of these examples; nothing was skipped.
    pub fn of<'a>(examples: impl IntoIterator<Item = &'a Example>) -> Self {
        let mut counts = Self::default();
        let mut expected: HashMap<Hash, BTreeSet<Hash>> = HashMap::new();
        for example in examples {
            counts.taken += 1;
            counts.splits.add(example.split);
            for label in example.labels.iter() {
                *counts.labels.entry(label.clone()).or_default() += 1;
            }
            match example.expected_hash() {
                Some(hash) => {
                    expected.entry(example.input_hash()).or_default().insert(hash);
                }
                None => counts.unlabelled += 1,
            }
        }
        counts.contradiction = expected.values().filter(|different| different.len() > 1).count() as u64;
        counts
    }

    /// Counts `count` more that were skipped for this reason.
    pub fn skip(&mut self, reason: SkipReason, count: u64) {
        if count > 0 {
            *self.skipped.entry(reason).or_default() += count;
        }
    }

    /// The number that was skipped, for all reasons together.
    pub fn skipped_total(&self) -> u64 {
        self.skipped.values().sum()
    }

    /// Returns the first of holdout and test that has too few examples, with its number of examples.
    pub fn small_split(&self) -> Option<(Split, u64)> {
        let sizes = [(Split::Holdout, self.splits.holdout), (Split::Test, self.splits.test)];
        sizes.into_iter().find(|(_, size)| *size < SPLIT_EXAMPLES_MIN)
    }
}
