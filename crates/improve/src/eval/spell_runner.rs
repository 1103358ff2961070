//! The trials of a spell and of its variants, as casts.

use std::sync::Arc;
use std::time::Duration;

use cantrip::canon::RunId;
use cantrip::loom::{AnyLoom, Contracts, Loom, Outcome, PageRequest, ReceiptFilter};
use cantrip::reply::{Refusal, ReplyType, codes};
use cantrip::{CastReply, StopLevel, Waiting};
use cantrip_contract::{Dataset, Kind, Receipt, ReceiptId, VariantPatch};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::spells::{SpellTrial, SpellTrials};
use cantrip_ds::job::{CostBound, Trial, TrialCall, TrialEnding, TrialRun, TrialRunner, ending_of_receipt, refused_by};
use cantrip_ds::limits::IN_FLIGHT_LOOK_MS;
use cantrip_ds::refuse_store_error;

/// Casts a spell for the trials of a job.
#[derive(Clone)]
pub(crate) struct SpellCasts {
    pub dataset: Arc<Dataset>,
    pub spells: Arc<dyn SpellTrials>,
    pub loom: AnyLoom,
    /// The name of the spell.
    pub spell: String,
    /// The gates that the caller of the job lets through.
    pub gates: Vec<String>,
    /// The most that one cast can cost.
    pub worst: CostBound,
}

/// Runs the trials of one spell, or of one variant of it.
pub(crate) struct SpellRunner {
    pub casts: SpellCasts,
    /// The changes of the variant; none for the spell as it is.
    pub patch: Option<VariantPatch>,
}

impl TrialRunner for SpellRunner {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        Box::pin(self.casts.run_cast(call, self.patch.clone()))
    }

    fn worst<'a>(&'a self, _: &'a Trial) -> BoxFuture<'a, Result<CostBound, Refusal>> {
        Box::pin(std::future::ready(Ok(self.casts.worst)))
    }
}

impl SpellCasts {
    /// Casts the spell, with the changes of a variant if there are any, for one try of a trial. A cast that was begun
    /// before is resumed, and one that has ended is read.
    pub(crate) async fn run_cast(&self, call: TrialCall<'_>, patch: Option<VariantPatch>) -> Result<TrialRun, Refusal> {
        let example = self.dataset.example(&call.trial.example_id).ok_or_else(|| {
            Refusal::from(codes::record_altered("dataset", self.dataset.hash().to_string(), "examples"))
        })?;
        let run = call.context.run_id(call.trial, call.try_number);
        let replayed = self.loom.run(run).await.is_ok_and(|view| !view.state.is_live());
        let trial = SpellTrial {
            spell: self.spell.clone(),
            patch,
            gates: self.gates.clone(),
            intent: example.input.get("intent").and_then(Value::as_str).unwrap_or_default().to_owned(),
            context: example.input.get("context").cloned(),
            run,
            under: call.context.run,
            owner: call.context.owner.clone(),
            authorization: call.context.authorization,
            cancel: call.context.cancel.clone(),
        };
        let reply = self.cast_settled(trial).await?;
        if reply.reply().code() == codes::BUSY.any() {
            return Ok(TrialRun { run: Some(run), ..TrialRun::ended(TrialEnding::Stopped) });
        }
        if let Some(waiting) = reply.waiting {
            let ending = match waiting {
                Waiting::Approval { .. } => TrialEnding::NeedsApproval { waiting },
                Waiting::Interrupted | Waiting::HandedBack => TrialEnding::Stopped,
                Waiting::Crystal { fault, .. } => {
                    TrialEnding::Infrastructure { code: fault.mark.code, message: fault.message }
                }
            };
            return Ok(TrialRun { run: Some(run), entity: reply.entity, ..TrialRun::ended(ending) });
        }
        let message = reply.reply().message();
        let Some((receipt_id, receipt)) = self.receipt(run).await? else {
            return Ok(TrialRun { run: Some(run), ..TrialRun::ended(without_receipt(&reply, message)) });
        };
        let output = reply.outcome.as_ref().and_then(|outcome| outcome.ending.result().cloned());
        let refused = refused_by(&self.loom, run, call.context.run).await?;
        let message = receipt.error_code.as_ref().map_or(message.clone(), |code| format!("{code}: {message}"));
        let ending = ending_of_receipt(&receipt, output, message, refused);
        Ok(TrialRun {
            turns: reply.outcome.as_ref().map_or(0, |outcome| outcome.turns),
            gates: self.gates(reply.outcome.as_ref()).await?,
            ..TrialRun::of_receipt(&receipt, receipt_id, ending, replayed)
        })
    }

    /// Casts a trial. If another process drives its run, because it began it before it died or lost the job, this waits
    /// until that one has ended or its lease has expired.
    async fn cast_settled(&self, trial: SpellTrial) -> Result<CastReply, Refusal> {
        loop {
            let reply = self.spells.cast(trial.clone()).await?;
            let is_busy = reply.reply().code() == codes::BUSY.any();
            if !is_busy || trial.cancel.level() != StopLevel::Continue {
                return Ok(reply);
            }
            tokio::select! { biased;
                _ = trial.cancel.wait_for_level(StopLevel::HandBack) => {}
                () = tokio::time::sleep(Duration::from_millis(IN_FLIGHT_LOOK_MS)) => {}
            }
        }
    }

    /// Returns the receipt of the cast of a run. Its predicts have receipts of their own.
    async fn receipt(&self, run: RunId) -> Result<Option<(ReceiptId, Receipt)>, Refusal> {
        let wanted = ReceiptFilter { run: Some(run), latest_first: true, ..ReceiptFilter::default() };
        let mut next = Some(PageRequest::FIRST);
        while let Some(page) = next {
            let listed = self.loom.receipts(wanted.clone(), page).await.map_err(refuse_store_error)?;
            for row in &listed.items {
                let altered = |field: &str| codes::record_altered("receipt", row.receipt_id.to_string(), field);
                let receipt = row.receipt().map_err(|fault| Refusal::from(altered(fault.field)))?;
                if receipt.receipt_kind == Kind::Cast {
                    return Ok(Some((row.receipt_id.clone(), receipt)));
                }
            }
            next = page.following(listed.next);
        }
        Ok(None)
    }

    /// Returns the names of the gates that a cast called, in order.
    async fn gates(&self, outcome: Option<&Outcome>) -> Result<Vec<String>, Refusal> {
        let Some((leaf, cast)) = outcome.and_then(|outcome| Some((outcome.leaf?, outcome.cast_id))) else {
            return Ok(Vec::new());
        };
        let turns = self.loom.path(leaf).await.map_err(refuse_store_error)?;
        let of_cast = turns.iter().filter(|turn| turn.cast_id == cast);
        Ok(of_cast.flat_map(|turn| turn.gate_calls.iter().map(|call| call.gate.clone())).collect())
    }
}

/// Returns how a cast ended that left no receipt: nothing was cast.
fn without_receipt(reply: &CastReply, message: String) -> TrialEnding {
    let code = reply.reply().code().as_str().to_owned();
    match reply.reply().reply_type() {
        ReplyType::Denied => TrialEnding::Denied { code, message, data: Value::Object(reply.reply().data().clone()) },
        ReplyType::Success | ReplyType::Invalid | ReplyType::Failure => TrialEnding::Infrastructure { code, message },
    }
}
