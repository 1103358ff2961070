//! The loop in Python: programs, children, crashes in the middle of a program, forks.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cantrip::{Cantrip, CantripBuilder, CastOptions, DivergenceKind, ForkOptions, ReplayOutcome};
use cantrip_circle::gate::builtin;
use cantrip_circle::medium::{BoxFuture, CallTarget, Presentation, Sandbox, SandboxOptions};
use cantrip_circle::{Circle, DelegationGrants, Medium, MediumKind};
use cantrip_crystal::{Response, ScriptedCrystal};
use cantrip_loom::export::{Format, Redaction, export, import_journal};
use cantrip_loom::{
    AnyLoom, Environment, GateCall, Journal, Loom, MemoryLoom, PageRequest, ToolMode, TruncationReason,
};
use cantrip_medium_python::{CountingAllocator, Options, Python};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use support::{Count, Overlap, counting, house_of, killed, memory, script, slow, woven};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static PYTHON: LazyLock<Python> = LazyLock::new(|| Python::start(Options::in_process()).unwrap());

fn coding(crystal: &ScriptedCrystal) -> CantripBuilder {
    circle(crystal).ward("max_turns", 10)
}

fn circle(crystal: &ScriptedCrystal) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal.clone())
        .medium(MediumKind::Python)
        .serve_medium(Arc::new(PYTHON.clone()))
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
}

async fn told(programs: &[&str]) -> (Option<Value>, String) {
    let runtime = memory();
    let cantrip = coding(&script(programs.iter().map(|code| Response::code(*code)))).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    (cast.answer().cloned(), woven(&runtime, cantrip.loom_id()).await)
}

#[tokio::test]
async fn variables_persist_and_the_value_comes_back() {
    let (answer, found) = told(&["x = echo(20)", "x + 22", "done(x)"]).await;
    assert_eq!(answer, Some(json!(20)), "{found}");
    assert_eq!(found, "A1 echo=20\nA2 <A1 => 42\nA3 <A2 done=20 terminated");
}

#[tokio::test]
async fn the_example_of_the_page_gives_its_tree_in_python() {
    let program = "out = []\nfor p in ['a', 'b', 'c']: out.append(call_agent(p))\n\
                   more = call_agent_batch(['x', {'intent': 'y'}])\ndone(','.join(out + more))";
    let (answer, found) =
        told(&[program, "done('A')", "done('B')", "done('C')", "done('X')", "submit_answer('Y')"]).await;
    assert_eq!(answer, Some(json!("A,B,C,X,Y")), "{found}");
    let lines: Vec<&str> = found.lines().collect();
    assert_eq!(lines[0], "A1 call_agent.. sealed");
    assert_eq!(lines[2], r#"A2 <A1 continues call_agent="A" call_agent.. sealed"#);
    assert_eq!(lines[9], r#"A5 <A4 continues call_agent_batch=["X","Y"] done="A,B,C,X,Y" terminated"#);
}

#[tokio::test]
async fn a_refusal_is_raised_and_can_be_caught_and_done_cannot() {
    let runtime = memory();
    let program = "
try:
    fetch('x')
except NameError as e:
    print('no gate')
try:
    echo('x')
except RuntimeError as e:
    print(str(e))
try:
    done()
except RuntimeError as e:
    print(str(e))
try:
    done(1)
except BaseException:
    print('never')
finally:
    call_agent('never')
print('never')";
    let cantrip = coding(&script([Response::code(program)])).ward("remove_gate", "echo").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(1)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let console = &turns[0].outputs[0].console;
    assert_eq!(console.len(), 3, "{console:?}");
    assert!(
        console[1].starts_with(&format!("Denied {}: gate not available", codes::GATE_REMOVED.any())),
        "{console:?}"
    );
    assert!(
        console[2].starts_with(&format!("Invalid {}: done was not accepted", codes::DONE_MALFORMED.any())),
        "{console:?}"
    );
    let calls: Vec<&str> = turns[0].gate_calls.iter().map(|call| call.gate.as_str()).collect();
    assert_eq!(calls, ["echo", "done", "done"]);
}

#[tokio::test]
async fn what_an_entity_raises_or_names_ends_no_cast_and_takes_no_gate_from_it() {
    for program in [
        "raise SystemExit('done')",
        "raise BaseException('done')",
        "done = 1",
        "def done(x): return x\ndone(3)",
        "exit()",
    ] {
        let (answer, found) = told(&[program, "done('for real')"]).await;
        assert_eq!(answer, Some(json!("for real")), "{program}: {found}");
        assert!(found.ends_with("A2 <A1 done=\"for real\" terminated"), "{program}: {found}");
    }
}

#[tokio::test]
async fn a_limit_is_told_and_the_next_program_finds_the_variables_as_before() {
    let wards = json!({"cpu": "200ms", "memory": "8 MiB", "output": "64 KiB"});
    for (bomb, limit, rolled_back) in [
        ("while True: pass", "cpu", true),
        ("l = []\nwhile True: l.append('x' * 100000)", "memory", true),
        ("10 ** 10 ** 8", "memory", true),
        ("def f(): f()\nf()", "stack", false),
        ("while True: print('x' * 100)", "output", false),
    ] {
        let runtime = memory();
        let bomb = format!("print('before')\nechoed = echo(1)\n{bomb}");
        let programs = ["x = 41", bomb.as_str(), "done(x + 1)"];
        let cantrip = coding(&script(programs.map(Response::code))).wards(&wards).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!(42)), "{bomb}: {:?}", cast.reply());
        let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        let output = &turns[1].outputs[0];
        assert_eq!((output.limit.as_deref(), output.rolled_back), (Some(limit), rolled_back), "{bomb}");
        assert_eq!(turns[1].gate_calls.len(), 1, "the call it made stands");
        let replay = runtime.replay(&cantrip, turns[2].id).await;
        assert_code(replay.reply(), codes::VERIFIED);
    }
}

