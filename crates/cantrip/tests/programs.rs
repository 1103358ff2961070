//! Programs as crystals: a user's file, cast once in a code circle, is a workflow that survives the process that runs
//! it.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::CantripFault;
use cantrip::{Cantrip, CantripBuilder, CastOptions, ForkOptions};
use cantrip_circle::gate::builtin;
use cantrip_circle::{DelegationGrants, MediumKind};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, ProgramCrystal, Request};
use cantrip_loom::{AnyLoom, Environment, Loom, MemoryLoom, PageRequest, TruncationReason};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_reply::{Refusal, codes};
use serde_json::json;
use support::{Count, Dying, counting, done, house_of, memory, script, woven};

/// A crystal for the children: each returns its intent, whenever it is asked.
struct Says;

impl Crystal for Says {
    fn name(&self) -> &str {
        "scripted/child"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let intent = request.messages.iter().last().map(|message| match message {
            cantrip_loom::Message::User { content } => content.text(),
            cantrip_loom::Message::System { .. }
            | cantrip_loom::Message::Assistant { .. }
            | cantrip_loom::Message::Tool { .. } => String::new(),
        });
        script([done(intent)]).ask(request, heard).await
    }
}

fn flow(code: &str, count: &Count) -> CantripBuilder {
    let child = || DelegationGrants {
        crystals: ["scripted/child".to_owned()].into(),
        crystal_by_level: vec!["scripted/child".to_owned()],
        mediums: [MediumKind::Conversation].into(),
        ..DelegationGrants::default()
    };
    Cantrip::builder()
        .crystal(ProgramCrystal::new("program/flow.js", code))
        .child_crystal("scripted/child", Says)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::new(Javascript::start(Options::default()).unwrap()))
        .gate(builtin::done())
        .delegating(builtin::call_agent(), child())
        .delegating(builtin::call_agent_batch(), child())
        .gate(counting("count", count))
        .ward("max_turns", 5)
}

/// Two gates with side effects, a child, a batch, and an answer made of them all.
const FLOW: &str = r"
    var seen = [count({n: 1})];
    seen.push(call_agent({intent: 'one', medium: 'conversation'}));
    seen.push(...call_agent_batch(['two', 'three'].map(intent => ({intent, medium: 'conversation'}))));
    seen.push(count({n: 2}));
    done(seen.join());
";

#[tokio::test]
async fn a_program_killed_at_every_boundary_ends_with_the_same_result_and_makes_each_call_once() {
    let (count, store) = (Count::default(), Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX));
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let cantrip = flow(FLOW, &count).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("1,one,two,three,2")), "{:?}", cast.reply());
    assert_eq!(cast.outcome.as_ref().unwrap().usage.total_tokens(), 0, "it costs nothing");
    let wanted = woven(&runtime, cantrip.loom_id()).await;
    let mut unknown = 0;
    for dies_after in 1..store.taken() {
        let count = Count::default();
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let cantrip = flow(FLOW, &count).build().unwrap();
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(died.reply(), codes::STORE_UNAVAILABLE);
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        let found = woven(&heir, cantrip.loom_id()).await;
        assert!(count.get() <= 2, "dead after {dies_after}: a call was made twice\n{found}");
        if found.contains(codes::OUTCOME_UNKNOWN.any().as_str()) {
            // The process died between the start and the end of a call that may not be repeated: the call throws, and
            // the program does not catch it, so there is no answer.
            assert_eq!(cast.reason(), Some(TruncationReason::CrystalError), "dead after {dies_after}");
            unknown += 1;
            continue;
        }
        assert_eq!(cast.answer(), Some(&json!("1,one,two,three,2")), "dead after {dies_after}: {found}");
        assert_eq!((sorted(&found), count.get()), (sorted(&wanted), 2), "dead after {dies_after}");
        let replay = heir.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await;
        assert_code(replay.reply(), codes::VERIFIED);
    }
    assert_eq!(unknown, 2, "once for each call");
}

/// Sorts the lines, because siblings may close in any order.
fn sorted(woven: &str) -> Vec<String> {
    let mut lines: Vec<String> = woven.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[tokio::test]
async fn a_program_forked_in_its_middle_has_its_variables_and_is_said_anew() {
    let (runtime, count) = (memory(), Count::default());
    let code = "if (typeof seen === 'undefined') var seen = []; seen.push(count({n: seen.length})); \
                if (seen.length < 3) call_agent({intent: 'look', medium: 'conversation'}); seen.push('after'); done(seen.join())";
    let cantrip = flow(code, &count).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("0,after")), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let sealed = turns.iter().find(|turn| turn.sequence == 1 && turn.spawned_by.is_none()).unwrap();
    assert_eq!(count.get(), 1);
    // The state of the program at its delegation is there; the rest of the program did not run, so it is run once more.
    let fork = runtime.fork(&cantrip, sealed.id, ForkOptions::on("again")).await;
    assert_eq!(fork.answer(), Some(&json!("0,1,after")), "{:?}", fork.reply());
    assert_eq!(count.get(), 2, "forking ran no gate, the program ran one");
    let forked = runtime.loom().entity(fork.entity.unwrap()).await.unwrap().entity.origin;
    assert!(matches!(forked, cantrip_loom::Origin::Fork(fork) if fork.environment == Environment::Replay));
}

#[tokio::test]
async fn a_program_that_does_not_say_done_ends_when_it_is_asked_again() {
    let (runtime, count) = (memory(), Count::default());
    let cantrip = flow("count({n: 7})", &count).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    assert_eq!((cast.reason(), count.get()), (Some(TruncationReason::CrystalError), 1));
    assert!(cast.reply().message().contains("script exhausted"));
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 count=7 => 7 truncated crystal_error");
}

#[tokio::test]
async fn a_program_needs_a_circle_that_runs_code() {
    let faults = Cantrip::builder()
        .crystal(ProgramCrystal::new("program/flow.js", FLOW))
        .gate(builtin::done())
        .ward("max_turns", 5)
        .build()
        .unwrap_err();
    assert_eq!(faults.first(), &CantripFault::NeedsCode { crystal: "program/flow.js".to_owned() });
    let guarded = guarded(|rb| rb.refuse(Refusal::from(faults)));
    assert_code(&guarded.reply, codes::CONFIG_INVALID);
}
