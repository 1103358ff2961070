//! One request to a provider over HTTP, and its answer, streamed or in one piece.
//!
//! This module holds the parts that all wire protocols share: the client and its bounds, the key, which failures cost
//! nothing, the wait that a provider asks for, and the splitting of bytes into events. Each protocol adds its request
//! body and its reader.

mod answer_draft;
mod body;
mod event_splitter;
mod limiter;

use std::error::Error as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantrip_canon::{Secret, Timestamp, remember_secret, replace_known_secrets};
use cantrip_loom::{Maker, Message};
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;
use url::Url;

use crate::assembler::Assembler;
use crate::limits::{CONNECT_MS_MAX, ERROR_BODY_BYTES_MAX, FRAME_BYTES_MAX, SILENCE_MS_MAX};
use crate::window::{LearnedWindow, ModelServer, WindowAssumed, WindowLookup};
use crate::{Answer, Cause, Charge, EventSink, Failure, Messages, OutputFormat, Price, Profile, Profiles, Request};

use event_splitter::EventSplitter;
use limiter::Limiter;

pub(crate) use answer_draft::AnswerDraft;
pub use body::BodyChunks;
pub(crate) use body::{Body, RenderedList, object_arguments, render_content};

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
    pub(crate) address: Url,
    headers: Vec<(HeaderName, HeaderValue)>,
    client: reqwest::Client,
    limiter: Arc<Limiter>,
    /// True if answers are streamed.
    pub(crate) streams: bool,
    /// The way to ask the server for the context window, and below it the result. With none, no window is assumed either.
    pub(crate) window_lookup: Option<WindowLookup>,
    learned_window: Arc<LearnedWindow>,
    /// The callback for a window that is assumed.
    pub(crate) assumed: Option<WindowAssumed>,
}

