//! The tokens of a tree: charged as they are used, held before that, and waited for in order.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::{Call, Cantrip, CastOptions};
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Crystal, Request, Response};
use cantrip_loom::{AnyLoom, MemoryLoom, TruncationReason, Usage};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};
use support::{Acting, Dying, call, done, house_of, intent_of, memory, said_before, stores, tokens_of, woven};

fn used(tokens: u64) -> Usage {
    Usage { prompt_tokens: tokens / 2, completion_tokens: tokens - tokens / 2, ..Usage::default() }
}

fn tree(crystal: impl Crystal + 'static, answer_tokens: u32) -> cantrip::CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .call(Call::new().max_tokens(answer_tokens))
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 20)
}

fn batch(children: usize) -> Response {
    let requests: Vec<Value> = (0..children).map(|n| json!(format!("child {n}"))).collect();
    call("call_agent_batch", json!({ "requests": requests }))
}

#[tokio::test(start_paused = true)]
async fn children_that_run_at_once_never_use_more_than_their_tree_may() {
    for (store, _folder) in stores() {
        let runtime = house_of(store, 3);
        // Each child would continue for long; each answer takes a while, so that all of them run concurrently.
        let crystal = Acting(|request: &Request| {
            let said = match intent_of(request).as_str() {
                "go" => batch(8),
                _ => call("echo", json!({"text": said_before(request)})),
            };
            Response { delay: Duration::from_millis(50), ..said.with_usage(used(300)) }
        });
        let cantrip = tree(crystal, 300).ward("max_tokens", 6_000).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(cast.reply(), codes::WARD_REACHED);
        assert_eq!(cast.reason(), Some(TruncationReason::MaxTokens));
        let spent = tokens_of(&runtime, cast.run.unwrap()).await;
        assert!(spent <= 6_000, "{spent}");
        assert!(spent > 6_000 - 600, "nearly all of it was used: {spent}");
        let found = woven(&runtime, cantrip.loom_id()).await;
        assert!(found.ends_with("truncated max_tokens"), "{found}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_beyond_its_own_bound_is_booked_in_full_and_stops_the_tree() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let crystal = Acting(move |request: &Request| {
        let intent = intent_of(request);
        seen.lock().unwrap().push(intent.clone());
        match intent.as_str() {
            "go" => batch(3).with_usage(used(100)),
            // The crystal is limited to 300 tokens and returns thousands.
            "child 0" => Response { delay: Duration::from_millis(10), ..call("echo", json!({"text": 1})) }
                .with_usage(used(9_000)),
            _ => {
                Response { delay: Duration::from_millis(20), ..call("echo", json!({"text": 1})) }.with_usage(used(100))
            }
        }
    });
    let runtime = memory();
    let cantrip = tree(crystal, 300).ward("max_tokens", 5_000).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::MaxTokens), "{:?}", cast.reply());
    assert_eq!(tokens_of(&runtime, cast.run.unwrap()).await, 100 + 9_000 + 2 * 100);
    assert_eq!(asked.lock().unwrap().len(), 4, "nobody asked again once the tree had used up its tokens");
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
}

#[tokio::test(start_paused = true)]
async fn where_one_worst_case_fits_at_a_time_all_answer_in_the_order_of_asking() {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&order);
    let crystal = Acting(move |request: &Request| {
        let intent = intent_of(request);
        if intent == "go" {
            return if said_before(request) == 0 { batch(8) } else { done("over") }.with_usage(used(20));
        }
        seen.lock().unwrap().push(intent.clone());
        Response { delay: Duration::from_millis(50), ..done(intent) }.with_usage(used(20))
    });
    let runtime = memory();
    let cantrip = tree(crystal, 700).ward("max_tokens", 1_600).build().unwrap();
    let start = tokio::time::Instant::now();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let wanted: Vec<String> = (0..8).map(|n| format!("child {n}")).collect();
    assert_eq!(*order.lock().unwrap(), wanted);
    assert_eq!(start.elapsed().as_millis(), 8 * 50, "one after the other");
    assert!(woven(&runtime, cantrip.loom_id()).await.contains(r#"call_agent_batch=["child 0","child 1""#));
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_at_its_deadline_ends_by_it_without_asking() {
    let crystal = Acting(|request: &Request| match intent_of(request).as_str() {
        "go" if said_before(request) == 0 => {
            let waits = json!({"intent": "waits", "wards": {"timeout": "1s"}});
            call("call_agent_batch", json!({"requests": ["long", waits]})).with_usage(used(20))
        }
        "go" => done("over").with_usage(used(20)),
        "long" => Response { delay: Duration::from_secs(30), ..done("long") }.with_usage(used(20)),
        other => panic!("{other} asked"),
    });
    let runtime = memory();
    let cantrip = tree(crystal, 700).ward("max_tokens", 1_600).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let found = woven(&runtime, cantrip.loom_id()).await;
    assert!(found.contains(r#"call_agent_batch=["long",{"error""#) && found.contains("failed: timeout"), "{found}");
}

#[tokio::test(start_paused = true)]
async fn caps_shrink_with_what_is_left_and_too_little_ends_the_cast_without_asking() {
    let caps: Arc<Mutex<Vec<u32>>> = Arc::default();
    let seen = Arc::clone(&caps);
    let crystal = Acting(move |request: &Request| {
        seen.lock().unwrap().push(request.output_tokens_max);
        call("echo", json!({"text": said_before(request)})).with_usage(used(400))
    });
    let runtime = memory();
    let cantrip = tree(crystal, 5_000).ward("max_tokens", 2_000).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::MaxTokens));
    let caps = caps.lock().unwrap().clone();
    assert!(caps.windows(2).all(|pair| pair[1] < pair[0]) && caps[0] < 2_000, "{caps:?}");
    // The fifth request would find 400 tokens left, and its prompt alone is estimated at more.
    assert_eq!((caps.len(), tokens_of(&runtime, cast.run.unwrap()).await), (4, 1_600), "{caps:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_taken_over_counts_what_was_used_before() {
    let cantrip = || {
        let crystal = Acting(|request: &Request| match intent_of(request).as_str() {
            "go" => batch(3).with_usage(used(200)),
            _ => call("echo", json!({"text": said_before(request)})).with_usage(used(200)),
        });
        tree(crystal, 300).ward("max_tokens", 3_000).build().unwrap()
    };
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let whole = house_of(AnyLoom::new(store.clone()), 5).cast(&cantrip(), CastOptions::on("go")).await;
    assert_eq!(whole.reason(), Some(TruncationReason::MaxTokens));
    for dies_after in 1..store.taken() {
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 5);
        let died = dying.cast(&cantrip(), CastOptions::on("go")).await;
        let heir = house_of(memory, 6);
        let cast = heir.resume(&cantrip(), died.run.unwrap()).await;
        assert_eq!(cast.reason(), Some(TruncationReason::MaxTokens), "dead after {dies_after}: {:?}", cast.reply());
        let spent = tokens_of(&heir, died.run.unwrap()).await;
        assert!(spent <= 3_000 && spent > 2_000, "dead after {dies_after}: {spent}");
    }
}
