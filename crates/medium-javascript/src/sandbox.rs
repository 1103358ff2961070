//! The handles of a sandbox: an idle sandbox, a program that waits for an answer, a program that has ended.
//!
//! Each state has its own type, so an answer cannot reach a sandbox that waits for none, and a second program cannot
//! begin inside the first. If any of the handles is dropped, or the future of a running program, the sandbox is killed
//! and freed on its own thread.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_circle::arguments::{self, Property};
use cantrip_circle::limits::{
    CPU_MS, HEAP_BYTES, OUTPUT_BYTES_MAX, OUTPUT_SHOWN_BYTES, PROGRAM_BYTES_MAX, STACK_BYTES, WALL_MS,
};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::host::{Command, HostState, Message, WorkerHandle};
use super::output::ProgramOutput;
use crate::limits;

/// A gate as a sandbox binds it. A gate that a ward removed is bound too: a call of it returns a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gate {
    pub name: String,
    /// The arguments in declared order.
    pub properties: Vec<Property>,
}

/// The limits of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramLimits {
    pub memory_bytes: usize,
    pub cpu_ms: u64,
    /// Time inside gates does not count.
    pub wall_ms: u64,
    pub stack_bytes: usize,
    pub output_shown_bytes: usize,
    pub output_bytes: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            memory_bytes: HEAP_BYTES,
            cpu_ms: CPU_MS,
            wall_ms: WALL_MS,
            stack_bytes: STACK_BYTES,
            output_shown_bytes: OUTPUT_SHOWN_BYTES,
            output_bytes: OUTPUT_BYTES_MAX,
        }
    }
}

impl ProgramLimits {
    /// Returns the size of the interpreter's stack. A ward cannot make it larger than the maximum.
    pub(super) fn stack(&self) -> usize {
        self.stack_bytes.min(limits::STACK_BYTES_MAX)
    }
}

/// The specification that a sandbox is built from; many sandboxes can share one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxSpec {
    /// The seed of `Math.random`.
    pub seed: u64,
    pub limits: ProgramLimits,
    pub gates: Vec<Gate>,
}

/// A valid program for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) now: Timestamp,
    pub(super) variables: Map<String, Value>,
}

/// The reason why a text is not a [`Program`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    #[error("the program has {bytes} bytes, the limit is {}", PROGRAM_BYTES_MAX)]
    TooLong { bytes: usize },
    /// A NUL character, at which the engine would end the text.
    #[error("the program holds a NUL character at byte {at}")]
    Nul { at: usize },
}

impl Program {
    /// Creates a program with the name that its errors show, such as `turn-3.js`, and the clock reading at its start.
    pub fn new(name: impl Into<String>, source: impl Into<String>, now: Timestamp) -> Result<Self, ProgramFault> {
        let (name, source) = (name.into(), source.into());
        if source.len() > PROGRAM_BYTES_MAX {
            return Err(ProgramFault::TooLong { bytes: source.len() });
        }
        if let Some(at) = source.find('\0') {
            return Err(ProgramFault::Nul { at });
        }
        Ok(Self { name: name.replace('\0', ""), source, now, variables: Map::new() })
    }

    /// Sets global variables that get these values before the program starts, such as `context`.
    #[must_use]
    pub fn with_variables(mut self, variables: Map<String, Value>) -> Self {
        self.variables = variables;
        self
    }
}

/// The answer of a gate to a program.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The call returns this value.
    Value(Value),
    /// The call returns a list, with a `GateError` in place of each missing value.
    List(Vec<Result<Value, Box<Throw>>>),
    /// The call throws a `GateError`.
    Throw(Throw),
    /// The program stops at this call: after an accepted `done`, or at the call where a fork leaves the program. No
    /// code of the entity runs after it, and the variables keep their values.
    Stop,
}

/// A refusal as the program sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Throw {
    pub message: String,
    /// The type of the reply, as a property named `type`.
    pub kind: String,
    pub code: String,
    pub retry: String,
    pub data: Value,
}

/// A call that waits for its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub gate: String,
    /// The arguments by name, or the fault in them. After a fault the gate must not run, and the answer is a refusal.
    pub arguments: Result<Map<String, Value>, arguments::Fault>,
}

impl Call {
    /// Returns the arguments as they are recorded: the mapped object, or an empty one if they could not be mapped.
    pub fn recorded_arguments(&self) -> Value {
        Value::Object(self.arguments.clone().unwrap_or_default())
    }
}

/// An error of the sandbox that the program did not cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// Every sandbox thread is stuck, or the host is shutting down (MCP-SYS-E-006).
    #[error("no sandbox thread takes new work")]
    Overloaded,
    /// The sandbox stopped; it can be rebuilt from the loom (MCP-EXEC-E-002).
    #[error("the sandbox stopped")]
    Stopped,
    /// The thread of the sandbox is stuck in another sandbox's program. A rebuilt sandbox can run the same program
    /// again.
    #[error("the sandbox is gone")]
    Gone,
}

