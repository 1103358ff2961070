//! Benchmarks of the single steps of a turn: `cargo bench -p cantrip-bench --bench hot_path`, with a name to choose
//! some.
//!
//! The numbers are for one machine, to be compared with numbers of the same machine before a change. Published claims
//! about speed are ratios, in the tables of `cantrip-bench`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::Runtime;
use cantrip::canon::{IdSource, Instant, LoomId, Now, Timestamp, TurnId, stable_hash};
use cantrip::circle::code::{ProgramLimits, SandboxSpec};
use cantrip::circle::gate::{StopSignal, builtin};
use cantrip::circle::{CallArguments, CallRequest, CallerState, Circle, Decision, Effect};
use cantrip::crystal::{Caller, Hosted, MessageLog, Request};
use cantrip::loom::{CallId, Closing, GateCall, Journal, Loom, MemoryLoom, Message};
use cantrip::reply::{Call, Trace, codes};
use cantrip::stream::{Options, Processor, StreamEvent};
use cantrip_loom_suite::{Episode, LoomWriter};
use cantrip_medium_javascript::{Event, Host, Options as Threads, Program};
use cantrip_store::Store;
use divan::Bencher;
use futures_util::FutureExt;
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

/// A result of a gate with one kilobyte.
fn kilobyte(n: usize) -> String {
    format!("{n:020} {}", "the quick brown fox looks back; ".repeat(31))
}

fn executor() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an executor")
}

#[divan::bench]
fn canonical_hash_of_a_kilobyte(bencher: Bencher<'_, '_>) {
    let value = json!({"gate": "read", "args": {"path": "a/b.txt", "from": 12}, "result": kilobyte(1)});
    bencher.bench(|| stable_hash(&value));
}

#[divan::bench]
fn reply(bencher: Bencher<'_, '_>) {
    let runtime = Runtime::in_memory();
    bencher.bench(|| {
        let ended = runtime.guard().call(Call::surface("bench"), |rb| async { rb.success(codes::ok("bench")) });
        ended.now_or_never().expect("nothing is waited for").reply
    });
}

/// From the arguments of the crystal to the reply, through schema, wards and the safety wrapper.
#[divan::bench]
fn gate_call(bencher: Bencher<'_, '_>) {
    let (executor, runtime) = (executor(), Runtime::in_memory());
    let circle = Circle::builder().gate(builtin::done()).gate(builtin::echo()).wards(&json!({"max_turns": 10})).build();
    let circle = circle.expect("it is sound");
    let trace = trace(&runtime);
    bencher.bench(|| {
        let asked = CallRequest { gate: "echo", arguments: CallArguments::Tool(json!({"text": "hello"})) };
        let Decision::Allowed(Effect::Execute(permit)) = circle.decide(asked, &CallerState::default()) else {
            panic!("an echo is allowed")
        };
        executor.block_on(permit.execute(runtime.guard(), &trace, None, None, StopSignal::never()))
    });
}

fn trace(runtime: &Runtime) -> Trace {
    let found = Mutex::new(None);
    let ended = runtime.guard().call(Call::surface("bench"), |rb| {
        *found.lock().expect("nobody panicked") = Some(rb.trace());
        async { rb.success(codes::ok("bench")) }
    });
    drop(ended.now_or_never());
    found.into_inner().expect("nobody panicked").expect("the call ran")
}

/// One message of a thousand words, whose text is counted and shown as it grows.
#[divan::bench]
fn upserts_of_1000_deltas(bencher: Bencher<'_, '_>) {
    let at = Now { monotonic: Instant::from_origin(Duration::ZERO), wall: Timestamp::EPOCH };
    let event = |n: usize, payload: Value| -> StreamEvent {
        let written = json!({
            "eventId": format!("event-{n}"), "timestamp": "2026-01-01T00:00:00Z", "turnId": "turn", "sessionId": "run",
            "type": payload["type"], "payload": payload,
        });
        StreamEvent::read(&written).expect("a canonical event")
    };
    let mut events = vec![
        event(0, json!({"type": "response_start", "modelId": "m", "providerId": "p"})),
        event(1, json!({"type": "item_start", "itemId": "turn/1", "itemType": "message"})),
    ];
    events.extend(
        (2..1_002).map(|n| event(n, json!({"type": "item_delta", "itemId": "turn/1", "deltaContent": "word "}))),
    );
    bencher.bench(|| {
        let (mut processor, mut out) = (Processor::new(Options::default()), Vec::new());
        for event in &events {
            processor.process(event, at, &mut out).expect("within every limit");
        }
        out.len()
    });
}

