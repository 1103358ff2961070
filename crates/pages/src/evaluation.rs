//! The page of an evaluation: is it better, by how much, on which examples, and at which cost?
//!
//! Every number of the JSON report stands on the page with its exact value and its place in the report, so that a test
//! can compare the two.

mod examples;
mod numbers;

use cantrip_service::EvaluationView;
use cantrip_service::contracts::contract::{EvalReport, EvalStatus, EvalVerdict};
use cantrip_service::wording::{self, short_id};
use maud::{Markup, html};

use crate::frame;
use crate::write::{count, number};

/// Returns the report of an evaluation as one page that needs nothing else.
pub fn evaluation_page(view: &EvaluationView) -> String {
    let report = &view.report;
    let title = format!("{}: {}", short_id(report.eval_id.as_str()), heading(view));
    let content = html! {
        div class="page" {
            nav class="crumbs" aria-label="Place" {
                span { "Evaluations" } span aria-hidden="true" { "/" } span class="mono" { (report.eval_id) }
            }
            h1 class="intent" { (heading(view)) }
            (facts(view))
            p class="said" { (wording::verdict(report)) "." }
            (numbers::scores(report))
            (numbers::difference(report))
            (numbers::labels(report))
            (numbers::cost_and_time(report, view.baseline_latency_ms.as_ref()))
            (numbers::casts(report))
            (numbers::judge(report))
            (examples::section(view))
            (next(view))
            (identity(view))
        }
    };
    frame::standing_alone(&title, &content)
}

fn heading(view: &EvaluationView) -> String {
    let EvalReport { compiled_id, baseline_id, split, .. } = &view.report;
    let beside = match baseline_id {
        Some(baseline) => format!(" beside {}", short_id(baseline.as_str())),
        None => String::new(),
    };
    format!("{}{beside} on {split} of {}", short_id(compiled_id.as_str()), view.dataset)
}

fn facts(view: &EvaluationView) -> Markup {
    let report = &view.report;
    let unscored: u64 = report.unscored.values().sum();
    html! {
        dl class="facts" {
            div { dt { "Verdict" } dd { (verdict_mark(report)) } }
            div { dt { "Status" } dd { (report.status.as_str()) } }
            div { dt { "Of" } dd { (report.signature_id) } }
            div { dt { "Metric" } dd class="mono" { (view.metric) } }
            div {
                dt { "Examples" }
                dd {
                    (count("/scored", report.scored)) " of " (count("/examples", report.examples)) " scored"
                    @if report.units != report.scored { ", in " (count("/units", report.units)) " groups" }
                    @else { span class="faint" { ", " (count("/units", report.units)) " units" } }
                }
            }
            div { dt { "Epochs" } dd { (count("/epochs", report.epochs)) } }
            @if let Some(look) = &report.look {
                div {
                    dt { "Look" }
                    dd {
                        (count("/look/k", look.k))
                        span class="faint" {
                            " at level " (number("/look/level_ppm", look.level_ppm, &ppm(look.level_ppm)))
                        }
                    }
                }
            }
            div {
                dt { "Models" }
                dd {
                    (report.models.task.as_deref().unwrap_or("none"))
                    @if let Some(judge) = &report.models.judge { ", judge " (judge) }
                }
            }
            div {
                dt { "Failed by itself" }
                dd {
                    (count("/own_failures/subject", report.own_failures.subject))
                    span class="faint" { ", baseline " (count("/own_failures/baseline", report.own_failures.baseline)) }
                }
            }
            div {
                dt { "Without a score" }
                dd {
                    (crate::write::grouped(unscored))
                    @for (reason, trials) in &report.unscored {
                        span class="faint" { " " (reason) " " (count(&format!("/unscored/{reason}"), *trials)) }
                    }
                }
            }
            div { dt { "Ended" } dd { time datetime=(report.created_at) { (report.created_at) } } }
        }
    }
}

/// Returns a probability with four places.
fn ppm(value: u64) -> String {
    wording::decimal(wording::micro(value), 4)
}

/// Returns the verdict as a shape, a word and a colour.
fn verdict_mark(report: &EvalReport) -> Markup {
    let (class, word) = match (report.status, report.verdict) {
        (EvalStatus::Succeeded, Some(verdict @ EvalVerdict::Better)) => ("ok", verdict.as_str()),
        (EvalStatus::Succeeded, Some(verdict @ EvalVerdict::Worse)) => ("bad", verdict.as_str()),
        (EvalStatus::Succeeded, Some(verdict @ EvalVerdict::Undecided)) => ("wait", verdict.as_str()),
        (EvalStatus::Succeeded, None) => ("wait", "none"),
        (EvalStatus::Incomplete | EvalStatus::BudgetExhausted | EvalStatus::Cancelled | EvalStatus::Failed, _) => {
            ("warn", "none")
        }
    };
    html! {
        span class=(format!("st {class}")) {
            svg viewBox="0 0 12 12" aria-hidden="true" {
                @match class {
                    "ok" => { circle cx="6" cy="6" r="5" fill="currentColor" {} },
                    "bad" => { path d="M2 2l8 8M10 2l-8 8" stroke="currentColor" stroke-width="2.4" {} },
                    "warn" => { path d="M6 .8 11.5 11H.5z" fill="currentColor" {} },
                    _ => { path d="M1 6h4M7 6h1M10 6h1" stroke="currentColor" stroke-width="2.4" {} },
                }
            }
            (word)
        }
    }
}

/// Returns the next step and the commands that show the same on the command line.
fn next(view: &EvaluationView) -> Markup {
    let report = &view.report;
    html! {
        section {
            h2 { "Next" }
            p { (view.suggestion.reason) }
            @if let Some(command) = wording::next_command(report, view.suggestion.action) {
                code class="cli" { "cantrip " (command) }
            }
            code class="cli" { "cantrip eval show " (report.eval_id) }
            code class="cli" { "cantrip eval verify " (report.eval_id) }
        }
    }
}

/// Returns the hashes by which the report can be checked.
fn identity(view: &EvaluationView) -> Markup {
    let report = &view.report;
    let rows = [
        ("report", view.report_hash.to_string()),
        ("job", report.job_hash.to_string()),
        ("dataset", report.dataset_hash.to_string()),
        ("metric", report.metric_hash.to_string()),
        ("results", report.results_hash.to_string()),
        ("subject", report.compiled_id.to_string()),
        ("baseline", report.baseline_id.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("run", view.run.to_string()),
    ];
    html! {
        section {
            h2 { "Identity" }
            div class="wide" {
                table {
                    caption { "The report can be made again from its rows, and has these hashes then." }
                    tbody {
                        @for (name, hash) in rows { tr { th scope="row" { (name) } td class="mono" { (hash) } } }
                    }
                }
            }
        }
    }
}
