//! Are the rows for lists what the records say?
//!
//! A row was folded when its run last began, rested or ended, so it is compared with the fold of the records up to that
//! place, while a verification reads them in order. What the index of entities, casts and turns says beside that is
//! compared at the end.

use std::collections::{BTreeSet, HashMap};

use cantrip_canon::{ApprovalId, CastId, EntityId, RunId, TurnId};
use cantrip_loom::{Damage, Error, Event, Origin, Phase, Projection, Record, RunDigest, RunPart, Seq};

use super::digests::{DIGEST_COLUMNS, KnownBodies, LoadedDigest, read_digest};
use super::statements::{
    CostSum, SpawnColumns, cast_intent, column_text, ending_columns, mark_statements, reply_rank, waiting_statement,
};
use crate::connection::DbConnection;
use crate::events::StoredStep;
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::rows::{kind_name, phase_name};
use crate::value::{Row, Value, values};

/// The rows that the records make.
#[derive(Debug, Default)]
pub(crate) struct ExpectedOverview {
    /// The record up to which each row was folded, and the key of its run.
    rows: HashMap<RunId, (u64, i64)>,
    /// The folds of runs whose row is not compared yet. A run without a row is needed for its turns.
    digests: HashMap<RunId, LoadedDigest>,
    compared: usize,
    entities: BTreeSet<Vec<Value>>,
    casts: HashMap<CastId, [Value; 3]>,
    turns: HashMap<TurnId, [Value; 3]>,
    sums: HashMap<EntityId, CostSum>,
    waiting: HashMap<(RunId, ApprovalId), Vec<Value>>,
}

fn damaged(run: Option<RunId>, what: &'static str) -> Error {
    Error::Damaged(Damage { run, seq: None, line: None, what })
}

const ROW: &str = "the row of a run for lists is not what its records say";

impl ExpectedOverview {
    /// Reads up to which record each row was folded.
    pub(crate) async fn begin(link: &mut DbConnection) -> Result<Self, StoreFault> {
        let sql = "SELECT r.run_id, s.through, s.run_key FROM run_summaries s JOIN runs r ON r.run_key = s.run_key";
        let mut expected = Self::default();
        for mut row in link.query(sql, values![]).await? {
            expected.rows.insert(row.id()?, (row.count()?, row.int()?));
        }
        Ok(expected)
    }

    /// Adds a step that was applied to the tree, and compares the row that was written with it.
    pub(crate) async fn add_step(
        &mut self,
        link: &mut DbConnection,
        tree: &Projection,
        step: &StoredStep,
    ) -> Result<(), StoreFault> {
        let events: Vec<Event> = step.records.iter().map(Record::event).collect::<Result<_, _>>()?;
        let bodies = KnownBodies::of_events(link, &events).await?;
        let Some(part) = step.records.first().and_then(|record| tree.run_part(record.run)) else { return Ok(()) };
        for (record, event) in step.records.iter().zip(&events) {
            let loaded = self.digests.entry(record.run).or_default();
            let opening = (record.seq == Seq::START.next()).then_some(&part.opening);
            let closed = loaded.digest.apply(event, opening, &bodies);
            if let Some((closed, turn)) = closed.and_then(|closed| Some((closed, tree.turn_part(closed.turn_id)?))) {
                let sum = self.sums.entry(turn.entity_id).or_default();
                sum.add(&closed);
                let [cost_sum, currency] = sum.columns();
                self.turns.insert(closed.turn_id, [reply_rank(closed.worst).into(), cost_sum, currency]);
            }
            self.add_index(tree, record, event, &bodies);
        }
        if let Some((_, key)) = self.rows.get(&part.run_id).copied().filter(|(through, _)| *through == step.seq.get()) {
            let digest = self.digests.get(&part.run_id).map(|loaded| &loaded.digest);
            compare_row(link, key, &part, digest.unwrap_or(&RunDigest::default())).await?;
            self.compared += 1;
        }
        if matches!(part.phase, Phase::Ended(_))
            && self.rows.get(&part.run_id).is_none_or(|row| row.0 <= step.seq.get())
        {
            // Only annotations follow, which a list does not show.
            self.digests.remove(&part.run_id);
        }
        Ok(())
    }

    fn add_index(&mut self, tree: &Projection, record: &Record, event: &Event, bodies: &KnownBodies) {
        if let Event::Entity(entity) = event {
            let SpawnColumns { call_id, call_index, environment } = SpawnColumns::of(entity);
            let above = match entity.origin {
                Origin::Root => None,
                Origin::Child { parent, .. } => Some(parent),
                Origin::Fork(fork) => Some(fork.turn),
            };
            let above = above.and_then(|turn| tree.turn_part(turn));
            self.entities.insert(vec![
                entity.entity_id.into(),
                entity.cantrip_id.to_string().into(),
                above.as_ref().map(|turn| turn.entity_id).into(),
                above.map(|turn| turn.sequence).into(),
                call_id.into(),
                call_index.into(),
                environment.into(),
            ]);
        } else if let Event::Cast(cast) = event {
            let (own, earlier) = cast_intent(cast, bodies);
            let earlier = earlier.and_then(|cast| self.casts.get(&cast)).map(|[intent, ..]| intent.clone());
            let intent = earlier.unwrap_or_else(|| own.into());
            self.casts.insert(cast.cast_id, [intent, Value::Null, Value::Null]);
        } else if let Event::End(end) = event {
            let (ended, why) = ending_columns(end);
            if let Some([_, outcome, reason]) = self.casts.get_mut(&end.cast_id) {
                (*outcome, *reason) = (ended.into(), why.into());
            }
        } else if let Event::ApprovalRequested(asked) = event {
            let values = waiting_statement(0, asked, record.at).values.split_off(2);
            self.waiting.entry((record.run, asked.approval_id)).or_insert(values);
        } else if let Event::ApprovalDecided(decided) = event {
            self.waiting.remove(&(record.run, decided.approval_id));
        }
    }

