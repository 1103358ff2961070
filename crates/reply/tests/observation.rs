//! Tests of the observations of an entity, byte for byte.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::Redactor;
use cantrip_reply::limits::{MESSAGE_FIELD_CHARS_MAX, OBSERVATION_TEXT_BYTES_MAX, VERIFY_RULE_CHARS_MAX};
use cantrip_reply::testing::guarded;
use cantrip_reply::{GateRequest, GuardedReply, Observation, Reply, ReplyBuilder, ReplyException, codes, refusal_text};
use serde_json::{Value, json};

fn text(tool: impl FnOnce(ReplyBuilder) -> Reply + Send) -> String {
    let GuardedReply { reply, meta } = guarded(tool);
    let text = refusal_text(&reply, &meta).expect("a refusal has a text");
    text.replace(&meta.trace_id().to_string(), "<trace_id>")
}

fn observed(tool: impl FnOnce(ReplyBuilder) -> Reply + Send) -> Observation {
    let GuardedReply { reply, meta } = guarded(tool);
    let asked =
        GateRequest { gate: "read".into(), args: json!({"path": "a.txt"}), tool_call_id: Some("call_1".into()) };
    Observation::from_reply(asked, &reply, &meta, &Redactor::default())
}

#[test]
fn a_refusal_names_its_code_says_what_happened_and_what_to_do() {
    assert_eq!(
        text(|rb| rb.invalid(codes::file_missing("a.txt"))),
        "Invalid WA-READ-I-001: a.txt does not exist. Fix the arguments and retry."
    );
    assert_eq!(
        text(|rb| rb.denied(codes::read_refused("../a", "read", "root"))),
        "Denied EN-READ-D-001: ../a is outside what read may read: root. Do not retry; ask for scope."
    );
    assert_eq!(
        text(|rb| rb.error(codes::gate_failed("docs", "exit status 3"))),
        "Error MCP-EXEC-E-001: gate docs failed: exit status 3. Stop; trace id <trace_id>."
    );
    assert_eq!(
        text(|rb| rb.error(codes::store_unavailable("locked"))),
        "Error MCP-DB-E-001: the store cannot be reached: locked. Temporary; do not retry at once; trace id <trace_id>."
    );
}

#[test]
fn any_type_takes_the_sentence_of_its_codes_advice() {
    assert_eq!(
        text(|rb| rb.invalid(codes::append_only("delete"))),
        "Invalid WA-LOG-I-001: loom is append-only: delete refused. Stop; trace id <trace_id>."
    );
    assert_eq!(
        text(|rb| rb.invalid(codes::busy("entity", "ent_1", "run_1"))),
        "Invalid CT-GATE-I-004: entity ent_1 is held by run_1. Temporary; do not retry at once; trace id <trace_id>."
    );
    assert_eq!(
        text(|rb| rb.denied(codes::reconcile_first("res_1"))),
        "Denied EN-GATE-D-012: res_1 of an earlier attempt is not reconciled. Stop; trace id <trace_id>."
    );
}

#[test]
fn a_field_is_shown_on_one_line_without_its_full_stop() {
    let shown = |detail: &str| guarded(|rb| rb.error(codes::gate_failed("docs", detail))).reply.message();
    assert_eq!(shown("no such table."), "gate docs failed: no such table");
    assert_eq!(shown("no such table.\r\n"), "gate docs failed: no such table");
    assert_eq!(shown("line 1\n  line 2\tend"), "gate docs failed: line 1  line 2 end");
    assert_eq!(shown("\u{1b}[31mred\u{7}\u{0}\u{9b}"), "gate docs failed: [31mred");
    assert_eq!(shown(""), "gate docs failed: ");
}

#[test]
fn a_fault_of_the_whole_value_is_told_at_the_top() {
    let reply = guarded(|rb| rb.invalid(codes::schema("the body", "", "it must be an object"))).reply;
    assert_eq!(reply.message(), "the body does not fit its schema at the top: it must be an object");
}

#[test]
fn a_long_field_is_cut_by_characters_and_data_keeps_it_whole() {
    let long = "\u{e4}".repeat(MESSAGE_FIELD_CHARS_MAX + 1);
    let reply = guarded(|rb| rb.invalid(codes::file_missing(&long))).reply;
    assert_eq!(reply.message(), format!("{} does not exist", "\u{e4}".repeat(MESSAGE_FIELD_CHARS_MAX)));
    assert_eq!(reply.data()["path"], Value::from(long));
}

