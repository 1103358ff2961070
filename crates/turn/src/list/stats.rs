//! Running statistics of the list, without reading it again: its hash, its size, and the check that results follow
//! their calls.

use cantrip_canon::{Hash, bytes_hash, json, linked_hash};
use cantrip_loom::Message;

use super::{PairingCheck, TokenEstimator};

#[derive(Debug, Clone)]
pub(super) struct ListStats {
    /// The hash over the hash so far and the canonical text of the next message, so that it can be continued at any
    /// position from 32 bytes.
    pub(super) digest: Hash,
    /// The hash over the list as it was rendered before signed parts were sent back to providers; none while it is the
    /// same. Threads that were recorded then have this hash, and must be replayed as they were.
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

    /// Adds a message that was rendered differently before.
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

/// Passes the canonical text of a message to `read`. A message from a record has one; any other message is hashed as it
/// is serialized, because a list that cannot be hashed is still sent.
fn with_written<R>(message: &Message, read: impl Fn(&str) -> R) -> R {
    json::with_canonical(message, &read).unwrap_or_else(|_| read(&serde_json::to_string(message).unwrap_or_default()))
}
