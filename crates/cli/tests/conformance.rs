//! Conformance files, run by the binary: ours, the public one if it is available, and some that must fail.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::Value;

use crate::support::own_postgres;
use cantrip_tests::peer::Peer;

/// Our cases that fail, each with the reason; a case that passes again has to be removed from this list.
const NOT_YET: &[(&str, &str)] = &[];

/// The results of our own cases, computed once.
static OURS: LazyLock<Vec<Value>> = LazyLock::new(|| judged(&suite(), &[]));

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli lies in the workspace").to_owned()
}

fn conformance(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cantrip"))
        .arg("conformance")
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Returns our own files, in order.
fn suite() -> Vec<String> {
    let entries = fs::read_dir(root().join("tests/conformance")).expect("the suite is there");
    let mut files: Vec<String> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .map(|path| path.to_str().expect("UTF-8").to_owned())
        .collect();
    files.sort();
    files
}

/// Runs files and returns the verdict of each case from the envelope.
fn judged(files: &[String], options: &[&str]) -> Vec<Value> {
    let mut arguments: Vec<&str> = files.iter().map(String::as_str).collect();
    arguments.extend(["--json"]);
    arguments.extend(options);
    let output = conformance(&arguments);
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let failed = envelope["data"]["failed"].as_u64().unwrap_or_else(|| panic!("{envelope}"));
    if failed == 0 {
        assert_envelope(&envelope, codes::OK.any());
        assert_eq!(output.status.code(), Some(0));
    } else {
        assert_envelope(&envelope, codes::JOB_FAILED.any());
        assert_eq!(output.status.code(), Some(4));
    }
    envelope["data"]["cases"].as_array().expect("a list of cases").clone()
}

/// The names and reasons of the cases that failed.
fn failed(cases: &[Value]) -> Vec<(String, String)> {
    let failed = cases.iter().filter(|case| case["verdict"] == "fail");
    failed.map(|case| (case["name"].to_string(), case["why"].to_string())).collect()
}

#[track_caller]
fn assert_only_known_failures(cases: &[Value]) {
    let found: BTreeSet<&str> =
        cases.iter().filter(|case| case["verdict"] == "fail").filter_map(|case| case["name"].as_str()).collect();
    let known: BTreeSet<&str> = NOT_YET.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, known, "{:#?}", failed(cases));
}

#[test]
fn our_own_cases_hold_in_memory() {
    assert!(OURS.len() > 80, "only {} cases were found", OURS.len());
    let skipped: Vec<&Value> = OURS.iter().filter(|case| case["verdict"] == "skip").collect();
    let unserved = |case: &Value| case["why"] == "nothing serves python here";
    assert!(skipped.iter().all(|case| unserved(case)), "only what nothing serves is skipped: {skipped:?}");
    assert_only_known_failures(&OURS);
}

#[test]
fn our_own_cases_hold_in_a_folder_of_json_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("jsonl:{}", folder.path().display());
    assert_only_known_failures(&judged(&suite(), &["--store", &store]));
}

#[test]
fn our_own_cases_hold_in_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = format!("sqlite:{}", folder.path().join("loom.db").display());
    assert_only_known_failures(&judged(&suite(), &["--store", &store]));
}

#[test]
fn our_own_cases_hold_in_postgres() {
    let Some(store) = own_postgres() else { return };
    assert_only_known_failures(&judged(&suite(), &["--store", &store]));
}

#[test]
fn the_public_cases_hold() {
    let Some(documents) = Peer::Documents.find_path() else { return };
    let file = documents.join("conformance/tests.yaml");
    let file = vec![file.to_str().expect("UTF-8").to_owned()];
    let folder = tempfile::tempdir().expect("a folder");
    let lines = format!("jsonl:{}", folder.path().display());
    let file_of_rows = format!("sqlite:{}", folder.path().join("loom.db").display());
    for store in ["memory:", lines.as_str(), file_of_rows.as_str()] {
        let cases = judged(&file, &["--store", store]);
        assert_eq!(failed(&cases), [], "of {} cases on {store}", cases.len());
        let skipped = cases.iter().filter(|case| case["verdict"] == "skip").count();
        assert_eq!((cases.len() - skipped, skipped), (58, 4), "on {store}");
    }
}

/// A file with one case: its setup, its action and its expectations.
fn case(setup: &str, action: &str, expect: &str) -> String {
    format!("- rule: X-1\n  name: a case\n  setup: {setup}\n  action: {action}\n  expect: {expect}\n")
}

