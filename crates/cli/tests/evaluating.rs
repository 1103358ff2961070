//! `cantrip eval` as a person uses it: the plan and the question, the progress, the report as text, JSON and page, the
//! exit status of each ending, and a promotion that rests on the stored evaluation.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use cantrip_reply::codes;
use rmcp::model::{ProtocolVersion, ReadResourceRequestParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::mcp::{Peer, called, ended, envelope, served};
use crate::serve::Server;
use crate::support::keyed::{Keyed, Says};
use crate::support::model::Model;
use crate::support::terminal::Terminal;
use crate::support::{Folder, enveloped, id, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";
pub(crate) const TEAMS: [&str; 4] = ["billing", "shipping", "technical", "account"];
/// The number of examples of the test split.
const EXAMPLES: usize = 40;

pub(crate) const SIGNATURE: &str = r#"namespace = "@me/support"
name = "Triage"
version = 1
description = "Which team should answer a ticket?"
program_template = "direct.v1"
instructions = "Name the team."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.ticket | fence('ticket') }}"

[input_schema]
type = "object"
required = ["ticket"]
additionalProperties = false
properties.ticket = { type = "string", minLength = 1 }

[output_schema]
type = "object"
required = ["team"]
additionalProperties = false
properties.team = { type = "string", enum = ["billing", "shipping", "technical", "account"] }
"#;

pub(crate) const METRIC: &str = "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\npointer = \"/team\"\n";

/// Returns the message of a model that answers with this team, in the form that the request asks for.
pub(crate) fn answers(request: &Value, team: &str) -> Value {
    let output = json!({ "team": team });
    if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        let arguments = json!({ "answer": output }).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
        return json!({"role": "assistant", "content": null, "tool_calls": [call]});
    }
    json!({"role": "assistant", "content": output.to_string()})
}

/// Returns the team of a request: the one in its ticket if the instructions say `carefully`, else always `billing`.
pub(crate) fn team_of(request: &Value) -> &'static str {
    let text = request["messages"].to_string();
    let named = TEAMS.into_iter().find(|team| text.contains(&format!("about {team}")));
    if text.contains("carefully") { named.unwrap_or("billing") } else { "billing" }
}

fn capable() -> Model {
    Model::start(|request| answers(request, team_of(request)))
}

/// A folder with a signature, a metric, a dataset of tickets and a second artifact.
struct Desk {
    folder: Folder,
    model: Model,
    /// The artifact with better instructions.
    better: String,
    /// The artifact of the signature as it was published.
    base: String,
}

