//! A spell as a model behind `cantrip serve`: a chat client gets what it asks for, or a refusal.

use std::io::{Read, Write};
use std::net::TcpStream;

use cantrip_reply::codes;
use serde_json::{Value, json};

use crate::serve::Server;
use crate::support::Folder;

const CHAT: &str = "/v1/chat/completions";

/// Eight words of more than one token each.
const WORDS: &str = "alphabetical brotherhood characteristic determination environmental fundamental grand handing";

fn folder() -> Folder {
    let folder = Folder::new();
    for (name, approval) in [("typed", ""), ("careful", "require_approval = [\"echo\"]\n")] {
        let spell = format!(
            "name = \"{name}\"\ncrystal = \"scripted/{name}.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 5\n{approval}"
        );
        folder.write(&format!("{name}.toml"), &spell);
    }
    folder.write(
        "typed.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: four}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: {letters: 4}}}]\n",
    );
    folder.write(
        "careful.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: hello}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: {letters: 5}}}]\n",
    );
    folder.write("words.toml", "name = \"words\"\ncrystal = \"scripted/words.yaml\"\n[wards]\nmax_turns = 5\n");
    folder.write("words.yaml", &format!("responses:\n  - {{content: '{WORDS}', pace_ms: 50}}\n"));
    folder.write(
        "own.toml",
        "name = \"own\"\ncrystal = \"scripted/typed.yaml\"\nanswer_schema = { type = \"string\" }\n[wards]\n\
         max_turns = 5\n",
    );
    folder
}

/// A request with further parameters.
fn request(model: &str, further: Value) -> Value {
    let mut request = json!({"model": model, "messages": [{"role": "user", "content": "count"}]});
    for (key, value) in further.as_object().expect("parameters") {
        request[key] = value.clone();
    }
    request
}

fn letters() -> Value {
    let schema = json!({
        "type": "object", "properties": {"letters": {"type": "integer"}}, "required": ["letters"],
        "additionalProperties": false,
    });
    json!({"type": "json_schema", "json_schema": {"name": "count", "strict": true, "schema": schema}})
}

/// Returns the chunks of a streamed answer.
fn streamed(server: &Server, request: &Value) -> Vec<Value> {
    let body = request.to_string();
    let mut stream = TcpStream::connect(server.address()).expect("it listens");
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    stream.write_all(body.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it answers");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"))).collect()
}

#[test]
fn parameters_that_a_spell_cannot_honour_are_refused_by_name() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {}}});
    for (further, path) in [
        (json!({"n": 2}), "/n"),
        (json!({"tools": [tool]}), "/tools"),
        (json!({"functions": [{"name": "weather"}]}), "/functions"),
        (json!({"tool_choice": "required"}), "/tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "weather"}}}), "/tool_choice"),
        (json!({"function_call": {"name": "weather"}}), "/function_call"),
        (json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}), "/response_format/"),
        (json!({"response_format": {"type": "grammar"}}), "/response_format"),
    ] {
        let (status, answer) = server.ask("POST", CHAT, Some(&request("typed", further.clone())));
        assert_eq!((status, &answer["error"]["code"]), (422, &json!(codes::SCHEMA.any())), "{further}: {answer}");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(path), "{path} is not in {message}");
    }
    let (_, runs) = server.ask("GET", "/v1/runs", None);
    assert_eq!(runs["data"]["value"]["items"], json!([]), "nothing was cast");
    // A parameter that changes nothing is taken.
    let nothing = json!({
        "n": 1, "tools": [], "tool_choice": "none", "functions": null, "function_call": "auto", "temperature": 0.3,
        "response_format": {"type": "text"},
    });
    let (status, answer) = server.ask("POST", CHAT, Some(&request("typed", nothing)));
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("four")), "{answer}");
}

#[test]
fn a_response_format_is_the_type_of_the_answer() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let typed = json!({"response_format": letters()});
    let (status, answer) = server.ask("POST", CHAT, Some(&request("typed", typed.clone())));
    // The first answer of the script does not fit, and the entity is told so.
    assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("{\"letters\":4}")), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["cantrip"]["state"], "terminated");
    let object = json!({"response_format": {"type": "json_object"}});
    let (_, answer) = server.ask("POST", CHAT, Some(&request("typed", object)));
    assert_eq!(answer["choices"][0]["message"]["content"], "{\"letters\":4}", "{answer}");
    let mut asked = request("typed", typed.clone());
    asked["stream"] = json!(true);
    let chunks = streamed(&server, &asked);
    let content: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, "{\"letters\":4}", "{chunks:?}");
    let (status, answer) = server.ask("POST", CHAT, Some(&request("own", typed)));
    assert_eq!((status, &answer["error"]["code"]), (422, &json!(codes::CONTRACT_INVALID.any())), "{answer}");
    let unusable = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 7}}});
    let (status, answer) = server.ask("POST", CHAT, Some(&request("typed", json!({"response_format": unusable}))));
    assert_eq!((status, &answer["error"]["code"]), (422, &json!(codes::CONTRACT_INVALID.any())), "{answer}");
}

