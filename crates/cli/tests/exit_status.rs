//! The exit status of a command that leaves its run waiting, or that the user interrupted.

use std::process::{Output, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use cantrip_reply::codes;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::model::Model;
use crate::support::{Folder, enveloped, id, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// A spell whose first call waits for a person.
fn careful() -> Folder {
    let folder = Folder::new();
    folder.write(
        "careful.toml",
        "name = \"careful\"\ncrystal = \"scripted/careful.yaml\"\n[gates.write]\nroot = \".\"\n[wards]\n\
         max_turns = 5\nrequire_approval = [\"write\"]\n",
    );
    folder.write(
        "careful.yaml",
        "responses:\n  - tool_calls: [{id: c1, gate: write, args: {path: a.txt, content: hello}}]\n  \
         - tool_calls: [{id: c2, gate: done, args: {answer: over}}]\n",
    );
    folder
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn what_follows_a_cast_that_waits_is_not_done() {
    let folder = careful();
    let output = folder.pasted(&format!("cantrip cast careful.toml go --store {STORE} && touch deployed"));
    assert_eq!((code(&output), stdout(&output)), (Some(5), ""), "{output:?}");
    assert!(!folder.path().join("deployed").exists());
    assert!(stderr(&output).contains("waiting (approval)"), "{output:?}");
    // A second attempt before a decision has the same result, also with `--quiet`.
    let again = folder.run(&["run", "resume", "--quiet", "--store", STORE]);
    assert_eq!((code(&again), stdout(&again)), (Some(5), ""), "{again:?}");
    let told = folder.envelope(&["run", "resume", "--store", STORE], codes::CREATED.any());
    assert_eq!((&told["data"]["state"], &told["data"]["reason"]), (&json!("waiting"), &json!("approval")));
    // A command that only reads succeeds.
    folder.envelope(&["run", "show", "--store", STORE], codes::READ.any());
    let approve = "cantrip run approve --store sqlite:kept/loom.db && cantrip run resume --store sqlite:kept/loom.db";
    let output = folder.pasted(&format!("{approve} --quiet && touch deployed"));
    assert_eq!(code(&output), Some(0), "{output:?}");
    assert!(stdout(&output).ends_with("\nover\n"), "{output:?}");
    assert!(folder.path().join("deployed").exists());
}

#[test]
fn a_script_of_intents_ends_with_the_status_of_the_first_that_did_not_finish() {
    let folder = careful();
    let output = folder.piped(&["summon", "careful.toml", "--quiet", "--store", STORE], "go\n");
    assert_eq!((code(&output), stdout(&output)), (Some(5), ""), "{output:?}");
}

#[test]
fn a_run_with_another_call_to_decide_still_waits_after_one_was_approved() {
    // Two children need approval at once.
    let model = Model::start(|request| {
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let answered = messages.iter().any(|message| message["role"] == "tool");
        let said = |message: &Value| message["content"].as_str().unwrap_or_default().to_owned();
        let intent = messages.iter().find(|message| message["role"] == "user").map(said).unwrap_or_default();
        let (name, arguments) = match (intent.as_str(), answered) {
            ("go", false) => ("call_agent_batch", json!({"requests": [{"intent": "a"}, {"intent": "b"}]})),
            (file @ ("a" | "b"), false) => ("write", json!({"path": format!("{file}.txt"), "content": file})),
            (_, _) => ("done", json!({"answer": "both"})),
        };
        let function = json!({"name": name, "arguments": arguments.to_string()});
        json!({"role": "assistant", "content": null,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}]})
    });
    let folder = Folder::new();
    folder.write(
        "pair.toml",
        &format!(
            "name = \"pair\"\ncrystal = \"{}\"\n[gates.write]\nroot = \".\"\n[gates.call_agent_batch]\n[wards]\n\
             max_turns = 5\nmax_depth = 1\nrequire_approval = [\"write\"]\n",
            model.crystal()
        ),
    );
    folder.envelope(&["cast", "pair.toml", "go", "--store", STORE], codes::CREATED.any());
    let shown = folder.envelope(&["run", "show", "--store", STORE], codes::READ.any());
    let pending = shown["data"]["value"]["pending"].as_array().expect("calls that wait").clone();
    assert_eq!(pending.len(), 2, "{shown}");
    let (first, second) = (id(&pending[0]["approval_id"]), id(&pending[1]["approval_id"]));
    let one = folder.envelope(&["run", "approve", "--only", first, "--store", STORE], codes::CHANGED.any());
    let told = (&one["data"]["run_state"], &one["data"]["approvals"]);
    assert_eq!(told, (&json!("waiting"), &json!([second])), "{one}");
    let other = folder.run(&["run", "approve", "--only", second, "--store", STORE]);
    assert_eq!(code(&other), Some(0), "{other:?}");
    assert!(stdout(&other).contains("run resume"), "{other:?}");
    let over = folder.envelope(&["run", "resume", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(over["data"]["answer"], "both");
    assert_eq!((folder.read("a.txt"), folder.read("b.txt")), ("a".to_owned(), "b".to_owned()));
}

/// A model that reports each request and never answers.
fn silent() -> (Model, Receiver<()>) {
    let (to, asked) = channel();
    let to = Mutex::new(to);
    let model = Model::start(move |_| {
        let _ = to.lock().expect("nobody panics with it").send(());
        // The test ends before this thread does.
        std::thread::park();
        json!({"role": "assistant", "content": "late"})
    });
    (model, asked)
}

/// Sends Ctrl-C once the model has a request, and waits for the end.
fn interrupted(folder: &Folder, asked: &Receiver<()>, arguments: &[&str], input: Option<&str>) -> Output {
    let mut command = folder.command(arguments);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    let mut keys = child.stdin.take();
    if let (Some(keys), Some(input)) = (&mut keys, input) {
        std::io::Write::write_all(keys, input.as_bytes()).expect("it reads");
    }
    asked.recv().expect("the model is asked");
    kill_process(Pid::from_child(&child), Signal::INT).expect("it is there");
    // The input stays open: only the interrupt ends the process.
    let output = child.wait_with_output().expect("it ends");
    drop(keys);
    output
}

#[test]
fn an_interrupted_command_says_so_and_its_run_goes_on_later() {
    let (model, asked) = silent();
    let folder = Folder::new();
    let spell = |crystal: &str| {
        folder.write("thinker.toml", &format!("name = \"thinker\"\ncrystal = \"{crystal}\"\n[wards]\nmax_turns = 5\n"));
    };
    spell(&model.crystal());
    let output = interrupted(&folder, &asked, &["cast", "thinker.toml", "go", "--json", "--store", STORE], None);
    let told = enveloped(&output, codes::CREATED.any());
    assert_eq!((&told["data"]["reason"], code(&output)), (&json!("interrupted"), Some(130)));
    let output = interrupted(&folder, &asked, &["run", "resume", "--store", STORE], None);
    assert_eq!((code(&output), stdout(&output)), (Some(130), ""), "{output:?}");
    assert!(stderr(&output).contains("run resume"), "how to go on is said: {output:?}");
    let output = interrupted(&folder, &asked, &["cast", "thinker.toml", "go", "--jsonl", "--store", STORE], None);
    assert_eq!(code(&output), Some(130), "{output:?}");
    // The script's next intent is not sent.
    let summon = ["summon", "thinker.toml", "--quiet", "--store", STORE];
    let output = interrupted(&folder, &asked, &summon, Some("one\ntwo\n"));
    assert_eq!((code(&output), stdout(&output)), (Some(130), ""), "{output:?}");
    assert_eq!(asked.try_iter().count(), 0, "nobody was asked about the second");
}

#[test]
fn the_help_names_every_status() {
    let output = Folder::new().run(&["--help"]);
    let text = stdout(&output);
    let line = "Exit status: 0 success, 2 invalid, 3 denied, 4 error, 5 waiting, 130 interrupted.";
    assert!(text.contains(line), "{text}");
}
