//! Does a thread match its records?
//!
//! Every recorded utterance is given to the same machine again, in a fresh circle, and every call is answered from the
//! records: no network, no executor, no money, no write. The decisions of the machine must be equal to the recorded
//! ones.

mod journal_facts;
mod recorded_group;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Currency, Money, RunId, TurnId};
use cantrip_circle::Labels;
use cantrip_circle::medium::SandboxOptions;
use cantrip_loom::{ApprovalDecided, FoldView, Journal, Loom, Record, Seq, Thread, TruncationReason, Turn, render};
use cantrip_reply::{Call, GuardedReply, Refusal, Reply, Trace, codes};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::cantrip::Cantrip;
use crate::driver::{GuardWording, ProgramStep, Runtime, SandboxState, groups};
use crate::entity::empty_history;
use crate::journal::entity_logs;
use crate::resume::{cancelled_before, under_wards_of};
use crate::runtime_error::RuntimeError;
use crate::touched_labels;
use cantrip_turn::{
    CastFacts, CastMedium, CrystalRequest, Effect, EntityHistory, Funds, Input, Machine, RequestPurpose, StepContext,
};
use journal_facts::JournalFacts;
use recorded_group::{RecordedGroup, recorded_outcome};

/// The outcome of a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayOutcome {
    Identical { turns: u64, calls: u64 },
    Differs(Divergence),
}

/// The first difference.
#[derive(Debug, Clone, PartialEq)]
pub struct Divergence {
    pub turn: TurnId,
    pub sequence: u64,
    /// The number of the call in its group.
    pub call: Option<u32>,
    pub kind: DivergenceKind,
    pub recorded: Value,
    pub found: Value,
}

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DivergenceKind {
    /// Another gate, or none.
    Call,
    Argument,
    Output,
    /// The decision of a ward or a schema.
    Verdict,
    /// The message list that was sent.
    Context,
    /// The way in which the turn was closed.
    End,
}

impl DivergenceKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Argument => "argument",
            Self::Output => "output",
            Self::Verdict => "verdict",
            Self::Context => "context",
            Self::End => "end",
        }
    }
}

/// The reply of a replay.
#[derive(Debug)]
#[must_use = "a replay is a proof: look at it"]
pub struct ReplayReply {
    pub guarded: GuardedReply,
    /// `None` if the thread could not be read.
    pub replayed: Option<ReplayOutcome>,
}

impl ReplayReply {
    pub fn reply(&self) -> &Reply {
        &self.guarded.reply
    }
}

/// The reason why a replay stops.
enum ReplayStop {
    Differs(Box<Divergence>),
    Unable(RuntimeError),
}

impl<E: Into<RuntimeError>> From<E> for ReplayStop {
    fn from(error: E) -> Self {
        Self::Unable(error.into())
    }
}

impl Runtime {
    /// Replays the thread that ends at `leaf` against its records. A child's thread is replayed on its own.
    pub async fn replay(&self, cantrip: &Cantrip, leaf: TurnId) -> ReplayReply {
        let (guarded, replayed) = self
            .guard()
            .call_returning(Call::surface("replay"), |rb| async move {
                let replayed = match self.try_replay(cantrip, leaf, rb.trace()).await {
                    Ok(replayed) => replayed,
                    Err(unable) => return (rb.refuse(unable.refusal()), None),
                };
                let reply = match &replayed {
                    ReplayOutcome::Identical { turns, calls } => {
                        let data = json!({"turns": turns, "calls": calls});
                        rb.success(codes::verified(format!("thread {leaf}"), *turns).data(data))
                    }
                    ReplayOutcome::Differs(differs) => {
                        let data = json!({
                            "kind": differs.kind.as_str(), "recorded": differs.recorded, "found": differs.found,
                        });
                        let call = differs.call.map_or(Value::Null, Value::from);
                        rb.error(codes::replay_diverged(differs.sequence, call).data(data))
                    }
                };
                (reply, Some(replayed))
            })
            .await;
        ReplayReply { guarded, replayed: replayed.flatten() }
    }

