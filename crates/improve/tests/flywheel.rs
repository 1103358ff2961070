//! The decisions of the flywheel: is the data enough, what became of a winner, what is offered about a canary?

use cantrip::canon::{AuditId, Timestamp};
use cantrip_contract::{
    Canary, ChangeAuthor, CompiledId, Dataset, ExampleDraft, ExampleSource, Metric, Pointer, PointerAudit,
    PointerOperation, SignatureId, SourceKind, Split, SplitPolicy, Subject,
};
use cantrip_improve::eval::{SuggestedAction, Suggestion};
use cantrip_improve::flywheel::{
    CanaryFinding, DataLack, DataReadiness, Offer, OfferedAction, StepName, WinnerStanding, winner_standing,
};
use cantrip_improve::limits::FLYWHEEL_LABELLED_TEST_MIN;
use serde_json::{Value, json};

fn metric() -> Metric {
    let value = json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "/team", "normalise": "none"});
    Metric::from_stored(&value).unwrap()
}

/// Builds a dataset of examples with these splits and expected outputs.
fn dataset(examples: impl IntoIterator<Item = (Split, Option<Value>)>) -> Dataset {
    let subject: Subject = "@me/support/Triage.v1".parse().unwrap();
    let drafts = examples.into_iter().enumerate().map(|(number, (split, expected))| {
        let source = ExampleSource { kind: SourceKind::File, id: "tickets".to_owned(), line: None };
        let input = json!({ "ticket": format!("ticket {number}") });
        ExampleDraft { expected, split: Some(split), ..ExampleDraft::new(input, source) }
    });
    let policy = SplitPolicy { given: true, ..SplitPolicy::default() };
    Dataset::build(subject, drafts.collect(), &policy, &[]).unwrap().dataset
}

fn team(number: u64) -> Option<Value> {
    Some(json!({"team": if number.is_multiple_of(2) { "billing" } else { "shipping" }, "why": number}))
}

#[test]
fn thirty_labelled_test_examples_are_enough_and_one_less_is_not() {
    let least = FLYWHEEL_LABELLED_TEST_MIN;
    let enough = dataset((0..least).map(|number| (Split::Test, team(number))));
    let readiness = DataReadiness::of(&enough, &metric());
    assert_eq!((readiness.labelled_test, readiness.different, readiness.lack()), (least, 2, None));

    // Labelled train examples and unlabelled test examples do not stand in for the missing one.
    let fewer = (0..least - 1).map(|number| (Split::Test, team(number)));
    let others = [(Split::Train, team(0)), (Split::Train, team(1)), (Split::Test, None)];
    let readiness = DataReadiness::of(&dataset(fewer.chain(others)), &metric());
    assert_eq!((readiness.labelled, readiness.unlabelled), (least + 1, 1));
    // A fifth of new examples go to the test split.
    let lack = DataLack::FewLabelled { found: least - 1, least, to_judge: 5 };
    assert_eq!(readiness.lack(), Some(lack));
    let lack = DataLack::FewLabelled { found: 0, least, to_judge: 150 };
    assert_eq!(DataReadiness::empty().lack(), Some(lack));
}

#[test]
fn the_label_is_what_the_metric_reads() {
    // The outputs differ, but not in what is scored.
    let same = (0..40).map(|number| (Split::Test, Some(json!({"team": "billing", "why": number}))));
    let readiness = DataReadiness::of(&dataset(same), &metric());
    assert_eq!(readiness.lack(), Some(DataLack::OneLabel { label: "billing".to_owned() }));
    let whole = json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "", "normalise": "none"});
    let same = (0..40).map(|number| (Split::Test, Some(json!({"team": "billing", "why": number}))));
    let readiness = DataReadiness::of(&dataset(same), &Metric::from_stored(&whole).unwrap());
    assert_eq!((readiness.different, readiness.lack()), (40, None));
}

/// A pointer with its audits, each a minute after the one before it.
#[derive(Default)]
struct Rollout {
    pointer: Option<Pointer>,
    audits: Vec<PointerAudit>,
}

fn at(minute: u64) -> Timestamp {
    format!("2026-02-19T02:{minute:02}:00.000Z").parse().unwrap()
}

fn artifact(digit: char) -> CompiledId {
    format!("art_{}", digit.to_string().repeat(32)).parse().unwrap()
}

