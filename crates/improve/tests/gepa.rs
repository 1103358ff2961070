//! `gepa.v1` on landscapes: a program scores the candidates and answers the reflections, and no model is asked.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantrip::canon::{Hash, JobId, Timestamp, bytes_hash};
use cantrip_contract::{
    COMPILER_VERSION, Dataset, Example, ExampleResultRow, ExampleSource, JobKind, JobModels, JobSpec, Labels,
    Signature, SourceKind, Split, SplitShares, Subject, Unscored, Weight,
};
use cantrip_ds::job::{Ask, JobState, Proposed, Trial};
use cantrip_ds::stats::{self, Random};
use cantrip_improve::compile::{
    Candidate, Content, Gepa, Ground, Optimiser, ReflectionRequest, Search, Slot, Space, Walk,
};
use serde_json::{Value, json};

const PERFECT: u64 = 1_000_000;

/// The labels of the searches that are made of one landscape.
const LABELS: [&str; 8] = ["golden", "golden2", "a", "b", "c", "d", "e", "f"];

fn signature() -> Arc<Signature> {
    let text = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
    let label = json!({"type": "object", "required": ["label"], "properties": {"label": {"type": "string"}}});
    let built = Signature::builder("@me/text", "Label", 1)
        .description("Pick one label.")
        .instructions("Choose.")
        .system("{{ instructions }}")
        .user("{{ inputs.text | fence('text') }}")
        .input(text)
        .output(label)
        .build();
    Arc::new(built.unwrap())
}

fn example(id: &str, split: Split) -> Example {
    Example {
        id: id.parse().unwrap(),
        input: json!({"text": format!("the text of {id}")}),
        expected: Some(json!({"label": id})),
        labels: Labels::default(),
        weight: Weight::ONE,
        group: None,
        reward: None,
        split,
        source: ExampleSource { kind: SourceKind::File, id: "landscape.jsonl".to_owned(), line: None },
    }
}

/// Returns so many examples of each split: `tr_00`, `ho_00`, `te_00` and so on.
fn dataset(train: usize, holdout: usize) -> Arc<Dataset> {
    let of = |prefix: &'static str, split: Split, count: usize| {
        (0..count).map(move |number| example(&format!("{prefix}_{number:02}"), split))
    };
    let examples: Vec<Example> = of("tr", Split::Train, train)
        .chain(of("ho", Split::Holdout, holdout))
        .chain(of("te", Split::Test, 5))
        .collect();
    let shares = SplitShares::new(60, 20, 20).unwrap();
    let subject = Subject::Signature(signature().id().clone());
    Arc::new(Dataset::from_stored(subject, shares, "default".parse().unwrap(), examples).unwrap())
}

/// Returns the number in the id of an example.
fn number(example: &Example) -> usize {
    example.id.as_str()[3..].parse().unwrap()
}

/// The score of a candidate on an example; none if the infrastructure fails.
type Score = Box<dyn Fn(&Content, &Example) -> Option<u64>>;
/// The answer to a reflection about a candidate; the reason if there is none.
type Reflect = Box<dyn Fn(&ReflectionRequest, &Content) -> Result<String, String>>;

/// A landscape, and a search of it.
struct Landscape {
    search: Search,
    score: Score,
    reflect: Reflect,
}

/// A search that has ended.
struct Explored {
    walk: Walk,
    /// The digests of the Asks in their order.
    asks: Vec<Hash>,
    trials: Vec<Trial>,
    requests: Vec<ReflectionRequest>,
}

impl Explored {
    fn winner(&self) -> &Candidate {
        self.walk.candidate(&self.walk.best).unwrap()
    }

    fn rejected(&self, reason: &str) -> u64 {
        self.walk.proposals.rejected.get(reason).copied().unwrap_or(0)
    }
}

/// How results come in.
enum Arrival<'a> {
    /// All of an Ask at once.
    Together,
    /// One by one in an order that chance decides.
    Shuffled(&'a mut Random),
}