impl Endpoint {
    pub(crate) fn new(name: String, model: &str, address: Url) -> Result<Self, EndpointFault> {
        let client = client_builder(&address)
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

    pub(crate) fn with_window_lookup(mut self, asks: WindowLookup) -> Self {
        self.window_lookup = Some(asks);
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

    /// Adds the key as a bearer token.
    pub(crate) fn with_bearer(self, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        self.with_key_header("authorization", "Bearer ", key)
    }

    /// Sends a request and reads the answer.
    pub(crate) async fn ask<P: Protocol>(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let mut body = (P::REQUEST_BODY)(request, self).map_err(|detail| Failure::rejected(&self.name, detail))?;
        if let (false, Some(fields)) = (self.streams, body.fields.as_object_mut())
            && let Some(streams) = fields.get_mut("stream")
        {
            *streams = false.into();
            fields.shift_remove("stream_options");
        }
        let mut answer =
            AnswerDraft::new(Assembler::new(&self.name, request, heard), &self.model, request.output_tokens_max);
        let mut protocol = P::default();
        let _place = self.limiter.enter().await;
        let response = self.send::<P>(body).await?;
        match read_answer(response, &mut protocol, &mut answer).await {
            Ok(()) => {
                let own = protocol.own_parts(&answer);
                answer.finish(own, &self.maker)
            }
            Err(cause) => Err(answer.fail(cause)),
        }
    }

    async fn send<P: Protocol>(&self, body: Body) -> Result<reqwest::Response, Failure> {
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
        let failed = failure(P::refusal(status, &said, retry_after), Charge::Nothing);
        if let Some(wait) = failed.retry_after() {
            self.limiter.back_off(wait);
        }
        Err(failed)
    }
}

/// The state of a stream after an event.
pub(crate) enum Step {
    More,
    End,
}

/// Returns the body of a request, or the reason why its messages cannot be sent.
pub(crate) type RequestBody = fn(&Request, &Endpoint) -> Result<Body, String>;

/// The protocol of a server: how a request is written, and how the events of one answer are read. The value is the
/// state that only this protocol needs while it reads.
pub(crate) trait Protocol: Default + Send {
    /// True if each event of a stream is one line of bare JSON.
    const LINES: bool = false;

    /// True if a stream has an event that ends it. Without one, a stream is complete once it has a finish reason.
    const HAS_END_EVENT: bool = true;

    const REQUEST_BODY: RequestBody;

    /// Reads one event of a stream.
    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause>;

    /// Reads a complete answer from a server that does not stream. It ends with the body.
    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause>;

    /// Returns the parts that the provider needs back, if they are not the ordered blocks of the answer.
    fn own_parts(self, answer: &AnswerDraft<'_>) -> Option<Value> {
        let _ = answer;
        None
    }

    /// Returns the cause for an answer with an error status.
    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause;
}

/// Returns the builder of a client for this address that follows no redirects. Every request goes through the proxy of
/// the environment, if there is one, except to this machine: a proxy elsewhere cannot reach it, and must not see what is
/// sent to it.
pub(crate) fn client_builder(address: &Url) -> reqwest::ClientBuilder {
    // A program that embeds this crate may have installed another crypto provider before; then that one stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    if is_loopback(address) { builder.no_proxy() } else { builder }
}

/// Returns true if the address is on this machine.
pub(crate) fn is_loopback(address: &Url) -> bool {
    match address.host() {
        Some(url::Host::Domain(host)) => host == "localhost" || host.ends_with(".localhost"),
        Some(url::Host::Ipv4(host)) => host.is_loopback(),
        Some(url::Host::Ipv6(host)) => host.is_loopback(),
        None => false,
    }
}

/// Returns the time of this machine. Only the end of a promotion depends on it; what is recorded has the caller's time.
pub(crate) fn wall_time() -> Timestamp {
    Timestamp::EPOCH.after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

/// Sends a request and parses the body of a successful answer, of at most `limit` bytes.
pub(crate) async fn fetch_json(request: reqwest::RequestBuilder, limit: usize) -> Option<Value> {
    let response = request.send().await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    serde_json::from_str(&read_bounded(response, limit).await.ok()?).ok()
}

/// Appends a path to a base address. Returns none if the base cannot have a path.
pub(crate) fn join_url<'a>(base: &Url, path: impl IntoIterator<Item = &'a str>) -> Option<Url> {
    let mut address = base.clone();
    address.path_segments_mut().ok()?.pop_if_empty().extend(path);
    Some(address)
}

/// Appends `path` to a base address. A base that already ends with it is returned unchanged.
pub(crate) fn endpoint_url(base: &Url, path: &[&str]) -> Result<Url, EndpointFault> {
    if base.path().trim_end_matches('/').ends_with(&format!("/{}", path.join("/"))) {
        return Ok(base.clone());
    }
    join_url(base, path.iter().copied()).ok_or_else(|| EndpointFault::Address(base.clone()))
}

/// Reads the events of a response, or its one body, up to the end of the answer.
async fn read_answer<P: Protocol>(
    mut response: reqwest::Response,
    protocol: &mut P,
    answer: &mut AnswerDraft<'_>,
) -> Result<(), Cause> {
    if is_json(response.headers()) {
        let text = read_bounded(response, FRAME_BYTES_MAX).await?;
        return protocol.read_whole(answer, &parse_json(&replace_known_secrets(&text))?);
    }
    let mut frames = if P::LINES { EventSplitter::lines() } else { EventSplitter::default() };
    loop {
        let chunk = response.chunk().await.map_err(|error| transport_cause(&error))?;
        match &chunk {
            Some(chunk) => frames.push(chunk),
            None => frames.end(),
        }
        while let Some(frame) = frames.next() {
            match protocol.read_event(answer, &replace_known_secrets(&frame?))? {
                Step::More => {}
                Step::End => return Ok(()),
            }
        }
        if chunk.is_none() {
            return match !P::HAS_END_EVENT && answer.finish.is_some() {
                true => Ok(()),
                false => Err(Cause::Broken { detail: "the stream ended without its end mark".into() }),
            };
        }
    }
}

pub(crate) fn parse_json(text: &str) -> Result<Value, Cause> {
    serde_json::from_str(text).map_err(|error| Cause::Broken { detail: format!("a chunk is no JSON: {error}").into() })
}

/// Returns the message of an error body, whose shape no provider guarantees.
pub(crate) fn message(error: &Value) -> String {
    let words = error["message"].as_str().or_else(|| error.as_str());
    words.map_or_else(|| error.to_string(), str::to_owned)
}

/// Returns the messages with the format in words at the end of the system prompt.
///
/// It is not a message of its own behind the others: many chat templates reject a second system message, and a small
/// model answers to that message and forgets the user's.
pub(crate) fn with_format(messages: &Messages, format: &OutputFormat) -> Vec<Message> {
    let mut list: Vec<Message> = messages.iter().cloned().collect();
    let leading = list.iter().take_while(|message| matches!(message, Message::System { .. })).count();
    let words = format.in_words();
    match leading.checked_sub(1).and_then(|last| list.get_mut(last)) {
        Some(Message::System { content }) => *content = format!("{}\n\n{words}", content.text()).into(),
        Some(_) | None => list.insert(0, Message::System { content: words.into() }),
    }
    list
}

/// Returns the cause if a server says that the list of messages is too long. llama.cpp says so with the same error on
/// every wire; vLLM and similar servers have no error code for it, only a sentence. It is worth matching, because the
/// cause leads to a fold.
pub(crate) fn context_too_long(status: u16, error: &Value) -> Option<Cause> {
    let is = |word: &str| error["code"].as_str() == Some(word) || error["type"].as_str() == Some(word);
    let says_so = || status == 400 && message(error).contains("maximum context length");
    let count = |key: &str| error[key].as_u64();
    (is("context_length_exceeded") || is("exceed_context_size_error") || says_so())
        .then(|| Cause::ContextTooLong { tokens: count("n_prompt_tokens"), window: count("n_ctx") })
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
