//! What did policy decide, and how can it be verified later? A decision has a hash over all of its inputs.

use std::fmt;

use cantrip_canon::Hash;
use serde::{Deserialize, Serialize};

use crate::AuthorizationRef;

/// The result of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ruling {
    Allowed,
    Denied,
    /// The call waits for an approval; never final.
    NeedsApproval,
}

impl Ruling {
    /// The name in records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::NeedsApproval => "needs_approval",
        }
    }
}

/// The reason of a decision, from a taxonomy that only grows. A code that this version does not know is handled by its
/// family.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReasonCode(String);

/// The part of a reason code before its full stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    PolicyAllowed,
    PolicyDenied,
    ApprovalRequired,
    LoopDetected,
    SsrfBlock,
    ManifestValidation,
    CommsFailed,
    CodingFailed,
    /// A family that a later version added.
    Unknown,
}

impl ReasonCode {
    pub fn new(code: impl Into<String>) -> Self {
        Self(code.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if the denial is for lack of budget, which the settling of another call could free.
    pub fn is_over_limit(&self) -> bool {
        crate::reason::is_over_limit(self)
    }

    pub fn family(&self) -> Family {
        match self.0.split('.').next().unwrap_or_default() {
            "policy_allowed" => Family::PolicyAllowed,
            "policy_denied" => Family::PolicyDenied,
            "approval_required" => Family::ApprovalRequired,
            "loop_detected" => Family::LoopDetected,
            "ssrf_block" => Family::SsrfBlock,
            "manifest_validation" => Family::ManifestValidation,
            "comms_failed" => Family::CommsFailed,
            "coding_failed" => Family::CodingFailed,
            _ => Family::Unknown,
        }
    }
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One evaluation of policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub decision: Ruling,
    pub reason_code: ReasonCode,
    /// The version of the taxonomy of the reason code.
    pub reason_codes_version: String,
    /// The hash over the decision and all of its inputs.
    pub evaluation_hash: Hash,
}

/// A decision with the authorization it was made under, as a gate record stores it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyOutcome {
    #[serde(flatten)]
    pub decision: Decision,
    /// None if no authorization was resolved.
    pub authorization_id: Option<AuthorizationRef>,
}
