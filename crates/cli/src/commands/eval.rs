//! `cantrip eval`: is an artifact or a spell better than another, on the same examples?

mod live;
mod stored;

use std::path::PathBuf;
use std::process::ExitCode;

use cantrip::canon::Money;
use cantrip_ds::contract::Split;
use cantrip_ds::limits::TRIALS_TOGETHER;
use cantrip_improve::eval::{BaselineChoice, EvalRequest};
use cantrip_reply::{Guard, Refusal, codes};
use serde_json::json;

use self::live::evaluate_live;
use self::stored::EvalAction;
use super::job::{Following, agree, default_crystal, finish_job, open};
use super::{Context, Outcome, print_reply};
use crate::args::{ids, metrics};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::store::Access;
use cantrip_terminal::job::draw_plan;
use cantrip_terminal::present::{Present, say};
use cantrip_terminal::watch::OutputMode;

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
                  cantrip eval art_81c1fe0d --dataset tickets --metric exact --dry-run\n  \
                  cantrip eval --live Triage\n  cantrip eval show\n  \
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
    #[arg(long, value_name = "DATASET", required_unless_present = "live")]
    dataset: Option<String>,

    /// The metric: a file, the name of one in ./metrics, or the name or hash of a stored metric.
    #[arg(long, value_name = "METRIC", required_unless_present = "live")]
    metric: Option<String>,

    /// Compare the canary of a signature with its primary, on the calls that they served. SUBJECT is the signature.
    #[arg(long, conflicts_with_all = ["dataset", "metric"])]
    live: bool,

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
        let access = if self.starts() { Access::Write } else { Access::Read };
        let replied = match open(self.store.as_deref(), access, guard) {
            Ok((store, service)) => {
                let on = Context { store: &store, service: &service, guard, present };
                self.execute(&on).await
            }
            Err(refusal) => Err(refusal),
        };
        print_reply("eval", guard, present, replied).await
    }

    /// Returns true if the command starts trials or judgements, or counts a look of a guard.
    pub(crate) fn starts(&self) -> bool {
        match &self.what {
            None => !self.options.dry_run || self.options.live,
            Some(action) => action.asks_models(),
        }
    }

    async fn execute(&self, on: &Context<'_>) -> Result<Outcome, Refusal> {
        match (&self.what, &self.subject) {
            (Some(action), None) => action.execute(on).await,
            (Some(_), Some(subject)) => {
                let rule = "write the subcommand first, or leave it out: `cantrip eval SUBJECT` starts an evaluation";
                Err(codes::config_invalid("eval", subject.as_str(), rule).into())
            }
            (None, Some(subject)) if self.options.live => Ok(evaluate_live(on, subject).await?.into()),
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
        let default = default_crystal(self.crystal.as_deref()).await?;
        let predictor = on.service.predictor(crystals(default), traces(on.store)?);
        let prepared = on.service.prepare_evaluation(predictor, request).await?;
        let drawn = draw_plan(prepared.plan());
        if self.dry_run {
            return Ok((on.service.evaluation_plan(&prepared).await, drawn).into());
        }
        // The report of an evaluation that has ended is only read, so there is nothing to agree to.
        let eval = prepared.eval_id().as_str();
        let has_ended = prepared.job_run().is_some() && on.service.evaluation_view(eval).await.is_ok();
        let mode = self.mode(on.present);
        if !has_ended {
            if mode.is_drawn() {
                say(drawn.trim_end());
            }
            let plan = prepared.plan();
            agree(self.yes, mode, &format!("the plan of {}", plan.eval_id), json!(plan)).await?;
        }
        let (watcher, following) = Following::new(mode, "eval");
        let reply = following.during(on, &cancel, on.service.evaluate(prepared, &cancel, watcher)).await;
        Ok(Outcome::Printed(finish_job(on, mode, self.html.as_deref(), reply).await.into()))
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
}
