//! The output of each command for people and for programs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::Value;

fn cantrip(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cantrip")).args(arguments).env_remove("CARGO").output().expect("the binary runs")
}

fn cantrip_reading(arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cantrip"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    child.stdin.take().expect("a pipe").write_all(input).expect("the binary reads its input");
    child.wait_with_output().expect("the binary ends")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8 on standard output")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8 on standard error")
}

#[track_caller]
fn envelope(output: &Output, code: AnyCode) -> Value {
    let envelope = serde_json::from_str(&stdout(output)).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&envelope, code);
    let exit = match code.reply_type().as_str() {
        "S" => 0,
        "I" => 2,
        "D" => 3,
        _ => 4,
    };
    assert_eq!(output.status.code(), Some(exit));
    envelope
}

/// One event on a line, of turn `t` in session `s`.
fn event(kind: &str, payload: &str) -> String {
    let comma = if payload.is_empty() { "" } else { "," };
    format!(
        r#"{{"eventId":"e","timestamp":"2026-02-19T02:00:00Z","turnId":"t","sessionId":"s","type":"{kind}","payload":{{"type":"{kind}"{comma}{payload}}}}}"#
    )
}

#[test]
fn the_registry_is_listed_whole_and_every_code_reads_back() {
    let reply = envelope(&cantrip(&["codes", "--json"]), codes::OK.any());
    let listed: Vec<_> = reply["data"]["codes"].as_array().expect("a list").iter().collect();
    assert_eq!(listed.len(), AnyCode::all().len());
    for row in listed {
        let code = AnyCode::parse(row["code"].as_str().expect("a code")).expect("a registered code");
        assert_eq!(row["key"], code.row().key);
        assert_eq!(row["type"], code.reply_type().as_str());
        assert_eq!(row["layer"], code.layer().as_str());
        assert_eq!(row["area"], code.area().as_str());
    }
}

#[test]
fn one_code_is_found_by_itself_by_its_key_and_by_its_beginning() {
    for asked in ["WA-READ-I-001", "file_missing"] {
        let reply = envelope(&cantrip(&["codes", asked, "--json"]), codes::OK.any());
        assert_eq!(reply["data"]["codes"].as_array().expect("a list").len(), 1);
        assert_eq!(reply["data"]["codes"][0]["code"], "WA-READ-I-001");
    }
    let reply = envelope(&cantrip(&["codes", "EN-GATE", "--json"]), codes::OK.any());
    let begun = AnyCode::all().filter(|code| code.as_str().starts_with("EN-GATE")).count();
    assert_eq!(reply["data"]["codes"].as_array().expect("a list").len(), begun);
}

#[test]
fn the_reasons_of_policy_are_listed_and_one_is_explained() {
    let reply = envelope(&cantrip(&["codes", "--reasons", "--json"]), codes::OK.any());
    assert_eq!(reply["data"]["version"], "runtime-policy-reasons.v1");
    assert_eq!(reply["data"]["reasons"].as_array().expect("a list").len(), cantrip_spend::REASONS.len());
    let output = cantrip(&["codes", "policy_denied.budget_exhausted"]);
    let told = stdout(&output);
    assert!(told.contains("103") && told.contains("more than the authorization has left"), "{told}");
    let family = envelope(&cantrip(&["codes", "approval_required.", "--json"]), codes::OK.any());
    assert_eq!(family["data"]["reasons"].as_array().expect("a list").len(), 3);
}

#[test]
fn the_layer_that_reads_as_a_protocol_is_explained_as_the_system() {
    let explained = cantrip(&["codes", codes::RECORD_ALTERED.as_str()]);
    assert!(stdout(&explained).contains("layer    MCP: the system (not the protocol MCP): "), "{explained:?}");
}

#[test]
fn a_code_that_does_not_exist_is_invalid_and_says_why() {
    for (asked, why) in [("XX-READ-S-001", "layer"), ("WA-READ-S-999", "regist"), ("", "form"), ("wa-read", "form")] {
        let reply = envelope(&cantrip(&["codes", asked, "--json"]), codes::NOT_FOUND.any());
        let fault = reply["data"]["fault"].as_str().expect("a fault");
        assert!(fault.contains(why), "{asked:?}: {fault}");
    }
}

