//! Ollama's own chat API. It signs nothing, and refuses bodies that do not fit its types.

use serde_json::{Value, json};

use super::{Rules, Said, halves, list, unknown_field};

#[derive(Default)]
pub(crate) struct Ollama {
    /// The thinking before the calls, and the names of the called tools.
    issued: Vec<(String, Vec<String>)>,
}

impl Rules for Ollama {
    /// Its own library is not installed, so there are no request types.
    fn request_types(&self) -> Option<&'static str> {
        None
    }

    fn refuses(&self, body: &Value) -> Result<(), String> {
        let known = ["model", "messages", "stream", "options", "tools", "think", "format", "keep_alive"];
        if let Some(key) = unknown_field(body, &known) {
            return Err(format!("unknown field {key:?}"));
        }
        if body
            .get("think")
            .is_some_and(|think| !think.is_boolean() && !matches!(think.as_str(), Some("low" | "medium" | "high")))
        {
            return Err(format!(
                "invalid think value: {} (must be \"high\", \"medium\", \"low\", true, or false)",
                body["think"]
            ));
        }
        if body.get("format").is_some_and(|format| !format.is_object() && format != "json") {
            return Err("invalid format: expected \"json\" or a JSON schema".to_owned());
        }
        let mut due: Vec<String> = Vec::new();
        let mut answers = self.issued.iter();
        for (at, message) in list(&body["messages"]).iter().enumerate() {
            if !matches!(message["role"].as_str(), Some("system" | "user" | "assistant" | "tool")) {
                return Err(format!("invalid role: {}", message["role"]));
            }
            let known = ["role", "content", "thinking", "images", "tool_calls", "tool_name"];
            if let Some(key) = unknown_field(message, &known) {
                return Err(format!("messages.{at}: unknown field {key:?}"));
            }
            if !message["content"].is_string() {
                return Err(
                    "json: cannot unmarshal array into Go struct field ChatRequest.messages.content of type string"
                        .into(),
                );
            }
            if message["role"] == "tool" {
                if due.first().is_none_or(|due| message["tool_name"] != **due) {
                    return Err(format!("messages.{at}: a result of {} that nobody called", message["tool_name"]));
                }
                due.remove(0);
                continue;
            }
            if let Some(name) = due.first() {
                return Err(format!("messages.{at}: no result of {name}"));
            }
            for call in list(&message["tool_calls"]) {
                if !call["function"]["arguments"].is_object() {
                    return Err("json: cannot unmarshal string into Go struct field \
                                ChatRequest.messages.tool_calls.function.arguments of type map"
                        .to_owned());
                }
                due.push(call["function"]["name"].as_str().unwrap_or_default().to_owned());
            }
            if message["role"] == "assistant" {
                let thought = answers.next().map(|(thought, _)| thought.as_str()).unwrap_or_default();
                if !due.is_empty() && message["thinking"].as_str().unwrap_or_default() != thought {
                    return Err(format!("messages.{at}: not what the model thought"));
                }
            }
        }
        due.first().map_or(Ok(()), |name| Err(format!("no result of {name}")))
    }

    fn refusal(&self, message: &str) -> Value {
        json!({ "error": message })
    }

    fn answer(&mut self, body: &Value, said: &Said) -> String {
        let mut messages: Vec<Value> = Vec::new();
        messages.extend(
            said.thought
                .iter()
                .flat_map(|thought| halves(thought))
                .map(|text| json!({"role": "assistant", "content": "", "thinking": text})),
        );
        messages.extend(
            said.text.iter().flat_map(|text| halves(text)).map(|text| json!({"role": "assistant", "content": text})),
        );
        if !said.calls.is_empty() {
            let calls =
                said.calls.iter().map(|(name, arguments)| json!({"function": {"name": name, "arguments": arguments}}));
            messages.push(json!({"role": "assistant", "content": "", "tool_calls": calls.collect::<Vec<_>>()}));
        }
        let mut told: String = messages
            .iter()
            .map(|message| format!("{}\n", json!({"model": body["model"], "message": message, "done": false})))
            .collect();
        let last = json!({"model": body["model"], "message": {"role": "assistant", "content": ""}, "done": true,
            "done_reason": if said.cut { "length" } else { "stop" }, "prompt_eval_count": 10, "eval_count": 5});
        told.push_str(&format!("{last}\n"));
        let called = said.calls.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.issued.push((said.thought.unwrap_or_default().to_owned(), called));
        told
    }

    fn forget(&mut self) {
        self.issued.iter_mut().for_each(|(thought, _)| *thought = "something else".to_owned());
    }
}
