//! The statistics of evaluations: every golden value, from the table that a second implementation reads too, and the
//! definitions that the fast paths must equal.

use cantrip_contract::{DeltaPart, EvalVerdict, IntervalMethod, LookPart, ScorePart};
use cantrip_ds::limits::{LOOKS_MAX, RESAMPLES};
use cantrip_ds::stats::{
    Bounds, JudgeCounts, Observation, Random, Resampled, Unit, bound_index, compare, detectable, flip_exceedances,
    flip_p_ppm, is_spent, level_ppm, mean, mean_of_epochs, rounded_quotient, score_interval, shuffle, sign_p_ppm,
    units, verdict, wilson,
};
use serde_json::{Value, json};

/// The goldens of the specification.
const TABLE: &str = include_str!("../../contract/tests/improve-goldens.json");

pub(crate) fn table() -> Value {
    serde_json::from_str(TABLE).unwrap()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("{value} is a whole number"))
}

fn units_of(pairs: &Value) -> Vec<Unit> {
    let unit = |pair: &Value| Unit { weight: number(&pair[0]).into(), weighted: number(&pair[1]).into() };
    pairs.as_array().unwrap().iter().map(unit).collect()
}

#[test]
fn the_random_numbers_of_a_label_are_the_published_ones() {
    let golden = &table()["random"];
    let label = golden["label"].as_str().unwrap();
    let mut random = Random::new(label);
    for next in golden["next"].as_array().unwrap() {
        assert_eq!(random.next_number().to_string(), next.as_str().unwrap());
    }
    let mut random = Random::new(label);
    let below: Vec<u64> = (0..8).map(|_| random.below(10)).collect();
    assert_eq!(json!(below), golden["below_10"]);
    let mut items: Vec<u64> = (0..8).collect();
    shuffle(label, &mut items);
    assert_eq!(json!(items), golden["shuffled_0_to_7"]);
    let order = &table()["order"];
    let mut items: Vec<u64> = order["items"].as_array().unwrap().iter().map(|item| item.as_u64().unwrap()).collect();
    shuffle(order["label"].as_str().unwrap(), &mut items);
    assert_eq!(json!(items), order["shuffled"]);
}

#[test]
fn a_number_below_a_bound_is_below_it_and_every_place_is_drawn() {
    let mut random = Random::new("places");
    let mut drawn = [0_u32; 7];
    for _ in 0..7_000 {
        drawn[random.index(7)] += 1;
    }
    assert!(drawn.iter().all(|count| (850..1_150).contains(count)), "{drawn:?}");
    assert_eq!((random.below(1), random.below(0)), (0, 0));
    assert!((0..1_000).all(|_| random.below(u64::MAX) < u64::MAX));
}

#[test]
fn the_intervals_are_the_published_ones() {
    for golden in table()["bootstrap"].as_array().unwrap() {
        let units = units_of(&golden["units"]);
        let bounds = Resampled::new(golden["label"].as_str().unwrap(), &units).unwrap().interval();
        assert_eq!(mean(&units), golden["delta"].as_i64());
        assert_eq!((bounds.low, bounds.high), (number(&golden["low"]), number(&golden["high"])), "{golden}");
    }
    for golden in table()["wilson"].as_array().unwrap() {
        let bounds = wilson(golden["right"].as_u64().unwrap(), golden["of"].as_u64().unwrap()).unwrap();
        assert_eq!((bounds.low, bounds.high), (number(&golden["low"]), number(&golden["high"])), "{golden}");
    }
    assert_eq!((wilson(0, 0), wilson(2, 1)), (None, None));
    assert_eq!(wilson(30, 30), Some(Bounds { low: 886_487, high: 1_000_000 }), "0 of 30, seen from the other side");
    for golden in table()["detectable"].as_array().unwrap() {
        let micro = detectable(golden["units"].as_u64().unwrap()).unwrap();
        assert_eq!(rounded_quotient(micro.into(), 1_000), i128::from(number(&golden["thousandths"])), "{golden}");
    }
    assert_eq!((detectable(20), detectable(0)), (Some(342_929), None));
}

