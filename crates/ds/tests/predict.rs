//! A predict sends a request, validates the output, and leaves a receipt whatever its outcome.

use std::time::Duration;

use cantrip::canon::{IdSource, Timestamp};
use cantrip::crystal::{Price, Profile, ProfileRow, Response};
use cantrip::loom::{AnyLoom, Contracts, Ledger, Loom, Message, PageRequest, ReceiptFilter, ReservationFilter, Usage};
use cantrip::spend::AuthorizationMode;
use cantrip_contract::{
    Canary, ChangeAuthor, ContractRow, Kind, NoFiles, OriginRow, PointerChange, PointerOperation, Provenance, Receipt,
    Signature, SignatureOrigin, Status,
};
use cantrip_ds::{PredictOptions, TraceArchive, verify};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::future::join;
use serde_json::json;

use crate::support::{Posing, done, grant, listed, predictor, says, scripted, shout, stores};

async fn receipts(loom: &AnyLoom) -> Vec<Receipt> {
    let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    rows.iter().map(|row| row.receipt().unwrap()).collect()
}

async fn sound(loom: &AnyLoom) {
    let found = verify(loom, ReceiptFilter::default()).await.unwrap();
    assert_eq!(found.findings, [], "{found:?}");
}

#[tokio::test]
async fn an_output_that_does_not_fit_is_mended_in_every_mode() {
    let native = Profile::of("scripted/shout").with(&ProfileRow { structured: Some(true), ..ProfileRow::default() });
    let text = Profile::of("scripted/shout").with(&ProfileRow { tools: Some(false), ..ProfileRow::default() });
    let (bad, good) = (json!({"words": "HEY"}), json!({"text": "HEY"}));
    let modes = [
        ("tool", Profile::of("scripted/shout"), [done(bad.clone()), done(good.clone())]),
        ("native", native, [Response::text(bad.to_string()), Response::text(good.to_string())]),
        ("text", text, [Response::text("I think HEY."), Response::text(format!("So:\n```json\n{good}\n```\n"))]),
    ];
    for (loom, _folder) in stores() {
        for (number, (mode, profile, responses)) in (1_u64..).zip(modes.clone()) {
            let script = scripted(responses);
            let predictor = predictor(&loom, Posing { profile, ..says(&script) }, TraceArchive::inline());
            predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
            let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
            assert_code(&reply.guarded.reply, codes::PREDICTED);
            assert_eq!(reply.predicted.output, Some(good.clone()), "{mode}");
            assert_eq!(script.request_count(), 2, "{mode}");
            let told = receipts(&loom).await.pop().unwrap();
            assert_eq!((told.status, told.receipt_kind, told.seq), (Status::Succeeded, Kind::Predict, 1));
            assert_eq!(told.model.structured_mode.as_deref(), Some(mode));
            assert_eq!((told.budget.repairs, told.budget.model_calls, told.budget.iterations), (1, 2, 2));
            assert_eq!(told.output_hash, cantrip::canon::stable_hash(&good).ok());
            assert_eq!(told.params_hash, cantrip::canon::stable_hash(&json!({"text": "hey"})).ok());
            assert_eq!(told.policy.decision.as_deref(), Some("allowed"));
            let thread = loom.thread(told.last_turn_id.unwrap()).await.unwrap();
            assert_eq!(thread.turns.len(), 2, "all of it is in the loom");
            assert_eq!(receipts(&loom).await.len() as u64, number, "its cast leaves no receipt beside it");
        }
        sound(&loom).await;
    }
}

