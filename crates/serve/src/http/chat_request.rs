//! The request of a chat client, in OpenAI's format, and the cast that it asks for.
//!
//! A parameter that changes the answer is honoured or refused. A client that asked for tools or for two answers and got
//! one text would take it for the model's decision. Sampling settings are ignored: the spell defines them.

use cantrip_service::cantrip::reply::{Refusal, codes};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// The request of a chat client. Other fields, such as sampling settings, are ignored: the spell defines them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Completion {
    /// The name of the spell.
    pub(super) model: String,
    /// The conversation. The last message is the task and must be the user's.
    messages: Vec<Message>,
    /// Whether the answer is streamed as server-sent events; false by default.
    #[serde(default)]
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    /// The type of the answer; a text by default.
    response_format: Option<ResponseFormat>,
    /// The number of answers: only 1.
    n: Option<u64>,
    /// Tools of the client: none, because the spell defines its gates.
    tools: Option<Value>,
    /// `none` or `auto`.
    tool_choice: Option<Value>,
    /// The older name of `tools`: none.
    functions: Option<Value>,
    /// The older name of `tool_choice`: `none` or `auto`.
    function_call: Option<Value>,
}

/// The type of an answer.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat {
    Text,
    /// Any JSON object.
    JsonObject,
    /// JSON that fits a schema.
    #[serde(rename = "json_schema")]
    Typed {
        json_schema: NamedSchema,
    },
}

#[derive(Debug, Deserialize, JsonSchema)]
struct NamedSchema {
    /// The JSON Schema of the answer.
    schema: Option<Value>,
}

impl Completion {
    /// Refuses the parameters that a spell cannot honour.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let refuse = |path: &str, rule: &str| Err(Refusal::from(codes::schema("the body", path, rule)));
        if self.n.is_some_and(|n| n != 1) {
            return refuse("/n", "a spell gives one answer: send the request again for another");
        }
        for (path, tools) in [("/tools", &self.tools), ("/functions", &self.functions)] {
            if tools.as_ref().is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty())) {
                return refuse(path, "a spell defines its own gates and takes no tools of a client");
            }
        }
        for (path, choice) in [("/tool_choice", &self.tool_choice), ("/function_call", &self.function_call)] {
            if choice.as_ref().is_some_and(|choice| !["none", "auto"].contains(&choice.as_str().unwrap_or_default())) {
                return refuse(path, "a spell takes no tools of a client: leave it out, or use none or auto");
            }
        }
        Ok(())
    }

    /// Returns the JSON Schema of the answer that the client asks for; none for a text.
    pub(super) fn answer_schema(&self) -> Result<Option<Value>, Refusal> {
        match &self.response_format {
            None | Some(ResponseFormat::Text) => Ok(None),
            Some(ResponseFormat::JsonObject) => Ok(Some(json!({"type": "object"}))),
            Some(ResponseFormat::Typed { json_schema: NamedSchema { schema: Some(schema) } }) => {
                Ok(Some(schema.clone()))
            }
            Some(ResponseFormat::Typed { json_schema: NamedSchema { schema: None } }) => {
                Err(codes::schema("the body", "/response_format/json_schema/schema", "it is missing").into())
            }
        }
    }

    /// Returns the intent: the last message, preceded by the earlier conversation.
    pub(super) fn intent(&self) -> Result<String, Refusal> {
        intent(&self.messages)
    }
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: Option<bool>,
    /// False: text is collected, for up to 2 seconds. By default each word is a chunk.
    #[serde(default)]
    pub(super) every_delta: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl Message {
    fn text(&self, place: usize) -> Result<String, Refusal> {
        match &self.content {
            None => Ok(String::new()),
            Some(Content::Text(text)) => Ok(text.clone()),
            Some(Content::Parts(parts)) => {
                let mut texts = Vec::new();
                for (part, number) in parts.iter().zip(0..) {
                    match (part.r#type.as_str(), &part.text) {
                        ("text", Some(text)) => texts.push(text.as_str()),
                        (other, _) => {
                            let path = format!("/messages/{place}/content/{number}/type");
                            let rule = format!("{other:?} is not supported: a spell takes only text");
                            return Err(codes::schema("the body", path, rule).into());
                        }
                    }
                }
                Ok(texts.join("\n"))
            }
        }
    }
}

fn intent(messages: &[Message]) -> Result<String, Refusal> {
    let mut texts = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        texts.push((message.role.as_str(), message.text(place)?));
    }
    let Some((role, last)) = texts.pop() else {
        return Err(codes::schema("the body", "/messages", "there is no message").into());
    };
    if role != "user" {
        let rule = "the last message is the user's";
        return Err(codes::schema("the body", format!("/messages/{}/role", texts.len()), rule).into());
    }
    if texts.is_empty() {
        return Ok(last);
    }
    let said: Vec<String> = texts.iter().map(|(role, text)| format!("{role}: {text}")).collect();
    Ok(format!("The conversation so far:\n\n{}\n\nThe user says now:\n\n{last}", said.join("\n\n")))
}