impl Landscape {
    fn new(
        label: &str,
        options: &Value,
        slots: &[Slot],
        sizes: (usize, usize),
        score: impl Fn(&Content, &Example) -> Option<u64> + 'static,
        reflect: impl Fn(&ReflectionRequest, &Content) -> Result<String, String> + 'static,
    ) -> Self {
        let space = Space::of_artifact(signature(), signature().base_artifact()).reflecting(true);
        let space = space.narrowed(slots).unwrap();
        let filled = Gepa.options(options, &space).unwrap();
        let ground = Ground::new(label, filled, space, dataset(sizes.0, sizes.1), None);
        let search = Search::of_parts(Arc::new(Gepa), ground);
        Self { search, score: Box::new(score), reflect: Box::new(reflect) }
    }

    fn job(&self) -> JobState {
        let space = self.search.space();
        let spec = JobSpec {
            kind: JobKind::Compile,
            of: space.subject(),
            hashes: None,
            dataset_hash: bytes_hash(b"landscape"),
            base: Some(space.base_id()),
            subject: None,
            baseline: None,
            split: Split::Test,
            metric: json!({}),
            optimiser: None,
            models: JobModels::default(),
            epochs: 1,
            seed: "default".to_owned(),
            compiler_version: COMPILER_VERSION.to_owned(),
            rerun: 0,
        };
        let hash = spec.job_hash();
        JobState::new(spec, hash)
    }

    fn result(&self, walk: &Walk, trial: &Trial) -> ExampleResultRow {
        let candidate = walk.candidate(&trial.candidate_id).expect("a candidate is made before it is tried");
        let example = self.search.ground().dataset().example(&trial.example_id).unwrap();
        let score_micro = (self.score)(&candidate.content, example);
        ExampleResultRow {
            job_id: JobId::from_bytes([7; 16]),
            candidate_id: trial.candidate_id.clone(),
            example_id: trial.example_id.clone(),
            epoch: trial.epoch,
            split: trial.split,
            score_micro,
            unscored: score_micro.is_none().then_some(Unscored::Infrastructure),
            own_failure: false,
            feedback_hash: bytes_hash(b"\"\""),
            receipt_id: None,
            judge_receipts: Vec::new(),
            try_number: 1,
            at: Timestamp::EPOCH,
        }
    }

    fn answer(&self, walk: &Walk, number: u64, request: &ReflectionRequest) -> Proposed {
        let parent = request.cases[0].candidate_id.as_ref().expect("gepa reflects on trials");
        let answer = (self.reflect)(request, &walk.candidate(parent).unwrap().content);
        let (text, rejected) = match answer {
            Ok(text) => (text, None),
            Err(reason) => (String::new(), Some(reason)),
        };
        Proposed { number, component: request.component.clone(), text, receipt_id: None, rejected }
    }

    fn explore(&self) -> Explored {
        self.explore_with(Arrival::Together)
    }

    /// Follows the search to its end.
    fn explore_with(&self, mut arrival: Arrival<'_>) -> Explored {
        let mut job = self.job();
        let (mut asks, mut tried, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            let walk = self.search.walk(&job);
            asks.push(walk.ask.digest().unwrap());
            match &walk.ask {
                Ask::Done(winner) => {
                    assert_eq!(winner.as_ref(), Some(&walk.best));
                    return Explored { walk, asks, trials: tried, requests };
                }
                Ask::Try(trials) => {
                    let mut order: Vec<&Trial> = trials.iter().collect();
                    if let Arrival::Shuffled(random) = &mut arrival {
                        random.shuffle(&mut order);
                    }
                    for (place, trial) in order.into_iter().enumerate() {
                        assert!(job.result(trial).is_none(), "a trial is asked for once");
                        // Looking after every result would take long: the first one and the last one that misses do.
                        let is_looked_at = place == 1 || place + 1 == trials.len();
                        if let (Arrival::Shuffled(_), true) = (&arrival, is_looked_at) {
                            assert_eq!(self.search.next(&job), walk.ask, "an Ask stays until all of it is answered");
                        }
                        job.add_result(self.result(&walk, trial));
                        tried.push(trial.clone());
                    }
                }
                Ask::Propose(proposals) => {
                    for proposal in proposals {
                        let request = ReflectionRequest::from_value(&proposal.input).unwrap();
                        job.add_proposal(self.answer(&walk, proposal.number, &request));
                        requests.push(request);
                    }
                }
            }
        }
    }
}

