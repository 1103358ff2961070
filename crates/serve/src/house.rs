//! The house that every surface opens onto: the service of each owner, the spells, and whoever follows a run.

use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{Actor, Journal, RunKind};
use cantrip_service::cantrip::reply::{Call, Guarded, Refusal, above, below, codes};
use cantrip_service::cantrip::{Cancel, Cantrip, CastReply, Continuing, Runtime};
use cantrip_service::contracts::Predictor;
use cantrip_service::{Ask, Branch, Service};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::grimoire::Grimoire;
use crate::http::Bearer;
use crate::hub::Hub;
use crate::limits::{GO_ON_LOOK_MS, GO_ON_MS, PARKING_LOOK_MS, PARKING_MS};

/// One store, its spells and those who follow what is cast. Cheap to clone; all clones are the same house.
///
/// What it begins runs as a task of its own: a caller that goes away changes nothing, unless it cancels.
#[derive(Clone)]
pub struct House(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    hub: Hub,
    grimoire: Arc<dyn Grimoire>,
    services: Mutex<HashMap<Actor, Service>>,
    /// What ends the runs that are under way here.
    under_way: Mutex<HashMap<RunId, Cancel>>,
}

impl fmt::Debug for House {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("House").field("runtime", &self.0.runtime).finish_non_exhaustive()
    }
}

/// What goes on with a run: the cantrip it was cast with, or the maker of predicts.
enum Resumable {
    Cast(Box<Cantrip>),
    Predict(Box<Predictor>),
}

/// A cast that was begun, or that was refused before anything was written.
#[derive(Debug)]
#[must_use = "wait for its reply, or let it run"]
pub struct Begun {
    /// None if nothing was begun: the reply says why, and is there already.
    pub run: Option<RunId>,
    pub cancel: Cancel,
    reply: JoinHandle<CastReply>,
}

impl Begun {
    /// What it came to. Dropping this while it waits changes nothing for the run.
    pub async fn reply(self) -> CastReply {
        match self.reply.await {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    }
}

impl House {
    /// Opens a house over a store's runtime. The runtime should be askable where an approval can be given later.
    pub fn open(runtime: Runtime, grimoire: impl Grimoire + 'static) -> Self {
        let hub = Hub::default();
        Self(Arc::new(Inner {
            runtime: runtime.watched_by(hub.clone()),
            hub,
            grimoire: Arc::new(grimoire),
            services: Mutex::default(),
            under_way: Mutex::default(),
        }))
    }

    /// What an owner can ask for. The same owner has the same service: entities that were summoned stay at hand. The
    /// [`local`] one, who has the store in hand anyway, sees everything; every other only what is its own.
    pub fn service(&self, owner: &Actor) -> Service {
        let mut services = self.0.services.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let whole = Service::new(self.0.runtime.clone());
            if *owner == local() { whole } else { whole.for_owner(owner.clone()) }
        };
        services.entry(owner.clone()).or_insert_with(made).clone()
    }

    /// What whoever has this token can ask for.
    pub(crate) fn service_of(&self, bearer: &Bearer) -> Service {
        let service = self.service(&bearer.owner);
        if bearer.operates { service.operating() } else { service }
    }

    pub fn grimoire(&self) -> &dyn Grimoire {
        &*self.0.grimoire
    }

