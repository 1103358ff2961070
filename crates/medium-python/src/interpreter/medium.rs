//! Python as a medium of code: its description, its names and its sandboxes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_circle::arguments::{self, Property, Rule};
use cantrip_circle::code::{
    CodeMedium, Exception, GateFunction, ProgramFault, ProgramLimits, ProgramResult, SandboxSpec,
};
use cantrip_circle::medium::{
    Answer, BoxFuture, NextEvent, PausedProgram, Program, ProgramCall, ProgramEvent, Sandbox, SandboxError,
};
use cantrip_circle::{Circle, MediumKind, Position};
use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value};

use super::host::{HostState, Options, SessionHandle, StartError};
use super::session::HEADER;
use super::wire::{self, CallAnswer, Command, JsonFault, JsonRule, Kind, Message, PassedArguments, ProgramOutput};
use super::worker_handle::{RequestTimeout, WorkerError};

/// The Python medium. Its sandboxes share the workers of one host.
#[derive(Clone)]
pub struct Python {
    shared: Arc<HostState>,
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Python").field("sandboxes", &self.shared.sessions()).finish()
    }
}

impl Python {
    /// Starts a medium with a first worker that has been checked.
    pub fn start(options: Options) -> Result<Self, StartError> {
        Ok(Self { shared: Arc::new(options.start()?) })
    }

    /// Returns the number of sandboxes that have been built and are not freed yet.
    pub fn sandboxes(&self) -> usize {
        self.shared.sessions()
    }

    fn setup(&self, spec: SandboxSpec) -> Arc<SandboxSetup> {
        let SandboxSpec { seed, limits, gates } = spec;
        let names = gates.iter().map(|gate| gate.name.clone()).collect();
        let spec = wire::SandboxSpec { seed, limits, gates: names };
        Arc::new(SandboxSetup { shared: Arc::clone(&self.shared), spec, gates })
    }
}

impl From<StartError> for Refusal {
    fn from(unavailable: StartError) -> Self {
        codes::sandbox_unavailable(MediumKind::Python.as_str(), unavailable.to_string()).into()
    }
}

impl CodeMedium for Python {
    fn language(&self) -> MediumKind {
        MediumKind::Python
    }

    fn introduction(&self, circle: &Circle) -> String {
        let limits = ProgramLimits::within(&circle.wards().medium);
        format!(
            "Runs a Python program. Variables, functions and classes of the top level persist from one program to the next. \
             The value of the last expression and what print writes come back. It is a small Python: there are asyncio, \
             base64, collections, dataclasses, datetime, functools, itertools, json, math, re and typing, and nothing else \
             can be imported; there are no generators. Files, environment and network are out of reach. rand() gives a \
             number from 0 to 1 and now() the seconds since 1970; the clock stands still between calls.\n\
             Limits of a program: {} s of processor time, {} s in all outside of the functions below, {} MiB, {} KiB of \
             output shown.\n\
             These functions return their values directly and raise RuntimeError on failure; done ends everything. Awaiting \
             what they return is a TypeError. Call them from statements and comprehensions, not from a function that \
             sorted, map or filter calls, and not from __repr__ or __eq__:",
            limits.cpu_ms as f64 / 1000.0,
            limits.wall_ms as f64 / 1000.0,
            limits.memory_bytes >> 20,
            limits.output_shown_bytes >> 10,
        )
    }

    /// A name must not hide one that every program has.
    fn is_variable_name(&self, name: &str) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
        name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
            && !RESERVED.contains(&name)
    }

    fn sandbox(&self, spec: SandboxSpec, variables: Option<Map<String, Value>>) -> Box<dyn Sandbox> {
        Box::new(IdleSandbox { bound: self.setup(spec), driver: None, variables })
    }

    fn reads_snapshot(&self, snapshot: &[u8]) -> bool {
        snapshot.starts_with(HEADER)
    }

    fn restored_sandbox(&self, spec: SandboxSpec, snapshot: Arc<[u8]>) -> BoxFuture<'_, Option<Box<dyn Sandbox>>> {
        Box::pin(async move {
            let bound = self.setup(spec);
            let driver = bound.open(Some(snapshot.to_vec())).await.ok()?;
            Some(Box::new(IdleSandbox { bound, driver: Some(driver), variables: None }) as Box<dyn Sandbox>)
        })
    }
}

