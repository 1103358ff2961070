//! The outcome of a predict and its reply: after its cast, from its records, or while it waits.

use cantrip::canon::{EntityId, PredictId, RunId, TurnId};
use cantrip::loom::{Contracts, Ending, Journal, Loom, Settlement, TruncationReason};
use cantrip::reply::{GuardedReply, Refusal, ReplyDraft, Success, codes};
use cantrip::{CastReply, Waiting};
use cantrip_contract::{PredictEnd, PredictRow, ReceiptId, Signature, SignatureId, Strategy};
use serde_json::{Value, json};

use crate::predict::{Predictor, refuse_store_error};

/// The outcome of a predict, with or without an output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictOutcome {
    pub output: Option<Value>,
    pub receipt: Option<ReceiptId>,
    pub run: Option<RunId>,
    pub thread: Option<EntityId>,
    /// True if the predict was answered before, under the same key.
    pub replayed: bool,
    /// Set if the predict is not finished: it waits for approvals, or it was interrupted. Its run continues when it is
    /// resumed, and then its one receipt is written.
    pub waiting: Option<Waiting>,
}

/// The reply of a predict.
#[derive(Debug)]
#[must_use = "a reply is the outcome of a call: look at it"]
pub struct PredictReply {
    pub guarded: GuardedReply,
    pub predicted: PredictOutcome,
}

/// The refusal of a predict without an output, and its outcome with the receipt.
pub(crate) struct PredictFailure {
    pub refusal: Refusal,
    pub predicted: Box<PredictOutcome>,
}

impl From<Refusal> for PredictFailure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, predicted: Box::default() }
    }
}

impl Predictor {
    /// Returns the reply for the outcome of a predict.
    pub(crate) async fn reply_for(
        &self,
        name: &'static str,
        comes: impl Future<Output = Result<(SignatureId, PredictOutcome), PredictFailure>> + Send + 'static,
    ) -> PredictReply {
        let call = cantrip::reply::Call::surface(name);
        // Boxed because the future is large, and every caller would carry it.
        let answering = self.runtime.guard().call_returning(call, |rb| {
            Box::pin(async move {
                match comes.await {
                    Ok((_, predicted)) if predicted.waiting.is_some() => {
                        (rb.success(waiting_reply(&predicted)), predicted)
                    }
                    Ok((id, predicted)) => {
                        let data = json!({
                            "output": predicted.output, "receipt_id": predicted.receipt,
                            "thread_id": predicted.thread, "run_id": predicted.run,
                            "replayed": predicted.replayed,
                        });
                        (rb.success(codes::predicted(id.to_string()).data(data)), predicted)
                    }
                    Err(PredictFailure { refusal, predicted }) => (rb.refuse(refusal), *predicted),
                }
            })
        });
        let (guarded, predicted) = answering.await;
        PredictReply { guarded, predicted: predicted.unwrap_or_default() }
    }

    /// Returns the outcome of a predict that was answered before.
    pub(crate) async fn recorded_outcome(&self, row: PredictRow, end: PredictEnd) -> Result<PredictOutcome, Refusal> {
        let loom = self.runtime.loom();
        let receipt = loom.receipt_of(row.predict_id).await.map_err(refuse_store_error)?;
        let predicted = PredictOutcome {
            output: None,
            receipt: receipt.as_ref().map(|row| row.receipt_id.clone()),
            run: Some(row.run_id),
            thread: row.thread_id,
            replayed: true,
            waiting: None,
        };
        let Some(output) = end.output_hash else {
            let code = receipt.and_then(|row| row.receipt().ok()).and_then(|receipt| receipt.error_code);
            let filled =
                codes::wrong_state("predict", row.predict_id.to_string(), "over", "asking again", "another key");
            return Err(filled
                .data(json!({"replayed": true, "error_code": code, "receipt_id": predicted.receipt}))
                .into());
        };
        let body = loom.body(output).await.map_err(refuse_store_error)?;
        let altered = || codes::record_altered("predict", row.predict_id.to_string(), "output_hash");
        let text = std::str::from_utf8(body.bytes()).map_err(|_| Refusal::from(altered()))?;
        let output = cantrip::canon::json::read(text).map_err(|_| Refusal::from(altered()))?;
        Ok(PredictOutcome { output: Some(output), ..predicted })
    }

