//! One cast of a root entity, from its first record to its reply.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cantrip_canon::{CastId, EntityId, LoomId, RunId};
use cantrip_circle::Circle;
use cantrip_crystal::Crystal;
use cantrip_loom::{
    Body, CastParked, Content, Ending, Environment, Event, IntentRecord, Lease, Loom, Outcome, ParkReason,
    RecordedError, RunFailed, RunKind, RunOpening, TruncationReason,
};
use cantrip_reply::{AnyCode, Call, GuardedReply, Refusal, Reply, ReplyBuilder, Trace, codes};
use futures_util::FutureExt;
use serde_json::{Value, json};

use crate::cancel::{Cancel, StopLevel};
use crate::cantrip::Cantrip;
use crate::driver::{
    DriveOutcome, EntityDriver, EntityInit, EntityLog, FirstRecords, LoadedBodies, Run, RunFunds, Runtime,
    SandboxState, TreePosition,
};
use crate::runtime_error::RunError;
use crate::telemetry::{CastSpan, CastSpanEnd, SpanParent, SpanScope};
use crate::touched_labels;
use crate::waiting::Waiting;
use cantrip_turn::{CastFacts, CastMedium, EntityHistory, Machine, UnansweredIntent, millis, truncation_refusal};

/// The outcome of a cast.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct CastReply {
    pub guarded: GuardedReply,
    /// `None` if nothing was cast, or if the cast has not ended.
    pub outcome: Option<Outcome>,
    /// The reason why the run waits, if it does.
    pub waiting: Option<Waiting>,
    /// The run, once it was opened.
    pub run: Option<RunId>,
    pub entity: Option<EntityId>,
}

/// A reply without a cast.
impl From<GuardedReply> for CastReply {
    fn from(guarded: GuardedReply) -> Self {
        Self { guarded, outcome: None, waiting: None, run: None, entity: None }
    }
}

impl CastReply {
    pub fn reply(&self) -> &Reply {
        &self.guarded.reply
    }

    /// Returns true if the run waits for the decision of a person.
    pub fn waits_for_person(&self) -> bool {
        matches!(self.waiting, Some(Waiting::Approval { .. }))
    }

    /// Returns the answer, if the cast terminated with one.
    pub fn answer(&self) -> Option<&Value> {
        self.outcome.as_ref()?.ending.result()
    }

    /// Returns the answer as the type that [`CantripBuilder::answer`](crate::CantripBuilder::answer) promised.
    pub fn answer_as<T: serde::de::DeserializeOwned>(&self) -> Result<T, AnswerFault> {
        let Some(answer) = self.answer() else {
            let reply = self.reply();
            return Err(AnswerFault::Absent { code: reply.code(), message: reply.message() });
        };
        T::deserialize(answer).map_err(AnswerFault::Misshapen)
    }

    /// Returns why the cast was cut off, if it was.
    pub fn reason(&self) -> Option<TruncationReason> {
        let Ending::Truncated { reason, .. } = &self.outcome.as_ref()?.ending else { return None };
        Some(*reason)
    }
}

