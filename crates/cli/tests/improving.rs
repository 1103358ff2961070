//! `cantrip improve` as a person uses it: from the receipts of a service to a canary and the offer of its guard, and
//! the same after the process was killed anywhere.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::model::Model;
use crate::support::terminal::Terminal;
use crate::support::{Folder, enveloped, id, own_postgres, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const SIGNATURE: &str = "@me/support/Triage.v1";
const DATASET: &str = "improve-triage-v1";
const TEAMS: [&str; 4] = ["billing", "shipping", "technical", "account"];
/// The number of recorded calls. By their hashes 121 of them are train examples, 44 holdout and 35 test.
const TICKETS: usize = 200;

/// Returns the file of the signature, whose calls go to this model.
fn signature(model: &Model) -> String {
    format!(
        r#"namespace = "@me/support"
name = "Triage"
version = 1
description = "Which team should answer a ticket?"
program_template = "direct.v1"
instructions = "Name the team."
params = {{ model = "{}" }}
prompt_template.system = "{{{{ instructions }}}}"
prompt_template.user = "{{{{ inputs.ticket | fence('ticket') }}}}"

[input_schema]
type = "object"
required = ["ticket"]
additionalProperties = false
properties.ticket = {{ type = "string", minLength = 1 }}

[output_schema]
type = "object"
required = ["team"]
additionalProperties = false
properties.team = {{ type = "string", enum = ["billing", "shipping", "technical", "account"] }}
"#,
        model.crystal()
    )
}

fn ticket(number: usize) -> String {
    format!("Ticket {number}, about {}", TEAMS[number % TEAMS.len()])
}

/// Returns the team that a ticket is about: the last one that is named.
fn team_in(text: &str) -> &'static str {
    let named = TEAMS.into_iter().filter_map(|team| Some((text.rfind(&format!("about {team}"))?, team)));
    named.max().map_or("billing", |(_, team)| team)
}

/// A model that says `billing` to everything, unless the request shows it another ticket with its answer.
fn learner() -> Model {
    Model::start(|request| {
        let text = request["messages"].to_string();
        let has_demo = text.matches(", about ").count() > 1;
        let output = json!({ "team": if has_demo { team_in(&text) } else { "billing" } });
        if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            let arguments = json!({ "answer": output }).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            return json!({"role": "assistant", "content": null, "tool_calls": [call]});
        }
        json!({"role": "assistant", "content": output.to_string()})
    })
}

/// A folder whose store has the receipts of a service.
struct Desk {
    folder: Folder,
    store: String,
    /// The artifact that is served.
    base: String,
}

impl Desk {
    /// A service that has answered all tickets, and no person has said anything about the answers.
    fn new(model: &Model, store: &str) -> Self {
        let folder = Folder::new();
        std::fs::create_dir(folder.path().join("signatures")).expect("a folder");
        folder.write("signatures/triage.toml", &signature(model));
        let lines: Vec<String> = (0..TICKETS).map(|number| json!({ "ticket": ticket(number) }).to_string()).collect();
        folder.write("tickets.jsonl", &(lines.join("\n") + "\n"));
        let desk = Self { folder, store: store.to_owned(), base: String::new() };
        desk.succeeds(&["predict", "Triage", "--batch", "tickets.jsonl"]);
        let shown = desk.folder.envelope(&["sig", "show", "Triage", "--store", store], codes::READ.any());
        let base = id(&shown["data"]["value"]["base"]).to_owned();
        desk.succeeds(&["pointer", "set", "Triage", &base]);
        Self { base, ..desk }
    }

    /// The same service, after a person has judged every answer.
    fn labelled(model: &Model, store: &str) -> Self {
        let desk = Self::new(model, store);
        desk.label(TICKETS);
        desk
    }

    /// A copy of everything, which lies in one folder.
    fn copy(&self) -> Self {
        let folder = Folder::new();
        copy_below(self.folder.path(), folder.path());
        Self { folder, store: self.store.clone(), base: self.base.clone() }
    }

