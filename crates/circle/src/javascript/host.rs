//! The sandbox threads: a few of them carry any number of sandboxes, one slice at a time.
//!
//! A sandbox belongs to one thread from its first program on, because an engine and its stacks cannot move. A thread
//! takes commands, gives every ready program a slice in turn, and sleeps when there are none. It holds no lock while a
//! program runs, and it never waits for a gate.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cantrip_canon::Timestamp;
use corosensei::stack::DefaultStack;
use serde_json::Value;
use tokio::sync::oneshot;

use super::engine::{Machine, Outcome};
use super::output::{Limit, Output};
use super::raw::{Returned, Strand};
use super::sandbox::{Answer, Program, Sandbox, Spec};
use super::{Pause, Wake};
use crate::{arguments, limits};

/// How a host is built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Sandbox threads; at least one, at most [`limits::THREADS_MAX`].
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: thread::available_parallelism().map_or(1, usize::from) }
    }
}

/// Owns the sandbox threads. When it and every sandbox are gone, so are they.
#[derive(Debug, Clone)]
pub struct Host {
    shared: Arc<Shared>,
}

impl Options {
    /// Starts the threads.
    pub fn start(self) -> std::io::Result<Host> {
        let origin = Instant::now();
        let mut lanes = Vec::new();
        for index in 0..self.threads.clamp(1, limits::THREADS_MAX) {
            let (commands, taken) = mpsc::channel();
            let gauge = Arc::new(Gauge { origin, sandboxes: AtomicUsize::new(0), busy_since: AtomicU64::new(0) });
            let of = Arc::clone(&gauge);
            let name = format!("sandbox-{index}");
            let thread = thread::Builder::new().name(name).spawn(move || Worker::new(taken, of).work())?;
            lanes.push((Lane { commands, gauge }, Some(thread)));
        }
        Ok(Host { shared: Arc::new(Shared { lanes, ids: AtomicU64::new(0) }) })
    }
}

impl Host {
    /// A sandbox, which costs nothing before its first program.
    pub fn sandbox(&self, spec: Arc<Spec>) -> Sandbox {
        Sandbox::new(Arc::clone(&self.shared), spec)
    }

    /// Sandboxes that have been built and are not freed yet.
    pub fn sandboxes(&self) -> usize {
        self.shared.lanes.iter().map(|(lane, _)| lane.gauge.sandboxes.load(Ordering::Relaxed)).sum()
    }
}

/// What every handle of a host shares.
#[derive(Debug)]
pub(super) struct Shared {
    lanes: Vec<(Lane, Option<JoinHandle<()>>)>,
    ids: AtomicU64,
}

/// The way to one sandbox thread.
#[derive(Debug, Clone)]
pub(super) struct Lane {
    commands: mpsc::Sender<Command>,
    gauge: Arc<Gauge>,
}

/// What a thread shows of itself while it works.
#[derive(Debug)]
struct Gauge {
    origin: Instant,
    sandboxes: AtomicUsize,
    /// Milliseconds since the origin, plus one, at which its slice began; 0 between slices.
    busy_since: AtomicU64,
}

