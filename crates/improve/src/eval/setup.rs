//! An evaluation with everything that its trials need, built from its specification.
//!
//! The process that starts an evaluation and the one that resumes it after a crash build it in the same way, from the
//! stored specification: nothing that decides about a score lives in one process alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::canon::Hash;
use cantrip::loom::{AnyLoom, Event, JobOpened, Journal, RecordValue, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    Artifact, CandidateId, Dataset, EvalId, Example, ExampleId, JobRow, JobSpec, Metric, Signature, Subject,
};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::names::JobEval;
use super::order::trial_order;
use super::spells::{SpellTrials, TriedSpell};
use cantrip_ds::job::{TrialInput, TrialList};
use cantrip_ds::{Predictor, refuse_store_error};
pub(crate) use cantrip_search::is_enum_at;

/// The spells of a job's candidates, and the gates that they may use. They are part of the plan that the job's first
/// record keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SpellChoice {
    /// The names of the spells by the ids of their cantrips.
    pub names: BTreeMap<String, String>,
    /// The gates that the caller lets through.
    pub gates: Vec<String>,
}

impl SpellChoice {
    /// Reads the choice from a plan. A plan of a signature has none.
    pub(crate) fn from_plan(plan: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let names = plan.get("spells").and_then(Value::as_object).into_iter().flatten();
        let gates = plan.get("let_through").and_then(Value::as_array).into_iter().flatten();
        Self {
            names: names.filter_map(|(id, name)| Some((id.clone(), text(name)?))).collect(),
            gates: gates.filter_map(text).collect(),
        }
    }
}

/// A candidate that is ready to be tried.
#[derive(Debug, Clone)]
pub(crate) enum Candidate {
    Artifact { id: CandidateId, artifact: Box<Artifact>, model: Option<String> },
    Spell { id: CandidateId, tried: Box<TriedSpell> },
}

/// An evaluation that is ready to run.
#[derive(Debug, Clone)]
pub(crate) struct EvalSetup {
    pub spec: JobSpec,
    pub job_hash: Hash,
    pub eval_id: EvalId,
    pub dataset: Arc<Dataset>,
    pub metric: Metric,
    /// The subject, then the baseline if there is one.
    pub candidates: Vec<Candidate>,
    /// The gates that the trials of a spell may use.
    pub gates: Vec<String>,
    /// The pointer into `expected` whose value is a label of its own.
    pub label_pointer: Option<String>,
}

impl EvalSetup {
    /// Loads everything that the specification names.
    pub(super) async fn load(
        predictor: &Predictor,
        spells: &dyn SpellTrials,
        spec: JobSpec,
        chosen: &SpellChoice,
    ) -> Result<Self, Refusal> {
        let (job_hash, eval_id) = (spec.job_hash(), spec.eval_id().ok_or_else(no_subject)?);
        let dataset = predictor.datasets().load(spec.dataset_hash).await?;
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let ids: Vec<&CandidateId> = spec.subject.iter().chain(&spec.baseline).collect();
        let mut candidates = Vec::with_capacity(ids.len());
        let output_schema = match &spec.of {
            Subject::Signature(id) => {
                let signature = predictor.catalog().signature(id).await?;
                if spec.hashes != Some(signature.hashes()) {
                    return Err(codes::record_altered("job", job_hash.to_string(), "signature_id").into());
                }
                for id in ids {
                    candidates.push(artifact_candidate(predictor, id, &signature, spec.models.task.as_deref()).await?);
                }
                Some(signature.output().source().clone())
            }
            Subject::Spell(_) => {
                let mut schema = None;
                for id in ids {
                    let tried = spell_candidate(spells, id, chosen).await?;
                    schema = schema.or_else(|| tried.answer_schema.clone());
                    candidates.push(Candidate::Spell { id: id.clone(), tried: Box::new(tried) });
                }
                schema
            }
        };
        let label_pointer = metric
            .pointer()
            .filter(|pointer| output_schema.as_ref().is_some_and(|schema| is_enum_at(schema, pointer)))
            .map(str::to_owned);
        Ok(Self {
            spec,
            job_hash,
            eval_id,
            dataset: Arc::new(dataset),
            metric,
            candidates,
            gates: chosen.gates.clone(),
            label_pointer,
        })
    }

    /// Returns what scores the trials of a compile: its metric and its dataset. `tested` names the final test of the base,
    /// and stands for that of any candidate. `candidates` has the base, and the base with each other decoding.
    pub(crate) fn of_compile(
        tested: JobEval,
        dataset: Arc<Dataset>,
        metric: Metric,
        candidates: Vec<Candidate>,
        gates: Vec<String>,
        label_pointer: Option<String>,
    ) -> Self {
        let JobEval { spec, job_hash, eval_id, .. } = tested;
        Self { spec, job_hash, eval_id, dataset, metric, candidates, gates, label_pointer }
    }

