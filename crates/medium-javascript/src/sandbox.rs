//! The handles of a sandbox: an idle sandbox, a program that waits for an answer, a program that has ended.
//!
//! Each state has its own type, so an answer cannot reach a sandbox that waits for none, and a second program cannot
//! begin inside the first. If any of the handles is dropped, or the future of a running program, the sandbox is killed
//! and freed on its own thread.

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_circle::arguments;
use cantrip_circle::code::{ProgramFault, SandboxSpec};
use cantrip_circle::medium::{ProgramCall, SandboxError};
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::host::{Command, HostState, Message, WorkerHandle};
use super::output::ProgramOutput;

/// A valid program for a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) now: Timestamp,
    pub(super) variables: Map<String, Value>,
}

impl Program {
    /// Creates a program with the name that its errors show, such as `turn-3.js`, and the clock reading at its start.
    pub fn new(name: impl Into<String>, source: impl Into<String>, now: Timestamp) -> Result<Self, ProgramFault> {
        let source = source.into();
        ProgramFault::check(&source)?;
        Ok(Self::checked(&name.into(), source, now))
    }

    /// Creates a program from a text that was checked.
    pub(super) fn checked(name: &str, source: String, now: Timestamp) -> Self {
        Self { name: name.replace('\0', ""), source, now, variables: Map::new() }
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

/// An idle sandbox. It is built when its first program runs.
#[derive(Debug)]
pub struct Sandbox {
    inner: Inner,
}

/// A program that waits for the answer to a call.
#[derive(Debug)]
pub struct SuspendedProgram {
    pub call: ProgramCall,
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
        let mut inner = self.inner;
        let (lane, id) = match &inner.placed {
            Some((lane, id)) => (lane.clone(), *id),
            None => {
                let placed = inner.host.assign_worker().ok_or(SandboxError::Overloaded)?;
                inner.placed.insert(placed).clone()
            }
        };
        let spec = Arc::clone(&inner.spec);
        inner.ask(lane.ask(id, Command::Run { id, spec, program })).await
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
                let call = ProgramCall { gate: gate.name.clone(), arguments };
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
