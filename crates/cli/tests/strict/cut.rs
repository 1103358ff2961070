//! An answer that was cut off by the provider's output limit is not an answer, whatever the provider calls it.

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

use super::casts::{Model, run, spell};
use super::{RequestTypes, Said};
use crate::support::{Folder, stderr, stdout};

/// The message to a crystal after a text that was cut off.
const CONTINUE: &str = "Continue exactly where it ended";

fn folder(spell: &str) -> Folder {
    let folder = Folder::new();
    folder.write("reader.toml", spell);
    folder.write("a.txt", "first");
    folder
}

#[test]
fn a_text_that_was_cut_off_is_gone_on_with_and_the_answer_is_whole() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let peer = model.peer([
            Said::text("The first half, ").cut(),
            Said::text("a second piece, ").thinking("Where was I?").cut(),
            Said::text("and the rest."),
        ]);
        let folder = folder(&spell(&model.crystal(&peer), "conversation"));
        let output = run(&folder, &["cast", "reader.toml", "tell me", "--quiet"], &model.variables(&peer));
        assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
        let whole = "The first half, a second piece, and the rest.\n";
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), whole), "{model:?}: {output:?}");
        let asked: Vec<usize> = peer.bodies().iter().map(|body| body.to_string().matches(CONTINUE).count()).collect();
        assert_eq!(asked, [0, 1, 2], "{model:?}");
        let turns = folder.seen(&["thread"])["turns"].clone();
        assert_eq!((&turns[0]["terminated"], &turns[2]["terminated"]), (&json!(false), &json!(true)), "{model:?}");
    }
}

#[test]
fn a_cast_that_cannot_go_on_after_a_cut_text_ends_truncated_and_shows_it_as_cut() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let peer = model.peer([Said::text("Half of an ans").cut(), Said::text("Half of an ans").cut()]);
        let folder = folder(&spell(&model.crystal(&peer), "conversation").replace("max_turns = 6", "max_turns = 1"));
        let output = run(&folder, &["cast", "reader.toml", "tell me", "--json"], &model.variables(&peer));
        let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_envelope(&envelope, codes::WARD_REACHED.any());
        assert_eq!(output.status.code(), Some(3), "{model:?}: {output:?}");
        let told = (&envelope["data"]["ward"], &envelope["data"]["cut_text"]);
        assert_eq!(told, (&json!("max_turns"), &json!("Half of an ans")), "{model:?}: {envelope}");
        // The output on a terminal says the same, and no answer goes to standard output.
        let output = run(&folder, &["cast", "reader.toml", "tell me"], &model.variables(&peer));
        assert_eq!((output.status.code(), stdout(&output)), (Some(3), ""), "{model:?}: {output:?}");
        let line = "truncated (max_turns) after 1 turn, its last text cut off at the limit of its output";
        assert!(stderr(&output).contains(line), "{model:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("run continue run_"), "{model:?}: {}", stderr(&output));
    }
}

#[test]
fn a_run_that_is_continued_after_a_cut_text_answers_with_the_whole_text() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let peer = model.peer([
            Said::text("The first half, ").cut(),
            Said::text("a second piece, ").thinking("Where was I?").cut(),
            Said::text("and the rest."),
            Said::text("Something else."),
        ]);
        let folder = folder(&spell(&model.crystal(&peer), "conversation").replace("max_turns = 6", "max_turns = 1"));
        let asked = |arguments: &[&str], status: i32| {
            let output = run(&folder, arguments, &model.variables(&peer));
            assert_eq!(output.status.code(), Some(status), "{model:?}: {output:?}");
            serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))["data"].clone()
        };
        let first = asked(&["cast", "reader.toml", "tell me", "--json"], 3);
        let run_id = first["run_id"].as_str().expect("a run");
        let second = asked(&["run", "continue", run_id, "--json"], 3);
        assert_eq!(second["cut_text"], "The first half, a second piece, ", "{model:?}");
        let run_id = second["run_id"].as_str().expect("a run");
        let third = asked(&["run", "continue", run_id, "--json"], 0);
        let whole = "The first half, a second piece, and the rest.";
        assert_eq!(third["answer"], whole, "{model:?}: {third}");
        let casts = folder.seen(&["thread"])["casts"].clone();
        assert_eq!(casts[2]["outcome"]["result"], whole, "{model:?}: {casts}");
        // The next intent is separate: the text before it does not become a part of its answer.
        let leaf = third["leaf"].as_str().expect("a turn");
        let output = run(&folder, &["loom", "fork", leaf, "and now?", "--quiet"], &model.variables(&peer));
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "Something else.\n"), "{model:?}: {output:?}");
        assert_eq!(peer.refused(), [""; 0], "{model:?}");
    }
}

