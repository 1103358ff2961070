//! OpenAI's responses.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model of OpenAI's, or behind anything that speaks the same protocol.
///
/// Nothing is kept at the provider: each request has the whole list, and what the model reasoned comes encrypted and is
/// given back to it as it came, before the calls it led to.
#[derive(Debug, Clone)]
pub struct Responses(Endpoint);

impl Responses {
    /// `model` at `base`, which is the part of the address before `/responses`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        Ok(Self(Self::endpoint(format!("openai/{model}"), model, base, key)?))
    }

    /// The same under another name, behind a server that may tell the window of its model.
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
