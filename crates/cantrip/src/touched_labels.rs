//! Which of the three risk labels has an entity touched?
//!
//! A label counts from the moment its gate is entered, whatever the reply is. The labels of a child count for its
//! parent when the child ends. Only the start record of a call shows that its gate was entered: a refused call has a
//! record too. So the journal is read, but only if the turns alone leave a doubt. Reading all of it for every fork
//! would double the cost of a long thread.

use std::collections::{HashMap, HashSet};

use cantrip_canon::{EntityId, RunId, TurnId};
use cantrip_circle::{Circle, Labels};
use cantrip_loom::{
    Bodies, CallId, CallStarted, CallWork, Caller, Error, Event, GateRecord, Journal, Record, Seq, Settlement, Thread,
    Utterance, render,
};
use futures_util::TryStreamExt;

use crate::driver::{EntityLog, Runtime};
use crate::journal::entity_logs;
use crate::runtime_error::RuntimeError;

/// Returns the labels that each entity of a run has touched, including its ended children, as far as the records show.
/// Every gate of a child is a gate of its parent, so one circle knows all of them.
pub(crate) fn labels_by_entity(
    logs: &HashMap<EntityId, EntityLog>,
    circle: &Circle,
    bodies: &dyn Bodies,
) -> Result<HashMap<EntityId, Labels>, Error> {
    let mut own = HashMap::new();
    let mut children: HashMap<EntityId, Vec<EntityId>> = HashMap::new();
    for (entity, log) in logs {
        let (touched, ended) = of_log(log, circle, bodies)?;
        own.insert(*entity, touched);
        children.insert(*entity, ended);
    }
    let with_children = |entity: &EntityId| {
        let mut touched = Labels::none();
        let (mut met, mut next) = (HashSet::new(), vec![*entity]);
        while let Some(entity) = next.pop() {
            if met.insert(entity) {
                touched.take(own.get(&entity).unwrap_or(&Labels::none()));
                next.extend(children.get(&entity).into_iter().flatten());
            }
        }
        (*entity, touched)
    };
    Ok(logs.keys().map(with_children).collect())
}

/// Returns the idempotent calls that have a reservation. If such a call has no answer, it is made again: with the same
/// key it has no further effect.
pub(crate) fn repeated_calls(
    logs: &HashMap<EntityId, EntityLog>,
    circle: &Circle,
    bodies: &dyn Bodies,
) -> Result<HashSet<CallId>, Error> {
    let mut again = HashSet::new();
    for log in logs.values() {
        let mut said: Option<(TurnId, Utterance)> = None;
        for (_, event) in &log.events {
            if let Event::Opened(opened) = event {
                said = Some((opened.turn_id, opened.utterance.load(bodies)?));
            }
            let Event::Started(started) = event else { continue };
            let gate = gate_of_start(started, said.as_ref()).and_then(|gate| circle.gate(gate));
            let idempotent = gate.is_some_and(|gate| gate.spec().is_idempotent());
            if started.reservation_id.is_some() && idempotent {
                again.insert(started.call_id);
            }
        }
    }
    Ok(again)
}

/// Returns the labels that an entity has touched itself, and its children whose call is settled.
fn of_log(log: &EntityLog, circle: &Circle, bodies: &dyn Bodies) -> Result<(Labels, Vec<EntityId>), Error> {
    let given = log.entity.as_ref().map(|entity| entity.labels.as_slice()).unwrap_or_default();
    let mut touched: Labels = given.iter().filter_map(|label| label.parse().ok()).collect();
    let mut ended = Vec::new();
    let mut said: Option<(TurnId, Utterance)> = None;
    for (_, event) in &log.events {
        if let Event::Opened(opened) = event {
            said = Some((opened.turn_id, opened.utterance.load(bodies)?));
        } else if let Event::Started(started) = event
            && started.work == CallWork::Gate
        {
            if let Some(gate) = gate_of_start(started, said.as_ref()).and_then(|gate| circle.gate(gate)) {
                touched.take(&gate.spec().labels);
            }
        } else if let Event::Settled(settled) = event {
            ended.extend(settled.children.iter().map(|child| child.entity_id));
        }
    }
    Ok((touched, ended))
}

