//! Simulated evaluations: how often do equal artifacts come out as better, how often is a true difference found, and
//! how often do the intervals hold the truth?
//!
//! The random numbers of a bootstrap depend on its label alone. So the resamples of one label and size are drawn once
//! here, as counts: with the wins of an evaluation first, then its losses, then its ties, the sum of a resample is
//! the number of draws among the first places less the number among the next. The bounds are those of the product,
//! byte for byte, which a test compares; a thousand evaluations take no longer than a few. The long form uses eight
//! labels in turn, leaves out no evaluation, and has larger samples.

use std::collections::HashMap;

use cantrip_contract::EvalVerdict;
use cantrip_ds::limits::{RESAMPLE_TAIL, RESAMPLES};
use cantrip_ds::stats::{
    Bounds, Observation, Random, Resampled, Unit, bound_index, compare, level_ppm, rounded_quotient, verdict, wilson,
};

const ONE: u64 = 1_000_000;

/// True in the long form, which `./test.sh --long` asks for.
fn is_long() -> bool {
    std::env::var_os("CANTRIP_SIMULATIONS").is_some()
}

/// The resamples and the sign flips of one label, as sums over the first places.
struct Resamples {
    n: usize,
    label: String,
    /// For each resample and each place, the number of draws before this place.
    drawn: Vec<u16>,
    /// For each flip and each place, the sum of the signs before this place.
    signs: Vec<i16>,
    known: HashMap<(usize, usize), Resampling>,
}

/// The sums of all resamples for one number of wins and losses.
#[derive(Clone)]
struct Resampling {
    /// The number of resamples with each sum, from `-n` to `n`.
    sums: Vec<usize>,
    flip_exceedances: u64,
}

impl Resamples {
    fn new(n: usize, label: String) -> Self {
        let width = n + 1;
        let mut random = Random::new(&label);
        let mut drawn = vec![0_u16; RESAMPLES * width];
        for row in drawn.chunks_exact_mut(width) {
            for _ in 0..n {
                row[random.index(n) + 1] += 1;
            }
            for place in 1..width {
                row[place] += row[place - 1];
            }
        }
        let mut random = Random::new(&format!("{label}|flip"));
        let mut signs = vec![0_i16; RESAMPLES * width];
        for row in signs.chunks_exact_mut(width) {
            for place in 1..width {
                row[place] = row[place - 1] + if random.next_number() & 1 == 1 { 1 } else { -1 };
            }
        }
        Self { n, label, drawn, signs, known: HashMap::new() }
    }

    fn of(&mut self, wins: usize, losses: usize) -> &Resampling {
        let (n, width, both) = (self.n, self.n + 1, wins + losses);
        let (drawn, signs) = (&self.drawn, &self.signs);
        self.known.entry((wins, losses)).or_insert_with(|| {
            let mut sums = vec![0; 2 * n + 1];
            for row in drawn.chunks_exact(width) {
                sums[n + 2 * usize::from(row[wins]) - usize::from(row[both])] += 1;
            }
            let total = wins as i32 - losses as i32;
            let reaches = |row: &[i16]| 2 * i32::from(row[wins]) - i32::from(row[both]) >= total;
            let flip_exceedances = signs.chunks_exact(width).filter(|row| reaches(row)).count() as u64;
            Resampling { sums, flip_exceedances }
        })
    }

    /// Returns the bounds that leave `tail` resamples out on each side.
    fn bounds(&mut self, wins: usize, losses: usize, tail: usize) -> Bounds {
        let n = self.n as i128;
        let sums = &self.of(wins, losses).sums;
        let at = |rank: usize| {
            let mut below = 0;
            let place = sums.iter().position(|count| {
                below += count;
                below > rank
            });
            i64::try_from(rounded_quotient((place.unwrap() as i128 - n) * i128::from(ONE), n)).unwrap()
        };
        Bounds { low: at(tail), high: at(RESAMPLES - 1 - tail) }
    }

    fn flip_p_ppm(&mut self, wins: usize, losses: usize) -> u64 {
        ((1 + self.of(wins, losses).flip_exceedances) * ONE).div_ceil(RESAMPLES as u64 + 1)
    }

    /// Returns true if look `k` finds the subject better.
    fn is_better(&mut self, (wins, losses): (usize, usize), k: u64) -> bool {
        if !is_long() && is_hopeless(wins, losses) {
            return false;
        }
        let bounds = self.bounds(wins, losses, bound_index(k));
        let flip_p = self.flip_p_ppm(wins, losses);
        verdict(k, bounds, flip_p, ONE) == EvalVerdict::Better
    }
}

/// Returns true if a difference is so far from significant that the short form does not compute its bounds.
fn is_hopeless(wins: usize, losses: usize) -> bool {
    wins <= losses || (wins - losses).pow(2) < 2 * (wins + losses)
}

/// The resamples of one size: of one label, or of eight in the long form.
struct Simulation(Vec<Resamples>);

