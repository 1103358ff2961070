//! A process that dies between any two appends. From a seed, this makes casts with gates, children and batches. Each is
//! stopped after every possible number of appends and resumed by a new owner.
//!
//! Wherever it stops, the run has the same end: each turn once, each call with a side effect at most once, no child
//! twice. A gate call that was cut off between its start and its end is `outcome unknown`. Such a run may have another
//! result, so its calls are counted and its result is not compared.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::time::Duration;

use cantrip::{Cantrip, CastOptions};
use cantrip_canon::{EntityId, Entropy, SeededEntropy};
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Answer as Said, Crystal, EventSink, Failure, Request, Response, Script, ScriptedCrystal};
use cantrip_loom::{AnyLoom, Jsonl, Loom, MemoryLoom, Message, PageRequest};
use cantrip_store::Store;
use cantrip_tests::peer::{Peer, new_postgres_store};
use serde_json::{Value, json};
use support::{Count, Dying, counting, house_of, woven};

/// A generator of numbers from a seed.
struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, most: u64) -> u64 {
        let mut drawn = [0; 8];
        self.0.fill(&mut drawn);
        u64::from_le_bytes(drawn) % most
    }
}

/// A crystal whose answer depends on the length of the list and on the intent: the same after a crash as before it,
/// like a model, and unlike a script that has advanced.
struct Steady {
    plans: Vec<(String, Vec<Response>)>,
}