#[tokio::test]
async fn a_second_program_of_one_utterance_that_is_rolled_back_leaves_the_first() {
    let runtime = memory();
    let code = |code: &str| json!({ "code": code });
    let both = Response::call("c1", "python", code("n = 1\nn += echo(1)"))
        .and_call("c2", "python", code("n = 100\nwhile True: pass"))
        .and_call("c3", "python", code("n"));
    let cantrip = coding(&script([both, Response::code("done(n)")])).ward("cpu", "200ms").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
}

#[tokio::test]
async fn a_child_sees_nothing_of_its_parents_variables() {
    let parent = "secret = 42\ntry:\n    call_agent('look')\nexcept RuntimeError as e:\n    done(str(e))";
    let (answer, found) = told(&[parent, "secret"]).await;
    assert!(answer.unwrap().as_str().unwrap().contains("MCP-EXEC-E-004"), "{found}");
    assert!(found.contains("  B1 <A1 NameError"), "{found}");
}

#[tokio::test]
async fn a_context_is_a_variable_and_never_in_a_request() {
    let runtime = memory();
    let crystal = script([
        Response::code("done(call_agent({'intent': 'count', 'context': context}))"),
        Response::code("done(len(context['docs']))"),
    ]);
    let cantrip = coding(&crystal).build().unwrap();
    let big = "x".repeat(10 << 20);
    let casting = CastOptions::on("go").context(json!({"docs": [1, 2, big]}));
    assert_eq!(runtime.cast(&cantrip, casting).await.answer(), Some(&json!(3)));
    assert_eq!(crystal.request_count(), 2);
    for input in crystal.requests() {
        let text: usize = input.messages.iter().map(|message| serde_json::to_string(message).unwrap().len()).sum();
        assert!(text < 10_000, "{text}");
    }
}

