//! Files that affect later casts, through the binary: no entity writes them without an approval, and an address that a
//! spell names gets no key before the user has confirmed it.

use crate::support::keyed::{Keyed, Says};
use crate::support::terminal::Terminal;
use crate::support::{Folder, stderr, stdout};

use std::fs;
use std::process::Stdio;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::json;

const NAMES: [&str; 5] = ["AGENTS.md", "cantrip.toml", "writer.toml", "beside.toml", "spells/other.toml"];

/// A cast that writes each of these files, and one that is not protected.
fn folder() -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("spells")).unwrap();
    folder.write("AGENTS.md", "as it was");
    folder.write("cantrip.toml", "crystal = \"ollama/m\"\n");
    let other = "name = \"other\"\ncrystal = \"scripted/writer.yaml\"\n";
    folder.write("beside.toml", other);
    folder.write("spells/other.toml", other);
    folder.write(
        "writer.toml",
        "name = \"writer\"\ncrystal = \"scripted/writer.yaml\"\n[gates.write]\nroot = \".\"\n[gates.edit]\nroot = \".\"\n\
         [gates.call_agent]\n[wards]\nmax_turns = 20\nmax_depth = 2\n",
    );
    let write = |name: &str| format!("{{gate: write, args: {{path: {name}, content: planted}}}}");
    let all: Vec<String> = NAMES.into_iter().chain(["notes.md"]).map(write).collect();
    let calls: String = all
        .iter()
        .enumerate()
        .map(|(at, call)| format!("  - tool_calls: [{{id: c{at}, {}]\n", call.trim_start_matches('{')))
        .collect();
    folder.write(
        "writer.yaml",
        &format!("responses:\n{calls}  - tool_calls: [{{id: d, gate: done, args: {{answer: over}}}}]\n"),
    );
    folder
}

