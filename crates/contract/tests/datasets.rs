//! Datasets: which examples they have, in which splits, and which changes their hashes show.

use std::collections::{BTreeMap, BTreeSet};

use cantrip_canon::Hash;
use cantrip_contract::limits::{DATASET_EXAMPLES_MAX, EXAMPLE_BYTES_MAX};
use cantrip_contract::{
    BuiltDataset, Dataset, DatasetCounts, DatasetDiff, DatasetFault, DatasetName, DatasetRef, Example, ExampleDraft,
    ExampleId, Labels, PlacedKey, Schema, SkipReason, Split, SplitPolicy, SplitSeed, SplitShares, Subject, Weight,
    check_group, dataset_schema, micro_number, micro_of, near_form,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::improve_goldens::{draft, source, subject};

fn id(text: &str) -> ExampleId {
    text.parse().unwrap()
}

/// An example with this id and text.
fn says(name: &str, text: &str) -> ExampleDraft {
    ExampleDraft { id: Some(id(name)), ..ExampleDraft::new(json!({ "text": text }), source()) }
}

fn grouped(group: &str, draft: ExampleDraft) -> ExampleDraft {
    ExampleDraft { group: Some(group.to_owned()), ..draft }
}

fn expecting(label: &str, draft: ExampleDraft) -> ExampleDraft {
    ExampleDraft { expected: Some(json!({ "label": label })), ..draft }
}

fn given(split: Split, draft: ExampleDraft) -> ExampleDraft {
    ExampleDraft { split: Some(split), ..draft }
}

fn build(drafts: Vec<ExampleDraft>) -> BuiltDataset {
    Dataset::build(subject(), drafts, &SplitPolicy::default(), &[]).unwrap()
}

fn with_given(drafts: Vec<ExampleDraft>) -> Result<BuiltDataset, DatasetFault> {
    let policy = SplitPolicy { given: true, ..SplitPolicy::default() };
    Dataset::build(subject(), drafts, &policy, &[])
}

fn ids(dataset: &Dataset) -> Vec<&str> {
    dataset.examples().iter().map(|example| example.id.as_str()).collect()
}

fn split_of(dataset: &Dataset, name: &str) -> Split {
    dataset.example(&id(name)).unwrap().split
}

/// The split in which a text alone would stand.
fn own_split(text: &str) -> Split {
    split_of(&build(vec![says("alone", text)]).dataset, "alone")
}

/// Returns a text whose own split is this one.
fn text_in(split: Split, word: &str) -> String {
    (0..).map(|number| format!("{word} {number}")).find(|text| own_split(text) == split).unwrap()
}

/// Returns a group whose own split is this one.
fn group_in(split: Split) -> String {
    let policy = SplitPolicy::default();
    let fits = |group: &String| policy.shares.split_of(policy.seed.bucket(group)) == split;
    (0..).map(|number| format!("group {number}")).find(fits).unwrap()
}

fn skipped(counts: &DatasetCounts, reason: SkipReason) -> u64 {
    counts.skipped.get(&reason).copied().unwrap_or_default()
}

#[test]
fn of_equal_examples_the_first_by_id_stays_and_contradictions_stay_together() {
    let built = build(vec![
        expecting("good", says("c", "fine")),
        expecting("good", says("a", "fine")),
        expecting("bad", says("b", "fine")),
        says("d", "fine"),
        says("e", "another"),
    ]);
    assert_eq!(ids(&built.dataset), ["a", "b", "d", "e"]);
    let of_fine: BTreeSet<Split> = ["a", "b", "d"].map(|name| split_of(&built.dataset, name)).into();
    assert_eq!(of_fine.len(), 1);
    let counts = built.counts;
    assert_eq!((counts.taken, counts.contradiction, counts.unlabelled), (4, 1, 2));
    assert_eq!(counts.skipped, BTreeMap::from([(SkipReason::Duplicate, 1)]));
}

#[test]
fn the_order_of_lines_and_the_source_decide_nothing() {
    let angry = |draft: ExampleDraft| ExampleDraft { labels: Labels::new(["angry"]).unwrap(), ..draft };
    // The first two have the same id, because it is cut from input and expected output.
    let drafts = vec![draft(), angry(draft()), grouped("g", says("x", "one")), says("y", "two"), says("z", "Two!")];
    let first = build(drafts.clone());
    assert_eq!(first.dataset.examples().len(), 4);
    let moved: Vec<ExampleDraft> = drafts
        .into_iter()
        .rev()
        .enumerate()
        .map(|(line, mut draft)| {
            draft.source.line = Some(line as u64 + 70);
            draft.source.id = "elsewhere.csv".to_owned();
            draft
        })
        .collect();
    let second = build(moved);
    assert_eq!(first.dataset.hash(), second.dataset.hash());
    assert_eq!(first.counts, second.counts);
}

#[test]
fn one_changed_part_changes_the_hash_and_is_listed() {
    let base = build((0..20).map(|n| expecting("a", says(&format!("ex_{n:02}"), &format!("text {n}")))).collect());
    let base = base.dataset;
    let parts =
        |examples: Vec<Example>| Dataset::from_stored(subject(), base.shares(), base.seed().clone(), examples).unwrap();
    assert_eq!(parts(base.examples().to_vec()), base);
    type Change = fn(&mut Example);
    let changes: [(&str, Change); 8] = [
        ("label", |example| example.labels = Labels::new(["refund"]).unwrap()),
        ("weight", |example| example.weight = Weight::from_number(1.5).unwrap()),
        ("expected", |example| example.expected = Some(json!({"label": "b"}))),
        ("no expected", |example| example.expected = None),
        ("input", |example| example.input = json!({"text": "other"})),
        ("group", |example| example.group = Some("g".to_owned())),
        ("reward", |example| example.reward = Some(0)),
        ("split", |example| {
            example.split = if example.split == Split::Train { Split::Test } else { Split::Train };
        }),
    ];
    let mut hashes = BTreeSet::from([base.hash()]);
    for (name, change) in changes {
        let mut examples = base.examples().to_vec();
        change(&mut examples[7]);
        let changed = parts(examples);
        assert!(hashes.insert(changed.hash()), "{name}");
        let diff = DatasetDiff::between(&base.entries(), &changed.entries());
        let wanted = DatasetDiff { changed: vec![id("ex_07")], ..DatasetDiff::default() };
        assert_eq!(diff, wanted, "{name}");
    }
    let fewer = parts(base.examples()[1..].to_vec());
    assert!(hashes.insert(fewer.hash()));
    assert_eq!(DatasetDiff::between(&base.entries(), &fewer.entries()).removed, [id("ex_00")]);
    assert_eq!(DatasetDiff::between(&fewer.entries(), &base.entries()).added, [id("ex_00")]);
    for policy in [
        SplitPolicy { seed: "other".parse().unwrap(), ..SplitPolicy::default() },
        SplitPolicy { shares: SplitShares::new(50, 25, 25).unwrap(), ..SplitPolicy::default() },
    ] {
        let (shares, seed) = (policy.shares, policy.seed);
        let other = Dataset::from_stored(subject(), shares, seed, base.examples().to_vec()).unwrap();
        assert!(hashes.insert(other.hash()));
    }
    let spell = Subject::of_spell("analyst").unwrap();
    let other = Dataset::from_stored(spell, base.shares(), base.seed().clone(), base.examples().to_vec()).unwrap();
    assert!(hashes.insert(other.hash()));

    let mut examples = base.examples().to_vec();
    examples[7].source.id = "elsewhere".to_owned();
    examples.reverse();
    assert_eq!(parts(examples).hash(), base.hash());
}

#[test]
fn the_same_content_again_is_the_same_dataset() {
    let drafts: Vec<ExampleDraft> = (0..12).map(|n| says(&format!("ex_{n}"), &format!("text {n}"))).collect();
    let base = build(drafts.clone()).dataset;
    let again = base.grow(drafts, &BTreeSet::new(), &SplitPolicy::default(), &[]).unwrap();
    assert_eq!(again.dataset.hash(), base.hash());
    assert_eq!(skipped(&again.counts, SkipReason::Duplicate), 12);
    let without = base.grow(Vec::new(), &BTreeSet::from([id("ex_3")]), &SplitPolicy::default(), &[]).unwrap();
    assert_eq!(without.dataset.examples().len(), 11);
    assert_eq!(without.dataset.example(&id("ex_3")), None);
    let unknown = base.grow(Vec::new(), &BTreeSet::from([id("ex_77")]), &SplitPolicy::default(), &[]);
    assert_eq!(unknown, Err(DatasetFault::Unknown(id("ex_77"))));
}

#[test]
fn the_same_file_again_chooses_the_same_of_two_examples_with_one_id() {
    let labelled = |label: &str| ExampleDraft { labels: Labels::new([label]).unwrap(), ..draft() };
    let file = vec![labelled("angry"), labelled("calm"), labelled("late"), says("z", "other")];
    let base = build(file.clone());
    assert_eq!(base.dataset.examples().len(), 2);
    let mut reversed = file.clone();
    reversed.reverse();
    let mut dataset = base.dataset.clone();
    for again in [file.clone(), reversed, file] {
        let built = dataset.grow(again, &BTreeSet::new(), &SplitPolicy::default(), &[]).unwrap();
        assert_eq!(built.dataset.hash(), base.dataset.hash());
        assert_eq!(skipped(&built.counts, SkipReason::Duplicate), 4);
        dataset = built.dataset;
    }
    // Another label alone is a change of the example.
    let changed = dataset.grow(vec![labelled("new")], &BTreeSet::new(), &SplitPolicy::default(), &[]).unwrap();
    assert_ne!(changed.dataset.hash(), base.dataset.hash());
    assert_eq!(changed.dataset.examples().len(), 2);
}

#[test]
fn an_added_example_replaces_the_one_with_its_id_and_stays_in_its_split() {
    let base = build(vec![says("a", "one"), says("b", "two")]).dataset;
    let corrected = expecting("good", says("a", "one"));
    let next = base.grow(vec![corrected], &BTreeSet::new(), &SplitPolicy::default(), &[]).unwrap().dataset;
    assert_eq!(ids(&next), ["a", "b"]);
    assert_eq!(next.example(&id("a")).unwrap().expected, Some(json!({"label": "good"})));
    assert_eq!(split_of(&next, "a"), split_of(&base, "a"));
    assert_eq!(DatasetDiff::between(&base.entries(), &next.entries()).changed, [id("a")]);
}

#[test]
fn an_input_of_the_parent_keeps_its_split_whatever_its_group_and_the_policy_say() {
    let text = text_in(Split::Train, "kept");
    let base = build(vec![says("a", &text)]).dataset;
    let regrouped = grouped(&group_in(Split::Test), expecting("good", says("b", &text)));
    let policy = SplitPolicy { shares: SplitShares::new(0, 0, 100).unwrap(), ..SplitPolicy::default() };
    let next = base.grow(vec![regrouped, says("c", "new")], &BTreeSet::new(), &policy, &[]).unwrap().dataset;
    assert_eq!((split_of(&next, "a"), split_of(&next, "b")), (Split::Train, Split::Train));
    assert_eq!(split_of(&next, "c"), Split::Test);
}

#[test]
fn groups_and_near_forms_stay_together_in_this_version_and_with_the_parent() {
    let (train, test) = (text_in(Split::Train, "alpha"), text_in(Split::Test, "beta"));
    let shouted = |text: &str| format!("  {}!! ", text.to_uppercase());
    // The bucket of a group decides about its first example, and the first example about the others.
    let group = group_in(Split::Holdout);
    let built =
        build(vec![grouped(&group, says("a", &train)), grouped(&group, says("b", &test)), says("c", &shouted(&test))]);
    for name in ["a", "b", "c"] {
        assert_eq!(split_of(&built.dataset, name), Split::Holdout, "{name}");
    }
    let base = build(vec![says("m", &train), says("n", &test)]).dataset;
    let policy = SplitPolicy::default();
    let next = base.grow(vec![says("a", &shouted(&test)), says("z", &shouted(&train))], &BTreeSet::new(), &policy, &[]);
    let next = next.unwrap().dataset;
    assert_eq!((split_of(&next, "a"), split_of(&next, "z")), (Split::Test, Split::Train));
}

#[test]
fn an_example_whose_group_and_near_form_stand_in_different_splits_is_left_out() {
    let (train, test) = (text_in(Split::Train, "alpha"), text_in(Split::Test, "beta"));
    let group = group_in(Split::Train);
    let built = build(vec![
        grouped(&group, says("a", &train)),
        says("b", &test),
        grouped(&group, says("c", &test.to_uppercase())),
    ]);
    assert_eq!(ids(&built.dataset), ["a", "b"]);
    assert_eq!(built.counts.skipped, BTreeMap::from([(SkipReason::SplitConflict, 1)]));
    assert_eq!(built.counts.taken, 2);
}

#[test]
fn inputs_without_a_word_are_not_alike_but_equal_ones_share_a_split() {
    let marks: Vec<String> = (1..60).map(|count| "?".repeat(count)).collect();
    let alone = marks.iter().enumerate().map(|(n, mark)| says(&format!("ex_{n:02}"), mark));
    let built = build(alone.collect());
    let splits: BTreeSet<Split> = built.dataset.examples().iter().map(|example| example.split).collect();
    assert_eq!(splits.len(), 3, "they are distributed by their inputs");

    let groups = [group_in(Split::Train), group_in(Split::Test)];
    let built = build(vec![
        grouped(&groups[0], expecting("x", says("a", "?!"))),
        grouped(&groups[1], expecting("y", says("b", "?!"))),
    ]);
    assert_eq!((split_of(&built.dataset, "a"), split_of(&built.dataset, "b")), (Split::Train, Split::Train));
}

#[test]
fn given_splits_are_taken_if_all_are_given_and_no_input_has_two() {
    let all = vec![
        given(Split::Test, says("a", "one")),
        given(Split::Train, says("b", "two")),
        given(Split::Holdout, says("c", "three")),
    ];
    let built = with_given(all.clone()).unwrap().dataset;
    let splits: Vec<Split> = built.examples().iter().map(|example| example.split).collect();
    assert_eq!(splits, [Split::Test, Split::Train, Split::Holdout]);
    // Without the policy the given splits are not used.
    let free = build(all.clone()).dataset;
    assert_eq!(split_of(&free, "a"), own_split("one"));

    let mut lacking = all.clone();
    lacking.push(says("d", "four"));
    assert_eq!(with_given(lacking).unwrap_err(), DatasetFault::NoSplit { id: id("d"), line: Some(1) });

    let mut twice = all;
    let mut other = given(Split::Train, says("e", "one"));
    other.source.line = Some(9);
    twice.push(other);
    let fault = with_given(twice).unwrap_err();
    assert_eq!(fault, DatasetFault::TwoSplits { id: id("e"), other: id("a"), line: Some(9) });
    assert_eq!(fault.line(), Some(9));
}

#[test]
fn given_splits_move_nothing_that_stands_in_the_parent() {
    let text = text_in(Split::Train, "kept");
    let base = build(vec![says("a", &text)]).dataset;
    let policy = SplitPolicy { given: true, ..SplitPolicy::default() };
    let added = vec![
        given(Split::Test, says("a", &text)),
        given(Split::Test, says("b", &text.to_uppercase())),
        given(Split::Test, says("c", "fresh words")),
    ];
    let next = base.grow(added, &BTreeSet::new(), &policy, &[]).unwrap().dataset;
    let splits = ["a", "b", "c"].map(|name| split_of(&next, name));
    assert_eq!(splits, [Split::Train, Split::Train, Split::Test]);
    let lacking = base.grow(vec![says("a", &text)], &BTreeSet::new(), &policy, &[]);
    assert_eq!(lacking.unwrap_err(), DatasetFault::NoSplit { id: id("a"), line: Some(1) });
}

#[test]
fn one_id_for_two_examples_and_too_much_are_refused() {
    let twice = Dataset::build(subject(), vec![says("a", "one"), says("a", "two")], &SplitPolicy::default(), &[]);
    assert_eq!(twice.unwrap_err(), DatasetFault::SameId { id: id("a"), line: Some(1) });

    // `{"text":""}` takes 11 bytes.
    let largest = says("a", &"x".repeat(EXAMPLE_BYTES_MAX - 11));
    assert_eq!(build(vec![largest]).counts.taken, 1);
    let larger = vec![says("a", &"x".repeat(EXAMPLE_BYTES_MAX - 10))];
    let fault = Dataset::build(subject(), larger, &SplitPolicy::default(), &[]).unwrap_err();
    assert_eq!(fault, DatasetFault::Large { id: id("a"), bytes: EXAMPLE_BYTES_MAX + 1, line: Some(1) });

    let many = (0..=DATASET_EXAMPLES_MAX).map(|n| says(&n.to_string(), &n.to_string())).collect();
    let fault = Dataset::build(subject(), many, &SplitPolicy::default(), &[]).unwrap_err();
    assert_eq!(fault, DatasetFault::Many(DATASET_EXAMPLES_MAX + 1));
}

#[test]
fn counts_name_labels_and_a_split_that_is_too_small() {
    let labelled = |name: &str, labels: &[&str], split| {
        let labels = Labels::new(labels.iter().copied()).unwrap();
        given(split, ExampleDraft { labels, ..expecting("x", says(name, name)) })
    };
    let mut drafts: Vec<ExampleDraft> = (0..5).map(|n| labelled(&format!("h{n}"), &["a"], Split::Holdout)).collect();
    drafts.extend((0..4).map(|n| labelled(&format!("t{n}"), &["a", "b"], Split::Test)));
    drafts.push(given(Split::Train, says("z", "unlabelled")));
    let counts = with_given(drafts.clone()).unwrap().counts;
    assert_eq!(counts.labels, BTreeMap::from([("a".to_owned(), 9), ("b".to_owned(), 4)]));
    assert_eq!((counts.splits.train, counts.splits.holdout, counts.splits.test), (1, 5, 4));
    assert_eq!((counts.taken, counts.unlabelled), (10, 1));
    assert_eq!(counts.small_split(), Some((Split::Test, 4)));
    drafts.push(labelled("t4", &[], Split::Test));
    let mut counts = with_given(drafts).unwrap().counts;
    assert_eq!(counts.small_split(), None);

    counts.skip(SkipReason::InputSchema, 2);
    counts.skip(SkipReason::InputSchema, 3);
    counts.skip(SkipReason::Filter, 0);
    assert_eq!(counts.skipped, BTreeMap::from([(SkipReason::InputSchema, 5)]));
    assert_eq!(counts.skipped_total(), 5);
    let written = serde_json::to_value(&counts).unwrap();
    assert_eq!(written["skipped"], json!({"input_schema": 5}));
    assert_eq!(serde_json::from_value::<DatasetCounts>(written).unwrap(), counts);
}

#[test]
fn a_hundred_thousand_keys_fall_within_half_a_point_of_the_percentages() {
    for (seed, shares) in [
        (SplitSeed::default(), SplitShares::default()),
        ("seed_dataset".parse().unwrap(), SplitShares::new(80, 5, 15).unwrap()),
    ] {
        let mut found = BTreeMap::new();
        for key in 0..100_000 {
            *found.entry(shares.split_of(seed.bucket(&format!("key_{key}")))).or_insert(0_i64) += 1;
        }
        let percents = [shares.train(), shares.holdout(), shares.test()];
        for (split, percent) in Split::ALL.into_iter().zip(percents) {
            let off = found[&split] - i64::from(percent) * 1_000;
            assert!(off.abs() <= 500, "{seed} {split}: off by {off} of 100000");
        }
    }
}

#[test]
fn near_forms_ignore_case_punctuation_and_spaces_but_not_order() {
    let near = |value: Value| near_form(&value);
    assert_eq!(near(json!({"b": "Zwei", "a": ["Eins", {"x": -1.5, "w": true}], "c": null})), "eins true 1 5 zwei");
    assert_eq!(near(json!({"t": "It's  5 o'clock."})), "it s 5 o clock");
    assert_eq!(near(json!({"t": "ÄRGER über Straße"})), "ärger über straße");
    assert_eq!(near(json!({"t": "1.0", "u": 1.0})), "1 0 1");
    assert_ne!(near(json!({"t": "a b"})), near(json!({"t": "b a"})));
    // Keys are sorted by UTF-16 units, as in canonical JSON: U+1F600 comes before U+FB33.
    assert_eq!(near(json!({"\u{fb33}": "second", "\u{1f600}": "first"})), "first second");
}

#[test]
fn names_and_references_are_read_strictly() {
    for name in ["tickets", "0", "a-b_c", &"a".repeat(64)] {
        assert_eq!(name.parse::<DatasetName>().unwrap().as_str(), name);
    }
    for name in ["", "-a", "_a", "A", "a b", "a@1", "ä", "a/b", &"a".repeat(65)] {
        assert!(name.parse::<DatasetName>().is_err(), "{name}");
    }
    let tickets: DatasetName = "tickets".parse().unwrap();
    let named = |text: &str| text.parse::<DatasetRef>().unwrap();
    assert_eq!(named("tickets"), DatasetRef::Newest(tickets.clone()));
    assert_eq!(named("tickets@3"), DatasetRef::Version(tickets, 3));
    assert_eq!(named("sha256:ef20"), DatasetRef::HashPrefix("ef20".to_owned()));
    for text in ["tickets@3", "tickets", "sha256:ef20"] {
        assert_eq!(named(text).to_string(), text);
    }
    for wrong in ["", "tickets@", "tickets@0", "tickets@03", "tickets@-1", "tickets@1@2", "sha256:", "sha256:EF20"] {
        assert!(wrong.parse::<DatasetRef>().is_err(), "{wrong}");
    }
    // Digits alone may be a name or the beginning of a hash.
    for (text, digits) in [("ef20", Some("ef20")), ("ef2", None), ("tickets", None), ("sha256:ef20", Some("ef20"))] {
        assert_eq!(named(text).hash_digits(), digits, "{text}");
    }
}

#[test]
fn ids_labels_groups_seeds_and_weights_have_bounds() {
    for good in ["1", "ticket 17", "ü", &"x".repeat(128)] {
        assert!(good.parse::<ExampleId>().is_ok(), "{good}");
    }
    for wrong in ["", " a", "a ", "a\nb", &"x".repeat(129)] {
        assert!(wrong.parse::<ExampleId>().is_err(), "{wrong:?}");
    }
    let sixteen: Vec<String> = (0..16).map(|n| n.to_string()).collect();
    assert!(Labels::new(sixteen.clone()).is_ok());
    assert!(Labels::new(sixteen.into_iter().chain(["more".to_owned()])).is_err());
    for wrong in ["", "a b", "a;b", "a\u{7}", &"x".repeat(65)] {
        assert!(Labels::new([wrong]).is_err(), "{wrong:?}");
    }
    assert!(check_group("customer 17").is_ok());
    for wrong in ["", "a\nb", &"x".repeat(257)] {
        assert!(check_group(wrong).is_err(), "{wrong:?}");
    }
    assert!("2026".parse::<SplitSeed>().is_ok());
    for wrong in ["a|b", "a\nb", &"x".repeat(257)] {
        assert!(wrong.parse::<SplitSeed>().is_err(), "{wrong:?}");
    }
    for good in [0.000_001, 0.1, 1.0, 1000.0] {
        assert!(Weight::from_number(good).is_ok(), "{good}");
    }
    for wrong in [0.0, -1.0, 1_000.000_001, 0.000_000_1, 1.0 / 3.0, f64::NAN, f64::INFINITY] {
        assert!(Weight::from_number(wrong).is_err(), "{wrong}");
    }
    for (train, holdout, test) in [(60, 20, 21), (0, 0, 0), (100, 100, 156)] {
        assert!(SplitShares::new(train, holdout, test).is_err());
    }
    assert!(serde_json::from_value::<SplitShares>(json!({"train": 60, "holdout": 20, "test": 10})).is_err());
}

#[test]
fn subjects_are_signatures_or_spells() {
    for text in ["@cantrip/text/Classify.v1", "spell:analyst", "spell:my-spell_2.0"] {
        let subject: Subject = text.parse().unwrap();
        assert_eq!(subject.to_string(), text);
        assert_eq!(subject.spell().is_some(), text.starts_with("spell:"));
        assert_eq!(subject.signature().is_some(), !text.starts_with("spell:"));
    }
    for wrong in ["", "analyst", "spell:", "spell:a b", "spell:../x", "spell:a:b", "Classify.v1"] {
        assert!(wrong.parse::<Subject>().is_err(), "{wrong}");
    }
}

#[test]
fn the_schema_of_a_line_knows_examples_and_refuses_others() {
    let schema = Schema::compile(dataset_schema()).unwrap();
    for line in [
        json!({"input": {"text": "a"}}),
        json!({"id": "1", "input": {}, "expected": null, "labels": ["a"], "weight": 0.5, "group": "g", "reward": -1,
               "split": "test", "source": {"kind": "receipt", "id": "rcpt_1"}}),
    ] {
        assert_eq!(schema.violations(&line), [], "{line}");
    }
    for line in [
        json!({}),
        json!({"input": "text"}),
        json!({"input": {}, "label": "a"}),
        json!({"input": {}, "labels": ["a b"]}),
        json!({"input": {}, "weight": 0}),
        json!({"input": {}, "weight": 1001}),
        json!({"input": {}, "split": "dev"}),
        json!({"input": {}, "source": {"kind": "web", "id": "x"}}),
    ] {
        assert_ne!(schema.violations(&line), [], "{line}");
    }
}

/// One change of a dataset.
#[derive(Debug, Clone)]
enum Change {
    /// Adds a text of two words, perhaps of a group, with one of two expected outputs or none.
    Add { words: (usize, usize), group: Option<u8>, expected: Option<bool> },
    /// Adds an example that is near to the one at this place.
    Near { place: usize, style: usize, group: Option<u8> },
    /// Removes the example at this place.
    Remove { place: usize },
}

fn change() -> impl Strategy<Value = Change> {
    let group = || proptest::option::weighted(0.3, 0_u8..8);
    prop_oneof![
        4 => ((0_usize..14, 0_usize..14), group(), any::<Option<bool>>())
            .prop_map(|(words, group, expected)| Change::Add { words, group, expected }),
        3 => (any::<usize>(), 0_usize..4, group())
            .prop_map(|(place, style, group)| Change::Near { place, style, group }),
        2 => any::<usize>().prop_map(|place| Change::Remove { place }),
    ]
}

fn words((first, second): (usize, usize)) -> String {
    // The last two have no letter, so that their near form is empty.
    const WORDS: [&str; 14] = [
        "refund", "late", "parcel", "login", "card", "double", "Straße", "naïve", "42", "reset", "bill", "lost", "?!",
        "...",
    ];
    format!("{} {}", WORDS[first], WORDS[second])
}

fn nearly(text: &str, style: usize) -> String {
    match style {
        0 => text.to_uppercase(),
        1 => format!("{text}!"),
        2 => text.replace(' ', "   "),
        _ => format!("  ({text})"),
    }
}

/// The split of each value of `key`; fails if a value stands in two.
fn splits_by<K: Ord + std::fmt::Debug>(
    dataset: &Dataset,
    key: impl Fn(&Example) -> Option<K>,
) -> Result<BTreeMap<K, Split>, TestCaseError> {
    let mut splits = BTreeMap::new();
    for example in dataset.examples() {
        let Some(key) = key(example) else { continue };
        let split = *splits.entry(key).or_insert(example.split);
        prop_assert_eq!(split, example.split, "{:?}", example);
    }
    Ok(splits)
}

fn near_of(example: &Example) -> Option<String> {
    Some(near_form(&example.input)).filter(|near| !near.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_dataset_grows_for_fifty_versions_and_nothing_moves_or_stands_in_two_splits(
        versions in proptest::collection::vec(proptest::collection::vec(change(), 1..8), 50),
    ) {
        let policy = SplitPolicy::default();
        let mut dataset = build(Vec::new()).dataset;
        let mut next_id = 0_u64;
        // The examples of all versions before, also those that were removed since.
        let mut former: Vec<PlacedKey> = Vec::new();
        let (mut inputs_ever, mut nears_ever) = (BTreeMap::new(), BTreeMap::new());
        for changes in versions {
            let (mut added, mut without) = (Vec::new(), BTreeSet::new());
            let at = |place: usize| match dataset.examples() {
                [] => None,
                examples => examples.get(place % examples.len()),
            };
            for change in changes {
                // Ids are spread, so that new examples come before and after those that are there.
                next_id += 1;
                let name = format!("ex_{:02}_{next_id}", next_id * 37 % 100);
                match change {
                    Change::Add { words: chosen, group, expected } => {
                        let draft = says(&name, &words(chosen));
                        let expected = expected.map(|is_good| json!({ "label": is_good }));
                        let group = group.map(|group| format!("g{group}"));
                        added.push(ExampleDraft { group, expected, ..draft });
                    }
                    Change::Near { place, style, group } => {
                        let Some(example) = at(place) else { continue };
                        let text = example.input["text"].as_str().unwrap_or_default();
                        let group = group.map(|group| format!("g{group}"));
                        added.push(ExampleDraft { group, ..says(&name, &nearly(text, style)) });
                    }
                    Change::Remove { place } => without.extend(at(place).map(|example| example.id.clone())),
                }
            }
            let asked = added.len() as u64;
            let built = dataset.grow(added, &without, &policy, &former).unwrap();
            let (next, counts) = (built.dataset, built.counts);

            for (input, split) in splits_by(&next, |example| Some(example.input_hash()))? {
                prop_assert_eq!(*inputs_ever.entry(input).or_insert(split), split, "an input moved");
            }
            for (near, split) in splits_by(&next, near_of)? {
                prop_assert_eq!(*nears_ever.entry(near).or_insert(split), split, "a near form moved");
            }
            former.extend(dataset.placed_keys());
            // Every example that was not removed is still there, and each new one is counted.
            let content = |example: &Example| (example.input_hash(), example.expected_hash());
            let there: BTreeSet<(Hash, Option<Hash>)> = next.examples().iter().map(content).collect();
            prop_assert_eq!(there.len(), next.examples().len(), "a duplicate was taken");
            for kept in dataset.examples().iter().filter(|example| !without.contains(&example.id)) {
                prop_assert!(there.contains(&content(kept)), "{:?} was lost", kept.id);
            }
            let before = (dataset.examples().len() - without.len()) as u64;
            prop_assert_eq!(counts.taken + counts.skipped_total(), before + asked);
            prop_assert_eq!(counts.taken, next.examples().len() as u64);
            dataset = next;
        }
    }

    #[test]
    fn millionths_keep_every_number_with_six_decimals(micro in -9_000_000_000_000_i64..9_000_000_000_000) {
        let number = micro_number(micro);
        prop_assert_eq!(number.as_f64().and_then(micro_of), Some(micro));
    }
}
