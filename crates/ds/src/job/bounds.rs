//! The bounds of a job: money, trials, proposals, and how many trials run at the same time.

use cantrip::canon::Money;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::JobBounds;

use crate::limits::{TRIALS_TOGETHER, TRIALS_TOGETHER_MAX};

/// The bounds of a job. They are no part of its hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobLimits {
    /// The cap on the money of the job.
    pub budget: Option<Money>,
    /// The maximum number of trials.
    pub max_calls: Option<u64>,
    /// The maximum number of proposals.
    pub max_proposals: Option<u64>,
    /// The number of trials at the same time.
    pub concurrency: usize,
}

impl Default for JobLimits {
    fn default() -> Self {
        Self { budget: None, max_calls: None, max_proposals: None, concurrency: TRIALS_TOGETHER }
    }
}

impl JobLimits {
    /// Checks the number of trials at the same time.
    pub fn check(&self) -> Result<(), Refusal> {
        if (1..=TRIALS_TOGETHER_MAX).contains(&self.concurrency) {
            return Ok(());
        }
        let rule = format!("{} is not from 1 to {TRIALS_TOGETHER_MAX}", self.concurrency);
        Err(codes::schema("concurrency", "/concurrency", rule).into())
    }

    pub(super) fn bounds(&self) -> JobBounds {
        JobBounds { budget: self.budget, max_calls: self.max_calls }
    }
}

/// New bounds for a job that ran out of them or was cancelled. None keeps the bound as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobContinuation {
    /// The new budget of the whole job, with everything that it has spent.
    pub budget: Option<Money>,
    /// The new maximum number of trials of the whole job.
    pub max_calls: Option<u64>,
}
