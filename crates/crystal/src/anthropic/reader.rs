//! Reads the events of an answer.

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::{Value, json};

use super::body::request_body;
use crate::Cause;
use crate::http::{AnswerDraft, Protocol, RequestBody, Step, context_too_long, message, parse_json};
use crate::limits::ANSWER_CALLS_MAX;

/// The messages protocol.
///
/// Its thinking blocks, signed or redacted, are returned unmodified to the provider that made them, and to no other
/// provider. The provider itself drops the blocks that the requested model cannot read. The longest stable prefix of
/// each request is marked for the provider's cache.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    counted: Counted,
    /// The blocks that are not complete yet, by their index.
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
enum Open {
    Text,
    Call,
    /// A thinking block with its signature, both incomplete.
    Thinking {
        text: String,
        signature: String,
    },
    /// A block that is not read here. It is complete when it starts.
    Opaque,
}

/// The token counts of the provider. Its input count leaves out tokens that were read from the cache.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    input: u64,
    written: u64,
    read: u64,
    output: u64,
}

impl Counted {
    fn usage(self) -> Usage {
        let Self { input, written, read, output } = self;
        Usage {
            prompt_tokens: input.saturating_add(written).saturating_add(read),
            completion_tokens: output,
            cached_tokens: read,
            reasoning_tokens: None,
            cache_write_tokens: Some(written),
        }
    }
}

impl Messages {
    fn start(&mut self, answer: &mut AnswerDraft<'_>, index: u64, block: &Value) -> Result<(), Cause> {
        if self.open.len() > ANSWER_CALLS_MAX {
            return Err(Cause::TooLarge { limit: ANSWER_CALLS_MAX, unit: "blocks" });
        }
        let open = match block["type"].as_str() {
            Some("text") => {
                answer.assembler.end_block();
                answer.text(block["text"].as_str().unwrap_or_default())?;
                Open::Text
            }
            Some("tool_use") => {
                answer.order.call(answer.assembler.calls());
                answer.assembler.call(index, block["id"].as_str(), block["name"].as_str())?;
                // Without streaming the input is complete here. With streaming it is an empty object that the deltas
                // replace.
                if let Some(input) = block["input"].as_object().filter(|input| !input.is_empty()) {
                    answer.assembler.arguments_so_far(index, &Value::Object(input.clone()).to_string())?;
                }
                Open::Call
            }
            Some("thinking") => {
                answer.assembler.end_block();
                let own = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
                let (text, signature) = (own("thinking"), own("signature"));
                answer.assembler.thinking(&text)?;
                Open::Thinking { text, signature }
            }
            Some("redacted_thinking") => {
                answer.order.own(block.clone())?;
                Open::Opaque
            }
            // Blocks of tools that ran on the server, or of a type newer than this code.
            Some(_) | None => Open::Opaque,
        };
        self.open.insert(index, open);
        Ok(())
    }

