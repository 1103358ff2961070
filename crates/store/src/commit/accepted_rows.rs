//! The rows of an accepted step: its records, its run, and the index of what its records make.

use cantrip_canon::{LoomId, RunId};
use cantrip_loom::{Error, Event, LeaseState, Origin, Phase, Record, RootPart, RunPart, Step, StepTarget};

use super::{AcceptedStep, CommitCache, LiveRun};
use crate::connection::{DbConnection, SqlStatement};
use crate::events;
use crate::failure::StoreFault;
use crate::rows::{self, FIRST_OF_CAST, FIRST_OF_ENTITY};
use crate::value::{Value, values};

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
        if live.key == 0 {
            self.insert_run(link, step, &mut live, &part).await?;
        } else {
            self.update_run(step, &mut live, &part);
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
            self.write_index(link, &mut live, row, record, draft.event()).await?;
        }
        live.partial.trim();
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
    fn update_run(&mut self, step: &Step, live: &mut LiveRun, part: &RunPart) {
        let as_stored = RunPart { newest: part.newest, ..live.part.clone() };
        if *part != as_stored {
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
    ) -> Result<(), StoreFault> {
        let seq = record.seq.get();
        if let Event::Root(root) = event {
            let loom = live.part.opening.loom_id;
            self.push(
                "INSERT INTO roots (loom_key, cantrip_id, run_key, step_seq, seq) VALUES (?1, ?2, ?3, ?4, ?5) \
                 ON CONFLICT (loom_key, cantrip_id) DO NOTHING",
                vec![live.loom_key.into(), root.cantrip_id.to_string().into(), live.key.into(), row.into(), seq.into()],
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
            let sql = "INSERT INTO entities (entity_id, loom_key, run_key, step_seq, seq, origin, origin_id, at) \
                       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) RETURNING entity_key";
            let values = values![entity.entity_id, live.loom_key, live.key, row, seq, origin, above, record.at];
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
            let sql = "INSERT INTO casts (cast_id, entity_key, run_key, step_seq, seq) VALUES (?1, ?2, ?3, ?4, ?5) \
                       RETURNING cast_key";
            let key = insert_returning_key(link, sql, values![cast.cast_id, entity, live.key, row, seq]).await?;
            live.partial.cast_keys.insert(cast.cast_id, key);
        } else if let Event::Turn(closed) = event {
            let part = live.partial.tree.turn_part(closed.turn_id);
            let places = live.partial.tree.places(closed.turn_id);
            let (part, places) = part.zip(places).ok_or_else(|| events::missing_record(Some(record.run), seq))?;
            let places = events::encode_places(places, &live.rows)?;
            let first =
                i64::from(part.first_of_cast) * FIRST_OF_CAST + i64::from(part.first_of_entity) * FIRST_OF_ENTITY;
            let holder = (part.holder != part.id).then_some(part.holder);
            self.push(
                "INSERT INTO turns (turn_id, loom_key, entity_key, cast_key, sequence, holder_id, first, places, at) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                vec![
                    part.id.into(),
                    live.loom_key.into(),
                    require_key(live.partial.entity_keys.get(&part.entity_id), record)?.into(),
                    require_key(live.partial.cast_keys.get(&part.cast_id), record)?.into(),
                    part.sequence.into(),
                    holder.into(),
                    first.into(),
                    places.into(),
                    record.at.into(),
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
            self.push(
                "UPDATE casts SET end_step_seq = ?2, end_seq = ?3 WHERE cast_id = ?1",
                vec![end.cast_id.into(), row.into(), seq.into()],
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