/// An idle sandbox. It is built when its first program runs.
#[derive(Debug)]
pub struct Sandbox {
    inner: Inner,
}

/// A program that waits for the answer to a call.
#[derive(Debug)]
pub struct SuspendedProgram {
    pub call: Call,
    inner: Inner,
}

/// A program that has ended.
#[derive(Debug)]
pub struct FinishedProgram {
    pub output: ProgramOutput,
    /// The processor time that the program used.
    pub cpu: Duration,
    /// The sandbox for the next program; `None` if the program was rolled back.
    pub sandbox: Option<Sandbox>,
}

/// The next event of a program: a gate call or its end.
#[derive(Debug)]
pub enum Event {
    Call(SuspendedProgram),
    Finished(FinishedProgram),
}

/// Ends the program that the sandbox runs. It can be used from any thread.
#[derive(Debug, Clone)]
pub struct Canceller {
    lane: Option<(WorkerHandle, u64)>,
}

/// Frees the sandbox on its thread when it is dropped.
#[derive(Debug)]
struct Inner {
    host: Arc<HostState>,
    spec: Arc<SandboxSpec>,
    /// The thread that the sandbox is pinned to and its id there, once it has been assigned.
    placed: Option<(WorkerHandle, u64)>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some((lane, id)) = self.placed.take() {
            lane.send(Command::Free { id });
        }
    }
}

impl Sandbox {
    pub(super) fn new(host: Arc<HostState>, spec: Arc<SandboxSpec>) -> Self {
        Self { inner: Inner { host, spec, placed: None } }
    }

    /// Runs a program until it calls a gate or ends.
    ///
    /// Cancel-safe in this sense: if the future is dropped, the program is killed within a slice and the sandbox is
    /// freed.
    pub async fn run(self, program: Program) -> Result<Event, SandboxError> {
        self.run_within(program, Duration::MAX).await
    }

    /// Like [`Sandbox::run`], with a processor time limit that may be tighter than the ward.
    pub(super) async fn run_within(self, program: Program, cpu_max: Duration) -> Result<Event, SandboxError> {
        let mut inner = self.inner;
        let (lane, id) = match &inner.placed {
            Some((lane, id)) => (lane.clone(), *id),
            None => {
                let placed = inner.host.assign_worker().ok_or(SandboxError::Overloaded)?;
                inner.placed.insert(placed).clone()
            }
        };
        let spec = Arc::clone(&inner.spec);
        inner.ask(lane.ask(id, Command::Run { id, spec, program, cpu_max })).await
    }

    /// Returns a handle that ends the program from elsewhere. Before the first program there is nothing to end.
    pub fn canceller(&self) -> Canceller {
        Canceller { lane: self.inner.placed.clone() }
    }
}

impl SuspendedProgram {
    /// Answers the call at this clock reading, and resumes the program.
    pub async fn answer(self, answer: Answer, now: Timestamp) -> Result<Event, SandboxError> {
        let (lane, id) = self.inner.placed.clone().ok_or(SandboxError::Stopped)?;
        self.inner.ask(lane.ask(id, Command::Answer { id, answer, now })).await
    }

    /// Ends the program here. It is rolled back, and its output is what it has printed so far.
    pub async fn cancel(self) -> Result<Event, SandboxError> {
        self.canceller().cancel();
        self.answer(Answer::Stop, Timestamp::EPOCH).await
    }

    pub fn canceller(&self) -> Canceller {
        Canceller { lane: self.inner.placed.clone() }
    }
}

impl Canceller {
    /// Ends the program that runs or waits. An idle sandbox is not affected.
    pub fn cancel(&self) {
        if let Some((lane, id)) = &self.lane {
            lane.send(Command::Cancel { id: *id });
        }
    }
}

impl Inner {
    async fn ask(self, answered: oneshot::Receiver<Message>) -> Result<Event, SandboxError> {
        let watched = self.host.watch_guard();
        let answered = answered.await;
        drop(watched);
        match answered {
            Ok(Message::Call { gate, arguments }) => {
                let gate = self.spec.gates.get(gate).ok_or(SandboxError::Stopped)?;
                let arguments = arguments.and_then(|passed| arguments::bind_arguments(&gate.properties, passed));
                let call = Call { gate: gate.name.clone(), arguments };
                Ok(Event::Call(SuspendedProgram { call, inner: self }))
            }
            Ok(Message::Finished { output, cpu }) => {
                let sandbox = (!output.rolled_back).then_some(Sandbox { inner: self });
                Ok(Event::Finished(FinishedProgram { output, cpu, sandbox }))
            }
            Ok(Message::Gone) => Err(SandboxError::Gone),
            Ok(Message::Lost) | Err(_) => Err(SandboxError::Stopped),
        }
    }
}
