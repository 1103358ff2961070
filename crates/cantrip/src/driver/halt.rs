//! How is a cast cut off? By its parent, by its deadline, or by a person.

use std::future::pending;
use std::sync::Arc;

use cantrip_circle::Wards;
use cantrip_circle::gate::{StopSignal, Stopper};
use cantrip_loom::TruncationReason;
use tokio::sync::watch;
use tokio::time::Instant;

use cantrip_turn::halt_of;

/// Cuts off one cast. Cheap to clone; the first reason counts.
#[derive(Debug, Clone)]
pub(crate) struct HaltSignal {
    reason: watch::Sender<Option<TruncationReason>>,
    paused: watch::Sender<bool>,
    stopper: Stopper,
    stop: StopSignal,
    wards: Arc<Wards>,
}

impl HaltSignal {
    pub(crate) fn new(wards: &Wards) -> Self {
        let (stopper, stop) = Stopper::new();
        let (said, paused) = (watch::Sender::new(None), watch::Sender::new(false));
        Self { reason: said, paused, stopper, stop, wards: Arc::new(wards.clone()) }
    }

    pub(crate) fn halt(&self, reason: TruncationReason) {
        self.reason.send_if_modified(|said| {
            let first = said.is_none();
            said.get_or_insert(reason);
            first
        });
        if let Some(first) = self.reason() {
            self.stopper.stop(halt_of(first, &self.wards));
        }
    }

    /// Asks the cast to pause before it begins anything new. Work that was begun is completed.
    pub(crate) fn pause(&self) {
        self.paused.send_replace(true);
    }

    /// Returns true if the cast is asked to pause. A cast that ends does not pause.
    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow() && self.reason().is_none()
    }

    /// Returns when the cast is asked to pause.
    pub(crate) async fn wait_paused(&self) {
        // The sender is a field of `self`, so waiting cannot fail.
        let _ = self.paused.subscribe().wait_for(|paused| *paused).await;
    }

    pub(crate) fn reason(&self) -> Option<TruncationReason> {
        *self.reason.borrow()
    }

    /// Returns the signal that gates check.
    pub(crate) fn stop(&self) -> StopSignal {
        self.stop.clone()
    }

    /// Returns when the cast is cut off.
    pub(crate) async fn wait_halted(&self) -> TruncationReason {
        let mut said = self.reason.subscribe();
        let said = said.wait_for(Option::is_some).await.ok().and_then(|said| *said);
        match said {
            Some(reason) => reason,
            None => pending().await,
        }
    }

    /// Runs the work until the cast is cut off; `None` if it was.
    pub(crate) async fn unless_halted<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! { biased;
            done = work => Some(done),
            _ = self.wait_halted() => None,
        }
    }

    /// Forwards everything that ends this cast (a person, the end of its parent, its deadline) and the parent's pause.
    /// Never returns.
    pub(crate) async fn forward_halts(
        self,
        deadline: Option<Instant>,
        parent: Option<HaltSignal>,
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
                Some(parent) => parent.wait_halted().await,
                None => pending().await,
            }
        };
        let rests = async {
            if let Some(parent) = &parent {
                parent.wait_paused().await;
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
