//! Is this JSON an event, and if not, what is wrong with it?
//!
//! All faults are reported at once, each with its path and the expected rule, because the reader of the report is
//! usually the author of a producer who has a file of recorded events. A derived `Deserialize` was turned down: it
//! stops at the first fault and describes it in terms of our types.
//!
//! `null` in an optional field counts as absent and in a required one as missing; keys that the type does not use are
//! ignored.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::event::{
    Arguments, CancelReason, ChildOf, ErrorInfo, FinalCall, FinalItem, FinalOutput, ItemCancelled, ItemDelta, ItemDone,
    ItemError, ItemStart, Name, Origin, Payload, ReplyKind, ReplyTag, ResponseDone, ResponseError, ResponseStart,
    ResponseStatus, StartedItem, StreamEvent, Usage,
};
use crate::id::NotAnId;
use crate::text::Text;

/// One fault: its place and the expected rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    /// The path from the root of the event, such as `payload.finalItem.arguments`; empty for the event itself.
    pub path: String,
    pub rule: &'static str,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "the event" } else { &self.path };
        write!(f, "{path}: {}", self.rule)
    }
}

const OBJECT: &str = "must be an object";
const ID: &str = "must be a string of 1 to 256 bytes";
const STRING: &str = "must be a string";
const NAME: &str = "must be a string that is not empty";
const TIMESTAMP: &str =
    "must be a real UTC time, YYYY-MM-DDTHH:MM:SS, a fraction of 1 to 9 digits or none, and an upper-case Z";
const WHOLE: &str = "must be a whole number from 0 to 9007199254740991";
const MONEY: &str = "must be an amount of money: micros from 0 to 9007199254740991 and a currency";
const BOOLEAN: &str = "must be true or false";
const TYPE: &str = "must be one of response_start, item_start, item_delta, item_done, item_error, item_cancelled, \
                    response_done, response_error";
const SAME_TYPE: &str = "must be the same as payload.type";
const ITEM_TYPE: &str = "must be one of message, reasoning, function_call, function_call_output";
const ORIGIN: &str = "must be one of user, agent, system";
const REASON: &str = "must be one of user_cancel, timeout, process_death, retry";
const STATUS: &str = "must be one of completed, cancelled, error";
const REPLY_TYPE: &str = "must be one of S, I, D, E";
const PLACE: &str = "must be a whole number from 1 to 4294967295";
const IDS: &str = "must be an array of ids";

impl StreamEvent {
    /// Reads an event, or returns all faults of the value.
    ///
    /// ```
    /// # use cantrip_stream::StreamEvent;
    /// let event = serde_json::json!({
    ///     "eventId": "e1", "timestamp": "2026-02-15T10:00:00Z", "turnId": "t1", "sessionId": "",
    ///     "type": "item_delta", "payload": { "type": "item_delta", "itemId": "t1/1" },
    /// });
    /// let issues = StreamEvent::read(&event).unwrap_err();
    /// let paths: Vec<&str> = issues.iter().map(|issue| issue.path.as_str()).collect();
    /// assert_eq!(paths, ["sessionId", "payload.deltaContent"]);
    /// ```
    pub fn read(value: &Value) -> Result<StreamEvent, Vec<Issue>> {
        let mut issues = Vec::new();
        match envelope(value, &mut issues) {
            Some(event) if issues.is_empty() => Ok(event),
            Some(_) | None => Err(issues),
        }
    }
}

/// One object of the event, and its path.
struct Object<'a, 'i> {
    map: &'a Map<String, Value>,
    path: &'a str,
    issues: &'i mut Vec<Issue>,
}

