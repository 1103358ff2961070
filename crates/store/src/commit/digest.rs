//! The rows for lists, kept while steps are written.
//!
//! The row of a run for lists is written when the row of the run itself is: when it begins, rests and ends. Between,
//! the digest is only folded in memory. After a restart it goes on from the stored one and the records after it, and
//! only once something needs it.

use std::collections::HashMap;

use cantrip_canon::TurnId;
use cantrip_loom::{ClosedTurn, Event, Phase, RecordDraft, RunPart, Step, TurnPart};

use super::{CommitCache, LiveRun};
use crate::connection::{DbConnection, SqlStatement};
use crate::failure::StoreFault;
use crate::overview::{self, CostSum, KnownBodies, LoadedDigest};
use crate::value::values;

/// The facts that the index of a step needs besides its records.
#[derive(Debug, Default)]
pub(super) struct StepFacts {
    /// The turns that the step closes.
    pub closed: HashMap<TurnId, ClosedTurn>,
    pub bodies: KnownBodies,
}

impl CommitCache {
    /// Adds the records of an accepted step to the digest of its run. `rests` is true if the row for lists is written.
    pub(super) async fn digest_step(
        &mut self,
        link: &mut DbConnection,
        live: &mut LiveRun,
        step: &Step,
        drafts: &[RecordDraft],
        rests: bool,
    ) -> Result<StepFacts, StoreFault> {
        let (mut bodies, missing) = KnownBodies::of_step(drafts.iter().map(RecordDraft::event), &step.bodies);
        if !missing.is_empty() {
            self.flush(link).await?;
            bodies.load(link, &missing).await?;
        }
        let mut facts = StepFacts { closed: HashMap::new(), bodies };
        let closes = drafts.iter().any(|draft| matches!(draft.event(), Event::Turn(_)));
        if live.digest.is_none() && !is_over(&live.part) && (rests || closes) {
            self.flush(link).await?;
            live.digest = Some(stored_digest(link, live).await?);
        }
        let Some(loaded) = &mut live.digest else { return Ok(facts) };
        for draft in drafts {
            let closed = loaded.digest.apply(draft.event(), draft.run_opening(), &facts.bodies);
            loaded.note_first(draft.event());
            facts.closed.extend(closed.map(|closed| (closed.turn_id, closed)));
        }
        Ok(facts)
    }

    /// Writes the row of a run for lists, after the index of the step.
    pub(super) fn write_summary(&mut self, live: &mut LiveRun) {
        if is_over(&live.part) && !live.part.approvals.is_empty() {
            // A run that is over waits for no decision.
            self.push("DELETE FROM waiting_calls WHERE run_key = ?1", vec![live.key.into()]);
        }
        let Some(loaded) = &mut live.digest else { return };
        if !overview::is_listed(live.part.run_id, live.part.opening.root_run_id) {
            return;
        }
        let LoadedDigest { digest, marks, first } = loaded;
        let row = overview::summary_statement(live.key, live.loom_key, &live.part, digest, *first);
        let met = digest.gates.len() + digest.codes.len();
        let names = (met > *marks).then(|| overview::mark_statements(live.key, &live.part, digest));
        let statements: Vec<SqlStatement> = [row].into_iter().chain(names.into_iter().flatten()).collect();
        *marks = met;
        for SqlStatement { sql, values } in statements {
            self.push(sql, values);
        }
    }

    /// Returns the known cost of an entity's turns up to the one that was just closed.
    pub(super) async fn cost_sum(
        &mut self,
        link: &mut DbConnection,
        live: &mut LiveRun,
        entity_key: i64,
        part: &TurnPart,
        closed: Option<&ClosedTurn>,
    ) -> Result<CostSum, StoreFault> {
        let mut sum = match live.sums.get(&part.entity_id) {
            Some(sum) => *sum,
            None if part.first_of_entity => CostSum::default(),
            None => {
                self.flush(link).await?;
                let sql = "SELECT cost_sum, currency FROM turns WHERE entity_key = ?1 AND sequence = ?2";
                let before = part.sequence.saturating_sub(1);
                let found = link.query_one(sql, values![entity_key, before]).await?;
                found.map(|mut row| CostSum::read(&mut row)).transpose()?.unwrap_or_default()
            }
        };
        if let Some(closed) = closed {
            sum.add(closed);
        }
        live.sums.insert(part.entity_id, sum);
        Ok(sum)
    }
}

fn is_over(part: &RunPart) -> bool {
    matches!(part.phase, Phase::Ended(_))
}

/// Returns the digest of a run up to its newest record. Damage in older records must not stop the run: its lists then
/// say what happened since, and a verification reports the damage.
async fn stored_digest(link: &mut DbConnection, live: &LiveRun) -> Result<LoadedDigest, StoreFault> {
    match overview::load_digest(link, live.key, &live.part, live.part.newest).await {
        Err(StoreFault::Found(error)) => {
            tracing::error!(run = %live.part.run_id, %error, "the digest of a run cannot be read");
            Ok(LoadedDigest::default())
        }
        loaded @ (Ok(_) | Err(StoreFault::Database(_))) => loaded,
    }
}
