//! Which record may follow which, and what does it add to the tree?
//!
//! Each rule checks first and changes afterwards, so a refused record changes nothing.

use std::sync::Arc;

use cantrip_canon::{CastId, EntityId, TurnId};

use super::nodes::{CallNode, Closed, Group, StartedCall, TurnNode, TurnOf};
use super::{CastPart, EntityPart, FoldPart, Head, Projection, RootPart};
use crate::{
    CallId, CallSettled, CallStarted, CallWork, Caller, CantripId, Cast, Closing, End, Ending, Entity, Error, Event,
    Fold, IntentRecord, Origin, Reward, RewardView, Root, RunState, TurnClosed, TurnOpened,
};

impl Projection {
    pub(super) fn add_event(&mut self, head: &Head<'_>, event: Event) -> Result<(), Error> {
        match event {
            Event::Root(root) => self.add_root(head, root),
            Event::Entity(entity) => self.add_entity(head, entity),
            Event::Cast(cast) => self.begin_cast(head, cast),
            Event::Attempt(attempt) => self.live_cast(head, attempt.cast_id).map(|_| ()),
            Event::Opened(opened) => self.open_turn(head, opened),
            Event::Started(started) => self.start_call(head, started),
            Event::Settled(settled) => self.settle_call(head, settled),
            Event::Turn(closed) => self.close_turn(head, closed),
            Event::Fold(fold) => self.add_fold(head, fold),
            Event::Parked(parked) => {
                self.live_cast(head, parked.cast_id)?;
                if let Some(run) = self.runs.get_mut(&head.record.run) {
                    run.parked = parked.reason.needs_resume();
                }
                Ok(())
            }
            Event::End(end) => self.end_cast(head, end),
            Event::Failed(_) => {
                if self.has_ended(head.record.run) == Some(true) {
                    return Err(head.refuse("its run has ended"));
                }
                let entity = self.runs.get_mut(&head.record.run).and_then(|run| {
                    run.fail(head.record.at);
                    run.opening.entity_id
                });
                if let Some(entity) = entity {
                    self.live_run_by_entity.remove(&entity);
                }
                Ok(())
            }
            Event::Reward(reward) => self.add_reward(head, reward),
            Event::ApprovalRequested(asked) => {
                if let Some(run) = self.runs.get_mut(&head.record.run) {
                    run.approvals.insert(asked.approval_id);
                }
                Ok(())
            }
            Event::ApprovalDecided(decided) => {
                if let Some(run) = self.runs.get_mut(&head.record.run) {
                    run.approvals.remove(&decided.approval_id);
                }
                Ok(())
            }
            Event::PredictClosed(closed) => {
                if self.has_ended(head.record.run) == Some(false) {
                    let state = if closed.succeeded() { RunState::Terminated } else { RunState::Failed };
                    self.end_run(head.record, state);
                }
                Ok(())
            }
            Event::JobParked(parked) => {
                if let Some(run) = self.runs.get_mut(&head.record.run) {
                    run.parked = parked.reason.needs_resume();
                }
                Ok(())
            }
            Event::JobClosed(closed) => {
                if self.has_ended(head.record.run) == Some(true) {
                    return Err(head.refuse("its run has ended"));
                }
                if !closed.can_reopen() {
                    self.end_run(head.record, RunState::Terminated);
                } else if let Some(run) = self.runs.get_mut(&head.record.run) {
                    // A job that ended without a result goes on with its next record.
                    run.fail(head.record.at);
                }
                Ok(())
            }
            Event::PolicyDecision(_)
            | Event::SpendReserved(_)
            | Event::SpendSettled(_)
            | Event::ReconcileRequired(_)
            | Event::SpendOverage(_)
            | Event::PredictOpened(_)
            | Event::JobOpened(_)
            | Event::JobContinued(_)
            | Event::JobAsked(_)
            | Event::JobProposed(_)
            | Event::JobScored(_)
            | Event::JobAccepted(_)
            | Event::JobProgress(_)
            | Event::Other { .. } => Ok(()),
        }
    }

