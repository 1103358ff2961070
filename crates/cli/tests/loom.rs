//! The records of casts: read, verified, rewarded, exported and imported.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

/// A separate folder for each test, which is also the only home that the binary sees.
struct Folder(tempfile::TempDir);

impl Folder {
    /// A folder with one cast of the spell that `new` writes, in `jsonl:kept`.
    fn with_a_cast() -> Self {
        let folder = Self::empty();
        folder.envelope(&["new", "hello"], codes::CREATED.any());
        folder.envelope(&["cast", "hello.toml", "say hello", "--store", "jsonl:kept"], codes::TERMINATED.any());
        folder
    }

    fn empty() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("a file can be written");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path().join(name)).expect("a file can be read")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cantrip"));
        command.args(arguments).current_dir(self.path()).env("HOME", self.path()).env("NO_COLOR", "1");
        command.env_remove("XDG_DATA_HOME").env_remove("CANTRIP_STORE").env_remove("CANTRIP_CRYSTAL");
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    #[track_caller]
    fn envelope(&self, arguments: &[&str], code: AnyCode) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&envelope, code);
        envelope
    }

    /// Returns the value that a loom command reads from `jsonl:kept`.
    #[track_caller]
    fn seen(&self, arguments: &[&str]) -> Value {
        let envelope = self.envelope(&[&["loom"], arguments, &["--store", "jsonl:kept"]].concat(), codes::READ.any());
        envelope["data"]["value"].clone()
    }

    /// Returns the text that a loom command prints about `jsonl:kept`.
    #[track_caller]
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(&[&["loom"], arguments, &["--store", "jsonl:kept"]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], code: AnyCode) -> Value {
        let envelope = self.envelope(&[&["loom"], arguments].concat(), code);
        envelope["data"].clone()
    }
}

fn id(value: &Value) -> &str {
    value.as_str().expect("an id")
}

#[test]
fn ls_counts_and_gives_a_loom_the_name_of_its_spell_from_near_or_from_the_note_of_its_cast() {
    let folder = Folder::with_a_cast();
    let looms = folder.seen(&["ls"]);
    assert_eq!((&looms[0]["name"], &looms[0]["entities"], &looms[0]["turns"]), (&json!("hello"), &json!(1), &json!(2)));
    let text = folder.text(&["ls"]);
    assert!(text.starts_with("hello  loom_") && text.contains("  1 entity  2 turns  20"), "{text}");
    fs::remove_file(folder.path().join("hello.toml")).expect("it was there");
    assert_eq!(folder.seen(&["ls"])[0]["name"], "hello");
    fs::remove_dir_all(folder.path().join("kept/origins")).expect("the cast was noted");
    assert_eq!(folder.seen(&["ls"])[0]["name"], Value::Null);
    assert!(folder.text(&["ls"]).starts_with("-  loom_"));
}