const TALKS: &str = "{crystal: {responses: [{tool_calls: [{gate: echo, args: {text: a}}]}, {content: b}]}, \
                     circle: {gates: [done, echo], wards: [{max_turns: 5}]}, call: {system_prompt: p}}";
const CAST: &str = "{cast: {intent: i}}";

fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).expect("the file can be written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_wrong_expectation_of_any_kind_fails_its_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let wrong = [
        "{result: a}",
        "{result_contains: c}",
        "{results: [b, b]}",
        "{terminated: false}",
        "{truncated: true}",
        "{turns: 3}",
        "{usage: {prompt_tokens: 1}}",
        "{cumulative_usage: {total_tokens: 1}}",
        "{entities: 2}",
        "{entity_ids_unique: false}",
        "{error: anything}",
        "{gate_calls_executed: [echo, echo]}",
        "{gate_call_order: []}",
        "{gate_results: [b]}",
        "{turn_1_observation: {is_error: true}}",
        "{turn_1_observation: {content: A}}",
        "{turn_1_observation: {content_contains: b}}",
        "{turn_3_observation: {is_error: false}}",
        "{crystal_invocations: 3}",
        "{crystal_invocations: [{}, {}, {}]}",
        "{crystal_invocations: [{message_count: 1}]}",
        "{crystal_invocations: [{messages: [{role: system, content: p}]}]}",
        "{crystal_invocations: [{messages: [{role: system, content: p}, {role: user, content: j}]}]}",
        "{crystal_invocations: [{first_message: {role: user}}]}",
        "{crystal_invocations: [{messages_include: a}]}",
        "{crystal_invocations: [{}, {messages_exclude: a}]}",
        "{crystal_invocations: [{}, {message_count_excludes: a}]}",
        "{fork_crystal_invocations: 0}",
        "{crystal_received_tools: [{name: done}]}",
        "{crystal_received_tools: [{name: echo}, {name: done}]}",
        "{crystal_received_tool_choice: required}",
        "{loom: {turn_count: 1}}",
        "{loom: {call: {system_prompt: q}}}",
        "{loom: {turns: [{sequence: 2}]}}",
        "{loom: {turns: [{}, {parent_id: null}]}}",
        "{loom: {turns: [{}, {parent_id: 'turns[1].id'}]}}",
        "{loom: {turns: [{}, {}, {}]}}",
        "{loom: {turns: [{gate_calls: [done]}]}}",
        "{loom: {turns: [{entity_id: child}]}}",
        "{loom: {turns: [{reward: not_null}]}}",
        "{loom: {turns: [{metadata: {duration_ms: greater_than(1000000)}}]}}",
        "{loom: {turns: [{observation_contains: b}]}}",
        "{threads: 2}",
        "{thread_0: {turns: 1}}",
        "{thread_0: {result: a}}",
        "{thread_0: {last_turn: {truncated: true}}}",
        "{thread_1: {turns: 2}}",
        "{thread: [{role: entity}, {role: circle}]}",
        "{thread: [{role: entity}, {role: entity}, {role: entity}, {role: circle}]}",
        "{thread: {length: 2}}",
        "{child_turns: 0}",
        "{child_truncated: false}",
        "{acp_responses: [{id: 1, has_result: true}]}",
        "{loom_export_exclude: a}",
        "{logs_exclude: cast}",
        "{gate_executions: {echo: 1}}",
    ];
    let cases: String = wrong.iter().map(|expect| case(TALKS, CAST, expect)).collect();
    let judged = judged(&[written(folder.path(), "wrong.yaml", &cases)], &[]);
    let passed: Vec<&str> =
        wrong.iter().zip(&judged).filter(|(_, case)| case["verdict"] != "fail").map(|(expect, _)| *expect).collect();
    assert_eq!((passed, judged.len()), (Vec::new(), wrong.len()));
}

const ACP: &str = "{acp_exchange: [{id: 1, method: initialize, params: {protocolVersion: 1}}]}";

