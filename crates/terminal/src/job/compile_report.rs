//! The report of a compile on a terminal: the winner, every candidate with its score, the evaluation on test, and the
//! next command.

use std::fmt::Write as _;

use cantrip_reply::ReplyType;
use cantrip_service::contracts::contract::{CompileCandidatePart, CompileReport, EvalStatus};
use cantrip_service::wording::{
    amount, candidate_origin, compile_outcome, has_winner, micro, per_call, score, short_id, signed,
};
use cantrip_service::{CompileView, SlotChange};
use serde_json::Value;
use similar::{ChangeTag, TextDiff};

use super::report::draw_report;
use crate::limits::{CANDIDATES_SHOWN, DIFF_SHOWN_LINES, LIST_TEXT_CHARS};
use crate::present::{BOLD, DIM, colour, cut, program, strip_control, width};

/// The number of equal lines around each change of a text.
const LINES_AROUND: usize = 2;

/// Returns the report as text.
pub fn draw_compile_report(view: &CompileView) -> String {
    let report = &view.report;
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", short_id(report.report_id.as_str()), heading(view));
    text += &candidate_lines(report);
    let _ = writeln!(text, "  {BOLD}{}{BOLD:#}", strip_control(&compile_outcome(report)));
    for (name, said) in facts(view) {
        let _ = writeln!(text, "  {name:<10}  {}", strip_control(&said));
    }
    if let Some(eval) = &view.eval {
        text += &draw_report(eval);
    }
    if report.signature_id.signature().is_none() && has_winner(report) {
        let _ = writeln!(text, "  {:<10}  {} compile show {} --patch", "diff", program(), report.report_id);
    } else if view.eval.is_none() {
        let _ = writeln!(text, "  {:<10}  {}", "next", strip_control(&report.suggestion.reason));
    }
    text
}

fn heading(view: &CompileView) -> String {
    let CompileReport { signature_id, optimiser, seed, .. } = &view.report;
    strip_control(&format!("{signature_id} on {} with {}, seed {seed}", view.dataset, optimiser.id))
}

/// Returns one line for each candidate that was scored on all of holdout: the base, then the best ones.
fn candidate_lines(report: &CompileReport) -> String {
    let mut scored: Vec<&CompileCandidatePart> =
        report.candidates.iter().filter(|candidate| candidate.holdout.is_some()).collect();
    scored.sort_by_key(|candidate| (candidate.ordinal != 0, std::cmp::Reverse(candidate.holdout), candidate.ordinal));
    let mut text = format!("{DIM}              holdout  a call       made by{DIM:#}\n");
    for candidate in scored.iter().take(CANDIDATES_SHOWN) {
        let name = short_id(candidate.compiled_id.as_str());
        let mark = if report.selected.as_ref() == Some(&candidate.compiled_id) { "*" } else { " " };
        let holdout = candidate.holdout.map_or_else(String::new, |mean| score(micro(mean)));
        let call = per_call(micro(candidate.per_call), report.budget.used.currency);
        let line = format!("{mark} {name:<10}  {holdout:<7}  {call:<11}  {}", candidate_origin(candidate));
        let _ = writeln!(text, "{}", strip_control(line.trim_end()));
    }
    let left = report.candidates.len().saturating_sub(scored.len().min(CANDIDATES_SHOWN));
    if left > 0 {
        let _ = writeln!(text, "{DIM}  and {left} more: {} compile show {} --json{DIM:#}", program(), report.report_id);
    }
    text
}

