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

impl JobContinuation {
    /// Returns the new bounds of a job that had these. A bound may only be raised.
    pub(super) fn over(&self, before: &JobBounds) -> Result<JobBounds, Refusal> {
        let budget = match (self.budget, before.budget) {
            (Some(_), None) => {
                let rule = "the job has no budget, so there is none to raise";
                return Err(codes::schema("budget", "/budget", rule).into());
            }
            (Some(new), Some(old)) if new.currency() != old.currency() || new.micros() < old.micros() => {
                let rule = format!("{new} is less than the budget so far, {old}, or has another currency");
                return Err(codes::schema("budget", "/budget", rule).into());
            }
            (Some(new), Some(_)) => Some(new),
            (None, old) => old,
        };
        let max_calls = match (self.max_calls, before.max_calls) {
            (Some(new), Some(old)) if new < old => {
                let rule = format!("{new} is less than the number so far, {old}");
                return Err(codes::schema("max_calls", "/max_calls", rule).into());
            }
            (Some(new), Some(_)) => Some(new),
            // A job without a bound keeps none: a smaller one could end in the middle of what was asked.
            (Some(_), None) => None,
            (None, old) => old,
        };
        Ok(JobBounds { budget, max_calls })
    }
}
