//! Does a stored evaluation still say what its rows say?
//!
//! The rows are compared with the records of the job, which are a chain of hashes; each receipt must have its hash and
//! be about the candidate and the example of its row; and the report is made again and compared, field by field. So an
//! edited score, row, receipt, report or specification is found, and named.

use std::collections::BTreeMap;

use cantrip::loom::{AnyLoom, Event, Improvements, JobScored, Journal, PageRequest, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    CandidateId, Dataset, EvalId, EvalReport, EvalReportRow, EvalStatus, ExampleId, ExampleResultRow, JobKind, JobRow,
    JobSpec, JobStatus, JudgePart, Kind, Metric, Purpose, ReceiptId, Split, Subject,
};
use futures_util::TryStreamExt;
use serde_json::Value;

use super::names::JobEval;
use super::report::{ReportInputs, make_report_of};
use super::rows::{report_trials, side_of, stored_receipt, stored_results};
use super::setup::{is_enum_at, stored_spec};
use cantrip_ds::{Predictor, refuse_store_error};

/// The first difference between a stored evaluation and what its rows give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvalDifference {
    /// The kind of thing that differs: `evaluation`, `job`, `dataset`, `artifact`, `look`, `result` or `receipt`.
    pub what: &'static str,
    pub id: String,
    /// The field, as a JSON Pointer in a report.
    pub field: String,
}

impl EvalDifference {
    fn new(what: &'static str, id: impl ToString, field: impl Into<String>) -> Self {
        Self { what, id: id.to_string(), field: field.into() }
    }

    /// Returns the reply that names it.
    pub fn refusal(&self) -> Refusal {
        codes::record_altered(self.what, self.id.as_str(), self.field.as_str()).into()
    }
}

/// A stored evaluation that was verified.
#[derive(Debug, Clone)]
pub struct VerifiedEval {
    pub row: EvalReportRow,
    /// The report as it is stored; none if it cannot be read.
    pub report: Option<EvalReport>,
    pub job: JobRow,
    pub metric: Option<Metric>,
    /// The number of results that were compared.
    pub results: u64,
    pub difference: Option<EvalDifference>,
}

/// Verifies a stored evaluation. An error is a fault of the store; a difference is part of the result.
pub async fn verify_eval(predictor: &Predictor, eval: &EvalId) -> Result<VerifiedEval, Refusal> {
    let loom = predictor.runtime().loom();
    let row = loom.eval_report(eval.clone()).await.map_err(refuse_store_error)?;
    let job = loom.job(row.job_id).await.map_err(refuse_store_error)?;
    let read = row.report();
    let mut verified = VerifiedEval { row, report: None, job, metric: None, results: 0, difference: None };
    let report = match read {
        Ok(report) => report,
        Err(fault) => {
            verified.difference = Some(EvalDifference::new("evaluation", eval, fault.field));
            return Ok(verified);
        }
    };
    let check = EvalCheck { predictor, loom, job: &verified.job, report: &report };
    let checked = check.run().await;
    verified.report = Some(report);
    match checked {
        Ok(Checked { metric, results }) => {
            verified.metric = Some(metric);
            verified.results = results;
        }
        Err(Stop::Differs(difference)) => verified.difference = Some(difference),
        Err(Stop::Refused(refusal)) => return Err(refusal),
    }
    Ok(verified)
}

/// The reason why a check ends before its end.
enum Stop {
    Differs(EvalDifference),
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<EvalDifference> for Stop {
    fn from(difference: EvalDifference) -> Self {
        Self::Differs(difference)
    }
}

/// Returns the difference in place of a refusal that says that something was altered.
fn unaltered<T>(read: Result<T, Refusal>, difference: impl FnOnce() -> EvalDifference) -> Result<T, Stop> {
    read.map_err(
        |refusal| {
            if refusal.code() == codes::RECORD_ALTERED.any() { difference().into() } else { refusal.into() }
        },
    )
}

struct EvalCheck<'a> {
    predictor: &'a Predictor,
    loom: &'a AnyLoom,
    job: &'a JobRow,
    report: &'a EvalReport,
}

struct Checked {
    metric: Metric,
    results: u64,
}

