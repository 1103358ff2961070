//! Which split does an example belong to?
//!
//! The first rule that holds decides:
//!
//! 1. The same input stands in an earlier version: its split there.
//! 2. An example of the same group, or with the same near form, stands in an earlier version, or earlier by id in this
//!    one: that split. If these examples stand in different splits, the example is left out.
//! 3. The split was given, and the policy asks for given splits.
//! 4. The bucket of a hash over the group, or over the hash of the input.
//!
//! So a dataset can grow for ever: no example moves, and no input stands in two splits. A random draw was turned down,
//! because every new version would draw again; the id of an example as the key of the bucket too, because two ids with
//! one input could then stand in different splits.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use cantrip_canon::json::canonical;
use cantrip_canon::{Hash, bytes_hash};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ExampleId;
use crate::limits::SPLIT_SEED_BYTES_MAX;

/// A part of a dataset: for learning, for choosing among candidates, or for the final test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    Train,
    Holdout,
    Test,
}

/// A text that does not name a split.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a split: train, holdout or test")]
pub struct SplitFault(String);

impl Split {
    pub const ALL: [Self; 3] = [Self::Train, Self::Holdout, Self::Test];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Holdout => "holdout",
            Self::Test => "test",
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Split {
    type Err = SplitFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|known| known.as_str() == text);
        known.ok_or_else(|| SplitFault(text.chars().take(80).collect()))
    }
}

/// The percentages of the splits. They add up to 100.
///
/// ```
/// # use cantrip_contract::{Split, SplitShares};
/// let shares = SplitShares::default();
/// assert_eq!((shares.train(), shares.holdout(), shares.test()), (60, 20, 20));
/// assert_eq!(shares.split_of(60), Split::Holdout);
/// assert!(SplitShares::new(60, 20, 21).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SharesForm", into = "SharesForm")]
pub struct SplitShares {
    train: u8,
    holdout: u8,
    test: u8,
}

/// Percentages before the check that they add up to 100.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharesForm {
    train: u8,
    holdout: u8,
    test: u8,
}

/// The reason why a split policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SplitPolicyFault {
    #[error("the percentages {train}, {holdout} and {test} do not add up to 100")]
    Sum { train: u8, holdout: u8, test: u8 },
    #[error("{0:?} is not a seed: at most {SPLIT_SEED_BYTES_MAX} bytes without | and without control characters")]
    Seed(String),
}

impl SplitShares {
    pub fn new(train: u8, holdout: u8, test: u8) -> Result<Self, SplitPolicyFault> {
        match u16::from(train) + u16::from(holdout) + u16::from(test) {
            100 => Ok(Self { train, holdout, test }),
            _ => Err(SplitPolicyFault::Sum { train, holdout, test }),
        }
    }

    pub const fn train(self) -> u8 {
        self.train
    }

    pub const fn holdout(self) -> u8 {
        self.holdout
    }

    pub const fn test(self) -> u8 {
        self.test
    }

    /// The split of a bucket from 0 to 99.
    pub const fn split_of(self, bucket: u8) -> Split {
        if bucket < self.train {
            Split::Train
        } else if bucket < self.train + self.holdout {
            Split::Holdout
        } else {
            Split::Test
        }
    }
}

impl Default for SplitShares {
    fn default() -> Self {
        Self { train: 60, holdout: 20, test: 20 }
    }
}

impl TryFrom<SharesForm> for SplitShares {
    type Error = SplitPolicyFault;

    fn try_from(form: SharesForm) -> Result<Self, Self::Error> {
        Self::new(form.train, form.holdout, form.test)
    }
}

impl From<SplitShares> for SharesForm {
    fn from(shares: SplitShares) -> Self {
        Self { train: shares.train, holdout: shares.holdout, test: shares.test }
    }
}

/// The seed of the buckets: a text without `|`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SplitSeed(String);

