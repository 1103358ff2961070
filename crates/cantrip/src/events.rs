//! What can be seen of a run while it runs?
//!
//! Canonical events, in the order in which things happen. An event that reports a record is sent after the commit of
//! the record. Watching is only an observation: a watcher that is slow, full or gone loses events and changes nothing.

mod from_records;
mod watcher;

use std::collections::HashSet;

use cantrip_canon::{RunId, Timestamp, TurnId};
use cantrip_circle::gate::canonical_name;
use cantrip_circle::{MediumKind, fence};
use cantrip_crystal::{EventSink, ItemEvent, ItemIds};
use cantrip_loom::{
    Bodies, CallSettled, Closing, EndedBy, Ending, Event, GateCallRequest, RecordedError, ReplyMark, ToolMode,
    TruncationReason, TurnClosed, Utterance, render,
};
use cantrip_reply::ReplyType;
use cantrip_stream::{
    CallId, ChildOf, ErrorInfo, EventId, FinalCall, FinalItem, FinalOutput, ItemDone, ItemId, ItemStart, ModelId, Name,
    Origin, Payload, ProviderId, ReplyKind, ReplyTag, ResponseDone, ResponseStart, ResponseStatus, SessionId,
    StartedItem, StreamEvent, TurnId as StreamTurn, Usage,
};
use serde_json::{Map, Value};

use crate::driver::Runtime;

pub use from_records::{RecordTranslator, TranslatedRecord};
pub use watcher::{CallProgress, Channel, NoWatcher, RetryNotice, WaitTime, Watcher};

/// The group whose events are being emitted.
#[derive(Default)]
struct GroupState {
    turn: Option<TurnId>,
    continuations: Vec<TurnId>,
    said: Option<Utterance>,
    usage: Option<Usage>,
    /// The items that show the calls of the utterance, in order.
    shown: Vec<ItemId>,
    /// The item that shows the program in the text.
    program: Option<ItemId>,
    /// The calls from code that were already emitted.
    begun: HashSet<u32>,
}

/// Emits the events of one entity to the watcher.
pub(crate) struct EventEmitter {
    runtime: Runtime,
    session: SessionId,
    model: String,
    child: ChildOf,
    group: GroupState,
    /// The intent that the first group begins with.
    intent: Option<String>,
    medium: MediumKind,
    mode: ToolMode,
    sequence: u64,
    /// The time of the emitted events: now, unless they are emitted from records.
    at: Option<Timestamp>,
}

