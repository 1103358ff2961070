//! Entities that live on between what they are sent.

use axum::extract::State;
use cantrip_service::Ask;
use cantrip_service::cantrip::canon::EntityId;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::Http;
use super::answer::Answer;
use super::asked::{Caller, Named, Told};
use super::casts::{begun_or_rested, money};
use super::routes::{Gives, Routes};

const ENTITY: [(&str, &str); 1] = [("id", "the id of an entity")];

pub(super) fn routes(routes: &mut Routes) {
    let about = routes.about(
        "summon_entity",
        "Summon an entity that waits to be sent something.",
        Gives::Envelope,
        &[201, 403, 404],
    );
    let about = routes.told::<Summoning>(about);
    routes.post("/v1/entities", summon, about);
    let about = routes.about("get_entity", "Show an entity.", Gives::Envelope, &[200]);
    let about = routes.of(about, &ENTITY);
    routes.get("/v1/entities/{id}", show, about);
    let about =
        routes.about("list_entity_casts", "List the casts of an entity, oldest first.", Gives::Envelope, &[200]);
    let about = routes.of(about, &ENTITY);
    routes.get("/v1/entities/{id}/casts", casts, about);
    let about =
        routes.about("send_to_entity", "Send an entity a further intent.", Gives::Envelope, &[200, 202, 403, 502]);
    let about = routes.of(about, &ENTITY);
    let about = routes.told::<Sending>(about);
    routes.post("/v1/entities/{id}/send", send, about);
    let about =
        routes.about("dispose_entity", "Give up an entity's sandbox. Its thread stays.", Gives::Envelope, &[200]);
    let about = routes.of(about, &ENTITY);
    routes.post("/v1/entities/{id}/dispose", dispose, about);
}

/// A spell whose entity is to live on.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Summoning {
    /// The name of the spell: see `/v1/spells`.
    spell: String,
    /// Data that the entity finds as `context`.
    context: Option<Value>,
}

async fn summon(
    State(http): State<Http>,
    caller: Caller,
    Told(Summoning { spell, context }): Told<Summoning>,
) -> Answer {
    http.house().summon(&caller.owner, &spell, context).await.into()
}

async fn show(caller: Caller, Named(entity): Named<EntityId>) -> Answer {
    caller.service.entity(entity).await.into()
}

async fn casts(caller: Caller, Named(entity): Named<EntityId>) -> Answer {
    caller.service.casts(entity).await.into()
}

/// What an entity is sent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sending {
    /// What is to be done now.
    intent: String,
    /// At most so much money, as in `0.50 USD`.
    budget: Option<String>,
    /// Answer when it has come to rest, and not when it has begun.
    #[serde(default)]
    wait: bool,
}

async fn send(
    State(http): State<Http>,
    caller: Caller,
    Named(entity): Named<EntityId>,
    Told(Sending { intent, budget, wait }): Told<Sending>,
) -> Answer {
    let budget = match money(budget.as_deref()) {
        Ok(budget) => budget,
        Err(refusal) => return http.refused(refusal).await.into(),
    };
    let begun = http.house().send(&caller.owner, entity, Ask { budget, ..Ask::on(intent) }).await;
    begun_or_rested(&http, &caller, begun, wait).await
}

async fn dispose(caller: Caller, Named(entity): Named<EntityId>) -> Answer {
    caller.service.dispose(entity).await.into()
}
