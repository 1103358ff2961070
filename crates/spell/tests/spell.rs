//! Spells: their keys, the loader's additions, and the messages for faults.

use std::fs;
use std::path::Path;

use cantrip_circle::gate::{Schema, gate};
use cantrip_circle::{AnyGate, Label, MediumKind};
use cantrip_crystal::Crystal;
use cantrip_loom::{AnyLoom, MemoryLoom};
use cantrip_reply::{AnyCode, Refusal, codes, testing};
use cantrip_spell::{self as spell, BuildContext, Spell, SpellFault};
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

fn read(text: &str) -> Result<Spell, SpellFault> {
    Spell::read(text, "test.toml", ".")
}

#[track_caller]
fn sound(text: &str) -> Spell {
    read(text).unwrap_or_else(|fault| panic!("{fault}"))
}

/// Returns the message of the refusal, and checks its code.
#[track_caller]
fn message(fault: SpellFault, code: AnyCode) -> String {
    let guarded = testing::guarded(|rb| rb.refuse(Refusal::from(fault)));
    testing::assert_any(&guarded.reply, code);
    guarded.reply.message()
}

/// Returns the faults of a text, one line each.
#[track_caller]
fn issues(text: &str) -> Vec<String> {
    let fault = read(text).expect_err("something is wrong with it");
    let issues = fault.issues().iter().map(|issue| format!("{}: {issue}", issue.key)).collect();
    message(fault, codes::CONFIG_INVALID.any());
    issues
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    folder
}

const SCRIPT: &str = "responses:\n- content: hello\n";

/// Returns a gate that asks a person.
fn asked() -> AnyGate {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Question {
        question: String,
    }
    AnyGate::from(gate("ask_human", "Asks.", |asked: Question| async move { Ok::<_, Refusal>(asked.question) }))
}

fn surroundings() -> BuildContext {
    BuildContext {
        ask_human: Some(asked()),
        store: Some(AnyLoom::new(MemoryLoom::default())),
        ..BuildContext::default()
    }
}

#[test]
fn an_unknown_key_is_refused_with_its_line_and_the_one_that_was_meant() {
    assert_eq!(
        issues(
            "name = 'a'\ncrystal = 'scripted/a.yaml'\nmedum = 'javascript'\n\n[call]\ntemprature = 0.2\n\
             [gates.raed]\n[gates.read]\nrot = '.'\n[wards]\nmax_turn = 3\n[retry]\nmax_retry = 1\n"
        ),
        [
            "medum: line 3: unknown key; did you mean medium?",
            "call.temprature: line 6: unknown key; did you mean temperature?",
            "gates.raed: line 7: unknown gate; did you mean read?; a gate of your own needs command = [...], url = \"...\" or mcp = [...]",
            "gates.read.rot: line 9: unknown key; did you mean root?",
            "wards.max_turn: line 11: unknown ward max_turn; did you mean max_turns?",
            "retry.max_retry: line 13: unknown key; did you mean max_retries?",
        ]
    );
}

#[test]
fn a_value_of_the_wrong_kind_says_where_what_and_how_to_mend_it() {
    assert_eq!(
        issues(
            "crystal = 3\nmedium = ['javascript']\npark = 'yes'\ngates = 'read'\n[call]\ntemperature = 'low'\n\
             max_tokens = -1\nstop = 7\n[wards]\ntimeout = 'soon'\nmax_cost = 5\n"
        ),
        [
            "crystal: line 1: this is a number, but a text is expected, as in crystal = \
             \"anthropic/claude-sonnet-4-5\"",
            "medium: line 2: this is a list, but a text is expected, as in medium = \"javascript\"",
            "park: line 3: this is a text, but true or false is expected, as in park = true",
            "gates: line 4: this is a text, but a table is expected: write [gates] and its keys below",
            "call.temperature: line 6: this is a text, but a number is expected, as in temperature = 0.2",
            "call.max_tokens: line 7: this is a number, but a whole number from 0 on is expected, as in max_tokens = 4096",
            "call.stop: line 8: this is a number, but a list of texts is expected, as in stop = [\"END\"]",
            "wards.timeout: line 10: ward timeout is not a duration such as 90s, 5m or 250ms",
            "wards.max_cost: line 11: ward max_cost is not an amount such as 0.50 USD",
        ]
    );
}

