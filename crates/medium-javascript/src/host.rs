//! The sandbox threads: a few threads carry any number of sandboxes, one time slice at a time.
//!
//! A sandbox belongs to one thread from its first program on, because an engine and its stacks cannot move. A thread
//! takes commands, gives every ready program a slice in turn, and sleeps when no program is ready. It holds no lock
//! while a program runs, and it never waits for a gate.
//!
//! A native function of the language can hold a thread for longer than a slice, and nothing can interrupt it. Such a
//! thread gets no new sandboxes. If it does not return in time, its sandboxes are given up: the program that it runs is
//! reported as out of processor time, and callers that wait for one of the other sandboxes get [`Message::Gone`], so
//! that they rebuild it on another thread. When the native function returns at last, the thread continues its work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cantrip_canon::Timestamp;
use cantrip_circle::arguments;
use cantrip_circle::code::{Limit, SandboxSpec};
use serde_json::Value;
use tokio::sync::oneshot;

use super::output::ProgramOutput;
use super::sandbox::{Answer, Program, Sandbox};
use super::watchdog::Watchdog;
use super::worker::Worker;
use crate::limits;

/// The options of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The number of sandbox threads; at least one, at most [`limits::THREADS_MAX`].
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// Owns the sandbox threads. They end when the host and every sandbox are dropped.
#[derive(Debug, Clone)]
pub struct Host {
    shared: Arc<HostState>,
}

impl Options {
    /// Starts the threads.
    pub fn start(self) -> std::io::Result<Host> {
        let lanes = Arc::new(WorkerPool::default());
        let mut threads = Vec::new();
        for _ in 0..self.threads.clamp(1, limits::THREADS_MAX) {
            threads.push(lanes.start()?);
        }
        let watch = Watchdog::start(Arc::clone(&lanes))?;
        Ok(Host { shared: Arc::new(HostState { lanes, threads: Mutex::new(threads), ids: AtomicU64::new(0), watch }) })
    }
}

impl Host {
    /// Creates a sandbox, which costs nothing before its first program.
    pub fn sandbox(&self, spec: Arc<SandboxSpec>) -> Sandbox {
        Sandbox::new(Arc::clone(&self.shared), spec)
    }

    /// Returns the number of sandboxes that have been built and are not freed yet.
    pub fn sandboxes(&self) -> usize {
        self.shared.lanes.all().iter().map(|lane| lane.gauge.sandboxes.load(Ordering::Relaxed)).sum()
    }
}

/// The state that all handles of a host share.
#[derive(Debug)]
pub(super) struct HostState {
    lanes: Arc<WorkerPool>,
    threads: Mutex<Vec<(WorkerHandle, JoinHandle<()>)>>,
    ids: AtomicU64,
    watch: Watchdog,
}

/// The handles of all sandbox threads.
#[derive(Debug, Default)]
pub(super) struct WorkerPool(Mutex<Vec<WorkerHandle>>);

/// The handle of one sandbox thread.
#[derive(Debug, Clone)]
pub(super) struct WorkerHandle {
    commands: mpsc::Sender<Command>,
    pub(super) gauge: Arc<WorkerStatus>,
}

/// The status that a thread publishes while it works.
#[derive(Debug)]
pub(super) struct WorkerStatus {
    origin: Instant,
    sandboxes: AtomicUsize,
    /// The start of the thread's slice in milliseconds since the origin, plus one; 0 between slices.
    busy_since: AtomicU64,
    /// The sandbox whose slice is running, or ran last.
    running: AtomicU64,
    /// The waiting caller of each sandbox. The map is here and not in the thread, so that callers can be answered when
    /// the thread is stuck.
    waiting: Mutex<HashMap<u64, oneshot::Sender<Message>>>,
    /// The start of the slice in which the sandboxes were given up. They count as given up as long as the thread is
    /// still in that slice.
    given_up: AtomicU64,
    /// The thread's path below `/proc`.
    task: OnceLock<String>,
}

/// Locks a mutex. Poison is ignored, because no panic can leave the guarded data half changed.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerPool {
    fn start(&self) -> std::io::Result<(WorkerHandle, JoinHandle<()>)> {
        let mut lanes = locked(&self.0);
        let (commands, taken) = mpsc::channel();
        let gauge = Arc::new(WorkerStatus {
            origin: Instant::now(),
            sandboxes: AtomicUsize::new(0),
            busy_since: AtomicU64::new(0),
            running: AtomicU64::new(0),
            waiting: Mutex::default(),
            given_up: AtomicU64::new(0),
            task: OnceLock::new(),
        });
        let of = Arc::clone(&gauge);
        let name = format!("sandbox-{}", lanes.len());
        let thread = thread::Builder::new().name(name).spawn(move || {
            of.know_itself();
            Worker::new(taken, of).work();
        })?;
        let lane = WorkerHandle { commands, gauge };
        lanes.push(lane.clone());
        Ok((lane, thread))
    }

    pub(super) fn all(&self) -> Vec<WorkerHandle> {
        locked(&self.0).clone()
    }
}

impl WorkerStatus {
    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn is_stuck(&self) -> bool {
        let since = self.busy_since();
        since != 0 && self.millis().saturating_sub(since) > limits::SLICE_MS_MAX
    }

    /// Returns the start of the current slice, or 0 between slices.
    pub(super) fn busy_since(&self) -> u64 {
        self.busy_since.load(Ordering::Acquire)
    }

