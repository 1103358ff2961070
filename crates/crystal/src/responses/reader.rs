//! Reads the events of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::Value;

use super::body::request_body;
use crate::Cause;
use crate::http::{AnswerDraft, Protocol, RequestBody, Step, context_too_long, message, parse_json};

/// The responses protocol. An item is identified by its index in the output.
///
/// Nothing is stored at the provider: each request has the whole list. The model's reasoning arrives encrypted and is
/// sent back unmodified, before the calls that it led to.
#[derive(Debug, Default)]
pub(crate) struct Responses {
    /// True if the current message has text.
    wrote: bool,
}

impl Responses {
    fn text(&mut self, answer: &mut AnswerDraft<'_>, piece: &str) -> Result<(), Cause> {
        self.wrote |= !piece.is_empty();
        answer.text(piece)
    }

    fn refuse(&mut self, answer: &mut AnswerDraft<'_>, piece: &str) -> Result<(), Cause> {
        answer.refused |= !piece.is_empty();
        self.text(answer, piece)
    }

    fn start_item(&mut self, answer: &mut AnswerDraft<'_>, index: u64, item: &Value) -> Result<(), Cause> {
        match item["type"].as_str() {
            Some("function_call") => call(answer, index, item),
            Some("message" | "reasoning") => {
                self.wrote = false;
                answer.assembler.end_block();
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends an item. `told` is true if its text already arrived in pieces.
    fn finish_item(&mut self, answer: &mut AnswerDraft<'_>, index: u64, item: &Value, told: bool) -> Result<(), Cause> {
        match item["type"].as_str() {
            Some("function_call") => {
                call(answer, index, item)?;
                if let Some(arguments) = item["arguments"].as_str() {
                    answer.assembler.arguments_so_far(index, arguments)?;
                }
                answer.assembler.end_call(index)?;
                attach(answer, item, &["id", "status", "namespace", "caller"])?;
            }
            Some("message") => {
                if !told {
                    self.wrote = false;
                    for part in item["content"].as_array().into_iter().flatten() {
                        self.text(answer, part["text"].as_str().unwrap_or_default())?;
                        self.refuse(answer, part["refusal"].as_str().unwrap_or_default())?;
                    }
                }
                answer.assembler.end_block();
                if std::mem::take(&mut self.wrote) {
                    attach(answer, item, &["id", "status", "phase"])?;
                }
            }
            Some("reasoning") => {
                if !told {
                    for part in item["summary"].as_array().into_iter().flatten() {
                        answer.assembler.thinking(part["text"].as_str().unwrap_or_default())?;
                    }
                }
                answer.assembler.end_block();
                // Without the encrypted content there is nothing to send back: nothing is stored at the provider.
                if item["encrypted_content"].is_string() {
                    let mut own = item.clone();
                    if let Value::Object(own) = &mut own {
                        own.remove("status");
                    }
                    answer.order.own(own)?;
                }
            }
            Some(_) | None => {}
        }
        Ok(())
    }
}

impl Protocol for Responses {
    const REQUEST_BODY: RequestBody = request_body;

    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause> {
        let event = parse_json(data)?;
        let index = event["output_index"].as_u64().unwrap_or(0);
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("response.output_item.added") => self.start_item(answer, index, &event["item"])?,
            Some("response.output_text.delta") => self.text(answer, delta)?,
            Some("response.refusal.delta") => self.refuse(answer, delta)?,
            Some("response.reasoning_text.delta" | "response.reasoning_summary_text.delta") => {
                answer.assembler.thinking(delta)?;
            }
            Some("response.reasoning_summary_part.added") => answer.assembler.end_block(),
            Some("response.function_call_arguments.delta") => answer.assembler.arguments(index, delta)?,
            Some("response.output_item.done") => self.finish_item(answer, index, &event["item"], true)?,
            Some("response.completed" | "response.incomplete") => {
                read_response(answer, &event["response"])?;
                return Ok(Step::End);
            }
            Some("response.failed") => {
                answer.set_usage(usage(&event["response"]["usage"]));
                return Err(stream_error(&event["response"]["error"]));
            }
            Some("error") => return Err(stream_error(event.get("error").unwrap_or(&event))),
            Some(_) | None => {}
        }
        Ok(Step::More)
    }

    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause> {
        for (index, item) in (0..).zip(body["output"].as_array().into_iter().flatten()) {
            self.finish_item(answer, index, item, false)?;
        }
        read_response(answer, body)
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        error_cause(status, body.get("error").unwrap_or(body), retry_after)
    }
}

fn call(answer: &mut AnswerDraft<'_>, index: u64, item: &Value) -> Result<(), Cause> {
    if !answer.assembler.has_call(index) {
        answer.order.call(answer.assembler.calls());
    }
    // The item has its own id; a tool result refers to the id of the call.
    answer.assembler.call(index, item["call_id"].as_str(), item["name"].as_str())
}

/// Keeps the fields of an item that the provider wants back in addition to its text, or its name and arguments.
fn attach(answer: &mut AnswerDraft<'_>, item: &Value, keys: &[&str]) -> Result<(), Cause> {
    for key in keys {
        if let Some(value) = item.get(*key).filter(|value| !value.is_null()) {
            answer.order.attach(key, value)?;
        }
    }
    Ok(())
}

/// Reads the complete response, which is part of the last event, or the whole body if the answer is not streamed.
fn read_response(answer: &mut AnswerDraft<'_>, response: &Value) -> Result<(), Cause> {
    answer.set_usage(usage(&response["usage"]));
    answer.set_model(&response["model"]);
    match response["status"].as_str() {
        Some("failed" | "cancelled") => return Err(stream_error(&response["error"])),
        Some("incomplete") => {
            answer.finish = Some(match response["incomplete_details"]["reason"].as_str() {
                Some("max_output_tokens") => Finish::Length,
                Some("content_filter") => Finish::Refusal,
                Some(other) => Finish::Other(other.chars().take(64).collect()),
                None => Finish::Other("incomplete".to_owned()),
            });
        }
        // llama.cpp says so of an answer that it cut off, too. A cut answer must not pass for a whole one.
        Some("completed") => {
            answer.finish = Some(if answer.is_at_its_limit() { Finish::Length } else { Finish::Stop });
        }
        Some(_) | None => {}
    }
    Ok(())
}

fn usage(usage: &Value) -> Option<Usage> {
    let count = |at: &Value| at.as_u64();
    let (input, output) = (count(&usage["input_tokens"])?, count(&usage["output_tokens"])?);
    Some(Usage {
        prompt_tokens: input,
        completion_tokens: output,
        cached_tokens: count(&usage["input_tokens_details"]["cached_tokens"]).unwrap_or(0),
        reasoning_tokens: count(&usage["output_tokens_details"]["reasoning_tokens"]),
        cache_write_tokens: count(&usage["input_tokens_details"]["cache_write_tokens"]),
    })
}

/// Returns the cause for an error inside a stream that began well.
fn stream_error(error: &Value) -> Cause {
    match error["code"].as_str() {
        Some("rate_limit_exceeded") => error_cause(429, error, None),
        Some("server_error") => error_cause(500, error, None),
        Some("context_length_exceeded" | "invalid_prompt" | "invalid_request_error") => error_cause(400, error, None),
        Some(_) | None => Cause::Broken { detail: message(error).into() },
    }
}

fn error_cause(status: u16, error: &Value, retry_after: Option<Duration>) -> Cause {
    if let Some(cause) = context_too_long(status, error) {
        return cause;
    }
    let is = |word: &str| error["code"].as_str() == Some(word);
    if is("content_filter") || is("content_policy_violation") || is("invalid_prompt") {
        return Cause::Refused { reason: message(error).into() };
    }
    Cause::Status { status, detail: message(error).into(), retry_after }
}
