//! The host behind every surface: the service of each owner, the spells, and the followers of runs.

use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::canon::{EntityId, RunId, TurnId};
use cantrip_service::cantrip::loom::{Actor, Journal, RunKind};
use cantrip_service::cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip_service::cantrip::{Cancel, Cantrip, CastReply, ContinueOptions, Runtime};
use cantrip_service::contracts::{PredictReply, Predictor};
use cantrip_service::{CastRequest, ForkRequest, Service};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::broadcaster::RunBroadcaster;
use crate::http::Bearer;
use crate::limits::{GO_ON_LOOK_MS, GO_ON_MS, PARKING_LOOK_MS, PARKING_MS};
use crate::spell_catalog::SpellCatalog;

/// One store, its spells and the followers of its runs. Cheap to clone; all clones are the same host.
///
/// Each cast runs as a separate task: a caller that disconnects changes nothing, unless it cancels.
#[derive(Clone)]
pub struct SpellHost(Arc<Inner>);

struct Inner {
    runtime: Runtime,
    broadcaster: RunBroadcaster,
    spell_catalog: Arc<dyn SpellCatalog>,
    services: Mutex<HashMap<Actor, Service>>,
    /// The cancel handles of the runs that are active in this process.
    under_way: Mutex<HashMap<RunId, Cancel>>,
}

impl fmt::Debug for SpellHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpellHost").field("runtime", &self.0.runtime).finish_non_exhaustive()
    }
}

/// The means to resume a run: the cantrip that it was cast with, or a predictor.
enum Resumable {
    Cast(Box<Cantrip>),
    Predict(Box<Predictor>),
}

/// A cast that was started, or refused before anything was written.
#[derive(Debug)]
#[must_use = "wait for its reply, or let it run"]
pub struct StartedCast {
    /// None if nothing was started: the reply has the reason and is already available.
    pub run: Option<RunId>,
    pub cancel: Cancel,
    reply: JoinHandle<CastReply>,
}

impl StartedCast {
    /// Waits for the reply. Dropping the future changes nothing for the run.
    pub async fn reply(self) -> CastReply {
        match self.reply.await {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    }
}

impl SpellHost {
    /// Opens a host over a store's runtime. The runtime should be configured to ask if an approval can be given later.
    pub fn open(runtime: Runtime, catalog: impl SpellCatalog + 'static) -> Self {
        let hub = RunBroadcaster::default();
        Self(Arc::new(Inner {
            runtime: runtime.with_watcher(hub.clone()),
            broadcaster: hub,
            spell_catalog: Arc::new(catalog),
            services: Mutex::default(),
            under_way: Mutex::default(),
        }))
    }

    /// Returns the service of an owner. The same owner always gets the same service, so summoned entities stay in
    /// memory. The [`local_owner`], who can read the store anyway, sees everything; every other owner sees only its own
    /// resources.
    pub fn service(&self, owner: &Actor) -> Service {
        let mut services = self.0.services.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || {
            let whole = Service::new(self.0.runtime.clone());
            if *owner == local_owner() { whole } else { whole.for_owner(owner.clone()) }
        };
        services.entry(owner.clone()).or_insert_with(made).clone()
    }

    /// Returns the service for the owner of a token.
    pub(crate) fn service_of(&self, bearer: &Bearer) -> Service {
        let service = self.service(&bearer.owner);
        if bearer.operates { service.as_operator() } else { service }
    }

    pub fn spell_catalog(&self) -> &dyn SpellCatalog {
        &*self.0.spell_catalog
    }

    pub fn broadcaster(&self) -> &RunBroadcaster {
        &self.0.broadcaster
    }

    pub fn runtime(&self) -> &Runtime {
        &self.0.runtime
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<RunId, Cancel>> {
        self.0.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands back every active run: it parks where it can resume, its lease is released, and the next server resumes
    /// it.
    pub fn release_all(&self) {
        for cancel in self.under_way().values() {
            cancel.hand_back();
        }
    }

    /// Asks every active run to park until it is resumed, and waits until all have parked, up to a limit.
    pub async fn park_all(&self) {
        for cancel in self.under_way().values() {
            cancel.park();
        }
        let patience = Instant::now() + Duration::from_millis(PARKING_MS);
        while self.active_runs() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(PARKING_LOOK_MS)).await;
        }
    }

    /// Returns the number of active runs.
    pub fn active_runs(&self) -> usize {
        self.under_way().len()
    }

