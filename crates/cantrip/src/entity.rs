//! How are entities created? By casting, summoning and sending.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cantrip_canon::{CastId, EntityId, Money, RunId};
use cantrip_circle::{Circle, Labels, Wards};
use cantrip_loom::{
    Body, CancelledIntent, Cast, Content, Entity as Made, Event, IntentRecord, Journal, Loom, Origin, RecordDraft,
    RecordValue, RunKind, RunOpening, Step, StepId,
};
use cantrip_reply::{Call, GuardedReply, Refusal, codes};
use serde_json::Value;

use crate::cancel::Cancel;
use crate::cantrip::Cantrip;
use crate::driver::{Runtime, SandboxHolder, SandboxState};
use crate::episode::{CastReply, EntityState, Episode, MoneyPlace, Start};
use crate::options::CastOptions;
use crate::runtime_error::{RunError, RuntimeError, store_refusal};
use cantrip_turn::list::MessageList;
use cantrip_turn::{EntityHistory, UnansweredIntent, millis};

impl Cantrip {
    /// Casts the cantrip on an intent, in its own store, or in a loom that lives as long as the cast.
    ///
    /// ```
    /// use cantrip::Cantrip;
    /// use cantrip_circle::gate::builtin;
    /// use cantrip_crystal::{Response, Script, ScriptedCrystal};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let script = Script::new([Response::call("c1", "done", serde_json::json!({"answer": 3}))]);
    /// let cantrip = Cantrip::builder()
    ///     .crystal(ScriptedCrystal::new("scripted/three", script))
    ///     .gate(builtin::done())
    ///     .ward("max_turns", 5)
    ///     .build()
    ///     .unwrap();
    /// assert_eq!(cantrip.cast("how many?").await.answer(), Some(&serde_json::json!(3)));
    /// # });
    /// ```
    pub async fn cast(&self, intent: impl Into<Content>) -> CastReply {
        self.default_runtime().cast(self, CastOptions::on(intent)).await
    }

    /// Summons an entity that stays alive: each [`Entity::send`] is a new cast of the same entity.
    pub async fn summon(&self) -> Result<Entity, GuardedReply> {
        self.default_runtime().summon(self, None).await
    }

    pub(crate) fn default_runtime(&self) -> Runtime {
        self.store().map_or_else(Runtime::in_memory, |store| Runtime::new(store.clone()))
    }
}

pub(crate) fn missing_intent() -> Refusal {
    codes::contract_invalid("intent is required").into()
}

impl Runtime {
    /// Refuses a call before anything is written.
    pub(crate) async fn refuse(&self, name: &str, refusal: Refusal) -> CastReply {
        self.guard().call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await.into()
    }

    /// Casts a cantrip: a new entity, one episode.
    pub async fn cast(&self, cantrip: &Cantrip, casting: CastOptions) -> CastReply {
        match self.first_episode(cantrip, casting).await {
            Ok(episode) => episode.cast("cast", |_| {}).await,
            Err(unable) => self.refuse("cast", unable.refusal()).await,
        }
    }

    /// Casts a cantrip and returns its entity too, which stays alive. The cast is recorded like any other, and its
    /// state is kept for the next cast. The entity is `None` if nothing was cast.
    pub async fn cast_entity(&self, cantrip: &Cantrip, casting: CastOptions) -> (CastReply, Option<Entity>) {
        let episode = match self.first_episode(cantrip, casting).await {
            Ok(episode) => episode,
            Err(unable) => return (self.refuse("cast", unable.refusal()).await, None),
        };
        let (cantrip, id, seed) = (episode.cantrip.clone(), episode.entity, episode.seed);
        let (context, state) = (episode.context.clone(), Mutex::new(State::Busy(episode.run)));
        let entity = Entity(Arc::new(Inner { runtime: self.clone(), cantrip, id, seed, context, state }));
        let this = entity.clone();
        let reply = episode.cast("cast", move |kept| this.give_back(kept)).await;
        // If the first record was refused, no entity exists.
        let made = self.loom().entity(id).await.is_ok();
        (reply, made.then_some(entity))
    }

