//! A compile with everything that it needs, built from its specification.
//!
//! The process that starts a compile and the one that resumes it after a crash build it in the same way, from the stored
//! specification: nothing that decides about the path of the search lives in one process alone.

use std::sync::Arc;

use cantrip::canon::Hash;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    Artifact, CandidateId, Dataset, ExampleId, JobRow, JobSpec, Metric, Signature, SignatureId, Subject,
};
use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::compile::{Content, Search, SearchBase};
use crate::eval::setup::{
    Candidate, EvalSetup, SpellChoice, artifact_candidate, is_enum_at, spell_candidate, stored_plan, stored_spec,
};
use crate::eval::{JobEval, SpellTexts, SpellTrials, TriedSpell};
use cantrip_ds::Predictor;
use cantrip_ds::job::{CostBound, TrialInput};

/// The base of a compile, as it is loaded.
#[derive(Debug, Clone)]
pub(crate) enum CompileBase {
    Artifact { signature: Arc<Signature>, artifact: Box<Artifact> },
    Spell { tried: Box<TriedSpell> },
}

/// A compile that is ready to run.
#[derive(Debug, Clone)]
pub(crate) struct CompileSetup {
    pub spec: JobSpec,
    pub job_hash: Hash,
    pub base: CandidateId,
    pub loaded: CompileBase,
    pub dataset: Arc<Dataset>,
    pub metric: Metric,
    pub search: Search,
    /// The scorer of the trials, with its metric.
    pub scoring: Arc<EvalSetup>,
    /// The gates that the trials of a spell may use.
    pub gates: Vec<String>,
}

impl CompileSetup {
    /// Loads everything that the specification names.
    pub(crate) async fn load(
        predictor: &Predictor,
        spells: &dyn SpellTrials,
        spec: JobSpec,
        chosen: &SpellChoice,
    ) -> Result<Self, Refusal> {
        let base = base_of(&spec)?;
        let loaded = match &spec.of {
            Subject::Signature(id) => CompileBase::of_signature(predictor, &spec, id, &base).await?,
            Subject::Spell(_) => {
                let tried = spell_candidate(spells, &base, chosen).await?;
                CompileBase::Spell { tried: Box::new(tried) }
            }
        };
        Self::with_base(predictor, spec, loaded, chosen.gates.clone()).await
    }

    /// Loads the compile of a stored job, to go on with it.
    pub(crate) async fn of_job(predictor: &Predictor, spells: &dyn SpellTrials, job: &JobRow) -> Result<Self, Refusal> {
        let spec = stored_spec(job)?;
        let chosen = match &spec.of {
            Subject::Signature(_) => SpellChoice::default(),
            Subject::Spell(_) => SpellChoice::from_plan(&stored_plan(predictor.runtime().loom(), job).await?),
        };
        Self::load(predictor, spells, spec, &chosen).await
    }

    /// Loads the compile of a stored job, to read it. The file of a spell may have changed since, so its texts are taken
    /// from the plan that the job's first record keeps.
    pub(crate) async fn for_reading(predictor: &Predictor, job: &JobRow) -> Result<Self, Refusal> {
        let spec = stored_spec(job)?;
        let base = base_of(&spec)?;
        let (loaded, gates) = match &spec.of {
            Subject::Signature(id) => (CompileBase::of_signature(predictor, &spec, id, &base).await?, Vec::new()),
            Subject::Spell(name) => {
                let plan = stored_plan(predictor.runtime().loom(), job).await?;
                let gates = SpellChoice::from_plan(&plan).gates;
                (CompileBase::of_plan(&plan, name, &base, spec.models.task.as_deref()), gates)
            }
        };
        Self::with_base(predictor, spec, loaded, gates).await
    }

    async fn with_base(
        predictor: &Predictor,
        spec: JobSpec,
        loaded: CompileBase,
        gates: Vec<String>,
    ) -> Result<Self, Refusal> {
        let (job_hash, base) = (spec.job_hash(), base_of(&spec)?);
        let dataset = Arc::new(predictor.datasets().load(spec.dataset_hash).await?);
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let search = Search::new(&spec, loaded.search_base(&base), Arc::clone(&dataset))?;
        let output_schema = loaded.output_schema();
        let label_pointer = metric
            .pointer()
            .filter(|pointer| output_schema.as_ref().is_some_and(|schema| is_enum_at(schema, pointer)))
            .map(str::to_owned);
        let altered = || Refusal::from(codes::record_altered("job", job_hash.to_string(), "base"));
        let tested = JobEval::of_compile(&spec, &base).ok_or_else(altered)?;
        let scoring = EvalSetup::of_compile(
            tested,
            Arc::clone(&dataset),
            metric.clone(),
            loaded.candidates(&base, &search),
            gates.clone(),
            label_pointer,
        );
        Ok(Self { spec, job_hash, base, loaded, dataset, metric, search, scoring: Arc::new(scoring), gates })
    }

