//! What is written with the first and the last records of a run, in the same steps? Receipts, and the documents of an
//! observer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_canon::json::to_value;
use cantrip_canon::{CastId, EntityId, Instant, LoomId, RunId, Timestamp, stable_hash};
use cantrip_crystal::Profiles;
use cantrip_loom::{
    Body, ContractRow, End, Event, ModelPart, Origin, PolicyPart, ReceiptContext, RecordedError, RunKind, Tallies,
    Tally, cast_receipt,
};
use cantrip_spend::{AuthorizationRef, Decision};

use cantrip_turn::{CastFacts, millis};

/// Records, rows and bodies that an observer adds to a step of a run.
#[derive(Debug, Default)]
pub struct ExtraWrites {
    pub records: Vec<Event>,
    pub rows: Vec<ContractRow>,
    /// The bodies that the rows or records refer to by hash.
    pub bodies: Vec<Body>,
}

impl ExtraWrites {
    /// Adds the writes for one cast inside a run. Their records name that cast, so that a reader of the run knows which
    /// cast they describe.
    fn add(&mut self, more: ExtraWrites, cast: CastId) {
        for mut event in more.records {
            if let Event::PredictOpened(opened) = &mut event {
                opened.cast_id = Some(cast);
            }
            self.records.push(event);
        }
        self.rows.extend(more.rows);
        self.bodies.extend(more.bodies);
    }
}

/// A run that is about to begin.
#[derive(Debug, Clone)]
pub struct RunStart {
    pub run: RunId,
    pub loom: LoomId,
    pub entity: Option<EntityId>,
    pub epoch: u64,
    pub at: Timestamp,
}

/// The way in which the cast of a run's root entity is over.
#[derive(Debug, Clone, Copy)]
pub enum CastEndKind<'a> {
    /// The cast ended regularly, with any kind of end.
    Ended(&'a End),
    /// The loop itself failed: the cast has no end, and the run is abandoned as it is.
    Failed(&'a RecordedError),
}

/// A cast of a run's root entity that is about to be over.
#[derive(Debug)]
pub struct CastEnd<'a> {
    pub run: RunId,
    pub loom: LoomId,
    pub cast: CastId,
    pub closing: CastEndKind<'a>,
    pub tally: &'a Tally,
    /// The tallies of every cast of the run, including this one.
    pub tallies: &'a Tallies,
    /// The model that answered, and its settings.
    pub model: ModelPart,
    /// The last refusal of the policy to pay; `None` if there was none.
    pub refused: Option<PolicyPart>,
    pub at: Timestamp,
    pub latency_ms: u64,
}

/// Writes documents about the runs of a runtime. Without an observer, every cast leaves a receipt, if the store keeps
/// receipts.
///
/// The observer is called under the run's lease, before the step is written, and its writes are part of that step: they
/// are committed or lost with it. It must return at once and have no side effects.
pub trait RunObserver: Send + Sync {
    /// Returns the kind of its runs.
    fn kind(&self) -> RunKind;

    fn on_start(&self, opens: &RunStart) -> ExtraWrites;

    /// Handles a record of the run that is about to be written, with these new bodies. For a run that was taken over,
    /// the earlier records are passed first.
    fn on_record(&self, at: Timestamp, event: &Event, bodies: &[Body]) {
        let _ = (at, event, bodies);
    }

    /// Handles the end of the cast. For a run that failed, the returned records are written in place of the failure and
    /// end the run for good.
    fn on_end(&self, closes: &CastEnd<'_>) -> ExtraWrites;
}

/// The model of an entity, and since when the entity is driven.
#[derive(Debug, Clone)]
struct EntityModel {
    model: ModelPart,
    began: Instant,
    worked: Duration,
}

/// The accounting of one run: its tallies, receipts and observers.
pub(crate) struct RunAccounting {
    observer: Option<Arc<dyn RunObserver>>,
    /// True if the store keeps receipts.
    keeps: bool,
    loom: LoomId,
    owner: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tallies: Tallies,
    minds: HashMap<EntityId, EntityModel>,
    /// The root entity of the run.
    root: Option<EntityId>,
    /// The last refusal of the policy, and the entity whose request it refused.
    refused: Option<(Option<EntityId>, PolicyPart)>,
    /// The observers of predicts inside the run, by the entity that answers each.
    attended: HashMap<EntityId, Arc<dyn RunObserver>>,
    /// The caller of each entity.
    parents: HashMap<EntityId, EntityId>,
}

impl Inner {
    /// Returns the last cast of the root entity.
    fn of_root(&self) -> Option<CastId> {
        let root = self.root?;
        self.tallies.all().filter(|(_, tally)| tally.entity == root).last().map(|(cast, _)| cast)
    }

