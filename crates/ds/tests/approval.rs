//! A predict that needs an approval: the caller waits for it, or its run waits, and its one receipt is written when it
//! ends.

use std::sync::Arc;
use std::time::Duration;

use cantrip::canon::{IdSource, RunId};
use cantrip::loom::{Actor, AnyLoom, Contracts, Ledger, Loom, PageRequest, ReceiptFilter, ReservationFilter, RunState};
use cantrip::spend::{AuthorizationMode, AuthorizationRef};
use cantrip::{Cancel, HumanDecision, Runtime};
use cantrip_contract::{Receipt, SignatureOrigin, Status};
use cantrip_ds::{PredictOptions, PredictReply, Predictor, TraceArchive, verify};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;

use crate::support::{Posing, done, grant, listed, predictor, says, scripted, shout, stores};

async fn receipts(loom: &AnyLoom) -> Vec<Receipt> {
    assert_eq!(verify(loom, ReceiptFilter::default()).await.unwrap().findings, []);
    let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    rows.iter().map(|row| row.receipt().unwrap()).collect()
}

/// Creates a predictor for which every spend needs an approval.
async fn asking(loom: &AnyLoom, script: &cantrip::crystal::ScriptedCrystal) -> Predictor {
    let predictor = predictor(loom, Posing { price: listed(), ..says(script) }, TraceArchive::inline());
    predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
    grant(loom, 1, |terms| (terms.mode, terms.max_total) = (AuthorizationMode::Interactive, None)).await;
    predictor
}

async fn asked(predictor: &Predictor, how: PredictOptions) -> PredictReply {
    predictor.predict(shout().id(), &json!({"text": "hey"}), how).await
}

/// Approves or refuses everything that a run waits for.
async fn decides(loom: &AnyLoom, run: RunId, approves: bool) -> usize {
    let (runtime, ann) = (Runtime::new(loom.clone()), Actor::new("ann").unwrap());
    let pending = runtime.pending(run).await.unwrap();
    for call in &pending {
        let word =
            if approves { HumanDecision::approve(ann.clone()) } else { HumanDecision::refuse(ann.clone(), "too dear") };
        assert_code(&runtime.decide(run, call.approval_id, word).await.reply, codes::CHANGED);
    }
    pending.len()
}

#[tokio::test]
async fn who_does_not_wait_is_told_what_waits_and_the_receipt_comes_with_the_decision() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = asking(&loom, &script).await;
        let how = || PredictOptions { idempotency_key: Some("k".to_owned()), ..PredictOptions::default() };
        let reply = asked(&predictor, how()).await;
        assert_code(&reply.guarded.reply, codes::CREATED);
        let (told, run) = (reply.guarded.reply.data(), reply.predicted.run.unwrap());
        assert_eq!((&told["state"], &told["reason"]), (&json!("waiting"), &json!("approval")));
        assert!(told["hint"].as_str().unwrap().contains(&format!("cantrip run approve {run}")), "{told:?}");
        assert_eq!(reply.predicted.waiting.as_ref().map(|waiting| waiting.approvals().len()), Some(1));
        assert_eq!(loom.run(run).await.unwrap().state, RunState::Waiting);
        assert_eq!((script.request_count(), receipts(&loom).await.len()), (0, 0));
        assert!(
            loom.reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items.is_empty(),
            "nothing is held"
        );
        // Neither its key nor its run bypasses the approval.
        for again in [asked(&predictor, how()).await, predictor.resume(run, &Cancel::new()).await] {
            assert_eq!((again.predicted.run, again.predicted.waiting), (Some(run), reply.predicted.waiting.clone()));
        }
        assert_eq!(decides(&loom, run, true).await, 1);
        assert_eq!(script.request_count(), 0);
        let resumed = predictor.resume(run, &Cancel::new()).await;
        assert_code(&resumed.guarded.reply, codes::PREDICTED);
        assert_eq!((resumed.predicted.output, script.request_count()), (Some(json!({"text": "HEY"})), 1));
        let told = receipts(&loom).await;
        assert_eq!((told.len(), told[0].status), (1, Status::Succeeded));
        assert_eq!(told[0].policy.decision.as_deref(), Some("allowed"));
        assert_eq!(told[0].policy.approval_id, reply.predicted.waiting.unwrap().approvals().last().copied());
        assert!(asked(&predictor, how()).await.predicted.replayed);
    }
}

