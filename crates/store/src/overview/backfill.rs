//! The rows for lists of a store that was written before there were any, made once, by the migration.
//!
//! Everything follows from the records, run by run in the order in which the runs began. A run that cannot be read is
//! left with what its records say up to the damage: a store with damage must still open, and a verification reports it.
//! A run whose beginning was removed by a retention gets no row.

use cantrip_loom::{Event, Record, Seq};

use super::digests::{KnownBodies, LoadedDigest};
use super::statements::{
    CostSum, SpawnColumns, cast_intent, crystal_name, ending_columns, mark_statements, reply_rank, summary_statement,
    waiting_statement,
};
use crate::connection::{DbConnection, SqlStatement};
use crate::events::{BEFORE, COLUMNS, StoredStep};
use crate::failure::StoreFault;
use crate::limits::READ_STEPS_MAX;
use crate::rows::{RUN_COLUMNS, RUN_TABLES, RunRow};
use crate::value::{Value, values};

/// Fills the tables and columns that the seventh migration adds.
pub(crate) async fn backfill(link: &mut DbConnection) -> Result<(), StoreFault> {
    let sql = format!(
        "SELECT {RUN_COLUMNS} FROM {RUN_TABLES} WHERE r.run_key > ?1 \
         AND NOT EXISTS (SELECT 1 FROM run_anchors a WHERE a.run_key = r.run_key) ORDER BY r.run_key LIMIT ?2"
    );
    let mut after = 0;
    loop {
        let rows = link.query(&sql, values![after, READ_STEPS_MAX as u64]).await?;
        if rows.is_empty() {
            return Ok(());
        }
        for mut row in rows {
            let row = RunRow::read(&mut row)?;
            after = row.key;
            fill_run(link, &row).await?;
        }
    }
}

/// Fills what the records of one run say.
async fn fill_run(link: &mut DbConnection, row: &RunRow) -> Result<(), StoreFault> {
    let mut loaded = LoadedDigest::default();
    let mut read = Seq::START;
    let sql = format!(
        "SELECT {COLUMNS} FROM run_events e {BEFORE} WHERE e.run_key = ?1 AND e.seq > ?2 ORDER BY e.seq LIMIT ?3"
    );
    'steps: loop {
        let rows = link.query(&sql, values![row.key, read.get(), READ_STEPS_MAX as u64]).await?;
        if rows.is_empty() {
            break;
        }
        for mut found in rows {
            let step =
                StoredStep::read(&mut found).and_then(|step| Ok((step.seq, events_of(&step.records)?, step.records)));
            match step {
                Ok((seq, events, records)) => {
                    fill_step(link, row, &mut loaded, &records, &events).await?;
                    read = seq;
                }
                Err(error) => {
                    tracing::error!(run = %row.part.run_id, %error, "a run cannot be read for lists");
                    break 'steps;
                }
            }
        }
    }
    if super::is_listed(row.part.run_id, row.part.opening.root_run_id) {
        let statement = summary_statement(row.key, row.loom_key, &row.part, &loaded.digest, loaded.first);
        let marks = mark_statements(row.key, &row.part, &loaded.digest);
        let statements: Vec<SqlStatement> = [statement].into_iter().chain(marks).collect();
        link.write_all(&statements).await?;
    }
    // A run that is over waits for no decision.
    let sql = "DELETE FROM waiting_calls WHERE run_key = ?1 \
               AND EXISTS (SELECT 1 FROM runs r WHERE r.run_key = ?1 AND r.phase NOT IN ('live', 'failed'))";
    link.execute(sql, values![row.key]).await?;
    Ok(())
}

fn events_of(records: &[Record]) -> Result<Vec<Event>, cantrip_loom::Error> {
    records.iter().map(Record::event).collect()
}

async fn fill_step(
    link: &mut DbConnection,
    row: &RunRow,
    loaded: &mut LoadedDigest,
    records: &[Record],
    events: &[Event],
) -> Result<(), StoreFault> {
    let bodies = KnownBodies::of_events(link, events).await?;
    for (record, event) in records.iter().zip(events) {
        let opening = (record.seq == Seq::START.next()).then_some(&row.part.opening);
        let closed = loaded.digest.apply(event, opening, &bodies);
        loaded.note_first(event);
        let (sql, values): (&str, Vec<Value>) = if let Event::Root(root) = event {
            let sql = "UPDATE roots SET crystal = ?3 WHERE loom_key = ?1 AND cantrip_id = ?2";
            (sql, vec![row.loom_key.into(), root.cantrip_id.to_string().into(), crystal_name(root, &bodies).into()])
        } else if let Event::Entity(entity) = event {
            let SpawnColumns { call_id, call_index, environment } = SpawnColumns::of(entity);
            let sql = "UPDATE entities SET cantrip_id = ?2, call_id = ?3, call_index = ?4, environment = ?5, \
                         parent_key = (SELECT t.entity_key FROM turns t WHERE t.turn_id = entities.origin_id), \
                         parent_sequence = (SELECT t.sequence FROM turns t WHERE t.turn_id = entities.origin_id) \
                       WHERE entity_id = ?1";
            let cantrip = entity.cantrip_id.to_string();
            (sql, vec![entity.entity_id.into(), cantrip.into(), call_id.into(), call_index.into(), environment.into()])
        } else if let Event::Cast(cast) = event {
            let (intent, earlier) = cast_intent(cast, &bodies);
            let sql = "UPDATE casts SET intent = coalesce(?2, (SELECT c.intent FROM casts c WHERE c.cast_id = ?3)) \
                       WHERE cast_id = ?1";
            (sql, vec![cast.cast_id.into(), intent.into(), earlier.into()])
        } else if let Event::End(end) = event {
            let (outcome, reason) = ending_columns(end);
            let sql = "UPDATE casts SET outcome = ?2, reason = ?3 WHERE cast_id = ?1";
            (sql, vec![end.cast_id.into(), outcome.into(), reason.into()])
        } else if let Event::ApprovalRequested(asked) = event {
            let SqlStatement { sql, values } = waiting_statement(row.key, asked, record.at);
            (sql, values)
        } else if let Event::ApprovalDecided(decided) = event {
            let sql = "DELETE FROM waiting_calls WHERE run_key = ?1 AND approval_id = ?2";
            (sql, vec![row.key.into(), decided.approval_id.into()])
        } else if let Some(closed) = closed {
            // The turn before this one belongs to the same entity, and was filled before.
            let sql = "SELECT p.cost_sum, p.currency FROM turns t JOIN turns p ON p.entity_key = t.entity_key \
                       AND p.sequence = t.sequence - 1 WHERE t.turn_id = ?1";
            let before = link.query_one(sql, values![closed.turn_id]).await?;
            let mut sum = before.map(|mut row| CostSum::read(&mut row)).transpose()?.unwrap_or_default();
            sum.add(&closed);
            let [cost_sum, currency] = sum.columns();
            let sql = "UPDATE turns SET worst = ?2, cost_sum = ?3, currency = ?4 WHERE turn_id = ?1";
            (sql, vec![closed.turn_id.into(), reply_rank(closed.worst).into(), cost_sum, currency])
        } else {
            continue;
        };
        link.execute(sql, &values).await?;
    }
    Ok(())
}
