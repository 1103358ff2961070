//! Google's Gemini API.

mod body;
mod reader;

use cantrip_canon::Secret;
use url::Url;

use crate::assembler::Assembler;
use crate::http::{Endpoint, EndpointFault, endpoint_url};
use crate::{Answer, Crystal, EventSink, Failure, Price, Profile, Profiles, Request, WindowAssumed};

use reader::AnswerReader;

/// A model of the Gemini family.
///
/// The signatures of its thinking are sent back on the parts that they came on, and only to the same model: another
/// provider must not get them, and another model of the family may refuse them.
#[derive(Debug, Clone)]
pub struct Gemini(Endpoint);

impl Gemini {
    /// Creates the crystal of `model` at `base`, the part of the address before `/models/...`, such as `.../v1beta`.
    pub fn new(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let mut address = endpoint_url(base, &["models", &format!("{model}:streamGenerateContent")])?;
        address.query_pairs_mut().append_pair("alt", "sse");
        let endpoint = Endpoint::new(format!("gemini/{model}"), model, address)?;
        Ok(Self(endpoint.with_key_header("x-goog-api-key", "", key)?))
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
        let endpoint = self.0.without_streaming().at(|address| {
            let path = address.path().replace(":streamGenerateContent", ":generateContent");
            address.set_path(&path);
            address.set_query(None);
        });
        Self(endpoint)
    }
}

impl Crystal for Gemini {
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
        let body = body::request_body(request, maker, profile).map_err(|detail| Failure::rejected(name, detail))?;
        self.0.ask(body, AnswerReader::new(Assembler::new(name, request, heard), maker, model)).await
    }
}
