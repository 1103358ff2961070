//! Evaluations for every surface: plan, start, list, show, rows, verify, and the agreement of a judge with people.
//!
//! A surface prepares an evaluation, shows its plan, asks where somebody can be asked, and starts it. Preparing writes
//! nothing and asks no model.

use std::time::Duration;

use cantrip::canon::{Hash, Redactor, RunId, known_secrets};
use cantrip::crystal::AnyCrystal;
use cantrip::loom::{Contracts, EvalFilter as StoredFilter, Improvements, PageRequest};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::{Cancel, CastReply, store_refusal};
use cantrip_ds::contract::{
    CandidateId, EvalReport, EvalReportRow, JobRow, JobSpec, LatencyPart, Pointer, SignatureId, Subject,
};
use cantrip_ds::job::{JobParts, JobWatcher};
use cantrip_ds::metric::MetricScorer;
use cantrip_ds::{Predictor, TraceArchive};
use cantrip_improve::backtest::is_backtest;
use cantrip_improve::eval::{
    EvalRequest, JudgeRequest, PreparedEval, StoredEval, StoredRow, StoredSide, Suggestion, evidence_of, job_parts,
    judge_metric, resolve_eval, stored_eval, verify_eval,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Service;
use crate::active::StartedCast;
use crate::limits::{EVAL_FAILURES_SHOWN_MAX, EVAL_ROWS_BYTES, GO_ON_LOOK_MS};

/// The evaluations that a list covers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EvalFilter {
    /// A signature id or `spell:NAME`.
    pub subject: Option<String>,
    /// The id of the artifact, cantrip or variant that was evaluated.
    pub compiled_id: Option<String>,
}

impl EvalFilter {
    fn stored(&self) -> Result<StoredFilter, Refusal> {
        let unfit = |what: &str, text: &str| Refusal::from(codes::contract_unknown(what, text));
        let subject = self.subject.as_deref().map(|text| text.parse::<Subject>().map_err(|_| unfit("subject", text)));
        let candidate =
            self.compiled_id.as_deref().map(|text| text.parse::<CandidateId>().map_err(|_| unfit("artifact", text)));
        Ok(StoredFilter {
            subject: subject.transpose()?,
            candidate: candidate.transpose()?,
            latest_first: true,
            ..StoredFilter::default()
        })
    }
}

/// A stored evaluation with everything that a page or a terminal shows of it.
#[derive(Debug, Clone)]
pub struct EvaluationView {
    pub report: EvalReport,
    pub report_hash: Hash,
    pub spec: JobSpec,
    /// The dataset by name and version, as in `tickets@3`, or the start of its hash if it has no name.
    pub dataset: String,
    /// The metric in words, as in `exact.v1 /label`.
    pub metric: String,
    pub run: RunId,
    pub suggestion: Suggestion,
    /// The durations of the baseline's trials.
    pub baseline_latency_ms: Option<LatencyPart>,
    /// One row per example, the ones that failed first. Inputs, outputs and feedback are redacted.
    pub rows: Vec<ExampleRow>,
}

/// One example of an evaluation, with both sides.
#[derive(Debug, Clone, Serialize)]
pub struct ExampleRow {
    pub example_id: String,
    pub labels: Vec<String>,
    pub input: Value,
    pub expected: Option<Value>,
    pub subject: SideRow,
    pub baseline: Option<SideRow>,
}

/// One side of an example: the mean of its epochs, and what was said about the worst of them.
#[derive(Debug, Clone, Default, Serialize)]
pub struct SideRow {
    /// The mean of the scored epochs, in micro-units.
    pub score: Option<u32>,
    /// The reason why no epoch has a score.
    pub unscored: Option<String>,
    pub own_failure: bool,
    pub feedback: String,
    pub output: Option<Value>,
    /// The receipt of the first epoch.
    pub receipt_id: Option<String>,
    /// The thread of the first epoch.
    pub thread_id: Option<String>,
}

/// Refuses every crystal: a reader asks no model.
fn no_crystal(name: Option<&str>) -> Result<AnyCrystal, Refusal> {
    Err(codes::not_found("crystal", name.unwrap_or("any")).into())
}

