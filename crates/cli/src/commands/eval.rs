//! `cantrip eval`: is an artifact or a spell better than another, on the same examples?

mod records;
mod stored;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use cantrip::canon::{Money, RunId};
use cantrip::crystal::ModelName;
use cantrip::{Cancel, CastReply};
use cantrip_ds::contract::Split;
use cantrip_ds::job::JobProgressView;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_improve::eval::{BaselineChoice, EvalPlan, EvalRequest, PreparedEval};
use cantrip_reply::{ExitStatus, Guard, Refusal, codes};
use cantrip_service::{EvaluationView, Service};
use serde_json::{Value, json};
use tokio::sync::watch;

use self::records::RecordLines;
use self::stored::EvalAction;
use super::{Context, Outcome, print_reply};
use crate::args::{ids, metrics};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::process::{self, Presence};
use cantrip_local::runtime::runtime;
use cantrip_local::spell_catalog::FileSpellCatalog;
use cantrip_local::spells;
use cantrip_local::store::{self, Access, Store};
use cantrip_settings::{choice, current_folder};
use cantrip_terminal::approve::can_prompt;
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::job::{JobProgressLine, JobState, draw_plan, draw_report};
use cantrip_terminal::present::{DIM, Present, answer, program, say, strip_control};
use cantrip_terminal::user::confirm;
use cantrip_terminal::watch::OutputMode;

/// The variable that names the crystal of casts, predicts and evaluations.
const CRYSTAL: &str = "CANTRIP_CRYSTAL";

/// Evaluate an artifact or a spell on a dataset, beside the one that is served; list, show and verify evaluations.
///
/// The plan with its worst cost is shown first, and nothing is asked of a model before you agree. Standard output has
/// the id of the evaluation; the report goes to standard error. Ctrl-C stops where the evaluation can be resumed; a
/// second Ctrl-C cancels it.
#[derive(Debug, clap::Args)]
#[command(
    subcommand_negates_reqs = true,
    after_help = "SUBJECT is an artifact (its id or a prefix), primary, canary or base of the dataset's signature, or a \
                  spell.\n\nExamples:\n  cantrip eval art_81c1fe0d --dataset tickets --metric exact\n  \
                  cantrip eval canary --dataset tickets@3 --metric metrics/team.toml --budget '0.50 USD'\n  \
                  cantrip eval art_81c1fe0d --dataset tickets --metric exact --dry-run\n  cantrip eval show\n  \
                  cantrip eval show eval_7ff6 --html report.html"
)]
pub(crate) struct EvalCommand {
    #[command(subcommand)]
    what: Option<EvalAction>,

    /// The artifact or spell to evaluate.
    #[arg(required = true)]
    subject: Option<String>,

    #[command(flatten)]
    options: EvalOptions,

    /// The store for evaluations: sqlite:FILE, postgres://... or memory:.
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE", global = true)]
    store: Option<String>,
}

#[derive(Debug, clap::Args)]
struct EvalOptions {
    /// The dataset: its name, a version of it as in tickets@3, or the beginning of its hash.
    #[arg(long, value_name = "DATASET", required = true)]
    dataset: Option<String>,

    /// The metric: a file, the name of one in ./metrics, or the name or hash of a stored metric.
    #[arg(long, value_name = "METRIC", required = true)]
    metric: Option<String>,

    /// The part of the dataset. Only an evaluation on test supports a promotion.
    #[arg(long, value_name = "SPLIT", default_value_t = Split::Test)]
    split: Split,

    /// The artifact to compare with, or none. Default: the one that is served.
    #[arg(long, value_name = "ARTIFACT")]
    baseline: Option<String>,

    /// The number of times that each example is tried.
    #[arg(long, value_name = "NUMBER")]
    epochs: Option<u64>,

    /// The crystal (model) of artifacts that name none. Default: CANTRIP_CRYSTAL, or the one that is configured.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    crystal: Option<String>,

    /// The crystal (model) of judges that name none.
    #[arg(long, value_name = "PROVIDER/MODEL")]
    judge: Option<String>,

    /// The maximum cost of all trials, for example '0.50 USD'.
    #[arg(long, value_name = "MONEY")]
    budget: Option<Money>,

    /// The maximum number of trials.
    #[arg(long, value_name = "NUMBER")]
    max_calls: Option<u64>,

    /// The number of trials at the same time, from 1 to 64.
    #[arg(long, value_name = "NUMBER", default_value_t = TRIALS_TOGETHER)]
    concurrency: usize,

    /// The seed of the order of the trials.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,

    /// Let the trials of a spell use this gate although it reaches the outside. Can be given several times.
    #[arg(long, value_name = "GATE")]
    gate: Vec<String>,

    /// Pay only from this authorization (a granted budget). `cantrip spend ls` lists them.
    #[arg(long, value_name = "AUTHORIZATION")]
    authorization: Option<String>,

