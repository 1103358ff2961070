//! Our side of the comparison with other runtimes: the same workloads as `bench/peers/*.py`, and the same answer, one line
//! of JSON. `bench/run` calls it; `cargo run --release -p cantrip-bench --bin alongside -- loop turns=200` does too.
//!
//! The crystal is scripted like the models of the peers: it makes the body that an OpenAI-compatible provider would be sent,
//! with the code that sends it there, and calls a tool that gives a kilobyte until its turns are over.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cantrip::circle::gate::builtin;
use cantrip::circle::javascript::{self, Javascript};
use cantrip::circle::python::{self, Python};
use cantrip::circle::{Medium, MediumKind};
use cantrip::crystal::{Answer, Compatible, Crystal, Failure, Request, Response, Script, Scripted, Sink};
use cantrip::loom::{AnyLoom, Loom, Memory};
use cantrip::{Call, Cantrip, Casting, Forking, Runtime};
use cantrip_store::Store;
use futures_util::future::join_all;
use serde_json::{Value, json};

const RESULT_BYTES: usize = 1_024;

/// What the tool gives: a kilobyte that no two turns share.
fn result(n: u64) -> String {
    let mut text = format!("{n:020} ");
    while text.len() < RESULT_BYTES {
        text += "the quick brown fox jumps over the lazy dog and looks back at it; ";
    }
    text.truncate(RESULT_BYTES);
    text
}

/// How often the tool was called.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Looks something up.
#[cantrip::gate]
async fn look(
    /// Which.
    n: u64,
) -> String {
    CALLS.fetch_add(1, Ordering::Relaxed);
    result(n)
}

/// Calls the tool, or says a program, until its turns are over.
struct Model {
    wire: Compatible,
    turns: u64,
    latency: Duration,
    code: Option<MediumKind>,
}

impl Model {
    fn new(turns: u64, latency: Duration, code: Option<MediumKind>) -> Self {
        let nowhere = "http://127.0.0.1:9/v1".parse().expect("an address");
        Self { wire: Compatible::new("scripted", &nowhere, None).expect("an endpoint"), turns, latency, code }
    }

    fn says(&self, request: &Request) -> Response {
        let at = request.utterances;
        // A list that could not be written would be a fault of ours: the measurement must not go on.
        let body = self.wire.body(request).expect("a list can be written");
        match self.code {
            None if at < self.turns => Response::call(format!("call_{at}"), "look", json!({ "n": at })),
            None => Response::call("d", "done", json!({ "answer": body.len() })),
            Some(_) if at >= self.turns => Response::code(format!("done({})", body.len())),
            Some(MediumKind::Python) => Response::code(format!("x = sum(range({at}))\nprint(x)")),
            Some(_) => Response::code(format!("var x = 0; for (var i = 0; i < {at}; i++) x += i; console.log(x)")),
        }
    }
}

impl Crystal for Model {
    fn name(&self) -> &str {
        "scripted/model"
    }

    async fn ask(&self, request: &Request, heard: &dyn Sink) -> Result<Answer, Failure> {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        Scripted::new("scripted/model", Script::new([self.says(request)])).ask(request, heard).await
    }
}

fn cantrip(turns: u64, latency: Duration) -> Cantrip {
    Cantrip::builder()
        .crystal(Model::new(turns, latency, None))
        .call(Call::new().system_prompt("You look things up."))
        .gate(builtin::done())
        .gate(look())
        .ward("max_turns", turns + 10)
        .build()
        .expect("it is sound")
}

/// Time on the wall, and of all threads on a processor.
struct Clock(Instant, Duration);

impl Clock {
    fn start() -> Self {
        Self(Instant::now(), processor())
    }

    fn read(&self) -> (f64, f64) {
        (self.0.elapsed().as_secs_f64(), processor().saturating_sub(self.1).as_secs_f64())
    }
}

/// What all threads of this process have had of processors, where the system tells (Linux).
fn processor() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let nanos = |task: std::fs::DirEntry| {
        let told = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        told.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(nanos).sum())
}

