//! The file gates, and all known ways to escape from their folder.

use crate::gates;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cantrip_canon::bytes_hash;
use cantrip_circle::gate::builtin::{self, Root};
use cantrip_circle::gate::{StopReason, StopSignal, Stopper};
use cantrip_circle::{Circle, Label};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Reply, codes};
use gates::{call, circle, execute, value};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder `root` with files in it, beside a folder that must stay invisible.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        fs::create_dir(folder.path().join("root")).expect("a folder can be made");
        fs::write(folder.path().join("secret.txt"), "secret").expect("a file can be written");
        let made = Self { folder };
        for (path, text) in files {
            let path = made.path(path);
            fs::create_dir_all(path.parent().expect("it lies in a folder")).expect("a folder can be made");
            fs::write(path, text).expect("a file can be written");
        }
        made
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("root").join(path)
    }

    fn outside(&self) -> std::path::PathBuf {
        self.folder.path().join("secret.txt")
    }

    fn root(&self) -> Root {
        Root::at(self.folder.path().join("root")).expect("the root can be opened")
    }

    fn circle(&self, wards: Value) -> Circle {
        rooted(self.root(), wards)
    }
}

fn rooted(root: Root, wards: Value) -> Circle {
    let gates = [builtin::read, builtin::list, builtin::search, builtin::write, builtin::edit];
    circle(gates.into_iter().map(|gate| gate(Some(root.clone()))), wards)
}

fn paths(reply: &Reply, key: &str) -> Vec<String> {
    let list = value(reply)[key].as_array().expect("a list");
    list.iter().map(|entry| entry["path"].as_str().expect("a path").to_owned()).collect()
}

#[tokio::test]
async fn read_gives_the_text_alone_or_the_lines_that_were_asked_for() {
    let files = Files::new(&[("a.txt", "one\ntwo\nthree\n"), ("b/c.txt", "deep")]);
    let circle = files.circle(json!({}));
    let whole = call(&circle, "read", json!({"path": "a.txt"})).await;
    assert_code(&whole, codes::READ);
    assert_eq!(value(&whole), "one\ntwo\nthree\n");
    assert_eq!(value(&call(&circle, "read", json!({"path": "./b/../b/c.txt"})).await), "deep");
    let lines = call(&circle, "read", json!({"path": "a.txt", "offset": 2, "limit": 1})).await;
    assert_eq!(value(&lines), "two\n");
}

