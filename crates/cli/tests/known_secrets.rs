//! Secrets that come back: a provider and an HTTP gate repeat the keys that they received, and no record, output or log
//! contains them.

use crate::providers::Provider;
use crate::serve::Server;
use crate::support::terminal::{CTRL_D, Terminal};
use crate::support::{Folder, enveloped, id, own_postgres, stderr, stdout};

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

/// Neither key matches a known key format: they can only be recognized because the process loaded them.
const PROVIDER_KEY: &str = "qT7/planted+Provider=key-48151623";
const PEER_KEY: &str = "zW3/planted+Peer=\"secret\"-42108";

fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Returns a key in the forms in which a peer may repeat it.
fn repeated(key: &str) -> Vec<String> {
    vec![
        format!("key {key} is not known"),
        format!("basic {}", STANDARD.encode(format!("user:{key}"))),
        format!("token {}", URL_SAFE_NO_PAD.encode(format!("{key}!"))),
        format!("padded {}", STANDARD.encode(format!("ab{key}cd"))),
        format!("https://peer.example/?key={}", percent(key)),
        format!("quoted {}", json!(key)),
    ]
}

/// Returns parts of a key in each of these forms, none of which may be found anywhere.
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

/// Asserts that a text holds neither key in any form.
#[track_caller]
fn assert_clean(what: &str, text: &str) {
    for trace in traces(PROVIDER_KEY).into_iter().chain(traces(PEER_KEY)) {
        assert!(!text.contains(&trace), "{what} has {trace}");
    }
}

/// Asserts that no file below a folder contains a key. Returns the number of files.
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

/// Starts a peer that answers with the header that it received, in every form.
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

/// A message of the Messages wire that streams each text in pieces of a few bytes, with a call of the peer.
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

