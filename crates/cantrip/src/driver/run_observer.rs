//! What is written beside the first and the last records of a run, in the same steps: receipts, and what else someone
//! keeps who has something cast.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_canon::json::to_value;
use cantrip_canon::{CastId, EntityId, Instant, LoomId, RunId, Timestamp, stable_hash};
use cantrip_crystal::{Crystal, Profiles};
use cantrip_loom::{
    Body, ContractRow, End, Event, ModelPart, Origin, PolicyPart, ReceiptContext, RecordedError, RunKind, Tallies,
    Tally, cast_receipt,
};
use cantrip_spend::{AuthorizationRef, Decision, Ruling};

use crate::machine::{CastFacts, millis};

/// What someone has written beside the records of a run.
#[derive(Debug, Default)]
pub struct ExtraWrites {
    pub records: Vec<Event>,
    pub rows: Vec<ContractRow>,
    /// What rows or records name by hash.
    pub bodies: Vec<Body>,
}

impl ExtraWrites {
    /// Adds what is written about one cast inside a run. Its records name that cast, so that whoever reads the run knows
    /// whom they speak of.
    fn add(&mut self, more: ExtraWrites, cast: CastId) {
        for mut event in more.records {
            if let Event::Other { payload, .. } = &mut event {
                payload.insert("cast_id".to_owned(), cast.to_string().into());
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

/// How the cast of a run's own entity is over.
#[derive(Debug, Clone, Copy)]
pub enum CastEndKind<'a> {
    /// By its end, whatever that is.
    Ended(&'a End),
    /// Without one: the loop itself failed, and the run is given up as it stands.
    Failed(&'a RecordedError),
}

/// A cast of a run's own entity that is about to be over.
#[derive(Debug)]
pub struct CastEnd<'a> {
    pub run: RunId,
    pub loom: LoomId,
    pub cast: CastId,
    pub closing: CastEndKind<'a>,
    pub tally: &'a Tally,
    /// Of every cast of the run, this one too.
    pub tallies: &'a Tallies,
    /// Which model it asked, and how.
    pub model: ModelPart,
    /// What policy said where it refused to pay last; nothing if it did not.
    pub refused: Option<PolicyPart>,
    pub at: Timestamp,
    pub latency_ms: u64,
}

/// Keeps papers about the runs of a house. Without one every cast leaves a receipt, where the store keeps any.
///
/// It is asked under the run's lease, before the step is written, and what it gives stands or falls with that step. It
/// answers at once and touches nothing.
pub trait RunObserver: Send + Sync {
    /// What its runs are.
    fn kind(&self) -> RunKind;

    fn on_start(&self, opens: &RunStart) -> ExtraWrites;

    /// A record of the run is about to be written, with these new bodies. Of a run that is taken over, those that were
    /// written before are told first.
    fn on_record(&self, at: Timestamp, event: &Event, bodies: &[Body]) {
        let _ = (at, event, bodies);
    }

    /// The cast is about to be over. Records that it gives for a run that failed are written in the place of the failure,
    /// and end the run for good.
    fn on_end(&self, closes: &CastEnd<'_>) -> ExtraWrites;
}

/// Who thinks for an entity, and since when.
#[derive(Debug, Clone)]
struct EntityModel {
    model: ModelPart,
    began: Instant,
    worked: Duration,
}

/// The papers of one run.
pub(crate) struct RunAccounting {
    observer: Option<Arc<dyn RunObserver>>,
    /// Whether the store keeps receipts at all.
    keeps: bool,
    loom: LoomId,
    owner: String,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    tallies: Tallies,
    minds: HashMap<EntityId, EntityModel>,
    /// The entity that the run is about.
    root: Option<EntityId>,
    /// The last refusal of policy, and the entity whose request it refused.
    refused: Option<(Option<EntityId>, PolicyPart)>,
    /// The writers of receipts for predicts inside the run, by the entity that answers each.
    attended: HashMap<EntityId, Arc<dyn RunObserver>>,
    /// The caller of each entity.
    parents: HashMap<EntityId, EntityId>,
}

impl Inner {
    /// The last cast of the entity that the run is about.
    fn of_root(&self) -> Option<CastId> {
        let root = self.root?;
        self.tallies.all().filter(|(_, tally)| tally.entity == root).last().map(|(cast, _)| cast)
    }

    /// The predict that an entity belongs to: that it answers itself, or that it was asked for by.
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

    /// A predict is about to be cast, or gone on with: this one writes its papers. `past` are its records so far.
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

    /// Whether an entity answers a predict inside the run.
    pub(crate) fn has_observer(&self, entity: EntityId) -> bool {
        self.inner().attended.contains_key(&entity)
    }

    /// What goes with the casts of predicts that begin among these records.
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

    /// An entity sits down to work.
    pub(crate) fn add_entity(&self, facts: &CastFacts, now: Instant, worked: Duration) {
        let call = facts.cantrip.call();
        let mut settings = to_value(call.sampling_settings()).unwrap_or_default();
        if let (Some(fields), Some(most)) = (settings.as_object_mut(), call.output_tokens()) {
            fields.insert("max_tokens".to_owned(), most.into());
        }
        let name = facts.cantrip.crystal().name();
        let model = ModelPart {
            name: Some(name.to_owned()),
            settings_hash: stable_hash(&settings).ok(),
            price_version: Some(Profiles::for_crystal(name).as_of().to_owned()),
            structured_mode: None,
        };
        self.inner().minds.insert(facts.entity, EntityModel { model, began: now, worked });
    }

    /// Counts records that are written, or were.
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

    /// The entity that the first of these records speaks of whose cast is known.
    pub(crate) fn entity_of(&self, events: &[(Timestamp, Event)]) -> Option<EntityId> {
        let inner = self.inner();
        events.iter().find_map(|(_, event)| inner.tallies.entity_of_event(event))
    }

    /// Policy refused to pay for a request of this entity.
    pub(crate) fn note_refusal(&self, decision: &Decision, payer: Option<AuthorizationRef>, of: Option<EntityId>) {
        let ruling = match decision.decision {
            Ruling::Allowed => "allowed",
            Ruling::Denied => "denied",
            Ruling::NeedsApproval => "needs_approval",
        };
        let part = PolicyPart {
            policy_id: Some(crate::policy::POLICY.to_owned()),
            authorization_id: payer.map(|payer| payer.to_string()),
            decision: Some(ruling.to_owned()),
            reason_code: Some(decision.reason_code.as_str().to_owned()),
            reason_codes_version: Some(decision.reason_codes_version.clone()),
            evaluation_hash: Some(decision.evaluation_hash),
            ..PolicyPart::default()
        };
        self.inner().refused = Some((of, part));
    }

    /// The run is about this one.
    pub(crate) fn set_root(&self, entity: EntityId) {
        self.inner().root = Some(entity);
    }

    /// What goes with what ends a cast or fails the run among these records, which were counted.
    pub(crate) fn end_writes(&self, run: RunId, events: &[(Timestamp, Event)], now: Instant) -> ExtraWrites {
        let mut papers = ExtraWrites::default();
        if !self.keeps {
            return papers;
        }
        let inner = self.inner();
        for (at, event) in events {
            let (cast, closing) = match event {
                Event::End(end) => (Some(end.cast_id), CastEndKind::Ended(end)),
                Event::Failed(failed) => (inner.of_root(), CastEndKind::Failed(&failed.error)),
                Event::Root(_)
                | Event::Entity(_)
                | Event::Cast(_)
                | Event::Attempt(_)
                | Event::Opened(_)
                | Event::Started(_)
                | Event::Settled(_)
                | Event::Turn(_)
                | Event::Fold(_)
                | Event::Parked(_)
                | Event::Reward(_)
                | Event::Other { .. } => continue,
            };
            let Some((cast, tally)) = cast.and_then(|cast| Some((cast, inner.tallies.for_cast(cast)?))) else {
                continue;
            };
            let mind = inner.minds.get(&tally.entity);
            let latency_ms = mind.map_or(0, |mind| millis(now.since(mind.began).saturating_add(mind.worked)));
            let model = mind.map(|mind| mind.model.clone()).unwrap_or_default();
            let predict = inner.predict_of(tally.entity);
            if let Some(predict) = predict {
                // What the children of a predict did is in its own papers.
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
                // What its children did is in its own papers.
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
