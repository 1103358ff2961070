//! The end of a backtest, and its reply.

use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip_contract::{JobRow, JobStatus, Unscored};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::report::{BacktestReport, BacktestRow};
use super::stored::read_report;
use crate::limits::{BACKTEST_TOLD_BYTES_MAX, EVAL_UNSCORED_PERCENT_MAX};
use cantrip_ds::Predictor;
use cantrip_ds::job::{JobCloser, JobClosing, JobEnd, JobEndKind};

/// Ends backtests. Their report is made from the rows whenever it is read, so nothing else is written.
pub(super) struct BacktestCloser {
    predictor: Predictor,
}

impl BacktestCloser {
    pub(super) fn new(predictor: Predictor) -> Self {
        Self { predictor }
    }

    async fn make_reply(&self, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
        let report = read_report(&self.predictor, job).await?;
        backtest_reply(&report, job, data)
    }
}

impl JobCloser for BacktestCloser {
    fn close<'a>(&'a self, end: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        let (mut all, mut unscored) = (0_u64, 0_u64);
        for row in end.state.results() {
            all += 1;
            unscored += u64::from(row.unscored.is_some_and(is_failure));
        }
        let is_incomplete = unscored * 100 > all * EVAL_UNSCORED_PERCENT_MAX;
        let status = match &end.kind {
            JobEndKind::Done(_) if is_incomplete => Some(JobStatus::Incomplete),
            JobEndKind::Done(_) | JobEndKind::BudgetExhausted | JobEndKind::Cancelled | JobEndKind::Failed => None,
        };
        Box::pin(std::future::ready(Ok(JobClosing { status, ..JobClosing::default() })))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        Box::pin(self.make_reply(job, data))
    }
}

/// Returns true if a score is missing because something failed. A run without an expected answer has none to have.
const fn is_failure(reason: Unscored) -> bool {
    match reason {
        Unscored::MetricFailed | Unscored::JudgeFailed | Unscored::Infrastructure => true,
        Unscored::NoExpected | Unscored::NoReward => false,
    }
}

/// Returns the reply of a backtest that has ended, by its status.
fn backtest_reply(report: &BacktestReport, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
    let found = json!({"backtest": told(report)});
    let job_id = job.job_id.to_string();
    match job.status {
        JobStatus::Succeeded | JobStatus::Queued | JobStatus::Running => {
            let score = report.score.as_ref().map_or_else(|| "nothing".to_owned(), |score| three_places(score.new));
            Ok(codes::evaluated(report.candidate.as_str(), score, report.done, "the record").data(data).data(found))
        }
        JobStatus::Incomplete => {
            let reason = format!("more than {EVAL_UNSCORED_PERCENT_MAX} % of the runs have no score");
            Err(codes::eval_incomplete(report.unscored, report.runs, reason).data(data).data(found).into())
        }
        JobStatus::BudgetExhausted => {
            let bound = match (job.bounds.budget, job.bounds.max_calls) {
                (Some(budget), _) => budget.to_string(),
                (None, Some(calls)) => format!("the {calls} runs"),
                (None, None) => "no run".to_owned(),
            };
            let hint = format!("cantrip run continue {} --budget AMOUNT goes on where it stopped", job.run_id);
            let spent = codes::budget_spent("the next run", bound, format!("job {job_id}"));
            Err(spent.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        JobStatus::Cancelled => {
            let hint = format!("cantrip run continue {} goes on where it stopped", job.run_id);
            let ended = codes::ended_from_outside("the caller", "cancelled");
            Err(ended.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        JobStatus::Failed => {
            let cause = job.error.clone().unwrap_or_else(|| "an unexpected failure".to_owned());
            Err(codes::job_failed(format!("job {job_id}"), cause).data(data).data(found).into())
        }
    }
}

/// Returns the report with as many runs as fit into a reply. The runs that changed come first.
fn told(report: &BacktestReport) -> Value {
    let mut bytes = 0;
    let fits = |row: &&BacktestRow| {
        bytes += json!(row).to_string().len();
        bytes <= BACKTEST_TOLD_BYTES_MAX
    };
    let rows: Vec<&BacktestRow> = report.rows.iter().take_while(fits).collect();
    let mut value = json!(BacktestReport { rows: Vec::new(), ..report.clone() });
    value["rows"] = json!(rows);
    value
}

/// Returns a score as text, with three places, rounded half up.
fn three_places(micro: i64) -> String {
    let rounded = (micro + 500).div_euclid(1_000);
    format!("{}.{:03}", rounded / 1_000, rounded % 1_000)
}
