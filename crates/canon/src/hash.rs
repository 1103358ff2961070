//! Which bytes does a hash cover? SHA-256 over the canonical text of a value, or over raw bytes. The text of a hash
//! names its algorithm: `sha256:` and 64 lower-case digits.
//!
//! A hash is a type and not a string, so that a hash from outside is parsed once, at the edge, and two hashes can only
//! be compared whole. There is no second algorithm to choose: a prefix that is not `sha256:` is refused, not guessed.

use std::fmt;
use std::str::FromStr;

use ring::digest::{Context, SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::from_str_visitor::FromStrVisitor;
use crate::json::{WriteFault, canonical, with_canonical};

const PREFIX: &str = "sha256:";
const BYTES: usize = 32;
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A SHA-256 hash.
///
/// ```
/// use cantrip_canon::{Hash, stable_hash};
///
/// let hash = stable_hash(&serde_json::json!({})).unwrap();
/// let text = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
/// assert_eq!(hash.to_string(), text);
/// assert_eq!(text.parse::<Hash>().unwrap(), hash);
/// assert_eq!(hash.hex(32), "44136fa355b3678a1146ad16f7e8649e");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; BYTES]);

/// The reason why a text is not a [`Hash`](struct@Hash).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HashFault {
    #[error("{0:?} is not a hash: sha256: and 64 digits of 0-9 and a-f")]
    Form(String),
}

/// The hash of a value: SHA-256 over its canonical text.
///
/// ```
/// use cantrip_canon::{json, stable_hash};
///
/// let one = json::read(r#"{"a": 1, "b": [2]}"#).unwrap();
/// let same = json::read(r#"{"b":[2.0],"a":1}"#).unwrap();
/// assert_eq!(stable_hash(&one), stable_hash(&same));
/// ```
pub fn stable_hash(value: &Value) -> Result<Hash, WriteFault> {
    Ok(bytes_hash(canonical(value)?.as_bytes()))
}

/// The [`stable_hash`] of a typed value, computed without building its JSON tree.
///
/// ```
/// use cantrip_canon::{stable_hash, stable_hash_of};
///
/// assert_eq!(stable_hash_of(&(1, "x")), stable_hash(&serde_json::json!([1, "x"])));
/// ```
pub fn stable_hash_of<T: Serialize + ?Sized>(value: &T) -> Result<Hash, WriteFault> {
    with_canonical(value, |text| bytes_hash(text.as_bytes()))
}

/// The hash of bytes as they are. For JSON that is stored as its canonical text this is its [`stable_hash`].
///
/// ```
/// use cantrip_canon::{bytes_hash, stable_hash};
///
/// assert_eq!(bytes_hash(b"null"), stable_hash(&serde_json::Value::Null).unwrap());
/// ```
pub fn bytes_hash(bytes: &[u8]) -> Hash {
    let hash = digest(&SHA256, bytes);
    Hash(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// The hash of two byte strings one after the other, without concatenating them.
///
/// ```
/// use cantrip_canon::{bytes_hash, linked_hash};
///
/// assert_eq!(linked_hash(b"one", b"other"), bytes_hash(b"oneother"));
/// ```
pub fn linked_hash(bytes: &[u8], behind: &[u8]) -> Hash {
    let mut hash = Context::new(&SHA256);
    hash.update(bytes);
    hash.update(behind);
    Hash(hash.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

impl Hash {
    /// Makes a hash from 32 stored bytes.
    pub const fn from_bytes(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// The first `digits` hexadecimal digits, at most all 64, without `sha256:`. For ids that are cut from a hash; the
    /// whole hash is stored beside them.
    pub fn hex(&self, digits: usize) -> String {
        let nibbles = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        nibbles.take(digits).map(|nibble| char::from(DIGITS[usize::from(nibble)])).collect()
    }
}

/// Calls `read` with the text of a hash, which is built on the stack.
fn with_text<R>(hash: &Hash, read: impl FnOnce(&str) -> R) -> R {
    let mut text = [0; PREFIX.len() + 2 * BYTES];
    text[..PREFIX.len()].copy_from_slice(PREFIX.as_bytes());
    for (pair, byte) in text[PREFIX.len()..].chunks_exact_mut(2).zip(&hash.0) {
        pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
    read(std::str::from_utf8(&text).expect("a prefix and digits"))
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_text(self, |text| f.write_str(text))
    }
}

crate::debug_as_text!(Hash);

impl FromStr for Hash {
    type Err = HashFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || HashFault::Form(text.chars().take(80).collect());
        let digits = text.strip_prefix(PREFIX).ok_or_else(form)?.as_bytes();
        if digits.len() != 2 * BYTES {
            return Err(form());
        }
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Ok(digit - b'0'),
            b'a'..=b'f' => Ok(digit - b'a' + 10),
            _ => Err(form()),
        };
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Hash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        with_text(self, |text| serializer.serialize_str(text))
    }
}

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(FromStrVisitor::new())
    }
}
