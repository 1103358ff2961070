//! A model on loopback. Its answers depend only on the request, so a process that resumes a run gets the same answers
//! as the process before it.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

pub struct Model {
    url: String,
    asked: Arc<AtomicU64>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Model {
    /// Starts a model that answers each request with the message that `says` returns.
    pub fn start(says: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let asked = Arc::new(AtomicU64::new(0));
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let (counted, kept, says) = (asked.clone(), heads.clone(), Arc::new(says));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (counted, kept, says) = (counted.clone(), kept.clone(), says.clone());
                // The client may be killed at any moment; then the answer is not read.
                std::thread::spawn(move || exchange(stream, &counted, &kept, &*says));
            }
        });
        Self { url, asked, heads }
    }

    /// Starts a model that calls the gate `count` `steps` times, once per turn, and then ends.
    pub fn counting(steps: usize) -> Self {
        Self::start(move |request| {
            let messages = request["messages"].as_array().cloned().unwrap_or_default();
            let of = |role: &str| messages.iter().filter(|message| message["role"] == role).collect::<Vec<_>>();
            let step = of("tool").len() + 1;
            let intent = of("user").first().map(|message| message["content"].clone()).unwrap_or_default();
            let (name, arguments) = if step > steps {
                ("done", json!({"answer": format!("counted to {steps}")}))
            } else {
                ("count", json!({"intent": intent, "step": step}))
            };
            let call = json!({"id": format!("call_{step}"), "type": "function",
                "function": {"name": name, "arguments": arguments.to_string()}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        })
    }

    /// Starts a model that always gives the same answer.
    pub fn saying(text: &'static str) -> Self {
        Self::start(move |_| json!({"role": "assistant", "content": text}))
    }

    /// Returns its name in a spell.
    pub fn crystal(&self) -> String {
        format!("local/test@{}", self.url)
    }

    /// Returns its address.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the heads of all requests, in lower case.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("nobody panics with it").clone()
    }

    /// Returns the number of requests for an answer.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

fn exchange(
    mut stream: TcpStream,
    counted: &AtomicU64,
    heads: &Mutex<Vec<String>>,
    says: &(impl Fn(&Value) -> Value + ?Sized),
) -> Option<()> {
    let mut taken = Vec::new();
    let mut piece = [0; 4096];
    let body = loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        taken.extend_from_slice(&piece[..read]);
        let Some(end) = taken.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&taken[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        let length = length.unwrap_or(0);
        if taken.len() >= end + 4 + length {
            // It does not report a context window: only requests for an answer are counted.
            let about_models = ["get /v1/models ", "get /props ", "get /api/", "post /api/show "];
            if about_models.iter().any(|question| head.starts_with(question)) {
                return stream
                    .write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                    .ok();
            }
            heads.lock().expect("nobody panics with it").push(head);
            break taken[end + 4..].to_vec();
        }
    };
    counted.fetch_add(1, Ordering::Relaxed);
    let message = says(&serde_json::from_slice(&body).unwrap_or_default());
    let reason = if message["tool_calls"].is_array() { "tool_calls" } else { "stop" };
    let answer = json!({"id": "x", "model": "test",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let answer = answer.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(answer.as_bytes()).ok()
}
