//! Children: their place in the tree, how many run concurrently, and what happens to those that fail.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::time::Duration;

use cantrip::{Cancel, Cantrip, CastOptions};
use cantrip_circle::DelegationGrants;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::{Message, TruncationReason};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, assert_recorded};
use serde_json::{Value, json};
use support::{Overlap, call, done, memory, script, slow, woven};

fn parent(crystal: &ScriptedCrystal) -> cantrip::CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .gate(builtin::done())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 10)
}

#[tokio::test(start_paused = true)]
async fn a_child_hangs_from_the_turn_that_spawned_it() {
    let runtime = memory();
    let said = call("call_agent", json!({"intent": "count"})).and_call("c2", "done", json!({"answer": "sum"}));
    let cantrip = parent(&script([said, done(3)])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("sum")));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        "A1 call_agent.. sealed\n  B1 <A1 done=3 terminated\nA2 <A1 continues call_agent=3 done=\"sum\" terminated"
    );
    assert_eq!(cast.outcome.unwrap().utterances, 1);
}

#[tokio::test(start_paused = true)]
async fn one_utterance_with_four_delegations_gives_exactly_the_tree_of_the_page() {
    let runtime = memory();
    let said = call("call_agent", json!({"intent": "a"}))
        .and_call("c2", "call_agent", json!({"intent": "b"}))
        .and_call("c3", "call_entity", json!({"intent": "c"}))
        .and_call("c4", "call_agent_batch", json!({"requests": ["x", {"intent": "y"}]}))
        .and_call("c5", "done", json!({"answer": "all"}));
    let children = ["A", "B", "C", "X", "Y"].map(done);
    let cantrip = parent(&script([said].into_iter().chain(children))).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("all")));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        r#"A1 call_agent.. sealed
  B1 <A1 done="A" terminated
A2 <A1 continues call_agent="A" call_agent.. sealed
  C1 <A2 done="B" terminated
A3 <A2 continues call_agent="B" call_agent.. sealed
  D1 <A3 done="C" terminated
A4 <A3 continues call_agent="C" call_agent_batch.. sealed
  E1 <A4 done="X" terminated
  F1 <A4 done="Y" terminated
A5 <A4 continues call_agent_batch=["X","Y"] done="all" terminated"#
    );
}

/// Returns a batch of children that each wait in a gate.
fn batch(waits: &[u64], overlap: &Overlap) -> (Cantrip, ScriptedCrystal) {
    let requests: Vec<Value> = waits.iter().map(|ms| json!(format!("wait {ms}"))).collect();
    let said = call("call_agent_batch", json!({ "requests": requests }));
    let firsts = waits.iter().map(|ms| call("slow", json!({ "ms": ms })));
    // The children's answers are in the order of their waiting times: the script is consumed in the order in which they
    // return.
    let mut back = waits.to_vec();
    back.sort_unstable();
    let seconds = back.into_iter().map(done);
    let crystal = script([said].into_iter().chain(firsts).chain(seconds).chain([done("over")]));
    let cantrip = parent(&crystal).gate(slow("slow", overlap)).build().unwrap();
    (cantrip, crystal)
}

#[tokio::test(start_paused = true)]
async fn children_that_finish_in_reverse_are_told_in_the_order_of_the_requests() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let (cantrip, _) = batch(&[300, 200, 100], &overlap);
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!(overlap.ended(), [100, 200, 300]);
    assert_eq!(overlap.most(), 3);
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains("call_agent_batch=[300,200,100]"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn of_twenty_children_never_more_than_eight_run_at_once() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let waits = [100; 20];
    let requests: Vec<Value> = waits.iter().map(|ms| json!(format!("wait {ms}"))).collect();
    let said = Response::call("b", "call_agent_batch", json!({ "requests": requests }));
    // Each child answers twice: with its call, and with its answer when the call has returned.
    struct Pair;
    impl cantrip_crystal::Crystal for Pair {
        fn name(&self) -> &str {
            "scripted/pair"
        }
        async fn ask(
            &self,
            request: &cantrip_crystal::Request,
            heard: &dyn cantrip_crystal::EventSink,
        ) -> Result<cantrip_crystal::Answer, cantrip_crystal::Failure> {
            let back = request.messages.iter().any(|message| matches!(message, Message::Tool { .. }));
            script([if back { done("back") } else { call("slow", json!({"ms": 100})) }]).ask(request, heard).await
        }
    }
    let delegates = DelegationGrants { crystal_by_level: vec!["pair".to_owned()], ..DelegationGrants::default() };
    let cantrip = Cantrip::builder()
        .crystal(script([said, done("over")]))
        .child_crystal("pair", Pair)
        .gate(builtin::done())
        .delegating(builtin::call_agent_batch(), delegates)
        .gate(slow("slow", &overlap))
        .ward("max_turns", 10)
        .build()
        .unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!((overlap.most(), overlap.ended().len()), (8, 20));
}

