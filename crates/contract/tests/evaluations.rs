//! Jobs, trials, verdicts and reports as values: their names follow from their content, and stored ones are read
//! strictly.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{Hash, Timestamp, stable_hash};
use cantrip_contract::{
    AgreementPart, CandidateId, CastsPart, EvalId, EvalReport, JobKind, JobSpec, JudgePart, LabelPart, Labels,
    OptimiserSpec, ReceiptId, ReportId, Schema, Side, Split, Subject, TrialKey, Unscored, Verdict, VerdictId,
    VerdictWord, eval_report_schema, results_hash,
};
use serde_json::{Value, json};

use crate::improve_goldens::{golden, results};

fn hash_of(text: &str) -> Hash {
    stable_hash(&json!(text)).unwrap()
}

fn candidate(kind: &str, letter: char) -> CandidateId {
    format!("{kind}_{}", letter.to_string().repeat(32)).parse().unwrap()
}

fn spec() -> JobSpec {
    JobSpec::from_value(&golden("job")["spec"]).unwrap()
}

fn report() -> EvalReport {
    EvalReport::from_value(&golden("report")["body"]).unwrap()
}

#[test]
fn every_part_of_a_spec_is_part_of_the_job_hash() {
    let changes: [fn(&mut JobSpec); 18] = [
        |spec| spec.kind = JobKind::Compile,
        |spec| spec.of = Subject::of_spell("analyst").unwrap(),
        |spec| spec.hashes = None,
        |spec| spec.hashes.as_mut().unwrap().prompt_hash = hash_of("other"),
        |spec| spec.dataset_hash = hash_of("other"),
        |spec| spec.base = Some(candidate("art", 'c')),
        |spec| spec.subject = Some(candidate("art", 'c')),
        |spec| spec.baseline = None,
        |spec| spec.split = Split::Holdout,
        |spec| spec.metric["pointer"] = json!("/other"),
        |spec| spec.optimiser = Some(OptimiserSpec { id: "gepa.v1".to_owned(), options: json!({"minibatch": 3}) }),
        |spec| spec.models.task = None,
        |spec| spec.models.teacher = Some("a/b".to_owned()),
        |spec| spec.models.judge = Some("a/b".to_owned()),
        |spec| spec.epochs = 2,
        |spec| spec.seed = "other".to_owned(),
        |spec| spec.compiler_version = "improve.v2".to_owned(),
        |spec| spec.rerun = 1,
    ];
    let mut hashes = BTreeSet::from([spec().job_hash()]);
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = spec();
        change(&mut changed);
        assert!(hashes.insert(changed.job_hash()), "change {number}");
        assert_eq!(JobSpec::from_value(&changed.content()).unwrap(), changed, "change {number}");
    }
}

#[test]
fn the_spec_of_a_spell_names_cantrips_and_variants() {
    let spell = JobSpec {
        of: Subject::of_spell("analyst").unwrap(),
        hashes: None,
        base: Some(candidate("can", 'a')),
        subject: Some(candidate("var", 'b')),
        baseline: Some(candidate("can", 'a')),
        ..spec()
    };
    let content = spell.content();
    assert_eq!(content["signature_id"], json!("spell:analyst"));
    assert_eq!(content["schema_hash"], Value::Null);
    assert_eq!(JobSpec::from_value(&content).unwrap(), spell);
    assert_eq!(candidate("var", 'b').artifact(), None);
    assert!(candidate("art", 'b').artifact().is_some());
    let compile = JobSpec { kind: JobKind::Compile, subject: None, ..spec() };
    assert_eq!((compile.eval_id(), compile.eval_report_id()), (None, None));
}

#[test]
fn a_spec_that_is_not_whole_is_refused() {
    let whole = spec().content();
    let wrong = [
        ("v", json!(2)),
        ("kind", json!("guard")),
        ("signature_id", json!("Classify")),
        ("schema_hash", Value::Null),
        ("base", json!("art_1")),
        ("subject", json!("run_1")),
        ("split", json!("dev")),
        ("optimiser", json!({"id": "gepa.v1"})),
        ("models", json!({"task": null, "writer": null})),
        ("epochs", json!(0)),
        ("epochs", json!(21)),
        ("rerun", json!(-1)),
        ("budget", json!(1)),
    ];
    for (key, value) in wrong {
        let mut changed = whole.clone();
        changed[key] = value.clone();
        assert!(JobSpec::from_value(&changed).is_err(), "{key}: {value}");
    }
    assert!(JobSpec::from_value(&json!([])).is_err());
}