#[test]
fn what_is_no_toml_is_told_with_its_place() {
    let fault = read("name = 'a'\ncrystal = \n").expect_err("no TOML");
    let told = message(fault, codes::UNPARSABLE.any());
    assert!(told.starts_with("spell test.toml cannot be parsed at line 2, column "), "{told}");
    let doubled = read("name = 'a'\nname = 'b'\n").expect_err("a key given twice");
    assert!(message(doubled, codes::UNPARSABLE.any()).contains("line 2"));
    message(read(&"#".repeat(2 << 20)).expect_err("too long"), codes::UNPARSABLE.any());
}

#[test]
fn what_is_not_built_yet_is_refused_in_plain_words() {
    for (line, text) in [(2, "medium = 'browser'"), (2, "medium = 'human'")] {
        let found = issues(&format!("crystal = 'scripted/a.yaml'\n{text}\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("line {line}:")) && found[0].contains("not in this version"), "{found:?}");
    }
    assert!(issues("crystal = 'human'\n")[0].contains("not in this version"));
}

#[test]
fn a_crystal_to_fall_back_on_and_an_effort_are_read_or_told_with_their_lines() {
    let fallback = issues("[crystal]\nmodel = 'anthropic/claude'\nfallback = ['openia/gpt']\n");
    assert!(fallback[0].starts_with("crystal.fallback: line 3: ") && fallback[0].contains("openai"), "{fallback:?}");
    let effort = issues("crystal = 'anthropic/claude'\n[call]\neffort = 'hihg'\nthinking_tokens = 0\n");
    assert!(effort[0].starts_with("call.effort: line 3: ") && effort[0].contains("high"), "{effort:?}");
    assert!(effort[1].starts_with("call.thinking_tokens: line 4: "), "{effort:?}");
}

#[test]
fn a_crystal_is_named_as_everywhere() {
    assert!(issues("name = 'a'\n")[0].contains("a spell needs one"));
    assert!(issues("crystal = 'anthropc/claude'\n")[0].contains("anthropic"));
    assert!(issues("crystal = 'local/small'\n")[0].contains("local needs its address"));
    assert_eq!(sound("[crystal]\nmodel = 'scripted/a.yaml#one'\n").crystal.to_string(), "scripted/a.yaml#one");
    let program = issues("crystal = 'program/plan.js'\n");
    assert!(program[0].contains("medium = \"javascript\""), "{program:?}");
    assert_eq!(sound("crystal = 'program/plan.js'\nmedium = 'javascript'\n").medium, MediumKind::Javascript);
}

#[test]
fn a_spell_says_how_it_folds_and_what_it_knows_of_its_crystal() {
    let files = folder(&[("s.yaml", SCRIPT), ("notes.yaml", SCRIPT)]);
    let text = "[crystal]\nmodel = 'scripted/s.yaml'\nwindow = 8000\noutput_tokens = 1000\ntools = true\n\
                bytes_per_token = 4\n[folding]\nstrategy = 'summary'\ntrigger_after_turns = 20\nwindow_share = 0.5\n\
                crystal = 'scripted/notes.yaml'\n";
    let spell = Spell::read(text, "test.toml", files.path()).expect("sound");
    let cantrip = spell.build(&surroundings()).expect("sound");
    let folding = cantrip.definition().folding();
    assert_eq!((folding.strategy, folding.trigger_after_turns), (cantrip_loom::Strategy::Summary, Some(20)));
    assert_eq!(
        (cantrip.folding_crystal().name(), cantrip.crystal().name()),
        ("scripted/notes.yaml", "scripted/s.yaml")
    );
    let measure = cantrip.measure();
    assert_eq!(
        (measure.window, measure.bytes_per_token, cantrip.definition().output_tokens_at(0)),
        (Some(8_000), 4.0, 1_000)
    );
    assert_eq!(sound(&spell.resolved_toml()).resolved(), spell.resolved());

    for (text, told) in [
        ("[folding]\nstrategy = 'sumary'", "folding.strategy: line 3: unknown strategy; did you mean summary?"),
        ("[folding]\ncrystal = 'scripted/a.yaml'", "folding.crystal: line 3: only folding by summary asks a crystal"),
        ("[folding]\nstrategy = 'summary'\ncrystal = 'nobody'", "folding.crystal: line 4: "),
        ("[folding]\nturns = 3", "folding.turns: line 3: "),
        ("[folding]\ntrigger_after_turns = 1", "folding: line 2: folding after 1 turns keeps nothing"),
        ("[folding]\nwindow_share = 1.5", "folding: line 2: window_share 1.5 is not between 0 and 1"),
    ] {
        let found = issues(&format!("crystal = 'scripted/a.yaml'\n{text}\n"));
        assert!(found.len() == 1 && found[0].starts_with(told), "{found:?}");
    }
    for (key, told) in [
        ("window = 3999", "crystal.window: line 3: a window of less than 4000 tokens"),
        ("output_tokens = 0", "crystal.output_tokens: line 3: "),
        ("bytes_per_token = 0.2", "crystal.bytes_per_token: line 3: "),
        ("windw = 8000", "crystal.windw: line 3: "),
    ] {
        let found = issues(&format!("[crystal]\nmodel = 'scripted/a.yaml'\n{key}\n"));
        assert!(found.len() == 1 && found[0].starts_with(told), "{found:?}");
    }
}

fn gate_names(spell: &Spell) -> Vec<&str> {
    spell.gates.iter().map(|gate| gate.name.as_str()).collect()
}

#[test]
fn the_loader_adds_done_a_limit_of_turns_and_loom_where_results_are_hidden() {
    let bare = sound("crystal = 'scripted/a.yaml'\n");
    assert_eq!((gate_names(&bare), &bare.wards), (vec!["done"], &json!({"max_turns": 50})));
    assert_eq!(sound("crystal = 'scripted/a.yaml'\n[wards]\nmax_depth = 2\n").wards["max_turns"], 50);
    let own = sound("crystal = 'scripted/a.yaml'\n[gates.read]\n[gates.done]\n[gates.echo]\n[wards]\ntimeout = '1m'\n");
    assert_eq!(gate_names(&own), ["read", "done", "echo"]);
    assert_eq!(own.wards, json!({"timeout": "1m"}));

    let hidden = "crystal = 'scripted/a.yaml'\n[gates.read]\nephemeral = true\n";
    assert_eq!(gate_names(&sound(hidden)), ["done", "read", "loom"]);
    // In code the value is in a variable.
    let in_code = format!("medium = 'javascript'\n{hidden}");
    assert_eq!(gate_names(&sound(&in_code)), ["done", "read"]);
}

#[test]
fn a_spells_name_is_its_loom_and_comes_from_its_file_if_it_says_none() {
    let files = folder(&[("count.toml", "crystal = 'scripted/s.yaml'\n"), ("s.yaml", SCRIPT)]);
    let spell = Spell::open(&files.path().join("count.toml")).expect("sound");
    assert_eq!(spell.name, "count");
    let cantrip = spell.build(&surroundings()).expect("sound");
    assert_eq!(cantrip.loom_id(), cantrip::loom_id_for("count"));
    for name in ["", " ", "../up", "a/b", "-x", "a\\nb"] {
        assert!(issues(&format!("name = \"{name}\"\ncrystal = 'scripted/a.yaml'\n"))[0].starts_with("name: line 1"));
    }
}

#[test]
fn paths_begin_at_the_spells_folder_and_not_where_it_is_cast() {
    let spell = "crystal = 'scripted/scripts/s.yaml'\nanswer_schema = 'answer.json'\n[call]\nsystem_prompt = 'You look.'\n\
                 system_prompt_files = ['AGENTS.md', 'absent.md']\n[gates.read]\nroot = 'data'\n[gates.check]\n\
                 command = ['./check.sh', '--json']\nparameters = 'check.json'\ndescription = 'Checks.'\n";
    let files = folder(&[
        ("spells/a.toml", spell),
        ("spells/scripts/s.yaml", SCRIPT),
        ("spells/answer.json", r#"{"type": "integer"}"#),
        ("spells/check.json", r#"{"type": "object", "properties": {"n": {"type": "integer"}}}"#),
        ("spells/AGENTS.md", "Be brief."),
        ("spells/data/a.txt", "text"),
        ("spells/check.sh", "#!/bin/sh\n"),
    ]);
    let program = files.path().join("spells/check.sh");
    let told = |spell: Spell| message(spell.build(&surroundings()).expect_err("refused"), codes::CONFIG_INVALID.any());
    let not_executable = told(Spell::open(&files.path().join("spells/a.toml")).expect("sound"));
    let expected = "gates.check.command: line 8: ./check.sh: the file is not executable; chmod +x makes it so";
    assert!(not_executable.contains(expected), "{not_executable}");
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    let open = || Spell::open(&files.path().join("spells/a.toml")).expect("sound");
    let cantrip = open().build(&surroundings()).expect("sound");
    assert_eq!(cantrip.call().prompt(), Some("You look.\n\nBe brief."));
    // The name of the crystal does not contain the folder, so the spell is the same cantrip wherever it is stored.
    assert_eq!(cantrip.crystal().name(), "scripted/scripts/s.yaml");
    assert!(cantrip.wards().require_done_tool, "a typed answer needs done");
    let checked = cantrip.circle().gate("check").expect("there");
    assert_eq!(checked.spec().parameters["properties"]["n"]["type"], "integer");
    assert!(checked.spec().labels.is_trifecta(), "a command carries all three until told otherwise");
    assert!(cantrip.wards().trifecta);

    for (missing, key) in [
        ("spells/scripts/s.yaml", "crystal"),
        ("spells/answer.json", "answer_schema"),
        ("spells/check.json", "gates.check.parameters"),
        ("spells/check.sh", "gates.check.command: line 8: ./check.sh: no such file"),
    ] {
        let path = files.path().join(missing);
        let away = files.path().join("away");
        fs::rename(&path, &away).expect("moved");
        let told = told(open());
        assert!(told.contains(key) && !told.contains(&*files.path().to_string_lossy()), "{told}");
        fs::rename(&away, &path).expect("back");
    }
    fs::remove_dir_all(files.path().join("spells/data")).expect("removed");
    let told = message(open().build(&surroundings()).expect_err("no root"), codes::CONFIG_INVALID.any());
    assert!(told.contains("gates.read.root: line 6: the folder data cannot be opened"), "{told}");
}

#[test]
fn labels_descriptions_and_hidden_results_are_the_spells_to_say() {
    let files = folder(&[("s.yaml", SCRIPT)]);
    let text = "crystal = 'scripted/s.yaml'\n[gates.weather]\ncommand = 'sh'\nlabels = ['untrusted_content']\n\
                ephemeral = true\ntimeout = '2s'\noutput = '64KiB'\non_error = 'error'\nenvironment = { LANG = 'C' }\n";
    let spell = Spell::read(text, "a.toml", files.path()).expect("sound");
    let cantrip = spell.build(&surroundings()).expect("sound");
    let weather = cantrip.circle().gate("weather").expect("there").spec();
    assert_eq!(weather.labels.iter().collect::<Vec<_>>(), [Label::UntrustedContent]);
    assert!(weather.ephemeral && !cantrip.wards().trifecta);
    assert!(cantrip.circle().gate("loom").is_some());
    let bare = BuildContext::default();
    let told = message(spell.build(&bare).expect_err("no store to read"), codes::CONFIG_INVALID.any());
    assert!(told.contains("gates.loom"), "{told}");
    assert!(issues("crystal = 'scripted/s.yaml'\n[gates.read]\nlabels = 'private'\n")[0].contains("private_data"));
}

#[test]
fn children_may_have_the_crystals_that_are_offered() {
    let files = folder(&[("s.yaml", SCRIPT), ("small.yaml", SCRIPT)]);
    let text = "crystal = 'scripted/s.yaml'\n[gates.call_agent]\ncrystal = 'scripted/small.yaml'\n\
                crystals = ['local/tiny@http://localhost:1/v1']\nmediums = ['javascript']\n";
    let cantrip = Spell::read(text, "a.toml", files.path()).expect("sound").build(&surroundings()).expect("sound");
    for name in ["scripted/small.yaml", "local/tiny@http://localhost:1/v1", "scripted/s.yaml"] {
        assert_eq!(cantrip.find_crystal(name).map(|crystal| crystal.name().to_owned()).as_deref(), Some(name));
    }
    assert!(cantrip.find_crystal("scripted/other.yaml").is_none());
}

#[test]
fn a_model_that_nothing_here_can_reach_is_refused_before_anything_is_asked() {
    let spell = sound("crystal = 'anthropic/claude'\n");
    let told = message(spell.build(&surroundings()).expect_err("no provider"), codes::CONFIG_INVALID.any());
    assert!(told.contains("anthropic/claude"), "{told}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_verifier_is_a_program_beside_the_spell() {
    use cantrip::Verdict;
    use std::os::unix::fs::PermissionsExt;

    let script = "#!/bin/sh\nread answer\ncase \"$answer\" in\n3) echo '{\"score\": 0.5}' ;;\n4) ;;\n\
                  5) kill -9 $$ ;;\n*) echo \"not 3: $answer\"; exit 1 ;;\nesac\n";
    let files = folder(&[("s.yaml", SCRIPT), ("check.sh", script)]);
    let program = files.path().join("check.sh");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let text = "crystal = 'scripted/s.yaml'\n[verify]\ncommand = './check.sh'\n";
    let cantrip = Spell::read(text, "a.toml", files.path()).expect("sound").build(&surroundings()).expect("sound");
    assert!(cantrip.wards().require_done_tool);
    let verifier = cantrip.verifier().expect("there").clone();
    let verdict = async |answer: Value| verifier.verify(&answer).await;
    assert_eq!(verdict(json!(3)).await.expect("looked"), Verdict::Passed { score: Some(0.5) });
    assert_eq!(verdict(json!(4)).await.expect("looked"), Verdict::Passed { score: None });
    assert_eq!(verdict(json!("x")).await.expect("looked"), Verdict::Failed { output: "not 3: \"x\"".into() });
    assert_eq!(verdict(json!(5)).await.expect_err("killed").code(), codes::GATE_FAILED.any());
    fs::remove_file(&program).expect("removed");
    let refusal = verdict(json!(3)).await.expect_err("nothing to run");
    let guarded = testing::guarded(|rb| rb.refuse(refusal));
    testing::assert_code(&guarded.reply, codes::GATE_FAILED);
    assert!(issues("crystal = 'scripted/s.yaml'\n[verify]\n")[0].starts_with("verify.command: line 2"));
}

#[test]
fn a_broken_script_is_told_by_its_own_lines() {
    let files = folder(&[("s.yaml", "responses:\n- contnet: hello\n")]);
    let spell = Spell::read("crystal = 'scripted/s.yaml'\n", "a.toml", files.path()).expect("sound");
    let told = message(spell.build(&surroundings()).expect_err("broken"), codes::UNPARSABLE.any());
    assert!(told.contains("s.yaml") && told.contains("line 2"), "{told}");
}

#[test]
fn the_faults_of_the_cantrip_are_told_as_the_builder_tells_them() {
    let files = folder(&[("s.yaml", SCRIPT)]);
    let text = "crystal = 'scripted/s.yaml'\n[wards]\nremove_gate = 'done'\n";
    let spell = Spell::read(text, "a.toml", files.path()).expect("sound");
    let told = message(spell.build(&surroundings()).expect_err("no done"), codes::CONTRACT_INVALID.any());
    assert_eq!(told, "circle must have a done gate");
}

#[tokio::test]
async fn what_new_writes_can_be_cast_as_it_is() {
    let files = spell::new_spell_files("analyst").unwrap_or_else(|_| panic!("a sound name"));
    let texts: Vec<(&str, &str)> = files.iter().map(|file| (file.name.as_str(), file.text.as_str())).collect();
    let folder = folder(&texts);
    let spell = Spell::open(&folder.path().join("analyst.toml")).expect("sound");
    let cantrip = spell.build(&BuildContext::default()).expect("it needs nothing");
    assert_eq!((cantrip.name(), cantrip.wards().max_turns), (Some("analyst"), Some(10)));
    let cast = cantrip.cast("say hello").await;
    testing::assert_code(cast.reply(), codes::TERMINATED);
    assert_eq!(cast.answer(), Some(&json!("hello from analyst")));
    let Err(refusal) = spell::new_spell_files("../up") else { panic!("no name of a spell") };
    let guarded = testing::guarded(|rb| rb.refuse(refusal));
    testing::assert_code(&guarded.reply, codes::CONFIG_INVALID);
}

#[test]
fn the_built_in_spell_looks_around_and_asks_before_it_changes() {
    let files = folder(&[("s.yaml", SCRIPT), ("AGENTS.md", "We write in British English.")]);
    let spell = spell::default_spell(files.path(), "scripted/s.yaml").expect("sound");
    assert_eq!(spell.medium, MediumKind::Javascript);
    let cantrip = spell.build(&surroundings()).expect("sound");
    assert!(cantrip.call().prompt().is_some_and(|prompt| prompt.ends_with("We write in British English.")));
    let wards = cantrip.wards();
    assert!(wards.require_approval.requires("write") && wards.require_approval.requires("edit"));
    assert!(!wards.require_approval.requires("read"));
    assert_eq!((wards.max_turns, wards.timeout), (Some(50), Some(std::time::Duration::from_secs(900))));
    for there in ["read", "list", "search", "write", "edit", "ask_human", "call_agent", "call_agent_batch", "done"] {
        assert!(cantrip.circle().gate(there).is_some(), "{there}");
    }
    assert!(cantrip.circle().gate("fetch").is_none());
    // A shell is offered only if it can be sandboxed, and never without approval.
    let caged = cantrip_medium_shell::Shell::over(files.path()).check_available().is_ok();
    assert_eq!(cantrip.circle().gate("shell").is_some(), caged);
    assert_eq!(wards.require_approval.requires("shell"), caged);
}

const FULL: &str = r#"
name = "full"
crystal = "scripted/s.yaml"
medium = "conversation"
park = false
answer_schema = { type = "object" }
[call]
system_prompt = "You look."
system_prompt_files = ["AGENTS.md"]
temperature = 0.5
top_p = 1
seed = 7
stop = ["END"]
max_tokens = 100
tool_choice = "required"
require_done_tool = true
[gates.search]
root = "."
gitignore = true
[gates.edit]
root = "."
read_only = true
[gates.fetch]
methods = ["GET", "POST"]
allow_hosts = "localhost:8080"
bytes = "1MiB"
timeout = "5s"
[gates.check]
command = ["./check.sh"]
environment = { LANG = "C" }
timeout = 3
output = 1024
idempotent = true
labels = ["private_data", "external_comm"]
description = "Checks."
parameters = { type = "object" }
[gates.call_agent_batch]
crystal = ["scripted/s.yaml"]
mediums = "javascript"
[gates.weather]
url = "https://example.com/v1/{city}?units={units}"
method = "POST"
headers = { "X-Plain" = "yes" }
allow_hosts = ["localhost:8080"]
bytes = "10KiB"
timeout = "5s"
on_error = "error"
idempotent = true

[gates.docs]
mcp = ["docs-mcp", "--stdio"]
environment = { DOCS_KEY = "${DOCS_KEY}" }
tools = ["lookup"]
timeout = "5s"
start_timeout = "2m"
labels = ["untrusted_content"]
[gates.far]
mcp = "https://example.com/mcp"
headers = { Authorization = "Bearer ${DOCS_KEY}" }
ephemeral = true

[gates.shell]
root = "work"
read_only = true
network = true
readable = ["/opt/tools"]
environment = { SHELL_SECRET = "C" }
memory = "1GiB"
cpu = "1m"
wall = "30s"
output = "64KiB"
processes = 32
file_size = "1MiB"
disk = "10MiB"

[wards]
max_turns = 30
max_depth = 2
timeout = "5m"
allow_trifecta = "all of it is ours"
restrict = { paths = ["src/**"], hosts = ["example.com"] }
loop_detected = { repeats = 4 }
memory = "1MiB"
[folding]
strategy = "window"
trigger_after_turns = 20
window_share = 0.5
[verify]
command = ["./check.sh", "--strict"]
timeout = "90s"
[retry]
max_retries = 1
retryable_status_codes = [429]
base_ms = 1
cap_ms = 2
empty_response = 1
"#;

#[test]
fn a_resolved_spell_is_a_spell_and_resolves_to_itself() {
    for text in [FULL, spell::DEFAULT, "crystal = 'scripted/a.yaml'\n[gates.read]\nephemeral = true\n"] {
        let spell = sound(text);
        let again = sound(&spell.resolved_toml());
        let mut resolved = spell.resolved();
        assert_eq!(again.resolved(), resolved, "{}", spell.resolved_toml());
        // It contains the loader's additions.
        assert!(resolved["gates"]["done"].is_object() && resolved["wards"]["max_turns"].is_u64());
        assert_eq!(resolved["name"].take(), again.name);
    }
    assert!(!sound(FULL).resolved_toml().contains("\"C\""), "what a program is given may be secret");
}

#[test]
fn the_schema_for_editors_agrees_with_the_reader() {
    let schema = Schema::compile(spell::schema()).expect("it compiles");
    for text in [FULL, spell::DEFAULT] {
        let written: Value = toml::from_str::<toml::Table>(text).map(|table| json!(table)).expect("TOML");
        assert_eq!(schema.violations(&written), []);
        assert_eq!(schema.violations(&sound(text).resolved()), []);
    }
    // The schema and the reader refuse the same texts.
    for wrong in [
        "",
        "crystal = 'a'\nmedum = 'x'",
        "crystal = 'scripted/a.yaml'\n[call]\ntemp = 1",
        "crystal = 'scripted/a.yaml'\n[gates.read]\nrot = '.'",
        "crystal = 'scripted/a.yaml'\n[gates.mine]\n",
        "crystal = 'scripted/a.yaml'\n[gates.mine]\nmcp = ['docs']\ndescription = 'Docs.'\n",
        "crystal = 'scripted/a.yaml'\n[wards]\nmax_turn = 1",
        "crystal = 'scripted/a.yaml'\n[folding]\ntrigger_after_turns = 1",
        "crystal = 'scripted/a.yaml'\n[retry]\nmax = 1",
        "[crystal]\nmodel = 'scripted/a.yaml'\nwindow = 100",
        "[crystal]\nmodel = 'scripted/a.yaml'\nwndow = 8000",
        "crystal = 'scripted/a.yaml'\npark = 1",
    ] {
        let written: Value = toml::from_str::<toml::Table>(wrong).map(|table| json!(table)).expect("TOML");
        assert_ne!(schema.violations(&written), [], "{wrong}");
        assert!(read(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_file_that_cannot_be_read_is_told_without_the_hosts_path() {
    let fault = Spell::open(Path::new("/nowhere/at/all/a.toml")).expect_err("absent");
    let told = message(fault, codes::CONFIG_INVALID.any());
    assert!(told.contains("a.toml") && !told.contains("nowhere"), "{told}");
}

/// Words that have a meaning in a spell, or almost do.
const WORDS: &[&str] = &[
    "[wards]",
    "[[gates]]",
    "[gates.read]",
    "[call]\n",
    "= ",
    "\"",
    "\"\"\"",
    "'",
    "\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ".",
    "#",
    "max_turns = -1\n",
    "max_turns = 99999999999999999999\n",
    "timeout = \"\"\n",
    "timeout = 1e400\n",
    "nan",
    "1979-05-27",
    "root = \"..\"\n",
    "crystal = \"\"\n",
    "medium = \"code\"\n",
    "labels = [1]\n",
    "command = []\n",
    "\u{0}",
    "\u{fffd}",
    "\\u0000",
];

/// Returns true if a text is a spell, or is refused as Invalid.
fn told_apart(text: &str) -> bool {
    let Err(fault) = read(text) else { return true };
    let guarded = testing::guarded(|rb| rb.refuse(fault.into()));
    [codes::CONFIG_INVALID.any(), codes::UNPARSABLE.any()].contains(&guarded.reply.code())
}

proptest! {
    #![proptest_config(garble::samples(128))]

    #[test]
    fn no_text_brings_the_reader_down(text in "\\PC*") {
        prop_assert!(told_apart(&text));
    }

    #[test]
    fn a_spell_that_is_almost_right_is_read_or_refused_as_invalid(text in garble::garbled_text(&[FULL], WORDS)) {
        prop_assert!(told_apart(&text), "{text}");
    }
}
