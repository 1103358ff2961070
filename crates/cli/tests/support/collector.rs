//! A collector on loopback: receives spans as OTLP over HTTP, and records them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Held;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Map, Value, json};

/// One received batch.
struct Taken {
    head: String,
    body: Vec<u8>,
}

pub struct Collector {
    pub address: String,
    taken: Arc<Mutex<Vec<Taken>>>,
}

impl Collector {
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let taken: Arc<Mutex<Vec<Taken>>> = Arc::default();
        let shared = Arc::clone(&taken);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if let Some(batch) = exchange(stream) {
                    shared.lock().expect("nobody panics with it").push(batch);
                }
            }
        });
        Self { address, taken }
    }

    /// The heads of the requests.
    pub fn heads(&self) -> Vec<String> {
        self.taken.lock().expect("nobody panics with it").iter().map(|batch| batch.head.clone()).collect()
    }

    /// Returns true if any batch contains this text.
    pub fn holds(&self, text: &str) -> bool {
        let found = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let taken = self.taken.lock().expect("nobody panics with it");
        taken.iter().any(|batch| found(&batch.body) || found(batch.head.as_bytes()))
    }

    fn batches(&self) -> Vec<ExportTraceServiceRequest> {
        let taken = self.taken.lock().expect("nobody panics with it");
        taken.iter().map(|batch| ExportTraceServiceRequest::decode(&*batch.body).expect("protobuf")).collect()
    }

    /// Returns the resource of each batch.
    pub fn resources(&self) -> Vec<Value> {
        let of = |batch: ExportTraceServiceRequest| batch.resource_spans.into_iter().filter_map(|spans| spans.resource);
        self.batches().into_iter().flat_map(of).map(|resource| attributes(&resource.attributes)).collect()
    }

    /// Returns all spans, in the order in which they ended.
    pub fn spans(&self) -> Vec<Told> {
        let of = |batch: ExportTraceServiceRequest| {
            batch.resource_spans.into_iter().flat_map(|spans| spans.scope_spans).flat_map(|spans| spans.spans)
        };
        self.batches().into_iter().flat_map(of).map(|span| Told::of(&span)).collect()
    }
}

/// A span, with the fields that tests check.
#[derive(Debug, Clone)]
pub struct Told {
    pub name: String,
    pub trace_id: String,
    pub span_id: String,
    /// Empty for a root.
    pub parent: String,
    /// 0 unset, 1 ok, 2 error.
    pub status: i32,
    /// 1 internal, 3 client.
    pub kind: i32,
    pub attributes: Value,
    pub state: String,
    pub took_ns: u64,
}

impl Told {
    fn of(span: &Span) -> Self {
        Self {
            name: span.name.clone(),
            trace_id: hex(&span.trace_id),
            span_id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            status: span.status.as_ref().map_or(0, |status| status.code),
            kind: span.kind,
            attributes: attributes(&span.attributes),
            state: span.trace_state.clone(),
            took_ns: span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attributes(given: &[KeyValue]) -> Value {
    let told = given.iter().map(|pair| (pair.key.clone(), pair.value.as_ref().map_or(Value::Null, value)));
    Value::Object(told.collect::<Map<String, Value>>())
}

fn value(any: &AnyValue) -> Value {
    match &any.value {
        Some(Held::StringValue(text)) => json!(text),
        Some(Held::BoolValue(truth)) => json!(truth),
        Some(Held::IntValue(number)) => json!(number),
        Some(Held::DoubleValue(number)) => json!(number),
        Some(Held::ArrayValue(list)) => list.values.iter().map(value).collect(),
        other => panic!("no attribute of ours: {other:?}"),
    }
}

fn exchange(mut stream: TcpStream) -> Option<Taken> {
    let mut taken = Vec::new();
    let mut piece = [0; 4096];
    let batch = loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        taken.extend_from_slice(&piece[..read]);
        let Some(end) = taken.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&taken[..end]).into_owned();
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok())?;
        if taken.len() >= end + 4 + length {
            break Taken { head, body: taken[end + 4..end + 4 + length].to_vec() };
        }
    };
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).ok()?;
    Some(batch)
}
