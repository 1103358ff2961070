//! A part of the tree: the data that a store on a disk puts into a projection, so that it uses the same rules and
//! views.
//!
//! A store with a million turns cannot hold the projection of all its records. A second way to read them, written in
//! its query language, would in time give different answers. So it keeps an index of the positions of each thing's
//! records. To check a step or to show a turn, it puts the few things that are needed into an empty projection. Things
//! that are not put there do not exist for the projection: [`Event::dependencies`] lists the things that a record
//! depends on, and the documentation of each view in its trait says which things it shows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_canon::{ApprovalId, CastId, EntityId, LoomId, RunId, Timestamp, TurnId};

use super::nodes::{CallNode, Closed, Group, Phase, StartedCall, TurnNode, TurnOf};
use super::{Head, Projection};
use crate::{
    Bodies, CallSettled, CallStarted, CallWork, Caller, Cast, Closing, Damage, Dependency, End, Entity, Epoch, Error,
    Event, Fold, FoldView, IntentRecord, Record, RewardView, Root, RunOpening, Seq,
};

/// The event of a record, with its position and time.
#[derive(Debug, Clone, PartialEq)]
pub struct RecordedEvent {
    pub seq: Seq,
    pub at: Timestamp,
    pub event: Event,
}

impl RecordedEvent {
    pub fn read(record: &Record) -> Result<Self, Error> {
        Ok(Self { seq: record.seq, at: record.at, event: record.event()? })
    }
}

/// A cantrip in a loom.
#[derive(Debug, Clone, PartialEq)]
pub struct RootPart {
    pub loom_id: LoomId,
    pub root: Arc<Root>,
    pub at: Timestamp,
}

/// The state of a run, computed from its records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPart {
    pub run_id: RunId,
    pub opening: RunOpening,
    pub created_at: Timestamp,
    pub newest: Seq,
    /// The highest epoch of its records.
    pub epoch: Epoch,
    pub phase: Phase,
    pub ended_at: Option<Timestamp>,
    pub parked: bool,
    /// Approvals that nobody has decided.
    pub approvals: BTreeSet<ApprovalId>,
    pub copied: bool,
}

/// An entity with its casts and its newest turn.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityPart {
    pub entity: Arc<Entity>,
    pub loom_id: LoomId,
    /// The run that created the entity.
    pub run_id: RunId,
    pub at: Timestamp,
    /// Oldest first.
    pub casts: Vec<CastId>,
    /// The last closed turn of the entity, and its sequence. For an entity without a turn, `sequence` is the one from
    /// which it continues.
    pub leaf: Option<TurnId>,
    pub sequence: u64,
    /// The turn that is not closed yet.
    pub open: Option<TurnId>,
    /// The cast that has neither ended nor been given up.
    pub live_cast: Option<CastId>,
    /// The position of the first fold that did not exist when the entity was made. Earlier folds of the entity it
    /// branched off from are valid for it too.
    pub folds_before: u64,
}

/// A cast and its end.
#[derive(Debug, Clone, PartialEq)]
pub struct CastPart {
    pub cast: Arc<Cast>,
    pub run_id: RunId,
    pub at: Timestamp,
    pub last_turn: Option<TurnId>,
    pub end: Option<Arc<End>>,
    /// True if the run of the cast failed and its entity was cast again.
    pub given_up: bool,
}

impl CastPart {
    pub(super) fn has_own_intent(&self) -> bool {
        matches!(self.cast.intent, IntentRecord::New(_))
    }
}

/// A closed turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnPart {
    pub id: TurnId,
    pub parent: Option<TurnId>,
    pub loom_id: LoomId,
    pub entity_id: EntityId,
    pub cast_id: CastId,
    pub sequence: u64,
    /// The turn that holds the utterance of its group.
    pub holder: TurnId,
    pub first_of_cast: bool,
    pub first_of_entity: bool,
    /// The events of the records at its [`places`](Projection::places), in order.
    pub events: Vec<RecordedEvent>,
    /// Oldest first.
    pub rewards: Vec<RewardView>,
    /// Orders the turns of a loom.
    pub place: u64,
}

