//! How do callers that wait for a run to grow learn about new records?
//!
//! A wake-up is only a hint to check again; the rows are authoritative. Writers of this process wake the callers that
//! wait for the runs they wrote to. Writes of other processes are detected by a watcher that polls while someone
//! waits.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use cantrip_canon::RunId;
use tokio::sync::{Notify, watch};

/// The runs that callers wait for.
#[derive(Debug, Default)]
pub(crate) struct RunNotifier {
    waited_for: Mutex<HashMap<RunId, watch::Sender<u64>>>,
    /// Wakes a watcher that is a task.
    pub(crate) subscribed: Notify,
    /// Wakes a watcher that is a thread.
    pub(crate) watcher: OnceLock<Thread>,
}

impl RunNotifier {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<u64>>> {
        // A panic while the lock was held would leave a map with more or fewer wake-ups in it, which are only hints.
        self.waited_for.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that changes whenever the run may have grown.
    pub(crate) fn subscribe(&self, run: RunId) -> watch::Receiver<u64> {
        let mut waited_for = self.lock();
        waited_for.retain(|_, sender| sender.receiver_count() > 0);
        let receiver = waited_for.entry(run).or_insert_with(|| watch::Sender::new(0)).subscribe();
        drop(waited_for);
        self.subscribed.notify_one();
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
        receiver
    }

    /// Wakes the callers that wait for these runs.
    pub(crate) fn notify(&self, runs: impl IntoIterator<Item = RunId>) {
        let waited_for = self.lock();
        if waited_for.is_empty() {
            return;
        }
        for run in runs {
            if let Some(sender) = waited_for.get(&run) {
                sender.send_modify(|tick| *tick += 1);
            }
        }
    }

    /// Wakes all callers, because any run may have grown.
    pub(crate) fn notify_all(&self) {
        for sender in self.lock().values() {
            sender.send_modify(|tick| *tick += 1);
        }
    }

    /// Returns true if anyone waits.
    pub(crate) fn has_waiters(&self) -> bool {
        self.lock().values().any(|sender| sender.receiver_count() > 0)
    }

    /// Ends all waits, because nothing will be written any more.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }
}
