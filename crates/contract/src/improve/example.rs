//! What is an example, and which of its parts are hashed?
//!
//! An example is an input, perhaps with the output that is expected of it, and what the evaluation needs beside:
//! labels, a weight, a group. Its content hash covers all of this except for its id, its split and its source. Weights
//! and rewards are integers in millionths, so that no sum of them depends on an order.

use cantrip_canon::Hash;
use cantrip_canon::limits::JSON_INTEGER_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use super::split::{PlacedKey, SplitKey, near_form, near_hash};
use crate::limits::{GROUP_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, WEIGHT_MICRO_MAX};
use crate::{ExampleId, Split, Subject};

const MICRO: i64 = 1_000_000;

/// The JSON number of an amount in millionths, as it is hashed: 1,500,000 is `1.5`.
pub fn micro_number(micro: i64) -> Value {
    if micro % MICRO == 0 { json!(micro / MICRO) } else { json!(micro as f64 / MICRO as f64) }
}

/// The millionths of a number, if it has at most six decimals and stays exact.
///
/// ```
/// # use cantrip_contract::micro_of;
/// assert_eq!((micro_of(0.1), micro_of(-2.0)), (Some(100_000), Some(-2_000_000)));
/// assert_eq!((micro_of(0.000_000_1), micro_of(f64::NAN)), (None, None));
/// ```
pub fn micro_of(number: f64) -> Option<i64> {
    let scaled = (number * MICRO as f64).round();
    if !scaled.is_finite() || scaled.abs() > JSON_INTEGER_MAX as f64 {
        return None;
    }
    let micro = scaled as i64;
    (micro as f64 / MICRO as f64 == number).then_some(micro)
}

/// The weight of an example in the mean: more than 0, at most 1,000, with at most six decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Weight(u64);

/// A number that is not a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a weight is more than 0 and at most 1000, with at most six decimals")]
pub struct WeightFault;

impl Weight {
    pub const ONE: Self = Self(MICRO as u64);

    /// A weight in millionths.
    pub const fn from_micro(micro: u64) -> Result<Self, WeightFault> {
        if micro > 0 && micro <= WEIGHT_MICRO_MAX { Ok(Self(micro)) } else { Err(WeightFault) }
    }

    /// A weight as it is written in a file.
    pub fn from_number(number: f64) -> Result<Self, WeightFault> {
        let micro = micro_of(number).and_then(|micro| u64::try_from(micro).ok()).ok_or(WeightFault)?;
        Self::from_micro(micro)
    }

    /// The weight in millionths.
    pub const fn micro(self) -> u64 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u64> for Weight {
    type Error = WeightFault;

    fn try_from(micro: u64) -> Result<Self, Self::Error> {
        Self::from_micro(micro)
    }
}

impl From<Weight> for u64 {
    fn from(weight: Weight) -> Self {
        weight.0
    }
}

/// The labels of an example or a verdict: words for breakdowns, sorted, each once.
///
/// ```
/// # use cantrip_contract::Labels;
/// let labels = Labels::new(["refund", "angry", "refund"]).unwrap();
/// assert_eq!(labels.as_slice(), ["angry", "refund"]);
/// assert!(Labels::new(["two words"]).is_err());
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Labels(Vec<String>);

/// The reason why words are not labels.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelFault {
    #[error("{0:?} is not a label: a word of 1 to {LABEL_BYTES_MAX} bytes, without spaces and without ;")]
    Form(String),
    #[error("{0} labels, and an example has at most {LABELS_MAX}")]
    Many(usize),
}

impl Labels {
    pub fn new<L: Into<String>>(labels: impl IntoIterator<Item = L>) -> Result<Self, LabelFault> {
        let mut labels: Vec<String> = labels.into_iter().map(Into::into).collect();
        labels.sort();
        labels.dedup();
        if labels.len() > LABELS_MAX {
            return Err(LabelFault::Many(labels.len()));
        }
        let fits = |label: &str| {
            (1..=LABEL_BYTES_MAX).contains(&label.len())
                && !label.chars().any(|letter| letter.is_whitespace() || letter.is_control() || letter == ';')
        };
        match labels.iter().find(|label| !fits(label.as_str())) {
            Some(label) => Err(LabelFault::Form(label.chars().take(80).collect())),
            None => Ok(Self(labels)),
        }
    }

    pub fn as_slice(&self) -> &[String] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, String> {
        self.0.iter()
    }
}

impl TryFrom<Vec<String>> for Labels {
    type Error = LabelFault;

    fn try_from(labels: Vec<String>) -> Result<Self, Self::Error> {
        Self::new(labels)
    }
}

impl From<Labels> for Vec<String> {
    fn from(labels: Labels) -> Self {
        labels.0
    }
}

/// The kind of thing that an example was taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    File,
    Receipt,
    Thread,
}

/// The source of an example. It is not hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExampleSource {
    pub kind: SourceKind,
    /// The name of the file, or the id of the receipt or thread.
    pub id: String,
    /// The line in the file, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
}