/// Returns the gate of a call that started: from its record, or from the last utterance.
fn gate_of_start<'a>(started: &'a CallStarted, said: Option<&'a (TurnId, Utterance)>) -> Option<&'a str> {
    if let Some(asked) = &started.asked {
        return Some(&asked.gate);
    }
    let (_, said) = said.filter(|(turn, _)| started.call_id.caller() == Caller::Turn(*turn))?;
    let place = usize::try_from(started.call_id.number()).ok()?.checked_sub(1)?;
    said.calls.get(place).map(|call| call.gate.as_str())
}

/// The labels that follow from the turns alone.
#[derive(Default)]
struct KnownLabels {
    /// The labels that were certainly touched.
    touched: Labels,
    /// True if others may have been touched.
    doubtful: bool,
}

impl KnownLabels {
    fn of(records: &[&GateRecord], circle: &Circle) -> Self {
        let mut known = Self::default();
        let labels = |record: &GateRecord| circle.gate(&record.gate).map(|gate| gate.spec().labels.clone());
        for record in records.iter().filter(|record| !record.is_error()) {
            if let Settlement::Settled(_) = record.settlement {
                known.touched.take(&labels(record).unwrap_or_default());
            }
        }
        let more = |labels: &Labels| known.touched.with(labels) != known.touched;
        let doubtful = |record: &GateRecord| match &record.settlement {
            Settlement::Delegated => false,
            Settlement::Settled(settled) => {
                let refused = record.is_error() && labels(record).is_some_and(|labels| more(&labels));
                refused || (!settled.children.is_empty() && more(&circle.labels()))
            }
        };
        known.doubtful = records.iter().any(|record| doubtful(record));
        known
    }
}

impl Runtime {
    /// Returns the labels that an entity at the end of this thread has touched, besides those it started with.
    pub(crate) async fn touched(&self, circle: &Circle, thread: &Thread) -> Result<Labels, RuntimeError> {
        let own = render::own_turns(thread);
        let records: Vec<&GateRecord> = own.iter().flat_map(|turn| &turn.gate_calls).collect();
        let KnownLabels { mut touched, doubtful } = KnownLabels::of(&records, circle);
        if !doubtful {
            return Ok(touched);
        }
        let casts: HashSet<_> = own.iter().map(|turn| turn.cast_id).collect();
        let mut runs: Vec<RunId> = Vec::new();
        for cast in thread.casts.iter().filter(|cast| casts.contains(&cast.cast.cast_id)) {
            if !runs.contains(&cast.run_id) {
                runs.push(cast.run_id);
            }
        }
        for run in runs {
            let journal: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
            let logs = entity_logs(&journal)?;
            let kin = labels_by_entity(&logs, circle, &self.load_bodies(&logs).await?)?;
            let started: HashSet<CallId> = logs.values().flat_map(entered_calls).collect();
            for record in &records {
                if let Some(gate) = circle.gate(&record.gate).filter(|_| started.contains(&record.call_id)) {
                    touched.take(&gate.spec().labels);
                }
                if let Settlement::Settled(settled) = &record.settlement {
                    for labels in settled.children.iter().filter_map(|child| kin.get(&child.entity_id)) {
                        touched.take(labels);
                    }
                }
            }
        }
        Ok(touched)
    }
}

/// Returns the calls of a log whose gates were entered.
fn entered_calls(log: &EntityLog) -> Vec<CallId> {
    let started = log.events.iter().filter_map(|(_, event)| event.as_started());
    started.filter(|started| started.work == CallWork::Gate).map(|started| started.call_id).collect()
}
