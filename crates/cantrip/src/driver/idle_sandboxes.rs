//! Whose sandbox is given up when there are too many?
//!
//! An entity that waits to be sent something keeps its sandbox, so that the next program finds its variables at once. A
//! house with many such entities would fill its memory with them; so beyond a number the one that has been idle for
//! longest gives up its sandbox and gets it back from the loom, by running its programs again, when it is needed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Someone who keeps a sandbox while nothing happens.
pub(crate) trait SandboxHolder: Send + Sync {
    /// Gives it up, unless something happened since it went to rest as number `since`.
    fn release_sandbox(&self, since: u64);
}

/// Those who rest, the longest first.
pub(crate) struct IdleSandboxes {
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last: u64,
    resting: BTreeMap<u64, Weak<dyn SandboxHolder>>,
}

impl std::fmt::Debug for IdleSandboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleSandboxes").field("most", &self.most).field("resting", &self.state().resting.len()).finish()
    }
}

impl IdleSandboxes {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number under which the next one goes to rest.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state();
        state.last += 1;
        state.last
    }

    /// Someone rests from now on. Whoever has done so for longest gives way if there are too many.
    pub(crate) fn add(&self, number: u64, who: Weak<dyn SandboxHolder>) {
        let mut evicted = Vec::new();
        {
            let mut state = self.state();
            state.resting.insert(number, who);
            while state.resting.len() > self.most
                && let Some(longest) = state.resting.pop_first()
            {
                evicted.push(longest);
            }
        }
        // Without the lock: giving up a sandbox takes the lock of whoever has it.
        for (number, who) in evicted {
            if let Some(who) = who.upgrade() {
                who.release_sandbox(number);
            }
        }
    }

    /// Someone rests no longer, or is gone.
    pub(crate) fn remove(&self, number: u64) {
        self.state().resting.remove(&number);
    }
}
