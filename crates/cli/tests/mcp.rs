//! The MCP server, driven over the pipes of the real binary by common clients: rmcp's, and the TypeScript client of the
//! protocol's own project.

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use rmcp::handler::client::ClientHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest, ElicitRequestParams,
    ElicitResult, ElicitationAction, ErrorData, Implementation, ProgressNotificationParam, ProtocolVersion,
    ReadResourceRequestParams, Request, ResourceContents,
};
use rmcp::service::{
    ClientLifecycleMode, NotificationContext, PeerRequestOptions, RequestContext, RoleClient, RunningService,
    serve_client_with_lifecycle,
};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::support::{Folder, stderr, stdout};

/// The decisions of a client, and the messages that it received.
#[derive(Clone)]
pub(crate) struct Peer {
    version: ProtocolVersion,
    progress: Arc<Mutex<Vec<String>>>,
    asked: Arc<Mutex<Vec<String>>>,
    decides: &'static str,
}

impl Peer {
    pub(crate) fn new(version: ProtocolVersion) -> Self {
        Self { version, progress: Arc::default(), asked: Arc::default(), decides: "approve" }
    }
}

impl ClientHandler for Peer {
    fn get_info(&self) -> ClientConfig {
        let able = ClientCapabilities::builder().enable_elicitation().build();
        ClientConfig::new(able, Implementation::new("peer", "1")).with_protocol_version(self.version.clone())
    }

    async fn on_progress(&self, told: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(told.message.unwrap_or_default());
    }

    async fn create_elicitation(
        &self,
        asked: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = asked else { panic!("{asked:?}") };
        self.asked.lock().unwrap().push(message);
        let mut said = ElicitResult::new(ElicitationAction::Accept);
        said.content = Some(json!({"decision": self.decides, "reason": "not today"}));
        Ok(said)
    }
}

pub(crate) type Served = (RunningService<RoleClient, Peer>, Child);

pub(crate) async fn served(folder: &Folder, peer: Peer, arguments: &[&str]) -> Served {
    let mut command = folder.command(&[&["mcp"], arguments].concat());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = Command::from(command).kill_on_drop(true).spawn().expect("the binary runs");
    let pipes = (child.stdout.take().expect("a pipe"), child.stdin.take().expect("a pipe"));
    // The newer revision has no handshake: a client sends a discovery request.
    let lifecycle = if peer.version == ProtocolVersion::V_2026_07_28 {
        ClientLifecycleMode::Discover { preferred_versions: vec![peer.version.clone()] }
    } else {
        ClientLifecycleMode::Initialize
    };
    (serve_client_with_lifecycle(peer, pipes, lifecycle).await.expect("it answers"), child)
}

pub(crate) async fn ended((client, mut child): Served) {
    client.cancel().await.expect("it lets go");
    let status = child.wait().await.expect("it ends when its input does");
    assert!(status.success(), "{status}");
}

pub(crate) async fn called(
    client: &RunningService<RoleClient, Peer>,
    tool: &'static str,
    arguments: Value,
) -> CallToolResult {
    let Value::Object(arguments) = arguments else { panic!("{arguments}") };
    client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.expect("a result")
}

/// Returns the envelope of an answer, which must have this code.
#[track_caller]
pub(crate) fn envelope(result: &CallToolResult, code: AnyCode) -> Value {
    let envelope = result.structured_content.clone().unwrap_or_else(|| panic!("{result:?}"));
    assert_envelope(&envelope, code);
    assert_eq!(result.is_error, Some(!code.reply_type().is_success()));
    envelope
}

/// A store that also keeps receipts.
const KEPT: &[&str] = &["--store", "sqlite:kept/loom.db"];

const HANDS: &str = "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\n[gates.edit]\nroot = \".\"\n[gates.echo]\n\
                     [wards]\nmax_turns = 9\nrequire_approval = [\"edit\"]\n";
const EDIT: &str = "  - tool_calls: [{id: c1, gate: edit, args: {path: note.txt, old: two, new: zwei}}]\n";
const DONE: &str = "  - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";

fn folder(script: &[&str]) -> Folder {
    let folder = Folder::new();
    folder.write("hands.toml", HANDS);
    folder.write("hands.yaml", &format!("responses:\n{}", script.concat()));
    folder.write("note.txt", "one\ntwo\nthree\n");
    folder
}

const ECHO: &str = "  - tool_calls: [{id: e, gate: echo, args: {text: hi}}]\n";

