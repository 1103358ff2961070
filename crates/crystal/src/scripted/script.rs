//! What does a script say? Its responses, as values.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::Value;

/// A tape of responses, played from the first to the last.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Script {
    pub name: Option<String>,
    pub responses: Vec<Response>,
    /// Of each response that has none of its own.
    pub usage: Option<Usage>,
}

impl Script {
    pub fn new(responses: impl IntoIterator<Item = Response>) -> Self {
        Self { name: None, responses: responses.into_iter().collect(), usage: None }
    }
}

/// What is said to one request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Response {
    pub content: Option<String>,
    /// The pieces the content is streamed in; else one word each.
    pub chunks: Option<Vec<String>>,
    pub thinking: Option<String>,
    pub calls: Vec<ScriptedCall>,
    /// A program: a call of the code tool, or a fenced block where none is offered.
    pub code: Option<String>,
    pub usage: Option<Usage>,
    /// The attempt fails, after whatever else the response says was streamed.
    pub error: Option<ScriptedError>,
    /// Before the first piece.
    pub delay: Duration,
    /// Between one piece and the next.
    pub pace: Duration,
    /// The stream breaks off after so many pieces.
    pub break_after: Option<usize>,
    /// Else it follows from what is said.
    pub finish: Option<Finish>,
    /// Else the script's name.
    pub model: Option<String>,
    /// What a provider would want back.
    pub parts: Option<Value>,
}

/// A call as a script asks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct ScriptedCall {
    /// None: one is made up, as for a provider that gives none.
    pub id: Option<String>,
    pub gate: String,
    /// An object; or a text, which is then sent as it is, whether or not it is JSON.
    pub args: Value,
}

/// How an attempt fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScriptedError {
    Status { status: u16, message: String, retry_after: Option<Duration> },
    Unreachable { message: String },
    TimedOut { after: Duration },
    ContextTooLong { tokens: Option<u64>, window: Option<u64> },
    Refused { message: String },
}

impl Response {
    /// A text and nothing else.
    pub fn text(content: impl Into<String>) -> Self {
        Self { content: Some(content.into()), ..Self::default() }
    }

    /// One call.
    pub fn call(id: impl Into<String>, gate: impl Into<String>, args: Value) -> Self {
        Self::default().and_call(id, gate, args)
    }

    /// The same response and one more call.
    #[must_use]
    pub fn and_call(mut self, id: impl Into<String>, gate: impl Into<String>, args: Value) -> Self {
        self.calls.push(ScriptedCall { id: Some(id.into()), gate: gate.into(), args });
        self
    }

    /// A program.
    pub fn code(code: impl Into<String>) -> Self {
        Self { code: Some(code.into()), ..Self::default() }
    }

    /// An attempt that fails with this status.
    pub fn error(status: u16, message: impl Into<String>) -> Self {
        let error = ScriptedError::Status { status, message: message.into(), retry_after: None };
        Self { error: Some(error), ..Self::default() }
    }

    #[must_use]
    pub fn with_usage(self, usage: Usage) -> Self {
        Self { usage: Some(usage), ..self }
    }
}
