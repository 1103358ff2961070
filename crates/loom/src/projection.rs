//! From records to the tree: one pure piece of code for every store.
//!
//! [`Projection::apply`] takes the records one by one, in the order of writing. Its cost does not depend on the size
//! of the tree: it adds nodes and links, and copies no history. It is also the only place that knows which record may
//! follow which. A writer calls it before a record is stored, and a violation is a bug of that writer; a reader calls
//! it afterwards, and the same violation is damage.

mod dependencies;
mod nodes;
mod parts;
mod resolve;
mod rules;
mod views;

use std::collections::{BTreeMap, HashMap};

use cantrip_canon::{CastId, EntityId, FoldId, LoomId, RunId, TurnId};

use crate::{CantripId, Error, Event, Kind, Record, RecordDraft, RunOpening, RunState, Seq};

pub use dependencies::Dependency;
pub use nodes::Phase;
pub use parts::{CastPart, EntityPart, FoldPart, RecordedEvent, RootPart, RunPart, TurnPart};
pub use resolve::IdPrefix;

use nodes::{Group, LoomNode, TurnNode};

/// The tree of all records that have been applied.
#[derive(Debug, Default)]
pub struct Projection {
    looms: BTreeMap<LoomId, LoomNode>,
    loom_order: Vec<LoomId>,
    roots: BTreeMap<(LoomId, CantripId), RootPart>,
    runs: BTreeMap<RunId, RunPart>,
    run_order: Vec<RunId>,
    entities: BTreeMap<EntityId, EntityPart>,
    /// The live run that holds each entity.
    live_run_by_entity: HashMap<EntityId, RunId>,
    casts: BTreeMap<CastId, CastPart>,
    /// Boxed, because turns are large, and the nodes of a B-tree are half empty if keys are inserted in order.
    turns: BTreeMap<TurnId, Box<TurnNode>>,
    /// The groups whose last turn is open, by the turn that holds the utterance.
    groups: HashMap<TurnId, Group>,
    folds: BTreeMap<FoldId, FoldPart>,
}

/// The facts about a record that every rule needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub record: &'a Record,
    pub loom: LoomId,
}

impl Head<'_> {
    pub(crate) fn refuse(&self, fault: &'static str) -> Error {
        incoherent(self.record, fault)
    }
}

fn incoherent(record: &Record, fault: &'static str) -> Error {
    Error::Incoherent { run: record.run, kind: record.kind.to_string(), fault }
}

impl Projection {
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the next record. If it does not follow from the records before it, nothing changes.
    pub fn apply(&mut self, record: &Record) -> Result<(), Error> {
        let (event, opening) = record.read()?;
        self.apply_event(record, event, opening)
    }

    /// Applies a record with the draft of its writer, so that the payload need not be parsed again.
    pub fn apply_draft(&mut self, record: &Record, draft: RecordDraft) -> Result<(), Error> {
        self.apply_event(record, draft.event, draft.opening)
    }

    /// Applies a record whose payload has been parsed.
    pub(crate) fn apply_event(
        &mut self,
        record: &Record,
        event: Event,
        opening: Option<RunOpening>,
    ) -> Result<(), Error> {
        let loom = match (self.runs.get(&record.run), &opening) {
            (None, Some(opening)) if record.seq == Seq::START.next() => opening.loom_id,
            (None, _) => return Err(incoherent(record, "its run is not open")),
            (Some(_), Some(_)) => return Err(incoherent(record, "its run is open already")),
            (Some(run), None) if record.seq == run.newest.next() => run.opening.loom_id,
            (Some(_), None) => return Err(incoherent(record, "its place is not the next one")),
        };
        let head = Head { record, loom };
        let annotates = record.kind.annotates();
        if let Some(opening) = opening {
            self.check_opening(&head, &opening)?;
            self.add_event(&head, event)?;
            self.open_run(&head, opening);
        } else {
            self.add_event(&head, event)?;
        }
        let run = self.runs.get_mut(&record.run).expect("it was open, or was opened above");
        run.newest = record.seq;
        run.epoch = run.epoch.max(record.epoch);
        if record.kind == Kind::JobClosed {
            run.parked = false;
        } else if !annotates && record.kind != Kind::Failed {
            if run.reopen()
                && let Some(entity) = run.opening.entity_id
            {
                self.live_run_by_entity.insert(entity, record.run);
            }
            if record.kind != Kind::Parked && record.kind != Kind::JobParked {
                run.parked = false;
            }
        }
        Ok(())
    }

    fn check_opening(&self, head: &Head<'_>, opening: &RunOpening) -> Result<(), Error> {
        match opening.entity_id {
            Some(entity) if self.live_run_by_entity.contains_key(&entity) => {
                Err(head.refuse("its entity has another live run"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn open_run(&mut self, head: &Head<'_>, opening: RunOpening) {
        let loom = opening.loom_id;
        self.loom(loom);
        let run = RunPart::opened(head.record, opening);
        if let (Some(entity), true) = (run.opening.entity_id, run.is_live()) {
            self.live_run_by_entity.insert(entity, head.record.run);
        }
        self.runs.insert(head.record.run, run);
        self.run_order.push(head.record.run);
    }

    fn loom(&mut self, loom: LoomId) -> &mut LoomNode {
        self.looms.entry(loom).or_insert_with(|| {
            self.loom_order.push(loom);
            LoomNode::default()
        })
    }

    /// Returns true if the request of a turn has been answered.
    pub(crate) fn is_opened(&self, turn: TurnId) -> bool {
        self.turns.contains_key(&turn)
    }

    /// Returns true if a call of the group whose utterance `holder` has is settled, or if the group is over.
    pub(crate) fn is_settled(&self, holder: TurnId, number: u32) -> bool {
        match self.groups.get(&holder) {
            Some(group) => group.settled.contains(&number),
            None => self.turns.contains_key(&holder),
        }
    }

    /// Marks a run as written elsewhere.
    pub fn mark_copied(&mut self, run: RunId) {
        if let Some(run) = self.runs.get_mut(&run) {
            run.copied = true;
        }
    }

    /// Returns true if a run has ended, so that only annotations may follow; none if the run is unknown.
    pub fn has_ended(&self, run: RunId) -> Option<bool> {
        self.runs.get(&run).map(RunPart::has_ended)
    }

    /// Returns the live run that holds an entity.
    pub fn live_run_by_entity(&self, entity: EntityId) -> Option<RunId> {
        self.live_run_by_entity.get(&entity).copied()
    }

    /// Returns the entity of a run if the run has failed. A failed run that continues has to claim its entity again.
    pub(crate) fn failed_entity(&self, run: RunId) -> Option<EntityId> {
        let run = self.runs.get(&run)?;
        run.opening.entity_id.filter(|_| run.has_failed())
    }

    pub(crate) fn end_run(&mut self, record: &Record, state: RunState) {
        if let Some(run) = self.runs.get_mut(&record.run) {
            run.end(record.at, state);
            let (entity, of) = (run.opening.entity_id, record.run);
            if let Some(entity) = entity
                && self.live_run_by_entity.get(&entity) == Some(&of)
            {
                self.live_run_by_entity.remove(&entity);
            }
        }
    }
}
