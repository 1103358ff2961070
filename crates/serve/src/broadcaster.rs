//! Which subscribers follow which run?
//!
//! One watcher receives the events of every run of the host and forwards them to the followers of that run. A slow or
//! disconnected follower loses events and affects nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::events::{CallProgress, Channel, WaitTime, Watcher};
use cantrip_service::cantrip::stream::{SessionId, StreamEvent};
use tokio::sync::{mpsc, oneshot};

use crate::feed::{RunFeed, RunFeeds};
use crate::limits::FOLLOWERS_MAX;
use crate::metrics::Metrics;

/// The followers of every run. Cheap to clone; all clones are the same broadcaster.
#[derive(Debug, Clone, Default)]
pub struct RunBroadcaster(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    runs: Mutex<HashMap<SessionId, RunFollowers>>,
    feeds: RunFeeds,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct RunFollowers {
    begins: Vec<oneshot::Sender<()>>,
    followers: Vec<Channel>,
    /// The feed of a run that is active in this process.
    board: Option<Arc<RunFeed>>,
}

impl RunBroadcaster {
    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, RunFollowers>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Returns the feeds for viewers.
    pub(crate) fn feeds(&self) -> &RunFeeds {
        &self.0.feeds
    }

    /// Returns the events of a run from now on, until the run stops in this process. Returns none if the run has the
    /// maximum number of followers.
    pub fn follow(&self, run: RunId) -> Option<mpsc::Receiver<StreamEvent>> {
        let mut runs = self.runs();
        let following = runs.entry(SessionId::from(&run)).or_default();
        if following.followers.len() >= FOLLOWERS_MAX {
            return None;
        }
        let (channel, events) = Channel::new();
        following.followers.push(channel);
        Some(events)
    }

    /// Returns a channel that fires on the first event of a run: the run is on record then.
    pub(crate) fn on_first_event(&self, run: RunId) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        let board = self.feeds().get_or_create(run);
        board.begin();
        let mut runs = self.runs();
        let following = runs.entry(SessionId::from(&run)).or_default();
        following.begins.push(tell);
        following.board = Some(board);
        self.metrics().count_begin();
        told
    }

    /// Ends the feed of a run that stopped in this process. The followers see the end of their channels.
    pub(crate) fn end_run(&self, run: RunId) {
        let following = self.runs().remove(&SessionId::from(&run));
        if let Some(board) = following.and_then(|following| following.board) {
            self.feeds().keep_rested(board);
        }
    }
}

impl Watcher for RunBroadcaster {
    fn on_event(&self, event: StreamEvent) {
        self.metrics().count_event(&event);
        let mut runs = self.runs();
        let Some(following) = runs.get_mut(&event.session_id) else { return };
        for begins in following.begins.drain(..) {
            // The receiver may be gone.
            let _ = begins.send(());
        }
        following.followers.retain(Channel::is_open);
        for follower in &following.followers {
            follower.on_event(event.clone());
        }
        let board = following.board.clone();
        drop(runs);
        if let Some(board) = board {
            board.observe(&event);
        }
    }

    fn on_progress(&self, _: CallProgress) {}

    fn on_wait(&self, waited: WaitTime) {
        self.metrics().count_wait(waited);
    }
}
