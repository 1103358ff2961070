//! Answers, programs and folds in Python: the same rules as for JavaScript.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::sync::{Arc, LazyLock};

use cantrip::OwnThreadReader;
use cantrip::Verdict;
use cantrip::fold::FoldOptions;
use cantrip::{Cantrip, CantripBuilder, CastOptions, ForkOptions};
use cantrip_circle::gate::builtin;
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::{AnyLoom, Loom, MemoryLoom, Message, PageRequest};
use cantrip_medium_python::{CountingAllocator, Options, Python};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};
use support::{Count, house_of, killed, memory, script};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static PYTHON: LazyLock<Python> = LazyLock::new(|| Python::start(Options::in_process()).unwrap());

fn coding(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Python)
        .serve_medium(Arc::new(PYTHON.clone()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", 10)
}

#[tokio::test]
async fn an_answer_that_is_not_accepted_is_raised_and_can_be_caught() {
    let two = |answer: Value| async move {
        Ok::<_, Refusal>(match answer["words"].as_u64() {
            Some(2) => Verdict::Passed { score: Some(0.5) },
            Some(_) | None => Verdict::Failed { output: "not two".to_owned() },
        })
    };
    let program = "
for answer in [{'words': 'two'}, {'words': 1}]:
    try:
        done(answer)
    except RuntimeError as e:
        print(str(e))
done({'words': 2})";
    let schema = json!({"type": "object", "properties": {"words": {"type": "integer", "description": "How many."}}});
    let crystal = script([Response::code(program)]);
    let cantrip = coding(&crystal).answer_schema(schema).verify(two).build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!({"words": 2})), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let console = &turns[0].outputs[0].console;
    let refused = format!("Invalid {}: done was not accepted", codes::DONE_MALFORMED.any());
    assert!(console.len() == 2 && console.iter().all(|line| line.starts_with(&refused)), "{console:?}");
    assert!(console[0].contains("/words") && console[1].contains("not two"), "{console:?}");
    assert_eq!(turns[0].reward, Some(0.5));
    let shown = &crystal.requests()[0].definitions[0].description;
    assert!(shown.contains("How many."), "{shown}");
}

const FLOW: &str = "
seen = [count(n=1)]
seen.append(call_agent({'intent': 'one', 'medium': 'conversation'}))
seen.extend(call_agent_batch([{'intent': intent, 'medium': 'conversation'} for intent in ['two', 'three']]))
seen.append(count(n=2))
done(seen)
";

#[tokio::test]
async fn a_program_killed_at_every_boundary_ends_with_the_same_result_and_makes_each_call_once() {
    let python = || -> Arc<dyn Medium> { Arc::new(PYTHON.clone()) };
    killed::at_every_boundary(python, FLOW).await;
    let flow = killed::flow(python(), "count(n=7)", &Count::default()).build().unwrap();
    let cast = memory().cast(&flow, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
}

#[tokio::test]
async fn after_folds_variables_are_there_and_a_fork_from_before_sees_plain_turns() {
    let store = AnyLoom::new(MemoryLoom::new());
    let runtime = house_of(store.clone(), 3);
    let crystal = script(
        ["secret = echo('first')", "n = 1", "n += 1", "n += 1", "seen = loom(turn=1)['calls'][0]['result']"]
            .map(Response::code)
            .into_iter()
            .chain([Response::code("done([secret, n, seen])"), Response::code("done([secret, n])")]),
    );
    let cantrip = coding(&crystal)
        .gate(builtin::loom(OwnThreadReader::new(store)))
        .folding(FoldOptions::after_turns(3))
        .build()
        .unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("count")).await;
    assert_eq!(cast.answer(), Some(&json!(["first", 3, "first"])), "{:?}", cast.reply());
    let thread = runtime.loom().thread(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert!(thread.folds.len() >= 2 && thread.folds[0].text.ends_with("Variables are unchanged."));
    let fork = runtime.fork(&cantrip, thread.turns[1].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!(["first", 1])), "{:?}", fork.reply());
    let list = crystal.requests().last().unwrap().messages.clone();
    let folded = |message: &Message| matches!(message, Message::User { content } if content.text().contains("[Folded"));
    assert!(!list.iter().any(folded));
    assert_code(runtime.replay(&cantrip, thread.leaf).await.reply(), codes::VERIFIED);
}
