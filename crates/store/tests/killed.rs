//! A process that is killed while it writes loses nothing that was acknowledged, and two processes that write to one
//! store at once lose nothing of each other's records.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use cantrip_canon::{LoomId, TurnId};
use cantrip_loom::{Event, Journal, Loom, PageRequest, Record, RunState, Seq};
use cantrip_loom_suite::{LoomWriter, run};
use cantrip_store::Store;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::json;
use support::{fresh_schema, postgres_url};

const WHERE: &str = "CANTRIP_STORE_TEST_STORE";
const SCHEMA: &str = "CANTRIP_STORE_TEST_SCHEMA";
const SEED: &str = "CANTRIP_STORE_TEST_SEED";
const CASTS: &str = "CANTRIP_STORE_TEST_CASTS";

/// The location of a store, for this process and for those that it starts.
struct Place {
    url: String,
    schema: String,
}

impl Place {
    fn open(&self) -> Store {
        if self.schema.is_empty() { Store::open(&self.url) } else { Store::postgres_in(&self.url, &self.schema) }
            .unwrap()
    }

    /// Starts the test with this name in another process, with these settings.
    fn start(&self, test: &str, seed: u64, casts: u64) -> (Child, BufReader<ChildStdout>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(WHERE, &self.url)
            .env(SCHEMA, &self.schema)
            .env(SEED, seed.to_string())
            .env(CASTS, casts.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    }
}

/// Returns the settings of a started process; none if the test was not started by another process.
fn told() -> Option<(Store, u64, u64)> {
    let place = Place { url: std::env::var(WHERE).ok()?, schema: std::env::var(SCHEMA).ok()? };
    let number = |name| std::env::var(name).unwrap().parse().unwrap();
    Some((place.open(), number(SEED), number(CASTS)))
}

fn loom() -> LoomId {
    LoomId::from_bytes([1; 16])
}

/// The process that is killed: entities that write turns without end, and print each turn when it is written.
#[test]
fn a_process_that_writes_for_ever() {
    let Some((store, seed, _)) = told() else { return };
    run(async {
        join_all((0..4).map(|n| {
            let store = &store;
            async move {
                let mut weaver = LoomWriter::seeded(store, seed * 100 + n);
                weaver.loom = loom();
                let mut episode = weaver.cast("count").await;
                for round in 0_u64.. {
                    let long =
                        if round % 5 == 4 { "lang ".repeat(2_000) + &round.to_string() } else { round.to_string() };
                    let turn = weaver.turn(&mut episode, "echo", json!(long), cantrip_loom::Closing::Open).await;
                    println!("written {turn}");
                }
            }
        }))
        .await;
    });
}

/// Kills writers at moments that the seed selects, and checks the records that they left.
fn killed(place: &Place, kills: u64) {
    let mut acknowledged: Vec<TurnId> = Vec::new();
    for seed in 1..=kills {
        let (mut writer, output) = place.start("a_process_that_writes_for_ever", seed, 0);
        // After 1 to 40 turns; the progress of the other entities at that time is random.
        let until = usize::try_from(seed * 7919 % 40 + 1).unwrap();
        let written = output.lines().map_while(Result::ok);
        let turns =
            written.filter_map(|line| line.split_once("written ").map(|(_, turn)| turn.parse::<TurnId>().unwrap()));
        acknowledged.extend(turns.take(until));
        writer.kill().unwrap();
        writer.wait().unwrap();
        run(async {
            let store = place.open();
            store.verify().await.unwrap();
            let (mut kept, mut page) = (Vec::new(), PageRequest::FIRST);
            loop {
                let listed = store.turns(loom(), page).await.unwrap();
                kept.extend(listed.items.iter().map(|turn| turn.id));
                match listed.next {
                    Some(after) => page.after = Some(after),
                    None => break,
                }
            }
            let set: BTreeSet<TurnId> = kept.iter().copied().collect();
            assert_eq!(set.len(), kept.len(), "no turn twice");
            let lost: Vec<&TurnId> = acknowledged.iter().filter(|turn| !set.contains(turn)).collect();
            assert!(lost.is_empty(), "lost after kill {seed}: {lost:?}");
        });
    }
    // Other workers can continue: the leases of the killed processes expire, and their open turns are taken up.
    run(async {
        let store = place.open();
        let late = cantrip_loom_suite::at(36_000_000);
        let orphans = store.orphans(late, PageRequest::FIRST).await.unwrap().items;
        assert_eq!(orphans.len() as u64, kills * 4);
        for orphan in orphans {
            let owner = cantrip_loom::WorkerId::new("heir").unwrap();
            let lease = store.acquire(orphan.run_id, owner, late, std::time::Duration::from_secs(9)).await.unwrap();
            let records: Vec<Record> = store.read(orphan.run_id, Seq::START).try_collect().await.unwrap();
            let (error, last) = (
                cantrip_loom::RecordedError::new(cantrip_reply::codes::CRASH.any(), "killed"),
                records.last().unwrap().seq,
            );
            let failed = cantrip_loom::RecordDraft::new(late, Event::from(cantrip_loom::RunFailed { error })).unwrap();
            let step = cantrip_loom::Step::for_lease(cantrip_loom::StepId::new("heir").unwrap(), lease).record(failed);
            assert_eq!(store.append(step).await.unwrap(), cantrip_loom::AppendOutcome::Committed(last.next()));
        }
        assert_eq!(store.runs_in(RunState::Failed, PageRequest::FIRST).await.unwrap().items.len() as u64, kills * 4);
        store.verify().await.unwrap();
    });
}

/// The number of kills; `CANTRIP_TEST_KILLS` sets a higher one.
fn kills(few: u64) -> u64 {
    std::env::var("CANTRIP_TEST_KILLS").map_or(few, |kills| kills.parse().unwrap())
}

#[test]
fn a_killed_writer_loses_no_acknowledged_turn_in_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { url: format!("sqlite:{}", folder.path().join("loom.db").display()), schema: String::new() };
    killed(&place, kills(12));
}

