//! Money in the loop: the worst case is reserved with the attempt, the actual cost is charged with the answer, and no
//! request is sent without a payer.

use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::policy::RedecideOutcome;
use cantrip::{Call, Cantrip, CastOptions, Runtime};
use cantrip_canon::{IdSource, Money, Timestamp};
use cantrip_circle::gate::builtin;
use cantrip_crystal::{Crystal, Price, Rates, Request, Response, RetryPolicy};
use cantrip_loom::{
    Actor, AnyLoom, AppendOutcome, Contracts, Journal, Ledger, Loom, MemoryLoom, PageRequest, ReceiptFilter,
    ReservationFilter, Settlement, Step, StepId, TruncationReason, Usage,
};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_spend::{AuthorizationMode, AuthorizationRef, Authorize, Operation, Scope, Terms};
use serde_json::json;
use support::{
    Acting, Count, Dying, call, counting_again, done, house_of, intent_of, memory, said_before, script, talking,
};

pub(crate) fn money(text: &str) -> Money {
    text.parse().unwrap()
}

/// Returns a price of 1 USD per million input tokens and 10 USD per million output tokens: one output token costs ten
/// micros.
pub(crate) fn listed() -> Price {
    Price::Listed(Rates::new(money("1 USD"), money("10 USD")).unwrap())
}

pub(crate) fn used(prompt: u64, completion: u64) -> Usage {
    Usage { prompt_tokens: prompt, completion_tokens: completion, ..Usage::default() }
}

/// Returns each reservation: its state, the number of its attempt, the charged amount, the reserved amount.
pub(crate) async fn rows(runtime: &Runtime) -> Vec<(&'static str, u32, i64, i64)> {
    let rows = runtime.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
    let told = |row: &cantrip_spend::AnyReservation| {
        (row.state_name(), row.terms().attempt, row.spent_micros(), row.terms().amount.micros())
    };
    rows.iter().map(|booked| told(&booked.row)).collect()
}

pub(crate) async fn adds_up(runtime: &Runtime) {
    let findings = runtime.loom().audit().await.unwrap();
    assert!(findings.is_balanced(), "{findings:?}");
}

/// Grants an authorization to the cantrip of this name, with the terms that `change` sets.
pub(crate) async fn grant(runtime: &Runtime, name: &str, change: impl FnOnce(&mut Terms)) -> AuthorizationRef {
    let at: Timestamp = "2026-02-19T01:00:00.000Z".parse().unwrap();
    let id = AuthorizationRef::Issued(IdSource::seeded(99).next(at));
    let mut terms = Terms {
        mode: AuthorizationMode::DelegatedBudget,
        scope: Scope { autopilot_id: Some(name.to_owned()), ..Scope::default() },
        issued_at: at,
        ..Terms::local()
    };
    change(&mut terms);
    let issue = Authorize { authorization: id, terms, actor: "a person".to_owned(), reason: "a test".to_owned(), at };
    let step = Step::outside_runs(StepId::new("grant").unwrap()).money(Operation::Authorize(Box::new(issue)));
    assert!(matches!(runtime.loom().append(step).await.unwrap(), AppendOutcome::Committed(_)));
    id
}

