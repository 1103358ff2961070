//! Forks of a turn, replays of a thread, comparisons of two threads.

use crate::support;

use cantrip_reply::codes;
use serde_json::{Value, json};
use support::{Folder, id, stderr, stdout};

/// A folder with one cast of the adder, in two turns, with the answer 5.
fn with_a_cast() -> Folder {
    let folder = Folder::new().with_adder();
    folder.write("adder.yaml", "responses:\n  - code: var sum = 5; console.log('counted')\n  - code: done(sum)\n");
    let output = folder.run(&["cast", "adder.toml", "count", "--quiet"]);
    assert_eq!(stdout(&output), "5\n", "{output:?}");
    folder
}

#[track_caller]
fn turns(thread: &Value) -> &[Value] {
    thread["turns"].as_array().expect("turns")
}

#[test]
fn a_fork_runs_live_behind_its_turn_with_the_variables_of_the_original() {
    let folder = with_a_cast();
    let original = folder.seen(&["thread"]);
    let before = folder.read("kept/records.jsonl");
    folder.write("adder.yaml", "responses:\n  - code: done(sum * 2)\n");
    let first = id(&turns(&original)[0]["id"]);
    let output = folder.run(&["loom", "fork", first, "double it"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "10\n"), "{output:?}");
    let told = stderr(&output);
    for part in ["adder · scripted/adder.yaml", "turn 2", "> done(sum * 2)", "terminated after 1 turn"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    assert!(folder.read("kept/records.jsonl").starts_with(&before), "what it branched off from is as it was");
    let branch = folder.seen(&["thread"]);
    assert_eq!(turns(&branch)[0], turns(&original)[0], "the first turn is shared");
    assert_eq!(turns(&branch)[1]["forked_from"], json!({"turn": first, "environment": "replay"}));
    assert_eq!(folder.intents(), ["count", "double it"]);
}

#[test]
fn the_turn_may_be_short_the_latest_or_counted() {
    let folder = with_a_cast();
    let original = folder.seen(&["thread"]);
    let (first, second) = (id(&turns(&original)[0]["id"]).to_owned(), id(&turns(&original)[1]["id"]).to_owned());
    let entity = id(&original["entity"]["entity"]["entity_id"]).to_owned();
    folder.write("adder.yaml", "responses:\n  - code: done('forked')\n");
    let asked: &[(&[&str], &str)] = &[
        (&["loom", "fork", "@last", "go on"], &second),
        (&["loom", "fork", &entity, "--at", "1", "go on"], &first),
        (&["loom", "fork", &entity[..20], "go on"], &second),
        (&["loom", "fork", &first, "go on"], &first),
    ];
    for (arguments, at) in asked {
        let forked = folder.envelope(arguments, codes::TERMINATED.any());
        let made = folder.seen(&["show", id(&forked["data"]["leaf"])]);
        assert_eq!(made["forked_from"]["turn"], **at, "{arguments:?}");
    }
    // Several words are an intent, and the latest turn is the default.
    let latest = folder.seen(&["show"]);
    let forked = folder.envelope(&["loom", "fork", "and what now?"], codes::TERMINATED.any());
    assert_eq!(folder.seen(&["show", id(&forked["data"]["leaf"])])["forked_from"]["turn"], latest["id"]);
    let piped = folder.piped(&["loom", "fork", &first, "-", "--quiet"], "from a pipe");
    assert_eq!(stdout(&piped), "forked\n", "{piped:?}");
    assert_eq!(folder.intents(), ["count", "from a pipe"]);
}

#[test]
fn a_fork_without_an_intent_goes_on_with_what_was_cut_off_and_with_nothing_else() {
    let folder = with_a_cast();
    let refused = folder.envelope(&["loom", "fork"], codes::CONTRACT_INVALID.any());
    assert!(refused["data"]["hint"].as_str().is_some_and(|hint| hint.contains("loom fork turn_")), "{refused}");
    let first = folder.seen(&["thread"])["turns"][0]["id"].clone();
    folder.write("adder.yaml", "responses:\n  - code: done(sum + 1)\n");
    let forked = folder.envelope(&["loom", "fork", id(&first)], codes::TERMINATED.any());
    assert_eq!(forked["data"]["answer"], json!(6));
    assert_eq!(folder.seen(&["thread"])["casts"][1]["own_intent"], json!(false));
    folder.envelope(&["loom", "fork", id(&first), "--at", "7", "x"], codes::NOT_FOUND.any());
    folder.envelope(&["loom", "fork", "turn_zzzz", "x"], codes::NOT_FOUND.any());
}

#[test]
fn a_fork_may_begin_fresh_and_with_another_crystal() {
    let folder = with_a_cast();
    folder.write("adder.yaml", "responses:\n  - code: done(typeof sum)\n");
    let fresh = folder.run(&["loom", "fork", "@last", "what is there?", "--environment", "fresh", "--quiet"]);
    assert_eq!(stdout(&fresh), "undefined\n", "{fresh:?}");
    folder.write("other.yaml", "responses:\n  - code: done('another says ' + typeof sum)\n");
    let fork = ["loom", "fork", "adder", "who speaks?", "--crystal", "scripted/other.yaml", "--quiet"];
    // The name of a spell is not a turn; nothing is guessed.
    assert_eq!(folder.run(&fork).status.code(), Some(2));
    let fork = ["loom", "fork", "@last", "who speaks?", "--crystal", "scripted/other.yaml", "--quiet"];
    let other = folder.run(&fork);
    assert_eq!(stdout(&other), "another says undefined\n", "{other:?}");
    assert_eq!(folder.seen(&["show"])["metadata"]["model"], "scripted/other.yaml");
    // The fork is found again with its own crystal.
    let again = folder.piped(&["summon", "--quiet"], "still you?\n");
    assert_eq!(stdout(&again), "another says undefined\n", "{again:?}");
}

#[test]
fn the_upserts_of_a_fork_come_one_a_line() {
    let folder = with_a_cast();
    folder.write("adder.yaml", "responses:\n  - code: done(sum * 2)\n");
    let output = folder.run(&["loom", "fork", "@last", "double it", "--jsonl"]);
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["type"] == "turn_complete"), "{output:?}");
    assert_eq!(lines.first().map(|line| &line["type"]), Some(&json!("turn_started")));
}

