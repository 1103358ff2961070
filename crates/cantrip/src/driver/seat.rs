//! One entity at work: the machine, and everything it acts through.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{EntityId, TurnId};
use cantrip_circle::medium::{Isolation, Lost};
use cantrip_crystal::{
    Caller, Choice, Crystal, Definition, Failure, ItemIds, NoBodies, Plan, Program, Request, Silence,
};
use cantrip_loom::{Body, Error, Event, Fault, Loom, Output, Spawn, TruncationReason, render};
use cantrip_stream::ChildOf;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::environment::{Difference, Environs, REBUILD_TIME_MAX, Rebuilt, Scales, Step, rebuild};
use super::execute::Hands;
use super::{Halting, Run, Spoken, Stopped};
use crate::events::Stage;
use crate::machine::{Asked, Effect, Facts, Happened, Machine, Summary, Work, World};

/// Why an environment is lost though the loom could be told again.
const LOST_MIDWAY: &str = "the programs of this turn cannot be run again";

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
    deadline: Option<Instant>,
    parent: Option<Halting>,
    definitions: Arc<[Definition]>,
    items: Option<(TurnId, ItemIds)>,
    stage: Stage,
    pub(super) place: Option<OwnedSemaphorePermit>,
}

/// Why a seat stopped without an end.
#[derive(Debug, Clone)]
pub(crate) enum Waiting {
    Approval {
        approval: String,
    },
    Crystal(Fault),
    /// Someone asked it to rest.
    Interrupted,
}

/// How a seat came to rest.
#[derive(Debug)]
pub(crate) enum Rest {
    Ended,
    Waiting(Waiting),
}

