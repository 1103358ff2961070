//! A predict that an entity asks for inside its cast.
//!
//! The loop casts it below the calling turn, in the caller's run: what it costs is reserved under the caller's budget, and
//! policy is asked with each of its requests. So there is no question to policy of its own before it begins, as a predict
//! outside of a cast has.

use std::sync::Arc;

use cantrip::canon::json::to_value;
use cantrip::loom::{Content, Contracts, Event, Journal, Seq};
use cantrip::reply::{Refusal, codes};
use cantrip::{PredictAsked, Predicts, PreparedPredict};
use cantrip_contract::Strategy;
use futures_util::TryStreamExt;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::asked::{Budget, request_hash};
use crate::papers::{Files, OPENED};
use crate::predict::{Drawing, Predicting, Predictor, Ready, stored};
use crate::programs::Made;

impl Predicts for Predictor {
    fn prepare(&self, asked: PredictAsked) -> BoxFuture<'_, Result<PreparedPredict, Refusal>> {
        Box::pin(async move {
            let ready = if asked.resumed { self.begun_before(&asked).await? } else { self.begins(&asked).await? };
            let Ready { signature, artifact, input, crystal, rendered, filing } = ready;
            let (strategy, how) = (filing.strategy, filing.asked.clone());
            let made = Made { signature: &signature, artifact: &artifact, rendered: &rendered, asked: &how };
            let (cantrip, context) = self.cantrip(made, strategy, crystal, &input, asked.max_depth)?;
            let attempts = match strategy {
                Strategy::Direct => Some(u64::from(how.repair_attempts) + 1),
                Strategy::RlmLite => None,
            };
            let (intent, clerk) = (Content::from(rendered.user.as_str()), Arc::new(Files(Arc::new(filing))));
            Ok(PreparedPredict { cantrip, intent, context, clerk, attempts })
        })
    }
}

impl Predictor {
    /// A predict that nobody asked for before.
    async fn begins(&self, asked: &PredictAsked) -> Result<Ready, Refusal> {
        let started = self.clock().now();
        let signature = self.catalog().signature(&self.catalog().named(&asked.signature).await?).await?;
        let owner = asked.owner.as_str().to_owned();
        let (run_id, thread) = (Some(asked.run.to_string()), Some(asked.caller));
        let how = Predicting { owner, run_id, thread, ..Predicting::default() };
        let budget = Budget::of(&how, signature.program())?;
        signature.check_input(&asked.input)?;
        let (input, body) = (asked.input.clone(), Self::body_of(&asked.input)?);
        let request_hash = request_hash(signature.id(), &input, &how, budget)?;
        let drawing = Drawing { signature, input, body, request_hash, budget, started };
        let mut ready = self.drawn_up(drawing, &how, Some(&asked.crystal)).await?;
        ready.filing.caller = Some(json!({
            "run_id": asked.run, "thread_id": asked.caller, "turn_id": asked.turn, "call_id": asked.call,
        }));
        Ok(ready)
    }

    /// One that another process began, as the records of the caller's run tell it.
    async fn begun_before(&self, asked: &PredictAsked) -> Result<Ready, Refusal> {
        let mut records = self.runtime().loom().read(asked.run, Seq::START);
        let entity = to_value(&asked.entity).unwrap_or_default();
        let mut told: Option<Map<String, Value>> = None;
        while let Some(record) = records.try_next().await.map_err(stored)? {
            let Event::Other { kind, payload } = record.event().map_err(stored)? else { continue };
            if kind == OPENED && payload.get("entity_id") == Some(&entity) {
                told = Some(payload);
                break;
            }
        }
        let missing = || Refusal::from(codes::outcome_unknown("predict"));
        let told = told.ok_or_else(missing)?;
        let predict = told.get("predict_id").and_then(Value::as_str).and_then(|id| id.parse().ok());
        let row = self.runtime().loom().predict(predict.ok_or_else(missing)?).await.map_err(stored)?;
        self.made_again(row, &told, self.clock().now(), Some(&asked.crystal)).await
    }
}
