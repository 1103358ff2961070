//! Reads the chunks of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Maker, ProviderParts, Usage};
use serde_json::{Map, Value, json};

use crate::assembler::{AnswerEnd, Assembler};
use crate::http::{ReadAnswer, Step, message, parse_json};
use crate::limits::ANSWER_BYTES_MAX;
use crate::{Answer, Cause, Charge, Failure};

/// Reads the chunks of one answer.
pub(super) struct AnswerReader<'a> {
    assembler: Assembler<'a>,
    maker: &'a Maker,
    model: String,
    finish: Option<Finish>,
    refused: bool,
    usage: Option<Usage>,
    /// Reasoning that only this provider can read, unmodified.
    details: Vec<Value>,
    details_bytes: usize,
    /// The last key given to a call whose provider sends no index.
    unnumbered: u64,
}

/// The first key for calls without an index: above every index that the protocol can carry in 32 bits.
const UNNUMBERED: u64 = 1 << 40;

impl<'a> AnswerReader<'a> {
    pub(super) fn new(said: Assembler<'a>, maker: &'a Maker, model: &str) -> Self {
        Self {
            assembler: said,
            maker,
            model: model.to_owned(),
            finish: None,
            refused: false,
            usage: None,
            details: Vec::new(),
            details_bytes: 0,
            unnumbered: UNNUMBERED,
        }
    }

    fn chunk(&mut self, chunk: &Value, part: &str) -> Result<(), Cause> {
        if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
            return Err(stream_error(error));
        }
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
        // Usage is cumulative: the last value counts.
        self.usage = usage(&chunk["usage"]).or(self.usage);
        let choice = &chunk["choices"][0];
        self.delta(&choice[part])?;
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(parse_finish(finish));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Value) -> Result<(), Cause> {
        let reasoning = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
        self.assembler.thinking(reasoning.unwrap_or_default())?;
        self.assembler.text(delta["content"].as_str().unwrap_or_default())?;
        if let Some(refusal) = delta["refusal"].as_str().filter(|refusal| !refusal.is_empty()) {
            self.refused = true;
            self.assembler.text(refusal)?;
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
            self.call(call)?;
        }
        Ok(())
    }

    fn call(&mut self, call: &Value) -> Result<(), Cause> {
        let (id, function) = (call["id"].as_str().filter(|id| !id.is_empty()), &call["function"]);
        let name = function["name"].as_str().filter(|name| !name.is_empty());
        let key = match call["index"].as_u64() {
            Some(index) => index,
            // A call without an index is complete, or continues the previous one.
            None => {
                self.unnumbered += u64::from(name.is_some());
                self.unnumbered
            }
        };
        self.assembler.call(key, id, name)?;
        match &function["arguments"] {
            Value::String(fragment) => self.assembler.arguments(key, fragment),
            Value::Null => Ok(()),
            whole @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                self.assembler.arguments_so_far(key, &whole.to_string())
            }
        }
    }
}

impl ReadAnswer for AnswerReader<'_> {
    fn read_event(&mut self, data: &str) -> Result<Step, Cause> {
        if data.trim() == "[DONE]" {
            return Ok(Step::End);
        }
        self.chunk(&parse_json(data)?, "delta").map(|()| Step::More)
    }

    fn read_whole(&mut self, body: &Value) -> Result<(), Cause> {
        self.chunk(body, "message")
    }

    fn finish(self) -> Result<Answer, Failure> {
        let Some(finish) = self.finish.clone() else {
            return Err(self.fail(Cause::Broken { detail: "the answer ended without saying why".into() }));
        };
        let details = (!self.details.is_empty()).then(|| json!({"reasoning_details": self.details}));
        let parts = details.map(|parts| ProviderParts { maker: self.maker.clone(), parts });
        let finish = if self.refused { Finish::Refusal } else { finish };
        self.assembler.finish(AnswerEnd { model: self.model, finish, usage: self.usage, parts })
    }

    fn fail(self, cause: Cause) -> Failure {
        self.assembler.fail(cause, self.usage.map_or(Charge::Unknown, Charge::Reported))
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
    let detail = message(error);
    let is = |word: &str| error["code"].as_str() == Some(word) || error["type"].as_str() == Some(word);
    // vLLM and similar servers have no error code for this case, only a sentence. It is worth matching, because the
    // cause leads to a fold.
    let says_too_long = || status == 400 && detail.contains("maximum context length");
    if is("context_length_exceeded") || is("exceed_context_size_error") || says_too_long() {
        let count = |key: &str| error[key].as_u64();
        return Cause::ContextTooLong { tokens: count("n_prompt_tokens"), window: count("n_ctx") };
    }
    if is("content_filter") || is("content_policy_violation") {
        return Cause::Refused { reason: detail.into() };
    }
    Cause::Status { status, detail: detail.into(), retry_after }
}