impl SplitSeed {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The bucket of a key, from 0 to 99.
    ///
    /// ```
    /// # use cantrip_contract::SplitSeed;
    /// let seed: SplitSeed = "seed_dataset".parse().unwrap();
    /// assert_eq!((seed.bucket("pred_1"), seed.bucket("pred_10")), (94, 2));
    /// ```
    pub fn bucket(&self, key: &str) -> u8 {
        let hash = bytes_hash(format!("{}|{key}", self.0).as_bytes());
        let [first, second, third, fourth, ..] = *hash.as_bytes();
        (u32::from_be_bytes([first, second, third, fourth]) % 100) as u8
    }
}

impl Default for SplitSeed {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

impl fmt::Display for SplitSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for SplitSeed {
    type Err = SplitPolicyFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = |letter: char| letter != '|' && !letter.is_control();
        if text.len() <= SPLIT_SEED_BYTES_MAX && text.chars().all(fits) {
            Ok(Self(text.to_owned()))
        } else {
            Err(SplitPolicyFault::Seed(text.chars().take(80).collect()))
        }
    }
}

cantrip_canon::string_conversions!(SplitSeed);

/// The way in which new examples are distributed over the splits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SplitPolicy {
    pub shares: SplitShares,
    pub seed: SplitSeed,
    /// True if every new example has a split of its own (`--splits given`).
    pub given: bool,
}

/// The properties of an example that decide about its split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitKey {
    pub input_hash: Hash,
    /// The hash of the near form of the input.
    pub near_hash: Hash,
    pub group: Option<String>,
}

/// An example of an earlier version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedKey {
    pub key: SplitKey,
    pub split: Split,
}

/// An example that is to be placed. Its split is the given one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnplacedKey {
    pub id: ExampleId,
    pub key: SplitKey,
    pub split: Option<Split>,
}

/// The reason why examples cannot be distributed. Places are indexes into the list of new examples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementFault {
    #[error("example {id} has no split, and --splits given was asked for")]
    NoSplit { place: usize, id: ExampleId },
    #[error("the same input stands in {} and in {}: examples {} and {}", .splits.0, .splits.1, .ids.0, .ids.1)]
    TwoSplits { places: (usize, usize), ids: (ExampleId, ExampleId), splits: (Split, Split) },
}

/// The near form of an input, in which inputs that differ only in case, spaces and punctuation are equal: its strings,
/// numbers and booleans in canonical order, in lower case, with one space between words.
///
/// ```
/// # use cantrip_contract::near_form;
/// # use serde_json::json;
/// assert_eq!(near_form(&json!({"b": "Hello,  World!", "a": [1.0, true, null]})), "1 true hello world");
/// assert_eq!(near_form(&json!({"text": "?!"})), "");
/// ```
pub fn near_form(input: &Value) -> String {
    let mut leaves = String::new();
    push_leaves(input, &mut leaves);
    let lower = leaves.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<&str>>().join(" ")
}

/// Appends the texts of the scalar leaves in canonical order, each with a line feed behind it. A null has no text.
fn push_leaves(value: &Value, leaves: &mut String) {
    match value {
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) => {
            leaves.push_str(&canonical(value).unwrap_or_else(|_| value.to_string()));
            leaves.push('\n');
        }
        Value::String(text) => {
            leaves.push_str(text);
            leaves.push('\n');
        }
        Value::Array(items) => items.iter().for_each(|item| push_leaves(item, leaves)),
        Value::Object(fields) => {
            let mut sorted: Vec<(&String, &Value)> = fields.iter().collect();
            sorted.sort_by(|(one, _), (other, _)| one.encode_utf16().cmp(other.encode_utf16()));
            sorted.into_iter().for_each(|(_, field)| push_leaves(field, leaves));
        }
    }
}

/// The hash of the UTF-8 of a near form.
pub fn near_hash(near: &str) -> Hash {
    bytes_hash(near.as_bytes())
}

/// A property that examples can share; those that share it belong in one split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Likeness<'a> {
    Near(Hash),
    /// Stands for the near form where that is empty: all inputs without a word have the same one.
    Input(Hash),
    Group(&'a str),
}

