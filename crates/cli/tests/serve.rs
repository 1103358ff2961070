//! `cantrip serve`: the binary behind HTTP, with real processes, stores and clients.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Folder, stdout};

/// A server of its own, until it is dropped.
pub(crate) struct Server {
    process: Child,
    address: String,
}

impl Server {
    pub(crate) fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = folder.command(&[&["serve", "--bind", "127.0.0.1:0"], arguments].concat());
        command.env_remove("CANTRIP_TOKEN").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let said = lines.next().expect("it says where it listens").expect("text");
        let address = said.split("http://").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.unwrap_or_else(|| panic!("{said}")).to_owned();
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The memory that it has, in bytes.
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
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
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

    pub(crate) fn cast(&self, spell: &str) -> String {
        let (status, envelope) = self.ask("POST", "/v1/casts", Some(&json!({"spell": spell, "intent": "go"})));
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

/// A spell that takes its time after its first turn.
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

#[test]
fn a_server_that_is_told_to_stop_leaves_its_runs_where_they_can_go_on() {
    for signal in [Signal::TERM, Signal::INT] {
        let folder = folder();
        let server = Server::start(&folder, STORE);
        let run = server.cast("slow");
        assert_eq!(server.stop(signal), 0);
        let shown = folder.envelope(&[&["run", "show", &run], STORE].concat(), codes::READ.any());
        assert!(shown.to_string().contains("waiting"), "{shown}");
        let resumed = folder.run(&[&["run", "resume", &run, "--quiet"], STORE].concat());
        assert_eq!(stdout(&resumed), "over\n", "{resumed:?}");
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

/// The Python that has the clients: `test.sh` makes a place for it and names it in `CANTRIP_TEST_PYTHON`.
fn python() -> Option<PathBuf> {
    std::env::var_os("CANTRIP_TEST_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from)
}

const CHAT: &str = r#"
import sys
from openai import OpenAI, NotFoundError
client = OpenAI(base_url=sys.argv[1], api_key="nobody asks")
assert "slow" in [model.id for model in client.models.list()], "the spell is a model"
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
print("talked")
"#;

#[test]
fn the_openai_client_talks_to_a_spell() {
    let Some(python) = python() else { return };
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
    let Some(python) = python() else { return };
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let schema = format!("http://{}/openapi.json", server.address);
    // The feeds are apart: they answer for as long as their run lives. And what a budget, an owner or a definition may be is
    // more than its schema says, so not everything that fits the schema is accepted; what is refused is refused as it says.
    let output = Command::new(python.with_file_name("schemathesis"))
        .args(["run", &schema, "--seed", "1", "--max-examples", "10", "--phases", "examples,coverage,fuzzing"])
        .args(["--exclude-checks", "positive_data_acceptance"])
        .args(["--exclude-path-regex", "/(events|records)$", "--request-timeout", "20", "--workers", "2", "--no-color"])
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
