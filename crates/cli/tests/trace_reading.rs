//! Traces of predicts, read back through the command line, HTTP and MCP of the real binary.

use cantrip_canon::{Timestamp, bytes_hash};
use cantrip_contract::TraceState;
use cantrip_ds::TraceArchive;
use cantrip_loom::{AnyLoom, Contracts};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_store::Store;
use rmcp::model::{ProtocolVersion, ReadResourceRequestParams, ResourceContents};
use serde_json::{Value, json};

use crate::mcp::{Peer, ended, served};
use crate::serve::Server;
use crate::support::{self, Folder, id, stderr, stdout};

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

/// A key in a format that redaction recognizes.
const KEY: &str = "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8";

fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

fn folder() -> Folder {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join("signatures")).unwrap();
    folder.write("signatures/shout.toml", SHOUT);
    let answer = "  - tool_calls: [{id: c1, gate: done, args: {answer: {text: HEY}}}]\n";
    folder.write("model.yaml", &format!("responses:\n{answer}"));
    // Postgres has no folder beside it.
    folder.write("cantrip.toml", "");
    let config = folder.path().join(".config/cantrip");
    std::fs::create_dir_all(&config).unwrap();
    let traces = folder.path().join("traces");
    std::fs::write(config.join("config.toml"), format!("[trace]\nstore = {:?}\nretain_days = 7\n", traces)).unwrap();
    folder
}

/// Makes a predict with a full trace; returns the receipt as it is shown.
fn predicted(folder: &Folder, store: &str, text: &str) -> Value {
    let input = json!({ "text": text }).to_string();
    let asked = folder.piped(&["predict", "Shout", "--input", "-", "--trace", "full", "--store", store], &input);
    assert_eq!(stdout(&asked), "{\"text\":\"HEY\"}\n", "{asked:?}");
    folder.envelope(&["receipt", "show", "--store", store], codes::READ.any())["data"]["value"].clone()
}

/// Runs a command and checks its reply and its exit status.
fn told(folder: &Folder, arguments: &[&str], code: cantrip_reply::AnyCode, status: i32) -> Value {
    let output = folder.run(&[arguments, &["--json"]].concat());
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&reply, code);
    assert_eq!(output.status.code(), Some(status), "{reply}");
    reply
}

/// Deletes every trace whose retention has expired by a date far in the future, as the next predict then would.
fn expire(folder: &Folder, store: &str) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let opened = match store.strip_prefix("sqlite:") {
            Some(file) => Store::sqlite(folder.path().join(file)),
            None => Store::postgres(store),
        };
        let loom = AnyLoom::new(opened.unwrap());
        let far: Timestamp = "2126-01-01T00:00:00.000Z".parse().unwrap();
        let expired = TraceArchive::inline().expire(&loom, far).await;
        let left = loom.traces(TraceState::Inline, cantrip_loom::PageRequest::FIRST).await.unwrap().items;
        assert!(left.is_empty(), "{left:?}");
        expired.unwrap_or_else(|_| panic!("the traces could not be deleted"))
    })
}

#[test]
fn an_inline_trace_is_shown_and_exported_without_secrets_and_says_when_it_expired() {
    for store in stores() {
        let (folder, store) = (folder(), store.as_str());
        let nothing = told(&folder, &["trace", "show", "--store", store], codes::NOT_FOUND.any(), 2);
        assert!(nothing["data"]["hint"].as_str().unwrap().contains("cantrip predict"), "{nothing}");
        let receipt = predicted(&folder, store, &format!("hey {KEY}"));
        let (reference, receipt_id) = (id(&receipt["trace_ref"]), id(&receipt["receipt_id"]));
        for name in [&[][..], &[reference], &[receipt_id], &[&receipt_id[..14]]] {
            let shown = told(&folder, &[&["trace", "show", "--store", store], name].concat(), codes::READ.any(), 0);
            let value = &shown["data"]["value"];
            assert_eq!((&value["trace_ref"], &value["trace_hash"]), (&json!(reference), &receipt["trace_hash"]));
            assert_eq!((&value["storage"], &value["redacted"]), (&json!("inline"), &json!(true)), "{value}");
            assert!(value["trace"]["prompt"]["user"].as_str().unwrap().starts_with("hey "), "{value}");
            assert!(!shown.to_string().contains(KEY), "{shown}");
        }
        let drawn = folder.run(&["trace", "show", "--store", store]);
        let text = stdout(&drawn);
        assert!(text.starts_with(reference) && text.contains("Say it louder.") && !text.contains(KEY), "{text}");
        // As it was stored: exactly the bytes whose hash is in the receipt.
        let stored = told(&folder, &["trace", "show", "--no-redact", "--store", store], codes::READ.any(), 0);
        let canonical = cantrip_canon::json::canonical(&stored["data"]["value"]["trace"]).unwrap();
        assert_eq!(json!(bytes_hash(canonical.as_bytes())), receipt["trace_hash"]);
        let exported = folder.run(&["trace", "export", "--all", "--store", store]);
        let line: Value = serde_json::from_str(stdout(&exported)).unwrap();
        assert_eq!((&line["trace_ref"], exported.status.code()), (&json!(reference), Some(0)));
        let file = ["trace", "export", "--run", "@last", "--out", "out.jsonl", "--store", store];
        let counted = told(&folder, &file, codes::READ.any(), 0);
        assert_eq!(counted["data"]["value"], json!({"traces": 1, "expired": 0, "failed": 0}));
        assert_eq!(folder.read("out.jsonl"), stdout(&exported));
        told(&folder, &file, codes::WRONG_STATE.any(), 2);
        told(&folder, &["trace", "show", "trace:run_x:0", "--store", store], codes::NOT_FOUND.any(), 2);

        assert_eq!(expire(&folder, store), 1);
        let gone = told(&folder, &["trace", "show", "--store", store], codes::WRONG_STATE.any(), 2);
        assert_eq!(gone["data"]["reason"], "trace_expired", "{gone}");
        assert_eq!(
            (&gone["data"]["id"], &gone["data"]["deleted_by"]),
            (&json!(reference), &json!("trace.retain_days"))
        );
        assert_eq!(
            (&gone["data"]["deleted_at"], &gone["data"]["retain_days"]),
            (&json!("2126-01-01T00:00:00.000Z"), &json!(7))
        );
        let said = folder.run(&["trace", "show", "--store", store]);
        let said = stderr(&said);
        assert!(said.contains("expired: it was deleted at 2126-01-01T00:00:00.000Z by trace.retain_days"), "{said}");
        let line: Value =
            serde_json::from_str(stdout(&folder.run(&["trace", "export", "--all", "--store", store]))).unwrap();
        assert_eq!((&line["state"], &line["trace"]), (&json!("expired"), &Value::Null), "{line}");
        // Its receipt and its journal still verify, and the journal records the deletion.
        told(&folder, &["receipt", "verify", "--all", "--store", store], codes::VERIFIED.any(), 0);
        told(&folder, &["loom", "verify", "--store", store], codes::VERIFIED.any(), 0);
    }
}

