//! Tests of the criteria for serving an artifact to everyone.

use std::time::Duration;

use cantrip_canon::Timestamp;
use cantrip_contract::{
    CompiledId, EvalStatus, Pointer, PromotionCriteria, PromotionEvidence, PromotionEvidenceFault, PromotionRule,
    Schema, Split, StoredEvidence, UnmetCriterion, promotion_evidence_schema,
};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_code, guarded};
use serde_json::{Value, json};

fn artifact(letter: char) -> CompiledId {
    format!("art_{}", letter.to_string().repeat(32)).parse().unwrap()
}

fn at(day: u64) -> Timestamp {
    Timestamp::EPOCH.after(Duration::from_secs(day * 86_400))
}

/// A pointer that serves `a`.
fn pointer() -> Pointer {
    Pointer {
        signature_id: "@cantrip/text/Classify.v1".parse().unwrap(),
        primary_artifact: artifact('a'),
        canary_artifact: None,
        canary_percent: 0,
        rollout_seed: "default".to_owned(),
        metadata: json!({}),
        version: 1,
        head_audit_id: None,
        updated_at: at(0),
        updated_by: "local".to_owned(),
    }
}

/// An evaluation of `b` against `a` that is just good enough.
fn evaluation() -> PromotionEvidence {
    PromotionEvidence {
        eval_id: "eval_1".to_owned(),
        signature_id: pointer().signature_id,
        status: EvalStatus::Succeeded,
        split: Split::Test,
        compiled_id: artifact('b'),
        baseline_id: Some(artifact('a')),
        scored: 30,
        delta_low_micro: Some(1),
        cost_per_call_micro: 125,
        baseline_cost_per_call_micro: 100,
        created_at: at(10),
    }
}

/// The unmet criteria for `b` on the last day on which the evaluation counts.
fn unmet(bar: PromotionCriteria, evaluation: Option<&PromotionEvidence>) -> Vec<&'static str> {
    bar.unmet(&artifact('b'), &pointer(), evaluation, at(40)).iter().map(UnmetCriterion::name).collect()
}

#[test]
fn what_is_just_good_enough_passes() {
    assert_eq!(unmet(PromotionCriteria::default(), Some(&evaluation())), [""; 0]);
    // The report's clock is slightly ahead of ours.
    let ahead = PromotionEvidence { created_at: at(40).after(Duration::from_secs(5 * 60)), ..evaluation() };
    assert_eq!(unmet(PromotionCriteria::default(), Some(&ahead)), [""; 0]);
}

#[test]
fn each_thing_that_is_missing_is_told_by_its_name() {
    let other = || "@cantrip/eval/Judge.v1".parse().unwrap();
    let cases: Vec<(&str, PromotionEvidence)> = vec![
        ("other_signature", PromotionEvidence { signature_id: other(), ..evaluation() }),
        ("not_succeeded", PromotionEvidence { status: EvalStatus::Incomplete, ..evaluation() }),
        ("not_succeeded", PromotionEvidence { status: EvalStatus::BudgetExhausted, ..evaluation() }),
        ("not_on_test", PromotionEvidence { split: Split::Train, ..evaluation() }),
        ("not_on_test", PromotionEvidence { split: Split::Holdout, ..evaluation() }),
        ("other_artifact", PromotionEvidence { compiled_id: artifact('c'), ..evaluation() }),
        ("other_baseline", PromotionEvidence { baseline_id: Some(artifact('c')), ..evaluation() }),
        ("other_baseline", PromotionEvidence { baseline_id: None, ..evaluation() }),
        ("too_few_examples", PromotionEvidence { scored: 29, ..evaluation() }),
        ("too_old", PromotionEvidence { created_at: at(9), ..evaluation() }),
        (
            "in_the_future",
            PromotionEvidence { created_at: at(40).after(Duration::from_millis(5 * 60_000 + 1)), ..evaluation() },
        ),
        ("not_better", PromotionEvidence { delta_low_micro: Some(0), ..evaluation() }),
        ("not_better", PromotionEvidence { delta_low_micro: None, ..evaluation() }),
        ("too_dear", PromotionEvidence { cost_per_call_micro: 126, ..evaluation() }),
    ];
    for (name, evaluation) in cases {
        assert_eq!(unmet(PromotionCriteria::default(), Some(&evaluation)), [name], "{evaluation:?}");
    }
    assert_eq!(unmet(PromotionCriteria::default(), None), ["report_missing"]);
}

