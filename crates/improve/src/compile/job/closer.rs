//! The end of a compile: the report of its final test, its own report, and its reply.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantrip::canon::{RunId, Timestamp};
use cantrip::loom::{AnyLoom, Contracts, Error, Improvements};
use cantrip::reply::{Refusal, ReplyDraft, Success, codes};
use cantrip_contract::{
    CandidateId, CompileReport, CompileReportDraft, EvalReport, EvalReportDraft, EvalStatus, EvalVerdict, ExampleId,
    ExampleResultRow, ImproveRow, JobRow, JobSpec, JobStatus, LookQuery, Metric, ReceiptId, Split, Subject,
    SuggestionPart,
};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::report::{CompileMoney, CompileReportInputs, make_compile_report, selected_of};
use super::setup::CompileSetup;
use crate::compile::Walk;
use crate::eval::rows::{judge_part, report_trials, stored_receipt, unreconciled};
use crate::eval::{JobEval, MadeReport, ReportInputs, Suggestion, evidence_of, make_report_of};
use crate::limits::EVAL_UNSCORED_PERCENT_MAX;
use cantrip_ds::job::{JobCloser, JobClosing, JobEnd, JobEndKind, JobState};
use cantrip_ds::{Predictor, refuse_store_error};

/// Makes the report of a compile, and its reply.
pub(crate) struct CompileCloser {
    pub setup: Arc<CompileSetup>,
    pub predictor: Predictor,
}

impl CompileCloser {
    async fn make_closing(&self, end: &JobEnd<'_>) -> Result<JobClosing, Refusal> {
        let ended = match &end.kind {
            JobEndKind::Done(_) => None,
            JobEndKind::BudgetExhausted => Some(EvalStatus::BudgetExhausted),
            JobEndKind::Cancelled => Some(EvalStatus::Cancelled),
            JobEndKind::Failed => Some(EvalStatus::Failed),
        };
        let loom = self.predictor.runtime().loom();
        let walk = self.setup.search.walk(end.state);
        let rows: Vec<ExampleResultRow> = end.state.results().cloned().collect();
        let tested = self.make_test_report(&walk, &rows, ended, end.run, end.at).await?;
        let (tested, is_new) = tested.unzip();
        let suggestion = self.suggestion(&walk, tested.as_ref(), end.at).await?;
        let money = compile_money(loom, &rows, end.state, end.run).await?;
        let inputs = CompileReportInputs {
            spec: &self.setup.spec,
            ended,
            walk: &walk,
            rows: &rows,
            bounds: end.bounds,
            max_proposals: end.max_proposals,
            money: &money,
            tested: tested.as_ref(),
            suggestion,
            created_at: end.at,
        };
        let report = make_compile_report(&inputs).ok_or_else(|| Refusal::from(codes::crash()))?;
        let mut closing = JobClosing {
            status: ended.is_none().then(|| JobStatus::from(report.status)),
            report_id: Some(report.report_id.clone()),
            eval_id: report.eval_id.clone(),
            ..JobClosing::default()
        };
        if let (Some(tested), Some(true)) = (tested, is_new) {
            let look = tested.look.map(|look| look.k);
            let draft = EvalReportDraft { job_id: end.job_id, report: tested, look };
            closing.rows.push(ImproveRow::EvalReport(Box::new(draft)));
        }
        let draft =
            CompileReportDraft::new(end.job_id, &report.content()).map_err(|_| Refusal::from(codes::crash()))?;
        closing.rows.push(ImproveRow::CompileReport(Box::new(draft)));
        Ok(closing)
    }

    /// Makes the report of the final test of the chosen candidate; none if it is the base, or was not tested at all. A
    /// job that was continued and chose the same candidate again has the report that is stored: `false`.
    async fn make_test_report(
        &self,
        walk: &Walk,
        rows: &[ExampleResultRow],
        ended: Option<EvalStatus>,
        run: RunId,
        at: Timestamp,
    ) -> Result<Option<(EvalReport, bool)>, Refusal> {
        let loom = self.predictor.runtime().loom();
        let Some(selected) = selected_of(walk).filter(|selected| *selected != self.setup.base) else { return Ok(None) };
        let Some(evaluated) = JobEval::of_compile(&self.setup.spec, &selected) else { return Ok(None) };
        let expected = self.setup.test_trials(&selected);
        let made: BTreeSet<(&CandidateId, &ExampleId, u64)> =
            rows.iter().map(|row| (&row.candidate_id, &row.example_id, row.epoch)).collect();
        let is_whole =
            expected.iter().all(|trial| made.contains(&(&trial.candidate_id, &trial.example_id, trial.epoch)));
        if !is_begun(rows, &selected) {
            return Ok(None);
        }
        if let Some(stored) = self.stored_test(&evaluated).await? {
            return Ok(Some((stored, false)));
        }
        let query = LookQuery {
            eval_id: evaluated.eval_id.clone(),
            subject: self.setup.spec.of.clone(),
            dataset_hash: self.setup.spec.dataset_hash,
        };
        let look = loom.look_number(query).await.map_err(refuse_store_error)?;
        let judge = judge_part(loom, &self.setup.metric, at).await?;
        let inputs = TestInputs {
            evaluated: &evaluated,
            metric: &self.setup.metric,
            rows,
            // A search that ran out of its budget made its final test all the same.
            ended: ended.filter(|_| !is_whole),
            look,
            judge,
            unreconciled: unreconciled(loom, run).await?,
            at,
        };
        let MadeReport { report, .. } = self.setup.test_report(loom, inputs).await?;
        Ok(Some((report, true)))
    }

