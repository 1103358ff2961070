//! Our side of the comparison with other runtimes: the same workloads as `bench/peers/*.py`, and the same output, one
//! line of JSON. `bench/run` calls it; `cargo run --profile dist -p cantrip-bench --bin alongside -- loop turns=200` does
//! too.
//!
//! The crystal is scripted like the models of the peers: it makes the request body for an OpenAI-compatible provider,
//! with the code that would send it, and calls a tool that returns a kilobyte until its turns are over.

#[path = "store/floor/sqlite.rs"]
mod bare;
#[expect(dead_code, reason = "shared with benches that measure what does not pack, too")]
mod said;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use cantrip::canon::Clock as _;
use cantrip::circle::gate::builtin;
use cantrip::circle::{Medium, MediumKind};
use cantrip::crystal::{
    Answer, AnswerEnd, Assembler, Charge, Crystal, EventSink, Failure, Hosted, Request, Response, Script,
    ScriptedCrystal,
};
use cantrip::events::Watcher;
use cantrip::loom::{AnyLoom, Finish, Loom, MemoryLoom};
use cantrip::stream::{Options, Processor, StreamEvent};
use cantrip::{Call, Cantrip, CastOptions, ForkOptions, MachineClock, Runtime};
use cantrip_medium_javascript::{Javascript, Options as Threads};
use cantrip_medium_python::{CountingAllocator, Options as Workers, Python};
use cantrip_store::Store;
use futures_util::future::join_all;
use serde_json::{Value, json};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The warm-up turns of a cast.
const WARM_TURNS: u64 = 2;

/// The result of the tool for each turn, made before the clock starts.
static RESULTS: OnceLock<Vec<String>> = OnceLock::new();

/// The number of calls of the tool.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Looks something up.
#[cantrip::gate(read_only)]
async fn look(
    /// Which.
    n: u64,
) -> String {
    CALLS.fetch_add(1, Ordering::Relaxed);
    RESULTS.get().and_then(|results| results.get(usize::try_from(n).ok()?)).cloned().unwrap_or_default()
}

/// The answers of a [`Model`] until its turns are over.
#[derive(Clone, Copy)]
enum Says {
    /// Calls of the tool.
    Calls,
    /// Calls of the tool, without making the request body: for the cost of a turn apart from its bytes.
    CallsUnsent,
    /// Programs in this medium.
    Code(MediumKind),
}

struct Model {
    wire: Hosted,
    turns: u64,
    latency: Duration,
    says: Says,
    /// The times of its requests, if a bench wants them.
    asked: Option<Arc<Mutex<Vec<Instant>>>>,
}

impl Model {
    fn new(turns: u64, latency: Duration, says: Says) -> Self {
        let nowhere = "http://127.0.0.1:9/v1".parse().expect("an address");
        let wire = Hosted::compatible("scripted", &nowhere, None).expect("an endpoint");
        Self { wire, turns, latency, says, asked: None }
    }

    fn says(&self, request: &Request) -> Response {
        let at = request.utterances;
        let body = match self.says {
            Says::CallsUnsent => 0,
            // A list that cannot be written is our own fault: the measurement must stop.
            Says::Calls | Says::Code(_) => self.wire.body(request).expect("a list can be written").len(),
        };
        match self.says {
            Says::Calls | Says::CallsUnsent if at < self.turns => {
                Response::call(format!("call_{at}"), "look", json!({ "n": at }))
            }
            Says::Calls | Says::CallsUnsent => Response::call("d", "done", json!({ "answer": body })),
            Says::Code(_) if at >= self.turns => Response::code(format!("done({body})")),
            Says::Code(MediumKind::Python) => Response::code(format!("x = sum(range({at}))\nprint(x)")),
            Says::Code(_) => {
                Response::code(format!("var x = 0; for (var i = 0; i < {at}; i++) x += i; console.log(x)"))
            }
        }
    }
}

impl Crystal for Model {
    fn name(&self) -> &str {
        "scripted/model"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        if let Some(asked) = &self.asked {
            asked.lock().expect("nobody panics with it").push(Instant::now());
        }
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        ScriptedCrystal::new("scripted/model", Script::new([self.says(request)])).ask(request, heard).await
    }
}

fn cantrip(model: Model) -> Cantrip {
    let turns = model.turns;
    Cantrip::builder()
        .crystal(model)
        .call(Call::new().system_prompt("You look things up."))
        .gate(builtin::done())
        .gate(look())
        .ward("max_turns", turns + 10)
        .build()
        .expect("it is sound")
}

/// The wall time, and the processor time of all threads.
struct Clock(Instant, Duration);

impl Clock {
    fn start() -> Self {
        Self(Instant::now(), processor())
    }

    fn read(&self) -> (f64, f64) {
        (self.0.elapsed().as_secs_f64(), processor().saturating_sub(self.1).as_secs_f64())
    }
}

