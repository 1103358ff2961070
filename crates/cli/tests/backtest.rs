//! Backtests: recorded intents are cast anew, their calls are answered from the record, and nothing outside is touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::model::Model;
use crate::support::{Folder, enveloped, id, own_postgres, stdout};

const SQLITE: &str = "sqlite:kept/loom.db";
/// The number of runs that a script records.
const SCRIPTED: usize = 200;
/// The number of runs that a model records.
const MODELLED: usize = 24;

/// A project with a spell whose command counts its calls outside.
struct Project {
    folder: Folder,
    store: String,
}

impl Project {
    fn new(crystal: &str, store: &str) -> Self {
        let folder = Folder::new();
        for name in ["spells", "data", "metrics"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("data/a.txt", "one");
        folder.write("data/b.txt", "two");
        folder.write("spells/worker.toml", &spell(crystal, "You do jobs."));
        folder
            .write("spells/tell.sh", "#!/bin/sh\nread -r call\necho \"$call\" >> tell.log\necho '{\"heard\": true}'\n");
        let tell = folder.path().join("spells/tell.sh");
        fs::set_permissions(tell, PermissionsExt::from_mode(0o755)).expect("a script");
        let settings = folder.path().join(".config/cantrip");
        fs::create_dir_all(&settings).expect("a folder");
        let prices = "[[model]]\ncrystal = 'local/test*'\nprice = { input = '1 USD', output = '10 USD' }\n";
        fs::write(settings.join("models.toml"), prices).expect("a table");
        Self { folder, store: store.to_owned() }
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--store", &self.store]].concat()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.folder.run(&self.arguments(arguments))
    }

    /// Casts the spell on these intents, and returns the runs in their order.
    fn record(&self, intents: impl IntoIterator<Item = String>) -> Vec<String> {
        let server = Server::start(&self.folder, &["--store", &self.store]);
        let runs: Vec<String> = intents.into_iter().map(|intent| server.cast_about("worker", &intent)).collect();
        for run in &runs {
            server.until(run, |value| value["state"] == "terminated");
        }
        assert_eq!(server.stop(Signal::TERM), 0);
        runs
    }

    /// Returns the number of times that the command was executed.
    fn executed(&self) -> usize {
        fs::read_to_string(self.folder.path().join("spells/tell.log")).unwrap_or_default().lines().count()
    }

    /// Runs a backtest that succeeds, and returns its report.
    #[track_caller]
    fn tested(&self, more: &[&str]) -> Value {
        let output = self.run(&[&["backtest", "worker", "--yes", "--json"], more].concat());
        enveloped(&output, codes::EVALUATED.any())["data"].clone()
    }

    /// Returns every run of a backtest, by the run of its original.
    #[track_caller]
    fn rows(&self, backtest: &str) -> BTreeMap<String, Value> {
        let output = self.run(&["backtest", "show", backtest, "--rows"]);
        assert!(output.status.success(), "{output:?}");
        let read = |line: &str| -> Value { serde_json::from_str(line).expect("a line of JSON") };
        stdout(&output).lines().map(read).map(|row| (id(&row["original"]).to_owned(), row)).collect()
    }

    /// Asserts that receipts, money and records are sound.
    #[track_caller]
    fn verify(&self) {
        for what in [&["receipt", "verify", "--all"][..], &["spend", "verify"], &["loom", "verify"]] {
            let verified = self.run(what);
            assert!(verified.status.success(), "{what:?}: {verified:?}");
        }
    }
}

fn spell(crystal: &str, prompt: &str) -> String {
    format!(
        "name = \"worker\"\ncrystal = \"{crystal}\"\n[call]\nsystem_prompt = \"{prompt}\"\n\
         [gates.read]\nroot = \"../data\"\n[gates.tell]\ncommand = [\"./tell.sh\"]\nlabels = []\n\
         [wards]\nmax_turns = 9\n"
    )
}

/// A script that tells two things and ends.
fn script(second: &str, answer: &str) -> String {
    format!(
        "responses:\n  - tool_calls: [{{id: a, gate: tell, args: {{what: one}}}}]\n  \
         - tool_calls: [{{id: b, gate: tell, args: {{what: {second}}}}}]\n  \
         - tool_calls: [{{id: c, gate: done, args: {{answer: {answer}}}}}]\n"
    )
}

fn called(name: &str, arguments: &Value) -> Value {
    let call = json!({"id": "c1", "type": "function",
        "function": {"name": name, "arguments": arguments.to_string()}});
    json!({"role": "assistant", "content": null, "tool_calls": [call]})
}

/// Returns the number of the job that a request is about, and the number of results that it shows.
fn job_and_step(request: &Value) -> (usize, usize) {
    let messages = request["messages"].as_array().cloned().unwrap_or_default();
    let said = messages.iter().find(|message| message["role"] == "user").map(|message| message["content"].to_string());
    let number = said.unwrap_or_default().split("job ").nth(1).unwrap_or_default().to_owned();
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    let step = messages.iter().filter(|message| message["role"] == "tool").count();
    (number.parse().unwrap_or(0), step)
}

/// The model that was used when the runs were recorded.
fn old_model() -> Model {
    Model::start(|request| {
        let (job, step) = job_and_step(request);
        match step {
            0 => called("tell", &json!({"job": job, "what": "begin"})),
            1 => called("tell", &json!({"job": job, "what": "end"})),
            _ => called("done", &json!({"answer": format!("did {job}")})),
        }
    })
}

/// The number of requests for each job and step.
type RequestCounts = Arc<Mutex<BTreeMap<(usize, usize), u64>>>;

/// Another model: of three jobs it does the first as before, asks for something else in the second, and answers the
/// third in other words. It is slow, and counts its requests by job and step.
fn new_model(delay_ms: &Arc<AtomicU64>) -> (Model, RequestCounts) {
    let counts = RequestCounts::default();
    let (counted, delay) = (Arc::clone(&counts), Arc::clone(delay_ms));
    let model = Model::start(move |request| {
        let (job, step) = job_and_step(request);
        *counted.lock().expect("no panic holds it").entry((job, step)).or_default() += 1;
        std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed)));
        match (step, job % 3) {
            (0, _) => called("tell", &json!({"what": "begin", "job": job})),
            (1, 1) => called("tell", &json!({"job": job, "what": "stop"})),
            (1, _) => called("tell", &json!({"job": job, "what": "end"})),
            (_, 2) => called("done", &json!({"answer": format!("finished {job}")})),
            (_, _) => called("done", &json!({"answer": format!("did {job}")})),
        }
    });
    (model, counts)
}