impl Gauge {
    fn millis(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    fn stuck(&self) -> bool {
        let since = self.busy_since.load(Ordering::Relaxed);
        since != 0 && self.millis().saturating_sub(since) > limits::SLICE_MS_MAX
    }
}

impl Lane {
    /// A thread that is gone has freed everything it had, and whoever waits for its reply learns so.
    pub(super) fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

impl Shared {
    /// A thread for a new sandbox: the one with the fewest, of those that are not stuck.
    pub(super) fn place(&self) -> Option<(Lane, u64)> {
        let lanes = self.lanes.iter().map(|(lane, _)| lane).filter(|lane| !lane.gauge.stuck());
        let lane = lanes.min_by_key(|lane| lane.gauge.sandboxes.load(Ordering::Relaxed))?;
        lane.gauge.sandboxes.fetch_add(1, Ordering::Relaxed);
        Some((lane.clone(), self.ids.fetch_add(1, Ordering::Relaxed)))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (lane, _) in &self.lanes {
            lane.send(Command::Close);
        }
        for (lane, thread) in &mut self.lanes {
            // One that is stuck in a native call closes when it comes back; nobody waits for it.
            if let Some(thread) = thread.take().filter(|_| !lane.gauge.stuck()) {
                let _ = thread.join();
            }
        }
    }
}

/// What a thread is asked to do.
pub(super) enum Command {
    Run { id: u64, spec: Arc<Spec>, program: Program, cpu_max: Duration, reply: oneshot::Sender<Message> },
    Answer { id: u64, answer: Answer, now: Timestamp, reply: oneshot::Sender<Message> },
    Cancel { id: u64 },
    Free { id: u64 },
    Close,
}

/// What a thread answers.
pub(super) enum Message {
    Call { gate: usize, arguments: Result<Vec<Option<Value>>, arguments::Fault> },
    Finished { output: Output, cpu: Duration },
    Lost,
}

struct Slot {
    machine: Rc<Machine>,
    state: State,
}

enum State {
    Idle,
    /// It waits for its turn.
    Ready {
        strand: Strand<Outcome>,
        wake: Wake,
        reply: oneshot::Sender<Message>,
    },
    /// It waits for the answer to a call.
    Waiting {
        strand: Strand<Outcome>,
    },
    /// It was ended while it waited; whoever answers the call is told this.
    Ended(Message),
}

enum Step {
    Paused(Strand<Outcome>, Pause),
    Ended(Message),
}

struct Worker {
    commands: mpsc::Receiver<Command>,
    gauge: Arc<Gauge>,
    slots: HashMap<u64, Slot>,
    ready: VecDeque<u64>,
    stacks: Vec<(usize, DefaultStack)>,
}

impl Worker {
    fn new(commands: mpsc::Receiver<Command>, gauge: Arc<Gauge>) -> Self {
        Self { commands, gauge, slots: HashMap::new(), ready: VecDeque::new(), stacks: Vec::new() }
    }

    fn work(mut self) {
        loop {
            let command = match self.ready.is_empty() {
                true => self.commands.recv().map_err(|_| mpsc::TryRecvError::Disconnected),
                false => self.commands.try_recv(),
            };
            match command {
                Ok(Command::Close) | Err(mpsc::TryRecvError::Disconnected) => break,
                Ok(command) => self.obey(command),
                Err(mpsc::TryRecvError::Empty) => {
                    if let Some(id) = self.ready.pop_front() {
                        self.slice(id);
                    }
                }
            }
        }
        for id in self.slots.keys().copied().collect::<Vec<_>>() {
            self.free(id);
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Run { id, spec, program, cpu_max, reply } => {
                if self.run(id, spec, program, cpu_max, reply).is_none() {
                    self.slots.remove(&id);
                }
            }
            Command::Answer { id, answer, now, reply } => {
                let Some(slot) = self.slots.get_mut(&id) else { return };
                match std::mem::replace(&mut slot.state, State::Idle) {
                    State::Waiting { strand } => {
                        slot.machine.meter().rest(false);
                        slot.state = State::Ready { strand, wake: Wake::Answer(answer, now), reply };
                        self.ready.push_back(id);
                    }
                    State::Ended(message) => {
                        self.slots.remove(&id);
                        let _ = reply.send(message);
                    }
                    // No handle sends an answer then; whoever did waits for nothing.
                    state @ (State::Idle | State::Ready { .. }) => slot.state = state,
                }
            }
            Command::Cancel { id } => self.cancel(id),
            Command::Free { id } => {
                self.free(id);
                self.gauge.sandboxes.fetch_sub(1, Ordering::Relaxed);
            }
            Command::Close => {}
        }
    }

    /// Makes a program ready to run; `None` if that cannot be, and then the reply's receiver learns it by its drop.
    fn run(
        &mut self,
        id: u64,
        spec: Arc<Spec>,
        program: Program,
        cpu_max: Duration,
        reply: oneshot::Sender<Message>,
    ) -> Option<()> {
        let stack_bytes = spec.limits.stack() + limits::STACK_SPARE_BYTES;
        let machine = match self.slots.get(&id) {
            Some(slot) => Rc::clone(&slot.machine),
            None => Rc::new(catch_unwind(AssertUnwindSafe(|| Machine::new(spec, program.now))).ok()?.ok()?),
        };
        let stack = match self.stacks.iter().position(|(bytes, _)| *bytes == stack_bytes) {
            Some(kept) => self.stacks.swap_remove(kept).1,
            None => DefaultStack::new(stack_bytes).ok()?,
        };
        let strand = machine.strand((stack_bytes, stack), program, cpu_max);
        machine.meter().rest(false);
        self.slots.insert(id, Slot { machine, state: State::Ready { strand, wake: Wake::GoOn, reply } });
        self.ready.push_back(id);
        Some(())
    }

