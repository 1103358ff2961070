//! Who pays for a job?

use cantrip::canon::Money;
use cantrip::loom::Error;
use cantrip::reply::{Refusal, codes};
use cantrip::spend::{Authorization, AuthorizationMode, AuthorizationRef, Principal};
use cantrip::{Funds, Runtime, owner_of};
use cantrip_contract::Subject;

use super::driver::JobDriver;
use crate::predict::{Predictor, actor, refuse_store_error};

/// Returns the authorization that pays for a whole job. One that asks a person about each call cannot: a job makes
/// thousands of calls, and no person sits beside it.
async fn job_payer(
    runtime: &Runtime,
    owner: &str,
    named: Option<AuthorizationRef>,
    subject: &Subject,
) -> Result<Authorization, Refusal> {
    let agent = match subject {
        Subject::Signature(id) => id.to_string(),
        Subject::Spell(name) => name.clone(),
    };
    let principal = Principal {
        owner: owner_of(&actor(owner)?).map_err(Refusal::from)?,
        run_id: None,
        root_run_id: None,
        thread_id: None,
        autopilot_id: Some(agent),
    };
    let name = format!("a job of {subject}");
    match runtime.funds(principal, named).await.map_err(refuse_store_error)? {
        // The cost of every trial is on its receipt, so a ledger is required.
        Funds::NoLedger => Err(refuse_store_error(Error::NoLedger)),
        Funds::NoAuthorization => {
            let why = "no authorization covers the caller; the operator grants one: cantrip spend authorize";
            Err(codes::not_authorized(name, why).into())
        }
        Funds::Paid(payer) if payer.terms().mode == AuthorizationMode::Interactive => {
            let why = format!("{} is interactive, and no person can approve each call of a job", payer.id);
            Err(codes::not_authorized(name, why).into())
        }
        Funds::Paid(payer) => Ok(payer),
    }
}

impl JobDriver {
    pub(super) async fn payer(
        &self,
        owner: &str,
        named: Option<AuthorizationRef>,
        subject: &Subject,
    ) -> Result<Authorization, Refusal> {
        job_payer(&self.runtime, owner, named, subject).await
    }
}

impl Predictor {
    /// Checks who pays for a job, before anything is written: an authorization that asks a person about each call cannot
    /// pay for a job, and a model without a price cannot be asked under a budget. `unpriced` names such a model, if the
    /// job has one. Returns the authorization.
    pub async fn job_payer(
        &self,
        owner: &str,
        authorization: Option<AuthorizationRef>,
        subject: &Subject,
        unpriced: Option<&str>,
        budget: Option<Money>,
    ) -> Result<Authorization, Refusal> {
        let payer = job_payer(&self.runtime, owner, authorization, subject).await?;
        let terms = payer.terms();
        let is_limited = terms.max_total.is_some() || terms.max_per_call.is_some() || terms.max_per_day.is_some();
        let limit = match budget {
            Some(budget) => Some(format!("the budget of {budget}")),
            None => is_limited.then(|| format!("the limit of {}", payer.id)),
        };
        match (unpriced, limit) {
            (Some(model), Some(limit)) => Err(codes::price_unknown(model, limit).into()),
            (Some(_) | None, _) => Ok(payer),
        }
    }
}