#[test]
fn a_trial_has_one_key_and_one_run() {
    let key = TrialKey {
        job_hash: spec().job_hash(),
        candidate: candidate("can", 'a'),
        example_id: "ex_1".parse().unwrap(),
        epoch: 1,
        attempt: 1,
    };
    let others = [
        TrialKey { job_hash: hash_of("other"), ..key.clone() },
        TrialKey { candidate: candidate("can", 'b'), ..key.clone() },
        TrialKey { example_id: "ex_2".parse().unwrap(), ..key.clone() },
        TrialKey { epoch: 2, ..key.clone() },
        TrialKey { attempt: 2, ..key.clone() },
    ];
    let opened: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
    let run = key.run_id(opened);
    assert_eq!(run, key.run_id(opened));
    assert_eq!(run.made_at(), opened);
    let later: Timestamp = "2026-02-19T02:00:00.001Z".parse().unwrap();
    assert_ne!(run, key.run_id(later));
    let mut keys = BTreeSet::from([key.idempotency_key()]);
    let mut runs = BTreeSet::from([run]);
    for other in others {
        assert!(keys.insert(other.idempotency_key()), "{other:?}");
        assert!(runs.insert(other.run_id(opened)), "{other:?}");
    }
}

#[test]
fn every_part_of_a_result_is_part_of_the_results_hash() {
    let base = results();
    let receipt: ReceiptId = format!("rcpt_{}", "a".repeat(32)).parse().unwrap();
    let mut hashes = BTreeSet::from([results_hash(&base)]);
    let mut shuffled = base.clone();
    shuffled.rotate_left(7);
    assert_eq!(results_hash(&shuffled), results_hash(&base));
    for change in 0..6 {
        let mut changed = base.clone();
        let row = &mut changed[3];
        match change {
            0 => row.score = Some(1),
            1 => (row.score, row.unscored) = (None, Some(Unscored::Infrastructure)),
            2 => (row.score, row.unscored) = (None, Some(Unscored::JudgeFailed)),
            3 => row.receipt_id = Some(receipt.clone()),
            4 => row.epoch = 2,
            _ => row.example_id = "ex_21".parse().unwrap(),
        }
        assert!(hashes.insert(results_hash(&changed)), "change {change}");
    }
    assert!(hashes.insert(results_hash(&base[1..])));
    assert!(Side::Baseline < Side::Subject, "rows are sorted by the name of the side");
    for reason in Unscored::ALL {
        assert_eq!(reason.as_str().parse::<Unscored>().unwrap(), reason);
    }
    assert!("zero".parse::<Unscored>().is_err());
}

#[test]
fn a_report_that_is_not_whole_is_refused_by_the_reader_and_by_the_schema() {
    let schema = Schema::compile(eval_report_schema()).unwrap();
    let whole = golden("report")["body"].clone();
    assert_eq!(schema.violations(&whole), []);
    for key in whole.as_object().unwrap().keys() {
        let mut lacking = whole.clone();
        lacking.as_object_mut().unwrap().remove(key);
        let fault = EvalReport::from_value(&lacking).expect_err(key);
        assert!(fault.to_string().contains(key.as_str()), "{fault}");
        assert_ne!(schema.violations(&lacking), [], "{key}");
        let mut strange = whole.clone();
        strange[key] = json!([1]);
        assert!(EvalReport::from_value(&strange).is_err(), "{key}");
        assert_ne!(schema.violations(&strange), [], "{key}");
    }
    let wrong = [
        ("v", json!(2)),
        ("kind", json!("evaluation")),
        ("eval_id", json!("eval_1")),
        ("report_id", json!("rep_f832d718dbdbf5043b062f77")),
        ("status", json!("fine")),
        ("compiled_id", json!("run_81c1fe0d3fddf815ca1d64e85e6aa6fb")),
        ("split", json!("dev")),
        ("models", json!({"task": "local/smollm2"})),
        ("unscored", json!({"bored": 1})),
        ("own_failures", json!({"subject": 0})),
        ("score", json!({"mean": 1, "low": 0, "high": 2, "method": "guess"})),
        ("verdict", json!("good")),
        ("reproducible", json!(true)),
        ("mood", json!("fine")),
    ];
    for (key, value) in wrong {
        let mut strange = whole.clone();
        strange[key] = value.clone();
        assert!(EvalReport::from_value(&strange).is_err(), "{key}: {value}");
        assert_ne!(schema.violations(&strange), [], "{key}: {value}");
    }
    assert!(EvalReport::from_value(&json!([])).is_err());
}

#[test]
fn every_number_of_a_report_is_part_of_its_hash() {
    let mut hashes = BTreeSet::from([report().hash()]);
    let changes: [fn(&mut EvalReport); 12] = [
        |report| report.examples = 21,
        |report| report.score.as_mut().unwrap().mean = 1,
        |report| report.baseline = None,
        |report| report.delta.as_mut().unwrap().wins = 9,
        |report| report.look.as_mut().unwrap().k = 2,
        |report| report.verdict = None,
        |report| report.cost.unreconciled = 1,
        |report| report.latency_ms = None,
        |report| report.unscored = BTreeMap::from([(Unscored::NoExpected, 1)]),
        |report| report.results_hash = report.metric_hash,
        |report| report.reproducible = Some(false),
        |report| report.created_at = "2026-02-19T02:00:00.001Z".parse().unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = report();
        change(&mut changed);
        assert!(hashes.insert(changed.hash()), "change {number}");
        assert_eq!(EvalReport::from_value(&changed.content()).unwrap(), changed, "change {number}");
    }
}

