//! The peers are strict: a body that breaks one rule, sent directly, is refused for it.

use serde_json::{Value, json};

use super::casts::{Model, run, spell};
use super::{RequestTypes, Said, StrictPeer, list};
use crate::support::Folder;

/// The words of the expected refusal, and the change to the body.
type Break = (&'static str, fn(&mut Value));

/// Returns an accepted body of a cast, and its peer.
fn accepted(model: Model) -> (StrictPeer, Value) {
    let read = |path: &str| ("read", json!({ "path": path }));
    let peer = model.peer([
        Said::calling(&[read("a.txt"), read("a.txt")]).thinking("Twice, at once.").after("I look."),
        Said::calling(&[read("a.txt")]).thinking("And again."),
        Said::text("Read.").thinking("Enough."),
    ]);
    let folder = Folder::new();
    folder.write("reader.toml", &spell(&model.crystal(&peer), "conversation"));
    folder.write("a.txt", "first");
    let output = run(&folder, &["cast", "reader.toml", "read it", "--quiet"], &model.variables(&peer));
    assert_eq!(output.status.code(), Some(0), "{model:?}: {output:?}");
    let body = peer.bodies().pop().expect("a body");
    (peer, body)
}

#[track_caller]
fn each_is_refused(model: Model, breaks: &[Break]) {
    let (peer, body) = accepted(model);
    for (words, change) in breaks {
        let mut broken = body.clone();
        change(&mut broken);
        assert_ne!(broken, body, "{model:?}: nothing was broken for {words:?}");
        let (status, told) = peer.ask(&broken);
        assert_eq!(status, 400, "{model:?}, {words:?}: {told}");
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert!(told.to_string().contains(words), "{model:?}: {words:?} is not in {told}");
    }
    // The unchanged body is accepted.
    peer.will_say(Said::text("Fine."));
    assert_eq!(peer.ask(&body).0, 200);
}

fn remove(value: &mut Value, pointer: &str) {
    let (place, key) = pointer.rsplit_once('/').expect("a pointer");
    match value.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) {
        Value::Object(object) => drop(object.shift_remove(key)),
        Value::Array(values) => drop(values.remove(key.parse().expect("a place"))),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => panic!("{other} has no parts"),
    }
}

fn set(value: &mut Value, pointer: &str, to: Value) {
    let (place, key) = pointer.rsplit_once('/').expect("a pointer");
    let place = value.pointer_mut(place).unwrap_or_else(|| panic!("no {place}"));
    match key.parse::<usize>() {
        Ok(at) if place.is_array() => place[at] = to,
        _ => place[key] = to,
    }
}

