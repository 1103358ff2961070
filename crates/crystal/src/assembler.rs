//! How do a provider's chunks become canonical events, and what is the complete answer?
//!
//! Every crystal feeds its chunks to an [`Assembler`] and gets its answer from it. So the rules are in one place: what
//! an item is, when a call starts, how arguments are parsed and how a broken stream ends. The code of a provider only
//! translates its wire format. The answer is assembled from the same pieces that were streamed, so the two cannot
//! differ.
//!
//! A secret of this process that a provider or its model repeats is replaced here, also where it is spread over several
//! pieces, before the sink gets it and before it becomes part of the answer.

use cantrip_canon::{SecretStream, json, known_secrets, replace_known_secrets};
use cantrip_loom::{Finish, GateCall, ProviderParts, Usage, Utterance};
use cantrip_stream::{
    Arguments, CallId, CancelReason, FinalCall, FinalItem, ItemCancelled, ItemDelta, ItemDone, ItemId, ItemStart, Name,
    Origin, ProviderId, StartedItem, Text,
};
use serde_json::{Map, Value};

use crate::limits::{ANSWER_BYTES_MAX, ANSWER_CALLS_MAX};
use crate::{Answer, Cause, Charge, EventSink, Failure, ItemEvent, ItemIds, Request};

/// Assembles one answer while it streams.
///
/// A piece that would exceed a bound is refused with the cause of the failure, which the caller passes to
/// [`Assembler::fail`]. Dropping the assembler ends no item: the code that dropped the request knows why its items end.
///
/// ```
/// # use cantrip_canon::IdSource;
/// # use cantrip_crystal::{Assembler, AnswerEnd, Caller, MessageLog, Request, NullSink};
/// # use cantrip_loom::{CallId, Finish};
/// # let ids = IdSource::seeded(1);
/// # let now = cantrip_canon::Timestamp::EPOCH;
/// # let caller = Caller { entity: ids.next(now), spawned_by: None, request: CallId::request(ids.next(now)) };
/// let request = Request::new(caller, MessageLog::new().all());
/// let mut said = Assembler::new("scripted/a.yaml", &request, &NullSink);
/// said.text("I look. ")?;
/// said.call(0, Some("c1"), Some("read"))?;
/// said.arguments(0, "{\"path\":")?;
/// said.arguments(0, " \"a.txt\"}")?;
/// let answer = said.finish(AnswerEnd::new("tape", Finish::Calls)).unwrap();
/// assert_eq!(answer.utterance.content.as_deref(), Some("I look. "));
/// assert_eq!(answer.utterance.calls[0].args["path"], "a.txt");
/// # Ok::<(), cantrip_crystal::Cause>(())
/// ```
pub struct Assembler<'a> {
    crystal: &'a str,
    provider: ProviderId,
    items: &'a ItemIds,
    heard: &'a dyn EventSink,
    open: Option<OpenText>,
    content: String,
    thinking: String,
    calls: Vec<PartialCall>,
    started: u64,
    /// True if the pieces may contain secrets of this process.
    filters: bool,
}

/// The end of an answer as the provider reports it.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerEnd {
    /// The model that answered.
    pub model: String,
    pub finish: Finish,
    pub usage: Option<Usage>,
    pub parts: Option<ProviderParts>,
}

