//! The overview of a loom that holds all its records in memory.
//!
//! The records of a run are folded when it is looked at for the first time, and after that only those that were added.
//! So a run that nobody looks at costs nothing, and a look costs what is new.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{MutexGuard, PoisonError};

use cantrip_canon::{Currency, EntityId, LoomId, Money, RunId, Timestamp, TurnId};

use super::{
    ClosedTurn, PathBucket, RunCounts, RunDigest, RunSummary, SummaryFilter, ThreadSummary, TurnWindow, WaitingCall,
    WindowPlace, bucket_width,
};
use crate::limits::{COUNTED_RUNS_MAX, PAGE_ITEMS_MAX, RUN_THREADS_MAX};
use crate::state::State;
use crate::{Actor, Bodies, CostTotal, Error, Event, ListPage, PageRequest, RunState, RunView, Seq};

/// The folds of the runs that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    runs: HashMap<RunId, FoldedRun>,
    /// The undecided approvals of these runs, by the position of their records in the log.
    waiting: BTreeMap<u64, WaitingCall>,
}

#[derive(Debug)]
struct FoldedRun {
    newest: Seq,
    owner: Actor,
    digest: RunDigest,
    turns: HashMap<TurnId, ClosedTurn>,
}

impl Digests {
    fn run(&self, run: RunId) -> Result<&RunDigest, Error> {
        self.runs.get(&run).map(|folded| &folded.digest).ok_or_else(|| Error::not_found("run", run))
    }

    fn turn(&self, run: RunId, turn: TurnId) -> Option<&ClosedTurn> {
        self.runs.get(&run)?.turns.get(&turn)
    }

    /// Adds the records of a run that are new.
    fn fold(&mut self, run: RunId, state: &State, bodies: &dyn Bodies) -> Result<(), Error> {
        let view = state.run(run)?;
        let folded = self.runs.entry(run).or_insert_with(|| FoldedRun {
            newest: Seq::START,
            owner: view.owner,
            digest: RunDigest::default(),
            turns: HashMap::new(),
        });
        for (place, record) in state.placed_records_of(run, folded.newest)? {
            let (event, opening) = record.read()?;
            let closed = folded.digest.apply(&event, opening.as_ref(), bodies);
            folded.turns.extend(closed.map(|turn| (turn.turn_id, turn)));
            folded.newest = record.seq;
            if let Event::ApprovalRequested(asked) = &event {
                let (owner, approval_id) = (folded.owner.clone(), asked.approval_id);
                let (asked_at, expires_at) = (record.at, asked.expires_at);
                self.waiting.insert(place, WaitingCall { run_id: run, owner, approval_id, asked_at, expires_at });
            } else if let Event::ApprovalDecided(decided) = &event {
                self.waiting.retain(|_, call| call.run_id != run || call.approval_id != decided.approval_id);
            }
        }
        Ok(())
    }
}

/// Returns true if a run is not below another run.
fn is_root(view: &RunView) -> bool {
    view.root_run_id.is_none_or(|root| root == view.run_id)
}

fn count_one(count: &mut u64) {
    *count = (*count + 1).min(COUNTED_RUNS_MAX as u64);
}

/// Adds an amount to the sum of its currency. An amount that does not fit any more is left out.
fn add_money(sums: &mut BTreeMap<Currency, Money>, cost: Money) {
    let sum = sums.entry(cost.currency()).or_insert(Money::zero(cost.currency()));
    *sum = sum.plus(cost).unwrap_or(*sum);
}

/// The overview of a state, with the bodies that its records name.
pub(crate) struct HeldOverview<'a> {
    pub state: &'a State,
    pub bodies: &'a dyn Bodies,
}

