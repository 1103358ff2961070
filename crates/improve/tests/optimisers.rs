//! The optimisers on scripted landscapes: published values, what each of them finds, and the properties that all of
//! them have.

use std::collections::BTreeSet;

use cantrip_contract::{Example, Split};
use cantrip_ds::job::{Ask, Proposal};
use cantrip_ds::stats::Random;
use cantrip_improve::compile::{
    Candidate, CombinationChooser, DemoSource, Strata, Tried, default_trials, draw_set, optimiser,
};
use serde_json::{Value, json};

use crate::landscape::{Landscape, RIGHT, Script, chance, example_id, tickets};

/// The published values, in the table that a second implementation reads too.
fn golden(part: &str) -> Value {
    let table: Value = serde_json::from_str(include_str!("../../contract/tests/improve-goldens.json")).unwrap();
    table[part].clone()
}

fn numbers(value: &Value) -> Vec<u64> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn drawn_sets_of_demos_are_the_published_ones() {
    let table = golden("demo_sets");
    let strata: Strata<u64> = serde_json::from_value(table["strata"].clone()).unwrap();
    let labelled = usize::try_from(table["labelled"].as_u64().unwrap()).unwrap();
    for (number, wanted) in (1..).zip(table["sets"].as_array().unwrap()) {
        let label = format!("{}|set|{number}", table["label"].as_str().unwrap());
        let drawn = draw_set(&label, &Strata::new(), &strata, 0, labelled);
        let items: Vec<u64> = drawn.iter().map(|(item, _)| *item).collect();
        assert_eq!(items, numbers(wanted), "{label}");
        assert!(drawn.iter().all(|(_, source)| *source == DemoSource::Labelled));
    }
}

#[test]
fn a_set_takes_from_the_teacher_first_and_nothing_twice() {
    let taught = Strata::from([("a".to_owned(), vec![1, 2]), ("b".to_owned(), vec![4])]);
    let labelled =
        Strata::from([("a".to_owned(), vec![1, 2, 3]), ("b".to_owned(), vec![4, 5]), ("c".to_owned(), vec![6])]);
    for number in 0..50 {
        let drawn = draw_set(&format!("any|{number}"), &taught, &labelled, 2, 3);
        let items: BTreeSet<u64> = drawn.iter().map(|(item, _)| *item).collect();
        assert_eq!(items.len(), 5, "{drawn:?}");
        let from_teacher = drawn.iter().filter(|(_, source)| *source == DemoSource::Taught).count();
        assert_eq!(from_teacher, 2, "{drawn:?}");
        // Each stratum has its turn before one has a second.
        assert!(items.contains(&6), "{drawn:?}");
    }
    assert_eq!(draw_set("any", &taught, &Strata::new(), 9, 9).len(), 3, "a pool may be smaller than what is wanted");
}

/// Follows a chooser on a table of scores, and returns what was tried.
fn choose(label: &str, sizes: [usize; 2], trials: u64, score: impl Fn(usize, usize) -> u64) -> Vec<Tried> {
    let chooser = CombinationChooser::new(&format!("{label}|grid"), &sizes, trials);
    let mut tried = vec![Tried { combination: vec![0, 0], mean: Some(score(0, 0)) }];
    for trial in 2..=trials {
        let Some(combination) = chooser.next(&tried, trial) else { break };
        let mean = Some(score(combination[0], combination[1]));
        tried.push(Tried { combination, mean });
    }
    tried
}

/// The first of the best combinations.
fn best(tried: &[Tried]) -> &[usize] {
    let greatest = tried.iter().map(|one| one.mean).max().unwrap();
    &tried.iter().find(|one| one.mean == greatest).unwrap().combination
}

