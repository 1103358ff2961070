//! The file changes of a run are shown and undone, and the changes of others stay.

use crate::support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use serde_json::{Value, json};
use support::{Folder, id, stderr, stdout};

const STORE: [&str; 2] = ["--store", "sqlite:kept/loom.db"];

/// A spell whose entity makes the calls of these turns in a folder `work`, and ends.
fn scribe(turns: &[&str]) -> Folder {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("work")).expect("a folder");
    folder.write(
        "scribe.toml",
        "name = \"scribe\"\ncrystal = \"scripted/scribe.yaml\"\n[gates.write]\nroot = \"work\"\n[gates.edit]\n\
         root = \"work\"\n[gates.call_agent]\n[gates.meddle]\ncommand = [\"./meddle.sh\"]\nlabels = []\n\
         [wards]\nmax_turns = 20\n",
    );
    folder.write("meddle.sh", "#!/bin/sh\nread -r call\necho meddled >> work/a.txt\necho '{\"ok\": 1}'\n");
    let script = folder.path().join("meddle.sh");
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).expect("a script");
    let turns: String = turns.iter().map(|calls| format!("  - tool_calls: [{calls}]\n")).collect();
    let done = "  - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";
    folder.write("scribe.yaml", &format!("responses:\n{turns}{done}"));
    folder
}

fn write(id: &str, path: &str, content: &str) -> String {
    json!({"id": id, "gate": "write", "args": {"path": path, "content": content}}).to_string()
}

fn edit(id: &str, path: &str, old: &str, new: &str) -> String {
    json!({"id": id, "gate": "edit", "args": {"path": path, "old": old, "new": new}}).to_string()
}

fn on<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [arguments, &STORE].concat()
}

#[track_caller]
fn cast(folder: &Folder) {
    let over = folder.envelope(&on(&["cast", "scribe.toml", "write"]), codes::TERMINATED.any());
    assert_eq!(over["data"]["answer"], "over");
}

/// Returns the paths in one list of an undo's report.
fn paths(envelope: &Value, key: &str) -> Vec<String> {
    let listed = envelope["data"][key].as_array().unwrap_or_else(|| panic!("{key}: {envelope}"));
    let path = |entry: &Value| id(entry.get("path").unwrap_or(entry)).to_owned();
    listed.iter().map(path).collect()
}

#[test]
fn what_a_run_changed_is_shown_and_put_back_with_what_its_children_did() {
    let child = "{id: c, gate: call_agent, args: {intent: 'write too'}}";
    let over = "{id: e, gate: done, args: {answer: child}}";
    let turns = [
        edit("1", "a.txt", "two", "2"),
        [edit("2", "a.txt", "three", "3"), write("3", "new.txt", "made here\n")].join(", "),
        write("4", "bytes.bin", "now text\n"),
        child.to_owned(),
        [edit("5", "a.txt", "one", "1"), write("6", "child.txt", "no newline")].join(", "),
        over.to_owned(),
    ];
    let folder = scribe(&turns.each_ref().map(String::as_str));
    folder.write("work/a.txt", "one\ntwo\nthree\n");
    let script = folder.path().join("work/a.txt");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).expect("rights");
    fs::write(folder.path().join("work/bytes.bin"), [0, 159, 146, 150]).expect("a file");
    cast(&folder);
    assert_eq!(folder.read("work/a.txt"), "1\n2\n3\n");

    let diff = folder.run(&on(&["run", "diff"]));
    let wanted = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n-one\n-two\n-three\n+1\n+2\n+3\n\
                  Binary file bytes.bin changed, 4 bytes to 9 bytes\n\
                  --- /dev/null\n+++ b/child.txt\n@@ -0,0 +1 @@\n+no newline\n\\ No newline at end of file\n\
                  --- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+made here\n";
    assert_eq!(stdout(&diff), wanted, "{diff:?}");
    let shown = folder.envelope(&on(&["run", "diff"]), codes::READ.any());
    let files = shown["data"]["value"]["files"].as_array().expect("files");
    let touched: Vec<_> = files.iter().map(|file| (id(&file["path"]), id(&file["touched"]))).collect();
    assert_eq!(
        touched,
        [("a.txt", "changed"), ("bytes.bin", "changed"), ("child.txt", "created"), ("new.txt", "created")]
    );
    assert_eq!((&files[1]["unified"], &files[1]["before"]["bytes"]), (&Value::Null, &json!(4)));

    let undone = folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!(paths(&undone, "restored"), ["a.txt", "bytes.bin"]);
    assert_eq!(paths(&undone, "deleted"), ["child.txt", "new.txt"]);
    assert_eq!(folder.read("work/a.txt"), "one\ntwo\nthree\n");
    assert_eq!(fs::metadata(&script).expect("a file").permissions().mode() & 0o777, 0o750);
    assert_eq!(fs::read(folder.path().join("work/bytes.bin")).expect("a file"), [0, 159, 146, 150]);
    let left = fs::read_dir(folder.path().join("work")).expect("a folder").count();
    assert_eq!(left, 2, "what was made is gone, and nothing lies beside");

    let again = folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!(paths(&again, "already"), ["a.txt", "bytes.bin", "child.txt", "new.txt"]);
    assert!(paths(&again, "restored").is_empty() && paths(&again, "deleted").is_empty());
    let told = folder.run(&on(&["run", "undo"]));
    assert!(stdout(&told).contains("nothing to undo"), "{told:?}");
    // The record still shows the run's changes after the undo.
    assert_eq!(stdout(&folder.run(&on(&["run", "diff"]))), wanted);
    folder.envelope(&on(&["loom", "verify"]), codes::VERIFIED.any());
}

