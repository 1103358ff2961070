//! The next thing that a job asks for, and the state that decides it.

use std::collections::{BTreeMap, BTreeSet};

use cantrip::canon::{Hash, stable_hash};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, ExampleId, ExampleResultRow, JobSpec, ReceiptId, Split};
use serde_json::{Value, json};

/// One candidate on one example, once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Trial {
    pub candidate_id: CandidateId,
    pub example_id: ExampleId,
    /// From 1.
    pub epoch: u64,
    pub split: Split,
}

/// A request to a model for a new text of a component. Compile jobs use it.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    /// The number of the proposal within its job, from 1.
    pub number: u64,
    pub component: String,
    /// The input of the signature that proposes.
    pub input: Value,
}

/// A proposal that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposed {
    pub number: u64,
    pub component: String,
    pub text: String,
    pub receipt_id: Option<ReceiptId>,
    /// The reason why the text is not used.
    pub rejected: Option<String>,
}

/// The next thing to do. The driver does all of one Ask, in any order, before it asks for the next.
#[derive(Debug, Clone, PartialEq)]
pub enum Ask {
    Propose(Vec<Proposal>),
    /// Trials in the order in which they begin. Two trials that are scored together stand next to each other.
    Try(Vec<Trial>),
    /// The end, with the chosen candidate if the job chooses one.
    Done(Option<CandidateId>),
}

impl Ask {
    /// Returns the digest that the record of the Ask keeps.
    pub fn digest(&self) -> Result<Hash, Refusal> {
        let value = match self {
            Self::Propose(proposals) => {
                let listed: Vec<Value> =
                    proposals.iter().map(|one| json!([one.number, one.component, one.input])).collect();
                json!({"v": 1, "kind": "ask", "propose": listed})
            }
            Self::Try(trials) => {
                let listed: Vec<Value> = trials
                    .iter()
                    .map(|trial| json!([trial.candidate_id, trial.example_id, trial.epoch, trial.split]))
                    .collect();
                json!({"v": 1, "kind": "ask", "try": listed})
            }
            Self::Done(selected) => json!({"v": 1, "kind": "ask", "done": selected}),
        };
        stable_hash(&value).map_err(|fault| codes::schema("the ask", "", fault.to_string()).into())
    }
}

/// The key of a result within its job.
type ResultKey = (CandidateId, ExampleId, u64);

/// The state of a job: its specification, and a fold of its rows and records. It depends on no timing.
#[derive(Debug, Clone)]
pub struct JobState {
    pub spec: JobSpec,
    pub job_hash: Hash,
    results: BTreeMap<ResultKey, ExampleResultRow>,
    proposals: BTreeMap<u64, Proposed>,
}

impl JobState {
    pub fn new(spec: JobSpec, job_hash: Hash) -> Self {
        Self { spec, job_hash, results: BTreeMap::new(), proposals: BTreeMap::new() }
    }

    pub fn add_result(&mut self, row: ExampleResultRow) {
        self.results.insert((row.candidate_id.clone(), row.example_id.clone(), row.epoch), row);
    }

    pub fn add_proposal(&mut self, proposed: Proposed) {
        self.proposals.insert(proposed.number, proposed);
    }

    /// Returns the result of a trial, if it was scored or finally left unscored.
    pub fn result(&self, trial: &Trial) -> Option<&ExampleResultRow> {
        self.results.get(&(trial.candidate_id.clone(), trial.example_id.clone(), trial.epoch))
    }

    /// Returns the results in the order of candidate, example and epoch.
    pub fn results(&self) -> impl Iterator<Item = &ExampleResultRow> {
        self.results.values()
    }

    /// Returns the answered proposals in the order of their numbers.
    pub fn proposals(&self) -> impl Iterator<Item = &Proposed> {
        self.proposals.values()
    }

    pub fn proposed(&self, number: u64) -> Option<&Proposed> {
        self.proposals.get(&number)
    }

    /// The number of trials that have a result.
    pub fn trials(&self) -> u64 {
        self.results.len() as u64
    }

    /// The number of proposals that were answered.
    pub fn proposal_count(&self) -> u64 {
        self.proposals.len() as u64
    }
}

/// Decides what a job does next: an evaluation's one list of trials, or an optimiser.
pub trait AskSource: Send + Sync {
    /// Returns the next Ask. A pure function of the state: no clock, no order of threads, no order of a map. While an Ask
    /// is under way its results come in one by one; until all of them are there, the same Ask is returned.
    fn next(&self, state: &JobState) -> Ask;

    /// Returns the number of trials that must stay available after the next Ask: the final test of a compile job.
    fn set_aside(&self, state: &JobState) -> u64 {
        let _ = state;
        0
    }

    /// Returns the number of trials that the job makes at worst: the whole of its progress.
    fn trials_at_worst(&self, state: &JobState) -> u64;
}

/// The source of a job that tries one list: an evaluation.
#[derive(Debug, Clone)]
pub struct TrialList(Vec<Trial>);

impl TrialList {
    /// Makes the source of these trials, in this order. A trial that is listed twice is made once.
    pub fn new(trials: impl IntoIterator<Item = Trial>) -> Self {
        let mut seen = BTreeSet::new();
        Self(trials.into_iter().filter(|trial| seen.insert(trial.clone())).collect())
    }

    pub fn trials(&self) -> &[Trial] {
        &self.0
    }
}

impl AskSource for TrialList {
    fn next(&self, state: &JobState) -> Ask {
        let done = self.0.iter().all(|trial| state.result(trial).is_some());
        if done { Ask::Done(None) } else { Ask::Try(self.0.clone()) }
    }

    fn trials_at_worst(&self, _: &JobState) -> u64 {
        self.0.len() as u64
    }
}
