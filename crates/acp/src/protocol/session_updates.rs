//! Which updates does an editor need for an upsert?
//!
//! An upsert carries the full state of its item, but this protocol sends chunks. So the text that was sent for each
//! item is remembered, and only the rest is sent. A call is identified by its turn and its own id, not by the item that
//! showed it: a process that resumes a run shows the same call as another item, and the loom uses the same name.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use agent_client_protocol::v1::schema::{
    ContentBlock, ContentChunk, MessageId, SessionUpdate, TextContent, ToolCall, ToolCallContent, ToolCallId,
    ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use cantrip_service::cantrip::stream::{
    self, Emission, Item, ItemId, Origin, ReplyKind, Status, Text, TurnEvent, Upsert,
};
use serde_json::{Map, Value, json};

use crate::limits::ACP_TITLE_CHARS_MAX;

/// The error code of the processor for an item that was open when its stream ended. The run is parked; that does not
/// end the item.
const AT_REST: &str = "STREAM_CLOSED";

/// The updates that one prompt has sent so far.
#[derive(Debug)]
pub(super) struct SessionUpdater {
    places: CallPaths,
    texts: HashMap<ItemId, SentText>,
    /// The texts of turns that began before the run was last parked and have not been shown again yet.
    before: HashMap<stream::TurnId, Vec<SentText>>,
    calls: HashMap<ToolCallId, SentCall>,
    /// The turns of children: their messages are not the answer.
    children: HashSet<stream::TurnId>,
}

/// The folders that the paths of a call are relative to.
#[derive(Debug, Clone, Default)]
pub(super) struct CallPaths {
    pub(super) folder: PathBuf,
    pub(super) roots: Vec<(String, PathBuf)>,
}

impl CallPaths {
    /// Returns the file that a gate means by this path.
    pub(super) fn resolve(&self, gate: &str, path: &str) -> PathBuf {
        let root = self.roots.iter().find(|(name, _)| name == gate).map_or(&*self.folder, |(_, root)| root);
        let joined = root.join(path);
        // Normalizes `./` and `a/../`, so that the path equals the editor's name for the file.
        let mut plain = PathBuf::new();
        for part in joined.components() {
            match part {
                std::path::Component::ParentDir => drop(plain.pop()),
                std::path::Component::CurDir => {}
                part @ (std::path::Component::Prefix(_)
                | std::path::Component::RootDir
                | std::path::Component::Normal(_)) => plain.push(part),
            }
        }
        plain
    }
}

#[derive(Debug, Clone)]
struct SentText {
    voice: TextKind,
    turn: stream::TurnId,
    sent: Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextKind {
    Speech,
    Thought,
}

/// A call that was sent.
#[derive(Debug, Clone)]
struct SentCall {
    gate: String,
    arguments: Map<String, Value>,
    over: bool,
}

impl SessionUpdater {
    pub(super) fn new(places: CallPaths) -> Self {
        Self { places, texts: HashMap::new(), before: HashMap::new(), calls: HashMap::new(), children: HashSet::new() }
    }

    /// Records that the run is parked; after that it is shown again from the beginning of its open turn.
    pub(super) fn mark_rested(&mut self) {
        for said in self.texts.drain().map(|(_, said)| said) {
            self.before.entry(said.turn.clone()).or_default().push(said);
        }
    }

    /// Returns the id of the waiting call, if it was sent.
    pub(super) fn open_call(&self, gate: &str, arguments: &Value) -> Option<ToolCallId> {
        let mut open = self.calls.iter().filter(|(_, call)| !call.over && call.gate == gate);
        let fits = |call: &SentCall| arguments.as_object() == Some(&call.arguments);
        open.find(|(_, call)| fits(call)).map(|(id, _)| id.clone())
    }

    /// Returns the updates for an emission.
    pub(super) fn updates_for(&mut self, emission: Emission) -> Vec<SessionUpdate> {
        match emission {
            Emission::Upsert(upsert) => self.upsert_updates(upsert),
            Emission::Turn(TurnEvent::Started { turn_id, child, .. }) => {
                if child.depth.is_some_and(|depth| depth > 0) {
                    self.children.insert(turn_id);
                }
                Vec::new()
            }
            Emission::Turn(TurnEvent::Error { error_code, .. }) if &*error_code == AT_REST => Vec::new(),
            Emission::Turn(TurnEvent::Complete { turn_id, .. } | TurnEvent::Error { turn_id, .. }) => {
                self.texts.retain(|_, said| said.turn != turn_id);
                self.before.remove(&turn_id);
                Vec::new()
            }
        }
    }

    fn upsert_updates(&mut self, upsert: Upsert) -> Vec<SessionUpdate> {
        let Upsert { turn_id, item_id, status, item, .. } = upsert;
        match item {
            // The editor already has its own user's message.
            Item::Message { origin: Origin::User, .. } => Vec::new(),
            Item::Message { content, origin: Origin::Agent | Origin::System } => {
                let voice = if self.children.contains(&turn_id) { TextKind::Thought } else { TextKind::Speech };
                self.text_update(turn_id, item_id, voice, content, &status).into_iter().collect()
            }
            Item::Thinking { content, .. } => {
                self.text_update(turn_id, item_id, TextKind::Thought, content, &status).into_iter().collect()
            }
            Item::ToolCall(call) => self.call_update(&turn_id, &call, &status).into_iter().collect(),
        }
    }

