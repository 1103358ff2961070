//! Guards through the real binary: a canary is compared with its primary, told about, and removed by a server.

use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rustix::process::Signal;
use serde_json::{Value, json};

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

const POINTER: &str = "/v1/pointers/%40me%2Ftext%2FShout.v1";

fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

/// A folder whose pointer has a canary that answers with something that does not fit the schema.
struct Rollout {
    folder: Folder,
    store: String,
    canary: String,
    /// A key of callers that get the primary, and one of callers that get the canary.
    keys: [String; 2],
}

impl Rollout {
    fn new(store: &str) -> Self {
        let folder = Folder::new();
        folder.write("shout.toml", SHOUT);
        let answer = |args: &str| format!("  - tool_calls: [{{id: c1, gate: done, args: {{answer: {args}}}}}]\n");
        folder.write("model.yaml", &format!("responses:\n{}", answer("{text: HEY}").repeat(100)));
        folder.write("bad.yaml", &format!("responses:\n{}", answer("{words: HEY}").repeat(100)));
        let added = folder.envelope(&["sig", "add", "shout.toml", "--store", store], codes::CREATED.any());
        let base = id(&added["data"]["compiled_id"]).to_owned();
        let given = json!({"instructions": "Say it in other words.", "params": {"model": "scripted/bad.yaml"}});
        let kept = folder.piped(&["artifact", "add", "Shout", "-", "--store", store], &given.to_string());
        let canary = stdout(&kept).trim().to_owned();
        folder.envelope(&["pointer", "set", "Shout", &base, "--store", store], codes::CHANGED.any());
        let percent = ["pointer", "canary", "Shout", &canary, "--percent", "50", "--store", store];
        folder.envelope(&percent, codes::CHANGED.any());
        let shown = folder.envelope(
            &["pointer", "preview", "Shout", "--keys", "50", "--prefix", "k", "--store", store],
            codes::READ.any(),
        );
        let rows = shown["data"]["value"]["rows"].as_array().unwrap();
        let keys = ["primary", "canary"].map(|side| {
            let row = rows.iter().find(|row| row["variant"] == side).unwrap();
            id(&row["key"]).to_owned()
        });
        Self { folder, store: store.to_owned(), canary, keys }
    }

    /// Serves so many callers of the primary (0) or the canary (1).
    fn serve(&self, side: usize, callers: usize) {
        self.folder.write("cases.jsonl", &"{\"text\": \"hey\"}\n".repeat(callers));
        let asked = ["predict", "Shout", "--batch", "cases.jsonl", "--repairs", "0", "--canary-key", &self.keys[side]];
        let ran = self.folder.run(&[&asked[..], &["--store", &self.store]].concat());
        let lines: Vec<Value> = stdout(&ran).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), callers, "{ran:?}");
        assert!(lines.iter().all(|line| line["output"].is_null() == (side == 1)), "{ran:?}");
    }

    fn live(&self) -> Value {
        let asked = ["eval", "--live", "Shout", "--store", &self.store];
        self.folder.envelope(&asked, codes::READ.any())["data"]["value"].clone()
    }

    /// Returns the actions and the actors of the pointer's audits.
    fn audits(&self) -> Vec<(String, String)> {
        let shown = self.folder.envelope(&["pointer", "audits", "Shout", "--store", &self.store], codes::READ.any());
        let audits = shown["data"]["value"]["items"].as_array().unwrap().clone();
        audits.iter().map(|audit| (id(&audit["action"]).to_owned(), id(&audit["actor"]).to_owned())).collect()
    }
}

