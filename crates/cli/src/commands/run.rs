//! `cantrip run`: lists runs and their workers, and resumes, continues or ends them.

mod cancel;
mod changes;
mod decide;
mod job;
mod list;

use std::process::ExitCode;

use cantrip::canon::{EntityId, Money, RunId};
use cantrip::loom::{AnyLoom, Loom, PageRequest, RunKind, RunState};
use cantrip::{Cancel, ContinueOptions, store_refusal};
use cantrip_ds::job::JobContinuation;
use cantrip_reply::{Call, ExitStatus, Guard, Refusal, codes};
use cantrip_service::Service;
use serde_json::json;

use super::cast::{finish, print_answer};
use super::{Context, Outcome, predict, run_on_store};
use crate::args::ids;
use cantrip_local::origin::{self, SpellOrigin, SpellQuery};
use cantrip_local::process;
use cantrip_local::runtime::runtime;
use cantrip_local::store::{Access, Store};
use cantrip_terminal::approve::{can_prompt, follow_cast};
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::present::{DIM, Present, say};
use cantrip_terminal::watch::{OutputMode, Viewer};

/// List, show, resume, continue, cancel, approve and undo runs.
///
/// A run is one cast with all its children. One process at a time works on it, under a lease. When that process is
/// gone, any other process may resume the run.
#[derive(Debug, clap::Args)]
#[command(after_help = "Ids may be shortened to a unique prefix. @last, or no id, means the latest run; an entity \
                        means its latest run.\n\nExamples:\n  cantrip run ls\n  cantrip run resume\n  \
                        cantrip run resume --all\n  cantrip run continue run_06cyf9\n  cantrip run cancel run_06cyf9")]
pub(crate) struct RunCommand {
    #[command(subcommand)]
    what: RunAction,

    /// The store for casts: sqlite:FILE, jsonl:DIR, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Subcommand)]
enum RunAction {
    /// List runs, oldest first, with their state, the worker that holds them, and their intent.
    #[command(after_help = "Examples:\n  cantrip run ls\n  cantrip run ls --state waiting --json")]
    Ls(list::Listing),

    /// Show one run in full.
    #[command(after_help = "Examples:\n  cantrip run show\n  cantrip run show run_06cyf9")]
    Show {
        /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
        run: Option<String>,
    },

    /// Resume a run that waits, was killed or failed. Recorded calls are not executed again.
    #[command(after_help = "Examples:\n  cantrip run resume\n  cantrip run resume run_06cyf9\n  \
                            cantrip run resume --all")]
    Resume {
        #[command(flatten)]
        going: Going,

        /// Resume every run whose process is gone. Runs that wait for a person are not resumed.
        #[arg(long, conflicts_with_all = ["run", "spell", "jsonl"])]
        all: bool,
    },

    /// Continue a run that was cut off by a ward (a limit) or a failing crystal, with the same intent and new counters. A
    /// job that ran out of its budget, or was cancelled, goes on where it was.
    #[command(after_help = "Examples:\n  cantrip run continue\n  cantrip run continue ent_06cyf9 --max-turns 20\n  \
                            cantrip run continue run_06cyf9 --budget '2 USD'")]
    Continue {
        #[command(flatten)]
        going: Going,

        /// The maximum number of turns, up to the limit of the spell.
        #[arg(long, value_name = "N")]
        max_turns: Option<u64>,

        /// The maximum cost, for example '0.50 USD', up to the limit of the spell. For a job, the new budget of all of it.
        #[arg(long, value_name = "MONEY")]
        budget: Option<Money>,

        /// The new maximum number of trials of a job, with those that it has made.
        #[arg(long, value_name = "N")]
        max_calls: Option<u64>,
    },

    /// Cancel a run, also one that another process works on. Its records are kept.
    #[command(after_help = "Examples:\n  cantrip run cancel\n  cantrip run cancel run_06cyf9")]
    Cancel(cancel::Cancelling),

    /// Approve the calls of a run that wait for a person. The run continues when it is resumed.
    #[command(after_help = "Examples:\n  cantrip run show\n  cantrip run approve\n  cantrip run approve run_06cyf9")]
    Approve(decide::Waiting),

    /// Refuse the calls of a run that wait for a person, with a reason that the entity reads.
    #[command(after_help = "Examples:\n  cantrip run refuse --because 'not in this folder'")]
    Refuse {
        #[command(flatten)]
        waiting: decide::Waiting,

        /// The reason for the refusal.
        #[arg(long, value_name = "REASON", default_value = "no reason was given")]
        because: String,
    },

    /// Show the file changes of a run and its children as a unified diff that `patch` can read.
    #[command(after_help = "Examples:\n  cantrip run diff\n  cantrip run diff run_06cyf9 --since 2\n  \
                            cantrip run diff | patch -R -p1")]
    Diff(changes::Showing),

