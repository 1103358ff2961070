//! A predict whose process is dead is resumed, by its key or by its run, and still has one receipt.

use std::sync::Arc;
use std::time::Duration;

use cantrip::canon::{Clock, IdSource, RunId};
use cantrip::crystal::{Answer, AnyCrystal, Crystal, EventSink, Failure, Request, Response, ScriptedCrystal};
use cantrip::loom::{AnyLoom, Contracts, Journal, Loom, PageRequest, ReceiptFilter, RunState};
use cantrip::{Cancel, MachineClock, MachineEntropy, Runtime};
use cantrip_contract::{Receipt, SignatureOrigin, Status};
use cantrip_ds::{PredictOptions, Predictor, TraceArchive, TraceMode, trace, verify};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;

use crate::support::{Posing, done, grant, listed, predictor, says, scripted, shout, stores};

/// The model's first output does not match the schema; its second does, after a delay.
fn responses(delay: Duration) -> [Response; 2] {
    [done(json!({"words": "HEY"})), Response { delay, ..done(json!({"text": "HEY"})) }]
}

fn how(key: Option<&str>) -> PredictOptions {
    let idempotency_key = key.map(str::to_owned);
    // No defaults: the process that takes it over must find every setting.
    PredictOptions {
        idempotency_key,
        repair_attempts: Some(1),
        trace: TraceMode::Full,
        max_cost: Some("0.50 USD".parse().unwrap()),
        timeout: Duration::from_secs(77),
        params: cantrip_contract::Params { temperature: Some(0.25), ..Default::default() },
        ..PredictOptions::default()
    }
}

/// Runs a process that begins a predict and dies while the model works on its second output.
fn begins_and_dies(loom: &AnyLoom, key: Option<&'static str>) {
    let executor = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let script = scripted(responses(Duration::from_secs(3600)));
    let (loom, thinks) = (loom.clone(), script.clone());
    executor.spawn(async move {
        let predictor = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
        let _ = predictor.predict(shout().id(), &json!({"text": "hey"}), how(key)).await;
    });
    while thinks.request_count() < 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
    executor.shutdown_background();
}

/// Lets the leases of dead processes expire. A store with its own clock ignores the clock of its callers.
async fn let_leases_run_out(loom: &AnyLoom) {
    let here = || MachineClock::new().now().wall;
    for owner in loom.lease_owners().await.unwrap() {
        for lease in loom.leases_of(owner, PageRequest::FIRST).await.unwrap().items {
            let now = loom.lease_now(here()).await.unwrap();
            loom.renew(&lease, now, Duration::from_millis(1)).await.unwrap();
        }
    }
    while loom.orphans(loom.lease_now(here()).await.unwrap(), PageRequest::FIRST).await.unwrap().items.is_empty() {
        tokio::task::yield_now().await;
    }
}

/// Creates a predictor of a process whose clock is this much ahead.
fn later(loom: &AnyLoom, script: &ScriptedCrystal, ahead: Duration) -> Predictor {
    let clock = Arc::new(MachineClock::starting(MachineClock::new().now().wall.after(ahead)));
    let ids = Arc::new(IdSource::new(MachineEntropy));
    let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
    let crystal = AnyCrystal::new(Posing { price: listed(), ..says(script) });
    Predictor::new(runtime, move |_: Option<&str>| Ok(crystal.clone()), TraceArchive::inline(), clock, ids)
}

const HOUR: Duration = Duration::from_secs(3600);

async fn receipts(loom: &AnyLoom) -> Vec<Receipt> {
    assert_eq!(verify(loom, ReceiptFilter::default()).await.unwrap().findings, []);
    let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    rows.iter().map(|row| row.receipt().unwrap()).collect()
}

async fn only_run(loom: &AnyLoom) -> RunId {
    let runs = loom.runs(PageRequest::FIRST).await.unwrap().items;
    assert_eq!(runs.len(), 1);
    runs[0].run_id
}