#[test]
fn a_canary_that_is_worse_is_told_about_by_eval_live_and_removed_once_by_two_servers() {
    for store in stores() {
        let rollout = Rollout::new(&store);
        let early = rollout.live();
        assert_eq!((&early["standing"], &early["looks"]), (&json!("too_few"), &json!(0)), "{early}");
        rollout.serve(0, 60);
        rollout.serve(1, 50);
        let told = rollout.live();
        assert_eq!((&told["standing"], &told["looks"], &told["action"]), (&json!("worse"), &json!(1), &json!("alert")));
        assert_eq!(
            (&told["report"]["canary"]["failed"], &told["report"]["primary"]["failed"]),
            (&json!(1_000_000), &json!(0))
        );
        assert_eq!(
            (&told["events"][0]["event"], &told["events"][0]["worse"]),
            (&json!("guard.worse"), &json!("failed"))
        );
        assert_eq!(rollout.audits().len(), 2, "nothing was changed");
        // A person sees the same, and nothing is told twice.
        let drawn = rollout.folder.run(&["eval", "--live", "Shout", "--store", &store]);
        let text = format!("{}{}", stdout(&drawn), stderr(&drawn));
        assert!(text.contains("worse: look 1") && text.contains("pointer canary @me/text/Shout.v1 --off"), "{text}");
        assert_eq!(rollout.live()["events"], json!([]));

        let set = ["pointer", "guard", "Shout", "--on", "clear", "--margin", "0.05", "--by", "ann", "--store", &store];
        let guard = rollout.folder.envelope(&set, codes::CHANGED.any())["data"]["guard"].clone();
        let row = (&guard["action"], &guard["margin_micro"], &guard["looks"], &guard["by"]);
        assert_eq!(row, (&json!("clear"), &json!(50_000), &json!(1), &json!("ann")), "{guard}");
        rollout.serve(1, 50);
        let servers = [0, 1].map(|_| Server::start(&rollout.folder, &["--store", &store]));
        let began = Instant::now();
        while servers[0].ask("GET", POINTER, None).1["data"]["value"]["canary_artifact"] == rollout.canary.as_str() {
            assert!(began.elapsed() < Duration::from_secs(50), "no server has removed the canary");
            std::thread::sleep(Duration::from_millis(50));
        }
        let logs: Vec<String> = servers.map(|server| server.stop_and_read(Signal::TERM).1).into_iter().collect();
        let tellers = logs.iter().filter(|log| log.contains("guard.worse @me/text/Shout.v1: look 2")).count();
        assert_eq!(tellers, 1, "{logs:?}");
        let wanted = [("set", "local"), ("canary", "local"), ("clear", "guard")];
        assert_eq!(rollout.audits(), wanted.map(|(action, actor)| (action.to_owned(), actor.to_owned())));
        rollout.folder.envelope(&["eval", "--live", "Shout", "--store", &store], codes::WRONG_STATE.any());
        rollout.folder.envelope(&["receipt", "verify", "--all", "--store", &store], codes::VERIFIED.any());
    }
}

#[test]
fn a_guard_is_set_over_http_by_an_operator_alone() {
    let rollout = Rollout::new("sqlite:kept/loom.db");
    let tokens = "operator ann = token-of-ann-who-operates\nbob = token-of-bob-who-does-not\n";
    rollout.folder.write("tokens.txt", tokens);
    let server = Server::start(&rollout.folder, &["--store", &rollout.store, "--tokens", "tokens.txt"]);
    let asked = |token: &str, body: &Value| {
        server.ask_with("POST", POINTER, &format!("authorization: Bearer {token}\r\n"), Some(body))
    };
    let body = json!({"change": "guard", "on": "clear", "margin": 0.1});
    let (status, refused) = asked("token-of-bob-who-does-not", &body);
    assert_envelope(&refused, codes::NOT_AUTHORIZED.any());
    assert_eq!(status, 403, "{refused}");
    let (status, set) = asked("token-of-ann-who-operates", &body);
    assert_envelope(&set, codes::CHANGED.any());
    let guard = &set["data"]["guard"];
    let row = (&guard["action"], &guard["margin_micro"], &guard["by"]);
    assert_eq!((status, row), (200, (&json!("clear"), &json!(100_000), &json!("user:ann"))), "{set}");
    // The default is to tell, with the default margin.
    let (_, set) = asked("token-of-ann-who-operates", &json!({"change": "guard"}));
    assert_eq!(
        (&set["data"]["guard"]["action"], &set["data"]["guard"]["margin_micro"]),
        (&json!("alert"), &json!(20_000))
    );
    for (body, path) in [
        (json!({"change": "guard", "margin": -0.1}), "/margin"),
        (json!({"change": "clear", "margin": 0.1}), "/margin"),
        (json!({"change": "clear", "on": "alert"}), "/on"),
    ] {
        let (status, refused) = asked("token-of-ann-who-operates", &body);
        assert_envelope(&refused, codes::SCHEMA.any());
        assert_eq!((status, &refused["data"]["path"]), (422, &json!(path)), "{refused}");
    }
    let (_, shown) = server.ask_with("GET", POINTER, "authorization: Bearer token-of-ann-who-operates\r\n", None);
    assert_eq!(shown["data"]["value"]["canary_artifact"], rollout.canary.as_str(), "the pointer is as it was");
}

#[test]
fn a_signature_without_a_canary_has_nothing_to_compare() {
    let folder = Folder::new();
    let store = ["--store", "sqlite:kept/loom.db"];
    let refused = folder.envelope(&[&["eval", "--live", "Classify"], &store[..]].concat(), codes::WRONG_STATE.any());
    assert!(id(&refused["data"]["hint"]).contains("pointer canary"), "{refused}");
    let margin = ["pointer", "guard", "Classify", "--margin", "2"];
    folder.envelope(&[&margin[..], &store[..]].concat(), codes::LIMIT.any());
    // A dataset and the calls that were served do not go together.
    let both = folder.run(&["eval", "--live", "Classify", "--dataset", "tickets"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}