impl<'a> Object<'a, '_> {
    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn fault(&mut self, key: &str, rule: &'static str) {
        let path = self.path_of(key);
        self.issues.push(Issue { path, rule });
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns the field, or `None` with a fault if it is missing or breaks the rule.
    fn required<T>(&mut self, key: &str, rule: &'static str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let field = self.get(key).and_then(read);
        if field.is_none() {
            self.fault(key, rule);
        }
        field
    }

    /// Returns the field if it is present; adds a fault if it is present and breaks the rule.
    fn optional<T>(&mut self, key: &str, rule: &'static str, read: impl Fn(&'a Value) -> Option<T>) -> Option<T> {
        let present = self.get(key)?;
        let field = read(present);
        if field.is_none() {
            self.fault(key, rule);
        }
        field
    }

    fn inner<T>(&mut self, key: &str, read: impl Fn(&mut Object<'_, '_>) -> Option<T>) -> Option<T> {
        let map = self.required(key, OBJECT, Value::as_object)?;
        let path = self.path_of(key);
        read(&mut Object { map, path: &path, issues: self.issues })
    }

    fn optional_inner<T>(&mut self, key: &str, read: impl Fn(&mut Object<'_, '_>) -> Option<T>) -> Option<T> {
        self.get(key)?;
        self.inner(key, read)
    }
}

fn id<T: FromStr<Err = NotAnId>>(value: &Value) -> Option<T> {
    value.as_str()?.parse().ok()
}

fn text(value: &Value) -> Option<Text> {
    value.as_str().map(Text::from)
}

fn shared(value: &Value) -> Option<Arc<str>> {
    value.as_str().map(Arc::from)
}

fn name(value: &Value) -> Option<Name> {
    Name::new(value.as_str()?).ok()
}

fn whole(value: &Value) -> Option<u64> {
    value.as_u64().filter(|number| *number <= cantrip_canon::limits::JSON_INTEGER_MAX)
}

fn envelope(value: &Value, issues: &mut Vec<Issue>) -> Option<StreamEvent> {
    let Some(map) = value.as_object() else {
        issues.push(Issue { path: String::new(), rule: OBJECT });
        return None;
    };
    let mut event = Object { map, path: "", issues };
    let event_id = event.required("eventId", ID, id);
    let timestamp = event.required("timestamp", TIMESTAMP, |value| value.as_str()?.parse().ok());
    let turn_id = event.required("turnId", ID, id);
    let session_id = event.required("sessionId", ID, id);
    let kind = event.required("type", TYPE, |value| value.as_str().and_then(Kind::from_name));
    let payload = event.inner("payload", |payload| read_payload(payload, kind));
    if let Some(kind) = kind
        && let Some(inner) = event.get("payload").and_then(|payload| payload.get("type")).and_then(Value::as_str)
        && Kind::from_name(inner) != Some(kind)
    {
        event.fault("type", SAME_TYPE);
    }
    Some(StreamEvent {
        event_id: event_id?,
        timestamp: timestamp?,
        turn_id: turn_id?,
        session_id: session_id?,
        payload: payload?,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    ResponseStart,
    ItemStart,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemCancelled,
    ResponseDone,
    ResponseError,
}

impl Kind {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "response_start" => Self::ResponseStart,
            "item_start" => Self::ItemStart,
            "item_delta" => Self::ItemDelta,
            "item_done" => Self::ItemDone,
            "item_error" => Self::ItemError,
            "item_cancelled" => Self::ItemCancelled,
            "response_done" => Self::ResponseDone,
            "response_error" => Self::ResponseError,
            _ => return None,
        })
    }
}

/// Reads the payload by its own type; if that is not a known type, by the type in the envelope.
fn read_payload(payload: &mut Object<'_, '_>, announced: Option<Kind>) -> Option<Payload> {
    let own = match payload.get("type") {
        None => {
            payload.fault("type", TYPE);
            None
        }
        Some(own) => own.as_str().and_then(Kind::from_name),
    };
    if own.is_none() && announced.is_some() && payload.get("type").is_some() {
        payload.fault("type", TYPE);
    }
    match own.or(announced)? {
        Kind::ResponseStart => response_start(payload).map(Payload::ResponseStart),
        Kind::ItemStart => item_start(payload).map(Payload::ItemStart),
        Kind::ItemDelta => item_delta(payload).map(Payload::ItemDelta),
        Kind::ItemDone => item_done(payload).map(Payload::ItemDone),
        Kind::ItemError => item_error(payload).map(Payload::ItemError),
        Kind::ItemCancelled => item_cancelled(payload).map(Payload::ItemCancelled),
        Kind::ResponseDone => response_done(payload).map(Payload::ResponseDone),
        Kind::ResponseError => {
            payload.inner("error", error).map(|error| Payload::ResponseError(ResponseError { error }))
        }
    }
}

