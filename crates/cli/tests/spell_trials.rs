//! An evaluation of a spell: its trials work on copies, reach nothing, and are counted as they ended.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::support::{Folder, enveloped, id, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const EXAMPLES: u64 = 6;

/// A project with two spells, a dataset of intents and a metric.
struct Project {
    folder: Folder,
    /// A port that no trial may connect to.
    outside: TcpListener,
}

impl Project {
    fn new() -> Self {
        let folder = Folder::new();
        for name in ["spells", "data", "metrics", "tmp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let outside = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        outside.set_nonblocking(true).expect("a socket");
        let address = outside.local_addr().expect("an address");
        folder.write("data/a.txt", "one");
        folder.write(
            "spells/worker.toml",
            &format!(
                "name = \"worker\"\ncrystal = \"scripted/worker.yaml\"\n[gates.read]\nroot = \"../data\"\n\
                 [gates.write]\nroot = \"../data\"\n[gates.fetch]\nallow_hosts = [\"{address}\"]\n\
                 [gates.tell]\ncommand = [\"./tell.sh\"]\nlabels = []\n\
                 [gates.pay]\ncommand = [\"./pay.sh\"]\nlabels = []\nsettlement = {{most = \"0.05 USD\"}}\n\
                 [wards]\nmax_turns = 9\n"
            ),
        );
        folder.write(
            "spells/worker.yaml",
            &format!(
                "responses:\n  - tool_calls: [{{id: a, gate: write, args: {{path: a.txt, content: two}}}}]\n  \
                 - tool_calls: [{{id: b, gate: fetch, args: {{url: \"http://{address}/\"}}}}]\n  \
                 - tool_calls: [{{id: c, gate: tell, args: {{}}}}]\n  \
                 - tool_calls: [{{id: d, gate: pay, args: {{}}}}]\n  \
                 - tool_calls: [{{id: e, gate: done, args: {{answer: over}}}}]\n"
            ),
        );
        folder.write(
            "spells/looper.toml",
            "name = \"looper\"\ncrystal = \"scripted/looper.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 2\n",
        );
        folder.write(
            "spells/looper.yaml",
            "responses:\n  - tool_calls: [{id: a, gate: echo, args: {text: one}}]\n  \
             - tool_calls: [{id: b, gate: echo, args: {text: two}}]\n  \
             - tool_calls: [{id: c, gate: echo, args: {text: three}}]\n",
        );
        for program in ["tell", "pay"] {
            let text = format!("#!/bin/sh\necho called >> {program}.log\necho '{{\"correlation_id\": \"x\"}}'\n");
            folder.write(&format!("spells/{program}.sh"), &text);
            let path = folder.path().join(format!("spells/{program}.sh"));
            fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a script");
        }
        folder.write("metrics/answer.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\n");
        let line = |number: u64| {
            json!({"id": format!("i{number}"), "input": {"intent": format!("Do job {number}.")}, "expected": "over",
                   "split": "test"})
            .to_string()
        };
        let lines: Vec<String> = (0..EXAMPLES).map(line).collect();
        folder.write("intents.jsonl", &lines.join("\n"));
        let project = Self { folder, outside };
        let add = ["dataset", "add", "intents", "intents.jsonl", "--spell", "worker", "--splits", "given"];
        let added = project.run(&[&add[..], &["--allow-small"]].concat());
        assert!(added.status.success(), "{added:?}");
        project
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.folder.command(&[arguments, &["--store", STORE]].concat());
        // The copies of the trials are made here.
        command.env("TMPDIR", self.folder.path().join("tmp"));
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    fn eval(&self, spell: &str, more: &[&str]) -> Output {
        let asked = ["eval", spell, "--dataset", "intents", "--metric", "answer", "--json"];
        self.run(&[&asked[..], more].concat())
    }

    #[track_caller]
    fn evaluated(&self, spell: &str, more: &[&str]) -> Value {
        let output = self.eval(spell, &[more, &["--yes"]].concat());
        enveloped(&output, codes::EVALUATED.any())["data"]["report"].clone()
    }

    /// Asserts that no file was changed outside of the copies, and that nothing was reached.
    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(self.folder.read("data/a.txt"), "one");
        assert_eq!(fs::read_dir(self.folder.path().join("data")).expect("a folder").count(), 1);
        assert!(!self.folder.path().join("spells/pay.log").exists(), "money was moved");
        let reached = self.outside.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(reached, Err(ErrorKind::WouldBlock), "somebody connected");
        let left = fs::read_dir(self.folder.path().join("tmp")).expect("a folder").flatten();
        let left: Vec<_> = left
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().starts_with("cantrip-trial"))
            .collect();
        assert_eq!(left, Vec::<std::ffi::OsString>::new(), "the copies were removed");
    }
}

