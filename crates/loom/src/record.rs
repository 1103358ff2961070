//! A record: one line of a run's journal, chained to the record before it.
//!
//! The payload is kept only as the canonical text that was hashed. So code that passes a record on also passes on the
//! fields that it does not know, and verification hashes the stored text before anything parses it. A typed payload
//! instead was rejected, since writing it again would lose the fields that this version does not know.

use std::fmt::{Display, Write};
use std::sync::Arc;

use cantrip_canon::{Hash, RunId, Timestamp, bytes_hash, json};
use serde_json::Value;

use crate::limits::PAYLOAD_BYTES_MAX;
use crate::{Epoch, Error, Event, Kind, RunOpening, Seq, body_refs};

/// A record that is to be written. It gets its position when it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordDraft {
    pub(crate) at: Timestamp,
    pub(crate) kind: Kind,
    pub(crate) payload: Arc<str>,
    pub(crate) event: Event,
    pub(crate) opening: Option<RunOpening>,
    /// Set for a copied record; other records get the epoch of the step's lease.
    pub(crate) epoch: Option<Epoch>,
}

impl RecordDraft {
    /// Makes a record of an event at the time `at`. Fails before anything is written if the record has no canonical
    /// form or is too large.
    pub fn new(at: Timestamp, event: impl Into<Event>) -> Result<Self, Error> {
        Self::build(at, event.into(), None)
    }

    /// Makes the first record of a run.
    pub fn opening(at: Timestamp, opening: RunOpening, event: impl Into<Event>) -> Result<Self, Error> {
        Self::build(at, event.into(), Some(opening))
    }

    fn build(at: Timestamp, event: Event, opening: Option<RunOpening>) -> Result<Self, Error> {
        let payload = event.payload(opening.as_ref())?;
        fits(&payload)?;
        let mut event = event;
        if let Event::Other { kind, .. } = &event {
            // An event of unknown kind may have the name of a kind that has a type by now; then it must fit that type.
            event = Event::read(&Kind::named(kind), &payload, opening.is_some())?.0;
        }
        Ok(Self { at, kind: event.kind(), payload, event, opening, epoch: None })
    }

    /// Makes a copy of a record that was written elsewhere.
    pub fn copy(record: &Record) -> Result<Self, Error> {
        let (event, opening) = record.read()?;
        Ok(Self {
            at: record.at,
            kind: record.kind.clone(),
            payload: record.payload.clone(),
            event,
            opening,
            epoch: Some(record.epoch),
        })
    }

    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    pub fn event(&self) -> &Event {
        &self.event
    }

    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the canonical text that is stored and hashed.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// Returns the opening of the run, if this is to be its first record.
    pub fn run_opening(&self) -> Option<&RunOpening> {
        self.opening.as_ref()
    }

    /// Returns the own epoch of a copied record.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Returns the bodies that the record names: they are stored already, or come with its step. Inline values are
    /// user data and may look like a reference, so they are not searched.
    pub fn bodies(&self) -> Result<Vec<Hash>, Error> {
        body_refs::body_hashes(&self.payload, false)
    }

    /// Returns true if `record` was made from this draft.
    pub fn matches_record(&self, record: &Record) -> bool {
        self.kind == record.kind && self.at == record.at && self.payload == record.payload
    }
}

fn fits(payload: &str) -> Result<(), Error> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(Error::TooLarge {
            what: "the payload of a record",
            bytes: payload.len() as u64,
            limit: PAYLOAD_BYTES_MAX as u64,
        });
    }
    Ok(())
}

/// A record as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub run: RunId,
    pub seq: Seq,
    pub kind: Kind,
    pub at: Timestamp,
    /// The epoch of the lease under which it was written; 0 if it was written without a lease.
    pub epoch: Epoch,
    /// Canonical JSON.
    pub payload: Arc<str>,
    /// Links the record to the one before it in its run.
    pub hash: Hash,
}

impl Record {
    /// Makes the record of a draft that follows the record with the hash `previous`.
    pub fn from_draft(draft: &RecordDraft, run: RunId, seq: Seq, epoch: Epoch, previous: Option<&Hash>) -> Self {
        let hash = event_hash(run, seq, draft.kind.as_str(), draft.at, &draft.payload, previous);
        Self { run, seq, kind: draft.kind.clone(), at: draft.at, epoch, payload: draft.payload.clone(), hash }
    }

