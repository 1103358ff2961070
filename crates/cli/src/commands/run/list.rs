//! `cantrip run ls` and `run show`: the runs of a store and their states.

use std::collections::HashMap;
use std::fmt::Write;

use cantrip::canon::{EntityId, RunId, Timestamp};
use cantrip::loom::{
    AnyLoom, CastParked, CastView, CostTotal, Ending, Error, Improvements, Journal, Loom, PageRequest, ParkReason,
    Removal, RunKind, RunState, RunView, Usage,
};
use cantrip::{MachineClock, PendingApproval, store_refusal};
use cantrip_canon::Clock;
use cantrip_ds::contract::{JobRow, JobStatus};
use cantrip_reply::{Call, Guard, Refusal, codes};
use serde::Serialize;

use super::costs::{self, Costs, EntityCost, Spent};
use crate::args::ids;
use crate::commands::{CommandReply, Context};
use crate::limits::{RUNS_LISTED_MAX, RUNS_READ_MIN};
use cantrip_local::process::{self, Presence};
use cantrip_local::store::Store;
use cantrip_terminal::approve::trifecta_warning;
use cantrip_terminal::present::{BOLD, DIM, code_text, cut, program, strip_control, width};
use cantrip_terminal::waiting::CrystalFault;
use cantrip_terminal::watch::cost;

/// The filters of `run ls`.
#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// List only runs in this state.
    #[arg(long, value_enum)]
    state: Option<RunStatus>,

    /// List only runs of this kind: cast, summon, predict or job. Trials of jobs are listed with `--kind`.
    #[arg(long, value_parser = parse_kind)]
    kind: Option<RunKind>,

    /// The maximum number of runs to list; the latest ones are listed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// The state of a run, as a user sees it who may have to act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum RunStatus {
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
    const fn word(self) -> &'static str {
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

/// The worker that holds a run.
#[derive(Debug, Serialize)]
struct Holder {
    owner: String,
    epoch: u64,
    expires_at: Timestamp,
    presence: Presence,
}

/// The listed values of one run.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    run: RunView,
    standing: RunStatus,
    holder: Option<Holder>,
    intent: Option<String>,
    /// The job, if the run is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<JobRow>,
    /// The removal of its records by a retention.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed: Option<Removal>,
}

fn parse_kind(text: &str) -> Result<RunKind, String> {
    match text {
        "cast" => Ok(RunKind::Cast),
        "summon" => Ok(RunKind::Summon),
        "predict" => Ok(RunKind::Predict),
        "job" => Ok(RunKind::Job),
        _ => Err("it is cast, summon, predict or job".to_owned()),
    }
}

impl Listing {
    pub(super) async fn reply(&self, store: &Store, guard: &Guard) -> Result<CommandReply, Refusal> {
        let rows = self.rows(&store.loom).await?;
        let text = match (rows.is_empty(), self.state) {
            (true, None) => format!("{DIM}no runs{DIM:#}\n"),
            (true, Some(_)) => "none\n".to_owned(),
            (false, _) => draw_rows(&rows, store),
        };
        let filled = codes::read("runs").value(&rows);
        Ok((guard.call(Call::surface("run"), |rb| async { rb.success(filled) }).await, text))
    }

    /// Returns the latest matching runs, oldest first.
    async fn rows(&self, loom: &AnyLoom) -> Result<Vec<Row>, Refusal> {
        let stored = |error: Error| store_refusal(&error);
        let most = self.limit.min(RUNS_LISTED_MAX);
        let (mut rows, mut removals) = (Vec::new(), Removals::default());
        let mut page = PageRequest { after: None, most };
        while rows.len() < most {
            page.most = (most - rows.len()).max(RUNS_READ_MIN);
            let listed = loom.latest_runs(self.state.map(recorded_state), page).await.map_err(stored)?;
            // The trials of a job would hide everything else.
            let is_listed = |run: &RunView| match self.kind {
                Some(kind) => run.kind == kind,
                None => run.root_run_id.is_none(),
            };
            for run in listed.items.into_iter().filter(is_listed) {
                // Only the lease shows whether a run has an owner.
                let row = row(loom, run, &mut removals).await.map_err(stored)?;
                if self.state.is_none_or(|wanted| wanted == row.standing) {
                    rows.push(row);
                }
                if rows.len() == most {
                    break;
                }
            }
            match listed.next {
                Some(after) => page.after = Some(after),
                None => break,
            }
        }
        rows.reverse();
        Ok(rows)
    }
}

/// Returns the recorded state that a status is derived from.
const fn recorded_state(standing: RunStatus) -> RunState {
    match standing {
        RunStatus::Running | RunStatus::Orphaned => RunState::Running,
        RunStatus::Waiting => RunState::Waiting,
        RunStatus::Terminated => RunState::Terminated,
        RunStatus::Truncated => RunState::Truncated,
        RunStatus::Failed => RunState::Failed,
    }
}

async fn standing(loom: &AnyLoom, run: &RunView) -> Result<(RunStatus, Option<Holder>), Error> {
    let standing = match run.state {
        RunState::Waiting => RunStatus::Waiting,
        RunState::Terminated => RunStatus::Terminated,
        RunState::Truncated => RunStatus::Truncated,
        RunState::Failed => RunStatus::Failed,
        RunState::Queued | RunState::Running => {
            let Some(lease) = loom.holder(run.run_id).await? else { return Ok((RunStatus::Orphaned, None)) };
            let presence = process::presence(&lease.owner);
            let now = loom.lease_now(MachineClock::new().now().wall).await?;
            let over = lease.expires_at <= now || presence == Presence::Gone;
            let (owner, epoch) = (lease.owner.as_str().to_owned(), lease.epoch.get());
            let holder = Holder { owner, epoch, expires_at: lease.expires_at, presence };
            return Ok((if over { RunStatus::Orphaned } else { RunStatus::Running }, Some(holder)));
        }
    };
    Ok((standing, None))
}