#[test]
fn a_tree_has_one_line_a_turn_with_its_state_and_gates() {
    let folder = Folder::with_a_cast();
    let tree = folder.seen(&["tree"]);
    let text = folder.text(&["tree", "hello"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert_eq!(lines[0], id(&tree["loom_id"]));
    assert_eq!(lines[1], format!("{}  say hello", id(&tree["turns"][0]["entity_id"])));
    assert_eq!(lines[2], format!("  1. {}  went on  echo", id(&tree["turns"][0]["id"])));
    assert_eq!(lines[3], format!("  2. {}  terminated (done)  done", id(&tree["turns"][1]["id"])));
    assert_eq!(tree["turns"][1]["parent_id"], tree["turns"][0]["id"]);
    let of_entity = folder.text(&["tree", id(&tree["turns"][0]["entity_id"])]);
    assert_eq!(of_entity, text);
}

#[test]
fn children_stand_indented_below_the_turn_that_cast_them_even_without_a_turn() {
    let folder = Folder::empty();
    folder.write(
        "counter.toml",
        "name = \"counter\"\ncrystal = \"scripted/counter.yaml\"\nmedium = \"javascript\"\n[call]\n\
         require_done_tool = true\n[gates.call_agent_batch]\n[wards]\nmax_turns = 5\n",
    );
    folder.write(
        "counter.yaml",
        "responses:\n  - code: |\n      done(call_agent_batch([{intent: \"one\"}, {intent: \"two\"}]).length)\n  - code: done(1)\n",
    );
    folder.envelope(&["cast", "counter.toml", "count", "--store", "jsonl:kept"], codes::TERMINATED.any());
    let tree = folder.seen(&["tree"]);
    let depths: Vec<_> = tree["turns"].as_array().expect("turns").iter().map(|turn| turn["depth"].clone()).collect();
    assert_eq!(depths, [json!(0), json!(1), json!(0)], "{tree}");
    let text = folder.text(&["tree"]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].ends_with("sealed  call_agent_batch (delegated)"), "{text}");
    let children = lines.iter().filter(|line| line.starts_with("  child ent_")).count();
    assert_eq!((children, lines.iter().filter(|line| line.ends_with("no turn closed")).count()), (2, 1), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("    1. turn_")), "{text}");
    // Only the child and its descendants.
    let child = id(&tree["turns"][1]["entity_id"]);
    let grown = folder.text(&["tree", child]);
    assert!(grown.contains(child) && grown.lines().count() == 3, "{grown}");
}

#[test]
fn a_long_tree_is_drawn_whole_and_listed_as_far_as_an_envelope_goes() {
    const TURNS: usize = 1_100;
    let folder = Folder::empty();
    folder.write(
        "talker.toml",
        &format!(
            "name = \"talker\"\ncrystal = \"scripted/talker.yaml\"\n[call]\nrequire_done_tool = true\n[wards]\nmax_turns = {TURNS}\n"
        ),
    );
    let texts: String = (0..TURNS).map(|n| format!("  - content: on and on {n}\n")).collect();
    folder.write("talker.yaml", &format!("responses:\n{texts}"));
    folder.envelope(&["cast", "talker.toml", "talk", "--store", "jsonl:kept"], codes::WARD_REACHED.any());
    assert_eq!(folder.seen(&["ls"])[0]["turns"], json!(TURNS));
    assert_eq!(folder.text(&["tree"]).lines().count(), TURNS + 2);
    let tree = folder.seen(&["tree"]);
    assert_eq!(tree["turns"].as_array().map(Vec::len), Some(1_000));
    assert_eq!(tree["truncated"], json!({"shown": 1_000, "total": TURNS}));
}

#[test]
fn show_tells_what_a_turn_said_called_and_took() {
    let folder = Folder::with_a_cast();
    let last = folder.seen(&["show"]);
    assert_eq!((&last["sequence"], &last["terminated"]), (&json!(2), &json!(true)));
    assert_eq!(folder.seen(&["show", "@last"]), last);
    assert_eq!(folder.seen(&["show", id(&last["entity_id"])]), last, "an entity stands for its last turn");
    assert_eq!(folder.seen(&["show", id(&last["cast_id"])]), last, "a cast stands for its last turn");
    let first = folder.text(&["show", id(&last["parent_id"])]);
    for part in ["1. turn_", "  ? say hello\n", "  > echo(", "  < success WA-EXEC-S-001\n", " tokens in ("] {
        assert!(first.contains(part), "{part:?} is not in {first}");
    }
}

#[test]
fn a_thread_is_told_from_its_root_to_the_turn_that_names_it() {
    let folder = Folder::with_a_cast();
    let thread = folder.seen(&["thread"]);
    assert_eq!(thread["turns"].as_array().map(Vec::len), Some(2));
    assert_eq!(thread["state"], "terminated");
    let text = folder.text(&["thread"]);
    let (first, second) = (text.find("\n1. turn_").expect("turn 1"), text.find("\n2. turn_").expect("turn 2"));
    assert!(first < second && text.contains("  terminated  2 turns\n  ent_"), "{text}");
    let shorter = folder.seen(&["thread", id(&thread["turns"][0]["id"])]);
    assert_eq!(shorter["turns"].as_array().map(Vec::len), Some(1));
}

