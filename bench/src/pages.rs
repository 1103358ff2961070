//! The time of the reads behind a page, on large and on small stores.
//!
//! Everything is read from one SQLite file, as a server does it. A bare number says as much about the machine as about
//! the code, so each row has the ratio to the same read on a small store, or at another place of the same thread. Wall
//! time, because a page waits for the disk.

use std::time::{Duration, Instant};

use cantrip::reply::codes;
use cantrip_canon::{LoomId, TurnId};
use cantrip_loom::{
    CallId, CallWork, Closing, Environment, Fork, Journal, Loom, Origin, Overview, PageRequest, RecordDraft, RunKind,
    RunState, Step, SummaryFilter, TruncationReason, WindowPlace,
};
use cantrip_loom_suite::{Episode, LoomWriter, at, closed, settled, started, utterance};
use cantrip_store::Store;
use futures_util::future::join_all;
use serde_json::json;

use crate::store::{over, runtime};

/// The runs of the small and of the large store.
const RUNS: [usize; 2] = [1_000, 100_000];
/// The turns of the long thread.
const TURNS: u64 = 100_000;
/// The threads of the loom that is drawn.
const THREADS: usize = 1_000;
/// The own turns of each of the two threads that are compared.
const COMPARED: usize = 1_000;
/// The turns of a window, and the marks of a spine, as a page asks for them.
const WINDOW: usize = 40;
const MARKS: usize = 240;
/// How often each read is timed.
const LOOKS: usize = 200;
/// How many steps are written at once while a store is filled.
const AT_ONCE: usize = 200;

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    println!("pages: the reads behind a page, on SQLite at {}, wall time\n", folder.path().display());
    println!("| what | p50 | p95 | promised | ratio |");
    println!("| --- | --- | --- | --- | --- |");
    lists(folder.path());
    let store = Store::sqlite(folder.path().join("thread.db")).expect("a store");
    windows(&store);
    drop(store);
    let store = Store::sqlite(folder.path().join("loom.db")).expect("a store");
    drawings(&store);
    println!();
}

/// The median and the 95th percentile of many reads.
#[derive(Clone, Copy)]
struct Looks {
    half: Duration,
    nearly: Duration,
}

