//! Summoned entities, driven from a pipe.

use crate::support;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::{Folder, id, stderr, stdout};

#[test]
fn each_line_is_answered_and_the_sandbox_is_one() {
    let folder = Folder::new().with_adder();
    let output = folder.piped(&["summon", "adder.toml", "--quiet"], "add two\n\nadd three\nadd ten\n");
    assert_eq!((output.status.code(), stdout(&output), stderr(&output)), (Some(0), "2\n5\n15\n", ""), "{output:?}");
    assert_eq!(folder.intents(), ["add two", "add three", "add ten"]);
    let thread = folder.seen(&["thread"]);
    assert_eq!(thread["turns"].as_array().map(Vec::len), Some(4));
    assert_eq!(thread["turns"][3]["entity_id"], thread["turns"][0]["entity_id"]);
}

#[test]
fn the_alias_and_the_drawing_are_those_of_a_cast() {
    let folder = Folder::new().with_hello();
    let output = folder.piped(&["invoke", "hello.toml"], "say hello");
    assert_eq!(stdout(&output), "hello from hello\n");
    let told = stderr(&output);
    for part in
        ["hello · scripted/hello.script.yaml · conversation · jsonl:kept", "turn 2", "> echo(", "terminated after"]
    {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
}

#[test]
fn a_block_is_one_intent_and_so_are_lines_that_go_on() {
    let folder = Folder::new().with_adder();
    let output = folder.piped(
        &["summon", "adder.toml", "--quiet"],
        "\"\"\"\nadd\n\n/two \\\n\"\"\"\nadd \\\nthree\n//etc is no command\n",
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(folder.intents(), ["add\n\n/two \\", "add \nthree", "/etc is no command"]);
}

#[test]
fn an_entity_is_taken_up_by_another_process_with_its_history_and_its_variables() {
    let folder = Folder::new().with_adder();
    assert_eq!(stdout(&folder.piped(&["summon", "adder.toml", "--quiet"], "add two\n")), "2\n");
    let entity = folder.seen(&["thread"])["entity"]["entity"]["entity_id"].clone();
    // The script starts again in a new process. Its first line would declare the sum again, so the script is replaced.
    folder.write("adder.yaml", "responses:\n  - code: sum += 40; done(sum)\n  - code: done(sum)\n");
    let short = &id(&entity)[..12];
    assert_eq!(stdout(&folder.piped(&["summon", short, "--quiet"], "add forty\n")), "42\n");
    for last in [&["summon", "@last", "--quiet"][..], &["summon", "--quiet"]] {
        folder.write("adder.yaml", "responses:\n  - code: done(sum)\n");
        assert_eq!(stdout(&folder.piped(last, "how much?\n")), "42\n", "{last:?}");
    }
    let thread = folder.seen(&["thread"]);
    assert_eq!(thread["turns"].as_array().map(Vec::len), Some(4));
    assert_eq!(thread["entity"]["entity"]["entity_id"], entity);
}

#[test]
fn a_new_entity_has_its_context_and_a_known_one_is_given_none() {
    let folder = Folder::new().with_adder();
    folder.write("rows.json", "{\"rows\": [1, 2, 3]}");
    folder.write("adder.yaml", "responses:\n  - code: done(context.rows.length)\n  - code: done(context.rows[0])\n");
    let summon = ["summon", "adder.toml", "--context", "rows.json", "--quiet"];
    assert_eq!(stdout(&folder.piped(&summon, "how many?\nthe first?\n")), "3\n1\n");
    folder.envelope(&["summon", "@last", "--context", "rows.json"], codes::CONFIG_INVALID.any());
    folder.envelope(&["summon", "adder.toml", "--context", "nowhere.json"], codes::FILE_MISSING.any());
}

#[test]
fn a_new_entity_may_have_another_crystal_and_a_known_one_keeps_its_own() {
    let folder = Folder::new().with_adder();
    folder.write("other.yaml", "responses:\n  - code: done('another')\n");
    let summon = ["summon", "adder.toml", "--crystal", "scripted/other.yaml", "--quiet"];
    assert_eq!(stdout(&folder.piped(&summon, "who?\n")), "another\n");
    assert_eq!(
        stdout(&folder.piped(&["summon", "--quiet"], "and now?\n")),
        "another\n",
        "it is found with its crystal"
    );
    folder.envelope(&["summon", "@last", "--crystal", "scripted/adder.yaml"], codes::CONFIG_INVALID.any());
}

#[test]
fn every_intent_gets_an_envelope_of_its_own() {
    let folder = Folder::new().with_adder();
    let output = folder.piped(&["summon", "adder.toml", "--json"], "add two\n/show 1\n/nonsense\nadd three\n");
    let envelopes: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("an envelope")).collect();
    assert_eq!(envelopes.len(), 4, "{output:?}");
    assert_envelope(&envelopes[0], codes::TERMINATED.any());
    assert_envelope(&envelopes[1], codes::READ.any());
    assert_envelope(&envelopes[2], codes::NOT_FOUND.any());
    assert_envelope(&envelopes[3], codes::TERMINATED.any());
    assert_eq!((&envelopes[0]["data"]["answer"], &envelopes[3]["data"]["answer"]), (&json!(2), &json!(5)));
    assert_eq!(envelopes[1]["data"]["value"]["sequence"], 1);
    assert_eq!((output.status.code(), stderr(&output)), (Some(2), ""), "the first that did not succeed");
}

#[test]
fn upserts_come_one_a_line_and_hold_the_answers() {
    let folder = Folder::new().with_adder();
    let output = folder.piped(&["summon", "adder.toml", "--jsonl"], "add two\nadd three\n");
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!((kinds("turn_started"), kinds("turn_complete")), (3, 3), "{output:?}");
    let answers = lines.iter().filter(|line| line["itemId"].as_str().is_some_and(|item| item.ends_with("/answer")));
    let answers: Vec<_> = answers.map(|line| line["content"].clone()).collect();
    assert_eq!(answers, [json!("2"), json!("5")]);
    assert_eq!(stderr(&output), "");
    let both = folder.run(&["summon", "adder.toml", "--jsonl", "--json"]);
    assert_eq!(both.status.code(), Some(2));
}

#[test]
fn an_intent_that_fails_is_told_and_the_next_one_is_asked() {
    let folder = Folder::new().with_adder();
    folder.write("adder.yaml", "responses:\n  - error: {status: 400, message: no}\n  - code: done('on')\n");
    let output = folder.piped(&["summon", "adder.toml", "--quiet"], "one\ntwo\n");
    assert_eq!((output.status.code(), stdout(&output)), (Some(4), "on\n"), "{output:?}");
    assert!(stderr(&output).contains("error:"), "{output:?}");
}

#[test]
fn a_fork_goes_on_from_its_turn_and_leaves_the_other_as_it_was() {
    let folder = Folder::new().with_adder();
    let output = folder.piped(&["summon", "adder.toml", "--quiet"], "add two\nadd three\n/fork 1 add ten\nthe rest\n");
    assert_eq!(stdout(&output), "2\n5\n12\nrest\n", "{output:?}");
    let branch = folder.seen(&["thread"]);
    assert_eq!(folder.intents(), ["add two", "add ten", "the rest"]);
    assert_eq!(branch["forks"].as_array().map(Vec::len), Some(1));
    let tree = folder.seen(&["tree"]);
    let depths: Vec<_> = tree["turns"].as_array().expect("turns").iter().map(|turn| turn["depth"].clone()).collect();
    assert_eq!(depths, [json!(0), json!(1), json!(1), json!(0), json!(0)], "{tree}");
    let missing = folder.piped(&["summon", "--json"], "/fork 9 more\n");
    let envelope: Value = serde_json::from_str(stdout(&missing)).expect("an envelope");
    assert_envelope(&envelope, codes::NOT_FOUND.any());
    assert!(envelope["data"]["hint"].as_str().is_some_and(|hint| hint.contains("1 to 3")), "{envelope}");
}

#[test]
fn what_was_cut_off_goes_on_under_its_own_intent() {
    let folder = Folder::new().with_adder();
    let spell = folder.read("adder.toml").replace("max_turns = 5", "max_turns = 1");
    folder.write("adder.toml", &spell);
    folder.write("adder.yaml", "responses:\n  - code: var sum = 7\n  - code: done(sum)\n");
    let output = folder.piped(&["summon", "adder.toml", "--quiet"], "count\n/continue\n/continue\n");
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), "7\n"), "{output:?}");
    assert!(
        stderr(&output).contains(codes::WRONG_STATE.any().as_str()),
        "a cast that is over does not go on: {output:?}"
    );
    let thread = folder.seen(&["thread"]);
    assert_eq!(thread["casts"][1]["own_intent"], json!(false));
}

