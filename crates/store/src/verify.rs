//! Is everything as it was written?
//!
//! The check covers every link of every chain and every body that is named. It also checks that each record follows
//! from those before it, and that the index agrees with the records. It reads one snapshot, while others continue to
//! write.

use std::collections::{BTreeSet, HashMap, HashSet};

use cantrip_canon::{Hash, RunId, TurnId, bytes_hash};
use cantrip_loom::{Damage, Error, Event, Projection, Record, RunPart, Seq, VerifyReport};

use crate::Store;
use crate::connection::DbConnection;
use crate::events::{self, BEFORE, COLUMNS, StoredStep};
use crate::expected_index::{ExpectedIndex, first_flags};
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::overview::ExpectedOverview;
use crate::rows::{RUN_COLUMNS, RUN_TABLES, RunRow};
use crate::store::view;
use crate::value::values;

fn damaged(run: Option<RunId>, seq: Option<Seq>, what: &'static str) -> Error {
    Error::Damaged(Damage { run, seq, line: None, what })
}

impl Store {
    /// Reads everything again and checks it: the hash of every record and body, the chain of every run from its
    /// beginning or its last anchor, that every body that is named exists, that each record follows from those before
    /// it, and that the index, the rows of runs and the rows for lists are what the records say. The first fault is an
    /// [`Error::Damaged`] with its run and position.
    ///
    /// The check uses a few hundred bytes of memory per turn. In a store with pruned records it cannot check that
    /// records follow from those before them, nor the index and the rows of runs, and skips them.
    pub async fn verify(&self) -> Result<VerifyReport, Error> {
        view!(self, |link| Inspection::of(link).await)
    }
}

#[derive(Debug, Default)]
struct Inspection {
    tree: Projection,
    /// True if no record has been pruned.
    whole: bool,
    /// The rows of each run.
    rows: HashMap<RunId, BTreeSet<u64>>,
    turns: u64,
    sound: HashSet<Hash>,
    named: HashSet<Hash>,
    records: u64,
    /// The rows of the index that the records make.
    expected: ExpectedIndex,
    /// The rows for lists that the records make.
    overview: ExpectedOverview,
}

impl Inspection {
    async fn of(link: &mut DbConnection) -> Result<VerifyReport, StoreFault> {
        if let DbConnection::Sqlite(link) = link
            && let Some(fault) = link.faults()?
        {
            tracing::error!(%fault, "SQLite finds the file of the store damaged");
            return Err(damaged(None, None, "SQLite finds its file damaged").into());
        }
        let anchors = one_number(link, "SELECT count(*) FROM run_anchors").await?;
        let mut inspection = Self { whole: anchors == 0, ..Self::default() };
        inspection.overview = ExpectedOverview::begin(link).await?;
        let altered = inspection.bodies(link).await?;
        inspection.records(link).await?;
        if altered {
            return Err(damaged(None, None, "a body that no record names is altered").into());
        }
        inspection.index(link).await?;
        let removed = crate::prune::removed(link).await?;
        Ok(VerifyReport {
            removed,
            records: inspection.records,
            runs: inspection.rows.len() as u64,
            bodies: inspection.named.len() as u64,
            torn_bytes: 0,
        })
    }

    /// Collects the bodies that match their hash. Returns true if one does not.
    async fn bodies(&mut self, link: &mut DbConnection) -> Result<bool, StoreFault> {
        let (mut after, mut altered) = (0, false);
        loop {
            // A few at a time, because a body may have megabytes.
            let sql = "SELECT body_key, body_hash, bytes FROM bodies WHERE body_key > ?1 ORDER BY body_key LIMIT 8";
            let rows = link.query(sql, values![after]).await?;
            if rows.is_empty() {
                return Ok(altered);
            }
            for mut row in rows {
                let (key, hash, bytes) = (row.int()?, row.hash()?, row.blob()?);
                after = key;
                if bytes_hash(&bytes) == hash {
                    self.sound.insert(hash);
                } else {
                    altered = true;
                }
            }
        }
    }

    async fn records(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let sql = format!("SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.place > ?1 ORDER BY e.place LIMIT ?2");
        let mut after = 0;
        loop {
            let rows = link.query(&sql, values![after, READ_STEPS_MAX as u64]).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for mut row in rows {
                let stored = StoredStep::read(&mut row)?;
                after = stored.place;
                for record in &stored.records {
                    self.record(record, stored.seq)?;
                }
                if self.whole {
                    self.overview.add_step(link, &self.tree, &stored).await?;
                }
                if let Some(run) = stored.records.first().map(|record| record.run) {
                    self.rows.entry(run).or_default().insert(stored.seq.get());
                }
            }
        }
    }

