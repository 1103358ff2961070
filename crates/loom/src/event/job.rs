//! The records of jobs.

use cantrip_canon::{Hash, JobId, Money};
use cantrip_contract::{
    CandidateId, EvalId, ExampleId, JobBounds, JobKind, JobStatus, ReceiptId, ReportId, Subject, Unscored,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Actor, ParkReason, RecordValue, RecordedError};

/// `job.opened`: a job begins, and its run with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobOpened {
    pub job_id: JobId,
    pub job_hash: Hash,
    pub job_kind: JobKind,
    pub subject: Subject,
    /// The content that has the job's hash.
    pub spec: RecordValue<Value>,
    /// The plan that was shown before the first call.
    pub plan: RecordValue<Value>,
    pub bounds: JobBounds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_proposals: Option<u64>,
    /// The authorization that pays for the job, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<String>,
    /// The scope whose cap is the budget of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

/// `job.continued`: a job that ended without a result goes on, perhaps under other bounds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobContinued {
    pub by: Actor,
    pub bounds: JobBounds,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_proposals: Option<u64>,
}

/// `job.asked`: what the job does next. Everything in it is done before the next one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAsked {
    /// From 1.
    pub number: u64,
    /// The hash of what is asked, which depends on nothing but the job and the results before it.
    pub digest: Hash,
    pub trials: u64,
    pub proposals: u64,
}

/// `job.proposed`: a model proposed a text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProposed {
    /// The number of the proposal within the job, from 1.
    pub number: u64,
    pub component: String,
    pub text: RecordValue<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<ReceiptId>,
    /// The reason why the text is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<String>,
}

/// `job.scored`: a trial has a score, or finally has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobScored {
    pub candidate_id: CandidateId,
    pub example_id: ExampleId,
    pub epoch: u64,
    #[serde(rename = "try")]
    pub try_number: u64,
    /// In millionths.
    pub score: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receipt_id: Option<ReceiptId>,
}

/// `job.accepted`: it was decided whether a candidate is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobAccepted {
    pub candidate_id: CandidateId,
    pub ordinal: u64,
    pub accepted: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `job.progress`: how far the job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProgress {
    pub trials: u64,
    /// The number of trials at worst.
    pub of: u64,
    pub proposals: u64,
    /// The best mean so far, in millionths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Money>,
}

/// `job.parked`: the run of a job is parked. Its lease is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobParked {
    pub reason: ParkReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
    /// The provider's own error text, if the message of the error does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// `job.closed`: a job is over, and its run with it. A job that ended without a result can be continued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobClosed {
    pub job_id: JobId,
    pub status: JobStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_id: Option<ReportId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_id: Option<EvalId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RecordedError>,
}

impl JobClosed {
    /// Returns true if the run of the job can go on: see [`JobStatus::can_reopen`].
    pub fn can_reopen(&self) -> bool {
        self.status.can_reopen()
    }
}
