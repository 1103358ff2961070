//! The sandbox of an entity: built when it is first needed, rebuilt from the loom when it is gone.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Hash, Timestamp, TurnId};
use cantrip_circle::gate::GateSessions;
use cantrip_circle::medium::{
    Answer, CallTarget, PausedProgram, Program, ProgramCall, ProgramEvent, Sandbox, SandboxError, SandboxOptions,
};
use cantrip_circle::{Circle, Medium, ProgramEnd, fence};
use cantrip_loom::{Body, Event, GateRecord, OutputRecord, Settlement, Turn};
use cantrip_reply::Refusal;
use serde_json::Value;

use crate::limits::SNAPSHOT_RECORDS_BYTES_MIN;
use cantrip_turn::{ProgramStart, is_same_json, program_answer, program_name, timestamp_from_millis};

/// The sandbox of an entity and its gate sessions, between and during programs.
#[derive(Debug, Default)]
pub(crate) struct SandboxState {
    pub sandbox: Option<Box<dyn Sandbox>>,
    pub paused: Option<Box<dyn PausedProgram>>,
    /// The sessions that gates keep for the entity.
    pub belongings: GateSessions,
    /// The notice that the next observation begins with.
    pub lost: Option<String>,
    pub snapshot_policy: SnapshotPolicy,
    /// The group that is being executed, by the turn that holds its utterance.
    group: Option<TurnId>,
    /// The programs of the group so far; the last one may still be running. None of them is in a closed turn, so a
    /// sandbox that is rebuilt from the loom must run them again.
    replays: Vec<ProgramReplay>,
}

/// Compares the size of an entity's records since its last snapshot with the size of a snapshot. A snapshot is stored
/// only when the records outweigh it, so all snapshots together are never larger than the thread.
#[derive(Debug, Default)]
pub(crate) struct SnapshotPolicy {
    records: u64,
    /// The size in bytes of the last snapshot that was considered.
    snapshot: u64,
}

impl SnapshotPolicy {
    /// Creates the state after a snapshot of this size, with these turns recorded after it.
    pub(crate) fn since_snapshot(snapshot: u64, turns: &[Turn]) -> Self {
        let written = turns.iter().map(|turn| serde_json::to_vec(turn).map_or(0, |text| text.len() as u64));
        Self { records: written.sum(), snapshot }
    }

    pub(crate) fn add(&mut self, records: u64, events: &[(Timestamp, Event)], bodies: &[Body]) {
        // The snapshot itself is one of the bodies of the turn that keeps it.
        let snapshots: Vec<Hash> = events.iter().filter_map(|(_, event)| snapshot_hash(event)).collect();
        let bodies = bodies.iter().filter(|body| !snapshots.contains(&body.hash()));
        self.records += records + bodies.map(|body| body.bytes().len() as u64).sum::<u64>();
    }

    /// Returns true if a snapshot is worth taking.
    pub(crate) fn is_due(&self) -> bool {
        self.records >= self.snapshot.max(SNAPSHOT_RECORDS_BYTES_MIN)
    }

    /// Returns the snapshot as a body, if the records outweigh it.
    pub(crate) fn snapshot_if_due(&mut self, snapshot: Arc<[u8]>) -> Option<Body> {
        self.snapshot = snapshot.len() as u64;
        let body = Body::new(snapshot).ok().filter(|_| self.snapshot <= self.records)?;
        self.records = 0;
        Some(body)
    }
}

fn snapshot_hash(event: &Event) -> Option<Hash> {
    event.as_turn()?.snapshot.map(|snapshot| snapshot.hash)
}

/// A snapshot, and the number of turns of its path that it contains.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotBase {
    pub snapshot: Arc<[u8]>,
    pub turns: usize,
}

/// A program and the answers to its calls.
#[derive(Debug)]
struct ProgramReplay {
    starting: ProgramStart,
    answered: Vec<(ProgramCall, Answer, Timestamp)>,
}