fn jobs() -> impl Iterator<Item = String> {
    (0..MODELLED).map(|number| format!("Do job {number}."))
}

#[test]
fn two_hundred_recorded_runs_are_identical_with_the_same_crystal_and_no_gate_is_executed() {
    let project = Project::new("scripted/worker.yaml", SQLITE);
    project.folder.write("spells/worker.yaml", &script("two", "over"));
    project.folder.write("spells/other.yaml", &script("three", "over"));
    let runs = project.record((0..SCRIPTED).map(|number| format!("Do job {number}.")));
    let executed = project.executed();
    assert_eq!(executed, 2 * SCRIPTED);

    let planned = project.run(&["backtest", "worker", "--since", "7d", "--dry-run", "--json"]);
    let planned = enveloped(&planned, codes::READ.any())["data"]["value"]["plan"].clone();
    assert_eq!((&planned["runs"], &planned["unchanged"]), (&json!(SCRIPTED), &json!(SCRIPTED)), "{planned}");
    assert_eq!(planned["cost"]["worst"], "free");

    let same = project.tested(&["--since", "7d", "--crystal", "scripted/worker.yaml"]);
    let report = &same["backtest"];
    assert_eq!((&report["runs"], &report["identical"]), (&json!(SCRIPTED), &json!(SCRIPTED)), "{report}");
    assert_eq!((&report["diverged"], &report["unscored"]), (&json!(0), &json!(0)));
    assert_eq!(report["calls"]["record"], json!(2 * SCRIPTED));
    assert_eq!(report["score"]["delta"], json!(0));
    assert_eq!(report["turns"]["equal"], json!(SCRIPTED));
    let rows = project.rows(id(&same["run_id"]));
    assert_eq!(rows.len(), SCRIPTED);
    for run in &runs {
        let finding = &rows[run]["finding"];
        assert_eq!((&finding["divergence"], &finding["repeated"]), (&Value::Null, &json!(3)), "{finding}");
    }
    assert_eq!(project.executed(), executed, "a gate was executed");

    // With another script the first difference of each run is named.
    let other = project.tested(&["--since", "7d", "--crystal", "scripted/other.yaml"]);
    let report = &other["backtest"];
    assert_eq!((&report["identical"], &report["diverged"]), (&json!(0), &json!(SCRIPTED)), "{report}");
    assert_eq!(report["divergences"], json!({"not_recorded": SCRIPTED}));
    assert_eq!((&report["calls"]["record"], &report["calls"]["denied"]), (&json!(SCRIPTED), &json!(SCRIPTED)));
    let rows = project.rows(id(&other["run_id"]));
    for run in &runs {
        let finding = &rows[run]["finding"];
        let divergence = json!({
            "kind": "not_recorded", "step": 2, "turn": 2,
            "asked": {"step": "call", "turn": 2, "gate": "tell", "args": {"what": "three"}},
            "recorded": {"step": "call", "turn": 2, "gate": "tell", "args": {"what": "two"}},
        });
        assert_eq!(finding["divergence"], divergence, "{finding}");
        assert_eq!((&finding["carried"], &finding["repeated"]), (&json!(1), &json!(0)));
    }
    assert_eq!(project.executed(), executed, "a gate was executed");

    // The same backtest again only reads its report.
    let again = project.tested(&["--since", "7d", "--crystal", "scripted/other.yaml"]);
    assert_eq!((&again["replayed"], &again["backtest"]), (&json!(true), report));
    let listed = enveloped(&project.run(&["backtest", "ls", "--json"]), codes::READ.any());
    assert_eq!(listed["data"]["value"]["items"].as_array().map(Vec::len), Some(2));
    project.verify();
}

