//! A crystal without tools: it reads its capabilities as text, and its programs are in its text.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::events::Channel;
use cantrip::{Cantrip, CantripBuilder, CastOptions, ForkOptions};
use cantrip_circle::MediumKind;
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Crystal, Request, Response};
use cantrip_loom::{AnyLoom, Loom, MemoryLoom, Message, PageRequest, ToolMode};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{
    Acting, Count, Dying, counting, counting_again, house_of, intent_of, memory, said_before, script, stores, woven,
};

fn coding(crystal: impl Crystal + 'static) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .fenced(true)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .ward("max_turns", 10)
}

fn texts(messages: &cantrip_crystal::Messages) -> Vec<String> {
    let told = messages.iter().map(|message| match message {
        Message::System { content } => format!("system: {}", content.text()),
        Message::User { content } => format!("user: {}", content.text()),
        Message::Assistant { content, calls, .. } => {
            assert!(calls.is_empty());
            format!("assistant: {}", content.as_ref().unwrap().text())
        }
        Message::Tool { .. } => panic!("there are no tools"),
    });
    told.collect()
}

#[tokio::test]
async fn blocks_of_a_text_are_one_program_and_its_output_is_the_answer_of_a_person() {
    for (store, _folder) in stores() {
        let runtime = house_of(store, 1);
        let crystal = script([
            Response::text("First\n```javascript\nvar x = echo(20);\n```\nand then\n```js\nx + 22\n```\nwait."),
            Response::text("```\nconsole.log('so far', x)\n```"),
            Response::text("I am nearly there."),
            Response::text("```javascript\ndone(x)"),
        ]);
        let call = cantrip::Call::new().system_prompt("You count.").require_done_tool();
        let cantrip = coding(crystal.clone()).call(call).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!(20)), "{:?}", cast.reply());
        assert_eq!(
            woven(&runtime, cantrip.loom_id()).await,
            "A1 echo=20 => 42\nA2 <A1\nA3 <A2 \"I am nearly there.\"\nA4 <A3 done=20 terminated"
        );
        let last = crystal.requests().pop().unwrap();
        assert!(last.definitions.is_empty(), "nothing is offered but words");
        let told = texts(&last.messages);
        assert_eq!(told[0], "system: You count.");
        assert!(told[1].starts_with("system: You act by writing programs.") && told[1].contains("echo(text)"));
        assert_eq!(
            (told[2].as_str(), told[4].as_str(), told[6].as_str()),
            ("user: go", "user: => 42", "user: so far 20")
        );
        assert!(told[8].starts_with("user: Continue."), "{told:?}");
        let entity = runtime.loom().entity(cast.entity.unwrap()).await.unwrap();
        assert_eq!(entity.entity.mode, ToolMode::Fenced);
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test]
async fn a_text_without_a_program_ends_the_cast_and_two_untagged_blocks_are_none() {
    for text in ["All done.", "```\n1\n```\nor\n```\n2\n```", "```json\n{}\n```"] {
        let runtime = memory();
        let cantrip = coding(script([Response::text(text)])).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!(text)), "{:?}", cast.reply());
    }
}

#[tokio::test]
async fn where_a_tool_is_offered_a_fenced_block_is_plain_text() {
    let runtime = memory();
    let crystal = script([Response::text("```javascript\ndone(1)\n```")]);
    let cantrip = coding(crystal.clone()).fenced(false).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("```javascript\ndone(1)\n```")));
    let input = &crystal.requests()[0];
    assert_eq!((input.definitions.len(), input.messages.len()), (1, 1));
}