/// Returns the lines below the outcome: their names and texts.
fn facts(view: &CompileView) -> Vec<(&'static str, String)> {
    let report = &view.report;
    let mut facts = Vec::new();
    let trials = &report.trials;
    let unscored = if trials.unscored > 0 { format!(", {} without a score", trials.unscored) } else { String::new() };
    facts.push((
        "trials",
        format!("{} on train, {} on holdout, {} on test{unscored}", trials.train, trials.holdout, trials.test),
    ));
    let proposals = &report.proposals;
    if proposals.made > 0 {
        let rejected: Vec<String> =
            proposals.rejected.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        let rejected = if rejected.is_empty() { String::new() } else { format!("; rejected {}", rejected.join(", ")) };
        facts.push(("proposals", format!("{} made, {} kept{rejected}", proposals.made, proposals.accepted)));
    }
    let used = &report.budget.used;
    if used.amount > 0 {
        let asked =
            report.budget.asked.amount.map_or_else(String::new, |asked| {
                format!(" of {}", amount(micro(asked), report.budget.asked.currency))
            });
        facts.push(("cost", format!("{}{asked}", amount(micro(used.amount), used.currency))));
    }
    if used.unreconciled > 0 {
        let held = amount(micro(used.unreconciled), used.currency);
        facts.push(("held", format!("{held} for calls whose outcome is unknown: spend reconcile")));
    }
    if let Some(optimism) = report.optimism {
        facts.push(("optimism", format!("{}: its score on holdout less that on test", signed(optimism, 3))));
    }
    if report.status == EvalStatus::BudgetExhausted {
        facts.push(("continue", format!("{} run continue {} --max-calls N", program(), view.run)));
    }
    facts
}

/// Returns what the winner changed, slot by slot, against the candidate that it came from.
pub fn draw_changes(view: &CompileView) -> String {
    let report = &view.report;
    let winner = report.selected.as_ref().filter(|_| has_winner(report)).map(|id| id.as_str());
    let found = view.candidates.iter().find(|candidate| Some(candidate.candidate_id.as_str()) == winner);
    let Some(candidate) = found else { return String::new() };
    let mut text = String::new();
    for change in &candidate.changes {
        let _ = writeln!(text, "{BOLD}{}{BOLD:#}", strip_control(&change.slot));
        text += &draw_change(change);
    }
    text
}

fn draw_change(SlotChange { before, after, .. }: &SlotChange) -> String {
    let (before, after) = (strip_control(before), strip_control(after));
    let columns = width().map(|all| all.saturating_sub(4));
    let diff = TextDiff::from_lines(&before, &after);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(LINES_AROUND) {
        for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
            let (sign, style) = match change.tag() {
                ChangeTag::Delete => ("-", colour(ReplyType::Failure)),
                ChangeTag::Insert => ("+", colour(ReplyType::Success)),
                ChangeTag::Equal => (" ", DIM),
            };
            let line = change.value().trim_end_matches('\n');
            let line = columns.map_or_else(|| line.to_owned(), |columns| cut(line, columns));
            lines.push(format!("  {style}{sign}{style:#} {line}"));
        }
    }
    let mut text = String::new();
    for line in lines.iter().take(DIFF_SHOWN_LINES) {
        let _ = writeln!(text, "{line}");
    }
    if let Some(more) = lines.len().checked_sub(DIFF_SHOWN_LINES).filter(|more| *more > 0) {
        let _ = writeln!(text, "  {DIM}({more} more lines){DIM:#}");
    }
    text
}

/// Returns one line for each report of a compile.
pub fn draw_compile_reports(value: &Value) -> String {
    let mut text = String::new();
    for item in value["items"].as_array().into_iter().flatten() {
        let told = |key: &str| strip_control(item[key].as_str().unwrap_or_default());
        let number = |key: &str| item[key].as_i64().map_or_else(|| "no score".to_owned(), score);
        let verdict = match (told("verdict"), told("status")) {
            (verdict, status) if verdict.is_empty() => status,
            (verdict, _) => verdict,
        };
        let _ = writeln!(
            text,
            "{BOLD}{}{BOLD:#}  {verdict:<10}  {} (start {})  {} of {}  {}  {DIM}{}{DIM:#}",
            told("report_id"),
            number("holdout"),
            number("start"),
            short_id(&told("selected")),
            cut(&told("subject"), LIST_TEXT_CHARS),
            told("optimiser"),
            told("created_at"),
        );
    }
    if !value["next"].is_null() {
        let _ = writeln!(text, "{DIM}there are more: raise --most{DIM:#}");
    }
    text
}