#[tokio::test]
async fn what_cannot_be_read_says_why() {
    let files = Files::new(&[("a.txt", "one\n"), ("folder/x", "")]);
    fs::write(files.path("bytes"), [0xff, 0xfe]).expect("a file can be written");
    fs::write(files.path("large"), "x".repeat(200 << 10)).expect("a file can be written");
    let circle = files.circle(json!({}));
    assert_code(&call(&circle, "read", json!({"path": "b.txt"})).await, codes::FILE_MISSING);
    assert_code(&call(&circle, "read", json!({"path": "no/b.txt"})).await, codes::FILE_MISSING);
    for path in ["folder", ".", "bytes", "a.txt/b", "a\u{0}b"] {
        assert_code(&call(&circle, "read", json!({"path": path})).await, codes::TARGET_UNUSABLE);
    }
    assert_code(&call(&circle, "read", json!({"path": "a.txt", "offset": 5})).await, codes::TARGET_UNUSABLE);
    assert_code(&call(&circle, "read", json!({"path": "large"})).await, codes::LIMIT);
    assert_code(&call(&circle, "read", json!({})).await, codes::SCHEMA);
    let rootless = gates::circle([builtin::read(None)], json!({}));
    assert_code(&call(&rootless, "read", json!({"path": "a.txt"})).await, codes::TARGET_UNUSABLE);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_the_system_cannot_read_is_an_error() {
    let root = Root::at("/proc/self").expect("there is a /proc");
    let circle = rooted(root, json!({}));
    assert_code(&call(&circle, "read", json!({"path": "mem"})).await, codes::IO_FAILED);
}

#[tokio::test]
async fn no_path_and_no_link_leaves_the_root_and_a_refusal_does_not_tell_what_is_there() {
    let files = Files::new(&[("a.txt", "inside"), ("d/b.txt", "inside too")]);
    let outside = files.outside();
    symlink(&outside, files.path("absolute")).expect("a link can be made");
    symlink("../secret.txt", files.path("relative")).expect("a link can be made");
    symlink("../../secret.txt", files.path("d/up")).expect("a link can be made");
    symlink("..", files.path("above")).expect("a link can be made");
    symlink("/nowhere/at/all", files.path("dangling")).expect("a link can be made");
    let circle = files.circle(json!({}));
    let ways = [
        outside.to_str().expect("UTF-8"),
        "/etc/passwd",
        "../secret.txt",
        "d/../../secret.txt",
        "../root/a.txt",
        "absolute",
        "relative",
        "d/up",
        "above/secret.txt",
        "above/nothing.txt",
        "dangling",
        "/nowhere",
        "../nowhere",
    ];
    for path in ways {
        let read = call(&circle, "read", json!({"path": path})).await;
        assert_code(&read, codes::READ_REFUSED);
        assert_eq!(read.data()["rule"], "root", "{path}");
        assert_eq!(read.data()["target"], path);
        let written = call(&circle, "write", json!({"path": path, "content": "x"})).await;
        assert_code(&written, codes::WRITE_REFUSED);
        assert_code(&call(&circle, "list", json!({"path": path})).await, codes::READ_REFUSED);
        let search = call(&circle, "search", json!({"pattern": "secret", "path": path})).await;
        assert_code(&search, codes::READ_REFUSED);
    }
    assert_eq!(fs::read_to_string(outside).expect("it is there"), "secret");
}

#[tokio::test]
async fn links_inside_the_root_are_followed_and_endless_ones_are_not() {
    let files = Files::new(&[("a.txt", "inside"), ("d/b.txt", "b")]);
    symlink("a.txt", files.path("one")).expect("a link can be made");
    symlink("../a.txt", files.path("d/two")).expect("a link can be made");
    symlink("d", files.path("folder")).expect("a link can be made");
    symlink("loop", files.path("loop")).expect("a link can be made");
    let circle = files.circle(json!({}));
    for (path, text) in [("one", "inside"), ("d/two", "inside"), ("folder/b.txt", "b"), ("folder/../a.txt", "inside")] {
        assert_eq!(value(&call(&circle, "read", json!({"path": path})).await), text, "{path}");
    }
    assert_code(&call(&circle, "read", json!({"path": "loop"})).await, codes::TARGET_UNUSABLE);
    let written = execute(&circle, "write", json!({"path": "one", "content": "new"}), StopSignal::never()).await;
    assert_eq!(written.effects.changes[0].path, "a.txt", "the change names the real file");
    assert_eq!(fs::read_to_string(files.path("a.txt")).expect("it is there"), "new");
}

#[tokio::test]
async fn a_pipe_that_nobody_writes_to_does_not_hold_up_a_read() {
    let files = Files::new(&[]);
    let made = std::process::Command::new("mkfifo").arg(files.path("pipe")).status().expect("mkfifo runs");
    assert!(made.success());
    let circle = files.circle(json!({}));
    assert_code(&call(&circle, "read", json!({"path": "pipe"})).await, codes::TARGET_UNUSABLE);
    assert_eq!(paths(&call(&circle, "search", json!({"pattern": "."})).await, "matches"), [""; 0]);
}

#[tokio::test]
async fn a_folder_that_turns_into_a_link_while_it_is_walked_never_shows_what_lies_behind() {
    let files = Files::new(&[("real/secret.txt", "harmless")]);
    let (door, real, link) = (files.path("door"), files.path("real"), files.path("link"));
    symlink(files.folder.path(), &link).expect("a link can be made");
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (stop, door, real, link) = (Arc::clone(&stop), door.clone(), real.clone(), link.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                for from in [&real, &link] {
                    fs::rename(from, &door).expect("it takes the name");
                    fs::rename(&door, from).expect("it gives it back");
                }
            }
        }
    });
    let circle = files.circle(json!({}));
    for _ in 0..400 {
        let reply = call(&circle, "read", json!({"path": "door/secret.txt"})).await;
        if reply.reply_type().is_success() {
            assert_eq!(value(&reply), "harmless");
        }
        let reply = call(&circle, "write", json!({"path": "door/new.txt", "content": "x"})).await;
        drop(reply);
        assert!(!files.folder.path().join("new.txt").exists(), "a write went through the link");
    }
    stop.store(true, Ordering::Relaxed);
    swapping.join().expect("the swapping ends");
}

