//! The cost of a job before its first call: at worst, and probably.

use cantrip::canon::{Hash, Money};
use cantrip::reply::Refusal;
use cantrip::spend::AuthorizationRef;
use cantrip_contract::{Artifact, SignatureId};
use serde::Serialize;
use serde_json::Value;

use crate::options::PredictOptions;
use crate::predict::Predictor;

/// The most that something can cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostBound {
    /// Nothing is charged for it.
    Free,
    AtMost(Money),
    /// A price is unknown.
    Unknown,
}

impl CostBound {
    /// Returns the sum of both bounds. Two currencies have no sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let _ = other;
        todo!()
    }

    #[must_use]
    pub fn times(self, count: u64) -> Self {
        let _ = count;
        todo!()
    }

    pub fn money(self) -> Option<Money> {
        match self {
            Self::AtMost(money) => Some(money),
            Self::Free | Self::Unknown => None,
        }
    }
}

/// One kind of trial or judgement of a plan, and how many of them there are at worst.
#[derive(Debug, Clone)]
pub struct PlannedTrial {
    pub signature: SignatureId,
    pub artifact: Artifact,
    pub input: Value,
    pub how: PredictOptions,
    pub count: u64,
}

/// The money part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostPlan {
    pub worst: CostBound,
    /// The mean of what the last receipts of this signature and model captured, for all trials; none if there are none.
    pub likely: Option<Money>,
    pub budget: Option<Money>,
    pub max_calls: Option<u64>,
    /// The authorization that pays.
    pub authorization: Option<String>,
    pub authorization_mode: Option<String>,
}

impl Predictor {
    /// Returns the most that one predict can cost, all repairs, iterations and sub-calls included.
    pub async fn worst_predict_cost(
        &self,
        signature: &SignatureId,
        artifact: &Artifact,
        input: &Value,
        how: &PredictOptions,
    ) -> Result<CostBound, Refusal> {
        let _ = (signature, artifact, input, how);
        todo!()
    }

    /// Returns the mean cost of the last predicts of this signature with this model; none if there are none with a price.
    pub async fn likely_predict_cost(&self, signature: &SignatureId, model: &str) -> Result<Option<Money>, Refusal> {
        let _ = (signature, model);
        todo!()
    }

    /// Checks who pays for a job, before anything is written: an authorization that asks a person about each call cannot
    /// pay for a job, nor one with a limit for a model without a price. Returns the authorization and its mode.
    pub async fn job_payer(
        &self,
        owner: &str,
        authorization: Option<AuthorizationRef>,
        worst: CostBound,
        budget: Option<Money>,
    ) -> Result<(AuthorizationRef, String), Refusal> {
        let _ = (owner, authorization, worst, budget);
        todo!()
    }
}

/// Returns the hash that names a plan in the record that opens the job.
pub(crate) fn plan_hash(plan: &Value) -> Option<Hash> {
    cantrip::canon::stable_hash(plan).ok()
}
