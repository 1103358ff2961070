//! JavaScript as a medium: one tool that takes a program, in which gates are plain functions.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Timestamp, json};
use cantrip_circle::medium::{
    Answer, BoxFuture, CallTarget, FinishedProgram, Medium, PausedProgram, Presentation, Program, ProgramCall,
    ProgramEvent, Sandbox, SandboxError, SandboxOptions,
};
use cantrip_circle::program_end::{self, LimitMet};
use cantrip_circle::ward::MediumLimits;
use cantrip_circle::{CallArguments, CallRequest, CallerState, Decision};
use cantrip_circle::{Circle, MediumKind, Position, ProgramEnd, ToolDefinition};
use cantrip_loom::{GateCall, OutputRecord, ProgramError, ToolMode};
use cantrip_reply::{Refusal, ReplyException, codes};
use serde_json::{Map, Value, json};

use super::{
    Answer as Answered, Event, Fault, Gate, Host, Limit, Options, Program as Text, ProgramFault, ProgramLimits,
    ProgramOutput as Left, Sandbox as Resting, SandboxSpec, SourceLocation, SuspendedProgram, Throw,
};

/// The name of the tool, and below it the name of its one argument.
const TOOL: &str = "javascript";
const CODE: &str = "code";

/// The instruction for a crystal that is offered no tools and writes its program in a fenced block.
const FENCED: &str = "You act by writing programs. Put your program into one fenced block that begins with ```javascript; \
                      it is run, and its output is sent back to you.\n";

/// The JavaScript medium. Its sandboxes share the threads of one host.
#[derive(Clone)]
pub struct Javascript {
    host: Arc<Host>,
}

impl fmt::Debug for Javascript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Javascript").field("sandboxes", &self.host.sandboxes()).finish()
    }
}

impl Javascript {
    /// Starts a medium with its own sandbox threads.
    pub fn start(options: Options) -> io::Result<Self> {
        Ok(Self::on(options.start()?))
    }

    pub fn on(host: Host) -> Self {
        Self { host: Arc::new(host) }
    }
}

impl Medium for Javascript {
    fn kind(&self) -> MediumKind {
        MediumKind::Javascript
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
            let asked = CallRequest { gate: &call.gate, arguments: CallArguments::Tool(call.args.clone()) };
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
        let spec = SandboxSpec { seed, limits: program_limits(&circle.wards().medium), gates: gates(circle) };
        let limits = spec.limits.clone();
        let sandbox = self.host.sandbox(Arc::new(spec));
        let context = context.map(|context| circle.variables(context, is_variable_name));
        Ok(Some(Box::new(IdleSandbox { sandbox, limits, context })))
    }
}

/// Returns true if a variable can have this name.
fn is_variable_name(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$';
    name.bytes().next().is_some_and(letter)
        && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
        && !RESERVED.contains(&name)
}

/// Reserved words, which cannot be the name of a variable.
const RESERVED: [&str; 47] = [
    "await",
    "break",
    "case",
    "catch",
    "class",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "super",
    "switch",
    "this",
    "throw",
    "true",
    "try",
    "typeof",
    "undefined",
    "var",
    "void",
    "while",
    "with",
    "yield",
];

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

/// Returns every gate as a function. Gates that a ward removed are included; calling one of them returns a refusal.
fn gates(circle: &Circle) -> Vec<Gate> {
    let names = circle.callable_names().into_iter();
    names.map(|(name, gate)| Gate { name, properties: circle.properties(&gate).unwrap_or_default() }).collect()
}

/// Describes the environment to the entity. The text is the same on every request.
fn capabilities(circle: &Circle) -> String {
    let mut text = String::from(
        "Runs a JavaScript program. Variables and functions of the top level persist from one program to the next. The \
         value of the last expression and what console.log prints come back. A name read before its declaration is \
         undefined, and a const may be assigned. There are no modules and no timers.\n\
         These functions return their values directly and throw on failure; done ends everything:",
    );
    for signature in circle.signatures() {
        text.push('\n');
        text.push_str(&signature);
    }
    text
}

/// A sandbox between two programs. The context becomes variables of the first program.
struct IdleSandbox {
    sandbox: Resting,
    limits: ProgramLimits,
    context: Option<Map<String, Value>>,
}

impl fmt::Debug for IdleSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleSandbox").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WaitingProgram {
    call: ProgramCall,
    suspended: SuspendedProgram,
    limits: ProgramLimits,
    /// The name of the program. An error in code of an earlier program has no position in this one.
    name: String,
}

