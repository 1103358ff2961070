//! The lease of a job's run, and the steps that are written under it.
//!
//! A job has no entity and no machine, so the loop that drives casts cannot drive it. What the two share is the
//! contract of the journal: one owner, steps with numbers, a heartbeat.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip::canon::{Clock, RunId};
use cantrip::limits::{CANCEL_LOOK_MS, HEARTBEAT_MS, LEASE_MS};
use cantrip::loom::{
    AppendOutcome, Body, ContractRow, Error, Event, Journal, Lease, Record, RecordDraft, Seq, Step, StepId,
};
use cantrip::spend::Operation;
use cantrip::{Cancel, Runtime, requests_cancel};
use cantrip_contract::ImproveRow;
use futures_util::TryStreamExt;

/// The content of one step of a job.
#[derive(Debug, Default)]
pub(super) struct JobWrites {
    pub events: Vec<Event>,
    pub rows: Vec<ImproveRow>,
    pub bodies: Vec<Body>,
    pub money: Vec<Operation>,
}

/// The run of a job that this process owns.
pub(super) struct OwnedRun {
    runtime: Runtime,
    clock: Arc<dyn Clock>,
    run: RunId,
    lease: Mutex<Lease>,
    steps: AtomicU64,
}

impl OwnedRun {
    /// Wraps the lease of a run, after this number of steps under it.
    pub(super) fn new(runtime: &Runtime, clock: &Arc<dyn Clock>, lease: Lease, steps: u64) -> Self {
        Self {
            runtime: runtime.clone(),
            clock: Arc::clone(clock),
            run: lease.run,
            lease: Mutex::new(lease),
            steps: AtomicU64::new(steps),
        }
    }

    /// Acquires a run that nobody drives.
    pub(super) async fn acquire(runtime: &Runtime, clock: &Arc<dyn Clock>, run: RunId) -> Result<Self, Error> {
        let loom = runtime.loom();
        let now = loom.lease_now(clock.now().wall).await?;
        let lease = loom.acquire(run, runtime.worker_id().clone(), now, Duration::from_millis(LEASE_MS)).await?;
        Ok(Self::new(runtime, clock, lease, 0))
    }

    pub(super) fn run(&self) -> RunId {
        self.run
    }

    fn lease(&self) -> MutexGuard<'_, Lease> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a step under the lease.
    pub(super) async fn append(&self, writes: JobWrites) -> Result<AppendOutcome, Error> {
        let lease = self.lease().clone();
        let id = step_id(&lease, self.steps.fetch_add(1, Ordering::Relaxed) + 1);
        let now = self.clock.now().wall;
        let mut drafts = Vec::with_capacity(writes.events.len());
        for event in writes.events {
            drafts.push(RecordDraft::new(now, event)?);
        }
        let mut step = Step::for_lease(id, lease).records(drafts).bodies(writes.bodies);
        step.money = writes.money;
        step.contract = writes.rows.into_iter().map(|row| ContractRow::Improve(Box::new(row))).collect();
        self.runtime.loom().append(step).await
    }

    /// Renews the lease for as long as this future is polled, and cancels the job when somebody asked for it. Returns
    /// when the lease is lost. Records up to `seen` were looked at before.
    pub(super) async fn keep(&self, cancel: &Cancel, mut seen: Seq) -> Error {
        let mut renewed_at = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(CANCEL_LOOK_MS)).await;
            let loom = self.runtime.loom();
            if renewed_at.elapsed() >= Duration::from_millis(HEARTBEAT_MS) {
                let lease = self.lease().clone();
                let renewed = match loom.lease_now(self.clock.now().wall).await {
                    Ok(now) => loom.renew(&lease, now, Duration::from_millis(LEASE_MS)).await,
                    Err(error) => Err(error),
                };
                match renewed {
                    Ok(renewed) => *self.lease() = renewed,
                    Err(error) => return error,
                }
                renewed_at = tokio::time::Instant::now();
            }
            // If the store cannot be read now, the next write reports the error.
            let news: Vec<Record> = loom.read(self.run, seen).try_collect().await.unwrap_or_default();
            seen = news.last().map_or(seen, |record| record.seq);
            if news.iter().any(requests_cancel) {
                cancel.cancel();
            }
        }
    }

    /// Releases the lease. Another worker may resume the job at once.
    pub(super) async fn release(&self) {
        let lease = self.lease().clone();
        if let Err(error) = self.runtime.loom().release(&lease).await {
            tracing::warn!(run = %self.run, %error, "the lease of a job could not be returned; it will expire");
        }
    }
}

/// Returns the id of a step: the epoch of its lease and its number.
pub(super) fn step_id(lease: &Lease, number: u64) -> StepId {
    StepId::new(format!("{}.{number}", lease.epoch)).expect("two numbers are a short name")
}
