//! Builds the body of a request.

use std::fmt::Write;

use cantrip_canon::json::put_text;
use cantrip_loom::{Content, GateCall, Maker, Message};
use serde_json::{Value, json};

use crate::assembler::arguments_text as arguments;
use crate::http::{Body, Endpoint, RenderedList, render_content, with_format};
use crate::message_log::element;
use crate::schema::plain_object;
use crate::{Request, ThinkingBy, ToolChoice, ToolDefinition};

/// Returns the body of a request to this endpoint, or the reason why these messages cannot be sent. Parts that this
/// endpoint's model made are sent back.
pub(super) fn request_body(request: &Request, endpoint: &Endpoint) -> Result<Body, String> {
    let Endpoint { name, maker, model, profile, .. } = endpoint;
    let format = request.format.as_ref();
    let write = |message: &Message| render_message(message, request, maker);
    let messages = match format.filter(|_| !profile.structured) {
        Some(format) => {
            let told = with_format(&request.messages, format);
            let written = told.iter().enumerate().map(|(at, message)| Ok(element(at, &write(message)?)));
            written.collect::<Result<Vec<_>, String>>()?
        }
        None => request.messages.render_with(name, write)?,
    };
    let mut body = json!({
        "model": model,
        "stream": true,
        "max_tokens": request.output_tokens_max,
    });
    if profile.chat_extras {
        set(&mut body, "stream_options", Some(json!({"include_usage": true})));
    }
    let sampling = &request.sampling;
    if profile.samples {
        set(&mut body, "temperature", sampling.temperature.map(Value::from));
        set(&mut body, "top_p", sampling.top_p.map(Value::from));
    }
    if let (ThinkingBy::Effort, Some(effort)) = (profile.thinking_by, request.thinking.effort) {
        // OpenRouter has one parameter for a setting that its models name differently.
        match name.starts_with("openrouter/") {
            true => set(&mut body, "reasoning", Some(json!({"effort": effort.as_str()}))),
            false => set(&mut body, "reasoning_effort", Some(effort.as_str().into())),
        }
    }
    if let Some(format) = format.filter(|_| profile.structured) {
        let held = json!({"name": format.name, "schema": format.schema, "strict": false});
        set(&mut body, "response_format", Some(json!({"type": "json_schema", "json_schema": held})));
    }
    set(&mut body, "seed", sampling.seed.filter(|_| profile.chat_extras).map(Value::from));
    set(&mut body, "stop", (!sampling.stop.is_empty()).then(|| json!(sampling.stop)));
    let mut lists = vec![RenderedList { name: "messages", elements: messages }];
    if !request.definitions.is_empty() {
        lists.push(RenderedList { name: "tools", elements: vec![tools(&request.definitions).into()] });
        let choice = match request.choice {
            ToolChoice::Auto => "auto",
            ToolChoice::Required => "required",
            ToolChoice::None => "none",
        };
        set(&mut body, "tool_choice", Some(choice.into()));
    }
    Ok(Body { fields: body, lists })
}

fn set(body: &mut Value, key: &str, value: Option<Value>) {
    if let (Value::Object(body), Some(value)) = (body, value) {
        body.insert(key.to_owned(), value);
    }
}

/// Renders the definitions as elements of a JSON array.
fn tools(definitions: &[ToolDefinition]) -> String {
    let mut text = String::new();
    for ToolDefinition { name, description, parameters } in definitions {
        text.push_str(if text.is_empty() { "{" } else { ",{" });
        text.push_str("\"type\":\"function\",\"function\":{\"name\":");
        put_text(&mut text, name);
        text.push_str(",\"description\":");
        put_text(&mut text, description);
        // Writing to a string does not fail.
        let _ = write!(text, ",\"parameters\":{}}}}}", plain_object(parameters));
    }
    text
}

/// Renders a message as an element of the JSON array. It is written without a tree of values, because for a long thread
/// this is most of the cost of a request.
fn render_message(message: &Message, request: &Request, maker: &Maker) -> Result<String, String> {
    let mut text = String::from("{\"role\":");
    match message {
        Message::System { content } => {
            text.push_str("\"system\",\"content\":");
            put_text(&mut text, &content.text());
        }
        Message::User { content } => {
            text.push_str("\"user\",\"content\":");
            match content {
                Content::Text(said) => put_text(&mut text, said),
                Content::Parts(_) => text.push_str(&content_parts(content, request)?.to_string()),
            }
        }
        Message::Tool { tool_call_id, content, .. } => {
            text.push_str("\"tool\",\"tool_call_id\":");
            put_text(&mut text, tool_call_id);
            text.push_str(",\"content\":");
            put_text(&mut text, &content.text());
        }
        Message::Assistant { content, calls, parts } => {
            // Only parts of this very model. A gateway may serve another model from elsewhere, where nobody can read
            // them.
            let own = parts.as_ref().filter(|own| own.maker == *maker).and_then(|own| own.parts.as_object());
            let is_own = |key: &str| own.is_some_and(|own| own.contains_key(key));
            text.push_str("\"assistant\"");
            if !is_own("content") {
                text.push_str(",\"content\":");
                match content {
                    Some(said) => put_text(&mut text, &said.text()),
                    None => text.push_str("null"),
                }
            }
            if !calls.is_empty() && !is_own("tool_calls") {
                text.push_str(",\"tool_calls\":[");
                for (index, call) in calls.iter().enumerate() {
                    put_call(&mut text, index, call);
                }
                text.push(']');
            }
            for (key, part) in own.into_iter().flatten().filter(|(key, _)| *key != "role") {
                text.push(',');
                put_text(&mut text, key);
                // Writing to a string does not fail.
                let _ = write!(text, ":{part}");
            }
        }
    }
    text.push('}');
    Ok(text)
}

fn put_call(text: &mut String, index: usize, call: &GateCall) {
    text.push_str(if index == 0 { "{\"id\":" } else { ",{\"id\":" });
    put_text(text, &call.tool_call_id);
    text.push_str(",\"type\":\"function\",\"function\":{\"name\":");
    put_text(text, &call.gate);
    text.push_str(",\"arguments\":");
    put_text(text, &arguments(&call.args));
    text.push_str("}}");
}

fn content_parts(content: &Content, request: &Request) -> Result<Value, String> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let parts = render_content(content, request, text, |media_type, data| {
        let url = format!("data:{media_type};base64,{data}");
        json!({"type": "image_url", "image_url": {"url": url}})
    });
    parts.map(Value::from)
}