#[test]
fn the_path_of_mipro_lite_is_the_published_one() {
    let table = golden("mipro");
    let (texts, sets) = (numbers(&table["texts"]), numbers(&table["demo_sets"]));
    let start = table["start"].as_u64().unwrap();
    let trials = table["trials"].as_u64().unwrap();
    let label = table["label"].as_str().unwrap();
    let tried = choose(label, [texts.len(), sets.len()], trials, |text, set| start + texts[text] + sets[set]);
    let path: Vec<&[usize]> = tried.iter().map(|one| one.combination.as_slice()).collect();
    assert_eq!(json!(path), table["path"]);
    assert_eq!(json!(best(&tried)), table["winner"]);
}

#[test]
fn the_default_number_of_trials_grows_with_the_values() {
    assert_eq!(default_trials(&[6, 8, 1]), 12);
    assert_eq!(default_trials(&[4, 4]), 8);
    assert_eq!(default_trials(&[6, 9, 3]), 24);
    assert_eq!(default_trials(&[1, 1, 2]), 3);
}

#[test]
fn mipro_lite_finds_the_optimum_of_additive_landscapes() {
    let mut found = 0;
    for number in 0..200 {
        let label = format!("landscape|{number}");
        let mut random = Random::new(&label);
        let texts: Vec<u64> = (0..6).map(|_| random.below(100_000)).collect();
        let sets: Vec<u64> = (0..8).map(|_| random.below(100_000)).collect();
        let tried = choose(&label, [6, 8], 12, |text, set| 400_000 + texts[text] + sets[set]);
        assert_eq!(tried.len(), 12);
        let winner = best(&tried);
        let is_optimum =
            texts.iter().all(|one| *one <= texts[winner[0]]) && sets.iter().all(|one| *one <= sets[winner[1]]);
        found += u64::from(is_optimum);
    }
    assert!(found >= 90, "{found} of 200");
}

#[test]
fn mipro_lite_is_no_worse_than_random_choice_where_one_combination_is_good() {
    let mut found = 0;
    for number in 0..2_000 {
        let label = format!("needle|{number}");
        let mut random = Random::new(&label);
        let needle = [random.index(6), random.index(8)];
        let tried = choose(&label, [6, 8], 12, |text, set| if [text, set] == needle { RIGHT } else { 400_000 });
        found += u64::from(best(&tried) == needle);
    }
    // Random choice finds a quarter, 500; 468 is the lower end of what chance makes of that, at 5 %.
    assert!(found >= 468, "{found} of 2000");
}

/// The score of a candidate without what is needed: a third of the examples is right.
fn base_score(example: &Example) -> Option<u64> {
    Some(if chance(&["base", example.id.as_str()], 3) == 0 { RIGHT } else { 0 })
}

fn has_demo(candidate: &Candidate, number: usize) -> Option<usize> {
    let wanted = format!("train ticket {number} ");
    let text = |demo: &cantrip_contract::Demo| demo.input["text"].as_str().unwrap_or_default().to_owned();
    candidate.content.demos().iter().position(|demo| text(demo).starts_with(&wanted))
}