#[test]
fn the_unpaired_interval_of_a_guard_is_the_published_one() {
    let golden = &table()["guard"];
    let side = |name: &str| -> Vec<Unit> {
        let count = |key: &str| golden[name][key].as_u64().unwrap();
        let unit = |place| Unit { weight: 1, weighted: if place < count("right") { 1_000_000 } else { 0 } };
        (0..count("of")).map(unit).collect()
    };
    let (canary, primary) = (side("canary"), side("primary"));
    let resampled = Resampled::unpaired(golden["id"].as_str().unwrap(), &canary, &primary).unwrap();
    let bounds = resampled.interval();
    assert_eq!(mean(&canary).unwrap() - mean(&primary).unwrap(), number(&golden["difference"]));
    assert_eq!((bounds.low, bounds.high), (number(&golden["low"]), number(&golden["high"])));
    assert_eq!(resampled.look(1), bounds, "the bounds of the first look are those of the 95 % interval");
    let later = resampled.look(2);
    assert!(later.low < bounds.low && later.high > bounds.high, "{later:?}");
    assert_eq!(Resampled::unpaired("golden|guard", &canary, &[]), None);
    assert_eq!(Resampled::unpaired("golden|guard", &[], &primary), None);
}

#[test]
fn the_tests_of_a_difference_are_the_published_ones() {
    let golden = &table()["flip"];
    let differences = golden["differences"].as_array().unwrap();
    let units: Vec<Unit> =
        differences.iter().map(|d| Unit { weight: 1, weighted: 1_000_000 * i128::from(number(d)) }).collect();
    let label = golden["label"].as_str().unwrap();
    assert_eq!(flip_exceedances(label, &units), golden["count"].as_u64().unwrap());
    assert_eq!(flip_p_ppm(label, &units), golden["p_ppm"].as_u64().unwrap());
    for golden in table()["sign"].as_array().unwrap() {
        let (wins, losses) = (golden["wins"].as_u64().unwrap(), golden["losses"].as_u64().unwrap());
        assert_eq!(sign_p_ppm(wins, losses), golden["p_ppm"].as_u64().unwrap(), "{golden}");
        assert_eq!(sign_p_ppm(losses, wins), golden["p_ppm"].as_u64().unwrap(), "two-sided");
    }
}

#[test]
fn the_sign_test_is_exact_for_every_small_count_and_bounded_for_large_ones() {
    for n in 0..=40_u64 {
        let mut row = vec![1_u128];
        for _ in 0..n {
            let next: Vec<u128> =
                (0..=row.len()).map(|i| row.get(i).unwrap_or(&0) + if i > 0 { row[i - 1] } else { 0 }).collect();
            row = next;
        }
        for wins in 0..=n {
            let most = usize::try_from(wins.max(n - wins)).unwrap();
            let tail: u128 = 2 * row[most..].iter().sum::<u128>();
            let exact = (tail * 1_000_000).div_ceil(1 << n).min(1_000_000);
            assert_eq!(u128::from(sign_p_ppm(wins, n - wins)), exact, "{wins} of {n}");
        }
    }
    assert_eq!(sign_p_ppm(2_000, 2_000), 1_000_000);
    // The normal approximation of 2,100 and 1,900 with a continuity correction is 0.00166.
    assert!((1_600..1_720).contains(&sign_p_ppm(2_100, 1_900)), "{}", sign_p_ppm(2_100, 1_900));
    assert_eq!(sign_p_ppm(3_000, 0), 1, "rounded up");
}

