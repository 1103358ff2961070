//! Stored backtests: found, read again, and built again to go on with them.

use std::sync::Arc;

use cantrip::canon::RunId;
use cantrip::loom::{AnyLoom, Improvements, JobFilter, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{ExampleResultRow, JobKind, JobRow};
use serde_json::{Value, json};

use super::BACKTEST_ID;
use super::casts::BacktestCasts;
use super::prepare::parts;
use super::report::{BacktestReport, ReportInputs, make_report};
use super::setup::BacktestSetup;
use crate::eval::{read_body, stored_plan, stored_results, stored_spec};
use crate::limits::EVAL_PAGE;
use cantrip_ds::job::JobParts;
use cantrip_ds::metric::MetricScorer;
use cantrip_ds::{Predictor, refuse_store_error};

/// A stored backtest with its report.
#[derive(Debug, Clone)]
pub struct StoredBacktest {
    pub job: JobRow,
    /// The plan as it was shown.
    pub plan: Value,
    pub report: BacktestReport,
}

/// Returns true if the job is a backtest.
pub fn is_backtest(job: &JobRow) -> bool {
    job.kind == JobKind::Eval && job.optimiser.as_deref() == Some(BACKTEST_ID)
}

/// Returns the parts of a stored backtest, to go on with it.
pub async fn backtest_parts(
    predictor: &Predictor,
    casts: &Arc<dyn BacktestCasts>,
    metrics: MetricScorer,
    job: &JobRow,
) -> Result<JobParts, Refusal> {
    let setup = Arc::new(BacktestSetup::of_job(predictor, &**casts, job).await?);
    Ok(parts(&setup, predictor, casts, metrics))
}

/// Reads the report of a backtest, as far as it is.
pub(super) async fn read_report(predictor: &Predictor, job: &JobRow) -> Result<BacktestReport, Refusal> {
    let loom = predictor.runtime().loom();
    let spec = stored_spec(job)?;
    let runs = predictor.datasets().row(spec.dataset_hash).await?.counts.taken;
    let rows: Vec<ExampleResultRow> = stored_results(loom, job.job_id).await?;
    let mut texts = Vec::with_capacity(rows.len());
    for row in &rows {
        texts.push(read_body(loom, row.feedback_hash).await?.as_str().unwrap_or_default().to_owned());
    }
    let results: Vec<(&ExampleResultRow, &str)> = rows.iter().zip(texts.iter().map(String::as_str)).collect();
    let created_at = job.finished_at.unwrap_or(job.created_at);
    Ok(make_report(&ReportInputs { spec: &spec, status: job.status, runs, results: &results, created_at }))
}

/// Reads a stored backtest by the run of its job.
pub async fn stored_backtest(predictor: &Predictor, run: RunId) -> Result<StoredBacktest, Refusal> {
    let loom = predictor.runtime().loom();
    let job = loom.job_of_run(run).await.map_err(refuse_store_error)?;
    let unknown = || {
        let hint = "cantrip backtest ls lists them";
        Refusal::from(codes::contract_unknown("backtest", run.to_string()).data(json!({ "hint": hint })))
    };
    let job = job.filter(is_backtest).ok_or_else(unknown)?;
    let report = read_report(predictor, &job).await?;
    let plan = stored_plan(loom, &job).await?;
    Ok(StoredBacktest { job, plan, report })
}

/// Returns the jobs of the stored backtests, newest first.
pub async fn stored_backtests(loom: &AnyLoom) -> Result<Vec<JobRow>, Refusal> {
    let mut jobs = Vec::new();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let wanted = JobFilter { kind: Some(JobKind::Eval), latest_first: true, ..JobFilter::default() };
        let listed = loom.jobs(wanted, page).await.map_err(refuse_store_error)?;
        jobs.extend(listed.items.into_iter().filter(is_backtest));
        next = page.following(listed.next);
    }
    Ok(jobs)
}
