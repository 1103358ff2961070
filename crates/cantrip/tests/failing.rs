//! Failures around an entity: panics, crashes inside a call, verifiers, loops, approvals; and what a watcher sees.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::{Arc, Mutex};

use cantrip::Verdict;
use cantrip::events::{Channel, Watcher};
use cantrip::{Cancel, CastOptions};
use cantrip_circle::gate::gate_with_call;
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Request, Response};
use cantrip_loom::{
    AnyLoom, Event, Journal, Loom, MemoryLoom, PageRequest, RecordDraft, RunState, Settlement, Step, StepId,
    TruncationReason,
};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::{Value, json};
use support::{Count, Dying, Numbered, call, counting, done, house_of, memory, script, talking, woven};

/// A crystal with a bug: its second request panics.
struct Broken(Count);

impl Crystal for Broken {
    fn name(&self) -> &str {
        "scripted/broken"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        assert_ne!(self.0.up(), 2, "a bug");
        let back = request.messages.len() > 1;
        script([if back { done("after all") } else { call("echo", json!({"text": 1})) }]).ask(request, heard).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_outside_a_gate_fails_the_run_and_a_resume_reopens_it() {
    let runtime = memory();
    let cantrip = talking(&script([])).crystal(Broken(Count::default())).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRASH);
    let run = cast.run.unwrap();
    assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Failed);
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=1");
    let resumed = runtime.resume(&cantrip, run).await;
    assert_eq!(resumed.answer(), Some(&json!("after all")), "{:?}", resumed.reply());
}