#[test]
fn an_answer_that_was_cut_off_in_its_thoughts_says_what_to_do() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let silent = || Said::default().thinking("So much to weigh before I say").cut();
        let peer = model.peer([silent(), silent()]);
        let folder = folder(&spell(&model.crystal(&peer), "conversation"));
        let output = run(&folder, &["cast", "reader.toml", "tell me", "--json"], &model.variables(&peer));
        assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
        let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_envelope(&envelope, codes::ANSWER_CUT.any());
        assert_eq!(output.status.code(), Some(3), "{model:?}: {output:?}");
        let run_id = envelope["data"]["run_id"].as_str().expect("a run");
        let output = run(&folder, &["run", "show", run_id], &model.variables(&peer));
        assert!(stdout(&output).contains("raise `max_tokens`"), "{model:?}: {output:?}");
        let output = run(&folder, &["cast", "reader.toml", "tell me"], &model.variables(&peer));
        assert_eq!((output.status.code(), stdout(&output)), (Some(3), ""), "{model:?}: {output:?}");
        let drawn = stderr(&output);
        for said in ["truncated (max_tokens) after 0 turns", "raise `max_tokens`", "`effort`"] {
            assert!(drawn.contains(said), "{model:?}: {drawn}");
        }
    }
}

#[test]
fn a_model_that_is_cut_off_again_and_again_is_not_asked_for_ever() {
    let _types = RequestTypes::hold();
    let model = Model::Local;
    let peer = model.peer((0..20).map(|_| Said::text("on and ").cut()));
    let folder = folder(&spell(&model.crystal(&peer), "conversation").replace("max_turns = 6", "max_turns = 50"));
    let output = run(&folder, &["cast", "reader.toml", "tell me", "--json"], &model.variables(&peer));
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_envelope(&envelope, codes::WARD_REACHED.any());
    assert_eq!((output.status.code(), &envelope["data"]["ward"]), (Some(3), &json!("max_tokens")), "{envelope}");
    assert_eq!(peer.bodies().len(), 8);
}

#[test]
fn a_call_whose_arguments_were_cut_off_is_invalid_and_its_model_is_told_why() {
    let _types = RequestTypes::hold();
    // Gemini and Ollama send a call completely or not at all.
    for model in [Model::Budgeted, Model::Bound, Model::Responses, Model::Gateway, Model::Local] {
        for (medium, call, cut) in [
            ("conversation", ("read", json!({"path": "a.txt"})), ("read", json!({"path": "a.txt"}))),
            ("javascript", ("javascript", json!({"code": "1"})), ("javascript", json!({"code": "done('half')"}))),
        ] {
            let peer = model
                .peer([Said::calling(&[call.clone(), cut]).thinking("Both at once.").cut(), Said::text("Then not.")]);
            let folder = folder(&spell(&model.crystal(&peer), medium));
            let output = run(&folder, &["cast", "reader.toml", "read it", "--quiet"], &model.variables(&peer));
            assert_eq!(peer.refused(), [""; 0], "{model:?}, {medium}: {output:?}");
            assert_eq!((output.status.code(), stdout(&output)), (Some(0), "Then not.\n"), "{model:?}: {output:?}");
            let told = peer.bodies()[1].to_string();
            assert!(told.contains("your answer was cut off there"), "{model:?}, {medium}: {told}");
            let calls = folder.seen(&["thread"])["turns"][0]["gate_calls"].clone();
            let calls = calls.as_array().expect("calls");
            let last = calls.last().expect("a call");
            assert_eq!(last["reply"]["code"], codes::UNPARSABLE.any().to_string(), "{model:?}, {medium}: {last}");
            assert!(calls.len() <= 2 && calls.iter().all(|call| call["result"] != "half"), "{model:?}: {calls:?}");
        }
    }
}

const SHOUT: &str = r#"namespace = "@me/text"
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
[output_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string", maxLength = 20 }
"#;

/// Returns an answer as this model gives it: as text, or as a call if its provider cannot enforce a schema on text.
fn answering(model: Model, text: &str) -> Said {
    match model {
        Model::Gateway => Said::calling(&[("done", json!({"answer": {"text": "HEY"}}))]),
        Model::Budgeted | Model::Bound | Model::Responses | Model::Gemini | Model::Local | Model::Ollama => {
            Said::text(text)
        }
    }
}

#[test]
fn a_predict_whose_answer_was_cut_off_has_no_valid_answer() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let peer = model.peer((0..4).map(|_| answering(model, "{\"text\": \"HE").cut()));
        let folder = Folder::new();
        std::fs::create_dir_all(folder.path().join("signatures")).expect("a folder");
        folder.write("signatures/shout.toml", SHOUT);
        let crystal = model.crystal(&peer);
        let asked = ["predict", "Shout", "--field", "text=hey", "--crystal", &crystal, "--store", "sqlite:kept/l.db"];
        let output = run(&folder, &[&asked[..], &["--json"]].concat(), &model.variables(&peer));
        let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_envelope(&envelope, codes::OUTPUT_SCHEMA.any());
        assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
        assert_ne!(output.status.code(), Some(0), "{model:?}: {output:?}");
        // A complete answer succeeds; the provider enforces the schema as far as it can.
        let whole = model.peer([answering(model, "{\"text\": \"HEY\"}")]);
        let crystal = model.crystal(&whole);
        let asked = ["predict", "Shout", "--field", "text=ho", "--crystal", &crystal, "--store", "sqlite:kept/l.db"];
        let output = run(&folder, &asked, &model.variables(&whole));
        assert_eq!(whole.refused(), [""; 0], "{model:?}: {output:?}");
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "{\"text\":\"HEY\"}\n"), "{model:?}: {output:?}");
    }
}
