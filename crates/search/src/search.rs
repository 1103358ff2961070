//! The search of one job, built from its specification.

use std::sync::Arc;

use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Artifact, CandidateId, Dataset, JobSpec, Metric, OptimiserSpec, Signature, Split};
use serde_json::Value;

use super::enum_at::is_enum_at;
use super::optimiser::{Effort, Optimiser, Sizes, optimiser};
use super::path::{Candidate, ProposalFate, Walk};
use super::space::Space;
use super::state::{Ground, State};
use cantrip_ds::job::{Ask, JobState};

/// The base of a search, as it is loaded from the store or the user's file.
#[derive(Debug, Clone)]
pub enum SearchBase {
    Artifact {
        signature: Arc<Signature>,
        artifact: Box<Artifact>,
    },
    Spell {
        name: String,
        /// The id of the spell's cantrip.
        id: CandidateId,
        /// The system prompt.
        call: String,
        /// The descriptions of the gates, in the order of the file.
        gates: Vec<(String, String)>,
    },
}

impl SearchBase {
    /// Returns the space of this base: all of its slots, and its own choices alone.
    pub fn space(self) -> Space {
        match self {
            Self::Artifact { signature, artifact } => Space::of_artifact(signature, *artifact),
            Self::Spell { name, id, call, gates } => Space::of_spell(&name, id, &call, &gates),
        }
    }
}

/// Returns the optimiser of a new job with its options filled in. `given` has what the caller set: options of the
/// optimiser, and `slots`, `decoding` or `wards` of the space. `reflects` is true if the job has a model that proposes
/// texts.
pub fn optimiser_spec(name: &str, given: &Value, base: SearchBase, reflects: bool) -> Result<OptimiserSpec, Refusal> {
    let optimiser = optimiser(name)?;
    let space = base.space().reflecting(reflects).chosen(given)?;
    let options = optimiser.options(given, &space)?;
    Ok(OptimiserSpec { id: optimiser.id().to_owned(), options })
}

/// The search of a job: everything that decides about its path, and nothing that changes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Search {
    optimiser: Arc<dyn Optimiser>,
    ground: Arc<Ground>,
}

impl Search {
    /// Makes the search of a job from its specification. Every process makes the same.
    pub fn new(spec: &JobSpec, base: SearchBase, dataset: Arc<Dataset>) -> Result<Self, Refusal> {
        let job_hash = spec.job_hash();
        let altered = |field: &'static str| Refusal::from(codes::record_altered("job", job_hash.to_string(), field));
        let named = spec.optimiser.as_ref().ok_or_else(|| altered("optimiser"))?;
        let space = base.space().reflecting(spec.models.reflect.is_some()).restored(&named.options)?;
        if spec.base.as_ref() != Some(&space.base_id()) {
            return Err(altered("base"));
        }
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let pointer = space.signature().and_then(|signature| stratum_pointer(&metric, signature.output().source()));
        let ground = Ground::new(job_hash.to_string(), named.options.clone(), space, dataset, pointer);
        Ok(Self { optimiser: optimiser(&named.id)?, ground: Arc::new(ground) })
    }

    /// Makes a search of its parts.
    pub fn of_parts(optimiser: Arc<dyn Optimiser>, ground: Ground) -> Self {
        Self { optimiser, ground: Arc::new(ground) }
    }

    pub fn optimiser(&self) -> &dyn Optimiser {
        &*self.optimiser
    }

    pub fn space(&self) -> &Space {
        self.ground.space()
    }

    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Returns the sizes of the splits, with the bound of the trials.
    pub fn sizes(&self, max_calls: Option<u64>) -> Sizes {
        let size = |split: Split| self.ground.dataset().split(split).count() as u64;
        Sizes { train: size(Split::Train), holdout: size(Split::Holdout), test: size(Split::Test), max_calls }
    }

    /// Returns the trials and proposals at most.
    pub fn worst(&self, max_calls: Option<u64>) -> Effort {
        self.optimiser.worst(self.ground.options(), self.sizes(max_calls))
    }

    /// Returns the path as far as the results of the job carry it.
    pub fn walk(&self, job: &JobState) -> Walk {
        self.optimiser.walk(State::new(&self.ground, job))
    }

    /// Returns the next Ask. It never names an example of the test split.
    pub fn next(&self, job: &JobState) -> Ask {
        self.walk(job).ask
    }

    /// Returns every candidate so far, by ordinal.
    pub fn candidates(&self, job: &JobState) -> Vec<Candidate> {
        self.walk(job).candidates
    }

    /// Returns the answered proposals, by number, with what became of them.
    pub fn proposals(&self, job: &JobState) -> Vec<ProposalFate> {
        self.walk(job).fates
    }

    /// Returns the winner, or the best candidate so far; the base if none was tried on all of holdout.
    pub fn best(&self, job: &JobState) -> CandidateId {
        self.walk(job).best
    }
}

/// Returns the place in an expected output whose value divides the examples into strata: the metric's, if it is an
/// enum, or else the one property that is an enum.
fn stratum_pointer(metric: &Metric, output: &Value) -> Option<String> {
    if let Some(pointer) = metric.pointer().filter(|pointer| is_enum_at(output, pointer)) {
        return Some(pointer.to_owned());
    }
    let properties = output.get("properties").and_then(Value::as_object)?;
    let mut enums = properties
        .keys()
        .map(|name| format!("/{}", name.replace('~', "~0").replace('/', "~1")))
        .filter(|pointer| is_enum_at(output, pointer));
    let first = enums.next()?;
    if enums.next().is_none() { Some(first) } else { None }
}
