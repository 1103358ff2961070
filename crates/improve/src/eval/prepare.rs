//! From a request to a job: everything is resolved and checked, and the plan is computed.
//!
//! Preparing writes nothing and asks no model, so a plan costs nothing. Everything that decides about the result is
//! pinned here: artifacts, models, judges, the dataset by its hash. What is prepared twice is the same job.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip::Cancel;
use cantrip::canon::RunId;
use cantrip::canon::json::canonical;
use cantrip::crystal::Crystal;
use cantrip::loom::Improvements;
use cantrip::reply::{Refusal, codes};
use cantrip::spend::AuthorizationRef;
use cantrip_contract::limits::EPOCHS_MAX;
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, ContractRow, EvalId, ImproveRow, JobKind, JobModels, JobSpec, Metric, MetricRow,
    ModelsPart, Signature, Subject,
};

use super::closer::{EvalCloser, look_query};
use super::costs::{judgements, plan_costs};
use super::metric_choice::find_metric;
use super::plan::EvalPlan;
use super::request::EvalRequest;
use super::resolve::{ArtifactNames, NamedCandidate, find_spell, spell_baseline};
use super::runner::EvalTrials;
use super::scorer::EvalScorer;
use super::setup::{EvalSetup, SpellChoice};
use super::spells::SpellTrials;
use cantrip_ds::dataset::NamedDataset;
use cantrip_ds::job::{JobDriver, JobLimits, JobParts, JobReply, JobRequest};
use cantrip_ds::limits::JOB_TRIALS_MAX;
use cantrip_ds::metric::{MetricScorer, pin_judges};
use cantrip_ds::stats::{self, Observation};
use cantrip_ds::{Predictor, refuse_store_error};

/// An evaluation that is ready to start.
#[must_use = "start it, or show its plan"]
pub struct PreparedEval {
    setup: Arc<EvalSetup>,
    plan: EvalPlan,
    predictor: Predictor,
    spells: Arc<dyn SpellTrials>,
    metrics: MetricScorer,
    /// The name under which the metric is stored.
    metric_name: Option<String>,
    limits: JobLimits,
    owner: String,
    authorization: Option<AuthorizationRef>,
    job_run: Option<RunId>,
}

impl fmt::Debug for PreparedEval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedEval").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The candidates of an evaluation, and what their signature adds to its specification.
struct Candidates {
    signature: Option<Signature>,
    subject: NamedCandidate,
    baseline: Option<NamedCandidate>,
    /// The model of the candidates that name none.
    task_model: Option<String>,
    /// The task that a judge is told.
    task: String,
}

impl PreparedEval {
    /// Resolves and checks a request.
    pub async fn prepare(
        predictor: Predictor,
        spells: Arc<dyn SpellTrials>,
        metrics: MetricScorer,
        request: EvalRequest,
    ) -> Result<Self, Refusal> {
        let limits = JobLimits {
            budget: request.budget,
            max_calls: request.max_calls,
            max_proposals: None,
            concurrency: request.concurrency,
        };
        limits.check()?;
        if !(1..=EPOCHS_MAX).contains(&request.epochs) {
            return Err(codes::limit("the number of epochs", request.epochs, EPOCHS_MAX).into());
        }
        let named = predictor.datasets().resolve(&request.dataset).await?;
        let of = named.row.subject.clone();
        let found = find_metric(predictor.runtime().loom(), &request.metric).await?;
        let candidates = resolve_candidates(&predictor, &*spells, &of, &request).await?;
        let metric = pin_judges(&found.metric, &predictor, request.judge_model.as_deref(), &candidates.task).await?;
        if metric.is_preference() && candidates.baseline.is_none() {
            let rule = "it compares two outputs, so it needs a baseline: name one with --baseline";
            return Err(codes::metric_invalid(found.label(), rule).into());
        }
        metrics.check(&metric, &found.label()).await?;
        let chosen = spell_choice(&candidates, &request);
        let spec = job_spec(&predictor, &named, &candidates, &metric, &request).await?;
        let job = predictor.runtime().loom().job_of_hash(spec.job_hash()).await.map_err(refuse_store_error)?;
        let setup = Arc::new(EvalSetup::load(&predictor, &*spells, spec, &chosen).await?);
        check_size(&setup, &named)?;
        let plan = make_plan(&predictor, &setup, &named, &candidates, chosen, &request).await?;
        let authorization: Option<AuthorizationRef> = plan.cost.authorization.parse().ok();
        Ok(Self {
            setup,
            plan,
            predictor,
            spells,
            metrics,
            metric_name: found.name,
            limits,
            owner: request.owner,
            authorization: authorization.or(request.authorization),
            job_run: job.map(|job| job.run_id),
        })
    }

