//! How many tokens has a tree used, and which request may use the next ones?
//!
//! `max_tokens` bounds a subtree. The usage of a child is charged to the child and to all its ancestors when the
//! response arrives, and a request holds its worst case at every level before it is sent. So concurrent siblings cannot
//! overdraw the budget together. A request that only open holds stand against waits, in the order of asking. The
//! alternative was to check the sum before each request without a hold; that is a race.
//!
//! Nothing here is recorded: usage is in the records of responses and failed attempts, and a resume adds it up again.

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
    /// The waiting requests in the order of asking, each with its scopes.
    waiting: BTreeMap<u64, BTreeSet<EntityId>>,
    asked: u64,
}

/// The budget of one entity with everything below it.
#[derive(Debug, Default)]
struct SubtreeBudget {
    parent: Option<EntityId>,
    limit: Option<u64>,
    spent: u64,
    /// The tokens held for requests in progress.
    held: u64,
}

impl State {
    /// Returns the entity and all its ancestors.
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

/// The tokens held for one request. If dropped, they are released and nothing is charged.
#[derive(Debug)]
pub(crate) struct TokenHold {
    tokens: Arc<TokenBudget>,
    entity: EntityId,
    amount: u64,
}

/// A place in the queue of waiting requests. If dropped, the place is given up.
#[derive(Debug)]
pub(crate) struct QueueTicket {
    tokens: Arc<TokenBudget>,
    number: u64,
}

/// The reason why a request may not be sent yet.
#[derive(Debug)]
pub(crate) struct TokenHoldError {
    pub ticket: QueueTicket,
    /// True if the end of a request in progress may make room. Otherwise the request must be measured again.
    pub waits: bool,
}

impl TokenBudget {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entity below its parent. Earlier charges to the entity remain.
    pub(crate) fn enter(&self, entity: EntityId, parent: Option<EntityId>, limit: Option<u64>) {
        let mut state = self.state();
        let scope = state.scopes.entry(entity).or_default();
        (scope.parent, scope.limit) = (parent, limit);
    }

    /// Removes an entity that has ended: its usage is already charged to its ancestors.
    pub(crate) fn leave(&self, entity: EntityId) {
        self.state().scopes.remove(&entity);
    }

    /// Returns the tokens that the tightest limit from the entity up to the root leaves, without regard to open holds;
    /// `None` without a limit.
    pub(crate) fn left(&self, entity: EntityId) -> Option<u64> {
        let state = self.state();
        let scopes = state.path(entity).into_iter().filter_map(|id| state.scopes.get(&id));
        scopes.filter_map(|scope| scope.limit.map(|limit| limit.saturating_sub(scope.spent))).min()
    }

    /// Charges used tokens at every level.
    pub(crate) fn charge(&self, entity: EntityId, used: u64) {
        self.state().along(entity, |scope| scope.spent = scope.spent.saturating_add(used));
        self.settlement.notify_waiters();
    }

    /// Returns a future that completes when something is settled after the future was created and enabled.
    pub(crate) fn settlement(&self) -> Notified<'_> {
        self.settlement.notified()
    }

    /// Holds `amount` at every level. Requests that already wait for one of these levels come first.
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
            // The request's place in the queue, if it had one, is free now.
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
    /// Settles a request that was answered or failed: its usage is charged in full, even beyond the held amount.
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