    /// Prepares everything that a first cast needs; nothing is written yet.
    async fn first_episode(&self, cantrip: &Cantrip, casting: CastOptions) -> Result<Box<Episode>, RuntimeError> {
        let CastOptions { intent, context, labels, attached: mut bodies, budget, run, follows, under, cancel } =
            casting.without_known_secrets();
        if intent.is_blank() {
            return Err(missing_intent().into());
        }
        let cancelled = self.left_to_tell(follows).await?;
        let cantrip = &cantrip.with_learned_windows().await;
        let now = self.now().wall;
        let (run, entity) = (run.unwrap_or_else(|| self.ids().next(now)), self.ids().next(now));
        let seed = self.ids().next_bits(now) as u64;
        let further = self.budget_wards(run, budget).await?;
        let circle = cantrip.circle().with_wards(&further);
        let made = entity_record(cantrip, entity, Origin::Root, seed, context.as_deref(), &labels, &mut bodies)?;
        let intent_record = IntentRecord::New(RecordValue::new(intent.clone(), &mut bodies)?);
        let root = cantrip.root(&mut bodies)?;
        let mut cast = cast_record(&circle, entity, self.ids().next(now), intent_record);
        cast.budget = further.max_cost.first().copied();
        cast.cancelled = held_cancelled(&cancelled, &mut bodies)?;
        Ok(Box::new(Episode {
            runtime: self.clone(),
            cantrip: cantrip.clone(),
            circle,
            run,
            loom: cantrip.loom_id(),
            entity,
            cast: cast.cast_id,
            intent,
            intent_record: cast.intent.clone(),
            environment: None,
            cancelled,
            seed,
            context,
            past: EntityHistory { touched: labels, ..empty_history(cantrip, cantrip.measure().window) },
            sandbox_state: SandboxState::default(),
            place: MoneyPlace { under, scope: None },
            cancel,
            start: Start::Open { events: vec![root.into(), made.into(), cast.into()], bodies },
        }))
    }

    /// Creates an entity that waits for its first intent.
    pub async fn summon(&self, cantrip: &Cantrip, context: Option<Value>) -> Result<Entity, GuardedReply> {
        let now = self.now().wall;
        let (run, id): (RunId, EntityId) = (self.ids().next(now), self.ids().next(now));
        let seed = self.ids().next_bits(now) as u64;
        let cantrip = &cantrip.with_learned_windows().await;
        let context = context.map(Arc::new);
        let written = self.try_summon(cantrip, run, id, seed, context.as_deref()).await;
        match written {
            Ok(()) => {
                let kept = EntityState {
                    past: empty_history(cantrip, cantrip.measure().window),
                    sandbox_state: SandboxState::default(),
                };
                Ok(Entity::new(self.clone(), cantrip.clone(), id, seed, context, kept))
            }
            Err(stopped) => {
                let call = Call::surface("summon").run(run);
                Err(self.guard().call(call, |rb| async { rb.refuse(stopped.refusal(run)) }).await)
            }
        }
    }

    async fn try_summon(
        &self,
        cantrip: &Cantrip,
        run: RunId,
        id: EntityId,
        seed: u64,
        context: Option<&Value>,
    ) -> Result<(), RunError> {
        let now = self.now().wall;
        let mut bodies = Vec::new();
        let root = cantrip.root(&mut bodies)?;
        let made = entity_record(cantrip, id, Origin::Root, seed, context, &Labels::none(), &mut bodies)?;
        let opening = RunOpening {
            kind: RunKind::Summon,
            loom_id: cantrip.loom_id(),
            owner: self.actor().clone(),
            entity_id: Some(id),
            root_run_id: None,
        };
        let step = Step::open_run(StepId::new("summon").expect("a short name"), run, None)
            .record(RecordDraft::opening(now, opening, root)?)
            .record(RecordDraft::new(now, made)?)
            .bodies(bodies);
        RunError::unless_committed(self.loom().append(step).await?)
    }
}

