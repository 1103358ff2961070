//! The OpenAI-compatible crystal: any endpoint that speaks OpenAI's chat completions protocol.
//!
//! `genai` implements this protocol. It was turned down after reading its streamer (0.7.2):
//!
//! * It takes `delta.tool_calls[].index` as the length of a vector: one chunk with a large index ends the process.
//! * Its chunks of calls carry no index, so two calls with one id become one, and the contract's rule about duplicate
//!   ids never sees them.
//! * It joins the bytes of a frame without a bound, and again for each read.
//! * A server that does not stream and answers with one JSON body looks like a server that sent nothing.
//!
//! So the protocol is parsed here, with a bound on every part of it. With an event reader in place, the protocols of
//! the other families are parsed here too: the additional code is small, and parts that a provider needs back verbatim
//! are kept where they are read.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{BodyChunks, Endpoint, EndpointFault, endpoint_url};
use crate::window::WindowLookup;
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model behind an OpenAI-compatible endpoint.
#[derive(Debug, Clone)]
pub struct Compatible(Endpoint);

impl Compatible {
    /// Creates the crystal of `model` at `url`, the part of the address before `/chat/completions`.
    pub fn new(model: &str, url: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        Self::with_name(format!("local/{model}@{url}"), model, url, key)
    }

    /// Creates the crystal under another name.
    pub fn with_name(
        name: String,
        model: &str,
        url: &Url,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        let address = endpoint_url(url, &["chat", "completions"])?;
        let endpoint = Endpoint::new(name, model, address)?.with_key_header("authorization", "Bearer ", key)?;
        Ok(Self(endpoint.with_window_lookup(Some(WindowLookup::Models))))
    }

    /// Turns off the lookup of the context window, and does not assume one: a server that counts its requests gets only
    /// requests for answers.
    #[must_use]
    pub fn without_window_lookup(self) -> Self {
        Self(self.0.with_window_lookup(None))
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

    /// Returns the body that is sent for a request, without headers, or the reason why its messages cannot be sent.
    pub fn body(&self, request: &Request) -> Result<BodyChunks, String> {
        body::request_body(request, &self.0).map(BodyChunks::from)
    }
}

impl Crystal for Compatible {
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
        let Endpoint { name, maker, model, .. } = &self.0;
        let body = body::request_body(request, &self.0).map_err(|detail| Failure::rejected(name, detail))?;
        self.0.ask(body, AnswerReader::new(Assembler::new(name, request, heard), maker, model)).await
    }
}
