//! From an empty folder to an answer.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

/// A separate folder for each test, which is also the only home that the binary sees.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).expect("a file can be written");
    }

    fn run(&self, arguments: &[&str], input: Option<&str>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cantrip"));
        command.args(arguments).current_dir(self.path()).env("HOME", self.path()).env_remove("XDG_DATA_HOME");
        command
            .env_remove("CANTRIP_STORE")
            .env_remove("CANTRIP_CRYSTAL")
            .env_remove("CARGO")
            .env_remove("XDG_CONFIG_HOME");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let Some(input) = input else { return command.stdin(Stdio::null()).output().expect("the binary runs") };
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the binary runs");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the binary reads");
        child.wait_with_output().expect("the binary ends")
    }

    #[track_caller]
    fn envelope(&self, arguments: &[&str], code: AnyCode) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat(), None);
        let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&envelope, code);
        envelope
    }
}

/// Casts the spell that `new` writes into `jsonl:kept`. Returns the text for people.
fn told_of_a_cast(folder: &Folder) -> String {
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "say hello", "--store", "jsonl:kept"], None);
    assert!(output.status.success(), "{output:?}");
    stderr(&output).to_owned()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("UTF-8")
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("UTF-8")
}

const CODE: &str = r#"
name = "counter"
crystal = "scripted/counter.yaml"
medium = "javascript"
[call]
require_done_tool = true
[gates.call_agent_batch]
[wards]
max_turns = 5
"#;

const CODE_SCRIPT: &str = r#"
responses:
  - code: |
      var parts = context.split("\n");
      var counted = call_agent_batch(parts.map(part => ({intent: "count the letters", context: part})));
      done(counted.reduce((a, b) => a + b, 0))
  - code: done(context.length)
  - code: done(context.length)
"#;

#[test]
fn what_new_writes_is_cast_to_an_answer() {
    let folder = Folder::new();
    let made = folder.envelope(&["new", "hello"], codes::CREATED.any());
    assert_eq!(made["data"]["files"], json!(["./hello.toml", "./hello.script.yaml"]));
    let output = folder.run(&["cast", "hello.toml", "say hello"], None);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "hello from hello\n"));
    assert!(stderr(&output).contains("turn 2") && stderr(&output).contains("terminated after 2 turns"), "{output:?}");
    let quiet = folder.run(&["cast", "hello.toml", "say hello", "--quiet"], None);
    assert_eq!((stdout(&quiet), stderr(&quiet)), ("hello from hello\n", ""));
}

#[test]
fn new_never_writes_over_what_is_there() {
    let folder = Folder::new();
    folder.write("hello.script.yaml", "mine");
    let refused = folder.envelope(&["new", "hello"], codes::WRONG_STATE.any());
    assert_eq!(refused["data"]["id"], "./hello.script.yaml");
    assert_eq!(fs::read_to_string(folder.path().join("hello.script.yaml")).expect("the file"), "mine");
    assert!(!folder.path().join("hello.toml").exists(), "one of two files was written");
}

#[test]
fn a_program_reads_what_was_piped_in_and_casts_children_over_its_parts() {
    let folder = Folder::new();
    folder.write("counter.toml", CODE);
    folder.write("counter.yaml", CODE_SCRIPT);
    let output = folder.run(&["cast", "counter.toml", "count"], Some("four\nseven!!"));
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "11\n"), "{output:?}");
    folder.write("rows.txt", "four\nseven!!");
    let output = folder.run(&["cast", "counter.toml", "count", "--context", "rows.txt"], None);
    assert_eq!(stdout(&output), "11\n");
}

#[test]
fn a_cast_is_kept_where_it_belongs_and_out_of_version_control() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    fs::create_dir(folder.path().join(".git")).expect("a folder");
    folder.envelope(&["cast", "hello.toml", "say hello"], codes::TERMINATED.any());
    assert!(folder.path().join(".cantrip/loom.db").is_file(), "the loom is at the root");
    let seen = folder.envelope(&["loom", "thread"], codes::READ.any());
    assert!(seen["data"].to_string().contains("say hello"), "the intent is not in the record: {seen}");
    folder.envelope(&["loom", "verify"], codes::VERIFIED.any());
    assert_eq!(fs::read_to_string(folder.path().join(".cantrip/.gitignore")).expect("it is ignored"), "*\n");

    folder.envelope(&["cast", "hello.toml", "elsewhere", "--store", "jsonl:other"], codes::TERMINATED.any());
    assert!(fs::read_to_string(folder.path().join("other/records.jsonl")).expect("a loom").contains("elsewhere"));
    folder.envelope(&["cast", "hello.toml", "x", "--store", "redis://x"], codes::CONFIG_INVALID.any());
}

#[test]
fn a_cast_that_a_ward_ends_is_denied_and_says_which() {
    let folder = Folder::new();
    folder.write(
        "talk.toml",
        "name = \"talk\"\ncrystal = \"scripted/talk.yaml\"\n[call]\nrequire_done_tool = true\n[wards]\nmax_turns = 2\n",
    );
    folder.write("talk.yaml", "responses:\n  - content: one\n  - content: two\n  - content: three\n");
    let reply = folder.envelope(&["cast", "talk.toml", "talk"], codes::WARD_REACHED.any());
    assert_eq!(reply["data"]["ward"], "max_turns");
    assert_eq!(folder.run(&["cast", "talk.toml", "talk"], None).status.code(), Some(3));
}

