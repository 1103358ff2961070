//! The handle of a worker that holds sessions: a thread of this process, or a worker process.
//!
//! A worker does one thing at a time and answers in order. A thread shares the fate of its process: a failure of the
//! interpreter that cannot be caught, such as running out of stack or of memory, ends everything. A worker process may
//! die of such a failure. The request that it was handling then is answered with the cause of its death, and all its
//! other sessions are lost through no fault of their own.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufReader, BufWriter};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command as Start, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use cantrip_circle::code::Limit;
use tokio::sync::oneshot;

use super::memory::OUT_OF_MEMORY;
use super::meter::CancelledSessions;
use super::session_host::SessionHost;
use super::wire::{self, Command, Message, PROTOCOL};
use crate::limits;

/// The reason why a request has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerError {
    /// The worker is gone, and this request did not cause it.
    Gone,
    /// This request crashed the worker.
    Crashed,
    /// This request ended the worker by exceeding this limit at a point where it could not be stopped.
    Spent(Limit),
}

/// The first message of a worker process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Greeting {
    /// It is a worker of this version.
    Worker,
    /// It got no thread for its sessions, for this reason.
    NoThread(String),
    /// It is something else.
    Foreign,
}

/// The answer to a request.
pub(super) type WorkerReply = Result<Message, WorkerError>;

/// The longest time that a request may take, and the limit that it has reached if it takes longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestTimeout {
    pub time: Duration,
    pub limit: Limit,
}

/// The handle of one worker.
pub(super) trait WorkerHandle: Send + Sync + fmt::Debug {
    /// Sends a command that gets one answer, in the order of the requests, also when the worker ends.
    fn ask(&self, command: Command, patience: RequestTimeout, reply: oneshot::Sender<WorkerReply>);

    /// Sends a command that gets no answer.
    fn send(&self, command: Command);

    fn is_alive(&self) -> bool;

    /// The number of sessions in the worker.
    fn sessions(&self) -> &AtomicUsize;
}

/// A worker in a thread of this process.
#[derive(Debug)]
pub(super) struct WorkerThread {
    commands: mpsc::Sender<(Command, Option<oneshot::Sender<WorkerReply>>)>,
    cancelled: CancelledSessions,
    sessions: AtomicUsize,
}

impl WorkerThread {
    pub(super) fn start() -> io::Result<Self> {
        let (commands, taken) = mpsc::channel::<(Command, Option<oneshot::Sender<WorkerReply>>)>();
        let cancelled = CancelledSessions::default();
        let mut keeper = SessionHost::new(cancelled.clone(), false);
        // The thread is not joined: it ends when its last handle is dropped, or with the slice that runs then.
        thread::Builder::new().name("python".to_owned()).stack_size(limits::PYTHON_STACK_BYTES).spawn(move || {
            for (command, reply) in taken {
                let message = keeper.handle(command);
                if let (Some(message), Some(reply)) = (message, reply) {
                    let _ = reply.send(Ok(message));
                }
            }
        })?;
        Ok(Self { commands, cancelled, sessions: AtomicUsize::new(0) })
    }
}

impl WorkerHandle for WorkerThread {
    fn ask(&self, command: Command, _: RequestTimeout, reply: oneshot::Sender<WorkerReply>) {
        if let Err(mpsc::SendError((_, Some(reply)))) = self.commands.send((command, Some(reply))) {
            let _ = reply.send(Err(WorkerError::Gone));
        }
    }

    fn send(&self, command: Command) {
        if let Command::Cancel { id } = command {
            self.cancelled.insert(id);
        }
        let _ = self.commands.send((command, None));
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn sessions(&self) -> &AtomicUsize {
        &self.sessions
    }
}

/// A worker process.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    errands: mpsc::Sender<QueuedRequest>,
    minded: Arc<WorkerState>,
}

type QueuedRequest = (Command, Option<(RequestTimeout, oneshot::Sender<WorkerReply>)>);

/// The state that the threads of a worker process share.
#[derive(Debug, Default)]
struct WorkerState {
    ended: AtomicBool,
    sessions: AtomicUsize,
    waiting: Mutex<PendingRequests>,
}

#[derive(Debug, Default)]
struct PendingRequests {
    queue: VecDeque<(RequestTimeout, oneshot::Sender<WorkerReply>)>,
    /// The time at which the worker began to handle the first request of the queue.
    since: Option<Instant>,
    /// The limit of the first request, if the worker was killed because that request took too long.
    late: Option<Limit>,
}

impl PendingRequests {
    fn due(&self) -> Option<Instant> {
        let (patience, _) = self.queue.front()?;
        self.since?.checked_add(patience.time)
    }
}

