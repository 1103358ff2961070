//! Jobs: opened once, tried, parked, closed, continued and reported, with looks that are counted.

use cantrip_canon::{Hash, Timestamp, bytes_hash};
use cantrip_contract::{
    CandidateRow, CompileReportDraft, ContractFault, Dataset, EvalStatus, ExampleResultRow, ImproveFault, ImproveRow,
    JobBounds, JobStatus, JobUpdate, JudgeCheckRow, LookQuery, Split, Status, TrialRef, Unscored,
};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::json;

use super::contract_cases::{draft, fault, receipt};
use super::fixtures::{append, odd};
use super::improve_fixtures::{
    SampleJob, candidate, dataset, eval_spec, ground, improve, job_step, open_job, spell, step_of, test_set,
};
use super::{LoomWriter, Store, Subject};
use cantrip_loom::{
    Actor, AppendOutcome, Conflict, Error, EvalFilter, Event, Improvements, JobAccepted, JobAsked, JobClosed,
    JobContinued, JobFilter, JobParked, JobProgress, JobProposed, JobScored, Journal, PageRequest, ParkReason,
    ReceiptFilter, RecordValue, RunKind, RunState, Seq, Step,
};

fn asked(number: u64) -> JobAsked {
    JobAsked { number, digest: bytes_hash(b"ask"), trials: 4, proposals: 0 }
}

fn closed(job: &SampleJob, status: JobStatus) -> JobClosed {
    JobClosed { job_id: job.row.job_id, status, report_id: None, eval_id: None, error: None }
}

/// Writes a dataset with the metric, and fails the case unless they are stored.
async fn lay<J: Store>(weaver: &mut LoomWriter<'_, J>, store: &J, set: &Dataset) {
    let step = ground(weaver, set);
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
}

/// Closes a job with its report, as of now.
fn close_step<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    job: &SampleJob,
    status: EvalStatus,
    look: Option<u64>,
) -> Step {
    let now = weaver.now();
    let report = job.report(status, look, now);
    step_of(weaver, job, closed(job, status.into()))
        .contract(improve(job.moved(status.into(), now)))
        .contract(improve(job.reported(report)))
}

pub(super) async fn a_job_is_opened_once<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two"]);
    let spec = eval_spec(&set, 0);
    // Its dataset and its metric are stored first.
    let (early, _) = job_step(&mut weaver, &spec);
    assert!(matches!(fault(append(store, early).await), ContractFault::Unknown { kind: "dataset", .. }));
    lay(&mut weaver, store, &set).await;
    let opened: Vec<(Step, SampleJob)> = (0..4).map(|_| job_step(&mut weaver, &spec)).collect();
    let answers = join_all(opened.iter().map(|(step, _)| append(store, step.clone()))).await;
    let won = answers.iter().position(|answer| matches!(answer, AppendOutcome::Committed(_))).expect("one wins");
    let job = &opened[won].1;
    for (number, answer) in answers.into_iter().enumerate() {
        if number == won {
            continue;
        }
        let ContractFault::Improve(ImproveFault::JobExists { job_id, run_id, status, .. }) = fault(answer) else {
            panic!("it is another job")
        };
        assert_eq!((job_id, run_id, status), (job.row.job_id, job.row.run_id, JobStatus::Running));
        // Nothing of the others was written.
        let lost = &opened[number].1;
        assert!(matches!(store.run(lost.run()).await, Err(Error::NotFound { .. })));
        assert!(matches!(store.job(lost.row.job_id).await, Err(Error::NotFound { .. })));
    }
    assert_eq!(store.job(job.row.job_id).await.expect("a job"), job.row);
    assert_eq!(store.job_of_hash(job.row.job_hash).await.expect("an answer"), Some(job.row.clone()));
    assert_eq!(store.job_of_run(job.run()).await.expect("an answer"), Some(job.row.clone()));
    assert_eq!(job.row.spec().expect("it has its hash"), spec.content());
    let run = store.run(job.run()).await.expect("a run");
    assert_eq!((run.kind, run.state), (RunKind::Job, RunState::Running));
    // The step again is the step that was written.
    assert_eq!(append(store, opened[won].0.clone()).await, AppendOutcome::Committed(Seq::new(1)));
    // The same work once more, if somebody wants that, is another job.
    let again = open_job(&mut weaver, &eval_spec(&set, 1)).await;
    let other = test_set(&spell("sort"), &["one"]);
    lay(&mut weaver, store, &other).await;
    let third = open_job(&mut weaver, &eval_spec(&other, 0)).await;
    let all = |wanted: JobFilter| store.jobs(wanted, PageRequest::FIRST);
    let rows = [job.row.clone(), again.row.clone(), third.row.clone()];
    assert_eq!(all(JobFilter::default()).await.expect("jobs").items, rows);
    let newest = JobFilter { subject: Some(spell("count")), latest_first: true, ..JobFilter::default() };
    assert_eq!(all(newest).await.expect("jobs").items, [again.row.clone(), job.row.clone()]);
    let ended = JobFilter { status: Some(JobStatus::Failed), ..JobFilter::default() };
    assert!(all(ended).await.expect("jobs").items.is_empty());
    // A specification that does not have the hash.
    let (mut odd, mut wrong) = job_step(&mut weaver, &eval_spec(&set, 2));
    wrong.row.spec = "{}".to_owned();
    odd.contract = vec![improve(ImproveRow::Job(Box::new(wrong.row)))];
    assert!(matches!(fault(append(store, odd).await), ContractFault::Improve(ImproveFault::Unfit { kind: "job", .. })));
}

