//! Tests of the replies that a tool may build, and of the result when it builds an invalid one.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;

use cantrip_canon::{Currency, IdSource, Money, RunId, Timestamp};
use cantrip_reply::testing::{assert_code, coverage, guarded};
use cantrip_reply::{
    AnyCode, CodeFaultKind, FORBIDDEN_KEYS, Failure, Invalid, Refusal, Reply, ReplyBuilder, ReplyDraft, ReplyType,
    Success, codes,
};
use serde_json::{Value, json};

#[test]
fn data_has_the_fields_of_the_message_first_and_then_what_was_added() {
    let reply = guarded(|rb| rb.invalid(codes::gate_unknown("fetsh").data(json!({"nearest": "fetch"})))).reply;
    assert_eq!(reply.reply_type(), ReplyType::Invalid);
    assert_eq!(reply.message(), "gate not available: fetsh is not in this circle");
    assert_eq!(Value::from(reply.data().clone()).to_string(), r#"{"gate":"fetsh","nearest":"fetch"}"#);
}

#[test]
fn a_field_takes_text_numbers_money_ids_times_and_json() {
    let run: RunId = IdSource::seeded(1).next(Timestamp::EPOCH);
    let money = Money::new(500_000, Currency::USD).unwrap();
    let shown = |filled: ReplyDraft<Invalid>| guarded(|rb| rb.invalid(filled)).reply.message();
    assert_eq!(shown(codes::not_found("run", run)), format!("run {run} not found"));
    assert_eq!(shown(codes::limit("batch", 51_usize, 50_u8)), "batch is 51, the limit is 50");
    assert_eq!(shown(codes::limit("budget", money, json!({"a": 1}))), "budget is 0.50 USD, the limit is {\"a\":1}");
    assert_eq!(
        guarded(|rb| rb.denied(codes::expired("auth_1", Timestamp::EPOCH))).reply.message(),
        "authorization auth_1 expired at 1970-01-01T00:00:00.000Z"
    );
}

#[test]
fn data_that_is_not_json_is_an_error_that_says_which_reply_it_was() {
    let replies = [
        guarded(|rb| rb.success(codes::read("scores").value(f64::NAN))).reply,
        guarded(|rb| rb.success(codes::read("scores").data(json_of_keys()))).reply,
        guarded(|rb| rb.success(codes::read(f32::INFINITY))).reply,
        guarded(|rb| rb.success(ReplyDraft::dynamic("WA-READ-S-001", BTreeMap::from([("what", f64::NAN)])).unwrap()))
            .reply,
    ];
    for reply in &replies {
        assert_code(reply, codes::NOT_SERIALISABLE);
        assert_eq!(reply.data()["of"], "WA-READ-S-001");
        assert_eq!(reply.data()["tool"], "test");
    }
}

/// A map whose keys are not strings.
fn json_of_keys() -> impl serde::Serialize {
    BTreeMap::from([((1, 2), "a pair")])
}

#[test]
fn a_key_that_would_be_a_second_meaning_is_a_misuse_of_the_code() {
    for key in FORBIDDEN_KEYS {
        let reply = guarded(|rb| rb.success(codes::read("a").data(json!({ key: true })))).reply;
        assert_code(&reply, codes::CODE_MISUSED);
        assert_eq!(reply.data()["code"], "WA-READ-S-001", "{key}");
        assert!(!reply.data().contains_key(key));
    }
    let inside = guarded(|rb| rb.success(codes::gate_ok("docs").value(json!({"ok": true})))).reply;
    assert_eq!(inside.code(), codes::GATE_OK, "what a gate gave is its own");
}

#[test]
fn data_cannot_change_what_was_said_before_nor_be_no_object() {
    let misused = [
        guarded(|rb| rb.success(codes::read("a").data(json!({"what": "b"})))).reply,
        guarded(|rb| rb.success(codes::read("a").value(1).value(2))).reply,
        guarded(|rb| rb.success(codes::read("a").data([1, 2]))).reply,
    ];
    for reply in &misused {
        assert_code(reply, codes::CODE_MISUSED);
    }
    let same = guarded(|rb| rb.success(codes::read("a").data(json!({"what": "a"})).data(None::<Value>))).reply;
    assert_eq!(same.code(), codes::READ);
}

#[test]
fn a_code_known_at_run_time_needs_the_right_type_and_all_fields() {
    let fault = |code: &str, fields: Value| ReplyDraft::<Failure>::dynamic(code, fields).unwrap_err().fault();
    assert_eq!(fault("MCP-DB-E-999", json!({})), CodeFaultKind::Unregistered);
    assert_eq!(fault("nonsense", json!({})), CodeFaultKind::Format);
    assert_eq!(fault("WA-READ-I-001", json!({"path": "a"})), CodeFaultKind::OtherType);
    assert_eq!(fault("MCP-DB-E-001", json!({"why": "locked"})), CodeFaultKind::FieldMissing);
    assert_eq!(fault("MCP-DB-E-001", json!(null)), CodeFaultKind::FieldMissing);
    assert_eq!(Refusal::dynamic("WA-READ-S-001", json!({"what": "a"})).unwrap_err().fault(), CodeFaultKind::OtherType);
    assert_eq!(ReplyDraft::<Success>::dynamic("WA-READ-S-001", json!({"what": "a"})).unwrap().code(), codes::READ);
}

#[test]
fn a_fault_of_a_code_known_at_run_time_becomes_the_reply() {
    fn tool(rb: ReplyBuilder, code: &str) -> Reply {
        match ReplyDraft::dynamic(code, json!({"cause": "locked"})) {
            Ok(filled) => rb.error(filled),
            Err(fault) => rb.refuse(fault.into()),
        }
    }
    assert_eq!(guarded(|rb| tool(rb, "MCP-DB-E-001")).reply.code(), codes::STORE_UNAVAILABLE);
    let reply = guarded(|rb| tool(rb, "MCP-DB-I-001")).reply;
    assert_code(&reply, codes::CODE_MISUSED);
    assert_eq!(reply.message(), "test used MCP-DB-I-001: it is not registered");
}

#[test]
fn the_first_refusal_inside_a_tool_is_its_reply() {
    fn open(path: &str) -> Result<String, Refusal> {
        match path {
            "secret" => Err(codes::read_refused(path, "read", "restrict").into()),
            "broken" => Err(codes::io_failed("read", path, "input/output error"))?,
            "wrong" => Err(Refusal::dynamic("WA-READ-D-001", json!({})).unwrap_err())?,
            _ => Err(codes::file_missing(path))?,
        }
    }
    let code = |path: &str| {
        let refusal = open(path).unwrap_err();
        let announced = refusal.code();
        let reply = guarded(|rb| rb.refuse(refusal)).reply;
        assert_eq!(reply.code(), announced);
        announced
    };
    assert_eq!(code("secret"), codes::READ_REFUSED);
    assert_eq!(code("broken"), codes::IO_FAILED);
    assert_eq!(code("wrong"), codes::CODE_MISUSED);
    assert_eq!(code("absent"), codes::FILE_MISSING);
}

fn lines<'a>(codes: impl IntoIterator<Item = &'a str>) -> String {
    codes.into_iter().map(|code| format!("{code}\n")).collect()
}

