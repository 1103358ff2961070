//! What is recorded about a gate call, and about a program?

use cantrip_canon::{EntityId, Hash, Money};
use cantrip_reply::{AnyCode, ReplyType};
use cantrip_spend::PolicyOutcome;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{Bodies, BodyRef, CallId, CallSettled, Error, TruncationReason};

/// The type and the code of a reply, as records keep them.
///
/// The code is a text here: a record of a later version may have a code that this version does not know, and reading
/// the record must not fail. The type still tells the reader what it means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyMark {
    #[serde(rename = "type", deserialize_with = "reply_type")]
    pub reply_type: ReplyType,
    pub code: String,
}

impl ReplyMark {
    pub fn is_success(&self) -> bool {
        self.reply_type.is_success()
    }

    /// Returns the registered code, if this version knows it.
    pub fn known(&self) -> Option<AnyCode> {
        AnyCode::parse(&self.code).ok()
    }
}

impl From<AnyCode> for ReplyMark {
    fn from(code: AnyCode) -> Self {
        Self { reply_type: code.reply_type(), code: code.as_str().to_owned() }
    }
}

fn reply_type<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReplyType, D::Error> {
    let text = String::deserialize(deserializer)?;
    let found = ReplyType::ALL.iter().find(|kind| kind.as_str() == text);
    found.copied().ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not S, I, D or E")))
}

/// An error as it is recorded: a mark for code to branch on, and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    #[serde(flatten)]
    pub mark: ReplyMark,
    pub message: String,
    /// The reason why policy refused, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_code: Option<String>,
}

impl RecordedError {
    pub fn new(mark: impl Into<ReplyMark>, message: impl Into<String>) -> Self {
        Self { mark: mark.into(), message: message.into(), reason_code: None }
    }

    /// Sets the reason that policy gave.
    #[must_use]
    pub fn with_reason_code(self, reason_code: Option<impl Into<String>>) -> Self {
        Self { reason_code: reason_code.map(Into::into), ..self }
    }
}

/// A child that a call spawned, and its reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRecord {
    pub entity_id: EntityId,
    pub reply: ReplyMark,
    /// The reason why the child was truncated, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TruncationReason>,
}

/// A file that a call changed, with its earlier content, so that the change can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub path: String,
    /// None if the file did not exist.
    pub before: Option<BodyRef>,
    /// None if the file was removed.
    pub after: Option<Hash>,
}

/// The state of a call at the end of its turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// The call spawned children and the turn was sealed; the call settles in a continuation.
    Delegated,
    Settled(Box<SettledCall>),
}

/// The result of a settled call.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledCall {
    /// The result of the gate; if the reply is not a success, the text that the entity reads.
    pub result: Value,
    pub reply: ReplyMark,
    /// The structured data of an error, beside its text; empty for a success.
    pub data: Map<String, Value>,
    pub children: Vec<ChildRecord>,
    pub changes: Vec<FileChange>,
    /// The host clock when the call settled, as the sandbox sees it.
    pub clock_ms: Option<u64>,
    pub duration_ms: u64,
    pub cost: Option<Money>,
    /// None for a call that was refused before policy was asked.
    pub decision: Option<PolicyOutcome>,
}

impl SettledCall {
    /// Loads the result from the record of the call.
    pub fn load(settled: &CallSettled, bodies: &dyn Bodies) -> Result<Self, Error> {
        Ok(Self {
            result: settled.result.load(bodies)?,
            reply: settled.reply.clone(),
            data: settled.data.as_ref().map(|data| data.load(bodies)).transpose()?.unwrap_or_default(),
            children: settled.children.clone(),
            changes: settled.changes.clone(),
            clock_ms: settled.clock_ms,
            duration_ms: settled.duration_ms,
            cost: settled.cost,
            decision: settled.decision.clone(),
        })
    }
}

/// One gate call of a turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "WrittenGateRecord")]
pub struct GateRecord {
    pub call_id: CallId,
    /// In a code medium the id of the call that ran the program.
    pub tool_call_id: Option<String>,
    pub gate: String,
    pub args: Value,
    /// True if the context shows a placeholder instead of the result.
    pub ephemeral: bool,
    pub settlement: Settlement,
}

