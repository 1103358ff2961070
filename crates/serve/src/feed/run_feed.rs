//! The ordered events of a run for its viewers. The position of each viewer is in [`cursor`].

mod cursor;
mod turn_state;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip_service::cantrip::canon::{self, Clock, RunId, Timestamp};
use cantrip_service::cantrip::loom::{EndedBy, Seq};
use cantrip_service::cantrip::stream::{
    Emission, Gradient, Item, ItemId, Options, Origin, Processor, StreamEvent, TurnEvent, TurnId, Upsert,
};
use cantrip_service::cantrip::{MachineClock, Runtime};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::feed_event::{Content, FeedEvent};
use super::record_reader::run_reader;
use crate::limits::{KEPT_BYTES, KEPT_RUNS, KEPT_TURNS};

use turn_state::{ANSWER, TurnState, child_of};

pub(crate) use cursor::{FeedCursor, Next, StaleCursor, StartPosition};

/// The feed of one run.
pub(crate) struct RunFeed {
    run: RunId,
    state: Mutex<State>,
    /// Counts the writes.
    written: watch::Sender<u64>,
    viewers: AtomicUsize,
    reader: Mutex<ReaderTask>,
}

impl fmt::Debug for RunFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunFeed").field("run", &self.run).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct ReaderTask {
    runtime: Option<Runtime>,
    task: Option<JoinHandle<()>>,
}

/// The effect of a record on the feed. Each effect waits until everything before it has been shown.
#[derive(Debug)]
pub(crate) enum RecordEffect {
    /// The record ends a group of turns. `end` is the event for it, for a turn without a watcher.
    Closes { group: canon::TurnId, seq: Seq, end: Option<Arc<StreamEvent>> },
    /// The record ends the run: open turns end too.
    Over { seq: Seq },
    /// The new state of the run.
    Stands { seq: Seq, told: Value, answers: Option<EndedBy> },
}

struct State {
    processor: Processor,
    clock: MachineClock,
    version: u64,
    turns: HashMap<TurnId, TurnState>,
    /// The latest change of everything that is shown.
    order: BTreeMap<u64, Entry>,
    ended: BTreeMap<(Seq, u64), TurnId>,
    ended_bytes: usize,
    runs: VecDeque<u64>,
    steps: VecDeque<RecordEffect>,
    /// Turns that another process may have continued: they are replayed.
    again: HashSet<TurnId>,
    /// True if watchers in this process write to the feed.
    watched: bool,
    /// Turns that ended up to this sequence number are not kept.
    kept_from: Seq,
    /// Some of the changes up to this version are not kept.
    lost_through: u64,
    newest: Seq,
    /// The number of viewers that want every delta.
    every_delta: usize,
    over: bool,
    failed: bool,
}

#[derive(Debug, Clone)]
enum Entry {
    Started(TurnId),
    Item(TurnId, usize),
    End(TurnId),
    Run(Arc<FeedEvent>),
}

/// Returns the gradient of a feed: the default one, unless a viewer wants every delta.
fn gradient(every_delta: usize) -> Gradient {
    if every_delta > 0 { Gradient::every_token() } else { Gradient::default() }
}

fn processor(every_delta: usize) -> Processor {
    Processor::new(Options { gradient: gradient(every_delta), announce_arguments: true, ..Options::default() })
}

impl State {
    /// Changes the number of viewers that want every delta. While there is one, all viewers may get them: an event
    /// carries the full state of its item, so a viewer that gets more events sees nothing else.
    fn set_every_delta(&mut self, viewers: usize) {
        self.every_delta = viewers;
        self.processor.set_gradient(gradient(viewers));
    }

    fn put(&mut self, entry: Entry) -> u64 {
        self.version += 1;
        self.order.insert(self.version, entry);
        self.version
    }

    fn process(&mut self, event: &StreamEvent, live: bool) {
        let mut out = Vec::new();
        // A turn that exceeds a bound of the viewer continues unseen; its records still end it.
        drop(self.processor.process(event, self.clock.now(), &mut out));
        let at = event.timestamp.as_str().parse().ok();
        for emission in out {
            self.show(emission, live, at);
        }
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.processor.tick(self.clock.now(), &mut out);
        for emission in out {
            self.show(emission, true, None);
        }
    }

