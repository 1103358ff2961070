//! From a request to a job: everything is resolved and checked, and the plan is computed.
//!
//! Preparing writes nothing and asks no model, so a plan costs nothing. Everything that decides about the path of the
//! search is pinned here: the base, the models, the options of the optimiser, the dataset by its hash.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use cantrip::Cancel;
use cantrip::canon::RunId;
use cantrip::crystal::Crystal;
use cantrip::loom::Improvements;
use cantrip::reply::{Refusal, codes};
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{
    COMPILER_VERSION, CandidateId, Hashes, JobKind, JobModels, JobRow, JobSpec, LookQuery, Metric, OptimiserSpec,
    Signature, Split, Subject, VariantPatch,
};
use serde_json::{Map, Value, json};

use super::closer::CompileCloser;
use super::costs::{judgements, plan_costs};
use super::plan::CompilePlan;
use super::request::CompileRequest;
use super::runner::{CompileKeeper, KnownCandidates, trial_runner};
use super::setup::{CompileBase, CompileSetup};
use super::source::CompileSource;
use crate::compile::reflect::ReflectProposals;
use crate::compile::{Effort, optimiser, optimiser_spec};
use crate::eval::prepare::store_metric;
use crate::eval::resolve::{ArtifactNames, find_spell};
use crate::eval::scorer::EvalScorer;
use crate::eval::setup::SpellChoice;
use crate::eval::{JobEval, SpellTrials, TriedSpell, find_metric};
use crate::limits::{EVAL_EPOCHS_DEFAULT, GEPA_CALLS};
use cantrip_ds::dataset::NamedDataset;
use cantrip_ds::job::{JobDriver, JobLimits, JobParts, JobReply, JobRequest};
use cantrip_ds::limits::JOB_TRIALS_MAX;
use cantrip_ds::metric::{MetricScorer, pin_judges};
use cantrip_ds::stats::{self, Observation};
use cantrip_ds::{Predictor, refuse_store_error};

/// A compile that is ready to start.
#[must_use = "start it, or show its plan"]
pub struct PreparedCompile {
    setup: Arc<CompileSetup>,
    plan: CompilePlan,
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

impl fmt::Debug for PreparedCompile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedCompile").field("plan", &self.plan).finish_non_exhaustive()
    }
}

/// The base of a compile, as a caller named it.
struct NamedBase {
    id: CandidateId,
    /// `primary`, `canary` or `base`, or the name of a spell.
    role: Option<String>,
    loaded: CompileBase,
    hashes: Option<Hashes>,
    /// The model of the candidates that name none.
    task_model: Option<String>,
    /// The task that a judge is told.
    task: String,
    chosen: SpellChoice,
}

impl PreparedCompile {
    /// Resolves and checks a request.
    pub async fn prepare(
        predictor: Predictor,
        spells: Arc<dyn SpellTrials>,
        metrics: MetricScorer,
        request: CompileRequest,
    ) -> Result<Self, Refusal> {
        let chosen = optimiser(&request.optimiser)?;
        let named = predictor.datasets().resolve(&request.dataset).await?;
        let base = resolve_base(&predictor, &*spells, &named, &request).await?;
        let found = find_metric(predictor.runtime().loom(), &request.metric).await?;
        let metric = pin_judges(&found.metric, &predictor, request.judge_model.as_deref(), &base.task).await?;
        if metric.is_preference() {
            let rule = "it compares two outputs, and a compile scores each candidate alone: choose another metric";
            return Err(codes::metric_invalid(found.label(), rule).into());
        }
        metrics.check(&metric, &found.label()).await?;
        let models = models(&predictor, &base, &metric, &request)?;
        let given = given_options(&request, &base.loaded, &models);
        let search = base.loaded.search_base(&base.id);
        let options = optimiser_spec(chosen.id(), &given, search, models.reflect.is_some())?;
        check_wards(&*spells, &base, &options.options).await?;
        let spec = job_spec(&predictor, &named, &base, &metric, options, models, &request).await?;
        let job = predictor.runtime().loom().job_of_hash(spec.job_hash()).await.map_err(refuse_store_error)?;
        let setup = Arc::new(CompileSetup::load(&predictor, &*spells, spec, &base.chosen).await?);
        // A search by reflection has a bound of its own, so that it ends.
        let max_calls = request.max_calls.or((chosen.id() == "gepa.v1").then_some(GEPA_CALLS));
        let limits = JobLimits {
            budget: request.budget,
            max_calls,
            max_proposals: request.max_proposals,
            concurrency: request.concurrency,
        };
        limits.check()?;
        let effort = effort(&setup, &limits);
        check_size(&setup, &named, effort)?;
        chosen.check_bounds(setup.search.ground().options(), setup.search.sizes(max_calls))?;
        let plan = make_plan(&predictor, &setup, &named, &base, effort, &limits, &request).await?;
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
    pub fn plan(&self) -> &CompilePlan {
        &self.plan
    }

    /// Returns the run of the same job, if it was started before.
    pub fn job_run(&self) -> Option<RunId> {
        self.job_run
    }

    /// Starts the compile and drives it to its end, or until it waits. The same job that runs elsewhere is joined if
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
        let parts = compile_parts(&setup, &predictor, &spells, metrics).await?;
        Ok(driver.start(request, parts).await)
    }
}

