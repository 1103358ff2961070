//! Measures the JavaScript sandbox and prints what it found: memory at rest and in a gate, cold start, switches, and by
//! how much one native call can pass its limit of processor time.
//!
//! `cargo run --release -p cantrip-medium-javascript --example sandbox_bench [-- rest|gate|start|switch|over [CODE...]]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use cantrip_canon::Timestamp;
use cantrip_circle::arguments::Property;
use cantrip_circle::code::{GateFunction, ProgramLimits, SandboxSpec};
use cantrip_medium_javascript::{Answer, Event, FinishedProgram, Host, Options, Program, Sandbox};

const MANY: usize = 10_000;
const STARTS: u32 = 500;
const GATES: [&str; 10] =
    ["done", "submit_answer", "read", "list", "search", "write", "edit", "call_agent", "call_agent_batch", "ask_human"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let what = words.next();
    let asked = |name: &str| what.as_deref().is_none_or(|what| what == name);
    if asked("start") {
        cold_start().await?;
    }
    if asked("switch") {
        switches().await?;
    }
    if asked("over") {
        overshoot(words.collect()).await?;
    }
    if asked("rest") {
        parked("let x = 1; x + 1", "at rest").await?;
    }
    if asked("gate") {
        parked("let x = read('a'); x", "waiting in a gate").await?;
    }
    Ok(())
}

fn spec(limits: ProgramLimits) -> Arc<SandboxSpec> {
    let properties = || vec![Property::new("value", true), Property::new("more", true)];
    let gates = GATES.iter().map(|name| GateFunction { name: (*name).into(), properties: properties() }).collect();
    Arc::new(SandboxSpec { seed: 7, limits, gates })
}

fn program(source: &str) -> Result<Program, Box<dyn std::error::Error>> {
    Ok(Program::new("turn-1.js", source, Timestamp::EPOCH)?)
}

fn host(threads: usize) -> std::io::Result<Host> {
    Options { threads }.start()
}

/// The processor time of all threads of this process. A busy neighbour does not count.
fn processor_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(spent.tv_sec).unwrap_or(0), u32::try_from(spent.tv_nsec).unwrap_or(0))
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

async fn finished(sandbox: Sandbox, program: Program) -> Result<FinishedProgram, Box<dyn std::error::Error>> {
    match sandbox.run(program).await? {
        Event::Finished(finished) => Ok(finished),
        Event::Call(_) => Err("a program of this measurement calls no gate".into()),
    }
}

async fn cold_start() -> Result<(), Box<dyn std::error::Error>> {
    let host = host(1)?;
    let spec = spec(ProgramLimits::default());
    let mut taken = Vec::new();
    let before = processor_time();
    for _ in 0..STARTS {
        let start = Instant::now();
        let done = finished(host.sandbox(Arc::clone(&spec)), program("1")?).await?;
        taken.push(start.elapsed());
        drop(done);
    }
    let processor = (processor_time() - before) / STARTS;
    taken.sort_unstable();
    println!(
        "cold start with its first program: fastest {:?}, p50 {:?}, p99 {:?}; {processor:?} of a processor each, freeing it included",
        taken[0],
        taken[taken.len() / 2],
        taken[taken.len() * 99 / 100]
    );
    let mut sandbox = host.sandbox(spec);
    let start = Instant::now();
    for _ in 0..500 {
        sandbox = finished(sandbox, program("let x = 1; x")?).await?.sandbox.ok_or("rolled back")?;
    }
    println!("a further program: {:?} each", start.elapsed() / 500);
    Ok(())
}

async fn switches() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = host(1)?.sandbox(spec(ProgramLimits::default()));
    let start = Instant::now();
    let mut event = sandbox.run(program("for (let i = 0; i < 100000; i++) read(i)")?).await?;
    let mut calls = 0_u32;
    while let Event::Call(suspended) = event {
        calls += 1;
        event = suspended.answer(Answer::Value(1.into()), Timestamp::EPOCH).await?;
    }
    println!("{calls} gate calls answered: {:?} each, thread hops included", start.elapsed() / calls.max(1));
    Ok(())
}

