//! The digest of a run: where it is kept, and how it goes on from the records after it.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_canon::{Hash, bytes_hash};
use cantrip_loom::{Bodies, Body, Damage, Error, Event, Record, RunDigest, RunPart, Seq};

use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::{BEFORE, COLUMNS, StoredStep};
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::rows::missing_step_error;
use crate::value::{Row, Value, values};

/// The bodies that a few records name. A body that is missing or altered is not among them.
#[derive(Debug, Default)]
pub(crate) struct KnownBodies(HashMap<Hash, Arc<[u8]>>);

impl Bodies for KnownBodies {
    fn body(&self, hash: &Hash) -> Result<Arc<[u8]>, Error> {
        self.0.get(hash).cloned().ok_or(Error::BodyAltered(*hash))
    }
}

/// Returns the bodies that a digest and the index read for an event.
fn read_bodies(event: &Event) -> Option<Hash> {
    match event.as_root() {
        Some(root) => root.cantrip.reference().map(|reference| reference.hash),
        None => RunDigest::body_hash(event),
    }
}

impl KnownBodies {
    /// Takes what these events need from the bodies of their step. Returns also what is not among them.
    pub(crate) fn of_step<'a>(events: impl Iterator<Item = &'a Event>, bodies: &[Body]) -> (Self, Vec<Hash>) {
        let mut known = Self::default();
        let mut missing = Vec::new();
        for hash in events.filter_map(read_bodies) {
            match bodies.iter().find(|body| body.hash() == hash) {
                Some(body) => {
                    known.0.insert(hash, Arc::clone(body.bytes()));
                }
                None => missing.push(hash),
            }
        }
        (known, missing)
    }

    /// Reads further bodies.
    pub(crate) async fn load(&mut self, link: &mut DbConnection, missing: &[Hash]) -> Result<(), StoreFault> {
        let sql = format!("SELECT body_hash, bytes FROM bodies WHERE body_hash IN ({LIST})");
        for mut row in link.query_in_list(&sql, &[], missing.iter().map(|hash| Value::from(*hash))).await? {
            let (hash, bytes) = (row.hash()?, row.blob()?);
            if bytes_hash(&bytes) == hash {
                self.0.insert(hash, bytes.into());
            }
        }
        Ok(())
    }

    /// Reads the bodies that these events need.
    pub(crate) async fn of_events(link: &mut DbConnection, events: &[Event]) -> Result<Self, StoreFault> {
        let (mut known, missing) = Self::of_step(events.iter(), &[]);
        known.load(link, &missing).await?;
        Ok(known)
    }
}

/// A digest that was read, or folded from the records.
#[derive(Debug, Default)]
pub(crate) struct LoadedDigest {
    pub digest: RunDigest,
    /// The number of gates and codes that have rows.
    pub marks: usize,
    /// The sequence of the first turn of the root entity among the records that were folded.
    pub first: Option<u64>,
}

impl LoadedDigest {
    /// Adds the records of a step.
    pub(crate) async fn add(
        &mut self,
        link: &mut DbConnection,
        part: &RunPart,
        records: &[Record],
    ) -> Result<(), StoreFault> {
        let events: Vec<Event> = records.iter().map(Record::event).collect::<Result<_, _>>()?;
        let bodies = KnownBodies::of_events(link, &events).await?;
        for (record, event) in records.iter().zip(&events) {
            let opening = (record.seq == Seq::START.next()).then_some(&part.opening);
            self.digest.apply(event, opening, &bodies);
            self.note_first(event);
        }
        Ok(())
    }

    /// Remembers the first turn of the root entity.
    pub(crate) fn note_first(&mut self, event: &Event) {
        if let Event::Opened(opened) = event
            && self.first.is_none()
            && self.digest.cast_id == Some(opened.cast_id)
        {
            self.first = Some(opened.sequence);
        }
    }
}

/// The columns that [`read_digest`] reads, over `run_summaries s`.
pub(super) const DIGEST_COLUMNS: &str = "s.intent, s.answer, s.crystal, s.turns_before, s.through, s.digest";

/// The part of a row that is not in the row of the run.
#[derive(Debug)]
pub(super) struct StoredDigest {
    pub digest: RunDigest,
    /// Also if an earlier cast recorded it.
    pub intent: Option<String>,
    pub crystal: Option<String>,
    pub turns_before: u64,
    pub through: u64,
}

/// Reads [`DIGEST_COLUMNS`]. The texts are stored once, in their columns.
pub(super) fn read_digest(row: &mut Row) -> Result<StoredDigest, Error> {
    let (intent, answer, crystal) = (row.text_or_null()?, row.text_or_null()?, row.text_or_null()?);
    let (turns_before, through, text) = (row.count()?, row.count()?, row.text()?);
    let what = "the digest of a run cannot be read";
    let damaged = |_| Error::Damaged(Damage { run: None, seq: None, line: None, what });
    let mut digest: RunDigest = serde_json::from_str(&text).map_err(damaged)?;
    digest.answer = answer;
    if digest.intent_of.is_none() {
        digest.intent.clone_from(&intent);
    }
    Ok(StoredDigest { digest, intent, crystal, turns_before, through })
}

/// Returns the digest of a run's records up to `newest`: the stored one, continued with the records after it. A run
/// that is below another one has no row, and is read from its beginning.
pub(crate) async fn load_digest(
    link: &mut DbConnection,
    run_key: i64,
    part: &RunPart,
    newest: Seq,
) -> Result<LoadedDigest, StoreFault> {
    let sql = format!("SELECT {DIGEST_COLUMNS} FROM run_summaries s WHERE s.run_key = ?1");
    let found = link.query_one(&sql, values![run_key]).await?;
    let (mut loaded, mut after) = match found.map(|mut row| read_digest(&mut row)).transpose()? {
        Some(stored) => {
            let marks = stored.digest.gates.len() + stored.digest.codes.len();
            (LoadedDigest { digest: stored.digest, marks, first: None }, stored.through)
        }
        None => (LoadedDigest::default(), 0),
    };
    let sql = format!(
        "SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.run_key = ?1 AND e.seq > ?2 AND e.seq <= ?3 \
         ORDER BY e.seq LIMIT ?4"
    );
    while after < newest.get() {
        let rows = link.query(&sql, values![run_key, after, newest.get(), READ_STEPS_MAX as u64]).await?;
        if rows.is_empty() {
            return Err(missing_step_error(link, run_key, after + 1).await?.into());
        }
        for mut row in rows {
            let stored = StoredStep::read(&mut row)?;
            let begins = stored.records.first().map_or(0, |record| record.seq.get());
            if begins != after + 1 {
                return Err(missing_step_error(link, run_key, after + 1).await?.into());
            }
            after = stored.seq.get();
            loaded.add(link, part, &stored.records).await?;
        }
    }
    Ok(loaded)
}
