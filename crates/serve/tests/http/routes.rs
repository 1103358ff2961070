//! The behaviour of each route.

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_service::cantrip::loom::Journal;
use serde_json::{Value, json};

use super::support::{refused, server};

#[tokio::test]
async fn a_cast_gives_its_run_at_once_or_its_answer_to_whoever_waits() {
    let server = server().await;
    let (status, envelope) =
        server.post("/v1/casts", json!({"spell": "three", "intent": "how many?", "wait": true})).await;
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::TERMINATED.any());
    assert_eq!(envelope["data"]["answer"], 3);

    let (status, envelope) = server.post("/v1/casts", json!({"spell": "stuck", "intent": "go"})).await;
    assert_eq!(status, 202, "{envelope}");
    assert_envelope(&envelope, codes::CREATED.any());
    assert_eq!(envelope["data"]["state"], "running");
    let run = envelope["data"]["run_id"].as_str().unwrap().to_owned();
    assert!(envelope["data"]["entity_id"].is_string());
    let (status, envelope) = server.post(&format!("/v1/runs/{run}/cancel"), json!({})).await;
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::CHANGED.any());
    let value = server.until(&run, "truncated").await;
    assert_eq!(value["outcome"]["reason"], "cancelled", "{value}");
    refused(server.post(&format!("/v1/runs/{run}/cancel"), json!({})).await, 409, codes::WRONG_STATE.any());
}

#[tokio::test]
async fn a_run_is_listed_and_shown_with_its_turns_which_can_be_rewarded_and_forked() {
    let server = server().await;
    let (first, last) = (server.cast("three").await, server.cast("slow").await);
    let shown = server.until(&last, "terminated").await;
    assert_eq!(shown["answer"], "slow");
    let runs = server.value("/v1/runs").await;
    let ids: Vec<&str> = runs["items"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [last.as_str(), first.as_str()], "the latest first");
    let page = server.value("/v1/runs?most=1").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 1);
    let next = server.value(&format!("/v1/runs?most=1&after={}", page["next"])).await;
    assert_eq!(next["items"][0]["run_id"], first);

    let turns = server.value(&format!("/v1/runs/{last}/turns")).await;
    let turns = turns["items"].as_array().unwrap().clone();
    assert_eq!(turns.len(), 3, "{turns:?}");
    let page = server.value(&format!("/v1/runs/{last}/turns?most=2")).await;
    assert_eq!(page["items"].as_array().unwrap()[..], turns[..2]);
    let rest = server.value(&format!("/v1/runs/{last}/turns?after={}", page["next"])).await;
    assert_eq!(rest["items"].as_array().unwrap()[..], turns[2..]);

    let turn = turns[0]["id"].as_str().unwrap_or_else(|| panic!("{}", turns[0]));
    let rewarded = server.post(&format!("/v1/turns/{turn}/reward"), json!({"reward": 0.5, "note": "well"})).await;
    assert_eq!(rewarded.0, 200, "{rewarded:?}");
    assert_eq!(server.value(&format!("/v1/turns/{turn}/rewards")).await[0]["reward"], 0.5);
    assert_eq!(server.value(&format!("/v1/turns/{turn}")).await["id"], turn);

    let (status, forked) =
        server.post(&format!("/v1/runs/{last}/fork"), json!({"turn": turn, "intent": "again", "wait": true})).await;
    assert_eq!((status, &forked["data"]["answer"]), (200, &json!("slow")), "{forked}");
    let other = server.post(&format!("/v1/runs/{first}/fork"), json!({"turn": turn, "intent": "again"})).await;
    refused(other, 404, codes::NOT_FOUND.any());

    let looms = server.value("/v1/looms").await;
    assert_eq!(looms.as_array().unwrap().len(), 2, "{looms}");
    let loom = shown["loom_id"].as_str().unwrap();
    assert_eq!(server.value(&format!("/v1/looms/{loom}")).await.as_array().unwrap().len(), 1);
    let entities = server.value(&format!("/v1/looms/{loom}/entities")).await;
    assert_eq!(entities["items"].as_array().unwrap().len(), 2, "{entities}");
}

