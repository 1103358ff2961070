//! What does the journal of a run contain, entity by entity?

use std::collections::HashMap;
use std::time::Duration;

use cantrip_canon::{CastId, EntityId, FoldId, Timestamp, TurnId};
use cantrip_loom::{BodyRef, CallId, Caller, Closing, Epoch, Error, Event, IntentRecord, Origin, Record};

use crate::driver::EntityLog;

/// Finds the entity of each record of a run. Records name turns, casts and calls; earlier records show which entity
/// those belong to.
#[derive(Debug, Default)]
pub(crate) struct RecordEntities {
    casts: HashMap<CastId, EntityId>,
    turns: HashMap<TurnId, EntityId>,
    folds: HashMap<FoldId, EntityId>,
}

impl RecordEntities {
    /// Returns the entity of this record, which must be the next one of its run.
    pub(crate) fn entity_of(&mut self, event: &Event) -> Option<EntityId> {
        let entity = self.known(event)?;
        if let Event::Cast(cast) = event {
            self.casts.insert(cast.cast_id, entity);
        } else if let Event::Attempt(attempt) = event {
            match attempt.call_id.caller() {
                Caller::Turn(turn) => self.turns.insert(turn, entity),
                Caller::Fold(fold) => self.folds.insert(fold, entity),
            };
        } else if let Event::Opened(opened) = event {
            self.turns.insert(opened.turn_id, entity);
        } else if let Event::Turn(closed) = event
            && let Closing::Sealed { next, .. } = &closed.closing
        {
            self.turns.insert(*next, entity);
        }
        Some(entity)
    }

