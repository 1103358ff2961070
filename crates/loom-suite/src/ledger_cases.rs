//! Money: reservations, settlements, refusals and waits, written together with the records they pay for.
//!
//! One file, although long: each case is short, and all of them read the same few fixtures.

use std::time::Duration;

use cantrip_canon::{ApprovalId, Currency, Money, RunId, TurnId};
use cantrip_spend::{
    ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalState, ApprovalVerdict, AuthorizationMode,
    AuthorizationRef, Authorize, Counters, DecisionRecord, Hold, LedgerFault, Operation, Principal, Reconciliation,
    Reserve, RetryClass, Revise, Revoke, SetCap, Terms, Transition, UnknownOutcome, Verdict, replay,
};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::fixtures::{append, budget, odd};
use super::{Episode, LoomWriter, Store, Subject, at, reserve};
use cantrip_loom::{
    AppendOutcome, Conflict, EndedBy, Ending, Event, Journal, Ledger, PageRequest, RecordDraft, ReservationFilter,
    RunState, Seq, Step, StepId, WorkerId,
};

fn usd(micros: i64) -> Money {
    Money::new(micros, Currency::USD).expect("a small amount")
}

fn asked(reserve: Reserve) -> Operation {
    Operation::Reserve(Box::new(reserve))
}

/// Reserves the worst cost of a request of the turn, under this authorization.
fn worst<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    episode: &Episode,
    authorization: AuthorizationRef,
    turn: TurnId,
    micros: i64,
) -> Reserve {
    let mut reserve = reserve(weaver, episode, turn, 1, micros);
    reserve.hold.authorization = authorization;
    reserve
}

async fn totals<L: Ledger>(ledger: &L, id: AuthorizationRef) -> (i64, i64) {
    let Counters { spent, reserved } = ledger.authorization(id).await.expect("it is there").totals;
    (spent, reserved)
}

async fn kinds<J: Journal>(store: &J, run: RunId) -> Vec<String> {
    let records = store.read(run, Seq::START).try_collect::<Vec<_>>().await.expect("the run is readable");
    records.iter().map(|record| record.kind.as_str().to_owned()).collect()
}

async fn adds_up<L: Ledger>(ledger: &L) {
    let findings = ledger.audit().await.expect("a ledger");
    assert!(findings.is_balanced(), "{findings:#?}");
}

fn reason(answer: &AppendOutcome) -> String {
    let AppendOutcome::Refused(decision) = answer else { return format!("{answer:?}") };
    decision.reason_code.to_string()
}

/// Appends a step of the episode's owner that moves money and has no records.
async fn pay<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    store: &J,
    episode: &Episode,
    money: Operation,
) -> AppendOutcome {
    append(store, weaver.step(episode).money(money)).await
}

pub(super) async fn money_moves_with_its_records<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 20_000);
    let (id, now) = (held.hold.id(), weaver.now());
    let step = weaver.step_with(&episode, odd(1)).money(asked(held));
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(5)));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (0, 20_000));
    let commit = Operation::commit(id.clone(), usd(12_900), Some("ch_1".into()), now);
    let step = weaver.step_with(&episode, odd(2)).money(commit);
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(7)));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (12_900, 0));
    let told = kinds(store, episode.run).await;
    assert_eq!(told[3..], ["weather.changed", "spend.reserved", "weather.changed", "spend.settled"]);
    let entries = store.entries(id.clone()).await.expect("entries");
    let moves: Vec<(&str, i64, i64, &str)> = entries
        .iter()
        .map(|entry| (entry.op.as_str(), entry.d_spent, entry.d_reserved, entry.state_after.as_str()))
        .collect();
    assert_eq!(moves, [("reserve", 0, 20_000, "reserved"), ("commit", 12_900, -20_000, "committed")]);
    // A step that cannot be written moves no money.
    let broken = weaver.step_with(&episode, super::closed(turn, cantrip_loom::Closing::Open)).money(asked(reserve(
        &mut weaver,
        &episode,
        turn,
        2,
        5,
    )));
    assert!(store.append(broken).await.is_err(), "the turn was never opened");
    let unknown = Operation::release(reserve(&mut weaver, &episode, turn, 3, 5).hold.id(), now);
    let step = weaver.step_with(&episode, odd(3)).money(unknown);
    assert!(matches!(append(store, step).await, AppendOutcome::Conflict(Conflict::Money { .. })));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (12_900, 0));
    assert_eq!(kinds(store, episode.run).await.len(), 7);
    adds_up(store).await;
}

