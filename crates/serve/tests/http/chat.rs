//! A spell as a model.

use cantrip_reply::codes;
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::support::server;

fn says(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

#[tokio::test]
async fn a_spell_answers_as_a_model_does() {
    let server = server().await;
    let (status, models) = server.get("/v1/models").await;
    assert_eq!((status, &models["object"]), (200, &json!("list")));
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["object"]), (&json!("three"), &json!("model")));
    let told = json!({"model": "three", "messages": says("how many?"), "temperature": 0.5});
    let (status, answer) = server.post("/v1/chat/completions", told).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["choices"][0]["message"], json!({"role": "assistant", "content": "3", "refusal": null}));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert!(answer["usage"]["total_tokens"].is_u64());
    // The run is like any other, with the user's text alone as its intent.
    let run = answer["id"].as_str().unwrap().strip_prefix("chatcmpl-").unwrap();
    let shown = server.value(&format!("/v1/runs/{run}")).await;
    let casts = server.value(&format!("/v1/entities/{}/casts", shown["entity_id"].as_str().unwrap())).await;
    assert_eq!(casts[0]["intent"], "how many?", "{casts}");
    let earlier = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "and now?"}]}]);
    let (status, _) = server.post("/v1/chat/completions", json!({"model": "three", "messages": earlier})).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn what_is_said_and_done_is_streamed_and_ends_as_chat_clients_expect() {
    let server = server().await;
    let told =
        json!({"model": "slow", "messages": says("go"), "stream": true, "stream_options": {"include_usage": true}});
    let response = server.client.post(server.url("/v1/chat/completions")).json(&told).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut text = String::new();
    let mut bytes = response.bytes_stream();
    while let Some(piece) = bytes.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
    }
    let pieces: Vec<&str> = text.split("\n\n").filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces.last(), Some(&"data: [DONE]"));
    let pieces: Vec<Value> = pieces[..pieces.len() - 1]
        .iter()
        .map(|piece| serde_json::from_str(piece.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    assert!(pieces.iter().all(|piece| piece["object"] == "chat.completion.chunk" && piece["id"] == pieces[0]["id"]));
    assert_eq!(pieces[0]["choices"][0]["delta"]["role"], "assistant");
    let told = |key: &str| -> String {
        pieces.iter().filter_map(|piece| piece["choices"][0]["delta"][key].as_str()).collect()
    };
    assert_eq!(told("content"), "One moment please, this takes a while.\n\nslow");
    let shown = told("reasoning_content");
    assert!(shown.contains("What next?") && shown.contains("echo({\"text\":\"a\"}) gave: a"), "{shown}");
    assert_eq!(pieces[pieces.len() - 2]["choices"][0]["finish_reason"], "stop");
    assert!(pieces.last().unwrap()["usage"]["total_tokens"].is_u64() && pieces.last().unwrap()["choices"] == json!([]));
}

#[tokio::test]
async fn errors_have_the_shape_that_chat_clients_read() {
    let server = server().await;
    let image = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]);
    for (told, status, code, kind) in [
        (json!({"model": "none", "messages": says("x")}), 404, codes::NOT_FOUND.any(), "invalid_request_error"),
        (json!({"model": "three", "messages": []}), 422, codes::SCHEMA.any(), "invalid_request_error"),
        (json!({"model": "three"}), 422, codes::SCHEMA.any(), "invalid_request_error"),
        (json!({"model": "three", "messages": image}), 422, codes::SCHEMA.any(), "invalid_request_error"),
        (
            json!({"model": "three", "messages": says(" "), "stream": true}),
            422,
            codes::CONTRACT_INVALID.any(),
            "invalid_request_error",
        ),
    ] {
        let (found, error) = server.post("/v1/chat/completions", told).await;
        assert_eq!(found, status, "{error}");
        assert_eq!(error["error"]["code"], code.to_string(), "{error}");
        assert_eq!((&error["error"]["type"], &error["error"]["param"]), (&json!(kind), &Value::Null));
        assert!(error["error"]["message"].is_string() && error.as_object().unwrap().len() == 1);
    }
}

#[tokio::test]
async fn a_client_that_goes_away_has_changed_its_mind() {
    let server = server().await;
    let told = json!({"model": "stuck", "messages": says("go"), "stream": true});
    let response = server.client.post(server.url("/v1/chat/completions")).json(&told).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let runs = server.value("/v1/runs").await;
    let run = runs["items"][0]["run_id"].as_str().unwrap().to_owned();
    drop(response);
    let ended = server.until(&run, "truncated").await;
    assert_eq!(ended["outcome"]["reason"], "cancelled");
}
