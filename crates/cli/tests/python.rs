//! Python in worker processes: a program that the interpreter cannot stop ends its worker, and nothing else.

#[path = "../../medium-python/tests/support/mod.rs"]
mod python_support;

use cantrip_circle::medium::{Answer, FinishedProgram, Program, ProgramEvent, SandboxError};
use cantrip_medium_python::{Options, Python, StartError};
use cantrip_reply::{Refusal, codes};
use python_support::{World, at};
use serde_json::{Value, json};

fn workers(count: usize) -> Python {
    Python::start(Options::worker(env!("CARGO_BIN_EXE_cantrip")).workers(count)).expect("a worker")
}

/// Returns limits where one is so low that the other does not matter.
fn tight(limit: &str) -> Value {
    match limit {
        "memory" => json!({"memory": "8 MiB", "cpu": "30s"}),
        _ => json!({"cpu": "300ms"}),
    }
}

/// Each of these is a native call, or a tree of them, during which the interpreter checks no limits.
const UNSTOPPABLE: &[(&str, &str)] = &[
    ("memory", "a = [0]\nfor i in range(60): a = [a, a]\nrepr(a)"),
    ("memory", "a = [0]\nfor i in range(60): a = [a, a]\na"),
    ("memory", "a = [0]\nfor i in range(60): a = [a, a]\nprint(a)"),
    ("memory", "a = [0]\nfor i in range(60): a = [a, a]\ngive(a)"),
    ("memory", "a = {}\nfor i in range(60): a = {'x': a, 'y': a}\ngive(1, more=a)"),
    (
        "memory",
        "a = [0]\nfor i in range(60): a = [a, a]\ntry:\n    str(a)\nexcept BaseException:\n    pass\nfinally:\n    give(1)",
    ),
    ("memory", "import re\nre.sub('', 'x' * 10000, 'y' * 10000)"),
    ("cpu", "a = [0]\nb = [0]\nfor i in range(60):\n    a = [a, a]\n    b = [b, b]\na == b"),
    ("cpu", "while True: pass"),
];

#[tokio::test]
async fn what_the_interpreter_cannot_stop_costs_a_worker_and_is_typed() {
    let python = workers(1);
    for (limit, bomb) in UNSTOPPABLE {
        let mut world = World::of(python.clone(), &tight(limit));
        world.run("x = 1").await;
        let output = world.run(bomb).await;
        assert_eq!((output.limit.as_deref(), output.rolled_back), (Some(*limit), true), "{bomb}");
        assert_eq!(output.error, None, "{bomb}");
        assert_eq!(world.value("'the next program works'").await, "'the next program works'", "{bomb}");
    }
}

#[tokio::test]
async fn who_lived_beside_a_bomb_is_told_that_it_had_no_part_in_it() {
    let python = workers(1);
    let mut bomber = World::of(python.clone(), &tight("memory"));
    let mut resting = World::of(python.clone(), &tight("memory"));
    let mut waiting = World::of(python.clone(), &tight("memory"));
    resting.run("x = 1").await;
    let source = "y = give(1)\ny".to_owned();
    let program = Program { name: "turn-1.py".to_owned(), source, now: at(1) };
    let Ok(ProgramEvent::Call(paused)) = waiting.take().start(program.clone()).await else { panic!("it waits") };
    assert_eq!(bomber.run(UNSTOPPABLE[0].1).await.limit.as_deref(), Some("memory"));
    let lost = paused.resume(Answer::Value(json!(1)), at(2)).await.expect_err("its worker is gone");
    assert_eq!(lost, SandboxError::Gone);
    let lost = resting.take().start(program).await.expect_err("its worker is gone");
    assert_eq!(lost, SandboxError::Gone);
    assert_eq!(waiting.value("give(2)").await, "2", "in a new worker");
}

#[tokio::test]
async fn programs_of_two_workers_run_at_once() {
    let python = workers(2);
    let mut slow = World::of(python.clone(), &json!({"cpu": "20s"}));
    let mut quick = World::of(python, &json!({}));
    slow.run("x = 1").await;
    quick.run("x = 1").await;
    let endless = Program { name: "turn-2.py".to_owned(), source: "while True: pass".to_owned(), now: at(1) };
    let running = tokio::spawn(slow.take().start(endless));
    assert_eq!(quick.value("x + 1").await, "2", "it does not wait for its neighbour");
    assert!(!running.is_finished());
    running.abort();
    assert!(running.await.is_err());
    assert_eq!(slow.value("'a new one'").await, "'a new one'");
}

