//! The page of a compile: which candidate won, how the search got there, what each candidate changed, and what was
//! rejected?
//!
//! Every number of the JSON report stands on the page with its exact value and its place in the report, as on the page
//! of an evaluation. The evaluation of the winner has a page of its own; its result is repeated here in words.

mod candidates;
mod numbers;
mod proposals;

use cantrip_service::CompileView;
use cantrip_service::contracts::contract::{CompileReport, EvalStatus};
use cantrip_service::wording::{self, compile_outcome, has_winner, short_id};
use maud::{Markup, html};
use serde_json::Value;

use crate::draw::{Dot, difference as difference_chart};
use crate::frame;
use crate::limits::OPTIONS_SHOWN_MAX;
use crate::write::{bounded, count, number};

/// Returns the report of a compile as one page that needs nothing else.
pub fn compile_page(view: &CompileView) -> String {
    let report = &view.report;
    let title = format!("{}: {}", short_id(report.report_id.as_str()), heading(view));
    let content = html! {
        div class="page" {
            nav class="crumbs" aria-label="Place" {
                span { "Compiles" } span aria-hidden="true" { "/" } span class="mono" { (report.report_id) }
            }
            h1 class="intent" { (heading(view)) }
            (facts(view))
            p class="said" { (compile_outcome(report)) "." }
            (numbers::curve(report))
            (test(view))
            (candidates::section(view))
            (proposals::section(view))
            (numbers::cost(report))
            (options(report))
            (next(view))
            (identity(view))
        }
    };
    frame::standing_alone(&title, &content)
}

fn heading(view: &CompileView) -> String {
    let CompileReport { signature_id, optimiser, .. } = &view.report;
    format!("{signature_id} on {} with {}", view.dataset, optimiser.id)
}

fn facts(view: &CompileView) -> Markup {
    let report = &view.report;
    let trials = &report.trials;
    let models = [
        ("task", &report.models.task),
        ("teacher", &report.models.teacher),
        ("reflect", &report.models.reflect),
        ("judge", &report.models.judge),
    ];
    html! {
        dl class="facts" {
            div { dt { "Status" } dd { (status_mark(report)) } }
            div { dt { "Winner" } dd class="mono" { (winner(report)) } }
            div { dt { "Base" } dd class="mono" { (short_id(report.base.as_str())) } }
            div { dt { "Metric" } dd class="mono" { (view.metric) } }
            div { dt { "Seed" } dd { (bounded(&report.seed, 80)) } }
            div {
                dt { "Trials" }
                dd {
                    (count("/trials/train", trials.train)) " train, "
                    (count("/trials/holdout", trials.holdout)) " holdout, "
                    (count("/trials/test", trials.test)) " test"
                    span class="faint" { ", " (count("/trials/unscored", trials.unscored)) " without a score" }
                }
            }
            div {
                dt { "Models" }
                dd {
                    @for (name, model) in models {
                        @if let Some(model) = model { span { (name) " " (model) " " } }
                    }
                }
            }
            div { dt { "Ended" } dd { time datetime=(report.created_at) { (report.created_at) } } }
        }
    }
}

fn winner(report: &CompileReport) -> String {
    match &report.selected {
        Some(selected) if *selected != report.base => short_id(selected.as_str()).to_owned(),
        Some(_) => "the base".to_owned(),
        None => "none".to_owned(),
    }
}

