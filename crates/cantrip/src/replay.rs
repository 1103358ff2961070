//! Is a thread what its records say?
//!
//! Every recorded utterance is put to the same machine again, in a fresh circle, and every call is answered with what is
//! on record: no network, no executor, no money, no write. What the machine then decides has to be what is recorded.

mod recorded;
mod told;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Currency, Money, RunId, TurnId};
use cantrip_circle::Labels;
use cantrip_circle::medium::Isolation;
use cantrip_loom::{Event, FoldView, Journal, Loom, Record, Seq, Thread, TruncationReason, Turn, render};
use cantrip_reply::{Call, Guarded, Reply, Trace, codes};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::driver::{Environs, Runtime, Spoken, Step, groups};
use crate::entity::nothing_yet;
use crate::funds::Funds;
use crate::journal::logs;
use crate::machine::{DECIDED, Effect, Facts, Happened, Machine, Medium, Past, World};
use crate::recipe::Cantrip;
use crate::resume::{Unable, cancelled_before, under_wards_of};
use crate::touched;
use recorded::{Group, answered};
use told::Told;

/// What a second run came to.
#[derive(Debug, Clone, PartialEq)]
pub enum Replayed {
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

/// What differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DivergenceKind {
    /// Another gate, or none.
    Call,
    Argument,
    Output,
    /// What a ward or a schema said.
    Verdict,
    /// The list that was sent.
    Context,
    /// How the turn was closed.
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

/// The answer to a replay.
#[derive(Debug)]
#[must_use = "a replay is a proof: look at it"]
pub struct ReplayReply {
    pub guarded: Guarded,
    /// None if the thread could not be read.
    pub replayed: Option<Replayed>,
}

impl ReplayReply {
    pub fn reply(&self) -> &Reply {
        &self.guarded.reply
    }
}

/// Why a replay stops.
enum Halt {
    Differs(Box<Divergence>),
    Unable(Unable),
}

impl<E: Into<Unable>> From<E> for Halt {
    fn from(error: E) -> Self {
        Self::Unable(error.into())
    }
}

impl Runtime {
    /// Runs the thread that ends at `leaf` again, against its records. A child's thread is replayed on its own.
    pub async fn replay(&self, cantrip: &Cantrip, leaf: TurnId) -> ReplayReply {
        let slot: Arc<std::sync::OnceLock<Replayed>> = Arc::default();
        let told = Arc::clone(&slot);
        let guarded = self
            .guard()
            .call(Call::surface("replay"), |rb| async move {
                match self.replayed(cantrip, leaf, rb.trace()).await {
                    Ok(replayed) => {
                        let reply = match &replayed {
                            Replayed::Identical { turns, calls } => {
                                let data = json!({"turns": turns, "calls": calls});
                                rb.success(codes::verified(format!("thread {leaf}"), *turns).data(data))
                            }
                            Replayed::Differs(differs) => {
                                let data = json!({
                                    "kind": differs.kind.as_str(), "recorded": differs.recorded, "found": differs.found,
                                });
                                let call = differs.call.map_or(Value::Null, Value::from);
                                rb.error(codes::replay_diverged(differs.sequence, call).data(data))
                            }
                        };
                        let _ = told.set(replayed);
                        reply
                    }
                    Err(unable) => rb.refuse(unable.refusal()),
                }
            })
            .await;
        ReplayReply { guarded, replayed: slot.get().cloned() }
    }

    async fn replayed(&self, cantrip: &Cantrip, leaf: TurnId, trace: Trace) -> Result<Replayed, Unable> {
        let thread = self.loom().thread(leaf).await?;
        let cantrip = &cantrip.in_mode(thread.entity.entity.mode).windowed(thread.entity.entity.window);
        let told = self.told(cantrip, &thread).await?;
        let (seed, context) = self.individual(&thread.entity).await?;
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
        let environs = Environs::default();
        let mut again = Again {
            runtime: self,
            cantrip,
            trace,
            told,
            folds,
            labels,
            seed,
            context,
            environs,
            tokens_left: None,
            money_left: None,
        };
        let calls = own.iter().map(|turn| turn.gate_calls.len() as u64).sum();
        match again.thread(&thread, own).await {
            Ok(()) => Ok(Replayed::Identical { turns: own.len() as u64, calls }),
            Err(Halt::Differs(differs)) => Ok(Replayed::Differs(*differs)),
            Err(Halt::Unable(unable)) => Err(unable),
        }
    }

