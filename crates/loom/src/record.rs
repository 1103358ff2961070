//! A record: one line of a run's journal, chained to the one before it.
//!
//! The payload is kept as the canonical text that was hashed, beside nothing else: whoever passes a record on passes
//! on every field of it, known or not, and verification hashes what is stored before anything reads it. A typed
//! payload in its place was rejected, since writing it again would lose what this version does not know.

use std::fmt::{Display, Write};
use std::sync::Arc;

use cantrip_canon::{Hash, RunId, Timestamp, bytes_hash, json};
use serde_json::Value;

use crate::limits::PAYLOAD_BYTES_MAX;
use crate::{Epoch, Error, Event, Kind, RunOpening, Seq, body_refs};

/// A record that is to be written. Its place is given when it is.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordDraft {
    pub(crate) at: Timestamp,
    pub(crate) kind: Kind,
    pub(crate) payload: Arc<str>,
    pub(crate) event: Event,
    pub(crate) opening: Option<RunOpening>,
    /// Of a copied record; else that of the step's lease.
    pub(crate) epoch: Option<Epoch>,
}

impl RecordDraft {
    /// A record of what happened at `at`. Fails if it has no canonical form or is too large, before anything is
    /// written.
    pub fn new(at: Timestamp, event: impl Into<Event>) -> Result<Self, Error> {
        Self::build(at, event.into(), None)
    }

    /// The first record of a run.
    pub fn opening(at: Timestamp, opening: RunOpening, event: impl Into<Event>) -> Result<Self, Error> {
        Self::build(at, event.into(), Some(opening))
    }

    fn build(at: Timestamp, event: Event, opening: Option<RunOpening>) -> Result<Self, Error> {
        let payload = event.payload(opening.as_ref())?;
        fits(&payload)?;
        let mut event = event;
        if let Event::Other { kind, .. } = &event {
            // It may bear the name of a kind that has a type by now; then it has to fit it.
            event = Event::read(&Kind::named(kind), &payload, opening.is_some())?.0;
        }
        Ok(Self { at, kind: event.kind(), payload, event, opening, epoch: None })
    }

    /// A copy of a record that was written elsewhere.
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

    /// The canonical text that is stored and hashed.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// What it says about its run, if it is to be the first of it.
    pub fn run_opening(&self) -> Option<&RunOpening> {
        self.opening.as_ref()
    }

    /// The epoch it brings along, of a copied record.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// The bodies it names: they are stored already, or come with its step. What stands inline is someone's data and may
    /// look like a name.
    pub fn bodies(&self) -> Result<Vec<Hash>, Error> {
        body_refs::body_hashes(&self.payload, false)
    }

    /// Whether `record` is what this one became.
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
    /// Of the lease it was written under; 0 if it was written beside the run.
    pub epoch: Epoch,
    /// Canonical JSON.
    pub payload: Arc<str>,
    /// Links it to the record before it in its run.
    pub hash: Hash,
}

impl Record {
    /// The record that a draft becomes behind the one with hash `previous`.
    pub fn from_draft(draft: &RecordDraft, run: RunId, seq: Seq, epoch: Epoch, previous: Option<&Hash>) -> Self {
        let hash = event_hash(run, seq, draft.kind.as_str(), draft.at, &draft.payload, previous);
        Self { run, seq, kind: draft.kind.clone(), at: draft.at, epoch, payload: draft.payload.clone(), hash }
    }

    /// What its hash has to be behind the record with hash `previous`.
    pub fn expected_hash(&self, previous: Option<&Hash>) -> Hash {
        event_hash(self.run, self.seq, self.kind.as_str(), self.at, &self.payload, previous)
    }

    /// What it says.
    pub fn event(&self) -> Result<Event, Error> {
        self.read().map(|(event, _)| event)
    }

    /// What it says about its run, if it is the first of it.
    pub fn opening(&self) -> Result<Option<RunOpening>, Error> {
        self.read().map(|(_, opening)| opening)
    }

    pub(crate) fn read(&self) -> Result<(Event, Option<RunOpening>), Error> {
        Event::read(&self.kind, &self.payload, self.seq == Seq::START.next())
    }

    /// The bodies it names.
    pub fn bodies(&self) -> Result<Vec<Hash>, Error> {
        body_refs::body_hashes(&self.payload, false)
    }

    /// The payload as a value, with every field it has.
    pub fn value(&self) -> Result<Value, Error> {
        Ok(json::read(&self.payload)?)
    }
}

/// The hash of a record: over its place, kind, time and payload's hash, and the hash of the one before it.
///
/// Canonical JSON of fixed fields, put together directly: every part is an id, a number, a name or a hash, and the
/// keys stand in order, so this is what the canonical writer gives. A test compares the two.
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

/// What a link has beside the kind, or a little more.
const LINK_BYTES_EXPECTED: usize = 360;

#[cfg(test)]
mod tests {
    use cantrip_canon::stable_hash;
    use serde_json::json;

    use super::*;

    // The published values name a run `run_1`, which no id of ours can be, so they are checked below the types.
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