#[test]
fn the_last_turns_of_a_thread_are_shown_alone() {
    let folder = Folder::with_a_cast();
    let whole = folder.seen(&["thread"]);
    let last = folder.seen(&["thread", "--last", "1"]);
    assert_eq!((last["turns"].as_array().map(Vec::len), &last["turns"][0]), (Some(1), &whole["turns"][1]));
    assert_eq!((&last["leaf"], &last["casts"]), (&whole["leaf"], &whole["casts"]));
    assert_eq!(folder.seen(&["thread", "--last", "9"]), whole);
    let told = folder.run(&["loom", "thread", "--last", "1", "--store", "jsonl:kept"]);
    assert!(String::from_utf8_lossy(&told.stdout).contains("those before turn 2 are not shown"), "{told:?}");
    assert_eq!(folder.run(&["loom", "thread", "--last", "0", "--store", "jsonl:kept"]).status.code(), Some(2));
}

#[test]
fn what_was_said_cannot_steer_the_terminal() {
    let folder = Folder::empty();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    folder.envelope(&["cast", "hello.toml", "a\u{1b}]0;title\u{7}b", "--store", "jsonl:kept"], codes::TERMINATED.any());
    for command in ["tree", "thread"] {
        let text = folder.text(&[command]);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{7}') && text.contains("]0;title b"), "{text:?}");
    }
}

#[test]
fn verify_names_the_record_that_was_tampered_with() {
    let folder = Folder::with_a_cast();
    let sound = folder.envelope(&["loom", "verify", "--store", "jsonl:kept"], codes::VERIFIED.any());
    let records = folder.read("kept/records.jsonl");
    assert_eq!(sound["data"]["records"], json!(records.lines().count()));
    assert!(folder.text(&["verify"]).contains("are as they were written"));

    let at = records.lines().position(|line| line.contains("\"type\":\"cast\"")).expect("a cast");
    let line: Value = serde_json::from_str(records.lines().nth(at).expect("the line")).expect("a record");
    folder
        .write("kept/records.jsonl", &records.replacen("{\"inline\":\"say hello\"}", "{\"inline\":\"say jello\"}", 1));
    let data = folder.refused(&["verify", "--store", "jsonl:kept"], codes::RECORD_ALTERED.any());
    assert_eq!((&data["run_id"], &data["seq"], &data["line"]), (&line["run_id"], &line["seq"], &json!(at + 1)));
    let output = folder.run(&["loom", "verify", "--store", "jsonl:kept"]);
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(4));
    assert!(told.contains(&format!("record {} of {}", line["seq"], id(&line["run_id"]))), "{told}");
    // The layer of this code is not the protocol.
    assert!(told.contains(&format!("\n{} (system) trace ", codes::RECORD_ALTERED.any())), "{told}");
    // An altered loom is not shown.
    folder.refused(&["tree", "--store", "jsonl:kept"], codes::RECORD_ALTERED.any());
}

#[test]
fn verify_does_not_call_a_folder_sound_that_holds_no_loom() {
    let folder = Folder::empty();
    folder.refused(&["verify", "--store", "jsonl:nowhere"], codes::NOT_FOUND.any());
    folder.refused(&["verify", "--store", "memory:"], codes::CONFIG_INVALID.any());
    assert!(!folder.path().join("nowhere").exists(), "a look made a folder");
}

