//! A compile that is killed at any point goes on in another process: the same candidates, the same Asks, the same winner,
//! the same report, and nothing is paid twice.

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip::Cancel;
use cantrip::MachineClock;
use cantrip::canon::{Clock, Hash};
use cantrip::crystal::Response;
use cantrip::loom::{AnyLoom, Improvements, JobFilter, MemoryLoom, PageRequest};
use cantrip_contract::{JobStatus, Split};
use cantrip_ds::job::JobContinuation;
use cantrip_improve::compile::CompileRequest;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_store::Store;
use serde_json::{Value, json};

use crate::compile_world::{
    Office, REFLECT, Router, TASK, lasting, proposes, report_of, request, run_of, with_options,
};
use crate::dying::Dying;
use crate::support::stores;

/// A request of each optimiser that is small enough to be killed at every step, and one that runs out of its calls.
fn small_requests() -> Vec<CompileRequest> {
    let reflects = |asked: CompileRequest| CompileRequest { reflect_model: Some(REFLECT.to_owned()), ..asked };
    vec![
        with_options("bootstrap_demos.v1", json!({"candidates": 2, "bootstrapped": 1, "labelled": 2})),
        CompileRequest {
            texts: vec!["Route it carefully.".to_owned()],
            ..reflects(with_options("instruction_grid.v1", json!({"cross": 0, "proposals": 2})))
        },
        CompileRequest {
            texts: vec!["Route it carefully.".to_owned()],
            ..with_options("mipro_lite.v1", json!({"demo_sets": 2, "minibatch": 2, "trials": 4}))
        },
        CompileRequest {
            slots: Some(vec!["instructions".to_owned()]),
            ..reflects(with_options("gepa.v1", json!({"max_iterations": 2, "patience": 2, "minibatch": 2})))
        },
        // It runs out after the base and one set on four tickets each; the final test has four trials.
        CompileRequest {
            max_calls: Some(14),
            ..with_options("bootstrap_demos.v1", json!({"candidates": 3, "bootstrapped": 0, "labelled": 2}))
        },
    ]
}

/// Right with demos or with the word in the instruction, on most tickets.
fn task() -> Router {
    Router::right_if(|told| !told.demos.is_empty() || told.system.contains("carefully"))
}

fn reflects() -> Router {
    proposes("Route it carefully, by the word after about.")
}

/// The sizes of the splits of these tests.
const SIZES: (usize, usize, usize) = (4, 4, 2);

async fn store(office: &Office) {
    office.store_tickets(SIZES.0, SIZES.1, SIZES.2).await;
}

/// A compile that was not killed: its report, its Asks and the requests that it made.
struct Whole {
    report: Value,
    asks: Vec<Hash>,
    requests: BTreeMap<String, u64>,
    /// The number of steps that it wrote.
    steps: u64,
}

async fn whole(asked: &CompileRequest) -> Whole {
    let (task, reflect) = (task(), reflects());
    let loom = AnyLoom::new(MemoryLoom::new());
    store(&Office::new(&loom, &task, &reflect)).await;
    let dying = Dying::after(loom, u64::MAX);
    let office = Office::new(&AnyLoom::new(dying.clone()), &task, &reflect);
    let reply = office.start(asked.clone()).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
    let run = run_of(&reply);
    office.assert_sound(run).await;
    Whole {
        report: lasting(&report_of(&reply)),
        asks: office.asks(run).await,
        requests: task.counts(),
        steps: dying.taken(),
    }
}

