//! The records of policy, approvals and money.

use cantrip_canon::{ApprovalId, CastId, DecisionId, Hash, Money, Timestamp};
use cantrip_spend::{
    ApprovalKind, AuthorizationRef, CallKey, DecisionRecord, PolicyInput, PolicyOutcome, ReasonCode, ReservationId,
    RetryClass, UnknownOutcome,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Actor, CallId, RecordValue};

/// `approval.requested`: a person is asked about a call, or about a request to a crystal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequested {
    pub approval_id: ApprovalId,
    pub call_id: CallId,
    pub cast_id: CastId,
    pub gate: String,
    pub args: RecordValue<Value>,
    /// The wards and the policy that require the approval, with details for the person who decides.
    pub reasons: Vec<Value>,
    pub expires_at: Timestamp,
    /// Set if a ledger keeps the approval.
    #[serde(flatten)]
    pub policy: Option<PolicyApproval>,
}

/// The part of a policy decision that requires an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyApproval {
    pub kind: ApprovalKind,
    pub authorization_id: AuthorizationRef,
    pub subject_hash: Hash,
    /// None if the call costs nothing.
    pub cost: Option<Money>,
    pub reason_code: ReasonCode,
}

/// The decision about an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalChoice {
    Approved,
    Refused,
    /// The time ran out before a person decided.
    Expired,
}

/// `approval.decided`: a person has decided, or the time to decide is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecided {
    pub approval_id: ApprovalId,
    pub decision: ApprovalChoice,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<Actor>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `policy.decision`: policy did not allow a call or a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyDecision {
    #[serde(flatten)]
    pub outcome: PolicyOutcome,
    pub decision_id: DecisionId,
    pub call_id: CallKey,
    /// None if a store writes the record, or if no cast began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cast_id: Option<CastId>,
    /// The whole input, in the record of a predict that was denied before it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Box<PolicyInput>>,
}

impl PolicyDecision {
    /// Makes the record of a decision, without its input.
    pub fn new(decided: &DecisionRecord, cast_id: Option<CastId>) -> Self {
        let (decision_id, call_id) = (decided.id, decided.call.clone());
        Self { outcome: decided.outcome(), decision_id, call_id, cast_id, input: None }
    }
}

/// `spend.reserved`: money is held for a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendReserved {
    pub reservation_id: ReservationId,
    pub authorization_id: AuthorizationRef,
    pub call_id: CallKey,
    pub attempt: u32,
    pub amount: Money,
    pub retry_class: RetryClass,
    pub scope_id: String,
    pub approval_id: Option<ApprovalId>,
    pub decision_id: DecisionId,
    /// The decision that allowed the hold.
    pub decision: Option<PolicyOutcome>,
}

/// The final state of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SettledState {
    Committed { captured: Money, released_micros: i64, provider_correlation_id: Option<String> },
    Released,
}

/// `spend.settled`: a reservation is settled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendSettled {
    pub reservation_id: ReservationId,
    #[serde(flatten)]
    pub state: SettledState,
    /// The person who resolved an unknown outcome, and the reason that the person gave.
    pub by: Option<String>,
    pub reason: Option<String>,
}

/// `spend.reconcile_required`: it is unknown whether the money of a reservation was spent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReconcileRequired {
    pub reservation_id: ReservationId,
    pub reason: UnknownOutcome,
}

/// `spend.overage`: a call cost more than was held for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpendOverage {
    pub reservation_id: ReservationId,
    pub overage_micros: i64,
}