/// The removals by retentions, by run. They are read when the first run without records is found.
#[derive(Debug, Default)]
struct Removals(Option<HashMap<RunId, Removal>>);

impl Removals {
    async fn of(&mut self, loom: &AnyLoom, run: RunId) -> Result<Option<Removal>, Error> {
        let known = match self.0.take() {
            Some(known) => known,
            None => all_removals(loom).await?,
        };
        Ok(self.0.insert(known).get(&run).cloned())
    }
}

async fn all_removals(loom: &AnyLoom) -> Result<HashMap<RunId, Removal>, Error> {
    let mut removals = HashMap::new();
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.removals(page).await?;
        removals.extend(listed.items.into_iter().map(|removal| (removal.run_id, removal)));
        next = page.following(listed.next);
    }
    Ok(removals)
}

async fn row(loom: &AnyLoom, run: RunView, removals: &mut Removals) -> Result<Row, Error> {
    let (standing, holder) = standing(loom, &run).await?;
    let (intent, removed) = match cast_of(loom, &run).await? {
        CastRecord::Kept(cast) => (Some(cast.intent.text().chars().take(200).collect()), None),
        CastRecord::None => (None, None),
        CastRecord::Removed => (None, removals.of(loom, run.run_id).await?),
    };
    let job = match run.kind {
        RunKind::Job => loom.job_of_run(run.run_id).await?,
        RunKind::Cast | RunKind::Summon | RunKind::Predict => None,
    };
    let intent = intent.or_else(|| job.as_ref().map(super::job::describe));
    Ok(Row { run, standing, holder, intent, job, removed })
}

/// The record of a run's cast.
enum CastRecord {
    Kept(Box<CastView>),
    /// The run is not a cast, or its cast has not begun.
    None,
    /// A retention removed the records; the run itself is still known.
    Removed,
}

async fn cast_of(loom: &AnyLoom, run: &RunView) -> Result<CastRecord, Error> {
    let Some(entity) = run.entity_id else { return Ok(CastRecord::None) };
    match loom.casts(entity).await {
        Ok(casts) => {
            let own = casts.into_iter().rev().find(|cast| cast.run_id == run.run_id);
            Ok(own.map_or(CastRecord::None, |cast| CastRecord::Kept(Box::new(cast))))
        }
        Err(Error::Pruned { .. }) => Ok(CastRecord::Removed),
        Err(error) => Err(error),
    }
}

/// Renders who removed the records of a run, when and why.
fn removal_told(removal: &Removal) -> String {
    format!("{} by {}: {}", removal.at, strip_control(&removal.actor), strip_control(&removal.reason))
}

fn draw_rows(rows: &[Row], store: &Store) -> String {
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
    let (program, again) = (program(), &store.again);
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
struct RunDetails {
    #[serde(flatten)]
    row: Row,
    cast: Option<CastView>,
    /// The calls that wait for a person.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pending: Vec<PendingApproval>,
    /// The record that parked the run, if it is parked.
    #[serde(skip_serializing_if = "Option::is_none")]
    parked: Option<CastParked>,
    /// The cost of the run, with its children.
    costs: Costs,
}

pub(super) async fn show(on: &Context<'_>, asked: Option<&str>) -> Result<CommandReply, Refusal> {
    let Context { store, service, guard, .. } = *on;
    let stored = |error: Error| store_refusal(&error);
    let run: RunId = ids::run(&store.loom, asked).await?;
    let view = store.loom.run(run).await.map_err(stored)?;
    let (cast, is_removed) = match cast_of(&store.loom, &view).await.map_err(stored)? {
        CastRecord::Kept(cast) => (Some(*cast), false),
        CastRecord::None => (None, false),
        CastRecord::Removed => (None, true),
    };
    let (pending, parked) = match view.state {
        RunState::Waiting => (service.pending(run).await?, service.parked(run).await?),
        RunState::Queued | RunState::Running | RunState::Terminated | RunState::Truncated | RunState::Failed => {
            Default::default()
        }
    };
    // The costs are computed from the records. If a retention removed them, the receipt still has the costs.
    let costs = if is_removed { Costs::default() } else { costs::of(&store.loom, run).await.map_err(stored)? };
    let row = row(&store.loom, view, &mut Removals::default()).await.map_err(stored)?;
    let whole = RunDetails { row, cast, pending, parked, costs };
    let text = draw_details(&whole, store);
    let filled = codes::read(format!("run {run}")).value(&whole);
    Ok((guard.call(Call::surface("run"), |rb| async { rb.success(filled) }).await, text))
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

fn draw_details(RunDetails { row, cast, pending, parked, costs }: &RunDetails, store: &Store) -> String {
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
        line("job", &strip_control(&super::job::describe(job)));
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
    let (program, again, id) = (program(), &store.again, run.run_id);
    for asked in pending {
        let call = super::decide::call(&asked.gate, &asked.args);
        line("waits", &format!("{call}{} until {}", super::decide::describe_pending(asked), asked.expires_at));
        if let Some(why) = trifecta_warning(asked) {
            line("", &why);
        }
        for danger in cantrip_terminal::approve::dangers(&asked.reasons) {
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
        RunStatus::Terminated if row.job.is_some() => "eval show".to_owned(),
        RunStatus::Terminated => format!("loom thread {id}"),
    };
    let next = if row.removed.is_some() { "retention ls".to_owned() } else { next };
    let _ = writeln!(text, "  {program} {next}{again}");
    text
}
