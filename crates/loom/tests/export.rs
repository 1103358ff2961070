//! Export from a loom: the fields that a reader relies on, no secrets, and a journal that can be imported unchanged.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeSet;

use cantrip_canon::LoomId;
use cantrip_loom::export::{Format, Imported, Redaction, export, import_journal, import_turns};
use cantrip_loom::{
    Actor, CallId, CallWork, Closing, EndedBy, Ending, Environment, Error, Fork, Journal, Jsonl, Loom, MemoryLoom,
    Origin, OutputRecord, PageRequest, ProgramError, RecordValue, Reward, Spawn, Step, TruncationReason,
};
use cantrip_loom_suite::{Episode, LoomWriter, closed, settled, started, utterance};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

const SECRET: &str = "sk-proj-Zx81Qm4LtB77VnR2yKd09cWfHsEa";

async fn lines<S: Journal + Loom>(
    store: &S,
    of: &LoomWriter<'_, S>,
    format: Format,
    redaction: Redaction,
) -> Vec<String> {
    export(store, of.loom, format, redaction).try_collect().await.unwrap()
}

async fn values<S: Journal + Loom>(store: &S, of: &LoomWriter<'_, S>, format: Format) -> Vec<Value> {
    let lines = lines(store, of, format, Redaction::Off).await;
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Writes two casts, a child, a fork, a reward, a long result, a failed program and a planted key.
async fn weave<S: Journal + Loom>(weaver: &mut LoomWriter<'_, S>) -> Episode {
    let mut parent = weaver.cast(&format!("use {SECRET} to look")).await;
    weaver.turn(&mut parent, "read", json!({"text": "lang ".repeat(2_000), "api_key": SECRET}), Closing::Open).await;
    let said = utterance(None, &[("call_agent", json!({"intent": "part"}))]);
    let opened = weaver.opened(&parent, said, &mut Vec::new());
    let (turn, next) = (opened.turn_id, weaver.id());
    let call = CallId::of_turn(turn, 1);
    let child = call.child(0);
    let intent = weaver.intent("part");
    let cast = weaver.cast_of(child, intent);
    let origin = Origin::Child { parent: turn, spawned_by: Spawn { call_id: call, index: 0 } };
    let entity = weaver.entity(child, origin);
    let mut episode =
        Episode { entity: child, cast: cast.cast_id, leaf: Some(turn), sequence: 0, turns: 0, ..parent.clone() };
    let step = Step::for_lease(weaver.step_id(), parent.lease.clone())
        .record(weaver.draft(opened))
        .record(weaver.draft(started(call, CallWork::Delegation { children: vec![child] }, None)))
        .record(weaver.draft(closed(turn, Closing::Sealed { call, next })))
        .record(weaver.draft(entity))
        .record(weaver.draft(cast));
    weaver.commit(step).await;
    let done = Closing::Terminated { ended_by: EndedBy::Done };
    weaver.turn(&mut episode, "done", json!(7), done).await;
    let result = RecordValue::new(json!(7), &mut Vec::new()).unwrap();
    let end = weaver.end_of(&episode, Ending::Terminated { ended_by: EndedBy::Done, result });
    let mut program = closed(next, Closing::Open);
    let output = OutputRecord {
        tool_call_id: None,
        clock_ms: None,
        console: vec![format!("the key is {SECRET}")],
        value: None,
        error: Some(ProgramError { name: "TypeError".into(), message: "no".into(), line: Some(2), column: Some(5) }),
        cut: 0,
        limit: None,
        rolled_back: false,
        environment_lost: None,
        left: None,
        reply: None,
    };
    program.outputs = Some(RecordValue::new(vec![output], &mut Vec::new()).unwrap());
    let mut came_to = settled(call, json!(7), &mut Vec::new());
    let data = json!({"header": SECRET}).as_object().unwrap().clone();
    came_to.data = Some(Box::new(RecordValue::new(data, &mut Vec::new()).unwrap()));
    let step = Step::for_lease(weaver.step_id(), parent.lease.clone())
        .record(weaver.draft(end))
        .record(weaver.draft(came_to))
        .record(weaver.draft(program));
    weaver.commit(step).await;
    parent = Episode { leaf: Some(next), sequence: 3, turns: 3, ..parent };
    let last = weaver.done(&mut parent, json!({"answer": 7})).await;
    let reward = Reward { turn_id: last, reward: 0.75, by: Actor::new("user:1").unwrap(), note: None };
    let step = Step::annotation(weaver.step_id(), parent.run).record(weaver.draft(reward));
    weaver.commit(step).await;
    let intent = weaver.intent("another way");
    let fork = Origin::Fork(Fork { turn: next, environment: Environment::None });
    let (step, mut branch) = weaver.open(fork, intent, Some(next), 3);
    weaver.commit(step).await;
    weaver.plain(&mut branch).await;
    weaver.truncate(&branch, TruncationReason::MaxTurns).await;
    parent
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_line_of_turns_has_exactly_the_fields_of_the_specification_and_ours_under_x() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    weave(&mut weaver).await;
    let turns = values(&loom, &weaver, Format::Turns).await;
    assert_eq!(turns.len(), loom.turns(weaver.loom, PageRequest::FIRST).await.unwrap().items.len());
    for turn in &turns {
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
        assert_eq!(keys(turn), fields.into());
        let metadata = ["tokens_prompt", "tokens_completion", "tokens_cached", "duration_ms", "timestamp"];
        assert_eq!(keys(&turn["metadata"]), metadata.into());
        assert!(turn["utterance"].is_string() && turn["observation"].is_string());
        for call in turn["gate_calls"].as_array().unwrap() {
            assert_eq!(keys(call), ["gate", "args", "result", "is_error", "tool_call_id"].into());
        }
    }
    let rewards: Vec<&Value> = turns.iter().map(|turn| &turn["reward"]).collect();
    assert_eq!(rewards, [&Value::Null, &Value::Null, &Value::Null, &Value::Null, &json!(0.75), &Value::Null]);
    let implicit: Vec<&Value> = turns.iter().map(|turn| &turn["x"]["implicit_reward"]).collect();
    assert_eq!(implicit, [&json!(1), &Value::Null, &json!(1), &json!(0.5), &json!(1), &json!(1)]);
    assert_eq!(turns[3]["observation"], format!("the key is {SECRET}\nTypeError: no (turn-3.conversation:2:5)\n7"));
    assert_eq!(turns[3]["x"]["gate_calls"][0]["data"], json!({"header": SECRET}));
    assert_eq!(turns[5]["x"]["truncation_reason"], "max_turns");
}

#[tokio::test]
async fn the_implicit_reward_is_in_no_record() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    weave(&mut weaver).await;
    let journal = lines(&loom, &weaver, Format::Journal, Redaction::Off).await;
    assert!(journal.iter().all(|line| !line.contains("implicit")));
}

