//! The rows of an accepted step: its records, its run, and the index of what its records make.

use cantrip_canon::{LoomId, RunId};
use cantrip_contract::ContractUpsert;
use cantrip_loom::{Error, Event, LeaseState, Origin, Phase, Record, RecordDraft, RootPart, RunPart, Step, StepTarget};
use cantrip_spend::{Changes, Decision};

use super::digest::StepFacts;
use super::{CommitCache, LiveRun};
use crate::connection::{DbConnection, SqlStatement};
use crate::events;
use crate::failure::StoreFault;
use crate::overview::{self, SpawnColumns, reply_rank};
use crate::rows::{self, FIRST_OF_CAST, FIRST_OF_ENTITY};
use crate::value::{Value, values};

/// The data of a step to write: its records, or the records for the refused case, and the changes of its money and
/// contracts.
pub(super) struct AcceptedStep {
    pub drafts: Vec<RecordDraft>,
    pub records: Vec<Record>,
    pub changes: Box<Changes>,
    pub written: Vec<ContractUpsert>,
    pub refused: Option<Decision>,
}

impl CommitCache {
    /// Writes the records of an accepted step, and their entries in the index.
    pub(super) async fn write(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        run: RunId,
        accepted: AcceptedStep,
    ) -> Result<(), StoreFault> {
        let AcceptedStep { drafts, records, changes, written, refused: _ } = accepted;
        let Some(mut live) = self.runs.remove(&run) else { return Ok(()) };
        let Some(part) = live.partial.tree.run_part(run) else { return Ok(()) };
        let row = part.newest.get();
        let was_over = matches!(live.part.phase, Phase::Ended(_));
        // The row of the run changes with everything but the place of its newest record.
        let changed = live.key == 0 || part != (RunPart { newest: part.newest, ..live.part.clone() });
        // A copied run may end with any record, and nobody may go on with it.
        let rests = changed || matches!(step.target, StepTarget::Import { .. });
        let facts = self.digest_step(link, &mut live, step, &drafts, rests).await?;
        if live.key == 0 {
            self.insert_run(link, step, &mut live, &part).await?;
        } else {
            self.update_run(step, &mut live, &part, changed);
        }
        live.part = part;
        live.used = self.groups;
        live.rows.insert(row);
        self.write_bodies(step);
        if let Some(SqlStatement { sql, values }) = events::insert_step(live.key, &step.id, &records) {
            self.push(sql, values);
        }
        self.write_ledger(&changes)?;
        self.write_contracts(&written)?;
        for (record, draft) in records.iter().zip(&drafts) {
            self.write_index(link, &mut live, row, record, draft.event(), &facts).await?;
        }
        if rests && !was_over {
            self.write_summary(&mut live);
        }
        live.partial.trim();
        let LiveRun { partial, sums, .. } = &mut live;
        sums.retain(|entity, _| partial.entity_keys.contains_key(entity));
        let oldest = live.partial.tree.oldest_open().map_or(row, |seq| seq.get().min(row));
        live.rows = live.rows.split_off(&oldest);
        // The open turns of a run that has ended or failed may be changed by other processes too, so such a run is not
        // cached.
        if live.part.phase == Phase::Live {
            self.runs.insert(run, live);
        }
        Ok(())
    }

    /// Writes the bodies of a step that the store does not have yet.
    pub(super) fn write_bodies(&mut self, step: &Step) {
        for body in &step.bodies {
            let values = vec![body.hash().into(), body.bytes().to_vec().into()];
            self.push(
                "INSERT INTO bodies (body_hash, bytes) VALUES (?1, ?2) ON CONFLICT (body_hash) DO NOTHING",
                values,
            );
        }
    }

    /// Inserts the row of a new run.
    async fn insert_run(
        &mut self,
        link: &mut DbConnection,
        step: &Step,
        live: &mut LiveRun,
        part: &RunPart,
    ) -> Result<(), StoreFault> {
        live.loom_key = self.loom_key(link, part.opening.loom_id).await?;
        let opening = &part.opening;
        let sql = "INSERT INTO runs (run_id, loom_key, kind, owner, entity_id, root_run_id, phase, parked, approvals, \
                   copied, epoch, created_at, ended_at) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) RETURNING run_key";
        let values = values![
            part.run_id,
            live.loom_key,
            rows::kind_name(opening.kind),
            opening.owner.as_str(),
            opening.entity_id,
            opening.root_run_id,
            rows::phase_name(part.phase),
            part.parked,
            rows::approvals_json(&part.approvals),
            part.copied,
            part.epoch.get(),
            part.created_at,
            part.ended_at,
        ];
        live.key = insert_returning_key(link, sql, values).await?;
        if let StepTarget::OpenRun { lease: Some(lease), .. } = &step.target {
            live.lease = LeaseState { epoch: lease.epoch, holder: Some(lease.clone()) };
        }
        live.lease.epoch = live.lease.epoch.max(part.epoch);
        let holder = live.lease.holder.as_ref();
        self.push(
            "INSERT INTO run_leases (run_key, owner, epoch, expires_at) VALUES (?1, ?2, ?3, ?4)",
            vec![
                live.key.into(),
                holder.map(|lease| lease.owner.as_str()).into(),
                live.lease.epoch.get().into(),
                holder.map(|lease| lease.expires_at).into(),
            ],
        );
        Ok(())
    }