/// Returns the history of an entity before its first turn.
pub(crate) fn empty_history(cantrip: &Cantrip, window: Option<u64>) -> EntityHistory {
    EntityHistory::empty(MessageList::new(frame(cantrip, window)))
}

/// Returns the frame at the start of the message list of an entity that was created with this window.
pub(crate) fn frame(cantrip: &Cantrip, window: Option<u64>) -> cantrip_turn::list::Frame {
    let medium = cantrip.medium(cantrip.circle().medium());
    let text = medium.and_then(|medium| medium.present(cantrip.circle(), cantrip.mode()).text);
    cantrip.frame(text).windowed(window)
}

pub(crate) fn entity_record(
    cantrip: &Cantrip,
    entity_id: EntityId,
    origin: Origin,
    seed: u64,
    context: Option<&Value>,
    labels: &Labels,
    bodies: &mut Vec<Body>,
) -> Result<Made, cantrip_loom::Error> {
    Ok(Made {
        entity_id,
        cantrip_id: cantrip.id(),
        origin,
        medium: cantrip.circle().medium().to_string(),
        mode: cantrip.mode(),
        seed: format!("{seed:016x}"),
        context: context.map(|context| RecordValue::new(context.clone(), bodies)).transpose()?,
        window: cantrip.measure().window,
        labels: labels.iter().map(|label| label.as_str().to_owned()).collect(),
    })
}

/// Returns the part of a cast record that keeps the intents cancelled before the cast.
pub(crate) fn held_cancelled(
    cancelled: &[UnansweredIntent],
    bodies: &mut Vec<Body>,
) -> Result<Vec<CancelledIntent>, cantrip_loom::Error> {
    cancelled
        .iter()
        .map(|told| Ok(CancelledIntent { cast_id: told.cast, intent: RecordValue::new(told.intent.clone(), bodies)? }))
        .collect()
}

pub(crate) fn cast_record(circle: &Circle, entity_id: EntityId, cast_id: CastId, intent: IntentRecord) -> Cast {
    let wards = circle.wards();
    Cast {
        cast_id,
        entity_id,
        intent,
        wards: wards.to_value(),
        deadline_ms: wards.timeout.map(millis),
        budget_scope: Some(cast_id.to_string()),
        budget: None,
        cancelled: Vec::new(),
    }
}

/// An entity that stays alive between casts. It has no constructor: it comes from [`Runtime::summon`] or
/// [`Runtime::entity`]. Cheap to clone; all clones are the same entity.
///
/// ```
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let text: String = from_nothing();
/// ```
/// ```compile_fail,E0277
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let entity: cantrip::Entity = from_nothing();
/// ```
/// ```compile_fail,E0423
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let entity = cantrip::Entity(from_nothing());
/// ```
/// ```compile_fail,E0624
/// fn from_nothing<T: Default>() -> T { T::default() }
/// let constructor = cantrip::Entity::new;
/// ```
///
/// ```
/// fn from_text<T: serde::de::DeserializeOwned>(text: &str) -> T { serde_json::from_str(text).unwrap() }
/// let value: serde_json::Value = from_text("{}");
/// ```
/// ```compile_fail,E0277
/// fn from_text<T: serde::de::DeserializeOwned>(text: &str) -> T { serde_json::from_str(text).unwrap() }
/// let entity: cantrip::Entity = from_text("{}");
/// ```
#[derive(Clone)]
pub struct Entity(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    cantrip: Cantrip,
    id: EntityId,
    seed: u64,
    context: Option<Arc<Value>>,
    state: Mutex<State>,
}

