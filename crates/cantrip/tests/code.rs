//! The loop in JavaScript: programs, children, crashes in the middle of a program, forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::events::Channel;
use cantrip::{Cantrip, CantripBuilder, CastOptions, DivergenceKind, ForkOptions, ReplayOutcome};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::{Environment, Loom, PageRequest, TruncationReason};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_stream::{Options as StreamOptions, Processor};
use serde_json::json;
use support::{Count, Overlap, counting, killed, memory, script, slow, woven};

fn coding(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 10)
}

#[tokio::test]
async fn variables_persist_and_the_value_comes_back() {
    let runtime = memory();
    let crystal = script([Response::code("var x = echo(20)"), Response::code("x + 22"), Response::code("done(x)")]);
    let cantrip = coding(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(20)), "{:?}", cast.reply());
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=20\nA2 <A1 => 42\nA3 <A2 done=20 terminated");
}

#[tokio::test]
async fn the_example_of_the_page_gives_its_tree_in_code() {
    let runtime = memory();
    let program = r#"var out = []; for (const p of ["a","b","c"]) out.push(call_agent(p));
        var more = call_agent_batch(["x","y"]); done(out.concat(more).join())"#;
    let children = ["A", "B", "C", "X", "Y"].map(|answer| Response::code(format!("done({answer:?})")));
    let cantrip = coding(&script([Response::code(program)].into_iter().chain(children))).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("A,B,C,X,Y")), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines[0], "A1 call_agent.. sealed");
    assert_eq!(lines[2], r#"A2 <A1 continues call_agent="A" call_agent.. sealed"#);
    assert_eq!(lines[9], r#"A5 <A4 continues call_agent_batch=["X","Y"] done="A,B,C,X,Y" terminated"#);
}

#[tokio::test]
async fn a_refusal_is_thrown_and_can_be_caught_and_done_cannot() {
    let runtime = memory();
    let program = "try { fetch('x') } catch (e) { console.log(e.name) } \
                   try { done() } catch (e) { console.log(e.code) } \
                   try { done(1) } finally { echo('never') }";
    let cantrip = coding(&script([Response::code(program)])).ward("remove_gate", "echo").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains(&format!("done!{} done=1 terminated", codes::DONE_MALFORMED.any())), "{found}");
    assert!(!found.contains("never"), "{found}");
}

#[tokio::test]
async fn a_child_sees_nothing_of_its_parents_variables() {
    let runtime = memory();
    let parent = "var secret = 42; try { call_agent('look') } catch (e) { done(e.message) }";
    let child = [Response::code("secret")];
    let cantrip = coding(&script([Response::code(parent)].into_iter().chain(child))).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert!(cast.answer().unwrap().as_str().unwrap().contains("MCP-EXEC-E-004"), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains("  B1 <A1 ReferenceError"), "{found}");
}

#[tokio::test]
async fn a_context_is_a_variable_in_code() {
    let runtime = memory();
    let cantrip = coding(&script([Response::code("done(context.docs.length)")])).build().unwrap();
    let casting = CastOptions::on("go").context(json!({"docs": [1, 2, 3]}));
    assert_eq!(runtime.cast(&cantrip, casting).await.answer(), Some(&json!(3)));
}

#[tokio::test]
async fn sends_share_one_sandbox_and_two_entities_none() {
    let runtime = memory();
    let crystal =
        script([Response::code("var n = 1; done(n)"), Response::code("done(typeof n)"), Response::code("done(n + 1)")]);
    let cantrip = coding(&crystal).build().unwrap();
    let one = runtime.summon(&cantrip, None).await.unwrap();
    let two = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(one.send("set").await.answer(), Some(&json!(1)));
    assert_eq!(two.send("look").await.answer(), Some(&json!("undefined")));
    assert_eq!(one.send("get").await.answer(), Some(&json!(2)));
}

