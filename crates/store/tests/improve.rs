//! Datasets, jobs and reports cannot be changed unnoticed, and two processes neither open a job twice nor take one look
//! for two.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use cantrip_contract::{
    ContractFault, ContractRow, EvalStatus, GuardAction, GuardRow, ImproveFault, ImproveRow, JobStatus, Signature,
    SignatureOrigin, SignatureRow, Split,
};
use cantrip_loom::{
    AppendOutcome, Conflict, Improvements, JobClosed, JobScored, Journal, Loom, PageRequest, Seq, Step,
};
use cantrip_loom_suite::LoomWriter;
use cantrip_loom_suite::improve_fixtures::{
    SampleJob, dataset, eval_spec, ground, improve, job_step, open_job, spell, step_of, test_set,
};
use cantrip_store::Store;
use futures_util::future::join_all;
use support::{IMPROVEMENT_TABLES, Kit, RefusedBy, assert_refused};

on_both! {
    what_was_evaluated_stays,
    an_edited_row_is_named,
    two_stores_open_a_job_once,
    two_stores_never_take_the_same_look,
    two_stores_count_the_first_look_of_a_guard_once,
    a_store_without_datasets_gets_them,
    a_large_dataset_is_one_step,
}

fn close<J: Journal>(weaver: &mut LoomWriter<'_, J>, job: &SampleJob, k: u64) -> Step {
    let now = weaver.now();
    let job_id = job.row.job_id;
    let closed = JobClosed { job_id, status: JobStatus::Succeeded, report_id: None, eval_id: None, error: None };
    step_of(weaver, job, closed)
        .contract(improve(job.moved(JobStatus::Succeeded, now)))
        .contract(improve(job.reported(job.report(EvalStatus::Succeeded, Some(k), now))))
}

