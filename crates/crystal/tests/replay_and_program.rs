//! A recorded thread is repeated; a user's program is used once.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::{IdSource, Timestamp};
use cantrip_crystal::conformance::{RecordingSink, check_events, sample_request};
use cantrip_crystal::{Crystal, ItemEvent, NullSink, ProgramCrystal, ProgramFormat, ReplayCrystal, Request};
use cantrip_loom::{CallId, Finish, Maker, ProviderParts, Spawn, Utterance};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use futures_util::FutureExt;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::thread;

fn ask(crystal: &impl Crystal, request: &Request) -> Result<cantrip_crystal::Answer, cantrip_crystal::Failure> {
    crystal.ask(request, &NullSink).now_or_never().expect("nothing to wait for")
}

fn replaying(utterances: Vec<Option<Utterance>>) -> ReplayCrystal {
    let ids = IdSource::seeded(1);
    let turns = utterances.into_iter().map(|said| thread::turn(ids.next(Timestamp::EPOCH), said)).collect();
    ReplayCrystal::new(&thread::thread(turns))
}

#[test]
fn a_thread_is_said_again_turn_by_turn_and_then_rejected() {
    let (one, two) = (thread::utterance("one"), thread::utterance("two"));
    // A continuation in between has no utterance of its own.
    let crystal = replaying(vec![Some(one.clone()), None, Some(two.clone())]);
    assert_eq!(ask(&crystal, &sample_request(1)).unwrap().utterance, one);
    let second = ask(&crystal, &sample_request(2)).unwrap();
    assert_eq!((second.utterance, second.usage.unwrap().prompt_tokens), (two, 11));
    let failure = ask(&crystal, &sample_request(3)).unwrap_err();
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, codes::CRYSTAL_REJECTED);
}

#[test]
fn a_childs_thread_begins_where_the_child_does() {
    let ids = IdSource::seeded(1);
    let id = || ids.next(Timestamp::EPOCH);
    let parent = thread::turn(id(), Some(thread::utterance("parent")));
    let mut child = thread::turn(id(), Some(thread::utterance("child")));
    child.spawned_by = Some(Spawn { call_id: CallId::of_turn(parent.id, 1), index: 0 });
    let later = thread::turn(id(), Some(thread::utterance("later")));
    let crystal = ReplayCrystal::new(&thread::thread(vec![parent, child, later]));
    assert_eq!(crystal.remaining(), 2);
    assert_eq!(ask(&crystal, &sample_request(1)).unwrap().utterance.content.as_deref(), Some("child"));
}

#[test]
fn each_recorded_part_is_one_delta() {
    let mut said = thread::utterance("several words at once");
    said.thinking = Some("and some thoughts".into());
    said.calls = vec![thread::call("c1", json!({"path": "a"}))];
    said.finish = Finish::Calls;
    let heard = RecordingSink::default();
    replaying(vec![Some(said)]).ask(&sample_request(1), &heard).now_or_never().unwrap().unwrap();
    let deltas = heard.events().iter().filter(|event| matches!(event, ItemEvent::Delta(_))).count();
    assert_eq!(deltas, 3);
}

fn args() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        "[a-z]{0,4}".prop_map(|key| json!({key: [1, null, "é"]})),
        Just(json!(["no", "object"])),
        Just(json!(null)),
        // Arguments that did not parse stay text; arguments that would parse were a string.
        prop_oneof![Just("{\"a\":"), Just("{}"), Just(" "), Just("\"quoted\""), Just("17"), Just("plain")]
            .prop_map(Value::from),
    ]
}

prop_compose! {
    fn utterances()(
        content in proptest::option::of("[ a-zé\n]{1,30}"),
        thinking in proptest::option::of("[ a-z]{1,30}"),
        calls in proptest::collection::vec(args(), 0..4),
        parts in proptest::option::of(Just(json!([{"signature": "x"}]))),
    ) -> Utterance {
        let finish = if calls.is_empty() { Finish::Stop } else { Finish::Calls };
        let calls = calls.into_iter().enumerate().map(|(n, args)| thread::call(&format!("c{n}"), args)).collect();
        let parts = parts.map(|parts| ProviderParts { maker: Maker::new("anthropic"), parts });
        Utterance { content, calls, thinking, parts, model: "small".to_owned(), finish }
    }
}

proptest! {
    #[test]
    fn what_is_replayed_is_what_was_recorded(said in utterances()) {
        let heard = RecordingSink::default();
        let outcome = replaying(vec![Some(said.clone())]).ask(&sample_request(1), &heard).now_or_never().unwrap();
        prop_assert_eq!(check_events(&heard.events(), &outcome), Ok(()));
        prop_assert_eq!(outcome.unwrap().utterance, said);
    }
}

#[test]
fn a_program_is_a_call_of_the_code_tool_and_costs_nothing() {
    let crystal = ProgramCrystal::new("program/flow.js", "done(1)");
    let answer = ask(&crystal, &sample_request(1)).unwrap();
    let [call] = &answer.utterance.calls[..] else { panic!("{answer:?}") };
    assert_eq!((&*call.gate, &call.args), ("javascript", &json!({"code": "done(1)"})));
    assert_eq!(answer.usage.unwrap().total_tokens(), 0);
}

#[test]
fn a_program_is_said_again_to_a_repeated_request_and_not_to_a_second_one() {
    let crystal = ProgramCrystal::new("program/flow.js", "1");
    let request = sample_request(1);
    assert_eq!(ask(&crystal, &request).unwrap().utterance, ask(&crystal, &request).unwrap().utterance);
    let failure = ask(&crystal, &Request { utterances: 1, ..request }).unwrap_err();
    assert!(failure.to_string().contains("script exhausted"));
    assert_code(&guarded(|rb| rb.error(failure.to_reply(1))).reply, codes::CRYSTAL_REJECTED);
}

#[test]
fn a_program_becomes_a_fenced_block_where_the_circle_takes_those() {
    let crystal = ProgramCrystal::new("program/flow.js", "f(`a ``` b`)");
    let request = Request { program: ProgramFormat::Fenced { language: "javascript".into() }, ..sample_request(1) };
    let said = ask(&crystal, &request).unwrap().utterance;
    assert_eq!(said.content.as_deref(), Some("````javascript\nf(`a ``` b`)\n````\n"));
    let request = Request { program: ProgramFormat::None, ..sample_request(1) };
    assert_eq!(ask(&crystal, &request).unwrap_err().code(), codes::CRYSTAL_REJECTED);
}