#[test]
fn not_worse_is_a_margin_and_a_price_may_be_agreed_on() {
    let not_worse = PromotionCriteria { rule: PromotionRule::NOT_WORSE, ..PromotionCriteria::default() };
    let by = |low: i64| PromotionEvidence { delta_low_micro: Some(low), ..evaluation() };
    assert_eq!(unmet(not_worse, Some(&by(-20_000))), [""; 0]);
    assert_eq!(unmet(not_worse, Some(&by(-20_001))), ["worse"]);
    let dear = PromotionEvidence { cost_per_call_micro: 200, ..evaluation() };
    assert_eq!(
        unmet(PromotionCriteria { cost_percent_max: 200, ..PromotionCriteria::default() }, Some(&dear)),
        [""; 0]
    );
    // If calls are free now, they must be free after the promotion.
    let free = PromotionEvidence { cost_per_call_micro: 1, baseline_cost_per_call_micro: 0, ..evaluation() };
    assert_eq!(unmet(PromotionCriteria::default(), Some(&free)), ["too_dear"]);
}

#[test]
fn all_that_is_missing_is_told_at_once() {
    let bad = PromotionEvidence {
        split: Split::Train,
        scored: 3,
        created_at: at(0),
        delta_low_micro: Some(-5),
        ..evaluation()
    };
    let missing = PromotionCriteria::default().unmet(&artifact('b'), &pointer(), Some(&bad), at(40));
    let reply = guarded(|rb| rb.refuse(PromotionCriteria::refusal(&artifact('b'), &missing))).reply;
    assert_code(&reply, codes::PROMOTE_GATE);
    assert_eq!(reply.data()["conditions"], json!(["not_on_test", "too_few_examples", "too_old", "not_better"]));
}

/// The path at which a report is refused.
fn refused_at(written: &Value) -> String {
    match PromotionEvidence::from_value(written) {
        Err(PromotionEvidenceFault::Field { path, .. }) => path,
        other => panic!("{other:?} of {written}"),
    }
}

#[test]
fn a_report_reads_back_as_it_was_written_and_its_schema_knows_it() {
    let schema = Schema::compile(promotion_evidence_schema()).unwrap();
    let bare = PromotionEvidence { baseline_id: None, delta_low_micro: None, ..evaluation() };
    for evaluation in [evaluation(), bare] {
        let written = evaluation.content();
        assert_eq!(PromotionEvidence::parse(&written.to_string()).unwrap(), evaluation);
        assert_eq!(schema.violations(&written), []);
    }
    assert_eq!(
        evaluation().hash().unwrap().to_string(),
        cantrip_canon::stable_hash(&evaluation().content()).unwrap().to_string()
    );
}

