//! Running statistics of the list, without reading it again: its hash, its size, and the check that results follow
//! their calls.

use cantrip_canon::{Hash, bytes_hash, json, linked_hash};
use cantrip_loom::Message;

use super::group::GroupParts;
use super::{MessageList, PairingCheck, TokenEstimator};

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

/// The last answer with token counts from the provider.
#[derive(Debug, Clone, Copy)]
pub(super) struct Anchor {
    tokens: u64,
    /// The estimate up to and including that answer.
    estimated: f64,
}

impl MessageList {
    /// Stores the tokens that a provider counted for a request and its answer; `estimated` is our estimate of the
    /// request.
    pub(super) fn counted_by(&mut self, parts: &GroupParts, estimated: f64) {
        if parts.tokens_prompt == 0 {
            return;
        }
        let tokens = parts.tokens_prompt.saturating_add(parts.tokens_completion);
        self.anchor = Some(Anchor { tokens, estimated: self.tally.tokens });
        self.counted.0 += parts.tokens_prompt as f64;
        self.counted.1 += estimated + self.frame.tokens();
    }

    /// Returns the running hash over the list: equal lists have equal hashes.
    pub fn digest(&self) -> Hash {
        self.tally.digest
    }

    /// Returns the digest as it was computed before signed parts were sent back to providers, if it differs.
    pub fn former_digest(&self) -> Option<Hash> {
        self.tally.former
    }

    /// Returns the size of the messages as canonical JSON, in bytes.
    pub fn bytes(&self) -> u64 {
        self.tally.bytes
    }

    /// Returns the number of messages that were hashed and measured so far: the messages that were added, and after
    /// each fold the messages that stayed. Its growth per turn shows the cost of a turn.
    pub fn measured_messages(&self) -> u64 {
        self.measured_messages
    }

    /// Returns the expected number of tokens of the next request: the count of the last counted answer plus an estimate
    /// of the messages since. If no answer was counted, all of it is an estimate, corrected by the error of the
    /// estimates so far.
    pub fn estimate(&self) -> u64 {
        let (counted, estimated) = match self.anchor {
            Some(anchor) => (anchor.tokens as f64, self.tally.tokens - anchor.estimated),
            None => (0.0, (self.tally.tokens + self.frame.tokens()) * self.ratio()),
        };
        (counted + estimated).ceil() as u64
    }

    /// Returns the ratio of counted to estimated tokens in this thread. It is bounded, because a provider that counts
    /// in another way must not make every list look full or empty.
    pub(crate) fn ratio(&self) -> f64 {
        let (counted, estimated) = self.counted;
        if estimated > 0.0 { (counted / estimated).clamp(0.25, 4.0) } else { 1.0 }
    }
}

/// Returns the running hash of a list of these messages.
pub(crate) fn digest_of<'a>(messages: impl Iterator<Item = &'a Message>) -> Hash {
    let mut tally = ListStats::default();
    messages.for_each(|message| tally.take(message, &TokenEstimator::default()));
    tally.digest
}
