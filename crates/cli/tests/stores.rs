//! The binary stores casts in SQLite and Postgres, and explains why it cannot use a store.

use crate::support;

use std::fs;

use cantrip_reply::codes;
use support::{Folder, own_postgres};

fn folder() -> Folder {
    let folder = Folder::new();
    folder.envelope(&["new", "hello"], codes::CREATED.any());
    folder
}

#[test]
fn a_cast_in_sqlite_is_read_from_other_processes_and_verified() {
    let folder = folder();
    let store = ["--store", "sqlite:kept/loom.db"];
    let with = |arguments: &[&'static str]| [arguments, &store].concat();
    for _ in 0..2 {
        folder.envelope(&with(&["cast", "hello.toml", "say hello"]), codes::TERMINATED.any());
    }
    let listed = folder.envelope(&with(&["loom", "ls"]), codes::READ.any());
    assert_eq!(listed["data"]["value"].as_array().map(Vec::len), Some(1), "{listed}");
    folder.envelope(&with(&["loom", "thread"]), codes::READ.any());
    let verified = folder.envelope(&with(&["loom", "verify"]), codes::VERIFIED.any());
    assert_eq!(verified["data"]["runs"], 2, "{verified}");
    assert_eq!(fs::read_to_string(folder.path().join("kept/.gitignore")).expect("it is ignored"), "*\n");
    // JSON lines and database rows hold the same journal.
    let exported = folder.run(&with(&["loom", "export", "--format", "journal", "--no-redact"]));
    fs::write(folder.path().join("backup.jsonl"), &exported.stdout).expect("a file");
    folder.envelope(&["loom", "import", "backup.jsonl", "--store", "jsonl:copy"], codes::CREATED.any());
    let again = folder.run(&["loom", "export", "--format", "journal", "--no-redact", "--store", "jsonl:copy"]);
    // A folder of JSON lines keeps no receipts, so they stay in the imported file.
    let text = String::from_utf8_lossy(&exported.stdout);
    let (papers, journal): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("{\"paper\":"));
    assert_eq!(papers.len(), 2, "one receipt a cast: {papers:?}");
    assert_eq!(String::from_utf8_lossy(&again.stdout).lines().collect::<Vec<_>>(), journal);
    assert!(!journal.is_empty());
}

#[test]
fn a_file_of_another_name_keeps_what_is_noted_to_itself() {
    let folder = folder();
    folder.envelope(&["cast", "hello.toml", "say hello", "--store", "sqlite:mine.db"], codes::TERMINATED.any());
    assert!(!folder.path().join("origins").exists());
    assert!(folder.path().join("mine.db.notes/origins").is_dir());
    // The spell of the cast is found there.
    folder.envelope(&["loom", "replay", "--store", "sqlite:mine.db"], codes::VERIFIED.any());
}

#[test]
fn a_store_that_cannot_be_used_is_said_and_nothing_is_kept_elsewhere() {
    let folder = folder();
    folder.write("notes.txt", &"dear diary\n".repeat(100));
    folder.envelope(&["cast", "hello.toml", "x", "--store", "sqlite:notes.txt"], codes::STORE_FAILED.any());
    assert!(folder.read("notes.txt").starts_with("dear diary"));
    let away = ["cast", "hello.toml", "x", "--store", "postgres://cantrip:s3cret@127.0.0.1:1/cantrip"];
    let refused = folder.envelope(&away, codes::STORE_UNAVAILABLE.any());
    assert!(!refused.to_string().contains("s3cret"), "{refused}");
    folder.envelope(&["cast", "hello.toml", "x", "--store", "sqlite:"], codes::CONFIG_INVALID.any());
    folder.envelope(&["loom", "verify", "--store", "sqlite:nowhere.db"], codes::NOT_FOUND.any());
    let left: Vec<String> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.contains("kept") || name.contains("nowhere") || name.contains(".cantrip"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn looking_at_a_store_that_is_not_there_makes_none() {
    let folder = folder();
    let listed = folder.envelope(&["loom", "ls", "--store", "sqlite:absent/loom.db"], codes::READ.any());
    assert_eq!(listed["data"]["value"].as_array().map(Vec::len), Some(0), "{listed}");
    assert!(!folder.path().join("absent").exists());
}

#[test]
fn a_cast_in_postgres_is_read_from_other_processes() {
    let Some(url) = own_postgres() else { return };
    let folder = folder();
    folder.envelope(&["cast", "hello.toml", "say hello", "--store", &url], codes::TERMINATED.any());
    folder.envelope(&["loom", "thread", "--store", &url], codes::READ.any());
    folder.envelope(&["loom", "verify", "--store", &url], codes::VERIFIED.any());
}