#[tokio::test(start_paused = true)]
async fn a_delegation_that_may_not_be_spawns_nothing_and_seals_no_turn() {
    let many: Vec<Value> = (0..51).map(|n| json!(format!("{n}"))).collect();
    for (gate, args, code) in [
        ("call_agent", json!({"intent": "x", "gates": ["read"]}), codes::CANNOT_GRANT.any()),
        ("call_agent", json!({"intent": "x", "crystal": "other/model"}), codes::NOT_FOUND.any()),
        ("call_agent", json!({"intent": "x", "medium": "python"}), codes::SCHEMA.any()),
        ("call_agent", json!({"intent": "x", "wards": {"max_turn": 1}}), codes::SCHEMA.any()),
        ("call_agent", json!({"intent": " "}), codes::CONTRACT_INVALID.any()),
        ("call_agent_batch", json!({ "requests": many }), codes::LIMIT.any()),
    ] {
        let runtime = memory();
        let cantrip = parent(&script([call(gate, args), done("lives on")])).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("lives on")));
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert_eq!(found, format!("A1 {gate}!{code}\nA2 <A1 done=\"lives on\" terminated"));
    }
}

#[tokio::test(start_paused = true)]
async fn at_depth_zero_there_is_nobody_to_call() {
    let runtime = memory();
    let said = [call("call_agent", json!({"intent": "deeper"})), call("call_agent", json!({"intent": "deeper still"}))];
    let crystal = script(said.into_iter().chain([done("child"), done("root")]));
    let cantrip = parent(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("root")));
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains(&format!("  B1 <A1 call_agent!{}", codes::GATE_REMOVED.any())), "{found}");
    let child = &crystal.requests()[1];
    assert!(child.definitions.iter().all(|definition| definition.name == "done"));
    assert_eq!(child.messages.len(), 1, "nothing of the parent's list");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_fails_is_its_calls_error_and_the_parent_lives_on() {
    let runtime = memory();
    let said = call("call_agent", json!({"intent": "x", "max_turns": 1}));
    let failing = Response::error(400, "no");
    let child = call("echo", json!({"text": 1}));
    let crystal = script([said, child, call("call_agent", json!({"intent": "y"})), failing, done("root")]);
    let cantrip = parent(&crystal).gate(builtin::echo()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("root")), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    let failed = codes::CHILD_FAILED.any();
    assert_eq!(
        found,
        format!(
            "A1 call_agent.. sealed\n  B1 <A1 echo=1 truncated max_turns\nA2 <A1 continues call_agent!{failed}\n\
             A3 <A2 call_agent.. sealed\nA4 <A3 continues call_agent!{failed}\nA5 <A4 done=\"root\" terminated"
        )
    );
    let thread = cantrip_loom::Loom::thread(runtime.loom(), cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let cantrip_loom::Settlement::Settled(settled) = &thread.turns[1].gate_calls[0].settlement else {
        panic!("settled")
    };
    assert_recorded(&serde_json::to_value(&settled.reply).unwrap(), failed);
}

#[tokio::test(start_paused = true)]
async fn a_batch_keeps_the_results_of_the_children_that_did_not_fail() {
    let runtime = memory();
    let said = call("call_agent_batch", json!({"requests": ["a", "b", "c"]}));
    let crystal = script([said, done(1), Response::error(400, "no"), done(3), done("over")]);
    let cantrip = parent(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    let thread = cantrip_loom::Loom::thread(runtime.loom(), cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let cantrip_loom::Settlement::Settled(settled) = &thread.turns[1].gate_calls[0].settlement else {
        panic!("settled")
    };
    assert_eq!((&settled.result[0], &settled.result[2]), (&json!(1), &json!(3)));
    assert_eq!(settled.result[1]["error"]["code"], codes::CHILD_FAILED.any().as_str());
    assert_eq!(settled.children.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_the_whole_tree_children_first() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let child = call("call_agent", json!({"intent": "grandchild"}));
    let crystal = script([call("call_agent", json!({"intent": "child"})), child, call("slow", json!({"ms": 60_000}))]);
    let cantrip = parent(&crystal).gate(slow("slow", &overlap)).ward("max_depth", 2).build().unwrap();
    let cancel = Cancel::new();
    let later = cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        later.cancel();
    });
    let cast = runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)).await;
    assert_code(cast.reply(), codes::ENDED_FROM_OUTSIDE);
    assert_eq!(cast.reason(), Some(TruncationReason::Cancelled));
    let ended = codes::ENDED_FROM_OUTSIDE.any();
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        format!(
            "A1 call_agent.. sealed\n  B1 <A1 call_agent.. sealed\n    C1 <B1 slow!{ended} truncated parent_terminated\n  \
             B2 <B1 continues call_agent!{ended} truncated parent_terminated\n\
             A2 <A1 continues call_agent!{ended} truncated cancelled"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_childs_limit_is_the_least_of_both() {
    let runtime = memory();
    let said = call("call_agent", json!({"intent": "x", "max_turns": 20}));
    let echoes = (0..5).map(|n| call("echo", json!({"text": n})));
    let crystal = script([said].into_iter().chain(echoes).chain([done("root")]));
    let cantrip = parent(&crystal).gate(builtin::echo()).ward("max_turns", 5).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("root")));
    assert!(woven(&runtime, cantrip.loom_id()).await.contains("  B5 <B4 echo=4 truncated max_turns"));
}

