//! A run waits if its provider stays down: the caller sees the provider's message, each retry, the advice, and the
//! command to resume.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};

use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::support::{Folder, enveloped, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// The response of a server to every request.
#[derive(Clone, Copy)]
enum Answer {
    /// These bytes, whatever the request is.
    Bytes(&'static str),
    /// A status, further header lines, and a JSON body.
    Status(u16, &'static str, &'static str),
    /// A stream of events with this content.
    Stream(&'static str),
    /// An answer that ends the cast.
    Sound,
}

impl Answer {
    fn written(self) -> String {
        let whole = |status: u16, kind: &str, headers: &str, body: &str| {
            format!(
                "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            )
        };
        match self {
            Self::Bytes(bytes) => bytes.to_owned(),
            Self::Status(status, headers, body) => whole(status, "application/json", headers, body),
            Self::Stream(events) => whole(200, "text/event-stream", "", events),
            Self::Sound => {
                let message = json!({"role": "assistant", "content": "at last"});
                let body = json!({"id": "x", "model": "test",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
                whole(200, "application/json", "", &body.to_string())
            }
        }
    }
}

/// A server on loopback.
struct Provider {
    port: u16,
    answer: Arc<Mutex<Answer>>,
}

impl Provider {
    fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let answer = Arc::new(Mutex::new(answer));
        let shared = Arc::clone(&answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answer = *shared.lock().expect("nobody panics with it");
                std::thread::spawn(move || exchange(stream, answer));
            }
        });
        Self { port, answer }
    }

    fn answers(&self, answer: Answer) {
        *self.answer.lock().expect("nobody panics with it") = answer;
    }
}

fn exchange(mut stream: TcpStream, answer: Answer) -> Option<()> {
    let mut taken = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        taken.extend_from_slice(&piece[..read]);
        // A TLS client sends no such head, so its first bytes are answered.
        if let Answer::Bytes(_) = answer {
            break;
        }
        let Some(end) = taken.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&taken[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if taken.len() >= end + 4 + length.unwrap_or(0) {
            break;
        }
    }
    stream.write_all(answer.written().as_bytes()).ok()
}

/// A spell whose crystal is at this address and gets three attempts without a delay.
fn folder(address: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        "asks.toml",
        &format!(
            "name = \"asks\"\ncrystal = \"local/test@{address}\"\n[retry]\nmax_retries = 2\nbase_ms = 1\ncap_ms = 1\n\
             [wards]\nmax_turns = 5\n"
        ),
    );
    folder
}

/// The expected facts about a fault.
struct Fault {
    code: AnyCode,
    /// The provider's message.
    said: &'static str,
    /// The advice for the user.
    hint: &'static str,
    /// The number of attempts.
    attempts: u32,
}

/// Casts in each output form, and checks the run afterwards.
#[track_caller]
fn assert_told(folder: &Folder, variables: &[(&str, &str)], fault: &Fault) {
    let run = |arguments: &[&str]| -> Output {
        let mut command = folder.command(&[arguments, &["--store", STORE]].concat());
        command.envs(variables.iter().copied()).stdin(std::process::Stdio::null());
        command.output().expect("the binary runs")
    };
    let Fault { code, said, hint, attempts } = fault;
    for further in [&[][..], &["--quiet"], &["--jsonl"]] {
        let output = run(&[&["cast", "asks.toml", "go"], further].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(5), "{further:?}: {output:?}");
        for part in ["waiting: ", said, hint, code.as_str(), "cantrip run resume run_"] {
            assert!(text.contains(part), "{part:?} of {further:?} is not in:\n{text}");
        }
        if further.is_empty() {
            assert_eq!(stdout(&output), "");
            for attempt in 2..=*attempts {
                let line = format!("attempt {attempt} of 3 in 0.0 s: ");
                assert!(text.contains(&line), "{line:?} is not in:\n{text}");
            }
            assert_eq!(text.matches("attempt ").count(), *attempts as usize - 1, "{text}");
        }
    }
    let envelope = enveloped(&run(&["cast", "asks.toml", "go", "--json"]), codes::CREATED.any());
    let data = &envelope["data"];
    assert_eq!((&data["state"], &data["reason"]), (&json!("waiting"), &json!("crystal_unavailable")));
    assert_eq!((&data["fault"]["type"], &data["fault"]["code"]), (&json!("E"), &json!(code.as_str())), "{envelope}");
    let words = |fault: &Value| format!("{} {}", fault["message"], fault["detail"]);
    assert!(words(&data["fault"]).contains(said), "{said:?}: {envelope}");
    assert!(data["hint"].as_str().is_some_and(|told| told.contains(hint)), "{envelope}");
    let shown = run(&["run", "show"]);
    for part in [said, hint, code.as_str()] {
        assert!(stdout(&shown).contains(part), "{part:?} is not in:\n{}", stdout(&shown));
    }
    let shown = enveloped(&run(&["run", "show", "--json"]), codes::READ.any());
    let parked = &shown["data"]["value"]["parked"];
    assert_eq!((&parked["reason"], &parked["error"]["code"]), (&json!("crystal_unavailable"), &json!(code.as_str())));
    let told = format!("{} {}", parked["error"]["message"], parked["detail"]);
    assert!(told.contains(said), "{said:?}: {shown}");
}

const NETWORK: &str = "check the address, the network and any proxy";

#[test]
fn a_server_that_fails_is_quoted_and_the_run_goes_on_once_it_is_well() {
    let body = r#"{"error": {"message": "the engine is on fire"}}"#;
    let provider = Provider::start(Answer::Status(500, "", body));
    let folder = folder(&format!("http://127.0.0.1:{}/v1", provider.port));
    let (code, said) = (codes::UNREACHABLE.any(), "500 the engine is on fire");
    assert_told(&folder, &[], &Fault { code, said, hint: NETWORK, attempts: 3 });
    provider.answers(Answer::Sound);
    let output = folder.run(&["run", "resume", "--store", STORE]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "at last\n"), "{output:?}");
    let shown = folder.envelope(&["run", "show", "--store", STORE], codes::READ.any());
    assert_eq!(shown["data"]["value"]["parked"], Value::Null, "{shown}");
}

#[test]
fn an_answer_that_cannot_be_read_is_quoted() {
    let provider = Provider::start(Answer::Stream("data: {\"choices\": [nonsense\n\n"));
    let folder = folder(&format!("http://127.0.0.1:{}/v1", provider.port));
    let hint = "check that the server at that address answers as its provider does";
    let (code, said) = (codes::STREAM_BROKEN.any(), "a chunk is no JSON");
    assert_told(&folder, &[], &Fault { code, said, hint, attempts: 3 });
}

#[test]
fn a_provider_that_asks_for_an_hour_is_left_alone_at_once_and_quoted() {
    let body = r#"{"error": {"message": "the quota of the day is used up"}}"#;
    let provider = Provider::start(Answer::Status(429, "retry-after: 3600\r\n", body));
    let folder = folder(&format!("http://127.0.0.1:{}/v1", provider.port));
    let said = "429 the quota of the day is used up; it asks to wait 3600 s";
    let hint = "wait until the provider takes requests again";
    assert_told(&folder, &[], &Fault { code: codes::RATE_LIMITED.any(), said, hint, attempts: 1 });
}

#[test]
fn a_server_that_does_not_speak_tls_is_told_from_one_that_is_not_there() {
    let provider = Provider::start(Answer::Bytes("this is no handshake\n"));
    let folder = folder(&format!("https://127.0.0.1:{}/v1", provider.port));
    let (code, said) = (codes::UNREACHABLE.any(), "no connection: ");
    assert_told(&folder, &[], &Fault { code, said, hint: NETWORK, attempts: 3 });
    let shown = folder.run(&["run", "show", "--store", STORE]);
    assert!(stdout(&shown).contains("InvalidContentType"), "the cause is TLS: {shown:?}");
}

#[test]
fn a_proxy_that_is_not_there_is_told() {
    let closed = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let proxy = format!("http://{}", closed.local_addr().expect("an address"));
    drop(closed);
    let folder = folder("http://model.invalid/v1");
    let variables = [("HTTP_PROXY", proxy.as_str()), ("http_proxy", proxy.as_str()), ("NO_PROXY", "")];
    let (code, said) = (codes::UNREACHABLE.any(), "Connection refused");
    assert_told(&folder, &variables, &Fault { code, said, hint: NETWORK, attempts: 3 });
}