fn right_if(right: bool) -> Option<u64> {
    Some(if right { PERFECT } else { 0 })
}

fn all_slots() -> [Slot; 3] {
    [Slot::Instructions, Slot::Hints, Slot::Demos]
}

/// Returns true if a demo of the candidate is the train example with this number.
fn has_demo(content: &Content, number: usize) -> bool {
    demo_place(content, number).is_some()
}

/// Returns the place of the train example with this number among the demos.
fn demo_place(content: &Content, number: usize) -> Option<usize> {
    let input = example(&format!("tr_{number:02}"), Split::Train).input;
    content.demos().iter().position(|demo| demo.input == input)
}

#[test]
fn two_candidates_that_each_solve_a_part_are_merged_into_one_that_solves_all() {
    // The instruction solves one third and the hint another, each at the price of what the base solves. No reflection
    // on either finds the other, so only a merge has both.
    let is_left = |content: &Content| content.text(&Slot::Instructions).contains("LEFT");
    let is_right = |content: &Content| content.text(&Slot::Hints).contains("RIGHT");
    let mut found = 0;
    for label in LABELS {
        let landscape = Landscape::new(
            label,
            &json!({ "proposals": 3 }),
            &all_slots(),
            (12, 12),
            move |content, example| {
                let part = number(example) % 3;
                right_if(match (is_left(content), is_right(content)) {
                    (false, false) => part == 0,
                    (true, false) => part == 1,
                    (false, true) => part == 2,
                    (true, true) => true,
                })
            },
            move |request, content| {
                let is_plain = !is_left(content) && !is_right(content);
                Ok(match (request.component.as_str(), is_plain) {
                    ("instructions", true) => "LEFT: choose.".to_owned(),
                    ("hints", true) => "/label: RIGHT".to_owned(),
                    _ => String::new(),
                })
            },
        );
        let explored = landscape.explore();
        let winner = explored.winner();
        if winner.holdout_micro != Some(PERFECT) {
            continue;
        }
        found += 1;
        assert_eq!((winner.op.as_str(), winner.parents.len(), &winner.component), ("merge", 2, &None));
        let sides: Vec<(bool, bool)> = winner
            .parents
            .iter()
            .map(|parent| explored.walk.candidate(parent).unwrap())
            .map(|parent| (is_left(&parent.content), is_right(&parent.content)))
            .collect();
        assert!(sides.contains(&(true, false)) && sides.contains(&(false, true)), "{sides:?}");
        assert!(winner.decision.as_ref().is_some_and(|decision| decision.accepted));
    }
    assert!(found >= 7, "{found} of 8 searches found the merge");
}