#[test]
fn a_file_that_was_changed_or_deleted_since_is_named_and_left_alone() {
    let turns = [write("1", "a.txt", "a\n"), write("2", "b.txt", "b\n"), write("3", "c.txt", "c\n")].join(", ");
    let folder = scribe(&[&turns]);
    folder.write("work/a.txt", "before a\n");
    folder.write("work/b.txt", "before b\n");
    cast(&folder);
    folder.write("work/b.txt", "mine now\n");
    fs::remove_file(folder.path().join("work/c.txt")).expect("it is there");
    folder.write("work/a.txt", "mine too\n");
    let refused = folder.envelope(&on(&["run", "undo"]), codes::WRONG_STATE.any());
    assert_eq!(paths(&refused, "left"), ["a.txt", "b.txt"]);
    // A file that the run created is already gone, as the undo would leave it.
    assert_eq!(paths(&refused, "already"), ["c.txt"]);
    assert_eq!(refused["data"]["left"][0]["why"], "changed_since");
    assert_eq!((folder.read("work/a.txt"), folder.read("work/b.txt")), ("mine too\n".into(), "mine now\n".into()));
    // With the content that the run left, the file can be undone.
    folder.write("work/a.txt", "a\n");
    fs::remove_file(folder.path().join("work/b.txt")).expect("it is there");
    let partly = folder.run(&on(&["run", "undo"]));
    assert_eq!(partly.status.code(), Some(2));
    let told = stdout(&partly);
    assert!(told.contains("restored  a.txt") && told.contains("b.txt  deleted since"), "{told}");
    assert!(stderr(&partly).contains("invalid: file b.txt is deleted since"), "{partly:?}");
    assert_eq!(folder.read("work/a.txt"), "before a\n");
    assert!(!folder.path().join("work/b.txt").exists());
}

#[test]
fn what_came_after_a_turn_is_undone_and_later_the_rest() {
    let turns = [write("1", "a.txt", "v1"), write("2", "a.txt", "v2"), write("3", "a.txt", "v3")];
    let folder = scribe(&turns.each_ref().map(String::as_str));
    folder.write("work/a.txt", "v0");
    cast(&folder);
    let since = folder.run(&on(&["run", "diff", "--since", "2"]));
    assert!(stdout(&since).contains("-v2") && stdout(&since).contains("+v3"), "{since:?}");
    folder.envelope(&on(&["run", "undo", "--to", "9"]), codes::NOT_FOUND.any());
    assert_eq!(folder.read("work/a.txt"), "v3");
    let thread = folder.envelope(&on(&["loom", "thread"]), codes::READ.any());
    let second = id(&thread["data"]["value"]["turns"][1]["id"]).to_owned();
    let undone = folder.envelope(&on(&["run", "undo", "--to", &second]), codes::CHANGED.any());
    assert_eq!((paths(&undone, "restored"), folder.read("work/a.txt")), (vec!["a.txt".to_owned()], "v2".to_owned()));
    folder.envelope(&on(&["run", "undo", "--to", "1"]), codes::CHANGED.any());
    assert_eq!(folder.read("work/a.txt"), "v1");
    // An undo does not move forward again.
    let further = folder.envelope(&on(&["run", "undo", "--to", "2"]), codes::CHANGED.any());
    assert_eq!((paths(&further, "already"), folder.read("work/a.txt")), (vec!["a.txt".to_owned()], "v1".to_owned()));
    folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!(folder.read("work/a.txt"), "v0");
    // A turn of another run is not valid for this one.
    let folder = folder.with_hello();
    folder.envelope(&on(&["cast", "hello.toml", "say hello"]), codes::TERMINATED.any());
    let refused = folder.envelope(&on(&["run", "undo", "@last", "--to", &second]), codes::NOT_FOUND.any());
    assert!(id(&refused["data"]["hint"]).contains("loom thread"), "{refused}");
}

