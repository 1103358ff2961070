//! Reading rows of datasets, metrics, jobs and reports.

use std::collections::HashSet;

use cantrip_canon::{Hash, Money};
use cantrip_contract::{
    CandidateRow, CompileReportRow, DatasetExampleRow, DatasetRow, DatasetVersionRow, EvalReportRow, ExampleResultRow,
    GuardRow, JobBounds, JobRow, JudgeCheckRow, LookQuery, LookRow, LookStanding, MetricRow, VerdictRow, Weight,
    is_look_at,
};
use cantrip_loom::Error;

use crate::connection::DbConnection;
use crate::contracts::rows::{hash_or_null, json, parsed, word};
use crate::failure::StoreFault;
use crate::ledger::damaged_ledger;
use crate::value::{Row, values};

/// Selects the columns in the order in which [`dataset`] reads them.
pub(super) fn datasets(behind: &str) -> String {
    format!(
        "SELECT dataset_key, dataset_hash, subject, split, split_seed, filters, counts, created_at, created_by \
         FROM ds_datasets {behind}"
    )
}

pub(super) fn dataset(row: &mut Row) -> Result<(u64, DatasetRow), Error> {
    let key = row.count()?;
    let found = DatasetRow {
        dataset_hash: row.hash()?,
        subject: parsed(row.text()?)?,
        split: json(&row.text()?)?,
        split_seed: parsed(row.text()?)?,
        filters: json(&row.text()?)?,
        counts: json(&row.text()?)?,
        created_at: row.time()?,
        created_by: row.text()?,
    };
    Ok((key, found))
}

pub(super) fn examples(behind: &str) -> String {
    format!(
        "SELECT example_key, dataset_hash, example_id, split, input_hash, near_hash, expected_hash, content_hash, \
         weight, reward, group_key, labels, source FROM ds_dataset_examples {behind}"
    )
}

pub(super) fn example(row: &mut Row) -> Result<(u64, DatasetExampleRow), Error> {
    let key = row.count()?;
    let found = DatasetExampleRow {
        dataset_hash: row.hash()?,
        example_id: parsed(row.text()?)?,
        split: word(row.text()?)?,
        input_hash: row.hash()?,
        near_hash: row.hash()?,
        expected_hash: hash_or_null(row)?,
        content_hash: row.hash()?,
        weight: Weight::from_micro(row.count()?)
            .map_err(|_| damaged_ledger("an example has a weight that cannot be"))?,
        reward_micro: row.int_or_null()?,
        group_key: row.text_or_null()?,
        labels: json(&row.text()?)?,
        source: json(&row.text()?)?,
    };
    Ok((key, found))
}

pub(super) fn versions(behind: &str) -> String {
    format!(
        "SELECT version_key, name, version, dataset_hash, parent_hash, note, at, by FROM ds_dataset_versions {behind}"
    )
}

pub(super) fn version(row: &mut Row) -> Result<(u64, DatasetVersionRow), Error> {
    let key = row.count()?;
    let found = DatasetVersionRow {
        name: parsed(row.text()?)?,
        version: row.count()?,
        dataset_hash: row.hash()?,
        parent_hash: hash_or_null(row)?,
        note: row.text_or_null()?,
        at: row.time()?,
        by: row.text()?,
    };
    Ok((key, found))
}

pub(super) fn verdicts(behind: &str) -> String {
    format!(
        "SELECT verdict_key, verdict_id, receipt_id, verdict, expected_hash, labels, note, by, at \
         FROM ds_verdicts {behind}"
    )
}

pub(super) fn verdict(row: &mut Row) -> Result<(u64, VerdictRow), Error> {
    let key = row.count()?;
    let found = VerdictRow {
        verdict_id: parsed(row.text()?)?,
        receipt_id: parsed(row.text()?)?,
        verdict: word(row.text()?)?,
        expected_hash: hash_or_null(row)?,
        labels: json(&row.text()?)?,
        note: row.text_or_null()?,
        by: row.text()?,
        at: row.time()?,
    };
    Ok((key, found))
}

pub(super) fn metrics(behind: &str) -> String {
    format!("SELECT metric_key, metric_hash, name, body, at FROM ds_metrics {behind}")
}

pub(super) fn metric(row: &mut Row) -> Result<(u64, MetricRow), Error> {
    let key = row.count()?;
    let (metric_hash, name, body) = (row.hash()?, row.text_or_null()?, row.text()?);
    Ok((key, MetricRow { metric_hash, name, body, at: row.time()? }))
}

