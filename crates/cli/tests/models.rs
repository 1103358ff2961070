//! `cantrip models`: the known models, with the user's own table over them.

use crate::support;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::{Folder, stdout};

const KEYS: [&str; 5] =
    ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"];

/// Runs the command with only these variables set.
fn listed(folder: &Folder, arguments: &[&str], set: &[(&str, &str)]) -> std::process::Output {
    let mut command = folder.command(&[&["models"], arguments].concat());
    for name in KEYS.iter().chain(&["CANTRIP_MODELS"]) {
        command.env_remove(name);
    }
    command.envs(set.iter().copied()).output().expect("the binary runs")
}

fn rows(folder: &Folder, set: &[(&str, &str)]) -> Vec<Value> {
    let output = listed(folder, &["--json"], set);
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::OK.any());
    envelope["data"]["models"].as_array().expect("rows").clone()
}

fn row<'a>(rows: &'a [Value], crystal: &str) -> &'a Value {
    rows.iter().find(|row| row["crystal"] == crystal).unwrap_or_else(|| panic!("{crystal} is not listed"))
}

#[test]
fn models_tell_windows_prices_defaults_and_which_have_a_key() {
    let folder = Folder::new();
    let all = rows(&folder, &[("OPENAI_API_KEY", "sk-planted-0123456789abcdef0123456789")]);
    let sonnet = row(&all, "anthropic/claude-sonnet-4-5");
    assert_eq!((&sonnet["window"], &sonnet["output_tokens_max"]), (&json!(200_000), &json!(64_000)));
    assert_eq!(sonnet["price"]["input"], json!({"micros": 3_000_000, "currency": "USD"}));
    assert_eq!(sonnet["price"]["cached"], json!({"micros": 300_000, "currency": "USD"}));
    assert_eq!(sonnet["ready"], false);
    assert_eq!(row(&all, "openai/gpt-5")["ready"], true);
    assert_eq!(row(&all, "ollama/qwen3")["ready"], true, "it needs none");
    assert_eq!(row(&all, "ollama/qwen3")["price"], "free");
    for provider in ["anthropic", "openai", "gemini", "openrouter", "ollama"] {
        assert_eq!(all.iter().filter(|row| row["provider"] == provider && row["default"] == true).count(), 1);
    }
    let output = listed(&folder, &["claude"], &[]);
    let shown = stdout(&output);
    assert!(shown.contains("anthropic/claude-sonnet-4-5") && !shown.contains("openai/gpt-5"), "{shown}");
    assert!(shown.contains("no key: set ANTHROPIC_API_KEY"), "{shown}");
    assert!(shown.lines().any(|line| line.starts_with("* anthropic/")), "{shown}");
}

#[test]
fn a_table_of_ones_own_wins_and_one_that_makes_no_sense_is_told() {
    let folder = Folder::new();
    let mine = "[[model]]\ncrystal = 'anthropic/claude-sonnet-4-5'\nprice = { input = '1 EUR', output = '2 EUR' }\n\
                [[model]]\ncrystal = 'openrouter/some/model'\nwindow = 7_000\n";
    folder.write("mine.toml", mine);
    for place in ["variable", "configuration"] {
        let set = match place {
            "variable" => vec![("CANTRIP_MODELS", "mine.toml")],
            _ => {
                std::fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
                folder.write(".config/cantrip/models.toml", mine);
                Vec::new()
            }
        };
        let all = rows(&folder, &set);
        let sonnet = row(&all, "anthropic/claude-sonnet-4-5");
        assert_eq!(sonnet["price"]["output"], json!({"micros": 2_000_000, "currency": "EUR"}), "{place}");
        assert_eq!(sonnet["window"], 200_000, "{place}: what it does not say stays");
        let new = row(&all, "openrouter/some/model");
        assert_eq!((&new["window"], &new["price"]), (&json!(7_000), &Value::Null), "{place}");
    }
    folder.write("broken.toml", "[[model]]\ncrystal = 'x/y'\nwindow = 'wide'\n");
    let output = listed(&folder, &["--json"], &[("CANTRIP_MODELS", "broken.toml")]);
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::CONFIG_INVALID.any());
    assert!(envelope["message"].as_str().expect("words").contains("line 3"), "{envelope}");
    let missing = listed(&folder, &["--json"], &[("CANTRIP_MODELS", "nowhere.toml")]);
    let envelope: Value = serde_json::from_slice(&missing.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::CONFIG_INVALID.any());
}
