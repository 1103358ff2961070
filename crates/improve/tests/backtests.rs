//! Answers out of a record: each recorded call answers once, in any order, and a resumed run knows what it has used.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantrip::canon::RunId;
use cantrip::circle::gate::{CallAnswer, CallAnswers, GateSpec, builtin};
use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::reply::codes;
use cantrip::{Cantrip, CastOptions, Runtime};
use cantrip_improve::backtest::{DivergenceKind, Finding, MissingCalls, RecordAnswers, RecordedRun, SpellSource, Step};
use serde_json::{Value, json};

/// Another id than the recorded one: the crystal is asked.
const OTHER: &str = "can_0";

/// Looks a thing up.
#[cantrip::gate]
fn look(#[given] count: Arc<AtomicUsize>, thing: String) -> String {
    format!("{thing} {}", count.fetch_add(1, Ordering::Relaxed))
}

/// A cantrip that looks these things up, one a turn, and answers.
fn looks(things: &[&str], answer: &str, count: &Arc<AtomicUsize>) -> Cantrip {
    let calls = things.iter().enumerate();
    let calls = calls.map(|(at, thing)| Response::call(format!("c{at}"), "look", json!({ "thing": thing })));
    let done = Response::call("d".to_owned(), "done", json!({ "answer": answer }));
    let script = Script::new(calls.chain([done]));
    Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/looks", script))
        .gate(look(Arc::clone(count)))
        .gate(builtin::done())
        .ward("max_turns", 9)
        .build()
        .unwrap()
}

async fn cast(runtime: &Runtime, cantrip: &Cantrip) -> RunId {
    let reply = runtime.cast(cantrip, CastOptions::on("look around")).await;
    assert!(reply.outcome.is_some(), "{:?}", reply.reply());
    reply.run.unwrap()
}

async fn recorded(runtime: &Runtime, run: RunId) -> RecordedRun {
    RecordedRun::load(runtime.loom(), run).await.unwrap().unwrap()
}

/// The answers to a run of the cantrip with this id.
fn answers(original: &RecordedRun, cantrip_id: &str) -> Arc<RecordAnswers> {
    Arc::new(RecordAnswers::new(Arc::new(original.clone()), None, cantrip_id, MissingCalls::Deny, None))
}

/// Returns true if the record answers a call.
async fn is_answered(answers: &RecordAnswers, thing: &str) -> bool {
    let spec = GateSpec::new("look", "Looks a thing up.", json!({"type": "object"}));
    let Value::Object(arguments) = json!({ "thing": thing }) else { unreachable!("it is an object") };
    match answers.answer(&spec, arguments).await {
        CallAnswer::Replied(Ok(_)) => true,
        CallAnswer::Replied(Err(refusal)) => {
            assert_eq!(refusal.code(), codes::NOT_AUTHORIZED.any());
            false
        }
        CallAnswer::Live => panic!("the gate would be called"),
    }
}

#[tokio::test]
async fn the_same_cantrip_repeats_the_record_without_a_gate_or_a_crystal() {
    let (runtime, count) = (Runtime::in_memory(), Arc::new(AtomicUsize::new(0)));
    let cantrip = looks(&["a", "b", "a"], "over", &count);
    let original = recorded(&runtime, cast(&runtime, &cantrip).await).await;
    assert_eq!((count.load(Ordering::Relaxed), original.calls.len(), original.steps.len()), (3, 3, 4));
    // The script of this cantrip would say something else, if it were asked.
    let silent = looks(&[], "never", &count);
    let repeated = answers(&original, &cantrip.id().to_string()).apply(&silent, &[]).unwrap();
    let new = recorded(&runtime, cast(&runtime, &repeated).await).await;
    let finding = Finding::compare(&original, &new, true, MissingCalls::Deny);
    assert!(finding.is_identical(), "{finding:?}");
    assert_eq!((finding.carried, finding.repeated, finding.calls.record), (4, 4, 3));
    assert_eq!(count.load(Ordering::Relaxed), 3, "a gate was executed");
    // Equal calls got the recorded results in their order.
    let results = |run: &RecordedRun| run.calls.iter().map(|call| call.result.clone()).collect::<Vec<_>>();
    assert_eq!(results(&new), [json!("a 0"), json!("b 1"), json!("a 2")]);
    assert_eq!(results(&new), results(&original));
    assert_eq!(Finding::from_text(&finding.to_text()), Some(finding));
}