#[test]
fn a_needed_demo_is_found_by_every_optimiser_that_draws_sets() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| match (has_demo(candidate, 5), example.split) {
        (Some(_), _) => Some(RIGHT),
        (None, Split::Train) => Some(0),
        (None, Split::Holdout | Split::Test) => base_score(example),
    };
    for name in ["bootstrap_demos.v1", "instruction_grid.v1", "mipro_lite.v1"] {
        for seed in 0..16 {
            let landscape = Landscape::new(&format!("seed {seed}"), name, &json!({}), &dataset, false);
            let followed = landscape.follow(&Script::new(&score));
            assert!(has_demo(followed.winner(), 5).is_some(), "{name}, seed {seed}");
            assert_eq!(followed.winner().holdout_micro, Some(RIGHT), "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_needed_order_of_two_demos_is_found_because_the_order_is_part_of_a_candidate() {
    let dataset = tickets(4, 12, 5);
    let is_ordered = |candidate: &Candidate| match (has_demo(candidate, 2), has_demo(candidate, 0)) {
        (Some(first), Some(second)) => first < second,
        (Some(_) | None, Some(_) | None) => false,
    };
    let score = |candidate: &Candidate, example: &Example| {
        let is_right = is_ordered(candidate) && example.split == Split::Holdout;
        Some(if is_right { RIGHT } else { 0 })
    };
    for name in ["bootstrap_demos.v1", "instruction_grid.v1", "mipro_lite.v1"] {
        for seed in 0..20 {
            let landscape = Landscape::new(&format!("seed {seed}"), name, &json!({}), &dataset, false);
            let followed = landscape.follow(&Script::new(&score));
            assert!(is_ordered(followed.winner()), "{name}, seed {seed}");
        }
    }
}

#[test]
fn a_needed_word_is_found_among_given_and_proposed_texts() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| {
        let has_word = candidate.built.artifact().unwrap().instructions().contains("politely");
        if has_word { Some(RIGHT) } else { base_score(example) }
    };
    let given = json!({"texts": ["Choose.", "Choose politely.", "Choose at once."]});
    let proposed = |proposal: &Proposal| {
        if proposal.number == 3 { "Answer politely.".to_owned() } else { format!("Answer {}.", proposal.number) }
    };
    for name in ["instruction_grid.v1", "mipro_lite.v1"] {
        let landscape = Landscape::new("seed 1", name, &given, &dataset, false);
        let followed = landscape.follow(&Script::new(&score));
        assert!(followed.winner().built.artifact().unwrap().instructions().contains("politely"), "{name}");
        let landscape = Landscape::new("seed 1", name, &json!({}), &dataset, true);
        let followed = landscape.follow(&Script::new(&score).texts(&proposed));
        let winner = followed.winner();
        assert_eq!(winner.built.artifact().unwrap().instructions(), "Answer politely.", "{name}");
        assert_eq!(winner.proposal, Some(3), "{name}");
        assert!(followed.walk.proposals.accepted >= 1, "{name}");
        assert_eq!(followed.walk.proposals.rejected.len(), 0, "{name}");
    }
}

#[test]
fn a_needed_hint_is_found_where_hints_are_searched() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| {
        let is_right = candidate.content.hints().get("/label").is_some_and(|hint| hint.contains("lower case"));
        if is_right { Some(RIGHT) } else { base_score(example) }
    };
    let proposed = |proposal: &Proposal| {
        assert_eq!(proposal.component, "hints");
        match proposal.number {
            2 => "Notes for you:\n- /label: in lower case\n- /mood: calm".to_owned(),
            3 => "no line names a field".to_owned(),
            4 => "- /label: in lower case".to_owned(),
            number => format!("/label: advice {number}"),
        }
    };
    for name in ["instruction_grid.v1", "mipro_lite.v1"] {
        let landscape = Landscape::new("seed 1", name, &json!({"slots": ["hints"]}), &dataset, true);
        let followed = landscape.follow(&Script::new(&score).texts(&proposed));
        let instructions = followed.winner().built.artifact().unwrap().instructions().to_owned();
        assert_eq!(instructions, "Choose a team.\n\nNotes:\n- /label: in lower case\n", "{name}");
        let rejected = &followed.walk.proposals.rejected;
        assert_eq!((rejected.get("empty"), rejected.get("known")), (Some(&1), Some(&1)), "{name}: {rejected:?}");
    }
}

#[test]
fn a_needed_decoding_is_found_among_those_that_are_given() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| {
        if candidate.content.params().temperature == Some(0.5) { Some(RIGHT) } else { base_score(example) }
    };
    let given = json!({"decoding": [{"temperature": 0.1}, {"temperature": 0.5}], "slots": ["decoding"]});
    for name in ["instruction_grid.v1", "mipro_lite.v1"] {
        let landscape = Landscape::new("seed 1", name, &given, &dataset, false);
        let followed = landscape.follow(&Script::new(&score));
        assert_eq!(followed.winner().content.params().temperature, Some(0.5), "{name}");
        assert_eq!(followed.walk.candidates.len(), 3, "{name}");
    }
}