    /// Returns the hash that the record must have after the record with the hash `previous`.
    pub fn expected_hash(&self, previous: Option<&Hash>) -> Hash {
        event_hash(self.run, self.seq, self.kind.as_str(), self.at, &self.payload, previous)
    }

    /// Parses the event.
    pub fn event(&self) -> Result<Event, Error> {
        self.read().map(|(event, _)| event)
    }

    /// Parses the opening of the run, if this is its first record.
    pub fn opening(&self) -> Result<Option<RunOpening>, Error> {
        self.read().map(|(_, opening)| opening)
    }

    pub(crate) fn read(&self) -> Result<(Event, Option<RunOpening>), Error> {
        Event::read(&self.kind, &self.payload, self.seq == Seq::START.next())
    }

    /// Returns the bodies that the record names.
    pub fn bodies(&self) -> Result<Vec<Hash>, Error> {
        body_refs::body_hashes(&self.payload, false)
    }

    /// Returns the payload as a value with all its fields.
    pub fn value(&self) -> Result<Value, Error> {
        Ok(json::read(&self.payload)?)
    }
}

/// Returns the hash of a record: over its position, kind, time, the hash of its payload, and the hash of the record
/// before it.
///
/// The text is canonical JSON of fixed fields, written directly: every part is an id, a number, a name or a hash, and
/// the keys are sorted, so this equals the output of the canonical writer. A test compares the two.
fn event_hash(run: impl Display, seq: Seq, kind: &str, at: Timestamp, payload: &str, previous: Option<&Hash>) -> Hash {
    let payload_hash = bytes_hash(payload.as_bytes());
    let mut text = String::with_capacity(LINK_BYTES_EXPECTED + kind.len());
    // Writing to a string cannot fail.
    let _ = write!(text, "{{\"at\":\"{at}\",\"kind\":\"event\",\"payload_hash\":\"{payload_hash}\",\"prev_hash\":");
    let _ = match previous {
        Some(hash) => write!(text, "\"{hash}\""),
        None => write!(text, "null"),
    };
    let _ = write!(text, ",\"run_id\":\"{run}\",\"seq\":{seq},\"type\":");
    json::put_text(&mut text, kind);
    text.push_str(",\"v\":1}");
    bytes_hash(text.as_bytes())
}

/// The expected length of a link in bytes without its kind, or a little more.
const LINK_BYTES_EXPECTED: usize = 360;

#[cfg(test)]
mod tests {
    use cantrip_canon::stable_hash;
    use serde_json::json;

    use super::*;

    // The published values use the run name `run_1`, which is not a valid id here, so they are checked below the
    // types.
    #[test]
    fn the_chain_is_hashed_as_published() {
        let at = |text: &str| text.parse().unwrap();
        let first = event_hash("run_1", Seq::new(1), "cast", at("2026-02-19T02:00:00.000Z"), r#"{"x":1}"#, None);
        assert_eq!(first.to_string(), "sha256:513b302a03852bd3af8b5a670d70650a65d7427a4dd0f5fe7f1a4cc87bf862f6");
        let second =
            event_hash("run_1", Seq::new(2), "end", at("2026-02-19T02:00:01.000Z"), r#"{"x":2}"#, Some(&first));
        assert_eq!(second.to_string(), "sha256:5fafc79288be4c8c0524de539c9ddda790a37467e987f287f941f86eb5b45c84");
    }

    #[test]
    fn the_directly_written_link_is_the_canonical_one() {
        let at: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
        let previous = bytes_hash(b"before");
        let value = json!({
            "v": 1, "kind": "event", "run_id": "run_x", "seq": 7, "type": "odd \"type\" \u{7f}\n", "at": at.to_string(),
            "payload_hash": stable_hash(&json!({"é": 1})).unwrap().to_string(), "prev_hash": previous.to_string(),
        });
        let direct = event_hash("run_x", Seq::new(7), "odd \"type\" \u{7f}\n", at, "{\"é\":1}", Some(&previous));
        assert_eq!(direct, stable_hash(&value).unwrap());
    }
}