impl Service {
    /// Prepares an evaluation: everything is resolved and checked, the plan is computed. Nothing is written and no
    /// model is asked. `PreparedEval::plan` is the plan to show. The examples come from all owners, so only an operator
    /// evaluates.
    pub async fn prepare_evaluation(
        &self,
        predictor: Predictor,
        request: EvalRequest,
    ) -> Result<PreparedEval, Refusal> {
        self.check_may_change_shared()?;
        PreparedEval::prepare(predictor, self.spell_trials(), MetricScorer::default(), request).await
    }

    /// Returns the plan of a prepared evaluation: the answer to `--dry-run` and to `dry_run` over HTTP. The data is
    /// `{"plan": {...}, "job_hash": ...}`.
    pub async fn evaluation_plan(&self, prepared: &PreparedEval) -> GuardedReply {
        self.guarded_reply("eval", async {
            let plan = prepared.plan();
            let data = json!({"plan": plan, "job_hash": plan.job_hash, "eval_id": plan.eval_id});
            Ok(codes::read(format!("plan of {}", plan.eval_id)).value(data))
        })
        .await
    }

    /// Runs a prepared evaluation to its end, or joins the equal job that runs, or returns the report of the equal job
    /// that has ended (`replayed: true`). The data has `eval_id`, `job_id`, `run_id`, `status`, `verdict`, `report`.
    pub async fn evaluate(
        &self,
        prepared: PreparedEval,
        cancel: &Cancel,
        watcher: impl JobWatcher + 'static,
    ) -> CastReply {
        let driver = self.job_driver().with_watcher(watcher);
        match prepared.start(&driver, None, cancel, true).await {
            Ok(reply) => reply.into(),
            Err(refusal) => self.refusal_reply("eval", refusal).await.into(),
        }
    }

