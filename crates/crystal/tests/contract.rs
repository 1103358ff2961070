//! The rules that every answer must keep.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_crystal::{ToolChoice, contract};
use cantrip_loom::{Finish, GateCall, Message, Utterance};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use proptest::prelude::*;
use serde_json::json;

fn said(content: Option<&str>, ids: &[&str]) -> Utterance {
    let call = |id: &&str| GateCall { tool_call_id: (*id).to_owned(), gate: "read".to_owned(), args: json!({}) };
    Utterance {
        content: content.map(str::to_owned),
        calls: ids.iter().map(call).collect(),
        thinking: Some("hm".to_owned()),
        parts: None,
        model: "small".to_owned(),
        finish: Finish::Stop,
    }
}

#[test]
fn an_answer_with_neither_content_nor_calls_is_a_breach() {
    for content in [None, Some(""), Some(" \n")] {
        let breach = contract::find_violation(&said(content, &[])).unwrap();
        assert_eq!(breach.to_string(), "crystal returned neither content nor tool_calls");
        assert_code(&guarded(|rb| rb.error(breach.to_reply())).reply, codes::CRYSTAL_EMPTY);
    }
}

#[test]
fn equal_ids_in_one_answer_are_a_breach() {
    let breach = contract::find_violation(&said(None, &["a", "b", "a"])).unwrap();
    assert_eq!(breach, contract::ContractViolation::DuplicateCall { tool_call_id: "a".to_owned() });
    let reply = guarded(|rb| rb.error(breach.to_reply())).reply;
    assert!(reply.message().contains("duplicate tool call ID"));
    assert_code(&reply, codes::DUPLICATE_CALL);
}

#[test]
fn content_or_a_call_is_enough() {
    assert_eq!(contract::find_violation(&said(Some("hello"), &[])), None);
    assert_eq!(contract::find_violation(&said(None, &["a", "b"])), None);
}

#[test]
fn a_call_is_missing_only_where_one_was_required() {
    let text = said(Some("I would rather talk"), &[]);
    assert!(contract::is_call_missing(ToolChoice::Required, &text));
    assert!(!contract::is_call_missing(ToolChoice::Auto, &text));
    assert!(!contract::is_call_missing(ToolChoice::None, &text));
    assert!(!contract::is_call_missing(ToolChoice::Required, &said(None, &["a"])));
}

#[test]
fn a_demand_repeats_what_was_said_and_names_what_may_be_called() {
    let [repeated, demand] = contract::call_reminder(&said(Some("I would rather talk"), &[]), ["read", "done"]);
    let expected = Message::Assistant { content: Some("I would rather talk".into()), calls: vec![], parts: None };
    assert_eq!(repeated, expected);
    let Message::User { content } = demand else { panic!("{demand:?}") };
    assert!(content.text().contains("`read`, `done`"), "{content:?}");
}

proptest! {
    #[test]
    fn ids_are_found_to_be_doubled_exactly_if_they_are(ids in proptest::collection::vec("[ab]{1,3}", 1..6)) {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let distinct: std::collections::HashSet<_> = ids.iter().collect();
        prop_assert_eq!(contract::find_violation(&said(None, &ids)).is_some(), distinct.len() < ids.len());
    }
}
