//! The loop of one sandbox thread.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cantrip_circle::code::{Limit, SandboxSpec};
use corosensei::stack::DefaultStack;

use super::engine::{ProgramOutcome, SandboxEngine, stack_bytes};
use super::host::{Command, Message, WorkerStatus};
use super::output::ProgramOutput;
use super::raw::{ProgramCoroutine, ResumeResult};
use super::sandbox::Program;
use super::{PauseReason, WakeReason};
use crate::limits;

struct Slot {
    machine: Rc<SandboxEngine>,
    state: State,
}

enum State {
    Idle,
    /// The program waits for its next slice.
    Ready {
        strand: ProgramCoroutine<ProgramOutcome>,
        wake: WakeReason,
    },
    /// The program waits for the answer to a call.
    Waiting {
        strand: ProgramCoroutine<ProgramOutcome>,
    },
    /// The program was ended while it waited. The message is sent to the caller that answers the call.
    Ended(Message),
}

enum Step {
    Paused(ProgramCoroutine<ProgramOutcome>, PauseReason),
    Ended(Message),
}

pub(super) struct Worker {
    commands: mpsc::Receiver<Command>,
    gauge: Arc<WorkerStatus>,
    slots: HashMap<u64, Slot>,
    ready: VecDeque<u64>,
    stacks: Vec<(usize, DefaultStack)>,
}

impl Worker {
    pub(super) fn new(commands: mpsc::Receiver<Command>, gauge: Arc<WorkerStatus>) -> Self {
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
                Ok(command) => self.handle(command),
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

    fn handle(&mut self, command: Command) {
        match command {
            Command::Run { id, spec, program } => {
                if self.run(id, spec, program).is_none() {
                    self.slots.remove(&id);
                    self.gauge.answer(id, Message::Lost);
                }
            }
            Command::Answer { id, answer, now } => {
                let Some(slot) = self.slots.get_mut(&id) else { return };
                match std::mem::replace(&mut slot.state, State::Idle) {
                    State::Waiting { strand } => {
                        slot.machine.meter().end_slice(false);
                        slot.state = State::Ready { strand, wake: WakeReason::Answer(answer, now) };
                        self.ready.push_back(id);
                    }
                    State::Ended(message) => {
                        self.slots.remove(&id);
                        self.gauge.answer(id, message);
                    }
                    // No handle sends an answer in these states, so no caller waits for it.
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

    /// Makes a program ready to run; returns `None` if the engine or the stack cannot be created.
    fn run(&mut self, id: u64, spec: Arc<SandboxSpec>, program: Program) -> Option<()> {
        let stack_bytes = stack_bytes(&spec.limits) + limits::STACK_SPARE_BYTES;
        let machine = match self.slots.get(&id) {
            Some(slot) => Rc::clone(&slot.machine),
            None => Rc::new(catch_unwind(AssertUnwindSafe(|| SandboxEngine::new(spec, program.now))).ok()?.ok()?),
        };
        let stack = match self.stacks.iter().position(|(bytes, _)| *bytes == stack_bytes) {
            Some(kept) => self.stacks.swap_remove(kept).1,
            None => DefaultStack::new(stack_bytes).ok()?,
        };
        let strand = machine.start_program((stack_bytes, stack), program);
        machine.meter().end_slice(false);
        self.slots.insert(id, Slot { machine, state: State::Ready { strand, wake: WakeReason::GoOn } });
        self.ready.push_back(id);
        Some(())
    }

    /// Runs a program for one slice.
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
            Step::Paused(strand, PauseReason::Slice) => {
                self.set(id, State::Ready { strand, wake: WakeReason::GoOn });
                self.ready.push_back(id);
            }
            Step::Paused(strand, PauseReason::Call { gate, arguments }) => {
                self.set(id, State::Waiting { strand });
                self.gauge.answer(id, Message::Call { gate, arguments });
            }
            Step::Ended(message) => self.gauge.answer(id, message),
        }
    }

    /// Resumes a program. If the sandbox cannot be used afterwards, it is freed before the end is reported.
    fn resume(&mut self, id: u64, mut strand: ProgramCoroutine<ProgramOutcome>, wake: WakeReason) -> Step {
        let Some(machine) = self.slots.get(&id).map(|slot| Rc::clone(&slot.machine)) else {
            return Step::Ended(Message::Lost);
        };
        self.gauge.begin_slice(id);
        machine.meter().begin_slice();
        let returned = catch_unwind(AssertUnwindSafe(|| strand.resume(wake)));
        machine.meter().end_slice(matches!(returned, Ok(ResumeResult::Paused(PauseReason::Call { .. }))));
        let step = match returned {
            Ok(ResumeResult::Paused(pause)) => Step::Paused(strand, pause),
            Ok(ResumeResult::Done(outcome)) => {
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
                // A bug in the host has left the engine in an unknown state. It is not touched again, not even to free
                // it.
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

    fn keep(&mut self, strand: ProgramCoroutine<ProgramOutcome>) {
        let bytes = strand.stack_bytes();
        if let Some(stack) = strand.into_stack()
            && self.stacks.len() < limits::STACKS_KEPT
        {
            self.stacks.push((bytes, stack));
        }
    }

    /// Ends the program of a sandbox and reports the end to the waiting caller.
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
                // The engine may already be freed; the slot stays for the answer that is still to come.
                self.slots.entry(id).or_insert(Slot { machine, state: State::Idle }).state = State::Ended(message);
            }
            state @ (State::Idle | State::Ended(_)) => slot.state = state,
        }
    }

    /// Ends a program at any point. One resume is enough: an ended program cannot pause again.
    fn kill(&mut self, id: u64, strand: ProgramCoroutine<ProgramOutcome>) -> Message {
        if !strand.is_started() {
            drop(strand);
            self.slots.remove(&id);
            let output = ProgramOutput { limit: Some(Limit::Cancelled), rolled_back: true, ..ProgramOutput::default() };
            return Message::Finished { output, cpu: Duration::ZERO };
        }
        match self.resume(id, strand, WakeReason::Kill) {
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
