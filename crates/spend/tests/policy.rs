//! Tests of policy decisions: the published values, the order of the checks, every code, every mode and limit.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeSet;

use cantrip_canon::Timestamp;
use cantrip_spend::{
    ApprovalSnapshot, ApprovalState, AuthorizationMode, Constraints, ExplicitDenial, OpenAttempt, OpenState,
    PolicyInput, REASONS, RetryClass, Ruling, RunCap, Terms, TermsFault, evaluate, replay,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// The terms of the published values.
fn terms() -> Terms {
    serde_json::from_value(json!({
        "owner": "user:42", "scope": {"run_id": null, "thread_id": null, "autopilot_id": null},
        "mode": "delegated_budget", "currency": "USD", "max_total": 1_000_000, "max_per_call": 200_000,
        "max_per_day": 500_000, "threshold": null, "constraints": {}, "issued_at": "2026-02-19T00:00:00.000Z",
        "expires_at": null, "revoked_at": null,
    }))
    .unwrap()
}

/// The input of the published values, as it is printed.
fn published() -> Value {
    json!({
        "v": 1, "policy_id": "ds.predict.v1", "phase": "spend", "at": "2026-02-19T02:00:00.000Z",
        "subject": {"kind": "model_call", "signature_id": "@cantrip/text/Classify.v1", "gate": null,
            "provider": "anthropic", "model": "anthropic/claude-sonnet-4-5", "args_hash": null, "labels": [],
            "approval_ward": false},
        "principal": {"owner": "user:42", "run_id": "run_1", "root_run_id": "run_1", "thread_id": "ent_1",
            "autopilot_id": null},
        "authorization": {"authorization_id": "auth_1", "revision": 1,
            "terms_hash": "sha256:92824e1413c68f7eecea6bff736a4984ee58349754fd88ecc177973e8a1f71ee"},
        "usage": {"spent": 100_000, "reserved": 20_000, "day": "2026-02-19", "day_spent": 100_000,
            "day_reserved": 20_000, "run_cap": null, "open_attempt": null},
        "request": {"amount": 18_000, "currency": "USD", "priced": true}, "approval": null,
        "guards": {"manifest_validation": null, "loop_detected": null, "ssrf_block": null, "recipient": null,
            "explicit": null},
        "trifecta": {"ward": false, "touched": []},
    })
}

fn input() -> PolicyInput {
    serde_json::from_value(published()).unwrap()
}

fn code(input: &PolicyInput, terms: &Terms) -> String {
    evaluate(input, Some(terms)).reason_code.to_string()
}

#[test]
fn terms_and_decisions_hash_as_published() {
    assert_eq!(terms().hash().to_string(), "sha256:92824e1413c68f7eecea6bff736a4984ee58349754fd88ecc177973e8a1f71ee");
    assert_eq!(serde_json::to_value(input()).unwrap(), published(), "an input is written as it is printed");
    let allowed = evaluate(&input(), Some(&terms()));
    assert_eq!((allowed.decision, allowed.reason_code.as_str()), (Ruling::Allowed, "policy_allowed.default"));
    assert_eq!(
        allowed.evaluation_hash.to_string(),
        "sha256:93d549ff19fc069794f46fd9eada4230b45ca92801646617a7be6a0393fac5fd"
    );
    let mut spent = input();
    (spent.usage.spent, spent.usage.day_spent, spent.usage.day_reserved) = (970_000, 0, 0);
    let denied = evaluate(&spent, Some(&terms()));
    assert_eq!((denied.decision, denied.reason_code.as_str()), (Ruling::Denied, "policy_denied.budget_exhausted"));
    assert_eq!(
        denied.evaluation_hash.to_string(),
        "sha256:89847ae730f51ea5308dd3ef5c60c2954b556db7176ddf8989c151003710deca"
    );
}

fn strings(entries: &[&str]) -> Option<Vec<String>> {
    Some(entries.iter().map(|entry| (*entry).to_owned()).collect())
}

/// Changes the input so that one check applies.
type Fault = fn(&mut PolicyInput, &mut Terms);

/// The checks in their order, each with its code. Checks 6 and 23 are tested separately: without terms none of the
/// later ones can run, and the last one has several forms.
fn checks() -> Vec<(&'static str, Fault)> {
    vec![
        ("manifest_validation.invalid_schema", |input, _| input.guards.manifest_validation = Some("odd".into())),
        ("loop_detected.no_progress", |input, _| input.guards.loop_detected = Some("odd".into())),
        ("ssrf_block.metadata_endpoint", |input, _| {
            input.guards.ssrf_block = Some("ssrf_block.metadata_endpoint".into());
        }),
        ("policy_denied.explicit_deny", |input, _| {
            input.guards.explicit = Some(ExplicitDenial { reason_code: "policy_allowed.default".into() });
        }),
        ("policy_denied.trifecta", |input, _| {
            input.trifecta.ward = true;
            input.trifecta.touched = vec!["private_data".into(), "untrusted_content".into()];
            input.subject.labels = vec!["external_comm".into()];
        }),
        ("policy_denied.invalid_authorization_mode", |_, terms| {
            terms.mode = AuthorizationMode::Unknown("generous".into())
        }),
        ("policy_denied.scope_mismatch", |input, _| input.principal.owner = "user:7".parse().unwrap()),
        ("policy_denied.authorization_revoked", |input, terms| terms.revoked_at = Some(input.at)),
        ("policy_denied.authorization_expired", |input, terms| terms.expires_at = Some(input.at)),
        ("policy_denied.explicit_deny", |_, terms| {
            if terms.mode == AuthorizationMode::DelegatedBudget {
                terms.mode = AuthorizationMode::Deny;
            }
        }),
        ("policy_denied.tool_not_allowed", |input, terms| {
            input.subject.gate = Some("pay".into());
            terms.constraints.gates_deny = strings(&["pa*"]);
        }),
        ("policy_denied.provider_not_allowed", |_, terms| terms.constraints.providers_allow = strings(&["openai"])),
        ("policy_denied.model_not_allowed", |_, terms| terms.constraints.models_allow = strings(&[])),
        ("policy_denied.suppressed_recipient", |input, _| {
            input.guards.recipient = Some("policy_denied.suppressed_recipient".into());
        }),
        ("policy_denied.currency_mismatch", |input, _| input.request.currency = Some("SAT".parse().unwrap())),
        ("policy_denied.unknown_price", |input, _| input.request.priced = false),
        ("policy_denied.per_call_limit", |input, _| input.request.amount = 200_001),
        ("policy_denied.reconcile_required", |input, _| {
            input.usage.open_attempt = Some(OpenAttempt {
                attempt: 1,
                state: OpenState::ReconcileRequired,
                retry_class: RetryClass::DedupeReconcileRequired,
            });
        }),
        ("policy_denied.run_limit", |input, _| {
            input.usage.run_cap = Some(RunCap { scope_id: "ent_1".into(), limit: 10, spent: 0, reserved: 0 });
        }),
        ("policy_denied.per_day_limit", |input, _| input.usage.day_spent = 500_000),
        ("policy_denied.budget_exhausted", |input, _| input.usage.spent = 1_000_000),
    ]
}

#[test]
fn the_first_check_that_holds_gives_the_reason_whatever_fails_behind_it() {
    let checks = checks();
    for (place, (expected, _)) in checks.iter().enumerate() {
        let (mut input, mut terms) = (input(), terms());
        for (_, fault) in &checks[place..] {
            fault(&mut input, &mut terms);
        }
        input.subject.approval_ward = !expected.ends_with("trifecta") && place > 4;
        assert_eq!(code(&input, &terms), *expected, "check {place}");
    }
    // Without an authorization no check after the fifth can run, and the first five still do.
    for (place, (expected, fault)) in checks.iter().enumerate() {
        let (mut input, mut terms) = (input(), terms());
        input.authorization = None;
        fault(&mut input, &mut terms);
        let found = evaluate(&input, None).reason_code.to_string();
        assert_eq!(found, if place < 5 { expected } else { "policy_denied.authorization_missing" });
    }
}

fn approval(input: &PolicyInput, state: ApprovalState, granted: Option<i64>) -> ApprovalSnapshot {
    ApprovalSnapshot {
        approval_id: "apr_1".into(),
        state,
        subject_hash: input.subject.hash(),
        granted,
        spent: 0,
        reserved: 0,
        expires_at: "2026-02-20T02:00:00.000Z".parse().unwrap(),
    }
}

#[test]
fn an_approval_covers_its_subject_up_to_what_was_granted_and_is_asked_for_last() {
    let interactive = Terms { mode: AuthorizationMode::Interactive, ..terms() };
    let asked = |change: &dyn Fn(&mut PolicyInput)| {
        let mut input = input();
        change(&mut input);
        code(&input, &interactive)
    };
    let with =
        |state, granted| asked(&move |input: &mut PolicyInput| input.approval = Some(approval(input, state, granted)));
    assert_eq!(asked(&|_| {}), "approval_required.interactive");
    assert_eq!(with(ApprovalState::Pending, None), "approval_required.interactive");
    assert_eq!(with(ApprovalState::Cancelled, None), "approval_required.interactive");
    assert_eq!(with(ApprovalState::Refused, None), "policy_denied.approval_refused");
    assert_eq!(with(ApprovalState::Expired, None), "policy_denied.approval_expired");
    assert_eq!(with(ApprovalState::Approved, Some(18_000)), "policy_allowed.default");
    assert_eq!(with(ApprovalState::Approved, Some(17_999)), "approval_required.interactive");
    let late = asked(&|input| {
        input.approval =
            Some(ApprovalSnapshot { expires_at: input.at, ..approval(input, ApprovalState::Pending, None) });
    });
    assert_eq!(late, "policy_denied.approval_expired");
    let another = asked(&|input| {
        input.approval = Some(approval(input, ApprovalState::Approved, Some(18_000)));
        input.subject.model = Some("anthropic/claude-opus".into());
    });
    assert_eq!(another, "approval_required.interactive");
    let used = asked(&|input| {
        let given = approval(input, ApprovalState::Approved, Some(20_000));
        input.approval = Some(ApprovalSnapshot { spent: 1_000, reserved: 1_001, ..given });
    });
    assert_eq!(used, "approval_required.interactive");
    // The limits are checked before a person is asked.
    let dear = asked(&|input| input.request.amount = 200_001);
    assert_eq!(dear, "policy_denied.per_call_limit");
}

#[test]
fn a_mode_says_what_a_free_a_priced_and_a_dear_call_come_to() {
    let threshold = |terms: Terms| Terms { threshold: Some(50_000), ..terms };
    let asked = |mode: AuthorizationMode, amount: i64| {
        let (mut input, mut terms) = (input(), Terms { mode, ..terms() });
        input.request.amount = amount;
        if terms.mode == AuthorizationMode::DelegatedBudgetWithThreshold {
            terms = threshold(terms);
        }
        if terms.mode == AuthorizationMode::System {
            terms.owner = "local".parse().unwrap();
            input.principal.owner = "local".parse().unwrap();
        }
        code(&input, &terms)
    };
    let (allowed, ask) = ("policy_allowed.default", "approval_required.interactive");
    let table = [
        (AuthorizationMode::Deny, ["policy_denied.explicit_deny"; 3]),
        (AuthorizationMode::Interactive, [allowed, ask, ask]),
        (AuthorizationMode::DelegatedBudget, [allowed; 3]),
        (AuthorizationMode::DelegatedBudgetWithThreshold, [allowed, allowed, "approval_required.over_threshold"]),
        (AuthorizationMode::System, [allowed; 3]),
    ];
    for (mode, expected) in table {
        let found = [0, 50_000, 50_001].map(|amount| asked(mode.clone(), amount));
        assert_eq!(found, expected, "{mode:?}");
    }
}

#[test]
fn a_limit_that_is_reached_allows_and_one_micro_more_denies() {
    let denied_at = |change: fn(&mut PolicyInput, i64)| {
        let asked = |more: i64| {
            let mut input = input();
            change(&mut input, more);
            code(&input, &terms())
        };
        assert_eq!(asked(0), "policy_allowed.default");
        asked(1)
    };
    assert_eq!(denied_at(|input, more| input.request.amount = 200_000 + more), "policy_denied.per_call_limit");
    assert_eq!(
        denied_at(|input, more| {
            (input.usage.day_spent, input.usage.day_reserved) = (400_000, 82_000 + more);
        }),
        "policy_denied.per_day_limit"
    );
    assert_eq!(
        denied_at(|input, more| (input.usage.spent, input.usage.reserved) = (900_000, 82_000 + more)),
        "policy_denied.budget_exhausted"
    );
    assert_eq!(
        denied_at(|input, more| {
            let cap = RunCap { scope_id: "ent_1".into(), limit: 30_000, spent: 2_000, reserved: 10_000 + more };
            input.usage.run_cap = Some(cap);
        }),
        "policy_denied.run_limit"
    );
}

#[test]
fn an_unknown_price_is_denied_where_a_limit_holds_and_asked_about_where_a_person_is() {
    let unpriced = || {
        let mut input = input();
        (input.request.amount, input.request.currency, input.request.priced) = (0, None, false);
        input
    };
    let free = |mode| Terms { mode, max_total: None, max_per_call: None, max_per_day: None, ..terms() };
    assert_eq!(code(&unpriced(), &terms()), "policy_denied.unknown_price");
    assert_eq!(code(&unpriced(), &free(AuthorizationMode::System)), "policy_allowed.default");
    assert_eq!(code(&unpriced(), &free(AuthorizationMode::Interactive)), "approval_required.interactive");
    let mut capped = unpriced();
    capped.usage.run_cap = Some(RunCap { scope_id: "ent_1".into(), limit: 1, spent: 0, reserved: 0 });
    assert_eq!(code(&capped, &free(AuthorizationMode::System)), "policy_denied.unknown_price");
}

#[test]
fn the_call_that_completes_the_trifecta_is_denied_or_asked_about() {
    let mut input = input();
    input.trifecta.ward = true;
    input.trifecta.touched = vec!["private_data".into(), "untrusted_content".into()];
    assert_eq!(code(&input, &terms()), "policy_allowed.default", "a call that touches nothing completes nothing");
    input.subject.labels = vec!["external_comm".into()];
    assert_eq!(code(&input, &terms()), "policy_denied.trifecta");
    input.subject.approval_ward = true;
    assert_eq!(code(&input, &terms()), "approval_required.ward");
    input.approval = Some(approval(&input, ApprovalState::Approved, Some(18_000)));
    assert_eq!(code(&input, &terms()), "policy_allowed.default");
    input.trifecta.ward = false;
    input.subject.approval_ward = false;
    assert_eq!(code(&input, &terms()), "policy_allowed.default");
}

#[test]
fn every_code_but_those_of_gates_is_reached() {
    let mut reached = BTreeSet::new();
    for (_, fault) in checks() {
        let (mut input, mut terms) = (input(), terms());
        fault(&mut input, &mut terms);
        reached.insert(code(&input, &terms));
    }
    for reason in REASONS {
        let (mut asked, family) = (input(), reason.code.split('.').next().unwrap());
        match family {
            "ssrf_block" => asked.guards.ssrf_block = Some(reason.code.into()),
            _ => asked.guards.explicit = Some(ExplicitDenial { reason_code: reason.code.into() }),
        }
        let found = code(&asked, &terms());
        let expected = if reason.ruling == Some(Ruling::Denied) { reason.code } else { "policy_denied.explicit_deny" };
        assert_eq!(found, expected);
        reached.insert(found);
    }
    let mut consent = input();
    consent.guards.recipient = Some("nobody asked".into());
    reached.insert(code(&consent, &terms()));
    reached.insert(evaluate(&PolicyInput { authorization: None, ..input() }, None).reason_code.to_string());
    reached.insert(code(&input(), &terms()));
    reached.insert(code(&input(), &Terms { mode: AuthorizationMode::Interactive, ..terms() }));
    let over = Terms { mode: AuthorizationMode::DelegatedBudgetWithThreshold, threshold: Some(1), ..terms() };
    reached.insert(code(&input(), &over));
    let mut warded = input();
    warded.subject.approval_ward = true;
    reached.insert(code(&warded, &terms()));
    let expected: BTreeSet<String> =
        REASONS.iter().filter(|reason| reason.ruling.is_some()).map(|reason| reason.code.to_owned()).collect();
    assert_eq!(reached, expected);
}

#[test]
fn an_authorization_of_another_owner_run_conversation_or_agent_does_not_fit() {
    let scoped = |change: &dyn Fn(&mut Terms)| {
        let mut terms = terms();
        change(&mut terms);
        code(&input(), &terms)
    };
    assert_eq!(scoped(&|terms| terms.scope.run_id = Some("run_1".into())), "policy_allowed.default");
    assert_eq!(scoped(&|terms| terms.scope.run_id = Some("run_2".into())), "policy_denied.scope_mismatch");
    assert_eq!(scoped(&|terms| terms.scope.thread_id = Some("ent_2".into())), "policy_denied.scope_mismatch");
    assert_eq!(scoped(&|terms| terms.scope.autopilot_id = Some("analyst".into())), "policy_denied.scope_mismatch");
    assert_eq!(scoped(&|terms| terms.owner = "guest:42".parse().unwrap()), "policy_denied.scope_mismatch");
    // The run of a child uses the authorization of its root.
    let mut child = input();
    child.principal.run_id = Some("run_9".into());
    let mut of_root = terms();
    of_root.scope.run_id = Some("run_1".into());
    assert_eq!(code(&child, &of_root), "policy_allowed.default");
}

#[test]
fn constraints_are_exact_or_end_in_a_star_and_an_empty_list_allows_nothing() {
    let allow = |entries: &[&str]| Constraints { gates_allow: strings(entries), ..Constraints::default() };
    assert!(Constraints::default().allows_gate("pay"));
    assert!(!allow(&[]).allows_gate("pay"));
    assert!(allow(&["pay"]).allows_gate("pay") && !allow(&["pay"]).allows_gate("payment"));
    assert!(allow(&["pay*"]).allows_gate("payment") && allow(&["*"]).allows_gate("pay"));
    let both = Constraints { gates_deny: strings(&["pay"]), ..allow(&["*"]) };
    assert!(!both.allows_gate("pay") && both.allows_gate("read"));
    assert!(allow(&[]).allows_gate("done") && allow(&["pay"]).allows_gate("done"), "an answer crosses nothing");
    let unknown = serde_json::from_value::<Constraints>(json!({"gates_allowed": []}));
    assert!(unknown.is_err(), "an unknown key is refused when it is written, never ignored");
}

#[test]
fn terms_that_cannot_be_meant_are_refused_when_they_are_written() {
    assert_eq!(terms().check(), Ok(()));
    assert_eq!(Terms::local().check(), Ok(()));
    let faulty = |change: &dyn Fn(&mut Terms)| {
        let mut terms = terms();
        change(&mut terms);
        terms.check().unwrap_err()
    };
    assert!(matches!(faulty(&|terms| terms.max_total = None), TermsFault::Missing { field: "max_total", .. }));
    assert!(matches!(faulty(&|terms| terms.threshold = Some(1)), TermsFault::Threshold { .. }));
    assert!(matches!(
        faulty(&|terms| terms.mode = AuthorizationMode::DelegatedBudgetWithThreshold),
        TermsFault::Missing { field: "threshold", .. }
    ));
    assert!(matches!(faulty(&|terms| terms.mode = AuthorizationMode::System), TermsFault::Unlimited { .. }));
    assert!(matches!(faulty(&|terms| terms.mode = AuthorizationMode::Unknown("odd".into())), TermsFault::Mode(_)));
    assert!(matches!(faulty(&|terms| terms.max_per_day = Some(-1)), TermsFault::Limit { field: "max_per_day", .. }));
    assert!(matches!(faulty(&|terms| terms.expires_at = Some(Timestamp::EPOCH)), TermsFault::Expired { .. }));
    let moved = Terms { owner: "user:7".parse().unwrap(), ..terms() };
    assert_eq!(moved.check_revision(&terms()), Err(TermsFault::Fixed { field: "owner" }));
    for owner in ["user:", "someone", "user:a b", ""] {
        assert!(owner.parse::<cantrip_spend::Payer>().is_err(), "{owner:?}");
    }
}

fn counter() -> impl Strategy<Value = i64> {
    prop_oneof![0_i64..5, 0_i64..2_000_000, Just((1 << 53) - 1)]
}

prop_compose! {
    /// Inputs and terms in which anything may be wrong.
    fn anything()(
        faults in prop::collection::vec(0_usize..21, 0..4),
        counters in prop::array::uniform6(counter()),
        priced in any::<bool>(),
        ward in any::<bool>(),
        mode in prop::sample::select(vec!["deny", "interactive", "delegated_budget", "system", "other"]),
        given in prop::option::of(prop::sample::select(vec![
            ApprovalState::Pending, ApprovalState::Approved, ApprovalState::Refused, ApprovalState::Expired,
        ])),
    ) -> (PolicyInput, Terms) {
        let (mut input, mut terms) = (input(), terms());
        terms.mode = AuthorizationMode::from(mode.to_owned());
        let [spent, reserved, day_spent, day_reserved, amount, granted] = counters;
        (input.usage.spent, input.usage.reserved) = (spent, reserved);
        (input.usage.day_spent, input.usage.day_reserved) = (day_spent, day_reserved);
        (input.request.amount, input.request.priced, input.subject.approval_ward) = (amount, priced, ward);
        let checks = checks();
        for fault in faults {
            checks[fault].1(&mut input, &mut terms);
        }
        input.approval = given.map(|state| approval(&input, state, Some(granted)));
        input.authorization.as_mut().unwrap().terms_hash = terms.hash();
        (input, terms)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_stored_input_comes_to_the_same_decision_and_hash_again((input, terms) in anything()) {
        let decided = evaluate(&input, Some(&terms));
        let text = cantrip_canon::json::canonical(&serde_json::to_value(&input).unwrap()).unwrap();
        let read: PolicyInput = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(replay(&read, Some(&terms), &decided), Ok(()));
        let known = REASONS.iter().find(|reason| reason.code == decided.reason_code.as_str()).unwrap();
        prop_assert_eq!(known.ruling, Some(decided.decision));
        let mut other = read;
        other.usage.spent ^= 1;
        prop_assert_ne!(evaluate(&other, Some(&terms)).evaluation_hash, decided.evaluation_hash);
    }
}