#[test]
fn the_levels_of_all_looks_together_are_five_percent() {
    let golden = &table()["looks"];
    let levels: Vec<u64> = (1..=5).map(level_ppm).collect();
    assert_eq!(json!(levels), golden["level_ppm"]);
    let indexes: Vec<usize> = (1..=20).map(bound_index).collect();
    assert_eq!(json!(indexes), golden["bound_index"]);
    assert!((1..=1_000).map(level_ppm).sum::<u64>() <= 50_000);
    // The least p-value of the flip test reaches the level of the last look.
    let least = 1_000_000_u64.div_ceil(RESAMPLES as u64 + 1);
    assert!(least <= level_ppm(LOOKS_MAX) && !is_spent(LOOKS_MAX) && is_spent(LOOKS_MAX + 1));
    let strong = Bounds { low: 1, high: 2 };
    assert_eq!(verdict(LOOKS_MAX, strong, least, 0), EvalVerdict::Better);
    assert_eq!(verdict(LOOKS_MAX + 1, strong, least, 0), EvalVerdict::Undecided, "the split is spent");
}

#[test]
fn better_and_worse_need_the_bounds_and_from_the_second_look_on_the_flip_test() {
    let (above, around, below) = (Bounds { low: 1, high: 9 }, Bounds { low: 0, high: 9 }, Bounds { low: -9, high: -1 });
    for (k, bounds, better, worse, wanted) in [
        (1, above, 999_999, 999_999, EvalVerdict::Better),
        (1, around, 1, 1, EvalVerdict::Undecided),
        (1, Bounds { low: -9, high: 0 }, 1, 1, EvalVerdict::Undecided),
        (1, below, 999_999, 999_999, EvalVerdict::Worse),
        (2, above, 8_333, 999_999, EvalVerdict::Better),
        (2, above, 8_334, 1, EvalVerdict::Undecided),
        (2, below, 999_999, 8_333, EvalVerdict::Worse),
        (2, below, 1, 8_334, EvalVerdict::Undecided),
    ] {
        assert_eq!(verdict(k, bounds, better, worse), wanted, "look {k}, {bounds:?}, {better}, {worse}");
    }
}

/// One example of the published report: its difference, and the scores of both sides. A tie is 1 and 1.
fn published() -> Vec<(String, i64, i64)> {
    let golden = &table()["report"];
    let differences = golden["differences"].as_array().unwrap();
    let example = |(n, difference): (usize, &Value)| {
        let (subject, baseline) = match number(difference) {
            1 => (1_000_000, 0),
            -1 => (0, 1_000_000),
            _ => (1_000_000, 1_000_000),
        };
        (format!("ex_{:02}", n + 1), subject, baseline)
    };
    differences.iter().enumerate().map(example).collect()
}

fn observed(id: &str, value_micro: i64) -> Observation<'_> {
    Observation { example_id: id, group: None, weight_micro: 1_000_000, value_micro }
}

#[test]
fn the_numbers_of_the_published_report_come_from_its_scores() {
    let golden = &table()["report"]["body"];
    let eval_id = golden["eval_id"].as_str().unwrap();
    let examples = published();
    let differences: Vec<Observation<'_>> = examples.iter().map(|(id, s, b)| observed(id, s - b)).collect();
    let found = compare(eval_id, &differences, Some(1)).unwrap();
    assert_eq!(json!(found.units), golden["units"]);
    assert_eq!(found.delta, serde_json::from_value::<DeltaPart>(golden["delta"].clone()).unwrap());
    assert_eq!(found.look, Some(serde_json::from_value::<LookPart>(golden["look"].clone()).unwrap()));
    assert_eq!(json!(found.verdict.unwrap().as_str()), golden["verdict"]);
    assert_eq!(json!(detectable(found.units)), golden["detectable"]);
    for (name, label, is_subject) in [("score", "score", true), ("baseline", "baseline", false)] {
        let side = |example: &(String, i64, i64)| if is_subject { example.1 } else { example.2 };
        let scores: Vec<Observation<'_>> = examples.iter().map(|example| observed(&example.0, side(example))).collect();
        let found = score_interval(&format!("{eval_id}|{label}"), &scores, 1).unwrap();
        assert_eq!(found, serde_json::from_value::<ScorePart>(golden[name].clone()).unwrap(), "{name}");
    }
    // On a split that is no test, nothing is said.
    let found = compare(eval_id, &differences, None).unwrap();
    assert_eq!((found.look, found.verdict), (None, None));
    assert_eq!(compare(eval_id, &[], Some(1)), None);
}

