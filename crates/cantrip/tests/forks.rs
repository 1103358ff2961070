//! Forks and replays of threads with everything in them: casts, children, folds, programs.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::fold::FoldOptions;
use cantrip::{Cantrip, CantripBuilder, CastOptions, DivergenceKind, ForkOptions, ReplayOutcome, Runtime};
use cantrip_canon::RunId;
use cantrip_circle::gate::builtin;
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::{Crystal, Messages, Response, ScriptedCrystal};
use cantrip_loom::{
    AnyLoom, Environment, Journal, Loom, MemoryLoom, Message, PageRequest, Record, RecordDraft, Seq, Step, StepId, Turn,
};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{Count, Dying, call, counting, done, house_of, memory, script, stores};

fn family(crystal: impl Crystal + 'static) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 20)
}

fn coding(crystal: impl Crystal + 'static) -> CantripBuilder {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    family(crystal).medium(MediumKind::Javascript).serve_medium(medium as Arc<dyn Medium>)
}

fn listed(messages: &Messages) -> Vec<Message> {
    messages.iter().cloned().collect()
}

async fn own_turns(runtime: &Runtime, cantrip: &Cantrip) -> Vec<Turn> {
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let first = turns[0].entity_id;
    turns.into_iter().filter(|turn| turn.entity_id == first).collect()
}