pub(super) async fn a_job_goes_on_where_it_ended<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two"]);
    lay(&mut weaver, store, &set).await;
    let mut job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let id = job.row.job_id;
    for status in [JobStatus::BudgetExhausted, JobStatus::Cancelled, JobStatus::Failed] {
        let end = weaver.now();
        let step = step_of(&mut weaver, &job, closed(&job, status)).contract(improve(job.moved(status, end)));
        weaver.commit(step).await;
        let row = store.job(id).await.expect("a job");
        assert_eq!((row.status, row.finished_at), (status, Some(end)));
        assert_eq!(store.run(job.run()).await.expect("a run").state, RunState::Failed, "{status:?}");
        let bounds = JobBounds { budget: Some("2 USD".parse().expect("an amount")), max_calls: None };
        let by = Actor::new("ann").expect("a name");
        let goes_on = JobContinued { by, bounds: bounds.clone(), max_proposals: None };
        let update = JobUpdate {
            job_id: id,
            status: JobStatus::Running,
            metric_calls: row.metric_calls + 1,
            proposals: 0,
            bounds: Some(bounds.clone()),
            error: None,
            at: weaver.now(),
        };
        let step =
            step_of(&mut weaver, &job, goes_on).contract(improve(ImproveRow::JobMoved(Box::new(update.clone()))));
        weaver.commit(step).await;
        let row = store.job(id).await.expect("a job");
        assert_eq!((row.status, row.finished_at, &row.bounds), (JobStatus::Running, None, &bounds));
        assert_eq!(row.started_at, job.row.started_at, "it began once");
        job.row = row;
        assert_eq!(store.run(job.run()).await.expect("a run").state, RunState::Running);
        // Counts never go back.
        let back = JobUpdate { metric_calls: 0, ..update };
        let step = step_of(&mut weaver, &job, asked(2)).contract(improve(ImproveRow::JobMoved(Box::new(back))));
        assert!(matches!(
            fault(append(store, step).await),
            ContractFault::Improve(ImproveFault::Unfit { kind: "job", .. })
        ));
    }
    let end = weaver.now();
    let done = job.moved(JobStatus::Succeeded, end);
    let step = step_of(&mut weaver, &job, closed(&job, JobStatus::Succeeded)).contract(improve(done));
    weaver.commit(step).await;
    let run = store.run(job.run()).await.expect("a run");
    assert_eq!((run.state, run.ended_at.is_some()), (RunState::Terminated, true));
    // It is over: neither a record nor a change of its row follows.
    let step = step_of(&mut weaver, &job, asked(3));
    let run = job.run();
    assert_eq!(append(store, step).await, AppendOutcome::Conflict(Conflict::RunEnded { run }));
    assert_eq!(store.job(id).await.expect("a job").status, JobStatus::Succeeded);
}

