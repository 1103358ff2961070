//! Trials that are predicts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantrip::canon::{Money, RunId};
use cantrip::loom::{AnyLoom, Contracts, Ending, Error, Ledger, Loom};
use cantrip::reply::{Refusal, Reply, codes};
use cantrip::spend::Ruling;
use cantrip::{Cancel, StopLevel, Waiting};
use cantrip_contract::{CompiledId, ExampleId, Params, PredictKey, Receipt, ReceiptId, SignatureId, Status};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::ask::Trial;
use super::plan::CostBound;
use super::trial::{RefusedBy, TrialCall, TrialEnding, TrialRun, TrialRunner, ending_of_receipt};
use crate::limits::IN_FLIGHT_LOOK_MS;
use crate::options::PredictOptions;
use crate::outcome::PredictReply;
use crate::predict::{Predictor, refuse_store_error};

/// Finds the inputs of examples.
pub trait TrialInput: Send + Sync {
    /// Returns the input of an example.
    fn input<'a>(&'a self, example_id: &'a ExampleId) -> BoxFuture<'a, Result<Value, Refusal>>;
}

/// Runs trials as predicts of one signature. The candidate is the artifact.
pub struct PredictTrials {
    pub predictor: Predictor,
    pub signature: SignatureId,
    /// The model of all trials; none uses that of the artifact, the signature or the configuration.
    pub model: Option<String>,
    pub params: Params,
    pub inputs: Arc<dyn TrialInput>,
}

impl fmt::Debug for PredictTrials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PredictTrials").field("signature", &self.signature).finish_non_exhaustive()
    }
}

impl PredictTrials {
    fn artifact(&self, trial: &Trial) -> Result<CompiledId, Refusal> {
        let fault = || codes::contract_invalid(format!("{} is not an artifact", trial.candidate_id));
        trial.candidate_id.artifact().ok_or_else(|| fault().into())
    }

    async fn try_trial(&self, call: TrialCall<'_>) -> Result<TrialRun, Refusal> {
        let input = self.inputs.input(&call.trial.example_id).await?;
        let how = PredictOptions {
            artifact: Some(self.artifact(call.trial)?),
            model: self.model.clone(),
            params: self.params.clone(),
            idempotency_key: Some(call.key.to_owned()),
            ..call.context.predict_options()
        };
        let reply = self.predictor.predict_settled(&self.signature, &input, how).await;
        self.predictor.trial_run(reply, call.context.run).await
    }
}

impl TrialRunner for PredictTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        Box::pin(self.try_trial(call))
    }

    fn end<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move {
            let owner = call.context.owner.clone();
            let key = PredictKey { owner, signature_id: self.signature.clone(), key: call.key.to_owned() };
            let found = self.predictor.runtime.loom().predict_of_key(key).await.map_err(refuse_store_error)?;
            if let Some(row) = found.filter(|row| row.end.is_none()) {
                let cancel = Cancel::new();
                cancel.cancel();
                // A predict that another process drives is left to it: that process is asked to end it too.
                let _ = self.predictor.resume(row.run_id, &cancel).await;
            }
            Ok(())
        })
    }

    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(async move {
            let input = self.inputs.input(&trial.example_id).await?;
            let artifact = self.predictor.catalog().artifact(&self.artifact(trial)?).await?;
            let how =
                PredictOptions { model: self.model.clone(), params: self.params.clone(), ..PredictOptions::default() };
            self.predictor.worst_predict_cost(&self.signature, &artifact, &input, &how).await
        })
    }
}

impl Predictor {
    /// Makes a predict of a job. If another process drives the predict under this key, because it began it before it died
    /// or lost the job, this waits until that one has ended or its lease has expired.
    pub async fn predict_settled(&self, signature: &SignatureId, input: &Value, how: PredictOptions) -> PredictReply {
        loop {
            let reply = self.predict(signature, input, how.clone()).await;
            let said = &reply.guarded.reply;
            let is_in_flight = said.code() == codes::BUSY.any()
                && said.data().get("reason").and_then(Value::as_str) == Some("in_flight");
            if !is_in_flight || how.cancel.level() != StopLevel::Continue {
                return reply;
            }
            tokio::select! { biased;
                _ = how.cancel.wait_for_level(StopLevel::HandBack) => {}
                () = tokio::time::sleep(Duration::from_millis(IN_FLIGHT_LOOK_MS)) => {}
            }
        }
    }

