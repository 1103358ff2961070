//! The reply of a job: its report, or why it waits.

use cantrip::canon::{JobId, RunId};
use cantrip::reply::{Call, GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::{CastReply, Waiting};
use cantrip_contract::JobStatus;
use serde_json::{Value, json};

use super::drive::DriveEnd;
use super::driver::{JobDriver, JobParts};
use super::load::job_id_of;

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

impl JobDriver {
    /// Builds the reply for how the work on a job ended.
    pub(super) async fn reply(
        &self,
        run: Option<RunId>,
        done: Result<DriveEnd, Refusal>,
        parts: &JobParts,
    ) -> JobReply {
        let job_id = run.map(job_id_of);
        let (mut status, mut waiting, mut replayed, mut joined) = (None, None, false, false);
        let answer = match done {
            Ok(DriveEnd::Ended { row, replayed: read }) => {
                (status, replayed) = (Some(row.status), read);
                let data = json!({
                    "job_id": row.job_id, "run_id": row.run_id, "status": row.status, "replayed": read,
                });
                parts.closer.reply(&row, data).await
            }
            Ok(DriveEnd::Waiting(why)) => {
                let draft = waiting_reply(run, &why);
                waiting = Some(why);
                Ok(draft)
            }
            Ok(DriveEnd::Joined) => {
                joined = true;
                Ok(live_reply(run, json!({"state": "running", "joined": true})))
            }
            Err(refusal) => Err(refusal),
        };
        let call = match run {
            Some(run) => Call::surface("job").run(run).with_answer(),
            None => Call::surface("job").with_answer(),
        };
        let guarded = self.runtime.guard().call(call, |rb| async { rb.answer(answer) }).await;
        JobReply { guarded, run, job_id, status, waiting, replayed, joined }
    }
}

/// Returns the reply of a job that is not over.
fn live_reply(run: Option<RunId>, data: Value) -> ReplyDraft<Success> {
    let id = run.map(|run| job_id_of(run).to_string()).unwrap_or_default();
    codes::created("job", id.clone()).data(json!({"job_id": id, "run_id": run})).data(data)
}

/// Returns the reply of a job that waits, with the command that resumes it.
fn waiting_reply(run: Option<RunId>, waiting: &Waiting) -> ReplyDraft<Success> {
    let id = run.map(|run| run.to_string()).unwrap_or_default();
    let mut data = json!({
        "state": "waiting", "reason": waiting.reason(), "hint": format!("cantrip run resume {id}"),
    });
    match waiting {
        Waiting::Approval { approvals } => data["approvals"] = json!(approvals),
        Waiting::Crystal { fault, detail } => {
            data["fault"] = json!({"code": fault.mark.code, "message": fault.message, "detail": detail});
        }
        Waiting::Interrupted | Waiting::HandedBack => {}
    }
    live_reply(run, data)
}
