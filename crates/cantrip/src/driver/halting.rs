//! How a cast is cut off: from above, by its deadline, by a person.

use std::future::pending;
use std::sync::Arc;

use cantrip_circle::Wards;
use cantrip_circle::gate::{Stop, Stopper};
use cantrip_loom::TruncationReason;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::machine::halt_of;

/// Cuts off one cast. Cheap to clone; the first reason counts.
#[derive(Debug, Clone)]
pub(crate) struct Halting {
    said: watch::Sender<Option<TruncationReason>>,
    paused: watch::Sender<bool>,
    stopper: Stopper,
    stop: Stop,
    wards: Arc<Wards>,
}

impl Halting {
    pub(crate) fn new(wards: &Wards) -> Self {
        let (stopper, stop) = Stopper::new();
        let (said, paused) = (watch::Sender::new(None), watch::Sender::new(false));
        Self { said, paused, stopper, stop, wards: Arc::new(wards.clone()) }
    }

    pub(crate) fn halt(&self, reason: TruncationReason) {
        self.said.send_if_modified(|said| {
            let first = said.is_none();
            said.get_or_insert(reason);
            first
        });
        if let Some(first) = self.said() {
            self.stopper.stop(halt_of(first, &self.wards));
        }
    }

    /// Asks the cast to rest before it begins anything new. What was begun is brought to its end.
    pub(crate) fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// A cast that ends does not rest.
    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow() && self.said().is_none()
    }

    /// Returns when it is to rest.
    pub(crate) async fn pausing(&self) {
        // The sender lives in self, so waiting cannot fail.
        let _ = self.paused.subscribe().wait_for(|paused| *paused).await;
    }

    pub(crate) fn said(&self) -> Option<TruncationReason> {
        *self.said.borrow()
    }

    /// What gates look at.
    pub(crate) fn stop(&self) -> Stop {
        self.stop.clone()
    }

    /// Returns when it is said.
    pub(crate) async fn halted(&self) -> TruncationReason {
        let mut said = self.said.subscribe();
        let said = said.wait_for(Option::is_some).await.ok().and_then(|said| *said);
        match said {
            Some(reason) => reason,
            None => pending().await,
        }
    }

    /// Passes on what ends this cast: a person, the end of its parent, its deadline; and its parent's rest. Never returns.
    pub(crate) async fn watch_over(
        self,
        deadline: Option<Instant>,
        parent: Option<Halting>,
        cancelled: impl Future<Output = ()>,
    ) -> std::convert::Infallible {
        let due = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => pending().await,
            }
        };
        let ended = async {
            match &parent {
                Some(parent) => parent.halted().await,
                None => pending().await,
            }
        };
        let rests = async {
            if let Some(parent) = &parent {
                parent.pausing().await;
                self.pause();
            }
            pending::<std::convert::Infallible>().await
        };
        tokio::select! { biased;
            () = cancelled => self.halt(TruncationReason::Cancelled),
            _ = ended => self.halt(TruncationReason::ParentTerminated),
            () = due => self.halt(TruncationReason::Timeout),
            never = rests => match never {},
        }
        pending().await
    }
}