async fn cast(runtime: &Runtime, cantrip: &Cantrip) {
    let cast = runtime.cast(cantrip, Casting::on("go")).await;
    assert!(cast.answer().is_some(), "{:?}", cast.reply());
}

async fn one(runtime: Runtime, turns: u64, agents: usize, latency: Duration) -> Value {
    let cantrip = cantrip(turns, latency);
    let clock = Clock::start();
    join_all((0..agents).map(|_| cast(&runtime, &cantrip))).await;
    let (wall, cpu) = clock.read();
    json!({"wall": wall, "cpu": cpu, "turns": turns * agents as u64, "calls": CALLS.load(Ordering::Relaxed)})
}

fn with(mut value: Value, key: &str, told: Value) -> Value {
    value[key] = told;
    value
}

async fn fork(folder: &Path, turns: u64) -> Value {
    let runtime = Runtime::new(Store::sqlite(folder.join("kept.db")).expect("a store"));
    let whole = cantrip(turns, Duration::ZERO);
    let cast = runtime.cast(&whole, Casting::on("go")).await;
    let leaf = cast.outcome.and_then(|outcome| outcome.leaf).expect("a turn");
    let thread = runtime.loom().thread(leaf).await.expect("readable");
    let middle = thread.turns[usize::try_from(turns / 2).expect("short") - 1].id;
    let before = CALLS.load(Ordering::Relaxed);
    let ends = cantrip(0, Duration::ZERO);
    let clock = Clock::start();
    let fork = runtime.fork(&ends, middle, Forking::on("and now?")).await;
    let (wall, cpu) = clock.read();
    assert!(fork.answer().is_some(), "{:?}", fork.reply());
    json!({"wall": wall, "cpu": cpu, "calls_again": CALLS.load(Ordering::Relaxed) - before})
}

async fn code(kind: MediumKind, turns: u64) -> Value {
    let began = Instant::now();
    let medium: Arc<dyn Medium> = match kind {
        MediumKind::Python => {
            let own = std::env::var_os("BENCH_CANTRIP").map(PathBuf::from).expect("BENCH_CANTRIP names the binary");
            Arc::new(Python::start(python::Options::worker(own)).expect("it starts"))
        }
        MediumKind::Javascript
        | MediumKind::Conversation
        | MediumKind::Shell
        | MediumKind::Browser
        | MediumKind::Human => Arc::new(Javascript::start(javascript::Options::default()).expect("it starts")),
    };
    let cantrip = Cantrip::builder()
        .crystal(Model::new(turns, Duration::ZERO, Some(kind)))
        .medium(kind)
        .served_by(medium)
        .gate(builtin::done())
        .ward("max_turns", turns + 10)
        .build()
        .expect("it is sound");
    let ready = began.elapsed().as_secs_f64();
    let runtime = Runtime::new(Memory::new());
    let clock = Clock::start();
    cast(&runtime, &cantrip).await;
    let (wall, cpu) = clock.read();
    json!({"wall": wall, "cpu": cpu, "turns": turns, "ready": ready})
}

fn stored(folder: &Path) -> (Runtime, PathBuf) {
    let path = folder.join("kept.db");
    (Runtime::new(AnyLoom::new(Store::sqlite(&path).expect("a store"))), path)
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
    let ideal = turns as f64 * latency.as_secs_f64();
    Some(match name {
        "loop" => one(Runtime::new(Memory::new()), turns, 1, Duration::ZERO).await,
        "durable" => {
            let (runtime, _) = stored(folder);
            let took = one(runtime.clone(), turns, agents, Duration::ZERO).await;
            drop(runtime);
            with(took, "disk", folder_bytes(folder).into())
        }
        // The last request is the one that ends it.
        "fleet" => with(one(Runtime::new(Memory::new()), turns - 1, agents, latency).await, "ideal", ideal.into()),
        "fleet_durable" => with(one(stored(folder).0, turns - 1, agents, latency).await, "ideal", ideal.into()),
        "fork" => fork(folder, turns).await,
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
                "Usage: alongside loop|durable|fleet|fleet_durable|fork|javascript|python turns=N [agents=N] [latency_ms=N]"
            );
            std::process::exit(2);
        }
    }
}
