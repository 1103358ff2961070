//! Programs as gates: their answers, and that no process of theirs stays behind.

use crate::gates;

use std::fs;
use std::path::Path;
use std::time::Duration;

use cantrip_circle::gate::builtin::{Command, OnError};
use cantrip_circle::gate::{StopReason, StopSignal, Stopper};
use cantrip_circle::{Circle, Labels};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Reply, codes};
use gates::{call, circle, execute, value};
use serde_json::{Value, json};
use tempfile::TempDir;

fn shell(script: &str) -> Command {
    Command::new("tool", "A program.", "/bin/sh").arguments(["-c", script])
}

fn holding(command: Command) -> Circle {
    circle([command.gate()], json!({"allow_trifecta": "this test has nothing to steal"}))
}

async fn run(command: Command, arguments: Value) -> Reply {
    call(&holding(command), "tool", arguments).await
}

/// A pipe whose reader sees the end only when every process that could write to it is gone.
struct Watched {
    folder: TempDir,
}

impl Watched {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("alive")).status();
        assert!(made.expect("mkfifo runs").success());
        Self { folder }
    }

    /// Reads the text that was written, once all writers are gone.
    fn reading(&self) -> tokio::task::JoinHandle<String> {
        let pipe = self.folder.path().join("alive");
        tokio::task::spawn_blocking(move || fs::read_to_string(pipe).expect("the pipe can be read"))
    }

    /// A program whose child and grandchild hold the pipe and wait forever. Once they hold it, the program continues.
    fn command(&self, then: &str) -> Command {
        let child = "(exec 9>alive; echo begun >&9; echo yes >begun; sleep 10000 & sleep 10000) >/dev/null 2>&1 &";
        shell(&format!("{child} while [ ! -s begun ]; do :; done; {then}")).folder(self.folder.path())
    }
}

#[tokio::test]
async fn a_program_reads_its_arguments_and_answers_in_json() {
    let answer = run(shell("cat"), json!({"a": [1, {"b": "é"}]})).await;
    assert_code(&answer, codes::GATE_OK);
    assert_eq!(value(&answer), &json!({"a": [1, {"b": "é"}]}));
    assert_eq!(value(&run(shell("echo 5"), json!({})).await), 5, "it need not read them");
    let big = "x".repeat(150_000);
    assert_eq!(value(&run(shell("cat"), json!({"big": big})).await)["big"], json!(big));
}

#[tokio::test]
async fn a_program_sees_the_environment_it_was_given_and_no_other() {
    let script = "printf '{\"n\": %d, \"given\": \"%s\", \"key\": %d}' \
                  $(env | grep -c -v -e ^PATH= -e ^PWD= -e ^SHLVL= -e ^_= -e ^GIVEN= -e ^CANTRIP_IDEMPOTENCY_KEY=) \
                  $GIVEN ${#CANTRIP_IDEMPOTENCY_KEY}";
    let answer = run(shell(script).variable("GIVEN", "yes"), json!({})).await;
    assert_eq!((&value(&answer)["n"], &value(&answer)["given"]), (&json!(0), &json!("yes")));
    assert!(value(&answer)["key"].as_u64() > Some(0), "the key of the call is handed on: {answer:?}");
    let folder = TempDir::new().expect("a temporary folder");
    let answer = run(shell("printf '\"%s\"' $(pwd -P)").folder(folder.path()), json!({})).await;
    assert_eq!(Path::new(value(&answer).as_str().expect("a path")), folder.path().canonicalize().expect("it is there"));
}

#[tokio::test]
async fn an_error_object_is_the_entitys_to_mend_unless_the_spell_says_otherwise() {
    for script in ["echo '{\"error\": \"no such city\"}'", "echo '{\"error\": {\"message\": \"no such city\"}}'"] {
        let reported = run(shell(script), json!({})).await;
        assert_code(&reported, codes::GATE_REPORTED);
        assert_eq!(reported.data()["detail"], "no such city");
        assert_code(&run(shell(script).on_error(OnError::Fail), json!({})).await, codes::GATE_FAILED);
    }
    assert_code(&run(shell("echo '{\"error\": null, \"n\": 1}'"), json!({})).await, codes::GATE_OK);
}

