//! Datasets and verdicts from the command line and over HTTP.

use std::collections::BTreeSet;

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::{self, Folder, enveloped, id, stderr, stdout};

const TRIAGE: &str = r#"namespace = "@me/support"
name = "Triage"
version = 1
description = "Who should look at a ticket?"
program_template = "direct.v1"
instructions = "Say which team should look at the ticket."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.ticket | fence('ticket') }}"
[input_schema]
type = "object"
required = ["ticket"]
additionalProperties = false
properties.ticket = { type = "string", minLength = 1 }
properties.urgent = { type = "boolean" }
[output_schema]
type = "object"
required = ["team"]
additionalProperties = false
properties.team = { type = "string", enum = ["billing", "delivery", "other"] }
"#;

/// A secret and an address that must leave no store.
const SECRET: &str = "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12";
const ADDRESS: &str = "ada@example.org";

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("signatures")).unwrap();
    folder.write("signatures/triage.toml", TRIAGE);
    folder
}

/// Returns every store of the binary that keeps datasets.
fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

/// A table of tickets with these numbers.
fn table(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut text = "ticket,urgent,team\n".to_owned();
    for number in numbers {
        let team = ["billing", "delivery", "other"][number as usize % 3];
        text.push_str(&format!("\"Ticket {number}, please\",{},{team}\n", number % 2 == 0));
    }
    text
}

/// Predicts the team of a ticket; the model answers with these teams, one after the other.
#[track_caller]
fn predict(folder: &Folder, store: &str, ticket: &str, teams: &[&str]) -> String {
    let says = |team: &&str| format!("  - tool_calls: [{{id: c1, gate: done, args: {{answer: {{team: {team}}}}}}}]\n");
    folder.write("model.yaml", &format!("responses:\n{}", teams.iter().map(says).collect::<String>()));
    let field = format!("ticket={ticket}");
    let asked = ["predict", "Triage", "--field", &field, "--crystal", "scripted/model.yaml", "--store", store];
    let _ = folder.run(&asked);
    let latest = folder.envelope(&["receipt", "show", "--store", store], codes::READ.any());
    id(&latest["data"]["value"]["receipt_id"]).to_owned()
}

/// Returns the examples of a dataset as they are stored.
#[track_caller]
fn examples(folder: &Folder, store: &str, dataset: &str) -> Vec<Value> {
    let asked = ["dataset", "show", dataset, "--most", "1000", "--no-redact", "--store", store];
    let shown = folder.envelope(&asked, codes::READ.any());
    shown["data"]["value"]["examples"]["items"].as_array().expect("examples").clone()
}