#[tokio::test]
async fn a_compile_killed_between_any_two_steps_ends_in_the_same_report() {
    for asked in small_requests() {
        let expected = whole(&asked).await;
        let every = if std::env::var_os("PROPTEST_CASES").is_some() { 1 } else { 7 };
        let mut at = 0;
        while at < expected.steps {
            let place = format!("{} killed after {at} of {} steps", asked.optimiser, expected.steps);
            let (task, reflect) = (task(), reflects());
            let loom = AnyLoom::new(MemoryLoom::new());
            store(&Office::new(&loom, &task, &reflect)).await;
            let mortal = AnyLoom::new(Dying::after(loom.clone(), at));
            let office = Office::new(&mortal, &task, &reflect);
            if let Ok(prepared) = office.prepare(asked.clone()).await {
                let _ = prepared.start(&office.driver, None, &Cancel::new(), true).await;
            }
            let before = task.counts();
            // Another process finds the leases of the dead one expired.
            let later = MachineClock::new().now().wall.after(Duration::from_secs(3_600));
            let office = Office::at(&loom, &task, &reflect, MachineClock::starting(later));
            let reply = office.start(asked.clone()).await;
            assert_code(&reply.guarded.reply, codes::COMPILED);
            let run = run_of(&reply);
            assert_eq!(lasting(&report_of(&reply)), expected.report, "{place}");
            assert_eq!(office.asks(run).await, expected.asks, "{place}");
            assert_eq!(office.replay(run).await.difference, None, "{place}");
            office.assert_no_leak(run).await;
            // Each trial was asked once, but for those under way at the kill, each once more.
            let again: u64 = task.counts().values().map(|count| count - 1).sum();
            assert!(again <= 8, "{place}: {again} requests were made again");
            let settled = |counts: &BTreeMap<String, u64>| counts.len();
            assert_eq!(settled(&task.counts()), settled(&expected.requests), "{place}");
            assert!(before.len() <= expected.requests.len(), "{place}");
            at += every;
        }
    }
}

/// The store of a started process; none if the test was not started by another process.
const KILLED: &str = "CANTRIP_IMPROVE_TEST_KILLED_STORE";

/// The sizes of the splits in the processes that are killed.
const KILLED_SIZES: (usize, usize, usize) = (8, 8, 8);

fn slow_task() -> Router {
    Router::new(TASK, |told| {
        let is_right = !told.demos.is_empty() || told.system.contains("carefully");
        Response { delay: Duration::from_millis(8), ..told.answer(is_right) }
    })
}

fn killed_request() -> CompileRequest {
    let options = json!({"candidates": 3, "bootstrapped": 1, "labelled": 3});
    CompileRequest { concurrency: 4, ..with_options("bootstrap_demos.v1", options) }
}

/// The process that is killed: it runs a compile to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_a_compile() {
    let Ok(path) = std::env::var(KILLED) else { return };
    let loom = AnyLoom::new(Store::sqlite(path).unwrap());
    let office = Office::new(&loom, &slow_task(), &reflects());
    office.store_tickets(KILLED_SIZES.0, KILLED_SIZES.1, KILLED_SIZES.2).await;
    println!("begun");
    let reply = office.start(killed_request()).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_process_that_is_killed_at_any_time_leaves_a_compile_that_another_ends() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loom.db");
    for round in 0_u64..6 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "compile_kills::a_process_that_runs_a_compile", "--nocapture"])
            .env(KILLED, &path)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        while let Some(Ok(line)) = output.next() {
            if line.contains("begun") {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20 + round * 37 % 90)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let heir = Office::new(&AnyLoom::new(Store::sqlite(&path).unwrap()), &slow_task(), &reflects());
    let reply = heir.start(killed_request()).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
    let run = run_of(&reply);
    assert_eq!(heir.loom.jobs(JobFilter::default(), PageRequest::FIRST).await.unwrap().items.len(), 1);
    // A process that nobody killed finds the same.
    let other = Office::new(&AnyLoom::new(MemoryLoom::new()), &slow_task(), &reflects());
    other.store_tickets(KILLED_SIZES.0, KILLED_SIZES.1, KILLED_SIZES.2).await;
    let expected = other.start(killed_request()).await;
    assert_eq!(lasting(&report_of(&reply)), lasting(&report_of(&expected)));
    assert_eq!(heir.asks(run).await, other.asks(run_of(&expected)).await);
    heir.assert_sound(run).await;
}

