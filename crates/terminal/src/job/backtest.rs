//! Backtests on a terminal: the plan, the report, and the list.

use std::fmt::Write as _;

use cantrip_service::BacktestView;
use cantrip_service::improve::backtest::{
    BacktestPlan, BacktestReport, BacktestRow, DivergenceKind, Finding, PairedPart, RunStatus, Step,
};
use cantrip_service::wording::{amount, decimal, micro, score, short_id, signed};
use serde_json::Value;

use super::plan::{cost, draw_lines};
use crate::limits::{BACKTEST_CALL_CHARS, JOB_FAILURES_SHOWN};
use crate::present::{BOLD, DIM, cut, program, strip_control};

/// Returns the plan of a backtest as text, without the question.
pub fn draw_backtest_plan(plan: &BacktestPlan) -> String {
    let heading = format!("backtest {} with {}", plan.spell.name, plan.crystal);
    let source = plan.spell.file.as_deref().map_or_else(String::new, |file| format!(" of {file}"));
    let mut runs = format!("{} recorded, {} of the same cantrip, which cost nothing", plan.runs, plan.unchanged);
    let skipped: Vec<String> =
        plan.skipped.iter().map(|(reason, count)| format!("{count} {}", reason.as_str())).collect();
    if !skipped.is_empty() {
        runs += &format!("; skipped {}", skipped.join(", "));
    }
    let missing = match &plan.judge {
        Some(judge) => format!("{}, judge {judge}", plan.missing),
        None => plan.missing.to_string(),
    };
    let mut lines = vec![
        ("cantrip", format!("{}{source}", short_id(&plan.candidate))),
        ("runs", runs),
        ("metric", plan.metric.clone()),
        ("missing", missing),
        ("cost", cost(&plan.cost)),
    ];
    if let Some(detectable) = plan.detectable {
        let least = decimal(micro(detectable), 2);
        lines.push(("shows", format!("differences of scores under {least} will probably not show")));
    }
    lines.extend(plan.notes.iter().map(|note| ("note", note.clone())));
    draw_lines(&heading, &lines)
}

/// Returns the report of a backtest as text: the counts, the paired differences, and the runs that changed.
pub fn draw_backtest(view: &BacktestView) -> String {
    let report = &view.report;
    let crystal = report.crystal.as_deref().unwrap_or_default();
    let heading = format!("backtest of {} with {crystal}", report.spell);
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", view.job.run_id, strip_control(&heading));
    let _ = writeln!(text, "  {BOLD}{}{BOLD:#}", counts(report));
    let part = |name: &str, part: Option<&PairedPart>, places: u32| {
        part.map_or_else(String::new, |part| paired_line(name, part, places))
    };
    let _ = writeln!(text, "{DIM}              original  new       difference  95 % interval{DIM:#}");
    text += &part("score", report.score.as_ref(), 3);
    text += &part("turns", report.turns.as_ref(), 1);
    text += &part("tokens", report.tokens.as_ref(), 0);
    text += &part("money", report.cost.as_ref(), 4);
    let calls = &report.calls;
    let _ = writeln!(
        text,
        "  {:<10}  {} from the record, {} judged the same, {} live, {} denied",
        "calls", calls.record, calls.judge, calls.live, calls.denied
    );
    let paid =
        report.spent.map_or_else(|| "nothing".to_owned(), |spent| amount(spent.micros(), Some(spent.currency())));
    let _ = writeln!(text, "  {:<10}  {paid}", "paid");
    let changed: Vec<&BacktestRow> = report.rows.iter().filter(|row| row.status != RunStatus::Identical).collect();
    for row in changed.iter().take(JOB_FAILURES_SHOWN) {
        let _ = writeln!(text, "  {}", run_line(row));
    }
    if changed.len() > JOB_FAILURES_SHOWN {
        let more = changed.len() - JOB_FAILURES_SHOWN;
        let command = format!("{} backtest show {} --rows", program(), view.job.run_id);
        let _ = writeln!(text, "  {DIM}{more} more: {command}{DIM:#}");
    }
    text
}

fn counts(report: &BacktestReport) -> String {
    let mut said = format!("{} of {} runs identical, {} changed", report.identical, report.runs, report.diverged);
    if report.failed > 0 {
        said += &format!(", {} failed", report.failed);
    }
    if report.unscored > 0 {
        said += &format!(", {} without a score", report.unscored);
    }
    if report.done < report.runs {
        said += &format!("; {} were not cast", report.runs - report.done);
    }
    said
}

fn paired_line(name: &str, part: &PairedPart, places: u32) -> String {
    let shown = |number: i64| decimal(number, places);
    let bounds = format!("{} .. {}", shown(part.low), shown(part.high));
    format!(
        "  {name:<10}  {:<8}  {:<8}  {:<10}  {bounds}  {} more, {} less, {} equal\n",
        shown(part.original),
        shown(part.new),
        signed(part.delta, places),
        part.more,
        part.less,
        part.equal
    )
}

/// Returns one run that changed: where it left the record, and what it asked instead.
fn run_line(row: &BacktestRow) -> String {
    let Some(finding) = &row.finding else {
        let message = strip_control(row.message.as_deref().unwrap_or_default());
        return format!("{}  {}: {}", row.original, row.status.as_str(), cut(&message, BACKTEST_CALL_CHARS));
    };
    let scored = row.score.map_or_else(|| "no score".to_owned(), |mean| score(micro(mean)));
    let before = finding.original_score.map_or_else(|| "no score".to_owned(), |mean| score(micro(mean)));
    format!("{}  {}; score {before} -> {scored}", row.original, divergence_text(finding))
}

/// Returns the first difference of a run in words.
fn divergence_text(finding: &Finding) -> String {
    let Some(found) = &finding.divergence else { return "identical".to_owned() };
    let asked = found.asked.as_ref().map_or_else(|| "nothing".to_owned(), step_text);
    let recorded = found.recorded.as_ref().map_or_else(|| "nothing".to_owned(), step_text);
    let said = match found.kind {
        DivergenceKind::NotRecorded => format!("asked {asked}, not recorded, instead of {recorded}"),
        DivergenceKind::OtherOrder => format!("asked {asked} before {recorded}"),
        DivergenceKind::OtherTurn => format!("asked {asked} in another turn"),
        DivergenceKind::EndedEarlier => format!("ended with {asked} instead of {recorded}"),
        DivergenceKind::WentOn => format!("went on with {asked} after {recorded}"),
        DivergenceKind::OtherEnd => format!("ended with {asked} instead of {recorded}"),
    };
    format!("{} of {} steps, then at turn {} {said}", finding.carried, finding.steps.original, found.turn)
}

fn step_text(step: &Step) -> String {
    let text = match step {
        Step::Call { gate, args, .. } => format!("{gate}({args})"),
        Step::Answered { answer, .. } => format!("the answer {answer}"),
        Step::Truncated { reason, .. } => format!("the end by {reason}"),
    };
    cut(&strip_control(&text), BACKTEST_CALL_CHARS)
}

/// Returns one line for each backtest.
pub fn draw_backtests(value: &Value) -> String {
    let mut text = String::new();
    for item in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| strip_control(item[key].as_str().unwrap_or_default());
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {:<16}  {} runs of {}  {DIM}{}{DIM:#}",
            told("run_id"),
            told("status"),
            item["runs"],
            told("spell"),
            told("created_at"),
        );
    }
    text
}
