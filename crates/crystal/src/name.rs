//! Which crystal does a name mean?
//!
//! A name is parsed once, where it is written, into a value. An unknown provider is an error. The endpoints are known
//! only to the configuration, so the name of an endpoint is only checked for its characters here. The part after the
//! provider is the provider's own model name and passes unchanged.

use std::fmt;
use std::str::FromStr;

use cantrip_canon::{IdFault, TurnId};
use url::Url;

use crate::limits::{ENDPOINT_NAME_BYTES_MAX, NAME_BYTES_MAX};
use crate::scripted::suggestion;

/// The name of a crystal, as written in a spell or on a command line.
///
/// ```
/// # use cantrip_crystal::{ModelName, Provider};
/// let name: ModelName = "openrouter/meta/llama".parse().unwrap();
/// assert_eq!(name, ModelName::Hosted { provider: Provider::OpenRouter, model: "meta/llama".into() });
/// assert!("openruoter/meta".parse::<ModelName>().unwrap_err().to_string().contains("openrouter"));
/// let name: ModelName = "groq/openai/gpt-oss-120b".parse().unwrap();
/// assert_eq!(name, ModelName::Endpoint { endpoint: "groq".into(), model: "openai/gpt-oss-120b".into() });
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ModelName {
    /// `anthropic/...`, `openai/...`, `gemini/...`, `openrouter/...`, `ollama/...`
    Hosted { provider: Provider, model: String },
    /// `local/<model>@<url>`: any endpoint that speaks OpenAI's chat protocol.
    Local { model: String, url: Url },
    /// `groq/...`, `vllm/...`, or the name of an endpoint in a configuration. The lookup of its address decides whether
    /// the endpoint exists.
    Endpoint { endpoint: String, model: String },
    /// `scripted/<file>`, or `scripted/<file>#<script>` where the file has several.
    Scripted { file: String, script: Option<String> },
    /// `replay/<turn>`: the thread that ends at this turn.
    Replay { turn: TurnId },
    /// `program/<file>`
    Program { file: String },
    /// `human`
    Human,
}

/// A provider whose address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Provider {
    Anthropic,
    OpenAi,
    Gemini,
    OpenRouter,
    Ollama,
}

impl Provider {
    pub const ALL: [Self; 5] = [Self::Anthropic, Self::OpenAi, Self::Gemini, Self::OpenRouter, Self::Ollama];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Anthropic => "anthropic",
            Self::OpenAi => "openai",
            Self::Gemini => "gemini",
            Self::OpenRouter => "openrouter",
            Self::Ollama => "ollama",
        }
    }
}

/// The reason why a text names no crystal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    #[error("a crystal's name is provider/model, and this has no model: {0:?}")]
    ModelMissing(String),
    #[error("no provider and no endpoint is called {0:?}{1}")]
    ProviderUnknown(String, String),
    #[error("local needs its address, as in local/<model>@http://localhost:8000/v1: {0:?}")]
    UrlMissing(String),
    #[error("{url:?} is not the address of an endpoint: {rule}")]
    Url { url: String, rule: String },
    #[error("replay needs the turn that its thread ends with")]
    Turn(#[source] IdFault),
    #[error("a crystal's name has at most {NAME_BYTES_MAX} bytes and no control characters")]
    Text,
}

pub(crate) const OTHERS: [&str; 5] = ["local", "scripted", "replay", "program", "human"];

/// A name with at most this many letters different from a built-in name is treated as a typing error.
const TYPING_ERROR_LETTERS: usize = 2;

/// Returns the rule that this endpoint name breaks, or none if it is valid.
pub fn endpoint_name_fault(name: &str) -> Option<String> {
    let letters = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || matches!(letter, '-' | '_');
    let begins = name.starts_with(|letter: char| letter.is_ascii_lowercase());
    if !begins || name.len() > ENDPOINT_NAME_BYTES_MAX || !name.chars().all(letters) {
        return Some(format!(
            "an endpoint's name has small letters, digits, - and _, begins with a letter and has at most \
             {ENDPOINT_NAME_BYTES_MAX} bytes"
        ));
    }
    near_built_in(name).map(|built_in| match built_in == name {
        true => format!("{name} is built in and cannot be the name of your own endpoint; choose another name"),
        false => {
            format!("{name:?} is too similar to the built-in {built_in:?}; choose another name")
        }
    })
}

