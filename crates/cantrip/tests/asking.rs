//! The requests to a crystal: the contract, retries, deadlines, parking.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::time::Duration;

use cantrip::{Call, CastOptions};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, Request, Response, RetryPolicy, ScriptedError, ToolChoice};
use cantrip_loom::{Finish, GateCall, Journal, Loom, Message, RunState, Seq, TruncationReason, Usage, Utterance};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_any, assert_code};
use futures_util::TryStreamExt;
use serde_json::json;
use support::{Overlap, call, done, memory, script, slow, talking, woven};
use tokio::time::Instant;

/// Gives this answer to every request, whatever rule it breaks.
struct Saying(Utterance);

impl Crystal for Saying {
    fn name(&self) -> &str {
        "scripted/saying"
    }
    async fn ask(&self, _: &Request, _: &dyn EventSink) -> Result<Answer, Failure> {
        Ok(Answer { utterance: self.0.clone(), usage: None, call_items: Vec::new() })
    }
}

fn said(content: Option<&str>, ids: &[&str]) -> Utterance {
    let calls = ids.iter().map(|id| GateCall {
        tool_call_id: (*id).to_owned(),
        gate: "echo".to_owned(),
        args: json!({"text": 1}),
    });
    Utterance {
        content: content.map(str::to_owned),
        calls: calls.collect(),
        thinking: None,
        parts: None,
        model: "saying".to_owned(),
        finish: Finish::Stop,
    }
}

#[tokio::test(start_paused = true)]
async fn the_runtime_itself_objects_to_an_answer_that_breaks_the_contract() {
    for (utterance, code) in [
        (said(None, &[]), codes::CRYSTAL_EMPTY.any()),
        (said(Some("  "), &[]), codes::CRYSTAL_EMPTY.any()),
        (said(None, &["a", "a"]), codes::DUPLICATE_CALL.any()),
    ] {
        let runtime = memory();
        let cantrip = talking(&script([])).crystal(Saying(utterance)).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_any(cast.reply(), code);
        assert_eq!(cast.reason(), Some(TruncationReason::CrystalError));
        assert_eq!(cast.outcome.unwrap().turns, 0);
    }
}

fn limited(seconds: u64) -> Response {
    let retry_after = Some(Duration::from_secs(seconds));
    let error = ScriptedError::Status { status: 429, message: "slow down".to_owned(), retry_after };
    Response { error: Some(error), ..Response::default() }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_waited_out_inside_the_turn_and_leaves_no_trace_in_the_list() {
    let runtime = memory();
    let usage = Usage { prompt_tokens: 10, completion_tokens: 2, ..Usage::default() };
    let crystal = script([limited(20).with_usage(usage), call("echo", json!({"text": 1})).with_usage(usage), done(1)]);
    let cantrip = talking(&crystal).build().unwrap();
    let start = Instant::now();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)));
    assert_eq!(start.elapsed().as_secs(), 20);
    let outcome = cast.outcome.unwrap();
    assert_eq!((outcome.turns, outcome.usage.total_tokens()), (2, 24));
    assert_eq!(crystal.requests().iter().map(|input| input.messages.len()).collect::<Vec<_>>(), [1, 1, 3]);
    let first =
        runtime.loom().turns(cantrip.loom_id(), cantrip_loom::PageRequest::FIRST).await.unwrap().items.remove(0);
    assert_eq!((first.metadata.attempts, first.metadata.tokens_prompt), (2, 10));
}