impl Rollout {
    fn change(mut self, operation: PointerOperation, actor: &str) -> Self {
        let signature: SignatureId = "@me/support/Triage.v1".parse().unwrap();
        let minute = self.audits.len() as u64;
        let by = ChangeAuthor {
            audit_id: AuditId::from_parts(at(minute), [minute as u8; 10]),
            actor: actor.to_owned(),
            reason: Some(format!("change {minute}")),
            at: at(minute),
        };
        let version = self.pointer.as_ref().map_or(0, |pointer| pointer.version);
        let audits = self.audits.clone();
        let found = |id: AuditId| audits.iter().find(|audit| audit.audit_id == id).cloned();
        let update = operation.apply(&signature, self.pointer.as_ref(), version, by, &found).unwrap().unwrap();
        self.pointer = Some(update.pointer);
        self.audits.push(update.audit);
        self
    }

    fn set(self, artifact: CompiledId) -> Self {
        self.change(PointerOperation::Set { artifact, seed: None, metadata: None }, "local")
    }

    fn canary(self, artifact: CompiledId) -> Self {
        self.change(PointerOperation::Canary(Canary { artifact, percent: 10 }), "local")
    }

    fn standing(&self, since: u64) -> WinnerStanding {
        winner_standing(&artifact('b'), self.pointer.as_ref(), &self.audits, at(since))
    }
}

#[test]
fn a_winner_is_untried_on_canary_live_or_withdrawn_as_the_audits_say() {
    assert_eq!(Rollout::default().standing(0), WinnerStanding::Untried, "there is no pointer");
    let served = || Rollout::default().set(artifact('a'));
    assert_eq!(served().standing(0), WinnerStanding::Untried);
    assert_eq!(served().canary(artifact('c')).standing(0), WinnerStanding::Untried, "another canary");
    let on_canary = || served().canary(artifact('b'));
    assert_eq!(on_canary().standing(0), WinnerStanding::Canary);
    assert_eq!(on_canary().set(artifact('b')).standing(0), WinnerStanding::Live);
    let cleared = on_canary().change(PointerOperation::Clear, "guard");
    let withdrawn = WinnerStanding::Withdrawn { by: "guard".to_owned(), reason: Some("change 2".to_owned()) };
    assert_eq!(cleared.standing(0), withdrawn);
    let replaced = on_canary().canary(artifact('c'));
    let withdrawn = WinnerStanding::Withdrawn { by: "local".to_owned(), reason: Some("change 2".to_owned()) };
    assert_eq!(replaced.standing(0), withdrawn);
    let rolled_back = on_canary().change(PointerOperation::Rollback { to: None }, "local");
    assert_eq!(rolled_back.standing(0), withdrawn);
    // A withdrawal before the report says nothing about the winner of a later compile.
    let cleared = on_canary().change(PointerOperation::Clear, "guard");
    assert_eq!(cleared.standing(3), WinnerStanding::Untried);
}

#[test]
fn an_offer_follows_the_guard_first_and_then_the_evaluation() {
    let suggestion = |action| Suggestion { action, reason: "the interval includes 0".to_owned() };
    let promote = suggestion(SuggestedAction::Promote);
    let canary = suggestion(SuggestedAction::Canary);
    let worse = CanaryFinding::Worse("score 0.6 beside 0.8".to_owned());
    let cleared = CanaryFinding::Cleared("score 0.6 beside 0.8".to_owned());
    let fine = CanaryFinding::NotWorse("look 1".to_owned());
    let few = CanaryFinding::TooFew { units: 12, wanted: 50 };
    let id = artifact('b');
    let cases = [
        (&worse, Some(&promote), OfferedAction::Clear, "cantrip pointer canary Triage --off".to_owned()),
        (&cleared, Some(&promote), OfferedAction::Clear, "cantrip improve Triage".to_owned()),
        (&few, Some(&promote), OfferedAction::Wait, "cantrip receipt verdict --next Triage".to_owned()),
        (&fine, Some(&promote), OfferedAction::Promote, format!("cantrip pointer promote Triage {id}")),
        (&fine, Some(&canary), OfferedAction::Wait, "cantrip receipt verdict --next Triage".to_owned()),
        (&fine, None, OfferedAction::Wait, format!("cantrip eval {id} --dataset DATASET --metric METRIC")),
    ];
    for (finding, suggestion, action, command) in cases {
        let offer = Offer::about("Triage", &id, finding, suggestion);
        assert_eq!((offer.action, offer.command), (action, command), "{finding:?}");
    }
    let offer = Offer::about("Triage", &id, &fine, Some(&canary));
    assert!(offer.reason.contains("the interval includes 0"), "the unmet condition is told: {}", offer.reason);
}

#[test]
fn the_steps_are_numbered_in_their_order() {
    let numbers: Vec<u8> = StepName::ALL.iter().map(|step| step.number()).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(serde_json::to_value(StepName::Gather).unwrap(), StepName::Gather.as_str());
}