#[tokio::test(start_paused = true)]
async fn a_context_is_read_through_a_gate_and_never_in_a_request() {
    let runtime = memory();
    let said = call("call_agent", json!({"intent": "read it", "context": {"secret": "x".repeat(200_000)}}));
    let read = call("context", json!({"pointer": "/secret", "limit": 3}));
    let crystal = script([said, read, done("read"), done("root")]);
    let cantrip = parent(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("root")), "{:?}", cast.reply());
    let child = &crystal.requests()[2];
    assert!(child.messages.iter().all(|message| format!("{message:?}").len() < 1_000));
    assert!(woven(&runtime, cantrip.loom_id()).await.contains("\"value\":\"xxx\""));
}

#[tokio::test(start_paused = true)]
async fn a_context_of_ten_megabytes_is_in_no_request_and_stored_once() {
    let runtime = memory();
    let context = json!({"rows": "x".repeat(10 << 20), "title": "many rows"});
    let crystal = support::Acting(|request: &cantrip_crystal::Request| {
        let said = support::said_before(request);
        match (support::intent_of(request).as_str(), said) {
            ("go", 0) => call("context", json!({"pointer": "/title"})),
            ("go", 1) => call("context", json!({"pointer": "/rows", "offset": 10, "limit": 5})),
            ("go", _) => done("read"),
            (other, _) => panic!("{other}"),
        }
    });
    let cantrip = Cantrip::builder().crystal(crystal).gate(builtin::done()).ward("max_turns", 5).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go").context(context)).await;
    assert_eq!(cast.answer(), Some(&json!("read")), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains("many rows") && found.contains("\"xxxxx\"") && found.len() < 2_000, "{}", found.len());
    let records: Vec<cantrip_loom::Record> =
        futures_util::TryStreamExt::try_collect(cantrip_loom::Journal::scan(runtime.loom())).await.unwrap();
    let bytes: usize = records.iter().map(|record| record.payload.len()).sum();
    assert!(bytes < 20_000, "the records name it, and repeat none of it: {bytes}");
}
