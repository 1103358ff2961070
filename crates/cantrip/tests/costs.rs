//! The cost of casts: every answer and every failed attempt by its price, in whole micro-units, and never a guess.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::support;

use cantrip::CantripFault;
use cantrip::CastOptions;
use cantrip_canon::Money;
use cantrip_crystal::{
    Answer, Crystal, EventSink, Failure, Price, ProgramCrystal, Rates, Request, Response, RetryPolicy, Script,
    ScriptedCrystal,
};
use cantrip_loom::{Event, Loom, PageRequest, Usage};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::json;
use support::{call, done, journal, memory, script, talking};

fn money(text: &str) -> Money {
    text.parse().unwrap()
}

/// Returns a price of 3 for input, 15 for output, a tenth of input for cache reads, a quarter more for cache writes.
fn listed() -> Price {
    let rates = Rates::new(money("3 USD"), money("15 USD")).unwrap();
    Price::Listed(rates.cached(money("0.30 USD")).unwrap().cache_write(money("3.75 USD")).unwrap())
}

fn usage(prompt: u64, cached: u64, completion: u64) -> Usage {
    Usage {
        prompt_tokens: prompt,
        cached_tokens: cached,
        completion_tokens: completion,
        reasoning_tokens: Some(completion),
        cache_write_tokens: None,
    }
}

#[tokio::test(start_paused = true)]
async fn each_turn_has_its_cost_and_the_cast_the_sum_with_what_failed() {
    let runtime = memory();
    let crystal = script([
        call("echo", json!({"text": 1})).with_usage(usage(1_000, 0, 100)),
        // An empty answer is requested again, and charged.
        Response::default().with_usage(usage(1_200, 1_000, 2)),
        done("over").with_usage(usage(1_200, 1_000, 10)),
    ]);
    let retry = RetryPolicy { empty_response: 1, ..RetryPolicy::default() };
    let cantrip = talking(&crystal).price(listed()).retry(retry).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let costs: Vec<_> = turns.iter().map(|turn| turn.metadata.cost.unwrap().micros()).collect();
    let (first, failed, second) = (3_000 + 1_500, 600 + 300 + 30, 600 + 300 + 150);
    assert_eq!(costs, [first, second], "what was thought is among the output, what was cached is cheaper");
    let settled = journal(&runtime, cast.run.unwrap()).await.into_iter().find_map(|event| match event {
        Event::Settled(settled) if settled.attempt.is_some() => settled.cost,
        _ => None,
    });
    assert_eq!(settled.unwrap().micros(), failed, "the failed attempt is in the journal with its cost");
    let outcome = cast.outcome.as_ref().unwrap();
    assert_eq!((outcome.cost.unwrap().micros(), outcome.uncosted), (first + failed + second, 0));
    assert_eq!(cast.reply().data()["cost"]["micros"], first + failed + second);
}

#[tokio::test(start_paused = true)]
async fn a_cost_that_nobody_knows_is_counted_and_not_guessed() {
    let runtime = memory();
    // The price is unknown; it is known that two requests have no cost.
    let crystal = script([call("echo", json!({"text": 1})).with_usage(usage(9, 0, 9)), done("over")]);
    let cantrip = talking(&crystal).price(Price::Unknown).build().unwrap();
    let outcome = runtime.cast(&cantrip, CastOptions::on("go")).await.outcome.unwrap();
    assert_eq!((outcome.cost, outcome.uncosted), (None, 2));
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    assert!(turns.iter().all(|turn| turn.metadata.cost.is_none()));
    // The price is known, but the usage of one answer is not: the response broke off before the provider counted.
    let crystal = script([
        Response { break_after: Some(1), usage: None, ..Response::text("I was ab") },
        Response::error(503, "busy"),
        done("over").with_usage(usage(1_000, 0, 0)),
    ]);
    let cantrip = talking(&crystal).price(listed()).build().unwrap();
    let outcome = runtime.cast(&cantrip, CastOptions::on("go")).await.outcome.unwrap();
    assert_eq!((outcome.cost, outcome.uncosted), (Some(money("0.003 USD")), 1), "a refusal costs nothing");
}

#[tokio::test(start_paused = true)]
async fn what_runs_here_costs_nothing_and_is_known_to() {
    let runtime = memory();
    let cantrip = talking(&script([done("over").with_usage(usage(9, 0, 9))])).build().unwrap();
    let outcome = runtime.cast(&cantrip, CastOptions::on("go")).await.outcome.unwrap();
    assert_eq!((outcome.cost.unwrap().micros(), outcome.uncosted), (0, 0));
}

