//! One sandbox thread at work.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use corosensei::stack::DefaultStack;

use super::engine::{Machine, Outcome};
use super::host::{Command, Gauge, Message};
use super::output::{Limit, Output};
use super::raw::{Returned, Strand};
use super::sandbox::{Program, Spec};
use super::{Pause, Wake};
use crate::limits;

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

pub(super) struct Worker {
    commands: mpsc::Receiver<Command>,
    gauge: Arc<Gauge>,
    slots: HashMap<u64, Slot>,
    ready: VecDeque<u64>,
    stacks: Vec<(usize, DefaultStack)>,
}

impl Worker {
    pub(super) fn new(commands: mpsc::Receiver<Command>, gauge: Arc<Gauge>) -> Self {
        Self { commands, gauge, slots: HashMap::new(), ready: VecDeque::new(), stacks: Vec::new() }
    }

    pub(super) fn work(mut self) {
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
            Command::Run { id, spec, program, cpu_max } => {
                if self.run(id, spec, program, cpu_max).is_none() {
                    self.slots.remove(&id);
                    self.gauge.answer(id, Message::Lost);
                }
            }
            Command::Answer { id, answer, now } => {
                let Some(slot) = self.slots.get_mut(&id) else { return };
                match std::mem::replace(&mut slot.state, State::Idle) {
                    State::Waiting { strand } => {
                        slot.machine.meter().rest(false);
                        slot.state = State::Ready { strand, wake: Wake::Answer(answer, now) };
                        self.ready.push_back(id);
                    }
                    State::Ended(message) => {
                        self.slots.remove(&id);
                        self.gauge.answer(id, message);
                    }
                    // No handle sends an answer then; whoever did waits for nothing.
                    state @ (State::Idle | State::Ready { .. }) => slot.state = state,
                }
            }
            Command::Cancel { id } => self.cancel(id),
            Command::Free { id } => {
                self.free(id);
                self.gauge.freed(id);
            }
            Command::Close => {}
        }
    }

    /// Makes a program ready to run; `None` if that cannot be.
    fn run(&mut self, id: u64, spec: Arc<Spec>, program: Program, cpu_max: Duration) -> Option<()> {
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
        self.slots.insert(id, Slot { machine, state: State::Ready { strand, wake: Wake::GoOn } });
        self.ready.push_back(id);
        Some(())
    }

    /// Runs a program for a slice.
    fn slice(&mut self, id: u64) {
        let Some(slot) = self.slots.get_mut(&id) else { return };
        let (strand, wake) = match std::mem::replace(&mut slot.state, State::Idle) {
            State::Ready { strand, wake } => (strand, wake),
            state @ (State::Idle | State::Waiting { .. } | State::Ended(_)) => {
                slot.state = state;
                return;
            }
        };
        match self.resume(id, strand, wake) {
            Step::Paused(strand, Pause::Slice) => {
                self.set(id, State::Ready { strand, wake: Wake::GoOn });
                self.ready.push_back(id);
            }
            Step::Paused(strand, Pause::Call { gate, arguments }) => {
                self.set(id, State::Waiting { strand });
                self.gauge.answer(id, Message::Call { gate, arguments });
            }
            Step::Ended(message) => self.gauge.answer(id, message),
        }
    }

    /// Resumes a strand. A sandbox that is of no more use after it is freed before anybody hears of its end.
    fn resume(&mut self, id: u64, mut strand: Strand<Outcome>, wake: Wake) -> Step {
        let Some(machine) = self.slots.get(&id).map(|slot| Rc::clone(&slot.machine)) else {
            return Step::Ended(Message::Lost);
        };
        self.gauge.begin_slice(id);
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
        self.gauge.end_slice();
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
            State::Ready { strand, wake: _ } => {
                let message = self.kill(id, strand);
                self.gauge.answer(id, message);
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
