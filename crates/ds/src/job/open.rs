//! Starting, finding and reopening jobs.
//!
//! The row of a job is written in the step that opens its run, and its hash is unique there. So two equal starts at
//! once are one job: one of the two steps is written, and the other is told which job is there.

use std::time::Duration;

use cantrip::canon::json::canonical;
use cantrip::canon::{Money, RunId};
use cantrip::limits::LEASE_MS;
use cantrip::loom::{
    AppendOutcome, Conflict, ContractRow, Error, Improvements, JobContinued, JobOpened, Journal, Lease, Loom,
    PageRequest, RecordDraft, RecordValue, RunKind, RunOpening, Step, WorkerId,
};
use cantrip::reply::{Refusal, codes};
use cantrip::spend::{AuthorizationRef, LedgerFault, Operation, SetCap};
use cantrip::{Cancel, loom_id_for};
use cantrip_contract::{ContractFault, ImproveFault, ImproveRow, JobBounds, JobRow, JobStatus, JobUpdate};

use super::bounds::JobContinuation;
use super::drive::DriveEnd;
use super::driver::{JobDriver, JobParts, JobRequest};
use super::lease::{JobWrites, OwnedRun, step_id};
use super::load::{job_id_of, job_of_run, load};
use crate::predict::{actor, refuse_store_error};

/// The result of an attempt to open a job.
enum Opening {
    Opened(OwnedRun),
    /// An equal job is there.
    Exists(RunId),
}

impl JobDriver {
    /// Starts a job. Returns its run, and how the work on it ended.
    pub(super) async fn try_start(
        &self,
        request: JobRequest,
        parts: &JobParts,
    ) -> Result<(RunId, Result<DriveEnd, Refusal>), Refusal> {
        request.limits.check()?;
        let hash = request.spec.job_hash();
        let known = self.runtime.loom().job_of_hash(hash).await.map_err(refuse_store_error)?;
        let opening = match known {
            Some(row) => Opening::Exists(row.run_id),
            None => self.open(&request).await?,
        };
        match opening {
            Opening::Opened(owned) => {
                let run = owned.run();
                Ok((run, self.drive(owned, parts, request.limits.concurrency, &request.cancel).await))
            }
            Opening::Exists(run) => Ok((run, self.go_on(run, parts, &request).await)),
        }
    }