pub(super) async fn a_refused_reserve_writes_what_stands_for_it_instead<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let funds = weaver.authorize(budget(10)).await;
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let dear = worst(&mut weaver, &episode, funds, turn, 11);
    let step = weaver.step_with(&episode, odd(1)).money(asked(dear)).if_refused(weaver.draft(odd(2)));
    let answer = append(store, step.clone()).await;
    assert_eq!(reason(&answer), "policy_denied.budget_exhausted");
    assert_eq!(append(store, step.clone()).await, answer, "asked again it is answered as it was");
    let records: Vec<_> = store.read(episode.run, Seq::new(3)).try_collect().await.expect("records");
    assert_eq!(records.len(), 2);
    assert!(step.if_refused[0].matches_record(&records[0]));
    assert_eq!(records[1].kind.as_str(), "policy.decision");
    let said = records[1].value().expect("a payload");
    assert_eq!(said["reason_code"], "policy_denied.budget_exhausted");
    assert_eq!(said["authorization_id"], funds.to_string());
    assert_eq!(totals(store, funds).await, (0, 0));
    // Other steps are not affected, and the run continues.
    let fits = worst(&mut weaver, &episode, funds, turn, 10);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(fits)).await, AppendOutcome::Committed(_)));
    assert_eq!(store.run(episode.run).await.expect("the run").state, RunState::Running);
    adds_up(store).await;
}

pub(super) async fn a_step_with_money_asked_for_again_is_booked_once<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 20_000);
    let id = held.hold.id();
    let step = weaver.step_with(&episode, odd(1)).money(asked(held));
    let first = append(store, step.clone()).await;
    assert_eq!(append(store, step.clone()).await, first);
    let now = weaver.now();
    let commit = Operation::commit(id.clone(), usd(1), None, now);
    let settle = weaver.step_with(&episode, odd(2)).money(commit);
    let second = append(store, settle.clone()).await;
    assert_eq!(append(store, settle).await, second);
    assert_eq!(append(store, step).await, first, "also when it has long been settled");
    assert_eq!(store.entries(id.clone()).await.expect("entries").len(), 2);
    assert_eq!(totals(store, AuthorizationRef::Local).await, (1, 0));
    let other = Operation::commit(id, usd(2), None, now);
    assert_eq!(
        pay(&mut weaver, store, &episode, other.clone()).await,
        AppendOutcome::Conflict(Conflict::Money { what: other.subject_id(), fault: LedgerFault::IdempotencyConflict })
    );
    adds_up(store).await;
}

pub(super) async fn only_one_of_two_executors_gets_a_fresh_hold<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 20);
    let steps: Vec<Step> = (0..8).map(|_| weaver.step(&episode).money(asked(held.clone()))).collect();
    let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
    let fresh = answers.iter().filter(|answer| matches!(answer, AppendOutcome::Committed(_))).count();
    let told = AppendOutcome::Conflict(Conflict::Money {
        what: held.hold.id().to_string(),
        fault: LedgerFault::NotFresh { state: "reserved" },
    });
    assert_eq!((fresh, answers.iter().filter(|answer| **answer == told).count()), (1, 7), "{answers:?}");
    let next = reserve(&mut weaver, &episode, turn, 2, 20);
    assert!(matches!(
        pay(&mut weaver, store, &episode, asked(next)).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::AttemptOpen { attempt: 1 }, .. })
    ));
    let other = Reserve { hold: Hold { amount: usd(21), ..held.hold.clone() }, ..held.clone() };
    let class = RetryClass::DedupeReconcileRequired;
    let bolder = Reserve { hold: Hold { retry_class: class, ..held.hold.clone() }, ..held };
    for changed in [other, bolder] {
        assert!(matches!(
            pay(&mut weaver, store, &episode, asked(changed)).await,
            AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::IdempotencyConflict, .. })
        ));
    }
    assert_eq!(totals(store, AuthorizationRef::Local).await, (0, 20));
}

pub(super) async fn a_call_with_a_reply_is_not_paid_for_again<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    let again = reserve(&mut weaver, &episode, turn, 2, 20);
    assert!(matches!(
        pay(&mut weaver, store, &episode, asked(again.clone())).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Replied, .. })
    ));
    let call = cantrip_loom::CallId::of_turn(turn, 1).key();
    let gate = Reserve { hold: Hold { call, attempt: 1, ..again.hold }, question: again.question };
    assert!(matches!(
        pay(&mut weaver, store, &episode, asked(gate)).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Replied, .. })
    ));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (0, 0), "what was refused holds nothing");
}

