//! Does a thread match its records when it is replayed?

use std::fmt::Write;

use cantrip::canon::TurnId;
use cantrip::loom::Loom;
use cantrip::{Divergence, ReplayOutcome, ReplayReply, store_refusal};
use cantrip_reply::{Guard, Refusal};
use serde_json::Value;

use super::{count_noun, service};
use crate::args::ids;
use crate::commands::CommandReply;
use cantrip_local::origin::{self, SpellQuery};
use cantrip_local::store::Store;
use cantrip_terminal::present::{BOLD, DIM, strip_control};

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
        let text = match &replayed {
            Some(ReplayOutcome::Identical { turns, calls }) => identical(leaf, *turns, *calls),
            Some(ReplayOutcome::Differs(divergence)) => differs(divergence),
            None => String::new(),
        };
        Ok((guarded, text))
    }
}

fn identical(leaf: TurnId, turns: u64, calls: u64) -> String {
    let (turns, calls) = (count_noun(turns, "turn", "turns"), count_noun(calls, "call", "calls"));
    format!("{BOLD}identical{BOLD:#}  {leaf}  {turns}, {calls}\n")
}

/// Renders the recorded and the found value, one above the other.
fn differs(Divergence { turn, sequence, call, kind, recorded, found }: &Divergence) -> String {
    let call = call.map(|call| format!(", call {call}")).unwrap_or_default();
    let mut text = format!("{BOLD}differs{BOLD:#} in {}: turn {sequence}{call}  {DIM}{turn}{DIM:#}\n", kind.as_str());
    for (name, side) in [("recorded", recorded), ("found", found)] {
        let side = match side {
            Value::String(side) => side.clone(),
            Value::Null => "nothing".to_owned(),
            side @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
                serde_json::to_string_pretty(side).unwrap_or_default()
            }
        };
        for (at, line) in strip_control(&side).lines().enumerate() {
            let name = if at == 0 { name } else { "" };
            let _ = writeln!(text, "  {DIM}{name:<8}{DIM:#}  {line}");
        }
    }
    text
}
