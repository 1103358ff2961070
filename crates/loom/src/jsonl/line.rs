//! One line of the records file.

use cantrip_canon::{Hash, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::state::Stored;
use crate::{Epoch, Error, Kind, Record, Seq, StepId};

/// A line. Keys are in the order of canonical JSON. The payload is kept as raw bytes, because the hash covers these
/// bytes.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    at: Timestamp,
    #[serde(default, skip_serializing_if = "is_false")]
    copied: bool,
    epoch: Epoch,
    event_hash: Hash,
    #[serde(borrow)]
    payload: &'a RawValue,
    run_id: RunId,
    seq: Seq,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<StepId>,
    #[serde(rename = "type")]
    kind: String,
    v: u64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

pub(super) const VERSION: u64 = 1;

/// Appends a record to `buffer`, with its line feed.
pub(super) fn write(stored: &Stored, buffer: &mut Vec<u8>) -> Result<(), Error> {
    let record = &stored.record;
    let misread = |source| Error::Misread { what: format!("record {} of run {}", record.seq, record.run), source };
    let payload: &RawValue = serde_json::from_str(&record.payload).map_err(misread)?;
    let line = Line {
        at: record.at,
        copied: stored.copied,
        epoch: record.epoch,
        event_hash: record.hash,
        payload,
        run_id: record.run,
        seq: record.seq,
        step: stored.step.clone(),
        kind: record.kind.as_str().to_owned(),
        v: VERSION,
    };
    serde_json::to_writer(&mut *buffer, &line).map_err(misread)?;
    buffer.push(b'\n');
    Ok(())
}

/// The reason why a line is not a record.
#[derive(Debug)]
pub(super) enum LineFault {
    NotJson,
    Newer(u64),
}

/// Reads a line without its line feed.
pub(super) fn read(bytes: &[u8]) -> Result<Stored, LineFault> {
    #[derive(Deserialize)]
    struct Version {
        v: u64,
    }
    let text = std::str::from_utf8(bytes).map_err(|_| LineFault::NotJson)?;
    let line: Line<'_> = match serde_json::from_str(text) {
        Ok(line) => line,
        Err(_) => {
            return Err(match serde_json::from_str(text) {
                Ok(Version { v }) if v > VERSION => LineFault::Newer(v),
                Ok(_) | Err(_) => LineFault::NotJson,
            });
        }
    };
    if line.v != VERSION {
        return Err(LineFault::Newer(line.v));
    }
    Ok(Stored {
        record: Record {
            run: line.run_id,
            seq: line.seq,
            kind: Kind::named(&line.kind),
            at: line.at,
            epoch: line.epoch,
            payload: line.payload.get().into(),
            hash: line.event_hash,
        },
        step: line.step,
        copied: line.copied,
    })
}
