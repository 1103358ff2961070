//! Has a person allowed it? An approval covers one subject up to an amount, once; the attempts of its call add up in it.

use cantrip_canon::{ApprovalId, Hash, Money, RunId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::{ApprovalSnapshot, AuthorizationRef, CallKey, Counters};

/// Where a request for an approval stands.
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
    /// As the ledger writes it.
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

/// What is asked of a person: to pay, or to let a gate act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalKind {
    Spend,
    Gate,
}

impl ApprovalKind {
    /// As the ledger writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Spend => "spend",
            Self::Gate => "gate",
        }
    }
}

/// A question to a person.
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

/// What became of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalVerdict {
    /// Up to this much, for all attempts of the call together.
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

/// A person's answer, or the end of waiting for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalDecision {
    pub approval: ApprovalId,
    pub verdict: ApprovalVerdict,
    pub by: String,
    pub reason: Option<String>,
    pub at: Timestamp,
}

/// An approval as the ledger keeps it. It holds no money.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub request: ApprovalRequest,
    pub decision: Option<ApprovalDecision>,
    /// What the holds and payments it covers come to.
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

    /// As policy sees it.
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