    /// Returns the schema of a spell's answer, if it has one.
    pub(crate) fn answer_schema(&self) -> Option<Value> {
        match &self.loaded {
            CompileBase::Artifact { .. } => None,
            CompileBase::Spell { tried } => tried.answer_schema.clone(),
        }
    }
}

/// Returns the base that a specification names.
fn base_of(spec: &JobSpec) -> Result<CandidateId, Refusal> {
    let altered = || Refusal::from(codes::record_altered("job", spec.job_hash().to_string(), "base"));
    spec.base.clone().ok_or_else(altered)
}

impl CompileBase {
    /// Loads the base of a compile of a signature.
    async fn of_signature(
        predictor: &Predictor,
        spec: &JobSpec,
        id: &SignatureId,
        base: &CandidateId,
    ) -> Result<Self, Refusal> {
        let altered = |field: &str| Refusal::from(codes::record_altered("job", spec.job_hash().to_string(), field));
        let signature = Arc::new(predictor.catalog().signature(id).await?);
        if spec.hashes != Some(signature.hashes()) {
            return Err(altered("signature_id"));
        }
        let found = artifact_candidate(predictor, base, &signature, spec.models.task.as_deref()).await?;
        match found {
            Candidate::Artifact { artifact, .. } => Ok(Self::Artifact { signature, artifact }),
            Candidate::Spell { .. } => Err(altered("base")),
        }
    }

    /// Returns the spell as the plan of its job tells it. Nothing can be cast with it.
    fn of_plan(plan: &Value, name: &str, base: &CandidateId, crystal: Option<&str>) -> Self {
        let texts = plan.get("texts").and_then(|texts| serde_json::from_value::<SpellTexts>(texts.clone()).ok());
        let tried = TriedSpell {
            name: name.to_owned(),
            cantrip_id: base.to_string(),
            crystal: crystal.unwrap_or_default().to_owned(),
            answer_schema: plan.get("answer_schema").filter(|schema| !schema.is_null()).cloned(),
            removed: Vec::new(),
            let_through: Vec::new(),
            worst: CostBound::Unknown,
            texts: texts.unwrap_or_default(),
        };
        Self::Spell { tried: Box::new(tried) }
    }

    /// Returns the schema of what is scored, if it has one.
    fn output_schema(&self) -> Option<Value> {
        match self {
            Self::Artifact { signature, .. } => Some(signature.output().source().clone()),
            Self::Spell { tried } => tried.answer_schema.clone(),
        }
    }

    /// Returns the base, and the base with each other decoding: what a judge reads is bounded by their output caps.
    fn candidates(&self, base: &CandidateId, search: &Search) -> Vec<Candidate> {
        match self {
            Self::Spell { tried } => vec![Candidate::Spell { id: base.clone(), tried: tried.clone() }],
            Self::Artifact { artifact, .. } => {
                let space = search.space();
                let contents = (0..space.choice_count()).map(|number| space.with_choice(space.base(), number));
                let candidate = |content: Content| {
                    let artifact = Box::new(artifact.with_params(content.params().clone()));
                    Candidate::Artifact { id: CandidateId::from(artifact.id()), artifact, model: None }
                };
                contents.map(candidate).collect()
            }
        }
    }

    /// Returns the base as a search takes it.
    pub(crate) fn search_base(&self, id: &CandidateId) -> SearchBase {
        match self {
            Self::Artifact { signature, artifact } => {
                SearchBase::Artifact { signature: Arc::clone(signature), artifact: artifact.clone() }
            }
            Self::Spell { tried } => SearchBase::Spell {
                name: tried.name.clone(),
                id: id.clone(),
                call: tried.texts.call.clone(),
                gates: tried.texts.gates.clone(),
            },
        }
    }
}

/// The inputs of the examples of a compile.
pub(crate) struct CompileInputs(pub Arc<Dataset>);

impl TrialInput for CompileInputs {
    fn input<'a>(&'a self, example_id: &'a ExampleId) -> BoxFuture<'a, Result<Value, Refusal>> {
        let missing = || Refusal::from(codes::contract_unknown("example", example_id.to_string()));
        let found = self.0.example(example_id).map(|example| example.input.clone());
        Box::pin(std::future::ready(found.ok_or_else(missing)))
    }
}
