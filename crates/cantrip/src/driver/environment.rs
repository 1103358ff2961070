//! The sandbox of an entity: built when it is first needed, rebuilt from the loom when it is gone.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Hash, Timestamp, TurnId};
use cantrip_circle::gate::Belongings;
use cantrip_circle::medium::{Answer, Isolation, Lost, Next, Paused, Program, ProgramCall, Sandbox, Taken};
use cantrip_circle::{Circle, Medium, ProgramEnd, fence};
use cantrip_loom::{Body, Event, GateRecord, Output, Settlement, Turn};
use cantrip_reply::Refusal;
use serde_json::Value;

use crate::limits::SNAPSHOT_RECORDS_BYTES_MIN;
use crate::machine::{Starting, answer, program_name, reading, same};

/// What an entity acts in, between and during programs.
#[derive(Debug, Default)]
pub(crate) struct Environs {
    pub sandbox: Option<Box<dyn Sandbox>>,
    pub paused: Option<Box<dyn Paused>>,
    /// What gates keep for it.
    pub belongings: Belongings,
    /// What the next observation begins with.
    pub lost: Option<String>,
    pub scales: Scales,
    /// The group that is being acted out, by the turn that holds its utterance.
    group: Option<TurnId>,
    /// Its programs so far, the last of them perhaps under way: none of them is in a closed turn, so a sandbox that is
    /// rebuilt from the loom has to be taken through them again.
    courses: Vec<Course>,
}

/// What was recorded of an entity since its last snapshot, against what a snapshot weighs. One is stored only when the
/// records outweigh it, so all of them together never weigh more than the thread.
#[derive(Debug, Default)]
pub(crate) struct Scales {
    records: u64,
    /// Of the last one that was looked at.
    snapshot: u64,
}

impl Scales {
    /// Where it stands behind a snapshot of this weight, with these turns after it.
    pub(crate) fn behind(snapshot: u64, turns: &[Turn]) -> Self {
        let written = turns.iter().map(|turn| serde_json::to_vec(turn).map_or(0, |text| text.len() as u64));
        Self { records: written.sum(), snapshot }
    }

    pub(crate) fn add(&mut self, records: u64, events: &[(Timestamp, Event)], bodies: &[Body]) {
        // The snapshot itself is among the bodies of the turn that keeps it.
        let snapshots: Vec<Hash> = events.iter().filter_map(|(_, event)| kept(event)).collect();
        let bodies = bodies.iter().filter(|body| !snapshots.contains(&body.hash()));
        self.records += records + bodies.map(|body| body.bytes().len() as u64).sum::<u64>();
    }

    /// Whether it is worth looking at.
    pub(crate) fn tip(&self) -> bool {
        self.records >= self.snapshot.max(SNAPSHOT_RECORDS_BYTES_MIN)
    }

    /// The snapshot as a body, if the records outweigh it.
    pub(crate) fn weigh(&mut self, snapshot: Arc<[u8]>) -> Option<Body> {
        self.snapshot = snapshot.len() as u64;
        let body = Body::new(snapshot).ok().filter(|_| self.snapshot <= self.records)?;
        self.records = 0;
        Some(body)
    }
}

fn kept(event: &Event) -> Option<Hash> {
    match event {
        Event::Turn(closed) => closed.snapshot.map(|snapshot| snapshot.hash),
        Event::Root(_)
        | Event::Entity(_)
        | Event::Cast(_)
        | Event::Attempt(_)
        | Event::Opened(_)
        | Event::Started(_)
        | Event::Settled(_)
        | Event::Fold(_)
        | Event::Parked(_)
        | Event::End(_)
        | Event::Failed(_)
        | Event::Reward(_)
        | Event::Other { .. } => None,
    }
}

/// A snapshot, and how many of the turns of its path it holds.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub snapshot: Arc<[u8]>,
    pub turns: usize,
}

/// A program, and what it was answered.
#[derive(Debug)]
struct Course {
    starting: Starting,
    answered: Vec<(ProgramCall, Answer, Timestamp)>,
}

/// What a second run of recorded programs came to.
pub(crate) enum Rebuilt {
    /// As it was.
    Restored(Option<Box<dyn Sandbox>>),
    /// At this turn it asked for something else, or ended otherwise.
    Differs(Box<Difference>),
    /// It took more processor time than it was given.
    TooLong,
    Lost,
}

