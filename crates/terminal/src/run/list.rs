//! Runs on a terminal: the list of `run ls` and the details of `run show`.

use std::fmt::Write;

use cantrip::PendingApproval;
use cantrip::canon::{EntityId, Timestamp};
use cantrip::loom::{CastParked, CastView, CostTotal, Ending, ParkReason, Removal, RunView, Usage};
use cantrip_service::contracts::contract::{JobKind, JobRow, JobStatus};
use cantrip_service::improve::backtest::is_backtest;
use cantrip_service::{Costs, EntityCost, Spent};
use serde::Serialize;
use serde_json::Value;

use crate::approve::{dangers, trifecta_warning};
use crate::present::{BOLD, DIM, code_text, cut, program, strip_control, width};
use crate::waiting::CrystalFault;
use crate::watch::cost;

/// The state of a run, as a user sees it who may have to act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    /// A process works on the run.
    Running,
    /// The process that worked on the run is gone, or its lease has run out.
    Orphaned,
    /// The run waits for a person or a provider.
    Waiting,
    /// The run has its answer.
    Terminated,
    /// A ward, a failing crystal or a person ended the run.
    Truncated,
    /// Something outside the run failed.
    Failed,
}

impl RunStatus {
    /// Returns the status in a word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Orphaned => "orphaned",
            Self::Waiting => "waiting",
            Self::Terminated => "terminated",
            Self::Truncated => "truncated",
            Self::Failed => "failed",
        }
    }
}

/// The state of a lease's owner, as seen from this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// The process runs on this machine.
    Here,
    /// The process ran on this machine and is gone.
    Gone,
    /// Nothing is known of the process.
    Elsewhere,
}

/// The worker that holds a run.
#[derive(Debug, Serialize)]
pub struct Holder {
    pub owner: String,
    pub epoch: u64,
    pub expires_at: Timestamp,
    pub presence: Presence,
}

/// The listed values of one run.
#[derive(Debug, Serialize)]
pub struct RunRow {
    #[serde(flatten)]
    pub run: RunView,
    pub standing: RunStatus,
    pub holder: Option<Holder>,
    pub intent: Option<String>,
    /// The job, if the run is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobRow>,
    /// The removal of its records by a retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed: Option<Removal>,
}

/// Renders who removed the records of a run, when and why.
fn removal_told(removal: &Removal) -> String {
    format!("{} by {}: {}", removal.at, strip_control(&removal.actor), strip_control(&removal.reason))
}

/// Renders a list of runs. `again` are the arguments that name the store in a printed command.
pub fn draw_runs(rows: &[RunRow], again: &str) -> String {
    let mut text = String::new();
    for row in rows {
        let (id, at) = (row.run.run_id, row.run.created_at);
        let intent = match &row.removed {
            Some(removal) => format!("(records removed {})", removal_told(removal).replace('\n', " ")),
            None => row.intent.as_deref().map(|intent| strip_control(intent).replace('\n', " ")).unwrap_or_default(),
        };
        let columns = width().map_or(60, |width| width.saturating_sub(72).max(20));
        let _ = writeln!(
            text,
            "{BOLD}{id}{BOLD:#}  {:<10}  {DIM}{at}{DIM:#}  {}",
            row.standing.word(),
            cut(intent.trim(), columns)
        );
    }
    let program = program();
    let count = |standing| rows.iter().filter(|row| row.standing == standing).count();
    if count(RunStatus::Orphaned) > 0 {
        let _ =
            writeln!(text, "{DIM}no process works on them; resume them with:{DIM:#} {program} run resume --all{again}");
    }
    if let Some(row) = rows.iter().rfind(|row| row.standing == RunStatus::Waiting) {
        let _ =
            writeln!(text, "{DIM}resume the waiting run with:{DIM:#} {program} run resume {}{again}", row.run.run_id);
    }
    text
}

/// All details of one run.
#[derive(Debug, Serialize)]
pub struct RunDetails {
    #[serde(flatten)]
    pub row: RunRow,
    pub cast: Option<CastView>,
    /// The calls that wait for a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pending: Vec<PendingApproval>,
    /// The record that parked the run, if it is parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parked: Option<CastParked>,
    /// The cost of the run, with its children.
    pub costs: Costs,
}

