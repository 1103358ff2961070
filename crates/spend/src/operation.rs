//! Which operations can a ledger apply? They are data that a step carries.

use cantrip_canon::{ApprovalId, DecisionId, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{
    ApprovalDecision, ApprovalRequest, AuthorizationRef, CallKey, DecisionRecord, Guards, Phase, Principal,
    ProviderKey, ReservationId, Subject, Terms, Trifecta,
};

/// The possible effect of repeating the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryClass {
    /// It costs at most money again: model calls, pure reads.
    SafeRetry,
    /// It acts on the world again: it is not repeated before a person has checked.
    DedupeReconcileRequired,
}

impl RetryClass {
    /// The name in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SafeRetry => "safe_retry",
            Self::DedupeReconcileRequired => "dedupe_reconcile_required",
        }
    }
}

/// The worst cost of one attempt of one call, which is held before the call is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    pub authorization: AuthorizationRef,
    pub run: RunId,
    /// The root run of the tree: the holds of one tree wait for each other.
    pub root_run: RunId,
    pub call: CallKey,
    /// The number of the attempt, from 1.
    pub attempt: u32,
    pub amount: Money,
    pub retry_class: RetryClass,
    /// The scope whose cap this hold counts against. It also counts against the caps of all scopes above.
    pub scope: String,
    /// The decision that allows the hold, which is made in the transaction that reserves.
    pub decision: DecisionId,
    /// The approval that the hold counts against.
    pub approval: Option<ApprovalId>,
    pub at: Timestamp,
    /// After this time, and only if the run's lease is not live, recovery may process the hold.
    pub expires_at: Timestamp,
}

impl Hold {
    pub fn id(&self) -> ReservationId {
        ReservationId::of(self.authorization, self.run, &self.call, self.attempt)
    }

    pub fn provider_key(&self) -> ProviderKey {
        ProviderKey::of(self.authorization, self.run, &self.call, self.attempt)
    }

    /// The UTC day that the hold counts on, however late it settles.
    pub fn day(&self) -> String {
        self.at.day()
    }
}

/// The policy question in the transaction that reserves; the counters are read there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyQuery {
    pub policy_id: String,
    pub phase: Phase,
    pub subject: Subject,
    pub principal: Principal,
    pub guards: Guards,
    pub trifecta: Trifecta,
}

/// A requested hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    pub hold: Hold,
    pub question: PolicyQuery,
}

/// The reason why it is unknown whether money was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownOutcome {
    TimedOut,
    StreamCut,
    Crashed,
    /// The provider answered but did not report its usage.
    UsageNotReported,
    /// The call failed, and it is not known whether it was charged.
    Failed,
    MissingProviderCorrelationId,
}

impl UnknownOutcome {
    /// The name in the ledger.
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

/// The finding of a person, or of a rule that a person set, about an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Commit(Money),
    Release,
}

/// The resolution of an unknown outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconciliation {
    pub verdict: Verdict,
    pub by: String,
    pub reason: String,
    pub at: Timestamp,
    /// True if the cost was not found out: a rule settled the hold at its full amount.
    #[serde(default)]
    pub estimated: bool,
}

/// A change of an existing reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// Books the actual cost in full and releases the rest; a cost above the reserved amount is reported as overage.
    Commit {
        actual: Money,
        provider_correlation_id: Option<String>,
    },
    /// Releases the hold. Only if it is known that nothing was charged.
    Release,
    MarkReconcileRequired {
        why: UnknownOutcome,
    },
    Reconcile(Reconciliation),
    /// Moves an open hold to the epoch of the lease of the step.
    Adopt,
}

impl Transition {
    /// The name in the ledger.
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

/// A cap on the spending of a subtree, from a ward, an option `max_cost` or the budget of a job. A cap without a parent
/// may be set again with a higher limit; nothing else of it changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetCap {
    pub authorization: AuthorizationRef,
    pub scope: String,
    /// The nearest scope above that has a cap.
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

/// New terms for an authorization: one more revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revise {
    pub authorization: AuthorizationRef,
    /// The revision that the new terms are based on; if it is not the newest, that is a conflict.
    pub expected_revision: u64,
    pub terms: Terms,
    pub actor: String,
    pub reason: String,
    pub at: Timestamp,
}

/// Ends an authorization: from `at` on nothing is reserved under it.
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
    /// Stores a decision that held no money, with all of its inputs.
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

    pub fn as_reserve(&self) -> Option<&Reserve> {
        if let Self::Reserve(asked) = self { Some(asked) } else { None }
    }

    /// The id of the object that the operation changes.
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

    /// Returns true if the operation belongs outside every run.
    pub fn is_of_authorization(&self) -> bool {
        matches!(self, Self::Authorize(_) | Self::Revise(_) | Self::Revoke(_))
    }

    /// Returns true if a caller without the run's lease may request it: the findings and decisions of a person, and the
    /// marks of recovery.
    pub fn is_annotation(&self) -> bool {
        use Transition::{MarkReconcileRequired, Reconcile};
        matches!(self, Self::DecideApproval(_) | Self::Move { to: Reconcile(_) | MarkReconcileRequired { .. }, .. })
    }
}
