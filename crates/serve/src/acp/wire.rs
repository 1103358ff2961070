//! One message a line, in and out.

use std::io;

use agent_client_protocol::{ConnectTo, Lines, Role};
use futures_util::{sink, stream};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use crate::limits::ACP_LINE_BYTES_MAX;

/// The lines of a pair of pipes. A line that is too long is an error, and the end: what follows it could not be told apart
/// from its rest.
pub(super) fn lines<R: Role>(
    from: impl AsyncRead + Send + Unpin + 'static,
    to: impl AsyncWrite + Send + Unpin + 'static,
) -> impl ConnectTo<R> + 'static {
    let incoming = stream::unfold(BufReader::new(from), |mut from| async move {
        match line(&mut from).await {
            Ok(None) => None,
            Ok(Some(line)) => Some((Ok(line), from)),
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

async fn line(from: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<String>> {
    loop {
        let mut line = Vec::new();
        let most = u64::try_from(ACP_LINE_BYTES_MAX).unwrap_or(u64::MAX);
        if from.take(most).read_until(b'\n', &mut line).await? == 0 {
            return Ok(None);
        }
        if line.len() >= ACP_LINE_BYTES_MAX && !line.ends_with(b"\n") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than may be"));
        }
        let line = String::from_utf8(line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if !line.trim().is_empty() {
            return Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()));
        }
    }
}
