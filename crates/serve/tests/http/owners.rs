//! Which callers are admitted, and what each of them sees.

use cantrip_reply::codes;
use cantrip_serve::http::{Options, Tokens};
use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use cantrip_service::cantrip::spend::ReservationRow;
use reqwest::header::{HOST, ORIGIN};
use serde_json::json;

use super::contracts::SIGNATURE;
use super::support::{Server, answered, refused, server};

pub(super) const ANN: &str = "token-of-ann-0123456789";
pub(super) const BOB: &str = "token-of-bob-0123456789";
const OLGA: &str = "token-of-olga-0123456789";
pub(super) const ROOT: &str = "token-of-root-0123456789";

/// Starts a server with tokens, whose owners may spend a dollar each.
pub(super) async fn guarded() -> Server {
    let server = unfunded().await.with_token(ROOT);
    for owner in ["user:ann", "user:bob"] {
        authorized(&server, owner).await;
    }
    server.without_token()
}

/// Issues an authorization for an owner, and returns its id.
async fn authorized(server: &Server, owner: &str) -> String {
    let given = json!({"owner": owner, "total": "1.00 USD", "reason": "for the week"});
    let (status, envelope) = server.post("/v1/spend/authorizations", given).await;
    assert_eq!(status, 201, "{envelope}");
    envelope["data"]["authorization_id"].as_str().unwrap().to_owned()
}

/// Returns the authorization of each reservation that the caller can see.
async fn payers(server: &Server) -> Vec<String> {
    let page = server.value("/v1/spend/reservations").await;
    let booked: Vec<ReservationRow> = serde_json::from_value(page["items"].clone()).unwrap();
    booked.iter().map(|booked| booked.row.terms().authorization.to_string()).collect()
}

pub(super) async fn unfunded() -> Server {
    let tokens = Tokens::parse(&format!("ann = {ANN}\nbob = {BOB}\nlocal = {ROOT}\n")).unwrap();
    let options = Options { tokens: Some(tokens), ..Options::default() };
    Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await
}

#[tokio::test]
async fn without_a_token_or_with_a_wrong_one_nothing_is_told() {
    let server = guarded().await;
    let mut told = Vec::new();
    for token in [None, Some(""), Some("token-of-ann-012345678"), Some("token-of-ann-01234567890"), Some("x")] {
        for path in ["/v1/runs", "/v1/runs/x", "/nowhere", "/v1/casts", "/openapi.json", "/metrics", "/mcp"] {
            let request = server.client.get(server.url(path));
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            let response = request.send().await.unwrap();
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            let status = response.status().as_u16();
            let mut envelope = refused((status, response.json().await.unwrap()), 401, codes::UNAUTHENTICATED.any());
            envelope["meta"] = json!(null);
            told.push(envelope);
        }
    }
    told.dedup();
    assert_eq!(told.len(), 1, "every one of them reads the same: {told:?}");
    assert_eq!(server.get("/healthz").await.0, 200, "that it lives is no secret");
    let basic = server.client.get(server.url("/v1/runs")).basic_auth("ann", Some(ANN));
    refused(answered(basic).await, 401, codes::UNAUTHENTICATED.any());
}

#[tokio::test]
async fn what_belongs_to_another_owner_is_not_there() {
    let server = guarded().await.with_token(ANN);
    let run = server.cast("slow").await;
    let shown = server.until(&run, "terminated").await;
    let turn = server.value(&format!("/v1/runs/{run}/turns")).await["items"][0]["id"].as_str().unwrap().to_owned();
    let (entity, loom) = (shown["entity_id"].as_str().unwrap(), shown["loom_id"].as_str().unwrap());
    let gets = [
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/turns"),
        format!("/v1/runs/{run}/events"),
        format!("/v1/runs/{run}/records"),
        format!("/v1/turns/{turn}"),
        format!("/v1/turns/{turn}/thread"),
        format!("/v1/turns/{turn}/rewards"),
        format!("/v1/entities/{entity}"),
        format!("/v1/entities/{entity}/casts"),
        format!("/v1/looms/{loom}"),
        format!("/v1/looms/{loom}/entities"),
        format!("/v1/looms/{loom}/leaves"),
    ];
    let posts = [
        (format!("/v1/runs/{run}/cancel"), json!({})),
        (format!("/v1/runs/{run}/approve"), json!({"decision": "approve"})),
        (format!("/v1/runs/{run}/fork"), json!({"intent": "mine"})),
        (format!("/v1/runs/{run}/resume"), json!({})),
        (format!("/v1/runs/{run}/continue"), json!({})),
        (format!("/v1/turns/{turn}/reward"), json!({"reward": 1})),
        (format!("/v1/entities/{entity}/send"), json!({"intent": "mine"})),
        (format!("/v1/entities/{entity}/dispose"), json!({})),
    ];
    for path in &gets {
        let response = server.asks(server.client.get(server.url(path))).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}: its owner sees it");
    }
    let server = server.with_token(BOB);
    for path in &gets {
        refused(server.get(path).await, 404, codes::NOT_FOUND.any());
    }
    for (path, body) in posts {
        refused(server.post(&path, body).await, 404, codes::NOT_FOUND.any());
    }
    let absent = "run_06cyf9k2vtd3m8x1q7hbz4n5rw";
    let (_, never) = server.get(&format!("/v1/runs/{absent}")).await;
    let (_, other) = server.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(
        never["message"].as_str().unwrap().replace(absent, "X"),
        other["message"].as_str().unwrap().replace(&run, "X"),
        "it reads like one that never was"
    );
    assert_eq!(server.value("/v1/runs").await["items"], json!([]));
    assert_eq!(server.value("/v1/looms").await, json!([]));
    let own = server.cast("three").await;
    server.until(&own, "terminated").await;
    let runs = server.value("/v1/runs").await;
    assert_eq!((runs["items"].as_array().unwrap().len(), &runs["items"][0]["run_id"]), (1, &json!(own)));
    assert_eq!(runs["items"][0]["owner"], "user:bob");
    let server = server.with_token(ROOT);
    assert_eq!(
        server.value("/v1/runs").await["items"].as_array().unwrap().len(),
        2,
        "whoever runs the server sees all"
    );
}