pub(super) async fn a_job_that_has_ended_stays_as_it_is<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let end = weaver.now();
    // The row ends before the run, so that the run still takes a step.
    let done = improve(job.moved(JobStatus::Incomplete, end));
    let step = step_of(&mut weaver, &job, asked(1)).contract(done.clone());
    weaver.commit(step).await;
    let step = step_of(&mut weaver, &job, asked(2)).contract(done);
    weaver.commit(step).await;
    let now = weaver.now();
    for status in [JobStatus::Running, JobStatus::Succeeded] {
        let step = step_of(&mut weaver, &job, asked(3)).contract(improve(job.moved(status, now)));
        assert!(matches!(
            fault(append(store, step).await),
            ContractFault::Improve(ImproveFault::JobEnded { status: JobStatus::Incomplete, .. })
        ));
    }
    assert_eq!(store.job(job.row.job_id).await.expect("a job").finished_at, Some(end));
}

pub(super) async fn a_parked_job_waits_until_its_next_record<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let parked = JobParked { reason: ParkReason::CrystalUnavailable, error: None, detail: None };
    let step = step_of(&mut weaver, &job, parked);
    weaver.commit(step).await;
    store.release(&job.lease).await.expect("a lease can be returned");
    assert_eq!(store.run(job.run()).await.expect("a run").state, RunState::Waiting);
    let orphans = store.orphans(super::at(10_000_000), PageRequest::FIRST).await.expect("orphans");
    assert!(orphans.items.iter().all(|run| run.run_id != job.run()), "nobody takes up a run that waits");
    let (now, lasts) = (weaver.now(), std::time::Duration::from_secs(60));
    let lease = store.acquire(job.run(), job.lease.owner.clone(), now, lasts).await.expect("it is free");
    let job = SampleJob { lease, ..job };
    let step = step_of(&mut weaver, &job, asked(1));
    weaver.commit(step).await;
    store.release(&job.lease).await.expect("a lease can be returned");
    assert_eq!(store.run(job.run()).await.expect("a run").state, RunState::Running);
}

