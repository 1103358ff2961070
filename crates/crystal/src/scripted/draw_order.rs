//! Which child may draw the next response?

use std::collections::{BTreeMap, HashMap};

use cantrip_canon::EntityId;
use cantrip_loom::{CallId, Spawn};

/// The children that have neither drawn nor ended, by the call that spawned them. Each child is removed once, so this
/// never holds more than the live children.
#[derive(Debug, Default)]
pub(super) struct DrawOrder {
    calls: HashMap<CallId, BTreeMap<u32, EntityId>>,
    waiting: HashMap<EntityId, Spawn>,
}

impl DrawOrder {
    pub(super) fn add_child(&mut self, entity: EntityId, by: Spawn) {
        self.waiting.insert(entity, by);
        self.calls.entry(by.call_id).or_default().insert(by.index, entity);
    }

    pub(super) fn remove_child(&mut self, entity: EntityId) {
        let Some(by) = self.waiting.remove(&entity) else { return };
        if let Some(siblings) = self.calls.get_mut(&by.call_id) {
            siblings.remove(&by.index);
            if siblings.is_empty() {
                self.calls.remove(&by.call_id);
            }
        }
    }

    /// Returns true if this entity may draw now, and records its first draw. Only the first draw of a child ever waits,
    /// and only for children with a smaller index.
    pub(super) fn admit(&mut self, entity: EntityId) -> bool {
        let Some(by) = self.waiting.get(&entity) else { return true };
        let siblings = self.calls.get(&by.call_id);
        let first = siblings.and_then(|siblings| siblings.first_key_value()).map(|(index, _)| *index);
        let admitted = first.is_none_or(|first| first == by.index);
        if admitted {
            self.remove_child(entity);
        }
        admitted
    }
}