impl Desk {
    fn new(model: Model) -> Self {
        let folder = Folder::new();
        for name in ["signatures", "metrics"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("signatures/triage.toml", SIGNATURE);
        folder.write("metrics/team.toml", METRIC);
        folder.write("better.json", r#"{"instructions": "Read the ticket carefully, and name the team."}"#);
        let mut rows = String::from("id,split,ticket,team\n");
        for number in 0..EXAMPLES + 5 {
            let (team, split) = (TEAMS[number % 4], if number < EXAMPLES { "test" } else { "holdout" });
            rows += &format!("t{number:03},{split},\"Ticket {number}, about {team}\",{team}\n");
        }
        folder.write("tickets.csv", &rows);
        let desk = Self { folder, model, better: String::new(), base: String::new() };
        let add = ["dataset", "add", "tickets", "tickets.csv", "--signature", "Triage", "--splits", "given"];
        desk.succeeds(&add);
        let better = desk.succeeds(&["artifact", "add", "Triage", "better.json"]);
        let shown = desk.folder.envelope(&["sig", "show", "Triage", "--store", STORE], codes::READ.any());
        let base = id(&shown["data"]["value"]["base"]).to_owned();
        desk.succeeds(&["pointer", "set", "Triage", &base]);
        Self { better: better.trim().to_owned(), base, ..desk }
    }

    /// Runs a command that succeeds, and returns its standard output.
    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.folder.run(&[arguments, &["--store", STORE]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output).to_owned()
    }

    /// Returns the arguments that evaluate the better artifact.
    fn eval<'a>(&'a self, crystal: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let asked = ["eval", &self.better, "--dataset", "tickets", "--metric", "team", "--crystal", crystal];
        [&asked[..], more, &["--store", STORE]].concat()
    }

    fn run(&self, more: &[&str]) -> Output {
        let crystal = self.model.crystal();
        self.folder.run(&self.eval(&crystal, more))
    }

    /// Evaluates, and returns the envelope.
    #[track_caller]
    fn evaluated(&self, more: &[&str]) -> Value {
        let output = self.run(&[more, &["--yes", "--json"]].concat());
        enveloped(&output, codes::EVALUATED.any())
    }

    /// Returns the bytes of the store.
    fn stored(&self) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(self.folder.path().join("kept")).expect("a store").flatten();
        // The shared memory of the database holds the locks of its readers and no content.
        let files = files.filter(|file| !file.file_name().to_string_lossy().ends_with("-shm"));
        let files = files.filter(|file| file.path().is_file());
        files
            .map(|file| {
                let name = file.file_name().to_string_lossy().into_owned();
                (name, std::fs::read(file.path()).expect("a file"))
            })
            // A reader leaves an empty write-ahead log.
            .filter(|(_, content)| !content.is_empty())
            .collect()
    }
}

#[test]
fn nothing_is_asked_without_a_yes_and_a_dry_run_writes_nothing() {
    let desk = Desk::new(capable());
    let before = desk.stored();

    let refused = desk.run(&["--json"]);
    let envelope = enveloped(&refused, codes::NO_DECISION.any());
    assert_eq!(envelope["data"]["plan"]["trials"], json!(2 * EXAMPLES));
    let refused = desk.run(&[]);
    assert_eq!((refused.status.code(), stdout(&refused)), (Some(3), ""), "{refused:?}");
    assert!(stderr(&refused).contains("at most 80: 40 examples of test, both sides"), "{refused:?}");
    assert!(stderr(&refused).contains("--yes"), "the next step is named: {refused:?}");

    let planned = desk.run(&["--dry-run"]);
    assert!(planned.status.success(), "{planned:?}");
    let plan = stdout(&planned);
    for line in [
        "  data       tickets@1: 0 train, 5 holdout, 40 test",
        "  metric     exact.v1 /team",
        "  test       look 1; differences under 0.24 will probably not show",
    ] {
        assert!(plan.lines().any(|shown| shown == line), "{line:?} is not in\n{plan}");
    }
    let envelope = enveloped(&desk.run(&["--dry-run", "--json"]), codes::READ.any());
    assert_eq!(envelope["data"]["value"]["plan"]["examples"], json!(EXAMPLES));

    assert_eq!(desk.model.asked(), 0, "no model was asked");
    assert!(desk.stored() == before, "the store was written to");
    assert_eq!(desk.succeeds(&["eval", "ls"]), "");
}

#[test]
fn a_person_at_a_terminal_is_asked_and_may_say_no() {
    let desk = Desk::new(capable());
    let crystal = desk.model.crystal();
    let arguments = desk.eval(&crystal, &[]);
    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("will probably not show");
    terminal.wait_for("start? [y/N]");
    terminal.line("n");
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(3), "{drawn}");
    assert_eq!(desk.model.asked(), 0);

    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("start? [y/N]");
    terminal.line("y");
    terminal.wait_for("better: the interval excludes 0");
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(0), "{drawn}");
    assert_eq!(desk.model.asked(), 2 * EXAMPLES as u64);
}

/// Returns the counts `done/whole` of every progress line, in the order in which they were drawn.
pub(crate) fn progress(drawn: &str) -> Vec<(u64, u64)> {
    let shown = drawn.split(" trials").filter_map(|part| part.rsplit("] ").next()?.split_once('/'));
    shown.filter_map(|(done, whole)| Some((done.parse().ok()?, whole.parse().ok()?))).collect()
}

