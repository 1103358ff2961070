//! The parts of `gepa.v1` one by one: front, parents, minibatches, merges and bounds.

use cantrip::reply::codes;
use cantrip_ds::stats::Random;
use cantrip_improve::compile::gepa::{
    FrontMember, GepaOptions, MergePair, MergeSide, Minibatches, ScoreRow, draw_parent, epoch_order, front,
    merge_examples, merge_pairs, merge_side,
};
use cantrip_improve::compile::{Gepa, Optimiser, Sizes};
use cantrip_improve::limits::GEPA_MERGE_EXAMPLES;
use cantrip_reply::testing::assert_code;
use serde_json::json;

use crate::support::replied;

const PERFECT: u64 = 1_000_000;

/// Reads a row of scores: `1` is right, `0` wrong, and `-` has no score.
fn row(scores: &str) -> ScoreRow {
    let score = |letter: char| match letter {
        '1' => Some(PERFECT),
        '0' => Some(0),
        _ => None,
    };
    scores.chars().map(score).collect()
}

fn rows(scores: &[&str]) -> Vec<ScoreRow> {
    scores.iter().map(|scores| row(scores)).collect()
}

fn mean(row: &[Option<u64>]) -> u64 {
    let scored: Vec<u64> = row.iter().flatten().copied().collect();
    scored.iter().sum::<u64>() / (scored.len() as u64).max(1)
}

fn means(rows: &[ScoreRow]) -> Vec<u64> {
    rows.iter().map(|row| mean(row)).collect()
}

fn member(candidate: usize, weight: u64) -> FrontMember {
    FrontMember { candidate, weight }
}

#[test]
fn the_front_and_its_parent_are_those_of_the_golden() {
    let scores = rows(&["1000", "0110", "1100", "0011"]);
    let found = front(&scores, &means(&scores));
    assert_eq!(found, [member(2, 2), member(3, 2)]);
    // The draw is 3 of 4: the first two belong to candidate 2.
    assert_eq!(draw_parent(&found, "golden|1|parent"), Some(3));
}

#[test]
fn of_equal_candidates_the_earlier_stays_and_examples_without_a_score_count_for_none() {
    let equal = rows(&["10", "10", "10"]);
    assert_eq!(front(&equal, &means(&equal)), [member(0, 2)]);
    let gaps = rows(&["1-", "-1", "--"]);
    assert_eq!(front(&gaps, &means(&gaps)), [member(0, 1), member(1, 1)]);
    let none = rows(&["--", "--"]);
    assert_eq!(front(&none, &means(&none)), []);
    assert_eq!(draw_parent(&[], "golden|1|parent"), None);
}

/// Returns a random matrix of scores.
fn random_scores(random: &mut Random) -> Vec<ScoreRow> {
    let (candidates, examples) = (1 + random.index(8), 1 + random.index(12));
    let score = |random: &mut Random| match random.below(5) {
        0 => None,
        step => Some((step - 1) * 250_000),
    };
    (0..candidates).map(|_| (0..examples).map(|_| score(random)).collect()).collect()
}

/// Returns the best score on an example.
fn best_of<'s>(rows: impl Iterator<Item = &'s ScoreRow>, example: usize) -> Option<u64> {
    rows.filter_map(|row| row[example]).max()
}

#[test]
fn on_every_example_a_member_of_the_front_is_as_good_as_any_candidate() {
    let mut random = Random::new("front|property");
    for _ in 0..2_000 {
        let scores = random_scores(&mut random);
        let found = front(&scores, &means(&scores));
        let examples = scores[0].len();
        for example in 0..examples {
            let of_all = best_of(scores.iter(), example);
            let of_front = best_of(found.iter().map(|member| &scores[member.candidate]), example);
            assert_eq!(of_all, of_front, "{scores:?} {found:?}");
        }
        // No member can be left out: each is the only one of the front that is best somewhere.
        for left_out in &found {
            let others = || found.iter().filter(|member| *member != left_out).map(|member| &scores[member.candidate]);
            let is_needed = (0..examples).any(|example| {
                let own = scores[left_out.candidate][example];
                own.is_some() && own == best_of(scores.iter(), example) && own != best_of(others(), example)
            });
            assert!(is_needed, "{left_out:?} of {found:?} in {scores:?}");
        }
    }
}

#[test]
fn parents_are_drawn_by_their_weights() {
    let found = [member(4, 1), member(7, 3)];
    let drawn = (0..4_000).filter(|draw| draw_parent(&found, &format!("weights|{draw}")) == Some(7)).count();
    assert!((2_850..=3_150).contains(&drawn), "{drawn} of 4,000, and 3,000 were expected");
}

#[test]
fn minibatches_walk_a_shuffle_of_each_epoch() {
    // `ex_5, ex_2, ex_1, ex_7, ex_6, ex_3, ex_8, ex_4` by their places.
    assert_eq!(epoch_order("golden|epoch", 0, 8), [4, 1, 0, 6, 5, 2, 7, 3]);
    let mut batches = Minibatches::new("golden|epoch", 8, 3);
    let walked: Vec<Vec<usize>> = (0..6).map(|_| batches.take_next()).collect();
    // The third one is filled from the next epoch, whose first two examples are in it already.
    assert_eq!(walked, [vec![4, 1, 0], vec![6, 5, 2], vec![7, 3, 6], vec![5, 2, 0], vec![4, 1, 3], vec![2, 7, 4]]);
    let mut small = Minibatches::new("golden|epoch", 2, 3);
    assert_eq!(small.take_next().len(), 2, "a train split of two makes minibatches of two");
    assert_eq!(Minibatches::new("golden|epoch", 0, 3).take_next(), Vec::<usize>::new());
}

