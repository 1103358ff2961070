//! How does a user name a dataset, and which version of it?

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::DATASET_NAME_BYTES_MAX;

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
    /// The first digits of a hash that this may be: those after `sha256:`, or a name that consists of digits. A name
    /// that exists goes first.
    pub fn hash_digits(&self) -> Option<&str> {
        match self {
            Self::HashPrefix(digits) => Some(digits),
            Self::Newest(name) => Some(name.as_str()).filter(|digits| are_hash_digits(digits)),
            Self::Version(..) => None,
        }
    }
}

fn are_hash_digits(text: &str) -> bool {
    (4..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

impl FromStr for DatasetRef {
    type Err = DatasetNameFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(digits) = text.strip_prefix("sha256:") {
            return if are_hash_digits(digits) {
                Ok(Self::HashPrefix(digits.to_owned()))
            } else {
                Err(DatasetNameFault::Hash(text.chars().take(80).collect()))
            };
        }
        let Some((name, version)) = text.split_once('@') else { return Ok(Self::Newest(text.parse()?)) };
        let name: DatasetName = name.parse()?;
        match version.parse::<u64>() {
            // `03` and `+3` are other texts for the same number.
            Ok(number) if number > 0 && number.to_string() == version => Ok(Self::Version(name, number)),
            Ok(_) | Err(_) => Err(DatasetNameFault::Version(text.chars().take(80).collect())),
        }
    }
}

impl fmt::Display for DatasetRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newest(name) => fmt::Display::fmt(name, f),
            Self::Version(name, version) => write!(f, "{name}@{version}"),
            Self::HashPrefix(digits) => write!(f, "sha256:{digits}"),
        }
    }
}

cantrip_canon::string_conversions!(DatasetName);
