//! The end of a program, as a record and as a reply.
//!
//! An entity reads the end of a program in its output. A reader of the record branches on type and code instead, as for
//! every gate call, so the ends of all languages are mapped to codes here.

use std::time::Duration;

use cantrip_loom::{OutputRecord, ProgramError};
use cantrip_reply::{Refusal, codes};
use serde_json::Value;

use super::{Limit, ProgramLimits};
use crate::limits::PROGRAM_BYTES_MAX;
use crate::medium::{FinishedProgram, ProgramEvent, Sandbox};
use crate::{MediumKind, Position, ProgramEnd};

/// The output of a program, in the terms that all languages share.
#[derive(Debug, Default)]
pub struct ProgramResult {
    /// The printed lines, up to the limit of what is shown.
    pub console: String,
    /// The value of the program as text.
    pub value: Option<String>,
    pub error: Option<Exception>,
    /// The number of bytes of console and value that are not shown.
    pub cut: u64,
    pub limit: Option<Limit>,
    /// The position in this program at which a limit stopped it.
    pub stopped_at: Option<Position>,
}

/// The exception that ended a program.
#[derive(Debug)]
pub struct Exception {
    /// True if the program does not compile; none of it ran.
    pub uncompiled: bool,
    pub name: String,
    pub message: String,
    /// The position in this program.
    pub position: Option<Position>,
    /// The line of an earlier program whose function threw.
    pub elsewhere: Option<String>,
}

impl ProgramResult {
    /// Ends a program of this language under these limits.
    pub fn finish(
        self,
        language: MediumKind,
        limits: &ProgramLimits,
        cpu: Duration,
        sandbox: Option<Box<dyn Sandbox>>,
    ) -> FinishedProgram {
        let end = self.end(language, limits);
        FinishedProgram { output: self.into_record(), end, cpu, sandbox }
    }

    fn end(&self, language: MediumKind, limits: &ProgramLimits) -> ProgramEnd {
        let position = self.error.as_ref().and_then(|error| error.position);
        if let Some(limit) = self.limit {
            return match limits.refusal(limit) {
                Some(refusal) => ProgramEnd::Failed { refusal, position: position.or(self.stopped_at) },
                None => ProgramEnd::Cancelled,
            };
        }
        let Some(error) = &self.error else { return ProgramEnd::Completed };
        let refusal = match (error.uncompiled, error.message.as_str()) {
            (true, message) => syntax_refusal(language, message, position),
            (false, "") => codes::code_threw(error.name.clone(), line(position, &error.elsewhere)).into(),
            (false, message) => {
                codes::code_threw(format!("{}: {message}", error.name), line(position, &error.elsewhere)).into()
            }
        };
        ProgramEnd::Failed { refusal, position }
    }

    fn into_record(self) -> OutputRecord {
        let error = self.error.map(|Exception { name, message, position, .. }| ProgramError {
            name,
            message,
            line: position.map(|position| position.line),
            column: position.and_then(|position| position.column),
        });
        OutputRecord {
            tool_call_id: None,
            clock_ms: None,
            console: self.console.lines().map(str::to_owned).collect(),
            value: self.value,
            error,
            cut: self.cut,
            limit: self.limit.map(|limit| limit.as_str().to_owned()),
            rolled_back: self.limit.is_some_and(Limit::rolls_back),
            environment_lost: None,
            left: None,
            reply: None,
        }
    }
}

fn syntax_refusal(language: MediumKind, detail: &str, position: Option<Position>) -> Refusal {
    codes::code_syntax(language.as_str(), line(position, &None), detail).into()
}

/// Returns the line for the message. A thrown value that is not an error has no line.
fn line(position: Option<Position>, elsewhere: &Option<String>) -> Value {
    match position {
        Some(position) => Value::from(position.line),
        None => Value::String(elsewhere.clone().unwrap_or_else(|| "unknown".to_owned())),
    }
}

/// The reason why a text is not a program. None of it runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    #[error("the program has {bytes} bytes, the limit is {}", PROGRAM_BYTES_MAX)]
    TooLong { bytes: usize },
    /// A NUL character, at which an engine would end the text.
    #[error("the program holds a NUL character at byte {at}")]
    Nul { at: usize },
}

impl ProgramFault {
    /// Checks a text before it is parsed.
    pub fn check(source: &str) -> Result<(), Self> {
        if source.len() > PROGRAM_BYTES_MAX {
            return Err(Self::TooLong { bytes: source.len() });
        }
        source.find('\0').map_or(Ok(()), |at| Err(Self::Nul { at }))
    }

    /// Ends the program before it begins; the sandbox stays as it is.
    pub fn finish(&self, language: MediumKind, source: &str, sandbox: Box<dyn Sandbox>) -> ProgramEvent {
        let message = self.to_string();
        let (refusal, position) = match *self {
            Self::TooLong { bytes } => {
                (codes::limit("the length of the program", bytes, PROGRAM_BYTES_MAX).into(), None)
            }
            Self::Nul { at } => {
                let position = Some(Position::of_byte(source, at));
                (syntax_refusal(language, &message, position), position)
            }
        };
        let name = "SyntaxError".to_owned();
        let error = Exception { uncompiled: true, name, message, position: None, elsewhere: None };
        let output = ProgramResult { error: Some(error), ..ProgramResult::default() }.into_record();
        let end = ProgramEnd::Failed { refusal, position };
        ProgramEvent::Finished(FinishedProgram { output, end, cpu: Duration::ZERO, sandbox: Some(sandbox) })
    }
}
