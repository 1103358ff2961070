//! What may be asked of a ledger? Operations, as data that a step carries.

use cantrip_canon::{ApprovalId, DecisionId, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    ApprovalDecision, ApprovalRequest, AuthorizationRef, CallKey, DecisionRecord, Guards, Phase, Principal,
    ProviderKey, ReservationId, Subject, Terms, Trifecta,
};

/// What repeating the call could do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryClass {
    /// At most cost money again: model calls, pure reads.
    SafeRetry,
    /// Act on the world again: nobody asks a second time before a person has looked.
    DedupeReconcileRequired,
}

impl RetryClass {
    /// As the ledger writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SafeRetry => "safe_retry",
            Self::DedupeReconcileRequired => "dedupe_reconcile_required",
        }
    }
}

/// The worst case of one attempt of one call, as it is held before the call is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub authorization: AuthorizationRef,
    pub run: RunId,
    /// The run at the root of its tree: the holds of one tree wait for each other.
    pub root_run: RunId,
    pub call: CallKey,
    /// From 1.
    pub attempt: u32,
    pub amount: Money,
    pub retry_class: RetryClass,
    /// The scope whose cap this counts against, and whose ancestors' caps too.
    pub scope: String,
    /// The decision that allows it, which is made in the transaction that reserves.
    pub decision: DecisionId,
    /// The approval it counts against.
    pub approval: Option<ApprovalId>,
    pub at: Timestamp,
    /// After this, and only if the run's lease is not live, recovery may look at it.
    pub expires_at: Timestamp,
}

impl Hold {
    pub fn id(&self) -> ReservationId {
        ReservationId::of(self.authorization, self.run, &self.call, self.attempt)
    }

    pub fn provider_key(&self) -> ProviderKey {
        ProviderKey::of(self.authorization, self.run, &self.call, self.attempt)
    }

    /// The UTC day it counts on, however late it settles.
    pub fn day(&self) -> String {
        self.at.day()
    }
}

/// What policy is asked in the transaction that reserves; the counters are read there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyQuery {
    pub policy_id: String,
    pub phase: Phase,
    pub subject: Subject,
    pub principal: Principal,
    pub guards: Guards,
    pub trifecta: Trifecta,
}

/// A hold that is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    pub hold: Hold,
    pub question: PolicyQuery,
}

/// Why nobody can say whether money was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOutcome {
    TimedOut,
    StreamCut,
    Crashed,
    /// It answered, and did not say what it counted.
    UsageNotReported,
    /// It failed, and nobody said that it was not charged for.
    Failed,
    MissingProviderCorrelationId,
}

impl UnknownOutcome {
    /// As the ledger writes it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::TimedOut => "timed_out",
            Self::StreamCut => "stream_cut",
            Self::Crashed => "crashed",
            Self::UsageNotReported => "usage_not_reported",
            Self::Failed => "failed",
            Self::MissingProviderCorrelationId => "missing_provider_correlation_id",
        }
    }
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
    /// Nobody found it out: a rule settled it at its full amount.
    #[serde(default)]
    pub estimated: bool,
}

/// What is to become of a reservation that is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// Books the actual in full and releases the rest; more than was reserved is told as overage.
    Commit {
        actual: Money,
        provider_correlation_id: Option<String>,
    },
    /// Only where it is known that nothing was charged.
    Release,
    MarkReconcileRequired {
        why: UnknownOutcome,
    },
    Reconcile(Reconciliation),
    /// Takes an open hold over into the epoch of the lease that the step is made under.
    Adopt,
}

impl Transition {
    /// As the ledger writes it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Commit { .. } => "commit",
            Self::Release => "release",
            Self::MarkReconcileRequired { .. } => "mark_reconcile_required",
            Self::Reconcile(_) => "reconcile",
            Self::Adopt => "adopt",
        }
    }
}

