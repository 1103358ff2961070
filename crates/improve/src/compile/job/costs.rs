//! The cost of a compile before its first call.
//!
//! The candidates are not known before the search has made them, but their bounds are: the length of a text, the
//! number of demos and their examples, the output caps of the decodings. So the worst cost of a trial is that of a
//! candidate that has all of them at their bounds.

use cantrip::canon::json::canonical;
use cantrip::crystal::limits::OUTPUT_TOKENS_DEFAULT;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{Artifact, Demo, Example, Params, Signature, SignatureId, Split};
use serde_json::{Value, json};

use super::request::CompileRequest;
use super::setup::{CompileBase, CompileSetup};
use crate::compile::reflect::{REFLECT_SIGNATURE, worst_reflection};
use crate::compile::{Effort, Slot};
use crate::eval::costs::{add_likely, larger, worst_judgements};
use crate::limits::{
    COMPILE_DEMOS_MAX, COMPILE_PLANNED_INPUTS_MAX, COMPILE_TEXT_BYTES_MAX, HINT_CHARS_MAX, JUDGED_TOKEN_BYTES_BOUND,
};
use cantrip_ds::job::{CostBound, CostPlan};
use cantrip_ds::{PredictOptions, Predictor};

/// Returns the number of judgements of a compile at most: one of each output by each judge.
pub(crate) fn judgements(setup: &CompileSetup, effort: Effort) -> u64 {
    effort.trials.saturating_mul(setup.metric.judges().len() as u64)
}

/// Returns the worst and the likely cost, and the payer. An authorization that cannot pay for a job is refused.
pub(crate) async fn plan_costs(
    predictor: &Predictor,
    setup: &CompileSetup,
    effort: Effort,
    request: &CompileRequest,
    max_calls: Option<u64>,
) -> Result<CostPlan, Refusal> {
    let mut likely = Some(None);
    let mut worst = match &setup.loaded {
        CompileBase::Artifact { signature, artifact } => {
            let task = setup.spec.models.task.as_deref().unwrap_or_default();
            let mean = predictor.likely_predict_cost(signature.id(), task).await?;
            likely = add_likely(likely, mean, effort.trials);
            worst_trial(predictor, setup, signature, artifact).await?.times(effort.trials)
        }
        CompileBase::Spell { tried } => {
            likely = None;
            tried.worst.times(effort.trials)
        }
    };
    if !setup.metric.judges().is_empty() {
        worst = worst.plus(worst_judgements(predictor, &setup.scoring).await?.times(effort.trials));
    }
    for judge in setup.metric.judges() {
        let mean = predictor.likely_predict_cost(&judge.signature, judge.model.as_deref().unwrap_or_default()).await?;
        likely = add_likely(likely, mean, effort.trials);
    }
    if effort.proposals > 0 {
        let reflect = setup.spec.models.reflect.as_deref();
        worst = worst.plus(worst_reflection(predictor, reflect).await?.times(effort.proposals));
        let id: SignatureId = REFLECT_SIGNATURE.parse().map_err(|_| Refusal::from(codes::crash()))?;
        let mean = predictor.likely_predict_cost(&id, reflect.unwrap_or_default()).await?;
        likely = add_likely(likely, mean, effort.proposals);
    }
    let unpriced = (worst == CostBound::Unknown).then(|| {
        let models = &setup.spec.models;
        let named = [&models.task, &models.teacher, &models.reflect, &models.judge].into_iter().flatten().next();
        named.cloned().unwrap_or_else(|| setup.spec.of.to_string())
    });
    let of = &setup.spec.of;
    let payer = predictor.job_payer(&request.owner, request.authorization, of, unpriced.as_deref(), request.budget);
    Ok(CostPlan {
        worst,
        likely: likely.flatten(),
        budget: request.budget,
        max_calls,
        authorization: payer.await?.id.to_string(),
    })
}

