use std::collections::HashMap;

use cantrip_canon::{AuditId, IdSource, Timestamp};
use cantrip_contract::{
    Action, Canary, CanaryScope, ChangeAuthor, CompiledId, Pointer, PointerAudit, PointerFault, PointerOperation,
    PromotionGrounds, RolloutSide, SignatureId, bucket, limits::ROLLOUT_TEXT_BYTES_MAX,
};
use cantrip_reply::codes;
use proptest::prelude::*;

use crate::signatures::refused;

fn id() -> SignatureId {
    "@cantrip/text/Classify.v1".parse().unwrap()
}

fn artifact(letter: char) -> CompiledId {
    format!("art_{}", letter.to_string().repeat(32)).parse().unwrap()
}

/// A pointer and its audits, as a store has them.
#[derive(Default)]
struct Kept {
    pointer: Option<Pointer>,
    audits: HashMap<AuditId, PointerAudit>,
    order: Vec<AuditId>,
}

impl Kept {
    fn change(&mut self, change: PointerOperation) -> Result<bool, PointerFault> {
        let expected = self.pointer.as_ref().map_or(0, |pointer| pointer.version);
        self.changed(change, expected, Some("a reason"))
    }

    fn changed(&mut self, change: PointerOperation, expected: u64, reason: Option<&str>) -> Result<bool, PointerFault> {
        let at = Timestamp::from_unix_millis(self.order.len() as i64 + 1).unwrap();
        let audit_id = IdSource::seeded(self.order.len() as u64).next(at);
        let by = ChangeAuthor { audit_id, actor: "user:42".to_owned(), reason: reason.map(str::to_owned), at };
        let found = |id: AuditId| self.audits.get(&id).cloned();
        let Some(changed) = change.apply(&id(), self.pointer.as_ref(), expected, by, &found)? else { return Ok(false) };
        assert_eq!(changed.audit.before, self.pointer);
        assert_eq!(changed.audit.after, changed.pointer);
        assert_eq!(changed.audit.version_after, expected + 1);
        self.pointer = Some(changed.pointer);
        self.order.push(changed.audit.audit_id);
        self.audits.insert(changed.audit.audit_id, changed.audit);
        Ok(true)
    }

    fn primary(&self) -> &CompiledId {
        &self.pointer.as_ref().unwrap().primary_artifact
    }
}

fn set(letter: char) -> PointerOperation {
    PointerOperation::Set { artifact: artifact(letter), seed: None, metadata: None }
}

fn promote(letter: char) -> PointerOperation {
    PointerOperation::Promote {
        artifact: artifact(letter),
        grounds: Box::new(PromotionGrounds::Forced { evaluation: None }),
    }
}

#[test]
fn buckets_are_the_published_ones() {
    for (seed, key, wanted) in [
        ("default", "run_1", 47),
        ("default", "run_2", 77),
        ("default", "user:42", 43),
        ("seed-alpha", "run_1", 85),
        ("seed-alpha", "thread_9", 65),
        ("default", "größe", 96),
    ] {
        assert_eq!(bucket(&id(), seed, key), wanted, "{seed} {key}");
    }
}

#[test]
fn a_caller_is_counted_by_its_key_its_run_its_thread_its_agent_and_its_owner_in_this_order() {
    let id = |text: &str| Some(text.to_owned());
    let mut scope = CanaryScope {
        canary_key: id("key"),
        run_id: id("run_1"),
        thread_id: id("ent_1"),
        autopilot_id: id("analyst"),
        owner: id("user:42"),
    };
    let pointer = {
        let mut kept = Kept::default();
        kept.change(set('a')).unwrap();
        kept.change(PointerOperation::Canary(Canary { artifact: artifact('b'), percent: 50 })).unwrap();
        kept.pointer.unwrap()
    };
    let mut keys = Vec::new();
    for take in [
        (|scope: &mut CanaryScope| scope.canary_key.take()) as fn(&mut CanaryScope) -> Option<String>,
        |scope| scope.run_id.take(),
        |scope| scope.thread_id.take(),
        |scope| scope.autopilot_id.take(),
        |scope| scope.owner.take(),
        |_| None,
    ] {
        assert_eq!(pointer.variant_for(&scope), pointer.variant(scope.key()));
        keys.push(scope.key().to_owned());
        take(&mut scope);
    }
    assert_eq!(keys, ["key", "run_1", "ent_1", "analyst", "user:42", "default"]);
}

