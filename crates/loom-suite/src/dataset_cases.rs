//! Datasets, their versions, verdicts, metrics and guards.

use cantrip_canon::Timestamp;
use cantrip_contract::{
    ContractFault, DatasetDraft, DatasetVersionRow, GuardAction, GuardRow, ImproveFault, ImproveRow, Labels, MetricRow,
    Split, Status, Verdict, VerdictRow, VerdictWord,
};
use futures_util::future::join_all;
use serde_json::json;

use super::contract_cases::{apart, draft, fault, publish, receipt, signature};
use super::fixtures::{append, odd};
use super::improve_fixtures::{dataset, dataset_rows, eval_spec, ground, improve, job_step, metric, metric_row, spell};
use super::{LoomWriter, Store, Subject};
use cantrip_loom::{
    AppendOutcome, Body, Error, Improvements, JobFilter, Journal, PageRequest, ReceiptFilter, Seq, Step,
};

pub(super) async fn improvements_are_never_dropped<S: Subject>(subject: S) {
    let store = subject.store();
    let mut weaver = LoomWriter::new(store);
    let set = dataset(&spell("count"), &[("one", Split::Test)]);
    let step = ground(&mut weaver, &set);
    if !subject.keeps_contracts() {
        let prepared = Step::outside_runs(weaver.step_id()).bodies(step.bodies.clone());
        assert!(matches!(store.append(prepared).await, Err(Error::NoContracts)));
        assert!(matches!(store.append(step).await, Err(Error::NoContracts)));
        assert!(matches!(store.dataset(set.hash()).await, Err(Error::NoContracts)));
        assert!(matches!(store.jobs(JobFilter::default(), PageRequest::FIRST).await, Err(Error::NoContracts)));
        return;
    }
    // A row that belongs to a run is invalid outside runs, and the other way round.
    let (_, job) = job_step(&mut weaver, &eval_spec(&set, 0));
    let stray = Step::outside_runs(weaver.step_id()).contract(improve(ImproveRow::Job(Box::new(job.row))));
    assert!(matches!(store.append(stray).await, Err(Error::InvalidStep { .. })));
    let episode = weaver.cast("count").await;
    let now = weaver.now();
    let stray = weaver.step_with(&episode, odd(1)).contract(improve(ImproveRow::Metric(Box::new(metric_row(now)))));
    assert!(matches!(store.append(stray).await, Err(Error::InvalidStep { .. })));
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
}

