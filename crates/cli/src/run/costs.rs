//! What did a run cost, by turn and by child? From its journal, so that requests that came to nothing are counted too.

use std::collections::{HashMap, VecDeque};

use cantrip::canon::{CastId, EntityId, Money, RunId, TurnId};
use cantrip::loom::{
    AnyLoom, Attempt, CallId, CallSettled, Caller, CostTotal, Error, Event, Journal, Seq, TurnOpened, Usage,
};
use futures_util::TryStreamExt;
use serde::Serialize;

use crate::limits::{RUN_ENTITIES_LISTED_MAX, RUN_TURNS_LISTED_MAX};

/// What a run cost, and each of its turns and entities.
#[derive(Debug, Default, Serialize)]
pub(super) struct Costs {
    /// The latest ones, oldest first.
    pub(super) turns: VecDeque<TurnCost>,
    /// Turns before them that are not listed.
    pub(super) unlisted: u64,
    /// In the order they were cast: first the root, then children and theirs.
    pub(super) entities: Vec<EntityCost>,
    /// Entities after them that are not listed; they are in the sums.
    pub(super) unlisted_entities: u64,
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
    /// What the gates took that it called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gates: Option<Money>,
}

/// What one entity took itself; its children have rows of their own.
#[derive(Debug, Serialize)]
pub(super) struct EntityCost {
    pub(super) entity_id: EntityId,
    pub(super) turns: u64,
    pub(super) usage: Usage,
    pub(super) cost: Option<Money>,
    pub(super) uncosted: u64,
    /// The part of it that no turn has: folds, and requests that came to nothing.
    pub(super) besides: ExtraRequests,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct ExtraRequests {
    pub(super) requests: u64,
    pub(super) usage: Usage,
    pub(super) cost: Option<Money>,
    pub(super) uncosted: u64,
}

impl ExtraRequests {
    fn add(&mut self, usage: Option<&Usage>, cost: Option<Money>) {
        self.requests += 1;
        if let Some(usage) = usage {
            self.usage = self.usage.plus(usage);
        }
        (self.cost, self.uncosted) = plus(self.cost, self.uncosted, cost);
    }
}

fn plus(sum: Option<Money>, uncosted: u64, cost: Option<Money>) -> (Option<Money>, u64) {
    let mut spent = CostTotal::new(sum, uncosted);
    spent.add(cost);
    (spent.cost(), spent.uncosted())
}

impl EntityCost {
    fn new(entity_id: EntityId) -> Self {
        let (usage, besides) = (Usage::default(), ExtraRequests::default());
        Self { entity_id, turns: 0, usage, cost: None, uncosted: 0, besides }
    }

    fn add(&mut self, usage: Option<&Usage>, cost: Option<Money>) {
        if let Some(usage) = usage {
            self.usage = self.usage.plus(usage);
        }
        (self.cost, self.uncosted) = plus(self.cost, self.uncosted, cost);
    }
}

/// Adds up while the journal is read.
#[derive(Default)]
struct CostCounter {
    costs: Costs,
    casts: HashMap<CastId, EntityId>,
    callers: HashMap<Caller, EntityId>,
    /// Where an entity stands in the list.
    places: HashMap<EntityId, usize>,
}

impl CostCounter {
    fn entity(&mut self, id: EntityId) -> Option<&mut EntityCost> {
        self.costs.entities.get_mut(*self.places.get(&id)?)
    }

    fn cast(&mut self, cast: CastId, entity: EntityId) {
        self.casts.insert(cast, entity);
        if self.places.contains_key(&entity) {
            return;
        }
        if self.costs.entities.len() == RUN_ENTITIES_LISTED_MAX {
            self.costs.unlisted_entities += 1;
            return;
        }
        self.places.insert(entity, self.costs.entities.len());
        self.costs.entities.push(EntityCost::new(entity));
    }

    fn count_attempt(&mut self, attempt: &Attempt) {
        if let Some(entity) = self.casts.get(&attempt.cast_id) {
            self.callers.insert(attempt.call_id.caller(), *entity);
        }
    }

    fn count_opened(&mut self, opened: TurnOpened) {
        let entity_id = self.casts.get(&opened.cast_id).copied();
        if let Some(entity) = entity_id.and_then(|id| self.entity(id)) {
            entity.turns += 1;
            entity.add(Some(&opened.usage), opened.cost);
        }
        self.sum(Some(&opened.usage), opened.cost);
        if self.costs.turns.len() == RUN_TURNS_LISTED_MAX {
            self.costs.turns.pop_front();
            self.costs.unlisted += 1;
        }
        self.costs.turns.push_back(TurnCost {
            turn_id: opened.turn_id,
            entity_id,
            sequence: opened.sequence,
            usage: opened.usage,
            cost: opened.cost,
            attempts: opened.attempt,
            gates: None,
        });
    }

    fn count_settled(&mut self, settled: &CallSettled) {
        let (caller, usage, cost) = (settled.call_id.caller(), settled.usage.as_ref(), settled.cost);
        let request = is_request(&settled.call_id);
        if !request && cost.is_none() {
            return;
        }
        self.costs.failed_attempts += u64::from(request && !settled.reply.is_success());
        self.sum(usage, cost);
        if let Some(entity) = self.callers.get(&caller).copied().and_then(|id| self.entity(id)) {
            entity.add(usage, cost);
            if request {
                entity.besides.add(usage, cost);
            }
        }
        if let (false, Caller::Turn(turn)) = (request, caller)
            && let Some(turn) = self.costs.turns.iter_mut().rev().find(|listed| listed.turn_id == turn)
        {
            turn.gates = plus(turn.gates, 0, cost).0;
        }
    }

    fn sum(&mut self, usage: Option<&Usage>, cost: Option<Money>) {
        if let Some(usage) = usage {
            self.costs.usage = self.costs.usage.plus(usage);
        }
        (self.costs.cost, self.costs.uncosted) = plus(self.costs.cost, self.costs.uncosted, cost);
    }
}

/// A fold's, or one that a turn begins with and that came to nothing.
fn is_request(call: &CallId) -> bool {
    matches!(call.caller(), Caller::Fold(_)) || call.number() == 0
}

pub(super) async fn of(loom: &AnyLoom, run: RunId) -> Result<Costs, Error> {
    let mut reckoning = CostCounter::default();
    let mut records = std::pin::pin!(loom.read(run, Seq::START));
    while let Some(record) = records.try_next().await? {
        match record.event()? {
            Event::Cast(cast) => reckoning.cast(cast.cast_id, cast.entity_id),
            Event::Attempt(attempt) => reckoning.count_attempt(&attempt),
            Event::Opened(opened) => reckoning.count_opened(opened),
            Event::Settled(settled) => reckoning.count_settled(&settled),
            Event::Root(_)
            | Event::Entity(_)
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
    Ok(reckoning.costs)
}
