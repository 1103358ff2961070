//! The shell as the binary runs it: as any user, never without its cage, and with nothing left when the binary is killed.

use crate::support::{Folder, id};

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::Value;

const SPELL: &str = "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\nmedium = \"shell\"\n[wards]\nmax_turns = 5\n";

fn script(command: &str) -> String {
    format!(
        "responses:\n  - tool_calls: [{{id: c1, gate: shell, args: {{command: '{command}'}}}}]\n  \
         - tool_calls: [{{id: c2, gate: done, args: {{answer: over}}}}]\n"
    )
}

fn folder(command: &str) -> Folder {
    let folder = Folder::new();
    folder.write("hands.toml", SPELL);
    folder.write("hands.yaml", &script(command));
    folder
}

fn running(mark: &str) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").contains(mark)).count()
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first call of the latest thread.
fn first_call(folder: &Folder, store: &str) -> Value {
    let thread = folder.envelope(&["loom", "thread", "--store", store], codes::READ.any());
    thread["data"]["value"]["turns"][0]["gate_calls"][0].clone()
}

#[test]
fn a_binary_that_is_killed_leaves_no_process_and_the_command_reads_outcome_unknown() {
    let (mark, store) = ("sleep 98771", "sqlite:kept/loom.db");
    let folder = folder("setsid sleep 98771 & sleep 98771");
    let mut child = folder.spawn(&["cast", "hands.toml", "go", "--json", "--store", store]);
    wait_until("the command begins", || running(mark) >= 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("a process of the cage is still there", || running(mark) == 0);
    let resumed = folder.envelope(&["run", "resume", "--store", store], codes::TERMINATED.any());
    assert_eq!(resumed["data"]["answer"], "over");
    assert_eq!(first_call(&folder, store)["reply"]["code"], codes::OUTCOME_UNKNOWN.any().to_string());
}

#[test]
fn without_bubblewrap_a_spell_with_a_shell_is_not_cast() {
    let folder = folder("echo hello");
    let mut command = folder.command(&["cast", "hands.toml", "go", "--json"]);
    let output = command.env("PATH", "/no/such/folder").output().unwrap();
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_envelope(&envelope, codes::SANDBOX_UNAVAILABLE.any());
    assert!(envelope["message"].as_str().unwrap().contains("apt install bubblewrap"), "{envelope}");
    assert!(!folder.path().join("kept").exists(), "nothing was begun");
}

#[test]
fn a_shell_needs_no_root() {
    let folder = folder("id -u; touch made; ls /root /home");
    let mut command = folder.command(&["cast", "hands.toml", "go", "--json"]);
    if rustix::process::geteuid().is_root() {
        // As somebody else, who can read neither our build nor our home.
        let binary = folder.path().join("cantrip");
        fs::copy(env!("CARGO_BIN_EXE_cantrip"), &binary).unwrap();
        for (path, mode) in [(folder.path(), 0o755), (&*binary, 0o755)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        for path in [folder.path().to_owned(), folder.path().join("hands.toml"), folder.path().join("hands.yaml")] {
            std::os::unix::fs::chown(path, Some(65534), Some(65534)).unwrap();
        }
        command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
        command.args(["cast", "hands.toml", "go", "--json"]);
        folder.around(&mut command);
    }
    let output = command.output().unwrap();
    let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&envelope, codes::TERMINATED.any());
    let made = folder.path().join("made").metadata().expect("it was made");
    assert_eq!(made.len(), 0);
    let said = folder.seen(&["show", id(&envelope["data"]["leaf"])]).to_string();
    assert!(!said.contains("cannot start"), "{said}");
}

#[test]
fn the_sample_repository_is_mended_shown_and_taken_back() {
    let folder = Folder::new();
    let sample = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mend");
    for file in ["prices.sh", "check.sh", "mend.toml", "mend.script.yaml"] {
        fs::copy(sample.join(file), folder.path().join(file)).unwrap();
    }
    let broken = folder.read("prices.sh");
    assert_eq!(folder.pasted("./check.sh").status.code(), Some(1));
    let cast = folder.envelope(&["cast", "mend.toml", "make the failing test pass"], codes::TERMINATED.any());
    assert_eq!(cast["data"]["answer"], "Every second one was free; it is every third now.");
    let passed = folder.pasted("./check.sh");
    assert!(passed.status.success(), "{passed:?}");
    let shown = String::from_utf8(folder.run(&["run", "diff"]).stdout).unwrap();
    assert!(shown.contains("-  echo $((price * (count - count / 2)))"), "{shown}");
    assert!(shown.contains("+  echo $((price * (count - count / 3)))"), "{shown}");
    assert!(folder.run(&["run", "undo"]).status.success());
    assert_eq!(folder.read("prices.sh"), broken);
}
