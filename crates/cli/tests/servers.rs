//! MCP servers as the binary uses them.

use crate::support::{Folder, stderr, stdout};

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const SCRIPT: &str = "responses:\n  - tool_calls: [{id: c1, gate: small_add, args: {a: 2, b: 3}}]\n  \
                      - tool_calls: [{id: c2, gate: small_complain, args: {}}]\n  \
                      - tool_calls: [{id: c3, gate: done, args: {answer: over}}]\n";

/// Returns the number of processes that work in this folder.
fn processes(folder: &Folder) -> usize {
    commands(folder).len()
}

/// Returns the command lines of the processes that run in this folder.
fn commands(folder: &Folder) -> Vec<String> {
    let here = folder.path().canonicalize().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten().map(|process| process.path());
    all.filter(|process| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == here))
        .map(|process| fs::read_to_string(process.join("cmdline")).unwrap_or_default().replace('\0', " "))
        .collect()
}

/// Waits for a condition; a machine that is slower than this is broken.
fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(180), "it did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn folder() -> Folder {
    let folder = Folder::new();
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate-mcp/tests/server.py");
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
fn a_tool_that_is_named_after_its_server_is_a_gate_of_that_name() {
    let folder = folder();
    let spell = folder.read("small.toml").replace("GIVEN = \"${SMALL_KEY}\"", "PREFIXED = \"1\"");
    folder.write("small.toml", &spell.replace("\"complain\"", "\"small_total\", \"small_add\""));
    // The gate of the tool `add` has the name `small_add` already.
    folder.write(
        "small.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: small_total, args: {a: 2, b: 3}}]\n  \
         - tool_calls: [{id: c2, gate: small_small_add, args: {a: 2, b: 4}}]\n  \
         - tool_calls: [{id: c3, gate: small_add, args: {a: 2, b: 5}}]\n  \
         - tool_calls: [{id: c4, gate: done, args: {answer: over}}]\n",
    );
    folder.envelope(&["cast", "small.toml", "go", "--store", "sqlite:kept/loom.db"], codes::TERMINATED.any());
    let thread = folder.envelope(&["loom", "thread", "--store", "sqlite:kept/loom.db"], codes::READ.any());
    for (turn, sum) in ["5", "6", "7"].iter().enumerate() {
        let call = &thread["data"]["value"]["turns"][turn]["gate_calls"][0];
        assert_eq!((&call["result"], &call["reply"]["code"]), (&json!(sum), &json!(codes::GATE_OK.any())), "{call}");
    }
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
    assert_eq!(processes(&folder), 0, "a server is still there");
}

#[test]
fn no_server_outlives_a_process_that_is_killed() {
    let folder = folder();
    let spell = folder.read("small.toml").replace("[\"add\", \"complain\"]", "[\"hang\"]");
    folder.write("small.toml", &spell.replace("environment = {", "environment = { STAYS = \"yes\","));
    folder.write("small.yaml", "responses:\n  - tool_calls: [{id: c1, gate: small_hang, args: {}}]\n");
    let mut command = folder.command(&["cast", "small.toml", "go"]);
    let mut cast = command.env("SMALL_KEY", "x").stderr(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
    // The server started a process of its own, which does not end with its input.
    let began = Instant::now();
    while !commands(&folder).iter().any(|command| command.starts_with("sleep ")) {
        let ended = cast.try_wait().unwrap();
        assert!(ended.is_none() && began.elapsed() < Duration::from_secs(180), "{ended:?} {:?}", commands(&folder));
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&cast), Signal::KILL).unwrap();
    cast.wait().unwrap();
    until(|| processes(&folder) == 0);
}

#[test]
fn progress_is_shown_while_a_call_runs() {
    let folder = folder();
    folder.write("small.toml", &folder.read("small.toml").replace("[\"add\", \"complain\"]", "[\"slow\"]"));
    folder.write(
        "small.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: small_slow, args: {}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: over}}]\n",
    );
    let output = folder.command(&["cast", "small.toml", "go"]).env("SMALL_KEY", "x").output().unwrap();
    assert_eq!(stdout(&output), "over\n", "{output:?}");
    let shown = stderr(&output);
    assert!(shown.contains("small_slow: 1/5 step 1"), "{shown}");
    assert!(!shown.contains("2/5"), "once a second is enough: {shown}");
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
