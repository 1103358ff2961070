//! Each wire through the binary, against a peer on loopback that refuses what the real provider refuses.
//!
//! The rules are those of the providers' public documentation and of the request types of their own libraries. What a
//! peer signs or encrypts is made by the peer, anew in each run: nobody else knows it, so it can only have come back.

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

/// What a model says in one answer, whoever serves it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Said {
    pub(crate) thought: Option<&'static str>,
    pub(crate) text: Option<String>,
    pub(crate) calls: Vec<(&'static str, Value)>,
    /// The provider's limit on the answer ended it.
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

/// What one provider refuses, and how it says things.
pub(crate) trait Rules: Send {
    /// Which request types hold its bodies; none if its provider publishes none.
    fn request_types(&self) -> Option<&'static str>;

    /// Why this body is refused, in the provider's words.
    fn refuses(&self, body: &Value) -> Result<(), String>;

    /// The body of a refusal.
    fn refusal(&self, message: &str) -> Value;

    /// The stream of an answer to a body that was accepted. What is signed in it is kept.
    fn answer(&mut self, body: &Value, said: &Said) -> String;

    /// From now on nothing that was signed before is recognised.
    fn forget(&mut self);
}

struct State {
    rules: Box<dyn Rules>,
    script: VecDeque<Said>,
    bodies: Vec<Value>,
    accepted: Vec<Value>,
    refused: Vec<String>,
    /// Whether it forgets what it signed after each answer.
    forgets: bool,
}

/// A provider on loopback that says what its script says, to whoever keeps its rules.
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
                // Whoever asked may have gone.
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
            }
        });
        Self { address, state }
    }

    /// The same, which does not recognise what it signed.
    pub(crate) fn forgetting(self) -> Self {
        self.state.lock().expect("not poisoned").forgets = true;
        self
    }

    /// Adds to what it will say.
    pub(crate) fn will_say(&self, said: Said) {
        self.state.lock().expect("not poisoned").script.push_back(said);
    }

    /// The bodies it was asked with, those it refused included.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.state.lock().expect("not poisoned").bodies.clone()
    }

    /// Why it refused what it refused.
    pub(crate) fn refused(&self) -> Vec<String> {
        self.state.lock().expect("not poisoned").refused.clone()
    }

    /// Sends a body to it directly: the status, and what it said.
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
    /// Every body that a test was answered for is held to the provider's own types.
    fn drop(&mut self) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(types) = state.rules.request_types() {
            request_types::collect(state.accepted.iter().map(|body| (types, body.clone())));
        }
    }
}

/// Whether a request asks which models there are or how large a window is. These peers tell nothing of that.
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

/// The head and the body of a request; none if it breaks off.
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

/// A value that nobody has seen before, in letters that every wire can carry.
pub(crate) fn made_up(prefix: &str) -> String {
    let mut bytes = [0; 24];
    File::open("/dev/urandom").and_then(|mut chance| chance.read_exact(&mut bytes)).expect("chance");
    bytes.iter().fold(prefix.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// A stream of events, each named as its provider names it.
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

/// The first field of an object that is none of these.
pub(crate) fn unknown_field<'a>(object: &'a Value, known: &[&str]) -> Option<&'a str> {
    object.as_object()?.keys().map(String::as_str).find(|key| !known.contains(key))
}

/// The first keyword at the top of a tool's parameters that no provider takes there.
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
