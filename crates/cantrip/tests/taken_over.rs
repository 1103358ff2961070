//! Runs that lost their owner at one chosen place: what the new owner requests, executes and keeps.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]
#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::{Cantrip, CastOptions};
use cantrip_circle::gate::{builtin, gate};
use cantrip_crystal::{Request, Response, RetryPolicy};
use cantrip_loom::{AnyLoom, Event, Jsonl, Loom, MemoryLoom, PageRequest, RunState, Settlement};
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Refusal, codes};
use serde_json::json;
use support::{
    Acting, Count, Dying, Numbered, call, counting, done, house_of, intent_of, journal, said_before, script, talking,
    woven,
};

#[tokio::test(start_paused = true)]
async fn killed_during_an_attempt_it_asks_again_in_the_same_turn_and_after_the_opening_not_at_all() {
    // The steps: the run's first records, then the attempt; the third step opens the turn.
    for (dies_after, asked, attempts) in [(2, 2, 2), (3, 1, 1)] {
        let (memory, count) = (AnyLoom::new(MemoryLoom::new()), Count::default());
        let requests = Count::default();
        let seen = requests.clone();
        let crystal = Acting(move |request: &Request| {
            if said_before(request) > 0 {
                return done("over");
            }
            seen.up();
            call("count", json!({"n": 1}))
        });
        let cantrip = talking(&script([])).crystal(crystal).gate(support::counting_again("count", &count)).build();
        let cantrip = cantrip.unwrap();
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        assert_eq!(requests.get(), asked, "dead after {dies_after}");
        let turns = heir.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        assert_eq!((turns.len(), turns[0].metadata.attempts), (2, attempts), "dead after {dies_after}");
        let first = turns[0].id;
        let recorded = journal(&heir, cast.run.unwrap()).await.into_iter().filter(
            |event| matches!(event, Event::Attempt(attempt) if attempt.call_id == cantrip_loom::CallId::request(first)),
        );
        assert_eq!(recorded.count(), attempts as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn ten_calls_that_only_read_killed_in_their_middle_are_settled_once_each_and_in_order() {
    let reading = |seen: &Arc<Mutex<Vec<u64>>>| {
        let seen = Arc::clone(seen);
        gate("look", "Looks.", move |numbered: Numbered| {
            let seen = Arc::clone(&seen);
            async move {
                // The later calls end first.
                tokio::time::sleep(Duration::from_millis(100 - numbered.n)).await;
                seen.lock().unwrap().push(numbered.n);
                Ok::<_, Refusal>(numbered.n)
            }
        })
        .read_only()
    };
    let cantrip = |seen: &Arc<Mutex<Vec<u64>>>, count: &Count| {
        let crystal = Acting(|request: &Request| {
            if said_before(request) > 0 {
                return done("over");
            }
            let mut said = Response::default();
            for n in 0..5 {
                said = said.and_call(format!("r{n}"), "look", json!({ "n": n }));
            }
            said = said.and_call("w", "count", json!({"n": 99}));
            for n in 5..10 {
                said = said.and_call(format!("r{n}"), "look", json!({ "n": n }));
            }
            said
        });
        let builder = talking(&script([])).crystal(crystal);
        builder.gate(reading(seen)).gate(counting("count", count)).build().unwrap()
    };
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let whole = runtime.cast(&cantrip(&Arc::default(), &Count::default()), CastOptions::on("go")).await;
    assert_eq!(whole.answer(), Some(&json!("over")));
    for dies_after in 1..store.taken() {
        let (memory, seen, count) = (AnyLoom::new(MemoryLoom::new()), Arc::default(), Count::default());
        let cantrip = cantrip(&seen, &count);
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "dead after {dies_after}: {:?}", cast.reply());
        assert!(count.get() <= 1, "what writes is never made twice");
        let turns = heir.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
        let numbers: Vec<u32> = turns[0].gate_calls.iter().map(|record| record.call_id.number()).collect();
        assert_eq!(numbers, (1..=11).collect::<Vec<_>>(), "dead after {dies_after}");
        for (at, record) in turns[0].gate_calls.iter().enumerate().filter(|(at, _)| *at != 5) {
            let Settlement::Settled(settled) = &record.settlement else { panic!("settled") };
            assert_eq!(settled.result, json!(if at < 5 { at } else { at - 1 }), "dead after {dies_after}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_whose_provider_stays_down_is_an_error_and_its_parent_goes_on() {
    let retry = RetryPolicy { max_retries: 1, base_ms: 10, ..RetryPolicy::default() };
    let crystal = Acting(|request: &Request| match (intent_of(request).as_str(), said_before(request)) {
        ("go", 0) => call("call_agent", json!({"intent": "child"})),
        ("go", _) => done("on its own"),
        (_, _) => Response::error(503, "down"),
    });
    let cantrip = talking(&script([])).crystal(crystal).gate(builtin::call_agent()).retry(retry).build().unwrap();
    let runtime = support::memory();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("on its own")), "{:?}", cast.reply());
    let failed = codes::CHILD_FAILED.any();
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert_eq!(
        found,
        format!("A1 call_agent.. sealed\nA2 <A1 continues call_agent!{failed}\nA3 <A2 done=\"on its own\" terminated")
    );
}

#[tokio::test]
async fn a_run_that_was_parked_goes_on_after_the_process_was_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let retry = || RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
    let cantrip = |up: bool| -> Cantrip {
        let crystal = Acting(move |request: &Request| match said_before(request) {
            0 => call("echo", json!({"text": 1})),
            _ if up => done("up again"),
            _ => Response::error(503, "down"),
        });
        talking(&script([])).crystal(crystal).retry(retry()).ward("timeout", "1h").build().unwrap()
    };
    let run = {
        let runtime = house_of(AnyLoom::new(Jsonl::open(folder.path()).unwrap()), 1);
        let cast = runtime.cast(&cantrip(false), CastOptions::on("go")).await;
        assert_code(cast.reply(), codes::CREATED);
        assert_eq!(runtime.loom().run(cast.run.unwrap()).await.unwrap().state, RunState::Waiting);
        cast.run.unwrap()
    };
    let runtime = house_of(AnyLoom::new(Jsonl::open(folder.path()).unwrap()), 2);
    assert_eq!(runtime.loom().run(run).await.unwrap().state, RunState::Waiting);
    let still = runtime.resume(&cantrip(false), run).await;
    assert_eq!(still.reply().data()["reason"], "crystal_unavailable");
    let cast = runtime.resume(&cantrip(true), run).await;
    assert_eq!(cast.answer(), Some(&json!("up again")), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip(true).loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!((turns.len(), turns[1].metadata.attempts), (2, 3), "one turn, three attempts");
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_says_nothing_aloud_does_not_end_the_loop() {
    let runtime = support::memory();
    // A call without text, thinking without text, and a call whose result is empty.
    let thinking = Response { thinking: Some("hm".to_owned()), ..call("echo", json!({"text": ""})) };
    let crystal = script([call("echo", json!({"text": null})), thinking, done("spoke")]);
    let cantrip = talking(&crystal).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("spoke")), "{:?}", cast.reply());
    assert_eq!(cast.outcome.unwrap().turns, 3);
}