    /// Compares what is not a row of a run.
    pub(crate) async fn compare(mut self, link: &mut DbConnection, tree: &Projection) -> Result<(), StoreFault> {
        let sql = "SELECT count(*) FROM runs r WHERE r.root_run_id IS NULL OR r.root_run_id = r.run_id \
                   UNION ALL SELECT count(*) FROM run_summaries s JOIN runs r ON r.run_key = s.run_key \
                     WHERE s.phase = r.phase AND coalesce(s.ended_at, -1) = coalesce(r.ended_at, -1)";
        for mut row in link.query(sql, values![]).await? {
            if row.count()? != self.compared as u64 {
                return Err(damaged(None, "a run that lists show lacks its row, or has an old one").into());
            }
        }
        let sql = "SELECT n.entity_id, n.cantrip_id, p.entity_id, n.parent_sequence, n.call_id, n.call_index, \
                     n.environment FROM entities n LEFT JOIN entities p ON p.entity_key = n.parent_key";
        let stored: BTreeSet<Vec<Value>> =
            link.query(sql, values![]).await?.into_iter().map(Row::into_values).collect();
        if stored != self.entities {
            return Err(damaged(None, "the index of what made the entities is not what the records say").into());
        }
        for mut row in link.query("SELECT cast_id, intent, outcome, reason FROM casts", values![]).await? {
            let cast = row.id()?;
            if self.casts.get(&cast).is_none_or(|expected| row.into_values() != *expected) {
                return Err(damaged(None, "the intent or the end of a cast is not what the records say").into());
            }
        }
        self.compare_turns(link).await?;
        self.waiting
            .retain(|(run, _), _| tree.run_part(*run).is_some_and(|part| !matches!(part.phase, Phase::Ended(_))));
        let sql = "SELECT r.run_id, w.approval_id, w.asked_at, w.expires_at FROM waiting_calls w \
                   JOIN runs r ON r.run_key = w.run_key";
        for mut row in link.query(sql, values![]).await? {
            let (run, approval) = (row.id()?, row.id()?);
            if self.waiting.remove(&(run, approval)) != Some(row.into_values()) {
                return Err(damaged(Some(run), "a call waits that the records do not ask about").into());
            }
        }
        match self.waiting.keys().next() {
            Some((run, _)) => Err(damaged(Some(*run), "a call that waits lacks its row").into()),
            None => Ok(()),
        }
    }

    async fn compare_turns(&self, link: &mut DbConnection) -> Result<(), StoreFault> {
        let sql = "SELECT turn_key, turn_id, worst, cost_sum, currency FROM turns WHERE turn_key > ?1 \
                   ORDER BY turn_key LIMIT ?2";
        let mut after = 0;
        loop {
            let rows = link.query(sql, values![after, READ_STEPS_MAX as u64]).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for mut row in rows {
                after = row.int()?;
                let turn = row.id()?;
                if self.turns.get(&turn).is_none_or(|expected| row.into_values() != *expected) {
                    return Err(damaged(None, "the reply or the cost of a turn is not what the records say").into());
                }
            }
        }
    }
}

/// Compares the row of a run with the fold of its records.
async fn compare_row(link: &mut DbConnection, key: i64, part: &RunPart, digest: &RunDigest) -> Result<(), StoreFault> {
    let sql = format!(
        "SELECT s.created_at, s.phase, s.kind, s.owner, s.spell, s.cost, s.currency, {DIGEST_COLUMNS} \
         FROM run_summaries s WHERE s.run_key = ?1"
    );
    let Some(mut row) = link.query_one(&sql, values![key]).await? else {
        return Err(damaged(Some(part.run_id), ROW).into());
    };
    let cost = digest.cost();
    let expected = values![
        part.created_at,
        phase_name(part.phase),
        kind_name(part.opening.kind),
        part.opening.owner.as_str(),
        digest.spell.as_deref().map(column_text),
        cost.map(cantrip_canon::Money::micros),
        cost.map(|cost| cost.currency().to_string()),
    ]
    .to_vec();
    let columns = vec![
        Value::from(row.int()?),
        row.text()?.into(),
        row.text()?.into(),
        row.text()?.into(),
        row.text_or_null()?.into(),
        row.int_or_null()?.into(),
        row.text_or_null()?.into(),
    ];
    let stored = read_digest(&mut row)?;
    let mut folded = digest.clone();
    for text in [&mut folded.intent, &mut folded.answer] {
        *text = text.as_deref().map(column_text);
    }
    let marks: BTreeSet<Vec<Value>> =
        mark_statements(key, part, digest).map(|mark| mark.values.into_iter().skip(1).collect()).collect();
    let sql = "SELECT kind, name, created_at FROM run_marks WHERE run_key = ?1";
    let met: BTreeSet<Vec<Value>> = link.query(sql, values![key]).await?.into_iter().map(Row::into_values).collect();
    if columns != expected || stored.digest != folded || met != marks {
        return Err(damaged(Some(part.run_id), ROW).into());
    }
    Ok(())
}
