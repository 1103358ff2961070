//! What has a tree used of its tokens, and who may use the next ones?
//!
//! `max_tokens` bounds a subtree: what a child uses is charged to it and to everyone above it as it is answered, and a
//! request puts aside the worst it can come to at every level before it leaves. So siblings that run at once cannot
//! overdraw together. A request that only open holds stand against waits, in the order of asking; checking the sum
//! before each request without holding anything was the alternative, and is a race.
//!
//! Nothing here is recorded: usage stands in the records of answers and failed attempts, and a resume adds it up again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_canon::EntityId;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The tokens of one run.
#[derive(Debug, Default)]
pub(crate) struct TokenBudget {
    state: Mutex<State>,
    settlement: Notify,
}

#[derive(Debug, Default)]
struct State {
    scopes: HashMap<EntityId, SubtreeBudget>,
    /// Who waits, in the order of asking, and for which scopes.
    waiting: BTreeMap<u64, BTreeSet<EntityId>>,
    asked: u64,
}

/// One entity with everything below it.
#[derive(Debug, Default)]
struct SubtreeBudget {
    parent: Option<EntityId>,
    limit: Option<u64>,
    spent: u64,
    /// Put aside for requests that are on their way.
    held: u64,
}

impl State {
    /// The entity and everyone above it.
    fn path(&self, entity: EntityId) -> Vec<EntityId> {
        let mut path = Vec::new();
        let mut next = Some(entity);
        while let Some(id) = next.filter(|id| !path.contains(id)) {
            path.push(id);
            next = self.scopes.get(&id).and_then(|scope| scope.parent);
        }
        path
    }

    fn along(&mut self, entity: EntityId, change: impl Fn(&mut SubtreeBudget)) {
        for id in self.path(entity) {
            if let Some(scope) = self.scopes.get_mut(&id) {
                change(scope);
            }
        }
    }
}

/// What was put aside for one request. Dropped, it is given back and nothing is charged.
#[derive(Debug)]
pub(crate) struct TokenHold {
    tokens: Arc<TokenBudget>,
    entity: EntityId,
    amount: u64,
}

/// A place among those who wait. Dropped, it is given up.
#[derive(Debug)]
pub(crate) struct QueueTicket {
    tokens: Arc<TokenBudget>,
    number: u64,
}

/// Why a request may not leave yet.
#[derive(Debug)]
pub(crate) struct TokenHoldError {
    pub ticket: QueueTicket,
    /// Something is on its way whose end may make room; otherwise what was asked for has to be measured anew.
    pub waits: bool,
}

impl TokenBudget {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entity takes part, below its parent. What was charged to it before stays.
    pub(crate) fn enter(&self, entity: EntityId, parent: Option<EntityId>, limit: Option<u64>) {
        let mut state = self.state();
        let scope = state.scopes.entry(entity).or_default();
        (scope.parent, scope.limit) = (parent, limit);
    }

    /// An entity has ended: what it used is its ancestors' already.
    pub(crate) fn leave(&self, entity: EntityId) {
        self.state().scopes.remove(&entity);
    }

    /// What the tightest limit from the entity up to the root leaves, open holds not counted; none without a limit.
    pub(crate) fn left(&self, entity: EntityId) -> Option<u64> {
        let state = self.state();
        let scopes = state.path(entity).into_iter().filter_map(|id| state.scopes.get(&id));
        scopes.filter_map(|scope| scope.limit.map(|limit| limit.saturating_sub(scope.spent))).min()
    }

    /// Books what was used at every level.
    pub(crate) fn charge(&self, entity: EntityId, used: u64) {
        self.state().along(entity, |scope| scope.spent = scope.spent.saturating_add(used));
        self.settlement.notify_waiters();
    }

    /// Completes when something was settled after it was made and enabled.
    pub(crate) fn settlement(&self) -> Notified<'_> {
        self.settlement.notified()
    }

    /// Puts `amount` aside at every level. Whoever waits for one of these levels since before comes first.
    pub(crate) fn hold(
        self: &Arc<Self>,
        entity: EntityId,
        amount: u64,
        ticket: Option<QueueTicket>,
    ) -> Result<TokenHold, TokenHoldError> {
        let mut state = self.state();
        let number = match &ticket {
            Some(ticket) => ticket.number,
            None => {
                state.asked += 1;
                state.asked
            }
        };
        let mut in_the_way = BTreeSet::new();
        let mut waits = false;
        for id in state.path(entity) {
            let Some(scope) = state.scopes.get(&id) else { continue };
            let wanted = scope.spent.saturating_add(scope.held).saturating_add(amount);
            let full = scope.limit.is_some_and(|limit| wanted > limit);
            let behind = state.waiting.range(..number).any(|(_, scopes)| scopes.contains(&id));
            if full || behind {
                in_the_way.insert(id);
                waits |= behind || scope.held > 0;
            }
        }
        if in_the_way.is_empty() {
            state.along(entity, |scope| scope.held = scope.held.saturating_add(amount));
            drop(state);
            // Its place among those who wait, if it had one, is free.
            drop(ticket);
            return Ok(TokenHold { tokens: Arc::clone(self), entity, amount });
        }
        state.waiting.insert(number, in_the_way);
        drop(state);
        let ticket = ticket.unwrap_or_else(|| QueueTicket { tokens: Arc::clone(self), number });
        Err(TokenHoldError { ticket, waits })
    }
}

impl TokenHold {
    /// The request was answered, or failed: what it used is booked in full, also beyond what was put aside.
    pub(crate) fn settle(self, used: u64) {
        self.tokens.state().along(self.entity, |scope| scope.spent = scope.spent.saturating_add(used));
    }
}

impl Drop for TokenHold {
    fn drop(&mut self) {
        let amount = self.amount;
        self.tokens.state().along(self.entity, |scope| scope.held = scope.held.saturating_sub(amount));
        self.tokens.settlement.notify_waiters();
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        self.tokens.state().waiting.remove(&self.number);
        self.tokens.settlement.notify_waiters();
    }
}