    /// Updates the row of a run, if it has changed.
    fn update_run(&mut self, step: &Step, live: &mut LiveRun, part: &RunPart, changed: bool) {
        if changed {
            self.push(
                "UPDATE runs SET phase = ?2, parked = ?3, approvals = ?4, copied = ?5, epoch = ?6, ended_at = ?7 \
                 WHERE run_key = ?1",
                vec![
                    live.key.into(),
                    rows::phase_name(part.phase).into(),
                    part.parked.into(),
                    rows::approvals_json(&part.approvals).into(),
                    part.copied.into(),
                    part.epoch.get().into(),
                    part.ended_at.into(),
                ],
            );
        }
        if let StepTarget::Import { run, .. } = step.target
            && part.epoch > live.lease.epoch
        {
            let tenure = LeaseState { epoch: part.epoch, ..live.lease.clone() };
            live.lease = tenure.clone();
            self.set_lease_state(run, live.key, tenure);
        }
    }

    async fn loom_key(&mut self, link: &mut DbConnection, loom: LoomId) -> Result<i64, StoreFault> {
        if let Some(key) = self.looms.get(&loom) {
            return Ok(*key);
        }
        let sql = "INSERT INTO looms (loom_id) VALUES (?1) ON CONFLICT (loom_id) DO NOTHING";
        link.execute(sql, values![loom]).await?;
        let mut found = link.query("SELECT loom_key FROM looms WHERE loom_id = ?1", values![loom]).await?;
        let key = found.pop().map(|mut row| row.int()).transpose()?.ok_or_else(|| events::missing_record(None, 0))?;
        self.looms.insert(loom, key);
        Ok(key)
    }