#[tokio::test(start_paused = true)]
async fn a_call_cut_off_by_a_crash_is_unknown_unless_it_may_be_made_again() {
    for idempotent in [false, true] {
        let keys: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&keys);
        let gate = gate_with_call("count", "Counts.", move |call: cantrip_circle::gate::Call, numbered: Numbered| {
            seen.lock().unwrap().push(call.idempotency_key.clone().unwrap_or_default());
            async move { Ok::<_, Refusal>(numbered.n) }
        });
        let gate = if idempotent { gate.idempotent() } else { gate };
        let crystal = script([call("count", json!({"n": 5})), done("on")]);
        let cantrip = talking(&crystal).gate(gate).build().unwrap();
        let memory = AnyLoom::new(MemoryLoom::new());
        // The steps: the run's first records, the attempt, the opened turn with the start of its call; then nothing
        // more.
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), 3)), 1);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(died.reply(), codes::STORE_UNAVAILABLE);
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        assert_eq!(cast.answer(), Some(&json!("on")), "{:?}", cast.reply());
        let turns = heir.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        let Settlement::Settled(settled) = &turns[0].gate_calls[0].settlement else { panic!("settled") };
        let keys = keys.lock().unwrap().clone();
        if idempotent {
            assert_eq!((&settled.result, keys.len()), (&json!(5), 2));
            assert_eq!(keys[0], keys[1]);
            // A repeated call is judged again, and the decision can be verified from its record.
            let decision = settled.decision.as_ref().expect("a decision");
            assert_eq!(decision.decision.reason_code.as_str(), "policy_allowed.default");
            let again = heir.redecide(died.run.unwrap()).await.unwrap();
            assert!(
                matches!(again, cantrip::policy::RedecideOutcome::Same { decisions: 2 }),
                "the call and done: {again:?}"
            );
        } else {
            assert_eq!((settled.reply.code.as_str(), keys.len()), (codes::OUTCOME_UNKNOWN.any().as_str(), 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_was_overtaken_writes_nothing_more() {
    let memory = AnyLoom::new(MemoryLoom::new());
    let runtime = house_of(memory.clone(), 1);
    let overlap = support::Overlap::default();
    let crystal = script([call("slow", json!({"ms": 20_000})), done("late")]);
    let cantrip = talking(&crystal).gate(support::slow("slow", &overlap)).build().unwrap();
    let thief = memory.clone();
    let stealing = async {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let run = thief.runs(PageRequest::FIRST).await.unwrap().items[0].run_id;
        let held = thief.holder(run).await.unwrap().unwrap();
        let later = held.expires_at.after(std::time::Duration::from_secs(1));
        let owner = cantrip_loom::WorkerId::new("another").unwrap();
        thief.acquire(run, owner, later, std::time::Duration::from_secs(3_600)).await.unwrap();
    };
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go")), stealing);
    assert_code(cast.reply(), codes::LEASE_LOST);
    assert!(cast.outcome.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_verifier_sends_a_bad_answer_back_and_its_score_is_the_turns_reward() {
    let runtime = memory();
    let crystal = script([done(1), done(2)]);
    let verifier = |answer: Value| async move {
        Ok::<_, Refusal>(match answer.as_u64() {
            Some(2) => Verdict::Passed { score: Some(0.5) },
            _ => Verdict::Failed { output: "too small".to_owned() },
        })
    };
    let cantrip = talking(&crystal).verify(verifier).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!((turns[0].reward, turns[1].reward), (None, Some(0.5)));
    let Settlement::Settled(settled) = &turns[0].gate_calls[0].settlement else { panic!("settled") };
    assert_eq!(settled.reply.code, codes::DONE_MALFORMED.any().as_str());
    assert!(settled.result.as_str().unwrap().contains("too small"));
}

#[tokio::test(start_paused = true)]
async fn going_round_in_circles_is_noticed_at_exactly_the_number_of_repeats() {
    let same = || call("echo", json!({"text": 1}));
    let runtime = memory();
    let crystal = script((0..9).map(|_| same()));
    let cantrip = talking(&crystal).ward("loop_detected", json!({"repeats": 3, "cycles": 3})).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::LOOP_DETECTED);
    assert_eq!((cast.reason(), crystal.request_count()), (Some(TruncationReason::LoopDetected), 3));

    let crystal = script((0..9).map(|n| call("echo", json!({"text": n % 2}))));
    let cantrip = talking(&crystal).ward("loop_detected", json!({"repeats": 3, "cycles": 3})).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!((cast.reason(), crystal.request_count()), (Some(TruncationReason::LoopDetected), 6));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_needs_an_approval_waits_for_it_and_then_runs() {
    for (decision, asked) in [("approved", 1), ("refused", 0)] {
        let (runtime, count) = (memory().with_approvals(true), Count::default());
        let crystal = script([call("count", json!({"n": 1})), done("on")]);
        let cantrip = talking(&crystal)
            .gate(counting("count", &count))
            .ward("require_approval", json!(["count"]))
            .build()
            .unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(cast.reply(), codes::CREATED);
        let (run, approval) = (cast.run.unwrap(), cast.reply().data()["approval_id"].clone());
        assert_eq!(count.get(), 0);
        assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Waiting);
        let payload = json!({"approval_id": approval, "decision": decision, "actor": "user:1", "reason": "no"});
        let Value::Object(payload) = payload else { panic!("an object") };
        let event = Event::Other { kind: "approval.decided".to_owned(), payload };
        let draft = RecordDraft::new("2026-02-19T03:00:00.000Z".parse().unwrap(), event).unwrap();
        let step = Step::annotation(StepId::new("decided").unwrap(), run).record(draft);
        let _ = runtime.loom().append(step).await.unwrap();
        let cast = runtime.resume(&cantrip, run).await;
        assert_eq!(cast.answer(), Some(&json!("on")), "{:?}", cast.reply());
        assert_eq!(count.get(), asked);
        let refused = woven(&runtime, cantrip.loom_id()).await.contains(codes::APPROVAL_REFUSED.any().as_str());
        assert_eq!(refused, asked == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_happens_can_be_watched_in_order_and_a_full_watcher_changes_nothing() {
    let (channel, mut seen) = Channel::new();
    let runtime = memory().with_watcher(channel.clone());
    let usage = cantrip_loom::Usage { prompt_tokens: 3, completion_tokens: 1, ..Default::default() };
    let crystal = script([
        Response { content: Some("I look.".to_owned()), ..call("echo", json!({"text": 1})) }.with_usage(usage),
        done("x"),
    ]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&Cancel::new())).await;
    assert_eq!(cast.answer(), Some(&json!("x")));
    let mut kinds = Vec::new();
    while let Ok(event) = seen.try_recv() {
        assert_eq!(event.session_id.as_str(), cast.run.unwrap().to_string());
        if event.payload.kind() != "item_delta" {
            kinds.push(event.payload.kind());
        }
    }
    let turn = [
        "response_start",
        "item_done",
        "item_start",
        "item_done",
        "item_start",
        "item_done",
        "item_done",
        "response_done",
    ];
    assert_eq!(kinds[..turn.len()], turn);
    assert_eq!(kinds.last(), Some(&"response_done"));
    assert_eq!(kinds.iter().filter(|kind| **kind == "response_start").count(), 2);
    drop(seen);
    channel.on_event(cantrip_stream::StreamEvent {
        event_id: cantrip_stream::EventId::new("e").unwrap(),
        timestamp: "2026-02-15T10:00:00Z".parse().unwrap(),
        turn_id: cantrip_stream::TurnId::new("t").unwrap(),
        session_id: cantrip_stream::SessionId::new("s").unwrap(),
        payload: cantrip_stream::Payload::ResponseError(cantrip_stream::ResponseError {
            error: cantrip_stream::ErrorInfo::new("c", "m"),
        }),
    });
    assert_eq!(channel.dropped(), 1);
}
