//! Tests of each bound: the event is refused and nothing has changed, or the item ends with a reason.

#[allow(dead_code, reason = "each test crate uses its own part")]
mod common;

use cantrip_stream::{
    Emission, ErrorInfo, Gradient, Item, Options, Payload, Processor, ResponseError, ResponseStatus, SessionId, Status,
    StreamFault, Text, TurnEvent, Upsert, codes, limits,
};
use common::{at, cancelled, delta, done, done_call, event, output, response_done, response_start, start, start_call};

fn send(processor: &mut Processor, turn: &str, payload: Payload) -> Vec<Emission> {
    let mut out = Vec::new();
    processor.process(&event(turn, payload), at(0), &mut out).expect("within every limit");
    out
}

/// Returns the limit that refuses the event; nothing may be emitted.
fn refused(processor: &mut Processor, turn: &str, payload: Payload) -> &'static str {
    let mut out = Vec::new();
    match processor.process(&event(turn, payload), at(60_000), &mut out) {
        Err(StreamFault::Limit { limit, .. }) => {
            assert!(out.is_empty(), "a refused event emits nothing, not even a timer that is due");
            limit
        }
        Err(StreamFault::Session { .. }) => panic!("the session is the turn's"),
        Ok(()) => panic!("not refused"),
    }
}

fn only_upsert(emissions: &[Emission]) -> &Upsert {
    match emissions {
        [Emission::Upsert(upsert)] => upsert,
        _ => panic!("not one upsert: {} emissions", emissions.len()),
    }
}

fn content(upsert: &Upsert) -> &Text {
    match &upsert.item {
        Item::Message { content, .. } | Item::Thinking { content, .. } => content,
        Item::ToolCall(call) => &call.output.as_ref().expect("an output").text,
    }
}

fn is_too_large(upsert: &Upsert) -> bool {
    matches!(&upsert.status, Status::Error { code, .. } if &**code == codes::ITEM_TOO_LARGE)
}

#[test]
fn one_more_open_turn_than_the_limit_is_refused_until_another_ends() {
    let mut processor = Processor::new(Options::default());
    for turn in 0..limits::OPEN_TURNS_MAX {
        send(&mut processor, &format!("t{turn}"), response_start());
    }
    send(&mut processor, "t0", start("a", "unsent"));
    let deadline = processor.next_deadline();
    for payload in [response_start(), start("a", ""), delta("a", "x"), cancelled("a")] {
        assert_eq!(refused(&mut processor, "more", payload), "OPEN_TURNS_MAX");
    }
    assert_eq!((processor.open_turns(), processor.next_deadline()), (limits::OPEN_TURNS_MAX, deadline));
    // The producer reports the turn that it could not show.
    let failed = ResponseError { error: ErrorInfo::new("WA-VAL-I-003", "too many turns") };
    let out = send(&mut processor, "more", Payload::ResponseError(failed));
    assert!(matches!(&out[..], [Emission::Turn(TurnEvent::Error { .. })]));
    // An ended turn cannot start again while the limit is reached, and can after another turn ends.
    assert_eq!(refused(&mut processor, "more", response_start()), "OPEN_TURNS_MAX");
    send(&mut processor, "t1", response_done(ResponseStatus::Completed));
    send(&mut processor, "more", response_start());
    assert_eq!(processor.open_turns(), limits::OPEN_TURNS_MAX);
}

#[test]
fn one_more_item_than_the_limit_is_refused_and_known_items_go_on() {
    let mut processor = Processor::new(Options { gradient: Gradient::every_token(), ..Options::default() });
    send(&mut processor, "t", start("first", ""));
    send(&mut processor, "t", start_call("f", "known"));
    for item in 2..limits::TURN_ITEMS_MAX {
        let id = format!("i{item}");
        let payload = match item % 4 {
            0 => start(&id, ""),
            1 => start_call(&id, &id),
            2 => done(&id, "x"),
            _ => cancelled(&id),
        };
        send(&mut processor, "t", payload);
    }
    for payload in [
        start("more", ""),
        start_call("more", "more"),
        done("more", "x"),
        done_call("more", "more", "k"),
        cancelled("more"),
    ] {
        assert_eq!(refused(&mut processor, "t", payload), "TURN_ITEMS_MAX");
    }
    assert_eq!(content(only_upsert(&send(&mut processor, "t", delta("first", "x")))), &"x");
    assert_eq!(content(only_upsert(&send(&mut processor, "t", output("o", "known", "out")))), &"out");
    assert_eq!(send(&mut processor, "t", done("first", "y")).len(), 1);
    assert_eq!(send(&mut processor, "other", start("more", "")).len(), 0, "another turn has its own items");
}

#[test]
fn calls_under_one_item_id_are_bounded_like_items() {
    let mut processor = Processor::new(Options::default());
    for call in 0..limits::TURN_ITEMS_MAX {
        send(&mut processor, "t", start_call("f", &format!("c{call}")));
    }
    assert_eq!(refused(&mut processor, "t", start_call("f", "more")), "TURN_ITEMS_MAX");
    // Both ways of naming an item affect every call under it.
    assert_eq!(send(&mut processor, "t", cancelled("f")).len(), limits::TURN_ITEMS_MAX);
}

