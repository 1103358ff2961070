//! Which failures are retried, and when.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::time::Duration;

use cantrip_crystal::{Cause, Charge, Failure, RetryDecision, RetryPolicy};
use cantrip_loom::Usage;
use cantrip_reply::testing::guarded;
use cantrip_reply::{AnyCode, codes};
use proptest::prelude::*;

fn failure(cause: Cause) -> Failure {
    Failure::new("local/small@http://localhost", cause, Charge::Nothing)
}

fn status(status: u16, retry_after: Option<u64>) -> Failure {
    failure(Cause::Status { status, detail: "no".into(), retry_after: retry_after.map(Duration::from_millis) })
}

#[test]
fn by_default_six_attempts_are_made() {
    let retry = RetryPolicy::default();
    let failed = status(503, None);
    let plans: Vec<_> = (1..=6).map(|attempt| retry.decide(&failed, attempt, None, u64::MAX)).collect();
    let seconds = |seconds| RetryDecision::Again(Duration::from_secs(seconds));
    assert_eq!(plans, [seconds(1), seconds(2), seconds(4), seconds(8), seconds(16), RetryDecision::Unavailable]);
}

#[test]
fn only_some_statuses_are_asked_again() {
    let retried = |code| RetryPolicy::default().is_retryable(&status(code, None));
    assert!([429, 500, 502, 503, 504].into_iter().all(retried));
    assert!(retried(529), "overloaded, on whatever wire");
    let never = RetryPolicy { retryable_status_codes: vec![429], ..RetryPolicy::default() };
    assert!(!never.is_retryable(&status(529, None)), "as 503, and only then");
    assert!(![400, 401, 403, 404, 408, 501].into_iter().any(retried));
}

#[test]
fn what_another_attempt_cannot_change_is_final() {
    let plan = |cause| RetryPolicy::default().decide(&failure(cause), 1, None, 0);
    assert_eq!(plan(Cause::Rejected { detail: "script exhausted".into() }), RetryDecision::Final);
    assert_eq!(plan(Cause::Refused { reason: "no".into() }), RetryDecision::Final);
    assert_eq!(plan(Cause::ContextTooLong { tokens: None, window: None }), RetryDecision::Final);
    assert_eq!(plan(Cause::TooLarge { limit: 1, unit: "bytes" }), RetryDecision::Final);
    assert_eq!(plan(Cause::Broken { detail: "cut".into() }), RetryDecision::Again(Duration::ZERO));
}

#[test]
fn a_provider_that_asks_for_too_long_a_wait_is_unavailable() {
    assert_eq!(RetryPolicy::default().decide(&status(429, Some(600_001)), 1, None, 0), RetryDecision::Unavailable);
}

#[test]
fn a_policy_of_its_own_is_read_from_data() {
    let retry: RetryPolicy = serde_json::from_str(r#"{"max_retries": 1, "retryable_status_codes": [418]}"#).unwrap();
    assert_eq!(retry.decide(&status(418, None), 1, None, 0), RetryDecision::Again(Duration::ZERO));
    assert_eq!(retry.decide(&status(418, None), 2, None, 0), RetryDecision::Unavailable);
    assert_eq!(retry.decide(&status(429, None), 1, None, 0), RetryDecision::Final);
    assert!(serde_json::from_str::<RetryPolicy>(r#"{"max_retry": 1}"#).is_err());
}

proptest! {
    #[test]
    fn no_wait_passes_the_cap_or_the_deadline(attempt in 1_u32..200, chance: u64, left in proptest::option::of(0_u64..120_000)) {
        let retry = RetryPolicy { max_retries: u32::MAX, ..RetryPolicy::default() };
        let left = left.map(Duration::from_millis);
        match retry.decide(&status(500, None), attempt, left, chance) {
            RetryDecision::Again(delay) => {
                prop_assert!(delay <= Duration::from_secs(60));
                prop_assert!(left.is_none_or(|left| delay < left));
            }
            RetryDecision::Deadline => prop_assert!(left.is_some()),
            plan @ (RetryDecision::Final | RetryDecision::Unavailable) => prop_assert!(false, "{:?}", plan),
        }
    }

    #[test]
    fn what_the_provider_asks_for_comes_first(told in 0_u64..600_000, attempt in 1_u32..5, chance: u64) {
        let plan = RetryPolicy::default().decide(&status(429, Some(told)), attempt, None, chance);
        prop_assert_eq!(plan, RetryDecision::Again(Duration::from_millis(told)));
    }

    #[test]
    fn more_chance_never_means_a_shorter_wait(attempt in 1_u32..6, one: u64, two: u64) {
        let delay = |chance| match RetryPolicy::default().decide(&status(500, None), attempt, None, chance) {
            RetryDecision::Again(delay) => delay,
            RetryDecision::Final | RetryDecision::Unavailable | RetryDecision::Deadline => Duration::MAX,
        };
        prop_assert!(delay(one.min(two)) <= delay(one.max(two)));
    }
}

#[track_caller]
fn answers(failure: &Failure, code: impl Into<AnyCode>) {
    assert_eq!(failure.code(), code.into());
}

#[test]
fn each_cause_has_its_code() {
    answers(&status(429, None), codes::RATE_LIMITED);
    answers(&status(401, None), codes::AUTH_FAILED);
    answers(&status(403, None), codes::AUTH_FAILED);
    answers(&status(400, None), codes::CRYSTAL_REJECTED);
    answers(&status(404, None), codes::CRYSTAL_REJECTED);
    answers(&status(500, None), codes::UNREACHABLE);
    answers(&failure(Cause::Unreachable { detail: "dns".into() }), codes::UNREACHABLE);
    answers(&failure(Cause::TimedOut { limit: Duration::from_secs(1) }), codes::TIMED_OUT);
    answers(&failure(Cause::Broken { detail: "cut".into() }), codes::STREAM_BROKEN);
    answers(&failure(Cause::TooLarge { limit: 1, unit: "bytes" }), codes::STREAM_BROKEN);
    answers(&failure(Cause::Refused { reason: "no".into() }), codes::CRYSTAL_REFUSED);
    answers(&failure(Cause::ContextTooLong { tokens: None, window: None }), codes::CONTEXT_TOO_LONG);
}

#[test]
fn a_rate_limit_tells_how_long_to_wait() {
    let reply = guarded(|rb| rb.error(status(429, Some(1_500)).to_reply(6))).reply;
    assert_eq!(reply.data()["retry_after_ms"], 1_500);
    assert_eq!(reply.data()["attempts"], 6);
}

#[test]
fn a_long_detail_is_cut_at_a_character() {
    let detail = cantrip_crystal::Detail::new("é".repeat(5_000));
    assert!(detail.as_str().len() <= cantrip_crystal::limits::DETAIL_BYTES_MAX + 3);
}

#[test]
fn reported_usage_is_the_only_usage() {
    let usage = Usage { prompt_tokens: 1, ..Usage::default() };
    assert_eq!(Charge::Reported(usage).usage(), Some(&usage));
    assert_eq!(Charge::Unknown.usage(), None);
}
