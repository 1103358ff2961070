//! A remote server over HTTP: the requests, and the bounds on its responses.
//!
//! The library's own client reads a JSON response of any length, and any number of events. This client counts while it
//! reads: the bytes of a response and of each event, and the number of events.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::limits::FETCH_CONNECT_MS;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue, StatusCode, header};
use reqwest::Response;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, ErrorData, GetMeta, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    AuthRequiredError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::flood::FloodGuard;
use crate::limits::MCP_MESSAGE_BYTES_MAX;

const SESSION: &str = "Mcp-Session-Id";
const LAST_EVENT: &str = "Last-Event-Id";
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

type Fault = StreamableHttpError<reqwest::Error>;

/// An HTTP client that bounds the size of responses.
#[derive(Debug, Clone)]
pub(super) struct BoundedHttpClient {
    client: reqwest::Client,
    flood: Arc<FloodGuard>,
}

impl BoundedHttpClient {
    pub(super) fn new(flood: &Arc<FloodGuard>) -> Result<Self, reqwest::Error> {
        // A program that embeds this crate may have installed another provider before; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // The address was written by the person who casts, so any address is allowed; a redirect target was not, so
        // none is followed.
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .connect_timeout(Duration::from_millis(FETCH_CONNECT_MS))
            .build()?;
        Ok(Self { client, flood: Arc::clone(flood) })
    }

    /// Reads a whole response, if it is not too long.
    async fn whole(&self, mut response: Response) -> Result<Vec<u8>, Fault> {
        let mut read = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            read.extend_from_slice(&chunk);
            if read.len() > MCP_MESSAGE_BYTES_MAX {
                self.flood.record_length(read.len() as u64);
                return Err(too_long().into());
            }
        }
        Ok(read)
    }

    /// Reads the events of a response, until one of them is too long.
    fn events(&self, response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
        let (flood, mut since) = (Arc::clone(&self.flood), Since::default());
        let counted = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(io::Error::other)?;
            let longest = since.takes(&chunk, || flood.record_message());
            if longest > MCP_MESSAGE_BYTES_MAX {
                flood.record_length(longest as u64);
                return Err(too_long());
            }
            if flood.too_much().is_some() {
                return Err(io::Error::other("there are too many messages"));
            }
            Ok(chunk)
        });
        SseStream::from_bytes_stream(counted).boxed()
    }

    async fn read_response(
        &self,
        response: Response,
        message: &ClientJsonRpcMessage,
        session: bool,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let status = response.status();
        let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (kind, given) = (text(header::CONTENT_TYPE.as_str()).unwrap_or_default(), text(SESSION));
        match status {
            StatusCode::ACCEPTED | StatusCode::NO_CONTENT => return Ok(StreamableHttpPostResponse::Accepted),
            StatusCode::NOT_FOUND if session => return Err(StreamableHttpError::SessionExpired),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let challenge = text(header::WWW_AUTHENTICATE.as_str()).unwrap_or_default();
                return Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(challenge)));
            }
            _ => {}
        }
        if status.is_success() && kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), given));
        }
        let read = self.whole(response).await?;
        if status.is_success() && read.is_empty() && !matches!(message, ClientJsonRpcMessage::Request(_)) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let said = if kind.starts_with(JSON) { serde_json::from_slice(&read).ok() } else { None };
        match (said, status.is_success()) {
            (Some(said), true) => Ok(StreamableHttpPostResponse::Json(said, given)),
            (Some(ServerJsonRpcMessage::Error(refused)), false) => {
                Ok(StreamableHttpPostResponse::Json(correlated(message, refused.error), given))
            }
            // A server of the older revision need not know the first request of the newer one.
            (_, false) if status.is_client_error() && is_discovery(message) => {
                let refused = ErrorData::invalid_request(format!("HTTP {status}"), None);
                Ok(StreamableHttpPostResponse::Json(correlated(message, refused), None))
            }
            (_, false) => Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}").into())),
            (None, true) => Err(StreamableHttpError::UnexpectedContentType(Some(kind))),
        }
    }
}