    /// Runs a command that succeeds, and returns its standard output.
    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.folder.run(&[arguments, &["--store", &self.store]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output).to_owned()
    }

    fn improve(&self, more: &[&str]) -> Output {
        self.folder.run(&[&["improve", "Triage"], more, &["--store", &self.store]].concat())
    }

    #[track_caller]
    fn improved(&self, more: &[&str], code: AnyCode) -> Value {
        enveloped(&self.improve(&[more, &["--json"]].concat()), code)["data"].clone()
    }

    /// Walks through the receipts without a verdict as a person does, and judges at most this many.
    fn label(&self, most: usize) {
        let mut command = self.folder.command(&["receipt", "verdict", "--next", "Triage", "--store", &self.store]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut answers = child.stdin.take().expect("a pipe");
        let shown = BufReader::new(child.stderr.take().expect("a pipe"));
        let (mut input, mut output, mut judged) = (Value::Null, Value::Null, 0);
        for line in shown.lines().map_while(Result::ok) {
            if let Some(text) = line.strip_prefix("  input   ") {
                input = serde_json::from_str(text).expect("JSON");
            } else if let Some(text) = line.strip_prefix("  output  ") {
                output = serde_json::from_str(text).expect("JSON");
            } else if line.starts_with("good, bad, ") {
                let team = team_in(id(&input["ticket"]));
                let answer = match (judged < most, output["team"] == team) {
                    (false, _) => "quit".to_owned(),
                    (true, true) => "good".to_owned(),
                    (true, false) => format!("bad {}", json!({ "team": team })),
                };
                writeln!(answers, "{answer}").expect("it reads");
                judged += 1;
            }
        }
        drop(answers);
        let ended = child.wait_with_output().expect("it ends");
        assert!(ended.status.success(), "{ended:?}");
    }

    #[track_caller]
    fn pointer(&self) -> Value {
        let shown = self.folder.envelope(&["pointer", "show", "Triage", "--store", &self.store], codes::READ.any());
        shown["data"]["value"].clone()
    }

    /// Returns the actions of the pointer's audits, oldest first.
    fn audits(&self) -> Vec<String> {
        let shown = self.folder.envelope(&["pointer", "audits", "Triage", "--store", &self.store], codes::READ.any());
        let audits = shown["data"]["value"]["items"].as_array().cloned().unwrap_or_default();
        audits.iter().map(|audit| id(&audit["action"]).to_owned()).collect()
    }

    fn versions(&self) -> usize {
        let shown = self.folder.envelope(&["dataset", "show", DATASET, "--store", &self.store], codes::READ.any());
        shown["data"]["value"]["versions"].as_array().map_or(0, Vec::len)
    }

    fn jobs(&self) -> usize {
        let shown = self.folder.envelope(&["run", "ls", "--kind", "job", "--store", &self.store], codes::READ.any());
        shown["data"]["value"].as_array().map_or(0, Vec::len)
    }

    /// Makes the same call again until it offers something about the canary, and returns the offer.
    #[track_caller]
    fn reach_offer(&self) -> Value {
        for _ in 0..2 {
            let output = self.improve(&["--yes", "--json"]);
            let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
            let data = &envelope["data"];
            if data["value"]["step"] == "offer" {
                return data["value"].clone();
            }
            assert_eq!((&data["step"], output.status.code()), (&json!("canary"), Some(0)), "{envelope}");
            assert!(data["audit_id"].is_string(), "{envelope}");
        }
        panic!("there is no canary after two calls");
    }

    /// Begins the call, and kills it when this line is shown.
    fn kill_at(&self, line: &str) {
        let mut child = self.folder.spawn(&["improve", "Triage", "--yes", "--store", &self.store]);
        let shown = BufReader::new(child.stderr.take().expect("a pipe"));
        let found = shown.lines().map_while(Result::ok).any(|told| told.starts_with(line));
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
        assert!(found, "the call ended before {line:?}");
    }

    /// Begins the call, and kills it after the model was asked this often.
    fn kill_after(&self, model: &Model, requests: u64) {
        let before = model.asked();
        let mut child = self.folder.spawn(&["improve", "Triage", "--yes", "--store", &self.store]);
        let began = Instant::now();
        while model.asked() < before + requests {
            assert!(began.elapsed() < Duration::from_secs(120), "the model is not asked");
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().expect("it can be killed");
        child.wait().expect("it ends");
    }
}

fn copy_below(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        let (path, into) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            std::fs::create_dir_all(&into).expect("a folder");
            copy_below(&path, &into);
        } else {
            std::fs::copy(&path, &into).expect("a file");
        }
    }
}

