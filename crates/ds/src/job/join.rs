//! Following a job that another process drives.

use std::time::Duration;

use cantrip::canon::RunId;
use cantrip::loom::{Event, Journal, Loom, RunState, Seq};
use cantrip::reply::Refusal;
use cantrip::{Cancel, StopLevel, Waiting};
use futures_util::StreamExt;

use super::drive::DriveEnd;
use super::driver::{JobDriver, JobParts};
use super::load::{job_of_run, load};
use super::progress::JobProgressView;
use crate::limits::JOIN_LOOK_MS;
use crate::predict::refuse_store_error;

impl JobDriver {
    /// Follows the records of a job until it ends or waits, or until its process seems to be gone: then it returns none,
    /// and the caller tries to take the job over. A caller that stops only stops following.
    pub(super) async fn follow(
        &self,
        run: RunId,
        parts: &JobParts,
        cancel: &Cancel,
    ) -> Result<Option<DriveEnd>, Refusal> {
        let loom = self.runtime.loom();
        let mut view = self.joined_view(run, parts).await?;
        self.tell(&view);
        let newest = loom.run(run).await.map_err(refuse_store_error)?.newest;
        let mut records = std::pin::pin!(loom.follow(run, Seq::new(newest.get().saturating_sub(1))));
        loop {
            let next = tokio::time::timeout(Duration::from_millis(JOIN_LOOK_MS), records.next());
            let record = tokio::select! { biased;
                _ = cancel.wait_for_level(StopLevel::HandBack) => return Ok(Some(DriveEnd::Joined)),
                next = next => next,
            };
            let record = match record {
                Ok(Some(record)) => record.map_err(refuse_store_error)?,
                // The stream ended, or nothing came for a while: somebody else looks after the job, or nobody does.
                Ok(None) | Err(_) => {
                    let row = job_of_run(loom, run).await?;
                    if row.status.is_end() {
                        return Ok(Some(DriveEnd::Ended { row: Box::new(row), replayed: true }));
                    }
                    let state = loom.run(run).await.map_err(refuse_store_error)?.state;
                    let holder = loom.holder(run).await.map_err(refuse_store_error)?;
                    let now = loom.lease_now(self.clock.now().wall).await.map_err(refuse_store_error)?;
                    let is_alive = holder.is_some_and(|lease| now < lease.expires_at && !(self.is_gone)(&lease.owner));
                    match (state, is_alive) {
                        (RunState::Waiting, _) => return Ok(Some(DriveEnd::Waiting(Waiting::Interrupted))),
                        (_, true) => continue,
                        (_, false) => return Ok(None),
                    }
                }
            };
            let event = record.event().map_err(refuse_store_error)?;
            if let Event::JobClosed(_) = &event {
                let row = job_of_run(loom, run).await?;
                return Ok(Some(DriveEnd::Ended { row: Box::new(row), replayed: true }));
            } else if let Event::JobParked(parked) = &event {
                let waiting = match parked.error.clone() {
                    Some(fault) => Waiting::Crystal { fault, detail: None },
                    None => Waiting::Interrupted,
                };
                return Ok(Some(DriveEnd::Waiting(waiting)));
            } else if let Event::JobScored(scored) = &event {
                view.done += 1;
                view.whole = view.whole.max(view.done);
                view.unscored += u64::from(scored.unscored.is_some());
                view.own_failures += u64::from(scored.own_failure);
                self.tell(&view);
            } else if let Event::JobProgress(progress) = &event {
                view.spent = progress.spent;
                match &mut view.standing {
                    Some(standing) => standing.best_micro = progress.best,
                    None => view.mean_micro = progress.best,
                }
                self.tell(&view);
            }
        }
    }

    fn tell(&self, view: &JobProgressView) {
        if let Some(watcher) = &self.watcher {
            watcher.on_progress(view);
        }
    }

    /// Returns how far a job of another process is, as its rows tell it.
    async fn joined_view(&self, run: RunId, parts: &JobParts) -> Result<JobProgressView, Refusal> {
        let job = load(self.runtime.loom(), run).await?;
        let done = job.state.trials();
        Ok(JobProgressView {
            run,
            done,
            whole: parts.source.trials_at_worst(&job.state).min(job.row.bounds.max_calls.unwrap_or(u64::MAX)).max(done),
            proposals: job.state.proposal_count(),
            unscored: job.state.results().filter(|row| row.unscored.is_some()).count() as u64,
            own_failures: job.state.results().filter(|row| row.own_failure).count() as u64,
            mean_micro: None,
            optimiser: job.row.optimiser.clone(),
            standing: parts.source.standing(&job.state),
            spent: None,
            budget: job.row.bounds.budget,
            left_ms: None,
        })
    }
}
