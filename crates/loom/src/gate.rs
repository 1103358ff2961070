//! What came of a gate call, and of a program?

use cantrip_canon::{EntityId, Hash, Money};
use cantrip_reply::{AnyCode, ReplyType};
use cantrip_spend::PolicyOutcome;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::{BodyRef, CallId, TruncationReason};

/// The type and code of a reply, as records keep them.
///
/// The code is a text here: a record of a later version may have one that this version does not know, and reading it
/// must not fail. Its type says what it means all the same.
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

    /// The registered code, if this version knows it.
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
    found.copied().ok_or_else(|| serde::de::Error::custom(format!("{text:?} is none of S, I, D, E")))
}

/// An error as it is kept: what a reader branches on, and what a person reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedError {
    #[serde(flatten)]
    pub mark: ReplyMark,
    pub message: String,
    /// Why policy refused, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_code: Option<String>,
}

impl RecordedError {
    pub fn new(mark: impl Into<ReplyMark>, message: impl Into<String>) -> Self {
        Self { mark: mark.into(), message: message.into(), reason_code: None }
    }

    /// With the reason that policy gave.
    #[must_use]
    pub fn with_reason_code(self, reason_code: Option<impl Into<String>>) -> Self {
        Self { reason_code: reason_code.map(Into::into), ..self }
    }
}

/// A child that a call spawned, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRecord {
    pub entity_id: EntityId,
    pub reply: ReplyMark,
    /// Why it was truncated, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TruncationReason>,
}

/// A file that a call changed, with what was there before, so that it can be undone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub path: String,
    /// None if there was no file.
    pub before: Option<BodyRef>,
    /// None if there is no file any more.
    pub after: Option<Hash>,
}

/// How far a call came within its turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// It spawned children and the turn was sealed; it settles in a continuation.
    Delegated,
    Settled(Box<SettledCall>),
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct SettledCall {
    /// What the gate gave; unless the reply is a success, the text that the entity reads.
    pub result: Value,
    pub reply: ReplyMark,
    /// What an error says to code, beside its text; empty for a success.
    pub data: Map<String, Value>,
    pub children: Vec<ChildRecord>,
    pub changes: Vec<FileChange>,
    /// The host's clock when it settled, as the sandbox is shown it.
    pub clock_ms: Option<u64>,
    pub duration_ms: u64,
    pub cost: Option<Money>,
    /// None for a call that was refused before policy was asked.
    pub decision: Option<PolicyOutcome>,
}

/// One gate call of a turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(into = "WrittenGateRecord")]
pub struct GateRecord {
    pub call_id: CallId,
    /// In a code medium that of the program.
    pub tool_call_id: Option<String>,
    pub gate: String,
    pub args: Value,
    /// The context shows a placeholder instead of the result.
    pub ephemeral: bool,
    pub settlement: Settlement,
}

impl GateRecord {
    /// Not a success. A delegated call is none yet.
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

/// How a program ended: what a reader branches on, as for every call, and where in its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramReply {
    #[serde(flatten)]
    pub mark: ReplyMark,
    /// None for a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The line of the program, from 1, at which it failed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// What one program gave, or the part of it that ran within one turn. The default one says nothing.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OutputRecord {
    /// Of the call that asked to run it.
    pub tool_call_id: Option<String>,
    /// The host's clock when it started; none for a part that goes on from an earlier turn.
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
    /// Bytes of output that are not shown.
    #[serde(default)]
    pub cut: u64,
    /// The limit that stopped it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The sandbox stands where it stood before the program.
    #[serde(default)]
    pub rolled_back: bool,
    /// What the observation begins with if the sandbox had to be given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment_lost: Option<String>,
    /// How many more turns there are, where the entity is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<u64>,
    /// How it ended. None in records that were written before programs had replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<ProgramReply>,
}

impl OutputRecord {
    /// Whether the program failed.
    pub fn is_error(&self) -> bool {
        match &self.reply {
            Some(reply) => !reply.mark.is_success(),
            None => self.error.is_some() || self.limit.is_some(),
        }
    }

    /// What one program gave in an earlier turn and then in a later one, as one.
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
