//! The view of an optimiser: the facts of its job that never change, and a fold of the job's rows.
//!
//! The state has no clock and no order of threads in it. Two processes with the same rows see the same state.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantrip_contract::{CandidateId, Dataset, Example, ExampleId, Split, Unscored};
use serde_json::Value;

use super::space::Space;
use cantrip_ds::job::{JobState, Proposed, Trial};
use cantrip_ds::stats;

/// The facts of a search that never change.
#[derive(Debug, Clone)]
pub struct Ground {
    /// The beginning of every label of randomness: the hash of the job.
    label: String,
    /// The options of the optimiser, filled in.
    options: Value,
    space: Space,
    dataset: Arc<Dataset>,
    /// The ids of the train split, sorted.
    train: Vec<ExampleId>,
    /// The ids of the holdout split, sorted.
    holdout: Vec<ExampleId>,
    /// The ids of the holdout split in the order in which trials begin.
    order: Vec<ExampleId>,
    /// The place in an expected output whose value divides the examples into strata.
    stratum_pointer: Option<String>,
}

impl Ground {
    /// Makes the ground of a search. `label` is the hash of the job.
    pub fn new(
        label: impl Into<String>,
        options: Value,
        space: Space,
        dataset: Arc<Dataset>,
        stratum_pointer: Option<String>,
    ) -> Self {
        let label = label.into();
        let ids = |split: Split| {
            let mut ids: Vec<ExampleId> = dataset.split(split).map(|example| example.id.clone()).collect();
            ids.sort();
            ids
        };
        let (train, holdout) = (ids(Split::Train), ids(Split::Holdout));
        let mut order = holdout.clone();
        stats::shuffle(&format!("{label}|order"), &mut order);
        Self { label, options, space, dataset, train, holdout, order, stratum_pointer }
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    pub fn options(&self) -> &Value {
        &self.options
    }

    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }
}

/// The result of a candidate on an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// In millionths.
    Scored(u64),
    Unscored(Unscored),
}

impl Cell {
    /// Returns the score, if there is one.
    pub const fn score(self) -> Option<u64> {
        match self {
            Self::Scored(score) => Some(score),
            Self::Unscored(_) => None,
        }
    }
}

/// The state of a search.
#[derive(Debug, Clone, Copy)]
pub struct State<'a> {
    ground: &'a Ground,
    job: &'a JobState,
}

/// The epoch of a search's trials: each is made once.
const EPOCH: u64 = 1;

impl<'a> State<'a> {
    pub fn new(ground: &'a Ground, job: &'a JobState) -> Self {
        Self { ground, job }
    }