#[test]
fn it_stops_for_lack_of_labels_with_the_command_that_labels() {
    let model = learner();
    let desk = Desk::new(&model, STORE);
    let asked = model.asked();

    let data = desk.improved(&["--yes"], codes::LIMIT.any());
    assert_eq!((&data["step"], &data["missing"]["lack"]), (&json!("judge"), &json!("few_labelled")));
    assert_eq!((&data["missing"]["found"], &data["missing"]["least"]), (&json!(0), &json!(30)));
    assert_eq!(data["open_receipts"], json!(TICKETS));
    assert!(id(&data["hint"]).ends_with("cantrip receipt verdict --next Triage"), "{data}");
    // A person sees the steps, and the same command.
    let stopped = desk.improve(&["--yes"]);
    assert_eq!((stopped.status.code(), stdout(&stopped)), (Some(2), ""), "{stopped:?}");
    let shown = stderr(&stopped);
    let steps: Vec<&str> =
        shown.lines().filter(|line| line.starts_with(|first: char| first.is_ascii_digit())).collect();
    assert!(
        matches!(steps.as_slice(), [first, second] if first.starts_with("1 gather") && second.starts_with("2 judge"))
    );
    assert!(shown.contains("cantrip receipt verdict --next Triage"), "{shown}");

    // Forty judged receipts are eight test examples or so.
    desk.label(40);
    let data = desk.improved(&["--yes"], codes::LIMIT.any());
    let found = data["missing"]["found"].as_u64().expect("a number");
    assert!((1..30).contains(&found), "{data}");
    // A fifth of all examples are test examples.
    assert_eq!(data["missing"]["to_judge"], json!((30 - found) * 5), "{data}");
    assert_eq!(data["readiness"]["labelled"], json!(40));
    assert_eq!(data["open_receipts"], json!(TICKETS - 40));
    assert_eq!((model.asked(), desk.jobs()), (asked, 0), "nothing was compiled");
}

#[test]
fn it_stops_if_all_examples_expect_the_same() {
    let model = Model::start(|request| {
        let output = json!({"team": "billing"}).to_string();
        if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            let arguments = json!({"answer": {"team": "billing"}}).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            return json!({"role": "assistant", "content": null, "tool_calls": [call]});
        }
        json!({"role": "assistant", "content": output})
    });
    let desk = Desk::new(&model, STORE);
    let walk = ["receipt", "verdict", "--next", "Triage", "--store", STORE];
    assert!(desk.folder.piped(&walk, &"good\n".repeat(TICKETS)).status.success());
    let data = desk.improved(&["--yes"], codes::LIMIT.any());
    assert_eq!((&data["missing"]["lack"], &data["missing"]["label"]), (&json!("one_label"), &json!("billing")));
    assert_eq!(desk.jobs(), 0);
}

#[test]
fn it_gathers_plans_compiles_and_canaries_and_the_second_call_offers_what_the_guard_says() {
    gathers_compiles_and_offers(STORE);
}

