//! What is sent.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cantrip_loom::{Content, GateCall, Message, Part};
use serde_json::{Map, Value, json};

use crate::assembler::written;
use crate::http::{Body, Listed};
use crate::list::element;
use crate::{Choice, Profile, Request, ThinkingBy};

/// The body of a request, or why this list cannot be sent. `name` is the crystal's: parts of its own are given back.
pub(super) fn of(request: &Request, name: &Arc<str>, model: &str, profile: &Profile) -> Result<Body, String> {
    let format = request.format.as_ref();
    let told =
        format.filter(|_| !profile.structured).map(|format| json!({"role": "system", "content": format.in_words()}));
    let write = |message: &Message| wire(message, request, name).map(|value| value.to_string());
    let mut messages = request.messages.written(name, write)?;
    if let Some(told) = told {
        messages.push(element(request.messages.len(), &told.to_string()));
    }
    let mut body = json!({
        "model": model,
        "stream": true,
        "stream_options": {"include_usage": true},
        "max_tokens": request.output_tokens_max,
    });
    let sampling = &request.sampling;
    if profile.samples {
        set(&mut body, "temperature", sampling.temperature.map(Value::from));
        set(&mut body, "top_p", sampling.top_p.map(Value::from));
    }
    if let (ThinkingBy::Effort, Some(effort)) = (profile.thinking_by, request.thinking.effort) {
        // A gateway has one word for what its models call differently.
        match name.starts_with("openrouter/") {
            true => set(&mut body, "reasoning", Some(json!({"effort": effort.as_str()}))),
            false => set(&mut body, "reasoning_effort", Some(effort.as_str().into())),
        }
    }
    if let Some(format) = format.filter(|_| profile.structured) {
        let held = json!({"name": format.name, "schema": format.schema, "strict": false});
        set(&mut body, "response_format", Some(json!({"type": "json_schema", "json_schema": held})));
    }
    set(&mut body, "seed", sampling.seed.map(Value::from));
    set(&mut body, "stop", (!sampling.stop.is_empty()).then(|| json!(sampling.stop)));
    if !request.definitions.is_empty() {
        let tools = request.definitions.iter().map(|definition| {
            json!({"type": "function", "function": {
                "name": definition.name,
                "description": definition.description,
                "parameters": definition.parameters,
            }})
        });
        set(&mut body, "tools", Some(tools.collect()));
        let choice = match request.choice {
            Choice::Auto => "auto",
            Choice::Required => "required",
            Choice::None => "none",
        };
        set(&mut body, "tool_choice", Some(choice.into()));
    }
    Ok(Body { fields: body, listed: Some(Listed { name: "messages", elements: messages }) })
}

fn set(body: &mut Value, key: &str, value: Option<Value>) {
    if let (Value::Object(body), Some(value)) = (body, value) {
        body.insert(key.to_owned(), value);
    }
}

fn wire(message: &Message, request: &Request, name: &str) -> Result<Value, String> {
    Ok(match message {
        Message::System { content } => json!({"role": "system", "content": content.text()}),
        Message::User { content } => json!({"role": "user", "content": shown(content, request)?}),
        Message::Tool { tool_call_id, content, .. } => {
            json!({"role": "tool", "tool_call_id": tool_call_id, "content": content.text()})
        }
        Message::Assistant { content, calls, parts } => {
            let mut fields = Map::new();
            fields.insert("role".to_owned(), "assistant".into());
            fields.insert("content".to_owned(), content.as_ref().map(Content::text).into());
            if !calls.is_empty() {
                fields.insert("tool_calls".to_owned(), calls.iter().map(called).collect());
            }
            // Only what this endpoint said itself; what another one said, it cannot read.
            match parts {
                Some(own) if own.provider == name => {
                    let own = own.parts.as_object().into_iter().flatten();
                    fields.extend(own.map(|(key, value)| (key.clone(), value.clone())));
                }
                Some(_) | None => {}
            }
            Value::Object(fields)
        }
    })
}

fn called(call: &GateCall) -> Value {
    let arguments = written(&call.args);
    json!({"id": call.tool_call_id, "type": "function", "function": {"name": call.gate, "arguments": arguments}})
}

fn shown(content: &Content, request: &Request) -> Result<Value, String> {
    let parts = match content {
        Content::Text(text) => return Ok(text.as_str().into()),
        Content::Parts(parts) => parts,
    };
    let shown = parts.iter().map(|part| match part {
        Part::Text { text } => Ok(json!({"type": "text", "text": text})),
        Part::Image { media_type, image } => {
            let bytes =
                request.bodies.body(&image.hash).map_err(|error| format!("an image cannot be read: {error}"))?;
            let url = format!("data:{media_type};base64,{}", STANDARD.encode(bytes));
            Ok(json!({"type": "image_url", "image_url": {"url": url}}))
        }
    });
    shown.collect()
}
