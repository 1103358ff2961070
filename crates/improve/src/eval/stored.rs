//! Stored evaluations: found by id, read with their rows, and as the evidence for a promotion.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::canon::Hash;
use cantrip::loom::{AnyLoom, EvalFilter, Improvements, PageRequest};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::limits::{JUDGE_AGREEMENT_LOW_MICRO, JUDGE_VERDICTS_MIN};
use cantrip_contract::{
    CandidateId, CompiledId, DatasetRow, EvalId, EvalReport, EvalReportRow, Example, ExampleId, ExampleResultRow,
    JobKind, JobRow, JobSpec, LatencyPart, Metric, PromotionEvidence, ReceiptId, Side, SignatureId, Split,
    StoredEvidence, Subject, Unscored,
};
use serde_json::{Value, json};

use super::agreement::judge_parts;
use super::names::JobEval;
use super::prepare::eval_parts;
use super::report::{ReportTrial, percentiles};
use super::rows::{report_trials, side_of, stored_output, stored_receipt, stored_results};
use super::setup::{EvalSetup, read_body, stored_spec};
use super::spells::SpellTrials;
use super::verify::EvalDifference;
use crate::compile::stored_compile_parts;
use crate::limits::EVAL_PAGE;
use cantrip_ds::job::JobParts;
use cantrip_ds::metric::MetricScorer;
use cantrip_ds::stats;
use cantrip_ds::{Predictor, refuse_store_error};

/// A stored evaluation with its rows, as they were said.
#[derive(Debug, Clone)]
pub struct StoredEval {
    pub report: EvalReport,
    pub report_hash: Hash,
    pub job: JobRow,
    pub spec: JobSpec,
    pub metric: Metric,
    /// As in `tickets@3`, or the beginning of the hash of a dataset without a name.
    pub dataset: String,
    /// The durations of the baseline's trials.
    pub baseline_latency: Option<LatencyPart>,
    /// One row for each example, the failures first.
    pub rows: Vec<StoredRow>,
}

/// One example of an evaluation, with both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRow {
    pub example_id: ExampleId,
    pub labels: Vec<String>,
    pub input: Value,
    pub expected: Option<Value>,
    pub subject: Option<StoredSide>,
    pub baseline: Option<StoredSide>,
}

/// One side of an example.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSide {
    /// The mean of the scored epochs, in millionths.
    pub score: Option<u32>,
    /// The reason why no epoch has a score.
    pub unscored: Option<Unscored>,
    pub own_failure: bool,
    /// The feedback on the worst epoch.
    pub feedback: String,
    /// The output of the first epoch.
    pub output: Option<Value>,
    pub receipt_id: Option<ReceiptId>,
    pub thread_id: Option<String>,
}

/// Finds an evaluation by its id or the beginning of it.
pub async fn resolve_eval(loom: &AnyLoom, asked: &str) -> Result<EvalId, Refusal> {
    if let Ok(id) = asked.parse::<EvalId>() {
        return Ok(id);
    }
    let mut found: Vec<EvalId> = Vec::new();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE }).filter(|_| asked.starts_with("eval_"));
    while let Some(page) = next {
        let listed = loom.eval_reports(EvalFilter::default(), page).await.map_err(refuse_store_error)?;
        let ids = listed.items.into_iter().map(|row| row.eval_id);
        found.extend(ids.filter(|id| id.as_str().starts_with(asked)));
        next = page.following(listed.next);
    }
    let hint = match found.len() {
        1 => return found.pop().ok_or_else(|| codes::crash().into()),
        0 => "cantrip eval ls lists them",
        _ => "several evaluations begin with this: give more digits",
    };
    Err(codes::contract_unknown("evaluation", asked).data(json!({ "hint": hint })).into())
}

/// Reads a stored evaluation with its rows.
pub async fn stored_eval(predictor: &Predictor, id: &EvalId) -> Result<StoredEval, Refusal> {
    let loom = predictor.runtime().loom();
    let row = eval_row(loom, id).await?;
    let altered = |field: &str| Refusal::from(codes::record_altered("evaluation", id.to_string(), field));
    let report = row.report().map_err(|fault| altered(fault.field))?;
    let job = loom.job(row.job_id).await.map_err(refuse_store_error)?;
    let spec = stored_spec(&job)?;
    let metric = Metric::from_stored(&spec.metric).map_err(|fault| fault.refusal(&spec.metric_hash().to_string()))?;
    let dataset = predictor.datasets().load(spec.dataset_hash).await?;
    let evaluated = JobEval::of_report(&spec, &report).ok_or_else(|| altered("eval_id"))?;
    let results = stored_results(loom, job.job_id).await?;
    let trials = report_trials(loom, &evaluated.spec, &metric, &results).await?;
    let rows = stored_rows(loom, &evaluated.spec, &results, |id| dataset.example(id)).await?;
    Ok(StoredEval {
        report,
        report_hash: row.report_hash,
        dataset: dataset_label(loom, spec.dataset_hash).await?,
        baseline_latency: side_latency(&trials, Side::Baseline),
        job,
        spec,
        metric,
        rows,
    })
}