#[test]
fn worse_is_better_seen_from_the_other_side() {
    let ids: Vec<String> = (0..40).map(|n| format!("ex_{n:02}")).collect();
    let losses: Vec<Observation<'_>> =
        ids.iter().enumerate().map(|(n, id)| observed(id, if n < 20 { -1_000_000 } else { 0 })).collect();
    for k in [1, 2, 5] {
        assert_eq!(compare("eval_x", &losses, Some(k)).unwrap().verdict, Some(EvalVerdict::Worse), "look {k}");
        let wins: Vec<Observation<'_>> =
            losses.iter().map(|loss| Observation { value_micro: -loss.value_micro, ..*loss }).collect();
        assert_eq!(compare("eval_x", &wins, Some(k)).unwrap().verdict, Some(EvalVerdict::Better), "look {k}");
    }
}

#[test]
fn a_score_has_wilsons_interval_only_where_its_conditions_hold() {
    let ids: Vec<String> = (0..30).map(|n| format!("ex_{n:02}")).collect();
    let plain: Vec<Observation<'_>> = ids.iter().map(|id| observed(id, 1_000_000)).collect();
    let method = |scores: &[Observation<'_>], epochs| score_interval("e|score", scores, epochs).unwrap().method;
    assert_eq!(method(&plain, 1), IntervalMethod::Wilson);
    assert_eq!(method(&plain, 2), IntervalMethod::Bootstrap, "epochs");
    let change = |change: fn(&mut Observation<'_>)| {
        let mut scores = plain.clone();
        change(&mut scores[3]);
        method(&scores, 1)
    };
    assert_eq!(change(|score| score.value_micro = 0), IntervalMethod::Wilson);
    assert_eq!(change(|score| score.value_micro = 1), IntervalMethod::Bootstrap, "a score between 0 and 1");
    assert_eq!(change(|score| score.weight_micro = 2_000_000), IntervalMethod::Bootstrap, "weights");
    assert_eq!(change(|score| score.group = Some("g")), IntervalMethod::Bootstrap, "groups");
    let all = score_interval("e|score", &plain, 1).unwrap();
    assert_eq!((all.mean, all.low, all.high), (1_000_000, 886_487, 1_000_000), "30 of 30 leave doubt");
    assert_eq!(score_interval("e|score", &[], 1), None);
}

#[test]
fn the_examples_of_a_group_are_one_unit_and_the_order_of_rows_does_not_matter() {
    let row =
        |example_id, group, weight_micro, value_micro| Observation { example_id, group, weight_micro, value_micro };
    let mut rows = vec![
        row("b", Some("g"), 1_000_000, 1_000_000),
        row("a", None, 2_000_000, 500_000),
        row("d", Some("g"), 3_000_000, -1_000_000),
        // A group may have the name of an example.
        row("c", Some("a"), 1_000_000, 0),
    ];
    let wanted = vec![
        Unit { weight: 2_000_000, weighted: 1_000_000_000_000 },
        Unit { weight: 4_000_000, weighted: -2_000_000_000_000 },
        Unit { weight: 1_000_000, weighted: 0 },
    ];
    assert_eq!(units(&rows), wanted);
    for n in 0..24 {
        shuffle(&format!("rows|{n}"), &mut rows);
        assert_eq!(units(&rows), wanted);
    }
    assert_eq!(mean(&wanted), Some(-142_857));
    assert_eq!((mean_of_epochs(&[1, 2]), mean_of_epochs(&[-1, -2]), mean_of_epochs(&[])), (Some(2), Some(-1), None));
}

/// The definition of the bootstrap, word for word.
fn plain_bootstrap(label: &str, units: &[Unit]) -> Vec<i128> {
    let mut random = Random::new(label);
    let mut means: Vec<i128> = (0..RESAMPLES)
        .map(|_| {
            let drawn: Vec<Unit> = units.iter().map(|_| units[random.index(units.len())]).collect();
            let weighted: i128 = drawn.iter().map(|unit| unit.weighted).sum();
            let weight: i128 = drawn.iter().map(|unit| unit.weight).sum();
            (2 * weighted + weight).div_euclid(2 * weight)
        })
        .collect();
    means.sort_unstable();
    means
}

#[test]
fn a_fast_path_gives_the_bounds_of_the_definition() {
    for case in 0..6_u64 {
        let mut random = Random::new(&format!("definition|{case}"));
        let n = 3 + random.below(9);
        // Equal weights, other weights, and sums that need more than 64 bits.
        let scale: i128 = if case % 3 == 2 { 1 << 80 } else { 1 };
        let drawn = (0..n).map(|_| {
            let weight = if case % 3 == 0 { 7 } else { 1 + i128::from(random.below(5)) };
            let value = i128::from(random.below(2_000_001)) - 1_000_000;
            Unit { weight: weight * scale, weighted: weight * value * scale }
        });
        let units: Vec<Unit> = drawn.collect();
        let (found, wanted) = (Resampled::new("x", &units).unwrap(), plain_bootstrap("x", &units));
        for tail in [0, 1, 83, 250, 4_999] {
            let bounds = found.bounds(tail);
            let both = (i128::from(bounds.low), i128::from(bounds.high));
            assert_eq!(both, (wanted[tail], wanted[RESAMPLES - 1 - tail]), "case {case}");
        }
        // The flip test of the same differences, scaled beyond 64 bits.
        let small: Vec<Unit> = units.iter().map(|unit| Unit { weighted: unit.weighted / scale, ..*unit }).collect();
        let large: Vec<Unit> = small.iter().map(|unit| Unit { weighted: unit.weighted << 70, ..*unit }).collect();
        assert_eq!(flip_exceedances("y", &small), flip_exceedances("y", &large), "case {case}");
    }
    assert_eq!(Resampled::new("x", &[]), None);
    assert_eq!(Resampled::new("x", &[Unit { weight: 0, weighted: 0 }]), None);
}

#[test]
fn agreement_and_kappa_are_the_published_ones() {
    let golden = &table()["agreement"];
    let count = |name: &str| golden[name].as_u64().unwrap();
    let counts = JudgeCounts {
        both_good: count("both_good"),
        judge_alone: count("judge_alone"),
        human_alone: count("human_alone"),
        both_bad: count("both_bad"),
    };
    let found = counts.agreement().unwrap();
    assert_eq!(json!([found.agreement_micro, found.kappa_micro]), json!([golden["agreement"], golden["kappa"]]));
    let bounds = wilson(31, 40).unwrap();
    assert_eq!((found.n, found.agree, found.low_micro, found.high_micro), (40, 31, bounds.low, bounds.high));
    let mut counts = JudgeCounts::default();
    assert_eq!(counts.agreement(), None);
    for (score, good) in [(500_000, true), (499_999, true), (500_000, false), (0, false)] {
        counts.add(score, good);
    }
    assert_eq!(counts, JudgeCounts { both_good: 1, judge_alone: 1, human_alone: 1, both_bad: 1 });
    assert_eq!(counts.agreement().unwrap().kappa_micro, 0, "no better than chance");
    let one_sided = JudgeCounts { both_good: 30, ..JudgeCounts::default() };
    assert_eq!(one_sided.agreement().unwrap().kappa_micro, 0, "nothing can be shown");
    let opposed = JudgeCounts { judge_alone: 10, human_alone: 10, ..JudgeCounts::default() };
    assert_eq!(opposed.agreement().unwrap().kappa_micro, -1_000_000);
}
