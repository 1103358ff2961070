//! Looms and their turns.

use axum::extract::State;
use cantrip_service::Rewarding;
use cantrip_service::cantrip::canon::{LoomId, TurnId};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Http;
use super::answer::Answer;
use super::asked::{Caller, Named, Paging, Told, Wanted};
use super::routes::{Gives, Routes};

const LOOM: [(&str, &str); 1] = [("id", "the id of a loom")];
const TURN: [(&str, &str); 1] = [("id", "the id of a turn")];

pub(super) fn routes(routes: &mut Routes) {
    let about = routes.about("list_looms", "List the looms.", Gives::Envelope, &[200]);
    routes.get("/v1/looms", list, about);
    let about = routes.about("get_loom", "List the cantrips of a loom, each with its call.", Gives::Envelope, &[200]);
    let about = routes.of(about, &LOOM);
    routes.get("/v1/looms/{id}", show, about);
    let about = routes.about("list_loom_entities", "List the entities of a loom.", Gives::Envelope, &[200]);
    let about = routes.of(about, &LOOM);
    let about = routes.wants::<Paging>(about);
    routes.get("/v1/looms/{id}/entities", entities, about);
    let about = routes.about("list_loom_leaves", "List the last turns of a loom's threads.", Gives::Envelope, &[200]);
    let about = routes.of(about, &LOOM);
    let about = routes.wants::<Paging>(about);
    routes.get("/v1/looms/{id}/leaves", leaves, about);
    let about = routes.about("get_turn", "Show a turn.", Gives::Envelope, &[200]);
    let about = routes.of(about, &TURN);
    routes.get("/v1/turns/{id}", turn, about);
    let about =
        routes.about("get_thread", "Show the thread that ends with a turn, its root first.", Gives::Envelope, &[200]);
    let about = routes.of(about, &TURN);
    routes.get("/v1/turns/{id}/thread", thread, about);
    let about = routes.about("reward_turn", "Note how good a turn was.", Gives::Envelope, &[200]);
    let about = routes.of(about, &TURN);
    let about = routes.told::<Reward>(about);
    routes.post("/v1/turns/{id}/reward", reward, about);
    let about =
        routes.about("list_turn_rewards", "List the rewards of a turn; the last one counts.", Gives::Envelope, &[200]);
    let about = routes.of(about, &TURN);
    routes.get("/v1/turns/{id}/rewards", rewards, about);
}

async fn list(caller: Caller) -> Answer {
    caller.service.looms().await.into()
}

async fn show(caller: Caller, Named(loom): Named<LoomId>) -> Answer {
    caller.service.roots(loom).await.into()
}

async fn entities(
    State(http): State<Http>,
    caller: Caller,
    Named(loom): Named<LoomId>,
    Wanted(paging): Wanted<Paging>,
) -> Answer {
    match paging.page() {
        Ok(page) => caller.service.entities(loom, page).await.into(),
        Err(refusal) => http.refused(refusal).await.into(),
    }
}

async fn leaves(
    State(http): State<Http>,
    caller: Caller,
    Named(loom): Named<LoomId>,
    Wanted(paging): Wanted<Paging>,
) -> Answer {
    match paging.page() {
        Ok(page) => caller.service.leaves(loom, page).await.into(),
        Err(refusal) => http.refused(refusal).await.into(),
    }
}

async fn turn(caller: Caller, Named(turn): Named<TurnId>) -> Answer {
    caller.service.turn(turn).await.into()
}

async fn thread(caller: Caller, Named(turn): Named<TurnId>) -> Answer {
    caller.service.thread(turn).await.into()
}

/// How good a turn was.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Reward {
    reward: f64,
    note: Option<String>,
}

async fn reward(caller: Caller, Named(turn): Named<TurnId>, Told(Reward { reward, note }): Told<Reward>) -> Answer {
    let by = caller.owner.clone();
    caller.service.reward(Rewarding { turn, reward, by, note }).await.into()
}

async fn rewards(caller: Caller, Named(turn): Named<TurnId>) -> Answer {
    caller.service.rewards(turn).await.into()
}
