//! Datasets, metrics, jobs and reports in SQL. They are written like the other contract rows: see `contracts`.

mod check;
mod read;
mod rows;
mod statements;

use std::collections::BTreeSet;

use cantrip_contract::{ContractRow, ImproveCache, ImproveDependency, ImproveRow, TrialRef};
use cantrip_loom::{Error, Step};

use crate::connection::DbConnection;
use crate::failure::StoreFault;
use crate::value::{Row, Value, values};

pub(crate) use check::row_faults;
pub(crate) use statements::statement_for;

/// Locks the looks of all subjects and guards of these steps until the transaction ends, so that two reports that are
/// written at once get different numbers, and a look of a guard is counted once. A look that is not written yet has no
/// row to lock, so Postgres locks the name of its subject or guard. SQLite has only one writer.
pub(crate) async fn lock<'a>(link: &mut DbConnection, steps: impl Iterator<Item = &'a Step>) -> Result<(), StoreFault> {
    let DbConnection::Postgres(link) = link else { return Ok(()) };
    let mut names = BTreeSet::new();
    for row in steps.flat_map(|step| &step.contract) {
        let ContractRow::Improve(row) = row else { continue };
        if let ImproveRow::EvalReport(draft) = &**row {
            names.insert(format!("cantrip:looks:{}", draft.report.signature_id));
        } else if let ImproveRow::Guard { row, .. } = &**row {
            names.insert(format!("cantrip:guards:{}", row.signature_id));
        }
    }
    // In one order, so that two groups cannot deadlock.
    for name in names {
        let sql = "SELECT pg_advisory_xact_lock(hashtext(?1))::text";
        link.query(sql, values![name]).await?;
    }
    Ok(())
}

/// Reads the first row of a result.
async fn one<T>(
    link: &mut DbConnection,
    sql: &str,
    values: &[Value],
    read: impl FnOnce(&mut Row) -> Result<T, Error>,
) -> Result<Option<T>, StoreFault> {
    let found = link.query_one(sql, values).await?;
    Ok(found.map(|mut row| read(&mut row)).transpose()?)
}

async fn exists(link: &mut DbConnection, sql: &str, values: &[Value]) -> Result<bool, StoreFault> {
    Ok(!link.query(sql, values).await?.is_empty())
}

/// Returns the values that name a trial, in the order of [`OF_TRIAL`].
fn trial_values(trial: &TrialRef) -> [Value; 4] {
    [trial.job_id.into(), trial.candidate_id.as_str().into(), trial.example_id.as_str().into(), trial.epoch.into()]
}

const OF_TRIAL: &str = "WHERE job_id = ?1 AND candidate_id = ?2 AND example_id = ?3 AND epoch = ?4";

const NEWEST_VERSION: &str = "WHERE name = ?1 ORDER BY version DESC LIMIT 1";

/// Loads the stored row that another row is checked against.
pub(crate) async fn load_dependency(
    link: &mut DbConnection,
    need: ImproveDependency,
    shelf: &mut ImproveCache,
) -> Result<(), StoreFault> {
    match need {
        ImproveDependency::Dataset(hash) => {
            if exists(link, "SELECT dataset_key FROM ds_datasets WHERE dataset_hash = ?1", values![hash]).await? {
                shelf.insert_dataset(hash);
            }
        }
        ImproveDependency::Version(name, version) => {
            let sql = rows::versions("WHERE name = ?1 AND version = ?2");
            if let Some((_, row)) = one(link, &sql, values![name.as_str(), version], rows::version).await? {
                shelf.insert_version(row);
            }
        }
        ImproveDependency::NewestVersion(name) => {
            let sql = rows::versions(NEWEST_VERSION);
            if let Some((_, row)) = one(link, &sql, values![name.as_str()], rows::version).await? {
                shelf.insert_version(row);
            }
        }
        ImproveDependency::Receipt(id) => {
            let sql = "SELECT receipt_key FROM ds_receipts WHERE receipt_id = ?1";
            if exists(link, sql, values![id.to_string()]).await? {
                shelf.insert_receipt(id);
            }
        }
        ImproveDependency::Verdict(id) => {
            let sql = rows::verdicts("WHERE verdict_id = ?1");
            if let Some((_, row)) = one(link, &sql, values![id.to_string()], rows::verdict).await? {
                shelf.insert_verdict(row);
            }
        }
        ImproveDependency::Metric(hash) => {
            if exists(link, "SELECT metric_key FROM ds_metrics WHERE metric_hash = ?1", values![hash]).await? {
                shelf.insert_metric(hash);
            }
        }
        ImproveDependency::JudgeCheck(metric, dataset, at) => {
            let sql = rows::judge_checks("WHERE metric_hash = ?1 AND dataset_hash = ?2 AND at = ?3");
            if let Some(row) = one(link, &sql, values![metric, dataset, at], rows::judge_check).await? {
                shelf.insert_judge_check(row);
            }
        }
        ImproveDependency::Job(id) => {
            if let Some((_, row)) = one(link, &rows::jobs("WHERE job_id = ?1"), values![id], rows::job).await? {
                shelf.insert_job(row);
            }
        }
        ImproveDependency::JobOfHash(hash) => {
            if let Some((_, row)) = one(link, &rows::jobs("WHERE job_hash = ?1"), values![hash], rows::job).await? {
                shelf.insert_job(row);
            }
        }
        ImproveDependency::Candidate(job, id) => {
            let sql = rows::candidates("WHERE job_id = ?1 AND candidate_id = ?2");
            if let Some((_, row)) = one(link, &sql, values![job, id.as_str()], rows::candidate).await? {
                shelf.insert_candidate(row);
            }
        }
        ImproveDependency::Result(trial) => {
            if let Some((_, row)) = one(link, &rows::results(OF_TRIAL), &trial_values(&trial), rows::result).await? {
                shelf.insert_result(row);
            }
        }
        ImproveDependency::EvalReport(id) => {
            let sql = rows::eval_reports("WHERE r.eval_id = ?1 ORDER BY r.attempt DESC LIMIT 1");
            if let Some((_, row)) = one(link, &sql, values![id.as_str()], rows::eval_report).await? {
                shelf.insert_eval_report(row);
            }
        }
        ImproveDependency::CompileReport(job) => {
            let sql = rows::compile_reports("WHERE job_id = ?1 ORDER BY attempt DESC LIMIT 1");
            if let Some((_, row)) = one(link, &sql, values![job], rows::compile_report).await? {
                shelf.insert_compile_report(row);
            }
        }
        ImproveDependency::Look(query) => {
            let standing = rows::look_standing(link, &query).await?;
            shelf.insert_looks(query, standing);
        }
        ImproveDependency::Guard(id) => {
            let sql = rows::guards("WHERE signature_id = ?1 {locked}");
            if let Some(row) = one(link, &sql, values![id.to_string()], rows::guard).await? {
                shelf.insert_guard(row);
            }
        }
    }
    Ok(())
}
