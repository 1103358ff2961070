//! The contents of a script, and the reports of its faults.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_crystal::tree::Node;
use cantrip_crystal::{Response, Script, ScriptedCrystal, ScriptedError};
use cantrip_loom::{Finish, Usage};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::json;

fn read(file: &str, text: &str) -> Vec<Script> {
    Script::read(file, text).unwrap_or_else(|fault| panic!("{fault}"))
}

#[track_caller]
fn faults(text: &str, expected: &[&str]) {
    let fault = Script::read("a.yaml", text).unwrap_err().to_string();
    assert_eq!(fault.lines().collect::<Vec<_>>(), expected);
}

const FULL: &str = r#"
name: parent
usage: {prompt_tokens: 10, completion_tokens: 2}
responses:
  - content: Looking.
    thinking: Where is it?
    tool_calls:
      - {id: c1, gate: read, args: {path: a.txt, deep: [1, 2.5, true, null]}}
      - {gate: broken, args: '{"path":'}
    usage: {prompt_tokens: 5, completion_tokens: 3, cached_tokens: 1, total_tokens: 8}
  - code: |
      var x = 1;
      done(x)
    delay_ms: 100
    pace_ms: 5
  - error: {status: 429, message: slow down, retry_after: 1.5}
  - error: {kind: context_too_long, tokens: 9000, window: 8192}
  - chunks: [Hel, lo]
    break_after: 1
    finish: length
    model: other
    parts: {signature: abc}
  - content: null
    tool_calls: null
"#;

#[test]
fn everything_a_script_can_say_is_read() {
    let [script] = &read("a.yaml", FULL)[..] else { panic!() };
    assert_eq!(script.name.as_deref(), Some("parent"));
    assert_eq!(script.usage.unwrap().total_tokens(), 12);
    let [called, code, limited, long, cut, empty] = &script.responses[..] else { panic!("{script:?}") };
    assert_eq!(called.calls[0].args, json!({"path": "a.txt", "deep": [1, 2.5, true, null]}));
    assert_eq!((called.calls[1].id.as_deref(), &called.calls[1].args), (None, &json!("{\"path\":")));
    let usage = Usage { prompt_tokens: 5, completion_tokens: 3, cached_tokens: 1, ..Usage::default() };
    assert_eq!(called.usage, Some(usage));
    assert_eq!(code.code.as_deref(), Some("var x = 1;\ndone(x)\n"));
    assert_eq!((code.delay, code.pace), (Duration::from_millis(100), Duration::from_millis(5)));
    let retry_after = Some(Duration::from_millis(1_500));
    assert_eq!(limited.error, Some(ScriptedError::Status { status: 429, message: "slow down".into(), retry_after }));
    assert_eq!(long.error, Some(ScriptedError::ContextTooLong { tokens: Some(9_000), window: Some(8_192) }));
    assert_eq!((cut.content.as_deref(), cut.break_after), (Some("Hello"), Some(1)));
    assert_eq!((&cut.finish, cut.model.as_deref()), (&Some(Finish::Length), Some("other")));
    assert_eq!(*empty, Response::default());
}

#[test]
fn a_file_may_hold_several_scripts() {
    let text = "usage: {prompt_tokens: 1}\nscripts:\n  parent: {responses: [{content: a}]}\n  child: {responses: [{content: b}], usage: {prompt_tokens: 2}}\n";
    let scripts = read("a.yaml", text);
    let tokens = |script: &Script| script.usage.unwrap().prompt_tokens;
    assert_eq!(scripts.iter().map(tokens).collect::<Vec<_>>(), [1, 2]);
    let chosen = Script::choose("a.yaml", scripts.clone(), Some("child")).unwrap();
    assert_eq!(chosen.responses[0].content.as_deref(), Some("b"));
    let unnamed = Script::choose("a.yaml", scripts.clone(), None).unwrap_err().to_string();
    assert!(unnamed.contains("parent, child"), "{unnamed}");
    let wrong = Script::choose("a.yaml", scripts, Some("chlid")).unwrap_err().to_string();
    assert!(wrong.contains("did you mean \"child\"?"), "{wrong}");
}

#[test]
fn a_list_of_responses_is_a_script() {
    assert_eq!(read("a.yaml", "- content: a\n- content: b\n")[0].responses.len(), 2);
}

