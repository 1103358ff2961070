//! A cast without a spell and without a named model: the crystal that is found, the configured one, and the refusal if
//! there is none.

use std::fs;
use std::process::{Command, Output, Stdio};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

use crate::providers::{FAMILIES, KEY, Provider, programs};
use crate::support::{Folder, stderr, stdout};

/// An address without a server.
const NOWHERE: &str = "http://127.0.0.1:1";

/// The binary without any variable about models and without a local server.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    for (_, key, base, _) in FAMILIES {
        key.into_iter().chain([base, "GOOGLE_API_KEY"]).for_each(|name| {
            command.env_remove(name);
        });
    }
    command.env("OLLAMA_HOST", NOWHERE).stdin(Stdio::null());
    command
}

fn settled(folder: &Folder, text: &str) {
    fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    folder.write(".config/cantrip/config.toml", text);
}

fn envelope(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Returns the crystal that would be used.
fn crystal(folder: &Folder, variables: &[(&str, &str)]) -> String {
    let mut command = command(folder, &["cast", "look around", "--dry-run", "--json"]);
    let output = command.envs(variables.iter().copied()).output().expect("the binary runs");
    let envelope = envelope(&output);
    assert_envelope(&envelope, codes::READ.any());
    let crystal = &envelope["data"]["spell"]["crystal"];
    crystal.as_str().unwrap_or_else(|| panic!("{envelope}")).to_owned()
}

#[test]
fn where_no_crystal_can_be_found_every_choice_is_told_and_nothing_is_kept() {
    let folder = Folder::new();
    settled(&folder, "local = []\n");
    let output = command(&folder, &["cast", "look around"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for says in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "ollama", "--crystal"] {
        assert!(stderr(&output).contains(says), "{says}: {}", stderr(&output));
    }
    let told = envelope(&command(&folder, &["cast", "look around", "--json"]).output().expect("the binary runs"));
    assert_envelope(&told, codes::CONFIG_INVALID.any());
    assert!(!folder.path().join("kept").exists() && !folder.path().join(".cantrip").exists());
}

#[test]
fn a_key_alone_is_enough_to_cast() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    let provider = Provider::serving(programs("anthropic"));
    let mut command = command(&folder, &["cast", "look around"]);
    let output = command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", &provider.address).output();
    let output = output.expect("the binary runs");
    assert_eq!(stdout(&output), "seen\n", "{output:?}");
    let first = stderr(&output).lines().next().expect("a line").to_owned();
    let root = folder.path().canonicalize().expect("a folder");
    for says in ["anthropic/claude", "javascript", root.to_str().expect("text")] {
        assert!(first.contains(says), "{says}: {first}");
    }
    assert!(provider.asked()[0].contains("claude"), "{}", provider.asked()[0]);
    assert!(!stderr(&output).contains(KEY));
}

#[test]
fn keys_come_first_and_then_whoever_serves_a_model_on_this_machine() {
    let folder = Folder::new();
    settled(&folder, "local = []\n");
    let keys = [("OPENAI_API_KEY", KEY), ("GOOGLE_API_KEY", KEY), ("OPENROUTER_API_KEY", KEY)];
    assert!(crystal(&folder, &keys).starts_with("openai/"));
    assert!(crystal(&folder, &keys[1..]).starts_with("gemini/"));
    assert!(crystal(&folder, &keys[2..]).starts_with("openrouter/"));
    let tags = json!({"models": [{"name": "small:1b"}, {"name": "other"}]}).to_string();
    let ollama = Provider::telling(tags.clone());
    assert_eq!(crystal(&folder, &[("OLLAMA_HOST", &ollama.address)]), "ollama/small:1b");
    assert!(ollama.asked()[0].starts_with("GET /api/tags "), "{:?}", ollama.asked());
    let ollama = Provider::telling(tags);
    assert!(crystal(&folder, &[("OLLAMA_HOST", &ollama.address), keys[0]]).starts_with("openai/"));
    let other = Provider::telling(json!({"object": "list", "data": [{"id": "own-model"}]}).to_string());
    settled(&folder, &format!("local = [\"{NOWHERE}/v1\", \"{}/v1\"]\n", other.address));
    assert_eq!(crystal(&folder, &[]), format!("local/own-model@{}/v1", other.address));
    assert!(other.asked()[0].starts_with("GET /v1/models "), "{:?}", other.asked());
}

#[test]
fn what_a_stranger_answers_at_a_usual_address_is_no_model() {
    let folder = Folder::new();
    for answer in ["<html>hello</html>", "{\"data\": []}", "{\"data\": [{\"id\": \"a\\u0007b\"}]}", "[1, 2]"] {
        let stranger = Provider::telling(answer.to_owned());
        settled(&folder, &format!("local = [\"{}/v1\"]\n", stranger.address));
        let output = command(&folder, &["cast", "look around", "--json"]).output().expect("the binary runs");
        assert_envelope(&envelope(&output), codes::CONFIG_INVALID.any());
    }
}

#[test]
fn a_project_settles_its_crystal_and_its_store_over_the_users() {
    let folder = Folder::new();
    settled(&folder, "crystal = \"ollama/of-the-user\"\nstore = \"jsonl:of-the-user\"\n");
    assert_eq!(crystal(&folder, &[("ANTHROPIC_API_KEY", KEY)]), "ollama/of-the-user");
    folder.write("cantrip.toml", "crystal = \"scripted/said.yaml\"\nstore = \"sqlite:woven/here.db\"\n");
    folder.write("said.yaml", "responses:\n  - code: done('said')\n");
    assert_eq!(crystal(&folder, &[]), "scripted/said.yaml");
    let output = command(&folder, &["cast", "look around", "--quiet"]).env_remove("CANTRIP_STORE").output();
    assert_eq!(stdout(&output.expect("the binary runs")), "said\n");
    assert!(folder.path().join("woven/here.db").exists());
    let found = command(&folder, &["loom", "ls", "--json"]).env_remove("CANTRIP_STORE").output();
    assert_envelope(&envelope(&found.expect("the binary runs")), codes::READ.any());
}

#[test]
fn a_configuration_that_cannot_be_is_refused_by_its_file_and_key() {
    let folder = Folder::new();
    let refused = |code| {
        let output = command(&folder, &["cast", "look around", "--json"]).output().expect("the binary runs");
        let envelope = envelope(&output);
        assert_envelope(&envelope, code);
        envelope["message"].as_str().expect("a text").to_owned()
    };
    folder.write("cantrip.toml", "cristal = \"ollama/m\"\n");
    let told = refused(codes::CONFIG_INVALID.any());
    assert!(told.contains("cantrip.toml") && told.contains("did you mean crystal?"), "{told}");
    folder.write("cantrip.toml", "[providers.anthropic]\nbase_url = \"https://elsewhere.example\"\n");
    let told = refused(codes::CONFIG_INVALID.any());
    assert!(told.contains("providers.anthropic.base_url") && told.contains("config.toml"), "{told}");
    folder.write("cantrip.toml", "crystal = \n");
    let told = refused(codes::UNPARSABLE.any());
    assert!(told.contains("cantrip.toml") && told.contains("line 1"), "{told}");
}

#[test]
fn a_gateway_is_settled_by_the_user_or_named_in_a_spell() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    let gateway = Provider::serving(programs("openai"));
    settled(&folder, &format!("crystal = \"openai/m\"\n[providers.openai]\nbase_url = \"{}/v1\"\n", gateway.address));
    let output = command(&folder, &["cast", "look around", "--quiet"]).env("OPENAI_API_KEY", KEY).output();
    assert_eq!(stdout(&output.expect("the binary runs")), "seen\n");
    assert_eq!(gateway.asked().len(), 2);

    let gateway = Provider::serving(programs("anthropic"));
    let spell = format!(
        "name = \"look\"\nmedium = \"javascript\"\n[crystal]\nmodel = \"anthropic/m\"\nbase_url = \"{}\"\n\
         [gates.read]\nroot = \".\"\n",
        gateway.address
    );
    folder.write("look.toml", &spell);
    // Anybody may have written a spell, so its address gets no key before the user has confirmed it.
    let cast = || command(&folder, &["cast", "look.toml", "look", "--quiet"]).env("ANTHROPIC_API_KEY", KEY).output();
    let output = cast().expect("the binary runs");
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let confirm = format!("cantrip confirm anthropic {}", gateway.address);
    assert!(stderr(&output).contains(&confirm), "{output:?}");
    assert!(gateway.asked().is_empty(), "the key went out");
    assert!(folder.pasted(&confirm).status.success());
    let output = cast();
    assert_eq!(stdout(&output.expect("the binary runs")), "seen\n");
    assert_eq!(gateway.asked().len(), 2);
    for (base, says) in [("ftp://a.example", "begins with https://"), ("https://me:pw@a.example", "a key does not")] {
        folder.write("bad.toml", &format!("[crystal]\nmodel = \"anthropic/m\"\nbase_url = \"{base}\"\n"));
        let told = envelope(&command(&folder, &["cast", "bad.toml", "x", "--json"]).output().expect("the binary runs"));
        assert_envelope(&told, codes::CONFIG_INVALID.any());
        assert!(told["message"].as_str().is_some_and(|message| message.contains(says)), "{told}");
    }
}

