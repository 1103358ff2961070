//! What did a run cost, by turn and by child? The journal is the source, so that failed requests are counted too.

use std::collections::{HashMap, VecDeque};

use cantrip::canon::{CastId, EntityId, Money, RunId, TurnId};
use cantrip::loom::{
    AnyLoom, Attempt, CallId, CallSettled, Caller, CostTotal, Error, Event, Journal, Seq, TurnOpened, Usage,
};
use futures_util::TryStreamExt;
use serde::Serialize;

use crate::limits::{RUN_ENTITIES_LISTED_MAX, RUN_TURNS_LISTED_MAX};

/// The cost of a run, of its turns and of its entities.
#[derive(Debug, Default, Serialize)]
pub struct Costs {
    /// The latest turns, oldest first.
    pub turns: VecDeque<TurnCost>,
    /// The number of earlier turns that are not listed.
    pub unlisted: u64,
    /// The entities in the order of their casts: first the root, then the children and their children.
    pub entities: Vec<EntityCost>,
    /// The number of later entities that are not listed; they are included in the sums.
    pub unlisted_entities: u64,
    #[serde(flatten)]
    pub spent: Spent,
    /// The number of requests that failed.
    pub failed_attempts: u64,
}

/// The sum of several requests.
#[derive(Debug, Default, Serialize)]
pub struct Spent {
    /// The usage of every request that reported it.
    pub usage: Usage,
    pub cost: Option<Money>,
    /// The number of requests whose cost is unknown.
    pub uncosted: u64,
}

/// The usage and the cost of one turn.
#[derive(Debug, Serialize)]
pub struct TurnCost {
    pub turn_id: TurnId,
    pub entity_id: Option<EntityId>,
    pub sequence: u64,
    pub usage: Usage,
    pub cost: Option<Money>,
    pub attempts: u32,
    /// The cost of the gates that the turn called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gates: Option<Money>,
}

/// The usage and the cost of one entity; its children have their own rows.
#[derive(Debug, Serialize)]
pub struct EntityCost {
    pub entity_id: EntityId,
    pub turns: u64,
    #[serde(flatten)]
    pub spent: Spent,
    /// The requests that belong to no turn: folds, and failed requests.
    pub besides: ExtraRequests,
}

#[derive(Debug, Default, Serialize)]
pub struct ExtraRequests {
    pub requests: u64,
    #[serde(flatten)]
    pub spent: Spent,
}

impl Spent {
    fn add(&mut self, usage: Option<&Usage>, cost: Option<Money>) {
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

/// Sums the costs while the journal is read.
#[derive(Default)]
struct CostCounter {
    costs: Costs,
    casts: HashMap<CastId, EntityId>,
    callers: HashMap<Caller, EntityId>,
    /// The index of each entity in the list.
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
        let (spent, besides) = (Spent::default(), ExtraRequests::default());
        self.costs.entities.push(EntityCost { entity_id: entity, turns: 0, spent, besides });
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
            entity.spent.add(Some(&opened.usage), opened.cost);
        }
        self.costs.spent.add(Some(&opened.usage), opened.cost);
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
        self.costs.spent.add(usage, cost);
        if let Some(entity) = self.callers.get(&caller).copied().and_then(|id| self.entity(id)) {
            entity.spent.add(usage, cost);
            if request {
                entity.besides.requests += 1;
                entity.besides.spent.add(usage, cost);
            }
        }
        if let (false, Caller::Turn(turn)) = (request, caller)
            && let Some(turn) = self.costs.turns.iter_mut().rev().find(|listed| listed.turn_id == turn)
        {
            turn.gates = plus(turn.gates, 0, cost).0;
        }
    }
}

/// Returns true for a request of a fold, or a failed request at the start of a turn.
fn is_request(call: &CallId) -> bool {
    matches!(call.caller(), Caller::Fold(_)) || call.number() == 0
}

/// Returns the cost of a run, read from its records.
pub async fn run_costs(loom: &AnyLoom, run: RunId) -> Result<Costs, Error> {
    let mut reckoning = CostCounter::default();
    let mut records = std::pin::pin!(loom.read(run, Seq::START));
    while let Some(record) = records.try_next().await? {
        let event = record.event()?;
        if let Event::Cast(cast) = event {
            reckoning.cast(cast.cast_id, cast.entity_id);
        } else if let Event::Attempt(attempt) = event {
            reckoning.count_attempt(&attempt);
        } else if let Event::Opened(opened) = event {
            reckoning.count_opened(opened);
        } else if let Event::Settled(settled) = event {
            reckoning.count_settled(&settled);
        }
    }
    Ok(reckoning.costs)
}
