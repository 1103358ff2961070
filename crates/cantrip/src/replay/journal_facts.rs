//! Facts about a thread that are in its journals but not in its turns.

use std::collections::HashMap;

use cantrip_canon::{EntityId, Hash, TurnId};
use cantrip_circle::{Labels, Wards};
use cantrip_loom::{Caller, Error, Event, Record, TruncationReason, Turn};

use crate::driver::TokenBudget;
use crate::journal::RecordEntities;

/// The facts that a replay needs as input, because they depend on other entities of the tree.
#[derive(Debug, Default)]
pub(super) struct JournalFacts {
    /// The digest of the message list of each accepted request.
    pub digests: HashMap<TurnId, Hash>,
    /// The labels that each child had touched when it ended.
    pub kin: HashMap<EntityId, Labels>,
    /// The tokens that the limits left: at most, when the request of a turn was measured; when the turn was opened; and
    /// at least, when a turn was closed. Other entities of the tree are charged in between, so a decision lies within
    /// these bounds.
    asked: HashMap<TurnId, Option<u64>>,
    opened: HashMap<TurnId, Option<u64>>,
    closed: HashMap<TurnId, Option<u64>>,
}

impl JournalFacts {
    /// Adds the journal of one run.
    pub(super) fn add_journal(&mut self, records: &[Record]) -> Result<(), Error> {
        let tokens = TokenBudget::default();
        let mut owners = RecordEntities::default();
        let mut parents = HashMap::new();
        // As of the last record of each entity.
        let mut left: HashMap<EntityId, Option<u64>> = HashMap::new();
        for record in records {
            let event = record.event()?;
            let Some(entity) = owners.entity_of(&event) else { continue };
            if let Event::Entity(made) = &event {
                parents.insert(entity, owners.parent(made));
            } else if let Event::Cast(cast) = &event {
                let limit = Wards::parse(&cast.wards).ok().and_then(|wards| wards.max_tokens);
                tokens.enter(entity, parents.get(&entity).copied().flatten(), limit);
            } else if let Event::Attempt(attempt) = &event
                && let Caller::Turn(turn) = attempt.call_id.caller()
            {
                // The last attempt is the one that was accepted.
                self.digests.insert(turn, attempt.request_digest);
                self.asked.insert(turn, left.get(&entity).copied().flatten());
            } else if let Event::Opened(opened) = &event {
                tokens.charge(entity, opened.usage.total_tokens());
                self.opened.insert(opened.turn_id, tokens.left(entity));
            } else if let Event::Settled(settled) = &event
                && let Some(usage) = &settled.usage
            {
                tokens.charge(entity, usage.total_tokens());
            } else if let Event::Turn(closed) = &event {
                self.closed.insert(closed.turn_id, tokens.left(entity));
            }
            left.insert(entity, tokens.left(entity));
        }
        Ok(())
    }

    /// Returns the tokens that the limits left while a group was requested, or while its turn `closing` was closed.
    pub(super) fn tokens_left(&self, holder: &Turn, closing: &Turn, said: bool) -> Option<u64> {
        let of = |map: &HashMap<TurnId, Option<u64>>, turn: &Turn| map.get(&turn.id).copied().flatten();
        let cut = closing.truncation().is_some_and(|(reason, _)| reason == TruncationReason::MaxTokens);
        match (said, cut) {
            (false, _) => of(&self.asked, holder),
            (true, true) => of(&self.closed, closing),
            (true, false) => of(&self.opened, holder),
        }
    }
}
