//! Signatures, predicts, receipts and artifacts from the command line.

use crate::support;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::model::Model;
use support::{Folder, enveloped, id, stderr, stdout};

pub(crate) const SHOUT: &str = r#"namespace = "@me/text"
name = "Shout"
version = 1
description = "Say it louder."
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
properties.times = { type = "integer" }
[output_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
"#;

/// A folder with its own signature and a scripted model that answers it.
fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("signatures")).unwrap();
    folder.write("signatures/shout.toml", SHOUT);
    let says = |text: &str| format!("  - tool_calls: [{{id: c1, gate: done, args: {{answer: {{{text}}}}}}}]\n");
    let answers = format!("responses:\n{}{}{}", says("words: HEY"), says("text: HEY"), says("text: HO"));
    folder.write("model.yaml", &answers);
    folder.write("bad.yaml", &format!("responses:\n{}", says("words: HEY").repeat(3)));
    folder
}

const MODEL: [&str; 2] = ["--crystal", "scripted/model.yaml"];

/// Returns every store of the binary that keeps receipts.
fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

#[test]
fn classify_answers_with_one_of_the_labels_that_it_was_given_or_fails() {
    let says = |label: &str| {
        format!("  - tool_calls: [{{id: c1, gate: done, args: {{answer: {{label: {label}, confidence: 0.9}}}}}}]\n")
    };
    for store in stores() {
        let folder = Folder::new();
        folder.write("model.yaml", &format!("responses:\n{}{}", says("grievance"), says("complaint")));
        folder.write("bad.yaml", &format!("responses:\n{}", says("grievance").repeat(3)));
        let predict = |script: &str| {
            let crystal = format!("scripted/{script}");
            let fields = ["--field", "text=It never came.", "--field", "labels=praise,complaint"];
            let to = ["--crystal", crystal.as_str(), "--store", store.as_str(), "--json"];
            folder.run(&[&["predict", "Classify"], &fields[..], &to[..]].concat())
        };
        let told = enveloped(&predict("model.yaml"), codes::PREDICTED.any());
        assert_eq!(told["data"]["output"]["label"], "complaint", "{told}");
        let told = enveloped(&predict("bad.yaml"), codes::OUTPUT_SCHEMA.any());
        assert_eq!(told["data"].get("output"), None, "{told}");
    }
}

