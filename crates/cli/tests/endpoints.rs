//! Named endpoints through the binary: servers that require a key, on each wire, everywhere a crystal can be named.

use std::fs;
use std::process::{Command, Output, Stdio};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

use crate::providers::{FAMILIES, said};
use crate::signatures::SHOUT;
use crate::support::keyed::{Asked, Keyed, Says};
use crate::support::{Folder, stderr, stdout};

const KEY: &str = "key-of-mine-0123456789abcdef";

/// Keys of other servers, none of which may be sent to the endpoint.
const OTHERS: [(&str, &str); 4] = [
    ("ANTHROPIC_API_KEY", "sk-ant-planted-0123456789abcdef"),
    ("OPENAI_API_KEY", "sk-planted-0123456789abcdef"),
    ("GROQ_API_KEY", "gsk-planted-0123456789abcdef"),
    ("VLLM_API_KEY", "vllm-planted-0123456789abcdef"),
];

/// Each wire: its name, its provider family and the path of its requests.
const WIRES: [(&str, &str, &str); 3] = [
    ("chat", "openrouter", "POST /v1/chat/completions"),
    ("responses", "openai", "POST /v1/responses"),
    ("messages", "anthropic", "POST /v1/messages"),
];

fn settle(folder: &Folder, text: &str) {
    fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    folder.write(".config/cantrip/config.toml", text);
}

/// The binary without any variable about models.
fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = folder.command(arguments);
    for (_, key, base, _) in FAMILIES {
        key.into_iter().chain([base, "GOOGLE_API_KEY"]).for_each(|name| {
            command.env_remove(name);
        });
    }
    for name in OTHERS.map(|(name, _)| name).into_iter().chain(["MINE_KEY", "LLAMA_API_KEY", "LM_API_TOKEN"]) {
        command.env_remove(name);
    }
    command.env("OLLAMA_HOST", "http://127.0.0.1:1").stdin(Stdio::null());
    command
}

fn run(folder: &Folder, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    command(folder, arguments).envs(variables.iter().copied()).output().expect("the binary runs")
}

