//! The end of a program, and a place in it.

use cantrip_reply::{AnyCode, Refusal, codes};

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
    pub(crate) fn of_byte(source: &str, at: usize) -> Self {
        let before = &source[..source.floor_char_boundary(at)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        Self { line: u32::try_from(line).unwrap_or(u32::MAX), column: u32::try_from(column).ok() }
    }
}
