//! What do gates keep for an entity between its calls?

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What gates keep for one entity: a shell, an open page. Clones are the same belongings; when the last one goes, so
/// does all that is kept. They live as long as the entity's environment: through the sends of one that was summoned, and
/// to the end of a cast.
#[derive(Clone, Default)]
pub struct GateSessions {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    kept: BTreeMap<&'static str, Box<dyn Any + Send>>,
    /// Gates that were called before these belongings came to be.
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

    /// Takes out what the gate of this name keeps.
    pub fn take<T: Send + 'static>(&self, gate: &'static str) -> Option<T> {
        let kept = self.inner().kept.remove(gate)?;
        kept.downcast().ok().map(|kept| *kept)
    }

    /// Keeps this for the gate, in the place of what it kept.
    pub fn put<T: Send + 'static>(&self, gate: &'static str, kept: T) {
        // What stood there is dropped without the lock: that may take a while.
        let before = self.inner().kept.insert(gate, Box::new(kept));
        drop(before);
    }

    /// Whether the gate keeps nothing yet.
    pub fn is_missing(&self, gate: &str) -> bool {
        !self.inner().kept.contains_key(gate)
    }

    /// Notes that the entity called this gate before: what it kept then is gone.
    pub fn note_used_before(&self, gate: &str) {
        self.inner().earlier.insert(gate.to_owned());
    }

    pub fn was_used_before(&self, gate: &str) -> bool {
        self.inner().earlier.contains(gate)
    }

    /// Gives up all that is kept.
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
