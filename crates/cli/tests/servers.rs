//! MCP servers as the binary uses them.

use crate::support::{Folder, stderr, stdout};

use std::fs;
use std::path::Path;

use cantrip_reply::codes;

const SCRIPT: &str = "responses:\n  - tool_calls: [{id: c1, gate: small_add, args: {a: 2, b: 3}}]\n  \
                      - tool_calls: [{id: c2, gate: small_complain, args: {}}]\n  \
                      - tool_calls: [{id: c3, gate: done, args: {answer: over}}]\n";

fn folder() -> Folder {
    let folder = Folder::new();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../circle/tests/mcp/server.py");
    let spell = format!(
        "name = \"small\"\ncrystal = \"scripted/small.yaml\"\n[gates.small]\nmcp = [\"python3\", \"{}\"]\n\
         environment = {{ GIVEN = \"${{SMALL_KEY}}\" }}\nlabels = []\ntools = [\"add\", \"complain\"]\n[wards]\nmax_turns = 5\n",
        server.display()
    );
    folder.write("small.toml", &spell);
    folder.write("small.yaml", SCRIPT);
    folder
}

#[test]
fn a_cast_calls_the_tools_of_a_server_and_leaves_no_process() {
    let folder = folder();
    let mut command = folder.command(&["cast", "small.toml", "go", "--store", "sqlite:kept/loom.db"]);
    let output = command.env("SMALL_KEY", "a-secret-of-ours").env("CANTRIP_LOG", "info").output().unwrap();
    assert_eq!(stdout(&output), "over\n", "{output:?}");
    let log = stderr(&output);
    assert!(log.contains("a complaint about [REDACTED]") && !log.contains("a-secret-of-ours"), "{log}");
    let thread = folder.envelope(&["loom", "thread", "--store", "sqlite:kept/loom.db"], codes::READ.any());
    let call = &thread["data"]["value"]["turns"][0]["gate_calls"][0];
    assert_eq!(call["reply"]["code"], codes::GATE_OK.any().to_string(), "{call}");
    assert_eq!(call["result"], "5", "{call}");
    assert_eq!(folder.read("starts"), "started\n", "one process for all that was asked");
    let here = folder.path().canonicalize().unwrap();
    let left = fs::read_dir("/proc").unwrap().flatten();
    let left = left.filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|cwd| cwd == here)).count();
    assert_eq!(left, 0, "a server is still there");
}

#[test]
fn what_a_server_offers_is_shown_before_it_is_used() {
    let folder = folder();
    let dry = folder.command(&["cast", "small.toml", "--dry-run"]).env("SMALL_KEY", "x").output().unwrap();
    let shown = stdout(&dry);
    for part in ["# server small revision 2025-11-25", "\nadd: The tool add.\n", "\nsmall_add(a, b)\n"] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    let doctor = folder.command(&["doctor"]).env("SMALL_KEY", "x").output().unwrap();
    let shown = stdout(&doctor);
    assert!(shown.contains("small of ./small.toml: revision 2025-11-25, 16 tools: add, "), "{shown}");
    let without = folder.run(&["doctor"]);
    assert!(stdout(&without).contains("SMALL_KEY is not set"), "{without:?}");
}
