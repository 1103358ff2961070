//! One request to a provider over HTTP, and its answer, streamed or in one piece.
//!
//! This module holds the parts that all wire protocols share: the client and its bounds, the key, which failures cost
//! nothing, the wait that a provider asks for, and the splitting of bytes into events. Each protocol adds its request
//! body and its reader.

mod event_splitter;
mod limiter;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::error::Error as _;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use cantrip_canon::{Secret, remember_secret, replace_known_secrets};
use cantrip_loom::Maker;
use http_body::{Frame, SizeHint};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;
use url::Url;

use crate::limits::{CONNECT_MS_MAX, ERROR_BODY_BYTES_MAX, FRAME_BYTES_MAX, SILENCE_MS_MAX};
use crate::{Answer, Cause, Charge, Failure, Price, Profile, Profiles};

use crate::window::{LearnedWindow, ModelServer, WindowAssumed, WindowLookup};

use event_splitter::EventSplitter;
use limiter::Limiter;

/// The reason why no crystal can be created from an address and a key.
#[derive(Debug, thiserror::Error)]
pub enum EndpointFault {
    #[error("{0} cannot be the base of an address")]
    Address(Url),
    #[error("the key has characters that cannot be sent in a header")]
    Key,
    #[error("no HTTP client can be made")]
    Client(#[source] reqwest::Error),
}

/// The destination of requests, with the headers that its provider wants in each of them.
///
/// Dropping a request closes its connection. Redirects are not followed: they would leak the key or lose it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// The crystal's name.
    pub(crate) name: Arc<str>,
    /// The crystal as the maker of parts that its provider needs back.
    pub(crate) maker: Maker,
    /// The provider's name for the model.
    pub(crate) model: String,
    /// The known capabilities of the model.
    pub(crate) profile: Profile,
    pub(crate) price: Price,
    address: Url,
    headers: Vec<(HeaderName, HeaderValue)>,
    client: reqwest::Client,
    limiter: Arc<Limiter>,
    /// True if answers are streamed.
    streams: bool,
    /// The way to ask the server for the context window, and below it the result.
    window_lookup: Option<WindowLookup>,
    learned_window: Arc<LearnedWindow>,
    /// The callback for a window that is assumed.
    assumed: Option<WindowAssumed>,
}

impl Endpoint {
    pub(crate) fn new(name: String, model: &str, address: Url) -> Result<Self, EndpointFault> {
        // A program that embeds this crate may have installed another crypto provider before; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
            .read_timeout(Duration::from_millis(SILENCE_MS_MAX))
            .build()
            .map_err(EndpointFault::Client)?;
        let limiter = Limiter::of(&address.origin().ascii_serialization(), None);
        let known = Profiles::for_crystal(&name);
        let (profile, price) = (known.profile(&name), known.price(&name));
        Ok(Self {
            maker: Maker::new(&name),
            name: name.into(),
            model: model.to_owned(),
            profile,
            price,
            address,
            headers: Vec::new(),
            client,
            limiter,
            streams: true,
            window_lookup: Some(WindowLookup::Nothing),
            learned_window: Arc::default(),
            assumed: None,
        })
    }

    /// Sets the way to ask the server for the context window. With none, no window is assumed either.
    pub(crate) fn with_window_lookup(mut self, asks: Option<WindowLookup>) -> Self {
        self.window_lookup = asks;
        self
    }

    /// Sets the callback for a window that is assumed.
    pub(crate) fn on_assumed_window(mut self, assumed: Option<WindowAssumed>) -> Self {
        self.assumed = assumed;
        self
    }

    /// Returns the profile of the model. If the table has no window, the one that the server reported is used.
    pub(crate) fn profile(&self) -> Profile {
        Profile { window: self.profile.window.or_else(|| self.learned_window.window()), ..self.profile }
    }

    /// Asks the server for the window if the table has none and the last lookup is not recent.
    pub(crate) async fn learn_window(&self) {
        let Some(asks) =
            self.window_lookup.filter(|_| self.profile.window.is_none() && !self.learned_window.is_fresh())
        else {
            return;
        };
        let (client, address, headers) = (&self.client, &self.address, self.headers.as_slice());
        let server = ModelServer { client, address, headers, model: &self.model };
        let found = server.window(asks).await;
        self.learned_window.store(&self.name, found, self.assumed);
    }

    /// Takes the profile and the price from `profiles`.
    pub(crate) fn with_profiles(mut self, profiles: &Profiles) -> Self {
        (self.profile, self.price) = (profiles.profile(&self.name), profiles.price(&self.name));
        self
    }

    /// Requests each answer in one piece.
    pub(crate) fn without_streaming(mut self) -> Self {
        self.streams = false;
        self
    }

