//! What does it cost to make a turn durable, and how many bytes does it take?
//!
//! A turn here has the writes of a turn that calls a gate: two steps, four records, a result of 1 KiB. The floors are
//! measured beside it, on the same disk in the same minute: one flushed write of the same bytes, and one SQLite
//! transaction with a row of the same bytes. Wall time, because the wait for the disk counts.

pub(crate) mod floor;

use std::path::Path;
use std::time::{Duration, Instant};

use cantrip_canon::LoomId;
use cantrip_loom::{Closing, Environment, Fork, Loom, Origin};
use cantrip_loom_suite::{Episode, LoomWriter};
use cantrip_store::Store;
use futures_util::future::join_all;
use serde_json::json;

use crate::said::{RESULT_BYTES, noise, words};

/// The turns that each row of the table makes durable, shared among its writers.
const TURNS: usize = 2_048;
const ROUNDS: usize = 3;

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime starts")
}

/// The kind of a gate's result: a kilobyte that no two turns share. Stored data is compressed, so the kind matters.
#[derive(Clone, Copy)]
enum Likeness {
    /// Random words of a language, as in prose and logs.
    Words,
    /// Random letters and digits, as in keys and packed files: they cannot be compressed.
    Noise,
}

impl Likeness {
    fn result(self, n: u64) -> String {
        match self {
            Self::Words => words(n),
            Self::Noise => noise(n),
        }
    }
}

async fn cast(store: &Store, seed: u64) -> (LoomWriter<'_, Store>, Episode) {
    let mut weaver = LoomWriter::seeded(store, seed);
    weaver.loom = LoomId::from_bytes([1; 16]);
    let episode = weaver.cast("measure").await;
    (weaver, episode)
}

async fn turn(weaver: &mut LoomWriter<'_, Store>, episode: &mut Episode) {
    turn_like(weaver, episode, Likeness::Words).await;
}

async fn turn_like(weaver: &mut LoomWriter<'_, Store>, episode: &mut Episode, like: Likeness) {
    let said = like.result(episode.sequence);
    weaver.turn(episode, "read", json!(said), Closing::Open).await;
}

/// Returns the time that `writers` take to make their share of [`TURNS`] durable.
fn concurrent(store: &Store, runtime: &tokio::runtime::Runtime, writers: usize, seeds: &mut u64) -> Duration {
    let first = *seeds;
    *seeds += writers as u64;
    runtime.block_on(async {
        let mut ready = join_all((0..writers as u64).map(|n| cast(store, first + n))).await;
        let start = Instant::now();
        join_all(ready.iter_mut().map(|(weaver, episode)| async {
            for _ in 0..TURNS / writers {
                turn(weaver, episode).await;
            }
        }))
        .await;
        start.elapsed()
    })
}

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn a_second(count: usize, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

/// The bytes of the records of a turn, which a floor has to write too: two steps.
fn bytes_of_a_turn() -> usize {
    let runtime = runtime();
    runtime.block_on(async {
        let store = Store::in_memory().expect("memory is there");
        let (mut weaver, mut episode) = cast(&store, 1).await;
        turn(&mut weaver, &mut episode).await;
        let records: Vec<_> = futures_util::TryStreamExt::try_collect(cantrip_loom::Journal::read(
            &store,
            episode.run,
            cantrip_loom::Seq::new(3),
        ))
        .await
        .expect("readable");
        records.iter().map(|record: &cantrip_loom::Record| record.payload.len()).sum()
    })
}

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    let bytes = bytes_of_a_turn();
    println!("store: durable turns of two steps, {bytes} bytes of records each ({RESULT_BYTES} of them a result)");
    println!("on {}, wall time, median of {ROUNDS} rounds\n", folder.path().display());
    throughput(folder.path(), bytes);
    lengths(folder.path());
}

