//! The path of a search, followed from its beginning.
//!
//! An optimiser is written as if every result were there: it tries, reads and decides. The path gives it what the job
//! has recorded. At the first thing that is not there the search ends with the Ask for it, and is followed again from
//! the beginning when the job has the results. So no optimiser keeps a state of its own, a resumed search goes the
//! same way as one that was never stopped, and the path under a small budget is the beginning of the path under a
//! larger one.
//!
//! A result counts only after the path has asked for it: the rows of a job that went further must not be seen early.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use cantrip_contract::{CandidateId, ExampleId, ProposalsPart, Split};

use super::content::{BuiltCandidate, Content};
use super::reflection::ReflectionRequest;
use super::rejection::Rejection;
use super::state::State;
use crate::limits::{COMPILE_CANDIDATES_MAX, HOLDOUT_FAILED_PERCENT_MAX};
use cantrip_ds::job::{Ask, JobState, Proposal, Proposed, Trial};

/// The place of a candidate on its path: its ordinal. The base is 0.
pub type Ordinal = usize;

/// The ordinal of the base.
pub const BASE: Ordinal = 0;

/// The step that made a candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    pub op: &'static str,
    /// The name of the slot that changed, if it is one.
    pub component: Option<String>,
    pub parents: Vec<Ordinal>,
    /// The number of the proposal whose text the candidate has.
    pub proposal: Option<u64>,
}

/// The final decision about a candidate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub accepted: bool,
    /// The reason why it was not accepted.
    pub reason: Option<String>,
}

/// A candidate of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    pub id: CandidateId,
    pub ordinal: u64,
    pub parents: Vec<CandidateId>,
    pub op: String,
    pub component: Option<String>,
    /// The values of its slots.
    pub content: Content,
    pub built: BuiltCandidate,
    /// None while nothing is decided. A decision is final.
    pub decision: Option<Decision>,
    /// The mean on holdout, once all of it was tried.
    pub holdout_micro: Option<u64>,
    /// The number of the proposal whose text it has.
    pub proposal: Option<u64>,
}

/// A candidate that was added, or the equal one that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    pub ordinal: Ordinal,
    pub is_new: bool,
}

/// An answered proposal, with the reason of its rejection or the candidate that has its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProposalFate {
    pub number: u64,
    /// The reason why its text is not used.
    pub rejected: Option<String>,
    /// The first candidate that has its text.
    pub candidate: Option<CandidateId>,
}

/// A path as far as the results of the job carry it.
#[derive(Debug, Clone, PartialEq)]
pub struct Walk {
    /// The next thing to do; [`Ask::Done`] with the winner at the end of the search.
    pub ask: Ask,
    /// Every candidate so far, by ordinal.
    pub candidates: Vec<Candidate>,
    /// The best mean on holdout after so many trials, one pair for each improvement.
    pub curve: Vec<(u64, u64)>,
    pub proposals: ProposalsPart,
    /// The answered proposals on the path, by number.
    pub fates: Vec<ProposalFate>,
    /// The winner, or the best candidate so far; the base if none was tried on all of holdout.
    pub best: CandidateId,
    /// The number of trials on the path, on train and holdout.
    pub trials: u64,
}

impl Walk {
    /// Returns a candidate by its id.
    pub fn candidate(&self, id: &CandidateId) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.id == *id)
    }

    /// Returns true if a job that has gone on since is still at this place: its search has ended, or something of the
    /// Ask has no answer yet. The path is then the same, and need not be followed again.
    pub fn is_current(&self, job: &JobState) -> bool {
        match &self.ask {
            Ask::Done(_) => true,
            // Trials begin in order, so a missing one is found near the end.
            Ask::Try(trials) => trials.iter().rev().any(|trial| job.result(trial).is_none()),
            Ask::Propose(proposals) => proposals.iter().rev().any(|one| job.proposed(one.number).is_none()),
        }
    }
}

/// A path that is being followed.
#[derive(Debug)]
pub struct Path<'a> {
    state: State<'a>,
    candidates: Vec<Candidate>,
    by_id: BTreeMap<CandidateId, Ordinal>,
    /// The holdout examples on which each candidate was tried, by ordinal.
    tried: Vec<BTreeSet<ExampleId>>,
    asked: BTreeSet<Trial>,
    trials: u64,
    proposals: u64,
    /// The reasons of the rejected proposals, by number.
    rejected: BTreeMap<u64, String>,
    curve: Vec<(u64, u64)>,
}