#[test]
fn a_newcomer_lists_shows_checks_and_publishes_signatures() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let listed = folder.run(&[&["sig", "ls"], &at[..]].concat());
        let text = stdout(&listed);
        assert!(text.contains("@cantrip/text/Classify.v1") && text.contains("builtin"), "{text}");
        assert!(text.contains("@me/text/Shout.v1") && text.contains("not published yet"), "{text}");
        assert!(stdout(&folder.run(&["sig", "check"])).contains("@me/text/Shout.v1 is valid"));
        let added =
            folder.envelope(&[&["sig", "add", "signatures/shout.toml"], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(
            (&added["data"]["new"], &added["data"]["signature_id"]),
            (&json!(true), &json!("@me/text/Shout.v1"))
        );
        let again =
            folder.envelope(&[&["sig", "add", "signatures/shout.toml"], &at[..]].concat(), codes::CREATED.any());
        assert_eq!(again["data"]["new"], json!(false));
        folder.write("signatures/shout.toml", &SHOUT.replace("Say it louder.\"\nprompt", "Say it softer.\"\nprompt"));
        let refused =
            folder.envelope(&[&["sig", "add", "signatures/shout.toml"], &at[..]].concat(), codes::IMMUTABLE.any());
        assert_eq!(refused["data"]["reason"], "signature_conflict");
        assert!(refused["data"]["hint"].as_str().unwrap().contains("@me/text/Shout.v2"), "{refused}");
        let shown = folder.envelope(&[&["sig", "show", "Classify"], &at[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["signature"]["signature_id"], "@cantrip/text/Classify.v1");
        let unknown = folder.envelope(&[&["sig", "show", "Nothing"], &at[..]].concat(), codes::CONTRACT_UNKNOWN.any());
        assert!(unknown["data"]["hint"].as_str().unwrap().contains("sig ls"));
        folder.write("signatures/shout.toml", "namespace = \"@me\"\n");
        let broken = folder.envelope(&["sig", "check"], codes::CONFIG_INVALID.any());
        assert!(broken["data"]["issues"].as_array().unwrap().len() > 3, "{broken}");
    }
}

#[test]
fn a_predict_answers_on_standard_output_and_its_receipt_holds() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let asked = folder.run(&[&["predict", "Shout", "--field", "text=hey"], &MODEL[..], &at[..]].concat());
        assert!(asked.status.success(), "{asked:?}");
        assert_eq!(stdout(&asked), "{\"text\":\"HEY\"}\n");
        let receipt = stderr(&asked).split_whitespace().nth(1).unwrap().to_owned();
        assert!(receipt.starts_with("rcpt_"), "{asked:?}");
        let shown = folder.envelope(&[&["receipt", "show"], &at[..]].concat(), codes::READ.any());
        let told = &shown["data"]["value"];
        assert_eq!((&told["receipt_id"], &told["status"]), (&json!(receipt), &json!("succeeded")));
        assert_eq!((&told["budget"]["repairs"], &told["model"]["structured_mode"]), (&json!(1), &json!("tool")));
        // Piped text is the input; plain text goes into the only text field.
        for (input, arguments) in [("{\"text\": \"hey\"}", &["--input", "-"][..]), ("hey", &[][..])] {
            let piped = folder.piped(&[&["predict", "Shout"], arguments, &MODEL[..], &at[..]].concat(), input);
            assert_eq!(stdout(&piped), "{\"text\":\"HEY\"}\n", "{piped:?}");
        }
        let listed = folder.run(&[&["receipt", "ls"], &at[..]].concat());
        assert_eq!(stdout(&listed).lines().count(), 3, "{listed:?}");
        let verified = folder.envelope(&[&["receipt", "verify", "--all"], &at[..]].concat(), codes::VERIFIED.any());
        assert_eq!(verified["data"]["value"]["receipts"], 3);
        assert!(folder.run(&[&["receipt", "verify", &receipt[..14]], &at[..]].concat()).status.success());
        // A cast leaves a receipt too.
        folder.write("count.toml", "name = \"count\"\ncrystal = \"scripted/three.yaml\"\n");
        folder.write("three.yaml", "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: 3}}]\n");
        assert!(folder.run(&[&["cast", "count.toml", "how many?", "--quiet"], &at[..]].concat()).status.success());
        let cast = folder.envelope(&[&["receipt", "show"], &at[..]].concat(), codes::READ.any());
        assert_eq!(cast["data"]["value"]["receipt_kind"], "cast");
        folder.envelope(&[&["receipt", "verify", "--run", "@last"], &at[..]].concat(), codes::VERIFIED.any());
    }
}

#[test]
fn what_cannot_be_predicted_says_why() {
    let folder = folder();
    let at = ["--store", "sqlite:kept/loom.db"];
    let missing = folder.envelope(&[&["predict", "Shout"], &MODEL[..], &at[..]].concat(), codes::INPUT_SCHEMA.any());
    assert!(missing["message"].as_str().unwrap().contains("required"), "{missing}");
    folder.envelope(&[&["predict", "Nothing"], &MODEL[..], &at[..]].concat(), codes::CONTRACT_UNKNOWN.any());
    let bad = ["predict", "Shout", "--field", "text=hey", "--crystal", "scripted/bad.yaml"];
    let failed = folder.envelope(&[&bad[..], &at[..]].concat(), codes::OUTPUT_SCHEMA.any());
    let receipt = id(&failed["data"]["receipt_id"]);
    let shown = folder.envelope(&[&["receipt", "show", receipt], &at[..]].concat(), codes::READ.any());
    assert_eq!(shown["data"]["value"]["status"], "failed");
    let many = ["predict", "Shout", "--field", "text=hey", "--repairs", "9"];
    folder.envelope(&[&many[..], &MODEL[..], &at[..]].concat(), codes::SCHEMA.any());
    let odd = ["predict", "Shout", "--field", "text"];
    folder.envelope(&[&odd[..], &MODEL[..], &at[..]].concat(), codes::CONFIG_INVALID.any());
    folder.envelope(&["receipt", "show", "rcpt_ffff", "--store", at[1]], codes::NOT_FOUND.any());
}

