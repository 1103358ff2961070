//! One process drives a job: it asks, tries, writes, and closes or parks it.
//!
//! The loop holds nothing that is not in the store. A process that takes the job over loads the rows, computes the same
//! Ask, finds the trials that were begun under their keys, and goes on.

use std::convert::Infallible;
use std::sync::Mutex;

use cantrip::canon::Hash;
use cantrip::loom::{
    AppendOutcome, Conflict, JobAsked, JobClosed, JobParked, JobProposed, ParkReason, RecordValue, RecordedError,
};
use cantrip::reply::{Call, Refusal, codes};
use cantrip::{Cancel, StopLevel, Waiting};
use cantrip_contract::{CandidateId, ImproveRow, JobBounds, JobRow, JobStatus, JobUpdate};
use futures_util::StreamExt;
use futures_util::stream;

use super::ask::{Ask, JobStanding, JobState, Proposal, Proposed, Trial};
use super::close::{JobClosing, JobEnd, JobEndKind};
use super::context::{JobContext, purpose_of};
use super::decide::was_at_bounds;
use super::driver::{JobDriver, JobParts};
use super::funds::Promises;
use super::lease::{JobWrites, OwnedRun};
use super::load::{JobTerms, LoadedJob, job_of_run, load};
use super::progress::ProgressTracker;
use super::trial::{JobStop, TrialCall};
use crate::limits::{CLOSE_TRIES_MAX, TRIAL_TRIES_MAX, TRIALS_TOGETHER_MAX};
use crate::predict::refuse_store_error;

/// The candidate that a job chose, if it chooses one.
type Selected = Option<CandidateId>;

/// How the work of this process on a job ended.
#[derive(Debug)]
pub(super) enum DriveEnd {
    /// The job has ended, now or before.
    Ended { row: Box<JobRow>, replayed: bool },
    /// The job waits.
    Waiting(Waiting),
    /// Another process drives the job.
    Joined,
}

/// A job that this process drives.
pub(super) struct ActiveJob<'a> {
    pub driver: &'a JobDriver,
    pub parts: &'a JobParts,
    pub owned: &'a OwnedRun,
    pub context: JobContext,
    pub state: JobState,
    pub bounds: JobBounds,
    pub terms: JobTerms,
    pub promises: Promises,
    pub progress: Mutex<ProgressTracker>,
    pub concurrency: usize,
    /// The reason why the bounds do not allow the next Ask. What was set aside is still done.
    pub at_bounds: Option<String>,
    /// The standing of a search, after its last Ask.
    pub standing: Option<JobStanding>,
    asks: u64,
    last_ask: Option<Hash>,
}

impl JobDriver {
    /// Drives a job until it ends or waits, and releases its lease.
    pub(super) async fn drive(
        &self,
        owned: OwnedRun,
        parts: &JobParts,
        concurrency: usize,
        cancel: &Cancel,
    ) -> Result<DriveEnd, Refusal> {
        let done = self.drive_owned(&owned, parts, concurrency, cancel).await;
        owned.release().await;
        done
    }

    async fn drive_owned(
        &self,
        owned: &OwnedRun,
        parts: &JobParts,
        concurrency: usize,
        cancel: &Cancel,
    ) -> Result<DriveEnd, Refusal> {
        let job = load(self.runtime.loom(), owned.run()).await?;
        if job.is_cancel_requested {
            cancel.cancel();
        }
        let newest = job.newest;
        let context = JobContext {
            job_id: job.row.job_id,
            run: owned.run(),
            job_hash: job.row.job_hash,
            owner: job.owner.clone(),
            authorization: job.terms.authorization,
            purpose: purpose_of(job.row.kind),
            opened_at: job.opened_at,
            cancel: Cancel::new(),
        };
        let trials = context.cancel.clone();
        let active = ActiveJob::new(self, parts, owned, context, job, concurrency);
        // Stop requests are polled first: a caller that stops a job before it goes on must not see it go on.
        tokio::select! { biased;
            never = forward_stops(cancel, &trials) => match never {},
            done = active.work(cancel) => done,
            lost = owned.keep(cancel, newest) => {
                trials.hand_back();
                Err(refuse_store_error(lost))
            }
        }
    }
}

