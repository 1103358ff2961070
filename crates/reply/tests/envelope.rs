//! The envelope, byte for byte.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::sync::Arc;
use std::time::Duration;

use cantrip_canon::{Currency, IdSource, ManualClock, Money, Redactor, Timestamp};
use cantrip_reply::{Call, Envelope, Guard, GuardedReply, Reply, ReplyBuilder, codes};
use serde_json::json;

/// The envelope of a call with this trace and this duration.
async fn envelope(trace_id: &str, took: Duration, tool: impl FnOnce(ReplyBuilder) -> Reply + Send) -> Envelope {
    let clock = Arc::new(ManualClock::starting("2026-02-19T02:00:00.000Z".parse().unwrap()));
    let guard = Guard::new(clock.clone(), Arc::new(IdSource::seeded(1)), Redactor::default());
    let parent = format!("00-{trace_id}-00f067aa0ba902b7-01");
    let GuardedReply { reply, meta } = guard
        .call(Call::surface("test").traceparent(Some(&parent)), |rb| async {
            clock.advance(took);
            tool(rb)
        })
        .await;
    Envelope::of(reply, &meta)
}

fn usd(micros: i64) -> Money {
    Money::new(micros, Currency::USD).unwrap()
}

#[tokio::test]
async fn a_success_is_written_as_on_the_page() {
    let envelope = envelope("0198f3c27d1e7a40b6c2f0d4a1e95b33", Duration::from_micros(812_999), |rb| {
        rb.success(codes::predicted("@acme/support/Triage.v3").data(json!({
            "output": {"team": "billing"},
            "receipt_id": "rcpt_e2cfa48f5c26924ff2c0151a181ca8fc",
            "thread_id": "ent_06cyf9k2vtd3m8x1q7hbz4n5rw",
            "replayed": false,
        })))
    })
    .await;
    assert_eq!(
        envelope.to_json(),
        r#"{"status":"success","reply_type":"S","code":"CT-EXEC-S-001","message":"@acme/support/Triage.v3 answered","data":{"signature":"@acme/support/Triage.v3","output":{"team":"billing"},"receipt_id":"rcpt_e2cfa48f5c26924ff2c0151a181ca8fc","thread_id":"ent_06cyf9k2vtd3m8x1q7hbz4n5rw","replayed":false},"meta":{"trace_id":"0198f3c27d1e7a40b6c2f0d4a1e95b33","duration_ms":812},"error":null}"#
    );
}

#[tokio::test]
async fn an_invalid_is_written_as_on_the_page() {
    let envelope = envelope("0198f3c27d1e7a40b6c2f0d4a1e95b34", Duration::from_millis(2), |rb| {
        rb.invalid(codes::version_conflict("pointer", "@acme/support/Triage.v3", 8, 7))
    })
    .await;
    assert_eq!(
        envelope.to_json(),
        r#"{"status":"invalid","reply_type":"I","code":"CT-GATE-I-005","message":"pointer @acme/support/Triage.v3 is at version 8, not 7","data":{"kind":"pointer","id":"@acme/support/Triage.v3","actual":8,"expected":7},"meta":{"trace_id":"0198f3c27d1e7a40b6c2f0d4a1e95b34","duration_ms":2},"error":{"code":"CT-GATE-I-005","message":"pointer @acme/support/Triage.v3 is at version 8, not 7","retry":"fix_and_retry"}}"#
    );
}

#[tokio::test]
async fn a_denied_is_written_as_on_the_page() {
    let envelope = envelope("0198f3c27d1e7a40b6c2f0d4a1e95b35", Duration::from_millis(1), |rb| {
        rb.denied(
            codes::budget_spent(usd(420_000), usd(250_000), "auth_7")
                .data(json!({"reason_code": "policy_denied.budget_exhausted"})),
        )
    })
    .await;
    assert_eq!(
        envelope.to_json(),
        r#"{"status":"denied","reply_type":"D","code":"EN-GATE-D-007","message":"0.42 USD is more than the 0.25 USD left of auth_7","data":{"needed":{"micros":420000,"currency":"USD"},"remaining":{"micros":250000,"currency":"USD"},"authorization":"auth_7","reason_code":"policy_denied.budget_exhausted"},"meta":{"trace_id":"0198f3c27d1e7a40b6c2f0d4a1e95b35","duration_ms":1},"error":{"code":"EN-GATE-D-007","message":"0.42 USD is more than the 0.25 USD left of auth_7","retry":"ask_scope"}}"#
    );
    assert_eq!(envelope.retry_after(), None);
}

#[tokio::test]
async fn an_error_is_written_as_on_the_page() {
    let envelope = envelope("0198f3c27d1e7a40b6c2f0d4a1e95b36", Duration::from_millis(61_044), |rb| {
        rb.error(codes::rate_limited("anthropic/claude-sonnet-4-5", 6).data(json!({"retry_after_ms": 20_000})))
    })
    .await;
    assert_eq!(
        envelope.to_json(),
        r#"{"status":"error","reply_type":"E","code":"MCP-IO-E-002","message":"anthropic/claude-sonnet-4-5 is rate limited after 6 attempts","data":{"model":"anthropic/claude-sonnet-4-5","attempts":6,"retry_after_ms":20000},"meta":{"trace_id":"0198f3c27d1e7a40b6c2f0d4a1e95b36","duration_ms":61044},"error":{"code":"MCP-IO-E-002","message":"anthropic/claude-sonnet-4-5 is rate limited after 6 attempts","retry":"wait"}}"#
    );
    assert_eq!(envelope.retry_after(), Some(Duration::from_secs(20)));
}

const TRACE: &str = "0198f3c27d1e7a40b6c2f0d4a1e95b37";

#[tokio::test]
async fn what_was_created_is_accepted_while_its_work_goes_on() {
    for (state, status) in [("queued", 202), ("running", 202), ("waiting", 202), ("terminated", 201)] {
        let envelope = envelope(TRACE, Duration::ZERO, |rb| {
            rb.success(codes::created("run", "run_1").data(json!({ "state": state })))
        })
        .await;
        assert_eq!(envelope.http_status(), status, "{state}");
    }
    let envelope =
        envelope(TRACE, Duration::ZERO, |rb| rb.success(codes::read("run").data(json!({"state": "waiting"})))).await;
    assert_eq!(envelope.http_status(), 200, "only what is created can be accepted");
}

#[tokio::test]
async fn a_delay_is_told_in_whole_seconds_and_only_where_waiting_helps() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    // The call ends at 02:00:01.
    let second = Duration::from_secs(1);
    let cases = [
        (json!({"retry_after_ms": 1_001}), Some(2)),
        (json!({"retry_after_ms": 0}), Some(0)),
        (json!({"resets_at": at("2026-02-19T02:00:31.500Z")}), Some(31)),
        (json!({"resets_at": at("2026-02-19T01:00:00.000Z")}), Some(0)),
        (json!({"resets_at": "tomorrow"}), None),
        (json!({"retry_after_ms": -5}), None),
        (json!({}), None),
    ];
    for (data, seconds) in cases {
        let envelope = envelope(TRACE, second, |rb| rb.denied(codes::per_day(usd(2), usd(1)).data(&data))).await;
        assert_eq!(envelope.retry_after(), seconds.map(Duration::from_secs), "{data}");
    }
    let stop = envelope(TRACE, second, |rb| rb.error(codes::crash().data(json!({"retry_after_ms": 5})))).await;
    assert_eq!(stop.retry_after(), None);
}