#[tokio::test(start_paused = true)]
async fn every_request_is_held_before_and_booked_with_its_answer() {
    let runtime = memory();
    let crystal = script([
        call("echo", json!({"text": 1})).with_usage(used(100, 10)),
        Response::error(429, "busy"),
        done("over").with_usage(used(200, 20)),
    ]);
    let cantrip = talking(&crystal).price(listed()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let rows = rows(&runtime).await;
    let states: Vec<_> = rows.iter().map(|(state, attempt, spent, _)| (*state, *attempt, *spent)).collect();
    assert_eq!(states, [("committed", 1, 200), ("released", 1, 0), ("committed", 2, 400)]);
    assert!(rows.iter().all(|(_, _, spent, held)| held >= spent), "what is held is the worst case: {rows:?}");
    let local = runtime.loom().authorization(AuthorizationRef::Local).await.unwrap();
    assert_eq!((local.totals.spent, local.totals.reserved), (600, 0));
    assert_eq!(cast.outcome.unwrap().cost.unwrap().micros(), 600);
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_cast_with_a_budget_has_an_authorization_of_its_own_and_no_other_pays() {
    let runtime = memory();
    let crystal = script([
        call("echo", json!({"text": 1})).with_usage(used(100, 2_000)),
        done("never").with_usage(used(100, 3_000)),
        done("later").with_usage(used(100, 10)),
    ]);
    let cantrip = talking(&crystal).price(listed()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go").budget(money("0.022 USD"))).await;
    assert_eq!(cast.answer(), None, "2,000 tokens are 20,000 micros: what is left pays for no answer");
    assert_code(cast.reply(), codes::BUDGET_SPENT);
    let told = cast.reply().data();
    assert_eq!(told["reason_code"], "policy_denied.budget_exhausted", "{told:?}");
    assert_eq!(told["run_id"], json!(cast.run), "and whose reply it is: {told:?}");
    let all = runtime.loom().authorizations(PageRequest::FIRST).await.unwrap().items;
    let own = all.iter().find(|row| row.id != AuthorizationRef::Local).expect("one of its own");
    let terms = own.terms();
    assert_eq!(terms.scope.run_id, cast.run.map(|run| run.to_string()));
    assert_eq!((&terms.mode, terms.max_total), (&AuthorizationMode::DelegatedBudget, Some(22_000)));
    assert_eq!((own.totals.spent, own.totals.reserved), (20_100, 0));
    let local = runtime.loom().authorization(AuthorizationRef::Local).await.unwrap();
    assert_eq!((local.totals.spent, local.totals.reserved), (0, 0), "the one without limits was not touched");

    let next = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert!(next.answer().is_some(), "another cast is paid for as ever: {:?}", next.reply());
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn answers_get_shorter_as_an_authorization_runs_out() {
    let runtime = memory();
    let caps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&caps);
    let crystal = Acting(move |request: &Request| {
        seen.lock().unwrap().push(request.output_tokens_max);
        let answer = u64::from(request.output_tokens_max).min(2_000);
        call("echo", json!({"text": said_before(request)})).with_usage(used(100, answer))
    });
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go").budget(money("0.05 USD"))).await;
    assert_code(cast.reply(), codes::BUDGET_SPENT);
    let caps = caps.lock().unwrap().clone();
    assert_eq!(caps.len(), 3, "the third is short, and a fourth cannot be paid: {caps:?}");
    assert!(caps.is_sorted_by(|one, next| one > next) && caps[0] < 5_000, "what is left pays for less: {caps:?}");
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_budget_in_a_currency_that_the_crystal_is_not_priced_in_is_refused() {
    let runtime = memory();
    let cantrip = talking(&script([done("never")])).price(listed()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go").budget(money("5 EUR"))).await;
    assert_eq!(cast.answer(), None);
    assert_code(cast.reply(), codes::NOT_AUTHORIZED);
    assert!(cast.reply().message().contains("currency_mismatch"), "{:?}", cast.reply());
    assert_eq!(cast.reply().data()["reason_code"], "policy_denied.currency_mismatch");
    assert_eq!(rows(&runtime).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_is_free_holds_nothing() {
    let runtime = memory();
    let cantrip = talking(&script([done("over").with_usage(used(100, 10))])).build().unwrap();
    assert!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer().is_some());
    assert_eq!(rows(&runtime).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_cost_shortens_answers_and_then_ends_the_cast() {
    let runtime = memory();
    let caps = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&caps);
    let crystal = Acting(move |request: &Request| {
        seen.lock().unwrap().push(request.output_tokens_max);
        let answer = u64::from(request.output_tokens_max).min(2_000);
        call("echo", json!({"text": said_before(request)})).with_usage(used(100, answer))
    });
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).ward("max_cost", "0.05 USD").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::MaxCost), "{:?}", cast.reply());
    assert_code(cast.reply(), codes::WARD_REACHED);
    let leaf = cast.outcome.as_ref().unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    let caps = caps.lock().unwrap().clone();
    assert_eq!(caps.len(), 3, "the third is short, and a fourth cannot be paid: {caps:?}");
    assert!(caps.is_sorted_by(|one, next| one > next) && caps[0] < 5_000, "what is left pays for less: {caps:?}");
    let spent: i64 = rows(&runtime).await.iter().map(|(_, _, spent, _)| spent).sum();
    assert!(spent <= 50_000, "{spent}");
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn an_authorization_that_refuses_stops_the_cast_before_anything_is_asked() {
    for (change, code) in [
        (Box::new(|terms: &mut Terms| terms.max_total = Some(40)) as Box<dyn FnOnce(&mut Terms)>, codes::BUDGET_SPENT),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.expires_at = Some(terms.issued_at);
            }),
            codes::EXPIRED,
        ),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.revoked_at = Some(terms.issued_at);
            }),
            codes::REVOKED,
        ),
        (Box::new(|terms: &mut Terms| terms.mode = AuthorizationMode::Deny), codes::NOT_AUTHORIZED),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.max_per_day = Some(40);
            }),
            codes::PER_DAY,
        ),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.currency = money("1 EUR").currency();
            }),
            codes::NOT_AUTHORIZED,
        ),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.constraints.models_allow = Some(vec!["anthropic/*".to_owned()]);
            }),
            codes::NOT_AUTHORIZED,
        ),
        (
            Box::new(|terms: &mut Terms| {
                terms.max_total = Some(1_000_000);
                terms.constraints.providers_allow = Some(Vec::new());
            }),
            codes::NOT_AUTHORIZED,
        ),
    ] {
        let runtime = memory();
        let crystal = script([done("never said").with_usage(used(100, 10))]);
        let cantrip = talking(&crystal).name("spender").price(listed()).build().unwrap();
        let id = grant(&runtime, "spender", change).await;
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        // An exceeded amount is a limit of money; any other refusal is a denial of the policy.
        let amount = [codes::BUDGET_SPENT.any(), codes::PER_DAY.any()].contains(&code.any());
        let reason = if amount { TruncationReason::MaxCost } else { TruncationReason::PolicyDenied };
        assert_eq!(cast.reason(), Some(reason), "{:?}", cast.reply());
        assert_code(cast.reply(), code);
        assert_eq!(crystal.request_count(), 0, "nothing left");
        assert_eq!(rows(&runtime).await, []);
        let authorization = runtime.loom().authorization(id).await.unwrap();
        assert_eq!((authorization.totals.spent, authorization.totals.reserved), (0, 0));
        adds_up(&runtime).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_crystal_without_a_price_is_not_asked_under_a_limit_and_is_without_one() {
    for limited in [true, false] {
        let runtime = memory();
        let crystal = script([done("said").with_usage(used(100, 10))]);
        let cantrip = talking(&crystal).name("spender").price(Price::Unknown).build().unwrap();
        if limited {
            grant(&runtime, "spender", |terms| terms.max_total = Some(1_000_000)).await;
        }
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        if limited {
            assert_code(cast.reply(), codes::PRICE_UNKNOWN);
        }
        assert_eq!((cast.answer().is_some(), crystal.request_count()), (!limited, u64::from(!limited)));
        assert_eq!(rows(&runtime).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_dies_during_a_request_leaves_it_to_be_reconciled_and_the_next_one_is_held_anew() {
    let (memory, requests) = (AnyLoom::new(MemoryLoom::new()), Count::default());
    let seen = requests.clone();
    let crystal = Acting(move |request: &Request| {
        if said_before(request) > 0 {
            return done("over").with_usage(used(100, 10));
        }
        seen.up();
        call("echo", json!({"text": 1})).with_usage(used(100, 10))
    });
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
    let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), 2)), 1);
    let died = dying.cast(&cantrip, CastOptions::on("go")).await;
    let heir = house_of(memory, 2);
    let cast = heir.resume(&cantrip, died.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!(requests.get(), 2);
    let states: Vec<_> = rows(&heir).await.iter().map(|(state, attempt, _, _)| (*state, *attempt)).collect();
    assert_eq!(states, [("reconcile_required", 1), ("committed", 2), ("committed", 1)]);
    adds_up(&heir).await;
}

/// Returns a cantrip whose crystal echoes first and then ends, and counts its requests.
fn echoing(requests: &Count) -> Cantrip {
    let seen = requests.clone();
    let crystal = Acting(move |request: &Request| {
        seen.up();
        if said_before(request) > 0 {
            return done("over").with_usage(used(100, 10));
        }
        call("echo", json!({"text": 1})).with_usage(used(100, 10))
    });
    talking(&script([])).crystal(crystal).price(listed()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn whoever_goes_on_with_a_run_its_owner_pays_for_it() {
    let (memory, requests) = (AnyLoom::new(MemoryLoom::new()), Count::default());
    let (cantrip, ann) = (echoing(&requests), Actor::new("ann").unwrap());
    let hers = grant(&house_of(memory.clone(), 3), "any", |terms| {
        (terms.owner, terms.scope) = ("user:ann".parse().unwrap(), Scope::default());
        terms.max_total = Some(1_000_000);
    })
    .await;
    let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), 3)), 1).with_actor(ann);
    let died = dying.cast(&cantrip, CastOptions::on("go")).await;
    let heir = house_of(memory, 2);
    let cast = heir.resume(&cantrip, died.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let paid = heir.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
    let payers: Vec<AuthorizationRef> = paid.iter().map(|booked| booked.row.terms().authorization).collect();
    assert_eq!((payers.len(), payers.iter().all(|payer| *payer == hers)), (2, true), "{payers:?}");
    let receipt = heir.loom().receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items.remove(0);
    assert_eq!(receipt.owner, "ann");
    adds_up(&heir).await;
}

