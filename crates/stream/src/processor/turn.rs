//! What does a turn keep, and what is emitted when it ends?
//!
//! One entry per named item, one per call, and the outputs that came before their call. An entry outlives its item. So
//! a cancelled item stays cancelled, and the bound on the items of a turn also bounds what a viewer must keep.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Call, HeldOutput};
use super::items::OpenText;
use super::{EventContext, codes};
use crate::event::{ErrorInfo, FinalItem, Payload, ResponseDone, ResponseStatus, StartedItem, StreamEvent, Usage};
use crate::id::{CallId, ItemId, ProviderId, SessionId, TurnId};
use crate::limits;
use crate::timestamp::SourceTimestamp;
use crate::upsert::{Emission, Item, Status, TurnEvent, TurnStatus, Upsert};

#[derive(Debug)]
pub(super) struct Turn {
    pub(super) head: TurnHead,
    /// The order of this turn among the turns of its processor.
    pub(super) order: u64,
    pub(super) items: HashMap<ItemId, Entry>,
    pub(super) calls: HashMap<CallId, Call>,
    /// Outputs whose call has not been announced, in order of arrival, at most one per call.
    pub(super) held: Vec<HeldOutput>,
    pub(super) held_bytes: usize,
}

/// The fields that every emission of a turn has.
#[derive(Debug)]
pub(super) struct TurnHead {
    pub(super) turn_id: TurnId,
    pub(super) session_id: SessionId,
    /// `None` until a `response_start` names the provider.
    pub(super) provider_id: Option<ProviderId>,
}

/// The state of an id that was named as an item.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub(super) cancelled: bool,
    pub(super) text: Option<Box<OpenText>>,
    /// The calls announced under this id; more than one only if a producer repeats itself.
    pub(super) calls: Vec<CallId>,
}

/// The way in which a turn ends.
#[derive(Debug)]
pub(super) enum Ending {
    Completed(Closing),
    Cancelled(Closing),
    Failed { error: ErrorInfo, usage: Option<Usage> },
}

/// The last data of a turn that did not fail.
#[derive(Debug)]
pub(super) struct Closing {
    usage: Option<Usage>,
    finish_reason: Option<Arc<str>>,
    continuations: Option<Arc<[TurnId]>>,
}

impl Ending {
    pub(super) fn from_response(done: &ResponseDone) -> Self {
        let closing = || Closing {
            usage: done.usage,
            finish_reason: done.finish_reason.clone(),
            continuations: done.continuations.clone(),
        };
        match done.status {
            ResponseStatus::Completed => Self::Completed(closing()),
            ResponseStatus::Cancelled => Self::Cancelled(closing()),
            ResponseStatus::Error => {
                let error = done.error.clone().unwrap_or_else(|| ErrorInfo {
                    code: done.finish_reason.clone().unwrap_or_else(|| codes::RESPONSE_ERROR.into()),
                    message: "the response ended with status error".into(),
                });
                Self::Failed { error, usage: done.usage }
            }
        }
    }

    /// The status of an item that is still open when the turn ends so.
    pub(super) fn interrupted_status(&self) -> Status {
        match self {
            Self::Completed(_) => Status::Complete { incomplete: true },
            Self::Cancelled(_) => Status::Error { code: codes::ITEM_CANCELLED.into(), message: None },
            Self::Failed { error, .. } => error.clone().into(),
        }
    }
}

impl TurnHead {
    pub(super) fn upsert(
        &self,
        item_id: ItemId,
        source_timestamp: SourceTimestamp,
        status: Status,
        item: Item,
        work: &mut EventContext<'_>,
    ) {
        work.out.push(Emission::Upsert(Upsert {
            turn_id: self.turn_id.clone(),
            session_id: self.session_id.clone(),
            item_id,
            source_timestamp,
            emitted_at: work.now.wall,
            status,
            item,
        }));
    }
}