#[test]
fn an_artifact_is_given_shown_and_run() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        folder.write("better.json", r#"{"instructions": "Say it much louder."}"#);
        let added = folder.envelope(
            &[&["artifact", "add", "Shout", "better.json", "--note", "by hand"], &at[..]].concat(),
            codes::CREATED.any(),
        );
        let artifact = id(&added["data"]["compiled_id"]).to_owned();
        let shown = folder.envelope(&[&["artifact", "show", &artifact[..12]], &at[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["artifact"]["instructions"], "Say it much louder.");
        assert_eq!(shown["data"]["value"]["origins"][0]["note"], "by hand");
        let listed = folder.run(&[&["artifact", "ls", "Shout"], &at[..]].concat());
        assert_eq!(stdout(&listed).lines().count(), 2, "{listed:?}");
        let asked =
            [&["predict", "Shout", "--field", "text=hey", "--artifact", &artifact], &MODEL[..], &at[..]].concat();
        folder.envelope(&asked, codes::PREDICTED.any());
        let told = folder.envelope(&[&["receipt", "ls", "--artifact", &artifact], &at[..]].concat(), codes::READ.any());
        assert_eq!(told["data"]["value"]["items"].as_array().unwrap().len(), 1);
        folder.write("wrong.json", r#"{"instructions": "x", "schema_hash": "sha256:00"}"#);
        let wrong = folder.envelope(
            &[&["artifact", "add", "Shout", "wrong.json"], &at[..]].concat(),
            codes::ARTIFACT_INCOMPATIBLE.any(),
        );
        assert_eq!(wrong["data"]["key"], "schema_hash");
    }
}

#[test]
fn one_key_is_answered_once_by_any_process() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let asked = |text: &str| {
            let field = format!("text={text}");
            let arguments = [&["predict", "Shout", "--field", &field, "--key", "k"], &MODEL[..], &at[..]].concat();
            folder.run(&[&arguments[..], &["--json"]].concat())
        };
        let read = |output: std::process::Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
        let (first, again) = (read(asked("hey")), read(asked("hey")));
        assert_eq!((&first["data"]["replayed"], &again["data"]["replayed"]), (&json!(false), &json!(true)));
        assert_eq!(first["data"]["receipt_id"], again["data"]["receipt_id"]);
        assert_eq!(first["data"]["output"], again["data"]["output"]);
        assert_eq!(read(asked("ho"))["data"]["reason"], "idempotency_conflict");
    }
}

#[test]
fn a_batch_answers_line_by_line_and_in_order() {
    let folder = folder();
    let at = ["--store", "sqlite:kept/loom.db"];
    let answers: String = (1..=5)
        .map(|n| format!("  - tool_calls: [{{id: c1, gate: done, args: {{answer: {{text: \"{n}\"}}}}}}]\n"))
        .collect();
    folder.write("model.yaml", &format!("responses:\n{answers}"));
    folder.write("cases.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n\n{\"words\": \"c\"}\n{\"text\": \"d\"}\n");
    let arguments = ["predict", "Shout", "--batch", "cases.jsonl", "--together", "2"];
    let ran = folder.run(&[&arguments[..], &MODEL[..], &at[..]].concat());
    let lines: Vec<Value> = stdout(&ran).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4, "{ran:?}");
    assert_eq!(lines.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!(lines[2]["error"]["code"], codes::INPUT_SCHEMA.any().as_str());
    assert!(lines.iter().all(|line| line["error"].is_null() != line["output"].is_null()), "{lines:?}");
    assert_eq!(ran.status.code(), Some(2), "the worst of them");
    assert!(stderr(&ran).contains("4 of 4 done, 1 failed"), "{ran:?}");
    let verified = folder.envelope(&[&["receipt", "verify", "--all"], &at[..]].concat(), codes::VERIFIED.any());
    assert_eq!(verified["data"]["value"]["receipts"], 3);
}