/// Writes a dataset with a version, and an evaluation with one result and its report.
async fn evaluated(store: &Store) -> SampleJob {
    let mut weaver = LoomWriter::new(store);
    let set = dataset(&spell("count"), &[("one", Split::Test), ("two", Split::Test), ("three", Split::Train)]);
    let mut step = ground(&mut weaver, &set);
    let version = cantrip_contract::DatasetVersionRow {
        name: "words".parse().unwrap(),
        version: 1,
        dataset_hash: set.hash(),
        parent_hash: None,
        note: None,
        at: weaver.now(),
        by: "ann".to_owned(),
    };
    step.contract.push(improve(ImproveRow::DatasetVersion(Box::new(version))));
    assert_eq!(store.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let (row, feedback) = job.result(2, &set.examples()[0].id, 1_000_000, weaver.now());
    let scored = JobScored {
        candidate_id: row.candidate_id.clone(),
        example_id: row.example_id.clone(),
        epoch: row.epoch,
        try_number: row.try_number,
        score: row.score_micro,
        unscored: None,
        own_failure: false,
        receipt_id: None,
    };
    let step =
        step_of(&mut weaver, &job, scored).contract(improve(ImproveRow::Result(Box::new(row)))).bodies([feedback]);
    weaver.commit(step).await;
    let step = close(&mut weaver, &job, 1);
    weaver.commit(step).await;
    job
}

async fn what_was_evaluated_stays<K: Kit>(kit: K) {
    evaluated(kit.store()).await;
    assert_eq!(kit.store().verify_rows().await.unwrap(), Vec::<String>::new());
    for (sql, by) in [
        ("UPDATE ds_datasets SET split_seed = 'other'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_datasets", RefusedBy::Kept),
        ("UPDATE ds_dataset_versions SET by = 'bob'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_dataset_versions", RefusedBy::Kept),
        ("UPDATE ds_dataset_examples SET split = 'train'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_dataset_examples", RefusedBy::Kept),
        ("UPDATE ds_metrics SET body = '{}'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_metrics", RefusedBy::Kept),
        ("UPDATE ds_jobs SET spec = '{}'", RefusedBy::WrittenOnce),
        ("UPDATE ds_jobs SET dataset_hash = metric_hash", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_jobs", RefusedBy::Kept),
        ("UPDATE ds_jobs SET status = 'good'", RefusedBy::Check),
        ("UPDATE ds_jobs SET finished_at = NULL", RefusedBy::Check),
        ("UPDATE ds_example_results SET score = 0", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_example_results", RefusedBy::Kept),
        ("UPDATE ds_eval_reports SET verdict = 'better'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_eval_reports", RefusedBy::Kept),
        ("UPDATE ds_looks SET k = 9", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_looks", RefusedBy::Kept),
        (
            "INSERT INTO ds_verdicts (verdict_id, receipt_id, verdict, labels, by, at) \
             VALUES ('vrd_1', 'rcpt_nothing', 'good', '[]', 'ann', 0)",
            RefusedBy::ForeignKey,
        ),
        (
            "INSERT INTO ds_candidates (job_id, candidate_id, ordinal, parent_ids, op, accepted, at) \
             SELECT run_id, 'var_1', 0, '[]', 'x', 2, 0 FROM ds_jobs",
            RefusedBy::Check,
        ),
        (
            "INSERT INTO ds_judge_checks (metric_hash, dataset_hash, at, n, agree, low_micro, kappa_micro, job_id) \
             SELECT dataset_hash, dataset_hash, 0, 1, 1, 1, 1, job_id FROM ds_jobs",
            RefusedBy::ForeignKey,
        ),
        (
            "INSERT INTO ds_guards (signature_id, action, margin_micro, looks, updated_at, by) \
             VALUES ('@a/b/C.v1', 'alert', 0, 0, 0, 'ann')",
            RefusedBy::ForeignKey,
        ),
    ] {
        assert_refused(&kit, sql, by);
    }
    kit.by_hand("UPDATE ds_jobs SET metric_calls = 3").unwrap();
}

async fn an_edited_row_is_named<K: Kit>(_: K) {
    // Each edit, the trigger that stands in its way, and the table that the finding names.
    let edits = [
        ("ds_datasets", "UPDATE ds_datasets SET split_seed = 'other'", "ds_datasets"),
        ("ds_dataset_examples", "UPDATE ds_dataset_examples SET weight = 5", "ds_dataset_examples"),
        ("ds_dataset_versions", "UPDATE ds_dataset_versions SET version = 2", "ds_dataset_versions"),
        ("ds_metrics", "UPDATE ds_metrics SET body = '{}'", "metric"),
        ("ds_jobs", "UPDATE ds_jobs SET split = 'train'", "ds_jobs"),
        ("ds_example_results", "UPDATE ds_example_results SET score = 0", "ds_example_results"),
        ("ds_example_results", "UPDATE ds_example_results SET feedback_hash = job_id", "column"),
        ("ds_eval_reports", "UPDATE ds_eval_reports SET verdict = 'better'", "ds_eval_reports"),
        ("ds_looks", "UPDATE ds_looks SET k = 2", "ds_looks"),
    ];
    for (table, edit, named) in edits {
        let kit = K::fresh();
        evaluated(kit.store()).await;
        kit.by_hand(&kit.without_trigger(table, &format!("{table}_stay_as_written"))).unwrap();
        kit.by_hand(edit).unwrap();
        // A value that cannot be is damage; any other edit is a finding.
        match kit.store().verify_rows().await {
            Ok(found) => assert!(found.iter().any(|fault| fault.contains(named)), "{edit}: {found:?}"),
            Err(damage) => assert!(damage.to_string().contains(named), "{edit}: {damage}"),
        }
    }
}

async fn two_stores_open_a_job_once<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let set = test_set(&spell("count"), &["one"]);
    let step = ground(&mut weaver, &set);
    assert_eq!(one.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
    for rerun in 0..4 {
        let opened: Vec<(Step, SampleJob)> = (0..6).map(|_| job_step(&mut weaver, &eval_spec(&set, rerun))).collect();
        let writers = opened.iter().enumerate().map(|(number, (step, _))| {
            if number % 2 == 0 { one.append(step.clone()) } else { two.append(step.clone()) }
        });
        let answers = join_all(writers).await;
        let won = answers.iter().filter(|answer| matches!(answer, Ok(AppendOutcome::Committed(_)))).count();
        assert_eq!(won, 1, "{answers:?}");
        let exists = |answer: &AppendOutcome| {
            matches!(answer, AppendOutcome::Conflict(Conflict::Contract(fault))
                if matches!(**fault, ContractFault::Improve(ImproveFault::JobExists { .. })))
        };
        let told = answers.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(told.iter().filter(|answer| exists(answer)).count(), 5, "{told:?}");
    }
    assert_eq!(two.jobs(cantrip_loom::JobFilter::default(), PageRequest::FIRST).await.unwrap().items.len(), 4);
    assert_eq!(two.runs(PageRequest::FIRST).await.unwrap().items.len(), 4);
}

async fn two_stores_never_take_the_same_look<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    // Two datasets whose test inputs are the same but for one, so that a look at either counts for both.
    let sets =
        [&["one", "two", "three"][..], &["one", "two", "four"][..]].map(|intents| test_set(&spell("count"), intents));
    for set in &sets {
        let step = ground(&mut weaver, set);
        assert_eq!(one.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
    }
    let mut jobs = Vec::new();
    for number in 0..8 {
        jobs.push(open_job(&mut weaver, &eval_spec(&sets[number % 2], number as u64)).await);
    }
    for k in 1..=8 {
        let steps: Vec<Step> = jobs.iter().map(|job| close(&mut weaver, job, k)).collect();
        let writers = steps
            .into_iter()
            .enumerate()
            .map(|(number, step)| if number % 2 == 0 { one.append(step) } else { two.append(step) });
        let answers = join_all(writers).await;
        let won: Vec<usize> = answers
            .iter()
            .enumerate()
            .filter(|(_, answer)| matches!(answer, Ok(AppendOutcome::Committed(_))))
            .map(|(number, _)| number)
            .collect();
        assert_eq!(won.len(), 1, "look {k}: {answers:?}");
        jobs.remove(won[0]);
    }
    let looks = two.looks(spell("count"), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(looks.iter().map(|look| look.k).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(one.verify_rows().await.unwrap(), Vec::<String>::new());
}

async fn two_stores_count_the_first_look_of_a_guard_once<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    let mut weaver = LoomWriter::new(one);
    let text = serde_json::json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
    for version in 1..=16 {
        let signature = Signature::builder("@case/text", "Sort", version)
            .description("A case.")
            .instructions("Sort it.")
            .system("{{ instructions }}")
            .user("{{ inputs.text | fence('text') }}")
            .input(text.clone())
            .output(text.clone())
            .build()
            .unwrap();
        let row = SignatureRow::new(&signature, SignatureOrigin::Api, "ann", weaver.now());
        let step = Step::outside_runs(weaver.step_id()).contract(ContractRow::Signature(Box::new(row)));
        assert_eq!(one.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
        // There is no row yet that a transaction could lock.
        let row = GuardRow {
            signature_id: signature.id().clone(),
            action: GuardAction::Alert,
            margin_micro: 20_000,
            canary_audit: None,
            looks: 1,
            updated_at: weaver.now(),
            by: "guard".to_owned(),
        };
        let look = || improve(ImproveRow::Guard { row: Box::new(row.clone()), expected_looks: Some(0) });
        let steps: Vec<Step> = (0..4).map(|_| Step::outside_runs(weaver.step_id()).contract(look())).collect();
        let writers = steps
            .into_iter()
            .enumerate()
            .map(|(number, step)| if number % 2 == 0 { one.append(step) } else { two.append(step) });
        let answers = join_all(writers).await;
        let counted = answers.iter().filter(|answer| matches!(answer, Ok(AppendOutcome::Committed(_)))).count();
        assert_eq!(counted, 1, "{answers:?}");
    }
    assert_eq!(two.guards().await.unwrap().len(), 16);
}

async fn a_store_without_datasets_gets_them<K: Kit>(kit: K) {
    let mut weaver = LoomWriter::new(kit.store());
    let episode = weaver.cast("count").await;
    // The store as the version before wrote it.
    kit.by_hand(support::WITHOUT_OVERVIEW).unwrap();
    for table in IMPROVEMENT_TABLES {
        kit.by_hand(&format!("DROP TABLE {table}")).unwrap();
    }
    kit.by_hand("DELETE FROM schema_versions WHERE version >= 6").unwrap();
    let kit = kit.reopen().await.unwrap();
    kit.store().verify().await.unwrap();
    assert_eq!(kit.store().run(episode.run).await.unwrap().run_id, episode.run);
    assert!(kit.store().datasets(PageRequest::FIRST).await.unwrap().items.is_empty());
}

async fn a_large_dataset_is_one_step<K: Kit>(kit: K) {
    let store = kit.store();
    let mut weaver = LoomWriter::new(store);
    let intents: Vec<String> = (0..3_000).map(|number| format!("count to {number}")).collect();
    let set = test_set(&spell("count"), &intents.iter().map(String::as_str).collect::<Vec<_>>());
    let step = ground(&mut weaver, &set);
    for _ in 0..2 {
        assert_eq!(store.append(step.clone()).await.unwrap(), AppendOutcome::Committed(Seq::START));
    }
    let (mut page, mut found) = (Some(PageRequest::FIRST), Vec::new());
    while let Some(next) = page {
        let read = store.dataset_examples(set.hash(), Some(Split::Test), next).await.unwrap();
        found.extend(read.items.into_iter().map(|row| row.example_id));
        page = next.following(read.next);
    }
    let ids: Vec<_> = set.examples().iter().map(|example| example.id.clone()).collect();
    assert_eq!(found, ids);
    // A page is read without the rest of the dataset.
    let before = store.rows_read();
    store.dataset_examples(set.hash(), None, PageRequest { after: None, most: 10 }).await.unwrap();
    assert!(store.rows_read() - before <= 12, "{}", store.rows_read() - before);
}
