//! The choice of the next combination, as a pure function of those that were tried.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;

use crate::limits::{MIPRO_FIRST_TRIALS_MIN, MIPRO_GOOD_MIN, MIPRO_GRID_EVERY};
use cantrip_ds::stats;

/// The value of each variable, from 0.
pub type Combination = Vec<usize>;

/// A combination that was tried, with its mean so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tried {
    pub combination: Combination,
    /// In millionths; none if nothing was scored.
    pub mean: Option<u64>,
}

/// Chooses combinations.
#[derive(Debug, Clone)]
pub struct CombinationChooser {
    /// All combinations, shuffled.
    grid: Vec<Combination>,
    trials: u64,
    excluded: BTreeSet<Combination>,
}

/// Returns the number of trials for variables with so many values: enough to see each value, and each pair of halves.
pub fn default_trials(values: &[u64]) -> u64 {
    let variables = values.iter().filter(|count| **count > 1).count() as u64;
    let most = values.iter().copied().max().unwrap_or(1).max(1);
    let halvings = u64::from(most.next_power_of_two().trailing_zeros());
    (2 * variables * halvings).max((3 * most).div_ceil(2))
}

impl CombinationChooser {
    /// Makes the chooser of a grid with so many values of each variable. `label` is that of the grid's shuffle.
    pub fn new(label: &str, values: &[usize], trials: u64) -> Self {
        let mut grid: Vec<Combination> = vec![Vec::new()];
        for count in values {
            let longer = |start: &Combination| {
                let start = start.clone();
                (0..*count).map(move |value| start.iter().copied().chain([value]).collect::<Combination>())
            };
            grid = grid.iter().flat_map(longer).collect();
        }
        stats::shuffle(label, &mut grid);
        Self { grid, trials, excluded: BTreeSet::new() }
    }

    /// Takes a combination out of the grid.
    pub fn exclude(&mut self, combination: &Combination) {
        self.excluded.insert(combination.clone());
    }

    /// Returns the combination of a trial, from 2; the first trial is the base. None if all were tried.
    pub fn next(&self, tried: &[Tried], trial: u64) -> Option<Combination> {
        let known: BTreeSet<&Combination> = tried.iter().map(|one| &one.combination).collect();
        let mut left = self.grid.iter().filter(|one| !known.contains(one) && !self.excluded.contains(*one));
        let first_trials = MIPRO_FIRST_TRIALS_MIN.max(self.trials.div_ceil(3));
        if trial <= first_trials || trial.is_multiple_of(MIPRO_GRID_EVERY) {
            return left.next().cloned();
        }
        let (good, bad) = divide(tried);
        let mut best: Option<(Odds, &Combination)> = None;
        for combination in left {
            let odds = Odds::of(combination, &good, &bad);
            // Of equal odds the earlier in the grid is taken.
            if best.as_ref().is_none_or(|(known, _)| odds.compare(known) == Ordering::Greater) {
                best = Some((odds, combination));
            }
        }
        best.map(|(_, combination)| combination.clone())
    }
}

/// Divides what was tried into the good quarter, at least two, and the rest.
fn divide(tried: &[Tried]) -> (Vec<&Combination>, Vec<&Combination>) {
    let mut ranked: Vec<&Tried> = tried.iter().collect();
    // The sort is stable, so of equal means the earlier is better.
    ranked.sort_by_key(|one| Reverse(one.mean));
    let good = MIPRO_GOOD_MIN.max(tried.len().div_ceil(4)).min(ranked.len());
    let (good, bad) = ranked.split_at(good);
    (good.iter().map(|one| &one.combination).collect(), bad.iter().map(|one| &one.combination).collect())
}

/// How often the parts of a combination stood in good ones, against bad ones: a product of fractions, exactly.
struct Odds {
    numerator: u128,
    denominator: u128,
}

impl Odds {
    fn of(combination: &Combination, good: &[&Combination], bad: &[&Combination]) -> Self {
        let mut odds = Self { numerator: 1, denominator: 1 };
        for (variable, value) in combination.iter().enumerate() {
            let count =
                |part: &[&Combination]| 1 + part.iter().filter(|one| one.get(variable) == Some(value)).count() as u128;
            odds.numerator *= count(good);
            odds.denominator *= count(bad);
        }
        odds
    }

    fn compare(&self, other: &Self) -> Ordering {
        (self.numerator * other.denominator).cmp(&(other.numerator * self.denominator))
    }
}