pub(super) async fn a_dataset_is_kept_once_with_its_examples<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let subject = spell("count");
    let set = dataset(
        &subject,
        &[("one", Split::Train), ("two", Split::Test), ("three", Split::Test), ("four", Split::Holdout)],
    );
    let hash = set.hash();
    let (draft, bodies) = dataset_rows(&set, weaver.now());
    let with = |draft: &DatasetDraft| improve(ImproveRow::Dataset(Box::new(draft.clone())));
    // Without its bodies it is not written.
    let bare = Step::outside_runs(weaver.step_id()).contract(with(&draft));
    assert!(matches!(store.append(bare.clone()).await, Err(Error::InvalidStep { .. })));
    assert!(matches!(store.dataset(hash).await, Err(Error::NotFound { .. })));
    // A step of bodies alone prepares it; then it needs none of its own.
    let prepared = Step::outside_runs(weaver.step_id()).bodies(bodies.clone());
    assert_eq!(append(store, prepared).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(store.body(bodies[0].hash()).await.expect("it is stored"), bodies[0]);
    // A dataset that does not have the hash that it claims is refused whole.
    let mut moved = draft.clone();
    moved.examples[0].split = Split::Holdout;
    let mut lacking = draft.clone();
    lacking.examples.pop();
    let mut doubled = draft.clone();
    doubled.examples.push(draft.examples[0].clone());
    for wrong in [moved, lacking, doubled] {
        let answer = apart(&mut weaver, store, [with(&wrong)]).await;
        assert!(matches!(fault(answer), ContractFault::Improve(ImproveFault::Unfit { kind: "dataset", .. })));
    }
    assert!(matches!(store.dataset(hash).await, Err(Error::NotFound { .. })));
    for _ in 0..2 {
        assert_eq!(append(store, bare.clone()).await, AppendOutcome::Committed(Seq::START));
    }
    assert_eq!(store.dataset(hash).await.expect("it is stored"), draft.row);
    assert_eq!(store.datasets(PageRequest::FIRST).await.expect("datasets").items, std::slice::from_ref(&draft.row));
    // The examples come in the order of their ids, whatever the order in which they were given.
    let mut sorted = draft.examples.clone();
    sorted.sort_by(|a, b| a.example_id.cmp(&b.example_id));
    let page = PageRequest { after: None, most: 3 };
    let first = store.dataset_examples(hash, None, page).await.expect("examples");
    assert_eq!(first.items, sorted[..3]);
    let next = page.following(first.next).expect("there is one more");
    let last = store.dataset_examples(hash, None, next).await.expect("examples");
    assert_eq!((last.items, last.next), (sorted[3..].to_vec(), None));
    let tests: Vec<_> = sorted.iter().filter(|row| row.split == Split::Test).cloned().collect();
    let found = store.dataset_examples(hash, Some(Split::Test), PageRequest::FIRST).await.expect("examples");
    assert_eq!((found.items.len(), found.items), (2, tests));
    let one = &sorted[0];
    assert_eq!(store.dataset_example(hash, one.example_id.clone()).await.expect("an example"), *one);
    let unknown = "ex_none".parse().expect("an id");
    assert!(matches!(store.dataset_example(hash, unknown).await, Err(Error::NotFound { .. })));
    // A dataset of a signature needs the signature.
    let sort = signature("Sort", 1, "Sort it.");
    let of_signature = dataset(&sort.id().clone().into(), &[("one", Split::Test)]);
    let step = ground(&mut weaver, &of_signature);
    assert!(matches!(fault(append(store, step.clone()).await), ContractFault::Unknown { kind: "signature", .. }));
    publish(&mut weaver, store, &sort).await;
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
}

pub(super) async fn versions_of_a_name_follow_each_other<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let subject = spell("count");
    let sets = ["one", "two", "three"].map(|intent| dataset(&subject, &[(intent, Split::Test)]));
    for set in &sets {
        let step = ground(&mut weaver, set);
        assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
    }
    let version = |version: u64, set: usize, parent: Option<usize>, by: &str, at: Timestamp| {
        improve(ImproveRow::DatasetVersion(Box::new(DatasetVersionRow {
            name: "words".parse().expect("a name"),
            version,
            dataset_hash: sets[set].hash(),
            parent_hash: parent.map(|parent| sets[parent].hash()),
            note: None,
            at,
            by: by.to_owned(),
        })))
    };
    let committed = AppendOutcome::Committed(Seq::START);
    let now = weaver.now();
    assert_eq!(apart(&mut weaver, store, [version(1, 0, None, "ann", now)]).await, committed);
    // Of writers that saw the same newest version one wins.
    let mut steps = Vec::new();
    for (number, by) in ["ann", "bob", "cleo"].into_iter().enumerate() {
        let row = version(2, 1 + number % 2, Some(0), by, now);
        steps.push(Step::outside_runs(weaver.step_id()).contract(row));
    }
    let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
    let taken = answers.iter().filter(|answer| **answer == committed).count();
    // The first wins; one of the others brings the same content, which adds nothing.
    assert!((1..=2).contains(&taken), "{answers:?}");
    let second = store.dataset_version("words".parse().expect("a name"), None).await.expect("an answer");
    let second = second.expect("there is one");
    assert_eq!((second.version, second.parent_hash), (2, Some(sets[0].hash())));
    let newest = sets.iter().position(|set| set.hash() == second.dataset_hash).expect("one of them");
    let other = 3 - newest;
    // A number that is taken, one that leaves a gap, and a wrong parent.
    for row in [
        version(2, other, Some(0), "ann", now),
        version(4, other, Some(newest), "ann", now),
        version(3, other, Some(0), "ann", now),
    ] {
        let answer = apart(&mut weaver, store, [row]).await;
        assert!(matches!(fault(answer), ContractFault::Improve(ImproveFault::Version { newest: 2, .. })));
    }
    // The same step again, and the same content again, add none.
    assert_eq!(apart(&mut weaver, store, [version(1, 0, None, "ann", now)]).await, committed);
    assert_eq!(apart(&mut weaver, store, [version(3, newest, Some(newest), "ann", now)]).await, committed);
    assert_eq!(apart(&mut weaver, store, [version(3, other, Some(newest), "ann", now)]).await, committed);
    let name = || "words".parse().expect("a name");
    let all = store.dataset_versions(Some(name()), PageRequest::FIRST).await.expect("versions").items;
    assert_eq!(all.iter().map(|row| row.version).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(store.dataset_versions(None, PageRequest::FIRST).await.expect("versions").items, all);
    let none = store.dataset_versions(Some("other".parse().expect("a name")), PageRequest::FIRST).await;
    assert!(none.expect("versions").items.is_empty());
    assert_eq!(store.dataset_version(name(), Some(2)).await.expect("an answer"), Some(all[1].clone()));
    assert_eq!(store.dataset_version(name(), Some(9)).await.expect("an answer"), None);
    // A version of a dataset that is not stored.
    let row = DatasetVersionRow { dataset_hash: second_hash(), version: 4, ..all[2].clone() };
    let answer = apart(&mut weaver, store, [improve(ImproveRow::DatasetVersion(Box::new(row)))]).await;
    assert!(matches!(fault(answer), ContractFault::Unknown { kind: "dataset", .. }));
}

