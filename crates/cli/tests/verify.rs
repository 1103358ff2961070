//! `cantrip verify` finds what was changed in a store, wherever it is, and a damaged log is not passed over.

use crate::support;

use std::fs;
use std::process::{Command, Output};

use cantrip_reply::codes;
use support::{Folder, own_postgres, stdout};

const STORE: &str = "sqlite:kept/loom.db";
const VERIFY: [&str; 3] = ["verify", "--store", STORE];

/// A folder with one cast in its store.
fn folder() -> Folder {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", "say hello", "--store", STORE], codes::TERMINATED.any());
    folder
}

/// Runs a program of Python with SQLite, which is not this program and knows none of its rules.
fn python(folder: &Folder, program: &str, arguments: &[&str]) {
    let done: Output = Command::new("python3")
        .args(["-c", program])
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .expect("python3 runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn by_hand(folder: &Folder, sql: &str) {
    let program = "import sqlite3, sys\n\
                   connection = sqlite3.connect('kept/loom.db')\n\
                   connection.executescript(sys.argv[1])\n\
                   connection.close()";
    python(folder, program, &[sql]);
}

/// Returns the statements that change rows of a table that are written once.
fn in_spite_of_trigger(table: &str, change: &str) -> String {
    format!(
        "DROP TRIGGER {table}_stay_as_written; UPDATE {table} SET {change}; \
         CREATE TRIGGER {table}_stay_as_written BEFORE UPDATE ON {table} \
         BEGIN SELECT RAISE(ABORT, '{table} are written once'); END;"
    )
}

#[test]
fn every_part_of_a_store_that_was_changed_is_found() {
    let folder = folder();
    let sound = folder.envelope(&VERIFY, codes::VERIFIED.any());
    let checks = sound["data"]["checks"].as_array().expect("checks");
    let names: Vec<&str> = checks.iter().filter_map(|check| check["check"].as_str()).collect();
    assert_eq!(names, ["database", "records", "rows", "ledger", "receipts"]);
    assert!(checks.iter().all(|check| check["is_sound"] == true), "{sound}");
    let file = folder.path().join("kept/loom.db");
    let whole = fs::read(&file).expect("a store");
    let check_is = "UPDATE sqlite_schema SET sql = replace(sql, 'parked IN (0, 1)', 'parked IN (0, 9)')";
    for (change, check) in [
        ("DROP TRIGGER bodies_are_kept".to_owned(), "database"),
        ("DROP INDEX runs_by_phase".to_owned(), "database"),
        ("CREATE TABLE notes (text TEXT)".to_owned(), "database"),
        (format!("PRAGMA writable_schema = ON; {check_is} WHERE name = 'runs'"), "database"),
        ("DELETE FROM run_leases; INSERT INTO run_leases VALUES (99, NULL, 0, NULL)".to_owned(), "database"),
        ("UPDATE runs SET kind = 'job'".to_owned(), "records"),
        ("UPDATE runs SET ended_at = ended_at + 1".to_owned(), "records"),
        ("UPDATE runs SET phase = 'truncated'".to_owned(), "records"),
        ("UPDATE entities SET at = at + 1".to_owned(), "records"),
        ("UPDATE casts SET end_seq = end_seq - 1".to_owned(), "records"),
        ("UPDATE turns SET first = 0".to_owned(), "records"),
        ("DELETE FROM roots".to_owned(), "records"),
        (in_spite_of_trigger("spend_terms", "mode = 'deny'"), "rows"),
        (in_spite_of_trigger("ds_receipts", "status = 'failed'"), "rows"),
        (in_spite_of_trigger("ds_receipts", "captured = captured + 1"), "rows"),
        ("UPDATE spend_authorizations SET spent = spent + 5".to_owned(), "ledger"),
    ] {
        fs::write(&file, &whole).expect("the file as it was");
        by_hand(&folder, &change);
        let found = folder.envelope(&VERIFY, codes::RECORD_ALTERED.any());
        let failed: Vec<&str> = found["data"]["checks"]
            .as_array()
            .expect("checks")
            .iter()
            .filter(|check| check["is_sound"] == false)
            .filter_map(|check| check["check"].as_str())
            .collect();
        assert!(failed.contains(&check), "{change}: {found}");
        let shown = folder.run(&VERIFY);
        assert_eq!(shown.status.code(), Some(4), "{change}");
        assert!(stdout(&shown).contains(&format!("bad   {check}")), "{change}: {}", stdout(&shown));
    }
    fs::write(&file, &whole).expect("the file as it was");
    folder.envelope(&VERIFY, codes::VERIFIED.any());
}

#[test]
fn a_store_in_postgres_is_verified_in_the_same_way() {
    let folder = Folder::new().with_hello();
    let Some(store) = own_postgres() else { return };
    folder.envelope(&["cast", "hello.toml", "say hello", "--store", &store], codes::TERMINATED.any());
    // Twice, because the schema that it compares with must not stay behind.
    for _ in 0..2 {
        let sound = folder.envelope(&["verify", "--store", &store], codes::VERIFIED.any());
        assert_eq!(sound["data"]["checks"][0]["check"], "database", "{sound}");
    }
}

#[test]
fn a_ledger_that_does_not_add_up_is_said_with_both_numbers() {
    let folder = folder();
    by_hand(&folder, "UPDATE spend_authorizations SET spent = spent + 5");
    let broken = folder.envelope(&["spend", "verify", "--store", STORE], codes::LEDGER_BROKEN.any());
    assert_eq!(broken["data"]["differences"][0]["stored"], 5, "{broken}");
    let said = broken["message"].as_str().expect("a message");
    assert!(said.contains("is stored as 5, but the recomputed value is 0"), "{broken}");
    let shown = folder.run(&["spend", "verify", "--store", STORE]);
    assert_eq!(shown.status.code(), Some(4));
    let deep = folder.envelope(&["doctor", "--deep", "--store", STORE], codes::JOB_FAILED.any());
    assert!(deep.to_string().contains(codes::LEDGER_BROKEN.as_str()), "{deep}");
}

/// Leaves a log behind, as a process does that was killed, with three transactions in it.
const KILLED: &str = "import os, sqlite3\n\
                      connection = sqlite3.connect('kept/loom.db')\n\
                      for _ in range(3):\n\
                      \x20   connection.execute(\"UPDATE schema_versions SET made_by = made_by || ' again'\")\n\
                      \x20   connection.commit()\n\
                      os._exit(0)";

#[test]
fn a_damaged_log_is_said_with_what_is_lost_and_stays_as_it_is() {
    let folder = folder();
    python(&folder, KILLED, &[]);
    let log = folder.path().join("kept/loom.db-wal");
    // The log of a killed process is sound.
    let sound = fs::read(&log).expect("a log");
    folder.envelope(&VERIFY, codes::VERIFIED.any());
    fs::write(&log, &sound).expect("a log");
    let mut damaged = sound;
    damaged[100] ^= 0x40;
    fs::write(&log, &damaged).expect("a log");
    let spell = ["cast", "hello.toml", "say hello", "--store", STORE];
    let listed = ["loom", "ls", "--store", STORE];
    let records = ["loom", "verify", "--store", STORE];
    for command in [&VERIFY[..], &listed[..], &spell[..], &records[..]] {
        let refused = folder.envelope(command, codes::STORE_FAILED.any());
        assert!(refused["message"].as_str().is_some_and(|said| said.contains("write-ahead log")), "{refused}");
        assert_eq!(refused["data"]["transactions"], 3, "{refused}");
        assert_eq!(fs::read(&log).expect("a log"), damaged, "{command:?} left the log alone");
    }
    let doctor = folder.envelope(&["doctor", "--store", STORE], codes::JOB_FAILED.any());
    assert!(doctor.to_string().contains("write-ahead log"), "{doctor}");
    let shown = folder.run(&VERIFY);
    assert_eq!(shown.status.code(), Some(4));
    // The hint is right: without the log, the file itself is read.
    fs::rename(&log, folder.path().join("kept/damaged-wal")).expect("the log is moved away");
    folder.envelope(&VERIFY, codes::VERIFIED.any());
}

#[test]
fn a_store_that_is_all_in_its_damaged_log_is_not_called_empty() {
    let folder = folder();
    let program = "import os, sqlite3\n\
                   dump = '\\n'.join(sqlite3.connect('kept/loom.db').iterdump())\n\
                   connection = sqlite3.connect('kept/new.db')\n\
                   connection.execute('PRAGMA journal_mode = WAL')\n\
                   connection.execute('PRAGMA wal_autocheckpoint = 0')\n\
                   connection.executescript(dump)\n\
                   os._exit(0)";
    python(&folder, program, &[]);
    let log = folder.path().join("kept/new.db-wal");
    let mut damaged = fs::read(&log).expect("a log");
    damaged[100] ^= 0x40;
    fs::write(&log, &damaged).expect("a log");
    let refused = folder.envelope(&["verify", "--store", "sqlite:kept/new.db"], codes::STORE_FAILED.any());
    let said = refused["message"].as_str().expect("a message");
    assert!(said.contains("write-ahead log") && !said.contains("nothing was"), "{refused}");
    assert!(refused["data"]["pages"].as_u64().is_some_and(|pages| pages > 10), "{refused}");
}

#[test]
fn what_is_not_there_is_not_verified() {
    let folder = Folder::new();
    for store in ["sqlite:none.db", "jsonl:none"] {
        folder.envelope(&["verify", "--store", store], codes::NOT_FOUND.any());
    }
    folder.envelope(&["verify", "--store", "memory:"], codes::CONFIG_INVALID.any());
    let folder = folder.with_hello();
    folder.envelope(&["cast", "hello.toml", "say hello", "--store", "jsonl:lines"], codes::TERMINATED.any());
    folder.envelope(&["verify", "--store", "jsonl:lines"], codes::VERIFIED.any());
    let records = folder.read("lines/records.jsonl");
    folder.write("lines/records.jsonl", &records.replace("say hello", "say jello"));
    folder.envelope(&["verify", "--store", "jsonl:lines"], codes::RECORD_ALTERED.any());
}
