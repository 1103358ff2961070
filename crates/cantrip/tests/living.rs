//! Entities that stay alive, forks, continued runs, concurrent calls and commits.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::{Cantrip, CastOptions, ContinueOptions, ForkOptions};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::{Journal, Loom, Message, PageRequest, Seq, TruncationReason};
use cantrip_medium_javascript::{Javascript, Options};
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
    let second: Vec<_> = crystal.requests()[1].messages.iter().cloned().collect();
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
    let (one, two) =
        (runtime.cast(&cantrip, CastOptions::on("a")).await, runtime.cast(&cantrip, CastOptions::on("b")).await);
    assert_ne!(one.entity, two.entity);
    assert_eq!((one.answer(), two.answer()), (Some(&json!(1)), Some(&json!(2))));
    let loom = cantrip.loom_id();
    assert_eq!(runtime.loom().roots(loom).await.unwrap().len(), 1);
    assert_eq!(runtime.loom().leaves(loom, PageRequest::FIRST).await.unwrap().items.len(), 2);
}

fn messages(crystal: &ScriptedCrystal, at: usize) -> Vec<Message> {
    crystal.requests()[at].messages.iter().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn a_fork_shares_the_turns_up_to_its_place_and_runs_no_gate() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([call("count", json!({"n": 1})), call("count", json!({"n": 2})), done("long"), done("short")]);
    let cantrip = talking(&crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let before: Vec<_> = runtime.loom().read(cast.run.unwrap(), Seq::START).try_collect().await.unwrap();
    let fork = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!("short")), "{:?}", fork.reply());
    assert_eq!(count.get(), 2);
    let shared = messages(&crystal, 1);
    let forked = messages(&crystal, 3);
    assert_eq!(&forked[..shared.len()], &shared[..]);
    assert_eq!(forked.len(), shared.len() + 1);
    let after: Vec<_> = runtime.loom().read(cast.run.unwrap(), Seq::START).try_collect().await.unwrap();
    assert_eq!(before, after, "what it branched off from is as it was");
    assert!(woven(&runtime, cantrip.loom_id()).await.ends_with("B2 <A1 done=\"short\" terminated"));
    let fork = runtime.fork(&cantrip, turns[2].id, ForkOptions::new()).await;
    assert_code(fork.reply(), codes::CONTRACT_INVALID);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_off_goes_on_under_its_own_intent() {
    let runtime = memory();
    let crystal = script([call("echo", json!({"text": 1})), Response::error(400, "no"), done("in the end")]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    let run = cast.run.unwrap();
    let more = runtime.continue_run(&cantrip, run, ContinueOptions::new()).await;
    assert_eq!(more.answer(), Some(&json!("in the end")), "{:?}", more.reply());
    assert_eq!(more.entity, cast.entity);
    assert_eq!(messages(&crystal, 2), messages(&crystal, 1), "no second intent");
    assert_code(runtime.continue_run(&cantrip, run, ContinueOptions::new()).await.reply(), codes::WRONG_STATE);
    assert_code(
        runtime.continue_run(&cantrip, more.run.unwrap(), ContinueOptions::new()).await.reply(),
        codes::WRONG_STATE,
    );
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
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    assert_eq!(overlap.most(), 8);
    assert_eq!(start.elapsed().as_millis(), 1_000 + 200 + 50 + 10);
    let found = woven(&runtime, cantrip.loom_id()).await;
    let first: String = (1..=10).rev().map(|ms| format!(" look={}", ms * 100)).collect();
    assert!(found.starts_with(&format!("A1{first} slow=50 look=10")), "{found}");
}

async fn steps_of(responses: Vec<Response>) -> u64 {
    let store = Dying::after(cantrip_loom::AnyLoom::new(cantrip_loom::MemoryLoom::new()), u64::MAX);
    let runtime = support::runtime_over(store.clone());
    let count = Count::default();
    let cantrip = support::requiring(&script(responses)).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::TERMINATED);
    store.taken()
}

