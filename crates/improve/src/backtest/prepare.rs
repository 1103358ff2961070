//! From a request to a job: the recorded runs are found, everything is checked, and the plan is computed.
//!
//! Preparing writes nothing and asks no model, so a plan costs nothing.

use std::fmt;
use std::sync::Arc;

use cantrip::Cancel;
use cantrip::canon::RunId;
use cantrip::crystal::Crystal;
use cantrip::loom::Improvements;
use cantrip::reply::{Refusal, codes};
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, Dataset, JobKind, JobModels, JobSpec, Metric, OptimiserSpec, Split, SplitSeed,
    SplitShares, Subject,
};
use serde_json::{Value, json};

use super::BACKTEST_ID;
use super::casts::{BacktestCasts, BacktestSpell};
use super::closer::BacktestCloser;
use super::costs::plan_costs;
use super::gather::{Gathered, gather_runs};
use super::plan::BacktestPlan;
use super::request::{BacktestRequest, MissingCalls};
use super::runner::BacktestTrials;
use super::scorer::BacktestScorer;
use super::setup::BacktestSetup;
use crate::eval::{MetricChoice, NamedMetric, find_metric, store_metric};
use cantrip_ds::job::{JobDriver, JobLimits, JobParts, JobReply, JobRequest};
use cantrip_ds::metric::{MetricScorer, pin_judges};
use cantrip_ds::stats;
use cantrip_ds::{Predictor, refuse_store_error};

/// A backtest that is ready to start.
#[must_use = "start it, or show its plan"]
pub struct PreparedBacktest {
    setup: Arc<BacktestSetup>,
    plan: BacktestPlan,
    predictor: Predictor,
    casts: Arc<dyn BacktestCasts>,
    metrics: MetricScorer,
    /// The name under which the metric is stored.
    metric_name: Option<String>,
    limits: JobLimits,
    owner: String,
    authorization: Option<AuthorizationRef>,
    job_run: Option<RunId>,
}

impl fmt::Debug for PreparedBacktest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedBacktest").field("plan", &self.plan).finish_non_exhaustive()
    }
}

impl PreparedBacktest {
    /// Resolves and checks a request.
    pub async fn prepare(
        predictor: Predictor,
        casts: Arc<dyn BacktestCasts>,
        metrics: MetricScorer,
        request: BacktestRequest,
    ) -> Result<Self, Refusal> {
        let limits = JobLimits {
            budget: request.budget,
            max_calls: request.max_calls,
            max_proposals: None,
            concurrency: request.concurrency,
        };
        limits.check()?;
        let name = request.spell.name.as_str();
        let of = Subject::of_spell(name)
            .map_err(|fault| Refusal::from(codes::config_invalid("backtest", name, fault.to_string())))?;
        let spell = casts.look(&request.spell).await?;
        let gathered = gather_runs(predictor.runtime().loom(), &of, &request.records).await?;
        if gathered.examples.is_empty() {
            return Err(nothing_recorded(name, &gathered));
        }
        let found = chosen_metric(&predictor, &request).await?;
        let task = format!("Answer the intent, as the spell {name} does.");
        let metric = pin_judges(&found.metric, &predictor, request.judge_model.as_deref(), &task).await?;
        metrics.check(&metric, &found.label()).await?;
        let dataset = record_dataset(&of, &gathered)?;
        let spec = job_spec(&predictor, &dataset, &spell, &metric, &request).await?;
        let job = predictor.runtime().loom().job_of_hash(spec.job_hash()).await.map_err(refuse_store_error)?;
        let setup = BacktestSetup::load(&predictor, &*casts, spec, request.spell.clone(), dataset).await?;
        let plan = make_plan(&predictor, &setup, &gathered, &request).await?;
        let authorization: Option<AuthorizationRef> = plan.cost.authorization.parse().ok();
        Ok(Self {
            setup: Arc::new(setup),
            plan,
            predictor,
            casts,
            metrics,
            metric_name: found.name,
            limits,
            owner: request.owner,
            authorization: authorization.or(request.authorization),
            job_run: job.map(|job| job.run_id),
        })
    }

    /// Returns the plan to show before the first call.
    pub fn plan(&self) -> &BacktestPlan {
        &self.plan
    }

    /// Returns the run of the same job, if it was started before.
    pub fn job_run(&self) -> Option<RunId> {
        self.job_run
    }

    /// Starts the backtest and drives it to its end, or until it waits. The same job that runs elsewhere is joined if
    /// `follow` is true; the report of the same job that has ended is read.
    pub async fn start(
        self,
        driver: &JobDriver,
        run: Option<RunId>,
        cancel: &Cancel,
        follow: bool,
    ) -> Result<JobReply, Refusal> {
        let Self { setup, plan, predictor, casts, metrics, metric_name, limits, owner, authorization, .. } = self;
        store_metric(&predictor, &setup.metric, metric_name).await?;
        let filters = json!({ "backtest": plan.records });
        predictor.datasets().keep(&setup.dataset, filters, &owner).await?;
        let request = JobRequest {
            plan: cantrip::canon::json::to_value(&plan).map_err(|_| Refusal::from(codes::crash()))?,
            limits,
            owner,
            authorization,
            cancel: cancel.clone(),
            follow,
            run,
            ..JobRequest::new(setup.spec.clone())
        };
        Ok(driver.start(request, parts(&setup, &predictor, &casts, metrics)).await)
    }
}