pub(super) fn judge_checks(behind: &str) -> String {
    format!(
        "SELECT metric_hash, dataset_hash, at, n, agree, low_micro, kappa_micro, job_id FROM ds_judge_checks {behind}"
    )
}

pub(super) fn judge_check(row: &mut Row) -> Result<JudgeCheckRow, Error> {
    Ok(JudgeCheckRow {
        metric_hash: row.hash()?,
        dataset_hash: row.hash()?,
        at: row.time()?,
        n: row.count()?,
        agree: row.count()?,
        low_micro: row.count()?,
        kappa_micro: row.int()?,
        job_id: row.id()?,
    })
}

pub(super) fn jobs(behind: &str) -> String {
    format!(
        "SELECT job_key, job_id, job_hash, kind, subject, dataset_hash, metric_hash, split, run_id, spec, optimiser, \
         budget, currency, max_calls, status, metric_calls, proposals, error, created_at, started_at, finished_at \
         FROM ds_jobs {behind}"
    )
}

fn bounds(row: &mut Row) -> Result<JobBounds, Error> {
    let (budget, currency, max_calls) = (row.int_or_null()?, row.text_or_null()?, row.count_or_null()?);
    let odd = || damaged_ledger("a job has a budget that cannot be");
    let budget = match budget.zip(currency) {
        Some((micros, currency)) => Some(Money::new(micros, parsed(currency)?).map_err(|_| odd())?),
        None => None,
    };
    Ok(JobBounds { budget, max_calls })
}

pub(super) fn job(row: &mut Row) -> Result<(u64, JobRow), Error> {
    let key = row.count()?;
    let found = JobRow {
        job_id: row.id()?,
        job_hash: row.hash()?,
        kind: word(row.text()?)?,
        subject: parsed(row.text()?)?,
        dataset_hash: row.hash()?,
        metric_hash: row.hash()?,
        split: word(row.text()?)?,
        run_id: row.id()?,
        spec: row.text()?,
        optimiser: row.text_or_null()?,
        bounds: bounds(row)?,
        status: word(row.text()?)?,
        metric_calls: row.count()?,
        proposals: row.count()?,
        error: row.text_or_null()?,
        created_at: row.time()?,
        started_at: row.time_or_null()?,
        finished_at: row.time_or_null()?,
    };
    Ok((key, found))
}

pub(super) fn candidates(behind: &str) -> String {
    format!(
        "SELECT candidate_key, job_id, candidate_id, compiled_id, variant, ordinal, parent_ids, op, component, accepted, \
         note, holdout_micro, at FROM ds_candidates {behind}"
    )
}

pub(super) fn candidate(row: &mut Row) -> Result<(u64, CandidateRow), Error> {
    let key = row.count()?;
    let found = CandidateRow {
        job_id: row.id()?,
        candidate_id: parsed(row.text()?)?,
        compiled_id: row.text_or_null()?.map(parsed).transpose()?,
        variant: row.text_or_null()?.map(|text| json(&text)).transpose()?,
        ordinal: row.count()?,
        parents: json(&row.text()?)?,
        op: row.text()?,
        component: row.text_or_null()?,
        accepted: row.flag()?,
        note: row.text_or_null()?,
        holdout_micro: row.count_or_null()?,
        at: row.time()?,
    };
    Ok((key, found))
}

pub(super) fn results(behind: &str) -> String {
    format!(
        "SELECT result_key, job_id, candidate_id, example_id, epoch, split, score, unscored, own_failure, feedback_hash, \
         receipt_id, judge_receipts, try, at FROM ds_example_results {behind}"
    )
}

pub(super) fn result(row: &mut Row) -> Result<(u64, ExampleResultRow), Error> {
    let key = row.count()?;
    let found = ExampleResultRow {
        job_id: row.id()?,
        candidate_id: parsed(row.text()?)?,
        example_id: parsed(row.text()?)?,
        epoch: row.count()?,
        split: word(row.text()?)?,
        score_micro: row.count_or_null()?,
        unscored: row.text_or_null()?.map(parsed).transpose()?,
        own_failure: row.flag()?,
        feedback_hash: row.hash()?,
        receipt_id: row.text_or_null()?.map(parsed).transpose()?,
        judge_receipts: json(&row.text()?)?,
        try_number: row.count()?,
        at: row.time()?,
    };
    Ok((key, found))
}

