//! What a program leaves behind.

use serde::{Deserialize, Serialize};

/// A bound of the sandbox that a program ran into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The heap (MCP-EXEC-I-001).
    Memory,
    /// The interpreter's stack, and the program did not catch the error (MCP-EXEC-I-001).
    Stack,
    /// Processor time (MCP-EXEC-I-002).
    Cpu,
    /// Wall time outside of gates (MCP-EXEC-I-002).
    Wall,
    /// The hard cap on output (MCP-EXEC-I-003).
    Output,
    /// Ended from outside: cancellation, deadline, the parent's end.
    Cancelled,
}

impl Limit {
    /// Whether a program is stopped here at a point that no second run would reach, so that the sandbox has to go back
    /// to where it was before the program.
    pub fn rolls_back(self) -> bool {
        match self {
            Self::Memory | Self::Cpu | Self::Wall | Self::Cancelled => true,
            Self::Stack | Self::Output => false,
        }
    }
}

/// What kind of fault ended a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// It does not compile (WA-PARSE-I-002); nothing of it ran.
    Syntax,
    /// An exception that it did not catch (WA-EXEC-I-001).
    Threw,
    /// A promise was rejected and nobody handled it (WA-EXEC-I-001).
    Unhandled,
    /// Its value, or an `await` at top level, is a promise that nothing can settle any more (WA-EXEC-I-001).
    Unsettled,
}

/// Where in the entity's programs a fault arose; counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    /// The program's name, such as `turn-3.js`: a function may come from an earlier one.
    pub program: String,
    pub line: u32,
    /// Known within the program that ran.
    pub column: Option<u32>,
}

/// The error that ended a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    pub fault: Fault,
    pub name: String,
    pub message: String,
    pub place: Option<SourceLocation>,
}

/// What a program left: the same program from the same state, with the same answers and readings, leaves the same.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgramOutput {
    /// Lines printed, each with its line feed, up to the limit of what is shown.
    pub console: String,
    /// The completion value as text; `None` for `undefined` and for a program that did not come to its end.
    pub value: Option<String>,
    pub error: Option<Error>,
    /// Bytes of console and value that are not shown.
    pub cut: u64,
    pub limit: Option<Limit>,
    /// Where it stood when a limit stopped it, as far as the engine can tell.
    pub stopped_at: Option<SourceLocation>,
    /// The sandbox is gone and has to be rebuilt without this program; the calls it made stand.
    pub rolled_back: bool,
    /// It was stopped by an answer that ends the program, such as an accepted `done`.
    pub stopped: bool,
}
