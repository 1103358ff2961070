//! Each wire through the binary, against a peer on loopback that refuses what the real provider refuses.
//!
//! The rules come from the providers' public documentation and from the request types of their own libraries. Signed or
//! encrypted values are made by the peer, new in each run: no other program knows them, so they can only have been sent
//! back.

mod anthropic;
mod casts;
mod chat;
mod cut;
mod gemini;
mod ollama;
mod request_types;
mod responses;
mod rules;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

pub(crate) use request_types::{RequestTypes, assert_fit_request_types};

/// The content of one answer of a model, for any provider.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) thought: Option<&'static str>,
    pub(crate) text: Option<String>,
    pub(crate) calls: Vec<(&'static str, Value)>,
    /// True if the provider's output limit cut off the answer.
    pub(crate) cut: bool,
}

impl Said {
    pub(crate) fn calling(calls: &[(&'static str, Value)]) -> Self {
        Self { calls: calls.to_vec(), ..Self::default() }
    }

    pub(crate) fn text(text: &str) -> Self {
        Self { text: Some(text.to_owned()), ..Self::default() }
    }

    pub(crate) fn thinking(mut self, thought: &'static str) -> Self {
        self.thought = Some(thought);
        self
    }

    pub(crate) fn after(mut self, text: &str) -> Self {
        self.text = Some(text.to_owned());
        self
    }

    pub(crate) fn cut(mut self) -> Self {
        self.cut = true;
        self
    }
}

/// The rules of one provider, and the format of its answers.
pub(crate) trait Rules: Send {
    /// Returns the request types for its bodies; None if the provider publishes none.
    fn request_types(&self) -> Option<&'static str>;

    /// Returns the reason why this body is refused, in the provider's words.
    fn refuses(&self, body: &Value) -> Result<(), String>;

    /// Returns the body of a refusal.
    fn refusal(&self, message: &str) -> Value;

    /// Returns the stream of an answer to an accepted body. Signed values in it are recorded.
    fn answer(&mut self, body: &Value, said: &Said) -> String;

    /// Forgets all signed values.
    fn forget(&mut self);
}

struct State {
    rules: Box<dyn Rules>,
    script: VecDeque<Said>,
    bodies: Vec<Value>,
    accepted: Vec<Value>,
    refused: Vec<String>,
    /// True if the peer forgets its signed values after each answer.
    forgets: bool,
}

/// A provider on loopback that plays its script for requests that follow its rules.
pub(crate) struct StrictPeer {
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

impl StrictPeer {
    pub(crate) fn start(rules: impl Rules + 'static, script: impl IntoIterator<Item = Said>) -> Self {
        request_types::assert_collecting();
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let state = State {
            rules: Box::new(rules),
            script: script.into_iter().collect(),
            bodies: Vec::new(),
            accepted: Vec::new(),
            refused: Vec::new(),
            forgets: false,
        };
        let state = Arc::new(Mutex::new(state));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                let Some((head, body)) = read_request(&mut stream) else { continue };
                let (status, kind, text) = match asks_about_the_server(&head) {
                    true => (404, "application/json", json!({"error": {"message": "not found"}}).to_string()),
                    false => answered(&mut shared.lock().expect("not poisoned"), &body),
                };
                let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n");
                // The client may have disconnected.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
            }
        });
        Self { address, state }
    }

    /// Returns the peer in the mode that forgets its signed values.
    pub(crate) fn forgetting(self) -> Self {
        self.state.lock().expect("not poisoned").forgets = true;
        self
    }

    /// Appends to the script.
    pub(crate) fn will_say(&self, said: Said) {
        self.state.lock().expect("not poisoned").script.push_back(said);
    }

    /// Returns the bodies of all requests, also of refused ones.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.state.lock().expect("not poisoned").bodies.clone()
    }

    /// Returns the reasons of the refusals.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.lock().expect("not poisoned").refused.clone()
    }

    /// Sends a body to the peer directly. Returns the status and the answer.
    pub(crate) fn ask(&self, body: &Value) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address.trim_start_matches("http://")).expect("a connection");
        let body = body.to_string();
        let head = format!("POST / HTTP/1.1\r\nhost: peer\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).expect("writable");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("readable");
        let status = text.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, text.split_once("\r\n\r\n").expect("a body").1.to_owned())
    }
}

impl Drop for StrictPeer {
    /// Collects every accepted body, to check it against the provider's own types.
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(types) = state.rules.request_types() {
            request_types::collect(state.accepted.iter().map(|body| (types, body.clone())));
        }
    }
}

/// Returns true if a request asks for the list of models or the size of a window. These peers do not report either.
fn asks_about_the_server(head: &str) -> bool {
    let mut words = head.split(' ');
    words.next() == Some("get") || words.next().is_some_and(|path| path.ends_with("/api/show"))
}

fn answered(state: &mut State, body: &Value) -> (u16, &'static str, String) {
    state.bodies.push(body.clone());
    let refused = match body.is_object() {
        true => state.rules.refuses(body),
        false => Err("the body is not a JSON object".to_owned()),
    };
    if let Err(message) = refused {
        let refusal = state.rules.refusal(&message).to_string();
        state.refused.push(message);
        return (400, "application/json", refusal);
    }
    let Some(said) = state.script.pop_front() else {
        return (500, "application/json", json!({"error": {"message": "the script is over"}}).to_string());
    };
    state.accepted.push(body.clone());
    let text = state.rules.answer(body, &said);
    if state.forgets {
        state.rules.forget();
    }
    (200, "text/event-stream", text)
}

/// Returns the head and the body of a request; None if the request breaks off.
fn read_request(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 65_536]);
    loop {
        let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        let body = &bytes[end + 4..];
        if body.len() >= length.unwrap_or(0) {
            return Some((head, serde_json::from_slice(body).unwrap_or(Value::Null)));
        }
    }
}

/// Returns a new random value, in characters that every wire can carry.
pub(crate) fn made_up(prefix: &str) -> String {
    let mut bytes = [0; 24];
    File::open("/dev/urandom").and_then(|mut chance| chance.read_exact(&mut bytes)).expect("chance");
    bytes.iter().fold(prefix.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Renders a stream of events, each with the provider's name for it.
pub(crate) fn events(events: &[Value]) -> String {
    let named = |event: &Value| match event["type"].as_str() {
        Some(name) => format!("event: {name}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    };
    events.iter().map(named).collect()
}

pub(crate) fn halves(text: &str) -> [&str; 2] {
    let (one, two) = text.split_at(text.floor_char_boundary(text.len() / 2));
    [one, two]
}

/// Returns the first field of an object that is not in the list.
pub(crate) fn unknown_field<'a>(object: &'a Value, known: &[&str]) -> Option<&'a str> {
    object.as_object()?.keys().map(String::as_str).find(|key| !known.contains(key))
}

/// Returns the first keyword at the top level of a tool's parameters that no provider accepts there.
pub(crate) fn combination(parameters: &Value) -> Option<&'static str> {
    let combinations = ["oneOf", "anyOf", "allOf", "enum", "not"];
    combinations.into_iter().find(|keyword| parameters.get(keyword).is_some())
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
