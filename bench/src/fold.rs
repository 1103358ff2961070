//! What does a turn cost at the end of a long thread, compared with one at its beginning?

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::circle::gate::builtin;
use cantrip::crystal::{Answer, Crystal, EventSink, Failure, ProfileRow, Request, Response, Script, ScriptedCrystal};
use cantrip::fold::FoldOptions;
use cantrip::loom::{Caller, Loom, MemoryLoom, Strategy};
use cantrip::{Call, Cantrip, CastOptions, ForkOptions, Runtime};
use serde_json::json;

use crate::measure;

const TURNS: u64 = 10_000;
/// The number of turns that are timed together.
const STRETCH: u64 = 1_000;

/// Echoes until its turns are over, and reads the clock after each group of turns.
#[derive(Clone)]
struct Worker {
    name: &'static str,
    turns: u64,
    readings: Arc<Mutex<Vec<Duration>>>,
}

impl Worker {
    fn new(name: &'static str, turns: u64) -> Self {
        Self { name, turns, readings: Arc::default() }
    }
}

impl Crystal for Worker {
    fn name(&self) -> &str {
        self.name
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let response = match (request.caller.request.caller(), request.utterances) {
            (Caller::Fold(_), _) => Response::text("it counts on"),
            (Caller::Turn(_), said) if said < self.turns => {
                if said % STRETCH == 0 {
                    self.readings.lock().expect("nobody panics here").push(measure::now());
                }
                Response::call("c", "echo", json!({ "text": format!("word {said:06}") }))
            }
            (Caller::Turn(_), _) => {
                self.readings.lock().expect("nobody panics here").push(measure::now());
                Response::call("d", "done", json!({"answer": "over"}))
            }
        };
        ScriptedCrystal::new(self.name, Script::new([response])).ask(request, heard).await
    }
}

fn cantrip(worker: &Worker, folding: FoldOptions, window: Option<u64>) -> Cantrip {
    Cantrip::builder()
        .crystal(worker.clone())
        .call(Call::new().system_prompt("You count words."))
        .gate(builtin::done())
        .gate(builtin::echo())
        .profile(ProfileRow { window, ..ProfileRow::default() })
        .folding(folding)
        .ward("max_turns", TURNS + 1)
        .build()
        .expect("it is sound")
}

pub(crate) fn run() {
    let executor = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("an executor");
    executor.block_on(measured());
}

async fn measured() {
    println!("fold: {TURNS} turns in memory, {}\n", measure::time_measured());
    println!("| folding | folds | first thousand | last thousand | last / first |");
    println!("| --- | --- | --- | --- | --- |");
    let by = |strategy| FoldOptions::default().with_strategy(strategy);
    for (told, folding, window) in [
        ("window, after 20 turns", FoldOptions::after_turns(20), None),
        ("window, in 8,000 tokens", by(Strategy::Window), Some(8_000)),
        ("summary, in 8,000 tokens", by(Strategy::Summary), Some(8_000)),
        ("selective, in 8,000 tokens", by(Strategy::Selective), Some(8_000)),
    ] {
        let worker = Worker::new("scripted/worker", TURNS - 1);
        let cantrip = cantrip(&worker, folding, window);
        let runtime = Runtime::new(MemoryLoom::new());
        let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
        let leaf = cast.outcome.and_then(|outcome| outcome.leaf).expect("it came to its end");
        let folds = runtime.loom().folds(leaf).await.expect("readable").len();
        let readings = worker.readings.lock().expect("nobody panics here").clone();
        let stretch = |at: usize| readings[at + 1].saturating_sub(readings[at]);
        let (first, last) = (stretch(0), stretch(readings.len() - 2));
        println!(
            "| {told} | {folds} | {:.1} us a turn | {:.1} us a turn | {:.2} |",
            first.as_secs_f64() * 1e6 / STRETCH as f64,
            last.as_secs_f64() * 1e6 / STRETCH as f64,
            last.as_secs_f64() / first.as_secs_f64(),
        );
        if folding.trigger_after_turns.is_some() {
            at_the_end(&runtime, &cantrip, leaf).await;
        }
    }
}

/// Measures operations on such a thread: forking it and verifying it.
async fn at_the_end(runtime: &Runtime, cantrip: &Cantrip, leaf: cantrip::canon::TurnId) {
    let mut forks = Vec::new();
    for _ in 0..measure::ROUNDS {
        let ends = Worker::new("scripted/ends", 0);
        let other = cantrip.with_crystal(ends.clone()).expect("it is sound");
        let start = measure::now();
        let fork = runtime.fork(&other, leaf, ForkOptions::on("another way")).await;
        assert!(fork.answer().is_some(), "{:?}", fork.reply());
        let asked = ends.readings.lock().expect("nobody panics here")[0];
        forks.push(asked.saturating_sub(start));
    }
    forks.sort();
    let start = measure::now();
    let replay = runtime.replay(cantrip, leaf).await;
    assert!(replay.reply().reply_type() == cantrip::reply::ReplyType::Success, "{:?}", replay.reply());
    let replayed = measure::now().saturating_sub(start);
    println!(
        "|  fork at turn {TURNS}, until its crystal is asked | | {:.2} ms | | |\n|  replay | | {:.1} ms | | |",
        forks[forks.len() / 2].as_secs_f64() * 1e3,
        replayed.as_secs_f64() * 1e3
    );
}
