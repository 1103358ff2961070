//! How is a tree ended from outside? By its deadline, by a person, by the end of a parent, by a bug.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::support;

use std::sync::Arc;
use std::time::Duration;

use cantrip::events::Channel;
use cantrip::{Cancel, Cantrip, CantripBuilder, CastOptions, CastReply, Runtime};
use cantrip_circle::gate::builtin;
use cantrip_circle::medium::{CallTarget, Presentation, Sandbox, SandboxOptions};
use cantrip_circle::{Circle, Medium, MediumKind};
use cantrip_crystal::{Crystal, Request, Response};
use cantrip_loom::{
    Actor, AnyLoom, Event, GateCall, Loom, MemoryLoom, PageRequest, RunState, ToolMode, TruncationReason,
};
use cantrip_medium_javascript::{Javascript, Options};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::json;
use support::{
    Acting, Count, Overlap, call, counting, done, house_of, intent_of, journal, memory, said_before, script, slow,
    talking, woven,
};

fn family(crystal: impl Crystal + 'static) -> CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .wards(&json!({"max_turns": 10, "max_depth": 3}))
}

/// Waits until the number of live tasks is the same as before.
async fn none_left(before: usize) {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..100 {
        if alive() <= before {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("{} tasks are left running", alive() - before);
}

/// Returns when each cast of a run ended, in order, and why.
async fn ends(runtime: &Runtime, cast: &CastReply) -> Vec<String> {
    let mut casts = Vec::new();
    let mut ends = Vec::new();
    for event in journal(runtime, cast.run.unwrap()).await {
        match event {
            Event::Cast(cast) => casts.push(cast.cast_id),
            Event::End(end) => {
                let number = casts.iter().position(|cast| *cast == end.cast_id).unwrap();
                let how = match end.ending {
                    cantrip_loom::Ending::Terminated { .. } => "terminated",
                    cantrip_loom::Ending::Truncated { reason, .. } => reason.as_str(),
                };
                ends.push(format!("{number} {how}"));
            }
            _ => {}
        }
    }
    ends
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_gate_a_child_and_a_streaming_answer_at_once_and_leaves_no_task() {
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let overlap = Overlap::default();
    let (channel, mut seen) = Channel::new();
    let runtime = memory().with_watcher(channel);
    // One child waits in a gate, one streams a long answer, one waits for its own child.
    let crystal = Acting(|request: &Request| match intent_of(request).as_str() {
        "go" => call("call_agent_batch", json!({"requests": ["gate", "stream", "child"]})),
        "gate" | "grandchild" => call("slow", json!({"ms": 60_000})),
        "child" => call("call_agent", json!({"intent": "grandchild"})),
        _ => Response { pace: Duration::from_millis(100), ..Response::text("word ".repeat(1_000)) },
    });
    let cantrip = family(crystal).gate(slow("slow", &overlap)).ward("timeout", "5s").build().unwrap();
    let start = tokio::time::Instant::now();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!((cast.reason(), start.elapsed().as_secs()), (Some(TruncationReason::Timeout), 5), "{:?}", cast.reply());
    let ended = ends(&runtime, &cast).await;
    assert_eq!(ended.last().unwrap(), "0 timeout", "the parent's end is the last");
    assert_eq!(ended.iter().filter(|end| end.ends_with("parent_terminated")).count(), 4, "{ended:?}");
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert!(turns.iter().all(|turn| !turn.utterance_text().contains("word")), "no turn is made of a partial answer");
    assert!(turns.iter().all(|turn| turn.is_sealed() || turn.is_truncated()), "every turn is closed");
    assert!(overlap.ended().is_empty(), "no gate came to its own end");
    none_left(before).await;
    let streamed = std::iter::from_fn(|| seen.try_recv().ok()).filter(|event| {
        let told = serde_json::to_value(event).unwrap();
        told["payload"]["deltaContent"] == "word "
    });
    let streamed = streamed.count();
    assert!((40..=51).contains(&streamed), "nothing is said after the end: {streamed}");
}

#[tokio::test(start_paused = true)]
async fn cancelling_with_live_grandchildren_ends_them_first_and_keeps_their_turns() {
    for (store, _folder) in support::stores() {
        let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let (runtime, overlap, cancel) = (house_of(store, 1), Overlap::default(), Cancel::new());
        let crystal = Acting(|request: &Request| match (intent_of(request).as_str(), said_before(request)) {
            ("go", _) => call("call_agent_batch", json!({"requests": ["a", "b"]})),
            ("a" | "b", 0) => call("echo", json!({"text": "kept"})),
            ("a" | "b", _) => call("call_agent_batch", json!({"requests": ["c", "d"]})),
            (_, 0) => call("echo", json!({"text": "kept"})),
            (_, _) => call("slow", json!({"ms": 3_600_000})),
        });
        let cantrip = family(crystal).gate(slow("slow", &overlap)).build().unwrap();
        let later = cancel.clone();
        let cancelling = async {
            while overlap.most() < 4 {
                // Yields and does not sleep: with paused time the executor would skip hours while a database writes.
                tokio::task::yield_now().await;
            }
            later.cancel();
        };
        let mut casting = std::pin::pin!(runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)));
        let cast = tokio::select! {
            early = &mut casting => panic!("it ended before it was cancelled: {:?}", early.reply()),
            () = cancelling => casting.await,
        };
        assert_code(cast.reply(), codes::ENDED_FROM_OUTSIDE);
        let ended = ends(&runtime, &cast).await;
        assert_eq!(ended.len(), 7, "{ended:?}");
        assert_eq!(ended.last().unwrap(), "0 cancelled");
        assert!(ended[..6].iter().all(|end| end.ends_with("parent_terminated")), "{ended:?}");
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert_eq!(found.matches("echo=\"kept\"").count(), 6, "{found}");
        none_left(before).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_child_can_be_cancelled_and_a_batch_keeps_the_other_results() {
    let (runtime, overlap, cancel) = (memory(), Overlap::default(), Cancel::new());
    let crystal = Acting(|request: &Request| match (intent_of(request).as_str(), said_before(request)) {
        ("go", 0) => call("call_agent_batch", json!({"requests": ["one", "two", "three"]})),
        ("go", _) => done("goes on"),
        ("two", 0) => call("slow", json!({"ms": 3_600_000})),
        (child, _) => done(child.to_owned()),
    });
    let cantrip = family(crystal).gate(slow("slow", &overlap)).build().unwrap();
    let cancelling = async {
        while overlap.most() < 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let entities = runtime.loom().entities(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        cancel.cancel_entity(entities[2].entity.entity_id);
    };
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel)), cancelling);
    assert_eq!(cast.answer(), Some(&json!("goes on")), "{:?}", cast.reply());
    assert_eq!(ends(&runtime, &cast).await, ["1 terminated", "3 terminated", "2 cancelled", "0 terminated"]);
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains(r#"call_agent_batch=["one",{"error":"#) && found.contains("failed: cancelled"), "{found}");
    assert!(found.contains(r#""three"]"#), "{found}");
}

#[tokio::test(start_paused = true)]
async fn batches_inside_batches_never_have_more_under_way_than_they_may_and_come_to_their_end() {
    let overlap = Overlap::default();
    let requests = |from: &str| (0..12).map(|n| json!(format!("{from}{n}"))).collect::<Vec<_>>();
    let crystal = Acting(move |request: &Request| {
        let intent = intent_of(request);
        match (intent.matches('/').count(), said_before(request)) {
            (depth @ (0 | 1), 0) => {
                let from = format!("{intent}/");
                assert!(depth < 2);
                call("call_agent_batch", json!({ "requests": requests(&from) }))
            }
            (0 | 1, _) => done("joined"),
            (_, 0) => call("slow", json!({"ms": 50})),
            (_, _) => done(intent),
        }
    });
    let cantrip = family(crystal).gate(slow("slow", &overlap)).build().unwrap();
    let runtime = memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("joined")), "{:?}", cast.reply());
    assert_eq!(overlap.ended().len(), 144);
    // Eight of the twelve run concurrently, and eight of the twelve children of each: the limit of one tree.
    assert_eq!(overlap.most(), 64);
}

/// A crystal with a bug that shows in one child.
struct Broken;

impl Crystal for Broken {
    fn name(&self) -> &str {
        "scripted/broken"
    }
    async fn ask(
        &self,
        request: &Request,
        heard: &dyn cantrip_crystal::EventSink,
    ) -> Result<cantrip_crystal::Answer, cantrip_crystal::Failure> {
        let said = match intent_of(request).as_str() {
            "go" => call("call_agent_batch", json!({"requests": ["sound", "broken"]})),
            "sound" => call("slow", json!({"ms": 60_000})),
            other => panic!("a bug in {other}"),
        };
        script([said]).ask(request, heard).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_child_fails_the_run_and_leaves_no_sibling_running() {
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let (runtime, overlap) = (memory(), Overlap::default());
    let cantrip = family(Broken).gate(slow("slow", &overlap)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRASH);
    assert_eq!(runtime.loom().run(cast.run.unwrap()).await.unwrap().state, RunState::Failed);
    assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 call_agent_batch.. sealed", "no turn shows it");
    // The running gate is not asked to stop: it has a side effect, so it continues, and its guard joins it.
    tokio::time::sleep(Duration::from_secs(120)).await;
    none_left(before).await;
}

/// A medium with a bug: it panics when the machine calls it.
struct Faulty;

impl Medium for Faulty {
    fn kind(&self) -> MediumKind {
        MediumKind::Shell
    }
    fn present(&self, circle: &Circle, _: ToolMode) -> Presentation {
        Presentation { tools: circle.definitions(), text: None }
    }
    fn interpret(&self, _: &Circle, call: &GateCall) -> CallTarget {
        assert_ne!(call.tool_call_id, "bad", "a bug in the machine");
        CallTarget::Gate(call.args.clone())
    }
    fn isolate(&self, _: &Circle, _: SandboxOptions) -> Result<Option<Box<dyn Sandbox>>, Refusal> {
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_machine_fails_the_run_and_no_turn_shows_it() {
    for (store, _folder) in support::stores() {
        let (runtime, count) = (house_of(store, 1), Count::default());
        let bad = Response::call("bad", "count", json!({"n": 2}));
        let crystal = script([call("count", json!({"n": 1})), bad]);
        let cantrip = talking(&crystal)
            .medium(MediumKind::Shell)
            .serve_medium(Arc::new(Faulty))
            .gate(counting("count", &count))
            .build()
            .unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(cast.reply(), codes::CRASH);
        assert_eq!(woven(&runtime, cantrip.loom_id()).await, "A1 count=1");
        let run = cast.run.unwrap();
        assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Failed);
        let failed = journal(&runtime, run).await.into_iter().filter(|event| matches!(event, Event::Failed(_)));
        assert_eq!((failed.count(), count.get()), (1, 1));
        // The entity is free, and the process is alive.
        assert_eq!(
            runtime.cast(&talking(&script([done(1)])).build().unwrap(), CastOptions::on("x")).await.answer(),
            Some(&json!(1))
        );
    }
}

fn coding(crystal: impl Crystal + 'static, medium: &Arc<Javascript>) -> CantripBuilder {
    family(crystal).medium(MediumKind::Javascript).serve_medium(Arc::clone(medium) as Arc<dyn Medium>)
}

/// Hostile programs around the gate that they wait in.
const HOSTILE: [&str; 3] = [
    "try { slow(3600000) } finally { for (;;); }",
    "for (;;) { try { slow(3600000) } catch (e) { echo('caught') } }",
    "try { slow(3600000) } finally { echo('finally'); slow(3600000); done('finally') }",
];

#[tokio::test]
async fn whatever_ends_a_program_in_a_gate_nothing_of_it_runs_after() {
    for program in HOSTILE {
        for how in ["cancel", "deadline", "parent"] {
            let medium = Arc::new(Javascript::start(Options::default()).unwrap());
            let (runtime, overlap, cancel) = (memory(), Overlap::default(), Cancel::new());
            let crystal = Acting(move |request: &Request| match (intent_of(request).as_str(), how) {
                ("go", "parent") => Response::code("call_agent('hostile'); done('never')"),
                (_, _) => Response::code(program),
            });
            let cantrip = coding(crystal, &medium).gate(slow("slow", &overlap));
            let cantrip = if how == "deadline" { cantrip.ward("timeout", "300ms") } else { cantrip };
            let cantrip = cantrip.build().unwrap();
            let unhurt = coding(script([Response::code("var n = 1"), Response::code("done(n + 1)")]), &medium).build();
            let unhurt = unhurt.unwrap();
            let other = runtime.summon(&unhurt, None).await.unwrap();
            let ending = async {
                while overlap.most() < 1 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                if how != "deadline" {
                    cancel.cancel();
                }
            };
            let casting = CastOptions::on("go").cancelled_by(&cancel);
            let (cast, (), other) = tokio::join!(runtime.cast(&cantrip, casting), ending, other.send("count"));
            let wanted = if how == "deadline" { TruncationReason::Timeout } else { TruncationReason::Cancelled };
            assert_eq!(cast.reason(), Some(wanted), "{how}, {program}: {:?}", cast.reply());
            assert_eq!(other.answer(), Some(&json!(2)), "other sandboxes are unhurt");
            let found = woven(&runtime, cantrip.loom_id()).await;
            assert!(!found.contains("echo") && !found.contains("done"), "{how}, {program}: {found}");
            assert_eq!((overlap.most(), overlap.ended().len()), (1, 0), "{how}, {program}");
            if how == "parent" {
                assert!(found.contains("truncated parent_terminated"), "{found}");
            }
            // Only the sandbox of the summoned, idle entity is left.
            let shown = format!("{medium:?}");
            for _ in 0..1_000 {
                if format!("{medium:?}").contains("sandboxes: 1") {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert!(format!("{medium:?}").contains("sandboxes: 1"), "{how}, {program}: {shown}");
        }
    }
}

#[tokio::test]
async fn done_inside_what_swallows_ends_the_cast_and_the_next_send_works() {
    let swallowing = [
        "new Promise(() => done(1)); echo('after')",
        "Promise.all([1, 2].map(() => done(1))); echo('after')",
        "await Promise.allSettled([Promise.resolve().then(() => done(1))]); echo('after')",
        "Promise.resolve({ then() { done(1) } }); await null; echo('after')",
        "(async function* () { done(1) })().next(); await null; echo('after')",
        "[2, 1].sort(() => done(1)); echo('after')",
        "'x'.replace(/x/, () => done(1)); echo('after')",
        "({ get a() { done(1) } }).a; echo('after')",
        "new Proxy({}, { get() { done(1) } }).a; echo('after')",
        "`${{ toString() { done(1) } }}`; echo('after')",
        "for (const x of { [Symbol.iterator]: () => ({ next: () => ({ value: 1 }), return() { done(1) } }) }) break; echo('after')",
        "queueMicrotask && 0; Promise.resolve().then(() => echo('job')); done(1); echo('after')",
    ];
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    for program in swallowing {
        let runtime = memory();
        let crystal = script([Response::code(format!("var n = 41; {program}")), Response::code("done(n + 1)")]);
        let cantrip = coding(crystal, &medium).build().unwrap();
        let entity = runtime.summon(&cantrip, None).await.unwrap();
        let cast = entity.send("go").await;
        assert_eq!(cast.answer(), Some(&json!(1)), "{program}: {:?}", cast.reply());
        assert!(!woven(&runtime, cantrip.loom_id()).await.contains("echo"), "{program}");
        assert_eq!(entity.send("again").await.answer(), Some(&json!(42)), "{program}");
    }
}

#[tokio::test]
async fn nothing_that_an_entity_throws_or_declares_ends_a_cast_or_takes_its_gates() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let runtime = memory();
    let crystal = script([
        Response::code("throw Object.assign(new Error('done'), {name: 'Done', code: 'CT-GATE-S-001', done: true})"),
        Response::code("throw 'uncatchable'"),
        Response::code("var done = 1; done"),
        Response::code("done('mine')"),
    ]);
    let cantrip = coding(crystal, &medium).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("mine")), "{:?}", cast.reply());
    assert_eq!(cast.outcome.unwrap().turns, 4);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_stops_the_cast_and_nothing_more_is_executed() {
    let count = Count::default();
    let crystal = script([call("count", json!({"n": 1})), call("count", json!({"n": 2})), done(1)]);
    let cantrip = talking(&crystal).gate(counting("count", &count)).build().unwrap();
    let memory = AnyLoom::new(MemoryLoom::new());
    let dying = house_of(AnyLoom::new(support::Dying::after(memory.clone(), 3)), 1);
    let cast = dying.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::STORE_UNAVAILABLE);
    assert_eq!((count.get(), crystal.request_count()), (1, 1));
    assert!(cast.outcome.is_none());
}

#[tokio::test(start_paused = true)]
async fn whoever_knows_a_run_can_end_it_here_from_another_process_and_while_it_waits() {
    let someone = Actor::new("user:1").unwrap();
    let cantrip = |overlap: &Overlap| {
        let crystal = script([call("slow", json!({"ms": 3_600_000})), done("never")]);
        talking(&crystal).gate(slow("slow", overlap)).build().unwrap()
    };
    for elsewhere in [false, true] {
        let (store, overlap) = (AnyLoom::new(MemoryLoom::new()), Overlap::default());
        let runtime = house_of(store.clone(), 1);
        let other = if elsewhere { house_of(store, 2) } else { runtime.clone() };
        let cantrip = cantrip(&overlap);
        let cancelling = async {
            while overlap.most() < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let run = other.loom().runs(PageRequest::FIRST).await.unwrap().items[0].run_id;
            assert_code(&other.cancel(run, &someone).await.reply, codes::CHANGED);
            assert_code(&other.cancel(run, &someone).await.reply, codes::CHANGED);
            tokio::time::Instant::now()
        };
        let (cast, asked) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go")), cancelling);
        assert_eq!(cast.reason(), Some(TruncationReason::Cancelled), "{:?}", cast.reply());
        let most = if elsewhere { cantrip::limits::HEARTBEAT_MS } else { 0 };
        assert!(asked.elapsed().as_millis() <= u128::from(most), "{:?}", asked.elapsed());
        let late = runtime.cancel(cast.run.unwrap(), &someone).await;
        assert_code(&late.reply, codes::WRONG_STATE);
    }

    let (runtime, count) = (memory().with_approvals(true), Count::default());
    let crystal = script([call("count", json!({"n": 1})), done("never")]);
    let builder = talking(&crystal).gate(counting("count", &count));
    let cantrip = builder.ward("require_approval", json!(["count"])).build().unwrap();
    let waiting = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(waiting.reply().data()["state"], "waiting");
    assert_code(&runtime.cancel(waiting.run.unwrap(), &someone).await.reply, codes::CHANGED);
    let cast = runtime.resume(&cantrip, waiting.run.unwrap()).await;
    assert_eq!((cast.reason(), count.get()), (Some(TruncationReason::Cancelled), 0));
}
