//! Properties that every optimiser has, on landscapes of chance: its path is a pure function of what was recorded, its
//! plan is a bound, and nothing of holdout or test reaches a candidate.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantrip_contract::{CandidateId, Dataset, Example, ExampleId, Split};
use cantrip_ds::job::{Ask, Proposal};
use cantrip_ds::stats;
use cantrip_improve::compile::{Candidate, ReflectionRequest, Walk};
use serde_json::{Value, json};

use crate::landscape::{Followed, Landscape, RIGHT, Script, Step, chance, tickets};

/// Each optimiser with options that keep the tests short, and whether it reflects.
fn cases() -> Vec<(&'static str, Value, bool)> {
    let decoding = json!([{"temperature": 0.2}, {"temperature": 0.9}]);
    vec![
        ("bootstrap_demos.v1", json!({"candidates": 4}), false),
        ("bootstrap_demos.v1", json!({"candidates": 3, "teacher": "scripted/teacher", "balance": false}), false),
        ("instruction_grid.v1", json!({"proposals": 3, "texts": ["Choose well."], "decoding": decoding}), true),
        ("instruction_grid.v1", json!({"proposals": 64, "cross": 0, "decoding": decoding}), true),
        ("mipro_lite.v1", json!({"minibatch": 4, "full_every": 3, "decoding": decoding}), true),
        ("mipro_lite.v1", json!({"trials": 5, "minibatch": 2, "texts": ["Choose well."]}), false),
        ("gepa.v1", json!({"max_iterations": 12, "patience": 6}), true),
        ("gepa.v1", json!({"max_iterations": 6, "proposals": 3, "merges": 2}), true),
    ]
}

/// The score of a candidate on an example: a chance that depends on both, and one in forty without a score.
fn random_score(label: &str) -> impl Fn(&Candidate, &Example) -> Option<u64> {
    let label = label.to_owned();
    move |candidate, example| {
        let parts = [label.as_str(), candidate.id.as_str(), example.id.as_str()];
        if chance(&[&parts[..], &["fails"][..]].concat(), 40) == 0 {
            return None;
        }
        // A candidate has a strength of its own, so that some are better on the whole.
        let strength = chance(&[label.as_str(), candidate.id.as_str()], 100);
        Some(if chance(&parts, 100) < strength { RIGHT } else { 0 })
    }
}

/// The text of a proposal. Some are empty, and some are equal.
fn text_of(proposal: &Proposal) -> String {
    match proposal.number % 5 {
        0 => "  ".to_owned(),
        1 => "Choose the team that fits best.".to_owned(),
        _ => format!("- /label: as in case {0}\nRead it {0} times, then choose.", proposal.number),
    }
}

/// A search of an optimiser on tickets, followed to its end.
fn followed(case: &(&str, Value, bool), seed: u64) -> (Landscape, Followed) {
    let (name, given, reflects) = case;
    let landscape = Landscape::new(&format!("chance {seed}"), name, given, &tickets(9, 7, 3), *reflects);
    let label = format!("{name}|{seed}");
    let score = random_score(&label);
    let cost = |candidate: &Candidate| chance(&["cost", candidate.id.as_str()], 3);
    let followed = landscape.follow(&Script::new(&score).texts(&text_of).costs(&cost));
    (landscape, followed)
}

fn ids(walk: &Walk) -> Vec<&CandidateId> {
    walk.candidates.iter().map(|candidate| &candidate.id).collect()
}

#[test]
fn the_path_under_a_small_budget_is_the_beginning_of_the_path_under_a_larger_one() {
    for case in cases() {
        for seed in 0..4 {
            let (landscape, followed) = followed(&case, seed);
            for (number, step) in followed.steps.iter().enumerate() {
                // A job that ended after any Ask has the rows of those before it.
                let walk = landscape.search.walk(&landscape.after(&followed.steps[..number]));
                assert_eq!(walk.ask, step.ask, "{case:?}, seed {seed}, Ask {number}");
                assert_eq!(ids(&walk), ids(&followed.walk)[..walk.candidates.len()], "{case:?}, seed {seed}");
                for (early, late) in walk.candidates.iter().zip(&followed.walk.candidates) {
                    // A decision is final, and so is what its row says.
                    if early.decision.is_some() {
                        assert_eq!(early, late, "{case:?}, seed {seed}, Ask {number}");
                    }
                }
                assert_eq!(walk.curve, followed.walk.curve[..walk.curve.len()], "{case:?}, seed {seed}");
                assert!(walk.candidate(&walk.best).is_some());
            }
            let state = landscape.after(&followed.steps);
            assert_eq!(landscape.search.walk(&state), followed.walk, "{case:?}: the same state, the same path");
        }
    }
}

#[test]
fn the_order_in_which_results_come_in_changes_nothing() {
    for case in cases() {
        let (landscape, followed) = followed(&case, 11);
        for (number, step) in followed.steps.iter().enumerate() {
            let mut rows = step.rows.clone();
            stats::shuffle(&format!("order {number}"), &mut rows);
            let mut state = landscape.after(&followed.steps[..number]);
            for (row, facts) in &rows {
                // As long as a result is missing, the same Ask is returned.
                assert_eq!(landscape.search.next(&state), step.ask, "{case:?}, Ask {number}");
                state.add_result(row.clone());
                state.add_facts(row, facts.clone());
            }
        }
    }
}

