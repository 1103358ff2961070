//! Compile reports and variants of spells as values: their names follow from their content, and stored ones are read
//! strictly.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::{JobId, bytes_hash, json};
use cantrip_contract::{
    CandidateId, CompileReport, CompileReportDraft, CompileReportRow, Schema, SpellVariant, VariantPatch,
    compile_report_schema,
};
use serde_json::{Value, json};

use crate::improve_goldens::golden;

/// A report of a search that found something better.
fn body() -> Value {
    let hash = |letter: &str| format!("sha256:{}", letter.repeat(64));
    let (base, winner) = (format!("art_{}", "a".repeat(32)), format!("art_{}", "b".repeat(32)));
    let candidate = |id: &str, ordinal: u64, parents: Value, op: &str, holdout: Value| {
        json!({
            "compiled_id": id, "ordinal": ordinal, "parents": parents, "op": op, "component": null,
            "accepted": ordinal < 2, "reason": if ordinal < 2 { Value::Null } else { json!("not_completed") },
            "holdout": holdout, "trials": 40, "per_call": 90,
        })
    };
    json!({
        "v": 1,
        "kind": "compile_report",
        "report_id": format!("cmp_{}", "c".repeat(24)),
        "job_hash": hash("d"),
        "status": "succeeded",
        "signature_id": "@cantrip/text/Classify.v1",
        "dataset_hash": hash("e"),
        "metric_hash": hash("f"),
        "optimiser": {"id": "bootstrap_demos.v1", "options": {"candidates": 8, "slots": ["demos"]}},
        "models": {"task": "local/smollm2", "teacher": null, "reflect": null, "judge": null},
        "seed": "default",
        "compiler_version": "improve.v1",
        "base": base,
        "selected": winner,
        "candidates": [
            candidate(&base, 0, json!([]), "base", json!(345_000)),
            candidate(&winner, 1, json!([base]), "demos", json!(600_000)),
            candidate(&format!("art_{}", "1".repeat(32)), 2, json!([base]), "demos", Value::Null),
        ],
        "curve": [[39, 345_000], [117, 600_000]],
        "proposals": {"made": 3, "rejected": {"empty": 1, "known": 1}, "accepted": 1},
        "trials": {"train": 66, "holdout": 117, "test": 110, "unscored": 2},
        "budget": {
            "asked": {"currency": "USD", "amount": 500_000, "calls": null, "proposals": null},
            "used": {"currency": "USD", "amount": 180_000, "unreconciled": 0, "calls": 293, "proposals": 3},
        },
        "optimism": -20_000,
        "eval_id": format!("eval_{}", "2".repeat(24)),
        "suggestion": {"action": "canary", "reason": "it scored higher"},
        "created_at": "2026-02-19T02:00:00.000Z",
    })
}

fn report() -> CompileReport {
    CompileReport::from_value(&body()).unwrap()
}

#[test]
fn a_compile_report_that_is_not_whole_is_refused_by_the_reader_and_by_the_schema() {
    let schema = Schema::compile(compile_report_schema()).unwrap();
    let whole = body();
    assert_eq!(schema.violations(&whole), []);
    assert_eq!(report().content(), whole);
    for key in whole.as_object().unwrap().keys() {
        let mut lacking = whole.clone();
        lacking.as_object_mut().unwrap().remove(key);
        let fault = CompileReport::from_value(&lacking).expect_err(key);
        assert!(fault.to_string().contains(key.as_str()), "{fault}");
        assert_ne!(schema.violations(&lacking), [], "{key}");
        let mut strange = whole.clone();
        strange[key] = json!([1]);
        assert!(CompileReport::from_value(&strange).is_err(), "{key}");
        assert_ne!(schema.violations(&strange), [], "{key}");
    }
    let wrong = [
        ("v", json!(2)),
        ("kind", json!("eval_report")),
        ("status", json!("fine")),
        ("base", json!("run_81c1fe0d3fddf815ca1d64e85e6aa6fb")),
        ("models", json!({"task": "local/smollm2"})),
        ("proposals", json!({"made": 3, "rejected": {}})),
        ("curve", json!([[1]])),
        ("suggestion", json!({"action": "promote"})),
        ("mood", json!("fine")),
    ];
    for (key, value) in wrong {
        let mut strange = whole.clone();
        strange[key] = value.clone();
        assert!(CompileReport::from_value(&strange).is_err(), "{key}: {value}");
        assert_ne!(schema.violations(&strange), [], "{key}: {value}");
    }
}

