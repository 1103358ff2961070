//! `cantrip compile` as a person uses it: the plan and the question, the progress, the report as text, JSON, lines and
//! page, a budget that ends and is raised, and what HTTP and MCP show of it.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use rmcp::model::{ProtocolVersion, ReadResourceRequestParams};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::evaluating::{
    METRIC, SIGNATURE, TEAMS, answers, assert_nested, numbers, progress, shown_numbers, stalling, team_of,
};
use crate::mcp::{Peer, called, ended, envelope, served};
use crate::serve::Server;
use crate::support::keyed::{Keyed, Says};
use crate::support::model::Model;
use crate::support::terminal::Terminal;
use crate::support::{Folder, enveloped, id, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const TRAIN: usize = 8;
const HOLDOUT: usize = 12;
const TEST: usize = 40;
/// The instructions that the model needs, and others that do not help.
const TEXTS: &str = "Read the ticket carefully, and name the team.\n---\nName a team.\n";
/// The base and both texts on holdout, and the winner beside the base on test.
const TRIALS: usize = 3 * HOLDOUT + 2 * TEST;
const GRID: [&str; 8] =
    ["--optimiser", "instruction_grid.v1", "--texts", "texts.txt", "--set", "proposals=0", "--set", "cross=0"];

/// A folder with a signature, a metric, texts to try and a dataset of tickets.
struct Desk {
    folder: Folder,
    model: Model,
}

impl Desk {
    fn new(model: Model) -> Self {
        let folder = Folder::new();
        for name in ["signatures", "metrics"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("signatures/triage.toml", SIGNATURE);
        folder.write("metrics/team.toml", METRIC);
        folder.write("texts.txt", TEXTS);
        let mut rows = String::from("id,split,ticket,team\n");
        for number in 0..TRAIN + HOLDOUT + TEST {
            let split = match number {
                ..TRAIN => "train",
                number if number < TRAIN + HOLDOUT => "holdout",
                _ => "test",
            };
            let team = TEAMS[number % 4];
            rows += &format!("t{number:03},{split},\"Ticket {number}, about {team}\",{team}\n");
        }
        folder.write("tickets.csv", &rows);
        let desk = Self { folder, model };
        desk.succeeds(&["dataset", "add", "tickets", "tickets.csv", "--signature", "Triage", "--splits", "given"]);
        let shown = desk.folder.envelope(&["sig", "show", "Triage", "--store", STORE], codes::READ.any());
        desk.succeeds(&["pointer", "set", "Triage", id(&shown["data"]["value"]["base"])]);
        desk
    }

    fn capable() -> Self {
        Self::new(Model::start(|request| answers(request, team_of(request))))
    }

    /// Runs a command that succeeds, and returns its standard output.
    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.folder.run(&[arguments, &["--store", STORE]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output).to_owned()
    }

    /// Returns the arguments that compile the signature.
    fn compile<'a>(&'a self, crystal: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let asked = ["compile", "Triage", "--dataset", "tickets", "--metric", "team", "--crystal", crystal];
        [&asked[..], &GRID, more, &["--store", STORE]].concat()
    }

    fn run(&self, more: &[&str]) -> Output {
        let crystal = self.model.crystal();
        self.folder.run(&self.compile(&crystal, more))
    }

    /// Compiles, and returns the envelope.
    #[track_caller]
    fn compiled(&self, more: &[&str]) -> Value {
        let output = self.run(&[more, &["--yes", "--json"]].concat());
        enveloped(&output, codes::COMPILED.any())
    }

    /// Asserts everything that can be verified about the store.
    #[track_caller]
    fn assert_sound(&self) {
        for verified in [["compile", "replay"].as_slice(), &["receipt", "verify", "--all"], &["spend", "verify"]] {
            self.folder.envelope(&[verified, &["--store", STORE]].concat(), codes::VERIFIED.any());
        }
    }
}

#[test]
fn nothing_is_asked_of_a_model_without_a_yes_and_a_dry_run_prints_the_plan() {
    let desk = Desk::capable();
    let envelope = enveloped(&desk.run(&["--json"]), codes::NO_DECISION.any());
    assert_eq!(envelope["data"]["plan"]["trials"], json!(TRIALS), "{envelope}");
    let refused = desk.run(&[]);
    assert_eq!((refused.status.code(), stdout(&refused)), (Some(3), ""), "{refused:?}");
    assert!(stderr(&refused).contains("--yes"), "the next step is named: {refused:?}");

    let planned = desk.run(&["--dry-run"]);
    assert!(planned.status.success(), "{planned:?}");
    let plan = stdout(&planned);
    for line in [
        "  data       tickets@1: 8 train, 12 holdout, 40 test",
        "  metric     exact.v1 /team",
        "  optimiser  instruction_grid.v1: at most 116 trials; seed default",
        "  test       look 1; differences under 0.24 will probably not show",
    ] {
        assert!(plan.lines().any(|shown| shown == line), "{line:?} is not in\n{plan}");
    }
    let heading = plan.lines().next().unwrap_or_default();
    assert!(heading.starts_with("compile @me/support/Triage.v1 from art_"), "{plan}");
    assert!(heading.ends_with(" (primary)"), "{plan}");
    let envelope = enveloped(&desk.run(&["--dry-run", "--json"]), codes::READ.any());
    assert_eq!(envelope["data"]["value"]["plan"]["optimiser"], "instruction_grid.v1", "{envelope}");
    assert_eq!(desk.model.asked(), 0, "no model was asked");
    assert_eq!(desk.succeeds(&["compile", "ls"]), "");
    let listed = desk.folder.envelope(&["run", "ls", "--kind", "job", "--store", STORE], codes::READ.any());
    assert_eq!(listed["data"]["value"], json!([]), "no job was opened");
}

#[test]
fn a_person_at_a_terminal_is_asked_about_the_plan_and_sees_the_best_score_so_far() {
    let slow = Model::start(|request| {
        // Answers arrive in another order than they were asked for.
        let text = request["messages"].to_string();
        std::thread::sleep(Duration::from_millis(text.len() as u64 % 7 * 15));
        answers(request, team_of(request))
    });
    let desk = Desk::new(slow);
    let crystal = desk.model.crystal();
    let arguments = desk.compile(&crystal, &[]);
    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("start? [y/N]");
    terminal.line("n");
    let (drawn, status) = terminal.end();
    assert_eq!((status, desk.model.asked()), (Some(3), 0), "{drawn}");

    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("start? [y/N]");
    terminal.line("y");
    let (drawn, status) = terminal.end();
    assert!(drawn.contains("is the best of 3 candidates: 1.000 on holdout, 0.250 at the start"), "{drawn}");
    assert_eq!((status, desk.model.asked()), (Some(0), TRIALS as u64), "{drawn}");
    assert!(drawn.contains("instruction_grid.v1  ["), "{drawn}");
    assert!(drawn.contains("best 1.00 (start 0.25)"), "{drawn}");
    let counts = progress(&drawn);
    assert!(counts.len() > 2 && counts.is_sorted(), "{counts:?}");
    let whole = TRIALS as u64;
    assert_eq!(counts.last(), Some(&(whole, whole)), "{drawn}");
}

#[test]
fn a_compile_ends_in_a_report_and_the_id_of_its_winner_and_promotes_nothing() {
    let desk = Desk::capable();
    let output = desk.run(&["--yes"]);
    assert!(output.status.success(), "{output:?}");
    let winner = stdout(&output).trim().to_owned();
    assert!(winner.starts_with("art_") && winner.len() == 36, "standard output has the winner's id alone: {output:?}");
    let report = stderr(&output);
    for part in [
        "@me/support/Triage.v1 on tickets@1 with instruction_grid.v1, seed default",
        "is the best of 3 candidates: 1.000 on holdout, 0.250 at the start",
        "  trials      0 on train, 36 on holdout, 80 on test",
        "  optimism    0.000: its score on holdout less that on test",
        "on test of tickets@1: 40 examples, look 1",
        "  difference  +0.750",
        "better: the interval excludes 0",
        "pointer promote Triage art_",
    ] {
        assert!(report.contains(part), "{part:?} is not in\n{report}");
    }
    assert!(report.lines().any(|line| line.starts_with("* art_") && line.contains("1.000")), "{report}");
    assert_eq!(desk.model.asked(), TRIALS as u64);

    // The same again asks no model, needs no answer and has the same report.
    let again = desk.run(&[]);
    assert_eq!((again.status.code(), stdout(&again).trim()), (Some(0), winner.as_str()), "{again:?}");
    assert!(stderr(&again).contains("compiled before; --rerun does it again"), "{again:?}");
    let again = desk.compiled(&[]);
    assert_eq!((&again["data"]["replayed"], &again["data"]["selected"]), (&json!(true), &json!(winner)), "{again}");
    assert_eq!(desk.model.asked(), TRIALS as u64);

    let listed = desk.succeeds(&["compile", "ls"]);
    assert!(listed.starts_with("cmp_") && listed.contains("1.000 (start 0.250)"), "{listed}");
    let shown = desk.succeeds(&["compile", "show"]);
    assert!(shown.contains("- Name the team.") && shown.contains("+ Read the ticket carefully"), "{shown}");
    let replayed = desk.succeeds(&["compile", "replay"]);
    assert!(replayed.starts_with("identical  job_"), "{replayed}");
    desk.assert_sound();
    // The winner is an artifact like any other, and no pointer knows it.
    let artifact = desk.succeeds(&["artifact", "show", &winner]);
    assert!(artifact.contains("carefully"), "{artifact}");
    assert!(!desk.succeeds(&["pointer", "ls"]).contains(&winner));
}

#[test]
fn the_page_of_a_compile_has_the_numbers_of_its_json() {
    let desk = Desk::capable();
    let report = id(&desk.compiled(&["--html", "first.html"])["data"]["report_id"]).to_owned();
    assert_eq!(desk.succeeds(&["compile", "show", &report, "--html", "report.html"]), "report.html\n");
    let page = desk.folder.read("report.html");
    assert_eq!(page, desk.folder.read("first.html"), "both ways lead to one page");
    let shown = desk.folder.envelope(&["compile", "show", &report, "--store", STORE], codes::READ.any());
    let body = &shown["data"]["value"]["report"];
    let mut expected = BTreeMap::new();
    numbers(body, "", &mut expected);
    expected.remove("/v");
    assert!(expected.len() > 25, "{expected:?}");
    assert_eq!(shown_numbers(&page), expected);
    assert_nested(&page);
    // The name of the model has the address of its server, as a text.
    let page = page.replace(&desk.model.crystal(), "the model");
    for forbidden in ["<script", "http://", "https://", "javascript:", " style=", " onclick"] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    for part in ["Search", "Candidates", "Proposals", "<span class=\"ins\">+ Read the ticket carefully", "winner"] {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
    // The report fits its published schema.
    let schema: Value = serde_json::from_str(stdout(&desk.folder.run(&["schema", "compile_report"]))).expect("JSON");
    let required = schema["required"].as_array().expect("required fields");
    assert!(required.iter().all(|name| body.get(id(name)).is_some()), "{schema}");
    assert!(body.as_object().expect("an object").keys().all(|name| schema["properties"].get(name).is_some()));
}

#[test]
fn the_records_and_the_candidates_of_a_compile_are_lines_of_json() {
    let desk = Desk::capable();
    let output = desk.run(&["--yes", "--jsonl"]);
    assert!(output.status.success(), "{output:?}");
    let lines = |text: &str| -> Vec<Value> {
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    };
    let records = lines(stdout(&output));
    let count = |kind: &str| records.iter().filter(|record| record["type"] == kind).count();
    assert_eq!((count("job.opened"), count("job.scored"), count("job.closed")), (1, TRIALS, 1));
    assert!(count("job.asked") >= 2, "the search and the test are asked for apart");
    let rows = lines(&desk.succeeds(&["compile", "show", "--rows"]));
    let candidates: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "candidate").collect();
    assert_eq!(candidates.len(), 3, "{rows:?}");
    assert_eq!(candidates[1]["candidate"]["changes"][0]["slot"], "instructions", "{rows:?}");
}

#[test]
fn a_budget_that_ends_leaves_the_best_so_far_and_is_raised_without_asking_anything_again() {
    let desk = Desk::capable();
    // Two candidates fit beside the 80 trials of the test, a third does not.
    let ended = desk.compiled(&["--max-calls", "110"]);
    let data = &ended["data"];
    assert_eq!((&data["status"], &data["verdict"]), (&json!("budget_exhausted"), &json!("better")), "{ended}");
    let asked = 2 * HOLDOUT + 2 * TEST;
    assert_eq!(desk.model.asked(), asked as u64);
    desk.assert_sound();
    let run = id(&data["run_id"]);
    let raised = desk.folder.run(&["run", "continue", run, "--max-calls", "200", "--json", "--store", STORE]);
    let raised = enveloped(&raised, codes::COMPILED.any());
    assert_eq!((&raised["data"]["status"], &raised["data"]["selected"]), (&json!("succeeded"), &data["selected"]));
    assert_eq!(desk.model.asked(), TRIALS as u64, "no settled trial was asked for again");
    desk.assert_sound();
}

#[test]
fn an_interrupted_compile_waits_and_is_resumed() {
    let (model, asked, answers_now) = stalling();
    let desk = Desk::new(model);
    let crystal = desk.model.crystal();
    let mut command = desk.folder.command(&desk.compile(&crystal, &["--yes", "--json"]));
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    asked.recv().expect("the model is asked");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let parked = enveloped(&output, codes::CREATED.any());
    assert_eq!((&parked["data"]["reason"], output.status.code()), (&json!("interrupted"), Some(130)), "{output:?}");
    answers_now.store(true, Ordering::Relaxed);
    let run = id(&parked["data"]["run_id"]);
    let resumed = desk.folder.run(&["run", "resume", run, "--store", STORE]);
    assert!(resumed.status.success(), "{resumed:?}");
    assert!(stdout(&resumed).starts_with("art_"), "it ends as if nothing had happened: {resumed:?}");
    assert!(stderr(&resumed).contains("better: the interval excludes 0"), "{resumed:?}");
    desk.assert_sound();
}

#[test]
fn the_exit_status_follows_from_how_a_compile_ends() {
    let desk = Desk::capable();
    let crystal = desk.model.crystal();
    // 2: the request is wrong.
    let asked = ["compile", "Triage", "--dataset", "tickets", "--metric", "team", "--crystal", &crystal, "--yes"];
    let unknown = [&asked[..], &["--optimiser", "guess.v1", "--json", "--store", STORE]].concat();
    assert_eq!(desk.folder.run(&unknown).status.code(), Some(2));
    let output = desk.run(&["--set", "candidats=4", "--yes", "--json"]);
    assert_eq!(output.status.code(), Some(2), "an unknown option is refused: {output:?}");
    let output = desk.run(&["--set", "candidates", "--yes"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    // 5: the provider lets nobody in.
    let closed = Keyed::start(Some("a key that nobody has"), |_, _| Says::Json(200, json!({})));
    let crystal = format!("local/test@{}/v1", closed.origin());
    let output = desk.folder.run(&desk.compile(&crystal, &["--yes", "--json"]));
    let parked = enveloped(&output, codes::CREATED.any());
    assert_eq!((&parked["data"]["state"], output.status.code()), (&json!("waiting"), Some(5)), "{output:?}");
    assert_eq!(parked["data"]["reason"], "crystal_unavailable");
    assert_eq!(desk.model.asked(), 0);
}

const ANN: &str = "authorization: Bearer token-of-ann-0123456789\r\n";
const EVE: &str = "authorization: Bearer token-of-eve-0123456789\r\n";

#[test]
fn over_http_an_operator_plans_and_starts_a_compile_and_every_owner_reads_its_report() {
    let desk = Desk::capable();
    desk.folder.write("tokens", "ann = token-of-ann-0123456789\noperator eve = token-of-eve-0123456789\n");
    // The caller pays, also if the model costs nothing.
    desk.succeeds(&["spend", "authorize", "--owner", "user:eve", "--total", "1.00 USD", "--because", "for the week"]);
    let server = Server::start(&desk.folder, &["--tokens", "tokens", "--store", STORE]);
    let texts: Vec<&str> = TEXTS.split("\n---\n").map(str::trim).collect();
    let mut body = json!({"subject": "@me/support/Triage.v1", "dataset": "tickets", "metric": {"v": 1, "kind": "metric",
        "type": "exact.v1", "pointer": "/team"}, "optimiser": "instruction_grid.v1", "texts": texts,
        "options": {"proposals": 0, "cross": 0}, "crystal": desk.model.crystal(), "dry_run": true});
    let (status, refused) = server.ask_with("POST", "/v1/compile", ANN, Some(&body));
    assert_eq!(status, 403, "{refused}");
    let (status, planned) = server.ask_with("POST", "/v1/compile", EVE, Some(&body));
    assert_eq!((status, &planned["data"]["value"]["plan"]["trials"]), (200, &json!(TRIALS)), "{planned}");
    assert_eq!(desk.model.asked(), 0, "a plan asks no model");

    body["dry_run"] = json!(false);
    let (status, started) = server.ask_with("POST", "/v1/compile", EVE, Some(&body));
    assert_eq!(status, 202, "{started}");
    let run = id(&started["data"]["run_id"]).to_owned();
    let path = format!("/v1/compile/{}", id(&started["data"]["job_id"]));
    let began = Instant::now();
    let shown = loop {
        let (status, shown) = server.ask_with("GET", &path, ANN, None);
        if status == 200 {
            break shown["data"]["value"].clone();
        }
        assert_eq!(status, 409, "it has no report yet: {shown}");
        assert!(began.elapsed() < Duration::from_secs(120), "{run} does not end");
        std::thread::sleep(Duration::from_millis(50));
    };
    let report = id(&shown["report"]["report_id"]).to_owned();
    assert_eq!((&shown["report"]["status"], &shown["run_id"]), (&json!("succeeded"), &json!(run)), "{shown}");
    assert_eq!(shown["candidates"], json!([]), "the texts of candidates are an operator's");
    let (status, whole) = server.ask_with("GET", &format!("/v1/compile/{report}"), EVE, None);
    let candidates = whole["data"]["value"]["candidates"].as_array().map(Vec::len);
    assert_eq!((status, candidates), (200, Some(3)), "{whole}");
    let (status, listed) = server.ask_with("GET", "/v1/compile", ANN, None);
    assert_eq!((status, &listed["data"]["value"]["items"][0]["report_id"]), (200, &json!(report)), "{listed}");
    let (status, unknown) = server.ask_with("GET", "/v1/compile/cmp_000000000000", ANN, None);
    assert_eq!(status, 404, "{unknown}");
    let (status, refused) = server.ask_with("POST", "/v1/compile", EVE, Some(&json!({"subject": "x", "other": 1})));
    assert_eq!(status, 422, "{refused}");
}

#[tokio::test]
async fn an_agent_reads_reports_of_compiles_over_mcp_and_starts_nothing() {
    let desk = Desk::capable();
    let report = id(&desk.compiled(&[])["data"]["report_id"]).to_owned();
    let asked = desk.model.asked();
    let served = served(&desk.folder, Peer::new(ProtocolVersion::V_2026_07_28), &["--store", STORE]).await;
    let listed = envelope(&called(&served.0, "compiles", json!({})).await, codes::READ.any());
    assert_eq!(listed["data"]["value"]["items"][0]["report_id"], json!(report), "{listed}");
    let shown = called(&served.0, "compiles", json!({ "compile": report })).await;
    assert_eq!(envelope(&shown, codes::READ.any())["data"]["value"]["report"]["status"], "succeeded");
    let address = format!("cantrip://compiles/{report}");
    let read = served.0.read_resource(ReadResourceRequestParams::new(address)).await.expect("a report");
    assert_eq!(read.contents.len(), 1, "{read:?}");
    let tools = served.0.list_all_tools().await.expect("tools");
    assert!(tools.iter().all(|tool| !tool.name.contains("compile") || tool.name == "compiles"), "{tools:?}");
    ended(served).await;
    assert_eq!(desk.model.asked(), asked, "no model was asked");
}
