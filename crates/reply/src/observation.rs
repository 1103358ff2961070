//! What does the entity get back from a gate?
//!
//! An observation: the request, its result, and the reply's type and code. For a success the result is the value that
//! the gate returned; otherwise it is one text that names the code, the cause and the next step. Error prose in the
//! gate's own words was rejected: a model that cannot distinguish its own mistake from a broken machine tries the same
//! again.

use cantrip_canon::Redactor;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::builder::Reply;
use crate::code::{Advice, AnyCode, ReplyType};
use crate::guard::Meta;
use crate::limits::OBSERVATION_TEXT_BYTES_MAX;
use crate::message::cut;

/// The type and code of a reply, as records store them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ReplySummary {
    #[serde(rename = "type")]
    pub reply_type: ReplyType,
    pub code: AnyCode,
}

impl From<&Reply> for ReplySummary {
    fn from(reply: &Reply) -> Self {
        Self { reply_type: reply.reply_type(), code: reply.code() }
    }
}

/// The request of the entity to a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateRequest {
    pub gate: String,
    pub args: Value,
    pub tool_call_id: Option<String>,
}

/// One gate call as the entity sees it. The keys are serialized in this order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Observation {
    pub gate: String,
    pub args: Value,
    pub result: Value,
    pub is_error: bool,
    pub tool_call_id: Option<String>,
    pub reply: ReplySummary,
}

impl Observation {
    /// Makes the observation of this reply. Arguments are redacted: a key that an entity wrote there must not come back
    /// to it from a record.
    pub fn from_reply(asked: GateRequest, reply: &Reply, meta: &Meta, redactor: &Redactor) -> Self {
        let result = match refusal_text(reply, meta) {
            Some(text) => Value::String(text),
            None => match reply.value() {
                Some(value) => value.clone(),
                None => Value::Object(reply.data().clone()),
            },
        };
        Self {
            gate: redactor.redact_text(&asked.gate).into_owned(),
            args: redactor.redact_value(&asked.args),
            result,
            is_error: !reply.reply_type().is_success(),
            tool_call_id: asked.tool_call_id,
            reply: ReplySummary::from(reply),
        }
    }
}

/// The text that a model reads when a reply is not a success; none for a success.
///
/// A message that is too long is truncated so that the sentence with the advice stays whole.
pub fn refusal_text(reply: &Reply, meta: &Meta) -> Option<String> {
    let advice = reply.advice()?;
    let head = format!("{} {}: ", reply.reply_type().word(), reply.code());
    let trace_id = meta.trace_id();
    let tail = match advice {
        Advice::FixAndRetry => ". Fix the arguments and retry.".to_owned(),
        Advice::AskScope => ". Do not retry; ask for scope.".to_owned(),
        Advice::Stop => format!(". Stop; trace id {trace_id}."),
        Advice::Wait => format!(". Temporary; do not retry at once; trace id {trace_id}."),
    };
    let message = reply.message();
    let room = OBSERVATION_TEXT_BYTES_MAX.saturating_sub(head.len() + tail.len());
    Some(format!("{head}{}{tail}", cut(&message, room)))
}

/// The exception that a code medium throws when a reply is not a success.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplyException {
    pub message: String,
    #[serde(rename = "type")]
    pub reply_type: ReplyType,
    pub code: AnyCode,
    pub retry: Advice,
    pub data: Map<String, Value>,
}

impl ReplyException {
    /// Makes the exception for this reply; none for a success.
    pub fn from_reply(reply: &Reply, meta: &Meta) -> Option<Self> {
        Some(Self {
            message: refusal_text(reply, meta)?,
            reply_type: reply.reply_type(),
            code: reply.code(),
            retry: reply.advice()?,
            data: reply.data().clone(),
        })
    }
}