impl SplitKey {
    fn likenesses(&self) -> impl Iterator<Item = Likeness<'_>> {
        let content = if self.near_hash == near_hash("") {
            Likeness::Input(self.input_hash)
        } else {
            Likeness::Near(self.near_hash)
        };
        std::iter::once(content).chain(self.group.as_deref().map(Likeness::Group))
    }

    /// The text that the bucket is computed from.
    fn bucket_key(&self) -> String {
        self.group.clone().unwrap_or_else(|| self.input_hash.to_string())
    }
}

/// The split of the examples that share a property.
#[derive(Debug, Clone, Copy)]
enum Place {
    In(Split),
    /// They stand in more than one split, because the group of an example was changed.
    Several,
}

impl Place {
    fn joined(self, other: Self) -> Self {
        match (self, other) {
            (Self::In(one), Self::In(another)) if one == another => self,
            (Self::In(_) | Self::Several, Self::In(_) | Self::Several) => Self::Several,
        }
    }
}

/// The splits of the properties of all examples that were placed so far.
#[derive(Default)]
struct Places<'a>(HashMap<Likeness<'a>, Place>);

impl<'a> Places<'a> {
    fn insert(&mut self, key: &'a SplitKey, split: Split) {
        for likeness in key.likenesses() {
            let place = self.0.entry(likeness).or_insert(Place::In(split));
            *place = place.joined(Place::In(split));
        }
    }

    /// Returns the place of the examples that are like this one, if there are any.
    fn find(&self, key: &SplitKey) -> Option<Place> {
        key.likenesses().filter_map(|likeness| self.0.get(&likeness).copied()).reduce(Place::joined)
    }
}

/// Refuses new examples that have no split, or whose input was given in two splits, if the policy asks for given
/// splits. An input that stands in an earlier version keeps its split, whatever was given.
pub(super) fn check_given(
    earlier: &[PlacedKey],
    new: &[UnplacedKey],
    policy: &SplitPolicy,
) -> Result<(), PlacementFault> {
    if !policy.given {
        return Ok(());
    }
    let kept: HashSet<Hash> = earlier.iter().map(|placed| placed.key.input_hash).collect();
    let mut given: HashMap<Hash, (usize, Split)> = HashMap::new();
    for (place, example) in new.iter().enumerate() {
        let Some(split) = example.split else {
            return Err(PlacementFault::NoSplit { place, id: example.id.clone() });
        };
        if kept.contains(&example.key.input_hash) {
            continue;
        }
        let (first, before) = *given.entry(example.key.input_hash).or_insert((place, split));
        if before != split {
            let ids = (new[first].id.clone(), example.id.clone());
            return Err(PlacementFault::TwoSplits { places: (first, place), ids, splits: (before, split) });
        }
    }
    Ok(())
}

/// Distributes new examples over the splits. The result has one entry for each new example, in the order of the list:
/// its split, or none if it is left out because the examples that are like it stand in different splits.
pub fn place(
    earlier: &[PlacedKey],
    new: &[UnplacedKey],
    policy: &SplitPolicy,
) -> Result<Vec<Option<Split>>, PlacementFault> {
    check_given(earlier, new, policy)?;
    let inputs: HashMap<Hash, Split> = earlier.iter().map(|placed| (placed.key.input_hash, placed.split)).collect();
    let mut places = Places::default();
    for placed in earlier {
        places.insert(&placed.key, placed.split);
    }
    let mut order: Vec<usize> = (0..new.len()).collect();
    order.sort_by(|one, other| new[*one].id.cmp(&new[*other].id));
    let mut splits = vec![None; new.len()];
    for index in order {
        let example = &new[index];
        let split = match (inputs.get(&example.key.input_hash), places.find(&example.key)) {
            (Some(split), _) => Some(*split),
            (None, Some(Place::In(split))) => Some(split),
            (None, Some(Place::Several)) => None,
            (None, None) => match example.split {
                Some(split) if policy.given => Some(split),
                Some(_) | None => Some(policy.shares.split_of(policy.seed.bucket(&example.key.bucket_key()))),
            },
        };
        if let Some(split) = split {
            places.insert(&example.key, split);
        }
        splits[index] = split;
    }
    Ok(splits)
}