#[test]
fn the_latest_reward_counts_and_only_a_number_is_one() {
    let folder = Folder::with_a_cast();
    let reward = |value| ["loom", "reward", "@last", value, "--store", "jsonl:kept"];
    folder.envelope(&reward("0.5"), codes::CHANGED.any());
    folder.envelope(&reward("-1"), codes::CHANGED.any());
    assert_eq!(folder.seen(&["show"])["reward"], json!(-1));
    folder.envelope(&["loom", "reward", "2", "--store", "jsonl:kept"], codes::CHANGED.any());
    assert_eq!(folder.seen(&["show"])["reward"], json!(2), "the latest turn is meant where none is named");
    folder.envelope(&["loom", "reward", "-1", "--store", "jsonl:kept"], codes::CHANGED.any());
    assert!(folder.text(&["tree"]).contains("terminated (done)  done  reward -1"));
    folder.envelope(&reward("NaN"), codes::SCHEMA.any());
    folder.envelope(&[&reward("1")[..], &["--by", ""]].concat(), codes::CONFIG_INVALID.any());
    assert_eq!(folder.seen(&["show"])["reward"], json!(-1));
    assert_eq!(folder.run(&reward("good")).status.code(), Some(2));
}

#[test]
fn every_format_is_exported_as_lines_of_json() {
    let folder = Folder::with_a_cast();
    for (format, lines) in [("turns", 2), ("chat", 1), ("trajectories", 1)] {
        let text = folder.text(&["export", "--format", format]);
        assert_eq!(text.lines().count(), lines, "{format}: {text}");
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{format}: {text}");
    }
    let journal = folder.text(&["export", "hello", "--format", "journal", "--no-redact"]);
    assert!(journal.starts_with("{\"format\":\"cantrip.journal\",\"redacted\":false"), "{journal}");
    // The envelope is the only output on standard output.
    let export = ["loom", "export", "--store", "jsonl:kept"];
    folder.envelope(&export, codes::CONFIG_INVALID.any());
    let to_file = [&export[..], &["--out", "turns.jsonl"]].concat();
    assert_eq!(folder.envelope(&to_file, codes::READ.any())["data"]["lines"], json!(2));
    assert_eq!(folder.read("turns.jsonl").lines().count(), 2);
    folder.envelope(&to_file, codes::WRONG_STATE.any());
}

#[test]
fn one_run_is_exported_alone_also_as_a_text() {
    let folder = Folder::with_a_cast();
    folder.envelope(&["cast", "hello.toml", "once more", "--store", "jsonl:kept"], codes::TERMINATED.any());
    assert_eq!(folder.text(&["export"]).lines().count(), 4);
    for (format, lines) in [("turns", 2), ("chat", 1)] {
        let text = folder.text(&["export", "--run", "@last", "--format", format]);
        assert_eq!(text.lines().count(), lines, "{format}: {text}");
        assert!(text.contains("once more"), "{format}: {text}");
    }
    let journal = folder.text(&["export", "--run", "@last", "--format", "journal", "--no-redact"]);
    assert!(journal.starts_with("{\"format\":\"cantrip.journal\",\"redacted\":false"), "{journal}");
    let text = folder.text(&["export", "--run", "@last", "--format", "markdown"]);
    assert!(text.starts_with("# once more\n") && text.contains("## Turn 1\n"), "{text}");
    let export = ["loom", "export", "--store", "jsonl:kept", "--out", "out.md", "--format"];
    folder.envelope(&[&export[..], &["markdown"]].concat(), codes::CONFIG_INVALID.any());
    folder.envelope(&[&export[..], &["trajectories", "--run", "@last"]].concat(), codes::CONFIG_INVALID.any());
}

#[test]
fn a_secret_leaves_a_loom_only_by_name() {
    let folder = Folder::empty();
    let secret = concat!("sk-ant-", "api03-AAAABBBBCCCCDDDDEEEEFFFFGGGGHHHH");
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    folder
        .envelope(&["cast", "hello.toml", &format!("use {secret}"), "--store", "jsonl:kept"], codes::TERMINATED.any());
    for format in ["turns", "journal", "chat", "trajectories"] {
        assert!(!folder.text(&["export", "--format", format]).contains(secret), "{format}");
    }
    assert!(folder.text(&["export", "--format", "journal", "--no-redact"]).contains(secret));
}