/// Returns the row of an evaluation; an unknown one is refused.
async fn eval_row(loom: &AnyLoom, id: &EvalId) -> Result<EvalReportRow, Refusal> {
    match loom.eval_report(id.clone()).await {
        Ok(row) => Ok(row),
        Err(cantrip::loom::Error::NotFound { .. }) => {
            let hint = "cantrip eval ls lists them";
            Err(codes::contract_unknown("evaluation", id.to_string()).data(json!({ "hint": hint })).into())
        }
        Err(error) => Err(refuse_store_error(error)),
    }
}

fn side_latency(trials: &[ReportTrial], side: Side) -> Option<LatencyPart> {
    let of_side = trials.iter().filter(|trial| trial.side == side);
    percentiles(of_side.filter_map(|trial| trial.facts.as_ref()).map(|facts| facts.latency_ms).collect())
}

/// Returns the name of a dataset for people: its newest version, or the beginning of its hash.
pub(crate) async fn dataset_label(loom: &AnyLoom, hash: Hash) -> Result<String, Refusal> {
    let mut label = None;
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.dataset_versions(None, page).await.map_err(refuse_store_error)?;
        let newest = listed.items.iter().rev().find(|version| version.dataset_hash == hash);
        label = newest.map(|version| format!("{}@{}", version.name, version.version)).or(label);
        next = page.following(listed.next);
    }
    match label {
        Some(label) => Ok(label),
        None => {
            let row: DatasetRow = loom.dataset(hash).await.map_err(refuse_store_error)?;
            Ok(format!("sha256:{}", row.dataset_hash.hex(12)))
        }
    }
}

async fn stored_rows<'a>(
    loom: &AnyLoom,
    spec: &JobSpec,
    results: &[ExampleResultRow],
    example_of: impl Fn(&ExampleId) -> Option<&'a Example>,
) -> Result<Vec<StoredRow>, Refusal> {
    let mut sides: BTreeMap<(&ExampleId, Side), Vec<&ExampleResultRow>> = BTreeMap::new();
    for row in results {
        if let Some(side) = side_of(spec, row) {
            sides.entry((&row.example_id, side)).or_default().push(row);
        }
    }
    let mut rows: BTreeMap<&ExampleId, StoredRow> = BTreeMap::new();
    for ((id, side), mut epochs) in sides {
        epochs.sort_by_key(|row| row.epoch);
        let Some(example) = example_of(id) else { continue };
        let stored = stored_side(loom, &epochs).await?;
        let row = rows.entry(id).or_insert_with(|| StoredRow {
            example_id: id.clone(),
            labels: example.labels.iter().cloned().collect(),
            input: example.input.clone(),
            expected: example.expected.clone(),
            subject: None,
            baseline: None,
        });
        match side {
            Side::Subject => row.subject = Some(stored),
            Side::Baseline => row.baseline = Some(stored),
        }
    }
    let mut rows: Vec<StoredRow> = rows.into_values().collect();
    // Examples without a score come first, then the worst. Equal ones stay in the order of their ids.
    rows.sort_by_key(|row| row.subject.as_ref().and_then(|side| side.score));
    Ok(rows)
}

/// Returns one side of an example, of its epochs in order.
async fn stored_side(loom: &AnyLoom, epochs: &[&ExampleResultRow]) -> Result<StoredSide, Refusal> {
    let scores: Vec<i64> =
        epochs.iter().filter_map(|row| row.score_micro).filter_map(|score| i64::try_from(score).ok()).collect();
    let worst = epochs.iter().min_by_key(|row| row.score_micro);
    let feedback = match worst {
        Some(row) => read_body(loom, row.feedback_hash).await?.as_str().unwrap_or_default().to_owned(),
        None => String::new(),
    };
    let first = epochs.first();
    let (mut output, mut thread_id) = (None, None);
    if let Some(id) = first.and_then(|row| row.receipt_id.as_ref()) {
        let receipt = stored_receipt(loom, id).await?;
        thread_id = receipt.thread_id.map(|thread| thread.to_string());
        output = stored_output(loom, &receipt).await?;
    }
    Ok(StoredSide {
        score: stats::mean_of_epochs(&scores).and_then(|mean| u32::try_from(mean).ok()),
        unscored: epochs.iter().find_map(|row| row.unscored).filter(|_| scores.is_empty()),
        own_failure: epochs.iter().any(|row| row.own_failure),
        feedback,
        output,
        receipt_id: first.and_then(|row| row.receipt_id.clone()),
        thread_id,
    })
}

