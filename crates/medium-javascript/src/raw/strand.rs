//! Programs on their own stacks.
//!
//! First argument: a [`ProgramCoroutine`] runs one program. Code deep inside the engine has to suspend it without
//! receiving the coroutine's yielder, so the yielder's address is kept in `CURRENT`. The address is dereferenced only
//! in [`suspend`], and `CURRENT` holds it only while that same coroutine is being resumed on this thread:
//! [`ProgramCoroutine::resume`] sets it and clears it, and refuses to be nested. The yielder lives on the coroutine's
//! stack below every frame of its body, so it outlives any code that can call `suspend`. Coroutines and `CURRENT` are
//! bound to one thread (`ProgramCoroutine` is not `Send`, `CURRENT` is thread-local).
//!
//! So a suspension is sound wherever it is requested; outside of a coroutine it is refused.
//!
//! Dropping a suspended coroutine would unwind through the engine's C frames, which is undefined behaviour.
//! `ProgramCoroutine::drop` therefore leaks a coroutine that is not finished; the owner first resumes it to be killed,
//! so this does not happen.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder, on_stack};

use crate::{PauseReason, WakeReason};

type Between = Yielder<WakeReason, PauseReason>;

thread_local! {
    /// The yielder of the coroutine that runs on this thread now, its type erased; see the first argument in the module
    /// header.
    static CURRENT: Cell<Option<NonNull<()>>> = const { Cell::new(None) };
}

/// The result of resuming a coroutine.
pub(crate) enum ResumeResult<Done> {
    Paused(PauseReason),
    Done(Done),
}

/// One program on its own stack.
pub(crate) struct ProgramCoroutine<Done: 'static> {
    coroutine: ManuallyDrop<Coroutine<WakeReason, PauseReason, Done, DefaultStack>>,
    yielder: Rc<Cell<Option<NonNull<()>>>>,
    stack_bytes: usize,
}

impl<Done: 'static> ProgramCoroutine<Done> {
    /// Creates a coroutine that runs `body` on `stack` when it is first resumed.
    pub(crate) fn new(stack_bytes: usize, stack: DefaultStack, body: impl FnOnce() -> Done + 'static) -> Self {
        let yielder = Rc::new(Cell::new(None));
        let own = Rc::clone(&yielder);
        let coroutine = Coroutine::with_stack(stack, move |handed: &Between, _: WakeReason| {
            let address = NonNull::from(handed).cast::<()>();
            own.set(Some(address));
            CURRENT.set(Some(address));
            body()
        });
        Self { coroutine: ManuallyDrop::new(coroutine), yielder, stack_bytes }
    }

    /// Runs the coroutine until it pauses or is done.
    ///
    /// # Panics
    /// With the body's panic, and if it is called from inside a coroutine or after the coroutine was done.
    pub(crate) fn resume(&mut self, wake: WakeReason) -> ResumeResult<Done> {
        /// Clears `CURRENT`, also when the body panics.
        struct Outside;
        impl Drop for Outside {
            fn drop(&mut self) {
                CURRENT.set(None);
            }
        }
        assert!(CURRENT.get().is_none(), "a strand was resumed from inside another");
        let _outside = Outside;
        CURRENT.set(self.yielder.get());
        match self.coroutine.resume(wake) {
            CoroutineResult::Yield(pause) => ResumeResult::Paused(pause),
            CoroutineResult::Return(done) => ResumeResult::Done(done),
        }
    }

    pub(crate) fn is_started(&self) -> bool {
        self.coroutine.started()
    }

    /// The stack size that was requested.
    pub(crate) fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// Returns the stack of a finished coroutine for the next one; `None` if the coroutine is not finished.
    pub(crate) fn into_stack(self) -> Option<DefaultStack> {
        let mut strand = ManuallyDrop::new(self);
        // SAFETY: `strand` is never dropped, so neither field is taken a second time.
        let (coroutine, yielder) = unsafe { (ManuallyDrop::take(&mut strand.coroutine), ptr::read(&strand.yielder)) };
        drop(yielder);
        if coroutine.done() {
            Some(coroutine.into_stack())
        } else {
            std::mem::forget(coroutine);
            None
        }
    }
}

impl<Done: 'static> Drop for ProgramCoroutine<Done> {
    fn drop(&mut self) {
        if self.coroutine.done() || !self.coroutine.started() {
            // SAFETY: dropped once, here; the coroutine is finished or has not started, so nothing is unwound.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) }
        }
    }
}

/// Suspends the running coroutine until it is resumed; returns the pause reason as an error if no coroutine runs.
pub(crate) fn suspend(pause: PauseReason) -> Result<WakeReason, PauseReason> {
    match CURRENT.get() {
        // SAFETY: see the first argument in the module header. `new` stored the address of a yielder of exactly this
        // type.
        Some(address) => Ok(unsafe { address.cast::<Between>().as_ref() }.suspend(pause)),
        None => Err(pause),
    }
}

/// Runs `reading` on `stack`, outside of every coroutine.
pub(crate) fn run_on_stack<R>(stack: &mut DefaultStack, reading: impl FnOnce() -> R) -> R {
    let strand = CURRENT.take();
    let result = on_stack(stack, || std::panic::catch_unwind(std::panic::AssertUnwindSafe(reading)));
    CURRENT.set(strand);
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
