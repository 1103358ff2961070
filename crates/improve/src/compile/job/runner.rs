//! The trials of a compile, and the candidates that they need.
//!
//! A candidate is described by the search alone. It is stored before its first trial, with its parents and the job as its
//! origin, so that each receipt names an artifact that is there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    ArtifactRow, CandidateId, CompiledId, ContractRow, OriginRow, Params, Provenance, VariantPatch,
};
use futures_util::future::BoxFuture;

use super::setup::{CompileBase, CompileInputs, CompileSetup};
use crate::compile::spell::{VariantSource, VariantTrials};
use crate::compile::{BuiltCandidate, Candidate};
use crate::eval::SpellTrials;
use cantrip_ds::Predictor;
use cantrip_ds::job::{
    Ask, CandidateKeeper, CostBound, JobContext, JobState, PredictTrials, Trial, TrialCall, TrialRun, TrialRunner,
};

/// The candidates of a compile that this process has made ready, by their ids.
#[derive(Debug, Default)]
pub(crate) struct KnownCandidates(Mutex<BTreeMap<CandidateId, BuiltCandidate>>);

impl KnownCandidates {
    fn all(&self) -> MutexGuard<'_, BTreeMap<CandidateId, BuiltCandidate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, id: &CandidateId) -> bool {
        self.all().contains_key(id)
    }

    fn add(&self, candidate: &Candidate) {
        self.all().insert(candidate.id.clone(), candidate.built.clone());
    }

    fn get(&self, id: &CandidateId) -> Result<BuiltCandidate, Refusal> {
        let found = self.all().get(id).cloned();
        found.ok_or_else(|| codes::contract_unknown("candidate", id.to_string()).into())
    }
}

impl VariantSource for KnownCandidates {
    fn patch<'a>(&'a self, candidate: &'a CandidateId) -> BoxFuture<'a, Result<Option<VariantPatch>, Refusal>> {
        let found = self.get(candidate).map(|built| built.variant().map(|variant| variant.patch.clone()));
        Box::pin(std::future::ready(found))
    }
}

/// Stores the candidates of a compile when they are first tried.
pub(crate) struct CompileKeeper {
    pub setup: Arc<CompileSetup>,
    pub predictor: Predictor,
    pub known: Arc<KnownCandidates>,
}

impl CompileKeeper {
    async fn keep_all(&self, ask: &Ask, state: &JobState, context: &JobContext) -> Result<(), Refusal> {
        let Ask::Try(trials) = ask else { return Ok(()) };
        let mut open: Vec<CandidateId> = trials.iter().map(|trial| trial.candidate_id.clone()).collect();
        open.sort();
        open.dedup();
        open.retain(|id| !self.known.has(id));
        if open.is_empty() {
            return Ok(());
        }
        let walk = self.setup.search.walk(state);
        // A parent is stored before its children, also if it was never tried itself. It has the smaller ordinal.
        let mut needed: BTreeMap<u64, &Candidate> = BTreeMap::new();
        while let Some(id) = open.pop() {
            if self.known.has(&id) {
                continue;
            }
            let unknown = || Refusal::from(codes::contract_unknown("candidate", id.to_string()));
            let candidate = walk.candidate(&id).ok_or_else(unknown)?;
            if needed.insert(candidate.ordinal, candidate).is_none() {
                open.extend(candidate.parents.iter().cloned());
            }
        }
        for candidate in needed.into_values() {
            // The base is there before the job begins, and has its own origin.
            if candidate.id != self.setup.base {
                self.store(candidate, context).await?;
            }
            self.known.add(candidate);
        }
        Ok(())
    }

    /// Stores an artifact with one origin for each of its parents. A variant of a spell is part of the job's rows.
    async fn store(&self, candidate: &Candidate, context: &JobContext) -> Result<(), Refusal> {
        let Some(artifact) = candidate.built.artifact() else { return Ok(()) };
        let at = self.predictor.clock().now().wall;
        let origin = OriginRow {
            job_id: Some(context.job_id.to_string()),
            note: Some(candidate.op.clone()),
            ..OriginRow::new(artifact.id(), Provenance::Job, context.owner.as_str(), at)
        };
        let mut rows = vec![ContractRow::Artifact(Box::new(ArtifactRow::new(artifact, at)))];
        let parents: Vec<CompiledId> = candidate.parents.iter().filter_map(CandidateId::artifact).collect();
        if parents.is_empty() {
            rows.push(ContractRow::Origin(Box::new(origin.clone())));
        }
        rows.extend(parents.into_iter().map(|parent| {
            ContractRow::Origin(Box::new(OriginRow { parent_compiled_id: Some(parent), ..origin.clone() }))
        }));
        self.predictor.catalog().write_rows(rows).await
    }
}

impl CandidateKeeper for CompileKeeper {
    fn keep<'a>(
        &'a self,
        ask: &'a Ask,
        state: &'a JobState,
        context: &'a JobContext,
    ) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(self.keep_all(ask, state, context))
    }
}

/// Runs the trials of a compile of a signature. An artifact that names a model runs on it; any other runs on the model of
/// the job.
pub(crate) struct ArtifactTrials {
    on_task_model: PredictTrials,
    on_own_model: PredictTrials,
    known: Arc<KnownCandidates>,
}

impl ArtifactTrials {
    fn runner(&self, trial: &Trial) -> Result<&PredictTrials, Refusal> {
        let built = self.known.get(&trial.candidate_id)?;
        let has_model = built.artifact().is_some_and(|artifact| artifact.params().model.is_some());
        Ok(if has_model { &self.on_own_model } else { &self.on_task_model })
    }
}

impl TrialRunner for ArtifactTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        match self.runner(call.trial) {
            Ok(runner) => runner.run(call),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }

    fn end<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<(), Refusal>> {
        // A predict is found by its key, whatever its model is.
        self.on_task_model.end(call)
    }

    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        match self.runner(trial) {
            Ok(runner) => runner.worst(trial),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }
}

/// Returns the runner of a compile's trials.
pub(crate) fn trial_runner(
    setup: &Arc<CompileSetup>,
    predictor: &Predictor,
    spells: &Arc<dyn SpellTrials>,
    known: &Arc<KnownCandidates>,
) -> Arc<dyn TrialRunner> {
    match &setup.loaded {
        CompileBase::Artifact { signature, .. } => {
            let trials = |model: Option<String>| PredictTrials {
                predictor: predictor.clone(),
                signature: signature.id().clone(),
                model,
                params: Params::default(),
                inputs: Arc::new(CompileInputs(Arc::clone(&setup.dataset))),
            };
            Arc::new(ArtifactTrials {
                on_task_model: trials(setup.spec.models.task.clone()),
                on_own_model: trials(None),
                known: Arc::clone(known),
            })
        }
        CompileBase::Spell { tried } => {
            let variants: Arc<dyn VariantSource> = Arc::clone(known) as Arc<dyn VariantSource>;
            Arc::new(VariantTrials::new(
                tried,
                setup.gates.clone(),
                Arc::clone(&setup.dataset),
                Arc::clone(spells),
                predictor.runtime().loom().clone(),
                variants,
            ))
        }
    }
}