#[test]
fn one_more_held_output_than_the_limit_is_refused_until_a_call_takes_one() {
    let mut processor = Processor::new(Options::default());
    for call in 0..limits::HELD_OUTPUTS_MAX {
        send(&mut processor, "t", output("o", &format!("c{call}"), "x"));
    }
    assert_eq!(refused(&mut processor, "t", output("o", "more", "x")), "HELD_OUTPUTS_MAX");
    // A second output of a held call would be dropped anyway, so it does not count against the limit.
    send(&mut processor, "t", output("o", "c0", "again"));
    assert_eq!(processor.dropped().duplicate_output, 1);
    assert_eq!(send(&mut processor, "t", start_call("f", "c0")).len(), 2);
    send(&mut processor, "t", output("o", "more", "x"));
    assert_eq!(send(&mut processor, "t", response_done(ResponseStatus::Completed)).len(), limits::HELD_OUTPUTS_MAX + 1);
}

#[test]
fn held_outputs_are_bounded_by_their_text() {
    let half = "x".repeat(limits::HELD_OUTPUT_BYTES_MAX / 2);
    let mut processor = Processor::new(Options::default());
    send(&mut processor, "t", output("o", "c1", &half));
    send(&mut processor, "t", output("o", "c2", &half));
    assert_eq!(refused(&mut processor, "t", output("o", "c3", "x")), "HELD_OUTPUT_BYTES_MAX");
    send(&mut processor, "t", start_call("f", "c1"));
    send(&mut processor, "t", output("o", "c3", &half));
    send(&mut processor, "t", cancelled("o"));
    send(&mut processor, "t", output("p", "c4", &half));
    // The same bound applies to the first event of a turn.
    let too_much = half.repeat(2) + "x";
    assert_eq!(refused(&mut processor, "other", output("o", "c", &too_much)), "HELD_OUTPUT_BYTES_MAX");
    assert_eq!(processor.open_turns(), 1);
}

#[test]
fn only_the_latest_ended_turns_are_remembered() {
    let mut processor = Processor::new(Options::default());
    for turn in 0..=limits::ENDED_TURNS_MAX {
        send(&mut processor, &format!("t{turn}"), response_done(ResponseStatus::Completed));
    }
    send(&mut processor, "t1", start("a", "x"));
    assert_eq!((processor.dropped().late, processor.open_turns()), (1, 0));
    send(&mut processor, "t0", start("a", "x"));
    assert_eq!((processor.dropped().late, processor.open_turns()), (1, 1), "the oldest was forgotten");
    // A turn that started again is no longer among the ended ones, and its next end is the newest.
    send(&mut processor, "t1", response_start());
    send(&mut processor, "t1", response_done(ResponseStatus::Completed));
    for turn in 0..limits::ENDED_TURNS_MAX - 1 {
        send(&mut processor, &format!("u{turn}"), response_done(ResponseStatus::Completed));
    }
    send(&mut processor, "t1", start("a", "x"));
    assert_eq!(processor.dropped().late, 2);
}

#[test]
fn text_beyond_the_limit_ends_its_item_with_what_fits() {
    let max = limits::ITEM_TEXT_BYTES_MAX;
    // One byte below the limit, so that a character of two bytes does not fit.
    let nearly = "x".repeat(max - 1);
    let mut processor = Processor::new(Options::default());
    send(&mut processor, "t", start("a", ""));
    send(&mut processor, "t", delta("a", &nearly));
    let out = send(&mut processor, "t", delta("a", "éa"));
    let upsert = only_upsert(&out);
    assert!(is_too_large(upsert));
    assert_eq!(content(upsert).len(), max - 1);
    assert_eq!(send(&mut processor, "t", delta("a", "late")), []);
    assert_eq!(processor.dropped().orphan_delta, 1);
    assert_eq!(processor.next_deadline(), None);
    // A text exactly at the limit is accepted.
    send(&mut processor, "t", start("b", &nearly));
    assert_eq!(send(&mut processor, "t", delta("b", "x")), []);
    let out = send(&mut processor, "t", delta("b", "y"));
    assert!(is_too_large(only_upsert(&out)));
    assert_eq!(content(only_upsert(&out)).len(), max);
}

#[test]
fn every_way_to_give_an_item_its_text_has_the_limit() {
    let max = limits::ITEM_TEXT_BYTES_MAX;
    let too_much = "x".repeat(max + 1);
    let mut processor = Processor::new(Options::default());
    send(&mut processor, "t", start_call("f", "c"));
    for payload in [start("a", &too_much), done("b", &too_much), output("o", "c", &too_much)] {
        let out = send(&mut processor, "t", payload);
        let upsert = only_upsert(&out);
        assert!(is_too_large(upsert));
        assert_eq!(content(upsert).len(), max);
    }
    assert_eq!(send(&mut processor, "t", response_done(ResponseStatus::Completed)).len(), 1, "all of them had ended");
}

#[test]
fn an_event_of_another_session_is_refused_also_for_an_ended_turn() {
    let mut processor = Processor::new(Options::default());
    send(&mut processor, "t", start("a", "x"));
    let mut foreign = event("t", delta("a", "y"));
    foreign.session_id = SessionId::new("other").unwrap();
    let mut out = Vec::new();
    let fault = processor.process(&foreign, at(60_000), &mut out).unwrap_err();
    assert!(matches!(fault, StreamFault::Session { .. }));
    assert!(out.is_empty());
    send(&mut processor, "t", response_done(ResponseStatus::Completed));
    foreign.payload = response_start();
    assert!(matches!(processor.process(&foreign, at(0), &mut out), Err(StreamFault::Session { .. })));
    assert_eq!(processor.open_turns(), 0);
}