#[test]
fn an_external_trace_is_fetched_and_checked_and_a_missing_or_altered_object_is_an_error() {
    for store in stores() {
        let (folder, store) = (folder(), store.as_str());
        let receipt = predicted(&folder, store, &"word ".repeat(2_000));
        assert_eq!(receipt["trace_storage"], "external", "{receipt}");
        let object = id(&receipt["trace_artifact_uri"]).to_owned();
        let whole = std::fs::read(&object).unwrap();
        let show = ["trace", "show", "--store", store];
        let shown = told(&folder, &show, codes::READ.any(), 0);
        let value = &shown["data"]["value"];
        assert_eq!((&value["state"], &value["uri"]), (&json!("stored"), &json!(object)), "{value}");
        assert_eq!(value["trace"], serde_json::from_slice::<Value>(&whole).unwrap());
        assert!(stdout(&folder.run(&show)).contains(&format!("external at {object}")));
        let server = Server::start(&folder, &["--store", store]);
        let (by_reference, by_receipt) = (
            format!("/v1/traces/{}", id(&receipt["trace_ref"])),
            format!("/v1/receipts/{}/trace", id(&receipt["receipt_id"])),
        );
        for path in [&by_reference, &by_receipt] {
            let (status, reply) = server.ask("GET", path, None);
            assert_envelope(&reply, codes::READ.any());
            assert_eq!((status, &reply["data"]["value"]), (200, value));
        }
        let (status, reply) = server.ask("GET", "/v1/traces/nonsense", None);
        assert_envelope(&reply, codes::NOT_FOUND.any());
        assert_eq!(status, 404);

        let mut changed = whole.clone();
        changed[100] ^= 1;
        std::fs::write(&object, changed).unwrap();
        let altered = told(&folder, &show, codes::RECORD_ALTERED.any(), 4);
        assert_eq!((&altered["data"]["reason"], &altered["data"]["field"]), (&json!("altered"), &json!("trace_hash")));
        assert_eq!(server.ask("GET", &by_reference, None).0, 500);
        std::fs::remove_file(&object).unwrap();
        let missing = told(&folder, &show, codes::RECORD_ALTERED.any(), 4);
        assert_eq!((&missing["data"]["reason"], &missing["data"]["uri"]), (&json!("object_missing"), &json!(object)));
        let exported = folder.run(&["trace", "export", "--all", "--store", store]);
        let line: Value = serde_json::from_str(stdout(&exported)).unwrap();
        assert_eq!(line["error"]["code"], codes::RECORD_ALTERED.as_str(), "{line}");
        assert_eq!(exported.status.code(), Some(4), "{exported:?}");

        std::fs::write(&object, &whole).unwrap();
        assert_eq!(expire(&folder, store), 1);
        assert!(!std::path::Path::new(&object).exists(), "its object is gone");
        for path in [&by_reference, &by_receipt] {
            let (status, reply) = server.ask("GET", path, None);
            assert_envelope(&reply, codes::WRONG_STATE.any());
            assert_eq!((status, &reply["data"]["reason"]), (409, &json!("trace_expired")), "{reply}");
        }
    }
}

#[tokio::test]
async fn a_trace_is_a_resource_for_agents() {
    let (folder, store) = (folder(), "sqlite:kept/loom.db");
    let receipt = predicted(&folder, store, &format!("hey {KEY}"));
    let server = served(&folder, Peer::new(ProtocolVersion::V_2025_11_25), &["--store", store]).await;
    let templates = server.0.list_all_resource_templates().await.expect("templates");
    assert!(templates.iter().any(|template| template.uri_template == "cantrip://traces/{trace}"), "{templates:?}");
    for name in [id(&receipt["trace_ref"]), id(&receipt["receipt_id"])] {
        let asked = ReadResourceRequestParams::new(format!("cantrip://traces/{name}"));
        let read = server.0.read_resource(asked).await.expect("a trace");
        let ResourceContents::TextResourceContents { text, .. } = &read.contents[0] else { panic!("{read:?}") };
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["trace_hash"], receipt["trace_hash"], "{value}");
        assert!(value["trace"]["steps"].is_array() && !text.contains(KEY), "{text}");
    }
    let missing = server.0.read_resource(ReadResourceRequestParams::new("cantrip://traces/none")).await;
    missing.expect_err("no such trace");
    ended(server).await;
}