/// Returns the most that one trial of any candidate can cost.
async fn worst_trial(
    predictor: &Predictor,
    setup: &CompileSetup,
    signature: &Signature,
    base: &Artifact,
) -> Result<CostBound, Refusal> {
    let inputs = longest(setup.dataset.examples().iter(), COMPILE_PLANNED_INPUTS_MAX);
    let mut worst = CostBound::Free;
    for params in decodings(setup) {
        let artifact = largest_artifact(setup, base, &params);
        let model = match &params.model {
            Some(_) => None,
            None => setup.spec.models.task.clone(),
        };
        let how = PredictOptions { model, whole: true, ..PredictOptions::default() };
        for example in &inputs {
            let once = predictor.worst_predict_cost(signature.id(), &artifact, &example.input, &how).await?;
            worst = larger(worst, once);
        }
    }
    Ok(worst)
}

/// Returns the parameters of all candidates: those of the decodings, and of the base with the model of the teacher.
fn decodings(setup: &CompileSetup) -> Vec<Params> {
    let space = setup.search.space();
    let contents = (0..space.choice_count()).map(|number| space.with_choice(space.base(), number));
    let mut all: Vec<Params> = contents.map(|content| content.params().clone()).collect();
    if let Some(teacher) = &setup.spec.models.teacher {
        let own = all.first().cloned().unwrap_or_default();
        all.push(Params { model: Some(teacher.clone()), ..own });
    }
    all
}

/// Returns an artifact that is as large as any candidate: its texts are as long as they may be, and its demos are the
/// longest examples with the longest outputs.
fn largest_artifact(setup: &CompileSetup, base: &Artifact, params: &Params) -> Artifact {
    let space = setup.search.space();
    let options = setup.search.ground().options();
    let given = options.get("texts").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut instructions = base.instructions().to_owned();
    for text in given {
        if text.len() > instructions.len() {
            text.clone_into(&mut instructions);
        }
    }
    let mut largest = base.with_params(params.clone());
    if space.reflects() && space.has(&Slot::Instructions) {
        instructions = longest_text(COMPILE_TEXT_BYTES_MAX);
    }
    if space.reflects() && space.has(&Slot::Hints) {
        let notes = space.output_pointers().iter().map(|pointer| pointer.len() + 8 + HINT_CHARS_MAX * 4);
        instructions.push_str(&longest_text(notes.sum()));
    }
    largest = largest.with_instructions(instructions);
    if space.reflects() && space.has(&Slot::SubInstructions) {
        largest = largest.with_sub_instructions(Some(longest_text(COMPILE_TEXT_BYTES_MAX)));
    }
    if space.has(&Slot::Demos) {
        let option = |key: &str| options.get(key).and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
        let count = match (option("bootstrapped"), option("labelled")) {
            (None, None) => COMPILE_DEMOS_MAX,
            (bootstrapped, labelled) => bootstrapped.unwrap_or(0) + labelled.unwrap_or(0),
        };
        let tokens = u64::from(params.max_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT));
        let answer = json!(longest_text(usize::try_from(tokens * JUDGED_TOKEN_BYTES_BOUND).unwrap_or(usize::MAX)));
        let examples = longest(setup.dataset.split(Split::Train), count.min(COMPILE_DEMOS_MAX));
        let demo = |example: &Example| Demo { input: example.input.clone(), output: answer.clone(), rationale: None };
        let mut demos: Vec<Demo> = examples.into_iter().map(demo).collect();
        // The base's own demos may stay beside them.
        demos.extend(base.demos().iter().cloned());
        largest = largest.with_demos(demos);
    }
    largest
}

/// Returns a text of this many bytes. A character that is escaped in JSON takes two.
fn longest_text(bytes: usize) -> String {
    "x".repeat(bytes.saturating_mul(2))
}

/// Returns the examples with the longest inputs, at most this many.
fn longest<'a>(examples: impl Iterator<Item = &'a Example>, most: usize) -> Vec<&'a Example> {
    let length = |example: &Example| canonical(&example.input).map_or(0, |text| text.len());
    let mut all: Vec<&Example> = examples.collect();
    all.sort_by_key(|example| std::cmp::Reverse(length(example)));
    all.truncate(most);
    all
}
