//! The views of the tree: turns assembled from their records, paths, threads, lists.

mod overview;

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{CastId, EntityId, LoomId, Money, RunId, TurnId};

use super::nodes::{CallNode, Closed, TurnNode};
use super::{CastPart, EntityPart, FoldPart, Projection};
use crate::limits::PAGE_ITEMS_MAX;
use crate::{
    Bodies, CallId, Cantrip, CastView, Closing, Content, CostTotal, Ending, EntityView, Error, Extent, FoldView,
    GateRecord, IntentRecord, ListPage, Metadata, Origin, Outcome, PageRequest, RewardView, RootView, RunView,
    SettledCall, Settlement, Thread, ThreadState, Turn, Utterance,
};

/// Returns the part of a list that a page selects.
fn page<T: Copy>(all: &[T], page: PageRequest) -> ListPage<T> {
    let start = usize::try_from(page.after.unwrap_or(0)).unwrap_or(usize::MAX).min(all.len());
    let end = start.saturating_add(page.most.min(PAGE_ITEMS_MAX)).min(all.len());
    let next = (end < all.len()).then_some(end as u64);
    ListPage { items: all[start..end].to_vec(), next }
}

fn mapped<T, U>(listed: ListPage<T>, each: impl FnMut(T) -> Result<U, Error>) -> Result<ListPage<U>, Error> {
    let items: Result<Vec<U>, Error> = listed.items.into_iter().map(each).collect();
    Ok(ListPage { items: items?, next: listed.next })
}

impl Projection {
    pub fn looms(&self) -> Vec<LoomId> {
        self.loom_order.clone()
    }

    fn loom_node(&self, loom: LoomId) -> Result<&super::LoomNode, Error> {
        self.looms.get(&loom).ok_or_else(|| Error::not_found("loom", loom))
    }

    pub fn roots(&self, loom: LoomId, bodies: &dyn Bodies) -> Result<Vec<RootView>, Error> {
        let ids = self.loom_node(loom)?.roots.iter();
        ids.map(|id| {
            let node = self.roots.get(&(loom, *id)).ok_or_else(|| Error::not_found("cantrip", id))?;
            let cantrip: Cantrip = node.root.cantrip.load(bodies)?;
            Ok(RootView { cantrip_id: *id, loom_id: loom, at: node.at, cantrip })
        })
        .collect()
    }

    pub fn extent(&self, loom: LoomId) -> Result<Extent, Error> {
        let node = self.loom_node(loom)?;
        let made = node.entities.iter().filter_map(|id| self.entities.get(id)).map(|entity| entity.at);
        let turns = node.turns.iter().filter_map(|id| self.turns.get(id));
        let closed = turns.filter_map(|turn| turn.closed.as_ref()).map(|closed| closed.at);
        Ok(Extent {
            entities: node.entities.len() as u64,
            turns: node.turns.len() as u64,
            last_activity: made.chain(closed).max(),
        })
    }

    pub fn entities(&self, loom: LoomId, asked: PageRequest) -> Result<ListPage<EntityView>, Error> {
        mapped(page(&self.loom_node(loom)?.entities, asked), |id| self.entity(id))
    }

    fn entity_node(&self, entity: EntityId) -> Result<&EntityPart, Error> {
        self.entities.get(&entity).ok_or_else(|| Error::not_found("entity", entity))
    }

    pub fn entity(&self, entity: EntityId) -> Result<EntityView, Error> {
        let node = self.entity_node(entity)?;
        Ok(EntityView {
            entity: (*node.entity).clone(),
            loom_id: node.loom_id,
            run_id: node.run_id,
            at: node.at,
            casts: node.casts.clone(),
            leaf: node.leaf,
        })
    }

    pub fn casts(&self, entity: EntityId, bodies: &dyn Bodies) -> Result<Vec<CastView>, Error> {
        self.entity_node(entity)?.casts.iter().map(|cast| self.cast(*cast, bodies)).collect()
    }

    fn cast_node(&self, cast: CastId) -> Result<&CastPart, Error> {
        self.casts.get(&cast).ok_or_else(|| Error::not_found("cast", cast))
    }