#[test]
fn every_number_of_a_compile_report_is_part_of_its_hash() {
    let mut hashes = BTreeSet::from([report().hash()]);
    let changes: [fn(&mut CompileReport); 12] = [
        |report| report.selected = Some(report.base.clone()),
        |report| report.selected = None,
        |report| report.candidates[2].reason = Some("rung".to_owned()),
        |report| report.candidates[1].holdout = Some(600_001),
        |report| report.candidates[1].parents.clear(),
        |report| report.curve[1].0 = 118,
        |report| report.proposals.rejected = BTreeMap::from([("empty".to_owned(), 2)]),
        |report| report.trials.unscored = 3,
        |report| report.budget.used.unreconciled = 1,
        |report| report.optimism = None,
        |report| report.eval_id = None,
        |report| report.suggestion.action = "keep".to_owned(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = report();
        change(&mut changed);
        assert!(hashes.insert(changed.hash()), "change {number}");
        assert_eq!(CompileReport::from_value(&changed.content()).unwrap(), changed, "change {number}");
    }
    let base = report().base;
    assert_eq!(report().candidate(&base).map(|candidate| candidate.ordinal), Some(0));
}

#[test]
fn a_stored_compile_report_is_read_back_or_called_altered() {
    let draft = CompileReportDraft::new(JobId::from_bytes([7; 16]), &body()).unwrap();
    let row = CompileReportRow {
        report_id: report().report_id,
        job_id: draft.job_id,
        attempt: 1,
        report_hash: bytes_hash(draft.body.as_bytes()),
        body: draft.body.clone(),
    };
    assert_eq!(row.report().unwrap(), report());
    assert_eq!(row.report_hash, report().hash());
    assert_eq!(row.facts().unwrap().selected, report().selected);
    let altered = CompileReportRow { body: draft.body.replace("600000", "700000"), ..row.clone() };
    assert_eq!(altered.report().unwrap_err().field, "report_hash");
    // Bytes that have their hash, but are the report of another job.
    let mut other = body();
    other["report_id"] = json!(format!("cmp_{}", "9".repeat(24)));
    let body = json::canonical(&other).unwrap();
    let exchanged = CompileReportRow { report_hash: bytes_hash(body.as_bytes()), body, ..row };
    assert_eq!(exchanged.report().unwrap_err().field, "report_id");
}

#[test]
fn a_variant_has_the_published_id() {
    let table = golden("variant");
    let variant = SpellVariant {
        spell: "analyst".to_owned(),
        base: "can_1".to_owned(),
        patch: VariantPatch::from_value(&table["patch"]).unwrap(),
    };
    assert_eq!(variant.id(), serde_json::from_value::<CandidateId>(table["id"].clone()).unwrap());
    assert_eq!(variant.patch.content(), table["patch"]);
    assert_eq!(SpellVariant::from_value(&variant.content()).unwrap(), variant);
}

#[test]
fn every_part_of_a_variant_is_part_of_its_id_and_a_wrong_one_is_refused() {
    let gates = BTreeMap::from([("fetch".to_owned(), "Reads a page.".to_owned())]);
    let patch = VariantPatch { call: Some("Explore.".to_owned()), gates, ..VariantPatch::default() };
    let variant = SpellVariant { spell: "analyst".to_owned(), base: format!("can_{}", "a".repeat(32)), patch };
    let mut ids = BTreeSet::from([variant.id()]);
    let changes: [fn(&mut SpellVariant); 5] = [
        |variant| variant.spell = "other".to_owned(),
        |variant| variant.base = format!("can_{}", "b".repeat(32)),
        |variant| variant.patch.call = None,
        |variant| variant.patch.gates.clear(),
        |variant| variant.patch.wards = json!({"max_turns": 3}).as_object().unwrap().clone(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut changed = variant.clone();
        change(&mut changed);
        assert!(ids.insert(changed.id()), "change {number}");
        assert_eq!(SpellVariant::from_value(&changed.content()).unwrap(), changed, "change {number}");
    }
    assert!(VariantPatch::default().is_empty() && !variant.patch.is_empty());
    let whole = variant.content();
    let wrong: [fn(&mut Value); 6] = [
        |value| value["v"] = json!(2),
        |value| value["extra"] = json!(1),
        |value| value["patch"]["call"]["text"] = json!("x"),
        |value| value["patch"]["gates"]["fetch"] = json!("x"),
        |value| value["patch"]["wards"] = json!([]),
        |value| {
            value["patch"].as_object_mut().unwrap().remove("gates");
        },
    ];
    for (number, change) in wrong.into_iter().enumerate() {
        let mut changed = whole.clone();
        change(&mut changed);
        assert!(SpellVariant::from_value(&changed).is_err(), "change {number}");
    }
}