/// The specification of an entity's sandbox, and the host that runs it.
#[derive(Debug)]
struct SandboxSetup {
    shared: Arc<HostState>,
    spec: wire::SandboxSpec,
    gates: Vec<GateFunction>,
}

impl SandboxSetup {
    async fn open(&self, snapshot: Option<Vec<u8>>) -> Result<SessionHandle, SandboxError> {
        let mut driver = self.shared.assign_worker().ok_or(SandboxError::Overloaded)?;
        let command = Command::Open { id: driver.id(), spec: self.spec.clone(), snapshot };
        match driver.ask(command, RequestTimeout::move_all()).await {
            Ok(Message::Opened(true)) => Ok(driver),
            Ok(_) | Err(WorkerError::Crashed | WorkerError::Spent(_)) => Err(SandboxError::Stopped),
            Err(WorkerError::Gone) => Err(SandboxError::Gone),
        }
    }
}

/// Reserved words, and names that programs rely on.
const RESERVED: [&str; 37] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield", "rand", "now",
];

/// A sandbox between two programs. It is built when its first program runs, which also gets the context.
struct IdleSandbox {
    bound: Arc<SandboxSetup>,
    driver: Option<SessionHandle>,
    variables: Option<Map<String, Value>>,
}

impl fmt::Debug for IdleSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleSandbox").field("seat", &self.driver).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WaitingProgram {
    call: ProgramCall,
    bound: Arc<SandboxSetup>,
    driver: SessionHandle,
}

impl Sandbox for IdleSandbox {
    fn start(self: Box<Self>, program: Program) -> NextEvent {
        Box::pin(async move {
            let Program { name: _, source, now } = program;
            if let Err(fault) = ProgramFault::check(&source) {
                return Ok(fault.finish(MediumKind::Python, &source, self));
            }
            let Self { bound, driver, variables } = *self;
            let driver = match driver {
                Some(driver) if driver.is_alive() => driver,
                Some(_) => return Err(SandboxError::Gone),
                None => bound.open(None).await?,
            };
            let variables = variables.map(|variables| Value::Object(variables).to_string());
            let program = wire::Program { source, now_ms: now.unix_millis(), variables };
            let command = Command::Run { id: driver.id(), program };
            next_step(bound, driver, command).await
        })
    }

    fn snapshot(&mut self) -> BoxFuture<'_, Option<Arc<[u8]>>> {
        Box::pin(async move {
            let driver = self.driver.as_mut()?;
            let command = Command::Dump { id: driver.id() };
            match driver.ask(command, RequestTimeout::move_all()).await {
                Ok(Message::Dumped(dumped)) => dumped.map(Into::into),
                Ok(_) | Err(_) => None,
            }
        })
    }
}

impl PausedProgram for WaitingProgram {
    fn call(&self) -> &ProgramCall {
        &self.call
    }

    fn resume(self: Box<Self>, answer: Answer, now: Timestamp) -> NextEvent {
        self.resume_with(wire_answer(answer), now)
    }

    fn cancel(self: Box<Self>) -> NextEvent {
        self.resume_with(CallAnswer::Cancel, Timestamp::EPOCH)
    }
}

impl WaitingProgram {
    fn resume_with(self, answer: CallAnswer, now: Timestamp) -> NextEvent {
        Box::pin(async move {
            let Self { call: _, bound, driver } = self;
            let command = Command::Answer { id: driver.id(), answer, now_ms: now.unix_millis() };
            next_step(bound, driver, command).await
        })
    }
}

/// Converts an answer for the interpreter. The language has no error values, so errors in a list become plain values.
fn wire_answer(answer: Answer) -> CallAnswer {
    match answer {
        Answer::Value(value) => CallAnswer::Value(value.to_string()),
        Answer::Throw(thrown) => CallAnswer::Raise(thrown.message),
        Answer::Stop => CallAnswer::Stop,
        list @ Answer::List(_) => wire_answer(list.with_plain_errors()),
    }
}