#[tokio::test]
async fn a_fork_has_the_variables_of_its_place_without_running_a_gate() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([
        Response::code("var x = count(1)"),
        Response::code("x = count(2)"),
        Response::code("done(x)"),
        Response::code("done([x, Math.random() < 1])"),
        Response::code("done(typeof x)"),
    ]);
    let cantrip = coding(&crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let fork = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!([1, true])), "{:?}", fork.reply());
    let fresh = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("anew").fresh()).await;
    assert_eq!(fresh.answer(), Some(&json!("undefined")), "{:?}", fresh.reply());
    assert_eq!(count.get(), 2);
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let environments: Vec<_> = turns.iter().filter_map(|turn| turn.forked_from).map(|fork| fork.environment).collect();
    assert_eq!(environments, [Environment::Replay, Environment::Fresh]);
}

const PROGRAMS: [&str; 3] = [
    "var seen = []; for (const n of [1, 2]) seen.push(count(n)); var at = Date.now(); var r = Math.random()",
    "seen.push(call_agent('child')); seen.push(count(3)); console.log(seen.join())",
    "done([seen.join(), typeof r, at > 0])",
];

#[tokio::test]
async fn a_program_killed_between_any_two_appends_goes_on_where_its_answers_end() {
    let answer = json!(["1,2,100,3", "number", true]);
    killed::between_any_two_appends(|| coding(&script([])), &PROGRAMS, answer).await;
}