#[tokio::test]
async fn no_export_holds_a_planted_key_unless_it_was_asked_for() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    weave(&mut weaver).await;
    for format in [Format::Turns, Format::Journal, Format::Chat, Format::Trajectories] {
        let redacted = lines(&loom, &weaver, format, Redaction::default()).await;
        assert!(redacted.iter().all(|line| !line.contains(SECRET)), "{format:?}");
        let plain = lines(&loom, &weaver, format, Redaction::Off).await;
        assert!(plain.iter().any(|line| line.contains(SECRET)), "{format:?}");
        assert_eq!(plain.len(), redacted.len(), "{format:?}");
    }
    // Ids and hashes are unchanged.
    let ids = |lines: Vec<String>| -> Vec<(Value, Value)> {
        lines
            .iter()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|mut line| (line["id"].take(), line["cantrip_id"].take()))
            .collect()
    };
    assert_eq!(
        ids(lines(&loom, &weaver, Format::Turns, Redaction::default()).await),
        ids(lines(&loom, &weaver, Format::Turns, Redaction::Off).await)
    );
}

#[tokio::test]
async fn a_journal_taken_in_elsewhere_gives_the_same_bytes_and_the_same_tree() {
    let source = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&source);
    let parent = weave(&mut weaver).await;
    let journal = lines(&source, &weaver, Format::Journal, Redaction::Off).await;
    let folder = tempfile::tempdir().unwrap();
    let target = Jsonl::open(folder.path()).unwrap();
    let taken = import_journal(&target, &journal).await.unwrap();
    assert_eq!(taken.runs, 2);
    assert_eq!(taken.bodies, 1);
    let again: Vec<String> = export(&target, weaver.loom, Format::Journal, Redaction::Off).try_collect().await.unwrap();
    assert_eq!(again, journal);
    for format in [Format::Turns, Format::Chat, Format::Trajectories] {
        let there: Vec<String> = export(&target, weaver.loom, format, Redaction::Off).try_collect().await.unwrap();
        assert_eq!(there, lines(&source, &weaver, format, Redaction::Off).await, "{format:?}");
    }
    // Data that only the process which wrote it may trust is not loaded from a copy.
    assert!(target.run(parent.run).await.unwrap().copied);
    assert!(!source.run(parent.run).await.unwrap().copied);
    // Importing again changes nothing, also in another process.
    drop(target);
    let target = Jsonl::open(folder.path()).unwrap();
    assert_eq!(import_journal(&target, &journal).await.unwrap(), taken);
    let again: Vec<String> = export(&target, weaver.loom, Format::Journal, Redaction::Off).try_collect().await.unwrap();
    assert_eq!(again, journal);
    assert_eq!(target.verify().unwrap().bodies, 1);
}

