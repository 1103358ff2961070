//! The page of an evaluation, made from a value: its numbers are those of the report, hostile text stays text, and its
//! size is bounded.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use std::collections::BTreeMap;

use cantrip_pages::limits::EXAMPLES_SHOWN_MAX;
use cantrip_pages::{STYLE, evaluation_page};
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::contracts::contract::{COMPILER_VERSION, EvalReport, JobKind, JobModels, JobSpec, LabelPart};
use cantrip_service::improve::eval::{SuggestedAction, Suggestion};
use cantrip_service::{EvaluationView, ExampleRow, SideRow};
use serde_json::{Value, json};

/// The published report of an evaluation with twenty examples.
fn golden() -> Value {
    json!({"v": 1, "kind": "eval_report", "eval_id": "eval_7ff632b01ba6f3185c94459a",
        "report_id": "evr_f832d718dbdbf5043b062f77",
        "job_hash": "sha256:9d7e422794491eb689c8006bcc91ea05438c3f22944d16ed5d7bfa36484c53f0", "status": "succeeded",
        "signature_id": "@cantrip/text/Classify.v1", "compiled_id": "art_81c1fe0d3fddf815ca1d64e85e6aa6fb",
        "baseline_id": "art_fa314739a6ab692b5cd3d96708665e89",
        "dataset_hash": "sha256:ef20b8df5d053493afff207154540e0a8e8fad004cd78e64ba7bd3a920001819", "split": "test",
        "metric_hash": "sha256:d426d19d8f31860a748092c7fd699453b315d4277be3590da5e43bb62c9aba84",
        "results_hash": "sha256:c624da7b666150fdccb7ee328a78fc4fdfaa3bd0b7f8f9ca8f4b801b3d706e5f",
        "models": {"task": "local/smollm2", "judge": null}, "epochs": 1, "examples": 20, "units": 20, "scored": 20,
        "unscored": {}, "own_failures": {"subject": 0, "baseline": 0},
        "score": {"mean": 900000, "low": 698966, "high": 972134, "method": "wilson"},
        "baseline": {"mean": 600000, "low": 386582, "high": 781193, "method": "wilson"},
        "delta": {"mean": 300000, "low": 0, "high": 550000, "wins": 8, "losses": 2, "ties": 10, "sign_p_ppm": 109375,
            "flip_p_ppm": 51695},
        "look": {"k": 1, "level_ppm": 25000, "low": 0, "high": 550000}, "verdict": "undecided", "detectable": 342929,
        "cost": {"currency": null, "total": 0, "judge": 0, "unreconciled": 0, "per_call": 0, "baseline_per_call": 0},
        "latency_ms": {"p50": 812, "p95": 1250, "p99": 1250}, "judge": null, "labels": [],
        "created_at": "2026-02-19T02:00:00.000Z"})
}

fn side(score: u32, feedback: &str) -> SideRow {
    SideRow {
        score: Some(score),
        unscored: None,
        own_failure: score == 0,
        feedback: feedback.to_owned(),
        output: Some(json!({"label": "praise"})),
        receipt_id: None,
        thread_id: None,
    }
}

fn row(text: &str) -> ExampleRow {
    ExampleRow {
        example_id: text.to_owned(),
        labels: vec![text.to_owned()],
        input: json!({ "text": text }),
        expected: Some(json!(text)),
        subject: side(0, text),
        baseline: Some(side(1_000_000, "")),
    }
}

fn view(report: EvalReport, text: &str, rows: usize) -> EvaluationView {
    let spec = JobSpec {
        kind: JobKind::Eval,
        of: report.signature_id.clone(),
        hashes: None,
        dataset_hash: report.dataset_hash,
        base: None,
        subject: Some(report.compiled_id.clone()),
        baseline: report.baseline_id.clone(),
        split: report.split,
        metric: json!({}),
        optimiser: None,
        models: JobModels::default(),
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    };
    let created_at = report.created_at;
    EvaluationView {
        report_hash: report.hash(),
        report,
        spec,
        dataset: text.to_owned(),
        metric: text.to_owned(),
        run: RunId::from_parts(created_at, [7; 10]),
        baseline_latency_ms: None,
        suggestion: Suggestion { action: SuggestedAction::Keep, reason: text.to_owned() },
        rows: (0..rows).map(|_| row(text)).collect(),
    }
}

