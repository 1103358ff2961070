//! Taking a journal in that was written elsewhere.
//!
//! Every hash is checked before anything is written under it, and what is taken in keeps its places, times and epochs,
//! so that exporting it again gives the same bytes. Taking the same journal in twice changes nothing.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cantrip_canon::limits::JSON_INTEGER_MAX;
use cantrip_canon::{Hash, RunId};

use super::journal::{BodyLine, Encoding, FORMAT, Heading, RecordLine, VERSION};
use crate::limits::STEP_RECORDS_MAX;
use crate::{Answer, Body, Conflict, Draft, Error, Journal, Kind, Record, Seq, Step, StepId};

/// What was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Imported {
    pub records: u64,
    pub runs: u64,
    pub bodies: u64,
}

/// Takes in the lines of a journal export. Lines before a fault stay, as records do; the fault names its line.
pub async fn import_journal<J: Journal>(
    store: &J,
    lines: impl IntoIterator<Item = impl AsRef<str>>,
) -> Result<Imported, Error> {
    let mut lines = lines.into_iter().enumerate().map(|(at, line)| (at as u64 + 1, line));
    let heading = lines.next().ok_or_else(|| refuse(1, "it is empty"))?;
    let heading: Heading = serde_json::from_str(heading.1.as_ref()).map_err(|_| refuse(1, "it has no heading"))?;
    if heading.format != FORMAT {
        return Err(refuse(1, "it is no journal"));
    }
    if heading.v != VERSION {
        return Err(Error::Newer { kind: FORMAT.to_owned(), version: heading.v });
    }
    if heading.redacted {
        return Err(refuse(1, "it was redacted, so its hashes are not those of what it holds"));
    }
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
        if let Ok(line) = serde_json::from_str::<BodyLine>(text) {
            return self.body(at, line);
        }
        let line: RecordLine<'_> =
            serde_json::from_str(text).map_err(|error| refuse(at, format!("neither a body nor a record: {error}")))?;
        let record = Record {
            run: line.run_id,
            seq: line.seq,
            kind: Kind::named(&line.kind),
            at: line.at,
            epoch: line.epoch,
            payload: line.payload.get().into(),
            hash: line.event_hash,
        };
        // An epoch is no part of the hash, and the next one has to be greater.
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

    fn body(&mut self, at: u64, line: BodyLine) -> Result<(), Error> {
        let bytes = match line.encoding {
            Encoding::Utf8 => line.data.into_bytes(),
            Encoding::Base64 => STANDARD.decode(&line.data).map_err(|_| refuse(at, "a body is not base64"))?,
        };
        let body = Body::new(bytes)?;
        if body.hash() != line.body {
            return Err(refuse(at, format!("body {} does not match its hash", line.body)));
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
        let drafts: Result<Vec<Draft>, Error> = records.iter().map(Draft::copy).collect();
        let step = Step::copies(id, run, after).records(drafts?).bodies(bodies);
        match self.store.append(step).await? {
            Answer::Committed(_) => {
                self.taken.records += count;
                self.taken.runs += u64::from(after == Seq::START);
                Ok(())
            }
            Answer::Conflict(Conflict::RunExists { .. } | Conflict::Behind { .. } | Conflict::Step { .. }) => {
                Err(refuse(line, format!("run {run} is there already with other records")))
            }
            other @ (Answer::Conflict(_) | Answer::Refused(_) | Answer::Wait | Answer::Fenced { .. }) => {
                Err(refuse(line, format!("run {run} was not taken in: {other:?}")))
            }
        }
    }
}