    /// Shows an emission. `at` is the time of the event that caused it; without one it is shown as of now.
    fn show(&mut self, emission: Emission, live: bool, at: Option<Timestamp>) {
        let at = at.unwrap_or_else(|| self.clock.now().wall);
        match emission {
            Emission::Upsert(upsert) => self.show_item(upsert, at),
            Emission::Turn(event @ TurnEvent::Started { .. }) => self.show_start(event, live, at),
            Emission::Turn(event @ (TurnEvent::Complete { .. } | TurnEvent::Error { .. })) => {
                if let Some(turn) = self.turns.get_mut(event.turn_id())
                    && turn.end.is_none()
                {
                    turn.ending = Some(event);
                }
            }
        }
    }

    /// Starts a turn, or restarts it: then its earlier items are discarded.
    fn show_start(&mut self, event: TurnEvent, live: bool, at: Timestamp) {
        let id = event.turn_id().clone();
        let child = child_of(&event);
        if self.turns.get(&id).is_some_and(|turn| turn.end.is_some()) {
            return;
        }
        self.forget(&id, false);
        self.again.remove(&id);
        let version = self.put(Entry::Started(id.clone()));
        let line = Arc::new(FeedEvent::new(Content::Turn(event), None).of_child(child.clone()));
        let bytes = line.bytes();
        let started = Some((version, line));
        let since = Some(at);
        self.turns
            .insert(id, TurnState { started, opened: version, bytes, live, since, child, ..TurnState::default() });
    }

    fn show_item(&mut self, upsert: Upsert, at: Timestamp) {
        let (id, item) = (upsert.turn_id.clone(), upsert.item_id.clone());
        let Some(turn) = self.turns.get_mut(&id).filter(|turn| turn.end.is_none()) else { return };
        let place = turn.item_place(&upsert, at);
        let line = Arc::new(FeedEvent::new(Content::Upsert(upsert, place), None).of_child(turn.child.clone()));
        turn.bytes += line.bytes();
        self.version += 1;
        let version = self.version;
        let place = match turn.places.get(&item) {
            Some(place) => {
                let (before, old) = std::mem::replace(&mut turn.items[*place], (version, line));
                turn.bytes -= old.bytes();
                self.order.remove(&before);
                *place
            }
            None => {
                turn.items.push((version, line));
                turn.places.insert(item, turn.items.len() - 1);
                turn.items.len() - 1
            }
        };
        self.order.insert(version, Entry::Item(id, place));
    }

    /// Removes a turn from the feed. `lost` is true if a viewer may have wanted it.
    fn forget(&mut self, id: &TurnId, lost: bool) {
        let Some(turn) = self.turns.remove(id) else { return };
        let start = turn.started.into_iter().map(|(version, _)| version);
        let end = turn.end.iter().map(|(version, ..)| *version);
        for version in start.chain(turn.items.iter().map(|(version, _)| *version)).chain(end) {
            self.order.remove(&version);
            if lost {
                self.lost_through = self.lost_through.max(version);
            }
        }
        if let Some((version, _, seq)) = turn.end {
            self.ended.remove(&(seq, version));
            self.ended_bytes -= turn.bytes;
        }
    }

