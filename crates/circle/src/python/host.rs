//! Where sessions live, and which of those places takes the next one.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::lane::{Fate, Lane, OwnThread, Patience, Told, Worker};
use super::memory::is_counting;
use super::wire::{Command, Limit, ProgramLimits};
use crate::limits;

/// How Python is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    place: Place,
    workers: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    OwnThread,
    Worker(Option<PathBuf>),
}

impl Default for Options {
    /// Worker processes, of the program `cantrip` wherever it is found: this very process, beside it, or on the path.
    fn default() -> Self {
        Self { place: Place::Worker(None), workers: thread::available_parallelism().map_or(1, usize::from) }
    }
}

impl Options {
    /// Worker processes of this program: it is started with `worker --python`.
    pub fn worker(program: impl Into<PathBuf>) -> Self {
        Self { place: Place::Worker(Some(program.into())), ..Self::default() }
    }

    /// A thread of this process, whose allocator must be [`Counting`](super::Counting). No process is started, and none
    /// stands between a fault of the interpreter and this one: for programs that are trusted.
    pub fn in_process() -> Self {
        Self { place: Place::OwnThread, workers: 1 }
    }

    /// At most so many workers; each runs one program at a time.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.clamp(1, limits::WORKERS_MAX);
        self
    }

    pub(super) fn start(self) -> Result<Shared, Unavailable> {
        let place = match self.place {
            Place::OwnThread if is_counting() => Found::OwnThread,
            Place::OwnThread => return Err(Unavailable::NotCounted),
            Place::Worker(given) => Found::Worker(given.or_else(found).ok_or(Unavailable::NoWorker)?),
        };
        let shared = Shared { place, lanes: Mutex::new(Vec::new()), lanes_max: self.workers, ids: AtomicU64::new(0) };
        let (said, heard) = mpsc::channel();
        let first = shared.lane(said).map_err(Unavailable::Start)?;
        // A thread says nothing: it is there.
        if matches!(shared.place, Found::Worker(_))
            && heard.recv_timeout(Duration::from_millis(limits::WORKER_START_MS)) != Ok(true)
        {
            return Err(Unavailable::Foreign);
        }
        shared.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(first);
        Ok(shared)
    }
}

/// Why Python cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("no worker: the program cantrip is neither beside this one nor on the path")]
    NoWorker,
    #[error("the worker cannot be started: {0}")]
    Start(#[source] io::Error),
    #[error("what was started is no worker of this version")]
    Foreign,
    #[error("this process does not count its memory")]
    NotCounted,
}

/// The program `cantrip`: this one, one beside it, or the first on the path.
fn found() -> Option<PathBuf> {
    const NAME: &str = "cantrip";
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|folder| folder.join(NAME));
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(|path| std::env::split_paths(path)).map(|folder| folder.join(NAME));
    let is_own = own.filter(|own| own.file_stem() == Some(OsStr::new(NAME)));
    is_own.into_iter().chain(beside).chain(on_path).find(|program| program.is_file())
}

#[derive(Debug)]
enum Found {
    OwnThread,
    Worker(PathBuf),
}

/// What every session of a medium shares.
#[derive(Debug)]
pub(super) struct Shared {
    place: Found,
    lanes: Mutex<Vec<Arc<dyn Lane>>>,
    lanes_max: usize,
    ids: AtomicU64,
}

impl Shared {
    fn lane(&self, said: mpsc::Sender<bool>) -> io::Result<Arc<dyn Lane>> {
        Ok(match &self.place {
            Found::OwnThread => Arc::new(OwnThread::start()?),
            Found::Worker(program) => Arc::new(Worker::start(program, said)?),
        })
    }

    /// Sessions that live now.
    pub(super) fn sessions(&self) -> usize {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().filter(|lane| lane.stands()).map(|lane| lane.sessions().load(Ordering::Relaxed)).sum()
    }

    /// A seat for a new session: where the fewest are, or in a place of its own while there may be more of them.
    pub(super) fn seat(&self) -> Option<Seat> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.stands());
        let free = |lane: &Arc<dyn Lane>| lane.sessions().load(Ordering::Relaxed);
        let least = lanes.iter().min_by_key(|lane| free(lane)).cloned();
        let lane = match least {
            Some(lane) if free(&lane) == 0 || lanes.len() >= self.lanes_max => lane,
            least => match self.lane(mpsc::channel().0) {
                Ok(lane) => {
                    lanes.push(Arc::clone(&lane));
                    lane
                }
                Err(_) => least?,
            },
        };
        lane.sessions().fetch_add(1, Ordering::Relaxed);
        Some(Seat { lane, id: self.ids.fetch_add(1, Ordering::Relaxed), runs: false })
    }
}

/// A session's place. When it is dropped, whatever runs in it ends and the session is freed.
#[derive(Debug)]
pub(super) struct Seat {
    lane: Arc<dyn Lane>,
    id: u64,
    runs: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.runs {
            self.lane.tell(Command::Cancel { id: self.id });
        }
        self.lane.tell(Command::Free { id: self.id });
        self.lane.sessions().fetch_sub(1, Ordering::Relaxed);
    }
}

impl Seat {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn stands(&self) -> bool {
        self.lane.stands()
    }

    /// Asks, and waits for the answer. If the future is dropped, the seat has to be dropped with it.
    pub(super) async fn ask(&mut self, command: Command, patience: Patience) -> Told {
        let (reply, told) = oneshot::channel();
        self.lane.ask(command, patience, reply);
        self.runs = true;
        let told = told.await.unwrap_or(Err(Fate::Gone));
        self.runs = false;
        told
    }
}

impl Patience {
    /// For a slice of a program under these limits: what the interpreter lets it have, and some grace.
    pub(super) fn slice(limits: &ProgramLimits) -> Self {
        let (cpu, wall) = (limits.cpu_ms.saturating_mul(2), limits.wall_ms);
        let time = Duration::from_millis(cpu.min(wall).saturating_add(limits::WORKER_GRACE_MS));
        Self { time, limit: if cpu < wall { Limit::Cpu } else { Limit::Wall } }
    }

    /// For what takes as long as a session is large.
    pub(super) fn move_all() -> Self {
        Self { time: Duration::from_millis(limits::REBUILD_CPU_MS + limits::WORKER_GRACE_MS), limit: Limit::Cpu }
    }
}