#[test]
fn the_built_in_spell_works_from_the_root_of_the_repository() {
    let folder = Folder::new();
    fs::create_dir_all(folder.path().join("deep/inside")).expect("folders");
    fs::create_dir(folder.path().join(".git")).expect("a folder");
    folder.write("notes.txt", "from the root");
    folder.write("look.yaml", "responses:\n  - code: done(read('notes.txt'))\n");
    let mut command = command(&folder, &["cast", "look", "--crystal", "scripted/look.yaml", "--quiet"]);
    let output = command.current_dir(folder.path().join("deep/inside")).output().expect("the binary runs");
    assert_eq!(stdout(&output), "from the root\n", "{output:?}");
}

#[test]
fn shapes_and_completions_are_printed() {
    let folder = Folder::new();
    let spell: Value = serde_json::from_slice(&folder.run(&["schema", "spell"]).stdout).expect("JSON");
    assert_eq!(spell, cantrip_spell::schema());
    let told = folder.envelope(&["schema", "config"], codes::OK.any());
    assert!(told["data"]["schema"]["properties"]["crystal"].is_object(), "{told}");
    folder.envelope(&["schema", "spell", "--markdown"], codes::CONFIG_INVALID.any());
    for shell in ["bash", "zsh", "fish"] {
        let output = folder.run(&["completions", shell]);
        assert!(output.status.success() && stdout(&output).contains("conformance"), "{output:?}");
    }
    let checked = folder.pasted("source <(cantrip completions bash) && complete -p cantrip");
    assert!(checked.status.success(), "{checked:?}");
}

