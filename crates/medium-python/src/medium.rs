//! Python as a medium: one tool that takes a program, in which gates are plain functions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Timestamp, json};
use cantrip_circle::arguments::{self, Property, Rule};
use cantrip_circle::medium::{
    Answer, BoxFuture, CallTarget, FinishedProgram, Medium, PausedProgram, Presentation, Program, ProgramCall,
    ProgramEvent, Sandbox, SandboxError, SandboxOptions,
};
use cantrip_circle::program_end::{self, LimitMet};
use cantrip_circle::ward::MediumLimits;
use cantrip_circle::{CallArguments as Arguments, CallRequest, CallerState, Decision};
use cantrip_circle::{Circle, MediumKind, Position, ProgramEnd, ToolDefinition, limits};
use cantrip_loom::{GateCall, OutputRecord, ProgramError, ToolMode};
use cantrip_reply::{Refusal, codes};
use serde_json::{Map, Value, json};

use super::host::{HostState, Options, SessionHandle, StartError};
use super::session::HEADER;
use super::wire::{
    self, CallAnswer, Command, JsonFault, JsonRule, Kind, Limit, Message, PassedArguments, ProgramLimits,
    ProgramOutput, SandboxSpec,
};
use super::worker_handle::{RequestTimeout, WorkerError};

/// The name of the tool, and below it the name of its one argument.
const TOOL: &str = "python";
const CODE: &str = "code";

/// The instruction for a crystal that is offered no tools and writes its program in a fenced block.
const FENCED: &str = "You act by writing programs. Put your program into one fenced block that begins with ```python; it \
                      is run, and its output is sent back to you.\n";

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

    fn kind(&self, circle: &Circle, seed: u64) -> Arc<SandboxSetup> {
        let gates = gates(circle);
        let names = gates.iter().map(|gate| gate.name.clone()).collect();
        let spec = SandboxSpec { seed, limits: program_limits(&circle.wards().medium), gates: names };
        Arc::new(SandboxSetup { shared: Arc::clone(&self.shared), spec, gates })
    }
}

impl From<StartError> for Refusal {
    fn from(unavailable: StartError) -> Self {
        codes::sandbox_unavailable(TOOL, unavailable.to_string()).into()
    }
}

impl Medium for Python {
    fn kind(&self) -> MediumKind {
        MediumKind::Python
    }

    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        let text = capabilities(circle);
        match mode {
            ToolMode::Tool => {}
            ToolMode::Fenced => return Presentation { tools: Vec::new(), text: Some(format!("{FENCED}{text}")) },
        }
        let parameters = json!({
            "type": "object",
            "properties": {CODE: {"type": "string", "description": "The program."}},
            "required": [CODE],
            "additionalProperties": false,
        });
        let tool = ToolDefinition { name: TOOL.to_owned(), description: text.clone(), parameters };
        Presentation { tools: vec![tool], text: Some(text) }
    }

    fn interpret(&self, circle: &Circle, call: &GateCall) -> CallTarget {
        if call.gate != TOOL {
            let asked = CallRequest { gate: &call.gate, arguments: Arguments::Tool(call.args.clone()) };
            return match circle.decide(asked, &CallerState::default()) {
                Decision::Refused(refusal) => CallTarget::Refused(refusal),
                Decision::Allowed(_) | Decision::NeedsApproval { .. } => {
                    CallTarget::Refused(codes::target_unusable(&call.gate, "call it in code").into())
                }
            };
        }
        match program(&call.args) {
            Ok(source) => CallTarget::Program(source),
            Err(refusal) => CallTarget::Refused(refusal),
        }
    }

    fn isolate(&self, circle: &Circle, isolation: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        let SandboxOptions { seed, context } = isolation;
        let variables = context.map(|context| circle.variables(context, is_variable_name));
        Ok(Some(Box::new(IdleSandbox { bound: self.kind(circle, seed), driver: None, variables })))
    }

    fn can_restore(&self, snapshot: &[u8]) -> bool {
        snapshot.starts_with(HEADER)
    }

    fn restore<'a>(
        &'a self,
        circle: &'a Circle,
        isolation: SandboxOptions,
        snapshot: Arc<[u8]>,
    ) -> BoxFuture<'a, Option<Box<dyn Sandbox>>> {
        Box::pin(async move {
            let bound = self.kind(circle, isolation.seed);
            let driver = bound.open(Some(snapshot.to_vec())).await.ok()?;
            // The context is already among the restored variables.
            Some(Box::new(IdleSandbox { bound, driver: Some(driver), variables: None }) as Box<dyn Sandbox>)
        })
    }
}