#[test]
fn a_specialist_with_a_low_mean_stays_a_parent_where_the_best_mean_is_stuck() {
    let kind = |content: &Content| content.text(&Slot::Instructions);
    let mut found = 0;
    for label in LABELS {
        let landscape = Landscape::new(
            label,
            &json!({}),
            &[Slot::Instructions],
            (15, 15),
            move |content, example| {
                let part = number(example) % 5;
                right_if(match kind(content).as_str() {
                    "PERFECT" => true,
                    "GENERAL" => matches!(part, 1 | 3 | 4),
                    "SPECIAL" => part == 2,
                    _ => part == 0,
                })
            },
            // Nothing is learned from the candidate with the best mean.
            |request, content| {
                let is_special = |id: &str| id[3..].parse::<usize>().unwrap() % 5 == 2;
                Ok(match content.text(&Slot::Instructions).as_str() {
                    "SPECIAL" => "PERFECT".to_owned(),
                    "GENERAL" => String::new(),
                    _ if request.cases.iter().any(|case| is_special(case.example_id.as_str())) => "SPECIAL".to_owned(),
                    _ => "GENERAL".to_owned(),
                })
            },
        );
        let explored = landscape.explore();
        let winner = explored.winner();
        if winner.holdout_micro != Some(PERFECT) {
            continue;
        }
        found += 1;
        let parent = explored.walk.candidate(&winner.parents[0]).unwrap();
        assert_eq!((kind(&winner.content), kind(&parent.content)), ("PERFECT".to_owned(), "SPECIAL".to_owned()));
        let best_before = explored.walk.candidates.iter().filter(|other| other.id != winner.id);
        let best_before = best_before.filter_map(|other| other.holdout_micro).max();
        assert_eq!((best_before, parent.holdout_micro), (Some(600_000), Some(200_000)), "{label}");
    }
    assert!(found >= 7, "{found} of 8 searches found it");
}

#[test]
fn a_model_that_answers_rubbish_ends_by_patience_with_the_base_and_its_texts_are_counted() {
    let landscape = Landscape::new(
        "golden",
        &json!({}),
        &[Slot::Instructions, Slot::Hints],
        (6, 8),
        |_, _| Some(0),
        |request, _| match request.component.as_str() {
            "instructions" => Ok(format!("  {} \n", request.current_text)),
            _ => Ok("Think about the label.".to_owned()),
        },
    );
    let explored = landscape.explore();
    assert_eq!(explored.walk.best, landscape.search.space().base_id());
    assert_eq!(explored.walk.candidates.len(), 1, "no text made a candidate");
    assert_eq!((explored.walk.proposals.made, explored.walk.proposals.accepted), (20, 0));
    assert_eq!((explored.rejected("known"), explored.rejected("empty")), (10, 10));
    // All of holdout, and the base on the six train examples: nothing else costs a trial.
    assert_eq!(explored.trials.len(), 14);

    let silent = Landscape::new(
        "golden",
        &json!({ "patience": 4 }),
        &[Slot::Instructions],
        (6, 8),
        |_, _| Some(0),
        |_, _| Err("reflect_failed".to_owned()),
    );
    let explored = silent.explore();
    assert_eq!((explored.walk.proposals.made, explored.rejected("reflect_failed")), (4, 4));
    let long = Landscape::new(
        "golden",
        &json!({ "patience": 4 }),
        &[Slot::Instructions],
        (6, 8),
        |_, _| Some(0),
        |_, _| Ok("x".repeat((16 << 10) + 1)),
    );
    assert_eq!(long.explore().rejected("too_long"), 4);
}

#[test]
fn texts_that_improve_nothing_end_by_patience_too_and_are_not_kept() {
    let landscape = Landscape::new(
        "golden",
        &json!({}),
        &[Slot::Instructions],
        (6, 8),
        |_, _| Some(300_000),
        |request, _| Ok(format!("{} Look at {}.", request.current_text, request.cases[0].example_id)),
    );
    let explored = landscape.explore();
    assert_eq!(explored.walk.best, landscape.search.space().base_id());
    assert_eq!((explored.walk.proposals.made, explored.walk.proposals.accepted), (20, 0));
    let reasons: BTreeSet<Option<&str>> = explored.walk.candidates[1..]
        .iter()
        .map(|candidate| candidate.decision.as_ref().unwrap())
        .map(|decision| decision.reason.as_deref().filter(|_| !decision.accepted))
        .collect();
    assert_eq!(reasons, BTreeSet::from([Some("not_better")]));
    assert_eq!(explored.walk.curve, [(8, 300_000)]);
}

