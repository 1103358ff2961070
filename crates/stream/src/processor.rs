//! Which upserts result from these events, and when?
//!
//! A state machine receives each event and the time, and returns the emissions for a viewer. It keeps one state per
//! turn and nothing that two turns share, so turns that interleave cannot affect each other. A task with its own
//! timers was turned down: the same events would then give other upserts on a busy machine, and no test could predict
//! them.
//!
//! `turn` has the state of a turn and its end, `items` the text items, `calls` the calls and their outputs,
//! `deadlines` the timers of all of them.

mod calls;
mod deadlines;
mod items;
mod turn;

use std::collections::{BTreeMap, HashMap};

use cantrip_canon::{Instant, Now};
use serde::Serialize;

use self::deadlines::Deadlines;
use self::turn::{Ending, Turn};
use crate::event::{ErrorInfo, Payload, StreamEvent};
use crate::id::{SessionId, TurnId};
use crate::limits;
use crate::options::{Gradient, Options};
use crate::timestamp::SourceTimestamp;
use crate::upsert::{Emission, TurnEvent};

/// The codes that the processor itself gives to an item or a turn. All other codes come from the producers.
pub mod codes {
    /// Cut off by an `item_cancelled`, or with its turn.
    pub const ITEM_CANCELLED: &str = "ITEM_CANCELLED";
    /// Started again before it ended.
    pub const ITEM_SUPERSEDED: &str = "ITEM_SUPERSEDED";
    /// Longer than the text of an item may be.
    pub const ITEM_TOO_LARGE: &str = "ITEM_TOO_LARGE";
    /// The stream was closed without a reason.
    pub const STREAM_CLOSED: &str = "STREAM_CLOSED";
    /// The response failed without a reason.
    pub const RESPONSE_ERROR: &str = "RESPONSE_ERROR";
}

/// The reason why an event was refused. Nothing has changed and nothing was emitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamFault {
    /// The producer should end this stream turn with a `response_error`; the cast continues unobserved.
    #[error("turn {turn} meets {limit} ({max})")]
    Limit { turn: TurnId, limit: &'static str, max: usize },
    #[error("turn {turn} belongs to session {session}, the event says {said}")]
    Session { turn: TurnId, session: SessionId, said: SessionId },
}

/// The number of dropped events, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DroppedCounts {
    /// Events for a turn that had ended.
    pub late: u64,
    /// Text for an item that is not open.
    pub orphan_delta: u64,
    /// The error of an unknown item.
    pub orphan_error: u64,
    /// A second output of one call.
    pub duplicate_output: u64,
    /// A second start of one call.
    pub duplicate_call: u64,
    /// Events for an item or a call that was cancelled.
    pub cancelled_item: u64,
}

/// Turns the events of any number of turns into upserts and turn events.
///
/// * Emissions are appended to `out` in the order in which a viewer must see them.
/// * Every received byte of text is in some emission by the time its item, its turn or the stream ends.
/// * The caller sleeps until [`next_deadline`](Self::next_deadline) and then calls [`tick`](Self::tick); a late tick
///   loses nothing.
/// * No call panics, and the held data is bounded by [`limits`].
#[derive(Debug, Default)]
pub struct Processor {
    options: Options,
    turns: HashMap<TurnId, Slot>,
    open: usize,
    /// Ended turns by the order of their end, to know which to forget first.
    ended: BTreeMap<u64, TurnId>,
    deadlines: Deadlines,
    dropped: DroppedCounts,
    order: Order,
}

#[derive(Debug)]
enum Slot {
    Open(Box<Turn>),
    Ended { session_id: SessionId, order: u64 },
}

/// The state of the turn that an event belongs to.
enum EventTarget {
    Open,
    /// Unknown, or ended and started again.
    New,
    Late,
}

/// A counter that numbers things in the order in which they began.
#[derive(Debug, Default)]
struct Order(u64);