    /// Writes the index entries of a record.
    async fn write_index(
        &mut self,
        link: &mut DbConnection,
        live: &mut LiveRun,
        row: u64,
        record: &Record,
        event: &Event,
        facts: &StepFacts,
    ) -> Result<(), StoreFault> {
        let seq = record.seq.get();
        if let Event::Root(root) = event {
            let loom = live.part.opening.loom_id;
            self.push(
                "INSERT INTO roots (loom_key, cantrip_id, run_key, step_seq, seq, crystal) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (loom_key, cantrip_id) DO NOTHING",
                vec![
                    live.loom_key.into(),
                    root.cantrip_id.to_string().into(),
                    live.key.into(),
                    row.into(),
                    seq.into(),
                    overview::crystal_name(root, &facts.bodies).into(),
                ],
            );
            self.roots.entry((loom, root.cantrip_id)).or_insert_with(|| RootPart {
                loom_id: loom,
                root: std::sync::Arc::new(root.clone()),
                at: record.at,
            });
        } else if let Event::Entity(entity) = event {
            let (origin, above) = match entity.origin {
                Origin::Root => ("root", None),
                Origin::Child { parent, .. } => ("child", Some(parent)),
                Origin::Fork(fork) => ("fork", Some(fork.turn)),
            };
            let parent = above.and_then(|turn| live.partial.tree.turn_part(turn));
            let parent_key = parent.as_ref().and_then(|turn| live.partial.entity_keys.get(&turn.entity_id).copied());
            let spawn = SpawnColumns::of(entity);
            let sql = "INSERT INTO entities (entity_id, loom_key, run_key, step_seq, seq, origin, origin_id, at, \
                         cantrip_id, parent_key, parent_sequence, call_id, call_index, environment) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) RETURNING entity_key";
            let values = values![
                entity.entity_id,
                live.loom_key,
                live.key,
                row,
                seq,
                origin,
                above,
                record.at,
                entity.cantrip_id.to_string(),
                parent_key,
                parent.map(|turn| turn.sequence),
                spawn.call_id,
                spawn.call_index,
                spawn.environment,
            ];
            let key = insert_returning_key(link, sql, values).await?;
            live.partial.entity_keys.insert(entity.entity_id, key);
        } else if let Event::Cast(cast) = event {
            let entity = require_key(live.partial.entity_keys.get(&cast.entity_id), record)?;
            // The entity was free, so a cast of it without an end was left by a failed run.
            if live.partial.tree.entity(cast.entity_id)?.casts.len() > 1 {
                self.push(
                    "UPDATE casts SET given_up = 1 WHERE entity_key = ?1 AND end_seq IS NULL AND cast_id <> ?2",
                    vec![entity.into(), cast.cast_id.into()],
                );
            }
            let (intent, earlier) = overview::cast_intent(cast, &facts.bodies);
            let sql = "INSERT INTO casts (cast_id, entity_key, run_key, step_seq, seq, intent) \
                       VALUES (?1, ?2, ?3, ?4, ?5, coalesce(?6, (SELECT c.intent FROM casts c WHERE c.cast_id = ?7))) \
                       RETURNING cast_key";
            let values = values![cast.cast_id, entity, live.key, row, seq, intent, earlier];
            let key = insert_returning_key(link, sql, values).await?;
            live.partial.cast_keys.insert(cast.cast_id, key);
        } else if let Event::Turn(closed) = event {
            let part = live.partial.tree.turn_part(closed.turn_id);
            let places = live.partial.tree.places(closed.turn_id);
            let (part, places) = part.zip(places).ok_or_else(|| events::missing_record(Some(record.run), seq))?;
            let places = events::encode_places(places, &live.rows)?;
            let first =
                i64::from(part.first_of_cast) * FIRST_OF_CAST + i64::from(part.first_of_entity) * FIRST_OF_ENTITY;
            let holder = (part.holder != part.id).then_some(part.holder);
            let entity = require_key(live.partial.entity_keys.get(&part.entity_id), record)?;
            let closed = facts.closed.get(&part.id);
            let [cost_sum, currency] = self.cost_sum(link, live, entity, &part, closed).await?.columns();
            self.push(
                "INSERT INTO turns (turn_id, loom_key, entity_key, cast_key, sequence, holder_id, first, places, at, \
                   worst, cost_sum, currency) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
                vec![
                    part.id.into(),
                    live.loom_key.into(),
                    entity.into(),
                    require_key(live.partial.cast_keys.get(&part.cast_id), record)?.into(),
                    part.sequence.into(),
                    holder.into(),
                    first.into(),
                    places.into(),
                    record.at.into(),
                    closed.map_or(0, |closed| reply_rank(closed.worst)).into(),
                    cost_sum,
                    currency,
                ],
            );
        } else if let Event::Fold(fold) = event {
            let entity = require_key(live.partial.entity_keys.get(&fold.entity_id), record)?;
            self.push(
                "INSERT INTO folds (fold_id, entity_key, after_id, run_key, step_seq, seq) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                vec![fold.fold_id.into(), entity.into(), fold.after.into(), live.key.into(), row.into(), seq.into()],
            );
        } else if let Event::End(end) = event {
            let (outcome, reason) = overview::ending_columns(end);
            self.push(
                "UPDATE casts SET end_step_seq = ?2, end_seq = ?3, outcome = ?4, reason = ?5 WHERE cast_id = ?1",
                vec![end.cast_id.into(), row.into(), seq.into(), outcome.into(), reason.into()],
            );
        } else if let Event::ApprovalRequested(asked) = event {
            let SqlStatement { sql, values } = overview::waiting_statement(live.key, asked, record.at);
            self.push(sql, values);
        } else if let Event::ApprovalDecided(decided) = event {
            self.push(
                "DELETE FROM waiting_calls WHERE run_key = ?1 AND approval_id = ?2",
                vec![live.key.into(), decided.approval_id.into()],
            );
        } else if let Event::Reward(reward) = event {
            self.push(
                "INSERT INTO rewards (turn_id, run_key, step_seq, seq) VALUES (?1, ?2, ?3, ?4)",
                vec![reward.turn_id.into(), live.key.into(), row.into(), seq.into()],
            );
        }
        Ok(())
    }
}

fn require_key(key: Option<&i64>, record: &Record) -> Result<i64, Error> {
    key.copied().ok_or_else(|| events::missing_record(Some(record.run), record.seq.get()))
}

async fn insert_returning_key(link: &mut DbConnection, sql: &str, values: &[Value]) -> Result<i64, StoreFault> {
    let mut rows = link.query(sql, values).await?;
    let key = rows.pop().map(|mut row| row.int()).transpose()?;
    Ok(key.ok_or_else(|| events::missing_record(None, 0))?)
}