#[test]
fn nobody_writes_what_decides_about_later_casts_where_nobody_can_be_asked() {
    let folder = folder();
    let before = NAMES.map(|name| folder.read(name));
    let output = folder.run(&["cast", "writer.toml", "go", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(NAMES.map(|name| folder.read(name)), before);
    assert_eq!(folder.read("notes.md"), "planted");
    let thread = folder.seen(&["thread"]);
    let codes_of: Vec<&str> = thread["turns"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|turn| turn["gate_calls"][0]["reply"]["code"].as_str().or(turn["gate_calls"][0]["code"].as_str()))
        .collect();
    let denied = codes_of.iter().filter(|code| **code == codes::WRITE_PROTECTED.as_str()).count();
    assert_eq!(denied, NAMES.len(), "{thread}");
    folder.envelope(&["loom", "replay"], codes::VERIFIED.any());
}

/// Refuses every file but `AGENTS.md`, which was allowed before, and checks that only the allowed files were written.
fn refuse_the_rest(folder: &Folder, mut terminal: Terminal) {
    for name in &NAMES[1..] {
        terminal.wait_for(&format!("It would change {name}"));
        terminal.line("3");
        terminal.wait_for("Why not?");
        terminal.line("not this one");
    }
    let (left, status) = terminal.end();
    assert_eq!(status, Some(0), "{left}");
    assert_eq!(folder.read("AGENTS.md"), "planted");
    assert!(NAMES[1..].iter().all(|name| folder.read(name) != "planted"));
    assert_eq!(folder.read("notes.md"), "planted");
}

#[test]
fn a_person_is_told_the_danger_and_may_allow_it() {
    let folder = folder();
    let mut terminal = Terminal::run(&folder, &["cast", "writer.toml", "go"]);
    terminal.wait_for("May it call write?");
    terminal.wait_for("It would change AGENTS.md: later casts read it");
    assert_eq!(folder.read("AGENTS.md"), "as it was");
    // An approval for the rest of the run does not apply to these files.
    terminal.line("2");
    refuse_the_rest(&folder, terminal);
}

/// The folder with a spell whose entity delegates all writes to a child.
fn folder_with_child() -> Folder {
    let folder = folder();
    folder.write(
        "parent.toml",
        "name = \"parent\"\ncrystal = \"scripted/parent.yaml\"\n[gates.write]\nroot = \".\"\n\
         [gates.call_agent]\ncrystal = [\"scripted/writer.yaml\"]\n[wards]\nmax_turns = 20\nmax_depth = 2\n",
    );
    folder.write(
        "parent.yaml",
        "responses:\n  - tool_calls: [{id: p1, gate: call_agent, args: {intent: write them, gates: [write]}}]\n  \
         - tool_calls: [{id: p2, gate: done, args: {answer: over}}]\n",
    );
    folder
}

#[test]
fn a_child_writes_what_decides_about_later_casts_no_more_than_its_parent_does() {
    let folder = folder_with_child();
    let before = NAMES.map(|name| folder.read(name));
    let output = folder.run(&["cast", "parent.toml", "go", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(NAMES.map(|name| folder.read(name)), before);
    assert_eq!(folder.read("notes.md"), "planted", "the child wrote what anybody may write");
    let journal = folder.run(&["loom", "export", "--format", "journal", "--no-redact"]);
    let denied = stdout(&journal).matches(codes::WRITE_PROTECTED.as_str()).count();
    assert!(denied >= NAMES.len(), "{denied} of {}", NAMES.len());
    folder.envelope(&["loom", "replay"], codes::VERIFIED.any());
}

#[test]
fn a_person_is_asked_about_what_a_child_would_write() {
    let folder = folder_with_child();
    let mut terminal = Terminal::run(&folder, &["cast", "parent.toml", "go"]);
    terminal.wait_for("May it call write?");
    terminal.wait_for("It would change AGENTS.md: later casts read it");
    assert_eq!(folder.read("AGENTS.md"), "as it was");
    terminal.line("1");
    refuse_the_rest(&folder, terminal);
}

#[test]
fn an_address_is_confirmed_at_the_terminal_and_not_asked_about_again() {
    const KEY: &str = "sk-planted-key-0123456789";
    let answer = json!({"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]});
    let peer = Keyed::start(Some(KEY), move |_, _| Says::Events(vec![answer.to_string(), "[DONE]".to_owned()]));
    let folder = Folder::new();
    folder.write(
        "far.toml",
        &format!(
            "name = \"far\"\n[crystal]\nmodel = \"openrouter/m\"\nbase_url = \"{}/v1\"\n[wards]\nmax_turns = 1\n",
            peer.origin()
        ),
    );
    let variables = [("OPENROUTER_API_KEY", KEY.to_owned())];
    let question = format!("The spell sends your key of openrouter to {}", peer.origin());
    let kept = folder.path().join(".config/cantrip/confirmed-addresses");
    // Any answer but yes means no, and nothing is sent.
    for said in ["", "no", "y"] {
        let mut terminal = Terminal::run_with(&folder, &["cast", "far.toml", "go"], &variables);
        terminal.wait_for(&question);
        terminal.wait_for("Type yes to confirm:");
        assert!(peer.asked().is_empty(), "somebody was sent the key before it was confirmed");
        terminal.line(said);
        let (left, status) = terminal.end();
        assert_eq!(status, Some(3), "{left}");
        assert!(left.contains(codes::ADDRESS_UNCONFIRMED.as_str()), "{left}");
        assert!(left.contains("cantrip confirm openrouter"), "{left}");
        assert!(peer.asked().is_empty() && !kept.exists());
    }
    let mut terminal = Terminal::run_with(&folder, &["cast", "far.toml", "go"], &variables);
    terminal.wait_for(&question);
    terminal.line("yes");
    terminal.wait_for("hello");
    let (left, status) = terminal.end();
    assert_eq!(status, Some(0), "{left}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), format!("openrouter {}\n", peer.origin()));
    let mut terminal = Terminal::run_with(&folder, &["cast", "far.toml", "go"], &variables);
    terminal.wait_for("hello");
    let shown = terminal.text();
    let (left, status) = terminal.end();
    assert_eq!(status, Some(0), "{left}");
    assert!(!format!("{shown}{left}").contains("Type yes"), "it was asked again: {shown}{left}");
    assert_eq!(peer.posted().len(), 2);
}

#[test]
fn an_address_is_confirmed_by_a_command_where_nobody_can_be_asked() {
    let folder = Folder::new();
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    folder.write(
        "far.toml",
        &format!(
            "name = \"far\"\n[crystal]\nmodel = \"openai/m\"\nbase_url = \"{address}/v1\"\n[wards]\nmax_turns = 1\n"
        ),
    );
    let mut command = folder.command(&["cast", "far.toml", "go"]);
    let output = command.env("OPENAI_API_KEY", "sk-planted-key-0123456789").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let told = stderr(&output);
    assert!(told.contains(codes::ADDRESS_UNCONFIRMED.as_str()), "{told}");
    assert!(told.contains(&format!("cantrip confirm openai {address}")), "{told}");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "somebody was sent the key");
    folder.envelope(&["confirm", "nobody", &address], codes::CONFIG_INVALID.any());
    folder.envelope(&["confirm", "openai", "https://me:key@a.example"], codes::CONFIG_INVALID.any());
    folder.envelope(&["confirm", "openai", &address], codes::CREATED.any());
    assert_eq!(folder.read(".config/cantrip/confirmed-addresses"), format!("openai {address}\n"));
    // The key of another provider and another port are separate questions.
    let mut command = folder.command(&["cast", "far.toml", "go", "--dry-run", "--json"]);
    let output = command.env("OPENAI_API_KEY", "sk-planted-key-0123456789").stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    folder.write("far.toml", &folder.read("far.toml").replace("openai/m", "openrouter/m"));
    let mut command = folder.command(&["cast", "far.toml", "go", "--json"]);
    let output = command.env("OPENROUTER_API_KEY", "sk-planted-key-0123456789").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_envelope(&serde_json::from_slice(&output.stdout).unwrap(), codes::ADDRESS_UNCONFIRMED.any());
}