#[test]
fn a_predict_whose_process_is_killed_is_gone_on_with_by_its_run_and_by_its_key() {
    for store in stores() {
        for by_key in [false, true] {
            let (folder, at) = (folder(), ["--store", store.as_str()]);
            let store_of_its_own = support::own_postgres().filter(|_| store.starts_with("postgres"));
            let at = store_of_its_own.as_deref().map_or(at, |own| ["--store", own]);
            let quick = folder.read("model.yaml");
            folder.write(
                "model.yaml",
                &quick.replacen(
                    "  - tool_calls: [{id: c1, gate: done, args: {answer: {text: HEY}",
                    "  - delay_ms: 600000\n    tool_calls: [{id: c1, gate: done, args: {answer: {text: HEY}",
                    1,
                ),
            );
            let key: &[&str] = if by_key { &["--key", "k"] } else { &[] };
            let asked = [&["predict", "Shout", "--field", "text=hey"], key, &MODEL[..], &at[..]].concat();
            // Create the store before any process reads it.
            folder.envelope(&[&["sig", "add", "signatures/shout.toml"], &at[..]].concat(), codes::CREATED.any());
            let mut first = folder.spawn(&asked);
            let began = std::time::Instant::now();
            while folder.envelope(&[&["run", "ls"], &at[..]].concat(), codes::READ.any())["data"]["value"]
                .as_array()
                .is_none_or(Vec::is_empty)
            {
                assert!(began.elapsed().as_secs() < 60, "it never began");
            }
            first.kill().unwrap();
            first.wait().unwrap();
            assert_eq!(stdout(&folder.run(&[&["receipt", "ls"], &at[..]].concat())), "");
            folder.write("model.yaml", &quick);
            let resume = if by_key { asked } else { [&["run", "resume"], &at[..]].concat() };
            let resumed = folder.envelope(&resume, codes::PREDICTED.any());
            assert_eq!(resumed["data"]["output"], json!({"text": "HEY"}));
            assert_eq!(resumed["data"]["replayed"], json!(false));
            let verified = folder.envelope(&[&["receipt", "verify", "--all"], &at[..]].concat(), codes::VERIFIED.any());
            assert_eq!(verified["data"]["value"]["receipts"], 1);
            // Once it has ended, its run returns the result.
            let again = folder.envelope(&[&["run", "resume"], &at[..]].concat(), codes::PREDICTED.any());
            assert_eq!(again["data"]["receipt_id"], resumed["data"]["receipt_id"]);
        }
    }
}

/// A local model with a price, from the user's own table.
const PRICED: &str = "[[model]]\ncrystal = \"local/*\"\nwindow = 100_000\noutput_tokens_max = 1_000\n\
                      price = { input = \"3.00 USD\", output = \"15.00 USD\" }\n";

/// A folder in which a predict of `Shout` costs money, and the model that answers it.
fn priced() -> (Folder, Model) {
    let folder = folder();
    folder.write("models.toml", PRICED);
    let model = Model::start(|_| {
        let arguments = json!({"answer": {"text": "HEY"}}).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    });
    (folder, model)
}

/// Returns the envelope of a predict of `Shout`.
fn shouted(folder: &Folder, model: &Model, store: &str, arguments: &[&str], code: cantrip_reply::AnyCode) -> Value {
    let crystal = model.crystal();
    let all = ["predict", "Shout", "--field", "text=hey", "--crystal", &crystal, "--store", store, "--json"];
    let mut command = folder.command(&[&all[..], arguments].concat());
    command.env("CANTRIP_MODELS", folder.path().join("models.toml")).stdin(std::process::Stdio::null());
    enveloped(&command.output().expect("the binary runs"), code)
}