#[test]
fn the_output_of_a_verifier_has_more_room_than_another_field() {
    let output = "x".repeat(VERIFY_RULE_CHARS_MAX + 1);
    let shown = text(|rb| rb.invalid(codes::done_malformed(&output)));
    assert_eq!(
        shown,
        format!(
            "Invalid WA-VAL-I-002: done was not accepted: {}. Fix the arguments and retry.",
            "x".repeat(VERIFY_RULE_CHARS_MAX)
        )
    );
    let reply = guarded(|rb| rb.invalid(codes::schema("body", "/a", &output))).reply;
    assert_eq!(reply.message().matches('x').count(), MESSAGE_FIELD_CHARS_MAX);
}

#[test]
fn the_whole_text_is_cut_at_a_character_and_keeps_its_advice() {
    for letter in ["x", "\u{e4}", "\u{20ac}", "\u{1d11e}"] {
        let rule = letter.repeat(VERIFY_RULE_CHARS_MAX);
        let shown = text(|rb| rb.invalid(codes::done_malformed(&rule)));
        assert!(shown.len() <= OBSERVATION_TEXT_BYTES_MAX, "{} bytes", shown.len());
        assert!(shown.starts_with("Invalid WA-VAL-I-002: done was not accepted: "), "{shown}");
        assert!(shown.ends_with(&format!("{letter}. Fix the arguments and retry.")), "{shown}");
        if letter.len() > 1 {
            assert!(shown.len() > OBSERVATION_TEXT_BYTES_MAX - letter.len(), "more was cut than had to be");
        }
    }
}

#[test]
fn an_observation_of_a_success_has_what_the_gate_gave() {
    for value in [json!("text"), json!(null), json!([1, {"ok": true}])] {
        let observation = observed(|rb| rb.success(codes::read("a.txt").value(&value)));
        assert_eq!(observation.result, value);
        assert!(!observation.is_error);
    }
    let written = observed(|rb| rb.success(codes::written(3, "a.txt")));
    assert_eq!(written.result, json!({"bytes": 3, "path": "a.txt"}), "without a value, its data");
}

#[test]
fn an_observation_is_written_with_its_keys_in_order() {
    let observation = observed(|rb| rb.invalid(codes::file_missing("a.txt")));
    assert_eq!(
        serde_json::to_string(&observation).unwrap(),
        r#"{"gate":"read","args":{"path":"a.txt"},"result":"Invalid WA-READ-I-001: a.txt does not exist. Fix the arguments and retry.","is_error":true,"tool_call_id":"call_1","reply":{"type":"I","code":"WA-READ-I-001"}}"#
    );
    let GuardedReply { reply, meta } = guarded(|rb| rb.success(codes::gate_ok("echo").value("hi")));
    let asked = GateRequest { gate: "echo".into(), args: json!({}), tool_call_id: None };
    assert_eq!(
        serde_json::to_string(&Observation::from_reply(asked, &reply, &meta, &Redactor::default())).unwrap(),
        r#"{"gate":"echo","args":{},"result":"hi","is_error":false,"tool_call_id":null,"reply":{"type":"S","code":"WA-EXEC-S-001"}}"#
    );
}

#[test]
fn code_mediums_throw_everything_but_a_success() {
    let GuardedReply { reply, meta } =
        guarded(|rb| rb.invalid(codes::file_missing("a.txt").data(json!({"nearest": "b.txt"}))));
    assert_eq!(
        serde_json::to_value(ReplyException::from_reply(&reply, &meta).unwrap()).unwrap(),
        json!({
            "message": "Invalid WA-READ-I-001: a.txt does not exist. Fix the arguments and retry.",
            "type": "I", "code": "WA-READ-I-001", "retry": "fix_and_retry",
            "data": {"path": "a.txt", "nearest": "b.txt"},
        })
    );
    let GuardedReply { reply, meta } = guarded(|rb| rb.success(codes::gate_ok("echo")));
    assert_eq!(ReplyException::from_reply(&reply, &meta), None);
    assert_eq!(refusal_text(&reply, &meta), None);
}