#[test]
fn it_gathers_plans_compiles_and_canaries_on_postgres() {
    if let Some(store) = own_postgres() {
        gathers_compiles_and_offers(&store);
    }
}

fn gathers_compiles_and_offers(store: &str) {
    let model = learner();
    let desk = Desk::labelled(&model, store);
    // Without a terminal and without a yes the plan is refused, and no model was asked.
    let asked = model.asked();
    let data = desk.improved(&[], codes::NO_DECISION.any());
    assert_eq!(data["plan"]["dataset"], json!(format!("{DATASET}@1")), "{data}");
    assert_eq!(data["plan"]["metric"], "exact.v1 /team", "the one enum of the output");
    assert_eq!(data["plan"]["optimiser"], "bootstrap_demos.v1");
    assert_eq!((model.asked(), desk.jobs()), (asked, 0));

    let output = desk.improve(&["--yes"]);
    assert!(output.status.success(), "{output:?}");
    let winner = stdout(&output).trim().to_owned();
    assert!(winner.starts_with("art_") && winner.len() == 36, "standard output has the canary alone: {output:?}");
    let shown = stderr(&output);
    let places: Vec<Option<usize>> = ["1 gather", "2 judge", "3 plan", "4 compile", "5 canary"]
        .iter()
        .map(|step| shown.lines().position(|line| line.starts_with(step)))
        .collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "each step is shown, in order: {shown}");
    assert!(shown.contains("nothing new: improve-triage-v1@1"), "the refused call had gathered: {shown}");
    let pointer = desk.pointer();
    assert_eq!((&pointer["primary_artifact"], &pointer["canary_percent"]), (&json!(desk.base), &json!(10)));
    assert_eq!(pointer["canary_artifact"], json!(winner));
    assert_eq!(desk.audits(), ["set", "canary"]);

    // The second call compiles nothing, changes nothing, and offers to wait.
    let (asked, jobs) = (model.asked(), desk.jobs());
    let offered = desk.improved(&["--yes"], codes::READ.any())["value"].clone();
    assert_eq!((&offered["step"], &offered["canary"]), (&json!("offer"), &json!(winner)));
    assert_eq!(offered["offer"]["action"], "wait", "{offered}");
    assert!(id(&offered["offer"]["reason"]).contains("0 labelled calls, and the next look needs 50"), "{offered}");
    let told = desk.improve(&["--yes"]);
    assert_eq!((told.status.code(), stdout(&told)), (Some(0), "wait\n"), "{told:?}");
    assert!(stderr(&told).lines().any(|line| line.starts_with("6 offer")), "{told:?}");
    assert_eq!((model.asked(), desk.jobs(), desk.versions()), (asked, jobs, 1));
    assert_eq!(desk.pointer(), pointer, "a yes promotes nothing");
    for what in [&["receipt", "verify", "--all"][..], &["spend", "verify"], &["eval", "verify"]] {
        desk.succeeds(what);
    }
}

#[test]
fn killed_between_any_two_steps_the_same_call_goes_on() {
    let model = learner();
    let desk = Desk::labelled(&model, STORE);
    let whole = desk.copy();
    let before = model.asked();
    let winner = id(&whole.reach_offer()["canary"]).to_owned();
    let requests = model.asked() - before;

    for line in ["1 gather", "2 judge", "3 plan", "4 compile", "5 canary"] {
        let killed = desk.copy();
        let before = model.asked();
        killed.kill_at(line);
        let offered = killed.reach_offer();
        assert_eq!(offered["canary"], json!(winner), "killed at {line}");
        assert_eq!((killed.versions(), killed.jobs()), (1, 1), "killed at {line}");
        assert_eq!(killed.audits(), ["set", "canary"], "killed at {line}");
        assert_eq!(killed.pointer()["primary_artifact"], json!(killed.base), "killed at {line}");
        let asked = model.asked() - before;
        // Eight trials are under way at a kill, and each of them may be asked about once more.
        assert!((requests..=requests + 8).contains(&asked), "{asked} requests instead of {requests}, killed at {line}");
    }

    // Killed three times within the compile, which pays for no settled trial twice.
    let killed = desk.copy();
    let before = model.asked();
    for more in [20, 60, 100] {
        killed.kill_after(&model, more);
    }
    assert_eq!(killed.reach_offer()["canary"], json!(winner));
    assert_eq!((killed.versions(), killed.jobs()), (1, 1));
    let asked = model.asked() - before;
    assert!((requests..=requests + 3 * 8).contains(&asked), "{asked} requests instead of {requests}");
    for what in [&["receipt", "verify", "--all"][..], &["spend", "verify"], &["eval", "verify"]] {
        killed.succeeds(what);
    }
}