fn named(name: &str, responses: impl IntoIterator<Item = Response>) -> ScriptedCrystal {
    ScriptedCrystal::new(name, Script::new(responses))
}

#[tokio::test(start_paused = true)]
async fn a_crystal_that_stays_down_is_stood_in_for_in_the_same_turn() {
    let runtime = memory();
    let own = script((0..3).map(|_| Response::error(503, "down")).chain([call("echo", json!({"text": 2}))]));
    let first = named("scripted/first", [Response::error(429, "busy"), Response::error(429, "busy")]);
    let second = named("scripted/second", [call("echo", json!({"text": 1})), done("never asked")]);
    let retry = RetryPolicy { max_retries: 1, ..RetryPolicy::default() };
    let cantrip = talking(&own).fallback(first.clone()).fallback(second.clone()).retry(retry).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    // The first turn asks its own crystal twice, the first fallback twice, the second once. The second turn begins with
    // its own crystal again.
    let asked: Vec<_> = journal(&runtime, cast.run.unwrap())
        .await
        .into_iter()
        .filter_map(|event| match event {
            Event::Attempt(attempt) => Some((attempt.number, attempt.crystal)),
            _ => None,
        })
        .collect();
    let of = |number: u32, crystal: Option<&str>| (number, crystal.map(str::to_owned));
    let (one, two) = (Some("scripted/first"), Some("scripted/second"));
    let expected =
        [of(1, None), of(2, None), of(3, one), of(4, one), of(5, two), of(1, None), of(2, None), of(1, None)];
    assert_eq!(asked, expected, "{:?}", cast.reply());
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let models: Vec<_> = turns.iter().map(|turn| turn.metadata.model.clone().unwrap()).collect();
    assert_eq!(models, ["scripted/second", "scripted/test"], "the turn has the model that answered");
    assert_eq!((first.request_count(), second.request_count()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn whoever_stands_in_costs_its_own_price_and_a_failure_that_is_final_is_not_stood_in_for() {
    let runtime = memory();
    let own = script([Response::error(503, "down")]);
    let other = named("scripted/other", [done("over").with_usage(usage(1_000, 0, 0))]);
    let retry = || RetryPolicy { max_retries: 0, ..RetryPolicy::default() };
    let cantrip = talking(&own).price(listed()).fallback(other).retry(retry()).build().unwrap();
    let outcome = runtime.cast(&cantrip, CastOptions::on("go")).await.outcome.unwrap();
    assert_eq!((outcome.cost.unwrap().micros(), outcome.uncosted), (0, 0), "a script is free, a refusal too");
    // Another model would not make a bad request valid.
    let own = script([Response::error(400, "no such field")]);
    let other = named("scripted/other", [done("never asked")]);
    let cantrip = talking(&own).fallback(other.clone()).retry(retry()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_code(cast.reply(), codes::CRYSTAL_REJECTED);
    assert_eq!(other.request_count(), 0);
    // If all stay unavailable, the run waits, and begins with its own crystal again.
    let own = script([Response::error(503, "down"), done("back")]);
    let other = named("scripted/other", [Response::error(503, "down too")]);
    let cantrip = talking(&own).fallback(other.clone()).retry(retry()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reply().data()["state"], "waiting");
    assert_eq!(other.request_count(), 1);
    let resumed = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(resumed.answer(), Some(&json!("back")), "{:?}", resumed.reply());
}

#[test]
fn only_a_crystal_that_could_take_the_others_place_stands_in() {
    let program = ProgramCrystal::new("program/flow.js", "done(1)");
    let faults = talking(&script([])).fallback(program).build().unwrap_err();
    assert!(
        matches!(faults.first(), CantripFault::CannotStandIn { crystal } if crystal == "program/flow.js"),
        "{faults}"
    );
    let unpriced = Named("nobody/knows");
    let faults = talking(&script([])).ward("max_cost", "1 USD").fallback(unpriced).build().unwrap_err();
    assert!(matches!(faults.first(), CantripFault::Unpriced { crystal, .. } if crystal == "nobody/knows"), "{faults}");
}

/// A crystal that has only a name.
struct Named(&'static str);

impl Crystal for Named {
    fn name(&self) -> &str {
        self.0
    }
    async fn ask(&self, _: &Request, _: &dyn EventSink) -> Result<Answer, Failure> {
        Err(Failure::rejected(self.0, "nobody asks it"))
    }
}