/// The processor time of all threads of this process, if the system reports it (Linux).
fn processor() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = |task: std::fs::DirEntry| {
        let told = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(nanos).sum())
}

async fn cast(runtime: &Runtime, cantrip: &Cantrip) {
    let cast = runtime.cast(cantrip, CastOptions::on("go")).await;
    assert!(cast.answer().is_some(), "{:?}", cast.reply());
}

/// Runs some warm-up turns, so that one-time work is done before the measurement.
async fn warm(runtime: &Runtime, says: Says) {
    cast(runtime, &cantrip(Model::new(WARM_TURNS, Duration::ZERO, says))).await;
    CALLS.store(0, Ordering::Relaxed);
}

/// Runs this many agents concurrently, each on its own thread.
async fn agents(runtime: &Runtime, model: Model, agents: usize) -> Value {
    let turns = model.turns * agents as u64;
    let cantrip = cantrip(model);
    let clock = Clock::start();
    join_all((0..agents).map(|_| cast(runtime, &cantrip))).await;
    let (wall, cpu) = clock.read();
    json!({"wall": wall, "cpu": cpu, "turns": turns, "calls": CALLS.load(Ordering::Relaxed)})
}

async fn looped(turns: u64, says: Says) -> Value {
    warm(&Runtime::new(MemoryLoom::new()), says).await;
    agents(&Runtime::new(MemoryLoom::new()), Model::new(turns, Duration::ZERO, says), 1).await
}

async fn durable(folder: &Path, turns: u64, count: usize) -> Value {
    warm(&stored(&folder.join("warm")), Says::Calls).await;
    let kept = folder.join("kept");
    let runtime = stored(&kept);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let model = Model { asked: (count == 1).then(|| asked.clone()), ..Model::new(turns, Duration::ZERO, Says::Calls) };
    let took = agents(&runtime, model, count).await;
    drop(runtime);
    let disk = folder_bytes(&kept);
    let mut took = with(took, "disk", disk.into());
    if count == 1 {
        took = with(took, "bare", bare_commits(folder, turns, disk).into());
    }
    let asked = asked.lock().expect("nobody panics with it");
    let mut each: Vec<_> = asked.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    each.sort_by(f64::total_cmp);
    match each.get(each.len() / 2) {
        Some(half) => with(took, "p50", (*half).into()),
        None => took,
    }
}

/// The time for the same bytes in bare transactions: two of one row per turn, because a turn has two steps.
fn bare_commits(folder: &Path, turns: u64, bytes: u64) -> f64 {
    let commits = usize::try_from(turns * 2).expect("short");
    let each = usize::try_from(bytes).expect("short") / commits;
    bare::Sqlite::new(&folder.join("bare.db"), each).time(commits).as_secs_f64()
}

/// The last request of an agent ends its cast.
async fn fleet(runtime: Runtime, turns: u64, count: usize, latency: Duration) -> Value {
    let took = agents(&runtime, Model::new(turns - 1, latency, Says::Calls), count).await;
    with(took, "ideal", (turns as f64 * latency.as_secs_f64()).into())
}

fn with(mut value: Value, key: &str, told: Value) -> Value {
    value[key] = told;
    value
}

async fn fork(folder: &Path, turns: u64) -> Value {
    let runtime = stored(&folder.join("kept"));
    let whole = cantrip(Model::new(turns, Duration::ZERO, Says::Calls));
    let cast = runtime.cast(&whole, CastOptions::on("go")).await;
    let leaf = cast.outcome.and_then(|outcome| outcome.leaf).expect("a turn");
    let thread = runtime.loom().thread(leaf).await.expect("readable");
    let middle = thread.turns[usize::try_from(turns / 2).expect("short") - 1].id;
    let before = CALLS.load(Ordering::Relaxed);
    let ends = cantrip(Model::new(0, Duration::ZERO, Says::Calls));
    let clock = Clock::start();
    let fork = runtime.fork(&ends, middle, ForkOptions::on("and now?")).await;
    let (wall, cpu) = clock.read();
    assert!(fork.answer().is_some(), "{:?}", fork.reply());
    json!({"wall": wall, "cpu": cpu, "calls_again": CALLS.load(Ordering::Relaxed) - before})
}

/// A crystal that sends one long text word by word.
struct Talker(u64);

impl Crystal for Talker {
    fn name(&self) -> &str {
        "scripted/talker"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let mut said = Assembler::new(self.name(), request, heard);
        for at in 0..self.0 {
            if let Err(cause) = said.text(if at % 2 == 0 { "word " } else { "after " }) {
                return Err(said.fail(cause, Charge::Unknown));
            }
        }
        said.finish(AnswerEnd::new("talker", Finish::Stop))
    }
}

