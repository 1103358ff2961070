//! Which state do gates keep for an entity between its calls?

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state that gates keep for one entity: a shell, an open page. Clones share the state; it is dropped with the last
/// clone. It lives as long as the entity's environment: across all sends of a summoned entity, otherwise to the end of
/// a cast.
#[derive(Clone, Default)]
pub struct GateSessions {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    kept: BTreeMap<&'static str, Box<dyn Any + Send>>,
    /// The gates that the entity called before this value was created.
    earlier: BTreeSet<String>,
}

impl fmt::Debug for GateSessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.inner().kept.keys()).finish()
    }
}

impl GateSessions {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out the state of the gate of this name.
    pub fn take<T: Send + 'static>(&self, gate: &'static str) -> Option<T> {
        let kept = self.inner().kept.remove(gate)?;
        kept.downcast().ok().map(|kept| *kept)
    }

    /// Stores the state of a gate, and drops its former state.
    pub fn put<T: Send + 'static>(&self, gate: &'static str, kept: T) {
        // The former state is dropped without the lock: that may take a while.
        let before = self.inner().kept.insert(gate, Box::new(kept));
        drop(before);
    }

    /// Returns true if the gate has no state yet.
    pub fn is_missing(&self, gate: &str) -> bool {
        !self.inner().kept.contains_key(gate)
    }

    /// Records that the entity called this gate before, with state that is gone.
    pub fn note_used_before(&self, gate: &str) {
        self.inner().earlier.insert(gate.to_owned());
    }

    pub fn was_used_before(&self, gate: &str) -> bool {
        self.inner().earlier.contains(gate)
    }

    /// Drops the state of all gates.
    pub fn clear(&self) {
        let kept = {
            let mut inner = self.inner();
            let names: Vec<String> = inner.kept.keys().map(|name| (*name).to_owned()).collect();
            inner.earlier.extend(names);
            std::mem::take(&mut inner.kept)
        };
        drop(kept);
    }
}
