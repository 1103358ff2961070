//! The protocol between a medium and the workers that hold its interpreters.
//!
//! A worker may be a thread or another process, so everything here is data. Values are sent as JSON text inside of the
//! frames: frames are decoded by position, and the decoding of frames must not depend on the depth of a value.

use std::io::{self, Read, Write};

use cantrip_circle::code::{Limit, ProgramLimits};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits;

/// The protocol version, which both ends must share; a worker sends it first.
pub(super) const PROTOCOL: u32 = 2;

/// The specification that a session is created from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct SandboxSpec {
    /// The seed of `rand`.
    pub seed: u64,
    pub limits: ProgramLimits,
    /// The names that are bound to gates. Calls refer to a gate by its index in this list.
    pub gates: Vec<String>,
}

/// A program, with its clock reading and its new variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub source: String,
    pub now_ms: i64,
    /// Variables in addition to those of earlier programs: a JSON object.
    pub variables: Option<String>,
}

/// A command to a worker. Every command except `Cancel` and `Free` is answered by one [`Message`], in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Command {
    /// Opens a new session, or restores one from this snapshot.
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
    /// Ends the running program of a session. A program that waits for an answer is ended by [`CallAnswer::Cancel`].
    Cancel {
        id: u64,
    },
    Free {
        id: u64,
    },
}

/// The answer to a gate call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum CallAnswer {
    /// The call returns this value, as JSON.
    Value(String),
    /// The call raises a `RuntimeError` with this text.
    Raise(String),
    /// The program is dropped at this call.
    Stop,
    /// The program is dropped at this call because it was cancelled.
    Cancel,
}

/// A message from a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Message {
    /// Sent once, at the start, without a command.
    Hello {
        protocol: u32,
        dump_version: u16,
        counts: bool,
    },
    /// True if the session was opened.
    Opened(bool),
    Called {
        gate: u32,
        passed: Result<PassedArguments, JsonFault>,
    },
    Finished(ProgramOutput),
    /// `None` if there is no snapshot of the session now.
    Dumped(Option<Vec<u8>>),
    /// The interpreter broke, or the session does not exist.
    Lost,
    /// Sent instead of `Hello`: the worker got no thread for its sessions, for this reason.
    NoThread(String),
}

/// The arguments of a call, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PassedArguments {
    /// A JSON array.
    pub positional: String,
    /// A JSON array of pairs.
    pub keywords: String,
}

/// A value that JSON cannot represent, and its path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JsonFault {
    pub path: String,
    pub rule: JsonRule,
}

/// The JSON rule that a value violates.
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

/// The kind of a value that JSON cannot represent.
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

/// The output of a program.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct ProgramOutput {
    pub console: String,
    /// The text of the last expression; `None` if its value is Python's `None`.
    pub value: Option<String>,
    pub error: Option<RaisedError>,
    pub cut: u64,
    pub limit: Option<Limit>,
    /// The line and column at which a limit stopped this program, counted from 1.
    pub stopped_at: Option<(u32, u32)>,
    /// True if the program was stopped by an answer that ends it.
    pub stopped: bool,
    /// Processor time in microseconds.
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
    /// True if the program does not compile; none of it ran.
    pub uncompiled: bool,
    pub name: String,
    pub message: String,
    /// The line and column in this program, counted from 1.
    pub place: Option<(u32, u32)>,
}

/// Writes one frame: its length, then its bytes.
pub(super) fn write<T: Serialize>(to: &mut impl Write, frame: &T) -> io::Result<()> {
    let bytes = postcard::to_stdvec(frame).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("a frame is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads one frame; returns `None` at the end of the input.
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
