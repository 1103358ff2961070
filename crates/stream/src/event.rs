//! What happened? Events describe it in the same way for every provider and gate.
//!
//! A producer sends these eight kinds of events and no others; everything that a provider's wire adds is translated or
//! dropped before it gets here. Each payload is its own variant with its own fields. So a call without a name, an
//! `item_done` without an item, or an envelope whose type differs from its payload's cannot be built. A struct of
//! optional fields, as the JSON looks, was turned down: every consumer would have to check again what the reader
//! already knew.
//!
//! [`StreamEvent::read`] is the only way in from JSON; `Serialize` writes the same shape back.

use std::fmt;
use std::sync::Arc;

use cantrip_canon::Money;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::id::{CallId, EntityId, EventId, ItemId, ModelId, ProviderId, SessionId, TurnId};
use crate::text::Text;
use crate::timestamp::SourceTimestamp;

/// One event of a turn. Events are ordered by their arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEvent {
    pub event_id: EventId,
    pub timestamp: SourceTimestamp,
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub payload: Payload,
}

/// The content of an event, by its type.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Payload {
    ResponseStart(ResponseStart),
    ItemStart(ItemStart),
    ItemDelta(ItemDelta),
    ItemDone(ItemDone),
    ItemError(ItemError),
    ItemCancelled(ItemCancelled),
    ResponseDone(ResponseDone),
    ResponseError(ResponseError),
}

impl Payload {
    /// The type of the event as it is named on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ResponseStart(_) => "response_start",
            Self::ItemStart(_) => "item_start",
            Self::ItemDelta(_) => "item_delta",
            Self::ItemDone(_) => "item_done",
            Self::ItemError(_) => "item_error",
            Self::ItemCancelled(_) => "item_cancelled",
            Self::ResponseDone(_) => "response_done",
            Self::ResponseError(_) => "response_error",
        }
    }
}

impl Serialize for StreamEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut event = serializer.serialize_struct("StreamEvent", 6)?;
        event.serialize_field("eventId", &self.event_id)?;
        event.serialize_field("timestamp", &self.timestamp)?;
        event.serialize_field("turnId", &self.turn_id)?;
        event.serialize_field("sessionId", &self.session_id)?;
        event.serialize_field("type", self.payload.kind())?;
        event.serialize_field("payload", &self.payload)?;
        event.end()
    }
}

/// A turn begins, or a new response for it begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseStart {
    pub model_id: ModelId,
    pub provider_id: ProviderId,
    #[serde(flatten)]
    pub child: ChildOf,
}

/// The child entity of the turn, if it is the turn of a child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChildOf {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entity_id: Option<EntityId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent_turn_id: Option<TurnId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<u64>,
}

/// An item appears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemStart {
    pub item_id: ItemId,
    #[serde(flatten)]
    pub item: StartedItem,
}

/// The data of an item that is known at its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "itemType", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum StartedItem {
    Message {
        #[serde(skip_serializing_if = "Text::is_empty")]
        initial_content: Text,
    },
    Reasoning {
        #[serde(skip_serializing_if = "Text::is_empty")]
        initial_content: Text,
    },
    FunctionCall {
        name: Name,
        call_id: CallId,
        /// The call whose code made this call.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_item_id: Option<ItemId>,
    },
    FunctionCallOutput {
        #[serde(skip_serializing_if = "Option::is_none")]
        call_id: Option<CallId>,
    },
}

/// An item grows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemDelta {
    pub item_id: ItemId,
    pub delta_content: Box<str>,
}

/// An item ended without an error; `final_item` is authoritative.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemDone {
    pub item_id: ItemId,
    pub final_item: FinalItem,
}

/// The final content of an item.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum FinalItem {
    Message { content: Text, origin: Origin },
    Reasoning { content: Text, provider_id: ProviderId },
    FunctionCall(FinalCall),
    FunctionCallOutput(FinalOutput),
}

/// A call with its complete arguments.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FinalCall {
    pub name: Name,
    pub call_id: CallId,
    pub arguments: Arguments,
}

/// The output of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FinalOutput {
    pub call_id: CallId,
    pub output: Text,
    pub is_error: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reply: Option<ReplyTag>,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    User,
    Agent,
    System,
}

/// Type and code of the reply that an output came from, and for a failed program the place in its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplyTag {
    #[serde(rename = "type")]
    pub kind: ReplyKind,
    pub code: Arc<str>,
    /// The line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
}

/// The letter of a reply's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ReplyKind {
    #[serde(rename = "S")]
    Success,
    #[serde(rename = "I")]
    Invalid,
    #[serde(rename = "D")]
    Denied,
    #[serde(rename = "E")]
    Failure,
}

/// An item failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemError {
    pub item_id: ItemId,
    pub error: ErrorInfo,
}

/// An item was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ItemCancelled {
    pub item_id: ItemId,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<CancelReason>,
}

/// The reason why an item was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelReason {
    UserCancel,
    Timeout,
    ProcessDeath,
    Retry,
}

impl CancelReason {
    /// The reason as it is named on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UserCancel => "user_cancel",
            Self::Timeout => "timeout",
            Self::ProcessDeath => "process_death",
            Self::Retry => "retry",
        }
    }
}

/// A turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseDone {
    pub status: ResponseStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<Arc<str>>,
    /// Used only with [`ResponseStatus::Error`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorInfo>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Turns of the loom that continued this one after a seal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continuations: Option<Arc<[TurnId]>>,
}

/// The way in which a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseStatus {
    Completed,
    Cancelled,
    Error,
}

/// A turn failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseError {
    pub error: ErrorInfo,
}

/// A fault: a code to branch on and a message for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ErrorInfo {
    pub code: Arc<str>,
    pub message: Arc<str>,
}

impl ErrorInfo {
    pub fn new(code: &str, message: &str) -> Self {
        Self { code: code.into(), message: message.into() }
    }
}

/// The tokens that a turn has used so far; `input_tokens` includes the cached ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    pub input_tokens: u64,
    pub output_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_input_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_creation_input_tokens: Option<u64>,
    /// The cost of the tokens, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// The name of the called tool; never empty.
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(Arc<str>);

/// A call has an empty name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a call is not empty")]
pub struct EmptyName;

impl Name {
    pub fn new(text: &str) -> Result<Self, EmptyName> {
        if text.is_empty() { Err(EmptyName) } else { Ok(Self(text.into())) }
    }

    /// The name of a call of which only the output is known.
    pub(crate) fn unknown() -> Self {
        Self("unknown".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The arguments of a call: an object, shared by every upsert that shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Arguments(Arc<Map<String, Value>>);

impl Arguments {
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }
}

impl From<Map<String, Value>> for Arguments {
    fn from(map: Map<String, Value>) -> Self {
        Self(Arc::new(map))
    }
}
