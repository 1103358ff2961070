//! Reads the lines of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::{Value, json};

use super::body::request_body;
use crate::Cause;
use crate::http::{AnswerDraft, Protocol, RequestBody, Step, message, parse_json};

/// Ollama's chat protocol. The last line of an answer is marked as such.
#[derive(Debug, Default)]
pub(crate) struct Ollama {
    /// The thinking text: a model that calls a tool wants it back with the results.
    thinking: String,
}

impl Ollama {
    fn line(&mut self, answer: &mut AnswerDraft<'_>, line: &Value) -> Result<Step, Cause> {
        if let Some(error) = line.get("error").filter(|error| !error.is_null()) {
            // Ollama reports no status for a failure inside a stream.
            return Err(Cause::Status { status: 500, detail: message(error).into(), retry_after: None });
        }
        answer.set_model(&line["model"]);
        let said = &line["message"];
        let thought = said["thinking"].as_str().unwrap_or_default();
        answer.assembler.thinking(thought)?;
        self.thinking.push_str(thought);
        answer.assembler.text(said["content"].as_str().unwrap_or_default())?;
        for call in said["tool_calls"].as_array().into_iter().flatten() {
            read_call(answer, call)?;
        }
        if line["done"] != true {
            return Ok(Step::More);
        }
        answer.set_usage(usage(line));
        answer.finish = Some(match line["done_reason"].as_str() {
            Some("length") => Finish::Length,
            _ if answer.assembler.calls() > 0 => Finish::Calls,
            Some("stop") | None => Finish::Stop,
            Some(other) => Finish::Other(other.chars().take(64).collect()),
        });
        Ok(Step::End)
    }
}

impl Protocol for Ollama {
    const LINES: bool = true;
    const REQUEST_BODY: RequestBody = request_body;

    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause> {
        self.line(answer, &parse_json(data)?)
    }

    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause> {
        self.line(answer, body).map(|_| ())
    }

    fn own_parts(self, answer: &AnswerDraft<'_>) -> Option<Value> {
        let wanted = answer.assembler.calls() > 0 && !self.thinking.is_empty();
        wanted.then(|| json!({"thinking": self.thinking}))
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        let detail = message(body.get("error").unwrap_or(body));
        Cause::Status { status, detail: detail.into(), retry_after }
    }
}

/// Records a call, which always arrives complete and often without an id.
fn read_call(answer: &mut AnswerDraft<'_>, call: &Value) -> Result<(), Cause> {
    let key = answer.assembler.calls() as u64;
    let function = &call["function"];
    // The calls are complete and in order, so one with the id of another gets an id of ours.
    let id = call["id"].as_str().filter(|id| !id.is_empty() && !answer.assembler.has_other_call(key, id));
    answer.assembler.call(key, id, function["name"].as_str())?;
    match &function["arguments"] {
        Value::Null => {}
        Value::String(text) => answer.assembler.arguments_so_far(key, text)?,
        whole @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            answer.assembler.arguments_so_far(key, &whole.to_string())?;
        }
    }
    answer.assembler.end_call(key)
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
