//! The options of a predict, as its caller gives them.

use std::time::Duration;

use cantrip::Cancel;
use cantrip::canon::{EntityId, Money, RunId};
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{CanaryScope, CompiledId, Params, Purpose};

use crate::limits::PREDICT_SECONDS;
use crate::trace::TraceMode;

/// The options of a predict. There is no option that supplies its output.
#[derive(Debug, Clone)]
#[must_use = "predict with it"]
pub struct PredictOptions {
    pub owner: String,
    /// The artifact to use. None uses the artifact of the pointer, or else the signature as written.
    pub artifact: Option<CompiledId>,
    /// The entity whose conversation the caller is in.
    pub thread: Option<EntityId>,
    /// True to give a program of `rlm_lite.v1` the recent calls of that thread.
    pub history: bool,
    /// The key that assigns the caller to a canary bucket; else its run, its thread, its agent or its owner does.
    pub canary_key: Option<String>,
    /// The caller's run. It selects the canary bucket and nothing else, so it may be a run of another system.
    pub run_id: Option<String>,
    /// The calling agent. It selects the canary bucket if no key, run or thread is given.
    pub autopilot_id: Option<String>,
    pub model: Option<String>,
    /// Parameters that override those of the artifact.
    pub params: Params,
    /// The authorization that pays. None uses the most specific one that fits.
    pub authorization: Option<AuthorizationRef>,
    /// The time to wait for an approval, if one is needed. After it, or without it, the reply reports the pending
    /// approvals.
    pub wait_for_approval: Option<Duration>,
    /// The maximum cost.
    pub max_cost: Option<Money>,
    /// The run that the predict is below: a job. It is the root of the predict's run, of its holds and of its caps.
    pub under: Option<RunId>,
    /// True if the output cap is never cut to what money is left: a request whose whole worst case does not fit is not
    /// sent. Scores of outputs that a low budget cut short could not be compared.
    pub whole: bool,
    pub timeout: Duration,
    pub repair_attempts: Option<u8>,
    /// The maximum number of utterances of `rlm_lite.v1`.
    pub max_iterations: Option<u8>,
    /// The maximum number of children of `rlm_lite.v1`.
    pub max_sub_calls: Option<u8>,
    /// The idempotency key: the same key with the same request is answered once.
    pub idempotency_key: Option<String>,
    pub trace: TraceMode,
    pub purpose: Purpose,
    pub cancel: Cancel,
}

impl Default for PredictOptions {
    fn default() -> Self {
        Self {
            owner: "local".to_owned(),
            artifact: None,
            thread: None,
            history: false,
            canary_key: None,
            run_id: None,
            autopilot_id: None,
            model: None,
            params: Params::default(),
            authorization: None,
            wait_for_approval: None,
            max_cost: None,
            under: None,
            whole: false,
            timeout: Duration::from_secs(PREDICT_SECONDS),
            repair_attempts: None,
            max_iterations: None,
            max_sub_calls: None,
            idempotency_key: None,
            trace: TraceMode::default(),
            purpose: Purpose::Serve,
            cancel: Cancel::new(),
        }
    }
}

impl PredictOptions {
    /// Returns the ids by which a rollout assigns this caller.
    pub fn canary_scope(&self) -> CanaryScope {
        CanaryScope {
            canary_key: self.canary_key.clone(),
            run_id: self.run_id.clone(),
            thread_id: self.thread.map(|thread| thread.to_string()),
            autopilot_id: self.autopilot_id.clone(),
            owner: Some(self.owner.clone()),
        }
    }
}
