//! Tests of long texts: the number of upserts, and that holding and dropping them is safe.

#[allow(dead_code, reason = "each test crate uses its own part")]
mod common;

use std::thread;

use cantrip_stream::{Emission, Gradient, Item, Options, Processor, ResponseStatus, Text};
use common::{at, delta, done, event, response_start, start};

fn last_text(out: &[Emission]) -> Option<Text> {
    out.iter().rev().find_map(|emission| match emission {
        Emission::Upsert(upsert) => match &upsert.item {
            Item::Message { content, .. } | Item::Thinking { content, .. } => Some(content.clone()),
            Item::ToolCall(_) => None,
        },
        Emission::Turn(_) => None,
    })
}

#[test]
fn two_hundred_thousand_words_are_1657_upserts() {
    let mut processor = Processor::new(Options::default());
    let mut out = Vec::new();
    let mut send = |payload| processor.process(&event("t", payload), at(0), &mut out).unwrap();
    send(response_start());
    send(start("a", ""));
    let word = "word ";
    for _ in 0..200_000 {
        send(delta("a", word));
    }
    send(done("a", &word.repeat(200_000)));
    send(common::response_done(ResponseStatus::Completed));
    let upserts = out.iter().filter(|emission| matches!(emission, Emission::Upsert(_))).count();
    assert_eq!(upserts, 1_657);
}

#[test]
fn a_text_of_many_pieces_is_dropped_on_a_small_stack() {
    let mut processor = Processor::new(Options { gradient: Gradient::every_token(), ..Options::default() });
    let mut out = Vec::new();
    processor.process(&event("t", start("a", "")), at(0), &mut out).unwrap();
    let piece = event("t", delta("a", &format!(" {}", "x".repeat(600))));
    for _ in 0..13_000 {
        out.clear();
        processor.process(&piece, at(0), &mut out).unwrap();
    }
    let text = last_text(&out).unwrap();
    assert!(text.segments().count() > 10_000, "the test wants many pieces");
    assert_eq!(text.len(), 13_000 * 601);
    drop((processor, out));
    // This compiles only if a text, and so an emission, can be sent to another thread.
    let small = thread::Builder::new().stack_size(64 << 10);
    small.spawn(move || drop(text)).unwrap().join().unwrap();
}

#[test]
fn an_emission_keeps_its_text_while_the_item_grows() {
    let mut processor = Processor::new(Options { gradient: Gradient::every_token(), ..Options::default() });
    let mut out = Vec::new();
    processor.process(&event("t", start("a", "")), at(0), &mut out).unwrap();
    let mut texts = Vec::new();
    for word in 0..2_000 {
        // Some viewers keep an emission, some have dropped it when the next one comes.
        let kept = word % 7 != 0;
        processor.process(&event("t", delta("a", &format!(" {word}"))), at(0), &mut out).unwrap();
        if kept {
            texts.push((word, last_text(&out).unwrap()));
        }
        out.clear();
    }
    for (word, text) in &texts {
        let expected: String = (0..=*word).map(|word| format!(" {word}")).collect();
        assert_eq!(*text, expected.as_str());
    }
}
