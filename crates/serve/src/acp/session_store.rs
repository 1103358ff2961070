//! What an editor's session needs from whoever opened the house.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip_service::cantrip::canon::{EntityId, RunId};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::spell_catalog::SpellCatalog;

/// What is kept of a session beside the loom: where it works, and who speaks in it.
///
/// A session is named by the id of its first run, so the loom alone tells which entity answers in it; this adds what no
/// loom knows. One that was lost costs the entry in a list, not the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The first run, also before it was cast.
    pub session: RunId,
    /// The folder it works in.
    pub folder: PathBuf,
    /// The spell it speaks with.
    pub spell: String,
    /// Who answers now; nobody before the first prompt.
    pub entity: Option<EntityId>,
}

/// Where the agent works: folders with spells in them, and a drawer for what is kept of sessions.
pub trait SessionStore: Send + Sync {
    /// The spells that can be cast in a folder, the one to begin with first.
    fn spell_catalog(&self, folder: &Path) -> Result<Arc<dyn SpellCatalog>, Refusal>;

    /// Keeps it, in the place of what was kept of the same session. Whole or not at all.
    fn save(&self, noted: &SessionRecord) -> Result<(), Refusal>;

    /// What was kept of a session.
    fn load(&self, session: RunId) -> Option<SessionRecord>;

    /// All that was kept, in any order.
    fn list(&self) -> Vec<SessionRecord>;

    /// Lets go of a run whose process is gone, where that can be known.
    fn release_run(&self, run: RunId) -> BoxFuture<'_, Result<(), Refusal>>;
}