async fn parked(source: &str, how: &str) -> Result<(), Box<dyn std::error::Error>> {
    let host = host(2)?;
    let spec = spec(ProgramLimits::default());
    let before = resident();
    let start = Instant::now();
    let mut events = Vec::with_capacity(MANY);
    for _ in 0..MANY {
        events.push(host.sandbox(Arc::clone(&spec)).run(program(source)?).await?);
    }
    let after = resident();
    println!(
        "{MANY} sandboxes {how}: {} MiB resident, {} KiB each, built in {:?}",
        (after - before) >> 20,
        ((after - before) / MANY as u64) >> 10,
        start.elapsed()
    );
    let start = Instant::now();
    drop(events);
    drop(host);
    println!(
        "  freed in {:?}; {} MiB stay with the allocator",
        start.elapsed(),
        resident().saturating_sub(before) >> 20
    );
    Ok(())
}

/// Programs that spend their time inside of natives which poll late or not at all.
const NATIVE: &[&str] = &[
    "for (;;);",
    "/(a+)+$/.test('a'.repeat(64) + 'b')",
    "var a = 2n ** 500000n; for (;;) a * a",
    "(2n ** 1000000n).toString()",
    "for (var s = 'x'.repeat(2e7);;) s.indexOf('y')",
    "'a'.repeat(2e7).indexOf('a'.repeat(1e4) + 'b')",
    "var a = 'x'.repeat(2e7) + 'a', b = 'x'.repeat(2e7) + 'b'; a.charCodeAt(0); b.charCodeAt(0); for (;;) a === b",
    "[].includes.call({length: 2 ** 53 - 1}, 1)",
    "[].fill.call({length: 2 ** 53 - 1}, 1)",
    "[].reverse.call({length: 2 ** 53 - 1})",
    "[].join.call({length: 2 ** 32})",
    "[].copyWithin.call({length: 2 ** 53 - 1}, 0, 1)",
    "Array(2 ** 32 - 1).sort()",
    "Array(2 ** 32 - 1).flat()",
    "Array(2 ** 32 - 1).splice(0, 2 ** 31)",
    "Array(2 ** 32 - 1).slice(1)",
    "Array(2 ** 32 - 1).shift()",
    "Array(2 ** 32 - 1).unshift(1)",
    "Array(2 ** 32 - 1).concat([1])",
    "Array(2 ** 32 - 1).toString()",
    "JSON.stringify(Array(2 ** 32 - 1))",
    "var a = Array(3e5).fill('x'.repeat(1e6)); a.sort()",
    "Array.from({length: 5e5}, (_, i) => i).sort()",
    "new Float64Array(5e6).sort((a, b) => b - a)",
    "for (;;) 'x'.repeat(2e7)",
    "'x'.repeat(2e7).split('')",
    "'x'.repeat(1e7).replaceAll('x', 'yy')",
    "'\\u00e9'.repeat(1e7).normalize('NFD')",
    "new Uint8Array(5e7).sort()",
    "for (;;) new Float64Array(5e6).map((_, i) => -i).sort()",
    "for (var s = 'a'.repeat(1e6);;) s.match(/a/g)",
    "var a = []; for (let i = 0; i < 60; i++) a = [a, a]; JSON.stringify(a)",
    "for (var t = '[' + '{\"a\":[1,2,3]},'.repeat(1e5) + '1]';;) JSON.parse(t)",
    "var a = 3n ** 100000n; for (;;) a.toString()",
];

async fn overshoot(given: Vec<String>) -> Result<(), Box<dyn std::error::Error>> {
    let limits = ProgramLimits { cpu_ms: 500, ..ProgramLimits::default() };
    let programs = if given.is_empty() { NATIVE.iter().map(|code| (*code).to_owned()).collect() } else { given };
    for code in programs {
        let host = host(1)?;
        let sandbox = host.sandbox(spec(limits));
        let start = Instant::now();
        let run = tokio::spawn(sandbox.run(program(&code)?));
        match tokio::time::timeout(Duration::from_secs(30), run).await {
            Ok(event) => {
                let took = start.elapsed();
                match event? {
                    Ok(Event::Finished(done)) => {
                        let over = done.cpu.saturating_sub(Duration::from_millis(limits.cpu_ms));
                        let error = done.output.error.map(|error| error.message);
                        println!("{over:>12.1?} over, {:?} {error:?}: {code}", done.output.limit);
                    }
                    Ok(Event::Call(_)) => {}
                    Err(lost) => println!("{took:>12.1?} until {lost}: {code}"),
                }
            }
            Err(_) => println!("     > 30 s and still running: {code}"),
        }
        // A thread that is stuck in a native is left behind.
        std::mem::forget(host);
    }
    Ok(())
}
