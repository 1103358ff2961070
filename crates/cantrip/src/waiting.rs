//! Why does a run wait?

use cantrip_canon::ApprovalId;
use cantrip_loom::RecordedError;
use serde_json::{Value, json};

use crate::parked;

/// The reason why a run stopped before its cast ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Waiting {
    Approval {
        approvals: Vec<ApprovalId>,
    },
    /// The crystal stays unavailable. `detail` has the provider's words that the fault does not have.
    Crystal {
        fault: RecordedError,
        detail: Option<String>,
    },
    /// A caller interrupted the run.
    Interrupted,
    /// The process is shutting down.
    HandedBack,
}

impl Waiting {
    /// Returns the name of the reason in replies.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Approval { .. } => "approval",
            Self::Crystal { .. } => "crystal_unavailable",
            Self::Interrupted => "interrupted",
            Self::HandedBack => "handed_back",
        }
    }

    /// Returns the approvals that a person has to decide about.
    pub fn approvals(&self) -> &[ApprovalId] {
        match self {
            Self::Approval { approvals } => approvals,
            Self::Crystal { .. } | Self::Interrupted | Self::HandedBack => &[],
        }
    }

    /// Returns the union of both reasons: everything that someone must act on.
    pub(crate) fn merge(self, other: Option<Self>) -> Self {
        match (self, other) {
            (Self::Approval { mut approvals }, Some(Self::Approval { approvals: more })) => {
                approvals.extend(more);
                Self::Approval { approvals }
            }
            (one @ (Self::Approval { .. } | Self::Crystal { .. } | Self::Interrupted | Self::HandedBack), _) => one,
        }
    }

    /// Returns the data of the reply of a run that waits.
    pub(crate) fn reply_data(&self) -> Value {
        let mut data = json!({"state": "waiting", "reason": self.reason()});
        match self {
            Self::Approval { approvals } => {
                data["approval_id"] = json!(approvals.first());
                data["approvals"] = json!(approvals);
            }
            Self::Crystal { fault, detail } => {
                data["fault"] =
                    json!({"type": fault.mark.reply_type, "code": fault.mark.code, "message": fault.message});
                data["hint"] = json!(parked::advice(&fault.mark.code));
                if let Some(detail) = detail {
                    data["fault"]["detail"] = json!(detail);
                }
            }
            Self::Interrupted | Self::HandedBack => {}
        }
        data
    }
}
