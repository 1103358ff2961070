//! The report of an evaluation on a terminal: both scores with their intervals, the difference, the verdict in words,
//! and the next command.

use std::fmt::Write as _;

use cantrip_service::contracts::contract::{EvalReport, LatencyPart, ScorePart};
use cantrip_service::wording::{
    amount, decimal, duration, interval, micro, next_command, per_call, reasons, score, short_id, signed, verdict,
};
use cantrip_service::{EvaluationView, ExampleRow, SideRow};

use crate::limits::{JOB_FAILURES_SHOWN, JOB_LABELS_SHOWN};
use crate::present::{BOLD, DIM, cut, program, strip_control, width};

/// Returns the report as text.
pub fn draw_report(view: &EvaluationView) -> String {
    let report = &view.report;
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", short_id(report.eval_id.as_str()), heading(view));
    let _ = writeln!(text, "{DIM}              score   95 % interval      a call       p50      p95{DIM:#}");
    let cost = &report.cost;
    if let Some(part) = &report.score {
        let call = per_call(micro(cost.per_call), cost.currency);
        text += &side_line(short_id(report.compiled_id.as_str()), part, &call, report.latency_ms.as_ref());
    }
    if let (Some(part), Some(id)) = (&report.baseline, &report.baseline_id) {
        let call = per_call(micro(cost.baseline_per_call), cost.currency);
        text += &side_line(short_id(id.as_str()), part, &call, view.baseline_latency_ms.as_ref());
    }
    text += &difference_lines(report);
    let _ = writeln!(text, "  {BOLD}{}{BOLD:#}", verdict(report));
    for (name, said) in facts(view) {
        let _ = writeln!(text, "  {name:<10}  {said}");
    }
    text
}

fn heading(view: &EvaluationView) -> String {
    let EvalReport { compiled_id, baseline_id, split, examples, look, .. } = &view.report;
    let beside = match baseline_id {
        Some(id) => format!(" beside {}", short_id(id.as_str())),
        None => String::new(),
    };
    let look = look.as_ref().map_or_else(String::new, |look| format!(", look {}", look.k));
    let subject = short_id(compiled_id.as_str());
    format!("{subject}{beside} on {split} of {}: {examples} examples{look}", strip_control(&view.dataset))
}

fn side_line(name: &str, part: &ScorePart, call: &str, latency: Option<&LatencyPart>) -> String {
    let score = score(micro(part.mean));
    let bounds = interval(micro(part.low), micro(part.high));
    let (half, most) = match latency {
        Some(latency) => (duration(latency.p50), duration(latency.p95)),
        None => (String::new(), String::new()),
    };
    let line = format!("  {name:<10}  {score:<6}  {bounds:<17}  {call:<11}  {half:<7}  {most}");
    format!("{}\n", line.trim_end())
}

fn difference_lines(report: &EvalReport) -> String {
    let Some(delta) = &report.delta else { return String::new() };
    let (difference, bounds) = (signed(delta.mean, 3), interval(delta.low, delta.high));
    let mut text = format!(
        "  {:<10}  {difference:<6}  {bounds:<17}  {} better, {} worse, {} equal\n",
        "difference", delta.wins, delta.losses, delta.ties
    );
    if let Some(look) = report.look.filter(|look| look.k > 1) {
        let name = format!("look {}", look.k);
        let bounds = interval(look.low, look.high);
        let (flip, level) = (decimal(micro(delta.flip_p_ppm), 4), decimal(micro(look.level_ppm), 4));
        let _ = writeln!(text, "  {name:<10}          {bounds:<17}  flip test {flip}, level {level}");
    }
    text
}

