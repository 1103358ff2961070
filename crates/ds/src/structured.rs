//! A crystal that answers in the shape of a schema, whatever its model supports.
//!
//! A model whose provider enforces schemas gets the schema; a model that can be forced to call a tool calls `done`; any
//! other model is asked in text, and the JSON in its answer is extracted. The result is always a call of `done`, so
//! that the loop validates it, records it and reports its faults in one way.

use std::sync::Arc;

use cantrip::canon::{EntityId, json};
use cantrip::crystal::{
    Answer, AnswerEnd, AnyCrystal, Assembler, Charge, Crystal, EventSink, Failure, MessageLog, NullSink, OutputFormat,
    Price, Profile, Request, ToolChoice,
};
use cantrip::loom::{Content, Finish, Message, Spawn};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The way in which a model is constrained to a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StructuredMode {
    /// Its provider enforces the schema.
    Native,
    /// The model calls `done`.
    Tool,
    /// The model is asked for JSON in text.
    Text,
}

impl StructuredMode {
    /// Returns the best mode for a model of this profile.
    pub fn of(profile: &Profile) -> Self {
        if profile.structured {
            Self::Native
        } else if profile.tools {
            Self::Tool
        } else {
            Self::Text
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Tool => "tool",
            Self::Text => "text",
        }
    }
}

/// The gate that accepts an answer.
const DONE: &str = "done";

/// A crystal that answers in the shape of a schema. See the module.
pub(crate) struct StructuredCrystal {
    inner: AnyCrystal,
    mode: StructuredMode,
    format: Arc<OutputFormat>,
    /// Examples of requests and answers.
    demos: Vec<(String, String)>,
}

impl StructuredCrystal {
    pub(crate) fn new(inner: AnyCrystal, mode: StructuredMode, schema: Value, demos: Vec<(String, String)>) -> Self {
        Self { inner, mode, format: Arc::new(OutputFormat { name: "answer".to_owned(), schema }), demos }
    }

    /// Returns the request as sent to the model.
    fn rewrite_request(&self, request: &Request) -> Request {
        if self.mode == StructuredMode::Tool && self.demos.is_empty() {
            return request.clone();
        }
        let list = MessageLog::new();
        let mut shown = false;
        for message in request.messages.iter() {
            let is_system = matches!(message, Message::System { .. });
            if !is_system && !shown {
                shown = true;
                for (asked, answered) in &self.demos {
                    list.push(Message::User { content: asked.as_str().into() });
                    let content = Some(answered.as_str().into());
                    list.push(Message::Assistant { content, calls: Vec::new(), parts: None });
                }
            }
            list.push(self.without_calls(message));
        }
        let messages = list.all();
        match self.mode {
            StructuredMode::Tool => Request { messages, ..request.clone() },
            StructuredMode::Native | StructuredMode::Text => Request {
                messages,
                definitions: Arc::default(),
                choice: ToolChoice::Auto,
                format: Some(Arc::clone(&self.format)),
                ..request.clone()
            },
        }
    }

    /// Returns a message without calls, for modes without tools.
    fn without_calls(&self, message: &Message) -> Message {
        match (self.mode, message) {
            (StructuredMode::Tool, _) | (_, Message::System { .. } | Message::User { .. }) => message.clone(),
            (_, Message::Assistant { content, calls, .. }) => {
                let said = calls.first().and_then(|call| call.args.get("answer")).map(|answer| answer.to_string());
                let content = content.clone().or_else(|| said.map(Content::from));
                Message::Assistant { content, calls: Vec::new(), parts: None }
            }
            (_, Message::Tool { content, .. }) => Message::User { content: content.clone() },
        }
    }
}

