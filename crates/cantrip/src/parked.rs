//! Why does a run wait although it has not ended?
//!
//! A run is parked by a person, by the shutdown of its process, or because its crystal stays unavailable. The parked
//! record contains the reason and the fault. So a later reader of the run gets the same information as the caller who
//! waited for it.

use std::time::Duration;

use cantrip_canon::{CastId, RunId};
use cantrip_loom::{
    AppendOutcome, CastParked, Epoch, Error, Event, JobParked, Journal, Kind, Lease, Loom, ParkReason, Record,
    RecordDraft, RecordedError, RunKind, RunView, Seq, Step, StepId,
};
use cantrip_reply::{Call, Refusal, codes};
use futures_util::TryStreamExt;

use crate::driver::Runtime;
use crate::limits::LEASE_MS;
use crate::runtime_error::RuntimeError;

/// Returns what a person can do about a crystal that stays unavailable with this code.
pub fn advice(code: &str) -> &'static str {
    if code == codes::RATE_LIMITED.any().as_str() {
        "wait until the provider takes requests again, then resume the run"
    } else if code == codes::NO_PROGRESS.any().as_str() {
        "find out what ends the process: its log, its memory, the gate that was called last; resuming the run tries \
         again"
    } else if code == codes::UNREACHABLE.any().as_str() {
        "check the address, the network and any proxy (cantrip doctor), then resume the run; if the server answered \
         with 500 or above, look into its own log"
    } else {
        "check that the server at that address answers as its provider does, then resume the run"
    }
}

impl Runtime {
    /// Returns why a run waits, if its last record says that it was parked.
    pub async fn parked(&self, run: RunId) -> Result<Option<CastParked>, Refusal> {
        self.try_parked(run).await.map_err(RuntimeError::refusal)
    }

    async fn try_parked(&self, run: RunId) -> Result<Option<CastParked>, RuntimeError> {
        let mut parked = None;
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await? {
            // Any later record means that the run has continued.
            parked = None;
            if record.kind == Kind::Parked
                && let Event::Parked(event) = record.event()?
            {
                parked = Some(event);
            }
        }
        Ok(parked)
    }
}

/// The progress of a run, as its records show it.
#[derive(Debug, Default)]
struct Progress {
    /// The epoch under which the run last made progress, or was parked regularly.
    epoch: Option<Epoch>,
    cast: Option<CastId>,
}

impl Progress {
    fn take(&mut self, record: &Record) -> Result<(), Error> {
        let event = record.event()?;
        if let (Event::Cast(cast), None) = (&event, self.cast) {
            self.cast = Some(cast.cast_id);
        }
        if is_progress(&event) && record.epoch != Epoch::NONE {
            self.epoch = self.epoch.max(Some(record.epoch));
        }
        Ok(())
    }
}

/// Returns true if a run cannot write such records for ever without progress. A request or a call that has only begun
/// can be begun again by every worker that takes over the run.
fn is_progress(event: &Event) -> bool {
    if let Event::Settled(settled) = event {
        // The outcome of a failed attempt is not an answer.
        return settled.attempt.is_none();
    }
    matches!(
        event,
        Event::Cast(_)
            | Event::Opened(_)
            | Event::Turn(_)
            | Event::Fold(_)
            | Event::Parked(_)
            | Event::End(_)
            | Event::Failed(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobParked(_)
            | Event::JobClosed(_)
    )
}

impl Runtime {
    /// Returns the number of times that a run was taken over since its last progress.
    ///
    /// Every worker that takes over a run does so under a new epoch, so the epochs since the last progress are counted,
    /// and no store has to keep a counter.
    pub async fn take_ups_without_progress(&self, run: &RunView) -> Result<u64, Refusal> {
        let counted = self.progress(run.run_id).await.map_err(RuntimeError::refusal)?;
        Ok(counted.epoch.map_or(0, |epoch| run.epoch.get().saturating_sub(epoch.get())))
    }

    async fn progress(&self, run: RunId) -> Result<Progress, RuntimeError> {
        let mut progress = Progress::default();
        let mut records = std::pin::pin!(self.loom().read(run, Seq::START));
        while let Some(record) = records.try_next().await? {
            progress.take(&record)?;
        }
        Ok(progress)
    }

    /// Parks a run that was taken over `limit` times or more since its last progress. Returns the fault that it was
    /// parked with, or `None` if the run may be taken over again.
    pub async fn park_without_progress(&self, run: RunId, limit: u64) -> Result<Option<RecordedError>, Refusal> {
        self.parked_without_progress(run, limit).await.map_err(RuntimeError::refusal)
    }

    async fn parked_without_progress(&self, run: RunId, limit: u64) -> Result<Option<RecordedError>, RuntimeError> {
        let view = self.loom().run(run).await?;
        let taken_up = view.epoch;
        // If the run was never taken over that often, its records need not be read.
        if taken_up.get() <= limit {
            return Ok(None);
        }
        let progress = self.progress(run).await?;
        let Some(epoch) = progress.epoch else { return Ok(None) };
        // A job has no cast.
        if progress.cast.is_none() && view.kind != RunKind::Job {
            return Ok(None);
        }
        let times = taken_up.get().saturating_sub(epoch.get());
        if times < limit {
            return Ok(None);
        }
        let now = self.loom().lease_now(self.now().wall).await?;
        let lease = self.loom().acquire(run, self.owner().clone(), now, Duration::from_millis(LEASE_MS)).await?;
        // Another worker that had the run meanwhile may have made progress.
        let is_same = lease.epoch.get() == taken_up.get() + 1;
        let parked = if is_same { self.park_for(&lease, progress.cast, times).await.map(Some) } else { Ok(None) };
        self.loom().release(&lease).await?;
        parked
    }

    async fn park_for(&self, lease: &Lease, cast: Option<CastId>, times: u64) -> Result<RecordedError, RuntimeError> {
        let refusal: Refusal = codes::no_progress(lease.run.to_string(), times).into();
        let call = Call::surface("take up").run(lease.run);
        let reply = self.guard().call(call, |rb| async { rb.refuse(refusal) }).await.reply;
        let error = RecordedError::new(reply.code(), reply.message());
        let (reason, fault) = (ParkReason::NoProgress, Some(error.clone()));
        let parked: Event = match cast {
            Some(cast_id) => {
                CastParked { cast_id, reason, turn_id: None, error: fault, detail: None, elapsed_ms: None }.into()
            }
            None => JobParked { reason, error: fault, detail: None }.into(),
        };
        let name = format!("no-progress-{}", lease.epoch.get());
        let step = Step::for_lease(StepId::new(&name).expect("a short name"), lease.clone())
            .record(RecordDraft::new(self.now().wall, parked)?);
        if let AppendOutcome::Committed(_) = self.loom().append(step).await? {
            return Ok(error);
        }
        let (id, state) = (lease.run.to_string(), "changed meanwhile");
        Err(Refusal::from(codes::wrong_state("run", id, state, "park", "left alone")).into())
    }
}
