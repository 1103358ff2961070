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
//! So the wire is read here, every part of it bounded. With the reading of events in place, the wires of the other
//! families are read here too: what they add to it is small, and what a provider needs back word for word is kept where
//! it is seen.

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
    /// `model` at `url`, which is the part of the address before `/chat/completions`.
    pub fn new(model: &str, url: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        Self::with_name(format!("local/{model}@{url}"), model, url, key)
    }

    /// The same under another name.
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

    /// The same, of whose window nothing is asked and nothing assumed: a server that counts its requests gets those for
    /// answers only.
    #[must_use]
    pub fn without_window_lookup(self) -> Self {
        Self(self.0.with_window_lookup(None))
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

    /// What is sent for a request, but for headers; or why its list cannot be sent.
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
