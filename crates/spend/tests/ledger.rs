//! For any operations in any order, the ledger adds up and no row makes a transition that the table does not allow.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip_canon::{ApprovalId, AuthorizationId, IdSource, Money, RunId, Timestamp};
use cantrip_spend::{
    AnyReservation, Approval, ApprovalDecision, ApprovalKind, ApprovalRequest, ApprovalVerdict, Authorization,
    AuthorizationMode, AuthorizationRef, Authorize, CallKey, Changes, Counters, Entry, Guards, Hold, LedgerAudit,
    LedgerCaller, LedgerFault, LedgerState, Operation, OperationOutcome, Phase, PolicyQuery, Principal, Reconciliation,
    ReservationRow, Reserve, RetryClass, Revise, Revoke, SetCap, Subject, Terms, Transition, Trifecta, UnknownOutcome,
    Verdict, WriteAccess, resolve_authorization,
};
use proptest::prelude::*;

fn at(seconds: u64) -> Timestamp {
    let start: Timestamp = "2026-02-19T23:00:00.000Z".parse().unwrap();
    start.after(Duration::from_secs(seconds))
}

fn usd(micros: i64) -> Money {
    Money::new(micros, "USD".parse().unwrap()).unwrap()
}

fn id(seed: u64) -> AuthorizationId {
    IdSource::seeded(seed).next(at(0))
}

fn run(seed: u64) -> RunId {
    IdSource::seeded(seed).next(at(0))
}

fn terms(total: i64) -> Terms {
    Terms { mode: AuthorizationMode::DelegatedBudget, max_total: Some(total), issued_at: at(0), ..Terms::local() }
}

/// A whole ledger in memory: the simplest possible store.
struct Ledger {
    book: LedgerState,
    history: BTreeMap<AuthorizationRef, Vec<Terms>>,
    entries: Vec<Entry>,
    ids: IdSource,
    replied: Vec<CallKey>,
}

impl Ledger {
    fn new() -> Self {
        let history = BTreeMap::from([(AuthorizationRef::Local, vec![Terms::local()])]);
        let ids = IdSource::seeded(3);
        Self { book: LedgerState::with_local(), history, entries: Vec::new(), ids, replied: Vec::new() }
    }

    fn with_budget(total: i64) -> (Self, AuthorizationRef) {
        let (mut ledger, budget) = (Self::new(), AuthorizationRef::Issued(id(9)));
        ledger.authorize(budget, terms(total));
        (ledger, budget)
    }

    fn authorize(&mut self, authorization: AuthorizationRef, terms: Terms) {
        let (actor, reason) = ("local".to_owned(), "a test".to_owned());
        let issue = Authorize { authorization, terms, actor, reason, at: at(0) };
        assert_eq!(
            self.apply(WriteAccess::OutsideRuns, &[Operation::Authorize(Box::new(issue))]),
            Ok(OperationOutcome::Done)
        );
    }

    fn changes(
        &self,
        right: WriteAccess,
        operations: &[Operation],
    ) -> Result<(OperationOutcome, Changes), LedgerFault> {
        let replied = |call: &CallKey| self.replied.contains(call);
        let asker = LedgerCaller { actor: "test", right, replied: &replied };
        let mut page = self.book.transaction();
        let mut last = OperationOutcome::Replay;
        for operation in operations {
            match page.apply(operation, &asker)? {
                OperationOutcome::Done => last = OperationOutcome::Done,
                OperationOutcome::Replay => {}
                stopped @ (OperationOutcome::Refused(_) | OperationOutcome::Wait) => {
                    return Ok((stopped, Changes::default()));
                }
            }
        }
        Ok((last, page.into_changes()))
    }

    fn apply(&mut self, right: WriteAccess, operations: &[Operation]) -> Result<OperationOutcome, LedgerFault> {
        let (applied, changes) = self.changes(right, operations)?;
        self.book.apply(&changes);
        for (id, agreement) in changes.agreements {
            self.history.entry(id).or_default().push(agreement.terms);
        }
        self.entries.extend(changes.entries);
        Ok(applied)
    }

    fn hold(&mut self, authorization: AuthorizationRef, call: &str, attempt: u32, micros: i64) -> Hold {
        Hold {
            authorization,
            run: run(1),
            root_run: run(1),
            call: CallKey::new(call).unwrap(),
            attempt,
            amount: usd(micros),
            retry_class: RetryClass::SafeRetry,
            scope: "ent_root".into(),
            decision: self.ids.next(at(0)),
            approval: None,
            at: at(1),
            expires_at: at(61),
        }
    }

