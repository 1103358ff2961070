//! The reply of a job: its report, or why it waits.

use cantrip::canon::{JobId, RunId};
use cantrip::reply::GuardedReply;
use cantrip::{CastReply, Waiting};
use cantrip_contract::JobStatus;

/// The reply of a job that was started, joined, resumed or continued.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct JobReply {
    pub guarded: GuardedReply,
    /// The run of the job; none if nothing was opened.
    pub run: Option<RunId>,
    pub job_id: Option<JobId>,
    /// The status of a job that has ended; none while it runs elsewhere or waits.
    pub status: Option<JobStatus>,
    pub waiting: Option<Waiting>,
    /// True if the job had ended before, and its report was read.
    pub replayed: bool,
    /// True if another process drives the job.
    pub joined: bool,
}

impl From<JobReply> for CastReply {
    fn from(reply: JobReply) -> Self {
        CastReply { waiting: reply.waiting, run: reply.run, ..reply.guarded.into() }
    }
}
