//! Jobs as runs, through the binary: an evaluation that is killed is listed, shown, resumed, taken over by a server,
//! continued under larger bounds, and cancelled.

use std::collections::BTreeMap;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::model::Model;
use crate::support::{Folder, enveloped, id, own_postgres, stdout};
use rustix::process::Signal;

const SQLITE: &str = "sqlite:kept/loom.db";
const EXAMPLES: usize = 30;

const SIGNATURE: &str = r#"namespace = "@me/text"
name = "Colour"
version = 1
description = "Which colour does a text name?"
program_template = "direct.v1"
instructions = "Name the colour."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"

[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string", minLength = 1 }

[output_schema]
type = "object"
required = ["colour"]
additionalProperties = false
properties.colour = { type = "string", enum = ["red", "blue"] }
"#;

const METRIC: &str = "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\npointer = \"/colour\"\n";

/// A model that names the colour of a text, slowly, and counts the requests for each text.
fn painter(delay_ms: &Arc<AtomicU64>) -> (Model, Arc<Mutex<BTreeMap<String, u64>>>) {
    let counts: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let (counted, delay) = (Arc::clone(&counts), Arc::clone(delay_ms));
    let model = Model::start(move |request| {
        let text = request["messages"].to_string();
        let number: String = text.split("number ").nth(1).unwrap_or_default().chars().take(3).collect();
        *counted.lock().expect("no panic holds it").entry(number).or_default() += 1;
        std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
        let colour = if text.contains("the sky") { "blue" } else { "red" };
        let output = json!({ "colour": colour });
        if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            let arguments = json!({ "answer": output }).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            return json!({"role": "assistant", "content": null, "tool_calls": [call]});
        }
        json!({"role": "assistant", "content": output.to_string()})
    });
    (model, counts)
}

/// A folder with a signature, a metric and a dataset.
struct Studio {
    folder: Folder,
    store: String,
    crystal: String,
    base: String,
}

