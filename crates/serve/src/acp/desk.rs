//! What an editor's session needs from whoever opened the house.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantrip_service::cantrip::canon::{EntityId, RunId};
use cantrip_service::cantrip::reply::Refusal;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::grimoire::Grimoire;

/// What is kept of a session beside the loom: where it works, and who speaks in it.
///
/// A session is named by the id of its first run, so the loom alone tells which entity answers in it; this adds what no
/// loom knows. One that was lost costs the entry in a list, not the session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
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
pub trait Desk: Send + Sync {
    /// The spells that can be cast in a folder, the one to begin with first.
    fn grimoire(&self, folder: &Path) -> Result<Arc<dyn Grimoire>, Refusal>;

    /// Keeps it, in the place of what was kept of the same session. Whole or not at all.
    fn note(&self, noted: &Noted) -> Result<(), Refusal>;

    /// What was kept of a session.
    fn noted(&self, session: RunId) -> Option<Noted>;

    /// All that was kept, in any order.
    fn all(&self) -> Vec<Noted>;

    /// Lets go of a run whose process is gone, where that can be known.
    fn free(&self, run: RunId) -> BoxFuture<'_, Result<(), Refusal>>;
}
