//! What the viewers of a run are shown, in order, and where each of them is.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::canon::{self, Clock, RunId};
use cantrip_service::cantrip::loom::{EndedBy, Seq};
use cantrip_service::cantrip::stream::{
    Emission, Item, ItemId, Options, Origin, Processor, StreamEvent, TurnEvent, TurnId, Upsert,
};
use cantrip_service::cantrip::{MachineClock, Runtime};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::feed_event::{Content, FeedEvent};
use super::record_reader::run_reader;
use crate::limits::{ITEM_BYTES_A_SECOND, KEPT_BYTES, KEPT_RUNS, KEPT_TURNS};

/// The board of one run.
pub(crate) struct RunFeed {
    run: RunId,
    state: Mutex<State>,
    /// Counts what was written on it.
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

/// What a record does to the board. Each waits until what came before it has been shown.
#[derive(Debug)]
pub(crate) enum RecordEffect {
    /// A group of turns ends with it. `end` says so where nobody who watched does.
    Closes { group: canon::TurnId, seq: Seq, end: Option<Arc<StreamEvent>> },
    /// The run ends with it: what is still open ends too.
    Over { seq: Seq },
    /// So the run stands now.
    Stands { seq: Seq, told: Value, answers: Option<EndedBy> },
}

struct State {
    processor: Processor,
    clock: MachineClock,
    version: u64,
    turns: HashMap<TurnId, TurnState>,
    /// The last change of everything that is shown.
    order: BTreeMap<u64, Entry>,
    ended: BTreeMap<(Seq, u64), TurnId>,
    ended_bytes: usize,
    runs: VecDeque<u64>,
    steps: VecDeque<RecordEffect>,
    /// Turns that another process may have gone on with: they are told anew.
    again: HashSet<TurnId>,
    /// Watchers in this process write on it.
    watched: bool,
    /// Turns that ended up to here are not kept.
    kept_from: Seq,
    /// Something that was written up to here is not kept.
    lost_through: u64,
    newest: Seq,
    over: bool,
    failed: bool,
}

#[derive(Default)]
struct TurnState {
    started: Option<(u64, Arc<FeedEvent>)>,
    /// In the order in which they appeared.
    items: Vec<(u64, Arc<FeedEvent>)>,
    places: HashMap<ItemId, usize>,
    /// It has ended, and its place in the journal is not known yet.
    ending: Option<TurnEvent>,
    end: Option<(u64, Arc<FeedEvent>, Seq)>,
    opened: u64,
    bytes: usize,
    /// A watcher in this process writes it.
    live: bool,
}

#[derive(Debug, Clone)]
enum Entry {
    Started(TurnId),
    Item(TurnId, usize),
    End(TurnId),
    Run(Arc<FeedEvent>),
}

impl State {
    fn put(&mut self, entry: Entry) -> u64 {
        self.version += 1;
        self.order.insert(self.version, entry);
        self.version
    }

    fn process(&mut self, event: &StreamEvent, live: bool) {
        let mut out = Vec::new();
        // A turn that meets a bound of the viewer goes on unseen; its records still end it.
        drop(self.processor.process(event, self.clock.now(), &mut out));
        for emission in out {
            self.show(emission, live);
        }
    }

    fn tick(&mut self) {
        let mut out = Vec::new();
        self.processor.tick(self.clock.now(), &mut out);
        for emission in out {
            self.show(emission, true);
        }
    }

    fn show(&mut self, emission: Emission, live: bool) {
        match emission {
            Emission::Upsert(upsert) => self.show_item(upsert),
            Emission::Turn(event @ TurnEvent::Started { .. }) => self.show_start(event, live),
            Emission::Turn(event @ (TurnEvent::Complete { .. } | TurnEvent::Error { .. })) => {
                if let Some(turn) = self.turns.get_mut(event.turn_id())
                    && turn.end.is_none()
                {
                    turn.ending = Some(event);
                }
            }
        }
    }