    /// Starts a prepared evaluation as a task, for a caller that does not wait. `StartedCast::run` is the job's run,
    /// once it is on record; none if the job was refused.
    pub async fn begin_evaluation(&self, prepared: PreparedEval, cancel: Cancel) -> StartedCast {
        let (hash, service) = (prepared.plan().job_hash, self.clone());
        let run = prepared.job_run().unwrap_or_else(|| self.runtime().new_run_id());
        let ends = cancel.clone();
        let work = async move {
            match prepared.start(&service.job_driver(), Some(run), &ends, false).await {
                Ok(reply) => CastReply::from(reply),
                Err(refusal) => CastReply::from(service.refusal_reply("eval", refusal).await),
            }
        };
        let mut started = self.active.begin_silent(run, cancel, work);
        started.run = loop {
            let is_active = self.active.contains(run);
            // The task may have ended between the two looks, after it wrote the job.
            match self.runtime().loom().job_of_hash(hash).await {
                Ok(Some(job)) => break Some(job.run_id),
                Ok(None) | Err(_) if !is_active => break None,
                Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(GO_ON_LOOK_MS)).await,
            }
        };
        started
    }

    /// Returns the parts of a stored job, to go on with it.
    pub async fn job_parts(&self, predictor: &Predictor, job: &JobRow) -> Result<JobParts, Refusal> {
        if is_backtest(job) {
            return self.stored_backtest_parts(predictor, job).await;
        }
        job_parts(predictor, &self.spell_trials(), MetricScorer::default(), job).await
    }

    /// Returns stored evaluations, newest first. Each item has `eval_id`, `job_id`, `subject`, `compiled_id`,
    /// `baseline_id`, `dataset_hash`, `split`, `status`, `verdict`, `score`, `delta`, `look`, `created_at`.
    pub async fn evaluations(&self, filter: EvalFilter, page: PageRequest) -> GuardedReply {
        self.guarded_reply("evaluations", async {
            let listed = self.runtime().loom().eval_reports(filter.stored()?, page).await;
            let listed = listed.map_err(|error| store_refusal(&error))?;
            let items: Vec<Value> = listed.items.iter().map(summary).collect();
            Ok(codes::read("evaluations").value(json!({"items": items, "next": listed.next})))
        })
        .await
    }

    /// Returns a stored evaluation by its id or a prefix of it. The data has `report`, `report_hash`, `spec`, `job_id`,
    /// `run_id`, `dataset`, `metric`, `suggestion`, and `failures`, the rows that scored lowest, redacted.
    pub async fn evaluation(&self, eval: &str) -> GuardedReply {
        self.guarded_reply("evaluation", async {
            Ok(codes::read(format!("evaluation {eval}")).value(self.evaluation_report(eval).await?))
        })
        .await
    }

    /// Returns the value that [`Service::evaluation`] answers with.
    pub async fn evaluation_report(&self, eval: &str) -> Result<Value, Refusal> {
        let (view, job_id) = self.view_and_job(eval, true).await?;
        // Examples come from all owners, so only an operator reads them.
        let most = if self.check_may_change_shared().is_ok() { EVAL_FAILURES_SHOWN_MAX } else { 0 };
        let failures = fitting_rows(view.rows.iter().filter(|row| is_failure(row)).take(most));
        Ok(json!({
            "report": view.report.content(), "report_hash": view.report_hash, "spec": view.spec.content(),
            "job_id": job_id, "run_id": view.run, "dataset": view.dataset, "metric": view.metric,
            "suggestion": view.suggestion, "failures": failures,
        }))
    }

    /// Returns a stored evaluation with its rows, typed, for pages and terminals.
    pub async fn evaluation_view(&self, eval: &str) -> Result<EvaluationView, Refusal> {
        Ok(self.view_and_job(eval, true).await?.0)
    }

    /// Returns the rows of an evaluation, failures first: per example the scores, feedback, receipts and threads of
    /// both sides, with input, expected and outputs, redacted unless `redact` is false. The examples come from all
    /// owners, so only an operator reads them.
    pub async fn evaluation_rows(&self, eval: &str, redact: bool, page: PageRequest) -> GuardedReply {
        self.guarded_reply("evaluation", async {
            self.check_may_change_shared().map_err(|_| {
                let why = "the examples of an evaluation come from all owners, so only an operator can read them";
                Refusal::from(codes::not_authorized("a reading of examples", why))
            })?;
            let (view, _) = self.view_and_job(eval, redact).await?;
            let skipped = page.after.map_or(0, |after| usize::try_from(after).unwrap_or(usize::MAX));
            let items = fitting_rows(view.rows.iter().skip(skipped).take(page.most));
            let end = skipped.saturating_add(items.len());
            let next = (end < view.rows.len()).then_some(end as u64);
            let data = json!({"eval_id": view.report.eval_id, "items": items, "next": next});
            Ok(codes::read(format!("rows of {}", view.report.eval_id)).value(data))
        })
        .await
    }

    /// Makes the report again from its rows and their receipts, and compares it with the stored one.
    pub async fn verify_evaluation(&self, eval: &str) -> GuardedReply {
        self.guarded_reply("verify", async {
            let id = resolve_eval(self.runtime().loom(), eval).await?;
            let verified = verify_eval(&self.reader(), &id).await?;
            match &verified.difference {
                None => {
                    let data = json!({"eval_id": id, "identical": true, "report_hash": verified.row.report_hash});
                    Ok(codes::verified(format!("evaluation {id}"), verified.results).value(data))
                }
                Some(difference) => Err(difference.refusal()),
            }
        })
        .await
    }

    /// Runs a judge over outputs that people judged, and stores how often they agree.
    pub async fn judge_metric(&self, predictor: Predictor, request: JudgeRequest) -> GuardedReply {
        if let Err(refusal) = self.check_may_change_shared() {
            return self.refusal_reply("eval", refusal).await;
        }
        match judge_metric(predictor, MetricScorer::default(), &self.job_driver(), request).await {
            Ok(reply) => reply.guarded,
            Err(refusal) => self.refusal_reply("eval", refusal).await,
        }
    }

    /// Returns a predictor that can read and asks no model.
    pub(crate) fn reader(&self) -> Predictor {
        self.predictor(no_crystal, TraceArchive::inline())
    }

    async fn view_and_job(&self, eval: &str, redact: bool) -> Result<(EvaluationView, String), Refusal> {
        let (id, reader) = (resolve_eval(self.runtime().loom(), eval).await?, self.reader());
        let stored = stored_eval(&reader, &id).await?;
        let suggestion = self.suggestion(&reader, &stored).await?;
        let redactor = redact.then(|| self.runtime().guard().redactor().clone().personal_data(true));
        let StoredEval { report, report_hash, job, spec, metric, dataset, baseline_latency, rows } = stored;
        let view = EvaluationView {
            report,
            report_hash,
            spec,
            dataset,
            metric: metric.summary(),
            run: job.run_id,
            suggestion,
            baseline_latency_ms: baseline_latency,
            rows: rows.into_iter().map(|row| example_row(row, redactor.as_ref())).collect(),
        };
        Ok((view, job.job_id.to_string()))
    }

    /// Returns what to do after an evaluation. The promote gate verifies the rows again; this does not.
    async fn suggestion(&self, reader: &Predictor, stored: &StoredEval) -> Result<Suggestion, Refusal> {
        let pointer = match &stored.spec.of {
            Subject::Signature(id) => self.pointer_if_any(id).await?,
            Subject::Spell(_) => None,
        };
        let evidence = evidence_of(reader, &stored.report, stored.report_hash, None).await?;
        let now = self.clock.now().wall;
        Ok(Suggestion::after(&stored.report, evidence.as_ref(), pointer.as_ref(), now))
    }

    async fn pointer_if_any(&self, id: &SignatureId) -> Result<Option<Pointer>, Refusal> {
        self.runtime().loom().pointer(id.clone()).await.map_err(|error| store_refusal(&error))
    }
}

