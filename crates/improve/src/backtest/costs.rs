//! The cost of a backtest before its first call.

use cantrip::crystal::limits::OUTPUT_TOKENS_DEFAULT;
use cantrip::reply::Refusal;
use serde_json::json;

use super::matcher::worst_matching;
use super::request::{BacktestRequest, MissingCalls};
use super::setup::BacktestSetup;
use crate::limits::{BACKTEST_CALL_BYTES_BOUND, JUDGED_TOKEN_BYTES_BOUND};
use cantrip_ds::job::{CostBound, CostPlan};
use cantrip_ds::{PredictOptions, Predictor};

/// Returns the most that one run can cost. A run of the recorded cantrip that acts by calls alone repeats the record;
/// programs may read a clock and go another way.
pub(super) async fn worst_run(
    predictor: &Predictor,
    setup: &BacktestSetup,
    is_unchanged: bool,
) -> Result<CostBound, Refusal> {
    if is_unchanged && setup.spell.is_conversation {
        return Ok(CostBound::Free);
    }
    let judged = match setup.missing {
        MissingCalls::Deny | MissingCalls::ReadOnlyLive => CostBound::Free,
        MissingCalls::Judge => {
            let model = setup.spec.models.judge.as_deref();
            worst_matching(predictor, model, BACKTEST_CALL_BYTES_BOUND).await?
        }
    };
    Ok(setup.spell.worst.plus(judged))
}

/// Returns the most that the judgements of both answers of a run can cost.
pub(super) async fn worst_judgements(predictor: &Predictor, setup: &BacktestSetup) -> Result<CostBound, Refusal> {
    let bytes = u64::from(OUTPUT_TOKENS_DEFAULT) * JUDGED_TOKEN_BYTES_BOUND;
    let output = json!("x".repeat(usize::try_from(bytes).unwrap_or(usize::MAX)));
    let mut worst = CostBound::Free;
    for judge in setup.metric.judges() {
        let Some(id) = &judge.artifact else { return Ok(CostBound::Unknown) };
        let artifact = predictor.catalog().artifact(id).await?;
        let mut input =
            json!({"task": judge.task.as_deref().unwrap_or("x"), "rubric": judge.rubric, "expected": output});
        if setup.metric.is_preference() {
            input["first"] = output.clone();
            input["second"] = output.clone();
        } else {
            input["output"] = output.clone();
        }
        let how = PredictOptions {
            artifact: Some(id.clone()),
            model: judge.model.clone(),
            whole: true,
            ..PredictOptions::default()
        };
        let once = predictor.worst_predict_cost(&judge.signature, &artifact, &input, &how).await?;
        worst = worst.plus(once.times(2));
    }
    Ok(worst)
}

/// Returns the worst cost and the payer. `same` is the number of runs of the same cantrip. The likely cost is not known:
/// another crystal, or another prompt, has another price and takes other turns.
pub(super) async fn plan_costs(
    predictor: &Predictor,
    setup: &BacktestSetup,
    same: u64,
    request: &BacktestRequest,
) -> Result<CostPlan, Refusal> {
    let runs = setup.dataset.examples().len() as u64;
    let mut worst = worst_judgements(predictor, setup).await?.times(runs);
    // No runs of a kind cost nothing, also if the price of one is unknown.
    for (is_unchanged, count) in [(true, same), (false, runs.saturating_sub(same))] {
        if count > 0 {
            worst = worst.plus(worst_run(predictor, setup, is_unchanged).await?.times(count));
        }
    }
    let unpriced = (worst == CostBound::Unknown).then(|| setup.spell.crystal.clone());
    let payer =
        predictor.job_payer(&request.owner, request.authorization, &setup.spec.of, unpriced.as_deref(), request.budget);
    Ok(CostPlan {
        worst,
        likely: None,
        budget: request.budget,
        max_calls: request.max_calls,
        authorization: payer.await?.id.to_string(),
    })
}
