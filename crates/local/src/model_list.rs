//! The models that are known here, and which of them can be used.

use cantrip::MachineClock;
use cantrip::canon::Clock;
use cantrip::crystal::{ModelEntry, Profiles, Provider};
use cantrip_reply::Refusal;
use serde_json::{Value, json};

use cantrip_settings::models::known;
use cantrip_settings::{endpoints, keys};

/// A provider or an endpoint, and whether its models can be used from here.
#[derive(Debug)]
pub struct ProviderStatus {
    pub name: String,
    /// The variables of its key; empty if it takes no key.
    pub variables: Vec<String>,
    /// True if it has its key or needs none.
    pub is_ready: bool,
    pub has_key: bool,
}

impl ProviderStatus {
    /// Returns every provider, then every endpoint.
    pub fn all() -> Result<Vec<Self>, Refusal> {
        let providers = Provider::ALL.into_iter().map(|provider| Self {
            name: provider.as_str().to_owned(),
            variables: provider.key_variables().iter().map(|name| (*name).to_owned()).collect(),
            is_ready: keys::access(provider).is_ok(),
            has_key: keys::has(provider),
        });
        let endpoints = endpoints::all()?.into_iter().map(|endpoint| Self {
            name: endpoint.server.name.clone(),
            variables: endpoint.server.key_variable.iter().cloned().collect(),
            is_ready: keys::endpoint_access(&endpoint.server).is_ok(),
            has_key: keys::endpoint_key(&endpoint.server).is_some(),
        });
        Ok(providers.chain(endpoints).collect())
    }

    pub fn find<'a>(all: &'a [Self], name: &str) -> Option<&'a Self> {
        all.iter().find(|known| known.name == name)
    }

    pub fn words(&self) -> String {
        match (self.has_key, self.is_ready, self.variables.as_slice()) {
            (_, _, []) => "no key needed".to_owned(),
            (true, _, _) => "key found".to_owned(),
            (false, true, variables) => format!("no key: set {} if the server needs one", variables.join(" or ")),
            (false, false, variables) => format!("no key: set {}", variables.join(" or ")),
        }
    }
}

/// Returns the models with the prices of today: the rates of a promotion that has ended are gone.
pub fn models_today(known: &Profiles) -> Vec<ModelEntry> {
    let now = MachineClock::new().now().wall;
    let models = known.models().into_iter();
    models.map(|model| ModelEntry { price: model.price.on(now), ..model }).collect()
}

/// Returns the known models as a surface lists them.
pub fn list_json() -> Result<Value, Refusal> {
    let known = known()?;
    let ready = ProviderStatus::all()?;
    let rows: Vec<Value> = models_today(&known).iter().map(|model| row(model, &ready)).collect();
    Ok(json!({"version": known.version(), "as_of": known.as_of(), "items": rows}))
}

/// Returns a model as an object, with whether it is ready.
pub fn row(model: &ModelEntry, ready: &[ProviderStatus]) -> Value {
    let mut row = model.to_value();
    row["ready"] = ProviderStatus::find(ready, &model.provider).is_some_and(|known| known.is_ready).into();
    row
}