#[tokio::test]
async fn the_status_of_a_program_is_the_entitys_to_act_on_unless_the_spell_says_otherwise() {
    for (script, detail) in [
        ("echo complaint >&2; exit 3", "exit status: 3: complaint"),
        ("echo noise >&2; echo '{\"error\": \"no such city\"}'; exit 3", "exit status: 3: no such city"),
        ("exit 3", "exit status: 3"),
    ] {
        let reported = run(shell(script), json!({})).await;
        assert_code(&reported, codes::GATE_REPORTED);
        assert_eq!((&reported.data()["exit_status"], &reported.data()["detail"]), (&json!(3), &json!(detail)));
        let failed = run(shell(script).on_error(OnError::Fail), json!({})).await;
        assert_code(&failed, codes::GATE_FAILED);
        assert_eq!(failed.data()["detail"], detail);
    }
}

#[tokio::test]
async fn a_program_that_is_killed_or_talks_nonsense_has_failed() {
    for script in ["echo not json", "true", "echo '{} {}'", "kill -9 $$", "printf '{\"a\":1,\"a\":2}'"] {
        assert_code(&run(shell(script), json!({})).await, codes::GATE_FAILED);
    }
    let absent = Command::new("tool", "Nothing.", "/no/such/program");
    assert_code(&run(absent, json!({})).await, codes::GATE_FAILED);
}

#[tokio::test]
async fn a_flood_is_cut_off_and_complaints_do_not_hold_a_program_up() {
    let flood = shell("exec yes '\"x\"'").output_bytes_max(1 << 10);
    assert_code(&run(flood, json!({})).await, codes::GATE_FAILED);
    let talkative =
        shell("i=0; while [ $i -lt 3000 ]; do echo 'a line of complaints that goes on' >&2; i=$((i+1)); done; echo 1");
    assert_code(&run(talkative, json!({})).await, codes::GATE_OK);
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_with_everything_it_started() {
    let watched = Watched::new();
    let reading = watched.reading();
    let command = watched.command("sleep 10000").time_max(Duration::from_secs(2));
    assert_code(&run(command, json!({})).await, codes::TIMED_OUT);
    assert_eq!(ended(reading).await, "begun\n", "its children are gone too");
}

#[tokio::test]
async fn what_a_program_leaves_behind_is_killed_when_it_answers() {
    let watched = Watched::new();
    let reading = watched.reading();
    assert_code(&run(watched.command("echo 1"), json!({})).await, codes::GATE_OK);
    assert_eq!(ended(reading).await, "begun\n");
}

#[tokio::test]
async fn a_cancelled_call_kills_its_program() {
    let watched = Watched::new();
    let reading = watched.reading();
    let circle = holding(watched.command("sleep 10000"));
    let (stopper, stop) = Stopper::new();
    let begun = watched.folder.path().join("begun");
    let stopping = async {
        while !begun.exists() {
            tokio::task::yield_now().await;
        }
        stopper.stop(StopReason::Outside { actor: "operator".into(), reason: "cancelled".into() });
    };
    let (executed, ()) = tokio::join!(execute(&circle, "tool", json!({}), stop), stopping);
    assert_code(&executed.guarded.reply, codes::ENDED_FROM_OUTSIDE);
    assert_eq!(ended(reading).await, "begun\n");
}

/// Waits for the end of a pipe; fails if a process still holds it.
async fn ended(reading: tokio::task::JoinHandle<String>) -> String {
    let waited = tokio::time::timeout(Duration::from_secs(20), reading).await;
    waited.expect("everyone who held the pipe is gone").expect("it was read")
}

#[tokio::test]
async fn arguments_are_checked_against_the_schema_the_spell_gave() {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let circle = holding(shell("cat").parameters(parameters));
    assert_code(&execute(&circle, "tool", json!({"n": "x"}), StopSignal::never()).await.guarded.reply, codes::SCHEMA);
    assert_code(&call(&circle, "tool", json!({"n": 1})).await, codes::GATE_OK);
    let promises = circle.gate("tool").expect("it is there").spec();
    assert_eq!(promises.labels, Labels::all(), "a program carries every danger until told otherwise");
    assert!(!promises.is_idempotent());
}