    fn add_root(&mut self, head: &Head<'_>, root: Root) -> Result<(), Error> {
        if CantripId::cut(&root.hash) != root.cantrip_id {
            return Err(head.refuse("the cantrip's id is not cut from its hash"));
        }
        // Two processes may add the same cantrip at once; the first record is kept.
        let key = (head.loom, root.cantrip_id);
        if !self.roots.contains_key(&key) {
            self.insert_root(RootPart { loom_id: head.loom, root: Arc::new(root), at: head.record.at });
        }
        Ok(())
    }

    fn add_entity(&mut self, head: &Head<'_>, entity: Entity) -> Result<(), Error> {
        if self.entities.contains_key(&entity.entity_id) {
            return Err(head.refuse("the entity is there already"));
        }
        if !self.roots.contains_key(&(head.loom, entity.cantrip_id)) {
            return Err(head.refuse("its cantrip is not in this loom"));
        }
        let sequence = match entity.origin {
            Origin::Root => 0,
            Origin::Child { parent, .. } => self.require_closed_turn(head, parent).map(|_| 0)?,
            Origin::Fork(fork) => self.require_closed_turn(head, fork.turn)?.sequence,
        };
        self.insert_entity(EntityPart {
            entity: Arc::new(entity),
            loom_id: head.loom,
            run_id: head.record.run,
            at: head.record.at,
            casts: Vec::new(),
            leaf: None,
            sequence,
            open: None,
            live_cast: None,
            folds_before: self.folds.len() as u64,
        });
        Ok(())
    }

    fn begin_cast(&mut self, head: &Head<'_>, cast: Cast) -> Result<(), Error> {
        if self.casts.contains_key(&cast.cast_id) {
            return Err(head.refuse("the cast is there already"));
        }
        if let IntentRecord::Of(earlier) = &cast.intent
            && !self.casts.contains_key(earlier)
        {
            return Err(head.refuse("the cast whose intent it goes on under is not there"));
        }
        let entity = self.entities.get_mut(&cast.entity_id).ok_or_else(|| head.refuse("its entity is not there"))?;
        if let Some(live) = entity.live_cast {
            let before = self.casts.get_mut(&live).expect("an entity's cast is there");
            if !self.runs.get(&before.run_id).is_some_and(|run| run.has_failed()) {
                return Err(head.refuse("its entity has a live cast"));
            }
            // A turn that the failed run left open is never closed, and no view shows it.
            before.given_up = true;
            if let Some(open) = entity.open.take().and_then(|open| self.turns.get(&open)) {
                self.groups.remove(&open.holder);
            }
        }
        entity.live_cast = Some(cast.cast_id);
        entity.casts.push(cast.cast_id);
        self.insert_cast(CastPart {
            cast: Arc::new(cast),
            run_id: head.record.run,
            at: head.record.at,
            last_turn: None,
            end: None,
            given_up: false,
        });
        Ok(())
    }

    /// Returns the entity of a cast that has begun and not ended.
    fn live_cast(&self, head: &Head<'_>, cast: CastId) -> Result<EntityId, Error> {
        match self.casts.get(&cast) {
            Some(node) if node.given_up => Err(head.refuse("its cast was given up")),
            Some(node) if node.end.is_none() => Ok(node.cast.entity_id),
            Some(_) => Err(head.refuse("its cast has ended")),
            None => Err(head.refuse("its cast is not there")),
        }
    }

    fn require_closed_turn(&self, head: &Head<'_>, turn: TurnId) -> Result<&TurnNode, Error> {
        match self.turns.get(&turn) {
            Some(node) if node.closed.is_some() => Ok(node),
            Some(_) => Err(head.refuse("the turn it names is still open")),
            None => Err(head.refuse("the turn it names is not there")),
        }
    }

