//! Models behind a server: the wire formats that a server may speak, and the providers with known addresses.
//!
//! One type serves all of them, since they differ only in how a request is written and an answer is read
//! ([`Protocol`](crate::http::Protocol)) and in the headers that carry the key. A type for each provider was turned
//! down: it repeated the whole crystal around those two functions.

use std::sync::Arc;

use cantrip_canon::Secret;
use url::Url;

use crate::anthropic::Messages;
use crate::compatible::Chat;
use crate::gemini::Gemini;
use crate::http::{BodyChunks, Endpoint, EndpointFault, Protocol as _, endpoint_url, wall_time};
use crate::ollama::Ollama;
use crate::responses::Responses;
use crate::window::WindowLookup;
use crate::{
    Answer, AnyCrystal, Crystal, EventSink, Failure, Price, Profile, Profiles, Provider, Request, WindowAssumed, Wire,
};

/// The settings for reaching a provider, beyond its name.
#[derive(Debug, Clone, Default)]
pub struct Access {
    pub key: Option<Secret<String>>,
    /// An address that replaces the provider's own: a gateway, another port, a test.
    pub base: Option<Url>,
    /// Profiles that replace the built-in table of models.
    pub profiles: Option<Arc<Profiles>>,
    /// True if answers are requested in one piece, for a gateway that does not stream.
    pub no_streaming: bool,
    /// The callback for a context window that is unknown and therefore assumed.
    pub on_assumed_window: Option<WindowAssumed>,
}

impl Provider {
    /// Returns the variables that may hold the key, of which the first one set is used. Empty if the provider takes no
    /// key.
    pub const fn key_variables(self) -> &'static [&'static str] {
        match self {
            Self::Anthropic => &["ANTHROPIC_API_KEY"],
            Self::OpenAi => &["OPENAI_API_KEY"],
            Self::Gemini => &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
            Self::OpenRouter => &["OPENROUTER_API_KEY"],
            Self::Ollama => &[],
        }
    }

    /// Returns the variable that replaces the provider's address.
    pub const fn base_variable(self) -> &'static str {
        match self {
            Self::Anthropic => "ANTHROPIC_BASE_URL",
            Self::OpenAi => "OPENAI_BASE_URL",
            Self::Gemini => "GEMINI_BASE_URL",
            Self::OpenRouter => "OPENROUTER_BASE_URL",
            Self::Ollama => "OLLAMA_HOST",
        }
    }

    /// Returns the provider's own address.
    pub const fn default_url(self) -> &'static str {
        match self {
            Self::Anthropic => "https://api.anthropic.com",
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Gemini => "https://generativelanguage.googleapis.com/v1beta",
            Self::OpenRouter => "https://openrouter.ai/api/v1",
            Self::Ollama => "http://localhost:11434",
        }
    }

    /// Creates the crystal of a model of this provider.
    pub fn model(self, model: &str, access: &Access) -> Result<AnyCrystal, EndpointFault> {
        let home = || Url::parse(self.default_url()).expect("an address of ours");
        let base = &access.base.clone().unwrap_or_else(home);
        let (key, name) = (access.key.as_ref(), format!("{}/{model}", self.as_str()));
        let crystal = match self {
            Self::Anthropic => Hosted::anthropic(model, base, key),
            Self::OpenAi => Hosted::openai(model, base, key),
            Self::Gemini => Hosted::gemini(model, base, key),
            Self::OpenRouter => Hosted::named(name, Wire::Chat, model, base, key),
            // An address that ends in `/v1` is Ollama's OpenAI-compatible API.
            Self::Ollama if base.path().trim_end_matches('/').ends_with("/v1") => {
                Hosted::named(name, Wire::Chat, model, base, key)
            }
            Self::Ollama => Hosted::ollama(model, base, key),
        };
        Ok(AnyCrystal::new(crystal?.with_access(access)))
    }
}

/// A model behind a server, over HTTP.
#[derive(Debug, Clone)]
pub struct Hosted {
    endpoint: Endpoint,
    format: WireFormat,
}

/// The wire format of a server: one that a named endpoint may have, or the own format of one provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireFormat {
    Known(Wire),
    Gemini,
    Ollama,
}

impl Hosted {
    /// Creates the crystal of a model of Anthropic at `base`, the part of the address before `/v1/messages`.
    pub fn anthropic(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = messages_endpoint(format!("anthropic/{model}"), model, base)?;
        Ok(Self::new(endpoint.with_key_header("x-api-key", "", key)?, WireFormat::Known(Wire::Messages)))
    }

    /// Creates the crystal of a model of OpenAI at `base`, the part of the address before `/responses`.
    pub fn openai(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Endpoint::new(format!("openai/{model}"), model, endpoint_url(base, &["responses"])?)?;
        Ok(Self::new(endpoint.with_bearer(key)?, WireFormat::Known(Wire::Responses)))
    }

    /// Creates the crystal of a model of the Gemini family at `base`, the part of the address before `/models/...`, such
    /// as `.../v1beta`.
    pub fn gemini(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let mut address = endpoint_url(base, &["models", &format!("{model}:streamGenerateContent")])?;
        address.query_pairs_mut().append_pair("alt", "sse");
        let endpoint = Endpoint::new(format!("gemini/{model}"), model, address)?;
        Ok(Self::new(endpoint.with_key_header("x-goog-api-key", "", key)?, WireFormat::Gemini))
    }

