//! Ollama's own chat.
//!
//! It also speaks as OpenAI does, but not about its window: a list that is longer than the few thousand tokens it starts
//! with is cut there without a word. Here it is told how many it shall read.

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
    /// `model` at `base`, which is the part of the address before `/api/chat`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Endpoint::new(format!("ollama/{model}"), model, endpoint_url(base, &["api", "chat"])?)?;
        Ok(Self(endpoint.with_window_lookup(Some(WindowLookup::Ollama)).with_key_header(
            "authorization",
            "Bearer ",
            key,
        )?))
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

    /// The same, with each answer in one piece. Nothing is seen before it is all said.
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
