//! The same programs, answers and clock readings give the same output; a snapshot restores the whole sandbox.

use crate::support;

use std::sync::Arc;

use cantrip_circle::medium::{Medium, Sandbox};
use serde_json::json;
use support::World;

#[tokio::test]
async fn chance_comes_from_the_seed_and_no_two_entities_share_a_stream() {
    let draws = "[rand() for i in range(3)]";
    let mut one = World::new();
    let first = one.value(draws).await;
    let second = one.value(draws).await;
    assert_ne!(first, second);
    let mut again = World::of(one.medium.clone(), &json!({}));
    assert_eq!((again.value(draws).await, again.value(draws).await), (first.clone(), second));
    let mut other = World::of(one.medium.clone(), &json!({}));
    other.isolation.seed = 2;
    let (theirs, _) = tokio::join!(other.value(draws), one.value(draws));
    assert_ne!(theirs, first);
    assert_eq!(one.value("all(0 <= rand() < 1 for i in range(1000))").await, "True");
    assert_eq!(one.error("rand(5)").await.0, "TypeError");
    assert_eq!(one.error("import random").await.0, "ModuleNotFoundError");
}

#[tokio::test]
async fn the_clock_stands_still_between_calls() {
    let mut world = World::new();
    world.run("from datetime import datetime, date, timezone, timedelta").await;
    assert_eq!(
        world.value("now() == now(), datetime.now() == datetime.now(), now()").await,
        "(True, True, 1771466400.0)"
    );
    assert_eq!(
        world.value("datetime.now(), date.today()").await,
        "(datetime.datetime(2026, 2, 19, 2, 0), datetime.date(2026, 2, 19))"
    );
    assert_eq!(world.value("datetime.now(timezone.utc).isoformat()").await, "'2026-02-19T02:00:00+00:00'");
    assert_eq!(
        world.value("datetime.now(timezone(timedelta(hours=-3))).isoformat()").await,
        "'2026-02-18T23:00:00-03:00'"
    );
    assert_eq!(world.value("before = now()\ngive(1)\nround((now() - before) * 1000)").await, "1");
    assert_eq!(world.error("import time").await.0, "ModuleNotFoundError");
}

#[tokio::test]
async fn order_does_not_depend_on_chance() {
    let program = "import json\n[sorted({'b', 'a', 'c'}), list({3, 1, 2, 'x', 'a'}), json.dumps({'z': 1, 'a': 2}), hash('a') == hash('a'), {(1, 2), 'q', 7}]";
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(World::new().value(program).await);
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);
}

/// A program that creates every kind of object that a sandbox can hold.
const LIFE: &str = "
import json, math, re
from datetime import datetime, timedelta
from collections import deque, Counter, defaultdict, namedtuple
from functools import partial
n = 41
shared = [1, 2]
both = {'one': shared, 'two': shared}
both['self'] = both
def counter():
    count = 0
    def up():
        nonlocal count
        count += 1
        return count
    return up
up = counter()
up()
class Point:
    kind = 'point'
    def __init__(self, x): self.x = x
    def __repr__(self): return f'P({self.x})'
p = Point([n])
later = datetime.now() + timedelta(days=1)
P = namedtuple('P', ['a', 'b'])
things = [deque([1, 2], maxlen=2), Counter('aab'), P(1, 2), 2 ** 90, b'x', {1, 2}, frozenset([3]), partial(max, 5), 0.1, re.compile('a+')]
first = rand()
gate = give
";
const LOOK: &str = "
shared.append(3)
p.x.append(n)
n += 1
[both['two'], both['self'] is both, up(), p, Point.kind, later.isoformat(), things, things[7](9), rand(), gate('through'), P(5, 6).b, json.dumps([math.pi]), isinstance(p, Point)]
";

#[tokio::test]
async fn a_snapshot_holds_everything_a_program_can_find() {
    let mut world = World::new();
    assert_eq!(world.run(LIFE).await.error, None);
    let mut sandbox = world.sandbox.take().expect("at rest");
    let snapshot = sandbox.snapshot().await.expect("a snapshot");
    world.sandbox = Some(sandbox);
    let lived = world.value(LOOK).await;
    let failed = world.run("p.nothing").await;
    for _ in 0..2 {
        let mut restored = World::of(world.medium.clone(), &json!({}));
        let sandbox = world.medium.restore(&restored.circle, restored.isolation.clone(), Arc::clone(&snapshot)).await;
        restored.sandbox = Some(sandbox.expect("it can be loaded"));
        assert_eq!(restored.value(LOOK).await, lived);
        assert_eq!(restored.run("p.nothing").await.error, failed.error, "errors point to the right program");
    }
}