/// A cap on what a subtree spends: of a `max_cost`, ward or option.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCap {
    pub authorization: AuthorizationRef,
    pub scope: String,
    /// The nearest scope above it that has a cap.
    pub parent: Option<String>,
    pub limit: Money,
}

/// A new authorization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorize {
    pub authorization: AuthorizationRef,
    pub terms: Terms,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// Other terms for an authorization: one more revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revise {
    pub authorization: AuthorizationRef,
    /// The revision they are made from; another one in between is a conflict.
    pub expected_revision: u64,
    pub terms: Terms,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// The end of an authorization: from `at` on nothing is reserved under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoke {
    pub authorization: AuthorizationRef,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// One money operation of a step. A store applies it in the step's transaction or refuses the step; it never drops it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    Reserve(Box<Reserve>),
    Move {
        reservation: ReservationId,
        to: Transition,
        at: Timestamp,
    },
    SetCap(SetCap),
    /// Keeps a decision that held no money, with all that it was made from.
    Note(Box<DecisionRecord>),
    AskApproval(ApprovalRequest),
    DecideApproval(ApprovalDecision),
    Authorize(Box<Authorize>),
    Revise(Box<Revise>),
    Revoke(Revoke),
}

impl Operation {
    pub fn commit(reservation: ReservationId, actual: Money, correlation: Option<String>, at: Timestamp) -> Self {
        Self::Move { reservation, to: Transition::Commit { actual, provider_correlation_id: correlation }, at }
    }

    pub fn release(reservation: ReservationId, at: Timestamp) -> Self {
        Self::Move { reservation, to: Transition::Release, at }
    }

    pub fn unknown(reservation: ReservationId, why: UnknownOutcome, at: Timestamp) -> Self {
        Self::Move { reservation, to: Transition::MarkReconcileRequired { why }, at }
    }

    pub fn reconcile(reservation: ReservationId, found: Reconciliation) -> Self {
        let at = found.at;
        Self::Move { reservation, to: Transition::Reconcile(found), at }
    }

    pub fn adopt(reservation: ReservationId, at: Timestamp) -> Self {
        Self::Move { reservation, to: Transition::Adopt, at }
    }

    /// What it is about, as it is named.
    pub fn subject_id(&self) -> String {
        match self {
            Self::Reserve(asked) => asked.hold.id().to_string(),
            Self::Move { reservation, .. } => reservation.to_string(),
            Self::SetCap(cap) => cap.scope.clone(),
            Self::Note(decided) => decided.id.to_string(),
            Self::AskApproval(asked) => asked.approval.to_string(),
            Self::DecideApproval(decided) => decided.approval.to_string(),
            Self::Authorize(issued) => issued.authorization.to_string(),
            Self::Revise(revised) => revised.authorization.to_string(),
            Self::Revoke(revoked) => revoked.authorization.to_string(),
        }
    }

    /// Whether it belongs outside every run.
    pub fn is_of_authorization(&self) -> bool {
        match self {
            Self::Authorize(_) | Self::Revise(_) | Self::Revoke(_) => true,
            Self::Reserve(_)
            | Self::Move { .. }
            | Self::SetCap(_)
            | Self::Note(_)
            | Self::AskApproval(_)
            | Self::DecideApproval(_) => false,
        }
    }

    /// Whether someone without the run's lease may ask for it: what a person finds out or decides, and what recovery
    /// marks.
    pub fn is_annotation(&self) -> bool {
        match self {
            Self::DecideApproval(_) => true,
            Self::Move { to, .. } => match to {
                Transition::Reconcile(_) | Transition::MarkReconcileRequired { .. } => true,
                Transition::Commit { .. } | Transition::Release | Transition::Adopt => false,
            },
            Self::Reserve(_)
            | Self::SetCap(_)
            | Self::Note(_)
            | Self::AskApproval(_)
            | Self::Authorize(_)
            | Self::Revise(_)
            | Self::Revoke(_) => false,
        }
    }
}