/// The outcome of running recorded programs again.
pub(crate) enum RebuildOutcome {
    /// The programs behaved as recorded.
    Restored(Option<Box<dyn Sandbox>>),
    /// At this turn a program made another call, or ended in another way.
    Differs(Box<Difference>),
    /// The programs took more processor time than they were given.
    TooLong,
    Lost,
}

/// The inputs of a rebuild that the turns do not contain.
pub(crate) struct RebuildOptions {
    /// The time at which the last group was opened, if its last turn is sealed: a program without an end has no clock
    /// on record.
    pub opened: Option<Timestamp>,
    /// The limit on processor time for all programs together.
    pub cpu_max: Duration,
}

/// The first place where a second run differs from the records.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    pub sequence: u64,
    /// The number of the call in its group; `None` for an output.
    pub call: Option<u32>,
    pub kind: &'static str,
    pub recorded: Value,
    pub found: Value,
}

/// Splits turns into groups: one utterance with all the turns that it caused.
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

/// Runs the programs of these turns again, from a snapshot or in a new sandbox, with their recorded answers. No gate is
/// entered.
pub(crate) async fn rebuild(
    medium: &dyn Medium,
    circle: &Circle,
    isolation: SandboxOptions,
    turns: &[Turn],
    base: Option<SnapshotBase>,
    rebuilding: RebuildOptions,
) -> Result<RebuildOutcome, Refusal> {
    if let Some(SnapshotBase { snapshot, turns: held }) = base
        && let Some(sandbox) = medium.restore(circle, isolation.clone(), snapshot).await
        && let Some(after) = turns.get(held..)
        && let rebuilt @ RebuildOutcome::Restored(Some(_)) =
            replay(medium, circle, Some(sandbox), after, &rebuilding).await
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
    rebuilding: &RebuildOptions,
) -> RebuildOutcome {
    let RebuildOptions { opened, cpu_max } = *rebuilding;
    let mut used = Duration::ZERO;
    for group in groups(turns) {
        let Some(holder) = sandbox.take() else { return RebuildOutcome::Restored(None) };
        match replay_group(medium, circle, holder, group, opened).await {
            Ok((next, cpu)) => {
                sandbox = Some(next);
                used += cpu;
            }
            Err(rebuilt) => return rebuilt,
        }
        // One program is bounded by its wards, so checking the clock between programs is enough.
        if used > cpu_max {
            return RebuildOutcome::TooLong;
        }
    }
    RebuildOutcome::Restored(sandbox)
}

async fn replay_group(
    medium: &dyn Medium,
    circle: &Circle,
    mut sandbox: Box<dyn Sandbox>,
    group: &[Turn],
    opened: Option<Timestamp>,
) -> Result<(Box<dyn Sandbox>, Duration), RebuildOutcome> {
    let sequence = group.first().map_or(0, |turn| turn.sequence);
    let mut used = Duration::ZERO;
    for (tool_call_id, source) in programs(medium, circle, group) {
        let of_call = |id: &Option<String>| *id == tool_call_id;
        let outputs: Vec<&OutputRecord> =
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
        // A fork from a sealed turn has no end of its program: the sandbox stays where the last answer left it.
        let whole = !outputs.is_empty();
        let clock = outputs.first().and_then(|output| timestamp_from_millis(output.clock_ms));
        let closed = || group.first().map(|turn| turn.metadata.timestamp);
        let clock = clock
            .or_else(|| opened.map(|opened| opened.max(last_clock_before(group, &tool_call_id).unwrap_or(opened))))
            .or_else(closed)
            .unwrap_or(Timestamp::EPOCH);
        let program = Program { name: program_name(sequence, medium.kind()), source, now: clock };
        let next = sandbox.start(program).await.map_err(|_| RebuildOutcome::Lost)?;
        let (rested, output, cpu) = replay_answers(next, &records, sequence, whole).await?;
        sandbox = rested;
        used += cpu;
        if whole && let Some(differs) = output_difference(&outputs, &output, sequence) {
            return Err(RebuildOutcome::Differs(Box::new(differs)));
        }
    }
    Ok((sandbox, used))
}