#[test]
fn coverage_wants_every_code_provoked_or_pending_and_none_both() {
    let mut all: Vec<_> = AnyCode::all().map(AnyCode::as_str).collect();
    all.sort_unstable();
    let (provoked, pending) = all.split_at(5);
    assert_eq!(coverage(&lines(provoked.to_vec()), &lines(pending.to_vec())), Ok(()));
    assert_eq!(coverage(&lines([provoked, provoked].concat()), &lines(pending.to_vec())), Ok(()), "provoked twice");

    let missing = coverage(&lines(provoked[1..].to_vec()), &lines(pending.to_vec())).unwrap_err();
    assert!(missing.contains(provoked[0]) && missing.lines().count() == 1, "{missing}");
    let both = coverage(&lines(all.clone()), &lines([pending[0]])).unwrap_err();
    assert!(both.contains(pending[0]) && both.lines().count() == 1, "{both}");
    let unknown = coverage(&lines(all.clone()), "WA-READ-S-999\n").unwrap_err();
    assert!(unknown.contains("WA-READ-S-999"), "{unknown}");
    let unsorted: Vec<_> = pending.iter().rev().copied().collect();
    assert!(coverage(&lines(provoked.to_vec()), &lines(unsorted)).is_err());
    let doubled: Vec<_> = pending.iter().copied().chain(pending.last().copied()).collect();
    assert!(coverage(&lines(provoked.to_vec()), &lines(doubled)).is_err());
}

#[test]
fn the_committed_pending_codes_are_registered_sorted_and_without_what_is_provoked_here() {
    let pending = include_str!("../codes-not-yet-provoked.txt");
    let listed: Vec<_> = pending.lines().collect();
    assert!(listed.is_sorted_by(|earlier, later| earlier < later));
    let provoked_elsewhere: Vec<_> =
        AnyCode::all().map(AnyCode::as_str).filter(|code| !listed.contains(code)).collect();
    assert_eq!(coverage(&lines(provoked_elsewhere.clone()), pending), Ok(()));
    for code in [codes::CRASH, codes::NOT_SERIALISABLE, codes::TOO_LARGE, codes::CODE_MISUSED, codes::TIMED_OUT] {
        assert!(provoked_elsewhere.contains(&code.as_str()), "{code} is provoked by this crate's tests");
    }
}