#[test]
fn two_branches_of_a_common_ancestor_are_a_pair_and_an_ancestor_and_its_child_are_not() {
    // 0 has the children 1 and 2, and 2 has the child 3.
    let parents = [vec![], vec![0], vec![0], vec![2]];
    let all = [member(0, 1), member(1, 1), member(2, 1), member(3, 1)];
    let pairs = merge_pairs(&all, &parents, &[100, 300, 200, 400]);
    let pair = |first, second, ancestor| MergePair { first, second, ancestor };
    assert_eq!(pairs, [pair(1, 3, 0), pair(1, 2, 0)], "the higher sum of means first");
    // An ancestor that scores better than one of the two is none for them.
    assert_eq!(merge_pairs(&all, &parents, &[250, 300, 200, 400]), [pair(1, 3, 0)]);
    assert_eq!(merge_pairs(&all[..1], &parents, &[100, 300, 200, 400]), []);
    // A merge of 1 and 2 has both as ancestors, and 5, a child of the merge, has the latest one in common with 4.
    let merged = [vec![], vec![0], vec![0], vec![1, 2], vec![3], vec![3]];
    let ends = [member(4, 1), member(5, 1)];
    assert_eq!(merge_pairs(&ends, &merged, &[1, 2, 2, 3, 4, 4]), [pair(4, 5, 3)]);
    assert_eq!(merge_pairs(&ends, &merged, &[1, 2, 3, 9, 4, 4]), [pair(4, 5, 2)], "3 scores better than both");
}

#[test]
fn a_merge_is_tried_where_either_parent_is_better_and_where_they_are_equal() {
    let (first, second) = (row("1111000001"), row("0000111101"));
    assert_eq!(merge_examples(&first, &second, "golden|1|merge"), [3, 6, 9, 0, 7]);
    // Where one list is short, the others fill its places.
    assert_eq!(merge_examples(&row("111111"), &row("011111"), "golden|1|merge"), [0, 3, 1, 5, 4]);
    assert_eq!(merge_examples(&row("1-0"), &row("-11"), "golden|1|merge"), [2], "both must have a score");
    let mut random = Random::new("merge|property");
    for number in 0..500 {
        let scores = random_scores(&mut random);
        let (first, second) = (&scores[0], &scores[scores.len() - 1]);
        let drawn = merge_examples(first, second, &format!("merge|{number}"));
        let able = (0..first.len()).filter(|place| first[*place].is_some() && second[*place].is_some()).count();
        assert_eq!(drawn.len(), able.min(GEPA_MERGE_EXAMPLES));
        assert!(drawn.iter().all(|place| first[*place].is_some() && second[*place].is_some()));
        assert!((1..drawn.len()).all(|place| !drawn[..place].contains(&drawn[place])), "none is drawn twice");
    }
}

#[test]
fn a_merge_takes_each_slot_from_the_side_that_changed_it() {
    let side = |ancestor, first, second| merge_side(&ancestor, first, second);
    assert_eq!(side("a", (&"a", 1), (&"b", 1)), MergeSide::Second);
    assert_eq!(side("a", (&"b", 1), (&"a", 9)), MergeSide::First, "only the first side changed it");
    assert_eq!(side("a", (&"b", 1), (&"c", 2)), MergeSide::Second, "both did, and the second has the higher mean");
    assert_eq!(side("a", (&"b", 2), (&"c", 2)), MergeSide::First, "of equal means the earlier candidate");
    assert_eq!(side("a", (&"a", 1), (&"a", 2)), MergeSide::First);
}

#[test]
fn the_worst_is_what_the_plan_says() {
    let options = GepaOptions::default();
    // h + iterations x proposals x (2 x minibatch + h) + merges x (5 + h) + 2e.
    assert_eq!(options.trials_at_worst(41, 63), 41 + 100 * (6 + 41) + 5 * (5 + 41) + 126);
    assert_eq!(options.proposals_at_worst(), 100);
    let filled = json!({"minibatch": 3, "patience": 20, "merges": 5, "max_iterations": 2, "proposals": 4});
    let sizes = Sizes { train: 96, holdout: 41, test: 63, max_calls: None };
    let worst = Gepa.worst(&filled, sizes);
    assert_eq!((worst.trials, worst.proposals), (41 + 8 * 47 + 5 * 46 + 126, 8));
    assert_eq!(Gepa.worst(&json!({}), sizes).trials, 1_000, "the default bound");
    assert_eq!(Gepa.worst(&json!({}), Sizes { max_calls: Some(900), ..sizes }).trials, 900);
}

#[tokio::test]
async fn fewer_trials_than_three_steps_are_refused_with_the_minimum() {
    // holdout + 3 x (2 x minibatch + holdout) + 2 x test.
    let floor = 41 + 3 * (6 + 41) + 2 * 63;
    assert_eq!(GepaOptions::default().floor(41, 63), floor);
    let sizes = Sizes { train: 96, holdout: 41, test: 63, max_calls: Some(floor) };
    Gepa.check_bounds(&json!({}), sizes).unwrap();
    let few = Sizes { max_calls: Some(floor - 1), ..sizes };
    let reply = replied(Gepa.check_bounds(&json!({}), few).unwrap_err()).await;
    assert_code(&reply, codes::LIMIT);
    assert_eq!((&reply.data()["limit"], &reply.data()["minimum"]), (&json!(floor), &json!(floor)));
    // The default of 1,000 trials is no search on large splits.
    let large = Sizes { train: 96, holdout: 300, test: 300, max_calls: None };
    let reply = replied(Gepa.check_bounds(&json!({}), large).unwrap_err()).await;
    assert_code(&reply, codes::LIMIT);
    assert_eq!((&reply.data()["actual"], &reply.data()["minimum"]), (&json!(1_000), &json!(300 + 3 * 306 + 600)));
}