#[tokio::test]
async fn a_child_may_have_another_medium_where_its_parent_offers_it() {
    use cantrip_medium_javascript::{Javascript, Options as Threads};
    let runtime = memory();
    let crystal = script([
        Response::code("r = call_agent({'intent': 'add', 'medium': 'javascript', 'context': [1, 2]})\ndone(r)"),
        Response::code("done(context.map(x => x + 1))"),
    ]);
    let delegates = DelegationGrants { mediums: [MediumKind::Javascript].into(), ..DelegationGrants::default() };
    let cantrip = Cantrip::builder()
        .crystal(crystal)
        .medium(MediumKind::Python)
        .serve_medium(Arc::new(PYTHON.clone()))
        .serve_medium(Arc::new(Javascript::start(Threads::default()).unwrap()))
        .gate(builtin::done())
        .delegating(builtin::call_agent(), delegates)
        .ward("max_turns", 5)
        .build()
        .unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!([2, 3])), "{:?}", cast.reply());
}

#[tokio::test]
async fn sends_share_one_sandbox_two_entities_none_and_each_has_its_own_chance() {
    let runtime = memory();
    let look = "try:\n    done(n)\nexcept NameError:\n    done([rand(), rand()])";
    let crystal = script([
        Response::code("n = rand()\ndone(n)"),
        Response::code(look),
        Response::code("done([n, rand()])"),
        Response::code("done(rand())"),
    ]);
    let cantrip = coding(&crystal).build().unwrap();
    let one = runtime.summon(&cantrip, None).await.unwrap();
    let two = runtime.summon(&cantrip, None).await.unwrap();
    let first = one.send("set").await.answer().cloned().unwrap();
    let theirs = two.send("look").await.answer().cloned().unwrap();
    assert!(theirs.as_array().is_some_and(|draws| draws.len() == 2 && !draws.contains(&first)), "{theirs}");
    let mine = one.send("get").await.answer().cloned().unwrap();
    assert_eq!(mine[0], first);
    assert_ne!(mine[1], first);
    let third = two.send("again").await.answer().cloned().unwrap();
    assert!(!theirs.as_array().unwrap().contains(&third) && mine[1] != third);
}

#[tokio::test]
async fn one_cantrip_cast_twice_has_an_empty_sandbox_each_time() {
    let runtime = memory();
    let program = "try:\n    done(['old', n])\nexcept NameError:\n    n = 1\n    done(['new', n])";
    let cantrip = coding(&script([Response::code(program), Response::code(program)])).build().unwrap();
    for _ in 0..2 {
        assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(["new", 1])));
    }
}

#[tokio::test]
async fn a_fork_has_the_variables_of_its_place_without_running_a_gate() {
    let (runtime, count) = (memory(), Count::default());
    let look = "try:\n    done([x, 0 <= rand() < 1])\nexcept NameError:\n    done('nothing')";
    let crystal = script([
        Response::code("x = count(1)"),
        Response::code("x = count(2)"),
        Response::code("done(x)"),
        Response::code(look),
        Response::code(look),
    ]);
    let cantrip = coding(&crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(2)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let fork = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("another way")).await;
    assert_eq!(fork.answer(), Some(&json!([1, true])), "{:?}", fork.reply());
    let fresh = runtime.fork(&cantrip, turns[0].id, ForkOptions::on("anew").fresh()).await;
    assert_eq!(fresh.answer(), Some(&json!("nothing")), "{:?}", fresh.reply());
    assert_eq!(count.get(), 2);
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let environments: Vec<_> = turns.iter().filter_map(|turn| turn.forked_from).map(|fork| fork.environment).collect();
    assert_eq!(environments, [Environment::Replay, Environment::Fresh]);
}

const PROGRAMS: [&str; 3] = [
    "seen = []\nfor n in [1, 2]: seen.append(count(n))\nat = now()\nr = rand()\nruns = 0",
    "runs += 1\nseen.append(call_agent('child'))\nseen.append(count(3))\nprint(seen)",
    "done([seen, isinstance(r, float), at > 0, runs])",
];

#[tokio::test]
async fn a_program_killed_between_any_two_appends_goes_on_where_its_answers_end() {
    let answer = json!([[1, 2, 100, 3], true, true, 1]);
    killed::between_any_two_appends(|| coding(&script([])), &PROGRAMS, answer).await;
}