enum State {
    /// The entity is free. The number is the one under which its sandbox is idle, if it has a sandbox.
    Idle(Box<EntityState>, Option<u64>),
    /// This run uses the entity.
    Busy(RunId),
    /// The last run did not end in this process: the state of the entity is in the loom.
    Away,
    Disposed,
}

/// The options of a further cast of an entity.
pub(crate) struct SendOptions {
    pub name: &'static str,
    pub intent: Content,
    pub intent_record: IntentRecord,
    pub bodies: Vec<Body>,
    /// The wards of this cast alone.
    pub further: Wards,
    /// The most that this cast may spend.
    pub budget: Option<Money>,
    pub run: Option<RunId>,
    pub cancel: Cancel,
}

impl std::fmt::Debug for Entity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entity").field("id", &self.0.id).finish_non_exhaustive()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SandboxHolder for Inner {
    fn release_sandbox(&self, since: u64) {
        let sandbox = match &mut *self.state() {
            State::Idle(kept, resting) if *resting == Some(since) => {
                *resting = None;
                kept.sandbox_state.belongings.clear();
                kept.sandbox_state.sandbox.take()
            }
            State::Idle(..) | State::Busy(_) | State::Away | State::Disposed => None,
        };
        if sandbox.is_some() {
            tracing::debug!(entity = %self.id, "its sandbox is given up until it is needed");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let resting = if let State::Idle(_, resting) = &*self.state() { *resting } else { None };
        if let Some(number) = resting {
            self.runtime.idle().remove(number);
        }
    }
}

impl Entity {
    pub(crate) fn new(
        runtime: Runtime,
        cantrip: Cantrip,
        id: EntityId,
        seed: u64,
        context: Option<Arc<Value>>,
        kept: EntityState,
    ) -> Self {
        let state = Mutex::new(State::Idle(Box::new(kept), None));
        Self(Arc::new(Inner { runtime, cantrip, id, seed, context, state }))
    }

    pub fn id(&self) -> EntityId {
        self.0.id
    }

    /// Casts the same entity again, on its thread and in its sandbox. While a cast runs, a second one is refused.
    pub async fn send(&self, intent: impl Into<Content>) -> CastReply {
        self.send_casting(CastOptions::on(intent)).await
    }

    /// Does the same as [`Entity::send`]; `cancel` ends the cast.
    pub async fn send_with(&self, intent: impl Into<Content>, cancel: &Cancel) -> CastReply {
        self.send_casting(CastOptions::on(intent).cancelled_by(cancel)).await
    }

    /// Does the same as [`Entity::send`] with all options of a cast except a context: the entity has its own.
    pub async fn send_casting(&self, casting: CastOptions) -> CastReply {
        let CastOptions { intent, context, labels, attached: mut bodies, budget, run, follows, under, cancel } =
            casting.without_known_secrets();
        if intent.is_blank() {
            return self.0.runtime.refuse("send", missing_intent()).await;
        }
        if context.is_some() || !labels.is_empty() || follows.is_some() || under.is_some() {
            let refusal = codes::contract_invalid("an entity has its context and its past from its beginning").into();
            return self.0.runtime.refuse("send", refusal).await;
        }
        let intent_record = match RecordValue::new(intent.clone(), &mut bodies) {
            Ok(held) => IntentRecord::New(held),
            Err(error) => return self.0.runtime.refuse("send", store_refusal(&error)).await,
        };
        let (name, further) = ("send", Wards::default());
        let sending = SendOptions { name, intent, intent_record, bodies, further, budget, run, cancel };
        self.send_with_options(sending).await
    }

