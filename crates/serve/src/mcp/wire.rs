//! Lines that are not messages: the library that speaks the protocol ignores them, but JSON-RPC requires an answer.
//!
//! So the client's input is read line by line before the library sees it. A line that is not JSON, or is too long, is
//! answered here with an error without an id, and the connection continues.

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

/// Returns the error for text that is not JSON. Its message has the position and not the text.
pub(super) fn parse_error(fault: &serde_json::Error) -> Value {
    let message = format!("Parse error: the message is not JSON at line {}, column {}", fault.line(), fault.column());
    json_rpc_error(&Value::Null, PARSE_ERROR, &message)
}

/// Returns the id of a message, if an answer can carry it.
pub(super) fn id_of(message: &Value) -> Value {
    match message.get("id") {
        Some(id @ (Value::String(_) | Value::Number(_))) => id.clone(),
        Some(_) | None => Value::Null,
    }
}

/// The pipes of a client, with the library between them.
pub(super) struct Wire {
    /// The pipes that the library reads from and writes to.
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

    /// Splits off the closing part: after the library has finished, all of its output is written.
    pub(super) fn split(self) -> ((DuplexStream, DuplexStream), Closing) {
        (self.pipes, Closing { reading: self.reading, writing: self.writing })
    }
}

/// The work that remains after the library has finished.
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

/// Passes every JSON line on, and answers the others.
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

/// Returns the error for a line that is not JSON; an empty line has none.
fn fault_of(line: &[u8]) -> Option<Value> {
    if line.trim_ascii().is_empty() {
        return None;
    }
    // Ignored values are not checked for UTF-8, so that check comes first.
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

/// Writes the library's output line by line, so that no answer from here comes between.
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