#[test]
fn a_script_that_runs_dry_is_an_error_of_the_crystal() {
    let folder = Folder::new();
    folder.write("dry.toml", "name = \"dry\"\ncrystal = \"scripted/dry.yaml\"\n[call]\nrequire_done_tool = true\n");
    folder.write("dry.yaml", "responses:\n  - content: one\n");
    let reply = folder.envelope(&["cast", "dry.toml", "talk"], codes::CRYSTAL_REJECTED.any());
    assert!(reply["message"].as_str().expect("a message").contains("script exhausted"), "{reply}");
}

#[test]
fn a_spell_that_is_wrong_says_where_and_nothing_is_cast() {
    let folder = Folder::new();
    folder.write("bad.toml", "name = \"bad\"\ncrystal = \"scripted/x.yaml\"\nmedum = \"javascript\"\n");
    let reply = folder.envelope(&["cast", "bad.toml", "x"], codes::CONFIG_INVALID.any());
    let message = reply["message"].as_str().expect("a message");
    assert!(message.contains("medum") && message.contains("medium"), "{message}");
    folder.write("broken.toml", "name = \n");
    folder.envelope(&["cast", "broken.toml", "x"], codes::UNPARSABLE.any());
    folder.envelope(&["cast", "nowhere", "x"], codes::NOT_FOUND.any());
    assert!(!folder.path().join(".local/share/cantrip").exists());
}

#[test]
fn an_intent_is_needed_also_when_the_one_word_is_a_spell() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let reply = folder.envelope(&["cast", "hello.toml"], codes::CONTRACT_INVALID.any());
    assert_eq!(reply["message"], "intent is required");
    folder.envelope(&["cast", "hello.toml", "  "], codes::CONTRACT_INVALID.any());
}

#[test]
fn a_dry_run_shows_what_the_loader_added_and_casts_nothing() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "x", "--dry-run"], None);
    assert!(output.status.success() && stdout(&output).contains("[gates.done]"), "{output:?}");
    assert!(!folder.path().join(".local").exists(), "something was written");
}

#[test]
fn the_commands_that_a_cast_ends_with_work_as_pasted() {
    let folder = Folder::new();
    let told = told_of_a_cast(&folder);
    let commands: Vec<&str> = told.lines().filter_map(|line| line.strip_prefix("  cantrip ")).collect();
    let verbs: Vec<&str> =
        commands.iter().filter_map(|command| command.split(" turn_").next()?.split(" ent_").next()).collect();
    assert_eq!(verbs, ["loom show", "loom fork", "summon"], "{told}");
    let folder_of_binary = Path::new(env!("CARGO_BIN_EXE_cantrip")).parent().expect("a folder");
    let path = format!("{}:{}", folder_of_binary.display(), std::env::var("PATH").expect("a PATH"));
    for (command, printed) in commands.iter().zip(["  It works.\n", "hello from hello\n", "hello from hello\n"]) {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("set -o pipefail; echo 'once more' | cantrip {command}")]);
        shell.current_dir(folder.path()).env("HOME", folder.path()).env("PATH", &path).env_remove("CANTRIP_STORE");
        let output = shell.output().expect("bash runs");
        assert!(output.status.success() && stdout(&output).contains(printed), "{command}: {output:?}");
    }
}

#[test]
fn a_store_whose_name_a_shell_would_split_is_quoted() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "say hello", "--store", "jsonl:it's kept"], None);
    assert!(stderr(&output).contains(r"--store 'jsonl:it'\''s kept'"), "{output:?}");
}

#[test]
fn what_is_kept_nowhere_offers_no_command() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "say hello", "--store", "memory:"], None);
    assert!(output.status.success() && !stderr(&output).contains("cantrip "), "{output:?}");
}

#[test]
fn upserts_are_lines_of_json_in_the_place_of_the_answer() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "say hello", "--jsonl"], None);
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"turn_started"), Some(&"turn_complete")), "{output:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == "turn_started").count(), 2);
    let answer = lines.iter().find(|line| line["itemId"].as_str().is_some_and(|item| item.ends_with("/answer")));
    assert_eq!(answer.map(|line| &line["content"]), Some(&json!("hello from hello")));
    assert_eq!(stderr(&output), "");
}

#[test]
fn the_intent_may_be_piped_in_and_the_context_is_then_a_file() {
    let folder = Folder::new();
    folder.write("counter.toml", CODE);
    folder.write("counter.yaml", "responses:\n  - code: done(context.rows)\n");
    folder.write("rows.json", "{\"rows\": 7}");
    let output = folder
        .run(&["cast", "counter.toml", "-", "--context", "rows.json", "--store", "jsonl:kept"], Some("how many?"));
    assert_eq!(stdout(&output), "7\n", "{output:?}");
    let records = fs::read_to_string(folder.path().join("kept/records.jsonl")).expect("a loom");
    assert!(records.contains("how many?"), "the intent is not in the record");
    // Piped JSON is a value too.
    let output = folder.run(&["cast", "counter.toml", "how many?", "--quiet"], Some("{\"rows\": 8}"));
    assert_eq!(stdout(&output), "8\n", "{output:?}");
}

