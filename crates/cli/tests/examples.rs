//! Every spell in `examples/`, cast as in the guide: each resulting thread replays identically, and each turn is one
//! line of the default export, with exactly the fields of the specification.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::support::Folder;
use crate::support::tickets::{LABELS, tickets};

/// How an example ends when it is cast as in the guide.
enum Ending {
    Answer(Value),
    /// A call waits for a person. Once it is approved, the run is resumed and has this answer.
    Approval(Value),
    /// The loop detector stops it.
    Stopped,
}

/// The arguments of an example, its ending and its number of entities.
struct Example {
    spell: &'static str,
    intent: &'static str,
    context: Option<&'static str>,
    ending: Ending,
    entities: usize,
}

fn examples() -> [Example; 10] {
    let ends = |spell, intent, context, ending, entities| Example { spell, intent, context, ending, entities };
    let example =
        |spell, intent, context, answer, entities| ends(spell, intent, context, Ending::Answer(answer), entities);
    let lines = Some("two-lines.txt");
    [
        example("adder", "add 2", None, json!(2), 1),
        ends("careful", "note it", None, Ending::Approval(json!("noted")), 1),
        example("counter", "count the letters of each line", lines, json!(11), 3),
        example("leak", "send it away", None, json!("I may not send it."), 1),
        example("orders", "what does not add up?", Some("orders.json"), json!({"wrong": ["a-2"], "off": 1}), 1),
        example("patient", "who is it?", None, json!("the one who cut the thread"), 1),
        example("questions", "find the questions", lines, json!({"lines": 2, "questions": ["four"]}), 3),
        example("report", "write about looms", None, json!({"title": "Looms", "sources": ["the attic"]}), 1),
        ends("round", "look around", None, Ending::Stopped, 1),
        example("scribe", "add tea", None, json!("added"), 1),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// A separate home and store, with a copy of the examples, so that those which write files can.
struct House(tempfile::TempDir);

impl House {
    fn new() -> Self {
        let runtime = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(runtime.examples()).expect("a folder");
        for entry in fs::read_dir(folder()).expect("examples").map(|entry| entry.expect("an entry")) {
            if entry.file_type().expect("a type").is_file() {
                fs::copy(entry.path(), runtime.examples().join(entry.file_name())).expect("a copy");
            }
        }
        fs::write(runtime.examples().join("list.txt"), "milk\nbread\n").expect("a list");
        runtime
    }

    fn examples(&self) -> PathBuf {
        self.0.path().join("examples")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let store = format!("jsonl:{}", self.0.path().join("kept").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_cantrip"));
        command.args(arguments).args(["--store", &store]).current_dir(self.examples()).env("HOME", self.0.path());
        command.env_remove("XDG_DATA_HOME").env_remove("CANTRIP_STORE").env_remove("CANTRIP_CRYSTAL");
        command.stdin(Stdio::null()).output().expect("the binary runs")
    }

    #[track_caller]
    fn envelope(&self, arguments: &[&str], code: AnyCode) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let envelope = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&envelope, code);
        envelope
    }

    /// Casts an example and returns the turns of its loom as their tree shows them.
    #[track_caller]
    fn cast(&self, example: &Example) -> Vec<Value> {
        let spell = format!("{}.toml", example.spell);
        let context = example.context.map(|context| ["--context", context]);
        let cast = ["cast", &spell, example.intent, "--quiet"];
        let mut cast = self.run(&[&cast[..], context.as_ref().map_or(&[], |context| &context[..])].concat());
        if matches!(example.ending, Ending::Approval(_)) {
            assert_eq!(cast.status.code(), Some(5), "{spell}: {cast:?}");
            let approved = self.run(&["run", "approve"]);
            assert!(approved.status.success() && approved.stdout.starts_with(b"approved"), "{spell}: {approved:?}");
            cast = self.run(&["run", "resume", "--quiet"]);
        }
        let said = String::from_utf8(cast.stdout.clone()).expect("UTF-8");
        match &example.ending {
            Ending::Answer(wanted) | Ending::Approval(wanted) => {
                assert!(cast.status.success(), "{spell}: {cast:?}");
                let answer = serde_json::from_str(&said).unwrap_or_else(|_| json!(said.trim_end()));
                assert_eq!(answer, *wanted, "{spell}");
            }
            Ending::Stopped => {
                assert_eq!((cast.status.code(), said.as_str()), (Some(3), ""), "{spell}: {cast:?}");
                assert!(
                    String::from_utf8_lossy(&cast.stderr).contains(codes::LOOP_DETECTED.as_str()),
                    "{spell}: {cast:?}"
                );
            }
        }
        let tree = self.envelope(&["loom", "tree"], codes::READ.any());
        tree["data"]["value"]["turns"].as_array().expect("turns").clone()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn no_spell_is_forgotten() {
    let entries = fs::read_dir(folder()).expect("examples").map(|entry| entry.expect("an entry").path());
    let spells: BTreeSet<String> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    assert_eq!(spells, examples().into_iter().map(|example| example.spell.to_owned()).collect());
}

#[test]
fn every_thread_of_every_example_replays_identically() {
    for example in examples() {
        let runtime = House::new();
        let turns = runtime.cast(&example);
        // The last turn of an entity names its thread.
        let mut threads = BTreeMap::new();
        for turn in &turns {
            let of = threads.entry(text(&turn["entity_id"])).or_insert((0, ""));
            *of = (*of).max((turn["sequence"].as_u64().expect("a sequence"), text(&turn["id"])));
        }
        assert_eq!(threads.len(), example.entities, "{}", example.spell);
        for (sequence, leaf) in threads.into_values() {
            let same = runtime.envelope(&["loom", "replay", leaf], codes::VERIFIED.any());
            assert_eq!(same["data"]["turns"], json!(sequence), "{}: {same}", example.spell);
        }
    }
}

#[test]
fn every_turn_of_every_example_is_a_line_with_the_fields_of_the_specification() {
    let fields = [
        "id",
        "parent_id",
        "cantrip_id",
        "entity_id",
        "sequence",
        "utterance",
        "observation",
        "gate_calls",
        "metadata",
        "reward",
        "terminated",
        "truncated",
        "x",
    ];
    for example in examples() {
        let runtime = House::new();
        let turns = runtime.cast(&example);
        let export = runtime.run(&["loom", "export"]);
        let lines = String::from_utf8(export.stdout).expect("UTF-8");
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let ids = |turns: &[Value]| turns.iter().map(|turn| text(&turn["id"]).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!((ids(&lines), lines.len()), (ids(&turns), turns.len()), "{}", example.spell);
        for line in &lines {
            assert_eq!(keys(line), fields.into(), "{}", example.spell);
            assert!(line["utterance"].is_string() && line["observation"].is_string(), "{}: {line}", example.spell);
            for call in line["gate_calls"].as_array().expect("calls") {
                assert_eq!(keys(call), ["gate", "args", "result", "is_error", "tool_call_id"].into());
            }
            assert!(line["x"].get("implicit_reward").is_some(), "{}: {line}", example.spell);
        }
    }
}

/// Returns the words of a text, without case and punctuation.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[test]
fn the_tickets_are_balanced_and_no_two_are_alike() {
    let tickets = tickets();
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for ticket in &tickets {
        *counts.entry((ticket.label.as_str(), ticket.split.as_str())).or_default() += 1;
    }
    let sizes = [("train", 25), ("holdout", 20), ("test", 55)];
    assert_eq!(counts.len(), LABELS.len() * sizes.len());
    for (label, (split, size)) in LABELS.iter().flat_map(|label| sizes.map(|size| (*label, size))) {
        assert_eq!(counts.get(&(label, split)), Some(&size), "{label}, {split}");
    }
    let ids: BTreeSet<&str> = tickets.iter().map(|ticket| ticket.id.as_str()).collect();
    assert_eq!(ids.len(), tickets.len());
    let of: Vec<BTreeSet<String>> = tickets.iter().map(|ticket| words(&ticket.text).into_iter().collect()).collect();
    for (at, one) in of.iter().enumerate() {
        for (other, ticket) in of[..at].iter().zip(&tickets) {
            let (shared, all) = (one.intersection(other).count(), one.union(other).count());
            assert!(shared * 5 < all * 2, "{} and {} share {shared} of {all} words", ticket.id, tickets[at].id);
        }
    }
    // No word stands in most tickets of one class and in no other: the label cannot be read off a single word.
    for label in LABELS {
        let (own, others): (Vec<_>, Vec<_>) = of.iter().zip(&tickets).partition(|(_, ticket)| ticket.label == label);
        let every: BTreeSet<&String> = own.iter().flat_map(|(words, _)| words.iter()).collect();
        for word in every {
            let inside = own.iter().filter(|(words, _)| words.contains(word)).count();
            let outside = others.iter().filter(|(words, _)| words.contains(word)).count();
            assert!(inside < 25 || outside > 0, "{word} stands in {inside} tickets about {label} and in no other");
        }
    }
}

#[test]
fn the_tickets_are_a_dataset_with_its_signature_and_its_metric() {
    let tickets = Folder::new();
    for name in ["signatures/ticket.toml", "metrics/label.toml", "tickets.csv"] {
        let (from, to) = (folder().join("tickets").join(name), tickets.path().join(name));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, to).expect("a copy");
    }
    let store = ["--store", "sqlite:kept/loom.db"];
    let checked = tickets.run(&["sig", "check"]);
    assert!(checked.status.success(), "{checked:?}");
    let add = ["dataset", "add", "tickets", "tickets.csv", "--signature", "Ticket", "--splits", "given"];
    let added = tickets.envelope(&[&add[..], &store].concat(), codes::CREATED.any());
    let counts = &added["data"]["counts"];
    assert_eq!((&counts["taken"], &counts["unlabelled"]), (&json!(400), &json!(0)), "{added}");
    assert_eq!(counts["splits"], json!({"train": 100, "holdout": 80, "test": 220}), "{added}");
    assert_eq!((&counts["skipped"], &counts["contradiction"]), (&json!({}), &json!(0)), "{added}");
    let checked = tickets.run(&[&["metric", "check", "label"], &store[..]].concat());
    assert!(checked.status.success(), "{checked:?}");
}