    fn reserve(&mut self, hold: Hold) -> Result<OperationOutcome, LedgerFault> {
        self.apply(WriteAccess::Lease { epoch: 1 }, &[reserve(hold)])
    }

    fn advance(&mut self, hold: &Hold, to: Transition) -> Result<OperationOutcome, LedgerFault> {
        let operation = Operation::Move { reservation: hold.id(), to, at: at(2) };
        self.apply(WriteAccess::Lease { epoch: 1 }, &[operation])
    }

    fn totals(&self, authorization: AuthorizationRef) -> (i64, i64) {
        let Counters { spent, reserved } = self.book.authorization(authorization).unwrap().totals;
        (spent, reserved)
    }

    fn audit(&self) -> cantrip_spend::AuditReport {
        let mut audit = LedgerAudit::default();
        self.book.caps().for_each(|cap| audit.cap(cap));
        for booked in self.book.reservations() {
            let id = booked.row.terms().id();
            let entries: Vec<Entry> = self.entries.iter().filter(|entry| entry.reservation == id).cloned().collect();
            audit.reservation(booked, &entries);
        }
        self.book.authorizations().for_each(|row| audit.authorization(row, &self.history[&row.id]));
        self.book.days().for_each(|(id, day, counters)| audit.day(id, day, counters, &self.history[&id]));
        self.book.caps().for_each(|cap| audit.cap_counters(cap));
        self.book.approvals().for_each(|row| audit.approval(row));
        audit.finish()
    }

    fn adds_up(&self) {
        let findings = self.audit();
        assert!(findings.is_balanced(), "{findings:#?}");
    }
}

fn question() -> PolicyQuery {
    let run = Some(run(1).to_string());
    PolicyQuery {
        policy_id: "loop.v1".into(),
        phase: Phase::Spend,
        subject: Subject::model_call("anthropic", "anthropic/claude"),
        principal: Principal {
            owner: "local".parse().unwrap(),
            run_id: run.clone(),
            root_run_id: run,
            thread_id: None,
            autopilot_id: None,
        },
        guards: Guards::default(),
        trifecta: Trifecta::default(),
    }
}

fn reserve(hold: Hold) -> Operation {
    Operation::Reserve(Box::new(Reserve { hold, question: question() }))
}

fn commit(micros: i64) -> Transition {
    Transition::Commit { actual: usd(micros), provider_correlation_id: None }
}