    /// Casts a spell.
    pub async fn cast(&self, owner: &Actor, spell: &str, ask: CastRequest) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.new_run_id()), ask.cancel.clone());
        let (host, service, spell) = (self.clone(), self.service(owner), spell.to_owned());
        self.begin(run, cancel, async move {
            match host.spell_catalog().cantrip(&spell).await {
                Ok(cantrip) => service.cast(&cantrip, CastRequest { run: Some(run), ..ask }).await,
                Err(refusal) => refused_cast(&service, "cast", refusal).await,
            }
        })
        .await
    }

    /// Casts a cantrip whose entity stays alive: later intents find it in the state in which this cast left it.
    pub async fn cast_live(&self, owner: &Actor, cantrip: Cantrip, ask: CastRequest) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.new_run_id()), ask.cancel.clone());
        let service = self.service(owner);
        self.begin(run, cancel, async move { service.cast_live(&cantrip, CastRequest { run: Some(run), ..ask }).await })
            .await
    }

    /// Sends an intent to an entity. An entity that is not in memory is loaded from the loom first.
    pub async fn send(&self, owner: &Actor, entity: EntityId, ask: CastRequest) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.0.runtime.new_run_id()), ask.cancel.clone());
        let (host, service) = (self.clone(), self.service(owner));
        self.begin(run, cancel, async move {
            let found = match service.own_entity(entity).await {
                Ok(_) => host.spell_catalog().cantrip_of_entity(entity).await,
                Err(refusal) => Err(refusal),
            };
            let cantrip = match found {
                Ok(cantrip) => cantrip,
                Err(refusal) => return refused_cast(&service, "send", refusal).await,
            };
            let taken = service.reattach_entity(&cantrip, entity).await;
            if !taken.reply.reply_type().is_success() {
                return taken.into();
            }
            service.send(entity, CastRequest { run: Some(run), ..ask }).await
        })
        .await
    }

    /// Forks after a turn.
    pub async fn fork(&self, owner: &Actor, at: TurnId, branch: ForkRequest) -> StartedCast {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.0.runtime.new_run_id()), branch.cancel.clone());
        let (host, service) = (self.clone(), self.service(owner));
        self.begin(run, cancel, async move {
            let found = match service.own_turn(at).await {
                Ok(turn) => host.spell_catalog().cantrip_of_entity(turn.entity_id).await,
                Err(refusal) => Err(refusal),
            };
            match found {
                Ok(cantrip) => service.fork(&cantrip, at, ForkRequest { run: Some(run), ..branch }).await,
                Err(refusal) => refused_cast(&service, "fork", refusal).await,
            }
        })
        .await
    }

    /// Forks after a turn with this cantrip, which may differ from the cantrip of the turn.
    pub async fn fork_with(&self, owner: &Actor, cantrip: Cantrip, at: TurnId, branch: ForkRequest) -> StartedCast {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.0.runtime.new_run_id()), branch.cancel.clone());
        let service = self.service(owner);
        let branch = ForkRequest { run: Some(run), ..branch };
        self.begin(run, cancel, async move { service.fork(&cantrip, at, branch).await }).await
    }

    /// Resumes a run that waits, or whose process is dead.
    pub async fn resume(&self, owner: &Actor, run: RunId, cancel: Cancel) -> StartedCast {
        let (host, service, ends) = (self.clone(), self.service(owner), cancel.clone());
        if self.under_way().contains_key(&run) {
            let busy = codes::busy("run", run.to_string(), "this process");
            return finished_cast(Ok(refused_cast(&service, "resume", busy.into()).await), cancel);
        }
        self.begin(run, cancel, async move {
            match host.resumable(&service, run).await {
                Ok(Resumable::Cast(cantrip)) => service.resume(&cantrip, run, &ends).await,
                Ok(Resumable::Predict(predictor)) => {
                    let PredictReply { guarded, predicted } = predictor.resume(run, &ends).await;
                    CastReply { waiting: predicted.waiting, run: Some(run), ..guarded.into() }
                }
                Err(refusal) => refused_cast(&service, "resume", refusal).await,
            }
        })
        .await
    }

    /// Returns the means to resume a run.
    async fn resumable(&self, service: &Service, run: RunId) -> Result<Resumable, Refusal> {
        match service.own_run(run).await?.kind {
            RunKind::Predict => Ok(Resumable::Predict(Box::new(self.spell_catalog().predictor(service).await?))),
            RunKind::Cast | RunKind::Summon | RunKind::Job => {
                Ok(Resumable::Cast(Box::new(self.cantrip_of(service, run).await?)))
            }
        }
    }

    /// Continues a truncated run: a new run of the same entity with the same intent.
    pub async fn continue_run(
        &self,
        owner: &Actor,
        run: RunId,
        continuing: ContinueOptions,
        cancel: Cancel,
    ) -> StartedCast {
        let (host, service, next) = (self.clone(), self.service(owner), self.0.runtime.new_run_id());
        let continuing = continuing.as_run(next).cancelled_by(&cancel);
        self.begin(next, cancel, async move {
            match host.cantrip_of(&service, run).await {
                Ok(cantrip) => service.continue_run(&cantrip, run, continuing).await,
                Err(refusal) => refused_cast(&service, "continue", refusal).await,
            }
        })
        .await
    }

    /// Creates an entity of a spell that waits for an intent.
    pub async fn summon(&self, owner: &Actor, spell: &str, context: Option<Value>) -> GuardedReply {
        let service = self.service(owner);
        match self.spell_catalog().cantrip(spell).await {
            Ok(cantrip) => service.summon(&cantrip, context).await,
            Err(refusal) => refused_cast(&service, "summon", refusal).await.guarded,
        }
    }

    /// Resumes a run after a user's decision about a call, once the run is idle and no other decision is pending.
    /// Returns at once.
    pub fn resume_after_decision(&self, owner: &Actor, run: RunId) {
        self.resume_when_idle(owner, run, move |service: Service| async move {
            service.pending(run).await.is_ok_and(|pending| pending.is_empty())
        });
    }

    /// Resumes a run that was asked to end: a waiting run ends when it is resumed. Returns at once.
    pub fn resume_after_cancel(&self, owner: &Actor, run: RunId) {
        self.resume_when_idle(owner, run, |_| std::future::ready(true));
    }

    /// Resumes a run once it is idle, if `may` allows it then.
    fn resume_when_idle<M>(&self, owner: &Actor, run: RunId, may: impl FnOnce(Service) -> M + Send + 'static)
    where
        M: Future<Output = bool> + Send,
    {
        let (host, owner) = (self.clone(), owner.clone());
        tokio::spawn(async move {
            let service = host.service(&owner);
            let rests =
                tokio::time::timeout(Duration::from_millis(GO_ON_MS), host.wait_until_idle(&service, run)).await;
            if rests.unwrap_or(false) && may(service).await {
                let reply = host.resume(&owner, run, Cancel::new()).await.reply().await;
                tracing::debug!(%run, code = %reply.reply().code(), "a run went on");
            }
        });
    }

    /// Waits until this process does not drive the run. Returns true if the run can be resumed; a run that another
    /// process drives cannot.
    async fn wait_until_idle(&self, service: &Service, run: RunId) -> bool {
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
        self.spell_catalog().cantrip_of_entity(view.entity_id.ok_or_else(nothing)?).await
    }

    /// Starts the work as a task and returns once the run is on record or has ended.
    async fn begin(
        &self,
        run: RunId,
        cancel: Cancel,
        work: impl Future<Output = CastReply> + Send + 'static,
    ) -> StartedCast {
        let begins = self.0.broadcaster.on_first_event(run);
        self.under_way().insert(run, cancel.clone());
        let host = self.clone();
        let task = async move {
            let ended = RunGuard { host, run };
            let reply = work.await;
            ended.host.broadcaster().metrics().count_finished_cast(&reply);
            drop(ended);
            reply
        };
        // The caller is the parent in the trace, although the task is detached.
        let mut task = tokio::spawn(cantrip_trace::scope(cantrip_trace::current(), Box::pin(task)));
        tokio::select! {
            biased;
            told = begins => match told {
                Ok(()) => StartedCast { run: Some(run), cancel, reply: task },
                // The run stopped before its first event.
                Err(_) => finished_cast(task.await, cancel),
            },
            reply = &mut task => finished_cast(reply, cancel),
        }
    }
}

/// Returns the local owner, who runs the host.
pub fn local_owner() -> Actor {
    Actor::new("local").expect("a short name")
}

/// Returns a cast that has already ended.
fn finished_cast(reply: Result<CastReply, tokio::task::JoinError>, cancel: Cancel) -> StartedCast {
    let run = reply.as_ref().ok().and_then(|reply| reply.run);
    let reply = tokio::spawn(async move {
        match reply {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    });
    StartedCast { run, cancel, reply }
}

/// Removes a run from the active runs, however its task ends.
struct RunGuard {
    host: SpellHost,
    run: RunId,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.host.0.broadcaster.end_run(self.run);
        self.host.under_way().remove(&self.run);
    }
}

async fn refused_cast(service: &Service, name: &str, refusal: Refusal) -> CastReply {
    service.runtime().guard().call(Call::surface(name), |rb| async { rb.refuse(refusal) }).await.into()
}
