//! A call that would join private data, untrusted content and a way out: a user approves it, and it runs once.

use cantrip_reply::codes;
use rustix::process::Signal;
use serde_json::json;

use crate::serve::Server;
use crate::support::terminal::Terminal;
use crate::support::{Folder, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// The mediums and forms in which a gate without labels is called: a name, the medium, further lines of the spell, and
/// the answers of its script. In each the gate `note` is called once, and the cast ends with `over`.
const SHAPES: [(&str, &str, &str, &str); 4] = [
    (
        "tools",
        "conversation",
        "",
        "  - tool_calls: [{id: n, gate: note, args: {line: one}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    ),
    (
        "javascript",
        "javascript",
        "",
        "  - code: |\n      var read = 'before';\n      try { note({line: 'one'}) } catch (refused) { read = refused.code }\n      \
         done(read === 'before' ? 'over' : read)\n",
    ),
    (
        "python",
        "python",
        "",
        "  - code: |\n      read = 'over'\n      try:\n          note(line='one')\n      \
         except Exception as refused:\n          read = str(refused)\n      done(read)\n",
    ),
    (
        "child",
        "conversation",
        "[gates.call_agent]\n",
        "  - tool_calls: [{id: a, gate: call_agent, args: {intent: note it}}]\n  \
         - tool_calls: [{id: n, gate: note, args: {line: one}}]\n  \
         - tool_calls: [{id: e, gate: done, args: {answer: noted}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    ),
];

/// A spell whose command gate has no labels; it records each of its calls in `noted.log`.
fn folder(medium: &str, further: &str, answers: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        "notes.toml",
        &format!(
            "name = \"notes\"\ncrystal = \"scripted/notes.yaml\"\nmedium = \"{medium}\"\n[gates.note]\n\
             command = [\"./note.sh\"]\nparameters = {{type = \"object\", properties = {{line = {{type = \"string\"}}}}}}\n\
             {further}[wards]\nmax_turns = 5\n"
        ),
    );
    folder.write("notes.yaml", &format!("responses:\n{answers}"));
    folder.write("note.sh", "#!/bin/sh\ncat >> noted.log\necho >> noted.log\necho '{\"noted\": true}'\n");
    let program = folder.path().join("note.sh");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    folder
}

/// Returns the number of calls that the gate really received.
fn noted(folder: &Folder) -> usize {
    let log = std::fs::read_to_string(folder.path().join("noted.log")).unwrap_or_default();
    log.lines().filter(|line| line.contains("one")).count()
}

/// Casts the spell on a terminal where the user does not decide yet.
fn left_waiting(folder: &Folder, store: &str) {
    let mut terminal = Terminal::run(folder, &["cast", "notes.toml", "go", "--store", store]);
    terminal.wait_for("May it call note?");
    terminal.line("");
    terminal.wait_for("run approve");
    let (told, status) = terminal.end();
    assert_eq!(status, Some(5), "{told}");
    assert_eq!(noted(folder), 0);
}

#[test]
fn an_approved_call_runs_once_when_its_run_is_resumed_without_a_terminal() {
    for (name, medium, further, answers) in SHAPES {
        for store in [STORE, "jsonl:kept"] {
            let folder = folder(medium, further, answers);
            left_waiting(&folder, store);
            // Before a decision the run keeps waiting: nothing is denied because this process has no terminal.
            folder.envelope(&["run", "resume", "--store", store], codes::CREATED.any());
            let approved = folder.run(&["run", "approve", "--store", store]);
            assert_eq!(approved.status.code(), Some(0), "{name} in {store}: {approved:?}");
            let output = folder.run(&["run", "resume", "--store", store]);
            assert_eq!((output.status.code(), stdout(&output)), (Some(0), "over\n"), "{name} in {store}: {output:?}");
            assert_eq!(noted(&folder), 1, "{name} in {store}");
            folder.envelope(&["loom", "replay", "--store", store], codes::VERIFIED.any());
        }
    }
}

#[test]
fn a_refused_call_is_denied_and_never_runs() {
    for (name, medium, further, answers) in SHAPES {
        let folder = folder(medium, further, answers);
        left_waiting(&folder, STORE);
        let refused = folder.run(&["run", "refuse", "--because", "not today", "--store", STORE]);
        assert_eq!(refused.status.code(), Some(0), "{name}: {refused:?}");
        folder.envelope(&["run", "resume", "--store", STORE], codes::TERMINATED.any());
        assert_eq!(noted(&folder), 0, "{name}");
        let journal = folder.run(&["loom", "export", "--format", "journal", "--store", STORE]);
        let refusal = codes::APPROVAL_REFUSED.any();
        assert!(stdout(&journal).contains(refusal.as_str()), "{name}: {journal:?}");
        assert!(!stdout(&journal).contains(codes::TRIFECTA.any().as_str()), "{name}: {journal:?}");
    }
}

#[test]
fn a_call_approved_at_the_terminal_of_the_resume_runs_too() {
    let (_, medium, further, answers) = SHAPES[0];
    let folder = folder(medium, further, answers);
    left_waiting(&folder, STORE);
    let mut terminal = Terminal::run(&folder, &["run", "resume", "--store", STORE]);
    terminal.wait_for("May it call note?");
    terminal.line("1");
    terminal.wait_for("\nover\n");
    assert_eq!((terminal.end().1, noted(&folder)), (Some(0), 1));
}

#[test]
fn a_second_call_of_a_resumed_run_waits_as_the_first_did() {
    let answers = "  - tool_calls: [{id: n, gate: note, args: {line: one}}]\n  \
                   - tool_calls: [{id: m, gate: note, args: {line: one more}}]\n  \
                   - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";
    let folder = folder("conversation", "", answers);
    left_waiting(&folder, STORE);
    for count in 1..=2 {
        assert!(folder.run(&["run", "approve", "--store", STORE]).status.success());
        let code = if count == 1 { codes::CREATED.any() } else { codes::TERMINATED.any() };
        folder.envelope(&["run", "resume", "--store", STORE], code);
        assert_eq!(noted(&folder), count);
    }
    folder.envelope(&["loom", "replay", "--store", STORE], codes::VERIFIED.any());
    folder.envelope(&["policy", "replay", "--store", STORE], codes::VERIFIED.any());
}

#[test]
fn a_server_goes_on_with_what_was_approved_over_http() {
    for (decision, runs) in [("approve", 1), ("refuse", 0)] {
        let (_, medium, further, answers) = SHAPES[0];
        let folder = folder(medium, further, answers);
        let server = Server::start(&folder, &["--store", STORE]);
        let run = server.cast("notes");
        let seen = server.until(&run, |seen| seen["state"] == "waiting");
        assert_eq!(seen["approvals"][0]["gate"], "note", "{seen}");
        let body = json!({"decision": decision, "reason": "because"});
        let (status, told) = server.ask("POST", &format!("/v1/runs/{run}/approve"), Some(&body));
        assert_eq!(status, 200, "{told}");
        server.until(&run, |seen| seen["state"] == "terminated");
        assert_eq!(noted(&folder), runs, "{decision}");
        assert_eq!(server.stop(Signal::TERM), 0);
    }
}

#[test]
fn a_gate_without_labels_is_explained_whole_before_at_and_after_the_refusal() {
    let (_, medium, further, answers) = SHAPES[0];
    let folder = folder(medium, further, answers);
    let sentence = "gates without labels count as risky";
    let remedy = "if this one touches nothing sensitive, write labels = [] in [gates.note]";
    let dry = folder.run(&["cast", "notes.toml", "--dry-run"]);
    let told = stdout(&dry);
    assert!(told.contains(&format!("note: {sentence}")) && told.contains(remedy), "{told}");
    let dry = folder.envelope(&["cast", "notes.toml", "--dry-run"], codes::READ.any());
    assert_eq!(dry["data"]["unlabelled_gates"], json!(["note"]), "{dry}");
    let doctor = folder.run(&["doctor", "--store", STORE]);
    let told = stdout(&doctor);
    assert!(told.contains("gate note of") && told.contains(sentence) && told.contains(remedy), "{told}");
    // On a screen of 80 columns the sentence takes several lines, and none of it is cut.
    let mut terminal = Terminal::run(&folder, &["cast", "notes.toml", "go", "--store", STORE]);
    terminal.wait_for("May it call note?");
    terminal.wait_for("It would join private data, untrusted content and a way out; ");
    terminal.wait_for(&format!("{sentence}; {remedy}"));
    terminal.line("3");
    terminal.wait_for("Why not?");
    terminal.line("no reason that is short: this is a sentence that no screen of 80 columns has room for in one line");
    terminal.wait_for("room for");
    assert_eq!(terminal.end().1, Some(0));
    // If no user can be asked, the call is denied.
    let output = folder.run(&["cast", "notes.toml", "go", "--store", STORE]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "over\n"), "{output:?}");
    let refusal = format!("note would join private data, untrusted content and a way out; {sentence}; {remedy}");
    assert!(text.contains(&refusal), "{text}");
    assert!(text.contains("terminated after 2 turns; 1 call denied"), "{text}");
    let ended = folder.envelope(&["cast", "notes.toml", "go", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(ended["data"]["calls_denied"], 1, "{ended}");
    // Follow the advice.
    folder.write("notes.toml", &folder.read("notes.toml").replace("[gates.note]\n", "[gates.note]\nlabels = []\n"));
    let ended = folder.envelope(&["cast", "notes.toml", "go", "--store", STORE], codes::TERMINATED.any());
    assert_eq!((ended["data"].get("calls_denied"), noted(&folder)), (None, 1), "{ended}");
    let dry = folder.envelope(&["cast", "notes.toml", "--dry-run"], codes::READ.any());
    assert_eq!(dry["data"]["unlabelled_gates"], json!([]), "{dry}");
    let doctor = folder.run(&["doctor", "--store", STORE]);
    assert!(!stdout(&doctor).contains(sentence), "{doctor:?}");
}

#[test]
fn denied_calls_of_children_and_of_an_earlier_process_are_counted() {
    let (_, medium, further, answers) = SHAPES[3];
    let folder = folder(medium, further, answers);
    let ended = folder.envelope(&["cast", "notes.toml", "go", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(ended["data"]["calls_denied"], 1, "the child's: {ended}");
    let answers = "  - tool_calls: [{id: n, gate: note, args: {line: one}}]\n  \
                   - tool_calls: [{id: w, gate: write, args: {path: a.txt, content: a}}]\n  \
                   - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";
    let asks = "[gates.write]\nroot = \".\"\n";
    let folder = self::folder("conversation", asks, answers);
    folder.write("notes.toml", &format!("{}require_approval = [\"write\"]\n", folder.read("notes.toml")));
    folder.envelope(&["cast", "notes.toml", "go", "--store", STORE], codes::CREATED.any());
    assert!(folder.run(&["run", "approve", "--store", STORE]).status.success());
    let output = folder.run(&["run", "resume", "--store", STORE]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && text.contains("; 1 call denied"), "{output:?}");
}
