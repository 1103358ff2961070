//! How a program ended, in the terms of a reply.
//!
//! What an entity reads of a program's end is its output. A reader of the record branches on type and code instead, as
//! for every gate call, so each medium says here which code its end has.

use cantrip_reply::{AnyCode, Refusal, codes};
use serde_json::Value;

use crate::MediumKind;
use crate::limits::PROGRAM_BYTES_MAX;

/// How a program came to its end.
#[derive(Debug)]
pub enum ProgramEnd {
    /// It ran to its last statement, or an accepted `done` stopped it.
    Completed,
    /// It does not compile, it threw, or it met a limit of its sandbox.
    Failed { refusal: Refusal, position: Option<Position> },
    /// It was stopped from outside. Whoever stopped it knows the reason.
    Cancelled,
}

impl ProgramEnd {
    /// The code of its reply; none if whoever stopped it decides that.
    pub fn code(&self) -> Option<AnyCode> {
        match self {
            Self::Completed => Some(codes::GATE_OK.any()),
            Self::Failed { refusal, .. } => Some(refusal.code()),
            Self::Cancelled => None,
        }
    }
}

/// A place in a program, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    pub line: u32,
    pub column: Option<u32>,
}

impl Position {
    /// The place of a byte in a text.
    pub(crate) fn of_byte(source: &str, at: usize) -> Self {
        let before = &source[..source.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        Self { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).ok() }
    }
}

/// The end of a program that ran into a limit, where the limit is known by the wards of its medium.
pub(crate) enum LimitMet {
    Heap(usize),
    Stack(usize),
    CpuMs(u64),
    WallMs(u64),
    Output(usize),
}

impl LimitMet {
    pub(crate) fn end(self, position: Option<Position>) -> ProgramEnd {
        let refusal = match self {
            Self::Heap(bytes) => codes::memory_limit(bytes, "heap").into(),
            Self::Stack(bytes) => codes::memory_limit(bytes, "stack").into(),
            Self::CpuMs(ms) => codes::time_limit(ms, "cpu").into(),
            Self::WallMs(ms) => codes::time_limit(ms, "wall").into(),
            Self::Output(bytes) => codes::output_limit(bytes).into(),
        };
        ProgramEnd::Failed { refusal, position }
    }
}

/// The end of a program that does not compile: nothing of it ran.
pub(crate) fn syntax_error_end(medium: MediumKind, detail: &str, position: Option<Position>) -> ProgramEnd {
    let refusal = codes::code_syntax(medium.as_str(), line(position, None), detail).into();
    ProgramEnd::Failed { refusal, position }
}

/// The end of a program that is longer than any may be.
pub(crate) fn too_long(bytes: usize) -> ProgramEnd {
    let refusal = codes::limit("the length of the program", bytes, PROGRAM_BYTES_MAX).into();
    ProgramEnd::Failed { refusal, position: None }
}

/// The end of a program that threw. `elsewhere` names the line of an earlier program, for a function that stands there.
pub(crate) fn exception_end(
    name: &str,
    message: &str,
    position: Option<Position>,
    elsewhere: Option<String>,
) -> ProgramEnd {
    let error = if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") };
    ProgramEnd::Failed { refusal: codes::code_threw(error, line(position, elsewhere)).into(), position }
}

/// What the message says about the line; a value that is thrown and is no error has none.
fn line(position: Option<Position>, elsewhere: Option<String>) -> Value {
    match position {
        Some(position) => Value::from(position.line),
        None => Value::String(elsewhere.unwrap_or_else(|| "unknown".to_owned())),
    }
}