pub(super) async fn a_trial_has_one_result<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two", "three"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let scored = |row: &ExampleResultRow| JobScored {
        candidate_id: row.candidate_id.clone(),
        example_id: row.example_id.clone(),
        epoch: row.epoch,
        try_number: row.try_number,
        score: row.score_micro,
        unscored: row.unscored,
        own_failure: row.own_failure,
        receipt_id: row.receipt_id.clone(),
    };
    let write = |row: &ExampleResultRow| improve(ImproveRow::Result(Box::new(row.clone())));
    let mut rows = Vec::new();
    for example in set.examples() {
        for number in [1, 2] {
            let (row, feedback) = job.result(number, &example.id, 500_000 * u64::from(number - 1), weaver.now());
            let step = step_of(&mut weaver, &job, scored(&row)).contract(write(&row)).bodies([feedback]);
            weaver.commit(step).await;
            rows.push(row);
        }
    }
    let first = rows[0].clone();
    // The same result again changes nothing, another one is a conflict.
    let step = step_of(&mut weaver, &job, scored(&first)).contract(write(&first));
    weaver.commit(step).await;
    let other = ExampleResultRow { score_micro: Some(1), ..first.clone() };
    let step = step_of(&mut weaver, &job, scored(&other)).contract(write(&other));
    assert!(matches!(fault(append(store, step).await), ContractFault::Other { kind: "result", .. }));
    // A score and a reason why there is none exclude each other, and one of them is there.
    let mut both = ExampleResultRow { epoch: 2, unscored: Some(Unscored::MetricFailed), ..first.clone() };
    let neither = ExampleResultRow { epoch: 2, score_micro: None, ..first.clone() };
    let high = ExampleResultRow { epoch: 2, score_micro: Some(1_000_001), ..first.clone() };
    for wrong in [&both, &neither, &high] {
        let step = step_of(&mut weaver, &job, scored(wrong)).contract(write(wrong));
        assert!(matches!(
            fault(append(store, step).await),
            ContractFault::Improve(ImproveFault::Unfit { kind: "result", .. })
        ));
    }
    both.score_micro = None;
    let step = step_of(&mut weaver, &job, scored(&both)).contract(write(&both));
    weaver.commit(step).await;
    rows.push(both);
    // A receipt that is named is stored.
    let receipt_id = Some("rcpt_00000000000000000000000000000000".parse().expect("an id"));
    let stray = ExampleResultRow { epoch: 3, receipt_id, ..first.clone() };
    let step = step_of(&mut weaver, &job, scored(&stray)).contract(write(&stray));
    assert!(matches!(fault(append(store, step).await), ContractFault::Unknown { kind: "receipt", .. }));
    let episode = weaver.cast("count").await;
    let row = draft(receipt(&episode, None, Status::Succeeded, weaver.now()), Vec::new());
    let step = weaver.step_with(&episode, odd(1)).contract(row);
    weaver.commit(step).await;
    let about = store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.expect("receipts").items[0].clone();
    let judge_receipts = vec![about.receipt_id.clone()];
    let with = ExampleResultRow { receipt_id: Some(about.receipt_id), judge_receipts, ..stray };
    let step = step_of(&mut weaver, &job, scored(&with)).contract(write(&with));
    weaver.commit(step).await;
    rows.push(with);
    // A feedback that nobody stored.
    let lost = ExampleResultRow { epoch: 4, feedback_hash: bytes_hash(b"nothing"), ..first.clone() };
    let step = step_of(&mut weaver, &job, scored(&lost)).contract(write(&lost));
    assert!(matches!(store.append(step).await, Err(Error::InvalidStep { .. })));
    let id = job.row.job_id;
    let page = PageRequest { after: None, most: 5 };
    let one = store.results(id, None, page).await.expect("results");
    let rest = store.results(id, None, page.following(one.next).expect("more")).await.expect("results");
    assert_eq!((one.items, rest.items, rest.next), (rows[..5].to_vec(), rows[5..].to_vec(), None));
    let of_two: Vec<_> = rows.iter().filter(|row| row.candidate_id == candidate(2)).cloned().collect();
    assert_eq!(store.results(id, Some(candidate(2)), PageRequest::FIRST).await.expect("results").items, of_two);
    assert_eq!(store.result(rows[1].key()).await.expect("an answer"), Some(rows[1].clone()));
    assert_eq!(store.result(TrialRef { epoch: 9, ..rows[1].key() }).await.expect("an answer"), None);
    assert!(matches!(store.results(weaver.id(), None, PageRequest::FIRST).await, Err(Error::NotFound { .. })));
}

pub(super) async fn records_of_a_job_read_back_as_written<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let text = RecordValue::new("Count them.".to_owned(), &mut Vec::new()).expect("it is short");
    let rejected = Some("empty".to_owned());
    let proposed = JobProposed { number: 1, component: "instructions".to_owned(), text, receipt_id: None, rejected };
    let (candidate_id, reason) = (candidate(2), Some("better".to_owned()));
    let accepted = JobAccepted { candidate_id, ordinal: 1, accepted: true, reason };
    let spent = Some("0.01 USD".parse().expect("an amount"));
    let progress = JobProgress { trials: 1, of: 4, proposals: 1, best: Some(500_000), spent };
    let told: [Event; 5] =
        [asked(1).into(), proposed.into(), accepted.into(), progress.into(), closed(&job, JobStatus::Succeeded).into()];
    for event in &told {
        let step = step_of(&mut weaver, &job, event.clone());
        weaver.commit(step).await;
    }
    let records = store.read(job.run(), Seq::new(1)).try_collect::<Vec<_>>().await.expect("records");
    let read: Vec<Event> = records.iter().map(|record| record.event().expect("readable")).collect();
    assert_eq!(read, told);
    let kinds: Vec<&str> = records.iter().map(|record| record.kind.as_str()).collect();
    assert_eq!(kinds, ["job.asked", "job.proposed", "job.accepted", "job.progress", "job.closed"]);
    let first = store.read(job.run(), Seq::START).try_collect::<Vec<_>>().await.expect("records");
    let opened = first[0].event().expect("readable");
    assert_eq!(opened.as_job_opened().map(|opened| opened.job_hash), Some(job.row.job_hash));
}