async fn next_step(
    bound: Arc<SandboxSetup>,
    mut driver: SessionHandle,
    command: Command,
) -> Result<ProgramEvent, SandboxError> {
    match driver.ask(command, RequestTimeout::slice(&bound.spec.limits)).await {
        Ok(Message::Called { gate, passed }) => {
            let gate =
                usize::try_from(gate).ok().and_then(|gate| bound.gates.get(gate)).ok_or(SandboxError::Stopped)?;
            let arguments = arguments_of(&gate.properties, passed).ok_or(SandboxError::Stopped)?;
            let call = ProgramCall { gate: gate.name.clone(), arguments };
            Ok(ProgramEvent::Call(Box::new(WaitingProgram { call, bound, driver })))
        }
        Ok(Message::Finished(left)) => {
            let kept = !left.rolled_back();
            let cpu = Duration::from_micros(left.cpu_us);
            let sandbox = kept.then(|| {
                let bound = Arc::clone(&bound);
                Box::new(IdleSandbox { bound, driver: Some(driver), variables: None }) as Box<dyn Sandbox>
            });
            Ok(ProgramEvent::Finished(result(left).finish(MediumKind::Python, &bound.spec.limits, cpu, sandbox)))
        }
        Ok(Message::Hello { .. } | Message::Opened(_) | Message::Dumped(_) | Message::Lost | Message::NoThread(_)) => {
            Err(SandboxError::Stopped)
        }
        Err(WorkerError::Spent(limit)) => {
            let result = ProgramResult { limit: Some(limit), ..ProgramResult::default() };
            // The worker was killed during the run, and the meter's reading is lost with it.
            let cpu = Duration::from_millis(bound.spec.limits.cpu_ms);
            Ok(ProgramEvent::Finished(result.finish(MediumKind::Python, &bound.spec.limits, cpu, None)))
        }
        Err(WorkerError::Crashed) => Err(SandboxError::Stopped),
        Err(WorkerError::Gone) => Err(SandboxError::Gone),
    }
}

/// Returns the arguments by name, or the fault in them; `None` if the worker sent invalid JSON.
fn arguments_of(
    declared: &[Property],
    passed: Result<PassedArguments, JsonFault>,
) -> Option<Result<Map<String, Value>, arguments::Fault>> {
    match passed {
        Ok(PassedArguments { positional, keywords }) => {
            let positional: Vec<Value> = serde_json::from_str(&positional).ok()?;
            let keywords: Vec<(String, Value)> = serde_json::from_str(&keywords).ok()?;
            let positional = positional.into_iter().map(Some).collect();
            Some(arguments::bind_with_keywords(declared, positional, keywords))
        }
        Err(JsonFault { path, rule }) => Some(Err(arguments::Fault { path, rule: rule_of(rule) })),
    }
}

fn rule_of(fit: JsonRule) -> Rule {
    match fit {
        JsonRule::Function => Rule::Function,
        JsonRule::Key => Rule::Key,
        JsonRule::NotFinite => Rule::NotFinite,
        JsonRule::BigInteger => Rule::BigInteger,
        JsonRule::Cycle => Rule::Cycle,
        JsonRule::TooDeep => Rule::TooDeep,
        JsonRule::TooLarge => Rule::TooLarge,
        JsonRule::Object(kind) => Rule::Object(match kind {
            Kind::Bytes => "bytes",
            Kind::Set => "a set",
            Kind::Date => "a date or time",
            Kind::Exception => "an exception",
            Kind::Type => "a class",
            Kind::Path => "a path",
            Kind::File => "a file",
            Kind::Instance => "an instance of a class",
            Kind::Ellipsis => "an ellipsis",
            Kind::Other => "this object",
        }),
    }
}

/// Returns the output of a program. All places are in this program.
fn result(output: ProgramOutput) -> ProgramResult {
    let position = |(line, column): (u32, u32)| Position { line, column: Some(column) };
    let error = output.error.map(|error| Exception {
        uncompiled: error.uncompiled,
        name: error.name,
        message: error.message,
        position: error.place.map(position),
        elsewhere: None,
    });
    ProgramResult {
        console: output.console,
        value: output.value,
        error,
        cut: output.cut,
        limit: output.limit,
        stopped_at: output.stopped_at.map(position),
    }
}
