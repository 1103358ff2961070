//! Why did no answer come, may it be asked for again, and may it have cost something?
//!
//! A failure says what happened and never what to do: whether it is retried is the [`Retry`](crate::Retry) policy's to
//! say, and a context that is too long is folded by the loop. One code for each cause is the registry's.

use std::time::Duration;

use cantrip_loom::Usage;
use cantrip_reply::{AnyCode, ReplyDraft, codes};
use serde_json::{Value, json};

use crate::limits::DETAIL_BYTES_MAX;

/// One attempt that came to nothing.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{crystal} did not answer: {cause}")]
pub struct Failure {
    /// The crystal's name.
    pub crystal: Box<str>,
    pub cause: Cause,
    pub charge: Charge,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The provider answered with a status that is no success.
    #[error("{status} {detail}")]
    Status { status: u16, detail: Detail, retry_after: Option<Duration> },
    /// The provider, or the way to it, is not there.
    #[error("it cannot be reached: {detail}")]
    Unreachable { detail: Detail },
    /// The provider took longer than one of its requests may.
    #[error("no answer within {} ms", limit.as_millis())]
    TimedOut { limit: Duration },
    /// The answer began and did not reach its end, or could not be read.
    #[error("the answer broke off: {detail}")]
    Broken { detail: Detail },
    /// The answer went on beyond what may be held.
    #[error("the answer has more than {limit} {unit}")]
    TooLarge { limit: usize, unit: &'static str },
    /// The list does not fit the model's window.
    #[error("the list is too long for the model")]
    ContextTooLong { tokens: Option<u64>, window: Option<u64> },
    /// The model, or a filter before or behind it, would not answer.
    #[error("refused: {reason}")]
    Refused { reason: Detail },
    /// The request cannot be carried out by this crystal, now or later: its tape has ended, or it cannot say this.
    #[error("{detail}")]
    Rejected { detail: Detail },
}

/// Whether the attempt cost something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// Nothing was charged: the provider refused the request, or never got it.
    Nothing,
    /// The provider said what it counted.
    Reported(Usage),
    /// Nobody can tell: the answer broke off, or did not come in time.
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

/// A provider's own words, cut to [`DETAIL_BYTES_MAX`]. They are shown to people and never branched on.
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

    /// The crystal cannot do this, now or later, and nothing was sent.
    pub fn rejected(crystal: &str, detail: impl Into<Detail>) -> Self {
        Self::new(crystal, Cause::Rejected { detail: detail.into() }, Charge::Nothing)
    }

    /// The provider's status, if it gave one.
    pub fn status(&self) -> Option<u16> {
        match self.cause {
            Cause::Status { status, .. } => Some(status),
            Cause::Unreachable { .. }
            | Cause::TimedOut { .. }
            | Cause::Broken { .. }
            | Cause::TooLarge { .. }
            | Cause::ContextTooLong { .. }
            | Cause::Refused { .. }
            | Cause::Rejected { .. } => None,
        }
    }

    /// How long the provider asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.cause {
            Cause::Status { retry_after, .. } => retry_after,
            Cause::Unreachable { .. }
            | Cause::TimedOut { .. }
            | Cause::Broken { .. }
            | Cause::TooLarge { .. }
            | Cause::ContextTooLong { .. }
            | Cause::Refused { .. }
            | Cause::Rejected { .. } => None,
        }
    }

    /// Returns the provider's own words where the reply of [`filled`](Self::to_reply) has no place for them.
    pub fn omitted_detail(&self) -> Option<String> {
        match &self.cause {
            Cause::Status { status: status @ 429, detail, retry_after } => {
                let after = retry_after.map(|after| format!("; it asks to wait {} s", millis(&after).div_ceil(1_000)));
                Some(format!("{status} {detail}{}", after.unwrap_or_default()))
            }
            Cause::Status { .. }
            | Cause::Unreachable { .. }
            | Cause::TimedOut { .. }
            | Cause::Broken { .. }
            | Cause::TooLarge { .. }
            | Cause::ContextTooLong { .. }
            | Cause::Refused { .. }
            | Cause::Rejected { .. } => None,
        }
    }

    /// A fold may help.
    pub fn is_context_too_long(&self) -> bool {
        matches!(self.cause, Cause::ContextTooLong { .. })
    }

    /// The code of a cast that ends with this failure.
    pub fn code(&self) -> AnyCode {
        self.to_reply(1).code()
    }

    /// The reply of a cast that ends with this failure after so many attempts.
    pub fn to_reply(&self, attempts: u32) -> ReplyDraft<cantrip_reply::Failure> {
        let crystal = &*self.crystal;
        match &self.cause {
            Cause::Status { status: 429, retry_after, .. } => {
                let told = retry_after.as_ref().map(|after| json!({"retry_after_ms": millis(after)}));
                let words = self.omitted_detail().map(|words| json!({"detail": words}));
                codes::rate_limited(crystal, attempts).data(told).data(words)
            }
            Cause::Status { status: status @ (401 | 403), detail, .. } => {
                let hint = format!("look at its key; it said: {status} {detail}");
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
