//! Who follows which run?
//!
//! One watcher sees every run of the house. What it sees of a run goes to those who follow that run; a follower that is
//! slow or gone loses events and is noticed by nobody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_service::cantrip::canon::RunId;
use cantrip_service::cantrip::events::{Channel, Progressed, Watcher};
use cantrip_service::cantrip::stream::{SessionId, StreamEvent};
use tokio::sync::{mpsc, oneshot};

use crate::limits::FOLLOWERS_MAX;

/// The followers of every run. Cheap to clone; all clones are the same hub.
#[derive(Debug, Clone, Default)]
pub struct Hub(Arc<Mutex<HashMap<SessionId, Following>>>);

#[derive(Debug, Default)]
struct Following {
    begins: Vec<oneshot::Sender<()>>,
    followers: Vec<Channel>,
}

impl Hub {
    fn runs(&self) -> MutexGuard<'_, HashMap<SessionId, Following>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn begins(&self, run: RunId) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.runs().entry(SessionId::from(&run)).or_default().begins.push(tell);
        told
    }

    /// The run has come to rest: nothing more is seen of it here, and its followers are told so by the end of their
    /// channels.
    pub(crate) fn rests(&self, run: RunId) {
        self.runs().remove(&SessionId::from(&run));
    }
}

impl Watcher for Hub {
    fn see(&self, event: StreamEvent) {
        let mut runs = self.runs();
        let Some(following) = runs.get_mut(&event.session_id) else { return };
        for begins in following.begins.drain(..) {
            // Who does not wait any more need not be told.
            let _ = begins.send(());
        }
        following.followers.retain(Channel::is_open);
        for follower in &following.followers {
            follower.see(event.clone());
        }
    }

    fn progressed(&self, _: Progressed) {}
}