/// Passes the requests of the job's caller on to its trials. Never returns.
async fn forward_stops(from: &Cancel, to: &Cancel) -> Infallible {
    if from.wait_for_level(StopLevel::HandBack).await == StopLevel::HandBack {
        to.hand_back();
    }
    if from.wait_for_level(StopLevel::Park).await == StopLevel::Park {
        to.park();
    }
    from.wait_for_level(StopLevel::Cancel).await;
    to.cancel();
    std::future::pending().await
}

impl<'a> ActiveJob<'a> {
    fn new(
        driver: &'a JobDriver,
        parts: &'a JobParts,
        owned: &'a OwnedRun,
        context: JobContext,
        job: LoadedJob,
        concurrency: usize,
    ) -> Self {
        let LoadedJob { row, state, terms, asks, last_ask, .. } = job;
        let bound = row.bounds.max_calls.unwrap_or(u64::MAX);
        let whole = parts.source.trials_at_worst(&state).min(bound).max(state.trials());
        let now = driver.clock.now().monotonic;
        let progress = Mutex::new(ProgressTracker::new(&state, parts.watched.as_ref(), whole, now));
        let at_bounds = was_at_bounds(parts, &state, last_ask);
        let standing = parts.source.standing(&state);
        Self {
            driver,
            parts,
            owned,
            context,
            state,
            bounds: row.bounds,
            terms,
            promises: Promises::default(),
            progress,
            concurrency,
            at_bounds,
            standing,
            asks,
            last_ask,
        }
    }

    /// Does what the source asks for until the job ends or waits.
    async fn work(mut self, cancel: &Cancel) -> Result<DriveEnd, Refusal> {
        self.tell_progress();
        loop {
            let done = self.step().await;
            let stopped = match (done, self.at_bounds.clone()) {
                (Ok(None), _) => continue,
                (Ok(Some(selected)), None) => return self.close(JobEndKind::Done(selected), None).await,
                (Ok(Some(_)), Some(message)) => match self.parts.source.next(&self.state) {
                    // The bounds were short of the final test alone, and it was paid all the same.
                    Ask::Done(selected) => return self.close(JobEndKind::Done(selected), None).await,
                    Ask::Propose(_) | Ask::Try(_) => JobStop::BudgetExhausted { message },
                },
                // The final trials are made before the job ends.
                (Err(JobStop::BudgetExhausted { message }), None) => {
                    self.at_bounds = Some(message);
                    continue;
                }
                (Err(stopped), _) => stopped,
            };
            return match (stopped, cancel.level()) {
                (JobStop::Failed(refusal), _) => {
                    let error = self.recorded(refusal).await;
                    self.close(JobEndKind::Failed, Some(error)).await
                }
                (_, StopLevel::Cancel) => {
                    self.end_trials().await?;
                    let refusal = codes::ended_from_outside(self.context.owner.as_str(), "cancelled");
                    let error = self.recorded(refusal.into()).await;
                    self.close(JobEndKind::Cancelled, Some(error)).await
                }
                (JobStop::BudgetExhausted { message }, _) => {
                    let error = RecordedError::new(codes::BUDGET_SPENT.any(), message);
                    self.close(JobEndKind::BudgetExhausted, Some(error)).await
                }
                (JobStop::Waiting(waiting), _) => self.park(waiting).await,
                (JobStop::Stopped, StopLevel::HandBack) => self.park(Waiting::HandedBack).await,
                (JobStop::Stopped, StopLevel::Park | StopLevel::Continue) => self.park(Waiting::Interrupted).await,
            };
        }
    }

    /// Does one Ask. Returns the chosen candidate if there is nothing more to ask.
    async fn step(&mut self) -> Result<Option<Selected>, JobStop> {
        if self.context.cancel.level() != StopLevel::Continue {
            return Err(JobStop::Stopped);
        }
        self.write_decided().await.map_err(JobStop::Failed)?;
        let ask = self.next_ask();
        let digest = ask.digest().map_err(JobStop::Failed)?;
        match &ask {
            Ask::Done(selected) => return Ok(Some(selected.clone())),
            Ask::Try(trials) => {
                let missing: Vec<Trial> =
                    trials.iter().filter(|trial| self.state.result(trial).is_none()).cloned().collect();
                self.issue(digest, missing.len() as u64, 0).await?;
                self.parts.candidates.keep(&ask, &self.state, &self.context).await.map_err(JobStop::Failed)?;
                self.try_all(&missing, self.concurrency).await?;
            }
            Ask::Propose(proposals) => {
                let missing: Vec<Proposal> =
                    proposals.iter().filter(|one| self.state.proposed(one.number).is_none()).cloned().collect();
                self.issue(digest, 0, missing.len() as u64).await?;
                self.propose_all(missing).await?;
                self.tell_progress();
            }
        }
        self.standing = self.parts.source.standing(&self.state);
        Ok(None)
    }

