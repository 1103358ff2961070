//! Entities that live on, forks, continuing, stretches and commits.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use cantrip::{Casting, Forking};
use cantrip_crystal::{Response, Scripted};
use cantrip_loom::{Journal, Loom, Message, Page, Seq};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{Count, Dying, Overlap, call, counting, done, memory, script, slow, talking, waiting, woven};

#[tokio::test(start_paused = true)]
async fn each_send_is_a_cast_of_its_own_on_one_thread() {
    let runtime = memory();
    let crystal = script([done("one"), done("two")]);
    let cantrip = talking(&crystal).ward("max_turns", 1).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("first").await.answer(), Some(&json!("one")));
    assert_eq!(entity.send("second").await.answer(), Some(&json!("two")));
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 done=\"one\" terminated\nA2 <A1 done=\"two\" terminated");
    let second: Vec<_> = crystal.inputs()[1].messages.iter().cloned().collect();
    assert!(matches!(&second[0], Message::User { content } if content.text() == "first"));
    assert!(matches!(second.last(), Some(Message::User { content }) if content.text() == "second"));

    let again = runtime.entity(&cantrip, entity.id()).await.unwrap();
    assert_eq!(again.id(), entity.id());
}

#[tokio::test(start_paused = true)]
async fn a_send_while_one_runs_is_refused() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let crystal = script([call("slow", json!({"ms": 1_000})), done("one"), done("two")]);
    let cantrip = talking(&crystal).gate(slow("slow", &overlap)).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let (first, second) = tokio::join!(entity.send("first"), entity.send("second"));
    assert_eq!(first.answer(), Some(&json!("one")));
    assert_code(second.reply(), codes::BUSY);
    entity.dispose();
    assert_code(entity.send("third").await.reply(), codes::WRONG_STATE);
}

#[tokio::test(start_paused = true)]
async fn one_cantrip_cast_twice_makes_two_entities() {
    let runtime = memory();
    let cantrip = talking(&script([done(1), done(2)])).build().unwrap();
    let (one, two) = (runtime.cast(&cantrip, Casting::on("a")).await, runtime.cast(&cantrip, Casting::on("b")).await);
    assert_ne!(one.entity, two.entity);
    assert_eq!((one.answer(), two.answer()), (Some(&json!(1)), Some(&json!(2))));
    let loom = cantrip.loom_id();
    assert_eq!(runtime.loom().roots(loom).await.unwrap().len(), 1);
    assert_eq!(runtime.loom().leaves(loom, Page::FIRST).await.unwrap().items.len(), 2);
}