#[test]
fn what_was_refused_without_being_expected_fails_its_case() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        case("{crystal: null, circle: {gates: [done]}}", "{construct_cantrip: true}", "{entities: 0}"),
        case(TALKS, "{cast: {intent: null}}", "{entities: 0}"),
        case(TALKS, "{cast: {intent: i}, then: {delete_turn: 0}}", "{result: b}"),
        case(TALKS, "{cast: {intent: i}, then: [{mutate_call: {}}, {extract_thread: 0}]}", "{error: immutable}"),
        case(TALKS, "{cast: {intent: i}, then: {fork: {from_turn: 9}}}", "{error: turn}"),
        case(TALKS, ACP, "{acp_responses: [{id: 1, has_result: false}]}"),
        case(TALKS, ACP, "{acp_responses: [{id: 2}]}"),
        case(TALKS, ACP, "{acp_responses: [{id: 1, result_contains: nowhere}]}"),
    ];
    let judged = judged(&[written(folder.path(), "refused.yaml", &cases.concat())], &[]);
    let verdicts: Vec<&str> = judged.iter().filter_map(|case| case["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["fail"; 8]);
}

#[test]
fn every_fault_of_every_file_is_told_with_its_line_before_anything_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let sound = written(folder.path(), "sound.yaml", &case(TALKS, CAST, "{result: b}"));
    let faulty = written(
        folder.path(),
        "faulty.yaml",
        "- rule: A\n  name: a\n  action: {cast: {intent: i}}\n- rule: B\n  name: b\n  setup:\n    cristal: {}\n    \
         circle: {gates: [nowhere], wards: 3}\n  action: {cast: {intention: i}}\n  expect: {resolt: 1}\n- name: c\n",
    );
    let broken = written(folder.path(), "broken.yaml", "- rule: [A\n");
    let missing = folder.path().join("missing.yaml").to_str().expect("UTF-8").to_owned();
    let output = conformance(&[&sound, &faulty, &broken, &missing]);
    let told = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), String::new()), "{told}");
    for place in ["faulty.yaml:1: ", "faulty.yaml:7: ", "faulty.yaml:8: ", "faulty.yaml:9: ", "faulty.yaml:10: "] {
        assert!(told.contains(place), "{place} is not in {told}");
    }
    for part in ["faulty.yaml:11: ", "broken.yaml:", "missing.yaml:", "\"cristal\"", "\"nowhere\"", "\"resolt\""] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
    let output = conformance(&[&faulty, "--json"]);
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::UNPARSABLE.any());
    assert!(envelope["data"]["issues"].as_array().is_some_and(|issues| issues.len() >= 6), "{envelope}");
}

/// A case in both languages.
const BOTH: &str = "- rule: X-1
  name: a case
  mediums: [javascript, python]
  setup:
    crystal: {type: code_circle, responses: [{code: {javascript: 'done(typeof 1)', python: 'done(2)'}}]}
    circle: {gates: [done], wards: [{max_turns: 2}]}
  action: {cast: {intent: i}}
  expect: {result: {javascript: number, python: 2}}
";

#[test]
fn a_case_in_several_mediums_is_one_case_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = judged(&[written(folder.path(), "both.yaml", BOTH)], &[]);
    let names: Vec<&str> = cases.iter().filter_map(|case| case["name"].as_str()).collect();
    assert_eq!(names, ["a case (javascript)", "a case (python)"]);
    assert_eq!(failed(&cases), []);
    assert_eq!(cases[0]["verdict"], "ok");
    // Each variant is judged by its own values.
    let wrong = BOTH.replace("javascript: number", "javascript: string");
    let cases = judged(&[written(folder.path(), "wrong.yaml", &wrong)], &[]);
    assert_eq!(cases[0]["verdict"], "fail");
}

#[test]
fn the_example_of_the_page_is_a_case_that_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = fs::read_to_string(root().join("tests/conformance/README.md")).expect("the page is there");
    let (_, example) = page.split_once("```yaml\n").expect("the page has an example");
    let (example, _) = example.split_once("```").expect("which ends");
    let cases = judged(&[written(folder.path(), "example.yaml", example)], &[]);
    assert_eq!((cases.len(), failed(&cases)), (2, Vec::new()));
}

