//! Reads the chunks of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::{Map, Value, json};

use super::body::request_body;
use crate::Cause;
use crate::http::{AnswerDraft, Protocol, RequestBody, Step, context_too_long, message, parse_json};
use crate::limits::ANSWER_BYTES_MAX;

/// The chat completions protocol.
#[derive(Debug, Default)]
pub(crate) struct Chat {
    /// Reasoning that only this provider can read, unmodified.
    details: Vec<Value>,
    details_bytes: usize,
    /// The number of calls whose provider sends no index.
    unnumbered: u64,
    /// True if the answer came in one body, whose calls are complete and in order.
    is_whole: bool,
}

/// The first key for calls without an index: above every index that the protocol can carry in 32 bits.
const UNNUMBERED: u64 = 1 << 40;

impl Chat {
    fn chunk(&mut self, answer: &mut AnswerDraft<'_>, chunk: &Value, part: &str) -> Result<(), Cause> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(stream_error(error));
        }
        answer.set_model(&chunk["model"]);
        answer.set_usage(usage(&chunk["usage"]));
        let choice = &chunk["choices"][0];
        self.delta(answer, &choice[part])?;
        if let Some(finish) = choice["finish_reason"].as_str() {
            answer.finish = Some(parse_finish(finish));
        }
        Ok(())
    }

    fn delta(&mut self, answer: &mut AnswerDraft<'_>, delta: &Value) -> Result<(), Cause> {
        let reasoning = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
        answer.assembler.thinking(reasoning.unwrap_or_default())?;
        answer.assembler.text(delta["content"].as_str().unwrap_or_default())?;
        if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
            answer.refused = true;
            answer.assembler.text(refusal)?;
        }
        for detail in delta["reasoning_details"].as_array().into_iter().flatten() {
            self.details_bytes += detail.to_string().len();
            if self.details_bytes > ANSWER_BYTES_MAX {
                return Err(Cause::TooLarge { limit: ANSWER_BYTES_MAX, unit: "bytes" });
            }
            if !self.details.last_mut().is_some_and(|last| join_reasoning(last, detail)) {
                self.details.push(detail.clone());
            }
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            self.call(answer, call)?;
        }
        Ok(())
    }

    fn call(&mut self, answer: &mut AnswerDraft<'_>, call: &Value) -> Result<(), Cause> {
        let (id, function) = (call["id"].as_str().filter(|id| !id.is_empty()), &call["function"]);
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let key = match call["index"].as_u64() {
            Some(index) => index,
            // A call without an index is complete, or continues the previous one.
            None => {
                self.unnumbered += u64::from(name.is_some());
                UNNUMBERED + self.unnumbered
            }
        };
        // Some servers number the calls of an answer and give them all one id. Where their order is clear, the later ones
        // get an id of ours; otherwise the contract's rule about doubled ids ends the cast.
        let is_ordered = self.is_whole || call["index"].is_u64();
        let id = id.filter(|id| !(is_ordered && answer.assembler.has_other_call(key, id)));
        answer.assembler.call(key, id, name)?;
        match &function["arguments"] {
            Value::String(fragment) => answer.assembler.arguments(key, fragment),
            Value::Null => Ok(()),
            whole @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                answer.assembler.arguments_so_far(key, &whole.to_string())
            }
        }
    }
}

impl Protocol for Chat {
    const REQUEST_BODY: RequestBody = request_body;

    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause> {
        if data.trim() == "[DONE]" {
            return Ok(Step::End);
        }
        self.chunk(answer, &parse_json(data)?, "delta").map(|()| Step::More)
    }

    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause> {
        self.is_whole = true;
        self.chunk(answer, body, "message")
    }

    fn own_parts(self, _: &AnswerDraft<'_>) -> Option<Value> {
        (!self.details.is_empty()).then(|| json!({"reasoning_details": self.details}))
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        error_cause(status, body, retry_after)
    }
}

/// Joins a piece of reasoning with the piece that it continues, which has the same kind and the same index. Returns
/// true if it was joined.
fn join_reasoning(last: &mut Value, piece: &Value) -> bool {
    let same = |key: &str| last[key] == piece[key] || piece[key].is_null();
    let (Some(_), true) = (piece["index"].as_u64(), same("type") && last["index"] == piece["index"] && same("id"))
    else {
        return false;
    };
    let (Value::Object(last), Value::Object(piece)) = (last, piece) else { return false };
    for (key, value) in piece {
        match (key.as_str(), last.get_mut(key), value) {
            ("text" | "summary" | "data", Some(Value::String(before)), Value::String(more)) => before.push_str(more),
            (_, _, Value::Null) => {}
            _ => {
                last.insert(key.clone(), value.clone());
            }
        }
    }
    true
}

fn parse_finish(word: &str) -> Finish {
    match word {
        "stop" => Finish::Stop,
        "tool_calls" | "function_call" => Finish::Calls,
        "length" => Finish::Length,
        "content_filter" => Finish::Refusal,
        other => Finish::Other(other.chars().take(64).collect()),
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let usage = usage.as_object()?;
    let count = |usage: &Map<String, Value>, key: &str| usage.get(key).and_then(Value::as_u64);
    let detail = |of: &str, key: &str| usage.get(of).and_then(Value::as_object).and_then(|of| count(of, key));
    let (prompt, completion) = (count(usage, "prompt_tokens"), count(usage, "completion_tokens"));
    if prompt.is_none() && completion.is_none() {
        return None;
    }
    Some(Usage {
        prompt_tokens: prompt.unwrap_or(0),
        completion_tokens: completion.unwrap_or(0),
        cached_tokens: detail("prompt_tokens_details", "cached_tokens").unwrap_or(0),
        reasoning_tokens: detail("completion_tokens_details", "reasoning_tokens"),
        cache_write_tokens: None,
    })
}

/// Returns the cause for an error inside a stream that began well. Gateways put the status of the failed upstream into
/// its code.
fn stream_error(error: &Value) -> Cause {
    let status = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
    match status.filter(|status| (400..600).contains(status)) {
        Some(status) => error_cause(status, error, None),
        None => Cause::Broken { detail: message(error).into() },
    }
}

/// Returns the cause for an answer with an error status.
fn error_cause(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
    let error = body.get("error").unwrap_or(body);
    if let Some(cause) = context_too_long(status, error) {
        return cause;
    }
    let detail = message(error);
    let is = |word: &str| error["code"].as_str() == Some(word) || error["type"].as_str() == Some(word);
    if is("content_filter") || is("content_policy_violation") {
        return Cause::Refused { reason: detail.into() };
    }
    Cause::Status { status, detail: detail.into(), retry_after }
}