#[test]
fn a_refusal_goes_to_standard_error_and_leaves_standard_output_empty() {
    let output = cantrip(&["codes", "nonsense"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""));
    let told = stderr(&output);
    assert!(told.starts_with("invalid: ") && told.contains("\nhint: cantrip codes\n"), "{told}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let command = format!("set -o pipefail; '{}' codes | head -n 1", env!("CARGO_BIN_EXE_cantrip"));
    let output = Command::new("bash").args(["-c", &command]).output().expect("bash runs");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn every_room_that_has_bounds_has_them_listed() {
    let reply = envelope(&cantrip(&["limits", "--json"]), codes::OK.any());
    let listed: Vec<_> = reply["data"]["limits"].as_array().expect("a list").iter().collect();
    let rooms = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of rooms");
    for room in std::fs::read_dir(rooms).expect("the rooms").map(|entry| entry.expect("an entry").path()) {
        let Ok(source) = std::fs::read_to_string(room.join("src/limits.rs")) else { continue };
        let name = room.file_name().and_then(|name| name.to_str()).expect("UTF-8");
        let declared =
            source.lines().filter(|line| line.starts_with("    ") && line.contains(": ") && line.ends_with("\";"));
        let shown = listed.iter().filter(|row| row["room"] == name).count();
        assert!(shown > 0 && shown >= declared.count(), "{name} has bounds that are not listed");
    }
    assert!(stdout(&cantrip(&["limits"])).contains("REPLY_BYTES_MAX"));
}

#[test]
fn a_sound_file_becomes_upserts_that_end_in_the_whole_text() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/turn.jsonl");
    let output = cantrip(&["stream", file.to_str().expect("UTF-8")]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let last_message = lines.iter().rfind(|line| line["type"] == "message").expect("a message");
    assert_eq!(last_message["status"], "complete");
    assert!(last_message["content"].as_str().expect("text").ends_with("with that in mind."));
    assert_eq!(lines.last().expect("emissions")["type"], "turn_complete");

    let reply = envelope(&cantrip(&["stream", file.to_str().expect("UTF-8"), "--json"]), codes::READ.any());
    assert_eq!(reply["data"]["emissions"].as_array().expect("a list"), &lines);
    assert_eq!(reply["data"]["events"], 70);
}

#[test]
fn the_gradient_and_the_timers_are_the_callers_choice() {
    let mut input = vec![event("item_start", r#""itemId":"a","itemType":"message""#)];
    input.extend((0..5).map(|_| event("item_delta", r#""itemId":"a","deltaContent":"word ""#)));
    input.push(event("item_done", r#""itemId":"a","finalItem":{"type":"message","content":"done","origin":"agent"}"#));
    let input = input.join("\n");
    let count = |arguments: &[&str]| stdout(&cantrip_reading(arguments, input.as_bytes())).lines().count();
    // The emissions of the text, its completion, and the close of the open turn.
    assert_eq!(count(&["stream", "-", "--gradient", "0"]), 7);
    assert_eq!(count(&["stream", "-", "--gradient", "1,2"]), 4);
    assert_eq!(count(&["stream", "-", "--no-timers"]), 3);
}

#[test]
fn a_stream_that_breaks_off_loses_no_text() {
    let input = [
        event("response_start", r#""modelId":"m","providerId":"p""#),
        event("item_start", r#""itemId":"a","itemType":"message""#),
        event("item_delta", r#""itemId":"a","deltaContent":"half a sen""#),
    ]
    .join("\n");
    let output = cantrip_reading(&["stream", "-"], input.as_bytes());
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<_> = lines.iter().map(|line| (line["type"].as_str(), line["status"].as_str())).collect();
    assert_eq!(
        kinds,
        [
            (Some("turn_started"), None),
            (Some("message"), Some("create")),
            (Some("message"), Some("error")),
            (Some("turn_error"), None)
        ]
    );
    assert_eq!(lines[2]["content"], "half a sen");
    assert_eq!(lines[3]["errorCode"], "STREAM_CLOSED");
}

#[test]
fn every_fault_of_a_file_is_named_by_line_and_path_and_the_rest_still_goes_through() {
    let input = [
        event("response_start", r#""modelId":"m","providerId":"p""#),
        event("item_start", r#""itemType":"message""#),
        "{\"eventId\": \"e\", \"eventId\": \"f\"}".to_owned(),
        "not JSON".to_owned(),
        String::new(),
        event("response_done", r#""status":"completed""#),
    ]
    .join("\n");
    let output = cantrip_reading(&["stream", "-"], input.as_bytes());
    assert_eq!(output.status.code(), Some(2));
    assert!(stdout(&output).lines().last().expect("emissions").contains("turn_complete"), "line 6 was skipped");
    let told = stderr(&output);
    for expected in ["line 2: payload.itemId: ", "line 3, column ", "line 4, column 1: "] {
        assert!(told.contains(expected), "{expected:?} is not in:\n{told}");
    }

    let reply = envelope(&cantrip_reading(&["stream", "-", "--json"], input.as_bytes()), codes::SCHEMA.any());
    assert_eq!(reply["data"]["fault_count"], 3);
    assert_eq!(reply["data"]["faults"][0]["path"], "payload.itemId");
    assert_eq!(reply["data"]["lines"], 6);
    let unparsable = cantrip_reading(&["stream", "-", "--json"], b"{\"a\":01}\n");
    let reply = envelope(&unparsable, codes::UNPARSABLE.any());
    assert_eq!(reply["data"]["faults"][0]["line"], 1);
}

#[test]
fn a_file_of_faults_is_listed_up_to_a_bound_and_counted_whole() {
    let input = "[]\n".repeat(250);
    let reply = envelope(&cantrip_reading(&["stream", "-", "--json"], input.as_bytes()), codes::SCHEMA.any());
    assert_eq!(reply["data"]["fault_count"], 250);
    assert_eq!(reply["data"]["faults"].as_array().expect("a list").len(), 100);
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end_are_faults_like_others() {
    let reply = envelope(&cantrip_reading(&["stream", "-", "--json"], b"\xff\xfe\n"), codes::UNPARSABLE.any());
    assert_eq!(reply["data"]["faults"][0]["line"], 1);
    let mut long = vec![b' '; (16 << 20) + 2];
    long.extend(b"\n[]\n");
    let reply = envelope(&cantrip_reading(&["stream", "-", "--json"], &long), codes::LIMIT.any());
    assert_eq!(reply["data"]["fault_count"], 2);
    assert_eq!(reply["data"]["faults"][1]["line"], 2);
}

#[test]
fn an_event_of_another_session_is_a_fault_of_its_line() {
    let input = [
        event("response_start", r#""modelId":"m","providerId":"p""#),
        event("response_done", r#""status":"completed""#).replace(r#""sessionId":"s""#, r#""sessionId":"other""#),
    ]
    .join("\n");
    let reply = envelope(&cantrip_reading(&["stream", "-", "--json"], input.as_bytes()), codes::SCHEMA.any());
    assert_eq!(
        (&reply["data"]["faults"][0]["line"], &reply["data"]["faults"][0]["path"]),
        (&2.into(), &"sessionId".into())
    );
}

#[test]
fn a_file_that_cannot_be_read_is_told_apart_by_why() {
    envelope(&cantrip(&["stream", "no/such/file.jsonl", "--json"]), codes::FILE_MISSING.any());
    let folder = tempfile::tempdir().expect("a folder");
    envelope(&cantrip(&["stream", folder.path().to_str().expect("UTF-8"), "--json"]), codes::TARGET_UNUSABLE.any());
    // The first page of this file is not mapped, so the system answers the read with an input/output error.
    envelope(&cantrip(&["stream", "/proc/self/mem", "--json"]), codes::IO_FAILED.any());
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/turn.jsonl");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has /dev/full");
    let output = Command::new(env!("CARGO_BIN_EXE_cantrip"))
        .arg("stream")
        .arg(file)
        .stdout(full)
        .output()
        .expect("the binary runs");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(stderr(&output).contains(codes::IO_FAILED.as_str()), "{output:?}");
}

#[test]
fn the_demo_shows_each_outcome_as_it_really_came() {
    let output = cantrip(&["demo"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    let shown = stdout(&output);
    let counted = format!("=> {}", AnyCode::all().len());
    let failed = format!("=> {}", (0..20_000).filter(|line| line % 17 == 0).count());
    let once = "orders that the gate received: tea 1, milk 1, cake 1";
    for expected in [&failed, "=> 20000", "TypeError", "max_turns", "verified", once] {
        assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
    }
    for expected in ["request 2  held", codes::BUDGET_SPENT.as_str(), "refund({\"order\":17})", "order 17 is refunded"]
    {
        assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
    }
    for expected in [&counted, "Invalid", "0.42 USD is more than the 0.25 USD left", codes::CRASH.as_str(), "=> 17"] {
        assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
    }
    for expected in
        [r#"=> {"label":"complaint","confidence":0.97}"#, "2 requests: a confidence of 97", "1 receipt, unchanged"]
    {
        assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
    }
    assert!(!shown.contains("divide"), "what a panic says belongs in the log:\n{shown}");
    // A canary for a quarter of the callers, as the receipts show it, and the rollback.
    let split = |line: &&str| line.trim().starts_with("of 100 callers");
    let canaries = shown.lines().find(split).and_then(|line| line.split_whitespace().nth(3)?.parse::<u32>().ok());
    assert!(canaries.is_some_and(|canaries| (10..=40).contains(&canaries)), "{shown}");
    let served: Vec<Vec<&str>> = shown
        .lines()
        .filter(|line| line.contains("is answered by the"))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let [on_trial, other, back] = served.as_slice() else { panic!("three callers:\n{shown}") };
    assert_eq!((on_trial[5], other[5], back[5]), ("canary,", "primary,", "primary,"), "{shown}");
    assert_eq!(on_trial[0], back[0], "the same caller before and after");
    assert_ne!(on_trial[6], other[6], "two artifacts");
    assert_eq!(other[6], back[6]);
    for expected in ["cantrip pointer canary Classify art_", "--percent 25", "cantrip pointer rollback Classify"] {
        assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
    }
    assert!(shown.contains("set, canary, rollback"), "{shown}");
}

/// Runs the commands at the end of the demo, one after another, in one shell in this folder.
fn pasted(shown: &str, here: &Path, calls: &str) -> Output {
    let (_, commands) = shown.split_once("Try it").expect("a last part");
    let commands: Vec<_> = commands.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let [cast, fork, summon] = commands.as_slice() else { panic!("three commands: {commands:?}") };
    let cast = if cast.contains('|') { (*cast).to_owned() } else { format!("{cast} < /dev/null") };
    let script = format!("set -eo pipefail; {cast}; {fork} < /dev/null; {summon}").replace(calls, "cantrip");
    let binary = Path::new(env!("CARGO_BIN_EXE_cantrip")).parent().expect("a folder");
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").expect("a PATH"));
    let home = tempfile::tempdir().expect("a folder");
    let mut child = Command::new("bash")
        .args(["-c", &script])
        .current_dir(here)
        .env("PATH", path)
        .env("HOME", home.path())
        .env("CANTRIP_STORE", format!("jsonl:{}", home.path().join("kept").display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("bash runs");
    child.stdin.take().expect("a pipe").write_all(b"once more\n").expect("the last command reads");
    child.wait_with_output().expect("bash ends")
}

#[test]
fn the_commands_that_the_demo_ends_with_work_as_pasted() {
    let home = tempfile::tempdir().expect("a folder");
    let output = pasted(&stdout(&cantrip(&["demo"])), home.path(), "cantrip");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stdout(&output).matches("hello from hello\n").count(), 3, "{output:?}");
}

#[test]
fn so_do_those_for_someone_who_came_by_way_of_cargo() {
    let shown = Command::new(env!("CARGO_BIN_EXE_cantrip")).arg("demo").env("CARGO", "cargo").output();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the root of the repository");
    let output = pasted(&stdout(&shown.expect("the binary runs")), root, "cargo run -q --");
    // A new entity of this spell gets nothing to count.
    assert!(stdout(&output).starts_with("11\n11\n"), "{output:?}");
}

#[test]
fn words_that_are_no_command_are_answered_with_what_to_type() {
    let output = cantrip(&["stram"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("stream"), "{}", stderr(&output));
}

#[test]
fn the_log_is_silent_until_asked_and_then_has_one_line_for_the_call() {
    assert_eq!(stderr(&cantrip(&["codes", "--json"])), "");
    let output = Command::new(env!("CARGO_BIN_EXE_cantrip"))
        .args(["codes", "--json"])
        .env("CANTRIP_LOG", "info")
        .output()
        .expect("the binary runs");
    let told = stderr(&output);
    assert_eq!(told.lines().filter(|line| line.contains("call")).count(), 1, "{told}");
}
