//! When is the text of a message or of a thinking item sent?
//!
//! When there are enough new tokens, when a timer fires, and always when the item ends. Thresholds count tokens and
//! timers watch bytes: text that adds no token (white space, the rest of a word) is never counted and never lost.

use cantrip_canon::Instant;

use super::turn::{Ending, Turn, TurnHead};
use super::{EventContext, codes};
use crate::event::{FinalItem, ItemCancelled, ItemDelta, ItemDone, ItemError, ItemStart, Origin, StartedItem};
use crate::id::ItemId;
use crate::limits;
use crate::options::{EmissionPace, Timers};
use crate::text::{Text, TextBuffer};
use crate::timestamp::SourceTimestamp;
use crate::upsert::{Item, Status};

/// A message or a thinking item that is still growing.
#[derive(Debug)]
pub(super) struct OpenText {
    kind: Kind,
    pub(super) order: u64,
    text: TextBuffer,
    pace: EmissionPace,
    shown: bool,
    /// The time of the last delta, or of the start.
    source: SourceTimestamp,
    last_delta: Instant,
    /// The arrival of the oldest byte that no emission has shown; `None` if there is no such byte.
    unsent_since: Option<Instant>,
    /// The deadline of this item, if it has one.
    armed: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Message,
    Reasoning,
}

impl Turn {
    pub(super) fn item_start(&mut self, start: &ItemStart, at: SourceTimestamp, work: &mut EventContext<'_>) {
        if let Some(entry) = self.items.get_mut(&start.item_id) {
            entry.cancelled = false;
        }
        match &start.item {
            StartedItem::Message { initial_content } => {
                self.open_text(&start.item_id, Kind::Message, initial_content, at, work);
            }
            StartedItem::Reasoning { initial_content } => {
                self.open_text(&start.item_id, Kind::Reasoning, initial_content, at, work);
            }
            StartedItem::FunctionCall { name, call_id, parent_item_id } => {
                self.call_start(&start.item_id, name, call_id, parent_item_id.as_ref(), at, work);
            }
            StartedItem::FunctionCallOutput { .. } => {}
        }
    }

    fn open_text(
        &mut self,
        item_id: &ItemId,
        kind: Kind,
        initial: &Text,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let entry = self.items.entry(item_id.clone()).or_default();
        if let Some(mut old) = entry.text.take() {
            let message = "the item was started again before it ended";
            let status = Status::Error { code: codes::ITEM_SUPERSEDED.into(), message: Some(message.into()) };
            old.finish(&self.head, item_id, status, at, work);
        }
        let mut text = Box::new(OpenText {
            kind,
            order: work.order.next(),
            text: TextBuffer::default(),
            pace: EmissionPace::default(),
            shown: false,
            source: at,
            last_delta: work.now.monotonic,
            unsent_since: None,
            armed: None,
        });
        for piece in initial.segments() {
            if text.append(piece, at, work.now.monotonic).is_err() {
                text.finish(&self.head, item_id, too_large(), at, work);
                return;
            }
        }
        text.arm(&self.head, item_id, work);
        entry.text = Some(text);
    }

    pub(super) fn item_delta(&mut self, delta: &ItemDelta, at: SourceTimestamp, work: &mut EventContext<'_>) {
        if delta.delta_content.is_empty() {
            return;
        }
        let Some(entry) = self.items.get_mut(&delta.item_id) else {
            work.dropped.orphan_delta += 1;
            return;
        };
        match &mut entry.text {
            Some(text) => {
                if text.append(&delta.delta_content, at, work.now.monotonic).is_ok() {
                    if text.pace.is_due(text.text.tokens(), &work.options.gradient) {
                        text.emit(&self.head, &delta.item_id, work);
                    } else {
                        text.arm(&self.head, &delta.item_id, work);
                    }
                } else if let Some(mut text) = entry.text.take() {
                    text.finish(&self.head, &delta.item_id, too_large(), at, work);
                }
            }
            None if entry.cancelled => work.dropped.cancelled_item += 1,
            // Deltas of arguments are not shown and not missing: the final arguments follow.
            None if !entry.calls.is_empty() => {}
            None => work.dropped.orphan_delta += 1,
        }
    }

    pub(super) fn item_done(&mut self, done: &ItemDone, at: SourceTimestamp, work: &mut EventContext<'_>) {
        if self.is_cancelled(&done.item_id) {
            work.dropped.cancelled_item += 1;
            return;
        }
        match &done.final_item {
            FinalItem::Message { content, origin } => {
                let item = |content| Item::Message { content, origin: *origin };
                self.text_done(&done.item_id, content, item, at, work);
            }
            FinalItem::Reasoning { content, provider_id } => {
                let item = |content| Item::Thinking { content, provider_id: Some(provider_id.clone()) };
                self.text_done(&done.item_id, content, item, at, work);
            }
            FinalItem::FunctionCall(call) => self.call_done(&done.item_id, call, at, work),
            FinalItem::FunctionCallOutput(output) => self.output_done(&done.item_id, output, at, work),
        }
    }

    fn text_done(
        &mut self,
        item_id: &ItemId,
        content: &Text,
        item: impl FnOnce(Text) -> Item,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let entry = self.items.entry(item_id.clone()).or_default();
        if let Some(mut text) = entry.text.take() {
            text.flush(&self.head, item_id, work);
            text.disarm(work);
        }
        let (content, status) = within_limit(content);
        self.head.upsert(item_id.clone(), at, status, item(content), work);
    }

