//! A part of a thread, the marks of its spine, and the lines of a drawing.
//!
//! A path ends at sequence 1 here. The ancestors of a child's first turn belong to the entity that spawned it, and the
//! sequence numbers begin again there.

use std::collections::{BTreeSet, HashMap};
use std::ops::RangeInclusive;

use cantrip_canon::{CastId, EntityId, LoomId, Money, RunId, TurnId};
use cantrip_reply::ReplyType;

use super::Projection;
use crate::{
    Bodies, DamagedTurn, Ending, Entity, Error, FoldPart, Origin, PathBucket, RecordSpan, RecordedError, RunState, Seq,
    ThreadSummary, TruncationReason, TurnWindow, WindowPlace, summary_text,
};

/// Returns the turn at which an entity branched off, or whose call spawned it.
fn origin_turn(entity: &Entity) -> Option<TurnId> {
    match entity.origin {
        Origin::Root => None,
        Origin::Child { parent, .. } => Some(parent),
        Origin::Fork(fork) => Some(fork.turn),
    }
}

impl Projection {
    /// Returns the turns of the path that have these sequence numbers, oldest first.
    fn turns_between(&self, leaf: TurnId, range: &RangeInclusive<u64>) -> Result<Vec<TurnId>, Error> {
        let (mut ids, mut next) = (Vec::new(), Some(leaf));
        while let Some(id) = next {
            let node = self.closed_turn(id)?.0;
            if range.contains(&node.sequence) {
                ids.push(id);
            }
            next = node.parent.filter(|_| node.sequence > (*range.start()).max(1));
        }
        ids.reverse();
        Ok(ids)
    }

    /// Returns the folds that are valid for the path to a turn, oldest first.
    fn path_folds(&self, leaf: TurnId) -> Result<Vec<&FoldPart>, Error> {
        let mut found = Vec::new();
        self.fold_nodes(leaf, None, |at| {
            found.extend(at);
            true
        })?;
        found.sort_by_key(|node| node.place);
        Ok(found)
    }

    /// Returns a part of the path to a turn, without its branches.
    pub(crate) fn window(
        &self,
        leaf: TurnId,
        place: WindowPlace,
        most: usize,
        bodies: &dyn Bodies,
    ) -> Result<TurnWindow, Error> {
        let last = self.closed_turn(leaf)?.0.sequence;
        let ids = match place.range(last, most) {
            Some(range) => self.turns_between(leaf, &range)?,
            None => Vec::new(),
        };
        let mut window = TurnWindow { first: 1, last, ..TurnWindow::default() };
        let mut met = BTreeSet::new();
        for id in &ids {
            self.add_to_window(*id, &mut window, &mut met, bodies)?;
        }
        for fold in self.path_folds(leaf)?.into_iter().filter(|node| ids.contains(&node.fold.after)) {
            window.folds.push(fold.view(bodies)?);
        }
        Ok(window)
    }