pub(super) fn eval_reports(behind: &str) -> String {
    format!("SELECT r.eval_key, r.eval_id, r.job_id, r.attempt, r.report_hash, r.body FROM ds_eval_reports r {behind}")
}

/// Selects of each evaluation the newest report.
pub(super) fn newest_eval_reports(behind: &str) -> String {
    let newest = "WHERE r.attempt = (SELECT max(n.attempt) FROM ds_eval_reports n WHERE n.eval_id = r.eval_id) AND";
    eval_reports(&behind.replacen("WHERE", newest, 1))
}

pub(super) fn eval_report(row: &mut Row) -> Result<(u64, EvalReportRow), Error> {
    let key = row.count()?;
    let (eval_id, job_id, attempt) = (parsed(row.text()?)?, row.id()?, row.count()?);
    Ok((key, EvalReportRow { eval_id, job_id, attempt, report_hash: row.hash()?, body: row.text()? }))
}

pub(super) fn compile_reports(behind: &str) -> String {
    format!("SELECT report_key, report_id, job_id, attempt, report_hash, body FROM ds_compile_reports {behind}")
}

pub(super) fn compile_report(row: &mut Row) -> Result<(u64, CompileReportRow), Error> {
    let key = row.count()?;
    let (report_id, job_id, attempt) = (parsed(row.text()?)?, row.id()?, row.count()?);
    Ok((key, CompileReportRow { report_id, job_id, attempt, report_hash: row.hash()?, body: row.text()? }))
}

pub(super) fn looks(behind: &str) -> String {
    format!("SELECT look_key, eval_id, report_hash, subject, dataset_hash, k, at FROM ds_looks {behind}")
}

pub(super) fn look(row: &mut Row) -> Result<(u64, LookRow), Error> {
    let key = row.count()?;
    let (eval_id, report_hash, subject) = (parsed(row.text()?)?, row.hash()?, parsed(row.text()?)?);
    Ok((key, LookRow { eval_id, report_hash, subject, dataset_hash: row.hash()?, k: row.count()?, at: row.time()? }))
}

pub(super) fn guards(behind: &str) -> String {
    format!("SELECT signature_id, action, margin_micro, canary_audit, looks, updated_at, by FROM ds_guards {behind}")
}

pub(super) fn guard(row: &mut Row) -> Result<GuardRow, Error> {
    Ok(GuardRow {
        signature_id: parsed(row.text()?)?,
        action: word(row.text()?)?,
        margin_micro: row.count()?,
        canary_audit: row.id_or_null()?,
        looks: row.count()?,
        updated_at: row.time()?,
        by: row.text()?,
    })
}

/// Returns the hashes of the test inputs of a dataset. They are compared here and not by the database, which may
/// compare every input with every other.
pub(super) async fn test_inputs(link: &mut DbConnection, dataset: Hash) -> Result<HashSet<Hash>, StoreFault> {
    let sql = "SELECT input_hash FROM ds_dataset_examples WHERE dataset_hash = ?1 AND split = 'test'";
    let found = link.query(sql, values![dataset]).await?;
    Ok(found.into_iter().map(|mut row| row.hash()).collect::<Result<_, _>>()?)
}

/// Counts the looks that stand before the look of an evaluation.
pub(super) async fn look_standing(link: &mut DbConnection, query: &LookQuery) -> Result<LookStanding, StoreFault> {
    let own = link.query_one("SELECT k FROM ds_looks WHERE eval_id = ?1", values![query.eval_id.to_string()]).await?;
    let own = own.map(|mut row| row.count()).transpose()?;
    let inputs = test_inputs(link, query.dataset_hash).await?;
    let sql = "SELECT dataset_hash, count(*) FROM ds_looks WHERE subject = ?1 AND eval_id <> ?2 GROUP BY dataset_hash";
    let values = values![query.subject.to_string(), query.eval_id.to_string()];
    let mut earlier = 0;
    for mut row in link.query(sql, values).await? {
        let (dataset, looks) = (row.hash()?, row.count()?);
        let shared = test_inputs(link, dataset).await?.intersection(&inputs).count();
        if is_look_at(shared as u64, inputs.len() as u64) {
            earlier += looks;
        }
    }
    Ok(LookStanding { own, earlier })
}
