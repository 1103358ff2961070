//! The cost of an evaluation before its first call.

use cantrip::canon::Money;
use cantrip::canon::json::canonical;
use cantrip::crystal::limits::OUTPUT_TOKENS_DEFAULT;
use cantrip::reply::Refusal;
use cantrip_contract::JudgeSpec;
use serde_json::{Value, json};

use super::request::EvalRequest;
use super::setup::{Candidate, EvalSetup};
use crate::limits::{JUDGED_TOKEN_BYTES_BOUND, PLANNED_INPUTS_MAX};
use cantrip_ds::PredictOptions;
use cantrip_ds::Predictor;
use cantrip_ds::job::{CostBound, CostPlan};

/// Returns the number of judgements of an evaluation at most: one of each output by each judge, two of each pair.
pub(crate) fn judgements(setup: &EvalSetup) -> u64 {
    let outputs = setup.trials().trials().len() as u64;
    // A pair has two outputs and is asked about twice.
    outputs.saturating_mul(setup.metric.judges().len() as u64)
}

/// Returns the worst and the likely cost, and the payer. An authorization that cannot pay for a job is refused.
pub(crate) async fn plan_costs(
    predictor: &Predictor,
    setup: &EvalSetup,
    request: &EvalRequest,
) -> Result<CostPlan, Refusal> {
    let (mut worst, mut likely) = (CostBound::Free, Some(None));
    let trials = (setup.examples().len() as u64).saturating_mul(setup.spec.epochs);
    for candidate in &setup.candidates {
        match candidate {
            Candidate::Artifact { artifact, model, .. } => {
                let how = PredictOptions {
                    owner: request.owner.clone(),
                    artifact: Some(artifact.id()),
                    model: model.clone(),
                    whole: true,
                    ..PredictOptions::default()
                };
                let (measured, others) = measured_inputs(setup);
                let mut largest = CostBound::Free;
                for input in measured {
                    let once = predictor.worst_predict_cost(artifact.signature_id(), artifact, input, &how).await?;
                    largest = larger(largest, once);
                    worst = worst.plus(once.times(setup.spec.epochs));
                }
                // A longer input makes a longer prompt, so the shorter ones cost no more than these.
                worst = worst.plus(largest.times(others.saturating_mul(setup.spec.epochs)));
                let own = model.as_deref().or(artifact.params().model.as_deref()).unwrap_or_default();
                let mean = predictor.likely_predict_cost(artifact.signature_id(), own).await?;
                likely = add_likely(likely, mean, trials);
            }
            Candidate::Spell { tried, .. } => {
                worst = worst.plus(tried.worst.times(trials));
                likely = None;
            }
        }
    }
    let each = judgements(setup) / (setup.metric.judges().len() as u64).max(1);
    for judge in setup.metric.judges() {
        worst = worst.plus(worst_judgement(predictor, setup, judge).await?.times(each));
        let mean = predictor.likely_predict_cost(&judge.signature, judge.model.as_deref().unwrap_or_default()).await?;
        likely = add_likely(likely, mean, each);
    }
    let unpriced = (worst == CostBound::Unknown).then(|| unpriced_model(setup));
    let payer =
        predictor.job_payer(&request.owner, request.authorization, &setup.spec.of, unpriced.as_deref(), request.budget);
    Ok(CostPlan {
        worst,
        likely: likely.flatten(),
        budget: request.budget,
        max_calls: request.max_calls,
        authorization: payer.await?.id.to_string(),
    })
}

/// Returns the longest inputs, whose prompts are measured one by one, and the number of the others.
fn measured_inputs(setup: &EvalSetup) -> (Vec<&Value>, u64) {
    let examples = setup.examples();
    let mut inputs: Vec<(usize, &Value)> = examples
        .iter()
        .map(|example| (canonical(&example.input).map_or(0, |text| text.len()), &example.input))
        .collect();
    inputs.sort_by_key(|(length, _)| std::cmp::Reverse(*length));
    let others = inputs.len().saturating_sub(PLANNED_INPUTS_MAX) as u64;
    (inputs.into_iter().take(PLANNED_INPUTS_MAX).map(|(_, input)| input).collect(), others)
}

/// Returns the larger of two bounds. An unknown one is larger than any.
pub(crate) fn larger(one: CostBound, other: CostBound) -> CostBound {
    match (one, other) {
        (CostBound::Unknown, _) | (_, CostBound::Unknown) => CostBound::Unknown,
        (CostBound::Free, bound) | (bound, CostBound::Free) => bound,
        (CostBound::AtMost(one), CostBound::AtMost(other)) => {
            CostBound::AtMost(if one.micros() >= other.micros() { one } else { other })
        }
    }
}

/// Returns the model that is named where a price is unknown: that of the trials, or else of the judge.
fn unpriced_model(setup: &EvalSetup) -> String {
    let models = &setup.spec.models;
    models.task.clone().or_else(|| models.judge.clone()).unwrap_or_else(|| setup.spec.of.to_string())
}

/// Adds the likely cost of so many calls. The outer value is none as soon as one of them is unknown.
pub(crate) fn add_likely(sum: Option<Option<Money>>, mean: Option<Money>, count: u64) -> Option<Option<Money>> {
    let more = mean?.times(count).ok()?;
    match sum? {
        None => Some(Some(more)),
        Some(sum) => Some(Some(sum.plus(more).ok()?)),
    }
}

/// Returns the most that the judgements of one output can cost. A pair has two outputs and is asked about twice.
pub(crate) async fn worst_judgements(predictor: &Predictor, setup: &EvalSetup) -> Result<CostBound, Refusal> {
    let mut worst = CostBound::Free;
    for judge in setup.metric.judges() {
        worst = worst.plus(worst_judgement(predictor, setup, judge).await?);
    }
    Ok(worst)
}

/// Returns the most that one judgement can cost: of the longest outputs, and the longest expected value.
async fn worst_judgement(predictor: &Predictor, setup: &EvalSetup, judge: &JudgeSpec) -> Result<CostBound, Refusal> {
    let Some(id) = &judge.artifact else { return Ok(CostBound::Unknown) };
    let artifact = predictor.catalog().artifact(id).await?;
    let tokens = setup.candidates.iter().map(|candidate| match candidate {
        Candidate::Artifact { artifact, .. } => artifact.params().max_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT),
        Candidate::Spell { .. } => OUTPUT_TOKENS_DEFAULT,
    });
    let bytes = u64::from(tokens.max().unwrap_or(OUTPUT_TOKENS_DEFAULT)) * JUDGED_TOKEN_BYTES_BOUND;
    let output = "x".repeat(usize::try_from(bytes).unwrap_or(usize::MAX));
    let length = |value: &Value| canonical(value).map_or(0, |text| text.len());
    // The trials of a compile are on all splits.
    let examples = setup.dataset.examples().iter();
    let expected = examples.filter_map(|example| example.expected.as_ref()).max_by_key(|value| length(value));
    let mut input = json!({
        "task": judge.task.as_deref().unwrap_or("x"), "rubric": judge.rubric,
    });
    if setup.metric.is_preference() {
        input["first"] = json!(output);
        input["second"] = json!(output);
    } else {
        input["output"] = json!(output);
    }
    if let Some(expected) = expected {
        input["expected"] = expected.clone();
    }
    let how = PredictOptions {
        artifact: Some(id.clone()),
        model: judge.model.clone(),
        whole: true,
        ..PredictOptions::default()
    };
    predictor.worst_predict_cost(&judge.signature, &artifact, &input, &how).await
}
