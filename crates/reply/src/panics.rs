//! What happens after a panic?
//!
//! It is caught at the edge of the call in which it happened, with its text, place and backtrace. It never reaches
//! standard error: its text may hold a secret, and that output is not redacted. Setting and resetting a hook around
//! each call was rejected: the hook belongs to the whole process, and calls run concurrently.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

/// The details of a panic; for the log only, and only redacted.
#[derive(Debug)]
pub(crate) struct Panic {
    pub(crate) text: String,
    pub(crate) place: String,
    pub(crate) backtrace: String,
}

impl Panic {
    /// Wraps a fault of the wrapper, or of the executor below it, as a panic.
    pub(crate) fn from_message(text: &str) -> Self {
        Self { text: text.to_owned(), place: String::new(), backtrace: String::new() }
    }
}

struct PanicLocation {
    place: String,
    backtrace: String,
}

thread_local! {
    /// The number of guarded calls that this thread is inside of right now.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// The location of the latest panic inside a guarded call.
    static SCENE: RefCell<Option<PanicLocation>> = const { RefCell::new(None) };
}

/// Installs a hook in front of the current one that keeps panics of guarded work silent. Once per process.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    // A panicking thread cannot change the hook; the next wrapper will install it.
    if std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
                previous(info);
            } else {
                record_location(info);
            }
        }));
    });
}

fn record_location(info: &PanicHookInfo<'_>) {
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let scene = PanicLocation { place, backtrace: Backtrace::force_capture().to_string() };
    // A thread that is being destroyed cannot keep the location; the text of the panic is still reported.
    let _ = SCENE.try_with(|kept| {
        if let Ok(mut kept) = kept.try_borrow_mut() {
            *kept = Some(scene);
        }
    });
}

struct GuardDepth;

impl GuardDepth {
    fn enter() -> Self {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
        Self
    }
}

impl Drop for GuardDepth {
    fn drop(&mut self) {
        let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Runs the work and catches a panic in it.
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R, Panic> {
    let _inside = GuardDepth::enter();
    panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let text = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
            (Some(text), _) => (*text).to_owned(),
            (None, Some(text)) => text.clone(),
            (None, None) => "a panic without a text".to_owned(),
        };
        discard(payload);
        let scene = SCENE.try_with(|kept| kept.try_borrow_mut().ok().and_then(|mut kept| kept.take()));
        let PanicLocation { place, backtrace } = match scene {
            Ok(Some(scene)) => scene,
            Ok(None) | Err(_) => PanicLocation { place: String::new(), backtrace: String::new() },
        };
        Panic { text, place, backtrace }
    })
}

/// Drops the payload. Its destructor may panic too, and so may the payload of that panic: the second one is leaked.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// A future whose panics are caught, both when it is polled and when it is dropped.
///
/// The type of the future is erased: every guarded call would otherwise be compiled with a copy of the wrapper, of which
/// there are hundreds, in each crate that makes or awaits it.
pub(crate) struct CatchPanic<'a, T> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
}

impl<'a, T> CatchPanic<'a, T> {
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self { future: Some(Box::pin(future)) }
    }

    /// Drops the future now, if it has not been dropped yet.
    pub(crate) fn dispose(&mut self) -> Result<(), Panic> {
        let future = self.future.take();
        catch_panic(|| drop(future))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<T, Panic>> {
        let Some(future) = self.future.as_mut() else {
            return Poll::Ready(Err(Panic::from_message("a call was polled after its end")));
        };
        let polled = catch_panic(|| future.as_mut().poll(context));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(self.dispose().map(|()| output)),
            Err(panic) => {
                // Panics of the destructors after the first panic add no information.
                let _ = self.dispose();
                Poll::Ready(Err(panic))
            }
        }
    }
}