#[tokio::test]
async fn a_journal_that_was_altered_or_redacted_is_not_taken_in() {
    let source = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&source);
    weave(&mut weaver).await;
    let journal = lines(&source, &weaver, Format::Journal, Redaction::Off).await;
    let refused = async |lines: Vec<String>| match import_journal(&MemoryLoom::new(), lines).await {
        Err(Error::Import { line, .. }) => line,
        other => panic!("{other:?}"),
    };
    let redacted = lines(&source, &weaver, Format::Journal, Redaction::default()).await;
    assert_eq!(refused(redacted).await, 1);
    assert_eq!(refused(Vec::new()).await, 1);
    assert_eq!(refused(journal[1..].to_vec()).await, 1);
    for (at, line) in journal.iter().enumerate().skip(1) {
        let mut altered = journal.clone();
        altered[at] = line.replacen("e", "a", 1);
        assert_eq!(refused(altered).await, at as u64 + 1, "{line}");
        let mut missing = journal.clone();
        missing.remove(at);
        // A missing newest record of a run cannot be detected: it could have been written later.
        let run = |line: &str| serde_json::from_str::<Value>(line).unwrap()["run_id"].take();
        if run(line).is_null() || journal[at + 1..].iter().any(|later| run(later) == run(line)) {
            assert!(import_journal(&MemoryLoom::new(), missing).await.is_err(), "without line {}", at + 1);
        }
    }
    // A run that exists with another history is left unchanged.
    let taken = import_journal(&source, &journal).await;
    assert!(matches!(taken, Err(Error::Import { .. })), "{taken:?}");
    assert_eq!(lines(&source, &weaver, Format::Journal, Redaction::Off).await, journal);
    assert_eq!(import_journal(&MemoryLoom::new(), &journal[..1]).await.unwrap(), Imported::default());
}

#[tokio::test]
async fn a_chat_pairs_every_call_with_its_result() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    weave(&mut weaver).await;
    let chats = values(&loom, &weaver, Format::Chat).await;
    assert_eq!(chats.len(), loom.leaves(weaver.loom, PageRequest::FIRST).await.unwrap().items.len());
    for chat in &chats {
        let messages = chat["messages"].as_array().unwrap();
        assert_eq!(messages[0], json!({"role": "system", "content": "You count."}));
        assert_eq!(messages[1]["role"], "user");
        for (at, message) in messages.iter().enumerate() {
            let calls = message["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
            for (n, call) in calls.iter().enumerate() {
                let result = &messages[at + 1 + n];
                assert_eq!(result["role"], "tool");
                assert_eq!(result["tool_call_id"], call["tool_call_id"]);
            }
        }
    }
    // The list of a child starts at its own root: nothing of its parent is in it.
    let child = &chats[0]["messages"];
    assert_eq!(child[1]["content"], "part");
    assert_eq!(child.as_array().unwrap().len(), 4);
    assert_eq!(child[3]["content"], "7");
}

