//! Jobs as runs: resumed, continued and taken over like any other.
//!
//! A job is built again from its stored specification, so that any process can go on with it.

use std::sync::Arc;

use cantrip::canon::RunId;
use cantrip::loom::{Improvements, RunKind, WorkerId};
use cantrip::reply::{Refusal, codes};
use cantrip::{Cancel, CastReply, store_refusal};
use cantrip_ds::Predictor;
use cantrip_ds::contract::{JobRow, Subject};
use cantrip_ds::job::{JobContinuation, JobDriver, JobParts};
use cantrip_ds::limits::TRIALS_TOGETHER;

use crate::Service;

/// Returns true for a worker whose process has certainly ended.
pub(crate) type LivenessTest = Arc<dyn Fn(&WorkerId) -> bool + Send + Sync>;

impl Service {
    /// Returns this service with a test for dead workers, so that their jobs are taken over before their leases expire.
    /// It must return true only for a process that has certainly ended.
    #[must_use]
    pub fn with_liveness(self, is_gone: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        Self { is_gone: Arc::new(is_gone), ..self }
    }

    /// Returns a driver of jobs on the runtime of this service.
    pub fn job_driver(&self) -> JobDriver {
        let is_gone = Arc::clone(&self.is_gone);
        JobDriver::new(self.runtime().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
            .with_liveness(move |worker| is_gone(worker))
    }

    /// Returns the job of a run.
    pub async fn job_of_run(&self, run: RunId) -> Result<JobRow, Refusal> {
        self.own_run(run).await?;
        let found = self.runtime().loom().job_of_run(run).await.map_err(|error| store_refusal(&error))?;
        let other = || codes::wrong_state("run", run.to_string(), "no job", "going on with it", "a job");
        found.ok_or_else(|| other().into())
    }

    /// Returns true if the run is a job's.
    pub async fn is_job(&self, run: RunId) -> bool {
        self.own_run(run).await.is_ok_and(|view| view.kind == RunKind::Job)
    }

    /// Resumes a job that waits, that failed, or whose process is dead. The report of a job that has ended is read.
    pub async fn resume_job(
        &self,
        driver: &JobDriver,
        predictor: &Predictor,
        run: RunId,
        cancel: &Cancel,
    ) -> CastReply {
        match self.stored_parts(predictor, run).await {
            Ok(parts) => driver.resume(run, parts, TRIALS_TOGETHER, cancel).await.into(),
            Err(refusal) => self.refusal_reply("resume", refusal).await.into(),
        }
    }

    /// Reopens a job that ran out of its budget or was cancelled, under these bounds.
    pub async fn continue_job(
        &self,
        driver: &JobDriver,
        predictor: &Predictor,
        run: RunId,
        more: JobContinuation,
        cancel: &Cancel,
    ) -> CastReply {
        match self.stored_parts(predictor, run).await {
            Ok(parts) => driver.reopen(run, more, parts, TRIALS_TOGETHER, cancel).await.into(),
            Err(refusal) => self.refusal_reply("continue", refusal).await.into(),
        }
    }

    /// Builds a job again from its stored specification.
    async fn stored_parts(&self, predictor: &Predictor, run: RunId) -> Result<JobParts, Refusal> {
        let job = self.job_of_run(run).await?;
        self.job_parts(predictor, &job).await
    }

    /// Returns the name by which authorizations know the agent of a job: its signature, or its spell.
    pub async fn job_agent(&self, run: RunId) -> Result<String, Refusal> {
        Ok(match self.job_of_run(run).await?.subject {
            Subject::Signature(id) => id.to_string(),
            Subject::Spell(name) => name,
        })
    }
}