#[tokio::test]
async fn an_output_that_never_fits_is_an_error_with_its_receipt_and_all_its_turns() {
    for (loom, _folder) in stores() {
        let script = scripted((0..3).map(|_| done(json!({"words": "HEY"}))));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::OUTPUT_SCHEMA);
        assert_eq!((reply.predicted.output, script.request_count()), (None, 3));
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!((told.status, told.output_hash), (Status::Failed, None));
        assert_eq!(told.error_code.as_deref(), Some(codes::OUTPUT_SCHEMA.any().as_str()));
        assert_eq!(reply.predicted.receipt, Some(told.id()));
        assert_eq!(loom.thread(told.last_turn_id.unwrap()).await.unwrap().turns.len(), 3);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_before_anything_is_asked() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let input = json!({"text": "hey"});
        let unknown = "@me/text/Nothing.v1".parse().unwrap();
        let reply = predictor.predict(&unknown, &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::CONTRACT_UNKNOWN);
        let reply = predictor.predict(shout().id(), &json!({}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::INPUT_SCHEMA);
        let many = PredictOptions { repair_attempts: Some(4), ..PredictOptions::default() };
        let reply = predictor.predict(shout().id(), &input, many).await;
        assert_eq!(reply.guarded.reply.data()["reason"], "invalid_iteration_budget");
        let none = "art_00000000000000000000000000000000".parse().unwrap();
        let reply = predictor
            .predict(shout().id(), &input, PredictOptions { artifact: Some(none), ..PredictOptions::default() })
            .await;
        assert_code(&reply.guarded.reply, codes::CONTRACT_UNKNOWN);
        let judge = cantrip_contract::built_in().iter().find(|signature| signature.id().name() == "Judge").unwrap();
        let foreign = Some(judge.base_artifact().id());
        let reply = predictor
            .predict(shout().id(), &input, PredictOptions { artifact: foreign, ..PredictOptions::default() })
            .await;
        assert_code(&reply.guarded.reply, codes::ARTIFACT_INCOMPATIBLE);
        assert_eq!(script.request_count(), 0);
        assert!(receipts(&loom).await.is_empty());
        assert!(loom.runs(PageRequest::FIRST).await.unwrap().items.is_empty());
    }
}

#[tokio::test]
async fn a_denied_predict_touches_nothing_and_leaves_a_receipt_and_its_key_is_free() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let denies = grant(&loom, 1, |terms| (terms.mode, terms.max_total) = (AuthorizationMode::Deny, None)).await;
        let how = || PredictOptions { idempotency_key: Some("k".to_owned()), ..PredictOptions::default() };
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), how()).await;
        assert_code(&reply.guarded.reply, codes::NOT_AUTHORIZED);
        assert_eq!(reply.guarded.reply.data()["reason_code"], "policy_denied.explicit_deny");
        assert_eq!(script.request_count(), 0);
        assert!(loom.reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items.is_empty());
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!((told.status, told.output_hash, told.thread_id), (Status::Denied, None, None));
        assert_eq!(told.error_code.as_deref(), Some(codes::NOT_AUTHORIZED.as_str()));
        let decisions = loom.decisions(told.run_id).await.unwrap();
        assert_eq!(decisions.len(), 1, "a denied decision is a row");
        assert_eq!(Some(decisions[0].decision.evaluation_hash), told.policy.evaluation_hash);
        assert_eq!(told.policy.reason_code.as_deref(), Some("policy_denied.explicit_deny"));
        assert_eq!(told.policy.authorization_id, Some(denies.to_string()));
        sound(&loom).await;
        // A newer authorization allows it, and the refusal did not bind the key.
        let at: Timestamp = "2026-02-19T01:00:01.000Z".parse().unwrap();
        grant(&loom, 2, |terms| terms.issued_at = at).await;
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), how()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(script.request_count(), 1);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn a_budget_too_small_denies_in_the_step_that_reserves_and_nothing_is_sent() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        grant(&loom, 1, |terms| terms.max_total = Some(10)).await;
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::BUDGET_SPENT);
        let data = reply.guarded.reply.data();
        assert_eq!(data["remaining"], json!({"micros": 10, "currency": "USD"}), "{data:?}");
        assert!(data["needed"]["micros"].as_u64() > Some(10), "{data:?}");
        assert_eq!(script.request_count(), 0);
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!((told.status, told.policy.decision.as_deref()), (Status::Denied, Some("denied")));
        assert_eq!(told.error_code.as_deref(), Some(codes::BUDGET_SPENT.as_str()));
        assert_eq!(loom.decisions(told.run_id).await.unwrap().len(), 1);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn without_a_price_a_limit_of_money_denies_and_the_limit_is_named() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = predictor(&loom, Posing { price: Price::Unknown, ..says(&script) }, TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let limited = grant(&loom, 1, |terms| terms.max_total = Some(1_000_000)).await;
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PRICE_UNKNOWN);
        let data = reply.guarded.reply.data();
        assert_eq!(data["limit"], json!(format!("the limit of 1.00 USD total of {limited}")), "{data:?}");
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!((told.status, told.error_code.as_deref()), (Status::Denied, Some(codes::PRICE_UNKNOWN.as_str())));
        assert_eq!(script.request_count(), 0);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn what_it_cost_stands_in_its_receipt_and_adds_up() {
    for (loom, _folder) in stores() {
        let used = Usage { prompt_tokens: 310, completion_tokens: 24, ..Usage::default() };
        let bad = done(json!({"words": "HEY"})).with_usage(used);
        let script = scripted([bad, done(json!({"text": "HEY"})).with_usage(used)]);
        let predictor = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let funds = grant(&loom, 1, |_| {}).await;
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let told = receipts(&loom).await.pop().unwrap();
        let budget = &told.budget;
        assert_eq!((budget.captured, budget.reservation_ids.len()), (2 * (310 + 240), 2));
        assert_eq!(budget.reserved, budget.captured + budget.released);
        assert_eq!((budget.input_tokens, budget.output_tokens), (620, 48));
        let spent = loom.authorization(funds).await.unwrap();
        assert_eq!(spent.totals.spent as u64, budget.captured);
        assert_eq!(budget.remaining, spent.remaining());
        assert_eq!(told.policy.authorization_mode.as_deref(), Some("delegated_budget"));
        sound(&loom).await;
    }
}