#[test]
fn a_spell_names_who_is_asked_where_its_crystal_stays_down() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    folder.write(
        "look.toml",
        "name = \"look\"\nmedium = \"javascript\"\n[crystal]\nmodel = \"anthropic/m\"\nfallback = [\"openai/m\"]\n\
         [retry]\nmax_retries = 0\n[gates.read]\nroot = \".\"\n",
    );
    let busy = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}).to_string();
    let down = Provider::serving(vec![(503, vec![busy.clone()]), (503, vec![busy])]);
    let other = Provider::serving(programs("openai"));
    let mut command = command(&folder, &["cast", "look.toml", "look", "--quiet"]);
    command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", &down.address);
    command.env("OPENAI_API_KEY", KEY).env("OPENAI_BASE_URL", format!("{}/v1", other.address));
    let output = command.output().expect("the binary runs");
    assert_eq!(stdout(&output), "seen\n", "{output:?}");
    assert!(!down.asked().is_empty() && other.asked().len() == 2);
    let turns = folder.seen(&["thread"])["turns"].clone();
    assert_eq!(turns.as_array().map(Vec::len), Some(2), "one turn each, however many were asked: {turns}");
    folder.write("bad.toml", "[crystal]\nmodel = \"ollama/m\"\nfallback = [\"nobody/m\"]\n");
    let told = folder.envelope(&["cast", "bad.toml", "x"], codes::CONFIG_INVALID.any());
    assert!(told["message"].as_str().is_some_and(|message| message.contains("nobody")), "{told}");
}

/// The folder has a copy of the binary and a script, the environment has nothing, and no file of the sources is near.
#[test]
fn the_binary_alone_in_an_empty_folder_predicts_and_explains_policies_and_codes() {
    let folder = Folder::new();
    let binary = folder.path().join("cantrip");
    fs::copy(env!("CARGO_BIN_EXE_cantrip"), &binary).expect("the binary can be copied");
    let answer = json!({"answer": {"label": "complaint", "confidence": 0.97}});
    let response = json!({"tool_calls": [{"id": "c1", "gate": "done", "args": answer}]});
    folder.write("model.yaml", &json!({"responses": [response]}).to_string());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(arguments).arg("--json").current_dir(folder.path()).env_clear().env("HOME", folder.path());
        envelope(&command.stdin(Stdio::null()).output().expect("the binary runs"))
    };
    let store = ["--store", "sqlite:kept.db"];
    let input = ["--field", "text=The parcel never came.", "--field", "labels=[\"praise\",\"complaint\"]"];
    let predicted = run(&[&["predict", "Classify", "--crystal", "scripted/model.yaml"], &input[..], &store].concat());
    assert_envelope(&predicted, codes::PREDICTED.any());
    assert_eq!(predicted["data"]["output"]["label"], "complaint", "{predicted}");
    let run_id = predicted["data"]["run_id"].as_str().unwrap_or_else(|| panic!("{predicted}")).to_owned();
    let replayed = run(&[&["policy", "replay", &run_id], &store[..]].concat());
    assert_envelope(&replayed, codes::VERIFIED.any());
    let listed = run(&["codes"]);
    assert_envelope(&listed, codes::OK.any());
    assert!(listed["data"]["codes"].as_array().is_some_and(|all| all.len() > 80), "{listed}");
}