#[tokio::test]
async fn whoever_asks_pays_and_whom_nobody_authorized_gets_nothing() {
    let server = unfunded().await.with_token(ANN);
    let asked = |spell: &str| json!({"spell": spell, "intent": "go", "wait": true});
    // No crystal is asked, whatever the price.
    for (spell, more) in [("priced", json!(null)), ("three", json!(null)), ("priced", json!("5.00 USD"))] {
        let mut asked = asked(spell);
        if !more.is_null() {
            // A budget limits an authorization, and does not replace one.
            asked["budget"] = more;
        }
        let refusal = refused(server.post("/v1/casts", asked).await, 403, codes::NOT_AUTHORIZED.any());
        assert_eq!(refusal["data"]["reason_code"], "policy_denied.authorization_missing", "{refusal}");
        let run = refusal["data"]["run_id"].as_str().unwrap();
        assert_eq!(server.value(&format!("/v1/runs/{run}/turns")).await["items"], json!([]));
        let receipts = server.value(&format!("/v1/receipts?run={run}")).await;
        let receipt = receipts["items"][0]["receipt_id"].as_str().unwrap();
        let policy = server.value(&format!("/v1/receipts/{receipt}")).await["policy"].clone();
        assert_eq!((&policy["decision"], &policy["authorization_id"]), (&json!("denied"), &json!(null)));
        assert_eq!(policy["reason_code"], "policy_denied.authorization_missing");
    }
    let server = server.with_token(ROOT);
    assert_eq!(payers(&server).await, [""; 0]);
    let (status, envelope) = server.post("/v1/casts", asked("priced")).await;
    assert_eq!((status, &envelope["data"]["answer"]), (200, &json!("paid")), "{envelope}");
    assert_eq!(payers(&server).await, ["auth_local"]);
    let authorization = authorized(&server, "user:ann").await;
    let server = server.with_token(ANN);
    let (status, envelope) = server.post("/v1/casts", asked("priced")).await;
    assert_eq!((status, &envelope["data"]["answer"]), (200, &json!("paid")), "{envelope}");
    assert_eq!(payers(&server).await, [authorization]);
    // Under her own authorization her budget is a cap, and not a grant.
    let mut within = asked("priced");
    within["budget"] = json!("0.000001 USD");
    let refusal = refused(server.post("/v1/casts", within).await, 403, codes::BUDGET_SPENT.any());
    assert_eq!(refusal["data"]["run_id"].as_str().map(|run| run.starts_with("run_")), Some(true));
    assert_eq!(server.value("/v1/spend/authorizations").await["items"].as_array().unwrap().len(), 1);
    // No other owner's authorization pays for Bob.
    let server = server.with_token(BOB);
    refused(server.post("/v1/casts", asked("three")).await, 403, codes::NOT_AUTHORIZED.any());
}

#[tokio::test]
async fn what_a_store_gives_the_person_at_its_machine_pays_for_nobody_beyond_it() {
    let tokens = Tokens::parse(&format!("local = {ROOT}\n")).unwrap();
    let options = Options { tokens: Some(tokens), ..Options::default() };
    let loom = AnyLoom::new(MemoryLoom::new());
    let server = Server::of(Runtime::new(loom.clone()).for_remote_callers(), loom, options, &[]).await;
    let server = server.with_token(ROOT);
    let asked = json!({"spell": "priced", "intent": "go", "wait": true});
    let refusal = refused(server.post("/v1/casts", asked.clone()).await, 403, codes::NOT_AUTHORIZED.any());
    assert_eq!(refusal["data"]["reason_code"], "policy_denied.authorization_missing");
    let authorization = authorized(&server, "local").await;
    let (status, envelope) = server.post("/v1/casts", asked).await;
    assert_eq!((status, &envelope["data"]["answer"]), (200, &json!("paid")), "{envelope}");
    assert_eq!(payers(&server).await, [authorization]);
}

