//! Anthropic's Messages API: signed thinking must be sent back unchanged, after the same prefix.

use serde_json::{Value, json};

use super::{Rules, Said, combination, events, halves, list, made_up, text_of, unknown_field};

/// The generation of models that the peer simulates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Generation {
    /// Thinking has a token budget; a temperature or a `top_p` is allowed.
    Budgeted,
    /// Thinking has an effort level; neither is allowed, and thinking blocks are bound to the prefix before them.
    Bound,
}

pub(crate) struct Anthropic {
    generation: Generation,
    issued: Vec<Issued>,
}

/// An answer of the peer.
struct Issued {
    blocks: Vec<Value>,
    /// The request before it, without the cache marks.
    before: Value,
}

impl Anthropic {
    pub(crate) fn new(generation: Generation) -> Self {
        Self { generation, issued: Vec::new() }
    }

    fn fields(&self, body: &Value) -> Result<(), String> {
        let known = [
            "model",
            "max_tokens",
            "messages",
            "stream",
            "system",
            "thinking",
            "output_config",
            "stop_sequences",
            "tools",
            "tool_choice",
            "temperature",
            "top_p",
            "metadata",
            "service_tier",
        ];
        let extra = |path: &str, key: &str| Err(format!("{path}{key}: Extra inputs are not permitted"));
        if let Some(key) = unknown_field(body, &known) {
            return extra("", key);
        }
        for (at, message) in list(&body["messages"]).iter().enumerate() {
            if let Some(key) = unknown_field(message, &["role", "content"]) {
                return extra(&format!("messages.{at}."), key);
            }
            for (place, block) in list(&message["content"]).iter().enumerate() {
                let path = format!("messages.{at}.content.{place}.");
                let known: &[&str] = match block["type"].as_str() {
                    Some("text") => &["type", "text", "cache_control"],
                    Some("thinking") => &["type", "thinking", "signature"],
                    Some("redacted_thinking") => &["type", "data"],
                    Some("tool_use") => &["type", "id", "name", "input", "cache_control"],
                    Some("tool_result") => &["type", "tool_use_id", "content", "is_error", "cache_control"],
                    Some("image") => &["type", "source", "cache_control"],
                    other => return Err(format!("{path}type: Input tag {other:?} found")),
                };
                if let Some(key) = unknown_field(block, known) {
                    return extra(&path, key);
                }
                if block["type"] == "text" && text_of(&block["text"]).trim().is_empty() {
                    return Err(format!("{path}text: text content blocks must contain non-whitespace text"));
                }
            }
        }
        for (at, tool) in list(&body["tools"]).iter().enumerate() {
            if let Some(key) = unknown_field(tool, &["name", "description", "input_schema", "cache_control", "type"]) {
                return extra(&format!("tools.{at}."), key);
            }
        }
        Ok(())
    }

    fn parameters(&self, body: &Value) -> Result<(), String> {
        let given = |key: &str| body.get(key).is_some();
        match self.generation {
            Generation::Bound => {
                if let Some(key) = ["temperature", "top_p"].into_iter().find(|key| given(key)) {
                    return Err(format!("`{key}` is deprecated for this model."));
                }
                if body["thinking"]["type"] == "enabled" {
                    return Err("\"thinking.type.enabled\" is not supported for this model.".to_owned());
                }
            }
            Generation::Budgeted if given("temperature") && given("top_p") => {
                return Err("`temperature` and `top_p` cannot both be specified for this model.".to_owned());
            }
            Generation::Budgeted => {}
        }
        if body["thinking"]["type"] == "enabled" {
            let budget = body["thinking"]["budget_tokens"].as_u64().unwrap_or(0);
            if budget < 1_024 {
                return Err("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024".to_owned());
            }
            if budget >= body["max_tokens"].as_u64().unwrap_or(0) {
                return Err("`max_tokens` must be greater than `thinking.budget_tokens`.".to_owned());
            }
            if given("temperature") {
                return Err("`temperature` may only be set to 1 when thinking is enabled.".to_owned());
            }
            if matches!(body["tool_choice"]["type"].as_str(), Some("any" | "tool")) {
                return Err("Thinking may not be enabled when tool_choice forces tool use.".to_owned());
            }
        }
        let marks = body.to_string().matches("\"cache_control\"").count();
        if marks > 4 {
            return Err(format!("A maximum of 4 blocks with cache_control may be provided. Found {marks}."));
        }
        for (at, tool) in list(&body["tools"]).iter().enumerate() {
            if let Some(keyword) = combination(&tool["input_schema"]) {
                return Err(format!(
                    "tools.{at}.custom.input_schema: input_schema does not support {keyword} at the top level"
                ));
            }
        }
        match body["output_config"]["format"].get("schema") {
            Some(schema) => held(schema),
            None => Ok(()),
        }
    }