#[test]
fn nothing_better_leaves_the_base() {
    let dataset = tickets(8, 12, 5);
    // The answers stay the same with any demos.
    let score = |_: &Candidate, example: &Example| base_score(example);
    for name in ["bootstrap_demos.v1", "instruction_grid.v1", "mipro_lite.v1"] {
        let landscape = Landscape::new("seed 1", name, &json!({}), &dataset, false);
        let followed = landscape.follow(&Script::new(&score));
        assert_eq!(followed.winner().ordinal, 0, "{name}: equal means, and the base has no demos");
    }
}

#[test]
fn the_teacher_teaches_until_the_sets_have_enough_and_is_never_chosen() {
    let dataset = tickets(40, 12, 5);
    let is_teacher = |candidate: &Candidate| candidate.content.params().model.as_deref() == Some("scripted/teacher");
    let score = |candidate: &Candidate, example: &Example| {
        // Two of three answers of the teacher are right, and demos help a little.
        if is_teacher(candidate) {
            return Some(if chance(&["taught", example.id.as_str()], 3) > 0 { RIGHT } else { 0 });
        }
        if candidate.content.demos().is_empty() { Some(0) } else { base_score(example) }
    };
    let given = json!({"teacher": "scripted/teacher", "candidates": 2, "bootstrapped": 3, "labelled": 0});
    let landscape = Landscape::new("seed 1", "bootstrap_demos.v1", &given, &dataset, false);
    let followed = landscape.follow(&Script::new(&score));
    let teacher = followed.walk.candidates.iter().find(|candidate| candidate.op == "teacher").unwrap();
    assert!(is_teacher(teacher) && teacher.decision.as_ref().is_some_and(|decision| !decision.accepted));
    let taught: Vec<_> = followed.trials().into_iter().filter(|trial| trial.split == Split::Train).collect();
    assert!(taught.iter().all(|trial| trial.candidate_id == teacher.id));
    let right = |trial: &&&cantrip_ds::job::Trial| chance(&["taught", trial.example_id.as_str()], 3) > 0;
    assert_eq!(taught.iter().filter(right).count(), 6, "enough for two sets of three, and no trial more");
    assert!(taught.last().is_some_and(|last| chance(&["taught", last.example_id.as_str()], 3) > 0));
    // A demo is an answer of the teacher that was right, and the winner does not run on the teacher's model.
    assert_eq!(followed.winner().content.demos().len(), 3);
    assert!(!is_teacher(followed.winner()));
}

#[test]
fn ties_go_to_the_cheaper_then_to_fewer_demos_then_to_the_earlier() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| {
        if candidate.ordinal == 0 { base_score(example) } else { Some(RIGHT) }
    };
    let landscape = Landscape::new("seed 1", "bootstrap_demos.v1", &json!({}), &dataset, false);
    let followed = landscape.follow(&Script::new(&score));
    assert_eq!(followed.winner().ordinal, 1, "the earlier of equals");
    let cost = |candidate: &Candidate| if candidate.ordinal == 4 { 10 } else { 11 };
    let followed = landscape.follow(&Script::new(&score).costs(&cost));
    assert_eq!(followed.winner().ordinal, 4, "the cheaper of equals");
}

#[test]
fn a_candidate_whose_trials_failed_cannot_win() {
    let dataset = tickets(8, 40, 5);
    for (failures, wins) in [(2, true), (3, false)] {
        let score = |candidate: &Candidate, example: &Example| {
            let number = (0..40).find(|number| example_id(Split::Holdout, *number) == example.id);
            match (candidate.ordinal, number) {
                (3, Some(number)) if number < failures => None,
                (3, _) => Some(RIGHT),
                (_, _) => base_score(example),
            }
        };
        let landscape = Landscape::new("seed 1", "bootstrap_demos.v1", &json!({}), &dataset, false);
        let followed = landscape.follow(&Script::new(&score));
        assert_eq!(followed.winner().ordinal == 3, wins, "{failures} of 40 trials failed");
    }
}

