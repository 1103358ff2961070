//! Every operation on a reservation in every state does what the table says.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::{IdSource, Money, Timestamp};
use cantrip_spend::{
    AnyReservation, AuthorizationRef, CallKey, Delta, Hold, LedgerFault, Reconciliation, RetryClass, Transition,
    TransitionOutcome, UnknownOutcome, Verdict, advance, limits,
};

/// One line of the table.
#[derive(Debug, Clone)]
enum Operation {
    Reserve(Hold),
    Move(Transition),
}

fn apply(row: Option<AnyReservation>, operation: &Operation, epoch: u64) -> Result<TransitionOutcome, LedgerFault> {
    match operation {
        Operation::Reserve(hold) => cantrip_spend::reserve(row, hold, epoch),
        Operation::Move(to) => advance(row, to, Timestamp::EPOCH, epoch),
    }
}

fn usd(micros: i64) -> Money {
    Money::new(micros, "USD".parse().unwrap()).unwrap()
}

fn asked() -> Hold {
    let ids = IdSource::seeded(1);
    let run = ids.next(Timestamp::EPOCH);
    Hold {
        authorization: AuthorizationRef::Local,
        run,
        root_run: run,
        call: CallKey::new("turn_x:0").unwrap(),
        attempt: 1,
        amount: usd(18_000),
        retry_class: RetryClass::SafeRetry,
        scope: "ent_x".into(),
        decision: ids.next(Timestamp::EPOCH),
        approval: None,
        at: Timestamp::EPOCH,
        expires_at: Timestamp::EPOCH,
    }
}

fn commit(micros: i64) -> Operation {
    Operation::Move(Transition::Commit { actual: usd(micros), provider_correlation_id: None })
}

fn release() -> Operation {
    Operation::Move(Transition::Release)
}

fn mark(why: UnknownOutcome) -> Operation {
    Operation::Move(Transition::MarkReconcileRequired { why })
}

fn reconcile(verdict: Verdict) -> Operation {
    let (by, reason, at) = ("user:1".into(), "looked it up".into(), Timestamp::EPOCH);
    Operation::Move(Transition::Reconcile(Reconciliation { verdict, by, reason, at, estimated: false }))
}

fn adopt() -> Operation {
    Operation::Move(Transition::Adopt)
}

/// A row after these operations.
fn row(operations: &[Operation]) -> Option<AnyReservation> {
    operations.iter().fold(None, |row, operation| match apply(row, operation, 1).unwrap() {
        TransitionOutcome::Fresh(row, _) | TransitionOutcome::Moved(row, _) => Some(row),
        other @ (TransitionOutcome::Replay
        | TransitionOutcome::InFlight
        | TransitionOutcome::Unresolved
        | TransitionOutcome::Settled) => panic!("{other:?}"),
    })
}

fn reserve() -> Operation {
    Operation::Reserve(asked())
}

/// The outcome of an operation, in the words of the table.
fn outcome(row: Option<AnyReservation>, operation: &Operation) -> String {
    match apply(row, operation, 2) {
        Ok(TransitionOutcome::Fresh(row, Delta { spent, reserved })) => {
            format!("fresh {} {spent} {reserved}", row.state_name())
        }
        Ok(TransitionOutcome::Moved(row, Delta { spent, reserved })) => {
            format!("{} {spent} {reserved}", row.state_name())
        }
        Ok(TransitionOutcome::Replay) => "replay".into(),
        Ok(TransitionOutcome::InFlight) => "in flight".into(),
        Ok(TransitionOutcome::Unresolved) => "unresolved".into(),
        Ok(TransitionOutcome::Settled) => "settled".into(),
        Err(LedgerFault::NotFound { .. }) => "not found".into(),
        Err(LedgerFault::InvalidTransition { .. }) => "invalid".into(),
        Err(LedgerFault::IdempotencyConflict) => "conflict".into(),
        Err(other) => other.to_string(),
    }
}

