//! The position of a viewer in the feed of a run.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cantrip_service::cantrip::canon::Clock;
use cantrip_service::cantrip::loom::Seq;
use cantrip_service::cantrip::stream::{ItemId, TurnId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::feed_event::FeedEvent;
use super::{Entry, RunFeed, State};
use crate::limits::ITEM_BYTES_A_SECOND;

/// The position at which a viewer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartPosition {
    /// At everything that is kept.
    Start,
    /// After this sequence number.
    After(Seq),
    /// At the open turns.
    Tail,
}

/// The error for a position that is no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StaleCursor {
    /// The oldest sequence number from which everything is kept.
    pub(crate) oldest: Seq,
}

/// The next step of a viewer.
#[derive(Debug)]
pub(crate) enum Next {
    Line(Arc<FeedEvent>),
    /// Nothing yet; wait for a change, at most until this time.
    Wait(Option<Instant>),
    /// The run has ended, and all of it was shown.
    Over,
    /// Events that the viewer has not seen are gone.
    Behind,
}

/// The position of a viewer in a feed.
#[derive(Debug)]
pub(crate) struct FeedCursor {
    board: Arc<RunFeed>,
    written: watch::Receiver<u64>,
    replay: VecDeque<Entry>,
    seen: u64,
    /// The times at which incomplete items were last sent.
    sent: HashMap<ItemId, Instant>,
    /// Items to send again, each not before its time.
    deferred: HashMap<ItemId, (Entry, Instant)>,
    every_delta: bool,
}

impl FeedCursor {
    pub(in crate::feed) fn of(board: Arc<RunFeed>) -> Self {
        board.viewers.fetch_add(1, Ordering::SeqCst);
        let written = board.written.subscribe();
        let (sent, deferred) = (HashMap::new(), HashMap::new());
        Self { board, written, replay: VecDeque::new(), seen: 0, sent, deferred, every_delta: false }
    }

    /// Asks for every delta of the text, for as long as this viewer stays.
    pub(crate) fn send_every_delta(&mut self) {
        if !self.every_delta {
            self.every_delta = true;
            self.board.write(|state| state.set_every_delta(state.every_delta + 1));
        }
    }

    /// Waits until the records up to `seq` are in the feed. Returns false if the reader failed.
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

    /// Returns true if the run has ended and its end is not after `seq`.
    pub(crate) fn is_over_after(&self, seq: Seq) -> bool {
        let state = self.board.state();
        let last = state.runs.back().and_then(|version| state.order.get(version));
        let ended = match last {
            Some(Entry::Run(line)) => line.id,
            Some(Entry::Started(_) | Entry::Item(..) | Entry::End(_)) | None => None,
        };
        state.over && ended.is_some_and(|ended| seq >= ended)
    }

    /// Starts at a position, or continues after the viewer fell behind.
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

    /// Waits for a change, at most until this time.
    pub(crate) async fn wait_for_change(&mut self, until: Option<Instant>) {
        let until = async {
            match until {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The feed lives as long as this cursor.
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
        if self.every_delta {
            self.board.write(|state| state.set_every_delta(state.every_delta.saturating_sub(1)));
        }
        let mut feeding = self.board.reader();
        if self.board.viewers.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(task) = feeding.task.take()
        {
            task.abort();
        }
    }
}

/// Records the time at which an incomplete item was sent.
fn note(sent: &mut HashMap<ItemId, Instant>, line: &FeedEvent, now: Instant) {
    let Some(upsert) = line.upsert() else { return };
    if upsert.status.is_final() {
        sent.remove(&upsert.item_id);
    } else {
        sent.insert(upsert.item_id.clone(), now);
    }
}

/// Returns the time at which an incomplete item may be sent again: the longer the item, the later.
fn wait(sent: &HashMap<ItemId, Instant>, line: &FeedEvent) -> Option<(ItemId, Instant)> {
    let upsert = line.upsert().filter(|upsert| !upsert.status.is_final())?;
    let last = sent.get(&upsert.item_id)?;
    let pause = Duration::from_secs_f64(line.bytes() as f64 / ITEM_BYTES_A_SECOND as f64);
    Some((upsert.item_id.clone(), *last + pause))
}
