//! Trials that are predicts.

use std::sync::Arc;

use cantrip::canon::Money;
use cantrip::reply::Refusal;
use cantrip_contract::{CompiledId, Params, SignatureId};
use futures_util::future::BoxFuture;
use serde_json::Value;

use super::ask::Trial;
use super::trial::{TrialCall, TrialRun, TrialRunner};
use crate::predict::Predictor;

/// Finds the inputs of examples.
pub trait TrialInput: Send + Sync {
    /// Returns the input of an example.
    fn input<'a>(&'a self, example_id: &'a str) -> BoxFuture<'a, Result<Value, Refusal>>;
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

impl TrialRunner for PredictTrials {
    fn run<'a>(&'a self, call: TrialCall<'a>) -> BoxFuture<'a, Result<TrialRun, Refusal>> {
        let _ = call;
        todo!()
    }

    fn worst<'a>(&'a self, trial: &'a Trial) -> BoxFuture<'a, Result<Option<Money>, Refusal>> {
        let _ = (trial, CompiledId::of);
        todo!()
    }
}
