//! Looks: how often was a test split compared on, and what may be said after that?
//!
//! Twenty prompts tried on one test split find a lucky one. So each comparison counts, and the level of look `k` is
//! 0.05 / (k (k + 1)): the levels of all looks together are 5 %. From the second look on the flip test must agree,
//! because the bootstrap of a small sample passes so small a level too easily.

use cantrip_contract::{DeltaPart, EvalVerdict, LookPart};

use crate::limits::{LEVEL_PPM, LOOKS_MAX, RESAMPLES};

use super::interval::{Bounds, Resampled};
use super::significance::{flip_p_ppm, sign_p_ppm};
use super::unit::{Observation, Unit, mean, rounded_quotient, units};

/// The factor of the detectable difference: the square of 2.8, for a power of 80 % at the level of 5 %.
const POWER_FACTOR: f64 = 7.84;
/// The share of examples that are assumed to differ.
const SHARE_DIFFERING: f64 = 0.3;

/// The comparison of a subject with its baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    pub units: u64,
    pub delta: DeltaPart,
    /// None if the examples are no test split.
    pub look: Option<LookPart>,
    /// None without a look: such a comparison speaks for nothing.
    pub verdict: Option<EvalVerdict>,
}

/// Returns k (k + 1).
fn share(k: u64) -> u64 {
    k.saturating_mul(k.saturating_add(1)).max(1)
}

/// Returns the one-sided level of look `k`, counted from 1, in parts per million.
pub fn level_ppm(k: u64) -> u64 {
    u64::try_from(rounded_quotient(i128::from(LEVEL_PPM), i128::from(share(k)))).unwrap_or(0)
}

/// Returns the number of resamples that the bounds of look `k` leave out on each side.
pub fn bound_index(k: u64) -> usize {
    let all = LEVEL_PPM * RESAMPLES as u64 / 1_000_000;
    usize::try_from(all / share(k)).unwrap_or(0)
}

/// Returns true if look `k` is beyond the last that the flip test can decide.
pub fn is_spent(k: u64) -> bool {
    k > LOOKS_MAX
}

/// Returns the verdict of look `k` with these bounds. The p-values are those of the flip test; they count from the
/// second look on.
pub fn verdict(k: u64, bounds: Bounds, flip_better_ppm: u64, flip_worse_ppm: u64) -> EvalVerdict {
    let passes = |p: u64| !is_spent(k) && (k == 1 || p <= level_ppm(k));
    if bounds.low > 0 && passes(flip_better_ppm) {
        EvalVerdict::Better
    } else if bounds.high < 0 && passes(flip_worse_ppm) {
        EvalVerdict::Worse
    } else {
        EvalVerdict::Undecided
    }
}

/// Returns the difference that shows with a probability of 80 % if 30 % of the examples differ, in millionths; none
/// without units.
pub fn detectable(units: u64) -> Option<i64> {
    if units == 0 {
        return None;
    }
    Some(((POWER_FACTOR * SHARE_DIFFERING / units as f64).sqrt() * 1e6).round() as i64)
}

/// Compares a subject with its baseline. The value of each observation is the subject's score less the baseline's, and
/// the label of the random numbers is the id of the evaluation. `k` is the number of the look; none if the examples are
/// no test split. Returns none if there is nothing to compare.
pub fn compare(eval_id: &str, differences: &[Observation<'_>], k: Option<u64>) -> Option<Comparison> {
    let units = units(differences);
    let delta_mean = mean(&units)?;
    let resampled = Resampled::new(eval_id, &units)?;
    let Bounds { low, high } = resampled.interval();
    let count = |chosen: fn(&Unit) -> bool| units.iter().filter(|unit| chosen(unit)).count() as u64;
    let (wins, losses) = (count(|unit| unit.weighted > 0), count(|unit| unit.weighted < 0));
    let flip_better = flip_p_ppm(&format!("{eval_id}|flip"), &units);
    let delta = DeltaPart {
        mean: delta_mean,
        low,
        high,
        wins,
        losses,
        ties: units.len() as u64 - wins - losses,
        sign_p_ppm: sign_p_ppm(wins, losses),
        flip_p_ppm: flip_better,
    };
    let bounds = k.map(|k| resampled.look(k));
    let found = k.zip(bounds).map(|(k, bounds)| {
        // The test of the other side is made only where it decides.
        let flip_worse = if k > 1 && bounds.high < 0 { flip_worse_p_ppm(eval_id, &units) } else { 0 };
        verdict(k, bounds, flip_better, flip_worse)
    });
    let look = k.zip(bounds).map(|(k, Bounds { low, high })| LookPart { k, level_ppm: level_ppm(k), low, high });
    Some(Comparison { units: units.len() as u64, delta, look, verdict: found })
}

/// Returns the p-value of the flip test for "worse".
fn flip_worse_p_ppm(eval_id: &str, units: &[Unit]) -> u64 {
    let negated: Vec<Unit> = units.iter().map(|unit| Unit { weight: unit.weight, weighted: -unit.weighted }).collect();
    flip_p_ppm(&format!("{eval_id}|flip|worse"), &negated)
}