pub(super) async fn operations_of_a_step_see_the_ones_before<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let funds = weaver.authorize(budget(100)).await;
    let episode = weaver.cast("count").await;
    let (one, two, three) = (weaver.id(), weaver.id(), weaver.id());
    let first = worst(&mut weaver, &episode, funds, one, 100);
    let (id, now) = (first.hold.id(), weaver.now());
    assert!(matches!(pay(&mut weaver, store, &episode, asked(first)).await, AppendOutcome::Committed(_)));
    // A commit frees budget for a later operation of the same step.
    let next = worst(&mut weaver, &episode, funds, two, 60);
    let step =
        weaver.step_with(&episode, odd(1)).money(Operation::commit(id, usd(40), None, now)).money(asked(next.clone()));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    assert_eq!(totals(store, funds).await, (40, 60));
    // A reserve that does not fit: the whole step is refused, including the release before it.
    let release = Operation::release(next.hold.id(), now);
    let other = worst(&mut weaver, &episode, funds, three, 61);
    let step = weaver.step_with(&episode, odd(2)).money(release).money(asked(other));
    assert_eq!(reason(&append(store, step).await), "policy_denied.budget_exhausted");
    assert_eq!(totals(store, funds).await, (40, 60), "what came before it is taken back");
    adds_up(store).await;
}

pub(super) async fn holds_of_the_same_tree_are_waited_for<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let funds = weaver.authorize(budget(100)).await;
    let (episode, stranger) = (weaver.cast("count").await, weaver.cast("count").await);
    let (one, two, three) = (weaver.id(), weaver.id(), weaver.id());
    let mine = worst(&mut weaver, &episode, funds, one, 60);
    let (id, now) = (mine.hold.id(), weaver.now());
    assert!(matches!(pay(&mut weaver, store, &episode, asked(mine)).await, AppendOutcome::Committed(_)));
    let before = kinds(store, episode.run).await.len();
    let next = worst(&mut weaver, &episode, funds, two, 60);
    let waiting = weaver.step_with(&episode, odd(1)).money(asked(next)).if_refused(weaver.draft(odd(2)));
    assert_eq!(append(store, waiting.clone()).await, AppendOutcome::Wait);
    assert_eq!(kinds(store, episode.run).await.len(), before, "nothing is written");
    let theirs = worst(&mut weaver, &stranger, funds, three, 60);
    let answer = pay(&mut weaver, store, &stranger, asked(theirs)).await;
    assert_eq!(reason(&answer), "policy_denied.budget_exhausted", "nobody waits for another tree");
    // A hold with an unknown outcome may never settle, so a step does not wait for it. This hold settles, and then the
    // waiting step fits.
    let commit = Operation::commit(id, usd(40), None, now);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Committed(_)));
    assert!(matches!(append(store, waiting).await, AppendOutcome::Committed(_)), "there is room now");
    assert_eq!(totals(store, funds).await, (40, 60));
    adds_up(store).await;
}

pub(super) async fn holds_at_once_never_pass_the_budget<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let funds = weaver.authorize(budget(10 * 1_000 + 999)).await;
    let mut steps = Vec::new();
    for _ in 0..64 {
        let episode = weaver.cast("count").await;
        let turn = weaver.id();
        let held = worst(&mut weaver, &episode, funds, turn, 1_000);
        steps.push(weaver.step(&episode).money(asked(held)));
    }
    let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
    let committed = answers.iter().filter(|answer| matches!(answer, AppendOutcome::Committed(_))).count();
    let refused = answers.iter().filter(|answer| reason(answer) == "policy_denied.budget_exhausted").count();
    assert_eq!((committed, refused), (10, 54));
    assert_eq!(totals(store, funds).await, (0, 10_000));
    adds_up(store).await;
}

pub(super) async fn caps_bind_a_tree_of_holds<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let local = AuthorizationRef::Local;
    let episode = weaver.cast("count").await;
    let cap = |scope: &str, parent: Option<&str>, micros| {
        let (scope, parent) = (scope.to_owned(), parent.map(str::to_owned));
        Operation::SetCap(SetCap { authorization: local, scope, parent, limit: usd(micros) })
    };
    let step = weaver.step(&episode).money(cap("root", None, 100)).money(cap("left", Some("root"), 60)).money(cap(
        "right",
        Some("root"),
        90,
    ));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    let turns: [TurnId; 4] = std::array::from_fn(|_| weaver.id());
    let below = |weaver: &mut LoomWriter<'_, J>, turn, scope: &str, micros| {
        let mut held = reserve(weaver, &episode, turn, 1, micros);
        held.hold.scope = scope.to_owned();
        held
    };
    let left = below(&mut weaver, turns[0], "left", 60);
    let (id, now) = (left.hold.id(), weaver.now());
    assert!(matches!(pay(&mut weaver, store, &episode, asked(left)).await, AppendOutcome::Committed(_)));
    let more = below(&mut weaver, turns[1], "left", 61);
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(more)).await), "policy_denied.run_limit");
    let sibling = below(&mut weaver, turns[2], "right", 41);
    assert_eq!(pay(&mut weaver, store, &episode, asked(sibling.clone())).await, AppendOutcome::Wait);
    let commit = Operation::commit(id, usd(60), None, now);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Committed(_)));
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(sibling)).await), "policy_denied.run_limit");
    let fits = below(&mut weaver, turns[3], "right", 40);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(fits)).await, AppendOutcome::Committed(_)));
    adds_up(store).await;
}

