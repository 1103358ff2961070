//! The only unsafe code of the medium: three small bridges, each with the argument why it is sound.
//!
//! **Strands.** A [`Strand`] is a coroutine that runs one program on a stack of its own. Code deep inside the engine has
//! to suspend it without being handed the coroutine's yielder, so the yielder's address is kept in `CURRENT`. The address
//! is dereferenced only in [`suspend`], and `CURRENT` holds it only while that very strand is being resumed on this
//! thread: [`Strand::resume`] puts it there and takes it out, and refuses to be nested. The yielder lives on the strand's
//! stack below every frame of its body, so it outlives whatever can call `suspend`. Strands and `CURRENT` are bound to
//! one thread (`Strand` is not `Send`, `CURRENT` is thread-local).
//!
//! Dropping a suspended coroutine would unwind through the engine's C frames, which is undefined. `Strand::drop`
//! therefore leaks one that is not finished; the owner resumes it with a kill first, so this does not happen.
//!
//! **Heap.** [`Heap`] forwards to rquickjs' own allocator and keeps a count; it refuses by answering null, which every
//! allocator may do. Sizes are taken from the allocator's own record of a block, so the count cannot drift.
//!
//! **Engine.** The calls that rquickjs does not wrap. Each takes a [`Ctx`], which proves that the context is alive and
//! that this thread is the one inside it. [`Reins`] keeps the address of the runtime without a `Ctx`, because an
//! interrupt handler is given none; it is used only by that handler and by host functions, which the runtime owns and
//! calls while it lives.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::rc::Rc;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder, on_stack};
use rquickjs::allocator::{Allocator, RustAllocator};
use rquickjs::{Ctx, Exception, Function, Value, qjs};

use super::meter::Meter;

type Between<Wake, Pause> = Yielder<Wake, Pause>;

thread_local! {
    /// The yielder of the strand that runs on this thread now, its type erased; see the module's first argument.
    static CURRENT: Cell<Option<NonNull<()>>> = const { Cell::new(None) };
}

/// What a resumed strand came back with.
pub(super) enum Returned<Pause, Done> {
    Paused(Pause),
    Done(Done),
}

/// One program on its own stack.
pub(super) struct Strand<Done: 'static> {
    coroutine: ManuallyDrop<Coroutine<super::Wake, super::Pause, Done, DefaultStack>>,
    yielder: Rc<Cell<Option<NonNull<()>>>>,
    stack_bytes: usize,
}

impl<Done: 'static> Strand<Done> {
    /// A strand that will run `body` on `stack` when it is first resumed.
    pub(super) fn new(stack_bytes: usize, stack: DefaultStack, body: impl FnOnce() -> Done + 'static) -> Self {
        let yielder = Rc::new(Cell::new(None));
        let own = Rc::clone(&yielder);
        let coroutine =
            Coroutine::with_stack(stack, move |handed: &Between<super::Wake, super::Pause>, _: super::Wake| {
                let address = NonNull::from(handed).cast::<()>();
                own.set(Some(address));
                CURRENT.set(Some(address));
                body()
            });
        Self { coroutine: ManuallyDrop::new(coroutine), yielder, stack_bytes }
    }

    /// Runs it until it pauses or is done.
    ///
    /// # Panics
    /// With the body's panic, and if it is called from inside a strand or after the strand was done.
    pub(super) fn resume(&mut self, wake: super::Wake) -> Returned<super::Pause, Done> {
        /// Also when the body panics, the thread is outside of every strand again.
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
            CoroutineResult::Yield(pause) => Returned::Paused(pause),
            CoroutineResult::Return(done) => Returned::Done(done),
        }
    }

    pub(super) fn started(&self) -> bool {
        self.coroutine.started()
    }

    /// What its stack was asked to hold.
    pub(super) fn stack_bytes(&self) -> usize {
        self.stack_bytes
    }

    /// The stack of a finished strand, for the next one; `None` if it is not finished.
    pub(super) fn into_stack(self) -> Option<DefaultStack> {
        let mut strand = ManuallyDrop::new(self);
        // SAFETY: `strand` is never dropped, so nobody takes either field a second time.
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

impl<Done: 'static> Drop for Strand<Done> {
    fn drop(&mut self) {
        if self.coroutine.done() || !self.coroutine.started() {
            // SAFETY: dropped once, here; the coroutine is finished or has not begun, so nothing is unwound.
            unsafe { ManuallyDrop::drop(&mut self.coroutine) }
        }
    }
}

