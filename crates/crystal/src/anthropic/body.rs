//! Builds the body of a request.

use std::borrow::Cow;

use cantrip_canon::stable_hash;
use cantrip_loom::{Content, Maker, Message, ProviderParts};
use serde_json::{Map, Value, json};

use crate::block_order::{Block, blocks, text_of};
use crate::http::{Body, Endpoint, object_arguments, render_content};
use crate::limits::THINKING_TOKENS_MIN;
use crate::schema::{for_anthropic, plain_object};
use crate::{Request, ThinkingBy, ToolChoice};

/// Returns the body of a request, or the reason why these messages cannot be sent. Parts that this provider made are
/// sent back.
pub(super) fn request_body(request: &Request, endpoint: &Endpoint) -> Result<Body, String> {
    let Endpoint { maker, model, profile, .. } = endpoint;
    let mut system = Vec::new();
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in request.messages.iter() {
        let (role, said) = match message {
            Message::System { content } => {
                system.push(json!({"type": "text", "text": content.text()}));
                continue;
            }
            Message::User { content } => ("user", content_blocks(content, request)?),
            Message::Tool { tool_call_id, content, .. } => {
                let id = id(tool_call_id);
                (
                    "user",
                    vec![
                        json!({"type": "tool_result", "tool_use_id": id, "content": content_blocks(content, request)?}),
                    ],
                )
            }
            Message::Assistant { content, calls, parts } => {
                let text = text_of(content.as_ref());
                let blocks = blocks(text.as_deref(), calls, own_parts(parts.as_ref(), maker));
                ("assistant", blocks.iter().filter_map(block).collect())
            }
        };
        // The results of one group of calls belong in one message, and roles must alternate.
        match messages.last_mut() {
            Some((last, before)) if *last == role => before.extend(said),
            Some(_) | None => messages.push((role, said)),
        }
    }
    messages.retain(|(_, said)| !said.is_empty());
    let held = request.format.as_ref().filter(|_| profile.structured).and_then(|format| for_anthropic(&format.schema));
    if let Some(format) = request.format.as_ref().filter(|_| held.is_none()) {
        system.push(json!({"type": "text", "text": format.in_words()}));
    }
    mark(system.last_mut());
    // Marks the end of this request and the end of the previous one. The content between them may be longer than the
    // provider searches for a cached prefix.
    for (_, said) in messages.iter_mut().rev().filter(|(role, _)| *role == "user").take(2) {
        mark(said.last_mut());
    }
    let messages = messages.iter().map(|(role, said)| json!({"role": role, "content": said}));
    let mut body = json!({
        "model": model,
        "max_tokens": request.output_tokens_max,
        "stream": true,
        "messages": messages.collect::<Vec<_>>(),
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            body[key] = value;
        }
    };
    set("system", (!system.is_empty()).then(|| json!(system)));
    let sampling = &request.sampling;
    let budget = match profile.thinking_by {
        ThinkingBy::Budget => request.thinking.budget(request.output_tokens_max),
        ThinkingBy::Nothing | ThinkingBy::Effort | ThinkingBy::Adaptive | ThinkingBy::Switch => None,
    };
    let budget = budget.filter(|tokens| *tokens >= THINKING_TOKENS_MIN && may_think(request, maker));
    let adaptive = (profile.thinking_by == ThinkingBy::Adaptive && request.thinking.effort.is_some())
        .then(|| json!({"type": "adaptive"}));
    let thinking = budget.map(|tokens| json!({"type": "enabled", "budget_tokens": tokens})).or(adaptive);
    let thinks = thinking.is_some();
    set("thinking", thinking);
    // The newer version of this protocol has neither parameter. Under the older one, a model that thinks by a token
    // budget accepts neither, and any other model accepts one of the two.
    if profile.samples && !thinks {
        set("temperature", sampling.temperature.map(Value::from));
        set("top_p", sampling.top_p.filter(|_| sampling.temperature.is_none()).map(Value::from));
    }
    let mut output = Map::new();
    if let (ThinkingBy::Effort | ThinkingBy::Adaptive, Some(effort)) = (profile.thinking_by, request.thinking.effort) {
        output.insert("effort".to_owned(), effort.as_str().into());
    }
    if let Some(schema) = held {
        output.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
    }
    set("output_config", (!output.is_empty()).then_some(Value::Object(output)));
    set("stop_sequences", (!sampling.stop.is_empty()).then(|| json!(sampling.stop)));
    if !request.definitions.is_empty() {
        let tools = request.definitions.iter().map(|definition| {
            json!({
                "name": definition.name,
                "description": definition.description,
                "input_schema": plain_object(&definition.parameters),
            })
        });
        let mut tools: Vec<Value> = tools.collect();
        mark(tools.last_mut());
        set("tools", Some(tools.into()));
        let choice = match request.choice {
            ToolChoice::Auto => "auto",
            // Where a call cannot be forced, the caller checks the answer and asks again.
            ToolChoice::Required if profile.forces_calls && !thinks => "any",
            ToolChoice::Required => "auto",
            ToolChoice::None => "none",
        };
        set("tool_choice", Some(json!({ "type": choice })));
    }
    Ok(body.into())
}

