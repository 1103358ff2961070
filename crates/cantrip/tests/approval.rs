//! Calls that wait for a person.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cantrip::{Cancel, Cantrip, CastOptions, CastReply, HumanDecision, Runtime};
use cantrip_canon::{ApprovalId, Clock, IdSource, ManualClock, RunId, Timestamp};
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Request, Response};
use cantrip_loom::{Actor, Event, Journal, Loom, RunState, Seq, TruncationReason};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use futures_util::TryStreamExt;
use serde_json::json;
use support::{
    Acting, Count, Overlap, call, counting, done, house_of, intent_of, journal, memory, said_before, script, slow,
    stores, talking, woven,
};

fn someone() -> Actor {
    Actor::new("user:1").unwrap()
}

/// Returns the run and the approval that a waiting cast reports.
fn waits(cast: &CastReply) -> (RunId, ApprovalId) {
    assert_code(cast.reply(), codes::CREATED);
    assert_eq!(cast.reply().data()["state"], "waiting");
    (cast.run.unwrap(), cast.reply().data()["approval_id"].as_str().unwrap().parse().unwrap())
}

fn guarded(count: &Count) -> Cantrip {
    let crystal = script([call("count", json!({"n": 1})), done("on")]);
    let needs = json!(["count"]);
    talking(&crystal).gate(counting("count", count)).ward("require_approval", needs).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_decision_made_while_the_run_is_parked_counts_and_the_first_one_stands() {
    for (store, _folder) in stores() {
        let (runtime, count) = (house_of(store, 1).with_approvals(true), Count::default());
        let cantrip = guarded(&count);
        let (run, approval) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
        assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Waiting);
        assert!(runtime.loom().holder(run).await.unwrap().is_none(), "its lease is free");
        // A resume before any decision keeps waiting, with the same question.
        assert_eq!(waits(&runtime.resume(&cantrip, run).await), (run, approval));
        assert_code(&runtime.decide(run, approval, HumanDecision::approve(someone())).await.reply, codes::CHANGED);
        let second = runtime.decide(run, approval, HumanDecision::refuse(someone(), "no")).await;
        assert_code(&second.reply, codes::WRONG_STATE);
        assert_eq!(count.get(), 0, "deciding runs nothing");
        let cast = runtime.resume(&cantrip, run).await;
        assert_eq!(cast.answer(), Some(&json!("on")), "{:?}", cast.reply());
        assert_eq!(count.get(), 1);
        let late = runtime.decide(run, approval, HumanDecision::approve(someone())).await;
        assert_code(&late.reply, codes::WRONG_STATE);
        let requested =
            journal(&runtime, run).await.into_iter().filter(|event| matches!(event, Event::ApprovalRequested(_)));
        assert_eq!(requested.count(), 1);
    }
}