#[tokio::test]
async fn trajectories_of_one_beginning_share_its_nodes() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    weave(&mut weaver).await;
    let all = values(&loom, &weaver, Format::Trajectories).await;
    let ids = |trajectory: &Value| -> Vec<String> {
        trajectory["nodes"].as_array().unwrap().iter().map(|node| node["id"].as_str().unwrap().to_owned()).collect()
    };
    let (original, fork) = (ids(&all[1]), ids(&all[2]));
    let shared = original.iter().zip(&fork).take_while(|(one, other)| one == other).count();
    assert!(shared >= 6 && shared < fork.len(), "{original:?} {fork:?}");
    assert_eq!(all[1]["termination"], json!({"status": "terminated", "ended_by": "done"}));
    assert_eq!(all[2]["termination"], json!({"status": "truncated", "reason": "max_turns"}));
    assert_eq!(all[1]["steps"].as_array().unwrap().last().unwrap()["reward"], json!(0.75));
    for trajectory in &all {
        let known = ids(trajectory);
        assert_eq!(known.iter().collect::<BTreeSet<_>>().len(), known.len(), "no node twice");
    }
}

const FORMATS: [Format; 4] = [Format::Turns, Format::Journal, Format::Chat, Format::Trajectories];
const FOLDER: &str = "CANTRIP_LOOM_TEST_FOLDER";
const LOOM: &str = "CANTRIP_LOOM_TEST_ID";

async fn exported(loom: &Jsonl, id: LoomId) -> Vec<String> {
    let mut all = Vec::new();
    for format in FORMATS {
        all.extend(export(loom, id, format, Redaction::Off).try_collect::<Vec<_>>().await.unwrap());
    }
    all
}

#[tokio::test]
#[ignore = "the other process of the test below, which starts it"]
async fn a_process_that_exports_a_loom() {
    let folder = std::path::PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let id = std::env::var(LOOM).unwrap().parse().unwrap();
    let all = exported(&Jsonl::open(&folder).unwrap(), id).await;
    std::fs::write(folder.join("exported"), all.join("\n")).unwrap();
}

#[tokio::test]
async fn a_loom_that_another_process_opens_exports_what_it_exported_before() {
    let folder = tempfile::tempdir().unwrap();
    let (before, id) = {
        let loom = Jsonl::open(folder.path()).unwrap();
        let mut weaver = LoomWriter::new(&loom);
        weave(&mut weaver).await;
        (exported(&loom, weaver.loom).await, weaver.loom)
    };
    assert_eq!(exported(&Jsonl::open_to_read(folder.path()).unwrap(), id).await, before);
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_exports_a_loom", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .env(LOOM, id.to_string())
        .output()
        .unwrap();
    assert!(other.status.success(), "{other:?}");
    let after = std::fs::read_to_string(folder.path().join("exported")).unwrap();
    assert_eq!(after, before.join("\n"));
}

/// Removes the fields of a line that an import cannot know: those of the cantrip.
fn without_cantrip(line: &str) -> Value {
    let mut line: Value = serde_json::from_str(line).unwrap();
    line["cantrip_id"].take();
    line
}

#[tokio::test]
async fn turns_taken_in_elsewhere_are_the_same_turns() {
    let source = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&source);
    weave(&mut weaver).await;
    let turns = lines(&source, &weaver, Format::Turns, Redaction::Off).await;
    let target = MemoryLoom::new();
    let taken = import_turns(&target, weaver.loom, &turns).await.unwrap();
    assert_eq!(taken.runs, 3);
    let there: Vec<String> = export(&target, weaver.loom, Format::Turns, Redaction::Off).try_collect().await.unwrap();
    assert_eq!(there.len(), turns.len());
    for (there, here) in there.iter().zip(&turns) {
        assert_eq!(without_cantrip(there), without_cantrip(here));
    }
    assert_eq!(import_turns(&target, weaver.loom, &turns).await.unwrap().runs, 3);
    let again: Vec<String> = export(&target, weaver.loom, Format::Turns, Redaction::Off).try_collect().await.unwrap();
    assert_eq!(again, there);
}

/// A line as another implementation writes it.
fn foreign(id: &str, parent: Option<&str>, entity: &str, sequence: u64) -> Value {
    json!({
        "id": id, "parent_id": parent, "cantrip_id": "c-1", "entity_id": entity, "sequence": sequence,
        "utterance": format!("look at {id}"), "observation": "seen",
        "gate_calls": [], "reward": 0.5, "terminated": false, "truncated": false,
        "metadata": {
            "tokens_prompt": 10, "tokens_completion": 2, "tokens_cached": 0, "duration_ms": 5,
            "timestamp": "2026-02-19T02:00:00.000Z",
        },
    })
}