#[tokio::test]
async fn a_spell_is_cast_followed_read_and_branched_off_from() {
    for version in [ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28] {
        let folder = folder(&[ECHO, DONE, DONE, DONE]);
        let peer = Peer::new(version);
        let served = served(&folder, peer.clone(), KEPT).await;
        let client = &served.0;
        let tools = client.list_all_tools().await.expect("tools");
        for tool in ["spells", "cast", "send", "predict", "fork", "runs", "thread", "turn", "spend_status", "codes"] {
            let found = tools.iter().find(|found| found.name == tool).unwrap_or_else(|| panic!("{tool} is missing"));
            assert!(found.output_schema.is_some() && found.description.is_some());
        }
        let spells = envelope(&called(client, "spells", json!({})).await, codes::READ.any());
        assert!(spells["data"]["value"]["items"].as_array().unwrap().iter().any(|card| card["name"] == "hands"));
        let cast = called(client, "cast", json!({"spell": "hands", "intent": "go"})).await;
        let cast = envelope(&cast, codes::TERMINATED.any());
        assert_eq!(cast["data"]["answer"], "over");
        let (entity, leaf) = (&cast["data"]["entity_id"], &cast["data"]["leaf"]);
        let told = peer.progress.lock().unwrap().clone();
        assert!(told.iter().any(|line| line.contains("echo")), "{told:?}");
        let sent = called(client, "send", json!({"entity": entity, "intent": "and on"})).await;
        envelope(&sent, codes::TERMINATED.any());
        let forked = called(client, "fork", json!({"turn": leaf, "intent": "otherwise"})).await;
        let forked = envelope(&forked, codes::TERMINATED.any());
        assert_ne!(&forked["data"]["entity_id"], entity);
        let thread = envelope(&called(client, "thread", json!({"thread": entity})).await, codes::READ.any());
        let intents: Vec<_> =
            thread["data"]["value"]["casts"].as_array().unwrap().iter().map(|cast| &cast["intent"]).collect();
        assert_eq!(intents, ["go", "and on"]);
        let turn = envelope(&called(client, "turn", json!({"turn": leaf})).await, codes::READ.any());
        assert_eq!(&turn["data"]["value"]["id"], leaf);
        let runs = envelope(&called(client, "runs", json!({"state": "terminated"})).await, codes::READ.any());
        assert_eq!(runs["data"]["value"]["items"].as_array().map(Vec::len), Some(3));
        let resources = client.list_all_resources().await.expect("resources");
        let under = |begin: &str| resources.iter().filter(|resource| resource.uri.starts_with(begin)).count();
        assert_eq!((under("cantrip://threads/"), under("cantrip://receipts/"), resources.len()), (3, 3, 6));
        let read =
            client.read_resource(ReadResourceRequestParams::new(resources[0].uri.clone())).await.expect("a thread");
        let ResourceContents::TextResourceContents { text, .. } = &read.contents[0] else { panic!("{read:?}") };
        assert!(serde_json::from_str::<Value>(text).expect("JSON")["turns"].is_array());
        ended(served).await;
    }
}

#[tokio::test]
async fn what_is_wrong_is_a_reply_and_what_only_the_protocol_can_have_wrong_its_error() {
    let folder = folder(&[DONE]);
    let served = served(&folder, Peer::new(ProtocolVersion::V_2025_11_25), KEPT).await;
    let client = &served.0;
    let invalid = [
        ("cast", json!({"spell": "hands"}), codes::SCHEMA.any()),
        ("cast", json!({"spell": "hands", "intent": "go", "more": 1}), codes::SCHEMA.any()),
        ("cast", json!({"spell": "hands", "intent": "go", "budget": "a lot"}), codes::SCHEMA.any()),
        ("cast", json!({"spell": "hands", "intent": "  "}), codes::CONTRACT_INVALID.any()),
        ("cast", json!({"spell": "../../etc/passwd", "intent": "go"}), codes::NOT_FOUND.any()),
        ("send", json!({"entity": "ent_none", "intent": "go"}), codes::NOT_FOUND.any()),
        ("thread", json!({"thread": ""}), codes::NOT_FOUND.any()),
        ("turn", json!({"turn": "turn_none"}), codes::NOT_FOUND.any()),
        ("runs", json!({"cursor": "x"}), codes::CURSOR_INVALID.any()),
        ("predict", json!({"signature": "@a/b/C.v1", "input": {}}), codes::CONTRACT_UNKNOWN.any()),
        ("codes", json!({"code": "nonsense"}), codes::NOT_FOUND.any()),
    ];
    for (tool, arguments, code) in invalid {
        envelope(&called(client, tool, arguments).await, code);
    }
    let unknown = client.call_tool(CallToolRequestParams::new("nonsense")).await.expect_err("no such tool");
    assert!(unknown.to_string().contains("nonsense"), "{unknown}");
    let missing = client.read_resource(ReadResourceRequestParams::new("cantrip://threads/none")).await;
    missing.expect_err("no such thread");
    // The server still works.
    envelope(&called(client, "cast", json!({"spell": "hands", "intent": "go"})).await, codes::TERMINATED.any());
    ended(served).await;
}

