//! Jobs: one run for many trials, that can be started twice, stopped, killed, resumed, continued and cancelled.

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip::canon::{Entropy, Money, RunId, SeededEntropy};
use cantrip::crystal::{Price, Rates, Response};
use cantrip::loom::{
    AnyLoom, Contracts, Event, Improvements, JobFilter, Journal, Ledger, Loom, MemoryLoom, PageRequest, ReceiptFilter,
    Record, RunKind, RunState, Seq,
};
use cantrip::spend::{AuthorizationMode, AuthorizationRef};
use cantrip::{Cancel, Waiting};
use cantrip_contract::{JobStatus, Purpose, Subject};
use cantrip_ds::job::{
    Ask, AskSource, CostBound, JobContinuation, JobParts, JobProgressView, JobReply, JobState, TrialList,
};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_store::Store;
use cantrip_tests::peer::{Peer, new_schema};
use futures_util::TryStreamExt;

use crate::dying::Dying;
use crate::job_world::{Process, Words, delay, request, shouted, spec, trials_of, with_budget, with_tokens, word};
use crate::support::{grant, listed, replied, shout, stores};

fn usd(micros: i64) -> Money {
    Money::new(micros, cantrip::canon::Currency::USD).unwrap()
}

fn run_of(reply: &JobReply) -> RunId {
    reply.run.unwrap_or_else(|| panic!("nothing was opened: {:?}", reply.guarded.reply))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trial_is_one_predict_with_a_receipt_below_the_run_of_its_job() {
    for (loom, _folder) in stores() {
        let crystal = Words::new(listed(), |word, _| with_tokens(shouted(word), 40, 9));
        let process = Process::new(loom, &crystal);
        let dataset = process.store_dataset(6).await;
        let reply = process.run(request(dataset, 4), 6).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let run = run_of(&reply);
        let job = process.job(run).await;
        assert_eq!((job.status, job.metric_calls), (JobStatus::Succeeded, 6));
        assert_eq!(process.results(&job).await.iter().filter(|row| row[3] == 1_000_000).count(), 6);
        assert_eq!(crystal.requests(), 6);
        let receipts = process.loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(receipts.len(), 6);
        let named: Vec<_> = process.rows(&job).await.into_iter().map(|row| row.receipt_id.unwrap()).collect();
        for row in &receipts {
            let receipt = row.receipt().unwrap();
            assert_eq!(receipt.purpose, Some(Purpose::Eval));
            assert!(named.contains(&row.receipt_id));
            let below = process.loom.run(receipt.run_id).await.unwrap();
            assert_eq!((below.kind, below.root_run_id), (RunKind::Predict, Some(run)));
            for hold in &receipt.budget.reservation_ids {
                let held = process.loom.reservation(hold.parse().unwrap()).await.unwrap();
                assert_eq!(held.row.terms().root_run, run);
            }
        }
        let view = process.loom.run(run).await.unwrap();
        assert_eq!((view.kind, view.state, view.root_run_id), (RunKind::Job, RunState::Terminated, None));
        let records: Vec<Record> = process.loom.read(run, Seq::START).try_collect().await.unwrap();
        let count =
            |wanted: fn(&Event) -> bool| records.iter().filter(|record| wanted(&record.event().unwrap())).count();
        assert_eq!(count(|event| matches!(event, Event::JobOpened(_))), 1);
        assert_eq!(count(|event| matches!(event, Event::JobAsked(_))), 1);
        assert_eq!(count(|event| matches!(event, Event::JobScored(_))), 6);
        assert_eq!(count(|event| matches!(event, Event::JobClosed(_))), 1);
        process.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_equal_starts_are_one_job_and_a_third_reads_its_end() {
    for (loom, _folder) in stores() {
        let crystal = Words::new(Price::Free, |word, _| Response { delay: Duration::from_millis(30), ..shouted(word) });
        let one = Process::new(loom.clone(), &crystal);
        let other = Process::new(loom, &crystal);
        let dataset = one.store_dataset(5).await;
        let (here, there) = (one.careful_driver(), other.careful_driver());
        let (first, second) = tokio::join!(
            here.start(request(dataset, 2), one.parts(5)),
            there.start(request(dataset, 2), other.parts(5)),
        );
        for reply in [&first, &second] {
            assert_code(&reply.guarded.reply, codes::EVALUATED);
        }
        assert_eq!(first.run, second.run);
        assert_eq!([first.replayed, second.replayed].iter().filter(|replayed| **replayed).count(), 1, "one followed");
        assert_eq!(crystal.requests(), 5);
        let third = other.run(request(dataset, 8), 5).await;
        assert_code(&third.guarded.reply, codes::EVALUATED);
        assert_eq!((third.run, third.replayed, crystal.requests()), (first.run, true, 5));
        let mut again = request(dataset, 8);
        again.spec.rerun = 1;
        let again = one.run(again, 5).await;
        assert_ne!(again.run, first.run);
        assert_eq!(crystal.requests(), 10);
        let jobs = one.loom.jobs(JobFilter::default(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(jobs.len(), 2);
        one.is_clean().await;
    }
}

/// Runs a job on a store that dies after each number of steps, and lets another process go on.
async fn killed_after_every_step(open: impl Fn() -> (AnyLoom, Option<tempfile::TempDir>), count: usize) {
    let plan = |word: &str, _: u64| match word {
        // One candidate's own failure, one wrong answer.
        "word02" => Response::call("c1", "done", serde_json::json!({"answer": {"words": 2}})),
        "word03" => with_tokens(shouted("word99"), 30, 5),
        word => with_tokens(shouted(word), 30, 5),
    };
    let (loom, _folder) = open();
    let crystal = Words::new(listed(), plan);
    let whole = Process::new(loom.clone(), &crystal);
    let dataset = whole.store_dataset(count).await;
    let counting = Dying::after(loom, u64::MAX);
    let counted = Process::new(AnyLoom::new(counting.clone()), &crystal);
    let reply = counted.run(request(dataset, 2), count).await;
    let wanted = whole.results(&whole.job(run_of(&reply)).await).await;
    let once = crystal.counts();
    assert_eq!(wanted.len(), count);
    for dies_after in 0..counting.taken() {
        let (loom, _folder) = open();
        let crystal = Words::new(listed(), plan);
        let heir = Process::new(loom.clone(), &crystal);
        assert_eq!(heir.store_dataset(count).await, dataset);
        let place = format!("dead after {dies_after} of {} steps", counting.taken());
        {
            let dying = Process::new(AnyLoom::new(Dying::after(loom, dies_after)), &crystal);
            let died = dying.run(request(dataset, 2), count).await;
            assert_ne!(died.status, Some(JobStatus::Succeeded), "{place}");
        }
        let reply = heir.run(request(dataset, 2), count).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let job = heir.job(run_of(&reply)).await;
        assert_eq!(heir.results(&job).await, wanted, "{place}");
        let more: u64 = crystal.counts().iter().map(|(word, asked)| asked - once[word]).sum();
        assert!(more <= 2, "{place}: {more} requests more than those under way");
        heir.is_clean().await;
        let jobs = heir.loom.jobs(JobFilter::default(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(jobs.len(), 1, "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_killed_after_any_step_is_taken_over_and_ends_the_same() {
    killed_after_every_step(|| (AnyLoom::new(MemoryLoom::new()), None), 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_for_databases() {
    let in_a_file = || {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::sqlite(folder.path().join("loom.db")).unwrap();
        (AnyLoom::new(store), Some(folder))
    };
    killed_after_every_step(in_a_file, 3).await;
    if let Some(url) = Peer::Postgres.find() {
        let on_a_server = || (AnyLoom::new(Store::postgres_in(&url, &new_schema()).unwrap()), None);
        killed_after_every_step(on_a_server, 3).await;
    }
}

/// The settings of a started process; none if the test was not started by another process.
const KILLED: &str = "CANTRIP_DS_TEST_KILLED_STORE";

fn slow_words() -> Words {
    Words::new(listed(), |word, _| Response { delay: Duration::from_millis(15), ..with_tokens(shouted(word), 30, 5) })
}

const KILLED_WORDS: usize = 20;

/// The process that is killed: it runs a job to its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_runs_a_job() {
    let Ok(path) = std::env::var(KILLED) else { return };
    let loom = AnyLoom::new(Store::sqlite(path).unwrap());
    let process = Process::new(loom, &slow_words());
    let dataset = process.store_dataset(KILLED_WORDS).await;
    println!("begun");
    let reply = process.run(request(dataset, 4), KILLED_WORDS).await;
    assert_code(&reply.guarded.reply, codes::EVALUATED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_process_that_is_killed_at_any_time_leaves_a_job_that_another_ends() {
    use std::io::{BufRead, BufReader};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loom.db");
    for round in 0_u64..6 {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "jobs::a_process_that_runs_a_job", "--nocapture"])
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
        tokio::time::sleep(Duration::from_millis(round * 37 % 90)).await;
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let crystal = slow_words();
    let heir = Process::new(AnyLoom::new(Store::sqlite(&path).unwrap()), &crystal);
    let dataset = heir.store_dataset(KILLED_WORDS).await;
    let reply = heir.run(request(dataset, 4), KILLED_WORDS).await;
    assert_code(&reply.guarded.reply, codes::EVALUATED);
    let job = heir.job(run_of(&reply)).await;
    let results = heir.results(&job).await;
    assert_eq!(results.len(), KILLED_WORDS);
    assert!(results.iter().all(|row| row[3] == 1_000_000), "{results:?}");
    assert_eq!(heir.loom.jobs(JobFilter::default(), PageRequest::FIRST).await.unwrap().items.len(), 1);
    heir.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_trials_at_once_and_their_delays_change_nothing() {
    let mut told = Vec::new();
    for (seed, concurrency) in [(1, 1), (2, 8), (3, 64), (4, 8)] {
        let crystal = Words::new(Price::Free, move |word, _| {
            let right = if word.ends_with('3') { "word00" } else { word };
            Response { delay: delay(seed, word), ..shouted(right) }
        });
        let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
        let dataset = process.store_dataset(30).await;
        let reply = process.run(request(dataset, concurrency), 30).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let run = run_of(&reply);
        let records: Vec<Record> = process.loom.read(run, Seq::START).try_collect().await.unwrap();
        let asked: Vec<_> =
            records.iter().filter_map(|record| record.event().unwrap().as_job_asked().cloned()).collect();
        told.push((process.results(&process.job(run).await).await, asked));
    }
    assert!(told.iter().all(|one| *one == told[0]));
    assert_eq!(told[0].0.iter().filter(|row| row[3] == 0).count(), 3);
}

/// Numbers from a seed.
struct Dice(SeededEntropy);

impl Dice {
    fn below(&self, most: u64) -> u64 {
        let mut drawn = [0; 8];
        self.0.fill(&mut drawn);
        u64::from_le_bytes(drawn) % most.max(1)
    }
}

/// The number of random jobs: a thousand in the long form.
fn random_jobs() -> u64 {
    if std::env::var_os("PROPTEST_CASES").is_some() { 1_000 } else { 120 }
}

#[tokio::test(start_paused = true)]
async fn no_job_passes_its_budget_its_calls_or_the_worst_cost_of_its_plan() {
    let (mut ended, mut exhausted) = (0, 0);
    for seed in 0..random_jobs() {
        let dice = Dice(SeededEntropy::new(seed));
        let count = 1 + dice.below(6) as usize;
        let rates = Rates::new(usd(1 + dice.below(5_000_000) as i64), usd(1 + dice.below(50_000_000) as i64)).unwrap();
        let (prompt, completion) = (1 + dice.below(300), 1 + dice.below(64));
        let crystal = Words::new(Price::Listed(rates), move |word, asked| {
            // Every third word needs a repair.
            let said = if word.ends_with(['3', '6']) && asked == 1 { "" } else { word };
            let answer =
                if said.is_empty() { serde_json::json!({"words": 1}) } else { serde_json::json!({"text": said}) };
            let response = Response::call("c1", "done", serde_json::json!({"answer": answer}));
            with_tokens(Response { delay: delay(seed, word), ..response }, prompt, completion)
        });
        let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
        let dataset = process.store_dataset(count).await;
        let parts = process.parts(count);
        let mut worst = CostBound::Free;
        for trial in &trials_of(count) {
            worst = worst.plus(parts.trials.worst(trial).await.unwrap());
        }
        let all = worst.money().unwrap().micros();
        let budget = usd(1 + dice.below(u64::try_from(all).unwrap() * 5 / 4) as i64);
        let mut asked = with_budget(request(dataset, 1 + dice.below(4) as usize), budget, &Cancel::new());
        asked.limits.max_calls = (dice.below(3) == 0).then(|| 1 + dice.below(6));
        let max_calls = asked.limits.max_calls;
        let reply = process.driver.start(asked, parts).await;
        let run = run_of(&reply);
        let job = process.job(run).await;
        let place = format!("seed {seed}: {count} words, {budget} of {all}, {:?}", job.status);
        match job.status {
            JobStatus::Succeeded => ended += 1,
            JobStatus::BudgetExhausted => exhausted += 1,
            JobStatus::Queued
            | JobStatus::Running
            | JobStatus::Incomplete
            | JobStatus::Cancelled
            | JobStatus::Failed => panic!("{place}: {:?}", job.error),
        }
        let cap = process.loom.cap(AuthorizationRef::Local, run.to_string()).await.unwrap().unwrap();
        assert!(cap.counters.spent <= budget.micros(), "{place}: spent {}", cap.counters.spent);
        assert_eq!(cap.counters.reserved, 0, "{place}");
        let receipts = process.loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let captured: u64 = receipts.iter().map(|row| row.receipt().unwrap().budget.captured).sum();
        assert_eq!(i64::try_from(captured).unwrap(), cap.counters.spent, "{place}");
        assert!(cap.counters.spent <= all, "{place}: the plan said {all} at worst");
        assert!(max_calls.is_none_or(|most| job.metric_calls <= most), "{place}");
        if max_calls.is_some_and(|most| most < count as u64) {
            assert_eq!(
                (job.metric_calls, crystal.requests()),
                (0, 0),
                "{place}: an Ask that does not fit is not begun"
            );
        }
        let caps = crystal.output_caps.lock().unwrap().clone();
        assert!(caps.iter().all(|cap| *cap == 64), "{place}: {caps:?}");
        process.is_clean().await;
    }
    assert!(ended > 0 && exhausted > 0, "{ended} ended and {exhausted} ran out");
}

/// A source that keeps three trials for a final test.
struct WithFinalTest(TrialList);

impl AskSource for WithFinalTest {
    fn next(&self, state: &JobState) -> Ask {
        self.0.next(state)
    }

    fn set_aside(&self, _: &JobState) -> u64 {
        3
    }

    fn trials_at_worst(&self, state: &JobState) -> u64 {
        self.0.trials_at_worst(state) + 3
    }
}

#[tokio::test(start_paused = true)]
async fn the_trials_of_the_final_test_are_always_left() {
    for (most, wanted) in [(7, JobStatus::BudgetExhausted), (8, JobStatus::Succeeded)] {
        let crystal = Words::right(Price::Free);
        let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
        let dataset = process.store_dataset(5).await;
        let mut asked = request(dataset, 2);
        asked.limits.max_calls = Some(most);
        let source = std::sync::Arc::new(WithFinalTest(TrialList::new(trials_of(5))));
        let parts = JobParts { source, ..process.parts(5) };
        let reply = process.driver.start(asked, parts).await;
        assert_eq!(reply.status, Some(wanted), "{most} calls");
        assert_eq!(crystal.requests(), if wanted == JobStatus::Succeeded { 5 } else { 0 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_larger_budget_goes_on_and_asks_nothing_twice() {
    for (loom, _folder) in stores() {
        // An answer costs nearly its worst case.
        let price = Price::Listed(Rates::new(usd(1), "1000 USD".parse().unwrap()).unwrap());
        let crystal = Words::new(price, |word, _| with_tokens(shouted(word), 50, 60));
        let process = Process::new(loom, &crystal);
        let dataset = process.store_dataset(8).await;
        let parts = process.parts(8);
        let one = parts.trials.worst(&trials_of(1)[0]).await.unwrap().money().unwrap();
        let small = with_budget(request(dataset, 1), one.times(2).unwrap(), &Cancel::new());
        let reply = process.driver.start(small, parts).await;
        let run = run_of(&reply);
        let before = process.job(run).await;
        assert_eq!(before.status, JobStatus::BudgetExhausted);
        assert_eq!(process.loom.run(run).await.unwrap().state, RunState::Failed);
        let settled = process.results(&before).await;
        assert!((1..8).contains(&settled.len()), "{settled:?}");
        let asked = crystal.counts();
        let same = process.run(request(dataset, 1), 8).await;
        assert_eq!((same.run, same.replayed, same.status), (Some(run), true, Some(JobStatus::BudgetExhausted)));
        let less = JobContinuation { budget: Some(usd(1)), max_calls: None };
        let refused = process.driver.reopen(run, less, process.parts(8), 1, &Cancel::new()).await;
        assert_code(&refused.guarded.reply, codes::SCHEMA);
        let more = JobContinuation { budget: Some(one.times(20).unwrap()), max_calls: None };
        let reply = process.driver.reopen(run, more, process.parts(8), 4, &Cancel::new()).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        let job = process.job(run).await;
        let whole = process.results(&job).await;
        assert_eq!((job.status, whole.len()), (JobStatus::Succeeded, 8));
        assert!(settled.iter().all(|row| whole.contains(row)));
        for (word, count) in asked {
            assert_eq!(crystal.counts()[&word], count, "{word} was settled");
        }
        assert_eq!(process.loom.run(run).await.unwrap().state, RunState::Terminated);
        process.is_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_cannot_pay_for_a_job_is_told_before_any_call() {
    let crystal = Words::right(listed());
    let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
    let dataset = process.store_dataset(3).await;
    let subject = Subject::Signature(shout().id().clone());
    let payer = process.predictor.job_payer("local", None, &subject, None, None).await.unwrap();
    assert_eq!(payer.id, AuthorizationRef::Local);
    let unpriced =
        process.predictor.job_payer("local", None, &subject, Some("acme/new"), Some(usd(5))).await.unwrap_err();
    assert_code(&replied(unpriced).await, codes::PRICE_UNKNOWN);
    assert!(process.predictor.job_payer("local", None, &subject, Some("acme/new"), None).await.is_ok());
    let asks = grant(&process.loom, 9, |terms| terms.mode = AuthorizationMode::Interactive).await;
    let refused = process.predictor.job_payer("local", Some(asks), &subject, None, None).await.unwrap_err();
    assert_code(&replied(refused).await, codes::NOT_AUTHORIZED);
    let mut named = request(dataset, 2);
    named.authorization = Some(asks);
    let reply = process.run(named, 3).await;
    assert_code(&reply.guarded.reply, codes::NOT_AUTHORIZED);
    assert_eq!((reply.run, crystal.requests()), (None, 0));
    assert!(process.loom.job_of_hash(spec(dataset, "default").job_hash()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_job_waits_and_goes_on_and_a_cancelled_one_settles_every_hold() {
    for (loom, _folder) in stores() {
        let crystal = Words::new(listed(), |word, _| Response {
            delay: Duration::from_millis(20),
            ..with_tokens(shouted(word), 30, 5)
        });
        let process = Process::new(loom, &crystal);
        let dataset = process.store_dataset(12).await;
        let interrupted = Cancel::new();
        let press = interrupted.clone();
        let watched = process.driver.with_watcher(move |progress: &JobProgressView| {
            if progress.done == 3 {
                press.park();
            }
        });
        let asked = with_budget(request(dataset, 2), usd(1_000_000), &interrupted);
        let reply = watched.start(asked, process.parts(12)).await;
        assert_code(&reply.guarded.reply, codes::CREATED);
        assert_eq!(reply.waiting, Some(Waiting::Interrupted));
        let data = reply.guarded.reply.data();
        assert_eq!((data["state"].as_str(), data["reason"].as_str()), (Some("waiting"), Some("interrupted")));
        let run = run_of(&reply);
        assert_eq!(process.loom.run(run).await.unwrap().state, RunState::Waiting);
        let settled = process.results(&process.job(run).await).await;
        assert!((3..12).contains(&settled.len()), "{}", settled.len());
        // Cancelled while it goes on.
        let cancelled = Cancel::new();
        let press = cancelled.clone();
        let watched = process.driver.with_watcher(move |progress: &JobProgressView| {
            if progress.done == 7 {
                press.cancel();
            }
        });
        let reply = watched.resume(run, process.parts(12), 2, &cancelled).await;
        assert_eq!(reply.status, Some(JobStatus::Cancelled));
        process.is_clean().await;
        let kept = process.results(&process.job(run).await).await;
        assert!(settled.iter().all(|row| kept.contains(row)) && kept.len() < 12);
        // No trial is left that waits for somebody.
        let waiting = process.loom.runs_in(RunState::Waiting, PageRequest::FIRST).await.unwrap().items;
        assert_eq!(waiting.len(), 0, "{waiting:?}");
        // And continued.
        let reply = process.driver.reopen(run, JobContinuation::default(), process.parts(12), 4, &Cancel::new()).await;
        assert_code(&reply.guarded.reply, codes::EVALUATED);
        assert_eq!(process.results(&process.job(run).await).await.len(), 12);
        process.is_clean().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_cancelled_from_another_process() {
    for (loom, _folder) in stores() {
        let crystal =
            Words::new(Price::Free, |word, _| Response { delay: Duration::from_millis(200), ..shouted(word) });
        let one = Process::new(loom.clone(), &crystal);
        let other = Process::new(loom, &crystal);
        let dataset = one.store_dataset(60).await;
        let (tell, mut told) = tokio::sync::watch::channel(None::<RunId>);
        let driver = one.driver.with_watcher(move |progress: &JobProgressView| {
            tell.send_replace(Some(progress.run));
        });
        let asks = async {
            let run = told.wait_for(Option::is_some).await.unwrap().unwrap();
            let by = cantrip::loom::Actor::new("ann").unwrap();
            let reply = other.runtime().cancel(run, &by).await;
            assert_code(&reply.reply, codes::CHANGED);
        };
        let (reply, ()) = tokio::join!(driver.start(request(dataset, 2), one.parts(60)), asks);
        assert_eq!(reply.status, Some(JobStatus::Cancelled));
        assert!(crystal.requests() < 60);
        one.is_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn five_failures_in_a_row_park_the_job_and_three_of_one_trial_leave_it_unscored() {
    // A provider that is down for a while.
    let down = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let state = std::sync::Arc::clone(&down);
    let crystal = Words::new(Price::Free, move |word, _| {
        if state.load(std::sync::atomic::Ordering::SeqCst) { Response::error(503, "down") } else { shouted(word) }
    });
    let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
    let dataset = process.store_dataset(20).await;
    let reply = process.run(request(dataset, 1), 20).await;
    let Some(Waiting::Crystal { .. }) = &reply.waiting else { panic!("{:?}", reply.guarded.reply) };
    assert_eq!(reply.guarded.reply.data()["reason"], "crystal_unavailable");
    let run = run_of(&reply);
    let receipts = process.loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(receipts.len(), 5, "the list is not burned");
    assert_eq!(process.loom.run(run).await.unwrap().state, RunState::Waiting);
    down.store(false, std::sync::atomic::Ordering::SeqCst);
    let reply = process.driver.resume(run, process.parts(20), 4, &Cancel::new()).await;
    assert_code(&reply.guarded.reply, codes::EVALUATED);
    let rows = process.rows(&process.job(run).await).await;
    assert!(rows.len() == 20 && rows.iter().all(|row| row.score_micro == Some(1_000_000)), "{rows:?}");
    let tries: BTreeMap<u64, usize> = rows.iter().fold(BTreeMap::new(), |mut tries, row| {
        *tries.entry(row.try_number).or_default() += 1;
        tries
    });
    assert_eq!(tries, BTreeMap::from([(1, 15), (2, 5)]));
    process.is_clean().await;

    // One example that fails for ever.
    let crystal =
        Words::new(Price::Free, |word, _| if word == "word04" { Response::error(503, "down") } else { shouted(word) });
    let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
    let dataset = process.store_dataset(9).await;
    let reply = process.run(request(dataset, 3), 9).await;
    assert_code(&reply.guarded.reply, codes::EVALUATED);
    let rows = process.rows(&process.job(run_of(&reply)).await).await;
    let failed: Vec<_> = rows.iter().filter(|row| row.unscored.is_some()).collect();
    assert_eq!((rows.len(), failed.len()), (9, 1));
    assert_eq!((failed[0].try_number, failed[0].score_micro, failed[0].own_failure), (3, None, false));
    assert_eq!(
        rows.last().map(|row| row.example_id.clone()),
        Some(failed[0].example_id.clone()),
        "tried after all others"
    );
    process.is_clean().await;
}

#[tokio::test(start_paused = true)]
async fn the_progress_never_goes_back_and_ends_at_the_whole() {
    let crystal =
        Words::new(listed(), |word, _| Response { delay: delay(5, word), ..with_tokens(shouted(word), 30, 5) });
    let process = Process::new(AnyLoom::new(MemoryLoom::new()), &crystal);
    let dataset = process.store_dataset(25).await;
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = std::sync::Arc::clone(&seen);
    let driver =
        process.driver.with_watcher(move |progress: &JobProgressView| told.lock().unwrap().push(progress.clone()));
    let asked = with_budget(request(dataset, 4), usd(1_000_000), &Cancel::new());
    let reply = driver.start(asked, process.parts(25)).await;
    assert_code(&reply.guarded.reply, codes::EVALUATED);
    let seen = seen.lock().unwrap().clone();
    assert_eq!((seen[0].done, seen[0].whole, seen[0].left_ms), (0, 25, None));
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert!(seen.windows(2).all(|pair| pair[0].spent.map(Money::micros) <= pair[1].spent.map(Money::micros)));
    let last = seen.last().unwrap();
    assert_eq!((last.done, last.whole, last.mean_micro), (25, 25, Some(1_000_000)));
    assert!(seen.iter().all(|progress| progress.left_ms.is_some() == (progress.done >= 10)));
    assert_eq!(word(1), "word01");
}
