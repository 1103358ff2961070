//! The same spell, script and intent through every surface: the looms differ only in ids and times.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_client_protocol::v1::schema::StopReason;
use cantrip::loom::{AnyLoom, Jsonl};
use cantrip::{CastOptions, Runtime};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::codes;
use cantrip_spell::{BuildContext, Spell};
use rmcp::model::ProtocolVersion;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::Folder;
use crate::{acp, mcp, serve};

const INTENT: &str = "count the letters of loom";

/// A cast with everything that a loom records: thinking, text, a gate call from code, a failed call, an answer.
fn folder() -> Folder {
    let folder = Folder::new();
    folder.write(
        "counts.toml",
        "name = \"counts\"\ncrystal = \"scripted/counts.yaml\"\nmedium = \"javascript\"\n[gates.echo]\n[wards]\n\
         max_turns = 9\n",
    );
    folder.write(
        "counts.yaml",
        "responses:\n  - {thinking: 'Four, I think.', code: \"var said = echo('loom'); said.length\", \
         usage: {prompt_tokens: 30, completion_tokens: 7}}\n  - {code: 'nothing.there'}\n  - {code: 'done(said.length)'}\n",
    );
    folder
}

/// Returns the records of the only store in the folder. Ids, times and hashes are numbered in the order of first
/// appearance.
fn records(folder: &Folder) -> Vec<Value> {
    let mut names = Names::default();
    folder
        .read("kept/records.jsonl")
        .lines()
        .map(|line| names.plain(serde_json::from_str(line).expect("a record")))
        .collect()
}

/// Asserts that a reply named the run that the only store in the folder has on record.
#[track_caller]
fn assert_run(folder: &Folder, run: Option<&str>) {
    let run = run.expect("the reply names its run");
    let records = folder.read("kept/records.jsonl");
    assert!(run.starts_with("run_") && records.contains(&format!("\"{run}\"")), "{run} is not in {records}");
}

#[derive(Default)]
struct Names(BTreeMap<String, String>);

impl Names {
    fn plain(&mut self, value: Value) -> Value {
        match value {
            Value::Object(entries) => {
                let plain = entries.into_iter().map(|(key, value)| {
                    // Durations and random seeds differ between runs.
                    let told = matches!(key.as_str(), "duration_ms" | "clock_ms" | "seed" | "elapsed_ms");
                    let value = if told { json!("told") } else { self.plain(value) };
                    (key, value)
                });
                Value::Object(plain.collect())
            }
            Value::Array(items) => Value::Array(items.into_iter().map(|item| self.plain(item)).collect()),
            Value::String(text) => Value::String(self.named(&text)),
            other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
        }
    }

    fn named(&mut self, text: &str) -> String {
        const KINDS: [&str; 8] = ["run_", "ent_", "cast_", "turn_", "rcpt_", "dec_", "loom_", "can_"];
        let is_time = text.len() == 24 && text.ends_with('Z') && text.as_bytes()[10] == b'T';
        if is_time {
            return "a time".to_owned();
        }
        let of_kind = KINDS.iter().find(|kind| text.starts_with(**kind) && text.len() > kind.len() + 20);
        let kind = match of_kind {
            Some(kind) => *kind,
            None if text.starts_with("sha256:") => "hash_",
            // Leave a text that only contains an id, such as the name of a step.
            None => return text.to_owned(),
        };
        // The id of a call is the id of its turn and a number.
        let (id, rest) = text.split_once(':').filter(|_| kind != "hash_").unwrap_or((text, ""));
        let next = format!("{kind}{}", self.0.len());
        format!("{}:{rest}", self.0.entry(id.to_owned()).or_insert(next))
    }
}

async fn by_library() -> Vec<Value> {
    let folder = folder();
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).expect("a folder");
    let loom = AnyLoom::new(Jsonl::open(kept).expect("a store"));
    let spell = Spell::open(&folder.path().join("counts.toml")).expect("a spell");
    let medium = Javascript::start(Options::default()).expect("a medium");
    let around = BuildContext { mediums: vec![Arc::new(medium)], store: Some(loom.clone()), ..BuildContext::default() };
    let cantrip = spell.build(&around).expect("a cantrip");
    let cast = Runtime::new(loom).cast(&cantrip, CastOptions::on(INTENT)).await;
    assert_eq!(cast.answer(), Some(&json!(4)));
    records(&folder)
}

fn by_command() -> Vec<Value> {
    let folder = folder();
    let cast = folder.envelope(&["cast", "counts.toml", INTENT], codes::TERMINATED.any());
    assert_eq!(cast["data"]["answer"], 4);
    assert_run(&folder, cast["data"]["run_id"].as_str());
    records(&folder)
}

async fn by_mcp(version: ProtocolVersion) -> Vec<Value> {
    let folder = folder();
    let served = mcp::served(&folder, mcp::Peer::new(version), &[]).await;
    let cast = mcp::called(&served.0, "cast", json!({"spell": "counts", "intent": INTENT})).await;
    let envelope = mcp::envelope(&cast, codes::TERMINATED.any());
    assert_eq!(envelope["data"]["answer"], 4);
    mcp::ended(served).await;
    assert_run(&folder, envelope["data"]["run_id"].as_str());
    records(&folder)
}

async fn by_acp() -> Vec<Value> {
    let folder = folder();
    let path = folder.path().to_owned();
    acp::speaking(&folder, &["--spell", "counts"], &acp::Editor::default(), async |cx| {
        let session = acp::opened(&cx, &path).await?.session_id;
        let ended = acp::prompted(&cx, &session, INTENT).await?;
        assert_eq!(ended.stop_reason, StopReason::EndTurn);
        assert_run(&folder, ended.meta.as_ref().and_then(|meta| meta["cantrip"]["runId"].as_str()));
        Ok(())
    })
    .await;
    records(&folder)
}

fn by_http(path: &str, asked: &Value) -> (Vec<Value>, Value) {
    let folder = folder();
    let server = serve::Server::start(&folder, &[]);
    let (status, answer) = server.ask("POST", path, Some(asked));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.stop(Signal::TERM), 0);
    // A chat client finds the run in the id of the completion.
    let run = answer["data"]["run_id"].as_str().or_else(|| answer["id"].as_str()?.strip_prefix("chatcmpl-"));
    assert_run(&folder, run);
    (records(&folder), answer)
}

#[tokio::test]
async fn the_looms_of_every_surface_differ_in_ids_and_times_only() {
    let command = by_command();
    assert!(command.len() > 8, "there is something to compare: {command:#?}");
    let (http, answer) = by_http("/v1/casts", &json!({"spell": "counts", "intent": INTENT, "wait": true}));
    assert_eq!(answer["data"]["answer"], 4);
    let messages = json!([{"role": "user", "content": INTENT}]);
    let (chat, answer) = by_http("/v1/chat/completions", &json!({"model": "counts", "messages": messages}));
    assert_eq!(answer["choices"][0]["message"]["content"], "4");
    let surfaces = [
        ("library", by_library().await),
        ("http", http),
        ("chat", chat),
        ("mcp", by_mcp(ProtocolVersion::V_2025_11_25).await),
        ("mcp, newer", by_mcp(ProtocolVersion::V_2026_07_28).await),
        ("acp", by_acp().await),
    ];
    for (surface, looms) in surfaces {
        assert_eq!(looms.len(), command.len(), "{surface}");
        for (one, other) in looms.iter().zip(&command) {
            assert_eq!(one, other, "{surface}");
        }
    }
}
