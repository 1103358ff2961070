//! The driver of one entity: its machine, and everything that the machine acts through.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{EntityId, Timestamp, TurnId};
use cantrip_circle::ProgramEnd;
use cantrip_circle::medium::{SandboxError, SandboxOptions};
use cantrip_crystal::{ItemIds, ToolDefinition};
use cantrip_loom::{
    Body, CallId, Error, Event, Journal, Kind, Loom, OutputRecord, Record, Seq, Spawn, Thread, TruncationReason, render,
};
use cantrip_spend::Operation;
use cantrip_stream::ChildOf;
use futures_util::TryStreamExt;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::run::WriteOutcome;
use super::sandbox::{Difference, ProgramStep, RebuildOptions, RebuildOutcome, SandboxState, SnapshotPolicy, rebuild};
use super::token_budget::{QueueTicket, TokenHold};
use super::{GuardWording, HaltSignal, LoadedBodies, Run, Runtime};
use crate::cantrip::Cantrip;
use crate::events::EventEmitter;
use crate::limits::TREE_LOOK_MS;
use crate::runtime_error::RunError;
use crate::telemetry::SpanScope;
use crate::waiting::Waiting;
use cantrip_turn::{Effect, Input, Machine, StepContext, UnpaidReason};

/// The notice for an environment that is lost although the loom could be replayed.
const LOST_MIDWAY: &str = "[environment lost: the programs of this turn cannot be run again]";

/// Drives one entity: holds its machine and carries out the machine's actions.
pub(crate) struct EntityDriver {
    pub run: Arc<Run>,
    /// The cantrip around the definition that the machine reads.
    pub cantrip: Cantrip,
    pub machine: Machine,
    pub halting: HaltSignal,
    pub sandbox_state: SandboxState,
    pub spawned_by: Option<Spawn>,
    pub depth: u64,
    pub seed: u64,
    pub context: Option<Arc<Value>>,
    /// The time that was used before this driver started, and the moment when it started.
    worked: Duration,
    began: Instant,
    pub(super) deadline: Option<Instant>,
    parent: Option<HaltSignal>,
    pub(super) definitions: Arc<[ToolDefinition]>,
    pub(super) items: Option<(TurnId, ItemIds)>,
    pub(super) stage: EventEmitter,
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// The tokens that are held for the next request, or the place in the queue for them.
    pub(super) hold: Option<TokenHold>,
    pub(super) ticket: Option<QueueTicket>,
    /// The images of the message list, once the list was requested.
    pub(super) images: Option<Arc<LoadedBodies>>,
    /// The span of the cast, and the span of the call whose children are running.
    pub(super) scope: SpanScope,
    /// The cantrip of the entity that answers the predict that was prepared last.
    pub(super) predict: Option<(EntityId, Cantrip)>,
    pub(super) delegating: Option<(CallId, SpanScope)>,
}

/// The outcome of driving an entity.
#[derive(Debug)]
pub(crate) enum DriveOutcome {
    Ended,
    Waiting(Waiting),
}

/// Keeps only the records of things that already happened, and returns true if others were removed. A commit may hold
/// both what was done and what is about to start. A cast that stops writes the first part, as if the second had not
/// been planned.
fn truncate_new(events: &mut Vec<(Timestamp, Event)>) -> bool {
    let new = events.iter().position(|(_, event)| matches!(event, Event::Attempt(_) | Event::Started(_)));
    events.truncate(new.unwrap_or(events.len()));
    new.is_some()
}

/// The position of an entity in its tree.
#[derive(Default)]
pub(crate) struct TreePosition {
    pub spawned_by: Option<Spawn>,
    pub parent_turn: Option<TurnId>,
    pub depth: u64,
    pub parent: Option<(EntityId, HaltSignal)>,
}

/// The values that belong to this entity alone, and the time it has already used.
pub(crate) struct EntityInit {
    pub cantrip: Cantrip,
    pub seed: u64,
    pub context: Option<Arc<Value>>,
    pub worked: Duration,
    pub scope: SpanScope,
}

