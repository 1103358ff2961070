//! The end of a program, as a reply.
//!
//! An entity reads the end of a program in its output. A reader of the record branches on type and code instead, as for
//! every gate call, so each medium maps its ends to codes here.

use cantrip_reply::{AnyCode, Refusal, codes};
use serde_json::Value;

use crate::MediumKind;
use crate::limits::PROGRAM_BYTES_MAX;

/// The way in which a program ended.
#[derive(Debug)]
pub enum ProgramEnd {
    /// The program ran to its last statement, or an accepted `done` stopped it.
    Completed,
    /// The program does not compile, threw, or reached a limit of its sandbox.
    Failed { refusal: Refusal, position: Option<Position> },
    /// The program was stopped from outside. The code that stopped it knows the reason.
    Cancelled,
}

impl ProgramEnd {
    /// Returns the code of the reply; none if the code that stopped the program decides that.
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
    /// Returns the position of a byte in a text.
    pub fn of_byte(source: &str, at: usize) -> Self {
        let before = &source[..source.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        Self { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).ok() }
    }
}

/// A limit of the medium's wards that a program reached, with its value.
#[derive(Debug, Clone, Copy)]
pub enum LimitMet {
    Heap(usize),
    Stack(usize),
    CpuMs(u64),
    WallMs(u64),
    Output(usize),
}

impl LimitMet {
    pub fn end(self, position: Option<Position>) -> ProgramEnd {
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

/// Returns the end of a program that does not compile: no part of it ran.
pub fn syntax_error_end(medium: MediumKind, detail: &str, position: Option<Position>) -> ProgramEnd {
    let refusal = codes::code_syntax(medium.as_str(), line(position, None), detail).into();
    ProgramEnd::Failed { refusal, position }
}

/// Returns the end of a program that exceeds the maximum length.
pub fn too_long(bytes: usize) -> ProgramEnd {
    let refusal = codes::limit("the length of the program", bytes, PROGRAM_BYTES_MAX).into();
    ProgramEnd::Failed { refusal, position: None }
}

/// Returns the end of a program that threw. `elsewhere` names the line of an earlier program that defines the function.
pub fn exception_end(name: &str, message: &str, position: Option<Position>, elsewhere: Option<String>) -> ProgramEnd {
    let error = if message.is_empty() { name.to_owned() } else { format!("{name}: {message}") };
    ProgramEnd::Failed { refusal: codes::code_threw(error, line(position, elsewhere)).into(), position }
}

/// Returns the line for the message. A thrown value that is not an error has no line.
fn line(position: Option<Position>, elsewhere: Option<String>) -> Value {
    match position {
        Some(position) => Value::from(position.line),
        None => Value::String(elsewhere.unwrap_or_else(|| "unknown".to_owned())),
    }
}
