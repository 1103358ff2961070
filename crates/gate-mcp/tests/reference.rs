//! The reference servers of the Model Context Protocol, which know nothing of this project. `test.sh` installs them and
//! names the folder of their packages in `CANTRIP_TEST_MCP`.

use crate::gates;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cantrip_circle::gate::StopSignal;
use cantrip_circle::{Circle, Labels};
use cantrip_gate_mcp::Server;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use gates::{call, circle, execute, value};
use serde_json::json;
use tempfile::TempDir;

/// The program of a package; None if the tests are to run without the packages.
fn installed(package: &str) -> Option<PathBuf> {
    let folder = cantrip_tests::peer::Peer::Mcp.find_path()?;
    Some(folder.join("@modelcontextprotocol").join(package).join("dist/index.js"))
}

fn node(name: &str, program: &Path) -> Server {
    Server::program(name, "node").arguments([program.display().to_string()])
}

fn holding(server: &Server) -> Circle {
    let connected = server.connect().unwrap_or_else(|refusal| panic!("{:?}", refusal.code()));
    assert_eq!(connected.revision(), "2025-11-25");
    circle(connected.gates(None, &Labels::none()).expect("gates can be made of it"), json!({}))
}

/// Checks the reference server, over whichever transport it is reached.
async fn has_everything(server: &Server) {
    let held = holding(server);
    let echo = call(&held, "everything_echo", json!({"message": "hello"})).await;
    assert_code(&echo, codes::GATE_OK);
    assert_eq!(value(&echo), "Echo: hello");
    assert_code(&call(&held, "everything_get_sum", json!({"a": "two", "b": 3})).await, codes::SCHEMA);
    let weather = call(&held, "everything_get_structured_content", json!({"location": "Chicago"})).await;
    assert_code(&weather, codes::GATE_OK);
    assert!(value(&weather)["temperature"].is_number(), "{weather:?}");
    let image = execute(&held, "everything_get_tiny_image", json!({}), StopSignal::never()).await;
    assert_code(&image.guarded.reply, codes::GATE_OK);
    assert_eq!(&image.effects.bodies[0].bytes()[1..4], b"PNG");
    let links = call(&held, "everything_get_resource_links", json!({"count": 2})).await;
    let kinds: Vec<_> = value(&links).as_array().expect("a list").iter().map(|part| part["type"].clone()).collect();
    assert_eq!(kinds, ["text", "resource_link", "resource_link"], "{links:?}");
    let reference = call(&held, "everything_get_resource_reference", json!({"resourceType": "Text", "resourceId": 1}));
    assert!(value(&reference.await)[1]["text"].is_string());
    // It tells of progress five times a second and is patient for two.
    let long = json!({"duration": 3, "steps": 15});
    assert_code(&call(&held, "everything_trigger_long_running_operation", long).await, codes::GATE_OK);
    // Nothing is heard of its one step for longer than that.
    let silent = json!({"duration": 30, "steps": 1});
    assert_code(&call(&held, "everything_trigger_long_running_operation", silent).await, codes::TIMED_OUT);
    assert_eq!(value(&call(&held, "everything_echo", json!({"message": "still here"})).await), "Echo: still here");
}

#[tokio::test]
async fn the_server_that_has_everything_is_used_over_pipes() {
    let Some(program) = installed("server-everything") else { return };
    has_everything(&node("everything", &program).arguments(["stdio"]).time_max(Duration::from_secs(2))).await;
}

/// A server over HTTP; it ends with the test.
struct Listening(Child);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn the_server_that_has_everything_is_used_over_http() {
    let Some(program) = installed("server-everything") else { return };
    let free = TcpListener::bind(("127.0.0.1", 0)).and_then(|bound| bound.local_addr()).expect("a free port");
    let mut child = Command::new("node")
        .arg(&program)
        .arg("streamableHttp")
        .env("PORT", free.port().to_string())
        .stderr(Stdio::piped())
        .spawn()
        .expect("node runs");
    let said = BufReader::new(child.stderr.take().expect("a pipe"));
    let _listening = Listening(child);
    let mut said = said.lines().map_while(Result::ok);
    assert!(said.any(|line| line.contains("listening")), "it never listened");
    // Later output of the server is ignored, and must not block it.
    std::thread::spawn(move || said.count());
    let url = format!("http://127.0.0.1:{}/mcp", free.port());
    has_everything(&Server::address("everything", url).time_max(Duration::from_secs(2))).await;
}

#[tokio::test]
async fn the_server_for_files_reads_writes_and_stays_in_its_folder() {
    let Some(program) = installed("server-filesystem") else { return };
    let folder = TempDir::new().expect("a temporary folder");
    let root = folder.path().canonicalize().expect("it is there");
    let held = holding(&node("files", &program).arguments([root.display().to_string()]));
    let (inside, text) = (root.join("notes.txt"), "a line\nanother\n");
    let written = call(&held, "files_write_file", json!({"path": inside, "content": text})).await;
    assert_code(&written, codes::GATE_OK);
    assert_eq!(fs::read_to_string(&inside).expect("it was written"), text);
    let read = call(&held, "files_read_text_file", json!({"path": inside})).await;
    assert_eq!(value(&read), &json!({"content": text}));
    assert_code(&call(&held, "files_read_text_file", json!({"path": "/etc/passwd"})).await, codes::GATE_REPORTED);
}