#[test]
fn an_unfinished_compile_goes_on_although_new_receipts_came() {
    let model = learner();
    let desk = Desk::labelled(&model, STORE);
    desk.kill_after(&model, 30);
    desk.folder.write("more.jsonl", &(json!({"ticket": "Ticket 900, about shipping"}).to_string() + "\n"));
    desk.succeeds(&["predict", "Triage", "--batch", "more.jsonl"]);
    desk.label(1);
    let output = desk.improve(&["--yes"]);
    assert!(output.status.success(), "{output:?}");
    assert!(
        stderr(&output).contains("the compile on improve-triage-v1@1 has not ended; it is continued"),
        "{output:?}"
    );
    assert_eq!((desk.jobs(), desk.versions()), (1, 1), "no other compile was begun");
    assert_eq!(desk.audits(), ["set", "canary"]);
}

/// Serves tickets of many callers to both artifacts, and lets a person judge every answer.
fn serve_and_judge(desk: &Desk, calls: usize, is_good: impl Fn(&Value, &str) -> bool) {
    // Another percentage is the same canary, and its calls are counted on.
    desk.succeeds(&["pointer", "canary", "Triage", "--percent", "50"]);
    let server = Server::start(&desk.folder, &["--store", STORE]);
    for number in 1_000..1_000 + calls {
        let text = ticket(number);
        let asked = json!({"signature": SIGNATURE, "input": {"ticket": text}, "run_id": format!("order-{number}")});
        let (status, reply) = server.ask("POST", "/v1/predict", Some(&asked));
        assert_eq!(status, 200, "{reply}");
        let word = if is_good(&reply["data"]["output"]["team"], team_in(&text)) { "good" } else { "bad" };
        let path = format!("/v1/receipts/{}/verdict", id(&reply["data"]["receipt_id"]));
        let (status, reply) = server.ask("POST", &path, Some(&json!({ "verdict": word })));
        assert_eq!(status, 201, "{reply}");
    }
}

#[test]
fn a_canary_that_does_well_is_offered_for_promotion_and_one_that_does_badly_to_be_cleared() {
    let model = learner();
    let desk = Desk::labelled(&model, STORE);
    let winner = id(&desk.reach_offer()["canary"]).to_owned();
    let other = desk.copy();

    // The winner is right about all tickets, and what was served before about every fourth.
    serve_and_judge(&desk, 160, |said, right| said == right);
    let offered = desk.reach_offer();
    assert_eq!(offered["offer"]["action"], "promote", "{offered}");
    let command = id(&offered["offer"]["command"]);
    assert_eq!(command, format!("cantrip pointer promote Triage {winner}"));
    assert_eq!(desk.pointer()["primary_artifact"], json!(desk.base), "an offer changes nothing");
    let words: Vec<&str> = command.split(' ').skip(1).collect();
    desk.succeeds(&words);
    assert_eq!(desk.pointer()["primary_artifact"], json!(winner));

    // Callers who find that every right answer was the wrong one.
    serve_and_judge(&other, 160, |said, right| said != right);
    let offered = other.reach_offer();
    assert_eq!(offered["offer"]["action"], "clear", "{offered}");
    assert_eq!(offered["offer"]["command"], "cantrip pointer canary Triage --off");
    other.succeeds(&["pointer", "canary", "Triage", "--off"]);
    assert_eq!(other.pointer()["canary_artifact"], Value::Null);
}