    /// Evaluate again although the same evaluation has ended.
    #[arg(long)]
    rerun: bool,

    /// Print the plan and end. Nothing is written.
    #[arg(long)]
    dry_run: bool,

    /// Start without asking.
    #[arg(long)]
    yes: bool,

    /// Print the records of the job instead of its id, each as one line of JSON.
    #[arg(long, conflicts_with = "json")]
    jsonl: bool,

    /// Also write the report as one page to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Print nothing on standard error during the run. Needs --yes, because the plan is not shown.
    #[arg(long)]
    quiet: bool,
}

impl EvalCommand {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let replied = match self.open(guard) {
            Ok((store, service)) => {
                let on = Context { store: &store, service: &service, guard, present };
                self.execute(&on).await
            }
            Err(refusal) => Err(refusal),
        };
        print_reply("eval", guard, present, replied).await
    }

    /// Returns true if the command starts trials or judgements.
    pub(crate) fn starts(&self) -> bool {
        match &self.what {
            None => !self.options.dry_run,
            Some(action) => action.asks_models(),
        }
    }

    /// Opens the store with the spells of this folder. A command that only reads creates nothing.
    fn open(&self, guard: &Guard) -> Result<(Arc<Store>, Service), Refusal> {
        let access = if self.starts() { Access::Write } else { Access::Read };
        let store = Arc::new(store::open_here(self.store.as_deref(), access)?);
        let spells = FileSpellCatalog::new(Arc::clone(&store))?;
        let service = Service::new(runtime(&store, guard))
            .with_spells(spells)
            .with_liveness(|worker| process::presence(worker) == Presence::Gone);
        Ok((store, service))
    }

    async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        match (&self.what, &self.subject) {
            (Some(action), None) => action.execute(on).await,
            (Some(_), Some(subject)) => {
                let rule = "write the subcommand first, or leave it out: `cantrip eval SUBJECT` starts an evaluation";
                Err(codes::config_invalid("eval", subject.as_str(), rule).into())
            }
            (None, Some(subject)) => self.options.evaluate(on, subject).await,
            // The parser asks for a subject.
            (None, None) => Err(codes::config_invalid("eval", "SUBJECT", "it is missing").into()),
        }
    }
}

impl EvalOptions {
    fn mode(&self, present: Present) -> OutputMode {
        OutputMode::of(present.json, self.jsonl, self.quiet)
    }

    async fn evaluate(&self, on: &Context<'_>, subject: &str) -> Result<Outcome, Refusal> {
        let request = self.request(on, subject).await?;
        let cancel = request.cancel.clone();
        let predictor = on.service.predictor(crystals(self.default_crystal().await?), traces(on.store)?);
        let prepared = on.service.prepare_evaluation(predictor, request).await?;
        let drawn = draw_plan(prepared.plan());
        if self.dry_run {
            return Ok((on.service.evaluation_plan(&prepared).await, drawn).into());
        }
        // The report of an evaluation that has ended is only read, so there is nothing to agree to.
        let eval = prepared.eval_id().as_str();
        let has_ended = prepared.job_run().is_some() && on.service.evaluation_view(eval).await.is_ok();
        if !has_ended {
            if self.mode(on.present).is_drawn() {
                say(drawn.trim_end());
            }
            self.agree(on.present, prepared.plan()).await?;
        }
        let reply = self.follow(on, prepared, &cancel).await;
        let page = self.html.as_deref();
        Ok(Outcome::Printed(finish_job(on, self.mode(on.present), page, reply).await.into()))
    }

    /// Returns the crystal of artifacts that name none, unless the command line names it. A spell names its own.
    async fn default_crystal(&self) -> Result<Option<Result<ModelName, Refusal>>, Refusal> {
        let here = current_folder()?;
        Ok(match (&self.crystal, std::env::var(CRYSTAL)) {
            (Some(_), _) => None,
            (None, Ok(named)) if !named.is_empty() => Some(spells::parse_crystal(&named)),
            (None, _) => Some(choice::crystal(&here, choice::Who::Predict).await),
        })
    }

    async fn request(&self, on: &Context<'_>, subject: &str) -> Result<EvalRequest, Refusal> {
        let missing = |name: &str| Refusal::from(codes::config_invalid("eval", name, "it is missing"));
        let dataset = self.dataset.clone().ok_or_else(|| missing("--dataset"))?;
        let metric = metrics::choice(self.metric.as_deref().ok_or_else(|| missing("--metric"))?)?;
        let payer = self.authorization.as_deref().map(|asked| ids::authorization(&on.store.loom, asked));
        let mut request = EvalRequest::new(subject, dataset, metric);
        request.split = self.split;
        request.baseline = self.baseline.as_deref().map(BaselineChoice::parse).unwrap_or_default();
        request.epochs = self.epochs.unwrap_or(request.epochs);
        request.model = self.crystal.clone();
        request.judge_model = self.judge.clone();
        request.seed = self.seed.clone().unwrap_or(request.seed);
        request.rerun = self.rerun;
        request.gates = self.gate.clone();
        request.budget = self.budget;
        request.max_calls = self.max_calls;
        request.concurrency = self.concurrency;
        request.authorization = ids::optional(payer).await?;
        Ok(request)
    }