#[test]
fn a_newcomer_adds_a_table_lists_it_shows_it_and_lets_it_grow() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        folder.write("tickets.csv", &table(0..60));
        let add = [&["dataset", "add", "tickets", "tickets.csv", "--signature", "Triage"], &at[..]].concat();
        let added = folder.run(&add);
        assert!(added.status.success(), "{added:?}");
        assert_eq!(stdout(&added).lines().next(), Some("tickets@1"));
        assert!(stdout(&added).contains("60: "), "{added:?}");
        let again = folder.envelope(&add, codes::CREATED.any());
        assert_eq!((&again["data"]["version"], &again["data"]["new"]), (&json!(1), &json!(false)));
        // The subject of the newest version need not be repeated.
        folder.write("more.csv", &table(50..90));
        let more = [&["dataset", "add", "tickets", "more.csv", "--note", "from June"], &at[..]].concat();
        let grown = folder.envelope(&more, codes::CREATED.any());
        assert_eq!((&grown["data"]["version"], &grown["data"]["counts"]["taken"]), (&json!(2), &json!(90)));
        let listed = folder.run(&[&["dataset", "ls"], &at[..]].concat());
        assert_eq!(stdout(&listed).lines().count(), 1, "{listed:?}");
        assert!(
            stdout(&listed).contains("tickets@2") && stdout(&listed).contains("@me/support/Triage.v1"),
            "{listed:?}"
        );
        let (before, after) = (examples(&folder, &store, "tickets@1"), examples(&folder, &store, "tickets"));
        assert_eq!((before.len(), after.len()), (60, 90));
        assert!(before.iter().all(|example| after.contains(example)), "an example moved or changed");
        let typed =
            after.iter().find(|example| example["input"]["ticket"] == "Ticket 4, please").expect("it was added");
        assert_eq!(typed["input"]["urgent"], json!(true));
        assert_eq!(typed["expected"], json!({"team": "delivery"}));
        let diff = folder.run(&[&["dataset", "diff", "tickets@1", "tickets"], &at[..]].concat());
        assert_eq!(stdout(&diff).lines().filter(|line| line.starts_with("+ ex_")).count(), 30, "{diff:?}");
        let gone = id(&before[0]["id"]);
        let less = [&["dataset", "add", "tickets", "--without", gone], &at[..]].concat();
        assert_eq!(folder.envelope(&less, codes::CREATED.any())["data"]["counts"]["taken"], 89);
        let diff = folder.run(&[&["dataset", "diff", "tickets@2", "tickets@3"], &at[..]].concat());
        assert_eq!(stdout(&diff), format!("- {gone}\n"));
        let shown = folder.run(&[&["dataset", "show", "tickets@2", "--split", "test"], &at[..]].concat());
        assert!(stdout(&shown).contains("from June") && stdout(&shown).contains("there are more"), "{shown:?}");
        let unknown =
            folder.envelope(&[&["dataset", "show", "nothing"], &at[..]].concat(), codes::CONTRACT_UNKNOWN.any());
        assert!(id(&unknown["data"]["hint"]).contains("dataset ls"), "{unknown}");
        // The written file is a file of examples again.
        let out = [&["dataset", "show", "tickets", "--out", "all.jsonl"], &at[..]].concat();
        assert!(folder.run(&out).status.success());
        let copy =
            [&["dataset", "add", "copy", "all.jsonl", "--signature", "Triage", "--splits", "given"], &at[..]].concat();
        let copied = folder.envelope(&copy, codes::CREATED.any());
        let newest = folder.envelope(&[&["dataset", "show", "tickets"], &at[..]].concat(), codes::READ.any());
        assert_eq!(
            copied["data"]["dataset_hash"], newest["data"]["value"]["dataset_hash"],
            "the same examples and splits"
        );
    }
}

#[test]
fn a_file_with_faults_is_refused_with_every_line_and_nothing_is_written() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let mut text = table(0..60);
        for _ in 0..120 {
            text.push_str("A ticket,maybe,billing\n");
        }
        text.push_str("A ticket,true,sales\n");
        folder.write("tickets.csv", &text);
        let add = [&["dataset", "add", "tickets", "tickets.csv", "--signature", "Triage"], &at[..]].concat();
        let refused = folder.envelope(&add, codes::EXAMPLE_INVALID.any());
        let faults = refused["data"]["faults"].as_array().expect("faults");
        assert_eq!((faults.len(), &refused["data"]["count"]), (100, &json!(121)));
        assert_eq!((&faults[0]["line"], &faults[0]["path"]), (&json!(62), &json!("/input/urgent")));
        assert_eq!(faults[99]["line"], 161);
        let told = folder.run(&add);
        assert_eq!(told.status.code(), Some(2));
        assert!(stderr(&told).contains("line 62") && stderr(&told).contains("line 63"), "{told:?}");
        assert!(stderr(&told).contains("--skip-invalid"), "{told:?}");
        let listed = folder.envelope(&[&["dataset", "ls"], &at[..]].concat(), codes::READ.any());
        assert_eq!(listed["data"]["value"]["items"], json!([]));
        let skipping = folder.envelope(&[&add[..], &["--skip-invalid"]].concat(), codes::CREATED.any());
        let counts = &skipping["data"]["counts"];
        assert_eq!(counts["skipped"], json!({"input_schema": 120, "expected_schema": 1}));
        assert_eq!(counts["taken"], 60);
        // A small split, an unknown signature and a file that is not there.
        folder.write("small.csv", &table(0..6));
        let small = [&["dataset", "add", "small", "small.csv", "--signature", "Triage"], &at[..]].concat();
        assert!(id(&folder.envelope(&small, codes::LIMIT.any())["data"]["hint"]).contains("--allow-small"));
        folder.envelope(&[&small[..], &["--allow-small"]].concat(), codes::CREATED.any());
        let absent = [&["dataset", "add", "x", "absent.csv", "--signature", "Triage"], &at[..]].concat();
        folder.envelope(&absent, codes::FILE_MISSING.any());
        let unnamed = [&["dataset", "add", "unnamed", "small.csv"], &at[..]].concat();
        folder.envelope(&unnamed, codes::CONFIG_INVALID.any());
        let named = [&["dataset", "add", "No Name", "small.csv", "--signature", "Triage"], &at[..]].concat();
        folder.envelope(&named, codes::CONFIG_INVALID.any());
    }
}

