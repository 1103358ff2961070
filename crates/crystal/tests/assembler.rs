//! Chunks as input, items and an answer as output.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_crystal::conformance::{RecordingSink, check_events, sample_request};
use cantrip_crystal::limits::{ANSWER_BYTES_MAX, ANSWER_CALLS_MAX};
use cantrip_crystal::{Answer, AnswerEnd, Assembler, Cause, Charge, Failure, ItemEvent, ItemIds, Request, contract};
use cantrip_loom::{Finish, Usage};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_stream::{FinalItem, StartedItem};
use proptest::prelude::*;
use serde_json::json;

const NAME: &str = "scripted/a.yaml";

fn finished(request: &Request, heard: &RecordingSink, say: impl FnOnce(&mut Assembler<'_>)) -> Result<Answer, Failure> {
    let mut said = Assembler::new(NAME, request, heard);
    say(&mut said);
    said.finish(AnswerEnd::new("small", Finish::Stop))
}

/// Returns one word per event, as a viewer would see it.
fn told(heard: &RecordingSink) -> Vec<String> {
    let short = |event: &ItemEvent| match event {
        ItemEvent::Start(start) => match &start.item {
            StartedItem::Message { .. } => "+text".to_owned(),
            StartedItem::Reasoning { .. } => "+thinking".to_owned(),
            StartedItem::FunctionCall { name, call_id, .. } => format!("+{name}:{call_id}"),
            StartedItem::FunctionCallOutput { .. } => "+output".to_owned(),
        },
        ItemEvent::Delta(delta) => delta.delta_content.to_string(),
        ItemEvent::Done(done) => match &done.final_item {
            FinalItem::FunctionCall(call) => format!("/{}", call.name),
            FinalItem::Message { .. } => "/text".to_owned(),
            FinalItem::Reasoning { provider_id, .. } => format!("/thinking {provider_id}"),
            FinalItem::FunctionCallOutput(_) => "/output".to_owned(),
        },
        ItemEvent::Error(_) => "!".to_owned(),
        ItemEvent::Cancelled(_) => "-".to_owned(),
    };
    heard.events().iter().map(short).collect()
}

#[test]
fn a_change_of_kind_ends_the_open_text() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    finished(&request, &heard, |said| {
        said.thinking("hm").unwrap();
        said.text("a").unwrap();
        said.text("b").unwrap();
        said.call(0, Some("c1"), Some("read")).unwrap();
        said.text("c").unwrap();
    })
    .unwrap();
    let expected = [
        "+thinking",
        "hm",
        "/thinking scripted",
        "+text",
        "a",
        "b",
        "/text",
        "+read:c1",
        "+text",
        "c",
        "/text",
        "/read",
    ];
    assert_eq!(told(&heard), expected);
}

#[test]
fn a_call_starts_when_its_name_is_known_and_gets_an_id_if_it_has_none() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let answer = finished(&request, &heard, |said| {
        said.call(7, None, None).unwrap();
        said.arguments(7, "{\"a\":").unwrap();
        assert!(told(&heard).is_empty());
        said.call(7, None, Some("read")).unwrap();
        said.arguments(7, "1}").unwrap();
        said.call(8, Some(&"x".repeat(300)), Some("done")).unwrap();
    })
    .unwrap();
    let ids: Vec<_> = answer.utterance.calls.iter().map(|call| &*call.tool_call_id).collect();
    assert!(ids[0] != ids[1] && ids.iter().all(|id| (1..=40).contains(&id.len())), "{ids:?}");
    assert_eq!(answer.utterance.calls[0].args, json!({"a": 1}));
    assert_eq!(answer.utterance.calls[1].args, json!({}));
    assert_eq!(answer.utterance.finish, Finish::Calls, "whatever its provider says beside calls");
}

#[test]
fn ids_and_names_that_are_repeated_change_nothing() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let answer = finished(&request, &heard, |said| {
        said.call(0, Some("c1"), Some("read")).unwrap();
        said.call(0, Some("c2"), Some("write")).unwrap();
        said.arguments_so_far(0, "{\"p\"").unwrap();
        said.arguments_so_far(0, "{\"p\": 1}").unwrap();
    })
    .unwrap();
    assert_eq!(told(&heard), ["+read:c1", "{\"p\"", ": 1}", "/read"]);
    assert_eq!(answer.utterance.calls[0].args, json!({"p": 1}));
}

#[test]
fn arguments_that_are_no_object_stand_as_they_came_and_their_item_is_not_done() {
    for (text, args) in
        [("{\"a\":", json!("{\"a\":")), ("[1]", json!([1])), ("{\"a\":1,\"a\":2}", json!("{\"a\":1,\"a\":2}"))]
    {
        let (request, heard) = (sample_request(1), RecordingSink::default());
        let outcome = finished(&request, &heard, |said| {
            said.call(0, Some("c1"), Some("read")).unwrap();
            said.arguments(0, text).unwrap();
        });
        assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
        assert_eq!(outcome.unwrap().utterance.calls[0].args, args);
        assert!(!told(&heard).contains(&"/read".to_owned()));
    }
}

