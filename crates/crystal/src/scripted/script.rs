//! What does a script contain? Its responses, as values.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::Value;

/// A tape of responses, played from the first to the last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    pub name: Option<String>,
    pub responses: Vec<Response>,
    /// The usage of each response that has none of its own.
    pub usage: Option<Usage>,
}

impl Script {
    pub fn new(responses: impl IntoIterator<Item = Response>) -> Self {
        Self { name: None, responses: responses.into_iter().collect(), usage: None }
    }
}

/// The response to one request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    pub content: Option<String>,
    /// The pieces in which the content is streamed. None streams it word by word.
    pub chunks: Option<Vec<String>>,
    pub thinking: Option<String>,
    pub calls: Vec<ScriptedCall>,
    /// A program: a call of the code tool, or a fenced block if no code tool is offered.
    pub code: Option<String>,
    pub usage: Option<Usage>,
    /// The failure of the attempt, after the rest of the response was streamed.
    pub error: Option<ScriptedError>,
    /// The wait before the first piece.
    pub delay: Duration,
    /// The wait between two pieces.
    pub pace: Duration,
    /// The number of pieces after which the stream breaks off.
    pub break_after: Option<usize>,
    /// The finish reason. None derives it from the response.
    pub finish: Option<Finish>,
    /// The model's name. None uses the name of the script.
    pub model: Option<String>,
    /// The parts that a provider would want back.
    pub parts: Option<Value>,
}

/// A call as written in a script.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedCall {
    /// None generates an id, as for a provider that gives none.
    pub id: Option<String>,
    pub gate: String,
    /// An object, or a string that is sent unchanged, whether or not it is JSON.
    pub args: Value,
}

/// The kind of failure of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedError {
    Status { status: u16, message: String, retry_after: Option<Duration> },
    Unreachable { message: String },
    TimedOut { after: Duration },
    ContextTooLong { tokens: Option<u64>, window: Option<u64> },
    Refused { message: String },
}

impl Response {
    /// Creates a response of text only.
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    /// Creates a response with one call.
    pub fn call(id: impl Into<String>, gate: impl Into<String>, args: Value) -> Self {
        Self::default().and_call(id, gate, args)
    }

    /// Adds a call.
    #[must_use]
    pub fn and_call(mut self, id: impl Into<String>, gate: impl Into<String>, args: Value) -> Self {
        self.calls.push(ScriptedCall { id: Some(id.into()), gate: gate.into(), args });
        self
    }

    /// Creates a response with a program.
    pub fn code(code: impl Into<String>) -> Self {
        Self { code: Some(code.into()), ..Self::default() }
    }

    /// Creates an attempt that fails with this status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        let error = ScriptedError::Status { status, message: message.into(), retry_after: None };
        Self { error: Some(error), ..Self::default() }
    }

    #[must_use]
    pub fn with_usage(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }
}
