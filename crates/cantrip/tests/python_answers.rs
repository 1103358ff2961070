//! Answers, programs and folds in Python: the same rules as for JavaScript.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::sync::{Arc, LazyLock};

use cantrip::OwnThreadReader;
use cantrip::Verdict;
use cantrip::fold::FoldOptions;
use cantrip::{Cantrip, CantripBuilder, CastOptions, ForkOptions};
use cantrip_circle::gate::builtin;
use cantrip_circle::{DelegationGrants, MediumKind};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, ProgramCrystal, Request, Response, ScriptedCrystal};
use cantrip_loom::{AnyLoom, Loom, MemoryLoom, Message, PageRequest, TruncationReason};
use cantrip_medium_python::{CountingAllocator, Options, Python};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};
use support::{Count, Dying, counting, done, house_of, memory, script, woven};

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

/// Returns its intent as the answer.
struct Says;

impl Crystal for Says {
    fn name(&self) -> &str {
        "scripted/child"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let intent = request.messages.iter().find_map(|message| match message {
            Message::User { content } => Some(content.text()),
            Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        script([done(intent)]).ask(request, heard).await
    }
}

const FLOW: &str = "
seen = [count(n=1)]
seen.append(call_agent({'intent': 'one', 'medium': 'conversation'}))
seen.extend(call_agent_batch([{'intent': intent, 'medium': 'conversation'} for intent in ['two', 'three']]))
seen.append(count(n=2))
done(seen)
";

fn flow(code: &str, count: &Count) -> Cantrip {
    let child = || DelegationGrants {
        crystals: ["scripted/child".to_owned()].into(),
        crystal_by_level: vec!["scripted/child".to_owned()],
        mediums: [MediumKind::Conversation].into(),
        ..DelegationGrants::default()
    };
    Cantrip::builder()
        .crystal(ProgramCrystal::new("program/flow.py", code))
        .child_crystal("scripted/child", Says)
        .medium(MediumKind::Python)
        .serve_medium(Arc::new(PYTHON.clone()))
        .gate(builtin::done())
        .delegating(builtin::call_agent(), child())
        .delegating(builtin::call_agent_batch(), child())
        .gate(counting("count", count))
        .ward("max_turns", 5)
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_program_killed_at_every_boundary_ends_with_the_same_result_and_makes_each_call_once() {
    let (count, store) = (Count::default(), Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX));
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let cantrip = flow(FLOW, &count);
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let wanted = json!([1, "one", "two", "three", 2]);
    assert_eq!(cast.answer(), Some(&wanted), "{:?}", cast.reply());
    let mut unknown = 0;
    for dies_after in 1..store.taken() {
        let count = Count::default();
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let cantrip = flow(FLOW, &count);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(died.reply(), codes::STORE_UNAVAILABLE);
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        let found = woven(&heir, cantrip.loom_id()).await;
        assert!(count.get() <= 2, "dead after {dies_after}: a call was made twice\n{found}");
        if found.contains(codes::OUTCOME_UNKNOWN.any().as_str()) {
            assert_eq!(cast.reason(), Some(TruncationReason::CrystalError), "dead after {dies_after}");
            unknown += 1;
            continue;
        }
        assert_eq!((cast.answer(), count.get()), (Some(&wanted), 2), "dead after {dies_after}: {found}");
    }
    assert_eq!(unknown, 2, "once for each call");

    let cast = memory().cast(&flow("count(n=7)", &Count::default()), CastOptions::on("go")).await;
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