    fn add_to_window(
        &self,
        id: TurnId,
        window: &mut TurnWindow,
        met: &mut BTreeSet<CastId>,
        bodies: &dyn Bodies,
    ) -> Result<(), Error> {
        let node = self.closed_turn(id)?.0;
        window.rewards.extend(node.rewards.iter().cloned());
        match self.turn(id, bodies) {
            Ok(turn) => {
                let at = |place: Option<&Seq>| place.copied().unwrap_or(Seq::START);
                window.spans.push(RecordSpan { first: at(node.places.first()), last: at(node.places.last()) });
                window.turns.push(turn);
            }
            Err(error @ Error::BodyAltered(_)) => {
                let error = RecordedError::new(error.code(), error.to_string());
                window.damaged.push(DamagedTurn { turn_id: id, sequence: node.sequence, error });
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if met.insert(node.cast) {
            window.casts.push(self.cast(node.cast, bodies)?);
        }
        Ok(())
    }

    /// Lists the entities of a loom that begin at one of these turns, in the order of creation.
    pub(crate) fn entities_begun_at(&self, turns: &BTreeSet<TurnId>, loom: LoomId) -> Result<Vec<EntityId>, Error> {
        let begins = |id: &&EntityId| {
            let origin = self.entities.get(id).and_then(|node| origin_turn(&node.entity));
            origin.is_some_and(|turn| turns.contains(&turn))
        };
        Ok(self.loom_node(loom)?.entities.iter().filter(begins).copied().collect())
    }

    /// Returns a bucket for each turn of the path, oldest first, with the run of the turn. The replies and the cost are
    /// not in it.
    pub(crate) fn path_marks(&self, leaf: TurnId) -> Result<Vec<(RunId, PathBucket)>, Error> {
        let node = self.closed_turn(leaf)?.0;
        let (mut forks, mut children, mut folds) = (HashMap::new(), HashMap::new(), HashMap::new());
        let count = |counts: &mut HashMap<TurnId, u32>, turn| *counts.entry(turn).or_default() += 1;
        for entity in self.loom_node(node.loom)?.entities.iter().filter_map(|id| self.entities.get(id)) {
            match entity.entity.origin {
                Origin::Root => {}
                Origin::Child { parent, .. } => count(&mut children, parent),
                Origin::Fork(fork) => count(&mut forks, fork.turn),
            }
        }
        for fold in self.path_folds(leaf)? {
            count(&mut folds, fold.fold.after);
        }
        let of = |counts: &HashMap<TurnId, u32>, turn: TurnId| counts.get(&turn).copied().unwrap_or(0);
        let mark = |turn_id: TurnId| {
            let node = self.closed_turn(turn_id)?.0;
            let bucket = PathBucket {
                first: node.sequence,
                last: node.sequence,
                turn_id,
                worst: ReplyType::Success,
                cost_micros: 0,
                forks: of(&forks, turn_id),
                children: of(&children, turn_id),
                folds: of(&folds, turn_id),
            };
            Ok((self.cast_node(node.cast)?.run_id, bucket))
        };
        self.turns_between(leaf, &(1..=node.sequence))?.into_iter().map(mark).collect()
    }

    /// Lists the runs in the order of writing.
    pub(crate) fn run_ids(&self) -> &[RunId] {
        &self.run_order
    }

    /// Lists the entities of a loom in the order of creation.
    pub(crate) fn entity_ids(&self, loom: LoomId) -> Result<&[EntityId], Error> {
        Ok(&self.loom_node(loom)?.entities)
    }

    /// Returns the loom of a closed turn.
    pub(crate) fn loom_of_turn(&self, turn: TurnId) -> Result<LoomId, Error> {
        Ok(self.closed_turn(turn)?.0.loom)
    }

    /// Lists the closed turns of a loom, each with its run and its entity.
    pub(crate) fn turns_by_run(&self, loom: LoomId) -> Result<Vec<(RunId, EntityId, TurnId)>, Error> {
        let placed = |id: &TurnId| {
            let node = self.closed_turn(*id)?.0;
            Ok((self.cast_node(node.cast)?.run_id, node.entity, *id))
        };
        self.loom_node(loom)?.turns.iter().map(placed).collect()
    }

    /// Returns the entity that spawned this one; none for an entity that no call spawned.
    pub(crate) fn spawner(&self, entity: EntityId) -> Result<Option<EntityId>, Error> {
        match self.entity_node(entity)?.entity.origin {
            Origin::Root | Origin::Fork(_) => Ok(None),
            Origin::Child { parent, .. } => Ok(Some(self.closed_turn(parent)?.0.entity)),
        }
    }

    /// Returns the beginning of the intent of a cast; none if it cannot be read.
    pub fn intent_summary(&self, cast: CastId, bodies: &dyn Bodies) -> Option<String> {
        self.intent(cast, bodies).ok().map(|intent| summary_text(&intent.text()))
    }

    /// Returns the name of an entity's crystal; none if it cannot be read.
    pub fn crystal(&self, entity: EntityId, bodies: &dyn Bodies) -> Option<String> {
        let node = self.entities.get(&entity)?;
        let root = self.roots.get(&(node.loom_id, node.entity.cantrip_id))?;
        root.root.cantrip.load(bodies).ok().map(|cantrip| cantrip.crystal)
    }

    /// Returns an entity as a line of a drawing. `held` returns true if the lease of a run is held; `costs` are the cost
    /// of its own turns, and of these with all children below it.
    pub fn thread_summary(
        &self,
        entity: EntityId,
        held: impl Fn(RunId) -> bool,
        costs: (Option<Money>, Option<Money>),
        bodies: &dyn Bodies,
    ) -> Result<ThreadSummary, Error> {
        let node = self.entity_node(entity)?;
        let origin = match origin_turn(&node.entity) {
            Some(turn) => Some(self.closed_turn(turn)?.0),
            None => None,
        };
        let (fork, call_id) = match node.entity.origin {
            Origin::Root => (None, None),
            Origin::Child { spawned_by, .. } => (None, Some(spawned_by.call_id)),
            Origin::Fork(fork) => (Some(fork), None),
        };
        let before = origin.filter(|_| fork.is_some()).map_or(0, |turn| turn.sequence);
        let last = node.leaf.map(|_| node.sequence);
        let (state, reason) = self.thread_state(entity, held)?;
        Ok(ThreadSummary {
            entity_id: entity,
            run_id: node.run_id,
            origin: node.entity.origin,
            parent: origin.map(|turn| turn.entity),
            parent_sequence: origin.map(|turn| turn.sequence),
            fork,
            call_id,
            first: last.map(|_| before + 1),
            last,
            leaf: node.leaf,
            state,
            reason,
            intent: node.casts.last().and_then(|cast| self.intent_summary(*cast, bodies)),
            crystal: self.crystal(entity, bodies),
            own_cost: costs.0,
            cost: costs.1,
            turns: last.map_or(0, |last| last.saturating_sub(before)),
            at: node.at,
        })
    }

    fn thread_state(
        &self,
        entity: EntityId,
        held: impl Fn(RunId) -> bool,
    ) -> Result<(RunState, Option<TruncationReason>), Error> {
        let node = self.entity_node(entity)?;
        let Some(cast) = node.casts.last() else {
            return Ok((self.run(node.run_id, held(node.run_id))?.state, None));
        };
        let cast = self.cast_node(*cast)?;
        match cast.end.as_ref().map(|end| &end.ending) {
            Some(Ending::Terminated { .. }) => Ok((RunState::Terminated, None)),
            Some(Ending::Truncated { reason, .. }) => Ok((RunState::Truncated, Some(*reason))),
            None if cast.given_up => Ok((RunState::Failed, None)),
            None => Ok((self.run(cast.run_id, held(cast.run_id))?.state, None)),
        }
    }
}