/// What turns do not say about the programs in them.
pub(crate) struct Rebuilding {
    /// When the last group was opened, if its last turn is sealed: a program without an end has no clock on record.
    pub opened: Option<Timestamp>,
    /// Processor time for all of them.
    pub cpu_max: Duration,
}

/// Where a second run first differs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub sequence: u64,
    /// The number of the call in its group; none for an output.
    pub call: Option<u32>,
    pub kind: &'static str,
    pub recorded: Value,
    pub found: Value,
}

/// A group of turns: one utterance with all it caused.
pub(crate) fn groups(turns: &[Turn]) -> Vec<&[Turn]> {
    let mut rest = turns;
    let mut groups = Vec::new();
    while !rest.is_empty() {
        let length = 1 + rest[1..].iter().take_while(|turn| turn.continuation_of.is_some()).count();
        let (group, after) = rest.split_at(length);
        groups.push(group);
        rest = after;
    }
    groups
}

/// Runs the programs of these turns again, from a snapshot on or in a new sandbox, against their recorded answers. No
/// gate is entered.
pub(crate) async fn rebuild(
    medium: &dyn Medium,
    circle: &Circle,
    isolation: Isolation,
    turns: &[Turn],
    base: Option<Base>,
    rebuilding: Rebuilding,
) -> Result<Rebuilt, Refusal> {
    if let Some(Base { snapshot, turns: held }) = base
        && let Some(sandbox) = medium.restore(circle, isolation.clone(), snapshot).await
        && let Some(after) = turns.get(held..)
        && let rebuilt @ Rebuilt::Restored(Some(_)) = replay(medium, circle, Some(sandbox), after, &rebuilding).await
    {
        return Ok(rebuilt);
    }
    Ok(replay(medium, circle, medium.isolate(circle, isolation)?, turns, &rebuilding).await)
}

async fn replay(
    medium: &dyn Medium,
    circle: &Circle,
    mut sandbox: Option<Box<dyn Sandbox>>,
    turns: &[Turn],
    rebuilding: &Rebuilding,
) -> Rebuilt {
    let Rebuilding { opened, cpu_max } = *rebuilding;
    let mut used = Duration::ZERO;
    for group in groups(turns) {
        let Some(holder) = sandbox.take() else { return Rebuilt::Restored(None) };
        match replay_group(medium, circle, holder, group, opened).await {
            Ok((next, cpu)) => {
                sandbox = Some(next);
                used += cpu;
            }
            Err(rebuilt) => return rebuilt,
        }
        // One program is bounded by its wards, so looking at the clock between them is enough.
        if used > cpu_max {
            return Rebuilt::TooLong;
        }
    }
    Rebuilt::Restored(sandbox)
}

async fn replay_group(
    medium: &dyn Medium,
    circle: &Circle,
    mut sandbox: Box<dyn Sandbox>,
    group: &[Turn],
    opened: Option<Timestamp>,
) -> Result<(Box<dyn Sandbox>, Duration), Rebuilt> {
    let sequence = group.first().map_or(0, |turn| turn.sequence);
    let mut used = Duration::ZERO;
    for (tool_call_id, source) in programs(medium, circle, group) {
        let of_call = |id: &Option<String>| *id == tool_call_id;
        let outputs: Vec<&Output> =
            group.iter().flat_map(|turn| &turn.outputs).filter(|output| of_call(&output.tool_call_id)).collect();
        if outputs.iter().any(|output| output.rolled_back) {
            continue;
        }
        let records: Vec<&GateRecord> = group
            .iter()
            .flat_map(|turn| &turn.gate_calls)
            .filter(|record| of_call(&record.tool_call_id))
            .filter(|record| matches!(record.settlement, Settlement::Settled(_)))
            .collect();
        // A fork from a sealed turn has no end of its program: the sandbox stands where the last answer left it.
        let whole = !outputs.is_empty();
        let clock = outputs.first().and_then(|output| reading(output.clock_ms));
        let closed = || group.first().map(|turn| turn.metadata.timestamp);
        let clock = clock
            .or_else(|| opened.map(|opened| opened.max(settled_before(group, &tool_call_id).unwrap_or(opened))))
            .or_else(closed)
            .unwrap_or(Timestamp::EPOCH);
        let program = Program { name: program_name(sequence, medium.kind()), source, now: clock };
        let next = sandbox.start(program).await.map_err(|_| Rebuilt::Lost)?;
        let (rested, output, cpu) = answers(next, &records, sequence, whole).await?;
        sandbox = rested;
        used += cpu;
        if whole && let Some(differs) = differing(&outputs, &output, sequence) {
            return Err(Rebuilt::Differs(Box::new(differs)));
        }
    }
    Ok((sandbox, used))
}

