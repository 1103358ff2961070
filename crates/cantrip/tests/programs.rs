//! Programs as crystals: a user's file, cast once in a code circle, is a workflow that survives the process that runs
//! it.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::Arc;

use cantrip::CantripFault;
use cantrip::{Cantrip, CastOptions, ForkOptions};
use cantrip_circle::Medium;
use cantrip_circle::gate::builtin;
use cantrip_crystal::ProgramCrystal;
use cantrip_loom::{Environment, Loom, PageRequest, TruncationReason};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_reply::{Refusal, codes};
use serde_json::json;
use support::killed::{self, flow};
use support::{Count, memory, woven};

fn javascript() -> Arc<dyn Medium> {
    Arc::new(Javascript::start(Options::default()).unwrap())
}

/// Two gates with side effects, a child, a batch, and an answer made of them all.
const FLOW: &str = r"
    var seen = [count({n: 1})];
    seen.push(call_agent({intent: 'one', medium: 'conversation'}));
    seen.push(...call_agent_batch(['two', 'three'].map(intent => ({intent, medium: 'conversation'}))));
    seen.push(count({n: 2}));
    done(seen);
";

#[tokio::test]
async fn a_program_killed_at_every_boundary_ends_with_the_same_result_and_makes_each_call_once() {
    killed::at_every_boundary(javascript, FLOW).await;
}

#[tokio::test]
async fn a_program_forked_in_its_middle_has_its_variables_and_is_said_anew() {
    let (runtime, count) = (memory(), Count::default());
    let code = "if (typeof seen === 'undefined') var seen = []; seen.push(count({n: seen.length})); \
                if (seen.length < 3) call_agent({intent: 'look', medium: 'conversation'}); seen.push('after'); done(seen.join())";
    let cantrip = flow(javascript(), code, &count).build().unwrap();
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
    let cantrip = flow(javascript(), "count({n: 7})", &count).build().unwrap();
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
