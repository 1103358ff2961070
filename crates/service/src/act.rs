//! What changes something: casts, entities, rewards; and what nothing may change.

use cantrip::canon::{ApprovalId, EntityId, Money, RunId, TurnId};
use cantrip::loom::{Actor, Answer, CantripId, Content, Draft, Journal, Loom, Parked, Reward, Step, StepId};
use cantrip::reply::{Call, Guarded, Refusal, codes};
use cantrip::{
    Cancel, Cantrip, CastReply, Casting, Continuing, Deciding, Forking, Pending, ReplayReply, store_refusal,
};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::{NOTE_BYTES_MAX, SUMMONED_MAX};

/// What is asked of a cantrip or an entity. A request may lack its intent: then it is refused by whoever would act.
#[derive(Debug, Clone, Default)]
#[must_use = "cast it, or send it"]
pub struct Ask {
    pub intent: Option<Content>,
    /// Data that a new entity finds as `context`.
    pub context: Option<Value>,
    /// An authorization of its own for a new cast, for so much in all.
    pub budget: Option<Money>,
    /// The run it will be, where the caller watches for it: a fresh id of the house.
    pub run: Option<RunId>,
    /// The entity of the same owner whose place a new one takes: it is told what was cancelled there before an answer.
    pub follows: Option<EntityId>,
    pub cancel: Cancel,
}

impl Ask {
    pub fn on(intent: impl Into<Content>) -> Self {
        Self { intent: Some(intent.into()), ..Self::default() }
    }

    fn content(intent: Option<Content>) -> Content {
        intent.unwrap_or(Content::Parts(Vec::new()))
    }