    /// Returns the plan to show before the first call.
    pub fn plan(&self) -> &EvalPlan {
        &self.plan
    }

    pub fn eval_id(&self) -> &EvalId {
        &self.setup.eval_id
    }

    /// Returns the run of the same job, if it was started before.
    pub fn job_run(&self) -> Option<RunId> {
        self.job_run
    }

    /// Starts the evaluation and drives it to its end, or until it waits. The same job that runs elsewhere is joined if
    /// `follow` is true; the report of the same job that has ended is read. A new job gets the given run, if there is
    /// one.
    pub async fn start(
        self,
        driver: &JobDriver,
        run: Option<RunId>,
        cancel: &Cancel,
        follow: bool,
    ) -> Result<JobReply, Refusal> {
        let Self { setup, plan, predictor, spells, metrics, metric_name, limits, owner, authorization, .. } = self;
        store_metric(&predictor, &setup.metric, metric_name).await?;
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
        Ok(driver.start(request, eval_parts(&setup, &predictor, &spells, metrics)).await)
    }
}

/// Returns the parts of the job that an evaluation is.
pub(crate) fn eval_parts(
    setup: &Arc<EvalSetup>,
    predictor: &Predictor,
    spells: &Arc<dyn SpellTrials>,
    metrics: MetricScorer,
) -> JobParts {
    let mut parts = JobParts::new(
        setup.trials(),
        EvalTrials::new(setup, predictor, spells),
        EvalScorer::new(Arc::clone(setup), predictor.clone(), metrics),
        EvalCloser::new(Arc::clone(setup), predictor.clone()),
    );
    parts.watched = setup.spec.subject.clone();
    parts
}

/// Stores a metric, before the job that names it.
pub(crate) async fn store_metric(predictor: &Predictor, metric: &Metric, name: Option<String>) -> Result<(), Refusal> {
    let body = canonical(metric.content()).map_err(|_| Refusal::from(codes::crash()))?;
    let row = MetricRow { metric_hash: metric.hash(), name, body, at: predictor.clock().now().wall };
    let row = ContractRow::Improve(Box::new(ImproveRow::Metric(Box::new(row))));
    predictor.catalog().write_rows(vec![row]).await
}

async fn resolve_candidates(
    predictor: &Predictor,
    spells: &dyn SpellTrials,
    of: &Subject,
    request: &EvalRequest,
) -> Result<Candidates, Refusal> {
    match of {
        Subject::Signature(id) => {
            let signature = predictor.catalog().signature(id).await?;
            let names = ArtifactNames::new(predictor, &signature).await?;
            let subject = names.find(&request.subject).await?;
            let baseline = names.baseline(&request.baseline, &subject).await?;
            let task_model = task_model(predictor, request, &subject, baseline.as_ref()).await?;
            let task = signature.description().to_owned();
            Ok(Candidates { signature: Some(signature), subject, baseline, task_model: Some(task_model), task })
        }
        Subject::Spell(name) => {
            if let Some(model) = &request.model {
                let rule = "a spell names its crystal itself, so no other model can be given";
                return Err(codes::config_invalid("--crystal", model.as_str(), rule).into());
            }
            let subject = find_spell(spells, &request.subject, &request.gates).await?;
            let baseline = spell_baseline(spells, &request.baseline, &request.gates, &subject).await?;
            let task_model = subject.tried.as_ref().map(|tried| tried.crystal.clone());
            let task = format!("Answer the intent, as the spell {name} does.");
            Ok(Candidates { signature: None, subject, baseline, task_model, task })
        }
    }
}