#[tokio::test]
async fn keys_records_and_the_store_are_neither_shown_nor_touched() {
    let files = Files::new(&[
        (".env", "KEY=1"),
        (".env.local", "KEY=2"),
        (".env.example", "KEY="),
        (".git/config", "KEY"),
        ("sub/.cantrip/loom.db", "KEY"),
        ("sub/a.txt", "KEY"),
    ]);
    symlink(".git/config", files.path("config")).expect("a link can be made");
    let circle = files.circle(json!({}));
    for path in [".env", ".env.local", ".git/config", "sub/.cantrip/loom.db", ".GIT/config", "config", "no/.env"] {
        assert_code(&call(&circle, "read", json!({"path": path})).await, codes::READ_REFUSED);
        let write = call(&circle, "write", json!({"path": path, "content": ""})).await;
        assert_code(&write, codes::WRITE_REFUSED);
    }
    let hook = call(&circle, "write", json!({"path": ".git/hooks/pre-commit", "content": ""})).await;
    assert_code(&hook, codes::WRITE_REFUSED);
    let listed = call(&circle, "list", json!({"recursive": true})).await;
    assert_eq!(paths(&listed, "entries"), [".env.example", "config", "sub", "sub/a.txt"]);
    let found = call(&circle, "search", json!({"pattern": "KEY"})).await;
    assert_eq!(paths(&found, "matches"), [".env.example", "sub/a.txt"]);
}

#[tokio::test]
async fn a_restrict_ward_holds_for_names_and_for_where_links_lead() {
    let files = Files::new(&[("data/a.csv", "1"), ("data/deep/b.csv", "2"), ("other/c.csv", "3")]);
    symlink("../other/c.csv", files.path("data/link.csv")).expect("a link can be made");
    symlink("../other", files.path("data/folder")).expect("a link can be made");
    let circle = files.circle(json!({"restrict": {"paths": ["data/**"]}}));
    assert_eq!(value(&call(&circle, "read", json!({"path": "data/deep/b.csv"})).await), "2");
    for path in ["other/c.csv", "data/../other/c.csv", "data/link.csv", "data/folder/c.csv", "other/nothing"] {
        let reply = call(&circle, "read", json!({"path": path})).await;
        assert_code(&reply, codes::READ_REFUSED);
        assert_eq!(reply.data()["rule"], "restrict", "{path}");
        assert_eq!(reply.data()["target"], path, "a message shows a path as it was written");
        assert_code(&call(&circle, "edit", json!({"path": path, "old": "3", "new": "4"})).await, codes::WRITE_REFUSED);
    }
    let listed = call(&circle, "list", json!({"path": "data"})).await;
    assert_eq!(paths(&listed, "entries"), ["data/a.csv", "data/deep", "data/folder", "data/link.csv"]);
    assert_eq!(paths(&call(&circle, "search", json!({"pattern": "[0-9]", "path": "data"})).await, "matches").len(), 2);
    assert_code(&call(&circle, "list", json!({})).await, codes::READ_REFUSED);
}

#[tokio::test]
async fn write_keeps_what_was_there_and_tells_what_changed() {
    let files = Files::new(&[("a.txt", "before")]);
    fs::set_permissions(files.path("a.txt"), fs::Permissions::from_mode(0o4640)).expect("rights can be set");
    let circle = files.circle(json!({}));
    let first = execute(&circle, "write", json!({"path": "a.txt", "content": "after"}), StopSignal::never()).await;
    assert_code(&first.guarded.reply, codes::WRITTEN);
    assert_eq!(fs::read_to_string(files.path("a.txt")).expect("it is there"), "after");
    let [change] = first.effects.changes.as_slice() else { panic!("one change") };
    assert_eq!(change.path, "a.txt");
    assert_eq!(change.before.map(|body| body.hash), Some(bytes_hash(b"before")));
    assert_eq!(change.after, Some(bytes_hash(b"after")));
    assert_eq!(&**first.effects.bodies[0].bytes(), b"before");
    let mode = fs::metadata(files.path("a.txt")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o640, "its rights stay, but not that to run as its owner");

    let new = execute(&circle, "write", json!({"path": "b.txt", "content": ""}), StopSignal::never()).await;
    assert_eq!(new.effects.changes[0].before, None, "there was no file");
    assert!(new.effects.bodies.is_empty());
    let left: Vec<_> =
        fs::read_dir(files.path("")).expect("a folder").map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing is left beside them: {left:?}");
}