#[track_caller]
fn envelope(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// A server that asks for a file, then finishes, and lists one model.
fn serving(key: Option<&'static str>, family: &'static str) -> Keyed {
    Keyed::start(key, move |asked, before| answer(asked, before, family))
}

fn answer(asked: &Asked, before: usize, family: &str) -> Says {
    let programs = ["console.log(read('notes.txt'))", "done('seen')"];
    match asked.line.as_str() {
        "GET /v1/models" => {
            Says::Json(200, json!({"object": "list", "data": [{"id": "own-model", "object": "model"}]}))
        }
        line if line.starts_with("POST /v1/") => Says::Events(said(family, programs[before % 2])),
        _ => Says::Json(404, json!({"error": {"message": "there is nothing here"}})),
    }
}

fn mine(server: &Keyed, wire: &str) -> String {
    format!("[endpoints.mine]\nurl = \"{}/v1\"\nkey_env = \"MINE_KEY\"\nwire = \"{wire}\"\n", server.origin())
}

#[test]
fn an_endpoint_is_asked_in_its_wire_with_its_key_and_no_other() {
    for (wire, family, line) in WIRES {
        let folder = Folder::new();
        folder.write("notes.txt", "what the file says");
        let server = serving(Some(KEY), family);
        settle(&folder, &mine(&server, wire));
        let variables = [&OTHERS[..], &[("MINE_KEY", KEY)]].concat();
        let output = run(&folder, &["cast", "look around", "--crystal", "mine/org/m", "--quiet"], &variables);
        assert_eq!((stdout(&output), output.status.code()), ("seen\n", Some(0)), "{wire}: {output:?}");
        let posted = server.posted();
        assert_eq!(posted.len(), 2, "{wire}");
        for asked in &posted {
            assert_eq!(asked.line, line);
            assert_eq!(asked.header("authorization"), Some(&*format!("Bearer {KEY}")), "{wire}");
            assert_eq!(asked.body["model"], "org/m", "{wire}");
            assert!(OTHERS.iter().all(|(_, key)| !asked.text().contains(key)), "{wire}: {}", asked.text());
        }
        assert!(posted[1].text().contains("what the file says"), "{wire}: {}", posted[1].text());
        let kept = folder.run(&["loom", "export", "--format", "journal", "--no-redact"]);
        assert!(stdout(&kept).contains("mine/org/m") && !stdout(&kept).contains(KEY), "{wire}");
    }
}

#[test]
fn an_endpoint_without_its_key_is_not_asked_and_a_wrong_key_is_told_and_hidden() {
    for (wire, family, _) in WIRES {
        let folder = Folder::new();
        let server = serving(Some(KEY), family);
        settle(&folder, &mine(&server, wire));
        let arguments = ["cast", "look around", "--crystal", "mine/m", "--json"];
        let output = run(&folder, &arguments, &OTHERS);
        let told = envelope(&output);
        assert_envelope(&told, codes::CREDENTIALS_MISSING.any());
        assert_eq!(told["message"], "no key for mine: set MINE_KEY", "{wire}");
        assert_eq!((output.status.code(), server.asked().len()), (Some(2), 0), "{wire}");
        let wrong = "key-of-nobody-0123456789abcdef";
        let output = run(&folder, &arguments, &[("MINE_KEY", wrong)]);
        assert_envelope(&envelope(&output), codes::AUTH_FAILED.any());
        assert!(!format!("{output:?}").contains(wrong), "{wire}: {output:?}");
    }
}

#[test]
fn an_endpoint_is_named_wherever_a_crystal_is() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    let server = serving(Some(KEY), "openrouter");
    let down = Keyed::start(None, |_, _| Says::Json(503, json!({"error": {"message": "busy"}})));
    let config = format!("{}[endpoints.away]\nurl = \"{}/v1\"\n", mine(&server, "chat"), down.origin());
    settle(&folder, &config);
    let key = [("MINE_KEY", KEY)];
    let seen = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = run(&folder, arguments, &[&key[..], variables].concat());
        assert_eq!(stdout(&output), "seen\n", "{arguments:?}: {output:?}");
    };
    seen(&["cast", "look around", "--quiet"], &[("CANTRIP_CRYSTAL", "mine/m")]);
    let spell = |crystal: &str| {
        format!(
            "name = \"look\"\nmedium = \"javascript\"\n{crystal}[retry]\nmax_retries = 0\n[gates.read]\nroot = \".\"\n"
        )
    };
    folder.write("look.toml", &spell("crystal = \"mine/m\"\n"));
    seen(&["cast", "look.toml", "look", "--quiet"], &[]);
    folder.write("falls.toml", &spell("[crystal]\nmodel = \"away/m\"\nfallback = [\"mine/m\"]\n"));
    seen(&["cast", "falls.toml", "look", "--quiet"], &[]);
    assert!(!down.posted().is_empty(), "the one that is down was asked first");
    assert!(down.asked().iter().all(|asked| asked.header("authorization").is_none()), "it has no key");
    settle(&folder, &format!("crystal = \"mine/m\"\n{config}"));
    seen(&["cast", "look around", "--quiet"], &[]);
    // A child uses the endpoint by the name that the gate allows.
    folder.write(
        "asks.toml",
        "name = \"asks\"\ncrystal = \"scripted/asks.yaml\"\nmedium = \"javascript\"\n[gates.read]\nroot = \".\"\n\
         [gates.call_agent]\ncrystals = [\"mine/child\"]\n[wards]\nmax_turns = 5\nmax_depth = 1\n",
    );
    folder.write("asks.yaml", "responses:\n  - code: \"done(call_agent({intent: 'look', crystal: 'mine/child'}))\"\n");
    seen(&["cast", "asks.toml", "look", "--quiet"], &[]);
    assert!(server.posted().iter().any(|asked| asked.body["model"] == "child"));
    // An unknown name gets the list of known ones.
    let output = run(&folder, &["cast", "look around", "--crystal", "mien/m", "--json"], &key);
    let told = envelope(&output);
    assert_envelope(&told, codes::CONFIG_INVALID.any());
    let message = told["message"].as_str().expect("a text");
    assert!(message.contains("did you mean \"mine\"?") && message.contains("[endpoints.mien]"), "{message}");
}

#[test]
fn a_predict_asks_an_endpoint() {
    let folder = Folder::new();
    let server = Keyed::start(Some(KEY), |_, _| {
        let call = json!({"index": 0, "id": "call_1", "function": {"name": "done",
            "arguments": json!({"answer": {"text": "HEY"}}).to_string()}});
        let said = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
        let usage = json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}});
        Says::Events(vec![said.to_string(), usage.to_string(), "[DONE]".to_owned()])
    });
    settle(&folder, &format!("{}window = 32768\nprice = \"free\"\n", mine(&server, "chat")));
    fs::create_dir_all(folder.path().join("signatures")).expect("a folder");
    folder.write("signatures/shout.toml", SHOUT);
    let set = [("MINE_KEY", KEY), ("CANTRIP_STORE", "sqlite:kept.db")];
    let asking = ["predict", "Shout", "--field", "text=hey", "--crystal", "mine/judge", "--json"];
    let output = run(&folder, &asking, &set);
    let told = envelope(&output);
    assert_eq!((&told["status"], output.status.code()), (&json!("success"), Some(0)), "{told}");
    let asked = server.posted();
    assert_eq!(asked.last().map(|asked| asked.body["model"].clone()), Some(json!("judge")), "{told}");
}

