//! What becomes of a panic?
//!
//! It is caught at the edge of the call it happened in, with its text, place and backtrace, and never reaches standard
//! error: its text may hold a secret, and what is printed there is not redacted. A hook set and taken back around each
//! call was rejected: the hook belongs to the whole process, and calls run at the same time.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::pin::Pin;
use std::sync::Once;
use std::task::{Context, Poll};

/// What is known of a panic; for the log only, and only redacted.
#[derive(Debug)]
pub(crate) struct Panic {
    pub(crate) text: String,
    pub(crate) place: String,
    pub(crate) backtrace: String,
}

impl Panic {
    /// A fault of the wrapper or of what it runs on, told like a panic.
    pub(crate) fn from_message(text: &str) -> Self {
        Self { text: text.to_owned(), place: String::new(), backtrace: String::new() }
    }
}

struct PanicLocation {
    place: String,
    backtrace: String,
}

thread_local! {
    /// How many guarded pieces of work this thread is inside of right now.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Where the latest panic inside one of them happened.
    static SCENE: RefCell<Option<PanicLocation>> = const { RefCell::new(None) };
}

/// Puts a hook in front of the present one that keeps panics of guarded work silent. Once per process.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    // The hook cannot be changed by a thread that panics; the next wrapper will do it.
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
    // A thread that is being torn down keeps nothing; the panic's text still arrives.
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

/// Does the work; a panic in it ends here.
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

/// A payload may panic once more when it is dropped, and so may that one's: the second is leaked instead.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

/// A future whose panics end here, whether it is polled or dropped.
#[derive(Debug)]
pub(crate) struct CatchPanic<F> {
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> CatchPanic<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Some(Box::pin(future)) }
    }

    /// Drops the future now, if it is still there.
    pub(crate) fn dispose(&mut self) -> Result<(), Panic> {
        let future = self.future.take();
        catch_panic(|| drop(future))
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<F::Output, Panic>> {
        let Some(future) = self.future.as_mut() else {
            return Poll::Ready(Err(Panic::from_message("a call was polled after its end")));
        };
        let polled = catch_panic(|| future.as_mut().poll(context));
        match polled {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(self.dispose().map(|()| output)),
            Err(panic) => {
                // What its destructors say after the first panic adds nothing.
                let _ = self.dispose();
                Poll::Ready(Err(panic))
            }
        }
    }
}