/// The last reading of the clock before the program of this call, which is the last of its group.
fn settled_before(group: &[Turn], program: &Option<String>) -> Option<Timestamp> {
    let records = group.iter().flat_map(|turn| &turn.gate_calls).filter(|record| record.tool_call_id != *program);
    let readings = records.filter_map(|record| match &record.settlement {
        Settlement::Settled(settled) => reading(settled.clock_ms),
        Settlement::Delegated => None,
    });
    readings.max()
}

/// The programs of an utterance, each with the call that brought it; one that stood in the text has none. Which way they
/// came is told by the records: a fork may be of another mode than what it branched off from.
fn programs(medium: &dyn Medium, circle: &Circle, group: &[Turn]) -> Vec<(Option<String>, String)> {
    let Some(said) = group.first().and_then(|turn| turn.utterance.as_ref()) else { return Vec::new() };
    let outputs = group.iter().flat_map(|turn| &turn.outputs).map(|output| &output.tool_call_id);
    let records = group.iter().flat_map(|turn| &turn.gate_calls).map(|record| &record.tool_call_id);
    if said.calls.is_empty() && outputs.chain(records).any(Option::is_none) {
        let program = said.content.as_deref().and_then(|content| fence::program(circle.medium(), content));
        return program.map(|source| (None, source)).into_iter().collect();
    }
    let calls = said.calls.iter().filter_map(|call| match medium.take(circle, call) {
        Taken::Program(source) => Some((Some(call.tool_call_id.clone()), source)),
        Taken::Gate(_) | Taken::Refused(_) => None,
    });
    calls.collect()
}

async fn answers(
    mut next: Next,
    records: &[&GateRecord],
    sequence: u64,
    whole: bool,
) -> Result<(Box<dyn Sandbox>, Output, Duration), Rebuilt> {
    let mut records = records.iter();
    loop {
        match next {
            Next::Finished(finished) => {
                let sandbox = finished.sandbox.ok_or(Rebuilt::Lost)?;
                if let Some(record) = records.next() {
                    let recorded = Value::from(record.gate.as_str());
                    return Err(differs(sequence, Some(record.call_id.number()), "call", recorded, Value::Null));
                }
                return Ok((sandbox, finished.output, finished.cpu));
            }
            Next::Call(paused) => {
                let found = paused.call().clone();
                let name = match found.gate.as_str() {
                    "submit_answer" => "done",
                    name => cantrip_circle::gate::canonical_name(name),
                };
                let args = Value::Object(found.arguments.clone().unwrap_or_default());
                let Some(record) = records.next() else {
                    if whole {
                        return Err(differs(sequence, None, "call", Value::Null, Value::from(name)));
                    }
                    let clock = Timestamp::EPOCH;
                    next = paused.resume(Answer::Stop, clock).await.map_err(|_| Rebuilt::Lost)?;
                    continue;
                };
                let number = Some(record.call_id.number());
                if record.gate != name {
                    let recorded = Value::from(record.gate.as_str());
                    return Err(differs(sequence, number, "call", recorded, Value::from(name)));
                }
                if !same(&record.args, &args) {
                    return Err(differs(sequence, number, "argument", record.args.clone(), args));
                }
                let Settlement::Settled(settled) = &record.settlement else { return Err(Rebuilt::Lost) };
                let clock = reading(settled.clock_ms).unwrap_or(Timestamp::EPOCH);
                next = paused.resume(answer(name, settled), clock).await.map_err(|_| Rebuilt::Lost)?;
            }
        }
    }
}

fn differs(sequence: u64, call: Option<u32>, kind: &'static str, recorded: Value, found: Value) -> Rebuilt {
    Rebuilt::Differs(Box::new(Difference { sequence, call, kind, recorded, found }))
}

