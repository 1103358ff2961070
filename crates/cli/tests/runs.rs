//! Runs: their workers, how they are resumed and ended, also by another process; and the report of `doctor`.

use crate::support;

use std::process::{Child, Output};
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::model::Model;
use support::{Folder, id, own_postgres, stdout};

/// Returns every store that several processes may use at once.
fn shared_stores() -> Vec<String> {
    std::iter::once("sqlite:kept/loom.db".to_owned()).chain(own_postgres()).collect()
}

fn runs(folder: &Folder, store: &str) -> Vec<Value> {
    let listed = folder.envelope(&["run", "ls", "--limit", "1000", "--store", store], codes::READ.any());
    listed["data"]["value"].as_array().expect("a list").clone()
}

/// Waits until a condition is true.
#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[track_caller]
fn ended(child: Child) -> (Output, Value) {
    let output = child.wait_with_output().expect("it ends");
    let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, envelope)
}

#[test]
fn a_run_that_ended_is_listed_and_shown_with_what_it_came_to() {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", "say hello"], codes::TERMINATED.any());
    let store = "jsonl:kept";
    let listed = runs(&folder, store);
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["standing"], &listed[0]["intent"]), (&json!("terminated"), &json!("say hello")));
    let run = id(&listed[0]["run_id"]);
    let shown = folder.run(&["run", "show", run]);
    let text = stdout(&shown);
    for part in [run, "terminated", "say hello", "hello from hello", "cantrip loom thread"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stdout(&folder.run(&["run", "ls"])).contains("say hello"));
    let waiting = folder.envelope(&["run", "ls", "--state", "waiting"], codes::READ.any());
    assert_eq!(waiting["data"]["value"], json!([]));
    // The run has ended: there is nothing to resume and nothing to cancel.
    let read = folder.envelope(&["run", "resume", run], codes::TERMINATED.any());
    assert_eq!(read["data"]["answer"], "hello from hello");
    folder.envelope(&["run", "cancel", run], codes::WRONG_STATE.any());
    folder.envelope(&["run", "show", "run_00000000000000000000000000"], codes::NOT_FOUND.any());
    let none = folder.envelope(&["run", "resume", "--all"], codes::READ.any());
    assert_eq!(none["data"]["value"], json!([]));
}

