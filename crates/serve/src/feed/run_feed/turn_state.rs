//! One turn in the feed of a run: its items, their numbers, and whose turn it is.

use std::collections::HashMap;
use std::sync::Arc;

use cantrip_service::cantrip::canon::{self, Timestamp};
use cantrip_service::cantrip::loom::Seq;
use cantrip_service::cantrip::stream::{EntityId, Item, ItemId, Origin, TurnEvent, TurnId, Upsert};

use super::super::feed_event::{FeedEvent, ItemPlace};
use super::RunFeed;

/// The end of the id of the item that shows the answer of `done`.
pub(super) const ANSWER: &str = "/answer";

#[derive(Default)]
pub(super) struct TurnState {
    pub(super) started: Option<(u64, Arc<FeedEvent>)>,
    /// The items in the order in which they appeared.
    pub(super) items: Vec<(u64, Arc<FeedEvent>)>,
    pub(super) places: HashMap<ItemId, usize>,
    /// The end of the turn while its sequence number is not known yet.
    pub(super) ending: Option<TurnEvent>,
    pub(super) end: Option<(u64, Arc<FeedEvent>, Seq)>,
    pub(super) opened: u64,
    pub(super) bytes: usize,
    /// True if a watcher in this process writes this turn.
    pub(super) live: bool,
    /// The time at which the turn started.
    pub(super) since: Option<Timestamp>,
    /// The child whose turn this is; none for the root of the run.
    pub(super) child: Option<EntityId>,
    /// How many of the items have a number.
    pub(super) numbered: usize,
}

/// An open turn, as a page shows it.
#[derive(Debug)]
pub(crate) struct OpenFeedTurn {
    /// The first turn of its group.
    pub(crate) turn_id: canon::TurnId,
    pub(crate) since: Timestamp,
    /// The items that have a number, in order.
    pub(crate) items: Vec<Arc<FeedEvent>>,
}

impl TurnState {
    pub(super) fn is_child(&self) -> bool {
        self.child.is_some()
    }

    /// Returns the place of an item: the one that it had, or the next one.
    pub(super) fn item_place(&mut self, upsert: &Upsert, at: Timestamp) -> ItemPlace {
        let known = self.places.get(&upsert.item_id).and_then(|place| self.items.get(*place));
        if let Some(place) = known.and_then(|(_, line)| line.place()) {
            return place;
        }
        let number = is_numbered(upsert).then_some(self.numbered);
        self.numbered += usize::from(number.is_some());
        ItemPlace { number, since: at }
    }

    fn open_turn(&self, id: &TurnId) -> Option<OpenFeedTurn> {
        let numbered = self.items.iter().map(|(_, line)| line);
        let numbered = numbered.filter(|line| line.place().is_some_and(|place| place.number.is_some()));
        Some(OpenFeedTurn {
            turn_id: id.as_str().parse().ok()?,
            since: self.since?,
            items: numbered.cloned().collect(),
        })
    }
}

/// Returns true for an item that a page shows in its turn. The intent stands in the head of a page, and the answer below
/// the thread.
fn is_numbered(upsert: &Upsert) -> bool {
    match &upsert.item {
        Item::Message { origin: Origin::User | Origin::System, .. } => false,
        Item::Message { origin: Origin::Agent, .. } => !upsert.item_id.as_str().ends_with(ANSWER),
        Item::Thinking { .. } | Item::ToolCall(_) => true,
    }
}

/// Returns the child whose turn starts.
pub(super) fn child_of(event: &TurnEvent) -> Option<EntityId> {
    match event {
        TurnEvent::Started { child, .. } => child.entity_id.clone(),
        TurnEvent::Complete { .. } | TurnEvent::Error { .. } => None,
    }
}

impl RunFeed {
    /// Returns true if a turn has ended and its end is an event.
    pub(crate) fn has_ended(&self, turn: &TurnId) -> bool {
        self.state().turns.get(turn).is_some_and(|turn| turn.end.is_some())
    }

    /// Returns the open turn of a child, or of the root. An entity has one at most; a turn whose end was told may still
    /// wait for its record here, for as long as nobody views the run.
    pub(crate) fn open_turn(&self, child: Option<&EntityId>) -> Option<OpenFeedTurn> {
        let state = self.state();
        let is_open = |turn: &TurnState| turn.end.is_none() && turn.ending.is_none() && turn.child.as_ref() == child;
        let open = state.turns.iter().filter(|(_, turn)| is_open(turn));
        let (id, turn) = open.max_by_key(|(_, turn)| turn.opened)?;
        turn.open_turn(id)
    }
}