pub(super) async fn an_overage_is_booked_in_full_and_denies_what_follows<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let funds = weaver.authorize(budget(100)).await;
    let episode = weaver.cast("count").await;
    let (one, two) = (weaver.id(), weaver.id());
    let held = worst(&mut weaver, &episode, funds, one, 90);
    let (id, now) = (held.hold.id(), weaver.now());
    assert!(matches!(pay(&mut weaver, store, &episode, asked(held)).await, AppendOutcome::Committed(_)));
    let commit = Operation::commit(id.clone(), usd(115), None, now);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Committed(_)));
    assert_eq!(totals(store, funds).await, (115, 0));
    assert_eq!(store.authorization(funds).await.expect("it is there").remaining(), Some(-15));
    assert_eq!(store.reservation(id).await.expect("a row").row.overage_micros(), 25);
    assert_eq!(kinds(store, episode.run).await.last().map(String::as_str), Some("spend.overage"));
    let next = worst(&mut weaver, &episode, funds, two, 1);
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(next)).await), "policy_denied.budget_exhausted");
    adds_up(store).await;
}

pub(super) async fn an_authorization_is_given_changed_and_taken_back<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let local = store.authorization(AuthorizationRef::Local).await.expect("every store has it");
    assert_eq!(*local.terms(), Terms::local());
    let funds = weaver.authorize(budget(100)).await;
    let listed = store.authorizations(PageRequest::FIRST).await.expect("a list");
    let ids: Vec<AuthorizationRef> = listed.items.iter().map(|row| row.id).collect();
    assert_eq!((ids, listed.next), (vec![AuthorizationRef::Local, funds], None));
    let change = |weaver: &mut LoomWriter<'_, J>, operation: Operation| {
        append(store, Step::outside_runs(weaver.step_id()).money(operation))
    };
    let revise = |expected_revision, total| {
        let (actor, reason) = ("local".to_owned(), "otherwise".to_owned());
        let terms = budget(total);
        Operation::Revise(Box::new(Revise { authorization: funds, expected_revision, terms, actor, reason, at: at(9) }))
    };
    assert_eq!(change(&mut weaver, revise(1, 50)).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(
        change(&mut weaver, revise(1, 50)).await,
        AppendOutcome::Committed(Seq::START),
        "asked again it is done"
    );
    assert!(matches!(
        change(&mut weaver, revise(1, 60)).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Revision { expected: 1, found: 2 }, .. })
    ));
    let episode = weaver.cast("count").await;
    let (one, two) = (weaver.id(), weaver.id());
    let dear = worst(&mut weaver, &episode, funds, one, 51);
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(dear)).await), "policy_denied.budget_exhausted");
    let under_way = worst(&mut weaver, &episode, funds, one, 50);
    let (id, now) = (under_way.hold.id(), weaver.now());
    assert!(matches!(pay(&mut weaver, store, &episode, asked(under_way)).await, AppendOutcome::Committed(_)));
    let (actor, why) = ("local".to_owned(), "enough".to_owned());
    let revoke = Revoke { authorization: funds, actor, reason: why, at: now };
    assert_eq!(change(&mut weaver, Operation::Revoke(revoke.clone())).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(change(&mut weaver, Operation::Revoke(revoke)).await, AppendOutcome::Committed(Seq::START));
    let next = worst(&mut weaver, &episode, funds, two, 1);
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(next)).await), "policy_denied.authorization_revoked");
    let commit = Operation::commit(id, usd(45), None, now);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Committed(_)), "it was under way");
    let history = store.agreements(funds).await.expect("a history");
    let revisions: Vec<(u64, Option<i64>, bool)> =
        history.iter().map(|row| (row.revision, row.terms.max_total, row.terms.revoked_at.is_some())).collect();
    assert_eq!(revisions, [(1, Some(100), false), (2, Some(50), false), (3, Some(50), true)]);
    let unmeant = Terms { max_total: None, ..budget(1) };
    let (actor, reason) = ("local".to_owned(), "a case".to_owned());
    let authorization = AuthorizationRef::Issued(weaver.id());
    let issue = Authorize { authorization, terms: unmeant, actor, reason, at: at(9) };
    assert!(matches!(
        change(&mut weaver, Operation::Authorize(Box::new(issue))).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Terms(_), .. })
    ));
    // A step within a run cannot grant a budget.
    let (actor, reason) = ("local".to_owned(), "a case".to_owned());
    let issue = Authorize { authorization, terms: budget(1), actor, reason, at: at(9) };
    assert!(matches!(
        pay(&mut weaver, store, &episode, Operation::Authorize(Box::new(issue))).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Misplaced, .. })
    ));
    assert!(store.authorization(authorization).await.is_err());
    adds_up(store).await;
}