/// Returns the last reading of the clock before the program of this call, which is the last of its group.
fn last_clock_before(group: &[Turn], program: &Option<String>) -> Option<Timestamp> {
    let records = group.iter().flat_map(|turn| &turn.gate_calls).filter(|record| record.tool_call_id != *program);
    let readings = records.filter_map(|record| match &record.settlement {
        Settlement::Settled(settled) => timestamp_from_millis(settled.clock_ms),
        Settlement::Delegated => None,
    });
    readings.max()
}

/// Returns the programs of an utterance, each with the call that carried it, or `None` if the program was in the text.
/// The records show which way it came: a fork may have another mode than the thread it branched from.
fn programs(medium: &dyn Medium, circle: &Circle, group: &[Turn]) -> Vec<(Option<String>, String)> {
    let Some(said) = group.first().and_then(|turn| turn.utterance.as_ref()) else { return Vec::new() };
    let outputs = group.iter().flat_map(|turn| &turn.outputs).map(|output| &output.tool_call_id);
    let records = group.iter().flat_map(|turn| &turn.gate_calls).map(|record| &record.tool_call_id);
    if said.calls.is_empty() && outputs.chain(records).any(Option::is_none) {
        let program = said.content.as_deref().and_then(|content| fence::extract_program(circle.medium(), content));
        return program.map(|source| (None, source)).into_iter().collect();
    }
    let calls = said.calls.iter().filter_map(|call| match medium.interpret(circle, call) {
        CallTarget::Program(source) => Some((Some(call.tool_call_id.clone()), source)),
        CallTarget::Gate(_) | CallTarget::Refused(_) => None,
    });
    calls.collect()
}

async fn replay_answers(
    mut next: ProgramEvent,
    records: &[&GateRecord],
    sequence: u64,
    whole: bool,
) -> Result<(Box<dyn Sandbox>, OutputRecord, Duration), RebuildOutcome> {
    let mut records = records.iter();
    loop {
        match next {
            ProgramEvent::Finished(finished) => {
                let sandbox = finished.sandbox.ok_or(RebuildOutcome::Lost)?;
                if let Some(record) = records.next() {
                    let recorded = Value::from(record.gate.as_str());
                    return Err(difference_at(sequence, Some(record.call_id.number()), "call", recorded, Value::Null));
                }
                return Ok((sandbox, finished.output, finished.cpu));
            }
            ProgramEvent::Call(paused) => {
                let found = paused.call().clone();
                let name = match found.gate.as_str() {
                    "submit_answer" => "done",
                    name => cantrip_circle::gate::canonical_name(name),
                };
                let args = found.recorded_arguments();
                let Some(record) = records.next() else {
                    if whole {
                        return Err(difference_at(sequence, None, "call", Value::Null, Value::from(name)));
                    }
                    let clock = Timestamp::EPOCH;
                    next = paused.resume(Answer::Stop, clock).await.map_err(|_| RebuildOutcome::Lost)?;
                    continue;
                };
                let number = Some(record.call_id.number());
                if record.gate != name {
                    let recorded = Value::from(record.gate.as_str());
                    return Err(difference_at(sequence, number, "call", recorded, Value::from(name)));
                }
                if !is_same_json(&record.args, &args) {
                    return Err(difference_at(sequence, number, "argument", record.args.clone(), args));
                }
                let Settlement::Settled(settled) = &record.settlement else { return Err(RebuildOutcome::Lost) };
                let clock = timestamp_from_millis(settled.clock_ms).unwrap_or(Timestamp::EPOCH);
                next = paused.resume(program_answer(name, settled), clock).await.map_err(|_| RebuildOutcome::Lost)?;
            }
        }
    }
}

fn difference_at(
    sequence: u64,
    call: Option<u32>,
    kind: &'static str,
    recorded: Value,
    found: Value,
) -> RebuildOutcome {
    RebuildOutcome::Differs(Box::new(Difference { sequence, call, kind, recorded, found }))
}