#[tokio::test(start_paused = true)]
async fn what_will_not_get_better_is_asked_once() {
    let runtime = memory();
    let crystal = script([Response::error(400, "bad request"), done(1)]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    assert_eq!(crystal.request_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_script_that_ends_is_an_error_and_never_parks() {
    let runtime = memory();
    let cantrip = talking(&script([call("echo", json!({"text": 1}))])).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=1 truncated crystal_error");
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_stays_down_parks_the_run_and_a_resume_goes_on_in_the_same_turn() {
    let runtime = memory();
    let down = || Response::error(503, "down");
    let crystal = script((0..6).map(|_| down()).chain([done("up again")]));
    let cantrip = talking(&crystal).ward("timeout", "10m").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CREATED);
    assert_eq!(cast.reply().data()["state"], "waiting");
    assert_eq!(cast.reply().data()["fault"]["code"], codes::UNREACHABLE.any().as_str());
    let run = cast.run.unwrap();
    assert_eq!(crystal.request_count(), 6);
    assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Waiting);
    assert!(runtime.loom().holder(run).await.unwrap().is_none());
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let resumed = runtime.resume(&cantrip, run).await;
    assert_eq!(resumed.answer(), Some(&json!("up again")), "{:?}", resumed.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), cantrip_loom::PageRequest::FIRST).await.unwrap().items;
    assert_eq!((turns.len(), turns[0].metadata.attempts), (1, 7));
}

#[tokio::test(start_paused = true)]
async fn without_parking_a_provider_that_stays_down_ends_the_cast() {
    let runtime = memory();
    let crystal = script((0..6).map(|_| Response::error(429, "busy")));
    let cantrip = talking(&crystal).park(false).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::RATE_LIMITED);
    assert_eq!(cast.reason(), Some(TruncationReason::CrystalError));
}