    pub(crate) async fn send_with_options(&self, sending: SendOptions) -> CastReply {
        let SendOptions { name, intent, intent_record, mut bodies, further, budget, run, cancel } = sending;
        let Inner { runtime, cantrip, id, seed, context, .. } = &*self.0;
        let now = runtime.now().wall;
        let run = run.unwrap_or_else(|| runtime.ids().next(now));
        let mut kept = match self.take(run) {
            Ok(Some(kept)) => *kept,
            Ok(None) => match runtime.load_entity_state(cantrip, *id).await {
                Ok(kept) => kept,
                Err(unable) => {
                    self.give_back(None);
                    return runtime.refuse(name, unable.refusal()).await;
                }
            },
            Err(refusal) => return runtime.refuse(name, refusal).await,
        };
        let further = match runtime.budget_wards(run, budget).await {
            Ok(bound) => further.and(&bound),
            Err(refusal) => {
                self.give_back(Some(kept));
                return runtime.refuse(name, refusal).await;
            }
        };
        let circle = cantrip.circle().with_wards(&further);
        let mut cast = cast_record(&circle, *id, runtime.ids().next(now), intent_record.clone());
        cast.budget = further.max_cost.first().copied();
        let cancelled = UnansweredIntent::for_next_cast(std::mem::take(&mut kept.past.cancelled), &intent_record);
        match held_cancelled(&cancelled, &mut bodies) {
            Ok(held) => cast.cancelled = held,
            Err(error) => {
                self.give_back(None);
                return runtime.refuse(name, store_refusal(&error)).await;
            }
        }
        let episode = Box::new(Episode {
            runtime: runtime.clone(),
            cantrip: cantrip.clone(),
            circle,
            run,
            loom: cantrip.loom_id(),
            entity: *id,
            cast: cast.cast_id,
            intent,
            intent_record,
            environment: None,
            cancelled,
            seed: *seed,
            context: context.clone(),
            past: kept.past,
            sandbox_state: kept.sandbox_state,
            place: MoneyPlace::default(),
            cancel,
            start: Start::Open { events: vec![Event::from(cast)], bodies },
        });
        let this = self.clone();
        episode.cast(name, move |kept| this.give_back(kept)).await
    }

    /// Takes the entity's state for a run, if the entity is free. Returns `None` if the state must be loaded from the
    /// loom.
    fn take(&self, run: RunId) -> Result<Option<Box<EntityState>>, Refusal> {
        let (taken, resting) = {
            let mut state = self.0.state();
            match std::mem::replace(&mut *state, State::Busy(run)) {
                State::Idle(kept, resting) => (Some(kept), resting),
                State::Away => (None, None),
                State::Busy(holder) => {
                    *state = State::Busy(holder);
                    return Err(codes::busy("entity", self.0.id.to_string(), holder.to_string()).into());
                }
                State::Disposed => {
                    *state = State::Disposed;
                    let id = self.0.id.to_string();
                    return Err(codes::wrong_state("entity", id, "disposed", "send", "a live entity").into());
                }
            }
        };
        if let Some(number) = resting {
            self.0.runtime.idle().remove(number);
        }
        Ok(taken)
    }

    /// Stores the state after a cast. A cast that did not end leaves no state here: the entity is loaded from its loom.
    fn give_back(&self, kept: Option<EntityState>) {
        let idle = self.0.runtime.idle();
        let resting = kept.as_ref().and_then(|kept| kept.sandbox_state.sandbox.as_ref()).map(|_| idle.number());
        {
            let mut state = self.0.state();
            *state = match (&*state, kept) {
                (State::Disposed, _) => State::Disposed,
                (State::Busy(_) | State::Idle(..) | State::Away, Some(kept)) => State::Idle(Box::new(kept), resting),
                (State::Busy(_) | State::Idle(..) | State::Away, None) => State::Away,
            };
        }
        if let Some(number) = resting {
            let inner: Weak<Inner> = Arc::downgrade(&self.0);
            idle.add(number, inner);
        }
    }

    /// Releases the entity's sandbox. Its thread stays in the loom; a running cast is not ended.
    pub fn dispose(&self) {
        let before = std::mem::replace(&mut *self.0.state(), State::Disposed);
        if let State::Idle(_, Some(number)) = before {
            self.0.runtime.idle().remove(number);
        }
    }
}
