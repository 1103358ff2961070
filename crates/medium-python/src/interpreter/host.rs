//! The workers of the Python medium, and the choice of the worker for a new session.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use cantrip_circle::code::{Limit, ProgramLimits};
use cantrip_circle::limits::REBUILD_CPU_MS;
use tokio::sync::oneshot;

use super::memory::is_counting;
use super::wire::Command;
use super::worker_handle::{
    Greeting, RequestTimeout, WorkerError, WorkerHandle, WorkerProcess, WorkerReply, WorkerThread,
};
use crate::limits;

/// The options of the Python medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    place: WorkerKind,
    workers: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum WorkerKind {
    OwnThread,
    Worker(Option<PathBuf>),
}

impl Default for Options {
    /// Uses worker processes of the program `cantrip`, which is this process, a file beside it, or on the path.
    fn default() -> Self {
        Self { place: WorkerKind::Worker(None), workers: thread::available_parallelism().map_or(1, usize::from) }
    }
}

impl Options {
    /// Uses worker processes of this program, which is started with `worker --python`.
    pub fn worker(program: impl Into<PathBuf>) -> Self {
        Self { place: WorkerKind::Worker(Some(program.into())), ..Self::default() }
    }

    /// Uses a thread of this process, whose allocator must be [`CountingAllocator`](super::CountingAllocator). No
    /// process is started, so a fault of the interpreter can end this process. This is for trusted programs only.
    pub fn in_process() -> Self {
        Self { place: WorkerKind::OwnThread, workers: 1 }
    }

    /// Sets the maximum number of workers; each runs one program at a time.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers.clamp(1, limits::WORKERS_MAX);
        self
    }

    pub(super) fn start(self) -> Result<HostState, StartError> {
        let place = match self.place {
            WorkerKind::OwnThread if is_counting() => WorkerSource::OwnThread,
            WorkerKind::OwnThread => return Err(StartError::NotCounted),
            WorkerKind::Worker(given) => {
                WorkerSource::Worker(given.or_else(find_worker_program).ok_or(StartError::NoWorker)?)
            }
        };
        let shared =
            HostState { place, lanes: Mutex::new(Vec::new()), lanes_max: self.workers, ids: AtomicU64::new(0) };
        let (said, heard) = mpsc::channel();
        let first = shared.start_worker(said).map_err(StartError::of)?;
        // A thread sends no greeting, so there is nothing to wait for.
        if matches!(shared.place, WorkerSource::Worker(_)) {
            match heard.recv_timeout(Duration::from_millis(limits::WORKER_START_MS)) {
                Ok(Greeting::Worker) => {}
                Ok(Greeting::NoThread(cause)) => return Err(StartError::NoThread { cause }),
                Ok(Greeting::Foreign) | Err(_) => return Err(StartError::Foreign),
            }
        }
        shared.lanes.lock().unwrap_or_else(PoisonError::into_inner).push(first);
        Ok(shared)
    }
}

/// The reason why the Python medium cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("no worker: the program cantrip is neither beside this one nor on the path")]
    NoWorker,
    #[error("the worker cannot be started: {0}")]
    Start(#[source] io::Error),
    #[error("the worker cannot be started: {0}; raise the memory limit of the process (ulimit -v)")]
    NoMemory(#[source] io::Error),
    #[error("the started process is not a worker of this version")]
    Foreign,
    #[error(
        "the worker got no memory for its stack of {} MiB: {cause}; raise the memory limit of the process (ulimit -v)",
        limits::PYTHON_STACK_BYTES >> 20
    )]
    NoThread { cause: String },
    #[error("this process does not count its memory")]
    NotCounted,
}

impl StartError {
    /// The error of a process that could not be started. The system also says "try again" for missing memory.
    fn of(error: io::Error) -> Self {
        if matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock) {
            Self::NoMemory(error)
        } else {
            Self::Start(error)
        }
    }
}