impl EntityDriver {
    pub(crate) fn new(
        run: Arc<Run>,
        machine: Machine,
        environs: SandboxState,
        position: TreePosition,
        person: EntityInit,
    ) -> Self {
        let facts = Arc::clone(machine.facts());
        let mut environs = environs;
        if let Some(kept) = run.runtime.take_belongings(facts.entity) {
            environs.belongings = kept;
        }
        let TreePosition { spawned_by, parent_turn, depth, parent } = position;
        let EntityInit { cantrip, seed, context, worked, scope } = person;
        let wards = facts.circle.wards();
        let halting = HaltSignal::new(wards);
        let above = parent.as_ref().map(|(entity, _)| *entity);
        run.tokens.enter(facts.entity, above, wards.max_tokens);
        run.funds.enter(facts.entity, above, Some(wards));
        run.accounting.add_entity(&facts, run.runtime.now().monotonic, worked);
        let shown = facts.medium.0.present(&facts.circle, facts.definition.mode());
        let tools = shown.tools.into_iter();
        let definitions = tools.map(|tool| ToolDefinition {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters,
        });
        let child = match spawned_by {
            None => ChildOf::default(),
            Some(_) => ChildOf {
                entity_id: Some((&facts.entity).into()),
                parent_turn_id: parent_turn.as_ref().map(Into::into),
                depth: Some(depth),
            },
        };
        let (model, medium) = (facts.crystal(), facts.circle.medium());
        let stage = EventEmitter::new(
            run.runtime.clone(),
            run.id,
            model,
            child,
            Some(facts.intent.text()),
            (medium, facts.definition.mode()),
        );
        let began = Instant::now();
        let deadline = wards.timeout.map(|limit| began + limit.saturating_sub(worked));
        Self {
            definitions: definitions.collect(),
            run,
            cantrip,
            machine,
            halting,
            sandbox_state: environs,
            spawned_by,
            depth,
            seed,
            context,
            worked,
            began,
            deadline,
            parent: parent.map(|(_, halting)| halting),
            items: None,
            stage,
            place: None,
            hold: None,
            ticket: None,
            images: None,
            scope,
            predict: None,
            delegating: None,
        }
    }

    /// Emits the recorded events of the open group again, for watchers that joined after a resume.
    pub(crate) fn replay_events(&mut self, events: &[(Timestamp, Event)]) {
        let open = self.machine.utterance_turn();
        // The intent was emitted with the first group of the cast.
        if self.machine.utterances() > u64::from(open.is_some()) {
            self.stage.skip_intent();
        }
        let Some(holder) = open else { return };
        let opens = |event: &Event| event.as_opened().is_some_and(|opened| opened.turn_id == holder);
        if let Some(from) = events.iter().position(|(_, event)| opens(event)) {
            self.stage.replay_group(&events[from..], &self.run.bodies);
        }
    }

    /// Drives the machine until it stops. Watches the deadline and the parent's end at the same time.
    pub(crate) async fn drive(&mut self) -> Result<DriveOutcome, RunError> {
        let (cancel, entity) = (self.run.cancel.clone(), self.entity());
        let cancelled = async move { cancel.wait_entity_cancelled(entity).await };
        let watched = self.halting.clone().forward_halts(self.deadline, self.parent.clone(), cancelled);
        // Halts are polled first: a cast that is to end must not begin anything.
        let rest = tokio::select! { biased;
            never = watched => match never {},
            rest = self.run_loop() => rest,
        };
        if let Ok(DriveOutcome::Waiting(_)) = &rest {
            self.run.runtime.keep_belongings(entity, self.sandbox_state.belongings.clone());
        }
        rest
    }

