//! The candidates of a compile as a tree: each below the one that it came from, with what it changed.

use std::collections::BTreeMap;

use cantrip_service::contracts::contract::{CompileCandidatePart, CompileReport};
use cantrip_service::wording::{candidate_origin, micro, per_call, score, short_id};
use cantrip_service::{CandidateView, CompileView, SlotChange};
use maud::{Markup, html};
use similar::{ChangeTag, TextDiff};

use crate::limits::{CANDIDATES_SHOWN_MAX, DIFF_LINE_CHARS_MAX, DIFF_LINES_SHOWN_MAX, TREE_DEPTH_SHOWN};
use crate::write::{bounded, count, grouped, number};

/// The number of equal lines around each change.
const LINES_AROUND: usize = 2;

pub(super) fn section(view: &CompileView) -> Markup {
    let report = &view.report;
    let ordered = in_tree_order(report);
    let left = ordered.len().saturating_sub(CANDIDATES_SHOWN_MAX);
    let changes: BTreeMap<&str, &CandidateView> =
        view.candidates.iter().map(|candidate| (candidate.candidate_id.as_str(), candidate)).collect();
    html! {
        section {
            h2 { "Candidates" }
            ol class="tree" {
                @for (depth, at) in ordered.into_iter().take(CANDIDATES_SHOWN_MAX) {
                    @let part = &report.candidates[at];
                    li class=(format!("d{}", depth.min(TREE_DEPTH_SHOWN))) {
                        (candidate(report, at, changes.get(part.compiled_id.as_str()).copied()))
                    }
                }
            }
            @if left > 0 { p class="faint" { (grouped(left as u64)) " more candidates are in the JSON report." } }
        }
    }
}

/// Returns the indices of the candidates with their depths: each right below its first parent, siblings by ordinal.
fn in_tree_order(report: &CompileReport) -> Vec<(usize, usize)> {
    let places: BTreeMap<&str, usize> =
        report.candidates.iter().enumerate().map(|(at, part)| (part.compiled_id.as_str(), at)).collect();
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); report.candidates.len()];
    let mut stack = Vec::new();
    for (at, part) in report.candidates.iter().enumerate() {
        // A parent stands before its children; anything else would be a circle.
        match part.parents.first().and_then(|parent| places.get(parent.as_str())).filter(|parent| **parent < at) {
            Some(parent) => below[*parent].push(at),
            None => stack.push((0, at)),
        }
    }
    stack.reverse();
    let mut ordered = Vec::new();
    while let Some((depth, at)) = stack.pop() {
        ordered.push((depth, at));
        stack.extend(below[at].iter().rev().map(|child| (depth + 1, *child)));
    }
    ordered
}

fn candidate(report: &CompileReport, at: usize, shown: Option<&CandidateView>) -> Markup {
    let part = &report.candidates[at];
    let place = |field: &str| format!("/candidates/{at}/{field}");
    let is_winner = report.selected.as_ref() == Some(&part.compiled_id);
    html! {
        details class="row" open[is_winner && at > 0] {
            summary {
                span class="mono" { (short_id(part.compiled_id.as_str())) }
                @match part.holdout {
                    Some(mean) => { span { (number(&place("holdout"), mean, &score(micro(mean)))) } },
                    None => { span class="faint" { "not scored on all of holdout" } },
                }
                @if is_winner { span class="st ok" { "winner" } }
                @if let Some(reason) = rejection(part) { span class="faint" { (reason) } }
                span class="faint" { (candidate_origin(part)) }
            }
            p {
                "Candidate " (count(&place("ordinal"), part.ordinal)) ", "
                (count(&place("trials"), part.trials)) " trials, "
                (number(
                    &place("per_call"),
                    part.per_call,
                    &per_call(micro(part.per_call), report.budget.used.currency),
                ))
                " a call"
            }
            @if let Some(shown) = shown {
                @for change in &shown.changes { (slot_change(change)) }
            }
            @if part.compiled_id.artifact().is_some() {
                code class="cli" { "cantrip artifact show " (part.compiled_id) }
            }
        }
    }
}

/// Returns why a candidate was not accepted.
fn rejection(part: &CompileCandidatePart) -> Option<String> {
    if part.accepted {
        return None;
    }
    Some(part.reason.as_ref().map_or_else(|| "not accepted".to_owned(), |reason| format!("not accepted: {reason}")))
}

