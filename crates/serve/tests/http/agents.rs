//! The server for agents at `/mcp`, by the client that people use, over both revisions of the protocol.

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_serve::limits::BODY_BYTES_MAX;
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
        // What was cast through one door is seen through the other.
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