/// The reason why an answer cannot be read as a type.
#[derive(Debug, thiserror::Error)]
pub enum AnswerFault {
    #[error("there is no answer: {message} ({code})")]
    Absent { code: AnyCode, message: String },
    /// The answer does not match the type: the schema of the cantrip is not that of the type.
    #[error("the answer does not match the expected type")]
    Misshapen(#[source] serde_json::Error),
}

/// The start of an episode: records to write, or records that exist.
pub(crate) enum Start {
    Open {
        events: Vec<Event>,
        bodies: Vec<Body>,
    },
    /// A run of another owner is resumed.
    TakeOver {
        lease: Lease,
        logs: HashMap<EntityId, EntityLog>,
        bodies: LoadedBodies,
        /// True if a cancellation was requested meanwhile.
        cancelled: bool,
    },
}

/// Everything that one cast needs.
pub(crate) struct Episode {
    pub runtime: Runtime,
    pub cantrip: Cantrip,
    /// The circle under the wards of this cast, without the gate that reads a context.
    pub circle: Circle,
    pub run: RunId,
    pub loom: LoomId,
    pub entity: EntityId,
    pub cast: CastId,
    pub intent: Content,
    pub intent_record: IntentRecord,
    pub environment: Option<Environment>,
    /// The earlier intents that were cancelled before an answer.
    pub cancelled: Vec<UnansweredIntent>,
    pub seed: u64,
    pub context: Option<Arc<Value>>,
    pub past: EntityHistory,
    pub sandbox_state: SandboxState,
    pub place: MoneyPlace,
    pub cancel: Cancel,
    pub start: Start,
}

/// The place of a cast in the tree of runs whose money is counted together.
#[derive(Debug, Default)]
pub(crate) struct MoneyPlace {
    /// The run that this one is below: a job.
    pub under: Option<RunId>,
    /// The scope that the money of the cast counts in, if it is recorded.
    pub scope: Option<String>,
}

/// The state that an entity keeps from one cast to the next.
pub(crate) struct EntityState {
    pub past: EntityHistory,
    pub sandbox_state: SandboxState,
}

/// The result of a cast: an end, or a wait.
enum CastResult {
    Ended {
        outcome: Box<Outcome>,
        refusal: Option<Refusal>,
        /// The number of denied calls of the run, including those of its children.
        calls_denied: u64,
        state: Box<EntityState>,
    },
    Waiting(Waiting),
}

impl Episode {
    /// Casts, inside the guard. If the caller goes away, the cast continues; `kept` receives the state that the entity
    /// keeps.
    ///
    /// Boxed, like its machine below: otherwise every function on the way would reserve space for it for as long as the
    /// cast lives.
    pub(crate) async fn cast(
        self: Box<Self>,
        name: &'static str,
        kept: impl FnOnce(Option<EntityState>) + Send + 'static,
    ) -> CastReply {
        let (guard, runtime) = (self.runtime.guard().clone(), self.runtime.clone());
        let (run, entity) = (self.run, self.entity);
        let call = Call::surface(name).run(run).entity(entity).with_answer();
        let (guarded, rest) = guard
            .call_returning_with_effects(call, move |rb| async move {
                let trace = rb.trace();
                let opened: Arc<OnceLock<Arc<Run>>> = Arc::default();
                let casting = CastSpan { cantrip: &self.cantrip, run, entity, cast: self.cast, intent: &self.intent };
                let scope = SpanScope::cast(&runtime, &casting, SpanParent::Call(&trace));
                let resting = self.run_to_rest(trace, scope.clone(), Arc::clone(&opened));
                let rested = AssertUnwindSafe(resting).catch_unwind().await;
                runtime.active_runs().remove(&run);
                let mut left = None;
                let (reply, outcome, waiting) = match rested {
                    Ok(Ok(CastResult::Ended { outcome, refusal, calls_denied, state })) => {
                        left = Some(*state);
                        (end_reply(rb, run, &outcome, refusal, calls_denied), Some(outcome), None)
                    }
                    Ok(Ok(CastResult::Waiting(waiting))) => {
                        // The reply is a success: the run did what was possible so far.
                        let filled = codes::created("run", run.to_string()).data(waiting.reply_data());
                        (rb.success(filled), None, Some(waiting))
                    }
                    Ok(Err(stopped)) => (rb.refuse(stopped.refusal(run)), None, None),
                    Err(_) => {
                        record_failure(opened.get()).await;
                        (rb.error(codes::crash()), None, None)
                    }
                };
                if let Some(run) = opened.get() {
                    run.release().await;
                }
                kept(left);
                tell_end(&scope, &runtime, reply.code(), outcome.as_deref());
                (reply, (outcome, waiting))
            })
            .await;
        let (outcome, waiting) = rest.unwrap_or_default();
        CastReply { guarded, outcome: outcome.map(|outcome| *outcome), waiting, run: Some(run), entity: Some(entity) }
    }