#[tokio::test(start_paused = true)]
async fn a_gate_turn_is_two_commits_and_a_text_or_pure_turn_one() {
    let base = steps_of(vec![done(1)]).await;
    let gates = |n: u64| (0..n).map(|at| call("count", json!({ "n": at }))).chain([done(1)]).collect();
    let texts = |n: u64| (0..n).map(|at| Response::text(format!("{at}"))).chain([done(1)]).collect();
    let pure = |n: u64| (0..n).map(|at| call("echo", json!({ "text": at }))).chain([done(1)]).collect();
    // The steps: the run's first records, then the attempt; the last turn closes with its end.
    assert_eq!(base, 3);
    assert_eq!(steps_of(gates(4)).await, base + 8);
    assert_eq!(steps_of(texts(4)).await, base + 4);
    assert_eq!(steps_of(pure(4)).await, base + 4);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_restored_refuses_a_fork_unless_it_may_begin_anew() {
    let runtime = memory();
    let cantrip = talking(&script([call("echo", json!({"text": 1})), done(1)])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)));
    let first = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items[0].id;
    let shell = talking(&script([])).medium(cantrip_circle::MediumKind::Shell).build().unwrap();
    assert_code(runtime.fork(&shell, first, ForkOptions::on("x")).await.reply(), codes::NOT_RESTORABLE);
    // A fresh fork is allowed; it fails only because this circle has no shell.
    let anew = runtime.fork(&shell, first, ForkOptions::on("x").fresh()).await;
    assert_code(anew.reply(), codes::SANDBOX_UNAVAILABLE);
}

