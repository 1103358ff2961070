//! A predict that an entity asks for inside its cast.
//!
//! The loop casts it below the calling turn, in the caller's run: its cost is reserved under the caller's budget, and
//! policy decides about each of its requests. So there is no separate policy decision before it begins, as a predict
//! outside of a cast has.

use std::sync::Arc;

use cantrip::canon::RunId;
use cantrip::loom::{Content, Contracts, Event, Improvements, Journal, Loom, PredictCaller, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip::{PredictPreparer, PredictRequest, PreparedPredict};
use cantrip_contract::{Purpose, Strategy};
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;

use crate::job::purpose_of;
use crate::observer::PredictObserver;
use crate::options::PredictOptions;
use crate::predict::{CheckedRequest, Predictor, ReadyPredict, refuse_store_error};
use crate::programs::ProgramSpec;
use crate::settings::{Budget, request_hash};

impl PredictPreparer for Predictor {
    fn prepare(&self, asked: PredictRequest) -> BoxFuture<'_, Result<PreparedPredict, Refusal>> {
        Box::pin(async move {
            let ready =
                if asked.resumed { self.reopen_nested(&asked).await? } else { self.begin_nested(&asked).await? };
            let ReadyPredict { signature, artifact, input, crystal, rendered, filing } = ready;
            let (strategy, how) = (filing.strategy, filing.asked.clone());
            let made = ProgramSpec {
                signature: &signature,
                input: &input,
                artifact: &artifact,
                rendered: &rendered,
                asked: &how,
            };
            let (cantrip, context) = self.build_cantrip(made, strategy, crystal, &input, asked.max_depth)?;
            let attempts = match strategy {
                Strategy::Direct => Some(u64::from(how.repair_attempts) + 1),
                Strategy::RlmLite => None,
            };
            let (intent, observer) =
                (Content::from(rendered.user.as_str()), Arc::new(PredictObserver(Arc::new(filing))));
            Ok(PreparedPredict { cantrip, intent, context, observer, attempts })
        })
    }
}

impl Predictor {
    /// Begins a new predict.
    async fn begin_nested(&self, asked: &PredictRequest) -> Result<ReadyPredict, Refusal> {
        let started = self.clock.now();
        let signature = self.catalog.signature(&self.catalog.resolve_name(&asked.signature, []).await?).await?;
        let owner = asked.owner.as_str().to_owned();
        let (run_id, thread) = (Some(asked.run.to_string()), Some(asked.caller));
        let purpose = self.nested_purpose(asked.run).await?;
        let how = PredictOptions { owner, run_id, thread, purpose, ..PredictOptions::default() };
        let budget = Budget::resolve(&how, signature.program())?;
        signature.check_input(&asked.input)?;
        let (input, body) = (asked.input.clone(), Self::input_body(&asked.input)?);
        let request_hash = request_hash(signature.id(), &input, &how, budget)?;
        let drawing = CheckedRequest { signature, input, body, request_hash, budget, started };
        let mut ready = self.prepare_request(drawing, &how, Some(&asked.crystal)).await?;
        let (run_id, thread_id) = (asked.run, asked.caller);
        ready.filing.caller = Some(PredictCaller { run_id, thread_id, turn_id: asked.turn, call_id: asked.call });
        Ok(ready)
    }

    /// Returns the purpose of a predict inside this run: that of the job that the run is a trial of. So a dataset that is
    /// made of what was served never contains what a job asked.
    async fn nested_purpose(&self, run: RunId) -> Result<Purpose, Refusal> {
        let loom = self.runtime.loom();
        let Some(root) = loom.run(run).await.map_err(refuse_store_error)?.root_run_id else {
            return Ok(Purpose::Serve);
        };
        let job = loom.job_of_run(root).await.map_err(refuse_store_error)?;
        Ok(job.map_or(Purpose::Serve, |job| purpose_of(job.kind)))
    }

    /// Reopens a predict that another process began, from the records of the caller's run.
    async fn reopen_nested(&self, asked: &PredictRequest) -> Result<ReadyPredict, Refusal> {
        let mut records = self.runtime.loom().read(asked.run, Seq::START);
        while let Some(record) = records.try_next().await.map_err(refuse_store_error)? {
            let Event::PredictOpened(opened) = record.event().map_err(refuse_store_error)? else { continue };
            if opened.entity_id == Some(asked.entity) {
                let row = self.runtime.loom().predict(opened.predict_id).await.map_err(refuse_store_error)?;
                return self.rebuild_request(row, opened, self.clock.now(), Some(&asked.crystal)).await;
            }
        }
        Err(codes::outcome_unknown("predict").into())
    }
}