    pub(super) fn open_turn(&mut self, head: &Head<'_>, opened: TurnOpened) -> Result<(), Error> {
        let entity_id = self.live_cast(head, opened.cast_id)?;
        if self.turns.contains_key(&opened.turn_id) {
            return Err(head.refuse("the turn is there already"));
        }
        let entity = self.entities.get_mut(&entity_id).expect("a cast has an entity");
        if entity.open.is_some() {
            return Err(head.refuse("its entity has an open turn"));
        }
        let above = match entity.entity.origin {
            Origin::Root => None,
            Origin::Child { parent, .. } => Some(parent),
            Origin::Fork(fork) => Some(fork.turn),
        };
        if opened.parent_id != entity.leaf.or(above) {
            return Err(head.refuse("its parent is not the turn before it"));
        }
        if opened.sequence != entity.sequence + 1 {
            return Err(head.refuse("its sequence is not the next one"));
        }
        entity.open = Some(opened.turn_id);
        let id = opened.turn_id;
        let of =
            TurnOf { loom: head.loom, entity: entity_id, cast: opened.cast_id, sequence: opened.sequence, holder: id };
        let node = TurnNode {
            first_of_cast: self.casts.get(&opened.cast_id).is_some_and(|cast| cast.last_turn.is_none()),
            first_of_entity: entity.leaf.is_none(),
            places: vec![head.record.seq],
            ..TurnNode::open(of, opened.parent_id)
        };
        self.groups.insert(id, Group::new(id, head.record.seq));
        self.turns.insert(id, Box::new(TurnNode { opened: Some(Arc::new(opened)), ..node }));
        Ok(())
    }

    /// Returns the group of a call, if the call belongs to a turn.
    fn group(&mut self, head: &Head<'_>, call: CallId) -> Result<&mut Group, Error> {
        match call.caller() {
            Caller::Turn(holder) if call.number() > 0 => {
                self.groups.get_mut(&holder).ok_or_else(|| head.refuse("its group has no open turn"))
            }
            Caller::Turn(_) | Caller::Fold(_) => Err(head.refuse("only calls of an utterance are started")),
        }
    }

    fn start_call(&mut self, head: &Head<'_>, started: CallStarted) -> Result<(), Error> {
        let number = started.call_id.number();
        let delegation = matches!(started.work, CallWork::Delegation { .. });
        let group = self.group(head, started.call_id)?;
        if group.settled.contains(&number) {
            return Err(head.refuse("the call is settled already"));
        }
        // A new owner may start an idempotent call again; its arguments do not change.
        let asked = started.asked.map(Arc::new);
        group.started.entry(number).or_insert(StartedCall { asked, delegation, seq: head.record.seq });
        Ok(())
    }

    fn settle_call(&mut self, head: &Head<'_>, settled: CallSettled) -> Result<(), Error> {
        let number = settled.call_id.number();
        // A failed request of a fold, or of a turn that may never open. It is in the journal for its cost, not in the
        // tree.
        match settled.call_id.caller() {
            Caller::Turn(_) if number > 0 => {}
            Caller::Turn(_) | Caller::Fold(_) => return Ok(()),
        }
        let group = self.group(head, settled.call_id)?;
        if !group.settled.insert(number) {
            return Err(head.refuse("the call is settled already"));
        }
        let started = group.started.get(&number);
        let begun = started.map(|started| started.seq);
        let asked = started.and_then(|started| started.asked.clone());
        let asked = asked.or_else(|| settled.asked.clone().map(Arc::new));
        let open = group.open;
        let turn = self.turns.get_mut(&open).expect("an open group has an open turn");
        turn.places.extend(begun);
        turn.places.push(head.record.seq);
        turn.calls.push(CallNode { number, asked, settled: Some(Arc::new(settled)) });
        Ok(())
    }

