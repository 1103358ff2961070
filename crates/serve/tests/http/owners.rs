//! Who is let in, and what each of them sees.

use cantrip_reply::codes;
use cantrip_serve::http::{Options, Tokens};
use cantrip_service::cantrip::loom::{AnyLoom, Memory};
use reqwest::header::{HOST, ORIGIN};
use serde_json::json;

use super::support::{Server, answered, refused, server};

pub(super) const ANN: &str = "token-of-ann-0123456789";
pub(super) const BOB: &str = "token-of-bob-0123456789";
const ROOT: &str = "token-of-root-0123456789";

pub(super) async fn guarded() -> Server {
    let tokens = Tokens::read(&format!("ann = {ANN}\nbob = {BOB}\nlocal = {ROOT}\n")).unwrap();
    let options = Options { tokens: Some(tokens), ..Options::default() };
    Server::over(AnyLoom::new(Memory::new()), options, &[]).await
}

#[tokio::test]
async fn without_a_token_or_with_a_wrong_one_nothing_is_told() {
    let server = guarded().await;
    let mut told = Vec::new();
    for token in [None, Some(""), Some("token-of-ann-012345678"), Some("token-of-ann-01234567890"), Some("x")] {
        for path in ["/v1/runs", "/v1/runs/x", "/nowhere", "/v1/casts", "/openapi.json", "/metrics", "/mcp"] {
            let request = server.client.get(server.url(path));
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            let status = response.status().as_u16();
            let mut envelope = refused((status, response.json().await.unwrap()), 401, codes::UNAUTHENTICATED.any());
            envelope["meta"] = json!(null);
            told.push(envelope);
        }
    }
    told.dedup();
    assert_eq!(told.len(), 1, "every one of them reads the same: {told:?}");
    assert_eq!(server.get("/healthz").await.0, 200, "that it lives is no secret");
    let basic = server.client.get(server.url("/v1/runs")).basic_auth("ann", Some(ANN));
    refused(answered(basic).await, 401, codes::UNAUTHENTICATED.any());
}

#[tokio::test]
async fn what_belongs_to_another_owner_is_not_there() {
    let server = guarded().await.with_token(ANN);
    let run = server.cast("slow").await;
    let shown = server.until(&run, "terminated").await;
    let turn = server.value(&format!("/v1/runs/{run}/turns")).await["items"][0]["id"].as_str().unwrap().to_owned();
    let (entity, loom) = (shown["entity_id"].as_str().unwrap(), shown["loom_id"].as_str().unwrap());
    let gets = [
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/turns"),
        format!("/v1/runs/{run}/events"),
        format!("/v1/runs/{run}/records"),
        format!("/v1/turns/{turn}"),
        format!("/v1/turns/{turn}/thread"),
        format!("/v1/turns/{turn}/rewards"),
        format!("/v1/entities/{entity}"),
        format!("/v1/entities/{entity}/casts"),
        format!("/v1/looms/{loom}"),
    ];
    let posts = [
        (format!("/v1/runs/{run}/cancel"), json!({})),
        (format!("/v1/runs/{run}/approve"), json!({"decision": "approve"})),
        (format!("/v1/runs/{run}/fork"), json!({"intent": "mine"})),
        (format!("/v1/runs/{run}/resume"), json!({})),
        (format!("/v1/runs/{run}/continue"), json!({})),
        (format!("/v1/turns/{turn}/reward"), json!({"reward": 1})),
        (format!("/v1/entities/{entity}/send"), json!({"intent": "mine"})),
        (format!("/v1/entities/{entity}/dispose"), json!({})),
    ];
    for path in &gets {
        let response = server.asks(server.client.get(server.url(path))).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}: its owner sees it");
    }
    let server = server.with_token(BOB);
    for path in &gets {
        refused(server.get(path).await, 404, codes::NOT_FOUND.any());
    }
    for (path, body) in posts {
        refused(server.post(&path, body).await, 404, codes::NOT_FOUND.any());
    }
    let absent = "run_06cyf9k2vtd3m8x1q7hbz4n5rw";
    let (_, never) = server.get(&format!("/v1/runs/{absent}")).await;
    let (_, other) = server.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(
        never["message"].as_str().unwrap().replace(absent, "X"),
        other["message"].as_str().unwrap().replace(&run, "X"),
        "it reads like one that never was"
    );
    assert_eq!(server.value("/v1/runs").await["items"], json!([]));
    assert_eq!(server.value("/v1/looms").await, json!([]));
    assert_eq!(server.value(&format!("/v1/looms/{loom}/entities")).await["items"], json!([]));
    let own = server.cast("three").await;
    server.until(&own, "terminated").await;
    let runs = server.value("/v1/runs").await;
    assert_eq!((runs["items"].as_array().unwrap().len(), &runs["items"][0]["run_id"]), (1, &json!(own)));
    assert_eq!(runs["items"][0]["owner"], "user:bob");
    let server = server.with_token(ROOT);
    assert_eq!(
        server.value("/v1/runs").await["items"].as_array().unwrap().len(),
        2,
        "whoever runs the server sees all"
    );
}

#[tokio::test]
async fn a_page_in_a_browser_does_not_reach_loopback_by_another_name() {
    let server = server().await;
    let port = server.address.port();
    for (header, value) in [
        (HOST, format!("evil.example:{port}")),
        (HOST, format!("127.0.0.1.evil.example:{port}")),
        (ORIGIN, "http://evil.example".to_owned()),
        (ORIGIN, "null".to_owned()),
    ] {
        let request = server.client.get(server.url("/v1/runs")).header(header.clone(), &value);
        refused(answered(request).await, 403, codes::ADDRESS_REFUSED.any());
    }
    for (header, value) in [(HOST, format!("localhost:{port}")), (ORIGIN, format!("http://localhost:{port}"))] {
        let response = server.client.get(server.url("/v1/runs")).header(header, value).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control")), "CORS is off");
    }
}
