//! `cantrip run ls` and `run show`: the runs of a store and their states.

use std::collections::HashMap;

use cantrip::canon::RunId;
use cantrip::loom::{
    AnyLoom, CastView, Error, Improvements, Journal, Loom, PageRequest, Removal, RunKind, RunState, RunView,
};
use cantrip::{MachineClock, store_refusal};
use cantrip_canon::Clock;
use cantrip_reply::{Call, Guard, Refusal, codes};
use cantrip_service::{Costs, run_costs};

use crate::args::ids;
use crate::commands::{CommandReply, Context};
use crate::limits::{RUNS_LISTED_MAX, RUNS_READ_MIN};
use cantrip_local::process::{self, Presence};
use cantrip_local::store::Store;
use cantrip_terminal::present::DIM;
use cantrip_terminal::run::{Holder, RunDetails, RunRow, RunStatus, describe_job, draw_details, draw_runs};

/// The filters of `run ls`.
#[derive(Debug, clap::Args)]
pub(super) struct Listing {
    /// List only runs in this state.
    #[arg(long, value_enum)]
    state: Option<WantedStatus>,

    /// List only runs of this kind: cast, summon, predict or job. Trials of jobs are listed with `--kind`.
    #[arg(long, value_parser = parse_kind)]
    kind: Option<RunKind>,

    /// The maximum number of runs to list; the latest ones are listed.
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

/// The status that `--state` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum WantedStatus {
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

impl WantedStatus {
    const fn status(self) -> RunStatus {
        match self {
            Self::Running => RunStatus::Running,
            Self::Orphaned => RunStatus::Orphaned,
            Self::Waiting => RunStatus::Waiting,
            Self::Terminated => RunStatus::Terminated,
            Self::Truncated => RunStatus::Truncated,
            Self::Failed => RunStatus::Failed,
        }
    }
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
            (false, _) => draw_runs(&rows, &store.again),
        };
        let filled = codes::read("runs").value(&rows);
        Ok((guard.call(Call::surface("run"), |rb| async { rb.success(filled) }).await, text))
    }

    /// Returns the latest matching runs, oldest first.
    async fn rows(&self, loom: &AnyLoom) -> Result<Vec<RunRow>, Refusal> {
        let stored = |error: Error| store_refusal(&error);
        let wanted = self.state.map(WantedStatus::status);
        let most = self.limit.min(RUNS_LISTED_MAX);
        let (mut rows, mut removals) = (Vec::new(), Removals::default());
        let mut page = PageRequest { after: None, most };
        while rows.len() < most {
            page.most = (most - rows.len()).max(RUNS_READ_MIN);
            let listed = loom.latest_runs(wanted.map(recorded_state), page).await.map_err(stored)?;
            // The trials of a job would hide everything else.
            let is_listed = |run: &RunView| match self.kind {
                Some(kind) => run.kind == kind,
                None => run.root_run_id.is_none(),
            };
            for run in listed.items.into_iter().filter(is_listed) {
                // Only the lease shows whether a run has an owner.
                let row = row(loom, run, &mut removals).await.map_err(stored)?;
                if wanted.is_none_or(|wanted| wanted == row.standing) {
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

async fn row(loom: &AnyLoom, run: RunView, removals: &mut Removals) -> Result<RunRow, Error> {
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
    let intent = intent.or_else(|| job.as_ref().map(describe_job));
    Ok(RunRow { run, standing, holder, intent, job, removed })
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
    let costs = if is_removed { Costs::default() } else { run_costs(&store.loom, run).await.map_err(stored)? };
    let row = row(&store.loom, view, &mut Removals::default()).await.map_err(stored)?;
    let whole = RunDetails { row, cast, pending, parked, costs };
    let text = draw_details(&whole, &store.again);
    let filled = codes::read(format!("run {run}")).value(&whole);
    Ok((guard.call(Call::surface("run"), |rb| async { rb.success(filled) }).await, text))
}
