//! The storage that editor sessions need from the program that embeds them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip_service::SpellCatalog;
use cantrip_service::cantrip::canon::{EntityId, RunId};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

/// The data of a session that is not in the loom: its folder and its spell.
///
/// The id of a session is the id of its first run, so the loom alone identifies its entity. If a record is lost, the
/// session is missing from the list but can still be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The id of the first run, also before it was cast.
    pub session: RunId,
    /// The working directory.
    pub folder: PathBuf,
    /// The spell of the session.
    pub spell: String,
    /// The entity that answers now; none before the first prompt.
    pub entity: Option<EntityId>,
}

/// The environment of the agent: folders with spells in them, and storage for session records.
pub trait SessionStore: Send + Sync {
    /// Returns the spells that can be cast in a folder, the default one first.
    fn spell_catalog(&self, folder: &Path) -> Result<Arc<dyn SpellCatalog>, Refusal>;

    /// Saves a record, replacing the earlier one of the same session, atomically.
    fn save(&self, noted: &SessionRecord) -> Result<(), Refusal>;

    /// Returns the record of a session.
    fn load(&self, session: RunId) -> Option<SessionRecord>;

    /// Returns all records, in any order.
    fn list(&self) -> Vec<SessionRecord>;

    /// Releases a run whose process is dead, if that can be detected.
    fn release_run(&self, run: RunId) -> BoxFuture<'_, Result<(), Refusal>>;
}
