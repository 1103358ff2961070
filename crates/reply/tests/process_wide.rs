//! Tests of process-wide behaviour: the panic hook, and a log that fails.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantrip_reply::testing::guard;
use cantrip_reply::{Call, codes};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A subscriber that panics at every event.
struct Broken;

static ASKED: AtomicUsize = AtomicUsize::new(0);

impl Subscriber for Broken {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        panic!("the log is full");
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        ASKED.fetch_add(1, Ordering::Relaxed);
        panic!("the log is full");
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The number of panics that reached the hook that existed before any wrapper.
static PRINTED: AtomicUsize = AtomicUsize::new(0);

static PREPARED: LazyLock<()> = LazyLock::new(|| {
    let previous = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() == Some("outside of a call") {
            PRINTED.fetch_add(1, Ordering::Relaxed);
        } else {
            PRINTED.fetch_add(1_000, Ordering::Relaxed);
            previous(info);
        }
    }));
    tracing::subscriber::set_global_default(Broken).unwrap();
});

#[tokio::test]
async fn panics_inside_a_call_stay_silent_and_others_do_not() {
    LazyLock::force(&PREPARED);
    let guard = guard();
    let inside = guard.call(Call::surface("inside"), |_| async { panic!("inside of a call") }).await;
    assert_eq!(inside.reply.code(), codes::CRASH);
    let blocking = guard.call_blocking(Call::surface("inside"), |_| panic!("inside of a call")).await;
    assert_eq!(blocking.reply.code(), codes::CRASH);
    assert_eq!(PRINTED.load(Ordering::Relaxed), 0);
    assert!(std::thread::spawn(|| panic!("outside of a call")).join().is_err());
    assert_eq!(PRINTED.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_log_that_fails_fails_no_call() {
    LazyLock::force(&PREPARED);
    let guard = guard();
    let plain = guard.call(Call::surface("plain"), |rb| async { rb.success(codes::ok("plain")) }).await;
    assert_eq!(plain.reply.code(), codes::OK);
    let effects =
        guard.call_with_effects(Call::surface("effects"), |rb| async { rb.success(codes::written(1, "a")) }).await;
    assert_eq!(effects.reply.code(), codes::WRITTEN);
    assert!(ASKED.load(Ordering::Relaxed) >= 2, "the log was not asked at all");
}
