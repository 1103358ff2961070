//! Import of a journal that was written elsewhere.
//!
//! Every hash is checked before anything is written under it. Imported records keep their positions, times and epochs,
//! so that exporting them again gives the same lines. Importing the same journal twice changes nothing. Papers (the
//! receipts of the runs and the rows that the receipts name) are in the file to be verified there: a receipt is
//! written once, where its run ended, so papers are counted and not imported.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cantrip_canon::limits::JSON_INTEGER_MAX;
use cantrip_canon::{Hash, RunId};
use serde_json::Value;

use super::journal::{BodyLine, Encoding, FORMAT, Heading, PaperLine, RecordLine, VERSION};
use crate::limits::STEP_RECORDS_MAX;
use crate::{AppendOutcome, Body, Conflict, Error, Journal, Kind, Record, RecordDraft, Seq, Step, StepId};

/// The counts of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    pub records: u64,
    pub runs: u64,
    pub bodies: u64,
    /// The number of receipts and of rows that receipts name; they are not imported.
    pub papers: u64,
}

/// A line of a journal export as it is in the file. The reader has to check whether the hashes match the content.
#[derive(Debug, Clone, PartialEq)]
pub enum JournalLine {
    Body {
        hash: Hash,
        bytes: Vec<u8>,
    },
    Record(Record),
    /// A receipt, or a row that receipts name.
    Paper(Value),
}

impl JournalLine {
    /// Reads the line with this number, which is not the first line.
    pub fn read(at: u64, text: &str) -> Result<Self, Error> {
        if let Ok(line) = serde_json::from_str::<BodyLine>(text) {
            let bytes = match line.encoding {
                Encoding::Utf8 => line.data.into_bytes(),
                Encoding::Base64 => STANDARD.decode(&line.data).map_err(|_| refuse(at, "a body is not base64"))?,
            };
            return Ok(Self::Body { hash: line.body, bytes });
        }
        if let Ok(PaperLine { paper }) = serde_json::from_str::<PaperLine>(text) {
            return Ok(Self::Paper(paper));
        }
        let line: RecordLine<'_> =
            serde_json::from_str(text).map_err(|error| refuse(at, format!("neither a body nor a record: {error}")))?;
        Ok(Self::Record(Record {
            run: line.run_id,
            seq: line.seq,
            kind: Kind::named(&line.kind),
            at: line.at,
            epoch: line.epoch,
            payload: line.payload.get().into(),
            hash: line.event_hash,
        }))
    }

    /// Returns the line of a paper.
    pub fn of_paper(paper: Value) -> Result<String, Error> {
        super::journal::text(&PaperLine { paper })
    }
}

/// Reads the first line of a journal export, and checks that the rest can be compared with its hashes.
pub fn read_journal_heading(first: Option<&str>) -> Result<(), Error> {
    let first = first.ok_or_else(|| refuse(1, "it is empty"))?;
    let heading: Heading = serde_json::from_str(first).map_err(|_| refuse(1, "it has no heading"))?;
    if heading.format != FORMAT {
        return Err(refuse(1, "it is not a journal"));
    }
    if heading.v != VERSION {
        return Err(Error::UnsupportedVersion { kind: FORMAT.to_owned(), version: heading.v });
    }
    if heading.redacted {
        return Err(refuse(1, "it was redacted, so its hashes are not those of what it holds"));
    }
    Ok(())
}

/// Imports the lines of a journal export. Lines before a fault stay imported; the error names the faulty line.
pub async fn import_journal<J: Journal>(
    store: &J,
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Imported, Error> {
    let mut lines = lines.into_iter().enumerate().map(|(at, line)| (at as u64 + 1, line));
    let heading = lines.next();
    read_journal_heading(heading.as_ref().map(|(_, line)| line.as_ref()))?;
    let mut import = Import { store, heads: HashMap::new(), chunk: Chunk::default(), taken: Imported::default() };
    for (at, line) in lines {
        import.line(at, line.as_ref()).await?;
    }
    import.flush().await?;
    Ok(import.taken)
}

pub(super) fn refuse(line: u64, fault: impl Into<String>) -> Error {
    Error::Import { line, fault: fault.into() }
}

/// Neighbouring records of one run.
#[derive(Default)]
struct Chunk {
    line: u64,
    records: Vec<Record>,
    bodies: Vec<Body>,
}

struct Import<'a, J> {
    store: &'a J,
    heads: HashMap<RunId, Hash>,
    chunk: Chunk,
    taken: Imported,
}

impl<J: Journal> Import<'_, J> {
    async fn line(&mut self, at: u64, text: &str) -> Result<(), Error> {
        match JournalLine::read(at, text)? {
            JournalLine::Body { hash, bytes } => self.body(at, hash, bytes),
            JournalLine::Record(record) => self.record(at, record).await,
            JournalLine::Paper(_) => {
                self.taken.papers += 1;
                Ok(())
            }
        }
    }

    async fn record(&mut self, at: u64, record: Record) -> Result<(), Error> {
        // The epoch is not part of the hash, and the next epoch has to be greater.
        if record.epoch.get() >= JSON_INTEGER_MAX {
            return Err(refuse(at, format!("record {} of run {} has an impossible epoch", record.seq, record.run)));
        }
        if record.hash != record.expected_hash(self.heads.get(&record.run)) {
            return Err(refuse(at, format!("record {} of run {} does not match its hash", record.seq, record.run)));
        }
        self.heads.insert(record.run, record.hash);
        let full = self.chunk.records.len() >= STEP_RECORDS_MAX;
        if full || self.chunk.records.last().is_some_and(|last| last.run != record.run) {
            self.flush().await?;
        }
        self.chunk.line = at;
        self.chunk.records.push(record);
        Ok(())
    }

    fn body(&mut self, at: u64, hash: Hash, bytes: Vec<u8>) -> Result<(), Error> {
        let body = Body::new(bytes)?;
        if body.hash() != hash {
            return Err(refuse(at, format!("body {hash} does not match its hash")));
        }
        self.chunk.bodies.push(body);
        self.taken.bodies += 1;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Error> {
        let Chunk { line, records, bodies } = std::mem::take(&mut self.chunk);
        let (Some(first), Some(last)) = (records.first(), records.last()) else {
            self.chunk.bodies = bodies;
            return Ok(());
        };
        let run = first.run;
        let after = Seq::new(first.seq.get().saturating_sub(1));
        let id = StepId::new(format!("import:{}", last.hash)).map_err(|fault| refuse(line, fault.to_string()))?;
        let count = records.len() as u64;
        let drafts: Result<Vec<RecordDraft>, Error> = records.iter().map(RecordDraft::copy).collect();
        let step = Step::import(id, run, after).records(drafts?).bodies(bodies);
        match self.store.append(step).await? {
            AppendOutcome::Committed(_) => {
                self.taken.records += count;
                self.taken.runs += u64::from(after == Seq::START);
                Ok(())
            }
            AppendOutcome::Conflict(Conflict::RunExists { .. } | Conflict::Behind { .. } | Conflict::Step { .. }) => {
                Err(refuse(line, format!("run {run} already exists with other records")))
            }
            other @ (AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. }) => Err(refuse(line, format!("run {run} was not taken in: {other:?}"))),
        }
    }
}