async fn everything(runtime: &Runtime) -> Vec<Record> {
    runtime.loom().scan().try_collect().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn for_every_turn_of_a_long_thread_the_fork_begins_where_that_turn_left_off() {
    for (store, _folder) in stores() {
        let runtime = house_of(store, 1);
        let echo = |n: u64| call("echo", json!({ "text": n }));
        let asks = |intent: &str| call("call_agent", json!({ "intent": intent }));
        // Two casts, three children, folds in between.
        let crystal = script([
            echo(1),
            asks("child 1"),
            done("c1"),
            echo(2),
            echo(3),
            asks("child 2").and_call("e", "echo", json!({"text": "after"})),
            done("c2"),
            done("first"),
            echo(4),
            asks("child 3"),
            done("c3"),
            echo(5),
            done("second"),
        ]);
        let cantrip = family(crystal.clone()).folding(FoldOptions::after_turns(3)).build().unwrap();
        let entity = runtime.summon(&cantrip, None).await.unwrap();
        assert_eq!(entity.send("the first intent").await.answer(), Some(&json!("first")));
        assert_eq!(entity.send("the second intent").await.answer(), Some(&json!("second")));
        let turns = own_turns(&runtime, &cantrip).await;
        assert!(!runtime.loom().folds(turns.last().unwrap().id).await.unwrap().is_empty());
        let before = everything(&runtime).await;
        let requests: Vec<Vec<Message>> = crystal
            .requests()
            .iter()
            .filter(|input| input.caller.entity == entity.id())
            .map(|input| listed(&input.messages))
            .collect();
        let mut groups = 0;
        let mut compared = 0;
        for turn in &turns {
            groups += usize::from(turn.continuation_of.is_none());
            let other = script([done("forked")]);
            let forked = cantrip.with_crystal(other.clone()).unwrap();
            let fork = runtime.fork(&forked, turn.id, ForkOptions::on("another way")).await;
            assert_eq!(fork.answer(), Some(&json!("forked")), "turn {}: {:?}", turn.sequence, fork.reply());
            let list = listed(&other.requests()[0].messages);
            let (last, shared) = list.split_last().unwrap();
            assert!(matches!(last, Message::User { content } if content.text() == "another way"));
            let forked_turn = runtime.loom().turn(fork.outcome.as_ref().unwrap().leaf.unwrap()).await.unwrap();
            assert_eq!((forked_turn.parent_id, forked_turn.sequence), (Some(turn.id), turn.sequence + 1));
            if turn.is_sealed() {
                let open = shared.iter().rev().take_while(|message| matches!(message, Message::Tool { .. }));
                assert!(open.clone().count() > 0);
                for result in open {
                    let Message::Tool { content, .. } = result else { panic!("a result") };
                    assert_eq!(content.text(), "[not run: forked here]", "turn {}", turn.sequence);
                }
            } else if let Some(next) = requests.get(groups).filter(|_| !turn.is_terminated()) {
                assert_eq!(shared, next, "turn {}", turn.sequence);
                compared += 1;
            }
            let leaf = fork.outcome.unwrap().leaf.unwrap();
            assert_code(runtime.replay(&forked, leaf).await.reply(), codes::VERIFIED);
        }
        assert!(compared >= 6, "{compared}");
        let after = everything(&runtime).await;
        assert_eq!(after[..before.len()], before[..], "the original is untouched");
        let last = turns.last().unwrap().id;
        assert_code(runtime.replay(&cantrip, last).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fork_or_a_send_behind_a_fold_reads_only_what_shows() {
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let turns = (1..18).map(|n| call("echo", json!({ "text": n }))).chain([done("first"), done("second")]);
    let cantrip = family(script(turns)).folding(FoldOptions::after_turns(4)).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let first = entity.send("count").await;
    assert_eq!(first.answer(), Some(&json!("first")), "{:?}", first.reply());
    let leaf = first.outcome.unwrap().leaf.unwrap();
    let whole = ["thread", "path", "turns", "folds"];
    store.asked();
    let other = cantrip.with_crystal(script([done("forked")])).unwrap();
    let fork = runtime.fork(&other, leaf, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!("forked")), "{:?}", fork.reply());
    let asked = store.asked();
    assert!(asked.contains(&"thread_end") && !asked.iter().any(|view| whole.contains(view)), "{asked:?}");
    drop(entity);
    // Another process loads the entity.
    let entity = runtime.entity(&cantrip, first.entity.unwrap()).await.unwrap();
    assert_eq!(entity.send("go on").await.answer(), Some(&json!("second")));
    let asked = store.asked();
    assert!(!asked.iter().any(|view| whole.contains(view)), "{asked:?}");
}

#[tokio::test]
async fn a_fork_from_inside_an_utterance_has_the_sandbox_as_it_stood_at_the_seal() {
    let (runtime, count) = (memory(), Count::default());
    let programs = |crystal: &[&str]| script(crystal.iter().map(|code| Response::code(*code)));
    let first = json!({"code": "var first = count(1); var at = Date.now(); console.log('told')"});
    let said = Response::call("p1", "javascript", first).and_call(
        "p2",
        "javascript",
        json!({"code": "var began = Date.now(); var before = count(2); call_agent('child'); var after = count(3); done([at, began])"}),
    );
    let child = Response::code("done('child')");
    let cantrip = coding(script([said, child])).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let clocks = cast.answer().unwrap_or_else(|| panic!("{:?}", cast.reply())).clone();
    let turns = own_turns(&runtime, &cantrip).await;
    assert!(turns[0].is_sealed());
    assert_eq!(turns[0].outputs[0].console, ["told"], "what the first program said belongs to the sealed turn");
    assert_code(runtime.replay(&cantrip, turns[1].id).await.reply(), codes::VERIFIED);
    let crystal = programs(&["done([first, before, typeof after, [at, began]])"]);
    let forked = cantrip.with_crystal(crystal.clone()).unwrap();
    let fork = runtime.fork(&forked, turns[0].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!([1, 2, "undefined", clocks])), "{:?}", fork.reply());
    assert_eq!(count.get(), 3, "no gate ran for it");
    let list = listed(&crystal.requests()[0].messages);
    let results: Vec<String> = list
        .iter()
        .filter_map(|message| match message {
            Message::Tool { content, .. } => Some(content.text()),
            Message::System { .. } | Message::User { .. } | Message::Assistant { .. } => None,
        })
        .collect();
    assert_eq!(results, ["told", "[not run: forked here]"]);
    let leaf = runtime.loom().turn(fork.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(leaf.forked_from.unwrap().environment, Environment::Replay);
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_branch_never_shows_in_another() {
    let runtime = memory();
    let echo = |text: &str| call("echo", json!({ "text": text }));
    let cantrip = family(script([echo("shared"), echo("left behind"), done(1)])).build().unwrap();
    assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(1)));
    let first = own_turns(&runtime, &cantrip).await.remove(0);
    let mut lists = Vec::new();
    for way in ["left", "right"] {
        let crystal = script([echo(way), done(way)]);
        let forked = cantrip.with_crystal(crystal.clone()).unwrap();
        let fork = runtime.fork(&forked, first.id, ForkOptions::on(format!("go {way}"))).await;
        assert_eq!(fork.answer(), Some(&json!(way)));
        lists.push(format!("{:?}", listed(&crystal.requests()[1].messages)));
    }
    assert!(lists.iter().all(|list| list.contains("shared") && !list.contains("left behind")));
    assert!(!lists[0].contains("right") && !lists[1].contains("go left"));
    assert_eq!(runtime.loom().leaves(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items.len(), 3);
}

/// Returns a copy of a run in which one text is replaced.
async fn altered(runtime: &Runtime, run: RunId, from: &str, to: &str) -> Runtime {
    let records: Vec<Record> = runtime.loom().read(run, Seq::START).try_collect().await.unwrap();
    let changed = records.iter().filter(|record| record.payload.contains(from)).count();
    assert_eq!(changed, 1, "{from} stands in one record");
    let drafts = records.iter().map(|record| {
        let record = Record { payload: record.payload.replace(from, to).into(), ..record.clone() };
        RecordDraft::copy(&record).unwrap()
    });
    let copy = MemoryLoom::new();
    let step = Step::import(StepId::new("copy").unwrap(), run, Seq::START).records(drafts);
    let answer = copy.append(step).await.unwrap();
    assert!(matches!(answer, cantrip_loom::AppendOutcome::Committed(_)), "{answer:?}");
    house_of(AnyLoom::new(copy), 9)
}

#[tokio::test]
async fn a_replay_names_the_turn_the_call_and_both_sides_of_the_first_difference() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([
        Response::code("var a = count(7); var b = count(a + 1); console.log('sum', a + b)"),
        Response::code("done(a + b)"),
    ]);
    let cantrip = coding(crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let (run, leaf) = (cast.run.unwrap(), cast.outcome.unwrap().leaf.unwrap());
    assert_eq!(runtime.replay(&cantrip, leaf).await.replayed, Some(ReplayOutcome::Identical { turns: 2, calls: 3 }));
    for (from, to, kind, call, recorded, found) in [
        // The first call has another result: the second call has other arguments.
        (
            r#""result":{"inline":7}"#,
            r#""result":{"inline":9}"#,
            DivergenceKind::Argument,
            Some(2),
            json!({"n": 8}),
            json!({"n": 10}),
        ),
        // The second call has another result: no call differs, but the output does.
        (
            r#""result":{"inline":8}"#,
            r#""result":{"inline":5}"#,
            DivergenceKind::Output,
            None,
            json!(["sum 15"]),
            json!(["sum 12"]),
        ),
    ] {
        let copy = altered(&runtime, run, from, to).await;
        let replay = copy.replay(&cantrip, leaf).await;
        assert_code(replay.reply(), codes::REPLAY_DIVERGED);
        let Some(ReplayOutcome::Differs(differs)) = replay.replayed else { panic!("it differs") };
        assert_eq!((differs.sequence, differs.kind, differs.call), (1, kind, call), "{differs:?}");
        let side = |side: &serde_json::Value| side.get("console").cloned().unwrap_or_else(|| side.clone());
        assert_eq!((side(&differs.recorded), side(&differs.found)), (recorded, found));
    }
}

#[tokio::test(start_paused = true)]
async fn another_intent_or_end_on_record_is_told_apart_too() {
    let runtime = memory();
    let cantrip = family(script([call("echo", json!({"text": 1})), done(2)])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("how many?")).await;
    let (run, leaf) = (cast.run.unwrap(), cast.outcome.unwrap().leaf.unwrap());
    let copy = altered(&runtime, run, "how many?", "how few?").await;
    let Some(ReplayOutcome::Differs(differs)) = copy.replay(&cantrip, leaf).await.replayed else {
        panic!("it differs")
    };
    assert_eq!((differs.sequence, differs.kind), (1, DivergenceKind::Context));
    let copy = altered(&runtime, run, r#""closed":"open""#, r#""closed":"truncated","reason":"max_turns""#).await;
    let Some(ReplayOutcome::Differs(differs)) = copy.replay(&cantrip, leaf).await.replayed else {
        panic!("it differs")
    };
    assert_eq!((differs.sequence, differs.kind), (1, DivergenceKind::End));
    assert_eq!((differs.recorded, differs.found), (json!("truncated max_turns"), json!("open")));
}

#[tokio::test(start_paused = true)]
async fn another_crystal_may_go_on_from_a_turn() {
    let runtime = memory();
    let cantrip = family(script([call("echo", json!({"text": 1})), done("one")])).build().unwrap();
    assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!("one")));
    let first = own_turns(&runtime, &cantrip).await.remove(0);
    let other = cantrip
        .with_crystal(ScriptedCrystal::new("scripted/other", cantrip_crystal::Script::new([done("two")])))
        .unwrap();
    assert_ne!(other.id(), cantrip.id());
    let fork = runtime.fork(&other, first.id, ForkOptions::on("you try")).await;
    assert_eq!(fork.answer(), Some(&json!("two")));
    let leaf = runtime.loom().turn(fork.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!((leaf.cantrip_id, leaf.loom_id), (other.id(), cantrip.loom_id()));
}
