//! The safety wrapper: one reply and one line for every call, whatever happens.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, mpsc};
use std::time::Duration;

use cantrip_canon::{Clock, IdSource, ManualClock, Now, Redactor, RunId, Timestamp, TurnId};
use cantrip_reply::limits::{GATE_RESULT_BYTES_MAX, REPLY_BYTES_MAX};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Call, Envelope, GateRequest, Guard, GuardedReply, Observation, ReplyException, TraceId, codes};
use futures_util::FutureExt;
use serde_json::json;
use tokio::sync::oneshot;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// One line of the log: its level and its fields, the message under `message`.
#[derive(Debug, Clone)]
struct Logged {
    level: Level,
    fields: BTreeMap<String, String>,
}

/// Stores every line of this test binary; a test finds its own lines by the trace id.
struct Keeper;

static LINES: Mutex<Vec<Logged>> = Mutex::new(Vec::new());

static KEEPING: LazyLock<()> = LazyLock::new(|| {
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Keeper)).unwrap();
});

impl<S: Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Fields(BTreeMap<String, String>);
        impl Visit for Fields {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                self.0.insert(field.name().to_owned(), format!("{value:?}"));
            }
            fn record_str(&mut self, field: &Field, value: &str) {
                self.0.insert(field.name().to_owned(), value.to_owned());
            }
        }
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        LINES.lock().unwrap().push(Logged { level: *event.metadata().level(), fields: fields.0 });
    }
}

fn lines_of(trace_id: impl ToString, message: &str) -> Vec<Logged> {
    let trace_id = trace_id.to_string();
    let of = |line: &&Logged| line.fields.get("trace_id") == Some(&trace_id) && line.fields["message"] == message;
    LINES.lock().unwrap().iter().filter(of).cloned().collect()
}