    /// Asks the user about the plan, unless the command line agrees to it. Without an answer nothing is started.
    async fn agree(&self, present: Present, plan: &EvalPlan) -> Result<(), Refusal> {
        if self.yes {
            return Ok(());
        }
        let asked = if can_prompt(self.mode(present)) { confirm("start?").await } else { None };
        agreed(asked, &format!("the plan of {}", plan.eval_id), json!(plan))
    }

    /// Runs the evaluation, shows its progress or its records, and handles Ctrl-C.
    async fn follow(&self, on: &Context<'_>, prepared: PreparedEval, cancel: &Cancel) -> CastReply {
        let mode = self.mode(on.present);
        let line = mode.is_drawn().then(|| Arc::new(JobProgressLine::new("eval")));
        let (known, run) = watch::channel(None::<RunId>);
        let drawn = line.clone();
        let watcher = move |progress: &JobProgressView| {
            known.send_replace(Some(progress.run));
            if let Some(line) = &drawn {
                line.show(JobState::of(progress));
            }
        };
        let work = with_interrupt(cancel, mode.is_drawn(), on.service.evaluate(prepared, cancel, watcher));
        let reply = if mode == OutputMode::Upserts {
            let mut lines = RecordLines::new(&on.store.loom, on.guard.redactor());
            let reply = lines.during(run, work).await;
            if let Some(run) = reply.run {
                lines.print_new(run).await;
            }
            reply
        } else {
            work.await
        };
        if let Some(line) = line {
            line.end();
        }
        reply
    }
}

/// Returns the refusal of a plan that nobody agreed to.
fn agreed(asked: Option<bool>, what: &str, plan: Value) -> Result<(), Refusal> {
    match asked {
        Some(true) => Ok(()),
        Some(false) => Err(codes::approval_refused("the person at the terminal", what, "it was not started").into()),
        None => {
            let hint = "read the plan with --dry-run, and start it with --yes";
            Err(codes::no_decision(what, 0).data(json!({"plan": plan, "hint": hint})).into())
        }
    }
}

/// Prints the end of an evaluation: its report, or where it waits and the command that resumes it. Returns the exit
/// status.
pub(super) async fn finish_job(
    on: &Context<'_>,
    mode: OutputMode,
    page: Option<&Path>,
    reply: CastReply,
) -> ExitStatus {
    let CastReply { guarded, waiting, run, .. } = reply;
    let data = guarded.reply.data();
    let waits = waiting.is_some() || data.get("state").and_then(Value::as_str) == Some("waiting");
    let eval = data.get("eval_id").and_then(Value::as_str).map(str::to_owned);
    let is_replayed = data.get("replayed") == Some(&Value::Bool(true));
    let mut reason = data.get("reason").and_then(Value::as_str).map(strip_control).unwrap_or_default();
    if let Some(fault) = data.get("fault").and_then(|fault| fault["message"].as_str()) {
        reason = format!("{reason}: {}", strip_control(fault));
    }
    let view = match eval.as_deref().filter(|_| !waits) {
        Some(eval) => on.service.evaluation_view(eval).await.ok(),
        None => None,
    };
    if let Some(view) = &view {
        if mode.is_drawn() {
            if is_replayed {
                say(&format!("{DIM}evaluated before; --rerun does it again{DIM:#}"));
            }
            say(draw_report(view).trim_end());
        }
        if let Some(path) = page
            && let Err(refusal) = write_page(path, view)
        {
            let refused = on.guard.call(cantrip_reply::Call::surface("eval"), |rb| async { rb.refuse(refusal) }).await;
            return on.present.show_reply(refused, || {});
        }
    }
    let is_evaluated = guarded.reply.code() == codes::EVALUATED;
    let status = on.present.show_reply(guarded, || {
        if let Some(eval) = eval.filter(|_| is_evaluated && mode != OutputMode::Upserts) {
            answer(&format!("{eval}\n"));
        }
    });
    if let Some(run) = run.filter(|_| waits && !on.present.json) {
        let again = on.store.label().again;
        say(&format!("{DIM}{run} waits ({reason}); resume it with: {} run resume {run}{again}{DIM:#}", program()));
    }
    status
}

/// Writes the report as one page.
fn write_page(path: &Path, view: &EvaluationView) -> Result<(), Refusal> {
    let page = cantrip_pages::evaluation_page(view);
    std::fs::write(path, page)
        .map_err(|error| codes::io_failed("write", path.display().to_string(), error.to_string()).into())
}
