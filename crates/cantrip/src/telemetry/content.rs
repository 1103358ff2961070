//! Messages and calls in the format of OpenTelemetry's conventions for generative AI.

use cantrip_loom::{Content, Finish, GateCall, Message};
use serde_json::{Value, json};

pub(super) fn text(content: &str) -> Value {
    json!({"type": "text", "content": content})
}

/// Returns the answer of a cast as a part of a message: a text as it is, any other value as JSON.
pub(super) fn answer_part(answer: &Value) -> Value {
    match answer.as_str() {
        Some(answer) => text(answer),
        None => text(&answer.to_string()),
    }
}

/// Returns a finish reason in the words of the conventions. Every span uses these.
pub(super) fn finish(finish: &Finish) -> &str {
    match finish {
        Finish::Stop => "stop",
        Finish::Calls => "tool_call",
        Finish::Length => "length",
        Finish::Refusal => "content_filter",
        Finish::Other(word) => word,
    }
}

pub(super) fn call_json(call: &GateCall) -> Value {
    json!({"type": "tool_call", "id": call.tool_call_id, "name": call.gate, "arguments": call.args})
}

pub(super) fn parts(content: &Content) -> Vec<Value> {
    vec![text(&content.text())]
}

/// Returns a message in the format of the conventions.
pub(super) fn message(message: &Message) -> Value {
    match message {
        Message::System { content } => json!({"role": "system", "parts": parts(content)}),
        Message::User { content } => json!({"role": "user", "parts": parts(content)}),
        Message::Assistant { content, calls, .. } => {
            let said = content.iter().flat_map(parts);
            json!({"role": "assistant", "parts": said.chain(calls.iter().map(call_json)).collect::<Vec<_>>()})
        }
        Message::Tool { tool_call_id, content, .. } => {
            let part = json!({"type": "tool_call_response", "id": tool_call_id, "response": content.text()});
            json!({"role": "tool", "parts": [part]})
        }
    }
}