/// Suspends the strand that runs now and waits for its next wake; gives the pause back if no strand runs.
pub(super) fn suspend(pause: super::Pause) -> Result<super::Wake, super::Pause> {
    match CURRENT.get() {
        // SAFETY: the first argument of the module. `new` stored the address of a yielder of exactly this type.
        Some(address) => Ok(unsafe { address.cast::<Between<super::Wake, super::Pause>>().as_ref() }.suspend(pause)),
        None => Err(pause),
    }
}

/// Runs `reading` on `stack`, outside of every strand.
pub(super) fn apart<R>(stack: &mut DefaultStack, reading: impl FnOnce() -> R) -> R {
    let strand = CURRENT.take();
    let result = on_stack(stack, || std::panic::catch_unwind(std::panic::AssertUnwindSafe(reading)));
    CURRENT.set(strand);
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The allocator of one sandbox.
pub(super) struct Heap {
    blocks: RustAllocator,
    meter: Rc<Meter>,
}

impl Heap {
    pub(super) fn new(meter: Rc<Meter>) -> Self {
        Self { blocks: RustAllocator, meter }
    }

    fn counted(&self, block: *mut u8) -> *mut u8 {
        if !block.is_null() {
            // SAFETY: `block` was just handed out by this allocator.
            self.meter.took(unsafe { RustAllocator::usable_size(block) });
        }
        block
    }
}

// SAFETY: every block comes from `RustAllocator`, which keeps the promises of the trait; null is always allowed.
unsafe impl Allocator for Heap {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        if !self.meter.grants(size) {
            return ptr::null_mut();
        }
        let block = self.blocks.alloc(size);
        self.counted(block)
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        match count.checked_mul(size) {
            Some(total) if self.meter.grants(total) => {
                let block = self.blocks.calloc(count, size);
                self.counted(block)
            }
            Some(_) | None => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&mut self, block: *mut u8) {
        // SAFETY: the caller's promise, handed on.
        unsafe {
            self.meter.gave(RustAllocator::usable_size(block));
            self.blocks.dealloc(block);
        }
    }

    unsafe fn realloc(&mut self, block: *mut u8, new_size: usize) -> *mut u8 {
        if block.is_null() {
            return self.alloc(new_size);
        }
        // SAFETY: the caller's promise, handed on; on failure the old block stays and stays counted.
        unsafe {
            let before = RustAllocator::usable_size(block);
            if new_size > before && !self.meter.grants(new_size - before) {
                return ptr::null_mut();
            }
            let moved = self.blocks.realloc(block, new_size);
            if !moved.is_null() {
                self.meter.gave(before);
            }
            self.counted(moved)
        }
    }

    unsafe fn usable_size(block: *mut u8) -> usize {
        // SAFETY: the caller's promise, handed on.
        unsafe { RustAllocator::usable_size(block) }
    }
}

/// The runtime's stack limit, within reach of code that is given no context.
pub(super) struct Reins(NonNull<qjs::JSRuntime>);

impl Reins {
    pub(super) fn of(ctx: &Ctx<'_>) -> Self {
        // SAFETY: a context belongs to a runtime for as long as it lives.
        let runtime = unsafe { qjs::JS_GetRuntime(ctx.as_raw().as_ptr()) };
        Self(NonNull::new(runtime).expect("a live context has a runtime"))
    }

    /// From now on no function can be called.
    pub(super) fn pull(&self) {
        self.limit(1);
    }

    /// Functions may use this much stack.
    pub(super) fn loosen(&self, bytes: usize) {
        self.limit(bytes);
    }

    fn limit(&self, bytes: usize) {
        // SAFETY: the third argument of the module; the call writes two words of the runtime.
        unsafe { qjs::JS_SetMaxStackSize(self.0.as_ptr(), bytes as qjs::size_t) }
    }
}

/// Tells the engine that it runs on this stack from here on down.
pub(super) fn enter(ctx: &Ctx<'_>) {
    // SAFETY: the context is alive; the call notes the current stack pointer.
    unsafe { qjs::JS_UpdateStackTop(qjs::JS_GetRuntime(ctx.as_raw().as_ptr())) }
}

/// Throws an error that no `catch` and no `finally` sees.
pub(super) fn raise(ctx: &Ctx<'_>) -> rquickjs::Error {
    match Exception::from_message(ctx.clone(), "ended") {
        Ok(error) => {
            let error = error.into_object().into_value();
            // SAFETY: `error` is a live error object of this context; the call sets a flag in it.
            unsafe { qjs::JS_SetUncatchableError(ctx.as_raw().as_ptr(), error.as_raw()) };
            ctx.throw(error)
        }
        Err(no_memory) => no_memory,
    }
}

/// Compiles a program without running it: the engine's own verdict on its syntax, within the engine's own stack check.
pub(super) fn compile(ctx: &Ctx<'_>, source: &str, name: &str) -> rquickjs::Result<()> {
    let compiled = compile_as(ctx, source, name, qjs::JS_EVAL_FLAG_ASYNC)?;
    // SAFETY: the value is ours and is not used again.
    unsafe { qjs::JS_FreeValue(ctx.as_raw().as_ptr(), compiled) };
    Ok(())
}

fn compile_as(ctx: &Ctx<'_>, source: &str, name: &str, flag: u32) -> rquickjs::Result<qjs::JSValue> {
    let text = CString::new(source)?;
    let name = CString::new(name)?;
    let flags = (qjs::JS_EVAL_TYPE_GLOBAL | qjs::JS_EVAL_FLAG_COMPILE_ONLY | flag) as qjs::c_int;
    // SAFETY: the context is alive; both strings end in a nul and outlive the call.
    unsafe {
        let compiled =
            qjs::JS_Eval(ctx.as_raw().as_ptr(), text.as_ptr(), source.len() as qjs::size_t, name.as_ptr(), flags);
        if qjs::JS_IsException(compiled) { Err(rquickjs::Error::Exception) } else { Ok(compiled) }
    }
}

/// Bytecode of a script, without its text. Only the engine in this process makes one, so reading it is sound: the engine
/// trusts bytecode blindly.
pub(super) struct Compiled(Vec<u8>);

impl Compiled {
    pub(super) fn new(ctx: &Ctx<'_>, source: &str, name: &str) -> rquickjs::Result<Self> {
        let compiled = compile_as(ctx, source, name, 0)?;
        let flags = qjs::JS_WRITE_OBJ_BYTECODE | qjs::JS_WRITE_OBJ_STRIP_SOURCE | qjs::JS_WRITE_OBJ_STRIP_DEBUG;
        // SAFETY: the context is alive; the engine gives `size` bytes, which are copied before they are freed.
        unsafe {
            let context = ctx.as_raw().as_ptr();
            let mut size: qjs::size_t = 0;
            let bytes = qjs::JS_WriteObject(context, &mut size, compiled, flags as qjs::c_int);
            qjs::JS_FreeValue(context, compiled);
            if bytes.is_null() {
                return Err(rquickjs::Error::Allocation);
            }
            let copy = std::slice::from_raw_parts(bytes, size as usize).to_vec();
            qjs::js_free(context, bytes.cast());
            Ok(Self(copy))
        }
    }
}

/// Runs a compiled script; its completion value has to be a function.
pub(super) fn load<'js>(ctx: &Ctx<'js>, compiled: &Compiled) -> rquickjs::Result<Function<'js>> {
    let flags = qjs::JS_READ_OBJ_BYTECODE as qjs::c_int;
    // SAFETY: the context is alive; the bytes are the engine's own; `JS_EvalFunction` takes the function it is given,
    // and what it returns is owned by the `Value` made of it.
    let value = unsafe {
        let context = ctx.as_raw().as_ptr();
        let script = qjs::JS_ReadObject(context, compiled.0.as_ptr(), compiled.0.len() as qjs::size_t, flags);
        if qjs::JS_IsException(script) {
            return Err(rquickjs::Error::Exception);
        }
        let value = qjs::JS_EvalFunction(context, script);
        if qjs::JS_IsException(value) {
            return Err(rquickjs::Error::Exception);
        }
        Value::from_raw(ctx.clone(), value)
    };
    value.get()
}
