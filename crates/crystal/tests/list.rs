//! One list, many requests.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::sync::Arc;
use std::thread;

use cantrip_crystal::{MessageLog, Messages};
use cantrip_loom::Message;
use proptest::prelude::*;

fn user(text: impl Into<String>) -> Message {
    Message::User { content: text.into().into() }
}

fn texts<'a>(messages: impl Iterator<Item = &'a Message>) -> Vec<String> {
    messages
        .map(|message| match message {
            Message::User { content } => content.text(),
            other @ (Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. }) => panic!("{other:?}"),
        })
        .collect()
}

proptest! {
    #[test]
    fn a_request_keeps_the_list_it_was_made_with(lengths in proptest::collection::vec(0_usize..80, 1..8)) {
        let list = MessageLog::new();
        let mut expected = Vec::new();
        let mut requests = Vec::new();
        for length in lengths {
            for _ in 0..length {
                expected.push(expected.len().to_string());
                list.push(user(expected.last().unwrap()));
            }
            requests.push((list.all(), expected.len()));
        }
        for (request, length) in requests {
            prop_assert_eq!(texts(request.iter()), &expected[..length]);
            prop_assert!(request.get(length).is_none());
        }
    }
}

#[test]
fn what_is_said_aside_enters_no_list() {
    let list = MessageLog::new();
    list.push(user("a"));
    let demanded = list.all().with_extra([user("b"), user("c")]);
    assert_eq!(texts(demanded.iter()), ["a", "b", "c"]);
    assert_eq!((demanded.len(), demanded.list_length(), list.len()), (3, 1, 1));
    list.push(user("d"));
    assert_eq!(texts(demanded.iter()), ["a", "b", "c"]);
    assert_eq!(texts(list.all().iter()), ["a", "d"]);
}

#[test]
fn a_message_is_shared_and_not_copied() {
    let (list, message) = (MessageLog::new(), Arc::new(user("a")));
    list.push(Arc::clone(&message));
    assert!(Arc::ptr_eq(list.get(0).unwrap(), &message));
}

#[test]
fn a_reader_sees_a_whole_prefix_while_others_write() {
    let list = MessageLog::new();
    thread::scope(|scope| {
        for writer in 0..4 {
            let list = list.clone();
            scope.spawn(move || {
                for n in 0..500 {
                    list.push(user(format!("{writer}:{n}")));
                }
            });
        }
        let mut last = 0;
        while last < 2_000 {
            let seen = list.all();
            assert!(seen.len() >= last && seen.iter().count() == seen.len());
            last = seen.len();
        }
    });
}

#[test]
fn what_a_wire_wrote_is_written_once_and_only_for_that_wire() {
    let list = MessageLog::new();
    let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
    let mut count = 0;
    let mut asked = |messages: Messages, by: &Arc<str>| {
        let write = |message: &Message| {
            count += 1;
            serde_json::to_string(message)
        };
        let aside = [Message::User { content: "now".into() }];
        let pieces = messages.with_extra(aside).render_with(by, write).expect("it can be written");
        let text: String = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
        (text, std::mem::take(&mut count))
    };
    let text = |list: &MessageLog, length: usize| {
        let now = Message::User { content: "now".into() };
        let messages = (0..length).map(|at| &**list.get(at).expect("there")).chain([&now]);
        messages.map(|message| serde_json::to_string(message).expect("written")).collect::<Vec<_>>().join(",")
    };
    list.push(user("first".to_owned()));
    assert_eq!(asked(list.all(), &one), (text(&list, 1), 2));
    list.push(user("second".to_owned()));
    // The new message and the extra one.
    assert_eq!(asked(list.all(), &one), (text(&list, 2), 2));
    assert_eq!(asked(list.all(), &other), (text(&list, 2), 3));
    // Long enough for several pieces, one of them with a message that is never kept.
    for n in 0..200 {
        list.push(user(format!("{n}").repeat(500)));
    }
    list.push(user("x".repeat(cantrip_crystal::limits::WRITTEN_BYTES_KEPT_MAX)));
    list.push(user("last".to_owned()));
    assert_eq!(asked(list.all(), &one).0, text(&list, 204));
    assert_eq!(asked(list.all(), &one), (text(&list, 204), 2));
    // A shorter list is serialized again, and the longer one is still cached.
    assert_eq!(asked(list.first(2), &one), (text(&list, 2), 3));
    assert_eq!(asked(list.all(), &one), (text(&list, 204), 2));
}

#[test]
fn a_text_too_long_to_be_kept_twice_is_written_each_time() {
    let list = MessageLog::new();
    let by: Arc<str> = "one".into();
    list.push(Message::User { content: "x".repeat(cantrip_crystal::limits::WRITTEN_BYTES_KEPT_MAX).into() });
    let mut count = 0;
    for _ in 0..2 {
        let write = |message: &Message| {
            count += 1;
            serde_json::to_string(message)
        };
        list.all().render_with(&by, write).expect("it can be written");
    }
    assert_eq!(count, 2);
}
