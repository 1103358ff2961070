//! Looms and their turns.

use axum::extract::State;
use cantrip_service::RewardRequest;
use cantrip_service::cantrip::canon::{LoomId, TurnId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::HttpServer;
use super::answer::Answer;
use super::extractors::{Caller, JsonBody, Paging, PathId, QueryParams};
use super::routes::{ResponseKind, Routes};

const LOOM: [(&str, &str); 1] = [("id", "the id of a loom")];
const TURN: [(&str, &str); 1] = [("id", "the id of a turn")];

pub(super) fn routes(routes: &mut Routes) {
    let about = routes.doc("list_looms", "List the looms.", ResponseKind::Envelope, &[200]);
    routes.get("/v1/looms", list, about);
    let about =
        routes.doc("get_loom", "List the cantrips of a loom, each with its call.", ResponseKind::Envelope, &[200]);
    let about = routes.with_path(about, &LOOM);
    routes.get("/v1/looms/{id}", show, about);
    let about = routes.doc("list_loom_entities", "List the entities of a loom.", ResponseKind::Envelope, &[200]);
    let about = routes.with_path(about, &LOOM);
    let about = routes.with_query::<Paging>(about);
    routes.get("/v1/looms/{id}/entities", entities, about);
    let about =
        routes.doc("list_loom_leaves", "List the last turns of a loom's threads.", ResponseKind::Envelope, &[200]);
    let about = routes.with_path(about, &LOOM);
    let about = routes.with_query::<Paging>(about);
    routes.get("/v1/looms/{id}/leaves", leaves, about);
    let about = routes.doc("get_turn", "Show a turn.", ResponseKind::Envelope, &[200]);
    let about = routes.with_path(about, &TURN);
    routes.get("/v1/turns/{id}", turn, about);
    let about = routes.doc(
        "get_thread",
        "Show the thread that ends with a turn, its root first.",
        ResponseKind::Envelope,
        &[200],
    );
    let about = routes.with_path(about, &TURN);
    routes.get("/v1/turns/{id}/thread", thread, about);
    let about = routes.doc("reward_turn", "Record a reward for a turn.", ResponseKind::Envelope, &[200]);
    let about = routes.with_path(about, &TURN);
    let about = routes.with_body::<Reward>(about);
    routes.post("/v1/turns/{id}/reward", reward, about);
    let about = routes.doc(
        "list_turn_rewards",
        "List the rewards of a turn; the last one counts.",
        ResponseKind::Envelope,
        &[200],
    );
    let about = routes.with_path(about, &TURN);
    routes.get("/v1/turns/{id}/rewards", rewards, about);
}

async fn list(caller: Caller) -> Answer {
    caller.service.looms().await.into()
}

async fn show(caller: Caller, PathId(loom): PathId<LoomId>) -> Answer {
    caller.service.roots(loom).await.into()
}

async fn entities(
    State(http): State<HttpServer>,
    caller: Caller,
    PathId(loom): PathId<LoomId>,
    QueryParams(paging): QueryParams<Paging>,
) -> Answer {
    match paging.page() {
        Ok(page) => caller.service.entities(loom, page).await.into(),
        Err(refusal) => http.refusal_reply(refusal).await.into(),
    }
}

async fn leaves(
    State(http): State<HttpServer>,
    caller: Caller,
    PathId(loom): PathId<LoomId>,
    QueryParams(paging): QueryParams<Paging>,
) -> Answer {
    match paging.page() {
        Ok(page) => caller.service.leaves(loom, page).await.into(),
        Err(refusal) => http.refusal_reply(refusal).await.into(),
    }
}

async fn turn(caller: Caller, PathId(turn): PathId<TurnId>) -> Answer {
    caller.service.turn(turn).await.into()
}

async fn thread(caller: Caller, PathId(turn): PathId<TurnId>) -> Answer {
    caller.service.thread(turn).await.into()
}

/// The reward of a turn.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reward {
    /// The value; higher is better.
    reward: f64,
    /// A note that is recorded with it.
    note: Option<String>,
}

async fn reward(
    caller: Caller,
    PathId(turn): PathId<TurnId>,
    JsonBody(Reward { reward, note }): JsonBody<Reward>,
) -> Answer {
    let by = caller.owner.clone();
    caller.service.reward(RewardRequest { turn, reward, by, note }).await.into()
}

async fn rewards(caller: Caller, PathId(turn): PathId<TurnId>) -> Answer {
    caller.service.rewards(turn).await.into()
}
