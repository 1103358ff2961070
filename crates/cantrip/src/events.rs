//! What can be seen of a run while it runs?
//!
//! Canonical events, in the order in which things happen; those that report a record come after its commit. Watching is
//! an observation: a watcher that is slow, full or gone loses events and changes nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cantrip_canon::{RunId, Timestamp, TurnId};
use cantrip_crystal::{ItemEvent, Sink};
use cantrip_loom::{Bodies, Closing, EndedBy, Ending, Event, Fault, ReplyMark, TruncationReason, Utterance, render};
use cantrip_reply::ReplyType;
use cantrip_stream::{
    CallId, ChildOf, ErrorInfo, EventId, FinalItem, FinalOutput, ItemDone, ItemId, ModelId, Origin, Payload,
    ProviderId, ReplyKind, ReplyTag, ResponseDone, ResponseStart, ResponseStatus, SessionId, StreamEvent, Usage,
};
use tokio::sync::mpsc;

use crate::driver::Runtime;
use crate::limits::WATCHED_EVENTS_MAX;

/// Whoever watches runs. `see` returns at once, whatever becomes of the event.
pub trait Watcher: Send + Sync {
    fn see(&self, event: StreamEvent);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Watcher for Silent {
    fn see(&self, _: StreamEvent) {}
}

/// Hands events to whoever holds the other end, as long as there is room; the rest is counted and dropped.
#[derive(Debug, Clone)]
pub struct Channel {
    to: mpsc::Sender<StreamEvent>,
    dropped: Arc<AtomicU64>,
}

impl Channel {
    pub fn new() -> (Self, mpsc::Receiver<StreamEvent>) {
        let (to, from) = mpsc::channel(WATCHED_EVENTS_MAX);
        (Self { to, dropped: Arc::default() }, from)
    }