    /// Returns the next Ask: what the source asks for, or what was set aside if the bounds allow no more of that.
    fn next_ask(&self) -> Ask {
        if self.at_bounds.is_none() {
            return self.parts.source.next(&self.state);
        }
        let trials = self.parts.source.final_trials(&self.state);
        let is_done = trials.iter().all(|trial| self.state.result(trial).is_some());
        if is_done { Ask::Done(None) } else { Ask::Try(trials) }
    }

    /// Ends the trials that were begun and left when the job was parked: they would wait for ever. Trials begin in the
    /// order of their Ask, so they are among the first that have no result.
    async fn end_trials(&self) -> Result<(), Refusal> {
        let Ask::Try(trials) = self.next_ask() else { return Ok(()) };
        let left = trials.iter().filter(|trial| self.state.result(trial).is_none()).take(TRIALS_TOGETHER_MAX);
        for trial in left {
            for try_number in 1..=TRIAL_TRIES_MAX {
                let key = self.context.key(trial, try_number);
                let call = TrialCall { trial, try_number, key: &key, context: &self.context };
                self.parts.trials.end(call).await?;
            }
        }
        Ok(())
    }

    /// Records an Ask after its bounds are checked. An Ask that is on record was checked before, with the counts of that
    /// time; it is not checked again, so that a job that was killed ends as one that was not.
    async fn issue(&mut self, digest: Hash, trials: u64, proposals: u64) -> Result<(), JobStop> {
        if trials == 0 && proposals == 0 {
            let why = "the source asked for what has a result".to_owned();
            return Err(JobStop::Failed(codes::contract_invalid(why).into()));
        }
        if self.last_ask == Some(digest) {
            return Ok(());
        }
        self.check_ask(trials, proposals).await?;
        let number = self.asks + 1;
        let asked = JobAsked { number, digest, trials, proposals };
        self.write(JobWrites { events: vec![asked.into()], ..JobWrites::default() }).await.map_err(JobStop::Failed)?;
        (self.asks, self.last_ask) = (number, Some(digest));
        Ok(())
    }

    /// Makes proposals, some at a time, and records each.
    async fn propose_all(&mut self, proposals: Vec<Proposal>) -> Result<(), JobStop> {
        let mut made = Vec::new();
        {
            let this = &*self;
            let going = stream::iter(proposals).map(|proposal| this.propose(proposal));
            let mut going = std::pin::pin!(going.buffer_unordered(this.concurrency));
            while let Some(proposed) = going.next().await {
                made.push(proposed?);
            }
        }
        made.into_iter().for_each(|proposed| self.state.add_proposal(proposed));
        Ok(())
    }

    async fn propose(&self, proposal: Proposal) -> Result<Proposed, JobStop> {
        let key = format!("job:{}:proposal:{}", self.context.job_hash.hex(32), proposal.number);
        let proposed = self.parts.proposals.propose(&proposal, &key, &self.context).await?;
        let mut bodies = Vec::new();
        let stored = |error| JobStop::Failed(refuse_store_error(error));
        let event = JobProposed {
            number: proposed.number,
            component: proposed.component.clone(),
            text: RecordValue::new(proposed.text.clone(), &mut bodies).map_err(stored)?,
            receipt_id: proposed.receipt_id.clone(),
            rejected: proposed.rejected.clone(),
        };
        let writes = JobWrites { events: vec![event.into()], bodies, ..JobWrites::default() };
        self.write(writes).await.map_err(JobStop::Failed)?;
        Ok(proposed)
    }

    /// Writes a step that must be written.
    pub(super) async fn write(&self, writes: JobWrites) -> Result<(), Refusal> {
        match self.owned.append(writes).await.map_err(refuse_store_error)? {
            AppendOutcome::Committed(_) => Ok(()),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => Err(fault.refusal()),
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Err(self.driven_elsewhere()),
        }
    }

    /// Returns the refusal of a write under a lease that another process has taken over.
    pub(super) fn driven_elsewhere(&self) -> Refusal {
        codes::busy("job", self.context.run.to_string(), "another process").into()
    }

