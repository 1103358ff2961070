//! The resources that one program may use, and the moment at which a limit is reached.
//!
//! The engine checks in two places: its allocator before each block ([`Meter::may_allocate`]) and its interrupt handler
//! every few steps ([`Meter::poll`]). The limits for heap, processor time and wall time are latched here, outside of
//! the language. So a program can catch the exception that the engine throws, but not the end that follows.

use std::cell::Cell;
use std::time::{Duration, Instant};

use cantrip_circle::code::{Limit, thread_cpu};
use rustix::time::{ClockId, clock_gettime};

use super::raw::EngineControls;
use crate::limits;

/// The reason why a program was ended before it completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndReason {
    /// A call that ends the program was accepted.
    Stopped,
    Limit(Limit),
}

/// The action that the interrupt handler must take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InterruptAction {
    GoOn,
    /// Yield to the other programs of the thread.
    Rest,
    End(Limit),
}

#[derive(Default)]
pub(super) struct Meter {
    heap_used: Cell<usize>,
    heap_max: Cell<usize>,
    /// The first limit that was reached; it is kept until the next program.
    limit_reached: Cell<Option<Limit>>,
    /// True while the program is being stopped: the engine needs memory for that, and gets it.
    ending: Cell<bool>,
    cpu_max: Cell<Duration>,
    cpu_before: Cell<Duration>,
    wall_max: Cell<Duration>,
    wall_before: Cell<Duration>,
    slice: Cell<Option<Slice>>,
    /// The tick of the coarse clock at the last time check.
    looked: Cell<u64>,
    /// The controls that bring the next poll forward.
    reins: Cell<Option<EngineControls>>,
    waiting: Cell<Option<Instant>>,
}

#[derive(Debug, Clone, Copy)]
struct Slice {
    cpu: Duration,
    wall: Instant,
}

/// Reads a clock with a resolution of a few milliseconds, which costs almost nothing to read.
fn coarse_tick() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let now = clock_gettime(ClockId::MonotonicCoarse);
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000
}

impl Meter {
    pub(super) fn set_controls(&self, reins: Option<EngineControls>) {
        self.reins.set(reins);
    }

    /// Starts counting for a new program.
    pub(super) fn begin(&self, heap_max: usize, cpu_max: Duration, wall_max: Duration) {
        self.heap_max.set(heap_max);
        self.limit_reached.set(None);
        self.ending.set(false);
        self.cpu_max.set(cpu_max);
        self.cpu_before.set(Duration::ZERO);
        self.wall_max.set(wall_max);
        self.wall_before.set(Duration::ZERO);
        self.waiting.set(None);
    }

    /// Starts a slice: time counts until [`Meter::end_slice`].
    pub(super) fn begin_slice(&self) {
        if let Some(since) = self.waiting.take() {
            self.wall_before.set(self.wall_before.get() + since.elapsed());
        }
        self.slice.set(Some(Slice { cpu: thread_cpu(), wall: Instant::now() }));
    }

    /// Ends a slice. Waiting for the next slice counts as wall time, waiting in a gate does not.
    pub(super) fn end_slice(&self, in_gate: bool) {
        if let Some(slice) = self.slice.take() {
            self.cpu_before.set(self.cpu_before.get() + thread_cpu().saturating_sub(slice.cpu));
            self.wall_before.set(self.wall_before.get() + slice.wall.elapsed());
        }
        self.waiting.set((!in_gate).then(Instant::now));
    }

    /// Returns the processor time of the program up to the end of its last slice.
    pub(super) fn cpu(&self) -> Duration {
        self.cpu_before.get()
    }

    /// Marks the program as stopping: the memory that the engine needs for that is granted.
    pub(super) fn end(&self) {
        self.ending.set(true);
    }

    /// Returns the limit that was reached, even if no poll has reported it yet.
    pub(super) fn limit_reached(&self) -> Option<Limit> {
        self.limit_reached.get()
    }

    /// Returns the action for the interrupt handler, which calls this.
    pub(super) fn poll(&self) -> InterruptAction {
        let Some(slice) = self.slice.get() else { return InterruptAction::GoOn };
        if self.limit_reached.get().is_none() {
            // Polls are frequent and reading the clocks is expensive: one time check per tick is enough.
            let tick = coarse_tick();
            if self.looked.replace(tick) == tick {
                return InterruptAction::GoOn;
            }
            if self.cpu_is_spent(slice) {
                self.limit_reached.set(Some(Limit::Cpu));
            } else if self.wall_before.get() + slice.wall.elapsed() > self.wall_max.get() {
                self.limit_reached.set(Some(Limit::Wall));
            }
        }
        match self.limit_reached.get() {
            Some(limit) => InterruptAction::End(limit),
            None if slice.wall.elapsed() >= Duration::from_millis(limits::SLICE_MS) => InterruptAction::Rest,
            None => InterruptAction::GoOn,
        }
    }

    fn cpu_is_spent(&self, slice: Slice) -> bool {
        self.cpu_before.get() + thread_cpu().saturating_sub(slice.cpu) > self.cpu_max.get()
    }

    /// Returns true if the allocator may take this many more bytes.
    ///
    /// Past the limit, small pieces are still granted out of the slack: the engine is most fragile when a few bytes are
    /// refused, and the poll that stops the program is near. A large piece is also an occasion to check the time,
    /// because a loop over slow native calls polls late.
    pub(super) fn may_allocate(&self, more: usize) -> bool {
        let piece = more <= limits::HEAP_SLACK_PIECE_BYTES;
        if !piece
            && let Some(slice) = self.slice.get()
            && self.limit_reached.get().is_none()
            && slice.wall.elapsed() >= Duration::from_millis(limits::SLICE_MS)
        {
            if self.cpu_is_spent(slice) {
                self.limit_reached.set(Some(Limit::Cpu));
            }
            if let Some(reins) = self.reins.get() {
                reins.poll_after(1);
            }
        }
        let Some(after) = self.heap_used.get().checked_add(more) else { return false };
        if after > self.heap_max.get() && self.limit_reached.get().is_none() {
            self.limit_reached.set(Some(Limit::Memory));
        }
        if self.ending.get() || self.limit_reached.get().is_none() {
            return after <= self.heap_max.get() + 2 * limits::HEAP_SLACK_BYTES;
        }
        piece && after <= self.heap_max.get() + limits::HEAP_SLACK_BYTES
    }

    pub(super) fn record_alloc(&self, bytes: usize) {
        self.heap_used.set(self.heap_used.get() + bytes);
    }

    pub(super) fn record_free(&self, bytes: usize) {
        self.heap_used.set(self.heap_used.get().saturating_sub(bytes));
    }
}
