//! Reads the events of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Maker, Usage};
use serde_json::Value;

use crate::assembler::{AnswerEnd, Assembler};
use crate::block_order::BlockOrder;
use crate::http::{ReadAnswer, Step, message, parse_json};
use crate::{Answer, Cause, Charge, Failure};

/// Reads the events of one answer. An item is identified by its index in the output.
pub(super) struct AnswerReader<'a> {
    assembler: Assembler<'a>,
    maker: &'a Maker,
    model: String,
    finish: Option<Finish>,
    refused: bool,
    usage: Option<Usage>,
    order: BlockOrder,
    /// True if the current message has text.
    wrote: bool,
}

impl<'a> AnswerReader<'a> {
    pub(super) fn new(said: Assembler<'a>, maker: &'a Maker, model: &str) -> Self {
        Self {
            assembler: said,
            maker,
            model: model.to_owned(),
            finish: None,
            refused: false,
            usage: None,
            order: BlockOrder::default(),
            wrote: false,
        }
    }

    fn text(&mut self, piece: &str) -> Result<(), Cause> {
        self.wrote |= !piece.is_empty();
        self.order.text(piece);
        self.assembler.text(piece)
    }

    fn refusal(&mut self, piece: &str) -> Result<(), Cause> {
        self.refused |= !piece.is_empty();
        self.text(piece)
    }

    fn call(&mut self, index: u64, item: &Value) -> Result<(), Cause> {
        if !self.assembler.has_call(index) {
            self.order.call(self.assembler.calls());
        }
        // The item has its own id; a tool result refers to the id of the call.
        self.assembler.call(index, item["call_id"].as_str(), item["name"].as_str())
    }

    fn start_item(&mut self, index: u64, item: &Value) -> Result<(), Cause> {
        match item["type"].as_str() {
            Some("function_call") => self.call(index, item),
            Some("message" | "reasoning") => {
                self.wrote = false;
                self.assembler.end_block();
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Ends an item. `told` is true if its text already arrived in pieces.
    fn finish_item(&mut self, index: u64, item: &Value, told: bool) -> Result<(), Cause> {
        match item["type"].as_str() {
            Some("function_call") => {
                self.call(index, item)?;
                if let Some(arguments) = item["arguments"].as_str() {
                    self.assembler.arguments_so_far(index, arguments)?;
                }
                self.assembler.end_call(index)?;
                self.attach(item, &["id", "status", "namespace", "caller"])?;
            }
            Some("message") => {
                if !told {
                    self.wrote = false;
                    for part in item["content"].as_array().into_iter().flatten() {
                        self.text(part["text"].as_str().unwrap_or_default())?;
                        self.refusal(part["refusal"].as_str().unwrap_or_default())?;
                    }
                }
                self.assembler.end_block();
                if std::mem::take(&mut self.wrote) {
                    self.attach(item, &["id", "status", "phase"])?;
                }
            }
            Some("reasoning") => {
                if !told {
                    for part in item["summary"].as_array().into_iter().flatten() {
                        self.assembler.thinking(part["text"].as_str().unwrap_or_default())?;
                    }
                }
                self.assembler.end_block();
                // Without the encrypted content there is nothing to send back: nothing is stored at the provider.
                if item["encrypted_content"].is_string() {
                    let mut own = item.clone();
                    if let Value::Object(own) = &mut own {
                        own.remove("status");
                    }
                    self.order.own(own)?;
                }
            }
            Some(_) | None => {}
        }
        Ok(())
    }

    /// Keeps the fields of an item that the provider wants back in addition to its text, or its name and arguments.
    fn attach(&mut self, item: &Value, keys: &[&str]) -> Result<(), Cause> {
        for key in keys {
            if let Some(value) = item.get(*key).filter(|value| !value.is_null()) {
                self.order.attach(key, value)?;
            }
        }
        Ok(())
    }

    /// Reads the complete response, which is part of the last event, or the whole body if the answer is not streamed.
    fn read_response(&mut self, response: &Value) -> Result<(), Cause> {
        self.usage = usage(&response["usage"]).or(self.usage);
        if let Some(model) = response["model"].as_str().filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
        match response["status"].as_str() {
            Some("failed" | "cancelled") => return Err(stream_error(&response["error"])),
            Some("incomplete") => {
                self.finish = Some(match response["incomplete_details"]["reason"].as_str() {
                    Some("max_output_tokens") => Finish::Length,
                    Some("content_filter") => Finish::Refusal,
                    Some(other) => Finish::Other(other.chars().take(64).collect()),
                    None => Finish::Other("incomplete".to_owned()),
                });
            }
            Some("completed") => self.finish = Some(Finish::Stop),
            Some(_) | None => {}
        }
        Ok(())
    }
}

impl ReadAnswer for AnswerReader<'_> {
    fn read_event(&mut self, data: &str) -> Result<Step, Cause> {
        let event = parse_json(data)?;
        let index = event["output_index"].as_u64().unwrap_or(0);
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str() {
            Some("response.output_item.added") => self.start_item(index, &event["item"])?,
            Some("response.output_text.delta") => self.text(delta)?,
            Some("response.refusal.delta") => self.refusal(delta)?,
            Some("response.reasoning_text.delta" | "response.reasoning_summary_text.delta") => {
                self.assembler.thinking(delta)?;
            }
            Some("response.reasoning_summary_part.added") => self.assembler.end_block(),
            Some("response.function_call_arguments.delta") => self.assembler.arguments(index, delta)?,
            Some("response.output_item.done") => self.finish_item(index, &event["item"], true)?,
            Some("response.completed" | "response.incomplete") => {
                self.read_response(&event["response"])?;
                return Ok(Step::End);
            }
            Some("response.failed") => {
                self.usage = usage(&event["response"]["usage"]).or(self.usage);
                return Err(stream_error(&event["response"]["error"]));
            }
            Some("error") => return Err(stream_error(event.get("error").unwrap_or(&event))),
            Some(_) | None => {}
        }
        Ok(Step::More)
    }

    fn read_whole(&mut self, body: &Value) -> Result<(), Cause> {
        for (index, item) in (0..).zip(body["output"].as_array().into_iter().flatten()) {
            self.finish_item(index, item, false)?;
        }
        self.read_response(body)
    }

    fn finish(self) -> Result<Answer, Failure> {
        let Some(finish) = self.finish.clone() else {
            return Err(self.fail(Cause::Broken { detail: "the answer ended without saying why".into() }));
        };
        let finish = if self.refused { Finish::Refusal } else { finish };
        let parts = self.order.parts(self.maker);
        self.assembler.finish(AnswerEnd { model: self.model, finish, usage: self.usage, parts })
    }

    fn fail(self, cause: Cause) -> Failure {
        self.assembler.fail(cause, self.usage.map_or(Charge::Unknown, Charge::Reported))
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        error_cause(status, body.get("error").unwrap_or(body), retry_after)
    }
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
    let is = |word: &str| error["code"].as_str() == Some(word);
    if is("context_length_exceeded") {
        return Cause::ContextTooLong { tokens: None, window: None };
    }
    if is("content_filter") || is("content_policy_violation") || is("invalid_prompt") {
        return Cause::Refused { reason: message(error).into() };
    }
    Cause::Status { status, detail: message(error).into(), retry_after }
}