impl EvalCheck<'_> {
    async fn run(&self) -> Result<Checked, Stop> {
        let job = |field: &'static str| EvalDifference::new("job", self.job.job_id, field);
        let spec = unaltered(stored_spec(self.job), || job("job_hash"))?;
        let evaluated = JobEval::of_report(&spec, self.report).ok_or_else(|| job("job_hash"))?;
        let spec = &evaluated.spec;
        // The search of a compile may run out of its budget although its final test is whole.
        if spec.kind == JobKind::Eval && self.job.status != JobStatus::from(self.report.status) {
            return Err(job("status").into());
        }
        let metric =
            Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
        let loaded = self.predictor.datasets().load(spec.dataset_hash).await;
        let dataset = unaltered(loaded, || EvalDifference::new("dataset", spec.dataset_hash, "examples"))?;
        for candidate in spec.subject.iter().chain(&spec.baseline) {
            if let Some(artifact) = candidate.artifact() {
                let loaded = self.predictor.catalog().artifact(&artifact).await;
                unaltered(loaded, || EvalDifference::new("artifact", &artifact, "content_hash"))?;
            }
        }
        let rows = stored_results(self.loom, self.job.job_id).await?;
        self.check_look().await?;
        self.check_rows(&rows).await?;
        self.check_receipts(spec, &dataset, &rows).await?;
        self.check_report(&evaluated, &metric, &dataset, &rows).await?;
        Ok(Checked { metric, results: rows.len() as u64 })
    }

    /// Compares the look of the report with the stored one.
    async fn check_look(&self) -> Result<(), Stop> {
        let is_look = self.report.baseline_id.is_some() && self.report.split == Split::Test;
        let mut stored = None;
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.loom.looks(self.report.signature_id.clone(), page).await.map_err(refuse_store_error)?;
            let own = listed.items.iter().find(|look| look.eval_id == self.report.eval_id);
            stored = own.map(|look| look.k).or(stored);
            next = page.following(listed.next).filter(|_| stored.is_none());
        }
        if stored != self.report.look.map(|look| look.k) || stored.is_some() != is_look {
            return Err(EvalDifference::new("look", &self.report.eval_id, "k").into());
        }
        Ok(())
    }

    /// Compares each row with the record of its score.
    async fn check_rows(&self, rows: &[ExampleResultRow]) -> Result<(), Stop> {
        let mut scored: BTreeMap<(CandidateId, ExampleId, u64), JobScored> = BTreeMap::new();
        let mut is_whole = false;
        let mut records = std::pin::pin!(self.loom.read(self.job.run_id, Seq::START));
        while let Some(record) = records.try_next().await.map_err(refuse_store_error)? {
            let event = record.event().map_err(refuse_store_error)?;
            if let Event::JobScored(event) = event {
                scored.insert((event.candidate_id.clone(), event.example_id.clone(), event.epoch), event);
            } else if let Event::JobOpened(_) = event {
                is_whole = true;
            }
        }
        if !is_whole {
            // Retention removed the records of the job; the rows and the receipts stay.
            return Ok(());
        }
        for row in rows {
            let key = (row.candidate_id.clone(), row.example_id.clone(), row.epoch);
            let id = format!("{} on {}", row.candidate_id, row.example_id);
            let Some(record) = scored.remove(&key) else {
                return Err(EvalDifference::new("result", id, "job.scored").into());
            };
            let field = if record.score != row.score_micro {
                "score"
            } else if record.unscored != row.unscored {
                "unscored"
            } else if record.own_failure != row.own_failure {
                "own_failure"
            } else if record.receipt_id != row.receipt_id {
                "receipt_id"
            } else if record.try_number != row.try_number {
                "try"
            } else {
                continue;
            };
            return Err(EvalDifference::new("result", id, field).into());
        }
        match scored.into_keys().next() {
            None => Ok(()),
            Some((candidate, example, _)) => {
                Err(EvalDifference::new("result", format!("{candidate} on {example}"), "row").into())
            }
        }
    }

    /// Compares each receipt with its row: it must be about this candidate and this example, and part of a job.
    async fn check_receipts(&self, spec: &JobSpec, dataset: &Dataset, rows: &[ExampleResultRow]) -> Result<(), Stop> {
        let altered = |id: &ReceiptId| EvalDifference::new("receipt", id, "receipt_hash");
        for row in rows.iter().filter(|row| side_of(spec, row).is_some()) {
            for id in &row.judge_receipts {
                unaltered(stored_receipt(self.loom, id).await, || altered(id))?;
            }
            let Some(id) = &row.receipt_id else { continue };
            let receipt = unaltered(stored_receipt(self.loom, id).await, || altered(id))?;
            let input = dataset.example(&row.example_id).map(cantrip_contract::Example::input_hash);
            let candidate = receipt.compiled_id.as_ref().map(CandidateId::from);
            let field = match receipt.receipt_kind {
                Kind::Predict if candidate.as_ref() != Some(&row.candidate_id) => "compiled_id",
                Kind::Predict if receipt.params_hash != input => "params_hash",
                Kind::Predict if receipt.purpose == Some(Purpose::Serve) => "purpose",
                Kind::Predict | Kind::Cast => continue,
            };
            return Err(EvalDifference::new("receipt", id, field).into());
        }
        Ok(())
    }

    /// Makes the report again and compares it with the stored one. The time, the look, the agreement of the judge and
    /// the money that was not reconciled are those of the close, which no row can give later.
    async fn check_report(
        &self,
        evaluated: &JobEval,
        metric: &Metric,
        dataset: &Dataset,
        rows: &[ExampleResultRow],
    ) -> Result<(), Stop> {
        let spec = &evaluated.spec;
        let read = report_trials(self.loom, spec, metric, rows).await;
        let trials = unaltered(read, || EvalDifference::new("evaluation", &self.report.eval_id, "judgements"))?;
        let ended = match self.report.status {
            EvalStatus::Succeeded | EvalStatus::Incomplete => None,
            ended @ (EvalStatus::BudgetExhausted | EvalStatus::Cancelled | EvalStatus::Failed) => Some(ended),
        };
        let judge = self.report.judge.map(|judge| JudgePart { position_flips: None, ..judge });
        let pointer = self.label_pointer(spec, metric).await?;
        let inputs = ReportInputs {
            spec,
            examples: dataset.split(spec.split).collect(),
            trials: &trials,
            ended,
            look: self.report.look.map(|look| look.k),
            judge: judge.filter(|_| metric.is_judged()),
            label_pointer: pointer.as_deref(),
            is_reproducible: metric.is_reproducible(),
            unreconciled: self.report.cost.unreconciled,
            created_at: self.report.created_at,
        };
        let made = make_report_of(evaluated, &inputs);
        let made = made.ok_or_else(|| EvalDifference::new("job", self.job.job_id, "subject"))?;
        match first_difference(&made.report.content(), &self.report.content(), "") {
            None => Ok(()),
            Some(field) => Err(EvalDifference::new("evaluation", &self.report.eval_id, field).into()),
        }
    }

    /// Returns the pointer whose value is a label. The file of a spell may have changed since, so there the report
    /// itself says whether it is one.
    async fn label_pointer(&self, spec: &JobSpec, metric: &Metric) -> Result<Option<String>, Refusal> {
        let Some(pointer) = metric.pointer() else { return Ok(None) };
        let is_label = match &spec.of {
            Subject::Signature(id) => {
                let signature = self.predictor.catalog().signature(id).await?;
                is_enum_at(signature.output().source(), pointer)
            }
            Subject::Spell(_) => self.report.labels.iter().any(|part| part.label.starts_with("expected:")),
        };
        Ok(is_label.then(|| pointer.to_owned()))
    }
}

/// Returns the place of the first difference of two values, in the order of their keys; none if they are equal.
pub(crate) fn first_difference(made: &Value, stored: &Value, at: &str) -> Option<String> {
    match (made, stored) {
        (Value::Object(made), Value::Object(stored)) => {
            let mut keys: Vec<&String> = made.keys().chain(stored.keys()).collect();
            keys.sort();
            keys.dedup();
            keys.into_iter().find_map(|key| {
                let at = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (made.get(key), stored.get(key)) {
                    (Some(made), Some(stored)) => first_difference(made, stored, &at),
                    (Some(_), None) | (None, Some(_)) => Some(at),
                    (None, None) => None,
                }
            })
        }
        (Value::Array(made), Value::Array(stored)) => {
            let mut inside = made.iter().zip(stored).enumerate();
            let found =
                inside.find_map(|(place, (made, stored))| first_difference(made, stored, &format!("{at}/{place}")));
            found.or_else(|| (made.len() != stored.len()).then(|| at.to_owned()))
        }
        (made, stored) => (made != stored).then(|| at.to_owned()),
    }
}
