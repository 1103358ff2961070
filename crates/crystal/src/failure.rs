//! Why did an attempt fail, may it be retried, and may it have cost something?
//!
//! A failure describes what happened and never what to do: [`RetryPolicy`](crate::RetryPolicy) decides whether it is
//! retried, and the loop folds a context that is too long. The registry of replies has one code for each cause.

use std::time::Duration;

use cantrip_loom::Usage;
use cantrip_reply::{AnyCode, ReplyDraft, codes};
use serde_json::{Value, json};

use crate::limits::DETAIL_BYTES_MAX;

/// One failed attempt.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{crystal} did not answer: {cause}")]
pub struct Failure {
    /// The crystal's name.
    pub crystal: Box<str>,
    pub cause: Cause,
    pub charge: Charge,
}

/// The cause of a failure.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The provider answered with an error status.
    #[error("{status} {detail}")]
    Status { status: u16, detail: Detail, retry_after: Option<Duration> },
    /// The provider cannot be reached.
    #[error("it cannot be reached: {detail}")]
    Unreachable { detail: Detail },
    /// The provider exceeded the time limit of one request.
    #[error("no answer within {} ms", limit.as_millis())]
    TimedOut { limit: Duration },
    /// The answer began and did not reach its end, or could not be parsed.
    #[error("the answer broke off: {detail}")]
    Broken { detail: Detail },
    /// The answer exceeded the size that may be held.
    #[error("the answer has more than {limit} {unit}")]
    TooLarge { limit: usize, unit: &'static str },
    /// The list does not fit into the model's context window.
    #[error("the list is too long for the model")]
    ContextTooLong { tokens: Option<u64>, window: Option<u64> },
    /// The model, or a filter before or behind it, refused to answer.
    #[error("refused: {reason}")]
    Refused { reason: Detail },
    /// This crystal can never carry out the request: its tape has ended, or it does not support the request.
    #[error("{detail}")]
    Rejected { detail: Detail },
}

/// The cost of a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing was charged: the provider refused the request, or never got it.
    Nothing,
    /// The provider reported its usage.
    Reported(Usage),
    /// The charge cannot be known: the answer broke off, or did not come in time.
    Unknown,
}

impl Charge {
    pub fn usage(&self) -> Option<&Usage> {
        match self {
            Self::Reported(usage) => Some(usage),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

/// The provider's own message, cut to [`DETAIL_BYTES_MAX`]. It is shown to people and never branched on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detail(Box<str>);

impl Detail {
    pub fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        if text.len() > DETAIL_BYTES_MAX {
            text.truncate(text.floor_char_boundary(DETAIL_BYTES_MAX));
            text.push_str("...");
        }
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Detail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: Into<String>> From<T> for Detail {
    fn from(text: T) -> Self {
        Self::new(text)
    }
}

impl Failure {
    pub fn new(crystal: &str, cause: Cause, charge: Charge) -> Self {
        Self { crystal: crystal.into(), cause, charge }
    }

    /// Creates the failure of a request that this crystal can never carry out. Nothing was sent.
    pub fn rejected(crystal: &str, detail: impl Into<Detail>) -> Self {
        Self::new(crystal, Cause::Rejected { detail: detail.into() }, Charge::Nothing)
    }

    /// Returns the HTTP status of the provider, if there was one.
    pub fn status(&self) -> Option<u16> {
        if let Cause::Status { status, .. } = self.cause { Some(status) } else { None }
    }

    /// Returns the wait that the provider asked for.
    pub fn retry_after(&self) -> Option<Duration> {
        if let Cause::Status { retry_after, .. } = self.cause { retry_after } else { None }
    }

    /// Returns the provider's own message where the reply of [`to_reply`](Self::to_reply) has no place for it.
    pub fn omitted_detail(&self) -> Option<String> {
        let Cause::Status { status: status @ 429, detail, retry_after } = &self.cause else { return None };
        let after = retry_after.map(|after| format!("; it asks to wait {} s", millis(&after).div_ceil(1_000)));
        Some(format!("{status} {detail}{}", after.unwrap_or_default()))
    }

    /// Returns true if the context was too long; a fold may help.
    pub fn is_context_too_long(&self) -> bool {
        matches!(self.cause, Cause::ContextTooLong { .. })
    }

    /// Returns the code of a cast that ends with this failure.
    pub fn code(&self) -> AnyCode {
        self.to_reply(1).code()
    }

    /// Returns the reply of a cast that ends with this failure after `attempts` attempts.
    pub fn to_reply(&self, attempts: u32) -> ReplyDraft<cantrip_reply::Failure> {
        let crystal = &*self.crystal;
        match &self.cause {
            Cause::Status { status: 429, retry_after, .. } => {
                let told = retry_after.as_ref().map(|after| json!({"retry_after_ms": millis(after)}));
                let words = self.omitted_detail().map(|words| json!({"detail": words}));
                codes::rate_limited(crystal, attempts).data(told).data(words)
            }
            Cause::Status { status: status @ (401 | 403), detail, .. } => {
                let hint = format!("check its key; the provider answered: {status} {detail}");
                codes::auth_failed(crystal).data(json!({ "hint": hint }))
            }
            Cause::Status { status: status @ 500.., detail, .. } => {
                codes::unreachable(crystal, format!("{status} {detail}"))
            }
            Cause::Status { status, detail, .. } => codes::crystal_rejected(crystal, format!("{status} {detail}")),
            Cause::Unreachable { detail } => codes::unreachable(crystal, detail.as_str()),
            Cause::TimedOut { limit } => codes::timed_out(crystal, millis(limit)),
            Cause::Broken { detail } => codes::stream_broken(crystal, detail.as_str()),
            Cause::TooLarge { .. } => codes::stream_broken(crystal, self.cause.to_string()),
            Cause::ContextTooLong { tokens, window } => codes::context_too_long(
                tokens.map_or_else(|| Value::from("its"), Value::from),
                window.map_or_else(|| Value::from(crystal), Value::from),
            ),
            Cause::Refused { reason } => codes::crystal_refused(crystal, reason.as_str()),
            Cause::Rejected { detail } => codes::crystal_rejected(crystal, detail.as_str()),
        }
    }
}

fn millis(duration: &Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).min(cantrip_canon::limits::JSON_INTEGER_MAX)
}