#[tokio::test]
async fn a_failed_element_of_a_batch_is_a_gate_error_live_forked_and_replayed() {
    let runtime = memory();
    let look = "done(all.map(one => one instanceof GateError ? [one.message.startsWith('child ent_'), one.type, \
                one.code, one.retry, {...one.data, entity: one.message.includes(one.data.entity)}, \
                one instanceof Error] : one))";
    let crystal = script([
        Response::code("var all = call_agent_batch(['x', 'y', 'z']); all.length"),
        Response::code("done('X')"),
        Response::error(400, "no"),
        // An answer that looks like an error is still an answer.
        Response::code("done({error: {type: 'E', code: 'MCP-EXEC-E-004', message: 'child of mine'}})"),
        Response::code(look),
        Response::code(look),
    ]);
    let cantrip = coding(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let failed = codes::CHILD_FAILED.any();
    let (kind, code) = (failed.reply_type().as_str(), failed.as_str());
    let rejected = codes::CRYSTAL_REJECTED.any().as_str();
    let data = json!({"entity": true, "reason": "crystal_error", "child": {"type": "E", "code": rejected}});
    let wanted = json!(["X", [true, kind, code, failed.advice().unwrap(), data, true],
        {"error": {"type": "E", "code": "MCP-EXEC-E-004", "message": "child of mine"}}]);
    assert_eq!(cast.answer(), Some(&wanted), "{:?}", cast.reply());
    let leaf = cast.outcome.as_ref().unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    let thread = runtime.loom().thread(leaf).await.unwrap();
    let fork = runtime.fork(&cantrip, thread.turns[1].id, ForkOptions::on("look again")).await;
    assert_eq!(fork.answer(), Some(&wanted), "{:?}", fork.reply());
}

#[tokio::test]
async fn an_error_that_code_catches_has_its_data_also_in_a_second_run() {
    let runtime = memory();
    let crystal = script([
        Response::code("var caught; try { call_agent('x') } catch (e) { caught = e } caught.data.child.code"),
        Response::error(400, "no"),
        Response::code("done({...caught.data, entity: caught.message.includes(caught.data.entity)})"),
        Response::code("done([caught.data.child.code, caught.stack.includes('turn-1.js:1')])"),
    ]);
    let cantrip = coding(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let rejected = codes::CRYSTAL_REJECTED.any().as_str();
    let data = json!({"entity": true, "reason": "crystal_error", "child": {"type": "E", "code": rejected}});
    assert_eq!(cast.answer(), Some(&data), "{:?}", cast.reply());
    let leaf = cast.outcome.as_ref().unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    let thread = runtime.loom().thread(leaf).await.unwrap();
    let fork = runtime.fork(&cantrip, thread.turns[1].id, ForkOptions::on("look again")).await;
    assert_eq!(fork.answer(), Some(&json!([rejected, true])), "{:?}", fork.reply());
}

#[tokio::test]
async fn a_replay_with_another_circle_names_the_first_difference() {
    let (runtime, count) = (memory(), Count::default());
    let programs = || script([Response::code("var x = count(1)"), Response::code("done(x)")]);
    let cantrip = coding(&programs()).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    let same = runtime.replay(&cantrip, leaf).await;
    assert_eq!(same.replayed, Some(ReplayOutcome::Identical { turns: 2, calls: 2 }));
    let narrower = coding(&programs()).gate(counting("count", &count)).ward("remove_gate", "count").build().unwrap();
    let other = runtime.replay(&narrower, leaf).await;
    assert_code(other.reply(), codes::REPLAY_DIVERGED);
    let Some(ReplayOutcome::Differs(differs)) = other.replayed else { panic!("it differs") };
    assert_eq!((differs.sequence, differs.call, differs.kind), (1, Some(1), DivergenceKind::Verdict));
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn a_fork_whose_programs_run_differently_now_is_told_at_which_turn() {
    let (runtime, count) = (memory(), Count::default());
    let crystal =
        script([Response::code("var x = count(1)"), Response::code("done(x)"), Response::code("done(typeof x)")]);
    let cantrip = coding(&crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let narrower = coding(&crystal).gate(counting("count", &count)).ward("remove_gate", "count").build().unwrap();
    let fork = runtime.fork(&narrower, thread.turns[0].id, ForkOptions::on("look")).await;
    assert_eq!(fork.answer(), Some(&json!("undefined")), "{:?}", fork.reply());
    let leaf = fork.outcome.as_ref().unwrap().leaf.unwrap();
    let turns = runtime.loom().thread(leaf).await.unwrap().turns;
    let lost = "[environment lost: replay differs at turn 1]";
    assert_eq!(turns.last().unwrap().outputs[0].environment_lost.as_deref(), Some(lost));
    assert_eq!(count.get(), 1, "a replay calls no gate");
}

#[tokio::test]
async fn a_gate_called_from_code_is_shown_below_its_program() {
    let (channel, mut seen) = Channel::new();
    let runtime = memory().with_watcher(channel);
    let cantrip = coding(&script([Response::code("console.log(echo(1)); done(2)")])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)));
    let mut processor = Processor::new(StreamOptions::default());
    let clock = cantrip_canon::ManualClock::starting(cantrip_canon::Timestamp::EPOCH);
    let mut out = Vec::new();
    while let Ok(event) = seen.try_recv() {
        processor.process(&event, cantrip_canon::Clock::now(&clock), &mut out).unwrap();
    }
    let shown: Vec<_> = out.iter().map(|emission| serde_json::to_value(emission).unwrap()).collect();
    let calls: Vec<_> =
        shown.iter().filter(|shown| shown["type"] == "tool_call" && shown["status"] == "complete").collect();
    let names: Vec<_> = calls.iter().map(|call| call["toolName"].as_str().unwrap()).collect();
    assert_eq!(names, ["echo", "done", "javascript"]);
    assert_eq!(calls[0]["parentItemId"], calls[2]["itemId"]);
    assert_eq!((&calls[0]["toolArguments"], &calls[2]["toolOutput"]), (&json!({"text": 1}), &json!("1")));
    assert_eq!(shown.last().unwrap()["type"], "turn_complete");
}

#[tokio::test]
async fn the_deadline_ends_a_program_whatever_it_catches() {
    for program in [
        "try { slow(60000) } finally { for (;;); }",
        "for (;;) { try { slow(60000) } catch (e) { echo('caught') } }",
        "for (;;);",
    ] {
        let (runtime, overlap) = (memory(), Overlap::default());
        let cantrip = coding(&script([Response::code(program)]))
            .gate(slow("slow", &overlap))
            .ward("timeout", "400ms")
            .build()
            .unwrap();
        let start = std::time::Instant::now();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.reason(), Some(TruncationReason::Timeout), "{:?}", cast.reply());
        assert!(start.elapsed().as_secs() < 5, "{program}");
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert!(found.ends_with("truncated timeout") && !found.contains("echo"), "{found}");
    }
}