#[test]
fn what_a_case_says_of_mediums_is_read_strictly() {
    let folder = tempfile::tempdir().expect("a folder");
    for (of, to, line) in [
        ("[javascript, python]", "[javascript, pyhton]", 3),
        ("[javascript, python]", "[javascript, javascript]", 3),
        ("[javascript, python]", "[]", 3),
        ("[javascript, python]", "javascript", 3),
        ("[javascript, python]", "[javascript]", 5),
        (", python: 'done(2)'", "", 5),
        ("gates: [done]", "medium: javascript, gates: [done]", 6),
        ("gates: [done]", "mediums: [javascript], gates: [done]", 6),
        (", python: 2}", "}", 8),
    ] {
        let faulty = BOTH.replacen(of, to, 1);
        assert_ne!(faulty, BOTH);
        let file = written(folder.path(), "faulty.yaml", &faulty);
        let output = conformance(&[&file]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{to}: {told}");
        assert!(told.contains(&format!("faulty.yaml:{line}: ")), "{to}: {told}");
    }
}

#[test]
fn an_entity_that_lives_on_is_summoned_before_it_is_sent_anything() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup =
        "{crystal: {responses: [{content: a}, {content: b}]}, circle: {gates: [done], wards: [{max_turns: 1}]}}";
    let both = "[{summon: one}, {send: {to: one, intent: i}}, {send: {to: one, intent: j}, then: {extract_thread: 0}}]";
    let cases = [
        case(setup, both, "{results: [a, b], entities: 1, thread: {length: 2}}"),
        case(setup, "[{summon: {name: one, crystal: crystal}}, {send: {to: one, intent: i}}]", "{results: [a]}"),
        case(setup, "[{summon: one}, {send: {to: one, intent: null}}]", "{error: intent is required}"),
        case(setup, both, "{entities: 2}"),
        case(setup, "[{summon: one}, {send: {to: one, intent: ' '}}]", "{entities: 1}"),
    ];
    let judged = judged(&[written(folder.path(), "sent.yaml", &cases.concat())], &[]);
    let verdicts: Vec<&str> = judged.iter().filter_map(|case| case["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["ok", "ok", "ok", "fail", "fail"], "{judged:#?}");
    for action in [
        "[{send: {to: one, intent: i}}]",
        "[{summon: one}, {send: {to: two, intent: i}}]",
        "[{summon: one}, {send: {intent: i}}]",
        "[{summon: {crystal: crystal}}]",
        "[{summon: {name: one, crystal: other}}]",
        "[{summon: one, then: {extract_thread: 0}}]",
    ] {
        let file = written(folder.path(), "faulty.yaml", &case(setup, action, "{entities: 0}"));
        let output = conformance(&[&file]);
        assert_eq!(output.status.code(), Some(2), "{action}: {output:?}");
        assert!(text(&output.stderr).contains("faulty.yaml:4: "), "{action}: {output:?}");
    }
}

/// Fragments of the syntax of a case file, valid or nearly valid.
const WORDS: &[&str] = &["- ", "\n", ": ", "{", "}", "[", "]", "&a ", "*a", "|", "\"", "\t", "null", "1e999", "\u{0}"];

proptest! {
    #![proptest_config(garble::samples(12))]

    /// Runs the whole command, also on files that are not text: it replies, and runs no case of a file that it cannot
    /// read.
    #[test]
    fn a_file_that_is_almost_right_is_refused_as_invalid_or_read(
        bytes in garble::garbled(&[include_str!("../../../tests/conformance/loop.yaml")], WORDS),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("almost.yaml");
        fs::write(&path, bytes).expect("the file can be written");
        // No case has this name, so a valid file has no matching case.
        let output = conformance(&[path.to_str().expect("UTF-8"), "--json", "--filter", "no case is called so"]);
        prop_assert_eq!(output.status.code(), Some(2), "{:?}", &output);
        let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
        let code = if envelope["code"] == codes::NOT_FOUND.any().as_str() { codes::NOT_FOUND.any() } else { codes::UNPARSABLE.any() };
        assert_envelope(&envelope, code);
    }
}

#[test]
fn a_case_that_expects_nothing_is_a_fault_of_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    for expect in ["{}", "null"] {
        let file = written(folder.path(), "empty.yaml", &case(TALKS, CAST, expect));
        let output = conformance(&[&file]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains("empty.yaml:5: "), "{output:?}");
    }
}

#[test]
fn lines_and_the_closing_line_read_as_promised() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases = [
        case(TALKS, CAST, "{result: b}"),
        case(TALKS, CAST, "{turns: 7}"),
        "- {rule: X-2, name: another, skip: true}\n".to_owned(),
    ];
    let file = written(folder.path(), "three.yaml", &cases.concat());
    let output = conformance(&[&file]);
    let shown = text(&output.stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[0].starts_with("ok     1 X-1 a case (") && lines[0].ends_with(" ms)"), "{shown}");
    assert_eq!(lines[1..3], ["FAIL   2 X-1 a case: turns: expected 7, got 2", "skip   3 X-2 another: marked skip"]);
    assert_eq!((lines[3], output.status.code()), ("1 passed, 1 failed, 1 skipped", Some(4)));
    let output = conformance(&[&file, "--filter", "X-2"]);
    assert!(text(&output.stdout).ends_with("\n0 passed, 0 failed, 1 skipped\n"), "{output:?}");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(conformance(&[&file, "--filter", "nothing like it"]).status.code(), Some(2));
    assert_eq!(conformance(&[&file, "--store", "cloud:"]).status.code(), Some(2));
}
