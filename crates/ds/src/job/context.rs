//! The surroundings that all trials and judges of a job share: its run, its payer, and the handle that stops it.

use cantrip::Cancel;
use cantrip::canon::{Hash, JobId, RunId, Timestamp};
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{JobKind, Purpose, TrialKey};

use super::ask::Trial;
use crate::options::PredictOptions;
use crate::trace::TraceMode;

/// The surroundings of a job's trials.
#[derive(Debug, Clone)]
pub struct JobContext {
    pub job_id: JobId,
    /// The run of the job: the root of its trials' runs, of their holds and of their caps.
    pub run: RunId,
    pub job_hash: Hash,
    pub owner: String,
    /// The authorization that pays for the whole job.
    pub authorization: Option<AuthorizationRef>,
    pub purpose: Purpose,
    pub opened_at: Timestamp,
    /// Ends, parks or hands back the trials under way. It is not the handle of the job's caller.
    pub cancel: Cancel,
}

impl JobContext {
    /// Returns the options of every predict of the job: under its run and its cap, with the whole output cap or not at
    /// all, stopped with the job. The caller sets artifact, model, parameters and key.
    pub fn predict_options(&self) -> PredictOptions {
        PredictOptions {
            owner: self.owner.clone(),
            authorization: self.authorization,
            under: Some(self.run),
            whole: true,
            purpose: self.purpose,
            trace: TraceMode::Off,
            cancel: self.cancel.clone(),
            ..PredictOptions::default()
        }
    }

    /// Returns the idempotency key of a try of a trial.
    pub fn key(&self, trial: &Trial, try_number: u64) -> String {
        trial_key(self.job_hash, trial, try_number)
    }

    /// Returns the id of the run of a try that is a cast. The run of a try that was cast before is found and resumed.
    pub fn run_id(&self, trial: &Trial, try_number: u64) -> RunId {
        key_of(self.job_hash, trial, try_number).run_id(self.opened_at)
    }
}

/// Returns the idempotency key of a try of a trial: `job:` and 32 digits of the hash of job, candidate, example, epoch
/// and try.
pub fn trial_key(job_hash: Hash, trial: &Trial, try_number: u64) -> String {
    key_of(job_hash, trial, try_number).idempotency_key()
}

fn key_of(job_hash: Hash, trial: &Trial, try_number: u64) -> TrialKey {
    TrialKey {
        job_hash,
        candidate: trial.candidate_id.clone(),
        example_id: trial.example_id.clone(),
        epoch: trial.epoch,
        attempt: try_number,
    }
}

/// Returns the purpose of the predicts of a job.
pub(crate) fn purpose_of(kind: JobKind) -> Purpose {
    match kind {
        JobKind::Eval => Purpose::Eval,
        JobKind::Compile => Purpose::Compile,
    }
}
