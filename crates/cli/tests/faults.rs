//! A store that fails: the cast stops with a reply that says what to do, nothing is stored elsewhere, and the run can
//! be resumed when the fault is fixed.

use crate::support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::Value;
use support::model::Model;
use support::wire::Wire;
use support::{Folder, own_postgres};

const STORE: &str = "sqlite:kept/loom.db";

#[track_caller]
fn refused(output: &Output, code: AnyCode, hint: &str) -> Value {
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&envelope, code);
    let told = envelope["data"]["hint"].as_str().unwrap_or_default();
    assert!(told.contains(hint), "{hint}: {envelope}");
    envelope
}

fn begun(folder: &Folder, store: &str) -> Child {
    let child = folder.spawn(&["cast", "counter.toml", "count", "--json", "--store", store]);
    let began = Instant::now();
    while folder.calls().is_empty() {
        assert!(began.elapsed() < Duration::from_secs(30), "the gate is not entered");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Asserts that the interrupted run ends, and that no call is made a second time.
#[track_caller]
fn goes_on(folder: &Folder, store: &str, steps: usize) {
    let whole = folder.envelope(&["run", "resume", "--store", store], codes::TERMINATED.any());
    assert_eq!(whole["data"]["answer"], format!("counted to {steps}"));
    let calls = folder.calls();
    assert!(calls.len() == steps && calls.values().all(|count| *count == 1), "{calls:?}");
    folder.envelope(&["loom", "verify", "--store", store], codes::VERIFIED.any());
}

#[test]
fn a_server_that_is_lost_in_the_middle_of_a_run_stops_it_and_it_goes_on_when_it_is_back() {
    let Some(store) = own_postgres() else { return };
    let wire = Wire::to(&store);
    let model = Model::counting(3);
    let folder = Folder::new().with_counter(&model, "0.3");
    let casting = begun(&folder, wire.store());
    wire.cut();
    let output = casting.wait_with_output().expect("it ends");
    refused(&output, codes::STORE_UNAVAILABLE.any(), "cantrip run resume");
    assert_eq!(folder.calls().len(), 1, "nothing more is done");
    assert!(!folder.path().join(".cantrip").exists() && !folder.path().join("kept").exists());
    // While the store is not available, every command reports that.
    let away = folder.run(&["run", "resume", "--json", "--store", wire.store()]);
    refused(&away, codes::STORE_UNAVAILABLE.any(), "can be reached");
    wire.mend();
    goes_on(&folder, wire.store(), 3);
}

#[test]
fn a_file_that_is_moved_away_in_the_middle_of_a_run_stops_it_and_it_goes_on_when_it_is_back() {
    let model = Model::counting(3);
    let folder = Folder::new().with_counter(&model, "0.3");
    let casting = begun(&folder, STORE);
    let (kept, away) = (folder.path().join("kept"), folder.path().join("away"));
    fs::rename(&kept, &away).expect("it is moved");
    let output = casting.wait_with_output().expect("it ends");
    refused(&output, codes::STORE_FAILED.any(), "cantrip run resume");
    assert_eq!(folder.calls().len(), 1, "nothing more is done");
    assert!(!kept.join("loom.db").exists(), "nothing is kept in its place");
    let _ = fs::remove_dir_all(&kept);
    fs::rename(&away, &kept).expect("it is moved back");
    goes_on(&folder, STORE, 3);
}

#[test]
fn a_disk_that_takes_no_more_stops_a_run_and_it_goes_on_when_there_is_room() {
    const STEPS: usize = 40;
    // No file may grow beyond a limit; a write beyond it fails and does not kill the process. The remaining size of the
    // write-ahead log after the first cast is not known, so the limit is raised until there is room for a turn.
    let full = [64, 128, 192, 256, 384, 512, 768, 1_024, 1_536].into_iter().find_map(|room| {
        let model = Model::counting(STEPS);
        let folder = Folder::new().with_counter(&model, "0");
        assert!(folder.run(&["cast", "counter.toml", "first", "--store", STORE]).status.success());
        fs::remove_file(folder.path().join("calls.log")).expect("it was there");
        let size = |name: &str| fs::metadata(folder.path().join("kept").join(name)).map_or(0, |found| found.len());
        let most = size("loom.db").max(size("loom.db-wal")) / 1024 + room;
        let line = format!("trap '' XFSZ; ulimit -f {most}; cantrip cast counter.toml count --json --store {STORE}");
        let output = folder.pasted(&line);
        refused(&output, codes::STORE_FAILED.any(), "cantrip run resume");
        let done = folder.calls().len();
        assert!(done < STEPS, "{done} of {STEPS} steps");
        (done > 0).then_some((folder, model))
    });
    let (folder, _model) = full.expect("a limit that is met in the middle of a run");
    goes_on(&folder, STORE, STEPS);
}

#[test]
fn a_folder_that_cannot_be_written_to_is_said_and_what_is_there_can_be_used_again() {
    let folder = Folder::new().with_hello();
    let cast = ["cast", "hello.toml", "x", "--json", "--store"];
    let made = [&cast[..], &["sqlite:/proc/no/loom.db"]].concat();
    refused(&folder.run(&made), codes::IO_FAILED.any(), "--store sqlite:FILE");
    let arguments = [&cast[..], &[STORE]].concat();
    assert!(folder.run(&arguments).status.success());
    let (kept, file) = (folder.path().join("kept"), folder.path().join("kept/loom.db"));
    let allow = |folder_mode: u32, file_mode: u32| {
        fs::set_permissions(&file, fs::Permissions::from_mode(file_mode)).expect("a file");
        fs::set_permissions(&kept, fs::Permissions::from_mode(folder_mode)).expect("a folder");
    };
    allow(0o555, 0o444);
    // Root may write everywhere, unless that capability is dropped.
    let root = Command::new("id").arg("-u").output().expect("it runs").stdout.trim_ascii() == b"0";
    let unprivileged = |arguments: &[&str]| {
        let mut command = if root {
            let mut command = Command::new("setpriv");
            let rights = "-dac_override,-dac_read_search";
            command.args([format!("--bounding-set={rights}"), format!("--inh-caps={rights}")]);
            command.arg(env!("CARGO_BIN_EXE_cantrip")).args(arguments);
            folder.around(&mut command);
            command
        } else {
            folder.command(arguments)
        };
        command.stdin(std::process::Stdio::null()).output().expect("it runs")
    };
    let output = unprivileged(&arguments);
    refused(&output, codes::STORE_FAILED.any(), "is writable");
    // The existing records can still be read.
    for look in ["loom ls", "loom tree", "loom thread", "run ls", "run show", "run diff", "loom verify"] {
        let words: Vec<&str> = look.split(' ').chain(["--json", "--store", STORE]).collect();
        let output = unprivileged(&words);
        assert!(output.status.success(), "{look}: {output:?}");
    }
    allow(0o755, 0o644);
    folder.envelope(&["cast", "hello.toml", "x", "--store", STORE], codes::TERMINATED.any());
    let verified = folder.envelope(&["loom", "verify", "--store", STORE], codes::VERIFIED.any());
    assert_eq!(verified["data"]["runs"], 2);
}

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let folder = Folder::new().with_hello();
    fs::create_dir(folder.path().join("kept")).expect("a folder");
    let newer = include_bytes!("fixtures/newer.db");
    fs::write(folder.path().join("kept/loom.db"), newer).expect("a file");
    for arguments in [&["cast", "hello.toml", "x"][..], &["loom", "ls"], &["run", "resume"]] {
        let output = folder.run(&[arguments, &["--json", "--store", STORE]].concat());
        refused(&output, codes::STORE_FAILED.any(), "newer");
    }
    let doctor = folder.envelope(&["doctor", "--store", STORE], codes::JOB_FAILED.any());
    assert!(doctor["data"]["hint"].as_str().is_some_and(|hint| hint.contains("newer")), "{doctor}");
    // The verification of the whole store refuses it for the same reason.
    let output = folder.run(&["loom", "verify", "--json", "--store", STORE]);
    refused(&output, codes::STORE_FAILED.any(), "newer");
}

#[test]
fn a_server_that_does_not_know_us_or_our_database_is_said() {
    let Some(store) = own_postgres() else { return };
    let folder = Folder::new().with_hello();
    let url = url::Url::parse(&store).expect("a URL");
    let mut stranger = url.clone();
    stranger.set_username("somebody_else").expect("a name");
    let mut nowhere = url;
    nowhere.set_path("/which_is_not_there");
    for unknown in [stranger, nowhere] {
        let output = folder.run(&["cast", "hello.toml", "x", "--json", "--store", unknown.as_str()]);
        refused(&output, codes::CONFIG_INVALID.any(), "that the server knows");
    }
}