    /// Returns how a predict of a job ended. `job` is the run of the job. The same is told of a live outcome and of a
    /// recorded one. A predict that did not even begin is a fault of the job.
    pub async fn trial_run(&self, reply: PredictReply, job: RunId) -> Result<TrialRun, Refusal> {
        let PredictReply { guarded, predicted } = reply;
        let said = &guarded.reply;
        if let Some(waiting) = predicted.waiting {
            let ending = match waiting {
                Waiting::Approval { .. } => TrialEnding::NeedsApproval { waiting },
                Waiting::Crystal { .. } | Waiting::Interrupted | Waiting::HandedBack => TrialEnding::Stopped,
            };
            return Ok(TrialRun { run: predicted.run, entity: predicted.thread, ..TrialRun::ended(ending) });
        }
        if said.code() == codes::BUSY.any() {
            return Ok(TrialRun::ended(TrialEnding::Stopped));
        }
        let replayed = predicted.replayed || said.data().get("replayed").and_then(Value::as_bool) == Some(true);
        let named = said.data().get("receipt_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let Some(receipt_id) = predicted.receipt.or(named) else { return Err(refusal_of(said)) };
        let loom = self.runtime.loom();
        let row = loom.receipt(receipt_id.clone()).await.map_err(refuse_store_error)?;
        let altered = || Refusal::from(codes::record_altered("receipt", row.receipt_id.to_string(), "body"));
        let receipt = row.receipt().map_err(|_| altered())?;
        let message = if receipt.status == Status::Succeeded { String::new() } else { self.failure(&receipt).await };
        let refused = refused_by(loom, receipt.run_id, job).await?;
        let ending = match ending_of_receipt(&receipt, predicted.output, message, refused) {
            TrialEnding::Denied { code, message, .. } => {
                TrialEnding::Denied { code, message, data: Value::Object(said.data().clone()) }
            }
            ending @ (TrialEnding::Answered(_)
            | TrialEnding::OwnFailure { .. }
            | TrialEnding::Infrastructure { .. }
            | TrialEnding::CapReached { .. }
            | TrialEnding::NeedsApproval { .. }
            | TrialEnding::Stopped) => ending,
        };
        Ok(TrialRun::of_receipt(&receipt, receipt_id, ending, replayed))
    }

    /// Describes the failure of a predict or a cast, from its records.
    async fn failure(&self, receipt: &Receipt) -> String {
        let code = receipt.error_code.clone().unwrap_or_default();
        if code == codes::OUTPUT_SCHEMA.any().as_str() {
            let path = self.last_violation(receipt.last_turn_id).await;
            return format!("{code}: the output does not match the schema at {path:?}");
        }
        let told = recorded_failure(self.runtime.loom(), receipt).await;
        told.map_or_else(|| code.clone(), |told| format!("{code}: {told}"))
    }
}

/// Returns what the records say about the end of the cast of a receipt that did not succeed.
pub(crate) async fn recorded_failure(loom: &AnyLoom, receipt: &Receipt) -> Option<String> {
    let casts = loom.casts(receipt.thread_id?).await.ok()?;
    let cast = casts.into_iter().rev().find(|cast| cast.run_id == receipt.run_id)?;
    match cast.outcome?.ending {
        Ending::Truncated { reason, error, .. } => {
            Some(error.map_or_else(|| reason.as_str().to_owned(), |error| error.message))
        }
        Ending::Terminated { .. } => None,
    }
}

/// Returns the cap that refused the last request of a run below a job, if one did.
pub async fn refused_by(loom: &AnyLoom, run: RunId, job: RunId) -> Result<RefusedBy, Refusal> {
    let decisions = match loom.decisions(run).await {
        Ok(decisions) => decisions,
        Err(Error::NoLedger) => return Ok(RefusedBy::Nobody),
        Err(error) => return Err(refuse_store_error(error)),
    };
    let Some(last) = decisions.last().filter(|last| last.decision.decision == Ruling::Denied) else {
        return Ok(RefusedBy::Nobody);
    };
    if !last.decision.reason_code.as_str().ends_with(".run_limit") {
        return Ok(RefusedBy::Nobody);
    }
    let scope = last.input.usage.run_cap.as_ref().map(|cap| cap.scope_id.as_str());
    Ok(if scope == Some(job.to_string().as_str()) { RefusedBy::JobCap } else { RefusedBy::OwnCap })
}

/// Returns the refusal that a reply told.
fn refusal_of(said: &Reply) -> Refusal {
    let data = Value::Object(said.data().clone());
    Refusal::dynamic(said.code().as_str(), data).unwrap_or_else(Refusal::from)
}

impl TrialRun {
    /// Returns a try as its receipt tells it.
    pub fn of_receipt(receipt: &Receipt, receipt_id: ReceiptId, ending: TrialEnding, replayed: bool) -> Self {
        let captured = i64::try_from(receipt.budget.captured).unwrap_or(i64::MAX);
        Self {
            ending,
            receipt_id: Some(receipt_id),
            run: Some(receipt.run_id),
            entity: receipt.thread_id,
            turns: receipt.budget.iterations,
            cost: receipt.budget.currency.and_then(|currency| Money::new(captured, currency).ok()),
            latency_ms: receipt.timing.latency_ms,
            gates: Vec::new(),
            replayed,
        }
    }
}