#[test]
fn a_thread_is_identical_with_its_records_also_a_childs_and_a_forks() {
    let folder = with_a_cast();
    let same = folder.envelope(&["loom", "replay"], codes::VERIFIED.any());
    assert_eq!((&same["data"]["turns"], &same["data"]["calls"]), (&json!(2), &json!(1)));
    let output = folder.run(&["loom", "replay", "@last"]);
    let leaf = folder.seen(&["show"])["id"].clone();
    assert_eq!(stdout(&output), format!("identical  {}  2 turns, 1 call\n", id(&leaf)));
    folder.write("adder.yaml", "responses:\n  - code: done(sum * 2)\n");
    folder.envelope(&["loom", "fork", "@last", "double it"], codes::TERMINATED.any());
    folder.envelope(&["loom", "replay"], codes::VERIFIED.any());

    folder.write(
        "parent.toml",
        &folder.read("adder.toml").replace("adder", "parent").replace("[wards]", "[gates.call_agent_batch]\n[wards]"),
    );
    folder.write(
        "parent.yaml",
        "responses:\n  - code: |\n      done(call_agent_batch([{intent: \"a\", context: [1, 2]}, {intent: \"b\", context: [3]}]))\n  \
         - code: done(context.length)\n  - code: done(context.length)\n",
    );
    let cast = folder.run(&["cast", "parent.toml", "count", "--quiet"]);
    assert_eq!(stdout(&cast), "[2,1]\n", "{cast:?}");
    folder.envelope(&["loom", "replay"], codes::VERIFIED.any());
    let tree = folder.seen(&["tree"]);
    for child in turns(&tree).iter().filter(|turn| turn["depth"] == 1) {
        let same = folder.envelope(&["loom", "replay", id(&child["id"])], codes::VERIFIED.any());
        assert_eq!(same["data"]["turns"], json!(1));
    }
}

#[test]
fn a_replay_that_differs_tells_turn_call_kind_and_both_sides() {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", "say hello"], codes::TERMINATED.any());
    let (spell, records) = (folder.read("hello.toml"), folder.read("kept/records.jsonl"));
    // The crystal would have received a different prompt.
    folder.write("hello.toml", &spell.replace("one sentence", "two sentences"));
    let differs = folder.envelope(&["loom", "replay"], codes::REPLAY_DIVERGED.any());
    assert_eq!((&differs["data"]["turn"], &differs["data"]["kind"]), (&json!(1), &json!("context")), "{differs}");
    assert_ne!(differs["data"]["recorded"], differs["data"]["found"]);
    // A ward would have refused a call that was allowed.
    folder.write("hello.toml", &spell.replace("[wards]", "[wards]\nremove_gate = \"echo\""));
    let differs = folder.envelope(&["loom", "replay"], codes::REPLAY_DIVERGED.any());
    let data = &differs["data"];
    assert_eq!((&data["turn"], &data["call"], &data["kind"]), (&json!(1), &json!(1), &json!("verdict")), "{differs}");
    assert_eq!((&data["recorded"], &data["found"]), (&json!("WA-EXEC-S-001"), &json!("EN-VIS-D-001")));
    let output = folder.run(&["loom", "replay"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(4), ""));
    let told = stderr(&output);
    for part in ["differs in verdict: turn 1, call 1", "recorded  WA-EXEC-S-001", "found     EN-VIS-D-001"] {
        assert!(told.contains(part), "{part:?} is not in {told}");
    }
    // The original spell still gives the same thread, and nothing was written.
    folder.write("before.toml", &spell);
    folder.envelope(&["loom", "replay", "--spell", "before.toml"], codes::VERIFIED.any());
    assert_eq!(folder.read("kept/records.jsonl"), records);
}

