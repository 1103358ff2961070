//! OpenAI's Responses API without storage at the provider: encrypted reasoning must be sent back before the item that
//! it led to.

use serde_json::{Value, json};

use super::{Rules, Said, combination, events, halves, list, made_up, text_of, unknown_field};

#[derive(Default)]
pub(crate) struct Responses {
    /// The items of each answer.
    issued: Vec<Vec<Value>>,
}

impl Responses {
    fn fields(&self, body: &Value) -> Result<(), String> {
        let unknown = |path: String| Err(format!("Unknown parameter: '{path}'."));
        let known = [
            "model",
            "input",
            "stream",
            "store",
            "max_output_tokens",
            "include",
            "reasoning",
            "text",
            "tools",
            "tool_choice",
            "temperature",
            "top_p",
        ];
        if let Some(key) = unknown_field(body, &known) {
            return unknown(key.to_owned());
        }
        for (at, item) in list(&body["input"]).iter().enumerate() {
            let by_provider = item["role"] == "assistant" && item["content"].is_array();
            let (known, needed): (&[&str], &[&str]) = match item["type"].as_str() {
                Some("reasoning") => {
                    (&["type", "id", "summary", "content", "encrypted_content", "status"], &["id", "summary"])
                }
                Some("function_call") => (
                    &["type", "id", "call_id", "name", "arguments", "status", "namespace", "caller"],
                    &["call_id", "name", "arguments"],
                ),
                Some("function_call_output") => {
                    (&["type", "id", "call_id", "output", "status"], &["call_id", "output"])
                }
                Some("message") | None if by_provider => {
                    (&["type", "id", "role", "content", "status", "phase"], &["id", "status", "content"])
                }
                Some("message") | None => (&["type", "role", "content", "phase"], &["role", "content"]),
                Some(other) => {
                    return Err(format!("Invalid value: '{other}'. Supported values are: 'message' and others."));
                }
            };
            if let Some(key) = unknown_field(item, known) {
                return unknown(format!("input[{at}].{key}"));
            }
            if let Some(key) = needed.iter().find(|key| item.get(**key).is_none()) {
                return Err(format!("Missing required parameter: 'input[{at}].{key}'."));
            }
            let wanted = if by_provider { "output_text" } else { "input_text" };
            let mut parts = list(&item["content"]).iter().filter(|_| item["type"] != "reasoning");
            if let Some(part) = parts.find(|part| part["type"] != wanted && part["type"] != "input_image") {
                return Err(format!("Invalid value: {}. Supported values are: '{wanted}'.", part["type"]));
            }
        }
        Ok(())
    }

    fn parameters(&self, body: &Value) -> Result<(), String> {
        if let Some(key) = ["temperature", "top_p"].into_iter().find(|key| body.get(*key).is_some()) {
            return Err(format!("Unsupported parameter: '{key}' is not supported with this model."));
        }
        if body["max_output_tokens"].as_u64().is_some_and(|tokens| tokens < 16) {
            return Err("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16.".to_owned());
        }
        for tool in list(&body["tools"]) {
            let parameters = &tool["parameters"];
            if parameters["type"] != "object" || combination(parameters).is_some() {
                return Err(format!(
                    "Invalid schema for function {}: schema must have type 'object' and not have \
                     'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level.",
                    tool["name"]
                ));
            }
        }
        Ok(())
    }

    fn pairs(&self, body: &Value) -> Result<(), String> {
        let input = list(&body["input"]);
        let ids = |kind: &str| -> Vec<&str> {
            let items = input.iter().filter(|item| item["type"] == kind);
            items.map(|item| text_of(&item["call_id"])).collect()
        };
        let (called, answered) = (ids("function_call"), ids("function_call_output"));
        if let Some(id) = answered.iter().find(|id| !called.contains(id)) {
            return Err(format!("No tool call found for function call output with call_id {id}."));
        }
        match called.iter().find(|id| !answered.contains(id)) {
            Some(id) => Err(format!("No tool output found for function call {id}.")),
            None => Ok(()),
        }
    }