impl Simulation {
    fn new(n: usize) -> Self {
        let labels = if is_long() { 8 } else { 1 };
        let label =
            |number: u64| if number == 0 { format!("simulation|{n}") } else { format!("simulation|{n}|{number}") };
        Self((0..labels).map(|number| Resamples::new(n, label(number))).collect())
    }

    fn of(&mut self, seed: u64) -> &mut Resamples {
        let labels = self.0.len() as u64;
        &mut self.0[usize::try_from(seed % labels).unwrap()]
    }
}

/// Draws the wins and losses of one evaluation. The chances are in millionths.
fn draw(label: &str, n: usize, win: u64, loss: u64) -> (usize, usize) {
    let mut random = Random::new(label);
    let (mut wins, mut losses) = (0, 0);
    for _ in 0..n {
        let drawn = random.below(ONE);
        if drawn < win {
            wins += 1;
        } else if drawn < win + loss {
            losses += 1;
        }
    }
    (wins, losses)
}

#[test]
fn the_counted_resamples_give_the_numbers_of_the_product() {
    for n in [30, 55] {
        let mut counted = Resamples::new(n, format!("simulation|{n}"));
        let ids: Vec<String> = (0..n).map(|place| format!("ex_{place:03}")).collect();
        for (wins, losses) in [(0, 0), (5, 0), (9, 2), (12, 4), (2, 9), (13, 17)] {
            let value = |place: usize| match place {
                place if place < wins => 1_000_000,
                place if place < wins + losses => -1_000_000,
                _ => 0,
            };
            let differences: Vec<Observation<'_>> = ids
                .iter()
                .enumerate()
                .map(|(place, id)| Observation {
                    example_id: id,
                    group: None,
                    weight_micro: 1_000_000,
                    value_micro: value(place),
                })
                .collect();
            for k in [1, 2, 5] {
                let found = compare(&counted.label, &differences, Some(k)).unwrap();
                let look = found.look.unwrap();
                let bounds = counted.bounds(wins, losses, bound_index(k));
                assert_eq!((look.low, look.high), (bounds.low, bounds.high), "{wins}, {losses} of {n}, look {k}");
                assert_eq!(look.level_ppm, level_ppm(k));
                let interval = counted.bounds(wins, losses, RESAMPLE_TAIL);
                assert_eq!((found.delta.low, found.delta.high), (interval.low, interval.high));
                assert_eq!(found.delta.flip_p_ppm, counted.flip_p_ppm(wins, losses), "{wins}, {losses} of {n}");
                assert_eq!(found.verdict == Some(EvalVerdict::Better), counted.is_better((wins, losses), k));
            }
        }
        // The greatest differences that the short form leaves out are not significant.
        for both in [3, 5, 9, 15, 20, 27, 30] {
            let wins = (0..=both).filter(|wins| is_hopeless(*wins, both - wins)).max().unwrap();
            let bounds = counted.bounds(wins, both - wins, RESAMPLE_TAIL);
            assert!(bounds.low < 0, "{wins} of {both}: {bounds:?}");
        }
    }
}

#[test]
fn equal_artifacts_are_seldom_called_better_at_one_look_or_at_any_of_five() {
    for n in [30, 55, 200] {
        let mut simulation = Simulation::new(n);
        for noise in [100_000, 200_000, 300_000, 500_000] {
            let (mut at_first, mut at_any) = (0, 0);
            for seed in 0..1_000 {
                let mut is_better = |k: u64| {
                    let drawn = draw(&format!("equal|{n}|{noise}|{seed}|{k}"), n, noise / 2, noise / 2);
                    simulation.of(seed).is_better(drawn, k)
                };
                let looks = [1, 2, 3, 4, 5].map(&mut is_better);
                at_first += u64::from(looks[0]);
                at_any += u64::from(looks.contains(&true));
            }
            assert!(at_first <= 50 && at_any <= 50, "n {n}, noise {noise}: {at_first} and {at_any} of 1,000");
            assert!(at_first > 0, "n {n}, noise {noise}: a level of 2.5 % is used");
        }
    }
}

/// Returns true if the subject of these units is better at the first look. The short form leaves out differences below
/// 1.6 standard errors, which are not significant.
fn is_better_at_first(label: &str, units: &[Unit]) -> bool {
    let total: i128 = units.iter().map(|unit| unit.weighted).sum();
    let squares: i128 = units.iter().map(|unit| unit.weighted * unit.weighted).sum();
    if !is_long() && (total <= 0 || total * total * 100 < 256 * squares) {
        return false;
    }
    Resampled::new(label, units).unwrap().look(1).low > 0
}

#[test]
fn continuous_noise_does_not_make_equal_artifacts_better() {
    let sizes: &[usize] = if is_long() { &[30, 55, 200] } else { &[30] };
    for &n in sizes {
        let better = (0..1_000).filter(|seed| {
            let label = format!("continuous|{n}|{seed}");
            let mut random = Random::new(&label);
            let mut score = || i128::from(random.below(ONE + 1));
            let units: Vec<Unit> = (0..n).map(|_| Unit { weight: 1, weighted: score() - score() }).collect();
            is_better_at_first(&format!("{label}|eval"), &units)
        });
        let better = better.count();
        assert!((1..=50).contains(&better), "n {n}: {better} of 1,000");
    }
}

