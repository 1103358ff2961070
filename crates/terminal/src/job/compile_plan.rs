//! The plan of a compile on a terminal.

use cantrip_service::contracts::contract::JobModels;
use cantrip_service::improve::compile::CompilePlan;

use super::plan::{candidate, cost, data, draw_lines, gates, small_differences};

/// Returns the plan as text, without the question.
pub fn draw_compile_plan(plan: &CompilePlan) -> String {
    let heading = format!("compile {} from {}", plan.of, candidate(&plan.base, plan.base_role.as_deref()));
    draw_lines(&heading, &lines(plan))
}

fn lines(plan: &CompilePlan) -> Vec<(&'static str, String)> {
    let data = data(&plan.dataset, &plan.counts, &plan.skipped, plan.contradictions, plan.unlabelled);
    let mut lines = vec![
        ("data", data),
        ("metric", plan.metric.clone()),
        ("optimiser", search(plan)),
        ("models", models(&plan.models)),
        ("cost", cost(&plan.cost)),
    ];
    if let Some(least) = plan.detectable {
        let look = plan.look.map_or_else(String::new, |look| format!("look {look}; "));
        lines.push(("test", format!("{look}{}", small_differences(least))));
    }
    lines.extend(gates(&plan.removed, &plan.let_through));
    lines.extend(plan.notes.iter().map(|note| ("note", note.clone())));
    lines
}

fn search(plan: &CompilePlan) -> String {
    let proposals = if plan.proposals > 0 { format!(", {} proposals", plan.proposals) } else { String::new() };
    let judged = if plan.judgements > 0 { format!(", {} judgements", plan.judgements) } else { String::new() };
    let bound = plan.cost.max_calls.map_or_else(String::new, |most| format!("; stops at {most}"));
    let (optimiser, trials, seed) = (&plan.optimiser, plan.trials, &plan.seed);
    format!("{optimiser}: at most {trials} trials{proposals}{judged}{bound}; seed {seed}")
}

fn models(models: &JobModels) -> String {
    let mut said = format!("task {}", models.task.as_deref().unwrap_or("as the artifacts name them"));
    let others = [("teacher", &models.teacher), ("reflect", &models.reflect), ("judge", &models.judge)];
    for (name, model) in others {
        if let Some(model) = model {
            said += &format!(", {name} {model}");
        }
    }
    said
}