#[test]
fn a_killed_writer_loses_no_acknowledged_turn_in_postgres() {
    killed(&Place { url: postgres_url(), schema: fresh_schema() }, kills(8));
}

/// A process that makes a number of casts and ends.
#[test]
fn a_process_that_casts() {
    let Some((store, seed, casts)) = told() else { return };
    run(async {
        let mut weaver = LoomWriter::seeded(&store, seed);
        weaver.loom = loom();
        for n in 0..casts {
            let mut episode = weaver.cast("count").await;
            let turns = [weaver.plain(&mut episode).await, weaver.done(&mut episode, json!(n)).await];
            println!("\ncast {} {} {}", episode.run, turns[0], turns[1]);
        }
    });
}

fn two_processes(place: &Place, casts: u64) {
    let mut children: Vec<_> = [1, 2].map(|seed| place.start("a_process_that_casts", seed, casts)).into();
    let mut told: BTreeMap<String, Vec<TurnId>> = BTreeMap::new();
    for (child, output) in &mut children {
        for line in output.lines().map_while(Result::ok) {
            if let Some(rest) = line.strip_prefix("cast ") {
                let words: Vec<&str> = rest.split(' ').collect();
                told.insert(words[0].to_owned(), words[1..].iter().map(|turn| turn.parse().unwrap()).collect());
            }
        }
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(told.len() as u64, 2 * casts, "no run's id was given twice");
    run(async {
        let store = place.open();
        let verified = store.verify().await.unwrap();
        assert_eq!((verified.runs, verified.records), (2 * casts, 2 * casts * 12));
        let mut ids = BTreeSet::new();
        for (run, turns) in &told {
            let view = store.run(run.parse().unwrap()).await.unwrap();
            assert_eq!((view.state, view.newest), (RunState::Terminated, Seq::new(12)));
            let path: Vec<TurnId> = store.path(turns[1]).await.unwrap().iter().map(|turn| turn.id).collect();
            assert_eq!(path, *turns);
            ids.extend(path);
        }
        assert_eq!(ids.len() as u64, 4 * casts);
        assert_eq!(store.roots(loom()).await.unwrap().len(), 1, "one cantrip, whoever brought it first");
    });
}

#[test]
fn two_processes_on_one_file_lose_and_double_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { url: format!("sqlite:{}", folder.path().join("loom.db").display()), schema: String::new() };
    two_processes(&place, 100);
}

#[test]
fn two_processes_on_one_postgres_lose_and_double_nothing() {
    two_processes(&Place { url: postgres_url(), schema: fresh_schema() }, 100);
}
