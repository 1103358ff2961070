//! JavaScript as a medium of code: its description, its names and its sandboxes.

use std::sync::Arc;
use std::{fmt, io};

use cantrip_canon::Timestamp;
use cantrip_circle::code::{CodeMedium, Exception, ProgramFault, ProgramLimits, ProgramResult, SandboxSpec};
use cantrip_circle::medium::{
    Answer, NextEvent, PausedProgram, Program, ProgramCall, ProgramEvent, Sandbox, SandboxError,
};
use cantrip_circle::{Circle, MediumKind, Position};
use cantrip_reply::ReplyException;
use serde_json::{Map, Value};

use super::{
    Answer as Answered, Event, Fault, Host, Options, Program as Text, ProgramOutput, Sandbox as Resting,
    SourceLocation, SuspendedProgram, Throw,
};

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

impl CodeMedium for Javascript {
    fn language(&self) -> MediumKind {
        MediumKind::Javascript
    }

    fn introduction(&self, _: &Circle) -> String {
        INTRODUCTION.to_owned()
    }

    fn is_variable_name(&self, name: &str) -> bool {
        let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || byte == b'$';
        name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
            && !RESERVED.split(' ').any(|reserved| reserved == name)
    }

    fn sandbox(&self, spec: SandboxSpec, variables: Option<Map<String, Value>>) -> Box<dyn Sandbox> {
        let limits = spec.limits;
        let sandbox = self.host.sandbox(Arc::new(spec));
        Box::new(IdleSandbox { sandbox, limits, variables: variables.unwrap_or_default() })
    }
}

/// The description of the language, which the entity reads.
const INTRODUCTION: &str = "Runs a JavaScript program. Variables and functions of the top level persist from one program to the next. The \
         value of the last expression and what console.log prints come back. A name read before its declaration is \
         undefined, and a const may be assigned. There are no modules and no timers.\n\
         These functions return their values directly and throw on failure; done ends everything:";

/// Reserved words, which cannot be the name of a variable.
const RESERVED: &str = "await break case catch class const continue debugger default delete do else enum export extends false \
    finally for function if implements import in instanceof interface let new null package private protected \
    public return static super switch this throw true try typeof undefined var void while with yield";

/// A sandbox between two programs. The variables are those of the first program.
struct IdleSandbox {
    sandbox: Resting,
    limits: ProgramLimits,
    variables: Map<String, Value>,
}

impl fmt::Debug for IdleSandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdleSandbox").field("sandbox", &self.sandbox).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct WaitingProgram {
    suspended: SuspendedProgram,
    limits: ProgramLimits,
    /// The name of the program. An error in code of an earlier program has no position in this one.
    name: String,
}

impl Sandbox for IdleSandbox {
    fn start(self: Box<Self>, program: Program) -> NextEvent {
        Box::pin(async move {
            let Program { name, source, now } = program;
            if let Err(fault) = ProgramFault::check(&source) {
                return Ok(fault.finish(MediumKind::Javascript, &source, self));
            }
            let Self { sandbox, limits, variables } = *self;
            let event = sandbox.run(Text::checked(&name, source, now).with_variables(variables)).await;
            next_step(event, name, limits)
        })
    }
}

impl PausedProgram for WaitingProgram {
    fn call(&self) -> &ProgramCall {
        &self.suspended.call
    }

    fn resume(self: Box<Self>, answer: Answer, now: Timestamp) -> NextEvent {
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

    fn cancel(self: Box<Self>) -> NextEvent {
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
    event: Result<Event, SandboxError>,
    name: String,
    limits: ProgramLimits,
) -> Result<ProgramEvent, SandboxError> {
    Ok(match event? {
        Event::Call(suspended) => ProgramEvent::Call(Box::new(WaitingProgram { suspended, limits, name })),
        Event::Finished(finished) => {
            let result = result(finished.output, &name);
            let idle = |sandbox| Box::new(IdleSandbox { sandbox, limits, variables: Map::new() }) as Box<dyn Sandbox>;
            let sandbox = finished.sandbox.map(idle);
            ProgramEvent::Finished(result.finish(MediumKind::Javascript, &limits, finished.cpu, sandbox))
        }
    })
}

/// Returns the output of the program with this name; only places in this program are positions.
fn result(output: ProgramOutput, program: &str) -> ProgramResult {
    let within = |place: &SourceLocation| {
        (place.program == program).then_some(Position { line: place.line, column: place.column })
    };
    let error = output.error.map(|error| Exception {
        uncompiled: match error.fault {
            Fault::Syntax => true,
            Fault::Threw | Fault::Unhandled | Fault::Unsettled => false,
        },
        position: error.place.as_ref().and_then(within),
        elsewhere: error.place.map(|place| format!("{} of {}", place.line, place.program)),
        name: error.name,
        message: error.message,
    });
    ProgramResult {
        console: output.console,
        value: output.value,
        error,
        cut: output.cut,
        limit: output.limit,
        stopped_at: output.stopped_at.as_ref().and_then(within),
    }
}