/// Writes the report of a new evaluation with this number, and returns the answer.
async fn look<J: Store>(
    weaver: &mut LoomWriter<'_, J>,
    store: &J,
    set: &Dataset,
    rerun: u64,
    k: u64,
) -> (SampleJob, AppendOutcome) {
    let job = open_job(weaver, &eval_spec(set, rerun)).await;
    let step = close_step(weaver, &job, EvalStatus::Succeeded, Some(k));
    let answer = append(store, step).await;
    (job, answer)
}

fn wanted_look(answer: AppendOutcome) -> Option<u64> {
    let ContractFault::Improve(ImproveFault::Look { k, .. }) = fault(answer) else { panic!("it is about the look") };
    k
}

pub(super) async fn looks_are_numbered_where_their_report_is_written<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let subject = spell("count");
    let set = test_set(&subject, &["one", "two", "three", "four"]);
    // Half of its inputs were there; more than half are new; the same inputs for learning.
    let half = test_set(&subject, &["one", "two", "five", "six"]);
    let fresh = test_set(&subject, &["one", "seven", "eight"]);
    let learnt = dataset(&subject, &[("one", Split::Train), ("two", Split::Holdout), ("nine", Split::Test)]);
    let other = test_set(&spell("sort"), &["one", "two", "three", "four"]);
    for each in [&set, &half, &fresh, &learnt, &other] {
        lay(&mut weaver, store, each).await;
    }
    let (first, answer) = look(&mut weaver, store, &set, 0, 1).await;
    assert!(matches!(answer, AppendOutcome::Committed(_)), "{answer:?}");
    // The second look at the split is the second, whoever looks.
    let (second, answer) = look(&mut weaver, store, &set, 1, 1).await;
    assert_eq!(wanted_look(answer), Some(2));
    assert!(matches!(store.eval_report(second.spec.eval_id().expect("an id")).await, Err(Error::NotFound { .. })));
    let query = |job: &SampleJob| LookQuery {
        eval_id: job.spec.eval_id().expect("an id"),
        subject: job.spec.of.clone(),
        dataset_hash: job.spec.dataset_hash,
    };
    assert_eq!(store.look_number(query(&second)).await.expect("a number"), 2);
    let step = close_step(&mut weaver, &second, EvalStatus::Succeeded, Some(2));
    weaver.commit(step).await;
    assert_eq!(store.look_number(query(&second)).await.expect("a number"), 2, "it has its number now");
    assert_eq!(store.look_number(query(&first)).await.expect("a number"), 1);
    for (set, k) in [(&half, 3), (&fresh, 1), (&learnt, 1), (&other, 1), (&half, 4)] {
        let rerun = u64::from(k == 4);
        let (job, answer) = look(&mut weaver, store, set, rerun, 20).await;
        assert_eq!(wanted_look(answer), Some(k));
        let step = close_step(&mut weaver, &job, EvalStatus::Incomplete, Some(k));
        weaver.commit(step).await;
    }
    let kept = store.looks(subject, PageRequest::FIRST).await.expect("looks").items;
    assert_eq!(kept.iter().map(|look| look.k).collect::<Vec<_>>(), [1, 2, 3, 1, 1, 4]);
    assert_eq!(kept[0].report_hash, newest_hash(store, &first).await);
    // An evaluation without a baseline, or not on the test split, is no look.
    let mut spec = eval_spec(&set, 7);
    spec.baseline = None;
    let job = open_job(&mut weaver, &spec).await;
    let step = close_step(&mut weaver, &job, EvalStatus::Succeeded, Some(5));
    assert_eq!(wanted_look(append(store, step).await), None);
    let step = close_step(&mut weaver, &job, EvalStatus::Succeeded, None);
    weaver.commit(step).await;
    let mut spec = eval_spec(&set, 8);
    spec.split = Split::Holdout;
    let job = open_job(&mut weaver, &spec).await;
    let step = close_step(&mut weaver, &job, EvalStatus::Succeeded, None);
    weaver.commit(step).await;
    assert_eq!(store.looks(spell("count"), PageRequest::FIRST).await.expect("looks").items, kept);
}