pub(super) async fn the_authorization_of_a_run_is_the_most_specific_one<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let episode = weaver.cast("count").await;
    let asking = reserve(&mut weaver, &episode, TurnId::from_parts(at(0), [0; 10]), 1, 1).question.principal;
    let principal = Principal { autopilot_id: Some("analyst".into()), ..asking };
    let found = |principal: Principal| async { store.payer(principal).await.expect("an answer").map(|row| row.id) };
    assert_eq!(found(principal.clone()).await, Some(AuthorizationRef::Local));
    let scoped = |change: &dyn Fn(&mut Terms)| {
        let mut terms = budget(100);
        change(&mut terms);
        terms
    };
    let agent = weaver.authorize(scoped(&|terms| terms.scope.autopilot_id = Some("analyst".into()))).await;
    assert_eq!(found(principal.clone()).await, Some(agent));
    let run = episode.run.to_string();
    let expired = scoped(&|terms| {
        terms.scope.run_id = Some(run.clone());
        terms.expires_at = Some(at(1));
    });
    let of_run = weaver.authorize(expired).await;
    weaver.authorize(scoped(&|terms| terms.scope.run_id = Some("run_elsewhere".into()))).await;
    assert_eq!(found(principal.clone()).await, Some(of_run), "an expired one is the answer too");
    let guest = Principal { owner: "guest:1".parse().expect("an owner"), ..principal };
    assert_eq!(found(guest).await, None, "auth_local is for nobody else");
}

pub(super) async fn each_limit_is_held_where_money_is_reserved<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let run = episode.run.to_string();
    type Change<'a> = &'a dyn Fn(&mut Terms, &mut Reserve);
    let denied = |code: &str| format!("policy_denied.{code}");
    let cases: [(String, Change<'_>); 11] = [
        (denied("per_call_limit"), &|terms, _| terms.max_per_call = Some(9)),
        (denied("per_day_limit"), &|terms, _| terms.max_per_day = Some(9)),
        (denied("budget_exhausted"), &|terms, _| terms.max_total = Some(9)),
        (denied("authorization_expired"), &|terms, asked| terms.expires_at = Some(asked.hold.at)),
        (denied("scope_mismatch"), &|terms, _| terms.owner = "user:7".parse().expect("an owner")),
        (denied("scope_mismatch"), &|terms, _| terms.scope.thread_id = Some("ent_elsewhere".into())),
        (denied("currency_mismatch"), &|_, asked| {
            asked.hold.amount = Money::new(10, "SAT".parse().expect("a currency")).expect("an amount");
        }),
        (denied("explicit_deny"), &|terms, _| (terms.mode, terms.max_total) = (AuthorizationMode::Deny, None)),
        ("approval_required.interactive".into(), &|terms, _| terms.mode = AuthorizationMode::Interactive),
        ("approval_required.over_threshold".into(), &|terms, _| {
            (terms.mode, terms.threshold) = (AuthorizationMode::DelegatedBudgetWithThreshold, Some(9));
        }),
        (denied("model_not_allowed"), &|terms, _| terms.constraints.models_allow = Some(vec!["anthropic/*".into()])),
    ];
    for (expected, change) in cases {
        let turn = weaver.id();
        let (mut terms, mut held) = (budget(1_000), worst(&mut weaver, &episode, AuthorizationRef::Local, turn, 10));
        terms.scope.run_id = Some(run.clone());
        change(&mut terms, &mut held);
        held.hold.authorization = weaver.authorize(terms).await;
        let id = held.hold.id();
        let answer = pay(&mut weaver, store, &episode, asked(held)).await;
        assert_eq!(reason(&answer), expected);
        assert!(store.reservation(id).await.is_err(), "{expected}: nothing is held");
    }
    // An amount equal to the limit is allowed, and the daily limit starts again on a new day.
    let terms = Terms { max_per_call: Some(10), max_per_day: Some(10), ..budget(20) };
    let funds = weaver.authorize(terms).await;
    let turns: [TurnId; 3] = std::array::from_fn(|_| weaver.id());
    let today = worst(&mut weaver, &episode, funds, turns[0], 10);
    let settle = Operation::commit(today.hold.id(), usd(10), None, at(2 * 86_400_000));
    assert!(matches!(pay(&mut weaver, store, &episode, asked(today)).await, AppendOutcome::Committed(_)));
    assert!(matches!(pay(&mut weaver, store, &episode, settle).await, AppendOutcome::Committed(_)));
    let more = worst(&mut weaver, &episode, funds, turns[1], 1);
    assert_eq!(reason(&pay(&mut weaver, store, &episode, asked(more.clone())).await), "policy_denied.per_day_limit");
    let midnight: cantrip_canon::Timestamp = "2026-02-20T00:00:00.000Z".parse().expect("a time");
    let mut tomorrow = worst(&mut weaver, &episode, funds, turns[2], 10);
    (tomorrow.hold.at, tomorrow.hold.expires_at) = (midnight, midnight.after(Duration::from_secs(60)));
    assert!(matches!(pay(&mut weaver, store, &episode, asked(tomorrow)).await, AppendOutcome::Committed(_)));
    adds_up(store).await;
}