#[test]
fn more_than_64_combinations_climb_by_rungs() {
    let dataset = tickets(8, 40, 5);
    let texts: Vec<String> = (1..=69).map(|number| format!("Choose in way {number}.")).collect();
    let landscape =
        Landscape::new("seed 1", "instruction_grid.v1", &json!({"texts": texts, "cross": 0}), &dataset, false);
    // A text is right on as many examples as its number says.
    let score = |candidate: &Candidate, example: &Example| {
        let instructions = candidate.built.artifact().unwrap().instructions();
        let way: u64 = instructions.trim_end_matches('.').rsplit(' ').next().unwrap().parse().unwrap_or(0);
        Some(if chance(&["rung", example.id.as_str()], 100) < way { RIGHT } else { 0 })
    };
    let followed = landscape.follow(&Script::new(&score));
    let sizes: Vec<usize> =
        followed.steps.iter().map(|step| if let Ask::Try(trials) = &step.ask { trials.len() } else { 0 }).collect();
    assert_eq!(sizes, [70 * 10, 35 * 10, 18 * 20]);
    let dropped = followed.walk.candidates.iter().filter(|candidate| {
        candidate.decision.as_ref().is_some_and(|decision| decision.reason.as_deref() == Some("rung"))
    });
    assert_eq!(dropped.count(), 52);
    let winner = followed.winner();
    let most = followed.walk.candidates.iter().filter_map(|candidate| candidate.holdout_micro).max();
    assert_eq!(winner.holdout_micro, most);
    let worst = optimiser("instruction_grid.v1").unwrap().worst(landscape.options(), landscape.sizes());
    assert_eq!(worst.trials, 70 * 10 + 35 * 10 + 18 * 20 + 2 * 5);
}

#[test]
fn options_are_filled_in_read_strictly_and_old_names_are_known() {
    let dataset = tickets(8, 12, 5);
    let cases = [
        ("bootstrap_fewshot", "bootstrap_demos.v1", json!({"candidates": 3}), false),
        ("instruction_search", "instruction_grid.v1", json!({"proposals": 2}), true),
        ("mipro_lite.v1", "mipro_lite.v1", json!({}), true),
        ("gepa", "gepa.v1", json!({"minibatch": 4}), true),
    ];
    for (name, id, given, reflects) in cases {
        assert_eq!(optimiser(name).unwrap().id(), id);
        let filled = Landscape::new("any", name, &given, &dataset, reflects).options().clone();
        for (key, value) in given.as_object().unwrap() {
            assert_eq!(filled[key], *value, "{name}");
        }
        // Options that are filled in are read as they are.
        assert_eq!(*Landscape::new("any", name, &filled, &dataset, reflects).options(), filled, "{name}");
        assert_eq!(filled["slots"], json!(["instructions", "hints", "demos", "decoding"]), "{name}");
    }
    assert!(optimiser("bootstrap_demos.v2").is_err());
}