/// Returns the program in the arguments of a tool call.
fn program(args: &Value) -> Result<String, Refusal> {
    let subject = || format!("arguments of {TOOL}");
    let read;
    let args = match args {
        Value::String(text) => {
            read = json::read_foreign(text)
                .map_err(|fault| codes::unparsable(subject(), &fault.path, fault.rule.to_string()))?;
            &read
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => args,
    };
    match args.get(CODE) {
        Some(Value::String(code)) => Ok(code.clone()),
        Some(_) => Err(codes::schema(subject(), format!("/{CODE}"), "it must be a text").into()),
        None => Err(codes::schema(subject(), format!("/{CODE}"), "missing required argument").into()),
    }
}

fn program_limits(wards: &MediumLimits) -> ProgramLimits {
    let defaults = ProgramLimits::default();
    let bytes =
        |ward: Option<u64>, default: usize| ward.map_or(default, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let ms = |ward: Option<std::time::Duration>, default: u64| {
        ward.map_or(default, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    };
    ProgramLimits {
        memory_bytes: bytes(wards.memory_bytes, defaults.memory_bytes),
        cpu_ms: ms(wards.cpu, defaults.cpu_ms),
        wall_ms: ms(wards.wall, defaults.wall_ms),
        stack_bytes: bytes(wards.stack_bytes, defaults.stack_bytes),
        output_shown_bytes: defaults.output_shown_bytes,
        output_bytes: bytes(wards.output_bytes, defaults.output_bytes),
    }
}

/// A gate as a program calls it.
#[derive(Debug)]
struct Gate {
    name: String,
    properties: Vec<Property>,
}

/// Returns every gate as a function. Gates that a ward removed are included; calling one of them returns a refusal.
fn gates(circle: &Circle) -> Vec<Gate> {
    let names = circle.callable_names().into_iter();
    names.map(|(name, gate)| Gate { name, properties: circle.properties(&gate).unwrap_or_default() }).collect()
}

/// Describes the environment to the entity. The text is the same on every request.
fn capabilities(circle: &Circle) -> String {
    let limits = program_limits(&circle.wards().medium);
    let mut text = format!(
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
    );
    for signature in circle.signatures() {
        text.push('\n');
        text.push_str(&signature);
    }
    text
}

/// The specification of an entity's sandbox, and the host that runs it.
#[derive(Debug)]
struct SandboxSetup {
    shared: Arc<HostState>,
    spec: SandboxSpec,
    gates: Vec<Gate>,
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

/// Returns true if a variable can have this name and the name does not hide one that every program has.
fn is_variable_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_';
    name.bytes().next().is_some_and(letter)
        && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
        && !RESERVED.contains(&name)
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
    fn start(self: Box<Self>, program: Program) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
        Box::pin(async move {
            let Self { bound, driver, variables } = *self;
            let Program { name: _, source, now } = program;
            if let Some((message, end)) = fault(&source) {
                return Ok(invalid_program(message, end, Self { bound, driver, variables }));
            }
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

    fn resume(
        self: Box<Self>,
        answer: Answer,
        now: Timestamp,
    ) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
        self.resume_with(wire_answer(answer), now)
    }

    fn cancel(self: Box<Self>) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
        self.resume_with(CallAnswer::Cancel, Timestamp::EPOCH)
    }
}

impl WaitingProgram {
    fn resume_with(self, answer: CallAnswer, now: Timestamp) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
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

/// Returns the reason why a text is not a valid program. None of it is run.
fn fault(source: &str) -> Option<(String, ProgramEnd)> {
    let bytes = source.len();
    if bytes > limits::PROGRAM_BYTES_MAX {
        let message = format!("the program has {bytes} bytes, the limit is {}", limits::PROGRAM_BYTES_MAX);
        return Some((message, program_end::too_long(bytes)));
    }
    let at = source.find('\0')?;
    let message = format!("the program holds a NUL character at byte {at}");
    let end = program_end::syntax_error_end(MediumKind::Python, &message, Some(Position::of_byte(source, at)));
    Some((message, end))
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
            let end = end(&left, &bound.spec.limits);
            let sandbox = kept
                .then(|| Box::new(IdleSandbox { bound, driver: Some(driver), variables: None }) as Box<dyn Sandbox>);
            let cpu = Duration::from_micros(left.cpu_us);
            Ok(ProgramEvent::Finished(FinishedProgram { output: output(left), end, cpu, sandbox }))
        }
        Ok(Message::Hello { .. } | Message::Opened(_) | Message::Dumped(_) | Message::Lost) => {
            Err(SandboxError::Stopped)
        }
        Err(WorkerError::Spent(limit)) => {
            let left = ProgramOutput { limit: Some(limit), ..ProgramOutput::default() };
            // The worker was killed during the run, and the meter's reading is lost with it.
            let cpu = Duration::from_millis(bound.spec.limits.cpu_ms);
            let end = end(&left, &bound.spec.limits);
            Ok(ProgramEvent::Finished(FinishedProgram { output: output(left), end, cpu, sandbox: None }))
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

/// Reports a text that is not a valid program.
fn invalid_program(message: String, end: ProgramEnd, sandbox: IdleSandbox) -> ProgramEvent {
    let error = ProgramError { name: "SyntaxError".to_owned(), message, line: None, column: None };
    let output = OutputRecord { error: Some(error), ..output(ProgramOutput::default()) };
    ProgramEvent::Finished(FinishedProgram { output, end, cpu: Duration::ZERO, sandbox: Some(Box::new(sandbox)) })
}

/// Returns how a program with this output ended.
fn end(left: &ProgramOutput, limits: &ProgramLimits) -> ProgramEnd {
    let position = |(line, column): (u32, u32)| Position { line, column: Some(column) };
    let thrown_at = left.error.as_ref().and_then(|error| error.place).map(position);
    if let Some(limit) = left.limit {
        let met = match limit {
            Limit::Memory => LimitMet::Heap(limits.memory_bytes),
            Limit::Stack => LimitMet::Stack(limits.stack_bytes),
            Limit::Cpu => LimitMet::CpuMs(limits.cpu_ms),
            Limit::Wall => LimitMet::WallMs(limits.wall_ms),
            Limit::Output => LimitMet::Output(limits.output_bytes),
            Limit::Cancelled => return ProgramEnd::Cancelled,
        };
        return met.end(thrown_at.or(left.stopped_at.map(position)));
    }
    match &left.error {
        None => ProgramEnd::Completed,
        Some(error) if error.uncompiled => program_end::syntax_error_end(MediumKind::Python, &error.message, thrown_at),
        Some(error) => program_end::exception_end(&error.name, &error.message, thrown_at, None),
    }
}

fn output(left: ProgramOutput) -> OutputRecord {
    let rolled_back = left.rolled_back();
    let error = left.error.map(|error| ProgramError {
        name: error.name,
        message: error.message,
        line: error.place.map(|(line, _)| line),
        column: error.place.map(|(_, column)| column),
    });
    OutputRecord {
        tool_call_id: None,
        clock_ms: None,
        console: left.console.lines().map(str::to_owned).collect(),
        value: left.value,
        error,
        cut: left.cut,
        limit: left.limit.map(|limit: Limit| limit.as_str().to_owned()),
        rolled_back,
        environment_lost: None,
        left: None,
        reply: None,
    }
}