async fn newest_hash<J: Store>(store: &J, job: &SampleJob) -> Hash {
    store.eval_report(job.spec.eval_id().expect("an id")).await.expect("a report").report_hash
}

pub(super) async fn reports_at_once_get_different_looks<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two"]);
    lay(&mut weaver, store, &set).await;
    let mut jobs = Vec::new();
    for rerun in 0..4 {
        jobs.push(open_job(&mut weaver, &eval_spec(&set, rerun)).await);
    }
    for k in 1..=4_u64 {
        let steps: Vec<Step> =
            jobs.iter().map(|job| close_step(&mut weaver, job, EvalStatus::Succeeded, Some(k))).collect();
        let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
        let won = answers.iter().position(|answer| matches!(answer, AppendOutcome::Committed(_))).expect("one wins");
        for (number, answer) in answers.into_iter().enumerate() {
            if number != won {
                assert_eq!(wanted_look(answer), Some(k + 1));
            }
        }
        jobs.remove(won);
    }
}

pub(super) async fn an_evaluation_that_goes_on_is_the_same_look<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let eval_id = job.spec.eval_id().expect("an id");
    let step = close_step(&mut weaver, &job, EvalStatus::BudgetExhausted, Some(1));
    weaver.commit(step).await;
    // Another one looks in between.
    let (other, answer) = look(&mut weaver, store, &set, 1, 2).await;
    assert!(matches!(answer, AppendOutcome::Committed(_)), "{answer:?}");
    let first = store.eval_report(eval_id.clone()).await.expect("a report");
    assert_eq!((first.attempt, first.report().expect("as written").status), (1, EvalStatus::BudgetExhausted));
    let by = Actor::new("ann").expect("a name");
    let goes_on = JobContinued { by, bounds: JobBounds::default(), max_proposals: None };
    let now = weaver.now();
    let step = step_of(&mut weaver, &job, goes_on).contract(improve(job.moved(JobStatus::Running, now)));
    weaver.commit(step).await;
    let step = close_step(&mut weaver, &job, EvalStatus::Succeeded, Some(1));
    weaver.commit(step).await;
    let second = store.eval_report(eval_id.clone()).await.expect("a report");
    assert_eq!((second.attempt, second.report().expect("as written").status), (2, EvalStatus::Succeeded));
    let looks = store.looks(spell("count"), PageRequest::FIRST).await.expect("looks").items;
    assert_eq!(looks.iter().map(|look| look.k).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(looks[0].report_hash, first.report_hash);
    // Lists have its newest report.
    let all = store.eval_reports(EvalFilter::default(), PageRequest::FIRST).await.expect("reports").items;
    let ids: Vec<_> = all.iter().map(|row| (row.eval_id.clone(), row.attempt)).collect();
    assert_eq!(ids, [(other.spec.eval_id().expect("an id"), 1), (eval_id.clone(), 2)]);
    let wanted = EvalFilter {
        subject: Some(spell("count")),
        candidate: Some(candidate(2)),
        baseline: Some(candidate(1)),
        split: Some(Split::Test),
        job: Some(job.row.job_id),
        latest_first: true,
    };
    let found = store.eval_reports(wanted.clone(), PageRequest::FIRST).await.expect("reports").items;
    assert_eq!(found, [second]);
    let none = EvalFilter { baseline: Some(candidate(9)), ..wanted };
    assert!(store.eval_reports(none, PageRequest::FIRST).await.expect("reports").items.is_empty());
}

