//! Intervals of a mean: the bootstrap over units, and Wilson's interval of a share.

use cantrip_contract::{IntervalMethod, ScorePart};

use crate::limits::{RESAMPLE_TAIL, RESAMPLES};

use super::unit::{Observation, Unit, mean, rounded_quotient, units};
use super::{Random, look};

/// The best score.
const ONE: i64 = 1_000_000;

/// The quantile of the normal distribution for a two-sided 95 % interval.
const WILSON_Z: f64 = 1.959_963_984_540_054;

/// A lower and an upper bound, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub low: i64,
    pub high: i64,
}

/// The means of all resamples, or the differences of two means, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resampled {
    means: Vec<i64>,
}

impl Resampled {
    /// Resamples the units with the generator of this label: draws as many units as there are, with replacement, and
    /// takes the weighted mean, [`RESAMPLES`] times. Returns none if there are no units, or one that weighs nothing.
    pub fn new(label: &str, units: &[Unit]) -> Option<Self> {
        let mut means = resampled_means(label, units)?;
        means.sort_unstable();
        Some(Self { means })
    }

    /// Resamples a canary and its primary, which serve different callers, each with a generator of its own, and takes
    /// the difference of the two means. Returns none if a side has no units.
    pub fn unpaired(id: &str, canary: &[Unit], primary: &[Unit]) -> Option<Self> {
        let canary = resampled_means(&format!("{id}|canary"), canary)?;
        let primary = resampled_means(&format!("{id}|primary"), primary)?;
        let mut means: Vec<i64> = canary.into_iter().zip(primary).map(|(one, other)| one - other).collect();
        means.sort_unstable();
        Some(Self { means })
    }

    /// Returns the bounds that leave `tail` resamples out on each side; `tail` is below [`RESAMPLES`].
    pub fn bounds(&self, tail: usize) -> Bounds {
        let last = self.means.len() - 1;
        let tail = tail.min(last);
        Bounds { low: self.means[tail], high: self.means[last - tail] }
    }

    /// Returns the bounds of the 95 % interval.
    pub fn interval(&self) -> Bounds {
        self.bounds(RESAMPLE_TAIL)
    }

    /// Returns the bounds of look `k`.
    pub fn look(&self, k: u64) -> Bounds {
        self.bounds(look::bound_index(k))
    }
}

/// Returns the mean of each resample, in the order in which they are drawn.
fn resampled_means(label: &str, units: &[Unit]) -> Option<Vec<i64>> {
    if units.is_empty() || units.iter().any(|unit| unit.weight <= 0) {
        return None;
    }
    let mut random = Random::new(label);
    let mut means = Vec::with_capacity(RESAMPLES);
    match same_weight(units) {
        Some((weight, sums)) => {
            let total = weight * sums.len() as i128;
            for _ in 0..RESAMPLES {
                let mut sum = 0_i64;
                for _ in 0..sums.len() {
                    sum += sums[random.index(sums.len())];
                }
                means.push(quotient(i128::from(sum), total));
            }
        }
        None => {
            for _ in 0..RESAMPLES {
                let (mut weight, mut weighted) = (0_i128, 0_i128);
                for _ in 0..units.len() {
                    let unit = &units[random.index(units.len())];
                    weight += unit.weight;
                    weighted += unit.weighted;
                }
                means.push(quotient(weighted, weight));
            }
        }
    }
    Some(means)
}

fn quotient(weighted: i128, weight: i128) -> i64 {
    // A mean of values that are millionths lies between the least and the greatest of them.
    i64::try_from(rounded_quotient(weighted, weight)).unwrap_or(i64::MAX)
}

/// Returns the one weight of all units and their sums, if they weigh the same and no sum of a resample can overflow.
/// The sums are then those of the general case, in half the time.
fn same_weight(units: &[Unit]) -> Option<(i128, Vec<i64>)> {
    let weight = units.first()?.weight;
    let bound = i128::from(i64::MAX) / units.len() as i128;
    let fits = |unit: &Unit| unit.weight == weight && unit.weighted.abs() <= bound;
    if !units.iter().all(fits) {
        return None;
    }
    let sums = units.iter().map(|unit| i64::try_from(unit.weighted)).collect::<Result<_, _>>().ok()?;
    Some((weight, sums))
}

/// Returns the interval of the score of one side. `label` is the id of the evaluation and `|score` or `|baseline`.
/// Where every score is 0 or 1, there is one epoch, all weights are equal and there are no groups, it is Wilson's
/// interval; the bootstrap would say that 30 of 30 leave no doubt. Returns none if there is no score.
pub fn score_interval(label: &str, scores: &[Observation<'_>], epochs: u64) -> Option<ScorePart> {
    let first = scores.first()?;
    let units = units(scores);
    let mean = mean(&units)?;
    let plain = |score: &Observation<'_>| {
        let is_binary = score.value_micro == 0 || score.value_micro == ONE;
        is_binary && score.group.is_none() && score.weight_micro == first.weight_micro
    };
    if epochs == 1 && scores.iter().all(plain) {
        let right = scores.iter().filter(|score| score.value_micro == ONE).count();
        let Bounds { low, high } = wilson(right as u64, scores.len() as u64)?;
        return score_part(mean, low, high, IntervalMethod::Wilson);
    }
    let Bounds { low, high } = Resampled::new(label, &units)?.interval();
    score_part(mean, low, high, IntervalMethod::Bootstrap)
}

/// Returns the part of a report; none for a negative number, which no score is.
fn score_part(mean: i64, low: i64, high: i64, method: IntervalMethod) -> Option<ScorePart> {
    let [mean, low, high] = [mean, low, high].map(|micro| u64::try_from(micro).ok());
    Some(ScorePart { mean: mean?, low: low?, high: high?, method })
}

/// Returns Wilson's 95 % interval of `right` out of `n`; none if `n` is 0 or `right` is above it.
pub fn wilson(right: u64, n: u64) -> Option<Bounds> {
    if n == 0 || right > n {
        return None;
    }
    let (x, n) = (right as f64, n as f64);
    let p = x / n;
    let q = WILSON_Z * WILSON_Z / n;
    let centre = p + q / 2.0;
    let spread = WILSON_Z * (p * (1.0 - p) / n + q / (4.0 * n)).sqrt();
    let micro = |share: f64| (share / (1.0 + q) * ONE as f64).round() as i64;
    Some(Bounds { low: micro(centre - spread).max(0), high: micro(centre + spread).min(ONE) })
}