impl Sandbox for IdleSandbox {
    fn start(self: Box<Self>, program: Program) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
        Box::pin(async move {
            let Self { sandbox, limits, context } = *self;
            let Program { name, source, now } = program;
            let text = match Text::new(name.clone(), source.clone(), now) {
                Ok(text) => text,
                Err(fault) => return Ok(invalid_program(&fault, &source, Self { sandbox, limits, context })),
            };
            let event = sandbox.run(text.with_variables(context.unwrap_or_default())).await;
            next_step(event, name, limits)
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
        Box::pin(async move {
            let answer = match answer {
                Answer::Value(value) => Answered::Value(value),
                Answer::List(places) => Answered::List(
                    places.into_iter().map(|place| place.map_err(|thrown| Box::new(gate_error(thrown)))).collect(),
                ),
                Answer::Stop => Answered::Stop,
                Answer::Throw(thrown) => Answered::Throw(gate_error(thrown)),
            };
            next_step(self.suspended.answer(answer, now).await, self.name, self.limits)
        })
    }

    fn cancel(self: Box<Self>) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>> {
        Box::pin(async move { next_step(self.suspended.cancel().await, self.name, self.limits) })
    }
}

fn gate_error(thrown: ReplyException) -> Throw {
    Throw {
        message: thrown.message,
        kind: thrown.reply_type.as_str().to_owned(),
        code: thrown.code.as_str().to_owned(),
        retry: thrown.retry.as_str().to_owned(),
        data: Value::Object(thrown.data),
    }
}

fn next_step(
    event: Result<Event, super::SandboxError>,
    name: String,
    limits: ProgramLimits,
) -> Result<ProgramEvent, SandboxError> {
    match event {
        Ok(Event::Call(suspended)) => {
            let call = ProgramCall { gate: suspended.call.gate.clone(), arguments: suspended.call.arguments.clone() };
            Ok(ProgramEvent::Call(Box::new(WaitingProgram { call, suspended, limits, name })))
        }
        Ok(Event::Finished(finished)) => {
            let cpu = finished.cpu;
            let end = end(&finished.output, &name, &limits);
            let sandbox = finished
                .sandbox
                .map(|sandbox| Box::new(IdleSandbox { sandbox, limits, context: None }) as Box<dyn Sandbox>);
            Ok(ProgramEvent::Finished(FinishedProgram { output: output(finished.output, &name), end, cpu, sandbox }))
        }
        Err(super::SandboxError::Overloaded) => Err(SandboxError::Overloaded),
        Err(super::SandboxError::Stopped) => Err(SandboxError::Stopped),
        Err(super::SandboxError::Gone) => Err(SandboxError::Gone),
    }
}

/// Reports a text that is not a valid program. None of it ran.
fn invalid_program(fault: &ProgramFault, source: &str, sandbox: IdleSandbox) -> ProgramEvent {
    let message = fault.to_string();
    let end = match fault {
        ProgramFault::TooLong { bytes } => program_end::too_long(*bytes),
        ProgramFault::Nul { at } => {
            program_end::syntax_error_end(MediumKind::Javascript, &message, Some(Position::of_byte(source, *at)))
        }
    };
    let error = ProgramError { name: "SyntaxError".to_owned(), message, line: None, column: None };
    let output = output(Left::default(), "");
    let output = OutputRecord { error: Some(error), ..output };
    ProgramEvent::Finished(FinishedProgram { output, end, cpu: Duration::ZERO, sandbox: Some(Box::new(sandbox)) })
}

/// Returns how the program with this name ended.
fn end(left: &Left, program: &str, limits: &ProgramLimits) -> ProgramEnd {
    let within = |place: &Option<SourceLocation>| {
        let place = place.as_ref().filter(|place| place.program == program)?;
        Some(Position { line: place.line, column: place.column })
    };
    if let Some(limit) = left.limit {
        let thrown_at = left.error.as_ref().and_then(|error| within(&error.place));
        let position = thrown_at.or_else(|| within(&left.stopped_at));
        let met = match limit {
            Limit::Memory => LimitMet::Heap(limits.memory_bytes),
            Limit::Stack => LimitMet::Stack(limits.stack_bytes),
            Limit::Cpu => LimitMet::CpuMs(limits.cpu_ms),
            Limit::Wall => LimitMet::WallMs(limits.wall_ms),
            Limit::Output => LimitMet::Output(limits.output_bytes),
            Limit::Cancelled => return ProgramEnd::Cancelled,
        };
        return met.end(position);
    }
    let Some(error) = &left.error else { return ProgramEnd::Completed };
    let position = within(&error.place);
    match error.fault {
        Fault::Syntax => program_end::syntax_error_end(MediumKind::Javascript, &error.message, position),
        Fault::Threw | Fault::Unhandled | Fault::Unsettled => {
            let elsewhere = error.place.as_ref().map(|place| format!("{} of {}", place.line, place.program));
            program_end::exception_end(&error.name, &error.message, position, elsewhere)
        }
    }
}

fn output(left: Left, program: &str) -> OutputRecord {
    let error = left.error.map(|error| {
        let place = error.place.filter(|place| place.program == program);
        ProgramError {
            name: error.name,
            message: error.message,
            line: place.as_ref().map(|place| place.line),
            column: place.and_then(|place| place.column),
        }
    });
    let limit = left.limit.map(|limit| match limit {
        Limit::Memory => "memory",
        Limit::Stack => "stack",
        Limit::Cpu => "cpu",
        Limit::Wall => "wall",
        Limit::Output => "output",
        Limit::Cancelled => "cancelled",
    });
    OutputRecord {
        tool_call_id: None,
        clock_ms: None,
        console: left.console.lines().map(str::to_owned).collect(),
        value: left.value,
        error,
        cut: left.cut,
        limit: limit.map(str::to_owned),
        rolled_back: left.rolled_back,
        environment_lost: None,
        left: None,
        reply: None,
    }
}
