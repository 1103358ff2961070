//! Who follows which run?
//!
//! One watcher sees every run of the house. What it sees of a run goes to those who follow that run; a follower that is
//! slow or gone loses events and is noticed by nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::events::{CallProgress, Channel, WaitTime, Watcher};
use cantrip_service::cantrip::stream::{SessionId, StreamEvent};
use tokio::sync::{mpsc, oneshot};

use crate::feed::{RunFeed, RunFeeds};
use crate::limits::FOLLOWERS_MAX;
use crate::metrics::Metrics;

/// The followers of every run. Cheap to clone; all clones are the same hub.
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
    /// Of a run that is under way here.
    board: Option<Arc<RunFeed>>,
}

impl RunBroadcaster {
    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, RunFollowers>> {
        self.0.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is counted.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// What viewers are shown.
    pub(crate) fn feeds(&self) -> &RunFeeds {
        &self.0.feeds
    }

    /// The events of a run from now on, until it comes to rest here; none of an earlier time. Nothing if as many follow it
    /// as may.
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

    /// Is told when the first event of a run is seen: it is on record then.
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

    /// The run has come to rest: nothing more is seen of it here, and its followers are told so by the end of their
    /// channels.
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
            // Who does not wait any more need not be told.
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
