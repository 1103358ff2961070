//! The money and the calls of compiles: never above their bounds, never above what the plan said, and the final test is
//! always paid.

use cantrip::canon::{Entropy, Money, SeededEntropy};
use cantrip::crystal::{Price, Rates};
use cantrip::loom::{AnyLoom, Contracts, Improvements, Ledger, MemoryLoom, PageRequest, ReceiptFilter, Usage};
use cantrip::spend::{AuthorizationMode, AuthorizationRef};
use cantrip_contract::{EvalStatus, JobStatus, Split};
use cantrip_improve::compile::CompileRequest;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;

use crate::compile_world::{Office, REFLECT, Router, TASK, proposes, report_of, route, run_of, with_options};
use crate::support::{grant, replied};

fn usd(micros: i64) -> Money {
    Money::new(micros, "USD".parse().unwrap()).unwrap()
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
    if std::env::var_os("PROPTEST_CASES").is_some() { 1_000 } else { 30 }
}

/// A priced crystal of trials that is right with demos or with a word, and one that proposes that word.
fn priced(rates: Rates, prompt: u64, completion: u64) -> (Router, Router) {
    let used = Usage { prompt_tokens: prompt, completion_tokens: completion, ..Usage::default() };
    let task = Router::new(TASK, move |told| {
        let is_right = !told.demos.is_empty() || told.system.contains("carefully");
        told.answer(is_right).with_usage(used)
    });
    let reflect = Router::new(REFLECT, move |_| {
        let answer = json!({"diagnosis": "careless", "new_text": "Route it carefully."});
        crate::support::done(answer).with_usage(used)
    });
    (Router { price: Price::Listed(rates), ..task }, Router { price: Price::Listed(rates), ..reflect })
}

fn random_request(dice: &Dice) -> CompileRequest {
    let reflects = |asked: CompileRequest| CompileRequest { reflect_model: Some(REFLECT.to_owned()), ..asked };
    match dice.below(3) {
        0 => with_options("bootstrap_demos.v1", json!({"candidates": 1 + dice.below(3), "bootstrapped": 1})),
        1 => CompileRequest {
            texts: vec!["Route it well.".to_owned()],
            ..reflects(with_options("instruction_grid.v1", json!({"cross": 0, "proposals": 1 + dice.below(2)})))
        },
        _ => CompileRequest {
            texts: vec!["Route it well.".to_owned()],
            ..with_options("mipro_lite.v1", json!({"demo_sets": 2, "minibatch": 2, "trials": 4}))
        },
    }
}

