//! The cantrip of every descendant can be rebuilt from that of the root, so its thread can be replayed.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use cantrip::{Call, Cantrip, CastOptions, ForkOptions, Runtime};
use cantrip_circle::DelegationGrants;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::{EntityView, Loom, PageRequest};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{call, done, memory, script};

fn parent(crystal: &ScriptedCrystal, other: &ScriptedCrystal) -> Cantrip {
    let delegates = DelegationGrants { crystals: ["scripted/other".to_owned()].into(), ..DelegationGrants::default() };
    Cantrip::builder()
        .crystal(crystal.clone())
        .call(Call::new().system_prompt("You are the first."))
        .child_crystal("scripted/other", other.clone())
        .gate(builtin::done())
        .gate(builtin::echo())
        .delegating(builtin::call_agent(), delegates)
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 10)
        .ward("max_depth", 3)
        .build()
        .unwrap()
}

async fn entities(runtime: &Runtime, cantrip: &Cantrip) -> Vec<EntityView> {
    runtime.loom().entities(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items
}

/// Asserts that each entity's cantrip is found by its id, and that its thread matches its records.
async fn assert_all(runtime: &Runtime, cantrip: &Cantrip, expected: usize) {
    let all = entities(runtime, cantrip).await;
    assert_eq!(all.len(), expected);
    for view in all {
        let own = runtime.descendant(cantrip, view.entity.entity_id).await.unwrap();
        assert_eq!(own.id(), view.entity.cantrip_id, "{:?}", view.entity.origin);
        assert_code(runtime.replay(&own, view.leaf.unwrap()).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn children_and_their_children_whatever_they_were_given() {
    let runtime = memory();
    let narrow = json!({
        "intent": "a", "system_prompt": "You are another.", "gates": ["echo", "call_agent_batch"], "context": [1, 2],
        "wards": {"max_turns": 4}, "crystal": "scripted/other",
    });
    let crystal = script([call("call_agent", narrow), done("over")]);
    let other = ScriptedCrystal::new(
        "scripted/other",
        cantrip_crystal::Script::new([
            call("call_agent_batch", json!({"requests": ["x", {"intent": "y", "max_turns": 2}]})),
            done("x"),
            done("y"),
            done("a"),
        ]),
    );
    let cantrip = parent(&crystal, &other);
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_all(&runtime, &cantrip, 4).await;
}

#[tokio::test(start_paused = true)]
async fn a_fork_of_a_child_has_the_cantrip_of_the_child() {
    let runtime = memory();
    let said =
        call("call_agent", json!({"intent": "a", "gates": ["echo"]})).and_call("d", "done", json!({"answer": 1}));
    let crystal = script([said, call("echo", json!({"text": "hm"})), done("a"), done("another way")]);
    let cantrip = parent(&crystal, &script([Response::default()]));
    runtime.cast(&cantrip, CastOptions::on("go")).await.answer().unwrap();
    let child = entities(&runtime, &cantrip).await.pop().unwrap();
    let own = runtime.descendant(&cantrip, child.entity.entity_id).await.unwrap();
    assert_ne!(own.id(), cantrip.id());
    let first = runtime.loom().path(child.leaf.unwrap()).await.unwrap()[1].id;
    let fork = runtime.fork(&own, first, ForkOptions::on("otherwise")).await;
    assert_eq!(fork.answer(), Some(&json!("another way")), "{:?}", fork.reply());
    assert_all(&runtime, &cantrip, 3).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_circle_would_not_grant_is_not_made_again() {
    let runtime = memory();
    let crystal = script([call("call_agent", json!({"intent": "a", "gates": ["echo"]})), done("a"), done("over")]);
    let cantrip = parent(&crystal, &script([Response::default()]));
    runtime.cast(&cantrip, CastOptions::on("go")).await.answer().unwrap();
    let child = entities(&runtime, &cantrip).await.pop().unwrap();
    let without = Cantrip::builder()
        .crystal(crystal)
        .gate(builtin::done())
        .gate(builtin::call_agent())
        .ward("max_turns", 10)
        .build()
        .unwrap();
    let refused = runtime.descendant(&without, child.entity.entity_id).await.unwrap_err();
    assert_eq!(refused.code(), codes::CANNOT_GRANT.any());
}