    /// A turn begins, or is told anew: then what was shown of it counts no more.
    fn show_start(&mut self, event: TurnEvent, live: bool) {
        let id = event.turn_id().clone();
        if self.turns.get(&id).is_some_and(|turn| turn.end.is_some()) {
            return;
        }
        self.forget(&id, false);
        self.again.remove(&id);
        let version = self.put(Entry::Started(id.clone()));
        let line = Arc::new(FeedEvent::new(Content::Turn(event), None));
        let bytes = line.bytes();
        let started = Some((version, line));
        self.turns.insert(id, TurnState { started, opened: version, bytes, live, ..TurnState::default() });
    }

    fn show_item(&mut self, upsert: Upsert) {
        let (id, item) = (upsert.turn_id.clone(), upsert.item_id.clone());
        let Some(turn) = self.turns.get_mut(&id).filter(|turn| turn.end.is_none()) else { return };
        let line = Arc::new(FeedEvent::new(Content::Upsert(upsert), None));
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

    /// Takes a turn off the board; `lost` if somebody may have wanted it.
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

    /// Does what records did, as far as what came before was shown.
    fn advance(&mut self) {
        while let Some(step) = self.steps.pop_front() {
            match step {
                RecordEffect::Closes { group, seq, end } => {
                    let id = TurnId::from(&group);
                    let Some(turn) = self.turns.get(&id).filter(|turn| turn.end.is_none()) else { continue };
                    if turn.ending.is_none() {
                        if turn.live && self.watched {
                            // Whoever watches has yet to say so.
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
                        self.show(emission, false);
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
                    let line = Arc::new(FeedEvent::new(Content::Run(told), Some(seq)));
                    let version = self.put(Entry::Run(line));
                    self.runs.push_back(version);
                    // An older one says nothing that a newer one does not.
                    if self.runs.len() > KEPT_RUNS
                        && let Some(old) = self.runs.pop_front()
                    {
                        self.order.remove(&old);
                    }
                }
            }
        }
    }

    /// The turns that have not ended.
    fn open(&self) -> impl Iterator<Item = (u64, &TurnId)> {
        self.turns.iter().filter(|(_, turn)| turn.end.is_none()).map(|(id, turn)| (turn.opened, id))
    }

    /// A turn has its end, and a place for it.
    fn close(&mut self, id: &TurnId, seq: Seq) {
        let Some(event) = self.turns.get_mut(id).and_then(|turn| turn.ending.take()) else { return };
        let version = self.put(Entry::End(id.clone()));
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.end = Some((version, Arc::new(FeedEvent::new(Content::Turn(event), Some(seq))), seq));
        self.ended_bytes += turn.bytes;
        self.ended.insert((seq, version), id.clone());
        while self.ended.len() > KEPT_TURNS || (self.ended_bytes > KEPT_BYTES && self.ended.len() > 1) {
            let Some((&(seq, _), old)) = self.ended.first_key_value() else { break };
            let old = old.clone();
            self.kept_from = self.kept_from.max(seq);
            self.forget(&old, true);
        }
    }

    /// Where the answer of the root stands: in the turn that ended last.
    fn answer(&self, by: EndedBy) -> Option<ItemId> {
        let turns = self.ended.values().rev().filter_map(|id| Some((id, self.turns.get(id)?)));
        let mut of_root = turns.filter(|(_, turn)| !turn.is_child());
        let (id, turn) = of_root.next()?;
        match by {
            EndedBy::Done => {
                let answer = ItemId::new(&format!("{}/answer", id.as_str())).ok()?;
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

    /// All of a turn, in order.
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

impl TurnState {
    fn is_child(&self) -> bool {
        let started = self.started.as_ref().map(|(_, line)| line);
        started.is_some_and(|line| line.is_of_child())
    }
}

impl RunFeed {
    pub(super) fn new(run: RunId) -> Self {
        let options = Options { announce_arguments: true, ..Options::default() };
        let state = State {
            processor: Processor::new(options),
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

    /// Writes on it, and wakes whoever waits for that.
    fn write<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (changed, version) = {
            let mut state = self.state();
            let changed = change(&mut state);
            (changed, state.version)
        };
        self.written.send_modify(|written| *written = version.max(*written + 1));
        changed
    }

    /// A run begins here, or goes on.
    pub(crate) fn begin(&self) {
        self.write(|state| state.watched = true);
    }

    /// A watcher in this process saw something.
    pub(crate) fn observe(&self, event: &StreamEvent) {
        self.write(|state| {
            state.process(event, true);
            state.advance();
        });
    }

    /// It came to rest here: whoever goes on with it, perhaps elsewhere, tells what is open anew.
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
            let options = Options { announce_arguments: true, ..Options::default() };
            state.processor = Processor::new(options);
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

    /// Sees to it that its records are read.
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

    /// Whether a turn needs no telling from its records: somebody watches it, or it is all there.
    pub(super) fn has_turn(&self, turn: canon::TurnId) -> bool {
        let state = self.state();
        state.turns.get(&TurnId::from(&turn)).is_some_and(|turn| turn.live || turn.end.is_some())
    }

    /// Whether a turn that was told up to some record has to be told anew from its first.
    pub(super) fn needs_replay(&self, turn: canon::TurnId) -> bool {
        self.state().again.contains(&TurnId::from(&turn))
    }

    /// What a record tells.
    pub(super) fn apply_events(&self, events: &[StreamEvent]) {
        self.write(|state| events.iter().for_each(|event| state.process(event, false)));
    }

    pub(super) fn drop_before(&self, seq: Seq) {
        self.write(|state| state.kept_from = state.kept_from.max(seq));
    }

    /// What a record does.
    pub(super) fn apply_record(&self, seq: Seq, steps: Vec<RecordEffect>, over: bool) {
        self.write(|state| {
            state.newest = state.newest.max(seq);
            // One that failed may be gone on with.
            state.over &= over;
            state.steps.extend(steps);
            state.advance();
        });
    }

    /// Its records cannot be read any more.
    pub(super) fn mark_failed(&self) {
        self.write(|state| state.failed = true);
    }
}

/// Where a viewer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartPosition {
    /// With all that is kept.
    Start,
    /// Behind this place.
    After(Seq),
    /// With what is open.
    Tail,
}

/// A place that nothing is kept of any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaleCursor {
    /// The oldest place from which all is kept.
    pub(crate) oldest: Seq,
}

/// What comes next for a viewer.
#[derive(Debug)]
pub(crate) enum Next {
    Line(Arc<FeedEvent>),
    /// Nothing yet; at the latest then there may be.
    Wait(Option<Instant>),
    /// The run has ended, and all of it was shown.
    Over,
    /// What it has not seen is gone.
    Behind,
}

/// A place on a board.
#[derive(Debug)]
pub(crate) struct FeedCursor {
    board: Arc<RunFeed>,
    written: watch::Receiver<u64>,
    replay: VecDeque<Entry>,
    seen: u64,
    /// When items that are not complete were last sent.
    sent: HashMap<ItemId, Instant>,
    /// Items that are to be sent again, not before this.
    deferred: HashMap<ItemId, (Entry, Instant)>,
}

impl FeedCursor {
    pub(super) fn of(board: Arc<RunFeed>) -> Self {
        board.viewers.fetch_add(1, Ordering::SeqCst);
        let written = board.written.subscribe();
        Self { board, written, replay: VecDeque::new(), seen: 0, sent: HashMap::new(), deferred: HashMap::new() }
    }

    /// Waits until the records up to `seq` are on the board; says whether they are.
    pub(crate) async fn wait_for_record(&mut self, seq: Seq) -> bool {
        loop {
            {
                let state = self.board.state();
                if state.newest >= seq || state.failed {
                    return state.newest >= seq;
                }
            }
            if self.written.changed().await.is_err() {
                return false;
            }
        }
    }

    /// Whether the run has ended, and whoever is at this place has seen that.
    pub(crate) fn is_over_after(&self, seq: Seq) -> bool {
        let state = self.board.state();
        let last = state.runs.back().and_then(|version| state.order.get(version));
        let ended = match last {
            Some(Entry::Run(line)) => line.id,
            Some(Entry::Started(_) | Entry::Item(..) | Entry::End(_)) | None => None,
        };
        state.over && ended.is_some_and(|ended| seq >= ended)
    }

    /// Begins, or goes on after it fell behind.
    pub(crate) fn resume(&mut self, from: StartPosition) -> Result<(), StaleCursor> {
        let state = self.board.state();
        let after = match from {
            StartPosition::Start => Some(Seq::START),
            StartPosition::After(seq) if seq < state.kept_from => return Err(StaleCursor { oldest: state.kept_from }),
            StartPosition::After(seq) => Some(seq),
            StartPosition::Tail => None,
        };
        let mut replay = VecDeque::new();
        if let Some(after) = after {
            for (_, id) in state.ended.range((after.next(), 0)..) {
                state.whole(id, &mut replay);
            }
        }
        let open: BTreeMap<u64, &TurnId> = state.open().collect();
        for id in open.values() {
            state.whole(id, &mut replay);
        }
        if let Some(last) = state.runs.back().and_then(|version| state.order.get(version)) {
            replay.push_back(last.clone());
        }
        self.seen = state.version;
        drop(state);
        self.replay = replay;
        self.sent.clear();
        self.deferred.clear();
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Next {
        let now = Instant::now();
        let state = self.board.state();
        while let Some(entry) = self.replay.pop_front() {
            match state.line(&entry) {
                Some(line) => {
                    note(&mut self.sent, &line, now);
                    return Next::Line(line);
                }
                None if state.lost_through > 0 => return Next::Behind,
                None => {}
            }
        }
        if state.lost_through > self.seen {
            return Next::Behind;
        }
        let due = self.deferred.iter().find(|(_, (_, at))| *at <= now).map(|(item, _)| item.clone());
        if let Some(item) = due
            && let Some((entry, _)) = self.deferred.remove(&item)
            && let Some(line) = state.line(&entry)
        {
            note(&mut self.sent, &line, now);
            return Next::Line(line);
        }
        while let Some((version, entry)) = state.order.range(self.seen + 1..).next() {
            self.seen = *version;
            let Some(line) = state.line(entry) else { continue };
            if let Some((item, at)) = wait(&self.sent, &line).filter(|(_, at)| *at > now) {
                self.deferred.insert(item, (entry.clone(), at));
                continue;
            }
            if let Some(upsert) = line.upsert() {
                self.deferred.remove(&upsert.item_id);
            }
            note(&mut self.sent, &line, now);
            return Next::Line(line);
        }
        if state.over && state.steps.is_empty() {
            return Next::Over;
        }
        if state.failed {
            return Next::Behind;
        }
        let tick = state.processor.next_deadline().map(|due| now + due.since(state.clock.now().monotonic));
        let again = self.deferred.values().map(|(_, at)| *at).min();
        Next::Wait(tick.into_iter().chain(again).min())
    }

    /// Returns when there may be something new, or at this time.
    pub(crate) async fn wait_for_change(&mut self, until: Option<Instant>) {
        let until = async {
            match until {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The board lives as long as this.
            _ = self.written.changed() => {}
            () = until => {
                let due = {
                    let state = self.board.state();
                    let now = state.clock.now().monotonic;
                    state.processor.next_deadline().is_some_and(|due| due.since(now).is_zero())
                };
                if due {
                    self.board.write(State::tick);
                }
            }
        }
    }
}

impl Drop for FeedCursor {
    fn drop(&mut self) {
        let mut feeding = self.board.reader();
        if self.board.viewers.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(task) = feeding.task.take()
        {
            task.abort();
        }
    }
}

/// Notes when an item was sent that is not complete.
fn note(sent: &mut HashMap<ItemId, Instant>, line: &FeedEvent, now: Instant) {
    let Some(upsert) = line.upsert() else { return };
    if upsert.status.is_final() {
        sent.remove(&upsert.item_id);
    } else {
        sent.insert(upsert.item_id.clone(), now);
    }
}

/// When an item that is not complete may be sent again: the longer it is, the later.
fn wait(sent: &HashMap<ItemId, Instant>, line: &FeedEvent) -> Option<(ItemId, Instant)> {
    let upsert = line.upsert().filter(|upsert| !upsert.status.is_final())?;
    let last = sent.get(&upsert.item_id)?;
    let pause = Duration::from_secs_f64(line.bytes() as f64 / ITEM_BYTES_A_SECOND as f64);
    Some((upsert.item_id.clone(), *last + pause))
}
