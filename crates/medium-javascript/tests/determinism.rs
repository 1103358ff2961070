//! The same seed, programs, answers and clock readings give the same outputs, so a sandbox can be rebuilt from its
//! record.

use crate::support;

use cantrip_canon::Timestamp;
use cantrip_circle::code::{Limit, ProgramLimits};
use cantrip_circle::medium::ProgramCall;
use cantrip_medium_javascript::{Answer, Event, Program, ProgramOutput, Sandbox};
use serde_json::{Value, json};
use support::{World, at, host, spec};

const PROGRAMS: &[&str] = &[
    "let seen = []; const note = (x) => { seen.push(x); return x }; class Box { constructor(v) { this.v = v } }",
    "note(Math.random()); note(Date.now()); note(echo({b: 1, a: [1.5, 'x']})); note(performance.now()); note(new Date().toString())",
    "let box = new Box(note(read('file'))); try { refuse(1) } catch (e) { note(e.code) } note(Math.random())",
    "for (let i = 0; i < 3; i++) note(echo(i) + Math.random()); [...new Set(seen)].length",
    "await null; done(seen.length); seen.push('never')",
    "console.log(seen, box, Math.random(), new Date())",
];

async fn outputs() -> Vec<ProgramOutput> {
    let mut world = World::new();
    let mut outputs = Vec::new();
    for program in PROGRAMS {
        outputs.push(world.run(program).await);
    }
    outputs
}

#[tokio::test]
async fn the_same_seed_and_readings_give_the_same_outputs() {
    let first = outputs().await;
    assert_eq!(first, outputs().await);
    assert!(first[5].console.contains("0."), "{first:?}");
    let mut other = World::new();
    other.spec = std::sync::Arc::new(spec(2, ProgramLimits::default()));
    other.sandbox = None;
    let one = other.value("Math.random()").await;
    assert_ne!(one, World::new().value("Math.random()").await, "another seed, another sequence");
}

#[tokio::test]
async fn the_clock_stands_still_between_the_hosts_readings() {
    let mut world = World::new();
    let value = world
        .value(
            "var t = [Date.now(), performance.now()]; for (let i = 0; i < 1e5; i++); t.push(Date.now(), +new Date());
                echo(1); t.push(Date.now(), performance.now()); t",
        )
        .await;
    assert_eq!(value, "[1771466400000, 0, 1771466400000, 1771466400000, 1771466400001, 1]");
}

#[tokio::test]
async fn local_time_is_utc_whatever_the_hosts_zone() {
    let mut world = World::new();
    for (source, value) in [
        ("new Date(2026, 1, 19, 3, 4, 5, 6).toISOString()", "2026-02-19T03:04:05.006Z"),
        ("new Date('2026-07-01T12:00:00').toISOString()", "2026-07-01T12:00:00.000Z"),
        ("new Date('2026-07-01 12:00').toISOString()", "2026-07-01T12:00:00.000Z"),
        ("new Date('2026-07-01').toISOString()", "2026-07-01T00:00:00.000Z"),
        ("new Date('Jul 1, 2026 12:00').toISOString()", "2026-07-01T12:00:00.000Z"),
        ("new Date('2026-07-01T12:00:00+02:00').toISOString()", "2026-07-01T10:00:00.000Z"),
        ("new Date(Date.parse('2026-03-29T02:30:00')).toISOString()", "2026-03-29T02:30:00.000Z"),
        (
            "var d = new Date('2026-07-01T23:59:58.007Z'); [d.getFullYear(), d.getMonth(), d.getDate(), d.getDay(), d.getHours(), d.getMinutes(), d.getSeconds(), d.getMilliseconds(), d.getTimezoneOffset()].join()",
            "2026,6,1,3,23,59,58,7,0",
        ),
        ("d.setHours(1, 2); d.setDate(3); d.toISOString()", "2026-07-03T01:02:58.007Z"),
        ("d.toString()", "Fri Jul 03 2026 01:02:58 GMT+0000 (Coordinated Universal Time)"),
        ("d.toLocaleString()", "7/3/2026, 1:02:58 AM"),
        ("String(new Date(NaN))", "Invalid Date"),
        ("`${new Date(0)}`.slice(0, 15)", "Thu Jan 01 1970"),
        ("new Date(new Date(5)).getTime() + new Date('5').length", "NaN"),
        (
            "[d instanceof Date, d.constructor === Date, Date.length, typeof Date(), Date.name].join()",
            "true,true,7,string,Date",
        ),
    ] {
        let shown = if value == "NaN" { value.into() } else { format!("{value:?}") };
        assert_eq!(world.value(source).await, shown, "{source}");
    }
}