    /// Loads the evaluation of a stored job.
    pub(super) async fn of_job(predictor: &Predictor, spells: &dyn SpellTrials, job: &JobRow) -> Result<Self, Refusal> {
        let spec = stored_spec(job)?;
        let chosen = match &spec.of {
            Subject::Signature(_) => SpellChoice::default(),
            Subject::Spell(_) => SpellChoice::from_plan(&stored_plan(predictor.runtime().loom(), job).await?),
        };
        Self::load(predictor, spells, spec, &chosen).await
    }

    /// Returns the examples of the split, by id.
    pub(super) fn examples(&self) -> Vec<&Example> {
        self.dataset.split(self.spec.split).collect()
    }

    /// Returns an example by its id.
    pub(super) fn example(&self, id: &ExampleId) -> Result<&Example, Refusal> {
        let hash = self.spec.dataset_hash.to_string();
        let missing = || Refusal::from(codes::record_altered("dataset", hash, "examples"));
        self.dataset.example(id).ok_or_else(missing)
    }

    /// Returns the trials in the order in which they begin.
    pub(super) fn trials(&self) -> TrialList {
        let Some(subject) = &self.spec.subject else { return TrialList::new([]) };
        let ids = self.dataset.split(self.spec.split).map(|example| example.id.clone());
        TrialList::new(trial_order(
            self.job_hash,
            ids,
            self.spec.split,
            subject,
            self.spec.baseline.as_ref(),
            self.spec.epochs,
        ))
    }
}

/// The inputs of the examples of an evaluation.
pub(crate) struct ExampleInputs(pub Arc<EvalSetup>);

impl TrialInput for ExampleInputs {
    fn input<'a>(&'a self, example_id: &'a ExampleId) -> BoxFuture<'a, Result<Value, Refusal>> {
        Box::pin(std::future::ready(self.0.example(example_id).map(|example| example.input.clone())))
    }
}

/// Reads the specification of a stored job.
pub(crate) fn stored_spec(job: &JobRow) -> Result<JobSpec, Refusal> {
    let altered = |field: &str| Refusal::from(codes::record_altered("job", job.job_id.to_string(), field));
    let content = job.spec().map_err(|fault| altered(fault.field))?;
    JobSpec::from_value(&content).map_err(|_| altered("spec"))
}

/// Returns the plan that the first record of a job keeps.
pub(crate) async fn stored_plan(loom: &AnyLoom, job: &JobRow) -> Result<Value, Refusal> {
    let mut records = std::pin::pin!(loom.read(job.run_id, Seq::START));
    let altered = || Refusal::from(codes::record_altered("job", job.job_id.to_string(), "job.opened"));
    while let Some(record) = records.try_next().await.map_err(refuse_store_error)? {
        let Event::JobOpened(JobOpened { plan, .. }) = record.event().map_err(refuse_store_error)? else { continue };
        return match plan {
            RecordValue::Inline { inline } => Ok(inline),
            RecordValue::Body(reference) => read_body(loom, reference.hash).await,
        };
    }
    Err(altered())
}

/// Reads a stored body as JSON.
pub(crate) async fn read_body(loom: &AnyLoom, hash: Hash) -> Result<Value, Refusal> {
    let altered = || Refusal::from(codes::record_altered("body", hash.to_string(), "bytes"));
    let body = loom.body(hash).await.map_err(refuse_store_error)?;
    let text = std::str::from_utf8(body.bytes()).map_err(|_| altered())?;
    cantrip::canon::json::read(text).map_err(|_| altered())
}

fn no_subject() -> Refusal {
    codes::contract_invalid("the job evaluates no candidate".to_owned()).into()
}

/// Loads an artifact. An artifact that names a model runs on it; any other runs on the model of the job.
pub(crate) async fn artifact_candidate(
    predictor: &Predictor,
    id: &CandidateId,
    signature: &Signature,
    task: Option<&str>,
) -> Result<Candidate, Refusal> {
    let unknown = || Refusal::from(codes::contract_unknown("artifact", id.to_string()));
    let compiled = id.artifact().ok_or_else(unknown)?;
    let artifact = predictor.catalog().artifact(&compiled).await?;
    artifact.check_compatible(signature).map_err(|fault| fault.refusal(compiled.as_str(), signature.id()))?;
    let model = match &artifact.params().model {
        Some(_) => None,
        None => task.map(str::to_owned),
    };
    Ok(Candidate::Artifact { id: id.clone(), artifact: Box::new(artifact), model })
}

/// Looks a spell up. The file may have changed since the job began, which would make its later trials another job's.
pub(crate) async fn spell_candidate(
    spells: &dyn SpellTrials,
    id: &CandidateId,
    chosen: &SpellChoice,
) -> Result<TriedSpell, Refusal> {
    let name = chosen.names.get(id.as_str()).ok_or_else(|| Refusal::from(codes::not_found("spell", id.to_string())))?;
    let tried = spells.tried(name, &chosen.gates).await?;
    if tried.cantrip_id != id.as_str() {
        let state = format!("another version ({})", tried.cantrip_id);
        return Err(codes::wrong_state("spell", name.as_str(), state, "going on with the job", id.to_string()).into());
    }
    Ok(tried)
}