#[tokio::test]
async fn a_replay_with_another_circle_names_the_first_difference() {
    let (runtime, count) = (memory(), Count::default());
    let programs = || script([Response::code("x = count(1)"), Response::code("done(x)")]);
    let cantrip = coding(&programs()).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    let same = runtime.replay(&cantrip, leaf).await;
    assert_eq!(same.replayed, Some(ReplayOutcome::Identical { turns: 2, calls: 2 }));
    let narrower = coding(&programs()).gate(counting("count", &count)).ward("remove_gate", "count").build().unwrap();
    let other = runtime.replay(&narrower, leaf).await;
    assert_code(other.reply(), codes::REPLAY_DIVERGED);
    let Some(ReplayOutcome::Differs(differs)) = other.replayed else { panic!("it differs") };
    assert_eq!((differs.sequence, differs.call, differs.kind), (1, Some(1), DivergenceKind::Verdict));
    assert_eq!(count.get(), 1);
}

#[tokio::test]
async fn the_deadline_ends_a_program_whatever_it_catches() {
    for program in [
        "try:\n    slow(60000)\nfinally:\n    while True: pass",
        "while True:\n    try:\n        slow(60000)\n    except BaseException:\n        echo('caught')",
        "while True: pass",
    ] {
        let (runtime, overlap) = (memory(), Overlap::default());
        let cantrip = coding(&script([Response::code(program)]))
            .gate(slow("slow", &overlap))
            .ward("timeout", "400ms")
            .build()
            .unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.reason(), Some(TruncationReason::Timeout), "{:?}", cast.reply());
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert!(found.ends_with("truncated timeout") && !found.contains("echo"), "{found}");
    }
}

/// Python that counts how often it is restored from a snapshot, or that cannot read any.
#[derive(Clone)]
struct Watched {
    restored: Arc<AtomicUsize>,
    reads: bool,
}

impl Watched {
    fn new(reads: bool) -> Self {
        Self { restored: Arc::default(), reads }
    }

    fn restored(&self) -> usize {
        self.restored.load(Ordering::Relaxed)
    }
}

impl Medium for Watched {
    fn kind(&self) -> MediumKind {
        PYTHON.kind()
    }
    fn present(&self, circle: &Circle, mode: ToolMode) -> Presentation {
        PYTHON.present(circle, mode)
    }
    fn interpret(&self, circle: &Circle, call: &GateCall) -> CallTarget {
        PYTHON.interpret(circle, call)
    }
    fn isolate(&self, circle: &Circle, isolation: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        PYTHON.isolate(circle, isolation)
    }
    fn can_restore(&self, snapshot: &[u8]) -> bool {
        self.reads && PYTHON.can_restore(snapshot)
    }
    fn restore<'a>(
        &'a self,
        circle: &'a Circle,
        isolation: SandboxOptions,
        snapshot: Arc<[u8]>,
    ) -> BoxFuture<'a, Option<Box<dyn Sandbox>>> {
        self.restored.fetch_add(1, Ordering::Relaxed);
        PYTHON.restore(circle, isolation, snapshot)
    }
}

/// Returns turns with long programs and small changes.
fn long_life(turns: usize) -> Vec<Response> {
    let said = "x".repeat(3_000);
    let turn = |at: usize| match at {
        0 => format!("total = count(0)\nseen = [rand()]\n# {said}"),
        _ => format!("total += count({at})\nseen.append(rand())\n# {said}"),
    };
    (0..turns).map(|at| Response::code(turn(at))).collect()
}

fn living(script: &ScriptedCrystal, count: &Count, medium: &Watched) -> Cantrip {
    circle(script)
        .gate(counting("count", count))
        .serve_medium(Arc::new(medium.clone()))
        .ward("max_turns", 60)
        .build()
        .unwrap()
}