#[test]
fn anthropic_refuses_what_its_documentation_says() {
    let _types = RequestTypes::hold();
    let shared: &[Break] = &[
        ("signature: Field required", |body| remove(body, "/messages/1/content/0/signature")),
        ("Invalid `signature`", |body| set(body, "/messages/1/content/0/signature", json!("sig0000"))),
        ("Invalid `signature`", |body| set(body, "/messages/1/content/0/thinking", json!("Thrice."))),
        ("Invalid `signature`", |body| set(body, "/messages/1/content/1/data", json!("red0000"))),
        ("Expected `thinking`", |body| {
            remove(body, "/messages/3/content/1");
            remove(body, "/messages/3/content/0");
        }),
        ("cannot be modified", |body| {
            let blocks = body["messages"][3]["content"].as_array_mut().expect("blocks");
            blocks.swap(0, 1);
        }),
        ("without `tool_result` blocks", |body| remove(body, "/messages/2/content/1")),
        ("unexpected `tool_use_id`", |body| {
            let results = body["messages"][4]["content"].as_array_mut().expect("results");
            results.push(json!({"type": "tool_result", "tool_use_id": "toolu_0", "content": "nobody asked"}));
        }),
        ("Extra inputs", |body| set(body, "/seed", json!(1))),
        ("Extra inputs", |body| set(body, "/messages/1/content/0/cache_control", json!({"type": "ephemeral"}))),
        ("non-whitespace", |body| set(body, "/messages/1/content/2/text", json!("\n\n"))),
        ("does not support anyOf", |body| set(body, "/tools/0/input_schema/anyOf", json!([]))),
        ("'minimum' is not supported", |body| {
            let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "additionalProperties": false});
            set(body, "/output_config", json!({"format": {"type": "json_schema", "schema": schema}}));
        }),
        ("'additionalProperties' must be", |body| {
            let schema = json!({"type": "object", "properties": {}});
            set(body, "/output_config", json!({"format": {"type": "json_schema", "schema": schema}}));
        }),
        ("A maximum of 4 blocks", |body| {
            set(body, "/tools/0/cache_control", json!({"type": "ephemeral"}));
            set(body, "/messages/1/content/2/cache_control", json!({"type": "ephemeral"}));
            set(body, "/messages/1/content/3/cache_control", json!({"type": "ephemeral"}));
        }),
    ];
    let budgeted: &[Break] = &[
        ("cannot both be specified", |body| {
            remove(body, "/thinking");
            set(body, "/temperature", json!(0.2));
            set(body, "/top_p", json!(0.2));
        }),
        ("may only be set to 1 when thinking", |body| set(body, "/temperature", json!(0.2))),
        ("forces tool use", |body| set(body, "/tool_choice", json!({"type": "any"}))),
        ("greater than or equal to 1024", |body| set(body, "/thinking/budget_tokens", json!(1_000))),
        ("must be greater than `thinking", |body| set(body, "/thinking/budget_tokens", json!(100_000))),
    ];
    each_is_refused(Model::Budgeted, &[shared, budgeted].concat());
    let bound: &[Break] = &[
        ("`temperature` is deprecated", |body| set(body, "/temperature", json!(0.2))),
        ("`top_p` is deprecated", |body| set(body, "/top_p", json!(0.2))),
        ("not supported for this model", |body| {
            set(body, "/thinking", json!({"type": "enabled", "budget_tokens": 2_000}))
        }),
        ("bound to a different conversation", |body| set(body, "/system/0/text", json!("You write."))),
        ("bound to a different conversation", |body| set(body, "/tools/0/description", json!("Another."))),
        ("bound to a different conversation", |body| set(body, "/messages/0/content/0/text", json!("Something else."))),
    ];
    each_is_refused(Model::Bound, &[shared, bound].concat());
}

#[test]
fn openai_refuses_what_its_documentation_says() {
    let _types = RequestTypes::hold();
    // system, user, reasoning, message, two calls, two results, reasoning, call, result
    each_is_refused(
        Model::Responses,
        &[
            ("could not be verified", |body| set(body, "/input/2/encrypted_content", json!("gAAA0"))),
            ("could not be verified", |body| set(body, "/input/2/summary/0/text", json!("Otherwise."))),
            ("not found. Items are not persisted", |body| remove(body, "/input/2/encrypted_content")),
            ("without its required following item", |body| remove(body, "/input/3")),
            ("without its required 'reasoning' item", |body| remove(body, "/input/8")),
            ("without its reasoning", |body| {
                remove(body, "/input/9/id");
                remove(body, "/input/8");
            }),
            ("No tool call found", |body| set(body, "/input/6/call_id", json!("call_0"))),
            ("No tool output found", |body| remove(body, "/input/7")),
            ("Missing required parameter: 'input[3].id'", |body| remove(body, "/input/3/id")),
            ("Missing required parameter: 'input[3].status'", |body| remove(body, "/input/3/status")),
            ("is not what the model said", |body| set(body, "/input/3/phase", json!("final_answer"))),
            ("Unknown parameter: 'seed'", |body| set(body, "/seed", json!(1))),
            ("Unknown parameter: 'input[4].signature'", |body| set(body, "/input/4/signature", json!("s"))),
            ("'temperature' is not supported", |body| set(body, "/temperature", json!(0.2))),
            ("'top_p' is not supported", |body| set(body, "/top_p", json!(0.2))),
            ("schema must have type 'object'", |body| set(body, "/tools/0/parameters/anyOf", json!([]))),
            ("integer below minimum value", |body| set(body, "/max_output_tokens", json!(8))),
        ],
    );
}