#[tokio::test]
async fn nobody_deciding_for_a_day_is_a_denial() {
    for (store, _folder) in stores() {
        let clock = Arc::new(ManualClock::starting("2026-02-19T02:00:00.000Z".parse().unwrap()));
        let ids = Arc::new(IdSource::seeded(1));
        let runtime = Runtime::from_parts(store, Arc::clone(&clock) as Arc<dyn Clock>, ids).with_approvals(true);
        let count = Count::default();
        let cantrip = guarded(&count);
        let (run, approval) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
        clock.advance(Duration::from_secs(24 * 3_600 - 1));
        assert_eq!(waits(&runtime.resume(&cantrip, run).await), (run, approval));
        clock.advance(Duration::from_secs(1));
        let late = runtime.decide(run, approval, HumanDecision::approve(someone())).await;
        assert_code(&late.reply, codes::WRONG_STATE);
        let cast = runtime.resume(&cantrip, run).await;
        assert_eq!(cast.answer(), Some(&json!("on")), "{:?}", cast.reply());
        assert_eq!(count.get(), 0);
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert_eq!(found, format!("A1 count!{}\nA2 <A1 done=\"on\" terminated", codes::NO_DECISION.any()));
        let leaf = cast.outcome.unwrap().leaf.unwrap();
        assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_read_with_its_reason_and_an_unknown_approval_is_none() {
    let (runtime, count) = (memory().with_approvals(true), Count::default());
    let cantrip = guarded(&count);
    let (run, approval) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
    let other: ApprovalId = IdSource::seeded(99).next(Timestamp::EPOCH);
    assert_code(&runtime.decide(run, other, HumanDecision::approve(someone())).await.reply, codes::NOT_FOUND);
    let refused = runtime.decide(run, approval, HumanDecision::refuse(someone(), "not today")).await;
    assert_code(&refused.reply, codes::CHANGED);
    let cast = runtime.resume(&cantrip, run).await;
    assert_eq!(cast.answer(), Some(&json!("on")));
    let turns = runtime.loom().turns(cantrip.loom_id(), cantrip_loom::PageRequest::FIRST).await.unwrap().items;
    let cantrip_loom::Settlement::Settled(settled) = &turns[0].gate_calls[0].settlement else { panic!("settled") };
    assert_eq!(settled.reply.code, codes::APPROVAL_REFUSED.any().as_str());
    assert!(settled.result.as_str().unwrap().contains("user:1 refused count: not today"), "{}", settled.result);
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
}

/// Returns a cantrip with three children, two of which need approval; the third continues meanwhile.
fn family(count: &Count, overlap: &Overlap) -> Cantrip {
    let crystal = Acting(|request: &Request| match (intent_of(request).as_str(), said_before(request)) {
        ("go", 0) => call("call_agent_batch", json!({"requests": ["one", "two", "three"]})),
        ("go", _) => done("over"),
        ("three", 0) => call("slow", json!({"ms": 5_000})),
        ("one" | "two", 0) => call("count", json!({"n": 1})),
        (child, _) => done(child.to_owned()),
    });
    Cantrip::builder()
        .crystal(crystal)
        .gate(builtin::done())
        .gate(builtin::call_agent_batch())
        .gate(counting("count", count))
        .gate(slow("slow", overlap))
        .wards(&json!({"max_turns": 10, "require_approval": ["count"], "timeout": "60s"}))
        .build()
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_once_nothing_else_of_it_moves_and_its_deadline_stands_still() {
    let (runtime, count, overlap): (Runtime, _, _) =
        (memory().with_approvals(true), Count::default(), Overlap::default());
    let cantrip = family(&count, &overlap);
    let start = tokio::time::Instant::now();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let (run, _) = waits(&cast);
    assert_eq!(start.elapsed().as_secs(), 5, "the third child came to its end first");
    assert_eq!(overlap.ended(), [5_000]);
    let approvals = cast.reply().data()["approvals"].as_array().unwrap().clone();
    assert_eq!(approvals.len(), 2);
    for approval in approvals {
        // Each decision takes longer than the time limit of the whole run.
        tokio::time::sleep(Duration::from_secs(600)).await;
        let approval = approval.as_str().unwrap().parse().unwrap();
        assert_code(&runtime.decide(run, approval, HumanDecision::approve(someone())).await.reply, codes::CHANGED);
    }
    let cast = runtime.resume(&cantrip, run).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!((count.get(), overlap.ended().len()), (2, 1), "nothing that was settled is done again");
    assert!(woven(&runtime, cantrip.loom_id()).await.contains(r#"call_agent_batch=["one","two","three"]"#));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_run_can_be_cancelled_and_the_call_is_never_made() {
    let (runtime, count) = (memory().with_approvals(true), Count::default());
    let cantrip = guarded(&count);
    let (run, _) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
    let cancel = Cancel::new();
    cancel.cancel();
    let cast = runtime.resume_with(&cantrip, run, &cancel).await;
    assert_code(cast.reply(), codes::ENDED_FROM_OUTSIDE);
    assert_eq!((cast.reason(), count.get()), (Some(TruncationReason::Cancelled), 0));
    assert_eq!(
        woven(&runtime, cantrip.loom_id()).await,
        "A1 \"[{\\\"args\\\":{\\\"n\\\":1},\\\"gate\\\":\\\"count\\\",\\\"tool_call_id\\\":\\\"c\\\"}]\" truncated cancelled"
    );
}

#[tokio::test(start_paused = true)]
async fn a_parked_run_records_what_it_used_of_its_time_and_goes_on_with_the_rest() {
    let (runtime, overlap) = (memory(), Overlap::default());
    let down = || Response::error(503, "down");
    let retry = cantrip_crystal::RetryPolicy { max_retries: 0, ..cantrip_crystal::RetryPolicy::default() };
    let long = call("slow", json!({"ms": 60_000}));
    let crystal = script([call("slow", json!({"ms": 30_000})), down(), long]);
    let cantrip = talking(&crystal).gate(slow("slow", &overlap)).retry(retry).ward("timeout", "50s").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reply().data()["reason"], "crystal_unavailable");
    let run = cast.run.unwrap();
    let elapsed = journal(&runtime, run).await.into_iter().find_map(|event| match event {
        Event::Parked(parked) => Some(parked.elapsed_ms),
        _ => None,
    });
    assert_eq!(elapsed, Some(Some(30_000)));
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    let start = tokio::time::Instant::now();
    let cast = runtime.resume(&cantrip, run).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout), "{:?}", cast.reply());
    assert_eq!(start.elapsed().as_secs(), 20, "a day of waiting is not counted, half a minute of work is");
    let records: Vec<_> = runtime.loom().read(run, Seq::START).try_collect().await.unwrap();
    assert!(records.windows(2).all(|pair| pair[0].at <= pair[1].at));
}
