//! Which crystal is used if nobody named one?
//!
//! The configured one; else the default model of the first provider that has a key; else the first model that the
//! configuration lists for an endpoint; else the first model that a server on this machine offers. If there is none,
//! the refusal lists the choices, each with what to do for it.

use std::path::Path;

use cantrip::crystal::{ModelName, Profiles, Provider, find_local_model, models_of_endpoint};
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};

use crate::config::{self, Config};
use crate::endpoints::{self, Endpoint};
use crate::keys;
use crate::models;

/// The providers in the order in which their keys are looked up.
const KEYED: [Provider; 4] = [Provider::Anthropic, Provider::OpenAi, Provider::Gemini, Provider::OpenRouter];

/// The command that needs a crystal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
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

    /// Returns the sources that could have named a crystal, as the error message states them.
    fn unnamed(self) -> &'static str {
        match self {
            Self::Cast => "no spell and no --crystal names one",
            Self::Predict => "no artifact and no --crystal names one",
        }
    }
}

/// Returns the crystal for this folder.
pub async fn crystal(here: &Path, who: Who) -> Result<ModelName, Refusal> {
    let config = Config::load(here)?;
    if let Some(settled) = config.crystal {
        return Ok(settled);
    }
    let known = models::known()?;
    let keyed = KEYED.into_iter().filter(|provider| keys::has(*provider));
    if let Some(crystal) = keyed.filter_map(|provider| default_of(provider, &known)).next() {
        return Ok(crystal);
    }
    let endpoints = endpoints::all()?;
    if let Some(crystal) = endpoints.iter().find_map(listed_first) {
        return Ok(crystal);
    }
    let ollama = keys::access(Provider::Ollama)?.base;
    match find_local_model(ollama.as_ref(), &config.local()).await {
        // If the configuration has a key for this server, use the endpoint's own name, so that the key is sent.
        Some(ModelName::Local { model, url }) => {
            let keyed = endpoints.iter().find(|known| known.server.url == url && has_key(known));
            Ok(match keyed {
                Some(known) => ModelName::Endpoint { endpoint: known.server.name.clone(), model },
                None => ModelName::Local { model, url },
            })
        }
        Some(found) => Ok(found),
        None => match first_local_model(&endpoints).await {
            Some(found) => Ok(found),
            None => Err(none(&known, &endpoints, who)),
        },
    }
}

/// Returns the first model that the configuration lists for an endpoint, if the endpoint has its key or needs none.
fn listed_first(endpoint: &Endpoint) -> Option<ModelName> {
    let server = &endpoint.server;
    let model = server.models.first().filter(|_| keys::endpoint_access(server).is_ok())?;
    Some(ModelName::Endpoint { endpoint: server.name.clone(), model: model.clone() })
}

fn has_key(endpoint: &Endpoint) -> bool {
    keys::endpoint_key(&endpoint.server).is_some()
}

/// Returns the first model of a local endpoint that the user configured or that has a key. A model that costs money is
/// not chosen by its place in a list.
async fn first_local_model(endpoints: &[Endpoint]) -> Option<ModelName> {
    let local = endpoints.iter().filter(|known| known.server.is_local() && (known.is_configured || has_key(known)));
    for known in local {
        let key = keys::endpoint_key(&known.server);
        if let Some(model) =
            models_of_endpoint(&known.server, key.as_ref()).await.ok().and_then(|models| models.into_iter().next())
        {
            let found = format!("{}/{model}", known.server.name);
            return found.parse().ok();
        }
    }
    None
}

/// Returns the default model of a provider.
fn default_of(provider: Provider, known: &Profiles) -> Option<ModelName> {
    known.default_model(provider)?.parse().ok()
}

fn none(known: &Profiles, endpoints: &[Endpoint], who: Who) -> Refusal {
    let does = who.does();
    let keyed = KEYED.into_iter().filter_map(|provider| {
        let variable = provider.key_variables().first()?;
        Some(choice(format!("export {variable}=..."), format!("{does} {}", default_of(provider, known)?)))
    });
    let hosted = endpoints.iter().filter(|known| !known.server.is_local() && has_key(known)).map(|known| {
        let (name, variable) = (&known.server.name, known.server.key_variable.as_deref().unwrap_or_default());
        choice(format!("--crystal {name}/<model>"), format!("{does} that model with the key in {variable}"))
    });
    let others = [
        choice("ollama serve".to_owned(), format!("{does} the first model that it has")),
        choice(
            "--crystal 'local/<model>@<url>'".to_owned(),
            "any server with the OpenAI protocol, for example http://localhost:8000/v1".to_owned(),
        ),
        choice(
            "[endpoints.NAME] url = \"...\", key_env = \"...\"".to_owned(),
            format!("a server that needs a key, in {}", config::own_file_shown()),
        ),
        choice("--crystal scripted/<file>".to_owned(), "answers from a script, without any model".to_owned()),
        choice("crystal = \"<provider>/<model>\"".to_owned(), "in cantrip.toml, once for the project".to_owned()),
    ];
    let choices: Vec<Value> = hosted.chain(keyed).chain(others).collect();
    let unnamed = who.unnamed();
    let rule = format!("{unnamed}, no provider has a key, and no server on this machine offers one");
    codes::config_invalid(who.name(), "crystal", rule).data(json!({ "choices": choices })).into()
}

fn choice(set: String, gives: String) -> Value {
    json!({"do": set, "gives": gives})
}
