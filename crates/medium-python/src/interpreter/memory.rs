//! The memory of an interpreter, counted by the allocator.
//!
//! The interpreter knows its memory only as a number for the whole process ([`LIVE_MEMORY`]), which it compares with a
//! limit between instructions and before large results. The number is kept only if the program's allocator counts.
//! [`CountingAllocator`] counts for this purpose alone: a thread that is inside a slice of a session adds and
//! subtracts, every other thread only checks its own flag. So the number is that of the running session, whatever the
//! rest of the process does. Sessions must therefore run one at a time, which [`slice()`] ensures.
//!
//! Counting the whole process and taking the difference was rejected: another thread's buffers would stop a program
//! that did nothing.
//!
//! The unsafe code is the allocator, and it is sound because it is mimalloc's: each method passes its arguments on
//! unchanged and returns the result unchanged. In addition it reads a flag without a destructor, which needs no
//! allocation, and changes atomic numbers. It never unwinds; past the hard limit, and when the system has no
//! memory for a session of a worker, it does not return.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mimalloc::MiMalloc;
use monty_types::{BASELINE_MEMORY, LIVE_MEMORY};

/// The start of the count: a session may free memory that was allocated for it before, and the number must not wrap.
const ORIGIN: usize = 1 << 40;

/// The count at which the process ends, as the last resort of a worker; 0 means no limit.
static HARD: AtomicUsize = AtomicUsize::new(0);

/// Allows one slice at a time.
static SLICE: Mutex<()> = Mutex::new(());

thread_local! {
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

/// mimalloc with a count for the Python medium. A turn allocates some hundreds of times and many agents do so at once,
/// and the default allocators of most systems are slower at that.
///
/// The worker process installs it, and so does a program that runs Python in its own process:
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: cantrip_medium_python::CountingAllocator = cantrip_medium_python::CountingAllocator;
/// # assert!(cantrip_medium_python::is_counting());
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CountingAllocator;

#[inline]
fn counts() -> bool {
    COUNTS.try_with(Cell::get).unwrap_or(false)
}

#[inline]
fn record_alloc(bytes: usize) {
    if counts() {
        let live = LIVE_MEMORY.fetch_add(bytes, Ordering::Relaxed).wrapping_add(bytes);
        let hard = HARD.load(Ordering::Relaxed);
        if hard != 0 && live > hard {
            out_of_memory();
        }
    }
}

#[inline]
fn record_free(bytes: usize) {
    if counts() {
        LIVE_MEMORY.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Ends a worker whose session got no memory from the system, for example under `ulimit -v`.
#[inline]
fn refuse_null(block: *mut u8) -> *mut u8 {
    if block.is_null() && HARD.load(Ordering::Relaxed) != 0 {
        out_of_memory();
    }
    block
}

/// Ends the process by a signal that nothing else sends, so that its parent knows the reason. An allocator may not
/// unwind, and returning null would abort in a way that looks like any other crash.
#[cold]
fn out_of_memory() -> ! {
    let _ = rustix::process::kill_process(rustix::process::getpid(), OUT_OF_MEMORY);
    loop {
        std::thread::park();
    }
}

/// The signal by which a worker ends when a session exceeds its hard limit.
pub(super) const OUT_OF_MEMORY: rustix::process::Signal = rustix::process::Signal::USR1;

// SAFETY: every method is that of mimalloc, with the same arguments; see the module header.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record_alloc(layout.size());
        // SAFETY: the caller's promises are passed on.
        refuse_null(unsafe { MiMalloc.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        record_alloc(layout.size());
        // SAFETY: the caller's promises are passed on.
        refuse_null(unsafe { MiMalloc.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record_alloc(size);
        record_free(layout.size());
        // SAFETY: the caller's promises are passed on.
        refuse_null(unsafe { MiMalloc.realloc(block, layout, size) })
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        record_free(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { MiMalloc.dealloc(block, layout) }
    }
}

/// The memory that a session holds between its slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionMemory(usize);

impl SessionMemory {
    pub(super) const NOTHING: Self = Self(ORIGIN);
}

/// A running slice. Inside of it, [`counted`] marks the work whose memory belongs to the session.
#[derive(Debug)]
pub(super) struct Slice<'a> {
    held: &'a mut SessionMemory,
    _alone: MutexGuard<'static, ()>,
}

/// Begins a slice of the session that holds this much memory. If `hard_bytes` is given, exceeding it ends the process.
pub(super) fn slice(held: &mut SessionMemory, hard_bytes: Option<usize>) -> Slice<'_> {
    let alone = SLICE.lock().unwrap_or_else(PoisonError::into_inner);
    LIVE_MEMORY.store(held.0, Ordering::Relaxed);
    BASELINE_MEMORY.store(ORIGIN, Ordering::Relaxed);
    HARD.store(hard_bytes.map_or(0, |bytes| ORIGIN.saturating_add(bytes)), Ordering::Relaxed);
    Slice { held, _alone: alone }
}

impl Drop for Slice<'_> {
    fn drop(&mut self) {
        HARD.store(0, Ordering::Relaxed);
        self.held.0 = LIVE_MEMORY.load(Ordering::Relaxed);
    }
}

/// Sets the flag of this thread until it is dropped, also when the stack is unwound.
struct Flag {
    before: bool,
}

impl Flag {
    fn set(to: bool) -> Self {
        Self { before: COUNTS.with(|counts| counts.replace(to)) }
    }
}

impl Drop for Flag {
    fn drop(&mut self) {
        COUNTS.with(|counts| counts.set(self.before));
    }
}

/// Runs work whose allocations and frees count for the session.
pub(super) fn counted<T>(act: impl FnOnce() -> T) -> T {
    let _flag = Flag::set(true);
    act()
}

/// Runs work whose allocations and frees count for the host, also inside of [`counted`].
pub(super) fn uncounted<T>(act: impl FnOnce() -> T) -> T {
    let _flag = Flag::set(false);
    act()
}

/// Returns true if the allocator of this process counts. Without it memory limits have no effect.
pub fn is_counting() -> bool {
    let mut held = SessionMemory::NOTHING;
    let slice = slice(&mut held, None);
    let block = counted(|| Box::new([0_u8; 64]));
    let live = LIVE_MEMORY.load(Ordering::Relaxed);
    counted(|| drop(std::hint::black_box(block)));
    drop(slice);
    live > ORIGIN
}
