//! Jobs as rows.

use cantrip_canon::{Hash, JobId, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::report_row::read_hashed;
use crate::{AlteredRow, EvalStatus, Split, Subject};

/// The task of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobKind {
    Eval,
    Compile,
}

impl JobKind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Eval => "eval",
            Self::Compile => "compile",
        }
    }
}

/// The progress of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    Queued,
    Running,
    Succeeded,
    Incomplete,
    BudgetExhausted,
    Cancelled,
    Failed,
}

impl JobStatus {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Incomplete => "incomplete",
            Self::BudgetExhausted => "budget_exhausted",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// Returns true if the job has ended.
    pub const fn is_end(self) -> bool {
        !matches!(self, Self::Queued | Self::Running)
    }

    /// Returns true if a job that ended so can go on.
    pub const fn can_reopen(self) -> bool {
        matches!(self, Self::BudgetExhausted | Self::Cancelled | Self::Failed)
    }
}

impl From<EvalStatus> for JobStatus {
    fn from(status: EvalStatus) -> Self {
        match status {
            EvalStatus::Succeeded => Self::Succeeded,
            EvalStatus::Incomplete => Self::Incomplete,
            EvalStatus::BudgetExhausted => Self::BudgetExhausted,
            EvalStatus::Cancelled => Self::Cancelled,
            EvalStatus::Failed => Self::Failed,
        }
    }
}

/// The bounds of a job. They are no part of its hash, so a job that ran out can go on under larger ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobBounds {
    pub budget: Option<Money>,
    pub max_calls: Option<u64>,
}

/// A stored job. Its bounds, its status and its counts change; the rest stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    pub job_id: JobId,
    pub job_hash: Hash,
    pub kind: JobKind,
    pub subject: Subject,
    pub dataset_hash: Hash,
    pub metric_hash: Hash,
    pub split: Split,
    /// The run of the job, which the same step opens.
    pub run_id: RunId,
    /// The canonical text that has the job's hash.
    pub spec: String,
    pub optimiser: Option<String>,
    pub bounds: JobBounds,
    pub status: JobStatus,
    /// The number of trials that were scored or finally left unscored.
    pub metric_calls: u64,
    pub proposals: u64,
    /// The reason why the job ended, if it did not succeed.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
}

impl JobRow {
    /// Returns the specification as a value, if it still has its hash.
    pub fn spec(&self) -> Result<Value, AlteredRow> {
        read_hashed("job", self.job_id.to_string(), &self.spec, self.job_hash, "job_hash")
    }
}

/// A change of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobUpdate {
    pub job_id: JobId,
    /// An end sets the time at which the job finished; [`JobStatus::Running`] after an end takes it and the error away.
    pub status: JobStatus,
    pub metric_calls: u64,
    pub proposals: u64,
    /// The new bounds; none if they stay as they are.
    pub bounds: Option<JobBounds>,
    pub error: Option<String>,
    pub at: Timestamp,
}
