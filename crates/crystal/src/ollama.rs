//! Ollama's own chat API.
//!
//! Ollama also speaks OpenAI's protocol, but that one has no parameter for the context window: a list longer than the
//! default of a few thousand tokens is cut silently. Here each request sets the window.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model that Ollama serves.
#[derive(Debug, Clone)]
pub struct Ollama(Endpoint);

impl Ollama {
    /// Creates the crystal of `model` at `base`, the part of the address before `/api/chat`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Endpoint::new(format!("ollama/{model}"), model, endpoint_url(base, &["api", "chat"])?)?;
        Ok(Self(endpoint.with_window_lookup(Some(WindowLookup::Ollama)).with_key_header(
            "authorization",
            "Bearer ",
            key,
        )?))
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

    /// Requests each answer in one piece. Nothing is shown before the answer is complete.
    #[must_use]
    pub fn without_streaming(self) -> Self {
        Self(self.0.without_streaming())
    }
}

impl Crystal for Ollama {
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
        let Endpoint { name, maker, .. } = &self.0;
        let body = body::request_body(request, &self.0).map_err(|detail| Failure::rejected(name, detail))?;
        self.0.ask(body, AnswerReader::new(Assembler::new(name, request, heard), maker, &self.0.model)).await
    }
}