#[test]
fn a_winner_that_was_withdrawn_is_not_tried_again_on_the_same_data() {
    let model = learner();
    let desk = Desk::labelled(&model, STORE);
    let winner = id(&desk.reach_offer()["canary"]).to_owned();
    desk.succeeds(&["pointer", "canary", "Triage", "--off", "--because", "callers complained"]);
    let asked = model.asked();
    let data = desk.improved(&["--yes"], codes::COMPILED.any());
    assert_eq!((&data["standing"], &data["selected"]), (&json!("withdrawn"), &json!(winner)), "{data}");
    assert!(id(&data["reason"]).contains("callers complained"), "{data}");
    assert_eq!((model.asked(), desk.audits().len()), (asked, 3), "nothing was asked and nothing changed");
}

#[test]
fn a_person_at_a_terminal_is_asked_twice_and_may_say_no_each_time() {
    let model = learner();
    let desk = Desk::labelled(&model, STORE);
    let arguments = ["improve", "Triage", "--store", STORE];
    let asked = model.asked();
    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("start? [y/N]");
    terminal.line("n");
    let (drawn, status) = terminal.end();
    assert_eq!((status, model.asked()), (Some(3), asked), "{drawn}");

    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("start? [y/N]");
    terminal.line("y");
    terminal.wait_for("% of the callers of @me/support/Triage.v1? [y/N]");
    terminal.line("n");
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(0), "{drawn}");
    assert_eq!(desk.audits(), ["set"], "{drawn}");

    // The same call asks about the winner first, and then finds nothing new.
    let asked = model.asked();
    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("was not tried yet");
    terminal.wait_for("? [y/N]");
    terminal.line("n");
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(0), "{drawn}");
    assert!(drawn.contains("the winner was not wanted"), "{drawn}");
    assert_eq!((model.asked(), desk.jobs()), (asked, 1));

    let mut terminal = Terminal::run(&desk.folder, &arguments);
    terminal.wait_for("? [y/N]");
    terminal.line("y");
    let (drawn, status) = terminal.end();
    assert_eq!(status, Some(0), "{drawn}");
    assert_eq!((desk.audits(), model.asked()), (vec!["set".to_owned(), "canary".to_owned()], asked));
}