pub(super) async fn an_unknown_outcome_is_held_until_someone_reconciles<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let episode = weaver.cast("count").await;
    let (one, two) = (weaver.id(), weaver.id());
    let call = reserve(&mut weaver, &episode, one, 1, 20);
    let mut gate = reserve(&mut weaver, &episode, two, 1, 30);
    gate.hold.retry_class = RetryClass::DedupeReconcileRequired;
    let now = weaver.now();
    for held in [&call, &gate] {
        assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
        let mark = Operation::unknown(held.hold.id(), UnknownOutcome::TimedOut, now);
        assert!(matches!(pay(&mut weaver, store, &episode, mark).await, AppendOutcome::Committed(_)));
    }
    assert_eq!(totals(store, AuthorizationRef::Local).await, (0, 50), "the holds stay");
    let again = reserve(&mut weaver, &episode, one, 2, 20);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(again.clone())).await, AppendOutcome::Committed(_)));
    let commit = Operation::commit(again.hold.id(), usd(15), None, now);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Committed(_)));
    let acts_again = reserve(&mut weaver, &episode, two, 2, 30);
    let answer = pay(&mut weaver, store, &episode, asked(acts_again)).await;
    assert_eq!(reason(&answer), "policy_denied.reconcile_required", "whatever the request says");
    let wanted = ReservationFilter { state: Some("reconcile_required"), ..ReservationFilter::default() };
    let unknown = store.reservations(wanted, PageRequest::FIRST).await.expect("a list").items;
    assert_eq!(unknown.len(), 2);
    // Someone learns the outcome and reconciles it. This is also possible when the run is over, and needs no lease.
    weaver
        .end(
            &episode,
            Ending::Terminated {
                ended_by: EndedBy::Done,
                result: cantrip_loom::RecordValue::new(json!(1), &mut Vec::new()).expect("a value"),
            },
        )
        .await;
    let reconcile = |held: &Reserve, verdict| {
        let (by, reason) = ("user:1".to_owned(), "the provider says so".to_owned());
        Operation::reconcile(held.hold.id(), Reconciliation { verdict, by, reason, at: now, estimated: false })
    };
    let mut beside =
        async |operation| append(store, Step::annotation(weaver.step_id(), episode.run).money(operation)).await;
    assert!(matches!(beside(reconcile(&call, Verdict::Commit(usd(20)))).await, AppendOutcome::Committed(_)));
    assert!(matches!(beside(reconcile(&gate, Verdict::Release)).await, AppendOutcome::Committed(_)));
    assert!(matches!(
        beside(reconcile(&gate, Verdict::Commit(usd(1)))).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::IdempotencyConflict, .. })
    ));
    assert!(matches!(
        beside(Operation::release(call.hold.id(), now)).await,
        AppendOutcome::Conflict(Conflict::RunEnded { .. })
    ));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (35, 0));
    adds_up(store).await;
}

pub(super) async fn an_old_epoch_cannot_spend<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let (one, two) = (weaver.id(), weaver.id());
    let held = reserve(&mut weaver, &episode, one, 1, 20);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
    let owner = WorkerId::new("another").expect("a name");
    let later = episode.lease.expires_at;
    store.acquire(episode.run, owner, later, Duration::from_secs(30)).await.expect("it has expired");
    let next = reserve(&mut weaver, &episode, two, 1, 20);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(next)).await, AppendOutcome::Fenced { .. }));
    let commit = Operation::commit(held.hold.id(), usd(20), None, later);
    assert!(matches!(pay(&mut weaver, store, &episode, commit).await, AppendOutcome::Fenced { .. }));
    assert_eq!(totals(store, AuthorizationRef::Local).await, (0, 20));
}