#[test]
fn two_threads_are_told_from_where_they_part() {
    let folder = with_a_cast();
    let original = folder.seen(&["thread"]);
    let first = id(&turns(&original)[0]["id"]).to_owned();
    folder.write("adder.yaml", "responses:\n  - code: console.log('doubling'); sum *= 2\n  - code: done(sum)\n");
    folder.envelope(&["loom", "fork", &first, "double it"], codes::TERMINATED.any());
    let a = id(&original["leaf"]).to_owned();
    let diff = folder.seen(&["diff", &a]);
    assert_eq!(folder.seen(&["diff"]), diff, "a fork is compared with what it branched off from");
    assert_eq!(diff["shared"], json!({"turns": 1, "last": first}));
    assert_eq!((diff["a"]["turns"].as_u64(), diff["b"]["turns"].as_u64()), (Some(2), Some(3)));
    let pairs = turns(&diff);
    assert_eq!(pairs.len(), 2);
    let of = |pair: &Value, what: &str| {
        let all = pair["differences"].as_array().expect("differences").iter();
        all.filter(|difference| difference["what"] == what).map(|found| (found["a"].clone(), found["b"].clone())).next()
    };
    assert_eq!(of(&pairs[0], "intent"), Some((Value::Null, json!("double it"))));
    assert_eq!(of(&pairs[0], "program 1"), Some((json!("done(sum)"), json!("console.log('doubling'); sum *= 2"))));
    assert_eq!(of(&pairs[0], "call 1"), Some((json!("done({\"answer\":5})"), Value::Null)));
    assert_eq!(of(&pairs[0], "end"), Some((json!("terminated (done)"), json!("went on"))));
    assert_eq!((&pairs[1]["a"], of(&pairs[1], "observation 1")), (&Value::Null, Some((Value::Null, json!("10")))));
    assert_eq!((&diff["outcome"]["a"], &diff["outcome"]["b"]), (&json!("5"), &json!("10")));

    let output = folder.run(&["loom", "diff", &a, "@last"]);
    let text = stdout(&output);
    for part in [
        "1 turn is shared, up to turn_",
        "\nturn 2\n  intent\n  + double it\n  program 1\n  - done(sum)\n  + console.log('doubling'); sum *= 2\n",
        "\nturn 3  only in +\n",
        "\noutcome\n  - 5\n  + 10\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn threads_that_share_nothing_are_set_against_each_other_and_the_same_one_is_said_to_be() {
    let folder = with_a_cast();
    let one = folder.seen(&["show"])["entity_id"].clone();
    folder.write("adder.yaml", "responses:\n  - code: var sum = 5; console.log('counted')\n  - code: done(sum + 1)\n");
    folder.envelope(&["cast", "adder.toml", "count"], codes::TERMINATED.any());
    let alone = folder.envelope(&["loom", "diff"], codes::NOT_FOUND.any());
    assert!(alone["data"]["hint"].as_str().is_some_and(|hint| hint.contains("loom diff THREAD")), "{alone}");
    let diff = folder.seen(&["diff", id(&one), "@last"]);
    assert_eq!(diff["shared"], json!({"turns": 0, "last": null}));
    assert_eq!(turns(&diff)[0]["differences"], json!([]), "the first turns say and do the same");
    assert!(!turns(&diff)[1]["differences"].as_array().expect("differences").is_empty());
    let text = folder.run(&["loom", "diff", id(&one)]);
    assert!(stdout(&text).contains("no turn is shared\n\nturn 1  the same\n"), "{text:?}");
    let same = folder.run(&["loom", "diff", id(&one), id(&one)]);
    assert!(stdout(&same).contains("they are the same thread"), "{same:?}");
}

#[test]
fn long_texts_are_compared_by_their_lines_and_cut_to_fit_an_envelope() {
    let folder = Folder::new().with_adder();
    let program = |line: &str| {
        let lines: String = (0..60).map(|at| format!("      var line{at} = {at};\n")).collect();
        format!("responses:\n  - code: |\n{lines}      {line}\n")
    };
    folder.write("adder.yaml", &program("done('x'.repeat(400000))"));
    folder.envelope(&["cast", "adder.toml", "count", "--quiet"], codes::TERMINATED.any());
    let one = folder.seen(&["show"])["id"].clone();
    folder.write("adder.yaml", &program("done('y'.repeat(400000))"));
    folder.envelope(&["cast", "adder.toml", "count", "--quiet"], codes::TERMINATED.any());
    let text = folder.run(&["loom", "diff", id(&one)]);
    let text = stdout(&text);
    let between =
        text.split("program 1\n").nth(1).and_then(|rest| rest.split("\n  call 1").next()).expect("the program");
    assert_eq!(between.lines().count(), 4, "two lines around one that changed: {between}");
    let diff = folder.seen(&["diff", id(&one)]);
    assert!(diff["truncated"]["bytes"].as_u64().is_some_and(|bytes| bytes > 1_000_000), "{}", diff["truncated"]);
}
