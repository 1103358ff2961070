//! Runs that begin as tasks, with spells by name: what a surface asks whose caller may leave before the end.

use std::time::Duration;

use cantrip::canon::{EntityId, RunId, TurnId};
use cantrip::loom::{Journal, RunKind};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::{Cancel, Cantrip, CastReply, ContinueOptions};
use cantrip_ds::job::JobContinuation;
use cantrip_ds::{PredictReply, Predictor};
use serde_json::Value;

use crate::active::StartedCast;
use crate::limits::{GO_ON_LOOK_MS, GO_ON_MS};
use crate::{CastRequest, ForkRequest, Service, SpellCatalog};

/// The means to resume a run: the cantrip that it was cast with, or a predictor.
enum Resumable {
    Cast(Box<Cantrip>),
    Predict(Box<Predictor>),
    Job(Box<Predictor>),
}

impl Service {
    pub fn spells(&self) -> &dyn SpellCatalog {
        &*self.spells
    }

    /// Casts a spell.
    pub async fn begin_cast(&self, spell: &str, ask: CastRequest) -> StartedCast {
        self.begin_typed_cast(spell, ask, None).await
    }

    /// Casts a spell, with an answer of this JSON Schema. A spell that has another schema of its own is not cast.
    pub async fn begin_typed_cast(&self, spell: &str, ask: CastRequest, answer: Option<Value>) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.runtime().new_run_id()), ask.cancel.clone());
        let (service, spell) = (self.clone(), spell.to_owned());
        let cast = async move {
            let cantrip = service.spells().cantrip(&spell).await;
            match cantrip.and_then(|cantrip| typed(&spell, cantrip, answer)) {
                Ok(cantrip) => service.cast(&cantrip, CastRequest { run: Some(run), ..ask }).await,
                Err(refusal) => service.refused_cast("cast", refusal).await,
            }
        };
        self.active.begin(run, cancel, cast).await
    }

    /// Casts a cantrip whose entity stays alive: later intents find it in the state in which this cast left it.
    pub async fn begin_live(&self, cantrip: Cantrip, ask: CastRequest) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.runtime().new_run_id()), ask.cancel.clone());
        let service = self.clone();
        let ask = CastRequest { run: Some(run), ..ask };
        self.active.begin(run, cancel, async move { service.cast_live(&cantrip, ask).await }).await
    }

    /// Sends an intent to an entity. An entity that is not in memory is loaded from the loom first.
    pub async fn begin_send(&self, entity: EntityId, ask: CastRequest) -> StartedCast {
        let (run, cancel) = (ask.run.unwrap_or_else(|| self.runtime().new_run_id()), ask.cancel.clone());
        let service = self.clone();
        let send = async move {
            let found = match service.own_entity(entity).await {
                Ok(_) => service.spells().cantrip_of_entity(entity).await,
                Err(refusal) => Err(refusal),
            };
            let cantrip = match found {
                Ok(cantrip) => cantrip,
                Err(refusal) => return service.refused_cast("send", refusal).await,
            };
            let taken = service.reattach_entity(&cantrip, entity).await;
            if !taken.reply.reply_type().is_success() {
                return taken.into();
            }
            service.send(entity, CastRequest { run: Some(run), ..ask }).await
        };
        self.active.begin(run, cancel, send).await
    }

    /// Forks after a turn.
    pub async fn begin_fork(&self, at: TurnId, branch: ForkRequest) -> StartedCast {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.runtime().new_run_id()), branch.cancel.clone());
        let service = self.clone();
        let fork = async move {
            let found = match service.own_turn(at).await {
                Ok(turn) => service.spells().cantrip_of_entity(turn.entity_id).await,
                Err(refusal) => Err(refusal),
            };
            match found {
                Ok(cantrip) => service.fork(&cantrip, at, ForkRequest { run: Some(run), ..branch }).await,
                Err(refusal) => service.refused_cast("fork", refusal).await,
            }
        };
        self.active.begin(run, cancel, fork).await
    }

    /// Forks after a turn with this cantrip, which may differ from the cantrip of the turn.
    pub async fn begin_fork_with(&self, cantrip: Cantrip, at: TurnId, branch: ForkRequest) -> StartedCast {
        let (run, cancel) = (branch.run.unwrap_or_else(|| self.runtime().new_run_id()), branch.cancel.clone());
        let service = self.clone();
        let branch = ForkRequest { run: Some(run), ..branch };
        self.active.begin(run, cancel, async move { service.fork(&cantrip, at, branch).await }).await
    }

    /// Resumes a run that waits, or whose process is dead.
    pub async fn begin_resume(&self, run: RunId, cancel: Cancel) -> StartedCast {
        if self.active.contains(run) {
            let busy = codes::busy("run", run.to_string(), "this process");
            return StartedCast::refused(self.refused_cast("resume", busy.into()).await, cancel);
        }
        let (service, ends) = (self.clone(), cancel.clone());
        let resume = async move {
            match service.resumable(run).await {
                Ok(Resumable::Cast(cantrip)) => service.resume(&cantrip, run, &ends).await,
                Ok(Resumable::Predict(predictor)) => {
                    let PredictReply { guarded, predicted } = predictor.resume(run, &ends).await;
                    CastReply { waiting: predicted.waiting, run: Some(run), ..guarded.into() }
                }
                Ok(Resumable::Job(predictor)) => {
                    service.resume_job(&service.job_driver(), &predictor, run, &ends).await
                }
                Err(refusal) => service.refused_cast("resume", refusal).await,
            }
        };
        // The run of a job is on record and sends no events, so there is nothing to wait for.
        if self.is_job(run).await {
            return self.active.begin_silent(run, cancel, resume);
        }
        self.active.begin(run, cancel, resume).await
    }

    async fn resumable(&self, run: RunId) -> Result<Resumable, Refusal> {
        match self.own_run(run).await?.kind {
            RunKind::Predict => Ok(Resumable::Predict(Box::new(self.spells().predictor(self).await?))),
            RunKind::Job => Ok(Resumable::Job(Box::new(self.spells().predictor(self).await?))),
            RunKind::Cast | RunKind::Summon => Ok(Resumable::Cast(Box::new(self.cantrip_of_run(run).await?))),
        }
    }

    /// Continues a truncated run: a new run of the same entity with the same intent.
    pub async fn begin_continue(&self, run: RunId, continuing: ContinueOptions, cancel: Cancel) -> StartedCast {
        let (service, next) = (self.clone(), self.runtime().new_run_id());
        let continuing = continuing.as_run(next).cancelled_by(&cancel);
        let going_on = async move {
            match service.cantrip_of_run(run).await {
                Ok(cantrip) => service.continue_run(&cantrip, run, continuing).await,
                Err(refusal) => service.refused_cast("continue", refusal).await,
            }
        };
        self.active.begin(next, cancel, going_on).await
    }

    /// Reopens a job that ran out of its budget or was cancelled, as a task.
    pub async fn begin_continue_job(&self, run: RunId, more: JobContinuation, cancel: Cancel) -> StartedCast {
        let (service, ends) = (self.clone(), cancel.clone());
        let going_on = async move {
            match service.spells().predictor(&service).await {
                Ok(predictor) => service.continue_job(&service.job_driver(), &predictor, run, more, &ends).await,
                Err(refusal) => service.refused_cast("continue", refusal).await,
            }
        };
        self.active.begin_silent(run, cancel, going_on)
    }

    /// Creates an entity of a spell that waits for an intent.
    pub async fn summon_spell(&self, spell: &str, context: Option<Value>) -> GuardedReply {
        match self.spells().cantrip(spell).await {
            Ok(cantrip) => self.summon(&cantrip, context).await,
            Err(refusal) => self.refusal_reply("summon", refusal).await,
        }
    }

    /// Resumes a run after a user's decision about a call, once the run is idle and no other decision is pending.
    /// Returns at once.
    pub fn resume_after_decision(&self, run: RunId) {
        self.resume_when_idle(run, move |service: Service| async move {
            service.pending(run).await.is_ok_and(|pending| pending.is_empty())
        });
    }

    /// Resumes a run that was asked to end: a waiting run ends when it is resumed. Returns at once.
    pub fn resume_after_cancel(&self, run: RunId) {
        self.resume_when_idle(run, |_| std::future::ready(true));
    }

    /// Resumes a run once it is idle, if `may` allows it then.
    fn resume_when_idle<M>(&self, run: RunId, may: impl FnOnce(Service) -> M + Send + 'static)
    where
        M: Future<Output = bool> + Send,
    {
        let service = self.clone();
        tokio::spawn(async move {
            let rests = tokio::time::timeout(Duration::from_millis(GO_ON_MS), service.wait_until_idle(run)).await;
            if rests.unwrap_or(false) && may(service.clone()).await {
                let reply = service.begin_resume(run, Cancel::new()).await.reply().await;
                tracing::debug!(%run, code = %reply.reply().code(), "a run went on");
            }
        });
    }

    /// Waits until this process does not drive the run. Returns true if the run can be resumed; a run that another
    /// process drives cannot.
    async fn wait_until_idle(&self, run: RunId) -> bool {
        loop {
            let live = self.own_run(run).await.is_ok_and(|view| view.state.is_live());
            if !live {
                return false;
            }
            if !self.active.contains(run) {
                return matches!(self.runtime().loom().holder(run).await, Ok(None));
            }
            tokio::time::sleep(Duration::from_millis(GO_ON_LOOK_MS)).await;
        }
    }

    async fn cantrip_of_run(&self, run: RunId) -> Result<Cantrip, Refusal> {
        let view = self.own_run(run).await?;
        let nothing = || Refusal::from(codes::wrong_state("run", run.to_string(), "no cast", "going on", "a cast"));
        self.spells().cantrip_of_entity(view.entity_id.ok_or_else(nothing)?).await
    }

    async fn refused_cast(&self, name: &str, refusal: Refusal) -> CastReply {
        self.refusal_reply(name, refusal).await.into()
    }
}

/// Returns the cantrip of a spell with the answer that a caller asks for.
fn typed(spell: &str, cantrip: Cantrip, answer: Option<Value>) -> Result<Cantrip, Refusal> {
    let Some(answer) = answer else { return Ok(cantrip) };
    match cantrip.circle().answer_schema().cloned() {
        Some(own) if own == answer => Ok(cantrip),
        Some(_) => {
            let fault = format!("the spell {spell} has an answer_schema of its own, and another one was asked for");
            Err(codes::contract_invalid(fault).into())
        }
        None => Ok(cantrip.with_answer_schema(answer)?),
    }
}