pub(super) async fn recovery_takes_only_what_no_live_owner_holds<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 20);
    let expired = held.hold.expires_at;
    assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
    let found = |now| async move { store.recoverable(now, PageRequest::FIRST).await.expect("a list").items.len() };
    let mark = |now| Operation::unknown(held.hold.id(), UnknownOutcome::Crashed, now);
    let live = AppendOutcome::Conflict(Conflict::Money { what: held.hold.id().to_string(), fault: LedgerFault::Live });
    let lives = store.renew(&episode.lease, weaver.now(), Duration::from_secs(3_600)).await.expect("it is live");
    let long = expired.after(Duration::from_secs(600));
    assert_eq!(found(long).await, 0, "a call under a live lease is left alone, however long it takes");
    assert_eq!(append(store, Step::annotation(weaver.step_id(), episode.run).money(mark(long))).await, live);
    let gone = lives.expires_at;
    assert_eq!(found(gone).await, 1, "under a lease that is gone it is not");
    let owner = WorkerId::new("another").expect("a name");
    store.acquire(episode.run, owner, gone, Duration::from_secs(30)).await.expect("it has expired");
    assert_eq!(found(weaver.now()).await, 1, "and a later epoch owns it at once");
    let step = Step::annotation(weaver.step_id(), episode.run).money(mark(gone));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    assert_eq!(found(gone).await, 0);
    let row = store.reservation(held.hold.id()).await.expect("a row").row;
    assert_eq!((row.state_name(), row.held_micros()), ("reconcile_required", 20));
    adds_up(store).await;
}

pub(super) async fn a_hold_is_adopted_by_the_lease_that_follows<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 20);
    assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
    let (owner, later) = (WorkerId::new("another").expect("a name"), episode.lease.expires_at);
    let lease = store.acquire(episode.run, owner, later, Duration::from_secs(30)).await.expect("it has expired");
    let taken = Episode { lease, ..episode };
    let adopt = Operation::adopt(held.hold.id(), later);
    assert!(matches!(pay(&mut weaver, store, &taken, adopt.clone()).await, AppendOutcome::Committed(_)));
    assert!(matches!(pay(&mut weaver, store, &taken, adopt).await, AppendOutcome::Committed(_)));
    assert_eq!(store.recoverable(later, PageRequest::FIRST).await.expect("a list").items.len(), 0);
    assert_eq!(store.reservation(held.hold.id()).await.expect("a row").row.epoch(), taken.lease.epoch.get());
    let commit = Operation::commit(held.hold.id(), usd(20), None, later);
    assert!(matches!(pay(&mut weaver, store, &taken, commit).await, AppendOutcome::Committed(_)));
    assert_eq!(store.entries(held.hold.id()).await.expect("entries").len(), 3);
    adds_up(store).await;
}

pub(super) async fn an_approval_is_asked_for_decided_and_used_up<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let funds = weaver.authorize(Terms { mode: AuthorizationMode::Interactive, max_total: None, ..budget(0) }).await;
    let episode = weaver.cast("count").await;
    let turn = weaver.id();
    let mut held = worst(&mut weaver, &episode, funds, turn, 20);
    let answer = pay(&mut weaver, store, &episode, asked(held.clone())).await;
    assert_eq!(reason(&answer), "approval_required.interactive");
    let (approval, now): (ApprovalId, _) = (weaver.id(), weaver.now());
    let request = ApprovalRequest {
        approval,
        authorization: funds,
        run: episode.run,
        call: Some(held.hold.call.clone()),
        kind: ApprovalKind::Spend,
        subject_hash: held.question.subject.hash(),
        requested: held.hold.amount,
        by: episode.entity.to_string(),
        at: now,
        expires_at: now.after(Duration::from_secs(86_400)),
    };
    let Value::Object(said) = json!({"approval_id": approval}) else { unreachable!() };
    let event = |kind: &str| Event::Other { kind: kind.into(), payload: said.clone() };
    let step = weaver
        .step(&episode)
        .record(RecordDraft::new(now, event("approval.requested")).expect("a record"))
        .money(Operation::AskApproval(request));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    assert_eq!(store.approval(approval).await.expect("an approval").state(), ApprovalState::Pending);
    assert_eq!(totals(store, funds).await, (0, 0), "asking holds no money");
    let decide = |verdict| {
        let (by, reason) = ("user:1".to_owned(), None);
        Operation::DecideApproval(ApprovalDecision { approval, verdict, by, reason, at: now })
    };
    let decided = Step::annotation(StepId::new("decide").expect("a name"), episode.run)
        .record(RecordDraft::new(now, event("approval.decided")).expect("a record"))
        .money(decide(ApprovalVerdict::Approved(usd(20))));
    assert!(matches!(append(store, decided).await, AppendOutcome::Committed(_)));
    let step = Step::annotation(weaver.step_id(), episode.run).money(decide(ApprovalVerdict::Refused));
    assert!(matches!(
        append(store, step).await,
        AppendOutcome::Conflict(Conflict::Money { fault: LedgerFault::Decided { state: "approved" }, .. })
    ));
    held.hold.approval = Some(approval);
    let mut other = held.clone();
    other.hold.decision = weaver.id();
    other.question.subject.model = Some("scripted/other".into());
    let answer = pay(&mut weaver, store, &episode, asked(other)).await;
    assert_eq!(reason(&answer), "approval_required.interactive", "another subject needs another one");
    let mut dearer = held.clone();
    dearer.hold.decision = weaver.id();
    dearer.hold.amount = usd(21);
    let answer = pay(&mut weaver, store, &episode, asked(dearer)).await;
    assert_eq!(reason(&answer), "approval_required.interactive", "a larger amount too");
    held.hold.decision = weaver.id();
    assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
    let counters = store.approval(approval).await.expect("an approval").counters;
    assert_eq!((counters.spent, counters.reserved), (0, 20));
    adds_up(store).await;
}

