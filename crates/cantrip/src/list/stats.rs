//! What is known of the list without reading it again: its hash, its size, and whether results follow their calls.

use cantrip_canon::{Hash, bytes_hash, json, linked_hash};
use cantrip_loom::Message;

use super::{PairingCheck, TokenEstimator};

#[derive(Debug, Clone)]
pub(super) struct ListStats {
    /// Over the hash so far and the canonical text of the next message; so it is taken up from 32 bytes at any place.
    pub(super) digest: Hash,
    /// The same over the list as it was told before what providers sign came back to them; none while it is the same.
    /// Threads that were recorded then have it, and are to be replayed as they were.
    pub(super) former: Option<Hash>,
    pub(super) bytes: u64,
    pub(super) tokens: f64,
    pub(super) pairing: PairingCheck,
}

impl Default for ListStats {
    fn default() -> Self {
        Self { digest: bytes_hash(b""), former: None, bytes: 0, tokens: 0.0, pairing: PairingCheck::default() }
    }
}

impl ListStats {
    pub(super) fn take(&mut self, message: &Message, measure: &TokenEstimator) {
        self.take_instead_of(message, message, measure);
    }

    /// Takes a message that was told otherwise before.
    pub(super) fn take_instead_of(&mut self, message: &Message, former: &Message, measure: &TokenEstimator) {
        if self.former.is_some() || !std::ptr::eq(message, former) {
            let before = self.former.unwrap_or(self.digest);
            self.former = Some(with_written(former, |text| linked_hash(before.as_bytes(), text.as_bytes())));
        }
        let digest = self.digest;
        let (hash, bytes) = with_written(message, |text| (linked_hash(digest.as_bytes(), text.as_bytes()), text.len()));
        self.digest = hash;
        self.bytes += bytes as u64;
        self.tokens += measure.tokens(message);
        self.pairing.take(message);
    }
}

/// The canonical text of a message. What came from a record has one; the rest is hashed as it is written, since a list
/// that cannot be hashed is still sent.
fn with_written<R>(message: &Message, read: impl Fn(&str) -> R) -> R {
    json::with_canonical(message, &read).unwrap_or_else(|_| read(&serde_json::to_string(message).unwrap_or_default()))
}
