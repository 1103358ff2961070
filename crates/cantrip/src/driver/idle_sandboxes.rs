//! Which sandbox is given up when there are too many?
//!
//! An entity that waits for its next intent keeps its sandbox, so that the next program finds its variables at once. In
//! a runtime with many such entities they would fill the memory. So beyond a limit, the entity that has been idle for
//! longest gives up its sandbox. It is rebuilt from the loom, by running its programs again, when it is needed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// A holder of an idle sandbox.
pub(crate) trait SandboxHolder: Send + Sync {
    /// Releases the sandbox, unless the holder was active since it became idle under the number `since`.
    fn release_sandbox(&self, since: u64);
}

/// The idle holders, longest idle first.
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

    /// Returns the number under which the next holder becomes idle.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.state();
        state.last += 1;
        state.last
    }

    /// Adds an idle holder. If there are too many, the holder that has been idle for longest releases its sandbox.
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
        // Called without this lock, because releasing a sandbox takes the lock of its holder.
        for (number, who) in evicted {
            if let Some(who) = who.upgrade() {
                who.release_sandbox(number);
            }
        }
    }

    /// Removes a holder that is no longer idle or is gone.
    pub(crate) fn remove(&self, number: u64) {
        self.state().resting.remove(&number);
    }
}