/// The one line of a call.
#[track_caller]
fn line_of(trace_id: impl ToString) -> Logged {
    let mut lines = lines_of(trace_id, "call");
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

struct Bench {
    clock: Arc<ManualClock>,
    guard: Guard,
    parent: String,
    trace_id: String,
}

/// A wrapper, and a trace that no other test has.
fn bench() -> Bench {
    bench_with(Redactor::default())
}

fn bench_with(redactor: Redactor) -> Bench {
    static TRACES: LazyLock<IdSource> = LazyLock::new(|| IdSource::seeded(77));
    LazyLock::force(&KEEPING);
    let clock = Arc::new(ManualClock::starting("2026-02-19T02:00:00.000Z".parse().unwrap()));
    let trace_id = format!("{:032x}", TRACES.next_bits(Timestamp::EPOCH));
    Bench {
        guard: Guard::new(clock.clone(), Arc::new(IdSource::seeded(1)), redactor),
        clock,
        parent: format!("00-{trace_id}-00f067aa0ba902b7-01"),
        trace_id,
    }
}

impl Bench {
    fn call(&self) -> Call {
        Call::surface("count").traceparent(Some(&self.parent))
    }
}

#[test]
fn this_build_unwinds() {
    assert!(std::panic::catch_unwind(|| std::panic::resume_unwind(Box::new("unwound"))).is_err());
}

#[tokio::test]
async fn a_call_is_logged_once_with_exactly_the_fields_of_the_page() {
    let bench = bench();
    let run: RunId = "run_06cyf9k2vtd3m8x1q7hbz4n5rw".parse().unwrap();
    let turn: TurnId = "turn_06cyf9k2vtd3m8x1q7hbz4n5rw".parse().unwrap();
    let GuardedReply { reply, meta } = bench
        .guard
        .call(bench.call().run(run).turn(turn).tool_call_id("call_1"), |rb| async {
            bench.clock.advance(Duration::from_micros(1_999));
            rb.success(codes::read("a.txt").value("the text"))
        })
        .await;
    assert_eq!(reply.code(), codes::READ);
    assert_eq!(meta.trace_id().to_string(), bench.trace_id);
    assert_eq!((meta.duration_ms(), meta.duration()), (1, Duration::from_micros(1_999)));
    let line = line_of(&bench.trace_id);
    assert_eq!(line.level, Level::INFO);
    let expected = [
        ("message", "call"),
        ("trace_id", &bench.trace_id),
        ("tool", "count"),
        ("type", "S"),
        ("code", "WA-READ-S-001"),
        ("duration_us", "1999"),
        ("run_id", "run_06cyf9k2vtd3m8x1q7hbz4n5rw"),
        ("turn_id", "turn_06cyf9k2vtd3m8x1q7hbz4n5rw"),
        ("tool_call_id", "call_1"),
    ];
    assert_eq!(line.fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
}

#[tokio::test]
async fn the_level_of_a_line_follows_from_the_type() {
    let level = async |bench: Bench, tool: fn(cantrip_reply::ReplyBuilder) -> cantrip_reply::Reply| {
        let _ = bench.guard.call(bench.call(), |rb| async { tool(rb) }).await;
        line_of(&bench.trace_id).level
    };
    assert_eq!(level(bench(), |rb| rb.success(codes::gate_ok("echo"))).await, Level::INFO);
    assert_eq!(level(bench(), |rb| rb.invalid(codes::file_missing("a"))).await, Level::WARN);
    assert_eq!(level(bench(), |rb| rb.denied(codes::cannot_grant("fetch"))).await, Level::WARN);
    assert_eq!(level(bench(), |rb| rb.error(codes::store_failed("disk full"))).await, Level::ERROR);
}

#[tokio::test]
async fn at_debug_the_first_ten_data_keys_are_named_and_no_value_is() {
    let bench = bench();
    let many: BTreeMap<_, _> = (10..30).map(|n| (format!("k{n}"), "a value")).collect();
    let _ = bench.guard.call(bench.call(), |rb| async { rb.success(codes::read("x").data(&many)) }).await;
    let debug = lines_of(&bench.trace_id, "call data");
    assert_eq!(debug.len(), 1);
    assert_eq!(debug[0].level, Level::DEBUG);
    assert_eq!(debug[0].fields["keys"], r#"["what", "k10", "k11", "k12", "k13", "k14", "k15", "k16", "k17", "k18"]"#);
}

#[tokio::test]
async fn a_panic_is_an_error_whose_text_only_the_log_has_and_the_next_call_lives() {
    let bench = bench();
    let GuardedReply { reply, meta } =
        bench.guard.call(bench.call(), |_| async { panic!("the index was {}", 7) }).await;
    assert_code(&reply, codes::CRASH);
    assert_eq!(reply.data().len(), 0);
    let envelope = Envelope::of(reply, &meta).to_json();
    assert!(!envelope.contains("index"), "{envelope}");
    assert_eq!(line_of(&bench.trace_id).level, Level::ERROR);
    let panics = lines_of(&bench.trace_id, "panic");
    assert_eq!(panics.len(), 1);
    assert_eq!(panics[0].fields["text"], "the index was 7");
    assert!(panics[0].fields["place"].contains("guard.rs"), "{panics:?}");
    assert!(panics[0].fields["backtrace"].contains("guard"), "{panics:?}");

    let next = bench.guard.call(Call::surface("next"), |rb| async { rb.success(codes::ok("next")) }).await;
    assert_eq!(next.reply.code(), codes::OK);
}

/// Panics once more when it is dropped.
struct Spiteful;

impl Drop for Spiteful {
    fn drop(&mut self) {
        panic!("and another one");
    }
}

#[tokio::test]
async fn a_panic_in_whatever_form_is_still_one_reply() {
    let bench = bench();
    let odd = bench.guard.call(bench.call(), |_| async { std::panic::panic_any(42_u8) }).await;
    assert_code(&odd.reply, codes::CRASH);
    assert_eq!(line_of(&bench.trace_id).fields["code"], "MCP-SYS-E-001");
    let before_the_future = bench.guard.call(Call::surface("early"), |rb| {
        assert!(rb.trace().id().to_string().is_empty(), "panics before there is a future");
        async { rb.success(codes::ok("early")) }
    });
    assert_code(&before_the_future.await.reply, codes::CRASH);
    let payload = bench.guard.call(Call::surface("payload"), |_| async { std::panic::panic_any(Spiteful) }).await;
    assert_code(&payload.reply, codes::CRASH);
    let destructor = bench
        .guard
        .call(Call::surface("destructor"), |rb| async {
            let _spiteful = Spiteful;
            rb.success(codes::ok("destructor"))
        })
        .await;
    assert_code(&destructor.reply, codes::CRASH);
}

#[tokio::test]
async fn a_panic_is_caught_wherever_the_tool_runs() {
    let bench = bench();
    let with_effects = bench.guard.call_with_effects(bench.call(), |_| async { panic!("on its own task") }).await;
    assert_code(&with_effects.reply, codes::CRASH);
    assert_eq!(lines_of(&bench.trace_id, "panic")[0].fields["text"], "on its own task");
    line_of(&bench.trace_id);

    let bench = self::bench();
    let blocking = bench.guard.call_blocking(bench.call(), |_| panic!("on its own thread")).await;
    assert_code(&blocking.reply, codes::CRASH);
    let panics = lines_of(&bench.trace_id, "panic");
    assert_eq!((panics.len(), panics[0].fields["text"].as_str()), (1, "on its own thread"));
    assert!(panics[0].fields["place"].contains("guard.rs"), "{panics:?}");
    line_of(&bench.trace_id);
}

/// A clock that fails from its n-th reading on.
struct BrokenClock {
    readings_left: Mutex<u32>,
}

impl Clock for BrokenClock {
    fn now(&self) -> Now {
        let mut left = self.readings_left.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *left = left.checked_sub(1).expect("the clock stands still");
        ManualClock::starting(Timestamp::EPOCH).now()
    }
}

#[tokio::test]
async fn a_fault_of_the_wrapper_itself_is_the_same_error() {
    for readings in [0, 1] {
        let clock = Arc::new(BrokenClock { readings_left: Mutex::new(readings) });
        let guard = Guard::new(clock, Arc::new(IdSource::seeded(1)), Redactor::default());
        let ran = AtomicBool::new(false);
        let guarded = guard
            .call(Call::surface("count"), |rb| async {
                ran.store(true, Ordering::Relaxed);
                rb.success(codes::ok("count"))
            })
            .await;
        assert_code(&guarded.reply, codes::CRASH);
        assert_eq!(ran.into_inner(), readings == 1, "what cannot be measured is not begun");
    }
}

#[test]
fn without_an_executor_a_call_with_effects_is_not_begun() {
    let bench = bench();
    let guarded = bench
        .guard
        .call_with_effects(bench.call(), |rb| async { rb.success(codes::ok("never")) })
        .now_or_never()
        .expect("it is answered at once");
    assert_code(&guarded.reply, codes::CRASH);
    line_of(&bench.trace_id);
}

#[tokio::test]
async fn a_reply_over_the_limit_says_which_it_was_and_how_large() {
    let bench = bench();
    let frame = r#"{"what":"a","value":""}"#.len();
    let fits = "x".repeat(REPLY_BYTES_MAX - frame);
    let reply = bench.guard.call(bench.call(), |rb| async { rb.success(codes::read("a").value(&fits)) }).await.reply;
    assert_eq!(reply.code(), codes::READ);
    let over = "x".repeat(REPLY_BYTES_MAX - frame + 1);
    let call = Call::surface("count");
    let reply = bench.guard.call(call, |rb| async { rb.success(codes::read("a").value(&over)) }).await.reply;
    assert_code(&reply, codes::TOO_LARGE);
    let expected =
        json!({"tool": "count", "bytes": REPLY_BYTES_MAX + 1, "limit": REPLY_BYTES_MAX, "of": "WA-READ-S-001"});
    assert_eq!(json!(reply.data()), expected);
}

#[tokio::test]
async fn a_gate_has_a_limit_of_its_own() {
    let bench = bench();
    let text = "x".repeat(GATE_RESULT_BYTES_MAX);
    let small = "x".repeat(100);
    let outer = bench
        .guard
        .call(bench.call(), |rb| async {
            let trace = rb.trace();
            let gate = |text: String| {
                |rb: cantrip_reply::ReplyBuilder| async { rb.success(codes::gate_ok("docs").value(text)) }
            };
            let by_default = bench.guard.call(Call::gate(&trace, "docs"), gate(text.clone())).await;
            assert_code(&by_default.reply, codes::TOO_LARGE);
            let own = bench.guard.call(Call::gate(&trace, "docs").bytes_max(99), gate(small)).await;
            assert_code(&own.reply, codes::TOO_LARGE);
            let more = bench.guard.call(Call::gate(&trace, "docs").bytes_max(usize::MAX), gate(text)).await;
            assert_eq!(more.reply.code(), codes::GATE_OK);
            rb.success(codes::ok("outer"))
        })
        .await;
    assert_eq!(outer.reply.code(), codes::OK);
}

#[tokio::test(start_paused = true)]
async fn a_call_over_its_cap_is_ended_and_says_so() {
    let bench = bench();
    let dropped = Arc::new(AtomicBool::new(false));
    let witness = Witness(Arc::clone(&dropped));
    let call = bench.call().time_max(Duration::from_millis(50));
    let reply = bench
        .guard
        .call(call, |rb| async move {
            let _witness = witness;
            pending::<()>().await;
            rb.success(codes::ok("never"))
        })
        .await
        .reply;
    assert_code(&reply, codes::TIMED_OUT);
    assert_eq!(reply.message(), "count did not finish within 50 ms");
    assert!(dropped.load(Ordering::Relaxed));
    line_of(&bench.trace_id);

    let quick = Call::surface("quick").time_max(Duration::from_millis(50));
    let reply = bench.guard.call(quick, |rb| async { rb.success(codes::ok("quick")) }).await.reply;
    assert_eq!(reply.code(), codes::OK);
}

/// Records that it was dropped.
struct Witness(Arc<AtomicBool>);

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn without_effects_a_call_is_cancelled_when_its_caller_goes_and_still_logged() {
    let bench = bench();
    let dropped = Arc::new(AtomicBool::new(false));
    let witness = Witness(Arc::clone(&dropped));
    let mut call = Box::pin(bench.guard.call(bench.call(), |rb| async move {
        let _witness = witness;
        pending::<()>().await;
        rb.success(codes::ok("never"))
    }));
    assert!((&mut call).now_or_never().is_none());
    assert!(!dropped.load(Ordering::Relaxed));
    bench.clock.advance(Duration::from_millis(3));
    drop(call);
    assert!(dropped.load(Ordering::Relaxed));
    let line = line_of(&bench.trace_id);
    let shown = ["abandoned", "type", "code", "duration_us"].map(|field| line.fields[field].as_str());
    assert_eq!(shown, ["true", "D", "EN-EXEC-D-003", "3000"]);
}

#[tokio::test]
async fn a_panic_while_an_abandoned_call_is_dropped_is_logged_and_goes_no_further() {
    let bench = bench();
    let mut call = Box::pin(bench.guard.call(bench.call(), |rb| async move {
        let _spiteful = Spiteful;
        pending::<()>().await;
        rb.success(codes::ok("never"))
    }));
    assert!((&mut call).now_or_never().is_none());
    drop(call);
    assert_eq!(lines_of(&bench.trace_id, "panic")[0].fields["text"], "and another one");
    assert_eq!(line_of(&bench.trace_id).fields["abandoned"], "true");
}

#[tokio::test]
async fn with_effects_a_call_runs_on_when_its_caller_goes() {
    let bench = bench();
    let (go, gone) = oneshot::channel::<()>();
    let settled = Arc::new(AtomicBool::new(false));
    let settling = Arc::clone(&settled);
    let mut call = Box::pin(bench.guard.call_with_effects(bench.call(), |rb| async move {
        gone.await.unwrap();
        settling.store(true, Ordering::Relaxed);
        rb.success(codes::written(3, "a.txt"))
    }));
    assert!((&mut call).now_or_never().is_none());
    drop(call);
    assert!(bench.guard.wait_idle().now_or_never().is_none(), "it is still running");
    assert_eq!(lines_of(&bench.trace_id, "call").len(), 0);
    go.send(()).unwrap();
    bench.guard.wait_idle().await;
    assert!(settled.load(Ordering::Relaxed));
    let line = line_of(&bench.trace_id);
    assert_eq!(["abandoned", "code"].map(|field| line.fields[field].as_str()), ["true", "EN-WRITE-S-001"]);
}

#[tokio::test]
async fn a_call_that_was_waited_for_is_not_called_abandoned() {
    let bench = bench();
    let guarded =
        bench.guard.call_with_effects(bench.call(), |rb| async { rb.success(codes::written(3, "a.txt")) }).await;
    assert_eq!(guarded.reply.code(), codes::WRITTEN);
    assert!(!line_of(&bench.trace_id).fields.contains_key("abandoned"));
    assert!(bench.guard.wait_idle().now_or_never().is_some());
}

#[tokio::test]
async fn a_blocking_call_runs_off_the_executor_and_on_when_its_caller_goes() {
    let bench = bench();
    let executor = std::thread::current().id();
    let (go, gone) = mpsc::channel::<()>();
    let mut call = Box::pin(bench.guard.call_blocking(bench.call(), move |rb| {
        gone.recv().unwrap();
        assert_ne!(std::thread::current().id(), executor);
        rb.success(codes::gate_ok("shell"))
    }));
    assert!((&mut call).now_or_never().is_none());
    drop(call);
    go.send(()).unwrap();
    bench.guard.wait_idle().await;
    let line = line_of(&bench.trace_id);
    assert_eq!(["abandoned", "code"].map(|field| line.fields[field].as_str()), ["true", "WA-EXEC-S-001"]);
}

#[test]
fn a_call_whose_executor_ends_is_logged_as_an_error() {
    let bench = bench();
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    executor.block_on(async {
        let mut call = Box::pin(bench.guard.call_with_effects(bench.call(), |rb| async move {
            pending::<()>().await;
            rb.success(codes::ok("never"))
        }));
        assert!((&mut call).now_or_never().is_none());
    });
    drop(executor);
    assert_eq!(line_of(&bench.trace_id).fields["code"], "MCP-SYS-E-001");
    assert!(bench.guard.wait_idle().now_or_never().is_some());
}

#[tokio::test]
async fn new_traces_are_ordered_by_time_and_invalid_parents_are_ignored() {
    let bench = bench();
    let headers = [
        None,
        Some(""),
        Some("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        Some("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-0000000000000000-01"),
        Some("ff-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01"),
        Some("00-0198F3C27D1E7A40B6C2F0D4A1E95B33-00f067aa0ba902b7-01"),
        Some("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01-more"),
        Some("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01-"),
        Some("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7"),
        Some("00-+198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01"),
    ];
    let mut last: Option<TraceId> = None;
    for header in headers {
        let call = Call::surface("count").traceparent(header);
        let meta = bench.guard.call(call, |rb| async { rb.success(codes::ok("count")) }).await.meta;
        assert!(last < Some(meta.trace_id()), "{header:?}");
        assert_ne!(meta.trace_id().to_string(), "0198f3c27d1e7a40b6c2f0d4a1e95b33", "{header:?}");
        last = Some(meta.trace_id());
    }
    let later = "01-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01-more";
    assert!(TraceId::from_traceparent(later).is_some(), "a later version may say more");
}

#[tokio::test]
async fn calls_inside_a_call_are_numbered_in_its_trace_at_any_depth() {
    let bench = bench();
    let guard = bench.guard.clone();
    let outer = bench
        .guard
        .call(bench.call(), |rb| async move {
            let trace = rb.trace();
            let inner = guard
                .call(Call::gate(&trace, "call_agent"), |rb| async {
                    let deeper = Call::gate(&rb.trace(), "read")
                        .traceparent(Some("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01"));
                    let deeper = guard.call(deeper, |rb| async { rb.success(codes::read("a")) }).await;
                    rb.success(codes::gate_ok("call_agent").value(deeper.meta.trace_id()))
                })
                .await;
            let second = guard.call(Call::gate(&trace, "read"), |rb| async { rb.success(codes::read("b")) }).await;
            rb.success(codes::ok("outer").data(json!({
                "ids": [inner.meta.trace_id(), inner.reply.value(), second.meta.trace_id()],
            })))
        })
        .await;
    assert_eq!(outer.meta.trace_id().to_string(), bench.trace_id);
    let expected = [1, 2, 3].map(|n| format!("{}.{n}", bench.trace_id));
    assert_eq!(outer.reply.data()["ids"], json!(expected));
    for trace_id in expected {
        line_of(trace_id);
    }
}

#[test]
fn a_trace_id_is_read_only_as_it_is_written() {
    let root = "0198f3c27d1e7a40b6c2f0d4a1e95b33";
    for good in [root.to_owned(), format!("{root}.1"), format!("{root}.9999999999"), "0".repeat(32)] {
        assert_eq!(good.parse::<TraceId>().unwrap().to_string(), good);
    }
    for bad in ["", ".1", "0198f3c2", &root.to_uppercase(), &format!("+{}", &root[1..]), &format!("{root} ")] {
        assert!(bad.parse::<TraceId>().is_err(), "{bad}");
    }
    for call in [".", ".0", ".01", ".10000000000", ".1.2", ".-1", ".+1", ".1 ", ".\u{661}"] {
        assert!(format!("{root}{call}").parse::<TraceId>().is_err(), "{call}");
    }
}

#[tokio::test]
async fn a_planted_secret_is_in_no_reply_no_observation_and_no_line() {
    const KNOWN: &str = "correct-horse-battery-staple";
    const FORMED: &str = "sk-ant-api03-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6";
    let bench = bench_with(Redactor::with_secrets([KNOWN]));
    let mut shown = Vec::new();
    for secret in [KNOWN, FORMED] {
        // Messages drop control characters; that must not join the two halves of a secret.
        let hidden = format!("{}\u{7}{}", &secret[..9], &secret[9..]);
        let tools: [fn(cantrip_reply::ReplyBuilder, &str) -> cantrip_reply::Reply; 5] = [
            |rb, arg| rb.invalid(codes::file_missing(arg)),
            |rb, arg| rb.denied(codes::not_authorized("fetch", [arg]).data(json!({"deep": [{"note": arg}], arg: 1}))),
            |rb, arg| rb.error(codes::gate_failed(arg, format!("exit status 1: {arg}"))),
            |rb, arg| rb.success(codes::read(arg)),
            |_, arg| panic!("could not use {arg}"),
        ];
        for tool in tools {
            for arg in [secret, &hidden] {
                let args = json!({"path": arg});
                let call = bench.call().tool_call_id(arg);
                let GuardedReply { reply, meta } = bench.guard.call(call, |rb| async { tool(rb, arg) }).await;
                shown.push(format!("{reply:?}"));
                shown.push(serde_json::to_string(&ReplyException::from_reply(&reply, &meta)).unwrap());
                let asked = GateRequest { gate: arg.to_owned(), args, tool_call_id: None };
                let observation = Observation::from_reply(asked, &reply, &meta, bench.guard.redactor());
                shown.push(observation.reply.code.to_string());
                if arg == secret {
                    shown.push(serde_json::to_string(&observation).unwrap());
                    shown.push(Envelope::of(reply, &meta).to_json());
                } else {
                    shown.push(Envelope::of(reply, &meta).message().to_owned());
                }
            }
        }
        let named = Call::surface(secret).traceparent(Some(&bench.parent)).bytes_max(1);
        let too_large = bench.guard.call(named, |rb| async { rb.success(codes::ok("x")) }).await;
        shown.push(Envelope::of(too_large.reply, &too_large.meta).to_json());
    }
    let logged: Vec<_> =
        ["call", "call data", "panic"].into_iter().flat_map(|m| lines_of(&bench.trace_id, m)).collect();
    assert!(logged.len() > 40, "{}", logged.len());
    shown.extend(logged.iter().map(|line| format!("{line:?}")));
    for text in shown {
        assert!(!text.contains(KNOWN) && !text.contains(FORMED), "{text}");
    }
}