/// Asserts that every run of the new model is compared exactly.
#[track_caller]
fn assert_compared(project: &Project, runs: &[String], done: &Value) {
    let report = &done["backtest"];
    let third = json!(MODELLED / 3);
    assert_eq!((&report["runs"], &report["done"]), (&json!(MODELLED), &json!(MODELLED)), "{report}");
    assert_eq!(report["identical"], third, "{report}");
    assert_eq!(report["divergences"], json!({"not_recorded": third, "other_end": third}), "{report}");
    let rows = project.rows(id(&done["run_id"]));
    for (job, run) in runs.iter().enumerate() {
        let row = &rows[run];
        let (divergence, score) = (&row["finding"]["divergence"], &row["score"]);
        match job % 3 {
            0 => assert_eq!((divergence, score), (&Value::Null, &json!(1_000_000)), "{row}"),
            1 => {
                assert_eq!(divergence["kind"], "not_recorded", "{row}");
                assert_eq!((&divergence["step"], &divergence["turn"]), (&json!(2), &json!(2)));
                let asked = json!({"step": "call", "turn": 2, "gate": "tell", "args": {"job": job, "what": "stop"}});
                let recorded = json!({"step": "call", "turn": 2, "gate": "tell", "args": {"job": job, "what": "end"}});
                assert_eq!((&divergence["asked"], &divergence["recorded"]), (&asked, &recorded));
                assert_eq!(row["finding"]["calls"]["denied"], json!(1));
                assert_eq!(score, &json!(1_000_000), "the answer is the same all the same");
            }
            _ => {
                assert_eq!(divergence["kind"], "other_end", "{row}");
                let answered = |answer: String| json!({"step": "answered", "turn": 3, "answer": answer});
                assert_eq!(divergence["asked"], answered(format!("finished {job}")));
                assert_eq!(divergence["recorded"], answered(format!("did {job}")));
                assert_eq!((score, &row["finding"]["original_score"]), (&json!(0), &json!(1_000_000)));
            }
        }
        assert_eq!(row["finding"]["tokens"], json!({"original": 6, "new": 6}), "{row}");
    }
    // One answer in three is another one, and the interval of the difference says so.
    let score = &report["score"];
    assert_eq!((&score["n"], &score["less"], &score["more"]), (&json!(MODELLED), &third, &json!(0)), "{score}");
    assert!(score["high"].as_i64() < Some(0) && score["low"].as_i64() < score["delta"].as_i64(), "{score}");
}