#[tokio::test(start_paused = true)]
async fn no_compile_passes_its_budget_its_calls_or_the_worst_cost_of_its_plan() {
    let (mut ended, mut exhausted) = (0, 0);
    for seed in 0..random_jobs() {
        let dice = Dice(SeededEntropy::new(seed));
        let rates = Rates::new(usd(1 + dice.below(5_000_000) as i64), usd(1 + dice.below(50_000_000) as i64)).unwrap();
        let (task, reflect) = priced(rates, 1 + dice.below(300), 1 + dice.below(64));
        let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &task, &reflect);
        let test = 1 + dice.below(3) as usize;
        office.store_tickets(4, 2 + dice.below(3) as usize, test).await;
        let asked = random_request(&dice);
        let free = office.prepare(asked.clone()).await.unwrap();
        let (worst, trials) = (free.plan().cost.worst.money().unwrap(), free.plan().trials);
        // Most compiles cost a small part of their worst case.
        let part = [2_000, 200, 20, 1][dice.below(4) as usize];
        let budget = usd(1 + dice.below(u64::try_from(worst.micros()).unwrap() / part) as i64);
        let max_calls = (dice.below(2) == 0).then(|| 1 + dice.below(trials));
        let asked = CompileRequest { budget: Some(budget), max_calls, ..asked };
        let reply = office.start(asked).await;
        let run = run_of(&reply);
        let job = office.job(run).await;
        let place = format!("seed {seed}: {budget} of {worst}, {max_calls:?} of {trials}, {:?}", job.status);
        match job.status {
            JobStatus::Succeeded => ended += 1,
            JobStatus::BudgetExhausted => exhausted += 1,
            JobStatus::Queued
            | JobStatus::Running
            | JobStatus::Incomplete
            | JobStatus::Cancelled
            | JobStatus::Failed => panic!("{place}: {:?}", job.error),
        }
        let cap = office.loom.cap(AuthorizationRef::Local, run.to_string()).await.unwrap().unwrap();
        assert!(cap.counters.spent <= budget.micros(), "{place}: spent {}", cap.counters.spent);
        assert!(cap.counters.spent <= worst.micros(), "{place}: spent {}", cap.counters.spent);
        assert_eq!(cap.counters.reserved, 0, "{place}");
        let receipts = office.loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let captured: u64 = receipts.iter().map(|row| row.receipt().unwrap().budget.captured).sum();
        assert_eq!(i64::try_from(captured).unwrap(), cap.counters.spent, "{place}");
        let report = report_of(&reply);
        assert_eq!(report.budget.used.amount, captured, "{place}");
        assert!(report.budget.used.calls <= max_calls.unwrap_or(trials), "{place}");
        assert!(report.trials.train + report.trials.holdout + report.trials.test <= trials, "{place}");
        // The calls of the final test are always left: where calls alone ended the search, the winner was tested.
        let rows = office.rows(run).await;
        let tested = rows.iter().filter(|row| row.split == Split::Test).count();
        if report.selected.as_ref().is_some_and(|selected| *selected != report.base)
            && report.eval_id.is_some()
            && job.status == JobStatus::Succeeded
        {
            assert_eq!(tested, 2 * test, "{place}");
        }
        let caps = task.output_caps.lock().unwrap().clone();
        assert!(caps.iter().all(|cap| Some(cap) == caps.first()), "{place}: {caps:?}");
        office.assert_sound(run).await;
    }
    assert!(ended > 0 && exhausted > 0, "{ended} ended and {exhausted} ran out");
}

#[tokio::test]
async fn a_search_that_runs_out_of_calls_still_tests_its_winner() {
    for calls in 12..60 {
        let (task, reflect) = priced(Rates::new(usd(1), usd(1)).unwrap(), 10, 5);
        let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &task, &reflect);
        office.store_tickets(4, 4, 4).await;
        let asked = with_options("bootstrap_demos.v1", json!({"candidates": 6, "bootstrapped": 0}));
        let reply = office.start(CompileRequest { max_calls: Some(calls), ..asked }).await;
        let report = report_of(&reply);
        assert!(report.budget.used.calls <= calls, "{calls}: {report:?}");
        match &report.selected {
            Some(selected) if *selected != report.base => {
                assert_eq!(report.trials.test, 8, "{calls}");
                let id = report.eval_id.clone().unwrap();
                let tested = office.loom.eval_report(id).await.unwrap().report().unwrap();
                assert_eq!(tested.status, EvalStatus::Succeeded, "{calls}");
            }
            Some(_) | None => assert_eq!(report.trials.test, 0, "{calls}"),
        }
        office.assert_sound(run_of(&reply)).await;
    }
}

#[tokio::test]
async fn who_cannot_pay_for_a_compile_is_told_with_the_plan() {
    let unknown = Router { price: Price::Unknown, ..Router::right_if(|_| true) };
    let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &unknown, &proposes(""));
    office.store_tickets(4, 4, 4).await;
    let asked = || with_options("bootstrap_demos.v1", json!({"candidates": 1}));
    let limited = CompileRequest { budget: Some(usd(5)), ..asked() };
    assert_code(&replied(office.prepare(limited).await.unwrap_err()).await, codes::PRICE_UNKNOWN);
    assert!(office.prepare(asked()).await.is_ok(), "without a limit it may be asked");
    let asks = grant(&office.loom, 9, |terms| {
        terms.mode = AuthorizationMode::Interactive;
        terms.scope.autopilot_id = Some(route().id().to_string());
    })
    .await;
    let interactive = CompileRequest { authorization: Some(asks), ..asked() };
    assert_code(&replied(office.prepare(interactive).await.unwrap_err()).await, codes::NOT_AUTHORIZED);
    assert_eq!(unknown.asked(), 0);
}
