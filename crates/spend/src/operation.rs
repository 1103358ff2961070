//! What may be asked of a ledger? Six operations, as data that a step carries.

use cantrip_canon::{Hash, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{AuthorizationRef, CallKey, ProviderKey, ReservationId};

/// What repeating the call could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryClass {
    /// At most cost money again: model calls, pure reads.
    SafeRetry,
    /// Act on the world again: nobody asks a second time before a person has looked.
    DedupeReconcileRequired,
}

/// The worst case of one attempt of one call, to be held before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    pub authorization: AuthorizationRef,
    pub run: RunId,
    pub call: CallKey,
    /// From 1.
    pub attempt: u32,
    pub amount: Money,
    pub retry_class: RetryClass,
    /// The scope whose cap this counts against, and whose ancestors' caps too.
    pub scope: String,
    /// What policy is asked about, as its canonical text's hash; the text is a record of the same step.
    pub subject: Option<Hash>,
    pub at: Timestamp,
    /// After this, and only if the run's lease is not live, recovery may look at it.
    pub expires_at: Timestamp,
}

impl Reserve {
    pub fn id(&self) -> ReservationId {
        ReservationId::of(self.authorization, self.run, &self.call, self.attempt)
    }

    pub fn provider_key(&self) -> ProviderKey {
        ProviderKey::of(self.authorization, self.run, &self.call, self.attempt)
    }
}

/// Why nobody can say whether money was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unknown {
    TimedOut,
    StreamCut,
    Crashed,
    MissingProviderCorrelationId,
}

/// What a person, or a rule set by one, found out about an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Commit(Money),
    Release,
}

/// The end of an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    pub verdict: Verdict,
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
}

/// One money operation of a step. A store applies it in the step's transaction or refuses the step; it never drops it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Reserve(Reserve),
    /// Books the actual in full and releases the rest; more than was reserved is told as overage.
    Commit {
        reservation: ReservationId,
        actual: Money,
        provider_correlation_id: Option<String>,
        at: Timestamp,
    },
    /// Only where it is known that nothing was charged.
    Release {
        reservation: ReservationId,
        at: Timestamp,
    },
    MarkReconcileRequired {
        reservation: ReservationId,
        why: Unknown,
        at: Timestamp,
    },
    Reconcile {
        reservation: ReservationId,
        reconciliation: Reconciliation,
    },
    /// Takes an open hold over into the epoch of the lease that the step is made under.
    Adopt {
        reservation: ReservationId,
    },
}

impl Operation {
    /// The row it is about.
    pub fn reservation(&self) -> ReservationId {
        match self {
            Self::Reserve(reserve) => reserve.id(),
            Self::Commit { reservation, .. }
            | Self::Release { reservation, .. }
            | Self::MarkReconcileRequired { reservation, .. }
            | Self::Reconcile { reservation, .. }
            | Self::Adopt { reservation } => reservation.clone(),
        }
    }
}