fn response_start(payload: &mut Object<'_, '_>) -> Option<ResponseStart> {
    let model_id = payload.required("modelId", ID, id);
    let provider_id = payload.required("providerId", ID, id);
    let child = ChildOf {
        entity_id: payload.optional("entityId", ID, id),
        parent_turn_id: payload.optional("parentTurnId", ID, id),
        depth: payload.optional("depth", WHOLE, whole),
    };
    Some(ResponseStart { model_id: model_id?, provider_id: provider_id?, child })
}

fn item_start(payload: &mut Object<'_, '_>) -> Option<ItemStart> {
    let item_id = payload.required("itemId", ID, id);
    let item_type = payload.required("itemType", ITEM_TYPE, |value| value.as_str().and_then(ItemKind::from_name));
    let item = match item_type? {
        ItemKind::Message => Some(StartedItem::Message { initial_content: initial_content(payload) }),
        ItemKind::Reasoning => Some(StartedItem::Reasoning { initial_content: initial_content(payload) }),
        ItemKind::FunctionCall => {
            let name = payload.required("name", NAME, name);
            let call_id = payload.required("callId", ID, id);
            let parent_item_id = payload.optional("parentItemId", ID, id);
            name.zip(call_id).map(|(name, call_id)| StartedItem::FunctionCall { name, call_id, parent_item_id })
        }
        ItemKind::FunctionCallOutput => {
            Some(StartedItem::FunctionCallOutput { call_id: payload.optional("callId", ID, id) })
        }
    };
    Some(ItemStart { item_id: item_id?, item: item? })
}

fn initial_content(payload: &mut Object<'_, '_>) -> Text {
    payload.optional("initialContent", STRING, text).unwrap_or_default()
}

#[derive(Debug, Clone, Copy)]
enum ItemKind {
    Message,
    Reasoning,
    FunctionCall,
    FunctionCallOutput,
}

impl ItemKind {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "message" => Self::Message,
            "reasoning" => Self::Reasoning,
            "function_call" => Self::FunctionCall,
            "function_call_output" => Self::FunctionCallOutput,
            _ => return None,
        })
    }
}

fn item_delta(payload: &mut Object<'_, '_>) -> Option<ItemDelta> {
    let item_id = payload.required("itemId", ID, id);
    let delta_content = payload.required("deltaContent", STRING, |value| value.as_str().map(Box::from));
    Some(ItemDelta { item_id: item_id?, delta_content: delta_content? })
}

fn item_done(payload: &mut Object<'_, '_>) -> Option<ItemDone> {
    let item_id = payload.required("itemId", ID, id);
    let final_item = payload.inner("finalItem", final_item);
    Some(ItemDone { item_id: item_id?, final_item: final_item? })
}

fn final_item(item: &mut Object<'_, '_>) -> Option<FinalItem> {
    match item.required("type", ITEM_TYPE, |value| value.as_str().and_then(ItemKind::from_name))? {
        ItemKind::Message => {
            let content = item.required("content", STRING, text);
            let origin = item.required("origin", ORIGIN, |value| {
                Some(match value.as_str()? {
                    "user" => Origin::User,
                    "agent" => Origin::Agent,
                    "system" => Origin::System,
                    _ => return None,
                })
            });
            Some(FinalItem::Message { content: content?, origin: origin? })
        }
        ItemKind::Reasoning => {
            let content = item.required("content", STRING, text);
            let provider_id = item.required("providerId", ID, id);
            Some(FinalItem::Reasoning { content: content?, provider_id: provider_id? })
        }
        ItemKind::FunctionCall => {
            let name = item.required("name", NAME, name);
            let call_id = item.required("callId", ID, id);
            let arguments = item.required("arguments", OBJECT, Value::as_object);
            Some(FinalItem::FunctionCall(FinalCall {
                name: name?,
                call_id: call_id?,
                arguments: Arguments::from(arguments?.clone()),
            }))
        }
        ItemKind::FunctionCallOutput => {
            let call_id = item.required("callId", ID, id);
            let output = item.required("output", STRING, text);
            let is_error = item.required("isError", BOOLEAN, Value::as_bool);
            let reply = item.optional_inner("reply", reply);
            Some(FinalItem::FunctionCallOutput(FinalOutput {
                call_id: call_id?,
                output: output?,
                is_error: is_error?,
                reply,
            }))
        }
    }
}