    /// What the journals of a thread say beyond its turns.
    async fn told(&self, cantrip: &Cantrip, thread: &Thread) -> Result<Told, Unable> {
        let mut runs: Vec<RunId> = thread.casts.iter().map(|cast| cast.run_id).collect();
        runs.dedup();
        let mut told = Told::default();
        for run in runs {
            let records: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
            told.listen(&records)?;
            let logs = logs(&records)?;
            let bodies = self.loaded(&logs).await?;
            told.kin.extend(touched::in_run(&logs, cantrip.circle(), &bodies)?);
        }
        Ok(told)
    }
}

/// A second run.
struct Again<'a> {
    runtime: &'a Runtime,
    cantrip: &'a Cantrip,
    trace: Trace,
    told: Told,
    /// By the sequence of the turn they follow.
    folds: HashMap<u64, Vec<FoldView>>,
    /// What the entity had touched before its first turn.
    labels: Labels,
    seed: u64,
    context: Option<Arc<Value>>,
    environs: Environs,
    /// What the tree's token limits left, as far as the journal says.
    tokens_left: Option<u64>,
    money_left: Option<Money>,
}

impl Again<'_> {
    async fn thread(&mut self, thread: &Thread, own: &[Turn]) -> Result<(), Halt> {
        let mut past = Past { touched: self.labels.clone(), ..nothing_yet(self.cantrip, thread.entity.entity.window) };
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

    fn facts(&self, thread: &Thread, first: &Turn) -> Result<Arc<Facts>, Halt> {
        let missing = || cantrip_loom::Error::NotFound { kind: "cast", id: first.cast_id.to_string() };
        let cast = thread.casts.iter().find(|cast| cast.cast.cast_id == first.cast_id).ok_or_else(missing)?;
        let circle = under_wards_of(self.cantrip, &cast.cast, cast.run_id)?;
        let circle = match &self.context {
            Some(context) => circle.with_context(Arc::clone(context)),
            None => circle,
        };
        let kind = circle.medium();
        let unserved = || {
            Unable::from(cantrip_reply::Refusal::from(codes::sandbox_unavailable(
                kind.as_str(),
                "nothing serves it here",
            )))
        };
        let medium = self.cantrip.medium(kind).ok_or_else(unserved)?;
        Ok(Arc::new(Facts {
            run: cast.run_id,
            entity: first.entity_id,
            cast: first.cast_id,
            cantrip: self.cantrip.clone(),
            circle,
            medium: Medium(medium),
            parks: false,
            // A call that was denied because nobody could be asked has a record that says so.
            askable: true,
            intent: cast.intent.clone(),
            about: cast.cast.intent.clone(),
            environment: first.forked_from.map(|fork| fork.environment),
            cancelled: cancelled_before(cast),
            scope: first.cast_id.to_string(),
        }))
    }

    async fn cast(&mut self, thread: &Thread, groups: &[&[Turn]], past: Past) -> Result<Past, Halt> {
        let Some(first) = groups.first().and_then(|group| group.first()) else { return Ok(past) };
        let facts = self.facts(thread, first)?;
        if facts.environment == Some(cantrip_loom::Environment::Fresh) {
            self.environs = Environs::default();
        }
        // What follows its last turn is for the cast after it.
        let last = groups.last().and_then(|group| group.last()).map_or(0, |turn| turn.sequence);
        let folds = (past.sequence..last).filter_map(|turn| self.folds.remove_entry(&turn)).collect();
        let mut machine = Machine::new(facts, past).folding_as(folds);
        machine.knows(self.told.kin.clone());
        for (at, group) in groups.iter().enumerate() {
            self.group(&mut machine, group, at + 1 == groups.len()).await?;
        }
        Ok(machine.into_past())
    }

    /// One utterance, from its request to the closing of its last turn.
    async fn group(&mut self, machine: &mut Machine, group: &[Turn], last: bool) -> Result<(), Halt> {
        let mut replay = Group { turns: group, closed: 0, said: false, last };
        loop {
            if replay.closed == group.len() {
                return Ok(());
            }
            self.tokens_left = self.told.tokens_left(&group[0], &group[replay.closed], replay.said);
            self.money_left = replay.said.then(|| money_left(&group[replay.closed])).flatten();
            let effect = self.told(machine, |machine, world| machine.next(world))?;
            let what = match effect {
                Effect::Authorize(inquiries) => {
                    Happened::Authorized(inquiries.iter().map(|asked| replay.said(asked.call.number())).collect())
                }
                Effect::Reserve(_) => Happened::Reserved,
                Effect::Append { events, .. } => {
                    for (_, event) in &events {
                        replay.appended(event)?;
                    }
                    continue;
                }
                Effect::Ask(asked) => {
                    let recorded = self.told.digests.get(&group[0].id);
                    // A thread that was recorded before what providers sign came back to them was sent without it.
                    let former = machine.former_digest().filter(|former| recorded == Some(former));
                    replay.asked(recorded, former.unwrap_or_else(|| machine.digest()))?;
                    let _ = asked;
                    Happened::Answered(replay.answer())
                }
                Effect::Execute(works) => {
                    let mut worked = Vec::with_capacity(works.len());
                    for work in works {
                        let record = replay.record(work.number, &work.gate)?;
                        replay.verdict(&work.kind, record)?;
                        if let Some(reason) = replay.cut_off(record) {
                            machine.halt(reason);
                        }
                        worked.push(answered(work.number, record));
                    }
                    Happened::Worked(worked)
                }
                Effect::Spawn(spawning) => Happened::Grown(
                    spawning.children.iter().map(|child| replay.grown(child.entity, &self.told)).collect(),
                ),
                Effect::Prepare(preparing) => Happened::Prepared(match replay.unprepared(preparing.call.number()) {
                    Some(refusal) => Err(refusal),
                    None => Ok(None),
                }),
                Effect::RunProgram(starting) => match replay.rolled_back(&machine.program_call()) {
                    Some(output) => Happened::Ran(output.clone(), None),
                    None => {
                        if self.environs.sandbox.is_none() {
                            let isolation = Isolation { seed: self.seed, context: self.context.as_deref().cloned() };
                            let facts = machine.facts();
                            self.environs.sandbox = facts.medium.0.isolate(&facts.circle, isolation)?;
                        }
                        stepped(self.environs.start(starting).await, &replay, machine)?
                    }
                },
                Effect::ResumeProgram { answer, clock } => {
                    stepped(self.environs.resume(answer, clock).await, &replay, machine)?
                }
                Effect::CancelProgram => stepped(self.environs.cancel().await, &replay, machine)?,
                Effect::WaitApproval { approval, call } => {
                    let decided = replay.decided(call.number());
                    let payload = json!({"approval_id": approval, "decision": decided});
                    if let Value::Object(payload) = payload {
                        let event = Event::Other { kind: DECIDED.to_owned(), payload };
                        let now = self.runtime.now();
                        let none = crate::driver::Loaded::default();
                        machine.apply(&event, now.wall, now.monotonic, &none)?;
                    }
                    continue;
                }
                // It folds as recorded, and never asks for one.
                Effect::Summarise(_) | Effect::Sleep(_) | Effect::Park { .. } | Effect::Finish => {
                    return Err(replay.differs(None, DivergenceKind::End, json!("a further turn"), json!("the end")));
                }
            };
            self.told(machine, |machine, world| machine.happened(what, world))?;
        }
    }

    fn told<T>(
        &self,
        machine: &mut Machine,
        act: impl FnOnce(&mut Machine, &World<'_>) -> Result<T, cantrip_loom::Error>,
    ) -> Result<T, Halt> {
        let spoken = Spoken { guard: self.runtime.guard(), trace: &self.trace, what: "replay" };
        let world = World {
            now: self.runtime.now(),
            ids: self.runtime.ids(),
            words: &spoken,
            tokens_left: self.tokens_left,
            money_left: self.money_left,
            funds: Funds::Uncounted,
            elapsed: Duration::ZERO,
        };
        Ok(act(machine, &world)?)
    }
}

/// What a turn that was closed for money had left. Others spend of the same authorization, which is in no journal of this
/// run, so the record is believed.
fn money_left(closed: &Turn) -> Option<Money> {
    let cut = closed.truncation().is_some_and(|(reason, _)| reason == TruncationReason::MaxCost);
    cut.then(|| Money::zero(Currency::USD))
}

fn stepped(
    step: Result<Step, cantrip_circle::medium::Lost>,
    replay: &Group<'_>,
    machine: &Machine,
) -> Result<Happened, Halt> {
    match step {
        Ok(Step::Called(call)) => Ok(Happened::Called(call)),
        Ok(Step::Ran(output, end)) => {
            replay.output(&machine.program_call(), &output, &end)?;
            Ok(Happened::Ran(*output, Some(end)))
        }
        Err(lost) => Err(replay.differs(None, DivergenceKind::Output, json!("a program"), json!(lost.to_string()))),
    }
}
