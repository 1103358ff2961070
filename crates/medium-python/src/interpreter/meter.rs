//! The resources that one program may use, and its printed output.
//!
//! The interpreter calls the meter every few hundred instructions, through the flush callback of its output. The first
//! limit that is reached is latched outside of the language: a program can catch the exception that it gets then,
//! inside of a callback even twice, but the next check ends it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cantrip_circle::code::{ConsoleOutput, Limit, ProgramLimits, thread_cpu};
use monty_types::{ExcType, MontyException, PrintWriterCallback};

use super::memory::uncounted;
use crate::limits;

/// The sessions whose programs must end; another thread adds them.
#[derive(Debug, Clone, Default)]
pub(super) struct CancelledSessions(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    any: AtomicBool,
    ids: Mutex<HashSet<u64>>,
}

impl CancelledSessions {
    pub(super) fn insert(&self, id: u64) {
        let mut ids = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.insert(id);
        self.0.any.store(true, Ordering::Release);
    }

    pub(super) fn remove(&self, id: u64) {
        let mut ids = self.0.ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.remove(&id);
        self.0.any.store(!ids.is_empty(), Ordering::Release);
    }

    fn contains(&self, id: u64) -> bool {
        self.0.any.load(Ordering::Acquire) && self.0.ids.lock().unwrap_or_else(PoisonError::into_inner).contains(&id)
    }
}

/// The usage of one program.
#[derive(Debug)]
pub(super) struct Meter {
    id: u64,
    cancelled: CancelledSessions,
    limits: ProgramLimits,
    limit_reached: Option<Limit>,
    cpu: Duration,
    wall: Duration,
    slice: Option<(Duration, Instant)>,
    asked: u32,
    console: ConsoleOutput,
}

impl Meter {
    pub(super) fn new(id: u64, cancelled: CancelledSessions, limits: ProgramLimits) -> Self {
        Self {
            id,
            cancelled,
            limits,
            limit_reached: None,
            cpu: Duration::ZERO,
            wall: Duration::ZERO,
            slice: None,
            asked: 0,
            console: ConsoleOutput::default(),
        }
    }

    pub(super) fn begin_slice(&mut self) {
        self.slice = Some((thread_cpu(), Instant::now()));
    }

    pub(super) fn end_slice(&mut self) {
        (self.cpu, self.wall) = self.used();
        self.slice = None;
    }

    fn used(&self) -> (Duration, Duration) {
        match self.slice {
            Some((cpu, wall)) => (self.cpu + thread_cpu().saturating_sub(cpu), self.wall + wall.elapsed()),
            None => (self.cpu, self.wall),
        }
    }

    pub(super) fn cpu(&self) -> Duration {
        self.cpu
    }

    /// Returns the first limit that was reached.
    pub(super) fn limit_reached(&self) -> Option<Limit> {
        self.limit_reached
    }

    pub(super) fn end(&mut self, limit: Limit) {
        self.limit_reached.get_or_insert(limit);
    }

    /// Checks for cancellation, processor time and wall time.
    pub(super) fn check_limits(&mut self) -> Option<Limit> {
        if self.limit_reached.is_none() {
            let (cpu, wall) = self.used();
            if self.cancelled.contains(self.id) {
                self.limit_reached = Some(Limit::Cancelled);
            } else if cpu > Duration::from_millis(self.limits.cpu_ms) {
                self.limit_reached = Some(Limit::Cpu);
            } else if wall > Duration::from_millis(self.limits.wall_ms) {
                self.limit_reached = Some(Limit::Wall);
            }
        }
        self.limit_reached
    }

    /// Returns the time limit for the interpreter's own clock, which measures only wall time and which its long native
    /// loops check. It is twice the processor time, since a busy machine takes part of the wall time.
    pub(super) fn native_time(&self) -> Duration {
        Duration::from_millis(self.limits.cpu_ms.saturating_mul(2).min(self.limits.wall_ms))
    }

    /// Records that the interpreter's own clock has run out.
    pub(super) fn out_of_time(&mut self) {
        let (_, wall) = self.used();
        let over = wall >= Duration::from_millis(self.limits.wall_ms);
        self.end(if over { Limit::Wall } else { Limit::Cpu });
    }

    /// Returns the printed text that may be shown, and the number of bytes that were cut.
    pub(super) fn take(&mut self) -> (String, u64) {
        std::mem::take(&mut self.console).into_shown()
    }

    /// Cuts the value to the room that the console has left. Returns the text that may be shown, and the number of
    /// bytes cut.
    pub(super) fn cut_value(&self, text: String) -> (String, u64) {
        self.console.cut_value(text, &self.limits)
    }

    fn print(&mut self, text: &str) -> Result<(), MontyException> {
        if self.limit_reached.is_some() {
            return Err(stop());
        }
        if !self.console.print(text, &self.limits) {
            self.end(Limit::Output);
            return Err(stop());
        }
        Ok(())
    }
}

/// The exception that a stopped program gets. The program may catch it, and is ended at the next check.
fn stop() -> MontyException {
    MontyException::new(ExcType::SystemExit, Some("the program was stopped".to_owned()))
}

impl PrintWriterCallback for Meter {
    fn stdout_write(&mut self, output: Cow<'_, str>) -> Result<(), MontyException> {
        uncounted(|| self.print(&output))
    }

    fn stdout_push(&mut self, end: char) -> Result<(), MontyException> {
        uncounted(|| self.print(end.encode_utf8(&mut [0; 4])))
    }

    fn poll_flush(&mut self) -> Result<(), MontyException> {
        // Reading the clock of a thread is a system call; reading the latch is not.
        self.asked = self.asked.wrapping_add(1);
        let spent = match self.asked % limits::PYTHON_POLLS {
            0 => self.check_limits(),
            _ => self.limit_reached,
        };
        match spent {
            Some(_) => Err(stop()),
            None => Ok(()),
        }
    }
}
