//! Where is a long text stored? Once, under its hash. A short text is stored in its record.
//!
//! Checkpoints that store everything again with every step grow without bound. Here a record refers to earlier content
//! and never repeats it, so a thread of N turns costs only the bytes that were new in it.

use std::sync::Arc;

use cantrip_canon::{Hash, bytes_hash, json};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::limits::{BODY_BYTES_MAX, INLINE_BYTES_MAX};

/// Bytes with their hash. The hash is computed here, so no body can exist under a wrong hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Body {
    hash: Hash,
    bytes: Arc<[u8]>,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("hash", &self.hash).field("bytes", &self.bytes.len()).finish()
    }
}

impl Body {
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        let bytes = bytes.into();
        if bytes.len() > BODY_BYTES_MAX {
            return Err(Error::TooLarge { what: "a body", bytes: bytes.len() as u64, limit: BODY_BYTES_MAX as u64 });
        }
        Ok(Self { hash: bytes_hash(&bytes), bytes })
    }

    pub fn hash(&self) -> Hash {
        self.hash
    }

    pub fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    pub fn reference(&self) -> BodyRef {
        BodyRef { hash: self.hash, bytes: self.bytes.len() as u64 }
    }
}

/// A reference to a body, as a record holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BodyRef {
    #[serde(rename = "body")]
    pub hash: Hash,
    pub bytes: u64,
}

/// A source of bodies. The returned bytes have the requested hash, or the result is an error.
pub trait Bodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error>;
}

/// A value that is stored in its record if it is short, and as a body if it is long.
///
/// Written as `{"inline": value}` or `{"body": hash, "bytes": n}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RecordValue<T> {
    Inline { inline: T },
    Body(BodyRef),
}

impl<T: Serialize + DeserializeOwned + Clone> RecordValue<T> {
    /// Makes a record value. If its canonical text is longer than [`INLINE_BYTES_MAX`], it is added to the bodies of
    /// the step.
    pub fn new(value: T, bodies: &mut Vec<Body>) -> Result<Self, Error> {
        let long = |text: &str| (text.len() > INLINE_BYTES_MAX).then(|| Body::new(text.as_bytes()));
        let Some(body) = json::with_canonical(&value, long)?.transpose()? else {
            return Ok(Self::Inline { inline: value });
        };
        let reference = body.reference();
        if !bodies.iter().any(|known| known.hash == body.hash) {
            bodies.push(body);
        }
        Ok(Self::Body(reference))
    }

    /// Returns the value, read from `bodies` if it is a body.
    pub fn load(&self, bodies: &(impl Bodies + ?Sized)) -> Result<T, Error> {
        match self {
            Self::Inline { inline } => Ok(inline.clone()),
            Self::Body(reference) => {
                let bytes = bodies.body(&reference.hash)?;
                let value = json::read_bytes(&bytes)?;
                serde_json::from_value(value)
                    .map_err(|source| Error::Misread { what: format!("body {}", reference.hash), source })
            }
        }
    }

    /// Returns the reference to the body, if the value is stored as one.
    pub fn reference(&self) -> Option<BodyRef> {
        match self {
            Self::Inline { .. } => None,
            Self::Body(reference) => Some(*reference),
        }
    }
}
