//! One request to a provider over HTTP, and its answer, streamed or whole.
//!
//! What the wires have in common stands here: the client and its bounds, the key, which failures cost nothing, how long a
//! provider asks to be left alone, and how bytes become events. A wire brings its body and its reading.

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
use cantrip_reply::context_for_host;
use http_body::{Frame, SizeHint};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;
use url::Url;

use crate::limits::{CONNECT_MS_MAX, ERROR_BODY_BYTES_MAX, FRAME_BYTES_MAX, SILENCE_MS_MAX};
use crate::{Answer, Cause, Charge, Failure, Price, Profile, Profiles};

use crate::window::{LearnedWindow, ModelServer, WindowAssumed, WindowLookup};

use event_splitter::EventSplitter;
use limiter::Limiter;

/// Why no crystal can be made of an address and a key.
#[derive(Debug, thiserror::Error)]
pub enum EndpointFault {
    #[error("{0} cannot be the base of an address")]
    Address(Url),
    #[error("the key has characters that no header can carry")]
    Key,
    #[error("no HTTP client can be made")]
    Client(#[source] reqwest::Error),
}

/// Where requests go, with what a provider wants in each of them.
///
/// Dropping a request closes its connection. Redirects are not followed: they would carry the key, or lose it.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    /// The crystal's name.
    pub(crate) name: Arc<str>,
    /// The same, as the maker of what its provider needs back.
    pub(crate) maker: Maker,
    /// What its provider calls it.
    pub(crate) model: String,
    /// What is known of it.
    pub(crate) profile: Profile,
    pub(crate) price: Price,
    address: Url,
    headers: Vec<(HeaderName, HeaderValue)>,
    client: reqwest::Client,
    limiter: Arc<Limiter>,
    /// Whether answers are asked for as they come.
    streams: bool,
    /// How its server is asked about the window, and what came of it.
    window_lookup: Option<WindowLookup>,
    learned_window: Arc<LearnedWindow>,
    /// Is told of a window that is assumed.
    assumed: Option<WindowAssumed>,
}

impl Endpoint {
    pub(crate) fn new(name: String, model: &str, address: Url) -> Result<Self, EndpointFault> {
        // Whoever embeds this may have chosen another provider before; then that one stays.
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

    /// The same, whose server is asked about the window in this way; by none of them nothing is assumed either.
    pub(crate) fn with_window_lookup(mut self, asks: Option<WindowLookup>) -> Self {
        self.window_lookup = asks;
        self
    }

    /// The same, where this is told of a window that is assumed.
    pub(crate) fn on_assumed_window(mut self, assumed: Option<WindowAssumed>) -> Self {
        self.assumed = assumed;
        self
    }

    /// What is known of the model, its window as its server told it where the table does not say it.
    pub(crate) fn profile(&self) -> Profile {
        Profile { window: self.profile.window.or_else(|| self.learned_window.window()), ..self.profile }
    }

    /// Asks the server about the window, where the table does not say it and nobody asked lately.
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

    /// The same, of which these profiles know better.
    pub(crate) fn with_profiles(mut self, profiles: &Profiles) -> Self {
        (self.profile, self.price) = (profiles.profile(&self.name), profiles.price(&self.name));
        self
    }

    /// The same, with each answer in one piece.
    pub(crate) fn without_streaming(mut self) -> Self {
        self.streams = false;
        self
    }

    /// The same elsewhere.
    pub(crate) fn at(mut self, change: impl FnOnce(&mut Url)) -> Self {
        change(&mut self.address);
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((HeaderName::from_static(name), HeaderValue::from_static(value)));
        self
    }

    /// A header with a key in it: `before` and the key. It is shown nowhere.
    pub(crate) fn with_key_header(
        mut self,
        name: &'static str,
        before: &str,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        if let Some(key) = key {
            // A provider may quote the key that it was given, in an error as well as in an answer.
            remember_secret(key.expose());
            let mut value =
                HeaderValue::try_from(format!("{before}{}", key.expose())).map_err(|_| EndpointFault::Key)?;
            value.set_sensitive(true);
            self.headers.push((HeaderName::from_static(name), value));
            self.limiter = Limiter::of(&self.address.origin().ascii_serialization(), Some(key.expose()));
        }
        Ok(self)
    }

    /// Sends a body and reads what comes.
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
        if let Some(trace) = self.address.host_str().and_then(context_for_host) {
            sent = sent.header("traceparent", trace.traceparent());
            if let Some(state) = trace.state() {
                sent = sent.header("tracestate", state);
            }
        }
        let response = sent.body(reqwest::Body::wrap(BodyChunks::from(body))).send().await.map_err(|error| {
            // What never got through was not charged; what got no answer may have been.
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
        // The provider answered that it will not: nothing was charged.
        let failed = failure(R::refusal(status, &said, retry_after), Charge::Nothing);
        if let Some(wait) = failed.retry_after() {
            self.limiter.back_off(wait);
        }
        Err(failed)
    }
}

/// What is sent: an object. Lists that make up most of it are written first, in pieces that are shared with the requests
/// before it, and the rest is put behind them.
pub(crate) struct Body {
    pub fields: Value,
    pub lists: Vec<RenderedList>,
}

/// A list of an object that begins with it: its elements as text, with the commas between them.
pub(crate) struct RenderedList {
    pub name: &'static str,
    pub elements: Vec<Bytes>,
}

impl From<Value> for Body {
    fn from(fields: Value) -> Self {
        Self { fields, lists: Vec::new() }
    }
}

/// What goes onto the wire, in order. The pieces of a long list are held in common with other requests and never put
/// together.
#[derive(Debug, Clone)]
pub struct BodyChunks {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl BodyChunks {
    /// How many bytes there are.
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
        // What stands between the elements of one list and those of the next, or the fields.
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
            // The fields behind the brace that opens the object.
            (false, Some(rest)) => between.push_str(rest),
        }
        left.push_back(between.into());
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Self { left, bytes }
    }
}

impl fmt::Display for BodyChunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each piece is whole texts.
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

    /// Exactly: some gateways take no body whose length is not told.
    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

/// Whether more is to come.
pub(crate) enum Step {
    More,
    End,
}

/// Reads one answer, as its wire writes them.
pub(crate) trait ReadAnswer: Sized {
    /// A stream is a line of JSON for each event, without anything around it.
    const LINES: bool = false;

    /// One event of a stream.
    fn read_event(&mut self, data: &str) -> Result<Step, Cause>;

    /// A whole answer, from a server that does not stream. Its end is the end of the body.
    fn read_whole(&mut self, body: &Value) -> Result<(), Cause>;

    /// Whether a stream that stops here has ended well; where the wire has an end mark, it has not.
    fn is_complete(&self) -> bool {
        false
    }

    /// The end came.
    fn finish(self) -> Result<Answer, Failure>;

    /// It came to nothing, and may have cost something.
    fn fail(self, cause: Cause) -> Failure;

    /// What an answer means whose status is no success.
    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause;
}

/// A base and what comes behind it. A base that already has it is taken as it is.
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

/// Why something failed, in the words of a body whose shape nobody promised.
pub(crate) fn message(error: &Value) -> String {
    let words = error["message"].as_str().or_else(|| error.as_str());
    words.map_or_else(|| error.to_string(), str::to_owned)
}

/// An error on the way, with its causes but without the address.
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

/// A body as text, if it is no longer than it may be.
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

/// How long the provider asks to be left alone: in milliseconds, in seconds, or as a date, which is measured against
/// the date it answered with, since its clock need not be ours.
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
