//! A live server takes over the runs of a killed server, and repeats nothing. The evidence is a gate that is not
//! idempotent and records each of its calls in a file.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cantrip::canon::{RunId, Timestamp};
use cantrip::loom::{Epoch, Journal, Lease, Loom, Record, RunState, Seq, Settlement};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_recorded;
use futures_util::TryStreamExt;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::serve::Server;
use crate::signatures::SHOUT;
use crate::support::model::Model;
use crate::support::{Folder, own_postgres, stdout};

const STEPS: usize = 4;
const SQLITE: &str = "sqlite:kept/loom.db";

/// The store as the test reads it directly.
struct Journaled {
    store: cantrip_store::Store,
    executor: tokio::runtime::Runtime,
}

impl Journaled {
    fn at(folder: &Folder, store: &str) -> Self {
        let url = match store.strip_prefix("sqlite:") {
            Some(file) => format!("sqlite:{}", folder.path().join(file).display()),
            None => store.to_owned(),
        };
        let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { store: cantrip_store::Store::open(&url).expect("a store"), executor }
    }

    fn lease(&self, run: &str) -> Option<Lease> {
        let run: RunId = run.parse().expect("a run");
        self.executor.block_on(async { self.store.holder(run).await.expect("a known run") })
    }

    /// Makes a lease expire in a moment, as it would by itself after its holder stopped renewing it.
    fn shorten(&self, lease: &Lease) {
        self.executor.block_on(async {
            let here = cantrip_canon::Clock::now(&cantrip::MachineClock::new()).wall;
            let now: Timestamp = self.store.lease_now(here).await.expect("a time");
            self.store.renew(lease, now, Duration::from_millis(1)).await.expect("it is still live");
        });
    }

    fn records(&self, run: &str) -> Vec<Record> {
        let run: RunId = run.parse().expect("a run");
        self.executor.block_on(async { self.store.read(run, Seq::START).try_collect().await.expect("readable") })
    }

    /// Returns for each call of the counting gate in a finished run whether its outcome is known.
    fn outcomes(&self, run: &str) -> Vec<bool> {
        let run: RunId = run.parse().expect("a run");
        self.executor.block_on(async {
            let view = self.store.run(run).await.expect("a run");
            assert_eq!(view.state, RunState::Terminated);
            let entity = self.store.entity(view.entity_id.expect("a cast")).await.expect("an entity");
            let turns = self.store.path(entity.leaf.expect("turns")).await.expect("a path");
            assert_eq!(turns.len(), STEPS + 1, "each turn was made once");
            let calls = turns.iter().flat_map(|turn| &turn.gate_calls).filter(|call| call.gate == "count");
            let is_known = |settlement: &Settlement| match settlement {
                Settlement::Settled(settled) => settled.reply.code != codes::OUTCOME_UNKNOWN.as_str(),
                Settlement::Delegated => panic!("the gate calls no agent"),
            };
            calls.map(|call| is_known(&call.settlement)).collect()
        })
    }
}

/// Waits until the gate of this intent is running: it records its call, and then answers slowly.
fn wait_for_call(folder: &Folder, intent: &str) {
    let began = Instant::now();
    while !folder.calls().keys().any(|(about, _)| about == intent) {
        assert!(began.elapsed() < Duration::from_secs(60), "the gate is not entered: {:?}", folder.calls());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that every call was made at most once, and that a call with a recorded outcome was made.
fn assert_once(folder: &Folder, journal: &Journaled, run: &str, intent: &str) {
    let calls = folder.calls();
    for (step, is_known) in (1_u64..).zip(journal.outcomes(run)) {
        let made = calls.get(&(intent.to_owned(), step)).copied().unwrap_or(0);
        assert!(made == 1 || (made == 0 && !is_known), "{intent}, step {step} was made {made} times");
    }
}

/// Three servers on one store: one in the survivor's PID namespace and one in its own are killed in the middle of a
/// gate call.
fn killed_servers(store: &str) {
    let model = Model::counting(STEPS);
    let folder = Folder::new().with_counter(&model, "1");
    let arguments = ["--store", store];
    let survivor = Server::start(&folder, &arguments);
    let (beside, apart) = (Server::start(&folder, &arguments), Server::start_apart(&folder, &arguments));
    let (here, elsewhere) = (beside.cast_about("counter", "beside"), apart.cast_about("counter", "apart"));
    wait_for_call(&folder, "beside");
    wait_for_call(&folder, "apart");
    let journal = Journaled::at(&folder, store);
    let (left_here, left_elsewhere) =
        (journal.lease(&here).expect("a holder"), journal.lease(&elsewhere).expect("a holder"));
    assert_ne!(left_here.owner, left_elsewhere.owner);
    apart.stop(Signal::KILL);
    beside.stop(Signal::KILL);

    // The process of this server can be looked up, so its lease need not expire.
    let ended = survivor.until(&here, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], format!("counted to {STEPS}"));
    // The process of the other server cannot be looked up: its PID means nothing here. Its lease has to expire, however
    // often the survivor has scanned meanwhile.
    let still = journal.lease(&elsewhere).expect("it is held as before");
    assert_eq!((&still.owner, still.epoch), (&left_elsewhere.owner, Epoch::FIRST));
    assert_eq!(survivor.ask("GET", &format!("/v1/runs/{elsewhere}"), None).1["data"]["value"]["state"], "running");

    journal.shorten(&still);
    let ended = survivor.until(&elsewhere, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], format!("counted to {STEPS}"));
    for (run, intent) in [(&here, "beside"), (&elsewhere, "apart")] {
        assert_once(&folder, &journal, run, intent);
        let taken_over = journal.records(run).iter().filter(|record| record.epoch == Epoch::FIRST.next()).count();
        assert!(taken_over > 0, "the survivor wrote under the next epoch");
        assert!(journal.records(run).iter().all(|record| record.epoch <= Epoch::FIRST.next()), "and nobody else");
    }
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
    folder.envelope(&["spend", "verify", "--store", store], codes::VERIFIED.any());
    assert_eq!(survivor.stop(Signal::TERM), 0);
}

