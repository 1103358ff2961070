//! A server on loopback that answers each request with the next prepared response, and records the requests.

#![allow(dead_code, reason = "each test uses its part of it")]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use url::Url;

#[derive(Debug, Clone)]
pub(crate) enum Served {
    /// Status, further header lines, body; the connection is closed after it.
    Whole(u16, &'static str, String),
    /// An event stream that ends after these bytes.
    Stream(Vec<u8>),
    /// An event stream that goes silent after these bytes.
    Stuck(Vec<u8>),
}

#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Value,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    asked: Mutex<Vec<Asked>>,
    pub(crate) hung_up: Notify,
}

impl Log {
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// Serves until its runtime ends. The last response is repeated for further requests.
pub(crate) async fn serve(responses: impl IntoIterator<Item = Served>) -> (Url, Arc<Log>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Arc::new(Log::default());
    let mut responses: VecDeque<Served> = responses.into_iter().collect();
    let shared = Arc::clone(&log);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let next = if responses.len() > 1 { responses.pop_front() } else { responses.front().cloned() };
            tokio::spawn(answer(stream, next.unwrap(), Arc::clone(&shared)));
        }
    });
    (Url::parse(&format!("http://{address}/v1")).unwrap(), log)
}

async fn answer(mut stream: TcpStream, served: Served, log: Arc<Log>) {
    let mut bytes = Vec::new();
    let (head, body) = loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).await.unwrap();
        bytes.extend_from_slice(&chunk[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ").map(str::to_owned));
            if body.len() >= length.unwrap().parse().unwrap() {
                break (head.to_owned(), body.to_owned());
            }
        }
        assert!(read > 0, "the request ended early");
    };
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    log.asked.lock().unwrap().push(Asked { path, head, body: serde_json::from_str(&body).unwrap() });
    let event_stream = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    match served {
        Served::Whole(status, headers, body) => {
            let length = body.len();
            let head =
                format!("HTTP/1.1 {status} Said\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            stream.write_all(body.as_bytes()).await.unwrap();
        }
        Served::Stream(bytes) => {
            stream.write_all(event_stream.as_bytes()).await.unwrap();
            // In small pieces, so that characters and events are cut.
            for piece in bytes.chunks(7) {
                stream.write_all(piece).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
        Served::Stuck(bytes) => {
            stream.write_all(event_stream.as_bytes()).await.unwrap();
            stream.write_all(&bytes).await.unwrap();
            let mut rest = [0; 16];
            // Returns when the other side closes.
            let _ = stream.read(&mut rest).await;
            log.hung_up.notify_one();
        }
    }
}

/// Returns an event stream of these chunks, without an end marker.
pub(crate) fn chunks(chunks: &[Value]) -> Vec<u8> {
    let mut text = String::from(": a comment\n\n");
    for chunk in chunks {
        text.push_str(&format!("data: {chunk}\n\n"));
    }
    text.into_bytes()
}

/// Returns an event stream with an end marker.
pub(crate) fn stream(events: &[Value]) -> Served {
    let mut bytes = chunks(events);
    bytes.extend_from_slice(b"data: [DONE]\n\n");
    Served::Stream(bytes)
}
