//! Has a person allowed it? An approval covers one subject once, up to an amount; all attempts of its call count
//! against that amount.

use cantrip_canon::{ApprovalId, Hash, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{ApprovalSnapshot, AuthorizationRef, CallKey, Counters};

/// The state of a request for an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    Pending,
    Approved,
    Refused,
    Expired,
    Cancelled,
}

impl ApprovalState {
    /// The name in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Refused => "refused",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The permission that a person is asked for: to pay, or to let a gate act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalKind {
    Spend,
    Gate,
}

impl ApprovalKind {
    /// The name in the ledger.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spend => "spend",
            Self::Gate => "gate",
        }
    }
}

/// A request for a person's approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    pub approval: ApprovalId,
    pub authorization: AuthorizationRef,
    pub run: RunId,
    pub call: Option<CallKey>,
    pub kind: ApprovalKind,
    pub subject_hash: Hash,
    pub requested: Money,
    pub by: String,
    pub at: Timestamp,
    pub expires_at: Timestamp,
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// Approved up to this amount, for all attempts of the call together.
    Approved(Money),
    Refused,
    Expired,
    Cancelled,
}

impl ApprovalVerdict {
    pub fn state(&self) -> ApprovalState {
        match self {
            Self::Approved(_) => ApprovalState::Approved,
            Self::Refused => ApprovalState::Refused,
            Self::Expired => ApprovalState::Expired,
            Self::Cancelled => ApprovalState::Cancelled,
        }
    }
}

/// A person's decision, or the end of the wait for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    pub approval: ApprovalId,
    pub verdict: ApprovalVerdict,
    pub by: String,
    pub reason: Option<String>,
    pub at: Timestamp,
}

/// An approval as the ledger stores it. It holds no money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub request: ApprovalRequest,
    pub decision: Option<ApprovalDecision>,
    /// The sums of the holds and payments that it covers.
    pub counters: Counters,
}

impl Approval {
    pub fn new(request: ApprovalRequest) -> Self {
        Self { request, decision: None, counters: Counters::default() }
    }

    pub fn state(&self) -> ApprovalState {
        self.decision.as_ref().map_or(ApprovalState::Pending, |decision| decision.verdict.state())
    }

    pub fn granted_amount(&self) -> Option<Money> {
        match self.decision.as_ref()?.verdict {
            ApprovalVerdict::Approved(granted) => Some(granted),
            ApprovalVerdict::Refused | ApprovalVerdict::Expired | ApprovalVerdict::Cancelled => None,
        }
    }

    /// The approval as policy sees it.
    pub fn snapshot(&self) -> ApprovalSnapshot {
        ApprovalSnapshot {
            approval_id: self.request.approval.to_string(),
            state: self.state(),
            subject_hash: self.request.subject_hash,
            granted: self.granted_amount().map(Money::micros),
            spent: self.counters.spent,
            reserved: self.counters.reserved,
            expires_at: self.request.expires_at,
        }
    }
}
