//! The live view of a run: the events for its viewers, and the position of each viewer.
//!
//! A run with viewers has one [`RunFeed`]. Events of this process are written to it as they happen. A reader of the
//! run's records adds the recorded part: it ends each turn, gives it a sequence number, and sets the state of the run.
//! Viewers have no queues: each has a position in the feed and takes the changes after it, at its own pace. So a viewer
//! that stops reading costs nothing beyond the feed itself, and no viewer is waited for. A queue for each viewer was
//! turned down: it needs a bound, and then behaves the same with more code.

mod feed_event;
mod record_reader;
mod run_feed;
mod run_status;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::canon::RunId;

pub(crate) use feed_event::{Content, FeedEvent, PartReader};
pub(crate) use run_feed::{FeedCursor, Next, RunFeed, StaleCursor, StartPosition};

use crate::limits::{RESTED_BOARDS_BYTES, RESTED_BOARDS_MAX};

/// The feeds that have viewers or may get them back.
#[derive(Debug, Default)]
pub(crate) struct RunFeeds(Mutex<FeedCache>);

#[derive(Debug, Default)]
struct FeedCache {
    known: HashMap<RunId, Weak<RunFeed>>,
    /// The feeds of runs that recently stopped in this process, so that a viewer that lost its connection can continue.
    rested: VecDeque<(RunId, Arc<RunFeed>)>,
}

impl RunFeeds {
    fn cache(&self) -> MutexGuard<'_, FeedCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the feed of a run, which lives as long as it is referenced.
    pub(crate) fn get_or_create(&self, run: RunId) -> Arc<RunFeed> {
        let mut shelf = self.cache();
        if let Some(board) = shelf.known.get(&run).and_then(Weak::upgrade) {
            return board;
        }
        let board = Arc::new(RunFeed::new(run));
        shelf.known.retain(|_, board| board.strong_count() > 0);
        shelf.known.insert(run, Arc::downgrade(&board));
        board
    }

    /// Returns the feed of a run, if there is one.
    pub(crate) fn find(&self, run: RunId) -> Option<Arc<RunFeed>> {
        self.cache().known.get(&run).and_then(Weak::upgrade)
    }

    /// Keeps the feed of a run that stopped in this process.
    pub(crate) fn keep_rested(&self, board: Arc<RunFeed>) {
        board.mark_rested();
        let mut shelf = self.cache();
        let run = board.run();
        shelf.rested.retain(|(known, _)| *known != run);
        shelf.rested.push_back((run, board));
        let bytes = |shelf: &FeedCache| shelf.rested.iter().map(|(_, board)| board.bytes()).sum::<usize>();
        while shelf.rested.len() > RESTED_BOARDS_MAX || bytes(&shelf) > RESTED_BOARDS_BYTES {
            shelf.rested.pop_front();
        }
    }

    /// Opens a cursor on the feed of a run, which is kept up to date as long as it has a cursor.
    pub(crate) fn open_cursor(&self, runtime: &Runtime, run: RunId) -> FeedCursor {
        let board = self.get_or_create(run);
        let view = FeedCursor::of(Arc::clone(&board));
        board.ensure_reader(runtime);
        view
    }
}