/// The name and the value of a limit.
pub(super) type LimitHit = (&'static str, usize);

impl Turn {
    pub(super) fn new(event: &StreamEvent, order: u64) -> Self {
        Self {
            head: TurnHead { turn_id: event.turn_id.clone(), session_id: event.session_id.clone(), provider_id: None },
            order,
            items: HashMap::new(),
            calls: HashMap::new(),
            held: Vec::new(),
            held_bytes: 0,
        }
    }

    pub(super) fn is_cancelled(&self, item_id: &ItemId) -> bool {
        self.items.get(item_id).is_some_and(|entry| entry.cancelled)
    }

    /// Returns the limit that the event would exceed, if there is one.
    pub(super) fn exceeded_limit(&self, payload: &Payload) -> Option<LimitHit> {
        match payload {
            Payload::ItemStart(start) => match &start.item {
                StartedItem::Message { .. } | StartedItem::Reasoning { .. } => self.item_limit(&start.item_id),
                StartedItem::FunctionCall { call_id, .. } => self.call_limit(call_id, &start.item_id),
                StartedItem::FunctionCallOutput { .. } => None,
            },
            Payload::ItemDone(done) => match &done.final_item {
                FinalItem::Message { .. } | FinalItem::Reasoning { .. } => self.item_limit(&done.item_id),
                FinalItem::FunctionCall(call) => self.call_limit(&call.call_id, &done.item_id),
                FinalItem::FunctionCallOutput(output) => {
                    let waits = !self.calls.contains_key(&output.call_id)
                        && !self.is_cancelled(&done.item_id)
                        && !self.held.iter().any(|held| held.call_id == output.call_id);
                    if waits { held_output_limit(self.held.len(), self.held_bytes, output.output.len()) } else { None }
                }
            },
            Payload::ItemCancelled(cancelled) => self.item_limit(&cancelled.item_id),
            Payload::ResponseStart(_)
            | Payload::ItemDelta(_)
            | Payload::ItemError(_)
            | Payload::ResponseDone(_)
            | Payload::ResponseError(_) => None,
        }
    }

    fn item_limit(&self, item_id: &ItemId) -> Option<LimitHit> {
        let full = self.items.len() >= limits::TURN_ITEMS_MAX && !self.items.contains_key(item_id);
        full.then_some(("TURN_ITEMS_MAX", limits::TURN_ITEMS_MAX))
    }

    fn call_limit(&self, call_id: &CallId, item_id: &ItemId) -> Option<LimitHit> {
        if self.calls.contains_key(call_id) || self.is_cancelled(item_id) {
            return None;
        }
        let full = self.calls.len() >= limits::TURN_ITEMS_MAX;
        full.then_some(("TURN_ITEMS_MAX", limits::TURN_ITEMS_MAX)).or_else(|| self.item_limit(item_id))
    }

    /// Ends the open items in the order of their start, then the held outputs, then the turn. `by` is the time of the
    /// event that ends the turn; without one, each item has the time of its own last event.
    pub(super) fn end(mut self, ending: Ending, by: Option<SourceTimestamp>, work: &mut EventContext<'_>) {
        let mut open: Vec<(u64, OpenItem)> = Vec::new();
        for (item_id, entry) in self.items.drain() {
            if let Some(text) = entry.text {
                open.push((text.order, OpenItem::Text(item_id, text)));
            }
        }
        for (call_id, call) in self.calls.drain() {
            if call.is_pending() {
                open.push((call.order, OpenItem::Call(call_id, call)));
            }
        }
        open.sort_unstable_by_key(|(order, _)| *order);
        for (_, open) in open {
            match open {
                OpenItem::Text(item_id, mut text) => text.interrupt(&self.head, item_id, &ending, by, work),
                OpenItem::Call(call_id, call) => {
                    call.show(&self.head, call_id, ending.interrupted_status(), by.unwrap_or(call.source), work)
                }
            }
        }
        for held in self.held.drain(..) {
            let at = by.unwrap_or(held.source);
            held.show(&self.head, ending.interrupted_status(), at, work);
        }
        work.out.push(Emission::Turn(self.head.end_event(ending)));
    }
}

enum OpenItem {
    Text(ItemId, Box<OpenText>),
    Call(CallId, Call),
}

impl TurnHead {
    fn end_event(self, ending: Ending) -> TurnEvent {
        let Self { turn_id, session_id, .. } = self;
        let (status, closing) = match ending {
            Ending::Completed(closing) => (TurnStatus::Completed, closing),
            Ending::Cancelled(closing) => (TurnStatus::Cancelled, closing),
            Ending::Failed { error, usage } => {
                let ErrorInfo { code, message } = error;
                return TurnEvent::Error { turn_id, session_id, error_code: code, error_message: message, usage };
            }
        };
        let Closing { usage, finish_reason, continuations } = closing;
        TurnEvent::Complete { turn_id, session_id, status, usage, finish_reason, continuations }
    }
}

/// Returns the only limit that the first event of a turn can exceed.
pub(super) fn first_event_limit(payload: &Payload) -> Option<LimitHit> {
    match payload {
        Payload::ItemDone(done) => match &done.final_item {
            FinalItem::FunctionCallOutput(output) => held_output_limit(0, 0, output.output.len()),
            FinalItem::Message { .. } | FinalItem::Reasoning { .. } | FinalItem::FunctionCall(_) => None,
        },
        Payload::ResponseStart(_)
        | Payload::ItemStart(_)
        | Payload::ItemDelta(_)
        | Payload::ItemError(_)
        | Payload::ItemCancelled(_)
        | Payload::ResponseDone(_)
        | Payload::ResponseError(_) => None,
    }
}

fn held_output_limit(held: usize, held_bytes: usize, bytes: usize) -> Option<LimitHit> {
    if held >= limits::HELD_OUTPUTS_MAX {
        Some(("HELD_OUTPUTS_MAX", limits::HELD_OUTPUTS_MAX))
    } else if held_bytes + bytes > limits::HELD_OUTPUT_BYTES_MAX {
        Some(("HELD_OUTPUT_BYTES_MAX", limits::HELD_OUTPUT_BYTES_MAX))
    } else {
        None
    }
}
