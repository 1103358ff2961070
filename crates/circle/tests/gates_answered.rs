//! A circle whose calls somebody else answers: checked as any other, and its gates are entered only on request.

use crate::gates;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cantrip_circle::gate::builtin::call_agent;
use cantrip_circle::gate::{AnsweringCall, CallAnswer, CallAnswers, GateSpec, gate};
use cantrip_circle::{AnyGate, Circle};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use gates::{call, circle};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize, JsonSchema)]
struct Word {
    word: String,
}

/// Answers with the arguments, calls the gate live if they say so, and remembers what it was asked.
#[derive(Default)]
struct Answerer {
    asked: Mutex<Vec<String>>,
}

impl CallAnswers for Answerer {
    fn answer<'a>(&'a self, gate: &'a GateSpec, arguments: Map<String, Value>) -> AnsweringCall<'a> {
        self.asked.lock().expect("no panic holds it").push(gate.name.clone());
        let answer = match arguments.get("word").and_then(Value::as_str) {
            Some("live") => CallAnswer::Live,
            Some("denied") => CallAnswer::Replied(Err(codes::not_authorized(&gate.name, "not recorded").into())),
            Some(_) | None => CallAnswer::Replied(Ok(codes::gate_ok(&gate.name).value(json!("recorded")))),
        };
        Box::pin(std::future::ready(answer))
    }
}

fn counted(count: &Arc<AtomicUsize>) -> AnyGate {
    let count = Arc::clone(count);
    AnyGate::from(gate("say", "Says a word.", move |asked: Word| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { Ok::<_, Refusal>(asked.word) }
    }))
}

fn answered(circle: &Circle, further: &[GateSpec]) -> (Circle, Arc<Answerer>) {
    let answerer: Arc<Answerer> = Arc::default();
    let answers: Arc<dyn CallAnswers> = Arc::clone(&answerer) as Arc<dyn CallAnswers>;
    (circle.with_answers(&answers, further).expect("its schemas compile"), answerer)
}

#[tokio::test]
async fn a_call_is_answered_in_place_of_its_gate_which_is_entered_only_on_request() {
    let count = Arc::new(AtomicUsize::new(0));
    let plain = circle([counted(&count)], json!({}));
    let (circle, answerer) = answered(&plain, &[]);
    let reply = call(&circle, "say", json!({"word": "hello"})).await;
    assert_eq!((reply.value(), count.load(Ordering::Relaxed)), (Some(&json!("recorded")), 0));
    let denied = call(&circle, "say", json!({"word": "denied"})).await;
    assert_code(&denied, codes::NOT_AUTHORIZED);
    let live = call(&circle, "say", json!({"word": "live"})).await;
    assert_eq!((live.value(), count.load(Ordering::Relaxed)), (Some(&json!("live")), 1));
    // The circle checks a call before the answerer sees it.
    let wrong = call(&circle, "say", json!({"word": 5})).await;
    assert_code(&wrong, codes::SCHEMA);
    assert_eq!(answerer.asked.lock().expect("no panic holds it").len(), 3);
    // The model is offered the same tools.
    assert_eq!(circle.definitions(), plain.definitions());
}

#[tokio::test]
async fn delegation_becomes_a_plain_call_and_a_gate_that_is_only_described_is_answered_too() {
    let plain = circle([call_agent()], json!({"max_depth": 2}));
    let parameters = json!({"type": "object", "properties": {"word": {"type": "string"}}});
    let (circle, answerer) = answered(&plain, &[GateSpec::new("docs_find", "Finds a page.", parameters)]);
    let spawned = call(&circle, "call_agent", json!({"intent": "count"})).await;
    assert_eq!(spawned.value(), Some(&json!("recorded")));
    let found = call(&circle, "docs_find", json!({"word": "rust"})).await;
    assert_eq!(found.value(), Some(&json!("recorded")));
    // There is nothing behind it to call.
    let live = call(&circle, "docs_find", json!({"word": "live"})).await;
    assert_code(&live, codes::GATE_UNKNOWN);
    let asked = answerer.asked.lock().expect("no panic holds it").clone();
    assert_eq!(asked, ["call_agent", "docs_find", "docs_find"]);
}

#[tokio::test]
async fn a_gate_that_a_ward_removed_stays_removed() {
    let count = Arc::new(AtomicUsize::new(0));
    let plain = circle([counted(&count)], json!({"remove_gate": "say"}));
    let parameters = json!({"type": "object", "properties": {}});
    let (circle, answerer) = answered(&plain, &[GateSpec::new("say", "Says a word.", parameters)]);
    let reply = call(&circle, "say", json!({"word": "hello"})).await;
    assert_code(&reply, codes::GATE_REMOVED);
    assert!(answerer.asked.lock().expect("no panic holds it").is_empty());
}