pub(super) async fn decisions_are_kept_with_what_they_were_made_from<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let funds = weaver.authorize(budget(100)).await;
    let episode = weaver.cast("count").await;
    for micros in [60, 41, 101] {
        let turn = weaver.id();
        let held = worst(&mut weaver, &episode, funds, turn, micros);
        let _ = pay(&mut weaver, store, &episode, asked(held)).await;
    }
    let history = store.agreements(funds).await.expect("a history");
    let decisions = store.decisions(episode.run).await.expect("decisions");
    let codes: Vec<&str> = decisions.iter().map(|decided| decided.decision.reason_code.as_str()).collect();
    assert_eq!(codes, ["policy_allowed.default", "policy_denied.budget_exhausted"], "who waits decided nothing");
    for decided in &decisions {
        assert_eq!(replay(&decided.input, Some(&history[0].terms), &decided.decision), Ok(()));
        assert_eq!(decided.input.usage.reserved, if decided == &decisions[0] { 0 } else { 60 });
    }
    // A decision that held no money is kept too.
    let noted = DecisionRecord { id: weaver.id(), ..decisions[1].clone() };
    let note = Operation::Note(Box::new(noted.clone()));
    assert!(matches!(pay(&mut weaver, store, &episode, note).await, AppendOutcome::Committed(_)));
    assert_eq!(store.decisions(episode.run).await.expect("decisions").pop(), Some(noted));
}

pub(super) async fn the_ledger_survives_reopening<S: Subject>(subject: S) {
    let store = subject.store();
    let mut weaver = LoomWriter::new(store);
    let funds = weaver.authorize(budget(100)).await;
    let episode = weaver.cast("count").await;
    let turns: [TurnId; 3] = std::array::from_fn(|_| weaver.id());
    let held: Vec<Reserve> = turns.iter().map(|turn| worst(&mut weaver, &episode, funds, *turn, 20)).collect();
    let now = weaver.now();
    let settle = [
        Transition::Commit { actual: usd(15), provider_correlation_id: Some("ch_1".into()) },
        Transition::MarkReconcileRequired { why: UnknownOutcome::StreamCut },
    ];
    for held in &held {
        assert!(matches!(pay(&mut weaver, store, &episode, asked(held.clone())).await, AppendOutcome::Committed(_)));
    }
    for (held, to) in held.iter().zip(settle) {
        let operation = Operation::Move { reservation: held.hold.id(), to, at: now };
        assert!(matches!(pay(&mut weaver, store, &episode, operation).await, AppendOutcome::Committed(_)));
    }
    let mut rows = Vec::new();
    for held in &held {
        rows.push(store.reservation(held.hold.id()).await.expect("a row"));
    }
    let (row, history) = (store.authorization(funds).await, store.agreements(funds).await);
    let (row, history) = (row.expect("a row"), history.expect("a history"));
    let Some(again) = subject.reopen().await else { return };
    let store = again.store();
    for (held, row) in held.iter().zip(rows) {
        assert_eq!(store.reservation(held.hold.id()).await.expect("a row"), row);
    }
    assert_eq!(store.authorization(funds).await.expect("a row"), row);
    assert_eq!(store.agreements(funds).await.expect("a history"), history);
    adds_up(store).await;
}