/// Returns the path of the program `cantrip`: this program, a file beside it, or the first on the path.
fn find_worker_program() -> Option<PathBuf> {
    const NAME: &str = "cantrip";
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|folder| folder.join(NAME));
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(|path| std::env::split_paths(path)).map(|folder| folder.join(NAME));
    let is_own = own.filter(|own| own.file_stem() == Some(OsStr::new(NAME)));
    is_own.into_iter().chain(beside).chain(on_path).find(|program| program.is_file())
}

#[derive(Debug)]
enum WorkerSource {
    OwnThread,
    Worker(PathBuf),
}

/// The state that all sessions of a medium share.
#[derive(Debug)]
pub(super) struct HostState {
    place: WorkerSource,
    lanes: Mutex<Vec<Arc<dyn WorkerHandle>>>,
    lanes_max: usize,
    ids: AtomicU64,
}

impl HostState {
    fn start_worker(&self, said: mpsc::Sender<Greeting>) -> io::Result<Arc<dyn WorkerHandle>> {
        Ok(match &self.place {
            WorkerSource::OwnThread => Arc::new(WorkerThread::start()?),
            WorkerSource::Worker(program) => Arc::new(WorkerProcess::start(program, said)?),
        })
    }

    /// Returns the number of live sessions.
    pub(super) fn sessions(&self) -> usize {
        let lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.iter().filter(|lane| lane.is_alive()).map(|lane| lane.sessions().load(Ordering::Relaxed)).sum()
    }

    /// Assigns a worker to a new session: an empty one, or a new one up to the maximum, or else the one with the fewest
    /// sessions.
    pub(super) fn assign_worker(&self) -> Option<SessionHandle> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| lane.is_alive());
        let free = |lane: &Arc<dyn WorkerHandle>| lane.sessions().load(Ordering::Relaxed);
        let least = lanes.iter().min_by_key(|lane| free(lane)).cloned();
        let lane = match least {
            Some(lane) if free(&lane) == 0 || lanes.len() >= self.lanes_max => lane,
            least => match self.start_worker(mpsc::channel().0) {
                Ok(lane) => {
                    lanes.push(Arc::clone(&lane));
                    lane
                }
                Err(_) => least?,
            },
        };
        lane.sessions().fetch_add(1, Ordering::Relaxed);
        Some(SessionHandle { lane, id: self.ids.fetch_add(1, Ordering::Relaxed), runs: false })
    }
}

/// The handle of a session. When it is dropped, a running program ends and the session is freed.
#[derive(Debug)]
pub(super) struct SessionHandle {
    lane: Arc<dyn WorkerHandle>,
    id: u64,
    runs: bool,
}

impl Drop for SessionHandle {
    fn drop(&mut self) {
        if self.runs {
            self.lane.send(Command::Cancel { id: self.id });
        }
        self.lane.send(Command::Free { id: self.id });
        self.lane.sessions().fetch_sub(1, Ordering::Relaxed);
    }
}

impl SessionHandle {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn is_alive(&self) -> bool {
        self.lane.is_alive()
    }

    /// Sends a command and waits for the answer. If the future is dropped, the handle must be dropped too.
    pub(super) async fn ask(&mut self, command: Command, patience: RequestTimeout) -> WorkerReply {
        let (reply, told) = oneshot::channel();
        self.lane.ask(command, patience, reply);
        self.runs = true;
        let told = told.await.unwrap_or(Err(WorkerError::Gone));
        self.runs = false;
        told
    }
}

impl RequestTimeout {
    /// The timeout for a slice of a program under these limits: the time that the interpreter grants, plus a grace
    /// period.
    pub(super) fn slice(limits: &ProgramLimits) -> Self {
        let (cpu, wall) = (limits.cpu_ms.saturating_mul(2), limits.wall_ms);
        let time = Duration::from_millis(cpu.min(wall).saturating_add(limits::WORKER_GRACE_MS));
        Self { time, limit: if cpu < wall { Limit::Cpu } else { Limit::Wall } }
    }

    /// The timeout for work that grows with the size of a session.
    pub(super) fn move_all() -> Self {
        Self { time: Duration::from_millis(REBUILD_CPU_MS + limits::WORKER_GRACE_MS), limit: Limit::Cpu }
    }
}