#[test]
fn the_runs_of_killed_servers_are_taken_up_by_the_one_that_lives_in_sqlite() {
    killed_servers(SQLITE);
}

#[test]
fn the_runs_of_killed_servers_are_taken_up_by_the_one_that_lives_in_postgres() {
    let Some(store) = own_postgres() else { return };
    killed_servers(&store);
}

/// Processes with different clocks agree on when a lease has expired.
#[test]
fn leases_are_counted_by_the_clock_of_the_database_server_where_there_is_one() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("kept")).unwrap();
    for store in [Some(SQLITE.to_owned()), own_postgres()].into_iter().flatten() {
        let journal = Journaled::at(&folder, &store);
        let (slow, fast) = (Timestamp::EPOCH, Timestamp::EPOCH.after(Duration::from_hours(24 * 365 * 200)));
        let told = |own| journal.executor.block_on(async { journal.store.lease_now(own).await.expect("a time") });
        let (one, other) = (told(slow), told(fast));
        if store == SQLITE {
            assert_eq!((one, other), (slow, fast), "a file has no clock: it is the caller's");
        } else {
            assert!(slow < one && one <= other && other < fast, "{one} and {other} are the server's own time");
        }
    }
}

/// A server that was stopped for longer than its lease continues after another server has taken its run.
fn stopped_server(store: &str) {
    let model = Model::counting(STEPS);
    let folder = Folder::new().with_counter(&model, "1");
    let arguments = ["--store", store];
    let (survivor, stopped) = (Server::start(&folder, &arguments), Server::start(&folder, &arguments));
    let run = stopped.cast_about("counter", "count");
    wait_for_call(&folder, "count");
    stopped.signal(Signal::STOP);
    let journal = Journaled::at(&folder, store);
    journal.shorten(&journal.lease(&run).expect("a holder"));
    survivor.until(&run, |value| value["state"] == "terminated");
    let before = journal.records(&run);
    stopped.signal(Signal::CONT);
    // It notices at its next write that it has lost the run, and still serves other requests.
    let ended = stopped.until(&run, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], format!("counted to {STEPS}"));
    let other = stopped.cast_about("counter", "after");
    stopped.until(&other, |value| value["state"] == "terminated");
    // Records of a sweep of its reservations are written beside the run, under no lease.
    let after = journal.records(&run);
    let later: Vec<&Record> = after[before.len()..].iter().filter(|record| record.epoch != Epoch::NONE).collect();
    assert!(later.is_empty(), "the server that was stopped wrote nothing: {later:#?}");
    assert_once(&folder, &journal, &run, "count");
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
    folder.envelope(&["spend", "verify", "--store", store], codes::VERIFIED.any());
}

#[test]
fn a_stopped_server_that_wakes_up_late_writes_nothing_more_in_sqlite() {
    stopped_server(SQLITE);
}

#[test]
fn a_stopped_server_that_wakes_up_late_writes_nothing_more_in_postgres() {
    let Some(store) = own_postgres() else { return };
    stopped_server(&store);
}