/// Kills a backtest several times, resumes it, and counts what was asked and executed.
fn killed_and_resumed(store: &str) {
    let old = old_model();
    let project = Project::new(&old.crystal(), store);
    let runs = project.record(jobs());
    let executed = project.executed();
    assert_eq!(executed, 2 * MODELLED);
    let before = old.asked();
    let delay = Arc::new(AtomicU64::new(40));
    let (new, counts) = new_model(&delay);
    let crystal = new.crystal();
    let asked = ["backtest", "worker", "--crystal", &crystal, "--yes", "--json", "--concurrency", "4"];
    let kills = [5, 20, 45];
    for wanted in kills {
        let mut command = project.folder.command(&project.arguments(&asked));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let began = Instant::now();
        while counts.lock().expect("no panic holds it").len() < wanted {
            assert!(began.elapsed() < Duration::from_secs(60), "the model is not asked");
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().expect("it runs");
        child.wait().expect("it ends");
    }
    delay.store(0, Ordering::Relaxed);
    let listed = enveloped(&project.run(&["run", "ls", "--kind", "job", "--json"]), codes::READ.any());
    let listed = listed["data"]["value"].as_array().cloned().unwrap_or_default();
    assert_eq!(listed.len(), 1, "{listed:?}");
    let run = id(&listed[0]["run_id"]).to_owned();
    let resumed = enveloped(&project.run(&["run", "resume", &run, "--json"]), codes::EVALUATED.any());
    assert_compared(&project, &runs, &resumed["data"]);
    assert_eq!(project.executed(), executed, "a gate was executed");
    assert_eq!(old.asked(), before, "the recorded crystal was asked");
    // Four runs are under way at a kill, and the request of each may be sent once more.
    let requests: u64 = counts.lock().expect("no panic holds it").values().sum();
    let least = 3 * MODELLED as u64;
    assert!((least..=least + 4 * kills.len() as u64).contains(&requests), "{requests} requests");
    // Each answer costs 11 millionths of a dollar: one token of input at 1 USD and one of output at 10 USD a million.
    let report = &resumed["data"]["backtest"];
    assert_eq!(report["cost"]["equal"], json!(MODELLED), "{report}");
    assert_eq!(report["cost"]["new"], json!(33), "{report}");
    assert_eq!(report["spent"]["micros"], json!(33 * MODELLED), "{report}");
    project.verify();
}

#[test]
fn a_backtest_that_is_killed_goes_on_and_its_ledger_adds_up() {
    killed_and_resumed(SQLITE);
}

#[test]
fn a_backtest_that_is_killed_goes_on_on_postgres() {
    if let Some(store) = own_postgres() {
        killed_and_resumed(&store);
    }
}

#[test]
fn a_backtest_that_ran_out_is_continued_and_pays_nothing_twice() {
    let old = old_model();
    let project = Project::new(&old.crystal(), SQLITE);
    let runs = project.record(jobs());
    let (new, counts) = new_model(&Arc::default());
    let crystal = new.crystal();
    let asked = ["backtest", "worker", "--crystal", &crystal, "--yes", "--json"];
    let few = project.run(&[&asked[..], &["--max-calls", "3"]].concat());
    let spent = enveloped(&few, codes::BUDGET_SPENT.any());
    assert_eq!(counts.lock().expect("no panic holds it").len(), 0, "an Ask that does not fit is not begun");
    let run = id(&spent["data"]["run_id"]).to_owned();
    let more = project.run(&["run", "continue", &run, "--max-calls", "100", "--json"]);
    let done = enveloped(&more, codes::EVALUATED.any());
    assert_compared(&project, &runs, &done["data"]);
    let requests: u64 = counts.lock().expect("no panic holds it").values().sum();
    assert_eq!(requests, 3 * MODELLED as u64);
    project.verify();
}

#[test]
fn a_changed_spell_is_asked_anew_and_an_unchanged_one_costs_nothing() {
    let old = old_model();
    let project = Project::new(&old.crystal(), SQLITE);
    project.record((0..3).map(|number| format!("Do job {number}.")));
    let (asked, executed) = (old.asked(), project.executed());
    let same = project.tested(&["--crystal", &old.crystal()]);
    let report = &same["backtest"];
    assert_eq!((&report["identical"], old.asked()), (&json!(3), asked), "{report}");
    assert_eq!((&report["cost"]["new"], &report["cost"]["delta"]), (&json!(33), &json!(0)), "{report}");
    assert_eq!(report["spent"]["micros"].as_i64().unwrap_or(0), 0, "{report}");

    // It holds nothing either, so the smallest budget is enough.
    let free = project.tested(&["--crystal", &old.crystal(), "--rerun", "--budget", "0.000001 USD"]);
    assert_eq!((&free["backtest"]["identical"], old.asked()), (&json!(3), asked), "{free}");

    // The same model is asked again for another prompt, and does the same.
    project.folder.write("new.toml", &spell(&old.crystal(), "You do jobs well.").replace("../data", "data"));
    project.folder.write("tell.sh", "#!/bin/sh\nexit 1\n");
    let tell = project.folder.path().join("tell.sh");
    fs::set_permissions(tell, PermissionsExt::from_mode(0o755)).expect("a script");
    let changed = project.tested(&["--spell-file", "new.toml"]);
    assert_eq!(changed["backtest"]["identical"], json!(3), "{changed}");
    assert_eq!(old.asked(), asked + 9, "three requests for each run");
    assert_ne!(changed["backtest"]["candidate"], same["backtest"]["candidate"]);
    assert_eq!(changed["backtest"]["spent"]["micros"], json!(99), "{changed}");
    assert_eq!(project.executed(), executed, "a gate was executed");
    project.verify();
}

#[test]
fn verdicts_and_approvals_come_from_the_record() {
    let project = Project::new("scripted/worker.yaml", SQLITE);
    let text =
        spell("scripted/worker.yaml", "You do jobs.").replace("[wards]\n", "[wards]\nrequire_approval = [\"tell\"]\n");
    project.folder.write("spells/worker.toml", &format!("{text}[verify]\ncommand = [\"./check.sh\"]\n"));
    project.folder.write(
        "spells/worker.yaml",
        "responses:\n  - tool_calls: [{id: a, gate: tell, args: {what: one}}]\n  \
         - tool_calls: [{id: b, gate: done, args: {answer: bad}}]\n  \
         - tool_calls: [{id: c, gate: done, args: {answer: good}}]\n",
    );
    let check = "#!/bin/sh\nread -r answer\necho checked >> check.log\n\
                 case \"$answer\" in *good*) exit 0;; *) echo 'not good'; exit 1;; esac\n";
    project.folder.write("spells/check.sh", check);
    let script = project.folder.path().join("spells/check.sh");
    fs::set_permissions(script, PermissionsExt::from_mode(0o755)).expect("a script");
    // Without a terminal the call waits until it is approved.
    assert_eq!(project.run(&["cast", "worker", "Do job 0."]).status.code(), Some(5));
    for arguments in [["run", "approve"], ["run", "resume"]] {
        let output = project.run(&arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let checked = || fs::read_to_string(project.folder.path().join("spells/check.log")).unwrap_or_default();
    let (executed, verified) = (project.executed(), checked());
    assert_eq!((executed, verified.lines().count()), (1, 2));

    let same = project.tested(&["--crystal", "scripted/worker.yaml"]);
    assert_eq!(same["backtest"]["identical"], json!(1), "{same}");
    assert_eq!((project.executed(), checked()), (executed, verified), "something was executed");
    project.verify();
}

/// A model that reads one file and answers with what it read. The recorded one reads `a.txt`; the other one reads
/// `b.txt` and then tells about it.
fn reader(path: &'static str, tells: bool) -> Model {
    Model::start(move |request| {
        let (_, step) = job_and_step(request);
        let results: Vec<String> = request["messages"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|message| message["role"] == "tool")
            .map(|message| message["content"].to_string())
            .collect();
        match (step, tells) {
            (0, _) => called("read", &json!({ "path": path })),
            (1, true) => called("tell", &json!({"what": "read"})),
            _ => {
                let read = results.first().is_some_and(|text| text.contains("one") || text.contains("two"));
                let denied = results.iter().filter(|text| text.contains(codes::NOT_AUTHORIZED.as_str())).count();
                called("done", &json!({"answer": {"read": read, "denied": denied}}))
            }
        }
    })
}

#[test]
fn a_call_that_is_not_recorded_is_denied_or_read_live_as_the_policy_says() {
    let old = reader("a.txt", false);
    let project = Project::new(&old.crystal(), SQLITE);
    let runs = project.record(["Do job 0.".to_owned()]);
    let new = reader("b.txt", true);
    let crystal = new.crystal();
    let answer = |done: &Value| project.rows(id(&done["run_id"]))[&runs[0]]["finding"].clone();

    let denied = project.tested(&["--crystal", &crystal, "--missing", "deny"]);
    let calls = json!({"record": 0, "judge": 0, "live": 0, "denied": 2, "refused": 0});
    assert_eq!(answer(&denied)["calls"], calls, "{denied}");
    assert_eq!(answer(&denied)["divergence"]["asked"]["args"], json!({"path": "b.txt"}));

    let live = project.tested(&["--crystal", &crystal, "--missing", "read-only-live"]);
    let calls = json!({"record": 0, "judge": 0, "live": 1, "denied": 1, "refused": 0});
    assert_eq!(answer(&live)["calls"], calls, "{live}");
    assert_ne!(denied["run_id"], live["run_id"], "another policy is another job");
    assert_eq!(project.executed(), 0, "a command is not read-only");
    // The answers that the model gave are in the loom, with what it was told.
    let metric = "v = 1\nkind = \"metric\"\ntype = \"json_field.v1\"\nfields = [{pointer = \"/denied\", weight = 1}]\n";
    project.folder.write("metrics/denied.toml", metric);
    let scored = project.tested(&["--crystal", &crystal, "--metric", "denied"]);
    assert_eq!(scored["backtest"]["score"]["new"], json!(0), "{scored}");
    project.verify();
}

#[test]
fn a_judge_finds_the_recorded_call_that_means_the_same() {
    let asks = |what: &'static str| {
        Model::start(move |request| {
            let (_, step) = job_and_step(request);
            let text = request["messages"].to_string();
            if text.contains("A recorded run of an agent is repeated.") {
                let same = text.contains("tell them") && text.contains("inform them");
                let output = json!({"score": if same { 1 } else { 0 }, "feedback": "compared"});
                if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
                    return called("done", &json!({ "answer": output }));
                }
                return json!({"role": "assistant", "content": output.to_string()});
            }
            match step {
                0 => called("tell", &json!({ "what": what })),
                _ => called("done", &json!({"answer": "over"})),
            }
        })
    };
    let old = asks("tell them");
    let project = Project::new(&old.crystal(), SQLITE);
    let runs = project.record(["Do job 0.".to_owned()]);
    let executed = project.executed();
    let (same, other) = (asks("inform them"), asks("sell it"));
    let judge = same.crystal();
    for (model, judged, denied) in [(&same, 1, 0), (&other, 0, 1)] {
        let crystal = model.crystal();
        let done = project.tested(&["--crystal", &crystal, "--missing", "judge", "--judge", &judge]);
        let finding = project.rows(id(&done["run_id"]))[&runs[0]]["finding"].clone();
        let calls = json!({"record": 0, "judge": judged, "live": 0, "denied": denied, "refused": 0});
        assert_eq!(finding["calls"], calls, "{finding}");
        assert_eq!(finding["divergence"]["kind"], "not_recorded");
    }
    assert_eq!(project.executed(), executed, "a gate was executed");
    project.verify();
}

#[test]
fn a_plan_is_asked_about_and_what_cannot_be_tested_is_refused_before_any_call() {
    let old = old_model();
    let project = Project::new(&old.crystal(), SQLITE);
    let none = project.run(&["backtest", "worker", "--yes", "--json"]);
    assert_eq!(enveloped(&none, codes::LIMIT.any())["data"]["actual"], json!(0));
    project.record(["Do job 0.".to_owned()]);
    let asked = old.asked();
    let unanswered = project.run(&["backtest", "worker", "--json"]);
    assert_eq!(enveloped(&unanswered, codes::NO_DECISION.any())["data"]["plan"]["runs"], json!(1));
    let later = project.run(&["backtest", "worker", "--until", "1d", "--yes", "--json"]);
    enveloped(&later, codes::LIMIT.any());
    let unknown = project.run(&["backtest", "nobody", "--yes", "--json"]);
    enveloped(&unknown, codes::NOT_FOUND.any());
    project.folder.write(
        "shell.toml",
        "name = \"worker\"\ncrystal = \"local/test@http://127.0.0.1:9/v1\"\n\
                          medium = \"shell\"\n[wards]\nmax_turns = 3\n",
    );
    let shell = project.run(&["backtest", "worker", "--spell-file", "shell.toml", "--yes", "--json"]);
    enveloped(&shell, codes::CONFIG_INVALID.any());
    let listed = enveloped(&project.run(&["backtest", "ls", "--json"]), codes::READ.any());
    assert_eq!(listed["data"]["value"]["items"], json!([]), "nothing was started");
    assert_eq!(old.asked(), asked);
    let missing = project.run(&["backtest", "show"]);
    assert_eq!(missing.status.code(), Some(2), "{missing:?}");
}