    async fn try_replay(&self, cantrip: &Cantrip, leaf: TurnId, trace: Trace) -> Result<ReplayOutcome, RuntimeError> {
        let thread = self.loom().thread(leaf).await?;
        let cantrip = &cantrip.with_mode(thread.entity.entity.mode).with_window(thread.entity.entity.window);
        let told = self.journal_facts(cantrip, &thread).await?;
        let (seed, context) = self.seed_and_context(&thread.entity).await?;
        let sequences: HashMap<TurnId, u64> = thread.turns.iter().map(|turn| (turn.id, turn.sequence)).collect();
        let mut folds: HashMap<u64, Vec<FoldView>> = HashMap::new();
        for fold in &thread.folds {
            let follows = sequences.get(&fold.fold.after).copied().unwrap_or(0);
            folds.entry(follows).or_default().push(fold.clone());
        }
        let own = render::own_turns(&thread);
        let labels = match own.first() {
            Some(first) => self.loom().entity(first.entity_id).await?.entity.labels,
            None => Vec::new(),
        };
        let labels = labels.iter().filter_map(|label| label.parse().ok()).collect();
        let environs = SandboxState::default();
        let mut again = ReplayRun {
            runtime: self,
            cantrip,
            trace,
            told,
            folds,
            labels,
            seed,
            context,
            sandbox_state: environs,
            tokens_left: None,
            money_left: None,
        };
        let calls = own.iter().map(|turn| turn.gate_calls.len() as u64).sum();
        match again.thread(&thread, own).await {
            Ok(()) => Ok(ReplayOutcome::Identical { turns: own.len() as u64, calls }),
            Err(ReplayStop::Differs(differs)) => Ok(ReplayOutcome::Differs(*differs)),
            Err(ReplayStop::Unable(unable)) => Err(unable),
        }
    }

    /// Reads the facts about a thread that are in its journals but not in its turns.
    async fn journal_facts(&self, cantrip: &Cantrip, thread: &Thread) -> Result<JournalFacts, RuntimeError> {
        let mut runs: Vec<RunId> = thread.casts.iter().map(|cast| cast.run_id).collect();
        runs.dedup();
        let mut told = JournalFacts::default();
        for run in runs {
            let records: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
            told.add_journal(&records)?;
            let logs = entity_logs(&records)?;
            let bodies = self.load_bodies(&logs).await?;
            told.kin.extend(touched_labels::labels_by_entity(&logs, cantrip.circle(), &bodies)?);
        }
        Ok(told)
    }
}

/// The state of a replay.
struct ReplayRun<'a> {
    runtime: &'a Runtime,
    cantrip: &'a Cantrip,
    trace: Trace,
    told: JournalFacts,
    /// The folds, by the sequence of the turn that they follow.
    folds: HashMap<u64, Vec<FoldView>>,
    /// The labels that the entity had touched before its first turn.
    labels: Labels,
    seed: u64,
    context: Option<Arc<Value>>,
    sandbox_state: SandboxState,
    /// The tokens that the tree's limits left, as far as the journal shows.
    tokens_left: Option<u64>,
    money_left: Option<Money>,
}

