//! Looms and their turns.

use cantrip_service::RewardRequest;
use cantrip_service::cantrip::canon::{LoomId, TurnId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::answer::Answer;
use super::extractors::{Caller, JsonBody, Page, Paging, PathId};
use super::routes::{Routes, doc};

const LOOM: &str = "the id of a loom";
const TURN: &str = "the id of a turn";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_looms", "List the looms.", &[200]);
    routes.get("/v1/looms", list, about);
    let about = doc("get_loom", "List the cantrips of a loom, each with its call.", &[200]).path(LOOM);
    routes.get("/v1/looms/{id}", show, about);
    let about = doc("list_loom_entities", "List the entities of a loom.", &[200]).path(LOOM).query::<Paging>();
    routes.get("/v1/looms/{id}/entities", entities, about);
    let about =
        doc("list_loom_leaves", "List the last turns of a loom's threads.", &[200]).path(LOOM).query::<Paging>();
    routes.get("/v1/looms/{id}/leaves", leaves, about);
    let about = doc("get_turn", "Show a turn.", &[200]).path(TURN);
    routes.get("/v1/turns/{id}", turn, about);
    let about = doc("get_thread", "Show the thread that ends with a turn, its root first.", &[200]).path(TURN);
    routes.get("/v1/turns/{id}/thread", thread, about);
    let about = doc("reward_turn", "Record a reward for a turn.", &[200]).path(TURN).body::<Reward>();
    routes.post("/v1/turns/{id}/reward", reward, about);
    let about = doc("list_turn_rewards", "List the rewards of a turn; the last one counts.", &[200]).path(TURN);
    routes.get("/v1/turns/{id}/rewards", rewards, about);
}

async fn list(caller: Caller) -> Answer {
    caller.service.looms().await.into()
}

async fn show(caller: Caller, PathId(loom): PathId<LoomId>) -> Answer {
    caller.service.roots(loom).await.into()
}

async fn entities(caller: Caller, PathId(loom): PathId<LoomId>, Page(page): Page) -> Answer {
    caller.service.entities(loom, page).await.into()
}

async fn leaves(caller: Caller, PathId(loom): PathId<LoomId>, Page(page): Page) -> Answer {
    caller.service.leaves(loom, page).await.into()
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
