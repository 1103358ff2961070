//! Named endpoints: servers that speak one of the known protocols and have their own name, as in `groq/<model>` or
//! `vllm/<model>`.
//!
//! The popular ones are presets, which are data: an address, a protocol, and the variable that holds the key. The
//! user's configuration adds others and changes these. A `Provider` for each of them was turned down: they do not
//! differ in code.

use url::Url;

use crate::http::{EndpointFault, is_loopback};
use crate::{Access, AnyCrystal, Hosted};

/// The protocol that a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
}

impl Wire {
    pub const ALL: [Self; 3] = [Self::Chat, Self::Responses, Self::Messages];

    /// Returns the word for this protocol in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// Returns the protocol of a configuration word.
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wire| wire.as_str() == word)
    }
}

/// A server that is addressed by its own name.
///
/// ```
/// # use cantrip_crystal::{NamedEndpoint, Wire};
/// let groq = NamedEndpoint::preset("groq").unwrap();
/// assert_eq!((groq.wire, groq.key_variable.as_deref()), (Wire::Chat, Some("GROQ_API_KEY")));
/// assert_eq!(NamedEndpoint::preset("nowhere"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// The part before the slash in the names of its models.
    pub name: String,
    /// The part of its address before `/chat/completions`, `/responses` or `/messages`.
    pub url: Url,
    pub wire: Wire,
    /// The environment variable that holds its key; none if it takes no key.
    pub key_variable: Option<String>,
    /// True if every request needs a key. A self-hosted server may run with or without one.
    pub needs_key: bool,
    /// The models that are listed for it. The first one is the default when no crystal is named.
    pub models: Vec<String>,
}

/// The name, the address and the key variable of a built-in endpoint.
struct Preset(&'static str, &'static str, &'static str, Needs);

enum Needs {
    Key,
    /// A server on this machine, whose key is optional.
    NoKey,
}

/// The addresses and variables come from each server's documentation.
const PRESETS: [Preset; 11] = [
    Preset("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", Needs::Key),
    Preset("deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", Needs::Key),
    Preset("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY", Needs::Key),
    Preset("mistral", "https://api.mistral.ai/v1", "MISTRAL_API_KEY", Needs::Key),
    Preset("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY", Needs::Key),
    Preset("xai", "https://api.x.ai/v1", "XAI_API_KEY", Needs::Key),
    Preset("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", Needs::Key),
    Preset("lmstudio", "http://localhost:1234/v1", "LM_API_TOKEN", Needs::NoKey),
    Preset("llamacpp", "http://localhost:8080/v1", "LLAMA_API_KEY", Needs::NoKey),
    Preset("vllm", "http://localhost:8000/v1", "VLLM_API_KEY", Needs::NoKey),
    Preset("litellm", "http://localhost:4000/v1", "LITELLM_API_KEY", Needs::NoKey),
];

impl NamedEndpoint {
    /// Creates an endpoint at this address that speaks OpenAI's chat protocol, takes no key and lists no models.
    pub fn at(name: &str, url: Url) -> Self {
        let (wire, name) = (Wire::Chat, name.to_owned());
        Self { name, url, wire, key_variable: None, needs_key: false, models: Vec::new() }
    }

    /// Returns the built-in endpoints.
    pub fn presets() -> impl Iterator<Item = Self> {
        PRESETS.iter().map(|Preset(name, url, variable, needs)| Self {
            key_variable: Some((*variable).to_owned()),
            needs_key: matches!(needs, Needs::Key),
            ..Self::at(name, Url::parse(url).expect("an address of ours, read by a test"))
        })
    }

    /// Returns the built-in endpoint of this name.
    pub fn preset(name: &str) -> Option<Self> {
        Self::presets().find(|endpoint| endpoint.name == name)
    }

    /// Returns true if the address is on this machine.
    pub fn is_local(&self) -> bool {
        is_loopback(&self.url)
    }

    /// Creates the crystal of a model at this endpoint. The key is sent to its address and nowhere else.
    pub fn model(&self, model: &str, access: &Access) -> Result<AnyCrystal, EndpointFault> {
        let (base, name) = (access.base.as_ref().unwrap_or(&self.url), format!("{}/{model}", self.name));
        let crystal = Hosted::named(name, self.wire, model, base, access.key.as_ref())?;
        Ok(AnyCrystal::new(crystal.with_access(access)))
    }
}
