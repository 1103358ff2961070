//! The medium: the form of an utterance, and the place where it acts.
//!
//! A medium has four duties: it presents the circle to a crystal, executes what an utterance asks for, turns the result
//! into an observation, and isolates entities from each other. In a conversation an utterance is a list of gate calls.
//! In code it is a program that runs in a sandbox and calls gates as functions: the program starts, pauses at each call
//! and resumes with the answer, so every call takes the same path as in a conversation. A medium that runs its gates
//! itself was rejected: wards, journal and money would each need a second entry point.

use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_loom::{GateCall, OutputRecord, ToolMode, render};
use cantrip_reply::{Refusal, ReplyException};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::arguments;
use crate::{Circle, Label, Labels, ProgramEnd, ToolDefinition};

/// The kinds of medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediumKind {
    #[default]
    Conversation,
    Javascript,
    Python,
    Shell,
    Browser,
    Human,
}

impl MediumKind {
    pub const ALL: [Self; 6] =
        [Self::Conversation, Self::Javascript, Self::Python, Self::Shell, Self::Browser, Self::Human];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Conversation => "conversation",
            Self::Javascript => "javascript",
            Self::Python => "python",
            Self::Shell => "shell",
            Self::Browser => "browser",
            Self::Human => "human",
        }
    }

    /// Returns true if the crystal writes programs in which gates are functions.
    pub const fn is_code(self) -> bool {
        match self {
            Self::Javascript | Self::Python => true,
            Self::Conversation | Self::Shell | Self::Browser | Self::Human => false,
        }
    }

    /// Returns the dangers that the medium itself brings in. The network of a shell is added where it is allowed, see
    /// `CircleBuilder::medium_labels`.
    pub fn labels(self) -> Labels {
        match self {
            Self::Browser => Labels::of([Label::UntrustedContent, Label::ExternalComm]),
            Self::Conversation | Self::Javascript | Self::Python | Self::Shell | Self::Human => Labels::none(),
        }
    }
}

impl fmt::Display for MediumKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that is not the name of a medium.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a medium: conversation, javascript, python, shell, browser or human")]
pub struct MediumFault(String);

impl FromStr for MediumKind {
    type Err = MediumFault;

    fn from_str(name: &str) -> Result<Self, MediumFault> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| MediumFault(name.chars().take(64).collect()))
    }
}

/// The tools and the text that a crystal is shown, the same on every request.
#[derive(Debug, Clone, PartialEq)]
pub struct Presentation {
    /// The tools, in stable order.
    pub tools: Vec<ToolDefinition>,
    /// The capabilities in words, for a crystal that is offered no tools.
    pub text: Option<String>,
}

/// The target of one call of an utterance.
#[derive(Debug)]
pub enum CallTarget {
    /// A gate, with the arguments as the crystal wrote them.
    Gate(Value),
    /// A program to run.
    Program(String),
    Refused(Refusal),
}

/// The settings from which an entity's sandbox is made.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxOptions {
    /// The seed of the random numbers.
    pub seed: u64,
    /// The value of the variable `context`.
    pub context: Option<Value>,
}

/// The environment in which an entity acts.
///
/// One value serves every entity of a process; the state that an entity changes is in its [`Sandbox`]. A medium does
/// not execute gates.
///
/// A medium has four duties: it presents, executes, observes and isolates. Only the rendering of an output has a
/// default that suits every medium; the other duties each medium implements itself.
///
/// ```
/// use cantrip_circle::medium::{CallTarget, Medium, Presentation, Sandbox, SandboxOptions};
/// use cantrip_circle::{Circle, MediumKind};
/// use cantrip_loom::{GateCall, ToolMode};
/// use cantrip_reply::Refusal;
///
/// struct Quiet;
///
/// impl Medium for Quiet {
///     fn kind(&self) -> MediumKind {
///         MediumKind::Human
///     }
///     fn present(&self, _: &Circle, _: ToolMode) -> Presentation {
///         Presentation { tools: Vec::new(), text: None }
///     }
///     fn interpret(&self, _: &Circle, call: &GateCall) -> CallTarget {
///         CallTarget::Gate(call.args.clone())
///     }
///     fn isolate(&self, _: &Circle, _: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
///         Ok(None)
///     }
/// }
/// ```
///
/// An implementation that leaves out a duty does not compile:
///
/// ```compile_fail,E0046
/// use cantrip_circle::medium::{CallTarget, Medium, Presentation, Sandbox, SandboxOptions};
/// use cantrip_circle::{Circle, MediumKind};
/// use cantrip_loom::{GateCall, ToolMode};
/// use cantrip_reply::Refusal;
///
/// struct Quiet;
///
/// impl Medium for Quiet {
///     fn kind(&self) -> MediumKind {
///         MediumKind::Human
///     }
///     fn present(&self, _: &Circle, _: ToolMode) -> Presentation {
///         Presentation { tools: Vec::new(), text: None }
///     }
///     fn interpret(&self, _: &Circle, call: &GateCall) -> CallTarget {
///         CallTarget::Gate(call.args.clone())
///     }
///     // It does not isolate.
/// }
/// ```
pub trait Medium: Send + Sync + 'static {
    fn kind(&self) -> MediumKind;

    /// Presents: returns the tools that a crystal is offered. A pure function of the circle and the mode.
    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation;

    /// Executes: returns the target of a call of the utterance.
    fn interpret(&self, circle: &Circle, call: &GateCall) -> CallTarget;

    /// Observes: renders the output of a program in turn `sequence`. A pure function.
    fn observe(&self, sequence: u64, output: &OutputRecord) -> String {
        render::output_text(output, sequence, self.kind().as_str())
    }

    /// Isolates: makes the sandbox of one entity. Returns none if an utterance leaves no state behind.
    fn isolate(&self, circle: &Circle, isolation: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal>;

    /// Returns true if these bytes are a [`Sandbox::snapshot`] that this version can load.
    fn can_restore(&self, snapshot: &[u8]) -> bool {
        let _ = snapshot;
        false
    }

    /// Restores a sandbox from a [`Sandbox::snapshot`] of the same entity. Returns none if this version cannot read the
    /// snapshot on this machine. Callers pass only bytes that this process may trust, because the bytes become a heap.
    fn restore<'a>(
        &'a self,
        circle: &'a Circle,
        isolation: SandboxOptions,
        snapshot: Arc<[u8]>,
    ) -> BoxFuture<'a, Option<Box<dyn Sandbox>>> {
        let _ = (circle, isolation, snapshot);
        Box::pin(std::future::ready(None))
    }
}

