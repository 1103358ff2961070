//! The promises of the service to every surface.

use cantrip::canon::{EntityId, Timestamp};
use cantrip::circle::gate::builtin;
use cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip::loom::{Actor, Loom, PageRequest};
use cantrip::reply::codes;
use cantrip::{Cantrip, ContinueOptions, ReplayOutcome, Runtime};
use cantrip_reply::testing::assert_code;
use cantrip_service::{CastRequest, ForkRequest, RewardRequest, Service};
use serde_json::{Value, json};

fn done(answer: impl Into<Value>) -> Response {
    Response::call("d", "done", json!({"answer": answer.into()}))
}

fn echo(text: &str) -> Response {
    Response::call("e", "echo", json!({"text": text}))
}

fn cantrip(turns: u64, responses: impl IntoIterator<Item = Response>) -> Cantrip {
    Cantrip::builder()
        .name("service")
        .crystal(ScriptedCrystal::new("scripted/service", Script::new(responses)))
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", turns)
        .build()
        .expect("a sound cantrip")
}

fn service() -> Service {
    Service::new(Runtime::in_memory())
}

fn rewarding(turn: cantrip::canon::TurnId, reward: f64) -> RewardRequest {
    RewardRequest { turn, reward, by: Actor::new("tester").expect("a name"), note: None }
}

#[tokio::test(start_paused = true)]
async fn a_cast_without_an_intent_is_refused_and_writes_nothing() {
    let (service, cantrip) = (service(), cantrip(5, [done(1)]));
    for intent in [None, Some(" ".into())] {
        let cast = service.cast(&cantrip, CastRequest { intent, ..CastRequest::default() }).await;
        assert_code(cast.reply(), codes::CONTRACT_INVALID);
    }
    assert_eq!(service.looms().await.reply.value(), Some(&json!([])));
}

#[tokio::test(start_paused = true)]
async fn a_summoned_entity_goes_on_with_its_thread_until_it_is_disposed() {
    let (service, cantrip) = (service(), cantrip(5, [done("one"), done("two")]));
    let summoned = service.summon(&cantrip, None).await.reply;
    assert_code(&summoned, codes::CREATED);
    let entity: EntityId = summoned.data()["entity_id"].as_str().expect("an id").parse().expect("an entity's id");
    let first = service.send(entity, CastRequest::with_intent("first")).await;
    assert_eq!(first.answer(), Some(&json!("one")));
    let second = service.send(entity, CastRequest::with_intent("second")).await;
    assert_eq!(second.answer(), Some(&json!("two")));
    let leaf = second.outcome.expect("it ended").leaf.expect("a turn");
    let thread = service.thread(leaf).await.reply;
    assert_eq!(thread.value().expect("a thread")["turns"].as_array().map(Vec::len), Some(2));
    assert_code(&service.dispose(entity).await.reply, codes::CHANGED);
    assert_code(service.send(entity, CastRequest::with_intent("third")).await.reply(), codes::NOT_FOUND);
    assert_code(&service.dispose(entity).await.reply, codes::NOT_FOUND);
    assert_code(&service.reattach_entity(&cantrip, entity).await.reply, codes::CREATED);
    assert_code(service.send(entity, CastRequest::default()).await.reply(), codes::CONTRACT_INVALID);
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_nobody_summoned_cannot_be_sent_anything() {
    let unknown = EntityId::from_parts(Timestamp::EPOCH, [7; 10]);
    let sent = service().send(unknown, CastRequest::with_intent("hello")).await;
    assert_code(sent.reply(), codes::NOT_FOUND);
    assert_eq!((sent.run, sent.outcome), (None, None));
}

#[tokio::test(start_paused = true)]
async fn the_latest_reward_counts_and_what_is_no_number_is_refused() {
    let (service, cantrip) = (service(), cantrip(5, [done(1)]));
    let leaf =
        service.cast(&cantrip, CastRequest::with_intent("go")).await.outcome.expect("it ended").leaf.expect("a turn");
    for reward in [0.25, 1.0] {
        assert_code(&service.reward(rewarding(leaf, reward)).await.reply, codes::CHANGED);
    }
    assert_eq!(service.runtime().loom().turn(leaf).await.expect("the turn").reward, Some(1.0));
    assert_eq!(service.rewards(leaf).await.reply.value().and_then(Value::as_array).map(Vec::len), Some(2));
    assert_code(&service.reward(rewarding(leaf, f64::NAN)).await.reply, codes::SCHEMA);
    let unknown = cantrip::canon::TurnId::from_parts(Timestamp::EPOCH, [7; 10]);
    assert_code(&service.reward(rewarding(unknown, 1.0)).await.reply, codes::NOT_FOUND);
    let long = RewardRequest { note: Some("x".repeat(5_000)), ..rewarding(leaf, 1.0) };
    assert_code(&service.reward(long).await.reply, codes::LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_cut_off_is_forked_and_continued_and_its_thread_replays() {
    let (service, cantrip) = (service(), cantrip(1, [echo("a"), done("forked"), done("continued")]));
    let cut = service.cast(&cantrip, CastRequest::with_intent("go")).await;
    assert_code(cut.reply(), codes::WARD_REACHED);
    let leaf = cut.outcome.expect("it ended").leaf.expect("a turn");
    let branch = ForkRequest { intent: Some("another way".into()), ..ForkRequest::default() };
    let forked = service.fork(&cantrip, leaf, branch).await;
    assert_eq!(forked.answer(), Some(&json!("forked")));
    let continued = service.continue_run(&cantrip, cut.run.expect("a run"), ContinueOptions::new()).await;
    assert_eq!(continued.answer(), Some(&json!("continued")));
    let leaves = service.leaves(cantrip.loom_id(), PageRequest::FIRST).await.reply;
    assert_eq!(leaves.value().expect("leaves")["items"].as_array().map(Vec::len), Some(2));
    for end in [forked, continued] {
        let leaf = end.outcome.expect("it ended").leaf.expect("a turn");
        let replayed = service.replay(&cantrip, leaf).await;
        assert_code(replayed.reply(), codes::VERIFIED);
        assert_eq!(replayed.replayed, Some(ReplayOutcome::Identical { turns: 2, calls: 2 }));
    }
}
