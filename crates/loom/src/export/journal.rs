//! The export of the whole journal of a loom: a heading, every record, and every body before the first record that
//! names it.

use std::collections::{HashSet, VecDeque};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cantrip_canon::{Hash, LoomId, RunId, Timestamp, json};
use futures_util::stream::{self, BoxStream, Stream};
use futures_util::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Redaction;
use crate::{Epoch, Error, Journal, Record, Seq, body_refs};

pub(super) const FORMAT: &str = "cantrip.journal";
pub(super) const VERSION: u64 = 1;

/// The first line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Heading {
    pub format: String,
    pub redacted: bool,
    pub v: u64,
}

/// A line with a body.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BodyLine {
    pub body: Hash,
    pub data: String,
    pub encoding: Encoding,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Encoding {
    Utf8,
    Base64,
}

/// A line with a record.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordLine<'a> {
    pub at: Timestamp,
    pub epoch: Epoch,
    pub event_hash: Hash,
    #[serde(borrow)]
    pub payload: &'a RawValue,
    pub run_id: RunId,
    pub seq: Seq,
    #[serde(rename = "type")]
    pub kind: String,
}

/// A line with a receipt or a row that receipts name.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PaperLine {
    pub paper: Value,
}

pub(super) fn text(line: &impl Serialize) -> Result<String, Error> {
    serde_json::to_string(line).map_err(|source| Error::Misread { what: "a line of the export".to_owned(), source })
}

struct JournalExport<'a, S> {
    store: &'a S,
    records: BoxStream<'a, Result<Record, Error>>,
    /// None if every record belongs to the export.
    loom: Option<LoomId>,
    redaction: Redaction,
    runs: HashSet<RunId>,
    told: HashSet<Hash>,
    ready: VecDeque<String>,
}

pub(super) fn lines<S: Journal>(
    store: &S,
    loom: LoomId,
    redaction: Redaction,
) -> impl Stream<Item = Result<String, Error>> + Send + '_ {
    lines_of(store, store.scan().boxed(), Some(loom), redaction)
}

/// Returns the lines of one run. They can be imported if no other run is named in them.
pub(super) fn run_lines<S: Journal>(
    store: &S,
    run: RunId,
    redaction: Redaction,
) -> impl Stream<Item = Result<String, Error>> + Send + '_ {
    lines_of(store, store.read(run, Seq::START).boxed(), None, redaction)
}

fn lines_of<'a, S: Journal>(
    store: &'a S,
    records: BoxStream<'a, Result<Record, Error>>,
    loom: Option<LoomId>,
    redaction: Redaction,
) -> impl Stream<Item = Result<String, Error>> + Send + 'a {
    let heading = text(&Heading { format: FORMAT.to_owned(), redacted: redaction.is_on(), v: VERSION });
    let reading = JournalExport {
        store,
        records,
        loom,
        redaction,
        runs: HashSet::new(),
        told: HashSet::new(),
        ready: VecDeque::new(),
    };
    let rest = stream::try_unfold(reading, async |mut reading| {
        while reading.ready.is_empty() {
            match reading.records.try_next().await? {
                Some(record) => reading.write_record(&record).await?,
                None => return Ok(None),
            }
        }
        Ok(reading.ready.pop_front().map(|line| (line, reading)))
    });
    stream::once(async { heading }).chain(rest)
}

impl<S: Journal> JournalExport<'_, S> {
    async fn write_record(&mut self, record: &Record) -> Result<(), Error> {
        if let Some(loom) = self.loom {
            if record.opening()?.is_some_and(|opening| opening.loom_id == loom) {
                self.runs.insert(record.run);
            }
            if !self.runs.contains(&record.run) {
                return Ok(());
            }
        }
        // A body may name other bodies: for example a long intent with an image.
        let mut named = body_refs::body_hashes(&record.payload, true)?;
        while let Some(hash) = named.pop() {
            if !self.told.insert(hash) {
                continue;
            }
            match self.store.body(hash).await {
                Ok(body) => {
                    let inside = std::str::from_utf8(body.bytes());
                    named.extend(
                        inside.ok().and_then(|text| body_refs::body_hashes(text, true).ok()).unwrap_or_default(),
                    );
                    self.ready.push_back(text(&self.body_line(hash, body.bytes())?)?);
                }
                // User data may look like a body reference.
                Err(Error::BodyAltered(_)) if !body_refs::body_hashes(&record.payload, false)?.contains(&hash) => {}
                Err(error) => return Err(error),
            }
        }
        let redacted;
        let payload = if self.redaction.is_on() {
            redacted = json::canonical(&self.redaction.redact_value(record.value()?))?;
            redacted.as_str()
        } else {
            &record.payload
        };
        let misread = |source| Error::Misread { what: "a payload".to_owned(), source };
        self.ready.push_back(text(&RecordLine {
            at: record.at,
            epoch: record.epoch,
            event_hash: record.hash,
            payload: serde_json::from_str(payload).map_err(misread)?,
            run_id: record.run,
            seq: record.seq,
            kind: record.kind.as_str().to_owned(),
        })?);
        Ok(())
    }

    fn body_line(&self, body: Hash, bytes: &[u8]) -> Result<BodyLine, Error> {
        let Ok(readable) = std::str::from_utf8(bytes) else {
            // Binary data was loaded from outside and may hold anything, so it cannot be redacted.
            let data = if self.redaction.is_on() { String::new() } else { STANDARD.encode(bytes) };
            return Ok(BodyLine { body, data, encoding: Encoding::Base64 });
        };
        let data = match (self.redaction.is_on(), json::read(readable)) {
            (true, Ok(value)) => json::canonical(&self.redaction.redact_value(value))?,
            (true, Err(_)) => self.redaction.redact_text(readable.to_owned()),
            (false, _) => readable.to_owned(),
        };
        Ok(BodyLine { body, data, encoding: Encoding::Utf8 })
    }
}