#[test]
fn progress_never_goes_back_and_ends_at_the_whole() {
    let slow = Model::start(|request| {
        // Answers arrive in another order than they were asked for.
        let text = request["messages"].to_string();
        std::thread::sleep(std::time::Duration::from_millis(text.len() as u64 % 7 * 15));
        answers(request, team_of(request))
    });
    let desk = Desk::new(slow);
    let crystal = desk.model.crystal();
    let terminal = Terminal::run(&desk.folder, &desk.eval(&crystal, &["--yes"]));
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(0), "{drawn}");
    let counts = progress(&drawn);
    assert!(counts.len() > 2, "{drawn}");
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&(80, 80)), "{drawn}");
    assert!(counts.iter().all(|(_, whole)| *whole == 80), "{counts:?}");

    // Off a terminal, a job of less than ten seconds has one line, its last.
    let piped = desk.run(&["--yes", "--rerun"]);
    assert!(piped.status.success(), "{piped:?}");
    assert_eq!(progress(stderr(&piped)), [(80, 80)], "{piped:?}");
    assert!(!stderr(&piped).contains('\r'), "{piped:?}");
}

#[test]
fn an_evaluation_ends_in_a_report_and_its_id_and_the_pointer_is_promoted_by_it() {
    let desk = Desk::new(capable());
    let output = desk.run(&["--yes"]);
    assert!(output.status.success(), "{output:?}");
    let eval = stdout(&output).trim().to_owned();
    assert!(eval.starts_with("eval_") && eval.len() == 29, "standard output has the id alone: {output:?}");
    let report = stderr(&output);
    for part in [
        "beside art_",
        "on test of tickets@1: 40 examples, look 1",
        "  1.000   ",
        "  0.250   ",
        "  difference  +0.750",
        "30 better, 0 worse, 10 equal",
        "better: the interval excludes 0",
        "expected:shipping 1.00 (+1.00, 10)",
        "pointer promote Triage art_",
    ] {
        assert!(report.contains(part), "{part:?} is not in\n{report}");
    }
    // The same again asks no model and has the same report.
    let asked = desk.model.asked();
    let again = desk.evaluated(&[]);
    assert_eq!((desk.model.asked(), id(&again["data"]["eval_id"])), (asked, eval.as_str()));
    assert_eq!(again["data"]["replayed"], json!(true));
    // Nothing is left to agree to.
    let read = desk.run(&[]);
    assert_eq!((read.status.code(), stdout(&read).trim()), (Some(0), eval.as_str()), "{read:?}");
    assert!(stderr(&read).contains("evaluated before; --rerun does it again"), "{read:?}");
    assert_eq!(desk.model.asked(), asked);
    assert_eq!(again["data"]["verdict"], "better");

    assert!(desk.succeeds(&["eval", "ls"]).contains(&eval));
    assert!(desk.succeeds(&["eval", "show"]).contains("better: the interval excludes 0"));
    desk.folder.envelope(&["eval", "verify", &eval, "--store", STORE], codes::VERIFIED.any());
    let rows = desk.succeeds(&["eval", "show", &eval[..12], "--rows"]);
    assert_eq!(rows.lines().count(), EXAMPLES, "{rows}");
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row).expect("a line of JSON");
        assert!(row["example_id"].is_string(), "{row}");
    }

    let promoted = desk.succeeds(&["pointer", "promote", "Triage", &desk.better]);
    assert!(promoted.contains(&format!("primary  {}", desk.better)), "{promoted}");
    assert!(promoted.contains(&format!("because  {eval}, verified from its rows")), "{promoted}");
    assert!(desk.succeeds(&["pointer", "audits", "Triage"]).contains(&format!("promote, by {eval}")));
}

