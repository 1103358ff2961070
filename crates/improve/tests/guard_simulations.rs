//! Simulated canaries: how soon is one that is worse removed, and how often one that is as good as its primary?
//!
//! The random numbers of a look depend on its label alone. So the resamples of each look are drawn once here, as
//! counts: with the good units of a side first, the sum of a resample is the number of draws among the first places.
//! The bounds are those of the product, which a test compares; a thousand canaries take no longer than a few.

use cantrip::canon::{IdSource, Timestamp};
use cantrip_contract::RolloutSide;
use cantrip_ds::limits::RESAMPLES;
use cantrip_ds::stats::{Random, bound_index};
use cantrip_improve::guard::{look_at_units, units_of_look};
use cantrip_improve::limits::GUARD_MARGIN_MICRO;
use cantrip_improve::live::{LiveCall, LiveWindow, live_units};

const ONE: i64 = 1_000_000;
const SEEDS: u64 = 1_000;

/// The labelled units of the primary for each one of the canary.
const PRIMARY_TIMES: usize = 2;

/// The resamples of one side of a look, as counts.
struct Side {
    n: usize,
    /// For each resample and each place, the number of draws before this place.
    drawn: Vec<u16>,
}

impl Side {
    fn new(label: &str, n: usize) -> Self {
        let width = n + 1;
        let mut random = Random::new(label);
        let mut drawn = vec![0_u16; RESAMPLES * width];
        for row in drawn.chunks_exact_mut(width) {
            for _ in 0..n {
                row[random.index(n) + 1] += 1;
            }
            for place in 1..width {
                row[place] += row[place - 1];
            }
        }
        Self { n, drawn }
    }

    /// Returns the mean of each resample, if the first `good` units are 1 and the others 0.
    fn means(&self, good: usize) -> impl Iterator<Item = i64> + '_ {
        let n = self.n as i64;
        self.drawn.chunks_exact(self.n + 1).map(move |row| (2 * i64::from(row[good]) * ONE + n).div_euclid(2 * n))
    }
}

/// The resamples of one look.
struct Look {
    k: u64,
    canary: Side,
    primary: Side,
}

impl Look {
    fn new(k: u64) -> Self {
        let (id, n) = (window().live_id(k), usize::try_from(units_of_look(k)).unwrap());
        let canary = Side::new(&format!("{id}|canary"), n);
        Self { k, canary, primary: Side::new(&format!("{id}|primary"), PRIMARY_TIMES * n) }
    }

    /// Returns the differences of all resamples, with so many good units on each side.
    fn differences(&self, canary: usize, primary: usize) -> impl Iterator<Item = i64> + '_ {
        self.canary.means(canary).zip(self.primary.means(primary)).map(|(one, other)| one - other)
    }

    fn bounds(&self, canary: usize, primary: usize) -> (i64, i64) {
        let mut sorted: Vec<i64> = self.differences(canary, primary).collect();
        sorted.sort_unstable();
        let tail = bound_index(self.k);
        (sorted[tail], sorted[RESAMPLES - 1 - tail])
    }

    /// Returns true if the look finds the canary worse in score: its upper bound is below the margin. That is so if no
    /// more resamples than the bound leaves out reach the margin, so most canaries are decided by a few of them.
    fn is_worse(&self, canary: usize, primary: usize) -> bool {
        let tail = bound_index(self.k);
        let reach = self.differences(canary, primary).filter(|difference| *difference >= -margin());
        reach.take(tail + 1).count() <= tail
    }

    /// Returns true if the look finds that the canary fails more often.
    fn fails_more(&self, canary: usize, primary: usize) -> bool {
        let tail = bound_index(self.k);
        let reach = self.differences(canary, primary).filter(|difference| *difference <= margin());
        reach.take(tail + 1).count() <= tail
    }

    /// Returns true if a look at the level of 5 % finds the canary worse, without a margin and whatever its number.
    fn is_worse_to_the_eager(&self, canary: usize, primary: usize) -> bool {
        let tail = RESAMPLES / 20;
        let reach = self.differences(canary, primary).filter(|difference| *difference >= 0);
        reach.take(tail + 1).count() <= tail
    }
}

fn margin() -> i64 {
    i64::try_from(GUARD_MARGIN_MICRO).unwrap()
}

fn at(second: usize) -> Timestamp {
    let begin: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
    begin.after(std::time::Duration::from_secs(second as u64))
}

fn window() -> LiveWindow {
    LiveWindow {
        signature_id: "@cantrip/text/Classify.v1".parse().unwrap(),
        audit_id: "aud_00000000000000000000000001".parse().unwrap(),
        since: at(0),
        first_version: 2,
        pointer_version: 2,
        canary: "art_81c1fe0d3fddf815ca1d64e85e6aa6fb".parse().unwrap(),
        primary: "art_fa314739a6ab692b5cd3d96708665e89".parse().unwrap(),
        percent: 33,
    }
}

