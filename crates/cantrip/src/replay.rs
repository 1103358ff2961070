//! Is a thread what its records say?
//!
//! Every recorded utterance is put to the same machine again, in a fresh circle, and every call is answered with what is
//! on record: no network, no executor, no money, no write. What the machine then decides has to be what is recorded.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_canon::{EntityId, Hash, RunId, TurnId};
use cantrip_circle::medium::Isolation;
use cantrip_crystal::Answer;
use cantrip_loom::{
    Caller, Closing, Event, FoldView, GateRecord, Journal, Loom, Output, Record, Seq, Settlement, Thread,
    TruncationReason, Turn, Usage, render,
};
use cantrip_reply::{Call, Guarded, Reply, Trace, codes};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::driver::{Environs, Runtime, Spoken, Step, differing, groups};
use crate::entity::nothing_yet;
use crate::machine::{Effect, Facts, Grown, Happened, Machine, Medium, Past, WorkKind, Worked, World, reading, same};
use crate::recipe::Cantrip;
use crate::resume::Unable;

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
        let digests = self.digests(&thread).await?;
        let (seed, context) = self.individual(&thread.entity).await?;
        let sequences: HashMap<TurnId, u64> = thread.turns.iter().map(|turn| (turn.id, turn.sequence)).collect();
        let mut folds: HashMap<u64, Vec<FoldView>> = HashMap::new();
        for fold in &thread.folds {
            let follows = sequences.get(&fold.fold.after).copied().unwrap_or(0);
            folds.entry(follows).or_default().push(fold.clone());
        }
        let environs = Environs::default();
        let mut again = Again { runtime: self, cantrip, trace, digests, folds, seed, context, environs };
        let own = render::own_turns(&thread);
        let calls = own.iter().map(|turn| turn.gate_calls.len() as u64).sum();
        match again.thread(&thread, own).await {
            Ok(()) => Ok(Replayed::Identical { turns: own.len() as u64, calls }),
            Err(Halt::Differs(differs)) => Ok(Replayed::Differs(*differs)),
            Err(Halt::Unable(unable)) => Err(unable),
        }
    }

    /// The digest of the list that each accepted request was sent with.
    async fn digests(&self, thread: &Thread) -> Result<HashMap<TurnId, Hash>, Unable> {
        let mut runs: Vec<RunId> = thread.casts.iter().map(|cast| cast.run_id).collect();
        runs.dedup();
        let mut digests = HashMap::new();
        for run in runs {
            let records: Vec<Record> = self.loom().read(run, Seq::START).try_collect().await?;
            for record in &records {
                if record.kind != cantrip_loom::Kind::Attempt {
                    continue;
                }
                if let Event::Attempt(attempt) = record.event()?
                    && let Caller::Turn(turn) = attempt.call_id.caller()
                {
                    // The last one is the one that was accepted.
                    digests.insert(turn, attempt.request_digest);
                }
            }
        }
        Ok(digests)
    }
}

/// A second run.
struct Again<'a> {
    runtime: &'a Runtime,
    cantrip: &'a Cantrip,
    trace: Trace,
    digests: HashMap<TurnId, Hash>,
    /// By the sequence of the turn they follow.
    folds: HashMap<u64, Vec<FoldView>>,
    seed: u64,
    context: Option<Arc<Value>>,
    environs: Environs,
}

