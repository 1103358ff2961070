//! Every operation on a reservation in every state does what the table says.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::{IdSource, Money, Timestamp};
use cantrip_spend::{
    AuthorizationRef, CallKey, Change, Entry, Fault, Operation, Reconciliation, Reserve, RetryClass, Row, Unknown,
    Verdict, apply, limits,
};

fn usd(micros: i64) -> Money {
    Money::new(micros, "USD".parse().unwrap()).unwrap()
}

fn asked() -> Reserve {
    Reserve {
        authorization: AuthorizationRef::Local,
        run: IdSource::seeded(1).next(Timestamp::EPOCH),
        call: CallKey::new("turn_x:0").unwrap(),
        attempt: 1,
        amount: usd(18_000),
        retry_class: RetryClass::SafeRetry,
        scope: "ent_x".into(),
        subject: None,
        at: Timestamp::EPOCH,
        expires_at: Timestamp::EPOCH,
    }
}

fn commit(micros: i64) -> Operation {
    let (reservation, at) = (asked().id(), Timestamp::EPOCH);
    Operation::Commit { reservation, actual: usd(micros), provider_correlation_id: None, at }
}

fn release() -> Operation {
    Operation::Release { reservation: asked().id(), at: Timestamp::EPOCH }
}

fn mark(why: Unknown) -> Operation {
    Operation::MarkReconcileRequired { reservation: asked().id(), why, at: Timestamp::EPOCH }
}

fn reconcile(verdict: Verdict) -> Operation {
    let reconciliation =
        Reconciliation { verdict, by: "user:1".into(), reason: "looked it up".into(), at: Timestamp::EPOCH };
    Operation::Reconcile { reservation: asked().id(), reconciliation }
}

fn adopt() -> Operation {
    Operation::Adopt { reservation: asked().id() }
}

/// A row after these operations.
fn row(operations: &[Operation]) -> Option<Row> {
    operations.iter().fold(None, |row, operation| match apply(row, operation, 1).unwrap() {
        Change::Fresh(row, _) | Change::Moved(row, _) => Some(row),
        other @ (Change::Replay | Change::InFlight | Change::Unresolved | Change::Settled) => panic!("{other:?}"),
    })
}

fn reserve() -> Operation {
    Operation::Reserve(asked())
}

/// What an operation comes to, in the words of the table.
fn outcome(row: Option<Row>, operation: &Operation) -> String {
    match apply(row, operation, 2) {
        Ok(Change::Fresh(row, Entry { spent_micros, reserved_micros })) => {
            format!("fresh {} {spent_micros} {reserved_micros}", row.state_name())
        }
        Ok(Change::Moved(row, Entry { spent_micros, reserved_micros })) => {
            format!("{} {spent_micros} {reserved_micros}", row.state_name())
        }
        Ok(Change::Replay) => "replay".into(),
        Ok(Change::InFlight) => "in flight".into(),
        Ok(Change::Unresolved) => "unresolved".into(),
        Ok(Change::Settled) => "settled".into(),
        Err(Fault::NotFound) => "not found".into(),
        Err(Fault::InvalidTransition { .. }) => "invalid".into(),
        Err(Fault::IdempotencyConflict) => "conflict".into(),
        Err(other @ (Fault::Attempt { .. } | Fault::Zero | Fault::Money(_))) => other.to_string(),
    }
}