#[test]
fn a_predict_that_a_person_has_to_approve_is_waited_for_or_goes_on_when_its_run_does() {
    for store in stores() {
        let (folder, model) = priced();
        let at = ["--store", store.as_str()];
        let given = folder
            .envelope(&[&["spend", "authorize", "--mode", "interactive"], &at[..]].concat(), codes::CREATED.any());
        let payer = id(&given["data"]["authorization_id"]);
        let waiting = shouted(&folder, &model, &store, &["--authorization", payer], codes::CREATED.any());
        assert_eq!((&waiting["data"]["state"], &waiting["data"]["reason"]), (&json!("waiting"), &json!("approval")));
        assert_eq!(model.asked(), 0, "nobody was asked before a person agreed");
        let run = id(&waiting["data"]["run_id"]);
        folder.envelope(&[&["run", "approve", run], &at[..]].concat(), codes::CHANGED.any());
        let mut resume = folder.command(&[&["run", "resume", run, "--json"], &at[..]].concat());
        resume.env("CANTRIP_MODELS", folder.path().join("models.toml"));
        let resumed: Value = serde_json::from_slice(&resume.output().unwrap().stdout).unwrap();
        assert_envelope(&resumed, codes::PREDICTED.any());
        assert_eq!((&resumed["data"]["output"], model.asked()), (&json!({"text": "HEY"}), 1));
        // A caller with `--wait` gives up after that time, and the run still waits.
        let patient = ["--authorization", payer, "--wait", "1"];
        let waiting = shouted(&folder, &model, &store, &patient, codes::CREATED.any());
        assert_eq!((&waiting["data"]["state"], model.asked()), (&json!("waiting"), 1));
        let shown = folder.envelope(&[&["receipt", "verify", "--all"], &at[..]].concat(), codes::VERIFIED.any());
        assert_eq!(shown["data"]["value"]["receipts"], 1, "one receipt for the one that ended");
    }
}