    /// Opens the run of a new job: its record, its row and its cap in one step.
    async fn open(&self, request: &JobRequest) -> Result<Opening, Refusal> {
        let payer = self.payer(&request.owner, request.authorization, &request.spec.of).await?.id;
        let now = self.clock.now().wall;
        let run: RunId = request.run.unwrap_or_else(|| self.ids.next(now));
        let (job_id, spec) = (job_id_of(run), &request.spec);
        let content = spec.content();
        let text = canonical(&content).map_err(|fault| codes::schema("the job", "", fault.to_string()))?;
        let mut bodies = Vec::new();
        let opened = JobOpened {
            job_id,
            job_hash: spec.job_hash(),
            job_kind: spec.kind,
            subject: spec.of.clone(),
            spec: RecordValue::new(content, &mut bodies).map_err(refuse_store_error)?,
            plan: RecordValue::new(request.plan.clone(), &mut bodies).map_err(refuse_store_error)?,
            bounds: request.limits.bounds(),
            max_proposals: request.limits.max_proposals,
            authorization: Some(payer.to_string()),
            scope: request.limits.budget.map(|_| run.to_string()),
        };
        let row = JobRow {
            job_id,
            job_hash: spec.job_hash(),
            kind: spec.kind,
            subject: spec.of.clone(),
            dataset_hash: spec.dataset_hash,
            metric_hash: spec.metric_hash(),
            split: spec.split,
            run_id: run,
            spec: text,
            optimiser: spec.optimiser.as_ref().map(|optimiser| optimiser.id.clone()),
            bounds: request.limits.bounds(),
            status: JobStatus::Running,
            metric_calls: 0,
            proposals: 0,
            error: None,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
        };
        let loom = self.runtime.loom();
        let expires_at = loom.lease_now(now).await.map_err(refuse_store_error)?.after(Duration::from_millis(LEASE_MS));
        let lease = Lease::first(run, self.runtime.worker_id().clone(), expires_at);
        let opening = RunOpening {
            kind: RunKind::Job,
            loom_id: loom_id_for(&spec.of.to_string()),
            owner: actor(&request.owner)?,
            entity_id: None,
            root_run_id: None,
        };
        let mut step = Step::open_run(step_id(&lease, 1), run, Some(lease.clone()))
            .record(RecordDraft::opening(now, opening, opened).map_err(refuse_store_error)?)
            .contract(ContractRow::Improve(Box::new(ImproveRow::Job(Box::new(row)))))
            .bodies(bodies);
        if let Some(budget) = request.limits.budget {
            step = step.money(Operation::SetCap(job_cap(payer, run, budget)));
        }
        match loom.append(step).await.map_err(refuse_store_error)? {
            AppendOutcome::Committed(_) => Ok(Opening::Opened(OwnedRun::new(&self.runtime, &self.clock, lease, 1))),
            AppendOutcome::Conflict(Conflict::Contract(fault)) => {
                if let ContractFault::Improve(ImproveFault::JobExists { run_id, .. }) = &*fault {
                    return Ok(Opening::Exists(*run_id));
                }
                Err(fault.refusal())
            }
            AppendOutcome::Conflict(Conflict::Money { fault, .. }) => {
                Err(budget_fault(&request.limits.bounds(), &fault))
            }
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }

    /// Goes on with an equal job that is there: joins it, takes it over, or reads its end.
    async fn go_on(&self, run: RunId, parts: &JobParts, request: &JobRequest) -> Result<DriveEnd, Refusal> {
        loop {
            let row = job_of_run(self.runtime.loom(), run).await?;
            if row.status.is_end() {
                return Ok(DriveEnd::Ended { row: Box::new(row), replayed: true });
            }
            match self.acquire(run).await? {
                Some(owned) => return self.drive(owned, parts, request.limits.concurrency, &request.cancel).await,
                None if !request.follow => return Ok(DriveEnd::Joined),
                None => {
                    if let Some(done) = self.follow(run, parts, &request.cancel).await? {
                        return Ok(done);
                    }
                }
            }
        }
    }

    /// Acquires the run of a job, also from a process that is certainly dead. Returns none if another process drives it.
    pub(super) async fn acquire(&self, run: RunId) -> Result<Option<OwnedRun>, Refusal> {
        let owners = self.runtime.loom().lease_owners().await.map_err(refuse_store_error)?;
        for owner in owners.into_iter().filter(|owner| (self.is_gone)(owner)) {
            self.release_dead(owner).await?;
        }
        match OwnedRun::acquire(&self.runtime, &self.clock, run).await {
            Ok(owned) => Ok(Some(owned)),
            Err(Error::LeaseHeld { .. }) => Ok(None),
            Err(error) => Err(refuse_store_error(error)),
        }
    }

    /// Releases every lease of a dead process: those of its jobs, and those of their trials.
    async fn release_dead(&self, owner: WorkerId) -> Result<(), Refusal> {
        let loom = self.runtime.loom();
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = loom.leases_of(owner.clone(), page).await.map_err(refuse_store_error)?;
            for lease in &listed.items {
                loom.release(lease).await.map_err(refuse_store_error)?;
            }
            next = page.following(listed.next);
        }
        Ok(())
    }

    pub(super) async fn try_resume(
        &self,
        run: RunId,
        parts: &JobParts,
        concurrency: usize,
        cancel: &Cancel,
    ) -> Result<DriveEnd, Refusal> {
        let row = job_of_run(self.runtime.loom(), run).await?;
        let reopens = row.status == JobStatus::Failed;
        if row.status.is_end() && !reopens {
            return Ok(DriveEnd::Ended { row: Box::new(row), replayed: true });
        }
        let owned = self.acquire(run).await?.ok_or_else(|| busy(run))?;
        if reopens {
            let bounds = row.bounds.clone();
            self.write_continuation(&owned, bounds, None).await?;
        }
        self.drive(owned, parts, concurrency, cancel).await
    }

