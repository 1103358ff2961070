//! Which item must be sent next because time has passed?
//!
//! All timers of a processor are in one ordered map, so that the next one is found at once however many items stream
//! concurrently, and moving one costs the logarithm of their number. A heap with stale entries was turned down: it
//! wakes a caller for nothing, or grows with the items that have ended.

use std::collections::BTreeMap;

use cantrip_canon::Instant;

use crate::id::{ItemId, TurnId};

/// One deadline per item that has unsent text. Items are identified by the order of their start.
#[derive(Debug, Default)]
pub(super) struct Deadlines(BTreeMap<(Instant, u64), (TurnId, ItemId)>);

impl Deadlines {
    pub(super) fn first(&self) -> Option<Instant> {
        self.0.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes the earliest item whose deadline is not after `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<(TurnId, ItemId)> {
        let first = self.0.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Moves the deadline of the item with this `order` from its present place in `armed`.
    pub(super) fn set(
        &mut self,
        armed: &mut Option<Instant>,
        to: Option<Instant>,
        order: u64,
        item: impl FnOnce() -> (TurnId, ItemId),
    ) {
        if *armed == to {
            return;
        }
        let moved = armed.and_then(|at| self.0.remove(&(at, order)));
        *armed = to;
        if let Some(at) = to {
            self.0.insert((at, order), moved.unwrap_or_else(item));
        }
    }

    pub(super) fn clear(&mut self, armed: &mut Option<Instant>, order: u64) {
        if let Some(at) = armed.take() {
            self.0.remove(&(at, order));
        }
    }
}
