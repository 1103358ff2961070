//! Calls that change something: casts, entities, rewards.

use cantrip::canon::{ApprovalId, EntityId, Money, RunId, TurnId};
use cantrip::loom::{
    Actor, AppendOutcome, Body, CastParked, Content, Journal, Loom, RecordDraft, Reward, Step, StepId,
};
use cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip::{
    Cancel, Cantrip, CastOptions, CastReply, ContinueOptions, ForkOptions, HumanDecision, PendingApproval, ReplayReply,
    store_refusal,
};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::{NOTE_BYTES_MAX, SUMMONED_MAX};

/// A request to a cantrip or an entity. The intent may be missing: then the call that needs it refuses the request.
#[derive(Debug, Clone, Default)]
#[must_use = "cast it, or send it"]
pub struct CastRequest {
    pub intent: Option<Content>,
    /// Data that a new entity finds as `context`.
    pub context: Option<Value>,
    /// The bytes of the images in the intent.
    pub attached: Vec<Body>,
    /// A separate authorization for a new cast, limited to this amount in total.
    pub budget: Option<Money>,
    /// The id for the run, if the caller watches for it: a fresh id of the runtime.
    pub run: Option<RunId>,
    /// The entity of the same owner that a new one replaces: the new entity gets the intents that were cancelled there
    /// before an answer.
    pub follows: Option<EntityId>,
    pub cancel: Cancel,
}

impl CastRequest {
    pub fn with_intent(intent: impl Into<Content>) -> Self {
        Self { intent: Some(intent.into()), ..Self::default() }
    }

    fn into_options(self) -> CastOptions {
        let Self { intent, context, attached, budget, run, follows, cancel } = self;
        let intent = intent.unwrap_or(Content::Parts(Vec::new()));
        let mut casting = CastOptions::on(intent).cancelled_by(&cancel);
        if let Some(context) = context {
            casting = casting.context(context);
        }
        casting = attached.into_iter().fold(casting, CastOptions::attach);
        if let Some(budget) = budget {
            casting = casting.budget(budget);
        }
        if let Some(run) = run {
            casting = casting.as_run(run);
        }
        if let Some(entity) = follows {
            casting = casting.following(entity);
        }
        casting
    }
}

/// The options of a fork. Without an intent the cast of the turn continues with its own intent.
#[derive(Debug, Clone, Default)]
#[must_use = "fork with it"]
pub struct ForkRequest {
    pub intent: Option<Content>,
    /// True if the state of earlier programs is not restored.
    pub fresh: bool,
    /// The id for the run, if the caller watches for it: a fresh id of the runtime.
    pub run: Option<RunId>,
    /// The entity of the same owner that the new one replaces: the new entity gets the intents that were cancelled
    /// there before an answer.
    pub follows: Option<EntityId>,
    pub cancel: Cancel,
}

/// A rating of a turn.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "give it"]
pub struct RewardRequest {
    pub turn: TurnId,
    pub reward: f64,
    pub by: Actor,
    pub note: Option<String>,
}

impl Service {
    /// Casts a cantrip on an intent.
    pub async fn cast(&self, cantrip: &Cantrip, ask: CastRequest) -> CastReply {
        if let Err(refusal) = self.own_followed(ask.follows).await {
            return self.refusal_reply("cast", refusal).await.into();
        }
        self.runtime().cast(cantrip, ask.into_options()).await
    }

    /// Casts a cantrip whose entity stays in memory: later intents find its sandbox in the state in which this cast
    /// left it.
    pub async fn cast_live(&self, cantrip: &Cantrip, ask: CastRequest) -> CastReply {
        let checked = async {
            self.check_live_entities()?;
            self.own_followed(ask.follows).await
        };
        if let Err(refusal) = checked.await {
            return self.refusal_reply("cast", refusal).await.into();
        }
        let (reply, entity) = self.runtime().cast_entity(cantrip, ask.into_options()).await;
        if let Some(entity) = entity {
            self.live_entities().insert(entity.id(), entity);
        }
        reply
    }