#[tokio::test(start_paused = true)]
async fn a_required_call_is_demanded_inside_the_turn_and_then_missed() {
    let runtime = memory();
    let crystal = script([Response::text("not this time"), call("echo", json!({"text": 1})), done(1)]);
    let required = Call::new().tool_choice(ToolChoice::Required);
    let cantrip = talking(&crystal).call(required.clone()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)));
    let requests = crystal.requests();
    let asked: Vec<_> = requests.iter().map(|input| (input.messages.list_length(), input.messages.len())).collect();
    // The second request has the refused text and the demand; the next turn's has the intent, the call and its result.
    assert_eq!(asked, [(1, 1), (1, 3), (3, 3)]);
    let says = |at: usize| format!("{:?}", requests[at].messages.iter().collect::<Vec<_>>());
    assert!(says(1).contains("not this time") && !says(2).contains("not this time"), "{}", says(2));
    let Message::User { content: demand } = requests[1].messages.get(2).unwrap() else { panic!("{}", says(1)) };
    assert!(!says(2).contains(&demand.text()), "{}", says(2));
    assert_eq!(cast.outcome.unwrap().turns, 2);

    let crystal = script((0..5).map(|_| Response::text("no")));
    let cantrip = talking(&crystal).call(required).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CALL_MISSING);
    assert_eq!(crystal.request_count(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_cuts_off_an_answer_a_gate_and_a_child() {
    let thinking = Response { delay: Duration::from_secs(60), ..done("late") };
    let start = Instant::now();
    let runtime = memory();
    let cantrip = talking(&script([call("echo", json!({"text": 1})), thinking])).ward("timeout", "5s").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::WARD_REACHED);
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout));
    assert_eq!(start.elapsed().as_secs(), 5);
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=1 truncated timeout");

    let (runtime, overlap) = (memory(), Overlap::default());
    let crystal = script([call("slow", json!({"ms": 60_000})).and_call("c2", "echo", json!({"text": 1}))]);
    let cantrip = talking(&crystal).gate(slow("slow", &overlap)).ward("timeout", "5s").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout));
    let reached = codes::WARD_REACHED.any();
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, format!("A1 slow!{reached} truncated timeout"));

    let runtime = memory();
    let crystal = script([call("call_agent", json!({"intent": "x"})), call("slow", json!({"ms": 60_000}))]);
    let cantrip = talking(&crystal)
        .gate(cantrip_circle::gate::builtin::call_agent())
        .gate(slow("slow", &overlap))
        .ward("timeout", "5s")
        .build()
        .unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Timeout));
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.ends_with(&format!("A2 <A1 continues call_agent!{reached} truncated timeout")), "{found}");
    assert!(found.contains("  B1 <A1 slow!"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_on_record_before_it_leaves() {
    let runtime = memory();
    let crystal = script([Response::error(503, "down"), done(1)]);
    let cantrip = talking(&crystal).retry(RetryPolicy { base_ms: 10, ..RetryPolicy::default() }).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let records: Vec<_> = runtime.loom().read(cast.run.unwrap(), Seq::START).try_collect().await.unwrap();
    let kinds: Vec<_> = records.iter().map(|record| record.kind.as_str().to_owned()).collect();
    assert_eq!(kinds, ["root", "entity", "cast", "attempt", "settled", "attempt", "opened", "settled", "turn", "end"]);
}

#[tokio::test(start_paused = true)]
async fn a_token_limit_ends_the_cast_before_an_answer_that_would_not_fit() {
    let runtime = memory();
    let usage = Usage { prompt_tokens: 700, completion_tokens: 200, ..Usage::default() };
    let crystal = script([call("echo", json!({"text": 1})).with_usage(usage), done(1)]);
    let cantrip = talking(&crystal).ward("max_tokens", 1_000).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::WARD_REACHED);
    assert_eq!(cast.reason(), Some(TruncationReason::MaxTokens));
    assert_eq!(crystal.request_count(), 1);
    assert!(
        crystal
            .requests()
            .iter()
            .all(|input| input.messages.iter().all(|message| !matches!(message, Message::Tool { .. })))
    );
}

#[tokio::test(start_paused = true)]
async fn each_way_a_crystal_fails_is_the_casts_own_code() {
    let failing = |error| Response { error: Some(error), ..Response::default() };
    let message = || "told so".to_owned();
    for (response, code) in [
        (Response::error(401, "who are you"), codes::AUTH_FAILED.any()),
        (Response::error(503, "down"), codes::UNREACHABLE.any()),
        (failing(ScriptedError::Unreachable { message: message() }), codes::UNREACHABLE.any()),
        (failing(ScriptedError::TimedOut { after: Duration::from_secs(1) }), codes::TIMED_OUT.any()),
        (failing(ScriptedError::Refused { message: message() }), codes::CRYSTAL_REFUSED.any()),
        (failing(ScriptedError::ContextTooLong { tokens: Some(9), window: Some(5) }), codes::CONTEXT_TOO_LONG.any()),
        (Response { break_after: Some(1), ..Response::text("broken off") }, codes::STREAM_BROKEN.any()),
    ] {
        let retry = RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
        let cantrip = talking(&script([response])).retry(retry).park(false).build().unwrap();
        let cast = memory().cast(&cantrip, CastOptions::on("go")).await;
        assert_any(cast.reply(), code);
        assert_eq!(cast.reason(), Some(TruncationReason::CrystalError));
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_that_is_too_long_is_folded_once_and_asked_again_in_the_same_turn() {
    let too_long = || Response {
        error: Some(ScriptedError::ContextTooLong { tokens: None, window: None }),
        ..Response::default()
    };
    let echo = |n: u64| call("echo", json!({ "text": n }));
    let crystal = script([echo(1), echo(2), too_long(), done("shorter")]);
    let runtime = memory();
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("shorter")), "{:?}", cast.reply());
    assert_eq!(cast.outcome.as_ref().unwrap().turns, 3);
    let folds = runtime.loom().folds(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(folds.len(), 1);
    assert_eq!((folds[0].fold.from, folds[0].fold.to), (1, 1));

    let crystal = script([echo(1), echo(2), too_long(), too_long()]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = memory().cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CONTEXT_TOO_LONG);
}

#[tokio::test(start_paused = true)]
async fn a_folded_thread_goes_on_and_a_replay_of_it_is_identical() {
    let crystal = script((0..6).map(|n| call("echo", json!({ "text": n }))).chain([done("over")]));
    let runtime = memory();
    let cantrip = talking(&crystal).folding(cantrip::fold::FoldOptions::after_turns(3)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")));
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    assert!(!runtime.loom().folds(leaf).await.unwrap().is_empty());
    assert!(crystal.requests().last().unwrap().messages.iter().any(
        |message| matches!(message, Message::User { content } if content.text().starts_with("[Folded: turns 1-")),
    ));
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
}