/// Returns the built-in name that equals this name or was probably meant.
fn near_built_in(name: &str) -> Option<&'static str> {
    let built_in = Provider::ALL.into_iter().map(Provider::as_str).chain(OTHERS);
    let near = built_in.map(|known| (strsim::osa_distance(known, name), known)).min()?;
    (near.0 <= TYPING_ERROR_LETTERS).then_some(near.1)
}

impl NameFault {
    /// Creates the fault for a name that is neither a provider nor one of these endpoints, with a suggestion.
    pub fn unknown(provider: &str, endpoints: &[&str]) -> Self {
        let mut known: Vec<&str> = endpoints.to_vec();
        known.extend(Provider::ALL.map(Provider::as_str));
        known.extend(OTHERS);
        Self::ProviderUnknown(provider.to_owned(), suggestion(provider, &known))
    }
}

impl ModelName {
    /// Returns true if the crystal only works in a circle that runs code.
    pub fn needs_code(&self) -> bool {
        match self {
            Self::Program { .. } => true,
            Self::Hosted { .. }
            | Self::Local { .. }
            | Self::Endpoint { .. }
            | Self::Scripted { .. }
            | Self::Replay { .. }
            | Self::Human => false,
        }
    }
}

impl FromStr for ModelName {
    type Err = NameFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
            return Err(NameFault::Text);
        }
        if text == "human" {
            return Ok(Self::Human);
        }
        let (provider, model) = text.split_once('/').unwrap_or((text, ""));
        let is_built_in = OTHERS.contains(&provider) || Provider::ALL.iter().any(|known| known.as_str() == provider);
        if !is_built_in && (!text.contains('/') || endpoint_name_fault(provider).is_some()) {
            return Err(NameFault::unknown(provider, &[]));
        }
        let missing = || NameFault::ModelMissing(text.to_owned());
        if model.trim().is_empty() {
            return Err(missing());
        }
        if !is_built_in {
            return Ok(Self::Endpoint { endpoint: provider.to_owned(), model: model.to_owned() });
        }
        if let Some(provider) = Provider::ALL.into_iter().find(|known| known.as_str() == provider) {
            return Ok(Self::Hosted { provider, model: model.to_owned() });
        }
        match provider {
            "local" => local(text, model),
            "scripted" => match model.rsplit_once('#') {
                None => Ok(Self::Scripted { file: model.to_owned(), script: None }),
                Some(("", _) | (_, "")) => Err(missing()),
                Some((file, script)) => Ok(Self::Scripted { file: file.to_owned(), script: Some(script.to_owned()) }),
            },
            "replay" => Ok(Self::Replay { turn: model.parse().map_err(NameFault::Turn)? }),
            "program" => Ok(Self::Program { file: model.to_owned() }),
            // `human` takes no model.
            _ => Err(NameFault::ProviderUnknown(text.to_owned(), suggestion(text, &OTHERS))),
        }
    }
}

fn local(text: &str, rest: &str) -> Result<ModelName, NameFault> {
    // A model name may contain an `@`; an address begins with its scheme.
    let split = rest.match_indices('@').find(|(at, _)| {
        let after = &rest[at + 1..];
        after.starts_with("http://") || after.starts_with("https://")
    });
    let Some((at, _)) = split else { return Err(NameFault::UrlMissing(text.to_owned())) };
    let (model, written) = (&rest[..at], &rest[at + 1..]);
    if model.trim().is_empty() {
        return Err(NameFault::ModelMissing(text.to_owned()));
    }
    let fault = |rule: &str| NameFault::Url { url: written.to_owned(), rule: rule.to_owned() };
    let url = Url::parse(written).map_err(|error| fault(&error.to_string()))?;
    if !url.username().is_empty() || url.password().is_some() {
        // The name is written to records and logs. The text of the fault must not repeat the key either.
        return Err(NameFault::Url { url: "...".to_owned(), rule: "a key does not belong into a name".to_owned() });
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(fault("it has a query or a fragment"));
    }
    Ok(ModelName::Local { model: model.to_owned(), url })
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosted { provider, model } => write!(f, "{}/{model}", provider.as_str()),
            Self::Local { model, url } => write!(f, "local/{model}@{url}"),
            Self::Endpoint { endpoint, model } => write!(f, "{endpoint}/{model}"),
            Self::Scripted { file, script: None } => write!(f, "scripted/{file}"),
            Self::Scripted { file, script: Some(script) } => write!(f, "scripted/{file}#{script}"),
            Self::Replay { turn } => write!(f, "replay/{turn}"),
            Self::Program { file } => write!(f, "program/{file}"),
            Self::Human => f.write_str("human"),
        }
    }
}