    pub(super) fn item_error(&mut self, failed: &ItemError, at: SourceTimestamp, work: &mut EventContext<'_>) {
        let status = Status::from(failed.error.clone());
        if let Some(entry) = self.items.get_mut(&failed.item_id) {
            if entry.cancelled {
                work.dropped.cancelled_item += 1;
                return;
            }
            if let Some(mut text) = entry.text.take() {
                text.disarm(work);
                text.show(&self.head, failed.item_id.clone(), status, at, work);
                return;
            }
            if !entry.calls.is_empty() {
                let calls = entry.calls.clone();
                self.fail_calls(&calls, &status, at, work);
                return;
            }
        }
        if !self.end_held_outputs(&failed.item_id, &status, at, work) {
            work.dropped.orphan_error += 1;
        }
    }

    pub(super) fn item_cancelled(
        &mut self,
        cancelled: &ItemCancelled,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let message = cancelled.reason.map(|reason| reason.as_str().into());
        let status = Status::Error { code: codes::ITEM_CANCELLED.into(), message };
        let entry = self.items.entry(cancelled.item_id.clone()).or_default();
        entry.cancelled = true;
        if let Some(mut text) = entry.text.take() {
            text.finish(&self.head, &cancelled.item_id, status.clone(), at, work);
        }
        if !entry.calls.is_empty() {
            let calls = entry.calls.clone();
            self.cancel_calls(&calls, &status, at, work);
        }
        self.end_held_outputs(&cancelled.item_id, &status, at, work);
    }

    pub(super) fn timer_fired(&mut self, item_id: &ItemId, work: &mut EventContext<'_>) {
        if let Some(text) = self.items.get_mut(item_id).and_then(|entry| entry.text.as_mut()) {
            // The deadline was removed before this call.
            text.armed = None;
            text.emit(&self.head, item_id, work);
        }
    }
}

/// The text did not fit; the part that did is in the item.
struct TooLarge;

impl OpenText {
    fn append(&mut self, piece: &str, at: SourceTimestamp, now: Instant) -> Result<(), TooLarge> {
        let room = limits::ITEM_TEXT_BYTES_MAX.saturating_sub(self.text.len());
        self.text.push(&piece[..piece.floor_char_boundary(room)]);
        self.source = at;
        self.last_delta = now;
        self.unsent_since.get_or_insert(now);
        if piece.len() > room { Err(TooLarge) } else { Ok(()) }
    }

    fn item(&mut self, head: &TurnHead) -> Item {
        let content = self.text.snapshot();
        match self.kind {
            Kind::Message => Item::Message { content, origin: Origin::Agent },
            Kind::Reasoning => Item::Thinking { content, provider_id: head.provider_id.clone() },
        }
    }

    /// Sends the text so far as `create` or `update`.
    fn emit(&mut self, head: &TurnHead, item_id: &ItemId, work: &mut EventContext<'_>) {
        let status = if self.shown { Status::Update } else { Status::Create };
        let item = self.item(head);
        head.upsert(item_id.clone(), self.source, status, item, work);
        self.shown = true;
        self.pace.emitted(self.text.tokens(), &work.options.gradient);
        self.unsent_since = None;
        self.disarm(work);
    }

    /// Sends the text so far if it has tokens that no emission has shown.
    fn flush(&mut self, head: &TurnHead, item_id: &ItemId, work: &mut EventContext<'_>) {
        if self.pace.unsent(self.text.tokens()) > 0 {
            self.emit(head, item_id, work);
        }
    }

    fn show(
        &mut self,
        head: &TurnHead,
        item_id: ItemId,
        status: Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let item = self.item(head);
        head.upsert(item_id, at, status, item, work);
    }

    /// Ends the item with this status, without an emission if no viewer could know that it existed.
    fn finish(
        &mut self,
        head: &TurnHead,
        item_id: &ItemId,
        status: Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        self.disarm(work);
        if self.shown || !self.text.is_empty() {
            self.show(head, item_id.clone(), status, at, work);
        }
    }

    /// Ends the item together with its turn.
    pub(super) fn interrupt(
        &mut self,
        head: &TurnHead,
        item_id: ItemId,
        ending: &Ending,
        by: Option<SourceTimestamp>,
        work: &mut EventContext<'_>,
    ) {
        match ending {
            Ending::Completed(_) => self.flush(head, &item_id, work),
            Ending::Cancelled(_) | Ending::Failed { .. } => {}
        }
        let at = by.unwrap_or(self.source);
        self.finish(head, &item_id, ending.interrupted_status(), at, work);
    }

    fn arm(&mut self, head: &TurnHead, item_id: &ItemId, work: &mut EventContext<'_>) {
        let deadline = self.deadline(&work.options.timers);
        work.deadlines.set(&mut self.armed, deadline, self.order, || (head.turn_id.clone(), item_id.clone()));
    }

    fn disarm(&mut self, work: &mut EventContext<'_>) {
        work.deadlines.clear(&mut self.armed, self.order);
    }

    /// The earliest of the running timers.
    fn deadline(&self, timers: &Timers) -> Option<Instant> {
        let since = self.unsent_since?;
        let waiting = if self.shown { timers.max } else { timers.first };
        let by_age = waiting.map(|wait| since.after(wait));
        let by_silence = timers.idle.map(|wait| self.last_delta.after(wait));
        [by_age, by_silence].into_iter().flatten().min()
    }
}

fn too_large() -> Status {
    let message = format!("the item is longer than {} bytes; this is its beginning", limits::ITEM_TEXT_BYTES_MAX);
    Status::Error { code: codes::ITEM_TOO_LARGE.into(), message: Some(message.into()) }
}

/// The text of an item that ends, cut to the limit, and its final status.
pub(super) fn within_limit(content: &Text) -> (Text, Status) {
    if content.len() > limits::ITEM_TEXT_BYTES_MAX {
        (content.cut(limits::ITEM_TEXT_BYTES_MAX), too_large())
    } else {
        (content.clone(), Status::Complete { incomplete: false })
    }
}