    pub(super) async fn try_reopen(
        &self,
        run: RunId,
        more: JobContinuation,
        parts: &JobParts,
        concurrency: usize,
        cancel: &Cancel,
    ) -> Result<DriveEnd, Refusal> {
        let row = job_of_run(self.runtime.loom(), run).await?;
        let wrong = |state: &str| {
            codes::wrong_state("job", row.job_id.to_string(), state, "continue", "budget_exhausted or cancelled")
        };
        match row.status {
            JobStatus::BudgetExhausted | JobStatus::Cancelled | JobStatus::Failed => {}
            JobStatus::Queued | JobStatus::Running | JobStatus::Succeeded | JobStatus::Incomplete => {
                return Err(wrong(row.status.as_str()).into());
            }
        }
        let bounds = more.over(&row.bounds)?;
        let owned = self.acquire(run).await?.ok_or_else(|| busy(run))?;
        let job = load(self.runtime.loom(), run).await?;
        let raised = bounds.budget.filter(|budget| Some(*budget) != row.bounds.budget);
        let cap = match (raised, job.terms.authorization) {
            (Some(budget), Some(payer)) => Some(job_cap(payer, run, budget)),
            (Some(_) | None, _) => None,
        };
        self.write_continuation(&owned, bounds, cap).await?;
        self.drive(owned, parts, concurrency, cancel).await
    }

    /// Writes that a job goes on, which makes its run live again.
    async fn write_continuation(
        &self,
        owned: &OwnedRun,
        bounds: JobBounds,
        cap: Option<SetCap>,
    ) -> Result<(), Refusal> {
        let by = self.runtime.loom().run(owned.run()).await.map_err(refuse_store_error)?.owner;
        let row = job_of_run(self.runtime.loom(), owned.run()).await?;
        let update = JobUpdate {
            job_id: row.job_id,
            status: JobStatus::Running,
            metric_calls: row.metric_calls,
            proposals: row.proposals,
            bounds: Some(bounds.clone()),
            error: None,
            at: self.clock.now().wall,
        };
        let writes = JobWrites {
            events: vec![JobContinued { by, bounds: bounds.clone(), max_proposals: None }.into()],
            rows: vec![ImproveRow::JobMoved(Box::new(update))],
            bodies: Vec::new(),
            money: cap.into_iter().map(Operation::SetCap).collect(),
        };
        match owned.append(writes).await.map_err(refuse_store_error)? {
            AppendOutcome::Committed(_) => Ok(()),
            AppendOutcome::Conflict(Conflict::Money { fault, .. }) => {
                owned.release().await;
                Err(budget_fault(&bounds, &fault))
            }
            AppendOutcome::Conflict(Conflict::Contract(fault)) => {
                owned.release().await;
                Err(fault.refusal())
            }
            AppendOutcome::Conflict(_)
            | AppendOutcome::Refused(_)
            | AppendOutcome::Wait
            | AppendOutcome::Fenced { .. } => Err(codes::crash().into()),
        }
    }
}

/// Returns the cap of a job: its scope is the run of the job.
fn job_cap(authorization: AuthorizationRef, run: RunId, limit: Money) -> SetCap {
    SetCap { authorization, scope: run.to_string(), parent: None, limit }
}

fn busy(run: RunId) -> Refusal {
    codes::busy("job", run.to_string(), "another process").into()
}

/// Returns the refusal of a budget that the ledger does not take: another currency than the authorization's, or less
/// than before.
fn budget_fault(bounds: &JobBounds, fault: &LedgerFault) -> Refusal {
    let budget = bounds.budget.map(|budget| budget.to_string()).unwrap_or_default();
    codes::config_invalid("budget", budget, fault.to_string()).into()
}