#[test]
fn a_report_that_is_wrong_anywhere_is_refused_there_by_the_reader_and_by_the_schema() {
    let schema = Schema::compile(promotion_evidence_schema()).unwrap();
    let whole = evaluation().content();
    // Every field is required, and no field may have another type.
    for key in whole.as_object().unwrap().keys() {
        let mut lacking = whole.clone();
        lacking.as_object_mut().unwrap().remove(key);
        assert_eq!(refused_at(&lacking), format!("/{key}"));
        assert_ne!(schema.violations(&lacking), []);
        let mut strange = whole.clone();
        strange[key] = json!([1]);
        assert_eq!(refused_at(&strange), format!("/{key}"));
        assert_ne!(schema.violations(&strange), []);
    }
    for (key, wrong) in [
        ("v", json!(2)),
        ("kind", json!("receipt")),
        ("eval_id", json!("1")),
        ("eval_id", json!("eval_")),
        ("eval_id", json!("eval_a b")),
        ("eval_id", json!(format!("eval_{}", "a".repeat(200)))),
        ("status", json!("fine")),
        ("split", json!("tests")),
        ("compiled_id", json!("art_1")),
        ("baseline_id", json!("")),
        ("scored", json!(-1)),
        ("scored", json!(30.5)),
        ("delta_low_micro", json!(1_000_001)),
        ("delta_low_micro", json!(0.1)),
        ("cost_per_call_micro", json!("0.01 USD")),
        ("created_at", json!("yesterday")),
    ] {
        let mut strange = whole.clone();
        strange[key] = wrong.clone();
        assert_eq!(refused_at(&strange), format!("/{key}"), "{wrong}");
        assert_ne!(schema.violations(&strange), [], "{key} {wrong}");
    }
    let mut more = whole.clone();
    more["a/b"] = json!(1);
    assert_eq!(refused_at(&more), "/a~1b");
    assert_eq!(refused_at(&json!([])), "");
    // A duplicate key is ambiguous, and half a report is not a report.
    let twice = whole.to_string().replacen('{', r#"{"scored": 99,"#, 1);
    for text in [&twice, &whole.to_string()[..100]] {
        let fault = PromotionEvidence::parse(text).unwrap_err();
        assert!(matches!(fault, PromotionEvidenceFault::Json(_)), "{fault:?}");
    }
    let padded = format!("{whole}{}", " ".repeat(64 << 10));
    assert!(matches!(PromotionEvidence::parse(&padded), Err(PromotionEvidenceFault::Large(_))));
}

/// A stored evaluation of `b` that is just good enough.
fn stored() -> StoredEvidence {
    StoredEvidence {
        evidence: evaluation(),
        report_hash: cantrip_canon::bytes_hash(b"a report"),
        altered: None,
        has_unproven_judge: false,
        spent_look: None,
        is_reproducible: true,
    }
}

fn unmet_by(stored: &StoredEvidence, accept: bool) -> Vec<&'static str> {
    let bar = PromotionCriteria::default();
    let unmet = bar.unmet_by_stored(&artifact('b'), &pointer(), stored, accept, at(40));
    unmet.iter().map(UnmetCriterion::name).collect()
}

#[test]
fn a_stored_evaluation_can_fail_for_more_reasons_and_all_are_told() {
    assert_eq!(unmet_by(&stored(), false), [""; 0]);
    assert_eq!(unmet_by(&StoredEvidence { has_unproven_judge: true, ..stored() }, false), ["judge_unproven"]);
    assert_eq!(unmet_by(&StoredEvidence { spent_look: Some(21), ..stored() }, false), ["test_spent"]);
    let unsteady = StoredEvidence { is_reproducible: false, ..stored() };
    assert_eq!(unmet_by(&unsteady, false), ["not_reproducible"]);
    assert_eq!(unmet_by(&unsteady, true), [""; 0], "the caller may accept it");
    let everything = StoredEvidence {
        evidence: PromotionEvidence { split: Split::Holdout, scored: 3, ..evaluation() },
        altered: Some("result ex_1: score".to_owned()),
        has_unproven_judge: true,
        spent_look: Some(21),
        ..unsteady
    };
    let all = ["not_on_test", "too_few_examples", "altered", "judge_unproven", "test_spent", "not_reproducible"];
    assert_eq!(unmet_by(&everything, false), all);
    let unmet = PromotionCriteria::default().unmet_by_stored(&artifact('b'), &pointer(), &everything, false, at(40));
    let reply = guarded(|rb| rb.refuse(PromotionCriteria::refusal(&artifact('b'), &unmet))).reply;
    assert_code(&reply, codes::PROMOTE_GATE);
    let rules = reply.data()["unmet"].as_array().unwrap();
    assert_eq!(
        (rules.len(), &rules[2]["rule"]),
        (6, &json!("its stored rows do not give its report: result ex_1: score"))
    );
}

#[test]
fn the_audit_says_whether_the_evaluation_was_made_here() {
    let bar = PromotionCriteria::default();
    let elsewhere = bar.check(&artifact('b'), &pointer(), Some(evaluation()), at(40)).unwrap();
    assert_eq!(elsewhere.audit_value()["external"], json!(true));
    assert_eq!(elsewhere.evidence_summary(), json!({"eval_id": "eval_1", "external": true}));
    let here = bar.check_stored(&artifact('b'), &pointer(), stored(), false, at(40)).unwrap();
    let kept = here.audit_value();
    assert_eq!((&kept["external"], &kept["report_hash"]), (&json!(false), &json!(stored().report_hash)));
    assert!(kept.get("not_reproducible").is_none());
    let unsteady = StoredEvidence { is_reproducible: false, ..stored() };
    let accepted = bar.check_stored(&artifact('b'), &pointer(), unsteady, true, at(40)).unwrap();
    assert_eq!(accepted.audit_value()["not_reproducible"], json!(true));
}
