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

#[test]
fn what_a_wire_wrote_is_written_once_and_only_for_that_wire() {
    let list = List::new();
    let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
    let mut count = 0;
    let mut asked = |list: &List, by: &Arc<str>| {
        let mut texts = Vec::new();
        let write = |message: &Message| {
            count += 1;
            serde_json::to_string(message)
        };
        let aside = [Message::User { content: "now".into() }];
        list.all().with_aside(aside).written(by, write, |text| texts.push(text.to_owned())).expect("it can be written");
        (texts, std::mem::take(&mut count))
    };
    let text = |at: usize, list: &List| serde_json::to_string(&**list.get(at).expect("there")).expect("written");
    let now = r#"{"role":"user","content":"now"}"#.to_owned();
    list.push(Message::User { content: "first".into() });
    assert_eq!(asked(&list, &one), (vec![text(0, &list), now.clone()], 2));
    list.push(Message::User { content: "second".into() });
    // The new one and what is said aside.
    assert_eq!(asked(&list, &one), (vec![text(0, &list), text(1, &list), now.clone()], 2));
    assert_eq!(asked(&list, &other), (vec![text(0, &list), text(1, &list), now], 3));
}

#[test]
fn a_text_too_long_to_be_kept_twice_is_written_each_time() {
    let list = List::new();
    let by: Arc<str> = "one".into();
    list.push(Message::User { content: "x".repeat(cantrip_crystal::limits::WRITTEN_BYTES_KEPT_MAX).into() });
    let mut count = 0;
    for _ in 0..2 {
        let write = |message: &Message| {
            count += 1;
            serde_json::to_string(message)
        };
        list.all().written(&by, write, |_| {}).expect("it can be written");
    }
    assert_eq!(count, 2);
}