/// Returns the lines below the verdict: their names and texts.
fn facts(view: &EvaluationView) -> Vec<(&'static str, String)> {
    let report = &view.report;
    let mut facts = Vec::new();
    if !report.labels.is_empty() {
        facts.push(("by label", labels(report)));
    }
    let failures = report.own_failures;
    if failures.subject + failures.baseline > 0 {
        let baseline =
            if report.baseline_id.is_some() { format!(", baseline {}", failures.baseline) } else { String::new() };
        facts.push(("failed", format!("subject {}{baseline}; these score 0", failures.subject)));
    }
    if !report.unscored.is_empty() {
        facts.push(("no score", reasons(report)));
    }
    if let Some(casts) = &report.casts {
        let cut: Vec<String> =
            casts.truncated.iter().map(|(reason, count)| format!(", {count} cut off: {reason}")).collect();
        let (turns, seconds) = (decimal(micro(casts.turns_per_cast), 1), decimal(micro(casts.seconds_per_cast), 1));
        facts.push((
            "casts",
            format!(
                "{} terminated{}; {turns} turns and {seconds} s a cast",
                casts.terminated,
                strip_control(&cut.concat())
            ),
        ));
    }
    if let Some(agreement) = report.judge.and_then(|judge| judge.agreement) {
        facts.push((
            "judge",
            format!(
                "agrees with {} of {} verdicts of people, at least {}, kappa {}",
                agreement.agree,
                agreement.n,
                decimal(micro(agreement.low), 2),
                decimal(agreement.kappa, 2)
            ),
        ));
    } else if report.judge.is_some() {
        facts.push(("judge", "not compared with people yet: eval judge METRIC --dataset DATASET".to_owned()));
    }
    if report.cost.total > 0 {
        let of_judge = match report.cost.judge {
            0 => String::new(),
            judge => format!(", the judge {} of it", amount(micro(judge), report.cost.currency)),
        };
        facts.push(("cost", format!("{}{of_judge}", amount(micro(report.cost.total), report.cost.currency))));
    }
    if report.cost.unreconciled > 0 {
        let held = amount(micro(report.cost.unreconciled), report.cost.currency);
        facts.push(("held", format!("{held} for calls whose outcome is unknown: spend reconcile")));
    }
    match next_command(report, view.suggestion.action) {
        Some(command) => facts.push(("next", format!("{} {command}", program()))),
        None => facts.push(("next", strip_control(&view.suggestion.reason))),
    }
    facts
}

/// Returns the scores by label on one line: `billing 0.80 (+0.10, 20)`.
fn labels(report: &EvalReport) -> String {
    let shown = report.labels.iter().take(JOB_LABELS_SHOWN).map(|part| {
        let label = strip_control(&part.label);
        let delta = part.delta.map_or_else(String::new, |delta| format!("{}, ", signed(delta, 2)));
        format!("{label} {} ({delta}{})", decimal(micro(part.mean), 2), part.examples)
    });
    let shown: Vec<String> = shown.collect();
    let left = report.labels.len().saturating_sub(JOB_LABELS_SHOWN);
    let more = if left > 0 { format!("  and {left} more") } else { String::new() };
    format!("{}{more}", shown.join("  "))
}

/// Returns the examples whose subject got less than the whole score, one a line, the worst first.
pub fn draw_failures(view: &EvaluationView) -> String {
    let is_failure = |row: &&ExampleRow| row.subject.score != Some(1_000_000);
    let failures: Vec<&ExampleRow> = view.rows.iter().filter(is_failure).collect();
    let mut text = String::new();
    for row in failures.iter().take(JOB_FAILURES_SHOWN) {
        let feedback = strip_control(&row.subject.feedback).replace('\n', "; ");
        let line = format!("  {:<36}  {:<7}  {feedback}", strip_control(&row.example_id), side_score(&row.subject));
        let _ = writeln!(
            text,
            "{}",
            width().map_or_else(|| line.trim_end().to_owned(), |columns| cut(line.trim_end(), columns))
        );
    }
    let left = failures.len().saturating_sub(JOB_FAILURES_SHOWN);
    if left > 0 {
        let _ = writeln!(text, "  {DIM}{left} more: {} eval show {} --rows{DIM:#}", program(), view.report.eval_id);
    }
    text
}

fn side_score(side: &SideRow) -> String {
    match (side.score, &side.unscored) {
        (Some(micro), _) => score(i64::from(micro)),
        (None, Some(reason)) => strip_control(reason),
        (None, None) => "-".to_owned(),
    }
}
