//! The output of a program.

use cantrip_circle::code::Limit;
use serde::{Deserialize, Serialize};

/// The kind of fault that ended a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The program does not compile (WA-PARSE-I-002); none of it ran.
    Syntax,
    /// The program did not catch an exception (WA-EXEC-I-001).
    Threw,
    /// A promise was rejected and had no handler (WA-EXEC-I-001).
    Unhandled,
    /// The value of the program, or an `await` at top level, is a promise that nothing can settle any more
    /// (WA-EXEC-I-001).
    Unsettled,
}

/// The location of a fault in the entity's programs; lines and columns count from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLocation {
    /// The name of the program, such as `turn-3.js`. It can be an earlier program, whose function was called.
    pub program: String,
    pub line: u32,
    /// Known only for the program that ran.
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

/// The output of a program. The same program from the same state, with the same answers and clock readings, has the
/// same output.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgramOutput {
    /// The printed lines, each with its line feed, up to the limit of what is shown.
    pub console: String,
    /// The completion value as text; `None` for `undefined` and for a program that did not complete.
    pub value: Option<String>,
    pub error: Option<Error>,
    /// The number of bytes of console and value that are not shown.
    pub cut: u64,
    pub limit: Option<Limit>,
    /// The location at which a limit stopped the program, if the engine knows it.
    pub stopped_at: Option<SourceLocation>,
    /// True if the sandbox is gone and has to be rebuilt without this program. The calls that the program made remain
    /// recorded.
    pub rolled_back: bool,
    /// True if the program was stopped by an answer that ends it, such as an accepted `done`.
    pub stopped: bool,
}
