//! Merges: two candidates of the front that improved different parts of a common ancestor become one.

use std::collections::BTreeSet;

use cantrip_ds::stats::Random;

use super::front::FrontMember;
use crate::limits::GEPA_MERGE_EXAMPLES;

/// Two candidates that may be merged, and the ancestor from which both come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergePair {
    /// The earlier candidate.
    pub first: usize,
    pub second: usize,
    /// The latest common ancestor that scores no better than either.
    pub ancestor: usize,
}

/// Returns the pairs of the front that may be merged: neither is an ancestor of the other, and a common ancestor scores
/// no better than either. The pair with the highest sum of means comes first, and of equal sums the earlier one.
///
/// `parents` has the parents of each candidate, which come before it.
pub fn merge_pairs(front: &[FrontMember], parents: &[Vec<usize>], means: &[u64]) -> Vec<MergePair> {
    let ancestors = all_ancestors(parents);
    let mean = |candidate: usize| means.get(candidate).copied().unwrap_or(0);
    let mut pairs = Vec::new();
    for (place, one) in front.iter().enumerate() {
        for other in &front[place + 1..] {
            let (first, second) = (one.candidate, other.candidate);
            if ancestors[first].contains(&second) || ancestors[second].contains(&first) {
                continue;
            }
            let lower = mean(first).min(mean(second));
            let common = ancestors[first].intersection(&ancestors[second]);
            if let Some(ancestor) = common.copied().filter(|ancestor| mean(*ancestor) <= lower).max() {
                pairs.push(MergePair { first, second, ancestor });
            }
        }
    }
    pairs.sort_by_key(|pair| (std::cmp::Reverse(mean(pair.first) + mean(pair.second)), *pair));
    pairs
}

/// Returns all ancestors of each candidate.
fn all_ancestors(parents: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let mut ancestors: Vec<BTreeSet<usize>> = Vec::with_capacity(parents.len());
    for own in parents {
        let mut above: BTreeSet<usize> = own.iter().copied().collect();
        above.extend(own.iter().filter_map(|parent| ancestors.get(*parent)).flatten().copied());
        ancestors.push(above);
    }
    ancestors
}

/// Returns the holdout examples on which a merge is compared with its parents first, by their places: drawn in turn
/// from those on which the first parent is better, those on which the second is, and those on which they are equal.
/// Examples without a score of both are left out.
pub fn merge_examples(first: &[Option<u64>], second: &[Option<u64>], label: &str) -> Vec<usize> {
    let (mut first_better, mut second_better, mut tied) = (Vec::new(), Vec::new(), Vec::new());
    for (place, (one, other)) in first.iter().zip(second).enumerate() {
        if let (Some(one), Some(other)) = (one, other) {
            match one.cmp(other) {
                std::cmp::Ordering::Greater => first_better.push(place),
                std::cmp::Ordering::Less => second_better.push(place),
                std::cmp::Ordering::Equal => tied.push(place),
            }
        }
    }
    let mut random = Random::new(label);
    let mut lists = [first_better, second_better, tied];
    for list in &mut lists {
        random.shuffle(list);
    }
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|round| lists.iter().filter_map(move |list| list.get(round).copied()));
    in_turn.take(GEPA_MERGE_EXAMPLES).collect()
}

/// The side of a merge that a slot is taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeSide {
    First,
    Second,
}

/// Returns the side from which a merge takes a slot: the side that changed it; if both did, the side with the higher
/// mean, and of equal means the earlier candidate.
pub fn merge_side<T: PartialEq>(ancestor: &T, first: (&T, u64), second: (&T, u64)) -> MergeSide {
    let ((first, first_mean), (second, second_mean)) = (first, second);
    match (first != ancestor, second != ancestor) {
        (_, false) => MergeSide::First,
        (false, true) => MergeSide::Second,
        (true, true) if second_mean > first_mean => MergeSide::Second,
        (true, true) => MergeSide::First,
    }
}