    /// Creates an entity that waits for an intent, and keeps it in memory.
    pub async fn summon(&self, cantrip: &Cantrip, context: Option<Value>) -> GuardedReply {
        if let Err(refusal) = self.check_live_entities() {
            return self.refusal_reply("summon", refusal).await;
        }
        match self.runtime().summon(cantrip, context).await {
            Ok(entity) => self.keep_entity("summon", entity).await,
            Err(refused) => refused,
        }
    }

    /// Loads an entity that was summoned before, perhaps by another process, and keeps it in memory.
    pub async fn reattach_entity(&self, cantrip: &Cantrip, entity: EntityId) -> GuardedReply {
        if let Err(refusal) = self.own_entity(entity).await {
            return self.refusal_reply("entity", refusal).await;
        }
        if self.live_entities().contains_key(&entity) {
            return self.created_reply("entity", entity).await;
        }
        if let Err(refusal) = self.check_live_entities() {
            return self.refusal_reply("entity", refusal).await;
        }
        match self.runtime().entity(cantrip, entity).await {
            Ok(entity) => self.keep_entity("entity", entity).await,
            Err(refused) => refused,
        }
    }

    /// Checks that another entity may stay in memory.
    fn check_live_entities(&self) -> Result<(), Refusal> {
        if self.live_entities().len() < SUMMONED_MAX {
            return Ok(());
        }
        Err(codes::overloaded(format!("too many live entities (limit {SUMMONED_MAX}): dispose of one")).into())
    }

    async fn keep_entity(&self, name: &str, entity: cantrip::Entity) -> GuardedReply {
        let id = entity.id();
        self.live_entities().entry(id).or_insert(entity);
        self.created_reply(name, id).await
    }

    async fn created_reply(&self, name: &str, entity: EntityId) -> GuardedReply {
        let filled = codes::created("entity", entity.to_string()).data(json!({"entity_id": entity, "state": "idle"}));
        self.runtime().guard().call(Call::surface(name), |rb| async { rb.success(filled) }).await
    }

    /// Casts an entity that is in memory on a further intent, on its thread and in its sandbox. It already has its
    /// context.
    pub async fn send(&self, entity: EntityId, ask: CastRequest) -> CastReply {
        let found = self.live_entities().get(&entity).cloned();
        match found {
            Some(entity) => entity.send_casting(CastRequest { context: None, ..ask }.into_options()).await,
            None => self.refusal_reply("send", unknown_entity(entity)).await.into(),
        }
    }

    /// Frees an entity's sandbox. Its thread stays.
    pub async fn dispose(&self, entity: EntityId) -> GuardedReply {
        let found = self.live_entities().remove(&entity);
        match found {
            Some(found) => {
                found.dispose();
                let filled = codes::changed("entity", entity.to_string(), "disposed");
                self.runtime().guard().call(Call::surface("dispose"), |rb| async { rb.success(filled) }).await
            }
            None => self.refusal_reply("dispose", unknown_entity(entity)).await,
        }
    }

    /// Resumes a run from its journal.
    pub async fn resume(&self, cantrip: &Cantrip, run: RunId, cancel: &Cancel) -> CastReply {
        if let Err(refusal) = self.own_run(run).await {
            return self.refusal_reply("resume", refusal).await.into();
        }
        self.runtime().resume_with(cantrip, run, cancel).await
    }

    /// Continues a truncated run, with its own intent and the given further limits.
    pub async fn continue_run(&self, cantrip: &Cantrip, run: RunId, continuing: ContinueOptions) -> CastReply {
        if let Err(refusal) = self.own_run(run).await {
            return self.refusal_reply("continue", refusal).await.into();
        }
        self.runtime().continue_run(cantrip, run, continuing).await
    }

    /// Asks a run to end, whichever process drives it.
    pub async fn cancel(&self, run: RunId, actor: &Actor) -> GuardedReply {
        if let Err(refusal) = self.own_run(run).await {
            return self.refusal_reply("cancel", refusal).await;
        }
        self.runtime().cancel(run, actor).await
    }

    /// Returns the calls of a run that wait for an approval.
    pub async fn pending(&self, run: RunId) -> Result<Vec<PendingApproval>, Refusal> {
        self.own_run(run).await?;
        self.runtime().pending(run).await
    }

