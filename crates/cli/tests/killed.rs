//! A process that is killed at any moment loses nothing that was acknowledged: another process resumes its run, and
//! completed work is not repeated. The evidence is a gate that records each of its calls in its own file.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cantrip::canon::RunId;
use cantrip::loom::{
    CallId, Epoch, Journal, Ledger, Loom, PageRequest, Record, ReservationFilter, RunState, Settlement, Turn, WorkerId,
};
use cantrip::spend::{AnyReservation, AuthorizationRef};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use futures_util::TryStreamExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::model::Model;
use support::{Folder, id, own_postgres};

const STEPS: usize = 5;
const SQLITE: &str = "sqlite:kept/loom.db";

/// A number from the environment, for the long form: `./test.sh --long` sets it.
fn given(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |number| number.parse().expect("a number"))
}

/// A deterministic random source: splitmix64.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

fn answer_of(child: Child) -> Value {
    let output = child.wait_with_output().expect("it ends");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Waits up to `patience`. Returns true if the process ended by itself.
fn ends_within(child: &mut Child, patience: Duration) -> bool {
    let began = Instant::now();
    loop {
        if child.try_wait().expect("it can be looked at").is_some() {
            return true;
        }
        if began.elapsed() >= patience {
            return false;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[track_caller]
fn assert_counted(envelope: &Value) {
    assert_envelope(envelope, codes::TERMINATED.any());
    assert_eq!(envelope["data"]["answer"], format!("counted to {STEPS}"), "{envelope}");
}

/// A store that the test reads directly: starting the binary for each read would take longer than the tested
/// operations.
struct Seen {
    store: cantrip_store::Store,
    executor: tokio::runtime::Runtime,
}

impl Seen {
    fn at(folder: &Folder, store: &str) -> Self {
        let url = match store.strip_prefix("sqlite:") {
            Some(file) => format!("sqlite:{}", folder.path().join(file).display()),
            None => store.to_owned(),
        };
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("one");
        Self { store: cantrip_store::Store::open(&url).expect("a store"), executor }
    }

    /// Returns the runs by intent: all of them, or the latest ones.
    fn by_intent(&self, last: Option<usize>) -> BTreeMap<String, Vec<RunId>> {
        self.executor.block_on(async {
            let mut found: BTreeMap<String, Vec<RunId>> = BTreeMap::new();
            let mut page = PageRequest { after: None, most: last.unwrap_or(usize::MAX) };
            loop {
                let listed = self.store.latest_runs(None, page).await.expect("runs");
                for run in listed.items {
                    for cast in self.store.casts(run.entity_id.expect("a cast")).await.expect("casts") {
                        found.entry(cast.intent.text()).or_default().push(run.run_id);
                    }
                }
                match listed.next {
                    Some(after) if last.is_none() => page.after = Some(after),
                    Some(_) | None => return found,
                }
            }
        })
    }

    /// Returns the recent run with this intent, if it has a first record.
    fn about(&self, intent: &str) -> Option<RunId> {
        match self.by_intent(Some(32)).remove(intent).as_deref() {
            None => None,
            Some([run]) => Some(*run),
            Some(several) => panic!("{intent} was begun {} times", several.len()),
        }
    }

    /// Returns the turns of a run that has terminated.
    fn over(&self, run: RunId) -> Vec<Turn> {
        self.executor.block_on(async {
            let view = self.store.run(run).await.expect("a run");
            assert_eq!(view.state, RunState::Terminated);
            let entity = self.store.entity(view.entity_id.expect("a cast")).await.expect("an entity");
            self.store.path(entity.leaf.expect("turns")).await.expect("a path")
        })
    }
}

/// The number of times that each step of each intent was executed.
type Calls = BTreeMap<(String, u64), u64>;

/// Asserts the result of a finished cast: each turn once, and each call that is recorded as settled was made once. For
/// an interrupted call it is not known whether it was made, and it is not repeated.
fn assert_once(intent: &str, turns: &[Turn], calls: &Calls) {
    assert_eq!(turns.len(), STEPS + 1, "each turn once: {turns:?}");
    let ids: BTreeSet<_> = turns.iter().map(|turn| turn.id).collect();
    assert_eq!(ids.len(), turns.len());
    for (step, turn) in (1_u64..).zip(turns).take(STEPS) {
        assert_eq!(turn.sequence, step);
        let record = &turn.gate_calls[0];
        assert_eq!(record.args, json!({"intent": intent, "step": step}), "{turn:?}");
        let done = calls.get(&(intent.to_owned(), step)).copied().unwrap_or(0);
        let Settlement::Settled(settled) = &record.settlement else { panic!("{record:?}") };
        let outcome_unknown = settled.reply.code == codes::OUTCOME_UNKNOWN.as_str();
        assert!(done == 1 || (done == 0 && outcome_unknown), "{intent}, step {step} was done {done} times: {record:?}");
    }
}

/// Kills casts at moments that the seed selects, and resumes each in another process until it has ended. Returns the
/// finished intents.
fn killing(folder: &Folder, store: &str, seen: &Seen, who: u64, kills: u64, patience_us: u64) -> Vec<String> {
    let mut chance = Chance(given("CANTRIP_TEST_SEED", 20_260_219) + who);
    let (mut fallen, mut finished, mut cast) = (0, Vec::new(), 0);
    while fallen < kills {
        cast += 1;
        let intent = format!("cast {cast} of {who}");
        let mut run = None;
        loop {
            let on = match run {
                None => vec!["cast".to_owned(), "counter.toml".to_owned(), intent.clone()],
                Some(run) => vec!["run".to_owned(), "resume".to_owned(), format!("{run}")],
            };
            let words: Vec<&str> = on.iter().map(String::as_str).collect();
            let mut child = folder.spawn(&[words.as_slice(), &["--json", "--store", store]].concat());
            let patience =
                if fallen < kills { Duration::from_micros(chance.below(patience_us)) } else { Duration::MAX };
            if ends_within(&mut child, patience) {
                assert_counted(&answer_of(child));
                finished.push(intent);
                break;
            }
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
            fallen += 1;
            run = run.or_else(|| seen.about(&intent));
            if run.is_none() {
                // The process was killed before its first record. A database server may still write what it has
                // received, so this intent is not cast again.
                break;
            }
        }
    }
    finished
}

/// Asserts the ledger after the kills: every sum balances, each recorded payment was made once under its own key,
/// interrupted payments are marked for reconciliation, and no run that has ended has an open reservation.
fn assert_paid(folder: &Folder, seen: &Seen, finished: &[RunId]) {
    let (findings, rows, local) = seen.executor.block_on(async {
        let (mut rows, mut page) = (Vec::new(), PageRequest::FIRST);
        loop {
            let listed = seen.store.reservations(ReservationFilter::default(), page).await.expect("rows");
            rows.extend(listed.items);
            match listed.next {
                Some(after) => page.after = Some(after),
                None => break,
            }
        }
        let local = seen.store.authorization(AuthorizationRef::Local).await.expect("auth_local");
        (seen.store.audit().await.expect("an audit"), rows, local)
    });
    assert!(findings.is_balanced(), "{findings:?}");
    let spent: i64 = rows.iter().map(|booked| booked.row.spent_micros()).sum();
    assert_eq!(local.totals.spent, spent, "nothing is counted twice");
    let paid: Vec<String> = folder.read("paid.log").lines().map(str::to_owned).collect();
    let keys: BTreeSet<&String> = paid.iter().collect();
    assert_eq!(keys.len(), paid.len(), "no payment was made twice under one key");
    for run in finished {
        let of_run = rows.iter().map(|booked| &booked.row).filter(|row| row.terms().run == *run);
        let mut by_call: BTreeMap<String, Vec<&AnyReservation>> = BTreeMap::new();
        for row in of_run {
            assert_ne!(row.state_name(), "reserved", "left open by {run}: {row:?}");
            by_call.entry(row.terms().call.to_string()).or_default().push(row);
        }
        for turn in seen.over(*run) {
            let request = by_call.remove(&CallId::request(turn.id).to_string()).unwrap_or_default();
            let states: Vec<&str> = request.iter().map(|row| row.state_name()).collect();
            let (last, before) = states.split_last().expect("every request is paid for");
            assert_eq!(*last, "committed", "{states:?}");
            assert!(before.iter().all(|state| *state == "reconcile_required"), "{states:?}");
            for record in turn.gate_calls.iter().filter(|record| record.gate == "count") {
                let Settlement::Settled(settled) = &record.settlement else { panic!("{record:?}") };
                let held = by_call.remove(&record.call_id.to_string()).unwrap_or_default();
                let [row] = held[..] else { panic!("one hold for {record:?}: {held:?}") };
                match row {
                    AnyReservation::Committed(made) => {
                        assert!(settled.reply.is_success() && row.spent_micros() == 3_000, "{record:?}: {row:?}");
                        let key = row.terms().provider_key();
                        assert_eq!(made.state().provider_correlation_id.as_deref(), Some(key.as_str()));
                        assert!(keys.contains(&key.as_str().to_owned()), "it was really made");
                    }
                    AnyReservation::ReconcileRequired(_) => {
                        assert_eq!(settled.reply.code, codes::OUTCOME_UNKNOWN.as_str(), "{record:?}");
                    }
                    AnyReservation::Reserved(_) | AnyReservation::Released(_) => panic!("{record:?}: {row:?}"),
                }
            }
        }
        assert!(by_call.is_empty(), "money of calls that are not on record: {by_call:?}");
    }
}

/// Kills the casts of two concurrent callers, then checks the records and the calls that were really made.
fn killed(store: &str, kills: u64) {
    let model = Model::counting(STEPS);
    let folder = Folder::new().with_counter(&model, "0");
    let begun = Instant::now();
    // The same number of concurrent casts as will be killed.
    let whole = ["whole one", "whole two"]
        .map(|intent| folder.spawn(&["cast", "counter.toml", intent, "--json", "--store", store]));
    for child in whole {
        assert_counted(&answer_of(child));
    }
    // From before the store is opened until after the cast has ended.
    let patience_us = u64::try_from(begun.elapsed().as_micros()).expect("not that long") * 12 / 10;
    let seen = Seen::at(&folder, store);
    let finished: Vec<String> = std::thread::scope(|scope| {
        let who: Vec<_> = [kills / 2, kills.div_ceil(2)].into_iter().zip(1..).collect();
        let (folder, seen) = (&folder, &seen);
        let killing = who
            .into_iter()
            .map(|(kills, who)| scope.spawn(move || killing(folder, store, seen, who, kills, patience_us)));
        let killing: Vec<_> = killing.collect();
        killing.into_iter().flat_map(|killing| killing.join().expect("it kills")).collect()
    });
    assert!(!folder.path().join("torn.log").exists(), "a command was started without its arguments");
    let calls = folder.calls();
    let runs = seen.by_intent(None);
    let mut over = Vec::new();
    for intent in &finished {
        let [run] = runs[intent][..] else { panic!("{intent}: {:?}", runs[intent]) };
        assert_once(intent, &seen.over(run), &calls);
        over.push(run);
    }
    assert_paid(&folder, &seen, &over);
    // Each of the two finishes its last cast. The number of others depends on the load of the machine.
    assert!(finished.len() >= 2, "most are killed, and yet some are finished: {}", finished.len());
    assert!(calls.values().all(|count| *count == 1), "no call twice: {calls:?}");
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
    folder.envelope(&["spend", "verify", "--store", store], codes::VERIFIED.any());
    for run in over.iter().take(3) {
        folder.envelope(&["policy", "replay", &run.to_string(), "--store", store], codes::VERIFIED.any());
    }
    println!("{kills} kills, {} of {} casts finished", finished.len(), runs.len());
}

/// The number of kills on SQLite; Postgres gets a quarter of them.
const KILLS: u64 = 200;

#[test]
fn a_killed_cast_goes_on_in_sqlite_and_nothing_is_done_twice() {
    killed(SQLITE, given("CANTRIP_TEST_KILLS", KILLS));
}

#[test]
fn a_killed_cast_goes_on_in_postgres_and_nothing_is_done_twice() {
    let Some(store) = own_postgres() else { return };
    killed(&store, given("CANTRIP_TEST_KILLS", KILLS).div_ceil(4));
}

fn signal(child: &Child, signal: Signal) {
    let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(process, signal).expect("it hears");
}

/// A process is stopped in the middle of a call. When its lease has expired, another process takes its run, and the
/// writes of the first process come too late when it continues.
fn zombie(folder: &Folder, store: &str) {
    let zombie = folder.spawn(&["cast", "counter.toml", "count", "--json", "--store", store]);
    let began = Instant::now();
    while folder.calls().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "the gate is not entered");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&zombie, Signal::STOP);
    // The process is alive, so its run cannot be taken before the lease expires.
    folder.envelope(&["run", "resume", "--store", store], codes::BUSY.any());
    let seen = Seen::at(folder, store);
    let run_id = seen.about("count").expect("a run");
    let Seen { store: heir, executor } = seen;
    let (lease, before) = executor.block_on(async {
        let held = heir.holder(run_id).await.expect("a lease").expect("a holder");
        // The time is passed in, to simulate the expiry.
        let lasts = Duration::from_secs(30);
        let lease = heir.acquire(run_id, WorkerId::new("heir").expect("a name"), held.expires_at, lasts).await;
        (lease.expect("the heir's"), heir.run(run_id).await.expect("a run").newest)
    });
    signal(&zombie, Signal::CONT);
    let output = zombie.wait_with_output().expect("it ends");
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::LEASE_LOST.any());
    assert_eq!(output.status.code(), Some(4));
    executor.block_on(async {
        let later: Vec<Record> = heir.read(run_id, before).try_collect().await.expect("readable");
        // A sweep may have marked the zombie's reservation by then; that record is written beside the run, under no
        // lease.
        let beside =
            |record: &Record| record.epoch == Epoch::NONE && record.kind.as_str() == "spend.reconcile_required";
        assert!(later.iter().all(beside), "nothing of the zombie is on record: {later:#?}");
        heir.release(&lease).await.expect("it is given back");
    });
    assert_counted(&answer_of(folder.spawn(&["run", "resume", "--json", "--store", store])));
    let calls = folder.calls();
    assert!(calls.len() == STEPS && calls.values().all(|count| *count == 1), "{calls:?}");
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
}

#[test]
fn what_a_zombie_says_after_another_took_over_is_refused_in_sqlite() {
    let model = Model::counting(STEPS);
    zombie(&Folder::new().with_counter(&model, "0.5"), SQLITE);
}

#[test]
fn what_a_zombie_says_after_another_took_over_is_refused_in_postgres() {
    let Some(store) = own_postgres() else { return };
    let model = Model::counting(STEPS);
    zombie(&Folder::new().with_counter(&model, "0.5"), &store);
}

/// Two processes cast at the same time, each with its own entity.
fn two_processes(store: &str, casts: u64) {
    let model = Model::saying("so be it");
    let folder = Folder::new();
    folder.write("talker.toml", &format!("name = \"talker\"\ncrystal = \"{}\"\n", model.crystal()));
    let intents: String = (1..=casts).map(|n| format!("intent {n}\n")).collect();
    let children: Vec<Child> = (0..2)
        .map(|_| {
            let mut command = folder.command(&["summon", "talker.toml", "--json", "--store", store]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("the binary runs");
            let (mut input, intents) = (child.stdin.take().expect("a pipe"), intents.clone());
            std::thread::spawn(move || input.write_all(intents.as_bytes()));
            child
        })
        .collect();
    let (mut leaves, mut entities) = (BTreeSet::new(), BTreeSet::new());
    for child in children {
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(lines.lines().count() as u64, casts);
        for line in lines.lines() {
            let envelope: Value = serde_json::from_str(line).expect("an envelope");
            assert_envelope(&envelope, codes::TERMINATED.any());
            leaves.insert(id(&envelope["data"]["leaf"]).to_owned());
            entities.insert(id(&envelope["data"]["entity_id"]).to_owned());
        }
    }
    assert_eq!((leaves.len() as u64, entities.len()), (2 * casts, 2), "ids are unique");
    let listed = folder.envelope(&["loom", "ls", "--store", store], codes::READ.any());
    assert_eq!(listed["data"]["value"][0]["turns"], 2 * casts, "no turn is lost or doubled");
    assert_eq!(model.asked(), 2 * casts, "and none was asked for twice");
    // Each send is a run, and so is each summon.
    let verified = folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
    assert_eq!(verified["data"]["runs"], 2 * casts + 2);
    for entity in entities {
        let tree = folder.envelope(&["loom", "thread", &entity, "--store", store], codes::READ.any());
        let turns = tree["data"]["value"]["turns"].as_array().expect("turns").clone();
        let numbers: Vec<u64> = turns.iter().map(|turn| turn["sequence"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, (1..=casts).collect::<Vec<u64>>());
        let path: BTreeSet<&str> = turns.iter().map(|turn| id(&turn["id"])).collect();
        assert!(path.iter().all(|turn| leaves.contains(*turn)));
    }
}

#[test]
fn two_processes_on_one_file_lose_and_double_nothing() {
    two_processes(SQLITE, given("CANTRIP_TEST_CASTS", 100));
}

#[test]
fn two_processes_on_one_postgres_lose_and_double_nothing() {
    let Some(store) = own_postgres() else { return };
    two_processes(&store, given("CANTRIP_TEST_CASTS", 100));
}