#[test]
fn gemini_refuses_what_its_documentation_says() {
    let _types = RequestTypes::hold();
    // user, model (text, two calls), results, model (call), result
    let call =
        |body: &Value| list(&body["contents"][1]["parts"]).iter().position(|part| part.get("functionCall").is_some());
    let (_, body) = accepted(Model::Gemini);
    assert_eq!(call(&body), Some(1), "the text is one part: {body}");
    each_is_refused(
        Model::Gemini,
        &[
            ("missing a thought_signature", |body| remove(body, "/contents/1/parts/1/thoughtSignature")),
            ("missing a thought_signature", |body| remove(body, "/contents/3/parts/0/thoughtSignature")),
            ("Corrupted thought signature", |body| set(body, "/contents/1/parts/1/thoughtSignature", json!("AAAA"))),
            ("Corrupted thought signature", |body| {
                set(body, "/contents/1/parts/1/thoughtSignature", json!("skip_thought_signature_validator"));
            }),
            ("Corrupted thought signature", |body| {
                let moved = body["contents"][1]["parts"][1]["thoughtSignature"].clone();
                set(body, "/contents/1/parts/2/thoughtSignature", moved);
            }),
            ("number of function response parts", |body| remove(body, "/contents/2/parts/1")),
            ("does not match the function call", |body| {
                set(body, "/contents/2/parts/0/functionResponse/id", json!("fc0"))
            }),
            ("does not match the function call", |body| remove(body, "/contents/2/parts/0/functionResponse/id")),
            ("immediately after a function call turn", |body| {
                let response = body["contents"][2]["parts"][0].clone();
                body["contents"][0]["parts"].as_array_mut().expect("parts").push(response);
            }),
            ("immediately after a user turn", |body| {
                let contents = body["contents"].as_array_mut().expect("contents");
                contents.insert(1, json!({"role": "model", "parts": [{"text": "Wait."}]}));
            }),
            ("Unknown name \\\"tool_choice\\\"", |body| set(body, "/tool_choice", json!("auto"))),
            ("Unknown name \\\"signature\\\"", |body| set(body, "/contents/1/parts/1/signature", json!("s"))),
            ("valid role", |body| set(body, "/contents/1/role", json!("assistant"))),
            ("only one of thinking budget", |body| {
                set(body, "/generationConfig/thinkingConfig/thinkingBudget", json!(100))
            }),
            ("Unknown keyword", |body| {
                set(body, "/tools/0/functionDeclarations/0/parametersJsonSchema/patternProperties", json!({}));
            }),
            ("one initialized field", |body| set(body, "/contents/0/parts/0", json!({}))),
        ],
    );
}

#[test]
fn chat_completions_refuse_what_their_documentation_says() {
    let _types = RequestTypes::hold();
    // system, user, assistant with two calls, two results, assistant with a call, result
    let shared: &[Break] = &[
        ("must be a response to a preceeding message", |body| set(body, "/messages/3/tool_call_id", json!("call_0"))),
        ("did not have response messages", |body| remove(body, "/messages/4")),
        ("Unrecognized request argument supplied: top_k", |body| set(body, "/top_k", json!(1))),
        ("Unrecognized request argument supplied: messages[1].name", |body| {
            set(body, "/messages/1/name", json!("ann"))
        }),
        ("expected a string, got null", |body| set(body, "/messages/1/content", json!(null))),
        ("expected a string.", |body| set(body, "/messages/2/tool_calls/0/function/arguments", json!({}))),
        ("schema must have type 'object'", |body| set(body, "/tools/0/function/parameters/oneOf", json!([]))),
    ];
    each_is_refused(Model::Local, shared);
    let gateway: &[Break] = &[
        ("must match the original response", |body| remove(body, "/messages/2/reasoning_details")),
        ("must match the original response", |body| {
            set(body, "/messages/2/reasoning_details/0/signature", json!("sig0"));
        }),
        ("must match the original response", |body| {
            set(body, "/messages/2/reasoning_details/0/text", json!("Otherwise."));
        }),
    ];
    each_is_refused(Model::Gateway, &[shared, gateway].concat());
}

#[test]
fn ollama_refuses_what_it_cannot_read() {
    let _types = RequestTypes::hold();
    each_is_refused(
        Model::Ollama,
        &[
            ("unknown field", |body| set(body, "/tool_choice", json!("auto"))),
            ("invalid think value", |body| set(body, "/think", json!("hardest"))),
            ("invalid format", |body| set(body, "/format", json!("yaml"))),
            ("invalid role", |body| set(body, "/messages/1/role", json!("model"))),
            ("cannot unmarshal string", |body| {
                set(body, "/messages/2/tool_calls/0/function/arguments", json!("{}"));
            }),
            ("cannot unmarshal array", |body| set(body, "/messages/1/content", json!([]))),
            ("that nobody called", |body| set(body, "/messages/3/tool_name", json!("write"))),
            ("no result of read", |body| remove(body, "/messages/4")),
            ("not what the model thought", |body| remove(body, "/messages/2/thinking")),
        ],
    );
}