#[test]
fn doubled_ids_reach_the_contract() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let answer = finished(&request, &heard, |said| {
        said.call(0, Some("c1"), Some("read")).unwrap();
        said.call(1, Some("c1"), Some("read")).unwrap();
    });
    let breach = contract::find_violation(&answer.unwrap().utterance).unwrap();
    assert_code(&guarded(|rb| rb.error(breach.to_reply())).reply, codes::DUPLICATE_CALL);
}

#[test]
fn a_refusal_is_a_failure_with_its_own_code() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let mut said = Assembler::new(NAME, &request, &heard);
    said.text("I cannot help with that.").unwrap();
    let usage = Usage { prompt_tokens: 5, ..Usage::default() };
    let failure =
        said.finish(AnswerEnd { usage: Some(usage), ..AnswerEnd::new("small", Finish::Refusal) }).unwrap_err();
    assert_eq!(failure.charge, Charge::Reported(usage));
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, codes::CRYSTAL_REFUSED);
}

#[test]
fn a_call_that_never_got_a_name_is_a_broken_answer() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let outcome = finished(&request, &heard, |said| said.arguments(0, "{}").unwrap());
    assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
    assert_eq!(outcome.unwrap_err().code(), codes::STREAM_BROKEN);
}

#[test]
fn who_takes_a_turn_over_takes_no_item_id_again() {
    let request = sample_request(1).caller.request;
    let (first, second) = (ItemIds::of(&request), ItemIds::after(&request, 1));
    let shown: Vec<_> = (0..cantrip_stream::limits::TURN_ITEMS_MAX).map(|_| first.clone().mint()).collect();
    assert!(!shown.contains(&second.mint()));
    let turn = request.to_string();
    assert_eq!(shown[0].as_str(), turn.replace(":0", "/1"));
}

#[test]
fn an_answer_is_bounded_in_bytes_and_calls() {
    let (request, heard) = (sample_request(1), RecordingSink::default());
    let mut said = Assembler::new(NAME, &request, &heard);
    said.text(&"a".repeat(ANSWER_BYTES_MAX - 1)).unwrap();
    said.thinking("b").unwrap();
    said.call(0, Some("c"), Some("read")).unwrap();
    assert!(matches!(said.arguments(0, "{"), Err(Cause::TooLarge { unit: "bytes", .. })));
    for key in 1..ANSWER_CALLS_MAX as u64 {
        said.call(u64::from(u32::MAX) + key, None, Some("read")).unwrap();
    }
    assert!(matches!(said.call(u64::MAX, None, Some("read")), Err(Cause::TooLarge { unit: "calls", .. })));
}

#[derive(Debug, Clone)]
enum Chunk {
    Text(String),
    Thinking(String),
    Border,
    Call(u64, Option<String>, Option<String>),
    Arguments(u64, String),
    SoFar(u64, String),
    End(u64),
}

fn chunk() -> impl Strategy<Value = Chunk> {
    let key = 0_u64..4;
    let json =
        prop_oneof![Just("{"), Just("}"), Just("\"a\":1"), Just(""), Just("{}"), Just("nope")].prop_map(str::to_owned);
    prop_oneof![
        "[a é\n]{0,5}".prop_map(Chunk::Text),
        "[a é]{0,5}".prop_map(Chunk::Thinking),
        Just(Chunk::Border),
        (key.clone(), proptest::option::of("[ab]{0,2}"), proptest::option::of("[rw]{0,2}"))
            .prop_map(|(key, id, name)| Chunk::Call(key, id, name)),
        (key.clone(), json.clone()).prop_map(|(key, json)| Chunk::Arguments(key, json)),
        (key.clone(), json).prop_map(|(key, json)| Chunk::SoFar(key, json)),
        key.prop_map(Chunk::End),
    ]
}

fn feed(said: &mut Assembler<'_>, chunks: &[Chunk]) {
    for chunk in chunks {
        match chunk {
            Chunk::Text(text) => said.text(text),
            Chunk::Thinking(text) => said.thinking(text),
            Chunk::Border => {
                said.end_block();
                Ok(())
            }
            Chunk::Call(key, id, name) => said.call(*key, id.as_deref(), name.as_deref()),
            Chunk::Arguments(key, json) => said.arguments(*key, json),
            Chunk::SoFar(key, json) => said.arguments_so_far(*key, json),
            Chunk::End(key) => said.end_call(*key),
        }
        .expect("small");
    }
}

proptest! {
    #[test]
    fn whatever_comes_in_the_answer_is_what_was_streamed(chunks in proptest::collection::vec(chunk(), 0..30)) {
        let (request, heard) = (sample_request(1), RecordingSink::default());
        let outcome = finished(&request, &heard, |said| feed(said, &chunks));
        prop_assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
    }

    #[test]
    fn wherever_it_breaks_nothing_stays_open(chunks in proptest::collection::vec(chunk(), 0..30)) {
        let (request, heard) = (sample_request(1), RecordingSink::default());
        let mut said = Assembler::new(NAME, &request, &heard);
        feed(&mut said, &chunks);
        let outcome = Err(said.fail(Cause::Broken { detail: "cut".into() }, Charge::Unknown));
        prop_assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
    }
}