impl Crystal for Steady {
    fn name(&self) -> &str {
        "scripted/steady"
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Said, Failure> {
        let mut users = request.messages.iter().filter_map(|message| match message {
            Message::User { content } => Some(content.text()),
            Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        let intent = users.next().unwrap_or_default();
        let said = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        let plan = self.plans.iter().find(|(of, _)| *of == intent).map(|(_, plan)| plan.as_slice());
        let response = plan.and_then(|plan| plan.get(said)).cloned();
        let tape = ScriptedCrystal::new("scripted/steady", Script::new(response));
        tape.ask(request, heard).await
    }
}

/// Returns a tree of plans: each intent with its answers, turn by turn.
fn plans(dice: &Dice, calls: &mut u64) -> Vec<(String, Vec<Response>)> {
    let mut plans = Vec::new();
    let mut root = Vec::new();
    for turn in 0..1 + dice.below(3) {
        let mut said = Response::default();
        for at in 0..1 + dice.below(3) {
            let id = format!("c{turn}-{at}");
            said = match dice.below(5) {
                0 => said.and_call(id, "echo", json!({"text": turn})),
                1 | 2 => {
                    *calls += 1;
                    said.and_call(id, "count", json!({ "n": *calls }))
                }
                3 => {
                    let intent = format!("child {turn}-{at}");
                    plans.push((intent.clone(), child(dice, calls)));
                    said.and_call(id, "call_agent", json!({ "intent": intent }))
                }
                _ => {
                    let intents: Vec<String> =
                        (0..1 + dice.below(3)).map(|n| format!("batch {turn}-{at}-{n}")).collect();
                    for intent in &intents {
                        plans.push((intent.clone(), child(dice, calls)));
                    }
                    said.and_call(id, "call_agent_batch", json!({ "requests": intents }))
                }
            };
        }
        root.push(said);
    }
    root.push(Response::call("d", "done", json!({"answer": "root"})));
    plans.push(("root".to_owned(), root));
    plans
}

fn child(dice: &Dice, calls: &mut u64) -> Vec<Response> {
    let mut said = Vec::new();
    if dice.below(2) == 0 {
        *calls += 1;
        said.push(Response::call("c", "count", json!({ "n": *calls })));
    }
    said.push(Response::call("d", "done", json!({"answer": dice.below(100)})));
    said
}

fn cantrip(seed: u64, count: &Count) -> (Cantrip, u64) {
    let dice = Dice(SeededEntropy::new(seed));
    let mut calls = 0;
    let crystal = Steady { plans: plans(&dice, &mut calls) };
    let cantrip = Cantrip::builder()
        .crystal(crystal)
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .gate(counting("count", count))
        .ward("max_turns", 20)
        .build()
        .unwrap();
    (cantrip, calls)
}

/// Sorts the lines, because siblings may close in any order. Their names follow that order, so names below the root are
/// removed.
fn sorted(woven: &str) -> Vec<String> {
    let nameless = |line: &str| match (line.trim_start(), line.split_once(" <")) {
        (told, Some((own, rest))) if told.len() < line.len() => {
            own.replace(|name: char| name.is_ascii_uppercase(), "") + " <" + &rest[1..]
        }
        (_, _) => line.to_owned(),
    };
    let mut lines: Vec<String> = woven.lines().map(nameless).collect();
    lines.sort();
    lines
}

/// A store that outlives its process: the memory of the test, or a folder or a file that is opened again.
enum Lasting {
    Memory(AnyLoom),
    Folder(tempfile::TempDir),
    File(tempfile::TempDir),
    /// A separate schema in the given Postgres server.
    Server(String),
}

impl Lasting {
    fn in_memory() -> Self {
        Self::Memory(AnyLoom::new(MemoryLoom::new()))
    }

    fn in_a_folder() -> Self {
        Self::Folder(tempfile::tempdir().unwrap())
    }

    fn in_sqlite() -> Self {
        Self::File(tempfile::tempdir().unwrap())
    }

    fn in_postgres() -> Self {
        Self::Server(new_postgres_store().unwrap())
    }

    /// Opens the store as a newly started process does.
    fn open(&self) -> AnyLoom {
        match self {
            Self::Memory(memory) => memory.clone(),
            Self::Folder(folder) => AnyLoom::new(Jsonl::open(folder.path()).unwrap()),
            Self::File(folder) => AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap()),
            Self::Server(url) => AnyLoom::new(Store::postgres(url).unwrap()),
        }
    }
}

async fn killed_between_any_two_appends(seed: u64, store_of: fn() -> Lasting) {
    let whole = Count::default();
    let (spell, calls) = cantrip(seed, &whole);
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let runtime = house_of(AnyLoom::new(store.clone()), seed);
    let cast = runtime.cast(&spell, CastOptions::on("root")).await;
    assert_eq!(cast.answer(), Some(&json!("root")), "seed {seed}: {:?}", cast.reply());
    assert_eq!(whole.get() as u64, calls, "seed {seed}");
    let wanted = sorted(&woven(&runtime, spell.loom_id()).await);
    let steps = store.taken();
    for dies_after in 1..steps {
        let count = Count::default();
        let (spell, calls) = cantrip(seed, &count);
        let lasting = store_of();
        let died = {
            let dying = house_of(AnyLoom::new(Dying::after(lasting.open(), dies_after)), seed);
            dying.cast(&spell, CastOptions::on("root")).await
        };
        let place = format!("seed {seed}, dead after {dies_after} of {steps} steps");
        assert!(died.outcome.is_none(), "{place}: {:?}", died.reply());
        let before = count.get() as u64;
        tokio::time::sleep(Duration::from_secs(60)).await;
        let heir = house_of(lasting.open(), seed + 1_000);
        let cast = heir.resume(&spell, died.run.unwrap()).await;
        let found = woven(&heir, spell.loom_id()).await;
        assert_eq!(cast.answer(), Some(&json!("root")), "{place}: {:?}\n{found}", cast.reply());
        assert!(count.get() as u64 <= calls, "{place}: a call was made twice\n{found}");
        assert!(before <= count.get() as u64, "{place}");
        if !found.contains("MCP-EXEC-E-005") {
            assert_eq!(sorted(&found), wanted, "{place}");
            assert_eq!(count.get() as u64, calls, "{place}");
        }
        let turns = heir.loom().turns(spell.loom_id(), PageRequest::FIRST).await.unwrap().items;
        let mut places: Vec<(EntityId, u64)> = turns.iter().map(|turn| (turn.entity_id, turn.sequence)).collect();
        places.sort();
        places.dedup();
        assert_eq!(places.len(), turns.len(), "{place}: a turn was made twice\n{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_killed_between_any_two_appends_comes_to_the_same_end() {
    for seed in 0..12 {
        killed_between_any_two_appends(seed, Lasting::in_memory).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_holds_for_a_folder_that_another_process_opens_again() {
    for seed in 0..3 {
        killed_between_any_two_appends(seed, Lasting::in_a_folder).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_holds_for_a_database_that_another_process_opens_again() {
    for seed in 0..3 {
        killed_between_any_two_appends(seed, Lasting::in_sqlite).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_holds_for_a_server_that_another_process_connects_to() {
    if Peer::Postgres.find().is_some() {
        killed_between_any_two_appends(1, Lasting::in_postgres).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ended_is_only_read() {
    let count = Count::default();
    let (spell, calls) = cantrip(3, &count);
    let runtime = house_of(AnyLoom::new(MemoryLoom::new()), 3);
    let cast = runtime.cast(&spell, CastOptions::on("root")).await;
    let again = runtime.resume(&spell, cast.run.unwrap()).await;
    assert_eq!(again.answer(), cast.answer());
    assert_eq!(count.get() as u64, calls);
    assert_eq!(again.reply().data().get("answer"), Some(&Value::from("root")));
}