/// Returns the model of the candidates that name none. An artifact that names a model runs on it, because the model is
/// part of what is evaluated; so another model cannot be asked for then.
async fn task_model(
    predictor: &Predictor,
    request: &EvalRequest,
    subject: &NamedCandidate,
    baseline: Option<&NamedCandidate>,
) -> Result<String, Refusal> {
    let mut own = Vec::new();
    for candidate in [Some(subject), baseline].into_iter().flatten() {
        let id = candidate
            .id
            .artifact()
            .ok_or_else(|| Refusal::from(codes::contract_unknown("artifact", candidate.id.to_string())))?;
        own.push(predictor.catalog().artifact(&id).await?.params().model.clone());
    }
    let all_named = own.iter().all(Option::is_some);
    let named = match (&request.model, own.first()) {
        (Some(model), _) => Some(model.as_str()),
        (None, Some(Some(model))) if all_named => Some(model.as_str()),
        (None, _) => None,
    };
    let model = predictor.crystals().crystal(named)?.name().to_owned();
    let other = own.iter().flatten().find(|other| request.model.is_some() && **other != model);
    if let Some(other) = other {
        let rule =
            format!("an artifact names its own model, {other}; leave --crystal out, or evaluate another artifact");
        return Err(codes::config_invalid("--crystal", model, rule).into());
    }
    Ok(model)
}

fn spell_choice(candidates: &Candidates, request: &EvalRequest) -> SpellChoice {
    let spells = [Some(&candidates.subject), candidates.baseline.as_ref()].into_iter().flatten();
    let name = |candidate: &NamedCandidate| Some((candidate.id.to_string(), candidate.tried.as_ref()?.name.clone()));
    let names: BTreeMap<String, String> = spells.filter_map(name).collect();
    let gates = if names.is_empty() { Vec::new() } else { request.gates.clone() };
    SpellChoice { names, gates }
}