/// Returns the parts that are sent back: those of the same provider, whichever of its models made them.
fn own_parts<'a>(parts: Option<&'a ProviderParts>, maker: &Maker) -> Option<&'a ProviderParts> {
    parts.filter(|parts| parts.maker.shares_provider_with(maker))
}

/// Returns true if thinking can be requested here. After tool results it cannot if the answer that made the calls did
/// not begin with a thinking block of this provider: another provider made the calls, or thinking was not requested
/// then.
fn may_think(request: &Request, maker: &Maker) -> bool {
    let user =
        request.messages.iter().enumerate().filter(|(_, message)| matches!(message, Message::User { .. })).last();
    let mut answers = request.messages.iter().skip(user.map_or(0, |(at, _)| at + 1));
    let first = answers.find_map(|message| match message {
        Message::Assistant { content, calls, parts } => Some((content, calls, parts)),
        Message::System { .. } | Message::User { .. } | Message::Tool { .. } => None,
    });
    first.is_none_or(|(content, calls, parts)| {
        let text = text_of(content.as_ref());
        let blocks = blocks(text.as_deref(), calls, own_parts(parts.as_ref(), maker));
        matches!(blocks.first(), Some(Block::Own(_)))
    })
}

/// Marks a block as the end of a cacheable prefix: the next request repeats everything up to it. Thinking blocks cannot
/// be marked.
fn mark(block: Option<&mut Value>) {
    if let Some(block) = block
        && !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
    {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
}

fn block(block: &Block<'_>) -> Option<Value> {
    match block {
        Block::Own(own) => Some((*own).clone()),
        // A block of text must not be empty.
        Block::Text(text, _) => (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text})),
        Block::Call(call, _) => {
            let input = object_arguments(&call.args);
            Some(json!({"type": "tool_use", "id": id(&call.tool_call_id), "name": call.gate, "input": input}))
        }
    }
}

/// Returns an id that this protocol accepts. The id of another provider may contain characters that it rejects.
fn id(id: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !id.is_empty() && id.chars().all(plain) {
        return id.into();
    }
    let hash = stable_hash(&json!(id)).map(|hash| hash.to_string()).unwrap_or_default();
    format!("call_{}", hash.chars().filter(|c| plain(*c)).take(32).collect::<String>()).into()
}

fn content_blocks(content: &Content, request: &Request) -> Result<Vec<Value>, String> {
    let text = |text: &str| json!({"type": "text", "text": if text.is_empty() { " " } else { text }});
    render_content(
        content,
        request,
        text,
        |media_type, data| json!({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}),
    )
}