    /// Applies the effects of records, as far as everything before them was shown.
    fn advance(&mut self) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                RecordEffect::Closes { group, seq, end } => {
                    let id = TurnId::from(&group);
                    let Some(turn) = self.turns.get(&id).filter(|turn| turn.end.is_none()) else { continue };
                    if turn.ending.is_none() {
                        if turn.live && self.watched {
                            // The watcher has not reported the end yet.
                            self.steps.push_front(RecordEffect::Closes { group, seq, end });
                            return;
                        }
                        if let Some(end) = end {
                            self.process(&end, false);
                        }
                    }
                    self.close(&id, seq);
                }
                RecordEffect::Over { seq } => {
                    self.over = true;
                    let mut out = Vec::new();
                    self.processor.close(None, self.clock.now(), &mut out);
                    for emission in out {
                        self.show(emission, false, None);
                    }
                    let mut open: Vec<_> = self.open().map(|(opened, id)| (opened, id.clone())).collect();
                    open.sort_unstable_by_key(|(opened, _)| *opened);
                    for (_, id) in open {
                        self.close(&id, seq);
                    }
                }
                RecordEffect::Stands { seq, mut told, answers } => {
                    if let Some(answer) = answers.and_then(|by| self.answer(by)) {
                        told["answerItemId"] = answer.as_str().into();
                    }
                    if let Some(Entry::Run(old)) = self.runs.back().and_then(|version| self.order.get(version)) {
                        old.supersede();
                    }
                    let line = Arc::new(FeedEvent::new(Content::Run(told), Some(seq)));
                    let version = self.put(Entry::Run(line));
                    self.runs.push_back(version);
                    // A newer state replaces an older one.
                    if self.runs.len() > KEPT_RUNS
                        && let Some(old) = self.runs.pop_front()
                    {
                        self.order.remove(&old);
                    }
                }
            }
        }
    }

    /// Returns the turns that have not ended.
    fn open(&self) -> impl Iterator<Item = (u64, &TurnId)> {
        self.turns.iter().filter(|(_, turn)| turn.end.is_none()).map(|(id, turn)| (turn.opened, id))
    }

    /// Ends a turn at a sequence number.
    fn close(&mut self, id: &TurnId, seq: Seq) {
        let Some(event) = self.turns.get_mut(id).and_then(|turn| turn.ending.take()) else { return };
        let version = self.put(Entry::End(id.clone()));
        let Some(turn) = self.turns.get_mut(id) else { return };
        let line = FeedEvent::new(Content::Turn(event), Some(seq)).of_child(turn.child.clone());
        turn.end = Some((version, Arc::new(line), seq));
        self.ended_bytes += turn.bytes;
        self.ended.insert((seq, version), id.clone());
        while self.ended.len() > KEPT_TURNS || (self.ended_bytes > KEPT_BYTES && self.ended.len() > 1) {
            let Some((&(seq, _), old)) = self.ended.first_key_value() else { break };
            let old = old.clone();
            self.kept_from = self.kept_from.max(seq);
            self.forget(&old, true);
        }
    }

    /// Returns the item with the root's answer: it is in the turn that ended last.
    fn answer(&self, by: EndedBy) -> Option<ItemId> {
        let turns = self.ended.values().rev().filter_map(|id| Some((id, self.turns.get(id)?)));
        let mut of_root = turns.filter(|(_, turn)| !turn.is_child());
        let (id, turn) = of_root.next()?;
        match by {
            EndedBy::Done => {
                let answer = ItemId::new(&format!("{}{ANSWER}", id.as_str())).ok()?;
                turn.places.contains_key(&answer).then_some(answer)
            }
            EndedBy::Text => {
                let said = turn.items.iter().rev().filter_map(|(_, line)| line.upsert());
                let mut messages =
                    said.filter(|upsert| matches!(&upsert.item, Item::Message { origin: Origin::Agent, .. }));
                messages.next().map(|upsert| upsert.item_id.clone())
            }
        }
    }

    fn line(&self, entry: &Entry) -> Option<Arc<FeedEvent>> {
        match entry {
            Entry::Started(id) => Some(Arc::clone(&self.turns.get(id)?.started.as_ref()?.1)),
            Entry::Item(id, place) => Some(Arc::clone(&self.turns.get(id)?.items.get(*place)?.1)),
            Entry::End(id) => Some(Arc::clone(&self.turns.get(id)?.end.as_ref()?.1)),
            Entry::Run(line) => Some(Arc::clone(line)),
        }
    }

    /// Adds all entries of a turn, in order.
    fn whole(&self, id: &TurnId, into: &mut VecDeque<Entry>) {
        let Some(turn) = self.turns.get(id) else { return };
        if turn.started.is_some() {
            into.push_back(Entry::Started(id.clone()));
        }
        into.extend((0..turn.items.len()).map(|place| Entry::Item(id.clone(), place)));
        if turn.end.is_some() {
            into.push_back(Entry::End(id.clone()));
        }
    }
}