#[test]
fn who_pays_for_a_predict_can_be_named_and_nobody_else_stands_in() {
    for store in stores() {
        let (folder, model) = priced();
        let at = ["--store", store.as_str()];
        let authorize = |more: &[&str]| -> Value {
            folder.envelope(&[&["spend", "authorize"], more, &at[..]].concat(), codes::CREATED.any())
        };
        let rich = authorize(&["--total", "1.00 USD"]);
        let rich = id(&rich["data"]["authorization_id"]);
        let answered = shouted(&folder, &model, &store, &["--authorization", rich], codes::PREDICTED.any());
        let receipt = id(&answered["data"]["receipt_id"]);
        let shown = folder.envelope(&[&["receipt", "show", receipt], &at[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["policy"]["authorization_id"], rich);
        let poor = authorize(&["--total", "0.000001 USD"]);
        let poor = id(&poor["data"]["authorization_id"]);
        let denied = shouted(&folder, &model, &store, &["--authorization", poor], codes::BUDGET_SPENT.any());
        assert_eq!(model.asked(), 1, "{denied}");
        let shown = folder.envelope(&[&["receipt", "show"], &at[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["status"], "denied", "{shown}");
        let other = authorize(&["--total", "1.00 USD", "--owner", "user:7"]);
        let other = id(&other["data"]["authorization_id"]);
        let denied = shouted(&folder, &model, &store, &["--authorization", other], codes::NOT_AUTHORIZED.any());
        assert_eq!(denied["data"]["reason_code"], "policy_denied.scope_mismatch", "{denied}");
        shouted(&folder, &model, &store, &["--authorization", "auth?"], codes::NOT_FOUND.any());
        folder.envelope(&[&["spend", "verify"], &at[..]].concat(), codes::VERIFIED.any());
    }
}

/// A signature whose model writes programs in this language.
fn counts(language: &str) -> String {
    SHOUT
        .replace("direct.v1", "rlm_lite.v1")
        .replace("Shout", "Count")
        .replace("[input_schema]", &format!("program = {{ medium = \"{language}\" }}\n[input_schema]"))
}

#[test]
fn a_program_finds_what_its_callers_thread_did_last() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        folder.write("signatures/count.toml", &counts("javascript"));
        folder.write("count.toml", "name = \"count\"\ncrystal = \"scripted/three.yaml\"\n[gates.echo]\n");
        folder.write(
            "three.yaml",
            "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: rabbit}}]\n  \
             - tool_calls: [{id: c2, gate: done, args: {answer: 3}}]\n",
        );
        let cast = folder.envelope(&[&["cast", "count.toml", "how many?"], &at[..]].concat(), codes::TERMINATED.any());
        let thread = id(&cast["data"]["entity_id"]);
        folder.write("program.yaml", "responses:\n  - code: \"done({text: JSON.stringify(history)})\"\n");
        let asked =
            ["predict", "Count", "--field", "text=hey", "--crystal", "scripted/program.yaml", "--thread", thread];
        let told = folder.envelope(&[&asked[..], &["--history"], &at[..]].concat(), codes::PREDICTED.any());
        let seen = told["data"]["output"]["text"].as_str().unwrap();
        assert!(seen.contains("echo") && seen.contains("rabbit"), "{seen}");
        // It is not there unless it is requested.
        folder.write("program.yaml", "responses:\n  - code: \"done({text: typeof history})\"\n");
        let told = folder.envelope(&[&asked[..], &at[..]].concat(), codes::PREDICTED.any());
        assert_eq!(told["data"]["output"]["text"], "undefined");
        let unknown = ["predict", "Count", "--field", "text=hey", "--thread", "ent_nobody"];
        folder.envelope(&[&unknown[..], &at[..]].concat(), codes::NOT_FOUND.any());
        let alone = folder.run(&[&["predict", "Count", "--field", "text=hey", "--history"], &at[..]].concat());
        assert_eq!(alone.status.code(), Some(2), "history of nobody: {alone:?}");
    }
}

#[test]
fn a_program_may_be_written_in_python() {
    let folder = folder();
    folder.write("signatures/count.toml", &counts("python"));
    folder.write("program.yaml", "responses:\n  - code: \"done({'text': text.upper() + str(len(inputs['text']))})\"\n");
    let at = ["--store", "sqlite:kept/loom.db"];
    let asked = ["predict", "Count", "--field", "text=hey", "--crystal", "scripted/program.yaml"];
    let told = folder.envelope(&[&asked[..], &at[..]].concat(), codes::PREDICTED.any());
    assert_eq!(told["data"]["output"], json!({"text": "HEY3"}));
    folder.envelope(&[&["receipt", "verify"], &at[..]].concat(), codes::VERIFIED.any());
}

#[test]
fn where_nobody_names_a_crystal_a_predict_says_what_a_predict_can_do() {
    let folder = folder();
    let mut command = folder.command(&["predict", "Shout", "--field", "text=hey", "--store", "memory:"]);
    for variable in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"] {
        command.env_remove(variable);
    }
    // No server listens there.
    command.env("OLLAMA_HOST", "127.0.0.1:9").stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    let told = stderr(&output);
    assert!(told.contains("predict: crystal: no artifact and no --crystal names one"), "{told}");
    assert!(!told.contains("cast"), "{told}");
}

#[test]
fn receipts_of_an_export_are_verified_with_nothing_but_the_file() {
    for store in stores() {
        let (folder, at) = (folder(), ["--store", store.as_str()]);
        let asked = ["predict", "Shout", "--field", "text=hey", "--trace", "full"];
        let first = folder.envelope(&[&asked[..], &MODEL[..], &at[..]].concat(), codes::PREDICTED.any());
        let receipt = id(&first["data"]["receipt_id"]);
        let export =
            ["loom", "export", "@me/text/Shout.v1", "--format", "journal", "--no-redact", "--out", "all.jsonl"];
        folder.envelope(&[&export[..], &at[..]].concat(), codes::READ.any());
        let elsewhere = Folder::new();
        let verify = |text: &str, code: cantrip_reply::AnyCode| {
            elsewhere.write("all.jsonl", text);
            // A store that cannot be opened; the command must not open it.
            elsewhere
                .envelope(&["receipt", "verify", "--export", "all.jsonl", "--store", "sqlite:/nowhere/loom.db"], code)
        };
        let all = folder.read("all.jsonl");
        let verified = verify(&all, codes::VERIFIED.any());
        assert_eq!(verified["data"]["value"]["receipts"], 1, "{verified}");
        for (paper, from, to, kind) in [
            ("receipt", "succeeded", "Succeeded", "content"),
            ("artifact", "louder", "softer", "artifact"),
            ("trace", "HEY", "HOY", "trace"),
            ("body", "HEY", "HOY", "output"),
        ] {
            let begins = format!("{{\"paper\":{{\"{paper}\":");
            let lines: Vec<String> = all
                .lines()
                .map(|line| match line.starts_with(&begins) {
                    true => line.replacen(from, to, 1),
                    false => line.to_owned(),
                })
                .collect();
            let edited = lines.join("\n");
            assert_ne!(edited, all.trim_end(), "{paper}");
            let found = verify(&edited, codes::RECORD_ALTERED.any());
            assert_eq!(found["data"]["findings"][0]["kind"], kind, "{found}");
            assert_eq!(found["data"]["findings"][0]["receipt_id"], receipt, "{found}");
        }
        // A receipt detects an altered or missing record that it depends on.
        let settled = all.lines().position(|line| line.contains("\"type\":\"settled\"")).unwrap();
        let without: Vec<&str> =
            all.lines().enumerate().filter(|(at, _)| *at != settled).map(|(_, line)| line).collect();
        let found = verify(&without.join("\n"), codes::RECORD_ALTERED.any());
        assert_eq!(found["data"]["findings"][0]["kind"], "thread", "{found}");
        // Redacted records have other bytes than the hashed ones, and a file that is not a journal is refused.
        let redacted = ["loom", "export", "@me/text/Shout.v1", "--format", "journal", "--out", "redacted.jsonl"];
        folder.envelope(&[&redacted[..], &at[..]].concat(), codes::READ.any());
        let refused = verify(&folder.read("redacted.jsonl"), codes::UNPARSABLE.any());
        assert!(refused["message"].as_str().unwrap().contains("redacted"), "{refused}");
        verify("{}\n", codes::UNPARSABLE.any());
        elsewhere.envelope(&["receipt", "verify", "--export", "nothing.jsonl"], codes::FILE_MISSING.any());
        // The journal can be imported, and the parts that are left out are reported.
        let other = ["--store", "sqlite:other/loom.db"];
        let taken = folder.envelope(&[&["loom", "import", "all.jsonl"], &other[..]].concat(), codes::CREATED.any());
        assert!(taken["data"]["papers"].as_u64().is_some_and(|papers| papers >= 4), "{taken}");
    }
}

#[test]
fn long_traces_lie_where_the_configuration_says_and_as_long() {
    let folder = folder();
    let at = ["--store", "sqlite:kept/loom.db"];
    std::fs::create_dir_all(folder.path().join(".config/cantrip")).unwrap();
    folder.write(".config/cantrip/config.toml", "[trace]\nstore = \"traces-here\"\nretain_days = 3\n");
    let long = format!("text={}", "hey ".repeat(2_000));
    let asked = ["predict", "Shout", "--field", &long, "--trace", "full"];
    let told = folder.envelope(&[&asked[..], &MODEL[..], &at[..]].concat(), codes::PREDICTED.any());
    let shown =
        folder.envelope(&[&["receipt", "show", id(&told["data"]["receipt_id"])], &at[..]].concat(), codes::READ.any());
    let receipt = &shown["data"]["value"];
    assert_eq!(receipt["trace_storage"], "external", "{receipt}");
    let lies = std::path::Path::new(receipt["trace_artifact_uri"].as_str().unwrap());
    assert!(lies.starts_with(folder.path().join(".config/cantrip/traces-here")), "{lies:?}");
    assert!(std::fs::metadata(lies).unwrap().len() > 4_096);
    folder.envelope(&[&["receipt", "verify"], &at[..]].concat(), codes::VERIFIED.any());
    std::fs::write(lies, "{}").unwrap();
    let found = folder.envelope(&[&["receipt", "verify"], &at[..]].concat(), codes::RECORD_ALTERED.any());
    assert_eq!(found["data"]["findings"][0]["kind"], "trace", "{found}");
    // A bucket must not become a folder of that name: a program without the feature refuses it before any request.
    folder.write(".config/cantrip/config.toml", "trace.store = \"ftp://bucket/traces\"\n");
    folder.envelope(&[&asked[..], &MODEL[..], &at[..]].concat(), codes::CONFIG_INVALID.any());
}