impl ReplayRun<'_> {
    async fn thread(&mut self, thread: &Thread, own: &[Turn]) -> Result<(), ReplayStop> {
        let mut past =
            EntityHistory { touched: self.labels.clone(), ..empty_history(self.cantrip, thread.entity.entity.window) };
        past.parent = own.first().and_then(|turn| turn.parent_id);
        let mut rest = groups(own);
        while let Some(first) = rest.first().and_then(|group| group.first()) {
            let length =
                rest.iter().take_while(|group| group.first().is_some_and(|turn| turn.cast_id == first.cast_id));
            let length = length.count().max(1);
            let after = rest.split_off(length);
            past = self.cast(thread, &rest, past).await?;
            rest = after;
        }
        Ok(())
    }

    fn facts(&self, thread: &Thread, first: &Turn) -> Result<Arc<CastFacts>, ReplayStop> {
        let missing = || cantrip_loom::Error::NotFound { kind: "cast", id: first.cast_id.to_string() };
        let cast = thread.casts.iter().find(|cast| cast.cast.cast_id == first.cast_id).ok_or_else(missing)?;
        let circle = under_wards_of(self.cantrip, &cast.cast, cast.run_id)?;
        let circle = match &self.context {
            Some(context) => circle.with_context(Arc::clone(context)),
            None => circle,
        };
        let kind = circle.medium();
        let unserved = || Refusal::from(codes::sandbox_unavailable(kind.as_str(), "nothing serves it here"));
        let medium = self.cantrip.medium(kind).ok_or_else(unserved)?;
        Ok(Arc::new(CastFacts {
            run: cast.run_id,
            entity: first.entity_id,
            cast: first.cast_id,
            definition: Arc::clone(self.cantrip.definition()),
            circle,
            medium: CastMedium(medium),
            parks: false,
            // If a call was denied because no person could be asked, its record shows that.
            askable: true,
            intent: cast.intent.clone(),
            intent_record: cast.cast.intent.clone(),
            environment: first.forked_from.map(|fork| fork.environment),
            cancelled: cancelled_before(cast),
            scope: first.cast_id.to_string(),
        }))
    }

    async fn cast(
        &mut self,
        thread: &Thread,
        groups: &[&[Turn]],
        past: EntityHistory,
    ) -> Result<EntityHistory, ReplayStop> {
        let Some(first) = groups.first().and_then(|group| group.first()) else { return Ok(past) };
        let facts = self.facts(thread, first)?;
        if facts.environment == Some(cantrip_loom::Environment::Fresh) {
            self.sandbox_state = SandboxState::default();
        }
        // Folds after the last turn of the cast belong to the next cast.
        let last = groups.last().and_then(|group| group.last()).map_or(0, |turn| turn.sequence);
        let folds = (past.sequence..last).filter_map(|turn| self.folds.remove_entry(&turn)).collect();
        let mut machine = Machine::new(facts, past).with_recorded_folds(folds);
        machine.set_child_labels(self.told.kin.clone());
        for (at, group) in groups.iter().enumerate() {
            self.group(&mut machine, group, at + 1 == groups.len()).await?;
        }
        Ok(machine.into_history())
    }

    /// Replays one utterance, from its request to the closing of its last turn.
    async fn group(&mut self, machine: &mut Machine, group: &[Turn], last: bool) -> Result<(), ReplayStop> {
        let mut replay = RecordedGroup { turns: group, closed: 0, said: false, last };
        loop {
            if replay.closed == group.len() {
                return Ok(());
            }
            self.tokens_left = self.told.tokens_left(&group[0], &group[replay.closed], replay.said);
            self.money_left = replay.said.then(|| money_left(&group[replay.closed])).flatten();
            let effect = self.told(machine, |machine, world| machine.next(world))?;
            let what = match effect {
                Effect::Authorize(inquiries) => {
                    Input::Authorized(inquiries.iter().map(|asked| replay.said(asked.call.number())).collect())
                }
                Effect::Reserve(_) => Input::Reserved,
                Effect::Append { events, .. } => {
                    for (_, event) in &events {
                        replay.check_event(event)?;
                    }
                    continue;
                }
                Effect::Ask(CrystalRequest { purpose: RequestPurpose::Turn { .. }, .. }) => {
                    let recorded = self.told.digests.get(&group[0].id);
                    // A thread that was recorded by a version that did not send provider signatures back was sent
                    // without them.
                    let former = machine.former_digest().filter(|former| recorded == Some(former));
                    replay.check_request(recorded, former.unwrap_or_else(|| machine.digest()))?;
                    Input::Answered(replay.answer())
                }
                Effect::Execute(works) => {
                    let mut worked = Vec::with_capacity(works.len());
                    for work in works {
                        let record = replay.record(work.number, &work.gate)?;
                        replay.check_verdict(&work.kind, record)?;
                        if let Some(reason) = replay.cut_off(record) {
                            machine.halt(reason);
                        }
                        worked.push(recorded_outcome(work.number, record));
                    }
                    Input::CallsDone(worked)
                }
                Effect::Spawn(spawning) => Input::ChildrenDone(
                    spawning.children.iter().map(|child| replay.child_outcome(child.entity, &self.told)).collect(),
                ),
                Effect::Prepare(preparing) => Input::Prepared(match replay.predict_refusal(preparing.call.number()) {
                    Some(refusal) => Err(refusal),
                    None => Ok(None),
                }),
                Effect::RunProgram(starting) => match replay.rolled_back(&machine.program_call()) {
                    Some(output) => Input::ProgramEnded(output.clone(), None),
                    None => {
                        if self.sandbox_state.sandbox.is_none() {
                            let isolation =
                                SandboxOptions { seed: self.seed, context: self.context.as_deref().cloned() };
                            let facts = machine.facts();
                            self.sandbox_state.sandbox = facts.medium.0.isolate(&facts.circle, isolation)?;
                        }
                        program_input(self.sandbox_state.start(starting).await, &replay, machine)?
                    }
                },
                Effect::ResumeProgram { answer, clock } => {
                    program_input(self.sandbox_state.resume(answer, clock).await, &replay, machine)?
                }
                Effect::CancelProgram => program_input(self.sandbox_state.cancel().await, &replay, machine)?,
                Effect::WaitApproval { approval, call } => {
                    let decision = replay.decided(call.number());
                    let decided = ApprovalDecided { approval_id: approval, decision, actor: None, reason: None };
                    let now = self.runtime.now();
                    let none = crate::driver::LoadedBodies::default();
                    machine.apply(&decided.into(), now.wall, now.monotonic, &none)?;
                    continue;
                }
                // A replay folds as recorded, and never asks for a summary.
                Effect::Ask(CrystalRequest { purpose: RequestPurpose::Summary, .. })
                | Effect::Sleep(_)
                | Effect::Park { .. }
                | Effect::Finish => {
                    return Err(replay.differs(None, DivergenceKind::End, json!("a further turn"), json!("the end")));
                }
            };
            self.told(machine, |machine, world| machine.handle_input(what, world))?;
        }
    }

    fn told<T>(
        &self,
        machine: &mut Machine,
        act: impl FnOnce(&mut Machine, &StepContext<'_>) -> Result<T, cantrip_loom::Error>,
    ) -> Result<T, ReplayStop> {
        let spoken = GuardWording { guard: self.runtime.guard(), trace: &self.trace, what: "replay" };
        let world = StepContext {
            now: self.runtime.now(),
            ids: self.runtime.ids(),
            words: &spoken,
            tokens_left: self.tokens_left,
            money_left: self.money_left,
            funds: Funds::NoLedger,
            elapsed: Duration::ZERO,
        };
        Ok(act(machine, &world)?)
    }
}

/// Returns the money that was left when a turn was closed by its cost limit. Other runs spend from the same
/// authorization, and no journal of this run has that, so the record is trusted.
fn money_left(closed: &Turn) -> Option<Money> {
    let cut = closed.truncation().is_some_and(|(reason, _)| reason == TruncationReason::MaxCost);
    cut.then(|| Money::zero(Currency::USD))
}

fn program_input(
    step: Result<ProgramStep, cantrip_circle::medium::SandboxError>,
    replay: &RecordedGroup<'_>,
    machine: &Machine,
) -> Result<Input, ReplayStop> {
    match step {
        Ok(ProgramStep::Called(call)) => Ok(Input::ProgramCalled(call)),
        Ok(ProgramStep::Ran(output, end)) => {
            replay.check_output(&machine.program_call(), &output, &end)?;
            Ok(Input::ProgramEnded(*output, Some(end)))
        }
        Err(lost) => Err(replay.differs(None, DivergenceKind::Output, json!("a program"), json!(lost.to_string()))),
    }
}