    /// Events that nobody could take.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Watcher for Channel {
    fn see(&self, event: StreamEvent) {
        if self.to.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One entity's way to the watcher.
pub(crate) struct Stage {
    runtime: Runtime,
    session: SessionId,
    model: String,
    child: ChildOf,
    /// The group that is being told.
    turn: Option<TurnId>,
    continuations: Vec<TurnId>,
    said: Option<Utterance>,
    usage: Option<Usage>,
    /// What the first group begins with.
    intent: Option<String>,
    code: bool,
}

impl Stage {
    pub(crate) fn new(runtime: Runtime, run: RunId, model: &str, child: ChildOf, intent: String, code: bool) -> Self {
        Self {
            runtime,
            session: SessionId::from(&run),
            model: model.to_owned(),
            child,
            turn: None,
            continuations: Vec::new(),
            said: None,
            usage: None,
            intent: Some(intent),
            code,
        }
    }

    fn tell(&self, turn: TurnId, payload: impl Into<Payload>) {
        tell(&self.runtime, &self.session, turn, payload.into());
    }

    /// A request leaves: a group begins, or is asked for again.
    pub(crate) fn asks(&mut self, turn: TurnId) {
        if self.turn == Some(turn) {
            return;
        }
        self.turn = Some(turn);
        self.continuations.clear();
        self.said = None;
        self.usage = None;
        let (provider, model) = self.model.split_once('/').unwrap_or(("", self.model.as_str()));
        let (Ok(model_id), Ok(provider_id)) =
            (ModelId::new(model), ProviderId::new(provider).or(ProviderId::new("own")))
        else {
            return;
        };
        let start = ResponseStart { model_id, provider_id, child: self.child.clone() };
        self.tell(turn, Payload::ResponseStart(start));
        if let Some(intent) = self.intent.take() {
            self.done(turn, "intent", FinalItem::Message { content: intent.into(), origin: Origin::User });
        }
    }

    fn done(&self, turn: TurnId, item: &str, final_item: FinalItem) {
        if let Ok(item_id) = ItemId::new(&format!("{turn}/{item}")) {
            self.tell(turn, Payload::ItemDone(ItemDone { item_id, final_item }));
        }
    }

    /// Where the crystal says what it says.
    pub(crate) fn sink(&self, turn: TurnId) -> Heard {
        Heard { runtime: self.runtime.clone(), session: self.session.clone(), turn }
    }

    /// Records are durable: what they report may be seen.
    pub(crate) fn committed(&mut self, events: &[(Timestamp, Event)], bodies: &dyn Bodies) {
        for (_, event) in events {
            self.reported(event, bodies);
        }
    }

    fn reported(&mut self, event: &Event, bodies: &dyn Bodies) {
        match event {
            Event::Opened(opened) => {
                self.said = opened.utterance.load(bodies).ok();
                self.usage = Some(Usage {
                    input_tokens: opened.usage.prompt_tokens,
                    output_tokens: opened.usage.completion_tokens,
                    cache_read_input_tokens: Some(opened.usage.cached_tokens).filter(|tokens| *tokens > 0),
                    cache_creation_input_tokens: opened.usage.cache_write_tokens,
                });
            }
            Event::Settled(settled) if settled.call_id.number() > 0 => {
                let Some(turn) = self.turn else { return };
                let number = settled.call_id.number();
                let place = usize::try_from(number).unwrap_or(usize::MAX).wrapping_sub(1);
                let said = self.said.as_ref().filter(|_| !self.code).and_then(|said| said.calls.get(place));
                let call = said.map_or_else(|| settled.call_id.to_string(), |call| call.tool_call_id.clone());
                let Ok(result) = settled.result.load(bodies) else { return };
                let Ok(call_id) = CallId::new(&call) else { return };
                let output = FinalOutput {
                    call_id,
                    output: render::result_text(&result).into(),
                    is_error: !settled.reply.is_success(),
                    reply: Some(tag(&settled.reply)),
                };
                self.done(turn, &format!("out-{number}"), FinalItem::FunctionCallOutput(output));
            }
            Event::Turn(closed) => match &closed.closing {
                Closing::Sealed { next, .. } => self.continuations.push(*next),
                Closing::Open => self.over(ResponseStatus::Completed, None, None),
                Closing::Terminated { ended_by } => match ended_by {
                    // The answer stands in the record of the end, which comes with this one.
                    EndedBy::Done => {}
                    EndedBy::Text => self.over(ResponseStatus::Completed, None, None),
                },
                Closing::Truncated { reason, .. } => self.cut(*reason, None),
            },
            Event::End(end) => match &end.ending {
                Ending::Terminated { result, .. } => {
                    if let (Some(turn), Ok(answer)) = (self.turn, result.load(bodies)) {
                        let content = render::result_text(&answer).into();
                        self.done(turn, "answer", FinalItem::Message { content, origin: Origin::Agent });
                    }
                    self.over(ResponseStatus::Completed, None, None);
                }
                Ending::Truncated { reason, error, .. } => self.cut(*reason, error.as_ref()),
            },
            Event::Settled(_)
            | Event::Root(_)
            | Event::Entity(_)
            | Event::Cast(_)
            | Event::Attempt(_)
            | Event::Started(_)
            | Event::Fold(_)
            | Event::Parked(_)
            | Event::Failed(_)
            | Event::Reward(_)
            | Event::Other { .. } => {}
        }
    }

    fn cut(&mut self, reason: TruncationReason, error: Option<&Fault>) {
        match (reason, error) {
            (TruncationReason::CrystalError, Some(fault)) => {
                let error = ErrorInfo::new(&fault.mark.code, &fault.message);
                self.over(ResponseStatus::Error, None, Some(error));
            }
            (
                TruncationReason::CrystalError
                | TruncationReason::MaxTurns
                | TruncationReason::Timeout
                | TruncationReason::MaxTokens
                | TruncationReason::MaxCost
                | TruncationReason::ParentTerminated
                | TruncationReason::Cancelled
                | TruncationReason::LoopDetected,
                _,
            ) => self.over(ResponseStatus::Cancelled, Some(reason.as_str()), None),
        }
    }

    /// A group closes; once.
    fn over(&mut self, status: ResponseStatus, finish_reason: Option<&str>, error: Option<ErrorInfo>) {
        let Some(turn) = self.turn.take() else { return };
        let continuations: Vec<_> = self.continuations.drain(..).map(|turn| (&turn).into()).collect();
        let done = ResponseDone {
            status,
            finish_reason: finish_reason.map(Into::into),
            error,
            usage: self.usage.take(),
            continuations: (!continuations.is_empty()).then(|| continuations.into()),
        };
        self.tell(turn, Payload::ResponseDone(done));
    }
}

fn tag(reply: &ReplyMark) -> ReplyTag {
    let kind = match reply.reply_type {
        ReplyType::Success => ReplyKind::Success,
        ReplyType::Invalid => ReplyKind::Invalid,
        ReplyType::Denied => ReplyKind::Denied,
        ReplyType::Failure => ReplyKind::Failure,
    };
    ReplyTag { kind, code: reply.code.as_str().into() }
}

fn tell(runtime: &Runtime, session: &SessionId, turn: TurnId, payload: Payload) {
    let now = runtime.now().wall;
    let name = format!("{:032x}", runtime.ids().next_bits(now));
    let (Ok(event_id), Ok(timestamp)) = (EventId::new(&name), now.to_string().parse()) else { return };
    let session_id = session.clone();
    runtime.watcher().see(StreamEvent { event_id, timestamp, turn_id: (&turn).into(), session_id, payload });
}

/// What a crystal says, on its way to the watcher.
pub(crate) struct Heard {
    runtime: Runtime,
    session: SessionId,
    turn: TurnId,
}

impl Sink for Heard {
    fn hear(&self, event: ItemEvent) {
        tell(&self.runtime, &self.session, self.turn, event.into());
    }
}