#[test]
fn what_someone_else_did_between_two_calls_is_not_lost() {
    let turns =
        [edit("1", "a.txt", "one", "1"), "{id: m, gate: meddle, args: {}}".into(), edit("2", "a.txt", "1", "I")];
    let folder = scribe(&turns.each_ref().map(String::as_str));
    folder.write("work/a.txt", "one\n");
    cast(&folder);
    let refused = folder.envelope(&on(&["run", "undo"]), codes::WRONG_STATE.any());
    assert_eq!(refused["data"]["left"][0]["why"], "changed_between", "{refused}");
    assert_eq!(folder.read("work/a.txt"), "I\nmeddled\n");
    let diff = folder.envelope(&on(&["run", "diff"]), codes::READ.any());
    assert_eq!(diff["data"]["value"]["files"][0]["others_between"], true);
    // The later changes can be undone.
    folder.envelope(&on(&["run", "undo", "--to", "2"]), codes::CHANGED.any());
    assert_eq!(folder.read("work/a.txt"), "1\nmeddled\n");
}

#[test]
fn a_run_that_changed_nothing_is_undone_at_once_and_an_unknown_one_is_looked_for_in_the_list() {
    let folder = Folder::new().with_hello();
    folder.envelope(&on(&["cast", "hello.toml", "say hello"]), codes::TERMINATED.any());
    let undone = folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!((undone["data"]["restored"].clone(), undone["data"]["left"].clone()), (json!([]), json!([])));
    assert_eq!(stdout(&folder.run(&on(&["run", "diff"]))), "it changed no files\n");
    for command in ["show", "diff", "undo"] {
        let unknown = on(&["run", command, "run_00000000000000000000000000"]);
        let refused = folder.envelope(&unknown, codes::NOT_FOUND.any());
        assert_eq!(refused["data"]["hint"], "cantrip run ls", "{command}");
    }
}

#[test]
fn a_copy_of_a_run_is_shown_and_not_undone() {
    let folder = scribe(&[&write("1", "a.txt", "new\n")]);
    folder.write("work/a.txt", "old\n");
    cast(&folder);
    let exported = folder.run(&on(&["loom", "export", "--format", "journal", "--no-redact"]));
    fs::write(folder.path().join("copy.jsonl"), &exported.stdout).expect("a file");
    let copy = ["--store", "sqlite:copy/loom.db"];
    folder.envelope(&[&["loom", "import", "copy.jsonl"][..], &copy].concat(), codes::CREATED.any());
    let diff = folder.run(&[&["run", "diff"][..], &copy].concat());
    assert!(stdout(&diff).contains("-old\n+new"), "{diff:?}");
    let refused = folder.envelope(&[&["run", "undo"][..], &copy].concat(), codes::WRONG_STATE.any());
    assert!(id(&refused["data"]["hint"]).contains("where it was cast"), "{refused}");
    assert_eq!(folder.read("work/a.txt"), "new\n");
}

#[test]
fn without_its_spell_or_its_folder_a_run_says_what_is_missing() {
    let folder = scribe(&[&write("1", "a.txt", "new\n")]);
    folder.write("work/a.txt", "old\n");
    cast(&folder);
    let spell = folder.read("scribe.toml");
    // A spell that was changed since may mean other files; a named spell is used without a check.
    folder.write("scribe.toml", &spell.replace("max_turns = 20", "max_turns = 21"));
    folder.envelope(&on(&["run", "undo"]), codes::CONTRACT_INVALID.any());
    fs::rename(folder.path().join("scribe.toml"), folder.path().join("moved.txt")).expect("it moves");
    let refused = folder.envelope(&on(&["run", "undo"]), codes::NOT_FOUND.any());
    assert!(id(&refused["data"]["hint"]).contains("--spell FILE"), "{refused}");
    fs::rename(folder.path().join("work"), folder.path().join("elsewhere")).expect("it moves");
    let refused = folder.envelope(&on(&["run", "undo", "--spell", "moved.txt"]), codes::TARGET_UNUSABLE.any());
    assert!(id(&refused["data"]["hint"]).starts_with("make it again"), "{refused}");
    fs::rename(folder.path().join("elsewhere"), folder.path().join("work")).expect("it moves");
    assert_eq!(folder.read("work/a.txt"), "new\n");
    folder.envelope(&on(&["run", "undo", "--spell", "moved.txt"]), codes::CHANGED.any());
    assert_eq!(folder.read("work/a.txt"), "old\n");
}