#[tokio::test]
async fn a_refusal_is_a_denial_with_its_receipt_and_nobody_was_asked_anything() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = asking(&loom, &script).await;
        let run = asked(&predictor, PredictOptions::default()).await.predicted.run.unwrap();
        assert_eq!(decides(&loom, run, false).await, 1);
        let resumed = predictor.resume(run, &Cancel::new()).await;
        assert_code(&resumed.guarded.reply, codes::APPROVAL_REFUSED);
        assert_eq!((resumed.predicted.output, script.request_count()), (None, 0));
        let told = receipts(&loom).await;
        assert_eq!((told.len(), told[0].status, told[0].budget.captured), (1, Status::Denied, 0));
        assert_eq!(told[0].policy.reason_code.as_deref(), Some("policy_denied.approval_refused"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_has_the_answer_once_a_person_agreed_and_not_longer_than_they_said() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"words": "HEY"})), done(json!({"text": "HEY"}))]);
        let predictor = Arc::new(asking(&loom, &script).await);
        let brief = PredictOptions { wait_for_approval: Some(Duration::from_millis(20)), ..PredictOptions::default() };
        let left = asked(&predictor, brief).await;
        assert_eq!((left.guarded.reply.data()["state"].as_str(), script.request_count()), (Some("waiting"), 0));
        let how = PredictOptions { wait_for_approval: Some(Duration::from_secs(120)), ..PredictOptions::default() };
        let waits = tokio::spawn({
            let predictor = Arc::clone(&predictor);
            async move { asked(&predictor, how).await }
        });
        // There is one approval for each request: the output needs a repair.
        let (mut said, mut polled) = (0, 0);
        while !waits.is_finished() {
            for run in loom.runs(PageRequest::FIRST).await.unwrap().items {
                let waiting = Some(run.run_id) != left.predicted.run && run.state == RunState::Waiting;
                if waiting {
                    tokio::time::sleep(Duration::from_millis(60)).await;
                    said += decides(&loom, run.run_id, true).await;
                }
            }
            polled += 1;
            assert!(polled < 2_000, "it never ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let reply = waits.await.unwrap();
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!((reply.predicted.output, said, script.request_count()), (Some(json!({"text": "HEY"})), 2, 2));
        let told = receipts(&loom).await.pop().unwrap();
        assert!(told.timing.waited_ms >= 120, "{:?}", told.timing);
        assert!(told.timing.latency_ms >= told.timing.waited_ms, "{:?}", told.timing);
    }
}

#[tokio::test]
async fn the_named_authorization_pays_and_one_that_does_not_fit_is_denied() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = asking(&loom, &script).await;
        let own = grant(&loom, 2, |_| {}).await;
        let other = grant(&loom, 3, |terms| terms.scope.autopilot_id = Some("@me/text/Other.v1".to_owned())).await;
        let by = |authorization| PredictOptions { authorization: Some(authorization), ..PredictOptions::default() };
        let reply = asked(&predictor, by(own)).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!(told.policy.authorization_id, Some(own.to_string()));
        assert!(told.budget.reserved > 0);
        let foreign = asked(&predictor, by(other)).await;
        assert_eq!(foreign.guarded.reply.data()["reason_code"], "policy_denied.scope_mismatch");
        let at = "2026-02-19T01:00:00.000Z".parse().unwrap();
        let unknown = AuthorizationRef::Issued(IdSource::seeded(99).next(at));
        let nobody = asked(&predictor, by(unknown)).await;
        assert_eq!(nobody.guarded.reply.data()["reason_code"], "policy_denied.authorization_missing");
        assert_eq!((script.request_count(), receipts(&loom).await.len()), (1, 3));
    }
}
