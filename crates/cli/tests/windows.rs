//! The context window of a model that no table lists: the value that each kind of server reports, the assumed value if
//! none does, and the fold of a long thread before its server refuses it.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::keyed::{Asked, Keyed, Says};
use crate::support::llama::Llama;
use crate::support::{Folder, stderr, stdout};

/// Answers are short and end at a stop word, so that none is cut off.
const TALKS: &str = "[wards]\nmax_turns = 3\n[call]\nmax_tokens = 16\ntemperature = 0.0\nstop = [\"e\"]\n";

fn settle(folder: &Folder, text: &str) {
    std::fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    folder.write(".config/cantrip/config.toml", text);
}

/// Returns the records of this type in the folder's loom.
fn records(folder: &Folder, of_type: &str) -> Vec<Value> {
    let output = folder.run(&["loom", "export", "--format", "journal", "--no-redact"]);
    assert!(output.status.success(), "{output:?}");
    let records = stdout(&output).lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records.filter(|record| record["type"] == of_type).map(|record| record["payload"].clone()).collect()
}

/// Returns the windows with which the entities of the folder's loom were created.
fn windows(folder: &Folder) -> Vec<u64> {
    let entities = records(folder, "entity");
    assert!(!entities.is_empty());
    entities.iter().filter_map(|entity| entity["window"].as_u64()).collect()
}

#[test]
fn a_long_thread_with_a_small_model_is_folded_before_its_server_refuses_it() {
    let Some(llama) = Llama::start(1_024, Some("sesame")) else { return };
    let folder = Folder::new();
    settle(&folder, &format!("[endpoints.llamacpp]\nurl = \"{}/v1\"\n", llama.origin));
    folder.write("talk.toml", &format!("name = \"talk\"\ncrystal = \"llamacpp/smol\"\n{TALKS}"));
    // About 210 tokens each: six of them are more than the window of the server.
    let said: String =
        (0..6).map(|line| format!("{line}: {}\n", "the river runs past the old mill ".repeat(28))).collect();
    let mut command = folder.command(&["summon", "talk.toml"]);
    let piped =
        command.env("LLAMA_API_KEY", "sesame").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the binary runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), said.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(windows(&folder), [1_024], "the server told it");
    assert!(records(&folder, "fold").len() >= 2, "{output:?}");
    let attempts = records(&folder, "attempt");
    assert!(
        attempts.len() == 6 && attempts.iter().all(|attempt| attempt["number"] == 1),
        "none was refused: {attempts:?}"
    );
    assert!(!stderr(&output).contains("assumed"), "{output:?}");
}

#[test]
fn a_real_server_with_a_key_is_asked_in_each_wire_and_refuses_who_has_none() {
    let Some(llama) = Llama::start(4_096, Some("sesame")) else { return };
    for wire in ["chat", "responses", "messages"] {
        let folder = Folder::new();
        settle(
            &folder,
            &format!("[endpoints.small]\nurl = \"{}/v1\"\nkey_env = \"SMALL\"\nwire = \"{wire}\"\n", llama.origin),
        );
        folder.write("talk.toml", &format!("name = \"talk\"\ncrystal = \"small/smol\"\n{TALKS}"));
        let cast = |key: &str| {
            let mut command = folder.command(&["cast", "talk.toml", "Say hello.", "--json"]);
            let output = command.env("SMALL", key).stdin(Stdio::null()).output().expect("the binary runs");
            let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
            (envelope, output.status.code())
        };
        let (told, status) = cast("sesame");
        // The Responses wire has no stop words, so a long answer is cut off there, and the cast ends as truncated.
        let ended: &[Option<i32>] = if wire == "responses" { &[Some(0), Some(3)] } else { &[Some(0)] };
        assert!(ended.contains(&status), "{wire}: {told}");
        let said = records(&folder, "opened");
        assert!(!said.is_empty(), "{wire}: {told}");
        for said in &said {
            assert!(said["usage"]["prompt_tokens"].as_u64() > Some(0), "{wire}: the server counted it: {said}");
        }
        assert_eq!(windows(&folder), [4_096], "{wire}");
        let (told, status) = cast("wrong");
        assert_eq!(told["code"], cantrip_reply::codes::AUTH_FAILED.any().to_string(), "{wire}: {told}");
        assert_eq!(status, Some(4), "{wire}");
    }
}

