//! What is shown of a call from its first appearance until its output?
//!
//! It is announced at once, under the item id of its first appearance, and keeps that id. Start, final arguments and
//! output may come under three item ids, in any order; they are one call because they have one call id. An output that
//! comes before its call is held. Showing it alone and renaming it later was turned down, because a viewer would then
//! keep two items for one call.

use super::items::within_limit;
use super::turn::{Turn, TurnHead};
use super::{EventContext, turn};
use crate::event::{Arguments, FinalCall, FinalOutput, Name};
use crate::id::{CallId, ItemId};
use crate::timestamp::SourceTimestamp;
use crate::upsert::{Item, Status, ToolCall, ToolOutput};

/// A call that was announced.
#[derive(Debug)]
pub(super) struct Call {
    item_id: ItemId,
    name: Name,
    arguments: Arguments,
    parent_item_id: Option<ItemId>,
    state: State,
    pub(super) order: u64,
    /// The time of its first appearance.
    pub(super) source: SourceTimestamp,
}

#[derive(Debug)]
enum State {
    Pending,
    /// Its item failed; a later output still completes it.
    Failed,
    Cancelled,
    Settled(ToolOutput),
}

/// An output whose call has not been announced.
#[derive(Debug)]
pub(super) struct HeldOutput {
    item_id: ItemId,
    pub(super) call_id: CallId,
    output: ToolOutput,
    pub(super) source: SourceTimestamp,
}

impl Turn {
    pub(super) fn call_start(
        &mut self,
        item_id: &ItemId,
        name: &Name,
        call_id: &CallId,
        parent_item_id: Option<&ItemId>,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        if self.calls.contains_key(call_id) {
            work.dropped.duplicate_call += 1;
            return;
        }
        let mut call = Call::new(item_id, name, Arguments::default(), at, work);
        call.parent_item_id = parent_item_id.cloned();
        self.announce(call_id, call, at, work);
    }

    pub(super) fn call_done(
        &mut self,
        item_id: &ItemId,
        done: &FinalCall,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let Some(call) = self.calls.get_mut(&done.call_id) else {
            let call = Call::new(item_id, &done.name, done.arguments.clone(), at, work);
            self.announce(&done.call_id, call, at, work);
            return;
        };
        if let State::Cancelled = call.state {
            work.dropped.cancelled_item += 1;
            return;
        }
        let changed = call.name != done.name || call.arguments != done.arguments;
        call.name = done.name.clone();
        call.arguments = done.arguments.clone();
        let status = match call.state {
            State::Pending if work.options.announce_arguments => Status::Update,
            State::Settled(_) if changed => Status::Complete { incomplete: false },
            // A failed call changes only if an output still comes.
            State::Pending | State::Failed | State::Settled(_) | State::Cancelled => return,
        };
        call.show(&self.head, done.call_id.clone(), status, at, work);
    }

    pub(super) fn output_done(
        &mut self,
        item_id: &ItemId,
        done: &FinalOutput,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let FinalOutput { call_id, output, is_error, reply } = done;
        let output = ToolOutput { text: output.clone(), is_error: *is_error, reply: reply.clone() };
        if let Some(call) = self.calls.get_mut(call_id) {
            match call.state {
                State::Pending | State::Failed => call.settle(&self.head, call_id, output, at, work),
                State::Settled(_) => work.dropped.duplicate_output += 1,
                State::Cancelled => work.dropped.cancelled_item += 1,
            }
        } else if self.held.iter().any(|held| held.call_id == *call_id) {
            work.dropped.duplicate_output += 1;
        } else {
            self.held_bytes += output.text.len();
            self.held.push(HeldOutput { item_id: item_id.clone(), call_id: call_id.clone(), output, source: at });
        }
    }