    /// Undo the file changes of a run. A file that was changed since then is reported and not touched.
    #[command(after_help = "Examples:\n  cantrip run undo\n  cantrip run undo run_06cyf9 --to 2")]
    Undo(changes::Undoing),
}

#[derive(Debug, clap::Args)]
struct Going {
    /// The run: its id or a prefix of it, @last, or the id of one of its entities, casts or turns.
    run: Option<String>,

    /// The spell that the run was cast from, if it cannot be found.
    #[arg(long, value_name = "SPELL")]
    spell: Option<String>,

    /// Print the upserts (stream updates) instead of the answer, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Print nothing on standard error during the run.
    #[arg(long)]
    quiet: bool,
}

/// How an interrupted run proceeds.
enum ResumeMode {
    Resumed,
    Continued(Box<ContinueOptions>),
}

impl RunCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let access = match &self.what {
            RunAction::Ls(_) | RunAction::Show { .. } | RunAction::Diff(_) => Access::Read,
            RunAction::Resume { .. }
            | RunAction::Continue { .. }
            | RunAction::Cancel(_)
            | RunAction::Approve(_)
            | RunAction::Refuse { .. }
            | RunAction::Undo(_) => Access::Write,
        };
        let command = async |on: Context<'_>| self.execute(&on).await;
        run_on_store("run", self.store.as_deref(), access, guard, present, command).await
    }

    async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        let reply = match &self.what {
            RunAction::Ls(listing) => listing.reply(on.store, on.guard).await?,
            RunAction::Show { run } => list::show(on, run.as_deref()).await?,
            RunAction::Resume { going, all: true } => return resume_all(on, self.store.as_deref(), going).await,
            RunAction::Resume { going, all: false } => {
                return match self.job(on, going).await? {
                    Some(run) => job::go_on(on, self.store.as_deref(), run, going, None).await,
                    None => resume_one(on, going, ResumeMode::Resumed).await,
                };
            }
            RunAction::Continue { going, max_turns, budget, max_calls } => {
                if let Some(run) = self.job(on, going).await? {
                    let more = JobContinuation { budget: *budget, max_calls: *max_calls };
                    return job::go_on(on, self.store.as_deref(), run, going, Some(more)).await;
                }
                let mut continuing = ContinueOptions::new();
                if let Some(turns) = max_turns {
                    continuing = continuing.max_turns(*turns);
                }
                if let Some(budget) = budget {
                    continuing = continuing.budget(*budget);
                }
                return resume_one(on, going, ResumeMode::Continued(Box::new(continuing))).await;
            }
            RunAction::Cancel(cancelling) => cancelling.reply(on, self.store.as_deref()).await?,
            RunAction::Approve(waiting) => waiting.reply(on, None).await?,
            RunAction::Refuse { waiting, because } => waiting.reply(on, Some(because)).await?,
            RunAction::Diff(showing) => return showing.print(on).await,
            RunAction::Undo(undoing) => undoing.reply(on).await?,
        };
        Ok(Outcome::Reply(reply))
    }

    /// Returns the run, if it is a job's.
    async fn job(&self, on: &Context<'_>, going: &Going) -> Result<Option<RunId>, Refusal> {
        let run = ids::run(&on.store.loom, going.run.as_deref()).await?;
        Ok((kind_of(&on.store.loom, run).await? == RunKind::Job).then_some(run))
    }
}

async fn resume_one(on: &Context<'_>, going: &Going, way: ResumeMode) -> Result<Outcome, Refusal> {
    let Context { store, guard, present, .. } = *on;
    let run = ids::run(&store.loom, going.run.as_deref()).await?;
    if let (ResumeMode::Resumed, RunKind::Predict) = (&way, kind_of(&store.loom, run).await?) {
        return resume_predict(on, run, going).await;
    }
    let found = cast_from(store, run, going.spell.as_deref()).await?;
    let shows = OutputMode::of(present.json, going.jsonl, going.quiet);
    let mut viewer = Viewer::new(shows);
    viewer.begin(&found.spell, None, &store.label());
    // The next turn has the number that it has in the thread, as in `loom show`.
    let stored = |error| store_refusal(&error);
    if let Some(entity) = store.loom.run(run).await.map_err(stored)?.entity_id
        && let Some(leaf) = store.loom.entity(entity).await.map_err(stored)?.leaf
    {
        viewer.counts_from(store.loom.turn(leaf).await.map_err(stored)?.sequence);
    }
    let runtime = viewer.watched(runtime(store, guard)).with_approvals(can_prompt(shows));
    let service = Service::new(runtime);
    let cancel = Cancel::new();
    if let ResumeMode::Resumed = way {
        process::release_run(&store.loom, run).await?;
    }
    let going_on = async {
        match way {
            ResumeMode::Resumed => service.resume(&found.cantrip, run, &cancel).await,
            ResumeMode::Continued(continuing) => {
                service.continue_run(&found.cantrip, run, continuing.cancelled_by(&cancel)).await
            }
        }
    };
    let from = (&found.spell, &found.cantrip);
    let reply = follow_cast(&mut viewer, &service, from, &cancel, going_on, async || ()).await;
    Ok(Outcome::Printed(finish(&viewer, present, shows, store, reply).into()))
}

