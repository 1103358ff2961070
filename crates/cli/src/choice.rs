//! Which crystal speaks where nobody named one?
//!
//! The one that was settled; else the default model of the first provider that has a key; else the first model that a
//! server on this machine offers. Where there is none, the choices are told, each with what to do for it.

use std::path::Path;

use cantrip::crystal::{ModelName, Profiles, Provider, nearby};
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};

use crate::config::Config;
use crate::keys;
use crate::models;

/// Providers in the order in which their keys are looked for.
const KEYED: [Provider; 4] = [Provider::Anthropic, Provider::OpenAi, Provider::Gemini, Provider::OpenRouter];

/// Who looks for a crystal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Cast,
    Predict,
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Cast => "cast",
            Self::Predict => "predict",
        }
    }

    fn does(self) -> &'static str {
        match self {
            Self::Cast => "casts",
            Self::Predict => "asks",
        }
    }

    /// What could have named one, and did not.
    fn unnamed(self) -> &'static str {
        match self {
            Self::Cast => "no spell and no --crystal names one",
            Self::Predict => "no artifact and no --crystal names one",
        }
    }
}

/// The crystal for this folder.
pub(crate) async fn crystal(here: &Path, who: Who) -> Result<ModelName, Refusal> {
    let config = Config::load(here)?;
    if let Some(settled) = config.crystal {
        return Ok(settled);
    }
    let known = models::known()?;
    let keyed = KEYED.into_iter().filter(|provider| keys::has(*provider));
    if let Some(crystal) = keyed.filter_map(|provider| default_of(provider, &known)).next() {
        return Ok(crystal);
    }
    let ollama = keys::access(Provider::Ollama)?.base;
    nearby(ollama.as_ref(), &config.local()).await.ok_or_else(|| none(&known, who))
}

/// The model of a provider that is taken where nobody names one.
fn default_of(provider: Provider, known: &Profiles) -> Option<ModelName> {
    known.default_of(provider)?.parse().ok()
}

fn none(known: &Profiles, who: Who) -> Refusal {
    let does = who.does();
    let keyed = KEYED.into_iter().filter_map(|provider| {
        let variable = provider.key_variables().first()?;
        Some(choice(format!("export {variable}=..."), format!("{does} {}", default_of(provider, known)?)))
    });
    let others = [
        choice("ollama serve".to_owned(), format!("{does} the first model that it has")),
        choice(
            "--crystal 'local/<model>@<url>'".to_owned(),
            "any server that speaks as OpenAI does, as http://localhost:8000/v1".to_owned(),
        ),
        choice("--crystal scripted/<file>".to_owned(), "answers from a script, without any model".to_owned()),
        choice("crystal = \"<provider>/<model>\"".to_owned(), "in cantrip.toml, once for the project".to_owned()),
    ];
    let choices: Vec<Value> = keyed.chain(others).collect();
    let unnamed = who.unnamed();
    let rule = format!("{unnamed}, no provider has a key, and no server on this machine offers one");
    codes::config_invalid(who.name(), "crystal", rule).data(json!({ "choices": choices })).into()
}

fn choice(set: String, gives: String) -> Value {
    json!({"do": set, "gives": gives})
}