/// Compares the recorded output and result of a program with the new ones.
pub(crate) fn output_difference(recorded: &[&OutputRecord], found: &OutputRecord, sequence: u64) -> Option<Difference> {
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

impl SandboxState {
    /// Prepares for a program of this group.
    pub(crate) fn enter_group(&mut self, group: Option<TurnId>) {
        if self.group != group {
            self.group = group;
            self.replays.clear();
        }
    }

    /// Runs a program until it calls a gate or ends.
    pub(crate) async fn start(&mut self, starting: ProgramStart) -> Result<ProgramStep, SandboxError> {
        self.replays.push(ProgramReplay { starting: starting.clone(), answered: Vec::new() });
        let sandbox = self.sandbox.take().ok_or(SandboxError::Stopped)?;
        let next = begin(sandbox, starting).await?;
        Ok(self.take_step(next))
    }

    pub(crate) async fn resume(&mut self, answer: Answer, clock: Timestamp) -> Result<ProgramStep, SandboxError> {
        let paused = self.paused.take().ok_or(SandboxError::Stopped)?;
        if let Some(course) = self.replays.last_mut() {
            course.answered.push((paused.call().clone(), answer.clone(), clock));
        }
        let next = paused.resume(answer, clock).await?;
        Ok(self.take_step(next))
    }

    pub(crate) async fn cancel(&mut self) -> Result<ProgramStep, SandboxError> {
        let paused = self.paused.take().ok_or(SandboxError::Stopped)?;
        let next = paused.cancel().await?;
        Ok(self.take_step(next))
    }

    /// Runs the ended programs of the open group again in a sandbox that was rebuilt from the loom.
    pub(crate) async fn catch_up(&mut self) -> Result<(), SandboxError> {
        let Some(mut sandbox) = self.sandbox.take() else { return Ok(()) };
        for course in &self.replays {
            sandbox = match course.replay(sandbox).await? {
                ProgramEvent::Finished(finished) => finished.sandbox.ok_or(SandboxError::Stopped)?,
                ProgramEvent::Call(_) => return Err(SandboxError::Stopped),
            };
        }
        self.sandbox = Some(sandbox);
        Ok(())
    }

    /// Does the same, and then runs the unfinished program up to the point that it had reached.
    pub(crate) async fn catch_up_whole(&mut self) -> Result<ProgramStep, SandboxError> {
        let last = self.replays.pop().ok_or(SandboxError::Stopped)?;
        self.catch_up().await?;
        let sandbox = self.sandbox.take().ok_or(SandboxError::Stopped)?;
        let next = last.replay(sandbox).await?;
        self.replays.push(last);
        Ok(self.take_step(next))
    }

    fn take_step(&mut self, next: ProgramEvent) -> ProgramStep {
        match next {
            ProgramEvent::Call(paused) => {
                let call = paused.call().clone();
                self.paused = Some(paused);
                ProgramStep::Called(call)
            }
            ProgramEvent::Finished(finished) => {
                self.sandbox = finished.sandbox;
                let mut output = finished.output;
                output.environment_lost = self.lost.take().or(output.environment_lost);
                if output.rolled_back {
                    self.replays.pop();
                }
                ProgramStep::Ran(Box::new(output), finished.end)
            }
        }
    }
}

async fn begin(sandbox: Box<dyn Sandbox>, starting: ProgramStart) -> Result<ProgramEvent, SandboxError> {
    let ProgramStart { name, source, clock } = starting;
    sandbox.start(Program { name, source, now: clock }).await
}

impl ProgramReplay {
    /// Runs the program again with the answers it was given; it must make the same calls.
    async fn replay(&self, sandbox: Box<dyn Sandbox>) -> Result<ProgramEvent, SandboxError> {
        let mut next = begin(sandbox, self.starting.clone()).await?;
        for (call, answer, clock) in &self.answered {
            next = match next {
                ProgramEvent::Call(paused) if paused.call() == call => paused.resume(answer.clone(), *clock).await?,
                ProgramEvent::Call(_) | ProgramEvent::Finished(_) => return Err(SandboxError::Stopped),
            };
        }
        Ok(next)
    }
}

/// The point that a program has reached.
pub(crate) enum ProgramStep {
    Called(ProgramCall),
    Ran(Box<OutputRecord>, ProgramEnd),
}
