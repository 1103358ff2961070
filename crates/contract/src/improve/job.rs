//! Which job is this, and which trial of it?
//!
//! Everything that decides about the result of a job is in its spec, with all options filled in and all models resolved
//! to names. The hash of the spec names the job: the same work asked for twice is one job. The budget is not part of
//! it, so that a job which ran out of money goes on under a larger one.

use cantrip_canon::{Hash, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::ids::hash;
use crate::limits::EPOCHS_MAX;
use crate::{CandidateId, EvalId, ExampleId, Hashes, JobKind, ReportId, Split, Subject};

/// The version of the rules by which jobs decide.
pub const COMPILER_VERSION: &str = "improve.v1";

/// The models of a job, by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobModels {
    pub task: Option<String>,
    pub teacher: Option<String>,
    pub reflect: Option<String>,
    pub judge: Option<String>,
}

/// The optimiser of a compile, with its options filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserSpec {
    /// With its version, as in `gepa.v1`.
    pub id: String,
    pub options: Value,
}

/// The spec of a job: everything that its result depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    pub kind: JobKind,
    /// The signature or the spell. The hashed key is `signature_id`.
    pub of: Subject,
    /// The hashes of the signature; none for a spell.
    pub hashes: Option<Hashes>,
    pub dataset_hash: Hash,
    /// The candidate that a compile starts from.
    pub base: Option<CandidateId>,
    /// The candidate that is evaluated; none for a compile.
    pub subject: Option<CandidateId>,
    /// The candidate that it is compared with.
    pub baseline: Option<CandidateId>,
    pub split: Split,
    /// The content of the metric, with options filled in.
    pub metric: Value,
    pub optimiser: Option<OptimiserSpec>,
    pub models: JobModels,
    /// How often each trial is repeated.
    pub epochs: u64,
    pub seed: String,
    pub compiler_version: String,
    /// Raised by one for another job with the same content.
    pub rerun: u64,
}

/// The stored form of a spec.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SpecForm {
    v: u32,
    kind: JobKind,
    signature_id: Subject,
    schema_hash: Option<Hash>,
    prompt_hash: Option<Hash>,
    program_hash: Option<Hash>,
    dataset_hash: Hash,
    base: Option<CandidateId>,
    subject: Option<CandidateId>,
    baseline: Option<CandidateId>,
    split: Split,
    metric: Value,
    optimiser: Option<OptimiserSpec>,
    models: JobModels,
    epochs: u64,
    seed: String,
    compiler_version: String,
    rerun: u64,
}

/// The reason why a value is not the spec of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the spec of a job: {0}")]
pub struct JobSpecFault(String);

impl JobSpec {
    /// The whole content, as it is hashed and stored.
    pub fn content(&self) -> Value {
        json!({
            "v": 1,
            "kind": self.kind,
            "signature_id": self.of,
            "schema_hash": self.hashes.map(|hashes| hashes.schema_hash),
            "prompt_hash": self.hashes.map(|hashes| hashes.prompt_hash),
            "program_hash": self.hashes.map(|hashes| hashes.program_hash),
            "dataset_hash": self.dataset_hash,
            "base": self.base,
            "subject": self.subject,
            "baseline": self.baseline,
            "split": self.split,
            "metric": self.metric,
            "optimiser": self.optimiser,
            "models": self.models,
            "epochs": self.epochs,
            "seed": self.seed,
            "compiler_version": self.compiler_version,
            "rerun": self.rerun,
        })
    }

    pub fn job_hash(&self) -> Hash {
        hash(&self.content())
    }

    /// Reads a stored spec.
    pub fn from_value(content: &Value) -> Result<Self, JobSpecFault> {
        let form: SpecForm =
            serde_json::from_value(content.clone()).map_err(|fault| JobSpecFault(fault.to_string()))?;
        if form.v != 1 {
            return Err(JobSpecFault(format!("version {}, and this version reads 1", form.v)));
        }
        if !(1..=EPOCHS_MAX).contains(&form.epochs) {
            return Err(JobSpecFault(format!("{} epochs, and a job has 1 to {EPOCHS_MAX}", form.epochs)));
        }
        let hashes = match (form.schema_hash, form.prompt_hash, form.program_hash) {
            (Some(schema_hash), Some(prompt_hash), Some(program_hash)) => {
                Some(Hashes { schema_hash, prompt_hash, program_hash })
            }
            (None, None, None) => None,
            (Some(_) | None, Some(_) | None, Some(_) | None) => {
                return Err(JobSpecFault("it has some of the three hashes, and needs all or none".to_owned()));
            }
        };
        let spec = Self {
            kind: form.kind,
            of: form.signature_id,
            hashes,
            dataset_hash: form.dataset_hash,
            base: form.base,
            subject: form.subject,
            baseline: form.baseline,
            split: form.split,
            metric: form.metric,
            optimiser: form.optimiser,
            models: form.models,
            epochs: form.epochs,
            seed: form.seed,
            compiler_version: form.compiler_version,
            rerun: form.rerun,
        };
        // An absent key reads as null, but is another content.
        if spec.content() == *content { Ok(spec) } else { Err(JobSpecFault("it lacks a field".to_owned())) }
    }

    /// The hash of the metric.
    pub fn metric_hash(&self) -> Hash {
        hash(&self.metric)
    }

    /// The report of an evaluation; none for a job without a subject.
    pub fn eval_report_id(&self) -> Option<ReportId> {
        let evaluated = self.subject.as_ref()?;
        Some(ReportId::of_eval(&self.of, self.job_hash(), evaluated))
    }

    /// The id of the evaluation that the job is; none for a job without a subject.
    pub fn eval_id(&self) -> Option<EvalId> {
        let evaluated = self.subject.as_ref()?;
        Some(EvalId::of(&self.eval_report_id()?, evaluated, self.split))
    }
}

/// One trial of a job: a candidate runs once on an example.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrialKey {
    pub job_hash: Hash,
    pub candidate: CandidateId,
    pub example_id: ExampleId,
    /// From 1.
    pub epoch: u64,
    /// From 1; another try follows a failure of the infrastructure.
    pub attempt: u64,
}

impl TrialKey {
    /// The hash that the idempotency key is cut from.
    pub fn hash(&self) -> Hash {
        hash(&json!({
            "v": 1,
            "kind": "trial",
            "job_hash": self.job_hash,
            "compiled_id": self.candidate,
            "example_id": self.example_id,
            "epoch": self.epoch,
            "try": self.attempt,
        }))
    }

    /// The idempotency key of the trial's predict: `job:` and 32 digits.
    pub fn idempotency_key(&self) -> String {
        format!("job:{}", self.hash().hex(32))
    }

    /// The id of the trial's run, if it is a cast: from the time at which the job was opened, and the key. So a process
    /// that takes the job over finds the run and resumes it.
    pub fn run_id(&self, job_opened_at: Timestamp) -> RunId {
        let hash = self.hash();
        let mut chance = [0; 10];
        chance.copy_from_slice(&hash.as_bytes()[..10]);
        RunId::from_parts(job_opened_at, chance)
    }
}