/// A server that gives the same answer to every request; `tells` answers the requests about its models.
fn serving(tells: impl Fn(&Asked) -> Option<Value> + Send + Sync + 'static) -> Keyed {
    Keyed::start(None, move |asked, _| match tells(asked) {
        Some(told) => Says::Json(200, told),
        None if asked.line == "POST /v1/chat/completions" => {
            let said = json!({"choices": [{"index": 0, "message": {"content": "hello"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 2}});
            Says::Json(200, said)
        }
        None if asked.line == "POST /api/chat" => {
            let said = json!({"model": "m", "message": {"role": "assistant", "content": "hello"}, "done": true,
                "done_reason": "stop", "prompt_eval_count": 5, "eval_count": 2});
            Says::Json(200, said)
        }
        None => Says::Json(404, json!({"error": "not found"})),
    })
}

/// Casts with this crystal. Returns the window of the cast and the text on standard error.
fn cast(server: &Keyed, crystal: &str) -> (Vec<u64>, String) {
    let folder = Folder::new();
    folder.write("talk.toml", &format!("name = \"talk\"\ncrystal = \"{crystal}\"\n{TALKS}"));
    let mut command = folder.command(&["cast", "talk.toml", "Say hello."]);
    let output = command.env("OLLAMA_HOST", server.origin()).stdin(Stdio::null()).output().expect("the binary runs");
    assert_eq!(stdout(&output), "hello\n", "{crystal}: {output:?}");
    (windows(&folder), stderr(&output).to_owned())
}

fn local(server: &Keyed) -> String {
    format!("local/m@{}/v1", server.origin())
}

#[test]
fn each_kind_of_server_tells_the_window_of_its_model_in_its_own_way() {
    // In the formats of the servers' own documentation.
    let vllm = serving(|asked| {
        (asked.line == "GET /v1/models").then(|| {
            json!({"object": "list", "data": [
                {"id": "other", "object": "model", "owned_by": "vllm", "root": "other", "max_model_len": 1_024},
                {"id": "m", "object": "model", "owned_by": "vllm", "root": "m", "max_model_len": 40_960},
            ]})
        })
    });
    assert_eq!(cast(&vllm, &local(&vllm)).0, [40_960]);
    // An older llama.cpp, whose list only has the window of the model's training.
    let llama = serving(|asked| match asked.line.as_str() {
        "GET /v1/models" => Some(json!({"object": "list", "data": [
            {"id": "m", "object": "model", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131_072}},
        ]})),
        "GET /props" => Some(json!({"default_generation_settings": {"n_ctx": 6_144}, "total_slots": 1})),
        _ => None,
    });
    assert_eq!(cast(&llama, &local(&llama)).0, [6_144]);
    let studio = |entry: Value| {
        serving(move |asked| match asked.line.as_str() {
            "GET /v1/models" => Some(json!({"object": "list", "data": [{"id": "m", "object": "model"}]})),
            "GET /api/v0/models" => Some(json!({"object": "list", "data": [
                {"id": "other", "state": "loaded", "max_context_length": 4_096, "loaded_context_length": 4_096}, entry,
            ]})),
            _ => None,
        })
    };
    let loaded = studio(json!({"id": "m", "object": "model", "type": "llm", "state": "loaded",
        "max_context_length": 131_072, "loaded_context_length": 12_288}));
    assert_eq!(cast(&loaded, &local(&loaded)).0, [12_288]);
    let asleep = studio(json!({"id": "m", "object": "model", "type": "llm", "state": "not-loaded",
        "max_context_length": 5_000}));
    let (window, said) = cast(&asleep, &local(&asleep));
    assert_eq!(window, [5_000], "what it will be loaded with is not known, but at most this");
    assert!(said.contains("5000 tokens are assumed"), "{said}");
}

fn ollama(parameters: &'static str, running: Option<u64>) -> Keyed {
    serving(move |asked| match asked.line.as_str() {
        "POST /api/show" if asked.body["model"] == "m" => Some(json!({
            "parameters": parameters,
            "details": {"format": "gguf", "family": "llama"},
            "model_info": {"general.architecture": "llama", "llama.context_length": 131_072, "llama.block_count": 32},
        })),
        "GET /api/ps" => {
            let running =
                running.map(|window| json!({"name": "m:latest", "model": "m:latest", "context_length": window}));
            Some(json!({"models": running.into_iter().collect::<Vec<_>>()}))
        }
        _ => None,
    })
}

#[test]
fn ollama_tells_its_window_and_is_told_which_one_to_use_where_it_can_be() {
    for (parameters, running, chosen) in [
        ("stop \"<|eot|>\"\nnum_ctx                        24576", None, 24_576),
        ("temperature 0.6", Some(32_768), 32_768),
        ("", None, 16_384),
    ] {
        let server = ollama(parameters, running);
        assert_eq!(cast(&server, "ollama/m").0, [chosen], "{parameters}");
        let chat = server.posted().into_iter().find(|asked| asked.line == "POST /api/chat").expect("it was asked");
        assert_eq!(chat.body["options"]["num_ctx"], chosen, "{parameters}");
    }
    // Over its OpenAI-compatible wire the window cannot be set; it is the one with which the model was loaded.
    let server = ollama("", Some(32_768));
    assert_eq!(cast(&server, &local(&server)).0, [32_768]);
    let server = ollama("", None);
    let (window, said) = cast(&server, &local(&server));
    assert_eq!(window, [4_096], "as much as it reads on most machines");
    assert!(said.contains("4096 tokens are assumed"), "{said}");
}

#[test]
fn where_nobody_tells_a_small_window_is_assumed_and_it_is_said_once_how_to_set_it() {
    let server = serving(|_| None);
    let (window, said) = cast(&server, &local(&server));
    assert_eq!(window, [8_192]);
    assert_eq!(said.matches("8192 tokens are assumed").count(), 1, "{said}");
    assert!(said.contains("write window = ..."), "{said}");
    // A configured window is used, and no server is asked.
    let folder = Folder::new();
    settle(&folder, &format!("[endpoints.mine]\nurl = \"{}/v1\"\nwindow = 20000\n", server.origin()));
    folder.write("talk.toml", &format!("name = \"talk\"\ncrystal = \"mine/m\"\n{TALKS}"));
    let before = server.asked().len();
    let output = folder.run(&["cast", "talk.toml", "Say hello."]);
    assert_eq!((stdout(&output), windows(&folder)), ("hello\n", vec![20_000]), "{output:?}");
    assert_eq!(server.asked().len(), before + 1);
    assert!(!stderr(&output).contains("assumed"), "{output:?}");
}

#[test]
fn an_entity_keeps_the_window_it_was_made_with() {
    let told = std::sync::Arc::new(std::sync::Mutex::new(9_000_u64));
    let tells = std::sync::Arc::clone(&told);
    let server = serving(move |asked| {
        let window = *tells.lock().expect("nobody panics with it");
        (asked.line == "GET /v1/models").then(|| json!({"data": [{"id": "m", "max_model_len": window}]}))
    });
    let folder = Folder::new();
    folder.write("talk.toml", &format!("name = \"talk\"\ncrystal = \"{}\"\n{TALKS}", local(&server)));
    let output = folder.piped(&["summon", "talk.toml"], "Say hello.\n");
    assert!(output.status.success(), "{output:?}");
    let entity = folder.seen(&["thread"])["entity"]["entity"]["entity_id"].as_str().expect("an id").to_owned();
    *told.lock().expect("nobody panics with it") = 50_000;
    let output = folder.piped(&["summon", &entity], "And again.\n");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(windows(&folder), [9_000]);
}
