//! The Asks of a compile: its search, and then the final test of the winner beside the base.
//!
//! The final test is a part of the job and not of the search: no optimiser sees the test split. Its trials are set aside
//! from the bounds, so a search that runs out still tests the best candidate that it found.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use cantrip_contract::{CandidateId, SpellVariant, Split};

use super::setup::CompileSetup;
use crate::compile::{Candidate, Walk};
use crate::eval::trial_order;
use cantrip_ds::job::{Ask, AskSource, DecidedCandidate, JobStanding, JobState, Trial};

/// The number of trials and of proposals of a state. The state of one job only grows, so they name it.
type StateSize = (u64, u64);

/// The Asks of one compile.
pub(crate) struct CompileSource {
    setup: Arc<CompileSetup>,
    /// The path of the last state. One step of a job asks several questions about one state.
    last: Mutex<Option<(StateSize, Arc<Walk>)>>,
}

impl CompileSource {
    pub(crate) fn new(setup: Arc<CompileSetup>) -> Self {
        Self { setup, last: Mutex::default() }
    }

    fn walk(&self, state: &JobState) -> Arc<Walk> {
        let size = (state.trials(), state.proposal_count());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, walk)) = &*last
            && *known == size
        {
            return Arc::clone(walk);
        }
        let walk = Arc::new(self.setup.search.walk(state));
        *last = Some((size, Arc::clone(&walk)));
        walk
    }
}

impl CompileSetup {
    /// Returns the trials of the final test of a candidate; none if it is the base, which is not tested.
    pub(crate) fn test_trials(&self, winner: &CandidateId) -> Vec<Trial> {
        if *winner == self.base {
            return Vec::new();
        }
        let ids = self.dataset.split(Split::Test).map(|example| example.id.clone());
        trial_order(self.job_hash, ids, Split::Test, winner, Some(&self.base), self.spec.epochs)
    }

    /// Returns what is asked for at this place of the search: its own Ask, or after its end the final test.
    pub(crate) fn ask_at(&self, walk: &Walk, state: &JobState) -> Ask {
        let winner = match &walk.ask {
            Ask::Done(winner) => winner.clone().unwrap_or_else(|| walk.best.clone()),
            ask @ (Ask::Propose(_) | Ask::Try(_)) => return ask.clone(),
        };
        let trials = self.test_trials(&winner);
        let is_done = trials.iter().all(|trial| state.result(trial).is_some());
        if is_done { Ask::Done(Some(winner)) } else { Ask::Try(trials) }
    }
}

impl AskSource for CompileSource {
    fn next(&self, state: &JobState) -> Ask {
        self.setup.ask_at(&self.walk(state), state)
    }

    fn set_aside(&self, state: &JobState) -> u64 {
        let walk = self.walk(state);
        if let Ask::Done(_) = walk.ask {
            return 0;
        }
        let one_side = (self.setup.dataset.split(Split::Test).count() as u64).saturating_mul(self.setup.spec.epochs);
        let trials = self.setup.test_trials(&walk.best);
        if trials.is_empty() {
            // The winner is not known yet. The base may have been tested beside another candidate.
            let base = state.results().filter(|row| row.split == Split::Test && row.candidate_id == self.setup.base);
            return (2 * one_side).saturating_sub(base.count() as u64);
        }
        match trials.iter().filter(|trial| state.result(trial).is_none()).count() as u64 {
            // The best candidate was tested when the job ran out before. Another one may follow it.
            0 => one_side,
            missing => missing,
        }
    }

    fn final_trials(&self, state: &JobState) -> Vec<Trial> {
        self.setup.test_trials(&self.walk(state).best)
    }

    fn decided(&self, state: &JobState) -> Vec<DecidedCandidate> {
        // A candidate that was never tried is not stored, so it has no row.
        let tried: BTreeSet<&CandidateId> = state.results().map(|row| &row.candidate_id).collect();
        let walk = self.walk(state);
        walk.candidates.iter().filter(|candidate| tried.contains(&candidate.id)).filter_map(decided).collect()
    }

    fn standing(&self, state: &JobState) -> Option<JobStanding> {
        let walk = self.walk(state);
        let mean = |id: &CandidateId| walk.candidate(id)?.holdout_micro;
        Some(JobStanding {
            best_micro: mean(&walk.best),
            start_micro: mean(&self.setup.base),
            kept: walk.proposals.accepted,
        })
    }

    fn trials_at_worst(&self, state: &JobState) -> u64 {
        self.setup.search.worst(None).trials.max(state.trials())
    }
}

/// Returns a candidate as its row keeps it, once it is decided.
fn decided(candidate: &Candidate) -> Option<DecidedCandidate> {
    let decision = candidate.decision.clone()?;
    Some(DecidedCandidate {
        candidate_id: candidate.id.clone(),
        variant: candidate.built.variant().map(SpellVariant::content),
        ordinal: candidate.ordinal,
        parents: candidate.parents.clone(),
        op: candidate.op.clone(),
        component: candidate.component.clone(),
        accepted: decision.accepted,
        reason: decision.reason,
        holdout_micro: candidate.holdout_micro,
    })
}