#[test]
fn the_trials_of_a_spell_change_nothing_outside_of_their_copies_and_the_plan_names_what_they_lack() {
    let project = Project::new();
    let planned = enveloped(&project.eval("worker", &["--dry-run"]), codes::READ.any());
    let plan = &planned["data"]["value"]["plan"];
    let removed = json!([
        {"gate": "fetch", "reason": "external_comm"}, {"gate": "tell", "reason": "effects"},
        {"gate": "pay", "reason": "settlement"},
    ]);
    assert_eq!(plan["removed"], removed, "{plan}");
    assert_eq!((&plan["trials"], &plan["baseline"]), (&json!(EXAMPLES), &Value::Null));

    let report = project.evaluated("worker", &[]);
    assert_eq!(report["signature_id"], "spell:worker");
    assert!(id(&report["compiled_id"]).starts_with("can_"), "{report}");
    assert_eq!(report["casts"]["terminated"], json!(EXAMPLES));
    assert_eq!(report["casts"]["truncated"], json!({}));
    assert_eq!(report["casts"]["turns_per_cast"], json!(5_000_000), "{report}");
    assert_eq!(report["score"]["mean"], json!(1_000_000));
    assert!(!project.folder.path().join("spells/tell.log").exists(), "a command ran");
    project.assert_untouched();
    let eval = id(&report["eval_id"]).to_owned();
    // The report is shown with the answers of the casts, which are in their looms.
    let shown = enveloped(&project.run(&["eval", "show", &eval, "--json"]), codes::READ.any());
    assert_eq!(shown["data"]["value"]["report"], report);
    let rows = project.run(&["eval", "show", &eval, "--rows"]);
    assert!(rows.status.success(), "{rows:?}");
    let rows: Vec<Value> = stdout(&rows).lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert_eq!(rows.len() as u64, EXAMPLES);
    assert!(rows.iter().all(|row| !row["subject"]["output"].is_null()), "{rows:?}");
    assert!(project.run(&["eval", "verify", &eval]).status.success());

    // A gate that is let through is called, and it is another job.
    let allowed = project.evaluated("worker", &["--gate", "tell"]);
    assert_ne!(allowed["eval_id"], report["eval_id"]);
    let told = fs::read_to_string(project.folder.path().join("spells/tell.log")).expect("the command ran");
    assert_eq!(told.lines().count() as u64, EXAMPLES);
    project.assert_untouched();
    let unknown = project.eval("worker", &["--gate", "serch", "--yes"]);
    enveloped(&unknown, codes::CONFIG_INVALID.any());
    for arguments in [["receipt", "verify", "--all"].as_slice(), ["spend", "verify"].as_slice()] {
        let verified = project.run(arguments);
        assert!(verified.status.success(), "{arguments:?}: {verified:?}");
    }
}

#[test]
fn a_cast_that_does_not_terminate_is_an_own_failure_and_is_counted_by_its_reason() {
    let project = Project::new();
    let report = project.evaluated("looper", &["--baseline", "worker"]);
    assert_eq!(report["casts"]["terminated"], json!(0));
    assert_eq!(report["casts"]["truncated"], json!({"max_turns": EXAMPLES}));
    assert_eq!(report["own_failures"], json!({"subject": EXAMPLES, "baseline": 0}));
    assert_eq!(report["verdict"], "worse");
    assert_eq!(report["score"]["mean"], json!(0));
    project.assert_untouched();
    // The same spell beside itself is no comparison.
    let same = project.eval("looper", &["--baseline", "looper", "--yes"]);
    enveloped(&same, codes::CONFIG_INVALID.any());
}