#[tokio::test]
async fn what_cannot_be_written_says_why_and_changes_nothing() {
    let files = Files::new(&[("folder/a.txt", "a")]);
    let circle = files.circle(json!({}));
    for path in ["folder", ".", "no/b.txt", "folder/a.txt/b"] {
        let written = execute(&circle, "write", json!({"path": path, "content": "x"}), StopSignal::never()).await;
        assert_code(&written.guarded.reply, codes::TARGET_UNUSABLE);
        assert!(written.effects.changes.is_empty());
    }
    let read_only = rooted(files.root().read_only(), json!({}));
    let refused = call(&read_only, "write", json!({"path": "folder/a.txt", "content": "x"})).await;
    assert_code(&refused, codes::WRITE_REFUSED);
    assert_eq!(refused.data()["rule"], "read_only");
    assert_eq!(fs::read_to_string(files.path("folder/a.txt")).expect("it is there"), "a");
}

/// A hard link cannot be distinguished from the file itself, so reading through one works; writing replaces only its
/// name.
#[tokio::test]
async fn writing_to_a_hard_link_leaves_the_other_name_as_it_was() {
    let files = Files::new(&[]);
    fs::hard_link(files.outside(), files.path("linked")).expect("a link can be made");
    let circle = files.circle(json!({}));
    assert_code(&call(&circle, "write", json!({"path": "linked", "content": "mine"})).await, codes::WRITTEN);
    assert_eq!(fs::read_to_string(files.path("linked")).expect("it is there"), "mine");
    assert_eq!(fs::read_to_string(files.outside()).expect("it is there"), "secret");
}

#[tokio::test]
async fn edit_replaces_a_text_only_if_it_is_there_as_often_as_was_thought() {
    let files = Files::new(&[("a.txt", "one two two")]);
    let circle = files.circle(json!({}));
    let edit = |old: &str, count: Option<u64>| json!({"path": "a.txt", "old": old, "new": "X", "count": count});
    let without = |mut arguments: Value| {
        if arguments["count"].is_null() {
            arguments.as_object_mut().expect("an object").remove("count");
        }
        arguments
    };
    for (old, count) in [("two", None), ("three", None), ("one", Some(2))] {
        let mismatch = call(&circle, "edit", without(edit(old, count))).await;
        assert_code(&mismatch, codes::EDIT_MISMATCH);
    }
    assert_eq!(fs::read_to_string(files.path("a.txt")).expect("it is there"), "one two two");
    let edited = execute(&circle, "edit", edit("two", Some(2)), StopSignal::never()).await;
    assert_code(&edited.guarded.reply, codes::WRITTEN);
    assert_eq!(&**edited.effects.bodies[0].bytes(), b"one two two");
    assert_eq!(fs::read_to_string(files.path("a.txt")).expect("it is there"), "one X X");
    assert_code(&call(&circle, "edit", json!({"path": "b", "old": "x", "new": ""})).await, codes::FILE_MISSING);
    assert_code(&call(&circle, "edit", json!({"path": "a.txt", "old": "", "new": ""})).await, codes::SCHEMA);
}

#[tokio::test]
async fn list_is_sorted_follows_no_link_and_tells_what_it_left_out() {
    let files = Files::new(&[("b.txt", "12"), ("a/x.txt", ""), ("c/y/z.txt", "")]);
    symlink("c", files.path("link")).expect("a link can be made");
    let circle = files.circle(json!({}));
    let flat = call(&circle, "list", json!({})).await;
    assert_code(&flat, codes::READ);
    let entries = json!({"entries": [
        {"path": "a", "type": "folder"},
        {"path": "b.txt", "type": "file", "bytes": 2},
        {"path": "c", "type": "folder"},
        {"path": "link", "type": "link"},
    ]});
    assert_eq!(value(&flat), &entries);
    let deep = call(&circle, "list", json!({"path": "c", "recursive": true})).await;
    assert_eq!(paths(&deep, "entries"), ["c/y", "c/y/z.txt"]);
    assert_code(&call(&circle, "list", json!({"path": "b.txt"})).await, codes::TARGET_UNUSABLE);
    assert_code(&call(&circle, "list", json!({"path": "none"})).await, codes::FILE_MISSING);
    for number in 0..1_005 {
        fs::write(files.path(&format!("a/{number}")), "").expect("a file can be written");
    }
    let many = call(&circle, "list", json!({"path": "a"})).await;
    assert_eq!(value(&many)["truncated"], json!({"shown": 1_000, "total": 1_006, "counted_all": true}));
}