    /// Changes the address.
    pub(crate) fn at(mut self, change: impl FnOnce(&mut Url)) -> Self {
        change(&mut self.address);
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((HeaderName::from_static(name), HeaderValue::from_static(value)));
        self
    }

    /// Adds a header with a key in it: `before` followed by the key. The header is never printed.
    pub(crate) fn with_key_header(
        mut self,
        name: &'static str,
        before: &str,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        if let Some(key) = key {
            // A provider may quote the key in an error or in an answer.
            remember_secret(key.expose());
            let mut value =
                HeaderValue::try_from(format!("{before}{}", key.expose())).map_err(|_| EndpointFault::Key)?;
            value.set_sensitive(true);
            self.headers.push((HeaderName::from_static(name), value));
            self.limiter = Limiter::of(&self.address.origin().ascii_serialization(), Some(key.expose()));
        }
        Ok(self)
    }

    /// Sends a body and reads the answer.
    pub(crate) async fn ask<R: ReadAnswer>(&self, body: impl Into<Body>, mut reading: R) -> Result<Answer, Failure> {
        let mut body = body.into();
        if let (false, Some(fields)) = (self.streams, body.fields.as_object_mut())
            && let Some(streams) = fields.get_mut("stream")
        {
            *streams = false.into();
            fields.shift_remove("stream_options");
        }
        let _place = self.limiter.enter().await;
        let mut response = self.send::<R>(body).await?;
        if is_json(response.headers()) {
            return match read_bounded(response, FRAME_BYTES_MAX)
                .await
                .and_then(|text| reading.read_whole(&parse_json(&replace_known_secrets(&text))?))
            {
                Ok(()) => reading.finish(),
                Err(cause) => Err(reading.fail(cause)),
            };
        }
        let mut frames = if R::LINES { EventSplitter::lines() } else { EventSplitter::default() };
        loop {
            let chunk = match response.chunk().await {
                Ok(chunk) => chunk,
                Err(error) => return Err(reading.fail(transport_cause(&error))),
            };
            match &chunk {
                Some(chunk) => frames.push(chunk),
                None => frames.end(),
            }
            while let Some(frame) = frames.next() {
                match frame.and_then(|frame| reading.read_event(&replace_known_secrets(&frame))) {
                    Ok(Step::More) => {}
                    Ok(Step::End) => return reading.finish(),
                    Err(cause) => return Err(reading.fail(cause)),
                }
            }
            if chunk.is_none() {
                return match reading.is_complete() {
                    true => reading.finish(),
                    false => {
                        let detail = "the stream ended without its end mark".into();
                        Err(reading.fail(Cause::Broken { detail }))
                    }
                };
            }
        }
    }

