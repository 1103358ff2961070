//! Ending a program from outside: at any point and whatever it has prepared, it is gone within a slice.

use crate::support;

use std::sync::Arc;

use cantrip_circle::code::{Limit, ProgramLimits};
use cantrip_medium_javascript::{Answer, Event, SuspendedProgram};
use support::{World, at, host, spec};

const PREPARED: &[&str] = &[
    "try { echo(1) } finally { for (;;); }",
    "for (;;) { try { echo(1) } catch {} }",
    "try { echo(1) } finally { echo('finally'); console.log('finally') }",
    "try { echo(1) } catch { for (;;) echo('catch') } finally { for (;;) echo('finally') }",
    "(function f() { try { echo(1) } finally { f() } })()",
    "await (async () => { try { await 0; echo(1) } finally { for (;;) await echo(2) } })()",
    "new Promise(() => { echo(1) }).finally(() => { for (;;); }); for (;;);",
    "for (const x of (function* () { try { yield echo(1) } finally { for (;;); } })()) {}",
    "[3, 2, 1].sort(() => { try { return echo(1) } finally { for (;;); } })",
    "({toString() { try { return echo(1) } finally { for (;;); } }}) + ''",
    "echo({get a() { try { return echo(1) } finally { for (;;); } }})",
];

async fn waiting(world: &mut World, source: &str) -> SuspendedProgram {
    let program = world.program(source);
    let sandbox = world.sandbox.take().unwrap_or_else(|| world.host.sandbox(Arc::clone(&world.spec)));
    match sandbox.run(program).await.expect("the sandbox stands") {
        Event::Call(suspended) => suspended,
        Event::Finished(finished) => panic!("{source}: {:?}", finished.output),
    }
}

/// Waits until the host has freed every sandbox. It checks the state and not a time.
async fn freed(world: &World) {
    while world.host.sandboxes() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_program_that_waits_in_a_gate_is_cancelled_and_runs_nothing_more() {
    for source in PREPARED {
        let mut world = World::new();
        let suspended = waiting(&mut world, &format!("console.log('before'); {source}")).await;
        let Ok(Event::Finished(finished)) = suspended.cancel().await else { panic!("{source}") };
        let output = finished.output;
        assert_eq!((output.limit, output.rolled_back), (Some(Limit::Cancelled), true), "{source}");
        assert_eq!(output.console, "before\n", "{source}");
        assert!(finished.sandbox.is_none(), "{source}");
        freed(&world).await;
        assert_eq!(world.value("1").await, "1", "{source}: the thread serves others");
    }
}

#[tokio::test]
async fn a_waiting_program_whose_handle_is_dropped_is_freed_on_its_thread() {
    let mut world = World::new();
    for source in PREPARED {
        drop(waiting(&mut world, source).await);
    }
    freed(&world).await;
    assert_eq!(world.value("1").await, "1");
}

#[tokio::test]
async fn a_running_program_whose_future_is_dropped_is_freed_on_its_thread() {
    let mut world = World::with(ProgramLimits { cpu_ms: 600_000, wall_ms: 600_000, ..ProgramLimits::default() });
    for source in [
        "for (;;);",
        "for (;;) { try { for (;;); } catch {} finally { for (;;); } }",
        "(async () => { for (;;) await 0 })()",
    ] {
        let program = world.program(source);
        let mut run = Box::pin(world.host.sandbox(Arc::clone(&world.spec)).run(program));
        let mut other = World::new();
        other.sandbox = Some(world.host.sandbox(Arc::clone(&other.spec)));
        tokio::select! {
            biased;
            _ = &mut run => panic!("{source} has ended"),
            value = other.value("echo(1)") => assert_eq!(value, "1"),
        }
        drop((run, other));
        freed(&world).await;
    }
}

#[tokio::test]
async fn a_canceller_ends_a_running_program_and_its_output_is_told() {
    let mut world = World::with(ProgramLimits { cpu_ms: 600_000, wall_ms: 600_000, ..ProgramLimits::default() });
    world.run("var x = 1").await;
    let program = world.program("console.log('on'); echo(0); for (;;) { try { for (;;); } finally { for (;;); } }");
    let sandbox = world.sandbox.take().expect("kept");
    let canceller = sandbox.canceller();
    canceller.cancel(); // An idle sandbox is left alone.
    let Ok(Event::Call(suspended)) = sandbox.run(program).await else { panic!("a call") };
    let run = tokio::spawn(suspended.answer(Answer::Value(1.into()), at(0)));
    canceller.cancel();
    let Ok(Ok(Event::Finished(finished))) = run.await else { panic!("an end") };
    assert_eq!((finished.output.limit, finished.output.console.as_str()), (Some(Limit::Cancelled), "on\n"));
    freed(&world).await;
}

#[tokio::test]
async fn a_program_cancelled_while_its_gate_works_is_over_when_the_answer_comes() {
    let mut world = World::new();
    let suspended = waiting(&mut world, "try { echo(1) } finally { echo(2) }").await;
    suspended.canceller().cancel();
    let Ok(Event::Finished(finished)) = suspended.answer(Answer::Value(1.into()), at(0)).await else {
        panic!("an end")
    };
    assert_eq!(finished.output.limit, Some(Limit::Cancelled));
    freed(&world).await;
}

#[tokio::test]
async fn a_thousand_sandboxes_that_wait_in_a_gate_all_finish() {
    let host = host(2);
    let spec = Arc::new(spec(3, ProgramLimits::default()));
    let mut waiting = Vec::new();
    for index in 0..1000 {
        let source = format!("let x = {index}; x += echo({index}); x");
        let program = cantrip_medium_javascript::Program::new("turn-1.js", source, at(0)).expect("short");
        let Ok(Event::Call(suspended)) = host.sandbox(Arc::clone(&spec)).run(program).await else { panic!("a call") };
        waiting.push(suspended);
    }
    assert_eq!(host.sandboxes(), 1000);
    for (index, suspended) in waiting.into_iter().enumerate().rev() {
        let Ok(Event::Finished(finished)) = suspended.answer(Answer::Value(index.into()), at(1)).await else {
            panic!("an end")
        };
        assert_eq!(finished.output.value, Some((2 * index).to_string()));
    }
}

#[tokio::test]
async fn a_host_that_is_dropped_takes_nothing_down_with_it() {
    let mut world = World::new();
    let suspended = waiting(&mut world, PREPARED[0]).await;
    let World { host, .. } = world;
    drop(host);
    let answered = suspended.answer(Answer::Stop, at(0)).await;
    assert!(matches!(answered, Ok(Event::Finished(_))), "its threads live as long as its sandboxes");
}
