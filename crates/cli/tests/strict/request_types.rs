//! Checks bodies against the request types of the providers' own Python libraries.

use std::cell::RefCell;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use cantrip_tests::peer::Peer;
use serde_json::{Value, json};

/// Returns the faults of these bodies, one per line; None if the tests are to run without the Python that has
/// the libraries.
fn faults(bodies: &[(&str, Value)]) -> Option<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/request_types.py");
    let mut command = Command::new(Peer::Python.find()?);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("python runs");
    let lines: String =
        bodies.iter().map(|(wire, body)| format!("{}\n", json!({"wire": wire, "body": body}))).collect();
    let mut input = child.stdin.take().expect("a pipe");
    // The script may write faults while it still reads.
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("python ends");
    writer.join().expect("no panic").expect("it reads everything");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut told: Vec<String> = told.lines().map(str::to_owned).collect();
    let counts = told.pop().unwrap_or_else(|| panic!("it told nothing: {}", String::from_utf8_lossy(&output.stderr)));
    let counted = counts.split_whitespace().filter_map(|count| count.split_once('=')?.1.parse::<usize>().ok());
    assert_eq!(counted.sum::<usize>(), bodies.len(), "{counts}");
    assert_eq!(output.status.success(), told.is_empty(), "{told:?}");
    Some(told)
}

thread_local! {
    /// The bodies that the test on this thread has sent; None if they are not collected.
    static SENT: RefCell<Option<Vec<(&'static str, Value)>>> = const { RefCell::new(None) };
}

/// A guard that collects all bodies of its test and checks them against the request types when it is dropped, all at
/// once.
pub(crate) struct RequestTypes(());

impl RequestTypes {
    pub(crate) fn hold() -> Self {
        SENT.set(Some(Vec::new()));
        Self(())
    }
}

impl Drop for RequestTypes {
    fn drop(&mut self) {
        let sent = SENT.take().unwrap_or_default();
        if !std::thread::panicking() {
            assert_fit_request_types(sent);
        }
    }
}

pub(super) fn collect(bodies: impl IntoIterator<Item = (&'static str, Value)>) {
    SENT.with_borrow_mut(|sent| sent.as_mut().map(|sent| sent.extend(bodies)));
}

#[track_caller]
pub(super) fn assert_collecting() {
    let collects = SENT.with_borrow(Option::is_some);
    assert!(collects, "a test with a strict peer begins with `RequestTypes::hold()`");
}

#[track_caller]
pub(crate) fn assert_fit_request_types(bodies: impl IntoIterator<Item = (&'static str, Value)>) {
    let bodies: Vec<_> = bodies.into_iter().collect();
    if let Some(faults) = faults(&bodies).filter(|_| !bodies.is_empty()) {
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

/// The types are strict: for each wire, a body with an extra field, one with a missing field, and one with a wrong
/// type.
#[test]
fn a_body_that_a_library_could_not_send_is_found() {
    let message = json!({"role": "user", "content": "a"});
    let anthropic = json!({"model": "m", "max_tokens": 9, "stream": true, "messages": [message]});
    let chat = json!({"model": "m", "stream": true, "messages": [message]});
    let said = json!({"type": "message", "role": "assistant", "content":
        [{"type": "output_text", "text": "a", "annotations": []}]});
    let responses = json!({"model": "m", "stream": true, "input": [message]});
    let gemini = json!({"contents": [{"role": "user", "parts": [{"text": "a"}]}]});
    let with = |body: &Value, pointer: &str, value: Value| {
        let (place, key) = pointer.rsplit_once('/').expect("a pointer");
        let mut body = body.clone();
        body.pointer_mut(place).expect("a place")[key] = value;
        body
    };
    let without = |body: &Value, key: &str| {
        let mut body = body.clone();
        body.as_object_mut().expect("an object").shift_remove(key);
        body
    };
    let wrong = [
        ("anthropic", with(&anthropic, "/temperature", json!(0.2))),
        ("anthropic", with(&anthropic, "/top_p", json!(0.2))),
        ("anthropic", with(&anthropic, "/messages/0/name", json!("ann"))),
        ("anthropic", with(&anthropic, "/messages/0/content", json!([{"type": "thinking", "thinking": "unsigned"}]))),
        ("anthropic", without(&anthropic, "max_tokens")),
        ("responses", with(&responses, "/input", json!([said]))),
        ("responses", with(&responses, "/seed", json!(1))),
        ("chat", with(&chat, "/messages/0/reasoning_details", json!([]))),
        ("chat", with(&chat, "/messages", json!([{"role": "tool", "content": "a"}]))),
        ("openrouter", with(&chat, "/reasoning", json!({"words": 3}))),
        ("gemini", with(&gemini, "/contents/0/parts", json!([{"text": "a", "signature": "s"}]))),
        ("gemini", with(&gemini, "/tool_choice", json!("auto"))),
    ];
    let right = [("anthropic", anthropic), ("responses", responses), ("chat", chat), ("gemini", gemini)];
    assert_fit_request_types(right);
    if let Some(faults) = faults(&wrong) {
        assert_eq!(faults.len(), wrong.len(), "{faults:#?}");
    }
}