#[tokio::test(start_paused = true)]
async fn what_nobody_pays_for_enters_no_gate_and_asks_no_crystal() {
    let (memory, requests) = (AnyLoom::new(MemoryLoom::new()), Count::default());
    let cantrip = echoing(&requests);
    let nobody = house_of(memory.clone(), 3).with_actor(Actor::new("service:night").unwrap());
    let missing = "policy_denied.authorization_missing";
    for budget in [None, Some(money("5 USD"))] {
        let casting = budget.into_iter().fold(CastOptions::on("go"), CastOptions::budget);
        let cast = nobody.cast(&cantrip, casting).await;
        assert_code(cast.reply(), codes::NOT_AUTHORIZED);
        assert_eq!((&cast.reply().data()["reason_code"], requests.get()), (&json!(missing), 0));
        let made = nobody.loom().decisions(cast.run.unwrap()).await.unwrap();
        assert_eq!(made.iter().map(|made| made.decision.reason_code.as_str()).collect::<Vec<_>>(), [missing]);
        assert_eq!(nobody.redecide(cast.run.unwrap()).await.unwrap(), RedecideOutcome::Same { decisions: 1 });
    }
    assert_eq!(rows(&nobody).await, []);
    // The run was begun by the person at the machine and is resumed where remote callers are served: the open
    // repeatable call is denied, and so is the next request.
    let looks = Count::default();
    let crystal = script([call("look", json!({"n": 5})).with_usage(used(100, 10)), done("never")]);
    let cantrip = talking(&crystal).gate(counting_again("look", &looks)).price(listed()).build().unwrap();
    let died = house_of(AnyLoom::new(Dying::after(memory.clone(), 3)), 1).cast(&cantrip, CastOptions::on("go")).await;
    let beyond = house_of(memory, 2).for_remote_callers();
    let cast = beyond.resume(&cantrip, died.run.unwrap()).await;
    assert_code(cast.reply(), codes::NOT_AUTHORIZED);
    assert_eq!((&cast.reply().data()["reason_code"], looks.get()), (&json!(missing), 1));
    let turn = beyond.loom().turn(cast.outcome.unwrap().leaf.unwrap()).await.unwrap();
    let Settlement::Settled(look) = &turn.gate_calls[0].settlement else { panic!("{turn:?}") };
    let decided = look.decision.as_ref().expect("policy was asked");
    assert_eq!((decided.decision.reason_code.as_str(), decided.authorization_id), (missing, None));
    assert_eq!(beyond.redecide(died.run.unwrap()).await.unwrap(), RedecideOutcome::Same { decisions: 3 });
    adds_up(&beyond).await;
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_keeps_its_hold_and_the_retry_has_its_own() {
    let runtime = memory();
    let crystal = script([
        Response { break_after: Some(1), usage: None, ..Response::text("I was ab") },
        done("over").with_usage(used(100, 10)),
    ]);
    let retry = RetryPolicy { max_retries: 2, ..RetryPolicy::default() };
    let cantrip = talking(&crystal).price(listed()).retry(retry).build().unwrap();
    assert!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer().is_some());
    let states: Vec<_> = rows(&runtime).await.iter().map(|(state, attempt, _, _)| (*state, *attempt)).collect();
    assert_eq!(states, [("reconcile_required", 1), ("committed", 2)]);
    adds_up(&runtime).await;
}

