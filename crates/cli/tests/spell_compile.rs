//! A compile of a spell: it finds the text that the model wants, acts on nothing, and ends in a diff of the file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};

use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::support::model::Model;
use crate::support::{Folder, enveloped, id, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const TRAIN: u64 = 6;
const HOLDOUT: u64 = 6;
const TEST: u64 = 8;

/// The text that makes the model answer rightly.
const WANTED: &str = "You do jobs carefully.";

/// The beginning of the system prompt of a reflection.
const REFLECTION: &str = "You improve one component of a prompt.";

fn called(name: &str, arguments: &Value) -> Value {
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": name, "arguments": arguments.to_string()}});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

/// A model that tries to change a file and to run a command, and then answers. The answer is right only if the system
/// prompt says `carefully`, or if the description of `read` says `slowly`. Asked for a better text, it says that one.
/// `on_request` is called before each answer.
fn office(on_request: impl Fn() + Send + Sync + 'static) -> Model {
    Model::start(move |request| {
        on_request();
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let of = |role: &str| messages.iter().filter(|message| message["role"] == role).collect::<Vec<_>>();
        let system = of("system").first().map(|message| message["content"].to_string()).unwrap_or_default();
        let tools = request["tools"].as_array().cloned().unwrap_or_default();
        if system.contains(REFLECTION) {
            let output = json!({"diagnosis": "it is not careful", "new_text": WANTED});
            if tools.is_empty() {
                return json!({"role": "assistant", "content": output.to_string()});
            }
            return called("done", &json!({ "answer": output }));
        }
        let described = tools.iter().filter(|tool| tool["function"]["name"] == "read");
        let described = described.map(|tool| tool["function"]["description"].to_string()).collect::<String>();
        let is_right = system.contains("carefully") || described.contains("slowly");
        match of("tool").len() {
            0 => called("write", &json!({"path": "a.txt", "content": "two"})),
            1 => called("tell", &json!({})),
            _ => called("done", &json!({"answer": if is_right { "over" } else { "not yet" }})),
        }
    })
}

/// A project with a spell, a dataset of intents and a metric.
struct Project {
    folder: Folder,
    model: Model,
    /// The text of the spell.
    spell: String,
}

impl Project {
    fn new() -> Self {
        Self::with_model(office(|| {}))
    }

    fn with_model(model: Model) -> Self {
        let folder = Folder::new();
        for name in ["spells", "data", "metrics", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("data/a.txt", "one");
        let spell = format!(
            "# The worker of the office.\nname = \"worker\"\ncrystal = \"{}\" # on this machine\n\n[call]\n\
             system_prompt = 'You do jobs.' # to be improved\ntemperature = 0.0\n\n[gates.read]\nroot = \"../data\"\n\
             # It may write, too.\n[gates.write]\nroot = \"../data\"\n[gates.tell]\ncommand = [\"./tell.sh\"]\n\
             labels = []\n\n[wards]\nmax_turns = 9 # enough\n",
            model.crystal()
        );
        folder.write("spells/worker.toml", &spell);
        folder.write("spells/tell.sh", "#!/bin/sh\necho called >> tell.log\n");
        let tell = folder.path().join("spells/tell.sh");
        fs::set_permissions(tell, PermissionsExt::from_mode(0o755)).expect("a script");
        folder.write("metrics/answer.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\n");
        folder.write("texts.txt", &format!("You do jobs quickly.\n---\n{WANTED}\n---\nYou rest.\n"));
        let splits = [("train", TRAIN), ("holdout", HOLDOUT), ("test", TEST)];
        let lines = splits.iter().flat_map(|(split, count)| {
            (0..*count).map(move |number| {
                let (id, intent) = (format!("{split}{number}"), format!("Do {split} job {number}."));
                json!({"id": id, "input": {"intent": intent}, "expected": "over", "split": split}).to_string()
            })
        });
        folder.write("intents.jsonl", &lines.collect::<Vec<_>>().join("\n"));
        let project = Self { folder, model, spell };
        let add = ["dataset", "add", "intents", "intents.jsonl", "--spell", "worker", "--splits", "given"];
        let added = project.run(&add);
        assert!(added.status.success(), "{added:?}");
        project
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.folder.command(&[arguments, &["--store", STORE]].concat());
        // The copies of the trials are made here.
        command.env("TMPDIR", self.folder.path().join("tmp")).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    fn compile(&self, optimiser: &str, more: &[&str]) -> Output {
        self.run(&[&COMPILE[..], &[optimiser], more].concat())
    }

    /// Compiles with the given texts, and returns the report.
    #[track_caller]
    fn compiled(&self, optimiser: &str, more: &[&str]) -> Value {
        let output = self.compile(optimiser, more);
        enveloped(&output, codes::COMPILED.any())["data"]["report"].clone()
    }

    #[track_caller]
    fn patch(&self, report: &Value) -> String {
        let output = self.run(&["compile", "show", id(&report["report_id"]), "--patch"]);
        assert!(output.status.success(), "{output:?}");
        stdout(&output).to_owned()
    }

    #[track_caller]
    fn assert_patch_refused(&self, report: &Value, code: AnyCode) {
        let output = self.run(&["compile", "show", id(&report["report_id"]), "--patch", "--json"]);
        enveloped(&output, code);
    }

    /// Applies a diff with the program of the system.
    #[track_caller]
    fn apply(&self, diff: &str) {
        let mut command = Command::new("patch");
        command.args(["-p1", "--fuzz=0"]).current_dir(self.folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("patch runs");
        child.stdin.take().expect("a pipe").write_all(diff.as_bytes()).expect("it reads");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}\n{diff}");
    }

    fn text(&self) -> String {
        self.folder.read("spells/worker.toml")
    }

    /// Asserts that no trial changed a file outside of its copies or ran a command, and that no copy is left.
    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(self.folder.read("data/a.txt"), "one");
        assert!(!self.folder.path().join("spells/tell.log").exists(), "a command ran");
        let left = fs::read_dir(self.folder.path().join("tmp")).expect("a folder").flatten();
        let names = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let copies: Vec<String> = names.filter(|name| name.starts_with("cantrip-trial")).collect();
        assert_eq!(copies, Vec::<String>::new(), "the copies were removed");
    }
}

const COMPILE: [&str; 9] =
    ["compile", "worker", "--dataset", "intents", "--metric", "answer", "--yes", "--json", "--optimiser"];

const GRID: [&str; 6] = ["--texts", "texts.txt", "--set", "proposals=0", "--slots", "call"];

#[test]
fn the_call_text_that_the_model_wants_is_found_and_shown_as_a_diff_that_applies() {
    let project = Project::new();
    let report = project.compiled("instruction_grid.v1", &GRID);
    assert_eq!(report["signature_id"], "spell:worker");
    let (base, selected) = (id(&report["base"]), id(&report["selected"]));
    assert!(base.starts_with("can_") && selected.starts_with("var_"), "{report}");
    let candidates = report["candidates"].as_array().expect("a list");
    let of = |wanted: &str| candidates.iter().find(|one| one["compiled_id"] == wanted).expect("a candidate");
    assert_eq!(candidates.len(), 4, "the base and three texts: {report}");
    assert_eq!((&of(base)["holdout"], &of(selected)["holdout"]), (&json!(0), &json!(1_000_000)));
    assert_eq!(of(selected)["component"], "call");
    let trials = json!({"train": 0, "holdout": 4 * HOLDOUT, "test": 2 * TEST, "unscored": 0});
    assert_eq!(report["trials"], trials, "{report}");
    // The final test is an evaluation of the variant beside the spell.
    let eval = enveloped(&project.run(&["eval", "show", id(&report["eval_id"]), "--json"]), codes::READ.any());
    let eval = &eval["data"]["value"]["report"];
    assert_eq!((id(&eval["compiled_id"]), id(&eval["baseline_id"])), (selected, base));
    assert_eq!((&eval["score"]["mean"], &eval["baseline"]["mean"]), (&json!(1_000_000), &json!(0)));
    assert_eq!(eval["casts"]["terminated"], json!(TEST));
    project.assert_untouched();

    // Nothing was written.
    assert_eq!(project.text(), project.spell);
    let diff = project.patch(&report);
    assert_eq!(project.text(), project.spell);
    assert!(diff.starts_with("--- a/spells/worker.toml\n+++ b/spells/worker.toml\n@@ "), "{diff}");
    let changed: Vec<&str> = diff.lines().skip(2).filter(|line| line.starts_with(['-', '+'])).collect();
    let expected = [
        "-system_prompt = 'You do jobs.' # to be improved",
        "+system_prompt = \"You do jobs carefully.\" # to be improved",
    ];
    assert_eq!(changed, expected, "{diff}");

    // A spell that was changed otherwise is another one than was tried.
    project.folder.write("spells/worker.toml", &project.spell.replace("max_turns = 9", "max_turns = 8"));
    project.assert_patch_refused(&report, codes::WRONG_STATE.any());
    project.folder.write("spells/worker.toml", &project.spell);

    project.apply(&diff);
    assert_eq!(project.text(), project.spell.replace("'You do jobs.'", "\"You do jobs carefully.\""));
    assert_eq!(project.patch(&report), "", "the file has the values of the winner");
    // The compile is still read and replayed from its records.
    let shown = ["compile", "show", id(&report["report_id"])];
    let replayed = ["compile", "replay", id(&report["report_id"])];
    let verified = ["eval", "verify", id(&report["eval_id"])];
    for arguments in [&shown[..], &replayed, &verified, &["receipt", "verify", "--all"], &["spend", "verify"]] {
        let output = project.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn the_same_compile_again_asks_nobody_and_its_replay_is_identical() {
    let project = Project::new();
    let report = project.compiled("instruction_grid.v1", &GRID);
    let asked = project.model.asked();
    assert_eq!(project.compiled("instruction_grid.v1", &GRID), report);
    let replayed = project.run(&["compile", "replay", id(&report["report_id"])]);
    assert!(replayed.status.success(), "{replayed:?}");
    assert_eq!(project.model.asked(), asked);
}

#[test]
fn the_description_of_a_gate_and_narrower_wards_are_searched_too() {
    let project = Project::new();
    project.folder.write("texts.txt", "Reads a file slowly.\n");
    // Two turns are not enough for three calls, so the narrower wards lose.
    let more = ["--texts", "texts.txt", "--set", "proposals=0", "--slots", "gate:read", "--slots", "wards"];
    let report = project.compiled("instruction_grid.v1", &[&more[..], &["--wards", "{\"max_turns\": 2}"]].concat());
    let candidates = report["candidates"].as_array().expect("a list");
    assert_eq!(candidates.len(), 4, "two descriptions and two tables of wards: {report}");
    let of = |wanted: &Value| candidates.iter().find(|one| one["compiled_id"] == *wanted).expect("a candidate");
    assert_eq!(of(&report["selected"])["holdout"], json!(1_000_000));
    project.assert_untouched();
    project.apply(&project.patch(&report));
    let expected = project.spell.replace(
        "[gates.read]\nroot = \"../data\"\n",
        "[gates.read]\nroot = \"../data\"\ndescription = \"Reads a file slowly.\"\n",
    );
    assert_eq!(project.text(), expected);
}

#[test]
fn wards_that_allow_more_are_refused_before_anything_is_asked() {
    let project = Project::new();
    for wards in ["{\"max_turns\": 20}", "{\"allow_trifecta\": \"we trust it\"}", "{\"max_turn\": 2}"] {
        let output = project.compile("instruction_grid.v1", &[&GRID[..4], &["--wards", wards]].concat());
        enveloped(&output, codes::CONFIG_INVALID.any());
    }
    // A spell has no demos to bootstrap, and no gate of this name.
    enveloped(&project.compile("bootstrap_demos.v1", &[]), codes::CONFIG_INVALID.any());
    let unknown = [&GRID[..4], &["--slots", "gate:serch"]].concat();
    enveloped(&project.compile("instruction_grid.v1", &unknown), codes::CONFIG_INVALID.any());
    assert_eq!(project.model.asked(), 0);
}

#[test]
fn a_reflection_on_the_casts_of_a_spell_finds_its_call_text() {
    let project = Project::new();
    let crystal = project.model.crystal();
    let report = project.compiled("gepa.v1", &["--slots", "call", "--reflect", &crystal]);
    assert!(id(&report["selected"]).starts_with("var_"), "{report}");
    assert_eq!(report["proposals"]["accepted"], json!(1), "{report}");
    project.assert_untouched();
    assert!(project.patch(&report).contains("\n+system_prompt = \"You do jobs carefully.\" # to be improved\n"));
    assert_eq!(project.text(), project.spell);
}

#[test]
fn a_job_whose_spell_is_edited_meanwhile_ends_and_goes_on_with_the_spell_that_it_began_with() {
    let (file, asked) = (Arc::new(OnceLock::<PathBuf>::new()), AtomicU64::new(0));
    let edited = Arc::clone(&file);
    let model = office(move || {
        // In the middle of the search somebody edits the file.
        if asked.fetch_add(1, Ordering::Relaxed) == 20
            && let Some(file) = edited.get()
        {
            let text = fs::read_to_string(file).expect("a spell");
            fs::write(file, text.replace("max_turns = 9", "max_turns = 8")).expect("written");
        }
    });
    let project = Project::with_model(model);
    file.set(project.folder.path().join("spells/worker.toml")).expect("set once");
    let failed = enveloped(&project.compile("instruction_grid.v1", &GRID), codes::JOB_FAILED.any());
    assert_ne!(project.text(), project.spell, "it was edited");
    let run = id(&failed["data"]["run_id"]);
    let refused = project.run(&["run", "resume", run, "--json"]);
    assert!(!refused.status.success(), "the spell is still another one: {refused:?}");
    project.folder.write("spells/worker.toml", &project.spell);
    let resumed = enveloped(&project.run(&["run", "resume", run, "--json"]), codes::COMPILED.any());
    let report = &resumed["data"]["report"];
    let trials = json!({"train": 0, "holdout": 4 * HOLDOUT, "test": 2 * TEST, "unscored": 0});
    assert_eq!(report["trials"], trials, "{report}");
    assert!(id(&report["selected"]).starts_with("var_"), "{report}");
    project.assert_untouched();
}

#[test]
fn a_compile_of_a_spell_that_was_killed_goes_on_and_asks_for_no_ended_trial_again() {
    let (to, reached) = channel();
    let (to, asked) = (Mutex::new(to), AtomicU64::new(0));
    let model = office(move || {
        if asked.fetch_add(1, Ordering::Relaxed) == 50 {
            let _ = to.lock().expect("no panic holds it").send(());
        }
    });
    let project = Project::with_model(model);
    let arguments = [&COMPILE[..], &["instruction_grid.v1", "--concurrency", "4"], &GRID[..]].concat();
    let mut command = project.command(&arguments);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs");
    reached.recv().expect("it asks the model");
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    // The same compile takes the job over.
    let report = project.compiled("instruction_grid.v1", &[&["--concurrency", "4"][..], &GRID[..]].concat());
    let trials = json!({"train": 0, "holdout": 4 * HOLDOUT, "test": 2 * TEST, "unscored": 0});
    assert_eq!(report["trials"], trials, "{report}");
    assert!(id(&report["selected"]).starts_with("var_"), "{report}");
    // Each trial asks three times. What was under way at the kill is asked once more.
    let whole = 3 * (4 * HOLDOUT + 2 * TEST);
    let asked = project.model.asked();
    assert!((whole..=whole + 4).contains(&asked), "{asked} requests, and {whole} without the kill");
    project.assert_untouched();
    for arguments in [["receipt", "verify", "--all"].as_slice(), ["spend", "verify"].as_slice()] {
        let verified = project.run(arguments);
        assert!(verified.status.success(), "{arguments:?}: {verified:?}");
    }
}
