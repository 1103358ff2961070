//! Google's generateContent, as in its third generation: calls must be sent back with their signatures.

use serde_json::{Value, json};

use super::{Rules, Said, halves, list, made_up, text_of, unknown_field};

#[derive(Default)]
pub(crate) struct Gemini {
    /// The parts of each answer.
    issued: Vec<Vec<Value>>,
}

/// The allowed signature for a call that another model made.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// The documented keywords of a schema.
const KEYWORDS: [&str; 21] = [
    "$id",
    "$defs",
    "$ref",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "anyOf",
    "oneOf",
    "properties",
    "additionalProperties",
    "required",
    "propertyOrdering",
];

fn calls(content: &Value) -> Vec<&Value> {
    list(&content["parts"]).iter().filter(|part| part.get("functionCall").is_some()).collect()
}

fn responses(content: &Value) -> Vec<&Value> {
    list(&content["parts"]).iter().filter_map(|part| part.get("functionResponse")).collect()
}

fn schema(schema: &Value) -> Result<(), String> {
    if let Some(keyword) = unknown_field(schema, &KEYWORDS) {
        return Err(format!("Unknown keyword \"{keyword}\" in the JSON schema."));
    }
    let properties = schema["properties"].as_object().into_iter().flatten().map(|(_, schema)| schema);
    properties.chain(schema.get("items")).chain(list(&schema["anyOf"])).try_for_each(self::schema)
}

impl Gemini {
    fn fields(&self, body: &Value) -> Result<(), String> {
        let unknown = |key: &str, at: &str| {
            Err(format!("Invalid JSON payload received. Unknown name \"{key}\" at '{at}': Cannot find field."))
        };
        let known = ["contents", "systemInstruction", "generationConfig", "tools", "toolConfig", "safetySettings"];
        if let Some(key) = unknown_field(body, &known) {
            return unknown(key, "request");
        }
        let known = [
            "maxOutputTokens",
            "temperature",
            "topP",
            "topK",
            "seed",
            "stopSequences",
            "thinkingConfig",
            "responseMimeType",
            "responseJsonSchema",
        ];
        if let Some(key) = unknown_field(&body["generationConfig"], &known) {
            return unknown(key, "generation_config");
        }
        let thinking = &body["generationConfig"]["thinkingConfig"];
        if thinking.get("thinkingBudget").is_some() && thinking.get("thinkingLevel").is_some() {
            return Err("You can only set only one of thinking budget and thinking level.".to_owned());
        }
        for (at, content) in list(&body["contents"]).iter().enumerate() {
            if !matches!(content["role"].as_str(), Some("user" | "model")) {
                return Err("Please use a valid role: user, model.".to_owned());
            }
            for (place, part) in list(&content["parts"]).iter().enumerate() {
                let path = format!("contents[{at}].parts[{place}]");
                let known = ["text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData"];
                if let Some(key) = unknown_field(part, &known) {
                    return unknown(key, &path);
                }
                if let Some(key) = unknown_field(&part["functionCall"], &["id", "name", "args"]) {
                    return unknown(key, &format!("{path}.function_call"));
                }
                if let Some(key) = unknown_field(&part["functionResponse"], &["id", "name", "response"]) {
                    return unknown(key, &format!("{path}.function_response"));
                }
                let data = ["text", "functionCall", "functionResponse", "inlineData"];
                if data.iter().filter(|key| part.get(**key).is_some()).count() != 1 {
                    return Err(format!("{path}: required oneof field 'data' must have one initialized field"));
                }
            }
        }
        for declaration in list(&body["tools"][0]["functionDeclarations"]) {
            schema(&declaration["parametersJsonSchema"])?;
        }
        body["generationConfig"].get("responseJsonSchema").map_or(Ok(()), schema)
    }

