//! Resuming a predict whose process is dead, or that waited for a decision.
//!
//! Its row names signature, artifact and input, and its first record has its settings. So any process can build the
//! same cantrip, resume the run, and close it with its one receipt.

use std::sync::{Arc, Mutex};

use cantrip::Cancel;
use cantrip::canon::json::read;
use cantrip::canon::{Now, RunId};
use cantrip::crystal::{AnyCrystal, Crystal};
use cantrip::loom::{Contracts, Event, Journal, Loom, PageRequest, PredictOpened, ReceiptFilter, RunKind, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip_contract::PredictRow;
use futures_util::TryStreamExt;
use serde_json::from_value;

use crate::observer::PredictContext;
use crate::outcome::{PredictFailure, PredictOutcome, PredictReply};
use crate::predict::{Predictor, ReadyPredict, StartMode, refuse_store_error};
use crate::settings::{PredictSettings, PredictStart};

impl Predictor {
    /// Resumes the run of a predict that its process left, and closes it with its receipt. Recorded answers are not
    /// requested again. For a predict that has ended, the recorded outcome is read.
    pub async fn resume(&self, run: RunId, cancel: &Cancel) -> PredictReply {
        let (this, cancel) = (self.clone(), cancel.clone());
        self.reply_for("resume", async move {
            let row = this.predict_of(run).await?;
            let id = row.signature_id.clone();
            match row.end.clone() {
                Some(end) => Ok((id, this.recorded_outcome(row, end).await?)),
                None => {
                    let now = this.clock.now();
                    Ok((id, this.take_over(row, &cancel, now).await?))
                }
            }
        })
        .await
    }

    /// Returns the predict of a run.
    async fn predict_of(&self, run: RunId) -> Result<PredictRow, Refusal> {
        let loom = self.runtime.loom();
        let view = loom.run(run).await.map_err(refuse_store_error)?;
        let other = |state: &str| codes::wrong_state("run", run.to_string(), state, "resume", "a predict");
        if view.kind != RunKind::Predict {
            return Err(other("no predict").into());
        }
        let wanted = ReceiptFilter { run: Some(run), ..ReceiptFilter::default() };
        let receipts = loom.receipts(wanted, PageRequest { after: None, most: 1 }).await.map_err(refuse_store_error)?;
        let receipted = receipts.items.first().and_then(|row| row.receipt().ok()?.predict_id);
        let predict = match receipted {
            Some(predict) => predict,
            None => self.opening_record(run).await?.ok_or_else(|| Refusal::from(other("not opened")))?.predict_id,
        };
        loom.predict(predict).await.map_err(refuse_store_error)
    }

    /// Returns the first record of a predict.
    async fn opening_record(&self, run: RunId) -> Result<Option<PredictOpened>, Refusal> {
        let mut records = self.runtime.loom().read(run, Seq::START);
        while let Some(record) = records.try_next().await.map_err(refuse_store_error)? {
            if let Event::PredictOpened(opened) = record.event().map_err(refuse_store_error)? {
                return Ok(Some(opened));
            }
        }
        Ok(None)
    }

    /// Resumes an open predict that no process drives. `started` is the time at which this process began with it.
    pub(crate) async fn take_over(
        &self,
        row: PredictRow,
        cancel: &Cancel,
        started: Now,
    ) -> Result<PredictOutcome, PredictFailure> {
        let run = row.run_id;
        let opened = self.opening_record(run).await?.ok_or_else(|| unreadable_run(run))?;
        let ready = self.rebuild_request(row, opened, started, None).await?;
        self.execute(ready, StartMode::TakeOver(run), cancel).await
    }

    /// Rebuilds the predict from its records. `own` is a crystal that the caller already has.
    pub(crate) async fn rebuild_request(
        &self,
        row: PredictRow,
        opened: PredictOpened,
        started: Now,
        own: Option<&AnyCrystal>,
    ) -> Result<ReadyPredict, Refusal> {
        let untold = || unreadable_run(row.run_id);
        let asked: PredictSettings = from_value(opened.asked.ok_or_else(untold)?).map_err(|_| untold())?;
        let began: PredictStart = from_value(opened.began.ok_or_else(untold)?).map_err(|_| untold())?;
        let signature = self.catalog.signature(&row.signature_id).await?;
        let artifact = self.catalog.artifact(&row.compiled_id).await?;
        artifact
            .check_compatible(&signature)
            .map_err(|fault| fault.refusal(row.compiled_id.as_str(), signature.id()))?;
        let body = self.runtime.loom().body(row.params_hash).await.map_err(refuse_store_error)?;
        let altered = || Refusal::from(codes::record_altered("predict", row.predict_id.to_string(), "params_hash"));
        let text = std::str::from_utf8(body.bytes()).map_err(|_| altered())?;
        let input = read(text).map_err(|_| altered())?;
        let crystal = match own.filter(|own| own.name() == asked.crystal) {
            Some(own) => own.clone(),
            None => self.crystals.crystal(Some(&asked.crystal))?,
        };
        let rendered = signature.render(&artifact, &input)?;
        let filing = PredictContext {
            predict: row.predict_id,
            signature: row.signature_id,
            strategy: artifact.strategy(),
            artifact: row.compiled_id,
            hashes: artifact.hashes(),
            input: body,
            request_hash: row.request_hash,
            key: row.idempotency_key,
            purpose: row.purpose,
            owner: row.owner,
            asked,
            began,
            started,
            clock: Arc::clone(&self.clock),
            traces: self.traces.clone(),
            prompt: serde_json::json!({"system": rendered.system, "user": rendered.user}),
            caller: opened.caller,
            // The run that is resumed has its root on record.
            under: None,
            observations: Mutex::default(),
        };
        Ok(ReadyPredict { signature, artifact, input, crystal, rendered, filing })
    }
}

/// Returns the refusal for a run whose first records were written by another version.
fn unreadable_run(run: RunId) -> Refusal {
    codes::wrong_state("run", run.to_string(), "opened by another version", "resume", "one of this version").into()
}