#[test]
fn weights_do_not_make_equal_artifacts_better() {
    let seeds = if is_long() { 1_000 } else { 400 };
    let better = (0..seeds).filter(|seed| {
        let label = format!("weights|{seed}");
        let mut random = Random::new(&label);
        let unit = |_: usize| {
            let weight = 1 + i128::from(random.below(5));
            let drawn = random.below(ONE);
            let value = if drawn < 150_000 {
                1
            } else if drawn < 300_000 {
                -1
            } else {
                0
            };
            Unit { weight, weighted: weight * value * i128::from(ONE) }
        };
        let units: Vec<Unit> = (0..55).map(unit).collect();
        is_better_at_first(&format!("{label}|eval"), &units)
    });
    let better = better.count();
    assert!((1..=seeds / 20).contains(&better), "{better} of {seeds}");
}

#[test]
fn examples_of_one_group_are_one_unit_and_counted_one_by_one_they_would_mislead() {
    let mut one_by_one = Simulation::new(200);
    let (mut by_group, mut by_example) = (0, 0);
    for seed in 0..1_000_u64 {
        let label = format!("groups|{seed}");
        let mut random = Random::new(&label);
        let difference = |random: &mut Random| match random.below(ONE) {
            0..150_000 => 1,
            150_000..300_000 => -1,
            _ => 0_i128,
        };
        let (mut units, mut wins, mut losses) = (Vec::new(), 0, 0);
        for _ in 0..40 {
            // Four of five examples of a group share its difference.
            let shared = difference(&mut random);
            let mut sum = 0;
            for _ in 0..5 {
                let one = if random.below(ONE) < 800_000 { shared } else { difference(&mut random) };
                sum += one;
                wins += usize::from(one > 0);
                losses += usize::from(one < 0);
            }
            units.push(Unit { weight: 5, weighted: sum * i128::from(ONE) });
        }
        by_group += u64::from(is_better_at_first(&format!("{label}|eval"), &units));
        by_example += u64::from(one_by_one.of(seed).is_better((wins, losses), 1));
    }
    assert!((1..=50).contains(&by_group), "{by_group} of 1,000 by group");
    assert!(by_example > 100, "{by_example} of 1,000 by example: units matter");
}

#[test]
fn the_best_of_eight_equal_candidates_on_holdout_is_not_better_on_test() {
    let mut simulation = Simulation::new(55);
    let mut better = 0;
    for seed in 0..1_000_u64 {
        let on_holdout = |candidate: u64| {
            let (wins, losses) = draw(&format!("holdout|{seed}|{candidate}"), 40, 150_000, 150_000);
            wins as i64 - losses as i64
        };
        // The highest mean, then the earlier.
        let mut chosen = 0;
        for candidate in 1..8 {
            if on_holdout(candidate) > on_holdout(chosen) {
                chosen = candidate;
            }
        }
        let on_test = draw(&format!("chosen|{seed}|{chosen}"), 55, 150_000, 150_000);
        better += u64::from(simulation.of(seed).is_better(on_test, 1));
    }
    assert!((1..=50).contains(&better), "{better} of 1,000");
}

#[test]
fn a_difference_of_a_fifth_shows_in_two_hundred_examples() {
    let mut simulation = Simulation::new(200);
    let found = (0..1_000).filter(|seed| {
        let drawn = draw(&format!("true|{seed}"), 200, 250_000, 50_000);
        simulation.of(*seed).is_better(drawn, 1)
    });
    let found = found.count();
    assert!(found >= 800, "{found} of 1,000");
}

#[test]
fn both_intervals_hold_the_truth_in_about_ninety_five_of_a_hundred_evaluations() {
    for n in [55, 200] {
        let mut simulation = Simulation::new(n);
        let (mut of_delta, mut of_score) = (0, 0);
        for seed in 0..2_000 {
            // 30 % of the examples differ, and the true difference is 0.06.
            let label = format!("coverage|{n}|{seed}");
            let (wins, losses) = draw(&label, n, 180_000, 120_000);
            let delta = simulation.of(seed).bounds(wins, losses, RESAMPLE_TAIL);
            of_delta += u64::from((delta.low..=delta.high).contains(&60_000));
            let (right, _) = draw(&format!("{label}|score"), n, 600_000, 0);
            let score = wilson(right as u64, n as u64).unwrap();
            of_score += u64::from((score.low..=score.high).contains(&600_000));
        }
        for (name, held) in [("difference", of_delta), ("score", of_score)] {
            assert!((1_840..=1_960).contains(&held), "n {n}: the interval of the {name} held {held} of 2,000");
        }
    }
}