pub(super) async fn a_finished_report_stays<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one", "two"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let report = job.report(EvalStatus::Succeeded, Some(1), weaver.now());
    let write = |report| improve(job.reported(report));
    for number in [1, 2] {
        let step = step_of(&mut weaver, &job, asked(number)).contract(write(report.clone()));
        weaver.commit(step).await;
    }
    let later = job.report(EvalStatus::Succeeded, Some(1), weaver.now());
    let step = step_of(&mut weaver, &job, asked(3)).contract(write(later));
    assert!(matches!(fault(append(store, step).await), ContractFault::Other { kind: "evaluation", .. }));
    let foreign = cantrip_contract::EvalReport { job_hash: bytes_hash(b"another job"), ..report.clone() };
    let mut foreign_job = eval_spec(&set, 1);
    foreign_job.seed = "another".to_owned();
    let other = open_job(&mut weaver, &foreign_job).await;
    let foreign = cantrip_contract::EvalReport { eval_id: other.spec.eval_id().expect("an id"), ..foreign };
    let step = step_of(&mut weaver, &other, asked(1)).contract(improve(other.reported(foreign)));
    assert!(matches!(
        fault(append(store, step).await),
        ContractFault::Improve(ImproveFault::Unfit { kind: "evaluation", .. })
    ));
    let kept = store.eval_report(report.eval_id.clone()).await.expect("a report");
    assert_eq!((kept.attempt, kept.report().expect("as written")), (1, report.clone()));
    assert_eq!(kept.report_hash, report.hash());
}

pub(super) async fn candidates_and_compile_reports_are_kept<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let set = test_set(&spell("count"), &["one"]);
    lay(&mut weaver, store, &set).await;
    let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
    let id = job.row.job_id;
    let row = CandidateRow {
        job_id: id,
        candidate_id: candidate(3),
        compiled_id: None,
        variant: Some(json!({"call": {"system_prompt": "Count."}})),
        ordinal: 1,
        parents: vec![candidate(1)],
        op: "reflect".to_owned(),
        component: Some("call".to_owned()),
        accepted: true,
        note: None,
        holdout_micro: Some(700_000),
        at: weaver.now(),
    };
    let accepted = || JobAccepted { candidate_id: candidate(3), ordinal: 1, accepted: true, reason: None };
    for _ in 0..2 {
        let written = improve(ImproveRow::Candidate(Box::new(row.clone())));
        let step = step_of(&mut weaver, &job, accepted()).contract(written);
        weaver.commit(step).await;
    }
    let other = CandidateRow { accepted: false, ..row.clone() };
    let step = step_of(&mut weaver, &job, accepted()).contract(improve(ImproveRow::Candidate(Box::new(other))));
    assert!(matches!(fault(append(store, step).await), ContractFault::Other { kind: "candidate", .. }));
    let artifact = "art_00000000000000000000000000000000".parse().expect("an id");
    let stray = CandidateRow { compiled_id: Some(artifact), candidate_id: candidate(4), ..row.clone() };
    let step = step_of(&mut weaver, &job, accepted()).contract(improve(ImproveRow::Candidate(Box::new(stray))));
    assert!(matches!(fault(append(store, step).await), ContractFault::Unknown { kind: "artifact", .. }));
    assert_eq!(store.candidates(id, PageRequest::FIRST).await.expect("candidates").items, [row]);
    let body = |status: &str, at: Timestamp| {
        json!({
            "v": 1, "kind": "compile_report", "report_id": "cmp_000000000000000000000000",
            "job_hash": job.row.job_hash, "status": status, "signature_id": "spell:count",
            "dataset_hash": job.row.dataset_hash, "metric_hash": job.row.metric_hash,
            "compiler_version": "improve.v1", "selected": candidate(3), "suggestion": {"action": "keep"},
            "created_at": at,
        })
    };
    assert_eq!(store.compile_report_of(id).await.expect("an answer"), None);
    for (status, attempt) in [("budget_exhausted", 1), ("succeeded", 2)] {
        let told = CompileReportDraft::new(id, &body(status, weaver.now())).expect("a small value");
        let step = step_of(&mut weaver, &job, asked(attempt));
        let step = step.contract(improve(ImproveRow::CompileReport(Box::new(told.clone()))));
        weaver.commit(step).await;
        let kept = store.compile_report_of(id).await.expect("an answer").expect("a report");
        assert_eq!((kept.attempt, &kept.body), (attempt, &told.body));
        assert_eq!(store.compile_report(kept.report_id.clone()).await.expect("a report"), kept);
    }
    let told = CompileReportDraft::new(id, &body("failed", weaver.now())).expect("a small value");
    let step = step_of(&mut weaver, &job, asked(3)).contract(improve(ImproveRow::CompileReport(Box::new(told))));
    assert!(matches!(fault(append(store, step).await), ContractFault::Other { kind: "compile report", .. }));
    let of = |subject| store.compile_reports(subject, PageRequest::FIRST);
    assert_eq!(of(Some(spell("count"))).await.expect("reports").items.len(), 2);
    assert!(of(Some(spell("sort"))).await.expect("reports").items.is_empty());
    // The agreement of a judge; the newest counts.
    let mut check = JudgeCheckRow {
        metric_hash: job.row.metric_hash,
        dataset_hash: job.row.dataset_hash,
        at: weaver.now(),
        n: 40,
        agree: 31,
        low_micro: 624_000,
        kappa_micro: -5,
        job_id: id,
    };
    assert_eq!(store.judge_check(check.metric_hash).await.expect("an answer"), None);
    for n in [40, 41] {
        check = JudgeCheckRow { n, at: weaver.now(), ..check };
        let step = step_of(&mut weaver, &job, asked(n));
        let step = step.contract(improve(ImproveRow::JudgeCheck(Box::new(check.clone()))));
        weaver.commit(step).await;
    }
    assert_eq!(store.judge_check(check.metric_hash).await.expect("an answer"), Some(check));
}

