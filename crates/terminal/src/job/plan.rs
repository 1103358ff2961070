//! The plan of an evaluation on a terminal: everything that a person needs to decide whether to start it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use cantrip_service::contracts::contract::SplitCounts;
use cantrip_service::contracts::job::{CostBound, CostPlan};
use cantrip_service::improve::eval::{EvalPlan, RemovedGate};
use cantrip_service::wording::{decimal, micro, short_id};

use crate::present::{BOLD, strip_control};

/// The authorization that every store has, for the local user.
const LOCAL_AUTHORIZATION: &str = "auth_local";

/// Returns the plan as text, without the question.
pub fn draw_plan(plan: &EvalPlan) -> String {
    draw_lines(&heading(plan), &lines(plan))
}

/// Returns a heading and the lines below it.
pub(super) fn draw_lines(heading: &str, lines: &[(&'static str, String)]) -> String {
    let mut text = format!("{BOLD}{}{BOLD:#}\n", strip_control(heading));
    for (name, said) in lines {
        let _ = writeln!(text, "  {name:<9}  {}", strip_control(said));
    }
    text
}

fn heading(plan: &EvalPlan) -> String {
    let subject = candidate(&plan.subject, plan.subject_role.as_deref());
    let beside = match &plan.baseline {
        Some(id) => format!(" beside {}", candidate(id, plan.baseline_role.as_deref())),
        None => String::new(),
    };
    format!("eval {subject} of {}{beside}", plan.of)
}

/// Returns the beginning of an id with its role: `art_fa31 (primary)`.
pub(super) fn candidate(id: &str, role: Option<&str>) -> String {
    let role = role.map_or_else(String::new, |role| format!(" ({role})"));
    format!("{}{role}", short_id(id))
}

fn lines(plan: &EvalPlan) -> Vec<(&'static str, String)> {
    let data = data(&plan.dataset, &plan.counts, &plan.skipped, plan.contradictions, plan.unlabelled);
    let mut lines = vec![("data", data), ("metric", plan.metric.clone()), ("trials", trials(plan))];
    lines.push(("models", models(plan)));
    lines.push(("cost", cost(&plan.cost)));
    if let Some(said) = test(plan) {
        lines.push((plan.split.as_str(), said));
    }
    lines.extend(gates(&plan.removed, &plan.let_through));
    lines.extend(plan.notes.iter().map(|note| ("note", note.clone())));
    lines
}

/// Returns the lines about the gates of a spell that its trials do not have, and those that the caller allows.
pub(super) fn gates(removed: &[RemovedGate], let_through: &[String]) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if !removed.is_empty() {
        let removed: Vec<String> =
            removed.iter().map(|removed| format!("{} ({})", removed.gate, removed.reason)).collect();
        lines.push(("removed", format!("{}; --gate NAME allows one", removed.join(", "))));
    }
    if !let_through.is_empty() {
        lines.push(("allowed", let_through.join(", ")));
    }
    lines
}

/// Returns the sizes of a dataset, and what is not in it.
pub(super) fn data(
    dataset: &str,
    counts: &SplitCounts,
    skipped: &BTreeMap<String, u64>,
    contradictions: u64,
    unlabelled: u64,
) -> String {
    let mut said = format!("{dataset}: {} train, {} holdout, {} test", counts.train, counts.holdout, counts.test);
    let skipped: Vec<String> = skipped.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    if !skipped.is_empty() {
        said += &format!("; skipped {}", skipped.join(", "));
    }
    if contradictions > 0 {
        said += &format!("; {contradictions} inputs have two expected outputs");
    }
    if unlabelled > 0 {
        said += &format!("; {unlabelled} without an expected output");
    }
    said
}

fn trials(plan: &EvalPlan) -> String {
    let sides = if plan.baseline.is_some() { ", both sides" } else { "" };
    let epochs = if plan.epochs > 1 { format!(", {} times each", plan.epochs) } else { String::new() };
    let judged = if plan.judgements > 0 { format!("; {} judgements", plan.judgements) } else { String::new() };
    let bound = plan.cost.max_calls.map_or_else(String::new, |most| format!("; stops at {most}"));
    let (trials, examples, split) = (plan.trials, plan.examples, plan.split);
    format!("at most {trials}: {examples} examples of {split}{sides}{epochs}{judged}{bound}; seed {}", plan.seed)
}

fn models(plan: &EvalPlan) -> String {
    let task = plan.models.task.as_deref().unwrap_or("as the artifacts name them");
    match &plan.models.judge {
        Some(judge) => format!("task {task}, judge {judge}"),
        None => format!("task {task}"),
    }
}

pub(super) fn cost(plan: &CostPlan) -> String {
    let worst = match plan.worst {
        CostBound::Free => "nothing".to_owned(),
        CostBound::AtMost(money) => format!("at worst {money}"),
        CostBound::Unknown => "unknown: a model has no price".to_owned(),
    };
    let likely = match (plan.likely, plan.worst) {
        (Some(money), _) => format!(", likely {money}"),
        (None, CostBound::AtMost(_)) => ", likely unknown".to_owned(),
        (None, CostBound::Free | CostBound::Unknown) => String::new(),
    };
    let stops = plan.budget.map_or_else(String::new, |budget| format!("; stops at {budget}"));
    // Nothing is said about the built-in authorization of the local user.
    let payer = match plan.authorization.as_str() {
        LOCAL_AUTHORIZATION => String::new(),
        payer => format!("; paid by {payer}"),
    };
    format!("{worst}{likely}{stops}{payer}")
}

fn test(plan: &EvalPlan) -> Option<String> {
    let small = small_differences(plan.detectable?);
    Some(match plan.look {
        Some(look) => format!("look {look}; {small}"),
        None => format!("counts as no look and supports no promotion; {small}"),
    })
}

/// Says which differences the sample is too small for.
pub(super) fn small_differences(least: u64) -> String {
    format!("differences under {} will probably not show", decimal(micro(least), 2))
}