/// What a program printed and came to, then and now.
pub(crate) fn differing(recorded: &[&Output], found: &Output, sequence: u64) -> Option<Difference> {
    let console: Vec<&String> = recorded.iter().flat_map(|output| &output.console).collect();
    let value = recorded.iter().find_map(|output| output.value.as_ref());
    let error = recorded.iter().find_map(|output| output.error.as_ref());
    let same_error = error.map(|error| (&error.name, &error.message))
        == found.error.as_ref().map(|error| (&error.name, &error.message));
    if console == found.console.iter().collect::<Vec<_>>() && value == found.value.as_ref() && same_error {
        return None;
    }
    let recorded = serde_json::json!({"console": console, "value": value, "error": error});
    let found = serde_json::json!({"console": found.console, "value": found.value, "error": found.error});
    Some(Difference { sequence, call: None, kind: "output", recorded, found })
}

impl Environs {
    /// A program of this group is about to start.
    pub(crate) fn enter(&mut self, group: Option<TurnId>) {
        if self.group != group {
            self.group = group;
            self.courses.clear();
        }
    }

    /// Runs a program until it calls a gate or ends.
    pub(crate) async fn start(&mut self, starting: Starting) -> Result<Step, Lost> {
        self.courses.push(Course { starting: starting.clone(), answered: Vec::new() });
        let sandbox = self.sandbox.take().ok_or(Lost::Stopped)?;
        let next = begin(sandbox, starting).await?;
        Ok(self.take(next))
    }

    pub(crate) async fn resume(&mut self, answer: Answer, clock: Timestamp) -> Result<Step, Lost> {
        let paused = self.paused.take().ok_or(Lost::Stopped)?;
        if let Some(course) = self.courses.last_mut() {
            course.answered.push((paused.call().clone(), answer.clone(), clock));
        }
        let next = paused.resume(answer, clock).await?;
        Ok(self.take(next))
    }

    pub(crate) async fn cancel(&mut self) -> Result<Step, Lost> {
        let paused = self.paused.take().ok_or(Lost::Stopped)?;
        let next = paused.cancel().await?;
        Ok(self.take(next))
    }

    /// Takes a sandbox that was rebuilt from the loom through the programs of the open group that have ended.
    pub(crate) async fn catch_up(&mut self) -> Result<(), Lost> {
        let Some(mut sandbox) = self.sandbox.take() else { return Ok(()) };
        for course in &self.courses {
            sandbox = match course.retrace(sandbox).await? {
                Next::Finished(finished) => finished.sandbox.ok_or(Lost::Stopped)?,
                Next::Call(_) => return Err(Lost::Stopped),
            };
        }
        self.sandbox = Some(sandbox);
        Ok(())
    }

    /// The same, and then through the one that was under way, to where it stood.
    pub(crate) async fn catch_up_whole(&mut self) -> Result<Step, Lost> {
        let last = self.courses.pop().ok_or(Lost::Stopped)?;
        self.catch_up().await?;
        let sandbox = self.sandbox.take().ok_or(Lost::Stopped)?;
        let next = last.retrace(sandbox).await?;
        self.courses.push(last);
        Ok(self.take(next))
    }

    fn take(&mut self, next: Next) -> Step {
        match next {
            Next::Call(paused) => {
                let call = paused.call().clone();
                self.paused = Some(paused);
                Step::Called(call)
            }
            Next::Finished(finished) => {
                self.sandbox = finished.sandbox;
                let mut output = finished.output;
                output.environment_lost = self.lost.take().or(output.environment_lost);
                if output.rolled_back {
                    self.courses.pop();
                }
                Step::Ran(Box::new(output), finished.end)
            }
        }
    }
}

async fn begin(sandbox: Box<dyn Sandbox>, starting: Starting) -> Result<Next, Lost> {
    let Starting { name, source, clock } = starting;
    sandbox.start(Program { name, source, now: clock }).await
}

impl Course {
    /// Runs it again with the answers it was given; it must ask for the same.
    async fn retrace(&self, sandbox: Box<dyn Sandbox>) -> Result<Next, Lost> {
        let mut next = begin(sandbox, self.starting.clone()).await?;
        for (call, answer, clock) in &self.answered {
            next = match next {
                Next::Call(paused) if paused.call() == call => paused.resume(answer.clone(), *clock).await?,
                Next::Call(_) | Next::Finished(_) => return Err(Lost::Stopped),
            };
        }
        Ok(next)
    }
}

/// How far a program came.
pub(crate) enum Step {
    Called(ProgramCall),
    Ran(Box<Output>, ProgramEnd),
}
