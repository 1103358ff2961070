//! The providers with known addresses: the protocol of each, and what it needs to be reached.

use std::sync::Arc;

use cantrip_canon::Secret;
use url::Url;

use crate::http::EndpointFault;
use crate::{Anthropic, AnyCrystal, Compatible, Gemini, Ollama, Profiles, Provider, Responses, WindowAssumed};

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
        let base = access.base.clone().unwrap_or_else(home);
        let (key, name) = (access.key.as_ref(), format!("{}/{model}", self.as_str()));
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
        Ok(match self {
            Self::Anthropic => made!(Anthropic::new(model, &base, key)),
            Self::OpenAi => made!(Responses::new(model, &base, key)),
            Self::Gemini => made!(Gemini::new(model, &base, key)),
            Self::OpenRouter => made!(Compatible::with_name(name, model, &base, key)),
            // An address that ends in `/v1` is Ollama's OpenAI-compatible API.
            Self::Ollama if base.path().trim_end_matches('/').ends_with("/v1") => {
                made!(Compatible::with_name(name, model, &base, key))
            }
            Self::Ollama => made!(Ollama::new(model, &base, key)),
        })
    }
}