#[test]
fn json_lines_say_the_same() {
    let text = concat!(
        "{\"script\": \"child\", \"defaults\": {\"usage\": {\"prompt_tokens\": 4}}}\n",
        "{\"content\": \"a\"}\n\n",
        "{\"script\": \"child\", \"content\": \"b\", \"tool_calls\": [{\"id\": \"c\", \"gate\": \"read\"}]}\n",
    );
    let scripts = read("a.jsonl", text);
    assert_eq!(scripts.iter().map(|script| script.name.as_deref()).collect::<Vec<_>>(), [Some("child"), None]);
    assert_eq!(scripts[0].usage.unwrap().prompt_tokens, 4);
    assert_eq!(scripts[0].responses[0].calls[0].gate, "read");
    let fault = Script::read("a.jsonl", "{\"content\": \"a\"}\n{\"contnt\": 1}\n{\"a\": 1, \"a\": 2}\n").unwrap_err();
    assert_eq!(fault.issues.iter().map(|issue| issue.line).collect::<Vec<_>>(), [2, 3]);
}

#[test]
fn all_unknown_keys_are_told_at_once_with_their_lines() {
    let text =
        "responses:\n- contnet: a\n  tool_calls:\n  - {id: c, gates: read}\n- error: {state: 500}\nrespones: []\n";
    faults(
        text,
        &[
            "a.yaml:2: unknown key \"contnet\"; did you mean \"content\"?",
            "a.yaml:4: unknown key \"gates\"; did you mean \"gate\"?",
            "a.yaml:5: unknown key \"state\"; did you mean \"status\"?",
            "a.yaml:6: unknown key \"respones\"; did you mean \"responses\"?",
        ],
    );
}

#[test]
fn a_fault_is_an_invalid_reply_that_has_all_of_it() {
    let fault = Script::read("a.yaml", "- contnet: a\n- cod: b\n").unwrap_err();
    let reply = guarded(|rb| rb.invalid(fault.to_reply())).reply;
    assert_eq!(reply.data()["issues"].as_array().map(Vec::len), Some(2));
    assert_code(&reply, codes::UNPARSABLE);
}

#[test]
fn a_key_given_twice_is_refused() {
    faults("responses:\n- content: a\n  content: b\n", &["a.yaml:3: the key \"content\" was given on line 2 already"]);
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    let text = "- content: 5\n- delay_ms: -1\n- error: {status: 200}\n- usage: {prompt_tokens: 1, total_tokens: 3}\n- content: a\n  chunks: [b]\n- error: {kind: refusal}\n";
    faults(
        text,
        &[
            "a.yaml:1: expected a text, found a number",
            "a.yaml:2: expected a whole number from 0 on, found a number",
            "a.yaml:3: 200 is not the HTTP status of an error: write 300 to 599",
            "a.yaml:4: total_tokens is 3, but prompt and completion are 1",
            "a.yaml:5: `chunks` put together are not `content`; give one of the two",
            "a.yaml:7: no kind of error is called \"refusal\"; did you mean \"refused\"?",
        ],
    );
    faults(
        "just a text\n",
        &["a.yaml:1: expected responses, or a mapping with `responses` or `scripts`, found a text"],
    );
    faults("name: a\n", &["a.yaml:1: a script needs `responses`"]);
    faults("- tool_calls:\n  - id: c\n", &["a.yaml:2: a call needs `gate`"]);
    faults("- error: {message: no}\n", &["a.yaml:1: an error needs a `status` or a `kind`"]);
}

#[test]
fn yaml_that_could_be_read_in_two_ways_is_refused() {
    for (text, rule) in [
        ("- content: !mine a\n", "tag"),
        ("- {a: 1}\n---\n- {b: 2}\n", "second document"),
        ("- ? [a]\n  : b\n", "key must be a plain text"),
        ("- content: [a\n", ""),
        ("- parts: .nan\n", "cannot keep exactly"),
        ("- parts: 9007199254740993\n", "cannot keep exactly"),
    ] {
        let fault = Script::read("a.yaml", text).unwrap_err().to_string();
        assert!(fault.contains(rule), "{text:?}: {fault}");
    }
}

#[test]
fn scalars_are_those_of_the_core_schema() {
    let node =
        Node::read_yaml("[yes, 'true', true, ~, 0x1F, 0o17, -3, +2, 1.50, 1e3, .5, 1.2.3, '', !!str 5]").unwrap();
    let expected = json!(["yes", "true", true, null, 31, 15, -3, 2, 1.5, 1000, 0.5, "1.2.3", "", "5"]);
    assert_eq!(node.to_value(), expected);
}