fn second_hash() -> cantrip_canon::Hash {
    cantrip_canon::bytes_hash(b"no dataset")
}

pub(super) async fn verdicts_are_kept_and_the_latest_counts<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("count").await;
    let row = draft(receipt(&episode, None, Status::Succeeded, weaver.now()), Vec::new());
    let step = weaver.step_with(&episode, odd(1)).contract(row);
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    let about = store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.expect("receipts").items[0].clone();
    let body = Body::new(&b"\"five\""[..]).expect("a small body");
    let said = |verdict: VerdictWord, expected: Option<serde_json::Value>, at: Timestamp| {
        let labels = Labels::new(["sums"]).expect("a label");
        let (receipt_id, note, by) = (about.receipt_id.clone(), Some("look again".to_owned()), "ann".to_owned());
        let said = Verdict { receipt_id, verdict, expected, labels, note, by, at };
        VerdictRow {
            verdict_id: said.id(),
            receipt_id: said.receipt_id.clone(),
            verdict,
            expected_hash: said.expected_hash(),
            labels: said.labels.clone(),
            note: said.note.clone(),
            by: said.by.clone(),
            at,
        }
    };
    let good = said(VerdictWord::Good, None, weaver.now());
    let bad = said(VerdictWord::Bad, Some(json!("five")), weaver.now());
    assert_eq!(bad.expected_hash, Some(body.hash()));
    let write = |row: &VerdictRow| improve(ImproveRow::Verdict(Box::new(row.clone())));
    for _ in 0..2 {
        assert_eq!(apart(&mut weaver, store, [write(&good)]).await, AppendOutcome::Committed(Seq::START));
    }
    let step = Step::outside_runs(weaver.step_id()).contract(write(&bad)).bodies([body]);
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(store.verdicts_of(about.receipt_id.clone()).await.expect("verdicts"), [good.clone(), bad.clone()]);
    assert_eq!(store.verdicts(PageRequest::FIRST).await.expect("verdicts").items, [good.clone(), bad]);
    let other = VerdictRow { note: None, ..good.clone() };
    let answer = apart(&mut weaver, store, [write(&other)]).await;
    assert!(matches!(fault(answer), ContractFault::Other { kind: "verdict", .. }));
    let receipt_id = "rcpt_00000000000000000000000000000000".parse().expect("an id");
    let stray = VerdictRow { receipt_id, ..good };
    let answer = apart(&mut weaver, store, [write(&stray)]).await;
    assert!(matches!(fault(answer), ContractFault::Unknown { kind: "receipt", .. }));
}