    fn close_turn(&mut self, head: &Head<'_>, record: TurnClosed) -> Result<(), Error> {
        let id = record.turn_id;
        let (holder, entity, cast, sequence, parent) = match self.turns.get(&id) {
            Some(node) if node.closed.is_none() => (node.holder, node.entity, node.cast, node.sequence, node.parent),
            Some(_) => return Err(head.refuse("the turn is closed already")),
            None => return Err(head.refuse("the turn is not there")),
        };
        let group = self.groups.get_mut(&holder).ok_or_else(|| head.refuse("its cast was given up"))?;
        let (mut delegated, mut begun) = (None, None);
        match &record.closing {
            Closing::Sealed { call, next } => {
                let number = call.number();
                match group.started.get(&number) {
                    Some(started) if started.delegation && call.caller() == Caller::Turn(holder) => {
                        delegated = Some(CallNode { number, asked: started.asked.clone(), settled: None });
                        begun = Some(started.seq);
                    }
                    Some(_) | None => return Err(head.refuse("it is sealed by a call that delegates nothing")),
                }
                if group.unsettled().any(|unsettled| unsettled != number) || group.settled.contains(&number) {
                    return Err(head.refuse("another call is unsettled, or the delegation is settled"));
                }
                if self.turns.contains_key(next) {
                    return Err(head.refuse("the turn it goes on in is there already"));
                }
            }
            Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => {
                if group.unsettled().next().is_some() {
                    return Err(head.refuse("a call is unsettled"));
                }
            }
        }
        let next = match record.closing {
            Closing::Sealed { next, .. } => {
                group.open = next;
                group.since = head.record.seq;
                Some(next)
            }
            Closing::Open | Closing::Terminated { .. } | Closing::Truncated { .. } => {
                self.groups.remove(&holder);
                None
            }
        };
        if let Some(next) = next {
            let of = TurnOf { loom: head.loom, entity, cast, sequence: sequence + 1, holder };
            self.turns.insert(next, Box::new(TurnNode::open(of, Some(id))));
        }
        let above = parent.and_then(|parent| {
            let node = self.turns.get_mut(&parent)?;
            node.children.push(id);
            node.closed.as_ref().map(|closed| closed.place)
        });
        let loom = self.loom(head.loom);
        let place = loom.turns.len() as u64;
        loom.turns.push(id);
        loom.leaves.insert(place, id);
        if let Some(above) = above {
            loom.leaves.remove(&above);
        }
        let turn = self.turns.get_mut(&id).expect("it was looked up above");
        turn.calls.extend(delegated);
        turn.calls.sort_by_key(|call| call.number);
        turn.places.extend(begun);
        turn.places.push(head.record.seq);
        turn.places.sort_unstable();
        turn.places.dedup();
        turn.closed = Some(Closed { record, at: head.record.at, place });
        let entity = self.entities.get_mut(&entity).expect("a turn has an entity");
        entity.leaf = Some(id);
        entity.sequence = sequence;
        entity.open = next;
        if let Some(cast) = self.casts.get_mut(&cast) {
            cast.last_turn = Some(id);
        }
        Ok(())
    }

    fn add_fold(&mut self, head: &Head<'_>, fold: Fold) -> Result<(), Error> {
        if self.folds.contains_key(&fold.fold_id) {
            return Err(head.refuse("the fold is there already"));
        }
        if !self.entities.contains_key(&fold.entity_id) {
            return Err(head.refuse("its entity is not there"));
        }
        self.require_closed_turn(head, fold.after)?;
        let place = self.folds.len() as u64;
        self.insert_fold(FoldPart { fold, at: head.record.at, place });
        Ok(())
    }

    fn end_cast(&mut self, head: &Head<'_>, end: End) -> Result<(), Error> {
        let entity_id = self.live_cast(head, end.cast_id)?;
        let entity = self.entities.get_mut(&entity_id).expect("a cast has an entity");
        if entity.open.is_some() {
            return Err(head.refuse("a turn of the cast is open"));
        }
        let cast = self.casts.get_mut(&end.cast_id).expect("it was found live");
        if cast.last_turn != end.leaf {
            return Err(head.refuse("its leaf is not the last turn of the cast"));
        }
        entity.live_cast = None;
        let state = match &end.ending {
            Ending::Terminated { .. } => RunState::Terminated,
            Ending::Truncated { .. } => RunState::Truncated,
        };
        cast.end = Some(Arc::new(end));
        let root = self.runs.get(&head.record.run).and_then(|run| run.opening.entity_id);
        if root == Some(entity_id) {
            self.end_run(head.record, state);
        }
        Ok(())
    }

    fn add_reward(&mut self, head: &Head<'_>, reward: Reward) -> Result<(), Error> {
        self.require_closed_turn(head, reward.turn_id)?;
        if let Some(turn) = self.turns.get_mut(&reward.turn_id) {
            turn.rewards.push(RewardView::new(reward, head.record.at));
        }
        Ok(())
    }
}