/// Returns the parts of the job that a backtest is.
pub(super) fn parts(
    setup: &Arc<BacktestSetup>,
    predictor: &Predictor,
    casts: &Arc<dyn BacktestCasts>,
    metrics: MetricScorer,
) -> JobParts {
    let mut parts = JobParts::new(
        setup.trials(),
        BacktestTrials::new(Arc::clone(setup), predictor.clone(), Arc::clone(casts)),
        BacktestScorer::new(Arc::clone(setup), predictor.clone(), metrics),
        BacktestCloser::new(predictor.clone()),
    );
    parts.watched = Some(setup.subject.clone());
    parts
}

fn nothing_recorded(spell: &str, gathered: &Gathered) -> Refusal {
    let skipped: Value = gathered.skipped.iter().map(|(reason, count)| (reason.as_str(), json!(count))).collect();
    let hint = "cast the spell first, or look further back with --since";
    let what = format!("the number of recorded runs of {spell} that can be cast anew");
    codes::limit(what, 0, 1).data(json!({ "skipped": skipped, "hint": hint })).into()
}

/// Returns the metric of a request; by default an answer is right if it is the expected one.
async fn chosen_metric(predictor: &Predictor, request: &BacktestRequest) -> Result<NamedMetric, Refusal> {
    let same = || {
        let metric = json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": "", "normalise": "none"});
        MetricChoice::Given { name: None, metric }
    };
    let choice = request.metric.clone().unwrap_or_else(same);
    find_metric(predictor.runtime().loom(), &choice).await
}

/// Makes the dataset of the runs. Two runs with the same intent are two examples, so it is not built as others are.
fn record_dataset(of: &Subject, gathered: &Gathered) -> Result<Dataset, Refusal> {
    let shares = SplitShares::new(100, 0, 0).map_err(|_| Refusal::from(codes::crash()))?;
    Dataset::from_stored(of.clone(), shares, SplitSeed::default(), gathered.examples.clone())
        .map_err(|fault| codes::contract_invalid(fault.to_string()).into())
}

/// Makes the specification. `--rerun` takes the next number that no job has.
async fn job_spec(
    predictor: &Predictor,
    dataset: &Dataset,
    spell: &BacktestSpell,
    metric: &Metric,
    request: &BacktestRequest,
) -> Result<JobSpec, Refusal> {
    let subject: CandidateId = spell.cantrip_id.parse().map_err(|_| Refusal::from(codes::crash()))?;
    let judge = match metric.judges().first().and_then(|judge| judge.model.clone()) {
        Some(model) => Some(model),
        None if request.missing == MissingCalls::Judge => {
            Some(predictor.crystals().crystal(request.judge_model.as_deref())?.name().to_owned())
        }
        None => None,
    };
    let mut spec = JobSpec {
        kind: JobKind::Eval,
        of: dataset.subject().clone(),
        hashes: None,
        dataset_hash: dataset.hash(),
        base: None,
        subject: Some(subject),
        baseline: None,
        split: Split::Train,
        metric: metric.content().clone(),
        optimiser: Some(OptimiserSpec {
            id: BACKTEST_ID.to_owned(),
            options: json!({ "missing": request.missing.as_str() }),
        }),
        models: JobModels { task: Some(spell.crystal.clone()), teacher: None, reflect: None, judge },
        epochs: 1,
        seed: "default".to_owned(),
        compiler_version: COMPILER_VERSION.to_owned(),
        rerun: 0,
    };
    if request.rerun {
        let loom = predictor.runtime().loom();
        while loom.job_of_hash(spec.job_hash()).await.map_err(refuse_store_error)?.is_some() {
            spec.rerun += 1;
        }
    }
    Ok(spec)
}

async fn make_plan(
    predictor: &Predictor,
    setup: &BacktestSetup,
    gathered: &Gathered,
    request: &BacktestRequest,
) -> Result<BacktestPlan, Refusal> {
    let runs = gathered.examples.len() as u64;
    let same = gathered.cantrips.values().filter(|cantrip| **cantrip == setup.spell.cantrip_id).count() as u64;
    Ok(BacktestPlan {
        job_hash: setup.job_hash,
        spell: setup.source.clone(),
        candidate: setup.spell.cantrip_id.clone(),
        crystal: setup.spell.crystal.clone(),
        records: request.records.clone(),
        runs,
        unchanged: same,
        skipped: gathered.skipped.clone(),
        metric: setup.metric.summary(),
        metric_hash: setup.metric.hash(),
        missing: setup.missing,
        judge: setup.spec.models.judge.clone(),
        cost: plan_costs(predictor, setup, same, request).await?,
        detectable: stats::detectable(runs).and_then(|micro| u64::try_from(micro).ok()),
        rerun: setup.spec.rerun,
        notes: notes(setup, gathered),
    })
}

/// Returns the remarks of a plan, each a sentence.
fn notes(setup: &BacktestSetup, gathered: &Gathered) -> Vec<String> {
    let mut notes = Vec::new();
    if !setup.spell.servers.is_empty() {
        let servers = setup.spell.servers.join(", ");
        notes.push(format!("{servers} is not started: its tools are those of the record, and the crystal is asked"));
    }
    if setup.spell.is_verified {
        let note = "the program that verifies answers is not run: an answer that was not given then is accepted";
        notes.push(note.to_owned());
    }
    let unlabelled = gathered.examples.iter().filter(|example| example.expected.is_none()).count();
    if unlabelled > 0 && setup.metric.pointer().is_some() {
        notes.push(format!("{unlabelled} runs have no expected answer, and will have no score"));
    }
    if !setup.metric.is_reproducible() {
        notes.push("the metric runs a command, so its scores may not be the same another time".to_owned());
    }
    notes
}
