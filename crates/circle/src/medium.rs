//! The medium: what an utterance is made of, and where it acts.
//!
//! A medium has four duties: it presents the circle to a crystal, executes what an utterance asks for, makes an
//! observation of what came of it, and keeps entities apart. In a conversation an utterance is a list of gate calls. In
//! code it is a program that runs in a sandbox and calls gates as functions: it starts, stops at each call and goes on
//! with the answer, so every call takes the same road as in a conversation. A medium that ran its gates itself was
//! rejected: wards, journal and money would each need a second door.

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

/// Which medium.
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

    /// Whether the crystal writes programs and gates are functions in them.
    pub const fn is_code(self) -> bool {
        match self {
            Self::Javascript | Self::Python => true,
            Self::Conversation | Self::Shell | Self::Browser | Self::Human => false,
        }
    }

    /// The dangers that the medium itself brings in; a shell's network is said where it is let in.
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

/// A name that is no medium.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no medium: conversation, javascript, python, shell, browser or human")]
pub struct MediumFault(String);

impl FromStr for MediumKind {
    type Err = MediumFault;

    fn from_str(name: &str) -> Result<Self, MediumFault> {
        let found = Self::ALL.into_iter().find(|kind| kind.as_str() == name);
        found.ok_or_else(|| MediumFault(name.chars().take(64).collect()))
    }
}

/// What a crystal is shown, the same on every request.
#[derive(Debug, Clone, PartialEq)]
pub struct Presentation {
    /// In stable order.
    pub tools: Vec<ToolDefinition>,
    /// The capabilities in words, for a crystal that is offered no tools.
    pub text: Option<String>,
}

/// What one call of an utterance asks for.
#[derive(Debug)]
pub enum CallTarget {
    /// A gate, with the arguments as they came.
    Gate(Value),
    /// A program to be run.
    Program(String),
    Refused(Refusal),
}

/// What an entity's sandbox is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxOptions {
    /// Where its random numbers begin.
    pub seed: u64,
    /// The variable `context`.
    pub context: Option<Value>,
}

/// Where an entity acts.
///
/// One value serves every entity of a process; what an entity changes is in its [`Sandbox`]. Nothing here executes a
/// gate.
///
/// It has four duties: it presents, executes, observes and isolates. How an output reads is the same for all unless a
/// medium says otherwise; the others it says itself.
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
/// Who leaves a duty out has no medium:
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

    /// Presents: the tools a crystal is offered. A pure function of the circle and the mode.
    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation;

    /// Executes: what a call of the utterance asks for.
    fn interpret(&self, circle: &Circle, call: &GateCall) -> CallTarget;

    /// Observes: how the output of a program in turn `sequence` reads. A pure function.
    fn observe(&self, sequence: u64, output: &OutputRecord) -> String {
        render::output_text(output, sequence, self.kind().as_str())
    }

    /// Isolates: a sandbox of an entity's own, none where an utterance leaves nothing behind.
    fn isolate(&self, circle: &Circle, isolation: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal>;

    /// Whether these bytes are a [`Sandbox::snapshot`] that this version can load.
    fn can_restore(&self, snapshot: &[u8]) -> bool {
        let _ = snapshot;
        false
    }

    /// A sandbox as a [`Sandbox::snapshot`] of the same entity has it; none if it cannot be read here, by this version.
    /// Only what this process may trust is handed in: the bytes become a heap.
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

/// A future that may be sent, of something that lives as long as it must.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A sandbox at rest.
///
/// Each state is a value of its own, so an answer cannot reach a sandbox that waits for none and a second program cannot
/// begin inside the first. Dropping any of them, or a future of theirs, frees the sandbox; whatever program was in it
/// runs no further.
pub trait Sandbox: Send + fmt::Debug {
    /// Runs a program until it calls a gate or ends.
    fn start(self: Box<Self>, program: Program) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>>;

    /// Everything a program can find in it, as bytes; none where programs have to be run again instead.
    fn snapshot(&mut self) -> BoxFuture<'_, Option<Arc<[u8]>>> {
        Box::pin(std::future::ready(None))
    }
}

/// A program that waits for the answer to a call.
pub trait PausedProgram: Send + fmt::Debug {
    fn call(&self) -> &ProgramCall;

    /// Answers at this reading of the clock, and runs the program on.
    fn resume(
        self: Box<Self>,
        answer: Answer,
        now: Timestamp,
    ) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>>;

    /// Ends the program here; what it printed so far is its output.
    fn cancel(self: Box<Self>) -> BoxFuture<'static, Result<ProgramEvent, SandboxError>>;
}

/// A program, with the name its errors show and the reading of the clock it starts at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    pub source: String,
    pub now: Timestamp,
}

/// How far a program has come.
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
    /// Processor time that it took since it started, the time spent in gates not counted.
    pub cpu: Duration,
    /// For the next program; none if this one was rolled back and the sandbox has to be rebuilt without it.
    pub sandbox: Option<Box<dyn Sandbox>>,
}

/// A call in a program: the arguments by name, or what is wrong with them.
#[derive(Debug, Clone, PartialEq)]
pub struct ProgramCall {
    pub gate: String,
    pub arguments: Result<Map<String, Value>, arguments::Fault>,
}

/// What a call in a program gets back.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// It returns this.
    Value(Value),
    /// It returns a list in which some places hold an error instead of a value: the answer of a batch. A medium whose
    /// language has no errors that are values shows them as [`Answer::with_plain_errors`] does.
    List(Vec<Result<Value, ReplyException>>),
    /// It throws this.
    Throw(ReplyException),
    /// The program stops where it stands: `done` was accepted, or a fork leaves it here. Nothing can catch that.
    Stop,
}

impl Answer {
    /// With every error in a list as the value `{"error": {type, code, message}}`, which is how records have it.
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

/// The sandbox cannot go on, through no fault of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// There is no room for it now.
    #[error("no sandbox can be started now")]
    Overloaded,
    /// It stopped; it can be rebuilt from the loom.
    #[error("the sandbox stopped")]
    Stopped,
    /// What it lived in is gone, and it had no part in that: rebuilt, it can be asked the same again.
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
            // Nothing can be called without a tool or a program: naming gates would only invite to try.
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
