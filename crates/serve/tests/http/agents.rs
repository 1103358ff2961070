//! The MCP server at `/mcp`, tested with a common client, over both revisions of the protocol.

use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_serve::http::Options;
use cantrip_serve::limits::{BODY_BYTES_MAX, MCP_SESSIONS_MAX, SHUTDOWN_MS};
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use futures_util::{StreamExt, stream};
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation, ProtocolVersion, ReadResourceRequestParams,
};
use rmcp::service::{ClientLifecycleMode, RoleClient, RunningService, serve_client_with_lifecycle};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Value, json};

use super::owners::{ANN, BOB, guarded};
use super::support::{Server, answered, refused, server};

struct Agent(ProtocolVersion);

impl ClientHandler for Agent {
    fn get_info(&self) -> ClientConfig {
        let able = ClientCapabilities::builder().build();
        ClientConfig::new(able, Implementation::new("agent", "1")).with_protocol_version(self.0.clone())
    }
}

type Served = RunningService<RoleClient, Agent>;

async fn served(server: &Server, version: ProtocolVersion, token: Option<&str>) -> Served {
    let mut config = StreamableHttpClientTransportConfig::with_uri(server.url("/mcp"));
    if let Some(token) = token {
        config = config.auth_header(token);
    }
    let transport = StreamableHttpClientTransport::with_client(server.client.clone(), config);
    let lifecycle = if version == ProtocolVersion::V_2026_07_28 {
        ClientLifecycleMode::Discover { preferred_versions: vec![version.clone()] }
    } else {
        ClientLifecycleMode::Initialize
    };
    serve_client_with_lifecycle(Agent(version), transport, lifecycle).await.unwrap()
}

async fn called(client: &Served, tool: &'static str, arguments: Value) -> Value {
    let Value::Object(arguments) = arguments else { panic!("{arguments}") };
    let result = client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.unwrap();
    result.structured_content.unwrap()
}

#[tokio::test]
async fn a_spell_is_cast_and_its_thread_read_by_either_revision() {
    for version in [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28] {
        let server = server().await;
        let client = served(&server, version, None).await;
        let cast = called(&client, "cast", json!({"spell": "three", "intent": "go"})).await;
        assert_envelope(&cast, codes::TERMINATED.any());
        assert_eq!(cast["data"]["answer"], 3);
        let leaf = cast["data"]["leaf"].as_str().unwrap();
        let listed = client.list_all_resources().await.unwrap();
        let thread = listed.iter().find(|resource| resource.uri.ends_with(leaf)).unwrap();
        let read = client.read_resource(ReadResourceRequestParams::new(thread.uri.clone())).await.unwrap();
        assert_eq!(read.contents.len(), 1);
        // A cast over MCP is visible over HTTP.
        let run = server.value("/v1/runs").await["items"][0].clone();
        assert_eq!((&run["state"], &run["entity_id"]), (&json!("terminated"), &cast["data"]["entity_id"]));
        client.cancel().await.unwrap();
        server.stop().await;
    }
}

#[tokio::test]
async fn the_token_says_whose_runs_an_agent_sees() {
    let server = guarded().await;
    let unknown = server.client.post(server.url("/mcp")).json(&json!({}));
    refused(answered(unknown).await, 401, codes::UNAUTHENTICATED.any());
    let ann = served(&server, ProtocolVersion::V_2025_11_25, Some(ANN)).await;
    let bob = served(&server, ProtocolVersion::V_2025_11_25, Some(BOB)).await;
    assert_envelope(&called(&ann, "cast", json!({"spell": "three", "intent": "go"})).await, codes::TERMINATED.any());
    let runs = |envelope: Value| envelope["data"]["value"]["items"].as_array().unwrap().len();
    assert_eq!(runs(called(&ann, "runs", json!({})).await), 1);
    assert_eq!(runs(called(&bob, "runs", json!({})).await), 0);
    for client in [ann, bob] {
        client.cancel().await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_never_reaches_the_protocol() {
    let server = server().await;
    let long = server.client.post(server.url("/mcp")).body(vec![b'x'; BODY_BYTES_MAX + 1]);
    refused(answered(long).await, 413, codes::LIMIT.any());
}

/// Opens a session without the protocol's client, which would hide the details.
async fn opened(server: &Server, token: Option<&str>) -> reqwest::Response {
    let params =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}});
    said(server, token, None, json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})).await
}