    /// Runs a program for a slice.
    fn slice(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let (strand, wake, reply) = match std::mem::replace(&mut slot.state, State::Idle) {
            State::Ready { strand, wake, reply } => (strand, wake, reply),
            state @ (State::Idle | State::Waiting { .. } | State::Ended(_)) => {
                slot.state = state;
                return;
            }
        };
        match self.resume(id, strand, wake) {
            Step::Paused(strand, Pause::Slice) => {
                self.set(id, State::Ready { strand, wake: Wake::GoOn, reply });
                self.ready.push_back(id);
            }
            Step::Paused(strand, Pause::Call { gate, arguments }) => {
                self.set(id, State::Waiting { strand });
                let _ = reply.send(Message::Call { gate, arguments });
            }
            Step::Ended(message) => {
                let _ = reply.send(message);
            }
        }
    }

    /// Resumes a strand. A sandbox that is of no more use after it is freed before anybody hears of its end.
    fn resume(&mut self, id: u64, mut strand: Strand<Outcome>, wake: Wake) -> Step {
        let Some(machine) = self.slots.get(&id).map(|slot| Rc::clone(&slot.machine)) else {
            return Step::Ended(Message::Lost);
        };
        self.gauge.busy_since.store(self.gauge.millis(), Ordering::Relaxed);
        machine.meter().work();
        let returned = catch_unwind(AssertUnwindSafe(|| strand.resume(wake)));
        machine.meter().rest(matches!(returned, Ok(Returned::Paused(Pause::Call { .. }))));
        let step = match returned {
            Ok(Returned::Paused(pause)) => Step::Paused(strand, pause),
            Ok(Returned::Done(outcome)) => {
                self.keep(strand);
                let cpu = machine.meter().cpu();
                drop(machine);
                if outcome.output.rolled_back || outcome.broken {
                    self.slots.remove(&id);
                }
                Step::Ended(match outcome.broken {
                    true => Message::Lost,
                    false => Message::Finished { output: outcome.output, cpu },
                })
            }
            Err(_panic) => {
                // A bug of ours has left the engine in a state nobody knows; it is not touched again, not even to free it.
                std::mem::forget(machine);
                self.slots.remove(&id);
                Step::Ended(Message::Lost)
            }
        };
        self.gauge.busy_since.store(0, Ordering::Relaxed);
        step
    }

    fn set(&mut self, id: u64, state: State) {
        if let Some(slot) = self.slots.get_mut(&id) {
            slot.state = state;
        }
    }

    fn keep(&mut self, strand: Strand<Outcome>) {
        let bytes = strand.stack_bytes();
        if let Some(stack) = strand.into_stack()
            && self.stacks.len() < limits::STACKS_KEPT
        {
            self.stacks.push((bytes, stack));
        }
    }

    /// Ends the program of a sandbox and tells whoever waits for it.
    fn cancel(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match std::mem::replace(&mut slot.state, State::Idle) {
            State::Ready { strand, wake: _, reply } => {
                let message = self.kill(id, strand);
                let _ = reply.send(message);
            }
            State::Waiting { strand } => {
                let machine = Rc::clone(&slot.machine);
                let message = self.kill(id, strand);
                // The engine may be gone; the slot stays for the answer that is still to come.
                self.slots.entry(id).or_insert(Slot { machine, state: State::Idle }).state = State::Ended(message);
            }
            state @ (State::Idle | State::Ended(_)) => slot.state = state,
        }
    }

    /// Ends a program wherever it stands. One resume is enough: once it is ended it cannot pause again.
    fn kill(&mut self, id: u64, strand: Strand<Outcome>) -> Message {
        if !strand.started() {
            drop(strand);
            self.slots.remove(&id);
            let output = Output { limit: Some(Limit::Cancelled), rolled_back: true, ..Output::default() };
            return Message::Finished { output, cpu: Duration::ZERO };
        }
        match self.resume(id, strand, Wake::Kill) {
            Step::Ended(message) => message,
            Step::Paused(strand, _) => {
                debug_assert!(false, "a program went on after its end");
                drop(strand);
                Message::Lost
            }
        }
    }

    fn free(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        match std::mem::replace(&mut slot.state, State::Idle) {
            State::Ready { strand, .. } | State::Waiting { strand } => {
                self.kill(id, strand);
            }
            State::Idle | State::Ended(_) => {}
        }
        self.slots.remove(&id);
    }
}