#[tokio::test]
async fn a_snapshot_can_be_loaded_again_and_again_along_a_life() {
    let mut straight = World::new();
    let mut broken = World::of(straight.medium.clone(), &json!({}));
    for turn in 0..12 {
        let program = format!(
            "s = globals_{turn} = [rand(), {turn}]\ntry:\n    total += s[1]\nexcept NameError:\n    total = 0\ndef f{turn}(): return total\n[s, total, f0()]"
        );
        assert_eq!(straight.run(&program).await, broken.run(&program).await, "turn {turn}");
        let mut sandbox = broken.sandbox.take().expect("at rest");
        let snapshot = sandbox.snapshot().await.expect("a snapshot");
        drop(sandbox);
        broken.sandbox = broken.medium.restore(&broken.circle, broken.isolation.clone(), snapshot).await;
        assert!(broken.sandbox.is_some(), "turn {turn}");
    }
}

#[tokio::test]
async fn a_snapshot_that_was_changed_or_is_of_another_version_is_not_loaded() {
    let mut world = World::new();
    world.run("x = 1").await;
    let mut sandbox = world.sandbox.take().expect("at rest");
    let snapshot = sandbox.snapshot().await.expect("a snapshot");
    let restore = async |bytes: Vec<u8>| {
        world.medium.restore(&world.circle, world.isolation.clone(), bytes.into()).await.is_some()
    };
    assert!(restore(snapshot.to_vec()).await);
    let text = String::from_utf8_lossy(&snapshot).into_owned();
    assert!(text.starts_with("cantrip python snapshot 1, monty 0.0.23\n"), "its version is its beginning");
    for other in ["cantrip python snapshot 2, monty 0.0.23\n", "cantrip python snapshot 1, monty 0.0.24\n", ""] {
        let rest = snapshot.split(|byte| *byte == b'\n').skip(1).collect::<Vec<_>>().join(&b'\n');
        assert!(!restore([other.as_bytes(), &rest].concat()).await, "{other:?}");
    }
    for length in [0, 10, 40, 41, 60, snapshot.len() / 2, snapshot.len() - 1] {
        assert!(!restore(snapshot[..length].to_vec()).await, "{length} of {} bytes", snapshot.len());
    }
    assert!(!restore([&snapshot[..], b"more"].concat()).await);
    assert_eq!(world.value("'still here'").await, "'still here'");
}

#[tokio::test]
async fn a_sandbox_without_a_program_and_one_in_a_gate_have_no_snapshot() {
    let world = World::new();
    let mut fresh: Box<dyn Sandbox> =
        world.medium.isolate(&world.circle, world.isolation.clone()).expect("one").expect("one");
    assert!(fresh.snapshot().await.is_none(), "nothing was built yet");
}

#[tokio::test]
async fn the_limits_of_a_restored_sandbox_are_those_of_its_circle() {
    let mut world = World::new();
    world.run("x = 1").await;
    let snapshot = world.sandbox.take().expect("at rest").snapshot().await.expect("a snapshot");
    let mut tight = World::of(world.medium.clone(), &json!({"memory": "8 MiB", "cpu": "200ms", "stack": "32 KiB"}));
    tight.sandbox = world.medium.restore(&tight.circle, tight.isolation.clone(), Arc::clone(&snapshot)).await;
    assert_eq!(tight.run("def f(): f()\nf()").await.limit.as_deref(), Some("stack"));
    assert_eq!(tight.value("x").await, "1");
    assert_eq!(tight.run("while True: pass").await.limit.as_deref(), Some("cpu"));
    tight.sandbox = world.medium.restore(&tight.circle, tight.isolation.clone(), snapshot).await;
    assert_eq!(tight.run("[0] * 10 ** 7").await.limit.as_deref(), Some("memory"));
}
