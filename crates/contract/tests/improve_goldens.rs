//! The published values of datasets, jobs and evaluations. They stand in one table, which this crate, the crates that
//! compute statistics and metrics, and a second implementation in another language read.

use std::path::Path;
use std::process::Command;

use cantrip_canon::{Hash, json};
use cantrip_contract::{
    COMPILER_VERSION, Dataset, EvalId, EvalReport, ExampleDraft, ExampleId, ExampleSource, JobSpec, Labels, ReportId,
    Side, SourceKind, Split, SplitPolicy, SplitSeed, SplitShares, Subject, TrialKey, TrialResult, near_form, near_hash,
    results_hash,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::signatures::classify;

/// One part of the table.
pub(crate) fn golden(part: &str) -> Value {
    let table = json::read(include_str!("improve-goldens.json")).unwrap();
    table[part].clone()
}

/// A value of the table as its type.
fn read<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap()
}

pub(crate) fn source() -> ExampleSource {
    ExampleSource { kind: SourceKind::File, id: "tickets.jsonl".to_owned(), line: Some(1) }
}

/// The published example, as a line of a file.
pub(crate) fn draft() -> ExampleDraft {
    let table = golden("example");
    let mut draft = ExampleDraft::new(table["input"].clone(), source());
    draft.expected = Some(table["expected"].clone());
    draft
}

pub(crate) fn subject() -> Subject {
    read(&golden("example")["subject"])
}

#[test]
fn a_second_implementation_computes_every_value_of_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let done = Command::new("python3")
        .arg(folder.join("improve_goldens.py"))
        .arg(folder.join("improve-goldens.json"))
        .output()
        .unwrap();
    let (said, complaint) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{said}{complaint}");
}

#[test]
fn the_example_and_its_dataset_have_the_published_hashes() {
    let table = golden("example");
    let policy = SplitPolicy::default();
    assert_eq!(policy.shares, read::<SplitShares>(&table["shares"]));
    assert_eq!(policy.seed, read::<SplitSeed>(&table["split_seed"]));
    let built = Dataset::build(subject(), vec![draft()], &policy, &[]).unwrap();
    let [example] = built.dataset.examples() else { panic!("{built:?}") };
    assert_eq!(example.id, read::<ExampleId>(&table["example_id"]));
    assert_eq!(example.content_hash(), read::<Hash>(&table["content_hash"]));
    assert_eq!(example.split, read::<Split>(&table["split"]));
    assert_eq!(built.dataset.hash(), read::<Hash>(&table["dataset_hash"]));

    let near = near_form(&example.input);
    assert_eq!(near, read::<String>(&table["near_form"]));
    assert_eq!(near_hash(&near), read::<Hash>(&table["near_hash"]));
    assert_eq!(example.near_hash(), near_hash(&near));
    assert_eq!(u64::from(policy.seed.bucket(&example.input_hash().to_string())), read::<u64>(&table["bucket"]));

    let labels = Labels::new(read::<Vec<String>>(&table["labels"])).unwrap();
    let labelled = ExampleDraft { labels, ..draft() };
    assert_eq!(labelled.content_hash(), read::<Hash>(&table["labelled_content_hash"]));
}

#[test]
fn buckets_are_the_published_ones() {
    let table = golden("buckets");
    let seed: SplitSeed = read(&table["split_seed"]);
    let buckets: Vec<u8> = read::<Vec<String>>(&table["keys"]).iter().map(|key| seed.bucket(key)).collect();
    assert_eq!(buckets, read::<Vec<u8>>(&table["buckets"]));
}

#[test]
fn the_job_its_report_and_its_trial_have_the_published_names() {
    let table = golden("job");
    let spec = JobSpec::from_value(&table["spec"]).unwrap();
    assert_eq!(spec.compiler_version, COMPILER_VERSION);
    assert_eq!(spec.hashes, Some(classify().hashes()));
    assert_eq!(spec.content(), table["spec"]);
    assert_eq!(spec.job_hash(), read::<Hash>(&table["job_hash"]));
    assert_eq!(spec.metric_hash(), read::<Hash>(&golden("metrics")[0]["metric_hash"]));
    assert_eq!(spec.eval_report_id(), Some(read::<ReportId>(&table["report_id"])));
    assert_eq!(spec.eval_id(), Some(read::<EvalId>(&table["eval_id"])));

    let trial = golden("trial");
    let key = TrialKey {
        job_hash: read(&trial["job_hash"]),
        candidate: read(&trial["compiled_id"]),
        example_id: read(&trial["example_id"]),
        epoch: read(&trial["epoch"]),
        attempt: read(&trial["try"]),
    };
    assert_eq!(key.idempotency_key(), read::<String>(&trial["idempotency_key"]));
}

/// The results of both sides whose differences are the published ones, the last example first.
pub(crate) fn results() -> Vec<TrialResult> {
    let differences: Vec<i64> = read(&golden("report")["differences"]);
    let sides = |(place, difference): (usize, &i64)| {
        let result = |side, is_right| TrialResult {
            example_id: format!("ex_{:02}", place + 1).parse().unwrap(),
            side,
            epoch: 1,
            score: Some(if is_right { 1_000_000 } else { 0 }),
            unscored: None,
            receipt_id: None,
        };
        [result(Side::Subject, *difference >= 0), result(Side::Baseline, *difference <= 0)]
    };
    differences.iter().enumerate().rev().flat_map(sides).collect()
}

#[test]
fn the_results_and_the_report_have_the_published_hashes() {
    let table = golden("report");
    let report = EvalReport::from_value(&table["body"]).unwrap();
    assert_eq!(results_hash(&results()), read::<Hash>(&table["results_hash"]));
    assert_eq!(report.results_hash, results_hash(&results()));
    assert_eq!(report.content(), table["body"]);
    assert_eq!(report.hash(), read::<Hash>(&table["report_hash"]));
    assert_eq!(report.split, Split::Test);
}