impl Again<'_> {
    async fn thread(&mut self, thread: &Thread, own: &[Turn]) -> Result<(), Halt> {
        let mut past = nothing_yet(self.cantrip, thread.entity.entity.window);
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
        let circle = match &self.context {
            Some(context) => self.cantrip.circle().with_context(Arc::clone(context)),
            None => self.cantrip.circle().clone(),
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
            askable: true,
            intent: cast.intent.clone(),
            about: cast.cast.intent.clone(),
            environment: first.forked_from.map(|fork| fork.environment),
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
            let effect = self.told(machine, |machine, world| machine.next(world))?;
            let what = match effect {
                Effect::Authorize(_) => Happened::Authorized,
                Effect::Reserve(calls) => Happened::Reserved(calls.iter().map(|_| None).collect()),
                Effect::Append { events, .. } => {
                    for (_, event) in &events {
                        replay.appended(event)?;
                    }
                    continue;
                }
                Effect::Ask(asked) => {
                    let digest = machine.digest();
                    replay.asked(self.digests.get(&group[0].id), digest)?;
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
                Effect::Spawn(spawning) => {
                    Happened::Grown(spawning.children.iter().map(|child| replay.grown(child.entity)).collect())
                }
                Effect::RunProgram(starting) => match replay.rolled_back() {
                    Some(output) => Happened::Ran(output.clone()),
                    None => {
                        if self.environs.sandbox.is_none() {
                            let isolation = Isolation { seed: self.seed, context: self.context.as_deref().cloned() };
                            let facts = machine.facts();
                            self.environs.sandbox = facts.medium.0.isolate(&facts.circle, isolation)?;
                        }
                        stepped(self.environs.start(starting).await, &replay)?
                    }
                },
                Effect::ResumeProgram { answer, clock } => stepped(self.environs.resume(answer, clock).await, &replay)?,
                Effect::CancelProgram => stepped(self.environs.cancel().await, &replay)?,
                Effect::WaitApproval { approval, call } => {
                    let decided = replay.decided(call.number());
                    let payload = json!({"approval_id": approval, "decision": decided});
                    if let Value::Object(payload) = payload {
                        let event = Event::Other { kind: "approval.decided".to_owned(), payload };
                        let now = self.runtime.now();
                        let none = crate::driver::Loaded::default();
                        machine.apply(&event, now.wall, now.monotonic, &none)?;
                    }
                    continue;
                }
                // It folds as recorded, and never asks for one.
                Effect::Summarise(_) | Effect::Sleep(_) | Effect::Park(_) | Effect::Finish => {
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
        Ok(act(machine, &World { now: self.runtime.now(), ids: self.runtime.ids(), words: &spoken })?)
    }
}

fn stepped(step: Result<Step, cantrip_circle::medium::Lost>, replay: &Group<'_>) -> Result<Happened, Halt> {
    match step {
        Ok(Step::Called(call)) => Ok(Happened::Called(call)),
        Ok(Step::Ran(output)) => {
            replay.output(&output)?;
            Ok(Happened::Ran(output))
        }
        Err(lost) => Err(replay.differs(None, DivergenceKind::Output, json!("a program"), json!(lost.to_string()))),
    }
}

/// What is recorded of one utterance, and how far the second run has come in it.
struct Group<'a> {
    turns: &'a [Turn],
    closed: usize,
    said: bool,
    /// The last of its cast: what ended the cast may stand alone.
    last: bool,
}

impl Group<'_> {
    fn differs(&self, call: Option<u32>, kind: DivergenceKind, recorded: Value, found: Value) -> Halt {
        let turn = &self.turns[self.closed.min(self.turns.len() - 1)];
        let sequence = turn.sequence;
        Halt::Differs(Box::new(Divergence { turn: turn.id, sequence, call, kind, recorded, found }))
    }

    fn asked(&mut self, recorded: Option<&Hash>, found: Hash) -> Result<(), Halt> {
        if std::mem::replace(&mut self.said, true) {
            return Err(self.differs(None, DivergenceKind::End, json!("a closed turn"), json!("another request")));
        }
        match recorded {
            Some(recorded) if *recorded != found => {
                let (recorded, found) = (json!(recorded.to_string()), json!(found.to_string()));
                Err(self.differs(None, DivergenceKind::Context, recorded, found))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn answer(&self) -> Answer {
        let turn = &self.turns[0];
        let usage = Usage {
            prompt_tokens: turn.metadata.tokens_prompt,
            completion_tokens: turn.metadata.tokens_completion,
            cached_tokens: turn.metadata.tokens_cached,
            ..Usage::default()
        };
        let utterance = turn.utterance.clone().expect("the first turn of a group holds its utterance");
        Answer { utterance, usage: Some(usage), call_items: Vec::new() }
    }

    fn settled(&self) -> impl Iterator<Item = &GateRecord> {
        let records = self.turns.iter().flat_map(|turn| &turn.gate_calls);
        records.filter(|record| match record.settlement {
            Settlement::Settled(_) => true,
            Settlement::Delegated => false,
        })
    }

    fn record(&self, number: u32, gate: &str) -> Result<&GateRecord, Halt> {
        match self.settled().find(|record| record.call_id.number() == number) {
            Some(record) if record.gate == gate => Ok(record),
            Some(record) => Err(self.differs(Some(number), DivergenceKind::Call, json!(record.gate), json!(gate))),
            None => Err(self.differs(Some(number), DivergenceKind::Call, Value::Null, json!(gate))),
        }
    }

    /// How a child of the group ended; what it answered is in the record of its call.
    fn grown(&self, entity: EntityId) -> Grown {
        let mut children = self.settled().flat_map(|record| match &record.settlement {
            Settlement::Settled(settled) => settled.children.as_slice(),
            Settlement::Delegated => &[],
        });
        let child = children.find(|child| child.entity_id == entity);
        Grown {
            entity,
            reply: child.map_or_else(|| codes::TERMINATED.any().into(), |child| child.reply.clone()),
            answer: child.and_then(|child| child.reason).map_or(Ok(Value::Null), |reason| Err((reason, None))),
            touched: Default::default(),
            tokens: 0,
        }
    }

    fn verdict(&self, found: &WorkKind, record: &GateRecord) -> Result<(), Halt> {
        let number = Some(record.call_id.number());
        let Settlement::Settled(settled) = &record.settlement else { return Ok(()) };
        match found {
            WorkKind::Refuse(refusal) if refusal.code().as_str() != settled.reply.code => {
                let found = json!(refusal.code().as_str());
                Err(self.differs(number, DivergenceKind::Verdict, json!(settled.reply.code), found))
            }
            WorkKind::Enter(permit) => {
                let found = Value::Object(permit.arguments().clone());
                let from_text = record.args.is_string() || record.args.is_null();
                if from_text || same(&record.args, &found) {
                    return Ok(());
                }
                Err(self.differs(number, DivergenceKind::Argument, record.args.clone(), found))
            }
            WorkKind::Answer(_) if settled.children.is_empty() && !settled.reply.is_success() => {
                let found = json!(codes::GATE_OK.any().as_str());
                Err(self.differs(number, DivergenceKind::Verdict, json!(settled.reply.code), found))
            }
            WorkKind::Refuse(_) | WorkKind::Answer(_) | WorkKind::Verify(_) => Ok(()),
        }
    }

    /// Whether the call was ended by what ended the cast.
    fn cut_off(&self, record: &GateRecord) -> Option<TruncationReason> {
        let Settlement::Settled(settled) = &record.settlement else { return None };
        let ended = [codes::WARD_REACHED.any(), codes::ENDED_FROM_OUTSIDE.any()];
        let cut = ended.iter().any(|code| code.as_str() == settled.reply.code);
        let closing = self.turns.last().and_then(Turn::truncation);
        closing.filter(|_| cut).map(|(reason, _)| reason)
    }

    fn decided(&self, number: u32) -> &'static str {
        let refused = codes::APPROVAL_REFUSED.any();
        let record = self.settled().find(|record| record.call_id.number() == number);
        let was_refused = record.is_some_and(|record| match &record.settlement {
            Settlement::Settled(settled) => settled.reply.code == refused.as_str(),
            Settlement::Delegated => false,
        });
        if was_refused { "refused" } else { "approved" }
    }

    fn outputs(&self) -> Vec<&Output> {
        self.turns.iter().flat_map(|turn| &turn.outputs).collect()
    }

    fn rolled_back(&self) -> Option<&Output> {
        self.outputs().into_iter().find(|output| output.rolled_back)
    }

    fn output(&self, found: &Output) -> Result<(), Halt> {
        let turn = &self.turns[self.closed.min(self.turns.len() - 1)];
        match differing(&self.outputs(), found, turn.sequence) {
            Some(difference) => Err(self.differs(None, DivergenceKind::Output, difference.recorded, difference.found)),
            None => Ok(()),
        }
    }

    fn appended(&mut self, event: &Event) -> Result<(), Halt> {
        let Event::Turn(closed) = event else { return Ok(()) };
        let Some(turn) = self.turns.get(self.closed) else { return Ok(()) };
        let alone = self.last && self.closed + 1 == self.turns.len();
        let (recorded, found) = (told(&turn.closing), told(&closed.closing));
        let stands_alone = alone && found == "open" && turn.truncated();
        if recorded != found && !stands_alone {
            return Err(self.differs(None, DivergenceKind::End, json!(recorded), json!(found)));
        }
        self.closed += 1;
        Ok(())
    }
}

fn told(closing: &Closing) -> String {
    match closing {
        Closing::Open => "open".to_owned(),
        Closing::Sealed { .. } => "sealed".to_owned(),
        Closing::Terminated { .. } => "terminated".to_owned(),
        Closing::Truncated { reason, .. } => format!("truncated {}", reason.as_str()),
    }
}

/// The recorded answer to a call.
fn answered(number: u32, record: &GateRecord) -> Worked {
    let Settlement::Settled(settled) = &record.settlement else { unreachable!("only settled calls are looked up") };
    Worked {
        number,
        reply: settled.reply.clone(),
        result: settled.result.clone(),
        data: settled.data.clone(),
        duration_ms: settled.duration_ms,
        changes: settled.changes.clone(),
        bodies: Vec::new(),
        cost: settled.cost,
        clock: reading(settled.clock_ms).unwrap_or(cantrip_canon::Timestamp::EPOCH),
        score: None,
    }
}
