//! Watchers see a run from its start, or from the point at which they join one that was taken over.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cantrip::events::{Channel, Watcher};
use cantrip::{Cantrip, CantripBuilder, CastOptions};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Request, Response};
use cantrip_loom::{AnyLoom, MemoryLoom};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_stream::StreamEvent;
use serde_json::{Value, json};
use support::{
    Acting, Count, Dying, Overlap, call, counting_again, done, house_of, memory, said_before, script, slow, talking,
};
use tokio::sync::mpsc::Receiver;

fn drained(seen: &mut Receiver<StreamEvent>) -> Vec<Value> {
    std::iter::from_fn(|| seen.try_recv().ok()).map(|event| serde_json::to_value(&event).unwrap()).collect()
}

/// Returns an event in a few words: its type and its subject.
fn told(event: &Value) -> String {
    let payload = &event["payload"];
    let kind = payload["type"].as_str().unwrap();
    let last = &payload["finalItem"];
    let what = match (kind, last["type"].as_str().or(payload["itemType"].as_str())) {
        ("item_done", Some("message")) => format!("{} {}", last["origin"], last["content"]),
        ("item_done", Some("reasoning")) => format!("thinks {}", last["content"]),
        ("item_done", Some("function_call")) => format!("call {} {}", last["callId"], last["arguments"]),
        ("item_done", Some("function_call_output")) => format!("output {} {}", last["callId"], last["output"]),
        ("item_start", Some(item)) => format!("{item} {}", payload["callId"]),
        _ => String::new(),
    };
    format!("{kind} {what}").replace('"', "").trim().to_owned()
}

#[tokio::test(start_paused = true)]
async fn whoever_joins_a_run_that_was_taken_over_sees_the_open_turn_from_its_beginning() {
    let crystal = || {
        Acting(|request: &Request| match said_before(request) {
            0 => Response {
                content: Some("I count.".to_owned()),
                thinking: Some("Hm.".to_owned()),
                ..call("count", json!({"n": 1})).and_call("c2", "count", json!({"n": 2}))
            },
            _ => done("over"),
        })
    };
    let cantrip = || {
        let count = Count::default();
        talking(&script([])).crystal(crystal()).gate(counting_again("count", &count)).build().unwrap()
    };
    // The process dies after the first call is settled and the second has begun.
    let store = AnyLoom::new(MemoryLoom::new());
    let dying = house_of(AnyLoom::new(Dying::after(store.clone(), 4)), 1);
    let died = dying.cast(&cantrip(), CastOptions::on("go")).await;
    let (channel, mut seen) = Channel::new();
    let heir = house_of(store, 2).with_watcher(channel);
    let cast = heir.resume(&cantrip(), died.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let events = drained(&mut seen);
    let turns: Vec<&str> = events.iter().map(|event| event["turnId"].as_str().unwrap()).collect();
    let first: Vec<String> = events.iter().filter(|event| event["turnId"] == turns[0]).map(told).collect();
    assert_eq!(
        first,
        [
            "response_start",
            "item_done user go",
            "item_done thinks Hm.",
            "item_done agent I count.",
            "item_start function_call c",
            "item_done call c {n:1}",
            "item_start function_call c2",
            "item_done call c2 {n:2}",
            "item_done output c 1",
            "item_done output c2 2",
            "response_done",
        ]
    );
    let starts = events.iter().filter(|event| told(event) == "response_start");
    assert_eq!(starts.count(), 2, "the turn that was taken over, and the next one");
}

fn coding(crystal: impl cantrip_crystal::Crystal + 'static) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(builtin::call_agent())
        .ward("max_turns", 10)
}

#[tokio::test]
async fn a_gate_called_from_code_is_shown_when_it_begins() {
    let (channel, mut seen) = Channel::new();
    let (runtime, overlap) = (memory().with_watcher(channel), Overlap::default());
    let crystal = script([Response::code("slow(300); call_agent('child'); done(1)"), Response::code("done(2)")]);
    let cantrip = coding(crystal).gate(slow("slow", &overlap)).build().unwrap();
    let watching = async {
        let mut shown = Vec::new();
        let mut while_it_runs = None;
        while let Some(event) = seen.recv().await {
            let event = serde_json::to_value(&event).unwrap();
            if event["payload"]["itemType"] == "function_call" {
                let name = event["payload"]["name"].as_str().unwrap().to_owned();
                if name == "slow" {
                    while_it_runs = Some(overlap.ended().is_empty());
                }
                shown.push(name);
            }
            if told(&event) == "item_done agent 1" {
                break;
            }
        }
        (shown, while_it_runs)
    };
    let (cast, (shown, while_it_runs)) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go")), watching);
    assert_eq!(cast.answer(), Some(&json!(1)), "{:?}", cast.reply());
    assert_eq!(while_it_runs, Some(true), "it was shown before it was over");
    assert_eq!(shown, ["javascript", "slow", "call_agent", "javascript", "done", "done"]);
}

#[tokio::test]
async fn a_program_that_was_taken_over_is_shown_with_the_calls_it_made_before() {
    let crystal = || {
        Acting(|request: &Request| match said_before(request) {
            0 => Response::code("var a = count(1); var b = count(2); a + b"),
            _ => Response::code("done(a + b)"),
        })
    };
    let cantrip = || coding(crystal()).gate(counting_again("count", &Count::default())).build().unwrap();
    let store = AnyLoom::new(MemoryLoom::new());
    let dying = house_of(AnyLoom::new(Dying::after(store.clone(), 4)), 1);
    let died = dying.cast(&cantrip(), CastOptions::on("go")).await;
    let (channel, mut seen) = Channel::new();
    let heir = house_of(store, 2).with_watcher(channel);
    let cast = heir.resume(&cantrip(), died.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!(3)), "{:?}", cast.reply());
    let events = drained(&mut seen);
    let outputs: Vec<String> = events.iter().map(told).filter(|told| told.starts_with("item_done output")).collect();
    let turn = events[0]["turnId"].as_str().unwrap();
    assert_eq!(outputs[..2], [format!("item_done output {turn}:1 1"), format!("item_done output {turn}:2 2")]);
    assert!(outputs[2].ends_with("=> 3"), "{outputs:?}");
    let calls = events.iter().filter(|event| event["payload"]["name"] == "count").collect::<Vec<_>>();
    let program = events.iter().find(|event| event["payload"]["name"] == "javascript").unwrap();
    assert_eq!(calls.len(), 2, "each call once");
    assert!(calls.iter().all(|call| call["payload"]["parentItemId"] == program["payload"]["itemId"]));
}

struct Hostile;

impl Watcher for Hostile {
    fn on_event(&self, _: StreamEvent) {
        panic!("a bug of the watcher's");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_with_a_bug_changes_nothing() {
    let runtime = memory().with_watcher(Hostile);
    let overlap = Overlap::default();
    let crystal = script([call("slow", json!({"ms": 10})), done("over")]);
    let cantrip = talking(&crystal).gate(slow("slow", &overlap)).build().unwrap();
    let cast =
        tokio::time::timeout(Duration::from_secs(60), runtime.cast(&cantrip, CastOptions::on("go"))).await.unwrap();
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
}
