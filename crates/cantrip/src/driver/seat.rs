//! One entity at work: the machine, and everything it acts through.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{EntityId, Timestamp, TurnId};
use cantrip_circle::ProgramEnd;
use cantrip_circle::gate::Belongings;
use cantrip_circle::medium::{Isolation, Lost};
use cantrip_crystal::{Crystal, Definition, ItemIds};
use cantrip_loom::{
    Body, CallId, Error, Event, Fault, Journal, Kind, Loom, Output, Record, Seq, Spawn, Thread, TruncationReason,
    render,
};
use cantrip_reply::Refusal;
use cantrip_spend::Operation;
use cantrip_stream::ChildOf;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::environment::{Difference, Environs, Rebuilding, Rebuilt, Scales, Step, rebuild};
use super::execute::Hands;
use super::run::Written;
use super::tokens::{Hold, Ticket};
use super::{Halting, Loaded, Run, Runtime, Spoken, Stopped};
use crate::events::Stage;
use crate::machine::{Effect, Facts, Happened, Machine, Preparing, Unpaid, Work, WorkKind, World};
use crate::predicts::{PredictAsked, PreparedPredict};
use crate::telemetry::Scope;

/// Why an environment is lost though the loom could be told again.
const LOST_MIDWAY: &str = "[environment lost: the programs of this turn cannot be run again]";

/// One entity at work.
pub(crate) struct Seat {
    pub run: Arc<Run>,
    pub machine: Machine,
    pub halting: Halting,
    pub environs: Environs,
    pub spawned_by: Option<Spawn>,
    pub depth: u64,
    pub seed: u64,
    pub context: Option<Arc<Value>>,
    /// The time that was used before it sat down, and when it did.
    worked: Duration,
    began: Instant,
    pub(super) deadline: Option<Instant>,
    parent: Option<Halting>,
    pub(super) definitions: Arc<[Definition]>,
    pub(super) items: Option<(TurnId, ItemIds)>,
    pub(super) stage: Stage,
    pub(super) place: Option<OwnedSemaphorePermit>,
    /// What is put aside for the request that leaves next, or its place among those who wait for that.
    pub(super) hold: Option<Hold>,
    pub(super) ticket: Option<Ticket>,
    /// The images of the list, once it was asked for.
    pub(super) images: Option<Arc<Loaded>>,
    /// What is told of its cast, and of the call whose children are under way.
    pub(super) scope: Scope,
    pub(super) delegating: Option<(CallId, Scope)>,
}

/// Why a seat stopped without an end.
#[derive(Debug, Clone)]
pub(crate) enum Waiting {
    Approval {
        approvals: Vec<String>,
    },
    /// Its crystal stays down. `detail` has the provider's words that the fault does not have.
    Crystal {
        fault: Fault,
        detail: Option<String>,
    },
    /// Someone asked it to rest.
    Interrupted,
    /// Its process ends.
    HandedBack,
}

impl Waiting {
    /// Both: everything that someone has to do something about.
    pub(crate) fn and(self, other: Option<Self>) -> Self {
        match (self, other) {
            (Self::Approval { mut approvals }, Some(Self::Approval { approvals: more })) => {
                approvals.extend(more);
                Self::Approval { approvals }
            }
            (one @ (Self::Approval { .. } | Self::Crystal { .. } | Self::Interrupted | Self::HandedBack), _) => one,
        }
    }
}

/// How a seat came to rest.
#[derive(Debug)]
pub(crate) enum Rest {
    Ended,
    Waiting(Waiting),
}

/// Keeps of these records only what tells of things past, and says whether more was there. A commit may hold both what
/// was done and what is about to be; a cast that rests writes the first part, as if the second had not come to pass.
fn nothing_new(events: &mut Vec<(Timestamp, Event)>) -> bool {
    let new = events.iter().position(|(_, event)| matches!(event, Event::Attempt(_) | Event::Started(_)));
    match new {
        Some(at) => {
            events.truncate(at);
            true
        }
        None => false,
    }
}

/// Where an entity stands in its tree.
#[derive(Default)]
pub(crate) struct Position {
    pub spawned_by: Option<Spawn>,
    pub parent_turn: Option<TurnId>,
    pub depth: u64,
    pub parent: Option<(EntityId, Halting)>,
}

/// What only this entity has, and what it has used of its time.
pub(crate) struct Person {
    pub seed: u64,
    pub context: Option<Arc<Value>>,
    pub worked: Duration,
    pub scope: Scope,
}

