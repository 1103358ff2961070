//! Is a failed request retried, and when?
//!
//! This module only plans: the caller waits, and journals each attempt before it is sent. Retrying inside a crystal was
//! turned down, because hidden attempts cannot be paid for, resumed or stopped.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::failure::Cause;
use crate::limits::{RETRIES_MAX, RETRY_AFTER_MS_MAX, RETRY_BASE_MS, RETRY_CAP_MS};

/// "Overloaded", which some providers and the gateways before them answer where others answer 503.
const OVERLOADED: u16 = 529;
const UNAVAILABLE: u16 = 503;

/// When a failed request is retried, and after which delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// The maximum number of retries after the first attempt.
    pub max_retries: u32,
    /// The HTTP statuses after which a request is retried. 529 is retried like 503.
    pub retryable_status_codes: Vec<u16>,
    /// The maximum of the first random delay; it doubles with each retry.
    pub base_ms: u64,
    /// The maximum delay, unless the provider asks for a longer one.
    pub cap_ms: u64,
    /// The maximum number of retries of a request whose answer has neither content nor calls.
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

/// The decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    /// Retry after this duration.
    Again(Duration),
    /// Another attempt would fail too.
    Final,
    /// The provider may answer later, but the attempts are used up, or it asks for too long a wait: a root run parks.
    Unavailable,
    /// The provider may answer later, but not before the deadline.
    Deadline,
}

impl RetryPolicy {
    /// Returns true if another attempt may succeed.
    pub fn is_retryable(&self, failure: &Failure) -> bool {
        match &failure.cause {
            Cause::Status { status, .. } => {
                let as_listed = if *status == OVERLOADED { UNAVAILABLE } else { *status };
                self.retryable_status_codes.contains(status) || self.retryable_status_codes.contains(&as_listed)
            }
            Cause::Unreachable { .. } | Cause::TimedOut { .. } | Cause::Broken { .. } => true,
            Cause::TooLarge { .. } | Cause::ContextTooLong { .. } | Cause::Refused { .. } | Cause::Rejected { .. } => {
                false
            }
        }
    }

    /// Decides what follows the failed attempt number `attempt` (from 1), with `left` until the deadline, if there is
    /// one.
    ///
    /// A wait that the provider asks for comes first. Else the wait is a random duration up to `base * 2^(attempt -
    /// 1)`, limited by the cap and chosen by `chance`, so that callers that failed together do not retry together.
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
        // The high half of the product is uniform over 0..=ceiling, as far as 64 bits allow.
        Duration::from_millis(((u128::from(chance) * (u128::from(ceiling) + 1)) >> 64) as u64)
    }
}
