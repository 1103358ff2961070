//! The examples of an evaluation: the ones that failed first, each with both answers and what was said about them.

use cantrip_service::wording::score;
use cantrip_service::{EvaluationView, ExampleRow, SideRow};
use maud::{Markup, html};
use serde_json::Value;

use crate::limits::{EXAMPLES_SHOWN_MAX, FEEDBACK_CHARS_MAX, VALUE_CHARS_MAX};
use crate::write::{bounded, grouped, value_text};

pub(super) fn section(view: &EvaluationView) -> Markup {
    let left = view.rows.len().saturating_sub(EXAMPLES_SHOWN_MAX);
    html! {
        section {
            h2 { "Examples" }
            @if view.rows.is_empty() { p { "No example has been tried." } }
            @for row in view.rows.iter().take(EXAMPLES_SHOWN_MAX) { (example(row)) }
            @if left > 0 {
                p class="faint" { (grouped(left as u64)) " more examples:" }
                code class="cli" { "cantrip eval show " (view.report.eval_id) " --rows" }
            }
        }
    }
}

fn example(row: &ExampleRow) -> Markup {
    html! {
        details class="row" {
            summary {
                span class="mono" { (bounded(&row.example_id, 80)) }
                @for label in &row.labels { span class="faint" { (bounded(label, 64)) } }
                span { (side_score(&row.subject)) }
                @if let Some(baseline) = &row.baseline { span class="faint" { "baseline " (side_score(baseline)) } }
            }
            h3 { "Input" }
            pre { (value_text(&row.input, VALUE_CHARS_MAX)) }
            @if let Some(expected) = &row.expected {
                h3 { "Expected" }
                pre { (value_text(expected, VALUE_CHARS_MAX)) }
            }
            div class="sides" {
                div { h3 { "Subject" } (side(&row.subject)) }
                @if let Some(baseline) = &row.baseline { div { h3 { "Baseline" } (side(baseline)) } }
            }
        }
    }
}

/// Returns the score of a side, or why it has none.
fn side_score(side: &SideRow) -> String {
    match (side.score, &side.unscored) {
        (Some(micro), _) if side.own_failure => format!("{} (failed)", score(i64::from(micro))),
        (Some(micro), _) => score(i64::from(micro)),
        (None, Some(reason)) => format!("no score: {reason}"),
        (None, None) => "not tried".to_owned(),
    }
}

fn side(side: &SideRow) -> Markup {
    html! {
        p { (side_score(side)) }
        @if let Some(output) = side.output.as_ref().filter(|output| !matches!(output, Value::Null)) {
            pre { (value_text(output, VALUE_CHARS_MAX)) }
        }
        @if !side.feedback.is_empty() { p { (bounded(&side.feedback, FEEDBACK_CHARS_MAX)) } }
        @if let Some(receipt) = &side.receipt_id { code class="cli" { "cantrip receipt show " (receipt) } }
        @if let Some(thread) = &side.thread_id { code class="cli" { "cantrip loom show " (thread) } }
    }
}