    /// Returns why a run is parked, if it is.
    pub async fn parked(&self, run: RunId) -> Result<Option<CastParked>, Refusal> {
        self.own_run(run).await?;
        self.runtime().parked(run).await
    }

    /// Records a user's decision about a waiting call. The run continues when it is resumed.
    pub async fn decide(&self, run: RunId, approval: ApprovalId, deciding: HumanDecision) -> GuardedReply {
        if let Err(refusal) = self.own_run(run).await {
            return self.refusal_reply("decide", refusal).await;
        }
        self.runtime().decide(run, approval, deciding).await
    }

    /// Forks after a turn.
    pub async fn fork(&self, cantrip: &Cantrip, at: TurnId, branch: ForkRequest) -> CastReply {
        if let Err(refusal) = self.own_turn(at).await {
            return self.refusal_reply("fork", refusal).await.into();
        }
        let ForkRequest { intent, fresh, run, follows, cancel } = branch;
        if let Err(refusal) = self.own_followed(follows).await {
            return self.refusal_reply("fork", refusal).await.into();
        }
        let mut forking = intent.map_or_else(ForkOptions::new, ForkOptions::on);
        if fresh {
            forking = forking.fresh();
        }
        if let Some(run) = run {
            forking = forking.as_run(run);
        }
        if let Some(entity) = follows {
            forking = forking.following(entity);
        }
        self.runtime().fork(cantrip, at, forking.cancelled_by(&cancel)).await
    }

    /// Checks that an entity that is being replaced belongs to the caller.
    async fn own_followed(&self, entity: Option<EntityId>) -> Result<(), Refusal> {
        match entity {
            Some(entity) => self.own_entity(entity).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Replays a thread against its records and reports whether it matches them. Nothing is written or executed.
    pub async fn replay(&self, cantrip: &Cantrip, leaf: TurnId) -> ReplayReply {
        if let Err(refusal) = self.own_turn(leaf).await {
            return ReplayReply { guarded: self.refusal_reply("replay", refusal).await, replayed: None };
        }
        self.runtime().replay(cantrip, leaf).await
    }

    /// Records a reward for a turn. Earlier rewards stay on record; the latest counts.
    pub async fn reward(&self, rewarding: RewardRequest) -> GuardedReply {
        let call = Call::surface("reward").turn(rewarding.turn);
        let rewarded = codes::changed("turn", rewarding.turn.to_string(), "rewarded");
        let recorded = self.record_reward(rewarding);
        self.runtime().guard().call(call, |rb| async { rb.answer(recorded.await.map(|()| rewarded)) }).await
    }

    async fn record_reward(&self, rewarding: RewardRequest) -> Result<(), Refusal> {
        let RewardRequest { turn, reward, by, note } = rewarding;
        if !reward.is_finite() {
            return Err(codes::schema("the reward", "/reward", "it is not a finite number").into());
        }
        if let Some(note) = note.as_ref().filter(|note| note.len() > NOTE_BYTES_MAX) {
            return Err(codes::limit("the note", note.len(), NOTE_BYTES_MAX).into());
        }
        let stored = |error| store_refusal(&error);
        let loom = self.runtime().loom();
        let cast = self.own_turn(turn).await?.cast_id;
        let run = loom.cast(cast).await.map_err(stored)?.run_id;
        let now = self.clock.now().wall;
        let id = StepId::new(format!("reward-{:032x}", self.ids.next_bits(now))).expect("a short name");
        let draft = RecordDraft::new(now, Reward { turn_id: turn, reward, by, note }).map_err(stored)?;
        match loom.append(Step::annotation(id, run).record(draft)).await.map_err(stored)? {
            AppendOutcome::Committed(_) => Ok(()),
            // The step holds no lease, moves no money and has a unique id.
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }

    pub(crate) async fn refusal_reply(&self, name: &str, refusal: Refusal) -> GuardedReply {
        self.runtime().guard().call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await
    }
}

fn unknown_entity(entity: EntityId) -> Refusal {
    codes::not_found("entity", entity.to_string()).into()
}
