//! A row of `run_events`: the records of one step.
//!
//! One row per record was the alternative. A turn has four or five records in two steps, so that would double the rows
//! and the index entries. A step is also written completely or not at all, which is easiest with one row.

use std::sync::Arc;

use cantrip_canon::{Hash, RunId, Timestamp};
use cantrip_loom::{Damage, Epoch, Error, Kind, Record, Seq, StepId};
use serde::{Deserialize, Serialize};

use crate::connection::SqlStatement;
use crate::packed::{pack, unpack};
use crate::value::{Row, Value};

/// The kind and time of a record, and its epoch if it differs from that of the step, as in a copy.
#[derive(Serialize, Deserialize)]
struct Head(String, i64, #[serde(default, skip_serializing_if = "Option::is_none")] Option<u64>);

const HASH_BYTES: usize = 32;
/// The stored length of each link except the last of its step. These links can be computed from the content, so a few
/// bytes are enough to find the record that was changed.
const CUT_BYTES: usize = 4;

/// Makes the statement that stores a step. Its records are consecutive records of one run.
pub(crate) fn insert_step(run_key: i64, step: &StepId, records: &[Record]) -> Option<SqlStatement> {
    let last = records.last()?;
    let epoch = records.iter().map(|record| record.epoch).max().unwrap_or(Epoch::NONE);
    let heads: Vec<Head> = records
        .iter()
        .map(|record| {
            let own = (record.epoch != epoch).then_some(record.epoch.get());
            Head(record.kind.as_str().to_owned(), record.at.unix_millis(), own)
        })
        .collect();
    // Canonical JSON has no line feed outside its escapes.
    let mut told = serde_json::to_string(&heads).expect("texts and numbers can be written");
    for record in records {
        told.push('\n');
        told.push_str(&record.payload);
    }
    let cut = records.iter().take(records.len() - 1).flat_map(|record| &record.hash.as_bytes()[..CUT_BYTES]);
    let links: Vec<u8> = cut.chain(last.hash.as_bytes()).copied().collect();
    Some(SqlStatement {
        sql: "INSERT INTO run_events (run_key, seq, records, epoch, step_id, told, links)
              VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        values: vec![
            Value::Int(run_key),
            last.seq.get().into(),
            (records.len() as u64).into(),
            epoch.get().into(),
            step.as_str().into(),
            pack(&told).into(),
            links.into(),
        ],
    })
}

/// The columns of a step in a query over `run_events e`, read by [`StoredStep::read`]. They include the end of the
/// step before it, or its anchor, from which the chain continues. The rest of the query joins [`BEFORE`].
pub(crate) const COLUMNS: &str = "e.place, e.run_key, r.run_id, e.seq, e.records, e.epoch, e.told, e.links, \
     b.links, a.event_hash";

/// The joins that [`COLUMNS`] need.
pub(crate) const BEFORE: &str = "JOIN runs r ON r.run_key = e.run_key \
     LEFT JOIN run_events b ON b.run_key = e.run_key AND b.seq = e.seq - e.records \
     LEFT JOIN run_anchors a ON a.run_key = e.run_key AND a.seq = e.seq - e.records";

/// A step that was read and verified.
#[derive(Debug)]
pub(crate) struct StoredStep {
    pub place: i64,
    pub run_key: i64,
    pub seq: Seq,
    pub records: Vec<Record>,
}

impl StoredStep {
    /// Reads [`COLUMNS`]. Everything is checked before it is used: the position, the number of records, and each hash
    /// against the content and the hash before it.
    pub(crate) fn read(row: &mut Row) -> Result<Self, Error> {
        let (place, run_key, run) = (row.int()?, row.int()?, row.id()?);
        let (seq, count, epoch) = (row.count()?, row.count()?, Epoch::new(row.count()?));
        let told = row.blob()?;
        let (links, before, anchor) = (row.blob()?, row.blob_or_null()?, row.blob_or_null()?);
        let first = (seq + 1).saturating_sub(count);
        let damaged = |seq, what| Error::Damaged(Damage { run: Some(run), seq: Some(Seq::new(seq)), line: None, what });
        let told = unpack(&told).ok_or_else(|| damaged(first, "what a step says cannot be unpacked"))?;
        let mut lines = told.split('\n');
        let heads: Vec<Head> = serde_json::from_str(lines.next().unwrap_or_default())
            .map_err(|_| damaged(first, "kinds and times of a step cannot be read"))?;
        let payloads: Vec<&str> = lines.collect();
        let counted = usize::try_from(count).unwrap_or(usize::MAX);
        let links = Links::of(&links, counted);
        let Some(links) = links.filter(|_| heads.len() == counted && payloads.len() == counted) else {
            return Err(damaged(first, "a step has more or fewer parts than records"));
        };
        let mut previous = match before.or(anchor) {
            Some(hashes) => Some(last(&hashes).ok_or_else(|| damaged(first - 1, "the link of a step cannot be read"))?),
            None if first == 1 => None,
            None => return Err(damaged(first - 1, "a record is missing")),
        };
        let mut records = Vec::with_capacity(counted);
        for (at, (Head(kind, millis, own), payload)) in heads.into_iter().zip(payloads).enumerate() {
            let seq = first + at as u64;
            let mut record = Record {
                run,
                seq: Seq::new(seq),
                kind: Kind::named(&kind),
                at: Timestamp::from_unix_millis(millis).map_err(|_| damaged(seq, "its time is not valid"))?,
                epoch: own.map_or(epoch, Epoch::new),
                payload: Arc::from(payload),
                hash: NO_HASH,
            };
            record.hash = record.expected_hash(previous.as_ref());
            if !record.hash.as_bytes().starts_with(links.at(at)) {
                return Err(damaged(seq, "its hash does not match the stored record"));
            }
            previous = Some(record.hash);
            records.push(record);
        }
        Ok(Self { place, run_key, seq: Seq::new(seq), records })
    }

    /// Returns the record at this position.
    pub(crate) fn record(&self, seq: u64) -> Result<&Record, Error> {
        let found = self.records.iter().find(|record| record.seq.get() == seq);
        found.ok_or_else(|| missing_record(self.records.first().map(|record| record.run), seq))
    }
}

/// A placeholder for a record whose hash is about to be computed.
const NO_HASH: Hash = Hash::from_bytes([0; HASH_BYTES]);

/// The links of a step: complete ones, as older versions wrote them, or shortened except for the last.
struct Links<'a> {
    bytes: &'a [u8],
    each: usize,
}