#[test]
fn a_journal_comes_back_as_it_was_and_twice_is_once() {
    let folder = Folder::with_a_cast();
    let journal = folder.text(&["export", "--format", "journal", "--no-redact"]);
    folder.write("backup.jsonl", &journal);
    let import = ["loom", "import", "backup.jsonl", "--store", "jsonl:copy"];
    let imported = folder.envelope(&import, codes::CREATED.any());
    assert_eq!((&imported["data"]["runs"], &imported["data"]["state"]), (&json!(1), &json!("imported")));
    folder.envelope(&import, codes::CREATED.any());
    let again = folder.run(&["loom", "export", "--format", "journal", "--no-redact", "--store", "jsonl:copy"]);
    assert_eq!(String::from_utf8(again.stdout).expect("UTF-8"), journal);
    folder.envelope(&["loom", "verify", "--store", "jsonl:copy"], codes::VERIFIED.any());
}

#[test]
fn turns_come_back_into_the_loom_that_was_named() {
    let folder = Folder::with_a_cast();
    folder.write("turns.jsonl", &folder.text(&["export"]));
    folder.envelope(&["loom", "import", "turns.jsonl", "--as", "other", "--store", "jsonl:copy"], codes::CREATED.any());
    let tree = folder.envelope(&["loom", "tree", "other", "--store", "jsonl:copy"], codes::READ.any());
    assert_eq!(tree["data"]["value"]["turns"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_cannot_be_imported_says_why_and_where() {
    let folder = Folder::with_a_cast();
    let import = |file| ["import", file, "--store", "jsonl:copy"];
    folder.refused(&import("nowhere.jsonl"), codes::FILE_MISSING.any());
    folder.write("redacted.jsonl", &folder.text(&["export", "--format", "journal"]));
    folder.refused(&import("redacted.jsonl"), codes::UNPARSABLE.any());
    folder.write("prose.jsonl", "not a line of ours\n");
    folder.refused(&import("prose.jsonl"), codes::UNPARSABLE.any());
    fs::write(folder.path().join("bytes.jsonl"), [0xff, 0xfe]).expect("a file");
    folder.refused(&import("bytes.jsonl"), codes::TARGET_UNUSABLE.any());
}

#[test]
fn an_id_may_be_short_while_it_is_the_only_one() {
    let folder = Folder::with_a_cast();
    let last = folder.seen(&["show"]);
    assert_eq!(folder.seen(&["show", "ent_0"]), last, "there is one entity");
    let several = folder.refused(&["show", "turn_0", "--store", "jsonl:kept"], codes::NOT_FOUND.any());
    assert_eq!((&several["matches"], several["hint"].is_string()), (&json!(2), true), "{several}");
    for unknown in ["turn_zzzz", "7zzz", "", "no such id", "loom_0"] {
        let data = folder.refused(&["show", unknown, "--store", "jsonl:kept"], codes::NOT_FOUND.any());
        assert!(data["hint"].is_string(), "{unknown}: {data}");
    }
    let output = folder.run(&["loom", "show", "turn_zzzz", "--store", "jsonl:kept"]);
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true));
}

#[test]
fn an_empty_store_lists_nothing_and_has_no_latest_turn() {
    let folder = Folder::empty();
    for store in ["memory:", "jsonl:nowhere"] {
        let looms = folder.envelope(&["loom", "ls", "--store", store], codes::READ.any());
        assert_eq!(looms["data"]["value"], json!([]));
        for command in ["tree", "show", "thread"] {
            let data = folder.refused(&[command, "--store", store], codes::NOT_FOUND.any());
            assert!(data["hint"].as_str().is_some_and(|hint| hint.contains("cantrip cast")), "{data}");
        }
    }
    assert!(!folder.path().join("nowhere").exists(), "a look made a folder");
}