#[test]
fn a_promotion_without_an_evaluation_names_what_is_missing() {
    let desk = Desk::new(capable());
    // The served artifact beside itself: no difference.
    let crystal = desk.model.crystal();
    let same = ["eval", &desk.base, "--dataset", "tickets", "--metric", "team", "--crystal", &crystal, "--yes"];
    let output =
        desk.folder.run(&[&same[..], &["--baseline", &desk.better, "--split", "holdout", "--store", STORE]].concat());
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("holdout is not the test split"), "{output:?}");
    let refused = desk.folder.run(&["pointer", "promote", "Triage", &desk.better, "--json", "--store", STORE]);
    let envelope = enveloped(&refused, codes::PROMOTE_GATE.any());
    assert_eq!(envelope["data"]["conditions"], json!(["report_missing"]));
    let refused = desk.folder.run(&["pointer", "promote", "Triage", &desk.better, "--store", STORE]);
    assert!(stderr(&refused).contains("cantrip eval art_"), "the next step is named: {refused:?}");
}

/// Returns every number of a value with its place.
pub(crate) fn numbers(value: &Value, place: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Number(number) => {
            found.insert(place.to_owned(), number.to_string());
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                numbers(item, &format!("{place}/{at}"), found);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                numbers(field, &format!("{place}/{name}"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Returns the numbers that a page shows, by their places in the report.
pub(crate) fn shown_numbers(page: &str) -> BTreeMap<String, String> {
    let parts = page.split("<data value=\"").skip(1);
    parts
        .map(|part| {
            let (value, rest) = part.split_once("\" data-of=\"").expect("a place");
            let (place, _) = rest.split_once('"').expect("an end");
            (place.to_owned(), value.to_owned())
        })
        .collect()
}

/// Asserts that every element of a page is closed where it was opened.
#[track_caller]
pub(crate) fn assert_nested(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("a tag ends");
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}> closes another element");
        } else if !tag.starts_with('!') && name != "meta" {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn the_page_of_an_evaluation_has_the_numbers_of_its_json() {
    let desk = Desk::new(capable());
    let eval = id(&desk.evaluated(&[])["data"]["eval_id"]).to_owned();
    assert_eq!(desk.succeeds(&["eval", "show", &eval, "--html", "report.html"]), "report.html\n");
    let shown = desk.folder.envelope(&["eval", "show", &eval, "--store", STORE], codes::READ.any());
    let report = &shown["data"]["value"]["report"];
    let mut expected = BTreeMap::new();
    numbers(report, "", &mut expected);
    expected.remove("/v");
    assert!(expected.len() > 40, "{expected:?}");
    let page = desk.folder.read("report.html");
    assert_eq!(shown_numbers(&page), expected);

    assert!(page.starts_with("<!DOCTYPE html>"), "{}", &page[..80]);
    assert_nested(&page);
    // The name of the model has the address of its server, as a text.
    let page = page.replace(&desk.model.crystal(), "the model");
    for forbidden in ["<script", "http://", "https://", "javascript:", " style=", " onclick"] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    let charts = page.matches("<svg class=\"chart\"").count();
    assert!(charts >= 4, "{charts} charts");
    let titled = page
        .split("<svg class=\"chart\"")
        .skip(1)
        .filter(|chart| chart.split("</svg>").next().is_some_and(|chart| chart.contains("<title>")))
        .count();
    assert_eq!(titled, charts, "every chart has a title");
    assert!(page.matches("<table>").count() >= charts, "every chart has a table");
    assert!(page.contains("name=\"viewport\"") && page.contains("Content-Security-Policy"));
    assert!(page.len() < 400 << 10, "{} bytes", page.len());
    // The schema of the report is published.
    let schema = desk.folder.run(&["schema", "eval_report"]);
    assert!(stdout(&schema).contains("\"verdict\""), "{schema:?}");
}

/// A model that reports each request, and answers only while it may.
pub(crate) fn stalling() -> (Model, Receiver<()>, Arc<AtomicBool>) {
    let (to, asked) = channel();
    let (to, answers_now) = (Mutex::new(to), Arc::new(AtomicBool::new(false)));
    let may = Arc::clone(&answers_now);
    let model = Model::start(move |request| {
        let _ = to.lock().expect("nobody panics with it").send(());
        while !may.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        answers(request, team_of(request))
    });
    (model, asked, answers_now)
}

#[test]
fn an_interrupted_evaluation_waits_and_is_resumed() {
    let (model, asked, answers_now) = stalling();
    let desk = Desk::new(model);
    let crystal = desk.model.crystal();
    let mut command = desk.folder.command(&desk.eval(&crystal, &["--yes", "--json"]));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    asked.recv().expect("the model is asked");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let parked = enveloped(&output, codes::CREATED.any());
    assert_eq!((&parked["data"]["reason"], output.status.code()), (&json!("interrupted"), Some(130)), "{output:?}");
    let run = id(&parked["data"]["run_id"]).to_owned();

    answers_now.store(true, Ordering::Relaxed);
    let resumed = desk.folder.run(&["run", "resume", &run, "--json", "--store", STORE]);
    let envelope = enveloped(&resumed, codes::EVALUATED.any());
    assert_eq!(envelope["data"]["verdict"], "better");
    desk.succeeds(&["eval", "verify"]);
    desk.folder.envelope(&["receipt", "verify", "--all", "--store", STORE], codes::VERIFIED.any());
    desk.folder.envelope(&["spend", "verify", "--store", STORE], codes::VERIFIED.any());
}

#[test]
fn a_second_interrupt_cancels_the_evaluation() {
    let (model, asked, _) = stalling();
    let desk = Desk::new(model);
    let crystal = desk.model.crystal();
    let mut terminal = Terminal::run(&desk.folder, &desk.eval(&crystal, &["--yes"]));
    asked.recv().expect("the model is asked");
    terminal.send(crate::support::terminal::CTRL_C);
    terminal.wait_for("Ctrl-C again ends it");
    terminal.send(crate::support::terminal::CTRL_C);
    let (drawn, status) = terminal.end();
    // The first press may have parked the job before the second one arrived.
    assert!(matches!(status, Some(3 | 130)), "{status:?}: {drawn}");
    desk.folder.envelope(&["spend", "verify", "--store", STORE], codes::VERIFIED.any());
}

#[test]
fn the_exit_status_follows_from_how_an_evaluation_ends() {
    let desk = Desk::new(capable());
    // 2: the request is wrong.
    let crystal = desk.model.crystal();
    let unknown = ["eval", &desk.better, "--dataset", "nowhere", "--metric", "team", "--crystal", &crystal, "--yes"];
    let output = desk.folder.run(&[&unknown[..], &["--json", "--store", STORE]].concat());
    enveloped(&output, codes::CONTRACT_UNKNOWN.any());
    // 3: the bound on trials is spent; what there is of the report is kept.
    let output = desk.run(&["--max-calls", "10", "--yes", "--json"]);
    let spent = enveloped(&output, codes::BUDGET_SPENT.any());
    assert_eq!(spent["data"]["report"]["status"], "budget_exhausted");
    // 4: the metric fails on every tenth example.
    desk.folder.write(
        "metrics/broken.toml",
        "v = 1\nkind = \"metric\"\ntype = \"program.v1\"\nlanguage = \"javascript\"\nsource = '''\n\
         function score({input, output, expected}) {\n  if (/Ticket \\d*7,/.test(input.ticket)) throw new Error('seven')\n  \
         return {score: output.team === expected.team ? 1 : 0, feedback: 'another team'}\n}\n'''\n",
    );
    let asked =
        ["eval", &desk.better, "--dataset", "tickets", "--metric", "broken", "--crystal", &crystal, "--yes", "--json"];
    let output = desk.folder.run(&[&asked[..], &["--store", STORE]].concat());
    let incomplete = enveloped(&output, codes::EVAL_INCOMPLETE.any());
    assert_eq!(incomplete["data"]["report"]["unscored"], json!({"metric_failed": 8}));
    assert_eq!(incomplete["data"]["report"]["status"], "incomplete");
}

#[test]
fn an_evaluation_whose_provider_is_down_waits() {
    let desk = Desk::new(capable());
    // A server that lets nobody in: such a refusal is not repeated.
    let closed = Keyed::start(Some("a key that nobody has"), |_, _| Says::Json(200, json!({})));
    let crystal = format!("local/test@{}/v1", closed.origin());
    let arguments = desk.eval(&crystal, &["--yes", "--json"]);
    let output = desk.folder.run(&arguments);
    let parked = enveloped(&output, codes::CREATED.any());
    assert_eq!((&parked["data"]["state"], output.status.code()), (&json!("waiting"), Some(5)), "{output:?}");
    assert_eq!(parked["data"]["reason"], "crystal_unavailable");
}

#[test]
fn the_records_of_an_evaluation_are_lines_of_json() {
    let desk = Desk::new(capable());
    let output = desk.run(&["--yes", "--jsonl"]);
    assert!(output.status.success(), "{output:?}");
    let kinds: Vec<String> = stdout(&output)
        .lines()
        .map(|line| {
            let record: Value = serde_json::from_str(line).expect("a line of JSON");
            id(&record["type"]).to_owned()
        })
        .collect();
    let count = |kind: &str| kinds.iter().filter(|known| *known == kind).count();
    assert_eq!((count("job.opened"), count("job.scored"), count("job.closed")), (1, 2 * EXAMPLES, 1), "{kinds:?}");
}

#[test]
fn a_metric_is_checked_and_tried_without_a_model() {
    let desk = Desk::new(capable());
    let checked = desk.succeeds(&["metric", "check", "team"]);
    assert!(checked.starts_with("exact.v1 /team  sha256:"), "{checked}");
    let tried = desk.succeeds(&["metric", "try", "team", "--dataset", "tickets", "--n", "3"]);
    assert_eq!(tried.lines().count(), 3, "{tried}");
    assert!(tried.lines().all(|line| line.contains("  1.000")), "{tried}");
    desk.folder.write("metrics/odd.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v2\"\n");
    desk.folder.envelope(&["metric", "check", "odd", "--store", STORE], codes::METRIC_INVALID.any());
    desk.folder.envelope(&["metric", "check", "nowhere", "--store", STORE], codes::CONTRACT_UNKNOWN.any());
    desk.folder.write(
        "metrics/throws.toml",
        "v = 1\nkind = \"metric\"\ntype = \"program.v1\"\nlanguage = \"javascript\"\n\
         source = \"function score() { throw new Error('no') }\"\n",
    );
    let tried = ["metric", "try", "throws", "--dataset", "tickets", "--store", STORE];
    desk.folder.envelope(&tried, codes::CODE_THREW.any());
    assert_eq!(desk.model.asked(), 0);
}

const ANN: &str = "authorization: Bearer token-of-ann-0123456789\r\n";
const EVE: &str = "authorization: Bearer token-of-eve-0123456789\r\n";

#[test]
fn over_http_an_operator_plans_and_starts_an_evaluation_and_every_owner_reads_its_report() {
    let desk = Desk::new(capable());
    desk.folder.write("tokens", "ann = token-of-ann-0123456789\noperator eve = token-of-eve-0123456789\n");
    // The caller pays, also if the model costs nothing.
    desk.succeeds(&["spend", "authorize", "--owner", "user:eve", "--total", "1.00 USD", "--because", "for the week"]);
    let server = Server::start(&desk.folder, &["--tokens", "tokens", "--store", STORE]);
    let mut body = json!({"subject": desk.better, "dataset": "tickets", "metric": {"v": 1, "kind": "metric",
        "type": "exact.v1", "pointer": "/team"}, "crystal": desk.model.crystal(), "dry_run": true});
    let (status, refused) = server.ask_with("POST", "/v1/evals", ANN, Some(&body));
    assert_eq!(status, 403, "{refused}");
    let (status, planned) = server.ask_with("POST", "/v1/evals", EVE, Some(&body));
    assert_eq!((status, &planned["data"]["value"]["plan"]["trials"]), (200, &json!(80)), "{planned}");
    assert_eq!(desk.model.asked(), 0, "a plan asks no model");

    body["dry_run"] = json!(false);
    let (status, started) = server.ask_with("POST", "/v1/evals", EVE, Some(&body));
    assert_eq!(status, 202, "{started}");
    let (run, eval) = (id(&started["data"]["run_id"]).to_owned(), id(&started["data"]["eval_id"]).to_owned());
    let began = std::time::Instant::now();
    let path = format!("/v1/evals/{eval}");
    let report = loop {
        let (status, shown) = server.ask_with("GET", &path, ANN, None);
        if status == 200 {
            break shown["data"]["value"].clone();
        }
        assert_eq!(status, 404, "{shown}");
        assert!(began.elapsed() < std::time::Duration::from_secs(120), "{run} does not end");
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert_eq!(report["report"]["verdict"], "better", "{report}");
    assert_eq!(report["failures"], json!([]), "examples are an operator's");
    let (status, listed) = server.ask_with("GET", "/v1/evals", ANN, None);
    assert_eq!((status, &listed["data"]["value"]["items"][0]["eval_id"]), (200, &json!(eval)), "{listed}");
    let (status, refused) = server.ask_with("GET", &format!("{path}/rows"), ANN, None);
    assert_eq!(status, 403, "{refused}");
    let (status, rows) = server.ask_with("GET", &format!("{path}/rows?most=15"), EVE, None);
    assert_eq!((status, rows["data"]["value"]["items"].as_array().map(Vec::len)), (200, Some(15)), "{rows}");
    assert!(rows["data"]["value"]["next"].is_u64(), "{rows}");
    let (status, unknown) = server.ask_with("GET", "/v1/evals/eval_000000000000", ANN, None);
    assert_eq!(status, 404, "{unknown}");
    let wrong = json!({"subject": desk.better, "dataset": "tickets", "metric": {"type": "exact.v9"}});
    let (status, invalid) = server.ask_with("POST", "/v1/evals", EVE, Some(&wrong));
    assert_eq!((status, &invalid["code"]), (422, &json!(codes::METRIC_INVALID.as_str())), "{invalid}");
}

#[tokio::test]
async fn an_agent_reads_reports_over_mcp_and_starts_nothing() {
    let desk = Desk::new(capable());
    let eval = id(&desk.evaluated(&[])["data"]["eval_id"]).to_owned();
    let asked = desk.model.asked();
    let served = served(&desk.folder, Peer::new(ProtocolVersion::V_2026_07_28), &["--store", STORE]).await;
    let listed = envelope(&called(&served.0, "evaluations", json!({})).await, codes::READ.any());
    assert_eq!(listed["data"]["value"]["items"][0]["eval_id"], json!(eval), "{listed}");
    let shown = called(&served.0, "evaluations", json!({ "evaluation": eval })).await;
    assert_eq!(envelope(&shown, codes::READ.any())["data"]["value"]["report"]["verdict"], "better");
    let address = format!("cantrip://evaluations/{eval}");
    let read = served.0.read_resource(ReadResourceRequestParams::new(address)).await.expect("a report");
    assert_eq!(read.contents.len(), 1, "{read:?}");
    let tools = served.0.list_all_tools().await.expect("tools");
    assert!(tools.iter().all(|tool| !tool.name.contains("eval") || tool.name == "evaluations"), "{tools:?}");
    ended(served).await;
    assert_eq!(desk.model.asked(), asked, "no model was asked");
}
