//! How is a run that was not watched shown? By events that are made from its records.
//!
//! A live watcher sees more: text while it is written, and failed attempts. These events show what is on record, item
//! by item, each item complete. Their ids are the ones that a live watcher saw in the usual case: the turn succeeded at
//! the first attempt, and each kind of item came in one piece. A viewer that may have seen both must forget the items
//! of a turn when the turn is started again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip_canon::{EntityId, LoomId, RunId, TurnId};
use cantrip_circle::MediumKind;
use cantrip_crystal::ItemIds;
use cantrip_loom::{Caller, CantripId, CastView, Error, Event, Journal, Loom, Origin, Record};
use cantrip_stream::{ChildOf, StreamEvent};

use super::{EventEmitter, Watcher};
use crate::driver::{LoadedBodies, Runtime};
use crate::journal::{RecordEntities, body_refs};

/// Translates the records of a run into events. It takes the records in order, from the first.
pub struct RecordTranslator {
    runtime: Runtime,
    heard: EventBuffer,
    run: RunId,
    loom: Option<LoomId>,
    owners: RecordEntities,
    entities: HashMap<EntityId, KnownEntity>,
    crystals: HashMap<CantripId, String>,
}

impl std::fmt::Debug for RecordTranslator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordTranslator").field("run", &self.run).finish_non_exhaustive()
    }
}

/// The events of one record.
#[derive(Debug, Default)]
#[must_use = "show it"]
pub struct TranslatedRecord {
    /// The group of turns that the record belongs to, by the id that viewers see.
    pub group: Option<TurnId>,
    pub events: Vec<StreamEvent>,
    /// True if the group ends with this record; then the last event reports the end.
    pub closes: bool,
}

/// An entity of the run.
struct KnownEntity {
    entity: cantrip_loom::Entity,
    depth: u64,
    cast: Option<cantrip_canon::CastId>,
    stage: Option<EventEmitter>,
}

#[derive(Clone, Default)]
struct EventBuffer(Arc<Mutex<Vec<StreamEvent>>>);

impl EventBuffer {
    fn take(&self) -> Vec<StreamEvent> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watcher for EventBuffer {
    fn on_event(&self, event: StreamEvent) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}

impl RecordTranslator {
    pub fn new(runtime: &Runtime, run: RunId) -> Self {
        let heard = EventBuffer::default();
        Self {
            runtime: runtime.with_watcher(heard.clone()),
            heard,
            run,
            loom: None,
            owners: RecordEntities::default(),
            entities: HashMap::new(),
            crystals: HashMap::new(),
        }
    }

    /// Translates the next record. `wants` returns true for a group that is to be shown. For other groups no body is
    /// read, and the events contain only the end.
    pub async fn translate(
        &mut self,
        record: &Record,
        wants: impl Fn(TurnId) -> bool,
    ) -> Result<TranslatedRecord, Error> {
        if let Some(opening) = record.opening()? {
            self.loom = Some(opening.loom_id);
        }
        let event = record.event()?;
        let Some(entity) = self.owners.entity_of(&event) else { return Ok(TranslatedRecord::default()) };
        if let Event::Entity(made) = &event {
            let above = self.owners.parent(made).and_then(|parent| self.entities.get(&parent));
            let depth = above.map_or(0, |above| above.depth + 1);
            self.entities.insert(entity, KnownEntity { entity: made.clone(), depth, cast: None, stage: None });
            return Ok(TranslatedRecord::default());
        }
        if let Event::Cast(cast) = &event {
            self.begin_cast(entity, cast.cast_id).await?;
            return Ok(TranslatedRecord::default());
        }
        self.prepare_emitter(entity, &event, &wants).await?;
        let Some(stage) = self.entities.get_mut(&entity).and_then(|made| made.stage.as_mut()) else {
            return Ok(TranslatedRecord::default());
        };
        stage.at = Some(record.at);
        if let Some(turn) = requested_turn(&event) {
            stage.begin_group(turn);
        }
        let Some(group) = stage.group.turn else { return Ok(TranslatedRecord::default()) };
        let wanted = wants(group);
        let mut bodies = LoadedBodies::default();
        if wanted {
            for reference in body_refs(&event) {
                let body = self.runtime.loom().body(reference.hash).await?;
                bodies.0.insert(reference.hash, Arc::clone(body.bytes()));
            }
            if let Event::Opened(opened) = &event
                && let Ok(said) = opened.utterance.load(&bodies)
            {
                stage.emit_utterance(&said, &ItemIds::of(&cantrip_loom::CallId::request(group)));
            }
        }
        stage.emit_committed(&[(record.at, event)], &bodies);
        let closes = stage.group.turn != Some(group);
        let mut events = self.heard.take();
        if !wanted {
            let end = events.pop().filter(|_| closes);
            events = end.into_iter().collect();
        }
        Ok(TranslatedRecord { group: Some(group), events, closes })
    }

