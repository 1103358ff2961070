//! Which callers get a canary, as production selects them: through the command line, HTTP and MCP of the real binary.

use std::collections::BTreeSet;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rmcp::model::ProtocolVersion;
use serde_json::{Value, json};

use crate::mcp::{Peer, called, ended, envelope, served};
use crate::serve::Server;
use crate::support::{self, Folder, id, stdout};

const SHOUT: &str = r#"namespace = "@me/text"
name = "Shout"
version = 1
description = "Say it louder."
program_template = "direct.v1"
instructions = "Say it louder."
params = { model = "scripted/model.yaml" }
prompt_template = { system = "{{ instructions }}", user = "{{ inputs.text }}" }
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
"#;

const SIGNATURE: &str = "@me/text/Shout.v1";

fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

/// A folder whose pointer serves a canary to half of the callers.
fn rollout(store: &str) -> Folder {
    let folder = Folder::new();
    folder.write("shout.toml", SHOUT);
    let answer = "  - tool_calls: [{id: c1, gate: done, args: {answer: {text: HEY}}}]\n";
    folder.write("model.yaml", &format!("responses:\n{}", answer.repeat(60)));
    let added = folder.envelope(&["sig", "add", "shout.toml", "--store", store], codes::CREATED.any());
    let base = id(&added["data"]["compiled_id"]).to_owned();
    let given = json!({"instructions": "Say it much louder.", "params": {"model": "scripted/model.yaml"}});
    let kept = folder.piped(&["artifact", "add", "Shout", "-", "--store", store], &given.to_string());
    let canary = stdout(&kept).trim().to_owned();
    folder.envelope(&["pointer", "set", "Shout", &base, "--store", store], codes::CHANGED.any());
    let percent = ["pointer", "canary", "Shout", &canary, "--percent", "50", "--store", store];
    folder.envelope(&percent, codes::CHANGED.any());
    folder
}