    /// What is asked, but for the context, which only a new entity can be given.
    fn casting(self) -> Casting {
        let Self { intent, context: _, budget, run, follows, cancel } = self;
        let mut casting = Casting::on(Self::content(intent)).cancelled_by(&cancel);
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

/// How to branch off. Without an intent the cast of the turn goes on under its own.
#[derive(Debug, Clone, Default)]
#[must_use = "fork with it"]
pub struct Branch {
    pub intent: Option<Content>,
    /// What earlier programs made is not restored.
    pub fresh: bool,
    /// The run it will be, where the caller watches for it: a fresh id of the house.
    pub run: Option<RunId>,
    /// The entity of the same owner whose place the new one takes: it is told what was cancelled there before an answer.
    pub follows: Option<EntityId>,
    pub cancel: Cancel,
}

/// How good a turn was, in someone's eyes.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "give it"]
pub struct Rewarding {
    pub turn: TurnId,
    pub reward: f64,
    pub by: Actor,
    pub note: Option<String>,
}

impl Service {
    /// Casts a cantrip on an intent.
    pub async fn cast(&self, cantrip: &Cantrip, ask: Ask) -> CastReply {
        if let Err(refusal) = self.own_followed(ask.follows).await {
            return unbegun(self.refused("cast", refusal).await);
        }
        let context = ask.context.clone();
        let casting = ask.casting();
        let casting = match context {
            Some(context) => casting.context(context),
            None => casting,
        };
        self.runtime().cast(cantrip, casting).await
    }

    /// Casts a cantrip whose entity stays at hand: what is sent to it later finds its sandbox as it was left.
    pub async fn enter(&self, cantrip: &Cantrip, ask: Ask) -> CastReply {
        if self.summoned().len() >= SUMMONED_MAX {
            let refusal = codes::overloaded("as many entities are summoned as may be").into();
            return unbegun(self.refused("cast", refusal).await);
        }
        if let Err(refusal) = self.own_followed(ask.follows).await {
            return unbegun(self.refused("cast", refusal).await);
        }
        let context = ask.context.clone();
        let casting = ask.casting();
        let casting = match context {
            Some(context) => casting.context(context),
            None => casting,
        };
        let (reply, entity) = self.runtime().enter(cantrip, casting).await;
        if let Some(entity) = entity {
            self.summoned().insert(entity.id(), entity);
        }
        reply
    }

    /// Makes an entity that waits to be sent something, and keeps it at hand.
    pub async fn summon(&self, cantrip: &Cantrip, context: Option<Value>) -> Guarded {
        if self.summoned().len() >= SUMMONED_MAX {
            return self.refused("summon", codes::overloaded("as many entities are summoned as may be").into()).await;
        }
        match self.runtime().summon(cantrip, context).await {
            Ok(entity) => self.kept("summon", entity).await,
            Err(refused) => refused,
        }
    }

    /// Takes up an entity that was summoned before, perhaps by another process, and keeps it at hand.
    pub async fn take_up(&self, cantrip: &Cantrip, entity: EntityId) -> Guarded {
        if let Err(refusal) = self.own_entity(entity).await {
            return self.refused("entity", refusal).await;
        }
        if self.summoned().contains_key(&entity) {
            return self.created("entity", entity).await;
        }
        if self.summoned().len() >= SUMMONED_MAX {
            return self.refused("entity", codes::overloaded("as many entities are summoned as may be").into()).await;
        }
        match self.runtime().entity(cantrip, entity).await {
            Ok(entity) => self.kept("entity", entity).await,
            Err(refused) => refused,
        }
    }

    async fn kept(&self, name: &str, entity: cantrip::Entity) -> Guarded {
        let id = entity.id();
        self.summoned().entry(id).or_insert(entity);
        self.created(name, id).await
    }

    async fn created(&self, name: &str, entity: EntityId) -> Guarded {
        let filled = codes::created("entity", entity.to_string()).data(json!({"entity_id": entity, "state": "idle"}));
        self.runtime().guard().call(Call::surface(name), |rb| async { rb.success(filled) }).await
    }

    /// Casts an entity that is at hand on a further intent, on its thread and in its sandbox. It has its context
    /// already.
    pub async fn send(&self, entity: EntityId, ask: Ask) -> CastReply {
        let found = self.summoned().get(&entity).cloned();
        match found {
            Some(entity) => entity.send_casting(ask.casting()).await,
            None => unbegun(self.refused("send", unknown(entity)).await),
        }
    }

    /// Gives up an entity's sandbox. Its thread stays.
    pub async fn dispose(&self, entity: EntityId) -> Guarded {
        let found = self.summoned().remove(&entity);
        match found {
            Some(found) => {
                found.dispose();
                let filled = codes::changed("entity", entity.to_string(), "disposed");
                self.runtime().guard().call(Call::surface("dispose"), |rb| async { rb.success(filled) }).await
            }
            None => self.refused("dispose", unknown(entity)).await,
        }
    }

    /// Goes on with a run from its journal.
    pub async fn resume(&self, cantrip: &Cantrip, run: RunId, cancel: &Cancel) -> CastReply {
        if let Err(refusal) = self.own_run(run).await {
            return unbegun(self.refused("resume", refusal).await);
        }
        self.runtime().resume_with(cantrip, run, cancel).await
    }

    /// Goes on with a run that was cut off, under its own intent and what further limits are said.
    pub async fn continue_run(&self, cantrip: &Cantrip, run: RunId, continuing: Continuing) -> CastReply {
        if let Err(refusal) = self.own_run(run).await {
            return unbegun(self.refused("continue", refusal).await);
        }
        self.runtime().continue_run(cantrip, run, continuing).await
    }

    /// Asks a run to end, whoever has it.
    pub async fn cancel(&self, run: RunId, actor: &Actor) -> Guarded {
        if let Err(refusal) = self.own_run(run).await {
            return self.refused("cancel", refusal).await;
        }
        self.runtime().cancel(run, actor).await
    }

    /// The calls of a run that wait for a person.
    pub async fn pending(&self, run: RunId) -> Result<Vec<Pending>, Refusal> {
        self.own_run(run).await?;
        self.runtime().pending(run).await
    }

    /// Returns why a run rests, if it was parked.
    pub async fn parked(&self, run: RunId) -> Result<Option<Parked>, Refusal> {
        self.own_run(run).await?;
        self.runtime().parked(run).await
    }

    /// Notes what a person decided about a call that waits. The run goes on when it is resumed.
    pub async fn decide(&self, run: RunId, approval: ApprovalId, deciding: Deciding) -> Guarded {
        if let Err(refusal) = self.own_run(run).await {
            return self.refused("decide", refusal).await;
        }
        self.runtime().decide(run, approval, deciding).await
    }

    /// Branches off behind a turn.
    pub async fn fork(&self, cantrip: &Cantrip, at: TurnId, branch: Branch) -> CastReply {
        if let Err(refusal) = self.own_turn(at).await {
            return unbegun(self.refused("fork", refusal).await);
        }
        let Branch { intent, fresh, run, follows, cancel } = branch;
        if let Err(refusal) = self.own_followed(follows).await {
            return unbegun(self.refused("fork", refusal).await);
        }
        let mut forking = match intent {
            Some(intent) => Forking::on(intent),
            None => Forking::new(),
        };
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

    /// Checks that an entity whose place another takes is the caller's own.
    async fn own_followed(&self, entity: Option<EntityId>) -> Result<(), Refusal> {
        match entity {
            Some(entity) => self.own_entity(entity).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// Runs a thread again against its records, and says whether it is what they say. Nothing is written or executed.
    pub async fn replay(&self, cantrip: &Cantrip, leaf: TurnId) -> ReplayReply {
        if let Err(refusal) = self.own_turn(leaf).await {
            return ReplayReply { guarded: self.refused("replay", refusal).await, replayed: None };
        }
        self.runtime().replay(cantrip, leaf).await
    }

    /// Notes how good a turn was. Earlier rewards stay on record; the latest counts.
    pub async fn reward(&self, rewarding: Rewarding) -> Guarded {
        let call = Call::surface("reward").turn(rewarding.turn);
        self.runtime()
            .guard()
            .call(call, |rb| async {
                let turn = rewarding.turn.to_string();
                match self.rewarded(rewarding).await {
                    Ok(()) => rb.success(codes::changed("turn", turn, "rewarded")),
                    Err(refusal) => rb.refuse(refusal),
                }
            })
            .await
    }

    async fn rewarded(&self, rewarding: Rewarding) -> Result<(), Refusal> {
        let Rewarding { turn, reward, by, note } = rewarding;
        if !reward.is_finite() {
            return Err(codes::schema("the reward", "/reward", "it is no finite number").into());
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
        let draft = Draft::new(now, Reward { turn_id: turn, reward, by, note }).map_err(stored)?;
        match loom.append(Step::beside(id, run).record(draft)).await.map_err(stored)? {
            Answer::Committed(_) => Ok(()),
            // It holds no lease, moves no money and has an id of its own.
            Answer::Refused(_) | Answer::Wait | Answer::Conflict(_) | Answer::Fenced { .. } => {
                Err(codes::crash().into())
            }
        }
    }

    /// Asks for a cantrip's call to be changed: that is another cantrip, and this one stays as it is.
    pub async fn amend_call(&self, cantrip: CantripId, _changes: &Value) -> Guarded {
        let refusal = codes::immutable("call").data(json!({"cantrip_id": cantrip}));
        self.refused("amend_call", refusal.into()).await
    }

    /// Asks for a turn to be deleted: what was recorded stays.
    pub async fn delete_turn(&self, turn: TurnId) -> Guarded {
        let refusal = codes::append_only("delete").data(json!({"turn_id": turn}));
        self.refused("delete_turn", refusal.into()).await
    }

    pub(crate) async fn refused(&self, name: &str, refusal: Refusal) -> Guarded {
        self.runtime().guard().call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await
    }
}

fn unknown(entity: EntityId) -> Refusal {
    codes::not_found("entity", entity.to_string()).into()
}

pub(crate) fn unbegun(guarded: Guarded) -> CastReply {
    CastReply { guarded, outcome: None, run: None, entity: None }
}
