//! How is a run cancelled by a caller that does not own it, from another surface or another process?

use cantrip_canon::RunId;
use cantrip_loom::{
    Actor, AppendOutcome, Conflict, Event, Journal, Kind, Loom, Record, RecordDraft, RunState, Step, StepId,
    TruncationReason,
};
use cantrip_reply::{Call, GuardedReply, Refusal, codes};
use serde_json::{Map, Value};

use crate::driver::Runtime;
use crate::runtime_error::RuntimeError;

/// The kind of record that requests the end of a run.
const REQUESTED: &str = "cancel.requested";

/// Returns true if one of these records requests the end of the run.
pub(crate) fn is_asked_for(records: &[Record]) -> bool {
    records.iter().any(|record| matches!(&record.kind, Kind::Other(kind) if kind == REQUESTED))
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
        match self.loom().run(run).await?.state {
            RunState::Terminated | RunState::Truncated => {
                let refusal = codes::wrong_state("run", run.to_string(), "ended", "cancelling", "a live run");
                return Err(Refusal::from(refusal).into());
            }
            RunState::Queued | RunState::Running | RunState::Waiting | RunState::Failed => {}
        }
        let payload = Map::from_iter([("actor".to_owned(), Value::from(actor.as_str()))]);
        let event = Event::Other { kind: REQUESTED.to_owned(), payload };
        let id = StepId::new("cancel").expect("a short name");
        let step = Step::annotation(id, run).record(RecordDraft::new(self.now().wall, event)?);
        match self.loom().append(step).await? {
            // A conflict means that the cancellation was already requested.
            AppendOutcome::Committed(_) | AppendOutcome::Conflict(Conflict::Step { .. }) => {}
            AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Conflict(_)
            | AppendOutcome::Fenced { .. } => {
                return Err(Refusal::from(codes::crash()).into());
            }
        }
        if let Some(halting) = self.active_runs().get(&run) {
            halting.halt(TruncationReason::Cancelled);
        }
        Ok(())
    }
}