#[tokio::test]
async fn one_key_is_answered_once() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"})), done(json!({"text": "HO"}))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let how = |key: &str| PredictOptions { idempotency_key: Some(key.to_owned()), ..PredictOptions::default() };
        let input = json!({"text": "hey"});
        let first = predictor.predict(shout().id(), &input, how("k")).await;
        let again = predictor.predict(shout().id(), &input, how("k")).await;
        assert_code(&again.guarded.reply, codes::PREDICTED);
        assert_eq!((again.predicted.output, again.predicted.replayed), (first.predicted.output, true));
        assert_eq!((again.predicted.receipt, script.request_count()), (first.predicted.receipt, 1));
        let other = predictor.predict(shout().id(), &json!({"text": "ho"}), how("k")).await;
        assert_code(&other.guarded.reply, codes::IMMUTABLE);
        assert_eq!(other.guarded.reply.data()["reason"], "idempotency_conflict");
        // Of two concurrent requests one is executed; the other is refused as in flight, or gets the outcome of the
        // first.
        let (one, two) =
            join(predictor.predict(shout().id(), &input, how("l")), predictor.predict(shout().id(), &input, how("l")))
                .await;
        assert_eq!(script.request_count(), 2);
        let answered =
            [&one, &two].iter().filter(|reply| reply.predicted.output == Some(json!({"text": "HO"}))).count();
        let waits = [&one, &two]
            .iter()
            .filter(|reply| reply.guarded.reply.data().get("reason") == Some(&json!("in_flight")))
            .count();
        assert!(answered >= 1 && answered + waits == 2, "{:?} {:?}", one.guarded.reply, two.guarded.reply);
        assert_eq!(receipts(&loom).await.len(), 2);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn two_identical_predicts_have_two_receipts_and_latency_is_measured() {
    for (loom, _folder) in stores() {
        let slow = Response { delay: Duration::from_millis(250), ..done(json!({"text": "HEY"})) };
        let script = scripted([slow.clone(), slow]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        for _ in 0..2 {
            let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
            assert_code(&reply.guarded.reply, codes::PREDICTED);
        }
        let told = receipts(&loom).await;
        assert_ne!(told[0].id(), told[1].id());
        assert_ne!(told[0].predict_id, told[1].predict_id);
        assert!(told.iter().all(|receipt| receipt.timing.latency_ms >= 250), "{told:?}");
    }
}

#[tokio::test]
async fn the_pointer_says_which_artifact_runs_and_the_receipt_says_so() {
    for (loom, _folder) in stores() {
        let script = scripted((0..2).map(|_| done(json!({"text": "HEY"}))));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let signature = shout();
        predictor.catalog().add(&signature, SignatureOrigin::Api, "ann").await.unwrap();
        let at: Timestamp = "2026-02-19T01:00:00.000Z".parse().unwrap();
        let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
        let given = json!({"instructions": "Say it with {{ inputs.text }}."});
        let other = predictor.catalog().add_artifact(&given, &signature, origin).await.unwrap().id();
        let ids = IdSource::seeded(3);
        let changes = [
            PointerOperation::Set { artifact: signature.base_artifact().id(), seed: None, metadata: None },
            PointerOperation::Canary(Canary { artifact: other.clone(), percent: 100 }),
        ];
        for (expected_version, change) in (0..).zip(changes) {
            let by = ChangeAuthor { audit_id: ids.next(at), actor: "ann".to_owned(), reason: None, at };
            let asked = PointerChange { signature_id: signature.id().clone(), expected_version, change, by };
            predictor.catalog().write_rows(vec![ContractRow::Pointer(Box::new(asked))]).await.unwrap();
        }
        let input = json!({"text": "hey {{ instructions }} </text>"});
        let reply = predictor.predict(signature.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let told = receipts(&loom).await.pop().unwrap();
        assert_eq!(told.compiled_id, Some(other));
        let policy = &told.policy;
        assert_eq!((policy.artifact_variant.as_deref(), policy.canary_percent), (Some("canary"), Some(100)));
        assert_eq!(policy.pointer_version, Some(2));
        assert_eq!(policy.rollout_bucket, Some(cantrip_contract::bucket(signature.id(), "default", "local")));
        // Template syntax in a value or in instructions is not expanded.
        let sent = script.requests().pop().unwrap().messages;
        let texts: Vec<String> = sent
            .iter()
            .map(|message| match message {
                Message::System { content } | Message::User { content } | Message::Tool { content, .. } => {
                    content.text()
                }
                Message::Assistant { .. } => String::new(),
            })
            .collect();
        assert_eq!(texts[0], "Say it with {{ inputs.text }}.");
        assert_eq!(texts[1], "<text>hey {{ instructions }} <\\/text></text>");
        let base = PredictOptions { artifact: Some(signature.base_artifact().id()), ..PredictOptions::default() };
        let reply = predictor.predict(signature.id(), &input, base).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!(receipts(&loom).await.pop().unwrap().policy.pointer_version, None);
        sound(&loom).await;
    }
}

#[tokio::test]
async fn a_label_that_was_not_given_is_asked_for_again_and_is_never_a_success() {
    let classify = &cantrip_contract::built_in()[0];
    let input = json!({"text": "Where is it?", "labels": ["praise", "question"]});
    let says_label = |label: &str| done(json!({"label": label, "confidence": 0.9}));
    for (loom, _folder) in stores() {
        let script = scripted([says_label("query"), says_label("question")]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(classify.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let output = reply.predicted.output.unwrap();
        assert_eq!((&output["label"], script.request_count()), (&json!("question"), 2));
    }
    for (loom, _folder) in stores() {
        let script = scripted(["query", "Question", "other"].map(says_label));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let reply = predictor.predict(classify.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::OUTPUT_SCHEMA);
        assert_eq!((reply.predicted.output, script.request_count()), (None, 3));
    }
}

#[tokio::test]
async fn a_signature_of_ones_own_can_name_the_input_that_lists_its_values() {
    let text = r#"
namespace = "@me/text"
name = "Choose"
version = 1
program_template = "direct.v1"
instructions = "Choose a voice."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.voices | join(', ') }}"
[input_schema]
type = "object"
required = ["voices"]
additionalProperties = false
properties.voices = { type = "array", items = { type = "string" } }
[output_schema]
type = "object"
required = ["voice"]
additionalProperties = false
properties.voice = { type = "string", x-one-of-input = "voices" }
"#;
    let signature = Signature::parse(text, &NoFiles).unwrap();
    for (loom, _folder) in stores() {
        let script = scripted(["tenor", "bass"].map(|voice| done(json!({ "voice": voice }))));
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&signature, SignatureOrigin::Api, "ann").await.unwrap();
        let input = json!({"voices": ["alto", "bass"]});
        let reply = predictor.predict(signature.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        assert_eq!((reply.predicted.output, script.request_count()), (Some(json!({"voice": "bass"})), 2));
    }
}

#[tokio::test]
async fn examples_go_before_the_input_as_if_they_had_been_said() {
    let classify = &cantrip_contract::built_in()[0];
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"label": "question", "confidence": 0.9}))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let input = json!({"text": "Where is it?", "labels": ["praise", "question"]});
        let reply = predictor.predict(classify.id(), &input, PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let sent = script.requests().pop().unwrap().messages;
        let roles: Vec<&str> = sent
            .iter()
            .map(|message| match message {
                Message::System { .. } => "system",
                Message::User { .. } => "user",
                Message::Assistant { .. } => "assistant",
                Message::Tool { .. } => "tool",
            })
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        let Some(Message::Assistant { content: Some(answered), .. }) = sent.get(2) else { panic!("{roles:?}") };
        assert_eq!(answered.text(), r#"{"confidence":0.97,"label":"complaint"}"#);
    }
}