/// Returns the parts of a stored compile, to go on with it.
pub(crate) async fn stored_compile_parts(
    predictor: &Predictor,
    spells: &Arc<dyn SpellTrials>,
    metrics: MetricScorer,
    job: &JobRow,
) -> Result<JobParts, Refusal> {
    let setup = Arc::new(CompileSetup::of_job(predictor, &**spells, job).await?);
    compile_parts(&setup, predictor, spells, metrics).await
}

/// Returns the parts of the job that a compile is.
async fn compile_parts(
    setup: &Arc<CompileSetup>,
    predictor: &Predictor,
    spells: &Arc<dyn SpellTrials>,
    metrics: MetricScorer,
) -> Result<JobParts, Refusal> {
    let known = Arc::new(KnownCandidates::default());
    let proposals = ReflectProposals::load(
        predictor.clone(),
        &setup.spec,
        Arc::clone(&setup.dataset),
        setup.search.space(),
        setup.answer_schema(),
    );
    Ok(JobParts {
        source: Arc::new(CompileSource::new(Arc::clone(setup))),
        trials: trial_runner(setup, predictor, spells, &known),
        proposals: Arc::new(proposals.await?),
        candidates: Arc::new(CompileKeeper { setup: Arc::clone(setup), predictor: predictor.clone(), known }),
        scorer: Arc::new(EvalScorer::new(Arc::clone(&setup.scoring), predictor.clone(), metrics)),
        closer: Arc::new(CompileCloser { setup: Arc::clone(setup), predictor: predictor.clone() }),
        watched: None,
    })
}

async fn resolve_base(
    predictor: &Predictor,
    spells: &dyn SpellTrials,
    named: &NamedDataset,
    request: &CompileRequest,
) -> Result<NamedBase, Refusal> {
    match &named.row.subject {
        Subject::Signature(id) => {
            let signature = predictor.catalog().signature(id).await?;
            check_subject(predictor, &signature, request).await?;
            let names = ArtifactNames::new(predictor, &signature).await?;
            let found = names.find(request.from.as_deref().unwrap_or("primary")).await?;
            let unknown = || Refusal::from(codes::contract_unknown("artifact", found.id.to_string()));
            let compiled = found.id.artifact().ok_or_else(unknown)?;
            let artifact = predictor.catalog().artifact(&compiled).await?;
            let fit = artifact.check_compatible(&signature);
            fit.map_err(|fault| fault.refusal(compiled.as_str(), signature.id()))?;
            let own = artifact.params().model.clone();
            if let (Some(asked), Some(own)) = (&request.model, &own)
                && predictor.crystals().crystal(Some(asked.as_str()))?.name() != own.as_str()
            {
                let rule =
                    format!("the artifact names its own model, {own}; leave --crystal out, or start from another");
                return Err(codes::config_invalid("--crystal", asked.as_str(), rule).into());
            }
            let model = request.model.as_deref().or(own.as_deref());
            let task_model = predictor.crystals().crystal(model)?.name().to_owned();
            Ok(NamedBase {
                id: found.id,
                role: found.role,
                hashes: Some(signature.hashes()),
                task_model: Some(task_model),
                task: signature.description().to_owned(),
                chosen: SpellChoice::default(),
                loaded: CompileBase::Artifact { signature: Arc::new(signature), artifact: Box::new(artifact) },
            })
        }
        Subject::Spell(name) => {
            for (option, given) in [("--crystal", &request.model), ("--from", &request.from)] {
                if let Some(given) = given {
                    let rule = "a spell is compiled as its file has it, with its own crystal";
                    return Err(codes::config_invalid(option, given.as_str(), rule).into());
                }
            }
            check_spell(name, request)?;
            let found = find_spell(spells, name, &request.gates).await?;
            let tried: TriedSpell =
                found.tried.ok_or_else(|| Refusal::from(codes::not_found("spell", name.as_str())))?;
            let names = BTreeMap::from([(found.id.to_string(), tried.name.clone())]);
            Ok(NamedBase {
                id: found.id,
                role: found.role,
                hashes: None,
                task_model: Some(tried.crystal.clone()),
                task: format!("Answer the intent, as the spell {name} does."),
                chosen: SpellChoice { names, gates: request.gates.clone() },
                loaded: CompileBase::Spell { tried: Box::new(tried) },
            })
        }
    }
}

