//! A provider on loopback that answers every request with one body, so that a case about a wire uses a real connection.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use url::Url;

use crate::limits::EXCHANGE_BYTES_MAX;

/// The server; it runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Loopback {
    url: Url,
    serving: JoinHandle<()>,
}

impl Drop for Loopback {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Loopback {
    pub(crate) async fn serve(body: String) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        let url = Url::parse(&url).map_err(io::Error::other)?;
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // If the client disconnects early, the client reports its own failure.
                let _ = exchange(stream, &body).await;
            }
        });
        Ok(Self { url, serving })
    }

    pub(crate) fn url(&self) -> &Url {
        &self.url
    }
}

/// Reads one request to its end and answers it.
async fn exchange(mut stream: TcpStream, body: &str) -> io::Result<()> {
    let mut taken = Vec::new();
    let mut needed = None;
    while needed.is_none_or(|needed| taken.len() < needed) {
        if taken.len() > EXCHANGE_BYTES_MAX || stream.read_buf(&mut taken).await? == 0 {
            return Ok(());
        }
        needed = needed.or_else(|| request_length(&taken));
    }
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// Returns the length of the whole request, once its head has arrived.
fn request_length(taken: &[u8]) -> Option<usize> {
    let end = taken.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&taken[..end]).to_ascii_lowercase();
    let body = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    Some(end.saturating_add(body.unwrap_or(0)))
}
