//! The trials of an evaluation as its stored rows and receipts tell them.

use cantrip::canon::{JobId, RunId, Timestamp};
use cantrip::loom::{
    AnyLoom, Contracts, Ending, Error, Improvements, Ledger, Loom, Outcome, PageRequest, ReservationFilter,
};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{
    AgreementPart, ExampleResultRow, JobSpec, JudgePart, Kind, Metric, Receipt, ReceiptId, ReceiptRow, Side,
};
use serde_json::Value;

use super::report::{CastFacts, ReportTrial, TrialFacts};
use super::setup::read_body;
use crate::limits::EVAL_PAGE;
use cantrip_ds::refuse_store_error;

/// The state of a reservation whose outcome is unknown.
const UNRECONCILED: &str = "reconcile_required";

/// Returns the side that a row belongs to; none for a row of another candidate or split.
pub(crate) fn side_of(spec: &JobSpec, row: &ExampleResultRow) -> Option<Side> {
    if row.split != spec.split {
        return None;
    }
    if spec.subject.as_ref() == Some(&row.candidate_id) {
        Some(Side::Subject)
    } else if spec.baseline.as_ref() == Some(&row.candidate_id) {
        Some(Side::Baseline)
    } else {
        None
    }
}

/// Returns all results of a job, in the order in which they were written.
pub(crate) async fn stored_results(loom: &AnyLoom, job: JobId) -> Result<Vec<ExampleResultRow>, Refusal> {
    let mut rows = Vec::new();
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = loom.results(job, None, page).await.map_err(refuse_store_error)?;
        rows.extend(listed.items);
        next = page.following(listed.next);
    }
    Ok(rows)
}

/// Reads the receipts of these results. Each receipt must still have its hash.
pub(crate) async fn report_trials(
    loom: &AnyLoom,
    spec: &JobSpec,
    metric: &Metric,
    rows: &[ExampleResultRow],
) -> Result<Vec<ReportTrial>, Refusal> {
    let mut trials = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(side) = side_of(spec, row) {
            trials.push(report_trial(loom, side, row, metric.is_preference()).await?);
        }
    }
    Ok(trials)
}

async fn report_trial(
    loom: &AnyLoom,
    side: Side,
    row: &ExampleResultRow,
    is_preference: bool,
) -> Result<ReportTrial, Refusal> {
    let facts = match &row.receipt_id {
        Some(id) => Some(trial_facts(loom, &stored_receipt(loom, id).await?).await?),
        None => None,
    };
    let mut judge_cost = 0_u64;
    let mut judged = Vec::with_capacity(row.judge_receipts.len());
    for id in &row.judge_receipts {
        let receipt = stored_receipt(loom, id).await?;
        judge_cost = judge_cost.saturating_add(receipt.budget.captured);
        judged.push(receipt);
    }
    let judge_currency = judged.iter().find_map(|receipt| receipt.budget.currency);
    // Both sides of a pair name its two judgements. They are counted once, with the subject.
    let is_second_mention = is_preference && side == Side::Baseline;
    let is_flipped = if is_preference && !is_second_mention { is_flipped(loom, &judged).await? } else { None };
    Ok(ReportTrial {
        example_id: row.example_id.clone(),
        side,
        epoch: row.epoch,
        score: row.score_micro,
        unscored: row.unscored,
        own_failure: row.own_failure,
        receipt_id: row.receipt_id.clone(),
        facts,
        judge_cost: if is_second_mention { 0 } else { judge_cost },
        judge_currency,
        is_flipped,
    })
}

/// Returns a stored receipt whose bytes still have its hash.
pub(crate) async fn stored_receipt(loom: &AnyLoom, id: &ReceiptId) -> Result<Receipt, Refusal> {
    let row: ReceiptRow = loom.receipt(id.clone()).await.map_err(refuse_store_error)?;
    row.receipt().map_err(|fault| codes::record_altered("receipt", id.to_string(), fault.field).into())
}

async fn trial_facts(loom: &AnyLoom, receipt: &Receipt) -> Result<TrialFacts, Refusal> {
    let cast = match receipt.receipt_kind {
        Kind::Cast => cast_facts(loom, receipt).await?,
        Kind::Predict => None,
    };
    Ok(TrialFacts {
        latency_ms: receipt.timing.latency_ms,
        currency: receipt.budget.currency,
        captured: receipt.budget.captured,
        cast,
    })
}