/// Returns the variant that a preview predicts for this caller.
fn previewed(folder: &Folder, store: &str, caller: &[&str]) -> Value {
    let shown =
        folder.envelope(&[&["pointer", "preview", "Shout", "--store", store], caller].concat(), codes::READ.any());
    let rows = shown["data"]["value"]["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 1, "{shown}");
    rows[0].clone()
}

/// Returns the variant from the receipt of a predict, in the format of a preview.
#[track_caller]
fn got(folder: &Folder, store: &str, reply: &Value, key: &Value) -> Value {
    let receipt = id(&reply["data"]["receipt_id"]);
    let shown = folder.envelope(&["receipt", "show", receipt, "--store", store], codes::READ.any());
    let (receipt, policy) = (&shown["data"]["value"], &shown["data"]["value"]["policy"]);
    assert_eq!(policy["canary_percent"], 50, "{receipt}");
    json!({
        "key": key, "bucket": policy["rollout_bucket"], "variant": policy["artifact_variant"],
        "compiled_id": receipt["compiled_id"],
    })
}

/// Asserts that each of the two variants was served to at least one caller.
fn both(variants: &BTreeSet<String>) {
    assert_eq!(variants.iter().map(String::as_str).collect::<Vec<_>>(), ["canary", "primary"]);
}

#[test]
fn predicts_of_separate_runs_land_where_the_preview_says_on_the_command_line() {
    for store in stores() {
        let (folder, store) = (rollout(&store), store.as_str());
        let predicted = |caller: &[&str]| {
            let asked = [&["predict", "Shout", "--field", "text=hey", "--store", store], caller].concat();
            folder.envelope(&asked, codes::PREDICTED.any())
        };
        let mut variants = BTreeSet::new();
        for number in 1..=6 {
            let run = format!("order-{number}");
            let caller = ["--run-id", run.as_str(), "--autopilot-id", "the same for all"];
            let shown = previewed(&folder, store, &caller);
            assert_eq!(shown["key"], run);
            assert_eq!(got(&folder, store, &predicted(&caller), &shown["key"]), shown);
            variants.insert(id(&shown["variant"]).to_owned());
        }
        both(&variants);
        // The precedence of the ids: key, run, thread, agent, and last the owner, who is `local` here.
        let first = predicted(&[]);
        assert_eq!(got(&folder, store, &first, &json!("local")), previewed(&folder, store, &["--owner", "local"]));
        let thread = id(&first["data"]["thread_id"]).to_owned();
        let ids = ["--canary-key", "k", "--run-id", "r", "--thread", &thread, "--autopilot-id", "analyst"];
        for (from, key) in [(0, "k"), (2, "r"), (4, thread.as_str()), (6, "analyst")] {
            let shown = previewed(&folder, store, &ids[from..]);
            assert_eq!(shown["key"], key);
            assert_eq!(got(&folder, store, &predicted(&ids[from..]), &shown["key"]), shown);
        }
        // An invalid id is refused, with an exit status that blames the caller.
        for command in [&["predict", "Shout", "--field", "text=hey"][..], &["pointer", "preview", "Shout"][..]] {
            let refused = folder.run(&[command, &["--run-id", "", "--store", store, "--json"]].concat());
            let told: Value = serde_json::from_slice(&refused.stdout).unwrap();
            assert_envelope(&told, codes::SCHEMA.any());
            assert_eq!((&told["data"]["path"], refused.status.code()), (&json!("/run_id"), Some(2)), "{told}");
        }
        folder.envelope(&["receipt", "verify", "--all", "--store", store], codes::VERIFIED.any());
    }
}

#[test]
fn predicts_of_separate_runs_land_where_the_preview_says_over_http() {
    for store in stores() {
        let (folder, store) = (rollout(&store), store.as_str());
        let server = Server::start(&folder, &["--store", store]);
        let predicted = |caller: Value| {
            let mut asked = json!({"signature": SIGNATURE, "input": {"text": "hey"}});
            asked.as_object_mut().unwrap().extend(caller.as_object().unwrap().clone());
            server.ask("POST", "/v1/predict", Some(&asked))
        };
        let answered = |caller: Value| {
            let (status, reply) = predicted(caller);
            assert_eq!(status, 200, "{reply}");
            reply
        };
        let mut variants = BTreeSet::new();
        for number in 1..=6 {
            let run = format!("order-{number}");
            let reply = answered(json!({"run_id": run, "autopilot_id": "the same for all"}));
            let shown = previewed(&folder, store, &["--run-id", &run]);
            assert_eq!(got(&folder, store, &reply, &json!(run)), shown);
            variants.insert(id(&shown["variant"]).to_owned());
        }
        both(&variants);
        let first = answered(json!({"autopilot_id": "analyst"}));
        let shown = previewed(&folder, store, &["--autopilot-id", "analyst"]);
        assert_eq!(got(&folder, store, &first, &shown["key"]), shown);
        let thread = id(&first["data"]["thread_id"]);
        let reply = answered(json!({"thread_id": thread, "autopilot_id": "analyst"}));
        let shown = previewed(&folder, store, &["--thread", thread]);
        assert_eq!(got(&folder, store, &reply, &shown["key"]), shown);
        let (status, refused) = predicted(json!({"run_id": ""}));
        assert_envelope(&refused, codes::SCHEMA.any());
        assert_eq!(status, 422, "{refused}");
        let (status, refused) = predicted(json!({"thread_id": "ent_none"}));
        assert_envelope(&refused, codes::NOT_FOUND.any());
        assert_eq!(status, 404, "{refused}");
    }
}

#[tokio::test]
async fn predicts_of_separate_runs_land_where_the_preview_says_over_mcp() {
    let store = "sqlite:kept/loom.db";
    let folder = rollout(store);
    let server = served(&folder, Peer::new(ProtocolVersion::V_2025_11_25), &["--store", store]).await;
    let mut variants = BTreeSet::new();
    for number in 1..=6 {
        let run = format!("order-{number}");
        let asked = json!({"signature": SIGNATURE, "input": {"text": "hey"}, "run_id": run, "autopilot_id": "same"});
        let reply = envelope(&called(&server.0, "predict", asked).await, codes::PREDICTED.any());
        let shown = previewed(&folder, store, &["--run-id", &run]);
        assert_eq!(got(&folder, store, &reply, &json!(run)), shown);
        variants.insert(id(&shown["variant"]).to_owned());
    }
    both(&variants);
    let asked = json!({"signature": SIGNATURE, "input": {"text": "hey"}, "autopilot_id": "analyst"});
    let reply = envelope(&called(&server.0, "predict", asked).await, codes::PREDICTED.any());
    let shown = previewed(&folder, store, &["--autopilot-id", "analyst"]);
    assert_eq!(got(&folder, store, &reply, &shown["key"]), shown);
    let elsewhere = json!({"signature": SIGNATURE, "input": {"text": "hey"}, "thread_id": "ent_none"});
    envelope(&called(&server.0, "predict", elsewhere).await, codes::NOT_FOUND.any());
    ended(server).await;
}