/// An example that has no split yet: it was read from a file, a receipt or a thread, and checked against the schemas of
/// its subject.
#[derive(Debug, Clone, PartialEq)]
pub struct ExampleDraft {
    /// The given id; without one it is cut from a hash.
    pub id: Option<ExampleId>,
    pub input: Value,
    pub expected: Option<Value>,
    pub labels: Labels,
    pub weight: Weight,
    /// Examples of one group share a split and are one unit of the statistics. Check it with [`check_group`].
    pub group: Option<String>,
    /// In millionths.
    pub reward: Option<i64>,
    /// The given split.
    pub split: Option<Split>,
    pub source: ExampleSource,
}

/// A text that is not a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a group: 1 to {GROUP_BYTES_MAX} bytes without control characters")]
pub struct GroupFault(String);

/// Checks the name of a group.
pub fn check_group(group: &str) -> Result<(), GroupFault> {
    if (1..=GROUP_BYTES_MAX).contains(&group.len()) && !group.chars().any(char::is_control) {
        Ok(())
    } else {
        Err(GroupFault(group.chars().take(80).collect()))
    }
}

impl ExampleDraft {
    /// A draft with this input and nothing else.
    pub fn new(input: Value, source: ExampleSource) -> Self {
        Self {
            id: None,
            input,
            expected: None,
            labels: Labels::default(),
            weight: Weight::ONE,
            group: None,
            reward: None,
            split: None,
            source,
        }
    }

    /// The given id, or the one that is cut from the hash of input and expected output.
    pub fn id(&self, subject: &Subject) -> ExampleId {
        self.id.clone().unwrap_or_else(|| ExampleId::of(subject, &self.input, self.expected.as_ref()))
    }

    /// The hash of the content: everything but the id, the split and the source.
    pub fn content_hash(&self) -> Hash {
        hashed_content(&HashedContent {
            input: &self.input,
            expected: self.expected.as_ref(),
            labels: &self.labels,
            weight: self.weight,
            group: self.group.as_deref(),
            reward: self.reward,
        })
    }

    /// The example in this split.
    pub fn into_example(self, subject: &Subject, split: Split) -> Example {
        let id = self.id(subject);
        Example {
            id,
            input: self.input,
            expected: self.expected,
            labels: self.labels,
            weight: self.weight,
            group: self.group,
            reward: self.reward,
            split,
            source: self.source,
        }
    }
}

/// The parts of an example that its content hash covers.
struct HashedContent<'a> {
    input: &'a Value,
    expected: Option<&'a Value>,
    labels: &'a Labels,
    weight: Weight,
    group: Option<&'a str>,
    reward: Option<i64>,
}

/// Examples without labels have the hash that they had before there were labels.
fn hashed_content(parts: &HashedContent<'_>) -> Hash {
    let mut content = json!({
        "input": parts.input,
        "expected": parts.expected,
        "reward": parts.reward.map(micro_number),
        "weight": micro_number(parts.weight.micro() as i64),
        "group": parts.group,
    });
    if !parts.labels.is_empty() {
        content["labels"] = json!(parts.labels);
    }
    hash(&content)
}

/// An example of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub id: ExampleId,
    pub input: Value,
    pub expected: Option<Value>,
    pub labels: Labels,
    pub weight: Weight,
    pub group: Option<String>,
    /// In millionths.
    pub reward: Option<i64>,
    pub split: Split,
    pub source: ExampleSource,
}

impl Example {
    /// The draft of this example, for the next version of its dataset.
    pub fn into_draft(self) -> ExampleDraft {
        ExampleDraft {
            id: Some(self.id),
            input: self.input,
            expected: self.expected,
            labels: self.labels,
            weight: self.weight,
            group: self.group,
            reward: self.reward,
            split: Some(self.split),
            source: self.source,
        }
    }

    /// The hash of the input.
    pub fn input_hash(&self) -> Hash {
        hash(&self.input)
    }

    /// The hash of the expected output, if there is one.
    pub fn expected_hash(&self) -> Option<Hash> {
        self.expected.as_ref().map(hash)
    }

    /// The hash of the near form of the input.
    pub fn near_hash(&self) -> Hash {
        near_hash(&near_form(&self.input))
    }

    /// The hash of the content: everything but the id, the split and the source.
    pub fn content_hash(&self) -> Hash {
        hashed_content(&HashedContent {
            input: &self.input,
            expected: self.expected.as_ref(),
            labels: &self.labels,
            weight: self.weight,
            group: self.group.as_deref(),
            reward: self.reward,
        })
    }

    /// The properties that decide about the split of similar examples.
    pub fn placed_key(&self) -> PlacedKey {
        let key = SplitKey { input_hash: self.input_hash(), near_hash: self.near_hash(), group: self.group.clone() };
        PlacedKey { key, split: self.split }
    }
}
