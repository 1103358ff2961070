//! A user at a terminal: history, blocks, Ctrl-C, coming back.

use crate::support;

use support::terminal::{CTRL_C, CTRL_D, ENTER, TAB, Terminal, UP, paste};
use support::{Folder, id, stdout};

/// A script whose second answer takes longer than any test waits.
fn with_thinker(folder: Folder) -> Folder {
    folder.write(
        "thinker.toml",
        "name = \"thinker\"\ncrystal = \"scripted/thinker.yaml\"\n[call]\nrequire_done_tool = true\n",
    );
    let done = |answer: &str| format!("tool_calls: [{{id: d, gate: done, args: {{answer: {answer}}}}}]");
    folder.write(
        "thinker.yaml",
        &format!(
            "responses:\n  - {}\n  - delay_ms: 600000\n    {}\n  - {}\n  - delay_ms: 600000\n    {}\n  - {}\n",
            done("first"),
            done("never"),
            done("second"),
            done("never"),
            done("third")
        ),
    );
    folder
}

#[test]
fn each_line_is_an_intent_and_leaving_says_how_to_come_back() {
    let folder = Folder::new().with_adder();
    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder · scripted/adder.yaml · javascript · jsonl:kept");
    terminal.wait_for("is ready");
    terminal.wait_for("adder> ");
    terminal.line("add two");
    terminal.wait_for("turn 1");
    terminal.wait_for("\n2\n");
    terminal.wait_for("terminated after 1 turn");
    terminal.wait_for("adder> ");
    terminal.line("add three");
    terminal.wait_for("turn 2");
    terminal.wait_for("adding");
    terminal.wait_for("turn 3");
    terminal.wait_for("\n5\n");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_D);
    let (left, status) = terminal.end();
    let entity = folder.seen(&["thread"])["entity"]["entity"]["entity_id"].clone();
    assert_eq!(left.trim(), format!("to come back: cantrip summon {}", id(&entity)));
    assert_eq!(status, Some(0));

    let mut terminal = Terminal::run(&folder, &["summon", id(&entity)]);
    terminal.wait_for("? add two\n    2\n  ? add three\n    5\n");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_C);
    let (left, status) = terminal.end();
    assert!(left.contains("to come back: cantrip summon ent_") && status == Some(0), "{left}");
}

#[test]
fn what_was_typed_in_one_sitting_is_at_hand_in_the_next() {
    let folder = Folder::new().with_adder();
    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder> ");
    terminal.line("the first of them");
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.line("\"\"\"");
    terminal.send(&format!("a block{ENTER}{ENTER}of lines{ENTER}\"\"\"{ENTER}"));
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(folder.intents(), ["the first of them", "a block\n\nof lines"]);

    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder> ");
    // The block is one entry; the line before it is the next entry.
    terminal.send(UP);
    terminal.wait_for("of lines");
    terminal.send(ENTER);
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(folder.intents(), ["a block\n\nof lines"], "it is sent as it was");
}

#[cfg(unix)]
#[test]
fn what_was_typed_is_nobody_elses_to_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new().with_adder();
    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder> ");
    terminal.line("a secret");
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    let mode = std::fs::metadata(folder.path().join("kept/history")).expect("a history").permissions().mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
}

#[test]
fn a_line_goes_on_behind_a_backslash_and_what_is_pasted_stays_together() {
    let folder = Folder::new().with_adder();
    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder> ");
    terminal.line("one \\");
    terminal.line("and two");
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.send(&paste("pasted\n/quit\n\nlines"));
    terminal.send(ENTER);
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(folder.intents(), ["one \nand two", "pasted\n/quit\n\nlines"]);
}