#[test]
fn an_id_that_is_empty_or_too_long_is_refused_by_its_name() {
    let empty = CanaryScope { autopilot_id: Some(String::new()), ..CanaryScope::default() };
    assert_eq!(empty.check().unwrap_err().code(), codes::SCHEMA.any());
    let long = CanaryScope { run_id: Some("x".repeat(ROLLOUT_TEXT_BYTES_MAX + 1)), ..CanaryScope::default() };
    assert_eq!(long.check().unwrap_err().code(), codes::LIMIT.any());
    let longest = CanaryScope { run_id: Some("x".repeat(ROLLOUT_TEXT_BYTES_MAX)), ..CanaryScope::default() };
    assert!(longest.check().is_ok());
}

#[test]
fn the_share_of_the_canary_is_what_was_asked_and_a_key_is_never_moved_back() {
    let mut kept = Kept::default();
    kept.change(set('a')).unwrap();
    let mut before: Option<Vec<bool>> = None;
    for percent in [0, 1, 10, 25, 50, 99, 100] {
        kept.change(PointerOperation::Canary(Canary { artifact: artifact('b'), percent })).unwrap();
        let pointer = kept.pointer.as_ref().unwrap();
        let sides: Vec<bool> =
            (0..100_000).map(|key| pointer.variant(&format!("key {key}")).variant == RolloutSide::Canary).collect();
        let share = sides.iter().filter(|canary| **canary).count() as f64 / 1_000.0;
        assert!((share - f64::from(percent)).abs() <= 0.5, "{percent} percent gave {share}");
        if let Some(before) = &before {
            assert!(before.iter().zip(&sides).all(|(before, now)| !before || *now), "raised to {percent}");
        }
        before = Some(sides);
    }
    kept.change(PointerOperation::Canary(Canary { artifact: artifact('b'), percent: 0 })).unwrap();
    let pointer = kept.pointer.as_ref().unwrap();
    assert!((0..1_000).all(|key| pointer.variant(&format!("key {key}")).variant == RolloutSide::Primary));
}

#[test]
fn walking_back_lands_where_each_change_began() {
    let mut kept = Kept::default();
    for letter in ['a', 'b', 'c', 'd'] {
        kept.change(if letter == 'a' { set('a') } else { promote(letter) }).unwrap();
    }
    kept.change(PointerOperation::Rollback { to: None }).unwrap();
    assert_eq!(kept.primary(), &artifact('c'));
    kept.change(PointerOperation::Rollback { to: None }).unwrap();
    assert_eq!(kept.primary(), &artifact('b'));
    kept.change(promote('e')).unwrap();
    kept.change(PointerOperation::Rollback { to: None }).unwrap();
    kept.change(PointerOperation::Rollback { to: None }).unwrap();
    assert_eq!(kept.primary(), &artifact('a'));
    let fault = kept.change(PointerOperation::Rollback { to: None }).expect_err("the first one had nothing before it");
    assert_eq!(fault, PointerFault::NothingToUndo);
    let reply = refused(fault.refusal(&id(), kept.pointer.as_ref()), codes::WRONG_STATE.any());
    assert_eq!(reply.data()["reason"], "rollback_unavailable");
    assert_eq!(kept.pointer.as_ref().unwrap().version, 9);
    assert_eq!(kept.order.len(), 9, "every change has its audit");
}

#[test]
fn a_rollback_to_an_audit_undoes_it_and_all_after_and_one_off_the_way_is_refused() {
    let mut kept = Kept::default();
    for letter in ['a', 'b', 'c', 'd'] {
        kept.change(if letter == 'a' { set('a') } else { promote(letter) }).unwrap();
    }
    let (second, third) = (kept.order[1], kept.order[2]);
    kept.change(PointerOperation::Rollback { to: Some(second) }).unwrap();
    assert_eq!(kept.primary(), &artifact('a'));
    let last = kept.audits[kept.order.last().unwrap()].clone();
    assert_eq!((last.action, last.target_audit_id), (Action::Rollback, Some(second)));
    let fault = kept.change(PointerOperation::Rollback { to: Some(third) }).expect_err("it was undone already");
    assert_eq!(fault, PointerFault::NotOnTheWay(third));
}