    /// Shows a call for the first time, and directly after it its output if that was held.
    fn announce(&mut self, call_id: &CallId, mut call: Call, at: SourceTimestamp, work: &mut EventContext<'_>) {
        call.show(&self.head, call_id.clone(), Status::Create, at, work);
        if let Some(index) = self.held.iter().position(|held| held.call_id == *call_id) {
            let held = self.held.remove(index);
            self.held_bytes -= held.output.text.len();
            call.settle(&self.head, call_id, held.output, at, work);
        }
        self.items.entry(call.item_id.clone()).or_default().calls.push(call_id.clone());
        self.calls.insert(call_id.clone(), call);
    }

    pub(super) fn fail_calls(
        &mut self,
        calls: &[CallId],
        status: &Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        for call_id in calls {
            let Some(call) = self.calls.get_mut(call_id) else { continue };
            match call.state {
                State::Pending => call.state = State::Failed,
                State::Failed | State::Settled(_) => {}
                State::Cancelled => {
                    work.dropped.cancelled_item += 1;
                    continue;
                }
            }
            call.show(&self.head, call_id.clone(), status.clone(), at, work);
        }
    }

    pub(super) fn cancel_calls(
        &mut self,
        calls: &[CallId],
        status: &Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        for call_id in calls {
            let Some(call) = self.calls.get_mut(call_id) else { continue };
            match call.state {
                State::Pending => {
                    call.state = State::Cancelled;
                    call.show(&self.head, call_id.clone(), status.clone(), at, work);
                }
                State::Failed => call.state = State::Cancelled,
                State::Settled(_) | State::Cancelled => {}
            }
        }
    }

    /// Ends the outputs that are held under this item id; returns true if there were any.
    pub(super) fn end_held_outputs(
        &mut self,
        item_id: &ItemId,
        status: &Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) -> bool {
        let ended: Vec<HeldOutput> = self.held.extract_if(.., |held| held.item_id == *item_id).collect();
        for held in &ended {
            self.held_bytes -= held.output.text.len();
            held.show(&self.head, status.clone(), at, work);
        }
        !ended.is_empty()
    }
}

impl Call {
    fn new(item: &ItemId, name: &Name, arguments: Arguments, at: SourceTimestamp, work: &mut EventContext<'_>) -> Self {
        Self {
            item_id: item.clone(),
            name: name.clone(),
            arguments,
            parent_item_id: None,
            state: State::Pending,
            order: work.order.next(),
            source: at,
        }
    }

    pub(super) fn is_pending(&self) -> bool {
        matches!(self.state, State::Pending)
    }

    fn settle(
        &mut self,
        head: &TurnHead,
        call_id: &CallId,
        output: ToolOutput,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let (text, status) = within_limit(&output.text);
        self.state = State::Settled(ToolOutput { text, ..output });
        self.show(head, call_id.clone(), status, at, work);
    }

    pub(super) fn show(
        &self,
        head: &turn::TurnHead,
        call_id: CallId,
        status: Status,
        at: SourceTimestamp,
        work: &mut EventContext<'_>,
    ) {
        let output = match &self.state {
            State::Settled(output) => Some(output.clone()),
            State::Pending | State::Failed | State::Cancelled => None,
        };
        let call = ToolCall {
            name: self.name.clone(),
            arguments: self.arguments.clone(),
            call_id,
            output,
            parent_item_id: self.parent_item_id.clone(),
        };
        head.upsert(self.item_id.clone(), at, status, Item::ToolCall(call), work);
    }
}

impl HeldOutput {
    /// Shows the output alone, as the output of a call that was never announced.
    pub(super) fn show(&self, head: &TurnHead, status: Status, at: SourceTimestamp, work: &mut EventContext<'_>) {
        let call = ToolCall {
            name: Name::unknown(),
            arguments: Arguments::default(),
            call_id: self.call_id.clone(),
            output: Some(self.output.clone()),
            parent_item_id: None,
        };
        head.upsert(self.item_id.clone(), at, status, Item::ToolCall(call), work);
    }
}