    fn record(&mut self, record: &Record, step: Seq) -> Result<(), Error> {
        self.records += 1;
        let at = |what| damaged(Some(record.run), Some(record.seq), what);
        for hash in record.bodies()? {
            if !self.sound.contains(&hash) {
                return Err(at("a body it names is missing or altered"));
            }
            self.named.insert(hash);
        }
        if self.whole {
            self.tree.apply(record).map_err(|_| at("it does not follow from the records before it"))?;
            let event = record.event()?;
            let loom = self.tree.run_part(record.run).map(|part| part.opening.loom_id);
            self.expected.add(record, step, loom, &event);
            if let Event::Turn(closed) = event {
                self.turns += 1;
                self.tree.drop_turn_content(closed.turn_id);
            }
        }
        Ok(())
    }

    /// Compares the rows of runs with the tree from the records.
    async fn runs(&self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM {RUN_TABLES} WHERE r.run_key > ?1 ORDER BY r.run_key LIMIT ?2");
        let (mut after, mut found) = (0, 0);
        loop {
            let rows = link.query(&sql, values![after, READ_STEPS_MAX as u64]).await?;
            if rows.is_empty() && found == self.rows.len() {
                return Ok(());
            }
            if rows.is_empty() {
                return Err(damaged(None, None, "a run lacks its row, its lease or its records").into());
            }
            found += rows.len();
            for mut row in rows {
                let stored = RunRow::read(&mut row)?;
                after = stored.key;
                let stored = stored.part;
                let run = stored.run_id;
                // Only the store knows whether a run was written elsewhere.
                let known = self.tree.run_part(run).map(|part| RunPart { copied: stored.copied, ..part });
                if known != Some(stored) {
                    return Err(damaged(Some(run), None, "the row of a run is not what its records say").into());
                }
            }
        }
    }

    /// Compares the index with the tree from the records.
    async fn index(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        if !self.whole {
            return Ok(());
        }
        self.runs(link).await?;
        self.expected.compare(link).await?;
        let sql = "SELECT t.turn_key, t.turn_id, t.sequence, t.places, n.entity_id, c.cast_id, r.run_id, l.loom_id, \
                   t.holder_id, t.first FROM turns t \
                   JOIN entities n ON n.entity_key = t.entity_key JOIN casts c ON c.cast_key = t.cast_key \
                   JOIN runs r ON r.run_key = c.run_key JOIN looms l ON l.loom_key = t.loom_key \
                   WHERE t.turn_key > ?1 ORDER BY t.turn_key LIMIT ?2";
        let (mut after, mut found) = (0, 0);
        loop {
            let rows = link.query(sql, values![after, READ_STEPS_MAX as u64]).await?;
            if rows.is_empty() {
                break;
            }
            for mut row in rows {
                after = row.int()?;
                found += 1;
                let (turn, sequence, places): (TurnId, _, _) = (row.id()?, row.count()?, row.text()?);
                let (entity, cast, run) = (row.id()?, row.id()?, row.id()?);
                let (loom, holder, first) = (row.id()?, row.id_or_null()?.unwrap_or(turn), row.int()?);
                let known = self.tree.turn_part(turn).zip(self.tree.places(turn)).zip(self.rows.get(&run));
                let agrees = known.is_some_and(|((part, told), rows)| {
                    (part.sequence, part.entity_id, part.cast_id) == (sequence, entity, cast)
                        && (part.loom_id, part.holder) == (loom, holder)
                        && first_flags(&part) == first
                        && events::encode_places(told, rows).is_ok_and(|written| written == places)
                });
                if !agrees {
                    return Err(damaged(Some(run), None, "the index of a turn is not what its records say").into());
                }
            }
        }
        if found != self.turns {
            return Err(damaged(None, None, "the index has more or fewer turns than the records").into());
        }
        std::mem::take(&mut self.overview).compare(link, &self.tree).await
    }
}

async fn one_number(link: &mut DbConnection, sql: &str) -> Result<u64, StoreFault> {
    let found = link.query_one(sql, values![]).await?;
    Ok(found.map(|mut row| row.count()).transpose()?.unwrap_or(0))
}