/// Runs programs, records each call, and returns the record with the outputs.
/// A program with the calls that it made.
#[derive(Clone)]
struct RecordedProgram {
    program: Program,
    calls: Vec<RecordedCall>,
}

#[derive(Clone)]
struct RecordedCall {
    call: ProgramCall,
    answer: Answer,
    clock: Timestamp,
}

async fn recorded(programs: &[&str]) -> (Vec<RecordedProgram>, World) {
    let mut world = World::new();
    let mut record = Vec::new();
    for source in programs {
        let program = world.program(source);
        let mut calls = Vec::new();
        let mut event = world.sandbox.take().expect("kept").run(program.clone()).await.expect("stands");
        while let Event::Call(suspended) = event {
            world.now += 7;
            let args = suspended.call.recorded_arguments();
            let answer = match suspended.call.gate.as_str() {
                "done" => Answer::Stop,
                "refuse" => support::thrown("D", "EN-VIS-D-001", "no", Value::Null),
                _ => Answer::Value(json!({"n": calls.len(), "of": args})),
            };
            calls.push(RecordedCall { call: suspended.call.clone(), answer: answer.clone(), clock: at(world.now) });
            event = suspended.answer(answer, at(world.now)).await.expect("stands");
        }
        let Event::Finished(finished) = event else { unreachable!() };
        world.sandbox = finished.sandbox;
        record.push(RecordedProgram { program, calls });
    }
    (record, world)
}

/// Runs recorded programs again in a new sandbox, with their recorded answers. Each must make its recorded calls.
async fn rebuilt(record: Vec<RecordedProgram>) -> Sandbox {
    let mut sandbox = host(1).sandbox(std::sync::Arc::new(spec(1, ProgramLimits::default())));
    for RecordedProgram { program, calls } in record {
        let mut event = sandbox.run(program).await.expect("stands");
        for recorded in calls {
            let Event::Call(suspended) = event else { panic!("{:?} is missing", recorded.call) };
            assert_eq!(suspended.call, recorded.call);
            event = suspended.answer(recorded.answer, recorded.clock).await.expect("stands");
        }
        let Event::Finished(finished) = event else { panic!("a call too many: {event:?}") };
        sandbox = finished.sandbox.expect("kept");
    }
    sandbox
}

#[tokio::test]
async fn a_rebuilt_sandbox_is_the_one_that_was_lost_and_no_gate_runs_for_it() {
    let (record, mut world) = recorded(&PROGRAMS[..5]).await;
    let look = "console.log(seen, box, typeof note, Math.random())";
    let there = world.run(look).await;
    let sandbox = rebuilt(record).await;
    let mut again = World::new();
    again.now = world.now;
    again.sandbox = Some(sandbox);
    assert_eq!(again.run(look).await, there);
    assert_eq!(again.calls, [], "only this look was run by the world, and it calls nothing");
}

#[tokio::test]
async fn after_a_roll_back_the_sandbox_is_rebuilt_as_it_was_before_the_program() {
    let (record, _) = recorded(&["var x = 1; var kept = echo('a')", "x = 2"]).await;
    let sandbox = rebuilt(record.clone()).await;
    let mut world = World::with(ProgramLimits::default());
    world.sandbox = Some(sandbox);
    let output = world.run("x = 3; kept = null; var a = []; for (;;) a.push('y'.repeat(1e5) + a.length)").await;
    assert_eq!((output.limit, output.rolled_back), (Some(Limit::Memory), true));
    let sandbox = rebuilt(record).await;
    world.sandbox = Some(sandbox);
    assert_eq!(world.value("[x, kept.n, typeof a]").await, "[2, 0, \"undefined\"]");
}
