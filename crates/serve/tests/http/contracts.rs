//! Signatures, artifacts, pointers, money and metrics.

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_service::cantrip::MachineClock;
use cantrip_service::cantrip::canon::Clock;
use serde_json::json;

use super::support::{refused, server};

pub(super) const SIGNATURE: &str = r#"
namespace = "@acme/text"
name = "Classify"
version = 1
description = "Says what a text is."
program_template = "direct.v1"
instructions = "Classify."
prompt_template = { system = "{{ instructions }}", user = "{{ inputs.text }}" }
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = { type = "object", required = ["label"], properties = { label = { type = "string" } } }
"#;

#[tokio::test]
async fn a_signature_is_published_served_and_pointed_at() {
    let server = server().await;
    let (status, envelope) = server.post("/v1/signatures", json!({"definition": SIGNATURE})).await;
    assert_eq!(status, 201, "{envelope}");
    let base = envelope["data"]["compiled_id"].as_str().unwrap().to_owned();
    let id = "%40acme%2Ftext%2FClassify.v1";
    assert_eq!(server.value(&format!("/v1/signatures/{id}")).await["base"], base);
    // Listed together with the built-in ones.
    let listed = |page: serde_json::Value, key: &str, wanted: &str| {
        page["items"].as_array().unwrap().iter().filter(|item| item[key] == wanted).count()
    };
    assert_eq!(listed(server.value("/v1/signatures").await, "signature_id", "@acme/text/Classify.v1"), 1);
    assert_eq!(listed(server.value("/v1/artifacts").await, "compiled_id", &base), 1);
    assert_eq!(server.value(&format!("/v1/artifacts/{base}")).await["compiled_id"], base);
    refused(server.get("/v1/signatures/%40acme%2Ftext%2FNone.v1").await, 404, codes::CONTRACT_UNKNOWN.any());
    refused(server.post("/v1/signatures", json!({"definition": "id = 1"})).await, 400, codes::CONFIG_INVALID.any());

    let set = json!({"change": "set", "artifact": base, "reason": "the first"});
    let (status, envelope) = server.post(&format!("/v1/pointers/{id}"), set).await;
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::CHANGED.any());
    assert_eq!(server.value(&format!("/v1/pointers/{id}")).await["version"], 1);
    assert_eq!(server.value("/v1/pointers").await.as_array().unwrap().len(), 1);
    assert_eq!(server.value(&format!("/v1/pointers/{id}/audits")).await["items"].as_array().unwrap().len(), 1);
    let stale = json!({"change": "clear", "expected_version": 7});
    refused(server.post(&format!("/v1/pointers/{id}"), stale).await, 409, codes::VERSION_CONFLICT.any());
    refused(server.post(&format!("/v1/pointers/{id}"), json!({"change": "set"})).await, 422, codes::SCHEMA.any());
    let asked = json!({"signature": "@acme/text/Classify.v1", "input": {"text": "x"}});
    refused(server.post("/v1/predict", asked).await, 400, codes::CONFIG_INVALID.any());
}

#[tokio::test]
async fn an_artifact_is_promoted_by_the_report_that_speaks_for_it() {
    let server = server().await;
    let (_, envelope) = server.post("/v1/signatures", json!({"definition": SIGNATURE})).await;
    let base = envelope["data"]["compiled_id"].clone();
    let kept = json!({"signature": "@acme/text/Classify.v1", "artifact": {"instructions": "Classify with care."}});
    let (status, envelope) = server.post("/v1/artifacts", kept).await;
    assert_eq!(status, 201, "{envelope}");
    let better = envelope["data"]["compiled_id"].clone();
    let at = "/v1/pointers/%40acme%2Ftext%2FClassify.v1";
    server.post(at, json!({"change": "set", "artifact": base})).await;
    let evaluation = json!({
        "v": 1, "kind": "evaluation", "eval_id": "eval_1", "signature_id": "@acme/text/Classify.v1",
        "status": "succeeded", "split": "test", "compiled_id": better, "baseline_id": base, "scored": 30,
        "delta_low_micro": -20_000, "cost_per_call_micro": 150, "baseline_cost_per_call_micro": 100,
        "created_at": MachineClock::new().now().wall,
    });
    let promote = json!({"change": "promote", "artifact": better, "evaluation": evaluation});
    let refused_for = refused(server.post(at, promote.clone()).await, 409, codes::PROMOTE_GATE.any());
    assert_eq!(refused_for["data"]["conditions"], json!(["not_better", "too_dear"]));
    let mut torn = promote.clone();
    torn["evaluation"]["scored"] = json!("many");
    let torn = refused(server.post(at, torn).await, 422, codes::SCHEMA.any());
    assert_eq!(torn["data"]["path"], "/evaluation/scored");
    let mut elsewhere = promote.clone();
    elsewhere["change"] = json!("set");
    refused(server.post(at, elsewhere).await, 422, codes::SCHEMA.any());
    let mut lower = promote;
    (lower["not_worse"], lower["cost_percent"]) = (json!(true), json!(150));
    let (status, envelope) = server.post(at, lower).await;
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::CHANGED.any());
    let audits = server.value(&format!("{at}/audits")).await;
    let audit = &audits["items"][1];
    assert_eq!((&audit["eval_id"], &audit["metadata"]["evaluation"]), (&json!("eval_1"), &evaluation));
    let bar = json!({"rule": {"not_worse": {"margin_micro": 20_000}}, "cost_percent_max": 150});
    assert_eq!(audit["metadata"]["bar"], bar);
}