#[test]
fn a_perfect_minibatch_makes_no_reflection_and_a_perfect_holdout_ends_the_search() {
    let landscape = Landscape::new(
        "golden",
        &json!({}),
        &all_slots(),
        (6, 8),
        |_, example| right_if(example.split == Split::Train),
        |_, _| Ok("never asked for".to_owned()),
    );
    let explored = landscape.explore();
    assert_eq!((explored.walk.proposals.made, explored.walk.candidates.len()), (0, 1));
    assert_eq!(explored.walk.best, landscape.search.space().base_id());

    let solved = Landscape::new(
        "golden",
        &json!({}),
        &all_slots(),
        (6, 8),
        |_, example| right_if(example.split == Split::Holdout),
        |_, _| Ok("never asked for".to_owned()),
    );
    let explored = solved.explore();
    assert_eq!((explored.trials.len(), explored.walk.proposals.made), (8, 0), "holdout alone");
}

#[test]
fn it_finds_the_word_the_hint_the_demo_and_the_order_of_demos_that_a_landscape_wants() {
    let nothing = |_: &ReflectionRequest, _: &Content| Ok(String::new());
    let word = Landscape::new(
        "golden",
        &json!({}),
        &all_slots(),
        (6, 8),
        |content, _| right_if(content.text(&Slot::Instructions).contains("politely")),
        |request, _| Ok(if request.component == "instructions" { "Choose politely." } else { "" }.to_owned()),
    );
    assert_eq!(word.explore().winner().holdout_micro, Some(PERFECT));
    let hint = Landscape::new(
        "golden",
        &json!({}),
        &all_slots(),
        (6, 8),
        |content, _| right_if(content.hints().get("/label").is_some_and(|hint| hint == "in lower case")),
        |request, _| Ok(if request.component == "hints" { "- /label: in lower case\n" } else { "" }.to_owned()),
    );
    let explored = hint.explore();
    let instructions = explored.winner().built.artifact().unwrap().instructions().to_owned();
    assert_eq!(instructions, "Choose.\n\nNotes:\n- /label: in lower case\n");
    let demo = Landscape::new(
        "golden",
        &json!({}),
        &[Slot::Demos],
        (12, 8),
        |content, _| right_if(has_demo(content, 3)),
        nothing,
    );
    assert_eq!(demo.explore().winner().holdout_micro, Some(PERFECT));
    let order = Landscape::new(
        "golden",
        &json!({}),
        &[Slot::Demos],
        (8, 8),
        |content, _| {
            Some(match (demo_place(content, 3), demo_place(content, 1)) {
                (Some(first), Some(second)) if first < second => PERFECT,
                (Some(_), _) => 400_000,
                (None, _) => 0,
            })
        },
        nothing,
    );
    let explored = order.explore();
    assert_eq!(explored.winner().holdout_micro, Some(PERFECT));
    assert!(explored.requests.is_empty(), "demos are swapped without a model");
}

#[test]
fn a_failure_of_the_infrastructure_is_no_score() {
    // Half of the train examples are never scored, and the others improve with the word.
    let landscape = Landscape::new(
        "golden",
        &json!({}),
        &[Slot::Instructions],
        (8, 8),
        |content, example| {
            let is_down = example.split == Split::Train && number(example).is_multiple_of(2);
            if is_down { None } else { right_if(content.text(&Slot::Instructions).contains("politely")) }
        },
        |request, _| {
            let is_scored = |id: &str| id[3..].parse::<usize>().unwrap() % 2 == 1;
            assert!(request.cases.iter().all(|case| is_scored(case.example_id.as_str())), "a case has a score");
            Ok("Choose politely.".to_owned())
        },
    );
    assert_eq!(landscape.explore().winner().holdout_micro, Some(PERFECT));
}

