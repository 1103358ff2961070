//! The candidates of a search: which are decided, and whether the search has come to its bounds.

use cantrip::canon::Hash;
use cantrip::loom::JobAccepted;
use cantrip::reply::Refusal;
use cantrip_contract::{CandidateRow, ImproveRow};

use super::ask::{Ask, DecidedCandidate, JobState};
use super::drive::ActiveJob;
use super::driver::JobParts;
use super::lease::JobWrites;
use crate::limits::DECIDED_TOGETHER_MAX;

/// Returns the reason why a job is at its bounds, if its last Ask was what it had set aside. So a process that takes the
/// job over ends it, as the one before it would have done.
pub(super) fn was_at_bounds(parts: &JobParts, state: &JobState, last_ask: Option<Hash>) -> Option<String> {
    let last_ask = last_ask?;
    let trials = parts.source.final_trials(state);
    if trials.is_empty() || Ask::Try(trials).digest().ok()? != last_ask {
        return None;
    }
    let next = parts.source.next(state);
    let is_search_over = matches!(next, Ask::Done(_)) || next.digest().ok()? == last_ask;
    (!is_search_over).then(|| "the bounds of the job did not allow the next step of its search".to_owned())
}

impl ActiveJob<'_> {
    /// Writes the rows of the candidates that are decided by now, each in the step of its record.
    pub(super) async fn write_decided(&mut self) -> Result<(), Refusal> {
        let mut decided = self.parts.source.decided(&self.state);
        decided.retain(|candidate| !self.state.is_decided(&candidate.candidate_id));
        for together in decided.chunks(DECIDED_TOGETHER_MAX) {
            let mut writes = JobWrites::default();
            for candidate in together {
                writes.events.push(accepted_event(candidate).into());
                writes.rows.push(ImproveRow::Candidate(Box::new(self.candidate_row(candidate))));
            }
            self.write(writes).await?;
            together.iter().for_each(|candidate| self.state.note_decided(candidate.candidate_id.clone()));
        }
        Ok(())
    }

    fn candidate_row(&self, candidate: &DecidedCandidate) -> CandidateRow {
        CandidateRow {
            job_id: self.context.job_id,
            candidate_id: candidate.candidate_id.clone(),
            compiled_id: candidate.candidate_id.artifact(),
            variant: candidate.variant.clone(),
            ordinal: candidate.ordinal,
            parents: candidate.parents.clone(),
            op: candidate.op.clone(),
            component: candidate.component.clone(),
            accepted: candidate.accepted,
            note: candidate.reason.clone(),
            holdout_micro: candidate.holdout_micro,
            at: self.driver.clock.now().wall,
        }
    }
}

fn accepted_event(candidate: &DecidedCandidate) -> JobAccepted {
    JobAccepted {
        candidate_id: candidate.candidate_id.clone(),
        ordinal: candidate.ordinal,
        accepted: candidate.accepted,
        reason: candidate.reason.clone(),
    }
}