/// Resumes a predict from its own record; it ends with its receipt.
async fn resume_predict(on: &Context<'_>, run: RunId, going: &Going) -> Result<Outcome, Refusal> {
    process::release_run(&on.store.loom, run).await?;
    let cancel = Cancel::new();
    let told = !on.present.json && !going.quiet;
    let resumed = predict::resume_predict(on, run, &cancel, going.quiet);
    Ok(Outcome::Printed(with_interrupt(&cancel, told, resumed).await?.into()))
}

/// Resumes all runs without an owner. Prints one reply for each run when it stops. The exit status is that of the
/// first run that did not succeed.
async fn resume_all(on: &Context<'_>, url: Option<&str>, going: &Going) -> Result<Outcome, Refusal> {
    let Context { store, service, guard, present } = *on;
    free_all(&store.loom).await?;
    let viewer = Viewer::new(OutputMode::Nothing);
    service.recover().await?;
    // A trial goes on with its job.
    let orphans = service.orphans().await?.into_iter().filter(|run| run.root_run_id.is_none());
    let (jobs, orphans): (Vec<_>, Vec<_>) = orphans.partition(|run| run.kind == RunKind::Job);
    let (predicts, others): (Vec<_>, Vec<_>) = orphans.into_iter().partition(|run| run.kind == RunKind::Predict);
    let runs: Vec<RunId> = others.into_iter().map(|run| run.run_id).collect();
    if runs.is_empty() && predicts.is_empty() && jobs.is_empty() {
        let filled = codes::read("runs without an owner").value(json!([]));
        let guarded = guard.call(Call::surface("run"), |rb| async { rb.success(filled) }).await;
        return Ok(Outcome::Reply((guarded, format!("{DIM}no runs to resume{DIM:#}\n"))));
    }
    let cancel = Cancel::new();
    let mut status = ExitStatus::Success;
    let told = !present.json && !going.quiet;
    let picked_up = service.resume_runs(
        runs,
        async |run| Ok(cast_from(store, run, None).await?.cantrip),
        &cancel,
        |run, reply| {
            if told {
                say(&format!("{DIM}{run}{DIM:#}"));
            }
            let shown = print_answer(&viewer, present, OutputMode::Nothing, reply);
            status = if status.is_success() { shown } else { status };
        },
    );
    with_interrupt(&cancel, told, picked_up).await;
    for run in predicts {
        if told {
            say(&format!("{DIM}{}{DIM:#}", run.run_id));
        }
        let resumed = predict::resume_predict(on, run.run_id, &cancel, going.quiet);
        let shown = with_interrupt(&cancel, told, resumed).await?;
        status = if status.is_success() { shown } else { status };
    }
    for run in jobs {
        let shown = job::resume(on, url, run.run_id, going).await?;
        status = if status.is_success() { shown } else { status };
    }
    Ok(Outcome::Printed(status.into()))
}

async fn kind_of(loom: &AnyLoom, run: RunId) -> Result<RunKind, Refusal> {
    Ok(loom.run(run).await.map_err(|error| store_refusal(&error))?.kind)
}

/// Returns the entity that a run casts.
async fn entity_of(loom: &AnyLoom, run: RunId) -> Result<EntityId, Refusal> {
    let view = loom.run(run).await.map_err(|error| store_refusal(&error))?;
    view.entity_id.ok_or_else(|| codes::wrong_state("run", run.to_string(), "no cast", "going on", "a cast").into())
}

/// Returns the cantrip and the spell of a run.
async fn cast_from(store: &Store, run: RunId, spell: Option<&str>) -> Result<SpellOrigin, Refusal> {
    let entity = entity_of(&store.loom, run).await?;
    origin::exact_of_entity(store, entity, SpellQuery { spell, crystal: None }).await
}

/// Releases every run that a dead process of this machine holds.
async fn free_all(loom: &AnyLoom) -> Result<(), Refusal> {
    let mut next = Some(PageRequest::FIRST);
    while let Some(page) = next {
        let listed = loom.runs_in(RunState::Running, page).await.map_err(|error| store_refusal(&error))?;
        for run in &listed.items {
            process::release_run(loom, run.run_id).await?;
        }
        next = page.following(listed.next);
    }
    Ok(())
}
