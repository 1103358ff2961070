//! Builds the body of a request.

use cantrip_loom::{Content, Message};
use serde_json::{Map, Value, json};

use crate::block_order::{Block, blocks, text_of};
use crate::http::{Body, Endpoint, object_arguments, render_content};
use crate::request::is_minted;
use crate::schema::for_gemini;
use crate::{Profile, Request, ThinkingBy, ToolChoice};

/// The placeholder for the signature of a call that this model did not sign, from the provider's documentation. A call
/// without a signature is refused, and a signature of another model may be refused.
const UNSIGNED: &str = "skip_thought_signature_validator";

/// Returns the body of a request, or the reason why these messages cannot be sent. Parts that this model made are sent
/// back.
pub(super) fn request_body(request: &Request, endpoint: &Endpoint) -> Result<Body, String> {
    let Endpoint { maker, profile, .. } = endpoint;
    let mut system = Vec::new();
    let mut contents: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in request.messages.iter() {
        let (role, said) = match message {
            Message::System { content } => {
                system.push(json!({"text": content.text()}));
                continue;
            }
            Message::User { content } => ("user", content_parts(content, request)?),
            // Results are matched by the function's name, in the order of the calls, and by the id if the call has one.
            Message::Tool { tool_call_id, gate, content } => {
                let mut response = json!({"name": gate, "response": {"result": content.text()}});
                identify(&mut response, tool_call_id);
                let mut said = vec![json!({ "functionResponse": response })];
                said.extend(
                    content_parts(content, request)?.into_iter().filter(|part| part.get("inlineData").is_some()),
                );
                ("user", said)
            }
            Message::Assistant { content, calls, parts } => {
                let text = text_of(content.as_ref());
                let own = parts.as_ref().filter(|parts| parts.maker == *maker);
                let mut said: Vec<Value> = blocks(text.as_deref(), calls, own).iter().filter_map(part).collect();
                if signs_calls(profile) {
                    sign(&mut said);
                }
                ("model", said)
            }
        };
        // The results of parallel calls belong in one message.
        match contents.last_mut() {
            Some((last, before)) if *last == role => before.extend(said),
            Some(_) | None => contents.push((role, said)),
        }
    }
    contents.retain(|(_, said)| !said.is_empty());
    let contents = contents.iter().map(|(role, parts)| json!({"role": role, "parts": parts}));
    let mut body = json!({ "contents": contents.collect::<Vec<_>>() });
    if let Some(format) = request.format.as_ref().filter(|_| !profile.structured) {
        system.push(json!({"text": format.in_words()}));
    }
    if !system.is_empty() {
        body["systemInstruction"] = json!({ "parts": system });
    }
    body["generationConfig"] = generation(request, profile);
    if !request.definitions.is_empty() {
        let functions = request.definitions.iter().map(|definition| {
            json!({
                "name": definition.name,
                "description": definition.description,
                "parametersJsonSchema": for_gemini(&definition.parameters),
            })
        });
        body["tools"] = json!([{"functionDeclarations": functions.collect::<Vec<_>>()}]);
        let mode = match request.choice {
            ToolChoice::Auto => "AUTO",
            ToolChoice::Required => "ANY",
            ToolChoice::None => "NONE",
        };
        body["toolConfig"] = json!({"functionCallingConfig": {"mode": mode}});
    }
    Ok(body.into())
}

fn generation(request: &Request, profile: &Profile) -> Value {
    let sampling = &request.sampling;
    let mut config = Map::new();
    config.insert("maxOutputTokens".to_owned(), request.output_tokens_max.into());
    let said = [
        ("temperature", sampling.temperature.map(Value::from)),
        ("topP", sampling.top_p.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
        ("stopSequences", (!sampling.stop.is_empty()).then(|| json!(sampling.stop))),
        ("thinkingConfig", thinking(request, profile)),
    ];
    config.extend(said.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
    if let Some(format) = request.format.as_ref().filter(|_| profile.structured) {
        config.insert("responseMimeType".to_owned(), "application/json".into());
        config.insert("responseJsonSchema".to_owned(), for_gemini(&format.schema));
    }
    Value::Object(config)
}

fn thinking(request: &Request, profile: &Profile) -> Option<Value> {
    let mut config = Map::new();
    if profile.thinks {
        config.insert("includeThoughts".to_owned(), true.into());
    }
    match profile.thinking_by {
        ThinkingBy::Budget => {
            let budget = request.thinking.budget(request.output_tokens_max);
            config.extend(budget.map(|tokens| ("thinkingBudget".to_owned(), tokens.into())));
        }
        ThinkingBy::Effort => {
            let level = request.thinking.effort.map(|effort| effort.as_str());
            config.extend(level.map(|level| ("thinkingLevel".to_owned(), level.into())));
        }
        ThinkingBy::Nothing | ThinkingBy::Adaptive | ThinkingBy::Switch => {}
    }
    (!config.is_empty()).then_some(Value::Object(config))
}

/// Returns true if the model refuses calls without a signature: thinking models from the third generation on.
fn signs_calls(profile: &Profile) -> bool {
    profile.thinks && profile.thinking_by != ThinkingBy::Budget
}

/// Ensures that the first of several parallel calls has a signature.
fn sign(parts: &mut [Value]) {
    let first = parts.iter_mut().find(|part| part.get("functionCall").is_some());
    if let Some(Value::Object(call)) = first {
        call.entry("thoughtSignature").or_insert_with(|| UNSIGNED.into());
    }
}

/// Sets the id of a call if the provider gave it one.
fn identify(call: &mut Value, id: &str) {
    if !is_minted(id) {
        call["id"] = id.into();
    }
}

fn part(block: &Block<'_>) -> Option<Value> {
    let (mut part, with) = match block {
        Block::Own(own) => return Some((*own).clone()),
        Block::Text("", None) => return None,
        Block::Text(text, with) => (json!({ "text": text }), with),
        Block::Call(call, with) => {
            let args = object_arguments(&call.args);
            let mut asked = json!({"name": call.gate, "args": args});
            identify(&mut asked, &call.tool_call_id);
            (json!({ "functionCall": asked }), with)
        }
    };
    if let (Value::Object(part), Some(with)) = (&mut part, with) {
        part.extend(with.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    Some(part)
}

fn content_parts(content: &Content, request: &Request) -> Result<Vec<Value>, String> {
    let image = |media_type: &str, data| json!({"inlineData": {"mimeType": media_type, "data": data}});
    render_content(content, request, |text| json!({ "text": text }), image)
}