impl GateRecord {
    /// Returns true if the call failed. A delegated call has not failed yet.
    pub fn is_error(&self) -> bool {
        match &self.settlement {
            Settlement::Delegated => false,
            Settlement::Settled(settled) => !settled.reply.is_success(),
        }
    }
}

#[derive(Serialize)]
struct WrittenGateRecord {
    gate: String,
    args: Value,
    result: Value,
    is_error: bool,
    tool_call_id: Option<String>,
    call_id: CallId,
    state: &'static str,
    reply: Option<ReplyMark>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    data: Map<String, Value>,
    ephemeral: bool,
    children: Vec<ChildRecord>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    changes: Vec<FileChange>,
    clock_ms: Option<u64>,
    duration_ms: Option<u64>,
    cost: Option<Money>,
    decision: Option<PolicyOutcome>,
}

impl From<GateRecord> for WrittenGateRecord {
    fn from(record: GateRecord) -> Self {
        let is_error = record.is_error();
        let GateRecord { call_id, tool_call_id, gate, args, ephemeral, settlement } = record;
        let written = Self {
            gate,
            args,
            result: Value::Null,
            is_error,
            tool_call_id,
            call_id,
            state: "delegated",
            reply: None,
            data: Map::new(),
            ephemeral,
            children: Vec::new(),
            changes: Vec::new(),
            clock_ms: None,
            duration_ms: None,
            cost: None,
            decision: None,
        };
        match settlement {
            Settlement::Delegated => written,
            Settlement::Settled(settled) => Self {
                result: settled.result,
                state: "settled",
                reply: Some(settled.reply),
                data: settled.data,
                children: settled.children,
                changes: settled.changes,
                clock_ms: settled.clock_ms,
                duration_ms: Some(settled.duration_ms),
                cost: settled.cost,
                decision: settled.decision,
                ..written
            },
        }
    }
}

/// An exception that a program did not catch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramError {
    pub name: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// The reply of a program: a mark for code to branch on, as for every call, and the place in the program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReply {
    #[serde(flatten)]
    pub mark: ReplyMark,
    /// None for a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The line of the program, counted from 1, at which it failed, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// The output of one program, or of the part of it that ran within one turn. The default value is empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// The id of the call that ran the program.
    pub tool_call_id: Option<String>,
    /// The host clock when the program started; none for a part that continues from an earlier turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_ms: Option<u64>,
    /// Lines in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub console: Vec<String>,
    /// The value of the last expression, as it is shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ProgramError>,
    /// The number of bytes of output that are not shown.
    #[serde(default)]
    pub cut: u64,
    /// The limit that stopped the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// True if the sandbox was reset to its state before the program.
    #[serde(default)]
    pub rolled_back: bool,
    /// The text at the beginning of the observation, if the sandbox was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_lost: Option<String>,
    /// The number of turns that are left, if it is shown to the entity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// The reply of the program. None in records that were written before programs had replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<ProgramReply>,
}

impl OutputRecord {
    /// Returns true if the program failed.
    pub fn is_error(&self) -> bool {
        match &self.reply {
            Some(reply) => !reply.mark.is_success(),
            None => self.error.is_some() || self.limit.is_some(),
        }
    }

    /// Joins the output of one program in an earlier turn with its output in a later turn.
    #[must_use]
    pub fn merge(self, later: &Self) -> Self {
        Self {
            tool_call_id: self.tool_call_id.or_else(|| later.tool_call_id.clone()),
            clock_ms: self.clock_ms.or(later.clock_ms),
            console: self.console.into_iter().chain(later.console.iter().cloned()).collect(),
            value: later.value.clone().or(self.value),
            error: later.error.clone().or(self.error),
            cut: self.cut + later.cut,
            limit: later.limit.clone().or(self.limit),
            rolled_back: self.rolled_back || later.rolled_back,
            environment_lost: self.environment_lost.or_else(|| later.environment_lost.clone()),
            left: later.left.or(self.left),
            reply: later.reply.clone().or(self.reply),
        }
    }
}