#[test]
fn a_chat_that_waits_for_approval_says_so_beside_the_content_and_goes_on_with_its_type() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "sqlite:kept/loom.db"]);
    let asked = request("careful", json!({"response_format": letters()}));
    let (status, answer) = server.ask("POST", CHAT, Some(&asked));
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&Value::Null, &json!("content_filter")));
    let run = answer["cantrip"]["run_id"].as_str().expect("a run");
    assert_eq!(answer["id"], format!("chatcmpl-{run}"));
    assert_eq!((&answer["cantrip"]["state"], &answer["cantrip"]["reason"]), (&json!("waiting"), &json!("approval")));
    assert_eq!(answer["cantrip"]["approvals"].as_array().map(Vec::len), Some(1), "{answer}");
    let notice = choice["message"]["refusal"].as_str().expect("a notice");
    assert!(notice.contains(&format!("POST /v1/runs/{run}/approve")), "{notice}");
    let (status, decided) =
        server.ask("POST", &format!("/v1/runs/{run}/approve"), Some(&json!({"decision": "approve"})));
    assert_eq!(status, 200, "{decided}");
    let ended = server.until(run, |value| value["state"] == "terminated");
    assert_eq!(ended["answer"], json!({"letters": 5}));
    let mut asked = request("careful", json!({}));
    asked["stream"] = json!(true);
    let chunks = streamed(&server, &asked);
    let last = chunks.last().expect("a chunk");
    assert_eq!(
        (&last["choices"][0]["finish_reason"], &last["cantrip"]["state"]),
        (&json!("content_filter"), &json!("waiting"))
    );
    assert!(chunks.iter().all(|chunk| chunk["choices"][0]["delta"]["content"].as_str().is_none_or(str::is_empty)));
    assert!(chunks.iter().any(|chunk| chunk["choices"][0]["delta"]["refusal"].is_string()), "{chunks:?}");
}

#[test]
fn each_word_is_a_chunk_unless_the_client_wants_larger_ones() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let texts = |further: Value| -> Vec<String> {
        let chunks = streamed(&server, &request("words", further));
        let content = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
        content.filter(|text| !text.is_empty()).map(str::to_owned).collect()
    };
    let each = texts(json!({"stream": true}));
    assert!(each.concat() == WORDS && each.len() >= 7, "{each:?}");
    let few = texts(json!({"stream": true, "stream_options": {"every_delta": false}}));
    assert!(few.concat() == WORDS && few.len() < 6, "{few:?}");
}

#[test]
fn a_viewer_of_a_run_gets_each_word_if_it_asks_for_it() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let upserts = |query: &str| {
        let run = server.cast("words");
        let text = server.text(&format!("/v1/runs/{run}/events{query}"));
        assert!(text.contains("handing") && text.contains("event: end"), "{text}");
        text.lines().filter(|line| *line == "event: upsert").count()
    };
    let (each, few) = (upserts("?every_delta=true"), upserts(""));
    assert!(each >= 7 && few < 6, "{each} and {few} events");
    let run = server.cast("words");
    let (status, refused) = server.ask("GET", &format!("/v1/runs/{run}/events?every_delta=often"), None);
    assert_eq!((status, &refused["code"]), (422, &json!(codes::SCHEMA.any())), "{refused}");
}

#[test]
fn a_spell_can_be_looked_up_as_a_model() {
    let folder = folder();
    let server = Server::start(&folder, &["--store", "memory:"]);
    let (status, model) = server.ask("GET", "/v1/models/typed", None);
    let expected = json!({"id": "typed", "object": "model", "created": 0, "owned_by": "cantrip"});
    assert_eq!((status, model), (200, expected));
    let (status, answer) = server.ask("GET", "/v1/models/nobody", None);
    assert_eq!((status, &answer["error"]["code"]), (404, &json!(codes::NOT_FOUND.any())), "{answer}");
}