async fn said(server: &Server, token: Option<&str>, session: Option<&str>, message: Value) -> reqwest::Response {
    let mut request = server.client.post(server.url("/mcp")).header("accept", "application/json, text/event-stream");
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    if let Some(session) = session {
        request = request.header("mcp-session-id", session);
    }
    request.json(&message).send().await.unwrap()
}

async fn session(server: &Server, token: Option<&str>) -> String {
    let response = opened(server, token).await;
    assert_eq!(response.status(), 200);
    let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    drop(response.bytes().await.unwrap());
    let began = said(server, token, Some(&id), json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    assert_eq!(began.status(), 202);
    id
}

fn ping() -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": "ping"})
}

async fn envelope(response: reqwest::Response) -> (u16, Value) {
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn a_session_is_the_owners_who_opened_it() {
    let server = guarded().await;
    let id = session(&server, Some(ANN)).await;
    refused(envelope(said(&server, Some(BOB), Some(&id), ping()).await).await, 404, codes::NOT_FOUND.any());
    for request in [server.client.get(server.url("/mcp")), server.client.delete(server.url("/mcp"))] {
        let request = request.bearer_auth(BOB).header("mcp-session-id", &id).header("accept", "text/event-stream");
        refused(answered(request).await, 404, codes::NOT_FOUND.any());
    }
    assert_eq!(said(&server, Some(ANN), Some(&id), ping()).await.status(), 200, "it is there for its owner");
    let ended = server.client.delete(server.url("/mcp")).bearer_auth(ANN).header("mcp-session-id", &id);
    assert_eq!(ended.send().await.unwrap().status(), 204);
    refused(envelope(said(&server, Some(ANN), Some(&id), ping()).await).await, 404, codes::NOT_FOUND.any());
}

#[tokio::test]
async fn so_many_sessions_are_open_and_no_more() {
    let server = server().await;
    let first = session(&server, None).await;
    let rest = stream::iter(1..MCP_SESSIONS_MAX).map(|_| opened(&server, None)).buffer_unordered(32);
    let rest: Vec<_> = rest.map(|response| response.status()).collect().await;
    assert!(rest.iter().all(|status| *status == 200));
    refused(envelope(opened(&server, None).await).await, 503, codes::OVERLOADED.any());
    assert_eq!(said(&server, None, Some(&first), ping()).await.status(), 200, "those that are open go on");
    let newer = served(&server, ProtocolVersion::V_2026_07_28, None).await;
    assert_envelope(&called(&newer, "spells", json!({})).await, codes::READ.any());
    newer.cancel().await.unwrap();
    let ended = server.client.delete(server.url("/mcp")).header("mcp-session-id", first);
    assert_eq!(ended.send().await.unwrap().status(), 204);
    assert_eq!(opened(&server, None).await.status(), 200, "its place is free again");
}

#[tokio::test]
async fn an_idle_session_ends_and_one_that_works_does_not() {
    let options = Options { session_idle: Duration::from_millis(100), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await;
    let (idle, works) = (session(&server, None).await, session(&server, None).await);
    let cast = json!({"name": "cast", "arguments": {"spell": "slow", "intent": "go"}});
    let cast = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": cast});
    let told = said(&server, None, Some(&works), cast).await.text().await.unwrap();
    let answer = told.lines().filter_map(|line| line.strip_prefix("data: {")).next_back().unwrap();
    let answer: Value = serde_json::from_str(&format!("{{{answer}")).unwrap();
    assert_envelope(&answer["result"]["structuredContent"], codes::TERMINATED.any());
    refused(envelope(said(&server, None, Some(&idle), ping()).await).await, 404, codes::NOT_FOUND.any());
}

#[tokio::test]
async fn an_agent_that_listens_does_not_hold_up_the_end() {
    let server = server().await;
    let id = session(&server, None).await;
    let listens =
        server.client.get(server.url("/mcp")).header("mcp-session-id", id).header("accept", "text/event-stream");
    let mut listens = listens.send().await.unwrap();
    assert_eq!(listens.status(), 200);
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_millis(SHUTDOWN_MS / 2), "{:?}", began.elapsed());
    while let Ok(Some(_)) = listens.chunk().await {}
}