    /// Checks that reasoning comes back unchanged, directly before the item that it led to, and that the item does not
    /// come without it.
    fn reasoning(&self, body: &Value) -> Result<(), String> {
        let input = list(&body["input"]);
        for (at, item) in input.iter().enumerate() {
            if item["type"] == "reasoning" {
                let id = text_of(&item["id"]);
                if item["encrypted_content"].as_str().is_none_or(str::is_empty) {
                    return Err(format!(
                        "Item with id '{id}' not found. Items are not persisted when `store` is set to false."
                    ));
                }
                let answer = self.issued.iter().find(|answer| answer.contains(item));
                let Some(answer) = answer else {
                    return Err(format!("The encrypted content for item {id} could not be verified."));
                };
                let next = answer.iter().skip_while(|issued| *issued != item).nth(1);
                if !input.get(at + 1).zip(next).is_some_and(|(given, next)| given["id"] == next["id"]) {
                    return Err(format!(
                        "Item '{id}' of type 'reasoning' was provided without its required following item."
                    ));
                }
            }
            let answer = self.issued.iter().find(|answer| answer.iter().any(|issued| issued["id"] == item["id"]));
            let Some(answer) = answer.filter(|_| item["id"].is_string() && item["type"] != "reasoning") else {
                continue;
            };
            if !answer.contains(item) {
                return Err(format!("Item {} is not what the model said.", item["id"]));
            }
            let place = answer.iter().position(|issued| issued["id"] == item["id"]).unwrap_or(0);
            let thought = place.checked_sub(1).map(|before| &answer[before]).filter(|item| item["type"] == "reasoning");
            if let Some(thought) = thought
                && at.checked_sub(1).is_none_or(|before| input[before]["id"] != thought["id"])
            {
                return Err(format!(
                    "Item {} of type {} was provided without its required 'reasoning' item: {}.",
                    item["id"], item["type"], thought["id"]
                ));
            }
        }
        // A call of this provider without its item id has lost its reasoning too.
        let lost = |item: &&Value| {
            item["type"] == "function_call"
                && item.get("id").is_none()
                && self.issued.iter().flatten().any(|issued| issued["call_id"] == item["call_id"])
        };
        match input.iter().find(lost) {
            Some(item) => Err(format!("Function call {} was provided without its reasoning.", item["call_id"])),
            None => Ok(()),
        }
    }
}

impl Rules for Responses {
    fn request_types(&self) -> Option<&'static str> {
        Some("responses")
    }

    fn refuses(&self, body: &Value) -> Result<(), String> {
        self.fields(body)?;
        self.parameters(body)?;
        self.pairs(body)?;
        self.reasoning(body)
    }

    fn refusal(&self, message: &str) -> Value {
        json!({"error": {"message": message, "type": "invalid_request_error", "param": "input", "code": null}})
    }

    fn answer(&mut self, body: &Value, said: &Said) -> String {
        let mut items = Vec::new();
        if let Some(thought) = said.thought {
            let summary = json!([{"type": "summary_text", "text": thought}]);
            items.push(json!({"type": "reasoning", "id": made_up("rs_"), "summary": summary, "encrypted_content": made_up("gAAA")}));
        }
        let status = if said.cut { "incomplete" } else { "completed" };
        if let Some(text) = &said.text {
            let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
            let phase = if said.calls.is_empty() { "final_answer" } else { "commentary" };
            items.push(json!({"type": "message", "id": made_up("msg_"), "role": "assistant", "status": status,
                "phase": phase, "content": content}));
        }
        for (at, (name, arguments)) in said.calls.iter().enumerate() {
            let mut arguments = arguments.to_string();
            if said.cut && at + 1 == said.calls.len() {
                arguments.truncate(arguments.len() - 2);
            }
            items
                .push(json!({"type": "function_call", "id": made_up("fc_"), "call_id": made_up("call_"), "name": name,
                "arguments": arguments, "status": status}));
        }
        let mut told = vec![json!({"type": "response.created", "response": {"status": "in_progress"}})];
        for (index, item) in items.iter().enumerate() {
            let mut begun = item.clone();
            begun["encrypted_content"] = "unfinished".into();
            told.push(json!({"type": "response.output_item.added", "output_index": index, "item": begun}));
            let (kind, text) = match item["type"].as_str() {
                Some("reasoning") => ("response.reasoning_summary_text.delta", &item["summary"][0]["text"]),
                Some("message") => ("response.output_text.delta", &item["content"][0]["text"]),
                _ => ("response.function_call_arguments.delta", &item["arguments"]),
            };
            let pieces = halves(text_of(text));
            told.extend(pieces.iter().map(|piece| json!({"type": kind, "output_index": index, "delta": piece})));
            told.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
        }
        let usage = json!({"input_tokens": 10, "output_tokens": 5});
        let mut response = json!({"model": body["model"], "status": status, "usage": usage});
        let kind = if said.cut { "response.incomplete" } else { "response.completed" };
        if said.cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        told.push(json!({"type": kind, "response": response}));
        self.issued.push(items);
        events(&told)
    }

    fn forget(&mut self) {
        self.issued.clear();
    }
}