fn messages(crystal: &Scripted, at: usize) -> Vec<Message> {
    crystal.inputs()[at].messages.iter().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn a_fork_shares_the_turns_up_to_its_place_and_runs_no_gate() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([call("count", json!({"n": 1})), call("count", json!({"n": 2})), done("long"), done("short")]);
    let cantrip = talking(&crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    let turns = runtime.loom().turns(cantrip.loom_id(), Page::FIRST).await.unwrap().items;
    let before: Vec<_> = runtime.loom().read(cast.run.unwrap(), Seq::START).try_collect().await.unwrap();
    let fork = runtime.fork(&cantrip, turns[0].id, Forking::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!("short")), "{:?}", fork.reply());
    assert_eq!(count.get(), 2);
    let shared = messages(&crystal, 1);
    let forked = messages(&crystal, 3);
    assert_eq!(&forked[..shared.len()], &shared[..]);
    assert_eq!(forked.len(), shared.len() + 1);
    let after: Vec<_> = runtime.loom().read(cast.run.unwrap(), Seq::START).try_collect().await.unwrap();
    assert_eq!(before, after, "what it branched off from is as it was");
    assert!(woven(&runtime, cantrip.loom_id()).await.ends_with("B2 <A1 done=\"short\" terminated"));
    let fork = runtime.fork(&cantrip, turns[2].id, Forking::new()).await;
    assert_code(fork.reply(), codes::CONTRACT_INVALID);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_off_goes_on_under_its_own_intent() {
    let runtime = memory();
    let crystal = script([call("echo", json!({"text": 1})), Response::error(400, "no"), done("in the end")]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    let run = cast.run.unwrap();
    let more = runtime.continue_run(&cantrip, run).await;
    assert_eq!(more.answer(), Some(&json!("in the end")), "{:?}", more.reply());
    assert_eq!(more.entity, cast.entity);
    assert_eq!(messages(&crystal, 2), messages(&crystal, 1), "no second intent");
    assert_code(runtime.continue_run(&cantrip, run).await.reply(), codes::WRONG_STATE);
    assert_code(runtime.continue_run(&cantrip, more.run.unwrap()).await.reply(), codes::WRONG_STATE);
}

#[tokio::test(start_paused = true)]
async fn neighbours_that_only_read_run_eight_at_once_and_a_writer_alone() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let mut said = Response::default();
    for (at, ms) in (1..=10).rev().enumerate() {
        said = said.and_call(format!("r{at}"), "look", json!({"ms": ms * 100}));
    }
    said = said.and_call("w", "slow", json!({"ms": 50})).and_call("r", "look", json!({"ms": 10}));
    let cantrip = talking(&script([said, done("over")]))
        .gate(waiting("look", &overlap))
        .gate(slow("slow", &overlap))
        .build()
        .unwrap();
    let start = tokio::time::Instant::now();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    assert_eq!(overlap.most(), 8);
    assert_eq!(start.elapsed().as_millis(), 1_000 + 200 + 50 + 10);
    let found = woven(&runtime, cantrip.loom_id()).await;
    let first: String = (1..=10).rev().map(|ms| format!(" look={}", ms * 100)).collect();
    assert!(found.starts_with(&format!("A1{first} slow=50 look=10")), "{found}");
}

async fn steps_of(responses: Vec<Response>) -> u64 {
    let store = Dying::after(cantrip_loom::AnyLoom::new(cantrip_loom::Memory::new()), u64::MAX);
    let runtime = support::house(store.clone());
    let count = Count::default();
    let cantrip = support::requiring(&script(responses)).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    assert_code(cast.reply(), codes::TERMINATED);
    store.taken()
}

#[tokio::test(start_paused = true)]
async fn a_gate_turn_is_two_commits_and_a_text_or_pure_turn_one() {
    let base = steps_of(vec![done(1)]).await;
    let gates = |n: u64| (0..n).map(|at| call("count", json!({ "n": at }))).chain([done(1)]).collect();
    let texts = |n: u64| (0..n).map(|at| Response::text(format!("{at}"))).chain([done(1)]).collect();
    let pure = |n: u64| (0..n).map(|at| call("echo", json!({ "text": at }))).chain([done(1)]).collect();
    // The run's first records, then the attempt; the last turn closes with its end.
    assert_eq!(base, 3);
    assert_eq!(steps_of(gates(4)).await, base + 8);
    assert_eq!(steps_of(texts(4)).await, base + 4);
    assert_eq!(steps_of(pure(4)).await, base + 4);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_restored_refuses_a_fork_unless_it_may_begin_anew() {
    let runtime = memory();
    let cantrip = talking(&script([call("echo", json!({"text": 1})), done(1)])).build().unwrap();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)));
    let first = runtime.loom().turns(cantrip.loom_id(), Page::FIRST).await.unwrap().items[0].id;
    let shell = talking(&script([])).medium(cantrip_circle::MediumKind::Shell).build().unwrap();
    assert_code(runtime.fork(&shell, first, Forking::on("x")).await.reply(), codes::NOT_RESTORABLE);
    // Nothing serves a shell here, so beginning anew comes as far as that.
    let anew = runtime.fork(&shell, first, Forking::on("x").fresh()).await;
    assert_code(anew.reply(), codes::SANDBOX_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn for_every_turn_the_forks_first_list_is_that_of_the_turns_before_and_the_intent() {
    let runtime = memory();
    let said = || (0..4).map(|n| call("echo", json!({ "text": n })));
    let crystal = script(said().chain([done("over")]).chain((0..4).map(done)));
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, Casting::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    let turns = runtime.loom().turns(cantrip.loom_id(), Page::FIRST).await.unwrap().items;
    for (at, turn) in turns.iter().enumerate().take(4) {
        let fork = runtime.fork(&cantrip, turn.id, Forking::on("another way")).await;
        assert_eq!(fork.answer(), Some(&json!(at)));
        let (shared, forked) = (messages(&crystal, at + 1), messages(&crystal, 5 + at));
        assert_eq!(&forked[..forked.len() - 1], &shared[..]);
        assert!(matches!(forked.last(), Some(Message::User { content }) if content.text() == "another way"));
        let leaf = fork.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}
