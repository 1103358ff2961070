//! The binary with each family of providers, over real HTTP: keys, casts and faults.

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::{Folder, stdout};

pub(crate) const KEY: &str = "sk-planted-0123456789abcdef0123456789";

/// A provider on loopback: answers each request with the next status and body, and records the requests.
pub(crate) struct Provider {
    pub(crate) address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Provider {
    pub(crate) fn serving(answers: Vec<(u16, Vec<String>)>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        std::thread::spawn(move || {
            for (status, events) in answers {
                let (mut stream, request) = loop {
                    let (mut stream, request) = taken(&listener);
                    // It does not report a context window: only requests for an answer or for its models count.
                    if status == 207 || !asks_for_window(&request) {
                        break (stream, request);
                    }
                    let _ = stream.write_all(b"HTTP/1.1 404 Said\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                };
                let request_is_ollamas = request.starts_with("POST /api/chat ");
                log.lock().expect("not poisoned").push(request);
                let kind = if status == 200 { "text/event-stream" } else { "application/json" };
                let body: String = match status {
                    // Ollama sends lines of JSON without a prefix.
                    200 if request_is_ollamas => events.iter().map(|event| format!("{event}\n")).collect(),
                    200 => events.iter().map(|event| format!("data: {event}\n\n")).collect(),
                    _ => events.concat(),
                };
                let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).expect("writable");
                stream.write_all(body.as_bytes()).expect("writable");
            }
        });
        Self { address, asked }
    }

    /// A provider that answers one request with this plain body.
    pub(crate) fn telling(body: String) -> Self {
        Self::serving(vec![(207, vec![body])])
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

/// Returns the next request.
fn taken(listener: &TcpListener) -> (TcpStream, String) {
    let (mut stream, _) = listener.accept().expect("a connection");
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    let whole = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        (body.len() >= length.unwrap_or(0)).then(|| text.clone())
    };
    loop {
        let read = stream.read(&mut chunk).expect("readable");
        bytes.extend_from_slice(&chunk[..read]);
        if let Some(request) = whole(&bytes) {
            return (stream, request);
        }
    }
}

fn asks_for_window(request: &str) -> bool {
    request.starts_with("GET ") || request.starts_with("POST /api/show ")
}

/// A program that calls a gate, then one that ends the cast, in the format of each family.
pub(crate) fn programs(family: &str) -> Vec<(u16, Vec<String>)> {
    ["console.log(read('notes.txt'))", "done('seen')"].map(|code| (200, said(family, code))).to_vec()
}

pub(crate) fn said(family: &str, code: &str) -> Vec<String> {
    let arguments = json!({ "code": code }).to_string();
    let events: Vec<Value> = match family {
        "anthropic" => vec![
            json!({"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 10, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "tool_use", "id": "toolu_1", "name": "javascript", "input": {}}}),
            json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": arguments}}),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}}),
            json!({"type": "message_stop"}),
        ],
        "openai" => {
            let item = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "javascript", "arguments": arguments});
            let usage = json!({"input_tokens": 10, "output_tokens": 5});
            vec![
                json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
                json!({"type": "response.completed", "response": {"model": "m", "status": "completed", "usage": usage}}),
            ]
        }
        "gemini" => vec![json!({
            "candidates": [{"finishReason": "STOP", "content": {"parts": [
                {"functionCall": {"name": "javascript", "args": {"code": code}}},
            ]}}],
            "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5},
        })],
        "ollama" => {
            let call = json!({"function": {"name": "javascript", "arguments": {"code": code}}});
            vec![
                json!({"model": "m", "message": {"role": "assistant", "content": "", "tool_calls": [call]}, "done": false}),
                json!({"model": "m", "message": {"role": "assistant", "content": ""}, "done": true,
                    "done_reason": "stop", "prompt_eval_count": 10, "eval_count": 5}),
            ]
        }
        _ => {
            let call = json!({"index": 0, "id": "call_1", "function": {"name": "javascript", "arguments": arguments}});
            let usage = json!({"prompt_tokens": 10, "completion_tokens": 5});
            let mut events = vec![
                json!({"model": "m", "choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}).to_string(),
                json!({"choices": [], "usage": usage}).to_string(),
            ];
            events.push("[DONE]".to_owned());
            return events;
        }
    };
    events.iter().map(Value::to_string).collect()
}

/// Each family: its name, the variable of its key, the variable of its address, and the path after the address.
pub(crate) const FAMILIES: [(&str, Option<&str>, &str, &str); 5] = [
    ("anthropic", Some("ANTHROPIC_API_KEY"), "ANTHROPIC_BASE_URL", ""),
    ("openai", Some("OPENAI_API_KEY"), "OPENAI_BASE_URL", "/v1"),
    ("gemini", Some("GEMINI_API_KEY"), "GEMINI_BASE_URL", "/v1beta"),
    ("openrouter", Some("OPENROUTER_API_KEY"), "OPENROUTER_BASE_URL", "/v1"),
    ("ollama", None, "OLLAMA_HOST", ""),
];

fn cast(folder: &Folder, family: &str, further: &[&str], variables: &[(&str, &str)]) -> Output {
    let crystal = format!("{family}/m");
    let mut command = folder.command(&[&["cast", "look around", "--crystal", &crystal][..], further].concat());
    for (_, key, base, _) in FAMILIES {
        key.into_iter().chain([base, "GOOGLE_API_KEY"]).for_each(|name| {
            command.env_remove(name);
        });
    }
    command.envs(variables.iter().copied());
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

#[test]
fn a_cast_works_with_every_family_and_leaves_the_same_turns() {
    let mut woven = Vec::new();
    let mut bodies: Vec<(&'static str, Value)> = Vec::new();
    for (family, key, base, path) in FAMILIES {
        let folder = Folder::new();
        folder.write("notes.txt", "what the file says");
        let provider = Provider::serving(programs(family));
        let address = format!("{}{path}", provider.address);
        let mut variables = vec![(base, address.as_str())];
        variables.extend(key.map(|key| (key, KEY)));
        let output = cast(&folder, family, &["--quiet"], &variables);
        assert_eq!(stdout(&output), "seen\n", "{family}: {output:?}");
        let asked = provider.asked();
        assert_eq!(asked.len(), 2, "{family}");
        let types = match family {
            "openai" => Some("responses"),
            "ollama" => None,
            other => Some(other),
        };
        for request in &asked {
            let body = request.split_once("\r\n\r\n").expect("a body").1;
            let body = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"));
            bodies.extend(types.map(|types| (types, body)));
        }
        assert_eq!(asked[0].contains(KEY), key.is_some(), "{family}");
        assert!(asked[1].contains("what the file says"), "{family}: the second request holds the result: {}", asked[1]);
        let turns = folder.seen(&["thread"])["turns"].clone();
        let told = turns.as_array().expect("turns").iter().map(|turn| {
            let calls = turn["gate_calls"].as_array().expect("calls").iter().map(|call| call["gate"].clone());
            (
                turn["sequence"].clone(),
                calls.collect::<Vec<_>>(),
                turn["terminated"].clone(),
                turn["metadata"]["tokens_prompt"].clone(),
            )
        });
        woven.push(told.collect::<Vec<_>>());
        let everything = folder.run(&["loom", "export", "--format", "journal", "--no-redact"]);
        assert!(stdout(&everything).contains("what the file says"), "{family}: {everything:?}");
        assert!(!stdout(&everything).contains(KEY), "{family}");
    }
    crate::strict::assert_fit_request_types(bodies);
    assert_eq!(woven[0].len(), 2);
    for other in &woven[1..] {
        assert_eq!(other, &woven[0]);
    }
}

#[test]
fn without_a_key_the_variable_is_named_and_nothing_is_sent() {
    for (family, key, _, _) in FAMILIES {
        let Some(key) = key else { continue };
        let folder = Folder::new();
        let output = cast(&folder, family, &["--json"], &[]);
        let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
        assert_envelope(&envelope, codes::CREDENTIALS_MISSING.any());
        assert!(envelope["message"].as_str().is_some_and(|message| message.contains(key)), "{envelope}");
        assert!(!folder.path().join(".cantrip").exists() && !folder.path().join("kept").exists(), "{family}");
    }
}

#[test]
fn a_key_in_a_file_beside_is_found_and_one_that_is_rejected_is_told_and_hidden() {
    let folder = Folder::new();
    folder.write(".env", &format!("SECRET=x\nexport ANTHROPIC_API_KEY=\"{KEY}\"\n"));
    let told = json!({"type": "error", "error": {"type": "authentication_error", "message": format!("invalid x-api-key {KEY}")}});
    let provider = Provider::serving(vec![(401, vec![told.to_string()])]);
    let output = cast(&folder, "anthropic", &["--json"], &[("ANTHROPIC_BASE_URL", &provider.address)]);
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_envelope(&envelope, codes::AUTH_FAILED.any());
    let hint = envelope["data"]["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("invalid x-api-key"), "in the provider's words: {envelope}");
    assert!(provider.asked()[0].contains(KEY), "it was sent where it belongs");
    assert!(!format!("{output:?}").contains(KEY), "and is shown nowhere: {output:?}");
    let bad = cast(&folder, "anthropic", &["--json"], &[("ANTHROPIC_BASE_URL", "not an address")]);
    let envelope: Value = serde_json::from_slice(&bad.stdout).unwrap_or_else(|_| panic!("{bad:?}"));
    assert_envelope(&envelope, codes::CONFIG_INVALID.any());
}

#[test]
fn what_a_provider_says_about_a_bad_request_is_told_in_its_words() {
    let folder = Folder::new();
    let told = json!({"error": {"message": "The model `m` does not exist", "code": "model_not_found"}});
    let provider = Provider::serving(vec![(404, vec![told.to_string()])]);
    let address = format!("{}/v1", provider.address);
    let variables = [("OPENAI_BASE_URL", address.as_str()), ("OPENAI_API_KEY", KEY)];
    let output = cast(&folder, "openai", &["--json"], &variables);
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_envelope(&envelope, codes::CRYSTAL_REJECTED.any());
    assert!(envelope["message"].as_str().is_some_and(|message| message.contains("does not exist")), "{envelope}");
}

#[test]
fn each_turn_and_the_end_tell_what_they_cost_and_an_unknown_price_is_said() {
    // 10 tokens in at 3 dollars a million, 5 out at 15: 30 and 75 micros, twice.
    for (model, turn, sum) in [
        ("anthropic/claude-sonnet-4-5", "10 tokens in, 5 out · 0.000105 USD", "20 tokens in, 10 out · 0.00021 USD"),
        ("anthropic/m", "10 tokens in, 5 out · cost unknown", "20 tokens in, 10 out · cost unknown"),
    ] {
        let folder = Folder::new();
        folder.write("notes.txt", "what the file says");
        let provider = Provider::serving(programs("anthropic"));
        let variables = [("ANTHROPIC_BASE_URL", provider.address.as_str()), ("ANTHROPIC_API_KEY", KEY)];
        let mut command = folder.command(&["cast", "look around", "--crystal", model]);
        let output = command.envs(variables).stdin(Stdio::null()).output().expect("the binary runs");
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(told.lines().filter(|line| line.contains(turn)).count(), 2, "{told}");
        let last = told.lines().find(|line| line.starts_with("terminated")).unwrap_or_else(|| panic!("{told}"));
        assert!(last.contains(sum), "{last}");
        let shown = folder.run(&["run", "show"]);
        let shown = stdout(&shown);
        assert!(shown.contains(sum.split(" · ").nth(1).expect("a cost")), "{shown}");
        let cost = turn.split(" · ").nth(1).expect("a cost");
        assert!(
            shown.lines().filter(|line| line.trim_start().starts_with("turn ") && line.contains(cost)).count() == 2,
            "{shown}"
        );
        let run = folder.envelope(&["run", "show"], codes::READ.any())["data"]["value"].clone();
        let costs = &run["costs"];
        match model {
            "anthropic/m" => assert_eq!((&costs["cost"], &costs["uncosted"]), (&Value::Null, &json!(2))),
            _ => {
                assert_eq!(costs["cost"], json!({"micros": 210, "currency": "USD"}));
                assert_eq!(costs["turns"][0]["cost"]["micros"], 105);
                assert_eq!(run["cast"]["outcome"]["cost"]["micros"], 210);
            }
        }
    }
}

/// A spell for a model of this family that gets one attempt.
fn asked_once(family: &str) -> String {
    format!("crystal = \"{family}/m\"\npark = false\n[retry]\nmax_retries = 0\n[gates.echo]\n")
}

#[test]
fn what_goes_wrong_on_the_way_is_told_with_the_right_code_and_without_the_key() {
    // A port without a listener: it was free a moment ago.
    let refused = {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        format!("http://{}", listener.local_addr().expect("an address"))
    };
    for (family, key, base, path) in FAMILIES {
        let folder = Folder::new();
        folder.write("once.toml", &asked_once(family));
        let ask = |address: &str| {
            let mut command = folder.command(&["cast", "once.toml", "hello", "--json"]);
            command.env(base, format!("{address}{path}"));
            command.envs(key.map(|key| (key, KEY)));
            let output = command.stdin(Stdio::null()).output().expect("the binary runs");
            assert!(!format!("{output:?}").contains(KEY), "{family}: {output:?}");
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
        };
        let message = |envelope: &Value| envelope["message"].as_str().expect("words").to_owned();
        // No network.
        let nobody = ask(&refused);
        assert_envelope(&nobody, codes::UNREACHABLE.any());
        assert!(message(&nobody).contains(family), "{nobody}");
        if family == "anthropic" {
            // A name that is never registered; its lookup may take a while.
            assert_envelope(&ask("http://no-such-host.invalid:9"), codes::UNREACHABLE.any());
        }
        // The address of another kind of server, which answers with HTML.
        let page = "<html><body>404 page not found</body></html>".to_owned();
        let elsewhere = ask(&Provider::serving(vec![(404, vec![page])]).address);
        assert_envelope(&elsewhere, codes::CRYSTAL_REJECTED.any());
        assert!(message(&elsewhere).contains("404"), "{elsewhere}");
        // The provider's own message, without the key that it repeats.
        let words = format!("max_tokens is too large for {KEY}");
        let told = json!({"error": {"message": words, "code": 400, "type": "invalid_request_error"}});
        let bad = ask(&Provider::serving(vec![(400, vec![told.to_string()])]).address);
        assert_envelope(&bad, codes::CRYSTAL_REJECTED.any());
        assert!(message(&bad).contains("max_tokens is too large"), "{bad}");
        assert_eq!(bad["error"]["retry"], "stop", "{bad}");
    }
}

#[test]
fn a_spell_falls_back_on_another_provider_in_the_same_turn() {
    let folder = Folder::new();
    let down = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).to_string();
    let first = Provider::serving(vec![(529, vec![down])]);
    let item = json!({"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "done", "arguments": "{\"answer\": \"stood in\"}"});
    let usage = json!({"input_tokens": 10, "output_tokens": 5});
    let second = Provider::serving(vec![(
        200,
        vec![
            json!({"type": "response.output_item.done", "output_index": 0, "item": item}).to_string(),
            json!({"type": "response.completed", "response": {"model": "gpt-5-2025-08-07", "status": "completed", "usage": usage}})
                .to_string(),
        ],
    )]);
    let spell =
        "[crystal]\nmodel = \"anthropic/claude-sonnet-4-5\"\nfallback = [\"openai/gpt-5\"]\n[retry]\nmax_retries = 0\n";
    folder.write("two.toml", spell);
    let mut command = folder.command(&["cast", "two.toml", "hello", "--quiet"]);
    command.env("ANTHROPIC_BASE_URL", &first.address).env("ANTHROPIC_API_KEY", KEY);
    command
        .env("OPENAI_BASE_URL", format!("{}/v1", second.address))
        .env("OPENAI_API_KEY", "sk-another-0123456789abcdef");
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    assert_eq!(stdout(&output), "stood in\n", "{output:?}");
    assert!(!second.asked()[0].contains(KEY), "a key goes to its own provider alone");
    let turns = folder.seen(&["thread"])["turns"].clone();
    assert_eq!(turns.as_array().map(Vec::len), Some(1), "{turns}");
    assert_eq!(turns[0]["metadata"]["model"], "gpt-5-2025-08-07");
    assert_eq!(turns[0]["metadata"]["attempts"], 2);
    // 10 tokens at 1.25 dollars a million and 5 at 10: 12.5 and 50 micros, rounded up once.
    assert_eq!(turns[0]["metadata"]["cost"], json!({"micros": 63, "currency": "USD"}));
}
