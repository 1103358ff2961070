//! A runtime that is killed with `kill -9`: its commands receive all of their arguments, and end with the runtime.

use crate::support::Folder;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;
use std::time::{Duration, Instant};

/// More than a pipe holds.
const TEXT_BYTES: usize = 300_000;

/// A cast that calls the command gate `take` with a text of [`TEXT_BYTES`].
fn folder(scripts: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    folder.write(
        "taker.toml",
        "name = \"taker\"\ncrystal = \"scripted/taker.yaml\"\n[gates.take]\ncommand = [\"./take.sh\"]\nlabels = []\n\
         [verify]\ncommand = [\"./verify.sh\"]\n[wards]\nmax_turns = 5\n",
    );
    let text = "x".repeat(TEXT_BYTES);
    folder.write(
        "taker.yaml",
        &format!(
            "responses:\n  - tool_calls: [{{id: c1, gate: take, args: {{text: '{text}'}}}}]\n  \
             - tool_calls: [{{id: c2, gate: done, args: {{answer: over}}}}]\n"
        ),
    );
    for (name, script) in [("verify.sh", "exit 0"), ("take.sh", "wc -c > counted; echo 1")].iter().chain(scripts) {
        folder.write(name, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(folder.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

fn cast(folder: &Folder) -> Child {
    folder.spawn(&["cast", "taker.toml", "go", "--json", "--store", "sqlite:kept/loom.db"])
}

/// The length of the arguments that the command reads.
fn arguments_bytes() -> usize {
    TEXT_BYTES + r#"{"text":""}"#.len()
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn running(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").contains(mark)).count()
}

/// Waits for a condition; panics with `what` if it does not become true.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_command_reads_all_of_its_arguments_although_the_runtime_was_killed() {
    // The command leaves its process group, so that nothing ends it, and reads only after the runtime is gone.
    let folder = folder(&[
        ("take.sh", "exec setsid ./taken.sh"),
        (
            "taken.sh",
            "echo 1 > started; while [ ! -e go ]; do sleep 0.01; done; wc -c > counted.part; mv counted.part counted",
        ),
    ]);
    let there = |name: &str| folder.path().join(name).exists();
    let child = cast(&folder);
    wait_until("the command begins", || there("started"));
    kill(child);
    folder.write("go", "");
    wait_until("the command comes to its end", || there("counted"));
    assert_eq!(folder.read("counted").trim(), arguments_bytes().to_string());
}

#[test]
fn a_command_that_is_killed_with_the_runtime_at_any_moment_never_acts_on_half() {
    let folder = folder(&[("take.sh", "wc -c >> counted; echo 1")]);
    // First without a kill: the command receives everything.
    let whole = cast(&folder).wait_with_output().unwrap();
    assert!(whole.status.success(), "{whole:?}");
    assert_eq!(folder.read("counted").trim(), arguments_bytes().to_string());
    let mut cut = 0;
    for kill_after_ms in (0..24).map(|step| step * 12) {
        let child = cast(&folder);
        let store = folder.path().join("kept/loom.db");
        wait_until("the store is there", || store.exists());
        let until = Instant::now() + Duration::from_millis(kill_after_ms);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill(child);
        cut += 1;
    }
    assert_eq!(cut, 24);
    for count in folder.read("counted").lines() {
        assert_eq!(count.trim(), arguments_bytes().to_string(), "a command acted on half of its arguments");
    }
}

#[test]
fn commands_and_verifiers_end_with_the_runtime_together_with_what_they_started() {
    let takes = folder(&[("take.sh", "(sleep 98781 & sleep 98781) & sleep 98781")]);
    let verifies = folder(&[("verify.sh", "(sleep 98782 & sleep 98782) & sleep 98782")]);
    for (folder, mark) in [(takes, "sleep 98781"), (verifies, "sleep 98782")] {
        let child = cast(&folder);
        wait_until("the command begins", || running(mark) >= 3);
        kill(child);
        wait_until("a process of the command is still there", || running(mark) == 0);
    }
}
