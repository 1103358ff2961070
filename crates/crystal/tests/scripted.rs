//! A script is a tape that streams like a model.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_crystal::conformance::{RecordingSink, check_events, child_request, sample_request};
use cantrip_crystal::{
    Answer, Cause, Charge, Crystal, Failure, ItemEvent, NullSink, ProgramFormat, Request, Response, Script,
    ScriptedCrystal, ScriptedError, ToolChoice,
};
use cantrip_loom::{Finish, Message, Usage};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use futures_util::FutureExt;
use futures_util::future::join_all;
use serde_json::json;
use tokio::time::Instant;

fn script(responses: impl IntoIterator<Item = Response>) -> ScriptedCrystal {
    ScriptedCrystal::new("scripted/a.yaml", Script::new(responses))
}

fn at_once(crystal: &ScriptedCrystal, request: &Request) -> Result<Answer, Failure> {
    crystal.ask(request, &NullSink).now_or_never().expect("nothing to wait for")
}

fn text(answer: Result<Answer, Failure>) -> String {
    answer.unwrap().utterance.content.unwrap()
}

#[test]
fn one_cursor_serves_all_and_past_the_end_the_script_is_exhausted() {
    let crystal = script([Response::text("one"), Response::text("two")]);
    let other = crystal.clone();
    assert_eq!(text(at_once(&crystal, &sample_request(1))), "one");
    assert_eq!(text(at_once(&other, &sample_request(2))), "two");
    let failure = at_once(&crystal, &sample_request(3)).unwrap_err();
    assert!(failure.to_string().contains("script exhausted"));
    assert!(!cantrip_crystal::RetryPolicy::default().is_retryable(&failure));
    assert_eq!(failure.charge, Charge::Nothing);
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, codes::CRYSTAL_REJECTED);
    assert_eq!((crystal.request_count(), crystal.remaining()), (3, 0));
}

#[test]
fn text_is_streamed_word_by_word_or_as_the_script_cuts_it() {
    let deltas = |response| {
        let heard = RecordingSink::default();
        let outcome = script([response]).ask(&sample_request(1), &heard).now_or_never().unwrap();
        assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
        let text = |event: ItemEvent| match event {
            ItemEvent::Delta(delta) => Some(delta.delta_content.into_string()),
            ItemEvent::Start(_) | ItemEvent::Done(_) | ItemEvent::Error(_) | ItemEvent::Cancelled(_) => None,
        };
        heard.events().into_iter().filter_map(text).collect::<Vec<_>>()
    };
    assert_eq!(deltas(Response::text("three words here")), ["three ", "words ", "here"]);
    let cut = Response { chunks: Some(vec!["thr".into(), "ee".into()]), ..Response::default() };
    assert_eq!(deltas(cut), ["thr", "ee"]);
}

#[test]
fn an_empty_response_and_doubled_ids_are_handed_over_unchanged() {
    let doubled = Response::call("c1", "read", json!({})).and_call("c1", "read", json!({}));
    let crystal = script([Response::default(), doubled]);
    let empty = at_once(&crystal, &sample_request(1)).unwrap().utterance;
    assert!(empty.content.is_none() && empty.calls.is_empty());
    let doubled = at_once(&crystal, &sample_request(1)).unwrap().utterance;
    assert_eq!(doubled.calls[0].tool_call_id, doubled.calls[1].tool_call_id);
}

#[test]
fn code_is_a_call_of_the_code_tool_or_a_fenced_block() {
    let said = |program| {
        let request = Request { program, ..sample_request(1) };
        at_once(&script([Response::code("done(1)")]), &request).unwrap().utterance
    };
    let called = said(ProgramFormat::Call { name: "python".into(), argument: "code".into() });
    assert_eq!((&*called.calls[0].gate, &called.calls[0].args), ("python", &json!({"code": "done(1)"})));
    let fenced = said(ProgramFormat::Fenced { language: "python".into() });
    assert_eq!(fenced.content.as_deref(), Some("```python\ndone(1)\n```\n"));
    assert_eq!(fenced.finish, Finish::Stop);
    assert_eq!(said(ProgramFormat::None).content.as_deref(), Some("```\ndone(1)\n```\n"));
}

#[test]
fn usage_is_the_responses_own_or_the_scripts() {
    let usage = |tokens| Usage { prompt_tokens: tokens, ..Usage::default() };
    let responses = [Response::text("a"), Response::text("b").with_usage(usage(7))];
    let crystal = ScriptedCrystal::new("scripted/a", Script { usage: Some(usage(3)), ..Script::new(responses) });
    let used = || at_once(&crystal, &sample_request(1)).unwrap().usage.unwrap().prompt_tokens;
    assert_eq!((used(), used()), (3, 7));
}

#[test]
fn errors_fail_as_a_provider_would_and_say_what_they_cost() {
    let failed = |response| at_once(&script([response]), &sample_request(1)).unwrap_err();
    let told = ScriptedError::Status { status: 429, message: "slow".into(), retry_after: Some(Duration::from_secs(2)) };
    let limited = failed(Response { error: Some(told), ..Response::default() });
    assert_eq!((limited.status(), limited.retry_after()), (Some(429), Some(Duration::from_secs(2))));
    assert_eq!(limited.charge, Charge::Nothing);
    assert_code(&guarded(|rb| rb.error(limited.to_reply(6))).reply, codes::RATE_LIMITED);

    let usage = Usage { prompt_tokens: 9, ..Usage::default() };
    assert_eq!(failed(Response::error(500, "down").with_usage(usage)).charge, Charge::Reported(usage));

    let late =
        Response { error: Some(ScriptedError::TimedOut { after: Duration::from_secs(5) }), ..Response::default() };
    let late = failed(late);
    assert_eq!(late.charge, Charge::Unknown);
    assert_code(&guarded(|rb| rb.error(late.to_reply(1))).reply, codes::TIMED_OUT);

    let long = ScriptedError::ContextTooLong { tokens: Some(9_000), window: Some(8_192) };
    let long = failed(Response { error: Some(long), ..Response::default() });
    assert!(long.is_context_too_long());
    assert_code(&guarded(|rb| rb.error(long.to_reply(1))).reply, codes::CONTEXT_TOO_LONG);
}