/// Returns the status as a shape, a word and a colour.
fn status_mark(report: &CompileReport) -> Markup {
    let (class, word) = match report.status {
        EvalStatus::Succeeded if has_winner(report) => ("ok", "found a better one"),
        EvalStatus::Succeeded => ("wait", "kept the base"),
        EvalStatus::BudgetExhausted => ("warn", "budget exhausted"),
        EvalStatus::Incomplete | EvalStatus::Cancelled => ("warn", report.status.as_str()),
        EvalStatus::Failed => ("bad", report.status.as_str()),
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

/// Returns the result of the winner on the test split, which no candidate has seen.
fn test(view: &CompileView) -> Markup {
    let report = &view.report;
    let optimism = report.optimism.map(|optimism| number("/optimism", optimism, &wording::signed(optimism, 3)));
    let Some(eval) = &view.eval else {
        let why = if has_winner(report) {
            "The test split was not used: the compile ended before its winner was tested."
        } else {
            "The test split was not used: no other candidate than the base had won."
        };
        return html! {
            section {
                h2 { "Test" }
                p { (why) }
                @if let Some(optimism) = optimism { p { "Optimism " (optimism) } }
            }
        };
    };
    let chart = eval.report.delta.as_ref().map(|delta| {
        let dot = Dot {
            name: "difference",
            mean: delta.mean,
            low: delta.low,
            high: delta.high,
            is_subject: true,
            says: format!("{} ({})", wording::signed(delta.mean, 3), wording::interval(delta.low, delta.high)),
        };
        let about = format!("{}; the line marks zero", dot.says);
        let detectable = eval.report.detectable.map_or(0, wording::micro);
        let title = "Difference of the winner to the base on test with its 95 % interval";
        difference_chart(title, &about, &dot, detectable)
    });
    let sides = [("winner", eval.report.score), ("base", eval.report.baseline)];
    html! {
        section {
            h2 { "Test" }
            p { (wording::verdict(&eval.report)) "." }
            div class="pair" {
                @if let Some(chart) = chart { (chart) }
                div class="wide" {
                    table {
                        caption { "Mean score on the test split with its 95 % interval" }
                        tbody {
                            @for (name, part) in sides {
                                @if let Some(part) = part {
                                    tr {
                                        th scope="row" { (name) }
                                        td class="num" { (wording::score(wording::micro(part.mean))) }
                                        td class="num" {
                                            (wording::interval(wording::micro(part.low), wording::micro(part.high)))
                                        }
                                    }
                                }
                            }
                            @if let Some(optimism) = optimism {
                                tr {
                                    th scope="row" { "score on holdout less that on test" }
                                    td class="num" { (optimism) }
                                    td {}
                                }
                            }
                        }
                    }
                }
            }
            code class="cli" { "cantrip eval show " (eval.report.eval_id) }
        }
    }
}

/// Returns the options of the optimiser, with the defaults filled in.
fn options(report: &CompileReport) -> Markup {
    let mut leaves = Vec::new();
    collect_leaves(&report.optimiser.options, String::new(), &mut leaves);
    let left = leaves.len().saturating_sub(OPTIONS_SHOWN_MAX);
    html! {
        section {
            h2 { "Options" }
            div class="wide" {
                table {
                    caption { "The options of the optimiser, with the defaults filled in" }
                    tbody {
                        @for (name, value) in leaves.into_iter().take(OPTIONS_SHOWN_MAX) {
                            tr {
                                th scope="row" class="mono" { (bounded(&name, 80)) }
                                td {
                                    @match value {
                                        Value::Number(value) => {
                                            (number(&format!("/optimiser/options{name}"), value, &value.to_string()))
                                        },
                                        Value::String(value) => { (bounded(value, 200)) },
                                        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => {
                                            (bounded(&value.to_string(), 200))
                                        },
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @if left > 0 { p class="faint" { (left) " more options are in the JSON report." } }
        }
    }
}

/// Collects the values without parts, each with its place.
fn collect_leaves<'a>(value: &'a Value, place: String, leaves: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                collect_leaves(field, format!("{place}/{name}"), leaves);
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                collect_leaves(item, format!("{place}/{at}"), leaves);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => leaves.push((place, value)),
    }
}

/// Returns the next step and the commands that show the same on the command line.
fn next(view: &CompileView) -> Markup {
    let report = &view.report;
    let is_spell = report.signature_id.signature().is_none();
    html! {
        section {
            h2 { "Next" }
            p { (report.suggestion.reason) }
            @if let Some(eval) = &view.eval {
                @if let Some(command) = wording::next_command(&eval.report, eval.suggestion.action) {
                    code class="cli" { "cantrip " (command) }
                }
            }
            @if is_spell && has_winner(report) {
                code class="cli" { "cantrip compile show " (report.report_id) " --patch" }
            }
            code class="cli" { "cantrip compile show " (report.report_id) }
            code class="cli" { "cantrip compile replay " (report.report_id) }
        }
    }
}

/// Returns the hashes by which the report can be checked.
fn identity(view: &CompileView) -> Markup {
    let report = &view.report;
    let rows = [
        ("report", view.report_hash.to_string()),
        ("job", report.job_hash.to_string()),
        ("dataset", report.dataset_hash.to_string()),
        ("metric", report.metric_hash.to_string()),
        ("base", report.base.to_string()),
        ("winner", report.selected.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("evaluation", report.eval_id.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
        ("run", view.run.to_string()),
    ];
    html! {
        section {
            h2 { "Identity" }
            div class="wide" {
                table {
                    caption { "The search can be replayed from its records, and has these hashes then." }
                    tbody {
                        @for (name, hash) in rows { tr { th scope="row" { (name) } td class="mono" { (hash) } } }
                    }
                }
            }
        }
    }
}