#[test]
fn an_alias_repeats_what_it_names_within_bounds() {
    let node = Node::read_yaml("a: &x {b: 1}\nc: *x\n").unwrap();
    assert_eq!(node.to_value(), json!({"a": {"b": 1}, "c": {"b": 1}}));

    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = level - 1;
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![format!("*a{before}"); 10].join(", ")));
    }
    assert!(Node::read_yaml(&bomb).unwrap_err().rule.contains("values"));

    let mut ladder = String::from("a0: &a0 [x]\n");
    for level in 1..200 {
        ladder.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
    }
    assert!(Node::read_yaml(&ladder).unwrap_err().rule.contains("deeper"));
    assert!(Node::read_yaml(&"[".repeat(10_000)).is_err());
}

#[test]
fn a_script_that_is_not_there_is_a_fault_with_its_name() {
    let fault = ScriptedCrystal::open("no/such/script.yaml".as_ref(), None).unwrap_err();
    assert_eq!(fault.file, "no/such/script.yaml");
}

#[test]
fn the_examples_of_the_page_are_scripts() {
    let page = include_str!("../README.md");
    let mut count = 0;
    for (language, file) in [("yaml", "a.yaml"), ("jsonl", "a.jsonl")] {
        for block in page.split(&format!("```{language}\n")).skip(1) {
            let text = block.split("```").next().unwrap();
            read(file, text);
            count += 1;
        }
    }
    assert!(count >= 3, "{count} examples were found");
}

/// Text that has a meaning in a script, or nearly.
const WORDS: &[&str] = &[
    "- ",
    "\n",
    "\n  ",
    "\n- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "&a ",
    "*a ",
    "*b",
    "<<: *a",
    "!!int ",
    "!x ",
    "|",
    ">-",
    "? ",
    "---\n",
    "...\n",
    "\"",
    "'",
    "#",
    "\t",
    "%YAML 1.2\n",
    "null",
    "true",
    "-1",
    "1e999",
    "99999999999999999999",
    ".nan",
    "0x10",
    "responses:",
    "usage:",
    "error:",
    "status: 99999",
    "chunks:",
    "delay_ms: -5",
    "code: |",
    "\u{feff}",
    "\u{0}",
    "{\"a\":",
    "\\ud800",
];

const LINES: &str = r#"{"name": "parent", "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
{"content": "Looking.", "tool_calls": [{"id": "c1", "gate": "read", "args": {"path": "a.txt"}}]}
{"error": {"status": 429, "message": "slow", "retry_after": 1.5}}
{"code": "done(1)", "delay_ms": 3}
"#;

/// Returns true if a text is a script, or is refused as Invalid with valid line numbers.
fn told_apart(file: &str, text: &str) -> bool {
    let Err(fault) = Script::read(file, text) else { return true };
    let lines = text.lines().count() + 1;
    let placed = fault.issues.iter().all(|issue| (1..=lines).contains(&issue.line));
    placed && guarded(|rb| rb.invalid(fault.to_reply())).reply.code() == codes::UNPARSABLE.any()
}

proptest! {
    #![proptest_config(garble::samples(256))]

    #[test]
    fn a_script_that_is_almost_right_is_read_or_refused_as_invalid(
        yaml in garble::garbled_text(&[FULL], WORDS),
        lines in garble::garbled_text(&[LINES], WORDS),
    ) {
        prop_assert!(told_apart("a.yaml", &yaml), "{yaml}");
        prop_assert!(told_apart("a.jsonl", &lines), "{lines}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "[-a-z:{}\\[\\]&*!'\" \n0-9#|>]{0,80}") {
        let _ = Script::read("a.yaml", &text);
        let _ = Script::read("a.jsonl", &text);
    }

    #[test]
    fn json_is_yaml(value in json_values()) {
        prop_assert_eq!(Node::read_yaml(&value.to_string()).unwrap().to_value(), value);
    }
}

fn json_values() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|flag| json!(flag)),
        (-1_000_000_i64..1_000_000).prop_map(|number| json!(number)),
        "[ a-zé:#\\\\\"]{0,12}".prop_map(|text| json!(text)),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            proptest::collection::btree_map("[a-z ]{0,6}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}