/// Returns an evaluation as an entry of a list. One that was altered is still listed, and marked as altered.
fn summary(row: &EvalReportRow) -> Value {
    match row.report() {
        Ok(report) => json!({
            "eval_id": row.eval_id, "job_id": row.job_id, "subject": report.signature_id,
            "compiled_id": report.compiled_id, "baseline_id": report.baseline_id,
            "dataset_hash": report.dataset_hash, "split": report.split, "status": report.status,
            "verdict": report.verdict, "score": report.score, "delta": report.delta, "look": report.look,
            "scored": report.scored, "created_at": report.created_at,
        }),
        Err(_) => json!({"eval_id": row.eval_id, "job_id": row.job_id, "altered": true}),
    }
}

/// Returns the first rows that fit into one reply, at least one of them.
fn fitting_rows<'a>(rows: impl Iterator<Item = &'a ExampleRow>) -> Vec<Value> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    for row in rows {
        let item = json!(row);
        bytes += item.to_string().len();
        if bytes > EVAL_ROWS_BYTES && !items.is_empty() {
            break;
        }
        items.push(item);
    }
    items
}

fn is_failure(row: &ExampleRow) -> bool {
    row.subject.score.is_none_or(|score| score < 1_000_000)
}

fn example_row(row: StoredRow, redactor: Option<&Redactor>) -> ExampleRow {
    let StoredRow { example_id, labels, input, expected, subject, baseline } = row;
    ExampleRow {
        example_id: redacted_text(example_id.to_string(), redactor),
        labels: labels.into_iter().map(|label| redacted_text(label, redactor)).collect(),
        input: redacted(input, redactor),
        expected: expected.map(|expected| redacted(expected, redactor)),
        subject: subject.map(|side| side_row(side, redactor)).unwrap_or_default(),
        baseline: baseline.map(|side| side_row(side, redactor)),
    }
}

fn side_row(side: StoredSide, redactor: Option<&Redactor>) -> SideRow {
    SideRow {
        score: side.score,
        unscored: side.unscored.map(|reason| reason.as_str().to_owned()),
        own_failure: side.own_failure,
        feedback: redacted_text(side.feedback, redactor),
        output: side.output.map(|output| redacted(output, redactor)),
        receipt_id: side.receipt_id.map(|id| id.to_string()),
        thread_id: side.thread_id,
    }
}

/// Returns a value without secrets and personal data; as it is if there is no redactor.
fn redacted(value: Value, redactor: Option<&Redactor>) -> Value {
    let Some(redactor) = redactor else { return value };
    let value = redactor.redact_value(&value);
    match known_secrets() {
        Some(known) => known.redact_value(value),
        None => value,
    }
}

pub(crate) fn redacted_text(text: String, redactor: Option<&Redactor>) -> String {
    match redacted(Value::String(text), redactor) {
        Value::String(text) => text,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => String::new(),
    }
}