#[test]
fn the_transition_table_holds() {
    let reserved = || row(&[reserve()]);
    let unknown = || row(&[reserve(), mark(UnknownOutcome::TimedOut)]);
    let committed = || row(&[reserve(), commit(1_290)]);
    let released = || row(&[reserve(), release()]);
    let commit_verdict = || reconcile(Verdict::Commit(usd(500)));
    let release_verdict = || reconcile(Verdict::Release);
    let table: [(&str, Operation, [&str; 5]); 7] = [
        ("reserve", reserve(), ["fresh reserved 0 18000", "in flight", "unresolved", "settled", "settled"]),
        ("commit", commit(1_290), ["not found", "committed 1290 -18000", "invalid", "replay", "invalid"]),
        ("release", release(), ["not found", "released 0 -18000", "invalid", "invalid", "replay"]),
        (
            "mark",
            mark(UnknownOutcome::Crashed),
            ["not found", "reconcile_required 0 0", "replay", "invalid", "invalid"],
        ),
        (
            "reconcile commit",
            commit_verdict(),
            ["not found", "invalid", "committed 500 -18000", "conflict", "conflict"],
        ),
        ("reconcile release", release_verdict(), ["not found", "invalid", "released 0 -18000", "conflict", "conflict"]),
        ("adopt", adopt(), ["not found", "reserved 0 0", "invalid", "invalid", "invalid"]),
    ];
    for (name, operation, expected) in table {
        let found = [None, reserved(), unknown(), committed(), released()].map(|row| outcome(row, &operation));
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_verdict_given_again_is_a_replay_and_another_one_a_conflict() {
    let paid = || row(&[reserve(), mark(UnknownOutcome::Crashed), reconcile(Verdict::Commit(usd(500)))]);
    assert_eq!(outcome(paid(), &reconcile(Verdict::Commit(usd(500)))), "replay");
    assert_eq!(outcome(paid(), &reconcile(Verdict::Commit(usd(501)))), "conflict");
    assert_eq!(outcome(paid(), &reconcile(Verdict::Release)), "conflict");
    let gone = || row(&[reserve(), mark(UnknownOutcome::Crashed), reconcile(Verdict::Release)]);
    assert_eq!(outcome(gone(), &reconcile(Verdict::Release)), "replay");
    assert_eq!(outcome(gone(), &reconcile(Verdict::Commit(usd(1)))), "conflict");
}

#[test]
fn more_than_was_reserved_is_booked_in_full() {
    match row(&[reserve(), commit(20_000)]) {
        Some(AnyReservation::Committed(paid)) => {
            assert_eq!((paid.state().actual, paid.state().overage), (usd(20_000), usd(2_000)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_repeat_cannot_change_amount_class_actual_or_correlation() {
    let reserved = || row(&[reserve()]);
    let dearer = Operation::Reserve(Hold { amount: usd(18_001), ..asked() });
    assert_eq!(outcome(reserved(), &dearer), "conflict");
    let bolder = Operation::Reserve(Hold { retry_class: RetryClass::DedupeReconcileRequired, ..asked() });
    assert_eq!(outcome(reserved(), &bolder), "conflict");
    let committed = || row(&[reserve(), commit(1_290)]);
    assert_eq!(outcome(committed(), &commit(1_291)), "conflict");
    let correlated =
        Operation::Move(Transition::Commit { actual: usd(1_290), provider_correlation_id: Some("ch_1".into()) });
    assert_eq!(outcome(committed(), &correlated), "conflict");
}

#[test]
fn an_attempt_beyond_the_limit_an_amount_of_zero_and_another_currency_are_refused() {
    let reserve = |attempt, amount| Operation::Reserve(Hold { attempt, amount, ..asked() });
    assert_eq!(apply(None, &reserve(0, usd(1)), 1), Err(LedgerFault::Attempt { attempt: 0 }));
    let beyond = limits::ATTEMPTS_MAX + 1;
    assert_eq!(apply(None, &reserve(beyond, usd(1)), 1), Err(LedgerFault::Attempt { attempt: beyond }));
    assert_eq!(apply(None, &reserve(1, usd(0)), 1), Err(LedgerFault::Zero));
    let sats =
        Operation::Move(Transition::Commit { actual: "1.0 SAT".parse().unwrap(), provider_correlation_id: None });
    assert!(matches!(apply(row(&[self::reserve()]), &sats, 1), Err(LedgerFault::Money(_))));
}

#[test]
fn rows_read_back_as_they_were_written() {
    for row in [row(&[reserve()]), row(&[reserve(), commit(5)]), row(&[reserve(), mark(UnknownOutcome::TimedOut)])] {
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Option<AnyReservation>>(&text).unwrap(), row);
    }
}