impl Order {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// The parts of the processor that a turn needs to handle one event.
struct EventContext<'a> {
    options: &'a Options,
    deadlines: &'a mut Deadlines,
    dropped: &'a mut DroppedCounts,
    order: &'a mut Order,
    now: Now,
    out: &'a mut Vec<Emission>,
}

impl Processor {
    pub fn new(options: Options) -> Self {
        Self { options, ..Self::default() }
    }

    /// Changes the batching of the text that follows.
    pub fn set_gradient(&mut self, gradient: Gradient) {
        self.options.gradient = gradient;
    }

    /// Fires the timers that are due, then applies the event.
    pub fn process(&mut self, event: &StreamEvent, now: Now, out: &mut Vec<Emission>) -> Result<(), StreamFault> {
        let standing = self.admit(event)?;
        self.tick(now, out);
        match standing {
            EventTarget::Open => {}
            EventTarget::New => self.open(event),
            EventTarget::Late => {
                self.dropped.late += 1;
                return Ok(());
            }
        }
        match ending(&event.payload) {
            Some(ending) => self.end(&event.turn_id, ending, Some(event.timestamp), now, out),
            None => {
                let Self { options, turns, deadlines, dropped, order, .. } = self;
                if let Some(Slot::Open(turn)) = turns.get_mut(&event.turn_id) {
                    turn.apply(event, &mut EventContext { options, deadlines, dropped, order, now, out });
                }
            }
        }
        Ok(())
    }

    /// The time of the next timer; `None` while no item has unsent text.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first()
    }

    /// Fires the timers that are due.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Emission>) {
        let Self { options, turns, deadlines, dropped, order, .. } = self;
        while let Some((turn_id, item_id)) = deadlines.pop_due(now.monotonic) {
            if let Some(Slot::Open(turn)) = turns.get_mut(&turn_id) {
                turn.timer_fired(&item_id, &mut EventContext { options, deadlines, dropped, order, now, out });
            }
        }
    }

    /// Ends every open turn as failed, oldest first. Closing again does nothing; a `response_start` opens a turn again.
    pub fn close(&mut self, reason: Option<ErrorInfo>, now: Now, out: &mut Vec<Emission>) {
        self.tick(now, out);
        let error = reason.unwrap_or_else(|| ErrorInfo::new(codes::STREAM_CLOSED, "the stream was closed"));
        let mut open: Vec<(u64, TurnId)> = Vec::with_capacity(self.open);
        for (turn_id, slot) in &self.turns {
            match slot {
                Slot::Open(turn) => open.push((turn.order, turn_id.clone())),
                Slot::Ended { .. } => {}
            }
        }
        open.sort_unstable();
        for (_, turn_id) in open {
            let ending = Ending::Failed { error: error.clone(), usage: None };
            self.end(&turn_id, ending, None, now, out);
        }
    }

    /// The events dropped so far.
    pub fn dropped(&self) -> &DroppedCounts {
        &self.dropped
    }

    /// The number of open turns.
    pub fn open_turns(&self) -> usize {
        self.open
    }

    /// Finds the turn of the event, or returns the reason why it is refused. Nothing has changed yet.
    fn admit(&self, event: &StreamEvent) -> Result<EventTarget, StreamFault> {
        let known = self.turns.get(&event.turn_id);
        let session = match known {
            Some(Slot::Open(turn)) => Some(&turn.head.session_id),
            Some(Slot::Ended { session_id, .. }) => Some(session_id),
            None => None,
        };
        if let Some(session) = session
            && *session != event.session_id
        {
            let (turn, said) = (event.turn_id.clone(), event.session_id.clone());
            return Err(StreamFault::Session { turn, session: session.clone(), said });
        }
        let (standing, met) = match known {
            Some(Slot::Open(turn)) => (EventTarget::Open, turn.exceeded_limit(&event.payload)),
            Some(Slot::Ended { .. }) if !matches!(event.payload, Payload::ResponseStart(_)) => {
                (EventTarget::Late, None)
            }
            Some(Slot::Ended { .. }) | None => {
                // An event that opens a turn only to end it does not count as an open turn.
                let stays = !matches!(event.payload, Payload::ResponseDone(_) | Payload::ResponseError(_));
                let full = stays && self.open >= limits::OPEN_TURNS_MAX;
                let met = full.then_some(("OPEN_TURNS_MAX", limits::OPEN_TURNS_MAX));
                (EventTarget::New, met.or_else(|| turn::first_event_limit(&event.payload)))
            }
        };
        match met {
            Some((limit, max)) => Err(StreamFault::Limit { turn: event.turn_id.clone(), limit, max }),
            None => Ok(standing),
        }
    }

    fn open(&mut self, event: &StreamEvent) {
        let turn = Turn::new(event, self.order.next());
        let before = self.turns.insert(event.turn_id.clone(), Slot::Open(Box::new(turn)));
        self.open += 1;
        match before {
            Some(Slot::Ended { order, .. }) => {
                self.ended.remove(&order);
            }
            Some(Slot::Open(_)) | None => {}
        }
    }

    /// Ends an open turn; `by` is the time of the event that ends it, if an event does.
    fn end(
        &mut self,
        turn_id: &TurnId,
        ending: Ending,
        by: Option<SourceTimestamp>,
        now: Now,
        out: &mut Vec<Emission>,
    ) {
        let Self { options, turns, open, ended, deadlines, dropped, order } = self;
        let Some(slot) = turns.get_mut(turn_id) else { return };
        let session_id = match slot {
            Slot::Open(turn) => turn.head.session_id.clone(),
            Slot::Ended { .. } => return,
        };
        let at = order.next();
        match std::mem::replace(slot, Slot::Ended { session_id, order: at }) {
            Slot::Open(turn) => {
                let mut work = EventContext { options, deadlines, dropped, order, now, out };
                turn.end(ending, by, &mut work);
            }
            Slot::Ended { .. } => return,
        }
        *open -= 1;
        ended.insert(at, turn_id.clone());
        if ended.len() > limits::ENDED_TURNS_MAX
            && let Some((_, oldest)) = ended.pop_first()
        {
            turns.remove(&oldest);
        }
    }
}

