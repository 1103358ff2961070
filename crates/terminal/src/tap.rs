//! `--debug` of `acp` and `mcp`: prints which messages pass.
//!
//! Standard output belongs to the protocol, so the lines go to standard error: the direction of each message, its
//! method or that it is an answer, its id and its size. The content is not printed, because it may hold secrets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::limits::DEBUG_MESSAGE_BYTES;
use crate::present::{DIM, say, strip_control};

/// One pipe of a protocol with one message per line.
#[derive(Debug)]
pub struct Tap<T> {
    inner: T,
    /// None if nothing is printed.
    watch: Option<Watch>,
}

#[derive(Debug)]
struct Watch {
    arrow: &'static str,
    /// The beginning of the current line.
    line: Vec<u8>,
    bytes: usize,
}

impl<T> Tap<T> {
    /// Wraps the pipe that is read.
    pub fn incoming(inner: T, is_told: bool) -> Self {
        Self::new(inner, is_told, "->")
    }

    /// Wraps the pipe that is written.
    pub fn outgoing(inner: T, is_told: bool) -> Self {
        Self::new(inner, is_told, "<-")
    }

    fn new(inner: T, is_told: bool, arrow: &'static str) -> Self {
        Self { inner, watch: is_told.then(|| Watch { arrow, line: Vec::new(), bytes: 0 }) }
    }
}

impl Watch {
    fn sees(&mut self, mut bytes: &[u8]) {
        while let Some(at) = bytes.iter().position(|byte| *byte == b'\n') {
            self.keeps(&bytes[..at]);
            if self.bytes > 0 {
                say(&format!("{DIM}{} {} ({} bytes){DIM:#}", self.arrow, describe_message(&self.line), self.bytes));
            }
            self.line.clear();
            self.bytes = 0;
            bytes = &bytes[at + 1..];
        }
        self.keeps(bytes);
    }

    fn keeps(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        let room = DEBUG_MESSAGE_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// Returns the method and the id of a message.
fn describe_message(line: &[u8]) -> String {
    let Ok(message) = serde_json::from_slice::<Value>(line) else {
        let why = if line.len() < DEBUG_MESSAGE_BYTES { "no JSON" } else { "a long message" };
        return why.to_owned();
    };
    let id = message.get("id").map(|id| format!(" id {id}")).unwrap_or_default();
    let what = match message.get("method").and_then(Value::as_str) {
        Some(method) => method,
        None if message.get("error").is_some() => "error",
        None => "result",
    };
    strip_control(&format!("{what}{id}"))
}

impl<T: AsyncRead + Unpin> AsyncRead for Tap<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(cx, buffer);
        if let (Poll::Ready(Ok(())), Some(watch)) = (&polled, &mut self.watch) {
            watch.sees(&buffer.filled()[before..]);
        }
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Tap<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(cx, bytes);
        if let (Poll::Ready(Ok(written)), Some(watch)) = (&polled, &mut self.watch) {
            watch.sees(&bytes[..*written]);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
