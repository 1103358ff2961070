//! `pointer promote` rests on a stored evaluation: it passes with one, and names every condition that another one
//! fails.

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::support::model::Model;
use crate::support::{Folder, enveloped, id, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const EXAMPLES: usize = 40;

const SIGNATURE: &str = r#"namespace = "@me/support"
name = "Route"
version = 1
description = "Is a ticket about money?"
program_template = "direct.v1"
instructions = "Route it."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.ticket | fence('ticket') }}"

[input_schema]
type = "object"
required = ["ticket"]
additionalProperties = false
properties.ticket = { type = "string", minLength = 1 }

[output_schema]
type = "object"
required = ["money"]
additionalProperties = false
properties.money = { type = "boolean" }
"#;

/// Returns a message with this output, in the form that the request asks for.
fn answers(request: &Value, output: &Value) -> Value {
    if request["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        let arguments = json!({ "answer": output }).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
        return json!({"role": "assistant", "content": null, "tool_calls": [call]});
    }
    json!({"role": "assistant", "content": output.to_string()})
}

/// The careful artifact is right about every ticket, the other one about all but the easy ones, and a judge likes
/// `true`.
fn routes(request: &Value) -> Value {
    let text = request["messages"].to_string();
    if text.contains("rubric") {
        let (_, output) = text.split_once("<output>").unwrap_or_default();
        let (output, _) = output.split_once("</output>").unwrap_or_default();
        let is_good = output.contains("true");
        return answers(request, &json!({"score": if is_good { 1 } else { 0 }, "feedback": "it is not about money"}));
    }
    let is_right = text.contains("carefully") || (text.contains("slightly") && text.contains("easy"));
    answers(request, &json!({ "money": is_right }))
}

struct Desk {
    folder: Folder,
    model: Model,
    base: String,
    /// Right about everything.
    better: String,
    /// Right about the six easy ones.
    slightly: String,
}

