//! The driver of jobs, as its callers see it.

use std::fmt;
use std::sync::Arc;

use cantrip::canon::{Clock, IdSource, RunId};
use cantrip::loom::WorkerId;
use cantrip::reply::Refusal;
use cantrip::spend::AuthorizationRef;
use cantrip::{Cancel, Runtime};
use cantrip_contract::{CandidateId, JobSpec};
use serde_json::Value;

use super::ask::AskSource;
use super::bounds::{JobContinuation, JobLimits};
use super::close::JobCloser;
use super::progress::JobWatcher;
use super::reply::JobReply;
use super::trial::{CandidateKeeper, NoCandidates, NoProposals, ProposalRunner, TrialRunner, TrialScorer};

/// The parts that make a job what it is. They are built from the job's specification alone, so that any process can
/// build them again.
#[derive(Clone)]
pub struct JobParts {
    pub source: Arc<dyn AskSource>,
    pub trials: Arc<dyn TrialRunner>,
    pub proposals: Arc<dyn ProposalRunner>,
    pub candidates: Arc<dyn CandidateKeeper>,
    pub scorer: Arc<dyn TrialScorer>,
    pub closer: Arc<dyn JobCloser>,
    /// The candidate whose running mean the progress shows.
    pub watched: Option<CandidateId>,
}

impl fmt::Debug for JobParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobParts").field("watched", &self.watched).finish_non_exhaustive()
    }
}

impl JobParts {
    /// Returns the parts of a job without proposals, whose candidates are there before it begins.
    pub fn new(
        source: impl AskSource + 'static,
        trials: impl TrialRunner + 'static,
        scorer: impl TrialScorer + 'static,
        closer: impl JobCloser + 'static,
    ) -> Self {
        Self {
            source: Arc::new(source),
            trials: Arc::new(trials),
            proposals: Arc::new(NoProposals),
            candidates: Arc::new(NoCandidates),
            scorer: Arc::new(scorer),
            closer: Arc::new(closer),
            watched: None,
        }
    }
}

/// A job that is to be started. Its dataset and its metric are stored before.
#[derive(Debug, Clone)]
#[must_use = "start it"]
pub struct JobRequest {
    pub spec: JobSpec,
    /// The plan as it was shown, which the first record of the job keeps.
    pub plan: Value,
    pub limits: JobLimits,
    pub owner: String,
    /// The authorization that pays for the whole job. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    /// Parks the job, hands it back, or ends it.
    pub cancel: Cancel,
    /// True to follow an equal job that another process drives until it ends. False to return at once.
    pub follow: bool,
    /// The id for the run of a new job, if the caller watches for it: a fresh id of the runtime.
    pub run: Option<RunId>,
}

impl JobRequest {
    /// Returns a request of the local owner, without bounds.
    pub fn new(spec: JobSpec) -> Self {
        Self {
            spec,
            plan: Value::Null,
            limits: JobLimits::default(),
            owner: "local".to_owned(),
            authorization: None,
            cancel: Cancel::new(),
            follow: true,
            run: None,
        }
    }
}

/// Drives jobs on a runtime. Cheap to clone.
#[derive(Clone)]
pub struct JobDriver {
    pub(super) runtime: Runtime,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) ids: Arc<IdSource>,
    pub(super) watcher: Option<Arc<dyn JobWatcher>>,
    pub(super) is_gone: Arc<dyn Fn(&WorkerId) -> bool + Send + Sync>,
}

impl fmt::Debug for JobDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDriver").field("runtime", &self.runtime).finish_non_exhaustive()
    }
}

impl JobDriver {
    /// Creates a driver. The clock and the ids must be those of the runtime.
    pub fn new(runtime: Runtime, clock: Arc<dyn Clock>, ids: Arc<IdSource>) -> Self {
        Self { runtime, clock, ids, watcher: None, is_gone: Arc::new(|_: &WorkerId| false) }
    }

    /// Returns this driver with a watcher of progress.
    #[must_use]
    pub fn with_watcher(&self, watcher: impl JobWatcher + 'static) -> Self {
        Self { watcher: Some(Arc::new(watcher)), ..self.clone() }
    }

    /// Returns this driver with a test for dead workers. It must return true only for a process that has certainly ended;
    /// the lease of any other has to expire.
    #[must_use]
    pub fn with_liveness(&self, is_gone: impl Fn(&WorkerId) -> bool + Send + Sync + 'static) -> Self {
        Self { is_gone: Arc::new(is_gone), ..self.clone() }
    }

    /// Starts a job and drives it to its end, or until it waits. If a job with the same hash exists, that one is joined,
    /// taken over, resumed or, if it has ended, read.
    pub async fn start(&self, request: JobRequest, parts: JobParts) -> JobReply {
        let (run, done) = match self.try_start(request, &parts).await {
            Ok((run, done)) => (Some(run), done),
            Err(refusal) => (None, Err(refusal)),
        };
        self.reply(run, done, &parts).await
    }

    /// Resumes a job that waits, that failed, or whose process is dead. The report of a job that has ended is read.
    pub async fn resume(&self, run: RunId, parts: JobParts, concurrency: usize, cancel: &Cancel) -> JobReply {
        let done = self.try_resume(run, &parts, concurrency, cancel).await;
        self.reply(Some(run), done, &parts).await
    }

    /// Reopens a job that ran out of its budget or was cancelled, under new bounds.
    pub async fn reopen(
        &self,
        run: RunId,
        more: JobContinuation,
        parts: JobParts,
        concurrency: usize,
        cancel: &Cancel,
    ) -> JobReply {
        let done: Result<_, Refusal> = self.try_reopen(run, more, &parts, concurrency, cancel).await;
        self.reply(Some(run), done, &parts).await
    }
}