/// Returns the number of good units among the first of each count, of a side with this chance in millionths.
fn good_units(label: &str, chance: u64, counts: &[usize]) -> Vec<usize> {
    let mut random = Random::new(label);
    let (mut good, mut drawn) = (0, 0);
    counts
        .iter()
        .map(|count| {
            while drawn < *count {
                good += usize::from(random.below(1_000_000) < chance);
                drawn += 1;
            }
            good
        })
        .collect()
}

/// Canaries and primaries with these chances of a good unit, in millionths, and what a look asks about them.
struct Scenario {
    canary: u64,
    primary: u64,
    finds: fn(&Look, usize, usize) -> bool,
}

/// Returns for each scenario the share of seeds in which one of the looks finds something.
fn shares(looks: u64, scenarios: &[Scenario]) -> Vec<f64> {
    let ours: Vec<usize> = (1..=looks).map(|k| usize::try_from(units_of_look(k)).unwrap()).collect();
    let theirs: Vec<usize> = ours.iter().map(|n| PRIMARY_TIMES * n).collect();
    let sample = |scenario: &Scenario, seed: u64| {
        let Scenario { canary, primary, .. } = scenario;
        let label = format!("canary|{canary}|{primary}|{seed}");
        (good_units(&format!("{label}|c"), *canary, &ours), good_units(&format!("{label}|p"), *primary, &theirs))
    };
    let samples: Vec<Vec<(Vec<usize>, Vec<usize>)>> =
        scenarios.iter().map(|scenario| (0..SEEDS).map(|seed| sample(scenario, seed)).collect()).collect();
    let mut found = vec![vec![false; usize::try_from(SEEDS).unwrap()]; scenarios.len()];
    for (place, k) in (1..=looks).enumerate() {
        let look = Look::new(k);
        for ((scenario, samples), found) in scenarios.iter().zip(&samples).zip(&mut found) {
            for ((ours, theirs), found) in samples.iter().zip(found) {
                *found = *found || (scenario.finds)(&look, ours[place], theirs[place]);
            }
        }
    }
    found.iter().map(|found| found.iter().filter(|found| **found).count() as f64 / SEEDS as f64).collect()
}

#[test]
fn the_counted_resamples_give_the_bounds_of_the_product() {
    let look = Look::new(1);
    for (ours, theirs) in [(20, 80), (45, 60), (50, 0)] {
        // Units are ordered by owner, so the good ones come first.
        let side = |side, n: usize, good: usize| {
            (0..n).map(move |number| LiveCall {
                side,
                owner: format!("user:{number:04}"),
                root_run: IdSource::seeded(1).next(at(1)),
                receipt_id: format!("rcpt_{number:032x}").parse().unwrap(),
                completed_at: at(if side == RolloutSide::Primary { 1 } else { 2 + number }),
                has_failed: false,
                score_micro: Some(if number < good { ONE } else { 0 }),
                currency: None,
                captured: 0,
                latency_ms: 1,
            })
        };
        let calls: Vec<LiveCall> =
            side(RolloutSide::Canary, 50, ours).chain(side(RolloutSide::Primary, 100, theirs)).collect();
        let made = look_at_units(&window(), 1, &calls, &live_units(&calls), GUARD_MARGIN_MICRO).unwrap();
        let delta = made.report.score.unwrap();
        assert_eq!((delta.look_low, delta.look_high), look.bounds(ours, theirs));
        assert_eq!(made.worse.is_some(), look.is_worse(ours, theirs));
    }
}

#[test]
fn a_canary_that_is_worse_by_three_tenths_is_removed_within_two_hundred_units() {
    assert_eq!(units_of_look(3), 200);
    let mut scenarios = Vec::new();
    for good in [500_000, 800_000, 950_000] {
        scenarios.push(Scenario { canary: good - 300_000, primary: good, finds: Look::is_worse });
        let failing = 1_000_000 - good;
        scenarios.push(Scenario { canary: failing + 300_000, primary: failing, finds: Look::fails_more });
    }
    let removed = shares(3, &scenarios);
    assert!(removed.iter().all(|share| *share >= 0.95), "{removed:?}");
}

#[test]
fn a_canary_that_is_as_good_is_seldom_removed_at_any_of_five_looks() {
    let mut scenarios = Vec::new();
    for chance in [100_000, 300_000, 500_000, 800_000, 950_000] {
        scenarios.push(Scenario { canary: chance, primary: chance, finds: Look::is_worse });
        scenarios.push(Scenario { canary: chance, primary: chance, finds: Look::fails_more });
    }
    scenarios.push(Scenario { canary: 500_000, primary: 500_000, finds: Look::is_worse_to_the_eager });
    let mut removed = shares(5, &scenarios);
    let eager = removed.pop().unwrap();
    assert!(removed.iter().all(|share| *share <= 0.05), "{removed:?}");
    // The test can fail: looks that all have the level of one find what is not there.
    assert!(eager > 0.05, "{eager}");
}