    /// Handles a further cast of an entity, which may have been created in an earlier run.
    async fn begin_cast(&mut self, entity: EntityId, cast: cantrip_canon::CastId) -> Result<(), Error> {
        if !self.entities.contains_key(&entity) {
            let made = self.runtime.loom().entity(entity).await?.entity;
            self.entities.insert(entity, KnownEntity { entity: made, depth: 0, cast: None, stage: None });
        }
        if let Some(made) = self.entities.get_mut(&entity) {
            made.cast = Some(cast);
            made.stage = None;
        }
        Ok(())
    }

    /// Creates the emitter of an entity before its first utterance.
    async fn prepare_emitter(
        &mut self,
        entity: EntityId,
        event: &Event,
        wants: &impl Fn(TurnId) -> bool,
    ) -> Result<(), Error> {
        let Some(turn) = requested_turn(event) else { return Ok(()) };
        let Some(KnownEntity { entity: made, depth, cast, stage: None }) = self.entities.get(&entity) else {
            return Ok(());
        };
        let child = match made.origin {
            Origin::Root | Origin::Fork(_) => ChildOf::default(),
            Origin::Child { parent, .. } => ChildOf {
                entity_id: Some((&entity).into()),
                parent_turn_id: Some((&parent).into()),
                depth: Some(*depth),
            },
        };
        let medium: MediumKind = made.medium.parse().unwrap_or(MediumKind::Conversation);
        let (mode, cantrip, cast) = (made.mode, made.cantrip_id, *cast);
        let intent = match cast.filter(|_| wants(turn)) {
            Some(cast) => {
                let CastView { intent, .. } = self.runtime.loom().cast(cast).await?;
                Some(intent.text())
            }
            None => None,
        };
        let model = self.crystal(cantrip).await?;
        let stage = EventEmitter::new(self.runtime.clone(), self.run, &model, child, intent, (medium, mode));
        if let Some(made) = self.entities.get_mut(&entity) {
            made.stage = Some(stage);
        }
        Ok(())
    }

    /// Returns the name of a cantrip's crystal.
    async fn crystal(&mut self, cantrip: CantripId) -> Result<String, Error> {
        if !self.crystals.contains_key(&cantrip)
            && let Some(loom) = self.loom
        {
            let roots = self.runtime.loom().roots(loom).await?;
            self.crystals.extend(roots.into_iter().map(|root| (root.cantrip_id, root.cantrip.crystal)));
        }
        Ok(self.crystals.get(&cantrip).cloned().unwrap_or_else(|| "own/unknown".to_owned()))
    }
}

/// Returns the turn that a record requests or opens.
fn requested_turn(event: &Event) -> Option<TurnId> {
    if let Some(opened) = event.as_opened() {
        return Some(opened.turn_id);
    }
    if let Caller::Turn(turn) = event.as_attempt()?.call_id.caller() { Some(turn) } else { None }
}
