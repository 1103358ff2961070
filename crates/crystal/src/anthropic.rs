//! Anthropic's messages.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model of Anthropic's, or behind anything that speaks as Anthropic does.
///
/// What it thought, signed or redacted, is given back to its provider as it came, and to nobody else: the provider itself
/// leaves out what the model that is asked cannot read. The longest unchanging part of each request is marked for its
/// cache.
#[derive(Debug, Clone)]
pub struct Anthropic(Endpoint);

impl Anthropic {
    /// `model` at `base`, which is the part of the address before `/v1/messages`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Self::endpoint(format!("anthropic/{model}"), model, base)?;
        Ok(Self(endpoint.with_key_header("x-api-key", "", key)?))
    }

    /// The same under another name, behind a server that speaks as Anthropic does. Such servers take the key as a bearer
    /// token, in Anthropic's own header, or in either: they are sent both.
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

    /// The same, where this is told of a window that nobody knows and that is assumed.
    #[must_use]
    pub fn on_assumed_window(self, assumed: WindowAssumed) -> Self {
        Self(self.0.on_assumed_window(Some(assumed)))
    }

    /// The same, of which these profiles know better than the table that comes with the program.
    #[must_use]
    pub fn with_profiles(self, profiles: &Profiles) -> Self {
        Self(self.0.with_profiles(profiles))
    }

    /// The same, with each answer in one piece: for gateways that do not stream. Nothing is seen before it is all said.
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
