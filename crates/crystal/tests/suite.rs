//! The suite itself can fail: each broken promise is found.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_crystal::conformance::{RecordingSink, check_events, sample_request};
use cantrip_crystal::{Answer, Crystal, Failure, ItemEvent, Response, Script, ScriptedCrystal};
use futures_util::FutureExt;
use serde_json::json;

fn sound() -> (Vec<ItemEvent>, Result<Answer, Failure>) {
    let response = Response { thinking: Some("hm".into()), ..Response::text("two words") };
    let script = Script::new([response.and_call("c1", "read", json!({"path": "a"}))]);
    let heard = RecordingSink::default();
    let outcome = ScriptedCrystal::new("scripted/a", script).ask(&sample_request(1), &heard).now_or_never().unwrap();
    (heard.events(), outcome)
}

#[test]
fn a_sound_stream_is_consistent() {
    let (events, outcome) = sound();
    assert_eq!(check_events(&events, &outcome), Ok(()));
}

#[test]
fn a_stream_that_lacks_any_event_is_not() {
    let (events, outcome) = sound();
    for left_out in 0..events.len() {
        let mut events = events.clone();
        let event = events.remove(left_out);
        // The arguments of a call are repeated at its end.
        let arguments = matches!(&event, ItemEvent::Delta(delta) if delta.delta_content.starts_with('{'));
        assert_eq!(check_events(&events, &outcome).is_err(), !arguments, "without {event:?}");
    }
}

#[test]
fn a_stream_that_says_an_event_twice_is_not() {
    let (events, outcome) = sound();
    for doubled in 0..events.len() {
        let mut events = events.clone();
        events.insert(doubled, events[doubled].clone());
        let arguments = matches!(&events[doubled], ItemEvent::Delta(delta) if delta.delta_content.starts_with('{'));
        assert_eq!(check_events(&events, &outcome).is_err(), !arguments, "twice {:?}", events[doubled]);
    }
}

#[test]
fn an_answer_that_differs_from_its_stream_is_not() {
    let (events, outcome) = sound();
    let answer = outcome.unwrap();
    let changed = |change: fn(&mut Answer)| {
        let mut answer = answer.clone();
        change(&mut answer);
        check_events(&events, &Ok(answer))
    };
    assert!(changed(|answer| answer.utterance.content = Some("other words".into())).is_err());
    assert!(changed(|answer| answer.utterance.thinking = None).is_err());
    assert!(changed(|answer| answer.utterance.calls.clear()).is_err());
    assert!(changed(|answer| answer.utterance.calls[0].gate = "write".into()).is_err());
    assert!(changed(|answer| answer.utterance.calls[0].args = json!("text")).is_err());
}
