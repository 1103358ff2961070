//! Framing: one message per line, in and out.

use std::io;

use agent_client_protocol::{ConnectTo, Lines, Role};
use futures_util::{sink, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::limits::ACP_LINE_BYTES_MAX;

/// The lines of a pair of pipes. A line that is too long is an error and ends the connection: the following lines could
/// not be told apart from the rest of it.
pub(super) fn lines<R: Role>(
    from: impl AsyncRead + Send + Unpin + 'static,
    to: impl AsyncWrite + Send + Unpin + 'static,
) -> impl ConnectTo<R> + 'static {
    let incoming = stream::unfold(BufReader::new(from), |mut from| async move {
        match line(&mut from).await {
            Ok(None) => None,
            Ok(Some(line)) => Some((Ok(as_blocks(line)), from)),
            Err(error) => Some((Err(error), from)),
        }
    });
    let outgoing = sink::unfold(to, |mut to, mut line: String| async move {
        line.push('\n');
        to.write_all(line.as_bytes()).await?;
        to.flush().await?;
        Ok::<_, io::Error>(to)
    });
    Lines::new(outgoing, incoming)
}

/// Converts a prompt whose text is a string, or is in `content`, into the protocol's form: a list of blocks in
/// `prompt`. Every other message stays unchanged.
fn as_blocks(line: String) -> String {
    // Most lines are not prompts, and need not be parsed twice.
    if !line.contains("session/prompt") {
        return line;
    }
    let Ok(mut message) = serde_json::from_str::<Value>(&line) else { return line };
    if message.get("method").and_then(Value::as_str) != Some("session/prompt") {
        return line;
    }
    let Some(params) = message.get_mut("params").and_then(Value::as_object_mut) else { return line };
    let words = match (params.get("prompt"), params.get("content")) {
        (Some(Value::Array(_)), _) | (None, None) => return line,
        (Some(words), _) | (None, Some(words)) => words.clone(),
    };
    let blocks = match words {
        Value::String(text) => json!([{"type": "text", "text": text}]),
        block @ Value::Object(_) => json!([block]),
        other @ (Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    };
    params.remove("content");
    params.insert("prompt".to_owned(), blocks);
    message.to_string()
}

async fn line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        let most = u64::try_from(ACP_LINE_BYTES_MAX).unwrap_or(u64::MAX);
        if from.take(most).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if line.len() >= ACP_LINE_BYTES_MAX && !line.ends_with(b"\n") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
        }
        let line = String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if !line.trim().is_empty() {
            return Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()));
        }
    }
}