    /// Returns the text beyond what was sent for the item; if that text was replaced, all of the new text.
    fn text_update(
        &mut self,
        turn: stream::TurnId,
        item: ItemId,
        voice: TextKind,
        content: Text,
        status: &Status,
    ) -> Option<SessionUpdate> {
        if !self.texts.contains_key(&item) {
            let sent = self.sent_before(&turn, voice, &content).unwrap_or_default();
            self.texts.insert(item.clone(), SentText { voice, turn, sent });
        }
        let said = self.texts.get_mut(&item).expect("it was put there");
        // An open text only grows; the final text of an item may be a different one.
        let begun = !status.is_final() || begins_with(&content, &said.sent);
        let rest = if begun { beyond(&content, said.sent.len()) } else { content.to_string() };
        let update = (!rest.is_empty()).then(|| chunk(voice, &item, rest));
        said.sent = content;
        update
    }

    /// Takes the matching text that was sent before the run was parked.
    fn sent_before(&mut self, turn: &stream::TurnId, voice: TextKind, content: &Text) -> Option<Text> {
        let before = self.before.get_mut(turn)?;
        let at = before.iter().position(|said| said.voice == voice && begins_with(content, &said.sent))?;
        Some(before.remove(at).sent)
    }

    fn call_update(
        &mut self,
        turn: &stream::TurnId,
        call: &stream::ToolCall,
        status: &Status,
    ) -> Option<SessionUpdate> {
        if let Status::Error { code, .. } = status
            && &**code == AT_REST
        {
            return None;
        }
        let id = call_id(turn.as_str(), call.call_id.as_str());
        let (gate, arguments) = (call.name.as_str(), call.arguments.as_map());
        let known = self.calls.get(&id).cloned();
        let state = match status {
            Status::Create => ToolCallStatus::Pending,
            Status::Update => ToolCallStatus::InProgress,
            Status::Complete { incomplete: true } | Status::Error { .. } => ToolCallStatus::Failed,
            Status::Complete { incomplete: false } => match call.output.as_ref() {
                Some(output) if output.is_error => ToolCallStatus::Failed,
                Some(_) | None => ToolCallStatus::Completed,
            },
        };
        // The argument of `done` is the answer, which is sent as a message; only a rejected call is shown.
        if gate == "done" && state != ToolCallStatus::Failed {
            return None;
        }
        // A process that resumed the run shows the call again.
        if known.as_ref().is_some_and(|known| known.over || !status.is_final() && known.arguments == *arguments) {
            return None;
        }
        self.calls.insert(
            id.clone(),
            SentCall { gate: gate.to_owned(), arguments: arguments.clone(), over: status.is_final() },
        );
        let output = call.output.as_ref().map(|output| CallResult {
            text: output.text.to_string(),
            mark: output.reply.as_ref().map(|reply| (reply.kind, reply.code.to_string())),
            position: output.reply.as_ref().and_then(|reply| Some((reply.line?, reply.column))),
            is_error: output.is_error,
        });
        let whole = tool_call(&self.places, id, gate, arguments, state, output.as_ref());
        Some(match known {
            None => SessionUpdate::ToolCall(whole),
            Some(_) => SessionUpdate::ToolCallUpdate(whole.into()),
        })
    }
}

/// Returns the id of a call for the editor.
pub(super) fn call_id(turn: &str, call: &str) -> ToolCallId {
    ToolCallId::new(format!("{turn}/{call}"))
}

/// The result of a call.
#[derive(Debug, Clone)]
pub(super) struct CallResult {
    pub(super) text: String,
    pub(super) mark: Option<(ReplyKind, String)>,
    /// The line and column at which a program failed.
    pub(super) position: Option<(u32, Option<u32>)>,
    pub(super) is_error: bool,
}

impl CallResult {
    /// Returns type, code, message and data of the reply.
    fn raw(&self) -> Value {
        let data = if self.is_error {
            self.position.map_or(Value::Null, |(line, column)| json!({"line": line, "column": column}))
        } else {
            serde_json::from_str(&self.text).unwrap_or_else(|_| Value::String(self.text.clone()))
        };
        let message = if self.is_error { Value::String(self.text.clone()) } else { Value::Null };
        let kind = self.mark.as_ref().map(|(kind, _)| match kind {
            ReplyKind::Success => "S",
            ReplyKind::Invalid => "I",
            ReplyKind::Denied => "D",
            ReplyKind::Failure => "E",
        });
        json!({"type": kind, "code": self.mark.as_ref().map(|(_, code)| code), "message": message, "data": data})
    }
}

/// Builds the editor's view of a call.
pub(super) fn tool_call(
    places: &CallPaths,
    id: ToolCallId,
    gate: &str,
    arguments: &Map<String, Value>,
    status: ToolCallStatus,
    outcome: Option<&CallResult>,
) -> ToolCall {
    let call = ToolCall::new(id, title(gate, arguments))
        .name(gate.to_owned())
        .kind(kind(gate))
        .status(status)
        .locations(locations(places, gate, arguments));
    let call = if arguments.is_empty() { call } else { call.raw_input(Value::Object(arguments.clone())) };
    match outcome {
        Some(outcome) => {
            let content = if outcome.text.is_empty() { Vec::new() } else { vec![call_content(gate, &outcome.text)] };
            call.content(content).raw_output(outcome.raw())
        }
        None => call,
    }
}

fn call_content(gate: &str, text: &str) -> ToolCallContent {
    // The output of programs and commands is not Markdown.
    let text = if kind(gate) == ToolKind::Execute {
        format!("```\n{}\n```", text.trim_end_matches('\n').replace("```", "'''"))
    } else {
        text.to_owned()
    };
    ToolCallContent::from(ContentBlock::Text(TextContent::new(text)))
}

/// Builds the approval question about a waiting call.
pub(super) fn approval_update(
    places: &CallPaths,
    id: ToolCallId,
    gate: &str,
    args: &Value,
    shows: Vec<ToolCallContent>,
) -> ToolCallUpdate {
    let empty = Map::new();
    let arguments = args.as_object().unwrap_or(&empty);
    let fields = ToolCallUpdateFields::new()
        .title(title(gate, arguments))
        .name(gate.to_owned())
        .kind(kind(gate))
        .status(ToolCallStatus::Pending)
        .locations(locations(places, gate, arguments))
        .raw_input(args.clone());
    let fields = if shows.is_empty() { fields } else { fields.content(shows) };
    ToolCallUpdate::new(id, fields)
}

fn kind(gate: &str) -> ToolKind {
    match gate {
        "read" | "list" | "loom" | "context" => ToolKind::Read,
        "write" | "edit" => ToolKind::Edit,
        "search" => ToolKind::Search,
        "fetch" => ToolKind::Fetch,
        "shell" | "javascript" | "python" => ToolKind::Execute,
        "call_agent" | "call_agent_batch" => ToolKind::Think,
        _ => ToolKind::Other,
    }
}

fn locations(places: &CallPaths, gate: &str, arguments: &Map<String, Value>) -> Vec<ToolCallLocation> {
    let of_files = matches!(gate, "read" | "list" | "search" | "write" | "edit");
    let path = arguments.get("path").and_then(Value::as_str).filter(|path| of_files && !path.is_empty());
    let line = arguments.get("line").or(arguments.get("from")).and_then(Value::as_u64);
    let line = line.and_then(|line| u32::try_from(line).ok());
    path.map(|path| ToolCallLocation::new(places.resolve(gate, path)).line(line)).into_iter().collect()
}

/// Returns the gate and its main argument on one line.
fn title(gate: &str, arguments: &Map<String, Value>) -> String {
    const ABOUT: [&str; 9] = ["path", "command", "pattern", "query", "url", "question", "intent", "code", "answer"];
    let about = ABOUT.iter().find_map(|key| arguments.get(*key)?.as_str());
    let Some(about) = about.or_else(|| arguments.values().find_map(Value::as_str)) else { return gate.to_owned() };
    let line = about.trim().lines().next().unwrap_or_default();
    let cut: String = line.chars().filter(|letter| !letter.is_control()).take(ACP_TITLE_CHARS_MAX).collect();
    let more = if cut.len() < about.trim().len() { " …" } else { "" };
    format!("{gate} {cut}{more}")
}

fn chunk(voice: TextKind, item: &ItemId, text: String) -> SessionUpdate {
    match voice {
        TextKind::Speech => message_chunk(item.as_str(), text),
        TextKind::Thought => thought_chunk(item.as_str(), text),
    }
}

pub(super) fn message_chunk(message: &str, text: String) -> SessionUpdate {
    SessionUpdate::AgentMessageChunk(of_message(message, text))
}

pub(super) fn thought_chunk(message: &str, text: String) -> SessionUpdate {
    SessionUpdate::AgentThoughtChunk(of_message(message, text))
}

pub(super) fn of_message(message: &str, text: String) -> ContentChunk {
    ContentChunk::new(ContentBlock::Text(TextContent::new(text))).message_id(MessageId::new(message))
}

fn begins_with(text: &Text, beginning: &Text) -> bool {
    let bytes = text.segments().flat_map(str::bytes).take(beginning.len());
    beginning.len() <= text.len() && bytes.eq(beginning.segments().flat_map(str::bytes))
}

/// Returns the text after `bytes` bytes. Segments of the text end at character boundaries, and so did the part that was
/// sent.
fn beyond(text: &Text, bytes: usize) -> String {
    let mut rest = String::with_capacity(text.len().saturating_sub(bytes));
    let mut passed = 0;
    for segment in text.segments() {
        let from = bytes.saturating_sub(passed).min(segment.len());
        rest.push_str(segment.get(from..).unwrap_or_default());
        passed += segment.len();
    }
    rest
}