fn reply(tag: &mut Object<'_, '_>) -> Option<ReplyTag> {
    let kind = tag.required("type", REPLY_TYPE, |value| {
        Some(match value.as_str()? {
            "S" => ReplyKind::Success,
            "I" => ReplyKind::Invalid,
            "D" => ReplyKind::Denied,
            "E" => ReplyKind::Failure,
            _ => return None,
        })
    });
    let code = tag.required("code", STRING, shared);
    let line = tag.optional("line", PLACE, place);
    let column = tag.optional("column", PLACE, place);
    Some(ReplyTag { kind: kind?, code: code?, line, column })
}

/// Reads a line or a column of a program.
fn place(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|place| u32::try_from(place).ok()).filter(|place| *place > 0)
}

fn error(error: &mut Object<'_, '_>) -> Option<ErrorInfo> {
    let code = error.required("code", STRING, shared);
    let message = error.required("message", STRING, shared);
    Some(ErrorInfo { code: code?, message: message? })
}

fn item_error(payload: &mut Object<'_, '_>) -> Option<ItemError> {
    let item_id = payload.required("itemId", ID, id);
    let error = payload.inner("error", error);
    Some(ItemError { item_id: item_id?, error: error? })
}

fn item_cancelled(payload: &mut Object<'_, '_>) -> Option<ItemCancelled> {
    let item_id = payload.required("itemId", ID, id);
    let reason = payload.optional("reason", REASON, |value| {
        Some(match value.as_str()? {
            "user_cancel" => CancelReason::UserCancel,
            "timeout" => CancelReason::Timeout,
            "process_death" => CancelReason::ProcessDeath,
            "retry" => CancelReason::Retry,
            _ => return None,
        })
    });
    Some(ItemCancelled { item_id: item_id?, reason })
}

fn response_done(payload: &mut Object<'_, '_>) -> Option<ResponseDone> {
    let status = payload.required("status", STATUS, |value| {
        Some(match value.as_str()? {
            "completed" => ResponseStatus::Completed,
            "cancelled" => ResponseStatus::Cancelled,
            "error" => ResponseStatus::Error,
            _ => return None,
        })
    });
    let finish_reason = payload.optional("finishReason", STRING, shared);
    let error = payload.optional_inner("error", error);
    let usage = payload.optional_inner("usage", usage);
    let continuations = continuations(payload);
    Some(ResponseDone { status: status?, finish_reason, error, usage, continuations })
}

fn usage(usage: &mut Object<'_, '_>) -> Option<Usage> {
    let input_tokens = usage.required("inputTokens", WHOLE, whole);
    let output_tokens = usage.required("outputTokens", WHOLE, whole);
    let cache_read_input_tokens = usage.optional("cacheReadInputTokens", WHOLE, whole);
    let cost = usage.optional("cost", MONEY, |cost| serde_json::from_value(cost.clone()).ok());
    let cache_creation_input_tokens = usage.optional("cacheCreationInputTokens", WHOLE, whole);
    Some(Usage {
        input_tokens: input_tokens?,
        output_tokens: output_tokens?,
        cache_read_input_tokens,
        cache_creation_input_tokens,
        cost,
    })
}

fn continuations(payload: &mut Object<'_, '_>) -> Option<Arc<[crate::id::TurnId]>> {
    let listed = payload.optional("continuations", IDS, Value::as_array)?;
    let ids: Vec<_> = listed.iter().map(id).collect();
    for index in ids.iter().enumerate().filter_map(|(index, id)| id.is_none().then_some(index)) {
        payload.fault(&format!("continuations[{index}]"), ID);
    }
    ids.into_iter().collect()
}
