//! The shell as the binary runs it: as any user, always in its sandbox, and without leftovers when the binary is
//! killed.

use crate::support::{Folder, id, stderr};

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::{assert_envelope, assert_recorded};
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
    assert_recorded(&first_call(&folder, store)["reply"], codes::OUTCOME_UNKNOWN.any());
}

#[test]
fn a_folder_with_very_many_files_does_not_keep_the_shell_from_starting() {
    let folder = folder("echo works");
    let many = folder.path().join("node_modules/many");
    fs::create_dir_all(&many).unwrap();
    // More than `list` and `search` visit.
    for number in 0..100_500 {
        fs::File::create(many.join(number.to_string())).unwrap();
    }
    let store = "sqlite:kept/loom.db";
    let cast = folder.envelope(&["cast", "hands.toml", "go", "--store", store], codes::TERMINATED.any());
    assert_eq!(cast["data"]["answer"], "over");
    let call = first_call(&folder, store);
    assert_recorded(&call["reply"], codes::GATE_OK.any());
    assert!(call.to_string().contains("works"), "{call}");
}

/// A runtime that is killed cannot clean up after its shell. The next command does, before it reads any file of the
/// project.
#[test]
fn what_a_shell_made_in_a_binary_that_was_killed_is_put_aside_by_the_next_command() {
    let command = "mkdir -p deep; echo planted > AGENTS.md; echo x > deep/cantrip.toml; echo x > .env; echo x > kept.md; \
                   touch ready; sleep 98772";
    let folder = folder(command);
    folder.write("beside.md", "x");
    fs::create_dir(folder.path().join("own")).unwrap();
    folder.write("own/AGENTS.md", "as it was");
    let mut child = folder.spawn(&["cast", "hands.toml", "go", "--json"]);
    wait_until("the command begins", || folder.path().join("ready").exists());
    let records = || fs::read_dir(folder.path().join(".local/state/cantrip/open-shells")).unwrap().count();
    assert_eq!(records(), 1);
    // While the process lives, no other process cleans up for it.
    assert!(folder.run(&["codes"]).status.success());
    assert!(folder.path().join("AGENTS.md").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("a process of the cage is still there", || running("sleep 98772") == 0);
    let output = folder.run(&["codes"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let told = stderr(&output);
    for name in ["AGENTS.md", "deep/cantrip.toml", ".env"] {
        assert!(told.contains(&format!("  {name}\n")), "{told}");
        assert!(!folder.path().join(name).exists(), "{name} is still there");
        assert!(folder.path().join(format!("{name}.unapproved")).exists(), "{name} is not kept");
    }
    assert!(told.contains("was killed while its shell was open"), "{told}");
    assert!(folder.path().join("kept.md").exists());
    assert_eq!(folder.read("own/AGENTS.md"), "as it was");
    assert_eq!(records(), 0);
    assert_eq!(stderr(&folder.run(&["codes"])), "", "it is said once");
}

#[test]
fn a_binary_that_ends_leaves_no_record_of_its_shell_and_searches_after_it() {
    // The process that is left running writes its file after the command has ended.
    let folder = folder("(while [ ! -e over ]; do :; done; echo planted > AGENTS.md) & touch made");
    folder.write(
        "hands.yaml",
        &script("(while [ ! -e over ]; do :; done; echo planted > AGENTS.md) & touch made").replace(
            "  - tool_calls: [{id: c2",
            "  - tool_calls: [{id: c3, gate: shell, args: {command: touch over}}]\n  - tool_calls: [{id: c2",
        ),
    );
    let output = folder.run(&["cast", "hands.toml", "go", "--json"]);
    assert!(output.status.success(), "{output:?}");
    assert!(folder.path().join("over").exists());
    assert!(!folder.path().join("AGENTS.md").exists());
    assert_eq!(fs::read_dir(folder.path().join(".local/state/cantrip/open-shells")).unwrap().count(), 0);
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
        // As another user, who can read neither our build nor our home.
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
