//! A faulty request is answered with an envelope, and the server continues.

use std::time::Duration;

use cantrip_reply::codes;
use cantrip_serve::http::Options;
use cantrip_serve::limits::BODY_BYTES_MAX;
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{Server, answered, refused, server};

#[tokio::test]
async fn every_refusal_is_an_envelope_with_its_status() {
    let server = server().await;
    refused(server.get("/nowhere").await, 404, codes::NOT_FOUND.any());
    refused(server.get("/v1/casts/").await, 404, codes::NOT_FOUND.any());
    let response = server.client.delete(server.url("/v1/casts")).send().await.unwrap();
    assert_eq!(response.headers()["allow"], "POST");
    refused((response.status().as_u16(), response.json().await.unwrap()), 405, codes::NOT_FOUND.any());
    for id in ["x", "run_", "turn_06cyf9k2vtd3m8x1q7hbz4n5rw", "%ff", "run_06cyf9k2vtd3m8x1q7hbz4n5rw"] {
        refused(server.get(&format!("/v1/runs/{id}")).await, 404, codes::NOT_FOUND.any());
    }
    refused(server.get("/v1/runs?most=0").await, 422, codes::SCHEMA.any());
    refused(server.get("/v1/runs?most=x").await, 422, codes::SCHEMA.any());
    refused(server.get("/v1/runs?lots=1").await, 422, codes::SCHEMA.any());
    let with = |kind: &'static str, body: &'static str| {
        answered(server.client.post(server.url("/v1/casts")).header("content-type", kind).body(body))
    };
    refused(with("text/plain", "{}").await, 415, codes::SCHEMA.any());
    for body in ["{", "{\"spell\": \"a\", \"spell\": \"b\"}", "nul", "{} {}", "\"\\ud800\""] {
        refused(with("application/json", body).await, 400, codes::UNPARSABLE.any());
    }
    let missing = refused(with("application/json", "{}").await, 422, codes::SCHEMA.any());
    assert!(missing["message"].as_str().unwrap().contains("spell"), "{missing}");
    let path = refused(with("application/json", "{\"spell\": 1, \"intent\": \"x\"}").await, 422, codes::SCHEMA.any());
    assert_eq!(path["data"]["path"], "/spell");
    refused(
        with("application/json", "{\"spell\": \"three\", \"intent\": \"x\", \"more\": 1}").await,
        422,
        codes::SCHEMA.any(),
    );
    refused(
        with("application/json; charset=utf-8", "{\"spell\": \"none\", \"intent\": \"x\"}").await,
        404,
        codes::NOT_FOUND.any(),
    );
    let blank = json!({"spell": "three", "intent": " "});
    refused(server.post("/v1/casts", blank).await, 422, codes::CONTRACT_INVALID.any());
    let money = json!({"spell": "three", "intent": "x", "budget": "lots"});
    refused(server.post("/v1/casts", money).await, 422, codes::SCHEMA.any());
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_told_before_or_not() {
    let server = server().await;
    let long = vec![b' '; BODY_BYTES_MAX + 1];
    let post = || server.client.post(server.url("/v1/casts")).header("content-type", "application/json");
    refused(answered(post().body(long.clone())).await, 413, codes::LIMIT.any());
    let pieces = long.chunks(1 << 20).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect::<Vec<_>>();
    let unannounced = reqwest::Body::wrap_stream(futures_util::stream::iter(pieces));
    refused(answered(post().body(unannounced)).await, 413, codes::LIMIT.any());
    assert_eq!(server.get("/healthz").await.0, 200);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_waited_for_only_so_long() {
    let options = Options { body: Duration::from_millis(50), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = "POST /v1/casts HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\
                connection: close\r\n\r\n{\"spell\":";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    let envelope: Value = serde_json::from_str(body).unwrap();
    refused((408, envelope), 408, codes::TIMED_OUT.any());
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_its_connection() {
    let options = Options { head: Duration::from_millis(50), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").await.unwrap();
    let mut text = Vec::new();
    stream.read_to_end(&mut text).await.unwrap();
    assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&text));
    assert_eq!(server.get("/healthz").await.0, 200);
}