fn code(applied: Result<OperationOutcome, LedgerFault>) -> String {
    match applied {
        Ok(OperationOutcome::Refused(decided)) => decided.decision.reason_code.to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_partial_capture_returns_the_rest_and_an_overage_is_booked_in_full() {
    let (mut ledger, budget) = Ledger::with_budget(100);
    let first = ledger.hold(budget, "a", 1, 60);
    assert_eq!(ledger.reserve(first.clone()), Ok(OperationOutcome::Done));
    assert_eq!(ledger.totals(budget), (0, 60));
    assert_eq!(ledger.advance(&first, commit(20)), Ok(OperationOutcome::Done));
    assert_eq!(ledger.totals(budget), (20, 0));
    let second = ledger.hold(budget, "b", 1, 80);
    assert_eq!(ledger.reserve(second.clone()), Ok(OperationOutcome::Done), "reaching the limit exactly is allowed");
    assert_eq!(ledger.advance(&second, commit(95)), Ok(OperationOutcome::Done));
    assert_eq!(ledger.totals(budget), (115, 0));
    assert_eq!(ledger.book.authorization(budget).unwrap().remaining(), Some(-15));
    let third = ledger.hold(budget, "c", 1, 1);
    assert_eq!(code(ledger.reserve(third)), "policy_denied.budget_exhausted");
    ledger.adds_up();
}

#[test]
fn holds_of_the_same_tree_are_waited_for_and_those_of_another_are_not() {
    let (mut ledger, budget) = Ledger::with_budget(100);
    let mine = ledger.hold(budget, "a", 1, 60);
    assert_eq!(ledger.reserve(mine.clone()), Ok(OperationOutcome::Done));
    let next = ledger.hold(budget, "b", 1, 60);
    assert_eq!(ledger.reserve(next.clone()), Ok(OperationOutcome::Wait));
    assert_eq!(ledger.totals(budget), (0, 60), "who waits holds nothing");
    let never = ledger.hold(budget, "c", 1, 101);
    assert_eq!(code(ledger.reserve(never)), "policy_denied.budget_exhausted", "no settling makes room for it");
    let other = Hold { run: run(2), root_run: run(2), ..ledger.hold(budget, "d", 1, 60) };
    assert_eq!(code(ledger.reserve(other)), "policy_denied.budget_exhausted");
    // An unknown outcome is not in flight: it may never settle.
    assert_eq!(
        ledger.advance(&mine, Transition::MarkReconcileRequired { why: UnknownOutcome::TimedOut }),
        Ok(OperationOutcome::Done)
    );
    assert_eq!(code(ledger.reserve(next.clone())), "policy_denied.budget_exhausted");
    let (by, reason) = ("local".to_owned(), "the provider says so".to_owned());
    let found = Reconciliation { verdict: Verdict::Release, by, reason, at: at(3), estimated: false };
    assert_eq!(ledger.advance(&mine, Transition::Reconcile(found)), Ok(OperationOutcome::Done));
    assert_eq!(ledger.reserve(next), Ok(OperationOutcome::Done));
    ledger.adds_up();
}

#[test]
fn a_cap_binds_its_subtree_beside_every_cap_above_it() {
    let (mut ledger, budget) = Ledger::with_budget(1_000);
    let cap = |scope: &str, parent: Option<&str>, limit| {
        let (scope, parent) = (scope.to_owned(), parent.map(str::to_owned));
        Operation::SetCap(SetCap { authorization: budget, scope, parent, limit: usd(limit) })
    };
    let caps =
        [cap("ent_root", None, 100), cap("ent_child", Some("ent_root"), 60), cap("ent_other", Some("ent_root"), 90)];
    assert_eq!(ledger.apply(WriteAccess::Lease { epoch: 1 }, &caps), Ok(OperationOutcome::Done));
    assert_eq!(ledger.apply(WriteAccess::Lease { epoch: 1 }, &caps), Ok(OperationOutcome::Replay));
    assert_eq!(
        ledger.apply(WriteAccess::Lease { epoch: 1 }, &[cap("ent_child", Some("ent_root"), 61)]),
        Err(LedgerFault::IdempotencyConflict)
    );
    let hold = |ledger: &mut Ledger, call: &str, scope: &str, micros| Hold {
        scope: scope.into(),
        ..ledger.hold(budget, call, 1, micros)
    };
    let child = hold(&mut ledger, "a", "ent_child", 60);
    assert_eq!(ledger.reserve(child.clone()), Ok(OperationOutcome::Done));
    let too_much = hold(&mut ledger, "b", "ent_child", 61);
    assert_eq!(code(ledger.reserve(too_much)), "policy_denied.run_limit");
    let sibling = hold(&mut ledger, "c", "ent_other", 50);
    assert_eq!(ledger.reserve(sibling.clone()), Ok(OperationOutcome::Wait), "siblings cannot overdraw together");
    assert_eq!(ledger.advance(&child, commit(55)), Ok(OperationOutcome::Done));
    assert_eq!(code(ledger.reserve(sibling)), "policy_denied.run_limit");
    let fits = hold(&mut ledger, "d", "ent_other", 45);
    assert_eq!(ledger.reserve(fits), Ok(OperationOutcome::Done));
    ledger.adds_up();
    let more = hold(&mut ledger, "e", "ent_other", 45);
    assert_eq!(ledger.reserve(more.clone()), Ok(OperationOutcome::Wait), "the root is full");
    let lower = ledger.apply(WriteAccess::Lease { epoch: 1 }, &[cap("ent_root", None, 99)]);
    assert_eq!(lower, Err(LedgerFault::IdempotencyConflict), "a cap is never lowered");
    let raised = ledger.apply(WriteAccess::Lease { epoch: 1 }, &[cap("ent_root", None, 145)]);
    assert_eq!(raised, Ok(OperationOutcome::Done));
    assert_eq!(ledger.reserve(more), Ok(OperationOutcome::Done), "the cap of a whole tree can be raised");
    ledger.adds_up();
}

#[test]
fn a_day_ends_at_midnight_and_a_late_commit_counts_on_the_day_it_was_reserved() {
    let mut ledger = Ledger::new();
    let budget = AuthorizationRef::Issued(id(9));
    ledger.authorize(budget, Terms { max_per_day: Some(100), ..terms(1_000) });
    let evening = ledger.hold(budget, "a", 1, 100);
    assert_eq!(ledger.reserve(evening.clone()), Ok(OperationOutcome::Done));
    let before = Hold { at: at(3_599), root_run: run(2), ..ledger.hold(budget, "b", 1, 1) };
    assert_eq!(code(ledger.reserve(before.clone())), "policy_denied.per_day_limit");
    let after = Hold { at: at(3_600), ..before };
    assert_eq!(ledger.reserve(after), Ok(OperationOutcome::Done));
    let late = Operation::Move { reservation: evening.id(), to: commit(90), at: at(7_200) };
    assert_eq!(ledger.apply(WriteAccess::Lease { epoch: 1 }, &[late]), Ok(OperationOutcome::Done));
    let days: Vec<(String, Counters)> =
        ledger.book.days().map(|(_, day, counters)| (day.to_owned(), counters)).collect();
    let counters = |spent, reserved| Counters { spent, reserved };
    assert_eq!(days, [("2026-02-19".into(), counters(90, 0)), ("2026-02-20".into(), counters(0, 1))]);
    ledger.adds_up();
}

#[test]
fn a_call_is_paid_for_again_only_where_that_is_known_to_be_right() {
    let (mut ledger, budget) = Ledger::with_budget(1_000);
    let first = ledger.hold(budget, "a", 1, 10);
    let second = ledger.hold(budget, "a", 2, 10);
    assert_eq!(ledger.reserve(first.clone()), Ok(OperationOutcome::Done));
    assert_eq!(
        ledger.reserve(first.clone()),
        Err(LedgerFault::NotFresh { state: "reserved" }),
        "one of two executors runs"
    );
    assert_eq!(ledger.reserve(second.clone()), Err(LedgerFault::AttemptOpen { attempt: 1 }));
    // A model call with an unknown outcome is retried as the next attempt, and both count.
    ledger.advance(&first, Transition::MarkReconcileRequired { why: UnknownOutcome::StreamCut }).unwrap();
    assert_eq!(ledger.reserve(first), Err(LedgerFault::NotFresh { state: "reconcile_required" }));
    assert_eq!(ledger.reserve(second.clone()), Ok(OperationOutcome::Done));
    assert_eq!(ledger.totals(budget), (0, 20));
    // An attempt that is known to be free is released, and the same call is reserved again.
    ledger.advance(&second, Transition::Release).unwrap();
    let third = ledger.hold(budget, "a", 3, 10);
    assert_eq!(ledger.reserve(third.clone()), Ok(OperationOutcome::Done));
    ledger.advance(&third, commit(5)).unwrap();
    let fourth = ledger.hold(budget, "a", 4, 10);
    ledger.replied.push(fourth.call.clone());
    assert_eq!(ledger.reserve(fourth), Err(LedgerFault::Replied));
    assert_eq!(ledger.totals(budget), (5, 10), "what was refused holds nothing");
    // A call that acts on the world waits for a person's check, whatever the request says.
    let gate = Hold { retry_class: RetryClass::DedupeReconcileRequired, ..ledger.hold(budget, "g", 1, 10) };
    assert_eq!(ledger.reserve(gate.clone()), Ok(OperationOutcome::Done));
    ledger
        .advance(&gate, Transition::MarkReconcileRequired { why: UnknownOutcome::MissingProviderCorrelationId })
        .unwrap();
    let bold = ledger.hold(budget, "g", 2, 10);
    assert_eq!(code(ledger.reserve(bold)), "policy_denied.reconcile_required");
    let beyond = ledger.hold(budget, "h", 33, 1);
    assert_eq!(ledger.reserve(beyond), Err(LedgerFault::Attempt { attempt: 33 }));
    ledger.adds_up();
}

#[test]
fn recovery_takes_only_what_no_live_owner_can_still_settle() {
    let (mut ledger, budget) = Ledger::with_budget(1_000);
    let hold = ledger.hold(budget, "a", 1, 10);
    ledger.reserve(hold.clone()).unwrap();
    let mark = |at| {
        let to = Transition::MarkReconcileRequired { why: UnknownOutcome::Crashed };
        [Operation::Move { reservation: hold.id(), to, at }]
    };
    let beside = |run_epoch, live_until| WriteAccess::Annotation { run_epoch, live_until };
    let long = at(3_600);
    assert_eq!(ledger.apply(beside(1, Some(at(9_000))), &mark(long)), Err(LedgerFault::Live), "however long it takes");
    assert_eq!(ledger.apply(beside(1, None), &mark(at(60))), Err(LedgerFault::Live), "its time is not over");
    assert_eq!(ledger.apply(beside(1, None), &[reserve(hold.clone())]), Err(LedgerFault::Misplaced));
    assert_eq!(ledger.apply(beside(1, None), &[Operation::release(hold.id(), long)]), Err(LedgerFault::Misplaced));
    assert_eq!(ledger.changes(beside(1, Some(at(61))), &mark(at(61))).unwrap().0, OperationOutcome::Done);
    assert_eq!(
        ledger.apply(beside(2, Some(at(9_000))), &mark(at(3))),
        Ok(OperationOutcome::Done),
        "a new epoch owns it"
    );
    assert_eq!(ledger.apply(beside(2, Some(at(9_000))), &mark(at(4))), Ok(OperationOutcome::Replay));
    ledger.adds_up();
}

#[test]
fn an_approval_is_used_up_by_the_attempts_of_its_call() {
    let mut ledger = Ledger::new();
    let asked = AuthorizationRef::Issued(id(9));
    ledger.authorize(asked, Terms { mode: AuthorizationMode::Interactive, max_total: None, ..terms(0) });
    let hold = ledger.hold(asked, "a", 1, 10);
    assert_eq!(code(ledger.reserve(hold.clone())), "approval_required.interactive");
    let approval: ApprovalId = ledger.ids.next(at(0));
    let request = ApprovalRequest {
        approval,
        authorization: asked,
        run: run(1),
        call: Some(hold.call.clone()),
        kind: ApprovalKind::Spend,
        subject_hash: question().subject.hash(),
        requested: usd(10),
        by: "ent_root".into(),
        at: at(1),
        expires_at: at(86_400),
    };
    let lease = WriteAccess::Lease { epoch: 1 };
    assert_eq!(ledger.apply(lease, &[Operation::AskApproval(request)]), Ok(OperationOutcome::Done));
    assert_eq!(ledger.totals(asked), (0, 0), "asking holds nothing");
    let hold = Hold { approval: Some(approval), ..hold };
    assert_eq!(code(ledger.reserve(hold.clone())), "approval_required.interactive");
    let decide = |verdict, at| {
        let (by, reason) = ("user:1".to_owned(), None);
        [Operation::DecideApproval(ApprovalDecision { approval, verdict, by, reason, at })]
    };
    let beside = WriteAccess::Annotation { run_epoch: 1, live_until: None };
    let late = ledger.apply(beside, &decide(ApprovalVerdict::Approved(usd(15)), at(86_400)));
    assert_eq!(late, Err(LedgerFault::Decided { state: "expired" }));
    let approved = decide(ApprovalVerdict::Approved(usd(15)), at(2));
    assert_eq!(ledger.apply(beside, &approved), Ok(OperationOutcome::Done));
    assert_eq!(ledger.apply(beside, &approved), Ok(OperationOutcome::Replay));
    let again = ledger.apply(beside, &decide(ApprovalVerdict::Refused, at(3)));
    assert_eq!(again, Err(LedgerFault::Decided { state: "approved" }));
    assert_eq!(ledger.reserve(hold.clone()), Ok(OperationOutcome::Done));
    ledger.advance(&hold, commit(8)).unwrap();
    let again = Hold { approval: Some(approval), ..ledger.hold(asked, "a", 2, 10) };
    assert_eq!(code(ledger.reserve(again)), "approval_required.interactive", "8 + 10 is more than 15");
    let again = Hold { approval: Some(approval), ..ledger.hold(asked, "a", 2, 7) };
    assert_eq!(ledger.reserve(again), Ok(OperationOutcome::Done));
    let Approval { counters, .. } = ledger.book.approval(approval).unwrap();
    assert_eq!((counters.spent, counters.reserved), (8, 7));
    ledger.adds_up();
}

#[test]
fn terms_change_by_revisions_and_revoking_stops_what_comes_after() {
    let (mut ledger, budget) = Ledger::with_budget(100);
    let revise = |expected_revision, total| {
        let (actor, reason) = ("local".to_owned(), "more".to_owned());
        let terms = terms(total);
        [Operation::Revise(Box::new(Revise {
            authorization: budget,
            expected_revision,
            terms,
            actor,
            reason,
            at: at(1),
        }))]
    };
    assert_eq!(
        ledger.apply(WriteAccess::OutsideRuns, &revise(2, 50)),
        Err(LedgerFault::Revision { expected: 2, found: 1 })
    );
    assert_eq!(ledger.apply(WriteAccess::OutsideRuns, &revise(1, 50)), Ok(OperationOutcome::Done));
    assert_eq!(ledger.apply(WriteAccess::OutsideRuns, &revise(1, 50)), Ok(OperationOutcome::Replay));
    let dear = ledger.hold(budget, "a", 1, 51);
    assert_eq!(code(ledger.reserve(dear)), "policy_denied.budget_exhausted");
    let under_way = ledger.hold(budget, "b", 1, 50);
    assert_eq!(ledger.reserve(under_way.clone()), Ok(OperationOutcome::Done));
    let revoke = Revoke { authorization: budget, actor: "local".into(), reason: "enough".into(), at: at(1) };
    assert_eq!(
        ledger.apply(WriteAccess::OutsideRuns, &[Operation::Revoke(revoke.clone())]),
        Ok(OperationOutcome::Done)
    );
    assert_eq!(ledger.apply(WriteAccess::OutsideRuns, &[Operation::Revoke(revoke)]), Ok(OperationOutcome::Replay));
    let later = ledger.hold(budget, "c", 1, 1);
    assert_eq!(code(ledger.reserve(later)), "policy_denied.authorization_revoked");
    assert_eq!(ledger.advance(&under_way, commit(40)), Ok(OperationOutcome::Done), "what was under way is settled");
    assert_eq!(ledger.history[&budget].len(), 3);
    ledger.adds_up();
}

#[test]
fn the_most_specific_authorization_is_the_answer_and_nothing_wider_stands_in_for_it() {
    let named = |seed, run_id: Option<&str>, autopilot: Option<&str>, seconds| {
        let mut terms = Terms { issued_at: at(seconds), ..terms(1) };
        (terms.scope.run_id, terms.scope.autopilot_id) = (run_id.map(str::to_owned), autopilot.map(str::to_owned));
        Authorization::new(AuthorizationRef::Issued(id(seed)), terms, "local".into(), "a test".into(), at(0))
    };
    let run = run(1).to_string();
    let wide = named(1, None, None, 50);
    let newer = named(2, None, None, 60);
    let for_run = named(3, Some(&run), None, 1);
    let for_agent = named(4, None, Some("analyst"), 2);
    let elsewhere = named(5, Some("run_elsewhere"), None, 99);
    let principal = Principal { autopilot_id: Some("analyst".into()), ..question().principal };
    let found = |rows: &[&Authorization]| resolve_authorization(rows.iter().copied(), &principal).map(|row| row.id);
    assert_eq!(found(&[&wide, &for_agent, &for_run, &newer, &elsewhere]), Some(for_run.id));
    assert_eq!(found(&[&wide, &for_agent, &newer, &elsewhere]), Some(for_agent.id));
    assert_eq!(found(&[&wide, &newer]), Some(newer.id));
    assert_eq!(found(&[&elsewhere]), None);
    let mut over = for_run.clone();
    over.agreement.terms.expires_at = Some(at(1));
    assert_eq!(found(&[&over, &wide]), Some(over.id), "an expired one is the answer, and its answer is no");
    let remote = Principal { owner: "guest:1".parse().unwrap(), ..principal.clone() };
    assert_eq!(
        resolve_authorization([&Authorization::local()], &remote),
        None,
        "whoever is not local never gets auth_local"
    );
}

#[test]
fn a_counter_that_was_edited_is_found_with_both_numbers() {
    let (mut ledger, budget) = Ledger::with_budget(1_000);
    let hold = ledger.hold(budget, "a", 1, 60);
    ledger.reserve(hold.clone()).unwrap();
    ledger.advance(&hold, commit(20)).unwrap();
    let mut row = ledger.book.authorization(budget).unwrap().clone();
    row.totals.spent = 19;
    ledger.book.insert_authorization(row);
    let findings = ledger.audit();
    let found: Vec<(i64, i64)> = findings.differences.iter().map(|found| (found.stored, found.reckoned)).collect();
    assert_eq!(found, [(19, 20), (19, 20)], "{findings:#?}");
    ledger.entries.pop();
    assert!(!ledger.audit().is_balanced());
}

/// An operation of a random writer.
#[derive(Debug, Clone)]
enum Asked {
    Reserve { call: u8, attempt: u32, micros: i64, scope: u8, dedupe: bool, late: bool },
    Commit { call: u8, attempt: u32, micros: i64 },
    Release { call: u8, attempt: u32 },
    Mark { call: u8, attempt: u32 },
    Reconcile { call: u8, attempt: u32, micros: Option<i64> },
    Adopt { call: u8, attempt: u32 },
    Raise { total: i64 },
    Revoke,
}

fn asked() -> impl Strategy<Value = Asked> {
    let (call, attempt) = (0_u8..4, 1_u32..4);
    prop_oneof![
        6 => (call.clone(), attempt.clone(), 0_i64..60, 0_u8..3, any::<bool>(), any::<bool>())
            .prop_map(|(call, attempt, micros, scope, dedupe, late)| {
                Asked::Reserve { call, attempt, micros, scope, dedupe, late }
            }),
        4 => (call.clone(), attempt.clone(), 0_i64..80)
            .prop_map(|(call, attempt, micros)| Asked::Commit { call, attempt, micros }),
        2 => (call.clone(), attempt.clone()).prop_map(|(call, attempt)| Asked::Release { call, attempt }),
        2 => (call.clone(), attempt.clone()).prop_map(|(call, attempt)| Asked::Mark { call, attempt }),
        2 => (call.clone(), attempt.clone(), prop::option::of(0_i64..80))
            .prop_map(|(call, attempt, micros)| Asked::Reconcile { call, attempt, micros }),
        1 => (call, attempt).prop_map(|(call, attempt)| Asked::Adopt { call, attempt }),
        1 => (0_i64..400).prop_map(|total| Asked::Raise { total }),
        1 => Just(Asked::Revoke),
    ]
}

/// Returns true if the row of an attempt may change so: a second, independent version of the transition table.
fn follows(before: Option<&str>, asked: &Asked, after: Option<&str>) -> bool {
    if before == after {
        return true;
    }
    matches!(
        (before, asked, after),
        (None, Asked::Reserve { .. }, Some("reserved"))
            | (Some("reserved"), Asked::Commit { .. }, Some("committed"))
            | (Some("reserved"), Asked::Release { .. }, Some("released"))
            | (Some("reserved"), Asked::Mark { .. }, Some("reconcile_required"))
            | (Some("reconcile_required"), Asked::Reconcile { micros: Some(_), .. }, Some("committed"))
            | (Some("reconcile_required"), Asked::Reconcile { micros: None, .. }, Some("released"))
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_is_asked_the_ledger_adds_up_and_rows_move_by_the_table(asked in prop::collection::vec(asked(), 1..60)) {
        let (mut ledger, budget) = Ledger::with_budget(200);
        let cap = |scope: &str, parent: Option<&str>, limit| {
            let (scope, parent) = (scope.to_owned(), parent.map(str::to_owned));
            Operation::SetCap(SetCap { authorization: budget, scope, parent, limit: usd(limit) })
        };
        let caps = [cap("ent_0", None, 150), cap("ent_1", Some("ent_0"), 60)];
        ledger.apply(WriteAccess::Lease { epoch: 1 }, &caps).unwrap();
        let states = |book: &LedgerState| -> BTreeMap<String, &'static str> {
            book.reservations()
                .map(|ReservationRow { row, .. }| (format!("{}:{}", row.terms().call, row.terms().attempt), row.state_name()))
                .collect()
        };
        // The reference model: the held amount and the cost of each attempt, computed from the outcomes alone.
        let mut model: BTreeMap<(u8, u32), (i64, i64)> = BTreeMap::new();
        let mut revision = 1;
        for (place, asked) in asked.iter().enumerate() {
            let before = states(&ledger.book);
            let named = |call: u8, attempt: u32| {
                let hold = Hold { authorization: budget, ..Ledger::new().hold(budget, &format!("c{call}"), attempt, 1) };
                hold.id()
            };
            let advance = |call: u8, attempt: u32, to: Transition| vec![Operation::Move {
                reservation: named(call, attempt), to, at: at(2),
            }];
            let (right, operations) = match asked.clone() {
                Asked::Reserve { call, attempt, micros, scope, dedupe, late } => {
                    let class = if dedupe { RetryClass::DedupeReconcileRequired } else { RetryClass::SafeRetry };
                    let hold = Hold {
                        scope: format!("ent_{scope}"),
                        retry_class: class,
                        at: if late { at(4_000) } else { at(1) },
                        ..ledger.hold(budget, &format!("c{call}"), attempt, micros)
                    };
                    (WriteAccess::Lease { epoch: 1 }, vec![reserve(hold)])
                }
                Asked::Commit { call, attempt, micros } => {
                    (WriteAccess::Lease { epoch: 1 }, advance(call, attempt, commit(micros)))
                }
                Asked::Release { call, attempt } => {
                    (WriteAccess::Lease { epoch: 1 }, advance(call, attempt, Transition::Release))
                }
                Asked::Mark { call, attempt } => {
                    let to = Transition::MarkReconcileRequired { why: UnknownOutcome::TimedOut };
                    (WriteAccess::Lease { epoch: 1 }, advance(call, attempt, to))
                }
                Asked::Reconcile { call, attempt, micros } => {
                    let verdict = micros.map_or(Verdict::Release, |micros| Verdict::Commit(usd(micros)));
                    let (by, reason) = ("user:1".to_owned(), "looked".to_owned());
                    let found = Reconciliation { verdict, by, reason, at: at(2), estimated: false };
                    let right = WriteAccess::Annotation { run_epoch: 1, live_until: None };
                    (right, advance(call, attempt, Transition::Reconcile(found)))
                }
                Asked::Adopt { call, attempt } => (WriteAccess::Lease { epoch: 2 }, advance(call, attempt, Transition::Adopt)),
                Asked::Raise { total } => {
                    let (actor, reason) = ("local".to_owned(), "otherwise".to_owned());
                    let now = ledger.book.authorization(budget).unwrap().terms().clone();
                    let terms = Terms { max_total: Some(total), ..now };
                    let revise = Revise {
                        authorization: budget, expected_revision: revision, terms, actor, reason, at: at(2),
                    };
                    (WriteAccess::OutsideRuns, vec![Operation::Revise(Box::new(revise))])
                }
                Asked::Revoke if place > 40 => {
                    let (actor, reason) = ("local".to_owned(), "enough".to_owned());
                    (WriteAccess::OutsideRuns, vec![Operation::Revoke(Revoke { authorization: budget, actor, reason, at: at(1) })])
                }
                Asked::Revoke => continue,
            };
            let applied = ledger.apply(right, &operations);
            revision = ledger.book.authorization(budget).unwrap().agreement.revision;
            let after = states(&ledger.book);
            let keys: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for key in keys {
                let (before, after) = (before.get(key).copied(), after.get(key).copied());
                prop_assert!(follows(before, asked, after), "{:?}: {:?} to {:?}", asked, before, after);
            }
            if applied == Ok(OperationOutcome::Done) {
                match asked.clone() {
                    Asked::Reserve { call, attempt, micros, .. } => {
                        model.insert((call, attempt), (micros, 0));
                    }
                    Asked::Commit { call, attempt, micros }
                    | Asked::Reconcile { call, attempt, micros: Some(micros) } => {
                        model.insert((call, attempt), (0, micros));
                    }
                    Asked::Release { call, attempt } | Asked::Reconcile { call, attempt, micros: None } => {
                        model.insert((call, attempt), (0, 0));
                    }
                    Asked::Mark { .. } | Asked::Adopt { .. } | Asked::Raise { .. } | Asked::Revoke => {}
                }
            }
            let expected = model.values().fold((0, 0), |(spent, held), (hold, cost)| (spent + cost, held + hold));
            prop_assert_eq!(ledger.totals(budget), expected);
            let findings = ledger.audit();
            prop_assert!(findings.is_balanced(), "{:#?} after {:?}", findings, asked);
        }
    }
}

/// Serialization must not lose anything: every operation, and a reserved row, read back as they were written.
#[test]
fn operations_read_back_as_they_were_written() {
    let (mut ledger, budget) = Ledger::with_budget(1_000);
    let hold = ledger.hold(budget, "a", 1, 60);
    let operations = [
        reserve(hold.clone()),
        Operation::commit(hold.id(), usd(5), Some("ch_1".into()), at(1)),
        Operation::release(hold.id(), at(1)),
        Operation::unknown(hold.id(), UnknownOutcome::StreamCut, at(1)),
        Operation::adopt(hold.id(), at(1)),
    ];
    for operation in operations {
        let text = serde_json::to_string(&operation).unwrap();
        assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), operation);
    }
    ledger.reserve(hold.clone()).unwrap();
    let ReservationRow { row, .. } = ledger.book.reservation(&hold.id()).unwrap();
    assert!(matches!(row, AnyReservation::Reserved(_)));
}
