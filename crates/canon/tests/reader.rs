//! Tests of the strict reader: the texts it refuses, the reported position, and its agreement with `serde_json`
//! otherwise.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::json::{self, ReadRule};
use proptest::prelude::*;
use serde_json::{Value, json};

#[test]
fn each_refusal_names_its_rule_its_path_and_its_byte() {
    use ReadRule::*;
    let cases: &[(&str, ReadRule, &str, usize)] = &[
        (r#"{"a":1,"a":2}"#, DuplicateKey, "/a", 7),
        (r#"{"a":1,"\u0061":2}"#, DuplicateKey, "/a", 7),
        (r#"{"x":[0,{"b/c~":1,"b/c~":1}]}"#, DuplicateKey, "/x/1/b~1c~0", 18),
        (r#"["\ud800"]"#, LoneSurrogate, "/0", 2),
        (r#"["\udc00\ud800"]"#, LoneSurrogate, "/0", 2),
        (r#"["\ud800\ud800"]"#, LoneSurrogate, "/0", 2),
        (r#"["ok\ud83dx"]"#, LoneSurrogate, "/0", 4),
        (r#"{"\udfff":1}"#, LoneSurrogate, "", 2),
        ("[NaN]", NotFinite, "/0", 1),
        ("[Infinity]", NotFinite, "/0", 1),
        (r#"{"a":-Infinity}"#, NotFinite, "/a", 5),
        ("1e400", NotFinite, "", 0),
        ("[1,-1e400]", NotFinite, "/1", 3),
        ("9007199254740992", InexactInteger, "", 0),
        ("[0,9007199254740993]", InexactInteger, "/1", 3),
        ("-9007199254740992", InexactInteger, "", 0),
        ("18446744073709551616", InexactInteger, "", 0),
        ("1e16", InexactInteger, "", 0),
        ("9007199254740992.0", InexactInteger, "", 0),
        ("[1] x", Trailing, "", 4),
        ("1 2", Trailing, "", 2),
        ("{}}", Trailing, "", 2),
        ("nullx", Trailing, "", 4),
        ("[\"a\nb\"]", ControlCharacter, "/0", 3),
        ("[\"\u{0}\"]", ControlCharacter, "/0", 2),
        (r#"["\x"]"#, Escape, "/0", 2),
        (r#"["\u12g4"]"#, Escape, "/0", 2),
        (r#"["\u+123"]"#, Escape, "/0", 2),
        (r#"["\u12"]"#, Escape, "/0", 2),
        ("[01]", NumberForm, "/0", 1),
        ("[-]", NumberForm, "/0", 1),
        ("[1.]", NumberForm, "/0", 1),
        ("[1.e3]", NumberForm, "/0", 1),
        ("[1e]", NumberForm, "/0", 1),
        ("[1e+]", NumberForm, "/0", 1),
        ("[-a]", NumberForm, "/0", 1),
        ("[+1]", Expected("a value"), "/0", 1),
        ("[.5]", Expected("a value"), "/0", 1),
        ("[1,]", Expected("a value"), "/1", 3),
        ("[,1]", Expected("a value"), "/0", 1),
        ("['a']", Expected("a value"), "/0", 1),
        ("[tru]", Expected("a value"), "/0", 1),
        ("[True]", Expected("a value"), "/0", 1),
        ("\u{feff}1", Expected("a value"), "", 0),
        ("[1 2]", Expected("a comma or ]"), "", 3),
        ("[0,[1}]", Expected("a comma or ]"), "/1", 5),
        (r#"{"a":1]"#, Expected("a comma or }"), "", 6),
        (r#"{"a":1,}"#, Expected("a key"), "", 7),
        ("{a:1}", Expected("a key"), "", 1),
        ("{1:1}", Expected("a key"), "", 1),
        (r#"{"a" 1}"#, Expected("a colon"), "/a", 5),
        (r#"{"a":}"#, Expected("a value"), "/a", 5),
        ("", End, "", 0),
        (" ", End, "", 1),
        ("[", End, "/0", 1),
        ("[1", End, "", 2),
        ("[1,", End, "/1", 3),
        ("{", End, "", 1),
        (r#"{"a"#, End, "", 3),
        (r#"{"a""#, End, "/a", 4),
        (r#"{"a":"#, End, "/a", 5),
        (r#"{"a":1"#, End, "", 6),
        (r#""abc"#, End, "", 4),
        ("\"abc\\", End, "", 4),
        ("-", End, "", 0),
        ("1.", End, "", 0),
    ];
    for (text, rule, path, byte) in cases {
        let fault = json::read(text).unwrap_err();
        assert_eq!((fault.rule, fault.path.as_str(), fault.at.byte), (*rule, *path, *byte), "{text:?}");
    }
}

#[test]
fn a_position_counts_lines_and_characters_from_one() {
    let fault = json::read("{\n  \"größe\": [1,\n    \"äöü\", x]\n}").unwrap_err();
    assert_eq!((fault.at.line, fault.at.column), (3, 12));
    assert_eq!(fault.path, "/größe/2");
}

#[test]
fn nesting_is_read_up_to_the_limit_and_refused_beyond_it() {
    let nested = |levels: usize, open: &str, close: &str| format!("{}0{}", open.repeat(levels), close.repeat(levels));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        assert!(json::read(&nested(128, open, close)).is_ok());
        let fault = json::read(&nested(129, open, close)).unwrap_err();
        assert_eq!(fault.rule, ReadRule::TooDeep);
        assert_eq!(fault.path.matches('/').count(), 128);
    }
    assert_eq!(json::read(&"[".repeat(10_000_000)).unwrap_err().rule, ReadRule::TooDeep);
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_where_they_stand() {
    let fault = json::read_bytes(b"[1,\n\"\xc3\xa9\xff\"]").unwrap_err();
    assert_eq!(fault.rule, ReadRule::NotUtf8);
    assert_eq!((fault.at.byte, fault.at.line, fault.at.column), (7, 2, 3));
    // A lone surrogate encoded as bytes.
    assert_eq!(json::read_bytes(b"\"\xed\xa0\x80\"").unwrap_err().rule, ReadRule::NotUtf8);
    assert_eq!(json::read_bytes("\"é\"".as_bytes()).unwrap(), json!("é"));
}

#[test]
fn a_value_from_outside_keeps_the_digits_of_a_number_that_is_not_exact() {
    let cases = [
        ("[9007199254740991]", json!([9_007_199_254_740_991_i64])),
        ("[9007199254740992]", json!(["9007199254740992"])),
        ("[-123456789012345678901234567890]", json!(["-123456789012345678901234567890"])),
        ("[1e16, 1e21, 0.5]", json!(["1e16", 1e21, 0.5])),
    ];
    for (text, value) in cases {
        assert_eq!(json::read_foreign(text).unwrap(), value, "{text}");
    }
    for (text, rule) in [
        ("1e400", ReadRule::NotFinite),
        ("{\"a\":1,\"a\":1}", ReadRule::DuplicateKey),
        ("[01]", ReadRule::NumberForm),
        ("NaN", ReadRule::NotFinite),
    ] {
        assert_eq!(json::read_foreign(text).unwrap_err().rule, rule, "{text}");
    }
}

#[test]
fn escapes_stand_for_their_characters() {
    let text = r#""\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00\uD83D\uDE00\u0000""#;
    assert_eq!(json::read(text).unwrap(), json!("\"\\/\u{8}\u{c}\n\r\tAé😀😀\0"));
}

#[test]
fn a_fault_says_where_it_is_without_repeating_a_long_key() {
    let key = "k".repeat(1_000_000);
    let fault = json::read(&format!("{{\"{key}\": x}}")).unwrap_err();
    assert_eq!(fault.path.len(), 1_000_001);
    assert!(fault.to_string().len() < 500);
}

/// Both readers return the same value, or both refuse the text, or ours refuses it for a rule that `serde_json` lacks.
fn agrees_with_serde_json(text: &str) -> Result<(), TestCaseError> {
    let theirs: Result<Value, _> = serde_json::from_str(text);
    match (json::read(text), theirs) {
        (Ok(ours), Ok(theirs)) => prop_assert_eq!(ours, json::to_value(&theirs).unwrap(), "{}", text),
        (Err(_), Err(_)) => {}
        (Err(fault), Ok(_)) => prop_assert!(
            matches!(fault.rule, ReadRule::DuplicateKey | ReadRule::InexactInteger),
            "{text:?} refused with {fault}"
        ),
        (Ok(ours), Err(error)) => prop_assert!(false, "{text:?} read as {ours}, but serde_json: {error}"),
    }
    Ok(())
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec(("[a-c]{0,2}", inner), 0..5).prop_map(|entries| entries.into_iter().collect()),
        ]
    })
}

/// Pieces of JSON, and pieces that are almost JSON.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\"",
    "\"b\":",
    "\\",
    "\\u00e9",
    "\\ud83d",
    "\\ude00",
    "\\n",
    "\\x",
    " ",
    "\n",
    "\t",
    "\u{a0}",
    "\u{feff}",
    "0",
    "-",
    "-0",
    "1",
    "12",
    "007",
    ".",
    ".5",
    "e",
    "E+3",
    "e-2",
    "1e9",
    "1e400",
    "9007199254740993",
    "18446744073709551616",
    "true",
    "false",
    "null",
    "nul",
    "NaN",
    "Infinity",
    "/",
    "//",
    "'",
    "é",
    "\u{7f}",
    "\u{1}",
    "{}",
    "[]",
    "[1,2]",
    "{\"a\":1}",
    "{\"a\":1,\"a\":2}",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn the_reader_agrees_with_serde_json_on_texts_that_are_json(value in any_value(), pretty: bool) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        agrees_with_serde_json(&text.unwrap())?;
    }

    #[test]
    fn the_reader_agrees_with_serde_json_on_texts_with_a_mistake(
        value in any_value(),
        at: prop::sample::Index,
        removed in 0_usize..3,
        piece in prop::sample::select(PIECES),
    ) {
        let text: Vec<char> = serde_json::to_string(&value).unwrap().chars().collect();
        let at = at.index(text.len() + 1);
        let rest = text[at..].iter().skip(removed);
        let mutated: String = text[..at].iter().copied().chain(piece.chars()).chain(rest.copied()).collect();
        agrees_with_serde_json(&mutated)?;
    }

    #[test]
    fn the_reader_agrees_with_serde_json_on_pieces_thrown_together(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..9),
    ) {
        agrees_with_serde_json(&pieces.concat())?;
    }

    #[test]
    fn every_byte_that_is_written_is_that_of_another_writer_of_the_standard(
        value in any_value(),
        entries in prop::collection::vec((".{0,6}", ".{0,12}"), 0..6),
        controls in prop::collection::vec(0_u8..0x80, 0..24),
        double: f64,
    ) {
        let mut object: serde_json::Map<String, Value> =
            entries.into_iter().map(|(key, text)| (key, Value::from(text))).collect();
        object.insert("value".to_owned(), value);
        object.insert("controls".to_owned(), controls.into_iter().map(char::from).collect::<String>().into());
        object.insert("double".to_owned(), Value::from(double));
        let value = Value::Object(object);
        // If there are two faults, the first one found is reported; so only successes are compared.
        prop_assert_eq!(json::canonical_of(&value).ok(), json::canonical(&value).ok());
        if let Ok(text) = json::canonical(&value) {
            prop_assert_eq!(text, serde_json_canonicalizer::to_string(&value).unwrap());
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        let _either_way = json::read_bytes(&bytes);
    }

    #[test]
    fn what_was_read_is_written_and_read_back_the_same(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..6)) {
        let text = format!("[{}]", pieces.join(","));
        if let Ok(value) = json::read_foreign(&text) {
            prop_assert_eq!(json::read(&json::canonical(&value).unwrap()).unwrap(), value);
        }
    }
}