    /// Checks that each call is answered directly after it, and that no other call is answered.
    fn pairs(&self, body: &Value) -> Result<(), String> {
        let messages = list(&body["messages"]);
        let ids = |message: Option<&Value>, kind: &str, key: &str| -> Vec<String> {
            let blocks = message.map_or(&[][..], |message| list(&message["content"]));
            let of_kind = blocks.iter().filter(|block| block["type"] == kind);
            of_kind.map(|block| text_of(&block[key]).to_owned()).collect()
        };
        for (at, message) in messages.iter().enumerate() {
            let called = ids(Some(message), "tool_use", "id");
            let answered = ids(messages.get(at + 1), "tool_result", "tool_use_id");
            if let Some(id) = called.iter().find(|id| !answered.contains(id)) {
                return Err(format!(
                    "messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after: {id}."
                ));
            }
            let before = at.checked_sub(1).and_then(|before| messages.get(before));
            let asked = ids(before, "tool_use", "id");
            if let Some(id) = ids(Some(message), "tool_result", "tool_use_id").iter().find(|id| !asked.contains(id)) {
                return Err(format!("messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {id}."));
            }
        }
        Ok(())
    }

    fn thoughts(&self, body: &Value) -> Result<(), String> {
        let messages = list(&body["messages"]);
        for (at, message) in messages.iter().enumerate() {
            for (place, block) in list(&message["content"]).iter().enumerate() {
                let path = format!("messages.{at}.content.{place}");
                let issued = match block["type"].as_str() {
                    Some("thinking") if block["signature"].as_str().is_none_or(str::is_empty) => {
                        return Err(format!("{path}.thinking.signature: Field required"));
                    }
                    Some("thinking") => self.issued.iter().find(|issued| issued.blocks.contains(block)),
                    Some("redacted_thinking") => self.issued.iter().find(|issued| issued.blocks.contains(block)),
                    _ => continue,
                };
                let Some(issued) = issued else {
                    return Err(format!("{path}: Invalid `signature` in `thinking` block"));
                };
                if self.generation == Generation::Bound && issued.before != before(body, at) {
                    return Err(format!(
                        "{path}: Invalid `signature` in `thinking` block. The block is bound to a different conversation."
                    ));
                }
            }
        }
        // After the last user message, every block must be unchanged.
        let results_only =
            |message: &Value| list(&message["content"]).iter().all(|block| block["type"] == "tool_result");
        let user = messages.iter().rposition(|message| message["role"] == "user" && !results_only(message));
        let turn = messages.iter().enumerate().skip(user.map_or(0, |at| at + 1));
        // Thinking blocks are signed; of the calls around them only the position counts.
        let said = |blocks: &[Value]| -> Vec<Value> {
            let blocks = blocks.iter().filter(|block| block["type"] != "text");
            blocks.map(|block| if block["type"] == "tool_use" { block["id"].clone() } else { block.clone() }).collect()
        };
        for (at, message) in turn.filter(|(_, message)| message["role"] == "assistant") {
            let blocks = list(&message["content"]);
            let is_call_of = |issued: &&Issued| {
                let mut calls = blocks.iter().filter(|block| block["type"] == "tool_use");
                calls.any(|call| issued.blocks.iter().any(|block| block["id"] == call["id"]))
            };
            let Some(issued) = self.issued.iter().find(is_call_of) else { continue };
            if said(blocks) == said(&issued.blocks) {
                continue;
            }
            let thinks = |block: &&Value| matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"));
            let moved = self.generation == Generation::Bound && issued.before != before(body, at);
            if moved && !blocks.iter().any(|block| thinks(&block)) {
                // The prefix of the thinking has changed, so the thinking may be left out.
                continue;
            }
            return Err(match blocks.iter().find(thinks) {
                None => format!(
                    "messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`."
                ),
                Some(_) => format!(
                    "messages.{at}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."
                ),
            });
        }
        // If thinking is enabled, the message with the calls must start with a thinking block.
        let first = messages.iter().skip(user.map_or(0, |at| at + 1)).find(|message| message["role"] == "assistant");
        let begins =
            |message: &Value| matches!(message["content"][0]["type"].as_str(), Some("thinking" | "redacted_thinking"));
        match first {
            Some(first) if body["thinking"]["type"] == "enabled" && !begins(first) => {
                Err("Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` is enabled, a final \
                     `assistant` message must start with a thinking block."
                    .to_owned())
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// Checks that structured output supports the schema.
fn held(schema: &Value) -> Result<(), String> {
    let refused = ["minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern", "maxItems", "oneOf", "not"];
    if let Some(keyword) = refused.iter().find(|keyword| schema.get(keyword).is_some()) {
        return Err(format!("output_config.format.schema: property '{keyword}' is not supported"));
    }
    if schema["type"] == "object" && schema["additionalProperties"] != false {
        return Err(
            "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false"
                .into(),
        );
    }
    let properties = schema["properties"].as_object().into_iter().flatten().map(|(_, schema)| schema);
    properties.chain(schema.get("items")).chain(list(&schema["anyOf"])).try_for_each(held)
}

fn unmarked(value: &Value) -> Value {
    match value {
        Value::Object(object) => object
            .iter()
            .filter(|(key, _)| *key != "cache_control")
            .map(|(key, value)| (key.clone(), unmarked(value)))
            .collect(),
        Value::Array(values) => values.iter().map(unmarked).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

/// Returns the prefix of a message.
fn before(body: &Value, at: usize) -> Value {
    let messages = &list(&body["messages"])[..at];
    unmarked(&json!({"system": body["system"], "tools": body["tools"], "messages": messages}))
}

impl Rules for Anthropic {
    fn request_types(&self) -> Option<&'static str> {
        Some("anthropic")
    }

    fn refuses(&self, body: &Value) -> Result<(), String> {
        self.fields(body)?;
        self.parameters(body)?;
        self.pairs(body)?;
        self.thoughts(body)
    }

    fn refusal(&self, message: &str) -> Value {
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}, "request_id": "req_1"})
    }

    fn answer(&mut self, body: &Value, said: &Said) -> String {
        let mut blocks = Vec::new();
        let thinks = match self.generation {
            Generation::Budgeted => body["thinking"]["type"] == "enabled",
            Generation::Bound => true,
        };
        if let Some(thought) = said.thought.filter(|_| thinks) {
            blocks.push(json!({"type": "thinking", "thinking": thought, "signature": made_up("sig")}));
            blocks.push(json!({"type": "redacted_thinking", "data": made_up("red")}));
        }
        blocks.extend(said.text.iter().map(|text| json!({"type": "text", "text": text})));
        blocks.extend(
            said.calls.iter().map(
                |(name, input)| json!({"type": "tool_use", "id": made_up("toolu_"), "name": name, "input": input}),
            ),
        );
        let usage = json!({"input_tokens": 10, "output_tokens": 1});
        let mut told = vec![
            json!({"type": "message_start", "message": {"id": "msg_1", "model": body["model"], "content": [], "usage": usage}}),
            json!({"type": "ping"}),
        ];
        for (index, block) in blocks.iter().enumerate() {
            let delta = |delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
            let (start, deltas): (Value, Vec<Value>) = match block["type"].as_str() {
                Some("thinking") => {
                    let pieces = halves(text_of(&block["thinking"]));
                    let mut deltas: Vec<_> = pieces
                        .iter()
                        .map(|piece| delta(json!({"type": "thinking_delta", "thinking": piece})))
                        .collect();
                    let signed = halves(text_of(&block["signature"]));
                    deltas.extend(
                        signed.iter().map(|piece| delta(json!({"type": "signature_delta", "signature": piece}))),
                    );
                    (json!({"type": "thinking", "thinking": "", "signature": ""}), deltas)
                }
                Some("text") => {
                    let pieces = halves(text_of(&block["text"]));
                    let deltas = pieces.iter().map(|piece| delta(json!({"type": "text_delta", "text": piece})));
                    (json!({"type": "text", "text": ""}), deltas.collect())
                }
                Some("tool_use") => {
                    let mut written = block["input"].to_string();
                    if said.cut && index + 1 == blocks.len() {
                        written.truncate(written.len() - 2);
                    }
                    let pieces =
                        halves(&written).map(|piece| delta(json!({"type": "input_json_delta", "partial_json": piece})));
                    (
                        json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                        pieces.to_vec(),
                    )
                }
                _ => (block.clone(), Vec::new()),
            };
            told.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
            told.extend(deltas);
            told.push(json!({"type": "content_block_stop", "index": index}));
        }
        let reason = match (said.cut, said.calls.is_empty()) {
            (true, _) => "max_tokens",
            (false, true) => "end_turn",
            (false, false) => "tool_use",
        };
        told.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}));
        told.push(json!({"type": "message_stop"}));
        self.issued.push(Issued { blocks, before: before(body, list(&body["messages"]).len()) });
        events(&told)
    }

    fn forget(&mut self) {
        self.issued.clear();
    }
}