#[test]
fn who_cannot_be_summoned_is_told_why_and_nothing_is_written() {
    let folder = Folder::new();
    folder.envelope(&["summon", "nobody"], codes::NOT_FOUND.any());
    assert!(!folder.path().join("kept").exists(), "a name that was not found left a folder");
    folder.envelope(&["summon", "ent_0000"], codes::NOT_FOUND.any());
    folder.envelope(&["summon"], codes::NOT_FOUND.any());
}

#[test]
fn a_spell_that_was_changed_is_another_and_says_so() {
    let folder = Folder::new().with_hello();
    assert!(folder.piped(&["summon", "hello.toml", "--quiet"], "hello\n").status.success());
    let spell = folder.read("hello.toml");
    folder.write("hello.toml", &spell.replace("one sentence", "two sentences"));
    let refused = folder.envelope(&["summon"], codes::CONTRACT_INVALID.any());
    assert!(refused["data"]["hint"].as_str().is_some_and(|hint| hint.contains("loom fork ent_")), "{refused}");
    folder.write("before.toml", &spell);
    let output = folder.piped(&["summon", "--spell", "before.toml", "--quiet"], "hello\n");
    assert_eq!(stdout(&output), "hello from hello\n", "{output:?}");
}

#[test]
fn the_spell_is_found_from_another_folder() {
    let folder = Folder::new().with_hello();
    assert!(folder.piped(&["summon", "hello.toml", "--quiet"], "hello\n").status.success());
    let elsewhere = folder.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    let store = format!("jsonl:{}", folder.path().join("kept").display());
    let mut command = folder.command(&["summon", "--quiet", "--store", &store]);
    let input = std::fs::File::open(folder.path().join("hello.toml")).expect("something to say");
    let output = command.current_dir(&elsewhere).stdin(input).output().expect("the binary runs");
    // Each line of the file is an intent; the first one is answered from the script.
    assert!(stdout(&output).starts_with("hello from hello\n"), "{output:?}");
}

#[test]
fn an_intent_beyond_its_limit_is_refused_and_the_next_line_is_heard() {
    let folder = Folder::new().with_adder();
    let long = "x".repeat((1 << 20) + 1);
    let output = folder.piped(&["summon", "adder.toml", "--json"], &format!("{long}\nadd two\n"));
    let envelopes: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("an envelope")).collect();
    assert_envelope(&envelopes[0], codes::LIMIT.any());
    assert_envelope(&envelopes[1], codes::TERMINATED.any());
}
