//! Builds the body of a request.

use cantrip_loom::{Content, Message};
use serde_json::{Map, Value, json};

use crate::assembler::arguments_text;
use crate::block_order::{Block, blocks, text_of};
use crate::http::{Body, Endpoint, render_content, with_format};
use crate::schema::plain_object;
use crate::{Request, ThinkingBy};

/// Returns the body of a request, or the reason why these messages cannot be sent. Parts that this provider made are
/// sent back.
pub(super) fn request_body(request: &Request, endpoint: &Endpoint) -> Result<Body, String> {
    let Endpoint { maker, model, profile, .. } = endpoint;
    let told = request.format.as_ref().filter(|_| !profile.structured);
    let told = told.map(|format| with_format(&request.messages, format));
    let messages: Vec<&Message> = match &told {
        Some(told) => told.iter().collect(),
        None => request.messages.iter().collect(),
    };
    let mut input = Vec::new();
    for message in messages {
        match message {
            Message::System { content } => input.push(json!({"role": "system", "content": content.text()})),
            Message::User { content } => input.push(json!({"role": "user", "content": input_parts(content, request)?})),
            Message::Tool { tool_call_id, content, .. } => {
                let output = match content {
                    Content::Text(text) => text.as_str().into(),
                    Content::Parts(_) => input_parts(content, request)?,
                };
                input.push(json!({"type": "function_call_output", "call_id": tool_call_id, "output": output}));
            }
            Message::Assistant { content, calls, parts } => {
                let text = text_of(content.as_ref());
                let own = parts.as_ref().filter(|parts| parts.maker.shares_provider_with(maker));
                input.extend(blocks(text.as_deref(), calls, own).iter().filter_map(item));
            }
        }
    }
    let mut body = json!({
        "model": model,
        "input": input,
        "stream": true,
        "store": false,
        "max_output_tokens": request.output_tokens_max,
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[key] = value;
        }
    };
    // A model that does not reason rejects a request for its reasoning.
    set("include", profile.thinks.then(|| json!(["reasoning.encrypted_content"])));
    // A reasoning model has no temperature, and rejects a request that sets one.
    if profile.samples {
        set("temperature", request.sampling.temperature.map(Value::from));
        set("top_p", request.sampling.top_p.map(Value::from));
    }
    if let (ThinkingBy::Effort, Some(effort)) = (profile.thinking_by, request.thinking.effort) {
        set("reasoning", Some(json!({"effort": effort.as_str()})));
    }
    if let Some(format) = request.format.as_ref().filter(|_| profile.structured) {
        let told = json!({"type": "json_schema", "name": format.name, "schema": format.schema, "strict": false});
        set("text", Some(json!({ "format": told })));
    }
    if !request.definitions.is_empty() {
        let tools = request.definitions.iter().map(|definition| {
            json!({
                "type": "function",
                "name": definition.name,
                "description": definition.description,
                "parameters": plain_object(&definition.parameters),
                "strict": false,
            })
        });
        set("tools", Some(tools.collect()));
        set("tool_choice", Some(request.choice.as_str().into()));
    }
    Ok(body.into())
}

/// Returns an item of the input, or none for an empty message.
fn item(block: &Block<'_>) -> Option<Value> {
    let (mut item, with) = match block {
        Block::Own(own) => return Some((*own).clone()),
        Block::Text(text, _) if text.trim().is_empty() => return None,
        // A message that the provider made keeps its id and its status.
        Block::Text(text, with) if with.is_some_and(|with| with.contains_key("id") && with.contains_key("status")) => {
            let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
            (json!({"type": "message", "role": "assistant", "content": content}), *with)
        }
        // Any other message came from another source, or was recorded before ids and statuses were kept. OpenAI does not
        // need its type; llama.cpp rejects an assistant's message without it.
        Block::Text(text, _) => (json!({"type": "message", "role": "assistant", "content": text}), None),
        Block::Call(call, with) => {
            let arguments = arguments_text(&call.args);
            let item = json!({"type": "function_call", "call_id": call.tool_call_id, "name": call.gate, "arguments": arguments});
            (item, *with)
        }
    };
    if let (Value::Object(item), Some(with)) = (&mut item, with) {
        item.extend(with.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Map<_, _>>());
    }
    Some(item)
}

fn input_parts(content: &Content, request: &Request) -> Result<Value, String> {
    let text = |text: &str| json!({"type": "input_text", "text": text});
    let parts = render_content(content, request, text, |media_type, data| {
        let url = format!("data:{media_type};base64,{data}");
        json!({"type": "input_image", "image_url": url, "detail": "auto"})
    });
    parts.map(Value::from)
}
