//! Tests of the registry as a whole, and of the output of the surfaces for each code.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{Currency, Money};
use cantrip_reply::registry::{by_key, markdown, registry};
use cantrip_reply::testing::guarded;
use cantrip_reply::{
    AnyCode, Envelope, FORBIDDEN_KEYS, GuardedReply, Layer, Refusal, ReplyDraft, ReplyType, Success, codes,
};
use serde_json::{Map, Value, json};

/// A reply with this code whose fields all have this value. It shows how a reply is serialized, not that it occurs.
fn sample(code: AnyCode, value: &str) -> GuardedReply {
    let fields: Map<String, Value> =
        code.row().fields.iter().map(|field| ((*field).to_owned(), Value::from(value))).collect();
    guarded(|rb| match code.reply_type() {
        ReplyType::Success => rb.success(ReplyDraft::dynamic(code.as_str(), fields).unwrap()),
        ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => {
            rb.refuse(Refusal::dynamic(code.as_str(), fields).unwrap())
        }
    })
}

fn sample_envelope(code: AnyCode) -> Envelope {
    let GuardedReply { reply, meta } = sample(code, "x");
    assert_eq!(reply.code(), code);
    Envelope::of(reply, &meta)
}

fn is_snake_case(name: &str) -> bool {
    !name.is_empty()
        && name
            .split('_')
            .all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()))
}

#[test]
fn the_registry_has_102_codes_with_names_of_their_own() {
    assert_eq!(registry().version, "1.6");
    assert_eq!(registry().codes.len(), 102);
    let codes: BTreeSet<_> = registry().codes.iter().map(|row| row.code).collect();
    let keys: BTreeSet<_> = registry().codes.iter().map(|row| row.key).collect();
    assert_eq!((codes.len(), keys.len()), (102, 102));
    for row in registry().codes {
        assert!(is_snake_case(row.key), "{}", row.key);
        assert_eq!(by_key(row.key).map(AnyCode::as_str), Some(row.code));
    }
    assert_eq!(by_key("no_such_key"), None);
}

#[test]
fn every_code_is_written_as_the_grammar_says_and_its_layer_may_answer_so() {
    for row in registry().codes {
        let parts: Vec<_> = row.code.split('-').collect();
        assert_eq!(parts[..3], [row.layer.as_str(), row.area.as_str(), row.reply_type.as_str()], "{}", row.code);
        assert!(parts.len() == 4 && parts[3].len() == 3 && parts[3] != "000", "{}", row.code);
        assert!((11..=15).contains(&row.code.len()), "{}", row.code);
        match row.reply_type {
            ReplyType::Denied => assert_eq!(row.layer, Layer::En, "{}", row.code),
            ReplyType::Invalid => assert_ne!(row.layer, Layer::En, "{}", row.code),
            ReplyType::Success | ReplyType::Failure => {}
        }
    }
}

#[test]
fn the_numbers_of_a_layer_area_and_type_run_from_one_without_a_gap() {
    let mut numbers: BTreeMap<_, Vec<u16>> = BTreeMap::new();
    for row in registry().codes {
        let (group, number) = row.code.rsplit_once('-').unwrap();
        numbers.entry(group).or_default().push(number.parse().unwrap());
    }
    for (group, mut found) in numbers {
        found.sort_unstable();
        assert!(found.iter().copied().eq(1..=found.len() as u16), "{group}: {found:?}");
    }
}

#[test]
fn the_fields_of_a_code_are_the_placeholders_of_its_message() {
    for row in registry().codes {
        let placeholders: Vec<_> = row.message.split('{').skip(1).map(|part| part.split_once('}').unwrap().0).collect();
        assert_eq!(placeholders, row.fields, "{}", row.code);
        for field in row.fields {
            assert!(is_snake_case(field), "{}: {field}", row.code);
            assert!(!FORBIDDEN_KEYS.contains(field), "{}: {field}", row.code);
        }
    }
}

#[test]
fn exactly_the_codes_that_are_no_success_have_advice() {
    for code in AnyCode::all() {
        assert_eq!(code.advice().is_none(), code.reply_type() == ReplyType::Success, "{code}");
    }
}