    fn known(&self, event: &Event) -> Option<EntityId> {
        let of_cast = |cast: &CastId| self.casts.get(cast).copied();
        let of_turn = |turn: &TurnId| self.turns.get(turn).copied();
        match event {
            Event::Root(_)
            | Event::Failed(_)
            | Event::ApprovalDecided(_)
            | Event::SpendSettled(_)
            | Event::ReconcileRequired(_)
            | Event::SpendOverage(_)
            | Event::PredictClosed(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobAsked(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobAccepted(_)
            | Event::JobProgress(_)
            | Event::JobParked(_)
            | Event::JobClosed(_) => None,
            Event::Entity(entity) => Some(entity.entity_id),
            Event::Cast(cast) => Some(cast.entity_id),
            Event::Attempt(attempt) => of_cast(&attempt.cast_id),
            Event::Opened(opened) => of_cast(&opened.cast_id),
            Event::Started(started) => self.caller(started.call_id.caller()),
            Event::Settled(settled) => self.caller(settled.call_id.caller()),
            Event::Turn(closed) => of_turn(&closed.turn_id),
            Event::Fold(fold) => Some(fold.entity_id),
            Event::Parked(parked) => of_cast(&parked.cast_id),
            Event::End(end) => of_cast(&end.cast_id),
            Event::Reward(reward) => of_turn(&reward.turn_id),
            Event::ApprovalRequested(asked) => of_cast(&asked.cast_id),
            Event::PolicyDecision(decided) => of_cast(&decided.cast_id?),
            // The store writes the reservation record and knows the call.
            Event::SpendReserved(reserved) => {
                self.caller(reserved.call_id.to_string().parse::<CallId>().ok()?.caller())
            }
            Event::PredictOpened(opened) => of_cast(&opened.cast_id?),
            Event::Other { payload, .. } => of_cast(&payload.get("cast_id")?.as_str()?.parse().ok()?),
        }
    }

    /// Returns the entity of a caller.
    fn caller(&self, caller: Caller) -> Option<EntityId> {
        match caller {
            Caller::Turn(turn) => self.turns.get(&turn).copied(),
            Caller::Fold(fold) => self.folds.get(&fold).copied(),
        }
    }

    /// Returns the entity that spawned this one.
    pub(crate) fn parent(&self, made: &cantrip_loom::Entity) -> Option<EntityId> {
        match made.origin {
            Origin::Child { spawned_by, .. } => self.caller(spawned_by.call_id.caller()),
            Origin::Root | Origin::Fork(_) => None,
        }
    }
}

/// Groups the records of a run by entity.
pub(crate) fn entity_logs(records: &[Record]) -> Result<HashMap<EntityId, EntityLog>, Error> {
    let mut logs: HashMap<EntityId, EntityLog> = HashMap::new();
    let mut owners = RecordEntities::default();
    let mut shifts = WorkPeriods::default();
    for record in records {
        shifts.saw(record);
        let event = record.event()?;
        // A decision is written by the decider and names only the approval.
        if let Event::ApprovalDecided(_) = &event {
            for log in logs.values_mut() {
                log.events.push((record.at, event.clone()));
            }
            continue;
        }
        let Some(entity) = owners.entity_of(&event) else { continue };
        let log = logs.entry(entity).or_default();
        if let Event::Entity(made) = &event {
            log.parent = owners.parent(made);
            log.entity = Some(made.clone());
        } else if let Event::Cast(cast) = &event {
            log.cast = Some(cast.clone());
            shifts.cast(entity, record.at);
        } else if let Event::Parked(parked) = &event {
            shifts.parked(entity, parked.elapsed_ms);
        }
        log.events.push((record.at, event));
    }
    for (entity, log) in &mut logs {
        log.worked = shifts.worked(*entity);
    }
    Ok(logs)
}

/// The periods in which a worker drove a run: from the first to the last record of each owner. The time between two
/// owners does not count.
#[derive(Default)]
struct WorkPeriods {
    epoch: Option<Epoch>,
    shifts: Vec<(Timestamp, Timestamp)>,
    /// The time when each entity was cast; or the time it had used when it was parked, and the period in which it was
    /// parked.
    casts: HashMap<EntityId, WorkStart>,
}

enum WorkStart {
    Cast(Timestamp),
    Parked { elapsed: Duration, shift: usize },
}

impl WorkPeriods {
    fn saw(&mut self, record: &Record) {
        // A record that was written without a lease is not work on the run.
        if record.epoch == Epoch::NONE {
            return;
        }
        if self.epoch != Some(record.epoch) {
            self.epoch = Some(record.epoch);
            self.shifts.push((record.at, record.at));
        }
        if let Some((_, until)) = self.shifts.last_mut() {
            *until = record.at.max(*until);
        }
    }

    fn cast(&mut self, entity: EntityId, at: Timestamp) {
        self.casts.insert(entity, WorkStart::Cast(at));
    }

    fn parked(&mut self, entity: EntityId, elapsed_ms: Option<u64>) {
        if let Some(elapsed) = elapsed_ms.map(Duration::from_millis) {
            self.casts.insert(entity, WorkStart::Parked { elapsed, shift: self.shifts.len() });
        }
    }

    fn worked(&self, entity: EntityId) -> Duration {
        let (before, from, first) = match self.casts.get(&entity) {
            None => return Duration::ZERO,
            Some(WorkStart::Cast(at)) => (Duration::ZERO, *at, 0),
            Some(WorkStart::Parked { elapsed, shift }) => (*elapsed, Timestamp::EPOCH, *shift),
        };
        let shifts = self.shifts.iter().skip(first);
        let worked = shifts.map(|(began, until)| {
            let ms = until.unix_millis().saturating_sub((*began).max(from).unix_millis());
            Duration::from_millis(u64::try_from(ms).unwrap_or(0))
        });
        before + worked.sum::<Duration>()
    }
}

/// Returns the bodies that a machine reads from a record.
pub(crate) fn body_refs(event: &Event) -> Vec<BodyRef> {
    match event {
        Event::Cast(cast) => {
            let own = match &cast.intent {
                IntentRecord::New(held) => held.reference(),
                IntentRecord::Of(_) => None,
            };
            own.into_iter().chain(cast.cancelled.iter().filter_map(|told| told.intent.reference())).collect()
        }
        Event::Opened(opened) => opened.utterance.reference().into_iter().collect(),
        Event::Started(started) => {
            started.asked.as_ref().and_then(|asked| asked.args.reference()).into_iter().collect()
        }
        Event::Settled(settled) => {
            let asked = settled.asked.as_ref().and_then(|asked| asked.args.reference());
            let data = settled.data.as_ref().and_then(|data| data.reference());
            settled.result.reference().into_iter().chain(asked).chain(data).collect()
        }
        Event::Turn(closed) => closed.outputs.as_ref().and_then(|outputs| outputs.reference()).into_iter().collect(),
        Event::Fold(fold) => fold.text.reference().into_iter().collect(),
        Event::JobOpened(opened) => opened.spec.reference().into_iter().chain(opened.plan.reference()).collect(),
        Event::JobProposed(proposed) => proposed.text.reference().into_iter().collect(),
        Event::End(end) => match &end.ending {
            cantrip_loom::Ending::Terminated { result, .. } => result.reference().into_iter().collect(),
            cantrip_loom::Ending::Truncated { .. } => Vec::new(),
        },
        Event::Root(_)
        | Event::Entity(_)
        | Event::Attempt(_)
        | Event::Parked(_)
        | Event::Failed(_)
        | Event::Reward(_)
        | Event::ApprovalRequested(_)
        | Event::ApprovalDecided(_)
        | Event::PolicyDecision(_)
        | Event::SpendReserved(_)
        | Event::SpendSettled(_)
        | Event::ReconcileRequired(_)
        | Event::SpendOverage(_)
        | Event::PredictOpened(_)
        | Event::PredictClosed(_)
        | Event::JobContinued(_)
        | Event::JobAsked(_)
        | Event::JobScored(_)
        | Event::JobAccepted(_)
        | Event::JobProgress(_)
        | Event::JobParked(_)
        | Event::JobClosed(_)
        | Event::Other { .. } => Vec::new(),
    }
}