impl Seat {
    pub(crate) fn new(run: Arc<Run>, machine: Machine, environs: Environs, position: Position, person: Person) -> Self {
        let facts = Arc::clone(machine.facts());
        let mut environs = environs;
        if let Some(kept) = run.runtime.wakes(facts.entity) {
            environs.belongings = kept;
        }
        let Position { spawned_by, parent_turn, depth, parent } = position;
        let Person { seed, context, worked, scope } = person;
        let wards = facts.circle.wards();
        let halting = Halting::new(wards);
        let above = parent.as_ref().map(|(entity, _)| *entity);
        run.tokens.enter(facts.entity, above, wards.max_tokens);
        run.purse.enter(facts.entity, above, Some(wards));
        run.office.enters(&facts, run.runtime.now().monotonic, worked);
        let shown = facts.medium.0.present(&facts.circle, facts.cantrip.mode());
        let tools = shown.tools.into_iter();
        let definitions = tools.map(|tool| Definition {
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
        let (model, medium) = (facts.cantrip.crystal().name(), facts.circle.medium());
        let stage =
            Stage::new(run.runtime.clone(), run.id, model, child, facts.intent.text(), (medium, facts.cantrip.mode()));
        let began = Instant::now();
        let deadline = wards.timeout.map(|limit| began + limit.saturating_sub(worked));
        Self {
            definitions: definitions.collect(),
            run,
            machine,
            halting,
            environs,
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
            delegating: None,
        }
    }

    /// Shows again what is recorded of the group that is gone on with, for whoever watches from here on.
    pub(crate) fn retell(&mut self, events: &[(Timestamp, Event)]) {
        let open = self.machine.holder();
        // The intent was shown with the first group of the cast.
        if self.machine.utterances() > u64::from(open.is_some()) {
            self.stage.has_begun();
        }
        let Some(holder) = open else { return };
        let opens = |event: &Event| match event {
            Event::Opened(opened) => opened.turn_id == holder,
            Event::Root(_)
            | Event::Entity(_)
            | Event::Cast(_)
            | Event::Attempt(_)
            | Event::Started(_)
            | Event::Settled(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::Parked(_)
            | Event::End(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::Other { .. } => false,
        };
        if let Some(from) = events.iter().position(|(_, event)| opens(event)) {
            self.stage.retell(&events[from..], &self.run.bodies);
        }
    }

    /// Drives the machine until it rests. Its deadline and its parent's end are watched all the while.
    pub(crate) async fn drive(&mut self) -> Result<Rest, Stopped> {
        let (cancel, entity) = (self.run.cancel.clone(), self.entity());
        let cancelled = async move { cancel.cancelled(entity).await };
        let watched = self.halting.clone().watch_over(self.deadline, self.parent.clone(), cancelled);
        // What ends it is looked at first: a cast that is to end does not begin anything.
        let rest = tokio::select! { biased;
            never = watched => match never {},
            rest = self.work() => rest,
        };
        if let Ok(Rest::Waiting(_)) = &rest {
            self.run.runtime.rests(entity, self.environs.belongings.clone());
        }
        rest
    }

    async fn work(&mut self) -> Result<Rest, Stopped> {
        if self.place.is_none() {
            self.place = Arc::clone(&self.run.places).acquire_owned().await.ok();
        }
        loop {
            if let Some(reason) = self.halting.said() {
                self.machine.halt(reason);
            }
            let effect = self.next()?;
            let what = match effect {
                Effect::Authorize(inquiries) => {
                    let (run, facts) = (Arc::clone(&self.run), Arc::clone(self.machine.facts()));
                    Happened::Authorized(run.judge(&facts, inquiries).await?)
                }
                Effect::Reserve(calls) => match self.reserve(&calls).await {
                    Some(happened) => happened,
                    None => return Ok(Rest::Waiting(Waiting::Interrupted)),
                },
                Effect::Append { mut events, bodies, mut money } => {
                    let rests = self.halting.is_paused() && nothing_new(&mut events);
                    if rests {
                        money.retain(|operation| !matches!(operation, Operation::Reserve(_)));
                    }
                    match self.append(events, bodies, money).await? {
                        None if rests => return Ok(Rest::Waiting(Waiting::Interrupted)),
                        None => continue,
                        Some(unpaid) => Happened::Unpaid(unpaid),
                    }
                }
                Effect::Ask(asked) => match self.ask(asked).await? {
                    Some(happened) => happened,
                    None => return Ok(Rest::Waiting(Waiting::Interrupted)),
                },
                Effect::Summarise(summary) => match self.summarise(summary).await {
                    Some(happened) => happened,
                    None => return Ok(Rest::Waiting(Waiting::Interrupted)),
                },
                Effect::Sleep(delay) => {
                    tokio::select! { biased;
                        _ = self.halting.halted() => {}
                        () = self.halting.pausing() => return Ok(Rest::Waiting(Waiting::Interrupted)),
                        () = tokio::time::sleep(delay) => {}
                    }
                    Happened::Slept
                }
                Effect::Execute(works) => Happened::Worked(self.execute(works).await),
                Effect::Spawn(spawning) => match self.spawn(spawning).await? {
                    Ok(grown) => Happened::Grown(grown),
                    Err(waiting) => return Ok(Rest::Waiting(waiting)),
                },
                Effect::Prepare(preparing) => {
                    let (run, facts) = (Arc::clone(&self.run), Arc::clone(self.machine.facts()));
                    Happened::Prepared(prepared(&run, &facts, *preparing).await.map(Some))
                }
                Effect::RunProgram(starting) => {
                    self.environs.enter(self.machine.holder());
                    if self.environs.sandbox.is_none() {
                        self.rebuild().await?;
                        if self.environs.catch_up().await.is_err() {
                            self.environs.lost.get_or_insert_with(|| LOST_MIDWAY.to_owned());
                            self.rebuild().await?;
                        }
                    }
                    let halting = self.halting.clone();
                    let ran = tokio::select! { biased;
                        ran = self.environs.start(starting) => Some(ran),
                        _ = halting.halted() => None,
                    };
                    self.again(ran).await?
                }
                Effect::ResumeProgram { answer, clock } => {
                    let halting = self.halting.clone();
                    let ran = tokio::select! { biased;
                        ran = self.environs.resume(answer, clock) => Some(ran),
                        _ = halting.halted() => None,
                    };
                    self.again(ran).await?
                }
                Effect::CancelProgram => {
                    let ran = self.environs.cancel().await;
                    self.stepped(Some(ran))
                }
                Effect::WaitApproval { approval, .. } => {
                    return Ok(Rest::Waiting(Waiting::Approval { approvals: vec![approval] }));
                }
                Effect::Park { fault, detail } => return Ok(Rest::Waiting(Waiting::Crystal { fault, detail })),
                Effect::Finish => {
                    self.run.withdraw(self.machine.unanswered()).await;
                    return Ok(Rest::Ended);
                }
            };
            if let Some(reason) = self.halting.said() {
                self.machine.halt(reason);
            }
            let ran = matches!(what, Happened::Ran(..));
            self.happened(what)?;
            if ran {
                self.keep_snapshot().await;
            }
        }
    }

    fn next(&mut self) -> Result<Effect, Error> {
        self.told(Machine::next)
    }

    fn happened(&mut self, what: Happened) -> Result<(), Error> {
        self.told(|machine, world| machine.happened(what, world))
    }

    /// How much of its time is used.
    pub(crate) fn elapsed(&self) -> Duration {
        self.worked + self.began.elapsed()
    }

    fn told<T>(&mut self, act: impl FnOnce(&mut Machine, &World<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let elapsed = self.elapsed();
        let funds = self.run.purse.funds();
        let Self { run, machine, .. } = self;
        let spoken = Spoken { guard: run.runtime.guard(), trace: &run.trace, what: "crystal" };
        let world = World {
            now: run.runtime.now(),
            ids: run.runtime.ids(),
            words: &spoken,
            tokens_left: run.tokens.left(machine.facts().entity),
            money_left: run.purse.left(machine.facts().entity),
            funds: funds.as_ref().map(|payer| &**payer),
            elapsed,
        };
        act(machine, &world)
    }

    /// Writes what was drafted; or why nobody pays for it. Who has to wait for others of its tree waits here.
    async fn append(
        &mut self,
        events: Vec<(Timestamp, Event)>,
        bodies: Vec<Body>,
        money: Vec<Operation>,
    ) -> Result<Option<Unpaid>, Stopped> {
        let run = Arc::clone(&self.run);
        let settled = run.purse.settled();
        tokio::pin!(settled);
        // Listens before it asks, so that nothing is settled between the two unnoticed.
        settled.as_mut().enable();
        let records = match run.append_paid(&events, &bodies, money.clone()).await? {
            Written::Whole { bytes, last } => {
                run.purse.follow(self.entity(), &money);
                if self.machine.pays()
                    && let Some(allowed) = run.allowed(&money, last).await?
                {
                    self.machine.paid(allowed)?;
                }
                bytes
            }
            Written::Refused(refused) => return Ok(Some(Unpaid::Refused(refused))),
            Written::Wait => {
                // Who waits for others holds no place that they might need.
                self.place = None;
                tokio::select! { biased;
                    _ = self.halting.halted() => {}
                    () = self.halting.pausing() => {}
                    () = settled => {}
                }
                self.place = Arc::clone(&self.run.places).acquire_owned().await.ok();
                return Ok(Some(Unpaid::Waited));
            }
        };
        self.run.count_denied(&events);
        self.environs.scales.add(records, &events, &bodies);
        if self.stage.is_watched() {
            let loaded = Loaded(bodies.iter().map(|body| (body.hash(), Arc::clone(body.bytes()))).collect());
            self.stage.committed(&events, &loaded);
        }
        Ok(None)
    }

    async fn execute(&mut self, works: Vec<Work>) -> Vec<crate::machine::Worked> {
        let belongings = &self.environs.belongings;
        let forgotten = forgotten(&works, belongings);
        if let Some(leaf) = self.machine.base().filter(|_| !forgotten.is_empty()) {
            note_earlier(self.run.runtime.clone(), leaf, forgotten, belongings.clone()).await;
        }
        let facts = self.machine.facts();
        let belongings = &self.environs.belongings;
        let verifier = facts.cantrip.verifier();
        let (runtime, trace) = (&self.run.runtime, &self.run.trace);
        let delegating = self.delegating.take();
        let hands = Hands { runtime, trace, verifier, belongings, scope: &self.scope, delegating: delegating.as_ref() };
        let worked = join_all(works.into_iter().map(|work| hands.work(work, self.halting.stop()))).await;
        for cost in worked.iter().filter_map(|worked| worked.cost) {
            self.run.purse.spent(self.entity(), cost);
        }
        worked
    }

    /// What a program came to. One whose sandbox is gone, through no fault of its own, is run again in another: what it
    /// was answered is known.
    async fn again(&mut self, ran: Option<Result<Step, Lost>>) -> Result<Happened, Stopped> {
        let ran = match ran {
            Some(Err(Lost::Gone)) => {
                self.rebuild().await?;
                let halting = self.halting.clone();
                tokio::select! { biased;
                    ran = self.environs.catch_up_whole() => Some(ran),
                    _ = halting.halted() => None,
                }
            }
            ran => ran,
        };
        Ok(self.stepped(ran))
    }

    /// What a program came to; one that was cut off while it ran is gone with its sandbox.
    fn stepped(&mut self, ran: Option<Result<Step, Lost>>) -> Happened {
        match ran {
            Some(Ok(Step::Called(call))) => Happened::Called(call),
            Some(Ok(Step::Ran(output, end))) => Happened::Ran(*output, Some(end)),
            Some(Err(lost)) => Happened::SandboxLost(lost),
            None => {
                let reason = self.halting.said().unwrap_or(TruncationReason::Cancelled);
                let limit = Some(reason.as_str().to_owned());
                let output = Output { limit, rolled_back: true, ..Output::default() };
                Happened::Ran(output, Some(ProgramEnd::Cancelled))
            }
        }
    }

    /// Keeps the sandbox with the turn, where it has a snapshot that the records since the last one outweigh.
    async fn keep_snapshot(&mut self) {
        let Environs { sandbox: Some(sandbox), scales, .. } = &mut self.environs else { return };
        if scales.tip()
            && let Some(snapshot) = sandbox.snapshot().await
            && let Some(body) = scales.weigh(snapshot)
        {
            self.machine.keep(body);
        }
    }

    /// The sandbox as the loom tells it, or a new one with a notice.
    async fn rebuild(&mut self) -> Result<(), Stopped> {
        let facts = Arc::clone(self.machine.facts());
        let isolation = || Isolation { seed: self.seed, context: self.context.as_deref().cloned() };
        let medium = &*facts.medium.0;
        let fresh = facts.environment == Some(cantrip_loom::Environment::Fresh);
        let mut rebuilding = Rebuilding { opened: None, cpu_max: self.run.runtime.rebuild_cpu_max() };
        let turns = match self.machine.base() {
            Some(leaf) => {
                let thread = self.run.runtime.loom().thread(leaf).await?;
                let own = render::own_turns(&thread);
                // Of the open group nothing is over: what of it is sealed is run again with the rest of it.
                let holder = self.machine.holder();
                let before = own.iter().take_while(|turn| Some(turn.id) != holder);
                let mine = |turn: &&cantrip_loom::Turn| !fresh || turn.entity_id == facts.entity;
                if thread.turns.last().is_some_and(cantrip_loom::Turn::sealed) {
                    rebuilding.opened = opened_at(&self.run.runtime, &thread).await?;
                }
                before.filter(mine).cloned().collect()
            }
            None => Vec::new(),
        };
        let runtime = self.run.runtime.clone();
        let base = runtime.base(medium, &turns).await;
        let (weighs, held) = base.as_ref().map_or((0, 0), |base| (base.snapshot.len() as u64, base.turns));
        self.environs.scales = Scales::behind(weighs, turns.get(held..).unwrap_or_default());
        let lost = match rebuild(medium, &facts.circle, isolation(), &turns, base, rebuilding).await {
            Ok(Rebuilt::Restored(sandbox)) => {
                self.environs.sandbox = sandbox;
                return Ok(());
            }
            Ok(Rebuilt::Differs(difference)) => {
                let Difference { sequence, .. } = *difference;
                format!("[environment lost: replay differs at turn {sequence}]")
            }
            Ok(Rebuilt::TooLong) => "[environment lost: rebuild too long]".to_owned(),
            Ok(Rebuilt::Lost) => "[environment lost: the sandbox stopped]".to_owned(),
            Err(refusal) => {
                tracing::warn!(code = %refusal.code(), "no sandbox could be made");
                return Ok(());
            }
        };
        self.environs.lost = Some(lost);
        self.environs.sandbox = medium.isolate(&facts.circle, isolation()).unwrap_or(None);
        Ok(())
    }

    pub(crate) fn entity(&self) -> EntityId {
        self.machine.facts().entity
    }
}

/// The gates among these that keep something for their entity and have nothing here.
fn forgotten(works: &[Work], belongings: &Belongings) -> Vec<String> {
    let keeping = works.iter().filter_map(|work| match &work.kind {
        WorkKind::Enter(permit) if permit.gate().promises().keeps => Some(permit.gate().name()),
        WorkKind::Enter(_) | WorkKind::Refuse(_) | WorkKind::Answer(_) | WorkKind::Verify(_) => None,
    });
    keeping.filter(|gate| belongings.is_without(gate)).map(str::to_owned).collect()
}

/// Tells these gates whether the entity called them before: in another process, or in what a fork shares.
async fn note_earlier(runtime: Runtime, leaf: TurnId, gates: Vec<String>, belongings: Belongings) {
    // A loom that cannot be read now will say so when the next record is written.
    let Ok(thread) = runtime.loom().thread(leaf).await else { return };
    let records = || render::own_turns(&thread).iter().flat_map(|turn| &turn.gate_calls);
    for gate in gates.iter().filter(|gate| records().any(|record| record.gate == **gate)) {
        belongings.note_earlier(gate);
    }
}

/// When the utterance was recorded that the last turns of a thread belong to.
async fn opened_at(runtime: &Runtime, thread: &Thread) -> Result<Option<Timestamp>, Stopped> {
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

/// Has a predict made ready, and tells the office who writes its papers.
async fn prepared(run: &Run, facts: &Facts, preparing: Preparing) -> Result<Box<PreparedPredict>, Refusal> {
    let Preparing { turn, call, entity, predict, resumed } = preparing;
    let predicts = run.runtime.predicts()?;
    let asked = PredictAsked {
        signature: predict.signature,
        input: predict.input,
        owner: run.runtime.actor().clone(),
        run: run.id,
        caller: facts.entity,
        turn,
        call,
        entity,
        crystal: facts.cantrip.crystal().clone(),
        max_depth: facts.circle.wards().depth(),
        resumed,
    };
    let prepared = predicts.prepare(asked).await?;
    let past = run.past.get(&entity).map(|log| log.events.as_slice()).unwrap_or_default();
    run.office.attend(entity, facts.entity, Arc::clone(&prepared.clerk), past);
    Ok(Box::new(prepared))
}