/// Returns a row for each turn of the root and for each child as a whole. Rows without tokens and cost are left out.
fn table(costs: &Costs, root: Option<EntityId>) -> Vec<(String, String)> {
    let counted = |Spent { usage, cost, uncosted }: &Spent| {
        usage.total_tokens() > 0 || *uncosted > 0 || cost.is_some_and(|cost| cost.micros() > 0)
    };
    let took = |spent: &Spent| {
        let Usage { prompt_tokens, completion_tokens, .. } = spent.usage;
        let cost = cost(&CostTotal::new(spent.cost, spent.uncosted));
        format!("{prompt_tokens} in, {completion_tokens} out{cost}")
    };
    let mut rows = Vec::new();
    for turn in costs.turns.iter().filter(|turn| turn.entity_id == root) {
        let spent = Spent { usage: turn.usage, cost: turn.cost, uncosted: u64::from(turn.cost.is_none()) };
        if counted(&spent) || turn.gates.is_some() {
            let gates = turn.gates.map(|paid| format!(" · {paid} for its gates")).unwrap_or_default();
            rows.push((format!("turn {}", turn.sequence), format!("{} {}{gates}", turn.turn_id, took(&spent))));
        }
    }
    for EntityCost { entity_id, turns, spent, besides } in &costs.entities {
        if Some(*entity_id) == root {
            if besides.requests > 0 && counted(&besides.spent) {
                rows.push(("besides".to_owned(), took(&besides.spent)));
            }
        } else if counted(spent) {
            let turns = if *turns == 1 { "1 turn".to_owned() } else { format!("{turns} turns") };
            rows.push(("child".to_owned(), format!("{entity_id} {turns}, {}", took(spent))));
        }
    }
    rows
}