pub(super) async fn improvements_survive_reopening<S: Subject>(subject: S) {
    let set = test_set(&spell("count"), &["one", "two"]);
    let (job, row) = {
        let store = subject.store();
        let mut weaver = LoomWriter::new(store);
        let step = ground(&mut weaver, &set);
        assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::START));
        let job = open_job(&mut weaver, &eval_spec(&set, 0)).await;
        let (row, feedback) = job.result(2, &set.examples()[0].id, 1_000_000, weaver.now());
        let written = improve(ImproveRow::Result(Box::new(row.clone())));
        let step = step_of(&mut weaver, &job, asked(1)).contract(written).bodies([feedback]);
        weaver.commit(step).await;
        let step = close_step(&mut weaver, &job, EvalStatus::BudgetExhausted, Some(1));
        weaver.commit(step).await;
        (job, row)
    };
    let Some(again) = subject.reopen().await else { return };
    let store = again.store();
    let id = job.row.job_id;
    assert_eq!(store.job(id).await.expect("a job").status, JobStatus::BudgetExhausted);
    assert_eq!(store.results(id, None, PageRequest::FIRST).await.expect("results").items, [row]);
    let found = store.dataset_examples(set.hash(), None, PageRequest::FIRST).await.expect("examples").items;
    for (row, example) in found.iter().zip(set.examples()) {
        assert_eq!((&row.example_id, row.content_hash), (&example.id, example.content_hash()));
        assert_eq!(store.body(row.input_hash).await.expect("a body").hash(), example.input_hash());
    }
    // The job goes on in another process, and its look stays its look.
    let mut weaver = LoomWriter::seeded(store, 99);
    weaver.skip(1_000);
    let by = Actor::new("ann").expect("a name");
    let goes_on = JobContinued { by, bounds: JobBounds::default(), max_proposals: None };
    let now = weaver.now();
    let step = step_of(&mut weaver, &job, goes_on).contract(improve(job.moved(JobStatus::Running, now)));
    weaver.commit(step).await;
    let step = close_step(&mut weaver, &job, EvalStatus::Succeeded, Some(1));
    weaver.commit(step).await;
    let kept = store.eval_report(job.spec.eval_id().expect("an id")).await.expect("a report");
    assert_eq!((kept.attempt, kept.report().expect("as written").status), (2, EvalStatus::Succeeded));
}