#[test]
fn a_person_judges_receipts_one_after_the_other_and_the_export_has_the_corrections() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let good = predict(&folder, &store, "good", &["billing"]);
        let wrong = predict(&folder, &store, "wrong", &["billing"]);
        let repaired = predict(&folder, &store, "repaired", &["sales", "delivery"]);
        let failed = predict(&folder, &store, "failed", &["sales", "sales", "sales"]);
        let judged = predict(&folder, &store, "judged", &["other"]);
        let given =
            folder.envelope(&[&["receipt", "verdict", &judged, "good"], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(given["data"]["receipt_id"], json!(judged));
        let walk = [&["receipt", "verdict", "--next", "Triage"], &at[..]].concat();
        // The order of the last two is that of their hashes, so their answers are the same.
        let answers = "bad {\"team\": \"delivery\"}\nmaybe\nbad {\"team\": \"sales\"}\ngood\nskip\nquit\n";
        let walked = folder.piped(&walk, answers);
        assert!(walked.status.success(), "{walked:?}");
        assert_eq!(stdout(&walked), "2 judged, 1 skipped, 1 left\n", "{walked:?}");
        let asked = stderr(&walked);
        let shown: Vec<usize> =
            [&failed, &repaired].map(|receipt| asked.find(receipt.as_str()).expect("it was shown")).into();
        assert!(shown.is_sorted(), "failures come first, then repairs: {asked}");
        assert!(!asked.contains(&judged), "{asked}");
        for receipt in [&good, &wrong, &repaired, &failed] {
            assert!(asked.matches(receipt.as_str()).count() <= 1, "{asked}");
        }
        // The next walk shows each of the other two once, and then there is nothing left.
        let walked = folder.piped(&walk, "bad {\"team\": \"other\"}\nbad {\"team\": \"other\"}\ngood\n");
        assert_eq!(stdout(&walked), "2 judged, 0 skipped, 0 left\n", "{walked:?}");
        assert_eq!(stdout(&folder.piped(&walk, "good\n")), "0 judged, 0 skipped, 0 left\n");
        let export = ["dataset", "export", "gathered", "--signature", "Triage", "--allow-small"];
        let exported = folder.envelope(&[&export[..], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(exported["data"]["counts"]["taken"], 5, "{exported}");
        let found: BTreeSet<(String, String)> = examples(&folder, &store, "gathered")
            .iter()
            .map(|example| (id(&example["input"]["ticket"]).to_owned(), id(&example["expected"]["team"]).to_owned()))
            .collect();
        let wanted = [
            ("failed", "delivery"),
            ("good", "other"),
            ("judged", "other"),
            ("repaired", "delivery"),
            ("wrong", "other"),
        ];
        let wanted = wanted.map(|(ticket, team)| (ticket.to_owned(), team.to_owned()));
        assert_eq!(found, BTreeSet::from(wanted));
        // The same receipts again are the same version.
        let again = folder.envelope(&[&export[..], &at[..]].concat(), codes::CREATED.any());
        assert_eq!((&again["data"]["version"], &again["data"]["new"]), (&json!(1), &json!(false)));
    }
}

#[test]
fn a_verdict_takes_a_correction_from_a_file_and_refuses_what_does_not_fit() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let receipt = predict(&folder, &store, "where is it?", &["billing"]);
        folder.write("right.json", "{\"team\": \"delivery\"}");
        folder.write("wrong.json", "{\"team\": \"sales\"}");
        folder.write("broken.json", "{team}");
        let judge = |more: &[&'static str]| [&["receipt", "verdict", &receipt[..12], "bad"], more, &at[..]].concat();
        folder.envelope(&judge(&["--expected", "wrong.json"]), codes::SCHEMA.any());
        folder.envelope(&judge(&["--expected", "broken.json"]), codes::UNPARSABLE.any());
        folder.envelope(&judge(&["--label", "two words"]), codes::SCHEMA.any());
        let why = ["--expected", "right.json", "--label", "late", "--because", "it is about a parcel"];
        let given = folder.run(&judge(&why));
        assert_eq!(stdout(&given), format!("{receipt}  bad\n"), "{given:?}");
        let export = ["dataset", "export", "tickets", "--signature", "Triage", "--only-labelled", "--allow-small"];
        folder.envelope(&[&export[..], &at[..]].concat(), codes::CREATED.any());
        let found = examples(&folder, &store, "tickets");
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0]["expected"], &found[0]["labels"]), (&json!({"team": "delivery"}), &json!(["late"])));
        assert_eq!(found[0]["source"], json!({"kind": "receipt", "id": receipt}));
        let unknown = ["receipt", "verdict", "rcpt_00000000000000000000000000000000", "good"];
        folder.envelope(&[&unknown[..], &at[..]].concat(), codes::NOT_FOUND.any());
    }
}

