//! The order of an evaluation's trials.
//!
//! Examples are shuffled, so that a provider that gets slower or worse meets all kinds of them alike; both sides of an
//! example run next to each other, so that it meets both sides alike.

use cantrip::canon::Hash;
use cantrip_contract::{CandidateId, ExampleId, Split};

use cantrip_ds::job::Trial;
use cantrip_ds::stats;

/// Returns the trials of an evaluation in the order in which they begin.
pub fn trial_order(
    job_hash: Hash,
    examples: impl IntoIterator<Item = ExampleId>,
    split: Split,
    subject: &CandidateId,
    baseline: Option<&CandidateId>,
    epochs: u64,
) -> Vec<Trial> {
    let mut ids: Vec<ExampleId> = examples.into_iter().collect();
    // The order before the shuffle must be the same everywhere.
    ids.sort();
    stats::shuffle(&format!("{job_hash}|order"), &mut ids);
    let sides: Vec<&CandidateId> = [Some(subject), baseline].into_iter().flatten().collect();
    let mut trials = Vec::with_capacity(ids.len().saturating_mul(sides.len()));
    for epoch in 1..=epochs {
        for id in &ids {
            for side in &sides {
                let (candidate_id, example_id) = (CandidateId::clone(side), id.clone());
                trials.push(Trial { candidate_id, example_id, epoch, split });
            }
        }
    }
    trials
}