    fn pairs(&self, body: &Value) -> Result<(), String> {
        let contents = list(&body["contents"]);
        for (at, content) in contents.iter().enumerate() {
            let asked = calls(content);
            let nothing = Value::Null;
            let answered = responses(contents.get(at + 1).unwrap_or(&nothing));
            if !asked.is_empty() && asked.len() != answered.len() {
                return Err(
                    "Please ensure that the number of function response parts is equal to the number of function \
                            call parts of the function call turn."
                        .to_owned(),
                );
            }
            for (call, response) in asked.iter().zip(&answered) {
                let call = &call["functionCall"];
                if (&call["name"], &call["id"]) != (&response["name"], &response["id"]) {
                    return Err(format!("The function response {response} does not match the function call {call}."));
                }
            }
            let before = at.checked_sub(1).map_or(&nothing, |before| &contents[before]);
            if !responses(content).is_empty() && calls(before).is_empty() {
                return Err(
                    "Please ensure that function response turn comes immediately after a function call turn.".into()
                );
            }
            if !asked.is_empty() && before["role"] != "user" {
                return Err(
                    "Please ensure that function call turn comes immediately after a user turn or after a function \
                            response turn."
                        .to_owned(),
                );
            }
        }
        Ok(())
    }

    fn signatures(&self, body: &Value) -> Result<(), String> {
        let contents = list(&body["contents"]);
        let says = |content: &Value| list(&content["parts"]).iter().any(|part| part.get("text").is_some());
        let turn = contents.iter().rposition(|content| content["role"] == "user" && says(content)).unwrap_or(0);
        for (at, content) in contents.iter().enumerate().filter(|(_, content)| content["role"] == "model") {
            for part in list(&content["parts"]) {
                let Some(signature) = part["thoughtSignature"].as_str() else { continue };
                let known = self.issued.iter().flatten().any(|issued| issued == part);
                let own = self.issued.iter().flatten().any(|issued| {
                    issued["functionCall"]["id"].is_string()
                        && issued["functionCall"]["id"] == part["functionCall"]["id"]
                });
                if !known && (own || signature != UNSIGNED) {
                    return Err("Corrupted thought signature.".to_owned());
                }
            }
            // The first call of each step after the last user message.
            if let Some(call) = calls(content).first().filter(|_| at > turn)
                && call.get("thoughtSignature").is_none()
            {
                return Err(format!(
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools to work \
                     correctly. Additional data, function call `default_api:{}`, position {at}.",
                    text_of(&call["functionCall"]["name"])
                ));
            }
        }
        Ok(())
    }
}

impl Rules for Gemini {
    fn request_types(&self) -> Option<&'static str> {
        Some("gemini")
    }

    fn refuses(&self, body: &Value) -> Result<(), String> {
        self.fields(body)?;
        self.pairs(body)?;
        self.signatures(body)
    }

    fn refusal(&self, message: &str) -> Value {
        json!([{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}])
    }

    fn answer(&mut self, _body: &Value, said: &Said) -> String {
        let mut chunks: Vec<Value> = Vec::new();
        chunks.extend(
            said.thought.iter().flat_map(|thought| halves(thought)).map(|text| json!({"text": text, "thought": true})),
        );
        chunks.extend(said.text.iter().flat_map(|text| halves(text)).map(|text| json!({ "text": text })));
        for (at, (name, args)) in said.calls.iter().enumerate() {
            let mut part = json!({"functionCall": {"id": made_up("fc"), "name": name, "args": args}});
            if at == 0 {
                part["thoughtSignature"] = made_up("").into();
            }
            chunks.push(part);
        }
        // After text, the signature is in its own part.
        if said.calls.is_empty() {
            chunks.push(json!({"text": "", "thoughtSignature": made_up("")}));
        }
        let last = chunks.len() - 1;
        let told = chunks.iter().enumerate().map(|(at, part)| {
            let mut candidate = json!({"content": {"role": "model", "parts": [part]}, "index": 0});
            if at == last {
                candidate["finishReason"] = if said.cut { "MAX_TOKENS" } else { "STOP" }.into();
            }
            let usage = json!({"promptTokenCount": 10, "candidatesTokenCount": 5});
            format!("data: {}\n\n", json!({"candidates": [candidate], "usageMetadata": usage}))
        });
        let told = told.collect();
        self.issued.push(chunks);
        told
    }

    fn forget(&mut self) {
        self.issued.clear();
    }
}