#[tokio::test]
async fn each_recorded_call_answers_once_and_in_any_order() {
    let (runtime, count) = (Runtime::in_memory(), Arc::new(AtomicUsize::new(0)));
    let cantrip = looks(&["a", "b", "a"], "over", &count);
    let original = recorded(&runtime, cast(&runtime, &cantrip).await).await;
    let other = looks(&["b", "a", "a", "a"], "over", &count);
    let answered = answers(&original, OTHER).apply(&other, &[]).unwrap();
    let new = recorded(&runtime, cast(&runtime, &answered).await).await;
    let finding = Finding::compare(&original, &new, false, MissingCalls::Deny);
    assert_eq!((finding.calls.record, finding.calls.denied, finding.repeated), (3, 1, 0));
    assert_eq!(count.load(Ordering::Relaxed), 3, "a gate was executed");
    let found = finding.divergence.unwrap();
    assert_eq!((found.kind, found.step, found.turn), (DivergenceKind::OtherOrder, 1, 1));
    assert_eq!(found.asked, Some(Step::Call { turn: 1, gate: "look".to_owned(), args: json!({"thing": "b"}) }));
    assert_eq!(found.recorded, Some(Step::Call { turn: 1, gate: "look".to_owned(), args: json!({"thing": "a"}) }));
    let results: Vec<Value> = new.calls.iter().take(3).map(|call| call.result.clone()).collect();
    assert_eq!(results, [json!("b 1"), json!("a 0"), json!("a 2")]);
}

#[tokio::test]
async fn a_process_that_goes_on_with_a_run_knows_which_calls_have_answered() {
    let (runtime, count) = (Runtime::in_memory(), Arc::new(AtomicUsize::new(0)));
    let cantrip = looks(&["a", "b", "a"], "over", &count);
    let original = recorded(&runtime, cast(&runtime, &cantrip).await).await;
    let other = looks(&["b", "a"], "over", &count);
    let run = cast(&runtime, &answers(&original, OTHER).apply(&other, &[]).unwrap()).await;
    let fresh = answers(&original, OTHER);
    assert!(is_answered(&fresh, "b").await, "nothing was used yet");
    let restored = answers(&original, OTHER);
    restored.restore(runtime.loom(), run).await.unwrap();
    assert!(!is_answered(&restored, "b").await, "the run had this answer");
    assert!(is_answered(&restored, "a").await, "of two equal calls one was used");
    assert!(!is_answered(&restored, "a").await);
    // A run without records leaves everything as it is.
    let unknown = answers(&original, OTHER);
    unknown.restore(runtime.loom(), runtime.new_run_id()).await.unwrap();
    assert!(is_answered(&unknown, "b").await);
}

#[test]
fn a_policy_is_read_by_its_name_and_a_source_is_kept_in_the_plan() {
    for policy in MissingCalls::ALL {
        assert_eq!(policy.as_str().parse::<MissingCalls>(), Ok(policy));
        assert_eq!(serde_json::to_value(policy).unwrap(), json!(policy.as_str()));
    }
    assert!("live".parse::<MissingCalls>().is_err());
    let source = SpellSource { name: "worker".to_owned(), crystal: Some("local/a".to_owned()), file: None };
    let kept = serde_json::to_value(&source).unwrap();
    assert_eq!(serde_json::from_value::<SpellSource>(kept).unwrap(), source);
}
