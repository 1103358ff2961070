//! What is said between a medium and the place where its interpreters live.
//!
//! The place may be a thread or another process, so everything here is data. Values travel as JSON text: the frames
//! around them are read by position, and a reader of frames must not care how deep a value is.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits;

/// Both ends must speak this; a worker says it first.
pub(super) const PROTOCOL: u32 = 2;

/// The wards of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramLimits {
    pub memory_bytes: usize,
    pub cpu_ms: u64,
    /// Outside of gates.
    pub wall_ms: u64,
    /// Counted in levels of recursion, each as [`limits::PYTHON_LEVEL_BYTES`].
    pub stack_bytes: usize,
    pub output_shown_bytes: usize,
    pub output_bytes: usize,
}

impl Default for ProgramLimits {
    fn default() -> Self {
        Self {
            memory_bytes: limits::HEAP_BYTES,
            cpu_ms: limits::CPU_MS,
            wall_ms: limits::WALL_MS,
            stack_bytes: limits::STACK_BYTES,
            output_shown_bytes: limits::OUTPUT_SHOWN_BYTES,
            output_bytes: limits::OUTPUT_BYTES_MAX,
        }
    }
}

/// What a session is made from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct SandboxSpec {
    /// Where the sequence of `rand` begins.
    pub seed: u64,
    pub limits: ProgramLimits,
    /// The names that are bound to gates, in the order by which calls name them.
    pub gates: Vec<String>,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub source: String,
    pub now_ms: i64,
    /// The variables that it finds beside those of earlier ones: an object, as JSON.
    pub variables: Option<String>,
}

/// What a place is asked. Every question but the last two is answered by one [`Message`], in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Command {
    /// A new session, or one as this snapshot has it.
    Open {
        id: u64,
        spec: SandboxSpec,
        snapshot: Option<Vec<u8>>,
    },
    Run {
        id: u64,
        program: Program,
    },
    Answer {
        id: u64,
        answer: CallAnswer,
        now_ms: i64,
    },
    Dump {
        id: u64,
    },
    /// The program that it runs ends; one that waits for an answer is ended by [`Given::Cancel`].
    Cancel {
        id: u64,
    },
    Free {
        id: u64,
    },
}

/// What a call gets back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum CallAnswer {
    /// JSON.
    Value(String),
    /// The text of a `RuntimeError`.
    Raise(String),
    /// The program is dropped where it stands.
    Stop,
    /// The same, and it did not end by its own will.
    Cancel,
}

/// What a place answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Said once, unasked.
    Hello {
        protocol: u32,
        dump_version: u16,
        counts: bool,
    },
    /// Whether the session stands.
    Opened(bool),
    Called {
        gate: u32,
        passed: Result<PassedArguments, JsonFault>,
    },
    Finished(ProgramOutput),
    /// None if it has no snapshot now.
    Dumped(Option<Vec<u8>>),
    /// The interpreter broke, or there is no such session.
    Lost,
}

/// The arguments of a call, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PassedArguments {
    /// An array.
    pub positional: String,
    /// An array of pairs.
    pub keywords: String,
}

/// A value that JSON cannot hold, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JsonFault {
    pub path: String,
    pub rule: JsonRule,
}

/// What JSON asks of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JsonRule {
    Function,
    Object(Kind),
    Key,
    NotFinite,
    BigInteger,
    Cycle,
    TooDeep,
    TooLarge,
}

/// What a value is that no JSON can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Bytes,
    Set,
    Date,
    Exception,
    Type,
    Path,
    File,
    Instance,
    Ellipsis,
    Other,
}

/// A bound of the sandbox that a program ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    Memory,
    /// Recursion, and the program did not catch the error.
    Stack,
    Cpu,
    Wall,
    Output,
    Cancelled,
}

impl Limit {
    /// Whether a program is stopped here at a point that no second run would reach.
    pub fn rolls_back(self) -> bool {
        match self {
            Self::Memory | Self::Cpu | Self::Wall | Self::Cancelled => true,
            Self::Stack | Self::Output => false,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Stack => "stack",
            Self::Cpu => "cpu",
            Self::Wall => "wall",
            Self::Output => "output",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a program left.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct ProgramOutput {
    pub console: String,
    /// How its last expression shows itself; none for `None`.
    pub value: Option<String>,
    pub error: Option<RaisedError>,
    pub cut: u64,
    pub limit: Option<Limit>,
    /// Where a limit stopped it: line and column in this program, from 1.
    pub stopped_at: Option<(u32, u32)>,
    /// It was stopped by an answer that ends it.
    pub stopped: bool,
    /// Processor time.
    pub cpu_us: u64,
}

impl ProgramOutput {
    pub(super) fn rolled_back(&self) -> bool {
        self.limit.is_some_and(Limit::rolls_back)
    }
}

/// The exception that ended a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RaisedError {
    /// The program does not compile; nothing of it ran.
    pub uncompiled: bool,
    pub name: String,
    pub message: String,
    /// Line and column in this program, from 1.
    pub place: Option<(u32, u32)>,
}

/// Writes one frame: its length, then itself.
pub(super) fn write<T: Serialize>(to: &mut impl Write, frame: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(frame).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a frame is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads one frame; none at the end.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > limits::WORKER_FRAME_BYTES_MAX {
        return Err(io::Error::other("a frame is too long"));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Ok(None);
    }
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}
