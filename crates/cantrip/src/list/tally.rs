//! What is known of the list without reading it again: its hash, its size, and whether results follow their calls.

use cantrip_canon::{Hash, bytes_hash, json};
use cantrip_loom::Message;

use super::{Measure, Pairing};

#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Over the hash so far and the canonical text of the next message; so it is taken up from 32 bytes at any place.
    pub(super) digest: Hash,
    pub(super) bytes: u64,
    pub(super) tokens: f64,
    pub(super) pairing: Pairing,
}

impl Default for Tally {
    fn default() -> Self {
        Self { digest: bytes_hash(b""), bytes: 0, tokens: 0.0, pairing: Pairing::default() }
    }
}

impl Tally {
    pub(super) fn take(&mut self, message: &Message, measure: &Measure) {
        let text = written(message);
        let mut linked = Vec::with_capacity(32 + text.len());
        linked.extend_from_slice(self.digest.as_bytes());
        linked.extend_from_slice(text.as_bytes());
        self.digest = bytes_hash(&linked);
        self.bytes += text.len() as u64;
        self.tokens += measure.tokens(message);
        self.pairing.take(message);
    }
}

/// The canonical text of a message. What came from a record has one; the rest is hashed as it is written, since a list
/// that cannot be hashed is still sent.
fn written(message: &Message) -> String {
    json::canonical_of(message).unwrap_or_else(|_| serde_json::to_string(message).unwrap_or_default())
}
