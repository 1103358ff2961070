//! The report of `doctor` about model servers and keys: with a server, with a key for one provider, with neither.

use std::process::{Command, Output, Stdio};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

use crate::providers::FAMILIES;
use crate::support::keyed::{Keyed, Says};
use crate::support::llama::Llama;
use crate::support::{Folder, stdout};

const KEY: &str = "key-of-nobody-0123456789abcdef";

/// Runs the binary with only these variables for models, and without a server at a default address.
fn doctor(folder: &Folder, config: &str, further: &[&str], variables: &[(&str, &str)]) -> Output {
    std::fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    // The test must not reach any server at the default addresses of this machine.
    let nowhere: String = ["lmstudio", "llamacpp", "vllm", "litellm"]
        .into_iter()
        .filter(|name| !config.contains(&format!("[endpoints.{name}]")))
        .map(|name| format!("[endpoints.{name}]\nurl = \"http://127.0.0.1:1/v1\"\n"))
        .collect();
    folder.write(".config/cantrip/config.toml", &format!("local = []\n{nowhere}{config}"));
    let mut command: Command = folder.command(&[&["doctor"], further].concat());
    for (_, key, base, _) in FAMILIES {
        key.into_iter().chain([base, "GOOGLE_API_KEY"]).for_each(|name| {
            command.env_remove(name);
        });
    }
    let endpoints =
        ["GROQ", "DEEPSEEK", "TOGETHER", "MISTRAL", "FIREWORKS", "XAI", "CEREBRAS", "LLAMA", "VLLM", "LITELLM"];
    endpoints.iter().for_each(|name| {
        command.env_remove(format!("{name}_API_KEY"));
    });
    command.env_remove("LM_API_TOKEN").env("OLLAMA_HOST", "http://127.0.0.1:1").stdin(Stdio::null());
    command.envs(variables.iter().copied()).output().expect("the binary runs")
}

fn findings(folder: &Folder, config: &str, variables: &[(&str, &str)]) -> Vec<Value> {
    let output = doctor(folder, config, &["--json"], variables);
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    assert_envelope(&envelope, codes::OK.any());
    envelope["data"]["findings"].as_array().expect("findings").clone()
}

fn of<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("{check}: {findings:?}"))
}

#[test]
fn with_neither_a_server_nor_a_key_doctor_names_each_with_what_to_set() {
    let folder = Folder::new();
    let found = findings(&folder, "", &[]);
    for (name, variable) in
        [("anthropic", "ANTHROPIC_API_KEY"), ("groq", "GROQ_API_KEY"), ("mistral", "MISTRAL_API_KEY")]
    {
        let finding = of(&found, name);
        assert_eq!(
            (&finding["verdict"], &finding["server"]["key_found_in"]),
            (&json!("absent"), &Value::Null),
            "{finding}"
        );
        assert_eq!(finding["server"]["answers"], Value::Null, "nothing was sent: {finding}");
        assert!(finding["said"].as_str().is_some_and(|said| said.contains(&format!("set {variable}"))), "{finding}");
    }
    assert_eq!(of(&found, "ollama")["server"]["answers"], false);
    let crystal = of(&found, "crystal");
    assert_eq!(crystal["verdict"], "note", "{crystal}");
    assert!(crystal["hint"].as_str().is_some_and(|hint| hint.contains("--crystal")), "{crystal}");
    let output = doctor(&folder, "", &[], &[]);
    let shown = stdout(&output);
    assert!(shown.contains("no key: set ANTHROPIC_API_KEY; https://api.anthropic.com was not contacted"), "{shown}");
    assert!(shown.contains("no server answers at http://127.0.0.1:1"), "{shown}");
    assert!(shown.contains("a cast without --crystal finds no model"), "{shown}");
    assert!(shown.contains("name a model with --crystal PROVIDER/MODEL"), "{shown}");
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn with_a_key_for_one_provider_doctor_says_whether_it_is_taken_and_never_shows_it() {
    let folder = Folder::new();
    let provider = Keyed::start(Some(KEY), |asked, _| match asked.line.as_str() {
        "GET /v1/models" => {
            let models: Vec<Value> = ["a", "b", "c", "d"].map(|id| json!({"id": id, "object": "model"})).to_vec();
            Says::Json(200, json!({"object": "list", "data": models}))
        }
        _ => Says::Json(404, json!({"error": {"message": "nothing here"}})),
    });
    let address = format!("{}/v1", provider.origin());
    let set = |key| [("OPENAI_API_KEY", key), ("OPENAI_BASE_URL", address.as_str())];
    let found = findings(&folder, "", &set(KEY));
    let openai = of(&found, "openai");
    assert_eq!(openai["verdict"], "good", "{openai}");
    assert_eq!(openai["server"]["key_found_in"], "OPENAI_API_KEY");
    let said = openai["said"].as_str().expect("a text");
    assert!(said.contains("key in OPENAI_API_KEY") && said.contains("4 models: a, b, c and 1 more"), "{said}");
    assert_eq!(of(&found, "anthropic")["verdict"], "absent");
    let crystal = of(&found, "crystal")["said"].as_str().expect("a text").to_owned();
    assert!(crystal.contains("uses openai/"), "{crystal}");
    let wrong = "key-that-is-wrong-0123456789";
    let refused = findings(&folder, "", &set(wrong));
    let openai = of(&refused, "openai");
    assert_eq!((&openai["verdict"], &openai["hint"]), (&json!("note"), &json!("put another key into OPENAI_API_KEY")));
    for shown in [format!("{found:?}"), format!("{refused:?}")] {
        assert!(!shown.contains(KEY) && !shown.contains(wrong), "{shown}");
    }
    // A key in a `.env` file is found too, and its source is reported.
    folder.write(".env", &format!("OPENAI_API_KEY={KEY}\n"));
    let beside = findings(&folder, "", &[("OPENAI_BASE_URL", &address)]);
    assert_eq!(of(&beside, "openai")["server"]["key_found_in"], "OPENAI_API_KEY of .env");
}

#[test]
fn with_a_llama_cpp_server_doctor_names_its_model_and_how_to_cast_it() {
    let Some(llama) = Llama::start(2_048, Some("sesame")) else { return };
    let folder = Folder::new();
    let config = format!("[endpoints.llamacpp]\nurl = \"{}/v1\"\n", llama.origin);
    let found = findings(&folder, &config, &[("LLAMA_API_KEY", "sesame")]);
    let finding = of(&found, "llamacpp");
    assert_eq!((&finding["verdict"], &finding["server"]["models"]), (&json!("good"), &json!(["smol"])), "{finding}");
    assert_eq!(finding["hint"], "--crystal llamacpp/smol");
    assert_eq!(of(&found, "crystal")["said"], "a cast without --crystal uses llamacpp/smol");
    let locked = findings(&folder, &config, &[]);
    let finding = of(&locked, "llamacpp");
    assert_eq!(
        (&finding["verdict"], &finding["hint"]),
        (&json!("note"), &json!("export LLAMA_API_KEY=...")),
        "{finding}"
    );
    assert!(finding["said"].as_str().is_some_and(|said| said.contains("needs one (401)")), "{finding}");
}