#[tokio::test]
async fn many_sandboxes_share_a_worker_and_are_kept_apart() {
    let python = workers(1);
    let mut worlds: Vec<World> = (0..50).map(|_| World::of(python.clone(), &json!({}))).collect();
    for (index, world) in worlds.iter_mut().enumerate() {
        world.isolation.seed = index as u64;
        world.run(&format!("mine = {index}\nfirst = rand()")).await;
    }
    assert_eq!(python.sandboxes(), 50);
    let mut streams = std::collections::HashSet::new();
    for (index, world) in worlds.iter_mut().enumerate() {
        assert_eq!(world.value("mine").await, index.to_string());
        streams.insert(world.value("[first, rand(), rand()]").await);
    }
    assert_eq!(streams.len(), 50);
    drop(worlds);
    assert_eq!(python.sandboxes(), 0);
}

#[tokio::test]
async fn a_snapshot_moves_from_one_worker_to_another() {
    let (one, other) = (workers(1), workers(1));
    let mut world = World::of(one, &json!({}));
    world.run("x = {'deep': [1, 2]}\ndef f(): return x['deep']").await;
    let snapshot = world.sandbox.take().expect("at rest").snapshot().await.expect("a snapshot");
    let mut moved = World::of(other.clone(), &json!({}));
    use cantrip_circle::Medium;
    moved.sandbox = other.restore(&moved.circle, moved.isolation.clone(), snapshot.clone()).await;
    assert_eq!(moved.value("f().append(3); x").await, "{'deep': [1, 2, 3]}");
    for at in 0..40 {
        let mut bytes = snapshot.to_vec();
        let place = 41 + at * (bytes.len() - 41) / 40;
        bytes[place] ^= 0x55;
        // This process survives any result: only a hash proves that a snapshot is the original one.
        let restored = other.restore(&moved.circle, moved.isolation.clone(), bytes.into()).await;
        if let Some(sandbox) = restored {
            let look = Program { name: "turn-1.py".to_owned(), source: "f()".to_owned(), now: python_support::at(1) };
            match sandbox.start(look).await {
                Ok(ProgramEvent::Finished(FinishedProgram { .. }) | ProgramEvent::Call(_))
                | Err(SandboxError::Stopped | SandboxError::Gone | SandboxError::Overloaded) => {}
            }
        }
    }
    assert_eq!(World::of(other, &json!({})).value("'alive'").await, "'alive'");
}

#[tokio::test]
async fn without_a_worker_the_medium_is_unavailable() {
    for (program, what) in [("/nowhere/cantrip", "missing"), ("/bin/true", "silent"), ("/bin/cat", "another program")] {
        let unavailable = Python::start(Options::worker(program)).expect_err(what);
        assert!(matches!(unavailable, StartError::Start(_) | StartError::Foreign), "{what}: {unavailable}");
        assert_eq!(Refusal::from(unavailable).code(), codes::SANDBOX_UNAVAILABLE.any(), "{what}");
    }
    let here = Python::start(Options::in_process()).expect_err("this process does not count");
    assert!(matches!(here, StartError::NotCounted));
    assert_eq!(Refusal::from(here).code(), codes::SANDBOX_UNAVAILABLE.any());
}

/// Casts the example of the guide from its file with the binary alone.
#[test]
fn a_python_spell_is_cast_by_the_binary() {
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_cantrip"));
    command.current_dir(examples).env_remove("CANTRIP_CRYSTAL").env_remove("CANTRIP_STORE");
    command.args(["cast", "orders.toml", "which orders do not add up?"]);
    command.args(["--context", "orders.json", "--store", "memory:", "--quiet"]);
    let output = command.output().expect("the binary runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "{\"wrong\":[\"a-2\"],\"off\":1}\n");
    assert!(output.status.success(), "{output:?}");
}
