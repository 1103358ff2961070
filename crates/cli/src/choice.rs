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

/// The crystal for this folder.
pub(crate) async fn crystal(here: &Path) -> Result<ModelName, Refusal> {
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
    nearby(ollama.as_ref(), &config.local()).await.ok_or_else(|| none(&known))
}

/// The model of a provider that is taken where nobody names one.
fn default_of(provider: Provider, known: &Profiles) -> Option<ModelName> {
    known.default_of(provider)?.parse().ok()
}

fn none(known: &Profiles) -> Refusal {
    let keyed = KEYED.into_iter().filter_map(|provider| {
        let variable = provider.key_variables().first()?;
        Some(choice(format!("export {variable}=..."), format!("casts {}", default_of(provider, known)?)))
    });
    let others = [
        choice("ollama serve".to_owned(), "casts the first model that it has".to_owned()),
        choice(
            "--crystal 'local/<model>@<url>'".to_owned(),
            "any server that speaks as OpenAI does, as http://localhost:8000/v1".to_owned(),
        ),
        choice("--crystal scripted/<file>".to_owned(), "answers from a script, without any model".to_owned()),
        choice("crystal = \"<provider>/<model>\"".to_owned(), "in cantrip.toml, once for the project".to_owned()),
    ];
    let choices: Vec<Value> = keyed.chain(others).collect();
    let rule = "no spell and no --crystal names one, no provider has a key, and no server on this machine offers one";
    codes::config_invalid("cast", "crystal", rule).data(json!({ "choices": choices })).into()
}

fn choice(set: String, gives: String) -> Value {
    json!({"do": set, "gives": gives})
}
