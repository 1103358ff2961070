//! Requests to a model as the user sets them up: proxies, images, and answers of any size.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::support::keyed::{Keyed, Says};
use crate::support::model::Model;
use crate::support::{Folder, enveloped, stdout};

const VARIABLES: [&str; 9] = [
    "ANTHROPIC_API_KEY",
    "OPENAI_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "OPENROUTER_API_KEY",
    "no_proxy",
    "NO_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
];

/// A spell whose crystal is this model.
fn with_teller(model: &Model) -> Folder {
    let folder = Folder::new();
    folder.write("teller.toml", &format!("name = \"teller\"\ncrystal = \"{}\"\n", model.crystal()));
    folder
}

#[test]
fn a_model_on_this_machine_is_never_reached_through_a_proxy() {
    let model = Model::saying("from here");
    let folder = with_teller(&model);
    let mut command = folder.command(&["cast", "teller.toml", "hello", "--quiet"]);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    // No process listens there.
    command.env("http_proxy", "http://127.0.0.1:1").env("HTTP_PROXY", "http://127.0.0.1:1");
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "from here\n"), "{output:?}");
}

#[test]
fn a_model_that_was_found_through_a_proxy_is_asked_through_it() {
    let proxy = Keyed::start(None, |asked, _| match asked.line.as_str() {
        "GET http://models.invalid/v1/models" => Says::Json(200, json!({"data": [{"id": "far"}]})),
        _ => Says::Json(400, json!({"error": {"message": "no"}})),
    });
    let folder = Folder::new();
    std::fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    folder.write(".config/cantrip/config.toml", "local = [\"http://models.invalid/v1\"]\n");
    let mut command = folder.command(&["cast", "hello", "--json"]);
    VARIABLES.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.env("http_proxy", proxy.origin()).env("HTTP_PROXY", proxy.origin());
    command.env("OLLAMA_HOST", "http://127.0.0.1:1");
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    enveloped(&output, codes::CRYSTAL_REJECTED.any());
    let lines: Vec<String> = proxy.asked().into_iter().map(|asked| asked.line).collect();
    for line in ["GET http://models.invalid/v1/models", "POST http://models.invalid/v1/chat/completions"] {
        assert!(lines.iter().any(|asked| asked == line), "{line}: {lines:?}");
    }
}

#[test]
fn images_are_given_on_the_command_line_and_a_file_that_is_none_is_refused() {
    // The answer is the image that the model was shown.
    let model = Model::start(|request| {
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let user = messages.into_iter().rfind(|message| message["role"] == "user").unwrap_or_default();
        let parts = user["content"].as_array().cloned().unwrap_or_default();
        let urls: Vec<Value> = parts.iter().filter_map(|part| part.pointer("/image_url/url").cloned()).collect();
        json!({"role": "assistant", "content": format!("{} {}", parts[0]["text"].as_str().unwrap_or_default(), json!(urls))})
    });
    let folder = with_teller(&model);
    std::fs::write(folder.path().join("a.png"), b"\x89PNG\r\n\x1a\n").expect("a file");
    std::fs::write(folder.path().join("b.bin"), b"GIF89a").expect("a file");
    let output = folder.run(&["cast", "teller.toml", "what is it?", "--image", "a.png", "--image", "b.bin", "--quiet"]);
    let shown = json!(["data:image/png;base64,iVBORw0KGgo=", "data:image/gif;base64,R0lGODlh"]);
    assert_eq!(stdout(&output), format!("what is it? {shown}\n"), "{output:?}");
    folder.write("c.png", "not an image");
    folder.envelope(&["cast", "teller.toml", "what is it?", "--image", "c.png"], codes::TARGET_UNUSABLE.any());
    folder.envelope(&["cast", "teller.toml", "what is it?", "--image", "none.png"], codes::FILE_MISSING.any());
    assert_eq!(model.asked(), 1, "what cannot be sent is not asked about");
}

#[test]
fn a_model_that_repeats_itself_is_told_what_is_missing_and_then_stopped() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&asked);
    let model = Model::start(move |request| {
        heard.lock().expect("nobody panics with it").push(request["messages"].to_string());
        json!({"role": "assistant", "content": "I will look into it."})
    });
    let folder = Folder::new();
    let spell = format!("name = \"teller\"\ncrystal = \"{}\"\n[call]\nrequire_done_tool = true\n", model.crystal());
    folder.write("teller.toml", &spell);
    let output = folder.run(&["cast", "teller.toml", "look"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), ""), "{output:?}");
    assert!(told.contains(codes::LOOP_DETECTED.as_str()) && told.contains("repeated_text"), "{told}");
    let asked = asked.lock().expect("nobody panics with it").clone();
    let reminded: Vec<bool> = asked.iter().map(|messages| messages.contains("no call of `done`")).collect();
    assert_eq!(reminded, [false, false, true], "{asked:?}");
    let told = folder.envelope(&["cast", "teller.toml", "look"], codes::LOOP_DETECTED.any());
    assert_eq!(told["data"]["pattern"], "repeated_text", "{told}");
}

#[test]
fn an_answer_of_three_megabytes_that_was_recorded_is_delivered() {
    let bytes = 3 << 20;
    let model = Model::start(move |_| json!({"role": "assistant", "content": "x".repeat(bytes)}));
    let folder = with_teller(&model);
    let output = folder.run(&["cast", "teller.toml", "speak", "--quiet"]);
    assert_eq!((output.status.code(), stdout(&output).len()), (Some(0), bytes + 1));
    let told = folder.envelope(&["cast", "teller.toml", "speak"], codes::TERMINATED.any());
    assert_eq!(told["data"]["answer"].as_str().map(str::len), Some(bytes));
}
