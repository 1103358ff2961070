//! Tests of the grammar of codes.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_reply::{AnyCode, CodeFaultKind};
use proptest::prelude::*;

#[test]
fn a_text_that_is_no_code_is_rejected_with_its_first_fault() {
    let cases = [
        ("", CodeFaultKind::Format),
        ("wa-read-i-001", CodeFaultKind::Format),
        ("WA-READ-I-1", CodeFaultKind::Format),
        ("WA-READ-I-0001", CodeFaultKind::Format),
        ("WA-READ-I-000", CodeFaultKind::Format),
        ("WA-READ-I-001\n", CodeFaultKind::Format),
        (" WA-READ-I-001", CodeFaultKind::Format),
        ("WA-READ-I-001 ", CodeFaultKind::Format),
        ("WA-READ-I-\u{660}\u{660}\u{661}", CodeFaultKind::Format),
        ("W\u{410}-READ-I-001", CodeFaultKind::Format),
        ("WA-READ-I", CodeFaultKind::Format),
        ("WA-READ-I-001-", CodeFaultKind::Format),
        ("WA--I-001", CodeFaultKind::Format),
        ("WA_READ_I_001", CodeFaultKind::Format),
        ("XX-READ-S-001", CodeFaultKind::Layer),
        ("XX-OPEN-X-001", CodeFaultKind::Layer),
        ("WA-OPEN-S-001", CodeFaultKind::Area),
        ("WA-CLOSE-S-001", CodeFaultKind::Area),
        ("WA-GIT-X-001", CodeFaultKind::Area),
        ("WA-READ-X-001", CodeFaultKind::Type),
        ("WA-READ-D-001", CodeFaultKind::Matrix),
        ("CT-GATE-D-001", CodeFaultKind::Matrix),
        ("MCP-SYS-D-001", CodeFaultKind::Matrix),
        ("EN-READ-I-001", CodeFaultKind::Matrix),
        ("WA-READ-S-999", CodeFaultKind::Unregistered),
    ];
    for (text, fault) in cases {
        let found = AnyCode::parse(text).expect_err(text);
        assert_eq!(found.fault(), fault, "{text:?}");
        assert_eq!(found.code(), text);
    }
}

#[test]
fn every_registered_code_is_read_back_as_itself() {
    for code in AnyCode::all() {
        assert_eq!(AnyCode::parse(code.as_str()), Ok(code));
        assert_eq!(AnyCode::parse(&code.to_string()).map(|read| read.row().key), Ok(code.row().key));
    }
}

/// Texts that are almost codes: random texts never pass the first check.
fn nearly_a_code() -> impl Strategy<Value = String> {
    let layer = prop_oneof!["WA", "EN", "CT", "MCP", "[A-Z]{1,4}"];
    let area = prop_oneof!["READ", "GATE", "IO", "VAL", "[A-Z]{1,6}"];
    (layer, area, "[SIDEX]", "[0-9]{2,4}")
        .prop_map(|(layer, area, kind, number)| format!("{layer}-{area}-{kind}-{number}"))
}

proptest! {
    #[test]
    fn a_text_is_a_code_only_if_the_registry_has_exactly_it(text in prop_oneof![any::<String>(), nearly_a_code()]) {
        let registered = AnyCode::all().any(|code| code.as_str() == text);
        prop_assert_eq!(AnyCode::parse(&text).is_ok(), registered);
    }
}
