//! One cast in a conversation: text, gates, done, truncation.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use cantrip::CastOptions;
use cantrip_crystal::Response;
use cantrip_loom::{Message, TruncationReason};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{Count, call, counting, done, memory, requiring, script, talking, woven};

#[tokio::test(start_paused = true)]
async fn a_text_ends_a_cast() {
    let runtime = memory();
    let cantrip = talking(&script([Response::text("hello")])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("greet")).await;
    assert_code(cast.reply(), codes::TERMINATED);
    assert_eq!(cast.answer(), Some(&json!("hello")));
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, r#"A1 "hello" terminated by text"#);
}

#[tokio::test(start_paused = true)]
async fn calls_after_done_leave_no_record() {
    let runtime = memory();
    let count = Count::default();
    let said = call("count", json!({"n": 1})).and_call("c2", "done", json!({"answer": {"n": 1}})).and_call(
        "c3",
        "count",
        json!({"n": 2}),
    );
    let cantrip = talking(&script([said])).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!({"n": 1})));
    assert_eq!(count.get(), 1);
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, r#"A1 count=1 done={"n":1} terminated"#);
}

#[tokio::test(start_paused = true)]
async fn under_require_done_a_text_is_a_turn_and_the_nudge_stands_only_in_the_list() {
    let runtime = memory();
    let crystal = script([Response::text("thinking"), Response::text("still"), done("x")]);
    let cantrip = requiring(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("x")));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        "A1 \"thinking\"\nA2 <A1 \"still\"\nA3 <A2 done=\"x\" terminated"
    );
    let last = crystal.requests().pop().unwrap();
    let nudges = last
        .messages
        .iter()
        .filter(|message| matches!(message, Message::User { content } if content.text().starts_with("Continue.")));
    assert_eq!((nudges.count(), last.messages.len()), (2, 5));
}

#[tokio::test(start_paused = true)]
async fn max_turns_makes_no_further_request_and_leaves_a_summary() {
    let runtime = memory();
    let crystal = script((0..5).map(|n| call("echo", json!({"text": n}))));
    let cantrip = talking(&crystal).ward("max_turns", 2).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::WARD_REACHED);
    assert_eq!(cast.reason(), Some(TruncationReason::MaxTurns));
    assert_eq!((crystal.request_count(), crystal.remaining()), (2, 3));
    let cantrip_loom::Ending::Truncated { summary, .. } = cast.outcome.unwrap().ending else { panic!("truncated") };
    assert_eq!(summary, "2 utterances in 2 turns. Gates: echo x2.");
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=0\nA2 <A1 echo=1 truncated max_turns");
}

#[tokio::test(start_paused = true)]
async fn done_in_the_last_turn_terminates() {
    let runtime = memory();
    let cantrip = talking(&script([done(1)])).ward("max_turns", 1).build().unwrap();
    assert_code(runtime.cast(&cantrip, CastOptions::on("go")).await.reply(), codes::TERMINATED);
}

#[tokio::test(start_paused = true)]
async fn a_blank_intent_is_refused_and_nothing_is_written() {
    let runtime = memory();
    let cantrip = talking(&script([done(1)])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("  \n")).await;
    assert_code(cast.reply(), codes::CONTRACT_INVALID);
    assert!(cantrip_loom::Loom::looms(runtime.loom()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_malformed_done_is_an_observation_and_null_is_an_answer() {
    let runtime = memory();
    let crystal = script([Response::call("d", "done", json!({})), done(json!(null))]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(null)));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        format!("A1 done!{}\nA2 <A1 done=null terminated", codes::DONE_MALFORMED.any())
    );
}

#[tokio::test(start_paused = true)]
async fn a_turn_of_only_unavailable_gates_goes_on() {
    let runtime = memory();
    let crystal = script([call("fetch", json!({})).and_call("c2", "echo", json!({"text": 1})), done(2)]);
    let cantrip = talking(&crystal).ward("remove_gate", "echo").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        format!("A1 fetch!{} echo!{}\nA2 <A1 done=2 terminated", codes::GATE_UNKNOWN.any(), codes::GATE_REMOVED.any())
    );
}