/// A fold.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldPart {
    pub fold: Fold,
    pub at: Timestamp,
    /// Orders folds. It also shows which folds existed when an entity was made.
    pub place: u64,
}

impl FoldPart {
    pub fn view(&self, bodies: &dyn Bodies) -> Result<FoldView, Error> {
        Ok(FoldView { text: self.fold.text.load(bodies)?, fold: self.fold.clone(), at: self.at })
    }
}

impl Projection {
    /// Returns true if the projection contains this dependency, for a run of this loom.
    pub fn contains(&self, loom: LoomId, needed: Dependency) -> bool {
        match needed {
            Dependency::Cantrip(cantrip) => self.roots.contains_key(&(loom, cantrip)),
            Dependency::Entity(entity) => self.entities.contains_key(&entity),
            Dependency::Cast(cast) => self.casts.contains_key(&cast),
            Dependency::Turn(turn) => self.turns.contains_key(&turn),
        }
    }

    pub fn insert_root(&mut self, part: RootPart) {
        let (loom, cantrip) = (part.loom_id, part.root.cantrip_id);
        if self.roots.insert((loom, cantrip), part).is_none() {
            self.loom(loom).roots.push(cantrip);
        }
    }

    pub fn insert_run(&mut self, part: RunPart) {
        if let (Phase::Live, Some(entity)) = (part.phase, part.opening.entity_id) {
            self.live_run_by_entity.insert(entity, part.run_id);
        }
        self.loom(part.opening.loom_id);
        let id = part.run_id;
        if self.runs.insert(id, part).is_none() {
            self.run_order.push(id);
        }
    }

    /// Returns the state of a run, computed from its records.
    pub fn run_part(&self, run: RunId) -> Option<RunPart> {
        self.runs.get(&run).cloned()
    }

    /// Records that a live run holds this entity.
    pub fn insert_busy(&mut self, entity: EntityId, run: RunId) {
        self.live_run_by_entity.insert(entity, run);
    }

    pub fn insert_entity(&mut self, part: EntityPart) {
        let (loom, id) = (part.loom_id, part.entity.entity_id);
        if self.entities.insert(id, part).is_none() {
            self.loom(loom).entities.push(id);
        }
    }

    pub fn insert_cast(&mut self, part: CastPart) {
        self.casts.insert(part.cast.cast_id, part);
    }

    pub fn insert_fold(&mut self, part: FoldPart) {
        let id = part.fold.fold_id;
        let after = self.turns.get_mut(&part.fold.after);
        if let Some(turn) = after.filter(|turn| !turn.folds.contains(&id)) {
            turn.folds.push(id);
        }
        self.folds.insert(id, part);
    }