/// Returns everything that a server answers to this request.
fn answered(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("it answers");
    String::from_utf8_lossy(&bytes).into_owned()
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
        // The model received the same text of the peer's answer as was recorded.
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

/// A later reader of the store has no keys and redacts nothing, so clean output proves a clean store.
#[test]
fn a_store_in_which_keys_came_back_has_them_nowhere_that_exports_and_servers_look() {
    const STORE: &str = "sqlite:kept/loom.db";
    let folder = folder();
    let both = || repeated(PROVIDER_KEY).into_iter().chain(repeated(PEER_KEY)).collect::<Vec<_>>();
    let provider = Provider::serving(vec![
        message(&both(), Some(("peer", json!({})))),
        message(&both(), Some(("echo", json!({"text": both()})))),
        message(&both(), None),
    ]);
    let output = cast(&folder, &provider, &["--json", "--store", STORE]);
    let envelope = enveloped(&output, codes::TERMINATED.any());
    assert!(assert_clean_folder(&folder.path().join("kept")) > 0);
    for arguments in [
        &["loom", "export"][..],
        &["loom", "export", "--format", "journal", "--no-redact"],
        &["loom", "thread", "--json"],
        &["trace", "export", "--all", "--no-redact"],
    ] {
        let output = folder.run(&[arguments, &["--store", STORE]].concat());
        assert!(output.status.success(), "{output:?}");
        assert_clean(&arguments.join(" "), stdout(&output));
        assert_clean(&arguments.join(" "), stderr(&output));
    }
    let journal = folder.run(&["loom", "export", "--format", "journal", "--no-redact", "--store", STORE]);
    assert!(stdout(&journal).contains("key [REDACTED] is not known"), "the export holds what was said: {journal:?}");
    let server = Server::start_with(&folder, &["--store", STORE], &[("CANTRIP_LOG", "trace")]);
    let (entity, leaf) = (id(&envelope["data"]["entity_id"]), id(&envelope["data"]["leaf"]));
    let (_, seen) = server.ask("GET", &format!("/v1/turns/{leaf}/thread"), None);
    let run = id(&seen["data"]["value"]["entity"]["run_id"]);
    for path in [
        "/v1/runs".to_owned(),
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/turns"),
        format!("/v1/runs/{run}/records"),
        format!("/v1/runs/{run}/events"),
        format!("/v1/entities/{entity}"),
        format!("/v1/entities/{entity}/casts"),
        format!("/v1/turns/{leaf}"),
        format!("/v1/turns/{leaf}/thread"),
        "/v1/looms".to_owned(),
        "/v1/receipts".to_owned(),
    ] {
        let text = answered(&server, &path);
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
        assert_clean(&path, &text);
    }
    assert!(answered(&server, &format!("/v1/runs/{run}/turns")).contains("[REDACTED]"));
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

/// The user pastes the key into the intent. The key is replaced before it is recorded and before a model reads it, so a
/// replay sees the same text as the live run.
#[test]
fn a_key_that_a_person_pastes_into_an_intent_or_a_context_is_replaced() {
    let folder = folder();
    let provider = Provider::serving(vec![message(&["seen".to_owned()], None)]);
    folder.write("notes.txt", &format!("the key is {PEER_KEY}, or {}", STANDARD.encode(PROVIDER_KEY)));
    let intent = format!("why is {PROVIDER_KEY} refused?");
    let mut command = folder.command(&["cast", "echo.toml", &intent, "--context", "notes.txt", "--jsonl"]);
    command.env("ANTHROPIC_API_KEY", PROVIDER_KEY).env("ANTHROPIC_BASE_URL", &provider.address);
    let output =
        command.env("PEER_KEY", PEER_KEY).env("CANTRIP_LOG", "trace").stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert_clean("standard output", stdout(&output));
    assert_clean("standard error and the log", stderr(&output));
    assert!(assert_clean_folder(&folder.path().join("kept")) > 0);
    let asked = provider.asked();
    let (_, body) = asked[0].split_once("\r\n\r\n").expect("a body");
    assert!(body.contains("why is [REDACTED] refused?"), "{body}");
    assert_clean("a request's body", body);
    assert_eq!(folder.intents(), ["why is [REDACTED] refused?"]);
    let mut replaying = folder.command(&["loom", "replay", "--json"]);
    replaying.env("ANTHROPIC_API_KEY", PROVIDER_KEY).env("PEER_KEY", PEER_KEY).stdin(Stdio::null());
    enveloped(&replaying.output().expect("the binary runs"), codes::VERIFIED.any());
}

#[test]
fn a_key_that_a_person_types_to_an_entity_is_in_no_record_and_in_no_history_of_lines() {
    let folder = Folder::new();
    folder.write("hello.toml", "name = \"hello\"\ncrystal = \"scripted/hello.yaml\"\n[wards]\nmax_turns = 3\n");
    folder.write("hello.yaml", "responses:\n  - content: said\n");
    let headers = [("OTEL_EXPORTER_OTLP_HEADERS", format!("x-key={}", percent(PROVIDER_KEY)))];
    let mut terminal = Terminal::run_with(&folder, &["summon", "hello.toml"], &headers);
    terminal.wait_for("hello>");
    terminal.line(&format!("is {PROVIDER_KEY} good?"));
    terminal.wait_for("said");
    terminal.wait_for("hello>");
    terminal.send(CTRL_D);
    let (left, status) = terminal.end();
    assert_eq!(status, Some(0), "{left}");
    assert_eq!(folder.intents(), ["is [REDACTED] good?"]);
    assert!(assert_clean_folder(&folder.path().join("kept")) > 0);
}

/// Casts with this secret in the intent, and asserts that it was replaced in the output and in the records.
#[track_caller]
fn assert_replaced(folder: &Folder, secret: &str, store: &str, variables: &[(&str, &str)]) {
    folder.write("hello.toml", "name = \"hello\"\ncrystal = \"scripted/hello.yaml\"\n[gates.echo]\n");
    let call = json!({"id": "c1", "gate": "echo", "args": {"text": format!("it is {secret}")}});
    let script = json!({"responses": [{"tool_calls": [call]}, {"content": format!("said {}", percent(secret))}]});
    folder.write("hello.yaml", &script.to_string());
    let mut command = folder.command(&["cast", "hello.toml", &format!("see {secret}"), "--json", "--store", store]);
    let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().expect("the binary runs");
    let envelope = enveloped(&output, codes::TERMINATED.any());
    assert!(!stdout(&output).contains(secret) && !stderr(&output).contains(secret), "{output:?}");
    let mut command = folder.command(&["loom", "thread", id(&envelope["data"]["leaf"]), "--json", "--store", store]);
    let thread = command.output().expect("the binary runs");
    let value = &enveloped(&thread, codes::READ.any())["data"]["value"];
    assert_eq!(value["casts"][0]["intent"], "see [REDACTED]", "{value}");
    let recorded = value["turns"][0]["gate_calls"][0]["result"].to_string();
    assert!(recorded.contains("it is [REDACTED]") && !recorded.contains(secret), "{recorded}");
}

#[test]
fn the_headers_for_a_collector_are_secrets_of_the_process() {
    let folder = Folder::new();
    let headers = "x-team=planted-team-4711, authorization=Bearer%20planted%2Fkey%3D0815";
    let variables = [("OTEL_EXPORTER_OTLP_HEADERS", headers)];
    assert_replaced(&folder, "planted-team-4711", "jsonl:one", &variables);
    assert_replaced(&folder, "planted/key=0815", "jsonl:two", &variables);
    assert_replaced(&folder, "planted/key=0815", "jsonl:three", &[("OTEL_EXPORTER_OTLP_TRACES_HEADERS", headers)]);
}

#[test]
fn the_password_of_a_store_is_a_secret_of_the_process() {
    let Some(store) = own_postgres() else { return };
    let mut store = url::Url::parse(&store).expect("a URL");
    // A server with trust authentication ignores the password.
    if store.password().is_none() {
        store.set_password(Some("planted-password-1234")).expect("it has a host");
    }
    let secret = store.password().expect("it was set").to_owned();
    assert_replaced(&Folder::new(), &secret, store.as_str(), &[]);
}

#[test]
fn the_token_of_a_server_is_a_secret_of_the_process() {
    const TOKEN: &str = "planted-token-0123456789";
    let folder = Folder::new();
    folder.write("hello.toml", "name = \"hello\"\ncrystal = \"scripted/hello.yaml\"\n");
    folder.write("hello.yaml", &format!("responses:\n  - content: your token is {TOKEN}\n"));
    folder.write("tokens", &format!("ann = {TOKEN}\n"));
    let server = Server::start(&folder, &["--tokens", "tokens", "--store", "jsonl:kept"]);
    let headers = format!("authorization: Bearer {TOKEN}\r\n");
    let body = json!({"spell": "hello", "intent": format!("see {TOKEN}"), "wait": true});
    let (status, envelope) = server.ask_with("POST", "/v1/casts", &headers, Some(&body));
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::TERMINATED.any());
    assert_eq!(envelope["data"]["answer"], "your token is [REDACTED]", "{envelope}");
    let path = format!("/v1/turns/{}/thread", id(&envelope["data"]["leaf"]));
    let (_, turns) = server.ask_with("GET", &path, &headers, None);
    assert!(turns.to_string().contains("your token is [REDACTED]"), "{turns}");
    let records: String = fs::read_dir(folder.path().join("kept"))
        .expect("a store")
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .collect();
    assert!(records.contains("see [REDACTED]") && !records.contains(TOKEN), "{records}");
}

#[test]
fn the_environment_that_a_server_of_tools_is_given_is_secret_where_it_comes_back() {
    const SECRET: &str = "planted-server-secret-77";
    let folder = Folder::new();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate-mcp/tests/server.py");
    folder.write(
        "small.toml",
        &format!(
            "name = \"small\"\ncrystal = \"scripted/small.yaml\"\n[gates.small]\nmcp = [\"python3\", \"{}\"]\n\
             environment = {{ API_KEY = \"${{SMALL}}\" }}\nlabels = []\ntools = [\"environment\"]\n[wards]\nmax_turns = 5\n",
            server.display()
        ),
    );
    folder.write(
        "small.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: small_environment, args: {value_of: API_KEY}}]\n  - content: over\n",
    );
    let mut command = folder.command(&["cast", "small.toml", "go", "--jsonl"]);
    let output =
        command.env("SMALL", SECRET).env("CANTRIP_LOG", "trace").stdin(Stdio::null()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(!stdout(&output).contains(SECRET) && !stderr(&output).contains(SECRET), "{output:?}");
    let result = folder.seen(&["thread"])["turns"][0]["gate_calls"][0]["result"].to_string();
    assert!(result.contains("API_KEY is [REDACTED]"), "{result}");
}