impl AnswerEnd {
    /// Creates an end without usage and without provider parts.
    pub fn new(model: impl Into<String>, finish: Finish) -> Self {
        Self { model: model.into(), finish, usage: None, parts: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Message,
    Reasoning,
}

struct OpenText {
    kind: Kind,
    item: ItemId,
    /// The offset of its text in the content or the thinking.
    from: usize,
    started: u64,
    secrets: SecretStream,
}

/// A call whose arguments are still arriving.
struct PartialCall {
    key: u64,
    id: Option<String>,
    name: Option<Name>,
    arguments: String,
    /// Removes secrets from the arguments before they are sent to the sink.
    secrets: SecretStream,
    /// None until the name is known.
    item: Option<CallItem>,
    /// True if the arguments are complete.
    done: bool,
    /// True if the arguments are complete and an object, so the call's item is done too.
    item_done: bool,
}

struct CallItem {
    item: ItemId,
    call_id: CallId,
    /// The number of argument bytes that were sent as deltas.
    bytes: usize,
    started: u64,
}

impl<'a> Assembler<'a> {
    pub fn new(crystal: &'a str, request: &'a Request, heard: &'a dyn EventSink) -> Self {
        let provider = crystal.split('/').next().unwrap_or(crystal);
        let provider =
            ProviderId::new(provider).or_else(|_| ProviderId::new("unnamed")).expect("a short word is an id");
        Self {
            crystal,
            provider,
            items: &request.items,
            heard,
            open: None,
            content: String::new(),
            thinking: String::new(),
            calls: Vec::new(),
            started: 0,
            filters: true,
        }
    }

    /// Turns secret replacement off, for an answer from a record. Secrets were replaced before it was recorded, so no
    /// text is held back.
    pub(crate) fn without_redaction(mut self) -> Self {
        self.filters = false;
        self
    }

    /// Adds text to the message.
    pub fn text(&mut self, piece: &str) -> Result<(), Cause> {
        self.write(Kind::Message, piece)
    }

    /// Adds text to the reasoning.
    pub fn thinking(&mut self, piece: &str) -> Result<(), Cause> {
        self.write(Kind::Reasoning, piece)
    }

    /// Ends the current block of text or reasoning, as reported by the provider. The next piece starts a new item.
    pub fn end_block(&mut self) {
        self.flush();
        let Some(OpenText { kind, item, from, .. }) = self.open.take() else { return };
        let final_item = match kind {
            Kind::Message => FinalItem::Message { content: Text::from(&self.content[from..]), origin: Origin::Agent },
            Kind::Reasoning => {
                FinalItem::Reasoning { content: Text::from(&self.thinking[from..]), provider_id: self.provider.clone() }
            }
        };
        self.heard.emit(ItemEvent::Done(ItemDone { item_id: item, final_item }));
    }

    /// Records a call, identified within this answer by `key`, the provider's index. The id and the name may arrive
    /// separately and repeatedly; the first value of each is kept. The call starts once its name is known, with the id
    /// that is known by then or with a generated one.
    pub fn call(&mut self, key: u64, id: Option<&str>, name: Option<&str>) -> Result<(), Cause> {
        let at = self.call_index(key)?;
        let call = &mut self.calls[at];
        if call.item.is_none() {
            // An id that no event can carry is treated as missing.
            if call.id.is_none() {
                call.id = id.filter(|id| CallId::new(id).is_ok()).map(str::to_owned);
            }
            if call.name.is_none() {
                call.name = name.and_then(|name| Name::new(name).ok());
            }
            if call.id.is_some() && call.name.is_some() {
                self.start(at);
            }
        }
        Ok(())
    }

    /// Adds to the arguments of call `key`.
    pub fn arguments(&mut self, key: u64, fragment: &str) -> Result<(), Cause> {
        let at = self.call_index(key)?;
        if fragment.is_empty() || self.calls[at].done {
            return Ok(());
        }
        self.check_room(fragment.len())?;
        self.calls[at].arguments.push_str(fragment);
        self.start(at);
        self.emit_arguments(at);
        Ok(())
    }

    /// Sets the arguments of call `key` received so far, from a provider that repeats what it has already sent.
    pub fn arguments_so_far(&mut self, key: u64, whole: &str) -> Result<(), Cause> {
        let at = self.call_index(key)?;
        let known = self.calls[at].arguments.len();
        match whole.strip_prefix(&*self.calls[at].arguments) {
            Some(added) => self.arguments(key, added),
            None if self.calls[at].done => Ok(()),
            None => {
                // The provider took something back. The deltas that were shown are provisional; the end of the call has
                // the final arguments.
                self.check_room(whole.len().saturating_sub(known))?;
                self.calls[at].arguments = whole.to_owned();
                Ok(())
            }
        }
    }

    /// Marks the arguments of call `key` as complete.
    pub fn end_call(&mut self, key: u64) -> Result<(), Cause> {
        let at = self.call_index(key)?;
        self.close_call(at);
        Ok(())
    }

    /// Returns true if call `key` is known.
    pub fn has_call(&self, key: u64) -> bool {
        self.calls.iter().any(|call| call.key == key)
    }

    /// Returns true if a call other than `key` has this id.
    #[cfg(feature = "http")]
    pub(crate) fn has_other_call(&self, key: u64, id: &str) -> bool {
        self.calls.iter().any(|call| call.key != key && call.id.as_deref() == Some(id))
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls.len()
    }

    /// Finishes an answer that reached its regular end. A refusal is a failure, and so is a call without a name.
    pub fn finish(mut self, ending: AnswerEnd) -> Result<Answer, Failure> {
        let charge = ending.usage.map_or(Charge::Unknown, Charge::Reported);
        self.end_block();
        for at in 0..self.calls.len() {
            self.close_call(at);
        }
        if ending.finish == Finish::Refusal {
            let reason = if self.content.trim().is_empty() { "no reason given" } else { &*self.content };
            let cause = Cause::Refused { reason: reason.into() };
            return Err(self.fail(cause, charge));
        }
        if self.calls.iter().any(|call| call.item.is_none()) {
            return Err(self.fail(Cause::Broken { detail: "a call came without a name".into() }, charge));
        }
        // Some providers report `stop` together with calls, and some `tool_calls` without any.
        let finish = match ending.finish {
            Finish::Stop if !self.calls.is_empty() => Finish::Calls,
            Finish::Calls if self.calls.is_empty() => Finish::Stop,
            finish @ (Finish::Stop | Finish::Calls | Finish::Length | Finish::Refusal | Finish::Other(_)) => finish,
        };
        let (mut calls, mut call_items) = (Vec::new(), Vec::new());
        for call in self.calls {
            let (Some(shown), Some(name)) = (call.item, call.name) else { continue };
            call_items.push(shown.item);
            calls.push(GateCall {
                tool_call_id: shown.call_id.as_str().to_owned(),
                gate: name.as_str().to_owned(),
                args: parse_arguments(&call.arguments),
            });
        }
        let said = |text: String| (!text.is_empty()).then_some(text);
        // A provider's own parts must be sent back unmodified. If they contain a secret they are dropped.
        let secret =
            |parts: &ProviderParts| known_secrets().is_some_and(|known| known.occur_in(&parts.parts.to_string()));
        let parts = ending.parts.filter(|parts| !secret(parts));
        let utterance = Utterance {
            content: said(self.content),
            calls,
            thinking: said(self.thinking),
            parts,
            model: ending.model,
            finish,
        };
        Ok(Answer { utterance, usage: ending.usage, call_items })
    }

    /// Ends a failed attempt: cancels all open items, oldest first, because a retry will produce them again.
    pub fn fail(mut self, cause: Cause, charge: Charge) -> Failure {
        let mut open: Vec<(u64, ItemId)> = Vec::new();
        open.extend(self.open.take().map(|text| (text.started, text.item)));
        for call in self.calls.iter_mut().filter(|call| !call.item_done) {
            open.extend(call.item.take().map(|shown| (shown.started, shown.item)));
        }
        open.sort_by_key(|(started, _)| *started);
        for (_, item_id) in open {
            self.heard.emit(ItemEvent::Cancelled(ItemCancelled { item_id, reason: Some(CancelReason::Retry) }));
        }
        Failure::new(self.crystal, cause, charge)
    }

    fn write(&mut self, kind: Kind, piece: &str) -> Result<(), Cause> {
        if piece.is_empty() {
            return Ok(());
        }
        self.check_room(piece.len())?;
        if self.open.as_ref().is_none_or(|open| open.kind != kind) {
            self.end_block();
            let (from, item) = match kind {
                Kind::Message => (self.content.len(), StartedItem::Message { initial_content: Text::default() }),
                Kind::Reasoning => (self.thinking.len(), StartedItem::Reasoning { initial_content: Text::default() }),
            };
            let item_id = self.items.mint();
            let started = ItemStart { item_id: item_id.clone(), item };
            let (item, secrets) = (item_id.clone(), SecretStream::default());
            self.open = Some(OpenText { kind, item, from, started: self.started, secrets });
            self.started += 1;
            self.heard.emit(ItemEvent::Start(started));
        }
        let certain = match &mut self.open {
            Some(open) if self.filters => open.secrets.push(piece),
            Some(_) | None => piece.to_owned(),
        };
        self.emit_text(certain);
        Ok(())
    }

    /// Sends the part of the open text that was held back because it could have been the beginning of a secret.
    fn flush(&mut self) {
        let held = self.open.as_mut().map(|open| open.secrets.finish());
        self.emit_text(held.unwrap_or_default());
    }

    /// Adds to the open text.
    fn emit_text(&mut self, piece: String) {
        let Some(open) = self.open.as_ref().filter(|_| !piece.is_empty()) else { return };
        match open.kind {
            Kind::Message => self.content.push_str(&piece),
            Kind::Reasoning => self.thinking.push_str(&piece),
        }
        let (item_id, delta_content) = (open.item.clone(), piece.into());
        self.heard.emit(ItemEvent::Delta(ItemDelta { item_id, delta_content }));
    }

    fn check_room(&self, bytes: usize) -> Result<(), Cause> {
        let arguments: usize = self.calls.iter().map(|call| call.arguments.len()).sum();
        if self.content.len() + self.thinking.len() + arguments + bytes > ANSWER_BYTES_MAX {
            return Err(Cause::TooLarge { limit: ANSWER_BYTES_MAX, unit: "bytes" });
        }
        Ok(())
    }

    fn call_index(&mut self, key: u64) -> Result<usize, Cause> {
        if let Some(at) = self.calls.iter().position(|call| call.key == key) {
            return Ok(at);
        }
        if self.calls.len() == ANSWER_CALLS_MAX {
            return Err(Cause::TooLarge { limit: ANSWER_CALLS_MAX, unit: "calls" });
        }
        self.end_block();
        let call = PartialCall {
            key,
            id: None,
            name: None,
            arguments: String::new(),
            secrets: SecretStream::default(),
            item: None,
            done: false,
            item_done: false,
        };
        self.calls.push(call);
        Ok(self.calls.len() - 1)
    }

    /// Starts the item of a call that has a name but no item yet.
    fn start(&mut self, at: usize) {
        let minted = self.items.call_id(at + 1);
        let call = &mut self.calls[at];
        let (None, Some(name)) = (&call.item, &call.name) else { return };
        let id = call.id.as_deref().unwrap_or(&minted);
        let call_id = CallId::new(id).expect("a given id was looked at, and one of ours is short");
        let item_id = self.items.mint();
        let item = StartedItem::FunctionCall { name: name.clone(), call_id: call_id.clone(), parent_item_id: None };
        call.item = Some(CallItem { item: item_id.clone(), call_id, bytes: 0, started: self.started });
        self.started += 1;
        self.heard.emit(ItemEvent::Start(ItemStart { item_id, item }));
    }

    /// Sends the arguments that have not been sent.
    fn emit_arguments(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let Some(shown) = &mut call.item else { return };
        let Some(unsent) = call.arguments.get(shown.bytes..).filter(|unsent| !unsent.is_empty()) else { return };
        let certain = if self.filters { call.secrets.push(unsent) } else { unsent.to_owned() };
        shown.bytes = call.arguments.len();
        if !certain.is_empty() {
            let (item_id, delta_content) = (shown.item.clone(), certain.into());
            self.heard.emit(ItemEvent::Delta(ItemDelta { item_id, delta_content }));
        }
    }

    fn close_call(&mut self, at: usize) {
        if self.calls[at].done {
            return;
        }
        self.start(at);
        self.emit_arguments(at);
        let call = &mut self.calls[at];
        let (Some(shown), Some(name)) = (&call.item, &call.name) else { return };
        call.done = true;
        let held = call.secrets.finish();
        if !held.is_empty() {
            let (item_id, delta_content) = (shown.item.clone(), held.into());
            self.heard.emit(ItemEvent::Delta(ItemDelta { item_id, delta_content }));
        }
        if let std::borrow::Cow::Owned(replaced) = replace_known_secrets(&call.arguments) {
            call.arguments = replaced;
        }
        // Arguments that are not an object are refused by the circle; that refusal is the output of the call.
        if let Value::Object(arguments) = parse_arguments(&call.arguments) {
            call.item_done = true;
            let call =
                FinalCall { name: name.clone(), call_id: shown.call_id.clone(), arguments: Arguments::from(arguments) };
            let (item_id, final_item) = (shown.item.clone(), FinalItem::FunctionCall(call));
            self.heard.emit(ItemEvent::Done(ItemDone { item_id, final_item }));
        }
    }
}

/// Returns arguments as sent over the wire. A string is sent as it is, whether or not it is JSON.
pub(crate) fn arguments_text(args: &Value) -> String {
    args.as_str().map_or_else(|| args.to_string(), str::to_owned)
}

/// Parses arguments into a value. Empty text is `{}`; text that does not parse stays a string.
fn parse_arguments(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        return Value::Object(Map::new());
    }
    json::read_foreign(arguments).unwrap_or_else(|_| Value::String(arguments.to_owned()))
}

impl std::fmt::Debug for Assembler<'_> {
    /// Prints sizes only: answers do not belong in logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Assembler")
            .field("crystal", &self.crystal)
            .field("content", &self.content.len())
            .field("thinking", &self.thinking.len())
            .field("calls", &self.calls.len())
            .finish_non_exhaustive()
    }
}