impl Desk {
    fn new() -> Self {
        let (folder, model) = (Folder::new(), Model::start(routes));
        for name in ["signatures", "metrics"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        folder.write("signatures/route.toml", SIGNATURE);
        folder.write("metrics/money.toml", "v = 1\nkind = \"metric\"\ntype = \"exact.v1\"\npointer = \"/money\"\n");
        let judge = format!(
            "v = 1\nkind = \"metric\"\ntype = \"judge.v1\"\nmodel = \"{}\"\nrubric = \"It is about money.\"\n",
            model.crystal()
        );
        folder.write("metrics/judged.toml", &judge);
        folder.write("better.json", r#"{"instructions": "Route it carefully."}"#);
        folder.write("slightly.json", r#"{"instructions": "Route it slightly better."}"#);
        let mut rows = String::from("id,split,ticket,money\n");
        for number in 0..EXAMPLES + 8 {
            let split = if number < EXAMPLES { "test" } else { "holdout" };
            let kind = if number < 6 { "easy" } else { "hard" };
            rows += &format!("t{number:03},{split},Ticket {number} is an {kind} one,true\n");
        }
        folder.write("tickets.csv", &rows);
        let mut desk = Self { folder, model, base: String::new(), better: String::new(), slightly: String::new() };
        desk.succeeds(&["dataset", "add", "tickets", "tickets.csv", "--signature", "Route", "--splits", "given"]);
        desk.better = desk.succeeds(&["artifact", "add", "Route", "better.json"]).trim().to_owned();
        desk.slightly = desk.succeeds(&["artifact", "add", "Route", "slightly.json"]).trim().to_owned();
        let shown = desk.folder.envelope(&["sig", "show", "Route", "--store", STORE], codes::READ.any());
        desk.base = id(&shown["data"]["value"]["base"]).to_owned();
        let base = desk.base.clone();
        desk.succeeds(&["pointer", "set", "Route", &base]);
        desk
    }

    #[track_caller]
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.folder.run(&[arguments, &["--store", STORE]].concat());
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        stdout(&output).to_owned()
    }

    /// Evaluates an artifact, and returns the id of the evaluation.
    #[track_caller]
    fn evaluated(&self, artifact: &str, metric: &str, more: &[&str]) -> String {
        let crystal = self.model.crystal();
        let asked = ["eval", artifact, "--dataset", "tickets", "--metric", metric, "--crystal", &crystal];
        let output = self.folder.run(&[&asked[..], more, &["--yes", "--json", "--store", STORE]].concat());
        id(&enveloped(&output, codes::EVALUATED.any())["data"]["eval_id"]).to_owned()
    }

    /// Promotes, is refused, and returns the names of the conditions.
    #[track_caller]
    fn refused(&self, artifact: &str, more: &[&str]) -> Vec<String> {
        let asked = ["pointer", "promote", "Route", artifact];
        let output = self.folder.run(&[&asked[..], more, &["--json", "--store", STORE]].concat());
        let envelope = enveloped(&output, codes::PROMOTE_GATE.any());
        let unmet = envelope["data"]["unmet"].as_array().expect("a sentence for each").len();
        let names: Vec<String> = serde_json::from_value(envelope["data"]["conditions"].clone()).expect("names");
        assert_eq!(unmet, names.len(), "{envelope}");
        names
    }

    /// Returns the newest audit of the pointer.
    fn audit(&self) -> Value {
        let listed = self.folder.envelope(&["pointer", "audits", "Route", "--store", STORE], codes::READ.any());
        listed["data"]["value"]["items"].as_array().expect("audits").last().expect("an audit").clone()
    }

    /// Changes the file of the store by hand.
    fn edit(&self, statement: &str) {
        let file = rusqlite::Connection::open(self.folder.path().join("kept/loom.db")).expect("a store");
        let triggers: Vec<(String, String)> = {
            let mut asked =
                file.prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").expect("a schema");
            let rows = asked.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("triggers");
            rows.map(|trigger| trigger.expect("a trigger")).collect()
        };
        for (name, _) in &triggers {
            file.execute_batch(&format!("DROP TRIGGER {name}")).expect("a trigger");
        }
        assert!(file.execute(statement, []).expect("a change") > 0, "{statement}");
        for (_, sql) in &triggers {
            file.execute_batch(sql).expect("the trigger again");
        }
    }
}

#[test]
fn a_promotion_passes_with_a_stored_evaluation_and_its_audit_names_it() {
    let desk = Desk::new();
    let eval = desk.evaluated(&desk.better, "money", &[]);
    desk.succeeds(&["pointer", "promote", "Route", &desk.better]);
    let audit = desk.audit();
    assert_eq!((&audit["eval_id"], &audit["forced"]), (&json!(eval), &json!(false)), "{audit}");
    assert_eq!(audit["metadata"]["external"], json!(false), "{audit}");
    assert!(id(&audit["metadata"]["report_hash"]).starts_with("sha256:"), "{audit}");
    // Another artifact is served now, so the evaluation speaks for nothing more.
    assert_eq!(desk.refused(&desk.slightly, &["--eval", &eval]), ["other_artifact", "other_baseline"]);
}

#[test]
fn each_condition_that_a_stored_evaluation_fails_is_named_and_all_of_them_at_once() {
    let desk = Desk::new();
    // On holdout, which also has too few examples.
    let held = desk.evaluated(&desk.better, "money", &["--split", "holdout"]);
    assert_eq!(desk.refused(&desk.better, &["--eval", &held]), ["not_on_test", "too_few_examples"]);
    assert_eq!(desk.refused(&desk.better, &[]), ["report_missing"], "no evaluation on the test split");
    // Six wins and no loss are better at the first look, and not at the second.
    desk.evaluated(&desk.better, "money", &[]);
    let second = desk.evaluated(&desk.slightly, "money", &[]);
    assert_eq!(desk.refused(&desk.slightly, &["--eval", &second]), ["not_better"]);
    // A judge that nobody compared with people.
    let judged = desk.evaluated(&desk.better, "judged", &[]);
    assert_eq!(desk.refused(&desk.better, &["--eval", &judged]), ["judge_unproven"]);
    let held = desk.evaluated(&desk.better, "judged", &["--split", "holdout"]);
    assert_eq!(desk.refused(&desk.better, &["--eval", &held]), ["not_on_test", "too_few_examples", "judge_unproven"]);
    // One altered row.
    desk.edit("UPDATE ds_example_results SET score = 0 WHERE score = 1000000");
    let names = desk.refused(&desk.better, &["--eval", &held]);
    assert_eq!(names, ["not_on_test", "too_few_examples", "altered", "judge_unproven"]);
    let refused = desk.folder.run(&["eval", "verify", &held, "--json", "--store", STORE]);
    enveloped(&refused, codes::RECORD_ALTERED.any());
    // A person may pass over all of it, with a reason.
    desk.succeeds(&["pointer", "promote", "Route", &desk.better, "--force", "--because", "the old one is broken"]);
    assert_eq!(desk.audit()["forced"], json!(true));
}

#[test]
fn a_metric_that_runs_a_command_must_be_accepted_by_name() {
    let desk = Desk::new();
    desk.folder.write("score.sh", "#!/bin/sh\nif grep -q '\"output\":{\"money\":true}'; then echo '{\"score\": 1, \"feedback\": \"\"}'; else echo '{\"score\": 0, \"feedback\": \"no\"}'; fi\n");
    let script = desk.folder.path().join("score.sh");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    let metric = "v = 1\nkind = \"metric\"\ntype = \"command.v1\"\nargv = [\"/bin/sh\", \"score.sh\"]\n";
    desk.folder.write("metrics/command.toml", metric);
    let eval = desk.evaluated(&desk.better, "command", &[]);
    assert_eq!(desk.refused(&desk.better, &["--eval", &eval]), ["not_reproducible"]);
    desk.succeeds(&["pointer", "promote", "Route", &desk.better, "--eval", &eval, "--not-reproducible"]);
    assert_eq!(desk.audit()["metadata"]["not_reproducible"], json!(true));
}

#[test]
fn a_report_from_elsewhere_still_promotes_and_is_marked_as_such() {
    let desk = Desk::new();
    let report = json!({
        "v": 1, "kind": "evaluation", "eval_id": "eval_elsewhere", "signature_id": "@me/support/Route.v1",
        "status": "succeeded", "split": "test", "compiled_id": desk.better, "baseline_id": desk.base, "scored": 50,
        "delta_low_micro": 1000, "cost_per_call_micro": 0, "baseline_cost_per_call_micro": 0,
        "created_at": present_time(),
    });
    desk.folder.write("report.json", &report.to_string());
    desk.succeeds(&["pointer", "promote", "Route", &desk.better, "--report", "report.json"]);
    let audit = desk.audit();
    assert_eq!(
        (&audit["eval_id"], &audit["metadata"]["external"]),
        (&json!("eval_elsewhere"), &json!(true)),
        "{audit}"
    );
}

/// Returns the present time as a report has it.
fn present_time() -> String {
    use cantrip::canon::Clock;
    cantrip::MachineClock::new().now().wall.to_string()
}
