//! The rows that the index must have, computed from the records.
//!
//! The index says where the record of each entity, cast, root, fold and reward is. The writer fills it in
//! `commit/accepted_rows.rs`; this is the same knowledge on the side of the reader, so that an index that was changed
//! afterwards is found.

use std::collections::{BTreeSet, HashMap};

use cantrip_canon::{CastId, LoomId};
use cantrip_loom::{Damage, Error, Event, Origin, Record, Seq, TurnPart};

use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::rows::{FIRST_OF_CAST, FIRST_OF_ENTITY};
use crate::value::{Row, Value, values};

/// The rows of one table, each with the ids that its keys stand for.
type ExpectedRows = BTreeSet<Vec<Value>>;

#[derive(Debug, Default)]
pub(crate) struct ExpectedIndex {
    /// All records of a cantrip in its loom. The index has the one that was committed first.
    roots: ExpectedRows,
    entities: ExpectedRows,
    casts: HashMap<CastId, Vec<Value>>,
    folds: ExpectedRows,
    rewards: ExpectedRows,
}

fn damaged(what: &'static str) -> Error {
    Error::Damaged(Damage { run: None, seq: None, line: None, what })
}

/// Returns the column `first` of a turn.
pub(crate) fn first_flags(part: &TurnPart) -> i64 {
    i64::from(part.first_of_cast) * FIRST_OF_CAST + i64::from(part.first_of_entity) * FIRST_OF_ENTITY
}

impl ExpectedIndex {
    /// Adds the row that a record makes, if it makes one. `step` is the position of the last record of its step.
    pub(crate) fn add(&mut self, record: &Record, step: Seq, loom: Option<LoomId>, event: &Event) {
        let (run, step, seq) = (Value::from(record.run), Value::from(step.get()), Value::from(record.seq.get()));
        let loom = Value::from(loom);
        if let Event::Root(root) = event {
            self.roots.insert(vec![root.cantrip_id.to_string().into(), loom, run, step, seq]);
        } else if let Event::Entity(entity) = event {
            let (origin, above) = match entity.origin {
                Origin::Root => ("root", None),
                Origin::Child { parent, .. } => ("child", Some(parent)),
                Origin::Fork(fork) => ("fork", Some(fork.turn)),
            };
            let row =
                vec![entity.entity_id.into(), run, loom, step, seq, origin.into(), above.into(), record.at.into()];
            self.entities.insert(row);
        } else if let Event::Cast(cast) = event {
            let row = vec![cast.cast_id.into(), run, cast.entity_id.into(), step, seq, Value::Null, Value::Null];
            self.casts.insert(cast.cast_id, row);
        } else if let Event::End(end) = event
            && let Some([.., end_step, end_seq]) = self.casts.get_mut(&end.cast_id).map(Vec::as_mut_slice)
        {
            (*end_step, *end_seq) = (step, seq);
        } else if let Event::Fold(fold) = event {
            self.folds.insert(vec![fold.fold_id.into(), run, fold.entity_id.into(), fold.after.into(), step, seq]);
        } else if let Event::Reward(reward) = event {
            self.rewards.insert(vec![reward.turn_id.into(), run, step, seq]);
        }
    }

    /// Compares the stored index with these rows.
    pub(crate) async fn compare(&mut self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let casts: ExpectedRows = std::mem::take(&mut self.casts).into_values().collect();
        let runs = "JOIN runs r ON r.run_key = x.run_key";
        let tables = [
            (
                &self.entities,
                format!(
                    "SELECT x.entity_id, r.run_id, l.loom_id, x.step_seq, x.seq, x.origin, x.origin_id, x.at \
                     FROM entities x {runs} JOIN looms l ON l.loom_key = x.loom_key"
                ),
                "the index of entities is not what the records say",
            ),
            (
                &casts,
                format!(
                    "SELECT x.cast_id, r.run_id, n.entity_id, x.step_seq, x.seq, x.end_step_seq, x.end_seq \
                     FROM casts x {runs} JOIN entities n ON n.entity_key = x.entity_key"
                ),
                "the index of casts is not what the records say",
            ),
            (
                &self.folds,
                format!(
                    "SELECT x.fold_id, r.run_id, n.entity_id, x.after_id, x.step_seq, x.seq FROM folds x {runs} \
                     JOIN entities n ON n.entity_key = x.entity_key"
                ),
                "the index of folds is not what the records say",
            ),
            (
                &self.rewards,
                format!("SELECT x.turn_id, r.run_id, x.step_seq, x.seq FROM rewards x {runs}"),
                "the index of rewards is not what the records say",
            ),
        ];
        for (expected, sql, what) in tables {
            let rows = link.query(&sql, values![]).await?;
            let count = rows.len();
            let stored: ExpectedRows = rows.into_iter().map(Row::into_values).collect();
            if stored != *expected || stored.len() != count {
                return Err(damaged(what).into());
            }
        }
        let sql = format!(
            "SELECT x.cantrip_id, l.loom_id, r.run_id, x.step_seq, x.seq FROM roots x {runs} \
             JOIN looms l ON l.loom_key = x.loom_key"
        );
        let stored: Vec<Vec<Value>> = link.query(&sql, values![]).await?.into_iter().map(Row::into_values).collect();
        let cantrips: BTreeSet<&[Value]> = self.roots.iter().filter_map(|row| row.get(..2)).collect();
        if stored.len() != cantrips.len() || !stored.iter().all(|row| self.roots.contains(row)) {
            return Err(damaged("the index of cantrips is not what the records say").into());
        }
        Ok(())
    }
}
