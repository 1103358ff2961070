//! What can be cast in a house, and how it is made.

use std::path::PathBuf;

use cantrip_service::Service;
use cantrip_service::cantrip::Cantrip;
use cantrip_service::cantrip::canon::EntityId;
use cantrip_service::cantrip::crystal::{ModelEntry, Profiles};
use cantrip_service::cantrip::reply::Refusal;
use cantrip_service::contracts::Predictor;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

/// A spell as it is offered: enough to choose it by.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SpellSummary {
    /// The name it is cast by.
    pub name: String,
    /// The crystal it thinks with.
    pub crystal: String,
    pub medium: String,
    /// What it is for, in a line.
    pub about: String,
}

/// Where spells come from. Surfaces do not know files; whoever opens the house does.
///
/// Both makings may take a while (an interpreter is started, a server is asked what it offers) and are safe to drop. Asked
/// again they give an equal cantrip, unless the spell was changed meanwhile.
pub trait SpellCatalog: Send + Sync {
    /// Every spell that can be cast by name, in an order that stays.
    fn spells(&self) -> Vec<SpellSummary>;

    /// The cantrip of a spell. Only what [`SpellCatalog::spells`] lists is made: a caller from outside names no files.
    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>>;

    /// What is known of crystals here.
    fn crystals(&self) -> Result<Value, Refusal> {
        let known = Profiles::builtin();
        let models: Vec<Value> = known.models().iter().map(ModelEntry::to_value).collect();
        Ok(json!({"version": known.version(), "as_of": known.as_of(), "items": models}))
    }

    /// The very cantrip that an entity was cast from, to go on with it.
    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>>;

    /// The folders that the gates of a spell work in, by gate; for showing where a call leads, not for deciding anything.
    fn roots(&self, _spell: &str) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    /// Who makes predicts for the owner of this service.
    fn predictor<'a>(&'a self, service: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>>;
}
