//! Gates that move money, the policy about gates, and approvals by people.

#![allow(clippy::wildcard_enum_match_arm, reason = "a test looks for one kind of record among all")]

use crate::money::{adds_up, grant, listed, money, rows, used};
use crate::support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantrip::policy::RedecideOutcome;
use cantrip::{Cantrip, CantripBuilder, CastOptions, CastReply, ContinueOptions, HumanDecision, Runtime};
use cantrip_canon::{ApprovalId, Clock, IdSource, ManualClock, Money, RunId};
use cantrip_circle::gate::{Call, Gate, GateSpec, Settlement as Settles, builtin, gate, gate_with_call};
use cantrip_circle::{AnyGate, Label};
use cantrip_crystal::{Request, Response};
use cantrip_loom::{
    Actor, AnyLoom, AppendOutcome, Event, GateRecord, Journal, Ledger, Loom, MemoryLoom, PageRequest,
    ReservationFilter, RunState, SettledCall, Settlement, Step, StepId, TruncationReason,
};
use cantrip_reply::testing::{assert_code, assert_recorded};
use cantrip_reply::{AnyCode, Refusal, ReplyDraft, Success, codes};
use cantrip_spend::{
    AnyReservation, ApprovalState, AuthorizationMode, AuthorizationRef, Constraints, Operation, Reconciliation, Revoke,
    Terms, Verdict,
};
use serde_json::{Value, json};
use support::{
    Acting, Count, Dying, Numbered, call, counting, done, house_of, journal, memory, said_before, script, talking,
};

/// A shop that records its calls and their keys.
#[derive(Clone, Default)]
struct Shop(Arc<Mutex<Vec<Sold>>>);

/// The number that was bought, and the idempotency key of the call.
type Sold = (u64, Option<String>);

impl Shop {
    fn sold(&self) -> Vec<u64> {
        self.0.lock().unwrap().iter().map(|(n, _)| *n).collect()
    }

    fn keys(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, key)| key.clone().unwrap_or_default()).collect()
    }

    /// Returns a gate that gives this answer after `delay`.
    fn gate(
        &self,
        settles: Settles,
        delay: Duration,
        answer: impl Fn(u64) -> Result<Value, Refusal> + Send + Sync + 'static,
    ) -> AnyGate {
        let (shop, answer) = (self.clone(), Arc::new(answer));
        let gate = gate_with_call("buy", "Buys.", move |call: Call, asked: Numbered| {
            let (shop, answer) = (shop.clone(), Arc::clone(&answer));
            async move {
                shop.0.lock().unwrap().push((asked.n, call.idempotency_key.clone()));
                tokio::time::sleep(delay).await;
                answer(asked.n)
            }
        });
        gate.with_settlement(settles).into()
    }
}

fn up_to(text: &str) -> Settles {
    Settles::up_to(money(text))
}

fn buying(crystal: impl cantrip_crystal::Crystal + 'static, gate: AnyGate) -> CantripBuilder {
    talking(&script([])).crystal(crystal).gate(gate).name("spender")
}

/// Returns a crystal that buys once, then is done.
fn buys_once() -> Acting<impl Fn(&Request) -> Response + Send + Sync> {
    Acting(|request: &Request| match said_before(request) {
        0 => call("buy", json!({"n": 1})),
        _ => done("over"),
    })
}

async fn settled_calls(runtime: &Runtime, cantrip: &Cantrip) -> Vec<(GateRecord, SettledCall)> {
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let records = turns.into_iter().flat_map(|turn| turn.gate_calls);
    records
        .filter_map(|record| match record.settlement.clone() {
            Settlement::Settled(settled) => Some((record, *settled)),
            Settlement::Delegated => None,
        })
        .collect()
}

/// Returns the code of the first call, and the policy's reason.
async fn first_call(runtime: &Runtime, cantrip: &Cantrip) -> (String, Option<String>) {
    let (_, settled) = settled_calls(runtime, cantrip).await.remove(0);
    (settled.reply.code, settled.decision.map(|made| made.decision.reason_code.as_str().to_owned()))
}