/// Turns the events it sees into upserts, as every viewer does.
struct Viewer {
    clock: MachineClock,
    seen: Arc<Mutex<(Processor, u64)>>,
}

impl Watcher for Viewer {
    fn on_event(&self, event: StreamEvent) {
        let (processor, upserts) = &mut *self.seen.lock().expect("nobody panics with it");
        let mut emitted = Vec::new();
        processor.process(&event, self.clock.now(), &mut emitted).expect("within every limit");
        *upserts += emitted.len() as u64;
    }
}

/// An observed cast with this many deltas in one item: from the crystal to upserts.
async fn stream(deltas: u64) -> Value {
    let seen = Arc::new(Mutex::new((Processor::new(Options::default()), 0)));
    let runtime =
        Runtime::new(MemoryLoom::new()).with_watcher(Viewer { clock: MachineClock::new(), seen: seen.clone() });
    let cantrip = Cantrip::builder()
        .crystal(Talker(deltas))
        .call(Call::new().system_prompt("You talk."))
        .gate(builtin::done())
        .ward("max_turns", 1)
        .build()
        .expect("it is sound");
    let clock = Clock::start();
    cast(&runtime, &cantrip).await;
    let (wall, cpu) = clock.read();
    let upserts = seen.lock().expect("nobody panics with it").1;
    json!({"wall": wall, "cpu": cpu, "deltas": deltas, "upserts": upserts})
}

async fn code(kind: MediumKind, turns: u64) -> Value {
    let began = Instant::now();
    let medium: Arc<dyn Medium> = match kind {
        MediumKind::Python => {
            let own = std::env::var_os("BENCH_CANTRIP").map(PathBuf::from).expect("BENCH_CANTRIP names the binary");
            Arc::new(Python::start(Workers::worker(own)).expect("it starts"))
        }
        MediumKind::Javascript
        | MediumKind::Conversation
        | MediumKind::Shell
        | MediumKind::Browser
        | MediumKind::Human => Arc::new(Javascript::start(Threads::default()).expect("it starts")),
    };
    let cantrip = Cantrip::builder()
        .crystal(Model::new(turns, Duration::ZERO, Says::Code(kind)))
        .medium(kind)
        .serve_medium(medium)
        .gate(builtin::done())
        .ward("max_turns", turns + 10)
        .build()
        .expect("it is sound");
    let ready = began.elapsed().as_secs_f64();
    let runtime = Runtime::new(MemoryLoom::new());
    let clock = Clock::start();
    cast(&runtime, &cantrip).await;
    let (wall, cpu) = clock.read();
    json!({"wall": wall, "cpu": cpu, "turns": turns, "ready": ready})
}

fn stored(folder: &Path) -> Runtime {
    std::fs::create_dir_all(folder).expect("a folder to write in");
    Runtime::new(AnyLoom::new(Store::sqlite(folder.join("kept.db")).expect("a store")))
}

fn folder_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).expect("a folder").flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum()
}

fn peak_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok())
}

async fn run(name: &str, given: &HashMap<String, u64>, folder: &Path) -> Option<Value> {
    let turns = given.get("turns").copied().unwrap_or(0);
    let agents = given.get("agents").map_or(1, |agents| usize::try_from(*agents).unwrap_or(usize::MAX));
    let latency = Duration::from_millis(given.get("latency_ms").copied().unwrap_or(0));
    RESULTS.set((0..turns.max(WARM_TURNS)).map(said::words).collect()).expect("once");
    Some(match name {
        "loop" => looped(turns, Says::Calls).await,
        "loop_unsent" => looped(turns, Says::CallsUnsent).await,
        "durable" => durable(folder, turns, agents).await,
        "fleet" => fleet(Runtime::new(MemoryLoom::new()), turns, agents, latency).await,
        "fleet_durable" => fleet(stored(folder), turns, agents, latency).await,
        "fork" => fork(folder, turns).await,
        "stream" => stream(given.get("deltas").copied().unwrap_or(0)).await,
        "javascript" => code(MediumKind::Javascript, turns).await,
        "python" => code(MediumKind::Python, turns).await,
        _ => return None,
    })
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let given = arguments.filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), value.parse().ok()?))
    });
    let given: HashMap<String, u64> = given.collect();
    let disk = std::env::var_os("BENCH_DISK").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(disk).expect("a folder to write in");
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    match executor.expect("an executor").block_on(run(&name, &given, folder.path())) {
        Some(took) => println!("{}", with(took, "peak_kib", peak_kib().into())),
        None => {
            eprintln!(
                "Usage: alongside loop|loop_unsent|durable|fleet|fleet_durable|fork|javascript|python turns=N [agents=N] \
                 [latency_ms=N]\n       alongside stream deltas=N"
            );
            std::process::exit(2);
        }
    }
}