#[test]
fn a_dry_run_shows_prompt_and_tools_and_needs_no_intent() {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    let output = folder.run(&["cast", "hello.toml", "--dry-run"], None);
    let shown = stdout(&output);
    for part in
        ["# spell\nname = \"hello\"", "# system prompt\nYou answer in one sentence.\n", "# tools\n", "\necho(text)\n"]
    {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let told = folder.envelope(&["cast", "hello.toml", "--dry-run"], codes::READ.any());
    assert_eq!(told["data"]["system_prompt"], "You answer in one sentence.");
    let tools: Vec<_> =
        told["data"]["tools"].as_array().expect("tools").iter().map(|tool| tool["name"].clone()).collect();
    assert_eq!(tools, [json!("done"), json!("echo")]);
    assert!(!folder.path().join(".local").exists(), "something was written");
}

#[test]
fn an_answer_reaches_a_pipe_byte_for_byte() {
    let folder = Folder::new();
    folder.write("counter.toml", CODE);
    folder.write("counter.yaml", "responses:\n  - code: done('\\x1b[31mred\\x1b[0m')\n");
    let output = folder.run(&["cast", "counter.toml", "colour", "--quiet"], None);
    assert_eq!(stdout(&output), "\u{1b}[31mred\u{1b}[0m\n", "{output:?}");
}

#[test]
fn a_spell_is_found_by_its_name_here_and_among_the_users_own() {
    let folder = Folder::new();
    folder.envelope(&["new", "near", "--in", "spells"], codes::CREATED.any());
    folder.envelope(&["new", "own", "--in", ".config/cantrip/spells"], codes::CREATED.any());
    assert_eq!(stdout(&folder.run(&["cast", "near", "say hello", "--quiet"], None)), "hello from near\n");
    assert_eq!(stdout(&folder.run(&["cast", "own", "say hello", "--quiet"], None)), "hello from own\n");
}

#[test]
fn a_spell_is_found_by_its_name_beside_it_as_a_server_finds_it() {
    let folder = Folder::new();
    folder.envelope(&["new", "shop"], codes::CREATED.any());
    let output = folder.run(&["cast", "shop", "say hello", "--quiet"], None);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "hello from shop\n"), "{output:?}");
    let summoned = folder.run(&["summon", "shop", "--quiet"], Some("say hello"));
    assert_eq!((summoned.status.code(), stdout(&summoned)), (Some(0), "hello from shop\n"), "{summoned:?}");
    // The name that a spell declares is enough, whatever its file is called.
    fs::rename(folder.path().join("shop.toml"), folder.path().join("till.toml")).expect("a file can be renamed");
    let output = folder.run(&["cast", "shop", "say hello", "--quiet"], None);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "hello from shop\n"), "{output:?}");
    // The one word is the spell, so the intent is missing, and the hint says where it belongs.
    let refused = folder.envelope(&["cast", "till"], codes::CONTRACT_INVALID.any());
    assert_eq!(refused["data"]["hint"], "cantrip cast till INTENT");
}

#[test]
fn a_spell_that_is_found_nowhere_is_answered_with_the_places_that_were_searched() {
    let folder = Folder::new();
    let refused = folder.envelope(&["cast", "shop", "sell"], codes::NOT_FOUND.any());
    let own = folder.path().join(".config/cantrip/spells/shop.toml");
    let own = own.to_str().expect("UTF-8");
    assert_eq!(refused["data"]["looked"], json!(["shop", "shop.toml", "spells/shop.toml", own]));
    let output = folder.run(&["cast", "shop", "sell"], None);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{output:?}");
    for says in ["spell shop not found", "looked for shop.toml\n", "looked for spells/shop.toml\n", own] {
        assert!(stderr(&output).contains(says), "{says}: {}", stderr(&output));
    }
    // A path is looked for as it is.
    let refused = folder.envelope(&["cast", "away/shop.toml", "sell"], codes::NOT_FOUND.any());
    assert_eq!(refused["data"]["looked"], json!(["away/shop.toml"]));
}

#[test]
fn the_built_in_spell_looks_around_where_it_is_cast_and_is_found_again() {
    let folder = Folder::new();
    folder.write("notes.txt", "a line to be found");
    folder.write("look.yaml", "responses:\n  - code: done(read('notes.txt'))\n");
    let cast =
        ["cast", "what do the notes say?", "--crystal", "scripted/look.yaml", "--store", "jsonl:kept", "--quiet"];
    let output = folder.run(&cast, None);
    assert_eq!(stdout(&output), "a line to be found\n", "{output:?}");
    let again = folder.run(&["summon", "--store", "jsonl:kept", "--quiet"], Some("and again?"));
    assert_eq!(stdout(&again), "a line to be found\n", "{again:?}");
}