    /// Returns the report of a final test that is whole and stored, if there is one.
    async fn stored_test(&self, evaluated: &JobEval) -> Result<Option<EvalReport>, Refusal> {
        let row = match self.predictor.runtime().loom().eval_report(evaluated.eval_id.clone()).await {
            Ok(row) => row,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(refuse_store_error(error)),
        };
        let altered = |field: &str| Refusal::from(codes::record_altered("evaluation", row.eval_id.to_string(), field));
        let report = row.report().map_err(|fault| altered(fault.field))?;
        Ok(Some(report).filter(|report| !JobStatus::from(report.status).can_reopen()))
    }

    /// Returns the suggested next step.
    async fn suggestion(
        &self,
        walk: &Walk,
        tested: Option<&EvalReport>,
        at: Timestamp,
    ) -> Result<SuggestionPart, Refusal> {
        let keep = |reason: &str| SuggestionPart { action: "keep".to_owned(), reason: reason.to_owned() };
        let Some(tested) = tested else {
            return Ok(match selected_of(walk) {
                None => keep("no candidate was tried on all of the holdout split"),
                Some(selected) if selected == self.setup.base => keep("nothing scored higher than the base on holdout"),
                Some(_) => keep("the best candidate was not tested"),
            });
        };
        let pointer = match &self.setup.spec.of {
            Subject::Signature(id) => {
                let loom = self.predictor.runtime().loom();
                loom.pointer(id.clone()).await.map_err(refuse_store_error)?
            }
            Subject::Spell(_) => None,
        };
        let evidence = evidence_of(&self.predictor, tested, tested.hash(), None).await?;
        let Suggestion { action, reason } = Suggestion::after(tested, evidence.as_ref(), pointer.as_ref(), at);
        Ok(SuggestionPart { action: action.as_str().to_owned(), reason })
    }

    async fn make_reply(&self, job: &JobRow, data: Value) -> Result<ReplyDraft<Success>, Refusal> {
        let loom = self.predictor.runtime().loom();
        let stored = loom.compile_report_of(job.job_id).await.map_err(refuse_store_error)?;
        let Some(stored) = stored else {
            // The job failed before it had a report.
            let cause = job.error.clone().unwrap_or_else(|| "an unexpected failure".to_owned());
            return Err(codes::job_failed(format!("job {}", job.job_id), cause).data(data).into());
        };
        let altered = |field: &str| codes::record_altered("compile report", stored.report_id.to_string(), field);
        let report = stored.report().map_err(|fault| Refusal::from(altered(fault.field)))?;
        let verdict = match &report.eval_id {
            Some(id) => {
                let row = loom.eval_report(id.clone()).await.map_err(refuse_store_error)?;
                row.report().map_err(|fault| Refusal::from(altered(fault.field)))?.verdict
            }
            None => None,
        };
        compile_reply(&report, verdict, job, data)
    }
}

/// Everything that the report of a final test is made of, beside the setup of its job.
pub(crate) struct TestInputs<'a> {
    pub evaluated: &'a JobEval,
    pub metric: &'a Metric,
    pub rows: &'a [ExampleResultRow],
    pub ended: Option<EvalStatus>,
    pub look: u64,
    pub judge: Option<cantrip_contract::JudgePart>,
    pub unreconciled: u64,
    pub at: Timestamp,
}

