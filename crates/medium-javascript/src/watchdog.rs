//! The watchdog that detects a stuck sandbox thread.
//!
//! While a caller waits for a program, a dedicated thread checks the sandbox threads a few times a second. A sandbox
//! thread that is seen in the same slice again and again, and that has used the processor in the meantime, is stuck in
//! one native call. A thread that only did not get the processor, on a busy machine or in a stopped process, is not
//! stuck.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::host::{WorkerHandle, WorkerPool, locked};
use crate::limits;

/// The interval between two checks of the threads.
const LOOK_EVERY: Duration = Duration::from_millis(limits::SLICE_MS_MAX);
/// The longest time that a thread may stay in one slice.
const STUCK: Duration = Duration::from_millis(limits::STUCK_MS_MAX);

#[derive(Debug)]
pub(super) struct Watchdog {
    waiters: Arc<Waiters>,
    thread: Option<JoinHandle<()>>,
}

/// The callers that wait for a program.
#[derive(Debug, Default)]
struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: usize,
    closed: bool,
}

/// The guard of one waiting caller.
#[derive(Debug)]
struct Waiting(Arc<Waiters>);

impl Drop for Waiting {
    fn drop(&mut self) {
        locked(&self.0.state).waiting -= 1;
    }
}

impl Watchdog {
    pub(super) fn start(lanes: Arc<WorkerPool>) -> std::io::Result<Self> {
        let waiters = Arc::new(Waiters::default());
        let own = Arc::clone(&waiters);
        let thread = thread::Builder::new().name("sandbox-watch".into()).spawn(move || own.watch(&lanes))?;
        Ok(Self { waiters, thread: Some(thread) })
    }

    /// Registers a caller that waits for a program, until the returned guard is dropped.
    pub(super) fn guard(&self) -> impl Sized + Send + use<> {
        let mut state = locked(&self.waiters.state);
        state.waiting += 1;
        if state.waiting == 1 {
            self.waiters.changed.notify_one();
        }
        Waiting(Arc::clone(&self.waiters))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        locked(&self.waiters.state).closed = true;
        self.waiters.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A slice that a thread was seen in, the number of checks since then, and the processor time that the thread had used
/// at the first one.
struct Sighting {
    since: u64,
    looks: u64,
    used: Option<Duration>,
}

impl Waiters {
    fn watch(&self, lanes: &WorkerPool) {
        let mut sightings = HashMap::new();
        let mut state = locked(&self.state);
        while !state.closed {
            if state.waiting == 0 {
                sightings.clear();
                state = self.changed.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
                continue;
            }
            let (next, pause) =
                self.changed.wait_timeout(state, LOOK_EVERY).unwrap_or_else(std::sync::PoisonError::into_inner);
            state = next;
            if pause.timed_out() && !state.closed {
                drop(state);
                look(&lanes.all(), &mut sightings);
                state = locked(&self.state);
            }
        }
    }
}

fn look(lanes: &[WorkerHandle], sightings: &mut HashMap<usize, Sighting>) {
    for (place, lane) in lanes.iter().enumerate() {
        let since = lane.gauge.busy_since();
        match sightings.get_mut(&place) {
            _ if since == 0 => {
                sightings.remove(&place);
            }
            Some(seen) if seen.since == since => {
                seen.looks += 1;
                let watched = Duration::from_millis(seen.looks * limits::SLICE_MS_MAX);
                let used = used(lane, seen.used).unwrap_or(watched);
                if watched >= STUCK && used >= STUCK / 2 {
                    lane.gauge.abandon(since, used);
                }
            }
            Some(_) | None => {
                sightings.insert(place, Sighting { since, looks: 0, used: lane.gauge.used() });
            }
        }
    }
}

/// Returns the processor time that a thread has used since it was first seen in its slice, if that is known.
fn used(lane: &WorkerHandle, before: Option<Duration>) -> Option<Duration> {
    Some(lane.gauge.used()?.saturating_sub(before?))
}