#[test]
fn a_change_from_another_version_is_refused_with_the_present_row() {
    let mut kept = Kept::default();
    assert_eq!(kept.change(PointerOperation::Clear), Err(PointerFault::Missing));
    kept.change(set('a')).unwrap();
    let fault = kept.changed(set('b'), 0, None).expect_err("someone was first");
    assert_eq!(fault, PointerFault::Version { actual: 1, expected: 0 });
    let reply = refused(fault.refusal(&id(), kept.pointer.as_ref()), codes::VERSION_CONFLICT.any());
    assert_eq!(reply.data()["pointer"]["version"], 1);
    let unknown = refused(PointerFault::Missing.refusal(&id(), None), codes::CONTRACT_UNKNOWN.any());
    assert!(unknown.message().contains("Classify.v1"), "{}", unknown.message());
}

#[test]
fn what_changes_nothing_leaves_no_version_and_no_audit() {
    let mut kept = Kept::default();
    kept.change(set('a')).unwrap();
    assert_eq!(kept.change(set('a')), Ok(false));
    assert_eq!(kept.change(PointerOperation::Clear), Ok(false));
    assert_eq!((kept.order.len(), kept.pointer.unwrap().version), (1, 1));
}

#[test]
fn promoting_the_canary_clears_it_and_passing_over_the_gate_needs_a_reason() {
    let mut kept = Kept::default();
    kept.change(set('a')).unwrap();
    kept.change(PointerOperation::Canary(Canary { artifact: artifact('b'), percent: 25 })).unwrap();
    assert_eq!(kept.changed(promote('b'), 2, Some("  ")), Err(PointerFault::Unreasoned));
    kept.change(promote('b')).unwrap();
    let pointer = kept.pointer.as_ref().unwrap();
    assert_eq!(
        (&pointer.primary_artifact, &pointer.canary_artifact, pointer.canary_percent),
        (&artifact('b'), &None, 0)
    );
    assert!(kept.audits[kept.order.last().unwrap()].forced);
    assert_eq!(
        kept.change(PointerOperation::Canary(Canary { artifact: artifact('c'), percent: 101 })),
        Err(PointerFault::Percent(101))
    );
    let seed = PointerOperation::Set { artifact: artifact('a'), seed: Some("a|b".to_owned()), metadata: None };
    assert_eq!(kept.change(seed), Err(PointerFault::Seed));
}

proptest! {
    #[test]
    fn the_version_counts_every_change_and_the_audits_lead_back_to_the_beginning(
        changes in prop::collection::vec(0_u8..6, 1..40)
    ) {
        let mut kept = Kept::default();
        for (step, change) in changes.into_iter().enumerate() {
            let letter = char::from(b'a' + (step % 6) as u8);
            let _ = kept.change(match change {
                0 | 1 => set(letter),
                2 => PointerOperation::Canary(Canary { artifact: artifact(letter), percent: (step * 7 % 101) as u8 }),
                3 => PointerOperation::Clear,
                4 => promote(letter),
                _ => PointerOperation::Rollback { to: None },
            });
            let version = kept.pointer.as_ref().map_or(0, |pointer| pointer.version);
            prop_assert_eq!(version as usize, kept.order.len());
        }
        // After any changes, rolling back as often as possible ends at the first pointer.
        let Some(first) = kept.order.first().map(|id| kept.audits[id].after.clone()) else { return Ok(()) };
        while kept.change(PointerOperation::Rollback { to: None }).is_ok() {}
        let last = kept.pointer.clone().expect("a pointer");
        prop_assert_eq!(last.primary_artifact, first.primary_artifact);
        prop_assert_eq!(last.canary_percent, first.canary_percent);
    }
}
