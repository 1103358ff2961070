//! The records that were decided on, and wait to be appended together.

use cantrip_canon::Timestamp;
use cantrip_loom::{Body, Error, Event, RecordValue};
use cantrip_spend::Operation;

use super::Effect;

/// Records that are drafted and applied, but not yet requested to be appended, with the bodies that they refer to and
/// the ledger operations of the same step.
#[derive(Debug, Default)]
pub(super) struct Drafts {
    events: Vec<(Timestamp, Event)>,
    bodies: Vec<Body>,
    money: Vec<Operation>,
}

impl Drafts {
    /// Returns true if no record waits.
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn has_money(&self) -> bool {
        !self.money.is_empty()
    }

    pub(super) fn push(&mut self, at: Timestamp, event: Event) {
        self.events.push((at, event));
    }

    pub(super) fn add_money(&mut self, operations: impl IntoIterator<Item = Operation>) {
        self.money.extend(operations);
    }

    pub(super) fn bodies(&mut self) -> &mut Vec<Body> {
        &mut self.bodies
    }

    /// Returns the value as a record keeps it: inline, or as a body that is appended with the record.
    pub(super) fn hold<T: serde::Serialize + serde::de::DeserializeOwned + Clone>(
        &mut self,
        value: T,
    ) -> Result<RecordValue<T>, Error> {
        RecordValue::new(value, &mut self.bodies)
    }

    /// Returns the effect that appends everything that was drafted.
    pub(super) fn take(&mut self) -> Effect {
        let Self { events, bodies, money } = std::mem::take(self);
        Effect::Append { events, bodies, money }
    }
}