/// Returns the error as the response to this message: a server that refuses early may leave out the request id.
fn correlated(message: &ClientJsonRpcMessage, error: ErrorData) -> ServerJsonRpcMessage {
    let id = if let ClientJsonRpcMessage::Request(request) = message { Some(request.id.clone()) } else { None };
    ServerJsonRpcMessage::error(error, id)
}

fn is_discovery(message: &ClientJsonRpcMessage) -> bool {
    matches!(message, ClientJsonRpcMessage::Request(asked) if matches!(asked.request, ClientRequest::DiscoverRequest(_)))
}

fn too_long() -> io::Error {
    io::Error::other("a message is too long")
}

/// Counts the bytes since the last event ended. An empty line ends an event.
#[derive(Debug, Default)]
struct Since {
    event: usize,
    /// The number of bytes in the current line.
    line: usize,
    /// True if the last byte was a carriage return: a line feed after it does not end another line.
    returned: bool,
}

impl Since {
    /// Returns the maximum length of an event within this chunk, and calls `ended` for each event that ended.
    fn takes(&mut self, chunk: &[u8], ended: impl Fn()) -> usize {
        let mut longest = self.event;
        for byte in chunk {
            let behind = std::mem::replace(&mut self.returned, *byte == b'\r');
            if *byte == b'\n' && behind {
                continue;
            }
            self.event += 1;
            longest = longest.max(self.event);
            match byte {
                b'\n' | b'\r' if self.line == 0 => {
                    self.event = 0;
                    ended();
                }
                b'\n' | b'\r' => self.line = 0,
                _ => self.line += 1,
            }
        }
        longest
    }
}

impl StreamableHttpClient for BoundedHttpClient {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Fault> {
        let session = session_id.is_some();
        let mut request = self.client.post(&*uri).header(header::ACCEPT, format!("{EVENTS}, {JSON}"));
        request = request.headers(custom_headers.into_iter().collect());
        if let Some(token) = auth_header {
            request = request.bearer_auth(token);
        }
        if let Some(id) = session_id {
            request = request.header(SESSION, &*id);
        }
        // Copies the trace context of the request to the headers, for proxies that read only headers.
        if let ClientJsonRpcMessage::Request(asked) = &message {
            let meta = asked.request.get_meta();
            for (name, text) in [("traceparent", meta.get_traceparent()), ("tracestate", meta.get_tracestate())] {
                if let Some(text) = text {
                    request = request.header(name, text);
                }
            }
        }
        let response = request.json(&message).send().await?;
        self.read_response(response, &message, session).await
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Fault> {
        self.client.delete_session(uri, session_id, auth_header, custom_headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Fault> {
        let session = session_id.is_some();
        let mut request = self.client.get(&*uri).header(header::ACCEPT, EVENTS);
        request = request.headers(custom_headers.into_iter().collect());
        if let Some(token) = auth_header {
            request = request.bearer_auth(token);
        }
        if let Some(id) = session_id {
            request = request.header(SESSION, &*id);
        }
        if let Some(last) = last_event_id {
            request = request.header(LAST_EVENT, last);
        }
        let response = request.send().await?;
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        match status {
            StatusCode::METHOD_NOT_ALLOWED => Err(StreamableHttpError::ServerDoesNotSupportSse),
            StatusCode::NOT_FOUND if session => Err(StreamableHttpError::SessionExpired),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(StreamableHttpError::AuthRequired(AuthRequiredError::new(String::new())))
            }
            _ if !status.is_success() => {
                Err(StreamableHttpError::UnexpectedServerResponse(format!("HTTP {status}").into()))
            }
            _ if !kind.starts_with(EVENTS) => Err(StreamableHttpError::UnexpectedContentType(Some(kind.to_owned()))),
            _ => Ok(self.events(response)),
        }
    }
}
