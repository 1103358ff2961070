//! The end of a job: the facts that its report is made of, and the rows that close it.

use cantrip::canon::{JobId, RunId, Timestamp};
use cantrip::loom::{Body, RecordedError};
use cantrip::reply::{Refusal, ReplyDraft, Success};
use cantrip_contract::{CandidateId, EvalId, ImproveRow, JobBounds, JobRow, JobSpec, JobStatus, ReportId};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::ask::JobState;

/// The way in which the driver ends a job.
#[derive(Debug, Clone, PartialEq)]
pub enum JobEndKind {
    /// Everything that was asked for is done. The candidate is that of [`Ask::Done`](super::Ask::Done).
    Done(Option<CandidateId>),
    BudgetExhausted,
    Cancelled,
    Failed,
}

/// A job that is about to be closed.
#[derive(Debug)]
pub struct JobEnd<'a> {
    pub job_id: JobId,
    pub run: RunId,
    pub spec: &'a JobSpec,
    /// Every result of the job.
    pub state: &'a JobState,
    pub kind: JobEndKind,
    /// The reason, if the job did not do everything.
    pub error: Option<RecordedError>,
    /// The bounds of the job as they are now.
    pub bounds: &'a JobBounds,
    pub max_proposals: Option<u64>,
    pub opened_at: Timestamp,
    /// The time of the close, which is the time of the report.
    pub at: Timestamp,
}

/// The rows that close a job.
#[derive(Debug, Default)]
pub struct JobClosing {
    /// The status, where the closer knows better than the driver: `incomplete`.
    pub status: Option<JobStatus>,
    /// The report, written in the step of `job.closed`.
    pub rows: Vec<ImproveRow>,
    pub bodies: Vec<Body>,
    pub report_id: Option<ReportId>,
    pub eval_id: Option<EvalId>,
}

/// Makes the report of a job, and its reply.
pub trait JobCloser: Send + Sync {
    /// Returns the rows of the report. Called again if the store had changed so that they do not fit any more: another
    /// look at the same test split came between.
    fn close<'a>(&'a self, end: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>>;

    /// Returns the reply of a job that has ended, from its stored rows. `data` has `job_id`, `run_id`, `status` and
    /// `replayed`, and belongs in the reply.
    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>>;
}
