//! Invalid input of any kind: the position, the fault and the remedy are reported, and nothing is cast.

use crate::support;

use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};
use support::{Folder, enveloped, stderr, stdout};

const SCRIPT: &str = "responses:\n  - tool_calls: [{id: d, gate: done, args: {answer: 1}}]\n";

/// Casts an invalid spell. Returns its reply and the text for people.
#[track_caller]
fn refused(spell: &str, code: AnyCode) -> (Value, String) {
    let folder = Folder::new();
    folder.write("bad.toml", spell);
    folder.write("script.yaml", SCRIPT);
    let envelope = folder.envelope(&["cast", "bad.toml", "go"], code);
    let output = folder.run(&["cast", "bad.toml", "go"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{output:?}");
    assert!(!folder.path().join("kept/records.jsonl").exists(), "something was cast");
    (envelope["data"].clone(), stderr(&output).to_owned())
}

#[track_caller]
fn tells(told: &str, parts: &[&str]) {
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
}

#[test]
fn broken_toml_is_told_with_line_column_and_what_was_expected() {
    let (data, told) = refused("name = \"bad\"\ncrystal = \"scripted/script.yaml\n", codes::UNPARSABLE.any());
    tells(&told, &["spell bad.toml", "line 2, column", "expected `\"`"]);
    assert!(data["position"].as_str().is_some_and(|position| position.starts_with("line 2")), "{data}");
    let (_, told) = refused("name = \"bad\"\n[gates.read\nroot = \".\"\n", codes::UNPARSABLE.any());
    tells(&told, &["line 2, column", "expected `]`"]);
}

#[test]
fn an_unknown_gate_is_told_with_its_line_and_the_nearest_one() {
    let spell = "name = \"bad\"\ncrystal = \"scripted/script.yaml\"\n\n[gates.raed]\nroot = \".\"\n";
    let (data, told) = refused(spell, codes::CONFIG_INVALID.any());
    tells(&told, &["bad.toml: gates.raed: line 4", "did you mean read?", "command = [...]"]);
    assert_eq!(data["issues"][0]["line"], json!(4));
}

#[test]
fn a_ward_that_is_missing_is_added_and_one_that_is_unknown_or_useless_is_told() {
    let folder = Folder::new();
    folder.write("bare.toml", "name = \"bare\"\ncrystal = \"scripted/script.yaml\"\n");
    folder.write("script.yaml", SCRIPT);
    let shown = folder.run(&["cast", "bare.toml", "--dry-run"]);
    assert!(stdout(&shown).contains("[wards]\nmax_turns = 50\n"), "{shown:?}");
    assert_eq!(stdout(&folder.run(&["cast", "bare.toml", "go", "--quiet"])), "1\n");

    let crystal = "name = \"bad\"\ncrystal = \"scripted/script.yaml\"\n[wards]\n";
    let (_, told) = refused(&format!("{crystal}max_turn = 3\n"), codes::CONFIG_INVALID.any());
    tells(&told, &["wards.max_turn: line 4", "did you mean max_turns?"]);
    let (_, told) = refused(&format!("{crystal}max_turns = 0\n"), codes::CONFIG_INVALID.any());
    tells(&told, &["wards.max_turns: line 4", "too small", "write a larger number"]);
}

#[test]
fn every_value_of_a_wrong_kind_is_told_at_once_with_an_example() {
    let spell = "name = \"bad\"\ncrystal = 5\nmedium = [\"javascript\"]\n[wards]\nmax_turns = \"ten\"\ntimeout = \"soon\"\n\
                 [gates]\nread = 3\n";
    let (data, told) = refused(spell, codes::CONFIG_INVALID.any());
    let lines: Vec<_> = data["issues"].as_array().expect("issues").iter().map(|issue| issue["line"].clone()).collect();
    assert_eq!(lines, [json!(2), json!(3), json!(5), json!(6), json!(8)], "{data}");
    tells(
        &told,
        &[
            "crystal: line 2: this is a number, but a text is expected, as in crystal = \"",
            "also medium: line 3: this is a list, but a text is expected, as in medium = \"javascript\"",
            "also wards.max_turns: line 5: ward max_turns is not a whole number",
            "also wards.timeout: line 6: ward timeout is not a duration such as 90s, 5m or 250ms",
            "also gates.read: line 8: this is a number, but a table is expected: write [gates.read]",
        ],
    );
}

#[test]
fn what_a_spell_names_and_is_not_there_is_told_with_what_to_do() {
    let (_, told) = refused("name = \"bad\"\n", codes::CONFIG_INVALID.any());
    tells(&told, &["a spell needs one: write crystal = \""]);
    let (_, told) = refused("name = \"bad\"\ncrystal = \"scripted/nowhere.yaml\"\n", codes::CONFIG_INVALID.any());
    tells(&told, &["bad.toml: crystal: nowhere.yaml: the file does not exist; create it, or name another one"]);
    let spell = "name = \"bad\"\ncrystal = \"scripted/script.yaml\"\n[gates.read]\nroot = \"./nowhere\"\n";
    let (_, told) = refused(spell, codes::CONFIG_INVALID.any());
    tells(&told, &["gates.read.root: line 3", "make it, or name another one"]);
    let spell = "name = \"bad\"\ncrystal = \"scripted/script.yaml\"\nmedium = \"javascrpt\"\n";
    let (_, told) = refused(spell, codes::CONFIG_INVALID.any());
    tells(&told, &["medium: line 3", "did you mean javascript?"]);
}

#[test]
fn a_script_that_cannot_be_read_is_told_with_its_lines() {
    let folder = Folder::new();
    folder.write("bad.toml", "name = \"bad\"\ncrystal = \"scripted/bad.yaml\"\n");
    folder.write("bad.yaml", "responses:\n  - contnet: hi\n  - tool_calls: 3\n");
    let envelope = folder.envelope(&["cast", "bad.toml", "go"], codes::UNPARSABLE.any());
    assert_eq!(envelope["data"]["issues"].as_array().map(Vec::len), Some(2), "{envelope}");
    let output = folder.run(&["cast", "bad.toml", "go"]);
    tells(stderr(&output), &["bad.yaml cannot be parsed at line 2", "did you mean \"content\"?", "also line 3"]);
}

#[test]
fn a_script_that_runs_dry_says_how_many_responses_it_has_and_to_add_one() {
    let folder = Folder::new();
    folder.write("dry.toml", "name = \"dry\"\ncrystal = \"scripted/dry.yaml\"\n[call]\nrequire_done_tool = true\n");
    folder.write("dry.yaml", "responses:\n  - content: one\n  - content: two\n");
    let envelope = folder.envelope(&["cast", "dry.toml", "talk"], codes::CRYSTAL_REJECTED.any());
    let message = envelope["message"].as_str().expect("a message");
    tells(message, &["scripted/dry.yaml", "script exhausted", "2 responses", "add one"]);
    let output = folder.run(&["cast", "dry.toml", "talk"]);
    assert_eq!(output.status.code(), Some(4));
    // The earlier turns are kept and can be read.
    assert_eq!(folder.seen(&["thread"])["turns"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_program_that_does_not_parse_is_told_to_the_entity_with_its_line_and_the_cast_goes_on() {
    let folder = Folder::new().with_adder();
    folder
        .write("adder.yaml", "responses:\n  - code: |\n      var a = 1;\n      var b = ;\n  - code: done('mended')\n");
    let output = folder.run(&["cast", "adder.toml", "go"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "mended\n"), "{output:?}");
    tells(stderr(&output), &["SyntaxError", "turn-1.js:2:"]);
    let turn = &folder.seen(&["thread"])["turns"][0];
    assert_eq!(turn["outputs"][0]["error"]["name"], "SyntaxError");
    assert_eq!(turn["outputs"][0]["error"]["line"], json!(2));
}

#[test]
fn an_intent_and_a_context_that_are_not_there_are_told() {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", " \n"], codes::CONTRACT_INVALID.any());
    folder.envelope(&["cast", "hello.toml", "go", "--context", "nowhere.csv"], codes::FILE_MISSING.any());
    folder.envelope(&["cast", "hello.toml", "go", "--context", "."], codes::TARGET_UNUSABLE.any());
    let nothing = folder.piped(&["cast", "hello.toml", "-", "--json"], "");
    let envelope: Value = serde_json::from_slice(&nothing.stdout).expect("an envelope");
    cantrip_reply::testing::assert_envelope(&envelope, codes::CONTRACT_INVALID.any());
    folder.envelope(&["cast", "hello.toml", "go", "--crystal", "nobody/nothing"], codes::CONFIG_INVALID.any());
    folder.envelope(&["cast", "look around"], codes::CONFIG_INVALID.any());
}

#[test]
fn arguments_that_cannot_be_read_are_answered_with_the_envelope_where_it_is_asked_for() {
    let folder = Folder::new();
    let wrong: [(&[&str], &str, &str); 6] = [
        (&["cast", "x", "y", "--frobnicate"], "--frobnicate", "cantrip cast --help"),
        (&["predict"], "<SIGNATURE>", "cantrip predict --help"),
        (&["cast", "x", "y", "--budget", "plenty"], "--budget <MONEY>", "cantrip"),
        (&["run", "ls", "--state", "asleep"], "--state <STATE>", "cantrip"),
        (&["frobnicate"], "frobnicate", "cantrip --help"),
        (&["run"], "cantrip run", "cantrip run --help"),
    ];
    for (arguments, named, hint) in wrong {
        // The option works in any position.
        let after = [arguments, &["--json"]].concat();
        let before = [&["--json"], arguments].concat();
        for arguments in [after, before] {
            let output = folder.run(&arguments);
            let envelope = enveloped(&output, codes::CONFIG_INVALID.any());
            assert_eq!((output.status.code(), stderr(&output)), (Some(2), ""), "{arguments:?}");
            let data = &envelope["data"];
            assert!(data["key"].as_str().is_some_and(|key| key.contains(named)), "{named}: {envelope}");
            assert!(data["hint"].as_str().is_some_and(|told| told.starts_with(hint)), "{hint}: {envelope}");
            assert!(data["rule"].as_str().is_some_and(|rule| !rule.is_empty() && !rule.contains('\n')), "{envelope}");
        }
    }
    // Two forms of output at once are refused wherever `--json` stands, before anything is cast.
    for (words, form) in [
        (&["cast", "x", "y", "--jsonl"][..], "--jsonl"),
        (&["summon", "x", "--jsonl"], "--jsonl"),
        (&["loom", "fork", "turn_1", "y", "--jsonl"], "--jsonl"),
        (&["run", "resume", "--jsonl"], "--jsonl"),
        (&["run", "continue", "--jsonl"], "--jsonl"),
        (&["codes", "--markdown"], "--markdown"),
        (&["models", "--markdown"], "--markdown"),
    ] {
        for at in 0..=words.len() {
            let (before, behind) = words.split_at(at);
            let output = folder.run(&[before, &["--json"], behind].concat());
            let both = enveloped(&output, codes::CONFIG_INVALID.any());
            assert_eq!((output.status.code(), stderr(&output)), (Some(2), ""), "{before:?} {behind:?}");
            let rule = both["data"]["rule"].as_str().unwrap_or_default();
            assert!(rule.contains(form) && rule.contains("cannot be used with"), "{before:?} {behind:?}: {both}");
            assert_eq!(both["data"]["hint"].as_str().map(|hint| hint.ends_with("--help")), Some(true), "{both}");
        }
    }
    // A command of a group is suggested by its whole name.
    for (word, suggested) in [("resume", "run resume"), ("fork", "loom fork"), ("approve", "run approve")] {
        let envelope = folder.envelope(&[word], codes::CONFIG_INVALID.any());
        assert_eq!(envelope["data"]["hint"], format!("cantrip {suggested} --help"), "{envelope}");
        let output = folder.run(&[word, "run_06cyf9"]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
        tells(stderr(&output), &[&format!("'{suggested}'")]);
        assert!(!stderr(&output).contains("serve") && !stderr(&output).contains("worker"), "{output:?}");
    }
    assert!(!folder.path().join(".cantrip").exists(), "nothing was cast");
    // People get the same text as before, and so does a request for help.
    let output = folder.run(&["cast", "x", "y", "--frobnicate"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    tells(stderr(&output), &["unexpected argument '--frobnicate'", "Usage: cantrip cast"]);
    // After `--` it is an ordinary word.
    let output = folder.run(&["frobnicate", "--", "--json"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    for asks in [&["--help", "--json"][..], &["cast", "--help", "--json"], &["--version", "--json"]] {
        let output = folder.run(asks);
        assert!(output.status.success() && stdout(&output).contains("cantrip"), "{output:?}");
    }
}