pub(super) async fn a_metric_is_kept_under_its_hash<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let row = metric_row(weaver.now());
    let write = |row: &MetricRow| improve(ImproveRow::Metric(Box::new(row.clone())));
    let wrong = MetricRow { body: "{}".to_owned(), ..row.clone() };
    let answer = apart(&mut weaver, store, [write(&wrong)]).await;
    assert!(matches!(fault(answer), ContractFault::Improve(ImproveFault::Unfit { kind: "metric", .. })));
    let named = MetricRow { name: Some("exact".to_owned()), ..row.clone() };
    for given in [&row, &named] {
        assert_eq!(apart(&mut weaver, store, [write(given)]).await, AppendOutcome::Committed(Seq::START));
    }
    assert_eq!(store.metric(row.metric_hash).await.expect("a metric"), row, "the first one stays");
    assert_eq!(store.metrics(PageRequest::FIRST).await.expect("metrics").items, std::slice::from_ref(&row));
    assert_eq!(row.value().expect("it has its hash"), metric());
    assert!(matches!(store.metric(second_hash()).await, Err(Error::NotFound { .. })));
}

pub(super) async fn a_look_of_a_guard_is_counted_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    publish(&mut weaver, store, &sort).await;
    let row = GuardRow {
        signature_id: sort.id().clone(),
        action: GuardAction::Alert,
        margin_micro: 20_000,
        canary_audit: None,
        looks: 0,
        updated_at: weaver.now(),
        by: "ann".to_owned(),
    };
    let set = |row: &GuardRow, expected_looks: Option<u64>| {
        improve(ImproveRow::Guard { row: Box::new(row.clone()), expected_looks })
    };
    assert_eq!(apart(&mut weaver, store, [set(&row, None)]).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(store.guard(sort.id().clone()).await.expect("an answer"), Some(row.clone()));
    let looked = GuardRow { looks: 1, updated_at: weaver.now(), by: "guard".to_owned(), ..row.clone() };
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(Step::outside_runs(weaver.step_id()).contract(set(&looked, Some(0))));
    }
    let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
    let counted = answers.iter().filter(|answer| matches!(answer, AppendOutcome::Committed(_))).count();
    assert_eq!(counted, 1, "{answers:?}");
    let answer = apart(&mut weaver, store, [set(&looked, Some(0))]).await;
    assert!(matches!(fault(answer), ContractFault::Improve(ImproveFault::Guard { looks: 1, expected: 0, .. })));
    // The count alone does not make a look a new one: it is this canary's first one again.
    let answer = apart(&mut weaver, store, [set(&looked, Some(1))]).await;
    assert!(matches!(fault(answer), ContractFault::Improve(ImproveFault::Guard { looks: 1, expected: 1, .. })));
    assert_eq!(store.guards().await.expect("guards"), std::slice::from_ref(&looked));
    // A setting leaves the looks as they are, and a look leaves the setting as it is.
    let setting = GuardRow { action: GuardAction::Clear, margin_micro: 50_000, looks: 0, ..looked.clone() };
    assert_eq!(apart(&mut weaver, store, [set(&setting, None)]).await, AppendOutcome::Committed(Seq::START));
    let kept = GuardRow { looks: 1, ..setting };
    assert_eq!(store.guards().await.expect("guards"), std::slice::from_ref(&kept));
    let second = GuardRow { looks: 2, ..looked.clone() };
    assert_eq!(apart(&mut weaver, store, [set(&second, Some(1))]).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(store.guards().await.expect("guards"), [GuardRow { looks: 2, ..kept }]);
    let odd = GuardRow { canary_audit: Some(weaver.id()), ..looked };
    let answer = apart(&mut weaver, store, [set(&odd, None)]).await;
    assert!(matches!(fault(answer), ContractFault::Unknown { kind: "audit", .. }));
}