#[tokio::test]
async fn what_gitignore_names_is_left_out_where_that_was_asked_for() {
    let files = Files::new(&[
        (".gitignore", "*.log\ntarget/\n"),
        ("a.log", "needle"),
        ("target/b.txt", "needle"),
        ("sub/.gitignore", "!keep.log\nlocal.txt\n"),
        ("sub/keep.log", "needle"),
        ("sub/local.txt", "needle"),
        ("sub/deeper/c.log", "needle"),
        ("local.txt", "needle"),
    ]);
    let found = |reply: Reply| paths(&reply, "matches");
    let honouring = rooted(files.root().with_gitignore(), json!({}));
    let all = call(&honouring, "search", json!({"pattern": "needle"})).await;
    assert_eq!(found(all), ["local.txt", "sub/keep.log"]);
    let below = call(&honouring, "search", json!({"pattern": "needle", "path": "sub"})).await;
    assert_eq!(found(below), ["sub/keep.log"]);
    let plain = call(&files.circle(json!({})), "search", json!({"pattern": "needle"})).await;
    assert_eq!(found(plain).len(), 6);
}

#[tokio::test]
async fn search_gives_lines_and_says_what_it_could_not_read() {
    let files = Files::new(&[("a.rs", "fn one() {}\nfn two() {}\n"), ("b.txt", "FN three"), ("c.bin", "fn\0")]);
    let circle = files.circle(json!({}));
    let matches = call(&circle, "search", json!({"pattern": "^fn \\w+"})).await;
    assert_code(&matches, codes::READ);
    let lines = json!({"matches": [
        {"path": "a.rs", "line": 1, "text": "fn one() {}"},
        {"path": "a.rs", "line": 2, "text": "fn two() {}"},
    ]});
    assert_eq!(value(&matches), &lines);
    let any_case = call(&circle, "search", json!({"pattern": "fn", "ignore_case": true, "glob": "*.txt"})).await;
    assert_eq!(paths(&any_case, "matches"), ["b.txt"]);
    let one = call(&circle, "search", json!({"pattern": "fn", "path": "a.rs", "limit": 1})).await;
    assert_eq!(value(&one)["truncated"], json!({"shown": 1, "total": 2, "counted_all": true}));
    for question in [json!({"pattern": "("}), json!({"pattern": "a", "glob": "["})] {
        assert_code(&call(&circle, "search", question).await, codes::UNPARSABLE);
    }
    assert_code(&call(&circle, "search", json!({"pattern": "x".repeat(5_000)})).await, codes::LIMIT);
    let explosive = call(&circle, "search", json!({"pattern": "(a{1000}){1000}"})).await;
    assert_code(&explosive, codes::UNPARSABLE);
}

#[tokio::test]
async fn a_stopped_cast_lets_no_gate_begin_and_its_first_reason_counts() {
    let files = Files::new(&[("a.txt", "a")]);
    let circle = files.circle(json!({}));
    let (stopper, stop) = Stopper::new();
    stopper.stop(StopReason::Ward { ward: "timeout".into(), limit: "5 s".into() });
    stopper.stop(StopReason::Outside { actor: "operator".into(), reason: "cancelled".into() });
    let executed = execute(&circle, "write", json!({"path": "a.txt", "content": "b"}), stop).await;
    assert_code(&executed.guarded.reply, codes::WARD_REACHED);
    assert!(executed.effects.changes.is_empty());
    assert_eq!(fs::read_to_string(files.path("a.txt")).expect("it is there"), "a");
}

#[test]
fn file_gates_say_beforehand_what_they_bring_in() {
    let circle = rooted(Root::at(Path::new("/")).expect("there is a root"), json!({}));
    for (gate, private, read_only, idempotent) in [
        ("read", true, true, true),
        ("list", true, true, true),
        ("search", true, true, true),
        ("write", false, false, true),
        ("edit", false, false, false),
    ] {
        let promises = circle.gate(gate).expect("it is there").spec();
        assert_eq!(promises.labels.contains(Label::PrivateData), private, "{gate}");
        assert_eq!(promises.is_read_only(), read_only, "{gate}");
        assert_eq!(promises.is_idempotent(), idempotent, "{gate}");
    }
    assert!(Root::at("/no/such/folder").is_err());
}
