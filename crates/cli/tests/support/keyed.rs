//! A model server on loopback that requires its key, as vLLM and llama.cpp do with `--api-key`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

/// A received request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// `POST /v1/chat/completions`
    pub line: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Value,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if the request is for an answer, not about a model.
    pub fn wants_answer(&self) -> bool {
        self.line.starts_with("POST") && self.line != "POST /api/show"
    }

    /// Returns the whole request as text, for searching.
    pub fn text(&self) -> String {
        format!("{} {:?} {}", self.line, self.headers, self.body)
    }
}

/// A response: a stream of events, or a status and a JSON body.
pub enum Says {
    Events(Vec<String>),
    Json(u16, Value),
}

pub struct Keyed {
    origin: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Keyed {
    /// Starts a server that requires this key in `Authorization: Bearer`, if there is one. `says` makes the response
    /// from a request and the number of requests that were answered before it.
    pub fn start(key: Option<&'static str>, says: impl Fn(&Asked, usize) -> Says + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let origin = format!("http://{}", listener.local_addr().expect("an address"));
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (log, says) = (Arc::clone(&asked), Arc::new(says));
        let answered = Arc::new(Mutex::new(0));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (log, says, answered) = (Arc::clone(&log), Arc::clone(&says), Arc::clone(&answered));
                std::thread::spawn(move || {
                    let Some((stream, asked)) = taken(stream) else { return };
                    log.lock().expect("nobody panics with it").push(asked.clone());
                    let is_let_in =
                        key.is_none_or(|key| asked.header("authorization") == Some(&format!("Bearer {key}")));
                    let said = if is_let_in {
                        let mut answered = answered.lock().expect("nobody panics with it");
                        let said = says(&asked, *answered);
                        if asked.wants_answer() {
                            *answered += 1;
                        }
                        said
                    } else {
                        let error = json!({"message": "Invalid API Key", "type": "authentication_error", "code": 401});
                        Says::Json(401, json!({"type": "error", "error": error}))
                    };
                    // The client may have disconnected.
                    let _ = written(stream, said);
                });
            }
        });
        Self { origin, asked }
    }

    /// `http://127.0.0.1:PORT`
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns all requests, whether they were answered or not.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    /// Returns the requests for an answer, without those about models.
    pub fn posted(&self) -> Vec<Asked> {
        self.asked().into_iter().filter(Asked::wants_answer).collect()
    }
}

fn taken(mut stream: TcpStream) -> Option<(TcpStream, Asked)> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let mut lines = head.lines();
            let line = lines.next()?.rsplit_once(' ')?.0.to_owned();
            let headers = lines.filter_map(|line| line.split_once(": "));
            let headers: Vec<_> = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
            let length =
                headers.iter().find(|(name, _)| name == "content-length").and_then(|(_, value)| value.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                let body = serde_json::from_str(body).unwrap_or(Value::Null);
                return Some((stream, Asked { line, headers, body }));
            }
        }
        let read = stream.read(&mut chunk).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
    }
}

fn written(mut stream: TcpStream, said: Says) -> std::io::Result<()> {
    let (status, kind, body) = match said {
        Says::Events(events) => {
            let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
            (200, "text/event-stream", body)
        }
        Says::Json(status, body) => (status, "application/json", body.to_string()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())
}
