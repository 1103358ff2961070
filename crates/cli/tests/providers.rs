//! The binary with each family of providers, over real HTTP: keys, casts, and what goes wrong.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::{Folder, stdout};

pub(crate) const KEY: &str = "sk-planted-0123456789abcdef0123456789";

/// A provider on loopback: answers each request with the next body, as the status says, and keeps what it was asked.
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
                let (mut stream, _) = listener.accept().expect("a connection");
                let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
                let whole = |bytes: &[u8]| {
                    let text = String::from_utf8_lossy(bytes).into_owned();
                    let (head, body) = text.split_once("\r\n\r\n")?;
                    let length = head
                        .lines()
                        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
                    (body.len() >= length.unwrap_or(0)).then(|| text.clone())
                };
                let request = loop {
                    let read = stream.read(&mut chunk).expect("readable");
                    bytes.extend_from_slice(&chunk[..read]);
                    if let Some(request) = whole(&bytes) {
                        break request;
                    }
                };
                log.lock().expect("not poisoned").push(request);
                let kind = if status == 200 { "text/event-stream" } else { "application/json" };
                let body: String = match status {
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

    /// One that answers a single question with this, as a plain body.
    pub(crate) fn telling(body: String) -> Self {
        Self::serving(vec![(207, vec![body])])
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("not poisoned").clone()
    }
}

/// A program that calls a gate, and then one that ends the cast, as each family would say them.
pub(crate) fn programs(family: &str) -> Vec<(u16, Vec<String>)> {
    ["console.log(read('notes.txt'))", "done('seen')"].map(|code| (200, said(family, code))).to_vec()
}

fn said(family: &str, code: &str) -> Vec<String> {
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

/// Each family: its name, the variable of its key, the variable of its address, what comes behind that.
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
        let everything = folder.run(&["loom", "export", "--format", "journal", "--redact", "off"]);
        assert!(!stdout(&everything).contains(KEY), "{family}");
    }
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