impl HeldOverview<'_> {
    /// Returns the folds, which include every record of these runs.
    fn digests(&self, runs: impl IntoIterator<Item = RunId>) -> Result<MutexGuard<'_, Digests>, Error> {
        // A panic in between would leave a run that is folded up to its last applied record.
        let mut digests = self.state.folded().lock().unwrap_or_else(PoisonError::into_inner);
        for run in runs {
            digests.fold(run, self.state, self.bodies)?;
        }
        Ok(digests)
    }

    fn summary_of(&self, view: RunView, digest: &RunDigest) -> RunSummary {
        let tree = self.state.projection();
        let intent = digest.intent_of.and_then(|cast| tree.intent_summary(cast, self.bodies));
        let crystal = view.entity_id.and_then(|entity| tree.crystal(entity, self.bodies));
        digest.summary(view, intent, crystal)
    }

    pub(crate) fn summary(&self, run: RunId) -> Result<RunSummary, Error> {
        let view = self.state.run(run)?;
        let digests = self.digests([run])?;
        Ok(self.summary_of(view, digests.run(run)?))
    }

    pub(crate) fn summaries(&self, filter: &SummaryFilter, page: PageRequest) -> Result<ListPage<RunSummary>, Error> {
        let mut placed = Vec::new();
        for (place, run) in (0_u64..).zip(self.state.projection().run_ids()) {
            let view = self.state.run(*run)?;
            if is_root(&view) {
                placed.push((view.created_at, place, view));
            }
        }
        placed.sort_by_key(|(begun, place, _)| std::cmp::Reverse((*begun, *place)));
        let before = |wanted: u64| placed.iter().position(|(_, place, _)| *place == wanted).unwrap_or(placed.len());
        let start = page.after.map_or(0, before);
        let mut items = Vec::new();
        for (_, place, view) in placed.into_iter().skip(start) {
            let run = view.run_id;
            let digests = self.digests([run])?;
            let digest = digests.run(run)?;
            let met = filter.gate.as_ref().is_none_or(|gate| digest.gates.contains(gate))
                && filter.code.as_ref().is_none_or(|code| digest.codes.contains(code));
            if !met {
                continue;
            }
            let summary = self.summary_of(view, digest);
            if filter.matches(&summary) {
                if items.len() == page.most.min(PAGE_ITEMS_MAX) {
                    return Ok(ListPage { items, next: Some(place) });
                }
                items.push(summary);
            }
        }
        Ok(ListPage { items, next: None })
    }

    pub(crate) fn run_counts(&self, owner: Option<&Actor>, since: Timestamp) -> Result<RunCounts, Error> {
        let (mut counts, mut spent) = (RunCounts::default(), BTreeMap::new());
        for run in self.state.projection().run_ids() {
            let view = self.state.run(*run)?;
            if !is_root(&view) || owner.is_some_and(|owner| *owner != view.owner) {
                continue;
            }
            let ended = view.ended_at.is_some_and(|ended| ended >= since);
            match view.state {
                RunState::Waiting => count_one(&mut counts.waiting),
                RunState::Running => count_one(&mut counts.running),
                RunState::Truncated | RunState::Failed if ended => count_one(&mut counts.went_wrong),
                RunState::Queued | RunState::Terminated | RunState::Truncated | RunState::Failed => {}
            }
            if ended && let Some(cost) = self.digests([*run])?.run(*run)?.cost() {
                add_money(&mut spent, cost);
            }
        }
        counts.spent = spent.into_values().collect();
        Ok(counts)
    }

    pub(crate) fn window(&self, leaf: TurnId, place: WindowPlace, most: usize) -> Result<TurnWindow, Error> {
        let tree = self.state.projection();
        let mut window = tree.window(leaf, place, most, self.bodies)?;
        let shown: BTreeSet<TurnId> =
            window.turns.iter().map(|turn| turn.id).chain(window.damaged.iter().map(|turn| turn.turn_id)).collect();
        let loom = tree.loom_of_turn(leaf)?;
        let begun = tree.entities_begun_at(&shown, loom)?;
        window.branches = self.thread_summaries(&begun, loom)?;
        Ok(window)
    }

    pub(crate) fn path_buckets(&self, leaf: TurnId, buckets: usize) -> Result<Vec<PathBucket>, Error> {
        let mut marks = self.state.projection().path_marks(leaf)?;
        let runs: BTreeSet<RunId> = marks.iter().map(|(run, _)| *run).collect();
        let digests = self.digests(runs)?;
        for (run, mark) in &mut marks {
            if let Some(turn) = digests.turn(*run, mark.turn_id) {
                mark.worst = turn.worst;
                mark.cost_micros = turn.cost.cost().map_or(0, Money::micros);
            }
        }
        let width = bucket_width(marks.len() as u64, buckets);
        Ok(PathBucket::join(marks.into_iter().map(|(_, mark)| mark), width))
    }

    /// Returns the cost of each entity's own turns, and of these with the turns of all children below it.
    fn thread_costs(&self, loom: LoomId) -> Result<HashMap<EntityId, (CostTotal, CostTotal)>, Error> {
        let tree = self.state.projection();
        let turns = tree.turns_by_run(loom)?;
        let digests = self.digests(turns.iter().map(|(run, _, _)| *run).collect::<BTreeSet<_>>())?;
        let mut costs: HashMap<EntityId, (CostTotal, CostTotal)> = HashMap::new();
        for (run, entity, turn) in turns {
            if let Some(turn) = digests.turn(run, turn) {
                let (own, all) = costs.entry(entity).or_default();
                own.add_all(&turn.cost);
                all.add_all(&turn.cost);
            }
        }
        // A child is made after its parent, so its sum is complete when it is added to that of its parent.
        for entity in tree.entity_ids(loom)?.iter().rev() {
            let below = costs.get(entity).map(|(_, all)| *all);
            if let (Some(below), Some(parent)) = (below, tree.spawner(*entity)?) {
                costs.entry(parent).or_default().1.add_all(&below);
            }
        }
        Ok(costs)
    }

    fn thread_summaries(&self, entities: &[EntityId], loom: LoomId) -> Result<Vec<ThreadSummary>, Error> {
        if entities.is_empty() {
            return Ok(Vec::new());
        }
        let costs = self.thread_costs(loom)?;
        let line = |entity: &EntityId| {
            let (own, all) = costs.get(entity).copied().unwrap_or_default();
            self.state.projection().thread_summary(
                *entity,
                |run| self.state.is_held(run),
                (own.cost(), all.cost()),
                self.bodies,
            )
        };
        entities.iter().map(line).collect()
    }

    pub(crate) fn threads(&self, loom: LoomId, page: PageRequest) -> Result<ListPage<ThreadSummary>, Error> {
        let ListPage { items, next } = self.state.projection().entities(loom, page)?;
        let entities: Vec<EntityId> = items.iter().map(|view| view.entity.entity_id).collect();
        Ok(ListPage { items: self.thread_summaries(&entities, loom)?, next })
    }

    pub(crate) fn run_threads(&self, run: RunId) -> Result<Vec<ThreadSummary>, Error> {
        let view = self.state.run(run)?;
        let tree = self.state.projection();
        let mut entities: Vec<EntityId> = view.entity_id.into_iter().collect();
        for entity in tree.entity_ids(view.loom_id)? {
            if entities.len() < RUN_THREADS_MAX
                && view.entity_id != Some(*entity)
                && tree.entity(*entity)?.run_id == run
            {
                entities.push(*entity);
            }
        }
        self.thread_summaries(&entities, view.loom_id)
    }

    pub(crate) fn waiting_calls(&self, page: PageRequest) -> Result<ListPage<WaitingCall>, Error> {
        let mut asking = BTreeSet::new();
        for run in self.state.projection().run_ids() {
            let waits = self.state.projection().run_part(*run).is_some_and(|part| !part.approvals.is_empty());
            if waits && self.state.run(*run)?.state.is_live() {
                asking.insert(*run);
            }
        }
        let digests = self.digests(asking.iter().copied())?;
        let waiting = digests.waiting.range(page.after.unwrap_or(0)..);
        let mut live = waiting.filter(|(_, call)| asking.contains(&call.run_id));
        let most = page.most.min(PAGE_ITEMS_MAX);
        let items: Vec<WaitingCall> = live.by_ref().take(most).map(|(_, call)| call.clone()).collect();
        Ok(ListPage { items, next: live.next().map(|(place, _)| *place) })
    }
}