    /// Returns the outcome of a predict whose cast has ended.
    pub(crate) async fn cast_outcome(
        &self,
        signature: &Signature,
        strategy: Strategy,
        predict: PredictId,
        reply: CastReply,
        repairs: u8,
    ) -> Result<PredictOutcome, PredictFailure> {
        let receipt =
            self.runtime.loom().receipt_of(predict).await.map_err(refuse_store_error)?.map(|row| row.receipt_id);
        let predicted =
            PredictOutcome { output: None, receipt, run: reply.run, thread: reply.entity, ..PredictOutcome::default() };
        let data = json!({
            "receipt_id": predicted.receipt, "run_id": predicted.run, "thread_id": predicted.thread,
        });
        let id = signature.id().to_string();
        let ending = reply.outcome.as_ref().map(|outcome| &outcome.ending);
        let refusal = match ending {
            Some(Ending::Terminated { result, .. }) => {
                return Ok(PredictOutcome { output: Some(result.clone()), ..predicted });
            }
            Some(Ending::Truncated { reason: TruncationReason::MaxTurns, .. }) if strategy == Strategy::Direct => {
                let path = self.last_violation(reply.outcome.as_ref().and_then(|outcome| outcome.leaf)).await;
                codes::output_schema(id, path, u64::from(repairs) + 1).data(data).into()
            }
            Some(Ending::Truncated { .. }) | None => {
                let said = reply.reply();
                let mut fields = Value::Object(said.data().clone());
                for (key, value) in data.as_object().into_iter().flatten() {
                    fields[key.as_str()] = value.clone();
                }
                if let Some(Ending::Truncated { reason: TruncationReason::MaxTurns, .. }) = ending {
                    fields["reason"] = json!("no_answer");
                }
                if said.reply_type().is_success() {
                    // The predict waits for an approval: its receipt is written after the decision.
                    let waiting = reply.waiting.filter(|waiting| !waiting.approvals().is_empty());
                    return Ok(PredictOutcome { waiting: waiting.or(Some(Waiting::Interrupted)), ..predicted });
                }
                Refusal::dynamic(said.code().as_str(), fields).unwrap_or_else(Refusal::from)
            }
        };
        Err(PredictFailure { refusal, predicted: Box::new(predicted) })
    }

    /// Returns the path at which the last output did not match the schema.
    pub(crate) async fn last_violation(&self, leaf: Option<TurnId>) -> String {
        let Some(leaf) = leaf else { return String::new() };
        let Ok(turn) = self.runtime.loom().turn(leaf).await else { return String::new() };
        let told = turn.gate_calls.iter().rev().find_map(|call| match &call.settlement {
            Settlement::Settled(settled) => settled.data.get("path").and_then(Value::as_str),
            Settlement::Delegated => None,
        });
        told.unwrap_or_default().to_owned()
    }
}

/// Returns the reply for a predict that is not finished, with the commands to continue it.
fn waiting_reply(predicted: &PredictOutcome) -> ReplyDraft<Success> {
    let run = predicted.run.map(|run| run.to_string()).unwrap_or_default();
    let approvals = predicted.waiting.as_ref().map_or(&[][..], Waiting::approvals);
    let (reason, hint) = if approvals.is_empty() {
        ("interrupted", format!("cantrip run resume {run}"))
    } else {
        ("approval", format!("cantrip run approve {run}, or refuse; then cantrip run resume {run}"))
    };
    let data = json!({
        "state": "waiting", "reason": reason, "approval_id": approvals.first(), "approvals": approvals,
        "run_id": predicted.run, "thread_id": predicted.thread, "hint": hint,
    });
    codes::created("run", run).data(data)
}