#[test]
fn no_link_leads_an_undoing_out_of_its_folder() {
    let turns = [write("1", "in/a.txt", "left"), write("2", "b.txt", "left"), write("3", "c.txt", "left")].join(", ");
    let folder = scribe(&[&turns]);
    fs::create_dir(folder.path().join("work/in")).expect("a folder");
    folder.write("work/in/a.txt", "before");
    cast(&folder);
    // Files outside have exactly the bytes that the run left.
    fs::create_dir(folder.path().join("outside")).expect("a folder");
    folder.write("outside/a.txt", "left");
    let work = folder.path().join("work");
    fs::remove_dir_all(work.join("in")).expect("it is there");
    symlink("../outside", work.join("in")).expect("a link");
    fs::remove_file(work.join("b.txt")).expect("it is there");
    symlink("../outside/a.txt", work.join("b.txt")).expect("a link");
    fs::remove_file(work.join("c.txt")).expect("it is there");
    symlink("d.txt", work.join("c.txt")).expect("a link");
    folder.write("work/d.txt", "left");
    let refused = folder.run(&on(&["run", "undo", "--json"]));
    assert_ne!(refused.status.code(), Some(0), "{refused:?}");
    assert_eq!((folder.read("outside/a.txt"), folder.read("work/d.txt")), ("left".into(), "left".into()));
    assert!(fs::symlink_metadata(work.join("b.txt")).expect("a link").is_symlink());
    assert!(fs::symlink_metadata(work.join("c.txt")).expect("a link").is_symlink());
}

#[test]
fn a_run_at_work_is_not_undone_and_one_whose_process_is_gone_is() {
    let slow = "{id: s, gate: meddle, args: {}}";
    let folder = scribe(&[&write("1", "b.txt", "new\n"), slow]);
    folder.write("meddle.sh", "#!/bin/sh\nread -r call\nexec sleep 60\n");
    let mut working = folder.spawn(&on(&["cast", "scribe.toml", "write"]));
    let began = Instant::now();
    // The second turn is recorded once the first has settled.
    let settled = || stdout(&folder.run(&on(&["run", "diff"]))).contains("+new");
    while !settled() {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing was written");
        std::thread::sleep(Duration::from_millis(20));
    }
    folder.envelope(&on(&["run", "undo"]), codes::BUSY.any());
    assert_eq!(folder.read("work/b.txt"), "new\n");
    working.kill().expect("it is killed");
    working.wait().expect("it ends");
    let undone = folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!(paths(&undone, "deleted"), ["b.txt"]);
}

#[test]
fn a_program_that_writes_is_undone_like_calls_that_do() {
    let folder = scribe(&[]);
    folder.write("scribe.toml", &format!("medium = \"javascript\"\n{}", folder.read("scribe.toml")));
    let long = "x".repeat(10_000);
    folder.write(
        "scribe.yaml",
        "responses:\n  - code: \"write('a.txt', 'x'.repeat(10000)); edit('b.txt', 'one', 'two'); done('over')\"\n",
    );
    folder.write("work/a.txt", "short");
    folder.write("work/b.txt", "one");
    cast(&folder);
    assert_eq!((folder.read("work/a.txt"), folder.read("work/b.txt")), (long.clone(), "two".into()));
    let diff = folder.run(&on(&["run", "diff"]));
    assert!(stdout(&diff).contains(&format!("+{long}\n")) && stdout(&diff).contains("-one\n"), "{diff:?}");
    let undone = folder.envelope(&on(&["run", "undo"]), codes::CHANGED.any());
    assert_eq!(paths(&undone, "restored"), ["a.txt", "b.txt"]);
    assert_eq!((folder.read("work/a.txt"), folder.read("work/b.txt")), ("short".into(), "one".into()));
}