    /// Returns the predict that an entity belongs to: the entity itself, or the nearest ancestor that answers a
    /// predict.
    fn predict_of(&self, entity: EntityId) -> Option<EntityId> {
        let above = std::iter::successors(Some(entity), |below| self.parents.get(below).copied());
        above.take(self.parents.len() + 1).find(|entity| self.attended.contains_key(entity))
    }
}

impl RunAccounting {
    pub(crate) fn new(observer: Option<Arc<dyn RunObserver>>, keeps: bool, loom: LoomId, owner: String) -> Self {
        Self { observer, keeps, loom, owner, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn start_writes(&self, opens: &RunStart) -> ExtraWrites {
        self.observer.as_ref().map_or_else(ExtraWrites::default, |observer| observer.on_start(opens))
    }

    /// Adds the observer of a predict that is about to be cast or resumed. `past` holds the records of the predict so
    /// far.
    pub(crate) fn add_observer(
        &self,
        entity: EntityId,
        caller: EntityId,
        observer: Arc<dyn RunObserver>,
        past: &[(Timestamp, Event)],
    ) {
        for (at, event) in past {
            observer.on_record(*at, event, &[]);
        }
        let mut inner = self.inner();
        inner.parents.insert(entity, caller);
        inner.attended.insert(entity, observer);
    }

    /// Records the caller of an entity in a resumed run.
    pub(crate) fn set_parent(&self, entity: EntityId, parent: EntityId) {
        self.inner().parents.insert(entity, parent);
    }

    /// Returns true if an entity answers a predict inside the run.
    pub(crate) fn has_observer(&self, entity: EntityId) -> bool {
        self.inner().attended.contains_key(&entity)
    }

    /// Returns the writes for the predicts whose casts begin in these records.
    pub(crate) fn predict_start_writes(&self, run: RunId, epoch: u64, events: &[(Timestamp, Event)]) -> ExtraWrites {
        let mut papers = ExtraWrites::default();
        let inner = self.inner();
        if inner.attended.is_empty() {
            return papers;
        }
        for (at, event) in events {
            let Event::Cast(cast) = event else { continue };
            let Some(observer) = inner.attended.get(&cast.entity_id) else { continue };
            let opens = RunStart { run, loom: self.loom, entity: Some(cast.entity_id), epoch, at: *at };
            papers.add(observer.on_start(&opens), cast.cast_id);
        }
        papers
    }

    /// Adds an entity whose driver starts.
    pub(crate) fn add_entity(&self, facts: &CastFacts, now: Instant, worked: Duration) {
        let call = facts.definition.call();
        let mut settings = to_value(call.sampling_settings()).unwrap_or_default();
        if let (Some(fields), Some(most)) = (settings.as_object_mut(), call.output_tokens()) {
            fields.insert("max_tokens".to_owned(), most.into());
        }
        let name = &facts.definition.record().crystal;
        let model = ModelPart {
            name: Some(name.to_owned()),
            settings_hash: stable_hash(&settings).ok(),
            price_version: Some(Profiles::for_crystal(name).as_of().to_owned()),
            structured_mode: None,
        };
        self.inner().minds.insert(facts.entity, EntityModel { model, began: now, worked });
    }

    /// Counts records that are being written or were written before.
    pub(crate) fn count_records<'a>(&self, events: impl IntoIterator<Item = (Timestamp, &'a Event)>, bodies: &[Body]) {
        if !self.keeps {
            return;
        }
        let mut inner = self.inner();
        for (at, event) in events {
            if let (None, Event::Cast(cast)) = (inner.root, event) {
                inner.root = Some(cast.entity_id);
            }
            inner.tallies.record_event(at, event);
            if let Event::Entity(made) = event
                && let Origin::Child { spawned_by, .. } = made.origin
                && let Some(parent) = inner.tallies.calling_entity(spawned_by.call_id.caller())
            {
                inner.parents.insert(made.entity_id, parent);
            }
            if let Some(observer) = &self.observer {
                observer.on_record(at, event, bodies);
            } else if let Some(entity) = inner.tallies.entity_of_event(event)
                && let Some(observer) = inner.predict_of(entity).and_then(|predict| inner.attended.get(&predict))
            {
                observer.on_record(at, event, bodies);
            }
        }
    }

