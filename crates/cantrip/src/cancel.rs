//! How is a run ended from outside? By a handle of the process that casts it, or by a request of a caller that does not
//! own it, from another surface or another process.

use std::collections::BTreeSet;

use cantrip_canon::{EntityId, RunId};
use cantrip_loom::{
    Actor, AppendOutcome, Conflict, Event, Journal, Kind, Loom, Record, RecordDraft, RunKind, RunState, Step, StepId,
    TruncationReason,
};
use cantrip_reply::{Call, GuardedReply, Refusal, codes};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::driver::Runtime;
use crate::runtime_error::RuntimeError;

/// Ends a cast from outside, or asks it to pause. Cheap to clone; all clones act on the same casts.
#[derive(Debug, Clone, Default)]
pub struct Cancel(watch::Sender<StopState>);

#[derive(Debug, Default)]
struct StopState {
    of_all: StopLevel,
    /// The entities that must end, with everything below them.
    ended: BTreeSet<EntityId>,
}

/// The request that was made to a cast or a job from outside; later variants outweigh earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum StopLevel {
    #[default]
    Continue,
    /// The process shuts down: the next worker that looks for abandoned runs continues.
    HandBack,
    /// The run waits until somebody resumes it.
    Park,
    /// The run ends.
    Cancel,
}

impl Cancel {
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the cast and all its children; the work done so far stays recorded.
    pub fn cancel(&self) {
        self.0.send_modify(|wished| wished.of_all = StopLevel::Cancel);
    }

    /// Returns true if the cast must end.
    pub fn is_cancelled(&self) -> bool {
        self.0.borrow().of_all == StopLevel::Cancel
    }

    /// Returns when the cast must end. Safe to drop while it waits.
    pub async fn wait_cancelled(&self) {
        self.wait_for_level(StopLevel::Cancel).await;
    }

    /// Ends one entity of the tree with all its children. Its parent sees a failed call. The other entities continue.
    pub fn cancel_entity(&self, entity: EntityId) {
        self.0.send_modify(|wished| {
            wished.ended.insert(entity);
        });
    }

    /// Pauses the cast and all its children before they begin anything new: a running gate or program is waited for, a
    /// pending request to a crystal is not. Then the run waits, and [`Runtime::resume`] continues it. Cancelling still
    /// ends it.
    pub fn park(&self) {
        self.at_least(StopLevel::Park);
    }

    /// Pauses the cast because the process shuts down: the run does not wait for anyone, and the next worker that looks
    /// for abandoned runs continues it.
    pub fn hand_back(&self) {
        self.at_least(StopLevel::HandBack);
    }

    fn at_least(&self, wish: StopLevel) {
        self.0.send_if_modified(|wished| {
            let news = wished.of_all < wish;
            wished.of_all = wished.of_all.max(wish);
            news
        });
    }

    pub(crate) fn is_handing_back(&self) -> bool {
        self.0.borrow().of_all == StopLevel::HandBack
    }

    /// Returns the strongest request so far.
    pub fn level(&self) -> StopLevel {
        self.0.borrow().of_all
    }

    /// Returns when a request of at least this level was made. Safe to drop while it waits.
    pub async fn wait_for_level(&self, least: StopLevel) -> StopLevel {
        let mut wishes = self.0.subscribe();
        let wished = wishes.wait_for(|wished| wished.of_all >= least).await;
        // The sender is a field of `self`, so waiting cannot fail.
        wished.map_or(StopLevel::Cancel, |wished| wished.of_all)
    }

    /// Returns when this entity alone must end.
    pub(crate) async fn wait_entity_cancelled(&self, entity: EntityId) {
        // The sender is a field of `self`, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|wished| wished.ended.contains(&entity)).await;
    }
}

/// The kind of record that requests the end of a run.
const REQUESTED: &str = "cancel.requested";

/// Returns true if one of these records requests the end of the run.
pub(crate) fn is_asked_for(records: &[Record]) -> bool {
    records.iter().any(requests_cancel)
}

/// Returns true if this record requests the end of its run.
pub fn requests_cancel(record: &Record) -> bool {
    matches!(&record.kind, Kind::Other(kind) if kind == REQUESTED)
}

impl Runtime {
    /// Requests the end of a run, whichever worker owns it. A run that is driven here ends at once, a run of another
    /// process as soon as that process checks (within [`limits::CANCEL_LOOK_MS`](crate::limits::CANCEL_LOOK_MS)), a
    /// waiting run when it is resumed. The request is recorded, so it outlives every process. Repeating it has no
    /// effect.
    pub async fn cancel(&self, run: RunId, actor: &Actor) -> GuardedReply {
        let call = Call::surface("cancel").run(run);
        let cancelled = self.guard().call(call, |rb| async move {
            match self.try_cancel(run, actor).await {
                Ok(()) => rb.success(codes::changed("run", run.to_string(), "cancelling")),
                Err(unable) => rb.refuse(unable.refusal()),
            }
        });
        cancelled.await
    }

    async fn try_cancel(&self, run: RunId, actor: &Actor) -> Result<(), RuntimeError> {
        let view = self.loom().run(run).await?;
        let ended = || codes::wrong_state("run", run.to_string(), "ended", "cancelling", "a live run");
        match (view.state, view.kind) {
            (RunState::Terminated | RunState::Truncated, _) | (RunState::Failed, RunKind::Job) => {
                return Err(Refusal::from(ended()).into());
            }
            (RunState::Queued | RunState::Running | RunState::Waiting | RunState::Failed, _) => {}
        }
        let payload = Map::from_iter([("actor".to_owned(), Value::from(actor.as_str()))]);
        let event = Event::Other { kind: REQUESTED.to_owned(), payload };
        // A job can be reopened and cancelled again, each time under another lease.
        let name = match view.kind {
            RunKind::Job => format!("cancel-{}", view.epoch.get()),
            RunKind::Cast | RunKind::Summon | RunKind::Predict => "cancel".to_owned(),
        };
        let id = StepId::new(name).expect("a short name");
        let step = Step::annotation(id, run).record(RecordDraft::new(self.now().wall, event)?);
        let outcome = self.loom().append(step).await?;
        // A conflict means that the cancellation was already requested.
        if !matches!(outcome, AppendOutcome::Committed(_) | AppendOutcome::Conflict(Conflict::Step { .. })) {
            return Err(Refusal::from(codes::crash()).into());
        }
        if let Some(halting) = self.active_runs().get(&run) {
            halting.halt(TruncationReason::Cancelled);
        }
        Ok(())
    }
}