/// Finds the newest evaluation of an artifact beside another one on the test split.
pub async fn newest_eval(
    loom: &AnyLoom,
    signature: &SignatureId,
    artifact: &CompiledId,
    baseline: &CompiledId,
) -> Result<Option<EvalId>, Refusal> {
    let wanted = EvalFilter {
        subject: Some(Subject::Signature(signature.clone())),
        candidate: Some(CandidateId::from(artifact)),
        baseline: Some(CandidateId::from(baseline)),
        split: Some(Split::Test),
        job: None,
        latest_first: true,
    };
    let page = PageRequest { after: None, most: 1 };
    let listed = loom.eval_reports(wanted, page).await.map_err(refuse_store_error)?;
    Ok(listed.items.into_iter().next().map(|row| row.eval_id))
}

/// Returns the evidence of a stored evaluation for a promotion; none for a spell. `difference` is what a verification
/// found.
pub async fn evidence_of(
    predictor: &Predictor,
    report: &EvalReport,
    report_hash: Hash,
    difference: Option<&EvalDifference>,
) -> Result<Option<StoredEvidence>, Refusal> {
    let Some(evidence) = promotion_evidence(report) else { return Ok(None) };
    let has_unproven_judge = match report.judge {
        None => false,
        Some(_) => {
            let check = predictor.runtime().loom().judge_check(report.metric_hash).await.map_err(refuse_store_error)?;
            !check.is_some_and(|check| check.n >= JUDGE_VERDICTS_MIN && check.low_micro >= JUDGE_AGREEMENT_LOW_MICRO)
        }
    };
    Ok(Some(StoredEvidence {
        evidence,
        report_hash,
        altered: difference.map(|found| format!("{} {}: {}", found.what, found.id, found.field)),
        has_unproven_judge,
        spent_look: report.look.map(|look| look.k).filter(|k| stats::is_spent(*k)),
        is_reproducible: report.reproducible.unwrap_or(true),
    }))
}

/// Returns the part of a report on which a promotion depends; none for a spell. From the second look on a lower bound
/// counts only if the flip test agrees.
pub fn promotion_evidence(report: &EvalReport) -> Option<PromotionEvidence> {
    let delta_low_micro = match (report.look, report.delta) {
        (Some(look), Some(delta)) => {
            let is_supported = look.k == 1 || (!stats::is_spent(look.k) && delta.flip_p_ppm <= look.level_ppm);
            Some(if is_supported { look.low } else { look.low.min(0) })
        }
        (None, Some(delta)) => Some(delta.low),
        (_, None) => None,
    };
    Some(PromotionEvidence {
        eval_id: report.eval_id.to_string(),
        signature_id: report.signature_id.signature()?.clone(),
        status: report.status,
        split: report.split,
        compiled_id: report.compiled_id.artifact()?,
        baseline_id: report.baseline_id.as_ref().and_then(CandidateId::artifact),
        scored: report.units,
        delta_low_micro,
        cost_per_call_micro: report.cost.per_call,
        baseline_cost_per_call_micro: report.cost.baseline_per_call,
        created_at: report.created_at,
    })
}

/// Returns the parts of a stored job: an evaluation, a compile, or the comparison of a judge with people.
pub async fn job_parts(
    predictor: &Predictor,
    spells: &Arc<dyn SpellTrials>,
    metrics: MetricScorer,
    job: &JobRow,
) -> Result<JobParts, Refusal> {
    if job.kind == JobKind::Compile {
        return stored_compile_parts(predictor, spells, metrics, job).await;
    }
    if stored_spec(job)?.subject.is_none() {
        return judge_parts(predictor, metrics, job).await;
    }
    let setup = Arc::new(EvalSetup::of_job(predictor, &**spells, job).await?);
    Ok(eval_parts(&setup, predictor, spells, metrics))
}