impl Studio {
    fn new(model: &Model, store: &str) -> Self {
        let folder = Folder::new();
        for name in ["signatures", "metrics"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("signatures/colour.toml", SIGNATURE);
        folder.write("metrics/colour.toml", METRIC);
        let mut rows = String::from("id,split,text,colour\n");
        for number in 0..EXAMPLES {
            let (thing, colour) = if number % 2 == 0 { ("the sky", "blue") } else { ("a rose", "red") };
            rows += &format!("c{number:03},test,\"number {number:03}: {thing}\",{colour}\n");
        }
        folder.write("colours.csv", &rows);
        let studio = Self { folder, store: store.to_owned(), crystal: model.crystal(), base: String::new() };
        studio.run(&[
            "dataset",
            "add",
            "colours",
            "colours.csv",
            "--signature",
            "Colour",
            "--splits",
            "given",
            "--allow-small",
        ]);
        let shown = studio.envelope(&["sig", "show", "Colour"]);
        Self { base: id(&shown["data"]["value"]["base"]).to_owned(), ..studio }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--store", &self.store]].concat()
    }

    /// Runs a command that succeeds, and returns its standard output.
    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.folder.run(&self.arguments(arguments));
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output).to_owned()
    }

    #[track_caller]
    fn envelope(&self, arguments: &[&str]) -> Value {
        self.folder.envelope(&self.arguments(arguments), codes::READ.any())
    }

    fn eval<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let asked = [
            "eval",
            &self.base,
            "--dataset",
            "colours",
            "--metric",
            "colour",
            "--baseline",
            "none",
            "--crystal",
            &self.crystal,
            "--yes",
            "--json",
            "--concurrency",
            "4",
        ];
        self.arguments(&[&asked[..], more].concat())
    }

    /// Starts an evaluation as a process of its own.
    fn begin(&self) -> Child {
        let mut command = self.folder.command(&self.eval(&[]));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
    }

    /// Returns the jobs, as `run ls` lists them.
    #[track_caller]
    fn jobs(&self) -> Vec<Value> {
        self.envelope(&["run", "ls", "--kind", "job"])["data"]["value"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until the only job has this many results.
    fn wait_for_trials(&self, counts: &Mutex<BTreeMap<String, u64>>, wanted: usize) {
        let began = Instant::now();
        while counts.lock().expect("no panic holds it").len() < wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "the model is not asked");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn verify(&self) {
        for what in
            [&["receipt", "verify", "--all"][..], &["spend", "verify"], &["eval", "verify"], &["loom", "verify"]]
        {
            self.run(what);
        }
    }
}

/// Kills an evaluation several times, and returns how often each text was asked about after it was resumed.
fn killed_and_resumed(store: &str) {
    let delay = Arc::new(AtomicU64::new(40));
    let (model, counts) = painter(&delay);
    let studio = Studio::new(&model, store);
    let kills = [3, 9, 15];
    for wanted in kills {
        let mut child = studio.begin();
        studio.wait_for_trials(&counts, wanted);
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
    let jobs = studio.jobs();
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    assert_eq!((&jobs[0]["kind"], &jobs[0]["standing"]), (&json!("job"), &json!("orphaned")));
    let run = id(&jobs[0]["run_id"]).to_owned();
    let listed = studio.envelope(&["run", "ls"])["data"]["value"].as_array().cloned().unwrap_or_default();
    assert_eq!(listed.len(), 1, "the trials of a job are not listed beside it");
    let shown = studio.run(&["run", "show", &run]);
    assert!(shown.contains("eval of @me/text/Colour.v1") && shown.contains(&format!("run resume {run}")), "{shown}");
    delay.store(0, Ordering::Relaxed);
    let resumed = studio.folder.run(&studio.arguments(&["run", "resume", &run, "--json"]));
    let report = enveloped(&resumed, codes::EVALUATED.any());
    assert_eq!(report["data"]["report"]["scored"], EXAMPLES);
    assert_eq!(report["data"]["report"]["score"]["mean"], 1_000_000);
    // Four trials are under way at a kill, and each of them may be asked about once more.
    let asked: u64 = counts.lock().expect("no panic holds it").values().sum();
    let most = EXAMPLES as u64 + 4 * kills.len() as u64;
    assert!((EXAMPLES as u64..=most).contains(&asked), "{asked} requests for {EXAMPLES} trials");
    // The same evaluation again asks nothing.
    let again = enveloped(&studio.folder.run(&studio.eval(&[])), codes::EVALUATED.any());
    assert_eq!(again["data"]["replayed"], true);
    assert_eq!(again["data"]["report"], report["data"]["report"]);
    assert_eq!(counts.lock().expect("no panic holds it").values().sum::<u64>(), asked);
    studio.verify();
}

#[test]
fn an_evaluation_that_is_killed_is_listed_and_resumed() {
    killed_and_resumed(SQLITE);
}

#[test]
fn an_evaluation_that_is_killed_is_listed_and_resumed_on_postgres() {
    if let Some(store) = own_postgres() {
        killed_and_resumed(&store);
    }
}

#[test]
fn a_server_takes_over_the_evaluation_of_a_killed_process() {
    let delay = Arc::new(AtomicU64::new(40));
    let (model, counts) = painter(&delay);
    let studio = Studio::new(&model, SQLITE);
    let mut child = studio.begin();
    studio.wait_for_trials(&counts, 6);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    delay.store(0, Ordering::Relaxed);
    let run = id(&studio.jobs()[0]["run_id"]).to_owned();
    let server = Server::start(&studio.folder, &["--store", SQLITE]);
    server.until(&run, |value| value["state"] == "terminated");
    assert_eq!(server.stop(Signal::TERM), 0);
    assert_eq!(studio.jobs()[0]["job"]["status"], "succeeded");
    studio.verify();
}

#[test]
fn a_job_that_ran_out_is_continued_and_a_parked_one_is_cancelled() {
    let delay = Arc::new(AtomicU64::new(0));
    let (model, counts) = painter(&delay);
    let studio = Studio::new(&model, SQLITE);
    let output = studio.folder.run(&studio.eval(&["--max-calls", "10"]));
    let spent = enveloped(&output, codes::BUDGET_SPENT.any());
    let run = id(&spent["data"]["run_id"]).to_owned();
    assert_eq!(counts.lock().expect("no panic holds it").len(), 0, "an Ask that does not fit is not begun");
    let shown = studio.run(&["run", "show", &run]);
    assert!(shown.contains("budget_exhausted") && shown.contains(&format!("run continue {run}")), "{shown}");
    let few = studio.folder.run(&studio.arguments(&["run", "continue", &run, "--max-calls", "5", "--json"]));
    enveloped(&few, codes::SCHEMA.any());
    let job = run.replacen("run_", "job_", 1);
    let more = studio.folder.run(&studio.arguments(&["run", "continue", &job, "--max-calls", "60", "--json"]));
    let report = enveloped(&more, codes::EVALUATED.any());
    assert_eq!(report["data"]["report"]["scored"], EXAMPLES);
    studio.verify();

    // Another one is interrupted by a kill and then cancelled: no process drives it.
    delay.store(40, Ordering::Relaxed);
    counts.lock().expect("no panic holds it").clear();
    let mut command = studio.folder.command(&studio.eval(&["--rerun"]));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    studio.wait_for_trials(&counts, 5);
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    let jobs = studio.jobs();
    let run = id(&jobs.last().expect("two jobs")["run_id"]).to_owned();
    studio.run(&["run", "cancel", &run]);
    assert_eq!(studio.jobs().last().expect("two jobs")["job"]["status"], "cancelled");
    studio.run(&["spend", "verify"]);
}