fn throughput(folder: &Path, bytes: usize) {
    let runtime = runtime();
    let postgres = std::env::var("CANTRIP_TEST_POSTGRES").ok().filter(|url| !url.is_empty());
    let mut stores = vec![("SQLite", Store::sqlite(folder.join("loom.db")).expect("a store"))];
    match &postgres {
        Some(url) => stores.push(("Postgres", Store::postgres_in(url, &schema()).expect("a store"))),
        None => println!("(no Postgres: set CANTRIP_TEST_POSTGRES to measure one too)\n"),
    }
    let mut file = floor::File::new(&folder.join("floor.bin"), bytes / 2);
    let mut sqlite = floor::Sqlite::new(&folder.join("floor.db"), bytes / 2);
    let mut server = postgres.as_deref().map(|url| floor::Postgres::new(url, &schema(), bytes / 2));
    let (mut flushed, mut inserted, mut committed) = (Vec::new(), Vec::new(), Vec::new());
    let writers = [1, 16, 256];
    let mut taken = vec![vec![Vec::new(); writers.len()]; stores.len()];
    let mut seeds = 1_000;
    for _ in 0..ROUNDS {
        // Two steps per turn: two flushes, two transactions.
        flushed.push(file.time(2 * TURNS));
        inserted.push(sqlite.time(2 * TURNS));
        if let Some(server) = &mut server {
            committed.push(server.time(2 * TURNS));
        }
        for (at, (_, store)) in stores.iter().enumerate() {
            for (row, writers) in writers.iter().enumerate() {
                taken[at][row].push(concurrent(store, &runtime, *writers, &mut seeds));
            }
        }
    }
    let (flushed, inserted) = (median(flushed), median(inserted));
    println!("| what | turns a second | per turn | ratios |");
    println!("| --- | --- | --- | --- |");
    let row = |what: &str, time: Duration, ratios: String| {
        let each = time.as_secs_f64() * 1e6 / TURNS as f64;
        println!("| {what} | {:.0} | {each:.0} us | {ratios} |", a_second(TURNS, time));
    };
    row("floor: two flushed writes of the same bytes", flushed, String::new());
    row(
        "floor: two SQLite transactions of one row each",
        inserted,
        format!("{:.2} x a flushed write", over(inserted, flushed)),
    );
    let committed = (!committed.is_empty()).then(|| median(committed));
    if let Some(committed) = committed {
        row(
            "floor: two Postgres transactions of one row each",
            committed,
            format!("{:.2} x a flushed write", over(committed, flushed)),
        );
    }
    for ((name, _), taken) in stores.iter().zip(taken) {
        for (writers, times) in writers.iter().zip(taken) {
            let time = median(times);
            let own = if *name == "Postgres" { committed.unwrap_or(inserted) } else { inserted };
            let ratios =
                format!("{:.2} x its own transactions; {:.2} x flushed writes", over(time, own), over(time, flushed));
            row(&format!("{name}, {writers} at once"), time, ratios);
        }
    }
    println!();
}

pub(crate) fn over(time: Duration, floor: Duration) -> f64 {
    time.as_secs_f64() / floor.as_secs_f64()
}

