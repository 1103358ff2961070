//! The records of policy, approvals, money, predicts and jobs: the bytes that runs wrote, for the first kinds before
//! they had types, and payloads that do not fit the types.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_canon::{RunId, Timestamp, bytes_hash};
use cantrip_loom::{Epoch, Event, Kind, Record, RecordDraft, Seq};

/// One line per record: its kind, `true` for the first record of a run, and the stored text.
const RECORDED: &str = include_str!("fixtures/events.txt");

fn record(kind: &str, first: bool, payload: &str) -> Record {
    Record {
        run: "run_01khst0880r5e052fc5m592szj".parse::<RunId>().unwrap(),
        seq: Seq::new(if first { 1 } else { 2 }),
        kind: Kind::named(kind),
        at: Timestamp::EPOCH,
        epoch: Epoch::NONE,
        payload: payload.into(),
        hash: bytes_hash(payload.as_bytes()),
    }
}

#[test]
fn each_kind_reads_and_writes_the_recorded_bytes() {
    let mut kinds = std::collections::BTreeSet::new();
    for line in RECORDED.lines() {
        let [kind, first, payload] = line.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
        let stored = record(kind, first == "true", payload);
        let event = stored.event().unwrap();
        assert!(!matches!(event, Event::Other { .. }), "it has no type: {line}");
        let draft = match stored.opening().unwrap() {
            Some(opening) => RecordDraft::opening(stored.at, opening, event),
            None => RecordDraft::new(stored.at, event),
        };
        let draft = draft.unwrap();
        assert_eq!(draft.payload(), payload, "{kind}");
        assert!(draft.matches_record(&stored));
        kinds.insert(kind);
    }
    let all = [
        "approval.decided",
        "approval.requested",
        "job.accepted",
        "job.asked",
        "job.closed",
        "job.continued",
        "job.opened",
        "job.parked",
        "job.progress",
        "job.proposed",
        "job.scored",
        "policy.decision",
        "predict.closed",
        "predict.opened",
        "spend.overage",
        "spend.reconcile_required",
        "spend.reserved",
        "spend.settled",
    ];
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), all);
}

#[test]
fn a_payload_that_does_not_fit_its_kind_is_kept_as_it_is() {
    let later = r#"{"approval_id":"apr_01khst0880r5e052fc5m592szj","decision":"approved","v":2}"#;
    for (kind, payload) in [
        ("approval.requested", r#"{"approval_id":"apr_01khst0880r5e052fc5m592szj","v":1}"#),
        ("approval.decided", later),
        ("spend.reserved", r#"{"call_id":7,"v":1}"#),
        ("predict.closed", r#"{"status":"elsewhere","v":1}"#),
        ("job.closed", r#"{"status":"elsewhere","v":1}"#),
        ("weather.changed", r#"{"to":"rain","v":9}"#),
    ] {
        let stored = record(kind, false, payload);
        let event = stored.event().unwrap();
        assert!(matches!(&event, Event::Other { kind: name, .. } if name == kind), "{event:?}");
        let draft = RecordDraft::new(stored.at, event).unwrap();
        assert_eq!(draft.payload(), payload);
        assert!(draft.matches_record(&stored), "{kind}");
        assert_eq!(RecordDraft::copy(&stored).unwrap().payload(), payload);
    }
    assert!(record("turn", false, "{}").event().is_err(), "a kind that always had a type must fit it");
}