#[tokio::test]
async fn money_is_given_listed_and_taken_back_and_receipts_are_shown() {
    let server = server().await;
    let given = json!({"owner": "ann", "total": "5.00 USD", "reason": "for the week"});
    let (status, envelope) = server.post("/v1/spend/authorizations", given).await;
    assert_eq!(status, 201, "{envelope}");
    let id = envelope["data"]["authorization_id"].as_str().unwrap().to_owned();
    let shown = server.value(&format!("/v1/spend/authorizations/{id}")).await;
    assert_eq!(shown["agreements"][0]["terms"]["owner"], "user:ann", "{shown}");
    let listed = server.value("/v1/spend/authorizations").await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 2, "that of the house and this one");
    let (status, envelope) =
        server.post(&format!("/v1/spend/authorizations/{id}/revoke"), json!({"reason": "over"})).await;
    assert_eq!(status, 200, "{envelope}");
    let bad = json!({"owner": "an n", "reason": "x"});
    refused(server.post("/v1/spend/authorizations", bad).await, 422, codes::SCHEMA.any());
    let (status, envelope) = server.get("/v1/spend/verify").await;
    assert_eq!(status, 200, "{envelope}");
    assert_envelope(&envelope, codes::VERIFIED.any());

    let run = server.cast("three").await;
    server.until(&run, "terminated").await;
    let receipts = server.value(&format!("/v1/receipts?run={run}")).await;
    let receipt = receipts["items"][0]["receipt_id"].as_str().unwrap().to_owned();
    assert_eq!(server.value(&format!("/v1/receipts/{receipt}")).await["run_id"], run);
    server.value(&format!("/v1/spend/reservations?run={run}")).await;
    refused(server.get("/v1/receipts?run=x").await, 404, codes::NOT_FOUND.any());
}

#[tokio::test]
async fn what_happens_is_counted() {
    let server = server().await;
    let run = server.cast("slow").await;
    server.until(&run, "terminated").await;
    server.get("/nowhere").await;
    let running = server.cast("slow").await;
    let feed = server.client.get(server.url(&format!("/v1/runs/{running}/events"))).send().await.unwrap();
    let page = server.client.get(server.url("/metrics")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains("\ncantrip_feeds_open 1\n"), "{page}");
    drop(feed.bytes().await);
    server.until(&running, "terminated").await;
    refused(
        server.post("/v1/casts", json!({"spell": "slow", "intent": " "})).await,
        422,
        codes::CONTRACT_INVALID.any(),
    );
    let page = server.client.get(server.url("/metrics")).send().await.unwrap();
    assert!(page.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let page = page.text().await.unwrap();
    let lines: Vec<&str> = page.lines().collect();
    for line in [
        "cantrip_turns_total 6",
        "cantrip_runs_begun_total 3",
        "cantrip_runs_under_way 0",
        "cantrip_http_requests_total{method=\"POST\",route=\"/v1/casts\",status=\"202\"} 2",
        "cantrip_http_requests_total{method=\"GET\",route=\"none\",status=\"404\"} 1",
        "cantrip_replies_total{layer=\"WA\",area=\"EXEC\",type=\"S\",code=\"WA-EXEC-S-001\"} 6",
        "cantrip_http_request_duration_seconds_count{route=\"/v1/casts\"} 3",
        "cantrip_casts_total{outcome=\"terminated\"} 2",
        "cantrip_casts_total{outcome=\"refused\"} 1",
        "cantrip_gate_calls_total{type=\"S\"} 6",
        "cantrip_crystal_call_duration_seconds_count{type=\"S\"} 6",
        "cantrip_crystal_call_duration_seconds_bucket{type=\"S\",le=\"300\"} 6",
        "cantrip_feeds_open 0",
    ] {
        assert!(lines.contains(&line), "{line} is not in {page}");
    }
    let appends = lines.iter().find_map(|line| line.strip_prefix("cantrip_store_append_duration_seconds_count "));
    assert!(appends.and_then(|count| count.parse::<u64>().ok()) >= Some(6), "one for each turn at least: {page}");
    // Every metric has its type before its first value.
    for line in lines.iter().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        let family = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let typed = |name: &str| lines.iter().any(|line| line.starts_with(&format!("# TYPE {name} ")));
        assert!(typed(name) || typed(family), "{line}");
    }
}
