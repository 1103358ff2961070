//! Chat completions as a gateway serves them: reasoning with a signature that must be sent back unchanged.

use serde_json::{Value, json};

use super::{Rules, Said, combination, halves, list, made_up, text_of, unknown_field};

#[derive(Default)]
pub(crate) struct Chat {
    /// The ids of the calls and the reasoning of each answer.
    issued: Vec<(Vec<String>, Vec<Value>)>,
    /// True if the wire has reasoning, in the gateway's own field.
    pub(crate) reasons: bool,
}

fn ids(message: &Value) -> Vec<String> {
    list(&message["tool_calls"]).iter().map(|call| text_of(&call["id"]).to_owned()).collect()
}

impl Chat {
    pub(crate) fn gateway() -> Self {
        Self { reasons: true, ..Self::default() }
    }

    fn fields(&self, body: &Value) -> Result<(), String> {
        let unknown = |key: &str| Err(format!("Unrecognized request argument supplied: {key}"));
        let mut known = vec![
            "model",
            "messages",
            "stream",
            "stream_options",
            "max_tokens",
            "tools",
            "tool_choice",
            "temperature",
            "top_p",
            "seed",
            "stop",
            "response_format",
            "reasoning_effort",
        ];
        known.extend(self.reasons.then_some("reasoning"));
        if let Some(key) = unknown_field(body, &known) {
            return unknown(key);
        }
        for (at, message) in list(&body["messages"]).iter().enumerate() {
            let known: &[&str] = match message["role"].as_str() {
                Some("system" | "user") => &["role", "content"],
                Some("assistant") if self.reasons => &["role", "content", "tool_calls", "reasoning_details"],
                Some("assistant") => &["role", "content", "tool_calls"],
                Some("tool") => &["role", "content", "tool_call_id"],
                other => return Err(format!("Invalid value: {other:?} for 'messages[{at}].role'.")),
            };
            if let Some(key) = unknown_field(message, known) {
                return unknown(&format!("messages[{at}].{key}"));
            }
            if message["content"].is_null() && list(&message["tool_calls"]).is_empty() {
                return Err(format!("Invalid value for 'content': expected a string, got null. (messages[{at}])"));
            }
            let unwritten = |call: &&Value| !call["function"]["arguments"].is_string();
            if list(&message["tool_calls"]).iter().any(|call| unwritten(&call)) {
                return Err(format!(
                    "Invalid type for 'messages[{at}].tool_calls[0].function.arguments': expected a string."
                ));
            }
        }
        for tool in list(&body["tools"]) {
            let parameters = &tool["function"]["parameters"];
            if parameters["type"] != "object" || combination(parameters).is_some() {
                return Err(format!(
                    "Invalid schema for function {}: schema must have type 'object'.",
                    tool["function"]["name"]
                ));
            }
        }
        Ok(())
    }

    fn pairs(&self, body: &Value) -> Result<(), String> {
        let mut due: Vec<String> = Vec::new();
        for message in list(&body["messages"]) {
            if message["role"] == "tool" {
                let id = text_of(&message["tool_call_id"]);
                let Some(at) = due.iter().position(|due| due == id) else {
                    return Err(
                        "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                            .into(),
                    );
                };
                due.remove(at);
                continue;
            }
            if !due.is_empty() {
                break;
            }
            due = ids(message);
        }
        match due.first() {
            Some(id) => Err(format!(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. \
                 The following tool_call_ids did not have response messages: {id}"
            )),
            None => Ok(()),
        }
    }

    fn reasoning(&self, body: &Value) -> Result<(), String> {
        for message in list(&body["messages"]).iter().filter(|message| message["role"] == "assistant") {
            let details = list(&message["reasoning_details"]);
            let answer = self.issued.iter().find(|(calls, _)| !calls.is_empty() && *calls == ids(message));
            match answer {
                Some((_, issued)) if issued != details => {
                    return Err(
                        "Invalid `signature` in `thinking` block: reasoning_details must match the original response."
                            .into(),
                    );
                }
                None if details.iter().any(|detail| !self.issued.iter().any(|(_, issued)| issued.contains(detail))) => {
                    return Err("Invalid `signature` in `thinking` block".to_owned());
                }
                Some(_) | None => {}
            }
        }
        Ok(())
    }
}

impl Rules for Chat {
    fn request_types(&self) -> Option<&'static str> {
        Some(if self.reasons { "openrouter" } else { "chat" })
    }

    fn refuses(&self, body: &Value) -> Result<(), String> {
        self.fields(body)?;
        self.pairs(body)?;
        self.reasoning(body)
    }

    fn refusal(&self, message: &str) -> Value {
        json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": 400}})
    }

    fn answer(&mut self, body: &Value, said: &Said) -> String {
        let mut deltas: Vec<Value> = Vec::new();
        let mut details = Vec::new();
        if let Some(thought) = said.thought.filter(|_| self.reasons) {
            let signature = made_up("sig");
            let whole = json!({"type": "reasoning.text", "text": thought, "signature": signature, "format": "anthropic-claude-v1", "index": 0});
            for piece in halves(thought) {
                let detail =
                    json!({"type": "reasoning.text", "text": piece, "format": "anthropic-claude-v1", "index": 0});
                deltas.push(json!({"content": "", "reasoning": piece, "reasoning_details": [detail]}));
            }
            let detail =
                json!({"type": "reasoning.text", "signature": signature, "format": "anthropic-claude-v1", "index": 0});
            deltas.push(json!({"content": "", "reasoning_details": [detail]}));
            details.push(whole);
        }
        deltas.extend(said.text.iter().flat_map(|text| halves(text)).map(|text| json!({ "content": text })));
        let mut called = Vec::new();
        for (index, (name, arguments)) in said.calls.iter().enumerate() {
            let mut arguments = arguments.to_string();
            if said.cut && index + 1 == said.calls.len() {
                arguments.truncate(arguments.len() - 2);
            }
            let id = made_up("call_");
            let [one, two] = halves(&arguments);
            deltas.push(json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": one}}]}));
            deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": two}}]}));
            called.push(id);
        }
        let mut told: String = deltas
            .iter()
            .map(|delta| {
                format!("data: {}\n\n", json!({"model": body["model"], "choices": [{"index": 0, "delta": delta}]}))
            })
            .collect();
        let reason = match (said.cut, said.calls.is_empty()) {
            (true, _) => "length",
            (false, true) => "stop",
            (false, false) => "tool_calls",
        };
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 5});
        let last = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage});
        told.push_str(&format!("data: {last}\n\ndata: [DONE]\n\n"));
        self.issued.push((called, details));
        told
    }

    fn forget(&mut self) {
        self.issued.clear();
    }
}
