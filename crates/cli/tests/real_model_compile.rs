//! A compile with a real model, killed once on the way and started again. Its short form asks for no score: a few
//! tickets prove nothing about a prompt. The long form has all 400, and asks for a winner that is better.

use std::io::{BufRead, BufReader};

use cantrip_reply::codes;
use serde_json::json;

use crate::support::id;
use crate::support::tickets::{CSV, Ticket, first_of};
use crate::{CRYSTAL, STORE, assert_sound, folder, is_long, llama, records};

/// The number of tickets of each split in the short form.
const TRAIN: usize = 24;
const HOLDOUT: usize = 8;
const TEST: usize = 8;
/// The number of trials that are scored before the process is killed.
const SCORED_BEFORE_KILL: usize = 10;
/// The least difference to the base that the long form asks for, in millionths.
const DIFFERENCE_MIN: i64 = 100_000;

/// Returns the tickets of the short form as a file.
fn some_tickets() -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let line = |Ticket { id, split, label, text }: &Ticket| format!("{id},{split},{label},{}\n", quoted(text));
    let splits = [("train", TRAIN), ("holdout", HOLDOUT), ("test", TEST)];
    let chosen: Vec<Ticket> = splits.into_iter().flat_map(|(split, count)| first_of(split, count)).collect();
    format!("id,split,label,text\n{}", chosen.iter().map(line).collect::<String>())
}

#[test]
fn a_compile_that_is_killed_goes_on_and_its_winner_is_better_than_the_base() {
    let Some(llama) = llama() else { return };
    let folder = folder(llama, "chat");
    let tickets = if is_long() { CSV.to_owned() } else { some_tickets() };
    folder.write("tickets.csv", &tickets);
    let add = ["dataset", "add", "tickets", "tickets.csv", "--signature", "Ticket", "--splits", "given"];
    folder.envelope(&[&add[..], &STORE].concat(), codes::CREATED.any());
    let candidates = if is_long() { "candidates=8" } else { "candidates=2" };
    let compile = ["compile", "Ticket", "--dataset", "tickets", "--metric", "label", "--yes", "--concurrency", "1"];
    let search = ["--optimiser", "bootstrap_demos.v1", "--set", candidates];
    let arguments = [&compile[..], &search, &CRYSTAL, &STORE].concat();

    let mut child = folder.spawn(&[&arguments[..], &["--jsonl"]].concat());
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let scored = lines.map_while(Result::ok).filter(|line| line.contains("\"job.scored\""));
    assert_eq!(scored.take(SCORED_BEFORE_KILL).count(), SCORED_BEFORE_KILL, "it ended before it was killed");
    child.kill().expect("it is there");
    child.wait().expect("it has ended");
    let before = records(&folder, "opened").len();
    assert!(before >= SCORED_BEFORE_KILL, "{before}");

    let ended = folder.envelope(&arguments, codes::COMPILED.any());
    let (data, report) = (&ended["data"], &ended["data"]["report"]);
    assert_eq!((&data["status"], &data["replayed"]), (&json!("succeeded"), &json!(false)), "{ended}");
    let count = |split: &str| report["trials"][split].as_u64().expect("a number");
    let trials = count("train") + count("holdout") + count("test");
    assert_eq!(count("unscored"), 0, "{report}");
    assert_eq!(records(&folder, "opened").len() as u64, trials, "each trial was answered once: {report}");
    folder.envelope(&[&["compile", "replay", id(&data["report_id"])], &STORE[..]].concat(), codes::VERIFIED.any());
    assert_sound(&folder);

    let eval = data["eval_id"].as_str();
    assert_eq!(eval.is_some(), report["selected"] != report["base"], "only a winner is tested: {report}");
    if let Some(eval) = eval {
        folder.envelope(&[&["eval", "verify", eval], &STORE[..]].concat(), codes::VERIFIED.any());
    }
    if is_long() {
        let eval = eval.expect("some set of demos is better than none on holdout");
        let shown = folder.envelope(&[&["eval", "show", eval], &STORE[..]].concat(), codes::READ.any());
        let found = &shown["data"]["value"]["report"];
        assert_eq!((&found["examples"], &found["verdict"]), (&json!(220), &json!("better")), "{found}");
        assert!(found["delta"]["mean"].as_i64() >= Some(DIFFERENCE_MIN), "{found}");
    }
}
