//! The end of an evaluation: its report, and its reply.

use std::sync::Arc;

use cantrip::canon::{RunId, Timestamp};
use cantrip::loom::Improvements;
use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip_contract::{
    EvalReport, EvalReportDraft, EvalStatus, ExampleResultRow, ImproveRow, JobRow, JobStatus, LookQuery, Split,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::report::{IncompleteReason, MadeReport, ReportInputs, make_report};
use super::rows::{judge_part, report_trials, unreconciled};
use super::setup::EvalSetup;
use crate::limits::EVAL_UNSCORED_PERCENT_MAX;
use cantrip_ds::job::{JobCloser, JobClosing, JobEnd, JobEndKind};
use cantrip_ds::limits::POSITION_FLIPS_PPM_MAX;
use cantrip_ds::{Predictor, refuse_store_error};

/// Makes the report of an evaluation, and its reply.
pub(crate) struct EvalCloser {
    setup: Arc<EvalSetup>,
    predictor: Predictor,
}

impl EvalCloser {
    pub(super) fn new(setup: Arc<EvalSetup>, predictor: Predictor) -> Self {
        Self { setup, predictor }
    }

    async fn make_closing(&self, end: &JobEnd<'_>) -> Result<JobClosing, Refusal> {
        let ended = match &end.kind {
            JobEndKind::Done(_) => None,
            JobEndKind::BudgetExhausted => Some(EvalStatus::BudgetExhausted),
            JobEndKind::Cancelled => Some(EvalStatus::Cancelled),
            JobEndKind::Failed => Some(EvalStatus::Failed),
        };
        let rows: Vec<ExampleResultRow> = end.state.results().cloned().collect();
        let MadeReport { report, incomplete } = self.make_report(&rows, ended, end.run, end.at).await?;
        let closing = JobClosing {
            status: incomplete.filter(|_| ended.is_none()).map(|_| JobStatus::Incomplete),
            report_id: Some(report.report_id.clone()),
            eval_id: Some(report.eval_id.clone()),
            ..JobClosing::default()
        };
        let draft = EvalReportDraft { job_id: end.job_id, look: report.look.map(|look| look.k), report };
        Ok(JobClosing { rows: vec![ImproveRow::EvalReport(Box::new(draft))], ..closing })
    }

    async fn make_report(
        &self,
        rows: &[ExampleResultRow],
        ended: Option<EvalStatus>,
        run: RunId,
        at: Timestamp,
    ) -> Result<MadeReport, Refusal> {
        let (setup, loom) = (&self.setup, self.predictor.runtime().loom());
        let trials = report_trials(loom, &setup.spec, &setup.metric, rows).await?;
        let look = match look_query(setup) {
            Some(query) => Some(loom.look_number(query).await.map_err(refuse_store_error)?),
            None => None,
        };
        let inputs = ReportInputs {
            spec: &setup.spec,
            examples: setup.examples(),
            trials: &trials,
            ended,
            look,
            judge: judge_part(loom, &setup.metric, at).await?,
            label_pointer: setup.label_pointer.as_deref(),
            is_reproducible: setup.metric.is_reproducible(),
            unreconciled: unreconciled(loom, run).await?,
            created_at: at,
        };
        make_report(&inputs).ok_or_else(|| codes::crash().into())
    }

    async fn make_reply(&self, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
        let loom = self.predictor.runtime().loom();
        let row = loom.eval_report(self.setup.eval_id.clone()).await.map_err(refuse_store_error)?;
        let altered = |field: &str| codes::record_altered("evaluation", row.eval_id.to_string(), field);
        let report = row.report().map_err(|fault| Refusal::from(altered(fault.field)))?;
        eval_reply(&report, job, data)
    }
}

impl JobCloser for EvalCloser {
    fn close<'a>(&'a self, end: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        Box::pin(self.make_closing(end))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        Box::pin(self.make_reply(job, data))
    }
}

/// Returns the look that an evaluation takes; none without a baseline, and on another split than test.
pub(crate) fn look_query(setup: &EvalSetup) -> Option<LookQuery> {
    let spec = &setup.spec;
    (spec.baseline.is_some() && spec.split == Split::Test).then(|| LookQuery {
        eval_id: setup.eval_id.clone(),
        subject: spec.of.clone(),
        dataset_hash: spec.dataset_hash,
    })
}

/// Returns the reply of an evaluation that has ended, by its status.
fn eval_reply(report: &EvalReport, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
    let found = json!({"eval_id": report.eval_id, "verdict": report.verdict, "report": report.content()});
    let job_id = job.job_id.to_string();
    match report.status {
        EvalStatus::Succeeded => {
            let score = report.score.map_or_else(|| "nothing".to_owned(), |score| three_places(score.mean));
            let (subject, split) = (report.compiled_id.to_string(), report.split.as_str());
            Ok(codes::evaluated(subject, score, report.scored, split).data(data).data(found))
        }
        EvalStatus::Incomplete => {
            let (count, total, reason) = incomplete(report);
            let said = match reason {
                IncompleteReason::Unscored => {
                    format!("more than {EVAL_UNSCORED_PERCENT_MAX} % of the trials of one side have no score")
                }
                IncompleteReason::JudgeInconsistent => {
                    let most = POSITION_FLIPS_PPM_MAX / 10_000;
                    format!(
                        "the judge changed its mind with the order of the answers in more than {most} % of the pairs"
                    )
                }
            };
            let why = json!({"incomplete": reason.as_str()});
            Err(codes::eval_incomplete(count, total, said).data(data).data(found).data(why).into())
        }
        EvalStatus::BudgetExhausted => {
            let left = job.bounds.budget.map_or_else(|| "no trial".to_owned(), |budget| budget.to_string());
            let bound = match job.bounds.max_calls {
                Some(calls) if job.bounds.budget.is_none() => format!("the {calls} trials"),
                Some(_) | None => left,
            };
            let hint = format!("cantrip run continue {} --budget AMOUNT goes on where it stopped", job.run_id);
            let spent = codes::budget_spent("the next trial", bound, format!("job {job_id}"));
            Err(spent.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        EvalStatus::Cancelled => {
            let hint = format!("cantrip run continue {} goes on where it stopped", job.run_id);
            let ended = codes::ended_from_outside("the caller", "cancelled");
            Err(ended.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        EvalStatus::Failed => {
            let cause = job.error.clone().unwrap_or_else(|| "an unexpected failure".to_owned());
            Err(codes::job_failed(format!("job {job_id}"), cause).data(data).data(found).into())
        }
    }
}

/// Returns how many trials have no score, of how many, and why the evaluation is incomplete.
fn incomplete(report: &EvalReport) -> (u64, u64, IncompleteReason) {
    let unscored: u64 = report.unscored.values().sum();
    let sides = if report.baseline_id.is_some() { 2 } else { 1 };
    let total = report.examples.saturating_mul(report.epochs).saturating_mul(sides);
    let flips = report.judge.and_then(|judge| judge.position_flips).unwrap_or(0);
    let reason = if flips > POSITION_FLIPS_PPM_MAX && unscored * 100 <= total * EVAL_UNSCORED_PERCENT_MAX {
        IncompleteReason::JudgeInconsistent
    } else {
        IncompleteReason::Unscored
    };
    (unscored, total, reason)
}

/// Returns a score as text, with three places, rounded half up.
fn three_places(micro: u64) -> String {
    let rounded = (micro + 500) / 1_000;
    format!("{}.{:03}", rounded / 1_000, rounded % 1_000)
}
