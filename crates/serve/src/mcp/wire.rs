//! Lines that are no messages: the library that speaks the protocol ignores them, and JSON-RPC wants them answered.
//!
//! So what a client writes is read line by line before the library sees it. A line that is no JSON, or too long, is answered
//! here with an error that has no id, and the connection lives on.

use std::io;
use std::sync::Arc;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::limits::{MCP_LINE_BYTES_MAX, MCP_PIPE_BYTES};

const PARSE_ERROR: i64 = -32_700;
pub(super) const INVALID_REQUEST: i64 = -32_600;

pub(super) fn json_rpc_error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

/// The answer to text that is no JSON. Its message has the place and not the text.
pub(super) fn parse_error(fault: &serde_json::Error) -> Value {
    let message = format!("Parse error: the message is no JSON at line {}, column {}", fault.line(), fault.column());
    json_rpc_error(&Value::Null, PARSE_ERROR, &message)
}

/// The id of a message, where it has one that an answer can carry.
pub(super) fn id_of(message: &Value) -> Value {
    match message.get("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
        Some(_) | None => Value::Null,
    }
}

/// A client's pipes, with the library between them.
pub(super) struct Wire {
    /// What the library reads from and writes to.
    pub(super) pipes: (DuplexStream, DuplexStream),
    reading: JoinHandle<()>,
    writing: JoinHandle<io::Result<()>>,
}

impl Wire {
    pub(super) fn new(
        from: impl AsyncRead + Send + Unpin + 'static,
        to: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (messages, read) = tokio::io::duplex(MCP_PIPE_BYTES);
        let (write, answers) = tokio::io::duplex(MCP_PIPE_BYTES);
        let to = Arc::new(Mutex::new(to));
        let reading = tokio::spawn(pass_messages(BufReader::new(from), messages, Arc::clone(&to)));
        let writing = tokio::spawn(pass_answers(BufReader::new(answers), to));
        Self { pipes: (read, write), reading, writing }
    }

    /// Splits off what ends the wire: after the library is done, everything that it said is written.
    pub(super) fn split(self) -> ((DuplexStream, DuplexStream), Closing) {
        (self.pipes, Closing { reading: self.reading, writing: self.writing })
    }
}

/// What is left to do on a wire whose library is done.
pub(super) struct Closing {
    reading: JoinHandle<()>,
    writing: JoinHandle<io::Result<()>>,
}

impl Closing {
    pub(super) async fn finish(self) -> io::Result<()> {
        self.reading.abort();
        match self.writing.await {
            Ok(written) => written,
            Err(_) => Ok(()),
        }
    }
}

/// Passes every line that is JSON on, and answers the others.
async fn pass_messages(
    mut from: impl AsyncBufReadExt + Unpin,
    mut messages: DuplexStream,
    to: Arc<Mutex<impl AsyncWrite + Unpin>>,
) {
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = u64::try_from(MCP_LINE_BYTES_MAX).unwrap_or(u64::MAX);
        match (&mut from).take(limit).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let answer = if line.ends_with(b"\n") {
            fault_of(&line)
        } else if line.len() < MCP_LINE_BYTES_MAX {
            // The client closed its end in the middle of a line.
            fault_of(&line).or_else(|| {
                line.push(b'\n');
                None
            })
        } else {
            if skip_line(&mut from).await.is_err() {
                return;
            }
            let message = format!("Invalid request: a message has at most {MCP_LINE_BYTES_MAX} bytes");
            Some(json_rpc_error(&Value::Null, INVALID_REQUEST, &message))
        };
        let passed = match answer {
            Some(answer) => write_line(&to, answer.to_string().as_bytes()).await,
            None => messages.write_all(&line).await,
        };
        if passed.is_err() {
            return;
        }
    }
}

/// What is wrong with a line as JSON; nothing with an empty one.
fn fault_of(line: &[u8]) -> Option<Value> {
    if line.trim_ascii().is_empty() {
        return None;
    }
    // What is skipped is not checked to be UTF-8, so that comes first.
    let text = String::from_utf8_lossy(line);
    let fault = match text {
        std::borrow::Cow::Borrowed(text) => serde_json::from_str::<IgnoredAny>(text).err(),
        std::borrow::Cow::Owned(_) => serde_json::from_slice::<String>(line).err(),
    };
    fault.map(|fault| parse_error(&fault))
}

/// Reads up to the end of a line without keeping it.
async fn skip_line(from: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<()> {
    loop {
        let read = from.fill_buf().await?;
        if read.is_empty() {
            return Ok(());
        }
        match read.iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                from.consume(at + 1);
                return Ok(());
            }
            None => {
                let length = read.len();
                from.consume(length);
            }
        }
    }
}

/// Writes what the library says, a line at once, so that no answer of ours comes between.
async fn pass_answers(
    mut answers: impl AsyncBufReadExt + Unpin,
    to: Arc<Mutex<impl AsyncWrite + Unpin>>,
) -> io::Result<()> {
    let mut line = Vec::new();
    while answers.read_until(b'\n', &mut line).await? > 0 {
        write_line(&to, line.trim_ascii_end()).await?;
        line.clear();
    }
    Ok(())
}

async fn write_line(to: &Mutex<impl AsyncWrite + Unpin>, line: &[u8]) -> io::Result<()> {
    let mut to = to.lock().await;
    to.write_all(line).await?;
    to.write_all(b"\n").await?;
    to.flush().await
}