async fn why(runtime: &Runtime) -> Vec<(&'static str, Option<String>)> {
    let rows = runtime.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items;
    rows.iter()
        .map(|booked| match &booked.row {
            AnyReservation::ReconcileRequired(unknown) => {
                ("reconcile_required", Some(unknown.state().why.as_str().to_owned()))
            }
            AnyReservation::Committed(paid) => ("committed", paid.state().provider_correlation_id.clone()),
            AnyReservation::Reserved(_) => ("reserved", None),
            AnyReservation::Released(_) => ("released", None),
        })
        .collect()
}

async fn same_again(runtime: &Runtime, run: RunId) -> u64 {
    match runtime.redecide(run).await {
        Ok(RedecideOutcome::Same { decisions }) => decisions,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_gate_that_moves_money_is_held_before_and_booked_with_its_reply() {
    let (runtime, shop) = (memory(), Shop::default());
    let gate = shop.gate(up_to("2.00 USD").cost_at("/cost"), Duration::ZERO, |n| {
        Ok(json!({"cost": "0.75 USD", "provider_correlation_id": format!("order-{n}")}))
    });
    let cantrip = buying(buys_once(), gate).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    assert_eq!(rows(&runtime).await, [("committed", 1, 750_000, 2_000_000)]);
    assert_eq!(why(&runtime).await, [("committed", Some("order-1".to_owned()))]);
    let booked =
        runtime.loom().reservations(ReservationFilter::default(), PageRequest::FIRST).await.unwrap().items.remove(0);
    assert_eq!(shop.keys(), [booked.row.terms().provider_key().as_str()], "it is given the key of the payment");
    let (_, settled) = settled_calls(&runtime, &cantrip).await.remove(0);
    assert_eq!(settled.cost, Some(money("0.75 USD")));
    let made = settled.decision.unwrap();
    let stored = runtime.loom().decisions(cast.run.unwrap()).await.unwrap();
    assert_eq!(made.decision, stored[0].decision, "the decision of the transaction that reserved it");
    assert_eq!(cast.outcome.as_ref().unwrap().cost, Some(money("0.75 USD")));
    assert_eq!(same_again(&runtime, cast.run.unwrap()).await, 2, "the purchase and the answer");
    assert_code(runtime.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await.reply(), codes::VERIFIED);
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn only_an_answer_that_says_so_settles_and_nothing_is_released_without_knowledge() {
    type Answering = Box<dyn Fn(u64) -> Result<Value, Refusal> + Send + Sync>;
    type Case = (&'static str, Answering, AnyCode, (&'static str, Option<String>));
    let unknown = |why: &str| ("reconcile_required", Some(why.to_owned()));
    let cases: Vec<Case> = vec![
        (
            "a price of its own",
            Box::new(|_| Ok(json!({"provider_correlation_id": 7, "cost": "0.10 USD"}))),
            codes::GATE_OK.any(),
            ("committed", Some("7".to_owned())),
        ),
        (
            "prose",
            Box::new(|_| Ok(json!("bought it!"))),
            codes::GATE_FAILED.any(),
            unknown("missing_provider_correlation_id"),
        ),
        (
            "no id",
            Box::new(|_| Ok(json!({"cost": "0.10 USD"}))),
            codes::GATE_FAILED.any(),
            unknown("missing_provider_correlation_id"),
        ),
        (
            "an empty id",
            Box::new(|_| Ok(json!({"provider_correlation_id": " ", "cost": "0.10 USD"}))),
            codes::GATE_FAILED.any(),
            unknown("missing_provider_correlation_id"),
        ),
        (
            "no price",
            Box::new(|_| Ok(json!({"provider_correlation_id": "x"}))),
            codes::GATE_FAILED.any(),
            unknown("usage_not_reported"),
        ),
        (
            "another currency",
            Box::new(|_| Ok(json!({"provider_correlation_id": "x", "cost": "0.10 EUR"}))),
            codes::GATE_FAILED.any(),
            unknown("usage_not_reported"),
        ),
        (
            "an error",
            Box::new(|_| Err(codes::gate_failed("buy", "it broke").into())),
            codes::GATE_FAILED.any(),
            unknown("failed"),
        ),
        ("a panic", Box::new(|_| panic!("it broke")), codes::CRASH.any(), unknown("failed")),
        (
            "a wrong request",
            Box::new(|_| Err(codes::gate_reported("buy", "no such thing").into())),
            codes::GATE_REPORTED.any(),
            ("released", None),
        ),
    ];
    for (name, answer, code, state) in cases {
        let (runtime, shop) = (memory(), Shop::default());
        let gate = shop.gate(up_to("1.00 USD").cost_at("/cost"), Duration::ZERO, answer);
        let cantrip = buying(buys_once(), gate).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{name}: {:?}", cast.reply());
        assert_eq!(first_call(&runtime, &cantrip).await.0, code.as_str(), "{name}");
        assert_eq!(why(&runtime).await, [state], "{name}");
        assert_eq!(shop.sold(), [1], "{name}");
        adds_up(&runtime).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_purchase_cut_off_by_the_deadline_is_unknown_and_not_made_again_when_the_run_goes_on() {
    let (runtime, shop) = (memory(), Shop::default());
    let gate =
        shop.gate(up_to("1.00 USD"), Duration::from_secs(60), |_| Ok(json!({"provider_correlation_id": "late"})));
    let crystal = Acting(|request: &Request| match said_before(request) {
        0..=1 => call("buy", json!({"n": 1})),
        _ => done("over"),
    });
    let cantrip = buying(crystal, gate).ward("timeout", "30s").build().unwrap();
    let cut = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cut.reason(), Some(TruncationReason::Timeout), "{:?}", cut.reply());
    assert_eq!(why(&runtime).await, [("reconcile_required", Some("timed_out".to_owned()))]);
    let cast = runtime.continue_run(&cantrip, cut.run.unwrap(), ContinueOptions::new()).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let refused = serde_json::to_value(&settled_calls(&runtime, &cantrip).await[1].1.reply).unwrap();
    assert_recorded(&refused, codes::RECONCILE_FIRST.any());
    assert_eq!(shop.sold(), [1]);
    adds_up(&runtime).await;
}

/// A gate that panics where it is asked for its price.
struct Unpriced(GateSpec);

impl Gate for Unpriced {
    fn spec(&self) -> &GateSpec {
        &self.0
    }

    fn worst_cost(&self, _: &serde_json::Map<String, Value>) -> Option<Money> {
        panic!("a bug of this gate")
    }

    async fn call(&self, _: Call) -> Result<ReplyDraft<Success>, Refusal> {
        Ok(codes::gate_ok("buy").value("sold"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_about_which_no_decision_can_be_made_is_refused_and_the_cast_continues() {
    let runtime = memory();
    let gate = Unpriced(GateSpec::new("buy", "Buys.", json!({"type": "object"})));
    let cantrip = buying(buys_once(), gate.into()).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
    let refused = serde_json::to_value(&settled_calls(&runtime, &cantrip).await[0].1.reply).unwrap();
    assert_recorded(&refused, codes::POLICY_FAILED.any());
}

/// Reconciles every call with unknown outcome.
async fn reconcile_all(runtime: &Runtime, verdict: Verdict) {
    let wanted = ReservationFilter { state: Some("reconcile_required"), ..ReservationFilter::default() };
    for booked in runtime.loom().reservations(wanted, PageRequest::FIRST).await.unwrap().items {
        let terms = booked.row.terms();
        let (by, reason) = ("a person".to_owned(), "on the invoice".to_owned());
        let found = Reconciliation { verdict: verdict.clone(), by, reason, at: terms.at, estimated: false };
        let id = StepId::new(format!("reconcile-{}", terms.id())).unwrap();
        let step = Step::annotation(id, terms.run).money(Operation::reconcile(terms.id(), found));
        assert!(matches!(runtime.loom().append(step).await.unwrap(), AppendOutcome::Committed(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn reconciling_lets_the_same_purchase_be_made() {
    let (runtime, shop, broken) = (memory(), Shop::default(), Count::default());
    let once = broken.clone();
    let gate = shop.gate(up_to("1.00 USD"), Duration::ZERO, move |_| match once.up() {
        1 => Err(codes::gate_failed("buy", "the line broke").into()),
        _ => Ok(json!({"provider_correlation_id": "second"})),
    });
    let buys = || {
        Acting(|request: &Request| match said_before(request) % 2 {
            0 => call("buy", json!({"n": 1})),
            _ => done("over"),
        })
    };
    let cantrip = buying(buys(), gate).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("buy it").await.answer(), Some(&json!("over")));
    let again = entity.send("buy it").await;
    assert_eq!(again.answer(), Some(&json!("over")), "{:?}", again.reply());
    let calls = settled_calls(&runtime, &cantrip).await;
    let (_, refused) = calls.iter().filter(|(record, _)| record.gate == "buy").nth(1).unwrap();
    assert_eq!(refused.reply.code, codes::RECONCILE_FIRST.any().as_str(), "{refused:?}");
    assert_eq!(refused.decision.as_ref().unwrap().decision.reason_code.as_str(), "policy_denied.reconcile_required");
    assert_eq!(shop.sold(), [1], "it was not made again");
    reconcile_all(&runtime, Verdict::Release).await;
    assert_eq!(entity.send("buy it").await.answer(), Some(&json!("over")));
    assert_eq!(shop.sold(), [1, 1]);
    assert_eq!(why(&runtime).await, [("released", None), ("committed", Some("second".to_owned()))]);
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn a_purchase_cut_off_by_a_crash_is_unknown_and_one_that_may_be_repeated_is_made_again_by_its_key() {
    for (repeats, sold, state) in [(false, 1, "reconcile_required"), (true, 2, "committed")] {
        let (store, shop) = (AnyLoom::new(MemoryLoom::new()), Shop::default());
        let sells = shop.clone();
        let made = gate_with_call("buy", "Buys.", move |call: Call, asked: Numbered| {
            sells.0.lock().unwrap().push((asked.n, call.idempotency_key.clone()));
            std::future::ready(Ok::<_, Refusal>(json!({"provider_correlation_id": "one"})))
        })
        .with_settlement(up_to("1.00 USD"));
        let made: AnyGate = if repeats { made.idempotent().into() } else { made.into() };
        let cantrip = buying(buys_once(), made).build().unwrap();
        // The steps: the run, the request, its answer, the start with its reservation. The process dies before the
        // reply is recorded.
        let dying = house_of(AnyLoom::new(Dying::after(store.clone(), 4)), 1);
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert!(died.outcome.is_none(), "{:?}", died.reply());
        assert_eq!(shop.sold(), [1]);
        let heir = house_of(store, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        assert_eq!(shop.sold().len(), sold);
        let keys = shop.keys();
        assert!(keys.iter().all(|key| *key == keys[0]), "the same key: {keys:?}");
        assert_eq!(why(&heir).await[0].0, state);
        let code = if repeats { codes::GATE_OK.any() } else { codes::OUTCOME_UNKNOWN.any() };
        // The record contains the decision that allowed the call, whatever the outcome.
        let allowed = Some("policy_allowed.default".to_owned());
        assert_eq!(first_call(&heir, &cantrip).await, (code.as_str().to_owned(), allowed));
        adds_up(&heir).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_authorization_does_not_cover_is_denied_with_its_code_and_never_executed() {
    let million = |terms: &mut Terms| terms.max_total = Some(10_000_000);
    type Change = Box<dyn Fn(&mut Terms)>;
    let cases: Vec<(Change, AnyCode, &str)> = vec![
        (
            Box::new(move |terms| {
                million(terms);
                terms.max_per_call = Some(999_999);
            }),
            codes::PER_CALL.any(),
            "policy_denied.per_call_limit",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.max_per_day = Some(999_999);
            }),
            codes::PER_DAY.any(),
            "policy_denied.per_day_limit",
        ),
        (
            Box::new(|terms| terms.max_total = Some(999_999)),
            codes::BUDGET_SPENT.any(),
            "policy_denied.budget_exhausted",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.currency = money("1 EUR").currency();
            }),
            codes::NOT_AUTHORIZED.any(),
            "policy_denied.currency_mismatch",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.expires_at = Some(terms.issued_at);
            }),
            codes::EXPIRED.any(),
            "policy_denied.authorization_expired",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.revoked_at = Some(terms.issued_at);
            }),
            codes::REVOKED.any(),
            "policy_denied.authorization_revoked",
        ),
        (
            Box::new(|terms| terms.mode = AuthorizationMode::Deny),
            codes::NOT_AUTHORIZED.any(),
            "policy_denied.explicit_deny",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.constraints = Constraints { gates_deny: Some(vec!["bu*".to_owned()]), ..Constraints::default() };
            }),
            codes::NOT_AUTHORIZED.any(),
            "policy_denied.tool_not_allowed",
        ),
        (
            Box::new(move |terms| {
                million(terms);
                terms.constraints =
                    Constraints { gates_allow: Some(vec!["echo".to_owned()]), ..Constraints::default() };
            }),
            codes::NOT_AUTHORIZED.any(),
            "policy_denied.tool_not_allowed",
        ),
    ];
    for (change, code, reason) in cases {
        for free in [false, true] {
            let is_money = ["per_call", "per_day", "budget", "currency"].iter().any(|word| reason.contains(word));
            if free && is_money {
                continue;
            }
            let (runtime, shop, count) = (memory(), Shop::default(), Count::default());
            let gate = match free {
                false => shop.gate(up_to("1.00 USD"), Duration::ZERO, |_| Ok(json!({"provider_correlation_id": "x"}))),
                true => counting("buy", &count),
            };
            let cantrip = buying(buys_once(), gate).ward("max_turns", 3).build().unwrap();
            grant(&runtime, "spender", |terms| change(terms)).await;
            let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
            let run = cast.run.unwrap();
            assert_eq!(
                first_call(&runtime, &cantrip).await,
                (code.as_str().to_owned(), Some(reason.to_owned())),
                "{reason}"
            );
            assert_eq!((shop.sold().len(), count.get()), (0, 0), "{reason}: nothing was executed");
            assert_eq!(rows(&runtime).await, [], "{reason}: nothing is held");
            let told = journal(&runtime, run).await;
            let decisions = told.iter().filter_map(Event::as_policy_decision);
            let decisions = decisions.filter(|decided| decided.outcome.decision.reason_code.as_str() == reason);
            assert!(decisions.count() >= 1, "{reason}: a denial is an event of its own");
            assert!(
                runtime
                    .loom()
                    .decisions(run)
                    .await
                    .unwrap()
                    .iter()
                    .any(|made| made.decision.reason_code.as_str() == reason)
            );
            assert!(same_again(&runtime, run).await >= 1, "{reason}");
            if let Some(leaf) = cast.outcome.as_ref().and_then(|outcome| outcome.leaf) {
                assert_code(runtime.replay(&cantrip, leaf).await.reply(), codes::VERIFIED);
            }
            adds_up(&runtime).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_day_begins_anew_at_midnight_and_a_total_does_not() {
    for (per_day, bought) in [(true, 2), (false, 1)] {
        let clock = Arc::new(ManualClock::starting("2026-02-19T23:59:00.000Z".parse().unwrap()));
        let runtime = Runtime::from_parts(
            AnyLoom::new(MemoryLoom::new()),
            Arc::clone(&clock) as Arc<dyn Clock>,
            Arc::new(IdSource::seeded(3)),
        );
        let shop = Shop::default();
        let gate = shop.gate(up_to("1.00 USD"), Duration::ZERO, |n| Ok(json!({"provider_correlation_id": n})));
        let crystal = Acting(|request: &Request| match said_before(request) {
            0 => call("buy", json!({"n": 1})),
            1 => call("buy", json!({"n": 2})),
            _ => done("over"),
        });
        let cantrip = buying(crystal, gate).build().unwrap();
        grant(&runtime, "spender", |terms| {
            terms.issued_at = "2026-02-19T01:00:00.000Z".parse().unwrap();
            terms.max_total = Some(if per_day { 10_000_000 } else { 1_500_000 });
            terms.max_per_day = per_day.then_some(1_500_000);
        })
        .await;
        assert!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer().is_some());
        assert_eq!(shop.sold(), [1], "the second is beyond the limit");
        clock.advance(Duration::from_secs(120));
        assert!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer().is_some());
        assert_eq!(shop.sold().len(), bought);
        adds_up(&runtime).await;
    }
}

#[tokio::test(start_paused = true)]
async fn taking_an_authorization_back_in_the_middle_of_a_run_stops_its_gates() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = Acting(|request: &Request| match said_before(request) {
        0..=2 => Response { delay: Duration::from_secs(5), ..call("count", json!({"n": 1})) },
        _ => done("over"),
    });
    let cantrip = talking(&script([])).crystal(crystal).gate(counting("count", &count)).name("spender");
    let cantrip = cantrip.ward("max_turns", 4).build().unwrap();
    let id = grant(&runtime, "spender", |terms| terms.max_total = Some(1)).await;
    let revoking = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        let revoke = Revoke {
            authorization: id,
            actor: "a person".to_owned(),
            reason: "enough".to_owned(),
            at: "2026-02-19T02:00:07.000Z".parse().unwrap(),
        };
        let step = Step::outside_runs(StepId::new("revoke").unwrap()).money(Operation::Revoke(revoke));
        assert!(matches!(runtime.loom().append(step).await.unwrap(), AppendOutcome::Committed(_)));
    };
    let (cast, ()) = tokio::join!(runtime.cast(&cantrip, CastOptions::on("go")), revoking);
    assert_eq!(count.get(), 1, "{:?}", cast.reply());
    let calls = settled_calls(&runtime, &cantrip).await;
    assert_eq!(calls[1].1.reply.code, codes::REVOKED.any().as_str());
    assert!(same_again(&runtime, cast.run.unwrap()).await >= 2, "each under the terms of its time");
}

#[tokio::test(start_paused = true)]
async fn an_authorization_of_an_entity_pays_for_its_children_and_nothing_wider_stands_in_for_it() {
    let (runtime, shop) = (memory(), Shop::default());
    let gate = shop.gate(up_to("1.00 USD"), Duration::ZERO, |n| Ok(json!({"provider_correlation_id": n})));
    let crystal = Acting(|request: &Request| match (support::intent_of(request).as_str(), said_before(request)) {
        ("buy it", 0) => call("buy", json!({"n": 7})),
        ("buy it", _) => done("over"),
        (_, before) if before % 2 == 0 => call("call_agent", json!({"intent": "buy it"})),
        _ => done("over"),
    });
    let cantrip = buying(crystal, gate).gate(builtin::call_agent()).build().unwrap();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    let id = entity.id();
    // The entity's own authorization, with room for one purchase.
    let funds = grant(&runtime, "spender", |terms| {
        terms.max_total = Some(1_500_000);
        terms.scope.thread_id = Some(id.to_string());
    })
    .await;
    assert_eq!(entity.send("go").await.answer(), Some(&json!("over")));
    assert_eq!(shop.sold(), [7], "its child's purchase is paid by it");
    let spent = runtime.loom().authorization(funds).await.unwrap().totals.spent;
    assert_eq!(spent, 1_000_000);
    assert_eq!(entity.send("go").await.answer(), Some(&json!("over")));
    assert_eq!(shop.sold(), [7], "it is used up, and nothing wider stands in");
    adds_up(&runtime).await;
}

#[tokio::test(start_paused = true)]
async fn what_joins_the_three_labels_is_denied_by_policy_through_a_child_too() {
    for (child, costs) in [(false, false), (true, false), (false, true)] {
        let (runtime, count) = (memory(), Count::default());
        let read = gate("look", "Looks.", |asked: Numbered| std::future::ready(Ok::<_, Refusal>(asked.n)))
            .labels([Label::PrivateData, Label::UntrustedContent]);
        let send: AnyGate = counting("send", &count).with_labels([Label::ExternalComm]);
        let dear = gate("send", "Sends.", |asked: Numbered| std::future::ready(Ok::<_, Refusal>(asked.n)))
            .labels([Label::ExternalComm])
            .with_settlement(up_to("1.00 USD"));
        let send = if costs { dear.into() } else { send };
        let crystal = Acting(move |request: &Request| {
            let sends = support::intent_of(request) == "send it";
            match (sends, said_before(request)) {
                (true, 0) => call("send", json!({"n": 1})),
                (false, 0) => call("look", json!({"n": 1})),
                (false, 1) if child => call("call_agent", json!({"intent": "send it"})),
                (false, 1) => call("send", json!({"n": 1})),
                _ => done("over"),
            }
        });
        let cantrip =
            talking(&script([])).crystal(crystal).gate(read).gate(send).gate(builtin::call_agent()).build().unwrap();
        let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
        assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
        assert_eq!(count.get(), 0, "nothing left");
        let denied =
            settled_calls(&runtime, &cantrip).await.into_iter().find(|(record, _)| record.gate == "send").unwrap().1;
        assert_eq!(denied.reply.code, codes::TRIFECTA.any().as_str());
        assert_eq!(denied.decision.unwrap().decision.reason_code.as_str(), "policy_denied.trifecta");
        assert!(denied.result.as_str().unwrap().contains("gates.send.labels"), "{}", denied.result);
        assert!(same_again(&runtime, cast.run.unwrap()).await >= 3);
        assert_code(runtime.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await.reply(), codes::VERIFIED);
    }
}

#[tokio::test(start_paused = true)]
async fn a_changed_decision_is_found_when_it_is_made_again() {
    let (runtime, count) = (memory(), Count::default());
    let crystal = Acting(|request: &Request| match said_before(request) {
        0 => call("count", json!({"n": 1})),
        _ => done("over"),
    });
    let cantrip = talking(&script([])).crystal(crystal).gate(counting("count", &count)).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(same_again(&runtime, cast.run.unwrap()).await, 2);
    // The journal of another run, with another argument than the one that was judged.
    let export = journal(&runtime, cast.run.unwrap()).await;
    let judged = export.iter().filter(|event| matches!(event, Event::Settled(settled) if settled.judged.is_some()));
    assert_eq!(judged.count(), 2, "what a free call was judged by stands in its record");
    assert_eq!(runtime.loom().decisions(cast.run.unwrap()).await.unwrap().len(), 0, "and in no row");
}

fn waits(cast: &CastReply) -> (RunId, ApprovalId) {
    assert_code(cast.reply(), codes::CREATED);
    assert_eq!(cast.reply().data()["state"], "waiting", "{:?}", cast.reply());
    (cast.run.unwrap(), cast.reply().data()["approval_id"].as_str().unwrap().parse().unwrap())
}

fn someone() -> Actor {
    Actor::new("user:1").unwrap()
}

/// Returns a cantrip with one paid request and a purchase.
fn interactive(shop: &Shop) -> Cantrip {
    let gate = shop.gate(up_to("1.00 USD"), Duration::ZERO, |_| Ok(json!({"provider_correlation_id": "x"})));
    let crystal = Acting(|request: &Request| {
        let said = match said_before(request) {
            0 => call("buy", json!({"n": 1})),
            _ => done("over"),
        };
        said.with_usage(used(100, 10))
    });
    buying(crystal, gate).price(listed()).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_interactive_authorization_asks_a_person_about_every_spend_and_survives_a_restart() {
    let (store, shop) = (AnyLoom::new(MemoryLoom::new()), Shop::default());
    let cantrip = interactive(&shop);
    let runtime = house_of(store.clone(), 1);
    grant(&runtime, "spender", |terms| terms.mode = AuthorizationMode::Interactive).await;
    let (run, first) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
    assert_eq!(rows(&runtime).await, [], "a question holds no money");
    let asked = runtime.pending(run).await.unwrap().remove(0);
    assert_eq!(
        (asked.gate.as_str(), asked.reason_code.as_deref()),
        ("scripted/acting", Some("approval_required.interactive"))
    );
    assert!(asked.cost.unwrap().micros() > 0);
    // Another process asks the same question, once.
    let heir = house_of(store, 2);
    assert_eq!(waits(&heir.resume(&cantrip, run).await), (run, first));
    assert_eq!(heir.pending(run).await.unwrap().len(), 1);
    // The entity cannot approve its own call.
    let entity = heir.loom().run(run).await.unwrap().entity_id.unwrap();
    let own = HumanDecision::approve(Actor::new(entity.to_string()).unwrap());
    assert_code(&heir.decide(run, first, own).await.reply, codes::NOT_AUTHORIZED);
    let mut approvals = vec![first];
    for _ in 0..3 {
        let approval = *approvals.last().unwrap();
        assert_code(&heir.decide(run, approval, HumanDecision::approve(someone())).await.reply, codes::CHANGED);
        let row = heir.loom().approval(approval).await.unwrap();
        assert_eq!((row.state(), row.granted_amount()), (ApprovalState::Approved, Some(row.request.requested)));
        let cast = heir.resume(&cantrip, run).await;
        if cast.answer().is_some() {
            break;
        }
        approvals.push(waits(&cast).1);
    }
    // Two requests and a purchase, each with its own question.
    assert_eq!((approvals.len(), shop.sold()), (3, vec![1]));
    assert_eq!(heir.loom().run(run).await.unwrap().state, RunState::Terminated);
    let states: Vec<_> = rows(&heir).await.iter().map(|row| row.0).collect();
    assert_eq!(states, ["committed", "committed", "committed"]);
    let gate = settled_calls(&heir, &cantrip).await.remove(0).1;
    assert_eq!(gate.decision.unwrap().decision.reason_code.as_str(), "policy_allowed.default");
    assert!(same_again(&heir, run).await >= 6, "what was asked and what was then allowed");
    adds_up(&heir).await;
}

#[tokio::test(start_paused = true)]
async fn a_person_who_says_no_or_nothing_ends_a_request_and_refuses_a_purchase() {
    for expires in [false, true] {
        for purchase in [false, true] {
            let clock = Arc::new(ManualClock::starting("2026-02-19T02:00:00.000Z".parse().unwrap()));
            let runtime = Runtime::from_parts(
                AnyLoom::new(MemoryLoom::new()),
                Arc::clone(&clock) as Arc<dyn Clock>,
                Arc::new(IdSource::seeded(3)),
            );
            let shop = Shop::default();
            let cantrip = interactive(&shop);
            // Either above a threshold that only the purchase exceeds, or every time.
            grant(&runtime, "spender", |terms| match purchase {
                true => {
                    terms.mode = AuthorizationMode::DelegatedBudgetWithThreshold;
                    (terms.max_total, terms.threshold) = (Some(10_000_000), Some(999_999));
                }
                false => terms.mode = AuthorizationMode::Interactive,
            })
            .await;
            let (run, approval) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
            let asked = runtime.pending(run).await.unwrap().remove(0);
            assert_eq!(asked.gate, if purchase { "buy" } else { "scripted/acting" });
            if expires {
                clock.advance(Duration::from_secs(24 * 3_600));
                assert_code(
                    &runtime.decide(run, approval, HumanDecision::approve(someone())).await.reply,
                    codes::WRONG_STATE,
                );
            } else {
                assert_eq!(asked.cost.map(Money::micros).unwrap() >= 1_000_000, purchase);
                assert_code(
                    &runtime.decide(run, approval, HumanDecision::refuse(someone(), "too dear")).await.reply,
                    codes::CHANGED,
                );
            }
            let cast = runtime.resume(&cantrip, run).await;
            let code = if expires { codes::NO_DECISION.any() } else { codes::APPROVAL_REFUSED.any() };
            if purchase {
                assert_eq!(cast.answer(), Some(&json!("over")), "{:?}", cast.reply());
                let reason = if expires { "policy_denied.approval_expired" } else { "policy_denied.approval_refused" };
                assert_eq!(first_call(&runtime, &cantrip).await, (code.as_str().to_owned(), Some(reason.to_owned())));
                assert_code(
                    runtime.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await.reply(),
                    codes::VERIFIED,
                );
            } else {
                assert_eq!(cast.reason(), Some(TruncationReason::PolicyDenied), "{:?}", cast.reply());
                assert_eq!(cast.reply().code(), code);
            }
            assert_eq!(shop.sold(), [] as [u64; 0]);
            let state = if expires { ApprovalState::Expired } else { ApprovalState::Refused };
            assert_eq!(runtime.loom().approval(approval).await.unwrap().state(), state);
            adds_up(&runtime).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_of_a_ward_is_kept_where_an_authorization_is_in_force_and_withdrawn_with_its_run() {
    let (runtime, count) = (memory().with_approvals(true), Count::default());
    let crystal = script([call("count", json!({"n": 1})), done("on")]);
    let cantrip =
        talking(&crystal).gate(counting("count", &count)).ward("require_approval", json!(["count"])).build().unwrap();
    let (run, approval) = waits(&runtime.cast(&cantrip, CastOptions::on("go")).await);
    let row = runtime.loom().approval(approval).await.unwrap();
    assert_eq!((row.state(), row.request.authorization), (ApprovalState::Pending, AuthorizationRef::Local));
    assert_eq!(runtime.pending(run).await.unwrap()[0].reason_code.as_deref(), Some("approval_required.ward"));
    assert_code(&runtime.cancel(run, &someone()).await.reply, codes::CHANGED);
    let cast = runtime.resume(&cantrip, run).await;
    assert_eq!(cast.reason(), Some(TruncationReason::Cancelled), "{:?}", cast.reply());
    assert_eq!(runtime.loom().approval(approval).await.unwrap().state(), ApprovalState::Cancelled);
    assert_eq!(count.get(), 0);
}
