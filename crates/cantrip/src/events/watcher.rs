//! Receivers of a run's events.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cantrip_canon::TurnId;
use cantrip_circle::gate::Progress;
use cantrip_reply::ReplyType;
use cantrip_stream::StreamEvent;
use tokio::sync::mpsc;

use crate::limits::WATCHED_EVENTS_MAX;

/// Receives the events of runs. Every method must return at once, whatever the watcher does with its argument.
pub trait Watcher: Send + Sync {
    fn on_event(&self, event: StreamEvent);

    /// Returns true if the watcher receives events, now or later: events that no one receives are not created.
    fn is_watching(&self) -> bool {
        true
    }

    /// Handles the progress of a running call. Progress is not an event of the stream: it is not kept, and a viewer
    /// that missed it has missed nothing.
    fn on_progress(&self, _: CallProgress) {}

    /// Handles a failed request to a crystal that will be retried. This is not an event of the stream either.
    fn on_retry(&self, _: RetryNotice) {}

    /// Handles a waiting time of a cast, for metrics.
    fn on_wait(&self, _: WaitTime) {}
}

/// The thing that a cast waited for, and the duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitTime {
    /// A crystal, until its response was complete or its request had failed.
    Crystal { reply: ReplyType, took: Duration },
    /// The store, until a step was durable or refused.
    Store { took: Duration },
}

/// A failed request, and the delay before the retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryNotice {
    /// The turn that is requested; `None` for the summary of a fold.
    pub turn_id: Option<TurnId>,
    pub crystal: String,
    /// The number of the next attempt, from 2.
    pub attempt: u32,
    /// The maximum number of attempts, including the first.
    pub attempts_max: u32,
    pub after: Duration,
    /// The cause of the last failure, without secrets.
    pub cause: String,
}

/// The progress of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallProgress {
    /// The group of turns that made the call.
    pub turn_id: TurnId,
    pub call_id: cantrip_loom::CallId,
    pub gate: String,
    pub progress: Progress,
}

/// A watcher that ignores everything.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoWatcher;

impl Watcher for NoWatcher {
    fn on_event(&self, _: StreamEvent) {}

    fn is_watching(&self) -> bool {
        false
    }
}

/// Sends events to the receiver of a channel while there is room. Other events are counted and dropped.
#[derive(Debug, Clone)]
pub struct Channel {
    to: mpsc::Sender<StreamEvent>,
    dropped: Arc<AtomicU64>,
}

impl Channel {
    pub fn new() -> (Self, mpsc::Receiver<StreamEvent>) {
        let (to, from) = mpsc::channel(WATCHED_EVENTS_MAX);
        (Self { to, dropped: Arc::default() }, from)
    }

    /// Returns true if the receiver still exists.
    pub fn is_open(&self) -> bool {
        !self.to.is_closed()
    }

    /// Returns the number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Watcher for Channel {
    fn on_event(&self, event: StreamEvent) {
        if self.to.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}