/// Keeps of these records only what tells of things past, and says whether more was there. A commit may hold both what
/// was done and what is about to be; a cast that rests writes the first part, as if the second had not come to pass.
fn nothing_new(events: &mut Vec<(cantrip_canon::Timestamp, Event)>) -> bool {
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
pub(crate) struct Position {
    pub spawned_by: Option<Spawn>,
    pub parent_turn: Option<TurnId>,
    pub depth: u64,
    pub parent: Option<Halting>,
}

impl Seat {
    pub(crate) fn new(
        run: Arc<Run>,
        machine: Machine,
        environs: Environs,
        position: Position,
        seed: u64,
        context: Option<Arc<Value>>,
        left: Option<Duration>,
    ) -> Self {
        let facts = Arc::clone(machine.facts());
        let Position { spawned_by, parent_turn, depth, parent } = position;
        let halting = Halting::new(facts.circle.wards());
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
        let stage = Stage::new(run.runtime.clone(), run.id, model, child, facts.intent.text(), medium);
        let deadline = left.map(|left| Instant::now() + left);
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
            deadline,
            parent,
            items: None,
            stage,
            place: None,
        }
    }

    /// Drives the machine until it rests. Its deadline and its parent's end are watched all the while.
    pub(crate) async fn drive(&mut self) -> Result<Rest, Stopped> {
        let watched = self.halting.clone().watch_over(self.deadline, self.parent.clone());
        tokio::select! { biased;
            rest = self.work() => rest,
            never = watched => match never {},
        }
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
                // Where no policy is kept nothing is refused.
                Effect::Authorize(calls) => {
                    tracing::trace!(?calls, "authorized");
                    Happened::Authorized
                }
                // Where no money is kept everything is free.
                Effect::Reserve(calls) => Happened::Reserved(calls.iter().map(|_| None).collect()),
                Effect::Append { mut events, bodies } => {
                    let rests = self.halting.is_paused() && nothing_new(&mut events);
                    self.append(events, bodies).await?;
                    if rests {
                        return Ok(Rest::Waiting(Waiting::Interrupted));
                    }
                    continue;
                }
                Effect::Ask(asked) => match self.ask(asked).await {
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
                Effect::WaitApproval { approval, .. } => return Ok(Rest::Waiting(Waiting::Approval { approval })),
                Effect::Park(fault) => return Ok(Rest::Waiting(Waiting::Crystal(fault))),
                Effect::Finish => return Ok(Rest::Ended),
            };
            if let Some(reason) = self.halting.said() {
                self.machine.halt(reason);
            }
            let ran = matches!(what, Happened::Ran(_));
            self.happened(what)?;
            if ran {
                self.keep_snapshot().await;
            }
        }
    }

    fn next(&mut self) -> Result<Effect, Error> {
        let Self { run, machine, .. } = self;
        let spoken = Spoken { guard: run.runtime.guard(), trace: &run.trace, what: "crystal" };
        machine.next(&World { now: run.runtime.now(), ids: run.runtime.ids(), words: &spoken })
    }

    fn happened(&mut self, what: Happened) -> Result<(), Error> {
        let Self { run, machine, .. } = self;
        let spoken = Spoken { guard: run.runtime.guard(), trace: &run.trace, what: "crystal" };
        machine.happened(what, &World { now: run.runtime.now(), ids: run.runtime.ids(), words: &spoken })
    }

    async fn append(
        &mut self,
        events: Vec<(cantrip_canon::Timestamp, Event)>,
        bodies: Vec<Body>,
    ) -> Result<(), Stopped> {
        let loaded = super::Loaded(bodies.iter().map(|body| (body.hash(), Arc::clone(body.bytes()))).collect());
        let records = self.run.append(events.clone(), bodies.clone()).await?;
        self.environs.scales.add(records, &events, &bodies);
        self.stage.committed(&events, &loaded);
        Ok(())
    }

    /// What the crystal answered; nothing if the cast is to rest, and then the request is dropped.
    async fn ask(&mut self, asked: Asked) -> Option<Happened> {
        let Asked { turn, call, tries, messages, output_tokens } = asked;
        let facts = Arc::clone(self.machine.facts());
        let cantrip = &facts.cantrip;
        self.stage.asks(turn);
        let items = match &self.items {
            Some((of, items)) if *of == turn => items.clone(),
            Some(_) | None => {
                let items = ItemIds::of(&call);
                self.items = Some((turn, items.clone()));
                items
            }
        };
        let request = Request {
            messages,
            definitions: Arc::clone(&self.definitions),
            choice: cantrip.choice(),
            program: self.program(&facts),
            output_tokens_max: output_tokens,
            sampling: cantrip.call().samples().clone(),
            caller: Caller { entity: facts.entity, spawned_by: self.spawned_by, request: call },
            utterances: self.machine.utterances(),
            items,
            bodies: Arc::new(NoBodies),
        };
        let heard = self.stage.sink(turn);
        let answered = tokio::select! { biased;
            answered = cantrip.crystal().ask(&request, &heard) => answered,
            _ = self.halting.halted() => return Some(Happened::Interrupted),
            () = self.halting.pausing() => return None,
        };
        Some(match answered {
            Ok(answer) => {
                self.stage.answered(&answer.call_items);
                Happened::Answered(answer)
            }
            Err(failure) => self.failed(failure, tries),
        })
    }

    /// What follows a failed attempt, with the deadline at hand.
    fn failed(&self, failure: Failure, tries: u32) -> Happened {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let now = self.run.runtime.now().wall;
        let chance = self.run.runtime.ids().next_bits(now) as u64;
        let plan: Plan = self.machine.facts().cantrip.retry().plan(&failure, tries, left, chance);
        Happened::Failed(failure, plan)
    }

    /// A crystal reads what is folded. Nobody is shown what it says: it is no part of the turn.
    async fn summarise(&mut self, summary: Summary) -> Option<Happened> {
        let Summary { call, tries, messages, output_tokens } = summary;
        let facts = Arc::clone(self.machine.facts());
        let request = Request {
            choice: Choice::None,
            output_tokens_max: output_tokens,
            utterances: self.machine.utterances(),
            ..Request::new(Caller { entity: facts.entity, spawned_by: self.spawned_by, request: call }, messages)
        };
        let answered = tokio::select! { biased;
            answered = facts.cantrip.summarises().ask(&request, &Silence) => answered,
            _ = self.halting.halted() => return Some(Happened::Interrupted),
            () = self.halting.pausing() => return None,
        };
        Some(match answered {
            Ok(answer) => Happened::Answered(answer),
            Err(failure) => self.failed(failure, tries),
        })
    }

    /// How the circle takes a program, for crystals that say one themselves.
    fn program(&self, facts: &Facts) -> Program {
        let medium = facts.circle.medium();
        match (medium.is_code(), facts.cantrip.mode()) {
            (false, _) => Program::None,
            (true, cantrip_loom::Mode::Tool) => {
                Program::Call { name: medium.as_str().to_owned(), argument: "code".to_owned() }
            }
            (true, cantrip_loom::Mode::Fenced) => Program::Fenced { language: medium.as_str().to_owned() },
        }
    }

    async fn execute(&mut self, works: Vec<Work>) -> Vec<crate::machine::Worked> {
        let facts = self.machine.facts();
        let hands = Hands { runtime: &self.run.runtime, trace: &self.run.trace, verifier: facts.cantrip.verifier() };
        join_all(works.into_iter().map(|work| hands.work(work, self.halting.stop()))).await
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
            Some(Ok(Step::Ran(output))) => Happened::Ran(output),
            Some(Err(lost)) => Happened::SandboxLost(lost),
            None => {
                let reason = self.halting.said().unwrap_or(TruncationReason::Cancelled);
                let limit = Some(reason.as_str().to_owned());
                Happened::Ran(Output { limit, rolled_back: true, ..Output::default() })
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
        let turns = match self.machine.own_leaf() {
            Some(leaf) => {
                let thread = self.run.runtime.loom().thread(leaf).await?;
                let own = render::own_turns(&thread);
                // Of the open group nothing is over: what of it is sealed is run again with the rest of it.
                let holder = self.machine.holder();
                let before = own.iter().take_while(|turn| Some(turn.id) != holder);
                let mine = |turn: &&cantrip_loom::Turn| !fresh || turn.entity_id == facts.entity;
                before.filter(mine).cloned().collect()
            }
            None => Vec::new(),
        };
        let runtime = self.run.runtime.clone();
        let base = runtime.base(medium, &turns).await;
        let (weighs, held) = base.as_ref().map_or((0, 0), |base| (base.snapshot.len() as u64, base.turns));
        self.environs.scales = Scales::behind(weighs, turns.get(held..).unwrap_or_default());
        let rebuilt = tokio::time::timeout(REBUILD_TIME_MAX, rebuild(medium, &facts.circle, isolation(), &turns, base));
        let lost = match rebuilt.await {
            Ok(Ok(Rebuilt::Restored(sandbox))) => {
                self.environs.sandbox = sandbox;
                return Ok(());
            }
            Ok(Ok(Rebuilt::Differs(difference))) => {
                let Difference { sequence, .. } = *difference;
                format!("replay differs at turn {sequence}")
            }
            Ok(Ok(Rebuilt::Lost)) => "the sandbox stopped".to_owned(),
            Ok(Err(refusal)) => {
                tracing::warn!(code = %refusal.code(), "no sandbox could be made");
                return Ok(());
            }
            Err(_) => "rebuild too long".to_owned(),
        };
        self.environs.lost = Some(lost);
        self.environs.sandbox = medium.isolate(&facts.circle, isolation()).unwrap_or(None);
        Ok(())
    }

    pub(crate) fn entity(&self) -> EntityId {
        self.machine.facts().entity
    }
}
