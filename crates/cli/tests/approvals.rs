//! A user at the terminal decides about calls while the cast is on the screen.

use crate::support::terminal::{CTRL_D, Terminal};
use crate::support::{Folder, id};

use cantrip_reply::codes;

const SPELL: &str = "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\n[gates.edit]\nroot = \".\"\n[gates.shell]\n\
                     [wards]\nmax_turns = 9\nrequire_approval = [\"edit\", \"shell\"]\n";

fn script(calls: &[&str]) -> String {
    let calls = calls.iter().enumerate();
    let said = calls.map(|(at, call)| format!("  - tool_calls: [{{id: c{at}, {call}}}]\n"));
    format!("responses:\n{}  - tool_calls: [{{id: d, gate: done, args: {{answer: over}}}}]\n", said.collect::<String>())
}

fn folder(calls: &[&str]) -> Folder {
    let folder = Folder::new();
    folder.write("hands.toml", SPELL);
    folder.write("hands.yaml", &script(calls));
    folder.write("note.txt", "one\ntwo\nthree\n");
    folder
}

const EDIT: &str = "gate: edit, args: {path: note.txt, old: two, new: zwei}";

#[test]
fn a_change_is_shown_as_a_difference_and_made_once_it_is_allowed() {
    let folder = folder(&[EDIT, EDIT]);
    let mut terminal = Terminal::run(&folder, &["cast", "hands.toml", "go"]);
    terminal.wait_for("May it call edit?");
    terminal.wait_for("-two");
    terminal.wait_for("+zwei");
    terminal.wait_for("3. no, and say why");
    assert_eq!(folder.read("note.txt"), "one\ntwo\nthree\n");
    terminal.line("1");
    terminal.wait_for("May it call edit?");
    assert_eq!(folder.read("note.txt"), "one\nzwei\nthree\n");
    terminal.line("3");
    terminal.wait_for("Why not?");
    terminal.line("leave it alone");
    let (left, status) = terminal.end();
    assert!(left.contains("leave it alone") && left.contains("EN-GATE-D-003"), "the entity reads it: {left}");
    assert_eq!(status, Some(0));
}

#[test]
fn what_is_allowed_for_the_run_is_not_asked_again_and_the_shell_lives_through_it() {
    let folder = folder(&[
        "gate: shell, args: {command: 'x=kept; cd /tmp'}",
        "gate: shell, args: {command: 'echo $x $PWD'}",
        EDIT,
    ]);
    let mut terminal = Terminal::run(&folder, &["cast", "hands.toml", "go"]);
    terminal.wait_for("May it call shell?");
    terminal.wait_for("x=kept; cd /tmp");
    terminal.line("2");
    terminal.wait_for("kept /tmp");
    // Another gate is another question; an empty answer leaves the run waiting.
    terminal.wait_for("May it call edit?");
    terminal.line("");
    let (left, status) = terminal.end();
    assert!(left.contains("run approve"), "{left}");
    assert_eq!(status, Some(5), "it waits");
    let listed = folder.envelope(&["run", "ls"], codes::READ.any());
    assert_eq!(id(&listed["data"]["value"][0]["standing"]), "waiting");
}

#[test]
fn an_entity_that_is_summoned_asks_too() {
    let folder =
        folder(&["gate: shell, args: {command: 'x=kept; cd /tmp'}", "gate: shell, args: {command: 'echo $x $PWD'}"]);
    let further = "  - tool_calls: [{id: e0, gate: shell, args: {command: 'echo once more'}}]\n  \
                   - tool_calls: [{id: e1, gate: done, args: {answer: again}}]\n";
    folder.write("hands.yaml", &format!("{}{further}", folder.read("hands.yaml")));
    let mut terminal = Terminal::run(&folder, &["summon", "hands.toml"]);
    terminal.wait_for("hands> ");
    terminal.line("go");
    terminal.wait_for("May it call shell?");
    terminal.line("2");
    terminal.wait_for("kept /tmp");
    terminal.wait_for("terminated after 3 turns");
    terminal.wait_for("hands> ");
    // An approval for one intent does not apply to the next.
    terminal.line("and on");
    terminal.wait_for("turn 4");
    terminal.wait_for("May it call shell?");
    terminal.line("3");
    terminal.wait_for("Why not?");
    terminal.line("enough for today");
    terminal.wait_for("enough for today");
    terminal.wait_for("again");
    terminal.wait_for("hands> ");
    terminal.send(CTRL_D);
    let (left, status) = terminal.end();
    assert!(left.contains("to come back:"), "{left}");
    assert_eq!(status, Some(0));
}

#[test]
fn what_costs_something_is_shown_with_its_price_and_asked_about_each_time() {
    let folder = Folder::new();
    folder.write(
        "pays.toml",
        "name = \"pays\"\ncrystal = \"scripted/pays.yaml\"\n[gates.pay]\ncommand = [\"./pay.sh\"]\nlabels = []\n\
         settlement = {most = \"0.05 USD\", correlation = \"/id\"}\n[wards]\nmax_turns = 9\n",
    );
    let pay = "gate: pay, args: {to: 'someone'}";
    folder.write("pays.yaml", &script(&[pay, pay]));
    folder.write("pay.sh", "#!/bin/sh\ncat >> paid.log\necho '{\"id\": \"1\"}'\n");
    let program = folder.path().join("pay.sh");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    let store = "sqlite:kept/loom.db";
    let authorize = ["spend", "authorize", "--mode", "interactive", "--agent", "pays", "--store", store];
    folder.envelope(&authorize, codes::CREATED.any());
    let mut terminal = Terminal::run(&folder, &["cast", "pays.toml", "go", "--store", store]);
    terminal.wait_for("May it spend up to 0.05 USD on pay?");
    terminal.wait_for("approval_required.interactive");
    assert!(!folder.path().join("paid.log").exists());
    terminal.line("2");
    // An approval for the run does not cover its money.
    terminal.wait_for("May it spend up to 0.05 USD on pay?");
    terminal.line("3");
    terminal.wait_for("Why not?");
    terminal.line("once is enough");
    let (left, status) = terminal.end();
    assert!(left.contains("EN-GATE-D-003"), "{left}");
    assert_eq!((status, folder.read("paid.log").matches("someone").count()), (Some(0), 1));
}
