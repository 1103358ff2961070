//! The front: the candidates of which each is best somewhere.
//!
//! The best mean alone would lead a search into the next local optimum. A candidate that solves what no other solves is
//! kept, however low its mean, and may become a parent.

use cantrip_ds::stats::Random;

/// The scores of one candidate on the holdout examples, in the order of the examples. None is unscored.
pub type ScoreRow = Vec<Option<u64>>;

/// A candidate of the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrontMember {
    /// The ordinal of the candidate in the pool.
    pub candidate: usize,
    /// The number of examples on which no candidate is better.
    pub weight: u64,
}

/// Returns the front of candidates with these scores and means, in the order of candidates.
///
/// For each example the candidates with the best score on it form a set. A candidate is dropped if each set that holds
/// it holds another one that is still kept. The lowest mean is dropped first, and of equal means the later candidate.
pub fn front(scores: &[ScoreRow], means: &[u64]) -> Vec<FrontMember> {
    let examples = scores.iter().map(Vec::len).max().unwrap_or(0);
    let sets: Vec<Vec<usize>> = (0..examples).map(|example| best_on(scores, example)).collect();
    let mut kept: Vec<bool> = vec![true; scores.len()];
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by_key(|candidate| (means.get(*candidate).copied(), std::cmp::Reverse(*candidate)));
    for candidate in order {
        let is_needed = sets
            .iter()
            .filter(|set| set.contains(&candidate))
            .any(|set| set.iter().all(|other| *other == candidate || !kept[*other]));
        kept[candidate] = is_needed;
    }
    let weight = |candidate: usize| sets.iter().filter(|set| set.contains(&candidate)).count() as u64;
    let members = kept.into_iter().enumerate().filter(|(_, kept)| *kept);
    members.map(|(candidate, _)| FrontMember { candidate, weight: weight(candidate) }).collect()
}

/// Returns the candidates with the best score on an example. It is empty if nobody has a score.
fn best_on(scores: &[ScoreRow], example: usize) -> Vec<usize> {
    let score = |row: &ScoreRow| row.get(example).copied().flatten();
    let best = scores.iter().filter_map(score).max();
    let is_best = |row: &ScoreRow| best.is_some() && score(row) == best;
    scores.iter().enumerate().filter(|(_, row)| is_best(row)).map(|(candidate, _)| candidate).collect()
}

/// Draws a parent from the front, each with its weight. Returns none if the front is empty.
pub fn draw_parent(front: &[FrontMember], label: &str) -> Option<usize> {
    let total: u64 = front.iter().map(|member| member.weight).sum();
    let mut drawn = Random::new(label).below(total);
    for member in front {
        if drawn < member.weight {
            return Some(member.candidate);
        }
        drawn -= member.weight;
    }
    None
}