#[tokio::test]
async fn a_fork_at_any_turn_has_its_variables_by_snapshot_and_runs_no_gate() {
    const TURNS: usize = 24;
    let (runtime, count, medium) = (memory(), Count::default(), Watched::new(true));
    let look = || Response::code("done([total, len(seen)])");
    let forks = (0..TURNS).map(|_| look());
    let crystal = script(long_life(TURNS).into_iter().chain([look()]).chain(forks));
    let cantrip = living(&crystal, &count, &medium);
    let cast = runtime.cast(&cantrip, CastOptions::on("live")).await;
    assert!(cast.answer().is_some(), "{:?}", cast.reply());
    assert_eq!((count.get(), medium.restored()), (TURNS, 0), "a sandbox that stands is not restored");
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let snapshots: Vec<u64> = turns.iter().filter_map(|turn| turn.snapshot).map(|kept| kept.bytes).collect();
    assert!(snapshots.len() >= 2, "{snapshots:?}");
    let said: u64 = turns.iter().map(|turn| serde_json::to_vec(turn).unwrap().len() as u64).sum();
    assert!(snapshots.iter().sum::<u64>() <= said, "{snapshots:?} of {said}");
    let first = turns.iter().position(|turn| turn.snapshot.is_some()).unwrap();
    for (at, turn) in turns.iter().take(TURNS).enumerate() {
        let before = medium.restored();
        let fork = runtime.fork(&cantrip, turn.id, ForkOptions::on("look")).await;
        let total: usize = (0..=at).sum();
        assert_eq!(fork.answer(), Some(&json!([total, at + 1])), "at {at}: {:?}", fork.reply());
        assert_eq!(medium.restored() - before, usize::from(at >= first), "at {at}");
        let leaf = runtime.loom().turn(fork.outcome.unwrap().leaf.unwrap()).await.unwrap();
        let environment = if at >= first { Environment::Snapshot } else { Environment::Replay };
        assert_eq!(leaf.forked_from.map(|fork| fork.environment), Some(environment), "at {at}");
    }
    assert_eq!(count.get(), TURNS, "no gate ran for a fork");
    let replay = runtime.replay(&cantrip, turns[TURNS].id).await;
    assert_code(replay.reply(), codes::VERIFIED);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_read_is_left_and_the_programs_are_run_again() {
    let (runtime, count) = (memory(), Count::default());
    let crystal =
        script(long_life(12).into_iter().chain([Response::code("done(total)"), Response::code("done(total)")]));
    let cantrip = living(&crystal, &count, &Watched::new(true));
    let cast = runtime.cast(&cantrip, CastOptions::on("live")).await;
    assert_eq!(cast.answer(), Some(&json!(66)), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert!(turns.iter().any(|turn| turn.snapshot.is_some()));
    let blind = Watched::new(false);
    let later = living(&crystal, &count, &blind);
    assert_eq!(later.id(), cantrip.id(), "what serves a medium is no part of a cantrip");
    let fork = runtime.fork(&later, turns[11].id, ForkOptions::on("look")).await;
    assert_eq!((fork.answer(), blind.restored(), count.get()), (Some(&json!(66)), 0, 12), "{:?}", fork.reply());
    let leaf = runtime.loom().turn(fork.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(leaf.forked_from.map(|fork| fork.environment), Some(Environment::Replay));
}

#[tokio::test]
async fn an_entity_taken_up_elsewhere_goes_on_from_its_snapshot() {
    let store = AnyLoom::new(MemoryLoom::new());
    let (count, medium) = (Count::default(), Watched::new(true));
    let programs = long_life(12).into_iter().chain([Response::code("done(total)"), Response::code("done(total + 1)")]);
    let cantrip = living(&script(programs), &count, &medium);
    let first = house_of(store.clone(), 1);
    let entity = first.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("live").await.answer(), Some(&json!(66)));
    let second = house_of(store, 2);
    let taken_up = second.entity(&cantrip, entity.id()).await.unwrap();
    assert_eq!(taken_up.send("go on").await.answer(), Some(&json!(67)));
    assert_eq!((medium.restored(), count.get()), (1, 12));
}

#[tokio::test]
async fn a_snapshot_that_came_with_an_import_is_not_loaded_and_its_programs_are_run_again() {
    let (store, count, medium) = (AnyLoom::new(MemoryLoom::new()), Count::default(), Watched::new(true));
    let crystal =
        script(long_life(12).into_iter().chain([Response::code("done(total)"), Response::code("done(total)")]));
    let cantrip = living(&crystal, &count, &medium);
    let cast = house_of(store.clone(), 1).cast(&cantrip, CastOptions::on("live")).await;
    assert_eq!(cast.answer(), Some(&json!(66)), "{:?}", cast.reply());
    let journal = export(&store, cantrip.loom_id(), Format::Journal, Redaction::Off);
    let journal: Vec<String> = journal.try_collect().await.unwrap();
    let elsewhere = AnyLoom::new(MemoryLoom::new());
    import_journal(&elsewhere, &journal).await.unwrap();
    let turns = elsewhere.turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let kept = turns.iter().find_map(|turn| turn.snapshot).unwrap();
    assert!(medium.can_restore(elsewhere.body(kept.hash).await.unwrap().bytes()), "it is there, and whole");
    let fork = house_of(elsewhere.clone(), 2).fork(&cantrip, turns[11].id, ForkOptions::on("look")).await;
    assert_eq!((fork.answer(), medium.restored(), count.get()), (Some(&json!(66)), 0, 12), "{:?}", fork.reply());
    let leaf = elsewhere.turn(fork.outcome.unwrap().leaf.unwrap()).await.unwrap();
    assert_eq!(leaf.forked_from.map(|fork| fork.environment), Some(Environment::Replay));
}

#[tokio::test]
async fn without_tools_the_blocks_of_a_text_are_one_program() {
    let crystal = script([
        Response::text("First\n```python\nx = echo(20)\n```\nand then\n```py\nx + 22\n```\nwait."),
        Response::text("```python\ndone(x)"),
    ]);
    let cantrip = coding(&crystal).fenced(true).build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(20)), "{:?}", cast.reply());
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 echo=20 => 42\nA2 <A1 done=20 terminated");
    let first = &crystal.requests()[0];
    assert!(first.definitions.is_empty(), "nothing is offered but words");
    let told: Vec<String> = first
        .messages
        .iter()
        .filter_map(|message| match message {
            cantrip_loom::Message::System { content } => Some(content.text()),
            cantrip_loom::Message::User { .. }
            | cantrip_loom::Message::Assistant { .. }
            | cantrip_loom::Message::Tool { .. } => None,
        })
        .collect();
    assert!(told.len() == 1 && told[0].contains("```python") && told[0].contains("echo(text)"), "{told:?}");
    let replay = runtime.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await;
    assert_code(replay.reply(), codes::VERIFIED);
}

#[tokio::test]
async fn a_sandbox_that_would_take_too_long_to_build_again_is_lost_and_its_entity_is_told() {
    let programs = [
        "n = 0\nfor i in range(200000): n += i\ndone(1)",
        "n",
        "try:\n    done(n)\nexcept NameError:\n    done('gone')",
    ];
    for (within, answer, lost) in [
        (Duration::from_millis(1), json!("gone"), Some("[environment lost: rebuild too long]")),
        (Duration::from_secs(60), json!(19_999_900_000_u64), None),
    ] {
        let runtime = memory().with_idle_sandboxes_max(0).with_rebuild_cpu_max(within);
        let cantrip = coding(&script(programs.map(Response::code))).build().unwrap();
        let entity = runtime.summon(&cantrip, None).await.unwrap();
        assert_eq!(entity.send("count").await.answer(), Some(&json!(1)));
        let cast = entity.send("and now?").await;
        assert_eq!(cast.answer(), Some(&answer), "{:?}", cast.reply());
        let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(turns[1].outputs[0].environment_lost.as_deref(), lost);
    }
}
