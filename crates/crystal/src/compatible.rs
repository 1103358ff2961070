//! The OpenAI-compatible crystal: any endpoint that speaks as OpenAI's chat completions do.
//!
//! `genai` knows this wire, and was turned down for it after reading its streamer (0.7.2):
//!
//! * It takes `delta.tool_calls[].index` as the length of a vector: one chunk with a large index ends the process.
//! * Its chunks of calls carry no index, so two calls with one id become one, and the contract's rule about doubled ids
//!   never sees them.
//! * It joins the bytes of a frame without a bound, and anew for each read.
//! * A server that does not stream and answers with one JSON body looks like one that said nothing.
//!
//! So the wire is read here, every part of it bounded. The wires that `genai` reads better than we would (signatures,
//! encrypted reasoning, cache breakpoints) are left to it.

mod body;
mod frames;
mod reading;

use std::error::Error as _;
use std::time::Duration;

use cantrip_canon::Secret;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderValue, RETRY_AFTER};
use url::Url;

use crate::assembler::Assembler;
use crate::limits::{CONNECT_MS_MAX, ERROR_BODY_BYTES_MAX, FRAME_BYTES_MAX, SILENCE_MS_MAX};
use crate::{Answer, Cause, Charge, Crystal, Failure, Request, Sink};

use frames::Frames;
use reading::{Reading, Step};

/// A model behind an OpenAI-compatible endpoint.
///
/// Dropping a request closes its connection. Redirects are not followed: they would carry the key, or lose it.
#[derive(Debug, Clone)]
pub struct Compatible {
    name: String,
    model: String,
    endpoint: Url,
    key: Option<Secret<HeaderValue>>,
    client: reqwest::Client,
}

/// Why a client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CompatibleFault {
    #[error("{0} cannot be the base of an address")]
    Address(Url),
    #[error("the key has characters that no header can carry")]
    Key,
    #[error("no HTTP client can be made")]
    Client(#[source] reqwest::Error),
}

impl Compatible {
    /// `model` at `url`, which is the part of the address before `/chat/completions`.
    pub fn new(model: &str, url: &Url, key: Option<&Secret<String>>) -> Result<Self, CompatibleFault> {
        const PATH: [&str; 2] = ["chat", "completions"];
        let mut endpoint = url.clone();
        if !url.path().trim_end_matches('/').ends_with("/chat/completions") {
            let mut path = endpoint.path_segments_mut().map_err(|()| CompatibleFault::Address(url.clone()))?;
            path.pop_if_empty().extend(PATH);
        }
        let key = key.map(|key| HeaderValue::try_from(format!("Bearer {}", key.expose())).map(Secret::new)).transpose();
        // Whoever embeds this may have chosen another provider before; then that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_millis(CONNECT_MS_MAX))
            .read_timeout(Duration::from_millis(SILENCE_MS_MAX))
            .build()
            .map_err(CompatibleFault::Client)?;
        Ok(Self {
            name: format!("local/{model}@{url}"),
            model: model.to_owned(),
            endpoint,
            key: key.map_err(|_| CompatibleFault::Key)?,
            client,
        })
    }

    fn failure(&self, cause: Cause, charge: Charge) -> Failure {
        Failure::new(&self.name, cause, charge)
    }

    async fn send(&self, request: &Request) -> Result<reqwest::Response, Failure> {
        let body = body::of(request, &self.name, &self.model)
            .map_err(|detail| Failure::rejected(&self.name, detail))?
            .to_string();
        let mut sent = self.client.post(self.endpoint.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = &self.key {
            let mut key = key.expose().clone();
            key.set_sensitive(true);
            sent = sent.header(AUTHORIZATION, key);
        }
        let response = sent.send().await.map_err(|error| {
            // What never got through was not charged; what got no answer may have been.
            if error.is_connect() {
                self.failure(Cause::Unreachable { detail: told(&error).into() }, Charge::Nothing)
            } else {
                self.failure(lost(&error), Charge::Unknown)
            }
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, retry_after) = (response.status().as_u16(), retry_after(response.headers()));
        let text = bounded(response, ERROR_BODY_BYTES_MAX).await.unwrap_or_default();
        // The provider answered that it will not: nothing was charged.
        Err(self.failure(reading::refusal(status, &text, retry_after), Charge::Nothing))
    }
}

impl Crystal for Compatible {
    fn name(&self) -> &str {
        &self.name
    }

    async fn ask(&self, request: &Request, heard: &dyn Sink) -> Result<Answer, Failure> {
        let mut response = self.send(request).await?;
        let mut reading = Reading::new(Assembler::new(&self.name, request, heard), &self.name, &self.model);
        if is_json(response.headers()) {
            return match bounded(response, FRAME_BYTES_MAX).await {
                Ok(text) => match reading.whole(&text) {
                    Ok(()) => reading.finish(),
                    Err(cause) => Err(reading.fail(cause)),
                },
                Err(cause) => Err(reading.fail(cause)),
            };
        }
        let mut frames = Frames::default();
        loop {
            let chunk = match response.chunk().await {
                Ok(chunk) => chunk,
                Err(error) => return Err(reading.fail(lost(&error))),
            };
            match &chunk {
                Some(chunk) => frames.push(chunk),
                None => frames.end(),
            }
            while let Some(frame) = frames.next() {
                match frame.and_then(|frame| reading.frame(&frame)) {
                    Ok(Step::More) => {}
                    Ok(Step::End) => return reading.finish(),
                    Err(cause) => return Err(reading.fail(cause)),
                }
            }
            if chunk.is_none() {
                let detail = "the stream ended without its end mark".into();
                return Err(reading.fail(Cause::Broken { detail }));
            }
        }
    }
}

/// An error on the way, with its causes but without the address.
fn told(error: &reqwest::Error) -> String {
    let mut text = String::from(if error.is_connect() { "no connection" } else { "the connection failed" });
    let mut cause = error.source();
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

fn lost(error: &reqwest::Error) -> Cause {
    if error.is_timeout() {
        Cause::TimedOut { limit: Duration::from_millis(SILENCE_MS_MAX) }
    } else {
        Cause::Broken { detail: told(error).into() }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// A body as text, if it is no longer than it may be.
async fn bounded(mut response: reqwest::Response, limit: usize) -> Result<String, Cause> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| lost(&error))? {
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