#[test]
fn a_report_about_a_judged_spell_has_its_parts() {
    let schema = Schema::compile(eval_report_schema()).unwrap();
    let agreement = AgreementPart { n: 40, agree: 31, low: 625_000, kappa: -10 };
    let spell = EvalReport {
        signature_id: Subject::of_spell("analyst").unwrap(),
        compiled_id: candidate("var", 'a'),
        baseline_id: Some(candidate("can", 'b')),
        judge: Some(JudgePart { agreement: Some(agreement), position_flips: Some(100_000) }),
        labels: vec![LabelPart { label: "refund".to_owned(), examples: 4, mean: 500_000, delta: Some(-250_000) }],
        casts: Some(CastsPart {
            terminated: 18,
            truncated: BTreeMap::from([("max_turns".to_owned(), 2)]),
            turns_per_cast: 3_500_000,
            seconds_per_cast: 1_200_000,
        }),
        ..report()
    };
    assert_eq!(schema.violations(&spell.content()), []);
    assert_eq!(EvalReport::from_value(&spell.content()).unwrap(), spell);
    // A report without a baseline has nothing to compare.
    let alone = EvalReport { baseline_id: None, baseline: None, delta: None, look: None, verdict: None, ..report() };
    assert_eq!(schema.violations(&alone.content()), []);
    assert_eq!(EvalReport::from_value(&alone.content()).unwrap(), alone);
}

#[test]
fn a_verdict_is_named_by_its_content() {
    let verdict = Verdict {
        receipt_id: format!("rcpt_{}", "a".repeat(32)).parse().unwrap(),
        verdict: VerdictWord::Bad,
        expected: Some(json!({"label": "refund"})),
        labels: Labels::new(["angry"]).unwrap(),
        note: Some("wrong team".to_owned()),
        by: "ann".to_owned(),
        at: Timestamp::EPOCH,
    };
    assert_eq!(verdict.expected_hash(), stable_hash(&json!({"label": "refund"})).ok());
    let later: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
    let others = [
        Verdict { receipt_id: format!("rcpt_{}", "b".repeat(32)).parse().unwrap(), ..verdict.clone() },
        Verdict { verdict: VerdictWord::Good, ..verdict.clone() },
        Verdict { expected: None, ..verdict.clone() },
        Verdict { labels: Labels::default(), ..verdict.clone() },
        Verdict { note: None, ..verdict.clone() },
        Verdict { by: "bob".to_owned(), ..verdict.clone() },
        Verdict { at: later, ..verdict.clone() },
    ];
    let mut ids = BTreeSet::from([verdict.id()]);
    for other in others {
        assert!(ids.insert(other.id()), "{other:?}");
    }
    assert_eq!(verdict.id(), verdict.clone().id());
    assert_eq!(verdict.id().to_string().parse::<VerdictId>().unwrap(), verdict.id());
    let written = serde_json::to_value(&verdict).unwrap();
    assert_eq!(serde_json::from_value::<Verdict>(written).unwrap(), verdict);
}

#[test]
fn ids_are_read_strictly() {
    for wrong in ["", "eval_", "eval_7ff6", "eval_7FF632B01BA6F3185C94459A", "evr_7ff632b01ba6f3185c94459a"] {
        assert!(wrong.parse::<EvalId>().is_err(), "{wrong}");
    }
    for (text, is_report) in [
        ("evr_f832d718dbdbf5043b062f77", true),
        ("cmp_f832d718dbdbf5043b062f77", true),
        ("eval_f832d718dbdbf5043b062f77", false),
        ("cmp_f832", false),
    ] {
        assert_eq!(text.parse::<ReportId>().is_ok(), is_report, "{text}");
    }
    for wrong in ["", "art_1", "run_fa314739a6ab692b5cd3d96708665e89", "art_FA314739A6AB692B5CD3D96708665E89"] {
        assert!(wrong.parse::<CandidateId>().is_err(), "{wrong}");
    }
    let (job, winner) = (hash_of("job"), candidate("art", 'a'));
    let subject: Subject = "@cantrip/text/Classify.v1".parse().unwrap();
    let compile = ReportId::of_compile(&subject, job, Some(&winner));
    let eval = ReportId::of_eval(&subject, job, &winner);
    assert_eq!(compile.as_str()[4..], eval.as_str()[4..], "only the kind differs");
    assert_ne!(compile, ReportId::of_compile(&subject, job, None));
    assert_ne!(EvalId::of(&eval, &winner, Split::Test), EvalId::of(&eval, &winner, Split::Holdout));
}
