//! OpenAI's responses API.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model of OpenAI, or behind any server that speaks the same protocol.
///
/// Nothing is stored at the provider: each request has the whole list. The model's reasoning arrives encrypted and is
/// sent back unmodified, before the calls that it led to.
#[derive(Debug, Clone)]
pub struct Responses(Endpoint);

impl Responses {
    /// Creates the crystal of `model` at `base`, the part of the address before `/responses`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        Ok(Self(Self::endpoint(format!("openai/{model}"), model, base, key)?))
    }

    /// Creates the crystal under another name, for a server that may report the window of its model.
    pub fn with_name(
        name: String,
        model: &str,
        base: &Url,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        Ok(Self(Self::endpoint(name, model, base, key)?.with_window_lookup(Some(WindowLookup::Models))))
    }

    fn endpoint(
        name: String,
        model: &str,
        base: &Url,
        key: Option<&Secret<String>>,
    ) -> Result<Endpoint, EndpointFault> {
        let endpoint = Endpoint::new(name, model, endpoint_url(base, &["responses"])?)?;
        endpoint.with_key_header("authorization", "Bearer ", key)
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

impl Crystal for Responses {
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