#[tokio::test]
async fn a_call_that_needs_a_person_waits_or_is_asked_about_where_the_client_can() {
    // The older revision: the answer says that the run waits, and the run resumes after a decision.
    let waits = folder(&[EDIT, DONE]);
    let served_here = served(&waits, Peer::new(ProtocolVersion::V_2025_11_25), KEPT).await;
    let cast = called(&served_here.0, "cast", json!({"spell": "hands", "intent": "go"})).await;
    let cast = envelope(&cast, codes::CREATED.any());
    assert_eq!((&cast["data"]["state"], &cast["data"]["reason"]), (&json!("waiting"), &json!("approval")));
    let run = cast["data"]["id"].as_str().unwrap().to_owned();
    let shown = envelope(&called(&served_here.0, "run", json!({"run": run})).await, codes::READ.any());
    assert_eq!(shown["data"]["value"]["pending"][0]["gate"], "edit");
    let waiting = envelope(&called(&served_here.0, "resume", json!({"run": run})).await, codes::CREATED.any());
    assert_eq!(waiting["data"]["state"], "waiting", "nobody has decided");
    assert_eq!(waits.read("note.txt"), "one\ntwo\nthree\n");
    ended(served_here).await;

    // The newer revision: the client's user is asked, and the same call returns the answer.
    for (decides, text) in [("approve", "one\nzwei\nthree\n"), ("refuse", "one\ntwo\nthree\n")] {
        let folder = folder(&[EDIT, DONE]);
        let peer = Peer { decides, ..Peer::new(ProtocolVersion::V_2026_07_28) };
        let served = served(&folder, peer.clone(), KEPT).await;
        let cast = called(&served.0, "cast", json!({"spell": "hands", "intent": "go"})).await;
        assert_eq!(envelope(&cast, codes::TERMINATED.any())["data"]["answer"], "over");
        assert!(peer.asked.lock().unwrap()[0].contains("edit"));
        assert_eq!(folder.read("note.txt"), text);
        ended(served).await;
    }
}

#[tokio::test]
async fn a_request_that_is_taken_back_ends_its_run() {
    let folder = folder(&["  - {content: 'one two', pace_ms: 600000}\n"]);
    let peer = Peer::new(ProtocolVersion::V_2025_11_25);
    let served = served(&folder, peer.clone(), KEPT).await;
    let arguments = json!({"spell": "hands", "intent": "go"}).as_object().cloned().unwrap();
    let request =
        ClientRequest::CallToolRequest(Request::new(CallToolRequestParams::new("cast").with_arguments(arguments)));
    let begun = served.0.send_cancellable_request(request, PeerRequestOptions::no_options()).await.expect("it is sent");
    // Wait until the run is recorded, then cancel the request.
    loop {
        let runs = envelope(&called(&served.0, "runs", json!({"state": "running"})).await, codes::READ.any());
        if runs["data"]["value"]["items"].as_array().is_some_and(|runs| !runs.is_empty()) {
            break;
        }
    }
    begun.cancel(Some("never mind".to_owned())).await.expect("it is told");
    loop {
        let runs = envelope(&called(&served.0, "runs", json!({"state": "truncated"})).await, codes::READ.any());
        let runs = runs["data"]["value"]["items"].as_array().cloned().unwrap_or_default();
        if let [run] = runs.as_slice() {
            let run = envelope(&called(&served.0, "run", json!({"run": run["run_id"]})).await, codes::READ.any());
            assert_eq!(run["data"]["value"]["casts"][0]["outcome"]["reason"], "cancelled");
            break;
        }
    }
    ended(served).await;
}

/// A script for the client of the protocol's own project.
const OFFICIAL: &str = r#"
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: 'official', version: '1' });
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
const { tools } = await client.listTools();
const progress = [];
const cast = await client.callTool(
  { name: 'cast', arguments: { spell: 'hands', intent: 'go' } }, undefined,
  { onprogress: (told) => progress.push(told.message) });
const wrong = await client.callTool({ name: 'turn', arguments: { turn: 'turn_none' } });
const { resources } = await client.listResources();
const read = await client.readResource({ uri: resources[0].uri });
console.log(JSON.stringify({ tools: tools.map((tool) => tool.name), cast, wrong, progress, read }));
await client.close();
"#;

#[test]
fn the_official_client_lists_and_calls_the_tools() {
    let Some(packages) = cantrip_tests::peer::Peer::Mcp.find_path() else { return };
    let folder = folder(&[ECHO, DONE]);
    folder.write("official.mjs", OFFICIAL);
    std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).expect("a link");
    let mut node = std::process::Command::new("node");
    node.args(["official.mjs", env!("CARGO_BIN_EXE_cantrip"), "mcp"]);
    folder.around(&mut node);
    let output = node.output().expect("node runs");
    assert!(output.status.success(), "{}", stderr(&output));
    let said: Value =
        serde_json::from_str(stdout(&output)).unwrap_or_else(|error| panic!("{error}: {}", stdout(&output)));
    assert!(said["tools"].as_array().unwrap().contains(&json!("cast")));
    assert_envelope(&said["cast"]["structuredContent"], codes::TERMINATED.any());
    assert_eq!(said["cast"]["isError"], false);
    assert_envelope(&said["wrong"]["structuredContent"], codes::NOT_FOUND.any());
    assert_eq!(said["wrong"]["isError"], true);
    assert!(!said["progress"].as_array().unwrap().is_empty());
    assert_eq!(said["read"]["contents"][0]["mimeType"], "application/json");
}