/// Returns the change of one slot as a diff.
fn slot_change(SlotChange { slot, before, after }: &SlotChange) -> Markup {
    let diff = TextDiff::from_lines(before.as_str(), after.as_str());
    let mut lines: Vec<(&'static str, &'static str, String)> = Vec::new();
    for (at, group) in diff.grouped_ops(LINES_AROUND).iter().enumerate() {
        if at > 0 {
            lines.push(("same", " ", "...".to_owned()));
        }
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (class, sign) = match change.tag() {
                ChangeTag::Delete => ("del", "-"),
                ChangeTag::Insert => ("ins", "+"),
                ChangeTag::Equal => ("same", " "),
            };
            lines.push((class, sign, bounded(change.value().trim_end_matches('\n'), DIFF_LINE_CHARS_MAX)));
        }
    }
    let left = lines.len().saturating_sub(DIFF_LINES_SHOWN_MAX);
    html! {
        h3 class="mono" { (bounded(slot, 80)) }
        pre class="diff" {
            @for (class, sign, line) in lines.iter().take(DIFF_LINES_SHOWN_MAX) {
                span class=(class) { (sign) " " (line) "\n" }
            }
            @if left > 0 { span class="same" { "  (" (left) " more lines)\n" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report with these parents: the first candidate has none.
    fn report(parents: &[&[usize]]) -> CompileReport {
        let hash = format!("sha256:{}", "0".repeat(64));
        let id = |at: usize| format!("art_{at:032x}");
        let candidates: Vec<serde_json::Value> = parents
            .iter()
            .enumerate()
            .map(|(at, parents)| {
                let parents: Vec<String> = parents.iter().map(|parent| id(*parent)).collect();
                serde_json::json!({"compiled_id": id(at), "ordinal": at, "parents": parents, "op": "reflect",
                    "component": null, "accepted": true, "reason": null, "holdout": null, "trials": 0, "per_call": 0})
            })
            .collect();
        let body = serde_json::json!({"v": 1, "kind": "compile_report", "report_id": format!("cmp_{}", "0".repeat(24)),
            "job_hash": hash, "status": "succeeded", "signature_id": "@me/support/Triage.v1", "dataset_hash": hash,
            "metric_hash": hash, "optimiser": {"id": "gepa.v1", "options": {}},
            "models": {"task": null, "teacher": null, "reflect": null, "judge": null}, "seed": "default",
            "compiler_version": "improve.v1", "base": id(0), "selected": id(0), "candidates": candidates, "curve": [],
            "proposals": {"made": 0, "rejected": {}, "accepted": 0},
            "trials": {"train": 0, "holdout": 0, "test": 0, "unscored": 0},
            "budget": {"asked": {"currency": null, "amount": null, "calls": null, "proposals": null},
                "used": {"currency": null, "amount": 0, "unreconciled": 0, "calls": 0, "proposals": 0}},
            "optimism": null, "eval_id": null, "suggestion": {"action": "keep", "reason": "nothing was tested"},
            "created_at": "2026-02-19T02:00:00.000Z"});
        CompileReport::from_value(&body).expect("a report")
    }

    #[test]
    fn a_candidate_stands_below_its_first_parent() {
        let order = in_tree_order(&report(&[&[], &[0], &[0], &[1], &[2, 1], &[3]]));
        assert_eq!(order, [(0, 0), (1, 1), (2, 3), (3, 5), (1, 2), (2, 4)]);
    }

    #[test]
    fn a_change_is_drawn_as_a_diff_and_bounded() {
        let change =
            |after: String| SlotChange { slot: "instructions".to_owned(), before: "one\ntwo".to_owned(), after };
        let drawn = slot_change(&change("one\nthree <b>".to_owned())).into_string();
        assert!(drawn.contains("<span class=\"del\">- two"), "{drawn}");
        assert!(drawn.contains("<span class=\"ins\">+ three &lt;b&gt;"), "{drawn}");
        let long = slot_change(&change("line\n".repeat(10_000))).into_string();
        assert_eq!(long.matches("<span").count(), DIFF_LINES_SHOWN_MAX + 1);
        assert!(long.contains("more lines)"), "{}", &long[long.len() - 200..]);
    }
}
