//! Which folds are valid for a path, and which of them is the last?

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::TurnId;
use cantrip_loom::{Error, FoldPart};

use super::PartialTree;
use crate::connection::DbConnection;
use crate::dialect::LIST;
use crate::events::{BEFORE, COLUMNS, StoredStep};
use crate::failure::StoreFault;
use crate::rows::{PathSegment, entity_at, place};
use crate::value::{Value, values};

impl PartialTree {
    /// Loads the folds that are valid for a path, oldest first: folds that were made after a turn of the path, by an
    /// entity of the path. Entities before the nearest one that is not a fork are left out.
    pub(crate) async fn folds(
        &mut self,
        link: &mut DbConnection,
        path: &[PathSegment],
    ) -> Result<Vec<FoldPart>, StoreFault> {
        let mut lineage: BTreeMap<i64, u64> = BTreeMap::new();
        let mut turns: BTreeSet<TurnId> = BTreeSet::new();
        // A fold that an entity made after another entity branched off from it is not valid for that other entity.
        let mut until = u64::MAX;
        let (mut since, mut through) = (u64::MAX, 0);
        for stretch in path {
            if !stretch.turns.is_empty() {
                since = since.min(stretch.from);
                through = through.max(stretch.from + stretch.turns.len() as u64 - 1);
            }
            lineage.insert(stretch.entity_key, until);
            turns.extend(&stretch.turns);
            if !stretch.forked {
                break;
            }
            until = until.min(stretch.made);
        }
        let sql = format!(
            "SELECT f.entity_key, f.after_id, f.seq, {COLUMNS} FROM folds f JOIN turns w ON w.turn_id = f.after_id \
             JOIN run_events e ON e.run_key = f.run_key AND e.seq = f.step_seq {BEFORE} \
             WHERE w.sequence >= ?1 AND w.sequence <= ?2 AND f.entity_key IN ({LIST}) ORDER BY f.fold_key"
        );
        let mut found = Vec::new();
        let entities = lineage.keys().map(|key| Value::from(*key));
        for mut row in link.query_in_list(&sql, values![since, through], entities).await? {
            let (of, after, seq) = (row.int()?, row.id()?, row.count()?);
            if turns.contains(&after) {
                let stored = StoredStep::read(&mut row)?;
                let place = place(&stored);
                if lineage.get(&of).is_none_or(|until| place >= *until) {
                    continue;
                }
                let (_, at, fold) = self.read_record(&stored, seq)?;
                found.push(FoldPart { fold, at, place });
            }
        }
        found.sort_by_key(|fold| fold.place);
        Ok(found)
    }

    /// Returns the last of those folds. The search starts at the entity of the turn and goes upwards: the folds that
    /// an entity makes after it branched off come after all folds that it shares with others.
    pub(crate) async fn last_fold(
        &mut self,
        link: &mut DbConnection,
        turn: TurnId,
    ) -> Result<Option<FoldPart>, StoreFault> {
        let mut until = u64::MAX;
        let mut next = turn;
        loop {
            let Some(at) = entity_at(link, next).await? else {
                return Err(Error::not_found("turn", next).into());
            };
            // A fold that an entity made after another entity branched off from it is not valid for that other entity.
            let sql = format!(
                "SELECT f.seq, {COLUMNS} FROM folds f JOIN turns w ON w.turn_id = f.after_id \
                 JOIN run_events e ON e.run_key = f.run_key AND e.seq = f.step_seq {BEFORE} \
                 WHERE f.entity_key = ?1 AND w.sequence <= ?2 AND e.place < ?3 ORDER BY f.fold_key DESC LIMIT 1"
            );
            let until_key = i64::try_from(until).unwrap_or(i64::MAX);
            if let Some(mut row) = link.query_one(&sql, values![at.entity_key, at.sequence, until_key]).await? {
                let seq = row.count()?;
                let stored = StoredStep::read(&mut row)?;
                let (_, at, fold) = self.read_record(&stored, seq)?;
                return Ok(Some(FoldPart { fold, at, place: place(&stored) }));
            }
            match at.forked_from {
                Some(turn) => (next, until) = (turn, until.min(at.made)),
                None => return Ok(None),
            }
        }
    }
}