#[tokio::test]
async fn a_crystal_that_calls_nothing_is_invited_to_write_its_programs_into_its_text() {
    for (store, _folder) in stores() {
        let runtime = house_of(store, 1);
        let crystal = script([
            Response::text("```javascript\ndone('too early')\n```"),
            Response::text("I look."),
            Response::text("I look."),
            Response::text("```javascript\nvar x = echo(20); x + 22\n```"),
            Response::text("```javascript\ndone(x)\n```"),
        ]);
        let call = cantrip::Call::new().require_done_tool();
        let cantrip = coding(crystal.clone()).fenced(false).call(call).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!(20)), "{:?}", cast.reply());
        let requests = crystal.requests();
        let invited: Vec<bool> = requests
            .iter()
            .map(|request| texts(&request.messages).iter().any(|text| text.contains("begins with ```javascript")))
            .collect();
        assert_eq!(invited, [false, false, false, true, false]);
        assert!(texts(&requests[4].messages).contains(&"user: => 42".to_owned()), "its output came back");
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

const PROGRAMS: [&str; 3] = [
    "var seen = ['begun']; for (const n of [1, 2]) seen.push(count(n))",
    "seen.push('asks'); seen.push(call_agent('child')); seen.push(count(3)); seen.join()",
    "done(seen.join())",
];

fn steady(count: &Count) -> Cantrip {
    let crystal = Acting(|request: &Request| match intent_of(request).as_str() {
        "go" => Response::code(PROGRAMS[said_before(request)]),
        _ => Response::code("done(count(100))"),
    });
    coding(crystal).gate(counting_again("count", count)).build().unwrap()
}

#[tokio::test]
async fn a_fenced_program_killed_between_any_two_appends_goes_on_and_is_run_once_for_its_variables() {
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let cantrip = steady(&Count::default());
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let answer = json!("begun,1,2,asks,100,3");
    assert_eq!(cast.answer(), Some(&answer), "{:?}", cast.reply());
    let wanted = woven(&runtime, cantrip.loom_id()).await;
    for dies_after in 1..store.taken() {
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let died = dying.cast(&steady(&Count::default()), CastOptions::on("go")).await;
        // The process that resumes may assume that the model has tools now: the entity was created without.
        let heir = house_of(memory, 2);
        let other = coding(Acting(|request: &Request| match intent_of(request).as_str() {
            "go" => Response::code(PROGRAMS[said_before(request)]),
            _ => Response::code("done(count(100))"),
        }));
        let cantrip = other.fenced(false).gate(counting_again("count", &Count::default())).build().unwrap();
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        let found = woven(&heir, cantrip.loom_id()).await;
        assert_eq!(cast.answer(), Some(&answer), "dead after {dies_after}: {:?}\n{found}", cast.reply());
        assert_eq!(found, wanted, "dead after {dies_after}");
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_code(heir.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test]
async fn a_fork_of_a_fenced_thread_has_its_variables_also_from_inside_an_utterance() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = script([
        Response::text("```js\nvar x = count(1); var y = 0; y = 5; call_agent('child'); y = 9; done(x)\n```"),
        Response::code("done('child')"),
        Response::code("done([x, y])"),
    ]);
    let cantrip = coding(crystal.clone()).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert!(turns[0].is_sealed());
    let fork = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!([1, 5])), "{:?}", fork.reply());
    assert_eq!(count.get(), 1);
    let told = texts(&crystal.requests().pop().unwrap().messages);
    assert_eq!(told[told.len() - 2..], ["user: [not run: forked here]", "user: another way"], "{told:?}");
}

#[tokio::test]
async fn a_program_in_the_text_is_shown_as_a_call_with_its_gates_below_it() {
    let (channel, mut seen) = Channel::new();
    let runtime = memory().with_watcher(channel);
    let cantrip = coding(script([Response::text("So:\n```js\nconsole.log(echo(1)); done(2)\n```")])).build().unwrap();
    assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(2)));
    let mut items = Vec::new();
    while let Ok(event) = seen.try_recv() {
        let told = serde_json::to_value(&event).unwrap();
        let payload = &told["payload"];
        if payload["itemType"] == "function_call" {
            items.push((payload["name"].clone(), payload["itemId"].clone(), payload["parentItemId"].clone()));
        }
    }
    let names: Vec<_> = items.iter().map(|(name, _, _)| name.as_str().unwrap()).collect();
    assert_eq!(names, ["javascript", "echo", "done"]);
    assert_eq!((&items[1].2, &items[2].2), (&items[0].1, &items[0].1));
}