/// Returns a landscape without a pattern: scores and texts that chance decides, the same for the same content.
fn rough(seed: u64) -> Landscape {
    let mut random = Random::new(&format!("rough|{seed}"));
    let options = json!({
        "proposals": 1 + random.below(3), "minibatch": 1 + random.below(5), "patience": 4, "max_iterations": 8,
        "merges": 1 + random.below(3),
    });
    Landscape::new(
        &format!("rough|{seed}"),
        &options,
        &all_slots(),
        (5 + random.index(8), 5 + random.index(8)),
        move |content, example| {
            let texts = (content.text(&Slot::Instructions), content.text(&Slot::Hints), content.demos().to_vec());
            let mut chance = Random::new(&format!("{seed}|{texts:?}|{}", example.id));
            match chance.below(12) {
                0 => None,
                roll => Some(roll * 1_000_000 / 12),
            }
        },
        move |request, _| {
            let cases = request.cases.len();
            let roll = stats::seed_of(&format!("{seed}|{}|{cases}", request.current_text)) % 6;
            match (roll, request.component.as_str()) {
                (0, _) => Ok(String::new()),
                (1, _) => Err("reflect_failed".to_owned()),
                (_, "hints") => Ok(format!("/label: hint number {roll}")),
                (_, _) => Ok(format!("Choose, rule {roll}, after {} bytes.", request.current_text.len())),
            }
        },
    )
}

#[test]
fn the_path_is_the_same_in_whatever_order_results_come_in() {
    for seed in 0..16 {
        let landscape = rough(seed);
        let together = landscape.explore();
        let mut random = Random::new(&format!("arrival|{seed}"));
        let shuffled = landscape.explore_with(Arrival::Shuffled(&mut random));
        assert_eq!(together.asks, shuffled.asks, "seed {seed}");
        assert_eq!(together.walk, shuffled.walk, "seed {seed}");
        // A search that has all results at once, as a replay has, ends the same way.
        let mut job = landscape.job();
        let all = together.trials.iter().map(|trial| landscape.result(&together.walk, trial));
        all.for_each(|row| job.add_result(row));
        let mut number = 0;
        for request in &together.requests {
            number += 1;
            job.add_proposal(landscape.answer(&together.walk, number, request));
        }
        assert_eq!(landscape.search.walk(&job), together.walk, "seed {seed}");
    }
}

#[test]
fn nothing_of_holdout_or_test_reaches_a_candidate_or_a_reflection() {
    let (mut reflections, mut demos, mut merges) = (0, 0, 0);
    for seed in 0..40 {
        let landscape = rough(seed);
        let explored = landscape.explore();
        let dataset = landscape.search.ground().dataset();
        assert!(explored.trials.iter().all(|trial| trial.split != Split::Test), "seed {seed}");
        for trial in &explored.trials {
            assert_eq!(dataset.example(&trial.example_id).unwrap().split, trial.split, "seed {seed}");
        }
        for request in &explored.requests {
            assert!((1..=5).contains(&request.cases.len()), "seed {seed}");
            for case in &request.cases {
                assert_eq!(dataset.example(&case.example_id).unwrap().split, Split::Train, "seed {seed}");
                let tried = explored.trials.iter().any(|trial| {
                    Some(&trial.candidate_id) == case.candidate_id.as_ref() && trial.example_id == case.example_id
                });
                assert!(tried, "seed {seed}: a case is a trial of its candidate");
            }
            reflections += 1;
        }
        let kept_apart: Vec<&Example> =
            dataset.examples().iter().filter(|example| example.split != Split::Train).collect();
        for candidate in &explored.walk.candidates {
            let content = candidate.built.artifact().unwrap().content().to_string();
            let leaked = kept_apart.iter().find(|example| content.contains(example.input["text"].as_str().unwrap()));
            assert!(leaked.is_none(), "seed {seed}: {leaked:?} in {content}");
            demos += candidate.content.demos().len();
            merges += usize::from(candidate.op == "merge");
        }
    }
    let is_much = reflections > 100 && demos > 50 && merges > 0;
    assert!(is_much, "{reflections} reflections, {demos} demos, {merges} merges");
}
