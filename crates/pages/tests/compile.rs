//! The page of a compile, made from a value: its numbers are those of the report, hostile text stays text, and its size
//! is bounded.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

use std::collections::BTreeMap;

use cantrip_pages::compile_page;
use cantrip_pages::limits::{CANDIDATES_SHOWN_MAX, PROPOSALS_SHOWN_MAX};
use cantrip_service::cantrip::canon::RunId;
use cantrip_service::contracts::contract::{COMPILER_VERSION, CompileReport, JobKind, JobModels, JobSpec, Split};
use cantrip_service::{CandidateView, CompileView, ProposalView, SlotChange};
use serde_json::{Value, json};

fn artifact(number: usize) -> String {
    format!("art_{number:032x}")
}

/// A report with so many candidates, each from the one before it, the last one chosen.
fn body(candidates: usize) -> Value {
    let hash = format!("sha256:{}", "0".repeat(64));
    let listed: Vec<Value> = (0..candidates)
        .map(|number| {
            let parents: Vec<String> = number.checked_sub(1).map(artifact).into_iter().collect();
            json!({"compiled_id": artifact(number), "ordinal": number, "parents": parents,
                "op": if number == 0 { "base" } else { "reflect" }, "component": "instructions",
                "accepted": number % 2 == 0, "reason": if number % 2 == 0 { None } else { Some("not_better") },
                "holdout": 200_000 + number, "trials": 41, "per_call": 900})
        })
        .collect();
    json!({"v": 1, "kind": "compile_report", "report_id": format!("cmp_{}", "0".repeat(24)), "job_hash": hash,
        "status": "succeeded", "signature_id": "@me/support/Triage.v1", "dataset_hash": hash, "metric_hash": hash,
        "optimiser": {"id": "gepa.v1", "options": {"minibatch": 3, "patience": 20, "slots": ["instructions"]}},
        "models": {"task": "local/small", "teacher": null, "reflect": "local/large", "judge": null}, "seed": "default",
        "compiler_version": "improve.v1", "base": artifact(0), "selected": artifact(candidates - 1),
        "candidates": listed, "curve": [[41, 200_000], [90, 350_000], [160, 512_821]],
        "proposals": {"made": 12, "rejected": {"empty": 1, "known": 2}, "accepted": 4},
        "trials": {"train": 36, "holdout": 124, "test": 126, "unscored": 3},
        "budget": {"asked": {"currency": "USD", "amount": 500_000, "calls": 900, "proposals": 60},
            "used": {"currency": "USD", "amount": 180_000, "unreconciled": 700, "calls": 286, "proposals": 12}},
        "optimism": -12_345, "eval_id": null, "suggestion": {"action": "keep", "reason": "nothing was tested"},
        "created_at": "2026-02-19T02:00:00.000Z"})
}

fn view(body: &Value, text: &str, proposals: usize) -> CompileView {
    let report = CompileReport::from_value(body).unwrap();
    let spec = JobSpec {
        kind: JobKind::Compile,
        of: report.signature_id.clone(),
        hashes: None,
        dataset_hash: report.dataset_hash,
        base: Some(report.base.clone()),
        subject: None,
        baseline: None,
        split: Split::Test,
        metric: json!({}),
        optimiser: Some(report.optimiser.clone()),
        models: JobModels::default(),
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    };
    let change = || SlotChange { slot: text.to_owned(), before: text.to_owned(), after: format!("new {text}") };
    let candidate = |id: &str| CandidateView { candidate_id: id.to_owned(), changes: vec![change()] };
    CompileView {
        report_hash: report.hash(),
        spec,
        dataset: text.to_owned(),
        metric: text.to_owned(),
        run: RunId::from_parts(report.created_at, [7; 10]),
        candidates: report.candidates.iter().map(|part| candidate(part.compiled_id.as_str())).collect(),
        proposals: (0..proposals)
            .map(|number| ProposalView {
                number: number as u64,
                slot: text.to_owned(),
                diagnosis: text.to_owned(),
                text: text.to_owned(),
                receipt_id: None,
                rejected: (number % 2 == 0).then(|| text.to_owned()),
                candidate: None,
            })
            .collect(),
        eval: None,
        report,
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
    for tag in page.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap();
        let name = tag.trim_start_matches('/').split([' ', '\n']).next().unwrap_or_default();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "</{name}> closes another element");
        } else if !tag.starts_with('!') && name != "meta" {
            open.push(name.to_owned());
            found.push(name.to_owned());
        }
    }
    assert_eq!(open, Vec::<String>::new());
    found
}

#[test]
fn the_page_shows_every_number_of_the_report_with_its_exact_value() {
    let body = body(4);
    let mut expected = BTreeMap::new();
    numbers(&body, "", &mut expected);
    expected.remove("/v");
    let page = compile_page(&view(&body, "tickets@3", 2));
    assert_eq!(shown_numbers(&page), expected);
    for part in [
        "art_0000 is the best of 4 candidates: 0.200 on holdout, 0.200 at the start",
        "rejected: known",
        "-0.012",
        "0.18 USD",
        "not accepted: not_better",
        "cantrip compile replay cmp_",
        "<span class=\"ins\">+ new tickets@3",
    ] {
        assert!(page.contains(part), "{part:?} is not in the page");
    }
}

#[test]
fn hostile_text_stays_text() {
    let body = body(3);
    let harmless = elements(&compile_page(&view(&body, "text", 3)));
    for hostile in [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "</style></pre></details><h1>",
        "' onmouseover='alert(1)",
        "<!-- <svg><title>",
        "&lt;b&gt; ]]>",
    ] {
        let page = compile_page(&view(&body, hostile, 3));
        assert_eq!(elements(&page), harmless, "{hostile}");
        for attribute in ["onerror=\"", "onmouseover=\"", "src=\""] {
            assert!(!page.contains(attribute), "{hostile} became {attribute}");
        }
    }
}

#[test]
fn a_page_is_bounded_and_stands_alone() {
    let long = "long ".repeat(2_000);
    let large = compile_page(&view(&body(CANDIDATES_SHOWN_MAX), &long, PROPOSALS_SHOWN_MAX));
    let larger = compile_page(&view(&body(CANDIDATES_SHOWN_MAX * 4), &long, PROPOSALS_SHOWN_MAX * 4));
    assert!(larger.len() < large.len() + 4_000, "{} and {}", large.len(), larger.len());
    assert!(larger.contains("600 more candidates") && larger.contains("600 more proposals"));
    let page = compile_page(&view(&body(3), "tickets@3", 1));
    assert!(page.starts_with("<!DOCTYPE html><html lang=\"en\">"));
    for forbidden in ["<script", "http:", "https:", "url(", "@import", " style=\"", "src="] {
        assert!(!page.contains(forbidden), "{forbidden} is in the page");
    }
    let charts: Vec<&str> = page.split("<svg class=\"chart\"").skip(1).collect();
    assert_eq!(charts.len(), 1);
    let (drawing, beside) = charts[0].split_once("</svg>").unwrap();
    assert!(drawing.contains("role=\"img\"") && drawing.contains("<title>") && drawing.contains("<desc>"));
    assert!(beside.split_once("</table>").unwrap().0.contains("<caption>"), "a table stands beside the chart");
}