impl<'a> Path<'a> {
    /// Begins a path with the base.
    pub fn new(state: State<'a>) -> Self {
        let id = state.space().base_id();
        let content = state.space().base().clone();
        // The base was built before: it is what the space was made of.
        let built = state.space().build(&content).unwrap_or_else(|_| BuiltCandidate::Spell(id.clone()));
        let base = Candidate {
            id: id.clone(),
            ordinal: 0,
            parents: Vec::new(),
            op: "base".to_owned(),
            component: None,
            content,
            built,
            decision: None,
            holdout_micro: None,
            proposal: None,
        };
        Self {
            state,
            candidates: vec![base],
            by_id: BTreeMap::from([(id, BASE)]),
            tried: vec![BTreeSet::new()],
            asked: BTreeSet::new(),
            trials: 0,
            proposals: 0,
            rejected: BTreeMap::new(),
            curve: Vec::new(),
        }
    }

    pub fn state(&self) -> State<'a> {
        self.state
    }

    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Returns a candidate of this path.
    pub fn candidate(&self, ordinal: Ordinal) -> &Candidate {
        &self.candidates[ordinal]
    }

    /// Returns the values of a candidate's slots.
    pub fn content(&self, ordinal: Ordinal) -> &Content {
        &self.candidates[ordinal].content
    }

    /// Returns the candidate with the same content, if there is one.
    pub fn find(&self, content: &Content) -> Result<Option<Ordinal>, Rejection> {
        let built = self.state.space().build(content)?;
        Ok(self.by_id.get(&built.id()).copied())
    }

    /// Adds a candidate. Equal content is one candidate: the first one stays as it was made.
    pub fn add(&mut self, content: Content, origin: Origin) -> Result<Added, Rejection> {
        let built = self.state.space().build(&content)?;
        let id = built.id();
        if let Some(ordinal) = self.by_id.get(&id) {
            return Ok(Added { ordinal: *ordinal, is_new: false });
        }
        let ordinal = self.candidates.len();
        if ordinal >= COMPILE_CANDIDATES_MAX {
            return Err(Rejection::Unfit);
        }
        self.by_id.insert(id.clone(), ordinal);
        self.tried.push(BTreeSet::new());
        self.candidates.push(Candidate {
            id,
            ordinal: ordinal as u64,
            parents: origin.parents.iter().map(|parent| self.candidates[*parent].id.clone()).collect(),
            op: origin.op.to_owned(),
            component: origin.component,
            content,
            built,
            decision: None,
            holdout_micro: None,
            proposal: origin.proposal,
        });
        Ok(Added { ordinal, is_new: true })
    }

    /// Decides that a candidate is not kept. The first decision stands.
    pub fn drop_candidate(&mut self, ordinal: Ordinal, reason: &str) {
        let candidate = &mut self.candidates[ordinal];
        if candidate.decision.is_none() {
            candidate.decision = Some(Decision { accepted: false, reason: Some(reason.to_owned()) });
        }
    }

    /// Returns when all of these trials have a result; until then, the Ask for those that the path did not ask for
    /// before. A candidate that has now been tried on all of holdout is accepted, unless it was dropped.
    pub fn try_all(&mut self, trials: Vec<Trial>) -> Result<(), Ask> {
        let fresh: Vec<Trial> = trials.into_iter().filter(|trial| self.asked.insert(trial.clone())).collect();
        if fresh.iter().any(|trial| self.state.cell_of(trial).is_none()) {
            return Err(Ask::Try(fresh));
        }
        self.trials += fresh.len() as u64;
        let mut touched = BTreeSet::new();
        for trial in fresh.into_iter().filter(|trial| trial.split == Split::Holdout) {
            if let Some(ordinal) = self.by_id.get(&trial.candidate_id).copied() {
                self.tried[ordinal].insert(trial.example_id);
                touched.insert(ordinal);
            }
        }
        for ordinal in touched {
            self.note_completed(ordinal);
        }
        Ok(())
    }

    /// Tries some candidates on some examples of a split. Trials on one example stand next to each other.
    pub fn try_on(&mut self, candidates: &[Ordinal], examples: &[ExampleId], split: Split) -> Result<(), Ask> {
        let mut trials = Vec::with_capacity(candidates.len().saturating_mul(examples.len()));
        for example in examples {
            for ordinal in candidates {
                trials.push(self.state.trial(&self.candidates[*ordinal].id, example, split));
            }
        }
        self.try_all(trials)
    }

    /// Tries a candidate on all of holdout.
    pub fn complete(&mut self, ordinal: Ordinal) -> Result<(), Ask> {
        self.try_on(&[ordinal], self.state.holdout_order(), Split::Holdout)
    }

    fn note_completed(&mut self, ordinal: Ordinal) {
        if !self.is_complete(ordinal) || self.candidates[ordinal].holdout_micro.is_some() {
            return;
        }
        let mean = self.mean(ordinal);
        let candidate = &mut self.candidates[ordinal];
        candidate.holdout_micro = mean;
        if candidate.decision.is_none() {
            candidate.decision = Some(Decision { accepted: true, reason: None });
        }
        if let Some(mean) = mean
            && self.curve.last().is_none_or(|(_, best)| mean > *best)
        {
            self.curve.push((self.trials, mean));
        }
    }

    /// Returns true if a candidate was tried on all of holdout.
    pub fn is_complete(&self, ordinal: Ordinal) -> bool {
        self.tried[ordinal].len() == self.state.holdout().len()
    }

    /// Returns the mean of a candidate over the holdout examples on which the path has tried it.
    pub fn mean(&self, ordinal: Ordinal) -> Option<u64> {
        self.state.mean(&self.candidates[ordinal].id, &self.tried[ordinal])
    }

    /// Returns the cost of a candidate over the holdout examples on which the path has tried it.
    pub fn cost(&self, ordinal: Ordinal) -> u64 {
        let id = &self.candidates[ordinal].id;
        self.tried[ordinal].iter().map(|example| self.state.cost(id, example)).sum()
    }

    /// Asks for texts, all at once, and returns the answers in the same order.
    pub fn propose(&mut self, requests: &[ReflectionRequest]) -> Result<Vec<Proposed>, Ask> {
        let numbered: Vec<Proposal> =
            (self.proposals + 1..).zip(requests).map(|(number, request)| request.proposal(number)).collect();
        let answered: Option<Vec<Proposed>> =
            numbered.iter().map(|proposal| self.state.proposed(proposal.number).cloned()).collect();
        match answered {
            Some(answered) => {
                self.proposals += numbered.len() as u64;
                Ok(answered)
            }
            None => Err(Ask::Propose(numbered)),
        }
    }

    /// Counts a proposal whose text is not used.
    pub fn reject_proposal(&mut self, number: u64, reason: &str) {
        self.rejected.insert(number, reason.to_owned());
    }

    /// Returns the proposals that were rejected so far, with the reason of each.
    pub fn rejected(&self) -> &BTreeMap<u64, String> {
        &self.rejected
    }

    /// Returns true if the candidate can win: it was kept, and tried on all of holdout with hardly a failure of the
    /// infrastructure, a metric or a judge. Those failures are no scores, and a mean over the rest would not compare.
    pub fn can_win(&self, ordinal: Ordinal) -> bool {
        let kept = self.candidates[ordinal].decision.as_ref().is_some_and(|decision| decision.accepted);
        let tried = &self.tried[ordinal];
        let failures = self.state.failures(&self.candidates[ordinal].id, tried);
        let is_measured =
            failures.saturating_mul(100) <= (tried.len() as u64).saturating_mul(HOLDOUT_FAILED_PERCENT_MAX);
        kept && self.is_complete(ordinal) && (is_measured || ordinal == BASE) && self.mean(ordinal).is_some()
    }

    /// Returns the candidates that can win, the best first: by the highest mean, then the cheaper, then fewer demos,
    /// then the earlier.
    pub fn ranking(&self) -> Vec<Ordinal> {
        let mut able: Vec<Ordinal> = (0..self.candidates.len()).filter(|ordinal| self.can_win(*ordinal)).collect();
        able.sort_by_cached_key(|ordinal| {
            let demos = self.candidates[*ordinal].content.demos().len();
            (Reverse(self.mean(*ordinal)), self.cost(*ordinal), demos, *ordinal)
        });
        able
    }

    /// Returns the best candidate so far; the base if none can win.
    pub fn best(&self) -> Ordinal {
        self.ranking().first().copied().unwrap_or(BASE)
    }

    /// Ends the path. A candidate of which nothing was decided was never tried on all of holdout.
    pub(super) fn into_walk(mut self, ended: Result<Ordinal, Ask>) -> Walk {
        let (ask, best) = match ended {
            Ok(winner) => {
                for ordinal in 0..self.candidates.len() {
                    self.drop_candidate(ordinal, "not_completed");
                }
                (Ask::Done(Some(self.candidates[winner].id.clone())), winner)
            }
            Err(ask) => (ask, self.best()),
        };
        let is_kept = |candidate: &&Candidate| candidate.decision.as_ref().is_some_and(|decision| decision.accepted);
        let accepted: BTreeSet<u64> =
            self.candidates.iter().filter(is_kept).filter_map(|candidate| candidate.proposal).collect();
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for reason in self.rejected.values() {
            *counts.entry(reason.clone()).or_default() += 1;
        }
        let fate = |number: u64| ProposalFate {
            number,
            rejected: self.rejected.get(&number).cloned(),
            candidate: self.candidates.iter().find(|one| one.proposal == Some(number)).map(|one| one.id.clone()),
        };
        Walk {
            ask,
            best: self.candidates[best].id.clone(),
            fates: (1..=self.proposals).map(fate).collect(),
            proposals: ProposalsPart { made: self.proposals, rejected: counts, accepted: accepted.len() as u64 },
            candidates: self.candidates,
            curve: self.curve,
            trials: self.trials,
        }
    }
}
