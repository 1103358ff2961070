//! One list, many requests.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::sync::Arc;
use std::thread;

use cantrip_crystal::List;
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
        let list = List::new();
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
    let list = List::new();
    list.push(user("a"));
    let demanded = list.all().with_aside([user("b"), user("c")]);
    assert_eq!(texts(demanded.iter()), ["a", "b", "c"]);
    assert_eq!((demanded.len(), demanded.list_length(), list.len()), (3, 1, 1));
    list.push(user("d"));
    assert_eq!(texts(demanded.iter()), ["a", "b", "c"]);
    assert_eq!(texts(list.all().iter()), ["a", "d"]);
}

#[test]
fn a_message_is_shared_and_not_copied() {
    let (list, message) = (List::new(), Arc::new(user("a")));
    list.push(Arc::clone(&message));
    assert!(Arc::ptr_eq(list.get(0).unwrap(), &message));
}

#[test]
fn a_reader_sees_a_whole_prefix_while_others_write() {
    let list = List::new();
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