fn numbers(value: &Value, place: &str, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Number(number) => {
            found.insert(place.to_owned(), number.to_string());
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(at, item)| numbers(item, &format!("{place}/{at}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| numbers(field, &format!("{place}/{name}"), found));
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

fn shown_numbers(page: &str) -> BTreeMap<String, String> {
    let parts = page.split("<data value=\"").skip(1);
    parts
        .map(|part| {
            let (value, rest) = part.split_once("\" data-of=\"").unwrap();
            (rest.split_once('"').unwrap().0.to_owned(), value.to_owned())
        })
        .collect()
}

/// Returns the names of the elements of a page, in order. Every one is closed where it was opened.
fn elements(page: &str) -> Vec<String> {
    let (mut open, mut found) = (Vec::new(), Vec::new());
    // The stylesheet has no tags.
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let name = tag.trim_start_matches('/').split(' ').next().unwrap_or_default().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.starts_with('!') {
            found.push(name.clone());
            if name != "meta" {
                open.push(name);
            }
        }
    }
    assert!(open.is_empty(), "{open:?}");
    found
}

#[test]
fn the_page_shows_every_number_of_the_report_with_its_exact_value() {
    let mut full = golden();
    full["unscored"] = json!({"metric_failed": 1, "infrastructure": 2});
    full["labels"] = json!([{"label": "billing", "examples": 20, "mean": 800000, "delta": 100000}]);
    full["judge"] =
        json!({"agreement": {"n": 40, "agree": 31, "low": 624900, "kappa": 526316}, "position_flips": 120000});
    full["casts"] = json!({"terminated": 18, "truncated": {"max_turns": 2}, "turns_per_cast": 3_100_000,
        "seconds_per_cast": 12_400_000});
    for body in [golden(), full] {
        let report = EvalReport::from_value(&body).unwrap();
        let mut expected = BTreeMap::new();
        numbers(&body, "", &mut expected);
        expected.remove("/v");
        let page = evaluation_page(&view(report, "tickets@3", 3));
        assert_eq!(shown_numbers(&page), expected);
    }
}

#[test]
fn the_verdict_stands_in_words_a_person_understands() {
    let report = EvalReport::from_value(&golden()).unwrap();
    let page = evaluation_page(&view(report, "tickets@3", 1));
    let sentence = "undecided: the interval includes 0; with 20 examples differences under 0.34 will probably not show";
    assert!(page.contains(sentence), "{page}");
    for part in
        ["0.900", "0.699 .. 0.972", "+0.300", "0.000 .. 0.550", "812 ms", "1.3 s", "cantrip eval verify eval_7ff6"]
    {
        assert!(page.contains(part), "{part} is not in the page");
    }
}

#[test]
fn hostile_text_stays_text() {
    let report = || {
        let mut report = EvalReport::from_value(&golden()).unwrap();
        report.labels = vec![LabelPart { label: String::new(), examples: 1, mean: 1, delta: None }];
        report
    };
    let harmless = elements(&evaluation_page(&view(report(), "text", 2)));
    for hostile in [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "</style></pre></details><h1>",
        "' onmouseover='alert(1)",
        "<!-- <svg><title>",
        "&lt;b&gt; ]]>",
    ] {
        let mut report = report();
        report.labels[0].label = hostile.to_owned();
        let page = evaluation_page(&view(report, hostile, 2));
        assert_eq!(elements(&page), harmless, "{hostile}");
        for attribute in ["onerror=\"", "onmouseover=\"", "src=\""] {
            assert!(!page.contains(attribute), "{hostile} became {attribute}");
        }
    }
}

#[test]
fn a_page_is_bounded_whatever_the_evaluation() {
    let report = EvalReport::from_value(&golden()).unwrap();
    let large = evaluation_page(&view(report.clone(), &"long ".repeat(2_000), EXAMPLES_SHOWN_MAX));
    let larger = evaluation_page(&view(report, &"long ".repeat(2_000), EXAMPLES_SHOWN_MAX * 20));
    assert!(larger.len() < large.len() + 1_000, "{} and {}", large.len(), larger.len());
    assert!(larger.contains("3,800 more examples"));
    assert_eq!(larger.matches("<details").count(), EXAMPLES_SHOWN_MAX);
}

#[test]
fn a_page_stands_alone_and_needs_no_script() {
    let report = EvalReport::from_value(&golden()).unwrap();
    let page = evaluation_page(&view(report, "tickets@3", 1));
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"));
    for forbidden in ["<script", "http:", "https:", "url(", "@import", " style=\"", "src="] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.contains("width=device-width"));
    let charts: Vec<&str> = page.split("<svg class=\"chart\"").skip(1).collect();
    assert!(charts.len() >= 3, "{}", charts.len());
    for chart in &charts {
        let (drawing, beside) = chart.split_once("</svg>").unwrap();
        assert!(drawing.contains("role=\"img\"") && drawing.contains("<title>") && drawing.contains("<desc>"));
        let (table, _) = beside.split_once("</table>").unwrap();
        assert!(table.contains("<caption>"), "a table stands beside the chart");
    }
    assert!(STYLE.len() < 24 << 10, "{} bytes", STYLE.len());
}
