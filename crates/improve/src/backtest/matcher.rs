//! The policy `judge`: a model decides whether a recorded call means the same as a call that was not recorded.
//!
//! The model never makes up the answer of a gate. It compares the arguments of two calls, and the recorded reply of the
//! one that means the same is the answer. Each question is a predict of the job with a key of its content, so a process
//! that goes on with the run reads the answers that were given.

use std::sync::atomic::{AtomicU64, Ordering};

use cantrip::canon::stable_hash;
use cantrip::circle::gate::GateSpec;
use cantrip::reply::{Refusal, codes};
use cantrip_contract::{JUDGE_SIGNATURE, SignatureId};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::limits::{BACKTEST_JUDGEMENTS_MAX, BACKTEST_MATCHES_MAX, BACKTEST_SAME_CALL_MICRO};
use cantrip_ds::job::{CostBound, JobContext, TrialEnding};
use cantrip_ds::{PredictOptions, Predictor};

/// The question that the judge answers.
const TASK: &str = "A recorded run of an agent is repeated. The output is a tool call that the agent makes now, the \
                    expected output is a call of the same tool whose result is on record.";

/// The rule by which the judge answers.
const RUBRIC: &str = "1 if the recorded result answers the new call as well, because both calls ask for the same thing \
                      in other words. 0 if the new call asks for anything else.";

/// Finds the recorded call that means the same as another one.
pub trait CallMatcher: Send + Sync {
    /// Returns the place among the recorded arguments of a call that means the same; none if there is none.
    fn choose<'a>(
        &'a self,
        gate: &'a GateSpec,
        arguments: &'a Map<String, Value>,
        recorded: &'a [&'a Value],
    ) -> BoxFuture<'a, Option<usize>>;
}

/// Asks a judge about calls, by predicts of a job.
pub(super) struct JudgeMatcher {
    pub predictor: Predictor,
    pub context: JobContext,
    pub model: Option<String>,
    /// The beginning of the keys of all questions about the run.
    pub key: String,
    /// The number of questions that this process has asked about the run.
    pub asked: AtomicU64,
}

impl JudgeMatcher {
    async fn choose_call(&self, gate: &GateSpec, arguments: &Map<String, Value>, recorded: &[&Value]) -> Option<usize> {
        let new = json!({"tool": gate.name, "description": gate.description, "arguments": arguments});
        for (place, args) in recorded.iter().enumerate().take(BACKTEST_MATCHES_MAX) {
            if self.asked.fetch_add(1, Ordering::Relaxed) >= BACKTEST_JUDGEMENTS_MAX {
                return None;
            }
            let known = json!({"tool": gate.name, "arguments": args});
            match self.is_same(&new, &known).await {
                Ok(true) => return Some(place),
                Ok(false) => {}
                Err(refusal) => {
                    tracing::debug!(gate = %gate.name, ?refusal, "a call could not be judged");
                    return None;
                }
            }
        }
        None
    }

    async fn is_same(&self, new: &Value, known: &Value) -> Result<bool, Refusal> {
        let input = question(new, known);
        let signature = judge_signature()?;
        let artifact = self.predictor.catalog().signature(&signature).await?.base_artifact().id();
        let digest = stable_hash(&input).map_err(|_| Refusal::from(codes::crash()))?;
        let how = PredictOptions {
            artifact: Some(artifact),
            model: self.model.clone(),
            idempotency_key: Some(format!("{}|call|{}", self.key, digest.hex(32))),
            ..self.context.predict_options()
        };
        let reply = self.predictor.predict_settled(&signature, &input, how).await;
        let ran = self.predictor.trial_run(reply, self.context.run).await?;
        Ok(match ran.ending {
            TrialEnding::Answered(output) => {
                let score = output.get("score").and_then(Value::as_f64).unwrap_or(0.0);
                score * 1e6 >= BACKTEST_SAME_CALL_MICRO as f64
            }
            TrialEnding::OwnFailure { .. }
            | TrialEnding::Infrastructure { .. }
            | TrialEnding::CapReached { .. }
            | TrialEnding::Denied { .. }
            | TrialEnding::NeedsApproval { .. }
            | TrialEnding::Stopped => false,
        })
    }
}

impl CallMatcher for JudgeMatcher {
    fn choose<'a>(
        &'a self,
        gate: &'a GateSpec,
        arguments: &'a Map<String, Value>,
        recorded: &'a [&'a Value],
    ) -> BoxFuture<'a, Option<usize>> {
        Box::pin(self.choose_call(gate, arguments, recorded))
    }
}

fn question(new: &Value, known: &Value) -> Value {
    json!({"task": TASK, "rubric": RUBRIC, "output": new, "expected": known})
}

fn judge_signature() -> Result<SignatureId, Refusal> {
    JUDGE_SIGNATURE.parse().map_err(|_| codes::crash().into())
}

/// Returns the most that the judgements of one run can cost, for calls of at most this size.
pub(super) async fn worst_matching(
    predictor: &Predictor,
    model: Option<&str>,
    bytes: usize,
) -> Result<CostBound, Refusal> {
    let signature = judge_signature()?;
    let artifact = predictor.catalog().signature(&signature).await?.base_artifact();
    let call = json!({ "arguments": "x".repeat(bytes) });
    let how = PredictOptions { model: model.map(str::to_owned), whole: true, ..PredictOptions::default() };
    let once = predictor.worst_predict_cost(&signature, &artifact, &question(&call, &call), &how).await?;
    Ok(once.times(BACKTEST_JUDGEMENTS_MAX))
}