#[test]
fn the_phrases_that_conformance_fixes_stand_in_their_messages() {
    let phrases = [
        (codes::GATE_UNKNOWN.any(), "gate not available"),
        (codes::GATE_REMOVED.any(), "gate not available"),
        (codes::APPEND_ONLY.any(), "loom is append-only"),
        (codes::CANNOT_GRANT.any(), "cannot grant gate"),
        (codes::IMMUTABLE.any(), "is immutable"),
        (codes::CRYSTAL_EMPTY.any(), "crystal returned neither content nor tool_calls"),
        (codes::DUPLICATE_CALL.any(), "duplicate tool call ID"),
    ];
    for (code, phrase) in phrases {
        assert!(sample(code, "x").reply.message().contains(phrase), "{code}");
    }
    // The fault of a contract is the whole message, so its fixed phrases pass through as they are.
    let fault = "cantrip must have at least one truncation ward";
    assert_eq!(sample(codes::CONTRACT_INVALID.any(), fault).reply.message(), fault);
}

#[test]
fn every_code_has_the_http_status_of_the_page() {
    let mut expected: BTreeMap<&str, u16> = BTreeMap::new();
    let listed: [(u16, &[&str]); 12] = [
        (
            200,
            &[
                "read",
                "gate_ok",
                "verified",
                "written",
                "terminated",
                "changed",
                "predicted",
                "evaluated",
                "compiled",
                "ok",
            ],
        ),
        (201, &["created"]),
        (400, &["cursor_invalid", "unparsable", "code_syntax", "config_invalid", "credentials_missing"]),
        (401, &["unauthenticated"]),
        (404, &["gate_unknown", "not_found", "target_unusable", "file_missing", "contract_unknown"]),
        (
            409,
            &[
                "edit_mismatch",
                "append_only",
                "not_restorable",
                "immutable",
                "wrong_state",
                "busy",
                "version_conflict",
                "promote_gate",
                "test_spent",
            ],
        ),
        (410, &["cursor_stale"]),
        (413, &["limit"]),
        (
            422,
            &[
                "schema",
                "done_malformed",
                "code_threw",
                "gate_reported",
                "contract_invalid",
                "input_schema",
                "artifact_incompatible",
                "example_invalid",
                "metric_invalid",
                "memory_limit",
                "time_limit",
                "output_limit",
            ],
        ),
        (502, &["unreachable", "auth_failed", "crystal_rejected", "stream_broken"]),
        (503, &["rate_limited", "overloaded", "store_unavailable"]),
        (504, &["timed_out"]),
    ];
    for (status, keys) in listed {
        expected.extend(keys.iter().map(|key| (*key, status)));
    }
    for code in AnyCode::all() {
        let of_type = match code.reply_type() {
            ReplyType::Success | ReplyType::Invalid => None,
            ReplyType::Denied => Some(403),
            ReplyType::Failure => Some(500),
        };
        let status = expected.remove(code.row().key).or(of_type).unwrap_or_else(|| panic!("{code} is not listed"));
        assert_eq!(sample_envelope(code).http_status(), status, "{code} {}", code.row().key);
    }
    assert_eq!(expected, BTreeMap::new(), "keys that no code has");
}

#[test]
fn every_code_ends_a_command_with_the_status_of_its_type() {
    for code in AnyCode::all() {
        let status = match code.reply_type() {
            ReplyType::Success => 0,
            ReplyType::Invalid => 2,
            ReplyType::Denied => 3,
            ReplyType::Failure => 4,
        };
        assert_eq!(sample_envelope(code).exit_status().number(), status, "{code}");
    }
}

