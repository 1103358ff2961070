//! The Anthropic messages API.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model of Anthropic, or behind any server that speaks the Anthropic protocol.
///
/// Its thinking blocks, signed or redacted, are returned unmodified to the provider that made them, and to no other
/// provider. The provider itself drops the blocks that the requested model cannot read. The longest stable prefix of
/// each request is marked for the provider's cache.
#[derive(Debug, Clone)]
pub struct Anthropic(Endpoint);

impl Anthropic {
    /// Creates the crystal of `model` at `base`, the part of the address before `/v1/messages`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Self::endpoint(format!("anthropic/{model}"), model, base)?;
        Ok(Self(endpoint.with_key_header("x-api-key", "", key)?))
    }

    /// Creates the crystal under another name, for a server that speaks the Anthropic protocol. Some of these servers
    /// read the key from the bearer token, some from Anthropic's own header, some from either, so both headers are
    /// sent.
    pub fn with_name(
        name: String,
        model: &str,
        base: &Url,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        let endpoint = Self::endpoint(name, model, base)?;
        let endpoint =
            endpoint.with_key_header("x-api-key", "", key)?.with_key_header("authorization", "Bearer ", key)?;
        Ok(Self(endpoint.with_window_lookup(Some(WindowLookup::Models))))
    }

    fn endpoint(name: String, model: &str, base: &Url) -> Result<Endpoint, EndpointFault> {
        let address = match base.path().trim_end_matches('/').ends_with("/v1") {
            true => endpoint_url(base, &["messages"])?,
            false => endpoint_url(base, &["v1", "messages"])?,
        };
        Ok(Endpoint::new(name, model, address)?.header("anthropic-version", "2023-06-01"))
    }

    /// Sets the callback for a context window that is unknown and therefore assumed.
    #[must_use]
    pub fn on_assumed_window(self, assumed: WindowAssumed) -> Self {
        Self(self.0.on_assumed_window(Some(assumed)))
    }

    /// Replaces the built-in table of model profiles with `profiles`.
    #[must_use]
    pub fn with_profiles(self, profiles: &Profiles) -> Self {
        Self(self.0.with_profiles(profiles))
    }

    /// Requests each answer in one piece, for gateways that do not stream. Nothing is shown before the answer is
    /// complete.
    #[must_use]
    pub fn without_streaming(self) -> Self {
        Self(self.0.without_streaming())
    }
}

impl Crystal for Anthropic {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn profile(&self) -> Profile {
        self.0.profile()
    }

    async fn learn_window(&self) {
        self.0.learn_window().await;
    }

    fn price(&self) -> Price {
        self.0.price
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let Endpoint { name, maker, model, profile, .. } = &self.0;
        let body =
            body::request_body(request, maker, model, profile).map_err(|detail| Failure::rejected(name, detail))?;
        self.0.ask(body, AnswerReader::new(Assembler::new(name, request, heard), maker, model)).await
    }
}