/// A boxed future that is `Send`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The next event of a program.
pub type NextEvent = BoxFuture<'static, Result<ProgramEvent, SandboxError>>;

/// A sandbox in which no program runs.
///
/// Each state is its own type, so an answer cannot reach a sandbox that does not wait for one, and a second program
/// cannot begin inside the first. Dropping a sandbox, a paused program, or one of their futures frees the sandbox; a
/// program that was in it runs no further.
pub trait Sandbox: Send + fmt::Debug {
    /// Runs a program until it calls a gate or ends.
    fn start(self: Box<Self>, program: Program) -> NextEvent;

    /// Returns everything a program can find in the sandbox, as bytes. Returns none if the medium has to run the
    /// programs again instead.
    fn snapshot(&mut self) -> BoxFuture<'_, Option<Arc<[u8]>>> {
        Box::pin(std::future::ready(None))
    }
}

/// A program that waits for the answer to a call.
pub trait PausedProgram: Send + fmt::Debug {
    fn call(&self) -> &ProgramCall;

    /// Returns `answer` to the program, sets its clock to `now`, and runs the program on.
    fn resume(self: Box<Self>, answer: Answer, now: Timestamp) -> NextEvent;

    /// Ends the program here. The text that it has printed so far is its output.
    fn cancel(self: Box<Self>) -> NextEvent;
}

/// A program, with the name that its errors show and the clock reading at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub source: String,
    pub now: Timestamp,
}

/// The point that a program has reached.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one for each call of a program, moved once and matched at once")]
pub enum ProgramEvent {
    Call(Box<dyn PausedProgram>),
    Finished(FinishedProgram),
}

/// A program that has ended.
#[derive(Debug)]
pub struct FinishedProgram {
    pub output: OutputRecord,
    pub end: ProgramEnd,
    /// The processor time since the program started, without the time spent in gates.
    pub cpu: Duration,
    /// The sandbox for the next program. None if this program was rolled back and the sandbox has to be rebuilt without
    /// it.
    pub sandbox: Option<Box<dyn Sandbox>>,
}

/// A call in a program: the arguments by name, or the fault in them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramCall {
    pub gate: String,
    /// After a fault the gate must not run, and the answer is a refusal.
    pub arguments: Result<Map<String, Value>, arguments::Fault>,
}

impl ProgramCall {
    /// Returns the arguments as they are recorded: the mapped object, or an empty one if they could not be mapped.
    pub fn recorded_arguments(&self) -> Value {
        Value::Object(self.arguments.clone().unwrap_or_default())
    }
}

/// The answer to a call in a program.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The call returns this value.
    Value(Value),
    /// The call returns a list, the answer of a batch, in which some places hold an error instead of a value. A medium
    /// whose language cannot hold errors as values shows them as [`Answer::with_plain_errors`] does.
    List(Vec<Result<Value, ReplyException>>),
    /// The call throws this exception.
    Throw(ReplyException),
    /// The program stops at this call: `done` was accepted, or a fork leaves the program here. The program cannot catch
    /// it.
    Stop,
}

impl Answer {
    /// Replaces every error in a list by the value `{"error": {type, code, message}}`, as records store it.
    #[must_use]
    pub fn with_plain_errors(self) -> Self {
        match self {
            Self::List(places) => Self::Value(places.into_iter().map(|place| place.unwrap_or_else(plain)).collect()),
            Self::Value(_) | Self::Throw(_) | Self::Stop => self,
        }
    }
}

fn plain(error: ReplyException) -> Value {
    json!({"error": {"type": error.reply_type, "code": error.code, "message": error.message}})
}

/// The sandbox cannot continue, through no fault of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// There is no room for another sandbox now.
    #[error("no sandbox can be started now")]
    Overloaded,
    /// The sandbox stopped; it can be rebuilt from the loom.
    #[error("the sandbox stopped")]
    Stopped,
    /// The thread or process of the sandbox is gone, and this sandbox did not cause that. After a rebuild the same
    /// program can be run again.
    #[error("the sandbox is gone")]
    Gone,
}

/// Gates as tools: the medium without a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conversation;

impl Medium for Conversation {
    fn kind(&self) -> MediumKind {
        MediumKind::Conversation
    }

    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        match mode {
            ToolMode::Tool => Presentation { tools: circle.definitions(), text: None },
            // Without tools or programs no gate can be called; a list of gates would only invite the crystal to try.
            ToolMode::Fenced => Presentation {
                tools: Vec::new(),
                text: Some("You have no tools here. Answer in plain text: your text is the answer.".to_owned()),
            },
        }
    }

    fn interpret(&self, _: &Circle, call: &GateCall) -> CallTarget {
        CallTarget::Gate(call.args.clone())
    }

    fn isolate(&self, _: &Circle, _: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        Ok(None)
    }
}