    /// Adds a closed turn. Its events must belong to it and end with its closing.
    pub fn insert_turn(&mut self, part: TurnPart) -> Result<(), Error> {
        let (run, seq) =
            (self.casts.get(&part.cast_id).map(|cast| cast.run_id), part.events.last().map(|told| told.seq));
        let misplaced = |what| Error::Damaged(Damage { run, seq, line: None, what });
        let mut started: BTreeMap<u32, Option<Arc<crate::GateCallRequest>>> = BTreeMap::new();
        let (mut opened, mut calls, mut closed) = (None, Vec::new(), None);
        let caller = Caller::Turn(part.holder);
        let places = part.events.iter().map(|told| told.seq).collect();
        for RecordedEvent { at, event, .. } in part.events {
            let is_own = event.as_opened().is_some_and(|said| said.turn_id == part.id)
                || event.as_started().is_some_and(|started| started.call_id.caller() == caller)
                || event.as_settled().is_some_and(|settled| settled.call_id.caller() == caller)
                || event.as_turn().is_some_and(|closed| closed.turn_id == part.id);
            if !is_own {
                return Err(misplaced("the index of a turn names a record that is not its own"));
            }
            if let Event::Opened(said) = event {
                opened = Some(Arc::new(said));
            } else if let Event::Started(CallStarted { call_id, asked, .. }) = event {
                started.entry(call_id.number()).or_insert(asked.map(Arc::new));
            } else if let Event::Settled(settled) = event {
                let number = settled.call_id.number();
                let asked = started.get(&number).cloned().flatten();
                let asked = asked.or_else(|| settled.asked.clone().map(Arc::new));
                calls.push(CallNode { number, asked, settled: Some(Arc::new(settled)) });
            } else if let Event::Turn(record) = event {
                closed = Some((record, at));
            }
        }
        let (record, at) = closed.ok_or_else(|| misplaced("the index of a turn does not name its closing"))?;
        if let Closing::Sealed { call, .. } = &record.closing {
            let number = call.number();
            let asked = started
                .get(&number)
                .cloned()
                .ok_or_else(|| misplaced("the index of a turn does not name what sealed it"))?;
            calls.push(CallNode { number, asked, settled: None });
        }
        calls.sort_by_key(|call| call.number);
        let of = TurnOf {
            loom: part.loom_id,
            entity: part.entity_id,
            cast: part.cast_id,
            sequence: part.sequence,
            holder: part.holder,
        };
        let node = TurnNode {
            opened,
            calls,
            places,
            first_of_cast: part.first_of_cast,
            first_of_entity: part.first_of_entity,
            closed: Some(Closed { record, at, place: part.place }),
            rewards: part.rewards,
            ..TurnNode::open(of, part.parent)
        };
        self.turns.insert(part.id, Box::new(node));
        Ok(())
    }

    /// Returns the positions of a closed turn's records in its run, in order. With these records the turn can be added
    /// again.
    pub fn places(&self, turn: TurnId) -> Option<&[Seq]> {
        self.turns.get(&turn).filter(|node| node.closed.is_some()).map(|node| &*node.places)
    }

    /// Returns a closed turn without its events.
    pub fn turn_part(&self, turn: TurnId) -> Option<TurnPart> {
        let node = self.turns.get(&turn)?;
        let closed = node.closed.as_ref()?;
        Some(TurnPart {
            id: turn,
            parent: node.parent,
            loom_id: node.loom,
            entity_id: node.entity,
            cast_id: node.cast,
            sequence: node.sequence,
            holder: node.holder,
            first_of_cast: node.first_of_cast,
            first_of_entity: node.first_of_entity,
            events: Vec::new(),
            rewards: Vec::new(),
            place: closed.place,
        })
    }

    /// Opens the turn in which the group of an entity's sealed leaf continues. The other turns of the group are added
    /// by [`restore_open`](Self::restore_open).
    pub fn reopen_sealed(&mut self, entity: EntityId) {
        let Some(node) = self.entities.get_mut(&entity).filter(|node| node.live_cast.is_some()) else { return };
        let Some((id, leaf)) = node.leaf.and_then(|leaf| Some((leaf, self.turns.get(&leaf)?))) else { return };
        let Some(Closing::Sealed { next, .. }) = leaf.closed.as_ref().map(|closed| &closed.record.closing) else {
            return;
        };
        let (next, holder) = (*next, leaf.holder);
        let since = leaf.places.last().copied().unwrap_or(Seq::START);
        let of = TurnOf { loom: leaf.loom, entity, cast: leaf.cast, sequence: leaf.sequence + 1, holder };
        node.open = Some(next);
        self.turns.insert(next, Box::new(TurnNode::open(of, Some(id))));
        self.groups.insert(holder, Group::new(next, since));
    }

