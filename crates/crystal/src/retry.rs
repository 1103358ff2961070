//! Is it asked again, and when?
//!
//! A plan and nothing else: who asks waits, and journals each attempt before it leaves. Retrying inside a crystal was
//! turned down, because attempts that nobody sees cannot be paid for, resumed or stopped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::failure::Cause;
use crate::limits::{RETRIES_MAX, RETRY_AFTER_MS_MAX, RETRY_BASE_MS, RETRY_CAP_MS};

/// When to ask again after an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Attempts after the first.
    pub max_retries: u32,
    pub retryable_status_codes: Vec<u16>,
    pub base_ms: u64,
    pub cap_ms: u64,
    /// How often an answer with neither content nor calls is asked for again.
    pub empty_response: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: RETRIES_MAX,
            retryable_status_codes: vec![429, 500, 502, 503, 504],
            base_ms: RETRY_BASE_MS,
            cap_ms: RETRY_CAP_MS,
            empty_response: 0,
        }
    }
}

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Ask again after this long.
    Again(Duration),
    /// Another attempt would fail as well.
    Final,
    /// It may answer later, but the attempts are used up, or it asks to be left alone for too long: a root run parks.
    Unavailable,
    /// It may answer later, but not before the deadline.
    Deadline,
}

impl RetryPolicy {
    /// Whether another attempt may succeed.
    pub fn is_retryable(&self, failure: &Failure) -> bool {
        match &failure.cause {
            Cause::Status { status, .. } => self.retryable_status_codes.contains(status),
            Cause::Unreachable { .. } | Cause::TimedOut { .. } | Cause::Broken { .. } => true,
            Cause::TooLarge { .. } | Cause::ContextTooLong { .. } | Cause::Refused { .. } | Cause::Rejected { .. } => {
                false
            }
        }
    }

    /// What follows attempt `attempt` (from 1), which failed so, with `left` until the deadline, if there is one.
    ///
    /// What the provider asks for comes first. Else the wait is any time up to `base * 2^(attempt - 1)`, and up to the
    /// cap, chosen by `chance`: many who failed together do not come back together.
    ///
    /// ```
    /// # use cantrip_crystal::{Cause, Charge, Failure, RetryDecision, RetryPolicy};
    /// # use std::time::Duration;
    /// let overloaded = Cause::Status { status: 503, detail: "busy".into(), retry_after: None };
    /// let failure = Failure::new("local/small@http://localhost", overloaded, Charge::Nothing);
    /// let retry = RetryPolicy::default();
    /// assert_eq!(retry.decide(&failure, 3, None, u64::MAX), RetryDecision::Again(Duration::from_secs(4)));
    /// assert_eq!(retry.decide(&failure, 6, None, 0), RetryDecision::Unavailable);
    /// ```
    pub fn decide(&self, failure: &Failure, attempt: u32, left: Option<Duration>, chance: u64) -> RetryDecision {
        if !self.is_retryable(failure) {
            return RetryDecision::Final;
        }
        if attempt > self.max_retries {
            return RetryDecision::Unavailable;
        }
        let delay = match failure.retry_after() {
            Some(told) if told > Duration::from_millis(RETRY_AFTER_MS_MAX) => return RetryDecision::Unavailable,
            Some(told) => told,
            None => self.backoff(attempt, chance),
        };
        match left {
            Some(left) if delay >= left => RetryDecision::Deadline,
            Some(_) | None => RetryDecision::Again(delay),
        }
    }

    fn backoff(&self, attempt: u32, chance: u64) -> Duration {
        let doubled = 1_u64.checked_shl(attempt.saturating_sub(1)).unwrap_or(u64::MAX);
        let ceiling = self.base_ms.saturating_mul(doubled).min(self.cap_ms);
        // The high half of the product is uniform over 0..=ceiling as far as 64 bits can be.
        Duration::from_millis(((u128::from(chance) * (u128::from(ceiling) + 1)) >> 64) as u64)
    }
}
