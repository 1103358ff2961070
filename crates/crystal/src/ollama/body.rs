//! Builds the body of a request.

use cantrip_loom::{Content, Maker, Message, Part};
use serde_json::{Map, Value, json};

use crate::http::{Body, Endpoint, object_arguments, render_content};
use crate::limits::OLLAMA_WINDOW_DEFAULT;
use crate::{Profile, Request, ThinkingBy, ToolChoice};

/// Returns the body of a request to this endpoint, or the reason why these messages cannot be sent.
pub(super) fn request_body(request: &Request, endpoint: &Endpoint) -> Result<Body, String> {
    let (Endpoint { maker, model, .. }, profile) = (endpoint, &endpoint.profile());
    let messages = request.messages.iter().map(|message| wire(message, request, maker));
    let mut body = json!({
        "model": model,
        "messages": messages.collect::<Result<Vec<_>, _>>()?,
        "stream": true,
        "options": options(request, profile),
    });
    // Ollama cannot be forced to call a tool; the caller checks the answer and asks again.
    if !request.definitions.is_empty() && request.choice != ToolChoice::None {
        let tools = request.definitions.iter().map(|definition| {
            json!({"type": "function", "function": {
                "name": definition.name,
                "description": definition.description,
                "parameters": definition.parameters,
            }})
        });
        body["tools"] = tools.collect();
    }
    // A model that cannot think is refused with the field, and most of those that can know only on and off.
    match (profile.thinking_by, request.thinking.effort) {
        (ThinkingBy::Effort, Some(effort)) => body["think"] = effort.as_str().into(),
        (ThinkingBy::Switch, Some(_)) => body["think"] = true.into(),
        (ThinkingBy::Nothing | ThinkingBy::Budget | ThinkingBy::Adaptive, Some(_)) | (_, None) => {}
    }
    if let Some(format) = &request.format {
        body["format"] = format.schema.clone();
    }
    Ok(body.into())
}

fn options(request: &Request, profile: &Profile) -> Value {
    let sampling = &request.sampling;
    let mut options = Map::new();
    let window = request.window.or(profile.window).unwrap_or(OLLAMA_WINDOW_DEFAULT);
    options.insert("num_ctx".to_owned(), window.into());
    options.insert("num_predict".to_owned(), request.output_tokens_max.into());
    let said = [
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
        ("stop", (!sampling.stop.is_empty()).then(|| json!(sampling.stop))),
    ];
    options.extend(said.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    Value::Object(options)
}

fn wire(message: &Message, request: &Request, maker: &Maker) -> Result<Value, String> {
    Ok(match message {
        Message::System { content } => json!({"role": "system", "content": content.text()}),
        Message::User { content } => {
            let mut message = json!({"role": "user", "content": words(content)});
            let images = images(content, request)?;
            if !images.is_empty() {
                message["images"] = images.into();
            }
            message
        }
        // Results are matched by the function's name, in the order of the calls.
        Message::Tool { gate, content, .. } => {
            json!({"role": "tool", "tool_name": gate, "content": content.text()})
        }
        Message::Assistant { content, calls, parts } => {
            let text = content.as_ref().map(Content::text).unwrap_or_default();
            let mut message = json!({"role": "assistant", "content": text});
            let own = parts.as_ref().filter(|parts| parts.maker == *maker);
            if let Some(thinking) = own.and_then(|own| own.parts["thinking"].as_str()) {
                message["thinking"] = thinking.into();
            }
            if !calls.is_empty() {
                let calls = calls.iter().map(|call| {
                    let arguments = object_arguments(&call.args);
                    json!({"function": {"name": call.gate, "arguments": arguments}})
                });
                message["tool_calls"] = calls.collect();
            }
            message
        }
    })
}

/// Returns the text of a content; images are sent in a separate field.
fn words(content: &Content) -> String {
    match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                Part::Text { text } => Some(text.as_str()),
                Part::Image { .. } => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
    }
}

fn images(content: &Content, request: &Request) -> Result<Vec<Value>, String> {
    let mut images = render_content(content, request, |_| Value::Null, |_, data| data.into())?;
    images.retain(|image| !image.is_null());
    Ok(images)
}