    pub(super) fn begin_slice(&self, id: u64) {
        self.running.store(id, Ordering::Release);
        self.busy_since.store(self.millis(), Ordering::Release);
    }

    pub(super) fn end_slice(&self) {
        self.busy_since.store(0, Ordering::Release);
    }

    fn is_abandoned(&self) -> bool {
        let since = self.busy_since();
        since != 0 && since == self.given_up.load(Ordering::Acquire)
    }

    /// Records the thread's own path below `/proc`. It must be called on that thread.
    fn know_itself(&self) {
        if let Some(task) =
            std::fs::read_link("/proc/thread-self").ok().and_then(|link| link.to_str().map(str::to_owned))
        {
            let _ = self.task.set(task);
        }
    }

    /// Returns the processor time that the thread has used, if the system reports it for other threads.
    pub(super) fn used(&self) -> Option<Duration> {
        let told = std::fs::read_to_string(format!("/proc/{}/schedstat", self.task.get()?)).ok()?;
        told.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    }

    /// Records that a sandbox was freed. Its caller has stopped waiting before this.
    pub(super) fn freed(&self, id: u64) {
        locked(&self.waiting).remove(&id);
        self.sandboxes.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sends a message to the caller that waits for a sandbox. If no caller waits any more, the message is dropped.
    pub(super) fn answer(&self, id: u64, message: Message) {
        let waiting = locked(&self.waiting).remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(message);
        }
    }

    /// Gives up the sandboxes of the thread if it is still in the slice that began at `since`. The running program is
    /// reported as out of processor time; the other sandboxes are reported as gone, because they are not at fault.
    pub(super) fn abandon(&self, since: u64, cpu: Duration) {
        let running = self.running.load(Ordering::Acquire);
        // The thread has returned in the meantime.
        if self.busy_since() != since {
            return;
        }
        self.given_up.store(since, Ordering::Release);
        for (id, waiting) in locked(&self.waiting).drain() {
            let _ = waiting.send(if id == running { Message::spent(cpu) } else { Message::Gone });
        }
    }
}

impl WorkerHandle {
    /// Sends a command. A thread that has ended has already freed all its sandboxes, so a failed send is ignored.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }

    /// Sends a command that gets one answer. If the answer never comes, the channel is closed.
    pub(super) fn ask(&self, id: u64, command: Command) -> oneshot::Receiver<Message> {
        let (answer, answered) = oneshot::channel();
        if self.gauge.is_abandoned() {
            let _ = answer.send(Message::Gone);
            return answered;
        }
        locked(&self.gauge.waiting).insert(id, answer);
        if self.commands.send(command).is_err() {
            locked(&self.gauge.waiting).remove(&id);
        }
        answered
    }
}

impl HostState {
    /// Returns a thread for a new sandbox: the one with the fewest sandboxes among those that are not stuck. If all
    /// threads are stuck, one more is started.
    pub(super) fn assign_worker(&self) -> Option<(WorkerHandle, u64)> {
        let free = self.lanes.all().into_iter().filter(|lane| !lane.gauge.is_stuck());
        let least = free.min_by_key(|lane| lane.gauge.sandboxes.load(Ordering::Relaxed));
        let lane = least.or_else(|| self.start_worker())?;
        lane.gauge.sandboxes.fetch_add(1, Ordering::Relaxed);
        Some((lane, self.ids.fetch_add(1, Ordering::Relaxed)))
    }

    fn start_worker(&self) -> Option<WorkerHandle> {
        let mut threads = locked(&self.threads);
        if threads.len() >= limits::THREADS_MAX {
            return None;
        }
        let (lane, thread) = self.lanes.start().ok()?;
        threads.push((lane.clone(), thread));
        Some(lane)
    }

    /// Registers a caller that waits for a program, until the returned guard is dropped.
    pub(super) fn watch_guard(&self) -> impl Sized + Send + use<> {
        self.watch.guard()
    }
}

impl Drop for HostState {
    fn drop(&mut self) {
        let threads = std::mem::take(&mut *locked(&self.threads));
        for (lane, _) in &threads {
            lane.send(Command::Close);
        }
        for (lane, thread) in threads {
            // A thread that is stuck in a native call closes when it returns; it is not joined.
            if !lane.gauge.is_stuck() {
                let _ = thread.join();
            }
        }
    }
}

/// A command to a sandbox thread.
pub(super) enum Command {
    Run { id: u64, spec: Arc<SandboxSpec>, program: Program },
    Answer { id: u64, answer: Answer, now: Timestamp },
    Cancel { id: u64 },
    Free { id: u64 },
    Close,
}

/// An answer of a sandbox thread.
#[derive(Debug)]
pub(super) enum Message {
    Call {
        gate: usize,
        arguments: Result<Vec<Option<Value>>, arguments::Fault>,
    },
    Finished {
        output: ProgramOutput,
        cpu: Duration,
    },
    Lost,
    /// The thread is stuck in another sandbox's program.
    Gone,
}

impl Message {
    /// Builds the end of a program that could not be interrupted.
    fn spent(cpu: Duration) -> Self {
        Self::Finished {
            output: ProgramOutput { limit: Some(Limit::Cpu), rolled_back: true, ..ProgramOutput::default() },
            cpu,
        }
    }
}
