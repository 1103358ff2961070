//! How do tests show that every code really occurs?
//!
//! They assert codes through this module, which also appends each code to the file that `CANTRIP_PROVOKED` names, if
//! it is set. Afterwards [`coverage`] compares this file with the registry and with the committed list of codes that
//! no test provokes yet. Searching the tests for names of codes was rejected: it finds words, not behaviour.
//!
//! A code counts only if the code under test produced it by itself. A test that builds a reply to check how it is
//! serialized compares with `assert_eq!`.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;

use cantrip_canon::{IdSource, ManualClock, Redactor, Timestamp};
use futures_util::FutureExt;
use serde_json::Value;

use crate::builder::{Reply, ReplyBuilder};
use crate::code::{AnyCode, Code, ReplyType};
use crate::envelope::status;
use crate::guard::{Call, Guard, GuardedReply};
use cantrip_trace::TraceId;

/// A wrapper whose clock stays at the epoch.
pub fn guard() -> Guard {
    let clock = Arc::new(ManualClock::starting(Timestamp::EPOCH));
    Guard::new(clock, Arc::new(IdSource::seeded(0)), Redactor::default())
}

/// Runs a tool that never waits inside the wrapper and returns its reply.
pub fn guarded(tool: impl FnOnce(ReplyBuilder) -> Reply + Send) -> GuardedReply {
    guard()
        .call(Call::surface("test"), |rb| async { tool(rb) })
        .now_or_never()
        .expect("a tool that waits for nothing is ready at once")
}

/// Asserts that the behaviour under test ended in this code, and records the code.
#[track_caller]
pub fn assert_code<T>(reply: &Reply, code: Code<T>) {
    assert_any(reply, code.any());
}

/// Asserts that the behaviour under test ended in this code, and records the code.
#[track_caller]
pub fn assert_any(reply: &Reply, code: AnyCode) {
    assert_eq!(reply.code(), code, "{}", reply.message());
    note(code);
}

/// Asserts that this is the complete and consistent envelope of a reply with this code, and records the code.
#[track_caller]
pub fn assert_envelope(envelope: &Value, code: AnyCode) {
    assert_eq!(envelope["code"], code.as_str(), "{envelope}");
    let keys: Vec<_> = envelope.as_object().into_iter().flat_map(|object| object.keys()).collect();
    assert_eq!(keys, ["status", "reply_type", "code", "message", "data", "meta", "error"], "{envelope}");
    let reply_type = code.reply_type();
    assert_eq!(envelope["status"], status(reply_type), "{envelope}");
    assert_eq!(envelope["reply_type"], reply_type.as_str(), "{envelope}");
    assert!(envelope["data"].is_object(), "{envelope}");
    for field in code.row().fields {
        assert!(envelope["data"].get(field).is_some(), "data lacks {field}: {envelope}");
    }
    let trace_id = envelope["meta"]["trace_id"].as_str().map(str::parse::<TraceId>);
    assert!(matches!(trace_id, Some(Ok(_))), "{envelope}");
    assert!(envelope["meta"]["duration_ms"].is_u64(), "{envelope}");
    match reply_type {
        ReplyType::Success => assert!(envelope["error"].is_null(), "{envelope}"),
        ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => {
            assert_eq!(envelope["error"]["code"], envelope["code"], "{envelope}");
            assert_eq!(envelope["error"]["message"], envelope["message"], "{envelope}");
            assert_eq!(envelope["error"]["retry"].as_str(), code.advice().map(|advice| advice.as_str()), "{envelope}");
        }
    }
    note(code);
}

/// Asserts that this is the reply of a call as records and events store it, with its type and its code, and records
/// the code.
#[track_caller]
pub fn assert_recorded(reply: &Value, code: AnyCode) {
    assert_eq!(reply["code"], code.as_str(), "{reply}");
    assert_eq!(reply["type"], code.reply_type().as_str(), "{reply}");
    note(code);
}

/// Appends the code with one short write, so that lines of tests that run concurrently do not mix.
#[track_caller]
fn note(code: AnyCode) {
    let Some(path) = std::env::var_os("CANTRIP_PROVOKED") else { return };
    let noted = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(format!("{code}\n").as_bytes()));
    if let Err(error) = noted {
        panic!("{code} cannot be noted in {}: {error}", path.display());
    }
}

/// Checks that the provoked and the pending codes together are exactly the registry, and that no code is in both lists.
/// Both have one code per line; the pending list is sorted without duplicates, so that it can only shrink line by line.
pub fn coverage(provoked: &str, pending: &str) -> Result<(), String> {
    let mut faults = Vec::new();
    let provoked = read("provoked", provoked, &mut faults);
    let listed = read("pending", pending, &mut faults);
    if !listed.is_sorted_by(|earlier, later| earlier < later) {
        faults.push("the pending codes are not sorted, or one stands twice".to_owned());
    }
    let (provoked, pending): (BTreeSet<_>, BTreeSet<_>) =
        (provoked.into_iter().collect(), listed.into_iter().collect());
    for code in provoked.intersection(&pending) {
        faults.push(format!("{code} ({}) is provoked: take it off the pending codes", code.row().key));
    }
    for code in AnyCode::all().filter(|code| !provoked.contains(code) && !pending.contains(code)) {
        faults.push(format!("{code} ({}) is provoked by no test", code.row().key));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn read(list: &str, text: &str, faults: &mut Vec<String>) -> Vec<AnyCode> {
    let read = |line: &str| match AnyCode::parse(line) {
        Ok(code) => Some(code),
        Err(fault) => {
            faults.push(format!("{list}: {fault}"));
            None
        }
    };
    text.lines().filter_map(read).collect()
}
