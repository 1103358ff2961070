//! Secrets that come back: a provider and an HTTP gate repeat the keys that they were sent, and nothing that is recorded,
//! shown or logged has them.

use crate::providers::Provider;
use crate::support::{Folder, stderr, stdout};

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

/// Neither has the form of a known kind of key: only who was given them can know them.
const PROVIDER_KEY: &str = "qT7/planted+Provider=key-48151623";
const PEER_KEY: &str = "zW3/planted+Peer=\"secret\"-42108";

fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// A key in the forms in which a peer may repeat it.
fn repeated(key: &str) -> Vec<String> {
    vec![
        format!("key {key} is not known"),
        format!("basic {}", STANDARD.encode(format!("user:{key}"))),
        format!("token {}", URL_SAFE_NO_PAD.encode(format!("{key}!"))),
        format!("padded {}", STANDARD.encode(format!("ab{key}cd"))),
        format!("https://peer.example/?key={}", percent(key)),
    ]
}

/// Pieces of a key in each of these forms, none of which may be found anywhere.
fn traces(key: &str) -> Vec<String> {
    let inner = |text: String| text[6..text.len() - 6].to_owned();
    let mut traces = vec![key.to_owned(), percent(key), json!(key).to_string().trim_matches('"').to_owned()];
    for before in ["user:", "", "ab"] {
        let skipped = before.len() * 8 / 6 + 1;
        let encoded = STANDARD.encode(format!("{before}{key}"));
        traces.push(inner(encoded[skipped..].to_owned()));
        traces.push(inner(encoded[skipped..].to_owned()).replace('+', "-").replace('/', "_"));
    }
    traces
}

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    for trace in traces(PROVIDER_KEY).into_iter().chain(traces(PEER_KEY)) {
        assert!(!text.contains(&trace), "{what} has {trace}");
    }
}

/// Every file below a folder, as text.
fn assert_clean_folder(folder: &Path) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.path().is_dir() {
            files += assert_clean_folder(&entry.path());
        } else {
            let bytes = fs::read(entry.path()).expect("a file");
            assert_clean(&entry.path().display().to_string(), &String::from_utf8_lossy(&bytes));
            files += 1;
        }
    }
    files
}

/// A peer that answers with the header it was sent, in every form.
fn echoing_peer() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let sent = head.lines().find_map(|line| line.split_once(": ").filter(|(name, _)| *name == "x-peer-key"));
            let sent = sent.map_or("nothing", |(_, value)| value);
            let body = json!({"you_sent": repeated(sent), sent: "as a key"}).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        }
    });
    address
}

/// A message of the Messages wire in which each text comes in pieces of a few bytes, with a call of the peer.
fn message(texts: &[String], call: Option<(&str, Value)>) -> (u16, Vec<String>) {
    let mut events = vec![
        json!({"type": "message_start", "message": {"model": "m", "usage": {"input_tokens": 10, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
    ];
    for piece in texts.join(" | ").as_bytes().chunks(5) {
        let text = std::str::from_utf8(piece).expect("ASCII");
        events.push(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}));
    }
    events.push(json!({"type": "content_block_stop", "index": 0}));
    if let Some((gate, arguments)) = &call {
        let block = json!({"type": "tool_use", "id": "toolu_1", "name": gate, "input": {}});
        events.push(json!({"type": "content_block_start", "index": 1, "content_block": block}));
        for piece in arguments.to_string().as_bytes().chunks(7) {
            let delta = json!({"type": "input_json_delta", "partial_json": std::str::from_utf8(piece).expect("ASCII")});
            events.push(json!({"type": "content_block_delta", "index": 1, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": 1}));
    }
    let reason = if call.is_some() { "tool_use" } else { "end_turn" };
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}));
    events.push(json!({"type": "message_stop"}));
    (200, events.iter().map(Value::to_string).collect())
}

/// A folder with a spell that has the peer as a gate.
fn folder() -> Folder {
    let (folder, peer) = (Folder::new(), echoing_peer());
    folder.write(
        "echo.toml",
        &format!(
            "name = \"echo\"\ncrystal = \"anthropic/m\"\n[gates.peer]\nurl = \"http://{peer}/look\"\n\
             headers = {{ x-peer-key = \"${{PEER_KEY}}\" }}\nallow_hosts = [\"{peer}\"]\nlabels = []\n\
             [gates.echo]\n[wards]\nmax_turns = 4\n"
        ),
    );
    folder
}

fn cast(folder: &Folder, provider: &Provider, arguments: &[&str]) -> Output {
    let mut command = folder.command(&[&["cast", "echo.toml", "look"], arguments].concat());
    command.env("ANTHROPIC_API_KEY", PROVIDER_KEY).env("ANTHROPIC_BASE_URL", &provider.address);
    command.env("PEER_KEY", PEER_KEY).env("CANTRIP_LOG", "trace").stdin(Stdio::null());
    command.output().expect("the binary runs")
}

#[test]
fn keys_that_a_provider_and_a_gate_repeat_are_neither_recorded_nor_shown_nor_logged() {
    for arguments in [&["--jsonl"][..], &["--json"], &[]] {
        let folder = folder();
        let both = || repeated(PROVIDER_KEY).into_iter().chain(repeated(PEER_KEY)).collect::<Vec<_>>();
        let provider = Provider::serving(vec![
            message(&both(), Some(("peer", json!({})))),
            message(&both(), Some(("echo", json!({"text": both()})))),
            message(&both(), None),
        ]);
        let output = cast(&folder, &provider, arguments);
        assert!(output.status.success(), "{output:?}");
        assert!(stdout(&output).contains("[REDACTED]"), "{output:?}");
        assert_clean("standard output", stdout(&output));
        assert_clean("standard error and the log", stderr(&output));
        assert!(assert_clean_folder(&folder.path().join("kept")) > 0);
        // What the model was told of the peer's answer is what was recorded of it.
        let asked = provider.asked();
        assert_eq!(asked.len(), 3);
        for request in &asked {
            let (head, body) = request.split_once("\r\n\r\n").expect("a body");
            assert!(head.contains(PROVIDER_KEY), "the provider is still given its key");
            assert_clean("a request's body", body);
        }
        assert!(asked[1].contains("you_sent"), "the gate answered: {}", asked[1]);
        let mut replaying = folder.command(&["loom", "replay", "--json"]);
        replaying.env("ANTHROPIC_API_KEY", PROVIDER_KEY).env("PEER_KEY", PEER_KEY).stdin(Stdio::null());
        let replayed = replaying.output().expect("the binary runs");
        let envelope = serde_json::from_slice(&replayed.stdout).unwrap_or_else(|error| panic!("{error}: {replayed:?}"));
        assert_envelope(&envelope, codes::VERIFIED.any());
        assert_clean("a replay", stdout(&replayed));
        let thread = folder.run(&["loom", "export", "--json"]);
        assert_clean("an export", stdout(&thread));
    }
}

#[test]
fn a_key_in_the_text_of_a_refusal_is_replaced() {
    let folder = folder();
    let error = |key: &str| json!({"type": "error", "error": {"type": "authentication_error", "message": key}});
    for told in repeated(PROVIDER_KEY) {
        let provider = Provider::serving(vec![(401, vec![error(&told).to_string()])]);
        for text in [cast(&folder, &provider, &["--json"])].iter().flat_map(|output| [stdout(output), stderr(output)]) {
            assert_clean("a refusal", text);
        }
    }
    assert!(assert_clean_folder(&folder.path().join("kept")) > 0);
}
