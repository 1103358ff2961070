//! How is a signature named? `{namespace}/{name}.v{version}`; a published id is immutable.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::SIGNATURE_ID_BYTES_MAX;

/// The id of a signature.
///
/// ```
/// # use cantrip_contract::SignatureId;
/// let id: SignatureId = "@cantrip/text/Classify.v1".parse().unwrap();
/// assert_eq!((id.namespace(), id.name(), id.version()), ("@cantrip/text", "Classify", 1));
/// assert!("@cantrip/text/Classify.v01".parse::<SignatureId>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SignatureId {
    /// The namespace, a slash and the name.
    path: String,
    /// The length of the namespace in bytes.
    namespace: usize,
    version: u64,
}

/// The reason why a text is not the id of a signature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureIdFault {
    #[error("{0:?} is not the id of a signature: write namespace/Name.v1, as in @cantrip/text/Classify.v1")]
    Form(String),
    #[error("a namespace is words of a-z, 0-9, _ and -, joined by slashes, perhaps with @ before: {0:?}")]
    Namespace(String),
    #[error("the name of a signature is a letter, and then letters, digits and _: {0:?}")]
    Name(String),
    #[error("the version of a signature is a number from 1: {0:?}")]
    Version(String),
    #[error("the id of a signature has at most {SIGNATURE_ID_BYTES_MAX} bytes")]
    Long,
}

impl SignatureId {
    pub fn new(namespace: &str, name: &str, version: u64) -> Result<Self, SignatureIdFault> {
        let words = namespace.strip_prefix('@').unwrap_or(namespace).split('/');
        let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
        let word = |word: &str| {
            word.starts_with(plain) && word.chars().all(|letter| plain(letter) || letter == '_' || letter == '-')
        };
        if !words.into_iter().all(word) {
            return Err(SignatureIdFault::Namespace(namespace.to_owned()));
        }
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if !name.starts_with(|letter: char| letter.is_ascii_alphabetic()) || !name.chars().all(letters) {
            return Err(SignatureIdFault::Name(name.to_owned()));
        }
        if version == 0 {
            return Err(SignatureIdFault::Version(version.to_string()));
        }
        let id = Self { path: format!("{namespace}/{name}"), namespace: namespace.len(), version };
        if id.to_string().len() > SIGNATURE_ID_BYTES_MAX {
            return Err(SignatureIdFault::Long);
        }
        Ok(id)
    }

    pub fn namespace(&self) -> &str {
        &self.path[..self.namespace]
    }

    pub fn name(&self) -> &str {
        &self.path[self.namespace + 1..]
    }

    pub fn version(&self) -> u64 {
        self.version
    }
}

impl fmt::Display for SignatureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.v{}", self.path, self.version)
    }
}

impl FromStr for SignatureId {
    type Err = SignatureIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > SIGNATURE_ID_BYTES_MAX {
            return Err(SignatureIdFault::Long);
        }
        let form = || SignatureIdFault::Form(text.to_owned());
        let (path, version) = text.rsplit_once(".v").ok_or_else(form)?;
        let (namespace, name) = path.rsplit_once('/').ok_or_else(form)?;
        let written = || SignatureIdFault::Version(version.to_owned());
        let number: u64 = version.parse().map_err(|_| written())?;
        // `01` and `+1` are other texts for the same number and would give one signature two ids.
        if number.to_string() != version {
            return Err(written());
        }
        Self::new(namespace, name, number)
    }
}

cantrip_canon::string_conversions!(SignatureId);