#[tokio::test]
async fn the_number_of_trials_at_once_and_their_delays_change_nothing() {
    for asked in small_requests() {
        let expected = whole(&asked).await;
        for concurrency in [1, 8, 64] {
            let slow = Router::new(TASK, |told| {
                let is_right = !told.demos.is_empty() || told.system.contains("carefully");
                // The delay depends on the ticket, so trials end in another order than they begin.
                let delay = Duration::from_millis(told.asked.len() as u64 % 7);
                Response { delay, ..told.answer(is_right) }
            });
            let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &slow, &reflects());
            store(&office).await;
            let reply = office.start(CompileRequest { concurrency, ..asked.clone() }).await;
            assert_code(&reply.guarded.reply, codes::COMPILED);
            assert_eq!(lasting(&report_of(&reply)), expected.report, "{} at {concurrency}", asked.optimiser);
            assert_eq!(office.asks(run_of(&reply)).await, expected.asks, "{} at {concurrency}", asked.optimiser);
        }
    }
}

#[tokio::test]
async fn a_larger_budget_goes_on_with_the_same_path_and_asks_nothing_twice() {
    for (loom, _folder) in stores() {
        let (task, reflect) = (task(), reflects());
        let office = Office::new(&loom, &task, &reflect);
        office.store_tickets(8, 6, 4).await;
        let asked = |max_calls: Option<u64>| CompileRequest {
            max_calls,
            ..with_options("bootstrap_demos.v1", json!({"candidates": 4, "bootstrapped": 0, "labelled": 4}))
        };
        // The base and two sets on six tickets, and the final test of two sides on four.
        let reply = office.start(asked(Some(3 * 6 + 2 * 4))).await;
        assert_code(&reply.guarded.reply, codes::COMPILED);
        let run = run_of(&reply);
        let small = report_of(&reply);
        assert_eq!(office.job(run).await.status, JobStatus::BudgetExhausted);
        assert_eq!((small.trials.holdout, small.trials.test), (18, 8), "the final test is always paid");
        assert!(small.eval_id.is_some());
        let (path, rows) = (office.asks(run).await, office.rows(run).await);
        office.assert_sound(run).await;
        let before = task.counts();
        let more = JobContinuation { budget: None, max_calls: Some(1_000) };
        let reply = office.driver.reopen(run, more, office.parts(run).await, 8, &Cancel::new()).await;
        assert_code(&reply.guarded.reply, codes::COMPILED);
        let large = report_of(&reply);
        assert_eq!(office.job(run).await.status, JobStatus::Succeeded);
        assert!(large.trials.holdout > small.trials.holdout, "{large:?}");
        // The earlier Asks are the beginning of all Asks.
        assert_eq!(office.asks(run).await[..path.len()], path[..]);
        let kept = office.rows(run).await;
        assert!(rows.iter().all(|row| kept.contains(row)));
        for (told, count) in before {
            assert_eq!(task.counts()[&told], count, "{told} was settled");
        }
        assert!(task.counts().values().all(|count| *count == 1));
        assert_eq!(office.replay(run).await.difference, None);
        // A job that never ran out goes the same way.
        let other = Office::new(&AnyLoom::new(MemoryLoom::new()), &task, &reflect);
        other.store_tickets(8, 6, 4).await;
        let free = other.start(asked(None)).await;
        let whole = report_of(&free);
        assert_eq!((whole.selected.clone(), whole.curve.clone()), (large.selected.clone(), large.curve.clone()));
        let ids = |report: &cantrip_contract::CompileReport| -> Vec<_> {
            report.candidates.iter().map(|candidate| (candidate.compiled_id.clone(), candidate.holdout)).collect()
        };
        assert_eq!(ids(&whole), ids(&large));
        assert_eq!(ids(&small)[..3], ids(&whole)[..3]);
        let searched: Vec<Hash> = other.asks(run_of(&free)).await;
        assert_eq!(searched[..3], path[..3], "the path under a small budget is a prefix");
    }
}

#[tokio::test]
async fn a_search_that_cannot_pay_for_its_first_step_has_no_winner() {
    let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &task(), &reflects());
    office.store_tickets(4, 6, 4).await;
    let asked = CompileRequest { max_calls: Some(13), ..request("bootstrap_demos.v1") };
    let reply = office.start(asked).await;
    assert_code(&reply.guarded.reply, codes::BUDGET_SPENT);
    let report = report_of(&reply);
    assert_eq!((report.selected.clone(), report.budget.used.calls), (None, 0));
    assert!(office.rows(run_of(&reply)).await.iter().all(|row| row.split != Split::Test));
    assert_eq!(office.replay(run_of(&reply)).await.difference, None);
}