/// Renders the details of a run. `again` are the arguments that name the store in a printed command.
pub fn draw_details(RunDetails { row, cast, pending, parked, costs }: &RunDetails, again: &str) -> String {
    let run = &row.run;
    let mut text = format!("{BOLD}{}{BOLD:#}  {}\n", run.run_id, row.standing.word());
    let mut line = |what: &str, said: &str| {
        let _ = writeln!(text, "  {DIM}{what:<9}{DIM:#} {said}");
    };
    if let Some(entity) = run.entity_id {
        line("entity", &entity.to_string());
    }
    line("begun", &format!("{}, for {}", run.created_at, run.owner));
    if let Some(at) = run.ended_at {
        line("ended", &at.to_string());
    }
    line("records", &format!("{}, epoch {}", run.newest, run.epoch));
    if let Some(removal) = &row.removed {
        let policy = serde_json::to_string(&removal.policy).unwrap_or_default();
        line("removed", &format!("{} records, {}", removal.records, removal_told(removal)));
        line("policy", &strip_control(&policy));
    }
    if let Some(holder) = &row.holder {
        let where_it_is = match holder.presence {
            Presence::Here => "it runs on this machine",
            Presence::Gone => "it is gone",
            Presence::Elsewhere => "not on this machine",
        };
        line("held by", &format!("{} until {} ({where_it_is})", holder.owner, holder.expires_at));
    }
    if let Some(job) = &row.job {
        line("job", &strip_control(&describe_job(job)));
        if let Some(budget) = job.bounds.budget {
            line("budget", &budget.to_string());
        }
    }
    if let Some(cast) = cast {
        line("intent", &cut(&strip_control(&cast.intent.text()).replace('\n', " "), 200));
        if let Some(outcome) = &cast.outcome {
            let how = match &outcome.ending {
                Ending::Terminated { result, .. } => {
                    let said = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
                    cut(&strip_control(&said).replace('\n', " "), 200)
                }
                Ending::Truncated { reason, error, .. } => {
                    let error = error.as_ref().map(|error| format!(": {}", strip_control(&error.message)));
                    format!("truncated ({}){}", reason.as_str(), error.unwrap_or_default())
                }
            };
            line("answer", &how);
            line("turns", &outcome.turns.to_string());
        }
    }
    let Usage { prompt_tokens, completion_tokens, cached_tokens, .. } = costs.spent.usage;
    let spent = cost(&CostTotal::new(costs.spent.cost, costs.spent.uncosted));
    // A script without token counts needs no line.
    if costs.spent.usage.total_tokens() > 0 || costs.failed_attempts > 0 || !spent.is_empty() {
        let failed = match costs.failed_attempts {
            0 => String::new(),
            1 => " · one request failed".to_owned(),
            failed => format!(" · {failed} requests failed"),
        };
        line(
            "took",
            &format!("{prompt_tokens} tokens in ({cached_tokens} cached), {completion_tokens} out{spent}{failed}"),
        );
    }
    for (what, said) in table(costs, run.entity_id) {
        line(&what, &said);
    }
    let (program, id) = (program(), run.run_id);
    for asked in pending {
        let call = draw_call(&asked.gate, &asked.args);
        line("waits", &format!("{call}{} until {}", describe_pending(asked), asked.expires_at));
        if let Some(why) = trifecta_warning(asked) {
            line("", &why);
        }
        for danger in dangers(&asked.reasons) {
            line("", &danger);
        }
    }
    match parked.as_ref().map(|parked| (parked.reason, CrystalFault::of_record(parked))) {
        Some((ParkReason::CrystalUnavailable, Some(fault))) => {
            line("waits", &format!("for its crystal: {}, {}", fault.provider_message(), code_text(fault.code())));
            line("hint", fault.advice());
        }
        Some((ParkReason::CrystalUnavailable, None)) => line("waits", "for its crystal, which does not answer"),
        Some((ParkReason::NoProgress, Some(fault))) => {
            line("waits", &format!("to be resumed: {}, {}", fault.provider_message(), code_text(fault.code())));
            line("hint", fault.advice());
        }
        Some((ParkReason::NoProgress, None)) => {
            line("waits", "to be resumed: every process that resumed it ended without progress")
        }
        Some((ParkReason::Interrupted, _)) => line("waits", "to be resumed: it was interrupted"),
        Some((ParkReason::HandedBack, _)) => line("waits", "to be resumed: its process ended and released it"),
        None => {}
    }
    let next = match row.standing {
        RunStatus::Waiting if !pending.is_empty() => format!("run approve {id}"),
        RunStatus::Running => format!("run cancel {id}"),
        RunStatus::Failed if row.job.as_ref().is_some_and(|job| job.status != JobStatus::Failed) => {
            format!("run continue {id}")
        }
        RunStatus::Orphaned | RunStatus::Waiting | RunStatus::Failed => format!("run resume {id}"),
        RunStatus::Truncated => format!("run continue {id}"),
        RunStatus::Terminated if row.job.as_ref().is_some_and(is_backtest) => format!("backtest show {id}"),
        RunStatus::Terminated => match row.job.as_ref().map(|job| job.kind) {
            Some(JobKind::Compile) => format!("compile show {id}"),
            Some(JobKind::Eval) => "eval show".to_owned(),
            None => format!("loom thread {id}"),
        },
    };
    let next = if row.removed.is_some() { "retention ls".to_owned() } else { next };
    let _ = writeln!(text, "  {program} {next}{again}");
    text
}

/// Describes a job in one line.
pub fn describe_job(job: &JobRow) -> String {
    let error = job.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    let kind = if is_backtest(job) { "backtest" } else { job.kind.as_str() };
    format!("{kind} of {}, {} trials, {}{error}", job.subject, job.metric_calls, job.status.as_str())
}

/// Renders the highest cost of a waiting call and the reason why a person is asked.
pub fn describe_pending(asked: &PendingApproval) -> String {
    let cost = asked.cost.map_or_else(String::new, |cost| format!(", up to {cost}"));
    let why = asked.reason_code.as_deref().map_or_else(String::new, |code| format!(" ({})", strip_control(code)));
    format!("{cost}{why}")
}

/// Renders a call for the person who decides.
pub fn draw_call(gate: &str, args: &Value) -> String {
    cut(&strip_control(&format!("{gate}({args})")), 2_000)
}