pub(crate) fn schema() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("bench_{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Measures the bytes on the disk after the log was checkpointed.
pub(crate) fn bytes() {
    let folder = tempfile::tempdir().expect("a folder to write in");
    let folder = folder.path();
    println!("| turns with a result of 1 KiB | bytes on disk | said in them | ratio |");
    println!("| --- | --- | --- | --- |");
    let row = |what: &str, on_disk: u64, said: u64| {
        let ratio = if said == 0 { String::new() } else { format!("{:.2} x", on_disk as f64 / said as f64) };
        println!("| {what} | {on_disk} | {said} | {ratio} |");
    };
    let (empty, _) = size(folder, 0, Likeness::Words);
    row("none: the tables and indexes of an empty store", empty, 0);
    for (like, named) in [(Likeness::Words, "words"), (Likeness::Noise, "noise")] {
        let (fewer, more) = (size(folder, 200, like), size(folder, 500, like));
        row(&format!("200 of {named}"), fewer.0, fewer.1);
        row(&format!("500 of {named}"), more.0, more.1);
        row(&format!("each of the 300 of {named} between"), (more.0 - fewer.0) / 300, (more.1 - fewer.1) / 300);
    }
    println!();
}

/// The bytes of this many turns on the disk, and the bytes of their content.
fn size(folder: &Path, turns: u64, like: Likeness) -> (u64, u64) {
    let path = folder.join(format!("size-{turns}-{}.db", like as u8));
    let said = runtime().block_on(async {
        let store = Store::sqlite(&path).expect("a store");
        if turns == 0 {
            return 0;
        }
        let (mut weaver, mut episode) = cast(&store, turns).await;
        for _ in 0..turns {
            turn_like(&mut weaver, &mut episode, like).await;
        }
        let thread = store.thread(episode.leaf.expect("a turn")).await.expect("readable");
        // The text of the crystal and the results: not ids, times, numbers or hashes.
        let said = |turn: &cantrip_loom::Turn| {
            let args = serde_json::to_string(&turn.gate_calls[0].args).map_or(0, |args| args.len());
            turn.utterance_text().len() + args + RESULT_BYTES
        };
        thread.turns.iter().map(said).sum::<usize>() as u64
    });
    (carried_over(&path), said)
}

/// The size of a database after a checkpoint of its log into its file, so that no data is beside it.
fn carried_over(path: &Path) -> u64 {
    let connection = rusqlite::Connection::open(path).expect("a database");
    let (busy, log): (i64, i64) = connection
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("it carries over");
    assert_eq!((busy, log), (0, 0), "the log is empty and nobody writes");
    std::fs::metadata(path).expect("a file").len()
}

/// Measures the effect of a long thread on the next turn, on a fork and on a read of its end.
fn lengths(folder: &Path) {
    let store = Store::sqlite(folder.join("long.db")).expect("a store");
    runtime().block_on(async {
        let (mut weaver, mut episode) = cast(&store, 77).await;
        let mut at = Vec::new();
        println!("| one thread | time |");
        println!("| --- | --- |");
        for depth in [100, 1_000, 10_000] {
            while episode.sequence < depth - 50 {
                turn(&mut weaver, &mut episode).await;
            }
            let mut times = Vec::new();
            for _ in 0..50 {
                let start = Instant::now();
                turn(&mut weaver, &mut episode).await;
                times.push(start.elapsed());
            }
            let time = median(times);
            at.push(time);
            println!(
                "| a turn at depth {depth}, median of 50 | {:.0} us ({:.2} x that at 100) |",
                micros(time),
                over(time, at[0])
            );
            let leaf = episode.leaf.expect("a turn");
            let (mut forks, mut tails) = (Vec::new(), Vec::new());
            for _ in 0..9 {
                let start = Instant::now();
                let intent = weaver.intent("another way");
                let origin = Origin::Fork(Fork { turn: leaf, environment: Environment::None });
                let (step, _) = weaver.open(origin, intent, Some(leaf), episode.sequence);
                weaver.commit(step).await;
                forks.push(start.elapsed());
                let start = Instant::now();
                assert_eq!(store.tail(leaf, 50).await.expect("readable").len(), 50);
                tails.push(start.elapsed());
            }
            println!("| a fork at depth {depth} | {:.0} us |", micros(median(forks)));
            println!("| its last 50 turns, read | {:.0} us |", micros(median(tails)));
        }
        let leaf = episode.leaf.expect("a turn");
        let start = Instant::now();
        let turns = store.path(leaf).await.expect("readable").len();
        println!("| all {turns} turns, read | {:.0} us |", micros(start.elapsed()));
        let start = Instant::now();
        let records = store.verify().await.expect("sound").records;
        println!("| all {records} records, verified | {:.0} us |", micros(start.elapsed()));
    });
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