#[test]
fn the_transition_table_holds() {
    let reserved = || row(&[reserve()]);
    let unknown = || row(&[reserve(), mark(Unknown::TimedOut)]);
    let committed = || row(&[reserve(), commit(1_290)]);
    let released = || row(&[reserve(), release()]);
    let commit_verdict = || reconcile(Verdict::Commit(usd(500)));
    let release_verdict = || reconcile(Verdict::Release);
    let table: [(&str, Operation, [&str; 5]); 7] = [
        ("reserve", reserve(), ["fresh reserved 0 18000", "in flight", "unresolved", "settled", "settled"]),
        ("commit", commit(1_290), ["not found", "committed 1290 -18000", "invalid", "replay", "invalid"]),
        ("release", release(), ["not found", "released 0 -18000", "invalid", "invalid", "replay"]),
        ("mark", mark(Unknown::Crashed), ["not found", "reconcile_required 0 0", "replay", "invalid", "invalid"]),
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
    let paid = || row(&[reserve(), mark(Unknown::Crashed), reconcile(Verdict::Commit(usd(500)))]);
    assert_eq!(outcome(paid(), &reconcile(Verdict::Commit(usd(500)))), "replay");
    assert_eq!(outcome(paid(), &reconcile(Verdict::Commit(usd(501)))), "conflict");
    assert_eq!(outcome(paid(), &reconcile(Verdict::Release)), "conflict");
    let gone = || row(&[reserve(), mark(Unknown::Crashed), reconcile(Verdict::Release)]);
    assert_eq!(outcome(gone(), &reconcile(Verdict::Release)), "replay");
    assert_eq!(outcome(gone(), &reconcile(Verdict::Commit(usd(1)))), "conflict");
}

#[test]
fn more_than_was_reserved_is_booked_in_full() {
    match row(&[reserve(), commit(20_000)]) {
        Some(Row::Committed(paid)) => {
            assert_eq!((paid.state().actual, paid.state().overage), (usd(20_000), usd(2_000)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_repeat_cannot_change_amount_class_actual_or_correlation() {
    let reserved = || row(&[reserve()]);
    let dearer = Operation::Reserve(Reserve { amount: usd(18_001), ..asked() });
    assert_eq!(outcome(reserved(), &dearer), "conflict");
    let bolder = Operation::Reserve(Reserve { retry_class: RetryClass::DedupeReconcileRequired, ..asked() });
    assert_eq!(outcome(reserved(), &bolder), "conflict");
    let committed = || row(&[reserve(), commit(1_290)]);
    assert_eq!(outcome(committed(), &commit(1_291)), "conflict");
    let correlated = Operation::Commit {
        reservation: asked().id(),
        actual: usd(1_290),
        provider_correlation_id: Some("ch_1".into()),
        at: Timestamp::EPOCH,
    };
    assert_eq!(outcome(committed(), &correlated), "conflict");
}

#[test]
fn an_attempt_beyond_the_limit_an_amount_of_zero_and_another_currency_are_refused() {
    let reserve = |attempt, amount| Operation::Reserve(Reserve { attempt, amount, ..asked() });
    assert_eq!(apply(None, &reserve(0, usd(1)), 1), Err(Fault::Attempt { attempt: 0 }));
    let beyond = limits::ATTEMPTS_MAX + 1;
    assert_eq!(apply(None, &reserve(beyond, usd(1)), 1), Err(Fault::Attempt { attempt: beyond }));
    assert_eq!(apply(None, &reserve(1, usd(0)), 1), Err(Fault::Zero));
    let sats = Operation::Commit {
        reservation: asked().id(),
        actual: "1.0 SAT".parse().unwrap(),
        provider_correlation_id: None,
        at: Timestamp::EPOCH,
    };
    assert!(matches!(apply(row(&[self::reserve()]), &sats, 1), Err(Fault::Money(_))));
}

#[test]
fn operations_and_rows_read_back_as_they_were_written() {
    for operation in [reserve(), commit(5), release(), mark(Unknown::StreamCut), reconcile(Verdict::Release), adopt()] {
        let text = serde_json::to_string(&operation).unwrap();
        assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), operation);
    }
    for row in [row(&[reserve()]), row(&[reserve(), commit(5)]), row(&[reserve(), mark(Unknown::TimedOut)])] {
        let text = serde_json::to_string(&row).unwrap();
        assert_eq!(serde_json::from_str::<Option<Row>>(&text).unwrap(), row);
    }
}