    /// Creates the crystal of a model that Ollama serves at `base`, the part of the address before `/api/chat`.
    pub fn ollama(model: &str, base: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        let endpoint = Endpoint::new(format!("ollama/{model}"), model, endpoint_url(base, &["api", "chat"])?)?;
        Ok(Self::new(endpoint.with_bearer(key)?.with_window_lookup(WindowLookup::Ollama), WireFormat::Ollama))
    }

    /// Creates the crystal of a model behind an OpenAI-compatible server at `url`, the part of the address before
    /// `/chat/completions`.
    pub fn compatible(model: &str, url: &Url, key: Option<&Secret<String>>) -> Result<Self, EndpointFault> {
        Self::named(format!("local/{model}@{url}"), Wire::Chat, model, url, key)
    }

    /// Creates a crystal under its own name, for a server that speaks `wire` and may report the window of its model.
    ///
    /// Of the servers that speak Anthropic's protocol, some read the key from the bearer token, some from Anthropic's
    /// own header, some from either, so both headers are sent.
    pub fn named(
        name: String,
        wire: Wire,
        model: &str,
        base: &Url,
        key: Option<&Secret<String>>,
    ) -> Result<Self, EndpointFault> {
        let endpoint = match wire {
            Wire::Chat => Endpoint::new(name, model, endpoint_url(base, &["chat", "completions"])?)?,
            Wire::Responses => Endpoint::new(name, model, endpoint_url(base, &["responses"])?)?,
            Wire::Messages => messages_endpoint(name, model, base)?.with_key_header("x-api-key", "", key)?,
        };
        Ok(Self::new(endpoint.with_bearer(key)?.with_window_lookup(WindowLookup::Models), WireFormat::Known(wire)))
    }

    fn new(endpoint: Endpoint, format: WireFormat) -> Self {
        Self { endpoint, format }
    }

    /// Turns off the lookup of the context window, and does not assume one: a server that counts its requests gets only
    /// requests for answers.
    #[must_use]
    pub fn without_window_lookup(mut self) -> Self {
        self.endpoint.window_lookup = None;
        self
    }

    /// Sets the callback for a context window that is unknown and therefore assumed.
    #[must_use]
    pub fn on_assumed_window(mut self, assumed: WindowAssumed) -> Self {
        self.endpoint.assumed = Some(assumed);
        self
    }

    /// Replaces the built-in table of model profiles with `profiles`.
    #[must_use]
    pub fn with_profiles(mut self, profiles: &Profiles) -> Self {
        let Endpoint { name, profile, price, .. } = &mut self.endpoint;
        (*profile, *price) = (profiles.profile(name), profiles.price(name));
        self
    }

    /// Requests each answer in one piece, for gateways that do not stream. Nothing is shown before the answer is
    /// complete.
    #[must_use]
    pub fn without_streaming(mut self) -> Self {
        self.endpoint.streams = false;
        if self.format == WireFormat::Gemini {
            let address = &mut self.endpoint.address;
            let path = address.path().replace(":streamGenerateContent", ":generateContent");
            address.set_path(&path);
            address.set_query(None);
        }
        self
    }

    /// Applies the settings that do not concern the address or the key.
    pub(crate) fn with_access(self, access: &Access) -> Self {
        let mut crystal = self.with_profiles(access.profiles.as_deref().unwrap_or_else(|| Profiles::builtin()));
        crystal.endpoint.assumed = access.on_assumed_window;
        if access.no_streaming { crystal.without_streaming() } else { crystal }
    }

    /// Returns the body that is sent for a request, without headers, or the reason why its messages cannot be sent.
    pub fn body(&self, request: &Request) -> Result<BodyChunks, String> {
        let body = match self.format {
            WireFormat::Known(Wire::Chat) => Chat::REQUEST_BODY,
            WireFormat::Known(Wire::Responses) => Responses::REQUEST_BODY,
            WireFormat::Known(Wire::Messages) => Messages::REQUEST_BODY,
            WireFormat::Gemini => Gemini::REQUEST_BODY,
            WireFormat::Ollama => Ollama::REQUEST_BODY,
        };
        body(request, &self.endpoint).map(BodyChunks::from)
    }
}

fn messages_endpoint(name: String, model: &str, base: &Url) -> Result<Endpoint, EndpointFault> {
    let address = match base.path().trim_end_matches('/').ends_with("/v1") {
        true => endpoint_url(base, &["messages"])?,
        false => endpoint_url(base, &["v1", "messages"])?,
    };
    Ok(Endpoint::new(name, model, address)?.header("anthropic-version", "2023-06-01"))
}

impl Crystal for Hosted {
    fn name(&self) -> &str {
        &self.endpoint.name
    }

    fn profile(&self) -> Profile {
        self.endpoint.profile()
    }

    async fn learn_window(&self) {
        self.endpoint.learn_window().await;
    }

    fn price(&self) -> Price {
        self.endpoint.price.on(wall_time())
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        match self.format {
            WireFormat::Known(Wire::Chat) => self.endpoint.ask::<Chat>(request, heard).await,
            WireFormat::Known(Wire::Responses) => self.endpoint.ask::<Responses>(request, heard).await,
            WireFormat::Known(Wire::Messages) => self.endpoint.ask::<Messages>(request, heard).await,
            WireFormat::Gemini => self.endpoint.ask::<Gemini>(request, heard).await,
            WireFormat::Ollama => self.endpoint.ask::<Ollama>(request, heard).await,
        }
    }
}
