//! The live view of a run: what its viewers are shown, and where each of them is.
//!
//! A run that somebody looks at has one [`Board`]. What happens in this process is written on it as it happens; what is on
//! record is written on it by whoever reads the records, and gives each turn its end, its place in the journal and the
//! state of the run. Viewers have no queues: each holds a place on the board and takes what changed behind it, at its own
//! pace, so one that stops reading costs what the board costs and nothing more, and none is waited for. A queue for each
//! viewer was turned down: it has to be bounded, and then does the same by a longer way.

mod board;
mod feeder;
mod line;
mod standing;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::canon::RunId;

pub(crate) use board::{Board, Next, Resume, Stale, View};
pub(crate) use line::Line;

use crate::limits::{RESTED_BOARDS_BYTES, RESTED_BOARDS_MAX};

/// The boards that somebody looks at or may come back to.
#[derive(Debug, Default)]
pub(crate) struct Boards(Mutex<Shelf>);

#[derive(Debug, Default)]
struct Shelf {
    known: HashMap<RunId, Weak<Board>>,
    /// Of runs that came to rest here a while ago: who was cut off finds what it saw.
    rested: VecDeque<(RunId, Arc<Board>)>,
}

impl Boards {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The board of a run, which lives as long as somebody holds it.
    pub(crate) fn of(&self, run: RunId) -> Arc<Board> {
        let mut shelf = self.shelf();
        if let Some(board) = shelf.known.get(&run).and_then(Weak::upgrade) {
            return board;
        }
        let board = Arc::new(Board::new(run));
        shelf.known.retain(|_, board| board.strong_count() > 0);
        shelf.known.insert(run, Arc::downgrade(&board));
        board
    }

    /// A run has come to rest here.
    pub(crate) fn rests(&self, board: Arc<Board>) {
        board.rests();
        let mut shelf = self.shelf();
        let run = board.run();
        shelf.rested.retain(|(known, _)| *known != run);
        shelf.rested.push_back((run, board));
        let bytes = |shelf: &Shelf| shelf.rested.iter().map(|(_, board)| board.bytes()).sum::<usize>();
        while shelf.rested.len() > RESTED_BOARDS_MAX || bytes(&shelf) > RESTED_BOARDS_BYTES {
            shelf.rested.pop_front();
        }
    }

    /// A place on the board of a run, which is kept up as long as somebody has one.
    pub(crate) fn view(&self, runtime: &Runtime, run: RunId) -> View {
        let board = self.of(run);
        let view = View::of(Arc::clone(&board));
        board.keep_up(runtime);
        view
    }
}