#[test]
fn ctrl_c_interrupts_a_cast_and_continue_goes_on_with_it() {
    let folder = with_thinker(Folder::new());
    let mut terminal = Terminal::run(&folder, &["summon", "thinker.toml"]);
    terminal.wait_for("thinker> ");
    terminal.line("one");
    terminal.wait_for("\nfirst\n");
    terminal.wait_for("thinker> ");
    terminal.line("two");
    terminal.wait_for("turn 2");
    terminal.send(CTRL_C);
    terminal.wait_for("waiting (interrupted)");
    terminal.wait_for("/continue");
    terminal.wait_for("thinker> ");
    terminal.line("/continue");
    terminal.wait_for("turn 2");
    terminal.wait_for("\nsecond\n");
    terminal.wait_for("thinker> ");
    // Another intent ends the waiting run.
    terminal.line("three");
    terminal.wait_for("turn 3");
    terminal.send(CTRL_C);
    terminal.wait_for("waiting (interrupted)");
    terminal.wait_for("thinker> ");
    terminal.line("four");
    terminal.wait_for("the previous cast was ended");
    terminal.wait_for("turn 3");
    terminal.wait_for("\nthird\n");
    terminal.wait_for("thinker> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    let thread = folder.seen(&["thread"]);
    let sequences: Vec<_> =
        thread["turns"].as_array().expect("turns").iter().map(|turn| turn["sequence"].clone()).collect();
    assert_eq!(sequences, [1, 2, 3], "nothing that was interrupted left a turn");
}

#[test]
fn an_entity_that_was_left_while_it_waited_can_be_gone_on_with_later() {
    let folder = with_thinker(Folder::new());
    folder.write("thinker.yaml", "responses:\n  - delay_ms: 600000\n    content: never\n");
    let mut terminal = Terminal::run(&folder, &["summon", "thinker.toml"]);
    terminal.wait_for("thinker> ");
    terminal.line("one");
    terminal.wait_for("turn 1");
    terminal.send(CTRL_C);
    terminal.wait_for("thinker> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    folder.write("thinker.yaml", "responses:\n  - tool_calls: [{id: d, gate: done, args: {answer: at last}}]\n");
    let mut terminal = Terminal::run(&folder, &["summon"]);
    terminal.wait_for("? one\n    not finished: /continue resumes it");
    terminal.wait_for("thinker> ");
    terminal.line("/continue");
    terminal.wait_for("\nat last\n");
    terminal.wait_for("thinker> ");
    terminal.send(CTRL_D);
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(folder.intents(), ["one"]);
}

#[test]
fn a_cast_interrupted_once_waits_and_twice_ends() {
    let folder = with_thinker(Folder::new());
    folder.write("thinker.yaml", "responses:\n  - delay_ms: 600000\n    content: never\n");
    let mut terminal = Terminal::run(&folder, &["cast", "thinker.toml", "think"]);
    terminal.wait_for("turn 1");
    terminal.send(CTRL_C);
    terminal.wait_for("waiting (interrupted)");
    let (told, status) = terminal.end();
    let command = told.lines().find(|line| line.contains("run resume")).expect("how to go on").trim();
    assert_eq!(status, Some(130));

    folder.write("thinker.yaml", "responses:\n  - tool_calls: [{id: d, gate: done, args: {answer: at last}}]\n");
    let output = folder.pasted(&format!("{command} --quiet"));
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "at last\n"), "{output:?}");

    // A running gate is awaited after the first Ctrl-C; a second press ends it.
    folder.write("sleeps.sh", "#!/bin/sh\nsleep 600\n");
    folder.write(
        "sleepy.toml",
        "name = \"sleepy\"\ncrystal = \"scripted/sleepy.yaml\"\n[gates.sleeps]\ncommand = [\"sh\", \"sleeps.sh\"]\n\
         timeout = \"10m\"\nlabels = []\n",
    );
    folder.write("sleepy.yaml", "responses:\n  - tool_calls: [{id: s, gate: sleeps, args: {}}]\n");
    let mut terminal = Terminal::run(&folder, &["cast", "sleepy.toml", "sleep"]);
    terminal.wait_for("> sleeps(");
    terminal.send(CTRL_C);
    terminal.wait_for("Ctrl-C again ends it");
    terminal.send(CTRL_C);
    terminal.wait_for("denied");
    let (told, status) = terminal.end();
    assert!(told.contains("truncated (cancelled)"), "{told}");
    assert_eq!(status, Some(3));
}

#[test]
fn commands_are_completed_and_answered() {
    let folder = Folder::new().with_adder();
    let mut terminal = Terminal::run(&folder, &["summon", "adder.toml"]);
    terminal.wait_for("adder> ");
    terminal.send(&format!("/he{TAB}{ENTER}"));
    terminal.wait_for("/fork N [INTENT]");
    terminal.wait_for("adder> ");
    terminal.line("add two");
    terminal.wait_for("terminated");
    terminal.wait_for("adder> ");
    terminal.line("/thread");
    terminal.wait_for("? add two");
    terminal.wait_for("adder> ");
    terminal.line("/fork 1 add more");
    terminal.wait_for("turn 2");
    terminal.wait_for("you are now talking to the fork; the original is ent_");
    terminal.wait_for("adder> ");
    terminal.line("/qiut");
    terminal.wait_for("did you mean /quit?");
    terminal.wait_for("adder> ");
    terminal.line("/quit");
    let (left, status) = terminal.end();
    assert!(left.contains("to come back: cantrip summon ent_"), "{left}");
    assert_eq!(status, Some(0), "what went wrong on the way was seen");
}

#[test]
fn an_entity_can_ask_the_person_at_the_terminal() {
    let folder = Folder::new();
    folder.write(
        "asker.toml",
        "name = \"asker\"\ncrystal = \"scripted/asker.yaml\"\nmedium = \"javascript\"\n[call]\nrequire_done_tool = true\n\
         [gates.ask_human]\n",
    );
    folder.write(
        "asker.yaml",
        "responses:\n  - code: |\n      done(ask_human({question: 'Which?', choices: ['red', 'blue']}))\n",
    );
    let mut terminal = Terminal::run(&folder, &["cast", "asker.toml", "ask"]);
    terminal.wait_for("? Which?");
    terminal.wait_for("2. blue");
    terminal.line("2");
    terminal.wait_for("\nblue\n");
    assert_eq!(terminal.end().1, Some(0));
}

#[test]
fn where_nobody_sits_the_question_is_refused_and_the_cast_goes_on() {
    let folder = Folder::new();
    folder.write(
        "asker.toml",
        "name = \"asker\"\ncrystal = \"scripted/asker.yaml\"\nmedium = \"javascript\"\n[gates.ask_human]\n",
    );
    folder.write(
        "asker.yaml",
        "responses:\n  - code: |\n      try { ask_human({question: 'Which?'}) } catch (refused) { done(refused.code) }\n",
    );
    // In its own session the process has no terminal.
    let mut command = std::process::Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_cantrip"), "cast", "asker.toml", "ask", "--quiet"]);
    folder.around(&mut command);
    let output = command.stdin(std::process::Stdio::null()).output().expect("the binary runs");
    assert_eq!(stdout(&output).trim(), cantrip_reply::codes::APPROVAL_REFUSED.any().as_str(), "{output:?}");
}
