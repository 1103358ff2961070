//! The spells that a service casts by name, and how their cantrips are built.

use std::path::{Path, PathBuf};

use cantrip::Cantrip;
use cantrip::canon::EntityId;
use cantrip::crystal::{ModelEntry, Profiles};
use cantrip::reply::{Refusal, codes};
use cantrip_ds::Predictor;
use cantrip_spell::Spell;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde_json::{Value, json};

use crate::Service;

/// A spell as offered to clients: enough to choose it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SpellSummary {
    /// The name by which it is cast.
    pub name: String,
    /// The name of its crystal.
    pub crystal: String,
    pub medium: String,
    /// Its purpose, in one line.
    pub about: String,
}

/// The file of a spell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpellFile {
    pub path: PathBuf,
    /// The path as it is shown: from the folder of the catalog, if the file is below it.
    pub label: String,
    pub text: String,
}

/// The source of spells. Surfaces do not know files; the program that opens the service does.
///
/// Building a cantrip may take a while (an interpreter is started, a server is asked for its tools), and the future is
/// safe to drop. A second call returns an equal cantrip, unless the spell was changed meanwhile.
pub trait SpellCatalog: Send + Sync {
    /// Returns every spell that can be cast by name, in a stable order.
    fn spells(&self) -> Vec<SpellSummary>;

    /// Builds the cantrip of a spell. Only the spells that [`SpellCatalog::spells`] lists are built: a remote caller
    /// cannot name files.
    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>>;

    /// Returns the known crystals.
    fn crystals(&self) -> Result<Value, Refusal> {
        let known = Profiles::builtin();
        let models: Vec<Value> = known.models().iter().map(ModelEntry::to_value).collect();
        Ok(json!({"version": known.version(), "as_of": known.as_of(), "items": models}))
    }

    /// Builds the same cantrip that an entity was cast from, to continue the entity.
    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>>;

    /// Reads a spell by its name, for trials: an evaluation changes it before it is built. A service that is given its
    /// cantrips has no files to read.
    fn read_spell<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Spell, Refusal>> {
        ready(Err(codes::not_found("spell", spell).into())).boxed()
    }

    /// Builds the cantrip of a spell that [`SpellCatalog::read_spell`] returned and that was changed for a trial.
    fn build_spell<'a>(&'a self, spell: &'a Spell) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        ready(Err(codes::not_found("spell", spell.name.as_str()).into())).boxed()
    }

    /// Returns the file of a spell, with its text as it is now. A service that is given its cantrips has no files, and
    /// the built-in spell has none.
    fn spell_file<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<SpellFile, Refusal>> {
        ready(Err(codes::not_found("file", spell).into())).boxed()
    }

    /// Replaces the text of a spell's file. It is refused if the text is not `before` any more: somebody else has
    /// changed it.
    fn replace_spell<'a>(
        &'a self,
        path: &'a Path,
        _before: &'a str,
        _text: &'a str,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        ready(Err(codes::not_found("file", path.display().to_string()).into())).boxed()
    }

    /// Returns the working directories of a spell's gates, by gate. They are for display, not for decisions.
    fn roots(&self, _spell: &str) -> Vec<(String, PathBuf)> {
        Vec::new()
    }

    /// Returns the predictor for the owner of this service.
    fn predictor<'a>(&'a self, service: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>>;
}

/// The catalog of a service that is given its cantrips.
pub(crate) struct NoSpells;

impl SpellCatalog for NoSpells {
    fn spells(&self) -> Vec<SpellSummary> {
        Vec::new()
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        ready(Err(codes::not_found("spell", spell).into())).boxed()
    }

    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        ready(Err(codes::not_found("spell", entity.to_string()).into())).boxed()
    }

    fn predictor<'a>(&'a self, _: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        ready(Err(codes::not_found("predictor", "any").into())).boxed()
    }
}