/// Makes the specification. `--rerun` takes the next number that no job has.
async fn job_spec(
    predictor: &Predictor,
    named: &NamedDataset,
    candidates: &Candidates,
    metric: &Metric,
    request: &EvalRequest,
) -> Result<JobSpec, Refusal> {
    let baseline: Option<CandidateId> = candidates.baseline.as_ref().map(|baseline| baseline.id.clone());
    let mut spec = JobSpec {
        kind: JobKind::Eval,
        of: named.row.subject.clone(),
        hashes: candidates.signature.as_ref().map(Signature::hashes),
        dataset_hash: named.hash(),
        base: baseline.clone(),
        subject: Some(candidates.subject.id.clone()),
        baseline,
        split: request.split,
        metric: metric.content().clone(),
        optimiser: None,
        models: JobModels {
            task: candidates.task_model.clone(),
            teacher: None,
            reflect: None,
            judge: metric.judges().first().and_then(|judge| judge.model.clone()),
        },
        epochs: request.epochs,
        seed: request.seed.clone(),
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

fn check_size(setup: &EvalSetup, named: &NamedDataset) -> Result<(), Refusal> {
    let examples = setup.examples().len() as u64;
    if examples == 0 {
        let what = format!("the number of examples in the {} split of {}", setup.spec.split.as_str(), named.label());
        return Err(codes::limit(what, 0, 1).into());
    }
    let trials = setup.trials().trials().len() as u64;
    if trials > JOB_TRIALS_MAX {
        return Err(codes::limit("the number of trials", trials, JOB_TRIALS_MAX).into());
    }
    Ok(())
}

async fn make_plan(
    predictor: &Predictor,
    setup: &EvalSetup,
    named: &NamedDataset,
    candidates: &Candidates,
    chosen: SpellChoice,
    request: &EvalRequest,
) -> Result<EvalPlan, Refusal> {
    let (spec, examples) = (&setup.spec, setup.examples());
    let look = match look_query(setup) {
        Some(query) => Some(predictor.runtime().loom().look_number(query).await.map_err(refuse_store_error)?),
        None => None,
    };
    if let Some(k) = look.filter(|k| stats::is_spent(*k)) {
        return Err(codes::test_spent(named.label(), k - 1).into());
    }
    let counts = &named.row.counts;
    let tried = [Some(&candidates.subject), candidates.baseline.as_ref()].into_iter().flatten();
    let tried: Vec<_> = tried.filter_map(|candidate| candidate.tried.as_ref()).collect();
    let mut removed = Vec::new();
    for gate in tried.iter().flat_map(|spell| &spell.removed) {
        if !removed.contains(gate) {
            removed.push(gate.clone());
        }
    }
    let units: Vec<Observation<'_>> = examples
        .iter()
        .map(|example| Observation {
            example_id: example.id.as_str(),
            group: example.group.as_deref(),
            weight_micro: 1,
            value_micro: 0,
        })
        .collect();
    let units = stats::units(&units).len() as u64;
    let models = ModelsPart { task: spec.models.task.clone(), judge: spec.models.judge.clone() };
    Ok(EvalPlan {
        job_hash: setup.job_hash,
        eval_id: setup.eval_id.clone(),
        subject: candidates.subject.id.to_string(),
        subject_role: candidates.subject.role.clone(),
        of: spec.of.to_string(),
        baseline: candidates.baseline.as_ref().map(|baseline| baseline.id.to_string()),
        baseline_role: candidates.baseline.as_ref().and_then(|baseline| baseline.role.clone()),
        dataset: named.label(),
        counts: counts.splits,
        split: spec.split,
        examples: examples.len() as u64,
        skipped: counts.skipped.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect(),
        contradictions: counts.contradiction,
        unlabelled: examples.iter().filter(|example| example.expected.is_none()).count() as u64,
        metric: setup.metric.summary(),
        metric_hash: setup.metric.hash(),
        notes: notes(setup, &models),
        models,
        epochs: spec.epochs,
        trials: setup.trials().trials().len() as u64,
        judgements: judgements(setup),
        cost: plan_costs(predictor, setup, request).await?,
        look,
        detectable: candidates
            .baseline
            .as_ref()
            .and_then(|_| stats::detectable(units))
            .map(|micro| u64::try_from(micro).unwrap_or(0)),
        removed,
        let_through: chosen.gates,
        spells: chosen.names,
        seed: spec.seed.clone(),
        rerun: spec.rerun,
    })
}

/// Returns the remarks of a plan, each a sentence.
fn notes(setup: &EvalSetup, models: &ModelsPart) -> Vec<String> {
    let mut notes = Vec::new();
    let family = |model: &Option<String>| model.as_deref().and_then(|name| name.split('/').next()).map(str::to_owned);
    if let (Some(task), Some(judge)) = (family(&models.task), family(&models.judge))
        && task == judge
    {
        notes.push(format!("the judge and the evaluated model are both of {task}; a judge may favour its own family"));
    }
    let unlabelled = setup.examples().iter().filter(|example| example.expected.is_none()).count();
    if unlabelled > 0 && setup.metric.pointer().is_some() {
        notes.push(format!("{unlabelled} examples have no expected output, and will have no score"));
    }
    if !setup.metric.is_reproducible() {
        notes.push("the metric runs a command, so its scores may not be the same another time".to_owned());
    }
    notes
}