    async fn send<R: ReadAnswer>(&self, body: Body) -> Result<reqwest::Response, Failure> {
        let failure = |cause, charge| Failure::new(&self.name, cause, charge);
        let mut sent = self.client.post(self.address.clone()).header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.headers {
            sent = sent.header(name.clone(), value.clone());
        }
        if let Some(trace) = self.address.host_str().and_then(cantrip_trace::header_for) {
            sent = sent.header("traceparent", trace.traceparent());
            if let Some(state) = trace.state() {
                sent = sent.header("tracestate", state);
            }
        }
        let response = sent.body(reqwest::Body::wrap(BodyChunks::from(body))).send().await.map_err(|error| {
            // A request that never reached the provider was not charged; a request without an answer may have been.
            if error.is_connect() {
                failure(Cause::Unreachable { detail: describe_error(&error).into() }, Charge::Nothing)
            } else {
                failure(transport_cause(&error), Charge::Unknown)
            }
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
        let text = read_bounded(response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
        let text = replace_known_secrets(&text);
        let said = serde_json::from_str(&text).unwrap_or_else(|_| text.trim().into());
        // The provider refused the request: nothing was charged.
        let failed = failure(R::refusal(status, &said, retry_after), Charge::Nothing);
        if let Some(wait) = failed.retry_after() {
            self.limiter.back_off(wait);
        }
        Err(failed)
    }
}

/// The body of a request: a JSON object. Lists that make up most of it are written first, in pieces that are shared
/// with earlier requests; the other fields follow.
pub(crate) struct Body {
    pub fields: Value,
    pub lists: Vec<RenderedList>,
}

/// A list at the beginning of the object: its elements as text, with the commas between them.
pub(crate) struct RenderedList {
    pub name: &'static str,
    pub elements: Vec<Bytes>,
}

impl From<Value> for Body {
    fn from(fields: Value) -> Self {
        Self { fields, lists: Vec::new() }
    }
}

/// The bytes of a request body, in order. The pieces of a long list are shared with other requests and never joined.
#[derive(Debug, Clone)]
pub struct BodyChunks {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl BodyChunks {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl From<Body> for BodyChunks {
    fn from(Body { fields, lists }: Body) -> Self {
        let mut left = VecDeque::with_capacity(lists.iter().map(|list| list.elements.len() + 1).sum::<usize>() + 1);
        // The text between the elements of one list and those of the next, or the remaining fields.
        let mut between = String::from("{");
        for RenderedList { name, elements } in lists {
            between.push_str(&format!("\"{name}\":["));
            left.push_back(std::mem::replace(&mut between, String::from("],")).into());
            left.extend(elements);
        }
        let fields = fields.to_string();
        match (left.is_empty(), fields.strip_prefix('{')) {
            (true, _) | (false, None) => between = fields,
            (false, Some("}")) => between = String::from("]}"),
            // The fields after the opening brace of the object.
            (false, Some(rest)) => between.push_str(rest),
        }
        left.push_back(between.into());
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Self { left, bytes }
    }
}

impl fmt::Display for BodyChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each piece is valid UTF-8.
        self.left.iter().try_for_each(|piece| f.write_str(&String::from_utf8_lossy(piece)))
    }
}

impl http_body::Body for BodyChunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let next = this.left.pop_front();
        this.bytes -= next.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    /// Returns the exact length: some gateways reject a body without a length.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

/// The state of a stream after an event.
pub(crate) enum Step {
    More,
    End,
}

/// Reads one answer in the format of its protocol.
pub(crate) trait ReadAnswer: Sized {
    /// True if each event of a stream is one line of bare JSON.
    const LINES: bool = false;

    /// Reads one event of a stream.
    fn read_event(&mut self, data: &str) -> Result<Step, Cause>;

    /// Reads a complete answer from a server that does not stream. It ends with the body.
    fn read_whole(&mut self, body: &Value) -> Result<(), Cause>;

    /// Returns true if a stream that stops here is complete. Always false for a protocol with an end marker.
    fn is_complete(&self) -> bool {
        false
    }

    /// Returns the answer after its end arrived.
    fn finish(self) -> Result<Answer, Failure>;

    /// Ends a failed attempt, which may have cost something.
    fn fail(self, cause: Cause) -> Failure;

    /// Returns the cause for an answer with an error status.
    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause;
}

/// Appends `path` to a base address. A base that already ends with it is returned unchanged.
pub(crate) fn endpoint_url(base: &Url, path: &[&str]) -> Result<Url, EndpointFault> {
    let mut address = base.clone();
    if !base.path().trim_end_matches('/').ends_with(&format!("/{}", path.join("/"))) {
        let mut segments = address.path_segments_mut().map_err(|()| EndpointFault::Address(base.clone()))?;
        segments.pop_if_empty().extend(path);
    }
    Ok(address)
}

pub(crate) fn parse_json(text: &str) -> Result<Value, Cause> {
    serde_json::from_str(text).map_err(|error| Cause::Broken { detail: format!("a chunk is no JSON: {error}").into() })
}

/// Returns the message of an error body, whose shape no provider guarantees.
pub(crate) fn message(error: &Value) -> String {
    let words = error["message"].as_str().or_else(|| error.as_str());
    words.map_or_else(|| error.to_string(), str::to_owned)
}

/// Describes a transport error with its causes but without the address.
fn describe_error(error: &reqwest::Error) -> String {
    let mut text = String::from(if error.is_connect() { "no connection" } else { "the connection failed" });
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

fn transport_cause(error: &reqwest::Error) -> Cause {
    if error.is_timeout() {
        Cause::TimedOut { limit: Duration::from_millis(SILENCE_MS_MAX) }
    } else {
        Cause::Broken { detail: describe_error(error).into() }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Reads a body as text, up to `limit` bytes.
pub(crate) async fn read_bounded(mut response: reqwest::Response, limit: usize) -> Result<String, Cause> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| transport_cause(&error))? {
        body.extend_from_slice(&chunk);
        if body.len() > limit {
            return Err(Cause::TooLarge { limit, unit: "bytes" });
        }
    }
    String::from_utf8(body).map_err(|_| Cause::Broken { detail: "the answer is not UTF-8".into() })
}

/// Returns the wait that the provider asks for: in milliseconds, in seconds, or as a date. A date is compared with the
/// date of the response, since the provider's clock may differ from ours.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(|millis| millis.parse().ok()) {
        return Some(Duration::from_millis(millis));
    }
    let told = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = told.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = |text: &str| jiff::fmt::rfc2822::parse(text).ok().map(|date| date.timestamp().as_millisecond());
    let (until, now) = (date(told)?, date(text(DATE.as_str())?)?);
    Some(Duration::from_millis(u64::try_from(until - now).unwrap_or(0)))
}