/// Returns a conversation that may delegate; each answer has at most `answer_tokens` tokens.
fn tree(crystal: impl Crystal + 'static, answer_tokens: u32) -> cantrip::CantripBuilder {
    Cantrip::builder()
        .crystal(crystal)
        .call(Call::new().max_tokens(answer_tokens))
        .price(listed())
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent_batch())
        .ward("max_turns", 20)
        .ward("max_depth", 3)
}

fn batch(children: usize) -> Response {
    let requests: Vec<_> = (0..children).map(|n| json!(format!("child {n}"))).collect();
    call("call_agent_batch", json!({ "requests": requests }))
}

#[tokio::test(start_paused = true)]
async fn children_that_run_at_once_never_spend_more_than_their_tree_may() {
    for (store, _folder) in support::stores() {
        let runtime = house_of(store, 3);
        let crystal = Acting(|request: &Request| {
            let said = match intent_of(request).as_str() {
                "go" => batch(8),
                _ => call("echo", json!({"text": said_before(request)})),
            };
            let answer = u64::from(request.output_tokens_max).min(300);
            Response { delay: Duration::from_millis(50), ..said.with_usage(used(200, answer)) }
        });
        let cantrip = tree(crystal, 300).ward("max_cost", "0.10 USD").build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.reason(), Some(TruncationReason::MaxCost), "{:?}", cast.reply());
        if let Ok(findings) = runtime.loom().audit().await {
            assert!(findings.is_balanced(), "{findings:?}");
            let spent: i64 = rows(&runtime).await.iter().map(|(_, _, spent, _)| spent).sum();
            assert!(spent <= 100_000 && spent > 80_000, "nearly all of it, and no more: {spent}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wide_tree_with_twice_what_it_needs_comes_to_its_end() {
    let runtime = memory();
    let crystal = Acting(|request: &Request| {
        let said = match (intent_of(request).as_str(), said_before(request)) {
            ("go", 0) => batch(8),
            (_, 0) if request.definitions.iter().any(|tool| tool.name == "call_agent_batch") => batch(8),
            _ => done("over"),
        };
        Response { delay: Duration::from_millis(20), ..said.with_usage(used(1_000, 500)) }
    });
    // 1 + 8 + 64 entities; those that delegate answer twice: 82 requests of 6,000 micros.
    let cantrip = tree(crystal, 500).ward("max_depth", 2).ward("max_cost", "0.984 USD").build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let rows = rows(&runtime).await;
    assert_eq!((rows.len(), rows.iter().map(|(_, _, spent, _)| spent).sum::<i64>()), (82, 82 * 6_000));
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_beyond_its_bound_is_booked_in_full_and_ends_the_cast() {
    let runtime = memory();
    // The crystal is limited to 300 tokens and returns thousands.
    let crystal = script([call("echo", json!({"text": 1})).with_usage(used(100, 9_000)), done("never said")]);
    let cantrip = talking(&crystal).call(Call::new().max_tokens(300)).price(listed()).ward("max_cost", "0.05 USD");
    let cantrip = cantrip.build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.reason(), Some(TruncationReason::MaxCost), "{:?}", cast.reply());
    assert_eq!(crystal.request_count(), 1);
    let rows = rows(&runtime).await;
    assert_eq!((rows[0].0, rows[0].2), ("committed", 90_100), "in full, beyond what was held: {rows:?}");
    let leaf = cast.outcome.unwrap().leaf.unwrap();
    assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
    adds_up(&runtime).await;
}

/// Casts a tree whose process dies while both of its children wait for their first answers. Returns the runtime that
/// takes over, the cantrip and the run. `cap` is in micros.
async fn two_orphans(store: AnyLoom, cap: i64) -> (Runtime, Cantrip, cantrip_canon::RunId) {
    let crystal = Acting(|request: &Request| {
        let said = match (intent_of(request).as_str(), said_before(request)) {
            ("go", 0) => batch(2),
            _ => done("over"),
        };
        Response { delay: Duration::from_millis(50), ..said.with_usage(used(200, 20)) }
    });
    let cap = Money::new(cap, cantrip_canon::Currency::USD).unwrap();
    let cantrip = tree(crystal, 300).ward("max_cost", cap.to_string()).build().unwrap();
    // The steps: the run, the root's request, its answer with both children, a request of each child.
    let dying = house_of(AnyLoom::new(Dying::after(store.clone(), 5)), 1);
    let died = dying.cast(&cantrip, CastOptions::on("go")).await;
    (house_of(store, 2), cantrip, died.run.unwrap())
}

/// Resumes the run of `two_orphans`, with `more` micros of room beyond the lost reservations.
async fn orphans_go_on(store: AnyLoom, patience: Duration, root: i64, child: i64, more: i64, answers: bool) {
    let (heir, cantrip, run) = two_orphans(store, root + 2 * child + more).await;
    let going = tokio::time::timeout(patience, heir.resume(&cantrip, run));
    let cast = going.await.expect("it comes to an end");
    match answers {
        true => assert_eq!(cast.answer(), Some(&json!("over")), "{more}: {:?}", cast.reply()),
        false => assert_eq!(cast.reason(), Some(TruncationReason::MaxCost), "{more}: {:?}", cast.reply()),
    }
    let rows = rows(&heir).await;
    let lost = rows.iter().filter(|(state, ..)| *state == "reconcile_required").count();
    assert_eq!(lost, 2, "{more}: {rows:?}");
    assert!(rows.iter().all(|(state, ..)| *state != "reserved"), "{more}: {rows:?}");
    adds_up(&heir).await;
}

/// Returns the cost of the root's request, and the amount reserved for each child's.
async fn prices() -> (i64, i64) {
    let (before, _, _) = two_orphans(AnyLoom::new(MemoryLoom::new()), 1_000_000).await;
    let rows = rows(&before).await;
    let states: Vec<_> = rows.iter().map(|(state, ..)| *state).collect();
    assert_eq!(states, ["committed", "reserved", "reserved"], "both are on their way: {rows:?}");
    (rows[0].2, rows[1].3)
}

#[tokio::test(start_paused = true)]
async fn orphaned_children_are_marked_before_anything_is_asked_for_and_never_wait_for_each_other() {
    let (root, child) = prices().await;
    // Room for the lost reservations, and additionally: for nothing; for half a request; for one; for both.
    for (more, answers) in [(0, false), (child / 2, false), (child + child / 4, true), (2 * child, true)] {
        orphans_go_on(AnyLoom::new(MemoryLoom::new()), Duration::from_secs(600), root, child, more, answers).await;
    }
}

#[tokio::test]
async fn orphaned_children_in_a_database_do_not_wait_for_each_other_either() {
    let (root, child) = prices().await;
    let folder = tempfile::tempdir().unwrap();
    let store = cantrip_store::Store::sqlite(folder.path().join("loom.db")).unwrap();
    orphans_go_on(AnyLoom::new(store), Duration::from_secs(60), root, child, child / 2, false).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_without_asking_again_marks_what_its_lost_owner_held() {
    let (heir, cantrip, run) = two_orphans(AnyLoom::new(MemoryLoom::new()), 1_000_000).await;
    assert_code(&heir.cancel(run, &cantrip_loom::Actor::new("someone").unwrap()).await.reply, codes::CHANGED);
    let cast = heir.resume(&cantrip, run).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Cancelled), "{:?}", cast.reply());
    let states: Vec<_> = rows(&heir).await.iter().map(|(state, ..)| *state).collect();
    assert_eq!(states, ["committed", "reconcile_required", "reconcile_required"]);
    adds_up(&heir).await;
}

#[tokio::test(start_paused = true)]
async fn a_fold_that_was_being_written_when_its_owner_died_is_marked_too() {
    let (memory, folds) = (AnyLoom::new(MemoryLoom::new()), Count::default());
    let seen = folds.clone();
    let crystal = Acting(move |request: &Request| {
        let fold = request.definitions.is_empty();
        if fold {
            seen.up();
        }
        let said = match (fold, request.utterances) {
            (true, _) => Response::text("what was done"),
            (false, 0..=2) => call("echo", json!({"text": request.utterances})),
            (false, _) => done("over"),
        };
        said.with_usage(used(200, 20))
    });
    let folding = cantrip::fold::FoldOptions {
        strategy: cantrip_loom::Strategy::Summary,
        trigger_after_turns: Some(2),
        ..Default::default()
    };
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).folding(folding).build().unwrap();
    let mut marked = 0;
    for dies_after in 2..12 {
        let memory = if dies_after == 2 { memory.clone() } else { AnyLoom::new(MemoryLoom::new()) };
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        if died.answer().is_some() {
            break;
        }
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "dead after {dies_after}: {:?}", cast.reply());
        let listed = heir.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
        assert!(listed.iter().all(|booked| booked.row.state_name() != "reserved"), "dead after {dies_after}");
        let of_fold = |booked: &cantrip_spend::ReservationRow| {
            booked.row.state_name() == "reconcile_required" && booked.row.terms().call.to_string().starts_with("fold_")
        };
        marked += listed.iter().filter(|booked| of_fold(booked)).count();
        adds_up(&heir).await;
    }
    assert!(folds.get() > 1 && marked >= 1, "at some point a fold was under way: {marked}");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_process_held_is_marked_by_a_sweep_and_what_a_living_one_holds_is_not() {
    {
        let store = AnyLoom::new(MemoryLoom::new());
        let crystal = Acting(|_: &Request| Response { delay: Duration::from_secs(600), ..done("over") });
        let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
        let living = house_of(store.clone(), 1);
        let under_way = tokio::spawn({
            let (living, cantrip) = (living.clone(), cantrip.clone());
            async move { living.cast(&cantrip, CastOptions::on("live")).await }
        });
        tokio::time::sleep(Duration::from_secs(2)).await;
        // Another process dies during its request, and its run is not resumed.
        let quick = talking(&script([done("never heard").with_usage(used(1, 1))])).price(listed()).build().unwrap();
        let dying = house_of(AnyLoom::new(Dying::after(store.clone(), 2)), 2);
        assert!(dying.cast(&quick, CastOptions::on("die")).await.outcome.is_none());
        let sweeper = house_of(store, 3);
        assert_eq!(sweeper.recover().await.ok(), Some(0), "its time is not over");
        // The living process sweeps every half minute and renews its lease: a call that takes ten minutes is never
        // touched.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let states: Vec<_> = rows(&sweeper).await.iter().map(|(state, ..)| *state).collect();
        assert_eq!(states, ["reserved", "reconcile_required"], "{states:?}");
        assert_eq!(sweeper.recover().await.ok(), Some(0), "once");
        adds_up(&sweeper).await;
        let cast = under_way.await.unwrap();
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        let listed = sweeper.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let why: Vec<_> = listed
            .iter()
            .map(|booked| match &booked.row {
                cantrip_spend::AnyReservation::ReconcileRequired(unknown) => unknown.state().why.as_str(),
                cantrip_spend::AnyReservation::Reserved(_)
                | cantrip_spend::AnyReservation::Committed(_)
                | cantrip_spend::AnyReservation::Released(_) => "known",
            })
            .collect();
        // The answer of the living process had no usage.
        assert_eq!(why, ["usage_not_reported", "crashed"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_because_the_run_rests_is_marked_with_its_parking() {
    let runtime = memory();
    let crystal = Acting(|request: &Request| {
        Response { delay: Duration::from_secs(if said_before(request) == 0 { 60 } else { 0 }), ..done("over") }
            .with_usage(used(10, 1))
    });
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
    let cancel = cantrip::Cancel::new();
    let casting = runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel));
    let parking = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        cancel.park();
    };
    let (cast, ()) = tokio::join!(casting, parking);
    assert_eq!(cast.reply().data()["state"], "waiting");
    let states = |rows: Vec<(&'static str, u32, i64, i64)>| rows.iter().map(|row| row.0).collect::<Vec<_>>();
    assert_eq!(states(rows(&runtime).await), ["reconcile_required"]);
    let cast = runtime.resume(&cantrip, cast.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!(states(rows(&runtime).await), ["reconcile_required", "committed"]);
    adds_up(&runtime).await;
}

/// Returns for each reservation why its outcome is unknown, or how it ended.
async fn ends(runtime: &Runtime) -> Vec<&'static str> {
    let listed = runtime.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
    let told = |booked: &cantrip_spend::ReservationRow| match &booked.row {
        cantrip_spend::AnyReservation::ReconcileRequired(unknown) => match unknown.state().why {
            cantrip_spend::UnknownOutcome::TimedOut => "timed_out",
            cantrip_spend::UnknownOutcome::StreamCut => "stream_cut",
            cantrip_spend::UnknownOutcome::Crashed => "crashed",
            cantrip_spend::UnknownOutcome::UsageNotReported => "usage_not_reported",
            cantrip_spend::UnknownOutcome::Failed => "failed",
            cantrip_spend::UnknownOutcome::MissingProviderCorrelationId => "missing_provider_correlation_id",
        },
        cantrip_spend::AnyReservation::Reserved(_)
        | cantrip_spend::AnyReservation::Committed(_)
        | cantrip_spend::AnyReservation::Released(_) => booked.row.state_name(),
    };
    listed.iter().map(told).collect()
}

#[tokio::test(start_paused = true)]
async fn the_deadline_during_an_answer_and_during_a_childs_marks_what_they_held() {
    for child in [false, true] {
        let runtime = memory();
        let crystal = Acting(move |request: &Request| match (intent_of(request).as_str(), child) {
            ("go", true) if said_before(request) == 0 => batch(2).with_usage(used(100, 10)),
            _ => Response { delay: Duration::from_secs(60), ..done("late").with_usage(used(100, 10)) },
        });
        let cantrip = tree(crystal, 300).ward("timeout", "10s").build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.reason(), Some(TruncationReason::Timeout), "{:?}", cast.reply());
        // A child is ended by the end of its parent.
        let expected = if child { vec!["committed", "stream_cut", "stream_cut"] } else { vec!["timed_out"] };
        assert_eq!(ends(&runtime).await, expected);
        adds_up(&runtime).await;
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_with_live_grandchildren_leaves_no_hold_open() {
    let runtime = memory();
    let crystal = Acting(|request: &Request| {
        let delegates = request.definitions.iter().any(|tool| tool.name == "call_agent_batch");
        match (delegates, said_before(request)) {
            (true, 0) => batch(2).with_usage(used(100, 10)),
            _ => Response { delay: Duration::from_secs(600), ..done("late").with_usage(used(100, 10)) },
        }
    });
    let cantrip = tree(crystal, 300).ward("max_depth", 2).build().unwrap();
    let cancel = cantrip::Cancel::new();
    let cancelling = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        cancel.cancel();
    };
    let casting = runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel));
    let (cast, ()) = tokio::join!(casting, cancelling);
    assert_eq!(cast.reason(), Some(TruncationReason::Cancelled), "{:?}", cast.reply());
    // The root and its two children have delegated; four grandchildren have requests in progress.
    let ends = ends(&runtime).await;
    let of = |state: &str| ends.iter().filter(|end| **end == state).count();
    assert_eq!((of("committed"), of("stream_cut"), ends.len()), (3, 4, 7), "{ends:?}");
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_summary_that_comes_to_nothing_is_paid_for_and_its_cast_goes_on() {
    // An empty summary, a failed one with reported usage, and one that is refused by the daily limit.
    for (empty, per_day) in [(true, None), (false, None), (true, Some(10_000))] {
        let (runtime, folds) = (memory(), Count::default());
        let seen = folds.clone();
        let crystal = Acting(move |request: &Request| {
            if request.definitions.is_empty() {
                seen.up();
                let said = if empty { Response::text(" ") } else { Response::error(400, "no") };
                return said.with_usage(used(200, 20));
            }
            let said = match request.utterances {
                0..=2 => call("echo", json!({"text": request.utterances})),
                _ => done("over"),
            };
            said.with_usage(used(100, 10))
        });
        let folding = cantrip::fold::FoldOptions {
            strategy: cantrip_loom::Strategy::Summary,
            trigger_after_turns: Some(2),
            ..Default::default()
        };
        let cantrip = talking(&script([])).crystal(crystal).call(Call::new().max_tokens(256)).price(listed());
        let cantrip = cantrip.folding(folding).name("spender").build().unwrap();
        grant(&runtime, "spender", |terms| {
            terms.max_total = Some(1_000_000);
            terms.max_per_day = per_day;
        })
        .await;
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{empty} {per_day:?}: {:?}", cast.reply());
        let listed = runtime.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let of_folds = listed.iter().filter(|booked| booked.row.terms().call.to_string().starts_with("fold_"));
        let paid: Vec<i64> = of_folds.map(|booked| booked.row.spent_micros()).collect();
        if per_day.is_some() {
            assert_eq!((folds.get(), paid.len()), (0, 0), "nothing is asked for that cannot be paid");
        } else {
            assert!(folds.get() >= 1 && paid.len() == folds.get(), "{paid:?}");
            assert!(!empty || paid.iter().all(|spent| *spent == 400), "{paid:?}");
        }
        assert!(listed.iter().all(|booked| booked.row.state_name() != "reserved"));
        adds_up(&runtime).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_stays_down_costs_nothing_and_the_run_is_paid_for_when_it_goes_on() {
    let (memory, down) = (AnyLoom::new(MemoryLoom::new()), Count::default());
    let tries = down.clone();
    let crystal = Acting(move |_: &Request| match tries.up() {
        1..=6 => Response::error(503, "down"),
        _ => done("over").with_usage(used(100, 10)),
    });
    let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
    let parked = house_of(memory.clone(), 1).cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(parked.reply().data()["state"], "waiting", "{:?}", parked.reply());
    let heir = house_of(memory, 2);
    assert!(rows(&heir).await.iter().all(|(state, ..)| *state == "released"));
    let cast = heir.resume(&cantrip, parked.run.unwrap()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let last = rows(&heir).await.pop().unwrap();
    assert_eq!((last.0, last.1, last.2), ("committed", 7, 200), "the seventh attempt of the same turn");
    adds_up(&heir).await;
}

#[tokio::test(start_paused = true)]
async fn where_money_for_one_worst_case_is_left_at_a_time_all_children_answer() {
    let (root, child) = prices().await;
    let runtime = memory();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let crystal = Acting(move |request: &Request| {
        let intent = intent_of(request);
        let said = match (intent.as_str(), said_before(request)) {
            ("go", 0) => batch(8),
            _ => {
                seen.lock().unwrap().push(intent.clone());
                done(intent)
            }
        };
        Response { delay: Duration::from_millis(50), ..said.with_usage(used(200, 20)) }
    });
    // Eight answers of 400, the root's two, and room for one and a half worst cases.
    let cap = Money::new(root * 2 + 8 * 400 + child + child / 2, cantrip_canon::Currency::USD).unwrap();
    let cantrip = tree(crystal, 300).ward("max_cost", cap.to_string()).build().unwrap();
    let started = tokio::time::Instant::now();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("go")), "{:?}", cast.reply());
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked.len(), 9, "each child once, and the root: {asked:?}");
    assert!(started.elapsed() > Duration::from_millis(6 * 50), "they waited for each other: {:?}", started.elapsed());
    assert!(rows(&runtime).await.iter().all(|(state, ..)| *state == "committed"), "none was refused");
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn cancelling_while_a_turn_closes_gives_one_end_and_leaves_no_money_without_its_answer() {
    for at in 45..=55 {
        let runtime = memory();
        let crystal = Acting(|request: &Request| {
            let said = match said_before(request) {
                0 => call("echo", json!({"text": 1})),
                _ => done("over"),
            };
            Response { delay: Duration::from_millis(25), ..said.with_usage(used(100, 10)) }
        });
        let cantrip = talking(&script([])).crystal(crystal).price(listed()).build().unwrap();
        let cancel = cantrip::Cancel::new();
        let cancelling = async {
            tokio::time::sleep(Duration::from_millis(at)).await;
            cancel.cancel();
        };
        let casting = runtime.cast(&cantrip, CastOptions::on("go").cancelled_by(&cancel));
        let (cast, ()) = tokio::join!(casting, cancelling);
        let events = support::journal(&runtime, cast.run.unwrap()).await;
        let count = |is: fn(&cantrip_loom::Event) -> bool| events.iter().filter(|event| is(event)).count();
        assert_eq!(count(|event| matches!(event, cantrip_loom::Event::End(_))), 1, "cancelled at {at}");
        let opened = count(|event| matches!(event, cantrip_loom::Event::Opened(_)));
        let ends = ends(&runtime).await;
        assert_eq!(ends.iter().filter(|end| **end == "committed").count(), opened, "cancelled at {at}: {ends:?}");
        assert!(!ends.contains(&"reserved"), "cancelled at {at}: {ends:?}");
        adds_up(&runtime).await;
    }
}