#[test]
fn a_success_that_leaves_its_run_waiting_is_told_apart_by_its_status() {
    let status = |data: Value| {
        let guarded = guarded(|rb| rb.success(codes::created("run", "run_1").data(data)));
        Envelope::of(guarded.reply, &guarded.meta).exit_status().number()
    };
    for (reason, number) in [("approval", 5), ("crystal_unavailable", 5), ("handed_back", 5), ("interrupted", 130)] {
        assert_eq!(status(json!({"state": "waiting", "reason": reason})), number, "{reason}");
    }
    for state in ["idle", "written", "queued", "running"] {
        assert_eq!(status(json!({"state": state, "reason": "interrupted"})), 0, "{state}");
    }
    let of = |filled: ReplyDraft<Success>| {
        let guarded = guarded(|rb| rb.success(filled));
        Envelope::of(guarded.reply, &guarded.meta).exit_status().number()
    };
    // A decision after which another approval is still open.
    let decided = || codes::changed("approval", "apr_1", "approved");
    assert_eq!((of(decided()), of(decided().data(json!({"run_state": "waiting"})))), (0, 5));
    // A command that only reads a waiting run did what it was asked to do.
    assert_eq!(of(codes::read("run").data(json!({"state": "waiting"}))), 0);
}

#[test]
fn a_message_shows_each_of_its_fields_and_no_braces() {
    for code in AnyCode::all() {
        let fields: Map<String, Value> =
            (0..).zip(code.row().fields).map(|(n, f)| ((*f).to_owned(), json!(7001 + n))).collect();
        let message = guarded(|rb| match code.reply_type() {
            ReplyType::Success => rb.success(ReplyDraft::dynamic(code.as_str(), &fields).unwrap()),
            ReplyType::Invalid | ReplyType::Denied | ReplyType::Failure => {
                rb.refuse(Refusal::dynamic(code.as_str(), &fields).unwrap())
            }
        })
        .reply
        .message();
        assert!(!message.contains(['{', '}']), "{message}");
        assert!(fields.values().all(|value| message.contains(&value.to_string())), "{message}");
    }
}

#[test]
fn no_field_of_a_message_is_taken_for_the_name_of_a_secret() {
    for code in AnyCode::all() {
        for (field, value) in sample(code, "auth_7").reply.data() {
            assert_eq!(value, "auth_7", "{code}: {field}");
        }
    }
}

#[test]
fn the_page_has_every_code_once_under_its_layer() {
    let page = markdown();
    let mut layer = None;
    let mut shown = Vec::new();
    for line in page.lines() {
        if let Some((heading, _)) = line.strip_prefix("## ").and_then(|heading| heading.split_once(':')) {
            layer = Some(heading);
        }
        let row =
            layer.and_then(|layer| line.strip_prefix("| `").and_then(|rest| rest.split_once('`')).zip(Some(layer)));
        if let Some(((code, _), layer)) = row {
            assert_eq!(AnyCode::parse(code).map(|code| code.layer().as_str()), Ok(layer));
            assert_eq!(line.matches(" |").count(), 5, "{line}");
            shown.push(code);
        }
    }
    assert_eq!(shown, AnyCode::all().map(AnyCode::as_str).collect::<Vec<_>>());
}

#[test]
fn the_list_for_programs_has_all_that_the_registry_says() {
    let list = serde_json::to_value(registry()).unwrap();
    assert_eq!(list["version"], "1.6");
    assert_eq!(
        list["codes"][4],
        json!({
            "code": "WA-READ-I-001", "key": "file_missing", "layer": "WA", "area": "READ", "type": "I",
            "message": "{path} does not exist", "fields": ["path"],
            "when": codes::FILE_MISSING.any().row().when, "retry": "fix_and_retry",
        })
    );
    assert_eq!(list["codes"][3]["retry"], Value::Null);
}

#[test]
fn money_and_lists_read_as_a_person_writes_them() {
    let dollar = Money::new(1_290, Currency::USD).unwrap();
    let reply = guarded(|rb| rb.denied(codes::per_call(dollar, "0.50 EUR"))).reply;
    assert_eq!(reply.message(), "0.00129 USD is more than 0.50 EUR for one call");
    let reply = guarded(|rb| rb.invalid(codes::promote_gate("art_1", ["score", "cost"]))).reply;
    assert_eq!(reply.message(), "art_1 does not pass the promote gate: score, cost");
}