    pub fn hub(&self) -> &Hub {
        &self.0.hub
    }

    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<RunId, Cancel>> {
        self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands every run that is under way here back: it rests where it can go on, its lease is free, and whoever serves next
    /// goes on with it.
    pub fn hand_back_all(&self) {
        for cancel in self.under_way().values() {
            cancel.hand_back();
        }
    }

    /// Asks every run that is under way here to rest until someone goes on with it, and waits until they do, for as long as
    /// may be.
    pub async fn rested(&self) {
        for cancel in self.under_way().values() {
            cancel.park();
        }
        let patience = Instant::now() + Duration::from_millis(PARKING_MS);
        while self.busy() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(PARKING_LOOK_MS)).await;
        }
    }

    /// How many runs are under way here.
    pub fn busy(&self) -> usize {
        self.under_way().len()
    }

    /// Casts a spell.
    pub async fn cast(&self, owner: &Actor, spell: &str, ask: Ask) -> Begun {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.fresh_run()), ask.cancel.clone());
        let (house, service, spell) = (self.clone(), self.service(owner), spell.to_owned());
        self.begin(run, cancel, async move {
            match house.grimoire().cantrip(&spell).await {
                Ok(cantrip) => service.cast(&cantrip, Ask { run: Some(run), ..ask }).await,
                Err(refusal) => refused(&service, "cast", refusal).await,
            }
        })
        .await
    }

    /// Casts a cantrip whose entity lives on: what is sent to it later finds it as it was left.
    pub async fn enter(&self, owner: &Actor, cantrip: Cantrip, ask: Ask) -> Begun {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.fresh_run()), ask.cancel.clone());
        let service = self.service(owner);
        self.begin(run, cancel, async move { service.enter(&cantrip, Ask { run: Some(run), ..ask }).await }).await
    }

    /// Sends something to an entity; one that is not at hand is taken up from the loom first.
    pub async fn send(&self, owner: &Actor, entity: EntityId, ask: Ask) -> Begun {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.fresh_run()), ask.cancel.clone());
        let (house, service) = (self.clone(), self.service(owner));
        self.begin(run, cancel, async move {
            let found = match service.own_entity(entity).await {
                Ok(_) => house.grimoire().of_entity(entity).await,
                Err(refusal) => Err(refusal),
            };
            let cantrip = match found {
                Ok(cantrip) => cantrip,
                Err(refusal) => return refused(&service, "send", refusal).await,
            };
            let taken = service.take_up(&cantrip, entity).await;
            if !taken.reply.reply_type().is_success() {
                return CastReply { guarded: taken, outcome: None, run: None, entity: None };
            }
            service.send(entity, Ask { run: Some(run), ..ask }).await
        })
        .await
    }

    /// Branches off behind a turn.
    pub async fn fork(&self, owner: &Actor, at: TurnId, branch: Branch) -> Begun {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.0.runtime.fresh_run()), branch.cancel.clone());
        let (house, service) = (self.clone(), self.service(owner));
        self.begin(run, cancel, async move {
            let found = match service.own_turn(at).await {
                Ok(turn) => house.grimoire().of_entity(turn.entity_id).await,
                Err(refusal) => Err(refusal),
            };
            match found {
                Ok(cantrip) => service.fork(&cantrip, at, Branch { run: Some(run), ..branch }).await,
                Err(refusal) => refused(&service, "fork", refusal).await,
            }
        })
        .await
    }

    /// Branches off behind a turn, as this cantrip: it need not be the one that the turn is of.
    pub async fn fork_with(&self, owner: &Actor, cantrip: Cantrip, at: TurnId, branch: Branch) -> Begun {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.0.runtime.fresh_run()), branch.cancel.clone());
        let service = self.service(owner);
        let branch = Branch { run: Some(run), ..branch };
        self.begin(run, cancel, async move { service.fork(&cantrip, at, branch).await }).await
    }

    /// Goes on with a run that waits, or whose process is gone.
    pub async fn resume(&self, owner: &Actor, run: RunId, cancel: Cancel) -> Begun {
        let (house, service, ends) = (self.clone(), self.service(owner), cancel.clone());
        if self.under_way().contains_key(&run) {
            let busy = codes::busy("run", run.to_string(), "this process");
            return rested(Ok(refused(&service, "resume", busy.into()).await), cancel);
        }
        self.begin(run, cancel, async move {
            match house.resumable(&service, run).await {
                Ok(Resumable::Cast(cantrip)) => service.resume(&cantrip, run, &ends).await,
                Ok(Resumable::Predict(predictor)) => {
                    let guarded = predictor.resume(run, &ends).await.guarded;
                    CastReply { guarded, outcome: None, run: Some(run), entity: None }
                }
                Err(refusal) => refused(&service, "resume", refusal).await,
            }
        })
        .await
    }

    /// What it takes to go on with a run.
    async fn resumable(&self, service: &Service, run: RunId) -> Result<Resumable, Refusal> {
        match service.own_run(run).await?.kind {
            RunKind::Predict => Ok(Resumable::Predict(Box::new(self.grimoire().predictor(service).await?))),
            RunKind::Cast | RunKind::Summon | RunKind::Job => {
                Ok(Resumable::Cast(Box::new(self.cantrip_of(service, run).await?)))
            }
        }
    }

    /// Goes on with a run that was cut off: a run of its own, of the same entity under the same intent.
    pub async fn continue_run(&self, owner: &Actor, run: RunId, continuing: Continuing, cancel: Cancel) -> Begun {
        let (house, service, next) = (self.clone(), self.service(owner), self.0.runtime.fresh_run());
        let continuing = continuing.as_run(next).cancelled_by(&cancel);
        self.begin(next, cancel, async move {
            match house.cantrip_of(&service, run).await {
                Ok(cantrip) => service.continue_run(&cantrip, run, continuing).await,
                Err(refusal) => refused(&service, "continue", refusal).await,
            }
        })
        .await
    }

    /// Makes an entity of a spell that waits to be sent something.
    pub async fn summon(&self, owner: &Actor, spell: &str, context: Option<Value>) -> Guarded {
        let service = self.service(owner);
        match self.grimoire().cantrip(spell).await {
            Ok(cantrip) => service.summon(&cantrip, context).await,
            Err(refusal) => refused(&service, "summon", refusal).await.guarded,
        }
    }

    /// A person has decided about a call of a run: once it rests and nobody else has to decide, it goes on by itself.
    /// Returns at once.
    pub fn decided(&self, owner: &Actor, run: RunId) {
        self.go_on(owner, run, move |service: Service| async move {
            service.pending(run).await.is_ok_and(|pending| pending.is_empty())
        });
    }

    /// A run was asked to end: one that waits does so when someone goes on with it. Returns at once.
    pub fn cancelled(&self, owner: &Actor, run: RunId) {
        self.go_on(owner, run, |_| std::future::ready(true));
    }

    /// Goes on with a run once it rests, if then it may.
    fn go_on<M>(&self, owner: &Actor, run: RunId, may: impl FnOnce(Service) -> M + Send + 'static)
    where
        M: Future<Output = bool> + Send,
    {
        let (house, owner) = (self.clone(), owner.clone());
        tokio::spawn(async move {
            let service = house.service(&owner);
            let rests = tokio::time::timeout(Duration::from_millis(GO_ON_MS), house.rests(&service, run)).await;
            if rests.unwrap_or(false) && may(service).await {
                let reply = house.resume(&owner, run, Cancel::new()).await.reply().await;
                tracing::debug!(%run, code = %reply.reply().code(), "a run went on");
            }
        });
    }

    /// Returns when nobody works on a run; whether it can be gone on with. One that another process works on is its.
    async fn rests(&self, service: &Service, run: RunId) -> bool {
        loop {
            let live = service.own_run(run).await.is_ok_and(|view| view.state.is_live());
            if !live {
                return false;
            }
            if !self.under_way().contains_key(&run) {
                return matches!(self.0.runtime.loom().holder(run).await, Ok(None));
            }
            tokio::time::sleep(Duration::from_millis(GO_ON_LOOK_MS)).await;
        }
    }

    async fn cantrip_of(&self, service: &Service, run: RunId) -> Result<cantrip_service::cantrip::Cantrip, Refusal> {
        let view = service.own_run(run).await?;
        let nothing = || Refusal::from(codes::wrong_state("run", run.to_string(), "no cast", "going on", "a cast"));
        self.grimoire().of_entity(view.entity_id.ok_or_else(nothing)?).await
    }

    /// Runs it as a task and returns once it is on record, or over.
    async fn begin(&self, run: RunId, cancel: Cancel, work: impl Future<Output = CastReply> + Send + 'static) -> Begun {
        let begins = self.0.hub.begins(run);
        self.under_way().insert(run, cancel.clone());
        let house = self.clone();
        let task = async move {
            let ended = Ended { house, run };
            let reply = work.await;
            ended.house.hub().metrics().rested(&reply);
            drop(ended);
            reply
        };
        // Whoever asked is above it in the trace, though not in the task.
        let mut task = tokio::spawn(below(above(), Box::pin(task)));
        tokio::select! {
            biased;
            told = begins => match told {
                Ok(()) => Begun { run: Some(run), cancel, reply: task },
                // It came to rest unseen.
                Err(_) => rested(task.await, cancel),
            },
            reply = &mut task => rested(reply, cancel),
        }
    }
}

/// Who runs the house.
pub fn local() -> Actor {
    Actor::new("local").expect("a short name")
}

/// A cast that is over already.
fn rested(reply: Result<CastReply, tokio::task::JoinError>, cancel: Cancel) -> Begun {
    let run = reply.as_ref().ok().and_then(|reply| reply.run);
    let reply = tokio::spawn(async move {
        match reply {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    });
    Begun { run, cancel, reply }
}

/// Lets go of a run however its task ends.
struct Ended {
    house: House,
    run: RunId,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.house.0.hub.rests(self.run);
        self.house.under_way().remove(&self.run);
    }
}

async fn refused(service: &Service, name: &str, refusal: Refusal) -> CastReply {
    let guarded = service.runtime().guard().call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await;
    CastReply { guarded, outcome: None, run: None, entity: None }
}