#[tokio::test]
async fn turns_of_another_implementation_are_taken_in_with_ids_of_their_own() {
    let target = MemoryLoom::new();
    let weaver = LoomWriter::new(&target);
    let mut last = foreign("t3", Some("t2"), "e1", 3);
    last["gate_calls"] = json!([{"gate": "done", "args": {"answer": 3}, "result": 3, "is_error": false}]);
    last["terminated"] = json!(true);
    let written = [
        foreign("t1", None, "e1", 1),
        foreign("t2", Some("t1"), "e1", 2),
        foreign("k1", Some("t2"), "child", 1),
        last,
        foreign("f1", Some("t2"), "fork", 3),
    ];
    let lines: Vec<String> = written.iter().map(Value::to_string).collect();
    import_turns(&target, weaver.loom, &lines).await.unwrap();
    let turns = values(&target, &weaver, Format::Turns).await;
    let said: Vec<&str> = turns.iter().map(|turn| turn["utterance"].as_str().unwrap()).collect();
    assert_eq!(said, ["look at t1", "look at t2", "look at k1", "look at t3", "look at f1"]);
    assert_eq!(turns[0]["observation"], "seen");
    assert_eq!(turns[3]["gate_calls"][0]["args"], json!({"answer": 3}));
    assert_eq!(turns[3]["terminated"], true);
    for child in [2, 3, 4] {
        assert_eq!(turns[child]["parent_id"], turns[1]["id"]);
    }
    assert_eq!(turns[0]["reward"], 0.5);
    assert_eq!(loom_leaves(&target, &weaver).await, 3);
}

async fn loom_leaves(store: &MemoryLoom, weaver: &LoomWriter<'_, MemoryLoom>) -> usize {
    store.leaves(weaver.loom, PageRequest::FIRST).await.unwrap().items.len()
}

#[tokio::test]
async fn a_line_that_is_no_turn_is_named() {
    let target = MemoryLoom::new();
    let loom = LoomWriter::new(&target).loom;
    let good = foreign("t1", None, "e1", 1).to_string();
    let orphan = foreign("t2", Some("nowhere"), "e2", 1).to_string();
    let skipped = foreign("t9", Some("t1"), "e1", 9).to_string();
    for bad in ["", "{}", "[1]", "{\"id\": 1, \"id\": 2}", &orphan, &skipped] {
        let answer = import_turns(&target, loom, [good.as_str(), bad]).await;
        assert!(matches!(answer, Err(Error::Import { line: 2, .. })), "{bad}: {answer:?}");
    }
}

#[tokio::test]
async fn a_turn_outcome_and_thread_are_written_under_the_names_of_the_specification() {
    let loom = MemoryLoom::new();
    let mut weaver = LoomWriter::new(&loom);
    let parent = weave(&mut weaver).await;
    let thread = loom.thread(parent.leaf.unwrap()).await.unwrap();
    let turn = serde_json::to_value(thread.turns.last().unwrap()).unwrap();
    let fields = [
        "id",
        "parent_id",
        "cantrip_id",
        "entity_id",
        "sequence",
        "utterance",
        "outputs",
        "gate_calls",
        "metadata",
        "reward",
        "terminated",
        "truncated",
        "loom_id",
        "cast_id",
        "intent",
        "sealed",
        "continuation_of",
        "forked_from",
        "spawned_by",
        "ended_by",
        "truncation_reason",
        "error",
    ];
    assert_eq!(keys(&turn), fields.into());
    assert_eq!((&turn["terminated"], &turn["ended_by"]), (&json!(true), &json!("done")));
    let record = &turn["gate_calls"][0];
    assert_eq!(
        (&record["state"], &record["reply"]["type"], &record["is_error"]),
        (&json!("settled"), &json!("S"), &json!(false))
    );
    let delegated = &serde_json::to_value(&thread.turns[1]).unwrap()["gate_calls"][0];
    assert_eq!(
        (&delegated["state"], &delegated["result"], &delegated["reply"]),
        (&json!("delegated"), &Value::Null, &Value::Null)
    );
    let outcome = serde_json::to_value(thread.casts[0].outcome.as_ref().unwrap()).unwrap();
    assert_eq!((&outcome["status"], &outcome["result"]), (&json!("terminated"), &json!({"answer": 7})));
    assert_eq!(outcome["usage"]["total_tokens"], 0);
    let halves = serde_json::to_value(thread.sides()).unwrap();
    let roles: Vec<&str> = halves.as_array().unwrap().iter().map(|half| half["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["entity", "circle"].repeat(thread.turns.len()));
}