    pub fn cast(&self, cast: CastId, bodies: &dyn Bodies) -> Result<CastView, Error> {
        let node = self.cast_node(cast)?;
        let outcome = match &node.end {
            None => None,
            Some(end) => Some(Outcome {
                ending: match &end.ending {
                    Ending::Terminated { ended_by, result } => {
                        Ending::Terminated { ended_by: *ended_by, result: result.load(bodies)? }
                    }
                    Ending::Truncated { reason, error, summary } => {
                        Ending::Truncated { reason: *reason, error: error.clone(), summary: summary.clone() }
                    }
                },
                entity_id: node.cast.entity_id,
                cast_id: cast,
                loom_id: self.entity_node(node.cast.entity_id)?.loom_id,
                leaf: end.leaf,
                turns: end.turns,
                utterances: end.utterances,
                usage: end.usage,
                cost: end.cost,
                uncosted: end.uncosted,
            }),
        };
        Ok(CastView {
            intent: self.intent(cast, bodies)?,
            own_intent: node.has_own_intent(),
            cancelled: node.cast.cancelled.iter().map(|told| told.intent.load(bodies)).collect::<Result<_, _>>()?,
            cast: (*node.cast).clone(),
            run_id: node.run_id,
            at: node.at,
            outcome,
        })
    }

    /// Returns the intent of a cast. A cast that continues under an earlier intent names a cast that existed before
    /// it, so the loop ends.
    fn intent(&self, cast: CastId, bodies: &dyn Bodies) -> Result<Content, Error> {
        let mut node = self.cast_node(cast)?;
        loop {
            match &node.cast.intent {
                IntentRecord::New(content) => return content.load(bodies),
                IntentRecord::Of(earlier) => node = self.cast_node(*earlier)?,
            }
        }
    }

    pub fn turns(&self, loom: LoomId, asked: PageRequest, bodies: &dyn Bodies) -> Result<ListPage<Turn>, Error> {
        mapped(page(&self.loom_node(loom)?.turns, asked), |id| self.turn(id, bodies))
    }

    fn closed_turn(&self, turn: TurnId) -> Result<(&TurnNode, &Closed), Error> {
        let node = self.turns.get(&turn).ok_or_else(|| Error::not_found("turn", turn))?;
        let closed = node.closed.as_ref().ok_or_else(|| Error::not_found("turn", turn))?;
        Ok((node, closed))
    }

    pub fn turn(&self, id: TurnId, bodies: &dyn Bodies) -> Result<Turn, Error> {
        let (node, closed) = self.closed_turn(id)?;
        let entity = self.entity_node(node.entity)?;
        let cast = self.cast_node(node.cast)?;
        let said = self.utterance(node.holder, bodies)?;
        let gate_calls: Result<Vec<GateRecord>, Error> =
            node.calls.iter().map(|call| gate_record(node.holder, call, said.as_ref(), bodies)).collect();
        let gate_calls = gate_calls?;
        let utterance = if node.holder == id { said } else { None };
        let mut spent = CostTotal::default();
        if let Some(opened) = &node.opened {
            spent.add(opened.cost);
        }
        for record in &gate_calls {
            match &record.settlement {
                Settlement::Settled(settled) if settled.cost.is_some() => spent.add(settled.cost),
                Settlement::Settled(_) | Settlement::Delegated => {}
            }
        }
        let usage = node.opened.as_ref().map(|opened| opened.usage).unwrap_or_default();
        let (spawned_by, forked_from) = match entity.entity.origin {
            Origin::Root => (None, None),
            Origin::Child { spawned_by, .. } => (Some(spawned_by), None),
            Origin::Fork(fork) => (None, Some(fork)),
        };
        let intent =
            if node.first_of_cast && cast.has_own_intent() { Some(self.intent(node.cast, bodies)?) } else { None };
        Ok(Turn {
            id,
            parent_id: node.parent,
            loom_id: node.loom,
            cantrip_id: entity.entity.cantrip_id,
            entity_id: node.entity,
            cast_id: node.cast,
            sequence: node.sequence,
            intent,
            outputs: match &closed.record.outputs {
                Some(outputs) => outputs.load(bodies)?,
                None => Vec::new(),
            },
            metadata: Metadata {
                tokens_prompt: usage.prompt_tokens,
                tokens_completion: usage.completion_tokens,
                tokens_cached: usage.cached_tokens,
                duration_ms: closed.record.duration_ms,
                timestamp: closed.at,
                attempts: node.opened.as_ref().map_or(0, |opened| opened.attempt),
                cost_micros: spent.cost().map_or(0, Money::micros),
                cost: spent.complete_cost(),
                model: utterance.as_ref().map(|utterance| utterance.model.clone()),
            },
            utterance,
            gate_calls,
            reward: node.rewards.last().map(|reward| reward.reward),
            closing: shown_closing(id, closed, cast),
            continuation_of: node.parent.filter(|_| node.holder != id),
            forked_from: forked_from.filter(|_| node.first_of_entity),
            spawned_by: spawned_by.filter(|_| node.first_of_entity),
            snapshot: closed.record.snapshot,
        })
    }

