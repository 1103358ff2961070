//! What did a run cost? From its journal, so that requests that came to nothing are counted, and those of children.

use cantrip::canon::{EntityId, Money, RunId, TurnId};
use cantrip::loom::{AnyLoom, Caller, Error, Event, Journal, Seq, Spent, Usage};
use futures_util::TryStreamExt;
use serde::Serialize;

use crate::limits::RUN_TURNS_LISTED_MAX;

/// What a run cost, and each of its turns.
#[derive(Debug, Default, Serialize)]
pub(super) struct Costs {
    /// The latest ones, oldest first.
    pub(super) turns: Vec<TurnCost>,
    /// Turns before them that are not listed.
    pub(super) unlisted: u64,
    /// Of every request that reported it.
    pub(super) usage: Usage,
    pub(super) cost: Option<Money>,
    /// Requests whose cost nobody knows.
    pub(super) uncosted: u64,
    /// Requests that came to nothing.
    pub(super) failed_attempts: u64,
}

/// What one answer took.
#[derive(Debug, Serialize)]
pub(super) struct TurnCost {
    pub(super) turn_id: TurnId,
    pub(super) entity_id: Option<EntityId>,
    pub(super) sequence: u64,
    pub(super) usage: Usage,
    pub(super) cost: Option<Money>,
    pub(super) attempts: u32,
}

pub(super) async fn of(loom: &AnyLoom, run: RunId) -> Result<Costs, Error> {
    let mut costs = Costs::default();
    let mut spent = Spent::default();
    let mut casts = std::collections::HashMap::new();
    let mut records = std::pin::pin!(loom.read(run, Seq::START));
    while let Some(record) = records.try_next().await? {
        match record.event()? {
            Event::Cast(cast) => {
                casts.insert(cast.cast_id, cast.entity_id);
            }
            Event::Opened(opened) => {
                spent.add(opened.cost);
                costs.usage = costs.usage.plus(&opened.usage);
                if costs.turns.len() == RUN_TURNS_LISTED_MAX {
                    costs.turns.remove(0);
                    costs.unlisted += 1;
                }
                costs.turns.push(TurnCost {
                    turn_id: opened.turn_id,
                    entity_id: casts.get(&opened.cast_id).copied(),
                    sequence: opened.sequence,
                    usage: opened.usage,
                    cost: opened.cost,
                    attempts: opened.attempt,
                });
            }
            Event::Settled(settled) => {
                let of_fold = matches!(settled.call_id.caller(), Caller::Fold(_));
                let request = of_fold || settled.call_id.number() == 0;
                if request || settled.cost.is_some() {
                    spent.add(settled.cost);
                }
                if let Some(usage) = &settled.usage {
                    costs.usage = costs.usage.plus(usage);
                }
                costs.failed_attempts += u64::from(request && !settled.reply.is_success());
            }
            Event::Root(_)
            | Event::Entity(_)
            | Event::Attempt(_)
            | Event::Started(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::Parked(_)
            | Event::End(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::Other { .. } => {}
        }
    }
    (costs.cost, costs.uncosted) = (spent.cost(), spent.uncosted());
    Ok(costs)
}