    /// Restores the open turns of a run, record by record in order: the records of the groups whose last turn is
    /// sealed, and those after the last closed turn of each live entity. A record that is not about an open turn
    /// changes nothing, so records in between do no harm.
    pub fn restore_open(&mut self, record: &Record) -> Result<(), Error> {
        let event = record.event()?;
        let Some(loom) = self.runs.get(&record.run).map(|run| run.opening.loom_id) else { return Ok(()) };
        let head = Head { record, loom };
        if let Event::Opened(opened) = event {
            let cast = self.casts.get(&opened.cast_id).filter(|cast| cast.end.is_none() && !cast.given_up);
            let entity = cast.and_then(|cast| self.entities.get(&cast.cast.entity_id));
            if entity.is_some_and(|entity| entity.open.is_none() && opened.sequence == entity.sequence + 1) {
                self.open_turn(&head, opened)?;
            }
        } else if let Event::Started(started) = event {
            self.restore_started(record.seq, started);
        } else if let Event::Settled(settled) = event {
            self.restore_settled(record.seq, settled);
        }
        Ok(())
    }

    fn open_group(&mut self, caller: Caller) -> Option<&mut Group> {
        match caller {
            Caller::Turn(holder) => self.groups.get_mut(&holder),
            Caller::Fold(_) => None,
        }
    }

    fn restore_started(&mut self, seq: Seq, started: CallStarted) {
        let delegation = matches!(started.work, CallWork::Delegation { .. });
        if let Some(group) = self.open_group(started.call_id.caller()) {
            let asked = started.asked.map(Arc::new);
            group.started.entry(started.call_id.number()).or_insert(StartedCall { asked, delegation, seq });
        }
    }

    fn restore_settled(&mut self, seq: Seq, settled: CallSettled) {
        let number = settled.call_id.number();
        let Some(group) = self.open_group(settled.call_id.caller()).filter(|_| number > 0) else { return };
        if !group.settled.insert(number) || seq <= group.since {
            return;
        }
        let started = group.started.get(&number);
        let begun = started.map(|started| started.seq);
        let asked = started.and_then(|started| started.asked.clone());
        let asked = asked.or_else(|| settled.asked.clone().map(Arc::new));
        let open = group.open;
        if let Some(turn) = self.turns.get_mut(&open) {
            turn.places.extend(begun);
            turn.places.push(seq);
            turn.calls.push(CallNode { number, asked, settled: Some(Arc::new(settled)) });
        }
    }

    /// Returns the oldest record of a run that something open in it still depends on; none if nothing is open.
    pub fn oldest_open(&self) -> Option<Seq> {
        let begun = self.groups.values().flat_map(|group| {
            let unsettled = group.started.iter().filter(|(number, _)| !group.settled.contains(number));
            let open = self.turns.get(&group.open).into_iter().flat_map(|turn| turn.places.iter().copied());
            unsettled.map(|(_, started)| started.seq).chain(open)
        });
        begun.min()
    }

    /// Drops the content of a closed turn and keeps its node: enough to check which record may follow.
    pub fn drop_turn_content(&mut self, turn: TurnId) {
        if let Some(node) = self.turns.get_mut(&turn).filter(|node| node.closed.is_some()) {
            node.opened = None;
            node.calls = Vec::new();
        }
    }

    /// Drops everything that no later record of a live cast depends on, unless the record names it: closed turns
    /// except the last of each live entity, casts and entities that are over, folds, and the lists. For callers that
    /// check steps here and read views elsewhere: the projection of a run of any length stays as small as its open
    /// turns.
    pub fn trim(&mut self) {
        self.entities.retain(|_, entity| entity.live_cast.is_some());
        self.casts.retain(|_, cast| cast.end.is_none() && !cast.given_up);
        let kept: BTreeSet<TurnId> =
            self.entities.values().flat_map(|entity| [entity.leaf, entity.open]).flatten().collect();
        self.turns.retain(|id, _| kept.contains(id));
        let open: BTreeSet<TurnId> = self.turns.values().map(|turn| turn.holder).collect();
        self.groups.retain(|holder, _| open.contains(holder));
        self.folds.clear();
        for entity in self.entities.values_mut() {
            let live = entity.live_cast;
            entity.casts.retain(|cast| Some(*cast) == live);
        }
        for loom in self.looms.values_mut() {
            *loom = super::LoomNode::default();
        }
    }
}