#[tokio::test(start_paused = true)]
async fn for_every_turn_the_forks_first_list_is_that_of_the_turns_before_and_the_intent() {
    let runtime = memory();
    let said = || (0..4).map(|n| call("echo", json!({ "text": n })));
    let crystal = script(said().chain([done("over")]).chain((0..4).map(done)));
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    for (at, turn) in turns.iter().enumerate().take(4) {
        let fork = runtime.fork(&cantrip, turn.id, ForkOptions::on("another way")).await;
        assert_eq!(fork.answer(), Some(&json!(at)));
        let (shared, forked) = (messages(&crystal, at + 1), messages(&crystal, 5 + at));
        assert_eq!(&forked[..forked.len() - 1], &shared[..]);
        assert!(matches!(forked.last(), Some(Message::User { content }) if content.text() == "another way"));
        let leaf = fork.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

/// Returns a cantrip in code that is cut off, and its answers after it continues.
fn cut_off(responses: Vec<Response>, wards: serde_json::Value) -> (Cantrip, ScriptedCrystal) {
    let crystal = script(responses);
    let cantrip = Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(slow("slow", &Overlap::default()))
        .wards(&wards)
        .build()
        .unwrap();
    (cantrip, crystal)
}

#[tokio::test]
async fn a_run_cut_off_for_any_reason_goes_on_in_place_with_its_variables() {
    let first = || Response::code("var x = 41");
    let last = || Response::code("done(x + 1)");
    for (reason, responses, wards) in [
        (TruncationReason::MaxTurns, vec![first(), last()], json!({"max_turns": 1})),
        (TruncationReason::Timeout, vec![first(), Response::code("slow(60000)"), last()], json!({"timeout": "500ms"})),
        (TruncationReason::CrystalError, vec![first(), Response::error(400, "no"), last()], json!({"max_turns": 5})),
    ] {
        for (store, _folder) in support::stores() {
            let runtime = support::house_of(store, 1);
            let (cantrip, crystal) = cut_off(responses.clone(), wards.clone());
            let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
            assert_eq!(cast.reason(), Some(reason), "{:?}", cast.reply());
            let before = messages(&crystal, crystal.requests().len() - 1);
            let more = runtime.continue_run(&cantrip, cast.run.unwrap(), ContinueOptions::new()).await;
            assert_eq!(more.answer(), Some(&json!(42)), "{reason:?}: {:?}", more.reply());
            assert_eq!((more.entity, more.run == cast.run), (cast.entity, false));
            let after = messages(&crystal, crystal.requests().len() - 1);
            assert_eq!(after[..before.len()], before[..], "the list goes on where it was");
            let told =
                after.iter().filter(|message| matches!(message, Message::User { content } if content.text() == "go"));
            assert_eq!(told.count(), 1, "the intent is not said again");
            let leaf = more.outcome.unwrap().leaf.unwrap();
            assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);

            // A fork of the truncated thread also continues under its intent; a fork of a terminated thread needs its
            // own.
            let cut = cast.outcome.unwrap().leaf.unwrap();
            let forked = cantrip.with_crystal(script([Response::code("done(x)")])).unwrap();
            let fork = runtime.fork(&forked, cut, ForkOptions::new()).await;
            assert_eq!(fork.answer(), Some(&json!(41)), "{reason:?}: {:?}", fork.reply());
            let over = runtime.fork(&forked, leaf, ForkOptions::new()).await;
            assert_code(over.reply(), codes::CONTRACT_INVALID);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_without_a_turn_goes_on_from_its_intent() {
    let runtime = memory();
    let crystal = script([Response::error(400, "no"), done("after all")]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.outcome.as_ref().unwrap().leaf, None);
    let more = runtime.continue_run(&cantrip, cast.run.unwrap(), ContinueOptions::new()).await;
    assert_eq!(more.answer(), Some(&json!("after all")), "{:?}", more.reply());
    assert_eq!(messages(&crystal, 1), messages(&crystal, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_said_when_going_on_narrows_the_wards_and_widens_nothing() {
    let echo = |n: u64| call("echo", json!({ "text": n }));
    for (turns, made) in [(1, 1), (2, 2), (50, 3)] {
        let runtime = memory();
        let crystal = script((0..9).map(echo));
        let cantrip = talking(&crystal).ward("max_turns", 3).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        let more = runtime.continue_run(&cantrip, cast.run.unwrap(), ContinueOptions::new().max_turns(turns)).await;
        assert_code(more.reply(), codes::WARD_REACHED);
        assert_eq!(more.reply().data()["limit"], made.to_string());
        assert_eq!(more.outcome.as_ref().unwrap().utterances, made);
        let casts = runtime.loom().casts(more.entity.unwrap()).await.unwrap();
        assert_eq!(casts[1].cast.wards["max_turns"], made);
        // A reader of the run, or a process that resumes it, has the same wards.
        let again = runtime.resume(&cantrip, more.run.unwrap()).await;
        assert_eq!(again.reply().data()["limit"], made.to_string());
        let leaf = more.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_continued_run_that_dies_is_resumed_under_its_own_wards() {
    let memory = cantrip_loom::AnyLoom::new(cantrip_loom::MemoryLoom::new());
    let cantrip = || {
        let crystal = support::Acting(|request: &cantrip_crystal::Request| {
            call("echo", json!({"text": support::said_before(request)}))
        });
        talking(&script([])).crystal(crystal).ward("max_turns", 5).build().unwrap()
    };
    let cast = support::house_of(memory.clone(), 1).cast(&cantrip(), CastOptions::on("go")).await;
    let dying = support::house_of(cantrip_loom::AnyLoom::new(Dying::after(memory.clone(), 3)), 2);
    let died = dying.continue_run(&cantrip(), cast.run.unwrap(), ContinueOptions::new().max_turns(3)).await;
    assert_code(died.reply(), codes::STORE_UNAVAILABLE);
    let resumed = support::house_of(memory, 3).resume(&cantrip(), died.run.unwrap()).await;
    assert_eq!(resumed.outcome.unwrap().utterances, 3);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_nobody_could_keep_is_refused_before_anything_goes_on() {
    let runtime = memory();
    let priced =
        |price| talking(&script((0..9).map(|n| call("echo", json!({ "text": n }))))).price(price).ward("max_turns", 1);
    let budget: cantrip_canon::Money = "0.10 USD".parse().unwrap();
    let unknown = priced(cantrip_crystal::Price::Unknown).build().unwrap();
    let cast = runtime.cast(&unknown, CastOptions::on("go")).await;
    let refused = runtime.continue_run(&unknown, cast.run.unwrap(), ContinueOptions::new().budget(budget)).await;
    assert_code(refused.reply(), codes::CONTRACT_INVALID);
    assert_eq!(runtime.loom().casts(cast.entity.unwrap()).await.unwrap().len(), 1);

    let free = priced(cantrip_crystal::Price::Free).build().unwrap();
    let cast = runtime.cast(&free, CastOptions::on("go")).await;
    let more = runtime.continue_run(&free, cast.run.unwrap(), ContinueOptions::new().budget(budget)).await;
    assert_eq!(more.reason(), Some(TruncationReason::MaxTurns), "{:?}", more.reply());
    let casts = runtime.loom().casts(cast.entity.unwrap()).await.unwrap();
    assert_eq!(casts[1].cast.budget, Some(budget));
}

#[tokio::test(start_paused = true)]
async fn an_entity_whose_run_waits_is_busy_and_goes_on_when_that_run_has_ended() {
    let runtime = memory();
    let retry = cantrip_crystal::RetryPolicy { max_retries: 0, ..cantrip_crystal::RetryPolicy::default() };
    let crystal = script([Response::error(503, "down"), done("one"), done("two")]);
    let cantrip = talking(&crystal).retry(retry).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let parked = entity.send("first").await;
    assert_eq!(parked.reply().data()["state"], "waiting");
    assert_code(entity.send("second").await.reply(), codes::BUSY);
    assert_eq!(runtime.resume(&cantrip, parked.run.unwrap()).await.answer(), Some(&json!("one")));
    let second = entity.send("second").await;
    assert_eq!(second.answer(), Some(&json!("two")), "{:?}", second.reply());
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 done=\"one\" terminated\nA2 <A1 done=\"two\" terminated");
}