#[test]
fn what_a_configuration_says_wrong_of_an_endpoint_is_refused_with_its_line() {
    let folder = Folder::new();
    for (text, key, line, says) in [
        (
            "[endpoints.mine]\nurl = \"https://a.example/v1\"\nwire = \"grpc\"\n",
            "endpoints.mine.wire",
            3,
            "\"responses\"",
        ),
        ("\n[endpoints.mine]\nurl = \"nowhere\"\n", "endpoints.mine.url", 3, "https://host.example/v1"),
        ("[endpoints.openai]\nurl = \"https://a.example\"\n", "endpoints.openai", 1, "choose another name"),
        ("[endpoints.groq]\nkey_env = \"sk-12 34\"\n", "endpoints.groq.key_env", 2, "never the key itself"),
        ("store = \"memory:\"\n\n[endpoints.mine]\nwire = \"chat\"\n", "endpoints.mine", 3, "write url ="),
    ] {
        settle(&folder, text);
        let output = run(&folder, &["cast", "look around", "--crystal", "ollama/m", "--json"], &[]);
        let told = envelope(&output);
        assert_envelope(&told, codes::CONFIG_INVALID.any());
        let message = told["message"].as_str().expect("a text");
        let place = format!("config.toml: {key}: line {line}: ");
        assert!(message.contains(&place) && message.contains(says), "{message}");
        assert!(!message.contains("sk-12"), "{message}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn a_project_cannot_lead_a_key_to_an_endpoint() {
    let folder = Folder::new();
    let server = serving(None, "openrouter");
    folder.write("cantrip.toml", &format!("[endpoints.groq]\nurl = \"{}/v1\"\n", server.origin()));
    let output = run(&folder, &["cast", "look around", "--crystal", "groq/m", "--json"], &OTHERS);
    let told = envelope(&output);
    assert_envelope(&told, codes::CONFIG_INVALID.any());
    let message = told["message"].as_str().expect("a text");
    assert!(message.contains("cantrip.toml: endpoints: line 1") && message.contains("config.toml"), "{message}");
    fs::remove_file(folder.path().join("cantrip.toml")).expect("removed");
    folder.write(
        "look.toml",
        &format!("[crystal]\nmodel = \"groq/m\"\nbase_url = \"{}/v1\"\n[gates.read]\nroot = \".\"\n", server.origin()),
    );
    let output = run(&folder, &["cast", "look.toml", "look", "--json"], &OTHERS);
    assert_envelope(&envelope(&output), codes::CONFIG_INVALID.any());
    assert_eq!(server.asked().len(), 0, "nothing was sent");
}

#[test]
fn a_limit_on_money_holds_only_where_the_configuration_says_what_an_endpoint_costs() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    folder.write(
        "look.toml",
        "name = \"look\"\ncrystal = \"mine/m\"\nmedium = \"javascript\"\n[gates.read]\nroot = \".\"\n\
         [wards]\nmax_turns = 5\nmax_cost = \"1 USD\"\n",
    );
    let server = serving(Some(KEY), "openrouter");
    let cast = |price: &str| {
        settle(&folder, &format!("{}{price}", mine(&server, "chat")));
        run(&folder, &["cast", "look.toml", "look"], &[("MINE_KEY", KEY)])
    };
    let output = cast("");
    assert_eq!((output.status.code(), server.posted().len()), (Some(2), 0), "{output:?}");
    assert!(stderr(&output).contains("max_cost"), "{output:?}");
    let output = cast("window = 32768\nprice = { input = \"3 USD\", output = \"15 USD\" }\n");
    assert!(stderr(&output).contains("20 tokens in, 10 out · 0.00021 USD"), "{output:?}");
    let output = cast("window = 32768\nprice = \"free\"\n");
    assert_eq!((stdout(&output), output.status.code()), ("seen\n", Some(0)), "{output:?}");
}

/// Returns the crystal that is used if none is named.
fn found(folder: &Folder, variables: &[(&str, &str)]) -> String {
    let told = envelope(&run(folder, &["cast", "look around", "--dry-run", "--json"], variables));
    assert_envelope(&told, codes::READ.any());
    told["data"]["spell"]["crystal"].as_str().unwrap_or_else(|| panic!("{told}")).to_owned()
}

#[test]
fn where_nobody_names_a_crystal_the_configured_endpoints_are_looked_at() {
    let folder = Folder::new();
    let server = serving(Some(KEY), "openrouter");
    let nobody = "local = []\n";
    settle(&folder, &format!("{nobody}{}models = [\"first\", \"second\"]\n", mine(&server, "chat")));
    assert_eq!(found(&folder, &[("MINE_KEY", KEY)]), "mine/first");
    assert_eq!(server.asked().len(), 0, "what is listed need not be asked");
    // Without a list, the server is asked for its models, if there is a key.
    settle(&folder, &format!("{nobody}{}", mine(&server, "chat")));
    assert_eq!(found(&folder, &[("MINE_KEY", KEY)]), "mine/own-model");
    // The user may change the server of a preset.
    settle(&folder, &format!("{nobody}[endpoints.vllm]\nurl = \"{}/v1\"\n", server.origin()));
    assert_eq!(found(&folder, &[("VLLM_API_KEY", KEY)]), "vllm/own-model");
    let told = envelope(&run(&folder, &["cast", "look", "--json"], &[("GROQ_API_KEY", KEY)]));
    assert_envelope(&told, codes::CONFIG_INVALID.any());
    let choices = told["data"]["choices"].as_array().expect("choices").clone();
    assert!(choices.iter().any(|choice| choice["do"] == "--crystal groq/<model>"), "{told}");
}

#[test]
fn models_list_the_endpoints_with_what_is_known_of_them() {
    let folder = Folder::new();
    settle(
        &folder,
        "[endpoints.mine]\nurl = \"https://models.example/v1\"\nkey_env = \"MINE_KEY\"\nmodels = [\"small\"]\n\
         window = 9000\nprice = \"free\"\n",
    );
    let told = envelope(&run(&folder, &["models", "--json"], &[("GROQ_API_KEY", KEY)]));
    assert_envelope(&told, codes::OK.any());
    let rows = told["data"]["models"].as_array().expect("rows");
    let small = rows.iter().find(|row| row["crystal"] == "mine/small").unwrap_or_else(|| panic!("{told}"));
    assert_eq!((&small["window"], &small["price"], &small["ready"]), (&json!(9000), &json!("free"), &json!(false)));
    let endpoints = told["data"]["endpoints"].as_array().expect("endpoints");
    let ready = |name: &str| endpoints.iter().find(|known| known["name"] == name).map(|known| known["ready"].clone());
    assert_eq!(
        (ready("groq"), ready("deepseek"), ready("vllm")),
        (Some(json!(true)), Some(json!(false)), Some(json!(true)))
    );
    let output = run(&folder, &["models"], &[("GROQ_API_KEY", KEY)]);
    let shown = stdout(&output);
    assert!(shown.contains("groq key found; name any of its models: groq/<model>"), "{shown}");
    assert!(shown.contains("mine no key: set MINE_KEY") && shown.contains("mine/small"), "{shown}");
    assert!(!shown.contains(KEY), "{shown}");
}

#[test]
fn a_chat_that_refuses_fields_it_does_not_know_is_sent_none_of_openais_own() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    // As Mistral does: unknown fields are refused.
    let server = Keyed::start(Some(KEY), |asked, before| {
        let known =
            ["model", "messages", "tools", "tool_choice", "stream", "max_tokens", "temperature", "top_p", "stop"];
        let fields = asked.body.as_object().map(|body| body.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
        match fields.iter().find(|field| !known.contains(&field.as_str())) {
            Some(field) => {
                let detail = json!([{"type": "extra_forbidden", "loc": ["body", field]}]);
                Says::Json(422, json!({"object": "error", "message": {"detail": detail}}))
            }
            None => answer(asked, before, "openrouter"),
        }
    });
    settle(&folder, &format!("[endpoints.mistral]\nurl = \"{}/v1\"\nwindow = 32768\n", server.origin()));
    folder.write(
        "look.toml",
        "name = \"look\"\ncrystal = \"mistral/mistral-large-latest\"\nmedium = \"javascript\"\n[call]\nseed = 3\n\
         temperature = 0.5\n[gates.read]\nroot = \".\"\n",
    );
    let output = run(&folder, &["cast", "look.toml", "look", "--quiet"], &[("MISTRAL_API_KEY", KEY)]);
    assert_eq!(stdout(&output), "seen\n", "{output:?}");
}