/// Checks that the caller means the signature of the dataset.
async fn check_subject(predictor: &Predictor, signature: &Signature, request: &CompileRequest) -> Result<(), Refusal> {
    let asked = request.subject.as_str();
    let meant = predictor.catalog().resolve_name(asked, []).await?;
    if meant == *signature.id() {
        return Ok(());
    }
    let rule = format!("the dataset has examples of {}", signature.id());
    Err(codes::config_invalid("dataset", meant.to_string(), rule).into())
}

/// Checks that every choice of wards narrows the wards of the spell.
async fn check_wards(spells: &dyn SpellTrials, base: &NamedBase, options: &Value) -> Result<(), Refusal> {
    let CompileBase::Spell { tried } = &base.loaded else { return Ok(()) };
    for wards in options.get("wards").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object) {
        let patch = VariantPatch { wards: wards.clone(), ..VariantPatch::default() };
        if !patch.is_empty() {
            spells.tried_variant(&tried.name, &patch, &base.chosen.gates).await?;
        }
    }
    Ok(())
}

/// Checks that the caller means the spell of the dataset.
fn check_spell(name: &str, request: &CompileRequest) -> Result<(), Refusal> {
    let asked = request.subject.strip_prefix("spell:").unwrap_or(&request.subject);
    if asked == name {
        return Ok(());
    }
    let rule = format!("the dataset has examples of spell:{name}");
    Err(codes::config_invalid("dataset", asked, rule).into())
}

/// Returns the models of a job, each by its name.
fn models(
    predictor: &Predictor,
    base: &NamedBase,
    metric: &Metric,
    request: &CompileRequest,
) -> Result<JobModels, Refusal> {
    let named = |asked: &Option<String>| match asked {
        Some(asked) => {
            predictor.crystals().crystal(Some(asked.as_str())).map(|crystal| Some(crystal.name().to_owned()))
        }
        None => Ok(None),
    };
    Ok(JobModels {
        task: base.task_model.clone(),
        teacher: named(&request.teacher_model)?,
        reflect: named(&request.reflect_model)?,
        judge: metric.judges().first().and_then(|judge| judge.model.clone()),
    })
}

/// Returns the options that the caller gave, in one object.
fn given_options(request: &CompileRequest, base: &CompileBase, models: &JobModels) -> Value {
    let mut given: Map<String, Value> = request.options.clone();
    if let Some(slots) = &request.slots {
        given.insert("slots".to_owned(), json!(slots));
    }
    if !request.decodings.is_empty() {
        // A search chooses among the decodings of a signature, and among the wards of a spell.
        let key = match base {
            CompileBase::Artifact { .. } => "decoding",
            CompileBase::Spell { .. } => "wards",
        };
        given.insert(key.to_owned(), Value::Array(request.decodings.clone()));
    }
    if !request.texts.is_empty() {
        given.insert("texts".to_owned(), json!(request.texts));
    }
    if let Some(teacher) = &models.teacher {
        given.insert("teacher".to_owned(), json!(teacher));
    }
    Value::Object(given)
}

