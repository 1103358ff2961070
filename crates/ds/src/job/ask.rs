//! The next thing that a job asks for, and the state that decides it.

use std::collections::{BTreeMap, BTreeSet};

use cantrip::canon::{Hash, stable_hash};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{CandidateId, ExampleId, ExampleResultRow, JobKind, JobSpec, ReceiptId, Split, Subject};
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

/// A candidate of which it was decided whether it is kept, for its row and its record. The row is written once, so a
/// source tells of a candidate only when nothing of this can change any more.
#[derive(Debug, Clone, PartialEq)]
pub struct DecidedCandidate {
    pub candidate_id: CandidateId,
    /// The variant of a spell; none for an artifact.
    pub variant: Option<Value>,
    pub ordinal: u64,
    pub parents: Vec<CandidateId>,
    pub op: String,
    pub component: Option<String>,
    pub accepted: bool,
    pub reason: Option<String>,
    pub holdout_micro: Option<u64>,
}

/// The parts of a trial that a search needs beside its row. They are read from the receipts, so a process that made the trial and one
/// that takes the job over see the same.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TrialFacts {
    /// The answer on the train split, which may become a demo.
    pub output: Option<Value>,
    /// The cost with its judgements, in millionths.
    pub cost: Option<u64>,
}

/// The standing of a search, for people who wait for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JobStanding {
    /// The mean of the best candidate and of the first one on the holdout split.
    pub best_micro: Option<u64>,
    pub start_micro: Option<u64>,
    /// The number of proposals that became a candidate that is kept.
    pub kept: u64,
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
    /// The parts of the trials that a search needs beside their rows.
    facts: BTreeMap<ResultKey, TrialFacts>,
    /// The candidates whose rows are written.
    decided: BTreeSet<CandidateId>,
}

impl JobState {
    pub fn new(spec: JobSpec, job_hash: Hash) -> Self {
        Self {
            spec,
            job_hash,
            results: BTreeMap::new(),
            proposals: BTreeMap::new(),
            facts: BTreeMap::new(),
            decided: BTreeSet::new(),
        }
    }

    pub fn add_result(&mut self, row: ExampleResultRow) {
        self.results.insert((row.candidate_id.clone(), row.example_id.clone(), row.epoch), row);
    }

    pub fn add_proposal(&mut self, proposed: Proposed) {
        self.proposals.insert(proposed.number, proposed);
    }

    /// Returns true if the answers on this split are kept: those on train of a compile job of a signature.
    pub fn keeps_outputs(&self, split: Split) -> bool {
        let of_signature = matches!(self.spec.of, Subject::Signature(_));
        self.spec.kind == JobKind::Compile && of_signature && split == Split::Train
    }

    /// Returns true if the costs of trials on this split are kept: those on train and holdout of a compile job.
    pub fn keeps_costs(&self, split: Split) -> bool {
        self.spec.kind == JobKind::Compile && split != Split::Test
    }

    /// Keeps what a search needs of a trial beside its row.
    pub fn add_facts(&mut self, row: &ExampleResultRow, facts: TrialFacts) {
        if facts != TrialFacts::default() {
            self.facts.insert((row.candidate_id.clone(), row.example_id.clone(), row.epoch), facts);
        }
    }

    fn facts(&self, trial: &Trial) -> Option<&TrialFacts> {
        self.facts.get(&(trial.candidate_id.clone(), trial.example_id.clone(), trial.epoch))
    }

    /// Returns the answer of a trial on the train split of a compile job; none if the candidate failed.
    pub fn output(&self, trial: &Trial) -> Option<&Value> {
        self.facts(trial)?.output.as_ref()
    }

    /// Returns the cost of a trial on train or holdout of a compile job with its judgements, in millionths; none if
    /// nothing was paid.
    pub fn cost(&self, trial: &Trial) -> Option<u64> {
        self.facts(trial)?.cost
    }

    /// Notes that the row of a candidate is written.
    pub fn note_decided(&mut self, candidate: CandidateId) {
        self.decided.insert(candidate);
    }

    /// Returns true if the row of a candidate is written.
    pub fn is_decided(&self, candidate: &CandidateId) -> bool {
        self.decided.contains(candidate)
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

    /// Returns the trials that are still made when the bounds do not allow the next Ask: the final test of a compile job,
    /// whose trials were set aside. The same list is returned while their results come in.
    fn final_trials(&self, state: &JobState) -> Vec<Trial> {
        let _ = state;
        Vec::new()
    }

    /// Returns the candidates of which it is decided whether they are kept, in the order of their ordinals.
    fn decided(&self, state: &JobState) -> Vec<DecidedCandidate> {
        let _ = state;
        Vec::new()
    }

    /// Returns the standing of the search, if the job is one.
    fn standing(&self, state: &JobState) -> Option<JobStanding> {
        let _ = state;
        None
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
