//! Reads the lines of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Maker, ProviderParts, Usage};
use serde_json::{Value, json};

use crate::assembler::{AnswerEnd, Assembler};
use crate::http::{ReadAnswer, Step, message, parse_json};
use crate::{Answer, Cause, Charge, Failure};

/// Reads the lines of one answer. The last line is marked as such.
pub(super) struct AnswerReader<'a> {
    assembler: Assembler<'a>,
    maker: &'a Maker,
    model: String,
    /// The thinking text: a model that calls a tool wants it back with the results.
    thinking: String,
    finish: Option<Finish>,
    usage: Option<Usage>,
}

impl<'a> AnswerReader<'a> {
    pub(super) fn new(said: Assembler<'a>, maker: &'a Maker, model: &str) -> Self {
        Self { assembler: said, maker, model: model.to_owned(), thinking: String::new(), finish: None, usage: None }
    }

    fn line(&mut self, line: &Value) -> Result<Step, Cause> {
        if let Some(error) = line.get("error").filter(|error| !error.is_null()) {
            // Ollama reports no status for a failure inside a stream.
            return Err(Cause::Status { status: 500, detail: message(error).into(), retry_after: None });
        }
        if let Some(model) = line["model"].as_str().filter(|model| !model.is_empty()) {
            model.clone_into(&mut self.model);
        }
        let said = &line["message"];
        let thought = said["thinking"].as_str().unwrap_or_default();
        self.assembler.thinking(thought)?;
        self.thinking.push_str(thought);
        self.assembler.text(said["content"].as_str().unwrap_or_default())?;
        for call in said["tool_calls"].as_array().into_iter().flatten() {
            self.call(call)?;
        }
        if line["done"] != true {
            return Ok(Step::More);
        }
        self.usage = usage(line).or(self.usage);
        self.finish = Some(match line["done_reason"].as_str() {
            Some("length") => Finish::Length,
            _ if self.assembler.calls() > 0 => Finish::Calls,
            Some("stop") | None => Finish::Stop,
            Some(other) => Finish::Other(other.chars().take(64).collect()),
        });
        Ok(Step::End)
    }

    /// Records a call, which always arrives complete and often without an id.
    fn call(&mut self, call: &Value) -> Result<(), Cause> {
        let key = self.assembler.calls() as u64;
        let function = &call["function"];
        self.assembler.call(key, call["id"].as_str().filter(|id| !id.is_empty()), function["name"].as_str())?;
        match &function["arguments"] {
            Value::Null => {}
            Value::String(text) => self.assembler.arguments_so_far(key, text)?,
            whole @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                self.assembler.arguments_so_far(key, &whole.to_string())?;
            }
        }
        self.assembler.end_call(key)
    }
}

impl ReadAnswer for AnswerReader<'_> {
    const LINES: bool = true;

    fn read_event(&mut self, data: &str) -> Result<Step, Cause> {
        self.line(&parse_json(data)?)
    }

    fn read_whole(&mut self, body: &Value) -> Result<(), Cause> {
        self.line(body).map(|_| ())
    }

    fn finish(self) -> Result<Answer, Failure> {
        let Some(finish) = self.finish.clone() else {
            return Err(self.fail(Cause::Broken { detail: "the answer ended without saying why".into() }));
        };
        let wanted = self.assembler.calls() > 0 && !self.thinking.is_empty();
        let parts =
            wanted.then(|| ProviderParts { maker: self.maker.clone(), parts: json!({"thinking": self.thinking}) });
        self.assembler.finish(AnswerEnd { model: self.model, finish, usage: self.usage, parts })
    }

    fn fail(self, cause: Cause) -> Failure {
        self.assembler.fail(cause, self.usage.map_or(Charge::Unknown, Charge::Reported))
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        let detail = message(body.get("error").unwrap_or(body));
        Cause::Status { status, detail: detail.into(), retry_after }
    }
}

fn usage(line: &Value) -> Option<Usage> {
    let count = |key: &str| line[key].as_u64();
    // Ollama does not report tokens that came from its own cache.
    let (prompt, completion) = (count("prompt_eval_count"), count("eval_count"));
    if prompt.is_none() && completion.is_none() {
        return None;
    }
    Some(Usage { prompt_tokens: prompt.unwrap_or(0), completion_tokens: completion.unwrap_or(0), ..Usage::default() })
}
