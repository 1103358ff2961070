//! Does a thread match its records when it is replayed?

use cantrip::loom::Loom;
use cantrip::{ReplayReply, store_refusal};
use cantrip_reply::{Guard, Refusal};

use super::service;
use crate::args::ids;
use crate::commands::CommandReply;
use cantrip_local::origin::{self, SpellQuery};
use cantrip_local::store::Store;
use cantrip_terminal::loom::draw_replay;

/// Replay a thread from its records, without network, gate calls or writes.
///
/// Reports that the replay is identical, or the first difference: the turn, the call, the kind of difference, and both
/// sides.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip loom replay\n  cantrip loom replay ent_06cyf9\n  \
                        cantrip loom replay turn_06cyf9 --spell analyst.toml")]
pub(super) struct Replay {
    /// The last turn of the thread, or its entity, cast or run. Default: the latest thread.
    #[arg(value_name = "THREAD")]
    of: Option<String>,

    /// Use this spell instead of the one that the thread was cast from. Also needed if that spell cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,
}

impl Replay {
    pub(super) async fn execute(&self, store: &Store, guard: &Guard) -> Result<CommandReply, Refusal> {
        let leaf = ids::turn(&store.loom, self.of.as_deref()).await?;
        let stored = |error| store_refusal(&error);
        let entity = store.loom.turn(leaf).await.map_err(stored)?.entity_id;
        let wanted = SpellQuery { spell: self.spell.as_deref(), crystal: None };
        let found = origin::of_entity(store, entity, wanted).await?;
        let service = service(store.loom.clone(), guard);
        let ReplayReply { guarded, replayed } = service.replay(&found.cantrip, leaf).await;
        let text = replayed.as_ref().map(|outcome| draw_replay(leaf, outcome)).unwrap_or_default();
        Ok((guarded, text))
    }
}