#[test]
fn wrong_options_are_refused() {
    let base = || {
        let signature = std::sync::Arc::new(crate::landscape::triage());
        let artifact = Box::new(signature.base_artifact());
        cantrip_improve::compile::SearchBase::Artifact { signature, artifact }
    };
    let refused = [
        ("bootstrap_demos.v1", json!({"candidates": 0}), false),
        ("bootstrap_demos.v1", json!({"candidates": "many"}), false),
        ("bootstrap_demos.v1", json!({"candidate": 3}), false),
        ("bootstrap_demos.v1", json!({"bootstrapped": 10, "labelled": 10}), false),
        ("bootstrap_demos.v1", json!({"threshold": 1_000_001}), false),
        ("bootstrap_demos.v1", json!({"slots": ["instructions"]}), false),
        ("bootstrap_demos.v1", json!({"slots": ["call"]}), false),
        ("bootstrap_demos.v1", json!({"slots": []}), false),
        ("instruction_grid.v1", json!({"proposals": 3}), false),
        ("instruction_grid.v1", json!({"texts": "Choose."}), false),
        ("instruction_grid.v1", json!({"slots": ["decoding"], "texts": ["Choose."]}), false),
        ("mipro_lite.v1", json!({"instructions": 4}), false),
        ("mipro_lite.v1", json!({"decoding": [{"heat": 1}]}), false),
        ("mipro_lite.v1", json!({"slots": ["instructions"]}), false),
        ("mipro_lite.v1", json!({"full_every": 0}), true),
        ("mipro_lite.v1", json!([]), true),
    ];
    for (name, given, reflects) in refused {
        let filled = cantrip_improve::compile::optimiser_spec(name, &given, base(), reflects);
        assert!(filled.is_err(), "{name}: {given}");
    }
}

#[test]
fn the_plan_of_each_optimiser_is_the_published_bound() {
    // 66 train, 39 holdout and 55 test examples, as the measured dataset had.
    let dataset = tickets(66, 39, 55);
    let worst = |name: &str, given: Value, reflects: bool| {
        Landscape::new("any", name, &given, &dataset, reflects).search.worst(None)
    };
    let bootstrap = worst("bootstrap_demos.v1", json!({}), false);
    assert_eq!((bootstrap.trials, bootstrap.proposals), (66 + 9 * 39 + 2 * 55, 0));
    let labelled = worst("bootstrap_demos.v1", json!({"bootstrapped": 0}), false);
    assert_eq!(labelled.trials, 9 * 39 + 2 * 55, "without answers of a teacher nothing is tried on train");
    // Nine texts, each with one set of demos; the set comes from a pass of eight.
    let grid = worst("instruction_grid.v1", json!({}), true);
    assert_eq!((grid.trials, grid.proposals), (66 + 9 * 39 + 9 * 39 + 2 * 55, 8));
    let plain = worst("instruction_grid.v1", json!({"cross": 0}), true);
    assert_eq!(plain.trials, 9 * 39 + 2 * 55);
    // Six texts and eight sets need 12 trials; the best is completed after each fifth and at the end.
    let mipro = worst("mipro_lite.v1", json!({}), true);
    assert_eq!((mipro.trials, mipro.proposals), (66 + 39 + 12 * 25 + 3 * 39 + 2 * 55, 5));
}

#[test]
fn the_curve_has_the_best_mean_after_each_improvement() {
    let dataset = tickets(8, 12, 5);
    let score = |candidate: &Candidate, example: &Example| match candidate.ordinal {
        0 => Some(0),
        3 => base_score(example),
        5 => Some(RIGHT),
        _ => Some(0),
    };
    let given = json!({"bootstrapped": 0});
    let landscape = Landscape::new("seed 1", "bootstrap_demos.v1", &given, &dataset, false);
    let followed = landscape.follow(&Script::new(&score));
    let third = followed.walk.candidates[3].holdout_micro.unwrap();
    assert_eq!(followed.walk.curve, [(12, 0), (4 * 12, third), (6 * 12, RIGHT)]);
    assert_eq!(followed.winner().ordinal, 5);
    // A budget that ends the search after the fourth candidate leaves the best so far.
    let early = landscape.search.walk(&landscape.after(&followed.steps[..4]));
    assert_eq!(early.candidate(&early.best).unwrap().ordinal, 3);
    let none = landscape.search.walk(&landscape.empty());
    assert_eq!(none.candidate(&none.best).unwrap().ordinal, 0);
}