    fn delta(&mut self, answer: &mut AnswerDraft<'_>, index: u64, delta: &Value) -> Result<(), Cause> {
        let piece = |key: &str| delta[key].as_str().unwrap_or_default();
        match (delta["type"].as_str(), self.open.get_mut(&index)) {
            (Some("text_delta"), Some(Open::Text)) => answer.text(piece("text")),
            (Some("input_json_delta"), Some(Open::Call)) => answer.assembler.arguments(index, piece("partial_json")),
            (Some("thinking_delta"), Some(Open::Thinking { text, .. })) => {
                text.push_str(piece("thinking"));
                answer.assembler.thinking(piece("thinking"))
            }
            (Some("signature_delta"), Some(Open::Thinking { signature, .. })) => {
                signature.push_str(piece("signature"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn stop(&mut self, answer: &mut AnswerDraft<'_>, index: u64) -> Result<(), Cause> {
        match self.open.remove(&index) {
            Some(Open::Call) => answer.assembler.end_call(index),
            Some(Open::Thinking { text, signature }) => {
                answer.assembler.end_block();
                // The provider does not accept a thinking block without its signature.
                match signature.is_empty() {
                    true => Ok(()),
                    false => answer.order.own(json!({"type": "thinking", "thinking": text, "signature": signature})),
                }
            }
            Some(Open::Text) => {
                answer.assembler.end_block();
                Ok(())
            }
            Some(Open::Opaque) | None => Ok(()),
        }
    }

    /// Reads token counts. They are cumulative: a later value replaces an earlier one.
    fn count(&mut self, answer: &mut AnswerDraft<'_>, usage: &Value) {
        let Some(usage) = usage.as_object() else { return };
        let counted = &mut self.counted;
        let places = [
            ("input_tokens", &mut counted.input),
            ("cache_creation_input_tokens", &mut counted.written),
            ("cache_read_input_tokens", &mut counted.read),
            ("output_tokens", &mut counted.output),
        ];
        for (key, place) in places {
            if let Some(count) = usage.get(key).and_then(Value::as_u64) {
                *place = count;
            }
        }
        answer.usage = Some(self.counted.usage());
    }
}

impl Protocol for Messages {
    const REQUEST_BODY: RequestBody = request_body;

    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause> {
        let event = parse_json(data)?;
        let index = event["index"].as_u64().unwrap_or(0);
        match event["type"].as_str() {
            Some("message_start") => {
                answer.set_model(&event["message"]["model"]);
                self.count(answer, &event["message"]["usage"]);
            }
            Some("content_block_start") => self.start(answer, index, &event["content_block"])?,
            Some("content_block_delta") => self.delta(answer, index, &event["delta"])?,
            Some("content_block_stop") => self.stop(answer, index)?,
            Some("message_delta") => {
                set_finish(answer, &event["delta"]["stop_reason"]);
                self.count(answer, &event["usage"]);
            }
            Some("message_stop") => return Ok(Step::End),
            Some("error") => return Err(stream_error(&event["error"])),
            Some(_) | None => {}
        }
        Ok(Step::More)
    }

    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause> {
        if body["type"] == "error" {
            return Err(stream_error(&body["error"]));
        }
        answer.set_model(&body["model"]);
        self.count(answer, &body["usage"]);
        for (index, block) in (0..).zip(body["content"].as_array().into_iter().flatten()) {
            self.start(answer, index, block)?;
            self.stop(answer, index)?;
        }
        set_finish(answer, &body["stop_reason"]);
        Ok(())
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        error_cause(status, body.get("error").unwrap_or(body), retry_after)
    }
}

fn set_finish(answer: &mut AnswerDraft<'_>, reason: &Value) {
    if let Some(reason) = reason.as_str() {
        answer.finish = Some(parse_finish(reason));
    }
}

fn parse_finish(reason: &str) -> Finish {
    match reason {
        "end_turn" => Finish::Stop,
        "tool_use" => Finish::Calls,
        "max_tokens" | "model_context_window_exceeded" => Finish::Length,
        "refusal" => Finish::Refusal,
        other => Finish::Other(other.chars().take(64).collect()),
    }
}

/// This provider's own status for "overloaded", which is 503 elsewhere and is retried as 503.
const OVERLOADED: u16 = 529;
const UNAVAILABLE: u16 = 503;

/// Returns the cause for an error inside a stream that began well. The type of the error stands for the HTTP status
/// that it would have had.
fn stream_error(error: &Value) -> Cause {
    let status = match error["type"].as_str() {
        Some("invalid_request_error") => 400,
        Some("authentication_error") => 401,
        Some("billing_error") => 402,
        Some("permission_error") => 403,
        Some("not_found_error") => 404,
        Some("request_too_large") => 413,
        Some("rate_limit_error") => 429,
        Some("timeout_error") => 504,
        Some("overloaded_error") => OVERLOADED,
        Some("api_error") => 500,
        Some(_) | None => return Cause::Broken { detail: message(error).into() },
    };
    error_cause(status, error, None)
}

fn error_cause(status: u16, error: &Value, retry_after: Option<Duration>) -> Cause {
    // Servers that are not Anthropic's say it in their own way on this wire.
    if let Some(cause) = context_too_long(status, error) {
        return cause;
    }
    let detail = message(error);
    // There is no error code for this case, only the sentence: "prompt is too long: 205000 tokens > 200000 maximum".
    if status == 400
        && let Some(counts) = detail.split_once("prompt is too long").map(|(_, counts)| counts)
    {
        let mut numbers = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        return Cause::ContextTooLong { tokens: numbers.next(), window: numbers.next() };
    }
    let status = if status == OVERLOADED { UNAVAILABLE } else { status };
    Cause::Status { status, detail: detail.into(), retry_after }
}