/// A list of this many turns, each with a call and a result of a kilobyte.
fn list(turns: usize) -> MessageLog {
    let list = MessageLog::new();
    list.push(Message::User { content: "go".into() });
    for n in 0..turns {
        push(&list, n);
    }
    list
}

fn push(list: &MessageLog, n: usize) {
    let call = GateCall { tool_call_id: format!("call_{n}"), gate: "look".to_owned(), args: json!({"n": n}) };
    list.push(Message::Assistant { content: None, calls: vec![call], parts: None });
    let (tool_call_id, gate, content) = (format!("call_{n}"), "look".to_owned(), kilobyte(n).into());
    list.push(Message::Tool { tool_call_id, gate, content });
}

fn request(list: &MessageLog) -> Request {
    let ids = IdSource::seeded(7);
    let turn: TurnId = ids.next(Timestamp::EPOCH);
    let caller = Caller { entity: ids.next(Timestamp::EPOCH), spawned_by: None, request: CallId::request(turn) };
    Request::new(caller, list.all())
}

fn wire() -> Hosted {
    Hosted::compatible("model", &"http://127.0.0.1:9/v1".parse().expect("an address"), None).expect("an endpoint")
}

/// The body of the first request of a thread.
#[divan::bench(args = [10, 100, 1_000])]
fn body_of_a_new_thread(bencher: Bencher<'_, '_>, turns: usize) {
    let wire = wire();
    bencher.with_inputs(|| list(turns)).bench_values(|list| wire.body(&request(&list)).expect("it can be sent").len());
}

/// The body of the next request: one turn more than the last one.
#[divan::bench(args = [10, 100, 1_000])]
fn body_one_turn_later(bencher: Bencher<'_, '_>, turns: usize) {
    let wire = wire();
    let made = || {
        let list = list(turns);
        wire.body(&request(&list)).expect("it can be sent");
        push(&list, turns);
        list
    };
    bencher.with_inputs(made).bench_values(|list| wire.body(&request(&list)).expect("it can be sent").len());
}

async fn turn<L: Journal + Loom>(weaver: &mut LoomWriter<'_, L>, episode: &mut Episode) {
    let said = kilobyte(usize::try_from(episode.sequence).expect("few"));
    weaver.turn(episode, "read", json!(said), Closing::Open).await;
}

/// Two steps of four records each, at the end of a thread that grows with each.
fn appended<L: Journal + Loom>(bencher: Bencher<'_, '_>, loom: &L) {
    let executor = executor();
    let mut weaver = LoomWriter::seeded(loom, 7);
    weaver.loom = LoomId::from_bytes([1; 16]);
    let mut episode = executor.block_on(weaver.cast("measure"));
    bencher.bench_local(|| executor.block_on(turn(&mut weaver, &mut episode)));
}

#[divan::bench]
fn turn_into_memory(bencher: Bencher<'_, '_>) {
    appended(bencher, &MemoryLoom::new());
}

/// SQLite without a disk: the cost of our own code for a durable turn.
#[divan::bench]
fn turn_into_sqlite_in_memory(bencher: Bencher<'_, '_>) {
    appended(bencher, &Store::in_memory().expect("memory is there"));
}

fn sandboxes() -> Host {
    Threads { threads: 1 }.start().expect("a thread")
}

/// A new JavaScript sandbox with its first program.
#[divan::bench]
fn sandbox_and_first_program(bencher: Bencher<'_, '_>) {
    let (executor, host) = (executor(), sandboxes());
    let spec = Arc::new(SandboxSpec { seed: 7, limits: ProgramLimits::default(), gates: Vec::new() });
    bencher.bench(|| {
        let program = Program::new("turn-1.js", "1 + 1", Timestamp::EPOCH).expect("it can be read");
        match executor.block_on(host.sandbox(Arc::clone(&spec)).run(program)) {
            Ok(Event::Finished(finished)) => drop(finished),
            Ok(Event::Call(_)) | Err(_) => panic!("it calls nothing and ends"),
        }
    });
}
