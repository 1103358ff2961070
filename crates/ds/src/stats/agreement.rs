//! Does a judge agree with people? The share of equal verdicts, and Cohen's kappa, which takes out what chance alone
//! would make equal.

use super::interval::{Bounds, wilson};
use super::unit::rounded_quotient;

/// How often a judge and a person said `good` of the same output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JudgeCounts {
    pub both_good: u64,
    /// The judge alone said `good`.
    pub judge_alone: u64,
    /// The person alone said `good`.
    pub human_alone: u64,
    pub both_bad: u64,
}

/// The agreement of a judge with people, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    pub n: u64,
    /// The number of outputs of which both said the same.
    pub agree: u64,
    pub agreement_micro: i64,
    /// The bounds of Wilson's 95 % interval.
    pub low_micro: i64,
    pub high_micro: i64,
    /// Cohen's kappa; 0 where chance alone makes both always say the same, since nothing can be shown then.
    pub kappa_micro: i64,
}

impl JudgeCounts {
    /// Adds an output: a judge's score counts as `good` from a half on.
    pub fn add(&mut self, score_micro: i64, human_good: bool) {
        match (score_micro >= 500_000, human_good) {
            (true, true) => self.both_good += 1,
            (true, false) => self.judge_alone += 1,
            (false, true) => self.human_alone += 1,
            (false, false) => self.both_bad += 1,
        }
    }

    /// Returns the agreement; none if there is no output.
    pub fn agreement(&self) -> Option<Agreement> {
        let [both_good, judge_alone, human_alone, both_bad] =
            [self.both_good, self.judge_alone, self.human_alone, self.both_bad].map(i128::from);
        let n = both_good + judge_alone + human_alone + both_bad;
        let agree = both_good + both_bad;
        let total = u64::try_from(n).ok().filter(|total| *total > 0)?;
        let agreeing = u64::try_from(agree).ok()?;
        let Bounds { low, high } = wilson(agreeing, total)?;
        // With p_o = agree / n and p_e = expected / n^2, kappa = (n agree - expected) / (n^2 - expected).
        let expected =
            (both_good + judge_alone) * (both_good + human_alone) + (human_alone + both_bad) * (judge_alone + both_bad);
        let beyond_chance = n * n - expected;
        let kappa =
            if beyond_chance == 0 { 0 } else { rounded_quotient(1_000_000 * (n * agree - expected), beyond_chance) };
        Some(Agreement {
            n: total,
            agree: agreeing,
            agreement_micro: i64::try_from(rounded_quotient(1_000_000 * agree, n)).ok()?,
            low_micro: low,
            high_micro: high,
            kappa_micro: i64::try_from(kappa).ok()?,
        })
    }
}