    async fn run_to_rest(
        self: Box<Self>,
        trace: Trace,
        scope: SpanScope,
        opened: Arc<OnceLock<Arc<Run>>>,
    ) -> Result<CastResult, RunError> {
        let Self { runtime, cantrip, circle, run: id, loom, entity, cast, intent, intent_record, environment, .. } =
            *self;
        let Self { cancelled: told_cancelled, seed, context, past, sandbox_state: environs, cancel, start, .. } = *self;
        let MoneyPlace { under, scope: recorded_scope } = self.place;
        let runtime = match &start {
            Start::Open { .. } => runtime,
            // The run belongs to its owner, and the owner pays, whichever worker resumes it.
            Start::TakeOver { .. } => runtime.with_actor(runtime.loom().run(id).await?.owner),
        };
        let funds = RunFunds::resolve(&runtime, &cantrip, id, entity, under).await?;
        let circle = match &context {
            Some(context) => circle.with_context(Arc::clone(context)),
            None => circle,
        };
        let Some(medium) = cantrip.medium(circle.medium()) else {
            return Err(RunError::Unserved(circle.medium().as_str()));
        };
        // A trial without a cap of its own counts in the scope of its job.
        let own_scope = || match under {
            Some(root) if funds.cap("", circle.wards()).is_none() => root.to_string(),
            Some(_) | None => cast.to_string(),
        };
        let money_scope = recorded_scope.unwrap_or_else(own_scope);
        let facts = Arc::new(CastFacts {
            run: id,
            entity,
            cast,
            definition: Arc::clone(cantrip.definition()),
            circle,
            medium: CastMedium(medium),
            parks: cantrip.definition().settings().park,
            askable: runtime.is_askable(),
            intent,
            intent_record,
            environment,
            cancelled: told_cancelled,
            scope: money_scope,
        });
        let cut_text = runtime.text_cut_before(&facts.intent_record, past.parent).await?;
        let mut machine = Box::new(Machine::new(Arc::clone(&facts), past).going_on_with(cut_text));
        let mut worked = Duration::ZERO;
        let mut cancelled = false;
        let run = match start {
            Start::Open { mut events, bodies } => {
                for event in &mut events {
                    if let Event::Cast(cast) = event {
                        cast.budget_scope = Some(facts.scope.clone());
                    }
                }
                let opening = RunOpening {
                    kind: runtime.observer().map_or(RunKind::Cast, |observer| observer.kind()),
                    loom_id: loom,
                    owner: runtime.actor().clone(),
                    entity_id: Some(entity),
                    root_run_id: under,
                };
                let cap = funds.cap(&facts.scope, facts.circle.wards());
                let begins = FirstRecords { events, bodies, money: cap.into_iter().collect() };
                Run::open(runtime.clone(), id, opening, trace, cancel, funds, begins).await?
            }
            Start::TakeOver { lease, logs, bodies, cancelled: asked } => {
                cancelled = asked;
                let mut run = Run::take_over(runtime.clone(), id, loom, trace, cancel, lease, funds).await?;
                run.accounting.set_root(entity);
                run.restore(logs, bodies);
                let again = touched_labels::repeated_calls(&run.past, cantrip.circle(), &run.bodies)?;
                run.adopted = Arc::new(run.recover_holds(|call| again.contains(call)).await?);
                machine.set_adopted_holds(Arc::clone(&run.adopted));
                if let Some(log) = run.past.get(&entity) {
                    worked = log.worked;
                    machine.set_child_labels(run.touched_labels());
                    let now = runtime.now().monotonic;
                    for (at, event) in &log.events {
                        machine.apply(event, *at, now, &run.bodies)?;
                    }
                }
                run
            }
        };
        let run = Arc::new(run);
        let _ = opened.set(Arc::clone(&run));
        let person = EntityInit { cantrip, seed, context, worked, scope };
        let mut driver = EntityDriver::new(Arc::clone(&run), *machine, environs, TreePosition::default(), person);
        if let Some(log) = run.past.get(&entity) {
            driver.replay_events(&log.events);
        }
        let (halting, cancel) = (driver.halting.clone(), run.cancel.clone());
        if cancelled {
            halting.halt(TruncationReason::Cancelled);
        }
        run.runtime.active_runs().insert(id, halting.clone());
        let wished = async {
            if cancel.wait_for_level(StopLevel::HandBack).await < StopLevel::Cancel {
                halting.pause();
                cancel.wait_for_level(StopLevel::Cancel).await;
            }
            halting.halt(TruncationReason::Cancelled);
            std::future::pending::<std::convert::Infallible>().await
        };
        // Stop requests are polled first: a caller that ends a run before it continues must not see it continue.
        let rest = tokio::select! { biased;
            never = wished => match never {},
            rest = driver.drive() => rest?,
            lost = run.heartbeat(&halting) => return Err(lost),
        };
        match rest {
            DriveOutcome::Waiting(waiting) => {
                // The answer to a dropped request is no longer awaited.
                let dropped = run.dropped_hold_marks().await?;
                let (waiting, reason) = match waiting {
                    Waiting::Interrupted if cancel.is_handing_back() => {
                        (Waiting::HandedBack, Some(ParkReason::HandedBack))
                    }
                    Waiting::HandedBack => (waiting, Some(ParkReason::HandedBack)),
                    Waiting::Interrupted => (waiting, Some(ParkReason::Interrupted)),
                    Waiting::Approval { .. } | Waiting::Crystal { .. } => (waiting, None),
                };
                let parked = reason.map(|reason| {
                    let elapsed_ms = Some(millis(driver.elapsed()));
                    let (turn_id, error, detail) = (None, None, None);
                    let parked = CastParked { cast_id: cast, reason, turn_id, error, detail, elapsed_ms };
                    (run.runtime.now().wall, parked.into())
                });
                run.append_moving(parked.into_iter().collect(), dropped).await?;
                Ok(CastResult::Waiting(waiting))
            }
            DriveOutcome::Ended => {
                for crystal in driver.cantrip.crystals() {
                    crystal.on_end(entity);
                }
                let (outcome, refusal, calls_denied) = cast_result(&driver, loom)?;
                let EntityDriver { machine, sandbox_state, .. } = driver;
                let state = Box::new(EntityState { past: machine.into_history(), sandbox_state });
                Ok(CastResult::Ended { outcome: Box::new(outcome), refusal, calls_denied, state })
            }
        }
    }
}

/// Ends the span of a cast that ended or waits.
fn tell_end(scope: &SpanScope, runtime: &Runtime, code: AnyCode, outcome: Option<&Outcome>) {
    if scope.is_silent() {
        return;
    }
    let ended = outcome.map_or_else(CastSpanEnd::default, CastSpanEnd::of);
    scope.record_end(runtime, &code.into(), &ended);
}

/// Returns how the cast ended, the refusal for its reply if it did not terminate, and the number of denied calls.
fn cast_result(driver: &EntityDriver, loom: LoomId) -> Result<(Outcome, Option<Refusal>, u64), RunError> {
    let machine = &driver.machine;
    let facts = machine.facts();
    let Some(end) = machine.end() else { return Err(RunError::Unpaid) };
    let mut data = json!({
        "entity_id": facts.entity, "run_id": facts.run, "leaf": end.leaf, "turns": end.turns, "usage": end.usage,
    });
    if let Some(text) = machine.cut_text() {
        data["cut_text"] = text.into();
    }
    let calls_denied = driver.run.calls_denied.load(Ordering::Relaxed);
    if calls_denied > 0 {
        data["calls_denied"] = json!(calls_denied);
    }
    let (ending, refusal) = match &end.ending {
        Ending::Terminated { ended_by, .. } => {
            let result = machine.answer().cloned().unwrap_or_default();
            (Ending::Terminated { ended_by: *ended_by, result }, None)
        }
        Ending::Truncated { reason, error, summary } => {
            let refusal = match machine.cut_text_limit() {
                Some(limit) if *reason == TruncationReason::MaxTokens => {
                    codes::ward_reached(reason.as_str(), limit).data(data.clone()).into()
                }
                Some(_) | None => {
                    truncation_refusal(*reason, machine.failing(), facts.circle.wards(), facts.crystal(), &data)
                }
            };
            (Ending::Truncated { reason: *reason, error: error.clone(), summary: summary.clone() }, Some(refusal))
        }
    };
    let outcome = Outcome {
        ending,
        entity_id: facts.entity,
        cast_id: facts.cast,
        loom_id: loom,
        leaf: end.leaf,
        turns: end.turns,
        utterances: end.utterances,
        usage: end.usage,
        cost: end.cost,
        uncosted: end.uncosted,
    };
    Ok((outcome, refusal, calls_denied))
}

fn end_reply(rb: ReplyBuilder, run: RunId, outcome: &Outcome, refusal: Option<Refusal>, calls_denied: u64) -> Reply {
    match (refusal, &outcome.ending) {
        (Some(refusal), _) => rb.refuse(refusal),
        (None, Ending::Terminated { result, .. }) => {
            let data = json!({
                "answer": result, "entity_id": outcome.entity_id, "run_id": run, "leaf": outcome.leaf,
                "turns": outcome.turns, "usage": outcome.usage, "cost": outcome.cost, "uncosted": outcome.uncosted,
            });
            let denied = (calls_denied > 0).then(|| json!({"calls_denied": calls_denied}));
            rb.success(codes::terminated(outcome.entity_id.to_string()).data(data).data(denied))
        }
        (None, Ending::Truncated { .. }) => rb.error(codes::crash()),
    }
}

/// Records the failure of a run. A panic outside a gate is not an observation, so the run is abandoned as it is.
async fn record_failure(run: Option<&Arc<Run>>) {
    let Some(run) = run else { return };
    tracing::error!(run = %run.id, "the run failed: a panic outside a gate");
    let error = RecordedError::new(codes::CRASH.any(), "unexpected failure");
    let record = (run.runtime.now().wall, Event::from(RunFailed { error }));
    if let Err(stopped) = run.append_moving(vec![record], Vec::new()).await {
        tracing::error!(run = %run.id, ?stopped, "the failure could not be recorded");
    }
}
