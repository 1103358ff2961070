//! The trials of an evaluation: each candidate in its own way.

use std::sync::Arc;

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, Params};
use futures_util::future::BoxFuture;

use super::setup::{Candidate, EvalSetup, ExampleInputs};
use super::spell_runner::{SpellCasts, SpellRunner};
use super::spells::SpellTrials;
use cantrip_ds::Predictor;
use cantrip_ds::job::{CostBound, PredictTrials, Trial, TrialCall, TrialRun, TrialRunner};

/// Runs each trial with the runner of its candidate.
pub(crate) struct EvalTrials {
    runners: Vec<(CandidateId, Box<dyn TrialRunner>)>,
}

impl EvalTrials {
    pub(super) fn new(setup: &Arc<EvalSetup>, predictor: &Predictor, spells: &Arc<dyn SpellTrials>) -> Self {
        let runner = |candidate: &Candidate| -> (CandidateId, Box<dyn TrialRunner>) {
            match candidate {
                Candidate::Artifact { id, artifact, model } => {
                    let trials = PredictTrials {
                        predictor: predictor.clone(),
                        signature: artifact.signature_id().clone(),
                        model: model.clone(),
                        params: Params::default(),
                        inputs: Arc::new(ExampleInputs(Arc::clone(setup))),
                    };
                    (id.clone(), Box::new(trials))
                }
                Candidate::Spell { id, tried } => {
                    let casts = SpellCasts {
                        dataset: Arc::clone(&setup.dataset),
                        spells: Arc::clone(spells),
                        loom: predictor.runtime().loom().clone(),
                        spell: tried.name.clone(),
                        gates: setup.gates.clone(),
                        worst: tried.worst,
                    };
                    (id.clone(), Box::new(SpellRunner { casts, patch: None }))
                }
            }
        };
        Self { runners: setup.candidates.iter().map(runner).collect() }
    }

    fn runner(&self, trial: &Trial) -> Result<&dyn TrialRunner, Refusal> {
        let found = self.runners.iter().find(|(candidate, _)| *candidate == trial.candidate_id);
        let unknown = || codes::contract_unknown("candidate", trial.candidate_id.to_string());
        found.map(|(_, runner)| &**runner).ok_or_else(|| unknown().into())
    }
}

impl TrialRunner for EvalTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        match self.runner(call.trial) {
            Ok(runner) => runner.run(call),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }

    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        match self.runner(trial) {
            Ok(runner) => runner.worst(trial),
            Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
        }
    }
}
