//! A server says what it serves, how to call it, and which runs it resumes.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, Stdio};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use rustix::process::Signal;
use serde_json::Value;

use crate::serve::Server;
use crate::support::{Folder, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// A server whose standard error is read line by line; it is killed when it is dropped.
struct Talking {
    process: Child,
    lines: Lines<BufReader<ChildStderr>>,
}

impl Talking {
    fn start(folder: &Folder, variables: &[(&str, &str)]) -> Self {
        let mut command = folder.command(&["serve", "--bind", "127.0.0.1:0", "--store", STORE]);
        command.env_remove("CANTRIP_TOKEN").envs(variables.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary runs");
        let lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        Self { process, lines }
    }

    /// Returns the next line with this beginning.
    #[track_caller]
    fn line(&mut self, beginning: &str) -> String {
        let mut lines = self.lines.by_ref().map(|line| line.expect("text"));
        lines.find(|line| line.starts_with(beginning)).unwrap_or_else(|| panic!("no line begins with {beginning:?}"))
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[test]
fn a_server_lists_its_spells_and_its_line_for_curl_works_as_pasted() {
    let token = "a-token-of-more-than-sixteen-letters";
    for (variables, exported) in
        [(&[][..], String::new()), (&[("CANTRIP_TOKEN", token)][..], format!("export CANTRIP_TOKEN={token}; "))]
    {
        let folder = Folder::new().with_hello();
        let mut server = Talking::start(&folder, variables);
        server.line("listening on http://127.0.0.1:");
        assert_eq!(server.line("spells: "), "spells: hello, default");
        let curl = server.line("  curl ");
        assert_eq!(curl.contains(" -H \"authorization: Bearer $CANTRIP_TOKEN\""), !variables.is_empty(), "{curl}");
        server.line("no run was resumed");
        let output = folder.pasted(&format!("{exported}{curl}"));
        let envelope: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&envelope, codes::TERMINATED.any());
        assert_eq!(envelope["data"]["answer"], "hello from hello");
    }
}

/// Returns the rows of `run ls` in this state.
fn runs(folder: &Folder, states: &[&str]) -> Vec<Value> {
    let listed = folder.envelope(&["run", "ls", "--store", STORE], codes::READ.any());
    let rows = listed["data"]["value"].as_array().expect("a list").clone();
    rows.into_iter().filter(|row| row["standing"].as_str().is_some_and(|state| states.contains(&state))).collect()
}

#[test]
fn a_server_names_the_run_that_it_resumes_and_never_resumes_one_that_has_ended() {
    let folder = Folder::new().with_hello();
    // Runs that have ended: with an answer, by a ward, and cancelled; with a budget and without one.
    folder.write(
        "talk.toml",
        "name = \"talk\"\ncrystal = \"scripted/talk.yaml\"\n[call]\nrequire_done_tool = true\n[wards]\nmax_turns = 1\n",
    );
    folder.write("talk.yaml", "responses:\n  - content: one\n  - content: two\n");
    for budget in [&[][..], &["--budget", "0.50 USD"]] {
        for (spell, code) in [("hello.toml", codes::TERMINATED.any()), ("talk.toml", codes::WARD_REACHED.any())] {
            folder.envelope(&[&["cast", spell, "go", "--store", STORE], budget].concat(), code);
        }
    }
    folder.write(
        "slow.toml",
        "name = \"slow\"\ncrystal = \"scripted/slow.yaml\"\n[gates.hold]\ncommand = [\"./hold.sh\"]\nlabels = []\n\
         idempotent = true\n[wards]\nmax_turns = 3\n",
    );
    folder.write(
        "slow.yaml",
        "responses:\n  - tool_calls: [{id: a, gate: hold, args: {}}]\n  \
         - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n",
    );
    folder.write("hold.sh", "#!/bin/sh\ntouch begun\n[ -e go ] || sleep 600\necho 1\n");
    fs::set_permissions(folder.path().join("hold.sh"), PermissionsExt::from_mode(0o755)).expect("a script");
    let begun = folder.path().join("begun");
    let kill_in_the_middle = || {
        let mut child = folder.spawn(&["cast", "slow.toml", "go", "--store", STORE]);
        let until = Instant::now() + Duration::from_secs(60);
        while !begun.exists() {
            assert!(Instant::now() < until, "the gate is not entered");
            std::thread::sleep(Duration::from_millis(10));
        }
        child.kill().expect("it is killed");
        child.wait().expect("it ends");
        fs::remove_file(&begun).expect("it is there");
    };
    kill_in_the_middle();
    folder.envelope(&["run", "cancel", "--store", STORE], codes::CHANGED.any());
    let ended = runs(&folder, &["terminated", "truncated"]);
    assert_eq!(ended.len(), 5, "{ended:?}");
    kill_in_the_middle();
    let orphans = runs(&folder, &["orphaned"]);
    let [orphan] = orphans.as_slice() else { panic!("one run is left behind: {orphans:?}") };
    let orphan = orphan["run_id"].as_str().unwrap_or_else(|| panic!("{orphan}")).to_owned();

    folder.write("go", "");
    let server = Server::start(&folder, &["--store", STORE]);
    let answered = server.until(&orphan, |value| value["state"] == "terminated");
    assert_eq!(answered["answer"], "over");
    let (status, said) = server.stop_and_read(Signal::TERM);
    assert_eq!(status, 0);
    let resumed: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("resuming ")).collect();
    assert_eq!(resumed, [orphan.as_str()], "{said}");
    let mut still = runs(&folder, &["terminated", "truncated"]);
    still.retain(|row| row["run_id"] != orphan.as_str());
    assert_eq!(still, ended, "a run that has ended was written to");

    // With nothing left, the next server says so; with --no-resume it does not look.
    let server = Server::start(&folder, &["--store", STORE]);
    server.until(&orphan, |value| value["state"] == "terminated");
    let output = folder.run(&["run", "resume", "--all", "--store", STORE]);
    assert!(stdout(&output).contains("no runs to resume"), "{output:?}");
    let (_, said) = server.stop_and_read(Signal::TERM);
    assert!(!said.contains("resuming "), "{said}");
}
