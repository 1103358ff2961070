//! Which turns touched private data, untrusted content or a way out?
//!
//! The request for an approval names the labels that its entity has touched, and not the turns. A label counts from the
//! moment its gate is entered, so the start records of the run tell them. They are read only for a call that would
//! complete the three labels.

use std::collections::{BTreeMap, HashMap, HashSet};

use cantrip_service::cantrip::canon::{CastId, EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{
    ApprovalRequested, CallStarted, CallWork, Caller, Closing, Event, Journal, Loom, Origin, RecordValue, Seq,
    Utterance,
};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::TryStreamExt;
use serde_json::Value;

use crate::limits::{PROPOSAL_PATH_TURNS_MAX, PROPOSAL_TURNS_MAX};
use crate::{Views, stored};

/// The labels of each gate of a circle.
type GateLabels = HashMap<String, Vec<String>>;

/// The turns that touched each label, oldest first.
pub(crate) type LabelTurns = BTreeMap<String, Vec<TurnId>>;

impl Views<'_> {
    /// Returns the turns that touched each of these labels before the approval was requested. A label without turns was
    /// touched before the thread that is looked at.
    pub(crate) async fn label_turns(
        &self,
        run: RunId,
        asked: &ApprovalRequested,
        touched: &[String],
    ) -> Result<LabelTurns, Refusal> {
        let entity = self.loom().cast(asked.cast_id).await.map_err(stored)?.cast.entity_id;
        let gates = self.gate_labels(run, entity).await?;
        let entered = self.entered_gates(run, asked, entity).await?;
        let mut turns: LabelTurns = touched.iter().map(|label| (label.clone(), Vec::new())).collect();
        for (turn, gate) in &entered {
            note_labels(&mut turns, &gates, *turn, gate);
        }
        if turns.values().any(Vec::is_empty) {
            self.note_earlier_turns(entity, &gates, &mut turns).await?;
        }
        for list in turns.values_mut() {
            let surplus = list.len().saturating_sub(PROPOSAL_TURNS_MAX);
            list.drain(..surplus);
        }
        Ok(turns)
    }

    /// Returns the labels of the gates, as the root record of the run's entity has them. Every gate of a child is a
    /// gate of its parent.
    async fn gate_labels(&self, run: RunId, asking: EntityId) -> Result<GateLabels, Refusal> {
        let root = self.loom().run(run).await.map_err(stored)?.entity_id.unwrap_or(asking);
        let root = self.loom().entity(root).await.map_err(stored)?;
        let cantrips = self.loom().roots(root.loom_id).await.map_err(stored)?;
        let cantrip = cantrips.into_iter().find(|known| known.cantrip_id == root.entity.cantrip_id);
        let circle = cantrip.map(|known| known.cantrip.circle).unwrap_or_default();
        let gates = circle.get("gates").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let labels = |gate: &Value| {
            let listed = gate.get("labels").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            listed.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Ok(gates.iter().filter_map(|gate| Some((gate.get("name")?.as_str()?.to_owned(), labels(gate)))).collect())
    }

    /// Returns the gates that were entered before the request, with their turns: by the asking entity, by those above
    /// it, and by entities that had ended. Labels of an entity that still ran had not reached the asking one.
    async fn entered_gates(
        &self,
        run: RunId,
        asked: &ApprovalRequested,
        asking: EntityId,
    ) -> Result<Vec<(TurnId, String)>, Refusal> {
        let mut scan = StartScan::default();
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await.map_err(stored)? {
            let event = record.event().map_err(stored)?;
            if let Event::Started(started) = &event {
                if let Some((turn, gate)) = self.gate_of_start(&scan, started).await? {
                    scan.entered.push((turn, gate));
                }
            } else if event.as_approval_requested().is_some_and(|request| request.approval_id == asked.approval_id) {
                break;
            } else {
                scan.note(event);
            }
        }
        Ok(scan.into_entered(asking))
    }

    /// Returns the turn and the gate of a call that started.
    async fn gate_of_start(
        &self,
        scan: &StartScan,
        started: &CallStarted,
    ) -> Result<Option<(TurnId, String)>, Refusal> {
        let (Caller::Turn(turn), CallWork::Gate) = (started.call_id.caller(), &started.work) else { return Ok(None) };
        if let Some(asked) = &started.asked {
            return Ok(Some((turn, asked.gate.clone())));
        }
        let Some(utterance) = scan.said.get(&turn) else { return Ok(None) };
        let calls = self.load(utterance).await.map_err(stored)?.calls;
        let place = usize::try_from(started.call_id.number()).ok().and_then(|number| number.checked_sub(1));
        Ok(place.and_then(|place| calls.into_iter().nth(place)).map(|call| (turn, call.gate)))
    }

    /// Looks for labels in the closed turns of the entity's thread, which earlier runs may have made. A call that
    /// failed may have been refused before it entered its gate, so only successful ones count.
    async fn note_earlier_turns(
        &self,
        entity: EntityId,
        gates: &GateLabels,
        turns: &mut LabelTurns,
    ) -> Result<(), Refusal> {
        let Some(leaf) = self.loom().entity(entity).await.map_err(stored)?.leaf else { return Ok(()) };
        let missing: HashSet<String> =
            turns.iter().filter(|(_, found)| found.is_empty()).map(|(label, _)| label.clone()).collect();
        let mut earlier: LabelTurns = missing.into_iter().map(|label| (label, Vec::new())).collect();
        for turn in self.loom().tail(leaf, PROPOSAL_PATH_TURNS_MAX).await.map_err(stored)? {
            for record in turn.gate_calls.iter().filter(|record| !record.is_error()) {
                note_labels(&mut earlier, gates, turn.id, &record.gate);
            }
        }
        turns.extend(earlier);
        Ok(())
    }
}

/// Adds a turn to the labels of the gate that it entered.
fn note_labels(turns: &mut LabelTurns, gates: &GateLabels, turn: TurnId, gate: &str) {
    for label in gates.get(gate).into_iter().flatten() {
        if let Some(list) = turns.get_mut(label)
            && list.last() != Some(&turn)
        {
            list.push(turn);
        }
    }
}

/// The state of a scan through the journal of a run.
#[derive(Debug, Default)]
struct StartScan {
    entities: HashMap<CastId, EntityId>,
    /// The turn whose call spawned each child.
    spawned_by: HashMap<EntityId, TurnId>,
    casts: HashMap<TurnId, CastId>,
    /// The utterances of turns whose calls may still start.
    said: HashMap<TurnId, RecordValue<Utterance>>,
    ended: HashSet<EntityId>,
    entered: Vec<(TurnId, String)>,
}

impl StartScan {
    fn note(&mut self, event: Event) {
        if let Event::Entity(entity) = event {
            if let Origin::Child { parent, .. } = entity.origin {
                self.spawned_by.insert(entity.entity_id, parent);
            }
        } else if let Event::Cast(cast) = event {
            self.entities.insert(cast.cast_id, cast.entity_id);
        } else if let Event::Opened(opened) = event {
            self.casts.insert(opened.turn_id, opened.cast_id);
            self.said.insert(opened.turn_id, opened.utterance);
        } else if let Event::Turn(closed) = event {
            match closed.closing {
                // The calls of its utterance go on in the continuation.
                Closing::Sealed { .. } => {}
                Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => {
                    self.said.remove(&closed.turn_id);
                }
            }
        } else if let Event::End(end) = event
            && let Some(entity) = self.entities.get(&end.cast_id)
        {
            self.ended.insert(*entity);
        }
    }

    fn entity_of(&self, turn: TurnId) -> Option<EntityId> {
        self.entities.get(self.casts.get(&turn)?).copied()
    }

    /// Returns the entered gates whose labels count for this entity.
    fn into_entered(mut self, asking: EntityId) -> Vec<(TurnId, String)> {
        let mut above = HashSet::from([asking]);
        let mut next = self.spawned_by.get(&asking).copied();
        while let Some(parent) = next.and_then(|turn| self.entity_of(turn)) {
            if !above.insert(parent) {
                break;
            }
            next = self.spawned_by.get(&parent).copied();
        }
        let mut entered = std::mem::take(&mut self.entered);
        entered.retain(|(turn, _)| {
            self.entity_of(*turn).is_some_and(|entity| above.contains(&entity) || self.ended.contains(&entity))
        });
        entered
    }
}