#[tokio::test]
async fn an_entity_is_summoned_and_sent_one_thing_after_the_other() {
    let server = server().await;
    let (status, envelope) = server.post("/v1/entities", json!({"spell": "talks"})).await;
    assert_eq!(status, 201, "{envelope}");
    assert_envelope(&envelope, codes::CREATED.any());
    let entity = envelope["data"]["entity_id"].as_str().unwrap().to_owned();
    for answer in ["first", "second"] {
        let told = json!({"intent": "go", "wait": true});
        let (status, envelope) = server.post(&format!("/v1/entities/{entity}/send"), told).await;
        assert_eq!((status, &envelope["data"]["answer"]), (200, &json!(answer)), "{envelope}");
    }
    assert_eq!(server.value(&format!("/v1/entities/{entity}/casts")).await.as_array().unwrap().len(), 2);
    let (status, _) = server.post(&format!("/v1/entities/{entity}/dispose"), json!({})).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn a_decided_run_goes_on_by_itself() {
    let server = server().await;
    for (decision, reply) in [("approve", codes::GATE_OK.any()), ("refuse", codes::APPROVAL_REFUSED.any())] {
        let run = server.cast("asks").await;
        let waiting = server.until(&run, "waiting").await;
        assert_eq!(waiting["approvals"][0]["gate"], "echo", "{waiting}");
        let told = json!({"decision": decision, "reason": "not today"});
        let (status, envelope) = server.post(&format!("/v1/runs/{run}/approve"), told).await;
        assert_eq!(status, 200, "{envelope}");
        assert_envelope(&envelope, codes::CHANGED.any());
        let ended = server.until(&run, "terminated").await;
        assert_eq!(ended["answer"], "over");
        let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
        assert_eq!(turns["items"][0]["gate_calls"][0]["reply"]["code"], reply.to_string(), "{turns}");
        let again = server.post(&format!("/v1/runs/{run}/approve"), json!({"decision": "approve"})).await;
        refused(again, 409, codes::WRONG_STATE.any());
    }
}

#[tokio::test]
async fn a_run_that_waits_ends_when_it_is_cancelled() {
    let server = server().await;
    let run = server.cast("asks").await;
    server.until(&run, "waiting").await;
    assert_eq!(server.post(&format!("/v1/runs/{run}/cancel"), json!({})).await.0, 200);
    let ended = server.until(&run, "truncated").await;
    assert_eq!(ended["outcome"]["reason"], "cancelled");
}

#[tokio::test]
async fn the_server_says_what_it_has() {
    let server = server().await;
    let (status, envelope) = server.get("/healthz").await;
    assert_eq!(status, 200);
    assert_envelope(&envelope, codes::OK.any());
    let (_, envelope) = server.get("/v1/codes").await;
    assert_eq!(envelope["data"]["codes"].as_array().unwrap().len(), cantrip_reply::AnyCode::all().count());
    let crystals = server.value("/v1/crystals").await;
    assert!(crystals["items"].as_array().unwrap().len() > 5, "{crystals}");
    let spells = server.value("/v1/spells").await;
    assert_eq!(spells["items"][0]["name"], "three");
    let (status, page): (u16, Value) = server.get("/openapi.json").await;
    assert_eq!((status, &page["openapi"]), (200, &json!("3.1.0")));
    assert!(page["paths"]["/v1/runs/{id}/events"]["get"].is_object());
}

#[tokio::test]
async fn a_server_that_stops_lets_its_runs_rest_and_hands_them_back() {
    let server = server().await;
    let run = server.cast("stuck").await;
    let host = server.host.clone();
    server.stop().await;
    assert_eq!(host.local_service().active_runs(), 0);
    let run = run.parse().unwrap();
    assert!(host.runtime().loom().holder(run).await.unwrap().is_none(), "nobody holds it");
    let orphans = host.service(&cantrip_serve::local_owner()).orphans().await.unwrap();
    assert_eq!(orphans.iter().map(|view| view.run_id).collect::<Vec<_>>(), [run], "whoever looks for it goes on");
}