/// Times a read again and again, after one that is not counted.
async fn time<F: Future<Output = usize>>(looks: usize, look: impl Fn() -> F) -> Looks {
    assert!(look().await > 0, "there is something to read");
    let mut times = Vec::with_capacity(looks);
    for _ in 0..looks {
        let start = Instant::now();
        look().await;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Looks { half: times[times.len() / 2], nearly: times[times.len() * 95 / 100] }
}

fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn row(what: &str, looks: Looks, promised: &str, ratio: &str) {
    println!("| {what} | {} | {} | {promised} | {ratio} |", millis(looks.half), millis(looks.nearly));
}

/// Writes one short run. Of fifty, one is cut off, one goes on, and eight cost something.
async fn short_run(store: &Store, seed: u64) {
    let mut weaver = LoomWriter::seeded(store, seed);
    weaver.loom = LoomId::from_bytes([1; 16]);
    weaver.skip(seed * 10);
    let mut episode = weaver.cast(&format!("count the lines of file {seed}")).await;
    match seed % 50 {
        0 => weaver.truncate(&episode, TruncationReason::MaxTurns).await,
        1 => store.release(&episode.lease).await.expect("it is held"),
        2..=9 => {
            weaver.paid(&mut episode, "read", codes::GATE_OK.any(), 100).await;
            weaver.done(&mut episode, json!(seed)).await;
        }
        _ => {
            weaver.done(&mut episode, json!(seed)).await;
        }
    }
}

fn lists(folder: &std::path::Path) {
    let words = |text: &str| Some(text.to_owned());
    let filters = [
        ("without a filter", SummaryFilter::default()),
        ("state truncated", SummaryFilter { states: vec![RunState::Truncated], ..SummaryFilter::default() }),
        ("gate read", SummaryFilter { gate: words("read"), ..SummaryFilter::default() }),
        ("a code", SummaryFilter { code: words(codes::WARD_REACHED.as_str()), ..SummaryFilter::default() }),
        ("a cost", SummaryFilter { cost_micros_min: Some(100), ..SummaryFilter::default() }),
        ("words that are there", SummaryFilter { text: words("lines file"), ..SummaryFilter::default() }),
        (
            "a rare state and words",
            SummaryFilter { states: vec![RunState::Truncated], text: words("lines"), ..SummaryFilter::default() },
        ),
    ];
    let page = PageRequest { after: None, most: 50 };
    let mut small: Vec<Looks> = Vec::new();
    for (size, runs) in RUNS.into_iter().enumerate() {
        let store = Store::sqlite(folder.join(format!("runs-{runs}.db"))).expect("a store");
        runtime().block_on(async {
            for first in (0..runs as u64).step_by(AT_ONCE) {
                join_all((first..first + AT_ONCE as u64).map(|seed| short_run(&store, seed))).await;
            }
            for (number, (named, filter)) in filters.iter().enumerate() {
                let looks = time(LOOKS, || async {
                    store.summaries(filter.clone(), page).await.expect("readable").items.len()
                })
                .await;
                if size == 0 {
                    small.push(looks);
                }
                let ratio = over(looks.nearly, small[number].nearly);
                row(&format!("50 of {runs} runs, {named}"), looks, "< 10 ms", &format!("{ratio:.2} x of 1,000 runs"));
            }
            let looks =
                time(LOOKS, || async { store.run_counts(None, at(0)).await.expect("readable").running as usize + 1 })
                    .await;
            row(&format!("the counts above {runs} runs"), looks, "", "");
        });
    }
}

/// Adds turns of four records, as many as fit into a step, so that filling a store takes seconds.
async fn many_turns(weaver: &mut LoomWriter<'_, Store>, episode: &mut Episode, turns: u64) {
    let until = episode.sequence + turns;
    while episode.sequence < until {
        let mut step = weaver.step(episode);
        for _ in 0..AT_ONCE.min(usize::try_from(until - episode.sequence).unwrap_or(AT_ONCE)) {
            step = step.records(one_turn(weaver, episode));
        }
        weaver.commit(step).await;
    }
}

/// The records of one turn. Every thousandth has a call that was denied.
fn one_turn(weaver: &mut LoomWriter<'_, Store>, episode: &mut Episode) -> Vec<RecordDraft> {
    let n = episode.sequence + 1;
    let said = utterance(Some("I look."), &[("read", json!({"n": n}))]);
    let opened = weaver.opened(episode, said, &mut Vec::new());
    let turn = opened.turn_id;
    let call = CallId::of_turn(turn, 1);
    let mut over = settled(call, json!("a short result"), &mut Vec::new());
    if n.is_multiple_of(1_000) {
        over.reply = codes::NOT_AUTHORIZED.any().into();
    }
    (episode.leaf, episode.sequence, episode.turns) = (Some(turn), n, episode.turns + 1);
    vec![
        weaver.draft(opened),
        weaver.draft(started(call, CallWork::Gate, None)),
        weaver.draft(over),
        weaver.draft(closed(turn, Closing::Open)),
    ]
}

fn windows(store: &Store) {
    runtime().block_on(async {
        let mut weaver = LoomWriter::new(store);
        let mut episode = weaver.cast("a long way").await;
        many_turns(&mut weaver, &mut episode, TURNS).await;
        let leaf = episode.leaf.expect("a turn");
        let start = Instant::now();
        let marks = store.path_buckets(leaf, MARKS).await.expect("readable").len();
        let first = start.elapsed();
        assert!(marks > 0 && marks <= MARKS);
        let mut at_end = None;
        for (named, place) in
            [("end", WindowPlace::End), ("middle", WindowPlace::Around(TURNS / 2)), ("start", WindowPlace::After(0))]
        {
            let looks =
                time(LOOKS, || async { store.window(leaf, place, WINDOW).await.expect("readable").turns.len() }).await;
            let end = *at_end.get_or_insert(looks);
            let ratio = format!("{:.2} x at its end", over(looks.half, end.half));
            row(&format!("{WINDOW} of {TURNS} turns, at the {named}"), looks, "< 10 ms, 1.5 x", &ratio);
        }
        row("the spine of that thread, first", Looks { half: first, nearly: first }, "< 150 ms", "");
        let looks = time(LOOKS, || async { store.path_buckets(leaf, MARKS).await.expect("readable").len() }).await;
        row("the spine of that thread, then", looks, "< 5 ms", &format!("{:.2} x the first", over(looks.half, first)));
    });
}

fn drawings(store: &Store) {
    runtime().block_on(async {
        let mut weaver = LoomWriter::new(store);
        let mut episode = weaver.cast("a thread").await;
        many_turns(&mut weaver, &mut episode, 100).await;
        let at = episode.leaf.expect("a turn");
        let mut leaves = Vec::new();
        for number in 1..THREADS {
            let turns = if number <= 2 { COMPARED } else { 2 };
            let mut branch = fork(&mut weaver, at, episode.sequence).await;
            many_turns(&mut weaver, &mut branch, turns as u64).await;
            leaves.push(branch.leaf.expect("a turn"));
        }
        let page = PageRequest { after: None, most: THREADS };
        let looks =
            time(LOOKS / 4, || async { store.threads(weaver.loom, page).await.expect("readable").items.len() }).await;
        row(&format!("a loom of {THREADS} threads"), looks, "< 25 ms", "");
        // Reads what a comparison needs: the own turns of both threads, and the last turn that they share.
        let looks = time(LOOKS / 20, || async {
            let one = store.tail(leaves[0], COMPARED).await.expect("readable");
            let two = store.tail(leaves[1], COMPARED).await.expect("readable");
            one.len() + two.len()
        })
        .await;
        row(&format!("two threads of {COMPARED} own turns, read to compare"), looks, "< 150 ms", "");
    });
}

/// Casts a fork of a turn, which is two records.
async fn fork(weaver: &mut LoomWriter<'_, Store>, turn: TurnId, sequence: u64) -> Episode {
    let origin = Origin::Fork(Fork { turn, environment: Environment::None });
    let intent = weaver.intent("another way");
    let (mut step, episode): (Step, Episode) = weaver.open(origin, intent, Some(turn), sequence);
    let opening = weaver.opening(RunKind::Cast, episode.entity);
    let made = weaver.entity(episode.entity, origin);
    step.records.remove(0);
    step.records[0] = RecordDraft::opening(weaver.now(), opening, made).expect("a small record");
    weaver.commit(step).await;
    episode
}
