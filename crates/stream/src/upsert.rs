//! What does a viewer need to draw an item of which it has seen nothing before?
//!
//! The full state of the item, and an upsert carries exactly that. It replaces the state that the viewer had. Patches
//! were turned down: a viewer that lost one would be wrong until the end, and a server would have to keep them all.
//! Emissions are cheap to clone and to send to another thread; text is joined when they are serialized.

use std::sync::Arc;

use cantrip_canon::Timestamp;
use serde::{Serialize, Serializer};

use crate::event::{Arguments, ChildOf, ErrorInfo, Name, Origin, ReplyTag, Usage};
use crate::id::{CallId, ItemId, ModelId, ProviderId, SessionId, TurnId};
use crate::text::Text;
use crate::timestamp::SourceTimestamp;

/// The output of a [`Processor`](crate::Processor).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Emission {
    Upsert(Upsert),
    Turn(TurnEvent),
}

impl Emission {
    /// The turn of this emission.
    pub fn turn_id(&self) -> &TurnId {
        match self {
            Self::Upsert(upsert) => &upsert.turn_id,
            Self::Turn(turn) => turn.turn_id(),
        }
    }
}

/// The full state of an item.
#[derive(Debug, Clone, PartialEq)]
pub struct Upsert {
    pub turn_id: TurnId,
    pub session_id: SessionId,
    pub item_id: ItemId,
    /// The time of the event that caused this state.
    pub source_timestamp: SourceTimestamp,
    /// The time at which the processor sent it.
    pub emitted_at: Timestamp,
    pub status: Status,
    pub item: Item,
}

/// The status of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// Shown for the first time.
    Create,
    Update,
    /// Ended; `incomplete` if it ended only because its response did.
    Complete {
        incomplete: bool,
    },
    /// Cut off or failed; the item still has its content so far.
    Error {
        code: Arc<str>,
        message: Option<Arc<str>>,
    },
}

impl Status {
    /// The status as it is named on the wire.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Complete { .. } => "complete",
            Self::Error { .. } => "error",
        }
    }

    /// Returns true if the item has ended, unless it is emitted again.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Create | Self::Update => false,
            Self::Complete { .. } | Self::Error { .. } => true,
        }
    }
}

impl From<ErrorInfo> for Status {
    fn from(error: ErrorInfo) -> Self {
        Self::Error { code: error.code, message: Some(error.message) }
    }
}

/// The content of an item, by its kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    Message {
        content: Text,
        origin: Origin,
    },
    Thinking {
        content: Text,
        /// `None` until the provider is known; on the wire it is `""`.
        provider_id: Option<ProviderId>,
    },
    ToolCall(ToolCall),
}

impl Item {
    /// The type of the upsert as it is named on the wire.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Message { .. } => "message",
            Self::Thinking { .. } => "thinking",
            Self::ToolCall(_) => "tool_call",
        }
    }
}

/// A call and its output.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    pub name: Name,
    /// Not final before the item is complete.
    pub arguments: Arguments,
    pub call_id: CallId,
    pub output: Option<ToolOutput>,
    /// The call whose code made this call.
    pub parent_item_id: Option<ItemId>,
}

/// The output of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolOutput {
    pub text: Text,
    pub is_error: bool,
    pub reply: Option<ReplyTag>,
}

/// The wire format of an upsert: absent fields are omitted.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UpsertWire<'a> {
    r#type: &'static str,
    turn_id: &'a TurnId,
    session_id: &'a SessionId,
    item_id: &'a ItemId,
    source_timestamp: SourceTimestamp,
    emitted_at: Timestamp,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_code: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_message: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    incomplete: bool,
    #[serde(flatten)]
    item: ItemWire<'a>,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum ItemWire<'a> {
    Message {
        content: &'a Text,
        origin: Origin,
    },
    Thinking {
        content: &'a Text,
        provider_id: &'a str,
    },
    ToolCall {
        tool_name: &'a Name,
        tool_arguments: &'a Arguments,
        call_id: &'a CallId,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_output: Option<&'a Text>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_output_is_error: Option<bool>,
        #[serde(skip_serializing_if = "Option::is_none")]
        tool_reply: Option<&'a ReplyTag>,
        #[serde(skip_serializing_if = "Option::is_none")]
        parent_item_id: Option<&'a ItemId>,
    },
}

impl Serialize for Upsert {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (incomplete, error_code, error_message) = match &self.status {
            Status::Create | Status::Update => (false, None, None),
            Status::Complete { incomplete } => (*incomplete, None, None),
            Status::Error { code, message } => (false, Some(&**code), message.as_deref()),
        };
        let item = match &self.item {
            Item::Message { content, origin } => ItemWire::Message { content, origin: *origin },
            Item::Thinking { content, provider_id } => {
                ItemWire::Thinking { content, provider_id: provider_id.as_ref().map_or("", ProviderId::as_str) }
            }
            Item::ToolCall(call) => ItemWire::ToolCall {
                tool_name: &call.name,
                tool_arguments: &call.arguments,
                call_id: &call.call_id,
                tool_output: call.output.as_ref().map(|output| &output.text),
                tool_output_is_error: call.output.as_ref().map(|output| output.is_error),
                tool_reply: call.output.as_ref().and_then(|output| output.reply.as_ref()),
                parent_item_id: call.parent_item_id.as_ref(),
            },
        };
        UpsertWire {
            r#type: self.item.kind(),
            turn_id: &self.turn_id,
            session_id: &self.session_id,
            item_id: &self.item_id,
            source_timestamp: self.source_timestamp,
            emitted_at: self.emitted_at,
            status: self.status.as_str(),
            error_code,
            error_message,
            incomplete,
            item,
        }
        .serialize(serializer)
    }
}

/// The beginning or the end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all_fields = "camelCase")]
pub enum TurnEvent {
    #[serde(rename = "turn_started")]
    Started {
        turn_id: TurnId,
        session_id: SessionId,
        model_id: ModelId,
        provider_id: ProviderId,
        #[serde(flatten)]
        child: ChildOf,
    },
    #[serde(rename = "turn_complete")]
    Complete {
        turn_id: TurnId,
        session_id: SessionId,
        status: TurnStatus,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(skip_serializing_if = "Option::is_none")]
        finish_reason: Option<Arc<str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        continuations: Option<Arc<[TurnId]>>,
    },
    #[serde(rename = "turn_error")]
    Error {
        turn_id: TurnId,
        session_id: SessionId,
        error_code: Arc<str>,
        error_message: Arc<str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
}

impl TurnEvent {
    pub fn turn_id(&self) -> &TurnId {
        match self {
            Self::Started { turn_id, .. } | Self::Complete { turn_id, .. } | Self::Error { turn_id, .. } => turn_id,
        }
    }
}

/// The way in which a turn that did not fail ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TurnStatus {
    Completed,
    Cancelled,
}