    /// Returns a refusal as records keep it.
    async fn recorded(&self, refusal: Refusal) -> RecordedError {
        let call = Call::surface("job").run(self.context.run);
        let reply = self.driver.runtime.guard().call(call, |rb| async { rb.refuse(refusal) }).await.reply;
        RecordedError::new(reply.code(), reply.message())
    }

    fn update(&self, status: JobStatus, error: Option<String>) -> ImproveRow {
        ImproveRow::JobMoved(Box::new(JobUpdate {
            job_id: self.context.job_id,
            status,
            metric_calls: self.state.trials(),
            proposals: self.state.proposal_count(),
            bounds: None,
            error,
            at: self.driver.clock.now().wall,
        }))
    }

    /// Parks the job. Its row still says that it runs; the state of its run says that it waits.
    async fn park(&self, waiting: Waiting) -> Result<DriveEnd, Refusal> {
        let (reason, error) = match &waiting {
            Waiting::Crystal { fault, .. } => (ParkReason::CrystalUnavailable, Some(fault.clone())),
            Waiting::Approval { .. } => {
                let message = "a trial waits for an approval";
                (ParkReason::Interrupted, Some(RecordedError::new(codes::NOT_AUTHORIZED.any(), message)))
            }
            Waiting::Interrupted => (ParkReason::Interrupted, None),
            Waiting::HandedBack => (ParkReason::HandedBack, None),
        };
        let writes = JobWrites {
            events: vec![JobParked { reason, error, detail: None }.into()],
            rows: vec![self.update(JobStatus::Running, None)],
            ..JobWrites::default()
        };
        self.write(writes).await?;
        Ok(DriveEnd::Waiting(waiting))
    }

    /// Closes the job with its report. If another report came first, the report is made again.
    async fn close(&self, kind: JobEndKind, error: Option<RecordedError>) -> Result<DriveEnd, Refusal> {
        let status = match &kind {
            JobEndKind::Done(_) => JobStatus::Succeeded,
            JobEndKind::BudgetExhausted => JobStatus::BudgetExhausted,
            JobEndKind::Cancelled => JobStatus::Cancelled,
            JobEndKind::Failed => JobStatus::Failed,
        };
        for _ in 0..CLOSE_TRIES_MAX {
            let end = JobEnd {
                job_id: self.context.job_id,
                run: self.context.run,
                spec: &self.state.spec,
                state: &self.state,
                kind: kind.clone(),
                error: error.clone(),
                bounds: &self.bounds,
                max_proposals: self.terms.max_proposals,
                opened_at: self.context.opened_at,
                at: self.driver.clock.now().wall,
            };
            let (closing, status, error) = match self.parts.closer.close(&end).await {
                Ok(closing) => {
                    let status = closing.status.unwrap_or(status);
                    (closing, status, error.clone())
                }
                // A report that cannot be made is a failure of the job.
                Err(refusal) => (JobClosing::default(), JobStatus::Failed, Some(self.recorded(refusal).await)),
            };
            let JobClosing { mut rows, bodies, report_id, eval_id, .. } = closing;
            let told = error.as_ref().map(|error| format!("{}: {}", error.mark.code, error.message));
            rows.push(self.update(status, told));
            let closed = JobClosed { job_id: self.context.job_id, status, report_id, eval_id, error };
            let writes = JobWrites { events: vec![closed.into()], rows, bodies, money: Vec::new() };
            match self.owned.append(writes).await.map_err(refuse_store_error)? {
                AppendOutcome::Committed(_) => {
                    if let JobEndKind::Done(_) = &kind {
                        self.end_progress();
                    }
                    self.tell_progress();
                    let row = job_of_run(self.driver.runtime.loom(), self.context.run).await?;
                    return Ok(DriveEnd::Ended { row: Box::new(row), replayed: false });
                }
                AppendOutcome::Conflict(Conflict::Contract(fault)) => {
                    tracing::debug!(run = %self.context.run, %fault, "the report of a job is made again");
                }
                AppendOutcome::Conflict(_)
                | AppendOutcome::Refused(_)
                | AppendOutcome::Wait
                | AppendOutcome::Fenced { .. } => return Err(self.driven_elsewhere()),
            }
        }
        Err(codes::contract_invalid("the report of the job does not fit the store".to_owned()).into())
    }
}