impl<'a> Links<'a> {
    fn of(bytes: &'a [u8], records: usize) -> Option<Self> {
        let before = records.checked_sub(1)?;
        let each = [CUT_BYTES, HASH_BYTES].into_iter().find(|each| bytes.len() == before * each + HASH_BYTES)?;
        Some(Self { bytes, each })
    }

    fn at(&self, at: usize) -> &'a [u8] {
        let from = at * self.each;
        let whole = from + HASH_BYTES == self.bytes.len();
        &self.bytes[from..if whole { self.bytes.len() } else { from + self.each }]
    }
}

/// Returns the error for a record that the index names and that does not exist.
pub(crate) fn missing_record(run: Option<RunId>, seq: u64) -> Error {
    let what = "the index names a record that does not exist";
    Error::Damaged(Damage { run, seq: Some(Seq::new(seq)), line: None, what })
}

/// Returns the last of a sequence of concatenated hashes.
pub(crate) fn last(hashes: &[u8]) -> Option<Hash> {
    hashes.last_chunk::<HASH_BYTES>().copied().map(Hash::from_bytes)
}

/// Encodes the positions of a turn's records: for each row its `seq`, then the distance of each record before it.
pub(crate) fn encode_places(places: &[Seq], rows: &std::collections::BTreeSet<u64>) -> Result<String, Error> {
    let mut written: Vec<Vec<u64>> = Vec::new();
    for place in places {
        let row = rows.range(place.get()..).next().copied().ok_or_else(|| missing_record(None, place.get()))?;
        match written.last_mut().filter(|places| places[0] == row) {
            Some(places) => places.push(row - place.get()),
            None => written.push(vec![row, row - place.get()]),
        }
    }
    Ok(serde_json::to_string(&written).expect("numbers can be written"))
}

/// Decodes the row and the record of each position.
pub(crate) fn decode_places(written: &str) -> Result<Vec<(u64, u64)>, Error> {
    let read: Vec<Vec<u64>> = serde_json::from_str(written).map_err(|_| missing_record(None, 0))?;
    let mut places = Vec::new();
    for row in &read {
        let (seq, offsets) = row.split_first().ok_or_else(|| missing_record(None, 0))?;
        for offset in offsets {
            places.push((*seq, seq.checked_sub(*offset).ok_or_else(|| missing_record(None, *seq))?));
        }
    }
    Ok(places)
}