    async fn run_loop(&mut self) -> Result<DriveOutcome, RunError> {
        if self.place.is_none() {
            self.place = Arc::clone(&self.run.places).acquire_owned().await.ok();
        }
        loop {
            if let Some(reason) = self.halting.reason() {
                self.machine.halt(reason);
            }
            let effect = self.with_step_context(Machine::next)?;
            let what = match effect {
                Effect::Authorize(inquiries) => {
                    let (run, facts) = (Arc::clone(&self.run), Arc::clone(self.machine.facts()));
                    Input::Authorized(run.authorize(&facts, inquiries).await?)
                }
                Effect::Reserve(calls) => match self.reserve(&calls).await {
                    Some(happened) => happened,
                    None => return Ok(DriveOutcome::Waiting(Waiting::Interrupted)),
                },
                Effect::Append { mut events, bodies, mut money } => {
                    let rests = self.halting.is_paused() && truncate_new(&mut events);
                    if rests {
                        money.retain(|operation| !matches!(operation, Operation::Reserve(_)));
                    }
                    match self.append(events, bodies, money).await? {
                        None if rests => return Ok(DriveOutcome::Waiting(Waiting::Interrupted)),
                        None => continue,
                        Some(unpaid) => Input::Unpaid(unpaid),
                    }
                }
                Effect::Ask(asked) => match self.ask(asked).await? {
                    Some(happened) => happened,
                    None => return Ok(DriveOutcome::Waiting(Waiting::Interrupted)),
                },
                Effect::Sleep(delay) => {
                    tokio::select! { biased;
                        _ = self.halting.wait_halted() => {}
                        () = self.halting.wait_paused() => return Ok(DriveOutcome::Waiting(Waiting::Interrupted)),
                        () = tokio::time::sleep(delay) => {}
                    }
                    Input::Slept
                }
                Effect::Execute(works) => Input::CallsDone(self.execute(works).await),
                Effect::Spawn(spawning) => match self.spawn(spawning).await? {
                    Ok(grown) => Input::ChildrenDone(grown),
                    Err(waiting) => return Ok(DriveOutcome::Waiting(waiting)),
                },
                Effect::Prepare(preparing) => Input::Prepared(self.prepare_predict(*preparing).await.map(Some)),
                Effect::RunProgram(starting) => {
                    self.sandbox_state.enter_group(self.machine.utterance_turn());
                    if self.sandbox_state.sandbox.is_none() {
                        self.rebuild().await?;
                        if self.sandbox_state.catch_up().await.is_err() {
                            self.sandbox_state.lost.get_or_insert_with(|| LOST_MIDWAY.to_owned());
                            self.rebuild().await?;
                        }
                    }
                    let ran = self.halting.unless_halted(self.sandbox_state.start(starting)).await;
                    self.retry_program(ran).await?
                }
                Effect::ResumeProgram { answer, clock } => {
                    let ran = self.halting.unless_halted(self.sandbox_state.resume(answer, clock)).await;
                    self.retry_program(ran).await?
                }
                Effect::CancelProgram => {
                    let ran = self.sandbox_state.cancel().await;
                    self.program_input(Some(ran))
                }
                Effect::WaitApproval { approval, .. } => {
                    return Ok(DriveOutcome::Waiting(Waiting::Approval { approvals: vec![approval] }));
                }
                Effect::Park { fault, detail } => {
                    return Ok(DriveOutcome::Waiting(Waiting::Crystal { fault, detail }));
                }
                Effect::Finish => {
                    self.run.withdraw_approvals(self.machine.open_approvals()).await;
                    return Ok(DriveOutcome::Ended);
                }
            };
            if let Some(reason) = self.halting.reason() {
                self.machine.halt(reason);
            }
            let ran = matches!(what, Input::ProgramEnded(..));
            self.with_step_context(|machine, world| machine.handle_input(what, world))?;
            if ran {
                self.keep_snapshot().await;
            }
        }
    }

    /// Returns the time that the cast has used.
    pub(crate) fn elapsed(&self) -> Duration {
        self.worked + self.began.elapsed()
    }

