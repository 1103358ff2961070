//! The records of turns: requests and answers, calls and their replies, closings and folds.

use cantrip_canon::{CastId, EntityId, FoldId, Hash, Money, Timestamp, TurnId};
use cantrip_spend::{ApprovalSnapshot, Payer, PolicyOutcome, ReservationId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    BodyRef, CallId, ChildRecord, Closing, FileChange, FoldSum, OutputRecord, RecordValue, ReplyMark, Usage, Utterance,
};

/// `attempt`: a request is about to be sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number 0 of its turn, or a request of a fold.
    pub call_id: CallId,
    pub cast_id: CastId,
    /// Counted from 1 within the call.
    pub number: u32,
    /// The running hash over the message list.
    pub request_digest: Hash,
    /// The number of messages of the shared list that the request sent.
    pub list_length: u64,
    /// The crystal that is asked if it is not the crystal of the cantrip: a fallback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crystal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `opened`: the crystal has answered, and a turn begins with its utterance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnOpened {
    pub turn_id: TurnId,
    pub cast_id: CastId,
    pub parent_id: Option<TurnId>,
    pub sequence: u64,
    pub utterance: RecordValue<Utterance>,
    pub usage: Usage,
    /// The attempt that was accepted.
    pub attempt: u32,
    /// None if the cost is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// The gate and the arguments of a call, if the utterance does not have them: in a code medium, or under another name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateCallRequest {
    pub gate: String,
    pub args: RecordValue<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// The kind of work that a call does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallWork {
    Gate,
    /// The check of a `done`.
    Verifier,
    Delegation {
        children: Vec<EntityId>,
    },
}

/// `started`: a call is about to be executed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallStarted {
    pub call_id: CallId,
    pub work: CallWork,
    /// None means call n of the utterance, exactly as the crystal wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation_id: Option<ReservationId>,
}

/// `settled`: a call has its reply. The record belongs to the open turn of its group. For number 0 it is a failed
/// attempt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallSettled {
    pub call_id: CallId,
    pub reply: ReplyMark,
    pub result: RecordValue<Value>,
    pub duration_ms: u64,
    /// Set for a call that was refused before it started and that the utterance does not spell out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<GateCallRequest>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub ephemeral: bool,
    /// The structured data of an error, beside its text; only for a reply that is not a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RecordValue<Map<String, Value>>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ChildRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FileChange>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<u64>,
    /// None if the call was free; for an attempt also if the cost is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<PolicyOutcome>,
    /// The facts on which the decision was based, if no ledger has them: for an allowed call that costs nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Box<PolicyFacts>>,
    /// For an attempt: its number, and its usage if that was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// The input of policy for a call that costs nothing, apart from what its records hold: enough to evaluate the call
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyFacts {
    pub at: Timestamp,
    /// The revision of the authorization's terms.
    pub revision: u64,
    pub owner: Payer,
    /// The name of the spell, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The labels that the gate adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// The labels that the entity had, under the ward `trifecta`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub touched: Option<Vec<String>>,
    /// True if a ward requires an approval.
    #[serde(default, skip_serializing_if = "is_false")]
    pub approval_ward: bool,
    /// The result of that approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalSnapshot>,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// `turn`: a turn is closed. It repeats nothing from `opened` or `settled`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TurnClosed {
    pub turn_id: TurnId,
    #[serde(flatten)]
    pub closing: Closing,
    pub duration_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<RecordValue<Vec<OutputRecord>>>,
    /// The snapshot of the sandbox, for mediums that can make one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<BodyRef>,
}

/// The method by which a fold was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    Window,
    Summary,
    Selective,
}

/// `fold`: a shorter view of turns `from` to `to`, valid on every path that contains `after`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fold {
    pub fold_id: FoldId,
    pub entity_id: EntityId,
    /// The last closed turn when the fold was made.
    pub after: TurnId,
    /// The sequences of the first and the last turn that the fold replaces.
    pub from: u64,
    pub to: u64,
    pub strategy: Strategy,
    pub text: RecordValue<String>,
    pub estimate_before: u64,
    pub estimate_after: u64,
    /// The attempt that wrote the fold, if a crystal did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<CallId>,
    /// True if the requested strategy failed and a window was used instead.
    #[serde(default)]
    pub degraded: bool,
    /// The totals of the thread at the fold. Without them the earlier turns have to be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sum: Option<FoldSum>,
}
