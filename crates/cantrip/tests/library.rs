//! The library's main interface: gates as functions, and a cast that is watched while it runs.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::circle::gate::{Call, Purity};
use cantrip::circle::{AnyGate, Label};
use cantrip::loom::TruncationReason;
use cantrip::reply::testing::assert_code;
use cantrip::reply::{Refusal, codes};
use cantrip::stream::{Emission, Item, Status, TurnEvent};
use cantrip::{Cantrip, gate};
use serde_json::{Value, json};

use support::{call, done, memory, requiring, script, woven};

/// Greets someone.
#[gate(read_only, labels(private_data))]
async fn greet(
    #[given] greeting: Arc<str>,
    /// Who is greeted.
    name: String,
    times: Option<u8>,
) -> String {
    vec![format!("{greeting} {name}"); usize::from(times.unwrap_or(1))].join(", ")
}

/// Divides.
#[gate(pure, name = "divide")]
fn quotient(dividend: i64, divisor: i64) -> Result<i64, std::io::Error> {
    dividend.checked_div(divisor).ok_or_else(|| std::io::Error::other("nothing divides by zero"))
}

/// Says under which key it was called.
#[gate(idempotent, ephemeral)]
fn key(#[call] call: Call) -> Option<String> {
    call.idempotency_key
}

/// Refuses.
#[gate]
async fn refuse() -> Result<(), Refusal> {
    Err(codes::file_missing("nowhere.txt").into())
}

fn promises_of(gate: &AnyGate) -> (String, String, Value) {
    let promises = gate.spec();
    (promises.name.to_string(), promises.description.clone(), promises.parameters.clone())
}

#[test]
fn a_gate_function_describes_itself() {
    let greet = greet("Hello".into());
    let (name, description, parameters) = promises_of(&greet);
    assert_eq!((name.as_str(), description.as_str()), ("greet", "Greets someone."));
    assert_eq!(parameters["required"], json!(["name"]), "an option may be left out");
    assert_eq!(parameters["properties"]["name"]["description"], "Who is greeted.");
    assert_eq!(parameters["additionalProperties"], false);
    assert!(parameters["properties"].get("greeting").is_none(), "what is given is not asked for");
    assert!(greet.spec().labels.contains(Label::PrivateData));
    assert_eq!(greet.spec().purity, Purity::ReadOnly);
    assert_eq!(promises_of(&quotient()).0, "divide");
    assert!(key().spec().ephemeral);
}

#[tokio::test]
async fn gate_functions_are_called_with_their_arguments() {
    let crystal = script([
        call("greet", json!({"name": "Ada", "times": 2})),
        call("divide", json!({"dividend": 7, "divisor": 2})),
        call("divide", json!({"dividend": 7, "divisor": 0})),
        call("refuse", json!({})),
        call("greet", json!({"name": "Ada", "nome": "Ada"})),
        done("end"),
    ]);
    let cantrip = requiring(&crystal).gate(greet("Hello".into())).gate(quotient()).gate(refuse()).build().unwrap();
    let runtime = memory();
    let reply = runtime.cast(&cantrip, cantrip::CastOptions::on("go")).await;
    assert_eq!(reply.answer(), Some(&json!("end")));
    let woven = woven(&runtime, cantrip.loom_id()).await;
    let lines: Vec<_> = woven.lines().collect();
    assert_eq!(lines[0], r#"A1 greet="Hello Ada, Hello Ada""#);
    assert_eq!(lines[1], "A2 <A1 divide=3");
    assert!(lines[2].contains("divide!"), "an error of the function fails the gate: {}", lines[2]);
    assert_eq!(lines[3], "A4 <A3 refuse!WA-READ-I-001", "a refusal is the reply");
    assert_eq!(lines[4], "A5 <A4 greet!WA-VAL-I-001", "an argument that nobody takes is refused");
}

#[tokio::test]
async fn a_live_cast_shows_its_turns_and_then_its_reply() {
    let crystal = script([call("greet", json!({"name": "Ada"})), done(3)]);
    let cantrip = requiring(&crystal).gate(greet("Hello".into())).build().unwrap();
    let mut live = cantrip.live("greet Ada");
    let (mut started, mut completed, mut answered) = (0, 0, Vec::new());
    while let Some(emission) = live.next().await {
        match emission {
            Emission::Turn(TurnEvent::Started { .. }) => started += 1,
            Emission::Turn(TurnEvent::Complete { .. }) => completed += 1,
            Emission::Turn(TurnEvent::Error { error_message, .. }) => panic!("{error_message}"),
            Emission::Upsert(upsert) => {
                if let (Item::ToolCall(call), Status::Complete { .. }) = (&upsert.item, &upsert.status)
                    && call.output.is_some()
                {
                    answered.push(call.name.to_string());
                }
            }
        }
    }
    assert_eq!((started, completed), (2, 2));
    assert_eq!(answered, ["greet", "done"]);
    assert_eq!(live.reply().await.answer(), Some(&json!(3)));
}

/// Waits until it is cancelled.
#[gate]
async fn wait(#[given] begun: Arc<tokio::sync::Notify>) -> Result<(), Refusal> {
    begun.notify_one();
    std::future::pending().await
}

#[tokio::test]
async fn a_live_cast_is_cancelled_from_outside_or_by_dropping_it() {
    let begun = Arc::new(tokio::sync::Notify::new());
    let crystal = || script([call("wait", json!({}))]);
    let runtime = memory();
    let cantrip = |crystal| -> Cantrip { requiring(&crystal).gate(wait(Arc::clone(&begun))).build().unwrap() };

    let live = runtime.live(&cantrip(crystal()), cantrip::CastOptions::on("wait"));
    begun.notified().await;
    live.cancel().cancel();
    let reply = live.reply().await;
    assert_code(reply.reply(), codes::ENDED_FROM_OUTSIDE);
    assert_eq!(reply.reason(), Some(TruncationReason::Cancelled));

    let cantrip = cantrip(crystal());
    let live = runtime.live(&cantrip, cantrip::CastOptions::on("wait again"));
    begun.notified().await;
    drop(live);
    while !woven(&runtime, cantrip.loom_id()).await.ends_with("truncated cancelled") {
        tokio::task::yield_now().await;
    }
}