    pub fn ground(&self) -> &'a Ground {
        self.ground
    }

    pub fn space(&self) -> &'a Space {
        &self.ground.space
    }

    /// Returns the options of the optimiser, filled in.
    pub fn options(&self) -> &'a Value {
        &self.ground.options
    }

    /// Returns the number of an option; 0 if it has none.
    pub fn count(&self, option: &str) -> u64 {
        self.ground.options.get(option).and_then(Value::as_u64).unwrap_or(0)
    }

    /// Returns the label of randomness of a step.
    pub fn label(&self, step: &str) -> String {
        format!("{}|{step}", self.ground.label)
    }

    /// Returns the ids of the train split, sorted.
    pub fn train(&self) -> &'a [ExampleId] {
        &self.ground.train
    }

    /// Returns the ids of the holdout split, sorted.
    pub fn holdout(&self) -> &'a [ExampleId] {
        &self.ground.holdout
    }

    /// Returns the ids of the holdout split in the order in which trials begin.
    pub fn holdout_order(&self) -> &'a [ExampleId] {
        &self.ground.order
    }

    pub fn example(&self, id: &ExampleId) -> Option<&'a Example> {
        self.ground.dataset.example(id)
    }

    /// Returns the place in an expected output whose value divides the examples into strata.
    pub fn stratum_pointer(&self) -> Option<&'a str> {
        self.ground.stratum_pointer.as_deref()
    }

    /// Returns the trial of a candidate on an example.
    pub fn trial(&self, candidate_id: &CandidateId, example_id: &ExampleId, split: Split) -> Trial {
        Trial { candidate_id: candidate_id.clone(), example_id: example_id.clone(), epoch: EPOCH, split }
    }

    /// Returns the result of a trial; none if it has none yet. Results on the test split are not seen.
    pub fn cell_of(&self, trial: &Trial) -> Option<Cell> {
        let row = self.job.result(trial).filter(|row| row.split != Split::Test)?;
        Some(match (row.score_micro, row.unscored) {
            (Some(score), _) => Cell::Scored(score),
            (None, reason) => Cell::Unscored(reason.unwrap_or(Unscored::Infrastructure)),
        })
    }

    /// Returns the result of a candidate on an example; none if it has none yet.
    pub fn cell(&self, candidate: &CandidateId, example: &ExampleId) -> Option<Cell> {
        // The split is no part of a result's key.
        self.cell_of(&self.trial(candidate, example, Split::Holdout))
    }

    /// Returns the answer of a candidate on a train example; none if it failed or was not tried.
    pub fn output(&self, candidate: &CandidateId, example: &ExampleId) -> Option<&'a Value> {
        self.job.output(&self.trial(candidate, example, Split::Train))
    }

    /// Returns the cost of a candidate's trial on an example, in millionths; 0 if nothing was paid.
    pub fn cost(&self, candidate: &CandidateId, example: &ExampleId) -> u64 {
        self.job.cost(&self.trial(candidate, example, Split::Holdout)).unwrap_or(0)
    }

    /// Returns an answered proposal by its number.
    pub fn proposed(&self, number: u64) -> Option<&'a Proposed> {
        self.job.proposed(number)
    }

    /// Returns the weighted mean of a candidate's scores on these examples, in millionths. Examples without a score are
    /// left out; none if no example has one.
    pub fn mean<'e>(&self, candidate: &CandidateId, examples: impl IntoIterator<Item = &'e ExampleId>) -> Option<u64> {
        let (mut weights, mut weighted) = (0_i128, 0_i128);
        for id in examples {
            let Some(score) = self.cell(candidate, id).and_then(Cell::score) else { continue };
            let weight = i128::from(self.example(id)?.weight.micro());
            weights += weight;
            weighted += weight * i128::from(score);
        }
        if weights == 0 {
            return None;
        }
        u64::try_from(stats::rounded_quotient(weighted, weights)).ok()
    }

    /// Returns the ids of the train examples that have an expected output, sorted.
    pub fn labelled_train(&self) -> Vec<ExampleId> {
        let labelled = |id: &&ExampleId| self.example(id).is_some_and(|example| example.expected.is_some());
        self.train().iter().filter(labelled).cloned().collect()
    }

    /// Returns the ids, shuffled with the label of a step.
    pub fn shuffled(&self, step: &str, ids: &[ExampleId]) -> Vec<ExampleId> {
        let mut ids = ids.to_vec();
        stats::shuffle(&self.label(step), &mut ids);
        ids
    }

    /// Returns true if the example is on the holdout split.
    pub fn is_holdout(&self, id: &ExampleId) -> bool {
        self.ground.holdout.binary_search(id).is_ok()
    }

    /// Returns the number of these examples on which a candidate has no score because something failed.
    pub(super) fn failures(&self, candidate: &CandidateId, examples: &BTreeSet<ExampleId>) -> u64 {
        let is_failure = |id: &&ExampleId| match self.cell(candidate, id) {
            Some(Cell::Unscored(reason)) => match reason {
                Unscored::MetricFailed | Unscored::JudgeFailed | Unscored::Infrastructure => true,
                // No candidate can be scored on such an example.
                Unscored::NoExpected | Unscored::NoReward => false,
            },
            Some(Cell::Scored(_)) | None => false,
        };
        examples.iter().filter(is_failure).count() as u64
    }
}