    /// Returns the entity of the first of these records whose cast is known.
    pub(crate) fn entity_of(&self, events: &[(Timestamp, Event)]) -> Option<EntityId> {
        let inner = self.inner();
        events.iter().find_map(|(_, event)| inner.tallies.entity_of_event(event))
    }

    /// Records that the policy refused to pay for a request of this entity.
    pub(crate) fn note_refusal(&self, decision: &Decision, payer: Option<AuthorizationRef>, of: Option<EntityId>) {
        let part = PolicyPart {
            policy_id: Some(cantrip_turn::policy::POLICY.to_owned()),
            authorization_id: payer.map(|payer| payer.to_string()),
            decision: Some(decision.decision.as_str().to_owned()),
            reason_code: Some(decision.reason_code.as_str().to_owned()),
            reason_codes_version: Some(decision.reason_codes_version.clone()),
            evaluation_hash: Some(decision.evaluation_hash),
            ..PolicyPart::default()
        };
        self.inner().refused = Some((of, part));
    }

    /// Sets the root entity of the run.
    pub(crate) fn set_root(&self, entity: EntityId) {
        self.inner().root = Some(entity);
    }

    /// Returns the writes for each end of a cast, or failure of the run, in these records. The records were counted
    /// before.
    pub(crate) fn end_writes(&self, run: RunId, events: &[(Timestamp, Event)], now: Instant) -> ExtraWrites {
        let mut papers = ExtraWrites::default();
        if !self.keeps {
            return papers;
        }
        let inner = self.inner();
        for (at, event) in events {
            let (cast, closing) = if let Event::End(end) = event {
                (Some(end.cast_id), CastEndKind::Ended(end))
            } else if let Event::Failed(failed) = event {
                (inner.of_root(), CastEndKind::Failed(&failed.error))
            } else {
                continue;
            };
            let Some((cast, tally)) = cast.and_then(|cast| Some((cast, inner.tallies.for_cast(cast)?))) else {
                continue;
            };
            let mind = inner.minds.get(&tally.entity);
            let latency_ms = mind.map_or(0, |mind| millis(now.since(mind.began).saturating_add(mind.worked)));
            let model = mind.map(|mind| mind.model.clone()).unwrap_or_default();
            let predict = inner.predict_of(tally.entity);
            if let Some(predict) = predict {
                // The predict's own documents include the work of its children.
                let Some(observer) = inner.attended.get(&predict).filter(|_| predict == tally.entity) else { continue };
                let within = |entity: EntityId| inner.predict_of(entity) == Some(predict);
                let tallies = &inner.tallies.for_entities(within);
                let refused = inner.refused.clone().filter(|(of, _)| of.is_some_and(within)).map(|(_, part)| part);
                let (loom, at) = (self.loom, *at);
                let closes = CastEnd { run, loom, cast, closing, tally, tallies, model, refused, at, latency_ms };
                papers.add(observer.on_end(&closes), cast);
                continue;
            }
            match &self.observer {
                None => {
                    let place = ReceiptContext {
                        run,
                        loom: self.loom,
                        owner: self.owner.clone(),
                        model,
                        policy: inner.refused.clone().map(|(_, part)| part).unwrap_or_default(),
                        at: *at,
                        latency_ms,
                        waited_ms: 0,
                    };
                    papers.rows.extend(cast_receipt(tally, place));
                }
                // The root's own documents include the work of its children.
                Some(_) if inner.root != Some(tally.entity) => {}
                Some(observer) => {
                    let tallies = &inner.tallies;
                    let (loom, at) = (self.loom, *at);
                    let refused = inner.refused.clone().map(|(_, part)| part);
                    let closes = CastEnd { run, loom, cast, closing, tally, tallies, model, refused, at, latency_ms };
                    let more = observer.on_end(&closes);
                    papers.records.extend(more.records);
                    papers.rows.extend(more.rows);
                    papers.bodies.extend(more.bodies);
                }
            }
        }
        papers
    }
}
