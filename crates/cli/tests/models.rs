//! `cantrip models`: the known models, with the user's own table over them.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support;

use cantrip_canon::bytes_hash;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::model::Model;
use support::{Folder, enveloped, stdout};

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

#[test]
fn long_requests_and_promotions_are_shown_with_their_rates_and_a_promotion_ends() {
    let folder = Folder::new();
    let shown = listed(&folder, &["gpt-6-astra"], &[]);
    let shown = stdout(&shown).lines().find(|line| line.contains("over 272000 tokens")).expect("a line").to_owned();
    assert_eq!(shown.split_whitespace().skip(3).collect::<Vec<_>>(), ["20.00", "75.00", "2.00", "25.00"]);
    let model = Model::saying("so");
    folder.write("teller.toml", &format!("name = \"teller\"\ncrystal = \"{}\"\n", model.crystal()));
    // A token in and a token out.
    for (until, micros) in [("9999-12-30", 2), ("2020-01-01", 200)] {
        folder.write(
            "mine.toml",
            &format!(
                "[[model]]\ncrystal = 'local/test*'\nprice = {{ input = '1 USD', output = '1 USD', until = '{until}', \
                 then = {{ input = '100 USD', output = '100 USD' }} }}\n\
                 [[model]]\ncrystal = 'mine/m'\nprice = {{ input = '1 USD', output = '1 USD', until = '{until}', \
                 then = {{ input = '7 USD', output = '8 USD' }} }}\n"
            ),
        );
        let set = [("CANTRIP_MODELS", "mine.toml")];
        let cast = folder.command(&["cast", "teller.toml", "hello", "--quiet"]).envs(set).output().expect("it runs");
        assert_eq!(stdout(&cast), "so\n", "{cast:?}");
        let run = folder.envelope(&["run", "show"], codes::READ.any());
        assert_eq!(run["data"]["value"]["costs"]["cost"]["micros"], micros, "{until}: {run}");
        let output = listed(&folder, &["mine/m"], &set);
        let is_over = micros == 200;
        assert_eq!(stdout(&output).contains("after 9999-12-30"), !is_over, "{output:?}");
        let all = rows(&folder, &set);
        let price = &row(&all, "mine/m")["price"];
        assert_eq!(price["input"]["micros"], if is_over { 7_000_000 } else { 1_000_000 }, "{price}");
        assert_eq!(price["until"], if is_over { Value::Null } else { json!(until) }, "{price}");
        assert_eq!(price["then"]["output"]["micros"].as_u64(), (!is_over).then_some(8_000_000), "{price}");
    }
}

/// Serves one text for every request, and returns its address.
fn serving(status: &'static str, text: String) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = format!("http://{}/models.toml", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0) {
                head.push(byte[0]);
            }
            let length = text.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            // The client may have disconnected.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(text.as_bytes()));
        }
    });
    address
}

#[test]
fn a_newer_table_from_a_file_or_an_address_is_taken_and_its_hash_printed() {
    let folder = Folder::new();
    let edition = |version: u32| {
        format!(
            "version = {version}\nas_of = '2031-02-03'\n[[model]]\ncrystal = 'openai/gpt-{version}'\ndefault = true\n\
             window = 9_000\nprice = {{ input = '1 USD', output = '2 USD' }}\n"
        )
    };
    folder.write("newer.toml", &edition(900));
    let output = listed(&folder, &["--update", "newer.toml"], &[]);
    let shown = stdout(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(shown.contains(&bytes_hash(edition(900).as_bytes()).to_string()), "{shown}");
    let all = rows(&folder, &[]);
    assert_eq!(row(&all, "openai/gpt-900")["default"], true);
    assert!(all.iter().all(|row| row["crystal"] != "openai/gpt-5"), "the earlier rows are gone");
    // One's own table still wins.
    folder.write("mine.toml", "[[model]]\ncrystal = 'openai/gpt-900'\nwindow = 7_000\n");
    assert_eq!(row(&rows(&folder, &[("CANTRIP_MODELS", "mine.toml")]), "openai/gpt-900")["window"], 7_000);

    let address = serving("200 OK", edition(901));
    let told = enveloped(&listed(&folder, &["--update", &address, "--json"], &[]), codes::OK.any());
    assert_eq!(told["data"]["hash"], bytes_hash(edition(901).as_bytes()).to_string(), "{told}");
    assert_eq!((&told["data"]["version"], &told["data"]["models"]), (&json!(901), &json!(1)), "{told}");

    // The same one again, an older one, one without an edition, and one that makes no sense.
    folder.write("broken.toml", "version = 902\nas_of = '2031-02-03'\n[[model]]\ncrystal = 'x/y'\nwindow = 'wide'\n");
    folder.write("plain.toml", "[[model]]\ncrystal = 'x/y'\nwindow = 9_000\n");
    for source in
        [address.as_str(), "newer.toml", "broken.toml", "plain.toml", "nowhere.toml", "http://192.0.2.1/m.toml"]
    {
        let output = listed(&folder, &["--update", source, "--json"], &[]);
        enveloped(&output, codes::CONFIG_INVALID.any());
    }
    let absent = serving("404 Not Found", String::new());
    let told = enveloped(&listed(&folder, &["--update", &absent, "--json"], &[]), codes::IO_FAILED.any());
    assert!(told["message"].as_str().is_some_and(|words| words.contains("404")), "{told}");
    assert_eq!(row(&rows(&folder, &[]), "openai/gpt-901")["window"], 9_000, "what was refused changes nothing");
}