    fn utterance(&self, holder: TurnId, bodies: &dyn Bodies) -> Result<Option<Utterance>, Error> {
        match self.turns.get(&holder).and_then(|node| node.opened.as_ref()) {
            Some(opened) => opened.utterance.load(bodies).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the ids of a path, root first.
    fn path_ids(&self, turn: TurnId) -> Result<Vec<TurnId>, Error> {
        let mut ids = vec![turn];
        let mut node = self.closed_turn(turn)?.0;
        while let Some(parent) = node.parent {
            ids.push(parent);
            node = self.closed_turn(parent)?.0;
        }
        ids.reverse();
        Ok(ids)
    }

    pub fn path(&self, turn: TurnId, bodies: &dyn Bodies) -> Result<Vec<Turn>, Error> {
        self.path_ids(turn)?.into_iter().map(|id| self.turn(id, bodies)).collect()
    }

    /// Returns the last `most` turns of a path, oldest first.
    pub fn tail(&self, turn: TurnId, most: usize, bodies: &dyn Bodies) -> Result<Vec<Turn>, Error> {
        let mut ids = Vec::new();
        let mut next = Some(turn);
        while let Some(id) = next.filter(|_| ids.len() < most.min(PAGE_ITEMS_MAX)) {
            ids.push(id);
            next = self.closed_turn(id)?.0.parent;
        }
        self.closed_turn(turn)?;
        ids.into_iter().rev().map(|id| self.turn(id, bodies)).collect()
    }

    pub fn thread(&self, leaf: TurnId, bodies: &dyn Bodies) -> Result<Thread, Error> {
        let folds = self.folds(leaf, bodies)?;
        self.thread_of(leaf, self.path(leaf, bodies)?, folds, bodies)
    }

    /// Returns the last `most` turns of a thread, with the folds that were made after one of them.
    pub fn thread_end(&self, leaf: TurnId, most: usize, bodies: &dyn Bodies) -> Result<Thread, Error> {
        let turns = self.tail(leaf, most.max(1), bodies)?;
        let shown: BTreeSet<TurnId> = turns.iter().map(|turn| turn.id).collect();
        let folds = self.folds_among(leaf, Some(&shown), bodies)?;
        self.thread_of(leaf, turns, folds, bodies)
    }

    fn thread_of(
        &self,
        leaf: TurnId,
        turns: Vec<Turn>,
        folds: Vec<FoldView>,
        bodies: &dyn Bodies,
    ) -> Result<Thread, Error> {
        let mut casts = Vec::new();
        let mut forks = Vec::new();
        let mut met = BTreeSet::new();
        for turn in &turns {
            if met.insert(turn.cast_id) {
                casts.push(self.cast(turn.cast_id, bodies)?);
            }
            forks.extend(turn.forked_from);
        }
        let last = turns.last().ok_or_else(|| Error::not_found("turn", leaf))?;
        let state = match last.closing {
            Closing::Open | Closing::Sealed { .. } => ThreadState::Active,
            Closing::Terminated { .. } => ThreadState::Terminated,
            Closing::Truncated { .. } => ThreadState::Truncated,
        };
        let entity = self.entity(last.entity_id)?;
        Ok(Thread { leaf, state, entity, casts, folds, forks, turns })
    }

    pub fn leaves(&self, loom: LoomId, asked: PageRequest) -> Result<ListPage<TurnId>, Error> {
        let most = asked.most.min(PAGE_ITEMS_MAX);
        let mut leaves = self.loom_node(loom)?.leaves.range(asked.after.unwrap_or(0)..);
        let items: Vec<TurnId> = leaves.by_ref().take(most).map(|(_, id)| *id).collect();
        Ok(ListPage { items, next: leaves.next().map(|(place, _)| *place) })
    }

    pub fn children(&self, turn: TurnId) -> Result<Vec<TurnId>, Error> {
        Ok(self.closed_turn(turn)?.0.children.clone())
    }

    pub fn rewards(&self, turn: TurnId) -> Result<Vec<RewardView>, Error> {
        Ok(self.closed_turn(turn)?.0.rewards.clone())
    }

    /// Lists the folds of the entity and of the entities it branched off from. The message list of a child starts at
    /// its own root, so the folds of the entity that spawned it do not apply.
    pub fn folds(&self, turn: TurnId, bodies: &dyn Bodies) -> Result<Vec<FoldView>, Error> {
        self.folds_among(turn, None, bodies)
    }

    /// Returns the last of these folds. Each fold was made after the newest turn of its time, so the fold nearest to
    /// the turn is the last one.
    pub fn last_fold(&self, turn: TurnId, bodies: &dyn Bodies) -> Result<Option<FoldView>, Error> {
        let mut last = None;
        self.fold_nodes(turn, None, |at| {
            last = at.into_iter().max_by_key(|node| node.place);
            last.is_none()
        })?;
        last.map(|node| node.view(bodies)).transpose()
    }

    /// Lists the folds that were made after one of these turns, which are the end of the path.
    fn folds_among(
        &self,
        turn: TurnId,
        shown: Option<&BTreeSet<TurnId>>,
        bodies: &dyn Bodies,
    ) -> Result<Vec<FoldView>, Error> {
        let mut found = Vec::new();
        self.fold_nodes(turn, shown, |at| {
            found.extend(at);
            true
        })?;
        found.sort_by_key(|node| node.place);
        found.into_iter().map(|node| node.view(bodies)).collect()
    }

    /// Passes the folds after each turn of the path to the callback, the newest turn first, for as long as more are
    /// wanted. A fold that another branch made after the same turn does not apply to this path, and neither does a
    /// fold that the other branch made after this path branched off.
    fn fold_nodes<'a>(
        &'a self,
        turn: TurnId,
        shown: Option<&BTreeSet<TurnId>>,
        mut more: impl FnMut(Vec<&'a FoldPart>) -> bool,
    ) -> Result<(), Error> {
        let lineage = self.lineage(turn, shown)?;
        let shared = |node: &&FoldPart| lineage.get(&node.fold.entity_id).is_some_and(|until| node.place < *until);
        let mut next = Some(turn);
        while let Some(id) = next.filter(|id| shown.is_none_or(|shown| shown.contains(id))) {
            let node = self.closed_turn(id)?.0;
            let at = node.folds.iter().filter_map(|fold| self.folds.get(fold)).filter(shared).collect();
            if !more(at) {
                return Ok(());
            }
            next = match self.entity_node(node.entity)?.entity.origin {
                Origin::Child { .. } if node.first_of_entity => None,
                Origin::Child { .. } | Origin::Root | Origin::Fork(_) => node.parent,
            };
        }
        Ok(())
    }

    /// Returns the entity of a turn and the entities it branched off from, each with the position of the first fold
    /// that is not shared.
    fn lineage(&self, turn: TurnId, shown: Option<&BTreeSet<TurnId>>) -> Result<BTreeMap<EntityId, u64>, Error> {
        let mut lineage = BTreeMap::new();
        let mut entity = self.closed_turn(turn)?.0.entity;
        let mut until = u64::MAX;
        loop {
            lineage.insert(entity, until);
            let node = self.entity_node(entity)?;
            match node.entity.origin {
                Origin::Fork(fork) if shown.is_none_or(|shown| shown.contains(&fork.turn)) => {
                    until = until.min(node.folds_before);
                    entity = self.closed_turn(fork.turn)?.0.entity;
                }
                Origin::Root | Origin::Child { .. } | Origin::Fork(_) => return Ok(lineage),
            }
        }
    }

    /// Lists the runs for which `kept` returns true. `held` returns true if the lease of a run is held.
    pub fn runs_where(
        &self,
        asked: PageRequest,
        held: impl Fn(RunId) -> bool,
        kept: impl Fn(&RunView) -> bool,
    ) -> Result<ListPage<RunView>, Error> {
        let start = usize::try_from(asked.after.unwrap_or(0)).unwrap_or(usize::MAX);
        self.runs_page((0..).zip(&self.run_order).skip(start), asked.most, held, kept)
    }

    /// Lists the same runs, newest first. The position of a page is that of the last run on it.
    pub fn latest_runs_where(
        &self,
        asked: PageRequest,
        held: impl Fn(RunId) -> bool,
        kept: impl Fn(&RunView) -> bool,
    ) -> Result<ListPage<RunView>, Error> {
        let all = self.run_order.len();
        let end = asked.after.map_or(all, |after| usize::try_from(after).unwrap_or(all).min(all));
        let newest_first = self.run_order[..end].iter().enumerate().rev().map(|(before, run)| (before as u64 + 1, run));
        self.runs_page(newest_first, asked.most, held, kept)
    }

    /// Returns the first runs for which `kept` returns true, of runs with their positions.
    fn runs_page<'a>(
        &self,
        placed: impl Iterator<Item = (u64, &'a RunId)>,
        most: usize,
        held: impl Fn(RunId) -> bool,
        kept: impl Fn(&RunView) -> bool,
    ) -> Result<ListPage<RunView>, Error> {
        let mut items = Vec::new();
        for (place, run) in placed {
            let view = self.run(*run, held(*run))?;
            if kept(&view) {
                if items.len() == most.min(PAGE_ITEMS_MAX) {
                    return Ok(ListPage { items, next: Some(place) });
                }
                items.push(view);
            }
        }
        Ok(ListPage { items, next: None })
    }

    /// Returns the newest run that is not below another run.
    pub fn last_run(&self) -> Option<RunId> {
        let begun = self.runs.iter().filter(|(id, node)| node.opening.root_run_id.is_none_or(|root| root == **id));
        begun.map(|(id, _)| *id).max()
    }

    pub fn run(&self, run: RunId, held: bool) -> Result<RunView, Error> {
        let node = self.runs.get(&run).ok_or_else(|| Error::not_found("run", run))?;
        Ok(RunView {
            run_id: run,
            kind: node.opening.kind,
            loom_id: node.opening.loom_id,
            owner: node.opening.owner.clone(),
            entity_id: node.opening.entity_id,
            root_run_id: node.opening.root_run_id,
            state: node.state(held),
            newest: node.newest,
            epoch: node.epoch,
            created_at: node.created_at,
            ended_at: node.ended_at,
            copied: node.copied,
        })
    }
}

/// Returns the closing to show. An end that was recorded without an open turn is shown on the last turn.
fn shown_closing(id: TurnId, closed: &Closed, cast: &CastPart) -> Closing {
    match (&closed.record.closing, &cast.end) {
        (Closing::Open, Some(end)) if end.leaf == Some(id) => match &end.ending {
            Ending::Truncated { reason, error, .. } => Closing::Truncated { reason: *reason, error: error.clone() },
            Ending::Terminated { ended_by, .. } => Closing::Terminated { ended_by: *ended_by },
        },
        (
            closing @ (Closing::Open | Closing::Sealed { .. } | Closing::Terminated { .. } | Closing::Truncated { .. }),
            _,
        ) => closing.clone(),
    }
}

fn gate_record(
    holder: TurnId,
    call: &CallNode,
    said: Option<&Utterance>,
    bodies: &dyn Bodies,
) -> Result<GateRecord, Error> {
    let call_id = CallId::of_turn(holder, call.number);
    let (gate, args, tool_call_id) = match &call.asked {
        Some(asked) => (asked.gate.clone(), asked.args.load(bodies)?, asked.tool_call_id.clone()),
        None => {
            let place = usize::try_from(call.number).unwrap_or(usize::MAX).wrapping_sub(1);
            let asked = said.and_then(|said| said.calls.get(place)).ok_or_else(|| Error::not_found("call", call_id))?;
            (asked.gate.clone(), asked.args.clone(), Some(asked.tool_call_id.clone()))
        }
    };
    let (ephemeral, settlement) = match &call.settled {
        None => (false, Settlement::Delegated),
        Some(settled) => (settled.ephemeral, Settlement::Settled(Box::new(SettledCall::load(settled, bodies)?))),
    };
    Ok(GateRecord { call_id, tool_call_id, gate, args, ephemeral, settlement })
}