impl WorkerState {
    fn waiting(&self) -> MutexGuard<'_, PendingRequests> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WorkerProcess {
    /// Starts a worker process. `said` receives its greeting once.
    pub(super) fn start(program: &Path, said: mpsc::Sender<Greeting>) -> io::Result<Self> {
        let mut child = Start::new(program)
            .args(["worker", "--python"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // The worker needs no variables of this process, and cannot leak what it does not have.
            .env_clear()
            .current_dir("/")
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("a worker without pipes"));
        };
        let minded = Arc::new(WorkerState::default());
        let child = Arc::new(Mutex::new(child));
        let (errands, taken) = mpsc::channel();
        let (of, minding) = (Arc::clone(&minded), Arc::clone(&child));
        thread::Builder::new().name("python-ask".to_owned()).spawn(move || ask(to, &taken, &of, &minding))?;
        let of = Arc::clone(&minded);
        thread::Builder::new().name("python-hear".to_owned()).spawn(move || read_replies(from, &said, &of, &child))?;
        Ok(Self { errands, minded })
    }
}

impl WorkerHandle for WorkerProcess {
    fn ask(&self, command: Command, patience: RequestTimeout, reply: oneshot::Sender<WorkerReply>) {
        if let Err(mpsc::SendError((_, Some((_, reply))))) = self.errands.send((command, Some((patience, reply)))) {
            let _ = reply.send(Err(WorkerError::Gone));
        }
    }

    fn send(&self, command: Command) {
        let _ = self.errands.send((command, None));
    }

    fn is_alive(&self) -> bool {
        !self.minded.ended.load(Ordering::Acquire)
    }

    fn sessions(&self) -> &AtomicUsize {
        &self.minded.sessions
    }
}

fn lock(child: &Mutex<Child>) -> MutexGuard<'_, Child> {
    child.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends requests to the worker, and kills it when one of them takes too long.
fn ask(to: ChildStdin, taken: &mpsc::Receiver<QueuedRequest>, minded: &WorkerState, child: &Mutex<Child>) {
    let mut to = BufWriter::new(to);
    loop {
        let due = minded.waiting().due();
        let errand = match due {
            Some(due) => taken.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => taken.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
        };
        match errand {
            Ok((command, awaited)) => {
                let mut waiting = minded.waiting();
                if minded.ended.load(Ordering::Acquire) {
                    if let Some((_, reply)) = awaited {
                        let _ = reply.send(Err(WorkerError::Gone));
                    }
                    continue;
                }
                if let Some(awaited) = awaited {
                    waiting.queue.push_back(awaited);
                    waiting.since.get_or_insert_with(Instant::now);
                }
                drop(waiting);
                // A failed write is ignored: `read_replies` sees the end of the worker and answers all waiting
                // requests.
                let _ = wire::write(&mut to, &command);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let mut waiting = minded.waiting();
                if waiting.due().is_some_and(|due| due <= Instant::now()) && waiting.late.is_none() {
                    waiting.late = waiting.queue.front().map(|(patience, _)| patience.limit);
                    waiting.since = None;
                    drop(waiting);
                    let _ = lock(child).kill();
                }
            }
            // All handles are dropped; without its input the worker ends.
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads the answers of the worker until it ends.
fn read_replies(from: ChildStdout, said: &mpsc::Sender<Greeting>, minded: &WorkerState, child: &Mutex<Child>) {
    let mut from = BufReader::new(from);
    let greeting = match wire::read::<Message>(&mut from) {
        Ok(Some(Message::Hello { protocol, dump_version, counts }))
            if protocol == PROTOCOL && dump_version == monty::DUMP_VERSION && counts =>
        {
            Greeting::Worker
        }
        Ok(Some(Message::NoThread(cause))) => Greeting::NoThread(cause),
        Ok(_) | Err(_) => Greeting::Foreign,
    };
    let greeted = greeting == Greeting::Worker;
    let _ = said.send(greeting);
    while greeted && let Ok(Some(message)) = wire::read::<Message>(&mut from) {
        let mut waiting = minded.waiting();
        let Some((_, reply)) = waiting.queue.pop_front() else { break };
        waiting.since = (!waiting.queue.is_empty()).then(Instant::now);
        drop(waiting);
        let _ = reply.send(Ok(message));
    }
    let status = {
        let mut child = lock(child);
        // The worker has closed its output; it is killed in case it still runs.
        let _ = child.kill();
        child.wait()
    };
    let mut waiting = minded.waiting();
    minded.ended.store(true, Ordering::Release);
    let mut fate = error_of(status.ok(), waiting.late);
    for (_, reply) in waiting.queue.drain(..) {
        let _ = reply.send(Err(fate));
        fate = WorkerError::Gone;
    }
}

/// Returns the error for the request that the worker was handling when it ended.
fn error_of(status: Option<ExitStatus>, late: Option<Limit>) -> WorkerError {
    let signal = status.and_then(|status| status.signal());
    match late {
        Some(limit) => WorkerError::Spent(limit),
        None if signal == Some(OUT_OF_MEMORY.as_raw()) => WorkerError::Spent(Limit::Memory),
        None => WorkerError::Crashed,
    }
}