#[test]
fn casts_of_a_spell_become_examples_of_the_spell_and_not_of_a_signature() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let schema = "answer_schema = {type = \"integer\"}";
        folder.write("count.toml", &format!("name = \"count\"\ncrystal = \"scripted/three.yaml\"\n{schema}\n"));
        folder.write("three.yaml", "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: 3}}]\n");
        folder.write("context.json", "{\"words\": [1, 2, 3]}");
        let cast = ["cast", "count.toml", "how many?", "--context", "context.json", "--quiet"];
        let cast = folder.run(&[&cast[..], &at[..]].concat());
        assert!(cast.status.success(), "{cast:?}");
        predict(&folder, &store, "a ticket", &["billing"]);
        let verdict = |word: &str, more: &[&str]| {
            let receipts = folder.envelope(&[&["receipt", "ls"], &at[..]].concat(), codes::READ.any());
            let items = receipts["data"]["value"]["items"].as_array().expect("receipts").clone();
            let cast = items.iter().find(|item| item["receipt_kind"] == "cast").expect("a cast leaves one");
            folder.run(&[&["receipt", "verdict", id(&cast["receipt_id"]), word], more, &at[..], &["--json"]].concat())
        };
        folder.write("words.json", "\"three\"");
        enveloped(&verdict("bad", &["--expected", "words.json"]), codes::SCHEMA.any());
        enveloped(&verdict("good", &[]), codes::CREATED.any());
        let export = ["dataset", "export", "counts", "--spell", "count", "--allow-small"];
        folder.envelope(&[&export[..], &at[..]].concat(), codes::CREATED.any());
        let found = examples(&folder, &store, "counts");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["input"], json!({"intent": "how many?", "context": {"words": [1, 2, 3]}}));
        assert_eq!((&found[0]["expected"], &found[0]["source"]["kind"]), (&json!(3), &json!("thread")));
        // A signature's dataset has no casts.
        let export = ["dataset", "export", "tickets", "--signature", "Triage", "--allow-small"];
        folder.envelope(&[&export[..], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(examples(&folder, &store, "tickets").len(), 1);
        // Its answers can be written by hand too.
        folder.write("counts.csv", "intent,expected\nhow many are two?,2\n");
        let add = ["dataset", "add", "counts", "counts.csv", "--spell", "count", "--allow-small"];
        let added = folder.envelope(&[&add[..], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(added["data"]["counts"]["taken"], 2, "{added}");
    }
}

#[test]
fn a_secret_and_an_address_leave_in_no_file_answer_or_list() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let leaks = |text: &str| text.contains(SECRET) || text.contains(ADDRESS);
        let ticket = format!("my key is {SECRET}, write to {ADDRESS}");
        let receipt = predict(&folder, &store, &ticket, &["billing"]);
        let export = ["dataset", "export", "tickets", "--signature", "Triage", "--allow-small", "--out", "out.jsonl"];
        let exported = folder.run(&[&export[..], &at[..]].concat());
        assert!(exported.status.success() && !leaks(stdout(&exported)), "{exported:?}");
        assert!(!leaks(&folder.read("out.jsonl")) && folder.read("out.jsonl").contains("[REDACTED]"));
        let show = [&["dataset", "show", "tickets"], &at[..]].concat();
        for more in [&[][..], &["--json"]] {
            let shown = folder.run(&[&show[..], more].concat());
            assert!(shown.status.success() && !leaks(stdout(&shown)), "{shown:?}");
        }
        assert!(leaks(stdout(&folder.run(&[&show[..], &["--no-redact"]].concat()))), "the store has what was said");
        let out = folder.run(&[&show[..], &["--no-redact", "--out", "whole.jsonl"]].concat());
        assert!(out.status.success() && leaks(&folder.read("whole.jsonl")));
        // Redacted before it is stored, it is nowhere.
        let clean = ["dataset", "export", "clean", "--signature", "Triage", "--allow-small", "--redact"];
        let made = folder.envelope(&[&clean[..], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(made["data"]["counts"]["redacted"], 1);
        let shown = folder.run(&[&["dataset", "show", "clean", "--no-redact"], &at[..]].concat());
        assert!(shown.status.success() && !leaks(stdout(&shown)), "{shown:?}");
        let server = Server::start(&folder, &at);
        for path in ["/v1/datasets", "/v1/datasets/tickets", "/v1/datasets/tickets/examples", "/v1/datasets/tickets@1"]
        {
            let (status, answer) = server.ask("GET", path, None);
            assert!(status == 200 && !leaks(&answer.to_string()), "{path}: {answer}");
        }
        let body = json!({"verdict": "bad", "expected": {"team": "other"}, "note": ticket});
        let (status, answer) = server.ask("POST", &format!("/v1/receipts/{receipt}/verdict"), Some(&body));
        assert!(status == 201 && !leaks(&answer.to_string()), "{answer}");
    }
}

#[test]
fn over_http_an_operator_makes_datasets_and_an_owner_judges_his_own_receipts() {
    for store in stores() {
        let folder = folder();
        folder.write(
            "tokens",
            "ann = token-of-ann-0123456789\nbob = token-of-bob-0123456789\noperator eve = token-of-eve-0123456789\n",
        );
        let receipt = predict(&folder, &store, "mine", &["billing"]);
        let server = Server::start(&folder, &["--store", &store, "--tokens", "tokens"]);
        let by = |who: &str| format!("authorization: Bearer token-of-{who}-0123456789\r\n");
        let examples: Vec<Value> = (0..40)
            .map(|number| json!({"input": {"ticket": format!("ticket {number}")}, "expected": {"team": "other"}}))
            .collect();
        let body = json!({"name": "tickets", "signature": "Triage", "examples": examples});
        let (status, answer) = server.ask_with("POST", "/v1/datasets", &by("ann"), Some(&body));
        assert_eq!(status, 403, "{answer}");
        let (status, answer) = server.ask_with("POST", "/v1/datasets", &by("eve"), Some(&body));
        assert_eq!((status, &answer["data"]["counts"]["taken"]), (201, &json!(40)), "{answer}");
        // Everyone sees which datasets there are; only an operator reads examples.
        let (status, answer) = server.ask_with("GET", "/v1/datasets", &by("bob"), None);
        assert_eq!((status, &answer["data"]["value"]["items"][0]["dataset"]), (200, &json!("tickets@1")), "{answer}");
        let path = "/v1/datasets/tickets/examples?split=test&most=2";
        assert_eq!(server.ask_with("GET", path, &by("bob"), None).0, 403);
        let (status, answer) = server.ask_with("GET", path, &by("eve"), None);
        let items = answer["data"]["value"]["items"].as_array().expect("examples");
        assert_eq!((status, items.len()), (200, 2), "{answer}");
        assert!(items.iter().all(|item| item["split"] == "test"), "{answer}");
        assert_eq!(server.ask_with("GET", "/v1/datasets/nothing", &by("eve"), None).0, 404);
        let wrong = json!({"name": "tickets", "examples": [{"input": {}}]});
        let (status, answer) = server.ask_with("POST", "/v1/datasets", &by("eve"), Some(&wrong));
        assert_eq!((status, &answer["data"]["faults"][0]["line"]), (422, &json!(1)), "{answer}");
        // The receipt is the local user's: for another owner it does not exist, and an operator judges it.
        let path = format!("/v1/receipts/{receipt}/verdict");
        let good = json!({"verdict": "good"});
        assert_eq!(server.ask_with("POST", &path, &by("bob"), Some(&good)).0, 404);
        let (status, answer) = server.ask_with("POST", &path, &by("eve"), Some(&good));
        assert!(status == 201 && id(&answer["data"]["by"]).contains("eve"), "{answer}");
        let gather = json!({"name": "gathered", "signature": "Triage", "receipts": {"only_labelled": true}, "allow_small": true});
        let (status, answer) = server.ask_with("POST", "/v1/datasets", &by("eve"), Some(&gather));
        assert_eq!((status, &answer["data"]["counts"]["taken"]), (201, &json!(1)), "{answer}");
    }
}
