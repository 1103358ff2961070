//! The promises to every surface: a cast has its run's id from the beginning, can be followed, and continues without
//! its caller.

use cantrip_serve::SpellHost;
use cantrip_service::cantrip::canon::EntityId;
use cantrip_service::cantrip::circle::gate::builtin;
use cantrip_service::cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip_service::cantrip::loom::{Actor, Loom, RunState};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::{Cantrip, Runtime};
use cantrip_service::contracts::Predictor;
use cantrip_service::{CastRequest, Service, SpellCatalog, SpellSummary};
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::json;

struct One(Cantrip);

impl SpellCatalog for One {
    fn spells(&self) -> Vec<SpellSummary> {
        let word = |word: &str| word.to_owned();
        vec![SpellSummary {
            name: word("three"),
            crystal: word("scripted/three"),
            medium: word("conversation"),
            about: word(""),
        }]
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        let found = if spell == "three" { Ok(self.0.clone()) } else { Err(codes::not_found("spell", spell).into()) };
        ready(found).boxed()
    }

    fn cantrip_of_entity(&self, _: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        ready(Ok(self.0.clone())).boxed()
    }

    fn predictor<'a>(&'a self, _: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        ready(Err(codes::contract_unknown("signature", "any").into())).boxed()
    }
}

pub(crate) fn host() -> SpellHost {
    let script = Script::new([Response::call("c1", "done", json!({"answer": 3}))]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/three", script))
        .gate(builtin::done())
        .ward("max_turns", 5)
        .build()
        .expect("a cantrip");
    SpellHost::open(Runtime::in_memory(), One(cantrip))
}

pub(crate) fn owner() -> Actor {
    Actor::new("local").expect("a name")
}

#[tokio::test]
async fn a_cast_is_on_record_when_it_has_begun_and_answers_at_its_end() {
    let host = host();
    let begun = host.service(&owner()).begin_cast("three", CastRequest::with_intent("how many?")).await;
    let run = begun.run.expect("it has begun");
    let view = host.runtime().loom().run(run).await.expect("it is on record");
    assert_eq!(view.run_id, run);
    assert_eq!(begun.reply().await.answer(), Some(&json!(3)));
    assert_eq!(host.runtime().loom().run(run).await.expect("on record").state, RunState::Terminated);
    assert_eq!(host.local_service().active_runs(), 0);
}

#[tokio::test]
async fn who_follows_a_run_sees_its_events_until_it_rests() {
    let host = host();
    let run = host.runtime().new_run_id();
    let mut events = host.local_service().follow(run).expect("there is room");
    let begun = host
        .service(&owner())
        .begin_cast("three", CastRequest { run: Some(run), ..CastRequest::with_intent("how many?") })
        .await;
    assert_eq!(begun.run, Some(run));
    let mut kinds = Vec::new();
    while let Some(event) = events.recv().await {
        assert_eq!(event.session_id.as_str(), run.to_string());
        kinds.push(event.payload.kind());
    }
    assert_eq!((kinds.first().copied(), kinds.last().copied()), (Some("response_start"), Some("response_done")));
}

#[tokio::test]
async fn what_cannot_begin_is_refused_without_a_run() {
    let host = host();
    let begun = host.service(&owner()).begin_cast("four", CastRequest::with_intent("how many?")).await;
    assert_eq!(begun.run, None);
    let reply = begun.reply().await;
    cantrip_reply::testing::assert_code(&reply.guarded.reply, codes::NOT_FOUND);
    assert_eq!(host.local_service().active_runs(), 0);
}
