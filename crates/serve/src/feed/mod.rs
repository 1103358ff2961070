//! The live view of a run: what its viewers are shown, and where each of them is.
//!
//! A run that somebody looks at has one [`Board`]. What happens in this process is written on it as it happens; what is on
//! record is written on it by whoever reads the records, and gives each turn its end, its place in the journal and the
//! state of the run. Viewers have no queues: each holds a place on the board and takes what changed behind it, at its own
//! pace, so one that stops reading costs what the board costs and nothing more, and none is waited for. A queue for each
//! viewer was turned down: it has to be bounded, and then does the same by a longer way.

mod feed_event;
mod record_reader;
mod run_feed;
mod run_status;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::canon::RunId;

pub(crate) use feed_event::FeedEvent;
pub(crate) use run_feed::{FeedCursor, Next, RunFeed, StaleCursor, StartPosition};

use crate::limits::{RESTED_BOARDS_BYTES, RESTED_BOARDS_MAX};

/// The boards that somebody looks at or may come back to.
#[derive(Debug, Default)]
pub(crate) struct RunFeeds(Mutex<FeedCache>);

#[derive(Debug, Default)]
struct FeedCache {
    known: HashMap<RunId, Weak<RunFeed>>,
    /// Of runs that came to rest here a while ago: who was cut off finds what it saw.
    rested: VecDeque<(RunId, Arc<RunFeed>)>,
}

impl RunFeeds {
    fn cache(&self) -> MutexGuard<'_, FeedCache> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The board of a run, which lives as long as somebody holds it.
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

    /// A run has come to rest here.
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

    /// A place on the board of a run, which is kept up as long as somebody has one.
    pub(crate) fn open_cursor(&self, runtime: &Runtime, run: RunId) -> FeedCursor {
        let board = self.get_or_create(run);
        let view = FeedCursor::of(Arc::clone(&board));
        board.ensure_reader(runtime);
        view
    }
}