/// Returns the end of the cast that a receipt is about.
async fn cast_facts(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<CastFacts>, Refusal> {
    Ok(cast_outcome(loom, receipt).await?.map(|outcome| CastFacts {
        turns: outcome.turns,
        truncated: match outcome.ending {
            Ending::Terminated { .. } => None,
            Ending::Truncated { reason, .. } => Some(reason.as_str().to_owned()),
        },
    }))
}

/// Returns the answer that a receipt stands for; none if there was none. The answer of a cast is in its loom and not among
/// the bodies.
pub(crate) async fn stored_output(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<Value>, Refusal> {
    match (receipt.receipt_kind, receipt.output_hash) {
        (Kind::Predict, Some(hash)) => read_body(loom, hash).await.map(Some),
        (Kind::Predict, None) => Ok(None),
        (Kind::Cast, _) => {
            let outcome = cast_outcome(loom, receipt).await?;
            Ok(outcome.and_then(|outcome| outcome.ending.result().cloned()))
        }
    }
}

/// Returns the outcome of the cast that a receipt is about; none if it has not ended.
async fn cast_outcome(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<Outcome>, Refusal> {
    let Some(entity) = receipt.thread_id else { return Ok(None) };
    let casts = loom.casts(entity).await.map_err(refuse_store_error)?;
    let of_run = casts.into_iter().rev().find(|cast| cast.run_id == receipt.run_id);
    Ok(of_run.and_then(|cast| cast.outcome))
}

/// Returns true if the two judgements of a pair prefer different sides; none if there are not two. The places are
/// exchanged the second time, so the same side has the other name. A try that failed has a receipt without an output.
async fn is_flipped(loom: &AnyLoom, judged: &[Receipt]) -> Result<Option<bool>, Refusal> {
    let mut choices = Vec::with_capacity(2);
    for receipt in judged {
        choices.extend(choice(loom, receipt).await?);
    }
    let [first, second] = choices.as_slice() else { return Ok(None) };
    let same_side = match first.as_str() {
        "first" => "second",
        "second" => "first",
        _ => "tie",
    };
    Ok(Some(second != same_side))
}

async fn choice(loom: &AnyLoom, receipt: &Receipt) -> Result<Option<String>, Refusal> {
    let Some(output) = receipt.output_hash else { return Ok(None) };
    let output = read_body(loom, output).await?;
    Ok(output.get("choice").and_then(Value::as_str).map(str::to_owned))
}

/// Returns the agreement of a judged metric with people, as it stood at this time; none if no model judges.
pub(crate) async fn judge_part(loom: &AnyLoom, metric: &Metric, at: Timestamp) -> Result<Option<JudgePart>, Refusal> {
    if !metric.is_judged() {
        return Ok(None);
    }
    let check = loom.judge_check(metric.hash()).await.map_err(refuse_store_error)?;
    let agreement = check.filter(|check| check.at <= at).map(|check| AgreementPart {
        n: check.n,
        agree: check.agree,
        low: check.low_micro,
        kappa: check.kappa_micro,
    });
    Ok(Some(JudgePart { agreement, position_flips: None }))
}

/// Returns the money that is held below a job for calls whose outcome is unknown, in millionths. A store without a
/// ledger holds none.
pub(crate) async fn unreconciled(loom: &AnyLoom, run: RunId) -> Result<u64, Refusal> {
    let wanted = ReservationFilter { state: Some(UNRECONCILED), ..ReservationFilter::default() };
    let mut held = 0_u64;
    let mut next = Some(PageRequest { after: None, most: EVAL_PAGE });
    while let Some(page) = next {
        let listed = match loom.reservations(wanted.clone(), page).await {
            Ok(listed) => listed,
            Err(Error::NoLedger) => return Ok(0),
            Err(error) => return Err(refuse_store_error(error)),
        };
        for booked in &listed.items {
            if booked.row.terms().root_run == run {
                held = held.saturating_add(u64::try_from(booked.row.held_micros()).unwrap_or(0));
            }
        }
        next = page.following(listed.next);
    }
    Ok(held)
}