impl EventEmitter {
    pub(crate) fn new(
        runtime: Runtime,
        run: RunId,
        model: &str,
        child: ChildOf,
        intent: Option<String>,
        (medium, mode): (MediumKind, ToolMode),
    ) -> Self {
        Self {
            runtime,
            session: SessionId::from(&run),
            model: model.to_owned(),
            child,
            group: GroupState::default(),
            intent,
            medium,
            mode,
            sequence: 0,
            at: None,
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.runtime.watcher().is_watching()
    }

    fn emit(&self, turn: TurnId, payload: impl Into<Payload>) {
        emit_event(&self.runtime, &self.session, (&turn).into(), self.at, payload.into());
    }

    /// Begins a group when a request is sent; does nothing if the request is a retry for the same group.
    pub(crate) fn begin_group(&mut self, turn: TurnId) {
        if self.group.turn == Some(turn) || !self.is_watched() {
            return;
        }
        self.group = GroupState { turn: Some(turn), ..GroupState::default() };
        let model = self.model.split_once('/').map_or(self.model.as_str(), |(_, model)| model);
        let (Ok(model_id), Some(provider_id)) = (ModelId::new(model), self.provider()) else { return };
        let start = ResponseStart { model_id, provider_id, child: self.child.clone() };
        self.emit(turn, Payload::ResponseStart(start));
        if let Some(intent) = self.intent.take() {
            self.done(turn, "intent", FinalItem::Message { content: intent.into(), origin: Origin::User });
        }
    }

    fn done(&self, turn: TurnId, item: &str, final_item: FinalItem) {
        if let Ok(item_id) = ItemId::new(&format!("{turn}/{item}")) {
            self.emit_item_done(turn, item_id, final_item);
        }
    }

    /// Stores the items that show the calls of the crystal's response.
    pub(crate) fn set_call_items(&mut self, shown: &[ItemId]) {
        self.group.shown = shown.to_vec();
    }

    /// Skips the intent, because an earlier group of the cast already emitted it.
    pub(crate) fn skip_intent(&mut self) {
        self.intent = None;
    }

    /// Emits the records of a group again, from the utterance on, because another process emitted its beginning. No new
    /// request is sent.
    pub(crate) fn replay_group(&mut self, events: &[(Timestamp, Event)], bodies: &dyn Bodies) {
        let Some((_, Event::Opened(opened))) = events.first() else { return };
        let Ok(said) = opened.utterance.load(bodies) else { return };
        let turn = opened.turn_id;
        self.begin_group(turn);
        // The items get new ids, because the ids that the other process chose are not recorded.
        self.emit_utterance(&said, &ItemIds::after(&cantrip_loom::CallId::request(turn), opened.attempt));
        self.emit_committed(events, bodies);
    }

    /// Emits an utterance as complete items.
    fn emit_utterance(&mut self, said: &Utterance, items: &ItemIds) {
        let Some(turn) = self.group.turn else { return };
        if let (Some(thinking), Some(provider_id)) = (&said.thinking, self.provider()) {
            let content = thinking.as_str().into();
            self.emit_item_done(turn, items.mint(), FinalItem::Reasoning { content, provider_id });
        }
        if let Some(content) = said.content.as_deref().filter(|content| !content.trim().is_empty()) {
            let message = FinalItem::Message { content: content.into(), origin: Origin::Agent };
            self.emit_item_done(turn, items.mint(), message);
        }
        for call in &said.calls {
            let item = items.mint();
            self.group.shown.push(item.clone());
            let (Ok(name), Ok(call_id)) = (Name::new(&call.gate), CallId::new(&call.tool_call_id)) else { continue };
            self.emit_call(turn, item, name, call_id, None, call.args.as_object());
        }
    }

    fn provider(&self) -> Option<ProviderId> {
        let provider = self.model.split_once('/').map_or("", |(provider, _)| provider);
        ProviderId::new(provider).or(ProviderId::new("own")).ok()
    }

    fn emit_item_done(&self, turn: TurnId, item_id: ItemId, final_item: FinalItem) {
        self.emit(turn, Payload::ItemDone(ItemDone { item_id, final_item }));
    }

    /// Emits the start of a call: its name, and its arguments as far as they are known.
    fn emit_call(
        &self,
        turn: TurnId,
        item_id: ItemId,
        name: Name,
        call_id: CallId,
        parent_item_id: Option<ItemId>,
        arguments: Option<&Map<String, Value>>,
    ) {
        let item = StartedItem::FunctionCall { name: name.clone(), call_id: call_id.clone(), parent_item_id };
        self.emit(turn, Payload::ItemStart(ItemStart { item_id: item_id.clone(), item }));
        if let Some(arguments) = arguments {
            let done = FinalCall { name, call_id, arguments: arguments.clone().into() };
            self.emit_item_done(turn, item_id, FinalItem::FunctionCall(done));
        }
    }

    /// Returns the sink for the crystal's streamed response.
    pub(crate) fn sink(&self, turn: TurnId) -> WatcherSink {
        WatcherSink { runtime: self.runtime.clone(), session: self.session.clone(), turn: (&turn).into() }
    }

    /// Emits the events of records that are durable now.
    pub(crate) fn emit_committed(&mut self, events: &[(Timestamp, Event)], bodies: &dyn Bodies) {
        if !self.is_watched() {
            return;
        }
        for (_, event) in events {
            self.emit_record(event, bodies);
        }
    }

    fn emit_record(&mut self, event: &Event, bodies: &dyn Bodies) {
        if let Event::Opened(opened) = event {
            self.group.said = opened.utterance.load(bodies).ok();
            self.emit_fenced_program(opened.turn_id);
            self.sequence = opened.sequence;
            self.group.usage = Some(Usage {
                input_tokens: opened.usage.prompt_tokens,
                output_tokens: opened.usage.completion_tokens,
                cache_read_input_tokens: Some(opened.usage.cached_tokens).filter(|tokens| *tokens > 0),
                cache_creation_input_tokens: opened.usage.cache_write_tokens,
                cost: opened.cost,
            });
        } else if let Event::Started(started) = event {
            if let (true, Some(asked)) = (self.medium.is_code(), &started.asked) {
                self.emit_code_call(started.call_id, asked, bodies);
            }
        } else if let Event::Settled(settled) = event {
            if settled.call_id.number() > 0 {
                self.emit_settled(settled, bodies);
            }
        } else if let Event::Turn(closed) = event {
            self.emit_invited_program(closed, bodies);
            self.emit_outputs(closed, bodies);
            self.emit_closed(&closed.closing);
        } else if let Event::End(end) = event {
            match &end.ending {
                Ending::Terminated { result, .. } => {
                    if let (Some(turn), Ok(answer)) = (self.group.turn, result.load(bodies)) {
                        let content = render::result_text(&answer).into();
                        self.done(turn, "answer", FinalItem::Message { content, origin: Origin::Agent });
                    }
                    self.end_group(ResponseStatus::Completed, None, None);
                }
                Ending::Truncated { reason, error, .. } => self.emit_truncated(*reason, error.as_ref()),
            }
        }
    }

    /// Emits the program in the text as a call of its own: its gate calls and its output belong to it.
    fn emit_fenced_program(&mut self, turn: TurnId) {
        if self.mode == ToolMode::Fenced {
            self.emit_program(turn);
        }
    }

    /// Emits a program that is in the text although a tool is offered for programs, once its output shows that it ran.
    fn emit_invited_program(&mut self, closed: &TurnClosed, bodies: &dyn Bodies) {
        let Some(turn) = self.group.turn.filter(|_| self.mode == ToolMode::Tool && self.group.program.is_none()) else {
            return;
        };
        let outputs = closed.outputs.as_ref().and_then(|outputs| outputs.load(bodies).ok()).unwrap_or_default();
        if outputs.iter().any(|output| output.tool_call_id.is_none()) {
            self.emit_program(turn);
        }
    }

    fn emit_program(&mut self, turn: TurnId) {
        let said = self.group.said.as_ref().filter(|said| said.calls.is_empty());
        let said = said.and_then(|said| said.content.as_deref());
        let Some(source) = said.and_then(|said| fence::extract_program(self.medium, said)) else { return };
        let id = program_id(turn);
        let (Ok(item), Ok(call_id), Ok(name)) = (ItemId::new(&id), CallId::new(&id), Name::new(self.medium.as_str()))
        else {
            return;
        };
        let arguments = Map::from_iter([("code".to_owned(), Value::String(source))]);
        self.emit_call(turn, item.clone(), name, call_id, None, Some(&arguments));
        self.group.program = Some(item);
    }

    /// Emits the reply of a call. A call from code that had no start record is shown here for the first time.
    fn emit_settled(&mut self, settled: &CallSettled, bodies: &dyn Bodies) {
        let Some(turn) = self.group.turn else { return };
        let number = settled.call_id.number();
        let own = self.utterance_call(settled);
        if let (None, Some(asked), false) = (&own, &settled.asked, self.group.begun.contains(&number)) {
            self.emit_code_call(settled.call_id, asked, bodies);
        }
        let call = own.unwrap_or_else(|| settled.call_id.to_string());
        let (Ok(call_id), Ok(result)) = (CallId::new(&call), settled.result.load(bodies)) else { return };
        let output = FinalOutput {
            call_id,
            output: render::result_text(&result).into(),
            is_error: !settled.reply.is_success(),
            reply: Some(tag(&settled.reply, None, None)),
        };
        self.done(turn, &format!("out-{number}"), FinalItem::FunctionCallOutput(output));
    }

    /// Returns the id of the utterance's own call that this record settles; `None` for a gate that was called from
    /// code.
    fn utterance_call(&self, settled: &CallSettled) -> Option<String> {
        let calls = &self.group.said.as_ref()?.calls;
        if self.medium.is_code() {
            let asked = settled.asked.as_ref()?;
            let own = calls.iter().find(|call| Some(&call.tool_call_id) == asked.tool_call_id.as_ref())?;
            return (canonical_name(&own.gate) == asked.gate).then(|| own.tool_call_id.clone());
        }
        let place = usize::try_from(settled.call_id.number()).unwrap_or(usize::MAX).wrapping_sub(1);
        calls.get(place).map(|call| call.tool_call_id.clone())
    }

    /// Emits a gate call from code, below its program.
    fn emit_code_call(&mut self, call: cantrip_loom::CallId, asked: &GateCallRequest, bodies: &dyn Bodies) {
        let Some(turn) = self.group.turn else { return };
        self.group.begun.insert(call.number());
        let item = ItemId::new(&format!("{turn}/call-{}", call.number()));
        let (Ok(item), Ok(name), Ok(call_id)) = (item, Name::new(&asked.gate), CallId::new(&call.to_string())) else {
            return;
        };
        let calls = self.group.said.as_ref().map(|said| said.calls.as_slice()).unwrap_or_default();
        let program = calls.iter().position(|call| Some(&call.tool_call_id) == asked.tool_call_id.as_ref());
        let parent = program.and_then(|at| self.group.shown.get(at)).or(self.group.program.as_ref()).cloned();
        let arguments = match asked.args.load(bodies) {
            Ok(Value::Object(arguments)) => arguments,
            Ok(_) | Err(_) => Map::new(),
        };
        self.emit_call(turn, item, name, call_id, parent, Some(&arguments));
    }

    /// Emits the results of ended programs as the outputs of their calls.
    fn emit_outputs(&self, closed: &TurnClosed, bodies: &dyn Bodies) {
        let Some(turn) = self.group.turn else { return };
        let outputs = closed.outputs.as_ref().and_then(|outputs| outputs.load(bodies).ok()).unwrap_or_default();
        for (at, output) in outputs.iter().enumerate() {
            let id = output.tool_call_id.clone().unwrap_or_else(|| program_id(turn));
            let Ok(call_id) = CallId::new(&id) else { continue };
            let sequence = self.sequence + self.group.continuations.len() as u64;
            let text = render::output_text(output, sequence, self.medium.as_str());
            let reply = output.reply.as_ref().map(|reply| tag(&reply.mark, reply.line, reply.column));
            let output = FinalOutput { call_id, output: text.into(), is_error: output.is_error(), reply };
            self.done(turn, &format!("{PROGRAM_OUTPUT}{sequence}-{at}"), FinalItem::FunctionCallOutput(output));
        }
    }

    fn emit_closed(&mut self, closing: &Closing) {
        match closing {
            Closing::Sealed { next, .. } => self.group.continuations.push(*next),
            // The answer is in the record of the end, which is written with this one.
            Closing::Terminated { ended_by: EndedBy::Done } => {}
            Closing::Open | Closing::Terminated { ended_by: EndedBy::Text } => {
                self.end_group(ResponseStatus::Completed, None, None);
            }
            Closing::Truncated { reason, .. } => self.emit_truncated(*reason, None),
        }
    }

    fn emit_truncated(&mut self, reason: TruncationReason, error: Option<&RecordedError>) {
        if let (TruncationReason::CrystalError, Some(fault)) = (reason, error) {
            let error = ErrorInfo::new(&fault.mark.code, &fault.message);
            self.end_group(ResponseStatus::Error, None, Some(error));
        } else {
            self.end_group(ResponseStatus::Cancelled, Some(reason.as_str()), None);
        }
    }

    /// Ends the group; only once.
    fn end_group(&mut self, status: ResponseStatus, finish_reason: Option<&str>, error: Option<ErrorInfo>) {
        let Some(turn) = self.group.turn.take() else { return };
        let continuations: Vec<_> = self.group.continuations.drain(..).map(|turn| (&turn).into()).collect();
        let done = ResponseDone {
            status,
            finish_reason: finish_reason.map(Into::into),
            error,
            usage: self.group.usage.take(),
            continuations: (!continuations.is_empty()).then(|| continuations.into()),
        };
        self.emit(turn, Payload::ResponseDone(done));
    }
}

/// The prefix of the last part of an item's id if the item is the output of a program.
const PROGRAM_OUTPUT: &str = "ran-";

/// Returns true if an item is the output of a program, and not the reply of a gate.
pub fn is_program_output(item: &ItemId) -> bool {
    item.as_str().rsplit('/').next().is_some_and(|part| part.starts_with(PROGRAM_OUTPUT))
}

/// Returns the id of the program in a turn's text.
fn program_id(turn: TurnId) -> String {
    format!("{turn}/program")
}

/// Returns the type and code of a reply; for a program also the line and column of the failure.
fn tag(reply: &ReplyMark, line: Option<u32>, column: Option<u32>) -> ReplyTag {
    let kind = match reply.reply_type {
        ReplyType::Success => ReplyKind::Success,
        ReplyType::Invalid => ReplyKind::Invalid,
        ReplyType::Denied => ReplyKind::Denied,
        ReplyType::Failure => ReplyKind::Failure,
    };
    ReplyTag { kind, code: reply.code.as_str().into(), line, column }
}

fn emit_event(runtime: &Runtime, session: &SessionId, turn_id: StreamTurn, at: Option<Timestamp>, payload: Payload) {
    if !runtime.watcher().is_watching() {
        return;
    }
    let now = at.unwrap_or_else(|| runtime.now().wall);
    let event_id = EventId::from_bits(runtime.ids().next_bits(now));
    let event = StreamEvent { event_id, timestamp: now.into(), turn_id, session_id: session.clone(), payload };
    runtime.watch(|watcher| watcher.on_event(event));
}

/// Forwards the streamed events of a crystal to the watcher.
pub(crate) struct WatcherSink {
    runtime: Runtime,
    session: SessionId,
    turn: StreamTurn,
}

impl EventSink for WatcherSink {
    fn emit(&self, event: ItemEvent) {
        emit_event(&self.runtime, &self.session, self.turn.clone(), None, event.into());
    }
}