impl CompileSetup {
    /// Makes the report of a final test.
    pub(crate) async fn test_report(&self, loom: &AnyLoom, inputs: TestInputs<'_>) -> Result<MadeReport, Refusal> {
        let spec: &JobSpec = &inputs.evaluated.spec;
        let trials = report_trials(loom, spec, inputs.metric, inputs.rows).await?;
        let made = ReportInputs {
            spec,
            examples: self.dataset.split(Split::Test).collect(),
            trials: &trials,
            ended: inputs.ended,
            look: Some(inputs.look),
            judge: inputs.judge,
            label_pointer: self.scoring.label_pointer.as_deref(),
            is_reproducible: inputs.metric.is_reproducible(),
            unreconciled: inputs.unreconciled,
            created_at: inputs.at,
        };
        make_report_of(inputs.evaluated, &made).ok_or_else(|| codes::crash().into())
    }
}

/// Returns true if the final test of a candidate has begun.
fn is_begun(rows: &[ExampleResultRow], selected: &CandidateId) -> bool {
    rows.iter().any(|row| row.split == Split::Test && row.candidate_id == *selected)
}

/// Reads what the receipts of a compile say about its money.
pub(crate) async fn compile_money(
    loom: &AnyLoom,
    rows: &[ExampleResultRow],
    state: &JobState,
    run: RunId,
) -> Result<CompileMoney, Refusal> {
    let mut money = CompileMoney { unreconciled: unreconciled(loom, run).await?, ..CompileMoney::default() };
    for row in rows {
        if let Some(id) = &row.receipt_id {
            let captured = add_receipt(loom, id, &mut money).await?;
            let (sum, calls) = money.by_candidate.entry(row.candidate_id.clone()).or_default();
            *sum = sum.saturating_add(captured);
            *calls += 1;
        }
        for id in &row.judge_receipts {
            add_receipt(loom, id, &mut money).await?;
        }
    }
    for id in state.proposals().filter_map(|proposed| proposed.receipt_id.as_ref()) {
        add_receipt(loom, id, &mut money).await?;
    }
    Ok(money)
}

async fn add_receipt(loom: &AnyLoom, id: &ReceiptId, money: &mut CompileMoney) -> Result<u64, Refusal> {
    let receipt = stored_receipt(loom, id).await?;
    money.total = money.total.saturating_add(receipt.budget.captured);
    money.currency = money.currency.or(receipt.budget.currency);
    Ok(receipt.budget.captured)
}

impl JobCloser for CompileCloser {
    fn close<'a>(&'a self, end: &'a JobEnd<'a>) -> BoxFuture<'a, Result<JobClosing, Refusal>> {
        Box::pin(self.make_closing(end))
    }

    fn reply<'a>(&'a self, job: &'a JobRow, data: Value) -> BoxFuture<'a, Result<ReplyDraft<Success>, Refusal>> {
        Box::pin(self.make_reply(job, data))
    }
}

/// Returns the reply of a compile that has ended, by its status. A budget is how a search ends, so that is no failure, if
/// the search came to a winner.
fn compile_reply(
    report: &CompileReport,
    verdict: Option<EvalVerdict>,
    job: &JobRow,
    data: Value,
) -> Result<ReplyDraft<Success>, Refusal> {
    let found = json!({
        "report_id": report.report_id, "base": report.base, "selected": report.selected,
        "candidates": report.candidates.len(), "eval_id": report.eval_id, "verdict": verdict,
        "suggestion": report.suggestion, "report": report.content(),
    });
    let job_id = job.job_id.to_string();
    let hint = format!("cantrip run continue {} goes on where it stopped", job.run_id);
    match (report.status, &report.selected) {
        (EvalStatus::Succeeded | EvalStatus::BudgetExhausted, Some(selected)) => {
            let count = report.candidates.len() as u64;
            Ok(codes::compiled(selected.to_string(), count).data(data).data(found))
        }
        (EvalStatus::BudgetExhausted, None) => {
            let bound = match (job.bounds.budget, job.bounds.max_calls) {
                (Some(budget), _) => budget.to_string(),
                (None, Some(calls)) => format!("the {calls} trials"),
                (None, None) => "no trial".to_owned(),
            };
            let spent = codes::budget_spent("the next trial", bound, format!("job {job_id}"));
            Err(spent.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        (EvalStatus::Succeeded | EvalStatus::Incomplete, _) => {
            let total = report.trials.train + report.trials.holdout + report.trials.test;
            let said = format!("more than {EVAL_UNSCORED_PERCENT_MAX} % of the trials have no score");
            Err(codes::eval_incomplete(report.trials.unscored, total, said).data(data).data(found).into())
        }
        (EvalStatus::Cancelled, _) => {
            let ended = codes::ended_from_outside("the caller", "cancelled");
            Err(ended.data(data).data(found).data(json!({ "hint": hint })).into())
        }
        (EvalStatus::Failed, _) => {
            let cause = job.error.clone().unwrap_or_else(|| "an unexpected failure".to_owned());
            Err(codes::job_failed(format!("job {job_id}"), cause).data(data).data(found).into())
        }
    }
}
