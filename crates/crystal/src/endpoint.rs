//! Named endpoints: servers that speak one of the known wires under a name of their own, as `groq/<model>` or
//! `vllm/<model>`.
//!
//! The popular ones come as presets, which are data: an address, a wire, and the variable that holds the key. A person's
//! configuration adds others and changes these. A `Provider` for each of them was turned down: what differs between
//! them is no code.

use url::Url;

use crate::http::EndpointFault;
use crate::{Access, Anthropic, AnyCrystal, Compatible, Profiles, Responses};

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

    /// The word that a configuration has for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Responses => "responses",
            Self::Messages => "messages",
        }
    }

    /// The wire that this word stands for.
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|wire| wire.as_str() == word)
    }
}

/// A server that is reached by a name of its own.
///
/// ```
/// # use cantrip_crystal::{NamedEndpoint, Wire};
/// let groq = NamedEndpoint::preset("groq").unwrap();
/// assert_eq!((groq.wire, groq.key_variable.as_deref()), (Wire::Chat, Some("GROQ_API_KEY")));
/// assert_eq!(NamedEndpoint::preset("nowhere"), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedEndpoint {
    /// What stands before the slash in the names of its models.
    pub name: String,
    /// The part of its address before `/chat/completions`, `/responses` or `/messages`.
    pub url: Url,
    pub wire: Wire,
    /// The environment variable that holds its key; none if it takes no key.
    pub key_variable: Option<String>,
    /// Whether it answers nobody without a key. A server of one's own may run with or without one.
    pub needs_key: bool,
    /// The models that are listed for it. The first one is taken where nobody names a crystal.
    pub models: Vec<String>,
}

/// The name, the address and the variable of a key of an endpoint that comes with the program.
struct Preset(&'static str, &'static str, &'static str, Needs);

enum Needs {
    Key,
    /// A server on this machine, whose key is optional.
    NoKey,
}

/// The addresses and variables are those of each server's own documentation.
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
    /// An endpoint at this address that speaks OpenAI's chat, takes no key and lists no models.
    pub fn at(name: &str, url: Url) -> Self {
        let (wire, name) = (Wire::Chat, name.to_owned());
        Self { name, url, wire, key_variable: None, needs_key: false, models: Vec::new() }
    }

    /// The endpoints that come with the program.
    pub fn presets() -> impl Iterator<Item = Self> {
        PRESETS.iter().map(|Preset(name, url, variable, needs)| Self {
            key_variable: Some((*variable).to_owned()),
            needs_key: matches!(needs, Needs::Key),
            ..Self::at(name, Url::parse(url).expect("an address of ours, read by a test"))
        })
    }

    /// The endpoint of this name that comes with the program.
    pub fn preset(name: &str) -> Option<Self> {
        Self::presets().find(|endpoint| endpoint.name == name)
    }

    /// Whether it runs on this machine, going by its address.
    pub fn is_local(&self) -> bool {
        match self.url.host() {
            Some(url::Host::Domain(host)) => host == "localhost" || host.ends_with(".localhost"),
            Some(url::Host::Ipv4(host)) => host.is_loopback(),
            Some(url::Host::Ipv6(host)) => host.is_loopback(),
            None => false,
        }
    }

    /// A model of this endpoint. The key goes to its address and nowhere else.
    pub fn model(&self, model: &str, access: &Access) -> Result<AnyCrystal, EndpointFault> {
        let base = access.base.as_ref().unwrap_or(&self.url);
        let (key, name) = (access.key.as_ref(), format!("{}/{model}", self.name));
        let known = access.profiles.as_deref().unwrap_or_else(|| Profiles::builtin());
        macro_rules! made {
            ($crystal:expr) => {{
                let mut crystal = $crystal?.with_profiles(known);
                if let Some(assumed) = access.on_assumed_window {
                    crystal = crystal.on_assumed_window(assumed);
                }
                AnyCrystal::new(if access.no_streaming { crystal.without_streaming() } else { crystal })
            }};
        }
        Ok(match self.wire {
            Wire::Chat => made!(Compatible::with_name(name, model, base, key)),
            Wire::Responses => made!(Responses::with_name(name, model, base, key)),
            Wire::Messages => made!(Anthropic::with_name(name, model, base, key)),
        })
    }
}