/// Returns the way in which the event ends its turn, if it does.
fn ending(payload: &Payload) -> Option<Ending> {
    match payload {
        Payload::ResponseDone(done) => Some(Ending::from_response(done)),
        Payload::ResponseError(failed) => Some(Ending::Failed { error: failed.error.clone(), usage: None }),
        Payload::ResponseStart(_)
        | Payload::ItemStart(_)
        | Payload::ItemDelta(_)
        | Payload::ItemDone(_)
        | Payload::ItemError(_)
        | Payload::ItemCancelled(_) => None,
    }
}

impl Turn {
    fn apply(&mut self, event: &StreamEvent, work: &mut EventContext<'_>) {
        let at = event.timestamp;
        match &event.payload {
            Payload::ResponseStart(start) => {
                self.head.provider_id = Some(start.provider_id.clone());
                work.out.push(Emission::Turn(TurnEvent::Started {
                    turn_id: self.head.turn_id.clone(),
                    session_id: self.head.session_id.clone(),
                    model_id: start.model_id.clone(),
                    provider_id: start.provider_id.clone(),
                    child: start.child.clone(),
                }));
            }
            Payload::ItemStart(start) => self.item_start(start, at, work),
            Payload::ItemDelta(delta) => self.item_delta(delta, at, work),
            Payload::ItemDone(done) => self.item_done(done, at, work),
            Payload::ItemError(failed) => self.item_error(failed, at, work),
            Payload::ItemCancelled(cancelled) => self.item_cancelled(cancelled, at, work),
            // These end the turn. The processor does that, because it owns the slot of the turn.
            Payload::ResponseDone(_) | Payload::ResponseError(_) => {}
        }
    }
}
