//! Entities that stay alive between intents.

use cantrip_service::CastRequest;
use cantrip_service::cantrip::canon::EntityId;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::answer::Answer;
use super::casts::{money, started_or_finished};
use super::extractors::{Caller, JsonBody, PathId};
use super::routes::{Routes, doc};

const ENTITY: &str = "the id of an entity";

pub(super) fn routes(routes: &mut Routes) {
    let about =
        doc("summon_entity", "Summon an entity that waits for its first intent.", &[201, 403, 404]).body::<Summoning>();
    routes.post("/v1/entities", summon, about);
    let about = doc("get_entity", "Show an entity.", &[200]).path(ENTITY);
    routes.get("/v1/entities/{id}", show, about);
    let about = doc("list_entity_casts", "List the casts of an entity, oldest first.", &[200]).path(ENTITY);
    routes.get("/v1/entities/{id}/casts", casts, about);
    let about =
        doc("send_to_entity", "Send an intent to an entity.", &[200, 202, 403, 502]).path(ENTITY).body::<Sending>();
    routes.post("/v1/entities/{id}/send", send, about);
    let about = doc("dispose_entity", "Dispose of an entity's sandbox. Its thread is kept.", &[200]).path(ENTITY);
    routes.post("/v1/entities/{id}/dispose", dispose, about);
}

/// The spell of an entity that stays alive between casts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Summoning {
    /// The name of the spell. `/v1/spells` lists them.
    spell: String,
    /// Data for the entity, which it can read as `context`.
    context: Option<Value>,
}

async fn summon(caller: Caller, JsonBody(Summoning { spell, context }): JsonBody<Summoning>) -> Answer {
    caller.service.summon_spell(&spell, context).await.into()
}

async fn show(caller: Caller, PathId(entity): PathId<EntityId>) -> Answer {
    caller.service.entity(entity).await.into()
}

async fn casts(caller: Caller, PathId(entity): PathId<EntityId>) -> Answer {
    caller.service.casts(entity).await.into()
}

/// The next task of an entity.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Sending {
    /// The task.
    intent: String,
    /// The maximum cost, as in `0.50 USD`.
    budget: Option<String>,
    /// Wait until the run ends or has to wait, as for an approval, and return its reply. By default the run's id is
    /// returned at once.
    #[serde(default)]
    wait: bool,
}

async fn send(
    caller: Caller,
    PathId(entity): PathId<EntityId>,
    JsonBody(Sending { intent, budget, wait }): JsonBody<Sending>,
) -> Answer {
    let budget = match money(budget.as_deref()) {
        Ok(budget) => budget,
        Err(refusal) => return caller.http.refusal_reply(refusal).await.into(),
    };
    let begun = caller.service.begin_send(entity, CastRequest { budget, ..CastRequest::with_intent(intent) }).await;
    started_or_finished(&caller, begun, wait).await
}

async fn dispose(caller: Caller, PathId(entity): PathId<EntityId>) -> Answer {
    caller.service.dispose(entity).await.into()
}
