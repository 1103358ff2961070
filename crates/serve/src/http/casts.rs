//! Casting a spell: returns the run's id at once, or the answer if the client waits.

use cantrip_service::cantrip::CastReply;
use cantrip_service::cantrip::canon::Money;
use cantrip_service::cantrip::reply::{Call, GuardedReply, Refusal, codes};
use cantrip_service::{CastRequest, StartedCast};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::Answer;
use super::extractors::{Caller, JsonBody};
use super::routes::{Routes, doc};

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("cast_spell", "Cast a spell on an intent.", &[200, 202, 403, 404, 502]).body::<Casting>();
    routes.post("/v1/casts", cast, about);
}

/// A spell and its task.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Casting {
    /// The name of the spell. `/v1/spells` lists them.
    spell: String,
    /// The task.
    intent: String,
    /// Data for the entity, which it can read as `context`.
    context: Option<Value>,
    /// The maximum cost, as in `0.50 USD`.
    budget: Option<String>,
    /// Wait until the run ends or has to wait, as for an approval, and return its reply. By default the run's id is
    /// returned at once.
    #[serde(default)]
    wait: bool,
}

/// Parses money as people write it.
pub(super) fn money(written: Option<&str>) -> Result<Option<Money>, Refusal> {
    let parse = |text: &str| {
        text.parse::<Money>().map_err(|fault| codes::schema("the body", "/budget", fault.to_string()).into())
    };
    written.map(parse).transpose()
}

async fn cast(caller: Caller, JsonBody(casting): JsonBody<Casting>) -> Answer {
    let Casting { spell, intent, context, budget, wait } = casting;
    let budget = match money(budget.as_deref()) {
        Ok(budget) => budget,
        Err(refusal) => return caller.http.refusal_reply(refusal).await.into(),
    };
    let ask = CastRequest { context, budget, ..CastRequest::with_intent(intent) };
    let begun = caller.service.begin_cast(&spell, ask).await;
    started_or_finished(&caller, begun, wait).await
}

/// Returns the response for a started run: its reply if the client waits, else its id.
pub(super) async fn started_or_finished(caller: &Caller, begun: StartedCast, wait: bool) -> Answer {
    let Some(run) = begun.run.filter(|_| !wait) else {
        let CastReply { guarded, .. } = begun.reply().await;
        return guarded.into();
    };
    let view = match caller.service.own_run(run).await {
        Ok(view) => view,
        Err(refusal) => return caller.http.run_refusal_reply(run, refusal).await.into(),
    };
    let data = json!({"run_id": run, "entity_id": view.entity_id, "state": view.state});
    let filled = codes::created("run", run.to_string()).data(data);
    let guarded: GuardedReply =
        caller.http.guard().call(Call::surface("cast").run(run), |rb| async { rb.success(filled) }).await;
    guarded.into()
}