#[test]
fn rows_of_later_steps_and_of_the_final_test_are_not_seen() {
    for case in cases() {
        let (landscape, followed) = followed(&case, 5);
        let mut state = landscape.after(&followed.steps);
        let winner = &followed.winner().id;
        for example in landscape.dataset.split(Split::Test) {
            let mut row = followed.steps.iter().flat_map(|step| &step.rows).next().unwrap().0.clone();
            row.candidate_id = winner.clone();
            row.example_id = example.id.clone();
            row.split = Split::Test;
            row.score_micro = Some(0);
            row.unscored = None;
            state.add_result(row);
        }
        assert_eq!(landscape.search.walk(&state), followed.walk, "{case:?}");
    }
}

#[test]
fn no_search_makes_more_trials_or_proposals_than_its_plan_says() {
    for case in cases() {
        for seed in 20..28 {
            let (landscape, followed) = followed(&case, seed);
            let worst = landscape.search.worst(None);
            let made = followed.trials().len() as u64 + 2 * landscape.sizes().test;
            let proposed = followed.proposals().len() as u64;
            assert!(made <= worst.trials, "{case:?}, seed {seed}: {made} trials of {}", worst.trials);
            assert!(proposed <= worst.proposals, "{case:?}, seed {seed}: {proposed} proposals of {}", worst.proposals);
        }
    }
}

/// The inputs of all examples that are not on train.
fn hidden_inputs(dataset: &Arc<Dataset>) -> BTreeSet<String> {
    let hidden = dataset.split(Split::Holdout).chain(dataset.split(Split::Test));
    hidden.map(|example| example.input["text"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn no_demo_and_no_reflection_is_of_holdout_or_test_and_no_trial_is_of_test() {
    for case in cases() {
        for seed in 30..34 {
            let (landscape, followed) = followed(&case, seed);
            let hidden = hidden_inputs(&landscape.dataset);
            for candidate in &followed.walk.candidates {
                let written = json!(candidate.content.demos()).to_string();
                assert!(!hidden.iter().any(|input| written.contains(input.as_str())), "{case:?}: {written}");
            }
            let train: BTreeSet<&ExampleId> =
                landscape.dataset.split(Split::Train).map(|example| &example.id).collect();
            for proposal in followed.proposals() {
                let request = ReflectionRequest::from_value(&proposal.input).unwrap();
                assert!(request.cases.iter().all(|one| train.contains(&one.example_id)), "{case:?}: {request:?}");
            }
            assert!(followed.trials().iter().all(|trial| trial.split != Split::Test), "{case:?}");
        }
    }
}

#[test]
fn a_trial_is_asked_for_once_and_every_candidate_is_one() {
    for case in cases() {
        let (_, followed) = followed(&case, 40);
        let trials = followed.trials();
        let distinct: BTreeSet<_> = trials.iter().collect();
        assert_eq!(distinct.len(), trials.len(), "{case:?}");
        assert_eq!(followed.walk.trials, trials.len() as u64, "{case:?}");
        let candidates: BTreeSet<&CandidateId> = ids(&followed.walk).into_iter().collect();
        assert_eq!(candidates.len(), followed.walk.candidates.len(), "{case:?}");
        for (ordinal, candidate) in (0..).zip(&followed.walk.candidates) {
            assert_eq!(candidate.ordinal, ordinal, "{case:?}");
            assert_eq!(candidate.built.id(), candidate.id, "{case:?}");
            assert!(candidate.decision.is_some(), "{case:?}: nothing is undecided at the end");
            let known: Vec<&CandidateId> = ids(&followed.walk)[..candidate.ordinal as usize].to_vec();
            assert!(candidate.parents.iter().all(|parent| known.contains(&parent)), "{case:?}");
            assert_eq!(candidate.parents.is_empty(), candidate.ordinal == 0, "{case:?}");
        }
    }
}

#[test]
fn the_winner_has_the_best_mean_of_those_that_were_tried_on_all_of_holdout() {
    for case in cases() {
        for seed in 50..54 {
            let (_, followed) = followed(&case, seed);
            let winner = followed.winner();
            // Scores fail once in forty here, and a candidate with a failed trial of seven cannot win.
            let failed = |candidate: &Candidate| {
                let rows = followed.steps.iter().flat_map(|step| &step.rows);
                let mut own = rows.filter(|(row, _)| row.candidate_id == candidate.id && row.split == Split::Holdout);
                own.any(|(row, _)| row.score_micro.is_none())
            };
            let able = followed.walk.candidates.iter().filter(|candidate| {
                candidate.decision.as_ref().is_some_and(|decision| decision.accepted)
                    && (candidate.ordinal == 0 || !failed(candidate))
            });
            let best = able.filter_map(|candidate| candidate.holdout_micro).max();
            assert_eq!(winner.holdout_micro, best, "{case:?}, seed {seed}");
            assert_eq!(followed.walk.best, winner.id, "{case:?}, seed {seed}");
        }
    }
}

#[test]
fn another_label_of_randomness_is_another_path() {
    for case in cases().into_iter().take(1) {
        let paths: BTreeMap<String, u64> = (60..66)
            .map(|seed| (format!("{:?}", followed(&case, seed).1.steps.iter().map(asked).collect::<Vec<_>>()), seed))
            .collect();
        assert!(paths.len() > 1, "{case:?}");
    }
}

/// The examples that an Ask names, in order.
fn asked(step: &Step) -> Vec<String> {
    match &step.ask {
        Ask::Try(trials) => trials.iter().map(|trial| trial.example_id.to_string()).collect(),
        Ask::Propose(_) | Ask::Done(_) => Vec::new(),
    }
}
