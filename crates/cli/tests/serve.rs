//! `cantrip serve`: the binary behind HTTP, with real processes, stores and clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_tests::peer::Peer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Folder, own_postgres, stdout};

/// A server; it runs until it is dropped.
pub(crate) struct Server {
    process: Child,
    address: String,
    log: std::thread::JoinHandle<String>,
}

impl Server {
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        Self::start_with(folder, arguments, &[])
    }

    /// Like `start`, with these variables.
    pub(crate) fn start_with(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = folder.command(&[&["serve", "--bind", "127.0.0.1:0"], arguments].concat());
        command.envs(variables.iter().copied());
        Self::spawn(command)
    }

    /// Like `start`, in its own PID namespace, as in a container: no other server can look its process up. The started
    /// process is the parent of the server, and the server ends with it.
    pub(crate) fn start_apart(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        // A user who is not root becomes root in a new user namespace.
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child=SIGKILL", env!("CARGO_BIN_EXE_cantrip")]);
        command.args(["serve", "--bind", "127.0.0.1:0"]).args(arguments);
        folder.around(&mut command);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        command.env_remove("CANTRIP_TOKEN").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        // Skip log lines before this one.
        let said = lines.by_ref().map(|line| line.expect("text")).find(|line| line.starts_with("listening on "));
        let said = said.expect("it says where it listens");
        let address = said.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{said}")).to_owned();
        let log = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>().join("\n"));
        Self { process, address, log }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns its resident memory in bytes.
    pub(crate) fn resident(&self) -> usize {
        let told = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it is there");
        let line = told.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory is told");
        let kib: usize = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kib << 10
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.ask_with(method, path, "", body)
    }

    /// Like `ask`, with further headers, each with its line end.
    pub(crate) fn ask_with(&self, method: &str, path: &str, headers: &str, body: Option<&Value>) -> (u16, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n{headers}\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        stream.write_all(body.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
    }

    pub(crate) fn cast(&self, spell: &str) -> String {
        self.cast_about(spell, "go")
    }

    pub(crate) fn cast_about(&self, spell: &str, intent: &str) -> String {
        let (status, envelope) = self.ask("POST", "/v1/casts", Some(&json!({"spell": spell, "intent": intent})));
        assert_eq!(status, 202, "{envelope}");
        envelope["data"]["run_id"].as_str().expect("a run").to_owned()
    }

    pub(crate) fn until(&self, run: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let (_, envelope) = self.ask("GET", &format!("/v1/runs/{run}"), None);
            if wanted(&envelope["data"]["value"]) {
                return envelope["data"]["value"].clone();
            }
            assert!(began.elapsed() < Duration::from_secs(60), "it did not come about: {envelope}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads this path to its end.
    pub(crate) fn text(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    /// Stops the server. Returns its exit status and its standard error.
    pub(crate) fn stop_and_read(mut self, signal: Signal) -> (i32, String) {
        let log = std::mem::replace(&mut self.log, std::thread::spawn(String::new));
        let status = self.stop(signal);
        (status, log.join().expect("it was read"))
    }

    pub(crate) fn process(&mut self) -> &mut Child {
        &mut self.process
    }

    pub(crate) fn stop(mut self, signal: Signal) -> i32 {
        kill_process(Pid::from_child(&self.process), signal).expect("it is there");
        self.process.wait().expect("it ends").code().unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

const STORE: &[&str] = &["--store", "sqlite:kept/loom.db"];

/// A spell that is slow after its first turn.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write(
        "slow.toml",
        "name = \"slow\"\ncrystal = \"scripted/slow.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 5\n",
    );
    folder.write(
        "slow.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: once}}]\n  \
         - {tool_calls: [{id: c2, gate: done, args: {answer: over}}], delay_ms: 1500}\n",
    );
    folder
}

#[test]
fn a_run_whose_server_is_killed_is_gone_on_with_by_the_next_one() {
    let folder = folder();
    let server = Server::start(&folder, STORE);
    let run = server.cast("slow");
    server.until(&run, |value| value["newest"].as_u64() > Some(6));
    server.stop(Signal::KILL);
    let server = Server::start(&folder, STORE);
    let ended = server.until(&run, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], "over");
    let (_, turns) = server.ask("GET", &format!("/v1/runs/{run}/turns"), None);
    assert_eq!(turns["data"]["value"]["items"].as_array().expect("turns").len(), 2, "no turn was made twice");
}

/// A spell of five turns, each of which streams slowly and calls a program that records it.
fn counting() -> Folder {
    let folder = Folder::new();
    folder.write(
        "counts.toml",
        "name = \"counts\"\ncrystal = \"scripted/counts.yaml\"\n[gates.note]\ncommand = [\"sh\", \"-c\", \"cat >> noted.log; echo >> \
         noted.log; echo null\"]\nlabels = []\n[wards]\nmax_turns = 9\n",
    );
    let turn = |n: u32| format!("  - {{tool_calls: [{{id: c{n}, gate: note, args: {{n: {n}}}}}], delay_ms: 300}}\n");
    let turns: String = (1..=4).map(turn).collect();
    let end = "  - {tool_calls: [{id: c5, gate: done, args: {answer: counted}}], delay_ms: 300}\n";
    folder.write("counts.yaml", &format!("responses:\n{turns}{end}"));
    folder
}

/// Returns the calls that the program of the spell recorded.
fn noted(folder: &Folder) -> Vec<u64> {
    let noted = std::fs::read_to_string(folder.path().join("noted.log")).unwrap_or_default();
    let read = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["n"].as_u64().expect("a number");
    noted.lines().filter(|line| !line.is_empty()).map(read).collect()
}

#[test]
fn a_server_that_is_told_to_stop_hands_its_runs_back_and_the_next_one_goes_on() {
    for (signal, place) in [Signal::TERM, Signal::INT].into_iter().flat_map(|signal| {
        let places = [Some("sqlite:kept/loom.db".to_owned()), own_postgres()];
        places.into_iter().flatten().map(move |place| (signal, place))
    }) {
        let (folder, store) = (counting(), ["--store", place.as_str()]);
        let server = Server::start(&folder, &store);
        let run = server.cast("counts");
        let began = Instant::now();
        while noted(&folder).len() < 2 {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not begin");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(server.stop(signal), 0);
        let before = noted(&folder);
        assert!(before.len() < 4, "it was in the middle: {before:?}");
        let shown = folder.envelope(&[&["run", "show", &run], &store[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["standing"], "orphaned", "{shown}");

        let server = Server::start(&folder, &[&store[..], &["--no-resume"]].concat());
        let (_, left) = server.ask("GET", &format!("/v1/runs/{run}"), None);
        assert_eq!(left["data"]["value"]["state"], "running", "nobody works on it: {left}");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(noted(&folder), before, "whoever was told not to leaves it alone");
        assert_eq!(server.stop(signal), 0);

        let server = Server::start(&folder, &store);
        let ended = server.until(&run, |value| value["state"] == "terminated");
        assert_eq!(ended["answer"], "counted");
        assert_eq!(noted(&folder), [1, 2, 3, 4], "each call was made once");
        let (_, turns) = server.ask("GET", &format!("/v1/runs/{run}/turns"), None);
        let turns = turns["data"]["value"]["items"].as_array().expect("turns").clone();
        let called: Vec<_> = turns.iter().map(|turn| turn["gate_calls"][0]["tool_call_id"].clone()).collect();
        assert_eq!(called, ["c1", "c2", "c3", "c4", "c5"], "each turn was made once");
        assert_eq!(server.stop(signal), 0);
    }
}

#[test]
fn beyond_loopback_nobody_is_served_without_a_token() {
    let folder = folder();
    for bind in ["0.0.0.0:0", "[::]:0"] {
        let output = folder.command(&["serve", "--bind", bind, "--json"]).env_remove("CANTRIP_TOKEN").output().unwrap();
        let envelope: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_envelope(&envelope, codes::CONFIG_INVALID.any());
        assert_eq!(output.status.code(), Some(2));
    }
    folder.write("tokens", "ann = short\n");
    folder.envelope(&["serve", "--tokens", "tokens"], codes::CONFIG_INVALID.any());
    folder.write("tokens", "ann = 0123456789abcdef\n");
    let server = Server::start(&folder, &["--tokens", "tokens", "--store", "memory:"]);
    let (status, envelope) = server.ask("GET", "/v1/runs", None);
    assert_eq!(status, 401);
    assert_envelope(&envelope, codes::UNAUTHENTICATED.any());
}

/// Returns the status and the body of the answer to these bytes.
fn sent_raw(server: &Server, request: &str) -> (u16, Value) {
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}")))
}

#[test]
fn a_request_names_its_host_once_and_a_strange_host_is_refused_as_a_request() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let get = |version: &str, hosts: &str| {
        sent_raw(&server, &format!("GET /v1/runs {version}\r\n{hosts}connection: close\r\n\r\n"))
    };
    for hosts in ["", "host: localhost\r\nhost: localhost\r\n", "host: localhost\r\nhost: evil.example\r\n"] {
        let (status, envelope) = get("HTTP/1.1", hosts);
        assert_eq!(status, 400, "{hosts:?}: {envelope}");
        assert_envelope(&envelope, codes::SCHEMA.any());
        assert_eq!(envelope["data"]["path"], "/host", "{envelope}");
    }
    // HTTP/1.0 has no such header.
    assert_eq!(get("HTTP/1.0", "").0, 200);
    assert_eq!(get("HTTP/1.1", "host: localhost\r\n").0, 200);
    let (status, envelope) = get("HTTP/1.1", "host: evil.example\r\n");
    assert_eq!(status, 403, "{envelope}");
    assert_envelope(&envelope, codes::REQUEST_REFUSED.any());
    let message = "this server does not answer requests to the host evil.example: without tokens it answers only \
                   loopback names, such as localhost, and their pages";
    assert_eq!(envelope["message"], message);
    let (status, error) = sent_raw(&server, "GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n");
    assert_eq!((status, &error["error"]["type"]), (400, &json!("invalid_request_error")), "{error}");
}

const CHAT: &str = r#"
import sys
from openai import OpenAI, NotFoundError, UnprocessableEntityError
client = OpenAI(base_url=sys.argv[1], api_key="nobody asks")
assert "slow" in [model.id for model in client.models.list()], "the spell is a model"
assert client.models.retrieve("slow").id == "slow"
messages = [{"role": "user", "content": "go"}]
whole = client.chat.completions.create(model="slow", messages=messages)
assert whole.choices[0].message.content == "over", whole
assert whole.choices[0].finish_reason == "stop" and whole.usage.total_tokens >= 0, whole
content, shown = "", ""
for piece in client.chat.completions.create(model="slow", messages=messages, stream=True):
    if piece.choices:
        content += piece.choices[0].delta.content or ""
        shown += getattr(piece.choices[0].delta, "reasoning_content", None) or ""
assert content == "over", content
assert "echo(" in shown and "once" in shown, shown
try:
    client.chat.completions.create(model="nobody", messages=messages)
    raise SystemExit("a spell that is not there answered")
except NotFoundError as error:
    assert error.code == "WA-RES-I-002", error
try:
    client.chat.completions.create(model="slow", messages=messages, n=2)
    raise SystemExit("one answer was given for two")
except UnprocessableEntityError as error:
    assert "/n" in error.message, error
print("talked")
"#;

#[test]
fn the_openai_client_talks_to_a_spell() {
    let Some(python) = Peer::Python.find_path() else { return };
    let folder = folder();
    folder.write("chat.py", CHAT);
    let server = Server::start(&folder, &["--store", "memory:"]);
    let output = Command::new(python)
        .args(["chat.py", &format!("http://{}/v1", server.address)])
        .current_dir(folder.path())
        .output()
        .expect("python runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "talked\n", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_openapi_says_is_what_the_server_does() {
    let Some(python) = Peer::Python.find_path() else { return };
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let schema = format!("http://{}/openapi.json", server.address);
    // The feeds are excluded, because they respond for as long as their run lives. The rules for a budget, an owner or
    // a definition are stricter than their schemas, so not every value that fits the schema is accepted; a refusal has
    // the documented form.
    let output = Command::new(python.with_file_name("schemathesis"))
        .args(["run", &schema, "--seed", "1", "--max-examples", "10", "--phases", "examples,coverage,fuzzing"])
        .args(["--exclude-checks", "positive_data_acceptance"])
        // The speed of its data generation on a busy machine does not matter. One worker only, because two of its
        // threads conflict in Python's own parser.
        .args(["--suppress-health-check", "all"])
        .args(["--exclude-path-regex", "/(events|records)$", "--request-timeout", "20", "--workers", "1", "--no-color"])
        .current_dir(folder.path())
        .output()
        .expect("schemathesis runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(server.ask("GET", "/healthz", None).0, 200);
}

#[test]
fn the_page_that_is_served_is_the_one_that_is_printed() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let (status, served) = server.ask("GET", "/openapi.json", None);
    let printed: Value = serde_json::from_str(stdout(&folder.run(&["schema", "openapi"]))).unwrap();
    assert_eq!((status, served), (200, printed));
}

/// Sends raw bytes to `/mcp`. Returns the status, the head and the body of the answer.
fn posted(server: &Server, method: &str, headers: &str, body: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    let head = format!(
        "{method} /mcp HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\naccept: application/json, \
         text/event-stream\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, head.to_ascii_lowercase(), body.to_owned())
}

#[test]
fn what_is_no_message_at_mcp_is_an_error_of_the_protocol_and_a_session_ends_with_204() {
    const JSON: &str = "content-type: application/json\r\n";
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let faults: [(&[u8], i64, Value); 6] = [
        (b"{\"jsonrpc\": ", -32700, Value::Null),
        (b"", -32700, Value::Null),
        (b"\xff\xfe", -32700, Value::Null),
        (b"{\"foo\": 1}", -32600, Value::Null),
        (b"[]", -32600, Value::Null),
        (b"{\"jsonrpc\": \"2.0\", \"id\": 7, \"method\": 3}", -32600, json!(7)),
    ];
    for (body, code, id) in faults {
        let (status, head, answer) = posted(&server, "POST", JSON, body);
        let shown = String::from_utf8_lossy(body);
        assert_eq!(status, 400, "{shown}: {answer}");
        assert!(head.contains("content-type: application/json"), "{shown}: {head}");
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!((&answer["jsonrpc"], &answer["id"], &answer["error"]["code"]), (&json!("2.0"), &id, &json!(code)));
        assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
    }
    // Another content type is refused as before.
    assert_eq!(posted(&server, "POST", "content-type: text/plain\r\n", b"hello").0, 415);

    let client = json!({"name": "by hand", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    let (status, head, _) = posted(&server, "POST", JSON, hello.as_bytes());
    assert_eq!(status, 200);
    let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session").to_owned();
    let named = format!("mcp-session-id: {session}\r\n");
    // A fault does not break the session.
    assert_eq!(posted(&server, "POST", &format!("{JSON}{named}"), b"{").0, 400);
    let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"}).to_string();
    assert_eq!(posted(&server, "POST", &format!("{JSON}{named}"), ping.as_bytes()).0, 200);
    let (status, _, body) = posted(&server, "DELETE", &named, b"");
    assert_eq!((status, body.as_str()), (204, ""), "the clients of the protocol take 200 and 204 for it");
    assert_eq!(posted(&server, "POST", &format!("{JSON}{named}"), ping.as_bytes()).0, 404, "it has ended");
}

/// Returns the OpenAPI document, and writes it to a file.
fn openapi(folder: &Folder) -> Value {
    let printed = folder.run(&["schema", "openapi"]);
    folder.write("openapi.json", stdout(&printed));
    serde_json::from_str(stdout(&printed)).expect("JSON")
}

#[test]
fn every_operation_has_a_name_that_a_generated_client_can_use() {
    let page = openapi(&folder());
    let mut names = std::collections::BTreeSet::new();
    for (path, methods) in page["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no name"));
            let is_plain = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
            assert!(is_plain && name.len() > 3, "{method} {path} is called {name:?}");
            assert!(names.insert(name.to_owned()), "{name} names two operations");
        }
    }
    assert!(names.len() > 40 && names.contains("list_runs") && names.contains("cast_spell"), "{names:?}");
    let servers = page["servers"].as_array().expect("servers");
    assert!(servers.iter().all(|server| server["url"].is_string()) && !servers.is_empty(), "{servers:?}");
}

#[test]
fn the_page_is_valid_openapi() {
    let Some(python) = Peer::Python.find_path() else { return };
    let folder = folder();
    openapi(&folder);
    let validated = Command::new(python)
        .args(["-m", "openapi_spec_validator", "--schema", "3.1.0", "openapi.json"])
        .current_dir(folder.path())
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&validated.stdout) + String::from_utf8_lossy(&validated.stderr);
    assert!(validated.status.success() && said.contains("OK"), "{said}");
}

#[test]
fn a_linter_finds_nothing_wrong_with_the_page() {
    let Some(packages) = Peer::Redocly.find() else { return };
    let folder = folder();
    openapi(&folder);
    // The feeds, the metrics and the health route have no special error responses; the license has an identifier.
    folder.write(
        "redocly.yaml",
        "extends: [recommended-strict]\nrules:\n  operation-4xx-response: off\n  info-license-url: off\n",
    );
    let linted = Command::new("node")
        .arg(PathBuf::from(packages).join("@redocly/cli/bin/cli.js"))
        .args(["lint", "openapi.json", "--config", "redocly.yaml"])
        .env("REDOCLY_TELEMETRY", "off")
        .current_dir(folder.path())
        .output()
        .expect("node runs");
    let said = String::from_utf8_lossy(&linted.stdout) + String::from_utf8_lossy(&linted.stderr);
    assert!(linted.status.success(), "{said}");
}

#[test]
fn the_tokens_are_read_again_at_sighup() {
    let folder = folder();
    let (ann, bob) = ("ann-has-a-token-of-her-own", "bob-has-another-token-too");
    folder.write("tokens", &format!("ann = {ann}\n"));
    let server = Server::start(&folder, &["--tokens", "tokens", "--store", "memory:"]);
    let status =
        |token: &str| server.ask_with("GET", "/v1/runs", &format!("authorization: Bearer {token}\r\n"), None).0;
    let until = |token: &str, wanted: u16| {
        let began = Instant::now();
        while status(token) != wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "{token} is not answered with {wanted}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    assert_eq!((status(ann), status(bob)), (200, 401));
    folder.write("tokens", &format!("bob = {bob}\n"));
    server.signal(Signal::HUP);
    until(bob, 200);
    assert_eq!(status(ann), 401);
    let (ended, log) = server.stop_and_read(Signal::TERM);
    assert!(ended == 0 && log.contains("read the tokens again"), "{log}");
}