#[test]
fn a_stream_that_breaks_off_cancels_what_is_open_and_costs_nobody_knows_what() {
    let usage = Usage { prompt_tokens: 9, ..Usage::default() };
    let broken = Response { break_after: Some(2), ..Response::text("one two three").with_usage(usage) };
    let heard = RecordingSink::default();
    let outcome = script([broken]).ask(&sample_request(1), &heard).now_or_never().unwrap();
    assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
    let failure = outcome.unwrap_err();
    assert_eq!((&failure.charge, matches!(failure.cause, Cause::Broken { .. })), (&Charge::Unknown, true));
    assert_code(&guarded(|rb| rb.error(failure.to_reply(6))).reply, codes::STREAM_BROKEN);
}

#[tokio::test(start_paused = true)]
async fn delays_are_kept() {
    let slow = Response { delay: Duration::from_secs(3), pace: Duration::from_secs(1), ..Response::text("a b c") };
    let start = Instant::now();
    script([slow]).ask(&sample_request(1), &NullSink).await.unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[test]
fn inputs_are_recorded_as_lengths_of_the_shared_list() {
    let crystal = script([Response::text("one"), Response::text("two")]);
    let first = Request { choice: ToolChoice::Required, ..sample_request(1) };
    at_once(&crystal, &first).unwrap();
    first.messages.list().push(Message::User { content: "later".into() });
    let second = Request { messages: first.messages.list().all(), ..first.clone() };
    at_once(&crystal, &second).unwrap();
    let inputs = crystal.requests();
    assert_eq!(inputs.iter().map(|input| input.messages.len()).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(inputs[0].choice, ToolChoice::Required);
    assert_eq!(inputs[0].definitions[0].name, "javascript");
    let same = |at: usize| std::ptr::eq(inputs[0].messages.get(at).unwrap(), inputs[1].messages.get(at).unwrap());
    assert!(same(0) && same(1), "the messages are not copied");
}

fn spawn(crystal: &ScriptedCrystal, count: u32) -> Vec<Request> {
    let call = sample_request(77).caller.request;
    let children: Vec<_> = (0..count).map(|index| child_request(call, index)).collect();
    for child in &children {
        crystal.on_spawn(child.caller.entity, child.caller.spawned_by.unwrap());
    }
    children
}

#[tokio::test]
async fn children_of_one_call_draw_in_the_order_they_were_asked_for() {
    let crystal = script((0..8).map(|n| Response::text(n.to_string())));
    let children = spawn(&crystal, 8);
    // They ask in reverse.
    let asked = join_all(children.iter().rev().map(|child| crystal.ask(child, &NullSink))).await;
    let said: Vec<_> = asked.into_iter().rev().map(text).collect();
    assert_eq!(said, ["0", "1", "2", "3", "4", "5", "6", "7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_holds_on_several_threads() {
    let crystal = script((0..50).map(|n| Response::text(n.to_string())));
    let children = spawn(&crystal, 50);
    let tasks = children.into_iter().rev().map(|child| {
        let crystal = crystal.clone();
        tokio::spawn(async move {
            let index = child.caller.spawned_by.unwrap().index;
            (index.to_string(), text(crystal.ask(&child, &NullSink).await))
        })
    });
    for task in join_all(tasks).await {
        let (index, said) = task.unwrap();
        assert_eq!(index, said);
    }
}

#[test]
fn a_child_waits_for_the_first_draw_of_those_before_it_and_for_no_later_one() {
    let crystal = script((0..5).map(|n| Response::text(n.to_string())));
    let children = spawn(&crystal, 3);
    let mut second = Box::pin(crystal.ask(&children[1], &NullSink));
    assert!((&mut second).now_or_never().is_none());
    assert_eq!(text(at_once(&crystal, &sample_request(5))), "0", "who is no sibling does not wait");
    assert_eq!(text(at_once(&crystal, &children[0])), "1");
    assert_eq!(text(at_once(&crystal, &children[0])), "2", "only a first draw is held");
    assert_eq!(text((&mut second).now_or_never().unwrap()), "3");
    assert_eq!(text(at_once(&crystal, &children[2])), "4");
}

#[test]
fn a_child_that_ended_without_asking_holds_up_nobody() {
    let crystal = script([Response::text("0")]);
    let children = spawn(&crystal, 2);
    let mut second = Box::pin(crystal.ask(&children[1], &NullSink));
    assert!((&mut second).now_or_never().is_none());
    crystal.on_end(children[0].caller.entity);
    assert_eq!(text((&mut second).now_or_never().unwrap()), "0");
}

#[test]
fn a_dropped_wait_draws_nothing() {
    let crystal = script([Response::text("0"), Response::text("1")]);
    let children = spawn(&crystal, 2);
    assert!(crystal.ask(&children[1], &NullSink).now_or_never().is_none());
    assert_eq!((crystal.request_count(), crystal.remaining()), (0, 2));
    assert_eq!(text(at_once(&crystal, &children[0])), "0");
    assert_eq!(text(at_once(&crystal, &children[1])), "1");
}