/// Checks that the receipt of a predict that was taken over equals that of an uninterrupted one.
async fn closed_once(loom: &AnyLoom) {
    let told = receipts(loom).await;
    assert_eq!(told.len(), 1, "{told:?}");
    let told = &told[0];
    assert_eq!((told.status, told.seq), (Status::Succeeded, 1));
    assert_eq!((told.budget.iterations, told.budget.repairs), (2, 1));
    assert_eq!(told.budget.model_calls, 3, "the request that was cut off was made again");
    assert_eq!(told.budget.reservation_ids.len(), 3);
    assert_eq!(told.policy.authorization_mode.as_deref(), Some("delegated_budget"));
    assert!(told.timing.started_at <= told.timing.completed_at);
    let kept = trace(loom, told.trace_ref.as_ref().unwrap()).await.unwrap();
    let answers = kept["steps"].as_array().unwrap().iter().filter(|step| step["kind"] == "answer");
    let said: Vec<String> = answers.map(|step| step["utterance"].to_string()).collect();
    assert!(said.len() == 2 && said[0].contains("words") && said[1].contains("text"), "{said:?}");
    assert_eq!(kept["prompt"]["system"], "Say it louder.");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_key_takes_over_what_a_dead_process_began_and_not_what_a_living_one_does() {
    for (loom, _folder) in stores() {
        let script = scripted(responses(Duration::ZERO));
        let now = later(&loom, &script, Duration::ZERO);
        now.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        grant(&loom, 1, |_| {}).await;
        begins_and_dies(&loom, Some("k"));
        let input = json!({"text": "hey"});
        let early = now.predict(shout().id(), &input, how(Some("k"))).await;
        assert_code(&early.guarded.reply, codes::BUSY);
        assert_eq!(early.guarded.reply.data()["reason"], "in_flight");
        assert_eq!((script.request_count(), receipts(&loom).await.len()), (0, 0));
        let_leases_run_out(&loom).await;
        let heir = later(&loom, &script, HOUR);
        let other = heir.predict(shout().id(), &json!({"text": "ho"}), how(Some("k"))).await;
        assert_eq!(other.guarded.reply.data()["reason"], "idempotency_conflict");
        let taken = heir.predict(shout().id(), &input, how(Some("k"))).await;
        assert_code(&taken.guarded.reply, codes::PREDICTED);
        assert_eq!(taken.predicted.output, Some(json!({"text": "HEY"})));
        assert!(!taken.predicted.replayed);
        assert_eq!(taken.predicted.run, Some(only_run(&loom).await));
        closed_once(&loom).await;
        let again = heir.predict(shout().id(), &input, how(Some("k"))).await;
        assert!(again.predicted.replayed);
        assert_eq!(
            (again.predicted.output, again.predicted.receipt),
            (taken.predicted.output, taken.predicted.receipt)
        );
        closed_once(&loom).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_of_a_predict_is_resumed_with_its_receipt_and_read_once_it_is_over() {
    for (loom, _folder) in stores() {
        let script = scripted(responses(Duration::ZERO));
        let heir = later(&loom, &script, HOUR);
        heir.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        grant(&loom, 1, |_| {}).await;
        begins_and_dies(&loom, None);
        let_leases_run_out(&loom).await;
        let run = only_run(&loom).await;
        let taken = heir.resume(run, &Cancel::new()).await;
        assert_code(&taken.guarded.reply, codes::PREDICTED);
        assert_eq!((taken.predicted.output, taken.predicted.replayed), (Some(json!({"text": "HEY"})), false));
        closed_once(&loom).await;
        let again = heir.resume(run, &Cancel::new()).await;
        assert_code(&again.guarded.reply, codes::PREDICTED);
        assert_eq!((again.predicted.receipt, again.predicted.replayed), (taken.predicted.receipt, true));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_cancelled_when_it_is_taken_over_is_closed_as_cancelled() {
    for (loom, _folder) in stores() {
        let script = scripted(responses(Duration::ZERO));
        let heir = later(&loom, &script, HOUR);
        heir.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        grant(&loom, 1, |_| {}).await;
        begins_and_dies(&loom, None);
        let_leases_run_out(&loom).await;
        let cancel = Cancel::new();
        cancel.cancel();
        let ended = heir.resume(only_run(&loom).await, &cancel).await;
        assert_code(&ended.guarded.reply, codes::ENDED_FROM_OUTSIDE);
        assert_eq!((script.request_count(), ended.predicted.output), (0, None));
        let told = receipts(&loom).await;
        assert_eq!((told.len(), told[0].status), (1, Status::Cancelled));
    }
}

/// A crystal whose first output does not match the schema and that panics on the second request.
struct Broken(ScriptedCrystal);

impl Crystal for Broken {
    fn name(&self) -> &str {
        self.0.name()
    }

    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        assert_eq!(self.0.request_count(), 0, "a bug in the crystal");
        self.0.ask(request, heard).await
    }
}

#[tokio::test]
async fn a_predict_whose_loop_panics_is_closed_as_failed_with_its_receipt() {
    for (loom, _folder) in stores() {
        let script = scripted(responses(Duration::ZERO));
        let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
        let runtime = Runtime::from_parts(loom.clone(), clock.clone(), Arc::clone(&ids));
        let crystal = AnyCrystal::new(Broken(script.clone()));
        let predictor =
            Predictor::new(runtime, move |_: Option<&str>| Ok(crystal.clone()), TraceArchive::inline(), clock, ids);
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let how = PredictOptions { idempotency_key: Some("k".to_owned()), ..PredictOptions::default() };
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), how.clone()).await;
        assert_code(&reply.guarded.reply, codes::CRASH);
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!((told.status, told.output_hash), (Status::Failed, None));
        assert_eq!(told.error_code.as_deref(), Some(codes::CRASH.any().as_str()));
        assert_eq!((told.budget.iterations, told.budget.model_calls), (1, 2));
        assert_eq!(reply.predicted.receipt, Some(told.id()));
        let run = only_run(&loom).await;
        assert_eq!(loom.run(run).await.unwrap().state, RunState::Failed);
        assert!(loom.predict(told.predict_id.unwrap()).await.unwrap().end.is_some());
        // The predict has ended: neither its key nor its run begins it again.
        let again = predictor.predict(shout().id(), &json!({"text": "hey"}), how).await;
        assert_code(&again.guarded.reply, codes::WRONG_STATE);
        assert_eq!(again.guarded.reply.data()["error_code"], codes::CRASH.any().as_str());
        let resumed = predictor.resume(run, &Cancel::new()).await;
        assert_code(&resumed.guarded.reply, codes::WRONG_STATE);
        assert_eq!((receipts(&loom).await.len(), script.request_count()), (1, 1));
    }
}

#[tokio::test]
async fn what_is_no_predict_is_not_resumed_as_one() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!(3))]);
        let predictor = later(&loom, &script, Duration::ZERO);
        let cantrip = cantrip::Cantrip::builder()
            .crystal(script.clone())
            .gate(cantrip::gates::done())
            .ward("max_turns", 2)
            .build()
            .unwrap();
        let cast = Runtime::new(loom.clone()).cast(&cantrip, cantrip::CastOptions::on("count")).await;
        let reply = predictor.resume(cast.run.unwrap(), &Cancel::new()).await;
        assert_code(&reply.guarded.reply, codes::WRONG_STATE);
        let unknown = IdSource::new(MachineEntropy).next(MachineClock::new().now().wall);
        assert_code(&predictor.resume(unknown, &Cancel::new()).await.guarded.reply, codes::NOT_FOUND);
    }
}
