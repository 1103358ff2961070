//! The runs that this process drives. Each is a task: a caller that disconnects changes nothing, unless it cancels.
//!
//! One watcher receives the events of every run and forwards them to the followers of that run. A slow or disconnected
//! follower loses events and affects nothing else.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip::canon::RunId;
use cantrip::events::{Channel, WaitTime, Watcher};
use cantrip::stream::{SessionId, StreamEvent};
use cantrip::{Cancel, CastReply};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::Service;
use crate::limits::{FOLLOWERS_MAX, PARKING_LOOK_MS, PARKING_MS};

/// Watches the runs of a process beside their followers, for example to count them.
pub trait RunWatcher: Watcher {
    /// Handles a run that is about to begin.
    fn on_begin(&self, run: RunId);

    /// Handles the reply of a run that stopped.
    fn on_reply(&self, reply: &CastReply);

    /// Handles the end of a run's task, with or without a reply.
    fn on_end(&self, run: RunId);
}

/// A cast that was started, or refused before anything was written.
#[derive(Debug)]
#[must_use = "wait for its reply, or let it run"]
pub struct StartedCast {
    /// None if nothing was started: the reply has the reason and is already available.
    pub run: Option<RunId>,
    pub cancel: Cancel,
    reply: JoinHandle<CastReply>,
}

impl StartedCast {
    /// Waits for the reply. Dropping the future changes nothing for the run.
    pub async fn reply(self) -> CastReply {
        match self.reply.await {
            Ok(reply) => reply,
            Err(stopped) => resume_unwind(stopped.into_panic()),
        }
    }

    /// Returns a cast that has already ended.
    fn finished(reply: Result<CastReply, JoinError>, cancel: Cancel) -> Self {
        let run = reply.as_ref().ok().and_then(|reply| reply.run);
        let reply = tokio::spawn(async move {
            match reply {
                Ok(reply) => reply,
                Err(stopped) => resume_unwind(stopped.into_panic()),
            }
        });
        Self { run, cancel, reply }
    }

    /// Returns a cast that was refused.
    pub(crate) fn refused(reply: CastReply, cancel: Cancel) -> Self {
        Self::finished(Ok(reply), cancel)
    }
}

/// The active runs of this process and their followers. Cheap to clone; all clones are the same.
#[derive(Clone, Default)]
pub(crate) struct ActiveRuns(Arc<Inner>);

#[derive(Default)]
struct Inner {
    followed: Mutex<HashMap<SessionId, RunFollowers>>,
    /// The cancel handles of the active runs.
    cancels: Mutex<HashMap<RunId, Cancel>>,
    watcher: Option<Box<dyn RunWatcher>>,
}

#[derive(Default)]
struct RunFollowers {
    begins: Vec<oneshot::Sender<()>>,
    followers: Vec<Channel>,
}

impl ActiveRuns {
    pub(crate) fn new(watcher: impl RunWatcher + 'static) -> Self {
        Self(Arc::new(Inner { watcher: Some(Box::new(watcher)), ..Inner::default() }))
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<SessionId, RunFollowers>> {
        self.0.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancels(&self) -> MutexGuard<'_, HashMap<RunId, Cancel>> {
        self.0.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.cancels().contains_key(&run)
    }

    /// Starts the work as a task and returns once the run is on record or has ended.
    pub(crate) async fn begin(
        &self,
        run: RunId,
        cancel: Cancel,
        work: impl Future<Output = CastReply> + Send + 'static,
    ) -> StartedCast {
        let (begun, begins) = oneshot::channel();
        self.followed().entry(SessionId::from(&run)).or_default().begins.push(begun);
        let mut task = self.spawn(run, cancel.clone(), work);
        tokio::select! {
            biased;
            begun = begins => match begun {
                Ok(()) => StartedCast { run: Some(run), cancel, reply: task },
                // The run stopped before its first event.
                Err(_) => StartedCast::finished(task.await, cancel),
            },
            reply = &mut task => StartedCast::finished(reply, cancel),
        }
    }

    /// Starts the work as a task and returns at once: for a run that is on record, or that sends no events.
    pub(crate) fn begin_silent(
        &self,
        run: RunId,
        cancel: Cancel,
        work: impl Future<Output = CastReply> + Send + 'static,
    ) -> StartedCast {
        let reply = self.spawn(run, cancel.clone(), work);
        StartedCast { run: Some(run), cancel, reply }
    }

    fn spawn(
        &self,
        run: RunId,
        cancel: Cancel,
        work: impl Future<Output = CastReply> + Send + 'static,
    ) -> JoinHandle<CastReply> {
        if let Some(watcher) = &self.0.watcher {
            watcher.on_begin(run);
        }
        self.cancels().insert(run, cancel);
        let ended = RunGuard { runs: self.clone(), run };
        let task = async move {
            let reply = work.await;
            if let Some(watcher) = &ended.runs.0.watcher {
                watcher.on_reply(&reply);
            }
            drop(ended);
            reply
        };
        // The caller is the parent in the trace, although the task is detached.
        tokio::spawn(cantrip_trace::scope(cantrip_trace::current(), Box::pin(task)))
    }
}

impl Watcher for ActiveRuns {
    fn on_event(&self, event: StreamEvent) {
        if let Some(following) = self.followed().get_mut(&event.session_id) {
            for begins in following.begins.drain(..) {
                // The receiver may be gone.
                let _ = begins.send(());
            }
            following.followers.retain(Channel::is_open);
            for follower in &following.followers {
                follower.on_event(event.clone());
            }
        }
        if let Some(watcher) = &self.0.watcher {
            watcher.on_event(event);
        }
    }

    fn on_wait(&self, waited: WaitTime) {
        if let Some(watcher) = &self.0.watcher {
            watcher.on_wait(waited);
        }
    }
}

/// Removes a run from the active runs, however its task ends.
struct RunGuard {
    runs: ActiveRuns,
    run: RunId,
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.runs.followed().remove(&SessionId::from(&self.run));
        if let Some(watcher) = &self.runs.0.watcher {
            watcher.on_end(self.run);
        }
        self.runs.cancels().remove(&self.run);
    }
}

impl Service {
    /// Returns the events of a run from now on, until the run stops in this process. Returns none if the run has the
    /// maximum number of followers.
    pub fn follow(&self, run: RunId) -> Option<mpsc::Receiver<StreamEvent>> {
        let mut followed = self.active.followed();
        let following = followed.entry(SessionId::from(&run)).or_default();
        if following.followers.len() >= FOLLOWERS_MAX {
            return None;
        }
        let (channel, events) = Channel::new();
        following.followers.push(channel);
        Some(events)
    }

    /// Ends the channels of the followers of a run that never began.
    pub fn unfollow(&self, run: RunId) {
        self.active.followed().remove(&SessionId::from(&run));
    }

    /// Returns the number of active runs, of all owners.
    pub fn active_runs(&self) -> usize {
        self.active.cancels().len()
    }

    /// Hands back every active run: it parks where it can resume, its lease is released, and the next server resumes
    /// it.
    pub fn release_all(&self) {
        for cancel in self.active.cancels().values() {
            cancel.hand_back();
        }
    }

    /// Asks every active run to park until it is resumed, and waits until all have parked, up to a limit.
    pub async fn park_all(&self) {
        for cancel in self.active.cancels().values() {
            cancel.park();
        }
        let patience = Instant::now() + Duration::from_millis(PARKING_MS);
        while self.active_runs() > 0 && Instant::now() < patience {
            tokio::time::sleep(Duration::from_millis(PARKING_LOOK_MS)).await;
        }
    }
}