/// Makes the specification. `--rerun` takes the next number that no job has.
async fn job_spec(
    predictor: &Predictor,
    named: &NamedDataset,
    base: &NamedBase,
    metric: &Metric,
    optimiser: OptimiserSpec,
    models: JobModels,
    request: &CompileRequest,
) -> Result<JobSpec, Refusal> {
    let mut spec = JobSpec {
        kind: JobKind::Compile,
        of: named.row.subject.clone(),
        hashes: base.hashes,
        dataset_hash: named.hash(),
        base: Some(base.id.clone()),
        subject: None,
        baseline: None,
        // The split on which the winner is chosen.
        split: Split::Holdout,
        metric: metric.content().clone(),
        optimiser: Some(optimiser),
        models,
        epochs: EVAL_EPOCHS_DEFAULT,
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

/// Returns the trials and proposals at worst, under the bounds of the job.
fn effort(setup: &CompileSetup, limits: &JobLimits) -> Effort {
    let Effort { trials, proposals } = setup.search.worst(limits.max_calls);
    Effort {
        trials: trials.min(limits.max_calls.unwrap_or(u64::MAX)),
        proposals: proposals.min(limits.max_proposals.unwrap_or(u64::MAX)),
    }
}

fn check_size(setup: &CompileSetup, named: &NamedDataset, effort: Effort) -> Result<(), Refusal> {
    for split in [Split::Holdout, Split::Test] {
        if setup.dataset.split(split).next().is_none() {
            let what = format!("the number of examples in the {} split of {}", split.as_str(), named.label());
            return Err(codes::limit(what, 0, 1).into());
        }
    }
    if effort.trials > JOB_TRIALS_MAX {
        return Err(codes::limit("the number of trials", effort.trials, JOB_TRIALS_MAX).into());
    }
    Ok(())
}

async fn make_plan(
    predictor: &Predictor,
    setup: &CompileSetup,
    named: &NamedDataset,
    base: &NamedBase,
    effort: Effort,
    limits: &JobLimits,
    request: &CompileRequest,
) -> Result<CompilePlan, Refusal> {
    let spec = &setup.spec;
    // The number does not depend on the winner, which nobody knows yet.
    let tested = JobEval::of_compile(spec, &setup.base).ok_or_else(|| Refusal::from(codes::crash()))?;
    let query = LookQuery { eval_id: tested.eval_id, subject: spec.of.clone(), dataset_hash: spec.dataset_hash };
    let look = predictor.runtime().loom().look_number(query).await.map_err(refuse_store_error)?;
    if stats::is_spent(look) {
        return Err(codes::test_spent(named.label(), look - 1).into());
    }
    let observed: Vec<Observation<'_>> = setup
        .dataset
        .split(Split::Test)
        .map(|example| Observation {
            example_id: example.id.as_str(),
            group: example.group.as_deref(),
            weight_micro: 1,
            value_micro: 0,
        })
        .collect();
    let units = stats::units(&observed).len() as u64;
    let counts = &named.row.counts;
    let tried = match &setup.loaded {
        CompileBase::Artifact { .. } => None,
        CompileBase::Spell { tried } => Some(tried),
    };
    let named_optimiser = spec.optimiser.clone().ok_or_else(|| Refusal::from(codes::crash()))?;
    Ok(CompilePlan {
        job_hash: setup.job_hash,
        of: spec.of.to_string(),
        base: base.id.to_string(),
        base_role: base.role.clone(),
        dataset: named.label(),
        counts: counts.splits,
        skipped: counts.skipped.iter().map(|(reason, count)| (reason.as_str().to_owned(), *count)).collect(),
        contradictions: counts.contradiction,
        unlabelled: setup.dataset.examples().iter().filter(|example| example.expected.is_none()).count() as u64,
        metric: setup.metric.summary(),
        metric_hash: setup.metric.hash(),
        optimiser: named_optimiser.id,
        options: named_optimiser.options,
        trials: effort.trials,
        proposals: effort.proposals,
        judgements: judgements(setup, effort),
        models: spec.models.clone(),
        cost: plan_costs(predictor, setup, effort, request, limits.max_calls).await?,
        look: Some(look),
        detectable: stats::detectable(units).map(|micro| u64::try_from(micro).unwrap_or(0)),
        removed: tried.map(|tried| tried.removed.clone()).unwrap_or_default(),
        let_through: base.chosen.gates.clone(),
        texts: tried.map(|tried| tried.texts.clone()),
        answer_schema: setup.answer_schema(),
        spells: base.chosen.names.clone(),
        notes: notes(setup),
        seed: spec.seed.clone(),
        rerun: spec.rerun,
    })
}

/// Returns the remarks of a plan, each a sentence.
fn notes(setup: &CompileSetup) -> Vec<String> {
    let mut notes = Vec::new();
    let models = &setup.spec.models;
    let family = |model: &Option<String>| model.as_deref().and_then(|name| name.split('/').next()).map(str::to_owned);
    if let (Some(task), Some(judge)) = (family(&models.task), family(&models.judge))
        && task == judge
    {
        notes.push(format!("the judge and the compiled model are both of {task}; a judge may favour its own family"));
    }
    let unlabelled = setup.dataset.examples().iter().filter(|example| example.expected.is_none()).count();
    if unlabelled > 0 && setup.metric.pointer().is_some() {
        notes.push(format!("{unlabelled} examples have no expected output, and will have no score"));
    }
    if !setup.metric.is_reproducible() {
        notes.push("the metric runs a command, so its scores may not be the same another time".to_owned());
    }
    notes
}
