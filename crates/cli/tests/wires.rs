//! The pipes of `acp` and `mcp`: `--debug` output, other output on standard error, and the answer to a line that is not
//! a message.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::support::{Folder, stdout};

/// A running `acp` or `mcp`, with which the test exchanges messages by hand.
struct Spoken {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Spoken {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut command = folder.command(&[arguments, &["--store", "memory:"]].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let (to, from) = (process.stdin.take().expect("a pipe"), process.stdout.take().expect("a pipe"));
        Self { process, to, from: BufReader::new(from) }
    }

    fn says(&mut self, line: &[u8]) {
        self.to.write_all(line).expect("it reads");
        self.to.write_all(b"\n").expect("it reads");
    }

    fn hears(&mut self) -> Value {
        let mut line = String::new();
        self.from.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn asks(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.says(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string().as_bytes());
        self.hears()
    }

    /// Closes its input. Returns its exit status and its standard error.
    fn end(self) -> (Option<i32>, String) {
        let Self { process, to, from } = self;
        drop((to, from));
        let output = process.wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8(output.stderr).expect("UTF-8"))
    }
}

fn greeting(command: &str) -> Value {
    match command {
        "acp" => json!({"protocolVersion": 1, "clientCapabilities": {}}),
        _ => {
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "hand", "version": "1"}})
        }
    }
}

#[test]
fn a_line_over_pipes_that_is_no_json_is_answered_and_the_connection_lives() {
    let folder = Folder::new();
    let mut spoken = Spoken::start(&folder, &["mcp"]);
    // Before the handshake and after it.
    spoken.says(b"{\"jsonrpc\": ");
    let error = spoken.hears();
    assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!(-32700)), "{error}");
    assert_eq!(error["jsonrpc"], "2.0");
    assert_eq!(spoken.asks(1, "initialize", &greeting("mcp"))["result"]["protocolVersion"], "2025-11-25");
    spoken.says(json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string().as_bytes());
    for line in [&b"hello"[..], b"{\"a\": 1,}", b"[1, 2", b"{\"a\": \"\xff\xfe\"}", b"\"", b"{} {}"] {
        spoken.says(line);
        let error = spoken.hears();
        let shown = String::from_utf8_lossy(line);
        assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!(-32700)), "{shown}: {error}");
        assert!(!error.to_string().contains("hello"), "what was said is not said back: {error}");
    }
    // Empty lines get no answer.
    spoken.says(b"");
    spoken.says(b"   ");
    // JSON that is not a message is an invalid request.
    spoken.says(b"{\"foo\": 1}");
    assert_eq!(spoken.hears()["error"]["code"], -32600);
    let listed = spoken.asks(2, "tools/list", &json!({}));
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| tools.len() > 10), "{listed}");
    assert_eq!(spoken.end().0, Some(0));
}

#[test]
fn a_line_over_pipes_that_is_too_long_is_answered_and_the_connection_lives() {
    let folder = Folder::new();
    let mut spoken = Spoken::start(&folder, &["mcp"]);
    assert_eq!(spoken.asks(1, "initialize", &greeting("mcp"))["result"]["protocolVersion"], "2025-11-25");
    let long = format!(
        "{{\"jsonrpc\": \"2.0\", \"id\": 2, \"method\": \"ping\", \"params\": {{\"x\": \"{}\"}}}}",
        "x".repeat(17 << 20)
    );
    spoken.says(long.as_bytes());
    let error = spoken.hears();
    assert_eq!((&error["id"], &error["error"]["code"]), (&Value::Null, &json!(-32600)), "{error}");
    assert_eq!(spoken.asks(3, "ping", &json!({}))["result"], json!({}));
    assert_eq!(spoken.end().0, Some(0));
}

#[test]
fn acp_and_mcp_say_in_their_help_that_idle_is_healthy() {
    let folder = Folder::new();
    for command in ["acp", "mcp"] {
        let help = folder.run(&[command, "--help"]);
        let text = stdout(&help).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("An idle process is healthy"), "{command}: {text}");
        assert!(text.contains("--debug"), "{command}: {text}");
    }
}

#[test]
fn debug_tells_of_every_message_beside_the_protocol() {
    let folder = Folder::new();
    for command in ["acp", "mcp"] {
        let mut spoken = Spoken::start(&folder, &[command, "--debug"]);
        let answer = spoken.asks(7, "initialize", &greeting(command));
        assert!(
            answer["result"]["protocolVersion"] != Value::Null,
            "nothing but the protocol is on standard output: {answer}"
        );
        spoken.says(b"no message");
        assert_eq!(spoken.hears()["error"]["code"], -32700);
        let (status, said) = spoken.end();
        assert_eq!(status, Some(0), "{said}");
        let told: Vec<&str> = said.lines().filter(|line| line.contains(" bytes)")).collect();
        assert!(told.iter().any(|line| line.contains("-> initialize id 7 (")), "{command}: {said}");
        assert!(told.iter().any(|line| line.contains("<- result id 7 (")), "{command}: {said}");
        assert!(told.iter().any(|line| line.contains("-> no JSON (10 bytes)")), "{command}: {said}");
        assert!(!said.contains("clientInfo") && !said.contains("no message"), "what was said is not told: {said}");
        let mut silent = Spoken::start(&folder, &[command]);
        silent.asks(7, "initialize", &greeting(command));
        assert!(!silent.end().1.contains("bytes)"), "without it nothing is told");
    }
}

#[test]
fn doctor_shakes_hands_with_both() {
    let folder = Folder::new();
    let output = folder.run(&["doctor", "--json"]);
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    let findings = envelope["data"]["findings"].as_array().expect("findings").clone();
    for (check, revision) in [("acp", "revision 1"), ("mcp", "revision 2025-11-25")] {
        let found = findings.iter().find(|finding| finding["check"] == check).expect("it was checked");
        assert_eq!(found["verdict"], "good", "{found}");
        assert!(found["said"].as_str().is_some_and(|said| said.contains(revision)), "{found}");
    }
    assert_ne!(envelope["code"], codes::CRASH.as_str());
}