impl RunFeed {
    pub(super) fn new(run: RunId) -> Self {
        let state = State {
            processor: processor(0),
            clock: MachineClock::new(),
            version: 0,
            turns: HashMap::new(),
            order: BTreeMap::new(),
            ended: BTreeMap::new(),
            ended_bytes: 0,
            runs: VecDeque::new(),
            steps: VecDeque::new(),
            again: HashSet::new(),
            watched: false,
            kept_from: Seq::START,
            lost_through: 0,
            newest: Seq::START,
            every_delta: 0,
            over: false,
            failed: false,
        };
        Self {
            run,
            state: Mutex::new(state),
            written: watch::Sender::new(0),
            viewers: AtomicUsize::new(0),
            reader: Mutex::default(),
        }
    }

    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, ReaderTask> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes the waiting viewers.
    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, version) = {
            let mut state = self.state();
            let changed = change(&mut state);
            (changed, state.version)
        };
        self.written.send_modify(|written| *written = version.max(*written + 1));
        changed
    }

    /// Records that a run begins or resumes in this process.
    pub(crate) fn begin(&self) {
        self.write(|state| state.watched = true);
    }

    /// Adds an event of a watcher in this process.
    pub(crate) fn observe(&self, event: &StreamEvent) {
        self.write(|state| {
            state.process(event, true);
            state.advance();
        });
    }

    /// Records that the run stopped in this process. A process that resumes it, perhaps another one, replays the open
    /// turns.
    pub(super) fn mark_rested(self: &Arc<Self>) {
        let open = self.write(|state| {
            state.watched = false;
            state.advance();
            let open: Vec<TurnId> = state.open().map(|(_, id)| id.clone()).collect();
            for id in &open {
                if let Some(turn) = state.turns.get_mut(id) {
                    turn.live = false;
                }
            }
            state.again.extend(open.iter().cloned());
            state.processor = processor(state.every_delta);
            !open.is_empty()
        });
        let mut feeding = self.reader();
        if open && let Some(task) = feeding.task.take() {
            task.abort();
            self.start_reader(&mut feeding);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let state = self.state();
        state.turns.values().map(|turn| turn.bytes).sum()
    }

    /// Starts the reader of the run's records if none is running.
    pub(super) fn ensure_reader(self: &Arc<Self>, runtime: &Runtime) {
        let mut feeding = self.reader();
        feeding.runtime = Some(runtime.clone());
        if feeding.task.as_ref().is_none_or(JoinHandle::is_finished) {
            self.start_reader(&mut feeding);
        }
    }

    fn start_reader(self: &Arc<Self>, feeding: &mut ReaderTask) {
        let Some(runtime) = feeding.runtime.clone() else { return };
        self.write(|state| state.failed = false);
        feeding.task = Some(tokio::spawn(run_reader(Arc::downgrade(self), runtime, self.run)));
    }

    pub(super) fn newest(&self) -> Seq {
        self.state().newest
    }

    /// Returns true if a turn need not be read from its records: a watcher writes it, or it is complete.
    pub(super) fn has_turn(&self, turn: canon::TurnId) -> bool {
        let state = self.state();
        state.turns.get(&TurnId::from(&turn)).is_some_and(|turn| turn.live || turn.end.is_some())
    }

    /// Returns true if a turn that was read up to some record must be replayed from its first record.
    pub(super) fn needs_replay(&self, turn: canon::TurnId) -> bool {
        self.state().again.contains(&TurnId::from(&turn))
    }

    /// Applies the events of a record.
    pub(super) fn apply_events(&self, events: &[StreamEvent]) {
        self.write(|state| events.iter().for_each(|event| state.process(event, false)));
    }

    pub(super) fn drop_before(&self, seq: Seq) {
        self.write(|state| state.kept_from = state.kept_from.max(seq));
    }

    /// Applies the effects of a record.
    pub(super) fn apply_record(&self, seq: Seq, steps: Vec<RecordEffect>, over: bool) {
        self.write(|state| {
            state.newest = state.newest.max(seq);
            // A failed run may be resumed.
            state.over &= over;
            state.steps.extend(steps);
            state.advance();
        });
    }

    /// Records that the run's records cannot be read any more.
    pub(super) fn mark_failed(&self) {
        self.write(|state| state.failed = true);
    }
}