#[tokio::test]
async fn what_all_share_is_changed_by_operators_alone() {
    let text = format!("ann = {ANN}\noperator olga = {OLGA}\nlocal = {ROOT}\n");
    let options = Options { tokens: Some(Tokens::parse(&text).unwrap()), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await.with_token(ANN);
    let pointer = "/v1/pointers/%40acme%2Ftext%2FClassify.v1";
    let publish = json!({"definition": SIGNATURE});
    let keep = json!({"signature": "@acme/text/Classify.v1", "artifact": {"instructions": "Classify with care."}});
    let denied = |answer| {
        let refusal = refused(answer, 403, codes::NOT_AUTHORIZED.any());
        assert!(refusal["data"]["hint"].as_str().unwrap().contains("operator user:ann = TOKEN"), "{refusal}");
    };
    denied(server.post("/v1/signatures", publish.clone()).await);
    // An operator publishes the signature, adds another artifact and serves that.
    let server = server.with_token(OLGA);
    let (status, envelope) = server.post("/v1/signatures", publish).await;
    assert_eq!(status, 201, "{envelope}");
    let base = envelope["data"]["compiled_id"].clone();
    let (status, envelope) = server.post("/v1/artifacts", keep.clone()).await;
    assert_eq!(status, 201, "{envelope}");
    let (status, envelope) = server.post(pointer, json!({"change": "set", "artifact": base})).await;
    assert_eq!((status, &envelope["data"]["pointer"]["updated_by"]), (200, &json!("user:olga")), "{envelope}");
    // Every other owner can read it, and change nothing.
    let server = server.with_token(ANN);
    denied(server.post("/v1/artifacts", keep).await);
    for change in ["clear", "rollback"] {
        denied(server.post(pointer, json!({"change": change})).await);
    }
    denied(server.post(pointer, json!({"change": "set", "artifact": base})).await);
    denied(server.post(pointer, json!({"change": "canary", "artifact": base, "percent": 5})).await);
    let forced = json!({"change": "promote", "artifact": base, "forced": true, "reason": "mine"});
    denied(server.post(pointer, forced).await);
    assert_eq!(server.value(pointer).await["version"], 1);
    assert_eq!(server.value(&format!("{pointer}/audits")).await["items"].as_array().unwrap().len(), 1);
    // An operator sees no more of other owners than they do of each other, and cannot issue money.
    let server = server.with_token(ROOT);
    let run = server.cast("three").await;
    let server = server.with_token(OLGA);
    refused(server.get(&format!("/v1/runs/{run}")).await, 404, codes::NOT_FOUND.any());
    let given = json!({"owner": "user:olga", "total": "1.00 USD", "reason": "mine"});
    refused(server.post("/v1/spend/authorizations", given).await, 403, codes::NOT_AUTHORIZED.any());
    // The local owner, who runs the server, needs no operator mark.
    let server = server.with_token(ROOT);
    let (status, envelope) = server.post(pointer, json!({"change": "set", "artifact": base, "seed": "other"})).await;
    assert_eq!(status, 200, "{envelope}");
}

#[tokio::test]
async fn a_page_in_a_browser_does_not_reach_loopback_by_another_name() {
    let server = server().await;
    let port = server.address.port();
    for (header, value) in [
        (HOST, format!("evil.example:{port}")),
        (HOST, format!("127.0.0.1.evil.example:{port}")),
        (ORIGIN, "http://evil.example".to_owned()),
        (ORIGIN, "null".to_owned()),
        // Another port of this machine is another page.
        (ORIGIN, "http://localhost:1".to_owned()),
        (ORIGIN, "http://127.0.0.1".to_owned()),
    ] {
        let request = server.client.get(server.url("/v1/runs")).header(header.clone(), &value);
        let envelope = refused(answered(request).await, 403, codes::REQUEST_REFUSED.any());
        let message = envelope["message"].as_str().unwrap();
        assert!(message.starts_with("this server does not answer requests") && message.contains(&value), "{message}");
    }
    for (header, value) in [(HOST, format!("localhost:{port}")), (ORIGIN, format!("http://localhost:{port}"))] {
        let response = server.client.get(server.url("/v1/runs")).header(header, value).send().await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.headers().keys().all(|name| !name.as_str().starts_with("access-control")), "CORS is off");
    }
}
