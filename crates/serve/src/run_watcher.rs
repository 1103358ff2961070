//! The feeds and the metrics of the runs of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_service::RunWatcher;
use cantrip_service::cantrip::CastReply;
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::events::{WaitTime, Watcher};
use cantrip_service::cantrip::stream::{SessionId, StreamEvent};

use crate::feed::{RunFeed, RunFeeds};
use crate::metrics::Metrics;

/// Writes every event to the feed of its run and counts it. Cheap to clone; all clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct FeedWatcher(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The feeds of the runs that are active in this process.
    active: Mutex<HashMap<SessionId, Arc<RunFeed>>>,
    feeds: RunFeeds,
    metrics: Metrics,
}

impl FeedWatcher {
    fn active(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<RunFeed>>> {
        self.0.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// Returns the feeds for viewers.
    pub(crate) fn feeds(&self) -> &RunFeeds {
        &self.0.feeds
    }
}

impl Watcher for FeedWatcher {
    fn on_event(&self, event: StreamEvent) {
        self.metrics().count_event(&event);
        let feed = self.active().get(&event.session_id).cloned();
        if let Some(feed) = feed {
            feed.observe(&event);
        }
    }

    fn on_wait(&self, waited: WaitTime) {
        self.metrics().count_wait(waited);
    }
}

impl RunWatcher for FeedWatcher {
    fn on_begin(&self, run: RunId) {
        let feed = self.feeds().get_or_create(run);
        feed.begin();
        self.active().insert(SessionId::from(&run), feed);
        self.metrics().count_begin();
    }

    fn on_reply(&self, reply: &CastReply) {
        self.metrics().count_finished_cast(reply);
    }

    fn on_end(&self, run: RunId) {
        let feed = self.active().remove(&SessionId::from(&run));
        if let Some(feed) = feed {
            self.feeds().keep_rested(feed);
        }
    }
}