#[test]
fn runs_whose_process_was_killed_are_told_and_all_go_on_at_once() {
    for store in shared_stores() {
        let model = Model::counting(2);
        let folder = Folder::new().with_counter(&model, "1");
        let mut killed: Vec<Child> =
            (1..=2).map(|n| folder.spawn(&["cast", "counter.toml", &format!("cast {n}"), "--store", &store])).collect();
        until("both gates are entered", || folder.calls().len() == 2);
        // While their processes live, the runs belong to them.
        let held: Vec<Value> = runs(&folder, &store).iter().map(|run| run["standing"].clone()).collect();
        assert_eq!(held, ["running", "running"]);
        folder.envelope(&["run", "resume", "--store", &store], codes::BUSY.any());
        for child in &mut killed {
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
        let listed = runs(&folder, &store);
        assert!(listed.iter().all(|run| run["standing"] == "orphaned" && run["holder"]["presence"] == "gone"));
        let told = folder.run(&["run", "ls", "--store", &store]);
        assert!(stdout(&told).contains("cantrip run resume --all"), "{told:?}");
        let doctor = folder.envelope(&["doctor", "--store", &store], codes::OK.any());
        let findings = doctor["data"]["findings"].as_array().expect("findings");
        let of_runs = findings.iter().find(|finding| finding["check"] == "runs").expect("one about runs");
        assert_eq!(of_runs["said"], "0 running, 2 orphaned, 0 waiting");
        // The leases have not expired, but the resume need not wait for that.
        let resumed = folder.run(&["run", "resume", "--all", "--json", "--store", &store]);
        let answers: Vec<Value> =
            stdout(&resumed).lines().map(|line| serde_json::from_str(line).expect("an envelope")).collect();
        assert_eq!(answers.len(), 2, "{resumed:?}");
        for answer in &answers {
            assert_envelope(answer, codes::TERMINATED.any());
            assert_eq!(answer["data"]["answer"], "counted to 2");
        }
        assert!(runs(&folder, &store).iter().all(|run| run["standing"] == "terminated"));
        assert!(folder.calls().values().all(|count| *count == 1), "{:?}", folder.calls());
        folder.envelope(&["loom", "verify", "--store", &store], codes::VERIFIED.any());
    }
}

#[test]
fn a_run_is_ended_by_another_process_and_says_so_in_its_own() {
    for store in shared_stores() {
        let model = Model::counting(50);
        let folder = Folder::new().with_counter(&model, "0.1");
        let working = folder.spawn(&["cast", "counter.toml", "count", "--json", "--store", &store]);
        until("a gate is entered", || !folder.calls().is_empty());
        let cancelled = folder.envelope(&["run", "cancel", "--store", &store], codes::CHANGED.any());
        assert!(cancelled["message"].as_str().is_some_and(|message| message.ends_with("is now cancelled")));
        let (output, envelope) = ended(working);
        assert_envelope(&envelope, codes::ENDED_FROM_OUTSIDE.any());
        assert_eq!(output.status.code(), Some(3));
        assert!(folder.calls().len() < 50);
        let listed = runs(&folder, &store);
        assert_eq!(listed[0]["standing"], "truncated");
        // The completed turns stay, and the run can be continued.
        folder.envelope(&["loom", "verify", "--store", &store], codes::VERIFIED.any());
        assert!(stdout(&folder.run(&["run", "show", "--store", &store])).contains("cantrip run continue"));
    }
}

#[test]
fn a_run_that_nobody_works_on_is_ended_here() {
    for store in shared_stores() {
        let model = Model::counting(3);
        let folder = Folder::new().with_counter(&model, "1");
        let mut killed = folder.spawn(&["cast", "counter.toml", "count", "--store", &store]);
        until("a gate is entered", || !folder.calls().is_empty());
        killed.kill().expect("it is killed");
        killed.wait().expect("it ends");
        folder.envelope(&["run", "cancel", "--store", &store], codes::CHANGED.any());
        assert_eq!(runs(&folder, &store)[0]["standing"], "truncated");
        assert_eq!((folder.calls().len(), model.asked()), (1, 1), "nothing more is asked or called");
        folder.envelope(&["run", "resume", "--store", &store], codes::ENDED_FROM_OUTSIDE.any());
    }
}

#[test]
fn a_run_that_was_cut_off_goes_on_with_fewer_turns_than_its_spell_allows() {
    let model = Model::counting(3);
    let folder = Folder::new().with_counter(&model, "0");
    folder.write("counter.toml", &folder.read("counter.toml").replace("max_turns = 100", "max_turns = 2"));
    let on = |arguments: &[&'static str]| [arguments, &["--store", "sqlite:kept/loom.db"]].concat();
    folder.envelope(&on(&["cast", "counter.toml", "count"]), codes::WARD_REACHED.any());
    let cut = folder.envelope(&on(&["run", "continue", "--max-turns", "1"]), codes::WARD_REACHED.any());
    assert!(cut["message"].as_str().is_some_and(|message| message.contains("at 1")), "{cut}");
    assert_eq!(folder.calls().len(), 3);
    let whole = folder.envelope(&on(&["run", "continue"]), codes::TERMINATED.any());
    assert_eq!(whole["data"]["answer"], "counted to 3");
    assert!(folder.calls().values().all(|count| *count == 1));
}

#[test]
fn doctor_finds_a_sound_place_in_order_and_makes_nothing() {
    let folder = Folder::new();
    let sound = folder.envelope(&["doctor", "--store", "sqlite:new/loom.db"], codes::OK.any());
    let findings = sound["data"]["findings"].as_array().expect("findings");
    let verdict = |check: &str| {
        findings.iter().find(|finding| finding["check"] == check).map(|finding| finding["verdict"].clone())
    };
    for check in ["store", "javascript", "python"] {
        assert_eq!(verdict(check), Some(json!("good")), "{check}: {sound}");
    }
    assert!(!folder.path().join("new").exists());
    let folder = folder.with_hello();
    folder.envelope(&["cast", "hello.toml", "x", "--store", "sqlite:new/loom.db"], codes::TERMINATED.any());
    for store in ["sqlite:new/loom.db".to_owned()].into_iter().chain(own_postgres()) {
        let sound = folder.envelope(&["doctor", "--deep", "--store", &store], codes::OK.any());
        let said = sound["data"]["findings"][0]["said"].as_str().expect("a text");
        assert!(said.contains("can be written to; schema 7"), "{sound}");
    }
}

#[test]
fn doctor_never_shows_a_key_and_says_what_to_do_about_what_is_wrong() {
    let folder = Folder::new();
    let mut command = folder.command(&["doctor", "--json", "--store", "sqlite:/proc/no/loom.db"]);
    // No server listens there, so that no key of a test leaves this machine.
    command.env("OPENAI_API_KEY", "sk-very-s3cret").env("OPENAI_BASE_URL", "http://127.0.0.1:1/v1");
    let output = command.output().expect("it runs");
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    assert_envelope(&envelope, codes::JOB_FAILED.any());
    let text = envelope.to_string();
    assert!(!text.contains("s3cret") && text.contains("key in OPENAI_API_KEY"), "{text}");
    assert!(envelope["data"]["hint"].as_str().is_some_and(|hint| hint.contains("--store sqlite:FILE")), "{text}");
    let away = ["doctor", "--store", "postgres://cantrip:s3cret@127.0.0.1:1/cantrip"];
    let refused = folder.envelope(&away, codes::JOB_FAILED.any());
    let finding = &refused["data"]["findings"][0];
    assert_eq!((&finding["check"], &finding["code"]), (&json!("store"), &json!("MCP-DB-E-001")), "{refused}");
    assert!(finding["hint"].as_str().is_some_and(|hint| hint.contains("can be reached")), "{refused}");
    assert!(!refused.to_string().contains("s3cret"));
}

fn asking(folder: &Folder) -> Vec<&'static str> {
    folder.write(
        "asks.toml",
        "name = \"asks\"\ncrystal = \"scripted/asks.yaml\"\n[gates.write]\nroot = \".\"\n[wards]\nmax_turns = 5\n\
         require_approval = [\"write\"]\n",
    );
    folder.write(
        "asks.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: write, args: {path: a.txt, content: hello}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: over}}]\n",
    );
    vec!["--store", "sqlite:kept/loom.db"]
}

#[test]
fn a_call_that_waits_is_shown_approved_and_made_when_its_run_is_resumed() {
    let folder = Folder::new();
    let on = asking(&folder);
    let to = |arguments: &[&'static str]| [arguments, &on].concat();
    let waiting = folder.envelope(&to(&["cast", "asks.toml", "write it"]), codes::CREATED.any());
    assert_eq!(waiting["data"]["state"], "waiting");
    assert!(!folder.path().join("a.txt").exists());
    let shown = folder.envelope(&to(&["run", "show"]), codes::READ.any());
    let pending = &shown["data"]["value"]["pending"][0];
    assert_eq!((&pending["gate"], &pending["args"]["content"]), (&json!("write"), &json!("hello")), "{shown}");
    let text = folder.run(&to(&["run", "show"]));
    assert!(stdout(&text).contains("write({") && stdout(&text).contains("run approve"), "{text:?}");
    folder.envelope(&to(&["run", "approve", "--by", "ada"]), codes::CHANGED.any());
    folder.envelope(&to(&["run", "approve"]), codes::WRONG_STATE.any());
    let over = folder.envelope(&to(&["run", "resume"]), codes::TERMINATED.any());
    // The script continued where the other process had left it.
    assert_eq!(over["data"]["answer"], "over");
    assert_eq!(folder.read("a.txt"), "hello");
    folder.envelope(&to(&["run", "approve"]), codes::WRONG_STATE.any());
}

#[test]
fn a_refusal_is_read_by_the_entity_and_nothing_is_done() {
    let folder = Folder::new();
    let on = asking(&folder);
    let to = |arguments: &[&'static str]| [arguments, &on].concat();
    folder.envelope(&to(&["cast", "asks.toml", "write it"]), codes::CREATED.any());
    folder.envelope(&to(&["run", "refuse", "--only", "apr_nothing"]), codes::NOT_FOUND.any());
    folder.envelope(&to(&["run", "refuse", "--because", "not in this folder"]), codes::CHANGED.any());
    let over = folder.envelope(&to(&["run", "resume"]), codes::TERMINATED.any());
    assert_eq!(over["data"]["answer"], "over");
    assert!(!folder.path().join("a.txt").exists());
    let thread = folder.envelope(&to(&["loom", "thread"]), codes::READ.any()).to_string();
    assert!(
        thread.contains("not in this folder") && thread.contains(codes::APPROVAL_REFUSED.any().as_str()),
        "{thread}"
    );
}