/// Extracts the JSON of a text: all of it, else the last fenced block, else the outermost object; the text itself if
/// there is none.
pub(crate) fn extract_json(text: &str) -> Value {
    if let Ok(value) = json::read(text.trim()) {
        return value;
    }
    let fences: Vec<&str> = text.split("```").collect();
    let blocks = fences.iter().enumerate().filter(|(at, _)| at % 2 == 1).map(|(_, block)| *block);
    for block in blocks.collect::<Vec<_>>().into_iter().rev() {
        // The first line may name a language.
        let inside = block.split_once('\n').map_or(block, |(_, inside)| inside);
        if let Some(value) = [block, inside].iter().find_map(|text| json::read(text.trim()).ok()) {
            return value;
        }
    }
    let outermost = text.find('{').zip(text.rfind('}')).and_then(|(from, to)| text.get(from..=to));
    outermost.and_then(|text| json::read(text).ok()).unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Returns arguments as a crystal writes them. A string is text that could not be parsed, and stays unchanged.
fn arguments_text(args: &Value) -> String {
    args.as_str().map_or_else(|| args.to_string(), str::to_owned)
}

impl Crystal for StructuredCrystal {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let asked = self.rewrite_request(request);
        if self.mode == StructuredMode::Tool {
            return self.inner.ask(&asked, heard).await;
        }
        let answer = self.inner.ask(&asked, &NullSink).await?;
        let charge = answer.usage.map_or(Charge::Unknown, Charge::Reported);
        let said = answer.utterance;
        let text = said.content.clone().unwrap_or_default();
        let called = said.calls.iter().find(|call| call.gate == DONE);
        let is_cut = said.finish == Finish::Length;
        let args = match called {
            Some(call) => arguments_text(&call.args),
            // A truncated text is not an answer, even if its beginning could be parsed.
            None if is_cut => text.clone(),
            None => json!({ "answer": extract_json(&text) }).to_string(),
        };
        let mut told = Assembler::new(self.inner.name(), request, heard);
        let spoken = said.thinking.as_deref().map_or(Ok(()), |thinking| told.thinking(thinking));
        let spoken = spoken.and_then(|()| told.text(&text)).and_then(|()| told.call(0, None, Some(DONE)));
        match spoken.and_then(|()| told.arguments(0, &args)) {
            Ok(()) => {
                let model = said.model;
                let finish = if is_cut { Finish::Length } else { Finish::Calls };
                told.finish(AnswerEnd { usage: answer.usage, ..AnswerEnd::new(model, finish) })
            }
            Err(cause) => Err(told.fail(cause, charge)),
        }
    }

    fn profile(&self) -> Profile {
        let profile = self.inner.profile();
        match self.mode {
            StructuredMode::Tool => profile,
            // The text becomes a call here.
            StructuredMode::Native | StructuredMode::Text => Profile { tools: true, forces_calls: true, ..profile },
        }
    }

    async fn learn_window(&self) {
        self.inner.learn_window().await;
    }

    fn price(&self) -> Price {
        self.inner.price()
    }

    fn on_spawn(&self, entity: EntityId, by: Spawn) {
        self.inner.on_spawn(entity, by);
    }

    fn on_end(&self, entity: EntityId) {
        self.inner.on_end(entity);
    }

    fn is_sequential(&self) -> bool {
        self.inner.is_sequential()
    }

    fn skip_answers(&self, answers: usize) {
        self.inner.skip_answers(answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_where_a_model_puts_it() {
        for (text, found) in [
            (r#"{"a": 1}"#, json!({"a": 1})),
            ("Here:\n```json\n{\"a\": 1}\n```\nand\n```json\n{\"a\": 2}\n```\n", json!({"a": 2})),
            ("```\n{\"a\": 3}\n```", json!({"a": 3})),
            ("It is {\"a\": {\"b\": 4}}, I think.", json!({"a": {"b": 4}})),
            ("I cannot say.", json!("I cannot say.")),
            ("{\"a\": 1, \"a\": 2}", json!("{\"a\": 1, \"a\": 2}")),
        ] {
            assert_eq!(extract_json(text), found, "{text}");
        }
    }
}