    fn with_step_context<T>(
        &mut self,
        act: impl FnOnce(&mut Machine, &StepContext<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let elapsed = self.elapsed();
        let funds = self.run.funds.funds();
        let Self { run, machine, .. } = self;
        let spoken = GuardWording { guard: run.runtime.guard(), trace: &run.trace, what: "crystal" };
        let world = StepContext {
            now: run.runtime.now(),
            ids: run.runtime.ids(),
            words: &spoken,
            tokens_left: run.tokens.left(machine.facts().entity),
            money_left: run.funds.left(machine.facts().entity),
            funds: funds.as_ref().map(|payer| &**payer),
            elapsed,
        };
        act(machine, &world)
    }

    /// Writes the drafted records, or returns why they are not paid for. If other reservations of the tree are in the
    /// way, this function waits for them.
    async fn append(
        &mut self,
        events: Vec<(Timestamp, Event)>,
        bodies: Vec<Body>,
        money: Vec<Operation>,
    ) -> Result<Option<UnpaidReason>, RunError> {
        let run = Arc::clone(&self.run);
        let settled = run.funds.settlement();
        tokio::pin!(settled);
        // Subscribes before it asks, so that no settlement between the two is missed.
        settled.as_mut().enable();
        let records = match run.append_paid(&events, &bodies, money.clone()).await? {
            WriteOutcome::Whole { bytes, last } => {
                run.funds.apply_operations(self.entity(), &money);
                if self.machine.is_paying()
                    && let Some(allowed) = run.hold_evaluation(&money, last).await?
                {
                    self.machine.handle_paid(allowed)?;
                }
                bytes
            }
            WriteOutcome::Refused(refused) => return Ok(Some(UnpaidReason::Refused(refused))),
            WriteOutcome::Wait => {
                // While this entity waits for others, it gives up its place: they might need it.
                self.place = None;
                let look = async {
                    if run.funds.is_shared() {
                        tokio::time::sleep(Duration::from_millis(TREE_LOOK_MS)).await;
                    } else {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! { biased;
                    _ = self.halting.wait_halted() => {}
                    () = self.halting.wait_paused() => {}
                    () = settled => {}
                    () = look => {}
                }
                self.place = Arc::clone(&self.run.places).acquire_owned().await.ok();
                return Ok(Some(UnpaidReason::Waited));
            }
        };
        self.run.count_denied(&events);
        self.sandbox_state.snapshot_policy.add(records, &events, &bodies);
        if self.stage.is_watched() {
            let loaded = LoadedBodies(bodies.iter().map(|body| (body.hash(), Arc::clone(body.bytes()))).collect());
            self.stage.emit_committed(&events, &loaded);
        }
        Ok(None)
    }

    /// Returns the outcome of a program. If the sandbox was lost through no fault of the program, the program is run
    /// again in another one: the answers to its calls are known.
    async fn retry_program(&mut self, ran: Option<Result<ProgramStep, SandboxError>>) -> Result<Input, RunError> {
        let ran = match ran {
            Some(Err(SandboxError::Gone)) => {
                self.rebuild().await?;
                self.halting.unless_halted(self.sandbox_state.catch_up_whole()).await
            }
            ran => ran,
        };
        Ok(self.program_input(ran))
    }

    /// Returns the outcome of a program. A program that was cut off while it ran is lost together with its sandbox.
    fn program_input(&mut self, ran: Option<Result<ProgramStep, SandboxError>>) -> Input {
        match ran {
            Some(Ok(ProgramStep::Called(call))) => Input::ProgramCalled(call),
            Some(Ok(ProgramStep::Ran(output, end))) => Input::ProgramEnded(*output, Some(end)),
            Some(Err(lost)) => Input::SandboxLost(lost),
            None => {
                let reason = self.halting.reason().unwrap_or(TruncationReason::Cancelled);
                let limit = Some(reason.as_str().to_owned());
                let output = OutputRecord { limit, rolled_back: true, ..OutputRecord::default() };
                Input::ProgramEnded(output, Some(ProgramEnd::Cancelled))
            }
        }
    }

    /// Stores a snapshot of the sandbox with the turn, if the sandbox supports it and the records since the last
    /// snapshot outweigh its size.
    async fn keep_snapshot(&mut self) {
        let SandboxState { sandbox: Some(sandbox), snapshot_policy, .. } = &mut self.sandbox_state else {
            return;
        };
        if snapshot_policy.is_due()
            && let Some(snapshot) = sandbox.snapshot().await
            && let Some(body) = snapshot_policy.snapshot_if_due(snapshot)
        {
            self.machine.keep_snapshot(body);
        }
    }

    /// Rebuilds the sandbox from the loom, or creates a new one with a notice.
    async fn rebuild(&mut self) -> Result<(), RunError> {
        let facts = Arc::clone(self.machine.facts());
        let isolation = || SandboxOptions { seed: self.seed, context: self.context.as_deref().cloned() };
        let medium = &*facts.medium.0;
        let fresh = facts.environment == Some(cantrip_loom::Environment::Fresh);
        let mut rebuilding = RebuildOptions { opened: None, cpu_max: self.run.runtime.rebuild_cpu_max() };
        let turns = match self.machine.sandbox_base() {
            Some(leaf) => {
                let thread = self.run.runtime.loom().thread(leaf).await?;
                let own = render::own_turns(&thread);
                // No turn of the open group is over. Its sealed turns are run again with the rest of the group.
                let holder = self.machine.utterance_turn();
                let before = own.iter().take_while(|turn| Some(turn.id) != holder);
                let mine = |turn: &&cantrip_loom::Turn| !fresh || turn.entity_id == facts.entity;
                if thread.turns.last().is_some_and(cantrip_loom::Turn::is_sealed) {
                    rebuilding.opened = opened_at(&self.run.runtime, &thread).await?;
                }
                before.filter(mine).cloned().collect()
            }
            None => Vec::new(),
        };
        let runtime = self.run.runtime.clone();
        let base = runtime.last_snapshot(medium, &turns).await;
        let (weighs, held) = base.as_ref().map_or((0, 0), |base| (base.snapshot.len() as u64, base.turns));
        self.sandbox_state.snapshot_policy =
            SnapshotPolicy::since_snapshot(weighs, turns.get(held..).unwrap_or_default());
        let lost = match rebuild(medium, &facts.circle, isolation(), &turns, base, rebuilding).await {
            Ok(RebuildOutcome::Restored(sandbox)) => {
                self.sandbox_state.sandbox = sandbox;
                return Ok(());
            }
            Ok(RebuildOutcome::Differs(difference)) => {
                let Difference { sequence, .. } = *difference;
                format!("[environment lost: replay differs at turn {sequence}]")
            }
            Ok(RebuildOutcome::TooLong) => "[environment lost: rebuild too long]".to_owned(),
            Ok(RebuildOutcome::Lost) => "[environment lost: the sandbox stopped]".to_owned(),
            Err(refusal) => {
                tracing::warn!(code = %refusal.code(), "no sandbox could be made");
                return Ok(());
            }
        };
        self.sandbox_state.lost = Some(lost);
        self.sandbox_state.sandbox = medium.isolate(&facts.circle, isolation()).unwrap_or(None);
        Ok(())
    }

    pub(crate) fn entity(&self) -> EntityId {
        self.machine.facts().entity
    }
}

/// Returns the time at which the utterance of the last turns of a thread was recorded.
async fn opened_at(runtime: &Runtime, thread: &Thread) -> Result<Option<Timestamp>, RunError> {
    let Some(holder) = thread.turns.iter().rev().find(|turn| turn.continuation_of.is_none()) else {
        return Ok(None);
    };
    let Some(cast) = thread.casts.iter().find(|cast| cast.cast.cast_id == holder.cast_id) else { return Ok(None) };
    let records: Vec<Record> = runtime.loom().read(cast.run_id, Seq::START).try_collect().await?;
    for record in records.iter().filter(|record| record.kind == Kind::Opened) {
        if matches!(record.event()?, Event::Opened(opened) if opened.turn_id == holder.id) {
            return Ok(Some(record.at));
        }
    }
    Ok(None)
}