#[test]
fn a_signature_without_one_enum_needs_a_metric() {
    let folder = Folder::new();
    folder.write(
        "shout.toml",
        r#"namespace = "@me/text"
name = "Shout"
version = 1
description = "Say it louder."
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template = { system = "{{ instructions }}", user = "{{ inputs.text }}" }
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
"#,
    );
    assert!(folder.run(&["sig", "add", "shout.toml", "--store", STORE]).status.success());
    let refused =
        folder.run(&["improve", "Shout", "--yes", "--crystal", "local/none@http://127.0.0.1:9/v1", "--store", STORE]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(stderr(&refused).contains("--metric"), "{refused:?}");
    // A signature that was never called has nothing to gather.
    folder.write("exact.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\npointer = \"/text\"\n");
    let none = ["improve", "Shout", "--metric", "exact.toml", "--yes", "--crystal", "local/none@http://127.0.0.1:9/v1"];
    let envelope = enveloped(&folder.run(&[&none[..], &["--store", STORE, "--json"]].concat()), codes::LIMIT.any());
    assert_eq!((&envelope["data"]["missing"]["found"], &envelope["data"]["open_receipts"]), (&json!(0), &json!(0)));
    assert!(id(&envelope["data"]["hint"]).contains("cantrip predict Shout"), "{envelope}");
}

#[test]
fn the_demo_compiles_on_a_scripted_landscape_and_shows_how_long_it_took() {
    let output = Folder::new().run(&["demo"]);
    assert!(output.status.success(), "{output:?}");
    let shown = stdout(&output);
    assert!(shown.contains("scores 1.000 on test beside 0.250: better"), "{shown}");
    let took = shown.split_once("compiled in ").and_then(|(_, rest)| rest.split_once(" ms"));
    assert!(took.is_some_and(|(number, _)| number.parse::<u64>().is_ok()), "the time is shown: {shown}");
}

/// A model of a spell that gives the right answers only if its system prompt says `carefully`. Asked to reflect, it
/// proposes such a prompt.
fn worker() -> Model {
    let called = |answer: Value| {
        let arguments = json!({ "answer": answer }).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    };
    Model::start(move |request| {
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let of = |role: &str| messages.iter().filter(|message| message["role"] == role).collect::<Vec<_>>();
        let system = of("system").first().map(|message| message["content"].to_string()).unwrap_or_default();
        if system.contains("You improve one component of a prompt.") {
            let output = json!({"diagnosis": "it is not careful", "new_text": "You do jobs carefully."});
            let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
            return if has_tools {
                called(output)
            } else {
                json!({"role": "assistant", "content": output.to_string()})
            };
        }
        let intent = of("user").last().map(|message| message["content"].to_string()).unwrap_or_default();
        let right = if intent.contains("even") { "two" } else { "one" };
        called(json!(if system.contains("carefully") { right } else { "neither" }))
    })
}

#[test]
fn a_spell_is_changed_in_its_file_and_only_after_a_yes() {
    let (folder, model) = (Folder::new(), worker());
    for name in ["spells", "metrics"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
    }
    let spell = format!(
        "# The worker of the office.\nname = \"worker\"\ncrystal = \"{}\"\n\n[call]\n\
         system_prompt = 'You do jobs.' # to be improved\n\n[wards]\nmax_turns = 3\n",
        model.crystal()
    );
    folder.write("spells/worker.toml", &spell);
    folder.write("metrics/answer.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\n");
    let splits = [("train", 4), ("holdout", 4), ("test", 30)];
    let lines = splits.iter().flat_map(|(split, count)| {
        (0..*count).map(move |number| {
            let (word, expected) = if number % 2 == 0 { ("even", "two") } else { ("odd", "one") };
            let intent = format!("Do the {word} {split} job {number}.");
            json!({"input": {"intent": intent}, "expected": expected, "split": split}).to_string()
        })
    });
    folder.write("intents.jsonl", &lines.collect::<Vec<_>>().join("\n"));
    // Examples of a file stand in the dataset of the flywheel like gathered ones.
    let add = ["dataset", "add", "improve-worker", "intents.jsonl", "--spell", "worker", "--splits", "given"];
    assert!(folder.run(&[&add[..], &["--allow-small", "--store", STORE]].concat()).status.success());

    let crystal = model.crystal();
    let asked = ["improve", "spell:worker", "--metric", "answer", "--reflect", &crystal, "--store", STORE, "--json"];
    let planned = enveloped(&folder.run(&asked), codes::NO_DECISION.any())["data"]["plan"].clone();
    assert_eq!((&planned["of"], &planned["optimiser"]), (&json!("spell:worker"), &json!("gepa.v1")), "{planned}");
    assert_eq!((folder.read("spells/worker.toml"), model.asked()), (spell.clone(), 0));

    let written = enveloped(&folder.run(&[&asked[..], &["--yes"]].concat()), codes::CHANGED.any())["data"].clone();
    assert_eq!(written["step"], "canary");
    assert!(id(&written["diff"]).contains("+system_prompt = \"You do jobs carefully.\" # to be improved"), "{written}");
    let changed = spell.replace("'You do jobs.'", "\"You do jobs carefully.\"");
    assert_eq!(folder.read("spells/worker.toml"), changed, "the rest of the file is as it was");
}