/// A predict whose server is killed during the model request is finished by another server, with one receipt.
#[test]
fn a_predict_of_a_killed_server_is_finished_by_the_one_that_lives() {
    for store in [Some(SQLITE.to_owned()), own_postgres()].into_iter().flatten() {
        let (entered, leave) = (std::sync::mpsc::channel(), std::sync::Arc::new(std::sync::Mutex::new(())));
        let held = leave.lock().unwrap();
        let (tell, gate) = (std::sync::Mutex::new(entered.0), std::sync::Arc::clone(&leave));
        let model = Model::start(move |_| {
            let _ = tell.lock().unwrap().send(());
            drop(gate.lock());
            let arguments = json!({"answer": {"text": "HEY"}}).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        });
        let folder = Folder::new();
        folder.write("shout.toml", SHOUT);
        folder.envelope(&["sig", "add", "shout.toml", "--store", &store], codes::CREATED.any());
        let arguments = ["--store", store.as_str()];
        let (survivor, killed) = (Server::start(&folder, &arguments), Server::start(&folder, &arguments));
        let (address, crystal) = (killed.address().to_owned(), model.crystal());
        let asking = std::thread::spawn(move || ask_and_lose(&address, &crystal));
        entered.1.recv_timeout(Duration::from_secs(60)).expect("the model is asked");
        killed.stop(Signal::KILL);
        asking.join().expect("the client is cut off");
        drop(held);
        let began = Instant::now();
        let receipts = loop {
            let (_, listed) = survivor.ask("GET", "/v1/receipts", None);
            let items = listed["data"]["value"]["items"].as_array().expect("receipts").clone();
            if !items.is_empty() {
                break items;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the predict is left");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(receipts.len(), 1, "{receipts:?}");
        folder.envelope(&["receipt", "verify", "--all", "--store", &store], codes::VERIFIED.any());
    }
}

/// Requests a predict from a server that will be killed before it answers.
fn ask_and_lose(address: &str, crystal: &str) {
    use std::io::{Read, Write};
    let body = json!({"signature": "@me/text/Shout.v1", "input": {"text": "hey"}, "crystal": crystal}).to_string();
    let mut stream = std::net::TcpStream::connect(address).expect("it listens");
    let head = format!(
        "POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    // The connection is cut; the kind of error does not matter.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.is_empty(), "it was killed before it could answer: {}", String::from_utf8_lossy(&answer));
}

/// The effect of a model request on the process that sends it.
enum Fate {
    Dies(Pid),
    Lives,
}

/// A run that kills every process which sends its model request, and another run that does not.
fn deadly_run(store: &str) {
    let (decide, fates) = std::sync::mpsc::channel::<Fate>();
    let fates = std::sync::Mutex::new(fates);
    let model = Model::start(move |_| {
        if let Ok(Fate::Dies(process)) = fates.lock().unwrap().recv() {
            kill_process(process, Signal::KILL).expect("it asks, so it is there");
        }
        json!({"role": "assistant", "content": "survived"})
    });
    let folder = Folder::new();
    let deadly = format!("name = \"deadly\"\ncrystal = \"{}\"\n[wards]\nmax_turns = 3\n", model.crystal());
    folder.write("deadly.toml", &deadly);
    folder.write("slow.toml", "name = \"slow\"\ncrystal = \"scripted/slow.yaml\"\n[wards]\nmax_turns = 5\n");
    folder.write("slow.yaml", "responses:\n  - {content: 'not lost', delay_ms: 4000}\n");
    let arguments = ["serve", "--bind", "127.0.0.1:0", "--store", store];
    let dies = |process: &mut Child| {
        decide.send(Fate::Dies(Pid::from_child(process))).expect("the model lives");
        let status = process.wait().expect("it ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status:?}");
    };
    let started = |arguments: &[&str]| {
        let mut command = folder.command(arguments);
        command.env_remove("CANTRIP_TOKEN").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("the binary runs")
    };
    let mut first = Server::start(&folder, &arguments[3..]);
    let (beside, run) = (first.cast("slow"), first.cast("deadly"));
    dies(first.process());
    // The run is taken over five times, and each server dies.
    for _ in 1..=5 {
        dies(&mut started(&arguments));
    }
    let survivor = Server::start_with(&folder, &arguments[3..], &[("CANTRIP_LOG", "warn")]);
    survivor.until(&run, |value| value["state"] == "waiting");
    let ended = survivor.until(&beside, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], "not lost", "the other run of those servers goes on");
    let shown = folder.run(&["run", "show", &run, "--store", store]);
    for said in ["was taken up 5 times", codes::NO_PROGRESS.as_str(), "hint", &format!("run resume {run}")] {
        assert!(stdout(&shown).contains(said), "{said}: {shown:?}");
    }
    let envelope = folder.envelope(&["run", "show", &run, "--store", store], codes::READ.any());
    let parked = &envelope["data"]["value"]["parked"];
    assert_eq!(parked["reason"], "no_progress", "{envelope}");
    assert_recorded(&parked["error"], codes::NO_PROGRESS.any());
    let (status, log) = survivor.stop_and_read(Signal::TERM);
    assert_eq!(status, 0);
    assert!(log.contains(codes::NO_PROGRESS.as_str()) && log.contains(&format!("run resume {run}")), "{log}");
    // A user may still resume it: once without success, and once after the cause is fixed.
    dies(&mut started(&["run", "resume", &run, "--store", store]));
    decide.send(Fate::Lives).expect("the model lives");
    let resumed = folder.run(&["run", "resume", &run, "--quiet", "--store", store]);
    assert_eq!((resumed.status.code(), stdout(&resumed)), (Some(0), "survived\n"), "{resumed:?}");
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
    folder.envelope(&["spend", "verify", "--store", store], codes::VERIFIED.any());
}

#[test]
fn a_run_that_kills_every_server_waits_for_a_person_after_five_of_them_in_sqlite() {
    deadly_run(SQLITE);
}

#[test]
fn a_run_that_kills_every_server_waits_for_a_person_after_five_of_them_in_postgres() {
    let Some(store) = own_postgres() else { return };
    deadly_run(&store);
}
